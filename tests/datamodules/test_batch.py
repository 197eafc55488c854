from dataclasses import fields

import torch

from corpora.document import cut
from datamodules import AntecedentBatch
from tests.documents import document
from tests.probes.batches import random_batch


def test_the_mask_is_true_on_words_alone() -> None:
    assert random_batch([3, 1]).mask.tolist() == [[True, True, True], [True, False, False]]


def test_every_field_moves() -> None:
    batch = random_batch([3, 1])
    moved = batch.to(torch.device("meta"))
    for field in fields(batch):
        there, here = getattr(moved, field.name), getattr(batch, field.name)
        if field.name in ("split", "encoder"):
            assert there == here
        else:
            assert there.device.type == "meta"
            assert (there.shape, there.dtype) == (here.shape, here.dtype)


def test_every_tensor_of_an_antecedent_batch_moves_and_the_text_stays() -> None:
    window = cut(0, document("d", ["a b c"], [(0, 0, 1, 0, 0), (0, 1, 3, 2, 0)]), 0, 1)
    numbers = torch.tensor([0, 2])
    batch = AntecedentBatch(
        index=torch.tensor([5]),
        document=torch.tensor([1]),
        head_words=numbers,
        clusters=numbers,
        types=numbers,
        weights=torch.rand(2, 3, 2, 2),
        vectors=torch.rand(2, 5),
        window=window,
        split="dev",
    )
    moved = batch.to(torch.device("meta"))
    assert moved.window is window
    assert moved.split == "dev"
    for field in fields(batch):
        there, here = getattr(moved, field.name), getattr(batch, field.name)
        if field.name not in ("window", "split"):
            assert there.device.type == "meta"
            assert (there.shape, there.dtype) == (here.shape, here.dtype)
