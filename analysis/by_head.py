"""Numbers of heads: means over inputs, and the tables, maps and scores that are made of them."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from attention import Encoder
from heads.single_heads import head_name
from metrics.moments import Means, Moments
from results import Estimate, Floats, Unit

HeadNumbers: TypeAlias = Means | Estimate[Floats]
"""A number of every head, `[layers, heads]`: means over inputs whose groups are halves in turn, or an estimate."""


def without_interval(values: Floats, unit: Unit) -> Estimate[Floats]:
    """Wrap numbers whose intervals are unknown: nan."""
    missing = np.full(values.shape, np.nan)
    return Estimate(values, missing, missing, unit=unit)


class HeadMeans(nn.Module):
    """Means over inputs of named numbers: of every head, of every layer (mean of its heads), and of the whole model.

    Args:
        encoder: encoder with the heads.
        units: unit of each number by name.
        bounds: lowest and highest possible value; see `Moments`.
        groups: number of groups of inputs; by default the inputs of even and of odd number.
        scale: bits behind the point; see `Moments`.
    """

    def __init__(
        self,
        encoder: Encoder,
        units: Mapping[str, Unit],
        bounds: tuple[ArrayLike, ArrayLike] = (0, 1),
        groups: int = 2,
        scale: int = 32,
    ) -> None:
        super().__init__()
        self.units = units
        unit = tuple(units.values()) if len({*units.values()}) > 1 else next(iter(units.values()))
        shapes = {"heads": (encoder.layers, encoder.heads), "layers": (encoder.layers,), "model": ()}
        self._moments = nn.ModuleDict(
            {level: Moments(groups, (*shape, len(units)), unit, scale, bounds) for level, shape in shapes.items()}
        )
        self._layers: list[Tensor] = []

    def add(self, numbers: Tensor) -> None:
        """Keep the numbers of the next layer, `[batch, heads, numbers]`, until `close`."""
        self._layers.append(numbers)

    def close(self, group: Tensor) -> None:
        """Sum the numbers of all layers of a batch; `group` is the group of each input, int64 `[batch]`."""
        found = torch.stack(self._layers, 1).double()
        self._layers.clear()
        for moments, numbers in zip(
            self._moments.values(), (found, found.nanmean(2), found.nanmean((1, 2))), strict=True
        ):
            moments.update(group, numbers)  # type: ignore[operator]

    def means(self, level: Literal["heads", "layers", "model"] = "heads") -> Means:
        """Return the sums of a level, `[groups, layers, heads, numbers]` for `heads`; every process takes part."""
        found: Means = self._moments[level].compute()  # type: ignore[operator]
        return found

    def over(
        self, level: Literal["heads", "layers", "model"] = "heads", groups: Sequence[int] | slice = slice(None)
    ) -> dict[str, Estimate[Floats]]:
        """Return means over some groups by name, `[layers, heads]`, `[layers]` or `[]`; every process takes part."""
        return by_name(self.means(level), list(self.units), groups)

    def by_head(self, prefix: str = "") -> dict[str, Means]:
        """Return the numbers of every head as `<prefix><name>`; every process takes part."""
        means = self.means()
        return {prefix + name: means.at(place) for place, name in enumerate(self.units)}


def by_name(
    means: Means, names: Sequence[str], groups: Sequence[int] | slice = slice(None)
) -> dict[str, Estimate[Floats]]:
    """Return the means over some groups by the names of the last axis."""
    return {name: means.at(place).over(groups) for place, name in enumerate(names)}


def head_rows(columns: Mapping[str, Estimate[Floats] | NDArray[np.generic]], **constant: object) -> pd.DataFrame:
    """Make a row for each head, layer by layer: `layer`, `head`, `constant` columns and `columns` `[layers, heads]`.

    An estimate becomes the columns `<name>`, `<name>.low` and so on. Columns `[layers]` make a row for each layer.
    """
    first = next(iter(columns.values()))
    places = np.indices((first.value if isinstance(first, Estimate) else first).shape)
    frame: dict[str, object] = {name: place.ravel() + 1 for name, place in zip(("layer", "head"), places, strict=False)}
    frame |= constant
    for name, column in columns.items():
        numbers = column.named(name) if isinstance(column, Estimate) else {name: column}
        frame |= {end: number.ravel() for end, number in numbers.items()}
    return pd.DataFrame(frame)


def by_class(found: Mapping[str, Estimate[Floats]], value: str, label: str = "class") -> pd.DataFrame:
    """Make a row for each class and head of estimates `[layers, heads]` by class; or for each class and layer.

    Columns are `layer`, `head`, the class, its value, `low`, `high`, and the number of `inputs` under the mean. Without
    a class the table has these columns and no rows.
    """
    frames = [head_rows({value: each, "inputs": each.inputs}, **{label: name}) for name, each in found.items()]
    if not frames:
        return pd.DataFrame(columns=["layer", "head", label, value, "low", "high", "inputs"])
    ends = {f"{value}.low": "low", f"{value}.high": "high"}
    return pd.concat(frames, ignore_index=True).rename(columns=ends)


def best_head(values: Estimate[Floats]) -> tuple[tuple[int, int], Estimate]:
    """Return the 0-based layer and head of the highest mean `[layers, heads]`, the first of equals, and its estimate.

    The interval ignores that the head was chosen on the same inputs.
    """
    layer, head = np.unravel_index(np.nan_to_num(values.value, nan=-np.inf).argmax(), values.value.shape)
    place = int(layer), int(head)
    return place, values[place]


def best_audit(best: Mapping[str, tuple[tuple[int, int], Estimate]]) -> dict[str, str]:
    """Return `best_<name>` → `layer-head`, from 1, for the audit."""
    return {f"best_{name}": head_name(*place) for name, (place, _) in best.items()}
