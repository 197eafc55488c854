"""Intervals and paired tests: one bootstrap for ratios of counts and for any statistic of a test set.

A resample is how often each unit was drawn. It depends on nothing but the number of units, the number of draws and the
seed, so that everything that is estimated of one test set is estimated under the same resamples, and two runs, and the
seeds of each, are compared unit by unit. Seeds are not resampled: intervals and p-values say how far other units could
have changed a number; the standard deviation over seeds stands beside them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from results import Estimate, Unit

Floats = NDArray[np.float64]

Statistic = Callable[[Floats, Floats], Floats]
"""From values `[units, columns]` and how often each unit counts, `[draws, units]`, to one number a draw, `[draws]`.

The values hold no nan; a draw in which the statistic is undefined gets nan.
"""

LEVEL = 0.95
"""Mass inside the intervals."""
_TAILS = ((1 - LEVEL) / 2, 1 - (1 - LEVEL) / 2)

CELLS = 1 << 20
"""Resampling weights held at once (draws × units): 8 MB, whatever the size of the split."""

TIE = 1e-12
"""Differences of ratios as close as this are equal: sums in another order differ in the last digit."""


def bootstrap_ratio(
    numerator: ArrayLike, denominator: ArrayLike, *, draws: int = 1000, seed: int = 0
) -> tuple[Floats, Floats]:
    """Bound Σ numerator / Σ denominator by the percentile bootstrap over units (Efron & Tibshirani 1993, ch. 13).

    The unit is what was sampled independently: sentences, or documents for coreference. Words of one sentence are not
    independent, and resampling them would make the interval too narrow.

    A resample is a vector of weights, how often each unit was drawn, and the resampled sums are one product of
    weights and counts. So one mechanism serves a single ratio and hundreds of columns, all columns see the same
    resamples, and memory stays bounded. `scipy.stats.bootstrap` copies every resampled column instead: 12,544
    sentences × 60 relations × 1000 draws are 6 GB for each of the two counts.

    Args:
        numerator: `[units, ...]` counts, for instance the right words of each sentence.
        denominator: `[units, ...]` counts of the same shape, for instance its words.
        draws: Number of resamples.
        seed: Seed of the resampling; the same seed gives the same interval.

    Returns:
        Low and high end, each `[...]`. Both are nan where fewer than two units have a denominator, since resampling a
        single unit says nothing about its spread. Resamples in which a column's denominator is zero are left out of
        that column.

    Raises:
        ValueError: The shapes differ, or a count is not finite.
    """
    counts, totals = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    if counts.shape != totals.shape or counts.ndim == 0:
        raise ValueError(f"numerator {counts.shape} and denominator {totals.shape} must have one shape, [units, ...]")
    if not (np.isfinite(counts).all() and np.isfinite(totals).all()):
        raise ValueError("a count is nan or infinite: leave units that were not scored out of both counts, as zeros")
    units, shape = counts.shape[0], counts.shape[1:]
    columns = int(np.prod(shape))
    both = np.concatenate([counts.reshape(units, columns), totals.reshape(units, columns)], axis=1)
    sums = _resampled_sums(both, draws, np.random.default_rng(seed))
    resampled, weights = sums[:, :columns], sums[:, columns:]
    ratios = np.divide(resampled, weights, out=np.full_like(resampled, np.nan), where=weights != 0)

    bounds = np.full((2, columns), np.nan)
    sound = ((both[:, columns:] != 0).sum(axis=0) >= 2) & ~np.isnan(ratios).all(axis=0)
    if sound.any():
        bounds[:, sound] = np.nanquantile(ratios[:, sound], _TAILS, axis=0)
    return bounds[0].reshape(shape), bounds[1].reshape(shape)


def _resampled_sums(counts: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Sum `counts` `[units, columns]` over units drawn with replacement, `[draws, columns]`."""
    if len(counts) == 0:
        return np.zeros((draws, counts.shape[1]))
    return np.concatenate([weights @ counts for weights in resamples(len(counts), draws, rng)])


