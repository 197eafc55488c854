"""Base class of datamodules over a corpus in splits: its files, the stages that read them, and loaders."""

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch

from attention_probing.attention import (
    EncoderSpec,
    Options,
)
from attention_probing.attention.stream import Stream
from attention_probing.corpora.files import files_by_split, no_file
from attention_probing.corpora.registry import data_root, locate
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.splits import Split
from attention_probing.datamodules.batches import Batches, BatchLoader, Item, LengthBatches, Ranks, run_seed
from attention_probing.datamodules.gold import Gold, GoldShuffle
from attention_probing.datamodules.lightning import DataModule
from attention_probing.datamodules.limits import Limit, LimitBy
from attention_probing.datamodules.vectors import VectorSpec, WordVectors
from attention_probing.results import Provenance
from attention_probing.results.errors import UserError, setting
from attention_probing.results.options import NonNegative, Positive, checked

Data = TypeVar("Data")

DEFAULT_SPEC = EncoderSpec()
DEFAULT_OPTIONS = Options()

STAGES: dict[str, tuple[Split, ...]] = {
    "fit": ("train", "dev"),
    "validate": ("dev",),
    "test": ("dev", "test"),
    "predict": ("test",),
}
"""Splits that each stage reads. A test reads dev too, because experiments choose on dev and report on test."""


def data_for(reader: str, kind: type[Data], given: object) -> Data:
    """Return the datamodule if it is an instance of the class `kind`.

    Args:
        reader: Name of the class that reads the data, for the message.
        kind: Class of the datamodule that it needs.
        given: Datamodule of the run; None if none is given.

    Raises:
        UserError: The run has no such datamodule.
    """
    if not isinstance(given, kind):
        fault = "no data are given" if given is None else f"{type(given).__name__} has none"
        needed = getattr(kind, "holds", "a corpus")
        raise UserError(f"{reader} needs {needed}, but {fault}. Give {setting('data', kind.__name__)}.")
    return given


def mapping_of(data: "CorpusDataModule[Any]") -> str:
    """Return an example for messages: one file for each split, as on the command line."""
    suffix = data.suffix
    files = f"train: a.{suffix}, dev: b.{suffix}, test: c.{suffix}"
    return setting(data.option, f"{{{files}}}")


def _no_split(data: "CorpusDataModule[Any]", split: Split, files: Mapping[str, Path]) -> CorpusError:
    """Return the error for a corpus without a split that is needed."""
    owner = data.with_corpus_of(split)
    others = [other for other in files if data.with_corpus_of(other).option == owner.option]
    name = f"{owner.corpus}: the" if isinstance(owner.corpus, str) else "The"
    return CorpusError(
        f"{name} corpus ({setting(owner.option)}) has no {split} split, but the command needs one; it has "
        f"{' and '.join(others) or 'no other'}. {owner.missing_remedy}."
    )


def _one_file(data: "CorpusDataModule[Any]", path: Path) -> CorpusError:
    """Return the error for a corpus that is the path of one file."""
    advice = f"Give a path with `{{split}}` in the place of train, dev and test, or a mapping: {mapping_of(data)}"
    if data.borrows and data.option == "corpus":
        test_alone = setting(data.option, f"{{test: {path}}}")
        advice += f". If it is the test split, give {test_alone}{data.borrows}"
    return CorpusError(f"{path}: this is one file, but a corpus has a file for each split. {advice}{data.divides}.")


