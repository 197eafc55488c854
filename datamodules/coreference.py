"""Documents with coreference through an encoder, as batches of one window with the attention between its mentions."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from attention.encoder import EncoderSpec
from attention.options import Options
from attention.quantity import Antecedent, Candidates
from attention.store import Store
from corpora.conll2012 import DOCUMENTS_VERSION, read_documents
from corpora.conllu import READER_VERSION
from corpora.document import MENTION_TYPES, Documents
from corpora.registry import CORPORA, data_root, locate
from corpora.sentence import CorpusError
from corpora.windows import WINDOWS_VERSION, Window, anaphoric, windows_from_table
from datamodules.base import STAGES, AttentionDataModule, Split, files_by_split
from datamodules.batch import AntecedentBatch
from datamodules.sampling import LengthBatches
from metrics.results import Provenance

_DEFAULT_ENCODER = EncoderSpec()
_DEFAULT_OPTIONS = Options()


class CoreferenceSplit(Dataset[AntecedentBatch]):
    """Some documents of a store, indexed by batches of one window.

    Args:
        store: its weights.
        windows: all windows of the store.
        documents: numbers of the documents that belong to the split; None for all.
        candidates: what the store holds: attention between `mentions`, or between them and all `words`.

    Attributes:
        windows: those of the split, in the order of the corpus.
        documents: ids of its documents, in the order of the corpus.
    """

    def __init__(
        self, store: Store, windows: Sequence[Window], documents: frozenset[int] | None, candidates: Candidates
    ) -> None:
        self.store = store
        self._candidates = candidates
        self._items = [item for item, window in enumerate(windows) if documents is None or window.number in documents]
        self.windows = [windows[item] for item in self._items]
        names = {window.number: window.text.id for window in self.windows}
        self.documents = tuple(names.values())
        self._places = {number: place for place, number in enumerate(names)}

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, indices: list[int]) -> AntecedentBatch:
        """The batch of this one window, or of none."""
        if not isinstance(indices, list):
            raise TypeError(
                "A split is read by batches of one window. A Trainer that replaces the sampler asks for single items: "
                "give it use_distributed_sampler=False; the datamodule shares the windows between devices itself."
            )
        windows = [self.windows[index] for index in indices]
        assert len(windows) <= 1
        heads = [head for window in windows for head in window.mention_heads]
        mentions = [mention for window in windows for mention in window.text.mentions]
        manifest = self.store.manifest
        if windows and manifest.shards:
            # A copy: a batch is its receiver's own, the mapped file is not.
            weights = self.store.read("antecedent", self._items[indices[0]]).clone()
        else:
            size, between, words = (len(manifest.layers), len(manifest.heads)), len(set(heads)), sum(map(len, windows))
            shape = (2, *size, between, words) if self._candidates == "words" else (*size, between, between)
            weights = torch.zeros(shape, dtype=manifest.dtype)
        return AntecedentBatch(
            index=torch.tensor(indices, dtype=torch.int64),
            document=torch.tensor([self._places[window.number] for window in windows], dtype=torch.int64),
            head_words=torch.tensor(heads, dtype=torch.int64),
            clusters=torch.tensor([mention.cluster for mention in mentions], dtype=torch.int64),
            types=torch.tensor([MENTION_TYPES.index(mention.type) for mention in mentions], dtype=torch.int64),
            weights=weights,
            window=windows[0] if windows else None,
        )

    @property
    def counts(self) -> dict[str, int]:
        """Documents, windows, mentions, the links among these, and how many of them the cut into windows lost."""
        lost = sum(window.lost for window in self.windows)
        return {
            "documents": len(self.documents),
            "windows": len(self.windows),
            "mentions": sum(len(window.text.mentions) for window in self.windows),
            "links": sum(sum(anaphoric(window.text.mentions)) for window in self.windows) + lost,
            "lost_links": lost,
        }


def halves(genres: Mapping[int, str], seed: int) -> tuple[frozenset[int], frozenset[int]]:
    """Part numbered documents into two halves with the same genres.

    The documents of each genre are shuffled and halved; of those genres that have an odd number of them, by the order
    of their names, the first gives its odd one to the first half, the second to the second half, and so on.
    """
    random = np.random.default_rng(seed)
    first: set[int] = set()
    extra = 1
    for genre in sorted(set(genres.values())):
        numbers = random.permutation(sorted(number for number, other in genres.items() if other == genre))
        first.update(numbers[: (len(numbers) + extra) // 2].tolist())
        extra = (extra + len(numbers)) % 2
    return frozenset(first), frozenset(genres) - first


class CoreferenceDataModule(AttentionDataModule):
    """Attention between the mentions of documents.

    Args:
        corpus: a name of `python -m corpora.registry --list`, a path with `{split}` in the place of train, dev and
            test, a mapping from these three to paths, or one path. The documents of a corpus in one file are parted
            into dev and test, half and half within each genre.
        root: folder of the public corpora; else `$PROBING_DATA`, else `./data`.
        parses: a treebank of the same sentences, which gives the heads of the mentions, a path that may have
            `{split}` in it; else the `.conllu` of the same name beside the corpus, if there is one.
        candidates: whether a mention's antecedent is sought among the head words of the other `mentions`, or among
            all `words` of the window.
        encoder: the encoder; None for what needs no attention: each document is one window then.
        options: what is taken from it, and what happens to sentences over its limit.
        cache: folder of the stores; else `$PROBING_CACHE`, else `./stores`.
        workers: processes that read batches ahead; 0 reads in the training process.
        seed: of the halving.

    Raises:
        CorpusError: a corpus that is absent or malformed, on `setup`.
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
        cache: str | None = None,
        workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(encoder, options, cache)
        self.corpus = corpus
        self.root = data_root(root)
        self.parses = parses
        self.candidates = candidates
        self.workers = workers
        self.seed = seed
        self.splits: dict[Split, CoreferenceSplit] = {}

    def files(self) -> Mapping[str, Path]:
        """The corpus file of every split there is; dev and test share the one file that is parted into them."""
        if (single := self._single()) is not None:
            return {"dev": single, "test": single}
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

    def companion(self, path: Path) -> Path | None:
        """The treebank that gives the heads of the mentions."""
        if self.parses is None:
            beside = path.with_suffix(".conllu")  # where the reader looks as well
            return beside if beside != path and beside.is_file() else None
        split = next(split for split, file in self.files().items() if file == path)
        return Path(self.parses.replace("{split}", split)).expanduser()

    def read(self, path: Path) -> Documents:
        """Parse one file of documents."""
        return read_documents(path, self.companion(path))

    @property
    def reader(self) -> Mapping[str, object]:
        """What identifies the parser, and the cut into windows."""
        return {"name": "documents", "version": DOCUMENTS_VERSION, "windows": WINDOWS_VERSION, "parses": READER_VERSION}

    @property
    def quantity(self) -> Antecedent:
        """Attention between the mentions of each window."""
        return Antecedent(self.candidates)

    def setup(self, stage: str) -> None:
        """Open the stores of a stage, and part the documents of a corpus in one file."""
        if missing := [split for split in STAGES[stage] if split not in self.files()]:
            raise CorpusError(
                f"The corpus has no {missing[0]} split, and it is needed. Name its file: --data.init_args.corpus "
                f"'{{train: a.conll, dev: b.conll, test: c.conll}}'."
            )
        super().setup(stage)
        halved = self._single() is not None
        for split, store in self.stores.items():
            if split not in self.splits:
                windows = windows_from_table(store.labels)
                documents = self._half(split, windows) if halved else None
                self.splits[split] = CoreferenceSplit(store, windows, documents, self.candidates)

    def _half(self, split: Split, windows: Sequence[Window]) -> frozenset[int]:
        dev, test = halves({window.number: window.text.genre for window in windows}, self.seed)
        if not test:
            raise CorpusError(
                f"{self.corpus}: one document with mentions cannot be parted into dev and test. Name both in "
                f"--data.init_args.corpus '{{dev: a.conll, test: b.conll}}'."
            )
        return dev if split == "dev" else test

    @property
    def provenance(self) -> Provenance:
        """Which encoder, which files and documents, and what was dropped, cut or replaced.

        Where one file is parted, the audit of a split counts what is in it, and `file` is the audit of the whole.
        """
        known = super().provenance
        halved = self._single() is not None
        data: dict[str, object] = {}
        audit: dict[str, object] = {}
        for split, held in self.splits.items():
            manifest = held.store.manifest
            described = known.data[split]
            assert isinstance(described, dict)
            data[split] = {
                **described,
                **({"parses_sha256": sha} if (sha := manifest.identity.get("companion_sha256")) else {}),
                "documents": len(held.documents),
                "windows": len(held),
                **({"seed": self.seed, "ids": list(held.documents)} if halved else {}),
            }
            audit[split] = held.counts if halved else dict(manifest.audit)
            if halved:
                audit["file"] = dict(manifest.audit)
        return Provenance(known.encoder, data, audit)

    def val_dataloader(self) -> DataLoader[AntecedentBatch]:
        """The dev split, each window once."""
        return self._loader("dev")

    def test_dataloader(self) -> list[DataLoader[AntecedentBatch]]:
        """The dev split, for what is chosen, and the test split, for what is reported."""
        return [self._loader("dev"), self._loader("test")]

    def _loader(self, split: Split) -> DataLoader[AntecedentBatch]:
        data, trainer = self.splits[split], self.trainer
        batches = LengthBatches(
            np.array([len(window) for window in data.windows], np.int64),
            max_cells=0,
            max_sentences=1,  # windows share no words: nothing is gained by padding them together
            shuffle=False,
            rank=trainer.global_rank if trainer is not None else 0,
            world=trainer.world_size if trainer is not None else 1,
        )
        return DataLoader(
            data,
            sampler=batches,
            batch_size=None,  # the sampler yields whole batches: nothing to stack
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=torch.cuda.is_available(),
        )
