"""What a classifier decided: scores on dev and test beside the baseline, and the table that `predict` leaves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from attention.encoder import EncoderSpec, resolve
from attention.tokenizer import TextTokenizer
from corpora.labelled import LabelledText
from datamodules import ClassificationDataModule, TextBatch, Vocabulary
from datamodules.classification import TextSplit
from datamodules.tokenization import TokenOptions, tokenize
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
from models.interface import SENTENCE, Output
from results import Estimate, HeatMap, Result

Item = TypeVar("Item")


class Classified(NamedTuple):
    """The texts of a split: their places in it and classes, `[texts]`, and probabilities `[texts, classes]`."""

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
    """The result of a classifier, from what it said of dev, where the epoch was chosen, and of test.

    The loss is the sum of its terms `losses` on test.

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


class Prediction(NamedTuple):
    """Of one text: its place in the split, and by level a weight, float32, of each of its positions."""

    text: int
    probabilities: list[float]
    weights: dict[str, NDArray[np.float32]]


def predictions_of(batch: TextBatch, output: Output) -> list[Prediction]:
    """What an output says of each text of the batch."""
    probabilities = output.logits.softmax(-1).tolist()
    # A level over tokens has a position for each, delimiters too, so that weights and tokens stand side by side.
    weights = {
        name: _rows(level.weights, level.mask.sum(1) if name == SENTENCE else batch.lengths)
        for name, level in output.levels.items()
    }
    return [
        Prediction(text, probabilities[place], {name: rows[place] for name, rows in weights.items()})
        for place, text in enumerate(batch.index.tolist())
    ]


def _rows(weights: Tensor, lengths: Tensor) -> list[NDArray[np.float32]]:
    rows = weights.float().cpu().numpy()
    return [row[:length].copy() for row, length in zip(rows, lengths.tolist(), strict=True)]


def gathered(found: Sequence[Item]) -> list[Item]:
    """The items of all devices."""
    parts: list[Any] = [list(found)]
    if dist.is_available() and dist.is_initialized():
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, list(found))
    return [item for part in parts for item in part]


def prediction_table(
    found: Sequence[Prediction], split: TextSplit, labels: Sequence[str], vocabulary: Vocabulary
) -> pd.DataFrame:
    """Predictions on the texts of a split, in its order.

    Returns:
        `id`, `gold`, `predicted`, `probability.<label>`; lists with an entry for each token: `words`, the word of the
        text that it is or is a piece of (None for delimiters), `tokens`, as the model knows it, `sentences`, its
        sentence from 0 (-1 for delimiters); `attention.<level>`, weights of each token, or of each sentence.
    """
    found = sorted(found, key=lambda prediction: prediction.text)
    texts = [prediction.text for prediction in found]
    best = [int(np.argmax(prediction.probabilities)) for prediction in found]
    levels = found[0].weights if found else ()
    return pd.DataFrame(
        {
            "id": [split.ids[text] for text in texts],
            "gold": [labels[split.labels[text]] for text in texts],
            "predicted": [labels[place] for place in best],
            **{
                f"probability.{label}": [prediction.probabilities[place] for prediction in found]
                for place, label in enumerate(labels)
            },
            "words": [split.forms(text) for text in texts],
            "tokens": [[vocabulary.words[number] for number in split.tokens(text)] for text in texts],
            "sentences": [split.sentences(text) for text in texts],
            **{f"attention.{level}": [prediction.weights[level] for prediction in found] for level in levels},
        }
    )


def tokenized(
    texts: Sequence[str | tuple[str, str]], vocabulary: Vocabulary, tokenizer: EncoderSpec | None, options: TokenOptions
) -> TextSplit:
    """New texts, or pairs of texts, as a split without labels: each has the first one."""
    pairs = [(text, None) if isinstance(text, str) else text for text in texts]
    read = [LabelledText(str(place), text, "", place, pair) for place, (text, pair) in enumerate(pairs)]
    pieces = None if tokenizer is None else TextTokenizer(resolve(tokenizer))
    words, tokens, lost = tokenize(Path("texts"), read, pieces, options)
    return TextSplit("test", read, np.zeros(len(read), np.int64), words, tokens, lost, vocabulary)
