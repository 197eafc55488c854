import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from datamodules import AttentionBatch
from heads.experiment import ExperimentError
from probes.structural import Pair, StructuralDepthProbe, StructuralDistanceProbe, StructuralProbe, StructuralSizes
from tests.probes.batches import random_batch

SIZE = 8
PAIRS = (Pair(1, 3), Pair(1, 8), Pair(2, 3))
PROBES = [StructuralDistanceProbe, StructuralDepthProbe]
LENGTHS = [5, 1, 7, 3, 6]


def batch(lengths: list[int] | None = None, seed: int = 0) -> AttentionBatch:
    return random_batch(lengths or LENGTHS, seed=seed, hidden=(2, SIZE))


def made(kind: type[StructuralProbe], pairs: tuple[Pair, ...] = PAIRS, scale: float = 0.5) -> StructuralProbe:
    """A probe as if it had been trained, its matrices drawn."""
    probe = kind()
    probe.bind(StructuralSizes(pairs, SIZE), {})
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for live, kept in zip(probe.matrices, probe.kept, strict=True):
            live.copy_(torch.randn(live.shape, generator=random) * scale)
            kept.copy_(live)
    probe.best_epoch.fill_(1)
    probe.trained = True
    return probe


def walked(batch: AttentionBatch, row: int) -> list[list[int]]:
    """Distances of all nodes of a tree, ROOT the first, each step taken by Floyd and Warshall."""
    n = int(batch.lengths[row])
    found = np.full((n + 1, n + 1), 10**6)
    np.fill_diagonal(found, 0)
    for word in range(1, n + 1):
        found[word, int(batch.heads[row, word - 1])] = found[int(batch.heads[row, word - 1]), word] = 1
    for via in range(n + 1):
        found = np.minimum(found, found[:, via, None] + found[None, via])
    return [[int(steps) for steps in line] for line in found]


def distance(matrix: Tensor, one: Tensor, other: Tensor) -> float:
    """`‖B(h_i − h_j)‖²`, number by number."""
    total = 0.0
    for line in matrix.tolist():
        total += sum(b * (x - y) for b, x, y in zip(line, one.tolist(), other.tolist(), strict=True)) ** 2
    return total


def test_distances_equal_the_formula_term_by_term() -> None:
    probe, given = made(StructuralDistanceProbe), batch()
    found = probe(given)
    assert found.shape == (5, 3, 7, 7)
    for k, pair in enumerate(PAIRS):
        for row, n in enumerate(LENGTHS):
            states = given.hidden[row, pair.layer - 1].float()
            for i, j in np.ndindex(n, n):
                expected = distance(probe.kept[k], states[i], states[j])
                assert float(found[row, k, i, j]) == pytest.approx(expected, abs=1e-4)


def test_depths_equal_the_formula_term_by_term() -> None:
    probe, given = made(StructuralDepthProbe), batch()
    found = probe(given)
    assert found.shape == (5, 3, 7)
    for k, pair in enumerate(PAIRS):
        for row, n in enumerate(LENGTHS):
            states = given.hidden[row, pair.layer - 1].float()
            for i in range(n):
                expected = distance(probe.kept[k], states[i], torch.zeros(SIZE))
                assert float(found[row, k, i]) == pytest.approx(expected, abs=1e-4)


