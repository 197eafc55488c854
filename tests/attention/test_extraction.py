import errno
import os
import platform
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from rich.console import Console
from torch import Tensor

from attention_probing.attention import Encoder
from attention_probing.attention.alignment import SPELLED
from attention_probing.attention.extraction import extract, shapes
from attention_probing.attention.specification import Items
from attention_probing.attention.store import MANIFEST, Store
from attention_probing.corpora.sentence import to_table
from attention_probing.results.digests import Digests
from attention_probing.results.errors import UserError
from attention_probing.results.locks import try_lock
from tests.attention.extractions import Extraction, before_fsync, prepare_and_die, prepare_at_once

SHARDS = ("00000", "00001", "00002")


@pytest.fixture
def extracted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards that went through the encoder, in order."""
    shards: list[int] = []

    def spy(encoder: Encoder, items: Items, wanted: Iterable[int]) -> Iterator[tuple[int, str, Tensor]]:
        yield from extract(encoder, items, (shards.append(shard) or shard for shard in wanted))  # type: ignore[func-returns-value]

    monkeypatch.setattr("attention_probing.attention.extraction.extract", spy)
    return shards


def stems(files: Iterable[str]) -> list[str]:
    return sorted(re.split(r"[-.]", name)[0] for name in files)


def test_a_store_is_labels_shards_and_a_manifest_that_a_second_run_opens(
    extraction: Extraction, extracted: list[int]
) -> None:
    prepared = extraction.prepare()

    def written() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in extraction.folder.iterdir()}

    before = written()
    store = extraction.prepare()
    assert written() == before
    assert (extraction.calls, extracted) == (["load", "cut"], [0, 1, 2])
    assert stems(extraction.files()) == [*SHARDS, "labels", "manifest"]
    assert store.folder == extraction.folder
    assert len(store) == 10
    assert store.labels.equals(to_table(extraction.treebank.sentences))
    manifest = store.manifest
    assert (manifest.key, manifest.items) == (extraction.folder.name, 10)
    assert (manifest.layers, manifest.heads) == ((0, 1), (0, 1, 2, 3))
    assert manifest.delimiters == {"start": True, "end": True}
    assert manifest.encoder["architecture"] == "BertModel"
    counts = {"words_without_piece", "words_with_unknown_token", "words_cut_apart"}
    counts |= {"skipped_too_long", *SPELLED}
    capital = sum(not word.islower() and word.isalpha() for one in extraction.treebank.sentences for word in one.words)
    spelled = {"spelled_as_written": 160 - capital, "spelled_normalised": capital}
    assert manifest.audit == dict(extraction.treebank.audit) | dict.fromkeys(counts, 0) | spelled
    for item, sentence in enumerate(extraction.treebank.sentences):
        attention = store.read("attention", item)
        assert attention.shape == (2, 4, len(sentence) + 2, len(sentence) + 2)
        assert attention.dtype == torch.float32
        torch.testing.assert_close(attention.sum(-1), torch.ones(2, 4, len(sentence) + 2), rtol=0, atol=5e-3)
        assert torch.equal(attention, prepared.read("attention", item))


def test_what_is_needed_is_printed_before_it_starts(extraction: Extraction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=7 * 10**9))
    monkeypatch.setattr(
        "attention_probing.attention.specification._HEADER", 10**6
    )  # as if each sentence were that large
    printed = []
    for _ in range(2):
        text = StringIO()
        monkeypatch.setattr("attention_probing.attention.extraction.console", Console(file=text, width=1000))
        extraction.prepare()
        printed.append(text.getvalue().strip())
    expected = "Extracting corpus.conllu: 10 sentences, 3 of 3 shards, 10 MB of 7 GB free"
    assert printed == [f"{expected} → {extraction.folder}", ""]


def flip(path: Path) -> None:
    """Change one bit in the middle, and hide the change behind the old time of modification."""
    time.sleep(0.02)  # longer than a tick of the file system's clock
    stat = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
@pytest.mark.parametrize(
    ("stem", "again", "known"),
    [
        ("00001", [1], True),
        ("00002", [2], False),
        ("labels", [], True),
        ("manifest", [], True),
    ],
)
def test_a_damaged_file_is_named_and_rebuilt_with_a_manifest_or_without(
    damage: Callable[[Path], None],
    stem: str,
    again: list[int],
    known: bool,
    extraction: Extraction,
    extracted: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    extraction.prepare()
    before = extraction.files()
    path = extraction.file(stem)
    damage(path)
    if not known:
        (extraction.folder / MANIFEST).unlink()
    extracted.clear()
    store = extraction.prepare()
    named = [] if damage is Path.unlink else [f"{path}: damaged or truncated"]  # there may never have been one
    told = [record for record in caplog.records if "What was there is now" not in record.getMessage()]
    for record, start in zip(told, named, strict=True):
        assert record.getMessage().startswith(start)
        assert record.getMessage().endswith("; it is rebuilt")
    assert extracted == again
    assert extraction.files() == before
    assert all(store.read("attention", item).any() for item in range(10))


def test_a_shard_that_another_process_takes_away_is_missing(
    extraction: Extraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when two processes find the same damage, and one is quicker."""
    extraction.prepare()
    before = extraction.files()
    shard = extraction.file("00001")
    hashed = Digests.of_file

    def vanish(digests: Digests, path: Path) -> str:
        if path == shard and path.exists():
            path.unlink()
            monkeypatch.undo()
        return hashed(digests, path)

    monkeypatch.setattr(Digests, "of_file", vanish)
    assert Store.open(extraction.folder, Digests(extraction.cache)) is None
    extraction.prepare()
    assert extraction.files() == before


