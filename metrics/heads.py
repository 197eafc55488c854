"""Syntactic heads predicted by single attention heads, and their significance, for all attention heads at once.

Clark et al. (2019, §4.2) let an attention head predict one word per word, in two directions: the word it attends to
most (`dependent→head`), or the word that attends to it most (`head→dependent`, the transpose). A *predictor* is an
attention head with a direction; L layers of H heads make K = 2LH predictors, in the order direction, layer, head.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention_probing.metrics.attachment import (
    OFFSETS,
    Arcs,
    attached,
    count_found,
    edges_found,
    groups_of,
    offset_heads,
)
from attention_probing.results import Flags, Floats, Integers
from attention_probing.results.progress import Progress

Direction = Literal["dependent→head", "head→dependent"]
DIRECTIONS: tuple[Direction, Direction] = ("dependent→head", "head→dependent")
ARC_LENGTHS: Mapping[str, tuple[int, float]] = {"1": (1, 1), "2": (2, 2), "3–5": (3, 5), "6+": (6, np.inf)}
"""Classes of arcs by the distance between their ends, in words."""

OFFSETS_BY_DISTANCE = sorted(OFFSETS, key=lambda k: (abs(k), -k))
"""The fixed offsets, nearest first, ahead before behind."""

_NOWHERE = np.int16(32767)
_ROOM = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 28, 36, 46)
"""Lower bounds of classes of the number of words before (or after) a word: exact at first, then coarser."""


def most_attended(attention: Tensor, lengths: Tensor) -> Tensor:
    """Return, for each word, the other word that it attends to most, and the other word that attends to it most.

    Args:
        attention: `[batch, layers, heads, n+2, n+2]`, axes from and to, with delimiters before and after the n words,
            zero in the padding.
        lengths: Number of words of each sentence, `[batch]`.

    Returns:
        Positions of the chosen words, int64 `[batch, n, 2, layers, heads]`; see `MostAttended`.
    """
    most = MostAttended(lengths)
    most.add(attention)
    return most.positions.long()


class MostAttended:
    """The most attended words of every word, found from blocks of rows of the attention of any length.

    Args:
        lengths: Number of words of each sentence, `[batch]`.
    """

    def __init__(self, lengths: Tensor) -> None:
        self._lengths = lengths
        self._positions = self._peaks = self._strongest = lengths.new_empty(0)

    def add(self, rows: Tensor, first: int = 0) -> None:
        """Add rows, in the order of the words; each word must come in one of the blocks.

        Args:
            rows: Attention weights `[batch, layers, heads, from, n+2]`; positions are the start delimiter, the words
                and the end delimiter. Rows of delimiters are not read.
            first: Position of the first row.
        """
        if self._positions.dim() == 1:
            # All at once: small tensors kept from each block would split the memory between the blocks.
            shape = *rows.shape[:3], rows.size(-1) - 2
            self._positions = self._lengths.new_full((*shape, 2), -1, dtype=torch.int32)
            self._peaks = rows.new_zeros(shape)
            self._strongest = rows.new_zeros(shape, dtype=torch.int32 if rows.dtype == torch.float32 else rows.dtype)
        words, start = self._between_words(rows, first)
        if not words.numel():  # delimiters alone, or no sentence on this device
            return
        place_of_rows = slice(start, start + words.size(-2))
        self._peaks[..., place_of_rows] = words.amax(-1)
        if words.dtype == torch.float32:
            # Non-negative floats have the same order as their bits, and integers are compared faster.
            words = words.view(torch.int32)
        words.diagonal(start, dim1=-2, dim2=-1).fill_(-1)
        # A transposed copy is faster than a maximum over columns, and `argmax` faster than `max`.
        place, most = _greatest(words)
        source, strongest = _greatest(words.mT.contiguous())
        self._positions[..., place_of_rows, 0] = (place + 1).masked_fill_(most <= 0, -1)
        before = self._positions[..., 1]
        before.copy_(torch.where(strongest > self._strongest, source + start + 1, before))
        torch.maximum(self._strongest, strongest, out=self._strongest)

    def _between_words(self, rows: Tensor, first: int) -> tuple[Tensor, int]:
        """Return a copy of the weights between words, zeros in the padding, and the 0-based word of the first row."""
        count = rows.size(-1) - 2
        low = max(first, 1)
        high = min(first + rows.size(-2), count + 1)
        words = rows[..., low - first : high - first, 1:-1].clone(memory_format=torch.contiguous_format)
        if words.numel():
            self._blank_ends(words, low - 1)
        return words, low - 1

    def _blank_ends(self, words: Tensor, start: int) -> None:
        """Set the weights to and from the end delimiter of a shorter sentence, which is before the padding, to zero.

        Rows and columns of other sentences get their own values: to select sentences, a GPU would wait.
        """
        sentences = torch.arange(len(words), device=words.device)
        is_short = self._lengths < words.size(-1)
        columns = self._lengths.clamp(max=words.size(-1) - 1)
        to_ends = words[sentences, :, :, :, columns]
        words[sentences, :, :, :, columns] = to_ends.masked_fill(is_short[:, None, None, None], 0)
        rows = self._lengths - start
        is_inside = is_short & (rows >= 0) & (rows < words.size(-2))
        rows = rows.clamp(0, words.size(-2) - 1)
        of_ends = words[sentences, :, :, rows]
        words[sentences, :, :, rows] = of_ends.masked_fill(is_inside[:, None, None, None], 0)

    @property
    def positions(self) -> Tensor:
        """Return for each word the other word that it attends to most, and the other word that attends to it most.

        They are positions from 1, int32 `[batch, n, 2, layers, heads]`. On a tie it is the first word, and -1 if all
        other words have weight zero, for instance because of a causal mask. Delimiters and the word itself are never
        chosen. Values in the padding are arbitrary.
        """
        return self._positions.permute(0, 3, 4, 1, 2)

    @property
    def peaks(self) -> Tensor:
        """Return the largest weight between words in each row, including the weight of the word on itself.

        It is `[batch, layers, heads, n]`, zeros in the padding.
        """
        return self._peaks


def _greatest(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index of the greatest number in the last dimension, on a tie the first, and the number."""
    place = weights.argmax(-1, keepdim=True)
    return place.squeeze(-1), weights.gather(-1, place).squeeze(-1)


