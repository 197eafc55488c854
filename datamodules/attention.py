"""Base class of datamodules over the attention of an encoder, which is read from stores on disk or streamed."""

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache as once
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
import torch

from attention_probing.attention import (
    Encoder,
    EncoderError,
    Extraction,
    Items,
    Options,
    Store,
    make_store,
    resolve,
)
from attention_probing.attention.alignment import UNKNOWN_WORDS
from attention_probing.attention.encoder import EncoderOption, specification_of
from attention_probing.attention.extraction import open_store
from attention_probing.attention.source import EncoderSource
from attention_probing.attention.stream import make_stream
from attention_probing.corpora.document import Documents
from attention_probing.corpora.sentence import Treebank
from attention_probing.corpora.splits import Split, corpus_of
from attention_probing.datamodules.batches import BatchLoader, EncoderOf, Item
from attention_probing.datamodules.corpus import DEFAULT_OPTIONS, DEFAULT_SPEC, STAGES, CorpusDataModule
from attention_probing.datamodules.limits import Limit
from attention_probing.datamodules.vectors import ENCODER, find_vectors, load_vectors
from attention_probing.datamodules.warnings import count_shared, warn_of_split, warn_of_words
from attention_probing.results import Provenance
from attention_probing.results.digests import Digests
from attention_probing.results.errors import UserError, pluralize, setting
from attention_probing.results.options import checked
from attention_probing.results.progress import inform


def load_later(source: EncoderSource | None, device: torch.device) -> Callable[[], Encoder] | None:
    """Return a function that loads the encoder at its first call; None without an encoder.

    Args:
        source: Files of the encoder.
        device: Device of the encoder.
    """
    return None if source is None else once(lambda: Encoder(source, device))


