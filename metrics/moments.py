"""Means over inputs with intervals, computed from sums alone: memory does not grow with the number of inputs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit
from torch import Tensor

from attention_probing.metrics.gathered import Gathered
from attention_probing.results import Estimate, Floats, Unit

CONFIDENCE = 0.95

_ROUNDING = 0.01  # of numbers in half precision at a bound, relative to the bound
_LEAST_DEVIATION = 2.0**-33  # below the resolution of float32 for numbers about 1: differences this small are noise


@dataclass(frozen=True, eq=False)
class Means:
    """Counts and sums of a quantity over inputs, by group; the methods compute means and tests.

    `Moments.compute` returns it. Arrays are `[groups, *shape]`, where `shape` is the shape of the
    numbers of one input.

    Attributes:
        counts: Number of inputs.
        sums: Sums of the numbers.
        squares: Sums of the squared numbers.
        low: Lower bound of the possible numbers, as given to `Moments`; -inf for none.
        high: Upper bound of the possible numbers, as given to `Moments`; inf for none.
        unit: Unit of the numbers, or of each index of the last axis.
        differences: `Means` of the paired differences from another encoder's numbers on the same
            inputs; None if there is no other encoder.
    """

    counts: NDArray[np.int64]
    sums: Floats
    squares: Floats
    low: Floats
    high: Floats
    unit: Unit | Sequence[Unit]
    differences: "Means | None" = None

    def over(self, groups: Sequence[int] | slice = slice(None), tests: int = 1) -> Estimate[Floats]:
        """Return the mean of the numbers over all inputs of some groups, with its interval, `[*shape]`.

        `student_interval` computes the interval, which is nan for fewer than two inputs. The mean is nan without
        inputs.

        Args:
            groups: Indices of the groups, all by default.
            tests: Number of means whose intervals hold at once (Bonferroni), for the largest or smallest of them.

        Raises:
            ValueError: The numbers have several units.
        """
        count = self.counts[groups].sum(0)
        total = self.sums[groups].sum(0)
        squares = self.squares[groups].sum(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = total / count
            variance = np.maximum(squares - total * mean, 0.0) / (count - 1)
            error = np.where(count > 1, np.sqrt(variance / count), np.nan)
        # The bounds are the same in every group.
        low = self.low[groups].max(0)
        high = self.high[groups].min(0)
        if not isinstance(self.unit, str):
            raise ValueError(
                f"these means have different units ({', '.join(self.unit)}); select one quantity with `.at(i)` before "
                "`.over()`"
            )
        ends = student_interval(mean, error, count, low, high, tests)
        return Estimate(mean, *ends, unit=self.unit, inputs=count)

    def p(self) -> Floats:
        """Return two-sided p-values of a t-test that the mean over all inputs is 0, `[*shape]`.

        The value is nan for fewer than two inputs. The standard deviation is taken as at least 2⁻³³:
        otherwise equal numbers would have no variance, and a mean just above 0 would get p = 0.
        """
        count = self.counts.sum(0)
        total = self.sums.sum(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = total / count
            deviations = np.maximum(self.squares.sum(0) - total * mean, count * _LEAST_DEVIATION**2)
            error = np.sqrt(deviations / (count - 1) / count)
            p: Floats = 2 * stdtr(np.maximum(count - 1, 1), -np.abs(mean) / error)
        return np.where(count > 1, p, np.nan)

    def at(self, place: int) -> "Means":
        """Return a copy that has only one index of the last axis of the numbers; the copy lacks this axis.

        Args:
            place: The index.
        """
        unit = self.unit if isinstance(self.unit, str) else self.unit[place]
        return self._part((..., place), unit)

    def select(self, groups: slice) -> "Means":
        """Return the same counts, sums and bounds for the groups in the slice `groups` only."""
        return self._part(groups, self.unit)

    def _part(self, place: Any, unit: Unit | Sequence[Unit]) -> "Means":  # noqa: ANN401 - any index of an array
        differences = None
        if self.differences is not None:
            differences = self.differences._part(place, unit)
        return replace(
            self,
            counts=self.counts[place],
            sums=self.sums[place],
            squares=self.squares[place],
            low=self.low[place],
            high=self.high[place],
            unit=unit,
            differences=differences,
        )


def _refuse_outside(means: Means) -> None:
    """Raise ValueError if the sums show that a number was outside of its bounds.

    Of numbers between two bounds, with mean m, the variance is at most (high − m) (m − low) (Bhatia & Davis 2000).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = np.abs([means.low, means.high])
        room = _ROUNDING * np.maximum(1, np.where(np.isfinite(bounds), bounds, 0).max(axis=0))
        mean = means.sums / means.counts
        variance = means.squares / means.counts - mean**2
        largest_variance = (means.high - mean) * (mean - means.low)
        outside = (mean < means.low - room) | (mean > means.high + room)
        outside |= variance > largest_variance + room * (means.high - means.low)
    if outside.any():
        place = tuple(np.argwhere(outside)[0])
        raise ValueError(
            f"numbers with the mean {mean[place]:.4g} are not all between their bounds {means.low[place]:g} and "
            f"{means.high[place]:g}: give the lowest and the highest possible number as `bounds`"
        )


