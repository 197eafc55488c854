"""Processes of one run: their ranks, waiting for each other's files, and the lock of a folder."""

import fcntl
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TypeVar

from processes import preemption

_POLL_SECONDS = 0.5  # longest pause between two polls; the first ones are shorter
_TOUCH_SECONDS = 5.0

Found = TypeVar("Found")


class LostRank(Exception):
    """Error if another process of the run has ended or does not answer.

    Attributes:
        rank: Rank of the other process; None if unknown.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


@dataclass(frozen=True)
class Ranks:
    """Rank of this process in its run, with methods to wait for the other processes.

    Ranks wait for each other's files: a collective barrier would time out while another rank works for hours. Each
    working rank regularly touches a file, and counts as lost if it has not done so for `patience` seconds.

    Attributes:
        rank: Rank of this process, from 0.
        world: Number of processes.
        patience: Seconds without a sign of life after which another rank is lost.
    """

    rank: int = 0
    world: int = 1
    patience: float = 120.0

    @contextmanager
    def alive(self, folder: Path) -> Iterator[None]:
        """Show the other ranks, during a `with` block, that this rank is alive.

        A thread touches this rank's file in the folder regularly. The file is removed at the end.
        With only one rank, nothing is done.

        Args:
            folder: Folder that all ranks share.
        """
        if self.world == 1:
            yield
            return
        sign, ended = _sign(folder, self.rank), Event()

        def touch() -> None:
            while not ended.wait(min(_TOUCH_SECONDS, self.patience / 4)):
                try:
                    sign.touch()
                except FileNotFoundError:  # the run has ended and its folder is removed
                    return

        sign.touch()
        thread = Thread(target=touch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            # Remove old files of other runs, whose ranks were killed; a living rank makes its file again. Keep those of
            # this run: by them the remaining ranks know which rank froze.
            last = preemption.touched(sign) or 0
            for old in folder.glob(".alive-*"):
                is_of_another = old.name.rpartition("-")[0] != sign.name.rpartition("-")[0]
                if is_of_another and last - (preemption.touched(old) or last) > 2e9 * _TOUCH_SECONDS:
                    old.unlink(missing_ok=True)
            sign.unlink(missing_ok=True)

    def wait_for(self, found: Callable[[], Found | None], owner: int, file: Path, stop: bool = True) -> Found:
        """Wait for a result of another rank, and return it.

        Args:
            found: Function that returns the result, or None if it is not there yet.
            owner: Rank that makes the result. Meanwhile it must give signs of life in the folder of
                `file`, by `with alive(folder)`.
            file: File that holds the result; it is named in the error message.
            stop: True to raise `Interrupted` after a signal; False to pass the signal on to the other
                ranks and go on waiting.

        Raises:
            LostRank: The owner has given no sign of life for `patience` seconds.
            Interrupted: A signal has come, and `stop` is True.
        """
        seen, since, pause = None, time.monotonic(), 0.01
        while (one := found()) is None:
            life = preemption.touched(_sign(file.parent, owner))
            if life != seen:
                seen, since = life, time.monotonic()
            elif time.monotonic() - since > self.patience:
                raise LostRank(
                    f"{file.parent}: rank {owner}, which was to write {file.name}, has given no sign of life for "
                    f"{self.patience:.0f} s (--data.init_args.rank_timeout). Look at its output; a new run reuses "
                    f"all finished work.",
                    owner,
                )
            if stop:
                preemption.check()
            else:
                preemption.tell()
            time.sleep(pause)
            pause = min(1.5 * pause, _POLL_SECONDS)
        return one

    def frozen(self, folder: Path) -> list[int]:
        """Return the other ranks that are frozen: their file exists, but is no longer touched.

        A rank that has ended has removed its file, and is not returned.

        Call this method after a collective has waited `patience` seconds. A rank counts as frozen if its
        file has not been touched for 0.7 × `patience` seconds. If no file is that old yet, the method waits
        for this, at most 0.7 × `patience` seconds: a rank may have frozen late in the collective.

        Args:
            folder: The folder given to `alive`.
        """
        signs = {rank: _sign(folder, rank) for rank in range(self.world) if rank != self.rank}
        enough = 0.7 * self.patience  # more than a file system may take to show a touched file
        end = time.monotonic() + enough
        while True:
            now = preemption.touched(_sign(folder, self.rank))
            ages = {rank: (now or 0) - (preemption.touched(sign) or now or 0) for rank, sign in signs.items()}
            found = [rank for rank, age in ages.items() if age > 1e9 * enough]
            if found or now is None or time.monotonic() > end:
                return found
            time.sleep(_POLL_SECONDS)

    def come(self, place: Path) -> None:
        """Create the file `<place>-<rank>`, which tells the other ranks that this rank has reached a point.

        Args:
            place: Path that stands for this point of the program.
        """
        if self.world > 1:
            _at(place, self.rank).touch()

    def leave(self, place: Path) -> None:
        """Remove the file that `come` created; call it when no other rank looks for the file any more.

        Args:
            place: The path given to `come`.
        """
        if self.world > 1:
            _at(place, self.rank).unlink(missing_ok=True)

    def meet(self, place: Path, left: Path) -> bool:
        """Wait until every rank has reached a common point of the program or has stopped before it.

        All ranks get the same answer, so either all or none start a collective that follows. A signal
        does not stop a rank that waits here.

        Args:
            place: Path that stands for the common point; `meet` itself calls `come(place)` for this
                rank.
            left: Path that stands for having stopped; a rank that stops calls `come(left)`.

        Returns:
            True if all ranks have reached the point; False if one has stopped before it.

        Raises:
            LostRank: Another rank has not touched its file for `patience` seconds.
        """

        def answer(rank: int) -> bool | None:
            return True if _at(place, rank).exists() else False if _at(left, rank).exists() else None

        self.come(place)
        others = [rank for rank in range(self.world) if rank != self.rank]
        return all([self.wait_for(partial(answer, rank), rank, _at(place, rank), stop=False) for rank in others])


def run_seed(seed: int | None) -> int:
    """Return the seed to use: `seed` if given, else the seed of the run set by `seed_everything`, else 0."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed


