"""From a corpus and an encoder to opened stores: what every datamodule over attention shares."""

import logging
import os
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache as once
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import torch
from pytorch_lightning import LightningDataModule, Trainer
from pytorch_lightning.utilities import rank_zero_info, rank_zero_only

from attention.alignment import AlignmentError
from attention.digest import Digests
from attention.encoder import Encoder, EncoderSpec, Source, resolve
from attention.extraction import Ranks, make_store, open_store
from attention.specification import UNKNOWN, Extraction, Items, Options
from attention.store import Store, StoreError
from corpora.document import Documents
from corpora.registry import CORPORA, locate, remedy_for
from corpora.sentence import CorpusError, Treebank
from datamodules.batch import Split
from datamodules.vectors import ENCODER, VectorSpec, find_vectors
from datamodules.word_vectors import WordVectors, load_vectors
from results import Provenance

log = logging.getLogger(__name__)

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
STAGES: dict[str, tuple[Split, ...]] = {
    "fit": ("train", "dev"),
    "validate": ("dev",),
    "test": ("dev", "test"),
    "predict": ("test",),
}
"""What each stage reads. Experiments choose on dev and report on test, so that a test needs both."""

SHARED = 0.05
"""Share of a split that also stands in an earlier one above which there is a warning. Of UD EWT's test 4.5 % do."""
UNKNOWN_SHARE = 0.01
"""Above this share of words that contain the unknown token there is a warning."""


def splits_ahead(stage: str, files: Mapping[str, Path], trainer: Trainer | None) -> list[Split]:
    """What a stage looks at although it is read later: the best checkpoint of a training is tested at once."""
    validates = trainer is not None and trainer.limit_val_batches != 0
    return ["test"] if stage == "fit" and validates and "test" in files and files["test"].is_file() else []


def count_shared(texts: Mapping[Split, pa.Array | pa.ChunkedArray], split: Split) -> dict[str, int]:
    """How many items of `split` stand in each earlier split too, as `also_in_<split>`.

    Args:
        texts: of each split one string per item.
        split: one of them.
    """
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


def check_splits(stage: str, files: Mapping[str, Path], trainer: Trainer | None, remedy: str) -> None:
    """Refuse a corpus without a split that the stage reads; a training without validation reads train alone.

    Raises:
        CorpusError: see above.
    """
    alone = stage == "fit" and (trainer is None or trainer.limit_val_batches == 0)
    if missing := [split for split in (("train",) if alone else STAGES[stage]) if split not in files]:
        raise CorpusError(f"The corpus has no {missing[0]} split, and it is needed. {remedy}.")


def files_by_split(corpus: str | Mapping[str, str]) -> dict[str, Path]:
    """The files of one path with `{split}` in it, or of a mapping from splits to paths.

    Raises:
        CorpusError: a mapping has a split of another name, or names a file that is not there.
    """
    if isinstance(corpus, str):
        return {split: Path(corpus.replace("{split}", split)).expanduser() for split in SPLITS}
    if strangers := set(corpus) - set(SPLITS):
        raise CorpusError(f"corpus: unknown splits {sorted(strangers)}. They are named {', '.join(SPLITS)}.")
    files: dict[str, Path] = {split: Path(corpus[split]).expanduser() for split in SPLITS if split in corpus}
    for split, path in files.items():
        if not path.is_file():  # rather than when it is read: the test split may be hours later
            remedy = remedy_for(path)
            raise CorpusError.at(path, None, "there is no such file", f"{remedy}, or leave {split} out of the corpus")
    return files


def corpus_files(corpus: str | Mapping[str, str], root: Path, mapping: str) -> Mapping[str, Path]:
    """The files of a corpus of the registry, or of a user's own.

    Args:
        corpus: a name of the registry, a path with `{split}` in it, or a mapping from splits to paths.
        root: folder of the public corpora.
        mapping: how such a mapping is given on the command line.

    Raises:
        CorpusError: no such name, a corpus that is absent, or a split of another name.
    """
    if not isinstance(corpus, str) or "{split}" in corpus:
        return files_by_split(corpus)
    if corpus not in CORPORA:
        raise CorpusError(
            f"{corpus}: neither `sample` nor a corpus of the registry ({', '.join(CORPORA)}). For files of your own "
            f"give a path with {{split}} in it, or a mapping: {mapping}."
        )
    return locate(corpus, root)


