"""Scores of pairs of words from the attention between them: the two formulas of Clark et al. (2019, §5).

A pair is a dependent with a candidate head, or a mention with a candidate antecedent. Axes of attention are from and
to; K counts the heads of all layers.
"""

from typing import Any

import torch
from torch import Tensor


def attention_scores(attention: Tensor, weight: Tensor) -> Tensor:
    """`score[x, y] = Σ_k weight[0, k] α^k[x, y] + weight[1, k] α^k[y, x]`, `[batch, positions, positions]`.

    Takes attention `[batch, K, positions, positions]` of any floating-point type, and weights `[2, K]`.
    """
    batch, positions = attention.size(0), attention.size(-1)
    # As a batched product, whose gradient is one as well: that of a broadcast one is twenty times as slow on a CPU.
    scores = torch.bmm(weight.expand(batch, -1, -1), attention.flatten(2).float())
    out, back = scores.view(-1, 2, positions, positions).unbind(1)
    return out + back.mT


def weighted_scores(attention: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """`score[x, y] = Σ_k (first[x,0,k] + second[y,0,k]) α^k[x, y] + (first[x,1,k] + second[y,1,k]) α^k[y, x]`.

    Weights of the form `W_k·(v_x ⊕ v_y)` are such sums of a term of x and a term of y, so that nothing of the size
    `[positions, positions, 2·dim]` is ever made.

    Args:
        attention: `[batch, K, positions, positions]`, any floating-point type; it receives no gradient.
        first: `[batch, positions, 2, K]`: what x contributes to the weight of attention from x to y, and from y to x.
        second: the same of y.
    """
    scores: Tensor = _WeightedScores.apply(attention, first, second)  # type: ignore[no-untyped-call]
    return scores


class _WeightedScores(torch.autograd.Function):
    """Both directions at once, as products of small matrices, one for each position that attends, or is attended to.

    As elementwise products, sums over K of `[batch, K, positions, positions]` would be written and read again for every
    term, forward and back; here the attention is, twice, in the order in which it is multiplied.
    """

    @staticmethod
    def forward(ctx: Any, attention: Tensor, first: Tensor, second: Tensor) -> Tensor:  # noqa: ANN401
        batch, heads, positions, _ = attention.shape
        weights = first.new_empty(2, batch, positions, heads, positions)  # float32, by the position in front
        weights[0], weights[1] = attention.permute(0, 2, 1, 3), attention.permute(0, 3, 1, 2)
        # Attention from x to y has its weight of x from `first`, attention from y to x from `second`.
        terms = first.new_empty(2, batch, positions, 2, heads)
        terms[0, :, :, 0], terms[0, :, :, 1] = first[:, :, 0], second[:, :, 1]
        terms[1, :, :, 0], terms[1, :, :, 1] = second[:, :, 0], first[:, :, 1]
        sums = torch.bmm(terms.view(-1, 2, heads), weights.view(-1, heads, positions)).view(
            2, batch, positions, 2, positions
        )
        ctx.save_for_backward(weights)
        out, back = (sums[0, :, :, way] + sums[1, :, :, way].mT for way in (0, 1))
        return out + back.mT

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor]:  # noqa: ANN401
        (weights,) = ctx.saved_tensors
        _, batch, positions, heads, _ = weights.shape
        (grad,) = grads
        of_sums = torch.stack([torch.stack([grad, grad.mT], 2), torch.stack([grad.mT, grad], 2)])
        terms = torch.bmm(of_sums.view(-1, 2, positions), weights.view(-1, heads, positions).mT)
        by_source, by_target = terms.view(2, batch, positions, 2, heads)
        first = torch.stack([by_source[:, :, 0], by_target[:, :, 1]], 2)
        second = torch.stack([by_target[:, :, 0], by_source[:, :, 1]], 2)
        return None, first, second


def candidates(scores: Tensor, lengths: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Scores of positions to scores of candidate heads; ROOT is `start` × the start delimiter + `end` × the end one.

    Takes scores `[batch, n+2, n+2]` of dependents × heads, delimiters first and behind the last word, the lengths of
    the sentences `[batch]` and two scalars; gives `[batch, n, n+1]`, ROOT first, -inf where there is no candidate.
    """
    ends = (lengths + 1)[:, None, None].expand(-1, scores.size(1), 1)
    root = start * scores[:, :, :1] + end * scores.gather(2, ends)
    return with_root(root[:, 1:-1, 0], scores, lengths)


def with_root(root: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    """As `candidates`, where the scores of ROOT are known, `[batch, n]`."""
    whole = torch.cat([root[:, :, None], scores[:, 1:-1, 1:-1]], dim=2)
    absent = torch.arange(whole.size(2), device=whole.device) > lengths[:, None]
    return whole.masked_fill(absent[:, None], -torch.inf)


def root_scores(attention: Tensor, weight: Tensor, lengths: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """ROOT's part of `attention_scores`, `[batch, n]`, from the rows and columns of the delimiters alone.

    Takes attention `[batch, K, n+2, n+2]`, and weights `[2, K]` of attention to ROOT and from it; the others are those
    of `candidates`.
    """
    sentences = torch.arange(len(lengths), device=lengths.device)
    to, back = attention[:, :, :, 0], attention[:, :, 0]
    to_end, back_end = attention[sentences, :, :, lengths + 1], attention[sentences, :, lengths + 1]
    starts, ends = torch.stack([to, back], 1).float(), torch.stack([to_end, back_end], 1).float()
    scores = ((start * starts + end * ends) * weight[:, :, None]).sum((1, 2))
    return scores[:, 1:-1]
