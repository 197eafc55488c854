import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attention_probing.results.digests import Digests, digest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"pretrained")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "stores"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were really hashed, in order."""
    names: list[str] = []
    real = hashlib.file_digest

    def spy(*args: object) -> object:
        names.append(Path(args[0].name).name)  # type: ignore[attr-defined]
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("attention_probing.results.digests.hashlib.file_digest", spy)
    return names


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_digest_is_the_sha256_of_the_standard() -> None:
    assert digest(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1


def test_every_path_has_its_digest(file: Path, cache: Path) -> None:
    other = file.with_name("config.json")
    other.write_bytes(b"{}")
    assert Digests(cache).of([file, other]) == {file: sha(b"pretrained"), other: sha(b"{}")}
    assert Digests(cache).of_file(other) == sha(b"{}")


def test_an_unchanged_file_is_hashed_once(file: Path, cache: Path, hashed: list[str]) -> None:
    digests = Digests(cache)
    found = [digests.of_file(file), digests.of_file(file), Digests(cache).of_file(file)]
    assert found == [sha(b"pretrained")] * 3
    assert hashed == ["weights.bin"]


def rewrite(path: Path) -> None:
    path.write_bytes(b"fine-tuned")


def flip_and_hide(path: Path) -> None:
    """Change one byte in place and set the time of change back: size, inode and mtime are as before."""
    stat = path.stat()
    with path.open("r+b") as file:
        file.write(b"P")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def replace(path: Path) -> None:
    """Put another file of the same size and time in its place."""
    stat = path.stat()
    other = path.with_name("other")
    other.write_bytes(b"fine-tuned")
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [rewrite, flip_and_hide, replace])
def test_a_changed_file_is_hashed_again(change: Callable[[Path], None], file: Path, cache: Path) -> None:
    digests = Digests(cache)
    digests.of_file(file)
    time.sleep(0.02)  # longer than a tick of the file system's clock
    change(file)
    for seen in (digests, Digests(cache)):
        assert seen.of_file(file) == sha(file.read_bytes()) != sha(b"pretrained")


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\x00", b"[]", b'{"a": 1}', b'{"a": ["stamp", "sha256"]}'])
def test_a_damaged_index_is_ignored_and_written_anew(
    content: bytes, file: Path, cache: Path, hashed: list[str]
) -> None:
    Digests(cache).of_file(file)
    (cache / "digests" / "index.json").write_bytes(content)
    assert Digests(cache).of_file(file) == sha(b"pretrained")
    assert Digests(cache).of_file(file) == sha(b"pretrained")
    assert hashed == ["weights.bin"] * 2


def test_a_file_of_the_user_in_the_place_of_the_index_is_moved_aside(file: Path, cache: Path) -> None:
    own = cache / "digests" / "index.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"years": "of work"}')
    assert Digests(cache).of_file(file) == sha(b"pretrained")
    assert [one.read_text() for one in own.parent.iterdir() if one != own] == ['{"years": "of work"}']


def test_two_writers_keep_each_others_entries(file: Path, cache: Path, hashed: list[str]) -> None:
    other = file.with_name("config.json")
    other.write_bytes(b"{}")
    one, two = Digests(cache), Digests(cache)
    one.of_file(file)
    two.of_file(other)
    Digests(cache).of([file, other])
    assert hashed == ["weights.bin", "config.json"]


def test_an_index_that_cannot_be_written_costs_time_only(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attention_probing.results.files.os.fsync", full)
    digests = Digests(cache)
    assert digests.of_file(file) == sha(b"pretrained")
    [record] = caplog.records
    assert str(cache / "digests" / "index.json") in record.getMessage()
    assert "No space left on device" in record.getMessage()
    assert list((cache / "digests").iterdir()) == []
