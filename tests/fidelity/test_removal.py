"""Orders of removal against all permutations, and against the numbers of Edin et al. (2025)."""

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

from datamodules import ClassificationDataModule
from fidelity import rationale as rationale_module
from fidelity import removal as removal_module
from fidelity.checkpoints import Checkpoint
from fidelity.classified import Removal, selected
from fidelity.rationale import Rationale
from fidelity.removal import WIDTHS, EveryLength, chosen_width, removal_bounds, search_bounds, sets_read
from results import Flags, Floats
from results.errors import UserError
from results.progress import Progress
from tests.fidelity import tiny
from tests.fidelity.tiny import TEXTS, Kind, classified, classifier, measurements, saliency_of, texts

Falls = Callable[[Flags], Floats]


def bounds_of(falls: Falls, words: int, width: int | None = None) -> tuple[float, float]:
    """Send the search the falls of all sets that it asks for."""
    low, high = removal_bounds(words, lambda _, removed: falls(removed), width)
    return float(low[0]), float(high[0])


WEIGHTS = np.array([0.5, -0.3, 1, 0.2])


def probability(removed: Flags) -> Floats:
    """A decision that falls with each word, and once more without the first two."""
    together = removed[..., 0] & removed[..., 1]
    odds = 2 - (removed * WEIGHTS).sum(-1) - 1.5 * together
    found: Floats = 1 / (1 + np.exp(-odds))
    return found


def test_bounds_are_those_of_the_fixture() -> None:
    full, nothing = probability(np.zeros(4, np.bool_)), probability(np.ones(4, np.bool_))
    low, high = ((total + full - nothing) / 4 for total in bounds_of(lambda removed: full - probability(removed), 4))
    assert (full, low, high) == pytest.approx((0.880797, 0.171024, 0.387202), abs=5e-7)

    def aopc(order: tuple[int, ...]) -> float:
        return float(np.mean([full - probability(np.isin(np.arange(4), order[:k])) for k in (1, 2, 3, 4)]))

    for order, area, normalised in (((2, 0, 3, 1), 0.326544, 0.719409), ((0, 1, 2, 3), 0.377577, 0.955477)):
        assert aopc(order) == pytest.approx(area, abs=5e-7)
        assert (aopc(order) - low) / (high - low) == pytest.approx(normalised, abs=5e-7)
    assert (aopc((1, 3, 0, 2)) - low) / (high - low) == pytest.approx(0.260528, abs=5e-7)


@pytest.mark.parametrize("words", [2, 3, 5, 7])
def test_bounds_are_those_of_all_permutations(words: int) -> None:
    random, known = np.random.default_rng(words), dict[bytes, float]()

    def falls(removed: Flags) -> Floats:
        assert not removed.all(-1).any()
        assert len(np.unique(removed, axis=0)) == len(removed), "a set is read once"
        return np.array([known.setdefault(one.tobytes(), random.normal()) for one in removed])

    exact = bounds_of(falls, words)
    assert len(known) == sets_read(words, None) == 2**words - 2
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
    assert words - 1 <= sum(read) <= sets_read(words, 1) <= sets_read(words, None)
    assert exact[0] <= narrow[0] <= narrow[1] <= exact[1]
    assert min(abs(narrow[0] - one) for one in sums) < 1e-9, "a bound is the sum of an order"


@pytest.mark.parametrize("removal", ["delete", "mask"])
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_areas_are_those_of_texts_cut_by_hand(kind: Kind, removal: Removal) -> None:
    found = classified(kind, time=9)
    rankings = ("random", "attention", "leave_one_out")
    numbers = measurements(Rationale(rankings, draws=1, removal=removal, every_length=EveryLength()), found).numbers
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


def test_a_beam_encloses_every_ranking_and_says_where_it_did_not() -> None:
    found = classified("flat", time=9)
    rationale = Rationale(draws=3, every_length=EveryLength(exact=1, beam=1))
    numbers = measurements(rationale, found).numbers
    exact = measurements(Rationale(draws=3, every_length=EveryLength()), found).numbers
    assert not exact["widened"].any()
    for name, values in numbers.items():
        if "naopc" in name:
            assert ((values >= 0) & (values <= 1)).all(), name
    assert (numbers["lower"] >= exact["lower"] - 1e-9).all()
    assert (numbers["upper"] <= exact["upper"] + 1e-9).all()


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


