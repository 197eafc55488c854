"""The splits of a corpus, what each stage reads of them, and stores of their attention: bases of all datamodules."""

import logging
import os
import re
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache as once
from pathlib import Path
from typing import ClassVar, Generic, TypeVar, Unpack

import pyarrow as pa
import pyarrow.compute as pc
from pytorch_lightning import LightningDataModule, Trainer
from pytorch_lightning.utilities import rank_zero_info, rank_zero_only
from torch.utils.data import Dataset

from attention import Encoder
from attention.encoder import EncoderError, EncoderSource, EncoderSpec, resolve
from attention.extraction import make_store, open_store
from attention.specification import UNKNOWN_WORDS, Extraction, Items, Options
from attention.store import Store
from corpora.document import Documents
from corpora.registry import CORPORA, data_root, locate, no_file
from corpora.sentence import CorpusError, Treebank
from datamodules.batches import Batches, BatchLoader, BatchPer, Bounds, Item, LengthBatches, Lengths, Split
from datamodules.vectors import ENCODER, VectorSpec, WordVectors, find_vectors, load_vectors
from processes.ranks import Ranks, run_seed
from results import Provenance
from results.digests import Digests
from results.errors import UserError, check_numbers, check_values, counted, near

log = logging.getLogger(__name__)

Data = TypeVar("Data")

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
STAGES: dict[str, tuple[Split, ...]] = {
    "fit": ("train", "dev"),
    "validate": ("dev",),
    "test": ("dev", "test"),
    "predict": ("test",),
}
"""Splits that each stage reads. Experiments choose on dev and report on test, so that a test needs both."""

_OF_SPLIT = re.compile(r"(?:(.+)[-_.])?(train|dev|test)")
"""Name of a file without its suffix, where it ends in a split."""

SHARED = 0.05
"""Share of a split that also stands in an earlier one above which there is a warning. Of UD EWT's test 4.5 % do."""
UNKNOWN_SHARE = 0.01
"""Above this share of words that contain the unknown token there is a warning."""


def count_shared(texts: Mapping[Split, pa.Array | pa.ChunkedArray], split: Split) -> dict[str, int]:
    """Count the items of `split`, given as strings, that each earlier split has too, as `also_in_<split>`."""
    earlier = [other for other in SPLITS[: SPLITS.index(split)] if other in texts]
    return {f"also_in_{other}": int(pc.sum(pc.is_in(texts[split], texts[other])).as_py() or 0) for other in earlier}


def warn_of_shared(split: Split, shared: Mapping[str, int], total: int, unit: str) -> None:
    """Warn where a split repeats more than `SHARED` of an earlier one."""
    for name, count in shared.items():
        if count > SHARED * total:
            rank_zero_only(log.warning)(
                f"{count} of {total} {unit} of {split} ({count / total:.0%}) also stand in "
                f"{name.removeprefix('also_in_')}: scores on {split} are partly of what was seen before."
            )


def files_by_split(corpus: str | Mapping[str, str]) -> dict[str, Path]:
    """Return the files of one path with `{split}` in it, or of a mapping from splits to paths; else a `CorpusError`."""
    if isinstance(corpus, str):
        return {split: Path(corpus.replace("{split}", split)).expanduser() for split in SPLITS}
    if strangers := set(corpus) - set(SPLITS):
        raise CorpusError(f"corpus: unknown splits {sorted(strangers)}. They are named {', '.join(SPLITS)}.")
    files: dict[str, Path] = {split: Path(corpus[split]).expanduser() for split in SPLITS if split in corpus}
    for split, path in files.items():
        if not path.is_file():  # rather than when it is read: the test split may be hours later
            raise no_file(path, f", or leave {split} out of the corpus")
    return files


def describe_encoder(store: Store) -> dict[str, object]:
    """Return the encoder that a store was made with: its name, and what decides its weights."""
    identity = store.manifest.identity["encoder"]
    described = {**store.manifest.encoder, **(identity if isinstance(identity, dict) else {})}
    if described.get("weights") == "random":  # of the file only the embeddings were kept
        described["embeddings_of_sha256"] = described.pop("weights_sha256")
    return described


