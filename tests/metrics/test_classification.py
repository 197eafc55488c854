from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import matthews_corrcoef
from torchmetrics.functional.classification import binary_auroc, binary_f1_score, multiclass_auroc, multiclass_f1_score

from attention_probing.metrics.classification import (
    CLASSIFICATION_RATIOS,
    accuracy,
    auroc,
    class_table,
    classification_scores,
    confusion,
    f1,
    majority_scores,
    matthews,
    mcc_score,
    mostly_one_label,
    ratio_columns,
)
from attention_probing.metrics.statistics import pearson, spearman
from attention_probing.results import numbers
from tests.metrics.subsets import level_tail, sorted_ends, subsets


def scores_of(gold: np.ndarray, probabilities: np.ndarray, positive: int | None, **options: Any) -> dict[str, float]:  # noqa: ANN401
    return numbers(classification_scores(gold, probabilities, positive, **options))


def drawn(texts: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Gold classes, each of which occurs, and probabilities that know something of them, with ties among them."""
    random = np.random.default_rng(seed)
    gold = np.concatenate([np.arange(classes), random.integers(classes, size=texts - classes)])
    logits = random.normal(size=(texts, classes)) + 1.5 * np.eye(classes)[gold]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return gold, probabilities.round(1)  # coarse: many ties


@pytest.mark.parametrize(("positive", "classes"), [(0, 2), (1, 2), (None, 4)])
def test_scores_agree_with_torchmetrics(positive: int | None, classes: int) -> None:
    gold, probabilities = drawn(300, classes)
    predicted, target = torch.tensor(probabilities.argmax(axis=1)), torch.tensor(gold)
    if positive is None:
        f1 = multiclass_f1_score(predicted, target, classes, average="macro")
        auroc = multiclass_auroc(torch.tensor(probabilities), target, classes, average="macro")
    else:
        f1 = binary_f1_score((predicted == positive).int(), (target == positive).int())
        auroc = binary_auroc(torch.tensor(probabilities[:, positive]), (target == positive).int())
    found = scores_of(gold, probabilities, positive, draws=0)
    expected = {"accuracy": float((predicted == target).float().mean()), "f1": float(f1), "auroc": float(auroc)}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("classes", "positive"), [(2, 1), (3, None)])
def test_intervals_are_those_of_subsets_of_the_texts_one_by_one(classes: int, positive: int | None) -> None:
    """The slow way: copy the drawn texts, and score the copy."""
    gold, probabilities = drawn(60, classes, seed=1)
    found = scores_of(gold, probabilities, positive, draws=200, seed=3, prefix="dev.")
    slow = []
    for pick in subsets(60, 200, seed=3):
        table = confusion(gold[pick], probabilities[pick].argmax(axis=1), classes)
        area = auroc(gold[pick], probabilities[pick], positive, np.ones((1, len(pick))))
        slow.append([float(accuracy(table)), float(f1(table, positive)), float(area[0]), float(matthews(table))])
    for place, name in enumerate(("accuracy", "f1", "auroc", "mcc")):
        low, high = sorted_ends([row[place] for row in slow], level_tail(60))
        assert found[f"dev.{name}.low"] == pytest.approx(low)
        assert found[f"dev.{name}.high"] == pytest.approx(high)
        assert low < found[f"dev.{name}"] < high


@pytest.mark.parametrize("classes", [2, 4])
def test_matthews_correlation_is_scikit_learns_also_of_repeated_texts(classes: int) -> None:
    gold, probabilities = drawn(80, classes, seed=2)
    predicted = probabilities.argmax(axis=1)
    weights = np.random.default_rng(0).integers(0, 4, size=(5, 80)).astype(np.float64)
    found = mcc_score(classes)(np.column_stack([gold, predicted]).astype(np.float64), weights)
    picks = [np.repeat(np.arange(80), row.astype(int)) for row in weights]
    assert found == pytest.approx([matthews_corrcoef(gold[pick], predicted[pick]) for pick in picks])
    constant = confusion(gold, np.full_like(gold, 1), classes)
    assert matthews(constant) == matthews(constant.T) == matthews_corrcoef(gold, np.full_like(gold, 1)) == 0
    assert np.isnan(matthews(np.zeros((classes, classes))))


def test_what_is_not_defined_is_nan_and_nothing_else() -> None:
    gold = np.array([0, 0, 0])
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2]])
    scores = scores_of(gold, probabilities, 1)
    assert scores["accuracy"] == scores["accuracy.high"] == 1.0
    assert scores["accuracy.low"] == pytest.approx(0.025 ** (1 / 3))  # Clopper & Pearson, three of three
    assert np.isnan([scores["f1"], scores["f1.low"], scores["auroc"], scores["auroc.high"]]).all()
    macro = scores_of(gold, probabilities, None)
    assert macro["f1"] == 1.0  # the class that is nowhere is left out of the mean
    single = scores_of(gold[:1], probabilities[:1], None)
    assert single["accuracy"] == 1.0
    assert np.isnan(single["accuracy.low"])
    empty = scores_of(gold[:0], probabilities[:0], 1)
    assert np.isnan(list(empty.values())).all()


def test_majority_is_that_of_the_training_data() -> None:
    gold = np.array([1, 1, 1, 0])
    assert numbers(majority_scores(np.array([7, 3]), gold, 1)) == {"majority.accuracy": 0.25, "majority.f1": 0.0}
    assert numbers(majority_scores(np.array([3, 7]), gold, 1)) == {"majority.accuracy": 0.75, "majority.f1": 6 / 7}
    for tie in ([5, 5, 1], [1, 5, 5]):  # counts for the baseline
        assert numbers(majority_scores(np.array(tie), gold, None))["majority.accuracy"] == 0.75


@pytest.mark.parametrize(("other", "says"), [(0, True), (1, True), (2, False)])
def test_predictions_of_one_label_are_told(other: int, says: bool) -> None:
    gold = np.arange(20) % 2
    predicted = np.array([0] * other + [1] * (20 - other))
    assert mostly_one_label(gold, predicted, ["only"]) == ""
    share = f"predicts 'good' for {100 - 5 * other}% of the texts, which is the label of 50%"
    assert mostly_one_label(gold, predicted, ["bad", "good"]) == share * says


def exact_f1(gold: np.ndarray, predicted: np.ndarray, label: int) -> tuple[float, float]:
    """The interval of Clopper & Pearson of F1, in which a wrong decision is half an item that is missed."""
    found, items = [], []
    for one, other in zip(gold.tolist(), predicted.tolist(), strict=True):
        found.append(float(one == other == label))
        items.append(((one == label) + (other == label)) / 2)
    share = sum(found) / sum(items)
    variance = sum((f - share * n) ** 2 for f, n in zip(found, items, strict=True)) / sum(items) ** 2
    trials = min(sum(items), share * (1 - share) / variance)
    right = share * trials
    low = stats.beta.ppf(0.025, right, trials - right + 1)
    return float(low), float(stats.beta.ppf(0.975, right + 1, trials - right))


def test_each_class_has_its_row() -> None:
    gold = np.array([0, 0, 0, 1, 1, 2])
    predicted = np.array([0, 0, 1, 1, 0, 1])
    table = class_table(gold, predicted, ["a", "b", "c"]).frame
    assert table[["label", "n", "predicted"]].to_numpy().tolist() == [["a", 3, 3], ["b", 2, 3], ["c", 1, 0]]
    np.testing.assert_allclose(table["precision"], [2 / 3, 1 / 3, np.nan])
    np.testing.assert_allclose(table["recall"], [2 / 3, 1 / 2, 0])
    np.testing.assert_allclose(table["f1"], [2 / 3, 2 / 5, 0])
    assert table[["low", "high"]].iloc[2].isna().all()  # of one text
    for row in range(2):
        ends = table[["low", "high"]].to_numpy()[row].tolist()
        assert ends == pytest.approx(exact_f1(gold, predicted, row))
    gold, predicted = np.tile(gold, 10), np.tile(predicted, 10)
    table = class_table(gold, predicted, ["a", "b", "c"]).frame
    np.testing.assert_allclose(table["f1"], [2 / 3, 2 / 5, 0])
    for row in range(2):
        pairs = []
        for pick in subsets(60, 1000):
            right = ((gold[pick] == row) & (predicted[pick] == row)).sum()
            pairs.append(2 * right / ((gold[pick] == row).sum() + (predicted[pick] == row).sum()))
        ends = table[["low", "high"]].to_numpy()[row].tolist()
        texts = int(((gold == row) | (predicted == row)).sum())
        assert ends == pytest.approx(sorted_ends(pairs, level_tail(texts)))
    # Ten wrong decisions for or against the third class are five items, none of which is found.
    assert table[["low", "high"]].iloc[2].tolist() == pytest.approx([0, 1 - 0.025 ** (1 / 5)])


@pytest.mark.parametrize("positive", [1, None])
def test_sums_over_texts_give_the_scores_again(positive: int | None) -> None:
    gold, probabilities = drawn(80, 2)
    columns = ratio_columns(gold, probabilities.argmax(axis=1), positive)
    scores = scores_of(gold, probabilities, positive, draws=0)
    sums = {
        name: columns[up].sum() / columns[down].sum()
        for name, (up, down) in CLASSIFICATION_RATIOS.items()
        if up in columns
    }
    assert sums == pytest.approx({name: scores[name] for name in sums})
    assert ("f1" in sums) is (positive is not None)
    assert np.isnan(scores["f1.low"])


def drawn_numbers(texts: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Gold and predicted numbers with many ties, far from zero."""
    random = np.random.default_rng(seed)
    gold = random.integers(0, 6, size=texts) / 2 + 1e6
    return gold, (gold + random.normal(size=texts)).round(1)


def test_correlations_are_scipys_of_rows_as_often_as_they_were_drawn_numbers() -> None:
    gold, predicted = drawn_numbers(70)
    weights = np.random.default_rng(1).integers(0, 4, size=(6, 70)).astype(np.float64)
    picks = [np.repeat(np.arange(70), row.astype(int)) for row in weights]
    both = np.column_stack([gold, predicted])
    expected = [stats.pearsonr(gold[pick], predicted[pick]).statistic for pick in picks]
    assert pearson(both, weights) == pytest.approx(expected, abs=1e-9)
    expected = [stats.spearmanr(gold[pick], predicted[pick]).statistic for pick in picks]
    assert spearman(both, weights) == pytest.approx(expected, abs=1e-12)
