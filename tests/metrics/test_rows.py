import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from attention_probing.metrics.attachment import add_arcs, take_arcs
from attention_probing.metrics.rows import ITEM, Rows
from tests.metrics.samples import (
    item_rows,
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


def test_padding_is_left_out_when_the_rows_are_taken() -> None:
    rows = Rows()
    rows.add(torch.tensor([3, 1, 1]), real=torch.tensor([True, True, False]), one=torch.tensor([5.0, 6.0, 7.0]))
    rows.add(torch.tensor([2, 0]), real=torch.tensor([False, True]), one=torch.tensor([8.0, 9.0]))
    rows.add(torch.tensor([2]), one=torch.tensor([4.0]))
    taken = rows.take()
    assert taken[ITEM].tolist() == [0, 1, 2, 3]
    assert taken["one"].tolist() == [9.0, 6.0, 4.0, 5.0]
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


GOLD = random_arcs(11, seed=11, documents=4)
NUMBERS: list[int] = np.unique(GOLD.sentence).tolist()


ROUNDS: tuple[tuple[list[list[int]], list[list[int]]], ...] = (
    # Unevenly, in batches of several sizes.
    ([NUMBERS[0:8:2], NUMBERS[8:]], [NUMBERS[1:8:2]]),
    # Nothing for the second process: a batch without a sentence, as the sampler gives it; then no batch at all.
    ([NUMBERS[:5], NUMBERS[5:]], [[]]),
    ([NUMBERS], []),
)
"""The batches of each of two processes."""


def compute(batches: list[list[int]]) -> list[np.ndarray]:
    """Add these batches, and take the columns of all processes."""
    items, words = Rows(), Rows()
    for batch in batches:
        items.add(**item_rows(batch))
        gold, predicted = padded_batch(GOLD, random_predictions(GOLD), batch)
        _, of_several = padded_batch(GOLD, random_predictions(GOLD, 5), batch)
        add_arcs(words, gold, one=predicted, several=of_several)
    arcs, columns = take_arcs(words)
    return [*items.take().values(), arcs.sentence, arcs.head, *columns.values()]


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
        assert len(alone[-1]) > 50
        for job in jobs:
            for computed in job.result():
                for found, expected in zip(computed, alone, strict=True):
                    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                    np.testing.assert_array_equal(found, expected)