def delimiter_shares(attention: Tensor, lengths: Tensor) -> Tensor:
    """Return the attention of each word to the delimiters together, `[batch, n, layers, heads]`.

    Args:
        attention: `[batch, layers, heads, n+2, n+2]`, axes from and to, as in `most_attended`.
        lengths: Number of words of each sentence, `[batch]`.
    """
    ends = (lengths.long() + 1)[:, None, None, None, None].expand(*attention.shape[:4], 1)
    shares = attention[..., 0] + attention.gather(-1, ends)[..., 0]
    return shares[..., 1:-1].permute(0, 3, 1, 2)


def confidence(peaks: Floats, words: Integers | Floats) -> Floats:
    """Return the confidence of every attention head: the mean over words of the largest weight in a word's row.

    It is defined as in Voita et al. (2019, §4), except that all delimiters are left out, as rows and as
    columns; Voita et al. leave out only the end-of-sentence token.

    Args:
        peaks: Sum over the words of each sentence of the largest weight in the word's row (`MostAttended.peaks`),
            `[sentences, layers, heads]`.
        words: Number of words of each sentence, `[sentences]`.

    Returns:
        The confidence, float64 `[layers, heads]`.
    """
    means: Floats = peaks.sum(axis=0) / words.sum()
    return means


def hit_counts(arcs: Arcs, predicted: NDArray[np.integer], groups: Mapping[str, Flags]) -> Integers:
    """Return how many syntactic heads each of K predictors finds in each group of words, int64 `[groups, K]`.

    A predictor is an attention head with a direction of attention.

    Args:
        arcs: Gold arcs.
        predicted: Position that each predictor chooses as the head of each word, `[words, K]`.
        groups: Bool `[words]` by name of the group, True for the words of the group.
    """
    hits = predicted == arcs.head[:, None]
    counts = [np.count_nonzero(hits[words], axis=0) for words in groups.values()]
    return np.stack(counts).astype(np.int64)


