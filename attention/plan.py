"""Before the encoder runs: what fits, what is cut into windows, what is left out, and how many bytes come of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attention.alignment import AlignmentError, Pieces, split_words, windows
from attention.encoder import Encoder
from attention.request import Options, StoreError
from attention.store import SHARD_ITEMS
from corpora.sentence import Sentence, Treebank

_HEADER = 100  # bytes of a shard's header per item: name, shape and offsets
_ENCODED_AT_ONCE = 1024  # sentences


@dataclass(frozen=True)
class Plan:
    """The sentences that are kept, with the windows each is read in.

    Attributes:
        sentences: in the order of the corpus.
        windows: of each sentence; more than one only under the policy `window`. Empty without an encoder.
        layers: 0-based layers taken.
        heads: 0-based heads taken of each layer.
        audit: counts of what was found, dropped, cut or replaced.
    """

    sentences: tuple[Sentence, ...]
    windows: tuple[tuple[Pieces, ...], ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    audit: Mapping[str, int]

    @property
    def shards(self) -> int:
        """How many shards the sentences fill."""
        return -(-len(self.windows) // SHARD_ITEMS)

    def items(self, shard: int) -> range:
        """The sentences of a shard."""
        return range(shard * SHARD_ITEMS, min((shard + 1) * SHARD_ITEMS, len(self.windows)))

    def bytes(self, shard: int, options: Options) -> int:
        """Size of a shard on disk, within one per cent."""
        cells = sum((len(self.sentences[item]) + 2) ** 2 for item in self.items(shard))
        return cells * len(self.layers) * len(self.heads) * options.dtype.itemsize + len(self.items(shard)) * _HEADER

    @property
    def delimiters(self) -> dict[str, bool]:
        """Whether the tokenizer writes a start and an end delimiter."""
        if not self.windows:
            return {"start": False, "end": False}
        slots = self.windows[0][0].slots
        return {"start": bool(slots[0] == 0), "end": bool(slots[-1] == self.windows[0][0].words + 1)}


def plan(treebank: Treebank, encoder: Encoder | None, options: Options) -> Plan:
    """Align every sentence with its pieces and apply the policy for those over the encoder's limit.

    Raises:
        AlignmentError: a sentence over the limit under the policy `error`, or one that no policy can save.
        StoreError: a layer or head that the encoder does not have, or no sentence left.
    """
    if encoder is None:
        return Plan(treebank.sentences, (), (), (), dict(treebank.audit))
    layers = _chosen("layers", options.layers, encoder.layers)
    heads = _chosen("heads", options.heads, encoder.heads)
    kept: list[Sentence] = []
    cut: list[tuple[Pieces, ...]] = []
    found: Counter[str] = Counter(dict.fromkeys(("unknown_words", "skipped_too_long", "windowed", "lost_arcs"), 0))
    for start in range(0, len(treebank.sentences), _ENCODED_AT_ONCE):
        sentences = treebank.sentences[start : start + _ENCODED_AT_ONCE]
        pieces = split_words(encoder.tokenizer, [sentence.words for sentence in sentences])
        for sentence, whole in zip(sentences, pieces, strict=True):
            parts = _fit(sentence, whole, encoder, options)
            if not parts:
                found["skipped_too_long"] += 1
                continue
            found["unknown_words"] += whole.unknown
            if len(parts) > 1:
                found["windowed"] += 1
                found["lost_arcs"] += lost_arcs(sentence, parts)
            kept.append(sentence)
            cut.append(parts)
    if not kept:
        raise StoreError(f"No sentence of {len(treebank.sentences)} fits {encoder.max_length} pieces; use `window`.")
    return Plan(tuple(kept), tuple(cut), layers, heads, {**treebank.audit, **found})


def _chosen(name: str, wanted: tuple[int, ...] | None, available: int) -> tuple[int, ...]:
    if wanted is None:
        return tuple(range(available))
    if max(wanted) > available:
        raise StoreError(f"{name}: {max(wanted)} is asked for, and the encoder has {available}.")
    return tuple(number - 1 for number in wanted)


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
