"""Specification of an extraction, by which a store is named, and the items of a corpus, cut into pieces."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention.alignment import (
    ALIGNMENT_VERSION,
    AlignmentError,
    FromPieces,
    Pieces,
    most_central,
    overlapping,
    split_words,
)
from attention.encoder import LoadedEncoder, Source
from attention.store import FORMAT, NO_HIDDEN, HiddenLayers
from corpora.sentence import Sentence, Treebank, to_table
from results.digests import Digests
from results.errors import UserError, check_values

TooLong = Literal["error", "skip", "window"]
Precision = Literal["float16", "float32"]
Candidates = Literal["mentions", "words"]

UNKNOWN_WORDS = "words_with_unknown_token"
"""Name in the audit for the number of words that the tokenizer cuts into pieces among which is the unknown token."""
SHARDS = 32
"""Of a store; fewer where they would hold less than `LEAST` pieces of words, more where they would hold over `MOST`."""
LEAST, MOST = 128, 15_000  # a forward pass loses little by being as small; with its padding about one pass of a GPU
_HEADER = 100  # bytes of a shard's header per tensor: name, shape and offsets
_ENCODED_AT_ONCE = 1024  # sentences


@dataclass(frozen=True)
class Options:
    """The layers and heads taken from an encoder, and the treatment of precision, long inputs and pieces.

    Args:
        layers: 1-based layers to keep; None keeps all.
        heads: 1-based heads of each layer to keep; None keeps all.
        precision: on disk; the forward pass is always in float32. `float16` keeps eleven bits of every weight from
            3.5e-18 on, so that two weights count as equal only where they differ by less than 2⁻¹⁰ of the greater.
        too_long: a sentence over the encoder's limit is an `error`, is skipped (`skip`), or is read in overlapping
            windows (`window`), each word's row taken from the window in which it lies most central, with zeros for
            the words outside that window. Coreference cuts no sentences, and refuses `window`.
        from_pieces: the row of a word in several pieces is their `mean` (Clark et al. 2019, §4.1) or the `first`
            piece's (their released code).

    Raises:
        UserError: there is no such value.
        UserError: layers or heads that are no numbers from 1 on in ascending order.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    precision: Precision = "float16"
    too_long: TooLong = "error"
    from_pieces: FromPieces = "mean"

    def __post_init__(self) -> None:
        check_values(self, **vars(self))
        for name in ("layers", "heads"):
            chosen = getattr(self, name)
            if chosen is not None and (not chosen or list(chosen) != sorted(set(chosen)) or chosen[0] < 1):
                raise UserError(
                    f"{name}: {list(chosen)}. Give --data.init_args.options.{name} different numbers from 1 on, in "
                    f"ascending order."
                )

    @property
    def dtype(self) -> torch.dtype:
        """The precision as torch names it."""
        return torch.float16 if self.precision == "float16" else torch.float32


