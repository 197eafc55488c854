"""Base class of datamodules over the attention of an encoder, which is read from stores on disk or streamed."""

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache as once
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import torch

from attention_probing.attention import (
    Encoder,
    EncoderError,
    EncoderSpec,
    Extraction,
    Items,
    Options,
    Store,
    make_store,
    resolve,
)
from attention_probing.attention.alignment import UNKNOWN_WORDS
from attention_probing.attention.extraction import open_store
from attention_probing.attention.source import EncoderSource
from attention_probing.attention.stream import make_stream
from attention_probing.corpora.conllu import warn_of_roots, warn_of_texts
from attention_probing.corpora.document import Documents
from attention_probing.corpora.mentions import UNKNOWN
from attention_probing.corpora.sentence import Treebank
from attention_probing.corpora.splits import Split, corpus_of
from attention_probing.datamodules.batches import BatchLoader, EncoderOf, Item
from attention_probing.datamodules.corpus import DEFAULT_ENCODER, DEFAULT_OPTIONS, STAGES, CorpusDataModule
from attention_probing.datamodules.vectors import ENCODER, find_vectors, load_vectors
from attention_probing.datamodules.warnings import count_shared, warn_of_split, warn_of_unknown
from attention_probing.results import Provenance
from attention_probing.results.digests import Digests
from attention_probing.results.errors import UserError, check_values, pluralize, setting
from attention_probing.results.progress import inform, warn


def warn_of_tags(path: Path, store: Store) -> None:
    """Log a warning if heads or types of mentions depend on part-of-speech tags whose meaning is unknown.

    Args:
        path: The corpus file.
        store: Store of the attention for this file.
    """
    audit = store.manifest.audit
    heads, types = (audit.get(name, 0) for name in ("heads_by_unknown_tags", "types_unknown"))
    if heads or types:
        tags = Counter(tag[1:] for tag in store.labels["tags"].combine_chunks().values.to_pylist() if tag[0] == UNKNOWN)
        named = ", ".join(tag for tag, _ in tags.most_common(12))
        warn(
            f"{path}: {audit['unknown_tags'] / audit['words']:.0%} of the part-of-speech tags are unknown, as they are "
            f"neither Penn's nor UD's: {named}. The heads of {heads} of {pluralize(audit['mentions'], 'mention')} are "
            f"uncertain, and scores by type leave out {types}. Say what the tags mean: "
            f"{setting('data.tags', '{PPER: PRON, NE: PROPN, NN: NOUN}')}."
        )


