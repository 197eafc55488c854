"""What `predict` leaves behind: of every text what was decided, and the attention it was decided with."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from datamodules import ClassificationDataModule, TextBatch
from models.interface import SENTENCE, Output


class Prediction(NamedTuple):
    """Of one text.

    Attributes:
        text: its place in the split.
        probabilities: of each class.
        weights: by level, of each slot of the text, float32; the padding is cut off.
    """

    text: int
    probabilities: list[float]
    weights: dict[str, NDArray[np.float32]]


def predictions_of(batch: TextBatch, output: Output) -> list[Prediction]:
    """What an output says of each text of the batch."""
    probabilities = output.logits.softmax(-1).tolist()
    # A level over tokens has a slot for each, delimiters too, so that weights and tokens stand side by side.
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


def prediction_table(found: Sequence[Prediction], data: ClassificationDataModule) -> pd.DataFrame:
    """The test split, joined over all devices, in the order of the file.

    Returns:
        `id`, `gold`, `predicted`, `probability.<label>`; lists with an entry for each token: `words`, the word of the
        text that it is or is a piece of (None for delimiters), `tokens`, as the model knows it, `sentences`, its
        sentence from 0 (-1 for delimiters); and by level `attention.<level>`, lists of weights: for a level over tokens
        one of each token, else one of each sentence.
    """
    if dist.is_available() and dist.is_initialized():
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, list(found))
        found = [prediction for part in parts for prediction in part]
    found = sorted(found, key=lambda prediction: prediction.text)
    split = data.splits["test"]
    texts = [prediction.text for prediction in found]
    best = [max(range(len(data.labels)), key=one.probabilities.__getitem__) for one in found]
    levels = found[0].weights if found else ()
    return pd.DataFrame(
        {
            "id": [split.ids[text] for text in texts],
            "gold": [data.labels[split.labels[text]] for text in texts],
            "predicted": [data.labels[place] for place in best],
            **{
                f"probability.{label}": [prediction.probabilities[place] for prediction in found]
                for place, label in enumerate(data.labels)
            },
            "words": [split.forms(text) for text in texts],
            "tokens": [list(data.text("test", text)[1]) for text in texts],
            "sentences": [split.sentences(text) for text in texts],
            **{f"attention.{level}": [prediction.weights[level] for prediction in found] for level in levels},
        }
    )
