"""Distances of distributions: total variation distance, Jensen–Shannon and Kullback–Leibler divergence.

They reduce the last axis and broadcast the others. Logarithms are natural. A weight of exactly 0, as in the padding,
adds exactly 0 to the value and gets a gradient of exactly 0 through the logarithms; nothing becomes nan.
"""

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


def tvd(p: Tensor, q: Tensor) -> Tensor:
    """Total variation distance ½ Σ |p − q|, in 0–1: `[..., slots]`, `[..., slots]` → `[...]`."""
    return (p - q).abs().sum(-1) / 2


def entropy(p: Tensor) -> Tensor:
    """− Σ p log p in nats: `[..., slots]` → `[...]`."""
    return -(p * torch.where(p > 0, p, 1.0).log()).sum(-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Kullback–Leibler divergence Σ p log(p / q) in nats: `[..., slots]`, `[..., slots]` → `[...]`.

    q is clamped to the smallest normal number of its precision: where p has weight and q has none, the divergence is
    large but finite, and q gets no gradient.
    """
    # Zeros are replaced before the logarithms: after them the gradient would be 0 · ∞. Two logarithms, because the
    # gradient of the ratio overflows.
    above = torch.where(p > 0, p, 1.0)
    below = torch.where(p > 0, q.clamp_min(torch.finfo(q.dtype).tiny), 1.0)
    return (p * (above.log() - below.log())).sum(-1)


def jsd(p: Tensor, q: Tensor) -> Tensor:
    """Jensen–Shannon divergence ½ KL(p ‖ m) + ½ KL(q ‖ m), m = ½ (p + q), in nats.

    It is symmetric, 0 for equal distributions and ln 2 for disjoint ones: `[..., slots]`, `[..., slots]` → `[...]`.
    `scipy.spatial.distance.jensenshannon` is its square root.
    """
    # Without this a weight of 0 would get a gradient through the mixture.
    p, q = torch.where(p > 0, p, 0.0), torch.where(q > 0, q, 0.0)
    middle = (p + q) / 2
    return (kl(p, middle) + kl(q, middle)) / 2


def area(tvd: ArrayLike, jsd: ArrayLike) -> NDArray[np.float64]:
    """Area under the curve of the change of attention (JSD) over the change of the decision (TVD).

    The curve begins at (0, 0), the model itself, and joins the points by straight lines in the order of their TVD. Each
    point counts with the highest JSD up to it, so the curve never falls; after the last point it is flat up to TVD = 1.
    The area lies in 0 – ln 2 and is high where attention could change much while the decisions stayed the same.
    Wiegreffe & Pinter (2019, Figure 5) draw such curves; the area is ours.

    Of `tvd` `[..., points]`, in 0–1 and any order, and `jsd` of the same shape (else ValueError): `[...]`, nan where a
    point is nan.
    """
    x, y = np.asarray(tvd, np.float64), np.asarray(jsd, np.float64)
    if x.shape != y.shape or not x.shape or not x.shape[-1]:
        raise ValueError(f"TVD {x.shape} and JSD {y.shape} of a curve must have one shape, [..., points], with a point")
    order = np.lexsort((y, x), axis=-1)  # of equal TVD the lower JSD first, whatever order they came in
    x, y = np.take_along_axis(x, order, -1), np.take_along_axis(y, order, -1)
    none = np.zeros((*x.shape[:-1], 1))
    x = np.concatenate([none, x, none + 1], axis=-1)
    y = np.maximum.accumulate(np.concatenate([none, y], axis=-1), axis=-1)
    y = np.concatenate([y, y[..., -1:]], axis=-1)
    return np.asarray(np.trapezoid(y, x, axis=-1))
