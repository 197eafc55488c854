"""Distances and depths of trees, and the losses and correlations of predicted ones (Hewitt & Manning 2019)."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metrics.attachment import Floats, Integers

LENGTHS = (5, 50)  # shortest and longest sentences whose rank correlations are averaged (Hewitt & Manning 2019)


def tree_distances(heads: Tensor, lengths: Tensor) -> Tensor:
    """Length of the path between every two words of a tree, int64 `[batch, n, n]`; 0 in the padding.

    In a forest, as in some control tasks, paths between two trees lead over ROOT.

    Args:
        heads: `[batch, n]`, 1-based, 0 for ROOT; the padding is ignored.
        lengths: `[batch]`.

    Raises:
        ValueError: a head outside its sentence, or a cycle.
    """
    lines = _lines(heads, lengths)
    shared = lines @ lines.mT  # common ancestors, the words themselves included
    own = shared.diagonal(dim1=1, dim2=2)
    distances = own[:, :, None] + own[:, None, :] - 2 * shared
    real = _real(heads.size(1), lengths)
    return (distances * (real[:, :, None] & real[:, None, :])).long()


def tree_depths(heads: Tensor, lengths: Tensor) -> Tensor:
    """Arcs between every word and the root of its tree, int64 `[batch, n]`: 0 at the root, and in the padding.

    Arguments and errors are those of `tree_distances`.
    """
    return (_lines(heads, lengths).sum(-1) - 1).clamp(min=0).long()


def _lines(heads: Tensor, lengths: Tensor) -> Tensor:
    """Float32 `[batch, n, n]`: 1 where the second word is the first one or its ancestor."""
    n = heads.size(1)
    real = _real(n, lengths)
    heads = torch.where(real, heads, 0)
    if bool(((heads < 0) | (heads > lengths[:, None])).any()):
        raise ValueError("a head lies outside its sentence: heads are 1-based, and 0 is ROOT")
    up = torch.zeros(*heads.shape, n + 1, device=heads.device).scatter_(2, heads[:, :, None], 1.0)[:, :, 1:]
    lines = torch.diag_embed(real.float())
    # By doubling: `lines` holds the ancestors less than `steps` arcs up, `up` the one that is `steps` arcs up.
    steps = 1
    while steps <= n:
        lines = lines + up @ lines
        up, steps = up @ up, 2 * steps
    if bool(up.any()):
        raise ValueError("the heads of a sentence have a cycle: they are no tree, and there are no distances in it")
    return lines


def _real(n: int, lengths: Tensor) -> Tensor:
    return torch.arange(n, device=lengths.device) < lengths[:, None]


def distance_losses(predicted: Tensor, gold: Tensor, lengths: Tensor) -> Tensor:
    """Σ |gold − predicted| over all ordered pairs of words / n², of each sentence (Hewitt & Manning 2019, §2).

    Of k probes: predicted `[batch, k, n, n]`, gold `[batch, n, n]`, lengths `[batch]` → `[batch, k]`. The padding is
    ignored.
    """
    real = _real(gold.size(1), lengths)
    pairs = (real[:, :, None] & real[:, None, :])[:, None]
    return ((predicted - gold[:, None]).abs() * pairs).sum((-2, -1)) / lengths[:, None] ** 2


def depth_losses(predicted: Tensor, gold: Tensor, lengths: Tensor) -> Tensor:
    """Σ |gold − predicted| over the words / n, of predicted `[batch, k, n]`; otherwise as `distance_losses`."""
    return ((predicted - gold[:, None]).abs() * _real(gold.size(1), lengths)[:, None]).sum(-1) / lengths[:, None]


def spearman(predicted: Tensor, gold: Tensor, mask: Tensor) -> Tensor:
    """Spearman's rank correlation of the values `[..., n]` under a mask, `[...]`; ties share their mean rank.

    It is nan where all gold values are equal, so that there is no order, and 0 where all predictions are equal. The
    arguments are broadcast; predictions under the mask must be finite.
    """
    one, other = _centred_ranks(predicted.float(), mask), _centred_ranks(gold.float(), mask)
    spread, expected = one.square().sum(-1), other.square().sum(-1)
    correlation = (one * other).sum(-1) / (spread * expected).clamp(min=torch.finfo(torch.float32).tiny).sqrt()
    return correlation.masked_fill(expected == 0, torch.nan)


def _centred_ranks(values: Tensor, mask: Tensor) -> Tensor:
    values = torch.where(mask, values, torch.inf).contiguous()
    ascending = values.sort(dim=-1).values
    # Tied values share the rank (smaller values + values that are not larger − 1) / 2, from 0.
    twice = torch.searchsorted(ascending, values) + torch.searchsorted(ascending, values, right=True)
    return (twice - mask.sum(-1, keepdim=True)) / 2 * mask


def length_weights(lengths: Integers, counted: NDArray[np.bool_]) -> Floats:
    """Weights `[sentences]` that average first over the sentences of each length from 5 to 50, then over the lengths.

    Hewitt & Manning (2019) average rank correlations in this way. Only sentences that are `counted` take part.
    """
    among = counted & (lengths >= LENGTHS[0]) & (lengths <= LENGTHS[1])
    occurring, which, number = np.unique(lengths[among], return_inverse=True, return_counts=True)
    weights = np.zeros(len(lengths))
    weights[among] = 1.0 / (len(occurring) * number[which])
    return weights
