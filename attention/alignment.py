"""Alignment of pieces with words, and the reduction of weights to words.

Attention TO a word is the sum over its pieces, attention FROM a word the mean over its pieces (Clark et al. 2019,
§4.1), so that rows still sum to one. In a sentence of n words, position 0 is the start delimiter, positions 1…n are
the words and position n+1 is the end delimiter.

A piece that extends over several words, as there are in running text, belongs to the word in which it begins. A word in
which no piece begins reads with the piece before it: its row is that of this piece, with the weight of the word that
has the piece moved to itself. Nothing is attended to in its column. Thus rows sum to one, nobody is said to attend to
it, and no arc between two words of one piece is found.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from operator import ne
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from attention_probing.corpora.sentence import RunningText
from attention_probing.results.errors import UserError

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
"""Name in the audit: number of words whose pieces differ from those in running text."""
SHARED = ("pieces_across_words", "words_without_own_piece", "words_respelled", "texts_unlike_comment")
"""Names in the audit of running text: numbers of pieces that extend over several words, of words without a piece, of
words of multiword tokens that their forms do not spell, and of sentences whose comment `# text` is another text."""
SPELLED = tuple(
    f"spelled_{kind}" for kind in ("as_written", "normalised", "with_unknown_token", "with_others", "otherwise")
)
"""Names in the audit: numbers of words by how their pieces spell them, see `counts_of`."""


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
        apart: Number of words whose pieces differ from those in running text, see `split_words`.
        joined: Words, from 1, that begin within a piece of an earlier word, or have no piece of their own.
    """

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    words: int
    unknown: int = 0
    with_unknown: int = 0
    apart: int = 0
    joined: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Bool `[pieces]`, True for pieces of words, False for delimiters."""
        return (self.positions > 0) & (self.positions <= self.words)

    @cached_property
    def without(self) -> NDArray[np.int64]:
        """Words, from 1, without a piece of their own."""
        return np.setdiff1d(self.joined, self.positions).astype(np.int64)

    @cached_property
    def readers(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pieces whose rows are averaged, and the position that each is for, in ascending order, int64.

        They are all pieces with their own positions, and the piece before each word without a piece.
        """
        places = np.append(np.arange(len(self)), np.searchsorted(self.positions, self.without) - 1)
        positions = np.append(self.positions, self.without).astype(np.int64)
        order = np.argsort(positions, kind="stable")
        return places[order], positions[order]


def split_words(
    tokenizer: PreTrainedTokenizerFast,
    sentences: Sequence[Sequence[str]],
    *,
    consecutive: bool = False,
    texts: Sequence[RunningText] = (),
) -> list[AlignedPieces]:
    """Cut the words of each sentence into the pieces of running text, aligned with the words, without truncation.

    The pieces are those of the words joined by single blanks; a blank belongs to the word after it. Where a piece
    extends over several words, or a word has no piece, every word of the sentence is cut on its own. The attribute
    `apart` of the result counts the words whose pieces then differ from those in the joined text.

    With `texts` the pieces are those of these texts, and may extend over several words; they belong to the word in
    which they begin. The words are cut on their own only if the first has no piece, or the offsets of the pieces do not
    reach the end of the text, as behind characters that a tokenizer drops.

    A word without pieces, for instance a lone zero-width joiner, becomes the tokenizer's unknown token;
    the attribute `unknown` of the result counts such words.

    Args:
        tokenizer: The tokenizer.
        sentences: Words of each sentence.
        consecutive: True for sentences that follow each other in one text: all but the first begin after a blank.
        texts: Text of each sentence; empty for the words joined by blanks.

    Raises:
        AlignmentError: A word has no pieces, and there is no unknown token.
    """
    # A tokenizer that cuts a word alone as it does after a blank gets no blank: it may write one of its own.
    blank = "" if tokenizer.tokenize("a a") == tokenizer.tokenize("a") * 2 else " "
    # Byte-level BPE reads the first word of a text as one after a blank too, as with its option add_prefix_space.
    start = " " if "ByteLevel(" in str(tokenizer.backend_tokenizer.pre_tokenizer) else ""
    leads = [blank if consecutive and place else start for place in range(len(sentences))]
    written = texts or [_joined(words) for words in sentences]
    encodings = tokenizer([lead * bool(one.text) + one.text for lead, one in zip(leads, written, strict=True)], **_BARE)
    before, behind = (ids.tolist() for ids in delimiters(tokenizer, 1))
    found = []
    for encoding, lead, words, text in zip(encodings.encodings or (), leads, sentences, written, strict=True):
        in_text, joined, aligned = _in_text(encoding, text, len(lead), shared=bool(texts))
        alone = [] if aligned else [lead + words[0], *(blank + word for word in words[1:])]
        own = tokenizer(alone, **_BARE)["input_ids"] if alone else in_text
        if [] in own and not joined and tokenizer.unk_token is None:
            raise AlignmentError(
                f"The tokenizer gives no piece for the word {words[own.index([])]!r} (word {own.index([]) + 1} of the "
                f"text that begins {' '.join(words[:6])!r}), and {type(tokenizer).__name__} has no unknown token. "
                "Remove the word from the corpus."
            )
        missing = [] if joined else [tokenizer.unk_token_id]
        parts = [before, *(ids or missing for ids in own), behind]
        positions = np.repeat(np.arange(len(parts), dtype=np.int32), [len(ids) for ids in parts])
        with_unknown = sum(tokenizer.unk_token_id in ids for ids in parts[1:-1])
        apart = 0 if aligned or encoding.ids == [*chain(*own)] else sum(map(ne, own, in_text))
        counts = 0 if joined else own.count([]), with_unknown, apart
        found.append(AlignedPieces(np.array([*chain(*parts)], np.int32), positions, len(words), *counts, joined))
    return found


