"""Scores of a classifier, accuracy, F1, AUROC and MCC with intervals, and of a regression; a table of the classes.

With a positive class, F1 and AUROC are of that class; else they are macro means over the classes, for AUROC of each
class against the rest. The means ignore classes for which the value is undefined. AUROC counts ties half.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.statistics import Ratio, Statistic, mean, pearson, proportion, ratio, spearman
from attention_probing.results import Estimate, Floats, Integers, Table

CLASSIFICATION_RATIOS = {"accuracy": ("correct", "scored"), "f1": ("f1_right", "f1_found")}
"""Scores that divide two sums over the texts: accuracy, and F1 of one class."""


def ratio_columns(gold: Integers, predicted: Integers, positive: int | None) -> dict[str, Integers]:
    """Return the numerators and denominators of accuracy and F1 for each text, by name of the column.

    Each column is `[texts]`. A score is the sum of its numerators over texts divided by the sum of its
    denominators; `CLASSIFICATION_RATIOS` names the two columns of each. F1 is 2·right / (gold +
    predicted), counted for the class `positive`.

    Args:
        gold: Gold class of each text, `[texts]`.
        predicted: Predicted class of each text, `[texts]`.
        positive: Class of F1; None for no columns of F1.
    """
    columns = {"correct": (gold == predicted).astype(np.int64), "scored": np.ones_like(gold)}
    if positive is not None:
        is_gold = gold == positive
        is_predicted = predicted == positive
        columns["f1_right"] = 2 * (is_gold & is_predicted)
        columns["f1_found"] = is_gold.astype(np.int64) + is_predicted
    return columns


def confusion(gold: Integers, predicted: Integers, classes: int) -> Integers:
    """Return the confusion matrix of gold and predicted classes, int64 `[gold classes, predicted classes]`.

    Args:
        gold: Gold class of each text, `[texts]`.
        predicted: Predicted class of each text, `[texts]`.
        classes: Number of classes.
    """
    return np.bincount(gold * classes + predicted, minlength=classes**2).reshape(classes, classes)


def accuracy(table: NDArray[np.generic]) -> Floats:
    """Return the accuracy `[...]` from confusion matrices `[..., gold classes, predicted classes]`."""
    return ratio(np.trace(table, axis1=-2, axis2=-1), table.sum(axis=(-2, -1)))


def class_f1(table: NDArray[np.generic]) -> Floats:
    """Return the F1 of each class `[..., classes]` from confusion matrices `[..., gold classes, predicted classes]`.

    F1 is 2·right / (gold + predicted). It is nan for a class that is neither gold nor predicted for any text.
    """
    right = np.diagonal(table, axis1=-2, axis2=-1)
    return ratio(2 * right, table.sum(axis=-1) + table.sum(axis=-2))


def f1(table: NDArray[np.generic], positive: int | None) -> Floats:
    """Return F1 `[...]` from confusion matrices: of the class `positive`, or macro F1 if it is None.

    Args:
        table: Confusion matrices `[..., gold classes, predicted classes]`.
        positive: The class, or None.
    """
    each = class_f1(table)
    return each[..., positive] if positive is not None else _mean(each)


def matthews(table: NDArray[np.generic]) -> Floats:
    """Return the Matthews correlation R_K (Gorodkin 2004), `[...]`, from confusion matrices `[..., classes, classes]`.

    It is the correlation between the indicators of gold and predicted classes, from −1 to 1. It is 0 if all gold or
    all predicted classes are the same, as in scikit-learn, which GLUE uses for its scores. It is nan without texts.
    """
    gold = table.sum(axis=-1).astype(np.float64)
    predicted = table.sum(axis=-2).astype(np.float64)
    total = gold.sum(axis=-1)
    covariance = total * np.trace(table, axis1=-2, axis2=-1) - (gold * predicted).sum(axis=-1)
    gold_variance = total**2 - (gold**2).sum(axis=-1)
    predicted_variance = total**2 - (predicted**2).sum(axis=-1)
    spread = np.sqrt(gold_variance * predicted_variance)
    return np.where((spread == 0) & (total > 0), 0.0, ratio(covariance, spread))


def auroc(gold: Integers, probabilities: Floats, positive: int | None, weights: Floats) -> Floats:
    """Return the area under the ROC curve of the class `positive`, or the mean over classes if it is None.

    Args:
        gold: Gold class of each text, `[texts]`.
        probabilities: Probabilities of the classes, `[texts, classes]`, or other numbers that rank the texts.
        positive: The class, or None for the mean over classes, each against the rest.
        weights: Number of times that each text was drawn in each bootstrap resample, `[draws, texts]`.

    Returns:
        Areas `[draws]`. A class that has no texts, or all of them, has no area and is left out of the
        mean; nan if no class has an area.
    """
    if positive is not None:
        return area_under_roc(np.column_stack([gold == positive, probabilities[:, positive]]), weights)
    areas = []
    for label in range(probabilities.shape[1]):
        areas.append(area_under_roc(np.column_stack([gold == label, probabilities[:, label]]), weights))
    return _mean(np.stack(areas, axis=-1))


def area_under_roc(values: Floats, counts: Floats) -> Floats:
    """Return the area under the ROC curve of a number that ranks texts: Mann–Whitney U over the number of pairs.

    It is a statistic for `resample`.

    Args:
        values: Two columns, `[texts, 2]`: 1 for texts of the class, else 0; and the number, higher for the class.
        counts: Number of times that each text was drawn, `[draws, texts]`.

    Returns:
        Areas `[draws]`; nan if no text is of the class, or all are.
    """
    is_class = values[:, 0] > 0
    ranking = values[:, 1]
    order = np.argsort(ranking, kind="stable")
    ascending = ranking[order]
    if not len(order):
        return np.full(len(counts), np.nan)
    # Texts of one probability are one step of the curve.
    steps = np.flatnonzero(np.diff(ascending, prepend=np.nan) != 0)
    ours = np.add.reduceat(counts[:, order] * is_class[order], steps, axis=1)
    others = np.add.reduceat(counts[:, order] * ~is_class[order], steps, axis=1)
    below = others.cumsum(axis=1) - others / 2
    return ratio((ours * below).sum(axis=1), ours.sum(axis=1) * others.sum(axis=1))


def f1_score(positive: int | None, classes: int) -> Statistic:
    """Return a statistic for `resample`: F1 of the class `positive`, or macro F1 if it is None.

    F1 of a class is a share, in which a wrong decision for or against the class counts as half an item that is missed.
    The statistic reads two columns: gold class and predicted class.
    """
    if positive is None:
        return _of_confusions(lambda table: f1(table, None), classes)

    def counts(values: Floats) -> tuple[Floats, Floats]:
        gold, predicted = (values == positive).T
        return 1.0 * (gold & predicted), (1.0 * gold + predicted) / 2

    return Ratio(counts, share=True)


def mcc_score(classes: int) -> Statistic:
    """Return a statistic for `resample`: the Matthews correlation of gold and predicted classes.

    The statistic reads two columns: gold class and predicted class.
    """
    return _of_confusions(matthews, classes)


def _of_confusions(formula: Callable[[Floats], Floats], classes: int) -> Statistic:
    """Return a statistic of gold and predicted classes: a formula of their confusion matrices `[draws, …]`."""

    def statistic(values: Floats, weights: Floats) -> Floats:
        gold, predicted = values.astype(np.int64).T
        return formula(_confusions(weights, gold, np.eye(classes)[predicted]))

    return statistic


def f1_drop(positive: int | None, classes: int) -> Statistic:
    """Return a statistic for `resample`: the F1 of a classifier, minus its F1 after a change.

    F1 is that of the class `positive`, or macro F1 if it is None. A change, such as other attention
    weights, may be made several times, and then gives several decisions for a text. They are counted
    in one confusion matrix, in which each text counts 1, divided equally among its decisions.

    The statistic reads the columns `[texts, 2 + classes]`: the gold class, the class predicted before
    the change, and for each class the share of the decisions after the change that predict it.

    Args:
        positive: Class whose F1 is computed; None for macro F1.
        classes: Number of classes.
    """

    def statistic(values: Floats, weights: Floats) -> Floats:
        before = f1_score(positive, classes)(values[:, :2], weights)
        gold = values[:, 0].astype(np.int64)
        after = f1(_confusions(weights, gold, values[:, 2:]), positive)
        return before - after

    return statistic


def _lost(values: Floats) -> tuple[Floats, Floats]:
    """Return the right decisions that a change loses in each text, and 1 for each text; see `accuracy_drop`."""
    gold, predicted = values[:, :2].astype(np.int64).T
    shares = values[np.arange(len(values)), 2 + gold]
    return (gold == predicted) - shares, np.ones(len(values))


accuracy_drop = Ratio(_lost, signed=True)
"""Statistic of the accuracy of a classifier minus that of its decisions after a change.

