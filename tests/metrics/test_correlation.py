"""Correlations under weights against SciPy's of copied rows."""

import numpy as np
import pytest
from scipy import stats

from metrics.correlation import pearson, regression_scores, spearman
from results import numbers


def drawn(texts: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Gold and predicted numbers with many ties, far from zero."""
    random = np.random.default_rng(seed)
    gold = random.integers(0, 6, size=texts) / 2 + 1e6
    return gold, (gold + random.normal(size=texts)).round(1)


def test_correlations_are_scipys_of_rows_as_often_as_they_were_drawn() -> None:
    gold, predicted = drawn(70)
    weights = np.random.default_rng(1).integers(0, 4, size=(6, 70)).astype(np.float64)
    picks = [np.repeat(np.arange(70), row.astype(int)) for row in weights]
    both = np.column_stack([gold, predicted])
    expected = [stats.pearsonr(gold[pick], predicted[pick]).statistic for pick in picks]
    assert pearson(both, weights) == pytest.approx(expected, abs=1e-9)
    expected = [stats.spearmanr(gold[pick], predicted[pick]).statistic for pick in picks]
    assert spearman(both, weights) == pytest.approx(expected, abs=1e-12)


def test_intervals_are_those_of_texts_drawn_one_by_one() -> None:
    gold, predicted = drawn(40, seed=2)
    found = numbers(regression_scores(gold, predicted, prefix="dev.", draws=100, seed=3))
    slow = []
    for pick in np.random.default_rng(3).integers(40, size=(100, 40)):
        some = gold[pick], predicted[pick]
        mse = float(np.mean((some[0] - some[1]) ** 2))
        slow.append([stats.pearsonr(*some).statistic, stats.spearmanr(*some).statistic, mse])
    for place, name in enumerate(("dev.pearson", "dev.spearman", "dev.mse")):
        low, high = np.quantile(np.array(slow)[:, place], [0.025, 0.975])
        assert (found[f"{name}.low"], found[f"{name}.high"]) == pytest.approx((low, high), abs=1e-9)
        assert low < found[name] < high


def test_a_constant_column_has_no_correlation() -> None:
    third = np.full(30, 1 / 3)
    both = np.column_stack([third, np.arange(30.0)])
    weights = np.random.default_rng(0).integers(0, 3, size=(4, 30)).astype(np.float64)
    for statistic in (pearson, spearman):
        assert np.isnan(statistic(both, weights)).all()
        assert np.isnan(statistic(both[:, ::-1], weights)).all()
        assert np.isnan(statistic(np.column_stack([np.arange(30.0)] * 2), np.zeros((1, 30)))).all()
    assert np.isnan(regression_scores(third[:0], third[:0])["pearson"].value)
