"""Inputs of an encoder from texts and words, with the delimiters of its tokenizer.

`TextTokenizer` cuts raw texts into pieces, without the model, for classifiers. `Segmenter` cuts passages of words into
pieces aligned with the words, for an encoder whose attention is read.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, islice

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from attention_probing.attention.alignment import delimiters, readable, split_words
from attention_probing.attention.encoder import LoadedEncoder
from attention_probing.attention.loading import architecture, load_tokenizer, longest_input
from attention_probing.attention.source import EncoderError, EncoderSource
from attention_probing.results.digests import digest

PIECES_VERSION = 1  # raise it when the pieces of a text change

_CHUNK = 1024
_PUNCTUATION = (".", ",")
"""The punctuation marks of Clark et al. (2019, §3.2)."""

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class TextPieces:
    """Pieces of one text, or of a pair of texts, delimiters included.

    Attributes:
        ids: Ids of the pieces, int64 `[pieces]`.
        sources: Text of each piece, int64 `[pieces]`: 0 in the text, 1 in its pair, -1 for delimiters.
        starts: 0-based index of the first character of each piece in its text, int64 `[pieces]`; 0 for
            delimiters.
        blank: True if neither the text nor its pair had any pieces, and the text became the unknown
            token.
    """

    ids: NDArray[np.int64]
    sources: NDArray[np.int64]
    starts: NDArray[np.int64]
    blank: bool = False


class TextTokenizer:
    """Tokenizer of an encoder, which writes the delimiters that the encoder was trained with.

    Attributes:
        name: Name of the encoder.
        pieces: Vocabulary, by id; the empty string for an id without a piece.
        max_length: Largest number of pieces of one input, delimiters included.
        pad: Id of the padding token, else of the end-of-text token.
        unknown, mask: Ids of these tokens; None if the tokenizer has none.
        start, end: Ids of the first token before and the last token after a text; None if there is none.
        separator: Id of the first token between the texts of a pair; None if there is none.

    Raises:
        EncoderError: The tokenizer or the config cannot be read.
    """

    def __init__(self, source: EncoderSource) -> None:
        self.name = source.spec.name
        self._tokenizer = load_tokenizer(source)
        known = self._tokenizer.convert_ids_to_tokens(list(range(len(self._tokenizer))))
        self.pieces = tuple(piece or "" for piece in known)
        self.max_length = longest_input(architecture(source), self._tokenizer)
        fillers = (self._tokenizer.pad_token_id, self._tokenizer.eos_token_id, 0)
        self.pad = next(int(filler) for filler in fillers if filler is not None)
        self.unknown: int | None = self._tokenizer.unk_token_id
        self.mask: int | None = self._tokenizer.mask_token_id
        (before, behind), (_, between, _) = (delimiters(self._tokenizer, passages) for passages in (1, 2))
        self.start, self.end = int(before[0]) if len(before) else None, int(behind[-1]) if len(behind) else None
        self.separator = int(between[0]) if len(between) else None

    @cached_property
    def rules(self) -> str:
        """Digest of the steps that cut a text into pieces and write delimiters, with the ids of the pieces."""
        steps = json.loads(self._tokenizer.backend_tokenizer.to_str())
        # Neither is used here, and they are kept with the steps of the last call.
        return digest(json.dumps({**steps, "padding": None, "truncation": None}, sort_keys=True).encode())

    def readable(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each piece as it is read, see `attention.alignment.readable`."""
        return readable(self._tokenizer, ids)

    def split(self, texts: Sequence[str], pairs: Sequence[str | None]) -> list[TextPieces]:
        """Cut each text, with its pair if it has one, into pieces, without truncation.

        If neither a text nor its pair has any pieces, the text becomes the unknown token.

        Raises:
            EncoderError: Neither a text nor its pair has any pieces, and the tokenizer has no unknown
                token.
        """
        found: list[TextPieces] = []
        both = zip(texts, pairs, strict=True)
        for paired, group in groupby(both, key=lambda each: each[1] is not None):
            while chunk := list(islice(group, _CHUNK)):
                found.extend(
                    self._encode([text for text, _ in chunk], [str(pair) for _, pair in chunk] if paired else None)
                )
        for place in [place for place, pieces in enumerate(found) if (pieces.sources < 0).all()]:
            if self._tokenizer.unk_token is None:
                raise EncoderError(
                    f"{self.name}: the tokenizer gives no piece for the text {texts[place]!r}, and it has no unknown "
                    "token. Remove the text from the corpus."
                )
            [unknown] = self._encode([self._tokenizer.unk_token], None if pairs[place] is None else [""])
            found[place] = replace(unknown, blank=True)
        return found

    def _encode(self, texts: list[str], pairs: list[str] | None) -> Iterator[TextPieces]:
        encoded = self._tokenizer(texts, pairs, padding=False, truncation=False, verbose=False)
        for one in encoded.encodings or ():
            sources = np.array([-1 if source is None else source for source in one.sequence_ids], np.int64)
            yield TextPieces(
                np.array(one.ids, np.int64), sources, np.array([start for start, _ in one.offsets], np.int64)
            )


