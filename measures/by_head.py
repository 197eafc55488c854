"""Numbers of attention heads: means over inputs, and the tables, maps and scores that are made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from attention_probing.attention import Encoder
from attention_probing.metrics.moments import Means, Moments
from attention_probing.results import Estimate, Floats, HeatMap, Unit
from attention_probing.results.heads import head_name

HeadNumbers: TypeAlias = Means | Estimate[Floats]
"""Number of every attention head, `[layers, heads]`: means over two groups of inputs (halves), or an estimate."""


def without_interval(values: Floats, unit: Unit) -> Estimate[Floats]:
    """Return an `Estimate` of numbers whose interval is unknown: both ends of the interval are nan.

    Args:
        values: The numbers, of any shape.
        unit: Unit of the numbers.
    """
    missing = np.full(values.shape, np.nan)
    return Estimate(values, missing, missing, unit=unit)


class HeadMeans(nn.Module):
    """Accumulator that averages numbers over inputs, at three levels: heads, layers and the model.

    The number of a layer on an input is the mean over its heads; the number of the model is the mean
    over all heads. For every batch call `add` once for each layer, and then `close`.

    Args:
        encoder: Encoder with the attention heads.
        units: Unit of each number, by name.
        bounds: Lowest and highest possible value; see `Moments`. By default they are 0 and 1 for fractions, and 0 and
            infinity for other units.
        groups: Number of groups of inputs that can be averaged separately; by default two, the inputs
            with an even and with an odd index.
        baselines: Number of baselines whose numbers are averaged too, such as uniform attention in each layer.
    """

    def __init__(
        self,
        encoder: Encoder,
        units: Mapping[str, Unit],
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        groups: int = 2,
        baselines: int = 0,
    ) -> None:
        super().__init__()
        self.units = units
        self.differences: Moments | None = None
        self._groups = groups
        if bounds is None:
            bounds = (0, [1.0 if unit == "fraction" else np.inf for unit in units.values()])
        self._bounds = bounds
        self._unit: Unit | tuple[Unit, ...] = tuple(units.values())
        if len(set(self._unit)) == 1:
            self._unit = self._unit[0]
        shapes: dict[str, tuple[int, ...]] = {
            "heads": (encoder.layers, encoder.heads),
            "layers": (encoder.layers,),
            "model": (),
        }
        if baselines:
            shapes["baselines"] = (baselines,)
        self._shape = (*shapes["heads"], len(units))
        self._moments = nn.ModuleDict()
        for level, shape in shapes.items():
            self._moments[level] = Moments(groups, (*shape, len(units)), self._unit, bounds)
        self._layers: list[Tensor] = []
        self._last: tuple[Tensor, Tensor] | None = None  # group and numbers by head of the last batch

    def pair(self) -> None:
        """Prepare `subtract`: the differences between the numbers of two encoders, by head, are averaged too."""
        low = np.asarray(self._bounds[0], np.float64)
        high = np.asarray(self._bounds[1], np.float64)
        self.differences = Moments(self._groups, self._shape, self._unit, (low - high, high - low))

    def subtract(self, other: "HeadMeans") -> None:
        """Add the differences of the last batch: the numbers of each input, minus those of another encoder.

        Args:
            other: Numbers of the other encoder, whose last batch has the same inputs. If neither has had a batch since
                the last call, nothing is added.
        """
        assert self.differences is not None
        if self._last is not None and other._last is not None:
            group, numbers = self._last
            self.differences.update(group, numbers - other._last[1])
        self._last = None
        other._last = None

    def add(self, numbers: Tensor) -> None:
        """Add the numbers of one layer of a batch; the first call after `close` is for the lowest layer.

        They are part of the means only after `close`.

        Args:
            numbers: `[batch, heads, numbers]`; nan for a number that an input does not have.
        """
        self._layers.append(numbers)

    def close(self, group: Tensor, baselines: Tensor | None = None, possible: Tensor | None = None) -> None:
        """End a batch: include the numbers of its layers, collected by `add`, in the means.

        Args:
            group: Index of the group that each input counts in, int64 `[batch]`.
            baselines: Numbers of the baselines, `[batch, baselines, numbers]`; the first ones belong to the layers.
            possible: Numbers of the same shape; by default `baselines`. A number that is 0 here is 0 for every
                attention of the layer, and is left out of the means.
        """
        heads = torch.stack(self._layers, 1).double()  # [batch, layers, heads, numbers]
        self._layers.clear()
        if possible is None:
            possible = baselines
        if possible is not None:
            possible_by_layer = possible[:, : heads.size(1), None]
            heads = heads.where(possible_by_layer != 0, torch.nan)
        levels = {"heads": heads, "layers": heads.nanmean(2), "model": heads.nanmean((1, 2))}
        if baselines is not None and possible is not None:
            levels["baselines"] = baselines.where(possible != 0, torch.nan)
        for level, numbers in levels.items():
            self._moments[level].update(group, numbers)  # type: ignore[operator]
        self._last = (group, heads)

    def means(self, level: Literal["heads", "layers", "model", "baselines"] = "heads") -> Means:
        """Return the sums of all numbers over inputs; `Means.over` divides them into means.

        Every process must call this method, because it gathers from all processes.

        Args:
            level: `heads` for sums `[groups, layers, heads, numbers]`, `layers` for
                `[groups, layers, numbers]`, `model` for `[groups, numbers]`, `baselines` for those of the baselines,
                `[groups, baselines, numbers]`.
        """
        means: Means = self._moments[level].compute()  # type: ignore[operator]
        if level == "heads" and self.differences is not None:
            means = replace(means, differences=self.differences.compute())
        return means

    def over(
        self,
        level: Literal["heads", "layers", "model"] = "heads",
        groups: Sequence[int] | slice = slice(None),
        tests: int = 1,
    ) -> dict[str, Estimate[Any]]:
        """Return the mean of each number with its interval, over the inputs of some groups.

        Every process must call this method, because it gathers from all processes.

        Args:
            level: `heads` for means `[layers, heads]`, `layers` for `[layers]`, `model` for one number.
            groups: Indices of the groups; by default all.
            tests: Number of means whose intervals hold at once; see `Means.over`.

        Returns:
            Estimates by name of the number.
        """
        return by_name(self.means(level), list(self.units), groups, tests)

    def over_at_once(
        self, level: Literal["heads", "layers"] = "heads", groups: Sequence[int] | slice = slice(None)
    ) -> dict[str, Estimate[Any]]:
        """Return the means of `over` with intervals that hold for all heads, or all layers, at once.

        The interval of the head or layer with the largest mean is then valid although it was chosen on the same inputs.
        """
        means = self.means(level)
        heads = int(np.prod(means.sums.shape[1:-1]))
        return by_name(means, list(self.units), groups, heads)

    def by_head(self, prefix: str = "") -> dict[str, Means]:
        """Return the sums of each number over inputs, as `Means` of `[groups, layers, heads]`, by name.

        `Means.over` divides them into means. Every process must call this method, because it gathers
        from all processes.

        Args:
            prefix: Beginning of the names in the result.
        """
        means = self.means()
        return {prefix + name: means.at(place) for place, name in enumerate(self.units)}


def by_name(
    means: Means, names: Sequence[str], groups: Sequence[int] | slice = slice(None), tests: int = 1
) -> dict[str, Estimate[Any]]:
    """Return the mean of each of several numbers over the inputs of some groups, with its interval.

    Args:
        means: The numbers, summed over the inputs of each group, `[groups, …, numbers]`.
        names: Names of the numbers along the last axis.
        groups: Indices of the groups; by default all.
        tests: Number of means whose intervals hold at once; see `Means.over`.

    Returns:
        Estimate of each mean, by name of the number. Its shape `[…]` is the shape of `means` without the
        first and the last axis, for instance `[layers, heads]`.
    """
    estimates = {}
    for place, name in enumerate(names):
        estimates[name] = means.at(place).over(groups, tests)[()]
    return estimates


def head_rows(columns: Mapping[str, Estimate[Floats] | NDArray[np.generic]], **constant: object) -> pd.DataFrame:
    """Return a frame with a row for each attention head, layer by layer.

    Its columns are `layer` and `head`, both from 1, then the constant columns, then `columns`.

    Args:
        columns: Columns by name, arrays or estimates `[layers, heads]`. An estimate becomes `<name>`,
            and `<name>.low`, `.high`, `.sd` and `.p` as far as they were computed. If all columns are
            `[layers]` instead, there is a row for each layer, and no column `head`.
        **constant: Columns with the same value in all rows.
    """
    first = next(iter(columns.values()))
    shape = first.value.shape if isinstance(first, Estimate) else first.shape
    frame: dict[str, object] = {}
    for name, place in zip(("layer", "head"), np.indices(shape), strict=False):
        frame[name] = place.ravel() + 1
    frame.update(constant)
    for name, column in columns.items():
        if not isinstance(column, Estimate):
            frame[name] = column.ravel()
            continue
        for end, numbers in column.columns(name).items():
            frame[end] = numbers.ravel()
    return pd.DataFrame(frame)


def by_class(classes: Mapping[str, Estimate[Floats]], value: str, label: str = "class") -> pd.DataFrame:
    """Stack estimates for several classes into one frame, with a row for each class and head.

    Args:
        classes: Estimates `[layers, heads]` by class. If they are `[layers]` instead, there is a row for each
            class and layer.
        value: Name of the column of values.
        label: Name of the column of classes.

    Returns:
        Frame with columns `layer`, `head`, the class, its value, `low`, `high`, and `inputs`, the number of
        inputs in the mean. It is empty if there is no class.
    """
    if not classes:
        return pd.DataFrame(columns=["layer", "head", label, value, "low", "high", "inputs"])
    frames = []
    for name, estimate in classes.items():
        frames.append(head_rows({value: estimate, "inputs": estimate.inputs}, **{label: name}))
    ends = {f"{value}.low": "low", f"{value}.high": "high"}
    return pd.concat(frames, ignore_index=True).rename(columns=ends)


def class_map(title: str, cells: Sequence[Sequence[str | None]], glyphs: Mapping[str, str]) -> HeatMap:
    """Return a map of one class for each attention head, for instance its role.

    Args:
        title: Title of the figure.
        cells: Class of each head, `[layers][heads]`; None leaves a cell empty.
        glyphs: One or two letters for each class.
    """
    layers = [str(number) for number in range(1, len(cells) + 1)]
    heads = [str(number) for number in range(1, len(cells[0]) + 1)]
    return HeatMap.from_categories(title, cells, glyphs, layers, heads, "layer", "head")


def best_head(values: Estimate[Floats]) -> tuple[tuple[int, int], Estimate]:
    """Find the head with the highest mean; on a tie, the first such head.

    Args:
        values: Estimates `[layers, heads]` of `HeadMeans.over_at_once`, whose intervals hold for all heads at once, and
            so for the best one; heads with nan are never chosen unless all are nan.

    Returns:
        Layer and number of the head, both from 0, and its estimate.
    """
    means = np.nan_to_num(values.value, nan=-np.inf)
    layer, head = np.unravel_index(means.argmax(), means.shape)
    place = (int(layer), int(head))
    return place, values[place]


def best_audit(best: Mapping[str, tuple[tuple[int, int], Estimate]]) -> dict[str, str]:
    """Return audit entries `best_<name>` that name the best heads as `layer-head`, both from 1.

    Args:
        best: Result of `best_head` for each name.
    """
    return {f"best_{name}": head_name(*place) for name, (place, _) in best.items()}
