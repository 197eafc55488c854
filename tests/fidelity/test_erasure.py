"""Weights erased in an order, against one text, one order and one forward pass for each erased weight."""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch

from fidelity import erasure
from fidelity.base import Score, Subject
from fidelity.checkpoints import Checkpoint, FidelityError
from fidelity.erasure import Last, SetErasure, first_flips
from fidelity.reading import Reading, read
from fidelity.saliency import RANKINGS
from metrics.bootstrap import Resampled, resample
from models.interface import WORD
from results import Spreads
from tests.fidelity.tiny import CLASSES, TEXTS, Kind, checkpoint, close, texts
from tests.fidelity.tiny import reading as reading_of
from tests.models.batches import VOCABULARY

RULES: tuple[Last, ...] = get_args(Last)
KINDS: list[tuple[Kind, str | None]] = [("flat", None), ("han", None), ("han", WORD), ("transformer", None)]


@cache
def on_the_edge(kind: Kind) -> Checkpoint:
    """A classifier that finds no class more likely than another, on the whole: its decisions flip easily."""
    found = checkpoint(kind)
    model = deepcopy(found.model)
    *_, bias = model.parameters()
    bias.sub_(reading_of(kind).output.logits.mean(0))
    return replace(found, model=model)


def reading(kind: Kind, rows: list[int] | None = None, time: int | None = None, level: str | None = None) -> Reading:
    _, found = read(on_the_edge(kind), texts(kind, rows, time), level, seed=0, pad=VOCABULARY.pad)
    assert found is not None
    return found


def one_by_one(kind: Kind, level: str | None) -> list[Reading]:
    return [reading(kind, [row], level=level) for row in range(len(TEXTS))]


def slow_decision(text: Reading, gone: set[int]) -> int:
    """The class when the whole model runs with the weights of some slots erased, in every head and group."""
    groups = text.groups[0].tolist()
    imposed = {}
    for name, head in zip(text.names, text.weights[:, 0].tolist(), strict=True):
        left = [0.0 if slot in gone else weight for slot, weight in enumerate(head)]
        sums = {group: sum(w for w, own in zip(left, groups, strict=True) if own == group) for group in groups}
        imposed[name] = torch.tensor(
            [[w / sums[own] if sums[own] else 0.0 for w, own in zip(left, groups, strict=True)]], dtype=torch.float64
        )
    return int(text.model(text.batch, imposed=imposed).logits[0].argmax())


def slow_flip(text: Reading, values: list[float], last: Last) -> int:
    """How many of the slots with the highest values go before the class changes; 0 for never."""
    slots = [slot for slot, inside in enumerate(text.mask[0].tolist()) if inside]
    order = sorted(slots, key=lambda slot: -values[slot])
    own = int(text.predicted)
    for count in range(1, len(order) + (last == "erase")):
        if slow_decision(text, set(order[:count])) != own:
            return count
    return 0


@pytest.mark.parametrize("last", RULES)
@pytest.mark.parametrize(("kind", "level"), KINDS)
def test_fraction_mass_and_never_flips_are_those_of_a_loop(kind: Kind, level: str | None, last: Last) -> None:
    test = SetErasure(draws=4, last=last)
    numbers = test.measure(reading(kind, time=9, level=level)).numbers
    assert set(numbers) == set(test.columns(CLASSES))
    never, partly, at_last = 0, 0, 0
    for row, text in enumerate(one_by_one(kind, level)):
        attention, slots = text.attention[0].tolist(), int(text.mask.sum())
        for ranking in RANKINGS:
            for draw, values in enumerate(text.saliency.rankings(ranking, 4)[:, 0].tolist(), 1):
                count = slow_flip(text, values, last)
                gone = sorted(range(len(values)), key=lambda slot: -values[slot])[:count]
                mass = sum(attention[slot] for slot in gone) / sum(attention)
                expected = (count / slots, mass, 0.0) if count else (1.0, 1.0, 1.0)
                never += not count
                partly += 1 < count < slots
                at_last += count == slots
                for column, value in zip(("fraction", "mass", "never"), expected, strict=True):
                    name = f"{ranking}.{column}" + f"_{draw}" * (ranking == "random")
                    assert float(numbers[name][row]) == pytest.approx(value, abs=1e-9), name
    assert never > 0
    assert partly > 0
    assert (at_last > 0) == (last == "erase")


@pytest.mark.parametrize(("kind", "level"), [("flat", None), ("han", None)])
def test_without_any_weight_the_bias_decides(kind: Kind, level: str | None) -> None:
    found = reading(kind, level=level)
    *_, bias = found.model.parameters()
    unlike = found.predicted.ne(int(bias.argmax()))
    assert set(unlike.tolist()) == {True, False}
    flips = first_flips(found, scattered(found, 6))
    assert (flips[:, unlike] > 0).all()
    assert (flips[:, ~unlike] < found.mask.sum(1)[~unlike]).all()


def scattered(found: Reading, orders: int) -> torch.Tensor:
    """Random orders in which two slots are equal."""
    values = found.noise("some orders", orders)
    values[:, :, 1] = values[:, :, 0]
    return values.masked_fill(~found.mask, -torch.inf)


