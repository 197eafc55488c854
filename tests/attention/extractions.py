"""One extraction over a generated treebank, to be run in this process or in others."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path
from unittest.mock import patch

import torch

from attention_probing.attention import Encoder
from attention_probing.attention.extraction import make_store, open_store
from attention_probing.attention.source import EncoderSpec, resolve
from attention_probing.attention.specification import Extraction as Specification, Items, Options, cut_sentences
from attention_probing.attention.store import Store, seal_part, store_key
from attention_probing.corpora.sentence import Treebank
from attention_probing.results.digests import Digests
from tests import tiny

LENGTHS = (19, 1, 22, 12, 21, 8, 23, 16, 20, 18)  # words of ten sentences, enough for three shards

# The server has imported everything once; each process is a fork of it.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


@dataclass
class Extraction:
    """A specification whose corpus and cache lie in `root`, and the calls of `load` and `cut` on its behalf."""

    root: Path
    encoder: Path | None
    lengths: tuple[int, ...] = LENGTHS
    options: Options = field(default_factory=Options)
    calls: list[str] = field(default_factory=list)
    hidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.corpus.write_text("\n".join(" ".join(sentence.words) for sentence in self.treebank.sentences))

    @property
    def corpus(self) -> Path:
        return self.root / "corpus.conllu"

    @property
    def cache(self) -> Path:
        return self.root / "stores"

    @property
    def treebank(self) -> Treebank:
        return tiny.treebank(self.lengths)

    @property
    def specification(self) -> Specification:
        source = resolve(EncoderSpec(str(self.encoder))) if self.encoder is not None else None
        return Specification(self.corpus, {"format": "made up", "version": 1}, source, self.options, self.hidden)

    @property
    def folder(self) -> Path:
        """The folder of the store."""
        return self.cache / store_key(self.specification.identity(Digests(self.cache)))

    def files(self) -> dict[str, bytes]:
        """Everything that lies in the store's folder, but for what was set aside."""
        return {path.name: path.read_bytes() for path in sorted(self.folder.iterdir()) if ".old-" not in path.name}

    def file(self, stem: str) -> Path:
        """The one file of the store whose name begins like this."""
        [path] = self.folder.glob(f"{stem}*")
        return path

    def items(self, encoder: Encoder | None) -> Items:
        self.calls.append("cut")
        return cut_sentences(self.specification, self.treebank, encoder)

    def load(self) -> Encoder:
        self.calls.append("load")
        source = self.specification.encoder
        assert source is not None
        return Encoder(source)

    def prepare(self) -> Store:
        """Open the store, or make it."""
        digests = Digests(self.cache)
        if (store := open_store(self.specification, self.cache, digests)) is not None:
            return store
        encoder = self.load() if self.encoder is not None else None
        return make_store(self.items(encoder), self.cache, digests, encoder)


def items_of(
    treebank: Treebank, encoder: Encoder | None, options: Options | None = None, hidden: tuple[int, ...] = ()
) -> Items:
    """Sentences that no file holds, to be extracted."""
    return cut_sentences(Specification(Path("corpus"), {}, None, options or Options(), hidden), treebank, encoder)


def prepare_and_record(extraction: Extraction) -> tuple[list[str], int]:
    """Stems of the files that this process wrote, in order, and the number of items of the store it returned."""
    written: list[str] = []

    def record(partial: Path, sha256: str, stem: str, suffix: str, digests: Digests) -> None:
        written.append(stem)
        seal_part(partial, sha256, stem, suffix, digests)

    torch.set_num_threads(1)
    with patch("attention_probing.attention.extraction.seal_part", record):
        store = extraction.prepare()
        return written, sum(bool(store.read("attention", item).any()) for item in range(len(store)))


def prepare_at_once(extraction: Extraction, processes: int) -> list[tuple[list[str], int]]:
    """`prepare_and_record` in some processes, all started before any begins."""
    meeting = _processes.Barrier(processes)
    with ProcessPoolExecutor(processes, _processes, meet, (meeting,)) as pool:
        return [future.result(60) for future in [pool.submit(prepare_and_record, extraction) for _ in range(processes)]]


def meet(barrier: Barrier) -> None:
    barrier.wait(60)


def prepare_and_die(extraction: Extraction, stem: str) -> int | None:
    """Exit status of a process that is killed when the file of that stem is half-way to its name."""
    process = _processes.Process(target=_die_while_writing, args=(extraction, stem))
    process.start()
    process.join(60)
    return process.exitcode


def _die_while_writing(extraction: Extraction, stem: str) -> None:
    with before_fsync(extraction.folder, stem, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        prepare_and_record(extraction)


@contextmanager
def before_fsync(folder: Path, stem: str, act: Callable[[], None]) -> Iterator[None]:
    """Act when the file of that stem is about to be synced: it is written, and does not have its name yet."""
    fsync = os.fsync

    def act_first(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino in [path.stat().st_ino for path in folder.glob(f".{stem}.*")]:
            act()
        fsync(descriptor)

    with patch("attention_probing.results.files.os.fsync", act_first):
        yield
