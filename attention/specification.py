"""Specification of an extraction (it determines the name of its store), and corpora cut into inputs of an encoder."""

import json
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

from attention_probing.attention.alignment import (
    ALIGNMENT_VERSION,
    AlignedPieces,
    AlignmentError,
    FromPieces,
    count_words,
    split_words,
)
from attention_probing.attention.encoder import LoadedEncoder
from attention_probing.attention.quantities import QUANTITIES, QUANTITIES_VERSION, LayerParts, Quantity, QuantityName
from attention_probing.attention.source import EncoderSource
from attention_probing.attention.store import NO_HIDDEN, STORE_FORMAT, HiddenLayers, Manifest, Part, store_key
from attention_probing.corpora.conllu import TEXTS_VERSION
from attention_probing.corpora.sentence import RunningText, Sentence, Treebank, to_table
from attention_probing.results.digests import Digests
from attention_probing.results.errors import UserError, pluralize, setting
from attention_probing.results.options import checked

TooLong = Literal["error", "skip"]
Precision = Literal["float16", "float32"]
Candidates = Literal["mentions", "words"]
Spacing = Literal["blanks", "text"]

SHARDS = 32
"""Number of shards of a store; fewer if a shard would hold less than `LEAST_PIECES`, more if it would exceed
`MOST_PIECES`."""
LEAST_PIECES = 128  # pieces of an efficient forward pass on a CPU
MOST_PIECES = 15_000  # pieces; with padding about one pass on a GPU
_WINDOWS = 512  # pieces; windows are narrower
_HEADER = 100  # bytes of a shard's header per tensor: name, shape and offsets
_ENCODED_AT_ONCE = 1024  # sentences


@checked
@dataclass(frozen=True)
class Options:
    """Layers and heads to extract, precision, and the treatment of long sentences and of words in several pieces.

    Args:
        layers: 1-based layers to keep; None keeps all.
        heads: 1-based heads of each layer to keep; None keeps all.
        precision: Precision on disk; forward passes run in float32. `float16` keeps eleven bits of every weight above
            3.5e-18: two weights are stored as equal only if they differ by less than 2⁻¹⁰ of the greater.
        too_long: Treatment of a sentence beyond the encoder's limit: `error` stops, `skip` leaves it out.
        from_pieces: The row of a word in several pieces is the `mean` of their rows (Clark et al. 2019, §4.1), or the
            row of the `first` piece (their released code).
        quantity: What is measured between two words: raw `attention`, or another quantity of `attention.quantities`.
            Those that are not within 0 and 1 are kept in single precision, whatever `precision` says.
        spacing: The encoder reads words joined by `blanks`, as in the papers, or the `text` as it was written, which
            CoNLL-U has (`SpaceAfter=No`). Of pieces that extend over several words see `attention.alignment`.

    Raises:
        UserError: A value is not allowed, or layers or heads are not ascending numbers from 1.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    precision: Precision = "float16"
    too_long: TooLong = "error"
    from_pieces: FromPieces = "mean"
    quantity: QuantityName = "attention"
    spacing: Spacing = "blanks"

    def __post_init__(self) -> None:
        for name in ("layers", "heads"):
            numbers = getattr(self, name)
            if numbers is None:
                continue
            is_ascending = list(numbers) == sorted(set(numbers))
            if not numbers or not is_ascending or numbers[0] < 1:
                raise UserError(
                    f"{setting(f'data.options.{name}')} is {list(numbers)}, but must be one or more distinct numbers "
                    f"from "
                    f"1 on in ascending order, such as [1, 3]. Leave it out for all {name}."
                )
        if self.heads is not None and not self.measured.has_heads:
            raise UserError(
                f"{setting('data.options.heads')} is {list(self.heads)}, but {self.quantity} has one map for "
                "each layer, not for each head. Leave the option out."
            )
        if self.measured.range != (0, 1):
            object.__setattr__(self, "precision", "float32")

    @property
    def measured(self) -> type[Quantity]:
        """Class of the quantity."""
        return QUANTITIES[self.quantity]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tensors on disk, according to `precision`."""
        return torch.float16 if self.precision == "float16" else torch.float32


