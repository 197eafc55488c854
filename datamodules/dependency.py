"""Datamodule of a dependency treebank read by an encoder: batches of attention over words with the gold arcs."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from copy import copy
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from attention_probing.attention import Encoder, Extraction, Items, Store, cut_sentences
from attention_probing.attention.loading import load_config
from attention_probing.attention.source import EncoderSource
from attention_probing.attention.stream import Stream
from attention_probing.corpora.conllu import warn_of_roots, warn_of_texts
from attention_probing.corpora.formats import treebank_reader
from attention_probing.corpora.sample import SAMPLE_VERSION, write_sample_treebank
from attention_probing.corpora.sentence import CorpusError, Treebank
from attention_probing.corpora.splits import Split
from attention_probing.datamodules.attention import AttentionDataModule, any_store
from attention_probing.datamodules.batches import AttentionBatch, BatchLoader, EncoderOf, Ranks, check_batch, padder
from attention_probing.results import Provenance
from attention_probing.results.errors import UserError, pluralize, setting
from attention_probing.results.options import Positive, checked
from attention_probing.results.progress import warn

EVAL_CELLS = 65_536
"""Greatest bound of an evaluation batch, in padded cells."""

Field = Literal["attention", "most_attended", "hidden", "vectors"]
FIELDS: frozenset[Field] = frozenset(get_args(Field))
"""Fields of a batch beside the gold arcs; each is filled if the store has it and a probe reads it. The most attended
words are filled only in place of the attention, by a stream; otherwise they follow from it."""

PunctuationBy = Literal["relation", "xpos"]
PUNCTUATION: Mapping[PunctuationBy, tuple[str, ...]] = {
    "relation": ("punct",),
    "xpos": ("''", ",", ".", ":", "``", "-LRB-", "-RRB-"),
}
"""Labels of punctuation: the relation of Universal Dependencies, or the Penn Treebank tags that Hewitt & Manning (2019)
leave out (structural-probes, `reporter.py`). They do not leave out HYPH and NFP, which EWT has too."""

HeadsOf = Callable[[Sequence[str]], Sequence[int]]
"""Function from the words of a sentence to their heads, 1-based, 0 = root."""


class DependencySplit(Dataset[AttentionBatch]):
    """Dataset of the sentences of one split, indexed by whole batches: `split[[3, 7]]` is an `AttentionBatch`.

    Args:
        data: Datamodule with the options; no reference to it is kept.
        store: Store of the attention for the split's file.
        split: Name of the split.
        encoder: Role of the encoder whose attention the store holds: `given`, `before` fine-tuning, or
            `random_init`.

    Attributes:
        arcs: Number of words whose syntactic head is a word, not the root.
        documents: int64 `[sentences]`, number of each sentence's document; -1 if the file marks no documents.
        reach: int32 `[words, layers, 2]`, first and last word, from 1, that each word may attend to in each layer;
            None if every word may attend to the whole sentence.
    """

    def __init__(self, data: "DependencyDataModule", store: Store, split: Split, encoder: EncoderOf = "given") -> None:
        self.store = store
        self.split = split
        self.encoder = encoder
        self.reads: Set[Field] = FIELDS
        self._lowest = data.lowest
        labels = store.labels.combine_chunks()
        self.ids: list[str] = labels["id"].to_pylist()
        self._offsets = labels["relations"].chunk(0).offsets.to_numpy()
        self.lengths = np.diff(self._offsets).astype(np.int64)
        self.documents = labels["document"].to_numpy(zero_copy_only=False).astype(np.int64)
        self._relations = _map_labels(store, "relations", lambda label: data.relations.index(data.name_of(label)))
        if data.punctuation_by == "relation":
            self._punctuation = _map_labels(store, "relations", lambda label: base_label(label) in data.punctuation)
        else:
            self._punctuation = _map_labels(store, "xpos", lambda tag: tag in data.punctuation)
        self.punctuation_words = int(self._punctuation.sum())
        self._heads = labels["heads"].chunk(0).values.to_numpy()
        if data.shuffle is not None:
            self._take_gold_of(data.shuffle.draw(split, self.lengths))
        self.arcs = int((self._heads > 0).sum())
        self.reach: NDArray[np.int32] | None = None
        if "reach" in labels.column_names:
            self.reach = labels["reach"].chunk(0).values.to_numpy().reshape(self._offsets[-1], -1, 2)
        self._vectors = data.vectors
        if data.vectors is not None:
            words = labels["words"].chunk(0).values.dictionary_encode()
            rows = data.vectors.rows(words.dictionary.to_pylist())
            self._rows = rows[words.indices.to_numpy()]
        if data.heads_of is not None:
            heads: list[int] = []
            for item in range(len(self)):
                heads.extend(data.heads_of(self.words(item)))
            if len(heads) != self._offsets[-1]:
                raise ValueError(
                    f"heads_of gives {len(heads)} heads, but must give {self._offsets[-1]}: one for each word"
                )
            self._heads = np.array(heads, np.int64)

    def _take_gold_of(self, others: NDArray[np.int64]) -> None:
        """Give each sentence the heads, relations and punctuation of another of the same length, `[sentences]`."""
        sources = [np.empty(0, np.int64)]
        for other in others:
            sources.append(np.arange(self._offsets[other], self._offsets[other + 1]))
        words = np.concatenate(sources)
        self._heads = self._heads[words]
        self._relations = self._relations[words]
        self._punctuation = self._punctuation[words]

    def __len__(self) -> int:
        return len(self.lengths)

    def words(self, item: int) -> list[str]:
        """Return the words of a sentence, given by its index in the split."""
        words: list[str] = self.store.labels["words"][item].as_py()
        return words

    @property
    def units(self) -> NDArray[np.int64]:
        """Number of the unit of each sentence for intervals and tests: its document, or its index if none is marked."""
        if (self.documents < 0).any():
            return np.arange(len(self))
        units: NDArray[np.int64] = self.documents
        return units

    def describe_units(self) -> str:
        """Return the number of units of intervals and tests, and what they are."""
        marked = np.unique(self.documents[self.documents >= 0]).size
        if marked:
            return pluralize(marked, "document")
        return f"{pluralize(len(self), 'sentence')}, taken as independent: no documents are marked (# newdoc)"

    def relations(self, item: int) -> NDArray[np.int64]:
        """Return the relation ids of the words of a sentence, int64 `[n]`.

        Args:
            item: Index of the sentence in the split.
        """
        relations: NDArray[np.int64] = self._relations[self._offsets[item] : self._offsets[item + 1]]
        return relations

    def __getitem__(self, indices: list[int]) -> AttentionBatch:
        """Return the batch of these sentences."""
        check_batch(indices)
        lengths = self.lengths[indices]
        sentences = len(indices)
        words = int(lengths.max(initial=0))
        padded = padder(self._offsets, indices)
        manifest = self.store.manifest
        most_attended: dict[str, Tensor] = {}
        cells = 0  # positions of a map of attention; 0 reads none
        if self._streams_most_attended:
            most_attended = self._most_attended(indices)
        elif manifest.shards and self.reads & {"attention", "most_attended"}:
            cells = words + 2
        attention = (sentences, len(manifest.layers) - self._lowest, len(manifest.heads), cells, cells)
        layers = len(manifest.hidden.layers) if "hidden" in self.reads else 0
        hidden = (sentences, layers, words, manifest.hidden.size)
        vectors = torch.zeros(sentences, words, 0)
        if self._vectors is not None and "vectors" in self.reads:
            vectors = torch.from_numpy(self._vectors.matrix[padded(self._rows, -1).numpy()])
        return AttentionBatch(
            index=torch.tensor(indices, dtype=torch.int64),
            lengths=torch.from_numpy(lengths),
            heads=padded(self._heads, -1).long(),
            relations=padded(self._relations, -1),
            punctuation=padded(self._punctuation, False),
            documents=torch.from_numpy(self.documents[indices]),
            attention=self._read_stored(manifest.maps_name if cells else "", indices, attention, torch.float32),
            hidden=self._read_stored("hidden", indices, hidden, manifest.dtype),
            vectors=vectors,
            split=self.split,
            encoder=self.encoder,
            **most_attended,
        )

    @property
    def _streams_most_attended(self) -> bool:
        """True if the batches hold the most attended words, computed as the attention passes, in place of it."""
        reads_words_alone = "most_attended" in self.reads and "attention" not in self.reads
        return isinstance(self.store, Stream) and reads_words_alone

    def _most_attended(self, indices: list[int]) -> dict[str, Tensor]:
        assert isinstance(self.store, Stream)
        positions, peaks = self.store.most_attended(indices)
        return {"most_attended": positions[..., self._lowest :, :], "peaks": peaks[:, self._lowest :]}

    def _read_stored(self, quantity: str, indices: list[int], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a quantity of each sentence, padded with zeros; read nothing if a size is 0."""
        lengths = self.lengths[indices]
        # Only padding needs zeros, and in most batches all sentences have one length.
        has_padding = len(set(lengths)) > 1
        make = torch.zeros if has_padding else torch.empty
        values = make(shape, dtype=dtype, device=self.store.device)
        if values.numel():
            lowest = 0 if quantity == "hidden" else self._lowest
            self.store.read_batch(quantity, indices, values, lowest)
        return values


