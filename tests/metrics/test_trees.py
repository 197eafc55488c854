import networkx as nx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from metrics.attachment import Arcs
from metrics.trees import gold_in_trees, spanning_trees, tree_counts
from tests.metrics.samples import arcs


def weights(kind: str, graphs: int, n: int, seed: int) -> NDArray[np.float64]:
    random = np.random.default_rng(seed)
    drawn = random.random((graphs, n, n))
    if kind == "ties":
        return np.round(drawn * 3) / 3
    if kind == "zeros":
        return drawn * (random.random((graphs, n, n)) < 0.2)
    return np.zeros((graphs, n, n)) if kind == "nothing" else drawn


def graph_of(matrix: NDArray[np.floating]) -> "nx.Graph[int]":
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(len(matrix)))
    for i in range(len(matrix)):
        for j in range(i + 1, len(matrix)):
            graph.add_edge(i, j, weight=float(matrix[i, j]) + float(matrix[j, i]))
    return graph


@pytest.mark.parametrize("kind", ["random", "ties", "zeros", "nothing"])
@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_trees_weigh_as_much_as_networkxs(kind: str, n: int) -> None:
    given = weights(kind, 6, n, seed=n)
    drawn = spanning_trees(given)
    assert drawn.shape == (6, n, n)
    for matrix, tree in zip(given, drawn, strict=True):
        assert (tree == tree.T).all()
        assert not tree.diagonal().any()
        edges = [(i, j) for i in range(n) for j in range(i + 1, n) if tree[i, j]]
        assert len(edges) == n - 1
        graph = graph_of(matrix)
        own: nx.Graph[int] = nx.Graph(edges)
        own.add_nodes_from(range(n))
        assert nx.is_connected(own)
        best = nx.maximum_spanning_tree(graph).size("weight")
        assert sum(graph.edges[edge]["weight"] for edge in edges) == pytest.approx(best, abs=1e-9)
        if kind == "random":
            assert {frozenset(edge) for edge in edges} == {
                frozenset(edge) for edge in nx.maximum_spanning_tree(graph).edges
            }


def test_a_graph_is_treated_alike_beside_any_other() -> None:
    given = weights("random", 5, 7, seed=1)
    together = spanning_trees(given)
    for place in range(5):
        assert (spanning_trees(given[place : place + 1])[0] == together[place]).all()


def test_gold_edges_equal_a_loop_over_sentences_and_heads() -> None:
    random = torch.Generator().manual_seed(0)
    gold = [[2, 0, 2, 3, 2], [0], [3, 3, 0], [2, 0], [3, 1, 0, 1, 4, 3]]
    # Among them a word under punctuation, the punctuation alone, and a root that is punctuation.
    marks = [[0, 0, 1, 0, 1], [0], [0, 0, 1], [1, 1], [0, 0, 0, 1, 0, 0]]
    lengths = [len(sentence) for sentence in gold]
    heads, punctuation = torch.full((5, 6), -1), torch.zeros(5, 6, dtype=torch.bool)
    attention = torch.zeros(5, 2, 3, 8, 8, dtype=torch.float16)
    for row, n in enumerate(lengths):
        heads[row, :n], punctuation[row, :n] = torch.tensor(gold[row]), torch.tensor(marks[row]).bool()
        attention[row, ..., : n + 2, : n + 2] = torch.randn(2, 3, n + 2, n + 2, generator=random).softmax(-1).half()
    found = gold_in_trees(attention, heads, punctuation, torch.tensor(lengths))
    assert found.dtype == torch.int64
    assert (found[~(torch.arange(6) < torch.tensor(lengths)[:, None])] == -1).all()
    for row, n in enumerate(lengths):
        plain = [word for word in range(1, n + 1) if not marks[row][word - 1]]
        for head in range(6):
            matrix = attention[row, head // 3, head % 3].double()
            graph: nx.Graph[int] = nx.Graph()
            for i in plain:
                for j in plain:
                    if i < j:
                        graph.add_edge(i, j, weight=float(matrix[i, j]) + float(matrix[j, i]))
            tree = {frozenset(edge) for edge in nx.maximum_spanning_tree(graph).edges}
            for word in range(1, n + 1):
                over = gold[row][word - 1]
                counts = over in plain and word in plain
                expected = int(frozenset((word, over)) in tree) if counts else -1
                assert int(found[row, word - 1, head]) == expected
    assert {-1, 0, 1} == set(found.flatten().tolist())


def test_a_batch_without_a_sentence_has_no_tree() -> None:
    nothing = torch.zeros(0, 0, dtype=torch.int64)
    found = gold_in_trees(torch.zeros(0, 2, 3, 2, 2), nothing, nothing.bool(), torch.zeros(0, dtype=torch.int64))
    assert found.shape == (0, 0, 6)


def test_counts_by_hand() -> None:
    gold: Arcs = arcs([[2, 0, 2], [0], [2, 0]], sentences=[3, 5, 9])
    drawn = np.array([[1, 0], [-1, -1], [1, 1], [-1, -1], [0, 1], [-1, -1]])
    found, edges = tree_counts(gold, drawn)
    assert found.tolist() == [[2, 1], [0, 0], [0, 1]]
    assert edges.tolist() == [2, 0, 1]
    assert found.dtype == edges.dtype == np.int64
