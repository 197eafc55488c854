"""Base classes of trained probes over frozen attention, hidden states or word vectors."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from attention import EncoderSpec, Options
from attention.extraction import console
from corpora.sentence import Sentence
from datamodules import AttentionBatch, AttentionDataModule, DependencyDataModule, VectorSpec
from datamodules.corpus import Data
from datamodules.dependency import Field
from models import Origin, TrainedModule, quiet
from models.checkpoints import config_of, data_settings, datamodule_from
from models.trained import Average
from probes.arc_evaluation import read_fields
from results import Figure, on_one_scale
from results.errors import UserError, new_items
from results.heads import Names, head_map

Mode = Literal["min", "max"]


@dataclass(frozen=True)
class Sizes:
    """Sizes that determine the shapes of a probe's parameters.

    Attributes:
        layers: 0-based layers of the encoder whose attention is read.
        heads: 0-based heads that are read of each layer.
        vectors: Size of a word vector.
        hidden: Size of a hidden state.
        pairs: Layer and rank of each matrix of a structural probe.
    """

    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    vectors: int = 0
    hidden: int = 0
    pairs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Sizes":
        """Return the sizes from the output of `dataclasses.asdict`, as a checkpoint stores them."""
        return cls(**plain)


class FrozenProbe(TrainedModule[Data, Sizes]):
    """A trained probe over frozen input: attention, hidden states or word vectors.

    Attributes:
        reads: Names of the fields of a batch that the probe reads, such as `attention`.
    """

    sizes_type = Sizes
    reads: Collection[Field] = frozenset(("attention",))

    def __init__(self) -> None:
        super().__init__()
        # Summed here and logged once an epoch: Lightning's `log` costs more than the forward pass of such a probe.
        self._loss, self._val_loss = Average(), Average()

    def figures(self) -> Mapping[str, Figure]:
        """Return figures of the learned parameters, by name; empty by default."""
        return {}

    def on_train_epoch_end(self) -> None:
        """Log `train_loss`, the mean loss of the epoch in nats per word, or per link of an antecedent probe."""
        self.log("train_loss", self._loss.take())

    def bind_to(self, data: AttentionDataModule[Any], reads: Collection[Field], sizes: Sizes | None = None) -> None:
        """Create the probe's parameters in the sizes of the datamodule's encoder and word vectors.

        Args:
            data: The datamodule, after `setup`.
            reads: Fields of a batch that the probe reads.
            sizes: Sizes that the datamodule does not determine; None if there are none.

        Raises:
            UserError: The probe reads word vectors, and the datamodule has none.
            TrainingError: The parameters were made for other data.
        """
        sizes, source = sizes or Sizes(), dict[str, object]()
        if {"attention", "hidden"} & set(reads):
            source["encoder"] = data.encoder_identity
        if "attention" in reads:
            sizes = replace(sizes, layers=data.layers, heads=data.heads)
            if data.options.quantity != "attention":
                source["options.quantity"] = data.options.quantity
        if "vectors" in reads:
            if data.vectors is None:
                raise UserError(
                    f"{type(self).__name__} needs word vectors. Set --data.init_args.vectors.name to a name such as "
                    "glove.6B.50d, to a file, or to `encoder` for the encoder's own input embeddings."
                )
            source["vectors"] = dict(data.vectors.identity)
            sizes = replace(sizes, vectors=data.vectors.size)
        self.bind(sizes, source)

    def difference(self, trained: Origin[Sizes], run: Origin[Sizes]) -> str | None:
        if trained == run:
            return None
        options = [f"--data.init_args.{name}" for name in {**trained.source, **run.source}]
        if trained.sizes.heads:
            options.append("--data.init_args.options")
        if trained.sizes.pairs:
            options += ["--data.init_args.hidden", "--model.init_args.layers", "--model.init_args.ranks"]
        return (
            f"The checkpoint was trained on {_describe(trained)}, but this run has {_describe(run)}. Give "
            f"{', '.join(options)} as in the training."
        )


def _describe(origin: Origin[Sizes]) -> str:
    sizes, source = origin.sizes, origin.source
    parts = []
    encoder, vectors = source.get("encoder"), source.get("vectors")
    if isinstance(encoder, Mapping):
        parts.append(f"{encoder['weights']} weights {str(encoder['weights_sha256'])[:12]}…")
    if sizes.heads:
        quantity = source.get("options.quantity", "attention")
        parts.append(f"{quantity} of {len(sizes.layers)} layers × {len(sizes.heads)} heads")
    if sizes.pairs:
        layers, ranks = (", ".join(map(str, dict.fromkeys(column))) for column in zip(*sizes.pairs, strict=True))
        parts.append(f"hidden states of layers {layers}, at ranks {ranks}")
    if isinstance(vectors, Mapping):
        named = ", ".join(f"{name} {str(value)[:12]}" for name, value in vectors.items())
        parts.append(f"vectors of {sizes.vectors} numbers ({named})")
    return ", ".join(parts)


def weight_maps(weight: Tensor, directions: Sequence[str], sizes: Sizes) -> Mapping[str, Figure]:
    """Return heat maps of learned weights, layers × heads, one for each direction, on the same colour scale.

    Args:
        weight: Learned weights `[2, layers, heads]`; the first axis is the direction.
        directions: Names of the two directions of attention.
        sizes: Layers and attention heads of the weights.
    """
    names, maps = Names(sizes.layers, sizes.heads), {}
    for direction, values in zip(directions, weight.detach().double().cpu().numpy(), strict=True):
        title = f"Weights learned on train, {direction}"
        figure = replace(head_map(title, values, names, value_label="weight", unit="ratio"), diverging=True)
        maps[f"weights_{direction.replace(' ', '').replace('→', '_to_')}"] = figure
    return on_one_scale(maps)


class DependencyProbe(FrozenProbe[DependencyDataModule]):
    """A trained probe over a dependency treebank; a `ProbeMeasure` can train copies of it.

    Attributes:
        monitor: Name of a score or loss on dev, and `min` or `max`. The best epoch is the one with its
            lowest or its highest value.
        headline: Name of the main score of the result. It is a ratio: a sum over sentences divided by
            another sum over sentences.
    """

    takes = DependencyDataModule
    monitor: ClassVar[tuple[str, Mode]]
    headline: ClassVar[str]

    def cross_entropy(self, batch: AttentionBatch) -> Tensor:
        """Return −ln p(gold governor) of every word, nats `[batch, n]`; 0 in the padding.

        Raises:
            UserError: The probe does not predict probabilities of candidate governors.
        """
        raise UserError(
            f"{type(self).__name__} predicts no probabilities of governors, so a description length cannot be "
            f"computed. Use another probe, for instance AttentionOnlyProbe."
        )

    def setup(self, stage: str) -> None:
        read_fields(self.data, self.reads, type(self).__name__)
        self.bind_to(self.data, self.reads)

    @contextmanager
    def on_sentences(
        self,
        sentences: str | Sequence[str | Sequence[str]],
        encoder: EncoderSpec | None,
        options: Options | None,
        vectors: VectorSpec | None = None,
        root: str | None = None,
        hidden: tuple[int, ...] = (),
    ) -> Iterator[DependencyDataModule]:
        """Yield a datamodule with new sentences as its split `test`, processed like the training data.

        The extracted attention is deleted at the end of the context. The gold trees of the sentences are
        placeholders.

        Args:
            sentences: Sentences, each a string that is split at white space, or a sequence of words.
            encoder: The encoder; None for the encoder of the training.
            options: Layers and heads, and treatment of long sentences; None for the options of the training.
            vectors: The word vectors; None for the vectors of the training.
            root: Folder of the word vectors; None for `$PROBING_DATA`, or else `./data`.
            hidden: Layers whose hidden states are read.

        Raises:
            TrainingError: The probe is not trained, or was trained on other data.
            UserError: There is no sentence, or one has no words.
        """
        given = new_items("sentences", sentences)
        self.on_validation_start()
        with TemporaryDirectory() as cache, quiet(), torch.inference_mode():
            file = Path(cache) / "sentences.conllu"
            file.write_text("".join(_unparsed(*one).conllu() for one in enumerate(given, 1)), encoding="utf-8")
            trained = self._training_data()
            data = DependencyDataModule(
                {"test": str(file)},
                punctuation=(),
                hidden=hidden,
                encoder=encoder or trained.encoder,
                options=options or trained.options,
                vectors=vectors or trained.vector_spec,
                root=root,
                cache=cache,
            )
            before, console.quiet = console.quiet, True  # the store is gone after the context
            try:
                data.setup("predict")
            finally:
                console.quiet = before
            data.read_only(frozenset(self.reads))
            self.bind_to(data, self.reads, replace(self.sizes, layers=(), heads=(), vectors=0, hidden=data.hidden_size))
            yield data

    def _training_data(self) -> DependencyDataModule:
        """Return the data of the checkpoint, not set up; without a checkpoint, data of the default encoder."""
        if self.loaded_from is not None and "data" in config_of(self.loaded_from[1]):
            data = datamodule_from(data_settings(*self.loaded_from))
            assert isinstance(data, DependencyDataModule)
            return data
        return DependencyDataModule(encoder=EncoderSpec() if {"attention", "hidden"} & set(self.reads) else None)


def _unparsed(number: int, sentence: str | Sequence[str]) -> Sentence:
    """Return a sentence under an arbitrary tree, which is not read."""
    words = tuple(sentence.split() if isinstance(sentence, str) else sentence)
    n = len(words)
    return Sentence(str(number), words, tuple(range(n)), ("dep",) * n, ("X",) * n, ("_",) * n)