def run_name() -> str:
    """Return a name that all processes of this run share, and no other run has at the same time."""
    if job := os.environ.get("SLURM_JOB_ID"):
        return f"{job}.{os.environ.get('SLURM_STEP_ID', '')}"
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun starts all processes, so that none can pass a name to the others
        return f"{os.environ['MASTER_ADDR']}-{os.environ['MASTER_PORT']}"
    return os.environ.get("PROBING_RUN", "")


def _at(place: Path, rank: int) -> Path:
    return place.with_name(f"{place.name}-{rank}")


def _sign(folder: Path, rank: int) -> Path:
    return folder / f".alive-{run_name()}-{rank}"


def acquire_lock(path: Path) -> int | None:
    """Lock a file, write the owner into it, and return its descriptor; None if it is locked already.

    The lock is held until every process that has the descriptor closes it or ends. Some file systems
    have no locks. There the lock is held as long as its owner runs, which is the SLURM job or the
    process named in the file. A process of another machine is assumed to run.

    Raises:
        OSError: The file cannot be created.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = True
    except BlockingIOError:
        free = False
    except OSError:
        free = not _goes_on(os.pread(lock, 1000, 0).decode())
    if not free:
        os.close(lock)
        return None
    os.ftruncate(lock, 0)
    os.pwrite(lock, lock_owner().encode(), 0)
    return lock


def lock_owner() -> str:
    """Return the name by which this process signs its locks: its SLURM job, or its host and process id.

    A run that a sweep has started signs with the name of the job that started it. A requeued SLURM job
    keeps its id, and therefore its locks.
    """
    job = os.environ.get("SLURM_JOB_ID")
    return os.environ.get("PROBING_OWNER") or (f"SLURM {job}" if job else f"{platform.node()} {os.getpid()}")


def _goes_on(other: str) -> bool:
    where, _, number = other.rpartition(" ")
    if other in ("", lock_owner()):
        return False
    if where == "SLURM":
        jobs = subprocess.run(["squeue", "--noheader", "--format=%A"], capture_output=True, text=True, check=False)
        return jobs.returncode != 0 or number in jobs.stdout.split()
    return where != platform.node() or Path("/proc", number).exists() or not Path("/proc").exists()
