"""Means over seeds, and differences of such means."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.stats import ttest_ind

from attention_probing.metrics.bootstrap import bootstrap_ratio, resample
from attention_probing.metrics.differences import difference, paired_bootstrap
from attention_probing.metrics.seeds import mean_over_seeds, pool_seeds
from attention_probing.metrics.statistics import Statistic, mean, median, proportion
from attention_probing.results import Estimate
from tests.metrics.subsets import counted_p, ends, level_tail, numbers, p_of, sorted_ends, subsets, width


def seeds_of(gain: float, seeds: int, start: int = 0) -> list[np.ndarray]:
    """Values of as many seeds: what is hard is hard for all."""
    common = np.random.default_rng(99).normal(size=(80, 1))
    return [common + gain + 0.3 * np.random.default_rng(start + seed).normal(size=(80, 1)) for seed in range(seeds)]


def shifted(shifts: Sequence[float], start: int = 0) -> list[np.ndarray]:
    """Values of seeds that vary by more than their texts explain."""
    return [seeds_of(shift, 1, start + place)[0] for place, shift in enumerate(shifts)]


def mean_draws(seeds: Sequence[np.ndarray], draws: int, seed: int) -> list[float]:
    """Mean over the seeds of the mean of each subset of texts."""
    everything = np.mean(seeds, axis=0)[:, 0]
    return [float(everything[picks].mean()) for picks in subsets(len(everything), draws, seed)]


def variances(seeds: Sequence[np.ndarray], draws: int, seed: int) -> tuple[float, float]:
    """The variance between seeds, and what of it the choice of texts explains."""
    values = [float(one.mean()) for one in seeds]
    value = sum(values) / len(values)
    squares = []
    for picks in subsets(len(seeds[0]), draws, seed):
        of_seeds = [float(one[picks].mean()) for one in seeds]
        common = sum(of_seeds) / len(of_seeds)
        squares += [(drawn - own - common + value) ** 2 for drawn, own in zip(of_seeds, values, strict=True)]
    between = sum((own - value) ** 2 for own in values) / (len(values) - 1)
    return between, sum(squares) / draws / (len(values) - 1)


def widened(draws: Sequence[float], value: float, parts: Sequence[tuple[float, float, int]]) -> list[float]:
    """Draws about a value, spread by the variance of seeds.

    Args:
        draws: Values under the draws of texts.
        value: The value of all texts.
        parts: Variance between the seeds of each side, divided by their number; what texts explain of it; and n - 1.
    """
    spread = sum((draw - value) ** 2 for draw in draws) / len(draws)
    total = spread + sum(between - explained for between, explained, _ in parts)
    degrees = total**2 / sum(between**2 / freedom for between, _, freedom in parts)
    wide = []
    for draw in draws:
        normal = (draw - value) / math.sqrt(spread)
        wide.append(value + math.sqrt(total) * stats.t.ppf(stats.norm.cdf(normal), degrees))
    return wide


def estimates(
    seeds: Sequence[np.ndarray], statistic: Statistic = mean, draws: int = 500, seed: int = 4
) -> list[Estimate]:
    return [resample(statistic, one, "ratio", draws=draws, seed=seed) for one in seeds]


def test_a_difference_is_that_of_the_means_over_seeds_text_by_text() -> None:
    """Of seeds that vary no more than their texts explain."""
    a, b = seeds_of(0.08, 3, start=20), seeds_of(0.0, 2, start=60)
    sums = [variances(seeds, 500, 4) for seeds in (a, b)]
    assert sums[0][0] / 3 + sums[1][0] / 2 < 1.2 * (sums[0][1] / 3 + sums[1][1] / 2)
    means = [pool_seeds(estimates(runs)) for runs in (a, b)]
    found, back = difference(*means), difference(*means[::-1])
    ones = np.ones(80)
    expected = paired_bootstrap(np.mean(a, axis=0)[:, 0], ones, np.mean(b, axis=0)[:, 0], ones, draws=500, seed=4)
    np.testing.assert_allclose(numbers(found), numbers(expected), rtol=1e-9)
    value, low, high, p = numbers(found)
    assert 0 < p < 0.5
    np.testing.assert_allclose(numbers(back), [-value, -high, -low, p])
    assert difference(means[0], means[0], same_runs=True).p == 1.0


def test_pooling_takes_the_mean_of_each_subset_over_the_seeds() -> None:
    seeds = seeds_of(0.2, 3)
    found = pool_seeds(estimates(seeds, median, draws=300, seed=0))
    medians = [float(np.median(one)) for one in seeds]
    expected = [float(np.mean([np.median(one[picks]) for one in seeds])) for picks in subsets(80, 300)]
    assert found.value == pytest.approx(np.mean(medians))
    assert found.sd == pytest.approx(np.std(medians, ddof=1))
    np.testing.assert_allclose(found.draws, expected)
    assert ends(found) == pytest.approx(sorted_ends(expected, level_tail(80)))
    alone = resample(median, seeds[0], "ratio", draws=300)
    np.testing.assert_equal(numbers(pool_seeds([alone])), (*numbers(alone), np.nan))


def test_the_interval_of_a_mean_over_seeds_covers_their_variance() -> None:
    seeds = shifted([0.0, 0.5, -0.3, 0.2])
    found = pool_seeds(estimates(seeds))
    between, explained = variances(seeds, 500, 4)
    assert between > 10 * explained > 0
    draws = mean_draws(seeds, 500, 4)
    wide = widened(draws, found.value, [(between / 4, explained / 4, 3)])
    assert ends(found) == pytest.approx(sorted_ends(wide, level_tail(80)), rel=1e-6)
    narrow = sorted_ends(draws, level_tail(80))
    assert found.interval[1] - found.interval[0] > 1.5 * (narrow[1] - narrow[0])
    np.testing.assert_allclose(found.draws, draws)  # those of the texts alone, from which differences are computed


def test_differences_of_means_over_seeds_cover_the_variance_of_both_sides() -> None:
    a, b = shifted([0.1, 0.9, 0.5]), shifted([0.0, 0.1, -0.2, 0.3], start=30)
    sides = [pool_seeds(estimates(seeds)) for seeds in (a, b)]
    found = difference(*sides)
    parts = []
    for seeds in (a, b):
        between, explained = variances(seeds, 500, 4)
        parts.append((between / len(seeds), explained / len(seeds), len(seeds) - 1))
    draws = np.subtract(mean_draws(a, 500, 4), mean_draws(b, 500, 4)).tolist()
    wide = widened(draws, found.value, parts)
    assert found.interval == pytest.approx(sorted_ends(wide), rel=1e-6)
    assert found.p == pytest.approx(counted_p(wide))
    assert counted_p(draws) < 0.01 < counted_p(wide) < 0.5
    # Runs of the same seeds are paired, and their differences vary less.
    c = [one + 0.1 * two for one, two in zip(a, seeds_of(1.0, 3, start=50), strict=True)]
    paired = difference(pool_seeds(estimates(c)), sides[0], same_runs=True)
    moved = [one - two for one, two in zip(c, a, strict=True)]
    between, explained = variances(moved, 500, 4)
    draws = mean_draws(moved, 500, 4)
    expected = draws
    if between > 1.2 * explained:
        expected = widened(draws, paired.value, [(between / 3, explained / 3, 2)])
    assert paired.interval == pytest.approx(sorted_ends(expected), rel=1e-6)
    apart = difference(pool_seeds(estimates(c)), sides[0])
    assert width(apart) > 2 * width(paired)


def test_without_variance_of_texts_the_tests_are_students() -> None:
    """Numbers that are alike in all texts: Welch's test, its paired form, and one run against several."""
    rng, texts, draws = np.random.default_rng(0), np.zeros((20, 1)), 4000
    tested = []
    for _ in range(20):
        a, b = rng.normal(0.8, 1, 5), rng.normal(0, 2, 4)
        sides = [pool_seeds(estimates([texts + one for one in own], draws=draws)) for own in (a, b)]
        found = difference(*sides)
        expected = ttest_ind(a, b, equal_var=False)
        assert found.p == pytest.approx(expected.pvalue, abs=0.003)
        limits = expected.confidence_interval()
        assert found.interval == pytest.approx((limits.low, limits.high), rel=0.05, abs=0.05)
        tested.append(p_of(found))
        both = difference(sides[0], pool_seeds(estimates([texts + one for one in a**2], draws=draws)), same_runs=True)
        assert both.p == pytest.approx(stats.ttest_rel(a, a**2).pvalue, abs=0.003)
        alone = difference(estimates([texts + 3.0], draws=draws)[0], sides[0])
        assert alone.p == pytest.approx(ttest_ind([3.0], a).pvalue, abs=0.003)
        error = a.std(ddof=1) / math.sqrt(5)
        margin = stats.t.isf(level_tail(20), 4) * error
        assert sides[0].interval == pytest.approx((a.mean() - margin, a.mean() + margin), rel=0.05, abs=0.05)
    assert min(tested) < 0.1 < max(tested)


