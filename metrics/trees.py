"""Trees of sentences: gold distances and depths, losses and rank correlations of predicted ones, best trees of scores.

Distances, depths and their losses follow Hewitt & Manning (2019).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from attention_probing.metrics import statistics
from attention_probing.metrics.attachment import Arcs
from attention_probing.results import Flags, Floats, Integers

RANKED_LENGTHS = (5, 50)  # shortest and longest sentences whose rank correlations are averaged (Hewitt & Manning 2019)


def tree_distances(heads: Tensor, lengths: Tensor) -> Tensor:
    """Return the number of arcs between every two words of a tree, int64 `[batch, n, n]`; 0 in the padding.

    In a forest, as in some control tasks, the path between words of two trees leads through ROOT.

    Args:
        heads: Position of each word's head, `[batch, n]`, from 1, 0 for ROOT; the padding is ignored.
        lengths: Number of words of each sentence, `[batch]`.

    Raises:
        ValueError: A head lies outside its sentence, or there is a cycle.
    """
    lines = _lines(heads, lengths)
    shared = lines @ lines.mT  # common ancestors, the words themselves included
    depths = shared.diagonal(dim1=1, dim2=2)
    distances = depths[:, :, None] + depths[:, None, :] - 2 * shared
    real = _real(heads.size(1), lengths)
    return (distances * (real[:, :, None] & real[:, None, :])).long()


def tree_depths(heads: Tensor, lengths: Tensor) -> Tensor:
    """Return the number of arcs between each word and the root of its tree, int64 `[batch, n]`; 0 in the padding.

    The root of a tree has depth 0.

    Args:
        heads: Position of each word's head, from 1, 0 for ROOT, `[batch, n]`.
        lengths: Number of words, `[batch]`.

    Raises:
        ValueError: There is a cycle, or a head outside its sentence.
    """
    return (_lines(heads, lengths).sum(-1) - 1).clamp(min=0).long()


def _lines(heads: Tensor, lengths: Tensor) -> Tensor:
    """Return float32 `[batch, n, n]`: 1 where the second word is the first one or its ancestor."""
    n = heads.size(1)
    real = _real(n, lengths)
    heads = torch.where(real, heads, 0)
    outside = (heads < 0) | (heads > lengths[:, None])
    if bool(outside.any()):
        row, word = outside.nonzero()[0].tolist()
        raise ValueError(
            f"word {word + 1} of sentence {row} of the batch has the head {int(heads[row, word])}, but a head must be "
            f"from 0 (ROOT) to {int(lengths[row])}"
        )
    up = torch.zeros(*heads.shape, n + 1, device=heads.device)
    up = up.scatter_(2, heads[:, :, None], 1.0)[:, :, 1:]
    lines = torch.diag_embed(real.float())
    # By doubling: `lines` holds the ancestors less than `steps` arcs up, `up` the one that is `steps` arcs up.
    steps = 1
    while steps <= n:
        lines = lines + up @ lines
        up = up @ up
        steps *= 2
    if bool(up.any()):
        row = int(up.any(dim=2).any(dim=1).nonzero()[0])
        raise ValueError(f"the heads of sentence {row} of the batch form a cycle, so they are not a tree")
    return lines


def _real(n: int, lengths: Tensor) -> Tensor:
    return torch.arange(n, device=lengths.device) < lengths[:, None]


def distance_losses(predicted: Tensor, gold: Tensor, lengths: Tensor) -> Tensor:
    """Return 1/n² Σ |gold − predicted| over ordered pairs of the n words of each sentence, `[batch, k]`.

    See Hewitt & Manning (2019, §2).

    Args:
        predicted: Distances predicted by k probes, `[batch, k, n, n]`.
        gold: Tree distances, `[batch, n, n]`.
        lengths: Number of words n of each sentence, `[batch]`; the padding is ignored.
    """
    real = _real(gold.size(1), lengths)
    pairs = (real[:, :, None] & real[:, None, :])[:, None]
    return ((predicted - gold[:, None]).abs() * pairs).sum((-2, -1)) / lengths[:, None] ** 2


def depth_losses(predicted: Tensor, gold: Tensor, lengths: Tensor) -> Tensor:
    """Return 1/n Σ |gold − predicted| over the n words of each sentence, `[batch, k]`.

    Args:
        predicted: Depths predicted by k probes, `[batch, k, n]`.
        gold: Tree depths, `[batch, n]`.
        lengths: Number of words n of each sentence, `[batch]`; the padding is ignored.
    """
    return ((predicted - gold[:, None]).abs() * _real(gold.size(1), lengths)[:, None]).sum(-1) / lengths[:, None]


def masked_rank_correlations(predicted: Tensor, gold: Tensor, mask: Tensor) -> Tensor:
    """Return Spearman's ρ over the last axis, `[...]`: nan if all gold values are equal, 0 if only the predictions are.

    The arguments are broadcast against each other.

    Args:
        predicted: Predicted values, `[..., n]`, finite where the mask is True.
        gold: Gold values, `[..., n]`.
        mask: Bool `[..., n]`, True for values that count.
    """
    values, truth, counts = (part.cpu().numpy() for part in (predicted, gold, mask))
    correlations = np.nan_to_num(statistics.rank_correlations(values, truth, counts))
    all_equal = np.isnan(statistics.rank_correlations(truth, truth, counts))
    correlations = np.where(all_equal, np.nan, correlations)
    return torch.from_numpy(correlations).to(predicted.device, torch.float32)


def length_weights(lengths: Integers, counted: NDArray[np.bool_]) -> Floats:
    """Return weights `[sentences]` for a mean over the sentences of each length, and then over lengths.

    Only lengths from 5 to 50 words count; other sentences have weight 0. Hewitt & Manning (2019)
    average rank correlations in this way.

    Args:
        lengths: Number of words of each sentence, `[sentences]`.
        counted: Bool `[sentences]`, True for sentences that take part.
    """
    among = counted & (lengths >= RANKED_LENGTHS[0]) & (lengths <= RANKED_LENGTHS[1])
    occurring, which, number = np.unique(lengths[among], return_inverse=True, return_counts=True)
    weights = np.zeros(len(lengths))
    weights[among] = 1.0 / (len(occurring) * number[which])
    return weights


def maximum_arborescence(scores: NDArray[np.floating]) -> Integers:
    """Return the heads of the tree whose arcs have the greatest sum of scores, with any number of roots.

    See `maximum_arborescences`.

    Args:
        scores: `[n, n+1]`; row i, column j has the score of the arc from head j (0 is ROOT) to word i+1, -inf for no
            arc. A word's arc from itself is ignored.

    Returns:
        Head of each word, int64 `[n]`: 1 to n, 0 for ROOT.

    Raises:
        ValueError: The scores are not `[n, n+1]`, contain nan or +inf, or allow no tree.
    """
    heads: Integers = maximum_arborescences(np.asarray(scores)[None])[0]
    return heads


def maximum_arborescences(scores: NDArray[np.floating]) -> Integers:
    """Return the heads of the tree with the greatest sum of scores of each of several graphs of n words.

    This is the algorithm of Chu & Liu (1965) and Edmonds (1967), with which McDonald et al. (2005) decode
    non-projective trees. A tree may have any number of roots, the words under ROOT. Each round contracts one cycle of
    every graph that has one.

    Args:
        scores: `[graphs, n, n+1]`; in row i, column j the score of the arc from head j (0 is ROOT) to word i+1, -inf
            for no arc. A word's arc from itself is ignored.

    Returns:
        Head of each word, int64 `[graphs, n]`: 1 to n, 0 for ROOT. Ties are broken deterministically.

    Raises:
        ValueError: The scores are not `[graphs, n, n+1]`, contain nan or +inf, or allow no tree.
    """
    arcs = _incoming(scores)
    heads = np.zeros(arcs.shape[:2], dtype=np.int64)
    rows = np.arange(len(arcs))  # graphs that may have a cycle
    contractions: list[tuple[Integers, _Contraction]] = []
    while rows.size:
        best = _best_heads(arcs[rows])
        heads[rows] = best
        on_cycle = _find_cycle(best)
        with_cycle = on_cycle.any(1)
        rows = rows[with_cycle]
        if rows.size:
            contraction, arcs[rows] = _contract(arcs[rows], best[with_cycle], on_cycle[with_cycle])
            contractions.append((rows, contraction))
    for rows, contraction in reversed(contractions):
        heads[rows] = contraction.expand(heads[rows])
    return heads[:, 1:]


def tree_heads(scores: Tensor, lengths: Tensor) -> Tensor:
    """Return the heads of the best tree of each sentence, int64 `[batch, n]`: 1 to n, 0 for ROOT and in the padding.

    Args:
        scores: Score of the arc to each word from each head, ROOT first, `[batch, n, n+1]`; see
            `maximum_arborescence`.
        lengths: Number of words of each sentence, `[batch]`; the padding is ignored.

    Raises:
        ValueError: The scores of a sentence contain nan or +inf, or allow no tree.
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
    """Copy the scores to `[graphs, n+1, n+1]`: row i holds the arcs into node i; ROOT (0) has none."""
    graphs, *shape = np.shape(scores)
    if len(shape) != 2 or shape[1] != shape[0] + 1:
        raise ValueError(f"scores must be [n, n+1], ROOT first, not {shape}")
    arcs = np.full((graphs, shape[1], shape[1]), -np.inf)
    arcs[:, 1:] = scores
    nodes = np.arange(shape[1])
    arcs[:, nodes, nodes] = -np.inf
    for name, is_bad in (("nan", np.isnan(arcs)), ("+inf", np.isposinf(arcs))):
        if is_bad.any():
            raise ValueError(f"the arc scores contain {name}, so no maximum spanning tree exists")
    if np.isneginf(arcs[:, 1:].max(axis=2)).any():
        raise ValueError(_NO_TREE)
    return arcs


