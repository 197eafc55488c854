"""Passages in words as the input of an encoder: pieces that know their words, and the tokenizer's own delimiters."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from attention.alignment import split_words
from attention.encoder import Encoder, EncoderError

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]

_PUNCTUATION = (".", ",")
"""The marks that Clark et al. (2019, §3.2) look at."""


@dataclass(frozen=True)
class WordPieces:
    """The pieces of some words, without delimiters.

    Attributes:
        ids: int64 `[pieces]`.
        ends: int64 `[words + 1]`, word i has the pieces `ends[i]:ends[i+1]`, one at least.
    """

    ids: Ids
    ends: Ids

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def words(self) -> int:
        """How many words they are of."""
        return len(self.ends) - 1

    def between(self, first: int, last: int) -> "WordPieces":
        """Those of the words from `first` up to, and without, `last`, counted from 0."""
        ends = self.ends[first : last + 1]
        return WordPieces(self.ids[ends[0] : ends[-1]], ends - ends[0])

    def shortened(self, room: int) -> tuple["WordPieces", int]:
        """With each word of more than `room` pieces cut to the first half as many, and how many words were cut."""
        sizes = np.diff(self.ends)
        if not (long := sizes > room).any():
            return self, 0
        kept = np.where(long, max(room // 2, 1), sizes)
        places = np.arange(len(self.ids)) - np.repeat(self.ends[:-1], sizes)
        return WordPieces(self.ids[places < np.repeat(kept, sizes)], np.append(0, kept.cumsum())), int(long.sum())

    def stretches(self, room: int) -> list[tuple[int, int]]:
        """Cut into consecutive stretches of whole words, each of as many as fit in `room` pieces: (first, last)."""
        found, first = [], 0
        while first < self.words:
            last = int(np.searchsorted(self.ends, self.ends[first] + room, side="right")) - 1
            found.append((first, max(last, first + 1)))
            first = found[-1][1]
        return found


@dataclass(frozen=True)
class Segment:
    """One or two passages as an encoder reads them; every array is `[tokens]`, as in `SegmentBatch`.

    Attributes:
        ids: int64, of the tokenizer.
        segments: int64, 0 in the first passage and its delimiters, 1 in the second and its last one.
        start: The delimiter before the first token.
        end: The delimiters behind each passage.
        punctuation: Tokens that are `.` or `,`.
        words: int64, 0-based word of each token; -1 for delimiters.
        unknown: How many words have the unknown token among their pieces.
    """

    ids: Ids
    segments: Ids
    start: Mask
    end: Mask
    punctuation: Mask
    words: Ids
    unknown: int

    def __len__(self) -> int:
        return len(self.ids)


class Segmenter:
    """Cuts words into pieces, and puts the tokenizer's delimiters around passages.

    What a tokenizer writes before, between and behind texts does not depend on them, so it is read off once.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._name = encoder.source.spec.name
        self._tokenizer: PreTrainedTokenizerFast = encoder.tokenizer
        self._single = self._delimiters(1)
        self._double = self._delimiters(2)

    def _delimiters(self, passages: int) -> list[Ids]:
        """What is written before the first passage, and behind each."""
        encoded = self._tokenizer(*[["a"]] * passages, is_split_into_words=True, verbose=False)
        ids = np.array(encoded["input_ids"], np.int64)
        owners = np.array([-1 if passage is None else passage for passage in encoded.sequence_ids()])
        places = [np.flatnonzero(owners == passage) for passage in range(passages)]
        starts = [int(found[0]) for found in places] + [len(ids)]
        stops = [int(found[-1]) + 1 for found in places]
        return [ids[: starts[0]], *(ids[stop:start] for stop, start in zip(stops, starts[1:], strict=True))]

    def delimiters(self, passages: int) -> int:
        """How many delimiters there are in a segment of one or two passages.

        Raises:
            EncoderError: two, and the tokenizer writes nothing behind a passage.
        """
        if passages == 2 and not all(map(len, (self._single[-1], *self._double[1:]))):
            raise EncoderError(
                f"{self._name}: its tokenizer writes no delimiter behind a text, so two cannot be told apart. Give "
                f"each text alone (`packing: single`), or an encoder with such a delimiter, for instance a BERT."
            )
        return sum(map(len, self._single if passages == 1 else self._double))

    @cached_property
    def _marks(self) -> Ids:
        """The ids whose text is one of the marks, with or without a blank before it."""
        pieces = self._tokenizer.get_vocab().items()
        possible = sorted(number for piece, number in pieces if any(mark in piece for mark in _PUNCTUATION))
        texts = [str(self._tokenizer.decode([number])).strip() for number in possible]
        return np.array(
            [number for number, text in zip(possible, texts, strict=True) if text in _PUNCTUATION], np.int64
        )

    def split(self, passages: Sequence[Sequence[str]]) -> list[WordPieces]:
        """Cut the words of each passage into pieces; a word that yields none becomes the unknown token.

        Raises:
            AlignmentError: a word without any piece, and a tokenizer without an unknown token.
        """
        found = []
        for pieces in split_words(self._tokenizer, passages):
            inside = pieces.inside
            sizes = np.bincount(pieces.positions[inside] - 1, minlength=pieces.words)
            found.append(WordPieces(pieces.ids[inside].astype(np.int64), np.append(0, sizes.cumsum())))
        return found

    def write(self, passages: Sequence[WordPieces]) -> Segment:
        """The segment of one or two passages; raises as `delimiters`."""
        self.delimiters(len(passages))
        around = self._single if len(passages) == 1 else self._double
        parts, words, segments, before = [around[0]], [np.full(len(around[0]), -1)], [0] * len(around[0]), 0
        for number, (pieces, behind) in enumerate(zip(passages, around[1:], strict=True)):
            parts += [pieces.ids, behind]
            words += [np.repeat(np.arange(pieces.words), np.diff(pieces.ends)) + before, np.full(len(behind), -1)]
            segments += [number] * (len(pieces) + len(behind))
            before += pieces.words
        ids, word = np.concatenate(parts), np.concatenate(words)
        start = np.arange(len(ids)) < len(around[0])
        unknown = np.unique(word[(word >= 0) & (ids == self._tokenizer.unk_token_id)])
        return Segment(
            ids=ids,
            segments=np.array(segments, np.int64),
            start=start,
            end=(word < 0) & ~start,
            punctuation=(word >= 0) & np.isin(ids, self._marks),
            words=word,
            unknown=len(unknown),
        )