class AttentionDataModule(CorpusDataModule[Item]):
    """Base class of datamodules that read an encoder's attention from stores.

    A store is a folder of files with the attention of one encoder when it reads one corpus file. `setup`
    opens the store of each split, and makes it first if it is missing; splits of one file share a store.
    Subclasses implement `extraction`, `read`, `items` and `make_splits`. See `CorpusDataModule` for the
    other options.

    Args:
        encoder: The encoder, or its name; None for experiments that need no attention.
        options: Layers, heads and precision of the stores, and the policy for sentences over the
            encoder's limit.
        random_init: In a test, also read dev and test through the same encoder with random weights; only
            its embeddings stay pretrained. The difference between the two encoders is the effect of
            pretraining.
        store: `disk` to keep the attention on disk, where every later run finds it; `stream` to write nothing, and to
            run the encoder whenever a batch is read.

    Attributes:
        file_warnings: Functions of a corpus file and the counts of its reader that log the warnings of the reader.
        streams: True with `store: stream`.
        stores: Opened store of each split.
        random_splits: Datasets of dev and test with the attention of the encoder with random weights,
            after `setup` of a test.
    """

    file_warnings: ClassVar[tuple[Callable[[Path, Mapping[str, int]], None], ...]] = ()

    @checked
    def __init__(
        self,
        corpus: str | dict[str, str],
        encoder: EncoderOption | None = DEFAULT_SPEC,
        options: Options = DEFAULT_OPTIONS,
        random_init: bool = False,
        store: Literal["disk", "stream"] = "disk",
        **shared: Any,  # noqa: ANN401 # options of CorpusDataModule
    ) -> None:
        super().__init__(corpus, **shared)
        self.encoder = None if encoder is None else specification_of(encoder)
        self.options = options
        self.random_init = random_init
        self.streams = store == "stream"
        self.stores: dict[Split, Store] = {}
        self._loaded: list[Encoder] = []
        self.random_splits: dict[Split, Any] = {}
        self._warned: set[Split] = set()

    @abstractmethod
    def extraction(self, path: Path, source: EncoderSource | None) -> Extraction:
        """Return the specification for extracting the attention of an encoder that reads a corpus file.

        Args:
            path: The corpus file.
            source: Files of the encoder; None without an encoder.
        """

    @abstractmethod
    def read(self, path: Path) -> Treebank | Documents:
        """Parse a corpus file; return its sentences or documents."""

    def accept(self, path: Path, store: Store) -> None:
        """Raise a CorpusError if an existing store does not suit the options of the datamodule.

        By default do nothing. `read` makes the same checks on the corpus file, but is not called if the
        store of the file exists.

        Args:
            path: The corpus file, for messages.
            store: Store of the attention for this file.
        """

    @abstractmethod
    def items(self, extraction: Extraction, corpus: Any, encoder: Encoder | None) -> Items:  # noqa: ANN401
        """Cut a parsed corpus into items, such as sentences, and prepare each as input of the encoder.

        Args:
            extraction: Specification of the extraction.
            corpus: Result of `read`.
            encoder: The encoder; None for none.
        """

    @abstractmethod
    def make_splits(self, stores: Mapping[Split, Store], encoder: EncoderOf = "given") -> dict[Split, Any]:
        """Build the dataset of each split from its store.

        Args:
            stores: Store of each split.
            encoder: Role of the encoder whose attention the stores hold: `given`, or `random_init` for random
                weights.
        """

    def warn_of_file(self, path: Path, store: Store) -> None:
        """Log the warnings of the reader of a file.

        Args:
            path: The corpus file.
            store: Store of the attention for this file.
        """
        for warn_of in self.file_warnings:
            warn_of(path, store.manifest.audit)

    def setup(self, stage: str) -> None:
        """Open the stores of the splits of a stage; all processes together make the missing ones.

        `fit` also makes the store of the test split, which is read after the training.

        Raises:
            AlignmentError: A sentence does not fit the encoder.
            CorpusError: A file is absent or malformed.
            UserError: A store cannot be made.
        """
        files = self.files()
        reads, prepares = self.splits_of(stage, files)
        missing = [split for split in reads if split not in self.stores]
        if missing:
            ahead = [split for split in prepares if split not in self.stores]
            self._open(files, missing, ahead)
        self.splits = self.make_splits(self.stores)
        if self.random_init and stage == "test":
            self.random_splits = _make_random_splits(self, files)

    def _open(self, files: Mapping[str, Path], missing: Sequence[Split], ahead: Sequence[Split]) -> None:
        """Open the stores of the missing splits, make the stores of the splits ahead, and load the word vectors."""
        began = time.perf_counter()
        source = None if self.encoder is None else resolve(self.encoder)
        encoder = load_later(source, self.device)
        if self.vector_spec is not None and self.vector_spec.name != ENCODER:
            find_vectors(self.vector_spec, self.root)  # before hours of extraction
        splits_of_paths: dict[Path, list[Split]] = {}
        for split in (*missing, *ahead):
            splits_of_paths.setdefault(files[split], []).append(split)
        by_path = {files[split]: store for split, store in self.stores.items()}
        new_paths = [path for path in splits_of_paths if path not in by_path]
        by_path.update(_open_or_make_stores(self, new_paths, source, encoder))
        for split in missing:
            self.stores[split] = by_path[files[split]]
        stores = {split: by_path[files[split]] for split in (*self.stores, *ahead)}
        _warn_of_splits(self, files, stores, source)
        if self.vector_spec is not None:
            opened = {files[split]: store for split, store in self.stores.items()}
            counts = _count_forms(opened.values())
            self.vectors = load_vectors(
                self.vector_spec, counts, root=self.root, cache=self.cache, source=source, encoder=encoder
            )
        if self.streams and "train" in missing:
            inform("Attention is not stored: every epoch runs the encoder over train and dev.")
        description = _describe_splits(self, splits_of_paths, by_path)
        inform(f"Data ready in {time.perf_counter() - began:.1f} s: {description}.")

    def test_dataloader(self) -> list[BatchLoader[Item]]:
        """Return one loader for dev and one for test.

        With `random_init`, two more follow: dev and test with the attention of the encoder with random weights.
        """
        loaders = super().test_dataloader()
        for data in self.random_splits.values():
            loaders.append(self._batches(data))
        return loaders

    @property
    def limit_of_file(self) -> Limit:
        """Limit of the items that are used of one file."""
        return self.limit

    @property
    def layers(self) -> tuple[int, ...]:
        """Encoder layers whose attention is in the batches, as 0-based indices."""
        return any_store(self).manifest.layers

    @property
    def heads(self) -> tuple[int, ...]:
        """Attention heads that the batches hold of each layer, as 0-based indices."""
        return any_store(self).manifest.heads

    @property
    def encoder_identity(self) -> Mapping[str, object] | None:
        """Values that determine the encoder's attention, on which a trained probe depends; None without an encoder."""
        identity = any_store(self).manifest.identity["encoder"]
        return identity if isinstance(identity, dict) else None

    def _texts(self, stores: Mapping[Split, Store]) -> dict[Split, pa.ChunkedArray]:
        """Return the items of each split as strings, to count the items that several splits have."""
        return {split: pc.binary_join(store.labels["words"], "\x1f") for split, store in stores.items()}

    @property
    def provenance(self) -> Provenance:
        """Description of encoder and files for the results.

        Its audit counts everything that was dropped or replaced, and the items of a split that also
        occur in an earlier split.
        """
        files = self.files()
        data: dict[str, object] = {}
        audit: dict[str, object] = {}
        if self.transfer_from is not None:
            data["transfer"] = f"learned on {corpus_of(files['dev'])['corpus']}"
        if self.vectors is not None:
            data["vectors"] = dict(self.vectors.identity)
            audit["vectors"] = dict(self.vectors.audit)
        texts = self._texts(self.stores)
        for split, store in self.stores.items():
            manifest = store.manifest
            data[split] = {
                **corpus_of(files[split]),
                "file": files[split].name,
                "sha256": manifest.identity["corpus_sha256"],
                self.unit: manifest.items,
                **self.limit.identity,
                "store": manifest.key,
            }
            audit[split] = {**manifest.audit, **count_shared(texts, split)}
        if self.limit.most is not None:
            audit["limit"] = str(self.limit)
        if self.shuffle is not None:
            audit |= self.shuffle.counts
            data["gold"] = self.shuffle.description
        halved = sum(encoder.halved for encoder in self._loaded)
        if halved:
            audit["batches_halved_for_memory"] = halved
        quantity = any_store(self).manifest.quantity
        if quantity != "attention":
            audit["quantity"] = quantity
        encoder = _describe_encoder(any_store(self))
        if self.random_splits:
            encoder["random_init"] = _describe_encoder(self.random_splits["test"].store)
        return Provenance(encoder, data, audit)


