"""Every measure of importance against one that changes the texts, or the numbers, by hand."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fidelity import saliency
from fidelity.reading import Reading, read
from fidelity.saliency import MEASURES, RANKINGS, Saliency
from models.interface import WORD
from tests.fidelity.tiny import TEXTS, Kind, classifier, close, one_by_one, reading
from tests.models.batches import VOCABULARY, batch_of

KINDS: tuple[Kind, ...] = ("flat", "han", "transformer")
STEP = 1e-6
EVERYTHING: dict[str, Callable[[Saliency], Tensor]] = {
    **{measure: lambda found, measure=measure: found.signed(measure) for measure in MEASURES},  # type: ignore[misc]
    **{f"{ranking}, ranking": lambda found, name=ranking: found.ranking(name) for ranking in RANKINGS},  # type: ignore[misc]
    "leave_one_out, tvd": lambda found: found.leave_one_out_tvd,
    "incompleteness": lambda found: found.incompleteness[:, None],
}


def confidence(found: Reading, embedded: Tensor, *, held: bool) -> Tensor:
    """Probability of the class that the unchanged text gets."""
    own = {name: level.weights for name, level in found.output.levels.items()}
    logits = found.model(found.batch, embedded=embedded, imposed=own if held else None).logits
    rows = torch.arange(len(logits))
    return logits.softmax(-1)[rows, found.predicted]  # type: ignore[no-any-return]


def log_odds(found: Reading, embedded: Tensor, *, held: bool) -> Tensor:
    """Of that class against all others."""
    return confidence(found, embedded, held=held).logit()


def differences(found: Reading) -> Tensor:
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


def along(found: Reading, at: Tensor, *, held: bool, what: Callable[..., Tensor] = confidence) -> Tensor:
    """How p, or its log-odds, changes `[batch, slots]` as the embedded tokens of a slot are scaled, from `at` on."""
    changes = torch.zeros(found.mask.shape, dtype=at.dtype)
    for slot in range(found.mask.size(1)):
        change = STEP * torch.where((found.units == slot)[..., None], found.output.embedded, 0)
        higher, lower = (what(found, at + sign * change, held=held) for sign in (1, -1))
        changes[:, slot] = (higher - lower) / (2 * STEP)
    return changes


def by_slot(found: Reading, values: Tensor) -> Tensor:
    """Sums of `[batch, time]` over the tokens of each slot, with loops."""
    sums = values.new_zeros(found.mask.shape)
    for row, slots in enumerate(found.units.tolist()):
        for token, slot in enumerate(slots):
            if slot >= 0:
                sums[row, slot] += values[row, token]
    return sums


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_differences_under_the_attention_as_it_was(kind: Kind) -> None:
    found = reading(kind)
    embedded = found.output.embedded
    scaled = along(found, embedded, held=True)
    close(found.saliency.gradient, scaled.abs(), 1e-8)
    close(found.saliency.gradient_norm, by_slot(found, differences(found).square().sum(-1).sqrt()), 1e-8)
    assert found.saliency.gradient[found.words].mean() > 1e-3
    # Were attention to follow, it would be noticed.
    assert ((along(found, embedded, held=False) - scaled).abs() > 1e-4).any()


@pytest.mark.parametrize("kind", KINDS)
def test_integrated_gradients_are_a_sum_along_a_straight_path(kind: Kind) -> None:
    found = reading(kind)
    embedded = found.output.embedded
    start = torch.where((found.units >= 0)[..., None], 0, embedded)
    steps = 40
    pieces = [start + (step + 0.5) / steps * (embedded - start) for step in range(steps)]
    expected = torch.stack([along(found, middle, held=False, what=log_odds) for middle in pieces]).mean(0)
    integrated = found.saliency.integrated_gradients
    close(integrated, expected, float(expected.abs().max()) / 100)
    changed = log_odds(found, embedded, held=False) - log_odds(found, start, held=False)
    close(integrated.sum(1), changed, 1e-2)
    left = (integrated.sum(1) - changed).abs()
    close(found.saliency.incompleteness, left)
    assert Saliency(found, steps=2).incompleteness.mean() > 3 * left.mean()


def test_integrated_gradients_are_the_same_in_passes_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    together = reading("flat").saliency.integrated_gradients
    for tokens in (1, 150):  # all texts once, and three times
        monkeypatch.setattr(saliency, "TOKENS", tokens)
        close(reading("flat").saliency.integrated_gradients, together)


@pytest.mark.parametrize("level", [WORD, None])
def test_leaving_out_is_classifying_the_text_without_the_word(level: str | None) -> None:
    kind: Kind = "flat" if level else "han"
    found = reading(kind, time=9)
    for row, text in enumerate(TEXTS):
        sentences = found.batch.sentences[row].tolist()
        for slot in range(found.words.size(1)):
            if not found.words[row, slot]:
                assert found.saliency.leave_one_out[row, slot] == 0
                assert found.saliency.leave_one_out_tvd[row, slot] == 0
                continue
            left = [place for place in range(len(text)) if (place if level else sentences[place]) != slot]
            numbers = [sentences[place] for place in left]
            counted = [sorted(set(numbers)).index(number) for number in numbers]
            shortened = batch_of([[text[place] for place in left]], sentences=[counted])
            without = classifier(kind)(shortened).logits.softmax(-1)[0]
            before = found.probabilities[row]
            label = int(before.argmax())
            close(found.saliency.leave_one_out[row, slot], before[label] - without[label])
            close(found.saliency.leave_one_out_tvd[row, slot], (before - without).clamp(min=0).sum())
    assert (found.saliency.leave_one_out < 0).any()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_attention_are_finite_differences_under_the_same_hidden_states(kind: Kind) -> None:
    found = reading(kind, time=9)
    heads, _, slots = found.weights.shape
    gradients = torch.zeros_like(found.weights)
    for head in range(heads):
        for slot in range(slots):
            change = torch.zeros_like(found.weights)
            change[head, :, slot] = STEP
            higher, lower = (found.of_predicted(found.decide(found.weights + sign * change)) for sign in (1, -1))
            gradients[head, :, slot] = ((higher - lower) / (2 * STEP)).masked_fill(~found.mask[:, slot], 0)
    close(found.saliency.weight_gradient, gradients.sum(0), 1e-8)
    close(found.saliency.attention_gradient, (gradients * found.weights).sum(0), 1e-8)
    assert found.saliency.weight_gradient[found.mask].abs().min() > 0


@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_alone_has_the_same_as_in_a_padded_batch(kind: Kind, name: str) -> None:
    padded = EVERYTHING[name](reading(kind, time=12).saliency)
    for row, alone in enumerate(one_by_one(kind)):
        expected = EVERYTHING[name](alone.saliency)[0]
        close(padded[row, : len(expected)], expected)
        rest = padded[row, len(expected) :]
        assert torch.equal(rest, torch.full_like(rest, -torch.inf if "ranking" in name else 0))


@pytest.mark.parametrize("kind", KINDS)
def test_rankings_are_of_the_slots_that_get_weight(kind: Kind) -> None:
    found = reading(kind, time=12)
    expected = {
        "attention": found.weights.mean(0),
        "gradient": found.saliency.weight_gradient,
        "attention_gradient": found.saliency.attention_gradient,
        "leave_one_out": found.saliency.leave_one_out,
        "integrated_gradients": found.saliency.integrated_gradients,
    }
    for ranking in RANKINGS:
        values = found.saliency.rankings(ranking, 4)
        assert (values == -torch.inf).any(0).equal(~found.mask)
        assert len(values) == (4 if ranking == "random" else 1)
        assert torch.equal(values[0], found.saliency.ranking(ranking))
        if ranking != "random":
            assert torch.equal(values[0][found.mask], expected[ranking][found.mask])
            assert len(set(values[0].flatten().tolist())) > len(TEXTS)
    random = found.saliency.rankings("random", 4)[:, found.mask]
    assert len(set(random.flatten().tolist())) == random.numel()


def test_magnitudes_have_no_sign_and_leaving_out_counts_all_classes() -> None:
    found = reading("flat").saliency
    assert (found.integrated_gradients < 0).any()
    for measure in MEASURES[:-1]:
        assert torch.equal(found.magnitude(measure), found.signed(measure).abs())
    assert torch.equal(found.magnitude("leave_one_out"), found.leave_one_out_tvd)
    # Of three classes: what the first loses another gets, and more may move between the others.
    assert (found.leave_one_out_tvd >= found.leave_one_out.abs() - 1e-12).all()
    assert (found.leave_one_out_tvd > found.leave_one_out.abs() + 1e-3).any()


def test_a_decision_that_is_all_but_certain_has_gradients_still() -> None:
    """In single precision its probability is 1, and would have none."""
    found = reading("flat", dtype=torch.float32)
    model = deepcopy(found.model)
    with torch.no_grad():
        model.decision.bias[0] += 25  # type: ignore[union-attr, index, operator]
    certain = read(replace(found.checkpoint, model=model), found.batch, None, seed=0, pad=VOCABULARY.pad)[1]
    assert certain is not None
    assert (certain.confidence > 1 - 1e-7).all()
    for values in (certain.saliency.weight_gradient, certain.saliency.gradient):
        assert (values[certain.words].abs() > 0).all()