@pytest.mark.parametrize("last", RULES)
@pytest.mark.parametrize(("kind", "level"), KINDS)
def test_flips_do_not_depend_on_rounds_and_passes(
    kind: Kind, level: str | None, last: Last, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = reading(kind, time=9, level=level)
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


def test_passes_are_bounded_and_what_flipped_is_tried_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reading("flat")
    orders, tried = scattered(whole, 6), list[torch.Size]()
    decide = Reading.decide

    def recorded(self: Reading, weights: torch.Tensor) -> torch.Tensor:
        tried.append(weights.shape)
        return decide(self, weights)

    monkeypatch.setattr(Reading, "decide", recorded)
    monkeypatch.setattr(erasure, "CELLS", 1)
    found = first_flips(whole, orders)
    # One text at a time: as many decisions as weights are erased one by one, and not one more.
    removed = torch.where(found == 0, whole.mask.sum(1), found)
    assert sum(shape[0] * shape[1] * shape[3] for shape in tried) == int(removed.sum())
    for cells in (8 * 7 * 6, 8 * 7 * 6 * 3, 1 << 12):  # hidden size, slots, orders
        tried.clear()
        monkeypatch.setattr(erasure, "CELLS", cells)
        torch.testing.assert_close(first_flips(whole, orders), found)
        assert max(shape[:-1].numel() * 8 for shape in tried) <= cells


def test_a_text_alone_has_the_same_as_in_a_padded_batch() -> None:
    for kind, level in KINDS:
        padded = SetErasure().measure(reading(kind, time=12, level=level)).numbers
        for row, alone in enumerate(one_by_one(kind, level)):
            for name, value in SetErasure().measure(alone).numbers.items():
                close(padded[name][row], value[0])


def subject(variant: str, seed: int, values: dict[str, list[float]]) -> Subject:
    frame = pd.DataFrame({"words": 3.0} | {f"erasure.{name}": column for name, column in values.items()})
    return Subject(f"{variant}, seed {seed}", variant, seed, 2, 1, frame, {})


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


def resampled(score: Score, frame: pd.DataFrame) -> Resampled:
    columns = [f"erasure.{column}" for column in score.columns]
    return resample(score.statistic, frame[columns], score.unit, draws=50)


def scores_of(test: SetErasure) -> dict[str, float]:
    frame = subject("base", 0, VALUES).values
    return {name: resampled(score, frame).value for name, score in test.scores(2, 1).items()}


def test_what_never_flips_is_left_out_of_medians_and_boxes_and_has_a_rate() -> None:
    test = SetErasure(["attention", "random"], draws=2)
    assert scores_of(test) == pytest.approx(
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
    other = subject("base", 1, {name: [0.1, 0.2, 0.0, 0.3] for name in VALUES} | {"attention.never": [0.0, 0, 1, 0]})
    (figure,) = test.figures([subject("base", 0, VALUES), subject("tying", 0, VALUES), other]).values()
    assert isinstance(figure, Spreads)
    assert figure.categories == ("attention", "random")
    assert figure.series["base"][0] == [0.2, 0.5, 1.0, 0.1, 0.2, 0.3]
    assert figure.series["tying"][1] == [0.9, 0.3, 0.7, 0.1, 1.0]  # every draw a value of its own
    assert figure.rates["base"][0] == pytest.approx(2 / 8)
    assert figure.rates["tying"] == pytest.approx([1 / 4, 3 / 8])


def test_a_ranking_that_flips_every_text_earlier_lies_below_random_orders() -> None:
    """Though random orders flip few texts, those soon, so that its median over what flips is the higher."""
    values = {"attention.fraction": [0.1, 0.4, 0.5, 0.6], "random.fraction_1": [0.2, 1.0, 1.0, 1.0]}
    values |= {"attention.never": [0.0] * 4, "random.never_1": [0.0, 1.0, 1.0, 1.0]}
    frame = subject("base", 0, values).values
    for last in RULES:
        score = SetErasure(["attention", "random"], draws=1, last=last).scores(2, 1)["attention.below_random"]
        found = resampled(score, frame)
        assert found.value == pytest.approx(1 - 0.45)


def test_where_the_last_weight_stays_what_never_flips_is_one_in_the_median() -> None:
    test = SetErasure(["attention", "random"], draws=2, last="keep")
    found = scores_of(test)
    assert "attention.last_flips" not in found
    assert found["attention.median_fraction"] == pytest.approx(0.75)
    assert found["random.median_fraction"] == pytest.approx((0.95 + 0.65) / 2)
    assert found["attention.below_random"] == pytest.approx(0.05)
    (figure,) = test.figures([subject("tying", 0, VALUES)]).values()
    assert isinstance(figure, Spreads)
    assert figure.series["tying"][0] == [0.2, 1.0, 0.5, 1.0]


def test_a_ranking_that_is_itself_random_is_not_above_or_below_random_orders() -> None:
    """The median of means over draws lies elsewhere than the median of single draws, whose kind a ranking is."""
    fractions = np.random.default_rng(0).choice([0.1, 0.2, 1.0], p=[0.3, 0.1, 0.6], size=(2000, 6))
    columns = ["attention.fraction", *(f"random.fraction_{draw}" for draw in range(1, 6))]
    values = dict(zip(columns, fractions.T.tolist(), strict=True))
    values |= {name.replace("fraction", "never"): [0.0] * 2000 for name in columns}
    frame = subject("base", 0, values).values
    score = SetErasure(["attention", "random"]).scores(2, 1)["attention.below_random"]
    found = resampled(score, frame)
    assert found.value == 0
    assert np.median(fractions[:, 1:].mean(1)) < 0.7  # which stood here once, 30 points below


def test_what_cannot_be_erased_is_refused() -> None:
    with pytest.raises(FidelityError, match="each once"):
        SetErasure([])
    with pytest.raises(FidelityError, match="each once"):
        SetErasure(["random", "attention", "random"])
    with pytest.raises(FidelityError, match="0 random orders"):
        SetErasure(draws=0)
