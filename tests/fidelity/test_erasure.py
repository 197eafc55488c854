"""Erased and replaced weights, some of them 0, against one text, one order and one forward pass at a time."""

import json
import math
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch

from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity import erasure
from attention_probing.fidelity.checkpoints import Checkpoint, load_checkpoints
from attention_probing.fidelity.classified import ClassifiedBatch, classify, renormalise
from attention_probing.fidelity.consistent_adversary import adversarial_loss
from attention_probing.fidelity.contract import CheckpointResult
from attention_probing.fidelity.erasure import Last, SetErasure, SingleWeight, _shares, first_flips
from attention_probing.fidelity.highest_weight import WEIGHT_BINS
from attention_probing.fidelity.permutation import Permutation
from attention_probing.fidelity.perturbation import Perturbation
from attention_probing.fidelity.saliency import RANKINGS, Saliency
from attention_probing.models import AttentionClassifier, EntmaxAttention, HierarchicalClassifier
from attention_probing.models.text_classifier import WORD, learned_alphas
from attention_probing.results import Curves, Spreads
from tests.fidelity import tiny
from tests.fidelity.tiny import (
    CLASSES,
    LEVELS,
    SENTENCES,
    TEXTS,
    Kind,
    checkpoint_result,
    classified as classified_of,
    close,
    measurements,
    prepared,
    scores_of,
    slow_decision,
    slow_jsd,
    texts,
    with_constants,
)
from tests.fidelity.trained import fitted
from tests.models.batches import VOCABULARY

RULES: tuple[Last, ...] = get_args(Last)


@cache
def on_the_edge(kind: Kind) -> Checkpoint:
    """A classifier that finds no class more likely than another, on the whole: its decisions flip easily."""
    found = tiny.checkpoint(kind)
    model = deepcopy(found.model)
    *_, bias = model.parameters()
    bias.sub_(classified_of(kind).output.logits.mean(0))
    return replace(found, model=model)


def classified(
    kind: Kind, rows: list[int] | None = None, time: int | None = None, level: str | None = None
) -> ClassifiedBatch:
    _, found = classify(replace(on_the_edge(kind), level=level), texts(kind, rows, time), seed=0, vocabulary=VOCABULARY)
    assert found is not None
    return found


def one_by_one(kind: Kind, level: str | None) -> list[ClassifiedBatch]:
    return [classified(kind, [row], level=level) for row in range(len(TEXTS))]


def slow_flip(text: ClassifiedBatch, values: list[float], last: Last) -> int:
    """How many of the positions with the highest values go before the class changes; 0 for never."""
    positions = [position for position, inside in enumerate(text.mask[0].tolist()) if inside]
    order = sorted(positions, key=lambda position: -values[position])
    own = int(text.predicted)
    for count in range(1, len(order) + (last == "erase")):
        if np.argmax(tiny.slow_erasure(text, order[:count])) != own:
            return count
    return 0


@pytest.mark.parametrize("last", RULES)
@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_fraction_mass_and_never_flips_are_those_of_a_loop(kind: Kind, level: str | None, last: Last) -> None:
    test = SetErasure(last=last)
    numbers = measurements(test, classified(kind, time=9, level=level))
    never, partly, at_last = 0, 0, 0
    for row, text in enumerate(one_by_one(kind, level)):
        attention, positions = text.attention[0].tolist(), int(text.mask.sum())
        for ranking in RANKINGS:
            for draw, values in enumerate(tiny.saliency_of(text).rankings(ranking, 5)[:, 0].tolist(), 1):
                count = slow_flip(text, values, last)
                gone = sorted(range(len(values)), key=lambda position: -values[position])[:count]
                mass = sum(attention[position] for position in gone) / sum(attention)
                expected = (count / positions, mass, 0.0) if count else (1.0, 1.0, 1.0)
                never += not count
                partly += 1 < count < positions
                at_last += count == positions
                for column, value in zip(("fraction", "mass", "never"), expected, strict=True):
                    name = f"{ranking}.{column}" + f"_{draw}" * (ranking == "random")
                    assert float(numbers[name][row]) == pytest.approx(value, abs=1e-9), name
    assert never > 0
    assert partly > 0
    assert (at_last > 0) == (last == "erase")


