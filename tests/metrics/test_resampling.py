from collections.abc import Sequence

import numpy as np
import pytest

from metrics import resampling
from metrics.resampling import (
    Estimate,
    Statistic,
    accuracy_drop,
    difference,
    estimate,
    f1_drop,
    f1_score,
    mean,
    median,
    pooled,
    weights_of,
)
from metrics.significance import paired_bootstrap, resamples


def resampled_texts(texts: int, draws: int, seed: int = 0) -> list[list[int]]:
    """Which texts each resample holds, as lists with repetitions."""
    weights = next(resamples(texts, draws, np.random.default_rng(seed)))
    return [[text for text in range(texts) for _ in range(int(row[text]))] for row in weights]


def values_of(texts: int, columns: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).gamma(2.0, size=(texts, columns)).round(1)  # rounded, so that some are equal


@pytest.mark.parametrize("texts", [20, 21])
@pytest.mark.parametrize(("statistic", "slow"), [(mean, np.mean), (median, np.median)])
def test_a_statistic_of_weights_is_that_of_the_resampled_list(texts: int, statistic: Statistic, slow: object) -> None:
    assert callable(slow)
    values = values_of(texts)
    found = estimate(statistic, values, draws=200, seed=3)
    expected = [slow(values[picks, 0]) for picks in resampled_texts(texts, 200, seed=3)]
    np.testing.assert_allclose(found.draws, expected, rtol=1e-12)
    assert found.value == pytest.approx(slow(values))
    np.testing.assert_allclose([found.low, found.high], np.quantile(expected, [0.025, 0.975]))


