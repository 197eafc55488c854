"""Shared parts of trained probes: sizes, their parameters for the data, and new sentences as data."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from attention_probing.attention import EncoderSpec, Options
from attention_probing.attention.extraction import console
from attention_probing.corpora.sentence import Sentence
from attention_probing.datamodules import AttentionDataModule, DependencyDataModule, VectorSpec
from attention_probing.datamodules.dependency import Field
from attention_probing.models import Origin, TrainedModule, refuse_untrained
from attention_probing.models.checkpoints import config_of, data_settings, datamodule_from
from attention_probing.results import Figure, on_one_scale
from attention_probing.results.errors import UserError, new_items, setting
from attention_probing.results.heads import HeadNames, head_map
from attention_probing.results.progress import quiet

MonitorMode = Literal["min", "max"]


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
    compared: ClassVar[Mapping[str, str]] = {
        "layers": "layers",
        "heads": "heads",
        "vectors": "size of the vectors",
        "hidden": "size of the hidden states",
        "pairs": "layers and ranks of the matrices",
    }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Sizes":
        """Return the sizes from the output of `dataclasses.asdict`, as a checkpoint stores them."""
        return cls(**plain)


def probe_origin(
    data: AttentionDataModule[Any], reads: Collection[Field], probe: str, sizes: Sizes | None = None
) -> Origin[Sizes]:
    """Return the sizes of a probe for a datamodule, after its `setup`, and the encoder and word vectors that it reads.

    Args:
        data: The datamodule.
        reads: Fields of a batch that the probe reads.
        probe: Class name of the probe, for messages.
        sizes: Sizes that the datamodule does not determine; None if there are none.

    Raises:
        UserError: The probe reads word vectors, and the datamodule has none.
    """
    sizes = sizes or Sizes()
    source = dict[str, object]()
    if "attention" in reads or "hidden" in reads:
        source["encoder"] = data.encoder_identity
    if "attention" in reads:
        sizes = replace(sizes, layers=data.layers, heads=data.heads)
        if data.options.quantity != "attention":
            source["options.quantity"] = data.options.quantity
    if "vectors" in reads:
        if data.vectors is None:
            raise UserError(
                f"{probe} needs word vectors. Set {setting('data.vectors.name')} to a name such as glove.6B.50d, "
                "to a file, or to `encoder` for the encoder's own input embeddings."
            )
        source["vectors"] = dict(data.vectors.identity)
        sizes = replace(sizes, vectors=data.vectors.size)
    return Origin(sizes, source)


def weight_maps(weight: Tensor, directions: Sequence[str], sizes: Sizes) -> Mapping[str, Figure]:
    """Return heat maps of learned weights, layers × heads, one for each direction, on the same colour scale.

    Args:
        weight: Learned weights `[2, layers, heads]`; the first axis is the direction.
        directions: Names of the two directions of attention.
        sizes: Layers and attention heads of the weights.
    """
    names = HeadNames(sizes.layers, sizes.heads)
    maps = {}
    for direction, values in zip(directions, weight.detach().double().cpu().numpy(), strict=True):
        title = f"Weights learned on train, {direction}"
        figure = head_map(title, values, names, value_label="weight", unit="ratio", title_says="split")
        figure = replace(figure, diverging=True)
        maps[f"weights_{direction.replace(' ', '').replace('→', '_to_')}"] = figure
    return on_one_scale(maps)


@contextmanager
def on_sentences(
    probe: TrainedModule[DependencyDataModule, Sizes],
    reads: Collection[Field],
    sentences: str | Sequence[str | Sequence[str]],
    encoder: EncoderSpec | None,
    options: Options | None,
    vectors: VectorSpec | None = None,
    root: str | None = None,
    hidden: tuple[int, ...] = (),
) -> Iterator[DependencyDataModule]:
    """Yield a datamodule with new sentences as its split `test`, processed like the training data of a probe.

    The extracted attention is deleted at the end of the context. The gold trees of the sentences are
    placeholders.

    Args:
        probe: The probe.
        reads: Fields of a batch that the probe reads.
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
    refuse_untrained(probe)
    with TemporaryDirectory() as cache, quiet(), torch.inference_mode():
        file = Path(cache) / "sentences.conllu"
        blocks = [_make_sentence(number, sentence).conllu() for number, sentence in enumerate(given, 1)]
        file.write_text("".join(blocks), encoding="utf-8")
        trained = _training_data(probe, reads)
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
        was_quiet = console.quiet
        console.quiet = True  # the store is gone after the context
        try:
            data.setup("predict")
        finally:
            console.quiet = was_quiet
        data.read_only(frozenset(reads))
        sizes = replace(probe.sizes, layers=(), heads=(), vectors=0, hidden=data.hidden_size)
        probe.bind(probe_origin(data, reads, type(probe).__name__, sizes))
        yield data


def _training_data(probe: TrainedModule[DependencyDataModule, Sizes], reads: Collection[Field]) -> DependencyDataModule:
    """Return the data of the checkpoint, not set up; without a checkpoint, data of the default encoder."""
    if probe.loaded_from is not None and "data" in config_of(probe.loaded_from[1]):
        data = datamodule_from(data_settings(*probe.loaded_from))
        assert isinstance(data, DependencyDataModule)
        return data
    if "attention" in reads or "hidden" in reads:
        return DependencyDataModule(encoder=EncoderSpec())
    return DependencyDataModule(encoder=None)


def _make_sentence(number: int, sentence: str | Sequence[str]) -> Sentence:
    """Return a sentence under an arbitrary tree, which is not read."""
    words = tuple(sentence.split() if isinstance(sentence, str) else sentence)
    n = len(words)
    return Sentence(str(number), words, tuple(range(n)), ("dep",) * n, ("X",) * n, ("_",) * n)
