"""A pretrained tokenizer without its model: raw texts to pieces, for text classification."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice

import numpy as np
from numpy.typing import NDArray

from attention.encoder import EncoderError, Source, architecture, load_tokenizer, longest_input

PIECES_VERSION = 1  # raise it when a text would come out in other pieces

_CHUNK = 1024


@dataclass(frozen=True)
class TextPieces:
    """The pieces of one text, or of a pair of texts, delimiters included.

    Attributes:
        ids: int64 `[pieces]`.
        sources: int64 `[pieces]`, 0 in the text, 1 in its pair, -1 for delimiters.
        ends: int64 `[pieces]`, 0-based place in its text of the last character of a piece; 0 for delimiters.
        blank: whether the text yielded no piece and became the unknown token.
    """

    ids: NDArray[np.int64]
    sources: NDArray[np.int64]
    ends: NDArray[np.int64]
    blank: bool = False


class TextTokenizer:
    """The tokenizer of an encoder, which writes the delimiters that the encoder was trained with.

    Attributes:
        pieces: the vocabulary by id; the empty string for an id without a piece.
        max_length: most pieces of one input, delimiters included.
        pad: id of the padding token, or of the end-of-text token where there is none.
        unknown, mask: ids of these tokens; None without.
        start, end: ids of the tokens that it writes before and after a text; None without.
        separator: id of the first token that it writes between the texts of a pair; None without.

    Raises:
        EncoderError: the tokenizer or the config cannot be read.
    """

    def __init__(self, source: Source) -> None:
        self._name = source.spec.name
        self._tokenizer = load_tokenizer(source)
        self.pieces = tuple(
            piece or "" for piece in self._tokenizer.convert_ids_to_tokens(list(range(len(self._tokenizer))))
        )
        self.max_length = longest_input(architecture(source), self._tokenizer)
        fillers = (self._tokenizer.pad_token_id, self._tokenizer.eos_token_id, 0)
        self.pad = next(int(filler) for filler in fillers if filler is not None)
        self.unknown: int | None = self._tokenizer.unk_token_id
        self.mask: int | None = self._tokenizer.mask_token_id
        single, pair = self.split(["a", "a"], [None, "a"])
        outside = single.sources < 0
        self.start = int(single.ids[0]) if outside[0] else None
        self.end = int(single.ids[-1]) if outside[-1] else None
        behind = int(np.flatnonzero(pair.sources == 0)[-1]) + 1
        self.separator = int(pair.ids[behind]) if pair.sources[behind] < 0 else None

    def split(self, texts: Sequence[str], pairs: Sequence[str | None]) -> list[TextPieces]:
        """Cut each text, with its pair where there is one, into pieces; no truncation.

        A text that yields no piece at all becomes the unknown one.

        Raises:
            EncoderError: a text without any piece, and a tokenizer without an unknown piece.
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
                    f"{self._name}: the text {texts[place]!r} yields no piece, and its tokenizer has no unknown piece "
                    f"to stand for it. Remove the text from the corpus."
                )
            [unknown] = self._encode([self._tokenizer.unk_token], None if pairs[place] is None else [""])
            found[place] = replace(unknown, blank=True)
        return found

    def _encode(self, texts: list[str], pairs: list[str] | None) -> Iterator[TextPieces]:
        encoded = self._tokenizer(texts, pairs, padding=False, truncation=False, verbose=False)
        for one in encoded.encodings or ():
            sources = np.array([-1 if source is None else source for source in one.sequence_ids], np.int64)
            spans = np.array(one.offsets, np.int64).reshape(-1, 2)
            yield TextPieces(np.array(one.ids, np.int64), sources, np.maximum(spans[:, 1] - 1, spans[:, 0]))
