"""Differences of attention between two heads (Clark et al. 2019, §6), or between one head in two encoders.

Two heads by the Jensen–Shannon divergence of their rows; one head before and after fine-tuning by that, and by the
cosine of its maps (Kovaleva et al. 2019, §4.3).
"""

import torch
from torch import Tensor

from metrics.distributions import jsd
from metrics.rows import ExactMetric
from results import Floats

_SMOOTHING = 1e-3
_COLUMNS, _HEADS = {"cpu": 4096, "cuda": 1 << 18}, 64  # of a block: on a CPU the buffers of its pairs fit the cache
_SCALE = 2.0**32  # of the integer sums: room for 2³¹ nats


def scaled_rows(weights: Tensor, out: Tensor) -> None:
    """Write the input of `summed_divergences`, n/2 · (.999 α + .001/n) as in the paper's code, into `out`.

    Args:
        weights: `[heads, n, n]`, those of real tokens.
        out: float32 `[heads, n · n]`, contiguous.
    """
    n = weights.size(-1)
    torch.mul(weights, (1 - _SMOOTHING) * n / 2, out=out.view_as(weights)).add_(_SMOOTHING / 2)


def summed_divergences(rows: Tensor, n: int) -> Tensor:
    """Sum over the tokens of an input of the divergence, in nats, between the rows of every two heads.

    With a and b the scaled rows of p and q, JSD(p, q) = H((p + q)/2) - (H(p) + H(q))/2
    = Σ (a ln 2a + b ln 2b - (a + b) ln(a + b)) / n: one logarithm for a pair instead of four, and none of numbers far
    from 1 where attention is near uniform, where entropies would differ by less than they are rounded.

    Args:
        rows: float32 `[heads, n · n]`, by `scaled_rows`.
        n: tokens.

    Returns:
        float64 `[heads, heads]`, of each pair where the second head is not before the first; zeros elsewhere.
    """
    heads = len(rows)
    sums = rows.new_zeros(heads, heads, dtype=torch.float64)
    most = min(_COLUMNS.get(rows.device.type, _COLUMNS["cuda"]), rows.size(1))
    mixed, logs = (rows.new_empty(_HEADS * most) for _ in range(2))
    for columns in torch.split(rows, most, 1):
        block = columns.contiguous()
        for one in range(heads):
            for first in range(one, heads, _HEADS):
                others = block[first : first + _HEADS]
                both = torch.add(others, block[one], out=mixed[: others.numel()].view_as(others))
                products = torch.log(both, out=logs[: others.numel()].view_as(others)).mul_(both)
                sums[one, first : first + _HEADS] += products.sum(-1)
    own = sums.diagonal() / 2
    return ((own[:, None] + own - sums) / n).triu_()


class HeadDistances(ExactMetric):
    """Mean divergence between the rows of every two heads, over the tokens of all inputs.

    The sums are of integers, so that they are the same in any order and on any number of devices.
    """

    sums: Tensor
    tokens: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(heads, heads, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, divergences: Tensor, tokens: int) -> None:
        """Add the `summed_divergences` of an input of so many tokens."""
        self.sums += (divergences * _SCALE).round().long()
        self.tokens += tokens

    def compute(self) -> Floats:
        """Return the distances in nats, `[heads, heads]`, symmetric, zeros on the diagonal; nan without an input."""
        sums, tokens = self.sums.cpu().double(), float(self.tokens)
        # The released code sums over the tokens and never divides.
        distances = (sums / (_SCALE * tokens if tokens else torch.nan)).clamp_min(0)
        return (distances + distances.T).numpy()


def map_cosines(first: Tensor, second: Tensor, real: Tensor) -> Tensor:
    """Cosine of two attention maps, each as one vector of the weights between real tokens.

    Args:
        first: `[batch, heads, from, to]`, as `second`; the columns of the padding are zero.
        second: of other heads, or of the same heads in another encoder.
        real: bool `[batch, tokens]`, where there is no padding.

    Returns:
        Float64 `[batch, heads]`, in 0–1.
    """
    # The released code keeps the rows of the padding, which are alike in both and bring every cosine nearer to 1.
    rows = real[:, None, :, None]
    first, second = (weights.double() * rows for weights in (first, second))
    product, one, other = (
        torch.einsum("bhij,bhij->bh", *pair) for pair in ((first, second), (first, first), (second, second))
    )
    return product / (one * other).sqrt()


def map_divergences(first: Tensor, second: Tensor, real: Tensor) -> Tensor:
    """Return the mean Jensen–Shannon divergence, in nats, of the rows of real tokens; arguments as of `map_cosines`.

    Float64 `[batch, heads]`, from 0 for equal maps to ln 2.
    """
    rows = real[:, None].double()
    return (jsd(first.double(), second.double()) * rows).sum(-1) / rows.sum(-1)
