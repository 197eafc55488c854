"""The search over all texts and copies against one text, one copy and one formula at a time."""

import itertools
import math
from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from attention_probing.fidelity.adversary import Adversary, Farthest, Search, pairs
from attention_probing.fidelity.checkpoints import Checkpoint
from attention_probing.fidelity.classified import ClassifiedBatch, classify
from attention_probing.fidelity.contract import CheckpointResult
from attention_probing.metrics.distributions import jsd, tvd
from attention_probing.models.text_classifier import WORD
from attention_probing.results import Curves
from attention_probing.results.errors import UserError
from tests.fidelity import tiny
from tests.fidelity.tiny import (
    KINDS,
    TEXTS,
    Kind,
    classified,
    close,
    copies_of,
    measurements,
    one_by_one,
    with_constants,
)
from tests.models.batches import VOCABULARY, batch_of


def slow_jsd(p: Tensor, q: Tensor) -> Tensor:
    """Half the sum of x log(2x / (p + q)) over both sides, where x has weight."""
    parts = ((x[x > 0] * (2 * x / (p + q))[x > 0].log()).sum() for x in (p, q))
    return sum(parts, torch.zeros(())) / 2


def over_heads(p: Tensor, q: Tensor) -> Tensor:
    return torch.stack([slow_jsd(*pair) for pair in zip(p, q, strict=True)]).mean()


