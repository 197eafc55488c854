"""A dependency treebank through an encoder, as batches of word-level attention with the gold arcs."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from copy import copy
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor
from torch.utils.data import Dataset

from attention import Encoder
from attention.encoder import EncoderSource, EncoderSpec
from attention.specification import Extraction, Items, Options, cut_sentences
from attention.store import Store
from corpora.conllu import READER_VERSION, read_treebank
from corpora.document import Documents
from corpora.sample import SAMPLE_VERSION, write_sample_treebank
from corpora.sentence import CorpusError, Treebank
from datamodules.batches import AttentionBatch, BatchLoader, BatchPer, EncoderOf, Split, check_batch, padder
from datamodules.corpus import AttentionDataModule
from datamodules.vectors import VectorSpec, WordVectors
from results import Provenance
from results.errors import check_numbers, check_values

log = logging.getLogger(__name__)

_DEFAULT_ENCODER = EncoderSpec()
_DEFAULT_OPTIONS = Options()

Field = Literal["attention", "hidden", "vectors"]
FIELDS: frozenset[Field] = frozenset(("attention", "hidden", "vectors"))
"""Fields of a batch beside the gold arcs; each is filled if it is there and wanted."""

PunctuationBy = Literal["relation", "xpos"]
PUNCTUATION: Mapping[PunctuationBy, tuple[str, ...]] = {
    "relation": ("punct",),
    "xpos": ("''", ",", ".", ":", "``", "-LRB-", "-RRB-"),
}
"""Labels of punctuation: the relation of Universal Dependencies; the tags of the Penn Treebank that Hewitt & Manning
(2019) leave out (structural-probes, `reporter.py`), which are not all: EWT also has HYPH and NFP."""

HeadsOf = Callable[[Sequence[str]], Sequence[int]]
"""From the words of a sentence to their heads, 1-based, 0 = root."""


class DependencySplit(Dataset[AttentionBatch]):
    """One split, indexed by whole batches, so that a batch is collated in one go from the mapped store.

    Args:
        names: what each relation of the corpus is called here: itself, or its base label.
        vocabulary: these names, in the order of their numbers.
        punctuation: base labels, or tags of XPOS, of the words that UAS leaves out.
        punctuation_by: which of the two.
        heads_of: other heads than those of the corpus.
        lowest: place of the lowest layer whose attention is read.

    Attributes:
        arcs: number of words whose head is a word.
        reach: int32 `[words, layers, 2]`, the first and the last word of its sentence, from 1, that each word of the
            split may attend to in each of the layers; None where that is always all.
    """

    def __init__(
        self,
        store: Store,
        names: Mapping[str, str],
        vocabulary: Sequence[str],
        punctuation: Collection[str],
        punctuation_by: PunctuationBy,
        split: Split,
        encoder: EncoderOf = "given",
        vectors: WordVectors | None = None,
        heads_of: HeadsOf | None = None,
        lowest: int = 0,
    ) -> None:
        self.store, self.split, self.encoder, self._lowest = store, split, encoder, lowest
        self.reads: Set[Field] = FIELDS
        labels = store.labels.combine_chunks()
        self.ids: list[str] = labels["id"].to_pylist()
        column = labels["relations"].chunk(0)
        self._offsets = column.offsets.to_numpy()
        self._heads = labels["heads"].chunk(0).values.to_numpy()
        number = {name: place for place, name in enumerate(vocabulary)}
        own = labels_of(store, "relations")
        codes = column.values.indices.to_numpy()
        self._relations = np.array([number[names[label]] for label in own], np.int64)[codes]
        marks = [base_label(label) in punctuation for label in own]
        if punctuation_by == "xpos":
            codes = labels["xpos"].chunk(0).values.indices.to_numpy()
            marks = [tag in punctuation for tag in labels_of(store, "xpos")]
        self._punctuation = np.array(marks, bool)[codes]
        self.lengths = np.diff(self._offsets).astype(np.int64)
        self.punctuation_words = int(self._punctuation.sum())
        self.arcs = int((self._heads > 0).sum())
        self.reach: NDArray[np.int32] | None = None
        if "reach" in labels.column_names:
            self.reach = labels["reach"].chunk(0).values.to_numpy().reshape(self._offsets[-1], -1, 2)
        self._vectors = vectors
        if vectors is not None:
            words = labels["words"].chunk(0).values.dictionary_encode()
            self._rows = vectors.rows(words.dictionary.to_pylist())[words.indices.to_numpy()]
        if heads_of is not None:
            self._heads = np.array([head for item in range(len(self)) for head in heads_of(self.words(item))], np.int64)
            if len(self._heads) != self._offsets[-1]:
                raise ValueError(f"heads_of gives {len(self._heads)} heads to {self._offsets[-1]} words")

    def __len__(self) -> int:
        return len(self.lengths)

    def words(self, item: int) -> list[str]:
        """Return the words of a sentence."""
        words: list[str] = self.store.labels["words"][item].as_py()
        return words

    def relations(self, item: int) -> NDArray[np.int64]:
        """Return the relations of the words of a sentence, as numbers, `[n]`."""
        relations: NDArray[np.int64] = self._relations[self._offsets[item] : self._offsets[item + 1]]
        return relations

    def __getitem__(self, indices: list[int]) -> AttentionBatch:
        """Return the batch of these sentences, copied once, from the mapped file to its place in the batch."""
        check_batch(indices)
        lengths = self.lengths[indices]
        padded, words = padder(self._offsets, indices), int(lengths.max(initial=0))
        manifest = self.store.manifest
        cells = words + 2 if manifest.shards and "attention" in self.reads else 0
        attention = (len(indices), len(manifest.layers) - self._lowest, len(manifest.heads), cells, cells)
        layers = len(manifest.hidden.layers) if "hidden" in self.reads else 0
        hidden = (len(indices), layers, words, manifest.hidden.size)
        vectors = torch.zeros(len(indices), words, 0)
        if self._vectors is not None and "vectors" in self.reads:
            vectors = torch.from_numpy(self._vectors.matrix[padded(self._rows, -1).numpy()])
        return AttentionBatch(
            index=torch.tensor(indices, dtype=torch.int64),
            lengths=torch.from_numpy(lengths),
            heads=padded(self._heads, -1).long(),
            relations=padded(self._relations, -1),
            punctuation=padded(self._punctuation, False),
            attention=self._stored("attention", indices, attention, torch.float32),
            hidden=self._stored("hidden", indices, hidden, manifest.dtype),
            vectors=vectors,
            split=self.split,
            encoder=self.encoder,
        )

    def _stored(self, quantity: Field, indices: list[int], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Read a quantity of each sentence, with zeros behind it; nothing where a size is 0."""
        lengths = self.lengths[indices]
        # Only what lies behind a sentence's end is ever cleared, and in most batches nothing does.
        room = (torch.empty if len(set(lengths)) <= 1 else torch.zeros)(shape, dtype=dtype)
        if room.numel():
            self.store.read_batch(quantity, indices, room, self._lowest if quantity == "attention" else 0)
        return room