def test_a_mean_of_one_number_for_each_seed_has_students_interval() -> None:
    values = [0.3, 0.5, 0.1, 0.25]
    limits = stats.ttest_1samp(values, 0).confidence_interval()
    found = mean_over_seeds(values, "ratio")
    assert numbers(replace(found, sd=None)) == pytest.approx((np.mean(values), limits.low, limits.high))
    assert found.sd == pytest.approx(np.std(values, ddof=1))
    for few in (values[:2], values[:1], [0.3] * 4, []):  # two seeds say too little of others, and equal ones nothing
        assert np.isnan(mean_over_seeds(few, "ratio").interval).all()


@pytest.mark.parametrize("right", [(40, 45, 60), (2, 1, 3), (100, 100, 100)])
def test_the_interval_of_a_share_over_seeds_stays_between_none_and_all(right: Sequence[int]) -> None:
    decisions = [(np.arange(100) < one).astype(float)[:, None] for one in right]
    found = pool_seeds(estimates(decisions, proportion))
    low, high = found.interval
    assert 0 <= low <= found.value <= high <= 1
    few = bootstrap_ratio(np.mean(decisions, axis=0)[:, 0], np.ones(100), share=True)
    if max(right) < 5 or min(right) > 95:  # at least the exact interval of the mean counts
        assert low <= few.interval[0]
        assert high >= few.interval[1]