def labels_of(store: Store, column: Literal["relations", "xpos"]) -> list[str]:
    """Return the distinct relations or tags in a store, spelled as in the corpus.

    The index of a label in this list is its code in the store.
    """
    labels: list[str] = store.labels.combine_chunks()[column].chunk(0).values.dictionary.to_pylist()
    return labels


def _map_labels(store: Store, column: Literal["relations", "xpos"], value: Callable[[str], int]) -> NDArray[Any]:
    """Return `value` of the label of each word, `[words]`."""
    codes = store.labels.combine_chunks()[column].chunk(0).values.indices.to_numpy()
    by_code = np.array([value(label) for label in labels_of(store, column)])
    by_word: NDArray[Any] = by_code[codes]
    return by_word


def require_tags(path: Path, tags: Collection[str]) -> None:
    """Raise a CorpusError if no word of a treebank file has a tag.

    Args:
        path: The file.
        tags: Distinct tags in the file; `_` stands for no tag.
    """
    if not set(tags) - {"_"}:
        wrong = "no word has a tag in column XPOS, by which punctuation is recognised"
        raise CorpusError.at(path, None, wrong, f"Fill the column, or set {setting('data.punctuation_by', 'relation')}")


def _number_layers(hidden: tuple[int, ...] | Literal["all", "middle"], source: EncoderSource | None) -> tuple[int, ...]:
    """Return the layers whose hidden states are stored, as numbers."""
    if not isinstance(hidden, str):
        return hidden
    count = 0
    if source is not None:
        count = load_config(source).num_hidden_layers
    if hidden == "all":
        return tuple(range(1, count + 1))
    middle = (count + 1) // 2
    return (middle,) if count else ()


