"""Rationales and single words against texts that are cut by hand, and plausibility against libraries."""

import math
from dataclasses import replace
from statistics import fmean, pstdev
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import auc, precision_recall_curve
from torchmetrics.functional.classification import binary_average_precision

from fidelity.classified import ClassifiedBatch
from fidelity.rationale import Rationale, SingleToken, auprc, average_precision, rationale_lengths, span_overlap
from fidelity.saliency import RANKINGS
from results import HeatMap
from tests.fidelity import tiny
from tests.fidelity.tiny import SENTENCES, TEXTS, Kind, checkpoint_result, classified, classifier, measurements
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
    numbers = measurements(Rationale(fractions=FRACTIONS, draws=draws), found).numbers
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


def test_areas_are_those_of_the_libraries_with_ties_and_without() -> None:
    random = torch.Generator().manual_seed(0)
    words = torch.arange(12) < torch.randint(2, 13, (200, 1), generator=random)
    gold = (torch.rand(200, 12, generator=random) < 0.4) & words
    tied = torch.randint(0, 5, (200, 12), generator=random) / 5
    for values in (tied, torch.rand(200, 12, generator=random)):
        steps, trapezoids = average_precision(values, gold, words), auprc(values, gold, words)
        for row in range(200):
            if not gold[row].any():
                assert steps[row].isnan()
                assert trapezoids[row].isnan()
                continue
            inside = words[row]
            truth, ranked = gold[row][inside].long(), values[row][inside]
            tiny.close(steps[row], binary_average_precision(ranked, truth).double(), 1e-6)
            # What ERASER calls AUPRC.
            precision, recall, _ = precision_recall_curve(truth.numpy(), ranked.numpy())
            assert float(trapezoids[row]) == pytest.approx(auc(recall, precision), abs=1e-6)
    # Far from 0–1 too, where torchmetrics would take values for logits, and most of these for 1.
    values = torch.tensor([[100.0, 101.0, -300.0, 102.0]])
    found = average_precision(values, torch.tensor([[True, False, False, True]]), torch.ones(1, 4, dtype=torch.bool))
    assert found.item() == pytest.approx((1 + 2 / 3) / 2)


@pytest.mark.parametrize("kind", ["flat", "han"])
def test_plausibility_is_of_the_words_that_decide(kind: Kind) -> None:
    found = with_gold(classified(kind, time=9))
    numbers = measurements(Rationale(draws=2), found).numbers
    for row in range(len(TEXTS)):
        units = tiny.SENTENCES[row] if kind == "han" else range(len(TEXTS[row]))
        named = {units[place] for place, decides in enumerate(GOLD[row]) if decides}
        assert numbers["gold"][row] == len(named)
        words = int(found.words[row].sum())
        truth = torch.tensor([[position in named for position in range(words)]])
        inside = torch.ones(1, words, dtype=torch.bool)
        for ranking in RANKINGS:
            orders = tiny.saliency_of(found).rankings(ranking, 2)[:, row, :words]
            best = orders.argsort(dim=1, descending=True, stable=True)[:, : len(named)]
            expected = {
                "auprc": [auprc(values[None], truth, inside).item() for values in orders],
                "average_precision": [average_precision(values[None], truth, inside).item() for values in orders],
                "token_f1": truth[0][best].double().mean(1).tolist(),
            }
            for column, values in expected.items():
                value = numbers[f"{ranking}.{column}"][row].item()
                assert value == pytest.approx(np.mean(values), abs=1e-6, nan_ok=True), (ranking, column)


def flags(*spans: tuple[int, int]) -> list[bool]:
    return [any(low <= place < high for low, high in spans) for place in range(10)]


