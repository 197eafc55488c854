"""Trees of sentences: gold distances and depths, losses and rank correlations of predicted ones, best trees of scores.

Distances, depths and their losses follow Hewitt & Manning (2019).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from metrics.attachment import Arcs
from results import Floats, Integers

RANKED_LENGTHS = (5, 50)  # shortest and longest sentences whose rank correlations are averaged (Hewitt & Manning 2019)


def tree_distances(heads: Tensor, lengths: Tensor) -> Tensor:
    """Return the number of arcs between every two words of a tree, int64 `[batch, n, n]`; 0 in the padding.

    In a forest, as in some control tasks, paths between two trees lead over ROOT.

    Args:
        heads: position of each word's head, `[batch, n]`, from 1, 0 for ROOT; the padding is ignored.
        lengths: number of words of each sentence, `[batch]`.

    Raises:
        ValueError: a head lies outside its sentence, or there is a cycle.
    """
    lines = _lines(heads, lengths)
    shared = lines @ lines.mT  # common ancestors, the words themselves included
    own = shared.diagonal(dim1=1, dim2=2)
    distances = own[:, :, None] + own[:, None, :] - 2 * shared
    real = _real(heads.size(1), lengths)
    return (distances * (real[:, :, None] & real[:, None, :])).long()


def tree_depths(heads: Tensor, lengths: Tensor) -> Tensor:
    """Return the number of arcs between each word and the root of its tree, int64 `[batch, n]`; 0 in the padding.

    The root has depth 0.

    Args:
        heads: position of each word's head, from 1, 0 for ROOT, `[batch, n]`.
        lengths: number of words, `[batch]`.

    Raises:
        ValueError: there is a cycle, or a head outside its sentence.
    """
    return (_lines(heads, lengths).sum(-1) - 1).clamp(min=0).long()


def _lines(heads: Tensor, lengths: Tensor) -> Tensor:
    """Return float32 `[batch, n, n]`: 1 where the second word is the first one or its ancestor."""
    n = heads.size(1)
    real = _real(n, lengths)
    heads = torch.where(real, heads, 0)
    if bool(((heads < 0) | (heads > lengths[:, None])).any()):
        raise ValueError("a head lies outside its sentence: heads are 1-based, and 0 is ROOT")
    up = torch.zeros(*heads.shape, n + 1, device=heads.device).scatter_(2, heads[:, :, None], 1.0)[:, :, 1:]
    lines = torch.diag_embed(real.float())
    # By doubling: `lines` holds the ancestors less than `steps` arcs up, `up` the one that is `steps` arcs up.
    steps = 1
    while steps <= n:
        lines = lines + up @ lines
        up, steps = up @ up, 2 * steps
    if bool(up.any()):
        raise ValueError("the heads of a sentence form a cycle, so they are not a tree and have no distances")
    return lines


def _real(n: int, lengths: Tensor) -> Tensor:
    return torch.arange(n, device=lengths.device) < lengths[:, None]


def distance_losses(predicted: Tensor, gold: Tensor, lengths: Tensor) -> Tensor:
    """Return Σ |gold − predicted| over ordered pairs of words / n², `[batch, k]` (Hewitt & Manning 2019, §2).

    Args:
        predicted: distances predicted by k probes, `[batch, k, n, n]`.
        gold: tree distances, `[batch, n, n]`.
        lengths: number of words of each sentence, `[batch]`; the padding is ignored.
    """
    real = _real(gold.size(1), lengths)
    pairs = (real[:, :, None] & real[:, None, :])[:, None]
    return ((predicted - gold[:, None]).abs() * pairs).sum((-2, -1)) / lengths[:, None] ** 2


def depth_losses(predicted: Tensor, gold: Tensor, lengths: Tensor) -> Tensor:
    """Return Σ |gold − predicted| over words / n, `[batch, k]`.

    Args:
        predicted: depths predicted by k probes, `[batch, k, n]`.
        gold: tree depths, `[batch, n]`.
        lengths: number of words n of each sentence, `[batch]`; the padding is ignored.
    """
    return ((predicted - gold[:, None]).abs() * _real(gold.size(1), lengths)[:, None]).sum(-1) / lengths[:, None]


def rank_correlations(predicted: Tensor, gold: Tensor, mask: Tensor) -> Tensor:
    """Return Spearman's rank correlation over the last axis, `[...]`; ties share their mean rank.

    It is nan if all gold values are equal, and 0 if all predictions are equal. The arguments are broadcast.

    Args:
        predicted: predicted values, `[..., n]`, finite under the mask.
        gold: gold values, `[..., n]`.
        mask: bool `[..., n]`, True for values that count.
    """
    one, other = _centred_ranks(predicted.float(), mask), _centred_ranks(gold.float(), mask)
    spread, expected = one.square().sum(-1), other.square().sum(-1)
    correlation = (one * other).sum(-1) / (spread * expected).clamp(min=torch.finfo(torch.float32).tiny).sqrt()
    return correlation.masked_fill(expected == 0, torch.nan)


def _centred_ranks(values: Tensor, mask: Tensor) -> Tensor:
    values = torch.where(mask, values, torch.inf).contiguous()
    ascending = values.sort(dim=-1).values
    # Tied values share the rank (smaller values + values that are not larger − 1) / 2, from 0.
    twice = torch.searchsorted(ascending, values) + torch.searchsorted(ascending, values, right=True)
    return (twice - mask.sum(-1, keepdim=True)) / 2 * mask


def length_weights(lengths: Integers, counted: NDArray[np.bool_]) -> Floats:
    """Return weights `[sentences]` that average over the sentences of each length, 5 to 50, then over the lengths.

    Hewitt & Manning (2019) average rank correlations in this way.

    Args:
        lengths: number of words of each sentence, `[sentences]`.
        counted: bool `[sentences]`, True for sentences that take part.
    """
    among = counted & (lengths >= RANKED_LENGTHS[0]) & (lengths <= RANKED_LENGTHS[1])
    occurring, which, number = np.unique(lengths[among], return_inverse=True, return_counts=True)
    weights = np.zeros(len(lengths))
    weights[among] = 1.0 / (len(occurring) * number[which])
    return weights


def maximum_arborescence(scores: NDArray[np.floating]) -> Integers:
    """Return the heads of the tree whose arcs have the greatest sum of scores, with any number of roots.

    Chu & Liu (1965) and Edmonds (1967), with which McDonald et al. (2005) decode non-projective trees. Contractions
    follow a path of best arcs (Gabow et al. 1986): at most 2n steps on a full matrix, each on whole rows.

    Args:
        scores: score of the arc to word i+1 (row i) from head j, `[n, n+1]`, ROOT at 0; -inf for no arc. A word's arc
            from itself is ignored.

    Returns:
        int64 `[n]`: the head of each word, 1..n, 0 for ROOT. Ties are broken deterministically.

    Raises:
        ValueError: the scores are not `[n, n+1]`, contain nan or +inf, or allow no tree.
    """
    arcs = _incoming(scores)
    heads: Integers = arcs.argmax(axis=1)
    # argmax of a word without arcs is ROOT: its maximum of -inf tells.
    if not (_all_reach_root(heads) and np.isfinite(arcs[1:].max(axis=1)).all()):
        heads = _by_contraction(arcs)
    return heads[1:]


def tree_heads(scores: Tensor, lengths: Tensor) -> Tensor:
    """Return the heads of the best tree of each sentence, int64 `[batch, n]`: 1..n, 0 for ROOT and in the padding.

    Args:
        scores: score of the arc to each word from each head, ROOT first, `[batch, n, n+1]`; see `maximum_arborescence`.
        lengths: number of words of each sentence, `[batch]`; the padding is ignored.

    Raises:
        ValueError: the scores of a sentence contain nan or +inf, or allow no tree.
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
        raise ValueError("arc scores contain nan or +inf, so no maximum spanning tree exists")
    return arcs


