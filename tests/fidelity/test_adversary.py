"""The search over all texts and copies against one text, one copy and one formula at a time."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from fidelity.adversary import Adversary
from fidelity.base import CheckpointResult
from fidelity.checkpoints import FidelityError
from fidelity.classified import ClassifiedBatch
from models.interface import WORD
from results import Curves
from tests.fidelity import tiny
from tests.fidelity.tiny import KINDS, TEXTS, Kind, classified, close, measurements, one_by_one, with_constants


def slow_kl(p: Tensor, q: Tensor) -> Tensor:
    """Σ p log(p / q) over the positions where p has weight."""
    there = p > 0
    return (p[there] * (p[there].log() - q[there].log())).sum()


def slow_jsd(p: Tensor, q: Tensor) -> Tensor:
    return slow_kl(p, (p + q) / 2) / 2 + slow_kl(q, (p + q) / 2) / 2


def over_heads(p: Tensor, q: Tensor) -> Tensor:
    return torch.stack([slow_jsd(*pair) for pair in zip(p, q, strict=True)]).mean()


def output(text: ClassifiedBatch, weights: Tensor) -> Tensor:
    """Probabilities of the classes when the whole model runs with other weights `[heads, positions]`."""
    imposed = {name: head[None] for name, head in zip(text.names, weights, strict=True)}
    found: Tensor = text.model(text.batch, imposed=imposed).logits[0].softmax(-1)
    return found


def slow_tvd(p: Tensor, q: Tensor) -> Tensor:
    return (p - q).abs().sum() / 2


def slow_loss(adversary: Adversary, text: ClassifiedBatch, weights: list[Tensor]) -> Tensor:
    """Jain & Wallace's (2019, §4.2.2) of one text, its copies one after the other: each `[heads, positions]`."""
    loss = torch.zeros((), dtype=torch.float64)
    for copy in weights:
        excess = slow_tvd(output(text, copy), text.probabilities[0]) - adversary.epsilon
        loss = loss - over_heads(copy, text.weights[:, 0]) + adversary.penalty * torch.clamp(excess, min=0)
    pairs = [over_heads(one, other) for one in weights for other in weights]
    return loss - adversary.diversity * sum(pairs, torch.zeros(())) / len(pairs)


def slow_search(adversary: Adversary, text: ClassifiedBatch) -> Tensor:
    """Reddi et al.'s (2018) AMSGrad written out, with the corrections of PyTorch's: `[copies, heads, positions]`."""
    logits = adversary.start(text)[:, :, 0].clone()
    first, second, highest = (torch.zeros_like(logits) for _ in range(3))
    for step in range(1, adversary.steps + 1):
        logits.requires_grad_()
        loss = slow_loss(adversary, text, [copy.softmax(-1) for copy in logits])
        (gradient,) = torch.autograd.grad(loss, logits)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        highest = torch.maximum(highest, second)
        size = (highest / (1 - 0.999**step)).sqrt() + 1e-8
        logits = logits.detach() - adversary.learning_rate * first / (1 - 0.9**step) / size
    return logits.softmax(-1)