def test_spans_are_compared_as_in_eraser() -> None:
    """Numbers of its rationale_benchmark/metrics.py (3ae7641) for these spans."""
    predicted = torch.tensor([[flags((3, 6), (7, 9)), flags((4, 5)), flags((1, 3))]])
    gold = torch.tensor([flags((2, 5), (8, 9)), flags((0, 2)), flags()])
    precision, recall = span_overlap(predicted, gold)
    assert precision[0, :2].tolist() == [1, 0]
    assert recall[0, :2].tolist() == [1, 0]
    assert precision[0, 2].isnan()
    assert recall[0, 2].isnan()
    score = Rationale(["attention"]).scores(2, None)["attention.iou_f1"]
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
    numbers = measurements(SingleToken(), classified(kind, time=9)).numbers
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


@pytest.mark.parametrize("kind", ["flat", "han"])
def test_the_words_of_one_text_are_shown(kind: Kind) -> None:
    shown = 2
    split = SimpleNamespace(
        lengths=np.array([4, 16, 8, 9, 5, 2]), labels=[1] * 6, forms=lambda item: [f"word {n}" for n in range(7)]
    )
    found = classified(kind, time=9)
    test = SingleToken()
    test.begin([], cast(Any, SimpleNamespace(splits={"test": split}, labels=["bad", "good"])), found.mask.device, 0)
    values = {name: one.numpy() for name, one in measurements(test, found).numbers.items()}
    result = replace(checkpoint_result("single_token", "a", 0, values), name=found.checkpoint.name)
    figures = test.figures([result])
    assert "single_token.spread" in figures
    if kind == "han":  # its positions are sentences
        assert "single_token.text" not in figures
        return
    figure = figures["single_token.text"]
    assert isinstance(figure, HeatMap)
    assert (list(figure.row_labels), figure.value_label) == (["a"], "P(good)")
    assert list(figure.column_labels) == [f"word {n}" for n in range(7)]
    label = int(found.batch.labels[shown])
    alone = [classifier(kind)(batch_of([[word]])).logits.softmax(-1)[0, label].item() for word in TEXTS[shown]]
    assert figure.values[0] == pytest.approx(alone, abs=1e-6)


def test_scores_are_means() -> None:
    numbers = measurements(SingleToken(), classified("flat")).numbers
    scores = tiny.scores_of(SingleToken(), pd.DataFrame({name: values.numpy() for name, values in numbers.items()}))
    assert scores == pytest.approx({name: float(numbers[name].mean()) for name in ("spread", "mean", "full", "agree")})


def test_scores_of_the_fixture_are_those_of_eraser() -> None:
    """Macro IOU F1 .5, macro token F1 .3333, area .479167, average precision .58333 (metrics.py, 3ae7641)."""
    predicted = torch.tensor([[flags((3, 6), (7, 9)), flags((4, 5))]])
    gold = torch.tensor([flags((2, 5), (8, 9)), flags((0, 2))])
    spans = torch.stack(span_overlap(predicted, gold))[:, 0].T.numpy()
    iou = Rationale(["attention"]).scores(2, None)["attention.iou_f1"]
    assert iou.statistic(spans, np.ones((1, 2))) == pytest.approx([0.5])
    # As many words as are marked would be predicted by our `token_f1`; the mean of the F1 of the texts is the rule.
    shared = (predicted[0] & gold).sum(1)
    of_texts = 2 * shared / (predicted[0].sum(1) + gold.sum(1))
    score = Rationale(["attention"]).scores(2, None)["attention.token_f1"]
    assert score.statistic(of_texts.double().numpy()[:, None], np.ones((1, 2))) == pytest.approx([1 / 3])
    values = torch.tensor([[0.9, 0.1, 0.8, 0.3, 0.2], [0.2, 0.7, 0.1, 0.0, 0.0]], dtype=torch.float64)
    truth = torch.tensor([[True, False, False, True, False], [False, False, True, False, False]])
    words = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    assert auprc(values, truth, words).mean().item() == pytest.approx(0.479167, abs=1e-6)
    assert average_precision(values, truth, words).mean().item() == pytest.approx(0.58333, abs=1e-5)
