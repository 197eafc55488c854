"""Labelled texts as tokens, words or pieces, and the numbers of the tokens in a vocabulary."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attention.inputs import TextTokenizer
from corpora.labelled import LabelledText
from corpora.sentence import CorpusError
from results.digests import digest
from results.errors import check_values

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

PAD, UNKNOWN, MASK, START, END, SEPARATOR = SPECIALS = ("<pad>", "<unk>", "<mask>", "<s>", "</s>", "<sep>")
"""First entries of a vocabulary of words, in this order. A word of the corpus that is spelled like one is unknown."""


@dataclass(frozen=True)
class Vocabulary:
    """Words or pieces, each with its number, its place in `words`.

    Attributes:
        words: all of them, specials included.
        pad: number of what fills batches up.
        unknown: number of what stands for words without a number of their own.
        mask: number of what hides a word; None, here and below, without.
        start: number of what stands before a text.
        end: number of what stands behind it.
        separator: number of what stands between the texts of a pair.
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
        """Numbers that no word of a corpus has."""
        return frozenset(number for number in self._specials if number is not None)

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {word: number for number, word in enumerate(self.words) if number not in self.specials}

    def numbers(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Return the number of each word, int64 `[words]`; `unknown` for a word that is absent, or is a special."""
        return np.fromiter((self._numbers.get(word, self.unknown) for word in words), np.int64)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the words in their order and of the numbers of the specials."""
        return digest(json.dumps([self.words, self._specials]).encode())


def build_vocabulary(counts: Counter[str], *, min_count: int, max_words: int | None) -> Vocabulary:
    """Build a vocabulary: the specials, then the words of train by falling count, then by their code points.

    Words rarer than `min_count` are left out, and those beyond the first `max_words`; a `CorpusError` if none is left.
    """
    frequent = (word for word, count in counts.items() if count >= min_count and word not in SPECIALS)
    words = sorted(frequent, key=lambda word: (-counts[word], word))[:max_words]
    if not words:
        raise CorpusError(
            f"No word of train occurs {min_count} times: all would be unknown. Lower --data.init_args.min_count."
        )
    return Vocabulary((*SPECIALS, *words), *range(len(SPECIALS)))


def piece_vocabulary(tokenizer: TextTokenizer) -> Vocabulary:
    """Return the pieces of a tokenizer as it numbers them; `unknown` is `pad` if it has no unknown piece."""
    return Vocabulary(
        tokenizer.pieces,
        tokenizer.pad,
        tokenizer.pad if tokenizer.unknown is None else tokenizer.unknown,
        tokenizer.mask,
        tokenizer.start,
        tokenizer.end,
        tokenizer.separator,
    )


ENDS = frozenset((".", "!", "?", "…", "..."))
"""Words that end a sentence; so do several in a row, together."""
CLOSERS = frozenset(("'", '"', "''", "’", "”", "»", ")", "]", "}", "-rrb-", "-RRB-"))
"""Words that belong to the sentence before them when they follow its end."""

Punctuation = Literal["attached", "apart"]
_APART = re.compile(
    r"-[lr][rcs]b-|(?:[a-z]\.){2,}|\w+?(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b|\d+(?:[.,]\d+)+|\w+(?:-\w+)*|\.{3}|[^\w\s]",
    re.IGNORECASE,
)
"""Words of raw English in the manner of the Penn Treebank, as GloVe's are: `do n't`, `it 's`, `( a-b )`, `u.s.`."""


@dataclass(frozen=True, eq=False)
class Words:
    """The words of some texts and their pairs, one after the other.

    Attributes:
        types: the distinct words, in the order in which they first occur.
        codes: int64 `[words]`, place of each word in `types`.
        offsets: int64 `[2 · texts + 1]`, the words of text i are `offsets[2i]:offsets[2i+1]`, those of its pair
            `offsets[2i+1]:offsets[2i+2]`.
        paired: bool `[texts]`, texts that have a pair.
        sentences: int64 `[words]`, non-decreasing, equal within a sentence and different between two.
        rationale: bool `[words]`, words that decide.
    """

    types: tuple[str, ...]
    codes: Numbers
    offsets: Numbers
    paired: Flags
    sentences: Numbers
    rationale: Flags


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of some texts, one text after the other; each text has at least one that is no special.

    Attributes:
        codes: int64 `[tokens]`; of words places in `types` with `SPECIALS` behind them, of pieces their numbers.
        offsets: int64 `[texts + 1]`, the tokens of text i are `offsets[i]:offsets[i+1]`.
        sources: int64 `[tokens]`, 0 in the text, 1 in its pair, -1 for specials.
        words: int64 `[tokens]`, place among the words; -1 for specials, and for what stands for a text without words.
        types: of words, all that there are; None of pieces.
        blank: texts that held no token and were given the unknown one.
    """

    codes: Numbers
    offsets: Numbers
    sources: Numbers
    words: Numbers
    types: tuple[str, ...] | None = None
    blank: int = 0

    @property
    def owners(self) -> Numbers:
        """Int64 `[tokens]`, the text of each token."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @property
    def counts(self) -> Counter[str]:
        """Count of each word; empty for pieces."""
        types = self.types or ()
        found = np.bincount(self.codes, minlength=len(types)).tolist()
        return Counter({word: count for word, count in zip(types, found, strict=False) if count})

    @property
    def segments(self) -> Numbers:
        """Int64 `[tokens]`, 0 in the text, 1 in its pair, and for a special what the token before it has."""
        last = np.maximum.accumulate(np.where(self.sources >= 0, np.arange(len(self.sources)), -1))
        within = last >= self.offsets[self.owners]
        return np.where(within, self.sources[last], 0)

    def sentences(self, words: Words) -> Numbers:
        """Return the 0-based sentence of each token in its text, int64 `[tokens]`, without gaps; -1 for specials."""
        found = np.full(len(self.codes), -1)
        real = np.flatnonzero(self.sources >= 0)
        owners, raw = self.owners[real], words.sentences[self.words[real]]
        first = np.diff(owners, prepend=-1) > 0
        number = np.cumsum(first | (np.diff(raw, prepend=-1) != 0))
        found[real] = number - number[first][owners]
        return found


@dataclass(frozen=True)
class TokenOptions:
    """Options of the tokens of texts; see `ClassificationDataModule`."""

    lowercase: bool = True
    punctuation: Punctuation = "attached"
    delimiters: bool = False
    sentence_separator: str | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        check_values(self, **vars(self))


def tokenize(
    path: Path,
    texts: Sequence[LabelledText],
    tokenizer: TextTokenizer | None,
    options: TokenOptions,
    too_long: Literal["truncate", "error"] = "truncate",
) -> tuple[Words, Tokens, Numbers]:
    """Return the words and tokens of the texts of a file, and how many tokens were cut from each, int64 `[texts]`.

    Case, punctuation and delimiters are a tokenizer's own matter, and it may have a limit of its own.

    Raises:
        CorpusError: a text is longer and must not be, or the limit leaves room for delimiters alone.
    """
    if tokenizer is not None:
        words = read_words(texts, sentence_separator=options.sentence_separator)
        tokens = piece_tokens(words, tokenizer)
    else:
        words = read_words(texts, options.lowercase, options.punctuation, options.sentence_separator)
        tokens = word_tokens(words, delimiters=options.delimiters)
    limits = (options.max_length, None if tokenizer is None else tokenizer.max_length)
    limit = min((limit for limit in limits if limit is not None), default=None)
    if limit is None:
        return words, tokens, np.zeros(len(texts), np.int64)
    short, lost = cut(tokens, limit)
    if too_long == "error" and lost.any():
        place = int((lost > 0).argmax())
        size = tokens.offsets[place + 1] - tokens.offsets[place]
        wrong = f"text {texts[place].id!r} has {size} tokens, and the limit is {limit}"
        remedy = "Raise --data.init_args.max_length as far as the encoder allows, or set --data.init_args.too_long"
        raise CorpusError.at(path, texts[place].line, wrong, f"{remedy} truncate")
    return words, short, lost


def read_words(
    texts: Sequence[LabelledText],
    lowercase: bool = False,
    punctuation: Punctuation = "attached",
    sentence_separator: str | None = None,
) -> Words:
    """Part texts into words, and into sentences.

    A sentence ends behind `ENDS` and the `CLOSERS` that follow, and with the text or the pair: a rule for texts whose
    punctuation stands apart. With a separator it ends there instead, and the separators are dropped.

    `attached` punctuation parts at white space alone, for texts that are tokenised already; `apart` makes marks and
    clitics words of their own. The parts of a word that decides all decide. In lower case the separator is, too.
    """
    separator = sentence_separator.lower() if sentence_separator is not None and lowercase else sentence_separator
    codes: list[int] = []
    offsets = [0]
    decide: list[int] = []
    places: dict[str, int] = {}
    for text in texts:
        for part, marked in ((text.text, text.rationale), (text.pair or "", None)):
            whole = (part.lower() if lowercase else part).split()
            apart = punctuation == "apart"
            groups = [_APART.findall(word) if apart and word != separator else [word] for word in whole]
            if marked:
                owners = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
                decide.extend(offsets[-1] + np.flatnonzero(np.isin(owners, marked)))
            codes.extend([places.setdefault(word, len(places)) for group in groups for word in group])
            offsets.append(len(codes))
    types = tuple(places)
    found = np.array(codes, np.int64)
    rationale = np.zeros(len(found), bool)
    rationale[decide] = True
    starts = np.zeros(len(found) + 1, bool)
    starts[offsets] = True
    bounds = np.array(offsets, np.int64)
    keep = np.ones(len(found), bool)
    if separator is None:
        starts[1:] |= _ended(found, types, starts[:-1])
    else:
        keep = found != places.get(separator, -1)
        starts[1:] |= ~keep
    return Words(
        types,
        found[keep],
        np.concatenate(([0], np.cumsum(keep)))[bounds],
        np.array([text.pair is not None for text in texts], bool),
        np.cumsum(starts[:-1])[keep],
        rationale[keep],
    )


def _ended(codes: Numbers, types: Sequence[str], starts: Flags) -> Flags:
    """Return the words that end a sentence, bool `[words]`: the last of each run of ends, or of their closers."""
    ends = np.array([word in ENDS for word in types], bool)[codes]
    # The last word up to each that closes nothing; at the start of a text there is nothing to close.
    other = ~np.array([word in CLOSERS for word in types], bool)[codes] | starts
    tail: Flags = ends[np.maximum.accumulate(np.where(other, np.arange(len(codes)), 0))]
    tail[:-1] &= ~tail[1:]
    return tail


def word_tokens(words: Words, *, delimiters: bool) -> Tokens:
    """Make each word a token; put a separator between a text and its pair, and delimiters, if wanted, around both."""
    starts, middles, stops = words.offsets[:-1:2], words.offsets[1::2], words.offsets[2::2]
    around = np.full(len(starts), delimiters)
    # What is put into each text, in its order: the start, what stands for no word at all, the separator, the end.
    wanted = np.stack((around, starts == stops, words.paired, around), 1)
    places = np.stack((starts, starts, middles, stops), 1)[wanted]
    specials = np.array([SPECIALS.index(word) for word in (START, UNKNOWN, SEPARATOR, END)])
    added = np.broadcast_to(len(words.types) + specials, wanted.shape)[wanted]
    source = np.broadcast_to((-1, 0, -1, -1), wanted.shape)[wanted]
    count = len(words.codes)
    return Tokens(
        codes=np.insert(words.codes, places, added),
        offsets=np.concatenate(([0], np.cumsum(stops - starts + wanted.sum(1)))),
        sources=np.insert(np.repeat(np.tile((0, 1), len(starts)), np.diff(words.offsets)), places, source),
        words=np.insert(np.arange(count), places, -1),
        types=words.types,
        blank=int((starts == stops).sum()),
    )


def piece_tokens(words: Words, tokenizer: TextTokenizer) -> Tokens:
    """Cut each text and its pair, words joined by single blanks, into the tokenizer's pieces and delimiters.

    A piece belongs to the word in which it ends.
    """
    spelled = [words.types[code] for code in words.codes]
    parts = [" ".join(spelled[start:stop]) for start, stop in zip(words.offsets, words.offsets[1:], strict=False)]
    pairs = [pair if paired else None for pair, paired in zip(parts[1::2], words.paired, strict=True)]
    found = tokenizer.split(parts[::2], pairs)
    sizes = np.array([len(word) for word in spelled], np.int64) + 1
    places = []
    for item, pieces in enumerate(found):
        own = np.full(len(pieces.ids), -1)
        for source in (0, 1):
            start, stop = words.offsets[2 * item + source : 2 * item + source + 2]
            inside = pieces.sources == source
            if start < stop:
                firsts = np.cumsum(sizes[start:stop]) - sizes[start:stop]
                own[inside] = start + np.searchsorted(firsts, pieces.ends[inside], side="right") - 1
        places.append(own)
    return Tokens(
        codes=np.concatenate([pieces.ids for pieces in found]),
        offsets=np.concatenate(([0], np.cumsum([len(pieces.ids) for pieces in found]))),
        sources=np.concatenate([pieces.sources for pieces in found]),
        words=np.concatenate(places),
        blank=sum(pieces.blank for pieces in found),
    )


def cut(tokens: Tokens, limit: int) -> tuple[Tokens, Numbers]:
    """Leave at most `limit` tokens of each text; specials stay, and of a pair the longer text is cut first.

    Returns the tokens, and how many each text lost, int64 `[texts]`. It is a `CorpusError` if the specials leave no
    room for another token.
    """
    owners, texts = tokens.owners, len(tokens.offsets) - 1
    first, second = (np.bincount(owners[tokens.sources == source], minlength=texts) for source in (0, 1))
    room = limit - (np.diff(tokens.offsets) - first - second)
    if room.min() < 1:
        raise CorpusError(
            f"max_length: {limit} tokens leave no room for a token beside {limit - room.min()} delimiters. Raise "
            f"--data.init_args.max_length."
        )
    second_kept = np.minimum(second, np.maximum(room // 2, room - first))
    first_kept = np.minimum(first, room - second_kept)
    keep = tokens.sources < 0
    for source, kept in enumerate((first_kept, second_kept)):
        own = tokens.sources == source
        earlier = np.cumsum(own) - own  # of this source, before each token
        keep |= own & (earlier - earlier[tokens.offsets[:-1]][owners] < kept[owners])
    offsets = np.concatenate(([0], np.cumsum(keep)))[tokens.offsets]
    codes, sources, words = (column[keep] for column in (tokens.codes, tokens.sources, tokens.words))
    short = replace(tokens, codes=codes, offsets=offsets, sources=sources, words=words)
    return short, np.diff(tokens.offsets) - np.diff(offsets)
