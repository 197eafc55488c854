"""What a trained probe is bound to: the encoder and the word vectors whose numbers its parameters weigh."""

from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, replace
from typing import Any

from pytorch_lightning import LightningModule

from datamodules import AttentionDataModule
from datamodules.treebank import Field
from probes.base import ProbeError


@dataclass(frozen=True)
class Sizes:
    """What a probe's parameters are shaped by.

    Attributes:
        layers: 0-based layers of the encoder whose attention is read.
        heads: 0-based heads of each layer.
        vectors: size of the word vectors that are read.
    """

    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    vectors: int = 0


class BoundProbe(LightningModule):
    """A trained probe. Its parameters are made when the data are known, and its checkpoints fit no other source.

    Subclasses fill `build`, and call `bind` in their `setup`.

    Attributes:
        epochs: the epoch of the checkpoint that was loaded, from 1; None without one.
        epochs_run: the epochs of the training, where it was one of this process.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 # those of the experiment beside
        super().__init__(*args, **kwargs)
        self._source: Mapping[str, object] = {}
        self._sizes: Sizes | None = None
        self._trained = False
        self.epochs: int | None = None
        self.epochs_run: int | None = None

    def build(self, sizes: Sizes) -> None:
        """Make the parameters."""
        raise TypeError(f"{type(self).__name__} does not say how it is built.")

    def bind(self, data: AttentionDataModule, reads: Set[Field]) -> None:
        """Make the parameters for the encoder and the word vectors of the datamodule, as far as they are read.

        Raises:
            ProbeError: it has no word vectors, and they are read.
        """
        sizes = Sizes()
        if "attention" in reads:
            self._source = {"encoder": data.encoder_identity}
            sizes = replace(sizes, layers=data.layers, heads=data.heads)
        if "vectors" in reads:
            if data.vectors is None:
                raise ProbeError(
                    f"{type(self).__name__} needs word vectors: --data.init_args.vectors.name glove.6B.50d, another "
                    f"name, a file, or `encoder` for the encoder's own input embeddings."
                )
            self._source = {**self._source, "vectors": dict(data.vectors.identity)}
            sizes = replace(sizes, vectors=data.vectors_size)
        self._make(sizes)

    def _make(self, sizes: Sizes) -> None:
        if self._sizes is None:
            self._sizes = sizes
            self.build(sizes)

    def on_fit_start(self) -> None:
        """From here on the parameters mean something."""
        self._trained = True

    def on_train_end(self) -> None:
        """Remember how long it was trained, to be told beside the epoch that is tested."""
        self.epochs_run = self.trainer.current_epoch

    def on_validation_start(self) -> None:
        """Refuse to score a probe that has learned nothing.

        Raises:
            ProbeError: it was not trained, and comes from no checkpoint.
        """
        if not self._trained:
            raise ProbeError(
                f"{type(self).__name__} was not trained: train it with `fit`, or give the checkpoint of one that was "
                f"with --ckpt_path."
            )

    on_test_start = on_predict_start = on_validation_start

    @property
    def trained_for(self) -> dict[str, int]:
        """For the audit: `epochs`, the one that is tested, and `epochs_run`, those there were, where they are known."""
        known = {"epochs": self.epochs, "epochs_run": self.epochs_run}
        return {name: epochs for name, epochs in known.items() if epochs is not None}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what the parameters belong to."""
        assert self._sizes is not None
        checkpoint["probe"] = {"source": dict(self._source), "sizes": asdict(self._sizes)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the weights of another encoder.

        Raises:
            ProbeError: the checkpoint is of another class, or was trained on another encoder, on other layers or heads
                of it, or on other word vectors.
        """
        trained = trained_part(self, checkpoint, "sizes")
        sizes = Sizes(**trained["sizes"])
        if self._sizes is not None and (trained["source"], sizes) != (self._source, self._sizes):
            raise ProbeError(
                f"The checkpoint was trained on {_describe(trained['source'], sizes)}, and the data come from "
                f"{_describe(self._source, self._sizes)}. Give --data.init_args.encoder and --data.init_args.vectors "
                f"those of the checkpoint."
            )
        self._source, self.epochs = trained["source"], checkpoint["epoch"] + 1
        self._trained = True
        self._make(sizes)


def trained_part(probe: LightningModule, checkpoint: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What a trained probe wrote of itself into its checkpoint, `key` among it.

    Raises:
        ProbeError: the checkpoint has no such part: it is one of another module.
    """
    part: Mapping[str, Any] = checkpoint.get("probe", {})
    if key not in part:
        file = getattr(probe._trainer, "ckpt_path", None) or "The file"
        raise ProbeError(
            f"{file} is not a checkpoint of {type(probe).__name__}. Give --ckpt_path a file from checkpoints/ of a run "
            f"of {type(probe).__name__}."
        )
    return part


def _describe(source: Mapping[str, Any], sizes: Sizes) -> str:
    """Which encoder and word vectors a probe belongs to, for people."""
    parts = []
    if encoder := source.get("encoder"):
        of = f"{encoder['weights']} weights {str(encoder['weights_sha256'])[:12]}…"
        parts.append(f"{of}, {len(sizes.layers)} layers × {len(sizes.heads)} heads")
    if vectors := source.get("vectors"):
        named = ", ".join(f"{name} {str(value)[:12]}" for name, value in vectors.items())
        parts.append(f"vectors of {sizes.vectors} numbers ({named})")
    return " and ".join(parts)
