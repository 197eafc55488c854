import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from torch import Tensor

from metrics.head_distances import HeadDistances, scaled_rows, summed_divergences


def divergences(weights: Tensor) -> Tensor:
    rows = torch.empty(len(weights), weights[0].numel())
    scaled_rows(weights, rows)
    return summed_divergences(rows, weights.size(-1))


def attention(heads: int, n: int, sharpness: float) -> Tensor:
    return (sharpness * torch.randn(heads, n, n, generator=torch.Generator().manual_seed(n))).softmax(-1)


@pytest.mark.parametrize(("heads", "n", "sharpness"), [(5, 7, 2.0), (3, 70, 10.0), (67, 2, 1.0), (2, 1, 1.0)])
def test_divergences_equal_those_of_scipy_pair_by_pair(heads: int, n: int, sharpness: float) -> None:
    """Also in more than one block of columns and of heads."""
    weights = attention(heads, n, sharpness)
    smooth = 0.999 * weights.double().numpy() + 0.001 / n
    found = divergences(weights)
    for one in range(heads):
        for other in range(heads):
            pairs = zip(smooth[one], smooth[other], strict=True)
            expected = sum(jensenshannon(p, q) ** 2 for p, q in pairs) if n > 1 and other > one else 0.0
            assert float(found[one, other]) == pytest.approx(expected, rel=1e-5, abs=1e-7 * n)


def test_heads_that_hardly_differ_are_told_apart() -> None:
    weights = torch.stack([torch.full((64, 64), 1 / 64)] * 3)
    weights[1, :, ::2] *= 1.01
    weights[1, :, 1::2] *= 0.99
    found = divergences(weights)
    assert float(found[0, 2]) == 0  # exactly: the two are equal
    assert float(found[0, 1]) / 64 == pytest.approx(0.01**2 / 8 * 0.999**2, rel=1e-2)


def test_distances_are_means_over_all_tokens() -> None:
    short, long = attention(4, 3, 3.0), attention(4, 12, 3.0)
    metric = HeadDistances(4)
    for weights in (short, long):
        metric.update(divergences(weights), weights.size(-1))
    found = metric.compute()
    expected = (divergences(short) + divergences(long)).numpy() / 15
    np.testing.assert_allclose(found, expected + expected.T, atol=1e-9)
    assert 0 < found[0, 1] < math.log(2)
