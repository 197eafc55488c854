"""Distances between distributions, between two attention heads, and between one head in two encoders.

Functions of distributions reduce the last axis and broadcast the others. Logarithms are natural. A weight of exactly 0,
as in the padding, adds exactly 0 to the value and gets a gradient of exactly 0 through the logarithms; nothing becomes
nan.

Two heads are compared by the Jensen–Shannon divergence of their rows (Clark et al. 2019, §6). One head before and after
fine-tuning is compared by that divergence and by the cosine of its maps (Kovaleva et al. 2019, §4.3).
"""

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from attention_probing.metrics.gathered import Gathered
from attention_probing.results import Floats

_SMOOTHING = 1e-3
# Size of a block; on a CPU the buffers of its pairs fit into the cache.
_COLUMNS = {"cpu": 4096, "cuda": 1 << 18}
_HEADS = 64
_SCALE = 2.0**32  # factor of the integer sums, which have room for 2³¹ nats


def divided_by_sums(weights: Tensor) -> Tensor:
    """Return weights `[…, from, to]` divided by the sums of their rows; rows of zeros stay so."""
    return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)


def tvd(p: Tensor, q: Tensor) -> Tensor:
    """Return the total variation distance ½ Σ |p − q|, `[...]` from 0 to 1, of distributions `[..., positions]`."""
    return (p - q).abs().sum(-1) / 2


def entropy(p: Tensor) -> Tensor:
    """Return the entropy − Σ p log p, `[...]` in nats, of distributions `[..., positions]`."""
    return -(p * torch.where(p > 0, p, 1.0).log()).sum(-1)


