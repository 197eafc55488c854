"""Which layers and ranks a sweep of structural probes is over, and what each of them starts from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from probes.base import ProbeError
from training import Origin

BOUND = 0.05
"""The matrices start uniform within ±BOUND as in Hewitt & Manning (2019)."""


class Pair(NamedTuple):
    """A probe of a sweep.

    Attributes:
        layer: whose hidden states it reads: 0 for those of the embeddings, k for those of layer k.
        rank: rows of its matrix.
    """

    layer: int
    rank: int


@dataclass(frozen=True)
class StructuralSizes:
    """What the matrices of a sweep are shaped by.

    Attributes:
        pairs: a matrix for each.
        size: of a hidden state.
    """

    pairs: tuple[Pair, ...]
    size: int


def sweep_pairs(
    layers: Sequence[int] | None, ranks: Sequence[int] | None, held: Sequence[int], size: int
) -> tuple[Pair, ...]:
    """Every layer with every rank.

    Args:
        layers: those asked for; None for all that are held.
        ranks: those asked for; None for the size of the hidden states.
        held: layers whose hidden states the data hold.
        size: of a hidden state.

    Raises:
        ProbeError: nothing is held or asked for, or a layer is not held, or a rank exceeds the size.
    """
    if not held:
        raise ProbeError(
            "A structural probe needs hidden states: --data.init_args.hidden '[1,2,3]', 0 for those of the embeddings, "
            "k for those of layer k."
        )
    layers = held if layers is None else layers
    ranks = (size,) if ranks is None else ranks
    if absent := [layer for layer in layers if layer not in held]:
        raise ProbeError(
            f"layers: the data hold no hidden states of layer {absent[0]}, only of {', '.join(map(str, held))}. Name "
            f"it in --data.init_args.hidden too."
        )
    if wrong := [rank for rank in ranks if not 1 <= rank <= size]:
        raise ProbeError(f"ranks: {wrong[0]} is not from 1 to {size}, the size of a hidden state.")
    pairs = tuple(Pair(layer, rank) for layer in layers for rank in ranks)
    if not pairs or len(set(pairs)) < len(pairs):
        raise ProbeError(f"layers {list(layers)} and ranks {list(ranks)}: give at least one of each, and none twice.")
    return pairs


def start(pair: Pair, size: int, seed: int) -> Tensor:
    """The matrix `[rank, size]` a pair starts from: drawn for it alone, so that it is the same in every sweep."""
    random = torch.Generator().manual_seed(seed * 1_000_003 + pair.layer * 65_537 + pair.rank)
    return torch.empty(pair.rank, size).uniform_(-BOUND, BOUND, generator=random)


def describe(origin: Origin[StructuralSizes]) -> str:
    """The encoder, and the layers and ranks, in words."""
    pairs, source = origin.sizes.pairs, origin.source
    layers, ranks = (", ".join(str(number) for number in dict.fromkeys(column)) for column in zip(*pairs, strict=True))
    return (
        f"{source['weights']} weights {str(source['weights_sha256'])[:12]}…, hidden states of layers {layers}, at "
        f"ranks {ranks}"
    )
