"""Every measure of importance against one that changes the texts, or the numbers, by hand."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fidelity import saliency
from fidelity.classified import ClassifiedBatch, classify
from fidelity.saliency import MEASURES, RANKINGS, Saliency
from tests.fidelity.tiny import KINDS, TEXTS, Kind, classified, close, one_by_one, saliency_of, slow_reread
from tests.models.batches import VOCABULARY

STEP = 1e-6
EVERYTHING: dict[str, Callable[[Saliency], Tensor]] = {
    **{measure: lambda found, measure=measure: found.signed(measure) for measure in MEASURES},  # type: ignore[misc]
    **{f"{ranking}, ranking": lambda found, name=ranking: found.rankings(name, 1)[0] for ranking in RANKINGS},  # type: ignore[misc]
    "leave_one_out, tvd": lambda found: found.leave_one_out_tvd,
    "incompleteness": lambda found: found.incompleteness[:, None],
}


def confidence(found: ClassifiedBatch, embedded: Tensor, *, held: bool) -> Tensor:
    """Probability of the class that the unchanged text gets."""
    own = {name: level.weights for name, level in found.output.levels.items()}
    logits = found.model(found.batch, embedded=embedded, imposed=own if held else None).logits
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
    assert Saliency(found, ig_steps=2).incompleteness.mean() > 3 * left.mean()


def test_integrated_gradients_are_the_same_in_passes_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    together = saliency_of(classified("flat")).integrated_gradients
    for tokens in (1, 150):  # all texts once, and three times
        monkeypatch.setattr(saliency, "TOKENS", tokens)
        close(saliency_of(classified("flat")).integrated_gradients, together)


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
            without = slow_reread(kind, row, {*words} - {position})
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
    close(saliency_of(found).attention_gradient, gradients.sum(0), 1e-8)
    close(saliency_of(found).attention_times_gradient, (gradients * found.weights).sum(0), 1e-8)
    assert saliency_of(found).attention_gradient[found.mask].abs().min() > 0


@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_alone_has_the_same_as_in_a_padded_batch(kind: Kind, name: str) -> None:
    padded = EVERYTHING[name](saliency_of(classified(kind, time=12)))
    for row, alone in enumerate(one_by_one(kind)):
        expected = EVERYTHING[name](saliency_of(alone))[0]
        close(padded[row, : len(expected)], expected)
        rest = padded[row, len(expected) :]
        assert torch.equal(rest, torch.full_like(rest, -torch.inf if "ranking" in name else 0))


@pytest.mark.parametrize("kind", KINDS)
def test_rankings_are_of_the_slots_that_get_weight(kind: Kind) -> None:
    found = classified(kind, time=12)
    expected = {
        "attention": found.weights.mean(0),
        "attention_gradient": saliency_of(found).attention_gradient,
        "attention_times_gradient": saliency_of(found).attention_times_gradient,
        "leave_one_out": saliency_of(found).leave_one_out,
        "integrated_gradients": saliency_of(found).integrated_gradients,
    }
    for ranking in RANKINGS:
        values = saliency_of(found).rankings(ranking, 4)
        assert (values == -torch.inf).any(0).equal(~found.mask)
        assert len(values) == (4 if ranking == "random" else 1)
        if ranking != "random":
            assert torch.equal(values[0][found.mask], expected[ranking][found.mask])
            assert len(set(values[0].flatten().tolist())) > len(TEXTS)
    random = saliency_of(found).rankings("random", 4)[:, found.mask]
    assert len(set(random.flatten().tolist())) == random.numel()


def test_magnitudes_have_no_sign_and_leaving_out_counts_all_classes() -> None:
    found = saliency_of(classified("flat"))
    assert (found.integrated_gradients < 0).any()
    for measure in MEASURES[:-1]:
        assert torch.equal(found.magnitude(measure), found.signed(measure).abs())
    assert torch.equal(found.magnitude("leave_one_out"), found.leave_one_out_tvd)
    # Of three classes: what the first loses another gets, and more may move between the others.
    assert (found.leave_one_out_tvd >= found.leave_one_out.abs() - 1e-12).all()
    assert (found.leave_one_out_tvd > found.leave_one_out.abs() + 1e-3).any()


def test_a_decision_that_is_all_but_certain_has_gradients_still() -> None:
    """In single precision its probability is 1, and would have none."""
    found = classified("flat", dtype=torch.float32)
    model = deepcopy(found.model)
    with torch.no_grad():
        model.decision.bias[0] += 25  # type: ignore[union-attr, index, operator]
    certain = classify(replace(found.checkpoint, model=model), found.batch, None, seed=0, pad=VOCABULARY.pad)[1]
    assert certain is not None
    assert (certain.confidence > 1 - 1e-7).all()
    for values in (saliency_of(certain).attention_gradient, saliency_of(certain).input_x_gradient):
        assert (values[certain.words].abs() > 0).all()
