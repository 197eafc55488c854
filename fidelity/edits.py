"""Texts with words left out: what a classifier says when it never saw them."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from datamodules import TextBatch
from models.interface import Level, Output

PASS = 16384
"""Most tokens of one pass, padding included."""

Texts = TypeVar("Texts", TextBatch, Output, Level)


def rows_of(texts: Texts, rows: Tensor) -> Texts:
    """Some texts of a batch, or of what a classifier says of one: int64 `[rows]` places, or bool `[batch]`."""
    chosen: dict[str, Any] = {}
    for field in fields(texts):
        value = getattr(texts, field.name)
        if isinstance(value, Tensor):
            chosen[field.name] = value[rows]
        elif field.name == "levels":
            chosen[field.name] = {name: rows_of(level, rows) for name, level in value.items()}
    return replace(texts, **chosen)


def shortened(batch: TextBatch, rows: Tensor, keep: Tensor, pad: int) -> TextBatch:
    """Texts of a batch without some of their tokens.

    Args:
        batch: the texts.
        rows: int64 `[rows]`, places of texts in the batch; one may be there more than once.
        keep: bool `[rows, time]`, tokens that stay.
        pad: number of the padding in the vocabulary.

    Returns:
        A batch of `rows` texts, as long as the longest. Sentences without a token are no longer counted.
    """
    lengths = keep.sum(1)
    time = int(lengths.max())
    places = (~keep).to(torch.int8).argsort(dim=1, stable=True)[:, :time]
    real = torch.arange(time, device=keep.device) < lengths[:, None]

    def moved(values: Tensor, blank: int) -> Tensor:
        return values[rows].gather(1, places).masked_fill(~real, blank)

    sentences = moved(batch.sentences, -1)
    # They ascend: a token begins a sentence where it is higher than all before it.
    highest = torch.cat([sentences.new_full((len(sentences), 1), -1), sentences.cummax(1).values[:, :-1]], 1)
    return TextBatch(
        index=batch.index[rows],
        lengths=lengths,
        tokens=moved(batch.tokens, pad),
        special=moved(batch.special, 0),
        sentences=((sentences > highest).cumsum(1) - 1).masked_fill(sentences < 0, -1),
        segments=moved(batch.segments, 0),
        labels=batch.labels[rows],
        rationale=moved(batch.rationale, 0),
        split=batch.split,
    )


def passes(lengths: Tensor) -> Iterator[Tensor]:
    """Places int64 of texts of these lengths, those of like length together, in passes of at most `PASS` tokens.

    A text that is longer than that is a pass of its own.
    """
    order = lengths.argsort(dim=0, descending=True, stable=True)
    ordered = lengths[order].tolist()
    start = 0
    while start < len(ordered):
        size = max(PASS // max(ordered[start], 1), 1)
        yield order[start : start + size]
        start += size