_NO_TREE = "no path of arcs leads from ROOT to some word, so no tree exists"


def _best_heads(arcs: Floats) -> Integers:
    """Return the best head of each node, `[graphs, nodes]`; 0 for ROOT itself and for nodes without arcs."""
    heads: Integers = arcs.argmax(axis=2)
    heads[:, 0] = 0
    return heads


def _find_cycle(heads: Integers) -> Flags:
    """Return True for the nodes of one cycle of each graph, `[graphs, nodes]`; none where all lead to ROOT, node 0."""
    graphs = np.arange(len(heads))
    ahead = heads
    steps = 1
    while steps < heads.shape[1]:  # then every node has arrived at ROOT or on a cycle
        ahead = np.take_along_axis(ahead, ahead, axis=1)
        steps *= 2
    on_cycle = np.zeros(heads.shape, dtype=np.bool_)
    node = ahead.max(axis=1)
    while not on_cycle[graphs, node].all():
        on_cycle[graphs, node] = True
        node = heads[graphs, node]
    on_cycle[:, 0] = False
    return on_cycle


@dataclass(frozen=True, eq=False)
class _Contraction:
    """A cycle of each graph that became one node, its last.

    Attributes:
        heads: Head of each node before, `[graphs, nodes]`.
        on_cycle: True for the nodes of the cycle, `[graphs, nodes]`.
        node: The node that stands for the cycle, `[graphs]`.
        entry: Node of the cycle into which the best arc from each node leads, `[graphs, nodes]`.
        source: Node of the cycle from which the best arc into each node comes, `[graphs, nodes]`.
    """

    heads: Integers
    on_cycle: Flags
    node: Integers
    entry: Integers
    source: Integers

    def expand(self, heads: Integers) -> Integers:
        """Return the heads of all nodes, `[graphs, nodes]`, from those after the contraction."""
        graphs = np.arange(len(heads))
        below_cycle = (heads == self.node[:, None]) & ~self.on_cycle
        expanded = np.where(below_cycle, self.source, heads)
        expanded = np.where(self.on_cycle, self.heads, expanded)
        head_of_cycle = heads[graphs, self.node]
        entry = self.entry[graphs, head_of_cycle]
        expanded[graphs, entry] = head_of_cycle
        return expanded