def resamples(units: int, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    """How often each of at least one unit is drawn when as many are drawn with replacement, in parts of the draws.

    Yields:
        `[some draws, units]`, of bounded size.
    """
    chunk = max(1, CELLS // units)
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        picks = rng.integers(units, size=(size, units)) + units * np.arange(size)[:, None]
        yield np.bincount(picks.ravel(), minlength=size * units).reshape(size, units).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Resampled:
    """A statistic of a test set, and what it is of each resample.

    Attributes:
        value: Of every unit once; nan where it is undefined.
        draws: `[draws]` the statistic of each resample, nan where it is undefined.
        unit: What the statistic is.
    """

    value: float
    draws: Floats
    unit: Unit

    @property
    def estimate(self) -> Estimate:
        """The value with the interval of its resamples; nan for fewer than two units."""
        return Estimate(self.value, *_interval(self.draws), unit=self.unit)


@lru_cache(maxsize=1)  # of one test set, one after another, come many statistics
def weights_of(units: int, draws: int = 1000, seed: int = 0) -> NDArray[np.uint16]:
    """How often each unit is drawn in each resample: read-only `[draws, units]`."""
    weights = np.empty((draws, units), dtype=np.uint16)
    start = 0
    for some in resamples(units, draws, np.random.default_rng(seed)) if units else ():
        weights[start : start + len(some)] = some
        start += len(some)
    weights.flags.writeable = False
    return weights


def resample(statistic: Statistic, values: ArrayLike, unit: Unit, *, draws: int = 1000, seed: int = 0) -> Resampled:
    """Compute a statistic under the resamples that all test sets of as many units share.

    Args:
        statistic: Of the columns of `values`.
        values: `[units, columns]`, a row for every unit of the test set. Rows with a nan are left out of the
            statistic, and keep their place in the resamples.
        unit: What the statistic is.
        draws: Number of resamples.
        seed: Seed of the resampling.
    """
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2:
        raise ValueError(f"the values must be [units, columns], not {rows.shape}")
    sound = ~np.isnan(rows).any(axis=1)
    kept = rows[sound]
    if not len(kept):
        return Resampled(np.nan, np.full(draws, np.nan), unit)
    value = float(statistic(kept, np.ones((1, len(kept))))[0])
    if len(kept) < 2 or not draws:
        return Resampled(value, np.full(draws, np.nan), unit)
    weights, chunk = weights_of(len(rows), draws, seed), max(1, CELLS // len(rows))
    found = [
        statistic(kept, weights[start : start + chunk, sound].astype(np.float64)) for start in range(0, draws, chunk)
    ]
    return Resampled(value, np.concatenate(found), unit)


def mean(values: Floats, weights: Floats) -> Floats:
    """Mean of the one column of `values` `[units, 1]` under each of `weights` `[draws, units]`: `[draws]`."""
    return _ratio(weights @ check_columns(values, 1)[:, 0], weights.sum(axis=1))


def median(values: Floats, weights: Floats) -> Floats:
    """Median of the one column of `values` `[units, 1]`, each unit as often as it was drawn: `[draws]`.

    Of an even number of units the mean of the middle two, as `numpy.median`. Weights are whole numbers.
    """
    column = check_columns(values, 1)[:, 0]
    found = np.full(len(weights), np.nan)
    counts = weights.sum(axis=1)
    drawn = counts > 0
    order = np.argsort(column, kind="stable")
    # The place of a unit in the drawn multiset ends at this many.
    ends, ascending = weights[drawn][:, order].cumsum(axis=1), column[order]
    lower, upper = (counts[drawn] - 1) // 2, counts[drawn] // 2
    middle = [ascending[(ends > place[:, None]).argmax(axis=1)] for place in (lower, upper)]
    found[drawn] = (middle[0] + middle[1]) / 2
    return found


def pooled(seeds: Sequence[Resampled]) -> Estimate:
    """Pool a statistic over runs that differ in nothing but the seed, at least one, made under the same resamples.

    Returns:
        The mean over the seeds, the 95 % interval of that mean, and the standard deviation over the seeds (n − 1), nan
        for a single one.

    Raises:
        ValueError: They were not made under the same resamples.
    """
    value, sd = mean_and_sd([one.value for one in seeds])
    return Estimate(value, *_interval(_mean_draws(seeds)), unit=seeds[0].unit, sd=sd)


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean over seeds and standard deviation (n − 1); nan for the one of no values and the other of fewer than two."""
    mean = float(np.mean(values)) if len(values) else np.nan
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 else np.nan


def difference(a: Sequence[Resampled], b: Sequence[Resampled]) -> Estimate:
    """Bound how much higher the mean over the seeds of `a` is than that of `b`, under the same resamples.

    Interval and p-value as in `paired_bootstrap`.

    Raises:
        ValueError: They were not made under the same resamples.
    """
    value = float(np.mean([one.value for one in a]) - np.mean([one.value for one in b]))
    return _difference(value, _mean_draws(a, like=b) - _mean_draws(b), a[0].unit)


def paired_bootstrap(
    a_numerator: ArrayLike,
    a_denominator: ArrayLike,
    b_numerator: ArrayLike,
    b_denominator: ArrayLike,
    *,
    unit: Unit = "fraction",
    draws: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """Bound the difference of two ratios of counts, a − b, whose units are the same, by the bootstrap over units.

    Both runs see the same resamples of the units (Efron & Tibshirani 1993, ch. 13; Koehn 2004), so that what makes a
    sentence hard for either cancels out. The interval is that of the percentiles. The p-value belongs to it, by
    inversion (Efron & Tibshirani 1993, §15.4): twice the share of resamples on the rarer side of zero, one resample
    added to both counts so that no number of draws makes it zero; it is under .05 where the interval of 95 % leaves
    zero out, but for that one resample.

    Args:
        a_numerator: `[units]` counts of the first run, for instance the right words of each sentence.
        a_denominator: `[units]` what they are out of.
        b_numerator: `[units]` counts of the second run, of the same units in the same order.
        b_denominator: `[units]` what they are out of.
        unit: Of the ratios.
        draws: Number of resamples.
        seed: Seed of the resampling.

    Returns:
        The difference, its interval and its p-value: nan where either denominator is zero in all units, and all but
        the difference where it is in all but one. Resamples without a denominator are left out.

    Raises:
        ValueError: The shapes differ or are not `[units]`, or a count is not finite.
    """
    counts = _paired_counts(a_numerator, a_denominator, b_numerator, b_denominator)
    value = float(_differences(counts.sum(axis=0, keepdims=True))[0])
    resampled = np.empty(0)
    if (np.count_nonzero(counts[:, [1, 3]], axis=0) >= 2).all():
        resampled = _differences(_resampled_sums(counts, draws, np.random.default_rng(seed)))
    return _difference(value, resampled, unit)


def two_sided_p(resampled: Floats) -> float:
    """The p-value of a difference being zero, from at least one resample `[draws]` of it; see `paired_bootstrap`."""
    rarer = min(int((resampled <= TIE).sum()), int((resampled >= -TIE).sum()))
    return min(1.0, 2 * (1 + rarer) / (1 + resampled.size))


def paired_permutation(
    a_numerator: ArrayLike,
    a_denominator: ArrayLike,
    b_numerator: ArrayLike,
    b_denominator: ArrayLike,
    *,
    draws: int = 10_000,
    seed: int = 0,
) -> float:
    """Test by random swaps whether two ratios of counts on the same units differ.

    If it does not matter which run a unit's counts come from, swapping them changes nothing but by chance
    (approximate randomization, Noreen 1989; Yeh 2000). Each draw swaps numerator and denominator of each unit with
    probability 1/2; the p-value is the share of draws whose difference of ratios is at least as large as the one
    observed, in absolute value, the observed one being counted among them: (1 + #) / (1 + draws).

    Args:
        a_numerator: `[units]` counts of the first run, for instance the right words of each sentence.
        a_denominator: `[units]` what they are out of.
        b_numerator: `[units]` counts of the second run, of the same units in the same order, on the same scale: of
            means over seeds, not sums over different numbers of them.
        b_denominator: `[units]` what they are out of.
        draws: Number of random swaps.
        seed: Seed of the swaps.

    Returns:
        The two-sided p-value; nan where either denominator is zero in all units. Draws that leave a run without a
        denominator are left out.

    Raises:
        ValueError: The shapes differ or are not `[units]`, or a count is not finite.
    """
    counts = _paired_counts(a_numerator, a_denominator, b_numerator, b_denominator)
    sums = counts.sum(axis=0)
    observed = float(_differences(sums[None])[0])
    if np.isnan(observed):
        return observed
    units = len(counts)
    moved = counts[:, 2:] - counts[:, :2]
    rng = np.random.default_rng(seed)
    chunk = max(1, CELLS // units)
    drawn = as_large = 0
    for start in range(0, draws, chunk):
        swapped = rng.integers(2, size=(min(chunk, draws - start), units), dtype=np.int8).astype(np.float64) @ moved
        found = _differences(np.concatenate([sums[:2] + swapped, sums[2:] - swapped], axis=1))
        found = found[~np.isnan(found)]
        drawn += found.size
        as_large += int(np.count_nonzero(np.abs(found) >= abs(observed) - TIE))
    return (1 + as_large) / (1 + drawn)


def holm(p_values: Sequence[float]) -> Floats:
    """Adjust p-values for being several (Holm 1979): the chance of a single false alarm stays under the level.

    The smallest is multiplied by how many there are, the next by one less, and so on; none becomes smaller than one
    before it, nor larger than 1. nan stays nan and is not counted.
    """
    values = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(values.shape, np.nan)
    order = np.argsort(values)[: np.count_nonzero(~np.isnan(values))]  # nan are sorted last
    factors = np.arange(order.size, 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return adjusted


def _paired_counts(*columns: ArrayLike) -> Floats:
    """Numerator and denominator of a, then of b, as `[units, 4]`."""
    arrays = [np.asarray(column, dtype=np.float64) for column in columns]
    if len({array.shape for array in arrays}) != 1 or arrays[0].ndim != 1:
        raise ValueError(f"the counts of both runs must be [units], not {[array.shape for array in arrays]}")
    counts = np.stack(arrays, axis=1)
    if not np.isfinite(counts).all():
        raise ValueError("a count is nan or infinite: leave units that were not scored out of both counts, as zeros")
    return counts


def _differences(sums: Floats) -> Floats:
    """`[draws]` a − b of sums `[draws, 4]`; nan where one has no denominator."""
    numerators, denominators = sums[:, ::2], sums[:, 1::2]
    ratios = np.divide(numerators, denominators, out=np.full_like(numerators, np.nan), where=denominators != 0)
    return ratios[:, 0] - ratios[:, 1]


def _difference(value: float, resampled: Floats, unit: Unit) -> Estimate:
    """A difference with the interval and the p-value of its resamples `[draws]`."""
    known = resampled[~np.isnan(resampled)]
    p = two_sided_p(known) if known.size else np.nan
    return Estimate(value, *_interval(known), unit=unit, p=p)


def _mean_draws(estimates: Sequence[Resampled], like: Iterable[Resampled] = ()) -> Floats:
    """Mean over the seeds of each draw; nan where one of them is."""
    sizes = sorted({len(one.draws) for one in (*estimates, *like)})
    if len(sizes) != 1:
        raise ValueError(f"estimates under {sizes} resamples cannot be compared: make them with one number of draws")
    mean_draws: Floats = np.mean([one.draws for one in estimates], axis=0)
    return mean_draws


def _interval(resampled: Floats) -> tuple[float, float]:
    """The middle of the draws that are defined."""
    resampled = resampled[~np.isnan(resampled)]
    if not resampled.size:
        return np.nan, np.nan
    low, high = np.quantile(resampled, _TAILS)
    return float(low), float(high)


def check_columns(values: Floats, columns: int) -> Floats:
    """Return the values `[units, columns]`, if they have so many columns.

    Raises:
        ValueError: They have not.
    """
    if values.shape[1:] != (columns,):
        raise ValueError(f"the statistic is of {columns} columns, and the values are {values.shape}")
    return values


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    ratio: Floats = np.divide(numerator, denominator, out=np.full_like(numerator, np.nan), where=denominator != 0)
    return ratio
