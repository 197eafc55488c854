"""Metrics on two processes equal those on one, to the last bit."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from metrics.antecedent import AntecedentCounts
from metrics.heads import RowPeaks
from metrics.rows import ArcPredictions, ItemRows
from tests.metrics.samples import HEADS, LAYERS, item_rows, padded_attention, padded_batch, random_arcs
from tests.metrics.samples import random_predictions as predictions

GOLD = random_arcs(11, seed=11)
SENTENCES: list[int] = np.unique(GOLD.sentence).tolist()
ROUNDS: tuple[tuple[list[list[int]], list[list[int]]], ...] = (
    # Unevenly, in batches of several sizes.
    ([SENTENCES[0:8:2], SENTENCES[8:]], [SENTENCES[1:8:2]]),
    # Nothing for the second process: a batch without a sentence, as the sampler gives it; then no batch at all.
    ([SENTENCES[:5], SENTENCES[5:]], [[]]),
    ([SENTENCES], []),
)
"""The batches of each of two processes."""


def compute(batches: list[list[int]]) -> list[np.ndarray]:
    """Update every metric with these batches, and compute all."""
    items, one, several = ItemRows(3), ArcPredictions(), ArcPredictions(5)
    peaks, counts = RowPeaks(LAYERS, HEADS), AntecedentCounts(max(SENTENCES) + 1, LAYERS, HEADS)
    for batch in batches:
        items.update(*item_rows(batch))
        one.update(*padded_batch(GOLD, predictions(GOLD), batch))
        several.update(*padded_batch(GOLD, predictions(GOLD, 5), batch))
        peaks.update(*padded_attention(GOLD, batch))
        for document in batch:
            rng = np.random.default_rng(document)
            links = document % 10
            hits = torch.tensor(rng.random((2, LAYERS, HEADS, links)) < 0.4)
            counts.update(document, hits, torch.tensor(rng.integers(3, size=links)))
    arcs, heads = one.compute()
    same_arcs, many = several.compute()
    gathered = [*items.compute(), *astuple(arcs), heads, *astuple(same_arcs), many]
    return [*gathered, *(np.asarray(tensor) for tensor in (peaks.compute(), *counts.compute()))]


def compute_share(rank: int, rendezvous: Path) -> list[list[np.ndarray]]:
    """In each round, update with this rank's batches and compute together with the other rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2, timeout=timedelta(seconds=120)
    )
    try:
        return [compute(shares[rank]) for shares in ROUNDS]
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("forkserver")) as pool:
        jobs = [pool.submit(compute_share, rank, tmp_path / "rendezvous") for rank in range(2)]
        alone = compute([SENTENCES])
        assert alone[-2].sum() > 50
        for job in jobs:
            for computed in job.result():
                for found, expected in zip(computed, alone, strict=True):
                    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                    np.testing.assert_array_equal(found, expected)
