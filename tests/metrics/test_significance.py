import itertools

import numpy as np
import pytest
from scipy import stats

from metrics import significance
from metrics.significance import bootstrap_ratio, holm, paired_bootstrap, paired_permutation


def counts(units: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    totals = rng.integers(1, 30, size=(units, columns))
    # Units differ in difficulty, so that resampling words instead of units would show.
    right = rng.binomial(totals, rng.beta(2, 2, size=(units, 1)))
    return right.astype(np.float64), totals.astype(np.float64)


def test_it_is_the_percentile_interval_of_resampled_ratios() -> None:
    right, totals = counts(40, 3)
    low, high = bootstrap_ratio(right, totals, draws=500, level=0.9, seed=7)
    rng = np.random.default_rng(7)
    resamples = [rng.integers(40, size=40) for _ in range(500)]
    for column in range(3):
        ratios = [right[picks, column].sum() / totals[picks, column].sum() for picks in resamples]
        expected = np.quantile(ratios, [0.05, 0.95])
        np.testing.assert_allclose([low[column], high[column]], expected, rtol=1e-12)


def test_it_agrees_with_scipy() -> None:
    right, totals = counts(200, 1)
    low, high = bootstrap_ratio(right[:, 0], totals[:, 0], draws=20_000)
    expected = stats.bootstrap(
        (right[:, 0], totals[:, 0]),
        lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis),
        n_resamples=20_000,
        paired=True,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(1),
        batch=1000,
    )
    width = float(high - low)
    assert low == pytest.approx(expected.confidence_interval.low, abs=0.03 * width)
    assert high == pytest.approx(expected.confidence_interval.high, abs=0.03 * width)
    # The ratio's own standard error, by the delta method: 3.92 of them across the interval.
    residual = right[:, 0] - totals[:, 0] * right.sum() / totals.sum()
    assert width == pytest.approx(3.92 * residual.std() * np.sqrt(200) / totals.sum(), rel=0.05)


def test_columns_share_the_resamples_of_a_single_ratio() -> None:
    right, totals = counts(50, 6)
    low, high = bootstrap_ratio(right.reshape(50, 2, 3), totals.reshape(50, 2, 3), seed=3)
    assert low.shape == high.shape == (2, 3)
    alone = bootstrap_ratio(right[:, 4], totals[:, 4], seed=3)
    assert [low[1, 1], high[1, 1]] == [float(end) for end in alone]