def test_a_large_state_common_to_all_words_hides_no_distance() -> None:
    probe, given = made(StructuralDistanceProbe), batch()
    given.hidden[:, :, :, 5] += 1000.0 * given.mask[:, None]
    shifted = given.hidden.double()
    found = probe(given)
    for row, n in enumerate(LENGTHS):
        projected = shifted[row, 0, :n] @ probe.kept[1].double().T
        expected = (projected[:, None] - projected[None]).square().sum(-1)
        torch.testing.assert_close(found[row, 1, :n, :n].double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", PROBES)
def test_losses_equal_a_double_loop(kind: type[StructuralProbe]) -> None:
    probe, given = made(kind), batch()
    predicted = probe(given)
    losses = probe.losses(predicted, given)
    assert losses.shape == (5, 3)
    for row, n in enumerate(LENGTHS):
        gold = walked(given, row)
        for k in range(3):
            total = 0.0
            for i in range(n):
                if kind is StructuralDepthProbe:
                    total += abs(gold[0][i + 1] - 1 - float(predicted[row, k, i])) / n
                    continue
                for j in range(n):
                    total += abs(gold[i + 1][j + 1] - float(predicted[row, k, i, j])) / n**2
            assert float(losses[row, k]) == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("kind", PROBES)
def test_padding_changes_nothing(kind: type[StructuralProbe]) -> None:
    probe, alone = made(kind), batch([4])
    padded = random_batch([4, 9], hidden=(2, SIZE))
    padded.hidden[0, :, :4] = alone.hidden[0]
    padded.heads[0, :4], padded.punctuation[0, :4] = alone.heads[0], alone.punctuation[0]
    one, other = probe.found(probe(alone), alone), probe.found(probe(padded), padded)
    for expected, found in zip(one, other, strict=True):
        torch.testing.assert_close(found[:1], expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(probe.losses(probe(padded), padded)[:1], probe.losses(probe(alone), alone))


def test_edges_are_those_of_a_spanning_tree_without_punctuation() -> None:
    probe, given = made(StructuralDistanceProbe), batch([9, 4, 1, 12, 2], seed=4)
    predicted = probe(given)
    edges, found, correlation = probe.found(predicted, given)
    assert given.punctuation.any()
    for row, n in enumerate([9, 4, 1, 12, 2]):
        plain = [word for word in range(n) if not given.punctuation[row, word]]
        gold = {
            frozenset((word, int(given.heads[row, word]) - 1))
            for word in plain
            if int(given.heads[row, word]) - 1 in plain
        }
        assert int(edges[row]) == len(gold)
        for k in range(3):
            tree = minimum_spanning_tree(np.triu(predicted[row, k].numpy()[np.ix_(plain, plain)], 1)).tocoo()
            drawn = {frozenset((plain[a], plain[b])) for a, b in zip(tree.row, tree.col, strict=True)}
            assert int(found[row, k]) == len(gold & drawn)
            of_words = [
                stats.spearmanr(predicted[row, k, word, :n], walked(given, row)[word + 1][1:]).statistic
                for word in range(n)
                if n > 1
            ]
            assert float(correlation[row, k]) == pytest.approx(np.mean(of_words) if n > 1 else math.nan, nan_ok=True)


def test_the_root_is_the_word_of_least_depth_that_is_not_punctuation() -> None:
    given = batch([3, 2, 1, 2])
    given.heads[:, :3] = torch.tensor([[2, 0, 2], [0, 1, -1], [0, -1, -1], [0, 0, -1]])
    given.punctuation[:] = False
    given.punctuation[0, 0] = given.punctuation[2, 0] = True
    predicted = torch.tensor([[[0.1, 1.0, 2.0]], [[2.0, 1.0, 0.0]], [[1.0, 0.0, 0.0]], [[2.0, 1.0, 0.0]]])
    some, right, correlation = StructuralDepthProbe().found(predicted, given)
    # The second takes the wrong word, of the third nothing is left, and the fourth has two roots.
    assert some.tolist() == [True, True, False, True]
    assert right[:, 0].tolist() == [True, False, False, True]
    expected = [stats.spearmanr([0.1, 1.0, 2.0], [1, 0, 1]).statistic, -1.0]
    assert correlation[:2, 0].tolist() == pytest.approx(expected)
    assert correlation[2:].isnan().all()


@pytest.mark.parametrize("kind", PROBES)
def test_a_batch_without_a_sentence_finds_nothing(kind: type[StructuralProbe]) -> None:
    full = batch([2])
    empty = AttentionBatch(
        index=full.index[:0],
        lengths=full.lengths[:0],
        heads=full.heads[:0, :0],
        relations=full.relations[:0, :0],
        punctuation=full.punctuation[:0, :0],
        attention=full.attention[:0],
        hidden=full.hidden[:0, :, :0],
        vectors=full.vectors[:0, :0],
        split="dev",
    )
    probe = made(kind)
    total, right, correlation = probe.found(probe(empty), empty)
    assert (total.shape, right.shape, correlation.shape) == ((0,), (0, 3), (0, 3))
    assert probe.losses(probe(empty), empty).shape == (0, 3)


def test_nats_are_a_code_over_root_and_the_other_words() -> None:
    probe, given = made(StructuralDistanceProbe, PAIRS[:1]), batch()
    distances, nats = probe(given)[:, 0], probe.cross_entropy(given)
    assert nats.shape == given.heads.shape
    for row, n in enumerate(LENGTHS):
        for i in range(n):
            near = [math.exp(-float(distances[row, i, j])) if j != i else 0.0 for j in range(n)]
            chances = [1 / (n + 1), *((n - 1) / (n + 1) * value / sum(near) if n > 1 else 0.0 for value in near)]
            chances[i + 1] = 1 / (n + 1)
            assert sum(chances) == pytest.approx(1)
            assert float(nats[row, i]) == pytest.approx(-math.log(chances[int(given.heads[row, i])]), abs=1e-5)
        assert not nats[row, n:].any()


def test_a_probe_that_tells_no_distances_apart_has_the_uniform_code() -> None:
    probe, given = made(StructuralDistanceProbe, PAIRS[:1]), batch()
    with torch.no_grad():
        probe.kept[0].zero_()
    for row, n in enumerate(LENGTHS):
        torch.testing.assert_close(probe.cross_entropy(given)[row, :n], torch.full((n,), math.log(n + 1)))
    selves = torch.arange(1, given.heads.size(1) + 1).expand_as(given.heads)
    itself = replace(given, heads=torch.where(given.mask, selves, -1))
    torch.testing.assert_close(probe.cross_entropy(itself), probe.cross_entropy(given))


def test_there_is_no_code_of_depths_nor_of_several_pairs() -> None:
    with pytest.raises(ExperimentError, match="it has no code length"):
        made(StructuralDepthProbe).cross_entropy(batch())
    with pytest.raises(ExperimentError, match="has 3 pairs of layer and rank"):
        made(StructuralDistanceProbe).cross_entropy(batch())
