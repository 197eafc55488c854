"""Attachment: which words got their head right, as formulas on columns of arcs.

A split's arcs are held as columns, one row per word, so that a formula over 200,000 words is a handful of array
operations and the same predictions can be scored in several ways after the test epoch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

OFFSETS = (-3, -2, -1, 1, 2, 3)
"""The offsets of the fixed-offset baseline (Clark et al. 2019, §4.2)."""


@dataclass(frozen=True, eq=False)
class Arcs:
    """The gold arcs of whole sentences, one row per word, sorted by (sentence, word).

    Attributes:
        sentence: `[words]` index of the sentence in its split; any subset of a split.
        word: `[words]` 1-based position in the sentence.
        length: `[words]` number of words of the sentence.
        head: `[words]` position of the gold head, 0 for ROOT.
        relation: `[words]` index into a tuple of labels kept elsewhere.
        punctuation: `[words]` whether the word is punctuation.

    Raises:
        ValueError: A column differs in shape, a sentence is not exactly the words 1 to length in order, or a head lies
            outside its sentence.
    """

    sentence: Integers
    word: Integers
    length: Integers
    head: Integers
    relation: Integers
    punctuation: Flags

    def __post_init__(self) -> None:
        """Refuse columns on which the formulas would be wrong: they find a head's row from its distance."""
        for name in ("word", "length", "head", "relation", "punctuation"):
            _check_column(self, getattr(self, name), name)
        new = np.diff(self.sentence, prepend=-1) != 0
        starts = np.flatnonzero(new)
        sizes = np.diff(starts, append=len(self))
        if (np.diff(self.sentence) < 0).any():
            raise ValueError("the rows of arcs are not sorted by sentence")
        rank = np.arange(len(self)) - np.repeat(starts, sizes) + 1
        broken = (self.word != rank) | (self.length != np.repeat(sizes, sizes))
        if broken.any():
            at = int(np.argmax(broken))
            raise ValueError(
                f"sentence {self.sentence[at]} is not the words 1 to {self.length[at]} in order: "
                f"its row {rank[at]} is word {self.word[at]}, and it has {np.repeat(sizes, sizes)[at]} rows"
            )
        wrong = (self.head < 0) | (self.head > self.length)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise ValueError(
                f"word {self.word[at]} of sentence {self.sentence[at]} ({self.length[at]} words) has the impossible "
                f"gold head {self.head[at]}"
            )

    def __len__(self) -> int:
        """Count the words."""
        return int(self.sentence.size)


def attached(arcs: Arcs, predicted: Integers) -> Floats:
    """Mark the words with the right head, `[words]`: 1.0 where the predicted head is the gold head, else 0.0.

    The mean over words that are not punctuation is the UAS.
    """
    _check_column(arcs, predicted, "predicted")
    return np.where(predicted == arcs.head, 1.0, 0.0)


def edges_found(arcs: Arcs, predicted: Integers) -> Floats:
    """Mark the undirected gold edges that the predictions draw, `[words]`: one edge per word whose gold head is a word.

    The edge {word, gold head} is found (1.0) when either end names the other as its head. A prediction of ROOT, of the
    word itself or of a place outside the sentence draws no edge. Words under ROOT have no edge: nan. Punctuation words
    have nan too, and the edges they draw do not count: so the mean of what is not nan is the UUAS, without punctuation
    as in Hewitt & Manning 2019, §4.
    """
    _check_column(arcs, predicted, "predicted")
    scored, head_row = _edges(arcs)
    drawn_by_word = predicted == arcs.head
    drawn_by_head = (predicted[head_row] == arcs.word) & ~arcs.punctuation[head_row]
    return np.where(scored, np.where(drawn_by_word | drawn_by_head, 1.0, 0.0), np.nan)


def uniform_attached(arcs: Arcs) -> Floats:
    """Expect `attached`, `[words]`, of a head drawn uniformly from ROOT and the other words: 1/n in a sentence of n."""
    return 1.0 / arcs.length.astype(np.float64)


def uniform_edges_found(arcs: Arcs) -> Floats:
    """Expect `edges_found`, `[words]`, of heads drawn uniformly and independently from ROOT and the other words.

    Each end of an edge that is not punctuation proposes the other with chance 1/n: an edge between two such words is
    found with chance 1 − (1 − 1/n)².
    """
    scored, head_row = _edges(arcs)
    drawers = np.where(arcs.punctuation[head_row], 1, 2)
    return np.where(scored, 1.0 - (1.0 - 1.0 / arcs.length) ** drawers, np.nan)


def offset_heads(arcs: Arcs, k: int) -> Integers:
    """Take the word at offset `k` as head, `[words]`: positive `k` looks ahead.

    A target outside the sentence becomes −1, which is always wrong. Clark et al.'s released code clips it into [0, n]
    instead, so that a first word may hit ROOT: on UD English EWT that turns 6.6 into 9.2 at k = −1.
    """
    target = arcs.word + k
    return np.where((target >= 1) & (target <= arcs.length), target, -1)


def right_branching(arcs: Arcs) -> Integers:
    """Take the NEXT word as head, `[words]`; the last word's head is ROOT.

    The name is used as in Clark et al. 2019, §5. Work on parsing uses the two names the other way round: there a
    right-branching tree hangs each word from the word before it.
    """
    return np.where(arcs.word < arcs.length, arcs.word + 1, 0)


def left_branching(arcs: Arcs) -> Integers:
    """Take the PREVIOUS word as head, `[words]`; the first word's head is ROOT.

    Named as the mirror of `right_branching` in Clark et al. 2019, §5; work on parsing uses the two names the other way
    round.
    """
    return arcs.word - 1


def best_offsets(arcs: Arcs, relations: int) -> tuple[int, Integers]:
    """Choose the fixed offset that finds most heads: over all words without punctuation, and for each relation.

    Ties go to the smaller |k|, then to the positive. A relation's own choice counts all of its words; a relation
    without a word gets the overall best. Choose on one split and score on another: on the same split the choice is
    made with the answers in hand.

    Returns:
        The overall offset, and `[relations]` the offset of each relation.
    """
    ordered = np.array(sorted(OFFSETS, key=lambda k: (abs(k), -k)), dtype=np.int64)
    hits = np.stack([attached(arcs, offset_heads(arcs, int(k))) for k in ordered])
    # argmax takes the first of equals, and the offsets stand in the order of preference.
    overall = ordered[np.argmax(hits[:, ~arcs.punctuation].sum(axis=1))]
    per_relation = np.stack([np.bincount(arcs.relation, weights=hit, minlength=relations) for hit in hits])
    occurs = np.bincount(arcs.relation, minlength=relations) > 0
    return int(overall), np.where(occurs, ordered[np.argmax(per_relation, axis=0)], overall)


def _edges(arcs: Arcs) -> tuple[Flags, Integers]:
    """Find the words with an edge that counts, and the row of each word's head (its own under ROOT); both `[words]`.

    A word that is its own head, as in control tasks, has no edge.
    """
    rows = np.arange(len(arcs))
    inside = (arcs.head > 0) & (arcs.head != arcs.word)
    return inside & ~arcs.punctuation, np.where(inside, rows + arcs.head - arcs.word, rows)


def _check_column(arcs: Arcs, column: NDArray[Any], name: str) -> None:
    if column.shape != arcs.sentence.shape or column.ndim != 1:
        raise ValueError(f"{name} has the shape {column.shape}, where the arcs have {arcs.sentence.shape}")