def test_the_search_tells_its_progress_in_shortened_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(logging.getLogger("pytorch_lightning.progress"), "info", lines.append)
    monkeypatch.setattr("results.progress.FIRST", 0.0)
    monkeypatch.setattr("results.progress.EVERY", 0.0)
    monkeypatch.setattr(removal_module, "TOGETHER", 1)
    found = classified("flat")
    counts = found.words.sum(1).tolist()
    search_bounds(found, [None] * len(counts), "delete")
    total = sum(2**count - 2 for count in counts)
    assert len(lines) == sum(count - 1 for count in counts) - 1  # one for each size of a text, none at the end
    assert all(f" of {total:,} (" in line for line in lines)
    assert lines[0].startswith(f"Worst and best orders of {len(counts)} texts, shortened texts: ")


def test_one_long_text_tells_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(logging.getLogger("pytorch_lightning.progress"), "info", lines.append)
    monkeypatch.setattr("results.progress.FIRST", 0.0)
    monkeypatch.setattr("results.progress.EVERY", 0.0)
    monkeypatch.setattr("fidelity.classified.PASS", 1)  # a copy is a pass
    found = selected(classified("flat"), torch.tensor([0]))
    found = replace(found, progress=Progress("copies", float("inf")))
    count = int(found.words.sum())
    found.reread(torch.eye(found.words.size(1), dtype=torch.bool)[:, None] & found.words)
    assert [line.split(" in ")[0] for line in lines] == [f"copies: {copy + 1:,}" for copy in range(count)]
    selected(found, torch.tensor([0])).decide(found.weights.expand(5, *found.weights.shape))
    assert lines[-1].startswith(f"copies: {count + 5} in "), "decisions count too, also of selected texts"


def test_the_width_is_the_first_that_two_wider_ones_hardly_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(*distances: float) -> int:
        known = dict(zip(WIDTHS, distances, strict=True))

        def bounds(some: object, widths: list[int], removal: Removal) -> torch.Tensor:
            return torch.tensor([[0.0], [known[widths[0]]]])

        monkeypatch.setattr(removal_module, "search_bounds", bounds)
        return chosen_width([classified("flat")], "delete")

    assert chosen(1, 1, 1, 1, 1) == 1
    assert chosen(1, 2, 2.01, 2.02, 2.02) == 5
    assert chosen(1, 1, 2, 2, 2) == 10
    assert chosen(1, 2, 2.03, 2.03, 2.03) == 10, "1.5 % is too much"
    assert chosen(1, 1.005, 2, 2.01, 3) == 50
    assert chosen_width([], "delete") == 50  # no classifier has a text to search


def test_the_beam_is_chosen_on_the_texts_of_the_run_and_reported(
    checkpoints: Sequence[Checkpoint], data: ClassificationDataModule
) -> None:
    rationale, short = (Rationale(["attention"], every_length=EveryLength(exact=exact)) for exact in (1, 14))
    for one in (rationale, short):
        one.begin(checkpoints, data, torch.device("cpu"), 0)
    assert rationale.audit()["beam"] in WIDTHS
    assert short.audit() == {}


def test_the_work_is_told_for_the_texts_that_are_read(
    checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(rationale_module, "rank_zero_info", told.append)
    rationale = Rationale(["attention"], every_length=EveryLength(exact=14))
    read = [0, 2]
    for some in (None, read):
        rationale.read = some
        rationale.begin(checkpoints, data, torch.device("cpu"), 0)
    lengths = data.splits["test"].word_counts.tolist()
    for line, chosen in zip(told, (range(len(lengths)), read), strict=True):
        sets = sum(2 ** lengths[text] - 2 for text in chosen if lengths[text] > 1)
        assert f"orders of {len(chosen)} texts take up to {sets:,} shortened texts" in line
