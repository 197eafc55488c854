"""What one of several processes does: score its share of the sentences. Apart, so that it starts quickly."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from metrics.attachment import Arcs, Integers
from metrics.heads import RowPeaks
from metrics.rows import ArcPredictions

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
LAYERS, HEADS = 2, 3


@dataclass(frozen=True, eq=False)
class Data:
    """A split: its arcs, and one or several numbers predicted of each word."""

    arcs: Arcs
    heads: Integers
    several: Integers


@dataclass(frozen=True, eq=False)
class Computed:
    """What the metrics say of it."""

    heads: tuple[Arcs, Integers]
    several: tuple[Arcs, Integers]
    peaks: Tensor


def padded_batch(arcs: Arcs, predicted: Integers, sentences: list[int]) -> Batch:
    """The batch of these sentences as a datamodule would make it; padding has values that would show."""
    rows = [np.flatnonzero(arcs.sentence == sentence) for sentence in sentences]
    n = max((row.size for row in rows), default=0)

    def padded(values: np.ndarray, fill: int) -> Tensor:
        filled = np.full((len(rows), n, *values.shape[1:]), fill)
        for place, row in enumerate(rows):
            filled[place, : row.size] = values[row]
        return torch.from_numpy(filled)

    return (
        torch.tensor(sentences, dtype=torch.int64),
        padded(arcs.head, 77),
        padded(arcs.relation, -100),
        padded(arcs.punctuation, 1).bool(),
        torch.tensor([row.size for row in rows], dtype=torch.int64),
        padded(predicted, 99),
    )


def padded_attention(arcs: Arcs, sentences: list[int]) -> tuple[Tensor, Tensor]:
    """Attention drawn for each of these sentences, the same in every batch, and their lengths."""
    lengths = [int((arcs.sentence == sentence).sum()) for sentence in sentences]
    size = max(lengths, default=0) + 2
    attention = torch.zeros(len(sentences), LAYERS, HEADS, size, size, dtype=torch.float16)
    for row, (sentence, n) in enumerate(zip(sentences, lengths, strict=True)):
        drawn = torch.randn(LAYERS, HEADS, n + 2, n + 2, generator=torch.Generator().manual_seed(sentence))
        attention[row, ..., : n + 2, : n + 2] = drawn.softmax(-1).half()
    return attention, torch.tensor(lengths, dtype=torch.int64)


def compute(data: Data, batches: list[list[int]]) -> Computed:
    """Update all metrics with these batches, and compute."""
    heads, several, peaks = ArcPredictions(), ArcPredictions(data.several.shape[1]), RowPeaks(LAYERS, HEADS)
    for batch in batches:
        heads.update(*padded_batch(data.arcs, data.heads, batch))
        several.update(*padded_batch(data.arcs, data.several, batch))
        peaks.update(*padded_attention(data.arcs, batch))
    return Computed(heads.compute(), several.compute(), peaks.compute())


def compute_shares(
    rank: int, world: int, rendezvous: Path, rounds: list[list[list[int]]], data: Data
) -> list[Computed]:
    """In each round, update with this rank's batches and compute together with the other ranks."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    try:
        return [compute(data, batches) for batches in rounds]
    finally:
        dist.destroy_process_group()
