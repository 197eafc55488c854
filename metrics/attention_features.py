"""Features of the attention of each head on a text: spread, sink and distance."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from attention_probing.metrics.distributions import renyi_entropy
from attention_probing.results import Unit

Feature = Literal["entropy", "first", "distance"]
AnswerFeature = Literal["entropy", "first", "distance", "lookback"]

FEATURES: tuple[Feature, ...] = ("entropy", "first", "distance")
"""Rényi-2 entropy of a row, its share to the first position, and its mean distance; see `row_features`."""
ANSWER_FEATURES: tuple[AnswerFeature, ...] = (*FEATURES, "lookback")
"""The same, and the lookback ratio of a text that continues another; see `lookback_ratios`."""

FEATURE_UNITS: Mapping[AnswerFeature, Unit] = {
    "entropy": "nats",
    "first": "fraction",
    "distance": "count",
    "lookback": "fraction",
}


def row_features(weights: Tensor, first: Tensor | None = None, scratch: Tensor | None = None) -> Tensor:
    """Return the features of every row of attention, `[batch, heads, from, features]`, in the order of `FEATURES`.

    - `entropy`: Rényi entropy of order 2, −log Σ_j α_ij² (Ostmeier et al. 2026, arXiv 2602.13699), in nats;
    - `first`: weight on the first position, α_i1 (Gu et al. 2025, arXiv 2410.10781, §3.2), a fraction;
    - `distance`: Σ_j α_ij |i − j|, the mean distance of the attention (Vig & Belinkov 2019), in positions.

    For entropy and distance, rows that sum to less than one, as those of a model with attention sinks, are divided by
    their sums.

    Args:
        weights: Attention `[batch, heads, from, to]`, zero in the columns of the padding.
        first: The first position that a row may attend to, int64 `[batch, from]`, if the rows are not those of the
            positions, as in a classifier with one row for a text; their distance is nan. None if the rows are those of
            the positions, all of which may attend to position 0.
        scratch: Tensor with the shape and the type of `weights`, which is overwritten; None to allocate one. For long
            texts the allocation takes more time than the features.
    """
    sums = weights.sum(-1)
    entropy = renyi_entropy(weights) + 2 * sums.log()
    if first is not None:
        places = first[:, None, :, None].expand(*weights.shape[:-1], 1)
        to_first = weights.gather(-1, places).squeeze(-1)
        return torch.stack([entropy, to_first, torch.full_like(entropy, torch.nan)], -1)
    position = torch.arange(weights.size(-1), device=weights.device)
    apart = (position[:, None] - position).abs().to(weights.dtype)
    distance = torch.mul(weights, apart, out=scratch).sum(-1) / sums
    return torch.stack([entropy, weights[..., 0], distance], -1)


def lookback_ratios(weights: Tensor, context: Tensor) -> Tensor:
    """Return how much each row looks at the context rather than at what follows it, `[batch, heads, from]`.

    It is c / (c + g), with c the mean weight of the positions of the context, and g that of the positions from the end
    of the context up to the row (Chuang et al. 2024, arXiv 2407.07071, §2.1): 0 to 1, and nan for rows in the context.
    The row of the last position read so far predicts the next token, so it is one of the positions that follow.

    Args:
        weights: Attention of a decoder `[batch, heads, from, to]`.
        context: Number of positions of the context, at least 1, int64 `[batch]`.
    """
    position = torch.arange(weights.size(-1), device=weights.device)
    is_context = (position < context[:, None]).to(weights.dtype)
    to_context = torch.einsum("bhft,bt->bhf", weights, is_context)
    to_others = weights.sum(-1) - to_context
    others = (position + 1 - context[:, None])[:, None]  # [batch, 1, from], below 1 in the context
    mean_to_context = to_context / context[:, None, None]
    mean_to_others = to_others / others
    ratios = mean_to_context / (mean_to_context + mean_to_others)
    return ratios.masked_fill(others < 1, torch.nan)


def mean_features(features: Tensor, rows: Tensor) -> Tensor:
    """Return the mean of the features over some rows of each text, `[batch, heads, features]`; nan without any row.

    Args:
        features: Features of the rows, `[batch, heads, from, features]`; those of other rows may be undefined.
        rows: Bool `[batch, from]`, True for the rows in the mean.
    """
    chosen = rows[:, None, :, None]
    sums = features.masked_fill(~chosen, 0).sum(2)
    return sums / rows.sum(1)[:, None, None]