class CorpusDataModule(DataModule, Generic[Item]):
    """Base class of all datamodules: a corpus in splits, served as batches.

    Subclasses fill `splits` in `setup`, and return the batches of a split from `_batches`.

    Args:
        corpus: One of four: `sample`, the small corpus that this package generates; a name of
            `probing fetch --list`; a path with `{split}` in the place of train, dev and
            test; or a mapping from these three to paths.
        root: Folder of the public corpora and word vectors; else `$PROBING_DATA`, else `./data`.
        cache: Folder of attention stores and of other files that are computed once; else
            `$PROBING_CACHE`, else `./stores`.
        vectors: Word vectors; None for none.
        seed: Seed of the order of the training batches; None for the seed of the run.
        limit: Largest number of items of each split: of sentences, of documents with coreference, of labelled texts.
            None for all.
        limit_by: `random` to draw these items with `seed`, or with seed 0 if that is None, so that runs that differ in
            the seed of the run alone read the same; `first` for the first of each file.
        gold: `shuffled` to give each item the gold of another of the same split, drawn with `seed` or seed 0: arcs of
            another sentence of the same length, the label of another text of about the same length, the cluster of
            another mention of the same type in its window, and by a coin the other sentence of a pair as the good one.
            What is found then is no knowledge of the gold. Stores of attention are the same.

    Attributes:
        unit: Plural noun for the items of a split, for messages.
        limited: Plural noun for the items that `limit` counts.
        holds: Noun phrase for the content of the batches, for messages.
        batch: Class of the batches.
        suffix: Usual suffix of the corpus files, for messages.
        option: Option of the data that holds `corpus`, for messages.
        borrows: Advice for messages on a corpus without some split, if `transfer_from` can be given; else empty.
        divides: Advice for messages on a corpus that is one file, if it may hold all splits; else empty.
        transfer_from: Corpus, in the same form as `corpus`, whose train and dev replace those of `corpus`; None for
            none.
        always: Splits that every stage reads.
        sample: Name of the sample corpus's folder in the cache, and the function that writes the files
            into a folder and returns their paths by split.
        exchanges: Plural noun for the items that exchange their gold with `gold: shuffled`; empty if there is no gold
            that can be exchanged.
        shuffle: Draws of these items; None with their own gold.
        vectors: The word vectors, after `setup`.
        splits: Dataset of each split, indexed by lists of items, after `setup`.
    """

    unit: ClassVar[str] = "sentences"
    limited: ClassVar[str] = "sentences"
    holds: ClassVar[str]
    batch: ClassVar[type]
    suffix: ClassVar[str] = "conllu"
    option: str = "corpus"
    borrows: ClassVar[str] = ""
    divides: ClassVar[str] = ""
    transfer_from: str | dict[str, str] | None = None
    always: ClassVar[tuple[Split, ...]] = ()
    sample: ClassVar[tuple[str, Callable[[Path], Mapping[str, Path]]]]
    exchanges: ClassVar[str] = ""

    @checked
    def __init__(
        self,
        corpus: str | dict[str, str],
        root: str | None = None,
        cache: str | None = None,
        vectors: VectorSpec | None = None,
        seed: NonNegative | None = None,
        limit: Positive | None = None,
        limit_by: LimitBy = "random",
        gold: Gold = "given",
    ) -> None:
        super().__init__()
        self.corpus = corpus
        self.root = data_root(root)
        self.cache = Path(cache or os.environ.get("PROBING_CACHE") or "stores").expanduser()
        self.vector_spec = vectors
        self.vectors: WordVectors | None = None
        self.splits: dict[Split, Any] = {}
        self.seed = seed
        self.limit = Limit(limit, limit_by, seed or 0, self.limited)
        if gold == "shuffled" and not self.exchanges:
            raise UserError(
                f"{type(self).__name__} has no gold that could be shuffled. Compare it with random weights: "
                f"{setting('data.encoder.weights', 'redrawn')}."
            )
        self.shuffle = GoldShuffle(seed or 0, self.exchanges) if gold == "shuffled" else None
        self._ranks = Ranks()
        self._device = torch.device("cpu")

    def place(self, ranks: Ranks, device: torch.device) -> None:
        """Set the process and the device of the datamodule, for a run without a trainer.

        Args:
            ranks: Rank of this process, and number of processes.
            device: Device on which encoders run.
        """
        self.trainer = None
        self._ranks = ranks
        self._device = device

    @property
    def ranks(self) -> Ranks:
        """Rank of this process and number of processes of the run."""
        if self.trainer is None:
            return self._ranks
        return Ranks(self.trainer.global_rank, self.trainer.world_size)

    @property
    def device(self) -> torch.device:
        """Device on which encoders run."""
        if self.trainer is None:
            return self._device
        return self.trainer.strategy.root_device

    def files(self) -> Mapping[str, Path]:
        """Return the corpus file of every split; those of train and dev are of `transfer_from`, if that is given.

        If the corpus is `sample`, its files are first generated if they are absent or damaged.

        Raises:
            CorpusError: The corpus is unknown or absent.
        """
        if self.transfer_from is not None:
            files = dict(self.with_corpus_of("train").files())
            files.pop("test", None)
            tested = self.with_corpus_of("test").files()
            if "test" in tested:
                files["test"] = tested["test"]
            return files
        if self.corpus == "sample":
            folder, write_sample = self.sample
            return write_sample(self.cache / folder)
        if not isinstance(self.corpus, str) or "{split}" in self.corpus:
            return files_by_split(self.corpus, self.option)
        path = Path(self.corpus).expanduser()
        if path.is_file():
            raise _one_file(self, path)
        return locate(self.corpus, self.root)

    def with_corpus_of(self, split: str) -> Self:
        """Return a copy of this datamodule whose only corpus is the one that a split is read from.

        Args:
            split: Name of the split.
        """
        owner = copy(self)
        if self.transfer_from is not None and split != "test":
            owner.corpus = self.transfer_from
            owner.option = "data.transfer_from"
        owner.transfer_from = None
        return owner

    @property
    def missing_remedy(self) -> str:
        """Advice for the error message if the corpus lacks a split that is needed."""
        advice = f"Name its file: {mapping_of(self)}"
        if self.option == "corpus":
            advice += self.borrows
        return advice

    def splits_of(self, stage: str, files: Mapping[str, Path]) -> tuple[list[Split], list[Split]]:
        """Return the splits that a stage reads, and the splits that it only prepares for a later test.

        `fit` prepares the test split, because a test follows the training. Without validation, `fit` needs train
        alone.

        Args:
            stage: Stage of Lightning, such as `fit`.
            files: File of each split.

        Raises:
            CorpusError: The corpus lacks a split that is needed.
        """
        validates = self.trainer is not None and self.trainer.limit_val_batches != 0
        needed = STAGES[stage]
        if stage == "fit" and not validates:
            needed = ("train",)
        for split in (*self.always, *needed):
            if split not in files:
                raise _no_split(self, split, files)
        reads: list[Split] = []
        for split in (*self.always, *STAGES[stage]):
            if split in files and split not in reads:
                reads.append(split)
        prepares_test = stage == "fit" and validates and "test" in files and files["test"].is_file()
        return reads, ["test"] if prepares_test else []

    def absent(self, stages: Iterable[str]) -> list[CorpusError]:
        """Return an error for each missing corpus file that these stages read.

        Raises:
            CorpusError: The corpus lacks a split that is needed.
        """
        files = self.files()
        missing: list[Path] = []
        for stage in stages:
            reads, _ = self.splits_of(stage, files)
            for split in reads:
                path = files[split]
                if path not in missing and not path.is_file():
                    missing.append(path)
        advice = ""
        if "{split}" in self.corpus:
            advice += ". `{split}` in the path stands for train, dev and test"
        others = [split for split, path in files.items() if path.is_file()]
        if others:
            advice += f". The corpus has {' and '.join(others)}. {self.missing_remedy}"
        return [no_file(path, advice) for path in missing]

    @property
    @abstractmethod
    def provenance(self) -> Provenance:
        """Description of encoder and files for the results, with counts of all that was dropped or replaced."""

    def _batches(self, data: Any, *, shuffle: bool = False) -> BatchLoader[Item]:  # noqa: ANN401
        """Return the batches of one value of `splits`, shuffled for a training."""
        raise NotImplementedError(f"{type(self).__name__} must implement _batches().")

    def _serve(
        self,
        data: Any,  # noqa: ANN401 # a split of the datamodule, with the lengths of its items
        *,
        shuffle: bool,
        **bounds: Any,  # noqa: ANN401 # options of LengthBatches
    ) -> BatchLoader[Item]:
        """Return the batches of this rank."""
        ranks = self.ranks
        batches = LengthBatches(
            data.lengths, shuffle=shuffle, seed=run_seed(self.seed), rank=ranks.rank, world=ranks.world, **bounds
        )
        if shuffle and self.trainer is not None:
            batches.set_epoch(self.trainer.current_epoch)  # of a training that continues
        store = getattr(data, "store", None)
        return BatchLoader(data, batches, store.workers if isinstance(store, Stream) else None)

    def train_dataloader(self) -> BatchLoader[Item]:
        """Return shuffled batches of the train split."""
        return self._batches(self.splits["train"], shuffle=True)

    def val_dataloader(self) -> BatchLoader[Item]:
        """Return batches of the dev split, each item once."""
        return self._batches(self.splits["dev"])

    def test_dataloader(self) -> list[BatchLoader[Item]]:
        """Return one loader for dev, on which experiments select, and one for test, on which they report."""
        return [self._batches(self.splits[split]) for split in ("dev", "test")]

    def predict_dataloader(self) -> Batches[Item]:
        """Return batches of the test split, each item once."""
        return Batches(self._batches(self.splits["test"]))
