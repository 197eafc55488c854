"""What one of several processes does: gather its share of the items. Apart, so that it starts quickly."""

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from metrics.attachment import Floats, Integers
from metrics.rows import ItemRows

WIDTH = 3


def rows(sentences: list[int]) -> tuple[Tensor, Tensor]:
    """Numbers that follow from the sentence alone."""
    drawn = [torch.rand(WIDTH, generator=torch.Generator().manual_seed(sentence)) for sentence in sentences]
    return torch.tensor(sentences, dtype=torch.int64), torch.stack(drawn) if drawn else torch.empty(0, WIDTH)


def gather_shares(rank: int, rendezvous: Path, rounds: list[list[list[int]]]) -> list[tuple[Integers, Floats]]:
    """In each round, update with this rank's batches and compute together with the other of two ranks."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    found = []
    try:
        for batches in rounds:
            metric = ItemRows(WIDTH)
            for batch in batches:
                metric.update(*rows(batch))
            found.append(metric.compute())
    finally:
        dist.destroy_process_group()
    return found
