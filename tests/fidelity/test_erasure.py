"""Erased weights, against one text, one order and one forward pass for each erased weight."""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import get_args

import numpy as np
import pytest
import torch

from fidelity import erasure
from fidelity.checkpoints import Checkpoint
from fidelity.classified import ClassifiedBatch, classify
from fidelity.comparison import CheckpointResult
from fidelity.erasure import Last, SetErasure, SingleWeight, first_flips
from fidelity.saliency import RANKINGS
from results import Curves, Spreads
from tests.fidelity import tiny
from tests.fidelity.tiny import (
    LEVELS,
    TEXTS,
    Kind,
    checkpoint_result,
    measurements,
    scores_of,
    slow_jsd,
    texts,
    with_constants,
)
from tests.fidelity.tiny import classified as classified_of
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
    _, found = classify(on_the_edge(kind), texts(kind, rows, time), level, seed=0, vocabulary=VOCABULARY)
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
    numbers = measurements(test, classified(kind, time=9, level=level)).numbers
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
        monkeypatch.setattr(erasure, "CELLS", cells)
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
    assert not [name for name in SetErasure(["attention"]).scores(2, 1) if "random" in name]
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
    numbers = measurements(SingleWeight(), classified_of(kind, time=9, level=level)).numbers
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
