"""From what a classifier said of dev and test to scores beside the baseline, tables and figures."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from datamodules import ClassificationDataModule
from metrics.bootstrap import Floats
from metrics.classification import (
    RATIOS,
    Integers,
    class_table,
    classification_scores,
    confusion,
    majority_scores,
    ratio_columns,
)
from results import Estimate, HeatMap, Result


class Classified(NamedTuple):
    """The texts of a split.

    Attributes:
        texts: `[texts]` places in the split.
        gold: `[texts]` classes.
        probabilities: `[texts, classes]`.
    """

    texts: Integers
    gold: Integers
    probabilities: Floats

    @property
    def predicted(self) -> Integers:
        """Class of the highest probability, `[texts]`."""
        predicted: Integers = self.probabilities.argmax(axis=1)
        return predicted


def classification_result(
    experiment: str,
    data: ClassificationDataModule,
    dev: Classified,
    test: Classified,
    losses: Mapping[str, float],
    audit: Mapping[str, object],
) -> Result:
    """The result of a classifier.

    Args:
        experiment: its name.
        data: where the texts come from.
        dev: what it said of dev, where the epoch was chosen.
        test: what it said of test.
        losses: terms of the loss on test; their sum is the loss.
        audit: of the experiment.

    Returns:
        `accuracy`, `f1` and `auroc` on test, and on dev as `dev.<name>`, with intervals; `loss` and `loss.<name>`; the
        `majority` baseline. Table `classes`, figure `confusion`, and a row for each text of test.
    """
    labels, positive = data.labels, data.positive
    gold, predicted = test.gold, test.predicted
    names = np.array(labels, dtype=object)
    items = pd.DataFrame(
        {
            "text": test.texts,
            "id": [data.splits["test"].ids[text] for text in test.texts.tolist()],
            "gold": names[gold],
            "predicted": names[predicted],
            **ratio_columns(gold, predicted, positive),
            **{f"probability.{label}": test.probabilities[:, place] for place, label in enumerate(labels)},
        }
    )
    table = confusion(gold, predicted, len(labels))
    return Result(
        experiment=experiment,
        scores={
            **classification_scores(gold, test.probabilities, positive),
            "loss": Estimate(sum(losses.values()), unit="nats"),
            **{f"loss.{name}": Estimate(value, unit="nats") for name, value in losses.items()},
            **classification_scores(dev.gold, dev.probabilities, positive, prefix="dev."),
            **majority_scores(data.class_counts, gold, positive),
        },
        tables={"classes": class_table(gold, predicted, labels)},
        figures={
            "confusion": HeatMap(
                title="Confusion",
                values=table / np.maximum(table.sum(axis=1, keepdims=True), 1),
                row_labels=labels,
                column_labels=labels,
                row_label="gold",
                column_label="predicted",
                value_label="share of the class",
                unit="fraction",
            )
        },
        audit=audit,
        items=items,
        ratios={name: pair for name, pair in RATIOS.items() if set(pair) <= set(items)},
    )