def warn_of_words(path: Path, store: Store) -> None:
    """Log warnings if many words of a file have the tokenizer's unknown token, or if something in it is unclear.

    Args:
        path: The corpus file.
        store: Store of the attention for this file.
    """
    words = len(store.labels["words"].combine_chunks().values)
    count = store.manifest.audit.get(UNKNOWN_WORDS, 0)
    warn_of_unknown(path, count, words, "words", store.manifest.encoder.get("name"))
    warn_of_roots(path, store.manifest.audit)
    warn_of_texts(path, store.manifest.audit)
    warn_of_tags(path, store)


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
        encoder: The encoder; None for experiments that need no attention.
        options: Layers, heads and precision of the stores, and the policy for sentences over the
            encoder's limit.
        random_init: In a test, also read dev and test through the same encoder with random weights; only
            its embeddings stay pretrained. The difference between the two encoders is the effect of
            pretraining.
        store: `disk` to keep the attention on disk, where every later run finds it; `stream` to write nothing, and to
            run the encoder whenever a batch is read.

    Attributes:
        streams: True with `store: stream`.
        stores: Opened store of each split.
        random_splits: Datasets of dev and test with the attention of the encoder with random weights,
            after `setup` of a test.
    """

    def __init__(
        self,
        corpus: str | dict[str, str],
        encoder: EncoderSpec | None = DEFAULT_ENCODER,
        options: Options = DEFAULT_OPTIONS,
        random_init: bool = False,
        store: Literal["disk", "stream"] = "disk",
        **shared: Any,  # noqa: ANN401 # options of CorpusDataModule
    ) -> None:
        super().__init__(corpus, **shared)
        check_values(self, store=store)
        self.encoder, self.options, self.random_init = encoder, options, random_init
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

    def setup(self, stage: str) -> None:
        """Open the stores of the splits of a stage; all processes together make the missing ones.

        `fit` also makes the store of the test split, which is read after the training.

        Raises:
            AlignmentError: A sentence does not fit the encoder.
            CorpusError: A file is absent or malformed.
            UserError: A store cannot be made.
        """
        files = self.files()
        reads, tested = self.splits_of(stage, files)
        if wanted := [split for split in reads if split not in self.stores]:
            self._open(files, wanted, [split for split in tested if split not in self.stores])
        self.splits = self.make_splits(self.stores)
        if self.random_init and stage == "test":
            if self.encoder is None:
                raise EncoderError(
                    f"{setting('data.random_init')} needs an encoder, but {setting('data.encoder')} is null. Name one."
                )
            source = resolve(replace(self.encoder, weights="random"))
            paths = dict.fromkeys(files[split] for split in STAGES["test"])
            stores = self._stores(paths, source, load_later(source, self.device))
            by_split = {split: stores[files[split]] for split in STAGES["test"]}
            self.random_splits = self.make_splits(by_split, "random_init")

    def _open(self, files: Mapping[str, Path], wanted: Sequence[Split], ahead: Sequence[Split]) -> None:
        """Open the stores of the wanted splits, make the stores of the splits ahead, and load the word vectors."""
        entered = time.perf_counter()
        source = None if self.encoder is None else resolve(self.encoder)
        encoder = load_later(source, self.device)
        if self.vector_spec is not None and self.vector_spec.name != ENCODER:
            find_vectors(self.vector_spec, self.root)  # before hours of extraction
        opened = {files[split]: store for split, store in self.stores.items()}
        new = dict.fromkeys(files[split] for split in (*wanted, *ahead))
        opened |= self._stores([path for path in new if path not in opened], source, encoder)
        self.stores |= {split: opened[files[split]] for split in wanted}
        shown = {split: opened[files[split]] for split in (*self.stores, *ahead)}
        fresh = [split for split in shown if split not in self._warned]
        for path, store in {files[split]: shown[split] for split in fresh}.items():
            warn_of_words(path, store)
        for split in fresh:
            warn_of_split(split, count_shared(self._texts(shown), split), len(shown[split]), self.unit)
        self._warned |= set(fresh)
        if self.vector_spec is not None:
            stores = {files[split]: store for split, store in self.stores.items()}  # splits of one file count once
            columns = [store.labels["words"].combine_chunks().values for store in stores.values()]
            counts = Counter(word for column in columns for word in column.to_pylist())
            self.vectors = load_vectors(
                self.vector_spec, counts, root=self.root, cache=self.cache, source=source, encoder=encoder
            )
        if self.streams and "train" in wanted:
            inform("Attention is not stored: every epoch runs the encoder over train and dev.")
        names = {path: " and ".join(split for split in (*wanted, *ahead) if files[split] == path) for path in new}
        held = ", ".join(f"{names[path]} {pluralize(len(opened[path]), self.unit.removesuffix('s'))}" for path in new)
        inform(f"Data ready in {time.perf_counter() - entered:.1f} s: {held}.")

    def _stores(
        self, paths: Iterable[Path], source: EncoderSource | None, encoder: Callable[[], Encoder] | None
    ) -> dict[Path, Store]:
        """Return the stores of these files. All files and stores are checked before the first file is extracted."""
        digests = Digests(self.cache)
        stores: dict[Path, Store] = {}
        parsed: dict[Path, tuple[Extraction, Treebank | Documents]] = {}
        for path in paths:
            extraction = self.extraction(path, source)
            if not path.is_file() or (extraction.companion is not None and not extraction.companion.is_file()):
                self.read(path)  # raises the error that names the file and the remedy
            computed = self.streams and source is not None
            if (store := None if computed else open_store(extraction, self.cache, digests)) is None:
                parsed[path] = extraction, self.read(path)
            else:
                self.accept(path, store)
                stores[path] = store
        for path in list(parsed):
            loaded = None if encoder is None else encoder()
            if loaded is not None and loaded not in self._loaded:
                self._loaded.append(loaded)
            try:
                items = self.items(*parsed.pop(path), loaded)
            except EncoderError:
                raise  # a fault of the encoder, whatever it reads
            except UserError as error:
                named = str(error).startswith(f"{path}:")
                raise type(error)(str(error) if named else f"{path}: {error}") from error
            make = make_stream if self.streams else make_store
            stores[path] = make(items, self.cache, digests, loaded)
        return stores

    def test_dataloader(self) -> list[BatchLoader[Item]]:
        """Return one loader for dev and one for test.

        With `random_init`, two more follow: dev and test with the attention of the encoder with random weights.
        """
        return [*super().test_dataloader(), *map(self._batches, self.random_splits.values())]

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
        data, audit = dict[str, object](), dict[str, object]()
        if self.transfer_from is not None:
            data["transfer"] = f"learned on {corpus_of(files['dev'])['corpus']}"
        if self.vectors is not None:
            data["vectors"], audit["vectors"] = dict(self.vectors.identity), dict(self.vectors.audit)
        for split, store in self.stores.items():
            manifest, known = store.manifest, {**corpus_of(files[split]), "file": files[split].name}
            held = {self.unit: manifest.items, "store": manifest.key}
            data[split] = {**known, "sha256": manifest.identity["corpus_sha256"], **held}
            audit[split] = {**store.manifest.audit, **count_shared(self._texts(self.stores), split)}
        if halved := sum(encoder.halved for encoder in self._loaded):
            audit["batches_halved_for_memory"] = halved
        if (quantity := any_store(self).manifest.quantity) != "attention":
            audit["quantity"] = quantity
        encoder = _described(any_store(self))
        if self.random_splits:
            encoder["random_init"] = _described(self.random_splits["test"].store)
        return Provenance(encoder, data, audit)


def any_store(data: AttentionDataModule[Any]) -> Store:
    """Return one of the stores, which have the same encoder, layers and heads."""
    return next(iter(data.stores.values()))


def _described(store: Store) -> dict[str, object]:
    """Return the name of a store's encoder, and the hashes that decide its weights."""
    identity = store.manifest.identity["encoder"]
    described = {**store.manifest.encoder, **(identity if isinstance(identity, dict) else {})}
    if (quantity := store.manifest.quantity) != "attention":
        described["quantity"] = quantity
    if described.get("weights") == "random":  # only the embeddings of the file were kept
        described["embeddings_of_sha256"] = described.pop("weights_sha256")
    return described