@dataclass(frozen=True)
class Extraction:
    """Corpus file, encoder and all settings that determine the contents of a store of attention.

    Args:
        corpus: The corpus file.
        reader: Name and version of the parser, and its options.
        encoder: The encoder; None stores no attention, but only the words of the items with their trees
            or mentions.
        options: Layers, heads, precision and treatment of long sentences and of pieces.
        hidden: Layers whose hidden states are stored beside the attention, in ascending order: 0 for the
            output of the embeddings, k for the output of layer k. The states of the pieces of a word
            become one state as `options.from_pieces` says: their mean, or the first.
        candidates: Part of the attention to store. None stores all attention within each item. For
            coreference, `mentions` stores only attention between the head words of mentions, and `words`
            only attention between these head words and all words.
        companion: Second file that the parser reads, for instance the treebank of a corpus of
            coreference.
    """

    corpus: Path
    reader: Mapping[str, object]
    encoder: EncoderSource | None
    options: Options = Options()
    hidden: tuple[int, ...] = ()
    candidates: Candidates | None = None
    companion: Path | None = None

    def identity(self, digests: Digests) -> dict[str, object]:
        """Return the values that determine the store of this extraction, as plain JSON; their hash is the store's key.

        Args:
            digests: Gives the SHA-256 of files.
        """
        identity: dict[str, object] = {
            "format": STORE_FORMAT,
            "corpus_sha256": digests.of_file(self.corpus),
            "reader": dict(self.reader),
            "encoder": None,
        }
        if self.companion is not None:
            identity["companion_sha256"] = digests.of_file(self.companion)
        if self.encoder is not None:
            options = asdict(self.options)
            quantity = options.pop("quantity")
            spacing = options.pop("spacing")
            identity |= {
                "encoder": self.encoder.identity(digests),
                "alignment": ALIGNMENT_VERSION,
                "quantities": [quantity],
                "options": options,
            }
            if spacing != "blanks":  # other stores keep the keys that they had without it
                identity |= {"spacing": spacing, "texts": TEXTS_VERSION}
            if quantity != "attention":  # stores of attention keep the keys that they had without other quantities
                identity |= {"quantity": quantity, "measures": QUANTITIES_VERSION}
            if self.candidates is not None:
                identity |= {"quantities": ["antecedent"], "candidates": self.candidates}
            elif self.hidden:
                identity |= {"quantities": [quantity, "hidden"], "hidden": list(self.hidden)}
        return identity

    def chosen(self, encoder: LoadedEncoder | None) -> tuple[tuple[int, ...], tuple[int, ...], HiddenLayers]:
        """Return the layers, heads and hidden states of the encoder that this extraction stores.

        Args:
            encoder: The encoder; None without an encoder, and then nothing is stored.

        Returns:
            The 0-based layers, the 0-based heads (the same in every layer), and the hidden states.

        Raises:
            UserError: The encoder lacks a requested layer, head or hidden state, `hidden` is not in
                ascending order, or the encoder's hidden states cannot be stored.
        """
        if encoder is None:
            return (), (), NO_HIDDEN
        if self.options.quantity != "attention":
            self._check_quantity(encoder)
        heads_of_layer = encoder.heads if self.options.measured.has_heads else 1
        layers = _count_from_zero("layers", self.options.layers, encoder.attending)
        heads = _count_from_zero("heads", self.options.heads, range(heads_of_layer))
        if not self.hidden:
            return layers, heads, NO_HIDDEN
        if list(self.hidden) != sorted(set(self.hidden)) or self.hidden[0] < 0 or self.hidden[-1] > encoder.layers:
            raise UserError(
                f"{setting('data.hidden')} is {list(self.hidden)}, but must be distinct layers in ascending order, "
                f"from "
                f"0 (the embeddings) to {encoder.layers} (the last layer)."
            )
        return layers, heads, HiddenLayers(self.hidden, encoder.state_size)

    def _check_quantity(self, encoder: LoadedEncoder) -> None:
        """Raise UserError if the quantity is not defined for an encoder."""
        why = self._why_undefined(encoder)
        if why:
            raise UserError(f"{encoder.title} has no {self.options.quantity}: {why}, or another encoder.")

    def _why_undefined(self, encoder: LoadedEncoder) -> str:
        """Return why the quantity is not defined for an encoder, with a remedy; empty if it is defined."""
        measured = self.options.measured
        is_divided = encoder.source.spec.device_map is not None
        parts: Mapping[int, LayerParts] = {}
        if measured.needs_parts and not is_divided:
            parts = encoder.parts
        if measured.needs_all:
            pieces = min(encoder.max_length, _WINDOWS)
            without_padding = torch.ones(1, pieces, dtype=torch.bool, device=encoder.device)
            if not encoder.allowed(without_padding).masks.all():
                return "its tokens do not see all others (decoder or window). Choose norms"
        if measured.needs_lower and encoder.is_hybrid:
            return "the layers between those with attention mix tokens too. Choose attention or norms"
        if measured.needs_lower and encoder.has_sinks:
            return "rows of its attention sum to less than one (sinks). Choose attention or norms"
        if is_divided and (measured.needs_parts or measured.needs_lower):
            return "device_map may put its layers on several devices. Choose attention or attention_without_first"
        for part in parts.values():
            why = measured.undefined(part)
            if why:
                return why
        return ""


