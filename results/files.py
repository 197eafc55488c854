"""Files that are written completely or not at all, also after a power cut, and are read only if undamaged."""

import errno
import hashlib
import logging
import mmap
import os
import platform
import re
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from attention_probing.results.errors import UserError

_SEAL = b"\nsha256:"
"""Begins the last bytes of a kept file, before a checksum in hexadecimal. Readers of zip files, `torch.load` among
them, take no notice of it."""
_SEALED = len(_SEAL) + 64  # bytes
_READ = 1 << 20  # bytes read at a time
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")  # beginning of text that a spreadsheet would compute

_IRREGULAR = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}

log = logging.getLogger(__name__)


def check_regular(path: Path, most: int | None = None) -> Path:
    """Return the path of a file that has an end, before anything of it is read.

    Every reader of files that somebody else may have made calls it: a pipe may block for ever, and a device such as
    `/dev/zero` never ends.

    Args:
        path: The file, or a link to it.
        most: Largest size in bytes; None for any.

    Raises:
        OSError: There is no such file, it is a folder, a pipe, a device or a socket, or it is larger than `most`. The
            error names `path`.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    kind = _IRREGULAR.get(stat.S_IFMT(status.st_mode))
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
    if most is not None and status.st_size > most:
        raise OSError(errno.EINVAL, f"it has {status.st_size:,} bytes, but at most {most:,} are read", str(path))
    return path


def keep(path: Path, content: bytes | memoryview) -> Path:
    """Write a file atomically, with a checksum that `read_kept` verifies; return its path.

    The checksum covers the content, the name of the file, and the name of its folder.
    """
    sha = _begin_checksum(path)
    sha.update(content)
    return write_atomically(path, content, _seal(sha))


def read_kept(path: Path) -> memoryview | None:
    """Return the content of a file written by `keep`, mapped into memory; None if it has to be made again.

    The result is None if there is no such file, or if it is damaged or has been moved or renamed. Such a
    bad file, which may be somebody's own, is set aside with a warning. If a folder is in the place of the
    file, the result is None too, but the folder stays.

    Raises:
        OSError: The file cannot be read now, but may be undamaged; the error names `path`.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size - _SEALED
            sha = _begin_checksum(path)
            for start in range(0, size, _READ):  # reads nothing more if the file has shrunk
                sha.update(file.read(min(size - start, _READ)))
            if size >= 0 and file.read() == _seal(sha):
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[:size]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:
        log.warning("%s is a folder, but must be a file. Remove the folder.", path)
        return None
    except OSError as error:
        error.filename = str(path)
        raise
    log.warning("%s is damaged, and is made again.", path)
    with suppress(OSError):
        set_aside(path)
    return None


def set_aside(path: Path) -> None:
    """Rename a file that is not what this program wrote there to `<name>.old-<time>`, and log its new name.

    Raises:
        OSError: The file cannot be renamed.
    """
    new_path = path.with_name(f"{path.name}.old-{time.time_ns()}")
    with suppress(FileNotFoundError):  # another process was first
        path.rename(new_path)
        log.warning("What was there is now %s.", new_path)


def path_below(folder: Path, name: str | Path) -> Path:
    """Return the path of a file in a folder, by the name that another file gives it.

    Raises:
        ValueError: It lies outside the folder, also by way of links, or the name can be no path.
    """
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{str(name)!r} leads out of the folder {folder}")
    return path


def is_whole(paths: Sequence[Path], sha256: str) -> bool:
    """Return True if all files exist and are undamaged; log a warning if they exist but are damaged.

    Args:
        paths: The files.
        sha256: Expected SHA-256 of the contents of all files, joined in this order.
    """
    if not all(path.is_file() for path in paths):
        return False
    sha = hashlib.sha256()
    for path in paths:
        sha.update(path.read_bytes())
    if sha.hexdigest() == sha256:
        return True
    log.warning("%s is damaged, and is made again.", " or ".join(map(str, paths)))
    return False


def _begin_checksum(path: Path) -> "hashlib._Hash":
    whole = path.absolute()
    return hashlib.sha256(f"{whole.parent.name}/{whole.name}\0".encode())


def _seal(sha: "hashlib._Hash") -> bytes:
    return _SEAL + sha.hexdigest().encode()


