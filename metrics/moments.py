"""Means over inputs with intervals, from sums alone: memory does not grow with the number of inputs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student
from torch import Tensor

from metrics.rows import ExactMetric

Floats = NDArray[np.float64]

CONFIDENCE = 0.95

_FINE = 40  # bits behind the point of differences: squares of 10⁻⁶ count


class Interval(NamedTuple):
    """Means and the ends of their 95 % intervals, and how many inputs they are over; arrays of one shape."""

    value: Floats
    low: Floats
    high: Floats
    inputs: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Means:
    """What `Moments` has summed, each `[groups, *shape]`: how many inputs, their sum, and that of their squares.

    No number lies outside the `bounds`, and squares were rounded to multiples of `step`. The `differences` are those
    from other numbers of the same inputs, where they were summed.
    """

    counts: NDArray[np.int64]
    sums: Floats
    squares: Floats
    bounds: tuple[float, float] = (-np.inf, np.inf)
    step: float = 0.0
    differences: "Means | None" = None

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

    def p(self) -> Floats:
        """Two-sided p-value of the mean over all inputs being 0, by Student's t, `[*shape]`; nan for less than two.

        The squares count as rounded down: numbers that rounding cannot tell from 0 are no evidence.
        """
        count, total = self.counts.sum(0), self.sums.sum(0)
        squares = self.squares.sum(0) + count * self.step / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = total / count
            error = np.sqrt(np.maximum(squares - total * mean, count * self.step / 2) / (count - 1) / count)
            p: Floats = 2 * student.sf(np.abs(mean) / error, np.maximum(count - 1, 1))
        return np.where(count > 1, p, np.nan)

    def at(self, place: int) -> "Means":
        """The sums at one index of the last axis of `shape`."""
        return self._part((..., place))

    def of(self, groups: slice) -> "Means":
        """The sums of some groups."""
        return self._part(groups)

    def _part(self, place: Any) -> "Means":  # noqa: ANN401 - what numpy takes as an index
        return replace(
            self,
            counts=self.counts[place],
            sums=self.sums[place],
            squares=self.squares[place],
            differences=None if self.differences is None else self.differences._part(place),
        )


Updates = dict[int, tuple["Moments", list[Tensor], list[Tensor]]]
"""What each `Moments` has taken in, in the order in which they first did: groups and numbers."""

_UPDATES: ContextVar[Updates | None] = ContextVar("_UPDATES", default=None)


@contextmanager
def recorded() -> Iterator[Updates]:
    """Keep what every `Moments` takes in within the block."""
    found: Updates = {}
    token = _UPDATES.set(found)
    try:
        yield found
    finally:
        _UPDATES.reset(token)


def subtract(updates: Updates, others: Updates) -> None:
    """Sum the differences of two numbers of each input, in those `Moments` of the first that were told to `pair`.

    Both are of the same analyses on the same inputs, in the same order.
    """
    for (moments, groups, values), (_, _, other) in zip(updates.values(), others.values(), strict=True):
        if moments.differences is not None:
            moments.differences.update(torch.cat(groups), torch.cat(values).double() - torch.cat(other).double())


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
        self._bounds, self._scale = bounds, scale
        self._factor = 2.0**scale
        self.differences: Moments | None = None
        for name in ("counts", "sums", "squares"):
            self.add_state(name, torch.zeros(groups, *shape, dtype=torch.int64), dist_reduce_fx="sum")

    def pair(self) -> None:
        """From now on sum the differences from other numbers of the same inputs too, those that `subtract` finds.

        Differences are small, and so are their squares: they are rounded less, which leaves room for a sum of 2²³.
        """
        groups, *shape = self.counts.shape
        self.differences = Moments(groups, shape, max(self._scale, _FINE))

    def update(self, group: Tensor, values: Tensor) -> None:
        """Add inputs: int64 `[batch]`, the group of each, and its numbers `[batch, *shape]`, nan where it has none."""
        if (updates := _UPDATES.get()) is not None:
            _, groups, kept = updates.setdefault(id(self), (self, [], []))
            groups.append(group)
            kept.append(values.detach())
        values = values.detach().double()
        known = ~values.isnan()
        values = values.nan_to_num(0.0)
        self.counts.index_add_(0, group, known.long())
        self.sums.index_add_(0, group, (values * self._factor).round().long())
        self.squares.index_add_(0, group, (values.square() * self._factor).round().long())

    def compute(self) -> Means:
        """The sums, on the CPU."""
        counts, sums, squares = (state.cpu().numpy() for state in (self.counts, self.sums, self.squares))
        differences = None if self.differences is None else self.differences.compute()
        return Means(counts, sums / self._factor, squares / self._factor, self._bounds, 1 / self._factor, differences)
