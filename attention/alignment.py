"""Alignment of pieces with words, overlapping parts of long sentences, and the reduction of weights to words.

Attention TO a word is the sum over its pieces, attention FROM a word the mean over its pieces (Clark et al. 2019,
§4.1), so that rows still sum to one. In a sentence of n words, position 0 is the start delimiter, positions 1…n are
the words and position n+1 is the end delimiter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import BatchEncoding, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from results.errors import UserError

ALIGNMENT_VERSION = 1
"""Part of every store's key: raise it when alignment or reduction changes."""

FromPieces = Literal["mean", "first"]


class AlignmentError(UserError):
    """Error for a sentence that cannot be aligned with its pieces, or is too long for the encoder."""


@dataclass(frozen=True)
class AlignedPieces:
    """Pieces of a sentence or of a part of it, delimiters included, each with the word that it belongs to.

    Attributes:
        ids: Ids of the pieces, int32 `[pieces]`.
        positions: Word of each piece, int32 `[pieces]`, non-decreasing: the words of this sentence or
            part are numbered from 1, the start delimiter is 0, and the end delimiter is `words + 1`.
        words: Number of words of this sentence or part.
        first: 0-based index of this part's first word in the sentence; 0 for a whole sentence.
        unknown: Number of words without pieces, which were replaced by the unknown token; 0 for a part.
        with_unknown: Number of words whose pieces include the unknown token; 0 for a part.
    """

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    words: int
    first: int = 0
    unknown: int = 0
    with_unknown: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Bool `[pieces]`, True for pieces of words, False for delimiters."""
        return (self.positions > 0) & (self.positions <= self.words)


def split_words(tokenizer: PreTrainedTokenizerFast, sentences: Sequence[Sequence[str]]) -> list[AlignedPieces]:
    """Cut the words of each sentence into pieces aligned with the words, without truncation.

    A word without pieces, for instance a lone zero-width joiner, becomes the tokenizer's unknown token;
    the attribute `unknown` of the result counts such words.

    Raises:
        AlignmentError: A word has no pieces, and there is no unknown token.
    """
    # Byte-level BPE marks the beginning of a word by the blank before it, which is_split_into_words omits.
    blank = " " if "ByteLevel(" in str(tokenizer.backend_tokenizer.pre_tokenizer) else ""
    words = [[blank + word for word in sentence] for sentence in sentences]
    encoded = _encode(tokenizer, words)
    missing = [sorted(set(range(len(s))) - set(encoded.word_ids(index))) for index, s in enumerate(words)]
    if any(missing):
        for sentence, original, absent in zip(words, sentences, missing, strict=True):
            for place in absent:
                if tokenizer.unk_token is None:
                    raise AlignmentError(
                        f"The tokenizer gives no piece for the word {original[place]!r} (word {place + 1} of the text "
                        f"that begins {' '.join(original[:6])!r}), and {type(tokenizer).__name__} has no unknown "
                        "token. Remove the word from the corpus."
                    )
                sentence[place] = str(tokenizer.unk_token)
        encoded = _encode(tokenizer, words)
    found = []
    for index, sentence in enumerate(words):
        ids = np.asarray(encoded["input_ids"][index], np.int32)
        positions = np.asarray(_positions(encoded.word_ids(index), len(sentence)), np.int32)
        pieces = AlignedPieces(ids, positions, len(sentence), unknown=len(missing[index]))
        with_unknown = len(np.unique(positions[pieces.inside & (ids == tokenizer.unk_token_id)]))
        found.append(replace(pieces, with_unknown=with_unknown))
    return found


def readable(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> list[str]:
    r"""Return the text of each piece as it is read, without blanks around it: `café` for `ĠcafÃ©` and for `▁café`.

    Bytes that are no whole character are written `\xf0`, line ends and the like as in Python; a blank alone is `␣`.
    Added tokens, such as delimiters, are written as they are named.

    Args:
        tokenizer: Tokenizer of the pieces.
        ids: Ids of the pieces.
    """
    decoder, added, names = tokenizer.backend_tokenizer.decoder, tokenizer.added_tokens_decoder, []
    bytes_of = {character: byte for byte, character in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]
    for number, piece in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        text = piece or f"<{number}>"
        if piece and decoder is not None and number not in added:
            text = decoder.decode([piece])
            if "\N{REPLACEMENT CHARACTER}" in text and bytes_of.keys() >= {*piece}:
                text = bytes(bytes_of[character] for character in piece).decode(errors="backslashreplace")
        shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text.strip(" "))
        names.append(shown or "␣")
    return names


def named_positions(
    tokenizer: PreTrainedTokenizerFast, parts: Sequence[AlignedPieces], words: Sequence[str]
) -> tuple[list[str], list[int]]:
    """Return the names and the numbers of the positions of a text: its words, and the delimiters that it has.

    Args:
        tokenizer: Tokenizer of the pieces.
        parts: Parts of the text.
        words: Its words.
    """
    first, last = parts[0], parts[-1]
    start, end = first.ids[first.positions == 0], last.ids[last.positions == last.words + 1]
    before, after = (" ".join(readable(tokenizer, ids.tolist())) for ids in (start, end))
    names = [*([before] if before else []), *words, *([after] if after else [])]
    low = 0 if before else 1
    return names, list(range(low, low + len(names)))


def _encode(tokenizer: PreTrainedTokenizerFast, words: list[list[str]]) -> BatchEncoding:
    encoded: BatchEncoding = tokenizer(
        words,
        is_split_into_words=True,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,  # no warning of sentences beyond the limit, which the caller handles
    )
    return encoded


def _positions(word_ids: Sequence[int | None], words: int) -> list[int]:
    """Return the position of every piece; pieces before the first and after the last word id are delimiters."""
    positions, current = [], 0
    last = max((place for place, word in enumerate(word_ids) if word is not None), default=-1)
    for place, word in enumerate(word_ids):
        # A piece without a word inside the sentence belongs to the word before it.
        current = current if word is None else word + 1
        positions.append(current if place <= last else words + 1)
    return positions


def join_sentences(sentences: Sequence[AlignedPieces]) -> AlignedPieces:
    """Join the pieces of several sentences into one input, without the delimiters between the sentences.

    The start delimiter of the first sentence and the end delimiter of the last are kept.
    """
    ids, positions, words = [], [], 0
    for place, sentence in enumerate(sentences):
        kept = sentence.inside
        if place == 0:
            kept |= sentence.positions == 0
        if place == len(sentences) - 1:
            kept |= sentence.positions == sentence.words + 1
        ids.append(sentence.ids[kept])
        positions.append(np.where(sentence.positions > 0, sentence.positions + words, 0)[kept])
        words += sentence.words
    counts = {name: sum(getattr(sentence, name) for sentence in sentences) for name in ("unknown", "with_unknown")}
    return AlignedPieces(np.concatenate(ids), np.concatenate(positions).astype(np.int32), words, **counts)


def overlapping(pieces: AlignedPieces, limit: int) -> list[AlignedPieces]:
    """Cut a long sentence into parts of whole words, at most `limit` pieces each, delimiters included.

    Each part begins about the middle of the part before it. A sentence within the limit is returned as
    one part.

    Raises:
        AlignmentError: One word alone has too many pieces.
    """
    if len(pieces) <= limit:
        return [pieces]
    sizes = np.bincount(pieces.positions, minlength=pieces.words + 2)
    room = limit - sizes[0] - sizes[-1]
    ends = np.cumsum(sizes)  # pieces up to and including a position
    if (widest := int(sizes[1:-1].max())) > room:
        raise AlignmentError(f"word {int(sizes[1:-1].argmax()) + 1} alone has {widest} pieces, but only {room} fit")
    found, first = [], 1
    while True:
        last = min(int(np.searchsorted(ends, ends[first - 1] + room, side="right")) - 1, pieces.words)
        inside = (pieces.positions >= first) & (pieces.positions <= last)
        chosen = inside | (pieces.positions == 0) | (pieces.positions == pieces.words + 1)
        positions = pieces.positions[chosen].clip(first - 1, last + 1) - (first - 1)
        found.append(AlignedPieces(pieces.ids[chosen], positions, last - first + 1, first - 1))
        if last == pieces.words:
            return found
        half = int(np.searchsorted(ends, ends[first - 1] + room // 2, side="right"))
        first = max(first + 1, min(half, last))


def most_central(found: Sequence[AlignedPieces], words: int) -> NDArray[np.int64]:
    """Return the index of the most central part of each word, for a sentence cut into overlapping parts.

    The most central part is the one in which the word is farthest from the nearer edge; on a tie, the
    first such part.

    Args:
        found: The parts, as from `overlapping`.
        words: Number of words of the sentence.

    Returns:
        Indices into `found`, int64 `[words]`.
    """
    place = np.arange(words)
    # Negative outside a part; every word lies in at least one.
    depth = [np.minimum(place - part.first, part.first + part.words - 1 - place) for part in found]
    chosen: NDArray[np.int64] = np.argmax(depth, axis=0)
    return chosen


def reduction(batch: Sequence[AlignedPieces], from_pieces: FromPieces, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return two factors that reduce attention over pieces to attention over words.

    The attention to a word is the sum over its pieces; the attention from a word is set by
    `from_pieces`. The positions of a sentence are its start delimiter, its words, and directly after
    the last word its end delimiter.

    Args:
        batch: Pieces of each sentence, or of each part of a long sentence, to be padded as one batch.
        from_pieces: Attention from a word in several pieces: the `mean` over the pieces, or that of the
            `first`.
        device: Device of the factors.

    Returns:
        Rows `[batch, 1, positions, pieces]` and columns `[batch, pieces, positions]`:
        `rows @ weights @ columns` are the reduced weights `[batch, heads, positions, positions]`. Both
        factors, and therefore the reduced weights, are zero in the padding and for a delimiter that the
        encoder does not use.
    """
    pieces, positions = max(map(len, batch)), max(part.words for part in batch) + 2
    columns = np.zeros((len(batch), pieces, positions), np.float32)
    for index, part in enumerate(batch):
        columns[index, np.arange(len(part)), part.positions] = 1
    rows = columns.transpose(0, 2, 1)
    if from_pieces == "first":
        rows = rows * (rows.cumsum(2) == 1)
    rows = rows / np.maximum(rows.sum(2, keepdims=True), 1)
    return torch.from_numpy(np.ascontiguousarray(rows[:, None])).to(device), torch.from_numpy(columns).to(device)


def reduce(weights: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Reduce attention over pieces to attention over words, with the two factors from `reduction`.

    Args:
        weights: Attention over pieces, `[batch, heads, from, to]`.
        rows: First factor of `reduction`. It may be expanded to all heads beforehand, which saves a copy for every
            layer.
        columns: Second factor of `reduction`.

    Returns:
        Attention over words, `[batch, heads, positions, positions]`.
    """
    batch, heads, pieces, _ = weights.shape
    to_words = weights.reshape(batch, heads * pieces, pieces) @ columns
    return rows @ to_words.view(batch, heads, pieces, -1)
