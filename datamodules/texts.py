"""One split of a labelled corpus, as numbers: batches of its texts, and what was cut or is unknown, counted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from corpora.labelled import LabelledText
from corpora.sentence import CorpusError
from datamodules.batch import Split, TextBatch
from datamodules.tokenization import Numbers, Tokens, Words, cut
from datamodules.vocabulary import SPECIALS, Vocabulary


class TextSplit(Dataset[TextBatch]):
    """One split, indexed by whole batches, so that a batch is gathered in one go from flat arrays.

    Args:
        split: what it is called.
        texts: as they were read.
        labels: int64 `[texts]`, place of the label of each.
        words: what stands between white space in them.
        tokens: what is left of them.
        cut: int64 `[texts]`, tokens that were taken from each.
        vocabulary: gives the tokens their numbers.

    Attributes:
        ids: the name of each text.
        lengths: int64 `[texts]`, tokens of each, delimiters included.
        labels: int64 `[texts]`.
        counts: what was cut or is unknown. `tokens` are what is left of the texts, delimiters not counted, and of them
            `unknown_tokens` have no number of their own; `texts_all_unknown` hold nothing else. `truncated_texts` lost
            `tokens_cut`, and `rationale_words_cut` of the deciding words have no token left. `texts_without_tokens`
            yielded nothing and were given the unknown token. Of words: `reserved_words` are spelled like a special and
            became unknown.
    """

    def __init__(
        self,
        split: Split,
        texts: Sequence[LabelledText],
        labels: Numbers,
        words: Words,
        tokens: Tokens,
        cut: Numbers,
        vocabulary: Vocabulary,
    ) -> None:
        self.split = split
        self.ids = [text.id for text in texts]
        self._words, self._sources = words, tokens.words
        self.labels = labels
        self.lengths = np.diff(tokens.offsets)
        self._offsets = tokens.offsets
        self._pad = vocabulary.pad
        numbers = tokens.codes
        if tokens.types is not None:
            meant = np.concatenate((vocabulary.numbers(tokens.types), np.arange(len(SPECIALS))))
            numbers = meant[tokens.codes]
        real, spoken = tokens.sources >= 0, tokens.words >= 0
        # In the smallest types that hold them: a corpus is kept whole.
        self._tokens = numbers.astype(np.int32)
        self._special = ~real
        self._sentences = tokens.sentences(words).astype(np.int32)
        self._segments = tokens.segments.astype(np.int8)
        self._rationale = np.zeros(len(numbers), bool)
        self._rationale[spoken] = words.rationale[tokens.words[spoken]]

        # A tokenizer without an unknown piece has pieces for everything; its vocabulary names the padding.
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
            self.counts["reserved_words"] = int(reserved[words.codes[tokens.words[spoken]]].sum())

    def __len__(self) -> int:
        return len(self.lengths)

    def tokens(self, item: int) -> list[int]:
        """Numbers of the tokens of a text, delimiters included."""
        numbers: list[int] = self._tokens[self._offsets[item] : self._offsets[item + 1]].tolist()
        return numbers

    def forms(self, item: int) -> list[str | None]:
        """The word of the text that each token is, or is a piece of; None for delimiters."""
        sources = self._sources[self._offsets[item] : self._offsets[item + 1]].tolist()
        return [None if place < 0 else self._words.types[self._words.codes[place]] for place in sources]

    def sentences(self, item: int) -> list[int]:
        """The sentence of each token of a text, from 0; -1 for delimiters."""
        numbers: list[int] = self._sentences[self._offsets[item] : self._offsets[item + 1]].tolist()
        return numbers

    def frequencies(self, size: int) -> Numbers:
        """How often each of the `size` numbers of the vocabulary occurs, int64 `[size]`, specials not counted."""
        return np.bincount(self._tokens[~self._special], minlength=size)

    def __getitem__(self, indices: list[int]) -> TextBatch:
        """The batch of these texts."""
        if not isinstance(indices, list):
            raise TypeError(
                "A split is read by whole batches. A Trainer that replaces the sampler asks for single items: give it "
                "use_distributed_sampler=False; the datamodule shares the batches between devices itself."
            )
        items = np.array(indices, np.int64)
        lengths = self.lengths[items]
        time = np.arange(lengths.max(initial=0))
        real = time < lengths[:, None]
        places = np.where(real, self._offsets[items][:, None] + time, 0)

        def padded(values: NDArray[Any], blank: int) -> Tensor:
            return torch.from_numpy(np.where(real, values[places], values.dtype.type(blank)))

        return TextBatch(
            index=torch.from_numpy(items),
            lengths=torch.from_numpy(lengths),
            tokens=padded(self._tokens, self._pad).long(),
            special=padded(self._special, False),
            sentences=padded(self._sentences, -1).long(),
            segments=padded(self._segments, 0).long(),
            labels=torch.from_numpy(self.labels[items]),
            rationale=padded(self._rationale, False),
            split=self.split,
        )


def cut_texts(
    path: Path,
    texts: Sequence[LabelledText],
    tokens: Tokens,
    limit: int | None,
    too_long: Literal["truncate", "error"],
) -> tuple[Tokens, Numbers]:
    """Let no text have more than `limit` tokens; see `datamodules.tokenization.cut`.

    Raises:
        CorpusError: a text is longer and must not be, or the limit leaves room for delimiters alone.
    """
    if limit is None:
        return tokens, np.zeros(len(texts), np.int64)
    try:
        short, lost = cut(tokens, limit)
    except ValueError as error:
        raise CorpusError(f"max_length: {limit} tokens leave {error}. Raise --data.init_args.max_length.") from None
    if too_long == "error" and lost.any():
        place = int((lost > 0).argmax())
        size = tokens.offsets[place + 1] - tokens.offsets[place]
        wrong = f"text {texts[place].id!r} has {size} tokens, and the limit is {limit}"
        remedy = "Raise --data.init_args.max_length as far as the encoder allows, or set --data.init_args.too_long"
        raise CorpusError.at(path, texts[place].line, wrong, f"{remedy} truncate")
    return short, lost
