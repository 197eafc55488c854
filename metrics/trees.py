"""Maximum spanning trees of attention, and the gold edges in them."""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from metrics.attachment import Arcs, Integers


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
