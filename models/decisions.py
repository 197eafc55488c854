"""Decisions of a text classifier on a split: what is gathered of them, and the result of a test."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from lightning_utilities.core.rank_zero import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor, nn

from attention_probing.datamodules import ClassificationDataModule, TextBatch
from attention_probing.datamodules.classification import class_counts
from attention_probing.metrics.classification import (
    CLASSIFICATION_RATIOS,
    class_table,
    classification_scores,
    confusion,
    majority_scores,
    mostly_one_label,
    ratio_columns,
    regression_scores,
)
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.models.losses import Average, Mean
from attention_probing.results import Estimate, Floats, HeatMap, Integers, Result, Unit, fill_sentence


class Decisions(NamedTuple):
    """Gold labels and outputs of a classifier for the texts of a split, in the order of the split.

    Attributes:
        texts: Index of each text in the split, `[texts]`.
        gold: Gold class of each text or, in a regression, gold number, `[texts]`.
        outputs: Probabilities `[texts, classes]` or, in a regression, predicted numbers `[texts]`.
    """

    texts: Integers
    gold: NDArray[Any]
    outputs: Floats

    def scores(self, positive: int | None, prefix: str = "", draws: int = 1000) -> dict[str, Estimate]:
        """Return the scores of the outputs against the gold labels, with 95 % intervals, by name.

        They are `accuracy`, `f1`, `auroc` and `mcc`, or in a regression `pearson`, `spearman` and `mse`.

        Args:
            positive: Index of the positive class of F1 and AUROC; None for macro means.
            prefix: Beginning of the names of the scores.
            draws: Number of bootstrap draws; 0 for no intervals.
        """
        if self.outputs.ndim == 1:
            return regression_scores(self.gold, self.outputs, prefix=prefix, draws=draws)
        return classification_scores(self.gold, self.outputs, positive, prefix=prefix, draws=draws)


class TermMeans(nn.Module):
    """Metric that averages each term of a loss over the texts or words of all batches and devices.

    Args:
        names: Names of the terms.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.averages = nn.ModuleDict({name: Average() for name in names})

    def add(self, terms: Mapping[str, Mean]) -> None:
        """Add the terms of the loss of one batch.

        Args:
            terms: By name of the term, its mean over the batch, and the number of texts or words in
                this mean.
        """
        for name, term in terms.items():
            self.averages[name].update(term.value.detach() * term.count, term.count)  # type: ignore[operator]

    def take(self) -> dict[str, float]:
        """Return the mean of each term by name, and reset the metric."""
        return {name: float(average.take()) for name, average in self.averages.items()}  # type: ignore[operator]


class SplitDecisions(nn.Module):
    """Losses and decisions of a classifier on the texts of a split.

    Args:
        regression: True if outputs and labels are numbers.
        names: Names of the terms of the loss.
    """

    def __init__(self, regression: bool, names: Sequence[str]) -> None:
        super().__init__()
        self.regression = regression
        self.losses = TermMeans(names)
        self.rows = Rows()

    def add(self, batch: TextBatch, logits: Tensor, terms: Mapping[str, Mean]) -> None:
        """Add a batch: its labels, the output for it, `[batch, classes]`, and the terms of its loss by name."""
        outputs = logits.detach()
        if not self.regression:
            # Logarithms, taken in double precision on the CPU: as float32 near 1 probabilities would tie.
            outputs = outputs.cpu().double().log_softmax(-1)
        self.rows.add(batch.index, gold=batch.labels, outputs=outputs)
        self.losses.add(terms)

    def decisions(self) -> Decisions:
        """Return the labels and outputs of all devices, and forget them."""
        rows = self.rows.take()
        if self.regression:
            return Decisions(rows[ITEM], rows["gold"], rows["outputs"][:, 0])
        return Decisions(rows[ITEM], rows["gold"].astype(np.int64), np.exp(rows["outputs"]))


