"""Attention with weights of exactly 0 in every fidelity test: against loops, text by text, and after a training."""

import json
import math
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from datamodules import ClassificationDataModule
from fidelity import (
    SetErasure,
    SingleWeight,
)
from fidelity.checkpoints import Checkpoint, load
from fidelity.classified import ClassifiedBatch, classify, renormalised
from fidelity.consistent_adversary import adversarial_loss
from fidelity.erasure import Last, first_flips
from fidelity.saliency import Saliency
from models import AttentionClassifier, EntmaxAttention, HierarchicalClassifier
from models.text_classifier import WORD, learned_alphas
from tests.fidelity import tiny
from tests.fidelity.tiny import SENTENCES, TEXTS, Kind, close, texts, with_constants
from tests.fidelity.trained import fitted
from tests.models.batches import VOCABULARY

LEVELS: tuple[tuple[Kind, str | None], ...] = (("flat", None), ("han", None), ("han", WORD))
LEARNED = "--model.init_args.attention={class_path: EntmaxAttention, init_args: {alpha: 1.6, learned: true}}"


@cache
def checkpoint(kind: Kind, scale: float) -> Checkpoint:
    """A small classifier with sparse attention in place of softmax; the higher `scale`, the sparser."""
    found = tiny.checkpoint(kind)
    model = deepcopy(found.model)
    for name in ("attention", "sentence_attention"):
        if hasattr(model, name):
            sparse = EntmaxAttention()
            sparse.scored = getattr(model, name)
            sparse.scored.query.weight.mul_(scale)  # type: ignore[union-attr, operator]
            setattr(model, name, sparse)
    return replace(found, model=model.eval())


def classified(
    kind: Kind, rows: list[int] | None = None, time: int | None = None, level: str | None = None, scale: float = 3
) -> ClassifiedBatch:
    batch = texts(kind, rows, time)
    _, found = classify(checkpoint(kind, scale), batch, level, seed=0, vocabulary=VOCABULARY)
    assert found is not None
    return found


def test_the_words_without_weight_are_erased_last_and_in_the_order_of_the_text() -> None:
    whole = classified("flat")
    ranks = Saliency(whole).rankings("attention", 1)[0].argsort(dim=-1, descending=True, stable=True)
    for row in range(len(TEXTS)):
        weights = whole.attention[row, : len(TEXTS[row])].tolist()
        expected = sorted(range(len(weights)), key=lambda place: (-weights[place], place))
        assert ranks[row, : len(weights)].tolist() == expected
    support = SetErasure().measure(whole, Saliency(whole)).numbers["support"]
    for row, text in enumerate(TEXTS):
        assert float(support[row]) == pytest.approx(sum(w > 0 for w in whole.attention[row].tolist()) / len(text))


@pytest.mark.parametrize("last", ["erase", "keep"])
@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_flips_are_those_of_a_loop_and_keep_leaves_a_weight(kind: Kind, level: str | None, last: Last) -> None:
    test, whole = (
        with_constants(SetErasure(["random", "attention"], last=last), draws=3),
        classified(kind, level=level, scale=2),
    )
    orders = torch.cat([Saliency(whole).rankings(ranking, 3) for ranking in ("random", "attention")])
    found, numbers = first_flips(whole, orders, last), test.measure(whole, Saliency(whole)).numbers
    emptied = 0
    for row in range(len(TEXTS)):
        one = classified(kind, [row], level=level, scale=2)
        weights, count = one.attention[0].tolist(), int(one.mask.sum())
        for order, values in enumerate(orders[:, row].tolist()):
            places = sorted(range(count), key=lambda place: -values[place])
            expected = 0
            for size in range(1, count + 1):
                if last == "keep" and not any(weights[place] for place in places[size:]):
                    break
                if np.argmax(tiny.slow_erasure(one, places[:size])) != int(one.predicted):
                    expected = size
                    break
            assert int(found[order, row]) == expected
            mass = numbers[f"random.mass_{order + 1}" if order < 3 else "attention.mass"][row]
            empty = expected > 0 and not any(weights[place] for place in places[expected:])
            assert (float(mass) == 1) == (empty or not expected)
            emptied += empty and expected < count
    if (last, kind) == ("erase", "flat"):
        assert emptied > 0, "a decision flips with the last weight, before the last word"


