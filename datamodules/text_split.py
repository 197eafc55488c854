"""Labelled texts of one split as tokens."""

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from attention_probing.attention.inputs import TextTokenizer
from attention_probing.corpora.labelled import LabelledText
from attention_probing.corpora.splits import Split
from attention_probing.datamodules.batches import LengthBatches, TextBatch, check_batch, padder
from attention_probing.datamodules.labels import Labels
from attention_probing.datamodules.tokenization import (
    SPECIALS,
    TokenizedTexts,
    Vocabulary,
    Words,
)
from attention_probing.datamodules.warnings import UNKNOWN_SHARE
from attention_probing.results import Integers
from attention_probing.results.digests import digest
from attention_probing.results.errors import setting
from attention_probing.results.progress import warn


class TextSplit(Dataset[TextBatch]):
    """Dataset of the labelled texts of one split, indexed by whole batches: `split[[3, 7]]` is a `TextBatch`.

    The entries of `counts` are:

    - `tokens`: tokens of all texts, without delimiters.
    - `unknown_tokens`: tokens that are not in the vocabulary.
    - `texts_all_unknown`: texts in which every token is unknown.
    - `texts_without_tokens`: texts without any token, which were given the unknown token.
    - `truncated_texts` and `tokens_cut`: texts that were truncated, and tokens cut from them.
    - `rationale_words_cut`: rationale words that lost all their tokens.
    - `reserved_words`, if tokens are words: words that are spelled like a special token, and so became
      unknown.

    Args:
        split: Name of the split.
        texts: The texts.
        labels: Label of each text; see the attribute `labels`.
        words: Words of the texts.
        tokens: Tokens of the texts, truncated.
        cut: Number of tokens cut from each text, int64 `[texts]`.
        vocabulary: The vocabulary.
        pieces: Tokenizer of the texts; None if tokens are words.

    Attributes:
        ids: Id of each text.
        labels: int64 `[texts]`, indices into the labels of the datamodule; for a regression, float32
            `[texts]`, the labels themselves.
        lengths: int64 `[texts]`, number of tokens of each text, delimiters included.
        counts: Counts by name, as listed above.
    """

    def __init__(
        self,
        split: Split,
        texts: Sequence[LabelledText],
        labels: Labels,
        words: Words,
        tokens: TokenizedTexts,
        cut: Integers,
        vocabulary: Vocabulary,
        pieces: TextTokenizer | None,
    ) -> None:
        self.split = split
        self.ids = [text.id for text in texts]
        self.labels = labels
        self.lengths = np.diff(tokens.offsets)
        self._pieces = pieces
        self._spelled = vocabulary.words
        self._words = words
        self._sources = tokens.words
        self._offsets = tokens.offsets
        self._pad = vocabulary.pad
        numbers = tokens.codes
        if tokens.types is not None:
            ids = np.concatenate((vocabulary.numbers(tokens.types), np.arange(len(SPECIALS))))
            numbers = ids[tokens.codes]
        real = tokens.sources >= 0
        of_word = tokens.words >= 0
        # The smallest types that hold the numbers, because a corpus is kept whole.
        self._tokens = numbers.astype(np.int32)
        self._special = ~real
        self._sentences = tokens.sentences(words).astype(np.int32)
        self._segments = tokens.segments.astype(np.int8)
        self._rationale = np.zeros(len(numbers), bool)
        self._rationale[of_word] = words.rationale[tokens.words[of_word]]

        # A tokenizer without an unknown piece has pieces for everything; `unknown` is the padding then.
        known = real & ((numbers != vocabulary.unknown) | (vocabulary.unknown == vocabulary.pad))
        marked = np.unique(tokens.words[self._rationale])
        self.counts = {
            "tokens": int(real.sum()),
            "unknown_tokens": int((real & ~known).sum()),
            "texts_all_unknown": len(texts) - len(np.unique(tokens.owners[known])),
            "texts_without_tokens": tokens.blank,
            "truncated_texts": int((cut > 0).sum()),
            "tokens_cut": int(cut.sum()),
            "rationale_words_cut": sum(len(text.rationale or ()) for text in texts) - len(marked),
        }
        if tokens.types is not None:
            reserved = np.array([word in SPECIALS for word in words.types], bool)
            self.counts["reserved_words"] = int(reserved[words.codes[tokens.words[of_word]]].sum())

    @property
    def digest(self) -> str:
        """SHA-256 of the tokens of all texts, in hexadecimal."""
        return digest(self._tokens.tobytes())

    def warn_of_unknown(self, where: str) -> None:
        """Log a warning if more than the fraction `UNKNOWN_SHARE` of the texts consist only of unknown tokens.

        Args:
            where: Description of the texts, for the message.
        """
        count = self.counts["texts_all_unknown"]
        texts = len(self.ids)
        if count > UNKNOWN_SHARE * texts:
            warn(
                f"{where}: in {count} of {texts} texts ({count / texts:.0%}) every token is unknown, so a classifier "
                f"cannot distinguish them. Check that language, case and tokenization are as in the training."
            )

    def warn_of_untrained(self, where: str) -> None:
        """Log a warning if more than the fraction `UNKNOWN_SHARE` of the tokens is unknown, while none of train is.

        Args:
            where: Description of the texts, for the message.
        """
        unknown = self.counts["unknown_tokens"]
        tokens = self.counts["tokens"]
        if unknown > UNKNOWN_SHARE * tokens:
            warn(
                f"{where}: {unknown} of {tokens} tokens ({unknown / tokens:.0%}) are unknown, but none of train, so "
                f"the embedding of unknown words is not trained. {setting('data.min_count', '2')} trains it on rare "
                f"words."
            )

    def __len__(self) -> int:
        return len(self.lengths)

    def batches(self, most: int, items: Sequence[int] | None = None) -> Iterator[TextBatch]:
        """Yield texts of the split, in batches of texts of similar length.

        Args:
            most: Largest number of tokens in a batch, padding included. A text with more tokens is a
                batch by itself.
            items: Indices of the texts; None for all.
        """
        batches = LengthBatches(
            self.lengths,
            items=items,
            max_cells=most,
            max_items=max(len(self), 1),
            shuffle=False,
            cells="tokens",
        )
        for indices in batches:
            yield self[indices]

    def tokens(self, item: int) -> list[int]:
        """Return the ids of the tokens of a text, delimiters included.

        Args:
            item: Index of the text in the split.
        """
        return self._of(item, self._tokens)

    def readable(self, item: int) -> list[str]:
        """Return the tokens of a text, delimiters included; pieces as `attention.alignment.readable` writes them."""
        tokens = self.tokens(item)
        if self._pieces is not None:
            return self._pieces.readable(tokens)
        return [self._spelled[token] for token in tokens]

    def forms(self, item: int) -> list[str | None]:
        """Return the word to which each token of a text belongs; None for delimiters.

        If tokens are words, every token is its own word. The unknown token of a text without words has
        no word, and gets None.

        Args:
            item: Index of the text in the split.
        """
        forms: list[str | None] = []
        for place in self._of(item, self._sources):
            if place < 0:
                forms.append(None)
            else:
                forms.append(self._words.types[self._words.codes[place]])
        return forms

    def places(self, item: int) -> list[int]:
        """Return the 0-based index of the word to which each token of a text belongs; -1 for delimiters.

        The unknown token of a text without words also gets -1.

        Args:
            item: Index of the text in the split.
        """
        first = int(self._words.offsets[2 * item])
        return [-1 if place < 0 else place - first for place in self._of(item, self._sources)]

    def sentences(self, item: int) -> list[int]:
        """Return the 0-based index of the sentence of each token of a text; -1 for delimiters.

        Args:
            item: Index of the text in the split.
        """
        return self._of(item, self._sentences)

    def sentence_counts(self) -> NDArray[np.integer[Any]]:
        """Return the number of sentences of each text, `[texts]`."""
        return np.maximum.reduceat(self._sentences, self._offsets[:-1]) + 1

    def _of(self, item: int, values: NDArray[np.integer[Any]]) -> list[int]:
        numbers: list[int] = values[self._offsets[item] : self._offsets[item + 1]].tolist()
        return numbers

    @property
    def word_counts(self) -> Integers:
        """Number of tokens of each text without delimiters, int64 `[texts]`."""
        return np.diff(np.append(0, self.real.cumsum())[self._offsets])

    @property
    def real(self) -> NDArray[np.bool_]:
        """Bool `[tokens]`, over the tokens of all texts, one text after the other; False for delimiters."""
        return ~self._special

    def replace_tokens(self, chosen: NDArray[np.bool_], token: int) -> "TextSplit":
        """Return the same texts with one token in the place of others; `forms` and `counts` stay those of the texts.

        Args:
            chosen: Bool `[tokens]`, over the tokens of all texts; True for the tokens to replace.
            token: Id of the token that takes their place.
        """
        other = copy(self)
        other._tokens = np.where(chosen, np.int32(token), self._tokens)
        return other

    def frequencies(self, size: int) -> Integers:
        """Return the number of occurrences of each vocabulary entry in the split, int64 `[size]`.

        Delimiters and separators are not counted.

        Args:
            size: Size of the vocabulary.
        """
        return np.bincount(self._tokens[~self._special], minlength=size)

    def __getitem__(self, indices: list[int]) -> TextBatch:
        """Return the batch of these texts."""
        check_batch(indices)
        padded = padder(self._offsets, indices)
        return TextBatch(
            index=torch.tensor(indices, dtype=torch.int64),
            lengths=torch.from_numpy(self.lengths[indices]),
            tokens=padded(self._tokens, self._pad).long(),
            special=padded(self._special, False),
            sentences=padded(self._sentences, -1).long(),
            segments=padded(self._segments, 0).long(),
            labels=torch.from_numpy(self.labels[indices]),
            rationale=padded(self._rationale, False),
            split=self.split,
        )
