"""Best trees: maximum arborescences of scored arcs, maximum spanning trees of attention, and gold edges in them."""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from metrics.attachment import Arcs, Floats, Integers


def maximum_arborescence(scores: NDArray[np.floating]) -> Integers:
    """Heads of the tree whose arcs have the greatest sum of scores; any number of words may hang on ROOT.

    Chu & Liu (1965) and Edmonds (1967), by which McDonald et al. (2005) decode trees that need not be projective. The
    contractions go along a path of best arcs (Gabow et al. 1986), so that on a full matrix there are at most 2n steps,
    each on whole rows.

    Args:
        scores: `[n, n+1]` score of the arc to word i+1 (row i) from head j, ROOT at 0; -inf where there is none. A
            word's arc from itself is ignored.

    Returns:
        int64 `[n]`: the head of each word, 1..n, 0 for ROOT. Of several best trees it is always the same.

    Raises:
        ValueError: The scores are not `[n, n+1]`, hold nan or +inf, or the arcs there are make no such tree.
    """
    arcs = _incoming(scores)
    heads: Integers = arcs.argmax(axis=1)
    # A word without any arc has its best at ROOT, where it has none either.
    if not (_all_reach_root(heads) and np.isfinite(arcs[1:].max(axis=1)).all()):
        heads = _by_contraction(arcs)
    return heads[1:]


def tree_heads(scores: Tensor, lengths: Tensor) -> Tensor:
    """Heads of the best tree of every sentence of a batch.

    Args:
        scores: `[batch, n, n+1]` as for `maximum_arborescence`, of any floating type; the padding is not looked at.
        lengths: `[batch]` number of words.

    Returns:
        int64 `[batch, n]` on the device of the scores: 1..n, 0 for ROOT and in the padding.

    Raises:
        ValueError: As `maximum_arborescence`, with the place in the batch.
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
    """A matrix `[n+1, n+1]` of its own: row i holds the arcs into node i, of which ROOT (0) has none."""
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

    From a word go along the best incoming arcs. Where ROOT is reached, or a word that hangs on it already, the path is
    done. Where the path meets itself, the circle becomes one node: of the arcs into it each is worth what it adds to
    the arc of the circle that it would replace. The node takes over the row and the column of the first of its own.
    """
    size = len(arcs)
    numbers = np.arange(size)
    # The words and heads of the arcs that the matrix, smaller by every contraction, stands for.
    word, head = np.repeat(numbers[:, None], size, axis=1), np.repeat(numbers[None, :], size, axis=0)
    node = list(range(size))  # which node a row is of: a word, or from `size` on a circle
    above: dict[int, int] = {}  # the circle that a node went into
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
    # The outermost circles first: the arc into one replaces that of the member which it enters.
    for circle_node in range(circles - 1, size - 1, -1):
        inner = entry[circle_node][0]
        while above[inner] != circle_node:
            inner = above[inner]
        entry[inner] = entry[circle_node]
    heads = np.zeros(size, dtype=np.int64)
    heads[1:] = [entry[number][1] for number in range(1, size)]
    return heads


def _contract(arcs: Floats, word: Integers, head: Integers, circle: Integers) -> None:
    """Make the rows and columns of a circle of best arcs those of its first node, and empty the others."""
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
    """The maximum spanning tree of each complete graph, all in one call of SciPy.

    Args:
        weights: `[graphs, n, n]` with n ≥ 1, finite; the weight of an edge is the sum of its two directions, the
            diagonal is left out. Ties are broken by SciPy's sorting, and so depend on nothing but the weights.

    Returns:
        `[graphs, n, n]`, symmetric: True at the n − 1 edges of each tree.
    """
    graphs, n, _ = weights.shape
    first, second = np.triu_indices(n, 1)
    both = weights[:, first, second].astype(np.float64) + weights[:, second, first]
    # The graphs lie side by side as blocks of one sparse matrix, whose minimum spanning forest is all their trees.
    # SciPy takes a zero for no edge, so every cost is at least one.
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

    As in Hewitt & Manning (2019, §4) punctuation is taken out of the sentence before the tree is drawn.

    Args:
        attention: `[batch, layers, heads, n+2, n+2]`.
        heads: `[batch, n]` gold heads, 0 for ROOT.
        punctuation: `[batch, n]`.
        lengths: `[batch]`.

    Returns:
        int64 `[batch, n, layers·heads]`: 1 in the tree, 0 not; -1 where there is no edge that counts, because the word
        or its head is ROOT or punctuation.
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
    """Gold edges that each head's tree draws `[sentences, heads]`, and those that count `[sentences]`.

    Args:
        arcs: gold arcs.
        drawn: `[words, heads]` 1 where the edge of a word to its head is in the tree, -1 where none counts, else 0.
    """
    sentence = np.cumsum(arcs.word == 1) - 1
    starts = np.flatnonzero(arcs.word == 1)
    found = np.add.reduceat(drawn == 1, starts, axis=0, dtype=np.int64)
    return found, np.bincount(sentence, weights=drawn[:, 0] >= 0, minlength=len(starts)).astype(np.int64)
