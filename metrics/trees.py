"""Best trees: maximum arborescences of scored arcs, maximum spanning trees of attention, and gold edges in them."""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from metrics.attachment import Arcs, Floats, Integers


def maximum_arborescence(scores: NDArray[np.floating]) -> Integers:
    """Heads of the tree whose arcs have the greatest sum of scores; any number of words may be attached to ROOT.

    Chu & Liu (1965) and Edmonds (1967), with which McDonald et al. (2005) decode non-projective trees. Contractions
    follow a path of best arcs (Gabow et al. 1986): at most 2n steps on a full matrix, each on whole rows.

    Args:
        scores: `[n, n+1]` score of the arc to word i+1 (row i) from head j, ROOT at 0; -inf where there is none. A
            word's arc from itself is ignored.

    Returns:
        int64 `[n]`: the head of each word, 1..n, 0 for ROOT. Ties are broken deterministically.

    Raises:
        ValueError: The scores are not `[n, n+1]`, hold nan or +inf, or allow no tree.
    """
    arcs = _incoming(scores)
    heads: Integers = arcs.argmax(axis=1)
    # argmax of a word without arcs is ROOT: its maximum of -inf tells.
    if not (_all_reach_root(heads) and np.isfinite(arcs[1:].max(axis=1)).all()):
        heads = _by_contraction(arcs)
    return heads[1:]


def tree_heads(scores: Tensor, lengths: Tensor) -> Tensor:
    """Heads of the best tree of every sentence of a batch, int64 `[batch, n]`: 1..n, 0 for ROOT and in the padding.

    The scores are `[batch, n, n+1]` as for `maximum_arborescence`, whose errors name the place in the batch;
    the lengths are `[batch]`, and the padding is ignored.
    """
    heads = np.zeros(scores.shape[:2], dtype=np.int64)
    matrices = scores.detach().cpu().double().numpy()
    for row, n in enumerate(lengths.tolist()):
        try:
            heads[row, :n] = maximum_arborescence(matrices[row, :n, : n + 1])
        except ValueError as error:
            raise ValueError(f"sentence {row} of the batch: {error}") from None
    return torch.from_numpy(heads).to(scores.device)


def _incoming(scores: NDArray[np.floating]) -> Floats:
    """Copy the scores to `[n+1, n+1]`: row i holds the arcs into node i; ROOT (0) has none."""
    shape = np.shape(scores)
    if len(shape) != 2 or shape[1] != shape[0] + 1:
        raise ValueError(f"scores must be [n, n+1], ROOT first, not {list(shape)}")
    arcs = np.full((shape[1], shape[1]), -np.inf)
    arcs[1:] = scores
    np.fill_diagonal(arcs, -np.inf)
    if np.isnan(arcs).any() or np.isposinf(arcs).any():
        raise ValueError("a score is nan or +inf: of such there is no best tree")
    return arcs


def _all_reach_root(heads: Integers) -> bool:
    """Whether no arcs go in a circle; `heads` `[n+1]` has 0 for ROOT itself."""
    above, steps = heads, 1
    while steps < len(heads):  # after each turn `above` is twice as far up
        above, steps = above[above], 2 * steps
    return not above.any()


def _by_contraction(arcs: Floats) -> Integers:
    """Best heads `[n+1]` (0 for ROOT) of arcs `[n+1, n+1]`, which are overwritten.

    A path follows the best incoming arcs to ROOT or to a node that is connected to ROOT already. Where it meets itself,
    the cycle is contracted to one node, in the row and column of its first member; the score of an arc into the cycle
    is reduced by the score of the arc that it would replace.
    """
    size = len(arcs)
    numbers = np.arange(size)
    # The original word and head of every arc of the contracted matrix.
    word, head = np.repeat(numbers[:, None], size, axis=1), np.repeat(numbers[None, :], size, axis=0)
    node = list(range(size))  # the node of each row: a word, or from `size` on a cycle
    above: dict[int, int] = {}  # the cycle into which a node was contracted
    entry: dict[int, tuple[int, int]] = {}  # word and head of the arc into each node
    waiting, gone = np.arange(size) > 0, np.zeros(size, dtype=np.bool_)
    circles = size
    for start in range(1, size):
        path = [start] if waiting[start] and not gone[start] else []
        while path:
            end = path[-1]
            best = int(arcs[end].argmax())
            if np.isneginf(arcs[end, best]):
                raise ValueError(f"there is no tree: no arcs lead from ROOT to word {end}")
            entry[node[end]] = int(word[end, best]), int(head[end, best])
            if not waiting[best]:
                waiting[path] = False
                path = []
            elif best not in path:
                path.append(best)
            else:
                place = path.index(best)
                circle = np.array(path[place:])
                for row in circle:
                    above[node[row]] = circles
                _contract(arcs, word, head, circle)
                node[best], circles = circles, circles + 1
                gone[circle[1:]] = True
                path = path[: place + 1]
    # Outermost cycles first: the arc into a cycle replaces the arc of the member that it enters.
    for circle_node in range(circles - 1, size - 1, -1):
        inner = entry[circle_node][0]
        while above[inner] != circle_node:
            inner = above[inner]
        entry[inner] = entry[circle_node]
    heads = np.zeros(size, dtype=np.int64)
    heads[1:] = [entry[number][1] for number in range(1, size)]
    return heads


