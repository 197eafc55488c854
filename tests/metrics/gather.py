"""What one of several processes does: score its share of the sentences. Apart, so that it starts quickly."""

from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from metrics.attachment import ArcPredictions, Arcs, Integers

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def padded_batch(arcs: Arcs, predicted: Integers, sentences: list[int]) -> Batch:
    """The batch of these sentences as a datamodule would make it; padding has values that would show."""
    rows = [np.flatnonzero(arcs.sentence == sentence) for sentence in sentences]
    n = max(row.size for row in rows)

    def padded(values: np.ndarray, fill: int) -> Tensor:
        return torch.tensor([[*values[row].tolist(), *[fill] * (n - row.size)] for row in rows])

    return (
        torch.tensor(sentences),
        padded(arcs.head, 77),
        padded(arcs.relation, -100),
        padded(arcs.punctuation, 1).bool(),
        torch.tensor([row.size for row in rows]),
        padded(predicted, 99),
    )


def score_shares(
    rank: int, world: int, rendezvous: Path, rounds: list[list[list[int]]], data: tuple[Arcs, Integers]
) -> list[tuple[Arcs, Integers]]:
    """In each round, update with this rank's batches and compute together with the other ranks."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    try:
        computed = []
        for batches in rounds:
            metric = ArcPredictions()
            for batch in batches:
                metric.update(*padded_batch(*data, batch))
            computed.append(metric.compute())
        return computed
    finally:
        dist.destroy_process_group()