def test_a_seed_gives_one_interval() -> None:
    right, totals = counts(50, 2)
    first, again, other = (bootstrap_ratio(right, totals, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_draws_in_small_chunks_cover_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    right, totals = counts(100, 1)
    at_once = np.array(bootstrap_ratio(right, totals, draws=5000))
    monkeypatch.setattr(significance, "CELLS", 330)  # three draws at a time, and a rest of two
    np.testing.assert_allclose(bootstrap_ratio(right, totals, draws=5000), at_once, atol=0.005)


@pytest.mark.parametrize(
    ("right", "totals"),
    [
        ([3.0], [5.0]),
        ([], []),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        ([0.0, 2.0, 0.0], [0.0, 4.0, 0.0]),
    ],
    ids=["one unit", "no unit", "nothing to score", "one unit with something to score"],
)
def test_no_interval_where_resampling_says_nothing(right: list[float], totals: list[float]) -> None:
    low, high = bootstrap_ratio(right, totals)
    assert np.isnan(low)
    assert np.isnan(high)


def test_resamples_without_a_denominator_are_left_out() -> None:
    # Two of forty units have words: 13 % of the resamples have neither, and only the rest have a ratio.
    right, totals = np.zeros(40), np.zeros(40)
    totals[:2], right[0] = 1.0, 1.0
    low, high = bootstrap_ratio(right, totals)
    assert [float(low), float(high)] == [0.0, 1.0]
    # A single resample may have none at all.
    seeds = [np.isnan(bootstrap_ratio(right, totals, draws=1, seed=seed)[0]) for seed in range(30)]
    assert any(seeds)
    assert not all(seeds)


def test_bad_counts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3,\) and denominator \(2,\)"):
        bootstrap_ratio(np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match="as zeros"):
        bootstrap_ratio([1.0, float("nan")], [1.0, 1.0])


def two_runs(units: int, gain: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right words of two runs and all words of each unit; hard units are hard for both."""
    rng = np.random.default_rng(seed)
    totals = rng.integers(1, 30, size=units)
    ease = rng.beta(3, 2, size=units)
    b = rng.binomial(totals, ease)
    a = rng.binomial(totals, np.clip(ease + gain, 0, 1))
    return a.astype(np.float64), b.astype(np.float64), totals.astype(np.float64)


def test_the_paired_bootstrap_is_a_loop_over_shared_resamples() -> None:
    a, b, totals = two_runs(30, 0.03)
    found = paired_bootstrap(a, totals, b, totals + 1, draws=400, level=0.9, seed=5)
    rng = np.random.default_rng(5)
    differences = []
    for _ in range(400):
        picks = rng.integers(30, size=30)
        differences.append(a[picks].sum() / totals[picks].sum() - b[picks].sum() / (totals[picks] + 1).sum())
    assert found.difference == pytest.approx(a.sum() / totals.sum() - b.sum() / (totals + 1).sum())
    assert [found.low, found.high] == pytest.approx(np.quantile(differences, [0.05, 0.95]), rel=1e-9)
    below, above = sum(d <= 0 for d in differences), sum(d >= 0 for d in differences)
    assert 0 < below < above
    assert found.p == pytest.approx(2 * (1 + below) / 401)


def test_the_paired_interval_agrees_with_scipy_and_is_narrower_than_an_unpaired_one() -> None:
    a, b, totals = two_runs(300, 0.02)
    found = paired_bootstrap(a, totals, b, totals)
    expected = stats.bootstrap(
        (a, b, totals),
        lambda a, b, totals, axis: (a.sum(axis=axis) - b.sum(axis=axis)) / totals.sum(axis=axis),
        n_resamples=10_000,
        paired=True,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(1),
        batch=1000,
    ).confidence_interval
    width = found.high - found.low
    assert [found.low, found.high] == pytest.approx([expected.low, expected.high], abs=0.04 * width)
    alone = bootstrap_ratio(np.stack([a, b], axis=1), np.stack([totals, totals], axis=1))
    assert width < 0.8 * np.hypot(*(alone[1] - alone[0]))


def test_the_permutation_test_equals_all_swaps() -> None:
    a, b, totals = two_runs(10, 0.1, seed=4)
    observed = abs((a - b).sum() / totals.sum())
    swaps = np.array(list(itertools.product([1, -1], repeat=10)))
    exact = np.mean(np.abs(swaps @ (a - b) / totals.sum()) >= observed - 1e-12)
    assert 0.02 < exact < 0.9
    assert paired_permutation(a, totals, b, totals, draws=40_000) == pytest.approx(exact, abs=0.01)
    expected = stats.permutation_test(
        (a, b), lambda a, b: abs((a - b).sum()), permutation_type="samples", alternative="greater", n_resamples=2000
    )
    assert exact == pytest.approx(expected.pvalue)


def test_swaps_take_the_denominators_along() -> None:
    a, b = np.array([3.0, 0.0, 5.0]), np.array([1.0, 2.0, 2.0])
    a_totals, b_totals = np.array([4.0, 3.0, 5.0]), np.array([2.0, 6.0, 9.0])
    observed = abs(a.sum() / a_totals.sum() - b.sum() / b_totals.sum())
    as_large = 0
    for swap in itertools.product([False, True], repeat=3):
        first = [(b[u], b_totals[u]) if s else (a[u], a_totals[u]) for u, s in enumerate(swap)]
        second = [(a[u], a_totals[u]) if s else (b[u], b_totals[u]) for u, s in enumerate(swap)]
        ratios = [sum(n for n, _ in run) / sum(d for _, d in run) for run in (first, second)]
        as_large += abs(ratios[0] - ratios[1]) >= observed - 1e-12
    assert 2 < as_large < 8
    assert paired_permutation(a, a_totals, b, b_totals, draws=40_000) == pytest.approx(as_large / 8, abs=0.01)


def test_the_smallest_p_value_counts_the_run_itself() -> None:
    a, b, totals = np.full(60, 9.0), np.full(60, 1.0), np.full(60, 10.0)
    assert paired_permutation(a, totals, b, totals, draws=999) == pytest.approx(1 / 1000)
    found = paired_bootstrap(a, totals, b, totals, draws=999)
    assert found == pytest.approx((0.8, 0.8, 0.8, 2 / 1000))


def test_a_run_does_not_differ_from_itself() -> None:
    a, _, totals = two_runs(40, 0.0)
    thirds = a / 3  # means over three seeds do not add up exactly
    assert paired_permutation(thirds, totals, thirds, totals) == 1.0
    assert paired_bootstrap(thirds, totals, thirds, totals) == (0.0, 0.0, 0.0, 1.0)


def test_the_order_of_the_runs_only_turns_the_sign() -> None:
    a, b, totals = two_runs(60, 0.04)
    there, back = paired_bootstrap(a, totals, b, totals), paired_bootstrap(b, totals, a, totals)
    assert back == pytest.approx((-there.difference, -there.high, -there.low, there.p))
    assert paired_permutation(a, totals, b, totals) == paired_permutation(b, totals, a, totals)


def test_false_alarms_are_as_rare_as_they_say() -> None:
    """Of runs that differ by chance alone, 5 % or so have p ≤ .05; of runs that do differ, most."""
    alarms, found = np.zeros(2), np.zeros(2)
    for seed in range(200):
        for gain, counted in ((0.0, alarms), (0.1, found)):
            a, b, totals = two_runs(80, gain, seed)
            counted += [
                paired_bootstrap(a, totals, b, totals, draws=300).p <= 0.05,
                paired_permutation(a, totals, b, totals, draws=300) <= 0.05,
            ]
    assert (alarms / 200 < 0.09).all()  # .05 and 2.6 standard errors
    assert (alarms / 200 > 0.01).all()
    assert (found / 200 > 0.8).all()


def test_paired_draws_in_small_chunks_cover_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, totals = two_runs(100, 0.02)
    bootstrap, p = paired_bootstrap(a, totals, b, totals), paired_permutation(a, totals, b, totals)
    monkeypatch.setattr(significance, "CELLS", 330)  # three draws at a time, and a rest of one
    assert paired_bootstrap(a, totals, b, totals) == pytest.approx(bootstrap, abs=0.01)
    assert paired_permutation(a, totals, b, totals) == pytest.approx(p, abs=0.02)


def test_no_test_where_there_is_nothing_to_compare() -> None:
    some, nothing = np.array([4.0, 5.0]), np.zeros(2)
    assert np.isnan(paired_bootstrap(nothing, nothing, some, some)).all()
    assert np.isnan(paired_permutation(nothing, nothing, some, some))
    empty = np.zeros(0)
    assert np.isnan(paired_bootstrap(empty, empty, empty, empty)).all()
    assert np.isnan(paired_permutation(empty, empty, empty, empty))
    one = paired_bootstrap([1.0], [2.0], [2.0], [2.0])
    assert one.difference == -0.5
    assert np.isnan(one[1:]).all()


def test_bad_paired_counts_are_refused() -> None:
    for test in (paired_bootstrap, paired_permutation):
        with pytest.raises(ValueError, match=r"\(3,\), \(2,\)"):
            test(np.ones(3), np.ones(3), np.ones(3), np.ones(2))
        with pytest.raises(ValueError, match=r"\[units\]"):
            test(*[np.ones((3, 2))] * 4)
        with pytest.raises(ValueError, match="as zeros"):
            test([1.0, float("nan")], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0])


def test_holm_by_hand() -> None:
    # Sorted: .01·4, .02·3, .03·2 = .06 as the one before it, .4·1.
    assert holm([0.03, 0.01, 0.4, 0.02]) == pytest.approx([0.06, 0.04, 0.4, 0.06])
    assert holm([0.6, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([0.04]) == pytest.approx([0.04])
    assert holm([]).shape == (0,)


def test_holm_leaves_out_what_has_no_p_value() -> None:
    adjusted = holm([float("nan"), 0.01, 0.04])
    assert np.isnan(adjusted[0])
    assert adjusted[1:] == pytest.approx([0.02, 0.04])
