"""The largest weights between words: what analyses of linguistic links look at in a batch."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from datamodules import SegmentBatch


@dataclass(frozen=True)
class Cells:
    """Cells of the weights of a batch, each of one of several owners; every tensor is int64 `[cells]`."""

    owners: int
    owner: Tensor
    segment: Tensor
    source: Tensor
    target: Tensor

    @classmethod
    def of(cls, owners: int, cells: Iterable[tuple[int, int, int, int]], device: torch.device) -> "Cells":
        """Of quadruples owner, segment, source and target."""
        columns = np.array(list(cells), np.int64).reshape(-1, 4).T
        return cls(owners, *torch.from_numpy(np.ascontiguousarray(columns)).to(device))

    def largest(self, weights: Tensor) -> Tensor:
        """The largest of each owner's weights, `[owners, heads]` of `[batch, heads, from, to]`; nan without a cell."""
        found = weights[self.segment, :, self.source, self.target]
        blank = weights.new_full((self.owners, weights.size(1)), torch.nan)
        owner = self.owner[:, None].expand_as(found)
        return blank.scatter_reduce(0, owner, found, "amax", include_self=False)


def tokens_of_words(batch: SegmentBatch) -> list[list[list[int]]]:
    """For each segment, and each word of it, the places of its tokens."""
    found = []
    for words, passages in zip(batch.words.tolist(), batch.passages, strict=True):
        tokens: list[list[int]] = [[] for passage in passages for _ in passage.words]
        for place, word in enumerate(words):
            if word >= 0:
                tokens[word].append(place)
        found.append(tokens)
    return found


def between(tokens: list[list[int]], sources: Iterable[int], targets: Iterable[int]) -> list[tuple[int, int]]:
    """All pairs of a token of some words and a token of others."""
    starts = [place for word in sources for place in tokens[word]]
    return list(product(starts, [place for word in targets for place in tokens[word]]))
