import itertools
import time

import networkx as nx
import numpy as np
import pytest
import torch

from metrics.arborescence import maximum_arborescence, tree_heads
from metrics.attachment import Floats, Integers

INF = float("inf")


def is_tree(heads: tuple[int, ...]) -> bool:
    """Whether every word reaches ROOT, word by word."""
    for word in range(1, len(heads) + 1):
        seen: set[int] = set()
        above = word
        while above:
            if above in seen:
                return False
            seen.add(above)
            above = heads[above - 1]
    return True


def worth(scores: Floats, heads: Integers | tuple[int, ...]) -> float:
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
        heads = maximum_arborescence(scores)
        assert heads.dtype == np.int64
        assert is_tree(tuple(heads))
        assert worth(scores, heads) == pytest.approx(worth(scores, best), rel=1e-9)
        if kind != "ties":
            assert tuple(heads) == best
    assert found


@pytest.mark.parametrize("kind", ["any", "sparse", "far from ROOT"])
@pytest.mark.parametrize("n", [12, 25, 40])
def test_it_equals_networkx(kind: str, n: int) -> None:
    for seed in range(3):
        scores = drawn(kind, n, seed)
        assert maximum_arborescence(scores).tolist() == by_networkx(scores)


def test_circles_in_circles_by_hand() -> None:
    # 1 and 2 are each other's best, the pair and 3 are, these three and 4 are; the only good arc from ROOT goes to 2.
    scores = np.full((4, 5), -100.0)
    scores[0, 2], scores[1, 1], scores[0, 3], scores[2, 2], scores[1, 4], scores[3, 3] = 10, 10, 8, 9, 5, 9
    scores[1, 0] = 0.0
    assert maximum_arborescence(scores).tolist() == [2, 0, 2, 3]
    scores[1, 0], scores[3, 0] = -100.0, 0.0
    # By 4, which is then over 2, which is over 1 and 3.
    assert maximum_arborescence(scores).tolist() == [2, 4, 2, 0]


def test_a_circle_is_entered_where_it_costs_least() -> None:
    # The best arc from ROOT, to 1, would replace 9, and that to 2 only 1.
    scores = np.array([[5.0, 0.0, 9.0], [3.0, 1.0, 0.0]])
    assert maximum_arborescence(scores).tolist() == [2, 0]
    assert scores.tolist() == [[5.0, 0.0, 9.0], [3.0, 1.0, 0.0]]  # and the scores are left alone


def test_a_word_is_not_its_own_head() -> None:
    scores = np.array([[-5.0, 100.0, -9.0], [-5.0, -9.0, INF]])
    assert maximum_arborescence(scores).tolist() == [0, 0]


def test_no_words_have_no_heads() -> None:
    assert maximum_arborescence(np.zeros((0, 1))).shape == (0,)


def test_a_shift_of_a_words_arcs_changes_nothing() -> None:
    scores = drawn("any", 15, seed=3)
    shifted = scores + np.linspace(-5, 5, 15)[:, None] * np.ptp(scores)
    assert maximum_arborescence(shifted).tolist() == maximum_arborescence(scores).tolist()


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros((2, 2)), r"\[n, n\+1\], ROOT first, not \[2, 2\]"),
        (np.zeros(3), r"not \[3\]"),
        (np.array([[0.0, 1.0, np.nan], [0.0, 1.0, 2.0]]), "nan"),
        (np.array([[0.0, 1.0, INF], [0.0, 1.0, 2.0]]), "inf"),
        (np.array([[0.0, 1.0, 2.0], [-INF, -INF, 2.0]]), "to word 2"),
        (np.array([[-INF, 1.0, 2.0], [-INF, 1.0, 2.0]]), "from ROOT to word 1"),
        (np.full((1, 2), -INF), "to word 1"),
    ],
)
def test_what_makes_no_tree_is_refused(scores: Floats, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        maximum_arborescence(scores)


def test_two_words_that_must_both_hang_on_root() -> None:
    scores = np.array([[1.0, 0.0, -INF], [1.0, -INF, 0.0]])
    assert maximum_arborescence(scores).tolist() == [0, 0]


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
    with pytest.raises(ValueError, match="sentence 1 of the batch: a score is nan"):
        tree_heads(scores, torch.tensor([2, 2, 2]))


def test_a_sentence_of_25_words_takes_two_milliseconds_at_most() -> None:
    given = [drawn(kind, 25, seed) for kind in ("any", "far from ROOT") for seed in range(20)]
    seconds = []
    for scores in given:
        begun = time.process_time()
        maximum_arborescence(scores)
        seconds.append(time.process_time() - begun)
    # Of the process, and the median: what else the machine does is none of it.
    assert np.median(seconds) < 2e-3
