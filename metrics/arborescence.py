"""Maximum spanning arborescences: the best tree among scored arcs from heads to words, ROOT above it."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metrics.attachment import Floats, Integers


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
