from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from datamodules.sampling import LengthBatches

LENGTHS = np.random.default_rng(0).integers(1, 60, 501)
LENGTHS[17] = 400


def batches(shuffle: bool, rank: int = 0, world: int = 1, epoch: int = 0, cells: int = 4000) -> list[list[int]]:
    sampler = LengthBatches(LENGTHS, max_cells=cells, max_sentences=16, shuffle=shuffle, seed=3, rank=rank, world=world)
    sampler.set_epoch(epoch)
    found = list(sampler)
    assert len(found) == len(sampler)
    return found


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_sentence_comes_once_within_the_bounds(shuffle: bool) -> None:
    found = batches(shuffle)
    assert sorted(index for batch in found for index in batch) == list(range(len(LENGTHS)))
    for batch in found:
        assert len(batch) <= 16
        assert len(batch) == 1 or len(batch) * (LENGTHS[batch].max() + 2) ** 2 <= 4000
    assert [17] in found  # past the bound all by itself


@pytest.mark.parametrize("world", [2, 3, 7])
def test_evaluation_is_shared_without_repetition(world: int) -> None:
    shared = [index for rank in range(world) for batch in batches(False, rank, world) for index in batch]
    assert sorted(shared) == list(range(len(LENGTHS)))


@pytest.mark.parametrize("world", [2, 3, 7])
def test_training_gives_every_rank_equally_many_batches(world: int) -> None:
    ranks = [batches(True, rank, world) for rank in range(world)]
    assert len({len(found) for found in ranks}) == 1
    seen = Counter(index for found in ranks for batch in found for index in batch)
    assert set(seen) == set(range(len(LENGTHS)))
    repeated = sum(map(len, ranks)) - len(batches(True))
    assert 0 <= repeated < world


def test_epochs_differ_and_repeat_themselves() -> None:
    assert batches(True, epoch=1) == batches(True, epoch=1)
    first, second = batches(True, epoch=1), batches(True, epoch=2)
    assert first != second
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}


def test_more_ranks_than_batches_leave_none_without_a_step() -> None:
    sampler = LengthBatches(np.array([5, 5]), max_cells=10**6, max_sentences=9, shuffle=False, rank=2, world=3)
    assert list(sampler) == [[]]
    assert len(sampler) == 1


def test_an_interrupted_epoch_goes_on_where_it_stopped() -> None:
    whole = batches(True, epoch=4)
    sampler = LengthBatches(LENGTHS, max_cells=4000, max_sentences=16, shuffle=True, seed=3)
    done = SimpleNamespace(
        epoch_loop=SimpleNamespace(batch_progress=SimpleNamespace(current=SimpleNamespace(ready=10)))
    )
    sampler.resume(cast(Any, SimpleNamespace(current_epoch=4, limit_train_batches=1.0, fit_loop=done)))
    assert list(sampler) == whole[10:]
    sampler.set_epoch(5)
    assert list(sampler) == batches(True, epoch=5)


def test_batches_of_like_length_waste_little() -> None:
    padded = sum(len(batch) * (LENGTHS[batch].max() + 2) ** 2 for batch in batches(True))
    assert padded < 1.1 * ((LENGTHS + 2) ** 2).sum()
