"""The largest weight erased against a random other, text by text with the whole model."""

from dataclasses import replace
from math import log

import numpy as np
import pandas as pd
import pytest
import torch

from fidelity.base import Subject
from fidelity.reading import Reading
from fidelity.single_weight import SingleWeight
from metrics.bootstrap import resample
from models.interface import WORD, Level
from results import Curves
from tests.fidelity.tiny import CLASSES, TEXTS, Kind, close, reading

KINDS: list[tuple[Kind, str | None]] = [("flat", None), ("han", None), ("han", WORD), ("transformer", None)]


def slow_probabilities(text: Reading, gone: int) -> list[float]:
    """Of the classes, when the whole model runs without the weight of one slot, in every head."""
    groups = text.groups[0].tolist()
    imposed = {}
    for name, head in zip(text.names, text.weights[:, 0].tolist(), strict=True):
        left = [0.0 if slot == gone else weight for slot, weight in enumerate(head)]
        sums = {group: sum(w for w, own in zip(left, groups, strict=True) if own == group) for group in groups}
        imposed[name] = torch.tensor(
            [[w / sums[own] if sums[own] else 0.0 for w, own in zip(left, groups, strict=True)]], dtype=torch.float64
        )
    found: list[float] = text.model(text.batch, imposed=imposed).logits.softmax(-1)[0].tolist()
    return found


def slow_jsd(p: list[float], q: list[float]) -> float:
    return sum(a * log(2 * a / (a + b)) / 2 + b * log(2 * b / (a + b)) / 2 for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize(("kind", "level"), KINDS)
def test_the_largest_and_a_random_other_weight_are_erased(kind: Kind, level: str | None) -> None:
    numbers = SingleWeight().measure(reading(kind, time=9, level=level)).numbers
    assert set(numbers) == set(SingleWeight().columns(CLASSES))
    assert len({*numbers["delta_js"].tolist(), *numbers["delta_weight"].tolist()}) > len(TEXTS)
    for row in range(len(TEXTS)):
        text = reading(kind, [row], level=level)
        weights, noise = text.attention[0].tolist(), text.noise("single_weight", 1)[0, 0].tolist()
        slots = [slot for slot, inside in enumerate(text.mask[0].tolist()) if inside]
        top = max(slots, key=lambda slot: weights[slot])
        other = min((slot for slot in slots if slot != top), key=lambda slot: noise[slot])
        own, without = text.probabilities[0].tolist(), [slow_probabilities(text, slot) for slot in (top, other)]
        flips = [found.index(max(found)) != own.index(max(own)) for found in without]
        expected = {
            "delta_js": slow_jsd(own, without[0]) - slow_jsd(own, without[1]),
            "delta_weight": weights[top] - weights[other],
            "flips_top": float(flips[0]),
            "flips_random": float(flips[1]),
        }
        for name, value in expected.items():
            assert float(numbers[name][row]) == pytest.approx(value, abs=1e-9), name


def test_some_decisions_flip() -> None:
    numbers = SingleWeight().measure(reading("flat")).numbers
    assert 0 < float(numbers["flips_top"].mean()) < 1


def test_of_equal_weights_the_first_is_the_largest_and_is_never_the_other() -> None:
    found = reading("flat")
    level = found.output.levels[WORD]
    even = Level(level.mask / level.mask.sum(1, keepdim=True).double(), level.mask, level.hidden)
    for seed in range(20):
        equal = replace(found, seed=seed, output=replace(found.output, levels={WORD: even}))
        numbers = SingleWeight().measure(equal).numbers
        noise = equal.noise("single_weight", 1)[0]
        others = 1 + noise[:, 1:].argmin(1)
        ones = torch.nn.functional.one_hot(torch.stack([torch.zeros_like(others), others]), level.mask.size(1))
        left = even.weights * (1 - ones)
        flips = equal.decide((left / left.sum(-1, keepdim=True))[:, None]).argmax(-1) != equal.predicted
        close(torch.stack([numbers["flips_top"], numbers["flips_random"]]), flips.double())
        close(numbers["delta_weight"], torch.zeros(len(TEXTS), dtype=torch.float64))


def subject(variant: str, seed: int, top: list[float], other: list[float]) -> Subject:
    values = {
        "single_weight.delta_js": np.subtract(top, other) / 10,
        "single_weight.delta_weight": np.add(top, 0.5),
        "single_weight.flips_top": top,
        "single_weight.flips_random": other,
    }
    return Subject(f"{variant}, seed {seed}", variant, seed, 2, 1, pd.DataFrame(values), {})


def test_scores_table_and_figure() -> None:
    nan = float("nan")
    base = subject("base", 0, [1, 1, 0, 1, nan], [1, 0, 0, 0, nan])
    again = subject("base", 1, [0, 0, 0, 0, nan], [1, 1, 0, 0, nan])
    tying = subject("tying", 0, [0, 1, 1, 0, nan], [0, 0, 1, 0, nan])
    found = {
        name: resample(score.statistic, base.values[[f"single_weight.{of}" for of in score.columns]], score.unit).value
        for name, score in SingleWeight().scores(2, 1).items()
    }
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