def _warn_of_splits(
    data: AttentionDataModule[Any],
    files: Mapping[str, Path],
    stores: Mapping[Split, Store],
    source: EncoderSource | None,
) -> None:
    """Log the warnings of splits that are opened for the first time."""
    new = [split for split in stores if split not in data._warned]
    new_files = {files[split]: stores[split] for split in new}
    for path, store in new_files.items():
        if source is not None:
            words = store.labels["words"].combine_chunks().values
            warn_of_words(path, words, store.manifest.audit.get(UNKNOWN_WORDS, 0), source)
        data.warn_of_file(path, store)
    texts = data._texts(stores)
    for split in new:
        warn_of_split(split, count_shared(texts, split), len(stores[split]), data.unit)
    data._warned.update(new)


def _describe_splits(
    data: AttentionDataModule[Any], splits_of_paths: Mapping[Path, Sequence[Split]], stores: Mapping[Path, Store]
) -> str:
    """Return the sizes of the splits, and the names of corpora and encoder."""
    sizes = []
    corpora: list[str] = []
    for path, splits in splits_of_paths.items():
        items = pluralize(len(stores[path]), data.unit.removesuffix("s"))
        sizes.append(f"{' and '.join(splits)} {items}")
        corpus = corpus_of(path)["corpus"]
        if corpus not in corpora:
            corpora.append(corpus)
    description = f"{', '.join(sizes)} of {' and '.join(corpora)}"
    if data.encoder is not None:
        description += f", read by {data.encoder.name}"
    return description


def _make_random_splits(data: AttentionDataModule[Any], files: Mapping[str, Path]) -> dict[Split, Any]:
    """Return dev and test with the attention of the encoder with random weights."""
    if data.encoder is None:
        raise EncoderError(
            f"{setting('data.random_init')} needs an encoder, but {setting('data.encoder')} is null. Name one."
        )
    source = resolve(replace(data.encoder, weights="random"))
    paths = dict.fromkeys(files[split] for split in STAGES["test"])
    by_path = _open_or_make_stores(data, paths, source, load_later(source, data.device))
    stores = {split: by_path[files[split]] for split in STAGES["test"]}
    return data.make_splits(stores, "random_init")


def _specify(data: AttentionDataModule[Any], path: Path, source: EncoderSource | None) -> Extraction:
    """Return the specification for extracting the attention to a corpus file, within the limit of a datamodule.

    Args:
        data: The datamodule.
        path: The corpus file.
        source: Files of the encoder; None without an encoder.
    """
    extraction = data.extraction(path, source)
    return replace(extraction, reader={**extraction.reader, **data.limit_of_file.identity})


def _read_within_limit(data: AttentionDataModule[Any], path: Path) -> Treebank | Documents:
    """Read a corpus file, and return the items that a datamodule uses of it: those within its limit."""
    return data.limit_of_file.apply(data.read(path))