def _joined(words: Sequence[str]) -> RunningText:
    """Return the text of words joined by single blanks."""
    starts = [*accumulate((len(word) + 1 for word in words), initial=0)]
    return RunningText(" ".join(words), tuple(starts[:-1]))


def _in_text(
    encoding: Encoding, text: RunningText, lead: int, *, shared: bool
) -> tuple[list[list[int]], tuple[int, ...], bool]:
    """Return, for each word, the pieces of a text that begin in it or in the blank before it, and two checks.

    Offsets are wrong behind characters that a tokenizer drops, so they are checked.

    Args:
        encoding: Pieces of the text, without delimiters.
        text: The text; between two words there is at most one blank.
        lead: Number of blanks before the text.
        shared: True if a piece may extend over several words.

    Returns:
        The ids of the pieces of each word; the words, from 1, that begin within a piece of an earlier word, or have no
        piece; and True if the pieces fit the text: with `shared`, if the first word has a piece and the last piece
        reaches the end of the text; else if the pieces of each word cover exactly the word.
    """
    ends = [*(start - (text.text[start - 1] == " ") for start in text.starts[1:]), len(text.text)]
    found: list[list[tuple[int, int, int]]] = [[] for _ in text.starts]
    place = 0
    for piece, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):
        while first - lead >= ends[place] and place < len(found) - 1:
            place += 1
        found[place].append((piece, first - lead, last - lead))
    reached = [*accumulate((own[-1][2] if own else 0 for own in found), max, initial=0)]
    words = list(zip(found, text.starts, ends, reached, strict=False))
    joined = tuple(word for word, (own, start, _, before) in enumerate(words, 1) if not own or before > start)
    if shared:
        aligned = bool(found[0]) and reached[-1] >= ends[-1]
    else:  # each word begins and ends with a piece, without or with a blank
        aligned = all(
            own and own[0][1] - start in (-1, 0) and own[-1][2] - end in (0, 1) for own, start, end, _ in words
        )
    return [[piece for piece, *_ in own] for own in found], joined if aligned else (), aligned


