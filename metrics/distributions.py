"""How far two distributions are apart: total variation distance, Jensen–Shannon and Kullback–Leibler divergence.

Each is over the last axis; the axes before it are broadcast. Logarithms are natural. A weight of exactly 0, as in the
padding, adds exactly 0 to the value, and gets a gradient of exactly 0 from the logarithms, whose own derivative there
is infinite. No weights give a nan, in value or gradient.
"""

import torch
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
