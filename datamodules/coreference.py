"""Documents with coreference through an encoder, as batches of one window with the attention between its mentions."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from attention.encoder import Encoder, EncoderSpec, Source
from attention.specification import Candidates, Extraction, Items, Options
from attention.store import Store
from corpora.conll2012 import DOCUMENTS_VERSION, read_documents
from corpora.conllu import READER_VERSION
from corpora.document import WINDOWS_VERSION, Documents, Window, windows_from_table
from corpora.registry import CORPORA, data_root, locate
from corpora.sentence import CorpusError, Treebank
from datamodules.base import SPLITS, STAGES, AttentionDataModule, Split, files_by_split
from datamodules.batch import AntecedentBatch
from datamodules.sampling import BatchLoader, LengthBatches, run_seed
from datamodules.vectors import VectorSpec
from datamodules.windows import CoreferenceSplit, cut_documents, parted
from results import Provenance

_DEFAULT_ENCODER = EncoderSpec()
_DEFAULT_OPTIONS = Options()


class CoreferenceDataModule(AttentionDataModule):
    """Attention between the mentions of documents.

    Args:
        corpus: a name of `python -m corpora.registry --list`, a path with `{split}` in the place of train, dev and
            test, a mapping from these three to paths, or one path. The documents of a corpus in one file are parted,
            within each genre.
        root: folder of the public corpora; else `$PROBING_DATA`, else `./data`.
        parses: a treebank of the same sentences, which gives the heads of the mentions, a path that may have
            `{split}` in it; else the `.conllu` of the same name beside the corpus, if there is one.
        candidates: whether a mention's antecedent is sought among the head words of the other `mentions`, or among
            all `words` of the window.
        encoder: the encoder; None for what needs no attention: each document is one window then.
        options: what is taken from it, and what happens to sentences over its limit.
        vectors: word vectors; None for none.
        cache: folder of the stores; else `$PROBING_CACHE`, else `./stores`.
        workers: processes that read batches ahead; 0 reads in the training process.
        parts: shares of the documents of a corpus in one file: of dev and test, or of train, dev and test.
        split_seed: of the parting.
        seed: of the order of the training windows; None for that of the run.

    Raises:
        CorpusError: shares that cannot be; a corpus that is absent or malformed, on `setup`.
        VectorError: word vectors that are absent, malformed, or know too few of the words, on `setup`.
    """

    unit = "windows"

    def __init__(
        self,
        corpus: str | dict[str, str] = "ontogum",
        root: str | None = None,
        parses: str | None = None,
        candidates: Candidates = "mentions",
        encoder: EncoderSpec | None = _DEFAULT_ENCODER,
        options: Options = _DEFAULT_OPTIONS,
        vectors: VectorSpec | None = None,
        cache: str | None = None,
        workers: int = 0,
        parts: tuple[float, ...] = (0.5, 0.5),
        split_seed: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__(encoder, options, cache, data_root(root), vectors)
        if len(parts) not in (2, 3) or min(parts) <= 0 or abs(sum(parts) - 1) > 1e-6:
            raise CorpusError(
                f"parts: {list(parts)} are no shares of dev and test, or of train, dev and test, that add up to 1: "
                f"--data.init_args.parts [0.5,0.25,0.25]."
            )
        self.corpus = corpus
        self.parses = parses
        self.candidates = candidates
        self.workers = workers
        self.parts = parts
        self.split_seed, self.seed = split_seed, seed
        self.splits: dict[Split, CoreferenceSplit] = {}

    def files(self) -> Mapping[str, Path]:
        """The corpus file of every split there is; splits that are parts of one file share it."""
        if (single := self._single()) is not None:
            return dict.fromkeys(SPLITS[-len(self.parts) :], single)
        if isinstance(self.corpus, str) and self.corpus in CORPORA:
            return locate(self.corpus, self.root)
        return files_by_split(self.corpus)

    def _single(self) -> Path | None:
        """The file of a corpus that comes as one piece."""
        if not isinstance(self.corpus, str) or "{split}" in self.corpus:
            return None
        if self.corpus in CORPORA:
            return locate(self.corpus, self.root).get("all")
        path = Path(self.corpus).expanduser()
        if not path.is_file():
            raise CorpusError(
                f"{self.corpus}: neither a corpus of the registry ({', '.join(CORPORA)}) nor a file. Give the path of "
                f"a file, a path with {{split}} in it, or a mapping: --data.init_args.corpus "
                f"'{{dev: a.conll, test: b.conll}}'."
            )
        return path

    def _parses(self, path: Path) -> Path | None:
        """The treebank that gives the heads of the mentions."""
        if self.parses is None:
            beside = path.with_suffix(".conllu")  # where the reader looks as well
            return beside if beside != path and beside.is_file() else None
        split = next(split for split, file in self.files().items() if file == path)
        return Path(self.parses.replace("{split}", split)).expanduser()

    def extraction(self, path: Path, source: Source | None) -> Extraction:
        """Attention between the mentions of each window."""
        versions = {"version": DOCUMENTS_VERSION, "windows": WINDOWS_VERSION, "parses": READER_VERSION}
        reader = {"name": "documents", **versions}
        return Extraction(path, reader, source, self.options, candidates=self.candidates, companion=self._parses(path))

    def read(self, path: Path) -> Documents:
        """Parse one file of documents."""
        return read_documents(path, self._parses(path))

    def items(self, extraction: Extraction, corpus: Treebank | Documents, encoder: Encoder | None) -> Items:
        """An item is a window of whole sentences."""
        assert isinstance(corpus, Documents)
        return cut_documents(extraction, corpus, encoder)

    def setup(self, stage: str) -> None:
        """Open the stores of a stage, and part the documents of a corpus in one file."""
        # Training alone needs no dev.
        alone = stage == "fit" and self.trainer is not None and self.trainer.limit_val_batches == 0
        single = self._single() is not None
        if missing := [split for split in (("train",) if alone else STAGES[stage]) if split not in self.files()]:
            remedy = "Part its documents in three: --data.init_args.parts [0.5,0.25,0.25]"
            if not single:
                remedy = "Name its file: --data.init_args.corpus '{train: a.conll, dev: b.conll, test: c.conll}'"
            raise CorpusError(f"The corpus has no {missing[0]} split, and it is needed. {remedy}.")
        super().setup(stage)
        for split, store in self.stores.items():
            if split not in self.splits:
                windows = windows_from_table(store.labels)
                documents = self._part(split, windows) if single else None
                self.splits[split] = CoreferenceSplit(split, store, windows, documents, self.candidates, self.vectors)

    def _texts(self, stores: Mapping[Split, Store]) -> dict[Split, pa.ChunkedArray]:
        # Splits that are parts of one file have one store.
        return {} if self._single() is not None else super()._texts(stores)

    def _part(self, split: Split, windows: Sequence[Window]) -> frozenset[int]:
        genres = {window.number: window.text.genre for window in windows}
        names = SPLITS[-len(self.parts) :]
        parts = dict(zip(names, parted(genres, self.parts, self.split_seed), strict=True))
        if not all(parts.values()):
            count = "one document" if len(genres) == 1 else f"{len(genres)} documents"
            raise CorpusError(
                f"{self.corpus}: {count} with mentions cannot be parted into {', '.join(names[:-1])} and {names[-1]}. "
                f"Name the file of each: --data.init_args.corpus "
                f"'{{{', '.join(f'{name}: {name}.conll' for name in names)}}}'."
            )
        return parts[split]

    @property
    def provenance(self) -> Provenance:
        """Which encoder, which files and documents, and what was dropped, cut or replaced.

        Where one file is parted, the audit of a split counts what is in it, and `file` is the audit of the whole.
        """
        known, counts = super().provenance, self._counts()
        parted = self._single() is not None
        data: dict[str, object] = {name: value for name, value in known.data.items() if name not in SPLITS}
        audit: dict[str, object] = {name: value for name, value in known.audit.items() if name not in SPLITS}
        for split, held in self.splits.items():
            manifest = held.store.manifest
            described = known.data[split]
            assert isinstance(described, dict)
            data[split] = {
                **described,
                **({"parses_sha256": sha} if (sha := manifest.identity.get("companion_sha256")) else {}),
                "documents": len(held.documents),
                "windows": len(held),
                **({"split_seed": self.split_seed, "ids": list(held.documents)} if parted else {}),
            }
            audit[split] = held.counts if parted else counts[split]
            if parted:
                audit["file"] = dict(manifest.audit)
        return Provenance(known.encoder, data, audit)

    def train_dataloader(self) -> BatchLoader[AntecedentBatch]:
        """The windows of the train split, shuffled."""
        return self._loader("train")

    def val_dataloader(self) -> BatchLoader[AntecedentBatch]:
        """The dev split, each window once."""
        return self._loader("dev")

    def test_dataloader(self) -> list[BatchLoader[AntecedentBatch]]:
        """The dev split, for what is chosen, and the test split, for what is reported."""
        return [self._loader("dev"), self._loader("test")]

    def _loader(self, split: Split) -> BatchLoader[AntecedentBatch]:
        data, train, trainer = self.splits[split], split == "train", self.trainer
        batches = LengthBatches(
            np.array([len(window) for window in data.windows], np.int64),
            max_cells=0,
            max_sentences=1,  # windows share no words: nothing is gained by padding them together
            shuffle=train,
            seed=run_seed(self.seed),
            rank=trainer.global_rank if trainer is not None else 0,
            world=trainer.world_size if trainer is not None else 1,
        )
        if train and trainer is not None:
            batches.resume(trainer)
        return BatchLoader(data, batches, self.workers)
