"""Files that are written completely or not at all, also after a power cut, and are read only if undamaged."""

import errno
import hashlib
import logging
import mmap
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_SEAL = b"\nsha256:"
"""Begins the last bytes of a kept file, before a checksum in hexadecimal. Readers of zip files, `torch.load` among
them, take no notice of it."""
_SEALED = len(_SEAL) + 64  # bytes
_READ = 1 << 20  # bytes read at a time

log = logging.getLogger(__name__)


def keep(path: Path, content: bytes | memoryview) -> Path:
    """Write a file atomically, with a checksum of its content, name and folder, for `kept` to read; return its path."""
    sha = _begun(path)
    sha.update(content)
    return write_atomically(path, content, _seal(sha))


def kept(path: Path) -> memoryview | None:
    """Return the content of a file written by `keep`, mapped into memory; None if the file does not exist.

    A file that is damaged or was moved is logged and deleted, and the result is None, so that the caller creates it
    again.

    Raises:
        OSError: The file cannot be read now, but may be undamaged; the error names `path`.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size - _SEALED
            sha = _begun(path)
            # Nothing is read if the file has shrunk.
            while (left := size - file.tell()) > 0 and (part := file.read(min(left, _READ))):
                sha.update(part)
            if size >= 0 and file.read() == _seal(sha):
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[:size]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError as error:
        log.warning("%s cannot be read (%s), and is made again.", path, error.strerror)
        return None
    except OSError as error:
        error.filename = str(path)
        raise
    log.warning("%s is damaged, and is made again.", path)
    with suppress(OSError):
        path.unlink()
    return None


def is_whole(paths: Sequence[Path], sha256: str) -> bool:
    """Return True if all files exist and the SHA-256 of their joint content is `sha256`; log a wrong checksum."""
    there = all(path.is_file() for path in paths)
    if there and hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest() == sha256:
        return True
    if there:
        log.warning("%s is damaged, and is made again.", " or ".join(map(str, paths)))
    return False


def _begun(path: Path) -> "hashlib._Hash":
    whole = path.absolute()
    return hashlib.sha256(f"{whole.parent.name}/{whole.name}\0".encode())


def _seal(sha: "hashlib._Hash") -> bytes:
    return _SEAL + sha.hexdigest().encode()


def write_atomically(path: Path, *content: bytes | memoryview | str) -> Path:
    """Write bytes or UTF-8 text atomically: `path` has the old or the new content, never a part; return `path`.

    Raises:
        OSError: The file cannot be written; the error names `path`.
    """
    partial = temporary(path)
    try:
        with partial.open("wb") as file:
            for part in content:
                file.write(part.encode() if isinstance(part, str) else part)
        return commit(partial, path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = str(path)
        raise


def is_full(error: BaseException) -> bool:
    """Return True if an error means that the disk or the user's quota is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def temporary(path: Path) -> Path:
    """Return the temporary path that this process writes to before `commit` renames it to `path`."""
    return path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.tmp")


def commit(partial: Path, path: Path) -> Path:
    """Flush a finished file to disk and rename it to `path`; return `path`.

    If this fails, `partial` is deleted and `path` is unchanged.
    """
    try:
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files in a folder whose processes, on this host, no longer run."""
    for path in folder.glob(f".*.{platform.node()}.*.tmp"):
        process = path.name.split(".")[-2]
        # Other names are not those of temporary files.
        if process.isdecimal() and int(process) != os.getpid() and not _alive(int(process)):
            path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