def corpus_of(path: Path) -> dict[str, str]:
    """Return the name of the `corpus` that a file is of, and the file's own `split` where its name has one.

    A file that is named after its split alone, such as `sst2/dev.tsv`, is of the corpus that its folder names.
    """
    found = _OF_SPLIT.fullmatch(path.stem)
    return {"corpus": found[1] or path.resolve().parent.name, "split": found[2]} if found else {"corpus": path.stem}


def part_of(data: object, kind: type[Data]) -> Data | None:
    """Return the datamodule itself where it is of a kind, else that of its `parts` which is; None without."""
    return next(iter(parts_of(data, kind)), None)


def parts_of(data: object, kind: type[Data]) -> list[Data]:
    """Return the datamodule and its `parts`, those of a kind."""
    return [one for one in (data, *getattr(data, "parts", ())) if isinstance(one, kind)]


def warn_of_roots(name: Path | str, audit: Mapping[str, int]) -> None:
    """Warn of trees with several roots, which are read; a basic tree of Universal Dependencies has one."""
    if count := audit.get("multiple_roots", 0):
        rank_zero_only(log.warning)(
            f"{name}: {counted(count, 'sentence')} with more than one root: a tree of Universal Dependencies has one. "
            f"They are read as they are; check column HEAD."
        )


def warn_of_words(stores: Mapping[Path, Store]) -> None:
    """Warn of words that the tokenizer does not know, and of trees with several roots, in the stores of these files."""
    for path, store in stores.items():
        words = len(store.labels["words"].combine_chunks().values)
        count = store.manifest.audit.get(UNKNOWN_WORDS, 0)
        if count > UNKNOWN_SHARE * words:
            rank_zero_only(log.warning)(
                f"{path}: {count} of {words} words ({count / words:.0%}) contain the unknown token of "
                f"{store.manifest.encoder['name']}, which sees nothing of what they are. Choose an encoder that "
                f"was trained on this language: --data.init_args.encoder.name."
            )
        warn_of_roots(path, store.manifest.audit)