def _count_from_zero(name: str, numbers: tuple[int, ...] | None, available: Sequence[int]) -> tuple[int, ...]:
    """Return the 0-based numbers of layers or heads, or all available ones; raise UserError if one is not available.

    Args:
        name: `layers` or `heads`.
        numbers: Numbers from 1; None for all.
        available: The 0-based numbers of those with attention.
    """
    if numbers is None:
        return tuple(available)
    missing = [number for number in numbers if number - 1 not in available]
    if missing:
        from_one = [number + 1 for number in available]
        choice = f"some of {', '.join(map(str, from_one))}"
        if len(from_one) == from_one[-1]:
            choice = f"numbers from 1 to {from_one[-1]}"
        raise UserError(
            f"{setting(f'data.options.{name}')} contains {missing[-1]}, but {len(from_one)} {name} have attention. "
            f"Give {choice}."
        )
    return tuple(number - 1 for number in numbers)


@dataclass(frozen=True, eq=False)
class Items:
    """Items of a corpus (sentences, or windows of documents), with the layers and heads to store.

    Attributes:
        extraction: Corpus, encoder and settings.
        unit: Name of the items in messages, `sentences` or `windows`.
        labels: Table with one row per item: its words, and its tree or mentions.
        audit: Counts of what was found, dropped, cut or replaced in the corpus.
        inputs: Pieces of each item; empty without an encoder.
        head_words: 0-based positions of the head words of mentions in each item; empty if
            `extraction.candidates` is None.
        layers: 0-based layers to store.
        heads: 0-based heads to store of each layer.
        hidden: Hidden states to store.
        states: Number of hidden states that a forward pass holds in memory; 0 if none are stored.
    """

    extraction: Extraction
    unit: str
    labels: pa.Table
    audit: Mapping[str, int]
    inputs: tuple[AlignedPieces, ...]
    head_words: tuple[tuple[int, ...], ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    hidden: HiddenLayers = NO_HIDDEN
    states: int = 0

    def __len__(self) -> int:
        """Return the number of items, also without an encoder."""
        return len(self.labels)

    @cached_property
    def shards(self) -> list[list[int]]:
        """Indices of the items of each shard; empty without an encoder.

        The items are sorted by length, longest first, and then divided into shards with about the same
        number of pieces. A forward pass reads items of one shard only, so it has little padding.
        """
        if not self.inputs:
            return []
        lengths = np.array([len(pieces) for pieces in self.inputs])
        order = np.argsort(-lengths, kind="stable")
        pieces_up_to = np.cumsum(lengths[order])
        total = int(pieces_up_to[-1])
        fewest = -(-total // MOST_PIECES)  # rounded up
        count = max(min(SHARDS, total // LEAST_PIECES), fewest)
        shard_of_item = (pieces_up_to - 1) * count // total
        ends = np.flatnonzero(np.diff(shard_of_item)) + 1
        return [shard.tolist() for shard in np.split(order, ends)]

    def words(self, item: int) -> int:
        """Return the number of words of an item, given by its 0-based index."""
        return self.inputs[item].words

    def shapes(self, item: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each stored quantity of an item, by name of the quantity.

        `Store.read` lists the quantities and their axes.
        """
        words = self.words(item)
        layers = len(self.layers)
        heads = len(self.heads)
        if self.extraction.candidates == "words":
            return {"antecedent": (2, layers, heads, len(self.head_words[item]), words)}
        if self.extraction.candidates == "mentions":
            between = len(self.head_words[item])
            return {"antecedent": (layers, heads, between, between)}
        positions = words + 2
        shapes: dict[str, tuple[int, ...]] = {self.extraction.options.quantity: (layers, heads, positions, positions)}
        if self.hidden.layers:
            shapes["hidden"] = len(self.hidden.layers), words, self.hidden.size
        return shapes

    def select(self, batch: Sequence[int], reduced: Tensor) -> list[Tensor]:
        """Return the attention to store for each item of a forward pass.

        Args:
            batch: 0-based indices of the items.
            reduced: Attention over words, `[batch, layers, heads, positions, positions]`, padded to the
                longest input. Positions are the start delimiter, the words and the end delimiter.

        Returns:
            One tensor per item, without padding. Its shape depends on `extraction.candidates`:

            - None: `[layers, heads, positions, positions]`.
            - `mentions`: `[layers, heads, U, U]` between the U distinct head words of mentions, axes
                from and to.
            - `words`: `[2, layers, heads, U, words]`, first from head words to all words, then to head
                words from all words.
        """
        if self.extraction.candidates is not None:
            return [self._between(item, block) for item, block in zip(batch, reduced, strict=True)]
        maps = []
        for item, block in zip(batch, reduced, strict=True):
            positions = self.words(item) + 2
            maps.append(block[..., :positions, :positions].contiguous())
        return maps

    def _between(self, item: int, block: Tensor) -> Tensor:
        """Return attention between head words, or between head words and all words; shapes as in `Store.read`."""
        heads = torch.tensor(self.head_words[item], device=block.device) + 1
        if self.extraction.candidates == "mentions":
            return block[..., heads[:, None], heads]
        words = slice(1, self.words(item) + 1)
        return torch.stack([block[..., heads, words], block[..., words, heads].mT])

    def bytes(self, shard: int) -> int:
        """Return the size in bytes that a shard will have on disk, with an error below one per cent."""
        numbers = 0
        tensors = 0
        for item in self.shards[shard]:
            for shape in self.shapes(item).values():
                numbers += prod(shape)
                tensors += 1
        return numbers * self.extraction.options.dtype.itemsize + tensors * _HEADER

    def manifest(
        self, identity: Mapping[str, object], encoder: LoadedEncoder | None, labels: Part, *shards: Part
    ) -> Manifest:
        """Return the manifest, the list of contents, of the store of these items.

        Args:
            identity: Values whose hash is the store's key, from `Extraction.identity`.
            encoder: The encoder; None if the store holds labels alone.
            labels: File of the labels.
            shards: Files of the tensors, in order.
        """
        # In the order of a kept store: results of a new store, a kept one and a stream are equal, byte for byte.
        description = encoder.description if encoder is not None else {}
        identity, description, audit = json.loads(json.dumps([identity, description, self.audit], sort_keys=True))
        return Manifest(
            key=store_key(identity),
            identity=identity,
            encoder=description,
            layers=self.layers,
            heads=self.heads,
            delimiters=self.delimiters,
            items=len(self),
            audit=audit,
            labels=labels,
            shards=shards,
            hidden=self.hidden,
        )

    @property
    def delimiters(self) -> dict[str, bool]:
        """Mapping of `start` and `end` to True if the tokenizer writes a delimiter there, else to False."""
        if not self.inputs:
            return {"start": False, "end": False}
        first = self.inputs[0]
        return {
            "start": bool(first.positions[0] == 0),
            "end": bool(first.positions[-1] == first.words + 1),
        }


def cut_sentences(extraction: Extraction, treebank: Treebank, encoder: LoadedEncoder | None) -> Items:
    """Cut the sentences of a treebank into pieces aligned with their words, as the items of an extraction.

    The option `too_long` says what happens to a sentence beyond the encoder's limit. Without an encoder
    nothing is cut, and every sentence is an item without pieces.

    Args:
        extraction: Corpus, encoder and settings.
        treebank: The sentences.
        encoder: The encoder, whose tokenizer and limit are used; None for none.

    Raises:
        AlignmentError: A sentence is beyond the limit and `too_long` is `error`.
        UserError: The encoder lacks a layer or head, its hidden states cannot be stored, or no sentence is
            left.
    """
    layers, heads, hidden = extraction.chosen(encoder)
    if encoder is None:
        labels = to_table(treebank.sentences)
        return Items(extraction, "sentences", labels, dict(treebank.audit), (), (), layers, heads, hidden)
    sentences: list[Sentence] = []
    inputs: list[AlignedPieces] = []
    counts = Counter(skipped_too_long=0)
    for start in range(0, len(treebank.sentences), _ENCODED_AT_ONCE):
        some = treebank.sentences[start : start + _ENCODED_AT_ONCE]
        texts = _running_texts(some, extraction.options)
        pieces_of_some = split_words(encoder.tokenizer, [sentence.words for sentence in some], texts=texts)
        for place, (sentence, pieces) in enumerate(zip(some, pieces_of_some, strict=True)):
            if len(pieces) <= encoder.max_length:
                counts.update(count_words(encoder.tokenizer, pieces, sentence.words, texts[place : place + 1]))
                sentences.append(sentence)
                inputs.append(pieces)
            elif extraction.options.too_long == "skip":
                counts["skipped_too_long"] += 1
            else:
                raise AlignmentError(
                    f"{_place(extraction)}sentence {sentence.id} of {pluralize(len(sentence), 'word')} has "
                    f"{len(pieces)} pieces, but the encoder takes at most {encoder.max_length}. Leave such "
                    f"sentences out, and count them, with {setting('data.options.too_long', 'skip')}."
                )
    if not sentences:
        raise UserError(
            f"{_place(extraction)}every sentence has more than {encoder.max_length} pieces and was skipped, so none is "
            "left. Choose an encoder that takes longer inputs."
        )
    audit = {**treebank.audit, **counts}
    labels = to_table(sentences)
    reach = _reach_of(inputs, encoder, layers, extraction.options.from_pieces)
    if reach is not None:
        labels = labels.append_column("reach", reach)
    states = encoder.layers + 1 if hidden.layers else 0
    return Items(extraction, "sentences", labels, audit, tuple(inputs), (), layers, heads, hidden, states)


def _running_texts(sentences: Sequence[Sentence], options: Options) -> list[RunningText]:
    """Return the texts of sentences as they were written; empty for words joined by blanks."""
    if options.spacing == "blanks":
        return []
    texts = [sentence.running for sentence in sentences if sentence.running]
    if len(texts) < len(sentences):
        raise AlignmentError("`spacing: text` needs CoNLL-U, which says where blanks stand. Leave the option out.")
    return texts


def _reach_of(
    inputs: Sequence[AlignedPieces], encoder: LoadedEncoder, layers: Sequence[int], from_pieces: FromPieces
) -> pa.Array | None:
    """Return the first and last word, from 1, that each word may attend to by layer; None if always all words.

    The row of an item of n words is `[n, layers, 2]`, flattened. A word may attend to every word that one of its pieces
    may attend to; with `from_pieces: first`, that its first piece may attend to.
    """
    longest = max(map(len, inputs))
    without_padding = torch.ones(1, longest, dtype=torch.bool, device=encoder.device)
    [distinct_masks], mask_of_every_layer = encoder.allowed(without_padding)
    # By layer: the number of distinct masks depends on the longest input of a split, their order on earlier inputs.
    masks = distinct_masks.cpu().numpy()
    mask_of_layer = mask_of_every_layer[list(layers)].cpu().numpy()
    if masks[np.unique(mask_of_layer)].all():
        return None
    rows = []
    for pieces in inputs:
        reach = _reach(pieces, masks, from_pieces)[:, mask_of_layer]
        rows.append(reach.ravel())
    return pa.array(rows, pa.list_(pa.int32()))


def _reach(pieces: AlignedPieces, masks: NDArray[np.bool_], from_pieces: FromPieces) -> NDArray[np.int32]:
    """Return the first and last word that each word may attend to, `[n, masks, 2]`."""
    places, words = pieces.readers
    inside = (words > 0) & (words <= pieces.words)
    places = places[inside]
    words = words[inside]
    may_attend = masks[:, places[:, None], places]  # a piece may at least attend to itself
    first = words[may_attend.argmax(2)]  # [masks, pieces]
    last = words[::-1][may_attend[..., ::-1].argmax(2)]
    starts = np.flatnonzero(np.diff(words, prepend=0))
    if from_pieces == "first":
        first = first[:, starts]
        last = last[:, starts]
    else:
        first = np.minimum.reduceat(first, starts, 1)
        last = np.maximum.reduceat(last, starts, 1)
    return np.stack([first, last], -1).swapaxes(0, 1)


def _place(extraction: Extraction) -> str:
    if not extraction.reader:  # the sentences are of no file
        return ""
    return f"{extraction.corpus}: "