def decisions(texts: int, classes: int, draws: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gold and own classes `[texts]`, and those of some perturbations `[draws, texts]`."""
    rng = np.random.default_rng(seed)
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


def shares_of(other: np.ndarray, classes: int) -> np.ndarray:
    return np.stack([(other == one).mean(axis=0) for one in range(classes)], axis=1)


@pytest.mark.parametrize(("positive", "classes"), [(1, 2), (0, 2), (None, 4)])
def test_drops_are_differences_of_scores_of_written_out_decisions(positive: int | None, classes: int) -> None:
    gold, own, other = decisions(60, classes, draws=4)
    columns = np.column_stack([gold, own, shares_of(other, classes)])
    dropped = estimate(f1_drop(positive, classes), columns, draws=50)
    score = estimate(f1_score(positive, classes), np.column_stack([gold, own]), draws=50)
    lost = estimate(accuracy_drop, columns, draws=50)
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


def test_a_text_without_a_value_keeps_its_place_in_the_resamples() -> None:
    values = values_of(30, columns=2)
    values[[3, 7], [0, 1]] = np.nan
    found = estimate(lambda rows, weights: mean(rows[:, :1], weights), values, draws=100)
    kept = set(range(30)) - {3, 7}
    expected = [values[[text for text in picks if text in kept], 0].mean() for picks in resampled_texts(30, 100)]
    np.testing.assert_allclose(found.draws, expected)
    assert found.value == pytest.approx(values[sorted(kept), 0].mean())


@pytest.mark.parametrize("statistic", [mean, median])
def test_a_resample_of_no_text_with_a_value_is_left_out(statistic: Statistic) -> None:
    values = np.full((12, 1), np.nan)
    values[[2, 5], 0] = 1.0, 4.0
    found = estimate(statistic, values, draws=400)
    empty = [not {2, 5} & set(picks) for picks in resampled_texts(12, 400)]
    assert 0 < sum(empty) < 400
    np.testing.assert_array_equal(np.isnan(found.draws), empty)
    assert (found.value, found.low, found.high) == (2.5, 1.0, 4.0)


@pytest.mark.parametrize("statistic", [mean, median])
@pytest.mark.parametrize("texts", [0, 1, 5])
def test_fewer_than_two_values_have_no_interval(statistic: Statistic, texts: int) -> None:
    values = np.full((texts, 1), np.nan)
    values[:1] = 3.0
    found = estimate(statistic, values, draws=10)
    assert np.isnan([found.low, found.high]).all()
    assert found.draws.shape == (10,)
    assert np.isnan(found.draws).all()
    np.testing.assert_equal(found.value, 3.0 if texts else np.nan)


def test_the_weights_are_the_resamples_whatever_the_part_they_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    values = values_of(50)
    whole = estimate(median, values, draws=101, seed=9)
    monkeypatch.setattr(resampling, "CELLS", 170)  # three draws at a time, and a rest of two
    np.testing.assert_array_equal(estimate(median, values, draws=101, seed=9).draws, whole.draws)
    weights = weights_of(50, 101, 9)
    np.testing.assert_array_equal(weights, np.concatenate(list(resamples(50, 101, np.random.default_rng(9)))))
    with pytest.raises(ValueError, match="read-only"):
        weights[0, 0] = 7
    assert not np.array_equal(weights, weights_of(50, 101, 10))


def seeds_of(gain: float, seeds: int, start: int = 0) -> list[np.ndarray]:
    """Values of as many seeds: what is hard is hard for all."""
    common = np.random.default_rng(99).normal(size=(80, 1))
    return [common + gain + 0.3 * np.random.default_rng(start + seed).normal(size=(80, 1)) for seed in range(seeds)]


def test_a_difference_is_that_of_the_means_over_seeds_text_by_text() -> None:
    a, b = seeds_of(0.08, 3), seeds_of(0.0, 2, start=10)
    found = difference(
        [estimate(mean, one, draws=500, seed=4) for one in a], [estimate(mean, one, draws=500, seed=4) for one in b]
    )
    ones = np.ones(80)
    expected = paired_bootstrap(np.mean(a, axis=0)[:, 0], ones, np.mean(b, axis=0)[:, 0], ones, draws=500, seed=4)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert 0 < found.p < 0.5
    back = difference(
        [estimate(mean, one, draws=500, seed=4) for one in b], [estimate(mean, one, draws=500, seed=4) for one in a]
    )
    np.testing.assert_allclose([back.difference, back.low, back.high], [-expected[0], -expected[2], -expected[1]])
    assert back.p == found.p


def test_nothing_differs_from_itself() -> None:
    same = [estimate(median, one, draws=50) for one in seeds_of(0.0, 2)]
    assert difference(same, same) == (0.0, 0.0, 0.0, 1.0)


def test_a_difference_leaves_out_draws_that_one_seed_lacks() -> None:
    a = Estimate(1.0, 0.0, 0.0, np.array([1.0, np.nan, 3.0, 2.0]))
    b = Estimate(0.5, 0.0, 0.0, np.array([0.0, 0.0, np.nan, 3.0]))
    # Left are 1 and -1: the quantiles of 95 % lie .05 within them, and one of two draws is on either side.
    np.testing.assert_allclose(difference([a], [b]), (0.5, -0.95, 0.95, 1.0))
    nowhere = Estimate(np.nan, np.nan, np.nan, np.full(4, np.nan))
    assert np.isnan(difference([a], [nowhere])).all()
    with pytest.raises(ValueError, match=r"\[3, 4\] resamples"):
        difference([a], [Estimate(0.0, 0.0, 0.0, np.zeros(3))])


def test_pooling_takes_the_mean_of_each_resample_over_the_seeds() -> None:
    seeds = seeds_of(0.2, 3)
    found = pooled([estimate(median, one, draws=300) for one in seeds])
    medians = [float(np.median(one)) for one in seeds]
    expected = [np.mean([np.median(one[picks]) for one in seeds]) for picks in resampled_texts(80, 300)]
    assert found.value == pytest.approx(np.mean(medians))
    assert found.sd == pytest.approx(np.std(medians, ddof=1))
    np.testing.assert_allclose([found.low, found.high], np.quantile(expected, [0.025, 0.975]))
    alone = pooled([estimate(median, seeds[0], draws=300)])
    assert alone[:3] == estimate(median, seeds[0], draws=300)[:3]
    assert np.isnan(alone.sd)


def test_values_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[texts, columns\], not \(5,\)"):
        estimate(mean, np.ones(5))
    with pytest.raises(ValueError, match=r"1 columns, and the values are \(5, 2\)"):
        estimate(median, np.ones((5, 2)))
    with pytest.raises(ValueError, match=r"5 columns, and the values are \(5, 4\)"):
        estimate(f1_drop(None, 3), np.ones((5, 4)))