def offset_shares(arcs: Arcs, predicted: NDArray[np.integer]) -> tuple[Integers, Floats]:
    """Return each predictor's most frequent offset from a word to the word it chooses, and its share.

    A predictor is an attention head with a direction of attention. A positional head has a high share
    (Voita et al. 2019, §5.1). The share is over words that are not alone in their sentence; Voita et
    al. count all tokens, with delimiters and the word itself. A head that gives other words little
    weight may look positional by chance: compare its `confidence`.

    Args:
        arcs: Gold arcs; only positions and lengths are used.
        predicted: Position that each of K predictors chooses for each word, `[words, K]`.

    Returns:
        Offsets int64 `[K]`, positive to the right, and the shares of the words with these offsets,
        `[K]`. Both are 0 for a predictor that chooses no word.
    """
    lowest = -int(arcs.length.max(initial=0))
    offsets = np.zeros(predicted.shape[1], dtype=np.int64)
    words = np.zeros(predicted.shape[1])
    for k, column in enumerate(predicted.T):
        looks = column > 0
        if not looks.any():
            continue
        counts = np.bincount(column[looks] - arcs.word[looks] - lowest)
        offsets[k] = int(counts.argmax()) + lowest
        words[k] = int(counts.max())
    return offsets, words / max(int(np.count_nonzero(arcs.length > 1)), 1)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Gold arcs of one split, and the syntactic heads that each of K predictors predicts.

    A predictor is an attention head in one direction. Predictors are sorted by direction, then layer, then
    head.

    Attributes:
        arcs: Gold arcs.
        relations: Names of the relations.
        predicted: Predicted position of each word's syntactic head, `[words, K]`; below 0 where nothing is
            predicted.
    """

    arcs: Arcs
    relations: Sequence[str]
    predicted: NDArray[np.integer]

    @cached_property
    def groups(self) -> Mapping[str, Flags]:
        """Mask of the words of each group, bool `[words]` by name of the group.

        The groups are all words, all words without punctuation, and the words of each relation that occurs.
        """
        return groups_of(self.arcs, self.relations)

    @cached_property
    def punctuation(self) -> frozenset[str]:
        """Relations of which every word is punctuation."""
        names = set()
        for name, words in self.groups.items():
            if self.arcs.punctuation[words].all():
                names.add(name)
        return frozenset(names)

    @cached_property
    def counts(self) -> Mapping[str, Integers]:
        """Number of right predictions of each predictor, `[K]` by name of the group of words."""
        counts = hit_counts(self.arcs, self.predicted, self.groups)
        return dict(zip(self.groups, counts, strict=True))

    @cached_property
    def by_offset(self) -> "Predictions":
        """Predictions of the fixed offsets −3 to 3, without 0, on the same arcs; the nearest offset first."""
        predicted = [offset_heads(self.arcs, k) for k in OFFSETS_BY_DISTANCE]
        return Predictions(self.arcs, self.relations, np.stack(predicted, axis=1))

    @property
    def without_weight(self) -> int:
        """Number of missing predictions, over words and predictors, in sentences of at least two words.

        A prediction is missing if no other word of the sentence has any weight.
        """
        missing = np.count_nonzero(self.predicted < 0, axis=1)
        return int(missing[self.arcs.length > 1].sum())

    def hits(self, predictor: int) -> tuple[Floats, Floats]:
        """Return two arrays of the hits of one predictor, each float64 `[words]`.

        The first is 1.0 for a word whose gold head the predictor finds, else 0.0. The second is 1.0 if
        it finds the gold arc of the word in either direction, else 0.0; it is nan for words without an
        edge that counts. See `attached` and `edges_found` of `metrics.attachment`.

        Args:
            predictor: Index of the predictor, a column of `predicted`.
        """
        column = self.predicted[:, predictor].astype(np.int64)
        return attached(self.arcs, column), edges_found(self.arcs, column)

    def best(self, group: str) -> int:
        """Return the index of the predictor that finds most syntactic heads of a group of words, on a tie the first.

        Args:
            group: Name of a group that has words, a relation for instance.
        """
        return int(self.counts[group].argmax())

    def count_units(self, group: str) -> tuple[Floats, Floats]:
        """Return the hits of each predictor, and the number of words of a group, in each unit of intervals and tests.

        They are float64 `[units, K]` and `[units]`; see `metrics.stability`, which chooses predictors on resamples.

        Args:
            group: Name of a group that has words, a relation for instance.
        """
        words = self.groups[group]
        gold = self.arcs.head[words, None].astype(self.predicted.dtype)  # equal types are compared faster
        found = self.predicted[words] == gold
        return count_found(self.arcs, words, found)

    def accuracies(self, group: str) -> Floats:
        """Return the accuracy of each predictor on a group of words, `[K]`; nan for an empty group."""
        if group not in self.groups:
            return np.full(self.predicted.shape[1], np.nan)
        shares: Floats = self.counts[group] / np.count_nonzero(self.groups[group])
        return shares

    def accuracy(self, group: str, predictor: int) -> float:
        """Return the accuracy of one predictor on a group of words; nan for an empty group.

        Args:
            group: Name of the group, a relation for instance.
            predictor: Index of the predictor, a column of `predicted`.
        """
        return float(self.accuracies(group)[predictor])


class _Offsets:
    """Offsets from the words of a group to their gold heads, and to the choice of each predictor, as numbers."""

    def __init__(self, split: Predictions, words: Flags) -> None:
        arcs = split.arcs
        rows = np.flatnonzero(words)
        before = np.digitize(arcs.word[rows] - 1, _ROOM)
        after = np.digitize((arcs.length - arcs.word)[rows], _ROOM)
        room = before * (len(_ROOM) + 1) + after
        order = np.argsort(room, kind="stable")
        rows = rows[order]
        self._room = room[order]
        self._rows = rows
        self._word = arcs.word[rows]
        self._predicted = split.predicted
        # Different codes for ROOT and for no prediction: neither matches anything when shuffled.
        gold = np.where(arcs.head[rows] > 0, arcs.head[rows] - self._word, _NOWHERE)
        # Numbered from 0, the offsets of gold heads mostly fit in a byte.
        self._offsets, numbers = np.unique(gold, return_inverse=True)
        self._gold = numbers.astype(np.min_scalar_type(len(self._offsets)))

    @cached_property
    def _chosen(self) -> NDArray[Any]:
        """Numbers of the offsets that each predictor chooses, `[words, K]`; those that no gold head has share one."""
        numbers = np.full(1 << 16, len(self._offsets), self._gold.dtype)
        numbers[self._offsets] = np.arange(len(self._offsets))
        of_predictors: NDArray[Any] = np.empty((len(self._rows), self._predicted.shape[1]), numbers.dtype)
        for some in _slices(len(self._rows)):
            positions = self._predicted[self._rows[some]]
            offsets = np.where(positions > 0, positions - self._word[some, None], -_NOWHERE)
            of_predictors[some] = numbers[offsets]
        return of_predictors

    def can_change(self) -> bool:
        """Return True if two words of one class of room differ in their offset, so that a shuffle changes something."""
        order = np.lexsort((self._gold, self._room))
        other_offset = np.diff(self._gold[order]) != 0
        same_room = np.diff(self._room[order]) == 0
        return bool((other_offset & same_room).any())

    def shuffled_hits(self, rng: np.random.Generator, predictor: int | None = None) -> Integers:
        """Shuffle the gold offsets within classes of room; return how many each predictor finds, or one of them."""
        # Sorting by class plus a random number below one shuffles within classes.
        gold = self._gold[np.argsort(self._room + rng.random(len(self._gold)))]
        if predictor is not None:
            return np.array([np.count_nonzero(self._chosen[:, predictor] == gold)])
        counts = np.zeros(self._chosen.shape[1], np.int64)
        for some in _slices(len(gold)):
            hits = self._chosen[some] == gold[some, None]
            counts += hits.view(np.uint8).sum(axis=0, dtype=np.uint8)
        return counts


def _slices(words: int) -> Iterator[slice]:
    """Yield slices of at most 255 words, whose hits can be counted in a byte."""
    return (slice(first, first + 255) for first in range(0, words, 255))


def permutation_p(
    dev: Predictions, scored: Predictions, chosen: Sequence[int], *, permutations: int = 1000, seed: int = 0
) -> Floats:
    """Return a permutation p-value for the predictor that was chosen of K for each group of words, `[groups]`.

    A predictor is an attention head with a direction of attention. A small p-value means that the
    predictor is more accurate than two things explain: the positions of the words, and its choice as
    the best of K on dev.

    The offset of a gold head is its position minus the position of the word. A permutation shuffles the
    offsets among the words of a group that have about the same number of words before them, and about
    the same number after them. A shuffle among all words would put gold heads outside of sentences,
    where no predictor looks. A predictor with a fixed offset keeps its accuracy and is never
    significant; a predictor that follows the arcs loses accuracy. Each permutation chooses anew: it
    shuffles dev too, takes the predictor that finds most there, and counts what this one finds in the
    scored split. If dev itself is scored, this is the maximum over all predictors (max statistic of
    Westfall & Young 1993).

    The smallest p-value is 1 / (permutations + 1). A p-value is nan if no shuffle can change the
    offsets of the group.

    Args:
        dev: Predictions on dev, by which predictors are chosen.
        scored: Predictions on the scored split; the same object as `dev` if dev is scored.
        chosen: For each group of the scored split, the predictor whose p-value is wanted.
        permutations: Number of shuffles.
        seed: Seed of the shuffles.
    """
    rng = np.random.default_rng(seed)
    p_values = np.full(len(scored.groups), np.nan)
    # Nearly all time goes to the words on which all predictors are compared.
    sizes: dict[str, int] = {}
    for group, words in scored.groups.items():
        if _Offsets(scored, words).can_change():
            sizes[group] = int(np.count_nonzero(dev.groups.get(group, words)))
    progress = Progress("Permutation test of the heads, words", permutations * sum(sizes.values()))
    for place, (group, words) in enumerate(scored.groups.items()):
        if group not in sizes:
            continue
        predictor = chosen[place]
        hits = np.count_nonzero(scored.predicted[words, predictor] == scored.arcs.head[words])
        offsets = _Offsets(scored, words)
        dev_offsets = None
        if dev is scored:
            dev_offsets = offsets
        elif group in dev.groups:
            dev_offsets = _Offsets(dev, dev.groups[group])
        as_good = 0
        for _ in range(permutations):
            as_good += int(_hits_of_permutation(rng, offsets, dev_offsets, predictor) >= hits)
            progress.advance(sizes[group])
        p_values[place] = (1 + as_good) / (permutations + 1)
    return p_values


def _hits_of_permutation(rng: np.random.Generator, scored: _Offsets, dev: _Offsets | None, predictor: int) -> int:
    """Shuffle the gold heads; return the hits on the scored split of the predictor that dev then chooses.

    Args:
        rng: Generator of random numbers.
        scored: Offsets of the scored split.
        dev: Offsets of dev; the same object if dev is scored, None for a group that dev lacks.
        predictor: Predictor of a group that dev lacks.
    """
    if dev is scored:
        return int(scored.shuffled_hits(rng).max())
    if dev is not None:
        predictor = int(dev.shuffled_hits(rng).argmax())
    return int(scored.shuffled_hits(rng, predictor)[0])
