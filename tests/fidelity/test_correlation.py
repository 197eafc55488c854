"""Correlations against pair counting, enumeration, and one text after the other."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from datamodules import TextBatch
from fidelity.base import CheckpointResult
from fidelity.classified import classify
from fidelity.correlation import Correlation, agreements, without_rounding
from fidelity.saliency import MEASURES
from metrics.bootstrap import Resampled
from models import AdditiveAttention, AttentionClassifier, AverageEncoder, EmbeddingSpec, NoEncoder
from models.base import TextSizes
from models.layers import TextEncoder
from results import Histograms
from tests.fidelity import tiny
from tests.fidelity.tiny import TEXTS, Kind, checkpoint_result, classified, close, measurements, saliency_of, scores_of
from tests.models.batches import VOCABULARY, batch_of


def tau_b(a: list[float], b: list[float]) -> float:
    """Counted pair by pair."""
    agree = tied_a = tied_b = pairs = 0
    for i, j in combinations(range(len(a)), 2):
        agree += int(np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]))
        tied_a, tied_b, pairs = tied_a + (a[i] == a[j]), tied_b + (b[i] == b[j]), pairs + 1
    return agree / math.sqrt((pairs - tied_a) * (pairs - tied_b))


def test_coefficients_are_counted_pair_by_pair_with_ties() -> None:
    random = np.random.default_rng(0)
    a, b = random.integers(0, 5, (30, 8)).astype(float), random.integers(0, 5, (30, 8)).astype(float)
    found = agreements(a, b)
    for row in range(30):
        assert found.kendall[row] == pytest.approx(tau_b(list(a[row]), list(b[row])))
        assert found.pearson[row] == pytest.approx(np.corrcoef(a[row], b[row])[0, 1])
        assert found.spearman[row] == pytest.approx(spearmanr(a[row], b[row]).statistic)


def test_p_is_the_share_of_orders_at_least_as_far_from_none() -> None:
    a = np.arange(6.0)
    for b in ([1.0, 0, 2, 3, 5, 4], [5.0, 4, 3, 2, 1, 0], [2.0, 5, 0, 4, 1, 3]):
        found = agreements(a[None], np.array([b]))
        taus = [tau_b(list(a), list(order)) for order in permutations(range(6))]
        assert found.p[0] == pytest.approx(np.mean(np.abs(taus) >= abs(tau_b(list(a), b)) - 1e-9))


def test_one_side_that_is_the_same_for_all_words_has_no_correlation() -> None:
    found = agreements(np.array([[0.1, 0.1, 0.1], [0.1, 0.2, 0.3]]), np.array([[1.0, 2, 3], [1, 2, 4]]))
    for coefficient in found:
        assert np.isnan(coefficient[0])
        assert coefficient[1] > 0


@pytest.mark.parametrize("kind", ["flat", "han", "transformer"])
def test_every_text_is_correlated_over_its_own_words(kind: Kind) -> None:
    test, found = Correlation(), classified(kind, time=12)
    measured = measurements(test, found)
    for row in range(len(TEXTS)):
        words = found.words[row]
        sides = {measure: saliency_of(found).magnitude(measure)[row][words].tolist() for measure in MEASURES}
        attention = found.attention[row][words].tolist()
        pairs = {str(measure): (attention, side) for measure, side in sides.items()}
        pairs |= {f"{one}_{other}": (sides[one], sides[other]) for one, other in combinations(MEASURES, 2)}
        for name, (one, other) in pairs.items():
            assert measured.numbers[f"{name}.kendall"][row].item() == pytest.approx(tau_b(one, other)), name
            expected = np.corrcoef(one, other)[0, 1]
            assert measured.numbers[f"{name}.pearson"][row].item() == pytest.approx(expected, abs=1e-6), name
        assert measured.numbers["words"][row] == words.sum()
    for measure, colours in measured.highlights.items():
        assert colours is saliency_of(found).signed(measure)  # type: ignore[arg-type]


@pytest.mark.parametrize("encoder", [AverageEncoder(32), NoEncoder()])
def test_a_word_that_comes_twice_is_a_tie_in_any_batch(encoder: TextEncoder) -> None:
    torch.manual_seed(0)
    model = AttentionClassifier(encoder, AdditiveAttention(), EmbeddingSpec(size=32))
    model.build(TextSizes(3, VOCABULARY))
    for parameter in model.eval().requires_grad_(False).parameters():
        parameter.normal_(0, 0.3)
    checkpoint = replace(tiny.checkpoint("flat"), model=model)  # in single precision
    texts = [torch.randint(7, 16, (length,)).tolist() for length in range(3, 23)]

    def numbers(batch: TextBatch) -> Mapping[str, Tensor]:
        found = classify(checkpoint, batch, None, seed=0, pad=VOCABULARY.pad)[1]
        assert found is not None
        return measurements(Correlation(), found).numbers

    together = numbers(batch_of(texts, time=30))
    for row, text in enumerate(texts):
        for name, value in numbers(batch_of([text])).items():
            close(together[name][row], value[0], 1e-4)


def test_values_no_further_apart_than_the_tolerance_become_one() -> None:
    values = np.array([[0.3, 0.1, 0.3000001, 0.2, 0.1, 0.30000005]])
    merged = without_rounding(values, np.full((1, 6), 3e-6))
    np.testing.assert_equal(merged, [[0.3, 0.1, 0.3, 0.2, 0.1, 0.3]])
    np.testing.assert_equal(without_rounding(values, np.full((1, 6), 1e-9)), values)
    # Weights of a long text stay apart, however small.
    weights = np.random.default_rng(0).lognormal(0, 3, (1, 500))
    weights /= weights.sum()
    assert len(np.unique(without_rounding(weights, 1e-6 * weights))) == 500


def test_only_the_measures_that_are_named_are_computed() -> None:
    test = Correlation(["input_x_gradient", "leave_one_out"])
    numbers = measurements(test, classified("flat")).numbers
    pairs = ("input_x_gradient", "leave_one_out", "input_x_gradient_leave_one_out")
    names = [f"{pair}.{name}" for pair in pairs for name in ("kendall", "pearson", "spearman", "p")]
    assert list(numbers) == ["words", *names]
    everything = measurements(Correlation(), classified("flat")).numbers
    for name, value in numbers.items():
        close(value, everything[name])


def result(variant: str, seed: int, taus: list[float], p: list[float], words: list[float]) -> CheckpointResult:
    """Of a test with one measure."""
    columns = {f"input_x_gradient.{name}": taus for name in ("kendall", "pearson", "spearman")}
    columns |= {"input_x_gradient.p": p, "words": words}
    values = checkpoint_result("correlation", variant, seed, columns)
    scores = scores_of(Correlation(["input_x_gradient"]), values.values)
    found = {f"correlation.{name}": Resampled(value, np.zeros(0), "fraction") for name, value in scores.items()}
    return replace(values, scores=found)


def test_texts_without_a_coefficient_are_counted_and_those_skipped_are_not() -> None:
    nan = np.nan
    some = [
        result("base", 0, [0.1, 0.5, nan, nan], [0.05, 0.06, nan, nan], [3, 4, 2, nan]),
        result("tying", 0, [0.4, 0.6, 0.8, nan], [0.01, 0.5, 0.04, nan], [3, 4, 2, nan]),
        result("base", 1, [0.2, 0.3, 0.4, nan], [0.2, 0.3, 0.4, nan], [3, 4, 2, nan]),
    ]
    test = Correlation(["input_x_gradient"])
    table = test.tables(some)["correlation"].frame
    assert table["checkpoint"].tolist() == ["base, seed 0", "tying, seed 0", "base, seed 1"]
    assert set(table["pair"]) == {"attention_input_x_gradient"}
    assert table["texts"].tolist() == [2, 3, 3]
    assert table["undefined"].tolist() == [1, 0, 0]
    assert table["kendall"].tolist() == pytest.approx([0.3, 0.6, 0.3])
    assert table["kendall.sd"].tolist() == pytest.approx([0.08**0.5, 0.2, 0.1])
    assert table["significant"].tolist() == pytest.approx([1 / 2, 2 / 3, 0])
    figure = test.figures(some)["correlation.input_x_gradient"]
    assert isinstance(figure, Histograms)
    np.testing.assert_equal(
        figure.series, {"base": [0.1, 0.5, nan, nan, 0.2, 0.3, 0.4, nan], "tying": [0.4, 0.6, 0.8, nan]}
    )
