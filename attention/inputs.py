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

from attention_probing.attention.alignment import delimiters, passages_of, readable, split_words
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
        vocabulary = self._tokenizer.convert_ids_to_tokens(list(range(len(self._tokenizer))))
        self.pieces = tuple(piece or "" for piece in vocabulary)
        self.max_length = longest_input(architecture(source), self._tokenizer)
        self.pad = self._find_pad()
        self.unknown: int | None = self._tokenizer.unk_token_id
        self.mask: int | None = self._tokenizer.mask_token_id
        before, behind = delimiters(self._tokenizer, 1)
        _, between, _ = delimiters(self._tokenizer, 2)
        self.start = int(before[0]) if len(before) else None
        self.end = int(behind[-1]) if len(behind) else None
        self.separator = int(between[0]) if len(between) else None

    def _find_pad(self) -> int:
        """Return the id of the padding token, else of the end-of-text token, else 0."""
        for token in (self._tokenizer.pad_token_id, self._tokenizer.eos_token_id):
            if token is not None:
                return int(token)
        return 0

    @cached_property
    def rules(self) -> str:
        """Digest of the steps that cut a text into pieces and write delimiters, with the ids of the pieces."""
        steps = json.loads(self._tokenizer.backend_tokenizer.to_str())
        # Neither is used here, and they are kept with the steps of the last call.
        steps["padding"] = None
        steps["truncation"] = None
        return digest(json.dumps(steps, sort_keys=True).encode())

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
        split: list[TextPieces] = []
        for text, pair, pieces in zip(texts, pairs, self._encode_all(texts, pairs), strict=True):
            if (pieces.sources < 0).all():
                split.append(self._encode_blank(text, pair is not None))
            else:
                split.append(pieces)
        return split

    def _encode_all(self, texts: Sequence[str], pairs: Sequence[str | None]) -> Iterator[TextPieces]:
        """Yield the pieces of texts, some at a time; a call of the tokenizer has only single texts, or only pairs."""
        for is_paired, group in groupby(zip(texts, pairs, strict=True), key=_is_paired):
            while chunk := list(islice(group, _CHUNK)):
                firsts = [text for text, _ in chunk]
                seconds = None
                if is_paired:
                    seconds = [str(pair) for _, pair in chunk]
                yield from self._encode(firsts, seconds)

    def _encode_blank(self, text: str, is_paired: bool) -> TextPieces:
        """Return the unknown token in place of a text without pieces; raise EncoderError if there is none."""
        if self._tokenizer.unk_token is None:
            raise EncoderError(
                f"{self.name}: the tokenizer gives no piece for the text {text!r}, and it has no unknown "
                "token. Remove the text from the corpus."
            )
        pairs = [""] if is_paired else None
        [unknown] = self._encode([self._tokenizer.unk_token], pairs)
        return replace(unknown, blank=True)

    def _encode(self, texts: list[str], pairs: list[str] | None) -> Iterator[TextPieces]:
        encoded = self._tokenizer(texts, pairs, padding=False, truncation=False, verbose=False)
        for encoding in encoded.encodings or ():
            starts = [start for start, _ in encoding.offsets]
            yield TextPieces(
                np.array(encoding.ids, np.int64),
                passages_of(encoding.sequence_ids),
                np.array(starts, np.int64),
            )


def _is_paired(text_and_pair: tuple[str, str | None]) -> bool:
    return text_and_pair[1] is not None


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
        is_long = sizes > room
        if not is_long.any():
            return self, 0
        new_sizes = np.where(is_long, max(room // 2, 1), sizes)
        places = np.arange(len(self.ids)) - np.repeat(self.ends[:-1], sizes)  # of each piece in its word
        ids = self.ids[places < np.repeat(new_sizes, sizes)]
        return WordPieces(ids, np.append(0, new_sizes.cumsum())), int(is_long.sum())

    def stretches(self, room: int) -> list[tuple[int, int]]:
        """Divide the words into consecutive groups, each with as many whole words as fit in `room` pieces.

        A word longer than `room` pieces is a group of its own.

        Returns:
            (First word, last word + 1) of each group, 0-based.
        """
        groups = []
        first = 0
        while first < self.words:
            end = int(np.searchsorted(self.ends, self.ends[first] + room, side="right")) - 1
            end = max(end, first + 1)
            groups.append((first, end))
            first = end
        return groups


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
        self._single = delimiters(encoder.tokenizer, 1)
        self._double = delimiters(encoder.tokenizer, 2)

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
        parts = self._single if passages == 1 else self._double
        return sum(map(len, parts))

    @cached_property
    def _marks(self) -> Ids:
        """Ids of the punctuation marks, with or without a blank before them."""
        marks = []
        for piece, number in self._tokenizer.get_vocab().items():
            if not any(mark in piece for mark in _PUNCTUATION):
                continue  # decoding takes longer
            if str(self._tokenizer.decode([number])).strip() in _PUNCTUATION:
                marks.append(number)
        return np.array(sorted(marks), np.int64)

    def split(self, passages: Sequence[Sequence[str]]) -> list[WordPieces]:
        """Cut the words of each passage into pieces; a word without pieces becomes the unknown token.

        Raises:
            AlignmentError: A word has no pieces, and the tokenizer has no unknown token.
        """
        split = []
        for pieces in split_words(self._tokenizer, passages):
            inside = pieces.inside
            ids = pieces.ids[inside].astype(np.int64)
            sizes = np.bincount(pieces.positions[inside] - 1, minlength=pieces.words)
            split.append(WordPieces(ids, np.append(0, sizes.cumsum()), pieces.apart))
        return split

    def write(self, passages: Sequence[WordPieces]) -> Segment:
        """Return the segment of one or two passages: their pieces with delimiters.

        Raises:
            EncoderError: There are two passages, and the tokenizer writes no delimiter after a passage.
        """
        self.delimiters(len(passages))
        before, *ends = self._single if len(passages) == 1 else self._double
        id_parts = [before]
        word_parts = [np.full(len(before), -1)]
        segments = [0] * len(before)
        words_before = 0
        for number, (pieces, behind) in enumerate(zip(passages, ends, strict=True)):
            word_of_piece = np.repeat(np.arange(pieces.words), np.diff(pieces.ends))
            id_parts += [pieces.ids, behind]
            word_parts += [word_of_piece + words_before, np.full(len(behind), -1)]
            segments += [number] * (len(pieces) + len(behind))
            words_before += pieces.words
        ids = np.concatenate(id_parts)
        words = np.concatenate(word_parts)
        in_word = words >= 0
        start = np.arange(len(ids)) < len(before)
        unknown = np.unique(words[in_word & (ids == self._tokenizer.unk_token_id)])
        return Segment(
            ids=ids,
            segments=np.array(segments, np.int64),
            start=start,
            end=~in_word & ~start,
            punctuation=in_word & np.isin(ids, self._marks),
            words=words,
            unknown=len(unknown),
        )
