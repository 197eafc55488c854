"""Tokenization of labelled texts into words or pieces, and vocabularies that assign an id to each token."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attention_probing.attention.inputs import TextTokenizer
from attention_probing.corpora.labelled import LabelledText
from attention_probing.corpora.sentence import CorpusError
from attention_probing.results import Flags, Integers
from attention_probing.results.digests import digest
from attention_probing.results.errors import pluralize, setting

SPECIALS = ("<pad>", "<unk>", "<mask>", "<s>", "</s>", "<sep>")
PAD, UNKNOWN, MASK, START, END, SEPARATOR = SPECIALS
"""First entries of a vocabulary of words. A word of the corpus that is spelled like one of them is unknown."""


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary of words or pieces; the id of each entry is its index in `words`.

    Attributes:
        words: All entries, special tokens included.
        pad: Id of the padding.
        unknown: Id that stands for every word that is not in the vocabulary.
        mask: Id of the mask token; None if there is none.
        start: Id of the delimiter before a text; None if there is none.
        end: Id of the delimiter after a text; None if there is none.
        separator: Id of the delimiter between the texts of a pair; None if there is none.
    """

    words: tuple[str, ...]
    pad: int
    unknown: int
    mask: int | None
    start: int | None
    end: int | None
    separator: int | None

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _specials(self) -> tuple[int | None, ...]:
        return self.pad, self.unknown, self.mask, self.start, self.end, self.separator

    @cached_property
    def specials(self) -> frozenset[int]:
        """Ids of the special tokens; no word of a corpus gets any of them but `unknown`."""
        return frozenset(number for number in self._specials if number is not None)

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {word: number for number, word in enumerate(self.words) if number not in self.specials}

    def numbers(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Return the id of each word, int64 `[words]`.

        A word that is not in the vocabulary, or is spelled like a special token, gets the id `unknown`.
        """
        return np.fromiter((self._numbers.get(word, self.unknown) for word in words), np.int64)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the vocabulary, in hexadecimal: of its words in order and of the ids of its special tokens."""
        return digest(json.dumps([self.words, self._specials]).encode())


def build_vocabulary(counts: Counter[str], *, min_count: int) -> Vocabulary:
    """Return a vocabulary of the special tokens, followed by words in descending order of their count.

    Words of equal count are in order of their code points.

    Args:
        counts: Count of each word in train.
        min_count: Lowest count of a word in the vocabulary.

    Raises:
        CorpusError: No word is left.
    """
    frequent = (word for word, count in counts.items() if count >= min_count and word not in SPECIALS)
    words = sorted(frequent, key=lambda word: (-counts[word], word))
    if not words:
        raise CorpusError(
            f"No word of the train split occurs {min_count} times or more, so that all words would be unknown. Lower "
            f"{setting('data.min_count')}."
        )
    return Vocabulary((*SPECIALS, *words), *range(len(SPECIALS)))


def piece_vocabulary(tokenizer: TextTokenizer) -> Vocabulary:
    """Return the vocabulary of a tokenizer's pieces.

    Its `unknown` is equal to `pad` if the tokenizer has no unknown piece.
    """
    unknown = tokenizer.pad if tokenizer.unknown is None else tokenizer.unknown
    delimiters = tokenizer.start, tokenizer.end, tokenizer.separator
    return Vocabulary(tokenizer.pieces, tokenizer.pad, unknown, tokenizer.mask, *delimiters)


SENTENCE_ENDS = frozenset((".", "!", "?", "…", "..."))
"""Words that end a sentence; several in a row end it together."""
CLOSERS = frozenset(("'", '"', "''", "’", "”", "»", ")", "]", "}", "-rrb-", "-RRB-"))
"""Words that belong to the sentence before them if they follow its end."""

Punctuation = Literal["attached", "apart"]
_APART = re.compile(
    r"-[lr][rcs]b-|(?:[a-z]\.){2,}|\w+?(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b|\d+(?:[.,]\d+)+|\w+(?:-\w+)*|\.{3}|[^\w\s]",
    re.IGNORECASE,
)
"""Words of raw English in the manner of the Penn Treebank, as GloVe's are: `do n't`, `it 's`, `( a-b )`, `u.s.`."""


@dataclass(frozen=True, eq=False)
class Words:
    """Words of several texts in flat arrays; the words of a text are followed by those of its pair.

    The pair of a text is the second text of a record, such as a hypothesis.

    Attributes:
        types: Distinct words in order of their first occurrence.
        codes: int64 `[words]`, index of each word in `types`.
        offsets: int64 `[2 · texts + 1]`; text i has the words `offsets[2i]:offsets[2i+1]`, its pair the words
            `offsets[2i+1]:offsets[2i+2]`.
        paired: Bool `[texts]`, True for texts that have a pair.
        sentences: int64 `[words]`, number of each word's sentence. Numbers never decrease, and no two sentences
            have the same number.
        rationale: Bool `[words]`, True for words of the rationale.
    """

    types: tuple[str, ...]
    codes: Integers
    offsets: Integers
    paired: Flags
    sentences: Integers
    rationale: Flags


@dataclass(frozen=True, eq=False)
class TokenizedTexts:
    """Tokens of several texts in flat arrays; each text has at least one token that is not a special token.

    Attributes:
        codes: int64 `[tokens]`; if tokens are words, indices into `(*types, *SPECIALS)`; if they are pieces, their
            ids.
        offsets: int64 `[texts + 1]`; text i has the tokens `offsets[i]:offsets[i+1]`.
        sources: int64 `[tokens]`, 0 in the text, 1 in its pair, -1 for special tokens.
        words: int64 `[tokens]`, index of each token's word in the flat arrays of `Words`; -1 for special tokens,
            and for the unknown token of a blank text.
        types: The distinct words; None for pieces.
        blank: Number of texts that held no token and were given the unknown token.
    """

    codes: Integers
    offsets: Integers
    sources: Integers
    words: Integers
    types: tuple[str, ...] | None = None
    blank: int = 0

    @property
    def owners(self) -> Integers:
        """Index of the text that each token belongs to, int64 `[tokens]`."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @property
    def counts(self) -> Counter[str]:
        """Number of occurrences of each word in the texts; empty if tokens are pieces."""
        types = self.types or ()
        numbers = np.bincount(self.codes, minlength=len(types)).tolist()
        return Counter({word: number for word, number in zip(types, numbers, strict=False) if number})

    @property
    def segments(self) -> Integers:
        """Segment of each token, int64 `[tokens]`: 0 in the text, 1 in its pair.

        A special token has the segment of the token before it, or 0 at the start of a text.
        """
        last = np.maximum.accumulate(np.where(self.sources >= 0, np.arange(len(self.sources)), -1))
        within = last >= self.offsets[self.owners]
        return np.where(within, self.sources[last], 0)

    def sentences(self, words: Words) -> Integers:
        """Return the 0-based index of each token's sentence within its text, int64 `[tokens]`; -1 for special tokens.

        The indices have no gaps, even if all tokens of a sentence were cut.

        Args:
            words: Words of the same texts.
        """
        sentences = np.full(len(self.codes), -1)
        real = np.flatnonzero(self.sources >= 0)
        owners = self.owners[real]
        numbers = words.sentences[self.words[real]]  # counted over all texts
        starts_text = np.diff(owners, prepend=-1) > 0
        starts_sentence = starts_text | (np.diff(numbers, prepend=-1) != 0)
        without_gaps = np.cumsum(starts_sentence)
        sentences[real] = without_gaps - without_gaps[starts_text][owners]
        return sentences


@dataclass(frozen=True)
class TokenOptions:
    """Options for the tokens of texts.

    Attributes:
        punctuation: `attached` splits at white space alone, for texts that are already tokenized;
            `apart` also separates punctuation marks and clitics from words.
        delimiters: Add a start token before and an end token after each text, if tokens are words.
        sentence_separator: Word that separates sentences and is dropped; None to end sentences at
            punctuation, by the rule of `read_words`.
        max_length: Largest number of tokens of a text, delimiters included; None for no limit. If
            tokens are pieces, the limit of the tokenizer's encoder holds as well.
    """

    punctuation: Punctuation = "attached"
    delimiters: bool = False
    sentence_separator: str | None = None
    max_length: int | None = None


def tokenize(
    texts: Sequence[LabelledText], tokenizer: TextTokenizer | None, options: TokenOptions
) -> tuple[Words, TokenizedTexts, Integers]:
    """Split texts into words, and turn these into tokens.

    Without a tokenizer, words are converted to lower case. With a tokenizer, `punctuation` and `delimiters` of the
    options are ignored, because the tokenizer has its own rules; if its length limit is lower than `max_length`, that
    limit holds.

    Args:
        texts: The texts.
        tokenizer: Tokenizer whose pieces are the tokens; None makes words the tokens.
        options: Options for the tokens.

    Returns:
        Words, tokens, and the number of tokens cut from each text, int64 `[texts]`.

    Raises:
        CorpusError: The limit leaves no room for a token beside the delimiters.
    """
    words = _words_of(texts, tokenizer, options)
    limit = options.max_length
    if tokenizer is None:
        tokens = word_tokens(words, delimiters=options.delimiters)
    else:
        tokens = piece_tokens(words, tokenizer)
        limit = tokenizer.max_length if limit is None else min(limit, tokenizer.max_length)
    if limit is None:
        return words, tokens, np.zeros(len(texts), np.int64)
    tokens, tokens_cut = truncate(tokens, limit)
    return words, tokens, tokens_cut


def _words_of(texts: Sequence[LabelledText], tokenizer: TextTokenizer | None, options: TokenOptions) -> Words:
    if tokenizer is not None:
        return read_words(texts, sentence_separator=options.sentence_separator)
    return read_words(texts, True, options.punctuation, options.sentence_separator)


def unread_words(
    texts: Sequence[LabelledText],
    tokenizer: TextTokenizer | None,
    options: TokenOptions,
    tokenized: tuple[Words, TokenizedTexts, Integers],
) -> Integers:
    """Return the number of words at the end of each text that are cut off, wholly or in part, int64 `[texts]`.

    Words are separated by white space. Only the first text of a pair is counted. If tokens are pieces, the last word
    that is read of a cut text counts too, because some of its pieces may be missing.

    Args:
        texts: The texts.
        tokenizer: See `tokenize`.
        options: See `tokenize`.
        tokenized: Their tokens from `tokenize`.
    """
    words, tokens, lost = tokenized
    unread = np.zeros(len(texts), np.int64)
    for item in np.flatnonzero(lost).tolist():
        of_text = slice(*tokens.offsets[item : item + 2])
        first = words.offsets[2 * item]
        words_read = tokens.words[of_text][tokens.sources[of_text] == 0]
        last = words_read.max(initial=first - 1)
        alone = []
        for word in texts[item].text.split():
            alone.append(replace(texts[item], text=word, pair=None, rationale=None))
        ends = _words_of(alone, tokenizer, options).offsets[2::2]
        unread[item] = np.count_nonzero(ends > last - first + (tokenizer is None))
    return unread


def read_words(
    texts: Sequence[LabelledText],
    lowercase: bool = False,
    punctuation: Punctuation = "attached",
    sentence_separator: str | None = None,
) -> Words:
    """Split texts into words and sentences, and return them as flat arrays.

    A sentence ends at the end of each text, and of the second text of a pair. Within a text, a sentence
    ends at each `sentence_separator`, a word that is dropped. Without a separator, it ends after a mark
    such as `.` (`SENTENCE_ENDS`) and the closing quotes and brackets that follow the mark (`CLOSERS`). The marks
    are found only if they are words of their own.

    If a word of the rationale is split, all its parts belong to the rationale.

    Args:
        texts: The texts.
        lowercase: Convert words, and the separator, to lower case.
        punctuation: `attached` splits at white space alone, for texts that are already tokenized; `apart`
            also separates punctuation marks and clitics from words.
        sentence_separator: Word between sentences; None for no separator.
    """
    separator = sentence_separator
    if separator is not None and lowercase:
        separator = separator.lower()
    codes: list[int] = []
    offsets = [0]
    in_rationale: list[int] = []  # places of the words of the rationales
    code_of: dict[str, int] = {}
    for text in texts:
        for part, rationale in ((text.text, text.rationale or ()), (text.pair or "", ())):
            spelled = (part.lower() if lowercase else part).split()
            owners: Sequence[int] = range(len(spelled))
            if punctuation == "apart":
                spelled, owners = _split_apart(spelled, separator)
            if rationale:
                is_in_rationale = np.isin(owners, rationale)
                in_rationale.extend(offsets[-1] + np.flatnonzero(is_in_rationale))
            codes.extend([code_of.setdefault(word, len(code_of)) for word in spelled])
            offsets.append(len(codes))
    types = tuple(code_of)
    all_codes = np.array(codes, np.int64)
    starts = np.zeros(len(codes) + 1, bool)  # of sentences
    starts[offsets] = True
    keep = np.ones(len(codes), bool)
    if separator is None:
        starts[1:] |= _find_sentence_ends(all_codes, types, starts[:-1])
    else:
        keep = all_codes != code_of.get(separator, -1)
        starts[1:] |= ~keep
    rationales = np.zeros(len(codes), bool)
    rationales[in_rationale] = True
    kept_before = np.concatenate(([0], np.cumsum(keep)))  # number of words that are kept before each word
    return Words(
        types=types,
        codes=all_codes[keep],
        offsets=kept_before[np.array(offsets, np.int64)],
        paired=np.array([text.pair is not None for text in texts], bool),
        sentences=np.cumsum(starts[:-1])[keep],
        rationale=rationales[keep],
    )


def _split_apart(words: Sequence[str], separator: str | None) -> tuple[list[str], list[int]]:
    """Split words into words without punctuation and clitics; return these, and the place of the word of each."""
    parts: list[str] = []
    owners: list[int] = []
    for place, word in enumerate(words):
        pieces = [word] if word == separator else _APART.findall(word)
        parts.extend(pieces)
        owners.extend([place] * len(pieces))
    return parts, owners


def _find_sentence_ends(codes: Integers, types: Sequence[str], starts: Flags) -> Flags:
    """Return the words that end a sentence, bool `[words]`: the last word of each run of ends and their closers."""
    is_end = np.array([word in SENTENCE_ENDS for word in types], bool)[codes]
    is_closer = np.array([word in CLOSERS for word in types], bool)[codes]
    # Up to each word, the last word that is no closer; at the start of a text there is nothing to close.
    places = np.where(~is_closer | starts, np.arange(len(codes)), 0)
    last_other = np.maximum.accumulate(places)
    tail: Flags = is_end[last_other]
    tail[:-1] &= ~tail[1:]
    return tail


def word_tokens(words: Words, *, delimiters: bool) -> TokenizedTexts:
    """Return the words of each text as its tokens, with a separator between a text and its pair.

    If a text has no words, and its pair has none either, it gets the unknown token.

    Args:
        words: Words of the texts.
        delimiters: Add a token before and after each text.
    """
    starts = words.offsets[:-1:2]
    middles = words.offsets[1::2]
    stops = words.offsets[2::2]
    has_delimiters = np.full(len(starts), delimiters)
    is_blank = starts == stops
    # Specials of each text in order: the start, the unknown token of a blank text, the separator, the end.
    has_special = np.stack((has_delimiters, is_blank, words.paired, has_delimiters), 1)
    places = np.stack((starts, starts, middles, stops), 1)[has_special]
    specials = np.array([SPECIALS.index(word) for word in (START, UNKNOWN, SEPARATOR, END)])
    special_codes = np.broadcast_to(len(words.types) + specials, has_special.shape)[has_special]
    special_sources = np.broadcast_to((-1, 0, -1, -1), has_special.shape)[has_special]
    sources = np.repeat(np.tile((0, 1), len(starts)), np.diff(words.offsets))
    lengths = stops - starts + has_special.sum(1)
    return TokenizedTexts(
        codes=np.insert(words.codes, places, special_codes),
        offsets=np.concatenate(([0], np.cumsum(lengths))),
        sources=np.insert(sources, places, special_sources),
        words=np.insert(np.arange(len(words.codes)), places, -1),
        types=words.types,
        blank=int(is_blank.sum()),
    )


def piece_tokens(words: Words, tokenizer: TextTokenizer) -> TokenizedTexts:
    """Return the pieces into which a tokenizer cuts each text and its pair, with the tokenizer's delimiters.

    The words are joined by single blanks before they are cut; a piece belongs to the word in which it begins, and
    the blank before a word is part of the word.
    """
    forms = [words.types[code] for code in words.codes]
    texts = []
    pairs: list[str | None] = []
    for item, paired in enumerate(words.paired):
        start, middle, stop = words.offsets[2 * item : 2 * item + 3]
        texts.append(" ".join(forms[start:middle]))
        pair = " ".join(forms[middle:stop])
        pairs.append(pair if paired else None)
    pieces_of_texts = tokenizer.split(texts, pairs)
    sizes = np.array([len(form) for form in forms], np.int64) + 1  # of each word with its blank
    word_of_piece = []
    for item, pieces in enumerate(pieces_of_texts):
        word = np.full(len(pieces.ids), -1)
        for source in (0, 1):
            start, stop = words.offsets[2 * item + source : 2 * item + source + 2]
            inside = pieces.sources == source
            if start < stop:
                blanks = np.cumsum(sizes[start:stop]) - sizes[start:stop] - 1  # place of the blank before each word
                word[inside] = start + np.searchsorted(blanks, pieces.starts[inside], side="right") - 1
        word_of_piece.append(word)
    lengths = [len(pieces.ids) for pieces in pieces_of_texts]
    return TokenizedTexts(
        codes=np.concatenate([pieces.ids for pieces in pieces_of_texts]),
        offsets=np.concatenate(([0], np.cumsum(lengths))),
        sources=np.concatenate([pieces.sources for pieces in pieces_of_texts]),
        words=np.concatenate(word_of_piece),
        blank=sum(pieces.blank for pieces in pieces_of_texts),
    )


def truncate(tokens: TokenizedTexts, limit: int) -> tuple[TokenizedTexts, Integers]:
    """Truncate each text to at most `limit` tokens.

    Special tokens stay. Of a pair of texts, the longer one is cut first.

    Returns:
        The tokens that remain, and the number of tokens cut from each text, int64 `[texts]`.

    Raises:
        CorpusError: The special tokens leave no room for another token.
    """
    owners = tokens.owners
    texts = len(tokens.offsets) - 1
    first = np.bincount(owners[tokens.sources == 0], minlength=texts)
    second = np.bincount(owners[tokens.sources == 1], minlength=texts)
    room = limit - (np.diff(tokens.offsets) - first - second)
    if room.min() < 1:
        raise CorpusError(
            f"{setting('data.max_length')} is {limit}, which leaves no room for a word beside "
            f"{pluralize(limit - room.min(), 'delimiter')}. Give {limit - room.min() + 1} or more."
        )
    second_kept = np.minimum(second, np.maximum(room // 2, room - first))
    first_kept = np.minimum(first, room - second_kept)
    keep = tokens.sources < 0
    for source, most in enumerate((first_kept, second_kept)):
        is_of_source = tokens.sources == source
        before = np.cumsum(is_of_source) - is_of_source  # tokens of this source before each token
        before_text = before[tokens.offsets[:-1]][owners]
        keep |= is_of_source & (before - before_text < most[owners])
    offsets = np.concatenate(([0], np.cumsum(keep)))[tokens.offsets]
    short = replace(
        tokens,
        codes=tokens.codes[keep],
        offsets=offsets,
        sources=tokens.sources[keep],
        words=tokens.words[keep],
    )
    return short, np.diff(tokens.offsets) - np.diff(offsets)
