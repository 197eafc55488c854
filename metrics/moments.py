"""Means over inputs with intervals, from sums alone: memory does not grow with the number of inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student
from torch import Tensor

from metrics.rows import ExactMetric

Floats = NDArray[np.float64]

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Means and the ends of their 95 % intervals, and how many inputs they are over; arrays of one shape."""

    value: Floats
    low: Floats
    high: Floats
    inputs: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Means:
    """What `Moments` has summed, each `[groups, *shape]`: how many inputs, their sum, and that of their squares.

    No number lies outside the `bounds`.
    """

    counts: NDArray[np.int64]
    sums: Floats
    squares: Floats
    bounds: tuple[float, float] = (-np.inf, np.inf)

    def over(self, groups: Sequence[int] | slice = slice(None)) -> Interval:
        """The mean over all inputs of these groups, and its interval, `[*shape]`.

        The interval is Student's: mean ± t · s / √n over n inputs, s their standard deviation, cut at the bounds. It is
        nan for fewer than two inputs, and so is the mean for none.
        """
        count = self.counts[groups].sum(0)
        total, squares = self.sums[groups].sum(0), self.squares[groups].sum(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = total / count
            variance = np.maximum(squares - total * mean, 0.0) / (count - 1)
            margin = student.ppf((1 + CONFIDENCE) / 2, np.maximum(count - 1, 1)) * np.sqrt(variance / count)
        margin = np.where(count > 1, margin, np.nan)
        return Interval(mean, np.clip(mean - margin, *self.bounds), np.clip(mean + margin, *self.bounds), count)

    def at(self, place: int) -> "Means":
        """The sums at one index of the last axis of `shape`."""
        return Means(self.counts[..., place], self.sums[..., place], self.squares[..., place], self.bounds)

    def of(self, groups: slice) -> "Means":
        """The sums of some groups."""
        return Means(self.counts[groups], self.sums[groups], self.squares[groups], self.bounds)


class Moments(ExactMetric):
    """Sums numbers of inputs, and their squares, apart for each group: for instance two halves of a corpus.

    The sums are of integers, so that they are the same in any order and on any number of devices.

    Args:
        groups: number of groups.
        shape: of the numbers of one input.
        scale: bits behind the point to which numbers are rounded: 32 leaves room for a sum of 2³¹ in magnitude, more
            bits for tiny numbers and as much less for their sum.
        bounds: of the numbers, for instance 0 and 1 for shares; intervals are cut there.
    """

    counts: Tensor
    sums: Tensor
    squares: Tensor

    def __init__(
        self, groups: int, shape: Sequence[int], scale: int = 32, bounds: tuple[float, float] = (-np.inf, np.inf)
    ) -> None:
        super().__init__()
        self._bounds = bounds
        self._factor = 2.0**scale
        for name in ("counts", "sums", "squares"):
            self.add_state(name, torch.zeros(groups, *shape, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, group: Tensor, values: Tensor) -> None:
        """Add inputs: int64 `[batch]`, the group of each, and its numbers `[batch, *shape]`, nan where it has none."""
        values = values.detach().double()
        known = ~values.isnan()
        values = values.nan_to_num(0.0)
        self.counts.index_add_(0, group, known.long())
        self.sums.index_add_(0, group, (values * self._factor).round().long())
        self.squares.index_add_(0, group, (values.square() * self._factor).round().long())

    def compute(self) -> Means:
        """The sums, on the CPU."""
        counts, sums, squares = (state.cpu().numpy() for state in (self.counts, self.sums, self.squares))
        return Means(counts, sums / self._factor, squares / self._factor, self._bounds)