def _contract(arcs: Floats, heads: Integers, on_cycle: Flags) -> tuple[_Contraction, Floats]:
    """Return the contraction of a cycle in each graph, and the arcs afterwards.

    Args:
        arcs: Scores of the arcs into each node, `[graphs, nodes, nodes]`.
        heads: Best head of each node, `[graphs, nodes]`.
        on_cycle: True for the nodes of the cycle, `[graphs, nodes]`.
    """
    graphs = np.arange(len(arcs))
    node = on_cycle.shape[1] - 1 - on_cycle[:, ::-1].argmax(axis=1)
    # An arc into the cycle is worth what it adds to the arc that it replaces.
    replaced = np.take_along_axis(arcs, heads[:, :, None], axis=2)
    inward = np.subtract(arcs, replaced, where=on_cycle[:, :, None], out=np.full_like(arcs, -np.inf))
    outward = np.where(on_cycle[:, None, :], arcs, -np.inf)
    entry = inward.argmax(axis=1)
    source = outward.argmax(axis=2)
    arcs = np.where(on_cycle[:, :, None] | on_cycle[:, None, :], -np.inf, arcs)
    into = inward.max(axis=1)
    out_of = outward.max(axis=2)
    arcs[graphs, node] = np.where(on_cycle, -np.inf, into)
    arcs[graphs, :, node] = np.where(on_cycle, -np.inf, out_of)
    if np.isneginf(arcs[graphs, node].max(axis=1)).any():
        raise ValueError(_NO_TREE)
    return _Contraction(heads, on_cycle, node, entry, source), arcs


