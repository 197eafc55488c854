from collections import deque
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from attention_probing.metrics.trees import (
    depth_losses,
    distance_losses,
    length_weights,
    masked_rank_correlations,
    tree_depths,
    tree_distances,
)
from tests.tiny import random_tree


def padded(sentences: list[list[int]], fill: int = -1) -> tuple[Tensor, Tensor]:
    """Heads and lengths; the padding holds what would show."""
    heads = torch.full((len(sentences), max(map(len, sentences))), fill)
    for row, sentence in enumerate(sentences):
        heads[row, : len(sentence)] = torch.tensor(sentence)
    return heads, torch.tensor([len(sentence) for sentence in sentences])


def random_trees(sentences: int = 30) -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random_tree(int(random.integers(1, 13)), random) for _ in range(sentences)]


def walked(heads: list[int]) -> list[list[int]]:
    """Distances of all nodes, ROOT the first, by walking from each in all directions."""
    near: list[set[int]] = [set() for _ in range(len(heads) + 1)]
    for word, head in enumerate(heads, start=1):
        near[word].add(head)
        near[head].add(word)
    found = []
    for start in range(len(near)):
        steps, waiting = {start: 0}, deque([start])
        while waiting:
            node = waiting.popleft()
            for other in near[node] - steps.keys():
                steps[other] = steps[node] + 1
                waiting.append(other)
        found.append([steps[node] for node in range(len(near))])
    return found


FORESTS = [[0, 0, 0], [0, 1, 0, 3, 4, 0], [2, 0, 2, 0, 4]]
"""More than one root, as in a control task."""


@pytest.mark.parametrize("fill", [-1, 99])
@pytest.mark.parametrize(
    "sentences",
    [random_trees(), FORESTS, [list(range(40))], [[*range(2, 34), 0], [0]]],
    ids=["trees", "forests", "chain", "chain of 33"],
)
def test_distances_and_depths_equal_a_walk_through_the_tree(sentences: list[list[int]], fill: int) -> None:
    heads, lengths = padded(sentences, fill)
    distances, depths = tree_distances(heads, lengths), tree_depths(heads, lengths)
    assert distances.dtype == depths.dtype == torch.int64
    for row, sentence in enumerate(sentences):
        n, expected = len(sentence), torch.tensor(walked(sentence))
        assert torch.equal(distances[row, :n, :n], expected[1:, 1:])
        assert torch.equal(depths[row, :n], expected[0, 1:] - 1)
        assert not distances[row, n:].any()
        assert not distances[row, :, n:].any()
        assert not depths[row, n:].any()


@pytest.mark.parametrize("measure", [tree_distances, tree_depths])
@pytest.mark.parametrize(
    ("heads", "message"),
    [
        *((heads, "sentence 0 of the batch form a cycle") for heads in ([0, 3, 4, 2], [1])),
        *(([0, head], f"has the head {head}, but a head must be from 0") for head in (-2, 3)),
    ],
)
def test_what_is_no_tree_is_refused(measure: Callable[..., Tensor], heads: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure(*padded([heads, [0, 1, 1]]))


def test_a_batch_without_a_sentence_has_nothing_to_measure() -> None:
    heads, lengths = torch.zeros(0, 0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    assert tree_distances(heads, lengths).shape == (0, 0, 0)
    assert tree_depths(heads, lengths).shape == (0, 0)
    assert distance_losses(torch.zeros(0, 3, 0, 0), tree_distances(heads, lengths), lengths).shape == (0, 3)
    assert depth_losses(torch.zeros(0, 3, 0), tree_depths(heads, lengths), lengths).shape == (0, 3)
    assert masked_rank_correlations(
        torch.zeros(0, 3, 0), torch.zeros(0, 1, 0), torch.zeros(0, 1, 0, dtype=torch.bool)
    ).shape == (0, 3)


def test_losses_equal_double_loops() -> None:
    heads, lengths = padded(random_trees(6))
    gold, depths = tree_distances(heads, lengths), tree_depths(heads, lengths)
    predicted = torch.rand(6, 2, *gold.shape[1:], generator=torch.Generator().manual_seed(0)) * 5
    found = distance_losses(predicted, gold, lengths), depth_losses(predicted[:, :, 0], depths, lengths)
    for row, k in np.ndindex(6, 2):
        n, both, one = int(lengths[row]), 0.0, 0.0
        for i in range(n):
            one += abs(float(depths[row, i]) - float(predicted[row, k, 0, i]))
            for j in range(n):
                both += abs(float(gold[row, i, j]) - float(predicted[row, k, i, j]))
        assert [float(losses[row, k]) for losses in found] == pytest.approx([both / n**2, one / n], rel=1e-5)


def test_spearman_equals_scipy_row_by_row_with_ties_on_both_sides() -> None:
    random = np.random.default_rng(0)
    predicted, gold = random.integers(0, 6, (7, 3, 9)).astype(float), random.integers(0, 4, (7, 1, 9))
    predicted[0] = random.normal(size=(3, 9)) * 1e4
    mask = np.arange(9) < random.integers(3, 10, 7)[:, None]
    found = masked_rank_correlations(torch.tensor(predicted), torch.tensor(gold), torch.tensor(mask)[:, None])
    assert found.shape == (7, 3)
    for row, k in np.ndindex(7, 3):
        counted = mask[row]
        expected = stats.spearmanr(predicted[row, k, counted], gold[row, 0, counted]).statistic
        assert float(found[row, k]) == pytest.approx(expected, abs=1e-6)


def test_spearman_where_one_side_has_no_order() -> None:
    mask = torch.tensor([True, True, True, False])
    order, none = torch.tensor([1.0, 2.0, 3.0, 0.0]), torch.tensor([4.0, 4.0, 4.0, 9.0])
    assert float(masked_rank_correlations(none, order, mask)) == 0
    assert masked_rank_correlations(order, none, mask).isnan()
    assert masked_rank_correlations(order, order, torch.tensor([True, False, False, False])).isnan()
    assert float(masked_rank_correlations(-order, order, mask)) == -1


def test_length_weights_make_a_mean_over_lengths() -> None:
    random = np.random.default_rng(1)
    lengths = random.integers(1, 60, 200)
    values, counted = random.random(200), random.random(200) < 0.9
    means = []
    for length in range(5, 51):
        of_length = [value for value, n, c in zip(values, lengths, counted, strict=True) if n == length and c]
        if of_length:
            means.append(sum(of_length) / len(of_length))
    weights = length_weights(lengths, counted)
    assert weights.sum() == pytest.approx(1)
    assert weights @ values == pytest.approx(sum(means) / len(means))
    assert not weights[~counted].any()
    assert {4, 5, 50, 51} <= set(lengths.tolist())
    assert not weights[(lengths < 5) | (lengths > 50)].any()
    assert weights[counted & ((lengths == 5) | (lengths == 50))].all()
    assert not length_weights(np.array([3, 60]), np.array([True, True])).any()