class CorpusDataModule(LightningDataModule, Generic[Item]):
    """A corpus in splits, as batches; subclasses say how it is read and how a split is put into batches.

    Attributes:
        unit: what its items are called, in the plural.
        holds: what its items have, for messages.
        batch: class of its batches.
        suffix: of the files of such a corpus, for messages.
        always: splits that every stage reads.
        sample: of an embedded corpus the folder in the cache, and what writes its files there.
        vectors: the word vectors, once a stage is set up.
    """

    unit: ClassVar[str] = "sentences"
    holds: ClassVar[str]
    batch: ClassVar[type]
    suffix: ClassVar[str] = "conllu"
    always: ClassVar[tuple[Split, ...]] = ()
    sample: ClassVar[tuple[str, Callable[[Path], Mapping[str, Path]]] | None] = None

    def __init__(
        self,
        corpus: str | Mapping[str, str],
        root: str | None,
        cache: str | None,
        vectors: VectorSpec | None,
        workers: int,
        seed: int | None,
        rank_timeout: float,
        batch_per: BatchPer,
    ) -> None:
        super().__init__()
        check_values(self, batch_per=batch_per)
        check_numbers(self, least=0, workers=workers, seed=seed)
        check_numbers(self, above=0, rank_timeout=rank_timeout)
        self.corpus, self.root = corpus, data_root(root)
        self.cache = Path(cache or os.environ.get("PROBING_CACHE") or "stores").expanduser()
        self.vector_spec = vectors
        self.vectors: WordVectors | None = None
        self.workers, self.seed = workers, seed
        self.rank_timeout, self.batch_per = rank_timeout, batch_per

    @property
    def ranks(self) -> Ranks:
        """This process among those of the run; alone without a trainer."""
        rank, world = (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        return Ranks(rank, world, self.rank_timeout)

    def files(self) -> Mapping[str, Path]:
        """Return the corpus file of every split there is; a `CorpusError` if the corpus is unknown or absent.

        Those of the sample are written the first time, and again where they are damaged.
        """
        if self.corpus == "sample" and self.sample is not None:
            folder, write_sample = self.sample
            return write_sample(self.cache / folder)
        if not isinstance(self.corpus, str) or "{split}" in self.corpus:
            return files_by_split(self.corpus)
        if self.corpus not in CORPORA:
            other, known = ("a file", []) if self.sample is None else ("`sample`", ["sample"])
            raise CorpusError(
                f"{self.corpus}: neither {other} nor a corpus of the registry{near(self.corpus, (*known, *CORPORA))}: "
                f"{', '.join(CORPORA)}. For files of your own give a path with {{split}} in it, or a mapping: "
                f"{self._mapping}."
            )
        return locate(self.corpus, self.root)

    @property
    def _mapping(self) -> str:
        """A mapping of files as the command line takes it."""
        files = ", ".join(f"{split}: {name}.{self.suffix}" for split, name in zip(SPLITS, "abc", strict=True))
        return f"--data.init_args.corpus '{{{files}}}'"

    @property
    def _missing_remedy(self) -> str:
        return f"Name its file: {self._mapping}"

    def splits_of(self, stage: str, files: Mapping[str, Path]) -> tuple[list[Split], list[Split]]:
        """Return the splits that a stage reads, and those that it prepares for the test after a training.

        Raises:
            CorpusError: the corpus has no split that is needed; a training without validation needs train alone.
        """
        validates = self.trainer is not None and self.trainer.limit_val_batches != 0
        needed: tuple[Split, ...] = ("train",) if stage == "fit" and not validates else STAGES[stage]
        if missing := [split for split in (*self.always, *needed) if split not in files]:
            raise CorpusError(f"The corpus has no {missing[0]} split, and it is needed. {self._missing_remedy}.")
        tested = stage == "fit" and validates and "test" in files and files["test"].is_file()
        read = [split for split in dict.fromkeys((*self.always, *STAGES[stage])) if split in files]
        return read, ["test"] if tested else []

    def absent(self, stages: Iterable[str]) -> list[CorpusError]:
        """Return a fault for each file that these stages read and that is not there; raises as `splits_of`."""
        files = self.files()
        paths = dict.fromkeys(files[split] for stage in stages for split in self.splits_of(stage, files)[0])
        return [no_file(path) for path in paths if not path.is_file()]

    @property
    @abstractmethod
    def needed_encoders(self) -> tuple[EncoderSpec, ...]:
        """The encoders that are read or whose tokenizers are."""

    @property
    @abstractmethod
    def provenance(self) -> Provenance:
        """Encoder, files, and counts of what was dropped, cut or replaced."""

    @abstractmethod
    def _loader(self, split: Split, *, shuffle: bool = False) -> BatchLoader[Item]:
        """Return the batches of a split, shuffled for training; see `_serve`."""

    def _serve(
        self, data: Dataset[Item], lengths: Lengths, *, shuffle: bool, **bounds: Unpack[Bounds]
    ) -> BatchLoader[Item]:
        """Return the batches of this rank; a training that was interrupted skips those that it has seen."""
        batches = LengthBatches(
            lengths,
            shuffle=shuffle,
            seed=run_seed(self.seed),
            rank=self.ranks.rank,
            world=self.ranks.world,
            batch_per=self.batch_per,
            **bounds,
        )
        if shuffle and self.trainer is not None:
            batches.resume(self.trainer)
        return BatchLoader(data, batches, self.workers)

    def train_dataloader(self) -> BatchLoader[Item]:
        """Return the train split, shuffled."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> BatchLoader[Item]:
        """Return the dev split, each item once."""
        return self._loader("dev")

    def test_dataloader(self) -> list[BatchLoader[Item]]:
        """Return the dev split, for what is chosen, and the test split, for what is reported."""
        return [self._loader("dev"), self._loader("test")]

    def predict_dataloader(self) -> Batches[Item]:
        """Return the test split, each item once."""
        return Batches(self._loader("test"))


def load_later(source: EncoderSource | None, trainer: Trainer | None) -> Callable[[], Encoder]:
    """Return a function that loads the encoder, on the device of the trainer, when it is first called."""

    @once
    def encoder() -> Encoder:
        assert source is not None
        return Encoder(source, trainer.strategy.root_device if trainer is not None else "cpu")

    return encoder


class AttentionDataModule(CorpusDataModule[Item]):
    """Opens, and where needed makes, one store per split, in `stores`; splits of one file share its store.

    Attributes:
        make: makes a store that is not there: `attention.make_store`, or what takes its place in a rehearsal.
        random_init: whether a test reads the attention of the same encoder with random weights too.
        random_stores: of dev and test through that encoder, once a test is set up.
    """

    def __init__(
        self,
        encoder: EncoderSpec | None,
        options: Options,
        corpus: str | Mapping[str, str],
        root: str | None,
        cache: str | None,
        vectors: VectorSpec | None,
        workers: int,
        seed: int | None,
        rank_timeout: float,
        batch_per: BatchPer,
    ) -> None:
        super().__init__(corpus, root, cache, vectors, workers, seed, rank_timeout, batch_per)
        self.encoder = encoder
        self.options = options
        self.stores: dict[Split, Store] = {}
        self.make = make_store
        self.random_init = False
        self.random_stores: dict[Split, Store] = {}
        self._warned: set[Split] = set()

    @property
    def needed_encoders(self) -> tuple[EncoderSpec, ...]:
        """The encoder whose attention is read, if any."""
        return () if self.encoder is None else (self.encoder,)

    @abstractmethod
    def extraction(self, path: Path, source: EncoderSource | None) -> Extraction:
        """Return the extraction of a file of the corpus."""

    @abstractmethod
    def read(self, path: Path) -> Treebank | Documents:
        """Parse a file of the corpus."""

    @abstractmethod
    def items(self, extraction: Extraction, corpus: Treebank | Documents, encoder: Encoder | None) -> Items:
        """Cut a parsed corpus into items that the encoder reads at once."""

    def setup(self, stage: str) -> None:
        """Open the stores of a stage; every rank takes part in making those that are missing.

        A training makes the store of the test split too, which is read afterwards.

        Raises:
            AlignmentError: a sentence does not fit the encoder.
            CorpusError: a file is absent or malformed.
            UserError: a store cannot be made.
        """
        files = self.files()
        reads, tested = self.splits_of(stage, files)
        wanted = [split for split in reads if split not in self.stores]
        ahead = [split for split in tested if split not in self.stores]
        if not wanted:
            return
        entered = time.perf_counter()
        source = resolve(self.encoder) if self.encoder is not None else None
        encoder = load_later(source, self.trainer)
        if self.vector_spec is not None and self.vector_spec.name != ENCODER:
            find_vectors(self.vector_spec, self.root)  # before hours of extraction

        opened = {files[split]: store for split, store in self.stores.items()}
        paths = [path for path in dict.fromkeys(files[split] for split in (*wanted, *ahead)) if path not in opened]
        opened |= self._stores(paths, source, encoder)
        self.stores |= {split: opened[files[split]] for split in wanted}
        shown = {split: opened[files[split]] for split in (*self.stores, *ahead)}
        fresh = [split for split in shown if split not in self._warned]
        warn_of_words({files[split]: shown[split] for split in fresh})
        texts = self._texts(shown)
        for split in fresh:
            warn_of_shared(split, count_shared(texts, split), len(shown[split]), self.unit)
        self._warned |= set(fresh)
        if self.vector_spec is not None:
            stores = {files[split]: store for split, store in self.stores.items()}  # those of one file count once
            columns = [store.labels["words"].combine_chunks().values for store in stores.values()]
            counts = Counter(word for column in columns for word in column.to_pylist())
            self.vectors = load_vectors(
                self.vector_spec, counts, root=self.root, cache=self.cache, source=source, encoder=encoder
            )
        made: dict[Path, list[str]] = {}
        for split in (*wanted, *ahead):
            made.setdefault(files[split], []).append(split)
        held = ", ".join(f"{' and '.join(splits)} {len(opened[path])} {self.unit}" for path, splits in made.items())
        rank_zero_info(f"Ready {time.perf_counter() - entered:.1f} s after entering setup: {held}.")

    def _stores(
        self, paths: Sequence[Path], source: EncoderSource | None, encoder: Callable[[], Encoder]
    ) -> dict[Path, Store]:
        """Return the stores of these files. All files without one are parsed before the first is extracted."""
        digests = Digests(self.cache)
        stores: dict[Path, Store] = {}
        parsed: dict[Path, tuple[Extraction, Treebank | Documents]] = {}
        for path in paths:
            extraction = self.extraction(path, source)
            if not path.is_file() or (extraction.companion is not None and not extraction.companion.is_file()):
                self.read(path)  # it knows best what is wrong, and how to mend it
            if (store := open_store(extraction, self.cache, digests)) is None:
                parsed[path] = extraction, self.read(path)
            else:
                stores[path] = store
        while parsed:
            path = next(iter(parsed))
            loaded = encoder() if source is not None else None
            try:
                items = self.items(*parsed.pop(path), loaded)
            except UserError as error:
                raise type(error)(f"{path}: {error}") from error
            stores[path] = self.make(items, self.cache, digests, loaded, self.ranks)
        return stores

    def _open_random(self) -> dict[Split, Store]:
        """Fill and return `random_stores`: the encoder with all weights but the embeddings drawn anew."""
        if self.encoder is None:
            raise EncoderError("random_init needs an encoder: --data.init_args.encoder must not be null.")
        source = resolve(replace(self.encoder, weights="random"))
        files = {split: self.files()[split] for split in STAGES["test"]}
        stores = self._stores(list(dict.fromkeys(files.values())), source, load_later(source, self.trainer))
        self.random_stores = {split: stores[path] for split, path in files.items()}
        return self.random_stores

    def _texts(self, stores: Mapping[Split, Store]) -> dict[Split, pa.ChunkedArray]:
        """Return the words of each item, as one string."""
        return {split: pc.binary_join(store.labels["words"], "\x1f") for split, store in stores.items()}

    @property
    def layers(self) -> tuple[int, ...]:
        """0-based layers of the encoder that the batches hold."""
        return self._any.manifest.layers

    @property
    def heads(self) -> tuple[int, ...]:
        """0-based heads of each layer that the batches hold."""
        return self._any.manifest.heads

    @property
    def encoder_identity(self) -> Mapping[str, object] | None:
        """The identity of the encoder: a trained probe fits no other."""
        identity = self._any.manifest.identity["encoder"]
        return identity if isinstance(identity, dict) else None

    @property
    def vectors_size(self) -> int:
        """Size of a word vector; 0 without."""
        return 0 if self.vectors is None else self.vectors.size

    @property
    def _any(self) -> Store:
        return next(iter(self.stores.values()))

    @property
    def provenance(self) -> Provenance:
        """Encoder, files, and counts of what was dropped, cut or replaced, or stands in an earlier split too."""
        files, texts = self.files(), self._texts(self.stores)
        data: dict[str, object] = {}
        audit: dict[str, object] = {}
        if self.vectors is not None:
            data["vectors"], audit["vectors"] = dict(self.vectors.identity), dict(self.vectors.audit)
        for split, store in self.stores.items():
            data[split] = {
                **corpus_of(files[split]),
                "file": files[split].name,
                "sha256": store.manifest.identity["corpus_sha256"],
                self.unit: store.manifest.items,
                "store": store.manifest.key,
            }
            audit[split] = {**store.manifest.audit, **count_shared(texts, split)}
        encoder = describe_encoder(self._any)
        if self.random_stores:
            encoder["random_init"] = describe_encoder(self.random_stores["test"])
        return Provenance(encoder, data, audit)
