"""A dependency treebank through an encoder, as batches of word-level attention with the gold arcs."""

import logging
from collections.abc import Mapping, Sequence, Set
from copy import copy
from dataclasses import replace
from functools import cache as once
from pathlib import Path
from typing import Literal

from pytorch_lightning.utilities import rank_zero_only

from attention.digest import Digests
from attention.encoder import Encoder, EncoderError, EncoderSpec, Source, resolve
from attention.specification import Extraction, Items, Options, cut_sentences
from attention.store import Store
from corpora.conllu import READER_VERSION, read_treebank
from corpora.document import Documents
from corpora.registry import data_root
from corpora.sample import SAMPLE_VERSION, write_sample_treebank
from corpora.sentence import CorpusError, Treebank
from datamodules.base import SPLITS, STAGES, AttentionDataModule, corpus_files, describe_encoder
from datamodules.batch import AttentionBatch, EncoderOf, Split
from datamodules.sampling import Batches, BatchLoader, LengthBatches, run_seed
from datamodules.treebank import FIELDS, DependencySplit, Field, HeadsOf, base_label, relations_of
from datamodules.vectors import VectorSpec
from results import Provenance

log = logging.getLogger(__name__)

_MAPPING = "--data.init_args.corpus '{train: a.conllu, dev: b.conllu, test: c.conllu}'"
_DEFAULT_ENCODER = EncoderSpec()
_DEFAULT_OPTIONS = Options()


