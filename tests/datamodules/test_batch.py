from dataclasses import fields

import torch

from tests.probes.batches import random_batch


def test_the_mask_is_true_on_words_alone() -> None:
    assert random_batch([3, 1]).mask.tolist() == [[True, True, True], [True, False, False]]


def test_every_field_moves() -> None:
    batch = random_batch([3, 1])
    moved = batch.to(torch.device("meta"))
    for field in fields(batch):
        there, here = getattr(moved, field.name), getattr(batch, field.name)
        assert there.device.type == "meta"
        assert (there.shape, there.dtype) == (here.shape, here.dtype)