def counts_of(
    tokenizer: PreTrainedTokenizerFast, pieces: AlignedPieces, words: Sequence[str], texts: Sequence[RunningText] = ()
) -> Counter[str]:
    """Count the words of an input of the encoder for the audit, also by how their pieces, put together, spell them.

    White space, and the tokenizer's mark of it, are not compared. Words that share a piece are compared together.

    Args:
        tokenizer: Tokenizer of the pieces.
        pieces: Pieces of the input.
        words: Its words.
        texts: Its running texts, if the pieces are those of running text.

    Returns:
        Numbers of words by name, with those of `SHARED` for running text. The names in `SPELLED` are
        `spelled_as_written`; `spelled_normalised`, as the tokenizer normalises the word (letter case, accents,
        compatibility characters); `spelled_with_unknown_token`, with any characters in the place of that token;
        `spelled_with_others`, as one or more words that share a piece; and `spelled_otherwise`.
    """
    known = {"words_without_piece": pieces.unknown, UNKNOWN_WORDS: pieces.with_unknown, WORDS_APART: pieces.apart}
    counts = Counter(known | dict.fromkeys(SPELLED, 0))
    if texts:
        across = len(np.unique(np.searchsorted(pieces.positions, pieces.joined)))
        respelled = sum(text.respelled for text in texts)
        unlike = sum(text.unlike_comment for text in texts)
        counts.update(dict(zip(SHARED, (across, len(pieces.without), respelled, unlike), strict=True)))
    forms = [part for text in texts for part in text.parts] or words
    bounds = np.searchsorted(pieces.positions, np.arange(1, pieces.words + 2)).tolist()
    starts = [word for word in range(pieces.words) if word + 1 not in pieces.joined]
    for low, high in zip(starts, [*starts[1:], pieces.words], strict=True):
        own = tuple(pieces.ids[bounds[low] : bounds[high]].tolist())
        kind = _spelled(tokenizer, "".join(forms[low:high]), own)
        counts[f"spelled_{kind if high - low == 1 or kind == 'otherwise' else 'with_others'}"] += high - low
    return counts


@lru_cache(1 << 16)  # of the words of a corpus, most occur again
def _spelled(tokenizer: PreTrainedTokenizerFast, form: str, ids: tuple[int, ...]) -> str:
    """Return how pieces spell a form: `as_written`, `normalised`, `with_unknown_token` or `otherwise`."""
    backend = tokenizer.backend_tokenizer
    inner = getattr(backend.model, "continuing_subword_prefix", "") or ""  # of WordPiece, for a word within a word
    found = _bare(backend.decode(list(ids), skip_special_tokens=False).removeprefix(inner))
    if found == _bare(form):
        return "as_written"
    normal = _bare(form if backend.normalizer is None else backend.normalizer.normalize_str(form))
    if found == normal:
        return "normalised"
    if tokenizer.unk_token_id in ids:
        known = map(re.escape, found.split(tokenizer.unk_token))
        if re.fullmatch(".*".join(known), normal):
            return "with_unknown_token"
    return "otherwise"


def _bare(text: str) -> str:
    """Return a text without white space and marks of it."""
    return "".join(text.replace("▁", " ").split())


def delimiters(tokenizer: PreTrainedTokenizerFast, passages: int) -> list[NDArray[np.int64]]:
    """Return the ids of the delimiters before the first passage, and behind each passage."""
    encoded = tokenizer(*[["a"]] * passages, is_split_into_words=True, verbose=False)
    owners = np.array([-1 if passage is None else passage for passage in encoded.sequence_ids()])
    places = [np.flatnonzero(owners == passage) for passage in range(passages)]
    ends = [end for found in places for end in (found[0], found[-1] + 1)]
    return np.split(np.array(encoded["input_ids"], np.int64), ends)[::2]  # without the passages themselves


