"""Attention weights that are replaced by others: uniform, shuffled, erased. Each group of slots sums to one."""

import torch
from torch import Tensor


def group_sums(values: Tensor, groups: Tensor) -> Tensor:
    """Of every slot the sum over its group, in the shape of the values.

    Args:
        values: `[..., batch, slots]`, 0 outside the groups.
        groups: int64 `[batch, slots]`; -1 for slots of none.
    """
    count = int(groups.max()) + 1
    if count <= 1:
        return values.sum(-1, keepdim=True).expand(values.shape)
    places = groups.clamp(min=0).expand(values.shape)
    return values.new_zeros(*values.shape[:-1], count).scatter_add(-1, places, values).gather(-1, places)


def renormalised(weights: Tensor, groups: Tensor) -> Tensor:
    """Weights `[..., batch, slots]` scaled so that every group sums to one; a group with nothing left stays 0."""
    sums = group_sums(weights, groups)
    left = sums > 0
    # The division is by 1 where nothing is left, so that no gradient is NaN.
    return torch.where(left, weights / torch.where(left, sums, 1), 0)


def uniform(groups: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same weight `[batch, slots]` on every slot of a group."""
    return renormalised((groups >= 0).to(dtype), groups)


def permuted(weights: Tensor, noise: Tensor, groups: Tensor) -> Tensor:
    """Weights that are shuffled within their groups.

    Args:
        weights: `[heads, batch, slots]`; all heads are shuffled alike.
        noise: `[draws, batch, slots]`; its order is that of a shuffle.
        groups: int64 `[batch, slots]`; -1 for slots of none, which keep what they have.

    Returns:
        `[draws, heads, batch, slots]`.
    """
    slots = groups.argsort(dim=-1, stable=True).expand(noise.shape)
    by_noise = noise.argsort(-1)
    # Sorted by group and by noise within each: the n-th of these gives its weight to the n-th slot of the group.
    givers = by_noise.gather(-1, groups.expand(noise.shape).gather(-1, by_noise).argsort(dim=-1, stable=True))
    source = torch.empty_like(givers).scatter_(-1, slots, givers)
    outside = groups < 0
    source = torch.where(outside, torch.arange(groups.size(-1), device=groups.device), source)
    shape = (noise.size(0), *weights.shape)
    return weights.expand(shape).gather(-1, source[:, None].expand(shape))