@dataclass(frozen=True)
class Extraction:
    """One corpus file through one encoder: everything that decides the bytes of a store.

    Args:
        corpus: the file.
        reader: what identifies the parser, its version included.
        encoder: where the encoder lies; None keeps the labels alone.
        options: what is taken from it.
        hidden: layers whose hidden states are kept beside the attention, in ascending order: 0 for the output of the
            embeddings, k for that of layer k. The state of a word in several pieces is their mean, or the first's, as
            the options say of rows of attention.
        candidates: None keeps all attention within each item. Else only attention between the head words of mentions
            and their candidates is kept: the heads of the other `mentions`, or all `words`.
        companion: a second file that the parser reads.
    """

    corpus: Path
    reader: Mapping[str, object]
    encoder: Source | None
    options: Options = Options()
    hidden: tuple[int, ...] = ()
    candidates: Candidates | None = None
    companion: Path | None = None

    def identity(self, digests: Digests) -> dict[str, object]:
        """Return all that the key of the store is made from."""
        identity: dict[str, object] = {
            "format": FORMAT,
            "corpus_sha256": digests.one(self.corpus),
            "reader": dict(self.reader),
            "encoder": None,
        }
        if self.companion is not None:
            identity["companion_sha256"] = digests.one(self.companion)
        if self.encoder is not None:
            identity |= {
                "encoder": self.encoder.identity(digests),
                "alignment": ALIGNMENT_VERSION,
                "options": asdict(self.options),
                "quantities": ["attention"],
            }
            if self.candidates is not None:
                identity |= {"quantities": ["antecedent"], "candidates": self.candidates}
            elif self.hidden:
                identity |= {"quantities": ["attention", "hidden"], "hidden": list(self.hidden)}
        return identity

    def chosen(self, encoder: LoadedEncoder | None) -> tuple[tuple[int, ...], tuple[int, ...], HiddenLayers]:
        """Return 0-based layers, 0-based heads of each, and hidden states; a UserError if one is missing."""
        if encoder is None:
            return (), (), NO_HIDDEN
        layers = _chosen("layers", self.options.layers, encoder.layers)
        heads = _chosen("heads", self.options.heads, encoder.heads)
        if not self.hidden:
            return layers, heads, NO_HIDDEN
        if list(self.hidden) != sorted(set(self.hidden)) or self.hidden[0] < 0 or self.hidden[-1] > encoder.layers:
            raise UserError(
                f"hidden: {list(self.hidden)} is asked for. Give different layers in ascending order, from 0 (the "
                f"embeddings) to {encoder.layers} (the encoder's last)."
            )
        return layers, heads, HiddenLayers(self.hidden, encoder.states.size)


def _chosen(name: str, wanted: tuple[int, ...] | None, available: int) -> tuple[int, ...]:
    wanted = wanted or tuple(range(1, available + 1))
    if max(wanted) > available:
        raise UserError(
            f"{name}: {max(wanted)} is asked for, and the encoder has {available}. Give "
            f"--data.init_args.options.{name} numbers from 1 to {available}."
        )
    return tuple(number - 1 for number in wanted)