A change, such as other attention weights, may give several decisions for a text, which then count with their shares.
The columns are `[texts, 2 + classes]`: gold class, predicted class, and, for each class, the share of the text's
changed decisions that predict it.
"""


def classification_scores(
    gold: Integers, probabilities: Floats, positive: int | None, *, prefix: str = "", draws: int = 1000, seed: int = 0
) -> dict[str, Estimate]:
    """Return `accuracy`, `f1`, `auroc` and `mcc` with 95 % intervals over texts, by name.

    The intervals are nan for fewer than two texts, or if `draws` is 0.

    Args:
        gold: Gold class of each text, `[texts]`.
        probabilities: Probabilities of the classes, `[texts, classes]`; the class with the highest probability is
            predicted, on a tie the first.
        positive: Class of F1 and AUROC; None for macro means.
        prefix: Beginning of the names of the scores.
        draws: Number of resamples.
        seed: Seed of the resampling.
    """

    def auroc_of(values: Floats, weights: Floats) -> Floats:
        return auroc(values[:, 0].astype(np.int64), values[:, 1:], positive, weights)

    predicted = probabilities.argmax(axis=1)
    correct = (gold == predicted)[:, None]
    decisions = np.column_stack([gold, predicted])
    classes = probabilities.shape[1]
    columns: dict[str, tuple[Statistic, Floats]] = {
        "accuracy": (proportion, correct),
        "f1": (f1_score(positive, classes), decisions),
        "auroc": (auroc_of, np.column_stack([gold, probabilities])),
        "mcc": (mcc_score(classes), decisions),
    }
    scores = {}
    for name, (statistic, values) in columns.items():
        scores[f"{prefix}{name}"] = resample(statistic, values, "fraction", draws=draws, seed=seed)
    return scores


def regression_scores(
    gold: Floats, predicted: Floats, *, prefix: str = "", draws: int = 1000, seed: int = 0
) -> dict[str, Estimate]:
    """Return `pearson`, `spearman` and the mean squared error `mse` with 95 % intervals over texts, by name.

    The intervals are nan for fewer than two texts, or if `draws` is 0.

    Args:
        gold: Gold number of each text, `[texts]`.
        predicted: Predicted number of each text, `[texts]`.
        prefix: Beginning of the names of the scores.
        draws: Number of resamples.
        seed: Seed of the resampling.
    """
    pairs = np.column_stack([gold, predicted])
    squares = ((gold - predicted) ** 2)[:, None]
    return {
        f"{prefix}pearson": resample(pearson, pairs, "fraction", draws=draws, seed=seed),
        f"{prefix}spearman": resample(spearman, pairs, "fraction", draws=draws, seed=seed),
        f"{prefix}mse": resample(mean, squares, "ratio", draws=draws, seed=seed),
    }


def majority_scores(train_counts: Integers, gold: Integers, positive: int | None) -> dict[str, Estimate]:
    """Return `majority.accuracy` and `majority.f1`, the scores of always predicting the majority class of train.

    Of several most frequent classes it is the one that is most frequent in test.

    Args:
        train_counts: Number of texts of each class in train, `[classes]`.
        gold: Gold class of each test text, `[texts]`.
        positive: Class of F1; None for macro F1.
    """
    most_frequent = np.flatnonzero(train_counts == train_counts.max())
    majority = max(most_frequent, key=lambda label: np.count_nonzero(gold == label))
    table = confusion(gold, np.full_like(gold, majority), len(train_counts))
    scores = {"majority.accuracy": accuracy(table), "majority.f1": f1(table, positive)}
    return {name: Estimate(float(score), unit="fraction") for name, score in scores.items()}


def mostly_one_label(gold: Integers, predicted: Integers, labels: Sequence[str]) -> str:
    """Return a sentence if at least 95 % of the predictions are one label, with the share that has it; else nothing.

    Args:
        gold: Gold class of each text, `[texts]`.
        predicted: Predicted class of each text, `[texts]`.
        labels: Names of the classes.
    """
    label = int(np.bincount(predicted).argmax())
    share = float((predicted == label).mean())
    right = float((gold == label).mean())
    if len(labels) < 2 or share < 0.95:
        return ""
    return f"predicts {labels[label]!r} for {share:.0%} of the texts, which is the label of {right:.0%}"


def class_table(gold: Integers, predicted: Integers, labels: Sequence[str]) -> Table:
    """Return a table with one row per class: its counts, precision, recall and F1.

    The columns are `label`, `n` (gold texts), `predicted` (predicted texts), `precision`, `recall`, `f1`, and `low`
    and `high`, the 95 % interval of F1.

    Args:
        gold: Gold class of each text, `[texts]`.
        predicted: Predicted class of each text, `[texts]`.
        labels: Names of the classes.
    """
    classes = len(labels)
    table = confusion(gold, predicted, classes)
    right = np.diag(table)
    of_gold = table.sum(axis=1)
    of_predicted = table.sum(axis=0)
    decisions = np.column_stack([gold, predicted])
    scores = [resample(f1_score(label, classes), decisions, "fraction") for label in range(classes)]
    frame = pd.DataFrame(
        {
            "label": list(labels),
            "n": of_gold,
            "predicted": of_predicted,
            "precision": ratio(right, of_predicted),
            "recall": ratio(right, of_gold),
            "f1": class_f1(table),
            "low": [score.low for score in scores],
            "high": [score.high for score in scores],
        }
    )
    shares = ("precision", "recall", "f1")
    return Table(frame, dict.fromkeys(shares, "fraction"), interval="f1", main=("label", *shares))


def _confusions(weights: Floats, gold: NDArray[np.int64], shares: Floats) -> Floats:
    """Return confusion matrices `[draws, classes, classes]` of texts with a share of each predicted class."""
    classes = shares.shape[1]
    cells = np.zeros((len(gold), classes, classes))
    cells[np.arange(len(gold)), gold] = shares
    return (weights @ cells.reshape(len(gold), -1)).reshape(-1, classes, classes)


def _mean(values: Floats) -> Floats:
    """Return the mean over the last axis, without nan."""
    defined = ~np.isnan(values)
    total = np.where(defined, values, 0.0).sum(axis=-1)
    return ratio(total, defined.sum(axis=-1))
