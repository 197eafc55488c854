import itertools
from collections.abc import Iterable, Sequence

import networkx as nx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from attention_probing.metrics.attachment import Arcs
from attention_probing.metrics.trees import (
    gold_in_rooted_trees,
    gold_in_trees,
    maximum_arborescence,
    maximum_arborescences,
    neighbour_edges,
    spanning_trees,
    tree_heads,
)
from attention_probing.results import Floats, Integers
from tests.metrics.samples import arcs

INF = float("inf")


def is_tree(heads: tuple[int, ...]) -> bool:
    above = set(range(1, len(heads) + 1))
    for _ in heads:
        above = {heads[word - 1] for word in above if word}
    return above <= {0}


def worth(scores: Floats, heads: Integers | Sequence[int]) -> float:
    return float(sum(scores[word, head] for word, head in enumerate(heads)))


def enumerated(scores: Floats) -> tuple[int, ...] | None:
    """The best of all trees, one by one; None where all lack an arc."""
    n = len(scores)
    trees = [heads for heads in itertools.product(range(n + 1), repeat=n) if is_tree(heads)]
    best = max(trees, key=lambda heads: worth(scores, heads))
    return best if worth(scores, best) > -INF else None


def by_networkx(scores: Floats) -> list[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    for row, scored in enumerate(scores):
        for head, score in enumerate(scored):
            if head != row + 1 and score > -INF:
                graph.add_edge(head, row + 1, weight=float(score))
    tree = nx.maximum_spanning_arborescence(graph)
    return [next(iter(tree.predecessors(word))) for word in range(1, len(scores) + 1)]


def drawn(kind: str, n: int, seed: int) -> Floats:
    random = np.random.default_rng(seed)
    scores = random.normal(size=(n, n + 1)) * 10.0 ** random.integers(-3, 4)
    if kind == "sparse":
        scores[random.random(scores.shape) < 0.5] = -INF
    if kind == "ties":
        scores = np.sign(scores)
    if kind == "far from ROOT":  # circles within circles
        scores[:, 0] -= 1e5
    return scores


@pytest.mark.parametrize("kind", ["any", "sparse", "ties", "far from ROOT"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_it_equals_the_best_of_all_trees(kind: str, n: int) -> None:
    found = 0
    for seed in range(5 if n == 5 else 25):
        scores = drawn(kind, n, seed)
        best = enumerated(scores)
        if best is None:
            with pytest.raises(ValueError, match="no tree"):
                maximum_arborescence(scores)
            continue
        found += 1
        before = scores.copy()
        heads = maximum_arborescence(scores)
        assert (scores == before).all()
        assert heads.dtype == np.int64
        assert is_tree(tuple(heads))
        assert worth(scores, heads) == pytest.approx(worth(scores, best), rel=1e-9)
        if kind != "ties":
            assert tuple(heads) == best
    assert found


@pytest.mark.parametrize("kind", ["any", "sparse", "far from ROOT"])
@pytest.mark.parametrize("n", [12, 30])
def test_it_equals_networkx(kind: str, n: int) -> None:
    for seed in range(2):
        scores = drawn(kind, n, seed)
        assert maximum_arborescence(scores).tolist() == by_networkx(scores)


@pytest.mark.parametrize("n", [1, 7, 15])
def test_many_graphs_are_decoded_as_each_alone(n: int) -> None:
    kinds = ["any", "far from ROOT", "ties"] * 4
    graphs = np.stack([drawn(kind, n, seed) for seed, kind in enumerate(kinds)])
    assert maximum_arborescences(graphs).tolist() == [maximum_arborescence(graph).tolist() for graph in graphs]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros((2, 2)), r"\[n, n\+1\], ROOT first, not \[2, 2\]"),
        (np.array([[0.0, 1.0, np.nan], [0.0, 1.0, 2.0]]), "nan"),
        (np.array([[0.0, 1.0, INF], [0.0, 1.0, 2.0]]), "inf"),
        (np.array([[0.0, 1.0, 2.0], [-INF, -INF, 2.0]]), "to some word"),
        (np.array([[-INF, 1.0, 2.0], [-INF, 1.0, 2.0]]), "to some word"),
    ],
)
def test_what_makes_no_tree_is_refused(scores: Floats, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        maximum_arborescence(scores)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_a_batch_is_its_sentences_one_by_one(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 9, 10, generator=generator).to(dtype).requires_grad_()
    lengths = torch.tensor([9, 1, 0, 5])
    blotted = scores.detach().clone()
    blotted[1, 1:], blotted[1, :, 2:], blotted[3, 5:], blotted[3, :, 6:] = torch.nan, torch.nan, INF, INF
    heads = tree_heads(scores, lengths)
    assert heads.dtype == torch.int64
    assert heads.shape == (4, 9)
    assert torch.equal(tree_heads(blotted, lengths), heads)
    for row, n in enumerate(lengths.tolist()):
        matrix = scores[row, :n, : n + 1].detach().double().numpy()
        assert heads[row, :n].tolist() == maximum_arborescence(matrix).tolist()
        assert not heads[row, n:].any()


def test_a_sentence_without_a_tree_is_named() -> None:
    scores = torch.zeros(3, 2, 3)
    scores[1, 0] = torch.nan
    with pytest.raises(ValueError, match="sentence 1 of the batch: the arc scores contain nan"):
        tree_heads(scores, torch.tensor([2, 2, 2]))


def weights(kind: str, graphs: int, n: int, seed: int) -> NDArray[np.float64]:
    random = np.random.default_rng(seed)
    drawn = random.random((graphs, n, n))
    if kind == "ties":
        return np.round(drawn * 3) / 3
    if kind == "zeros":
        return drawn * (random.random((graphs, n, n)) < 0.2)
    return np.zeros((graphs, n, n)) if kind == "nothing" else drawn


def graph_of(matrix: NDArray[np.floating], nodes: Iterable[int]) -> "nx.Graph[int]":
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(nodes)
    for i, j in itertools.combinations(list(graph), 2):
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
        graph = graph_of(matrix, range(n))
        own: nx.Graph[int] = nx.Graph(edges)
        own.add_nodes_from(range(n))
        assert nx.is_connected(own)
        best = nx.maximum_spanning_tree(graph).size("weight")
        assert sum(graph.edges[edge]["weight"] for edge in edges) == pytest.approx(best, abs=1e-9)


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
    assert (found[~(torch.arange(6) < torch.tensor(lengths)[:, None])] == -1).all()
    for row, n in enumerate(lengths):
        plain = [word for word in range(1, n + 1) if not marks[row][word - 1]]
        for head in range(6):
            graph = graph_of(attention[row, head // 3, head % 3].double().numpy(), plain)
            tree = {frozenset(edge) for edge in nx.maximum_spanning_tree(graph).edges}
            for word in range(1, n + 1):
                over = gold[row][word - 1]
                counts = over in plain and word in plain
                expected = int(frozenset((word, over)) in tree) if counts else -1
                assert int(found[row, word - 1, head]) == expected
    assert {-1, 0, 1} == set(found.flatten().tolist())


def rooted_tree(
    attention: NDArray[np.floating], gold: list[int], plain: list[int], direction: int
) -> set[frozenset[int]]:
    """The edges of the best arborescence of plain words below the words without a plain governor."""
    scores = np.full((len(plain), len(plain) + 1), -INF)
    for (row, dependent), (column, governor) in itertools.product(enumerate(plain), enumerate(plain, 1)):
        if gold[dependent - 1] not in plain:
            scores[row, 0] = 0
        elif dependent != governor:
            scores[row, column] = attention[dependent, governor] if direction == 0 else attention[governor, dependent]
    heads = maximum_arborescence(scores)
    assert worth(scores, heads) == pytest.approx(worth(scores, by_networkx(scores)))  # with zeros many weigh as much
    return {frozenset((word, plain[head - 1])) for word, head in zip(plain, heads, strict=True) if head}


@pytest.mark.parametrize("causal", [False, True])
def test_gold_edges_in_trees_from_the_gold_root_equal_networkxs(causal: bool) -> None:
    random = torch.Generator().manual_seed(1)
    gold = [[2, 0, 2, 3, 2], [0], [3, 3, 0], [2, 0], [3, 1, 0, 1, 4, 3, 6, 6], [0, 1, 2, 3, 3]]
    marks = [[0, 0, 1, 0, 1], [0], [0, 0, 1], [1, 1], [0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
    lengths = [len(sentence) for sentence in gold]
    heads, punctuation = torch.full((6, 8), -1), torch.zeros(6, 8, dtype=torch.bool)
    attention = torch.zeros(6, 2, 3, 10, 10)
    for row, n in enumerate(lengths):
        heads[row, :n], punctuation[row, :n] = torch.tensor(gold[row]), torch.tensor(marks[row]).bool()
        scores = 3 * torch.randn(2, 3, n + 2, n + 2, generator=random)
        if causal:
            scores = scores.masked_fill(torch.ones(n + 2, n + 2).triu(1).bool(), -torch.inf)
        attention[row, ..., : n + 2, : n + 2] = scores.softmax(-1)
    found = gold_in_rooted_trees(attention, heads, punctuation, torch.tensor(lengths))
    assert found.shape == (6, 8, 12)
    assert (found[~(torch.arange(8) < torch.tensor(lengths)[:, None])] == -1).all()
    for row, n in enumerate(lengths):
        plain = [word for word in range(1, n + 1) if not marks[row][word - 1]]
        for predictor in range(12):
            direction, head = divmod(predictor, 6)
            weights = attention[row, head // 3, head % 3].double().numpy()
            tree = rooted_tree(weights, gold[row], plain, direction) if plain else set()
            for word in range(1, n + 1):
                over = gold[row][word - 1]
                counts = over in plain and word in plain
                expected = int(frozenset((word, over)) in tree) if counts else -1
                assert int(found[row, word - 1, predictor]) == expected
    assert {-1, 0, 1} == set(found.flatten().tolist())


def test_long_sentences_are_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = torch.rand(1, 4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    given = (attention, torch.tensor([[2, 0, 2, 3, 4, 5]]), torch.zeros(1, 6, dtype=torch.bool), torch.tensor([6]))
    whole = gold_in_rooted_trees(*given)
    monkeypatch.setattr("attention_probing.metrics.trees._CELLS", 5 * 6 * 7)
    assert torch.equal(gold_in_rooted_trees(*given), whole)


def test_neighbours_have_only_punctuation_between_them() -> None:
    gold: Arcs = arcs(
        [[3, 3, 0, 3, 7, 3, 6], [2, 0]],
        punctuation=[[False, True, False, True, False, True, False], [False, False]],
    )
    # 1 and 3 have word 2 between them, which is punctuation; 7 depends on punctuation.
    assert neighbour_edges(gold).tolist() == [True, False, False, False, True, False, False, True, False]


def test_a_batch_without_a_sentence_has_no_tree() -> None:
    nothing = torch.zeros(0, 0, dtype=torch.int64)
    found = gold_in_trees(torch.zeros(0, 2, 3, 2, 2), nothing, nothing.bool(), torch.zeros(0, dtype=torch.int64))
    assert found.shape == (0, 0, 6)
