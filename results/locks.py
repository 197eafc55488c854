"""Work that several processes share, of one run or of several: each takes what no other holds."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

POLL = 0.5
"""Seconds between two looks at work that another process holds."""


def try_lock(path: Path) -> FileLock | None:
    """Lock a file until the lock is released or this process ends, however it ends; None if it is locked already.

    Raises:
        OSError: The file cannot be created.
    """
    lock = FileLock(path, thread_local=False)  # one thread takes a shard, another one finishes it
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    return lock


def release(lock: FileLock) -> None:
    """Release a lock and remove its file; a process that waits for the lock makes a new file."""
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()


def claim_missing(files: Mapping[Path, Callable[[], bool]]) -> Iterator[tuple[Path, FileLock]]:
    """Yield each file that is not made yet and that no other process is making, with its lock.

    Args:
        files: For each file, a function that returns True once it is made.
    """
    for path, is_made in files.items():
        lock = try_lock(path.with_name(f".{path.name}.lock"))
        if lock is None:
            continue
        if is_made():  # by another process, since the list was made
            release(lock)
        else:
            yield path, lock


def make_together(makers: Mapping[Path, Callable[[], object]]) -> None:
    """Make files, each by one process of all that call this function, and return when all exist.

    Args:
        makers: For each file, a function that makes it.
    """
    while missing := [path for path in makers if not path.exists()]:
        idle = True
        for path, lock in claim_missing({path: path.exists for path in missing}):
            try:
                makers[path]()
            finally:
                release(lock)
            idle = False
        if idle:
            time.sleep(POLL)