def renyi_entropy(p: Tensor) -> Tensor:
    """Return the Rényi entropy of order 2, −log Σ p², `[...]` in nats, of distributions `[..., positions]`.

    It is the logarithm of the number of positions that would have this entropy if all had the same weight.
    """
    norm: Tensor = torch.linalg.vector_norm(p, dim=-1)  # without a tensor of the squares
    return -2 * norm.log()


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Return the Kullback–Leibler divergence Σ p log(p / q), `[...]` in nats, of distributions `[..., positions]`.

    q is clamped to the smallest normal number of its precision. Where p has weight and q has none, the divergence is
    therefore large but finite, and q gets no gradient.
    """
    # Zeros are replaced before the logarithm; replaced after it, their gradient would be 0 · ∞. Two logarithms are
    # taken because the gradient of the logarithm of the ratio overflows.
    above = torch.where(p > 0, p, 1.0)
    below = torch.where(p > 0, q.clamp_min(torch.finfo(q.dtype).tiny), 1.0)
    return (p * (above.log() - below.log())).sum(-1)


def jsd(p: Tensor, q: Tensor) -> Tensor:
    """Return the Jensen–Shannon divergence ½ KL(p ‖ m) + ½ KL(q ‖ m), m = ½ (p + q), `[...]` in nats.

    The distributions are `[..., positions]`. The divergence is symmetric, 0 for equal distributions and ln 2 for
    disjoint ones. `scipy.spatial.distance.jensenshannon` is its square root.
    """
    # Without this a weight of 0 would get a gradient through the mixture.
    p = torch.where(p > 0, p, 0.0)
    q = torch.where(q > 0, q, 0.0)
    middle = (p + q) / 2
    return (kl(p, middle) + kl(q, middle)) / 2


def area(tvd: ArrayLike, jsd: ArrayLike) -> NDArray[np.float64]:
    """Return the area under the curve of the change of attention (JSD) over the change of the output (TVD).

    The curve begins at (0, 0), the unchanged model, and joins the points by straight lines in the order of their TVD.
    The JSD of each point is raised to the highest JSD so far, so the curve never falls. After the last point it is
    flat up to TVD = 1. The area is between 0 and ln 2, and high if attention can change much while the output stays
    the same. Wiegreffe & Pinter (2019, Figure 5) draw such curves, but do not compute the area.

    Args:
        tvd: Change of the output at each point, `[..., points]`, from 0 to 1, in any order.
        jsd: Change of attention at each point, `[..., points]`, in nats.

    Returns:
        Areas `[...]` in nats, nan if a point is nan.
    """
    x = np.asarray(tvd, np.float64)
    y = np.asarray(jsd, np.float64)
    order = np.lexsort((y, x), axis=-1)  # of points with equal TVD the lowest JSD first, in any input order
    x = np.take_along_axis(x, order, -1)
    y = np.take_along_axis(y, order, -1)
    zero = np.zeros((*x.shape[:-1], 1))
    x = np.concatenate([zero, x, zero + 1], axis=-1)
    y = np.maximum.accumulate(np.concatenate([zero, y], axis=-1), axis=-1)
    y = np.concatenate([y, y[..., -1:]], axis=-1)
    return np.asarray(np.trapezoid(y, x, axis=-1))


def scaled_rows(weights: Tensor, out: Tensor) -> None:
    """Smooth and scale the attention of all heads on an input, and write it into `out`.

    It writes n/2 · (.999 α + .001/n), the input of `summed_divergences`. The smoothing is that of
    Clark et al.'s (2019) released code.

    Args:
        weights: Attention α between the n real tokens of an input, `[heads, n, n]`.
        out: float32 `[heads, n · n]`, contiguous; overwritten.
    """
    n = weights.size(-1)
    torch.mul(weights, (1 - _SMOOTHING) * n / 2, out=out.view_as(weights)).add_(_SMOOTHING / 2)


def summed_divergences(rows: Tensor, n: int) -> Tensor:
    """Return the Jensen–Shannon divergence of every two heads on an input, in nats, summed over the rows.

    Let p and q be the same row of two heads, and a and b these rows scaled by n/2 (`scaled_rows`).
    Then JSD(p, q) = H((p + q)/2) − (H(p) + H(q))/2 = Σ (a ln 2a + b ln 2b − (a + b) ln(a + b)) / n.
    This needs one logarithm for each pair of heads instead of four. It is also more exact where
    attention is nearly uniform: there the entropies would differ by less than their rounding errors.

    Args:
        rows: Attention scaled by `scaled_rows`, float32 `[heads, n · n]`.
        n: Number of tokens.

    Returns:
        float64 `[heads, heads]`: at `[i, j]` the divergence of heads i < j; zero on and below the
        diagonal.
    """
    heads = len(rows)
    sums = rows.new_zeros(heads, heads, dtype=torch.float64)
    most = min(_COLUMNS.get(rows.device.type, _COLUMNS["cuda"]), rows.size(1))
    mixed, logs = (rows.new_empty(_HEADS * most) for _ in range(2))
    for columns in torch.split(rows, most, 1):
        block = columns.contiguous()
        for head in range(heads):
            for first in range(head, heads, _HEADS):
                others = block[first : first + _HEADS]
                mixtures = torch.add(others, block[head], out=mixed[: others.numel()].view_as(others))
                products = torch.log(mixtures, out=logs[: others.numel()].view_as(others)).mul_(mixtures)
                sums[head, first : first + _HEADS] += products.sum(-1)
    of_head = sums.diagonal() / 2
    return ((of_head[:, None] + of_head - sums) / n).triu_()


class HeadDistances(Gathered[Floats]):
    """Accumulator of the mean Jensen–Shannon divergence between the attention of every two heads.

    The mean is over all tokens of all inputs. Rounded divergences are summed as integers, so the result
    is the same in any order and on any number of devices.

    Args:
        heads: Number of attention heads in all layers together.
    """

    sums: Tensor
    tokens: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.add_sum("sums", torch.zeros(heads, heads, dtype=torch.int64))
        self.add_sum("tokens", torch.zeros((), dtype=torch.int64))

    def update(self, divergences: Tensor, tokens: int) -> None:
        """Add the divergences of one input.

        Args:
            divergences: Divergence between every two heads, summed over the tokens of the input,
                `[heads, heads]`, as `summed_divergences` returns it.
            tokens: Number of tokens of the input.
        """
        self.sums += (divergences * _SCALE).round().long()
        self.tokens += tokens

    def total(self) -> Floats:
        """Return the mean divergence of every two heads over all tokens, `[heads, heads]` in nats.

        It is the Jensen–Shannon divergence of the attention of the two heads from a token. The matrix is
        symmetric with zeros on the diagonal. It is nan if no input was added.
        """
        sums = self.sums.cpu().double() / _SCALE
        # The released code sums over the tokens and never divides.
        distances = (sums / (float(self.tokens) or torch.nan)).clamp_min(0)
        return (distances + distances.T).numpy()


def map_cosines(first: Tensor, second: Tensor, real: Tensor) -> Tensor:
    """Return the cosine of two attention maps, each flattened to a vector of the weights between real tokens.

    Args:
        first: Attention `[batch, heads, from, to]`, zero in the columns of the padding.
        second: Attention of other heads, or of the same heads in another encoder, `[batch, heads, from, to]`.
        real: Bool `[batch, tokens]`, True for tokens, False for padding.

    Returns:
        float64 `[batch, heads]`, from 0 to 1.
    """
    # The released code keeps the rows of the padding, which are alike in both and bring every cosine nearer to 1.
    rows = real[:, None, :, None]
    first, second = (weights.double() * rows for weights in (first, second))
    product = torch.einsum("bhij,bhij->bh", first, second)
    first_square = torch.einsum("bhij,bhij->bh", first, first)
    second_square = torch.einsum("bhij,bhij->bh", second, second)
    return product / (first_square * second_square).sqrt()


def map_divergences(first: Tensor, second: Tensor, real: Tensor) -> Tensor:
    """Return the Jensen–Shannon divergence of two attention maps, in nats, averaged over the rows of real tokens.

    Args:
        first: Attention `[batch, heads, from, to]`, zero in padded columns.
        second: Attention to compare with, of the same shape.
        real: True for tokens, False for padding, bool `[batch, tokens]`.

    Returns:
        float64 `[batch, heads]`, from 0 for equal maps to ln 2.
    """
    rows = real[:, None].double()
    return (jsd(first.double(), second.double()) * rows).sum(-1) / rows.sum(-1)
