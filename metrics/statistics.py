"""Statistics of a test set under weights: ratios of counts, means, medians, and correlations.

A statistic takes the values of the units, and weights that say which units count. `metrics.bootstrap` computes each
under the weights of many random subsets.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attention_probing.results import Floats

Statistic = Callable[[Floats, Floats], Floats]
"""Maps values `[units, columns]` without nan and weights `[draws, units]` to one number per draw, `[draws]`.

The weights count how often each unit is in the draw. Draws in which the statistic is undefined get nan.
"""


@dataclass(frozen=True)
class Ratio:
    """Statistic that divides a sum over units by another, such as an accuracy, or a mean.

    Attributes:
        counts: Function that takes values `[units, columns]` and returns the numerator and the denominator of each
            unit, each `[units]`.
        share: True if the numerator counts some of the items that the denominator counts, so that the ratio is a share;
            False for other numbers, such as distances.
        signed: True if the ratio is a difference of two shares of the same items, from −1 to 1.
    """

    counts: Callable[[Floats], tuple[Floats, Floats]]
    share: bool = False
    signed: bool = False

    def __call__(self, values: Floats, weights: Floats) -> Floats:
        """Return the ratio of the two sums over units, under weights `[draws, units]`: `[draws]`."""
        numerator, denominator = self.counts(values)
        return ratio(weights @ numerator, weights @ denominator)


def _of_one_column(values: Floats) -> tuple[Floats, Floats]:
    return values[:, 0], np.ones(len(values))


proportion = Ratio(_of_one_column, share=True)
"""Statistic of the share of units with a yes, from a column of decisions `[units, 1]`: 1 for yes, 0 for no."""

mean = Ratio(_of_one_column)
"""Statistic of the weighted mean of a column of any numbers `[units, 1]`."""


def two_columns(*, share: bool) -> Ratio:
    """Return the statistic of the sum of a first column over that of a second, `[units, 2]`.

    Args:
        share: True if the first column counts some of the items that the second counts.
    """
    return Ratio(lambda values: (values[:, 0], values[:, 1]), share)


@dataclass(frozen=True)
class CorrelationStatistic:
    """Statistic of two columns `[units, 2]` between −1 and 1, whose interval is computed on Fisher's scale.

    Attributes:
        compute: Function that takes two columns and weights, like a `Statistic`.
    """

    compute: Statistic

    def __call__(self, values: Floats, weights: Floats) -> Floats:
        """Return the correlation under weights `[draws, units]`: `[draws]`."""
        return self.compute(values, weights)


def median(values: Floats, weights: Floats) -> Floats:
    """Return the median of one column, each unit counted as often as it was drawn, `[draws]`.

    For an even number of units it is the mean of the middle two, as in `numpy.median`.

    Args:
        values: The column, `[units, 1]`.
        weights: Number of times that each unit was drawn, whole numbers `[draws, units]`.
    """
    column = values[:, 0]
    medians = np.full(len(weights), np.nan)
    counts = weights.sum(axis=1)
    has_units = counts > 0
    order = np.argsort(column, kind="stable")
    ascending = column[order]
    # Cumulative counts: the last place of each unit among the drawn ones in ascending order.
    ends = weights[has_units][:, order].cumsum(axis=1)
    lower = (counts[has_units] - 1) // 2
    upper = counts[has_units] // 2
    below = ascending[(ends > lower[:, None]).argmax(axis=1)]
    above = ascending[(ends > upper[:, None]).argmax(axis=1)]
    medians[has_units] = (below + above) / 2
    return medians


def _pearson(values: Floats, weights: Floats) -> Floats:
    """Return Pearson's r of two columns, each unit counted as often as it was drawn, `[draws]`.

    Args:
        values: Two columns, `[units, 2]`.
        weights: How often each unit was drawn, whole numbers `[draws, units]`.

    Returns:
        Correlations `[draws]`; nan if a column is constant in a draw.
    """
    counts = (weights > 0)[..., None]
    highest = np.where(counts, values, -np.inf).max(axis=1)
    lowest = np.where(counts, values, np.inf).min(axis=1)
    # The computed mean of equal numbers may differ from them in the last digit.
    is_constant = (highest - lowest == 0).any(axis=1)
    correlations = _correlations(values[:, 0], values[:, 1], weights)
    return np.where(is_constant, np.nan, correlations)


def _spearman(values: Floats, weights: Floats) -> Floats:
    """Return Spearman's ρ of two columns, each unit counted as often as it was drawn, `[draws]`.

    Arguments and result are as in `_pearson`. The values are ranked again in each draw.
    """
    return rank_correlations(values[:, 0], values[:, 1], weights)


pearson = CorrelationStatistic(_pearson)
"""Statistic of Pearson's r of two columns `[units, 2]`."""

