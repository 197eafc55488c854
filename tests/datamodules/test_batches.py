from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attention_probing.datamodules.batches import LengthBatches

LENGTHS = np.random.default_rng(0).integers(1, 60, 501)
LENGTHS[17] = 400


def batches(shuffle: bool, rank: int = 0, world: int = 1, epoch: int = 0, cells: int = 4000) -> list[list[int]]:
    bounds: dict[str, Any] = {"max_cells": cells, "max_items": 16, "shuffle": shuffle, "seed": 3}
    sampler = LengthBatches(LENGTHS, **bounds, rank=rank, world=world)
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
    padded = sum(len(batch) * (LENGTHS[batch].max() + 2) ** 2 for batch in found)
    assert padded < 1.1 * ((LENGTHS + 2) ** 2).sum()


@pytest.mark.parametrize("world", [2, 3, 7])
def test_evaluation_is_shared_without_repetition(world: int) -> None:
    shared = [index for rank in range(world) for batch in batches(False, rank, world) for index in batch]
    assert sorted(shared) == list(range(len(LENGTHS)))


@pytest.mark.parametrize("world", [2, 3, 7])
def test_ranks_divide_every_batch_of_a_training(world: int) -> None:
    shares = zip(*(batches(True, rank, world) for rank in range(world)), strict=True)
    for batch, of_ranks in zip(batches(True), shares, strict=True):
        assert sorted(batch) == sorted(item for share in of_ranks for item in share)
        sizes = [len(share) for share in of_ranks]
        assert max(sizes) - min(sizes) <= 1


def test_epochs_differ_and_repeat_themselves() -> None:
    assert batches(True, epoch=1) == batches(True, epoch=1)
    first, second = batches(True, epoch=1), batches(True, epoch=2)
    assert first != second
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}


def test_more_ranks_than_batches_leave_none_without_a_step() -> None:
    sampler = LengthBatches(np.array([5, 5]), max_cells=10**6, max_items=9, shuffle=False, rank=2, world=3)
    assert list(sampler) == [[]]
    assert len(sampler) == 1


def test_batches_of_tokens_are_bounded_by_the_longest_times_their_number() -> None:
    sampler = LengthBatches(LENGTHS, max_cells=500, max_items=501, shuffle=False, cells="tokens")
    found = list(sampler)
    assert sorted(index for batch in found for index in batch) == list(range(len(LENGTHS)))
    assert all(len(batch) * LENGTHS[batch].max() <= 500 for batch in found)
    # No batch could have taken in the first of the next one.
    for batch, following in pairwise(found):
        assert (len(batch) + 1) * LENGTHS[following].min() > 500


def jittered(epoch: int, jitter: float = 0.1, lengths: NDArray[np.int64] = LENGTHS) -> list[list[int]]:
    sampler = LengthBatches(lengths, max_cells=None, max_items=16, shuffle=True, jitter=jitter, seed=3)
    sampler.set_epoch(epoch)
    return list(sampler)


def test_jitter_gives_sentences_of_a_length_of_their_own_other_neighbours_in_every_epoch() -> None:
    def neighbours(epoch: int, jitter: float) -> set[frozenset[int]]:
        return set(map(frozenset, jittered(epoch, jitter, np.arange(20, 180))))

    assert neighbours(0, 0.0) == neighbours(1, 0.0)
    assert not neighbours(0, 0.1) & neighbours(1, 0.1)
