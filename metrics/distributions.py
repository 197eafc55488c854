"""How far two distributions are apart: total variation distance, Jensen–Shannon and Kullback–Leibler divergence.

Each is over the last axis; the axes before it are broadcast. Logarithms are natural. A weight of exactly 0, as in the
padding, adds exactly 0 to the value, and gets a gradient of exactly 0 from the logarithms, whose own derivative there
is infinite. No weights give a nan, in value or gradient.
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

    q counts as at least the smallest normal number of its precision: the divergence is large where p has weight and q
    has none, not infinite, and q gets no gradient there.
    """
    # Replaced before the logarithms, and not in the product behind them: the gradient would be 0 · ∞. And each has its
    # own, since the gradient of their ratio overflows.
    above = torch.where(p > 0, p, 1.0)
    below = torch.where(p > 0, q.clamp_min(torch.finfo(q.dtype).tiny), 1.0)
    return (p * (above.log() - below.log())).sum(-1)


def jsd(p: Tensor, q: Tensor) -> Tensor:
    """Jensen–Shannon divergence ½ KL(p ‖ m) + ½ KL(q ‖ m), m = ½ (p + q), in nats.

    It is symmetric, 0 for equal distributions and ln 2 for those that share no slot: `[..., slots]`, `[..., slots]` →
    `[...]`. `scipy.spatial.distance.jensenshannon` is its square root.
    """
    # Through the mixture too a weight of 0 would get a gradient: the finite half of one that is infinite.
    p, q = torch.where(p > 0, p, 0.0), torch.where(q > 0, q, 0.0)
    middle = (p + q) / 2
    return (kl(p, middle) + kl(q, middle)) / 2


def area(tvd: ArrayLike, jsd: ArrayLike) -> NDArray[np.float64]:
    """Area under a curve of how far attention was changed (JSD) at which change of the decision (TVD).

    The curve begins at (0, 0), the model itself, and runs through the points in the order of their TVD. It never
    falls: what was reached at a small change of the decision can be had at any larger one too, so that a point counts
    with the highest JSD up to it. Between points it is straight, behind the last it is flat up to TVD = 1. The area
    lies in 0 – ln 2; it is high where attention could be changed much while the decisions stayed the same. Wiegreffe &
    Pinter (2019, Figure 5) draw such curves; the area is ours.

    Args:
        tvd: `[..., points]`, in 0–1, in any order.
        jsd: `[..., points]`, in 0 – ln 2.

    Returns:
        `[...]`; nan where a point is.

    Raises:
        ValueError: the shapes differ, or there is no point.
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