spearman = CorrelationStatistic(_spearman)
"""Statistic of Spearman's ρ of two columns `[units, 2]`."""


def rank_correlations(first: ArrayLike, second: ArrayLike, weights: ArrayLike = 1) -> Floats:
    """Return Spearman's ρ over the last axis, `[...]`: Pearson's r of the ranks; equal values get their mean rank.

    The arguments are broadcast against each other.

    Args:
        first: Finite values, `[..., n]`.
        second: Values to correlate with, `[..., n]`.
        weights: How often each pair of values counts, whole numbers `[..., n]`; a mask for those that count once.

    Returns:
        Correlations; nan if all values of one argument that count are equal.
    """
    counts = np.asarray(weights, np.float64) * np.ones(np.shape(first)[-1])
    return _correlations(_ranks(first, counts), _ranks(second, counts), counts)


def _ranks(values: ArrayLike, weights: Floats) -> Floats:
    """Return the mean rank of each value among all that count, over the last axis; see `rank_correlations`."""
    values = np.asarray(values)
    order = values.argsort(axis=-1, kind="stable")
    ascending = np.take_along_axis(values, order, -1)
    new = np.ones(ascending.shape, np.bool_)
    new[..., 1:] = ascending[..., 1:] != ascending[..., :-1]
    # Places of the first and the last of the equal values, for each value in ascending order.
    places = np.arange(values.shape[-1])
    final = np.roll(new, -1, -1)
    first = np.maximum.accumulate(np.where(new, places, 0), axis=-1)
    ends = np.where(final, places, values.shape[-1])
    last = np.minimum.accumulate(ends[..., ::-1], axis=-1)[..., ::-1]
    shape = np.broadcast_shapes(order.shape, weights.shape)
    order, first, last = (np.broadcast_to(index, shape) for index in (order, first, last))
    counts = np.take_along_axis(np.broadcast_to(weights, shape), order, -1)
    sums = counts.cumsum(axis=-1)
    before = np.take_along_axis(sums - counts, first, -1)
    through = np.take_along_axis(sums, last, -1)
    ranks = (before + through + 1) / 2
    return np.take_along_axis(ranks, order.argsort(axis=-1), -1)


def _correlations(first: Floats, second: Floats, weights: Floats) -> Floats:
    """Return Pearson's r over the last axis, each pair of values counted as often as its weight says."""
    x = _centred(first, weights)
    y = _centred(second, weights)
    covariance = (weights * x * y).sum(axis=-1)
    x_variance = (weights * x * x).sum(axis=-1)
    y_variance = (weights * y * y).sum(axis=-1)
    return ratio(covariance, np.sqrt(x_variance * y_variance))


def _centred(values: Floats, weights: Floats) -> Floats:
    """Subtract the weighted mean over the last axis."""
    total = weights.sum(axis=-1, keepdims=True)
    return values - ratio((weights * values).sum(axis=-1, keepdims=True), total)


def ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> Floats:
    """Divide element by element in float64, with broadcasting; nan if the denominator is zero."""
    above = np.asarray(numerator, np.float64)
    below = np.asarray(denominator, np.float64)
    above, below = np.broadcast_arrays(above, below)
    ratios: Floats = np.full(above.shape, np.nan)
    np.divide(above, below, out=ratios, where=below != 0)
    return ratios