class DependencyDataModule(AttentionDataModule):
    """Attention over a dependency treebank.

    Args:
        corpus: `sample` for the embedded treebank, a name of `python -m corpora.registry --list`, one path with
            `{split}` in the place of train, dev and test, or a mapping from these three to paths.
        root: folder of the public corpora; else `$PROBING_DATA`, else `./data`.
        format: `conllu` or `conllx`; by default what the suffix says.
        relations: `full` labels (`nmod:poss` is its own) or `base` labels.
        punctuation: relations that UAS leaves out, with their subtypes.
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

    Raises:
        CorpusError: a corpus that is absent or malformed, on `setup`.
        VectorError: word vectors that are absent, malformed, or know too few of the words, on `setup`.
    """

    def __init__(
        self,
        corpus: str | dict[str, str] = "sample",
        root: str | None = None,
        format: Literal["conllu", "conllx"] | None = None,
        relations: Literal["full", "base"] = "full",
        punctuation: tuple[str, ...] = ("punct",),
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
    ) -> None:
        super().__init__(encoder, options, cache, data_root(root), vectors)
        self.corpus = corpus
        self.hidden = hidden
        self.format = format
        self.relation_labels = relations
        self.punctuation = punctuation
        self.max_cells, self.max_sentences, self.eval_cells = max_cells, max_sentences, eval_cells
        self.workers = workers
        self.random_init = random_init
        self.seed = seed
        self.splits: dict[Split, DependencySplit] = {}
        self.random_splits: dict[Split, DependencySplit] = {}
        self.relations: tuple[str, ...] = ()
        self._reads: Set[Field] = FIELDS
        self._heads_of: HeadsOf | None = None
        self._train_on: Sequence[int] | None = None

    def files(self) -> Mapping[str, Path]:
        """The corpus file of every split there is."""
        if self.corpus == "sample":
            folder = self.cache / f"sample-{SAMPLE_VERSION}"
            written: dict[str, Path] = {split: folder / f"sample-{split}.conllu" for split in SPLITS}
            return written if all(path.exists() for path in written.values()) else write_sample_treebank(folder)
        return corpus_files(self.corpus, self.root, _MAPPING)

    def extraction(self, path: Path, source: Source | None) -> Extraction:
        """Attention, and the hidden states of the layers asked for."""
        reader = {"name": "treebank", "version": READER_VERSION, "format": self.format}
        return Extraction(path, reader, source, self.options, self.hidden)

    def read(self, path: Path) -> Treebank:
        """Parse one treebank."""
        return read_treebank(path, format=self.format)

    def items(self, extraction: Extraction, corpus: Treebank | Documents, encoder: Encoder | None) -> Items:
        """An item is a sentence."""
        assert isinstance(corpus, Treebank)
        return cut_sentences(extraction, corpus, encoder)

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Layers whose hidden states the batches hold: 0 for the embeddings, k for the output of layer k."""
        return self._any.manifest.hidden.layers

    @property
    def hidden_size(self) -> int:
        """Size of a hidden state; 0 where none are kept."""
        return self._any.manifest.hidden.size

    def setup(self, stage: str) -> None:
        """Open the stores of a stage, and number the relations of all of them together."""
        # Before hours of extraction; training alone needs no dev.
        alone = stage == "fit" and (self.trainer is None or self.trainer.limit_val_batches == 0)
        needed = ("train",) if alone else STAGES[stage]
        if missing := [split for split in needed if split not in self.files()]:
            raise CorpusError(f"The corpus has no {missing[0]} split, and it is needed. Name its file: {_MAPPING}.")
        super().setup(stage)
        labels = {label for store in self.stores.values() for label in relations_of(store)}
        names = {label: base_label(label) if self.relation_labels == "base" else label for label in labels}
        self.relations = tuple(sorted(set(names.values())))
        self.splits = self._numbered(self.stores, names)
        if self.punctuation and not any(data.punctuation_words for data in self.splits.values()):
            rank_zero_only(log.warning)(
                f"No word is punctuation: no relation of the corpus is named {' or '.join(self.punctuation)}. Scores "
                f"without punctuation leave nothing out. Name the relation with --data.init_args.punctuation."
            )
        if self.random_init and stage == "test":
            self.random_splits = self._numbered(self._random_stores(), names, "random_init")

    def _numbered(
        self, stores: Mapping[Split, Store], names: Mapping[str, str], encoder: EncoderOf = "given"
    ) -> dict[Split, DependencySplit]:
        numbered = {
            split: DependencySplit(
                store, names, self.relations, self.punctuation, split, encoder, self.vectors, self._heads_of
            )
            for split, store in stores.items()
        }
        for data in numbered.values():
            data.reads = self._reads
        return numbered

    def _random_stores(self) -> dict[Split, Store]:
        """Dev and test through the same encoder with all weights but the embeddings drawn anew."""
        if self.encoder is None:
            raise EncoderError("random_init needs an encoder: --data.init_args.encoder must not be null.")
        source = resolve(replace(self.encoder, weights="random"))
        files = {split: self.files()[split] for split in STAGES["test"]}

        @once
        def encoder() -> Encoder:
            return Encoder(source, self._device())

        stores = self._stores(list(dict.fromkeys(files.values())), source, Digests(self.cache), encoder)
        return {split: stores[path] for split, path in files.items()}

    def read_only(self, reads: Set[Field]) -> None:
        """Leave out of the batches what a probe has no use for."""
        self._reads = reads
        for data in (*self.splits.values(), *self.random_splits.values()):
            data.reads = reads

    def variant(self, *, heads: HeadsOf | None = None, train: Sequence[int] | None = None) -> "DependencyDataModule":
        """The same data with something changed, on the same opened stores.

        Args:
            heads: gives every sentence of every split other heads than those of the corpus.
            train: positions of the sentences of the train split that are trained on.
        """
        changed = copy(self)
        changed.trainer = None
        changed.stores, changed.splits, changed.random_splits = dict(self.stores), {}, {}
        changed.random_init = False
        changed._heads_of = heads or self._heads_of
        changed._train_on = train
        return changed

    @property
    def provenance(self) -> Provenance:
        """Which encoder, which files, what was dropped, cut or replaced, and what stands in an earlier split too."""
        known = super().provenance
        if not self.random_splits:
            return known
        random_init = describe_encoder(self.random_splits["test"].store)
        return Provenance({**known.encoder, "random_init": random_init}, known.data, known.audit)

    def _counts(self) -> dict[Split, Mapping[str, int]]:
        words = {split: {"punctuation_words": data.punctuation_words} for split, data in self.splits.items()}
        return {split: {**counts, **words[split]} for split, counts in super()._counts().items()}

    def train_dataloader(self) -> BatchLoader[AttentionBatch]:
        """Shuffled batches of the train split."""
        data, trainer = self.splits["train"], self.trainer
        batches = LengthBatches(
            data.lengths,
            items=self._train_on,
            max_cells=self.max_cells,
            max_sentences=self.max_sentences,
            shuffle=True,
            seed=run_seed(self.seed),
            rank=trainer.global_rank if trainer is not None else 0,
            world=trainer.world_size if trainer is not None else 1,
        )
        if trainer is not None:
            batches.resume(trainer)
        return BatchLoader(data, batches, self.workers)

    def val_dataloader(self) -> BatchLoader[AttentionBatch]:
        """The dev split, each sentence once."""
        return self.batches("dev")

    def test_dataloader(self) -> list[BatchLoader[AttentionBatch]]:
        """The dev split, for what is chosen, and the test split, for what is reported; then those of `random_init`."""
        return [self.batches("dev"), self.batches("test"), *map(self._loader, self.random_splits.values())]

    def predict_dataloader(self) -> Batches[AttentionBatch]:
        """The test split, each sentence once."""
        return Batches(self.batches("test"))

    def batches(self, split: Split, items: Sequence[int] | None = None) -> BatchLoader[AttentionBatch]:
        """A split, or some of its sentences, each once, in batches for evaluation."""
        return self._loader(self.splits[split], items)

    def _loader(self, data: DependencySplit, items: Sequence[int] | None = None) -> BatchLoader[AttentionBatch]:
        trainer = self.trainer
        return BatchLoader(
            data,
            LengthBatches(
                data.lengths,
                items=items,
                max_cells=self.eval_cells,
                max_sentences=len(data),
                shuffle=False,
                rank=trainer.global_rank if trainer is not None else 0,
                world=trainer.world_size if trainer is not None else 1,
            ),
            self.workers,
        )
