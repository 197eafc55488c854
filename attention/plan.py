"""Before the encoder runs: what fits, what is cut into windows, what is left out, and how many bytes come of it."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import pyarrow as pa
from torch import Tensor

from attention.alignment import AlignmentError, Pieces, split_words, windows
from attention.encoder import Encoder
from attention.options import Options, StoreError
from attention.store import NO_HIDDEN, SHARD_ITEMS, Hidden
from corpora.sentence import Sentence, Treebank
from corpora.table import to_table

UNKNOWN = "words_with_unknown_token"
"""Where the audit counts the words that the tokenizer has no pieces for, in whole or in part."""
_HEADER = 100  # bytes of a shard's header per tensor: name, shape and offsets
_ENCODED_AT_ONCE = 1024  # sentences


@dataclass(frozen=True)
class Plan(ABC):
    """The items that are kept, what the encoder reads of each, and what of its attention goes into the store.

    Attributes:
        windows: of each item its pieces; several where a long sentence is cut. Empty without an encoder.
        layers: 0-based layers taken.
        heads: 0-based heads taken of each layer.
        audit: counts of what was found, dropped, cut or replaced.
    """

    quantity: ClassVar[str]
    """The first part of the tensors' names."""
    unit: ClassVar[str]
    """What the items are called, in the plural."""

    windows: tuple[tuple[Pieces, ...], ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    audit: Mapping[str, int]

    @abstractmethod
    def __len__(self) -> int:
        """Number of items, also without an encoder."""

    @abstractmethod
    def labels(self) -> pa.Table:
        """One row per item: all that is known of it beside the attention."""

    @abstractmethod
    def shape(self, item: int) -> tuple[int, ...]:
        """Shape of what is kept of the attention within an item."""

    @property
    def hidden(self) -> Hidden:
        """The hidden states that are kept beside it."""
        return NO_HIDDEN

    def shapes(self, item: int) -> dict[str, tuple[int, ...]]:
        """All that is kept of an item, by the first part of the tensors' names."""
        return {self.quantity: self.shape(item)}

    @abstractmethod
    def select(self, batch: Sequence[tuple[int, int]], reduced: Tensor) -> list[Tensor]:
        """What is kept of a forward pass over these (item, window) pairs, on the CPU.

        Args:
            batch: the pairs.
            reduced: `[batch, layers, heads, slots, slots]`, padded to the longest of them, on any device.
        """

    @property
    def shards(self) -> int:
        """How many shards the items fill."""
        return -(-len(self.windows) // SHARD_ITEMS)

    def items(self, shard: int) -> range:
        """The items of a shard."""
        return range(shard * SHARD_ITEMS, min((shard + 1) * SHARD_ITEMS, len(self.windows)))

    def bytes(self, shard: int, options: Options) -> int:
        """Size of a shard on disk, within one per cent."""
        shapes = [shape for item in self.items(shard) for shape in self.shapes(item).values()]
        return sum(map(prod, shapes)) * options.dtype.itemsize + len(shapes) * _HEADER

    @property
    def delimiters(self) -> dict[str, bool]:
        """Whether the tokenizer writes a start and an end delimiter."""
        if not self.windows:
            return {"start": False, "end": False}
        slots = self.windows[0][0].slots
        return {"start": bool(slots[0] == 0), "end": bool(slots[-1] == self.windows[0][0].words + 1)}


@dataclass(frozen=True)
class SentencePlan(Plan):
    """Of a treebank: all attention within each sentence, and hidden states of its words.

    Attributes:
        sentences: in the order of the corpus; they have more than one window only under the policy `window`.
        hidden: the hidden states.
    """

    quantity = "attention"
    unit = "sentences"

    sentences: tuple[Sentence, ...]
    hidden: Hidden = NO_HIDDEN

    def __len__(self) -> int:
        return len(self.sentences)

    def labels(self) -> pa.Table:
        """Its words and its tree."""
        return to_table(self.sentences)

    def shape(self, item: int) -> tuple[int, ...]:
        """`layers, heads, n+2, n+2` for n words, axes from and to, delimiters first and last."""
        slots = len(self.sentences[item]) + 2
        return len(self.layers), len(self.heads), slots, slots

    def shapes(self, item: int) -> dict[str, tuple[int, ...]]:
        """Attention as above, and hidden states `layers', n, size` where any are kept."""
        shapes = super().shapes(item)
        if self.hidden.layers:
            shapes["hidden"] = len(self.hidden.layers), len(self.sentences[item]), self.hidden.size
        return shapes

    def select(self, batch: Sequence[tuple[int, int]], reduced: Tensor) -> list[Tensor]:
        """All but the padding."""
        reduced = reduced.cpu()
        slots = [self.windows[item][part].words + 2 for item, part in batch]
        return [block[..., :n, :n].contiguous() for block, n in zip(reduced, slots, strict=True)]


def plan(treebank: Treebank, encoder: Encoder | None, options: Options, hidden: tuple[int, ...] = ()) -> SentencePlan:
    """Align every sentence with its pieces and apply the policy for those over the encoder's limit.

    Raises:
        AlignmentError: a sentence over the limit under the policy `error`, or one that no policy can save.
        StoreError: a layer or head that the encoder does not have, hidden states that cannot be kept, or no sentence
            left.
    """
    if encoder is None:
        return SentencePlan((), (), (), dict(treebank.audit), treebank.sentences)
    layers, heads = chosen(encoder, options)
    states = _hidden(hidden, encoder)
    kept: list[Sentence] = []
    cut: list[tuple[Pieces, ...]] = []
    counted = ("words_without_piece", UNKNOWN, "skipped_too_long", "windowed", "lost_arcs")
    found: Counter[str] = Counter(dict.fromkeys(counted, 0))
    for start in range(0, len(treebank.sentences), _ENCODED_AT_ONCE):
        sentences = treebank.sentences[start : start + _ENCODED_AT_ONCE]
        pieces = split_words(encoder.tokenizer, [sentence.words for sentence in sentences])
        for sentence, whole in zip(sentences, pieces, strict=True):
            parts = _fit(sentence, whole, encoder, options)
            if not parts:
                found["skipped_too_long"] += 1
                continue
            found["words_without_piece"] += whole.unknown
            found[UNKNOWN] += whole.with_unknown
            if len(parts) > 1:
                found["windowed"] += 1
                found["lost_arcs"] += lost_arcs(sentence, parts)
            kept.append(sentence)
            cut.append(parts)
    if not kept:
        raise StoreError(f"No sentence of {len(treebank.sentences)} fits {encoder.max_length} pieces; use `window`.")
    return SentencePlan(tuple(cut), layers, heads, {**treebank.audit, **found}, tuple(kept), states)


def chosen(encoder: Encoder, options: Options) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """0-based layers, and 0-based heads of each, that are taken.

    Raises:
        StoreError: one that the encoder does not have.
    """
    return _chosen("layers", options.layers, encoder.layers), _chosen("heads", options.heads, encoder.heads)


def _chosen(name: str, wanted: tuple[int, ...] | None, available: int) -> tuple[int, ...]:
    if wanted is None:
        return tuple(range(available))
    if max(wanted) > available:
        raise StoreError(f"{name}: {max(wanted)} is asked for, and the encoder has {available}.")
    return tuple(number - 1 for number in wanted)


def _hidden(wanted: tuple[int, ...], encoder: Encoder) -> Hidden:
    if not wanted:
        return NO_HIDDEN
    if list(wanted) != sorted(set(wanted)) or wanted[0] < 0 or wanted[-1] > encoder.layers:
        raise StoreError(
            f"hidden: {list(wanted)} is asked for. Give different layers in ascending order, from 0 (the embeddings) "
            f"to {encoder.layers} (the encoder's last)."
        )
    return Hidden(wanted, encoder.states.size)


def _fit(sentence: Sentence, whole: Pieces, encoder: Encoder, options: Options) -> tuple[Pieces, ...]:
    if len(whole) <= encoder.max_length:
        return (whole,)
    if options.too_long == "skip":
        return ()
    too_long = f"sentence {sentence.id}: {len(sentence)} words, {len(whole)} pieces, over the limit of"
    if options.too_long == "error":
        raise AlignmentError(
            f"{too_long} {encoder.max_length}. Choose what happens to such sentences: "
            f"--data.init_args.options.too_long window (overlapping windows) or skip (left out, and counted)."
        )
    try:
        return tuple(windows(whole, encoder.max_length))
    except AlignmentError as error:
        raise AlignmentError(f"{too_long} {encoder.max_length}, and {error}. Only `skip` can help.") from error


def lost_arcs(sentence: Sentence, parts: Sequence[Pieces]) -> int:
    """Gold arcs between two words that no window holds together."""
    dependents = np.arange(len(sentence))
    heads = np.asarray(sentence.heads) - 1
    together = np.zeros(len(sentence), bool)
    for part in parts:
        low, high = part.first, part.first + part.words
        together |= (dependents >= low) & (dependents < high) & (heads >= low) & (heads < high)
    return int((~together & (heads >= 0)).sum())
