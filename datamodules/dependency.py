"""A dependency treebank through an encoder, as batches of word-level attention with the gold arcs."""

import logging
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_only
from torch.utils.data import Dataset

from attention.encoder import EncoderError, EncoderSpec
from attention.options import Options
from attention.store import Store
from corpora.conllu import READER_VERSION, read_treebank
from corpora.registry import CORPORA, data_root, locate
from corpora.sample import SAMPLE_VERSION, write_sample_treebank
from corpora.sentence import CorpusError, Treebank
from datamodules.base import SPLITS, STAGES, AttentionDataModule, Split, files_by_split
from datamodules.batch import AttentionBatch
from datamodules.sampling import Batches, BatchLoader, LengthBatches
from metrics.results import Provenance

log = logging.getLogger(__name__)

_MAPPING = "--data.init_args.corpus '{train: a.conllu, dev: b.conllu, test: c.conllu}'"
_DEFAULT_ENCODER = EncoderSpec()
_DEFAULT_OPTIONS = Options()


class DependencySplit(Dataset[AttentionBatch]):
    """One split, indexed by whole batches, so that a batch is collated in one go from the mapped store.

    Args:
        store: its attention and its labels.
        names: what each relation of the corpus is called here: itself, or its base label.
        vocabulary: the names, in order.
        punctuation: names that UAS leaves out.
    """

    def __init__(
        self, store: Store, names: Mapping[str, str], vocabulary: Sequence[str], punctuation: Collection[str]
    ) -> None:
        self.store = store
        labels = store.labels.combine_chunks()
        self.ids: list[str] = labels["id"].to_pylist()
        column = labels["relations"].chunk(0)
        self._offsets = column.offsets.to_numpy()
        self._heads = labels["heads"].chunk(0).values.to_numpy()
        number = {name: place for place, name in enumerate(vocabulary)}
        own = relations_of(store)
        codes = column.values.indices.to_numpy()
        self._relations = np.array([number[names[label]] for label in own], np.int64)[codes]
        self._punctuation = np.array([_base(label) in punctuation for label in own], bool)[codes]
        self.lengths = np.diff(self._offsets).astype(np.int64)
        self.punctuation_words = int(self._punctuation.sum())

    def __len__(self) -> int:
        return len(self.lengths)

    def words(self, item: int) -> list[str]:
        """The words of a sentence."""
        words: list[str] = self.store.labels["words"][item].as_py()
        return words

    def __getitem__(self, indices: list[int]) -> AttentionBatch:
        """The batch of these sentences; attention is copied once, from the mapped file to its place in the batch."""
        if not isinstance(indices, list):
            raise TypeError(
                "A split is read by whole batches. A Trainer that replaces the sampler asks for single items: give it "
                "use_distributed_sampler=False; the datamodule shares the batches between devices itself."
            )
        lengths = self.lengths[indices]
        words = int(lengths.max(initial=0))
        heads = np.full((len(indices), words), -1)
        relations = np.full((len(indices), words), -1)
        punctuation = np.zeros((len(indices), words), bool)
        manifest = self.store.manifest
        shape = (len(indices), len(manifest.layers), len(manifest.heads), words + 2, words + 2)
        # Only what lies behind a sentence's end is ever cleared, and in most batches nothing does.
        even = bool((lengths == words).all())
        attention = (torch.empty if even else torch.zeros)(shape, dtype=manifest.dtype)
        for row, (item, n) in enumerate(zip(indices, lengths.tolist(), strict=True)):
            span = slice(self._offsets[item], self._offsets[item + 1])
            heads[row, :n] = self._heads[span]
            relations[row, :n] = self._relations[span]
            punctuation[row, :n] = self._punctuation[span]
            if manifest.shards:
                attention[row, :, :, : n + 2, : n + 2] = self.store.read("attention", item)
        return AttentionBatch(
            index=torch.tensor(indices, dtype=torch.int64),
            lengths=torch.from_numpy(lengths),
            heads=torch.from_numpy(heads),
            relations=torch.from_numpy(relations),
            punctuation=torch.from_numpy(punctuation),
            attention=attention,
        )


def relations_of(store: Store) -> list[str]:
    """The relations of a store as the corpus writes them, in the order of their codes."""
    labels: list[str] = store.labels.combine_chunks()["relations"].chunk(0).values.dictionary.to_pylist()
    return labels


def _shared(texts: Sequence[tuple[str, ...]], others: Sequence[tuple[str, ...]]) -> int:
    among = set(others)
    return sum(text in among for text in texts)