def _warn_of_unknown(path: Path, store: Store) -> None:
    """Say when the tokenizer has no pieces for many of the words."""
    count = store.manifest.audit.get(UNKNOWN, 0)
    words = len(store.labels["words"].combine_chunks().values)
    if count > UNKNOWN_SHARE * words:
        rank_zero_only(log.warning)(
            f"{path}: {count} of {words} words ({count / words:.0%}) contain the unknown token of "
            f"{store.manifest.encoder['name']}, which sees nothing of what they are. Choose an encoder that was "
            f"trained on this language: --data.init_args.encoder.name."
        )


def describe_encoder(store: Store) -> dict[str, object]:
    """Which encoder a store was made with: its name, and what decides its weights."""
    identity = store.manifest.identity["encoder"]
    described = {**store.manifest.encoder, **(identity if isinstance(identity, dict) else {})}
    if described.get("weights") == "random":  # of the file only the embeddings were kept
        described["embeddings_of_sha256"] = described.pop("weights_sha256")
    return described


class AttentionDataModule(LightningDataModule):
    """Opens, and where needed makes, one store per split; splits of one file share its store.

    Args:
        encoder: the encoder; None keeps to what can be read off the corpus.
        options: what is taken from the encoder, and what happens to sentences over its limit.
        cache: folder of the stores; else `$PROBING_CACHE`, else `./stores`.
        root: folder of the public corpora and word vectors.
        vectors: word vectors; None for none.

    Attributes:
        stores: the opened stores, by split.
        vectors: the word vectors, once the stage is set up.
    """

    unit = "sentences"
    """What the items of a store are called, in the plural."""

    def __init__(
        self,
        encoder: EncoderSpec | None,
        options: Options,
        cache: str | None,
        root: Path,
        vectors: VectorSpec | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.options = options
        self.cache = Path(cache or os.environ.get("PROBING_CACHE") or "stores").expanduser()
        self.root = root
        self.vector_spec = vectors
        self.stores: dict[Split, Store] = {}
        self.vectors: WordVectors | None = None
        self._warned: set[Split] = set()

    @abstractmethod
    def files(self) -> Mapping[str, Path]:
        """The corpus file of every split there is."""

    @abstractmethod
    def extraction(self, path: Path, source: Source | None) -> Extraction:
        """What is extracted of one of them."""

    @abstractmethod
    def read(self, path: Path) -> Treebank | Documents:
        """Parse one of them."""

    @abstractmethod
    def items(self, extraction: Extraction, corpus: Treebank | Documents, encoder: Encoder | None) -> Items:
        """Cut what was parsed into what the encoder reads at once."""

    def setup(self, stage: str) -> None:
        """Open the stores of a stage; every rank takes part in making those that are missing.

        A training makes the store of the test split too, which is read afterwards.
        """
        files = self.files()
        wanted = [split for split in STAGES[stage] if split not in self.stores and split in files]
        if not wanted:
            return
        ahead = [split for split in splits_ahead(stage, files, self.trainer) if split not in self.stores]
        entered = time.perf_counter()
        digests = Digests(self.cache)
        source = resolve(self.encoder) if self.encoder is not None else None

        if self.vector_spec is not None and self.vector_spec.name != ENCODER:
            find_vectors(self.vector_spec, self.root)  # before hours of extraction

        @once
        def encoder() -> Encoder:
            assert source is not None
            return Encoder(source, self._device())

        opened = {files[split]: store for split, store in self.stores.items()}
        paths = [path for path in dict.fromkeys(files[split] for split in (*wanted, *ahead)) if path not in opened]
        opened |= self._stores(paths, source, digests, encoder)
        self.stores |= {split: opened[files[split]] for split in wanted}
        self._warn(files, {split: opened[files[split]] for split in (*self.stores, *ahead)})
        if self.vector_spec is not None:
            stores = {files[split]: store for split, store in self.stores.items()}
            counts = Counter(
                word for store in stores.values() for word in store.labels["words"].combine_chunks().values.to_pylist()
            )
            self.vectors = load_vectors(
                self.vector_spec,
                counts,
                root=self.root,
                cache=self.cache,
                source=source,
                encoder=encoder,
            )
        made: dict[Path, list[str]] = {}
        for split in (*wanted, *ahead):
            made.setdefault(files[split], []).append(split)
        held = ", ".join(f"{' and '.join(splits)} {len(opened[path])} {self.unit}" for path, splits in made.items())
        rank_zero_info(f"Ready {time.perf_counter() - entered:.1f} s after entering setup: {held}.")

    def _stores(
        self, paths: Sequence[Path], source: Source | None, digests: Digests, encoder: Callable[[], Encoder]
    ) -> dict[Path, Store]:
        """The stores of these files. All files without one are parsed before the first is extracted.

        Raises:
            AlignmentError: a sentence does not fit the encoder.
            CorpusError: a file is absent or malformed.
            StoreError: a store cannot be made.
        """
        extractions: dict[Path, Extraction] = {}
        stores: dict[Path, Store] = {}
        parsed: dict[Path, Treebank | Documents] = {}
        for path in paths:
            extractions[path] = extraction = self.extraction(path, source)
            if not path.is_file() or (extraction.companion is not None and not extraction.companion.is_file()):
                self.read(path)  # it knows best what is wrong, and how to mend it
            if (store := open_store(extraction, self.cache, digests)) is None:
                parsed[path] = self.read(path)
            else:
                stores[path] = store
        while parsed:
            path = next(iter(parsed))
            loaded = encoder() if source is not None else None
            try:
                items = self.items(extractions[path], parsed.pop(path), loaded)
            except (AlignmentError, StoreError) as error:
                raise type(error)(f"{path}: {error}") from error
            stores[path] = make_store(items, self.cache, digests, loaded, self._ranks())
        return stores

    def _warn(self, files: Mapping[str, Path], stores: Mapping[Split, Store]) -> None:
        """Warn, once for each split, of unknown words, and of items that an earlier split has too."""
        texts = self._texts(stores)
        fresh = [split for split in stores if split not in self._warned]
        for path, store in {files[split]: stores[split] for split in fresh}.items():
            _warn_of_unknown(path, store)
        for split in fresh:
            warn_of_shared(split, count_shared(texts, split), len(stores[split]), self.unit)
        self._warned |= set(fresh)

    def _counts(self) -> dict[Split, Mapping[str, int]]:
        """The audit of every split."""
        texts = self._texts(self.stores)
        return {split: {**store.manifest.audit, **count_shared(texts, split)} for split, store in self.stores.items()}

    def _texts(self, stores: Mapping[Split, Store]) -> dict[Split, pa.ChunkedArray]:
        """The words of each item, as one string."""
        return {split: pc.binary_join(store.labels["words"], "\x1f") for split, store in stores.items()}

    def _device(self) -> torch.device:
        return self.trainer.strategy.root_device if self.trainer is not None else torch.device("cpu")

    def _ranks(self) -> Ranks:
        return Ranks(self.trainer.global_rank, self.trainer.world_size) if self.trainer is not None else Ranks()

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
        """What decides the attention weights: a trained probe fits no other encoder."""
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
        """Which encoder, which files, what was dropped, cut or replaced, and what stands in an earlier split too."""
        manifests = {split: store.manifest for split, store in self.stores.items()}
        files = self.files()
        vectors, coverage = {}, {}
        if self.vectors is not None:
            vectors, coverage = {"vectors": dict(self.vectors.identity)}, {"vectors": dict(self.vectors.audit)}
        return Provenance(
            encoder=describe_encoder(self._any),
            data=vectors
            | {
                split: {
                    "file": files[split].name,
                    "sha256": manifest.identity["corpus_sha256"],
                    self.unit: manifest.items,
                    "store": manifest.key,
                }
                for split, manifest in manifests.items()
            },
            audit=coverage | {split: counts for split, counts in self._counts().items()},
        )
