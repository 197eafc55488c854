"""Measures of importance against changed texts or numbers; their correlations against pair counting and enumeration."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from attention_probing.fidelity.classified import ClassifiedBatch, classify, logits_under
from attention_probing.fidelity.contract import CheckpointResult
from attention_probing.fidelity.correlation import Correlation, without_rounding
from attention_probing.fidelity.erasure import SetErasure
from attention_probing.fidelity.rationale import Rationale
from attention_probing.fidelity.saliency import MEASURES, Saliency, decision_gradient
from attention_probing.models import TransformerClassifier
from attention_probing.results import Curves, Estimate, UserError
from tests.fidelity import tiny
from tests.fidelity.tiny import KINDS, TEXTS, Kind, checkpoint_result, classified, close, measurements, saliency_of
from tests.models.batches import VOCABULARY

STEP = 1e-6


def confidence(found: ClassifiedBatch, embedded: Tensor, *, held: bool) -> Tensor:
    """Probability of the class that the unchanged text gets."""
    own = {name: level.weights for name, level in found.output.levels.items()}
    logits = found.checkpoint.model(found.batch, embedded=embedded, imposed=own if held else None).logits
    rows = torch.arange(len(logits))
    return logits.softmax(-1)[rows, found.predicted]  # type: ignore[no-any-return]


def log_odds(found: ClassifiedBatch, embedded: Tensor, *, held: bool) -> Tensor:
    """Of that class against all others."""
    return confidence(found, embedded, held=held).logit()


def differences(found: ClassifiedBatch) -> Tensor:
    """∂p/∂e `[batch, time, size]` with attention held, by changing one number of one token after the other."""
    embedded = found.output.embedded
    gradients = torch.zeros_like(embedded)
    for token in range(embedded.size(1)):
        for place in range(embedded.size(2)):
            change = torch.zeros_like(embedded)
            change[:, token, place] = STEP
            higher, lower = (confidence(found, embedded + sign * change, held=True) for sign in (1, -1))
            gradients[:, token, place] = (higher - lower) / (2 * STEP)
    return gradients


def along(found: ClassifiedBatch, at: Tensor, *, held: bool, what: Callable[..., Tensor] = confidence) -> Tensor:
    """How p, or its log-odds, changes `[batch, positions]` as embedded tokens are scaled, from `at` on."""
    changes = torch.zeros(found.mask.shape, dtype=at.dtype)
    for position in range(found.mask.size(1)):
        change = STEP * torch.where((found.token_to_position == position)[..., None], found.output.embedded, 0)
        higher, lower = (what(found, at + sign * change, held=held) for sign in (1, -1))
        changes[:, position] = (higher - lower) / (2 * STEP)
    return changes


def by_position(found: ClassifiedBatch, values: Tensor) -> Tensor:
    """Sums of `[batch, time]` over the tokens of each position, with loops."""
    sums = values.new_zeros(found.mask.shape)
    for row, positions in enumerate(found.token_to_position.tolist()):
        for token, position in enumerate(positions):
            if position >= 0:
                sums[row, position] += values[row, token]
    return sums


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_differences_under_the_attention_as_it_was(kind: Kind) -> None:
    found = classified(kind)
    embedded = found.output.embedded
    scaled = along(found, embedded, held=True)
    close(saliency_of(found).input_x_gradient, scaled.abs(), 1e-8)
    close(saliency_of(found).gradient_norm, by_position(found, differences(found).square().sum(-1).sqrt()), 1e-8)
    assert saliency_of(found).input_x_gradient[found.words].mean() > 1e-3
    # Were attention to follow, it would be noticed.
    assert ((along(found, embedded, held=False) - scaled).abs() > 1e-4).any()


@pytest.mark.parametrize("kind", KINDS)
def test_integrated_gradients_are_a_sum_along_a_straight_path(kind: Kind) -> None:
    found = classified(kind)
    embedded = found.output.embedded
    start = torch.where((found.token_to_position >= 0)[..., None], 0, embedded)
    steps = 40
    pieces = [start + (step + 0.5) / steps * (embedded - start) for step in range(steps)]
    expected = torch.stack([along(found, middle, held=False, what=log_odds) for middle in pieces]).mean(0)
    integrated = saliency_of(found).integrated_gradients
    close(integrated, expected, float(expected.abs().max()) / 100)
    changed = log_odds(found, embedded, held=False) - log_odds(found, start, held=False)
    close(integrated.sum(1), changed, 1e-2)
    left = (integrated.sum(1) - changed).abs()
    close(saliency_of(found).incompleteness, left)
    assert Saliency(found, points=2).incompleteness.mean() > 3 * left.mean()


@pytest.mark.parametrize("kind", ["flat", "han"])
def test_leaving_out_is_classifying_the_text_without_the_word(kind: Kind) -> None:
    found = classified(kind, time=9)
    changes = saliency_of(found)
    for row in range(len(TEXTS)):
        words = found.words[row].nonzero().squeeze(1).tolist()
        for position in range(found.words.size(1)):
            if position not in words:
                assert changes.leave_one_out[row, position] == changes.leave_one_out_tvd[row, position] == 0
                continue
            without = tiny.slow_reread(kind, row, {*words} - {position})
            before = found.probabilities[row]
            label = int(before.argmax())
            close(changes.leave_one_out[row, position], before[label] - without[label])
            close(changes.leave_one_out_tvd[row, position], (before - without).clamp(min=0).sum())
    assert (changes.leave_one_out < 0).any()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_attention_are_finite_differences_under_the_same_hidden_states(kind: Kind) -> None:
    found = classified(kind, time=9)
    heads, _, positions = found.weights.shape
    gradients = torch.zeros_like(found.weights)
    for head in range(heads):
        for position in range(positions):
            change = torch.zeros_like(found.weights)
            change[head, :, position] = STEP
            higher, lower = (found.of_predicted(found.decide(found.weights + sign * change)) for sign in (1, -1))
            gradients[head, :, position] = ((higher - lower) / (2 * STEP)).masked_fill(~found.mask[:, position], 0)
    close(saliency_of(found).of_attention.attention_gradient, gradients.sum(0), 1e-8)
    close(saliency_of(found).of_attention.attention_times_gradient, (gradients * found.weights).sum(0), 1e-8)
    assert saliency_of(found).of_attention.attention_gradient[found.mask].abs().min() > 0


def test_the_norm_in_a_transformer_is_that_of_the_weighted_value_after_the_output_projection() -> None:
    found = classified("transformer", time=9)
    model = found.checkpoint.model
    assert isinstance(model, TransformerClassifier)
    norms = torch.zeros_like(found.attention)
    for name, weights in zip(found.names, found.weights, strict=True):
        layer, head = model.levels[name]
        values = found.output.levels[name].hidden
        written = model.classifier.model.get_parameter(f"bert.encoder.layer.{layer}.attention.output.dense.weight")
        own = written[:, head * values.size(2) : (head + 1) * values.size(2)]
        for text, position in np.ndindex(tuple(norms.shape)):
            norms[text, position] += (weights[text, position] * own @ values[text, position]).norm()
    close(saliency_of(found).of_attention.attention_norm, norms.masked_fill(~found.mask, 0), 1e-7)


def test_rollout_is_the_product_of_eager_attention_of_all_layers() -> None:
    found = classified("transformer", time=9)
    model = found.checkpoint.model
    assert isinstance(model, TransformerClassifier)
    name = model.classifier.model.config.name_or_path
    assert name is not None
    eager = AutoModelForSequenceClassification.from_pretrained(name, attn_implementation="eager").double().eval()
    rolled = saliency_of(found).of_attention.rollout
    for row, length in enumerate(found.batch.lengths.tolist()):
        layers = eager(input_ids=found.batch.tokens[row, None, :length], output_attentions=True).attentions
        assert len(layers) > 1
        product = np.eye(length)
        for layer in layers:
            product = (0.5 * layer[0].mean(0).detach().numpy() + 0.5 * np.eye(length)) @ product
        expected = torch.zeros_like(rolled[row])
        for place in range(length):
            if found.token_to_position[row, place] >= 0:
                expected[found.token_to_position[row, place]] += float(product[0, place])
        close(rolled[row].double(), expected, 1e-6)
        alone = Saliency(classified("transformer", [row])).of_attention.rollout[0]
        close(rolled[row, : len(alone)].double(), alone.double(), 1e-7)


@pytest.mark.parametrize("kind", ["flat", "han"])
def test_rollout_of_what_is_no_transformer_is_refused(kind: Kind) -> None:
    message = rf"ranking rollout .* {kind}, seed 0 does not have\. Leave it out of all `rankings` and `saliencies`"
    for test in (Rationale(["rollout"]), SetErasure(["rollout"]), Correlation(["rollout"])):
        with pytest.raises(UserError, match=message):
            measurements(test, classified(kind))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "transformer"])
def test_the_norm_of_attention_is_of_the_change_of_all_logits(kind: Kind) -> None:
    found = classified(kind, time=9)
    norms = torch.zeros_like(found.attention)
    for head, position in np.ndindex(len(found.weights), norms.size(1)):
        change = torch.zeros_like(found.weights)
        change[head, :, position] = STEP
        higher, lower = (logits_under(found, found.weights + sign * change) for sign in (1, -1))
        slope = ((higher - lower) / (2 * STEP)).square().sum(-1).sqrt()
        norms[:, position] += (found.weights[head, :, position] * slope).masked_fill(~found.mask[:, position], 0)
    close(saliency_of(found).of_attention.attention_norm, norms, 1e-7)


def test_a_decision_that_is_all_but_certain_has_gradients_still() -> None:
    """In single precision its probability is 1, and would have none."""
    found = classified("flat", dtype=torch.float32)
    model = deepcopy(found.checkpoint.model)
    with torch.no_grad():
        model.decision.bias[0] += 25  # type: ignore[union-attr, index, operator]
    certain = classify(replace(found.checkpoint, model=model), found.batch, seed=0, vocabulary=VOCABULARY)[1]
    assert certain is not None
    assert (certain.confidence > 1 - 1e-7).all()
    for values in (saliency_of(certain).of_attention.attention_gradient, saliency_of(certain).input_x_gradient):
        assert (values[certain.words].abs() > 0).all()


def tau_b(a: list[float], b: list[float]) -> float:
    """Counted pair by pair."""
    agree = tied_a = tied_b = pairs = 0
    for i, j in combinations(range(len(a)), 2):
        agree += int(np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]))
        tied_a, tied_b, pairs = tied_a + (a[i] == a[j]), tied_b + (b[i] == b[j]), pairs + 1
    return agree / math.sqrt((pairs - tied_a) * (pairs - tied_b))


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
            assert measured[f"{name}.kendall"][row].item() == pytest.approx(tau_b(one, other)), name
            expected = np.corrcoef(one, other)[0, 1]
            assert measured[f"{name}.pearson"][row].item() == pytest.approx(expected, abs=1e-6), name
        assert measured["words"][row] == words.sum()
    for measure, colours in found.highlights.items():
        assert colours is saliency_of(found).signed_values(measure)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_a_group_is_what_lies_within_the_tolerance_of_its_lowest_value(kind: type[np.floating[Any]]) -> None:
    """Sixty words that are each .4 tolerances from the next are twenty groups of three, not one."""
    random, steps = np.random.default_rng(0), np.cumsum(np.full(60, 0.4e-6))
    scattered = np.sort(random.uniform(0, 2e-5, (4, 60)))
    values = random.permuted(np.concatenate([steps[None], scattered]), axis=1).astype(kind)
    tolerance = np.full(values.shape, 1e-6, kind)
    found = without_rounding(values, tolerance)
    for row, merged in zip(values.astype(float), found, strict=True):
        left, expected = dict(enumerate(row)), np.empty(60)
        while left:
            lowest = min(left.values())
            group = [word for word, value in left.items() if value - lowest <= 1e-6]
            expected[group] = lowest
            for word in group:
                del left[word]
        np.testing.assert_array_equal(merged, expected)
    assert len(np.unique(found[0])) == 20
    np.testing.assert_array_equal(found, without_rounding(values.astype(float), tolerance.astype(float)))


def result(variant: str, seed: int, taus: list[float], p: list[float], words: list[float]) -> CheckpointResult:
    """Of a test with one measure."""
    columns = {f"input_x_gradient.{name}": taus for name in ("kendall", "pearson", "spearman")}
    columns |= {"input_x_gradient.p": p, "words": words}
    values = checkpoint_result("correlation", variant, seed, columns)
    scores = tiny.scores_of(Correlation(["input_x_gradient"]), values.values)
    found = {f"correlation.{name}": Estimate(value, unit="fraction") for name, value in scores.items()}
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
    assert isinstance(figure, Curves)
    assert list(figure.lines) == ["base (n = 5)", "tying (n = 3)"]
    for (x, y), known in zip(figure.lines.values(), ([0.1, 0.5, 0.2, 0.3, 0.4], [0.4, 0.6, 0.8]), strict=True):
        np.testing.assert_allclose(x, np.repeat([-1 + place / 10 for place in range(21)], 2), atol=1e-12)
        expected = [sum(low <= tau < high for tau in known) / len(known) for low, high in pairwise(x[::2])]
        assert y == pytest.approx([0, *(100 * share for share in expected for _ in range(2)), 0])


def test_each_ranking_is_timed_once_and_shared_work_counts_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Mock(wraps=decision_gradient)
    monkeypatch.setattr("attention_probing.fidelity.saliency.decision_gradient", passes)
    saliency = Saliency(classified("flat"))
    for ranking in ("random", "attention", "leave_one_out", "attention_gradient"):
        saliency.rankings(ranking, 2)
    first = dict(saliency.seconds)
    assert list(first) == ["random", "attention", "leave_one_out", "attention_gradient"]
    assert min(first.values()) > 0
    saliency.magnitude("leave_one_out")
    saliency.rankings("random", 5)
    assert saliency.seconds == first
    saliency.signed_values("attention_times_gradient")
    assert saliency.seconds["attention_times_gradient"] > 0
    assert passes.call_count == 1
    measured = Saliency(classified("flat"))
    measured.magnitude("leave_one_out")  # which reads another column of the same pass
    assert measured.seconds["leave_one_out"] > 0
