"""Predictions of a text classifier for single texts, with their attention, and the table of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attention_probing.datamodules.text_split import TextSplit


class Prediction(NamedTuple):
    """Prediction of a classifier for one text.

    Attributes:
        text: Index of the text in its split.
        probabilities: Probability of each class; in a regression a list of the predicted number alone.
        weights: Attention weights `[positions]` by name of the attention level, such as `word`.
    """

    text: int
    probabilities: list[float]
    weights: dict[str, NDArray[np.float32]]


def prediction_table(predictions: Sequence[Prediction], split: TextSplit, labels: Sequence[str]) -> pd.DataFrame:
    """Return a table of the predictions for a split, with a row for each predicted text, in the order of the split.

    Args:
        predictions: Predictions for some or all texts of the split, in any order.
        split: The split.
        labels: Names of the classes; empty in a regression.

    Returns:
        Table with the columns `id`, `gold`, `predicted`, and `probability.<label>`. Further columns hold lists with
        an entry for each token: `words`, the word of the text that the token belongs to (None for delimiters);
        `tokens`, the token as it is read; `sentences`, the index of its sentence, from 0 (−1 for delimiters).
        `attention.<level>` has the attention weight of each token or, for the level `sentence`, of each sentence.
    """
    predictions = sorted(predictions, key=lambda prediction: prediction.text)
    texts = [prediction.text for prediction in predictions]
    gold = split.labels[texts].tolist()
    probabilities = [prediction.probabilities for prediction in predictions]
    table: dict[str, object] = {"id": [split.ids[text] for text in texts]}
    if labels:
        table["gold"] = [labels[label] for label in gold]
        table["predicted"] = [labels[int(np.argmax(of_text))] for of_text in probabilities]
    else:
        table["gold"] = gold
        table["predicted"] = [of_text[0] for of_text in probabilities]
    for number, label in enumerate(labels):
        table[f"probability.{label}"] = [of_text[number] for of_text in probabilities]
    table["words"] = [split.forms(text) for text in texts]
    table["tokens"] = [split.readable(text) for text in texts]
    table["sentences"] = [split.sentences(text) for text in texts]
    levels = predictions[0].weights if predictions else ()
    for level in levels:
        table[f"attention.{level}"] = [prediction.weights[level] for prediction in predictions]
    return pd.DataFrame(table)