@dataclass(frozen=True)
class WordPieces:
    """Pieces of consecutive words, without delimiters.

    Attributes:
        ids: Ids of the pieces, int64 `[pieces]`.
        ends: Boundaries of the words, int64 `[words + 1]`; word i has the pieces `ids[ends[i]:ends[i+1]]`, at least
            one.
        apart: Number of words whose pieces differ from those in running text, see `split_words`; it is counted for
            whole passages, and is 0 in the results of `between` and `shortened`.
    """

    ids: Ids
    ends: Ids
    apart: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def words(self) -> int:
        """Number of words that the pieces belong to."""
        return len(self.ends) - 1

    def between(self, first: int, last: int) -> "WordPieces":
        """Return the pieces of the words `first` to `last - 1`, counted from 0."""
        ends = self.ends[first : last + 1]
        return WordPieces(self.ids[ends[0] : ends[-1]], ends - ends[0])

    def shortened(self, room: int) -> tuple["WordPieces", int]:
        """Truncate every word of more than `room` pieces to its first `room // 2` pieces, at least one.

        Returns:
            The pieces of all words, truncated or not, and the number of truncated words.
        """
        sizes = np.diff(self.ends)
        if not (long := sizes > room).any():
            return self, 0
        kept = np.where(long, max(room // 2, 1), sizes)
        places = np.arange(len(self.ids)) - np.repeat(self.ends[:-1], sizes)
        return WordPieces(self.ids[places < np.repeat(kept, sizes)], np.append(0, kept.cumsum())), int(long.sum())

    def stretches(self, room: int) -> list[tuple[int, int]]:
        """Divide the words into consecutive groups, each with as many whole words as fit in `room` pieces.

        A word longer than `room` pieces is a group of its own.

        Returns:
            (First word, last word + 1) of each group, 0-based.
        """
        found, first = [], 0
        while first < self.words:
            last = int(np.searchsorted(self.ends, self.ends[first] + room, side="right")) - 1
            found.append((first, max(last, first + 1)))
            first = found[-1][1]
        return found


@dataclass(frozen=True)
class Segment:
    """One or two passages with their delimiters, as one input of an encoder; every array is `[tokens]`.

    Attributes:
        ids: Ids of the tokens, int64.
        segments: int64, 0 in the first passage and its delimiters, 1 in the second passage and its end delimiter.
        start: Bool, True for the delimiters before the first word.
        end: Bool, True for the delimiters after each passage.
        punctuation: Bool, True for the tokens `.` and `,`.
        words: 0-based index of each token's word, int64; -1 for delimiters.
        unknown: Number of words whose pieces include the unknown token.
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
    """Tokenizer of passages: cuts words into pieces, and adds the delimiters of the encoder around passages.

    The delimiters do not depend on the texts, so they are read only once, from a sample text.
    """

    def __init__(self, encoder: LoadedEncoder) -> None:
        self._name = encoder.source.spec.name
        self._tokenizer: PreTrainedTokenizerFast = encoder.tokenizer
        self._single, self._double = (delimiters(encoder.tokenizer, passages) for passages in (1, 2))

    def delimiters(self, passages: int) -> int:
        """Return the number of delimiter tokens that the tokenizer adds to a segment of one or two passages.

        Raises:
            EncoderError: There are two passages, and the tokenizer writes no delimiter after a passage.
        """
        if passages == 2 and not all(map(len, (self._single[-1], *self._double[1:]))):
            raise EncoderError(
                f"{self._name}: a pair of texts needs a delimiter between them, but this tokenizer adds none after a "
                "text. Give each text alone (without `packing: pairs`, and without `pair` in `columns`), or an encoder "
                "with such a delimiter, for instance a BERT."
            )
        return sum(map(len, self._single if passages == 1 else self._double))

    @cached_property
    def _marks(self) -> Ids:
        """Ids of the punctuation marks, with or without a blank before them."""
        possible = [number for piece, number in self._tokenizer.get_vocab().items() if {*_PUNCTUATION} & {*piece}]
        found = [number for number in possible if str(self._tokenizer.decode([number])).strip() in _PUNCTUATION]
        return np.array(sorted(found), np.int64)

    def split(self, passages: Sequence[Sequence[str]]) -> list[WordPieces]:
        """Cut the words of each passage into pieces; a word without pieces becomes the unknown token.

        Raises:
            AlignmentError: A word has no pieces, and the tokenizer has no unknown token.
        """
        found = []
        for pieces in split_words(self._tokenizer, passages):
            inside = pieces.inside
            sizes = np.bincount(pieces.positions[inside] - 1, minlength=pieces.words)
            found.append(WordPieces(pieces.ids[inside].astype(np.int64), np.append(0, sizes.cumsum()), pieces.apart))
        return found

    def write(self, passages: Sequence[WordPieces]) -> Segment:
        """Return the segment of one or two passages: their pieces with delimiters.

        Raises:
            EncoderError: There are two passages, and the tokenizer writes no delimiter after a passage.
        """
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
