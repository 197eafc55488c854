"""What a datamodule hands to a probe or a classifier: every field with its shape."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corpora.document import Window
from corpora.texts import Passage

Split = Literal["train", "dev", "test"]
EncoderOf = Literal["given", "before", "random_init"]
"""Whose attention a batch holds: that of the encoder that was asked for, of the same before its fine-tuning, or of one
with weights drawn anew."""


def padder(offsets: NDArray[np.integer[Any]], items: Sequence[int]) -> Callable[[NDArray[Any], int], Tensor]:
    """Puts values of some items, which lie one after the other in flat arrays, side by side.

    Args:
        offsets: `[all items + 1]`, the values of item i are `offsets[i]:offsets[i+1]`.
        items: which of them.

    Returns:
        `[items, longest]`, of such an array and of the value that stands in the padding.
    """
    starts, lengths = offsets[items], np.diff(offsets)[items]
    time = np.arange(lengths.max(initial=0))
    real = time < lengths[:, None]
    places = np.where(real, starts[:, None] + time, 0)
    return lambda values, blank: torch.from_numpy(np.where(real, values[places], values.dtype.type(blank)))


class Movable:
    """A dataclass whose tensors move together."""

    def to(self, device: torch.device, non_blocking: bool = False) -> Self:
        """The batch on another device."""
        return self._moved(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The batch in page-locked memory, for copies to a GPU that overlap with its work."""
        return self._moved(Tensor.pin_memory)

    def _moved(self, move: Callable[[Tensor], Tensor]) -> Self:
        held: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: move(value) for name, value in held.items()})  # type: ignore[type-var]


@dataclass(frozen=True)
class AttentionBatch(Movable):
    """Some sentences of one split, padded to the longest of them, n words.

    Attributes:
        index: int64 `[batch]`, positions of the sentences in their split.
        lengths: int64 `[batch]`, words of each sentence.
        heads: int64 `[batch, n]`, gold heads, 1-based, 0 = root; -1 in the padding.
        relations: int64 `[batch, n]`, labels as numbers; -1 in the padding.
        punctuation: bool `[batch, n]`, words that UAS leaves out; False in the padding.
        attention: float32 `[batch, layers, heads, n+2, n+2]`, axes from and to. Position 0 is the start
            delimiter, 1…length are the words, length+1 is the end delimiter; zeros behind it. For a probe that does not
            read it, `[batch, layers, heads, 0, 0]`.
        hidden: `[batch, layers', n, size]`, hidden states in the precision of the store, zeros in the padding; those
            of no layer where none are kept or read.
        vectors: float32 `[batch, n, size]`, word vectors; zeros for unknown words and in the padding, and of size 0
            where there are none or they are not read.
        split: the sentences are of.
        encoder: whose attention it is: `random_init` for that of an encoder with random weights, beside the given one.
    """

    index: Tensor
    lengths: Tensor
    heads: Tensor
    relations: Tensor
    punctuation: Tensor
    attention: Tensor
    hidden: Tensor
    vectors: Tensor
    split: Split
    encoder: EncoderOf = "given"

    @property
    def mask(self) -> Tensor:
        """Bool `[batch, n]`, True where a word is real."""
        return torch.arange(self.heads.size(1), device=self.lengths.device) < self.lengths[:, None]


@dataclass(frozen=True)
class AntecedentBatch(Movable):
    """One window of a document, with m mentions that have U different head words among them; or none.

    A device to which no window falls gets one batch without a window: `index` and `document` `[0]`, m = U = n = 0.

    Attributes:
        index: int64 `[1]`, position of the window in its split.
        document: int64 `[1]`, position of its document among those of the split.
        head_words: int64 `[m]`, 0-based place of each mention's head word in the window; mentions in their order.
        clusters: int64 `[m]`, cluster of each mention, as numbered in the document.
        types: int64 `[m]`, places in `MENTION_TYPES`: 0 pronoun, 1 proper, 2 nominal.
        weights: float32, attention between the head words, each once, in ascending order: `[layers, heads, U, U]`, axes
            from and to. With all n words of the window as candidates
            `[2, layers, heads, U, n]`: attention from the head words to all words, and to them from all words.
        vectors: float32 `[U, size]`, word vectors of the head words in the same order; zeros for unknown words, and of
            size 0 where there are none.
        window: the text, which stays where it is.
        split: the window is of.
        encoder: whose attention it is: `random_init` for that of an encoder with random weights, beside the given one.
    """

    index: Tensor
    document: Tensor
    head_words: Tensor
    clusters: Tensor
    types: Tensor
    weights: Tensor
    vectors: Tensor
    window: Window | None
    split: Split
    encoder: EncoderOf = "given"


