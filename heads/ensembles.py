"""Heads that are better together: greedy ensembles per relation and direction (Limisiewicz et al. 2020, §4.2)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attention.store import Store
from metrics.attachment import Arcs, Flags, Floats, Integers

_CELLS = 1 << 22
"""Weights held at once in single precision, all heads of some words."""


@dataclass(frozen=True)
class Ensemble:
    """Heads whose attention is averaged before the greatest weight is taken.

    Attributes:
        direction: 0 dependent→head, 1 head→dependent.
        heads: indices into the heads of the store, layer by layer, in the order in which they were chosen.
        hits: words of the relation whose gold head it finds on the split it was chosen on.
    """

    direction: int
    heads: tuple[int, ...]
    hits: int


def choose(store: Store, arcs: Arcs, words: Flags, direction: int, most: int) -> Ensemble:
    """Add the head that helps most, again and again, until none helps or there are `most`.

    Args:
        store: attention of the split.
        arcs: its gold arcs.
        words: `[words]` those of the relation.
        direction: 0 or 1.
        most: heads at most.
    """
    chosen: tuple[int, ...] = ()
    reached = -1
    while len(chosen) < most:
        counts: Tensor | int = 0
        for rows, gold in _chunks(store, arcs, words, direction):
            together = rows + sum(rows[:, head, None] for head in chosen)
            counts = counts + _right(together, gold[:, None]).sum(0)
        assert isinstance(counts, Tensor)
        counts[list(chosen)] = -1
        best = int(counts.argmax())
        if int(counts[best]) <= reached:
            break
        chosen, reached = (*chosen, best), int(counts[best])
    return Ensemble(direction, chosen, reached)


def hits(store: Store, arcs: Arcs, words: Flags, ensemble: Ensemble) -> Floats:
    """`[words of the relation]`, 1 where the ensemble finds the gold head, in the order of the arcs."""
    found = np.zeros(int(words.sum()))
    order = _order(arcs, words)
    start = 0
    for rows, gold in _chunks(store, arcs, words, ensemble.direction):
        right = _right(rows[:, list(ensemble.heads)].sum(1), gold)
        found[order[start : start + len(gold)]] = right.numpy()
        start += len(gold)
    return found


def _right(weights: Tensor, gold: Tensor) -> Tensor:
    """Whether the greatest weight `[..., n]` is the gold head's `[...]`; where all are zero nothing is predicted."""
    most, place = weights.max(-1)
    return (place + 1 == gold) & (most > 0)


def _order(arcs: Arcs, words: Flags) -> Integers:
    """Positions of the relation's words, those of short sentences first, so that little is padded."""
    return np.argsort(arcs.length[words], kind="stable")


def _chunks(store: Store, arcs: Arcs, words: Flags, direction: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Weights between some words of the relation and all words, `[chunk, heads, n]`, and their gold heads `[chunk]`.

    The word itself and the padding are minus infinity. A word without another one is its own prediction, and wrong.
    """
    places = np.flatnonzero(words)[_order(arcs, words)]
    heads = len(store.manifest.layers) * len(store.manifest.heads)
    start = 0
    while start < len(places):
        n = int(arcs.length[places[min(start + 512, len(places)) - 1]])
        stop = min(start + max(_CELLS // (heads * n), 1), start + 512, len(places))
        rows = torch.full((stop - start, heads, int(arcs.length[places[stop - 1]])), -torch.inf)
        for row, place in enumerate(places[start:stop]):
            word, length = int(arcs.word[place]), int(arcs.length[place])
            at = (..., word, slice(None)) if direction == 0 else (..., word)
            weights = store.read("attention", int(arcs.sentence[place]), at)
            rows[row, :, :length] = weights[..., 1:-1].flatten(0, 1)
            rows[row, :, word - 1] = -torch.inf
        yield rows, torch.from_numpy(arcs.head[places[start:stop]])
        start = stop
