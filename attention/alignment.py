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
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, pairwise
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
SPELLED = (
    "spelled_as_written",
    "spelled_normalised",
    "spelled_with_unknown_token",
    "spelled_with_others",
    "spelled_otherwise",
)
"""Names in the audit: numbers of words by how their pieces spell them, see `count_words`."""


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
    def pieceless(self) -> NDArray[np.int64]:
        """Words, from 1, without a piece of their own, ascending, int64."""
        if not self.joined:
            return np.zeros(0, np.int64)
        return np.setdiff1d(self.joined, self.positions).astype(np.int64)

    @property
    def pieces_before(self) -> NDArray[np.int64]:
        """Index of the piece before each word of `pieceless`, int64: the piece with which the word reads."""
        return np.searchsorted(self.positions, self.pieceless) - 1

    @cached_property
    def readers(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pieces whose rows are averaged, and the position that each is for, in ascending order, int64.

        They are all pieces with their own positions, and the piece before each word without a piece.
        """
        pieces = np.arange(len(self))
        positions = self.positions.astype(np.int64)
        if not len(self.pieceless):
            return pieces, positions
        pieces = np.append(pieces, self.pieces_before)
        positions = np.append(positions, self.pieceless)
        order = np.argsort(positions, kind="stable")
        return pieces[order], positions[order]


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
    blank = _blank_within_text(tokenizer)
    leads = [_blank_before_text(tokenizer)] * len(sentences)
    if consecutive:
        leads[1:] = [blank] * len(leads[1:])
    running_texts = texts or [_join_words(words) for words in sentences]
    written_texts = []
    for lead, text in zip(leads, running_texts, strict=True):
        written_texts.append(lead + text.text if text.text else "")
    encodings = tokenizer(written_texts, **_BARE).encodings or ()
    before, behind = [ids.tolist() for ids in delimiters(tokenizer, 1)]
    aligned = []
    for encoding, lead, words, text in zip(encodings, leads, sentences, running_texts, strict=True):
        in_text = _divide_among_words(encoding, text, len(lead), may_share=bool(texts))
        by_word = in_text.by_word
        apart = 0
        if not in_text.fits:
            by_word, apart = _split_alone(tokenizer, words, lead, blank, in_text)
        unknown = 0
        if not in_text.joined:  # else a word without pieces reads with the piece before it
            unknown = sum(not ids for ids in by_word)
            by_word = _fill_empty(tokenizer, words, by_word)
        parts = [before, *by_word, behind]
        sizes = [len(ids) for ids in parts]
        aligned.append(
            AlignedPieces(
                ids=np.array(list(chain.from_iterable(parts)), np.int32),
                positions=np.repeat(np.arange(len(parts), dtype=np.int32), sizes),
                words=len(words),
                unknown=unknown,
                with_unknown=sum(tokenizer.unk_token_id in ids for ids in by_word),
                apart=apart,
                joined=in_text.joined,
            )
        )
    return aligned


def _blank_within_text(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return the blank to write before a word within a text; empty for none.

    A tokenizer that cuts a word alone as it does after a blank gets no blank: it may write one of its own.
    """
    if tokenizer.tokenize("a a") == tokenizer.tokenize("a") * 2:
        return ""
    return " "


def _blank_before_text(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return the blank to write before the first word of a text; empty for none.

    Byte-level BPE reads the first word as one after a blank too, as with its option add_prefix_space.
    """
    if "ByteLevel(" in str(tokenizer.backend_tokenizer.pre_tokenizer):
        return " "
    return ""


def _join_words(words: Sequence[str]) -> RunningText:
    """Return the text of words joined by single blanks."""
    starts = []
    start = 0
    for word in words:
        starts.append(start)
        start += len(word) + 1
    return RunningText(" ".join(words), tuple(starts))


@dataclass(frozen=True)
class _PiecesInText:
    """Pieces of a text, divided among its words.

    Attributes:
        by_word: Ids of the pieces that begin in each word, or in the blank before it.
        joined: Words, from 1, that begin within a piece of an earlier word, or have no piece; empty if the pieces do
            not fit the text.
        fits: True if the pieces fit the text.
    """

    by_word: list[list[int]]
    joined: tuple[int, ...]
    fits: bool


def _divide_among_words(encoding: Encoding, text: RunningText, lead: int, *, may_share: bool) -> _PiecesInText:
    """Divide the pieces of a text among its words.

    Offsets are wrong behind characters that a tokenizer drops, so they are checked. If words may share a piece, the
    first word must have a piece, and the last piece must reach the end of the text. Otherwise the pieces of each word
    must cover exactly the word, with or without the blank on either side.

    Args:
        encoding: Pieces of the text, without delimiters.
        text: The text; between two words there is at most one blank.
        lead: Number of blanks before the text.
        may_share: True if a piece may extend over several words.
    """
    ends = [start - (text.text[start - 1] == " ") for start in text.starts[1:]]
    ends.append(len(text.text))
    by_word: list[list[int]] = [[] for _ in text.starts]
    first_of = [0] * len(by_word)  # where the first piece of a word begins in the text
    last_of = [0] * len(by_word)  # where its last piece ends
    word = 0
    for piece, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):
        while first - lead >= ends[word] and word < len(by_word) - 1:
            word += 1
        if not by_word[word]:
            first_of[word] = first - lead
        by_word[word].append(piece)
        last_of[word] = last - lead
    joined = []
    covered = True
    reached = 0  # end of the pieces of all earlier words
    for word, (pieces, start, end) in enumerate(zip(by_word, text.starts, ends, strict=True)):
        if not pieces or reached > start:
            joined.append(word + 1)
        begins_at_word = first_of[word] - start in (-1, 0)
        ends_at_word = last_of[word] - end in (0, 1)
        if not pieces or not begins_at_word or not ends_at_word:
            covered = False
        reached = max(reached, last_of[word])
    if not may_share:
        return _PiecesInText(by_word, (), covered)  # no word can begin within a piece that covers another one
    fits = bool(by_word[0]) and reached >= ends[-1]
    if not fits:
        return _PiecesInText(by_word, (), fits)
    return _PiecesInText(by_word, tuple(joined), fits)


def _split_alone(
    tokenizer: PreTrainedTokenizerFast, words: Sequence[str], lead: str, blank: str, in_text: _PiecesInText
) -> tuple[list[list[int]], int]:
    """Cut every word of a sentence on its own.

    Args:
        tokenizer: The tokenizer.
        words: Words of the sentence.
        lead: Blank before the first word.
        blank: Blank before every other word.
        in_text: Pieces of the running text, which do not fit it.

    Returns:
        Ids of the pieces of each word, and the number of words whose pieces differ from those in running text.
    """
    written_words = [blank + word for word in words]
    written_words[0] = lead + words[0]
    by_word = tokenizer(written_words, **_BARE)["input_ids"]
    pieces = list(chain.from_iterable(by_word))
    pieces_in_text = list(chain.from_iterable(in_text.by_word))
    if pieces == pieces_in_text:
        return by_word, 0
    return by_word, sum(map(ne, by_word, in_text.by_word))


def _fill_empty(tokenizer: PreTrainedTokenizerFast, words: Sequence[str], by_word: list[list[int]]) -> list[list[int]]:
    """Return the pieces of each word, with the unknown token for words without pieces.

    Raises:
        AlignmentError: A word has no pieces, and there is no unknown token.
    """
    filled = []
    for number, (word, ids) in enumerate(zip(words, by_word, strict=True), 1):
        if not ids and tokenizer.unk_token is None:
            raise AlignmentError(
                f"The tokenizer gives no piece for the word {word!r} (word {number} of the "
                f"text that begins {' '.join(words[:6])!r}), and {type(tokenizer).__name__} has no unknown token. "
                "Remove the word from the corpus."
            )
        filled.append(ids or [tokenizer.unk_token_id])
    return filled


def count_words(
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
    counts = Counter(dict.fromkeys(SPELLED, 0))
    counts["words_without_piece"] = pieces.unknown
    counts[UNKNOWN_WORDS] = pieces.with_unknown
    counts[WORDS_APART] = pieces.apart
    forms = words
    if texts:
        across, without, respelled, unlike = SHARED
        counts[across] = len(np.unique(np.searchsorted(pieces.positions, pieces.joined)))
        counts[without] = len(pieces.pieceless)
        counts[respelled] = sum(text.respelled for text in texts)
        counts[unlike] = sum(text.unlike_comment for text in texts)
        forms = [*chain.from_iterable(text.parts for text in texts)] or words
    # A group is a word with the later ones that begin within its last piece, or have no piece.
    starts = [word for word in range(pieces.words) if word + 1 not in pieces.joined]
    bounds = np.searchsorted(pieces.positions, np.arange(1, pieces.words + 2)).tolist()
    ids = pieces.ids.tolist()
    for start, end in pairwise([*starts, pieces.words]):
        form = "".join(forms[start:end])
        pieces_of_group = tuple(ids[bounds[start] : bounds[end]])
        kind = _compare_spelling(tokenizer, form, pieces_of_group)
        if end - start > 1 and kind != "otherwise":
            kind = "with_others"
        counts[f"spelled_{kind}"] += end - start
    return counts


@lru_cache(1 << 16)  # most words of a corpus occur again
def _compare_spelling(tokenizer: PreTrainedTokenizerFast, form: str, ids: tuple[int, ...]) -> str:
    """Return how pieces spell a form: `as_written`, `normalised`, `with_unknown_token` or `otherwise`."""
    backend = tokenizer.backend_tokenizer
    inner = getattr(backend.model, "continuing_subword_prefix", "") or ""  # of WordPiece, for a word within a word
    spelling = _remove_blanks(backend.decode(list(ids), skip_special_tokens=False).removeprefix(inner))
    if spelling == _remove_blanks(form):
        return "as_written"
    if backend.normalizer is not None:
        form = backend.normalizer.normalize_str(form)
    normal = _remove_blanks(form)
    if spelling == normal:
        return "normalised"
    if tokenizer.unk_token_id in ids:
        between_unknown = map(re.escape, spelling.split(tokenizer.unk_token))
        if re.fullmatch(".*".join(between_unknown), normal):
            return "with_unknown_token"
    return "otherwise"


def spell_normalised(tokenizer: PreTrainedTokenizerFast, form: str) -> str | None:
    """Return a form as the tokenizer normalises it, if this changes its letters; None if the letters stay.

    Letter case, compatibility characters, their composition, white space and format characters, such as the zero-width
    non-joiner of Persian, are not compared: only accents, points and other marks that are lost, as of `çalışıyor`,
    which an uncased BERT reads as `calısıyor`.

    Args:
        tokenizer: The tokenizer.
        form: A word.
    """
    normalizer = tokenizer.backend_tokenizer.normalizer
    if normalizer is None:
        return None
    normal: str = normalizer.normalize_str(form)
    if _fold(normal) == _fold(form):
        return None
    return _remove_blanks(normal)


def _fold(text: str) -> str:
    """Return a text without differences of case, compatibility, composition, white space and format characters."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    folded = unicodedata.normalize("NFKC", folded)
    letters = [letter for letter in folded if unicodedata.category(letter) != "Cf"]
    return _remove_blanks("".join(letters))


def _remove_blanks(text: str) -> str:
    """Return a text without white space and marks of it."""
    return "".join(text.replace("▁", " ").split())


def delimiters(tokenizer: PreTrainedTokenizerFast, passages: int) -> list[NDArray[np.int64]]:
    """Return the ids of the delimiters before the first passage, and behind each passage."""
    encoded = tokenizer(*[["a"]] * passages, is_split_into_words=True, verbose=False)
    ids = np.array(encoded["input_ids"], np.int64)
    owners = passages_of(encoded.sequence_ids())
    around = []
    end = 0  # of the passage before
    for passage in range(passages):
        places = np.flatnonzero(owners == passage)
        around.append(ids[end : places[0]])
        end = places[-1] + 1
    around.append(ids[end:])
    return around


def passages_of(sequence_ids: Sequence[int | None]) -> NDArray[np.int64]:
    """Return the number of the passage of each piece as an array, int64 `[pieces]`, with -1 for delimiters."""
    passages = np.full(len(sequence_ids), -1, np.int64)
    for place, passage in enumerate(sequence_ids):
        if passage is not None:
            passages[place] = passage
    return passages


def readable(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> list[str]:
    r"""Return the text of each piece as it is read, without blanks around it: `café` for `ĠcafÃ©` and for `▁café`.

    Bytes that do not form a whole character are written like `\xf0`, and unprintable characters as in Python; a piece
    of blanks alone is `␣`. Added tokens, such as delimiters, are written by their names.

    Args:
        tokenizer: Tokenizer of the pieces.
        ids: Ids of the pieces.
    """
    decoder = tokenizer.backend_tokenizer.decoder
    added = tokenizer.added_tokens_decoder
    bytes_of = {character: byte for byte, character in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]
    names = []
    for number, piece in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        text = piece or f"<{number}>"
        if piece and decoder is not None and number not in added:
            text = decoder.decode([piece])
            if "\N{REPLACEMENT CHARACTER}" in text and bytes_of.keys() >= {*piece}:
                text = bytes(bytes_of[character] for character in piece).decode(errors="backslashreplace")
        name = "".join(map(_printable, text.strip(" ")))
        names.append(name or "␣")
    return names


def _printable(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def name_positions(
    tokenizer: PreTrainedTokenizerFast, pieces: AlignedPieces, words: Sequence[str]
) -> tuple[list[str], list[int]]:
    """Return the name and the number of each position of a text: its words, and its delimiters if it has any.

    Args:
        tokenizer: Tokenizer of the pieces.
        pieces: Pieces of the text.
        words: Its words.
    """
    before = pieces.ids[pieces.positions == 0]
    behind = pieces.ids[pieces.positions == pieces.words + 1]
    names = list(words)
    numbers = list(range(1, pieces.words + 1))
    if len(before):
        names.insert(0, " ".join(readable(tokenizer, before.tolist())))
        numbers.insert(0, 0)
    if len(behind):
        names.append(" ".join(readable(tokenizer, behind.tolist())))
        numbers.append(pieces.words + 1)
    return names, numbers


def join_sentences(sentences: Sequence[AlignedPieces]) -> AlignedPieces:
    """Join the pieces of several sentences into one input, without the delimiters between the sentences.

    The start delimiter of the first sentence and the end delimiter of the last are kept.
    """
    first = sentences[0]
    last = sentences[-1]
    ids = [first.ids[first.positions == 0]]
    positions = [np.zeros(len(ids[0]), np.int32)]
    joined: list[int] = []
    words = 0
    for sentence in sentences:
        ids.append(sentence.ids[sentence.inside])
        positions.append(sentence.positions[sentence.inside] + words)
        joined.extend(word + words for word in sentence.joined)
        words += sentence.words
    ids.append(last.ids[last.positions > last.words])
    positions.append(np.full(len(ids[-1]), words + 1))
    return AlignedPieces(
        ids=np.concatenate(ids),
        positions=np.concatenate(positions).astype(np.int32),
        words=words,
        unknown=sum(sentence.unknown for sentence in sentences),
        with_unknown=sum(sentence.with_unknown for sentence in sentences),
        apart=sum(sentence.apart for sentence in sentences),
        joined=tuple(joined),
    )


class PiecelessWords(NamedTuple):
    """Words without a piece of their own, of several inputs; see the module.

    Attributes:
        inputs: Index of the input of each of these words, int64 `[words]`.
        positions: Position of the word in its input, int64 `[words]`.
        owners: Position of the word whose piece it reads with, int64 `[words]`.
    """

    inputs: Tensor
    positions: Tensor
    owners: Tensor

    @classmethod
    def of_owners(cls, owners: Tensor) -> "PiecelessWords":
        """Return the words whose piece belongs to another word.

        Args:
            owners: Position that has the piece of each position, int64 `[batch, positions]`.
        """
        is_pieceless = owners != torch.arange(owners.size(1), device=owners.device)
        inputs, positions = is_pieceless.nonzero(as_tuple=True)
        return cls(inputs, positions, owners[inputs, positions])

    def to(self, device: torch.device) -> "PiecelessWords":
        """Return the words on another device."""
        return PiecelessWords(self.inputs.to(device), self.positions.to(device), self.owners.to(device))


@dataclass(frozen=True, eq=False)
class Reduction:
    """Reduction of maps over pieces to maps over words, for inputs padded as one batch; made by `reduction`.

    The positions of a sentence are its start delimiter, its words, and directly after the last word its end delimiter.
    The factors, and therefore the reduced maps, are zero in the padding and for a delimiter that the encoder does not
    use.

    Attributes:
        rows: Share of each piece in the row of a position, `[batch, 1, positions, pieces]`; it may be expanded to all
            heads beforehand, which saves a copy for every layer.
        columns: 1 where a piece belongs to a position, `[batch, pieces, positions]`.
        owners: Position that has the piece of each position, int64 `[batch, positions]`: itself, but for words without
            a piece of their own. It may stay on the CPU: a GPU would wait for the search of these words.
    """

    rows: Tensor
    columns: Tensor
    owners: Tensor

    @classmethod
    def of_pieces(cls, real: Tensor) -> "Reduction":
        """Return the reduction that changes nothing: every real piece, bool `[batch, pieces]`, is a word of its own."""
        columns = real.float().diag_embed()
        owners = torch.arange(real.size(1), device=real.device).expand(real.shape)
        return cls(columns[:, None], columns, owners)

    @cached_property
    def pieceless(self) -> PiecelessWords:
        """Words without a piece of their own, found once for all layers, on the device of `rows`."""
        return PiecelessWords.of_owners(self.owners).to(self.rows.device)

    def words(self, maps: Tensor) -> Tensor:
        """Reduce maps over pieces, `[batch, heads, from, to]`, to words, `[batch, heads, positions, positions]`.

        Inputs of at least `LONG` pieces are summed on a CPU, which equals the product up to rounding. A GPU always
        multiplies: it is fast, and adds in the same order every time.
        """
        batch, heads, pieces, _ = maps.shape
        if pieces >= LONG and maps.device.type == "cpu":
            words_of_inputs = []
            for maps_of_input, rows, columns in zip(maps, self.rows, self.columns, strict=True):
                words_of_inputs.append(_sum_pieces(maps_of_input, rows, columns))
            return keep_apart(torch.stack(words_of_inputs), self.pieceless)
        to_words = maps.reshape(batch, heads * pieces, pieces) @ self.columns
        return keep_apart(self.rows @ to_words.view(batch, heads, pieces, -1), self.pieceless)


def reduction(batch: Sequence[AlignedPieces], from_pieces: FromPieces, device: torch.device) -> Reduction:
    """Return the factors that reduce attention over pieces to attention over words.

    The attention to a word is the sum over its pieces; the attention from a word is set by
    `from_pieces`.

    Args:
        batch: Pieces of each sentence, to be padded as one batch.
        from_pieces: Attention from a word in several pieces: the `mean` over the pieces, or that of the
            `first`.
        device: Device of the factors.
    """
    pieces = max(len(part) for part in batch)
    positions = max(part.words for part in batch) + 2
    columns = np.zeros((len(batch), pieces, positions), np.float32)
    rows = np.zeros((len(batch), positions, pieces), np.float32)
    owners = np.tile(np.arange(positions), (len(batch), 1))
    for index, part in enumerate(batch):
        columns[index, np.arange(len(part)), part.positions] = 1
        places, readers = part.readers
        rows[index, readers, places] = 1
        owners[index, part.pieceless] = part.positions[part.pieces_before]
    if from_pieces == "first":
        rows = rows * (rows.cumsum(2) == 1)
    rows = rows / np.maximum(rows.sum(2, keepdims=True), 1)
    return Reduction(
        rows=torch.from_numpy(np.ascontiguousarray(rows[:, None])).to(device),
        columns=torch.from_numpy(columns).to(device),
        owners=torch.from_numpy(owners),
    )


def keep_apart(words: Tensor, pieceless: PiecelessWords, first: int = 0) -> Tensor:
    """Move, in the row of each word without a piece, the weight of the word that has its piece to the word; in place.

    Args:
        words: Attention over words, `[batch, heads, rows, positions]`.
        pieceless: The words without a piece of their own.
        first: Position of the first row.
    """
    if not len(pieceless.inputs):
        return words
    is_here = (pieceless.positions >= first) & (pieceless.positions < first + words.size(2))
    inputs = pieceless.inputs[is_here]
    positions = pieceless.positions[is_here]
    owners = pieceless.owners[is_here]
    rows = positions - first
    words[inputs, :, rows, positions] = words[inputs, :, rows, owners]
    words[inputs, :, rows, owners] = 0
    return words


def _sum_pieces(weights: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Reduce the attention of one input as the product does, `[heads, positions, positions]`."""
    heads = len(weights)
    pieces, words = columns.shape
    has_piece = columns.any(0)
    places = torch.where(columns.any(1), columns.argmax(1), words)  # the padding gets a position, which is left out
    shares = rows[0, has_piece].sum(0)[:, None]  # of each piece in the row of its word
    means = weights.new_zeros(heads, words + 1, pieces).index_add(1, places, weights * shares)[:, :words]
    means[:, ~has_piece] = rows[0, ~has_piece] @ weights
    return weights.new_zeros(heads, words, words + 1).index_add(2, places, means)[..., :words]