def classification_result(
    data: ClassificationDataModule,
    dev: Decisions,
    test: Decisions,
    losses: Mapping[str, float],
    audit: Mapping[str, object],
) -> Result:
    """Return the result of a classifier: scores, table and figure from its decisions on dev and test.

    Args:
        data: The datamodule.
        dev: Gold labels and outputs on dev.
        test: Gold labels and outputs on test.
        losses: Terms of the loss on test, by name of the term.
        audit: Facts about the run to report with the result, by name.

    Returns:
        `accuracy`, `f1`, `auroc` and `mcc` on test, and on dev as `dev.<name>`, with intervals; `loss` and its terms
        `loss.<name>` on test; the `majority` baseline; the table `classes`, the figure `confusion`, and a row for
        each test text. In a regression the scores are `pearson`, `spearman` and `mse`, the baseline is `mean.mse`,
        the error of always predicting the mean of train, and there is no table or figure.
    """
    scores = test.scores(data.positive)
    unit: Unit = "ratio" if data.regression else "nats"
    scores["loss"] = Estimate(sum(losses.values()), unit=unit)
    for name, value in losses.items():
        scores[f"loss.{name}"] = Estimate(value, unit=unit)
    scores.update(dev.scores(data.positive, prefix="dev."))
    ids = data.splits["test"].ids
    items = pd.DataFrame({"text": test.texts, "id": [ids[text] for text in test.texts.tolist()]})
    if data.regression:
        return _regression_result(data, test, scores, items, audit)
    return _classes_result(data, test, scores, items, audit)


def _regression_result(
    data: ClassificationDataModule,
    test: Decisions,
    scores: dict[str, Estimate],
    items: pd.DataFrame,
    audit: Mapping[str, object],
) -> Result:
    items["gold"] = test.gold
    items["predicted"] = test.outputs
    items["squared_error"] = (test.gold - test.outputs) ** 2
    items["scored"] = np.ones_like(test.texts)
    mean_of_train = data.splits["train"].labels.mean()
    error_of_mean = float(((test.gold - mean_of_train) ** 2).mean())
    scores["mean.mse"] = Estimate(error_of_mean, unit="ratio")
    answer = (
        "Pearson's r of predicted and gold numbers of {n} texts is {pearson:ratio}; the mean squared error is {mse}, "
        "that of the mean of train {mean.mse}"
    )
    return Result(
        "regression",
        scores,
        audit=audit,
        items=items,
        ratios={"mse": ("squared_error", "scored")},
        headline=("pearson", "spearman", "mse"),
        answer=fill_sentence(answer, scores, n=len(items)),
    )


def _classes_result(
    data: ClassificationDataModule,
    test: Decisions,
    scores: dict[str, Estimate],
    items: pd.DataFrame,
    audit: Mapping[str, object],
) -> Result:
    labels = data.labels
    gold = test.gold
    predicted = test.outputs.argmax(axis=1)
    names = np.array(labels, dtype=object)
    items["gold"] = names[gold]
    items["predicted"] = names[predicted]
    for name, column in ratio_columns(gold, predicted, data.positive).items():
        items[name] = column
    for number, label in enumerate(labels):
        items[f"probability.{label}"] = test.outputs[:, number]
    scores.update(majority_scores(class_counts(data), gold, data.positive))
    answer = "the classifier is right on {accuracy} of {n} texts; always the most frequent label on {majority.accuracy}"
    one_label = mostly_one_label(gold, predicted, labels)
    if one_label:
        rank_zero_warn(f"The classifier {one_label}: compare its scores with those of `majority`. Train it again.")
        answer += f"; it {one_label}"
    counts = confusion(gold, predicted, len(labels))
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = HeatMap("Confusion", shares, labels, labels, "gold", "predicted", "share of the class", unit="fraction")
    return Result(
        "classification",
        scores,
        answer=fill_sentence(answer, scores, n=len(items)),
        tables={"classes": class_table(gold, predicted, labels)},
        figures={"confusion": figure},
        audit=audit,
        items=items,
        ratios={name: pair for name, pair in CLASSIFICATION_RATIOS.items() if set(pair) <= set(items)},
        shares=("accuracy",),
        headline=("accuracy", "f1", "majority.accuracy"),
    )
