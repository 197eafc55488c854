"""Orders of removal against all permutations, and against the numbers of Edin et al. (2025)."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

from fidelity import rationale as removal_module
from fidelity.classified import Removal
from fidelity.rationale import EveryLength, Rationale, removal_bounds, search_bounds
from results import Flags, Floats
from results.errors import UserError
from tests.fidelity import tiny
from tests.fidelity.tiny import TEXTS, Kind, classified, classifier, measurements, saliency_of, texts, with_constants

Falls = Callable[[Flags], Floats]


def bounds_of(falls: Falls, words: int, width: int | None = None) -> tuple[float, float]:
    """Send the search the falls of all sets that it asks for."""
    low, high = removal_bounds(words, lambda _, removed: falls(removed), width)
    return float(low[0]), float(high[0])


@pytest.mark.parametrize("words", [2, 3, 5, 7])
def test_bounds_are_those_of_all_permutations(words: int) -> None:
    random, known = np.random.default_rng(words), dict[bytes, float]()

    def falls(removed: Flags) -> Floats:
        assert not removed.all(-1).any()
        assert len(np.unique(removed, axis=0)) == len(removed), "a set is read once"
        return np.array([known.setdefault(one.tobytes(), random.normal()) for one in removed])

    exact = bounds_of(falls, words)
    assert len(known) == 2**words - 2
    sums = []
    for order in permutations(range(words)):
        places = [np.isin(np.arange(words), order[:k]) for k in range(1, words)]
        sums.append(sum(known[place.tobytes()] for place in places))
    assert exact == pytest.approx((min(sums), max(sums)))
    assert bounds_of(falls, words, 2**words) == exact
    read: list[int] = []

    def counted(removed: Flags) -> Floats:
        read.append(len(removed))
        return falls(removed)

    narrow = bounds_of(counted, words, 1)
    assert words - 1 <= sum(read) <= len(known)
    assert exact[0] <= narrow[0] <= narrow[1] <= exact[1]
    assert min(abs(narrow[0] - one) for one in sums) < 1e-9, "a bound is the sum of an order"


@pytest.mark.parametrize("removal", ["delete", "mask"])
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_areas_are_those_of_texts_cut_by_hand(kind: Kind, removal: Removal) -> None:
    found = classified(kind, time=9)
    rankings = ("random", "attention", "leave_one_out")
    numbers = measurements(with_constants(Rationale(rankings, removal, EveryLength()), draws=1), found).numbers
    for row in range(len(TEXTS)):
        label, positions = int(found.predicted[row]), found.words[row].nonzero().squeeze(1).tolist()
        reads: dict[frozenset[int], float] = {}

        def fall(
            gone: list[int], row: int = row, label: int = label, reads: dict[frozenset[int], float] = reads
        ) -> float:
            if frozenset(gone) not in reads:
                left = [place for place in range(found.words.size(1)) if found.words[row, place] and place not in gone]
                again = tiny.slow_reread(kind, row, left) if removal == "delete" else masked(kind, row, gone)
                reads[frozenset(gone)] = float(found.confidence[row] - again[label])
            return reads[frozenset(gone)]

        last = len(positions) + (removal == "mask")

        def area(order: list[int], last: int = last) -> float:
            return float(np.mean([fall(order[:k]) for k in range(1, last)]))

        every = [area(list(order)) for order in permutations(positions)] if len(positions) < 6 else None
        for ranking in rankings:
            values = tiny.saliency_of(found).rankings(ranking, 1)[0, row]
            order = sorted(positions, key=lambda position: (-float(values[position]), position))
            assert numbers[f"{ranking}.aopc"][row].item() == pytest.approx(area(order), abs=1e-9)
            if every:
                low, high = min(every), max(every)
                expected = [(area(one) - low) / (high - low) for one in (order, order[::-1])]
                measured = [numbers[f"{ranking}.{name}"][row].item() for name in ("naopc", "naopc_ascending")]
                assert measured == pytest.approx(expected, abs=1e-7)
                assert numbers["lower"][row].item() == pytest.approx(low, abs=1e-9)
                assert numbers["upper"][row].item() == pytest.approx(high, abs=1e-9)


def masked(kind: Kind, row: int, gone: list[int]) -> torch.Tensor:
    """Probabilities of a text with the mask token at some positions."""
    batch = texts(kind, [row])
    found = classified(kind, [row])
    hidden = torch.isin(found.token_to_position, torch.tensor(gone))
    assert found.vocabulary.mask is not None
    tokens = batch.tokens.masked_fill(hidden, found.vocabulary.mask)
    logits: torch.Tensor = classifier(kind)(replace(batch, tokens=tokens)).logits
    return logits[0].softmax(-1)


def test_bounds_that_a_ranking_exceeds_are_widened_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = classified("flat", time=9)
    plain = measurements(Rationale(["attention"], every_length=EveryLength()), found).numbers
    low = torch.tensor([[0.0], [1e-3]], dtype=torch.float64)
    monkeypatch.setattr(removal_module, "search_bounds", lambda some, widths, removal: low.repeat(1, len(widths)))
    for exact in (1, 14):
        numbers = measurements(Rationale(["attention"], every_length=EveryLength(exact=exact)), found).numbers
        sums = plain["attention.aopc"] * (found.words.sum(1) - 1)
        assert (sums > 1e-3).any()
        assert ((numbers["attention.naopc"] >= 0) & (numbers["attention.naopc"] <= 1)).all()
        assert numbers["widened"][sums > 1e-3].tolist() == [exact == 1] * int((sums > 1e-3).sum())


def test_texts_whose_orders_are_alike_but_for_rounding_have_no_normalised_area() -> None:
    found = classified("flat", dtype=torch.float32)
    model = deepcopy(found.checkpoint.model)  # it is shared
    with torch.no_grad():
        model.decision.weight.mul_(1e-6)  # type: ignore[union-attr, operator]
        output = model(found.batch)
    alike = replace(found, checkpoint=replace(found.checkpoint, model=model), output=output)
    numbers = Rationale(["attention"], every_length=EveryLength()).measure(alike, saliency_of(alike)).numbers
    assert (numbers["attention.aopc"] != 0).any(), "rounding is not nothing"
    assert numbers["coincide"].all()
    assert numbers["attention.naopc"].isnan().all()
    assert not measurements(Rationale(["attention"], every_length=EveryLength()), found).numbers["coincide"].any()


def test_masking_without_a_mask_token_is_refused() -> None:
    found = classified("flat")
    without = replace(found, vocabulary=replace(found.vocabulary, mask=None))
    with pytest.raises(UserError, match="removal: mask needs a mask token"):
        without.reread(without.words[None], "mask")


def test_texts_searched_together_have_the_bounds_of_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    found = classified("flat", time=9)
    for widths in ([None, 1, 2, None][: len(found.words)], [1] * len(found.words)):
        widths = (widths * len(found.words))[: len(found.words)]
        together = search_bounds(found, widths, "mask")
        monkeypatch.setattr(removal_module, "TOGETHER", 1)
        tiny.close(together, search_bounds(found, widths, "mask"))
        monkeypatch.undo()
