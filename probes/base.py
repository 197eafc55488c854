"""What a trained probe belongs to: the encoder and the word vectors whose numbers its parameters weigh."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from datamodules import AttentionDataModule
from datamodules.dependency import Field
from heads.experiment import ExperimentError
from results import Figure, HeatMap, on_one_scale
from training import Origin, TrainedModule


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


class FrozenProbe(TrainedModule[Sizes]):
    """A trained probe over attention, word vectors or both. Subclasses fill `build`, and call `bind_to` in `setup`."""

    def bind_to(self, data: AttentionDataModule, reads: Set[Field]) -> None:
        """Make the parameters for the encoder and the word vectors of the datamodule, as far as they are read.

        Raises:
            ExperimentError: it has no word vectors, and they are read.
            TrainingError: the parameters were made for another encoder or for other word vectors.
        """
        sizes, source = Sizes(), dict[str, object]()
        if "attention" in reads:
            source["encoder"] = data.encoder_identity
            sizes = replace(sizes, layers=data.layers, heads=data.heads)
        if "vectors" in reads:
            if data.vectors is None:
                raise ExperimentError(
                    f"{type(self).__name__} needs word vectors: --data.init_args.vectors.name glove.6B.50d, another "
                    f"name, a file, or `encoder` for the encoder's own input embeddings."
                )
            source["vectors"] = dict(data.vectors.identity)
            sizes = replace(sizes, vectors=data.vectors_size)
        self.bind(sizes, source)

    def sizes_from(self, part: Mapping[str, Any]) -> Sizes:
        """As `Sizes`."""
        return Sizes(**part["sizes"])

    def difference(self, trained: Origin[Sizes], run: Origin[Sizes]) -> str | None:
        """Another encoder, other layers or heads of it, or other word vectors."""
        if trained == run:
            return None
        return (
            f"The parameters were trained on {_describe(trained)}, and the data come from {_describe(run)}. Give "
            f"--data.init_args.encoder and --data.init_args.vectors those of the training."
        )


def _describe(origin: Origin[Sizes]) -> str:
    """Which encoder and word vectors, for people."""
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
    maps = {
        f"weights_{direction.replace(' ', '').replace('→', '_to_')}": HeatMap(
            title=f"Learned weights, {direction}",
            values=of_direction.double().cpu().numpy(),
            row_labels=[str(layer + 1) for layer in sizes.layers],
            column_labels=[str(head + 1) for head in sizes.heads],
            row_label="layer",
            column_label="head",
            value_label="weight",
            diverging=True,
            unit="ratio",
        )
        for direction, of_direction in zip(directions, weight.detach(), strict=True)
    }
    return on_one_scale(maps)
