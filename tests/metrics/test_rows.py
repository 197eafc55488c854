import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from metrics.antecedent import AntecedentCounts
from metrics.attachment import Arcs, Integers
from metrics.heads import RowPeaks
from metrics.rows import ArcPredictions, ItemRows
from tests.metrics.samples import (
    HEADS,
    LAYERS,
    arcs,
    item_rows,
    padded_attention,
    padded_batch,
    random_arcs,
    random_predictions,
)


@pytest.mark.parametrize("batches", [[[4, 0, 17, 2, 9]], [[2], [17, 4], [], [9, 0]]])
def test_rows_of_items_are_sorted_whatever_their_batches(batches: list[list[int]]) -> None:
    metric = ItemRows(3)
    assert [part.shape for part in metric.compute()] == [(0,), (0, 3)]
    for batch in batches:
        metric.update(*item_rows(batch))
    expected = item_rows([0, 2, 4, 9, 17])
    for again in (metric, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        for found, values in zip(again.compute(), expected, strict=True):
            np.testing.assert_array_equal(found, values.numpy())
    with pytest.raises(ValueError, match=r"must be \[2, 4\], and they are \[2, 3\]"):
        ItemRows(4).update(*item_rows([0, 1]))


def columns_of(arcs: Arcs) -> list[np.ndarray]:
    assert arcs.reach is None  # of an encoder, of which nothing was said
    return [getattr(arcs, field.name) for field in fields(Arcs) if field.name != "reach"]


def assert_same(one: tuple[Arcs, Integers], other: tuple[Arcs, Integers]) -> None:
    for got, expected in zip(columns_of(one[0]), columns_of(other[0]), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    assert one[1].shape == other[1].shape
    np.testing.assert_array_equal(one[1], other[1])


GOLD = random_arcs(11, seed=11)
NUMBERS: list[int] = np.unique(GOLD.sentence).tolist()


@pytest.mark.parametrize("width", [None, 5])
class TestArcPredictions:
    def test_the_order_and_size_of_batches_do_not_matter(self, width: int | None) -> None:
        data = GOLD, random_predictions(GOLD, width)
        for seed, size in enumerate((1, 3, 11)):
            metric = ArcPredictions(width)
            shuffled = np.random.default_rng(seed).permutation(NUMBERS).tolist()
            for start in range(0, len(shuffled), size):
                metric.update(*padded_batch(*data, shuffled[start : start + size]))
                metric.update(*padded_batch(*data, []))  # a batch without a sentence adds nothing
            same = (metric, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.to(torch.float64))
            for again in same:
                assert_same(again.compute(), data)
        assert width is not None or metric.compute()[1].dtype == np.int64

    def test_without_an_update_and_after_a_reset_it_is_empty(self, width: int | None) -> None:
        data, metric = (GOLD, random_predictions(GOLD, width)), ArcPredictions(width)
        empty = arcs([]), np.zeros((0,) if width is None else (0, width), np.int64)
        for _ in range(2):
            assert_same(metric.compute(), empty)
            metric.update(*padded_batch(*data, NUMBERS))
            assert_same(metric.compute(), data)
            metric.reset()

    def test_a_sentence_seen_twice_is_refused(self, width: int | None) -> None:
        data, metric = (GOLD, random_predictions(GOLD, width)), ArcPredictions(width)
        for batch in (NUMBERS[:2], NUMBERS[1:2]):
            metric.update(*padded_batch(*data, batch))
        with pytest.raises(ValueError, match=f"1 items were added more than once.* number {NUMBERS[1]}: .*sampler"):
            metric.compute()

    def test_parts_of_different_shapes_are_refused(self, width: int | None) -> None:
        sentence, heads, relations, marks, lengths, predicted = padded_batch(
            GOLD, random_predictions(GOLD, width), NUMBERS[:1]
        )
        metric = ArcPredictions(width)
        for wrong in (predicted[:, :-1], predicted[..., None]):
            with pytest.raises(ValueError, match=r"must all be \[batch, n\], and predicted \(1, \d"):
                metric.update(sentence, heads, relations, marks, lengths, wrong)
        with pytest.raises(ValueError, match=r"must all be \[batch, n\]"):
            metric.update(sentence, heads, relations[:, 1:], marks, lengths, predicted)
        assert len(metric.compute()[0]) == 0


ROUNDS: tuple[tuple[list[list[int]], list[list[int]]], ...] = (
    # Unevenly, in batches of several sizes.
    ([NUMBERS[0:8:2], NUMBERS[8:]], [NUMBERS[1:8:2]]),
    # Nothing for the second process: a batch without a sentence, as the sampler gives it; then no batch at all.
    ([NUMBERS[:5], NUMBERS[5:]], [[]]),
    ([NUMBERS], []),
)
"""The batches of each of two processes."""


def compute(batches: list[list[int]]) -> list[np.ndarray]:
    """Update every metric with these batches, and compute all."""
    items, one, several = ItemRows(3), ArcPredictions(), ArcPredictions(5)
    peaks, counts = RowPeaks(LAYERS, HEADS), AntecedentCounts(max(NUMBERS) + 1, LAYERS, HEADS)
    for batch in batches:
        items.update(*item_rows(batch))
        one.update(*padded_batch(GOLD, random_predictions(GOLD), batch))
        several.update(*padded_batch(GOLD, random_predictions(GOLD, 5), batch))
        peaks.update(*padded_attention(GOLD, batch))
        for document in batch:
            rng = np.random.default_rng(document)
            links = document % 10
            hits = torch.tensor(rng.random((2, LAYERS, HEADS, links)) < 0.4)
            counts.update(document, hits, torch.tensor(rng.integers(3, size=links)))
    arcs, heads = one.compute()
    same_arcs, many = several.compute()
    gathered = [*items.compute(), *columns_of(arcs), heads, *columns_of(same_arcs), many]
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
def test_two_processes_equal_one_to_the_last_bit(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("forkserver")) as pool:
        jobs = [pool.submit(compute_share, rank, tmp_path / "rendezvous") for rank in range(2)]
        alone = compute([NUMBERS])
        assert alone[-2].sum() > 50
        for job in jobs:
            for computed in job.result():
                for found, expected in zip(computed, alone, strict=True):
                    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                    np.testing.assert_array_equal(found, expected)
