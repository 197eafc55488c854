"""Bootstrap intervals and paired tests, for ratios of counts and for any statistic of a test set.

A bootstrap interval has no width if all items are found or none, and is too narrow if few items are found or missed.
Shares of few items therefore have exact intervals (`share_interval`): those with fewer than `FEW` items, or with fewer
than `LEAST_FOUND` found or missed. Only a proportion of counted items is a share: a difference of shares or a mean
distance is not one, even if it is 0 everywhere.

A resample says how often each unit was drawn. It depends only on the number of units, the number of draws and the seed,
so all estimates of one test set share their resamples, and runs are compared unit by unit. Seeds are not resampled:
intervals and p-values describe the variation over units; the standard deviation over seeds is reported beside them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv
from scipy.stats import t as student

from results import FEW, Estimate, Flags, Floats, Unit

Statistic = Callable[[Floats, Floats], Floats]
"""Maps values `[units, columns]` without nan and weights `[draws, units]` to one number per draw, `[draws]`.

The weights count how often each unit was drawn. Draws in which the statistic is undefined get nan.
"""

_TAILS = ((1 - 0.95) / 2, 1 - (1 - 0.95) / 2)

LEAST_FOUND = 5  # found, and missed, of a share that has a bootstrap interval: the rule of thumb for proportions
CELLS = 1 << 20  # most weights (draws × units) in float64 at a time: 8 MB for a split of any size
KEPT = 1 << 27  # most weights that are kept for the next statistic of the test set: 128 MB, a byte each
_MOST_CELLS = 1 << 28  # most draws × units of p-values that are corrected for their number, two bytes each
SWAPS = 10_000  # random swaps of a permutation test, unless another number is given
TIE = 1e-12  # ratios that differ by less count as equal: the order of summation changes the last digit


@dataclass(frozen=True)
class Ratio:
    """Statistic that divides a sum over units by another, such as an accuracy, or a mean.

    Attributes:
        counts: Function that takes values `[units, columns]` and returns the items that are found in each unit, and
            all items of the unit, each `[units]`.
        share: True if the first number counts some of the items of the second; False for other numbers, such as
            distances, which may look like counts.
    """

    counts: Callable[[Floats], tuple[Floats, Floats]]
    share: bool = True

    def __call__(self, values: Floats, weights: Floats) -> Floats:
        """Return the ratio of the two sums over units, under weights `[draws, units]`: `[draws]`."""
        found, items = self.counts(values)
        return ratio(weights @ found, weights @ items)


proportion = Ratio(lambda values: (values[:, 0], np.ones(len(values))))
"""Statistic of the share of units with a yes, from a column of decisions `[units, 1]`: 1 for yes, 0 for no."""

mean = Ratio(proportion.counts, share=False)
"""Statistic of the weighted mean of a column of any numbers `[units, 1]`."""


def share_interval(found: ArrayLike, items: ArrayLike) -> tuple[Any, Any, Any]:
    """Return the share of items that are found, and the ends of its exact 95 % interval, each `[...]`.

    The interval is that of Clopper & Pearson (1934), with the effective number of items as the number of trials. It is
    lower than the number of items if the items of a unit resemble each other (Korn & Graubard 1998, without their
    correction of degrees of freedom). If every unit has one item, every unit is a trial. If all items are found or
    none, the resemblance is unknown, and every item is a trial.

    Args:
        found: Number of items of each unit that are found, `[units, ...]`.
        items: Number of items of each unit, `[units, ...]`.
    """
    found, items = np.asarray(found, np.float64), np.asarray(items, np.float64)
    total = items.sum(axis=0)
    share = ratio(found.sum(axis=0), total)
    variance = ratio(((found - share * items) ** 2).sum(axis=0), total**2)
    trials = np.fmin(total, ratio(share * (1 - share), variance))
    right = share * trials
    low = np.where(share > 0, betaincinv(right, trials - right + 1, _TAILS[0]), 0.0)
    high = np.where(share < 1, betaincinv(right + 1, trials - right, _TAILS[1]), 1.0)
    return share[()], low[()], high[()]


def _few(found: Floats, items: Floats, unit: Unit, runs: int = 1) -> Flags:
    """Return True for each column of counts `[units, columns]` that is a share of few items."""
    right, total = found.sum(axis=0), items.sum(axis=0)
    few: Flags = np.minimum(right, np.where(total < FEW, 0, total - right)) < LEAST_FOUND
    counts = np.stack([found, items])[..., few]
    whole = np.abs(runs * counts - np.rint(runs * counts)) < TIE * (1 + runs * np.abs(counts))
    few[few] = (unit == "fraction") & (whole & (counts >= 0) & (counts <= counts[1])).all(axis=(0, 1))
    return few


def bootstrap_ratio(
    numerator: ArrayLike,
    denominator: ArrayLike,
    unit: Unit = "fraction",
    *,
    share: bool = True,
    draws: int = 1000,
    seed: int = 0,
    runs: int = 1,
) -> Estimate[Any]:
    """Return Σ numerator / Σ denominator with a 95 % interval, by the percentile bootstrap over units.

    See Efron & Tibshirani (1993, ch. 13). The units are sentences, or documents for coreference. Words
    are not resampled, because the words of a sentence are not independent, and the interval would be
    too narrow.

    All columns share the resamples. Memory stays bounded, unlike in `scipy.stats.bootstrap`, which
    copies every resampled column: 12,544 sentences × 60 relations × 1000 draws take 6 GB.

    A share has the interval of `share_interval` if it has few items: fewer than `FEW`, or fewer than `LEAST_FOUND`
    found or missed. With `share`, a ratio is taken as a share if its unit is `fraction` and its counts are whole
    numbers, with no numerator below 0 or above its denominator.

    Args:
        numerator: Counts `[units, ...]`, for instance the right words of each sentence.
        denominator: Counts `[units, ...]`, for instance all words of each sentence.
        unit: Unit of the ratio.
        share: True if the numerators count some of the items that the denominators count; False for differences and
            other numbers, which may look like such counts.
        draws: Number of resamples.
        seed: Seed of the resampling.
        runs: Number of runs whose counts were averaged.

    Returns:
        The ratios and their intervals, `[...]`; `inputs` are the sums of the denominators. A ratio is nan if its
        denominator is zero in all units. An interval is nan if the denominator is nonzero in fewer than two units.
        Resamples in which the denominator sums to zero are ignored.

    Raises:
        ValueError: A count is not finite.
    """
    counts, totals = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    units, shape = counts.shape[0], counts.shape[1:]
    columns = int(np.prod(shape))
    both = _finite(np.concatenate([counts.reshape(units, columns), totals.reshape(units, columns)], axis=1))
    ends = np.full((2, columns), np.nan)
    sound = np.count_nonzero(both[:, columns:], axis=0) >= 2
    if sound.any():
        sums = _resampled_sums(both, draws, seed)
        ratios = ratio(sums[:, :columns], sums[:, columns:])
        sound &= ~np.isnan(ratios).all(axis=0)
    if sound.any():
        ends[:, sound] = np.nanquantile(ratios[:, sound], _TAILS, axis=0)
        few = sound & share & _few(both[:, :columns], both[:, columns:], unit, runs)
        ends[:, few] = share_interval(both[:, :columns][:, few], both[:, columns:][:, few])[1:]
    low, high = (end.reshape(shape)[()] for end in ends)
    total = totals.sum(axis=0)[()]
    return Estimate(ratio(counts.sum(axis=0), total)[()], low, high, unit=unit, inputs=total)


def _resampled_sums(counts: Floats, draws: int, seed: int) -> Floats:
    """Sum `counts` `[units, columns]` over units drawn with replacement, `[draws, columns]`."""
    return np.concatenate([weights @ counts for weights in resamples(len(counts), draws, seed)])


def resamples(units: int, draws: int = 1000, seed: int = 0) -> Iterator[Floats]:
    """Yield bootstrap resamples of `units` units as counts of how often each unit was drawn, `[some draws, units]`.

    Each resample draws as many units as there are, with replacement. The `draws` resamples come in several arrays, to
    bound memory.
    """
    drawn = iter(_kept(units, draws, seed)) if units * draws <= KEPT else _drawn(units, draws, seed)
    for some in drawn:
        yield some.astype(np.float64)


@lru_cache(maxsize=1)  # statistics of the same test set are computed one after another
def _kept(units: int, draws: int, seed: int) -> list[NDArray[np.integer]]:
    return [some.astype(np.min_scalar_type(some.max())) for some in _drawn(units, draws, seed)]


def _drawn(units: int, draws: int, seed: int) -> Iterator[NDArray[np.int64]]:
    rng, chunk = np.random.default_rng(seed), max(1, CELLS // units)
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        picks = rng.integers(units, size=(size, units)) + units * np.arange(size)[:, None]
        yield np.bincount(picks.ravel(), minlength=size * units).reshape(size, units)


def resample(statistic: Statistic, values: ArrayLike, unit: Unit, *, draws: int = 1000, seed: int = 0) -> Estimate:
    """Compute a statistic of a test set, its 95 % interval, and its value under each resample.

    Args:
        statistic: Function that takes values `[units, columns]` and weights `[draws, units]`, and
            returns one number per draw, `[draws]`. A weight is the number of times that a unit was
            drawn.
        values: One row per unit, `[units, columns]`. Rows with a nan are ignored, but may be drawn like the others,
            so that all statistics share their resamples.
        unit: Unit of the statistic.
        draws: Number of resamples; 0 for no interval.
        seed: Seed of the resampling.

    Returns:
        The estimate. A `Ratio` that is a share of few items has the interval of `share_interval`, as in
        `bootstrap_ratio`. The interval is nan for fewer than two units (rows with a nan not counted), and if `draws`
        is 0.
    """
    rows = np.asarray(values, dtype=np.float64)
    sound = ~np.isnan(rows).any(axis=1)
    kept, value, found = rows[sound], np.nan, np.full(draws, np.nan)
    if len(kept):
        value = float(statistic(kept, np.ones((1, len(kept))))[0])
    if len(kept) > 1 and draws:
        found = np.concatenate([statistic(kept, weights[:, sound]) for weights in resamples(len(rows), draws, seed)])
    low, high = _interval(found)
    inputs = None
    if len(kept) > 1 and draws and isinstance(statistic, Ratio):
        right, total = (column[:, None].astype(np.float64) for column in statistic.counts(kept))
        if statistic.share and _few(right, total, unit)[0]:
            low, high = (float(end[0]) for end in share_interval(right, total)[1:])
        inputs = float(total.sum())
    return Estimate(value, low, high, unit=unit, draws=found, inputs=inputs)


def median(values: Floats, weights: Floats) -> Floats:
    """Return the median of one column, each unit counted as often as it was drawn, `[draws]`.

    For an even number of units it is the mean of the middle two, as in `numpy.median`.

    Args:
        values: The column, `[units, 1]`.
        weights: Number of times that each unit was drawn, whole numbers `[draws, units]`.
    """
    column = values[:, 0]
    found = np.full(len(weights), np.nan)
    counts = weights.sum(axis=1)
    drawn = counts > 0
    order = np.argsort(column, kind="stable")
    # Cumulative counts: the last place of each unit among the drawn ones in ascending order.
    ends, ascending = weights[drawn][:, order].cumsum(axis=1), column[order]
    lower, upper = (counts[drawn] - 1) // 2, counts[drawn] // 2
    middle = [ascending[(ends > place[:, None]).argmax(axis=1)] for place in (lower, upper)]
    found[drawn] = (middle[0] + middle[1]) / 2
    return found


def pearson(values: Floats, weights: Floats) -> Floats:
    """Return Pearson's r of two columns, each unit counted as often as it was drawn, `[draws]`.

    Args:
        values: Two columns, `[units, 2]`.
        weights: How often each unit was drawn, whole numbers `[draws, units]`.

    Returns:
        Correlations `[draws]`; nan if a column is constant in a draw.
    """
    drawn = (weights > 0)[..., None]
    spread = np.where(drawn, values, -np.inf).max(axis=1) - np.where(drawn, values, np.inf).min(axis=1)
    # The computed mean of equal numbers may differ from them in the last digit.
    return np.where((spread == 0).any(axis=1), np.nan, _correlations(values[:, 0], values[:, 1], weights))


def spearman(values: Floats, weights: Floats) -> Floats:
    """Return Spearman's ρ of two columns, each unit counted as often as it was drawn, `[draws]`.

    Arguments and result are as in `pearson`. The values are ranked again in each draw.
    """
    return rank_correlations(values[:, 0], values[:, 1], weights)


def rank_correlations(one: ArrayLike, other: ArrayLike, weights: ArrayLike = 1) -> Floats:
    """Return Spearman's ρ over the last axis, `[...]`: Pearson's r of the ranks; equal values get their mean rank.

    The arguments are broadcast against each other.

    Args:
        one: Finite values, `[..., n]`.
        other: Values to correlate with, `[..., n]`.
        weights: How often each pair of values counts, whole numbers `[..., n]`; a mask for those that count once.

    Returns:
        Correlations; nan if all values of one argument that count are equal.
    """
    counts = np.asarray(weights, np.float64) * np.ones(np.shape(one)[-1])
    return _correlations(_ranks(one, counts), _ranks(other, counts), counts)


def _ranks(values: ArrayLike, weights: Floats) -> Floats:
    """Return the mean rank of each value among all that count, over the last axis; see `rank_correlations`."""
    values = np.asarray(values)
    order = values.argsort(axis=-1, kind="stable")
    ascending = np.take_along_axis(values, order, -1)
    new = np.ones(ascending.shape, np.bool_)
    new[..., 1:] = ascending[..., 1:] != ascending[..., :-1]
    places, final = np.arange(values.shape[-1]), np.roll(new, -1, -1)
    first = np.maximum.accumulate(np.where(new, places, 0), axis=-1)
    last = np.minimum.accumulate(np.where(final, places, values.shape[-1])[..., ::-1], axis=-1)[..., ::-1]
    shape = np.broadcast_shapes(order.shape, weights.shape)
    order, first, last = (np.broadcast_to(index, shape) for index in (order, first, last))
    drawn = np.take_along_axis(np.broadcast_to(weights, shape), order, -1)
    sums = drawn.cumsum(axis=-1)
    ranks = (np.take_along_axis(sums - drawn, first, -1) + np.take_along_axis(sums, last, -1) + 1) / 2
    return np.take_along_axis(ranks, order.argsort(axis=-1), -1)


def _correlations(one: Floats, other: Floats, weights: Floats) -> Floats:
    """Return Pearson's r over the last axis, each pair of values counted as often as its weight says."""
    total = weights.sum(axis=-1, keepdims=True)
    centred = [values - ratio((weights * values).sum(axis=-1, keepdims=True), total) for values in (one, other)]
    products = [(weights * x * y).sum(axis=-1) for x, y in (centred, centred[:1] * 2, centred[1:] * 2)]
    return ratio(products[0], np.sqrt(products[1] * products[2]))


