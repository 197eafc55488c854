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

from attention_probing.metrics.antecedent_selection import AntecedentCounts
from attention_probing.metrics.attachment import Arcs
from attention_probing.metrics.heads import MostAttended, RowPeaks
from attention_probing.metrics.rows import ITEM, LONGEST, ArcRows, Rows
from attention_probing.results import Integers
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
    rows = Rows()
    for batch in batches:
        rows.add(**item_rows(batch))
    expected = item_rows([0, 2, 4, 9, 17])
    for again in (copy.deepcopy(rows), pickle.loads(pickle.dumps(rows)), rows):
        found = again.take()
        np.testing.assert_array_equal(found[ITEM], expected["items"])
        for name in ("one", "others"):
            np.testing.assert_array_equal(found[name], expected[name].numpy())
    assert found[ITEM].dtype == np.int64
    assert found["one"].dtype == np.float64
    assert rows.take()[ITEM].size == 0


def test_items_may_have_several_numbers_and_integers_stay_integers() -> None:
    rows = Rows()
    words = torch.tensor([[1, 2], [0, 7], [1, 1]])
    rows.add(words, heads=torch.tensor([3, 4, 5], dtype=torch.int16))
    found = rows.take()
    assert found[ITEM].tolist() == [[0, 7], [1, 1], [1, 2]]
    assert found["heads"].tolist() == [4, 5, 3]
    assert found["heads"].dtype == np.int16


def test_other_columns_or_items_that_come_again_are_refused() -> None:
    rows = Rows()
    rows.add(torch.tensor([0]), one=torch.tensor([1.0]))
    with pytest.raises(ValueError, match=r"must be \['item', 'one'\], but are \['item', 'other'\]"):
        rows.add(torch.tensor([1]), other=torch.tensor([1.0]))
    with pytest.raises(ValueError, match="The column one has 2 rows, but there are 1 items"):
        rows.add(torch.tensor([1]), one=torch.tensor([1.0, 2.0]))
    rows.add(torch.tensor([0]), one=torch.tensor([1.0]))
    with pytest.raises(ValueError, match=r"1 item came more than once.* number 0, .*sampler"):
        rows.take()


def columns_of(arcs: Arcs) -> list[np.ndarray]:
    assert arcs.reach is None  # of an encoder, of which nothing was said
    return [getattr(arcs, field.name) for field in fields(Arcs) if field.name != "reach"]


def assert_same(one: tuple[Arcs, dict[str, np.ndarray]], other: tuple[Arcs, Integers]) -> None:
    for got, expected in zip(columns_of(one[0]), columns_of(other[0]), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    (predicted,) = one[1].values()
    assert predicted.shape == other[1].shape
    np.testing.assert_array_equal(predicted, other[1])


GOLD = random_arcs(11, seed=11, documents=4)
NUMBERS: list[int] = np.unique(GOLD.sentence).tolist()


def add(metric: ArcRows, sentences: list[int], predicted: Integers) -> None:
    batch, numbers = padded_batch(GOLD, predicted, sentences)
    metric.add(batch, heads=numbers)


@pytest.mark.parametrize("width", [None, 5])
class TestArcRows:
    def test_the_order_and_size_of_batches_do_not_matter(self, width: int | None) -> None:
        predicted = random_predictions(GOLD, width)
        for seed, size in enumerate((1, 3, 11)):
            metric = ArcRows(heads=width)
            shuffled = np.random.default_rng(seed).permutation(NUMBERS).tolist()
            for start in range(0, len(shuffled), size):
                add(metric, shuffled[start : start + size], predicted)
                add(metric, [], predicted)  # a batch without a sentence adds nothing
            same = (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.to(torch.float64))
            for again in same:
                assert_same(again.arcs(), (GOLD, predicted))

    def test_without_an_update_and_after_it_was_read_it_is_empty(self, width: int | None) -> None:
        predicted, metric = random_predictions(GOLD, width), ArcRows(heads=width)
        empty = arcs([]), np.zeros((0,) if width is None else (0, width), np.int64)
        for _ in range(2):
            assert_same(metric.arcs(), empty)
            add(metric, NUMBERS, predicted)
            assert_same(metric.arcs(), (GOLD, predicted))

    def test_a_sentence_seen_twice_is_refused(self, width: int | None) -> None:
        predicted, metric = random_predictions(GOLD, width), ArcRows(heads=width)
        for batch in (NUMBERS[:2], NUMBERS[1:2]):
            add(metric, batch, predicted)
        with pytest.raises(ValueError, match=f"1 item came more than once.* number {NUMBERS[1]}, .*sampler"):
            metric.arcs()


@pytest.mark.parametrize("width", [1, 2, 5])
def test_numbers_of_several_predictors_take_two_bytes_each(width: int) -> None:
    predicted, metric = random_predictions(GOLD, width), ArcRows(heads=width)
    predicted[0] = LONGEST
    add(metric, NUMBERS, predicted)
    gold_alone = ArcRows()
    gold_alone.add(padded_batch(GOLD, predicted, NUMBERS)[0])
    numbers = [sum(rows.numel() for rows in one.rows) for one in (metric, gold_alone)]
    assert numbers[0] - numbers[1] == len(GOLD) * ((width + 1) // 2)
    assert_same(metric.arcs(), (GOLD, predicted))


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
    items, one, several = Rows(), ArcRows(heads=None), ArcRows(heads=5)
    peaks, counts = RowPeaks(LAYERS, HEADS), AntecedentCounts(max(NUMBERS) + 1, heads=HEADS)
    for batch in batches:
        items.add(**item_rows(batch))
        add(one, batch, random_predictions(GOLD))
        add(several, batch, random_predictions(GOLD, 5))
        attention, lengths = padded_attention(GOLD, batch)
        most = MostAttended(lengths)
        most.add(attention)
        peaks.update(most.peaks, lengths)
        for document in batch:
            rng = np.random.default_rng(document)
            links = document % 10
            hits = torch.tensor(rng.random((HEADS, links)) < 0.4)
            counts.update(document, torch.tensor(rng.integers(3, size=links)), heads=hits)
    gathered = list(items.take().values())
    for metric in (one, several):
        arcs, predicted = metric.arcs()
        gathered += [*columns_of(arcs), predicted["heads"]]
    right, of_documents = counts.compute()
    return [*gathered, *(np.asarray(tensor) for tensor in (peaks.compute(), right["heads"], of_documents))]


def compute_share(rank: int, rendezvous: Path) -> list[list[np.ndarray]]:
    """In each round, update with this rank's batches and compute together with the other rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2, timeout=timedelta(seconds=120)
    )
    try:
        alone = Rows()
        alone.over_devices = False
        alone.add(**item_rows([rank]))
        assert alone.take()[ITEM].tolist() == [rank]
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
