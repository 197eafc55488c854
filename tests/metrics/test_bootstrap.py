import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.stats import binomtest, ttest_ind

from metrics import bootstrap
from metrics.bootstrap import (
    against_random_draws,
    bootstrap_ratio,
    difference,
    holm,
    max_sign_flip_p,
    paired_bootstrap,
    paired_permutation,
    pooled,
    resample,
    resamples,
)
from metrics.classification import accuracy_drop, f1_drop, f1_score
from metrics.statistics import Statistic, mean, median, proportion
from results import Estimate, Unit

NAN = float("nan")


def numbers(found: Estimate) -> tuple[float, ...]:
    """Value, interval, and p-value of a difference."""
    return tuple(found.named("").values())


def ends(found: Estimate) -> tuple[float, ...]:
    return numbers(found)[1:3]


def two_runs(units: int, gain: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right words of two runs and all words of each unit; hard units are hard for both."""
    rng = np.random.default_rng(seed)
    totals = rng.integers(1, 30, size=units)
    ease = rng.beta(3, 2, size=units)
    b = rng.binomial(totals, ease)
    a = rng.binomial(totals, np.clip(ease + gain, 0, 1))
    return a.astype(np.float64), b.astype(np.float64), totals.astype(np.float64)


def test_it_is_the_percentile_interval_of_resampled_ratios() -> None:
    a, b, totals = two_runs(40, 0.02)
    right, of = np.stack([a, b], axis=1)[:, None], np.stack([totals, totals + 1], axis=1)[:, None]
    low, high = bootstrap_ratio(right, of, draws=500, seed=7).interval
    assert low.shape == high.shape == (1, 2)
    rng = np.random.default_rng(7)
    resamples = [rng.integers(40, size=40) for _ in range(500)]  # the same for all columns
    for column in range(2):
        ratios = [right[picks, 0, column].sum() / of[picks, 0, column].sum() for picks in resamples]
        expected = np.quantile(ratios, [0.025, 0.975])
        np.testing.assert_allclose([low[0, column], high[0, column]], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("right", "totals"),
    [([3.0], [5.0]), ([], []), ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]), ([0.0, 2.0, 0.0], [0.0, 4.0, 0.0])],
    ids=["one unit", "no unit", "nothing to score", "one unit with something to score"],
)
def test_no_interval_where_resampling_says_nothing(right: list[float], totals: list[float]) -> None:
    assert np.isnan(bootstrap_ratio(right, totals).interval).all()


def test_resamples_without_a_denominator_are_left_out() -> None:
    # Two of forty units have words: 13 % of the resamples have neither, and only the rest have a ratio.
    right, totals = np.zeros(40), np.zeros(40)
    totals[:2], right[0] = 1.0, 1.0
    assert bootstrap_ratio(right, totals, "ratio").interval == (0.0, 1.0)
    # A single resample may have none at all.
    lone = [bootstrap_ratio(right, totals, draws=1, seed=seed).interval[0] for seed in range(30)]
    assert 0 < np.isnan(lone).sum() < 30


def exact(found: int, items: int) -> tuple[float, float]:
    """The interval of Clopper & Pearson, from another library function."""
    ends = binomtest(found, items).proportion_ci()
    return pytest.approx((ends.low, ends.high), abs=1e-9)  # type: ignore[return-value]


def test_a_share_of_few_items_has_an_exact_interval() -> None:
    for items in (2, 19, 20, 60):
        for found in range(items + 1):
            hits, ones = (np.arange(items) < found).astype(float), np.ones(items)
            of_ratio, of_mean = bootstrap_ratio(hits, ones), resample(proportion, hits[:, None], "fraction")
            few = items < 20 or min(found, items - found) < 5
            assert (of_ratio.interval == exact(found, items)) == few, (found, items)
            assert (of_mean.interval == exact(found, items)) == few
            assert of_ratio.inputs == of_mean.inputs == items
            if not few:  # nothing changes there
                assert of_ratio.interval == bootstrap_ratio(hits, ones, "ratio").interval


def test_items_that_are_alike_within_a_unit_count_as_fewer() -> None:
    assert bootstrap_ratio([3, 3, 0, 0], [3, 3, 3, 3]).interval == exact(2, 4)
    assert bootstrap_ratio([3, 3, 3, 3], [3, 3, 3, 3]).interval == exact(12, 12)  # nothing is known about likeness


@pytest.mark.parametrize(
    ("found", "items", "unit"),
    [
        ([1.0, 1.0], [1.0, 1.0], "ratio"),
        ([0.25, 0.5], [1.0, 1.0], "fraction"),  # means of a measure that is no count
        ([-1.0, 1.0], [1.0, 1.0], "fraction"),
        ([3.0, 1.0], [1.0, 1.0], "fraction"),
    ],
)
def test_only_shares_have_exact_intervals(found: list[float], items: list[float], unit: Unit) -> None:
    ratios = [sum(found[pick] for pick in picks) / 2 for picks in itertools.product(range(2), repeat=2)]
    assert bootstrap_ratio(found, items, unit).interval == (min(ratios), max(ratios))


def test_the_paired_bootstrap_is_a_loop_over_shared_resamples() -> None:
    a, b, totals = two_runs(30, 0.03)
    found = paired_bootstrap(a, totals, b, totals + 1, draws=400, seed=5)
    rng = np.random.default_rng(5)
    differences = []
    for _ in range(400):
        picks = rng.integers(30, size=30)
        differences.append(a[picks].sum() / totals[picks].sum() - b[picks].sum() / (totals[picks] + 1).sum())
    assert found.value == pytest.approx(a.sum() / totals.sum() - b.sum() / (totals + 1).sum())
    assert [found.low, found.high] == pytest.approx(np.quantile(differences, [0.025, 0.975]), rel=1e-9)
    back = numbers(paired_bootstrap(b, totals + 1, a, totals, draws=400, seed=5))
    value, low, high, p = numbers(found)
    assert back == pytest.approx((-value, -high, -low, p))
    below, above = sum(d <= 0 for d in differences), sum(d >= 0 for d in differences)
    assert 0 < below < above
    assert found.p == pytest.approx(2 * (1 + below) / 401)


def test_the_permutation_test_equals_all_swaps(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, a_totals = two_runs(8, 0.1, seed=4)
    b_totals = a_totals + np.arange(8)
    observed = abs(a.sum() / a_totals.sum() - b.sum() / b_totals.sum())
    as_large = 0
    for swap in itertools.product([False, True], repeat=8):
        first = [(b[u], b_totals[u]) if s else (a[u], a_totals[u]) for u, s in enumerate(swap)]
        second = [(a[u], a_totals[u]) if s else (b[u], b_totals[u]) for u, s in enumerate(swap)]
        ratios = [sum(n for n, _ in run) / sum(d for _, d in run) for run in (first, second)]
        as_large += abs(ratios[0] - ratios[1]) >= observed - 1e-12
    monkeypatch.setattr(bootstrap, "CELLS", 80_000)  # three parts, and a rest
    assert 4 < as_large < 240
    found = paired_permutation(a, a_totals, b, b_totals, draws=40_000)
    assert found == pytest.approx(as_large / 256, abs=0.01)


def test_no_test_where_there_is_nothing_to_compare() -> None:
    for columns in ([np.zeros(2)] * 2 + [np.array([4.0, 5.0])] * 2, [np.zeros(0)] * 4):
        assert np.isnan(numbers(paired_bootstrap(*columns))).all()
        assert np.isnan(paired_permutation(*columns))
    value, *others = numbers(paired_bootstrap([1.0], [2.0], [2.0], [2.0]))
    assert value == -0.5
    assert np.isnan(others).all()


@pytest.mark.parametrize(
    ("test", "columns", "message"),
    [
        (bootstrap_ratio, [[1.0, NAN], [1.0, 1.0]], "give 0 for both in units"),
        (paired_permutation, [[1.0, NAN], *[[1.0, 1.0]] * 3], "give 0 for both in units"),
    ],
)
def test_bad_counts_are_refused(test: Callable[..., object], columns: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        test(*columns)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # Sorted: .01·4, .02·3, .03·2 = .06 as the one before it, .4·1.
        ([0.03, 0.01, 0.4, 0.02], [0.06, 0.04, 0.4, 0.06]),
        ([0.6, 0.9], [1.0, 1.0]),
        ([0.04], [0.04]),
        ([NAN, 0.01, 0.04], [NAN, 0.02, 0.04]),  # no p-value, no comparison
        ([], []),
    ],
)
def test_holm_by_hand(given: list[float], expected: list[float]) -> None:
    assert holm(given).tolist() == pytest.approx(expected, nan_ok=True)


def resampled_texts(texts: int, draws: int, seed: int = 0) -> list[list[int]]:
    """Which texts each resample holds, as lists with repetitions."""
    weights = next(resamples(texts, draws, seed))
    return [[text for text in range(texts) for _ in range(int(row[text]))] for row in weights]


def values_of(texts: int, columns: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).gamma(2.0, size=(texts, columns)).round(1)  # rounded, so that some are equal


@pytest.mark.parametrize(("texts", "known"), [(20, 20), (21, 21), (30, 28), (12, 2)])
@pytest.mark.parametrize(("statistic", "slow"), [(mean, np.mean), (median, np.median)])
def test_a_statistic_of_weights_is_that_of_the_resampled_list(
    texts: int, known: int, statistic: Statistic, slow: Callable[[np.ndarray], float]
) -> None:
    """Texts without a value keep their place in the resamples; a resample of them alone has none."""
    values = values_of(texts, columns=2)
    values[known:, 1] = np.nan
    found = resample(lambda rows, weights: statistic(rows[:, :1], weights), values, "ratio", draws=200, seed=3)
    resampled = [values[[text for text in picks if text < known], 0] for picks in resampled_texts(texts, 200, seed=3)]
    expected = np.array([slow(drawn) if drawn.size else np.nan for drawn in resampled])
    assert np.isnan(expected).any() == (known == 2)
    np.testing.assert_allclose(found.draws, expected, rtol=1e-12)
    assert found.value == pytest.approx(slow(values[:known, 0]))
    np.testing.assert_allclose(ends(found), np.nanquantile(expected, [0.025, 0.975]))


def decisions(texts: int, classes: int, draws: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gold and own classes `[texts]`, and those of some perturbations `[draws, texts]`."""
    rng = np.random.default_rng(0)
    gold = rng.integers(classes, size=texts)
    own = np.where(rng.random(texts) < 0.8, gold, rng.integers(classes, size=texts))
    other = np.where(rng.random((draws, texts)) < 0.5, own, rng.integers(classes, size=(draws, texts)))
    return gold, own, other


def counted_f1(gold: np.ndarray, predicted: np.ndarray, labels: Sequence[int]) -> float:
    """Mean over the labels of the harmonic mean of precision and recall."""
    found = []
    for label in labels:
        right = sum(g == p == label for g, p in zip(gold, predicted, strict=True))
        found.append(2 * right / ((gold == label).sum() + (predicted == label).sum()))
    return float(np.mean(found))


@pytest.mark.parametrize(("positive", "classes"), [(1, 2), (0, 2), (None, 4)])
def test_drops_are_differences_of_scores_of_written_out_decisions(positive: int | None, classes: int) -> None:
    gold, own, other = decisions(60, classes, draws=4)
    columns = np.column_stack([gold, own, *((other == one).mean(axis=0) for one in range(classes))])
    dropped = resample(f1_drop(positive, classes), columns, "ratio", draws=50)
    score = resample(f1_score(positive, classes), np.column_stack([gold, own]), "ratio", draws=50)
    lost = resample(accuracy_drop, columns, "ratio", draws=50)
    labels = range(classes) if positive is None else [positive]
    for draw, picks in enumerate(resampled_texts(60, 50)):
        before = counted_f1(gold[picks], own[picks], labels)
        # All four perturbations of a text, each as a text of its own.
        after = counted_f1(np.tile(gold[picks], 4), other[:, picks].ravel(), labels)
        assert score.draws[draw] == pytest.approx(before)
        assert dropped.draws[draw] == pytest.approx(before - after)
        right, right_after = (own == gold)[picks].mean(), (other == gold)[:, picks].mean()
        assert lost.draws[draw] == pytest.approx(right - right_after)
    assert dropped.value == pytest.approx(
        counted_f1(gold, own, labels) - counted_f1(np.tile(gold, 4), other.ravel(), labels)
    )
    assert dropped.value > 0


@pytest.mark.parametrize("statistic", [mean, median])
@pytest.mark.parametrize("texts", [0, 1, 5])
def test_fewer_than_two_values_have_no_interval(statistic: Statistic, texts: int) -> None:
    values = np.full((texts, 1), np.nan)
    values[:1] = 3.0
    found = resample(statistic, values, "ratio", draws=10)
    np.testing.assert_array_equal(found.draws, [np.nan] * 10)
    np.testing.assert_equal(numbers(found), (3.0 if texts else np.nan, np.nan, np.nan))


def test_the_weights_are_the_same_in_parts_and_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values = values_of(50)
    whole = resample(median, values, "ratio", draws=101, seed=9)
    assert not np.array_equal(next(resamples(50, 101, 9)), next(resamples(50, 101, 10)))
    with monkeypatch.context() as patched:
        patched.setattr(bootstrap, "CELLS", 170)  # three draws at a time, and a rest of two
        patched.setattr(bootstrap, "KEPT", 0)
        np.testing.assert_array_equal(resample(median, values, "ratio", draws=101, seed=9).draws, whole.draws)
    ones = np.ones(50)
    ratios = bootstrap_ratio(values[:, 0], ones, draws=101, seed=9)
    monkeypatch.setattr(bootstrap, "_drawn", None)
    assert bootstrap_ratio(values[:, 0], ones, draws=101, seed=9) == ratios
    assert paired_bootstrap(values[:, 0], ones, 0 * ones, ones, draws=101, seed=9).interval == ratios.interval


def seeds_of(gain: float, seeds: int, start: int = 0) -> list[np.ndarray]:
    """Values of as many seeds: what is hard is hard for all."""
    common = np.random.default_rng(99).normal(size=(80, 1))
    return [common + gain + 0.3 * np.random.default_rng(start + seed).normal(size=(80, 1)) for seed in range(seeds)]


def test_a_difference_is_that_of_the_means_over_seeds_text_by_text() -> None:
    a, b = seeds_of(0.08, 3), seeds_of(0.0, 2, start=10)
    means = [pooled([resample(mean, one, "ratio", draws=500, seed=4) for one in runs]) for runs in (a, b)]
    found, back = difference(*means), difference(*means[::-1])
    ones = np.ones(80)
    expected = paired_bootstrap(np.mean(a, axis=0)[:, 0], ones, np.mean(b, axis=0)[:, 0], ones, draws=500, seed=4)
    np.testing.assert_allclose(numbers(found), numbers(expected), rtol=1e-9)
    value, low, high, p = numbers(found)
    assert 0 < p < 0.5
    np.testing.assert_allclose(numbers(back), [-value, -high, -low, p])
    assert numbers(difference(means[0], means[0])) == (0.0, 0.0, 0.0, 1.0)


def test_pooling_takes_the_mean_of_each_resample_over_the_seeds() -> None:
    seeds = seeds_of(0.2, 3)
    found = pooled([resample(median, one, "ratio", draws=300) for one in seeds])
    medians = [float(np.median(one)) for one in seeds]
    expected = [np.mean([np.median(one[picks]) for one in seeds]) for picks in resampled_texts(80, 300)]
    assert found.value == pytest.approx(np.mean(medians))
    assert found.sd == pytest.approx(np.std(medians, ddof=1))
    np.testing.assert_allclose(ends(found), np.quantile(expected, [0.025, 0.975]))
    alone = resample(median, seeds[0], "ratio", draws=300)
    np.testing.assert_equal(numbers(pooled([alone])), (*numbers(alone), np.nan))


def test_a_number_is_tested_against_numbers_of_its_kind() -> None:
    """A prediction of one further draw: exact for normal draws, and for those that share a part."""
    others, rng, texts = 5, np.random.default_rng(5), np.zeros((4, 1))
    found = []
    for _ in range(500):
        own = rng.normal(rng.normal(), 1, others + 1)
        estimates = [resample(mean, texts + value, "ratio", draws=999) for value in own]
        average, apart = against_random_draws(estimates[0], estimates[1:])
        # Student's test of one number against several; all texts are alike, so their p is the least that there is.
        expected = max(ttest_ind(own[:1], own[1:]).pvalue, 0.002)
        assert (average.value, average.sd) == pytest.approx((own[1:].mean(), own[1:].std(ddof=1)))
        assert (apart.value, apart.p) == pytest.approx((own[0] - own[1:].mean(), expected))
        found.append(apart.p)
    assert 0.03 <= np.mean(np.array(found) <= 0.05) <= 0.07


def texts_right(*right: int, draws: int = 1000) -> list[Estimate]:
    """Accuracies on 200 texts, of which the first are right."""
    return [resample(proportion, (np.arange(200) < one)[:, None], "fraction", draws=draws) for one in right]


@pytest.mark.parametrize("sets", [5, 50])
def test_a_few_texts_are_no_finding_though_random_sets_are_alike(sets: int) -> None:
    """Two or three texts of 200 decide: Student's test alone gives .011, and .000 of 50 sets."""
    one, *others = texts_right(158, *[160] * (sets - 1), 161)
    found = against_random_draws(one, others)[1]
    assert found.interval[1] >= -1e-12
    assert 0.05 < (found.p or 0) < 0.2
    one, *others = texts_right(100, *[160] * (sets - 1), 161)
    assert against_random_draws(one, others)[1].p == pytest.approx(2 / 1001)


def test_no_small_p_stands_beside_an_interval_that_contains_zero() -> None:
    found = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        right = rng.random((6, 200)) > np.array([[0.05], *[[0.02]] * 5])
        one, *others = (resample(proportion, own[:, None], "fraction", draws=499) for own in right)
        apart = against_random_draws(one, others)[1]
        small = (apart.p or 0) <= 0.05
        assert not small or not apart.interval[0] <= 0 <= apart.interval[1], seed
        found += small
    assert found > 10


@pytest.mark.parametrize("heads", [1, 6])
def test_the_best_of_several_sums_is_tested_as_it_was_chosen(heads: int) -> None:
    rng = np.random.default_rng(heads)
    nulls = [max_sign_flip_p(rng.integers(-2, 3, (40, heads)), draws=99, seed=seed) for seed in range(1000)]
    assert 0.03 <= np.mean(np.array(nulls) <= 0.05) <= 0.07
    signs = np.array(list(itertools.product((1, -1), repeat=10)))
    counts = rng.integers(-1, 4, (10, heads))
    exact = np.mean((signs @ counts).max(axis=1) >= counts.sum(axis=0).max())
    assert max_sign_flip_p(counts, draws=20_000) == pytest.approx(exact, abs=0.01)
    assert np.isnan(max_sign_flip_p(np.zeros((0, heads))))