def pooled(seeds: Sequence[Estimate]) -> Estimate:
    """Return the mean of estimates from runs that differ only in the seed.

    The `draws` of all estimates must come from the same resamples of the same units. They are averaged
    over the runs, and the interval is taken from these averages. If the interval of a run does not come from its draws,
    as for shares of few items, the ends are the means of the ends of all runs. `sd` is the standard deviation over
    seeds, nan for one run.
    """
    value, sd = mean_and_sd([one.value for one in seeds])
    draws = np.mean([one.draws for one in seeds], axis=0)
    own, drawn = (np.array([one.interval for one in seeds]), np.array([_interval(one.draws) for one in seeds]))
    low, high = _interval(draws) if np.array_equal(own, drawn, equal_nan=True) else own.mean(axis=0).tolist()
    return Estimate(value, low, high, unit=seeds[0].unit, sd=sd, draws=draws, inputs=seeds[0].inputs)


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values over seeds and their standard deviation (n − 1).

    The mean is nan without values, the standard deviation for fewer than two.
    """
    mean = float(np.mean(values)) if len(values) else np.nan
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 else np.nan


def difference(a: Estimate, b: Estimate) -> Estimate:
    """Return the difference a − b of two estimates, with a 95 % interval and a p-value.

    Both are computed from the differences between the `draws` of the two estimates, which must come
    from the same resamples of the same units. The p-value is defined as in `paired_bootstrap`.

    Raises:
        ValueError: The numbers of draws differ.
    """
    return _difference(a.value - b.value, a.draws - b.draws, a.unit)


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
    """Return the difference a − b of two ratios of counts, with its 95 % interval and p-value.

    Counts are given for each of the units that are resampled, for instance sentences. Both runs are
    counted on the same units and see the same resamples, so that the difficulty of a sentence cancels
    out (percentile bootstrap over units; Efron & Tibshirani 1993, ch. 13; Koehn 2004).

    The p-value inverts the interval (Efron & Tibshirani 1993, §15.4). It is 2 (1 + k) / (1 + m), at
    most 1, where k of m resamples have a difference on the rarer side of zero. It is thus never zero.

    Args:
        a_numerator: Counts of run a, `[units]`, for instance the right words of each sentence.
        a_denominator: Counts of run a, `[units]`, for instance all words of each sentence.
        b_numerator: Counts of run b, `[units]`, in the same order of units.
        b_denominator: Counts of run b, `[units]`, in the same order of units.
        unit: Unit of measurement of the ratios, recorded in the returned estimate.
        draws: Number of resamples.
        seed: Seed of the resampling.

    Returns:
        The difference with its interval and p-value. The difference is nan if a denominator is zero in
        every unit. Interval and p-value are nan if a denominator is nonzero in fewer than two units.
        Resamples in which a denominator sums to zero are ignored.

    Raises:
        ValueError: A count is not finite.
    """
    counts = _paired_counts(a_numerator, a_denominator, b_numerator, b_denominator)
    value = float(_differences(counts.sum(axis=0, keepdims=True))[0])
    resampled = np.empty(0)
    if (np.count_nonzero(counts[:, [1, 3]], axis=0) >= 2).all():
        resampled = _differences(_resampled_sums(counts, draws, seed))
    return _difference(value, resampled, unit)


def paired_permutation(
    a_numerator: ArrayLike,
    a_denominator: ArrayLike,
    b_numerator: ArrayLike,
    b_denominator: ArrayLike,
    *,
    draws: int = SWAPS,
    seed: int = 0,
) -> float:
    """Return the p-value of the difference between two ratios of counts on the same units, by random swaps.

    Approximate randomization (Noreen 1989; Yeh 2000): each draw swaps the counts of each unit between the runs with
    probability 1/2. The p-value is (1 + k) / (1 + draws), where k draws have a difference of ratios at least as large
    as the observed one in absolute value. It is nan if a denominator is zero in every unit. Draws that leave a run
    without a denominator are ignored.

    The counts of both runs must be on one scale: means over seeds, not sums over different numbers of seeds.

    Args:
        a_numerator: Counts of run a, `[units]`, for instance the right words of each sentence.
        a_denominator: Counts of run a, `[units]`, for instance all words of each sentence.
        b_numerator: Counts of run b, `[units]`, in the same order of units.
        b_denominator: Counts of run b, `[units]`, in the same order of units.
        draws: Number of random draws.
        seed: Seed of the draws.

    Raises:
        ValueError: A count is not finite.
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