def _contract(arcs: Floats, word: Integers, head: Integers, circle: Integers) -> None:
    """Contract a cycle of best arcs into the row and column of its first node, and empty the others."""
    first, others, every = circle[0], circle[1:], np.arange(len(arcs))
    inward = arcs[circle] - arcs[circle].max(axis=1, keepdims=True)
    entered = circle[inward.argmax(axis=0)]
    arcs[first] = inward.max(axis=0)
    word[first], head[first] = word[entered, every], head[entered, every]
    left = circle[arcs[:, circle].argmax(axis=1)]
    arcs[:, first] = arcs[every, left]
    word[:, first], head[:, first] = word[every, left], head[every, left]
    arcs[others], arcs[:, others], arcs[first, first] = -np.inf, -np.inf, -np.inf


def spanning_trees(weights: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Maximum spanning trees of complete graphs: symmetric `[graphs, n, n]`, True at the n − 1 edges of each tree.

    The weights are `[graphs, n, n]` with n ≥ 1 and finite. That of an edge is the sum of its two directions; the
    diagonal is ignored. SciPy's sorting breaks ties, so the trees depend only on the weights.
    """
    graphs, n, _ = weights.shape
    first, second = np.triu_indices(n, 1)
    both = weights[:, first, second].astype(np.float64) + weights[:, second, first]
    # The graphs are blocks of one sparse matrix; its minimum spanning forest holds their trees. SciPy takes a zero for
    # no edge, so every cost is at least one.
    costs = 1.0 + both.max(initial=0.0) - both
    blocks = n * np.arange(graphs)[:, None]
    size = graphs * n
    matrix = coo_array((costs.ravel(), ((blocks + first).ravel(), (blocks + second).ravel())), shape=(size, size))
    forest = minimum_spanning_tree(matrix.tocsr()).tocoo()
    drawn = np.zeros((graphs, n, n), dtype=np.bool_)
    drawn[forest.row // n, forest.row % n, forest.col % n] = True
    drawn[forest.row // n, forest.col % n, forest.row % n] = True
    return drawn


def gold_in_trees(attention: Tensor, heads: Tensor, punctuation: Tensor, lengths: Tensor) -> Tensor:
    """Whether the edge between a word and its gold head lies in the maximum spanning tree of each attention head.

    Punctuation is removed from the sentence before (Hewitt & Manning 2019, §4). `attention` is `[batch, layers, heads,
    n+2, n+2]`, the gold heads and the flags of punctuation are `[batch, n]`.

    Returns:
        int64 `[batch, n, layers·heads]`: 1 in the tree, 0 not; -1 where the word or its head is ROOT or punctuation.
    """
    found = torch.full((*heads.shape, attention.size(1) * attention.size(2)), -1)
    gold, marks = heads.cpu().numpy(), punctuation.cpu().numpy()
    for row, n in enumerate(lengths.tolist()):
        plain = np.flatnonzero(~marks[row, :n])
        place = np.full(n + 1, -1)
        place[plain + 1] = np.arange(len(plain))
        ends = place[gold[row, plain]]  # of ROOT, at 0, there is no place
        inside = ends >= 0
        if inside.any():
            weights = attention[row, :, :, 1 : n + 1, 1 : n + 1].flatten(0, 1).cpu().numpy()
            trees = spanning_trees(weights[:, plain[:, None], plain])
            found[row, plain[inside]] = torch.from_numpy(trees[:, np.flatnonzero(inside), ends[inside]].T).long()
    return found.to(heads.device)


def tree_counts(arcs: Arcs, drawn: NDArray[np.integer]) -> tuple[Integers, Integers]:
    """Count the gold edges in the tree of each head `[sentences, heads]`, and all gold edges `[sentences]`.

    `drawn` is `[words, heads]` from `gold_in_trees`.
    """
    sentence = np.cumsum(arcs.word == 1) - 1
    starts = np.flatnonzero(arcs.word == 1)
    found = np.add.reduceat(drawn == 1, starts, axis=0, dtype=np.int64)
    return found, np.bincount(sentence, weights=drawn[:, 0] >= 0, minlength=len(starts)).astype(np.int64)