def _open_or_make_stores(
    data: AttentionDataModule[Any],
    paths: Iterable[Path],
    source: EncoderSource | None,
    encoder: Callable[[], Encoder] | None,
) -> dict[Path, Store]:
    """Return the stores of these files. All files and stores are checked before the first file is extracted."""
    digests = Digests(data.cache)
    stores: dict[Path, Store] = {}
    parsed: dict[Path, tuple[Extraction, Treebank | Documents]] = {}
    for path in paths:
        extraction = _specify(data, path, source)
        companion = extraction.companion
        if not path.is_file() or (companion is not None and not companion.is_file()):
            data.read(path)  # raises the error that names the file and the remedy
        store = None
        if source is None or not data.streams:
            store = open_store(extraction, data.cache, digests)
        if store is None:
            parsed[path] = extraction, _read_within_limit(data, path)
        else:
            data.accept(path, store)
            stores[path] = store
    make = make_stream if data.streams else make_store
    for path in list(parsed):
        loaded = None if encoder is None else encoder()
        if loaded is not None and loaded not in data._loaded:
            data._loaded.append(loaded)
        extraction, corpus = parsed.pop(path)  # so that the memory of the corpus is free when the next is cut
        items = _cut_items(data, path, extraction, corpus, loaded)
        del corpus
        stores[path] = make(items, data.cache, digests, loaded)
    return stores


def cut_ahead(data: AttentionDataModule[Any], stage: str, encoder: Encoder) -> Iterator[tuple[list[Split], Items]]:
    """Yield the splits and the items of each corpus file that a stage reads, in the order in which stores are made.

    Args:
        data: The datamodule.
        stage: Stage of Lightning, such as `fit`.
        encoder: The encoder; its weights are not needed.

    Raises:
        CorpusError: A file is absent or malformed.
    """
    files = data.files()
    reads, _ = data.splits_of(stage, files)
    if stage == "fit" and "test" in files and files["test"].is_file():
        reads.append("test")  # which follows the training
    splits_of_paths: dict[Path, list[Split]] = {}
    for split in reads:
        splits_of_paths.setdefault(files[split], []).append(split)
    corpora = {path: _read_within_limit(data, path) for path in splits_of_paths}
    for path, splits in splits_of_paths.items():
        extraction = _specify(data, path, encoder.source)
        yield splits, _cut_items(data, path, extraction, corpora.pop(path), encoder)


def items_of_file(data: AttentionDataModule[Any], path: Path, encoder: Encoder) -> Items:
    """Read a corpus file within the limit of a datamodule, and return its items, cut for an encoder.

    Args:
        data: The datamodule.
        path: The corpus file.
        encoder: The encoder; its weights are not needed.

    Raises:
        CorpusError: The file is absent or malformed.
    """
    extraction = _specify(data, path, encoder.source)
    return _cut_items(data, path, extraction, _read_within_limit(data, path), encoder)


def _cut_items(
    data: AttentionDataModule[Any],
    path: Path,
    extraction: Extraction,
    corpus: Treebank | Documents,
    encoder: Encoder | None,
) -> Items:
    """Return the items of a corpus; the message of an error begins with the name of the file."""
    try:
        return data.items(extraction, corpus, encoder)
    except EncoderError:
        raise  # a fault of the encoder, whatever it reads
    except UserError as error:
        if str(error).startswith(f"{path}:"):
            raise
        raise type(error)(f"{path}: {error}") from error


def _count_forms(stores: Iterable[Store]) -> Counter[str]:
    """Return the number of occurrences of each word form in the stores."""
    counts: Counter[str] = Counter()
    for store in stores:
        words = store.labels["words"].combine_chunks().values
        counts.update(words.to_pylist())
    return counts


def any_store(data: AttentionDataModule[Any]) -> Store:
    """Return one of the stores, which have the same encoder, layers and heads."""
    return next(iter(data.stores.values()))


def _describe_encoder(store: Store) -> dict[str, object]:
    """Return the name of a store's encoder, and the hashes that decide its weights."""
    identity = store.manifest.identity["encoder"]
    entries: dict[str, object] = dict(store.manifest.encoder)
    if isinstance(identity, dict):
        entries |= identity
    if store.manifest.quantity != "attention":
        entries["quantity"] = store.manifest.quantity
    if entries.get("weights") == "random":  # only the embeddings of the file were kept
        entries["embeddings_of_sha256"] = entries.pop("weights_sha256")
    elif entries.get("weights") == "redrawn":  # only the mean and the standard deviation of each parameter
        entries["statistics_of_sha256"] = entries.pop("weights_sha256")
    return entries