def labels_of(store: Store, column: Literal["relations", "xpos"]) -> list[str]:
    """Return the relations or tags of a store as the corpus writes them, in the order of their codes."""
    labels: list[str] = store.labels.combine_chunks()[column].chunk(0).values.dictionary.to_pylist()
    return labels


def require_tags(path: Path, tags: Collection[str]) -> None:
    """Raise CorpusError if no word of a file has a tag."""
    if not set(tags) - {"_"}:
        wrong = "no word has a tag in column XPOS, by which punctuation is to be known"
        raise CorpusError.at(
            path, None, wrong, "Fill it, or take the relation: --data.init_args.punctuation_by relation"
        )


def base_label(relation: str) -> str:
    """Return a relation without its subtype: `nmod` of `nmod:poss`."""
    return relation.partition(":")[0]


class DependencyDataModule(AttentionDataModule[AttentionBatch]):
    """Attention over a dependency treebank.

    Args:
        corpus: `sample` for the embedded treebank, a name of `python -m corpora.registry --list`, one path with
            `{split}` in the place of train, dev and test, or a mapping from these three to paths.
        root: folder of the public corpora; else `$PROBING_DATA`, else `./data`.
        format: `conllu` or `conllx`; by default what the suffix says.
        relations: `full` labels (`nmod:poss` is its own) or `base` labels.
        punctuation: relations with their subtypes, or tags, of the words that UAS, UUAS and root accuracy leave out; by
            default the relation `punct`, or the tags that the released code of Hewitt & Manning (2019) leaves out.
        punctuation_by: `relation`, or `xpos` for the treebank's own tags.
        encoder: the encoder; None for what needs no attention.
        options: what is taken from it, and what happens to sentences over its limit.
        hidden: layers whose hidden states are kept beside the attention: 0 for the output of the embeddings, k for
            that of layer k.
        vectors: word vectors; None for none.
        cache: folder of the stores; else `$PROBING_CACHE`, else `./stores`.
        max_cells: bound of a training batch, in padded cells, Σ(n+2)².
        max_sentences: bound of the sentences in a training batch.
        eval_cells: bound of an evaluation batch, in padded cells.
        workers: processes that read batches ahead; 0 reads in the training process.
        random_init: a test also reads dev and test through the same encoder with all weights but the embeddings drawn
            anew, for experiments that ask what its training contributed.
        seed: of the order of the training batches; None for that of the run.
        rank_timeout: seconds without a sign of life after which another device is given up.
        batch_per: a training batch per `run`, whose devices divide it, so that a step is the same on any number of
            devices; or per `device`, so that a step is of as many batches as there are devices.

    Raises:
        CorpusError: a corpus that is absent, malformed, or without the tags that are asked for, on `setup`.
        UserError: word vectors that are absent, malformed, or know too few of the words, on `setup`.
    """

    holds = "gold arcs"
    batch = AttentionBatch
    sample = (f"sample-{SAMPLE_VERSION}", write_sample_treebank)

    def __init__(
        self,
        corpus: str | dict[str, str] = "sample",
        root: str | None = None,
        format: Literal["conllu", "conllx"] | None = None,
        relations: Literal["full", "base"] = "full",
        punctuation: tuple[str, ...] | None = None,
        punctuation_by: PunctuationBy = "relation",
        encoder: EncoderSpec | None = _DEFAULT_ENCODER,
        options: Options = _DEFAULT_OPTIONS,
        hidden: tuple[int, ...] = (),
        vectors: VectorSpec | None = None,
        cache: str | None = None,
        max_cells: int = 32768,
        max_sentences: int = 128,
        eval_cells: int = 65536,
        workers: int = 0,
        random_init: bool = False,
        seed: int | None = None,
        rank_timeout: float = 120.0,
        batch_per: BatchPer = "run",
    ) -> None:
        super().__init__(encoder, options, corpus, root, cache, vectors, workers, seed, rank_timeout, batch_per)
        check_values(self, format=format, relations=relations, hidden=hidden)
        check_values(self, punctuation=punctuation, punctuation_by=punctuation_by)
        check_numbers(self, least=1, max_cells=max_cells, max_sentences=max_sentences, eval_cells=eval_cells)
        self.format, self.relation_labels = format, relations
        self.punctuation = PUNCTUATION[punctuation_by] if punctuation is None else punctuation
        self.punctuation_by: PunctuationBy = punctuation_by
        self.hidden, self.random_init = hidden, random_init
        self.max_cells, self.max_sentences, self.eval_cells = max_cells, max_sentences, eval_cells
        self.splits: dict[Split, DependencySplit] = {}
        self.random_splits: dict[Split, DependencySplit] = {}
        self.relations: tuple[str, ...] = ()
        self._reads: Set[Field] = FIELDS
        self._heads_of: HeadsOf | None = None
        self._lowest = 0
        self.train_on: Sequence[int] | None = None

    def extraction(self, path: Path, source: EncoderSource | None) -> Extraction:
        """Attention, and the hidden states of the layers asked for."""
        reader = {"name": "treebank", "version": READER_VERSION, "format": self.format}
        return Extraction(path, reader, source, self.options, self.hidden)

    def read(self, path: Path) -> Treebank:
        """Parse one treebank."""
        treebank = read_treebank(path, format=self.format)
        if self.punctuation_by == "xpos":
            require_tags(path, {tag for sentence in treebank.sentences for tag in sentence.xpos})
        return treebank

    def items(self, extraction: Extraction, corpus: Treebank | Documents, encoder: Encoder | None) -> Items:
        """Cut a treebank into its sentences, the items."""
        assert isinstance(corpus, Treebank)
        return cut_sentences(extraction, corpus, encoder)

    @property
    def layers(self) -> tuple[int, ...]:
        """0-based layers of the encoder whose attention the batches hold."""
        return super().layers[self._lowest :]

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Layers whose hidden states the batches hold, as in `hidden`."""
        return self._any.manifest.hidden.layers

    @property
    def hidden_size(self) -> int:
        """Size of a hidden state; 0 where none are kept."""
        return self._any.manifest.hidden.size

    def setup(self, stage: str) -> None:
        """Open the stores of a stage, and number the relations of all of them together."""
        super().setup(stage)
        if self.punctuation_by == "xpos":  # a store that was there is not parsed
            for split, store in self.stores.items():
                require_tags(self.files()[split], labels_of(store, "xpos"))
        labels = {label for store in self.stores.values() for label in labels_of(store, "relations")}
        names = {label: base_label(label) if self.relation_labels == "base" else label for label in labels}
        self.relations = tuple(sorted(set(names.values())))

        def numbered(stores: Mapping[Split, Store], encoder: EncoderOf = "given") -> dict[Split, DependencySplit]:
            return {
                split: DependencySplit(
                    store,
                    names,
                    self.relations,
                    self.punctuation,
                    self.punctuation_by,
                    split,
                    encoder,
                    self.vectors,
                    self._heads_of,
                    self._lowest,
                )
                for split, store in stores.items()
            }

        self.splits = numbered(self.stores)
        if self.punctuation and not any(data.punctuation_words for data in self.splits.values()):
            rank_zero_only(log.warning)(
                f"No word is punctuation: no {self.punctuation_by} of the corpus is {' or '.join(self.punctuation)}. "
                f"Scores without punctuation leave nothing out. Name it with --data.init_args.punctuation."
            )
        if self.random_init and stage == "test":
            self.random_splits = numbered(self._open_random(), "random_init")
        self.read_only(self._reads)

    def read_only(self, reads: Set[Field]) -> None:
        """Leave out of the batches what a probe has no use for."""
        self._reads = reads
        for data in (*self.splits.values(), *self.random_splits.values()):
            data.reads = reads

    def variant(
        self, *, heads: HeadsOf | None = None, train: Sequence[int] | None = None, lowest: int = 0
    ) -> "DependencyDataModule":
        """Return the same data with something changed, on the same opened stores.

        Args:
            heads: gives every sentence of every split other heads than those of the corpus.
            train: positions of the sentences of the train split that are trained on.
            lowest: place, among `layers`, of the lowest layer whose attention the batches hold.
        """
        changed = copy(self)
        changed.trainer = None
        changed.stores, changed.splits, changed.random_splits = dict(self.stores), {}, {}
        changed.random_init = False
        changed._heads_of = heads or self._heads_of
        changed._lowest = self._lowest + lowest
        changed.train_on = train
        return changed

    @property
    def provenance(self) -> Provenance:
        """Encoder, files, punctuation, and counts of what was dropped, cut or replaced."""
        known = super().provenance
        marks = {"punctuation_by": self.punctuation_by, "punctuation": list(self.punctuation)}
        data, audit = dict(known.data), dict(known.audit)
        for split in self.stores:
            data[split] = {**cast(dict[str, object], data[split]), **marks}
            counts = cast(dict[str, object], audit[split])
            audit[split] = {**counts, "punctuation_words": self.splits[split].punctuation_words}
        return Provenance(known.encoder, data, audit)

    def test_dataloader(self) -> list[BatchLoader[AttentionBatch]]:
        """Return dev, to choose by, and test, to report on; then both through the random encoder, if asked for."""
        return [*super().test_dataloader(), *map(self._bounded, self.random_splits.values())]

    def batches(self, split: Split, items: Sequence[int] | None = None) -> BatchLoader[AttentionBatch]:
        """Return a split, or some of its sentences, each once, in batches for evaluation."""
        return self._bounded(self.splits[split], items)

    def _loader(self, split: Split, *, shuffle: bool = False) -> BatchLoader[AttentionBatch]:
        return self._bounded(self.splits[split], self.train_on if shuffle else None, shuffle=shuffle)

    def _bounded(
        self, data: DependencySplit, items: Sequence[int] | None = None, *, shuffle: bool = False
    ) -> BatchLoader[AttentionBatch]:
        cells, sentences = (self.max_cells, self.max_sentences) if shuffle else (self.eval_cells, len(data))
        return self._serve(data, data.lengths, shuffle=shuffle, max_cells=cells, max_sentences=sentences, items=items)
