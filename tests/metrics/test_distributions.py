"""The formulas against loops in double precision, and their gradients against finite differences."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy as scipy_entropy
from torch import Tensor

from attention_probing.metrics.distributions import (
    HeadDistances,
    area,
    entropy,
    jsd,
    kl,
    scaled_rows,
    summed_divergences,
    tvd,
)

Distance = Callable[[Tensor, Tensor], Tensor]
SLOTS = 7


def slow_tvd(p: list[float], q: list[float]) -> float:
    return sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


def slow_kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def slow_jsd(p: list[float], q: list[float]) -> float:
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return slow_kl(p, middle) / 2 + slow_kl(q, middle) / 2


DISTANCES = [(tvd, slow_tvd), (jsd, slow_jsd), (kl, slow_kl)]


def drawn(*leading: int, seed: int = 0, masked: bool = False, spread: float = 4) -> Tensor:
    """Distributions, the more peaked the wider they spread; masked ones have weight on the first slots only."""
    random = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(*leading, SLOTS, generator=random, dtype=torch.float64)
    if masked:
        lengths = torch.arange(math.prod(leading)).view(*leading, 1) % SLOTS + 1
        logits = logits.masked_fill(torch.arange(SLOTS) >= lengths, -torch.inf)
    return logits.softmax(-1)


@pytest.mark.parametrize(("distance", "slow"), DISTANCES)
@pytest.mark.parametrize("masked", [False, True])
def test_they_equal_a_loop(distance: Distance, slow: Callable[[list[float], list[float]], float], masked: bool) -> None:
    p, q = drawn(2, 1, 9, seed=1, masked=masked), drawn(3, 9, seed=2, masked=masked)
    found = distance(p, q)
    assert found.shape == (2, 3, 9)
    for k, row, column in np.ndindex(2, 3, 9):
        one, other = p[k, 0, column].tolist(), q[row, column].tolist()
        if distance is kl:  # what q lacks counts as the smallest normal number
            other = [max(value, torch.finfo(torch.float64).tiny) for value in other]
        assert float(found[k, row, column]) == pytest.approx(slow(one, other), abs=1e-12)


def test_entropy_equals_scipys() -> None:
    some = drawn(20, seed=1, masked=True)
    torch.testing.assert_close(entropy(some), torch.from_numpy(scipy_entropy(some, axis=1)))
    (gradient,) = torch.autograd.grad(entropy(some.requires_grad_()).sum(), some)
    torch.testing.assert_close(gradient, torch.where(some > 0, -some.log() - 1, 0.0).detach())


@pytest.mark.parametrize("distance", [tvd, jsd, kl])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_equal_finite_differences(distance: Distance, masked: bool) -> None:
    pair = [drawn(SLOTS, seed=seed, masked=masked, spread=1).requires_grad_() for seed in (3, 4)]
    gradients = torch.autograd.grad(distance(*pair).sum(), pair)
    step = 1e-6
    for which, gradient in enumerate(gradients):
        weighted = pair[which] > 0
        assert (gradient[~weighted] == 0).all()
        for row, slot in weighted.nonzero().tolist():
            ends = []
            for change in (-step, step):
                moved = [one.detach().clone() for one in pair]
                moved[which][row, slot] += change
                ends.append(float(distance(*moved)[row]))
            # The first row has one slot, where both are 1 and TVD has a kink.
            if not (masked and row == 0 and distance is tvd):
                assert float(gradient[row, slot]) == pytest.approx((ends[1] - ends[0]) / (2 * step), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distance", [tvd, jsd, kl])
def test_zeros_anywhere_give_no_nan_and_no_infinity(distance: Distance, dtype: torch.dtype) -> None:
    smallest = 1e-45 if dtype == torch.float32 else 5e-324
    rows = [[1, 0, 0], [0, 1, 0], [0.5, 0.5, 0], [0, 0, 0], [1 / 3, 1 / 3, 1 / 3], [1, smallest, 0]]
    p = torch.tensor(rows, dtype=dtype)[:, None].requires_grad_()
    q = torch.tensor(rows, dtype=dtype).requires_grad_()
    found = distance(p, q)
    gradients = torch.autograd.grad(found.sum(), (p, q))
    assert found.shape == (6, 6)
    for values in (found, *gradients):
        assert values.isfinite().all()
    assert (found.diagonal().abs() < 1e-40).all()
    if distance is not tvd:
        assert (gradients[0][p == 0] == 0).all()


def on_a_grid(tvd: list[float], jsd: list[float], steps: int = 200_000) -> float:
    """The same area as the mean height of the curve at the middles of many steps."""
    points = sorted(zip(tvd, jsd, strict=True))
    xs, ys, highest = [0.0], [0.0], 0.0
    for x, y in points:
        highest = max(highest, y)
        xs.append(x)
        ys.append(highest)
    middles = (np.arange(steps) + 0.5) / steps
    return float(np.interp(middles, xs, ys).mean())


def test_every_draw_is_a_curve_of_its_own() -> None:
    random = np.random.default_rng(1)
    tvd, jsd = random.random((7, 6)), random.random((7, 6)) * math.log(2)
    tvd[0], jsd[0] = 0.0, math.log(2)  # the whole square
    tvd[4:] = tvd[4:].round(1)  # several points of one TVD
    found = area(tvd, jsd)
    assert found.shape == (7,)
    assert found[0] == pytest.approx(math.log(2))
    for draw in range(7):
        assert found[draw] == pytest.approx(on_a_grid(tvd[draw].tolist(), jsd[draw].tolist()), abs=1e-4)


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