def student_interval(
    mean: Floats, error: Floats, count: NDArray[np.int64], low: Floats, high: Floats, tests: int = 1
) -> tuple[Floats, Floats]:
    """Return the lower and upper end of the 95 % interval of a mean, within the bounds of its numbers.

    A mean m with bounds is transformed to an unbounded scale, where the interval is computed with the
    standard error of the delta method; its ends are transformed back. There are three cases:

    - Without bounds, it is Student's interval, mean ± t · error.
    - With two bounds, the scale is the log odds ln((m − low) / (high − m)) (Newcombe 2001; Stata's
        default for proportions; `svyciprop(method="logit")` of Lumley's R package survey).
    - With a lower bound alone, the scale is ln(m − low).

    An upper bound alone is ignored. A mean at a bound has an interval of width 0, because all inputs
    equal the bound.

    Args:
        mean: Means, of any shape; the other arguments have the same shape.
        error: Standard errors of the means.
        count: Numbers of inputs.
        low: Lower bounds of the numbers, -inf for none.
        high: Upper bounds, inf for none.
        tests: Number of means whose intervals hold at once (Bonferroni).
    """
    tail = (1 - CONFIDENCE) / 2 / tests
    margin = -stdtrit(np.maximum(count - 1, 1), tail) * error
    below = mean - low
    above = high - mean
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = np.where(np.isfinite(high), below / (high - low), 0.0)
        odds = np.exp(margin * (1 / below + 1 / above))  # what the odds are multiplied or divided by
        lower = low + below / odds / (1 + share * (1 / odds - 1))
        upper = low + below * odds / (1 + share * (odds - 1))
    at_bound = (below <= 0) | (above <= 0)  # rounding may lead out by a little
    lower = np.where(at_bound, mean, lower)
    upper = np.where(at_bound, mean, upper)
    has_bound = np.isfinite(low)
    lower = np.where(has_bound, lower, mean - margin)
    upper = np.where(has_bound, upper, mean + margin)
    undefined = np.isnan(margin)
    return np.where(undefined, np.nan, lower), np.where(undefined, np.nan, upper)


class Moments(Gathered[Means]):
    """Accumulator that sums the numbers of each input, and their squares, for each group of inputs, in float64.

    Args:
        groups: Number of groups, for instance 2 for the halves of a corpus.
        shape: Shape of the numbers of one input.
        unit: Unit of the numbers, or of each index of their last axis.
        bounds: Lower and upper bound of the numbers, for instance 0 and 1 for shares, each a number or
            an array that broadcasts to `shape`; intervals stay within them.
    """

    counts: Tensor
    sums: Tensor
    squares: Tensor

    def __init__(
        self,
        groups: int,
        shape: Sequence[int],
        unit: Unit | Sequence[Unit],
        bounds: tuple[ArrayLike, ArrayLike] = (-np.inf, np.inf),
    ) -> None:
        super().__init__()
        self._bounds = bounds
        self._unit = unit
        self.add_sum("counts", torch.zeros(groups, *shape, dtype=torch.int64))
        self.add_sum("sums", torch.zeros(groups, *shape, dtype=torch.float64))
        self.add_sum("squares", torch.zeros(groups, *shape, dtype=torch.float64))

    def update(self, group: Tensor, values: Tensor) -> None:
        """Add the numbers of a batch of inputs.

        Args:
            group: Group of each input, int64 `[batch]`.
            values: Numbers of each input, `[batch, *shape]`; nan is skipped.

        Raises:
            ValueError: A number is infinite.
        """
        values = values.detach().double()
        if values.isinf().any():
            raise ValueError("a value is infinite, so the mean would be infinite")
        defined = ~values.isnan()
        values = values.nan_to_num(0.0)
        self.counts.index_add_(0, group, defined.long())
        self.sums.index_add_(0, group, values)
        self.squares.index_add_(0, group, values.square())

    def total(self) -> Means:
        """Return the counts, sums and sums of squares of each group; `Means.over` computes means from them.

        Raises:
            ValueError: A number was outside of the bounds.
        """
        counts = self.counts.cpu().numpy()
        low, high = (np.broadcast_to(np.asarray(bound, np.float64), counts.shape) for bound in self._bounds)
        means = Means(
            counts=counts,
            sums=self.sums.cpu().numpy(),
            squares=self.squares.cpu().numpy(),
            low=low,
            high=high,
            unit=self._unit,
        )
        _refuse_outside(means)
        return means
