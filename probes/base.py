"""What trained probes share: the encoder and the word vectors that their parameters belong to, and their loss."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from datamodules import AttentionDataModule
from datamodules.dependency import Field
from heads.single_heads import Names, head_map
from results import Figure, on_one_scale
from results.errors import UserError
from training import Average, Origin, TrainedModule
from training.experiment import Data


@dataclass(frozen=True)
class Sizes:
    """Sizes of the input that shape a probe's parameters.

    Attributes:
        layers: 0-based layers of the encoder whose attention is read.
        heads: 0-based heads of each layer.
        vectors: size of the word vectors that are read.
    """

    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    vectors: int = 0


class FrozenProbe(TrainedModule[Data, Sizes]):
    """A trained probe over attention, word vectors or both; `setup` of a subclass calls `bind_to`.

    Attributes:
        reads: tensors of a batch that it reads.
    """

    reads: ClassVar[Collection[Field]] = frozenset(("attention",))

    def __init__(self) -> None:
        super().__init__()
        # Summed here and logged once an epoch: Lightning's `log` costs more than the forward pass of such a probe.
        self._loss, self._val_loss = Average(), Average()

    def on_train_epoch_end(self) -> None:
        """Log `train_loss`, nats per word or link."""
        self.log("train_loss", self._loss.take())

    def bind_to(self, data: AttentionDataModule[Any], reads: Collection[Field]) -> None:
        """Make the parameters for the encoder and the word vectors that are read; a UserError without them."""
        sizes, source = Sizes(), dict[str, object]()
        if "attention" in reads:
            source["encoder"] = data.encoder_identity
            sizes = replace(sizes, layers=data.layers, heads=data.heads)
        if "vectors" in reads:
            if data.vectors is None:
                raise UserError(
                    f"{type(self).__name__} needs word vectors: --data.init_args.vectors.name glove.6B.50d, another "
                    f"name, a file, or `encoder` for the encoder's own input embeddings."
                )
            source["vectors"] = dict(data.vectors.identity)
            sizes = replace(sizes, vectors=data.vectors_size)
        self.bind(sizes, source)

    def sizes_from(self, part: Mapping[str, Any]) -> Sizes:
        return Sizes(**part["sizes"])

    def difference(self, trained: Origin[Sizes], run: Origin[Sizes]) -> str | None:
        if trained == run:
            return None
        return (
            f"The parameters were trained on {_describe(trained)}, and the data come from {_describe(run)}. Give "
            f"--data.init_args.encoder and --data.init_args.vectors those of the training."
        )


def _describe(origin: Origin[Sizes]) -> str:
    sizes, source = origin.sizes, origin.source
    parts = []
    encoder, vectors = source.get("encoder"), source.get("vectors")
    if isinstance(encoder, Mapping):
        of = f"{encoder['weights']} weights {str(encoder['weights_sha256'])[:12]}…"
        parts.append(f"{of}, {len(sizes.layers)} layers × {len(sizes.heads)} heads")
    if isinstance(vectors, Mapping):
        named = ", ".join(f"{name} {str(value)[:12]}" for name, value in vectors.items())
        parts.append(f"vectors of {sizes.vectors} numbers ({named})")
    return " and ".join(parts)


def weight_maps(weight: Tensor, directions: Sequence[str], sizes: Sizes) -> Mapping[str, Figure]:
    """Learned weights `[2, layers, heads]`, one map per direction, on one scale of colours."""
    names, maps = Names(sizes.layers, sizes.heads), {}
    for direction, of_direction in zip(directions, weight.detach().double().cpu().numpy(), strict=True):
        figure = head_map(
            f"Weights learned on train, {direction}", of_direction, names, value_label="weight", unit="ratio"
        )
        figure = replace(figure, diverging=True)
        maps[f"weights_{direction.replace(' ', '').replace('→', '_to_')}"] = figure
    return on_one_scale(maps)