def spanning_trees(weights: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return the maximum spanning tree of each complete graph, bool `[graphs, n, n]`, True at its n − 1 edges.

    The result is symmetric. The weight of an edge is the sum of its two directions; the diagonal is ignored. Ties are
    broken by SciPy's sorting, so the trees depend only on the weights.

    Args:
        weights: Finite weights of the edges, `[graphs, n, n]`, n ≥ 1.
    """
    graphs, n, _ = weights.shape
    first, second = np.triu_indices(n, 1)
    sums = weights[:, first, second].astype(np.float64) + weights[:, second, first]
    # The graphs are blocks of one sparse matrix; its minimum spanning forest holds their trees. SciPy takes a zero for
    # no edge, so every cost is at least one.
    costs = 1.0 + sums.max(initial=0.0) - sums
    blocks = n * np.arange(graphs)[:, None]
    size = graphs * n
    # Not a coo_array, which keeps 64-bit indices: minimum_spanning_tree takes them from SciPy 1.17.1 on.
    ends = (blocks + first).ravel(), (blocks + second).ravel()
    matrix = coo_matrix((costs.ravel(), ends), shape=(size, size))
    forest = minimum_spanning_tree(matrix.tocsr()).tocoo()
    trees = np.zeros((graphs, n, n), dtype=np.bool_)
    trees[forest.row // n, forest.row % n, forest.col % n] = True
    trees[forest.row // n, forest.col % n, forest.row % n] = True
    return trees


def gold_in_trees(attention: Tensor, heads: Tensor, punctuation: Tensor, lengths: Tensor) -> Tensor:
    """Return whether the tree of each attention head has the edge from each word to its gold head.

    The tree is the undirected maximum spanning tree of the words of a sentence, without punctuation
    (Hewitt & Manning 2019, §4). The weight of an edge is the sum of the attention in both
    directions.

    Args:
        attention: `[batch, layers, heads, n+2, n+2]`, with delimiters before and after the words.
        heads: Position of each word's gold head, `[batch, n]`, from 1, 0 for ROOT.
        punctuation: Bool `[batch, n]`, True for punctuation.
        lengths: Number of words of each sentence, `[batch]`.

    Returns:
        int64 `[batch, n, layers·heads]`: 1 if the edge is in the tree, 0 if not; -1 if the word or its
        gold head is punctuation, if the gold head is ROOT, and in the padding.
    """
    return _gold_in(_in_undirected_trees, 1, attention, heads, punctuation, lengths)


def gold_in_rooted_trees(attention: Tensor, heads: Tensor, punctuation: Tensor, lengths: Tensor) -> Tensor:
    """Return whether the tree of each attention head from the gold root has the edge from each word to its gold head.

    The tree is the maximum spanning arborescence of the words of a sentence, without punctuation, from the gold root
    (Htut et al. 2019, §3); edges count in both directions. Attention is read in the two directions of
    `metrics.heads.DIRECTIONS`: the arc from a governor to a dependent weighs what the dependent gives the governor, or
    what the governor gives the dependent, as in the paper. Words whose gold head is punctuation are further roots.

    Args:
        attention: `[batch, layers, heads, n+2, n+2]`, with delimiters before and after the words.
        heads: Position of each word's gold head, `[batch, n]`, from 1, 0 for ROOT.
        punctuation: Bool `[batch, n]`, True for punctuation.
        lengths: Number of words of each sentence, `[batch]`.

    Returns:
        int64 `[batch, n, 2·layers·heads]`: 1 if the edge is in the tree, 0 if not; -1 as in `gold_in_trees`.
    """
    return _gold_in(_in_rooted_trees, 2, attention, heads, punctuation, lengths)


def _gold_in(
    find_edges: "Callable[[_GoldEdges], Flags]",
    directions: int,
    attention: Tensor,
    heads: Tensor,
    punctuation: Tensor,
    lengths: Tensor,
) -> Tensor:
    """Return whether trees have the gold edges; see `gold_in_trees`.

    Args:
        find_edges: Function that returns True for the gold edges of a sentence in the trees of each head,
            `[directions·layers·heads, edges]`.
        directions: Number of trees of a head.
        attention: See `gold_in_trees`, as the other arguments.
        heads: Gold heads.
        punctuation: Places of punctuation.
        lengths: Numbers of words.
    """
    trees = directions * attention.size(1) * attention.size(2)
    in_trees = torch.full((*heads.shape, trees), -1)
    for edges in _gold_edges(attention, heads, punctuation, lengths):
        found = find_edges(edges)
        in_trees[edges.sentence, edges.positions] = torch.from_numpy(found.T).long()
    return in_trees.to(heads.device)


def _in_undirected_trees(edges: "_GoldEdges") -> Flags:
    """Return True for gold edges in the undirected tree of each head, `[heads, edges]`."""
    trees = spanning_trees(edges.weights)
    in_trees: Flags = trees[:, edges.words, edges.governors]
    return in_trees


def _in_rooted_trees(edges: "_GoldEdges") -> Flags:
    """Return True for gold edges in the tree of each head from the gold root, `[2·heads, edges]`."""
    count, n, _ = edges.weights.shape
    is_root = np.ones(n, dtype=np.bool_)
    is_root[edges.words] = False
    scores = np.full((2 * count, n, n + 1), -np.inf)
    scores[:count, :, 1:] = edges.weights
    scores[count:, :, 1:] = edges.weights.swapaxes(1, 2)
    scores[:, is_root] = -np.inf
    scores[:, is_root, 0] = 0
    tree = np.concatenate([maximum_arborescences(part) for part in _in_parts(scores)])
    by_word = tree[:, edges.words] == edges.governors + 1
    by_governor = tree[:, edges.governors] == edges.words + 1
    in_trees: Flags = by_word | by_governor
    return in_trees


def _in_parts(scores: Floats) -> list[Floats]:
    """Divide the scores of graphs into parts that need little memory."""
    graphs = max(1, _CELLS // scores[0].size)
    return [scores[first : first + graphs] for first in range(0, len(scores), graphs)]


_CELLS = 1 << 21  # scores of the graphs whose trees are searched together: 16 MB


@dataclass(frozen=True, eq=False)
class _GoldEdges:
    """Gold edges between the words of a sentence that are no punctuation, and the attention between these words.

    Attributes:
        sentence: Place of the sentence in its batch.
        weights: Attention `[layers·heads, words, words]`, from and to, without punctuation.
        words: Place among these words of each word with a gold edge, from 0, `[edges]`.
        governors: The same for its gold head, `[edges]`.
        positions: Place of the word among all words of the sentence, from 0, `[edges]`.
    """

    sentence: int
    weights: Floats
    words: Integers
    governors: Integers
    positions: Integers


def _gold_edges(attention: Tensor, heads: Tensor, punctuation: Tensor, lengths: Tensor) -> Iterator[_GoldEdges]:
    """Yield the gold edges of each sentence of a batch that has any; see `gold_in_trees` for the arguments."""
    of_words = attention[..., 1:-1, 1:-1].cpu()  # trees are found there; from a GPU in one copy, for it waits for each
    gold = heads.cpu().numpy()
    marks = punctuation.cpu().numpy()
    for sentence, n in enumerate(lengths.tolist()):
        plain = np.flatnonzero(~marks[sentence, :n])
        place = np.full(n + 1, -1)
        place[plain + 1] = np.arange(len(plain))
        governors = place[gold[sentence, plain]]  # -1 for ROOT, which is no node
        words = np.flatnonzero(governors >= 0)
        if not words.size:
            continue
        weights = of_words[sentence, :, :, :n, :n].flatten(0, 1).numpy()
        yield _GoldEdges(
            sentence=sentence,
            weights=weights[:, plain[:, None], plain],
            words=words,
            governors=governors[words],
            positions=plain[words],
        )


def neighbour_edges(arcs: Arcs) -> Flags:
    """Return True for each word that is a neighbour of its gold head, bool `[words]`; only punctuation is between them.

    These are the edges of the tree of right branching without punctuation. Words under ROOT, punctuation, and words
    whose gold head is punctuation get False.
    """
    rows = np.arange(len(arcs))
    head_row = np.where(arcs.head > 0, rows + arcs.head - arcs.word, rows)
    plain = ~arcs.punctuation
    place = np.cumsum(plain)
    is_next: Flags = np.abs(place - place[head_row]) == 1
    return is_next & plain & plain[head_row]
