"""Differences between two numbers of one test set, or between one and random others, with interval and p-value."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.draws import TAIL, TEST_DRAWS, check_finite, interval_of_draws, p_of_draws
from attention_probing.metrics.seeds import mean_and_sd, widen_for_seeds
from attention_probing.metrics.shares import ends_for_few
from attention_probing.metrics.statistics import two_columns
from attention_probing.results import TIE, Counts, Estimate, Floats, Unit


def difference(a: Estimate, b: Estimate, *, same_runs: bool = False, fixed: bool = False) -> Estimate:
    """Return the difference a − b of two estimates, with its 95 % interval and p-value.

    Both are computed from the differences between the `draws` of the two estimates, which must come from the same
    subsets of the same units; for means over seeds (`pool_seeds`) they cover the variation of the seeds too. For few
    items that differ, the interval of a difference of shares is at least `signed_interval`.

    Args:
        a: A number.
        b: The number that is subtracted.
        same_runs: True if both are numbers of the same runs, in the same order, such as two rankings of the words by
            the same models: the seeds are then paired, too.
        fixed: True if `b` is no run with a seed, such as the intact model of which several random changes are scored.

    Raises:
        ValueError: The numbers of draws, or of paired seeds, differ.
    """
    value = a.value - b.value
    counts = None
    if a.counts is not None and b.counts is not None and np.array_equal(a.counts.items, b.counts.items):
        counts = Counts(a.counts.found - b.counts.found, a.counts.items, signed=True)
    sides: tuple[Estimate, ...] = (a, b)
    if same_runs and a.runs:
        runs = []
        for run, other in zip(a.runs, b.runs, strict=True):
            runs.append(replace(run, value=run.value - other.value, draws=run.draws - other.draws))
        sides = (replace(a, value=value, runs=tuple(runs)),)
    elif fixed:
        sides = (a,)
    draws = widen_for_seeds(value, a.draws - b.draws, sides)
    return with_interval_and_p(Estimate(value, unit=a.unit, draws=draws, units=a.units, counts=counts))


def with_interval_and_p(apart: Estimate, tests: int = 1) -> Estimate:
    """Return a difference with the interval and the p-value of its draws.

    Args:
        apart: The difference, with its draws; its `counts` are differences of items found, and items.
        tests: Number of differences of which this one was chosen by its size. Interval and p then hold for all of them
            at once (Bonferroni), and so for the chosen one.
    """
    low, high = interval_of_draws(apart.draws, TAIL / tests)
    if apart.counts is not None and np.count_nonzero(apart.counts.items) > 1:
        low, high = ends_for_few(apart.counts, low, high, TAIL / tests)
    p = np.nan
    if apart.draws.size:
        p = float(np.minimum(1.0, p_of_draws(apart.draws[:, None])[0] * tests))
    return replace(apart, low=low, high=high, p=p)


def paired_bootstrap(
    a_numerator: ArrayLike,
    a_denominator: ArrayLike,
    b_numerator: ArrayLike,
    b_denominator: ArrayLike,
    *,
    unit: Unit = "fraction",
    share: bool = False,
    units: ArrayLike | None = None,
    draws: int = TEST_DRAWS,
    seed: int = 0,
) -> Estimate:
    """Return the difference a − b of two ratios of counts, with its 95 % interval and p-value.

    Both sides are counted on the same items and see the same subsets of units, so that the difficulty of a sentence
    cancels out. See `difference`.

    Args:
        a_numerator: Counts of side a, `[items]`, for instance the right words of each sentence.
        a_denominator: Counts of side a, `[items]`, for instance all words of each sentence.
        b_numerator: Counts of side b, `[items]`, in the same order of items.
        b_denominator: Counts of side b, `[items]`, in the same order of items.
        unit: Unit of measurement of the ratios, recorded in the returned estimate.
        share: True if the numerators count some of the items that the denominators count.
        units: Number of the unit that each item belongs to, `[items]`; None if each item is a unit.
        draws: Number of subsets.
        seed: Seed of the subsets.

    Returns:
        The difference with its interval and p-value. The difference is nan if a denominator is zero in every unit.
        Interval and p-value are nan if a denominator is nonzero in fewer than two units.

    Raises:
        ValueError: A count is not finite.
    """
    statistic = two_columns(share=share)
    a_counts = check_finite(np.column_stack([a_numerator, a_denominator]))
    b_counts = check_finite(np.column_stack([b_numerator, b_denominator]))
    a = resample(statistic, a_counts, unit, draws=draws, seed=seed, units=units)
    b = resample(statistic, b_counts, unit, draws=draws, seed=seed, units=units)
    return difference(a, b)


def against_random_draws(score: Estimate, others: Sequence[Estimate]) -> tuple[Estimate, Estimate]:
    """Compare a number with N random ones, such as the score without given heads with scores without random heads.

    There are two sources of error, and the difference counts only if it is clear of both (Berger 1982):

    - The number could be one more random number. The error is that of Student's prediction of a further value from N
      values, which is exact if these are normal and equally correlated, as for overlapping random sets. (A test of
      ranks would not need normality, but its p-value is never below 1 / (N + 1).)
    - The units could be others: the draws over units, as in `difference`.

    Each draw is therefore moved out to the farther of the two, and gives interval and p-value.

    Args:
        score: The number.
        others: The random numbers, with draws from the same subsets of the same units.

    Returns:
        The mean of the others, nan if there are none; and the number minus this mean, with interval and p, which are
        nan for fewer than two others.

    Raises:
        ValueError: The numbers of draws differ.
    """
    mean, sd = mean_and_sd([other.value for other in others])
    draws = np.full_like(score.draws, np.nan)
    if others:
        draws = np.mean([other.draws for other in others], axis=0)
    low, high = interval_of_draws(draws, TAIL)
    average = replace(score, value=mean, low=low, high=high, sd=sd, draws=draws, counts=None)
    apart = Estimate(score.value - mean, unit=score.unit, draws=score.draws - draws)
    if len(others) < 2:
        return average, replace(apart, low=np.nan, high=np.nan, p=np.nan)
    error = max(sd * np.sqrt(1 + 1 / len(others)), TIE)
    farther = _move_out(apart, error, len(others) - 1)
    return average, with_interval_and_p(replace(apart, draws=farther))


def widen_for_choice(apart: Estimate, others: Sequence[float], candidates: int) -> Estimate:
    """Widen the difference of a number from N others, if the number was chosen as the greatest of K candidates.

    Some number is the greatest of any sample. Student's prediction of a further value from N values is therefore
    corrected for the K numbers that could have been chosen. If these are the number and the N others alone, it is the
    two-sided test of Grubbs (1950) for an outlier in a sample of N + 1, by the bound of Bonferroni. With candidates in
    other layers the bound is conservative. As in `against_random_draws`, the numbers are taken as normal.

    The error of the units is not corrected, so the units must be others than those that chose.

    Args:
        apart: The difference from the mean of the others, from `against_random_draws`.
        others: The other numbers.
        candidates: Number of numbers of which the first was chosen.

    Returns:
        The difference, with an interval and a p-value that are those of `apart` or wider, and without draws.
    """
    if len(others) < 2:
        return apart
    _, sd = mean_and_sd(others)
    error = max(sd * np.sqrt(1 + 1 / len(others)), TIE)
    degrees = len(others) - 1
    reach = error * float(stdtrit(degrees, 1 - TAIL / candidates))
    p = 2 * candidates * float(stdtr(degrees, -abs(apart.value) / error))
    low, high = apart.interval
    return Estimate(
        apart.value,
        min(low, apart.value - reach),
        max(high, apart.value + reach),
        unit=apart.unit,
        p=max(apart.p or 0.0, min(p, 1.0)),
    )


def _move_out(apart: Estimate, error: float, degrees: int) -> Floats:
    """Move each draw to the quantile of Student's t with a standard error that has its rank, if that is farther out."""
    draws = apart.draws.copy()
    order = np.argsort(draws, kind="stable")  # nan last
    order = order[: np.count_nonzero(~np.isnan(draws))]
    ranks = (np.arange(len(order)) + 1) / (len(order) + 1)
    quantiles = apart.value + error * stdtrit(degrees, ranks)
    farther = np.abs(quantiles - apart.value) > np.abs(draws[order] - apart.value)
    draws[order] = np.where(farther, quantiles, draws[order])
    return draws
