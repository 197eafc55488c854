"""Rationales, single words and orders of removal against texts cut by hand, libraries, and all permutations."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise, permutations
from statistics import fmean, pstdev

import numpy as np
import pandas as pd
import pytest
import torch

from attention_probing.fidelity import removal_orders as removal_module
from attention_probing.fidelity.classified import ClassifiedBatch, Removal
from attention_probing.fidelity.rationale import Rationale, plausibility, rationale_lengths
from attention_probing.fidelity.removal_orders import EveryLength, removal_bounds, search_bounds
from attention_probing.fidelity.saliency import RANKINGS, count_copies
from attention_probing.fidelity.single_token import SingleToken
from attention_probing.results import Flags, Floats
from attention_probing.results.errors import UserError
from tests.fidelity import tiny
from tests.fidelity.tiny import (
    SENTENCES,
    TEXTS,
    Kind,
    checkpoint_result,
    classified,
    classifier,
    measurements,
    saliency_of,
    texts,
    with_constants,
)
from tests.models.batches import batch_of

FRACTIONS = (0.1, 0.4, 0.6)
GOLD = ([0, 1, 0, 1], [0, 0], [1, 0, 0, 0, 0, 0, 1], [0, 1, 0], [1, 1, 1, 1, 1], [0, 0])
"""Deciding words of the texts; the second and the last have none."""


def with_gold(found: ClassifiedBatch) -> ClassifiedBatch:
    """The same texts with deciding words."""
    rationale = torch.zeros_like(found.batch.rationale)
    for row, text in enumerate(found.batch.index.tolist()):
        rationale[row, : len(GOLD[text])] = torch.tensor(GOLD[text], dtype=torch.bool)
    return replace(found, batch=replace(found.batch, rationale=rationale))


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_what_is_erased_and_what_is_left_are_texts_of_their_own(kind: Kind) -> None:
    found = classified(kind, time=9)
    draws = 3
    numbers = measurements(with_constants(Rationale(), fractions=FRACTIONS, draws=draws), found)
    for ranking in RANKINGS:
        for row in range(len(TEXTS)):
            label, positions = int(found.predicted[row]), found.words[row].nonzero().squeeze(1).tolist()
            words = len(positions)
            needed, enough = [], []
            for values in tiny.saliency_of(found).rankings(ranking, draws)[:, row].tolist():
                order = sorted(positions, key=lambda position: (-values[position], position))
                for fraction in FRACTIONS:
                    length = min(max(math.ceil(fraction * words), 1), words - 1)
                    needed.append(float(found.confidence[row] - tiny.slow_reread(kind, row, order[length:])[label]))
                    enough.append(float(found.confidence[row] - tiny.slow_reread(kind, row, order[:length])[label]))
            assert numbers[f"{ranking}.comprehensiveness"][row].item() == pytest.approx(np.mean(needed), abs=1e-9)
            assert numbers[f"{ranking}.sufficiency"][row].item() == pytest.approx(np.mean(enough), abs=1e-9)
    if kind != "transformer":  # whose words hardly matter
        assert numbers["leave_one_out.comprehensiveness"].mean() > numbers["random.comprehensiveness"].mean() + 0.05


def test_a_rationale_has_at_least_one_word_and_leaves_one() -> None:
    fractions = (0.01, 0.1, 0.2, 0.5, 0.99)
    lengths = rationale_lengths(torch.tensor([2, 5, 10, 30, 31]), fractions)
    assert lengths.T.tolist() == [
        [1, 1, 1, 1, 1],
        [1, 1, 1, 3, 4],
        [1, 1, 2, 5, 9],
        [1, 3, 6, 15, 29],
        [1, 4, 7, 16, 30],
    ]
    assert 0.07 * 100 > 7  # and yet 7 words of 100 are enough
    assert rationale_lengths(torch.tensor([100]), [0.07]).item() == 7


def slow_areas(values: list[float], gold: set[int]) -> dict[str, float]:
    """Areas under the curve of the points (recall, precision), one for each value as the threshold."""
    if not gold:
        return {"auprc": math.nan, "average_precision": math.nan}
    points = [(0.0, 1.0)]
    for threshold in sorted(set(values), reverse=True):
        chosen = {place for place, value in enumerate(values) if value >= threshold}
        points.append((len(chosen & gold) / len(gold), len(chosen & gold) / len(chosen)))
    steps = list(pairwise(points))
    return {
        "auprc": sum((x - before) * (y + y_before) / 2 for (before, y_before), (x, y) in steps),
        "average_precision": sum((x - before) * y for (before, _), (x, y) in steps),
    }


@pytest.mark.parametrize("kind", ["flat", "han"])
def test_plausibility_is_of_the_words_that_decide(kind: Kind) -> None:
    found = with_gold(classified(kind, time=9))
    numbers = measurements(with_constants(Rationale(), draws=2), found)
    for row in range(len(TEXTS)):
        units = tiny.SENTENCES[row] if kind == "han" else range(len(TEXTS[row]))
        gold = {units[place] for place, decides in enumerate(GOLD[row]) if decides}
        assert numbers["gold"][row] == len(gold)
        words = int(found.words[row].sum())
        for ranking in RANKINGS:
            orders = tiny.saliency_of(found).rankings(ranking, 2)[:, row, :words]
            areas = [slow_areas(order.tolist(), gold) for order in orders]
            best = orders.argsort(dim=1, descending=True, stable=True)[:, : len(gold)].tolist()
            right = [len(gold & set(one)) / len(gold) if gold else math.nan for one in best]
            expected = {"token_f1": right, **{name: [one[name] for one in areas] for name in areas[0]}}
            for column, values in expected.items():
                value = numbers[f"{ranking}.{column}"][row].item()
                assert value == pytest.approx(np.mean(values), abs=1e-6, nan_ok=True), (ranking, column)


def test_equal_words_are_one_point_of_the_curve() -> None:
    gold, words = torch.tensor([[True, False, False, True]]), torch.ones(1, 4, dtype=torch.bool)
    for order in ([100.0, 101, -300, 102], [1.0, 1, 0, 0], [0.0, 0, 0, 0], [2.0, 1, 1, 1]):
        found = plausibility(torch.tensor([[order]]), gold[None], gold, words)
        for name, value in slow_areas(order, {0, 3}).items():
            assert found[name].item() == pytest.approx(value)


def flags(*spans: tuple[int, int]) -> list[bool]:
    return [any(low <= place < high for low, high in spans) for place in range(10)]


def test_spans_are_compared_as_in_eraser() -> None:
    """Numbers of its rationale_benchmark/metrics.py (3ae7641) for these spans."""
    predicted = torch.tensor([[flags((3, 6), (7, 9)), flags((4, 5)), flags((1, 3))]])
    gold = torch.tensor([flags((2, 5), (8, 9)), flags((0, 2)), flags()])
    found = plausibility(predicted.float(), predicted, gold, torch.ones_like(gold))
    precision, recall = found["iou_precision"], found["iou_recall"]
    assert precision[0, :2].tolist() == [1, 0]
    assert recall[0, :2].tolist() == [1, 0]
    assert precision[0, 2].isnan()
    assert recall[0, 2].isnan()
    score = Rationale(["attention"]).scores()["attention.iou_f1"]
    assert score.columns == ["attention.iou_precision", "attention.iou_recall"]
    columns = np.stack([precision[0, :2].numpy(), recall[0, :2].numpy()], axis=1)
    assert score.statistic(columns, np.ones((1, 2))) == pytest.approx([0.5])
    uneven = np.array([[1.0, 0.5], [0.5, 0.25]])  # mean precision .75, mean recall .375
    assert score.statistic(uneven, np.ones((1, 2))) == pytest.approx([0.5])
    assert score.statistic(np.zeros((2, 2)), np.ones((1, 2))) == [0]


def test_plausibility_is_told_by_the_number_of_deciding_words() -> None:
    values = {
        "gold": [1, 2, 1, 5, 3, 0, np.nan],
        "attention.auprc": [0.1, 0.2, 0.3, 0.4, 0.6, np.nan, np.nan],
        "attention.average_precision": [0.5, 0.4, 0.7, 0.4, 0.2, np.nan, np.nan],
        "attention.token_f1": [0.0, 1.0, 1.0, 0.0, 0.5, np.nan, np.nan],
    }
    without = {name: [0.0 if name == "gold" else np.nan] for name in values}
    assert Rationale(["attention"]).tables([checkpoint_result("rationale", "a", 0, without)]) == {}
    (found,) = Rationale(["attention"]).tables([checkpoint_result("rationale", "a", 0, values)]).values()
    table = found.frame
    assert table["deciding words"].tolist() == ["1", "2", "3 or more"]
    assert table["texts"].tolist() == [2, 1, 2]
    assert table["auprc"].tolist() == pytest.approx([0.2, 0.2, 0.5])
    assert table["average_precision"].tolist() == pytest.approx([0.6, 0.4, 0.3])
    assert table["token_f1"].tolist() == pytest.approx([0.5, 1.0, 0.25])


@pytest.mark.parametrize("kind", ["flat", "han"])
def test_the_decision_on_each_word_alone(kind: Kind) -> None:
    numbers = measurements(SingleToken(), classified(kind, time=9))
    agreements = []
    for row, text in enumerate(TEXTS):
        batch = batch_of([text], sentences=[SENTENCES[row]])
        full = classifier(kind)(batch).logits.softmax(-1)[0].tolist()
        label = full.index(max(full))
        groups = SENTENCES[row] if kind == "han" else range(len(text))
        parts = [
            [text[place] for place in range(len(text)) if groups[place] == position] for position in sorted(set(groups))
        ]
        alone = [classifier(kind)(batch_of([part])).logits.softmax(-1)[0].tolist() for part in parts]
        of_label = [found[label] for found in alone]
        expected = {
            "full": full[label],
            "mean": fmean(of_label),
            "spread": pstdev(of_label),
            "min": min(of_label),
            "max": max(of_label),
            "agree": fmean(found.index(max(found)) == label for found in alone),
        }
        agreements.append(expected["agree"])
        for name, value in expected.items():
            assert numbers[name][row].item() == pytest.approx(value, abs=1e-6 if name == "agree" else 1e-9), name
    assert 0 < fmean(agreements) < 1


def test_scores_are_means() -> None:
    numbers = measurements(SingleToken(), classified("flat"))
    scores = tiny.scores_of(SingleToken(), pd.DataFrame({name: values.numpy() for name, values in numbers.items()}))
    assert scores == pytest.approx({name: float(numbers[name].mean()) for name in ("spread", "mean", "full", "agree")})


def test_areas_of_the_fixture_are_those_of_eraser() -> None:
    """Area .479167, average precision .58333 (metrics.py, 3ae7641)."""
    values = torch.tensor([[0.9, 0.1, 0.8, 0.3, 0.2], [0.2, 0.7, 0.1, 0.0, 0.0]], dtype=torch.float64)
    truth = torch.tensor([[True, False, False, True, False], [False, False, True, False, False]])
    words = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    found = plausibility(values[None], truth[None], truth, words)
    assert found["auprc"].mean().item() == pytest.approx(0.479167, abs=1e-6)
    assert found["average_precision"].mean().item() == pytest.approx(0.58333, abs=1e-5)


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
    numbers = measurements(with_constants(Rationale(rankings, removal, EveryLength()), draws=1), found)
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
    plain = measurements(Rationale(["attention"], every_length=EveryLength()), found)
    low = torch.tensor([[0.0], [1e-3]], dtype=torch.float64)
    monkeypatch.setattr(removal_module, "search_bounds", lambda some, widths, removal: low.repeat(1, len(widths)))
    for exact in (1, 14):
        numbers = measurements(Rationale(["attention"], every_length=EveryLength(exact=exact)), found)
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
    numbers = Rationale(["attention"], every_length=EveryLength()).measure(alike, saliency_of(alike))
    assert (numbers["attention.aopc"] != 0).any(), "rounding is not nothing"
    assert numbers["coincide"].all()
    assert numbers["attention.naopc"].isnan().all()
    assert not measurements(Rationale(["attention"], every_length=EveryLength()), found)["coincide"].any()


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
        monkeypatch.setattr(removal_module, "TEXTS_OF_SEARCH", 1)
        tiny.close(together, search_bounds(found, widths, "mask"))
        monkeypatch.undo()


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("removal", ["delete", "mask"])
def test_the_number_of_changed_copies_is_known_before_if_no_copy_is_met_twice(kind: Kind, removal: Removal) -> None:
    for every_length in (None, EveryLength()):
        done, before = tiny.copies_of(Rationale(["random", "attention"], removal, every_length), classified(kind))
        assert done == before > 0


def test_the_number_of_changed_copies_of_a_beam_search_is_at_most_what_is_said_before() -> None:
    every_length = EveryLength(exact=2, beam=2)
    done, before = tiny.copies_of(Rationale(every_length=every_length), classified("flat", time=9))
    assert 0.8 * before < done <= before
    widest = Rationale(["attention"], every_length=EveryLength(exact=2, beam=1000))  # all sets, as in an exact search
    exact = Rationale(["attention"], every_length=EveryLength())
    assert tiny.copies_of(widest, classified("flat", time=9)) == tiny.copies_of(exact, classified("flat", time=9))


def test_integrated_gradients_count_each_point_of_the_path_and_its_ends() -> None:
    found = classified("flat")
    progress = tiny.Count("count", 1000)
    tiny.saliency_of(replace(found, progress=progress)).signed_values("integrated_gradients")
    assert progress.total == count_copies({"integrated_gradients": "integrated_gradients"}, found) > 0