def readable(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> list[str]:
    r"""Return the text of each piece as it is read, without blanks around it: `café` for `ĠcafÃ©` and for `▁café`.

    Bytes that do not form a whole character are written like `\xf0`, and unprintable characters as in Python; a piece
    of blanks alone is `␣`. Added tokens, such as delimiters, are written by their names.

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
    words, unknown, with_unknown, apart = np.sum(sums, 0).tolist()
    befores = accumulate((each.words for each in sentences), initial=0)
    joined = tuple(word + earlier for each, earlier in zip(sentences, befores, strict=False) for word in each.joined)
    return AlignedPieces(ids, positions.astype(np.int32), words, unknown, with_unknown, apart, joined)


class Reduction(NamedTuple):
    """Reduction of maps over pieces to maps over words, for inputs padded as one batch; made by `reduction`.

    The positions of a sentence are its start delimiter, its words, and directly after the last word its end delimiter.
    The factors, and therefore the reduced maps, are zero in the padding and for a delimiter that the encoder does not
    use.

    Attributes:
        rows: Share of each piece in the row of a position, `[batch, 1, positions, pieces]`; it may be expanded to all
            heads beforehand, which saves a copy for every layer.
        columns: 1 where a piece belongs to a position, `[batch, pieces, positions]`.
        owners: Position that has the piece of each position, int64 `[batch, positions]`: itself, but for words without
            a piece of their own.
    """

    rows: Tensor
    columns: Tensor
    owners: Tensor

    @classmethod
    def of_pieces(cls, real: Tensor) -> "Reduction":
        """Return the reduction that changes nothing: every real piece, bool `[batch, pieces]`, is a word of its own."""
        columns = real.float().diag_embed()
        return cls(columns[:, None], columns, torch.arange(real.size(1), device=real.device).expand(real.shape))

    def words(self, maps: Tensor) -> Tensor:
        """Reduce maps over pieces, `[batch, heads, from, to]`, to words, `[batch, heads, positions, positions]`.

        Inputs of at least `LONG` pieces are summed on a CPU, which equals the product up to rounding. A GPU always
        multiplies: it is fast, and adds in the same order every time.
        """
        batch, heads, pieces, _ = maps.shape
        if pieces >= LONG and maps.device.type == "cpu":
            return keep_apart(torch.stack([*map(_sums, maps, self.rows, self.columns)]), self.owners)
        to_words = maps.reshape(batch, heads * pieces, pieces) @ self.columns
        return keep_apart(self.rows @ to_words.view(batch, heads, pieces, -1), self.owners)


def reduction(batch: Sequence[AlignedPieces], from_pieces: FromPieces, device: torch.device) -> Reduction:
    """Return what reduces attention over pieces to attention over words.

    The attention to a word is the sum over its pieces; the attention from a word is set by
    `from_pieces`.

    Args:
        batch: Pieces of each sentence, to be padded as one batch.
        from_pieces: Attention from a word in several pieces: the `mean` over the pieces, or that of the
            `first`.
        device: Device of the factors.
    """
    pieces, positions = max(map(len, batch)), max(part.words for part in batch) + 2
    columns = np.zeros((len(batch), pieces, positions), np.float32)
    rows = np.zeros((len(batch), positions, pieces), np.float32)
    owners = np.tile(np.arange(positions), (len(batch), 1))
    for index, part in enumerate(batch):
        columns[index, np.arange(len(part)), part.positions] = 1
        places, readers = part.readers
        rows[index, readers, places] = 1
        owners[index, readers] = part.positions[places]
    if from_pieces == "first":
        rows = rows * (rows.cumsum(2) == 1)
    rows = rows / np.maximum(rows.sum(2, keepdims=True), 1)
    factors = np.ascontiguousarray(rows[:, None]), columns, owners
    return Reduction(*(torch.from_numpy(factor).to(device) for factor in factors))


def keep_apart(words: Tensor, owners: Tensor, first: int = 0) -> Tensor:
    """Move, in the row of each word without a piece, the weight of the word that has its piece to the word; in place.

    Args:
        words: Attention over words, `[batch, heads, rows, positions]`.
        owners: Position that has the piece of each position, int64 `[batch, positions]`, as in `Reduction`.
        first: Position of the first row.
    """
    own = torch.arange(first, first + words.size(2), device=owners.device)
    sentence, row = (owners[:, first : first + words.size(2)] != own).nonzero(as_tuple=True)
    if len(row):
        word, owner = row + first, owners[sentence, row + first]
        words[sentence, :, row, word] = words[sentence, :, row, owner]
        words[sentence, :, row, owner] = 0
    return words


def _sums(weights: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Reduce the attention of one input as the product does, `[heads, positions, positions]`."""
    heads, pieces, words = len(weights), *columns.shape
    # The padding has a position of its own, which is left out.
    places, own = torch.where(columns.any(1), columns.argmax(1), words), columns.any(0)
    shares = rows[0, own].sum(0)[:, None]  # of each piece in the row of its word
    means = weights.new_zeros(heads, words + 1, pieces).index_add(1, places, weights * shares)[:, :words]
    means[:, ~own] = rows[0, ~own] @ weights  # words without a piece of their own
    return weights.new_zeros(heads, words, words + 1).index_add(2, places, means)[..., :words]
