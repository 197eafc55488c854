"""Alignment of pieces with words, and the reduction of weights to words.

Attention TO a word is the sum over its pieces, attention FROM a word the mean over its pieces (Clark et al. 2019,
§4.1), so that rows still sum to one. In a sentence of n words, position 0 is the start delimiter, positions 1…n are
the words and position n+1 is the end delimiter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import ne
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from results.errors import UserError

ALIGNMENT_VERSION = 2
"""Part of the key of every store of attention: raise it when reading, alignment or reduction changes."""

_BARE: Mapping[str, Any] = {"add_special_tokens": False, "padding": False, "truncation": False, "verbose": False}
"""Options of a tokenizer for all pieces of a text, without delimiters and without a warning of long texts."""

LONG = 384
"""Pieces from which a CPU reduces an input by sums: a product with factors of zeros and ones takes longer there."""

FromPieces = Literal["mean", "first"]

UNKNOWN_WORDS = "words_with_unknown_token"
"""Name in the audit: number of words whose pieces include the unknown token."""
WORDS_APART = "words_cut_apart"
"""Name in the audit: number of words with other pieces than in running text."""


class AlignmentError(UserError):
    """Error for a sentence that cannot be aligned with its pieces, or is too long for the encoder."""


@dataclass(frozen=True)
class AlignedPieces:
    """Pieces of a sentence, delimiters included, each with the word that it belongs to.

    Attributes:
        ids: Ids of the pieces, int32 `[pieces]`.
        positions: Word of each piece, int32 `[pieces]`, non-decreasing: words are numbered from 1, the start delimiter
            is 0, and the end delimiter is `words + 1`.
        words: Number of words.
        unknown: Number of words without pieces, which were replaced by the unknown token.
        with_unknown: Number of words whose pieces include the unknown token.
        apart: Number of words with other pieces than in running text, see `split_words`.
    """

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    words: int
    unknown: int = 0
    with_unknown: int = 0
    apart: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def counts(self) -> dict[str, int]:
        """Counts of words for the audit."""
        return {"words_without_piece": self.unknown, UNKNOWN_WORDS: self.with_unknown, WORDS_APART: self.apart}

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Bool `[pieces]`, True for pieces of words, False for delimiters."""
        return (self.positions > 0) & (self.positions <= self.words)


def split_words(
    tokenizer: PreTrainedTokenizerFast, sentences: Sequence[Sequence[str]], *, consecutive: bool = False
) -> list[AlignedPieces]:
    """Cut the words of each sentence into the pieces of running text, aligned with the words, without truncation.

    The pieces are those of the words joined by single blanks; a blank belongs to the word after it. Where a piece
    extends over several words, or a word has no piece, every word of the sentence is cut on its own. The attribute
    `apart` of the result counts the words that then have other pieces than in the joined text.

    A word without pieces, for instance a lone zero-width joiner, becomes the tokenizer's unknown token;
    the attribute `unknown` of the result counts such words.

    Args:
        tokenizer: The tokenizer.
        sentences: Words of each sentence.
        consecutive: True for sentences that follow each other in one text: all but the first begin after a blank.

    Raises:
        AlignmentError: A word has no pieces, and there is no unknown token.
    """
    # A tokenizer that cuts a word alone as it does after a blank gets no blank: it may write one of its own.
    blank = "" if tokenizer.tokenize("a a") == tokenizer.tokenize("a") * 2 else " "
    # Byte-level BPE reads the first word of a text as one after a blank too, as with its option add_prefix_space.
    start = " " if "ByteLevel(" in str(tokenizer.backend_tokenizer.pre_tokenizer) else ""
    leads = [blank if consecutive and place else start for place in range(len(sentences))]
    texts = [lead + " ".join(words) if words else "" for lead, words in zip(leads, sentences, strict=True)]
    encodings = tokenizer(texts, **_BARE).encodings or ()
    before, behind = (ids.tolist() for ids in delimiters(tokenizer, 1))
    found = []
    for encoding, lead, words in zip(encodings, leads, sentences, strict=True):
        in_text, aligned = _in_text(encoding, words, len(lead))
        own = in_text
        if not aligned:
            own = tokenizer([lead + words[0], *(blank + word for word in words[1:])], **_BARE)["input_ids"]
        if [] in own and tokenizer.unk_token is None:
            raise AlignmentError(
                f"The tokenizer gives no piece for the word {words[own.index([])]!r} (word {own.index([]) + 1} of the "
                f"text that begins {' '.join(words[:6])!r}), and {type(tokenizer).__name__} has no unknown token. "
                "Remove the word from the corpus."
            )
        parts = [before, *(ids or [tokenizer.unk_token_id] for ids in own), behind]
        positions = np.repeat(np.arange(len(parts), dtype=np.int32), [len(ids) for ids in parts])
        with_unknown = sum(tokenizer.unk_token_id in ids for ids in parts[1:-1])
        apart = 0 if aligned or encoding.ids == [*chain(*own)] else sum(map(ne, own, in_text))
        counts = own.count([]), with_unknown, apart
        found.append(AlignedPieces(np.array([*chain(*parts)], np.int32), positions, len(words), *counts))
    return found


