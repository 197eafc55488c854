import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from attention_probing.results.errors import UserError
from attention_probing.results.files import (
    check_regular,
    check_writable,
    is_full,
    keep,
    read_kept,
    remove_leftovers,
    write_atomically,
)

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


@pytest.mark.parametrize("step", ["os.fsync", "os.replace"])
def test_a_failed_write_leaves_what_was_there(step: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no more")

    monkeypatch.setattr(f"attention_probing.results.files.{step}", fail)
    with pytest.raises(OSError, match="no more"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"pretrained"
    assert [path.name for path in file.parent.iterdir()] == ["weights.bin"]


def flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]


@pytest.mark.parametrize("content", [b"", b"kept", bytes(range(256)) * 9000], ids=["nothing", "little", "much"])
def test_what_is_kept_comes_back_and_any_damage_is_named(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state" / "training.ckpt"
    assert read_kept(path) is None
    path.parent.mkdir()
    keep(path, content)
    whole = path.read_bytes()
    assert (again := read_kept(path)) is not None
    assert bytes(again) == content
    assert caplog.messages == []
    places = range(len(whole)) if len(whole) < 1000 else range(0, len(whole), len(whole) // 7)
    damages = [flip(whole, place) for place in places] + [whole[:-1], whole[:70], b"", whole + b"x", content]
    for damage in damages:
        path.write_bytes(damage)
        assert read_kept(path) is None
        assert not path.exists(), "nobody finds it again"
    aside = sorted(path.parent.iterdir())
    assert caplog.messages[::2] == [f"{path} is damaged, and is made again."] * len(damages)
    assert caplog.messages[1::2] == [f"What was there is now {other}." for other in aside]
    assert [other.read_bytes() for other in aside] == damages, "it may be somebody's own"


def test_what_was_kept_elsewhere_is_not_taken(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for name in ("1", "2"):
            keep(tmp_path / folder / name, f"{folder}{name}".encode())
    (tmp_path / "a" / "1").write_bytes((tmp_path / "b" / "1").read_bytes())
    (tmp_path / "a" / "2").write_bytes((tmp_path / "b" / "1").read_bytes())
    assert read_kept(tmp_path / "a" / "1") is None
    assert read_kept(tmp_path / "a" / "2") is None
    (tmp_path / "b").rename(tmp_path / "a" / "b")  # the place of the folder itself is free
    assert [bytes(read_kept(tmp_path / "a" / "b" / name) or b"") for name in "12"] == [b"b1", b"b2"]


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE], ids=errno.errorcode.get)
@pytest.mark.parametrize("step", ["pathlib.Path.open", "attention_probing.results.files.mmap.mmap"])
def test_what_cannot_be_read_now_stays(step: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = keep(tmp_path / "training.ckpt", b"hours of training")

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(step, fail)
        with pytest.raises(OSError, match=rf"{os.strerror(code)}: '{path}'"):
            read_kept(path)
    assert bytes(read_kept(path) or b"") == b"hours of training"


def test_a_full_disk_is_told_with_the_name_of_the_file(file: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    try:
        with pytest.raises(OSError, match=rf"too large: '{file}'") as error:
            write_atomically(file, bytes(200_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert is_full(error.value)
    assert not is_full(PermissionError(13, "Permission denied"))
    assert file.read_bytes() == b"pretrained"
    assert [path.name for path in file.parent.iterdir()] == ["weights.bin"]


def test_leftovers_of_dead_processes_on_this_host_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    kept = {
        f".00000-abc.safetensors.{HOST}.{os.getpid()}.tmp",  # ours, in the making
        f".00000-abc.safetensors.{HOST}.1.tmp",  # of a living process, of another user maybe
        f".00000-abc.safetensors.elsewhere.{dead.pid}.tmp",  # of another host, where the process may live
        f".notes.{HOST}.old.tmp",  # of the user
        "00000-abc.safetensors",
    }
    gone = {f".00000-abc.safetensors.{HOST}.{dead.pid}.tmp", f".manifest.json.{HOST}.{dead.pid}.tmp"}
    for name in kept | gone:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_regular_file_is_told_from_what_has_no_end(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    assert check_regular(file) == file
    assert check_regular(link, 10) == link
    with pytest.raises(OSError, match="it has 10 bytes, but at most 9 are read"):
        check_regular(link, 9)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    device = tmp_path / "device"
    device.symlink_to("/dev/zero")
    for path, kind in ((pipe, "pipe"), (device, "device")):
        with pytest.raises(OSError, match=f"it is a {kind}, not a regular file") as caught:
            check_regular(path)
        assert caught.value.filename == str(path)
        assert not is_full(caught.value)
    with pytest.raises(IsADirectoryError, match="it is a folder, not a file"):
        check_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        check_regular(tmp_path / "nothing")


@pytest.mark.parametrize("kind", ["link to nothing", "long name", "file", "below a file"])
def test_a_folder_in_which_nothing_can_be_written_is_told_with_the_option(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/nowhere/at/all")
    folder = (
        tmp_path / {"link to nothing": "link", "long name": "n" * 300, "file": "file", "below a file": "file/a"}[kind]
    )
    with pytest.raises(UserError, match=rf"^{folder}: nothing can be written there \(.+\)\. Give --out a place that"):
        check_writable(folder, "--out")
    check_writable(tmp_path / "new" / "folder", "--out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
