"""Scores of pairs of words from the attention between them: the two formulas of Clark et al. (2019, §5).

A pair is a dependent with a candidate head, or a mention with a candidate antecedent. Axes of attention are from and
to; K counts the heads of all layers.
"""

import torch
from torch import Tensor


def attention_scores(attention: Tensor, weight: Tensor) -> Tensor:
    """`score[x, y] = Σ_k weight[0, k] α^k[x, y] + weight[1, k] α^k[y, x]`.

    Args:
        attention: `[batch, K, slots, slots]`, any floating-point type.
        weight: `[2, K]`: of attention from x to y, and from y to x.

    Returns:
        `[batch, slots, slots]`.
    """
    batch, slots = attention.size(0), attention.size(-1)
    # As a batched product, whose gradient is one as well: that of a broadcast one is twenty times as slow on a CPU.
    scores = torch.bmm(weight.expand(batch, -1, -1), attention.flatten(2).float())
    out, back = scores.view(-1, 2, slots, slots).unbind(1)
    return out + back.mT


def weighted_scores(attention: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """`score[x, y] = Σ_k (first[0,k,x] + second[0,k,y]) α^k[x, y] + (first[1,k,x] + second[1,k,y]) α^k[y, x]`.

    Weights of the form `W_k·(v_x ⊕ v_y)` are such sums of a term of x and a term of y, so that nothing of the size
    `[slots, slots, 2·dim]` is ever made.

    Args:
        attention: `[batch, K, slots, slots]`, any floating-point type.
        first: `[batch, 2, K, slots]`: what x contributes to the weight of attention from x to y, and from y to x.
        second: the same of y.

    Returns:
        `[batch, slots, slots]`.
    """
    attention = attention.float()
    out = ((first[:, 0, :, :, None] + second[:, 0, :, None, :]) * attention).sum(1)
    back = ((second[:, 1, :, :, None] + first[:, 1, :, None, :]) * attention).sum(1)
    return out + back.mT


def candidates(scores: Tensor, lengths: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Scores of slots to scores of candidate heads, ROOT being `start` times the start and `end` times the end slot.

    Args:
        scores: `[batch, n+2, n+2]`, dependents × heads, delimiters first and behind the last word.
        lengths: `[batch]` words of each sentence.
        start: a scalar.
        end: a scalar.

    Returns:
        `[batch, n, n+1]`, ROOT first; -inf where there is no candidate.
    """
    slots = scores.size(-1)
    ends = (lengths + 1)[:, None, None].expand(-1, slots, 1)
    root = start * scores[:, :, :1] + end * scores.gather(2, ends)
    scores = torch.cat([root, scores[:, :, 1:-1]], dim=2)[:, 1:-1]
    absent = torch.arange(slots - 1, device=scores.device) > lengths[:, None]
    return scores.masked_fill(absent[:, None], -torch.inf)