def test_a_run_that_fails_goes_on_where_it_stopped(
    extraction: Extraction, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, extracted: list[int]
) -> None:
    def fail(encoder: Encoder, items: Items, shards: Iterable[int]) -> Iterator[object]:
        yield from extract(encoder, items, islice(shards, 2))
        name, shape = next(iter(shapes(items, 2).items()))
        yield 2, name, torch.zeros(shape, dtype=torch.float16)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("attention_probing.attention.extraction.extract", fail)
        with pytest.raises(KeyboardInterrupt):
            extraction.prepare()
    assert stems(extraction.files()) == ["00000", "00001", "labels"]
    extraction.prepare()
    assert extracted == [2]
    assert extraction.files() == undisturbed


def test_what_a_process_leaves_that_ends_meanwhile_is_removed(
    extraction: Extraction, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()

    def leave(encoder: Encoder, items: Items, shards: Iterable[int]) -> Iterator[object]:
        (extraction.folder / f".00001.safetensors.{platform.node()}.{dead.pid}.tmp").write_bytes(b"half")
        yield from extract(encoder, items, shards)

    monkeypatch.setattr("attention_probing.attention.extraction.extract", leave)
    extraction.prepare()
    assert extraction.files() == undisturbed


@pytest.mark.parametrize(
    ("stem", "finished"),
    [("00001", ["00000", "labels"]), ("labels", []), ("manifest", [*SHARDS, "labels"])],
)
@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_stopped(
    stem: str, finished: list[str], extraction: Extraction, undisturbed: dict[str, bytes], extracted: list[int]
) -> None:
    assert prepare_and_die(extraction, stem) == -signal.SIGKILL
    left = [name for name in extraction.files() if name.startswith(".")]
    assert any(name.startswith(f".{stem}.") for name in left)  # it died in the middle of writing
    assert stems(extraction.files().keys() - set(left)) == finished
    extraction.prepare()
    assert extracted == [shard for shard, name in enumerate(SHARDS) if name not in finished]
    assert extraction.files() == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [False, True], ids=["anew", "the same damage"])