def write_atomically(path: Path, *content: bytes | memoryview | str) -> Path:
    """Write bytes or UTF-8 text to a file, and return its path.

    The write is atomic: at any time the file has either its old or its new content.

    Raises:
        OSError: The file cannot be written; the error names `path`.
    """
    partial = temporary_path(path)
    try:
        with partial.open("wb") as file:
            for part in content:
                data = part.encode() if isinstance(part, str) else part
                file.write(data)
        return commit(partial, path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = str(path)
        raise


def is_full(error: BaseException) -> bool:
    """Return True if an error was raised because the disk or the user's quota is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def try_folder(folder: Path) -> None:
    """Make a folder in a folder and delete it again, with the folders above it that were not there.

    Permissions alone would not tell: a link may lead nowhere, a name may be too long, a disk may be read-only.

    Raises:
        OSError: Nothing can be written there.
    """
    try:
        _try_once(folder)
    except FileNotFoundError:  # another run may just have deleted what it had made here to try
        _try_once(folder)


def _try_once(folder: Path) -> None:
    absent = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryDirectory(dir=folder).cleanup()
    finally:
        for path in absent:
            with suppress(OSError):  # not made, or another run has begun in it
                path.rmdir()


def check_writable(folder: Path, option: str) -> None:
    """Raise UserError if nothing can be written into a folder; called before the work whose result goes there.

    Args:
        folder: The folder; it may be absent.
        option: Option of the command line that names another place.
    """
    try:
        try_folder(folder)
    except OSError as error:
        raise UserError(
            f"{folder}: nothing can be written there ({error.strerror}). Give {option} a place that can be written."
        ) from error


def temporary_path(path: Path) -> Path:
    """Return a temporary path for this process to write to, before `commit` renames the file to `path`."""
    return path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.tmp")


def commit(partial: Path, path: Path) -> Path:
    """Flush a finished temporary file to disk, rename it to `path`, and return `path`.

    If this fails, the temporary file is deleted and `path` is unchanged.

    Args:
        partial: Path of the temporary file, from `temporary`.
        path: Path of the file to create or replace.
    """
    try:
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files that ended processes of this host have left in a folder."""
    for path in folder.glob(f".*.{platform.node()}.*.tmp"):
        process = path.name.split(".")[-2]
        # Other names are not those of temporary files.
        if process.isdecimal() and int(process) != os.getpid() and not _alive(int(process)):
            path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # else there is none
    return True


def quote_cell(cell: object) -> Any:  # noqa: ANN401 # of any kind
    """Return a cell of a table for a CSV file, with an apostrophe before text that a spreadsheet would compute.

    That is text which begins with `=`, `+`, `-`, `@` or a control character. Numbers stay as they are.
    """
    if isinstance(cell, str) and _FORMULA.match(cell):
        return f"'{cell}"
    return cell


def unquote_cell(cell: object) -> Any:  # noqa: ANN401 # of any kind
    """Return a cell of a CSV file as it was before `quote_cell`."""
    if isinstance(cell, str) and cell.startswith("'") and _FORMULA.match(cell):
        return cell[1:]
    return cell


def csv_text(frame: pd.DataFrame) -> str:
    """Return a table as CSV, in which words are data for a spreadsheet; see `quote_cell`."""
    cells = {}
    for name, column in frame.reset_index(drop=True).items():
        if not pd.api.types.is_numeric_dtype(column):
            column = pd.Series(map(quote_cell, column), dtype=object)
        cells[quote_cell(name)] = column
    # With both signs in the terminator, a cell with either of them gets the quotes without which it would end a line.
    return pd.DataFrame(cells).to_csv(index=False, lineterminator="\r\n").replace("\r\n", "\n")


def read_csv(path: Path, **options: Any) -> pd.DataFrame:  # noqa: ANN401 # arguments of pandas
    """Read a table written by `csv_text`.

    Args:
        path: The file.
        **options: Arguments of `pandas.read_csv`.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
        ValueError: It is no table.
    """
    frame: pd.DataFrame = pd.read_csv(check_regular(path), keep_default_na=False, **options)
    return frame.map(unquote_cell).rename(columns=unquote_cell)


def checkpoints_in(run: Path) -> list[Path]:
    """Return the checkpoints of a run, best first: `last.ckpt`, if there is one, comes at the end."""
    paths = (run / "checkpoints").glob("*.ckpt")
    return sorted(paths, key=lambda path: (path.stem == "last", path.name))
