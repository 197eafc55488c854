"""Batches of random attention over random trees, for probes that need no encoder."""

import torch
from torch import Tensor

from attention_probing.datamodules import AttentionBatch


def random_batch(
    lengths: list[int],
    layers: int = 2,
    heads: int = 3,
    seed: int = 0,
    *,
    vectors: int = 0,
    hidden: tuple[int, int] = (0, 0),
) -> AttentionBatch:
    """`hidden` is layers and size."""
    random = torch.Generator().manual_seed(seed)
    words = max(lengths)
    attention = torch.zeros(len(lengths), layers, heads, words + 2, words + 2)
    gold = torch.full((len(lengths), words), -1)
    relations = torch.full((len(lengths), words), -1)
    punctuation = torch.zeros(len(lengths), words, dtype=torch.bool)
    for row, n in enumerate(lengths):
        attention[row, ..., : n + 2, : n + 2] = torch.rand(layers, heads, n + 2, n + 2, generator=random).softmax(-1)
        gold[row, :n] = _tree(n, random)
        relations[row, :n] = torch.randint(0, 4, (n,), generator=random)
        punctuation[row, :n] = relations[row, :n] == 3
    real = (gold >= 0)[..., None]
    return AttentionBatch(
        index=torch.arange(len(lengths)),
        lengths=torch.tensor(lengths),
        heads=gold,
        relations=relations,
        punctuation=punctuation,
        documents=torch.full((len(lengths),), -1),
        attention=attention.half(),
        hidden=(torch.randn(len(lengths), hidden[0], words, hidden[1], generator=random) * real[:, None]).half(),
        vectors=torch.randn(len(lengths), words, vectors, generator=random) * real,
        split="test",
    )


def _tree(n: int, random: torch.Generator) -> Tensor:
    """Every word but the root hangs on an earlier one of a random order."""
    order = (torch.randperm(n, generator=random) + 1).tolist()
    heads = torch.zeros(n, dtype=torch.int64)
    for place, word in enumerate(order[1:], start=1):
        heads[word - 1] = order[int(torch.randint(0, place, (), generator=random))]
    return heads