def test_two_processes_at_once_end_well(damaged: bool, extraction: Extraction, undisturbed: dict[str, bytes]) -> None:
    if damaged:
        extraction.prepare()
        flip(extraction.file("00001"))
        truncate(extraction.file("00002"))
    assert [items for _, items in prepare_at_once(extraction, 2)] == [10, 10]
    assert extraction.files() == undisturbed


def test_what_another_process_holds_is_waited_for(extraction: Extraction, undisturbed: dict[str, bytes]) -> None:
    extraction.folder.mkdir(parents=True)
    lock = try_lock(extraction.folder / ".00001.safetensors.lock")
    assert lock is not None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(extraction.prepare)
        try:
            time.sleep(1.5)
            written = stems(name for name in extraction.files() if not name.startswith("."))
            assert written == ["00000", "00002", "labels"]
            assert not waiting.done()
        finally:
            lock.release()  # or the pool would wait for its thread without end
        waiting.result(20)
    assert extraction.files() == undisturbed


def test_a_store_that_cannot_fit_is_refused_before_it_begins(
    extraction: Extraction, undisturbed: dict[str, bytes], extracted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 * 10**3))
        patched.setattr(
            "attention_probing.attention.specification._HEADER", 10**8
        )  # as if each sentence were that large
        needed = r"storing the .* of corpus\.conllu needs 1\.0 GB, but only 5\.0 kB are free\. Free 1\.0 GB more, .*"
        with pytest.raises(UserError, match=f"{extraction.folder}: {needed}"):
            extraction.prepare()
    assert extracted == []
    assert stems(extraction.files()) == ["labels"]
    extraction.prepare()
    assert extraction.files() == undisturbed


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("stem", [None, "labels", "00001", "manifest"])
def test_a_disk_that_fills_up_is_explained_and_leaves_nothing_half_written(
    stem: str | None, extraction: Extraction, undisturbed: dict[str, bytes]
) -> None:
    """While a shard is written, or at the end of each file."""
    folder = extraction.folder
    full = (
        patch("attention_probing.attention.extraction.write_shard", no_space)
        if stem is None
        else before_fsync(folder, stem, no_space)
    )
    with (
        full,
        pytest.raises(
            UserError, match=rf"{folder}: the store cannot be written \(No space left on device\).*run again"
        ),
    ):
        extraction.prepare()
    assert not any(name.startswith((".", stem or "0")) for name in extraction.files())
    extraction.prepare()
    assert extraction.files() == undisturbed


def test_hidden_states_lie_in_a_store_of_their_own_beside_the_same_attention(
    bert: Path, tmp_path: Path, extraction: Extraction
) -> None:
    with_states = Extraction(tmp_path / "states", bert, hidden=(0, 2))
    plain, store = extraction.prepare(), with_states.prepare()
    assert store.folder.name != plain.folder.name
    assert [(one.manifest.hidden.layers, one.manifest.hidden.size) for one in (plain, store)] == [((), 0), ((0, 2), 32)]
    for item, sentence in enumerate(with_states.treebank.sentences):
        states = store.read("hidden", item)
        assert (states.shape, states.dtype) == ((2, len(sentence), 32), torch.float16)
        assert bool(states.isfinite().all())
        assert bool(states.any(-1).all())
        assert torch.equal(store.read("attention", item), plain.read("attention", item))


def test_labels_alone_need_no_encoder(tmp_path: Path) -> None:
    extraction = Extraction(tmp_path, None)
    store = extraction.prepare()
    assert stems(extraction.files()) == ["labels", "manifest"]
    assert extraction.calls == ["cut"]
    assert store.labels.equals(to_table(extraction.treebank.sentences))
    manifest = store.manifest
    assert (manifest.items, manifest.shards, manifest.layers, manifest.encoder) == (10, (), (), {})
    assert manifest.audit == extraction.treebank.audit
    extraction.prepare()
    assert extraction.calls == ["cut"]