@dataclass(frozen=True)
class TextBatch(Movable):
    """Some labelled texts of one split, padded to the longest of them; or none.

    Tokens are words or pieces, with what the tokenisation puts around and between them. A device to which no text
    falls gets one batch without a text: `[0]` and `[0, 0]`.

    Attributes:
        index: int64 `[batch]`, positions of the texts in their split.
        lengths: int64 `[batch]`, tokens of each text, delimiters included.
        tokens: int64 `[batch, time]`, numbers in the vocabulary; its `pad` in the padding.
        special: bool `[batch, time]`, delimiters and separators; False in the padding.
        sentences: int64 `[batch, time]`, 0-based sentence of each token, none of them without a token; -1 for
            specials and in the padding.
        segments: int64 `[batch, time]`, 0 in the text, 1 in its pair, and for a special what the token before it has;
            0 in the padding.
        labels: int64 `[batch]`, places in the labels of the datamodule; of a regression float32, the labels themselves.
        rationale: bool `[batch, time]`, tokens of the words that decide; all False where the corpus does not say.
        split: the texts are of.
    """

    index: Tensor
    lengths: Tensor
    tokens: Tensor
    special: Tensor
    sentences: Tensor
    segments: Tensor
    labels: Tensor
    rationale: Tensor
    split: Split

    @property
    def mask(self) -> Tensor:
        """Bool `[batch, time]`, True where a token is real, delimiters included."""
        return torch.arange(self.tokens.size(1), device=self.lengths.device) < self.lengths[:, None]

    @property
    def words(self) -> Tensor:
        """Bool `[batch, time]`, True on real tokens that are no delimiters: what attention may look at."""
        return self.mask & ~self.special


@dataclass(frozen=True)
class SegmentBatch(Movable):
    """Some text segments as an encoder reads them, padded on the right to the longest; one at least, or none.

    A segment is a passage, or two: `[CLS] a [SEP] b [SEP]`, with the delimiters of the tokenizer.

    Attributes:
        index: int64 `[batch]`, numbers of the segments among all of the run.
        lengths: int64 `[batch]`, tokens of each segment, delimiters included.
        tokens: int64 `[batch, time]`, ids of the encoder's tokenizer; its padding id in the padding.
        segments: int64 `[batch, time]`, 0 in the first passage and its delimiters, 1 in the second and its last one; 0
            in the padding.
        start: bool `[batch, time]`, the delimiter before the first token.
        end: bool `[batch, time]`, the delimiters behind each passage.
        punctuation: bool `[batch, time]`, tokens that are `.` or `,`.
        words: int64 `[batch, time]`, 0-based word of the segment that each token is, or is a piece of, those of the
            second passage behind those of the first; -1 for delimiters and in the padding.
        passages: what was read, one tuple for each segment, of one or two; they stay where they are.
        corpus: name of the corpus that all of them are of.
        encoder: whose attention is to be read.
    """

    index: Tensor
    lengths: Tensor
    tokens: Tensor
    segments: Tensor
    start: Tensor
    end: Tensor
    punctuation: Tensor
    words: Tensor
    passages: tuple[tuple[Passage, ...], ...]
    corpus: str
    encoder: EncoderOf = "given"

    @property
    def mask(self) -> Tensor:
        """Bool `[batch, time]`, True where a token is real, delimiters included."""
        return torch.arange(self.tokens.size(1), device=self.lengths.device) < self.lengths[:, None]