def _base(relation: str) -> str:
    return relation.partition(":")[0]


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
        cache: folder of the stores; else `$PROBING_CACHE`, else `./stores`.
        max_cells: bound of a training batch, in padded cells, Σ(n+2)².
        max_sentences: bound of the sentences in a training batch.
        eval_cells: bound of an evaluation batch, in padded cells.
        workers: processes that read batches ahead; 0 reads in the training process.
        random_init: a test also reads dev and test through the same encoder with all weights but the embeddings drawn
            anew, for experiments that ask what its training contributed.
        seed: of the order of the training batches.

    Raises:
        CorpusError: a corpus that is absent or malformed, on `setup`.
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
        cache: str | None = None,
        max_cells: int = 8192,
        max_sentences: int = 32,
        eval_cells: int = 65536,
        workers: int = 0,
        random_init: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(encoder, options, cache)
        self.corpus = corpus
        self.root = data_root(root)
        self.format = format
        self.relation_labels = relations
        self.punctuation = punctuation
        self.max_cells, self.max_sentences, self.eval_cells = max_cells, max_sentences, eval_cells
        self.workers = workers
        self.random_init = random_init
        self.seed = seed
        self.control: DependencyDataModule | None = None
        self.splits: dict[Split, DependencySplit] = {}
        self.relations: tuple[str, ...] = ()

    def files(self) -> Mapping[str, Path]:
        """The corpus file of every split there is."""
        if self.corpus == "sample":
            folder = self.cache / f"sample-{SAMPLE_VERSION}"
            written: dict[str, Path] = {split: folder / f"sample-{split}.conllu" for split in SPLITS}
            return written if all(path.exists() for path in written.values()) else write_sample_treebank(folder)
        if isinstance(self.corpus, str) and "{split}" not in self.corpus:
            if self.corpus not in CORPORA:
                raise CorpusError(
                    f"{self.corpus}: neither `sample` nor a corpus of the registry ({', '.join(CORPORA)}). For files "
                    f"of your own give a path with {{split}} in it, or a mapping: {_MAPPING}."
                )
            return locate(self.corpus, self.root)
        return files_by_split(self.corpus)

    def read(self, path: Path) -> Treebank:
        """Parse one treebank."""
        return read_treebank(path, format=self.format)

    @property
    def reader(self) -> Mapping[str, object]:
        """What identifies the parser."""
        return {"name": "treebank", "version": READER_VERSION, "format": self.format}

    def setup(self, stage: str) -> None:
        """Open the stores of a stage, and number the relations of all of them together."""
        # Before hours of extraction; training alone needs no dev.
        alone = stage == "fit" and (self.trainer is None or self.trainer.limit_val_batches == 0)
        needed = ("train",) if alone else STAGES[stage]
        if missing := [split for split in needed if split not in self.files()]:
            raise CorpusError(f"The corpus has no {missing[0]} split, and it is needed. Name its file: {_MAPPING}.")
        super().setup(stage)
        labels = {label for store in self.stores.values() for label in relations_of(store)}
        names = {label: _base(label) if self.relation_labels == "base" else label for label in labels}
        self.relations = tuple(sorted(set(names.values())))
        self.splits = self._numbered(self.stores, names)
        if self.punctuation and not any(data.punctuation_words for data in self.splits.values()):
            rank_zero_only(log.warning)(
                f"No word is punctuation: no relation of the corpus is named {' or '.join(self.punctuation)}. Scores "
                f"without punctuation leave nothing out. Name the relation with --data.init_args.punctuation."
            )
        if self.random_init and stage == "test":
            self.control = self._with_random_weights()
            self.control.setup(stage)
            # Other splits may be open here: the numbers of the relations must be the same on both sides.
            self.control.relations = self.relations
            self.control.splits = self._numbered(self.control.stores, names)

    def _numbered(self, stores: Mapping[Split, Store], names: Mapping[str, str]) -> dict[Split, DependencySplit]:
        return {
            split: DependencySplit(store, names, self.relations, self.punctuation) for split, store in stores.items()
        }

    def _with_random_weights(self) -> "DependencyDataModule":
        if self.encoder is None:
            raise EncoderError("random_init needs an encoder: --data.init_args.encoder must not be null.")
        control = copy(self)
        control.encoder = replace(self.encoder, weights="random")
        control.stores, control.splits, control.random_init = {}, {}, False
        return control

    @property
    def provenance(self) -> Provenance:
        """Which encoder, which files, what was dropped, cut or replaced, and what stands in an earlier split too."""
        known = super().provenance
        texts = {split: list(map(tuple, store.labels["words"].to_pylist())) for split, store in self.stores.items()}
        audit: dict[str, object] = {}
        for place, split in enumerate(SPLITS):
            if split in texts:
                earlier = [other for other in SPLITS[:place] if other in texts]
                shared = {f"also_in_{other}": _shared(texts[split], texts[other]) for other in earlier}
                left_out = {"punctuation_words": self.splits[split].punctuation_words}
                audit[split] = dict(self.stores[split].manifest.audit) | left_out | shared
        control = {} if self.control is None else {"random_init": self.control.provenance.encoder}
        return Provenance({**known.encoder, **control}, known.data, audit)

    def train_dataloader(self) -> BatchLoader:
        """Shuffled batches of the train split."""
        return self._loader("train")

    def val_dataloader(self) -> BatchLoader:
        """The dev split, each sentence once."""
        return self._loader("dev")

    def test_dataloader(self) -> list[BatchLoader]:
        """The dev split, for what is chosen, and the test split, for what is reported; then those of `random_init`."""
        control = [] if self.control is None else self.control.test_dataloader()
        return [self._loader("dev"), self._loader("test"), *control]

    def predict_dataloader(self) -> Batches:
        """The test split, each sentence once."""
        return Batches(self._loader("test"))

    def _loader(self, split: Split) -> BatchLoader:
        data, train, trainer = self.splits[split], split == "train", self.trainer
        batches = LengthBatches(
            data.lengths,
            max_cells=self.max_cells if train else self.eval_cells,
            max_sentences=self.max_sentences if train else len(data),
            shuffle=train,
            seed=self.seed,
            rank=trainer.global_rank if trainer is not None else 0,
            world=trainer.world_size if trainer is not None else 1,
        )
        if train and trainer is not None:
            # Nothing in a fresh run; in a resumed one what the checkpoint says.
            limit = trainer.limit_train_batches  # a number of batches, or a share of them
            epoch = min(len(batches), limit if isinstance(limit, int) else int(limit * len(batches)))
            seen = trainer.fit_loop.epoch_loop.batch_progress.current.ready % max(epoch, 1)
            batches.start_at(trainer.current_epoch, seen)
        return BatchLoader(data, batches, self.workers)