def _all_reach_root(heads: Integers) -> bool:
    """Return True if the arcs form no cycle; `heads` `[n+1]` has 0 for ROOT itself."""
    above, steps = heads, 1
    while steps < len(heads):  # after each turn `above` is twice as far up
        above, steps = above[above], 2 * steps
    return not above.any()


def _by_contraction(arcs: Floats) -> Integers:
    """Return the best heads `[n+1]` (0 for ROOT) of arcs `[n+1, n+1]`, which are overwritten.

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
                raise ValueError(f"no path of arcs leads from ROOT to word {end}, so no tree exists")
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
    """Return maximum spanning trees of complete graphs: bool `[graphs, n, n]`, symmetric, True at the n − 1 edges.

    The weight of an edge is the sum of its two directions; the diagonal is ignored. SciPy's sorting breaks ties, so the
    trees depend only on the weights.

    Args:
        weights: finite weights of the edges, `[graphs, n, n]`, n ≥ 1.
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
    """Find the edges between words and gold heads in the maximum spanning tree of each attention head.

    Punctuation is removed from the sentence before (Hewitt & Manning 2019, §4).

    Args:
        attention: `[batch, layers, heads, n+2, n+2]`, with delimiters before and after the words.
        heads: position of each word's gold head, `[batch, n]`, from 1, 0 for ROOT.
        punctuation: bool `[batch, n]`, True for punctuation.
        lengths: number of words of each sentence, `[batch]`.

    Returns:
        int64 `[batch, n, layers·heads]`: 1 in the tree, 0 not; -1 if the word or its head is ROOT or punctuation.
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
    """Return the number of gold edges in the tree of each attention head, and the number of all gold edges.

    Args:
        arcs: gold arcs of whole sentences.
        drawn: result of `gold_in_trees` for all words, `[words, heads]`.

    Returns:
        Counts `[sentences, heads]` and `[sentences]`, int64.
    """
    sentence = np.cumsum(arcs.word == 1) - 1
    starts = np.flatnonzero(arcs.word == 1)
    found = np.add.reduceat(drawn == 1, starts, axis=0, dtype=np.int64)
    return found, np.bincount(sentence, weights=drawn[:, 0] >= 0, minlength=len(starts)).astype(np.int64)
