"""A dependency treebank through an encoder, as batches of word-level attention with the gold arcs."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from attention.encoder import EncoderSpec
from attention.request import Options
from attention.store import Store
from corpora.conllu import READER_VERSION, read_treebank
from corpora.registry import CORPORA, data_root, locate
from corpora.sample import SAMPLE_VERSION, write_sample_treebank
from corpora.sentence import CorpusError, Treebank
from datamodules.base import SPLITS, AttentionDataModule, Split
from datamodules.batch import AttentionBatch
from datamodules.sampling import BatchLoader, LengthBatches
from metrics.results import Provenance

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

    def __len__(self) -> int:
        return len(self.lengths)

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
        self.seed = seed
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
                    f"{self.corpus}: not a corpus of the registry ({', '.join(CORPORA)}). For files of your own give a "
                    f"path with {{split}} in it, or a mapping: --data.init_args.corpus "
                    f"'{{train: a.conllu, dev: b.conllu, test: c.conllu}}'."
                )
            return locate(self.corpus, self.root)
        paths = (
            {split: self.corpus.replace("{split}", split) for split in SPLITS}
            if isinstance(self.corpus, str)
            else self.corpus
        )
        if strangers := set(paths) - set(SPLITS):
            raise CorpusError(f"corpus: unknown splits {sorted(strangers)}. They are named {', '.join(SPLITS)}.")
        return {split: Path(path).expanduser() for split, path in paths.items()}

    def read(self, path: Path) -> Treebank:
        """Parse one treebank."""
        return read_treebank(path, format=self.format)

    @property
    def reader(self) -> Mapping[str, object]:
        """What identifies the parser."""
        return {"name": "treebank", "version": READER_VERSION, "format": self.format}

    def setup(self, stage: str) -> None:
        """Open the stores of a stage, and number the relations of all of them together."""
        super().setup(stage)
        labels = {label for store in self.stores.values() for label in relations_of(store)}
        names = {label: _base(label) if self.relation_labels == "base" else label for label in labels}
        self.relations = tuple(sorted(set(names.values())))
        self.splits = {
            split: DependencySplit(store, names, self.relations, self.punctuation)
            for split, store in self.stores.items()
        }

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
                audit[split] = dict(self.stores[split].manifest.audit) | shared
        return Provenance(known.encoder, known.data, audit)

    def train_dataloader(self) -> BatchLoader:
        """Shuffled batches of the train split."""
        return self._loader("train")

    def val_dataloader(self) -> BatchLoader:
        """The dev split, each sentence once."""
        return self._loader("dev")

    def test_dataloader(self) -> list[BatchLoader]:
        """The dev split, for what is chosen, and the test split, for what is reported."""
        return [self._loader("dev"), self._loader("test")]

    def predict_dataloader(self) -> BatchLoader:
        """The test split, each sentence once."""
        return self._loader("test")

    def _loader(self, split: Split) -> BatchLoader:
        if split not in self.splits:
            raise CorpusError(f"{self.corpus}: there is no {split} split. Name one in --data.init_args.corpus.")
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
            seen = trainer.fit_loop.epoch_loop.batch_progress.current.ready % len(batches)
            batches.start_at(trainer.current_epoch, seen)
        return BatchLoader(data, batches, self.workers)
