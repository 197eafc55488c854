"""Weights erased in an order, against one text, one order and one forward pass for each erased weight."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

from fidelity import erasure
from fidelity.base import Subject
from fidelity.checkpoints import Checkpoint, FidelityError
from fidelity.erasure import SetErasure, first_flips
from fidelity.reading import Reading, read
from fidelity.saliency import RANKINGS
from metrics.charts import Spreads
from metrics.resampling import estimate
from models.interface import WORD
from tests.fidelity.tiny import CLASSES, TEXTS, Kind, checkpoint, close, texts
from tests.fidelity.tiny import reading as reading_of
from tests.models.batches import VOCABULARY

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


def slow_flip(text: Reading, values: list[float]) -> int:
    """How many of the slots with the highest values go before the class changes; 0 for never."""
    slots = [slot for slot, inside in enumerate(text.mask[0].tolist()) if inside]
    order = sorted(slots, key=lambda slot: -values[slot])
    own = int(text.predicted)
    for count in range(1, len(order)):
        if slow_decision(text, set(order[:count])) != own:
            return count
    return 0


@pytest.mark.parametrize(("kind", "level"), KINDS)
def test_fraction_mass_and_never_flips_are_those_of_a_loop(kind: Kind, level: str | None) -> None:
    test = SetErasure(draws=4)
    numbers = test.measure(reading(kind, time=9, level=level)).numbers
    assert set(numbers) == set(test.columns(CLASSES))
    never, partly = 0, 0
    for row, text in enumerate(one_by_one(kind, level)):
        attention, slots = text.attention[0].tolist(), int(text.mask.sum())
        for ranking in RANKINGS:
            expected = []
            for values in text.saliency.rankings(ranking, 4)[:, 0].tolist():
                count = slow_flip(text, values)
                gone = sorted(range(len(values)), key=lambda slot: -values[slot])[:count]
                mass = sum(attention[slot] for slot in gone) / sum(attention)
                expected.append((count / slots, mass, 0.0) if count else (1.0, 1.0, 1.0))
                never += not count
                partly += count > 1
            for column, value in zip(("fraction", "mass", "never"), np.mean(expected, axis=0), strict=True):
                assert float(numbers[f"{ranking}.{column}"][row]) == pytest.approx(value, abs=1e-9), (ranking, column)
    assert never > 0
    assert partly > 0


def scattered(found: Reading, orders: int) -> torch.Tensor:
    """Random orders in which two slots are equal."""
    values = found.noise("some orders", orders)
    values[:, :, 1] = values[:, :, 0]
    return values.masked_fill(~found.mask, -torch.inf)


@pytest.mark.parametrize(("kind", "level"), KINDS)
def test_flips_do_not_depend_on_rounds_and_passes(
    kind: Kind, level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = reading(kind, time=9, level=level)
    orders, alone = scattered(whole, 6), one_by_one(kind, level)
    expected = torch.tensor(
        [[slow_flip(text, values) for text, values in zip(alone, order, strict=True)] for order in orders.tolist()]
    )
    assert set(expected.flatten().tolist()) > {0, 1}
    for cells, first in ((1, 4), (700, 1), (1 << 21, 1), (1 << 21, 8)):
        monkeypatch.setattr(erasure, "CELLS", cells)
        monkeypatch.setattr(erasure, "FIRST_ROUND", first)
        torch.testing.assert_close(first_flips(whole, orders), expected)


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
    removed = torch.where(found == 0, whole.mask.sum(1) - 1, found)
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


def test_a_never_flip_is_one_in_the_median_and_has_a_rate_of_its_own() -> None:
    test = SetErasure(["attention", "random"], draws=5)
    values = {
        "attention.fraction": [0.2, 1.0, 0.5, np.nan],
        "attention.mass": [0.6, 1.0, 0.9, np.nan],
        "attention.never": [0.0, 1.0, 0.0, np.nan],
        "random.fraction": [0.9, 1.0, 0.7, np.nan],
        "random.mass": [0.8, 1.0, 0.4, np.nan],
        "random.never": [0.2, 1.0, 0.0, np.nan],
    }
    frame = subject("base", 0, values).values
    scores = {
        name: estimate(score.statistic, frame[[f"erasure.{column}" for column in score.columns]], draws=50).value
        for name, score in test.scores(2, 1).items()
    }
    assert scores == pytest.approx(
        {
            "attention.median_fraction": 0.5,
            "attention.never_flips": 1 / 3,
            "attention.median_mass": 0.9,
            "attention.below_random": 0.4,
            "random.median_fraction": 0.9,
            "random.never_flips": 0.4,
            "random.median_mass": 0.8,
        }
    )
    assert not [name for name in SetErasure(["attention"]).scores(2, 1) if "random" in name]
    other = subject("base", 1, {name: [0.1, 0.2, 0.0, 0.3] for name in values})
    (figure,) = test.figures([subject("base", 0, values), subject("tying", 0, values), other]).values()
    assert isinstance(figure, Spreads)
    assert figure.categories == ("attention", "random")
    assert figure.series["base"][0] == [0.2, 1.0, 0.5, 0.1, 0.2, 0.0, 0.3]
    assert figure.series["tying"][1] == [0.9, 1.0, 0.7]
    assert figure.rates["base"][0] == pytest.approx(1.6 / 7)
    assert figure.rates["tying"] == pytest.approx([1 / 3, 0.4])


def test_random_orders_are_averaged() -> None:
    text = reading("flat", [2])
    numbers = SetErasure(["random"], draws=30).measure(text).numbers
    found = first_flips(text, text.saliency.rankings("random", 30))[:, 0]
    never, fraction = (found == 0).double().mean(), torch.where(found == 0, 7, found).double().mean() / 7
    assert 0 < never < 1
    close(numbers["random.never"], never[None])
    close(numbers["random.fraction"], fraction[None])


def test_what_cannot_be_erased_is_refused() -> None:
    with pytest.raises(FidelityError, match="each once"):
        SetErasure([])
    with pytest.raises(FidelityError, match="each once"):
        SetErasure(["random", "attention", "random"])
    with pytest.raises(FidelityError, match="0 random orders"):
        SetErasure(draws=0)
