import os
import subprocess
import sys
from pathlib import Path

import pytest

from results.files import remove_leftovers, write_atomically

HOST = os.uname().nodename


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"pretrained")
    return path


def test_writing_replaces_all_of_the_content(file: Path) -> None:
    assert write_atomically(file, "neü\n") == file
    assert file.read_bytes() == "neü\n".encode()
    assert [path.name for path in file.parent.iterdir()] == ["weights.bin"]


@pytest.mark.parametrize("step", ["os.fsync", "os.replace", "Path.write_bytes"])
def test_a_failed_write_leaves_what_was_there(step: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no more")

    monkeypatch.setattr(f"results.files.{step}", fail)
    with pytest.raises(OSError, match="no more"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"pretrained"
    assert [path.name for path in file.parent.iterdir()] == ["weights.bin"]


def test_content_is_on_the_disk_before_it_has_its_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bytes, bytes]] = []

    def look(descriptor: int) -> None:
        [temporary] = (path for path in file.parent.iterdir() if path != file)
        seen.append((temporary.read_bytes(), file.read_bytes()))

    monkeypatch.setattr("results.files.os.fsync", look)
    write_atomically(file, b"new")
    assert seen == [(b"new", b"pretrained")]


def test_leftovers_of_dead_processes_on_this_host_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    kept = {
        f".00000-abc.safetensors.{HOST}.{os.getpid()}.tmp",  # ours, in the making
        f".00000-abc.safetensors.{HOST}.1.tmp",  # of a living process, of another user maybe
        f".00000-abc.safetensors.elsewhere.{dead.pid}.tmp",  # of another host, where the process may live
        "00000-abc.safetensors",
    }
    gone = {f".00000-abc.safetensors.{HOST}.{dead.pid}.tmp", f".manifest.json.{HOST}.{dead.pid}.tmp"}
    for name in kept | gone:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_process_of_another_user_counts_as_living(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: int, signal: int) -> None:
        raise PermissionError

    leftover = tmp_path / f".00000-abc.safetensors.{HOST}.1.tmp"
    leftover.touch()
    monkeypatch.setattr("results.files.os.kill", refuse)
    remove_leftovers(tmp_path)
    assert leftover.exists()