@dataclass(frozen=True, eq=False)
class Items:
    """The items of a corpus as the encoder reads them, and what is kept of each.

    Attributes:
        unit: what the items are called, in the plural.
        labels: one row per item: all that is known of it beside the attention.
        audit: counts of what was found, dropped, cut or replaced.
        inputs: for each item its pieces, in several parts where a long sentence is cut. Empty without an encoder.
        head_words: for each item the 0-based head words of its mentions, where the extraction has candidates.
        layers, heads: 0-based; the heads of each layer.
    """

    extraction: Extraction
    unit: str
    labels: pa.Table
    audit: Mapping[str, int]
    inputs: tuple[tuple[Pieces, ...], ...]
    head_words: tuple[tuple[int, ...], ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    hidden: HiddenLayers = NO_HIDDEN

    def __len__(self) -> int:
        """Return the number of items, also without an encoder."""
        return len(self.labels)

    @cached_property
    def shards(self) -> list[list[int]]:
        """The items of each shard, longest first. The shards hold equally many pieces, so that ranks can share them.

        A forward pass is over items of one shard, and its padding small because those are of like length.
        """
        if not self.inputs:
            return []
        order = np.argsort([-max(map(len, cut)) for cut in self.inputs], kind="stable")
        upto = np.cumsum([sum(map(len, self.inputs[item])) for item in order])
        total = int(upto[-1])
        count = max(min(SHARDS, total // LEAST), -(-total // MOST))
        ends = np.flatnonzero(np.diff((upto - 1) * count // total)) + 1
        return [shard.tolist() for shard in np.split(order, ends)]

    def words(self, item: int) -> int:
        """Return the number of words."""
        last = self.inputs[item][-1]
        return last.first + last.words

    def shapes(self, item: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the quantities of an item, which `Store.read` describes."""
        words, size = self.words(item), (len(self.layers), len(self.heads))
        if self.extraction.candidates is not None:
            between = len(self.head_words[item])
            all_words = self.extraction.candidates == "words"
            return {"antecedent": (2, *size, between, words) if all_words else (*size, between, between)}
        shapes: dict[str, tuple[int, ...]] = {"attention": (*size, words + 2, words + 2)}
        if self.hidden.layers:
            shapes["hidden"] = len(self.hidden.layers), words, self.hidden.size
        return shapes

    def select(self, batch: Sequence[tuple[int, int]], reduced: Tensor) -> list[Tensor]:
        """Return what is kept, on the CPU, of the attention of a forward pass over some (item, part) pairs.

        The attention is `[batch, layers, heads, positions, positions]`, padded to the longest, on any device.
        """
        if self.extraction.candidates is not None:
            return [self._between(item, block).cpu() for (item, _), block in zip(batch, reduced, strict=True)]
        positions = [self.inputs[item][part].words + 2 for item, part in batch]
        return [block[..., :n, :n].contiguous() for block, n in zip(reduced.cpu(), positions, strict=True)]

    def _between(self, item: int, block: Tensor) -> Tensor:
        """Return attention between head words; with all words as candidates, attention from and to the head words."""
        heads = torch.tensor(self.head_words[item], device=block.device) + 1
        if self.extraction.candidates == "mentions":
            return block[..., heads[:, None], heads]
        words = slice(1, self.words(item) + 1)
        return torch.stack([block[..., heads, words], block[..., words, heads].mT])

    def bytes(self, shard: int) -> int:
        """Size of a shard on disk, within one per cent."""
        shapes = [shape for item in self.shards[shard] for shape in self.shapes(item).values()]
        return sum(map(prod, shapes)) * self.extraction.options.dtype.itemsize + len(shapes) * _HEADER

    @property
    def delimiters(self) -> dict[str, bool]:
        """True by `start` and `end` if the tokenizer writes that delimiter."""
        if not self.inputs:
            return {"start": False, "end": False}
        first = self.inputs[0][0]
        return {"start": bool(first.positions[0] == 0), "end": bool(first.positions[-1] == first.words + 1)}


def cut_sentences(extraction: Extraction, treebank: Treebank, encoder: LoadedEncoder | None) -> Items:
    """Align every sentence with its pieces, and treat those over the encoder's limit as the options say.

    Raises:
        AlignmentError: a sentence over the limit under the policy `error`, or one that no policy can save.
        UserError: a layer or head that the encoder does not have, hidden states that cannot be kept, or no sentence
            left.
    """
    layers, heads, hidden = extraction.chosen(encoder)
    if encoder is None:
        labels = to_table(treebank.sentences)
        return Items(extraction, "sentences", labels, dict(treebank.audit), (), (), layers, heads, hidden)
    kept: list[Sentence] = []
    inputs: list[tuple[Pieces, ...]] = []
    counted = ("words_without_piece", UNKNOWN_WORDS, "skipped_too_long", "windowed", "lost_arcs")
    found = Counter(dict.fromkeys(counted, 0))
    for start in range(0, len(treebank.sentences), _ENCODED_AT_ONCE):
        sentences = treebank.sentences[start : start + _ENCODED_AT_ONCE]
        pieces = split_words(encoder.tokenizer, [sentence.words for sentence in sentences])
        for sentence, whole in zip(sentences, pieces, strict=True):
            parts = _fit(sentence, whole, encoder.max_length, extraction.options.too_long)
            if not parts:
                found["skipped_too_long"] += 1
                continue
            found["words_without_piece"] += whole.unknown
            found[UNKNOWN_WORDS] += whole.with_unknown
            if len(parts) > 1:
                found["windowed"] += 1
                found["lost_arcs"] += _lost_arcs(sentence, parts)
            kept.append(sentence)
            inputs.append(parts)
    if not kept:
        raise UserError(f"No sentence of {len(treebank.sentences)} fits {encoder.max_length} pieces; use `window`.")
    audit, labels = {**treebank.audit, **found}, to_table(kept)
    if (reach := _reach_of(inputs, encoder, layers, extraction.options.from_pieces)) is not None:
        labels = labels.append_column("reach", reach)
    return Items(extraction, "sentences", labels, audit, tuple(inputs), (), layers, heads, hidden)


def _reach_of(
    inputs: Sequence[tuple[Pieces, ...]], encoder: LoadedEncoder, layers: Sequence[int], from_pieces: FromPieces
) -> pa.Array | None:
    """Return the words that each word of each item may attend to in these layers; None if that is always all.

    Of an item of n words it is `[n, layers, 2]`, flat: in each of the layers the first and the last word, counted from
    1. A word may attend to what one of its pieces may, or its first, as its row is made.
    """
    longest = max(len(part) for cut in inputs for part in cut)
    [every], of_layers = encoder.allowed(torch.ones(1, longest, dtype=torch.bool, device=encoder.device))
    # By layers: how many masks differ depends on the longest input of a split, and their order on earlier inputs.
    masks, kept = every.cpu().numpy(), of_layers[list(layers)].cpu().numpy()
    if masks[kept].all() and all(len(cut) == 1 for cut in inputs):
        return None
    found = (_reach(cut, masks, from_pieces)[:, kept] for cut in inputs)
    return pa.array([reach.ravel() for reach in found], pa.list_(pa.int32()))


def _reach(cut: Sequence[Pieces], masks: NDArray[np.bool_], from_pieces: FromPieces) -> NDArray[np.int32]:
    """Return the reach of the words of one item, `[n, masks, 2]`, in the part in which each lies most central."""
    words = cut[-1].first + cut[-1].words
    found = np.empty((words, len(masks), 2), np.int32)
    owners = most_central(cut, words)
    for number, part in enumerate(cut):
        places = np.flatnonzero(part.inside)
        own = part.positions[places]
        seen = masks[:, places[:, None], places]  # a piece may attend to itself at least
        first, last = own[seen.argmax(2)], own[::-1][seen[..., ::-1].argmax(2)]  # [masks, pieces]
        starts = np.flatnonzero(np.diff(own, prepend=0))
        if from_pieces == "first":
            ends = np.stack([first[:, starts], last[:, starts]], -1)
        else:
            ends = np.stack([np.minimum.reduceat(first, starts, 1), np.maximum.reduceat(last, starts, 1)], -1)
        mine = np.flatnonzero(owners == number)
        found[mine] = ends[:, mine - part.first].swapaxes(0, 1) + part.first
    return found


def _fit(sentence: Sentence, whole: Pieces, limit: int, policy: TooLong) -> tuple[Pieces, ...]:
    if len(whole) <= limit:
        return (whole,)
    if policy == "skip":
        return ()
    too_long = f"sentence {sentence.id}: {len(sentence)} words, {len(whole)} pieces, over the limit of {limit}"
    if policy == "error":
        raise AlignmentError(
            f"{too_long}. Choose what happens to such sentences: --data.init_args.options.too_long window "
            f"(overlapping windows) or skip (left out, and counted)."
        )
    try:
        return tuple(overlapping(whole, limit))
    except AlignmentError as error:
        raise AlignmentError(f"{too_long}, and {error}. Only `skip` can help.") from error


def _lost_arcs(sentence: Sentence, parts: Sequence[Pieces]) -> int:
    """Return the number of gold arcs between two words that no part holds together."""
    dependents = np.arange(len(sentence))
    heads = np.asarray(sentence.heads) - 1
    together = np.zeros(len(sentence), bool)
    for part in parts:
        low, high = part.first, part.first + part.words
        together |= (dependents >= low) & (dependents < high) & (heads >= low) & (heads < high)
    return int((~together & (heads >= 0)).sum())