def base_label(relation: str) -> str:
    """Return a dependency relation without its subtype: `nmod` for `nmod:poss`."""
    return relation.partition(":")[0]


class DependencyDataModule(AttentionDataModule[AttentionBatch]):
    """Datamodule of an encoder's attention to the sentences of a dependency treebank.

    See `AttentionDataModule` and `CorpusDataModule` for the other options.

    Args:
        corpus: `sample` for a treebank that this package generates, a name of
            `probing fetch --list`, one path with `{split}` in the place of train, dev and
            test, or a mapping from these three to paths.
        relations: `full` labels (`nmod:poss` is distinct from `nmod`) or `base` labels.
        punctuation: Labels of the words that UAS, UUAS and root accuracy leave out: either relations,
            each with its subtypes, or tags, as `punctuation_by` says. None for the relation `punct` or,
            if `punctuation_by` is `xpos`, for the tags that the released code of Hewitt & Manning (2019)
            leaves out.
        punctuation_by: Kind of the labels in `punctuation`: `relation`, or `xpos` for the treebank's own
            tags.
        hidden: Layers whose hidden states are stored along with the attention: 0 for the output of the
            embeddings, k for the output of layer k; `all` for every layer, without the embeddings; `middle` for
            layer ⌈L / 2⌉ of L.
        max_cells: Upper bound of the size of a training batch in cells of its padded attention matrices,
            `batch · (longest + 2)²`; `longest` is the number of words of its longest sentence.
            Evaluation batches have at most twice as many cells, and at most 65,536.
        batch_size: Largest number of sentences in a training batch.
        transfer_from: Corpus, in the same form as `corpus`, whose train and dev replace those of `corpus`: what is
            trained or chosen on one language is tested on another. None for none.

    Attributes:
        relations: Names of the relations, after `setup`; a relation id is an index into them.
        train_on: Indices of the sentences to train on; None for all.
        heads_of: Function from the words of a sentence to the syntactic heads that replace those of the
            corpus; None replaces none.
        lowest: Index, among the stored layers, of the lowest layer whose attention is in the batches.

    Raises:
        CorpusError: On `setup`, a corpus is absent, malformed, or without the tags of `punctuation_by`.
        UserError: On `setup`, word vectors are absent or malformed.
    """

    holds = "gold arcs"
    exchanges = "sentences"
    file_warnings = (warn_of_roots, warn_of_texts)
    borrows = f"; train and dev may be another treebank's: {setting('data.transfer_from', 'ud_english_ewt')}"
    batch = AttentionBatch
    sample = (f"sample-{SAMPLE_VERSION}", write_sample_treebank)
    splits: dict[Split, DependencySplit]
    random_splits: dict[Split, DependencySplit]

    @checked
    def __init__(
        self,
        corpus: str | dict[str, str] = "sample",
        relations: Literal["full", "base"] = "full",
        punctuation: tuple[str, ...] | None = None,
        punctuation_by: PunctuationBy = "relation",
        hidden: tuple[int, ...] | Literal["all", "middle"] = (),
        max_cells: Positive = 32768,
        batch_size: Positive = 128,
        transfer_from: str | dict[str, str] | None = None,
        **shared: Any,  # noqa: ANN401 # options of AttentionDataModule
    ) -> None:
        super().__init__(corpus, **shared)
        self.relation_labels = relations
        self.hidden = hidden
        self.punctuation = PUNCTUATION[punctuation_by] if punctuation is None else punctuation
        self.punctuation_by: PunctuationBy = punctuation_by
        self.max_cells = max_cells
        self.batch_size = batch_size
        self.transfer_from = transfer_from
        self.relations: tuple[str, ...] = ()
        self.heads_of: HeadsOf | None = None
        self.lowest = 0
        self.train_on: Sequence[int] | None = None

    def extraction(self, path: Path, source: EncoderSource | None) -> Extraction:
        hidden = _number_layers(self.hidden, source)
        return Extraction(path, treebank_reader(path).identity, source, self.options, hidden)

    def read(self, path: Path) -> Treebank:
        treebank = treebank_reader(path).read(path, texts=self.options.spacing == "text")
        treebank.check_heads(path)
        if self.punctuation_by == "xpos":
            tags: set[str] = set()
            for sentence in treebank.sentences:
                tags.update(sentence.xpos)
            require_tags(path, tags)
        return treebank

    def accept(self, path: Path, store: Store) -> None:
        if self.punctuation_by == "xpos":
            require_tags(path, labels_of(store, "xpos"))

    def items(self, extraction: Extraction, corpus: Treebank, encoder: Encoder | None) -> Items:
        return cut_sentences(extraction, corpus, encoder)

    @property
    def layers(self) -> tuple[int, ...]:
        return super().layers[self.lowest :]

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Layers whose hidden states the batches hold: 0 for the embeddings, k for the output of layer k."""
        return any_store(self).manifest.hidden.layers

    @property
    def hidden_size(self) -> int:
        """Size of a hidden state in the batches; 0 without hidden states."""
        return any_store(self).manifest.hidden.size

    def setup(self, stage: str) -> None:
        """Open the stores of the splits of a stage, and number the relations.

        Relation ids are the same in all splits: a relation has an id if it occurs in any opened store. The batches have
        all tensors; see `read_only`.
        """
        super().setup(stage)
        if self.punctuation and not any(data.punctuation_words for data in self.splits.values()):
            warn(
                f"No word is punctuation: no {self.punctuation_by} of the corpus is {' or '.join(self.punctuation)}. "
                f"Scores without punctuation leave nothing out. Name its labels with {setting('data.punctuation')}."
            )
        self.read_only(FIELDS)

    def make_splits(self, stores: Mapping[Split, Store], encoder: EncoderOf = "given") -> dict[Split, DependencySplit]:
        relations: set[str] = set()
        for store in self.stores.values():
            relations.update(map(self.name_of, labels_of(store, "relations")))
        self.relations = tuple(sorted(relations))
        splits = {}
        for split, store in stores.items():
            splits[split] = DependencySplit(self, store, split, encoder)
        return splits

    def name_of(self, label: str) -> str:
        """Return a relation as this datamodule reports it: with its subtype, or without if `relations` is `base`."""
        if self.relation_labels == "base":
            return base_label(label)
        return label

    def read_only(self, reads: Set[Field]) -> None:
        """Restrict the tensors that are read into the batches, until the next `setup`; the others are left empty.

        Args:
            reads: Names of the tensors to read, among `FIELDS`.
        """
        for data in (*self.splits.values(), *self.random_splits.values()):
            data.reads = reads

    def variant(
        self, *, heads: HeadsOf | None = None, train: Sequence[int] | None = None, lowest: int = 0
    ) -> "DependencyDataModule":
        """Return a copy of the datamodule with other syntactic heads, training sentences or layers.

        The copy uses the stores that this datamodule has opened, but not those of the encoder with
        random weights. Call `setup` of the copy before use.

        Args:
            heads: Function from the words of a sentence to the syntactic heads that replace those of the
                corpus; None keeps the heads of this datamodule.
            train: Indices of the sentences of the train split to train on; None for all.
            lowest: Index in `layers` of the lowest layer whose attention is in the batches of the copy.
        """
        changed = copy(self)
        changed.place(Ranks(), self.device)  # for a training or test in this process alone
        changed.stores = dict(self.stores)
        changed.splits = {}
        changed.random_splits = {}
        changed.random_init = False
        changed.heads_of = heads or self.heads_of
        changed.lowest = self.lowest + lowest
        changed.train_on = train
        return changed

    @property
    def provenance(self) -> Provenance:
        """Description of the encoder and the data for the results, with counts of what was left out.

        The description of a split names the labels of punctuation; its counts include the punctuation
        words.
        """
        provenance = super().provenance
        data = cast(dict[str, dict[str, object]], provenance.data)
        audit = cast(dict[str, dict[str, object]], provenance.audit)
        for split in self.stores:
            data[split] |= {"punctuation_by": self.punctuation_by, "punctuation": list(self.punctuation)}
            audit[split]["punctuation_words"] = self.splits[split].punctuation_words
        return provenance

    def batches(self, split: Split, items: Sequence[int] | None = None) -> BatchLoader[AttentionBatch]:
        """Return the batches of a split for evaluation, with each sentence once.

        Args:
            split: Name of the split.
            items: Indices of the sentences; None for all.
        """
        return self._batches(self.splits[split], items)

    def _batches(
        self, data: DependencySplit, items: Sequence[int] | None = None, *, shuffle: bool = False
    ) -> BatchLoader[AttentionBatch]:
        if shuffle:
            return self._serve(
                data,
                shuffle=True,
                items=self.train_on,
                max_cells=self.max_cells,
                max_items=self.batch_size,
            )
        return self._serve(
            data,
            shuffle=False,
            items=items,
            groups=data.store.groups if isinstance(data.store, Stream) else (),
            max_cells=min(2 * self.max_cells, EVAL_CELLS),
            max_items=len(data),
        )


def read_fields(data: DependencyDataModule, reads: Collection[str], reader: str, *, random_init: bool = False) -> None:
    """Limit the batches of a datamodule to the fields that an experiment reads.

    Args:
        data: The datamodule, after `setup`.
        reads: Names of the fields; gold arcs are always read.
        reader: Class name of the experiment, for messages.
        random_init: True if the experiment can also read batches of an encoder with random weights.

    Raises:
        UserError: The experiment reads attention or hidden states, and the data have no encoder; or the
            data have batches of an encoder with random weights, and `random_init` is False.
    """
    if data.random_init and not random_init:
        raise UserError(f"{setting('data.random_init')} is true, but {reader} has no such control. Set it to false.")
    needs = set(reads) - {"vectors"}
    if data.encoder_identity is None and needs:
        needed = "hidden states" if needs == {"hidden"} else "attention"
        raise UserError(
            f"{reader} needs {needed}, but {setting('data.encoder')} is null. Name an encoder with "
            f"{setting('encoder')}."
        )
    data.read_only(cast("frozenset[Field]", frozenset(reads)))


def check_arcs(data: DependencyDataModule, splits: Iterable[Split]) -> None:
    """Check that some word of each split depends on another word.

    Args:
        data: The datamodule, after `setup`.
        splits: Names of the splits.

    Raises:
        UserError: All words of a split are roots, so there is no arc to find.
    """
    for split in splits:
        if not data.splits[split].arcs:
            raise UserError(
                f"{data.files()[split]}: no word depends on another word, so there is no arc to find. "
                f"Give {setting('corpus')} a treebank with arcs."
            )


def check_relations(wanted: Sequence[str], known: Sequence[str]) -> None:
    """Warn of the relations that the user has named and the corpus lacks, whose rows are blank.

    Treebanks of some languages lack a relation, as the Japanese ones lack `flat`.

    Args:
        wanted: Relations that the user has named.
        known: Relations of the corpus.

    Raises:
        UserError: The corpus has none of the relations.
    """
    absent = [name for name in wanted if name not in known]
    if not absent:
        return
    wrong = f"{setting('model.relations')}: no word of the corpus has the relation {', '.join(map(repr, absent))}"
    if len(absent) == len(wanted):
        raise UserError(f"{wrong}; the relations are {', '.join(known)}.")
    warn(f"{wrong}: such rows are blank. The relations are {', '.join(known)}.")
