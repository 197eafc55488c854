"""One process at a time at a folder, on file systems with locks and without."""

import fcntl
import os
import platform
import subprocess
from pathlib import Path


def acquire(path: Path) -> int | None:
    """Lock a file, in which the owner is named; None while another process has it.

    It is held until the descriptor that is returned is closed in every process that has it, or they all have ended. On
    a file system without locks it is held as long as the owner that is named goes on: a process of this machine, or a
    job of SLURM; one on another machine is believed to.

    Raises:
        OSError: there can be no such file.
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
    os.pwrite(lock, owner().encode(), 0)
    return lock


def owner() -> str:
    """Return the owner of this process's locks: its SLURM job, which keeps its name when requeued, or itself."""
    job = os.environ.get("SLURM_JOB_ID")
    return os.environ.get("PROBING_OWNER") or (f"SLURM {job}" if job else f"{platform.node()} {os.getpid()}")


def _goes_on(other: str) -> bool:
    where, _, number = other.rpartition(" ")
    if other in ("", owner()):
        return False
    if where == "SLURM":
        jobs = subprocess.run(["squeue", "--noheader", "--format=%A"], capture_output=True, text=True, check=False)
        return jobs.returncode != 0 or number in jobs.stdout.split()
    return where != platform.node() or Path("/proc", number).exists() or not Path("/proc").exists()
