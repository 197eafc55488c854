"""What `predict` leaves behind: of every text what was decided, and the attention it was decided with."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
import torch.distributed as dist
from torch import Tensor

from datamodules import ClassificationDataModule, TextBatch
from models.interface import Output


class Prediction(NamedTuple):
    """Of one text.

    Attributes:
        text: its place in the split.
        probabilities: of each class.
        weights: by level, of each slot of the text; the padding is cut off.
    """

    text: int
    probabilities: list[float]
    weights: dict[str, list[float]]


def predictions_of(batch: TextBatch, output: Output) -> list[Prediction]:
    """What an output says of each text of the batch."""
    probabilities = output.logits.softmax(-1).tolist()
    weights = {name: _rows(level.weights, level.mask, batch) for name, level in output.levels.items()}
    return [
        Prediction(text, probabilities[place], {name: rows[place] for name, rows in weights.items()})
        for place, text in enumerate(batch.index.tolist())
    ]


def _rows(weights: Tensor, mask: Tensor, batch: TextBatch) -> list[list[float]]:
    # A level over tokens has a slot for delimiters too, so that weights and tokens stand side by side.
    lengths = batch.lengths if weights.shape == batch.tokens.shape else mask.sum(1)
    return [row[:length].tolist() for row, length in zip(weights, lengths.tolist(), strict=True)]


def prediction_table(found: Sequence[Prediction], data: ClassificationDataModule) -> pd.DataFrame:
    """The test split, joined over all devices, in the order of the file.

    Returns:
        `id`, `tokens`, `predicted`, `probability.<label>`, and by level `attention.<level>`, lists of weights: for a
        level over tokens one of each token.
    """
    if dist.is_available() and dist.is_initialized():
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, list(found))
        found = [prediction for part in parts for prediction in part]
    found = sorted(found)
    texts = [data.text("test", prediction.text) for prediction in found]
    best = [max(range(len(data.labels)), key=one.probabilities.__getitem__) for one in found]
    levels = found[0].weights if found else ()
    return pd.DataFrame(
        {
            "id": [name for name, _ in texts],
            "tokens": [list(tokens) for _, tokens in texts],
            "predicted": [data.labels[place] for place in best],
            **{
                f"probability.{label}": [prediction.probabilities[place] for prediction in found]
                for place, label in enumerate(data.labels)
            },
            **{f"attention.{level}": [prediction.weights[level] for prediction in found] for level in levels},
        }
    )