@pytest.mark.parametrize("last", RULES)
@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_changed_copies_are_at_most_what_is_said_before_and_as_many_if_no_decision_flips(
    kind: Kind, level: str | None, last: Last
) -> None:
    test = SetErasure(last=last)
    done, before = tiny.copies_of(test, classified(kind, time=9, level=level))
    assert 0 < done < before
    certain = deepcopy(on_the_edge(kind))
    *_, bias = certain.model.parameters()
    bias[0] += 100
    _, text = classify(replace(certain, level=level), texts(kind, [2]), seed=0, vocabulary=VOCABULARY)
    assert text is not None
    done, before = tiny.copies_of(SetErasure(["random", "attention"], last), text)
    assert done == before


def scattered(found: ClassifiedBatch, orders: int) -> torch.Tensor:
    """Random orders in which two positions are equal."""
    values = found.noise("some orders", orders)
    values[:, :, 1] = values[:, :, 0]
    return values.masked_fill(~found.mask, -torch.inf)


@pytest.mark.parametrize("last", RULES)
@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_flips_do_not_depend_on_rounds_and_passes(
    kind: Kind, level: str | None, last: Last, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = classified(kind, time=9, level=level)
    orders, alone = scattered(whole, 6), one_by_one(kind, level)
    expected = torch.tensor(
        [
            [slow_flip(text, values, last) for text, values in zip(alone, order, strict=True)]
            for order in orders.tolist()
        ]
    )
    assert set(expected.flatten().tolist()) > {0, 1}
    for cells, first in ((1, 4), (700, 1), (1 << 21, 1), (1 << 21, 8)):
        monkeypatch.setattr(erasure, "WEIGHTS_OF_PASS", cells)
        monkeypatch.setattr(erasure, "FIRST_ROUND", first)
        torch.testing.assert_close(first_flips(whole, orders, last), expected)


def result(variant: str, seed: int, values: dict[str, list[float]]) -> CheckpointResult:
    return checkpoint_result("erasure", variant, seed, values)


VALUES = {
    "attention.fraction": [0.2, 1.0, 0.5, 1.0, np.nan],
    "attention.mass": [0.6, 1.0, 0.9, 1.0, np.nan],
    "attention.never": [0.0, 1.0, 0.0, 0.0, np.nan],
    "random.fraction_1": [0.9, 1.0, 0.7, 1.0, np.nan],
    "random.fraction_2": [0.3, 1.0, 0.1, 1.0, np.nan],
    "random.mass_1": [0.8, 1.0, 0.4, 1.0, np.nan],
    "random.mass_2": [0.2, 1.0, 0.6, 1.0, np.nan],
    "random.never_1": [0.0, 1.0, 0.0, 1.0, np.nan],
    "random.never_2": [0.0, 1.0, 0.0, 0.0, np.nan],
}
"""The second text never flips, the fourth when its last weight goes, the fifth was skipped."""


def test_what_never_flips_is_left_out_of_medians_and_boxes_and_has_a_rate() -> None:
    test = with_constants(SetErasure(["attention", "random"]), draws=2)
    assert scores_of(test, result("base", 0, VALUES).values) == pytest.approx(
        {
            "attention.median_fraction": 0.5,
            "attention.never_flips": 1 / 4,
            "attention.last_flips": 1 / 4,
            "attention.median_mass": 0.9,
            "attention.below_random": (0.95 + 0.65) / 2 - 0.75,  # over all texts
            "random.median_fraction": (0.8 + 0.3) / 2,
            "random.never_flips": 3 / 8,
            "random.last_flips": 1 / 8,
            "random.median_mass": (0.6 + 0.6) / 2,
        }
    )
    assert not [name for name in SetErasure(["attention"]).scores() if "random" in name]
    other = result("base", 1, {name: [0.1, 0.2, 0.0, 0.3] for name in VALUES} | {"attention.never": [0.0, 0, 1, 0]})
    (figure,) = test.figures([result("base", 0, VALUES), result("tying", 0, VALUES), other]).values()
    assert isinstance(figure, Spreads)
    assert figure.categories == ("attention", "random")
    assert figure.series["base"][0] == [0.2, 0.5, 1.0, 0.1, 0.2, 0.3]
    assert figure.series["tying"][1] == [0.9, 0.3, 0.7, 0.1, 1.0]  # every draw a value of its own
    assert figure.rates["base"][0] == pytest.approx(2 / 8)
    assert figure.rates["tying"] == pytest.approx([1 / 4, 3 / 8])


def test_where_the_last_weight_stays_what_never_flips_is_one_in_the_median() -> None:
    test = with_constants(SetErasure(["attention", "random"], last="keep"), draws=2)
    found = scores_of(test, result("base", 0, VALUES).values)
    assert "attention.last_flips" not in found
    assert found["attention.median_fraction"] == pytest.approx(0.75)
    assert found["random.median_fraction"] == pytest.approx((0.95 + 0.65) / 2)
    assert found["attention.below_random"] == pytest.approx(0.05)


@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_the_largest_and_a_random_other_weight_are_erased(kind: Kind, level: str | None) -> None:
    numbers = measurements(SingleWeight(), classified_of(kind, time=9, level=level))
    assert level or kind != "flat" or 0 < float(numbers["flips_top"].mean()) < 1
    for row in range(len(TEXTS)):
        text = classified_of(kind, [row], level=level)
        weights, noise = text.attention[0].tolist(), text.noise("single_weight", 1)[0, 0].tolist()
        positions = [position for position, inside in enumerate(text.mask[0].tolist()) if inside]
        top = max(positions, key=lambda position: weights[position])
        other = min((position for position in positions if position != top), key=lambda position: noise[position])
        own, without = (
            text.probabilities[0].tolist(),
            [tiny.slow_erasure(text, {position}) for position in (top, other)],
        )
        flips = [found.index(max(found)) != own.index(max(own)) for found in without]
        expected = {
            "delta_js": slow_jsd(own, without[0]) - slow_jsd(own, without[1]),
            "delta_weight": weights[top] - weights[other],
            "flips_top": float(flips[0]),
            "flips_random": float(flips[1]),
        }
        for name, value in expected.items():
            assert float(numbers[name][row]) == pytest.approx(value, abs=1e-9), name


def single_weights(variant: str, seed: int, top: list[float], other: list[float]) -> CheckpointResult:
    columns = {
        "delta_js": np.subtract(top, other) / 10,
        "delta_weight": np.add(top, 0.5),
        "flips_top": top,
        "flips_random": other,
    }
    return checkpoint_result("single_weight", variant, seed, columns)


def test_scores_table_and_figure() -> None:
    nan = float("nan")
    base = single_weights("base", 0, [1, 1, 0, 1, nan], [1, 0, 0, 0, nan])
    again = single_weights("base", 1, [0, 0, 0, 0, nan], [1, 1, 0, 0, nan])
    tying = single_weights("tying", 0, [0, 1, 1, 0, nan], [0, 0, 1, 0, nan])
    found = scores_of(SingleWeight(), base.values)
    assert found == pytest.approx({"flips_top": 0.75, "flips_random": 0.25, "delta_js": 0.05})
    (table,) = SingleWeight().tables([base, again, tying]).values()
    assert table.frame.to_dict("records") == [
        {"checkpoint": "base, seed 0", "texts": 4, "both": 0.25, "top_only": 0.5, "random_only": 0.0, "neither": 0.25},
        {"checkpoint": "base, seed 1", "texts": 4, "both": 0.0, "top_only": 0.0, "random_only": 0.5, "neither": 0.5},
        {"checkpoint": "tying, seed 0", "texts": 4, "both": 0.25, "top_only": 0.25, "random_only": 0.0, "neither": 0.5},
    ]
    (figure,) = SingleWeight().figures([base, again, tying]).values()
    assert isinstance(figure, Curves)
    assert {name: list(x) for name, (x, _) in figure.points.items()} == {
        "base": [1.5, 1.5, 0.5, 1.5],
        "tying": [0.5, 1.5, 1.5, 0.5],
    }
    assert list(figure.points["base"][1]) == pytest.approx([0.0, 0.1, 0.0, 0.1])
    assert list(figure.points["tying"][1]) == pytest.approx([0.0, 0.1, 0.0, 0.0])


def slow_uniform(text: ClassifiedBatch) -> list[float]:
    """1 / n on each of the n positions of a group."""
    groups = text.groups[0].tolist()
    return slow_decision(text, [[1 / groups.count(group) if group >= 0 else 0 for group in groups]] * len(text.names))


def slow_shuffles(text: ClassifiedBatch, purpose: str, draws: int) -> list[list[float]]:
    """Each position of a group gives its weight to another: the one with the least noise to the first of them."""
    groups, found = text.groups[0].tolist(), []
    for noise in text.noise(purpose, draws)[:, 0].tolist():
        givers = list(range(len(groups)))
        for group in set(groups) - {-1}:
            members = [position for position, own in enumerate(groups) if own == group]
            for position, giver in zip(members, sorted(members, key=lambda position: noise[position]), strict=True):
                givers[position] = giver
        found.append(slow_decision(text, [[head[giver] for giver in givers] for head in text.weights[:, 0].tolist()]))
    return found


@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_decisions_under_replaced_attention_are_those_of_a_loop(kind: Kind, level: str | None) -> None:
    numbers = measurements(Perturbation(), classified_of(kind, time=9, level=level))
    for row in range(len(TEXTS)):
        text = classified_of(kind, [row], level=level)
        own = int(text.predicted)
        assert int(numbers["own"][row]) == own
        assert int(numbers["gold"][row]) == row % CLASSES
        flat, shuffled = [slow_uniform(text)], slow_shuffles(text, "perturbation", 10)
        for name, outputs in (("uniform", flat), ("permuted", shuffled)):
            classes = [int(np.argmax(output)) for output in outputs]
            for place in range(CLASSES):
                assert float(numbers[f"{name}_class_{place}"][row]) == pytest.approx(
                    classes.count(place) / len(classes)
                )
            changed = sum(one != own for one in classes) / len(classes)
            assert float(numbers[f"{name}_flips"][row]) == pytest.approx(changed)


@pytest.mark.parametrize("draws", [5, 6])
@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_the_median_distance_is_that_of_a_loop(kind: Kind, level: str | None, draws: int) -> None:
    numbers = measurements(with_constants(Permutation(), permutations=draws), classified_of(kind, time=9, level=level))
    for row in range(len(TEXTS)):
        text = classified_of(kind, [row], level=level)
        own = text.probabilities[0].tolist()
        expected = np.median([tiny.slow_tvd(output, own) for output in slow_shuffles(text, "permutation", draws)])
        assert float(numbers["median_tvd"][row]) == pytest.approx(expected, abs=1e-9)
        highest = max(np.mean(text.weights[:, 0].tolist(), axis=0))
        assert float(numbers["max_attention"][row]) == pytest.approx(highest)


def test_drops_are_what_is_lost_and_are_positive_for_a_loss() -> None:
    test = prepared(Perturbation(), 2, 1)
    # gold, own, uniform: class 0, class 1, flips; permuted: class 0, class 1, flips
    rows = [
        [1, 1, 0, 1, 0, 0.5, 0.5, 0.5],
        [1, 1, 1, 0, 1, 0.5, 0.5, 0.5],
        [0, 0, 1, 0, 0, 1.0, 0.0, 0.0],
        [0, 1, 1, 0, 1, 0.0, 1.0, 0.0],
    ]
    kinds = ("uniform", "permuted")
    of_kinds = [f"{kind}_{what}" for kind in kinds for what in ("class_0", "class_1", "flips")]
    frame = pd.DataFrame(rows, columns=["gold", "own", *of_kinds])
    found = scores_of(test, frame)
    own = 2 * 2 / (2 + 3)
    assert found == pytest.approx(
        {
            "uniform_drop": own - 2 * 1 / (2 + 1),
            "permuted_drop": own - 2 * 1 / (2 + 2),
            # Of four texts three are right by themselves; uniform three again, permuted two: ½ + ½ + 1.
            "uniform_accuracy_drop": 0,
            "permuted_accuracy_drop": 0.25,
            "uniform_flips": 0.5,
            "permuted_flips": 0.25,
        }
    )
    # Class 0: right 1 of 2 gold and 1 found; with uniform attention 2 of 2 and 3.
    expected = (own + 2 * 1 / (2 + 1)) / 2 - (2 / 3 + 2 * 2 / (2 + 3)) / 2
    assert scores_of(prepared(test, 2), frame)["uniform_drop"] == pytest.approx(expected)


def of_shuffles(variant: str, seed: int, *values: tuple[float, float]) -> CheckpointResult:
    highest, distances = zip(*values, strict=True)
    return tiny.checkpoint_result("permutation", variant, seed, {"max_attention": highest, "median_tvd": distances})


def test_texts_are_shown_by_their_highest_weight_all_seeds_of_a_variant_together() -> None:
    nan = float("nan")
    results = [
        of_shuffles("base", 0, (0.2, 0.1), (0.25, 0.2), (1.0, 0.9), (nan, nan)),
        of_shuffles("tying", 0, (0.8, 0.4), (0.1, 0.0), (0.1, 0.2), (0.1, 0.7)),
        of_shuffles("base", 1, (0.74, 0.3), (0.5, 0.5), (0.24, 0.2), (nan, nan)),
    ]
    figure = Permutation().figures(results)["permutation"]
    assert isinstance(figure, Spreads)
    assert figure.categories == WEIGHT_BINS
    assert {name: list(map(list, bins)) for name, bins in figure.series.items()} == {
        "base": [[0.1, 0.2], [0.2], [0.3, 0.5], [0.9]],
        "tying": [[0.0, 0.2, 0.7], [], [], [0.4]],
    }
    table = Permutation().tables(results)["permutation"].frame
    assert table["variant"].tolist() == ["base"] * 4 + ["tying"] * 2
    assert table["max_attention"].tolist() == [*WEIGHT_BINS, WEIGHT_BINS[0], WEIGHT_BINS[3]]
    assert table["texts"].tolist() == [2, 1, 2, 1, 3, 1]
    np.testing.assert_allclose(table["mean_tvd"], [0.15, 0.2, 0.4, 0.9, 0.3, 0.4])
    np.testing.assert_allclose(table["median_tvd"], [0.15, 0.2, 0.4, 0.9, 0.2, 0.4])


WITHOUT_TRANSFORMER: tuple[tuple[Kind, str | None], ...] = (("flat", None), ("han", None), ("han", WORD))
LEARNED = "--model.attention={class_path: EntmaxAttention, init_args: {alpha: 1.6, learned: true}}"


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


def sparse_texts(
    kind: Kind, rows: list[int] | None = None, time: int | None = None, level: str | None = None, scale: float = 3
) -> ClassifiedBatch:
    batch = texts(kind, rows, time)
    _, found = classify(replace(checkpoint(kind, scale), level=level), batch, seed=0, vocabulary=VOCABULARY)
    assert found is not None
    return found


def test_the_words_without_weight_are_erased_last_and_in_the_order_of_the_text() -> None:
    whole = sparse_texts("flat")
    ranks = Saliency(whole).rankings("attention", 1)[0].argsort(dim=-1, descending=True, stable=True)
    for row in range(len(TEXTS)):
        weights = whole.attention[row, : len(TEXTS[row])].tolist()
        expected = sorted(range(len(weights)), key=lambda place: (-weights[place], place))
        assert ranks[row, : len(weights)].tolist() == expected
    support = SetErasure().measure(whole, Saliency(whole))["support"]
    for row, text in enumerate(TEXTS):
        assert float(support[row]) == pytest.approx(sum(w > 0 for w in whole.attention[row].tolist()) / len(text))


@pytest.mark.parametrize("last", ["erase", "keep"])
@pytest.mark.parametrize(("kind", "level"), WITHOUT_TRANSFORMER)
def test_flips_are_those_of_a_loop_and_keep_leaves_a_weight(kind: Kind, level: str | None, last: Last) -> None:
    test, whole = (
        with_constants(SetErasure(["random", "attention"], last=last), draws=3),
        sparse_texts(kind, level=level, scale=2),
    )
    orders = torch.cat([Saliency(whole).rankings(ranking, 3) for ranking in ("random", "attention")])
    found, numbers = first_flips(whole, orders, last), test.measure(whole, Saliency(whole))
    emptied = 0
    for row in range(len(TEXTS)):
        one = sparse_texts(kind, [row], level=level, scale=2)
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
    found = sparse_texts("flat", [0])
    (level,) = found.output.levels.values()
    weights = torch.tensor([[1 - 1e-30, 1e-30, 0, 0]], dtype=torch.float64)
    output = replace(found.output, levels={WORD: replace(level, weights=weights)})
    tested = replace(found, output=output)
    rankings = torch.tensor([[[4.0, 3, 2, 1]]])
    # In single precision too, in which rows are kept.
    assert float(_shares(tested, rankings, torch.tensor([[1]]))["mass"].float()) < 1
    assert float(_shares(tested, rankings, torch.tensor([[2]]))["mass"]) == 1


def test_without_the_only_word_that_has_weight_the_bias_decides() -> None:
    whole = sparse_texts("flat", scale=200)
    alone = (whole.attention > 0).sum(1) == 1
    assert alone.all()
    numbers = SingleWeight().measure(whole, Saliency(whole))
    bias = whole.checkpoint.model.decision.bias.softmax(-1)  # type: ignore[union-attr, operator]
    assert (numbers["alone"] == 1).all()
    assert numbers["flips_top"].tolist() == (whole.predicted != bias.argmax()).double().tolist()
    assert not numbers["flips_random"].any()  # it had no weight
    for row, probabilities in enumerate(whole.probabilities.tolist()):
        assert float(numbers["delta_js"][row]) == pytest.approx(tiny.slow_jsd(probabilities, bias.tolist()))
    without_any = renormalise(torch.zeros_like(whole.weights), whole.groups)
    assert torch.equal(without_any, torch.zeros_like(whole.weights))
    close(whole.decide(without_any), bias.expand(len(TEXTS), -1))


def test_a_sentence_without_weight_leaves_the_others_as_they_are() -> None:
    groups = torch.tensor([SENTENCES[0]])
    weights = torch.tensor([[0.0, 0.0, 0.3, 0.1]], requires_grad=True)
    found = renormalise(weights, groups)
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
    (again,) = load_checkpoints([path], data)
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


def test_the_answer_says_which_decisions_a_median_is_of() -> None:
    """Under `keep` decisions that never flip are in the median, with the fraction 1."""
    of_flipped = SetErasure().readings["median_fraction"].attention
    of_all = SetErasure(last="keep").readings["median_fraction"].attention
    assert of_flipped.startswith("of the decisions that flip, ")
    assert "that flip" not in of_all
    assert SetErasure().readings["median_fraction"].attention == of_flipped  # of this object alone