@pytest.mark.parametrize(("kind", "steps"), [("flat", 0), ("flat", 1), ("flat", 20), ("han", 20), ("transformer", 5)])
def test_the_trajectory_of_a_batch_is_that_of_a_loop_over_its_texts(kind: Kind, steps: int) -> None:
    # A rate at which the copies go far, and soon meet the constraint.
    adversary = with_constants(Adversary(copies=3, steps=steps), learning_rate=0.1, diversity=0.7)
    together = adversary.search(classified(kind, time=9 if kind != "han" else None))
    for row, text in enumerate(one_by_one(kind)):
        positions = text.mask.size(1)
        close(together[:, :, row, :positions], slow_search(adversary, text), atol=1e-6)
        assert not together[:, :, row, positions:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_begin_around_the_uniform_ones_and_are_drawn_for_each_text_by_itself(kind: Kind) -> None:
    adversary, found = with_constants(Adversary(copies=4), spread=2.5), classified(kind)
    start, heads = adversary.start(found), len(found.weights)
    noise = found.noise("adversary", 4 * heads)
    for copy in range(4):
        for head in range(heads):
            for row, position in found.mask.nonzero().tolist():
                drawn = norm.ppf(float(noise[copy * heads + head, row, position]))
                expected = -math.log(int(found.mask[row].sum())) + 2.5 * drawn
                assert float(start[copy, head, row, position]) == pytest.approx(expected)
    assert (start.softmax(-1)[:, :, ~found.mask] == 0).all()
    for row, text in enumerate(one_by_one(kind)):
        close(adversary.start(text)[:, :, 0], start[:, :, row, : text.mask.size(1)])


def given(weights: Tensor) -> Callable[[ClassifiedBatch], Tensor]:
    return lambda _: weights


def test_the_farthest_of_the_accepted_copies_is_chosen_or_the_own_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    found = classified("flat")
    adversary = Adversary(copies=6, epsilon=0.02, tolerance=0.1, epsilons=(1, 0.05, 1e-6))
    # Some near to the attention, others far from it: every number of them is accepted for some text.
    mixed = torch.linspace(0, 1, 6, dtype=torch.float64)[:, None, None, None] ** 3
    copies = (1 - mixed) * found.weights + mixed * adversary.start(found).softmax(-1)
    copies[:, :, 1] = torch.tensor([[1.0, 0, 0, 0, 0, 0, 0]], dtype=torch.float64)
    copies[:, :, 5] = found.weights[:, 5].flip(-1).roll(2, -1)
    monkeypatch.setattr(adversary, "search", given(copies))
    measured = measurements(adversary, found)
    accepted_copies = set()
    for row in range(len(TEXTS)):
        text = classified("flat", [row])
        candidates = [*copies[:, :, row, : text.mask.size(1)], text.weights[:, 0]]
        distances = [float(slow_tvd(output(text, one), text.probabilities[0])) for one in candidates]
        divergences = [float(over_heads(one, text.weights[:, 0])) for one in candidates]
        for column, limit in (
            ("max_jsd", 0.1),
            ("max_jsd_strict", 0.02),
            ("max_jsd_at_1", 1),
            ("max_jsd_at_0.05", 0.05),
            ("max_jsd_at_1e-06", 1e-6),
        ):
            accepted = [place for place, distance in enumerate(distances) if distance <= limit]
            best = max(accepted, key=lambda place: divergences[place])
            assert float(measured.numbers[column][row]) == pytest.approx(divergences[best], abs=1e-9)
            if column == "max_jsd":
                accepted_copies.add(len(accepted) - 1)
                assert float(measured.numbers["tvd"][row]) == pytest.approx(distances[best], abs=1e-9)
                chosen = measured.highlights["adversary"][row, : text.mask.size(1)]
                close(chosen, candidates[best].mean(0), atol=1e-7)
        assert float(measured.numbers["max_attention"][row]) == pytest.approx(float(text.attention.max()))
    assert len(accepted_copies) > 2


def test_several_starts_are_searches_of_their_own() -> None:
    found = classified("flat")
    three = with_constants(Adversary(copies=2, steps=20, starts=3), learning_rate=0.1)
    weights = three.search(found)
    assert len(weights) == 6
    # The first is that of a single start, and no later one knows of it.
    close(weights[:2], with_constants(Adversary(copies=2, steps=20), learning_rate=0.1).search(found))
    begun = three.start(found).softmax(-1)
    assert not torch.isclose(begun[:2], begun[2:4]).all()


def test_weights_that_are_exactly_0_and_a_single_copy_do_no_harm() -> None:
    found = classified("flat", dtype=torch.float32)
    for copies in (1, 5):
        adversary = with_constants(Adversary(copies=copies, steps=30), spread=1000)
        assert (adversary.start(found).softmax(-1)[:, :, found.mask] == 0).any()
        weights = adversary.search(found)
        assert weights.isfinite().all()
        close(weights.sum(-1), torch.ones(copies, 1, len(TEXTS)), atol=1e-6)
        numbers = measurements(adversary, found).numbers
        assert all(value.isfinite().all() for value in numbers.values())
        assert float(numbers["max_jsd_at_0.5"].max()) <= math.log(2)


def test_several_distributions_a_text_are_refused_with_a_remedy() -> None:
    with pytest.raises(FidelityError, match=r"adversary .* han, seed 0 has one for each sentence .*\.level sentence"):
        measurements(Adversary(steps=1), classified("han", level=WORD))


def result(variant: str, seed: int, values: list[tuple[float, float, float]]) -> CheckpointResult:
    names = ("max_attention", "max_jsd_at_0.1", "max_jsd_at_0.3")
    columns = dict(zip(names, zip(*values, strict=True), strict=True))
    return tiny.checkpoint_result("adversary", variant, seed, {**columns, "max_jsd": columns["max_jsd_at_0.3"]})


def test_the_curve_is_the_mean_over_the_texts_and_over_the_seeds_of_a_variant() -> None:
    nan = float("nan")
    results = [
        result("base", 0, [(0.2, 0.0, 0.1), (0.9, 0.2, 0.3), (nan, nan, nan)]),
        result("tying", 0, [(0.3, 0.0, 0.0), (0.3, 0.1, 0.1), (0.3, 0.2, 0.5)]),
        result("base", 1, [(0.2, 0.4, 0.6), (0.2, 0.4, 0.6), (nan, nan, nan)]),
    ]
    adversary = Adversary(epsilons=(0.3, 0.1))
    figures, tables = adversary.figures(results), adversary.tables(results)
    assert figures.keys() == tables.keys() == {"adversary", "adversary.curve"}
    curve = figures["adversary.curve"]
    assert isinstance(curve, Curves)
    assert list(curve.lines) == ["base", "tying"]
    for name, expected in (("base", [0.25, 0.4]), ("tying", [0.1, 0.2])):
        assert list(curve.lines[name][0]) == [0.1, 0.3]
        np.testing.assert_allclose(curve.lines[name][1], expected)
    assert tables["adversary.curve"].frame["checkpoint"].tolist() == [one.name for one in results for _ in range(2)]
    np.testing.assert_allclose(tables["adversary.curve"].frame["max_jsd"], [0.1, 0.2, 0.1, 0.2, 0.4, 0.6])
    assert tables["adversary"].frame["texts"].tolist() == [3, 1, 3]