def test_a_tiny_weight_that_is_left_is_not_nothing() -> None:
    found = classified("flat", [0])
    (level,) = found.output.levels.values()
    weights = torch.tensor([[1 - 1e-30, 1e-30, 0, 0]], dtype=torch.float64)
    output = replace(found.output, levels={WORD: replace(level, weights=weights)})
    tested = replace(found, output=output)
    from fidelity.erasure import _shares

    rankings = torch.tensor([[[4.0, 3, 2, 1]]])
    assert float(_shares(tested, rankings, torch.tensor([[1]]))["mass"]) < 1
    assert float(_shares(tested, rankings, torch.tensor([[2]]))["mass"]) == 1


def test_without_the_only_word_that_has_weight_the_bias_decides() -> None:
    whole = classified("flat", scale=200)
    alone = (whole.attention > 0).sum(1) == 1
    assert alone.all()
    numbers = SingleWeight().measure(whole, Saliency(whole)).numbers
    bias = whole.checkpoint.model.decision.bias.softmax(-1)  # type: ignore[union-attr, operator]
    assert (numbers["alone"] == 1).all()
    assert numbers["flips_top"].tolist() == (whole.predicted != bias.argmax()).double().tolist()
    assert not numbers["flips_random"].any()  # it had no weight
    for row, probabilities in enumerate(whole.probabilities.tolist()):
        assert float(numbers["delta_js"][row]) == pytest.approx(tiny.slow_jsd(probabilities, bias.tolist()))
    without_any = renormalised(torch.zeros_like(whole.weights), whole.groups)
    assert torch.equal(without_any, torch.zeros_like(whole.weights))
    close(whole.decide(without_any), bias.expand(len(TEXTS), -1))


def test_a_sentence_without_weight_leaves_the_others_as_they_are() -> None:
    groups = torch.tensor([SENTENCES[0]])
    weights = torch.tensor([[0.0, 0.0, 0.3, 0.1]], requires_grad=True)
    found = renormalised(weights, groups)
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.0, 0.75, 0.25]]))
    (gradient,) = torch.autograd.grad(found[0, 2] + found[0, 0], weights)
    torch.testing.assert_close(gradient, torch.tensor([[0.0, 0.0, 0.625, -1.875]]))


def test_the_loss_of_an_adversary_is_finite_where_the_checkpoint_has_no_weight() -> None:
    same, base = torch.tensor([[0.6, 0.4]]), torch.tensor([[[1.0, 0.0, 0.0]]])
    weights = torch.tensor([[[0.5, 0.5, 0.0]]], requires_grad=True)
    found = adversarial_loss(same, weights, same, base, 0.1)
    tiny_number = torch.finfo(torch.float32).tiny
    expected = -0.1 * (0.5 * math.log(0.5) + 0.5 * (math.log(0.5) - math.log(tiny_number)))
    assert float(found.detach()) == pytest.approx(expected)
    (gradient,) = torch.autograd.grad(found, weights)
    assert gradient.isfinite().all()
    assert gradient[0, 0, 1] < gradient[0, 0, 0] < 0
    assert gradient[0, 0, 2] == 0


@pytest.mark.slow
def test_a_learned_alpha_is_trained_kept_in_the_checkpoint_and_reported(tmp_path: Path) -> None:
    run = fitted(tmp_path, "sparse", LEARNED, epochs=3)
    (path,) = run.rglob("*.ckpt")
    model = AttentionClassifier.load_from_checkpoint(path)
    assert isinstance(model.attention, EntmaxAttention)
    alpha = torch.as_tensor(model.attention.alpha).item()
    assert 1 < alpha < 2
    assert abs(alpha - 1.6) > 1e-3
    (results,) = run.rglob("results.json")
    assert json.loads(results.read_text())["audit"]["attention.alpha"] == pytest.approx(alpha)
    data = ClassificationDataModule(
        f"{tmp_path / 'texts'}/{{split}}.tsv", positive="good", cache=str(tmp_path / "stores")
    )
    data.setup("test")
    (again,) = load([path], data)
    assert learned_alphas(again.model) == {"attention.alpha": pytest.approx(alpha)}


def test_a_hierarchical_classifier_names_both_alphas() -> None:
    model = HierarchicalClassifier(
        *(
            part
            for each in range(2)
            for part in (deepcopy(tiny.classifier("han").encoder), EntmaxAttention(learned=True))
        )  # type: ignore[arg-type]
    )
    for attention in (model.attention, model.sentence_attention):
        attention.build(4)
    assert learned_alphas(model) == {"attention.alpha": 1.5, "sentence_attention.alpha": 1.5}
