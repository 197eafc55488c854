"""Arcs, batches and attention made for tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor

from attention_probing.metrics.attachment import Arcs
from attention_probing.results import Integers
from tests.tiny import random_tree

LAYERS, HEADS = 2, 3


@dataclass(frozen=True)
class Gold:
    """Gold arcs of a batch; see `metrics.attachment.add_arcs`."""

    index: Tensor
    lengths: Tensor
    heads: Tensor
    relations: Tensor
    punctuation: Tensor
    documents: Tensor


def arcs(
    heads: Sequence[Sequence[int]],
    *,
    relations: Sequence[Sequence[int]] | None = None,
    punctuation: Sequence[Sequence[bool]] | None = None,
    sentences: Sequence[int] | None = None,
    documents: Sequence[int] | None = None,
) -> Arcs:
    """Columns from one list per sentence; without documents, none are marked."""
    numbers = range(len(heads)) if sentences is None else sentences
    lengths = [len(sentence) for sentence in heads]
    return Arcs(
        sentence=np.repeat(np.array(numbers, dtype=np.int64), lengths),
        word=column([list(range(1, n + 1)) for n in lengths]),
        length=np.repeat(np.array(lengths, dtype=np.int64), lengths),
        head=column(heads),
        relation=column(relations or [[0] * n for n in lengths]),
        punctuation=column(punctuation or [[False] * n for n in lengths]).astype(np.bool_),
        document=np.repeat(np.array(documents or [-1] * len(heads), dtype=np.int64), lengths),
    )


def column(sentences: Sequence[Sequence[int]]) -> Integers:
    return np.array([value for sentence in sentences for value in sentence], dtype=np.int64)


def random_arcs(sentences: int, seed: int, relations: int = 5, documents: int = 0) -> Arcs:
    """Random trees of 1 to 12 words, dealt to documents if there are any."""
    rng = np.random.default_rng(seed)
    heads = [random_tree(int(rng.integers(1, 13)), rng) for _ in range(sentences)]
    dealt = sorted(rng.integers(documents, size=sentences).tolist()) if documents else None
    return arcs(
        heads,
        relations=[rng.integers(relations, size=len(tree)).tolist() for tree in heads],
        punctuation=[(rng.random(len(tree)) < 0.2).tolist() for tree in heads],
        sentences=sorted(rng.choice(sentences * 3, size=sentences, replace=False).tolist()),
        documents=dealt,
    )


def random_predictions(gold: Arcs, width: int | None = None) -> Integers:
    """Positions `[words]` or `[words, width]`, some of them outside the sentence."""
    rng = np.random.default_rng(0)
    if width is None:
        return rng.integers(-1, gold.length + 1)
    return rng.integers(-1, gold.length[:, None] + 1, size=(len(gold), width))


def padded_batch(arcs: Arcs, predicted: Integers, sentences: Sequence[int]) -> tuple[Gold, Tensor]:
    """The batch of these sentences as a datamodule would make it; the padding would be noticed if it counted."""
    rows = [np.flatnonzero(arcs.sentence == sentence) for sentence in sentences]
    n = max((row.size for row in rows), default=0)

    def padded(values: np.ndarray, fill: int) -> Tensor:
        filled = np.full((len(rows), n, *values.shape[1:]), fill)
        for place, row in enumerate(rows):
            filled[place, : row.size] = values[row]
        return torch.from_numpy(filled)

    documents = np.full(len(rows), -1)
    for place, row in enumerate(rows):
        if arcs.document is not None and row.size:
            documents[place] = arcs.document[row[0]]
    gold = Gold(
        torch.tensor(sentences, dtype=torch.int64),
        torch.tensor([row.size for row in rows], dtype=torch.int64),
        padded(arcs.head, 77),
        padded(arcs.relation, -100),
        padded(arcs.punctuation, 1).bool(),
        torch.from_numpy(documents),
    )
    return gold, padded(predicted, 99)


def padded_attention(arcs: Arcs, sentences: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Attention drawn for each of these sentences, the same in every batch, and their lengths."""
    lengths = [int((arcs.sentence == sentence).sum()) for sentence in sentences]
    size = max(lengths, default=0) + 2
    attention = torch.zeros(len(sentences), LAYERS, HEADS, size, size, dtype=torch.float16)
    for row, (sentence, n) in enumerate(zip(sentences, lengths, strict=True)):
        drawn = torch.randn(LAYERS, HEADS, n + 2, n + 2, generator=torch.Generator().manual_seed(sentence))
        attention[row, ..., : n + 2, : n + 2] = drawn.softmax(-1).half()
    return attention, torch.tensor(lengths, dtype=torch.int64)


def item_rows(items: Sequence[int], width: int = 3) -> dict[str, Tensor]:
    """Columns that follow from the item alone."""
    drawn = [torch.rand(width, generator=torch.Generator().manual_seed(item)) for item in items]
    numbers = torch.stack(drawn) if drawn else torch.empty(0, width)
    return {"items": torch.tensor(items, dtype=torch.int64), "one": numbers[:, 0], "others": numbers[:, 1:]}


def student_of_log_odds(values: NDArray[np.float64], low: float, high: float) -> tuple[Any, Any]:
    """The ends of the 95 % intervals of means over the first axis, of numbers from `low` to `high`; nan at these."""
    count, mean = len(values), (values.mean(0) - low) / (high - low)
    margin = stats.t.ppf(0.975, count - 1) * values.std(0, ddof=1) / (high - low) / np.sqrt(count)
    mean = np.where((mean > 0) & (mean < 1), mean, np.nan)
    apart = margin / (mean * (1 - mean))  # the derivative of the log odds
    ends = [low + (high - low) * special.expit(special.logit(mean) + side * apart) for side in (-1, 1)]
    return ends[0], ends[1]