def max_sign_flip_p(differences: ArrayLike, *, draws: int = 1000, seed: int = 0) -> float:
    """Return the one-sided p-value of the greatest of K sums of paired differences, by random signs of the units.

    The null hypothesis is that no sum is above zero. Each draw gives the differences of each unit a random sign, and
    takes the greatest of the K sums, as the observed one was chosen (max statistic of Westfall & Young 1993). The
    p-value is (1 + k) / (1 + draws), where k draws have a maximum at least as great as the observed one. It is nan
    without units.

    Args:
        differences: Differences of each unit, `[units, K]`.
        draws: Number of random draws.
        seed: Seed of the draws.
    """
    moved = np.asarray(differences, dtype=np.float64)
    if not len(moved):
        return np.nan
    rng, chunk = np.random.default_rng(seed), max(1, CELLS // len(moved))
    sizes = [min(chunk, draws - start) for start in range(0, draws, chunk)]
    found = [(2.0 * rng.integers(2, size=(size, len(moved)), dtype=np.int8) - 1) @ moved for size in sizes]
    as_great = np.concatenate(found).max(axis=1) >= moved.sum(axis=0).max() - TIE
    return float((1 + np.count_nonzero(as_great)) / (1 + draws))


def against_random_draws(one: Estimate, others: Sequence[Estimate]) -> tuple[Estimate, Estimate]:
    """Compare a number with N random ones, such as the score without given heads with scores without random heads.

    There are two sources of error, so p is the larger of two p-values, and is small only if both are (Berger 1982):

    - The first tests the hypothesis that the number is one more random number, by Student's prediction of a further
      value from N values. It is exact if these are normal and equally correlated, as for overlapping random sets. (A
      test of ranks would not need normality, but its p-value is never below 1 / (N + 1).)
    - The second is the p-value of the bootstrap over units, as in `difference`, so that no small p stands beside an
      interval that contains 0.

    Args:
        one: The number.
        others: The random numbers, with draws from the same resamples of the same units.

    Returns:
        The mean of the others, nan if there are none; and the number minus this mean, with the interval of the
        bootstrap over units, and p, which is nan for fewer than two others.

    Raises:
        ValueError: The numbers of draws differ.
    """
    nothing = replace(one, value=np.nan, low=np.nan, high=np.nan, draws=np.full_like(one.draws, np.nan))
    average = pooled(others or [nothing])
    apart = difference(one, average)
    if len(others) < 2:
        return average, replace(apart, p=np.nan)
    error = np.std([each.value for each in others], ddof=1) * np.sqrt(1 + 1 / len(others))
    p = 2 * student.sf(abs(apart.value) / max(error, TIE), len(others) - 1)
    return average, replace(apart, p=max(float(p), apart.p or 0.0))


def holm(p_values: Sequence[float]) -> Floats:
    """Return Holm-corrected p-values (Holm 1979), which control the family-wise error rate.

    A nan stays nan and is not counted as a test.
    """
    values = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(values.shape, np.nan)
    order = np.argsort(values)[: np.count_nonzero(~np.isnan(values))]  # argsort puts nan last
    factors = np.arange(order.size, 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return adjusted


def draws_for(tests: int, units: int, least: int) -> int:
    """Return the number of bootstrap draws for p-values that Holm's method corrects for their number.

    Each p-value takes 100 draws, so that it can still be small after the correction. With many units the draws are
    fewer, so that they fit into memory, but at least 1000.

    Args:
        tests: Number of p-values.
        units: Number of units that are resampled.
        least: Number of draws if there are few tests.
    """
    return min(max(least, 100 * tests), max(_MOST_CELLS // max(units, 1), 1000))


def p_units(p_values: ArrayLike, least: float) -> list[Unit]:
    """Return the unit of each p-value: `least_p` for the smallest possible one, which is printed with ≤.

    It is the unit after Holm's correction, too, which multiplies the smallest possible p-value like the others.

    Args:
        p_values: P-values before correction.
        least: The smallest possible p-value: 1 / (1 + draws) of a permutation test, twice that of the bootstrap.
    """
    # Draws without a defined statistic are left out, so the smallest value may be somewhat larger.
    return ["least_p" if p < 1.5 * least else "p" for p in np.asarray(p_values, np.float64).tolist()]


def _paired_counts(*columns: ArrayLike) -> Floats:
    """Stack numerator and denominator of a, then of b, `[units, 4]`."""
    return _finite(np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1))


def _finite(counts: Floats) -> Floats:
    if not np.isfinite(counts).all():
        odd = counts[~np.isfinite(counts)][0]
        raise ValueError(
            f"numerators and denominators must be finite, but one is {odd}; give 0 for both in units not scored"
        )
    return counts


def _differences(sums: Floats) -> Floats:
    """Subtract ratio b from ratio a of sums `[draws, 4]`: `[draws]`; nan where a denominator is zero."""
    numerators, denominators = sums[:, ::2], sums[:, 1::2]
    ratios = ratio(numerators, denominators)
    return ratios[:, 0] - ratios[:, 1]


def _difference(value: float, resampled: Floats, unit: Unit) -> Estimate:
    """Return a difference with the interval and the p-value of its resamples `[draws]`."""
    known = resampled[~np.isnan(resampled)]
    rarer = min(np.count_nonzero(known <= TIE), np.count_nonzero(known >= -TIE))
    p = min(1.0, 2 * (1 + rarer) / (1 + known.size)) if known.size else np.nan
    return Estimate(value, *_interval(known), unit=unit, p=p)


def _interval(resampled: Floats) -> tuple[float, float]:
    """Return the percentile interval of the draws that are not nan."""
    resampled = resampled[~np.isnan(resampled)]
    if not resampled.size:
        return np.nan, np.nan
    low, high = np.quantile(resampled, _TAILS)
    return float(low), float(high)


def ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> Floats:
    """Divide element by element in float64, with broadcasting; nan if the denominator is zero."""
    above, below = np.broadcast_arrays(np.asarray(numerator, np.float64), np.asarray(denominator, np.float64))
    divided: Floats = np.divide(above, below, out=np.full(above.shape, np.nan), where=below != 0)
    return divided
