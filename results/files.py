"""Atomic writes, safe after a power cut: a file appears whole or not at all."""

import os
import platform
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> Path:
    """Write bytes or UTF-8 text so that `path` holds either all of it or what it held before; return `path`."""
    partial = temporary(path)
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return commit(partial, path)


def temporary(path: Path) -> Path:
    """Temporary path from which this process moves its content to `path`."""
    return path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.tmp")


def commit(partial: Path, path: Path) -> Path:
    """Move a finished file to its place once its content is on the disk; return `path`.

    Where it cannot be written, `partial` is deleted and `path` unchanged.
    """
    try:
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of writers on this host that no longer live."""
    for path in folder.glob(f".*.{platform.node()}.*.tmp"):
        process = int(path.name.split(".")[-2])
        if process != os.getpid() and not _alive(process):
            path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
