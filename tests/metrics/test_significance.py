import numpy as np
import pytest
from scipy import stats

from metrics import significance
from metrics.significance import bootstrap_ratio


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