def _in_text(encoding: Encoding, words: Sequence[str], lead: int) -> tuple[list[list[int]], bool]:
    """Return, for each word, the pieces of the text that begin in it, and True if they cover exactly the word.

    Offsets are wrong behind characters that a tokenizer drops, so each word is checked at both ends.

    Args:
        encoding: Pieces of the text, without delimiters.
        words: Words of the text, joined by single blanks.
        lead: Number of blanks before the first word.
    """
    found: list[list[tuple[int, int, int]]] = [[] for _ in words]
    ends = [*accumulate((len(word) + 1 for word in words), initial=lead - 1)]  # before the first word, and of each
    place = 0
    for piece, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):
        while first >= ends[place + 1] and place < len(words) - 1:
            place += 1
        found[place].append((piece, first, last))
    aligned = all(
        own and own[0][1] - before in (0, 1) and own[-1][2] - end in (0, 1)  # without or with a blank
        for own, before, end in zip(found, ends, ends[1:], strict=False)
    )
    return [[piece for piece, *_ in own] for own in found], aligned


def delimiters(tokenizer: PreTrainedTokenizerFast, passages: int) -> list[NDArray[np.int64]]:
    """Return the ids of the delimiters before the first passage, and behind each passage."""
    encoded = tokenizer(*[["a"]] * passages, is_split_into_words=True, verbose=False)
    owners = np.array([-1 if passage is None else passage for passage in encoded.sequence_ids()])
    places = [np.flatnonzero(owners == passage) for passage in range(passages)]
    ends = [end for found in places for end in (found[0], found[-1] + 1)]
    return np.split(np.array(encoded["input_ids"], np.int64), ends)[::2]  # without the passages themselves


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
    tokenizer: PreTrainedTokenizerFast, pieces: AlignedPieces, words: Sequence[str]
) -> tuple[list[str], list[int]]:
    """Return the name and the number of each position of a text: its words, and its delimiters if it has any.

    Args:
        tokenizer: Tokenizer of the pieces.
        pieces: Pieces of the text.
        words: Its words.
    """
    start, end = pieces.ids[pieces.positions == 0], pieces.ids[pieces.positions == pieces.words + 1]
    before, after = (" ".join(readable(tokenizer, ids.tolist())) for ids in (start, end))
    names = [*([before] if before else []), *words, *([after] if after else [])]
    low = 0 if before else 1
    return names, list(range(low, low + len(names)))


def join_sentences(sentences: Sequence[AlignedPieces]) -> AlignedPieces:
    """Join the pieces of several sentences into one input, without the delimiters between the sentences.

    The start delimiter of the first sentence and the end delimiter of the last are kept.
    """
    first, last = sentences[0], sentences[-1]
    before, behind = first.ids[first.positions == 0], last.ids[last.positions > last.words]
    sizes = [np.bincount(each.positions, minlength=each.words + 2)[1:-1] for each in sentences]
    positions = np.repeat(np.arange(sum(map(len, sizes)) + 2), [len(before), *np.concatenate(sizes), len(behind)])
    ids = np.concatenate([before, *(each.ids[each.inside] for each in sentences), behind])
    sums = [(each.words, each.unknown, each.with_unknown, each.apart) for each in sentences]
    words, *counts = np.sum(sums, 0).tolist()
    return AlignedPieces(ids, positions.astype(np.int32), words, *counts)


def reduction(batch: Sequence[AlignedPieces], from_pieces: FromPieces, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return two factors that reduce attention over pieces to attention over words.

    The attention to a word is the sum over its pieces; the attention from a word is set by
    `from_pieces`. The positions of a sentence are its start delimiter, its words, and directly after
    the last word its end delimiter.

    Args:
        batch: Pieces of each sentence, to be padded as one batch.
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

    Inputs of at least `LONG` pieces are summed on a CPU, which equals the product up to rounding. A GPU always
    multiplies: it is fast, and adds in the same order every time.

    Args:
        weights: Attention over pieces, `[batch, heads, from, to]`.
        rows: First factor of `reduction`. It may be expanded to all heads beforehand, which saves a copy for every
            layer.
        columns: Second factor of `reduction`.

    Returns:
        Attention over words, `[batch, heads, positions, positions]`.
    """
    batch, heads, pieces, _ = weights.shape
    if pieces >= LONG and weights.device.type == "cpu":
        return torch.stack([*map(_sums, weights, rows, columns)])
    to_words = weights.reshape(batch, heads * pieces, pieces) @ columns
    return rows @ to_words.view(batch, heads, pieces, -1)


def _sums(weights: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Reduce the attention of one input as `reduce` does, `[heads, positions, positions]`."""
    heads, pieces, words = len(weights), *columns.shape
    # The padding has a position of its own, which is left out.
    places = torch.where(columns.any(1), columns.argmax(1), words)
    shares = rows[0].sum(0)[:, None]  # of each piece in the row of its word
    means = weights.new_zeros(heads, words + 1, pieces).index_add(1, places, weights * shares)[:, :words]
    return weights.new_zeros(heads, words, words + 1).index_add(2, places, means)[..., :words]
