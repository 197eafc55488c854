"""The words of a corpus as numbers."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attention.digest import digest
from attention.tokenizer import TextTokenizer
from corpora.sentence import CorpusError

PAD, UNKNOWN, MASK, START, END, SEPARATOR = SPECIALS = ("<pad>", "<unk>", "<mask>", "<s>", "</s>", "<sep>")
"""What a vocabulary of words begins with, in this order. A word of the corpus that is spelled like one is unknown."""


@dataclass(frozen=True)
class Vocabulary:
    """Words or pieces, each with its number, its place in `words`.

    Attributes:
        words: all of them, specials included.
        pad: number of what fills batches up.
        unknown: number of what stands for words without a number of their own.
        mask: number of what hides a word; None without.
        start: number of what stands before a text; None without.
        end: number of what stands behind it; None without.
        separator: number of what stands between the texts of a pair; None without.
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
    def specials(self) -> frozenset[int]:
        """Numbers that no word of a corpus has."""
        numbers = (self.pad, self.unknown, self.mask, self.start, self.end, self.separator)
        return frozenset(number for number in numbers if number is not None)

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {word: number for number, word in enumerate(self.words) if number not in self.specials}

    def numbers(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Number of each word, int64 `[words]`; that of the unknown for a word that is not there, or is a special."""
        return np.fromiter((self._numbers.get(word, self.unknown) for word in words), np.int64)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the words in their order and of the numbers of the specials."""
        specials = [self.pad, self.unknown, self.mask, self.start, self.end, self.separator]
        return digest(json.dumps([self.words, specials]).encode())


def build_vocabulary(counts: Counter[str], *, min_count: int, max_words: int | None) -> Vocabulary:
    """The specials, then words by falling count; words of one count in the order of their code points.

    Args:
        counts: of every word in the train split.
        min_count: leave out words that are rarer.
        max_words: keep no more than so many, the specials not counted; None for all.

    Raises:
        CorpusError: no word is left.
    """
    frequent = (word for word, count in counts.items() if count >= min_count and word not in SPECIALS)
    words = sorted(frequent, key=lambda word: (-counts[word], word))[:max_words]
    if not words:
        raise CorpusError(
            f"No word of train occurs {min_count} times: all would be unknown. Lower --data.init_args.min_count."
        )
    pad, unknown, mask, start, end, separator = range(len(SPECIALS))
    return Vocabulary((*SPECIALS, *words), pad, unknown, mask, start, end, separator)


def piece_vocabulary(tokenizer: TextTokenizer) -> Vocabulary:
    """The pieces of a tokenizer as they are numbered in it; `unknown` is its `pad` where it has no unknown piece."""
    return Vocabulary(
        tokenizer.pieces,
        tokenizer.pad,
        tokenizer.pad if tokenizer.unknown is None else tokenizer.unknown,
        tokenizer.mask,
        tokenizer.start,
        tokenizer.end,
        tokenizer.separator,
    )
