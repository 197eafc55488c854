import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binomtest, ttest_ind

from attention_probing.metrics import bootstrap, draws
from attention_probing.metrics.bootstrap import bootstrap_ratio, resample
from attention_probing.metrics.classification import accuracy_drop, f1_drop, f1_score
from attention_probing.metrics.differences import against_random_draws, paired_bootstrap, with_interval_and_p
from attention_probing.metrics.draws import resamples
from attention_probing.metrics.p_values import least_p
from attention_probing.metrics.statistics import Statistic, mean, median, pearson, proportion, spearman
from attention_probing.results import Estimate
from tests.metrics.subsets import counted_p, ends, jackknife, level_tail, numbers, p_of, sorted_ends, subsets, width

NAN = float("nan")


def two_runs(units: int, gain: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right words of two runs and all words of each unit; hard units are hard for both."""
    rng = np.random.default_rng(seed)
    totals = rng.integers(1, 30, size=units)
    ease = rng.beta(3, 2, size=units)
    b = rng.binomial(totals, ease)
    a = rng.binomial(totals, np.clip(ease + gain, 0, 1))
    return a.astype(np.float64), b.astype(np.float64), totals.astype(np.float64)


# Draws


@pytest.mark.parametrize("units", [1, 2, 5, 12])
@pytest.mark.parametrize("draws", [1, 1000])
def test_all_subsets_of_few_units_are_enumerated_whatever_the_number_of_draws(units: int, draws: int) -> None:
    found = [tuple(row) for weights in resamples(units, draws) for row in weights.tolist()]
    assert sorted(found) == sorted(itertools.product((0.0, 1.0), repeat=units))[1:]  # without the empty one


@pytest.mark.parametrize("units", [13, 50])
def test_each_of_many_units_is_in_half_of_the_subsets_and_independent_of_the_others(units: int) -> None:
    draws = 4000
    weights = np.concatenate(list(resamples(units, draws, 3)))
    assert weights.shape == (draws, units)
    assert set(np.unique(weights)) == {0, 1}
    together = weights.T @ weights / draws
    expected = np.full((units, units), 0.25) + np.eye(units) / 4
    np.testing.assert_allclose(together, expected, atol=4.5 * 0.5 / math.sqrt(draws))
    assert not np.array_equal(next(resamples(units, draws, 3)), next(resamples(units, draws, 4)))


def test_the_weights_are_the_same_in_parts_and_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values = values_of(50)
    whole = resample(median, values, "ratio", draws=101, seed=9)
    with monkeypatch.context() as patched:
        patched.setattr(draws, "CELLS", 50 * 4)  # four draws at a time, and a rest of one
        patched.setattr(draws, "MOST_KEPT", 0)
        parts = [len(weights) for weights in resamples(50, 101, 9)]
        assert parts == [4] * 25 + [1]
        np.testing.assert_array_equal(resample(median, values, "ratio", draws=101, seed=9).draws, whole.draws)
    ones = np.ones(50)
    ratios = bootstrap_ratio(values[:, 0], ones, share=False, compared=True, draws=101, seed=9)
    monkeypatch.setattr(draws, "_draw_subsets", None)
    again = bootstrap_ratio(values[:, 0], ones, share=False, compared=True, draws=101, seed=9)
    assert again == ratios
    paired = paired_bootstrap(values[:, 0], ones, 0 * ones, ones, draws=101, seed=9)
    assert paired.interval == pytest.approx(ratios.interval)


# Intervals of numbers


@pytest.mark.parametrize("units", [6, 7, 10, 40])
@pytest.mark.parametrize("comparing", [True, False])
def test_the_interval_leaves_a_tail_of_the_sorted_ratios_beyond_each_end(units: int, comparing: bool) -> None:
    a, b, totals = two_runs(units, 0.02)
    right, of = np.stack([a, b], axis=1)[:, None], np.stack([totals, totals + 1], axis=1)[:, None]
    found = bootstrap_ratio(right, of, share=False, compared=comparing, draws=500, seed=7)
    tail = 0.025 if comparing else level_tail(units)
    for column in range(2):
        ratios = [right[picks, 0, column].sum() / of[picks, 0, column].sum() for picks in subsets(units, 500, 7)]
        low, high = (end[0, column] for end in found.interval)
        assert (low, high) == pytest.approx(sorted_ends(ratios, tail), rel=1e-12, nan_ok=True)
        # Six units have 63 subsets: one beyond each end of a difference, and none of a wider interval.
        assert math.isnan(low) == (units == 6 and not comparing)


def test_the_interval_of_a_number_is_wider_than_that_of_a_difference_but_hardly_for_many_units() -> None:
    widths = {}
    for units in (10, 2000):
        right, _, totals = two_runs(units, 0.0, seed=1)
        for comparing in (True, False):
            found = bootstrap_ratio(right, totals, share=False, compared=comparing, draws=4000)
            widths[units, comparing] = width(found)
    assert widths[10, False] > 1.05 * widths[10, True]
    assert widths[2000, False] == pytest.approx(widths[2000, True], rel=0.03)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(
    ("right", "totals"),
    [([3.0], [5.0]), ([], []), ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]), ([0.0, 2.0, 0.0], [0.0, 4.0, 0.0])],
    ids=["one unit", "no unit", "nothing to score", "one unit with something to score"],
)
def test_no_interval_where_resampling_says_nothing(right: list[float], totals: list[float], share: bool) -> None:
    found = bootstrap_ratio(right, totals, share=share)
    assert np.isnan(found.interval).all()


@pytest.mark.parametrize("known", [2, 6, 8])
def test_undefined_draws_are_beyond_both_ends_and_on_neither_side(known: int) -> None:
    """A fourth of the subsets of forty units has neither of two with words; then no interval is left."""
    right, totals = np.zeros(40), np.zeros(40)
    totals[:known] = 1.0
    right[:known] = np.arange(1, known + 1)
    found = bootstrap_ratio(right, totals, share=False, compared=True, draws=2000)
    ratios = []
    for picks in subsets(40, 2000):
        ratios.append(right[picks].sum() / totals[picks].sum() if totals[picks].any() else NAN)
    assert np.isnan(ratios).sum() > 0
    assert found.interval == pytest.approx(sorted_ends(ratios), nan_ok=True)
    assert math.isnan(found.interval[0]) == (known == 2)
    assert found.p == pytest.approx(counted_p(ratios))
    assert found.p is not None
    assert found.p >= 2 * np.isnan(ratios).mean()


def test_numbers_that_are_all_alike_have_no_interval() -> None:
    assert np.isnan(resample(mean, np.full((30, 1), 0.3), "ratio").interval).all()
    assert np.isnan(bootstrap_ratio(np.full(30, 0.6), np.full(30, 2.0), share=False).interval).all()
    apart = bootstrap_ratio(np.full(30, 0.6), np.full(30, 2.0), share=False, compared=True, draws=999)
    assert np.isnan(apart.interval).all()
    assert apart.p == pytest.approx(2 / 1000)


def exact(found: int, items: int) -> tuple[float, float]:
    """The interval of Clopper & Pearson, from another library function."""
    ends = binomtest(found, items).proportion_ci()
    return pytest.approx((ends.low, ends.high), abs=1e-9)  # type: ignore[return-value]


def test_a_share_of_few_items_has_an_exact_interval() -> None:
    for items in (2, 19, 20, 60):
        for found in range(items + 1):
            hits, ones = (np.arange(items) < found).astype(float), np.ones(items)
            of_ratio = bootstrap_ratio(hits, ones, share=True)
            of_decisions = resample(proportion, hits[:, None], "fraction")
            few = items < 20 or min(found, items - found) < 5
            assert (of_ratio.interval == exact(found, items)) == few, (found, items)
            assert (of_decisions.interval == exact(found, items)) == few
            assert of_ratio.inputs == of_decisions.inputs == items
            if not few:  # nothing changes there
                assert of_ratio.interval == bootstrap_ratio(hits, ones, share=False).interval
                assert of_decisions.interval == resample(mean, hits[:, None], "fraction").interval


def test_items_that_are_alike_within_a_unit_count_as_fewer() -> None:
    assert bootstrap_ratio([3, 3, 0, 0], [3, 3, 3, 3], share=True).interval == exact(2, 4)
    # Nothing is known about likeness.
    assert bootstrap_ratio([3, 3, 3, 3], [3, 3, 3, 3], share=True).interval == exact(12, 12)
    decisions, documents = np.repeat([1.0, 1.0, 0.0, 0.0], 3)[:, None], np.repeat([7, 5, 9, 2], 3)
    assert resample(proportion, decisions, "fraction", units=documents).interval == exact(2, 4)


def test_only_declared_shares_have_exact_intervals() -> None:
    """Not whole numbers that only look like counts, and not macro F1, which is a mean of shares."""
    right, of = (np.arange(15) < 12).astype(float), np.ones(15)
    ratios = [right[picks].mean() for picks in subsets(15, 800, 2)]
    found = bootstrap_ratio(right, of, share=False, draws=800, seed=2)
    assert found.interval == pytest.approx(sorted_ends(ratios, level_tail(15)))
    assert found.interval != exact(12, 15)
    columns = np.column_stack([np.arange(10) % 2, np.arange(10) % 3 > 0]).astype(float)
    macro = resample(f1_score(None, 2), columns, "fraction", draws=1)
    slow = []
    for picks in subsets(10, 1):
        gold, predicted = columns[picks].T
        labels = sorted({*gold.tolist(), *predicted.tolist()})
        slow.append(counted_f1(gold, predicted, labels))
    assert macro.interval == pytest.approx(sorted_ends(slow, level_tail(10)))


def test_inputs_are_items_or_units_with_a_weight() -> None:
    right, of = np.array([[1.0, 2.0], [0.0, 0.5], [3.0, 1.0]]), np.array([[4.0, 2.0], [0.0, 3.0], [5.0, 1.0]])
    assert bootstrap_ratio(right, of, share=True).inputs.tolist() == [9, 6]
    assert bootstrap_ratio(right, of, share=False, of_units=True).inputs.tolist() == [2, 3]
    documents = [0, 0, 1]
    assert resample(proportion, right[:, :1] > 0, "fraction", units=documents).inputs == 3
    assert resample(proportion, right[:, :1] > 0, "fraction", units=documents).units == 2


# Differences


def sign_flips(differences: Sequence[float]) -> float:
    """The share of all signs with which the sum of the differences is as far from zero as it is."""
    observed = abs(sum(differences))
    signs = list(itertools.product((1, -1), repeat=len(differences)))
    as_far = [abs(sum(s * d for s, d in zip(sign, differences, strict=True))) >= observed for sign in signs]
    return sum(as_far) / len(signs)


@pytest.mark.parametrize("units", range(2, 11))
def test_p_is_that_of_all_sign_flips(units: int) -> None:
    rng = np.random.default_rng(units)
    seen = set()
    for _ in range(12):
        moved = rng.integers(-2, 5, units).astype(float)  # with ties and zeros
        totals = np.full(units, 6.0)
        expected = sign_flips(moved.tolist())
        found = bootstrap_ratio(moved, totals, share=False, compared=True, draws=3)
        again = paired_bootstrap(np.maximum(moved, 0), totals, np.maximum(-moved, 0), totals, draws=3)
        assert found.p == again.p == expected
        seen.add(expected)
    assert len(seen) > 1


@pytest.mark.parametrize("units", range(2, 13))
def test_the_least_p_of_few_units_is_two_of_all_signs(units: int) -> None:
    found = paired_bootstrap(np.arange(2, units + 2), np.ones(units), np.zeros(units), np.ones(units))
    assert found.p == 2 / 2**units
    assert np.isnan(found.interval).all() == (units < 6)
    assert least_p(units, 10_000) == 0


def test_p_of_more_units_is_nearly_that_of_all_sign_flips() -> None:
    moved = np.array([3.0, -1, 2, 2, -2, 0, 1, 3, -1, 2, -2, 1, 1, -1])
    expected = sign_flips(moved.tolist())
    assert 0.05 < expected < 0.5
    found = paired_bootstrap(moved, np.ones(14), np.zeros(14), np.ones(14), draws=40_000)
    assert found.p == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("units", [6, 8, 12, 13, 30])
def test_the_interval_contains_zero_exactly_if_p_is_above_one_in_twenty(units: int) -> None:
    rng = np.random.default_rng(units)
    shift = rng.normal(0, 1.5 / math.sqrt(units), 300)
    moved = rng.normal(size=(units, 300)) + shift
    found = bootstrap_ratio(moved, np.ones_like(moved), share=False, compared=True, draws=999)
    small = np.asarray(found.p) <= 0.05
    low, high = found.interval
    contains = (low <= 0) & (high >= 0)
    np.testing.assert_array_equal(small, ~contains)
    assert 20 < small.sum() < 280


def test_the_interval_of_few_decisions_contains_zero_exactly_if_p_is_above_one_in_twenty() -> None:
    seen = set()
    for units in range(6, 13):
        for gains in range(units + 1):
            for losses in range(units - gains + 1):
                a = (np.arange(units) < gains).astype(float)
                b = (np.arange(units) >= units - losses).astype(float)
                found = paired_bootstrap(a, np.ones(units), b, np.ones(units), share=True)
                assert found.p is not None
                small = found.p <= 0.05
                low, high = found.interval
                assert (low <= 0 <= high) != small, (units, gains, losses)
                seen.add(small)
    assert seen == {True, False}


def donner_zou(gains: int, losses: int, items: int) -> tuple[float, float]:
    """The interval of a difference of two shares of the same items, from the exact ones of gains and losses."""
    gain, loss = gains / items, losses / items
    of_gain, of_loss = (binomtest(number, items).proportion_ci() for number in (gains, losses))
    low = gain - loss - math.sqrt((gain - of_gain.low) ** 2 + (of_loss.high - loss) ** 2)
    high = gain - loss + math.sqrt((of_gain.high - gain) ** 2 + (loss - of_loss.low) ** 2)
    return low, high


@pytest.mark.parametrize(
    ("items", "gains", "losses", "few"),
    [(60, 0, 0, True), (60, 4, 9, True), (60, 9, 4, True), (60, 5, 5, False), (18, 7, 6, True), (200, 1, 0, True)],
)
def test_the_interval_of_few_differing_decisions_is_at_least_that_of_their_counts(
    items: int, gains: int, losses: int, few: bool
) -> None:
    a = (np.arange(items) < gains).astype(float)
    b = (np.arange(items) >= items - losses).astype(float)
    ones = np.ones(items)
    moved = [(a - b)[picks].mean() for picks in subsets(items, 1000)]
    own = sorted_ends(moved)
    expected = own
    if few:
        counted = donner_zou(gains, losses, items)
        expected = np.fmin(own[0], counted[0]), np.fmax(own[1], counted[1])
    for found in (
        bootstrap_ratio(a - b, ones, share=True, compared=True, draws=1000),
        paired_bootstrap(a, ones, b, ones, share=True, draws=1000),
    ):
        assert found.interval == pytest.approx(expected, rel=1e-9)
        assert found.p == pytest.approx(counted_p(moved))
    undeclared = bootstrap_ratio(a - b, ones, share=False, compared=True, draws=1000)
    assert undeclared.interval == pytest.approx(own, nan_ok=True)
    if few:  # what a change loses is such a difference
        classes = np.column_stack([np.ones(items), a, 1 - b, b])
        lost = resample(accuracy_drop, classes, "fraction", draws=1000)
        wider = sorted_ends(moved, level_tail(items))
        expected = np.fmin(wider[0], counted[0]), np.fmax(wider[1], counted[1])
        assert lost.interval == pytest.approx(expected, rel=1e-9)


def test_the_paired_bootstrap_is_a_loop_over_shared_subsets() -> None:
    a, b, totals = two_runs(30, 0.03)
    found = paired_bootstrap(a, totals, b, totals + 1, draws=400, seed=5)
    differences = []
    for picks in subsets(30, 400, seed=5):
        differences.append(a[picks].sum() / totals[picks].sum() - b[picks].sum() / (totals[picks] + 1).sum())
    assert found.value == pytest.approx(a.sum() / totals.sum() - b.sum() / (totals + 1).sum())
    assert found.interval == pytest.approx(sorted_ends(differences), rel=1e-9)
    assert found.p == pytest.approx(counted_p(differences))
    value, low, high, p = numbers(found)
    assert 0.01 < p < 0.9
    back = numbers(paired_bootstrap(b, totals + 1, a, totals, draws=400, seed=5))
    assert back == pytest.approx((-value, -high, -low, p))


def test_no_test_where_there_is_nothing_to_compare() -> None:
    for columns in ([np.zeros(2)] * 2 + [np.array([4.0, 5.0])] * 2, [np.zeros(0)] * 4):
        assert np.isnan(numbers(paired_bootstrap(*columns))).all()
    value, *others = numbers(paired_bootstrap([1.0], [2.0], [2.0], [2.0]))
    assert value == -0.5
    assert np.isnan(others).all()


@pytest.mark.parametrize(
    ("test", "columns"),
    [
        (lambda *columns: bootstrap_ratio(*columns, share=True), [[1.0, NAN], [1.0, 1.0]]),
        (paired_bootstrap, [[1.0, NAN], *[[1.0, 1.0]] * 3]),
        (paired_bootstrap, [*[[1.0, 1.0]] * 3, [1.0, math.inf]]),
    ],
)
def test_bad_counts_are_refused(test: Callable[..., object], columns: list[object]) -> None:
    with pytest.raises(ValueError, match="give 0 for both in units"):
        test(*columns)


def test_the_largest_of_several_differences_is_tested_together_with_all() -> None:
    moved = np.random.default_rng(1).normal(0.35, 1, (60, 1))
    apart = resample(mean, moved, "ratio", draws=2000)
    draws = apart.draws.tolist()
    for tests in (1, 4, 30):
        found = with_interval_and_p(apart, tests)
        assert found.interval == pytest.approx(sorted_ends(draws, 0.025 / tests))
        assert found.p == pytest.approx(min(1.0, tests * counted_p(draws)))
    assert with_interval_and_p(apart, 100).p == 1.0 or np.isnan(with_interval_and_p(apart, 100).interval).all()
    one, many = with_interval_and_p(apart, 1), with_interval_and_p(apart, 30)
    lows, highs = zip(one.interval, many.interval, strict=True)
    assert lows[1] < 0 < lows[0] < highs[0] < highs[1]
    assert p_of(one) < 0.05 < p_of(many)


# Documents


def in_documents(documents: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The document of each sentence, in no order, and numbers that are alike in a document, `[sentences, 4]`."""
    rng = np.random.default_rng(seed)
    of = rng.permutation(np.repeat(np.arange(documents), rng.integers(1, 9, documents)))
    totals = rng.integers(1, 20, (len(of), 1))
    right = rng.binomial(totals, rng.beta(1, 1, documents)[of][:, None], (len(of), 2))
    return of * 3 + 5, np.hstack([right, totals, totals]).astype(np.float64)


@pytest.mark.parametrize("documents", [8, 40])
def test_sentences_of_a_document_are_resampled_together(documents: int) -> None:
    of, counts = in_documents(documents)
    sums = np.array([counts[of == one].sum(axis=0) for one in sorted(set(of.tolist()))])
    options = {"draws": 300, "seed": 4}
    found = paired_bootstrap(counts[:, 0], counts[:, 2], counts[:, 1], counts[:, 3], units=of, **options)  # type: ignore[arg-type]
    expected = paired_bootstrap(sums[:, 0], sums[:, 2], sums[:, 1], sums[:, 3], **options)  # type: ignore[arg-type]
    assert numbers(found) == pytest.approx(numbers(expected))
    np.testing.assert_allclose(found.draws, expected.draws)
    assert found.units == documents
    alone = paired_bootstrap(counts[:, 0], counts[:, 2], counts[:, 1], counts[:, 3], **options)  # type: ignore[arg-type]
    assert alone.interval != pytest.approx(found.interval)
    own = resample(proportion, (counts[:, :1] > 3), "fraction", units=of, draws=300)
    decided = np.array([[(counts[of == one, 0] > 3).sum(), (of == one).sum()] for one in sorted(set(of.tolist()))])
    assert own.interval == bootstrap_ratio(*decided.T, share=True, draws=300).interval


@pytest.mark.parametrize(("statistic", "slow"), [(mean, np.mean), (median, np.median)])
def test_a_statistic_of_documents_is_that_of_all_their_rows(
    statistic: Statistic, slow: Callable[[np.ndarray], float]
) -> None:
    of, counts = in_documents(15)
    values = counts[:, :1].copy()
    values[::7] = NAN
    found = resample(lambda rows, weights: statistic(rows, weights), values, "ratio", units=of, draws=200, seed=3)
    names = sorted(set(of.tolist()))
    expected = []
    for picks in subsets(15, 200, seed=3):
        rows = np.concatenate([values[of == names[pick], 0] for pick in picks])
        expected.append(slow(rows[~np.isnan(rows)]))
    np.testing.assert_allclose(found.draws, expected)
    assert found.interval == pytest.approx(sorted_ends(expected, level_tail(15)))
    assert found.units == 15


# Statistics


def values_of(texts: int, columns: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).gamma(2.0, size=(texts, columns)).round(1)  # rounded, so that some are equal


@pytest.mark.parametrize(("texts", "known"), [(20, 20), (21, 21), (30, 28), (8, 8), (14, 2)])
@pytest.mark.parametrize(("statistic", "slow"), [(mean, np.mean), (median, np.median)])
def test_a_statistic_of_weights_is_that_of_the_resampled_list(
    texts: int, known: int, statistic: Statistic, slow: Callable[[np.ndarray], float]
) -> None:
    """Texts without a value keep their place in the resamples; a resample of them alone has none."""
    values = values_of(texts, columns=2)
    values[known:, 1] = np.nan
    found = resample(lambda rows, weights: statistic(rows[:, :1], weights), values, "ratio", draws=200, seed=3)
    resampled = [values[[text for text in picks if text < known], 0] for picks in subsets(texts, 200, seed=3)]
    expected = np.array([slow(drawn) if drawn.size else np.nan for drawn in resampled])
    assert np.isnan(expected).any() == (known == 2)
    np.testing.assert_allclose(found.draws, expected, rtol=1e-12)
    assert found.value == pytest.approx(slow(values[:known, 0]))
    assert ends(found) == pytest.approx(sorted_ends(expected.tolist(), level_tail(known)), nan_ok=True)
    assert np.isnan(ends(found)).all() == (known == 2)


def decisions(texts: int, classes: int, draws: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gold and own classes `[texts]`, and those of some perturbations `[draws, texts]`."""
    rng = np.random.default_rng(0)
    gold = rng.integers(classes, size=texts)
    own = np.where(rng.random(texts) < 0.8, gold, rng.integers(classes, size=texts))
    other = np.where(rng.random((draws, texts)) < 0.5, own, rng.integers(classes, size=(draws, texts)))
    return gold, own, other


def counted_f1(gold: np.ndarray, predicted: np.ndarray, labels: Sequence[float]) -> float:
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
    for draw, picks in enumerate(subsets(60, 50)):
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
    np.testing.assert_array_equal(found.draws, [np.nan] * (2**texts - 1))  # as many as if all had a value
    np.testing.assert_equal(numbers(found), (3.0 if texts else np.nan, np.nan, np.nan))


# Correlations


@pytest.mark.parametrize("blocks", [500, 7])
@pytest.mark.parametrize("of_documents", [False, True])
@pytest.mark.parametrize(("statistic", "slow"), [(pearson, stats.pearsonr), (spearman, stats.spearmanr)])
def test_a_correlation_has_the_interval_of_a_jackknife_on_fishers_scale(
    statistic: Statistic,
    slow: Callable[..., stats._stats_py.PearsonRResult],
    of_documents: bool,
    blocks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bootstrap, "BLOCKS", blocks)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 2))
    values[:, 1] += values[:, 0]
    values = values.round(1)
    documents = rng.permutation(40) % 12 if of_documents else np.arange(40)
    values[11] = NAN
    found = resample(statistic, values, "ratio", units=documents, draws=100)
    sound = [row for row in range(40) if row != 11]
    units = sorted({int(documents[row]) for row in sound})
    parts: list[list[int]] = [[] for _ in range(min(blocks, len(units)))]
    for row in sound:
        parts[units.index(int(documents[row])) % len(parts)].append(row)

    def correlation(rows: list[int]) -> float:
        return float(slow(*values[rows].T).statistic)

    assert found.value == pytest.approx(correlation(sound))
    assert found.interval == pytest.approx(jackknife(correlation, parts))
    assert found.interval[0] < found.value < found.interval[1] < 1


@pytest.mark.parametrize("statistic", [pearson, spearman])
def test_a_perfect_correlation_and_one_of_two_units_have_no_interval(statistic: Statistic) -> None:
    line = np.column_stack([np.arange(9), -np.arange(9)])
    assert resample(statistic, line, "ratio").value == pytest.approx(-1)
    assert np.isnan(resample(statistic, line, "ratio").interval).all()
    noisy = np.random.default_rng(0).normal(size=(9, 2))
    assert np.isfinite(resample(statistic, noisy, "ratio").interval).all()
    assert np.isnan(resample(statistic, noisy, "ratio", units=np.arange(9) % 2).interval).all()


# Random numbers


def test_a_number_is_tested_against_numbers_of_its_kind() -> None:
    """A prediction of one further draw: exact for normal draws, and for those that share a part."""
    others, rng, texts = 5, np.random.default_rng(5), np.zeros((20, 1))
    found = []
    for _ in range(500):
        own = rng.normal(rng.normal(), 1, others + 1)
        estimates = [resample(mean, texts + value, "ratio", draws=999) for value in own]
        average, apart = against_random_draws(estimates[0], estimates[1:])
        # Student's test of one number against several, up to the next of 1,000 draws; all texts are alike.
        expected = ttest_ind(own[:1], own[1:]).pvalue
        assert apart.p is not None
        assert expected - 1e-9 <= apart.p <= expected + 0.002 + 1e-9
        assert (average.value, average.sd) == pytest.approx((own[1:].mean(), own[1:].std(ddof=1)))
        assert apart.value == pytest.approx(own[0] - own[1:].mean())
        found.append(apart.p)
    assert 0.03 <= np.mean(np.array(found) <= 0.05) <= 0.07


def texts_right(*right: int, draws: int = 1000) -> list[Estimate]:
    """Accuracies on 200 texts, of which the first are right."""
    return [resample(proportion, (np.arange(200) < one)[:, None], "fraction", draws=draws) for one in right]


@pytest.mark.parametrize("sets", [5, 50])
def test_a_few_texts_are_no_finding_though_random_sets_are_alike(sets: int) -> None:
    """Three texts of 200 decide: Student's test alone gives .011, and .000 of 50 sets."""
    one, *others = texts_right(158, *[160] * (sets - 1), 161)
    found = against_random_draws(one, others)[1]
    assert found.interval[1] >= -1e-12
    assert found.p == pytest.approx(2 / 8, abs=0.03)  # an eighth of the subsets has none of the three texts
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