def output(text: ClassifiedBatch, weights: Tensor) -> Tensor:
    """Probabilities of the classes when the whole model runs with other weights `[heads, positions]`."""
    imposed = {name: head[None] for name, head in zip(text.names, weights, strict=True)}
    found: Tensor = text.checkpoint.model(text.batch, imposed=imposed).logits[0].softmax(-1)
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
    logits = adversary.random_logits(text, "adversary", adversary.copies)[:, :, 0]
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
    adversary = with_constants(Adversary(steps=steps), copies=3, learning_rate=0.1, diversity=0.7)
    together = adversary.search_as_published(classified(kind, time=9 if kind != "han" else None))
    for row, text in enumerate(one_by_one(kind)):
        positions = text.mask.size(1)
        close(together[:, :, row, :positions], slow_search(adversary, text), atol=1e-6)
        assert not together[:, :, row, positions:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_begin_around_the_uniform_ones_and_are_drawn_for_each_text_by_itself(kind: Kind) -> None:
    adversary, found = with_constants(Adversary(), spread=2.5), classified(kind)
    start, heads = adversary.random_logits(found, "adversary", 4), len(found.weights)
    noise = found.noise("adversary", 4 * heads)
    for copy in range(4):
        for head in range(heads):
            for row, position in found.mask.nonzero().tolist():
                drawn = norm.ppf(float(noise[copy * heads + head, row, position]))
                expected = -math.log(int(found.mask[row].sum())) + 2.5 * drawn
                assert float(start[copy, head, row, position]) == pytest.approx(expected)
    assert (start.softmax(-1)[:, :, ~found.mask] == 0).all()
    for row, text in enumerate(one_by_one(kind)):
        close(adversary.random_logits(text, "adversary", 4)[:, :, 0], start[:, :, row, : text.mask.size(1)])


def test_the_farthest_of_the_accepted_copies_is_chosen_or_the_own_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    found = classified("flat")
    adversary = with_constants(Adversary("published"), copies=6, epsilon=0.02, tolerance=0.1, epsilons=(1, 0.05, 1e-6))
    # Some near to the attention, others far from it: every number of them is accepted for some text.
    mixed = torch.linspace(0, 1, 6, dtype=torch.float64)[:, None, None, None] ** 3
    copies = (1 - mixed) * found.weights + mixed * adversary.random_logits(found, "adversary", 6).softmax(-1)
    copies[:, :, 1] = torch.tensor([[1.0, 0, 0, 0, 0, 0, 0]], dtype=torch.float64)
    copies[:, :, 5] = found.weights[:, 5].flip(-1).roll(2, -1)
    monkeypatch.setattr(adversary, "search_as_published", lambda _: copies)
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
            assert float(measured[column][row]) == pytest.approx(divergences[best], abs=1e-9)
            if column == "max_jsd":
                accepted_copies.add(len(accepted) - 1)
                assert float(measured["tvd"][row]) == pytest.approx(distances[best], abs=1e-9)
                chosen = found.highlights["adversary"][row, : text.mask.size(1)]
                close(chosen, candidates[best].mean(0), atol=1e-7)
        assert float(measured["max_attention"][row]) == pytest.approx(float(text.attention.max()))
    assert len(accepted_copies) > 2


@cache
def with_labels(kind: Kind, labels: int) -> Checkpoint:
    """The tiny classifier of three labels with the first of them."""
    model = deepcopy(tiny.classifier(kind))
    decision = model.decision
    assert isinstance(decision, torch.nn.Linear)
    weight, bias = decision.weight[:labels].clone(), decision.bias[:labels].clone()
    decision.weight, decision.bias = (torch.nn.Parameter(part, requires_grad=False) for part in (weight, bias))
    return replace(tiny.checkpoint(kind), model=model)


def short_texts(kind: Kind, labels: int) -> list[ClassifiedBatch]:
    """Twenty texts of three and four positions that may get weight, all in one batch, and each by itself."""
    words = np.random.default_rng(0).integers(7, 16, (20, 4)).tolist()
    texts = [text[: 3 + place % 2] for place, text in enumerate(words)]
    found = []
    for rows in (range(20), *([row] for row in range(20))):
        chosen = [texts[row] for row in rows]
        places = [list(range(len(text))) for text in chosen] if kind == "han" else None
        batch = replace(batch_of(chosen, sentences=places), index=torch.tensor(list(rows)))
        one = classify(with_labels(kind, labels), batch, seed=0, vocabulary=VOCABULARY)[1]
        assert one is not None
        found.append(one)
    return found


@pytest.mark.parametrize("kind", ["flat", "transformer"])
def test_no_search_alone_finds_more(kind: Kind) -> None:
    found = classified(kind)
    options: dict[str, float] = {"copies": 3, "draws": 70, "tolerance": 0.1, "learning_rate": 0.1, "ascents": 3}
    adversary = with_constants(Adversary(steps=20), ascent_steps=30, **options)
    numbers = measurements(adversary, found)
    alone = measurements(with_constants(Adversary("published", 20), **options), found)
    assert alone.keys() == numbers.keys() - {"max_jsd_published", "max_jsd_strict_published"}
    chunks = [adversary.random_logits(found, f"adversary draws {first}", count) for first, count in ((0, 50), (50, 20))]
    draws = torch.cat(chunks).softmax(-1)
    for column, limit in (("max_jsd", 0.1), ("max_jsd_strict", 0.01)):
        close(numbers[f"{column}_published"], alone[column])
        accepted = tvd(found.decide(draws), found.probabilities) <= limit
        drawn = jsd(draws, found.weights).mean(1).masked_fill(~accepted, 0).amax(0)
        assert (numbers[column] >= torch.maximum(drawn, alone[column])).all()
        assert (numbers[column] > torch.maximum(drawn, alone[column]) + 1e-3).any()  # of the ascent
    assert (numbers["tvd"] <= 0.1).all()


def test_the_best_pair_is_that_of_a_loop_over_all_pairs() -> None:
    together, *alone = short_texts("flat", 2)
    limits = (0.01, 0.3)
    found = torch.cat(list(pairs(together, limits, 1e-6)))
    assert (found[:, :, ~together.mask] == 0).all()
    positions = together.mask.size(1)
    assert len(found) == positions + 2 * len(limits)
    for row, text in enumerate(alone):
        size, p = text.mask.size(1), float(text.probabilities[0, 1])
        single = [float(torch.logit(output(text, one[None])[1])) for one in torch.eye(size, dtype=torch.float64)]
        for place, (limit, sign) in enumerate(itertools.product(limits, (-1, 1))):
            best = -1.0
            for one, other in itertools.permutations(range(size), 2):
                if 0 < p + sign * limit * (1 - 1e-6) < 1:
                    edge = math.log((p + sign * limit * (1 - 1e-6)) / (1 - p - sign * limit * (1 - 1e-6)))
                    share = (edge - single[other]) / (single[one] - single[other])
                    if 0 < share < 1:
                        weights = torch.zeros(size, dtype=torch.float64)
                        weights[one], weights[other] = share, 1 - share
                        best = max(best, float(slow_jsd(weights, text.weights[0, 0])))
            ours = found[positions + place, 0, row, :size]
            close(ours.sum(), torch.tensor(1.0, dtype=torch.float64), atol=1e-9)
            if best < 0:  # no pair comes to that end: its own attention
                close(ours, text.weights[0, 0])
            else:
                assert float(slow_jsd(ours, text.weights[0, 0])) == pytest.approx(best, abs=1e-9)
                assert float(slow_tvd(output(text, ours[None]), text.probabilities[0])) == pytest.approx(
                    limit, rel=1e-3
                )


def test_a_candidate_without_a_distance_or_divergence_does_not_count() -> None:
    text = short_texts("flat", 2)[1]
    farthest = Farthest(text, [0.05], 0.05)
    nan = math.nan
    distance, divergence = torch.tensor([[nan], [0.01], [0.02]]), torch.tensor([[0.6], [nan], [0.25]]).double()
    farthest.keep(text.weights.expand(3, *text.weights.shape), distance, divergence)
    assert farthest.divergence[0.05].tolist() == [0.25]
    assert farthest.distance.tolist() == [pytest.approx(0.02)]


def test_several_distributions_a_text_are_refused_with_a_remedy() -> None:
    with pytest.raises(
        UserError, match=r"adversary .* han, seed 0 at level .* has one per sentence.*`level='sentence'`"
    ):
        measurements(Adversary(steps=1), classified("han", level=WORD))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("search", ["best", "published"])
def test_the_number_of_changed_copies_is_known_before(kind: Kind, search: Search) -> None:
    options = {"copies": 3, "draws": 20, "ascents": 4, "ascent_steps": 5}
    adversary = with_constants(Adversary(search, steps=7), **options)
    done, before = copies_of(adversary, classified(kind))
    assert done == before > 0


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
    adversary = with_constants(Adversary(), epsilons=(0.1, 0.3))
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
