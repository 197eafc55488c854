from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention_probing.metrics.patterns import PATTERNS, Structure, by_rules, structure

Sees = Callable[[int, int], bool]
"""Whether one token may attend to another."""
SEES: dict[str, Sees] = {
    "all": lambda i, j: True,
    "causal": lambda i, j: j <= i,
    "window": lambda i, j: abs(i - j) <= 4,
    "causal window": lambda i, j: 0 <= i - j < 4,
}


def mask(size: int, sees: Sees) -> Tensor:
    """What each token may attend to, bool `[1, 1, size, size]`."""
    return torch.tensor([[sees(i, j) for j in range(size)] for i in range(size)])[None, None]


def slow(weights: list[list[float]], delimiters: int, segments: list[int], sees: Sees) -> tuple[list[float], str]:
    """The five numbers of one map without padding, and its pattern, by loops over cells."""
    size = len(weights)

    uniform = [[sees(i, j) / sum(sees(i, other) for other in range(size)) for j in range(size)] for i in range(size)]
    mass = [sum(weights[i][j] for i in range(size)) for j in range(size)]
    heavy = sorted(range(size), key=lambda j: (-mass[j], j))[: min(3, delimiters + 1)]

    def total(matrix: list[list[float]], kind: str, same: bool = False) -> float:
        found = 0.0
        for i in range(size):
            for j in range(size):
                of = "vertical" if j in heavy else "diagonal" if abs(i - j) <= 1 else "rest"
                if of == kind and (not same or segments[i] == segments[j]):
                    found += matrix[i][j] / size
        return found

    def beyond(x: float, e: float) -> float:
        return (x - e) / (1 - e) if 1 - e > 1e-5 else 0.0

    v, d = (beyond(total(weights, kind), total(uniform, kind)) for kind in ("vertical", "diagonal"))
    rest, rest_chance = total(weights, "rest"), total(uniform, "rest")
    block = boundary = 0.0
    if rest > 1e-5 and any(segments):
        share = total(weights, "rest", same=True) / rest
        block = beyond(share, total(uniform, "rest", same=True) / rest_chance if rest_chance > 1e-6 else 1.0)
        by_distance = [[0.0] * size for _ in range(size)]
        for i in range(size):
            for j in range(size):
                pairs = [(a, b) for a in range(size) for b in range(size) if abs(a - b) == abs(i - j)]
                of_one = sum(segments[a] == segments[b] for a, b in pairs)
                by_distance[i][j] = weights[i][j] * of_one / len(pairs)
        boundary = beyond(share, total(by_distance, "rest") / rest)
    if v + d >= 0.5:
        lines = "vertical" if v >= d else "diagonal"
        pattern = "vertical_diagonal" if min(v, d) >= 0.25 * (v + d) else lines
    elif any(segments) and block >= 0.5 and boundary >= 0.25 and rest >= 0.3:
        pattern = "block"
    else:
        pattern = "heterogeneous"
    return [v, d, block, boundary, rest], pattern


def random_map(random: np.random.Generator, segments: NDArray[np.int64], sees: Sees) -> Tensor:
    """A map of any pattern, or of none, without padding."""
    size = len(segments)
    rows = random.dirichlet(np.full(size, 0.5), size) + 1e-6
    rows[:, random.integers(size)] += random.choice([0.0, 0.5, 3.0])
    rows += random.choice([0.0, 1.0, 6.0]) * np.eye(size, k=int(random.integers(-1, 2)))
    if random.random() < 0.3:
        rows = rows * (segments[:, None] == segments) + 0.02 * rows
    rows = rows * mask(size, sees)[0, 0].numpy()
    return torch.from_numpy(rows / rows.sum(1, keepdims=True))


def random_maps(random: np.random.Generator, sees: Sees) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Five padded inputs of zero to four delimiters and three heads: weights, lengths, delimiters, segments."""
    lengths, time = [9, 2, 14, 1, 16], 16
    weights = torch.full((5, 3, time, time), 0.7)  # rows of the padding must not matter
    segments = torch.zeros(5, time, dtype=torch.int64)
    for item, size in enumerate(lengths):
        second = size // 2 if item != 2 else size
        segments[item, second:size] = 1
        for head in range(3):
            weights[item, head, :size] = 0.0
            weights[item, head, :size, :size] = random_map(random, segments[item, :size].numpy(), sees)
    return weights, torch.tensor(lengths), torch.tensor([2, 1, 2, 0, 4]), segments


@pytest.mark.parametrize("kind", SEES)
def test_rules_equal_loops_over_cells(kind: str) -> None:
    seen = set()
    for seed in range(40):
        weights, lengths, delimiters, segments = random_maps(np.random.default_rng(seed), SEES[kind])
        real = torch.arange(16) < lengths[:, None]
        found = structure(weights, lengths, delimiters, segments, mask(16, SEES[kind]) & real[:, None, None])
        patterns, margins = by_rules(found, segments.any(1))
        assert (margins >= 0).all()
        for item, size in enumerate(lengths.tolist()):
            of = segments[item, :size].tolist()
            for head in range(3):
                rows = weights[item, head, :size, :size].double().tolist()
                numbers, pattern = slow(rows, int(delimiters[item]), of, SEES[kind])
                assert [float(part[item, head]) for part in found] == pytest.approx(numbers, abs=2e-5)
                assert PATTERNS[int(patterns[item, head])] == pattern
                seen.add(pattern)
    assert len(seen) >= {"all": 5, "causal": 4}.get(kind, 3)


def test_a_wide_band_is_no_block() -> None:
    size, places = 60, torch.arange(60)
    band = ((places[:, None] - places).abs() <= 8).float()
    segments = (places >= 30).long()
    blocks = (segments[:, None] == segments).float()
    weights = torch.stack([band, blocks])[None]
    weights /= weights.sum(-1, keepdim=True)
    found = structure(weights, torch.tensor([size]), torch.tensor([3]), segments[None], mask(size, SEES["all"]))
    assert float(found.block.min()) > 0.7
    assert [PATTERNS[place] for place in by_rules(found, torch.tensor([True]))[0][0]] == ["heterogeneous", "block"]
    without, _ = by_rules(found, torch.tensor([True]), boundary=False)
    assert [PATTERNS[place] for place in without[0]] == ["block", "block"]


def test_the_margin_is_the_way_to_another_pattern() -> None:
    numbers = {
        "vertical": ([0.9, 0.1, 0, 0, 0.2], 0.15),  # .25 · 1.0 − .1
        "diagonal": ([0.0, 0.55, 0, 0, 0.4], 0.05),
        "vertical_diagonal": ([0.4, 0.6, 0, 0, 0.1], 0.15),
        "block": ([0.2, 0.1, 0.9, 0.6, 0.6], 0.2),
        "heterogeneous": ([0.1, 0.1, 0.9, 0.15, 0.8], 0.1),
    }
    for pattern, (parts, margin) in numbers.items():
        found = Structure(*(torch.tensor([[part]], dtype=torch.float64) for part in parts))
        got, by = by_rules(found, torch.tensor([True]))
        assert PATTERNS[int(got)] == pattern
        assert float(by) == pytest.approx(margin)
    found = Structure(*(torch.tensor([[part]], dtype=torch.float64) for part in numbers["block"][0]))
    got, by = by_rules(found, torch.tensor([False]))
    assert PATTERNS[int(got)] == "heterogeneous"
    assert float(by) == pytest.approx(0.2)
