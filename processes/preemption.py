"""Handling of signals that end a process early: they set a flag, and the program stops where it can continue later.

SLURM sends SIGTERM before it preempts a job or ends it at its time limit, and SIGUSR1 with `--signal=SIGUSR1@30`.
submitit sends SIGUSR2. Ctrl-C sends SIGINT. A handler that saved at once would save within a batch, and at a different
point of the program on each rank. Imported before torch, so that no signal is missed while torch loads.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

_APART = 1.0
"""Seconds between two separate Ctrl-C: one Ctrl-C may arrive more than once."""


class Interrupted(BaseException):
    """Exception that stops the program after a signal.

    It is not an `Exception`, so that `except Exception` does not catch it; `KeyboardInterrupt` is not one either.

    Attributes:
        signal: The signal.
    """

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"interrupted by {self.signal.name}")


@dataclass
class _Process:
    """Signal state of this process."""

    received: signal.Signals | None = None
    at: float = 0.0
    marker: Path | None = None
    stale: int | None = None
    pass_on: Callable[[signal.Signals], object] | None = None


_process = _Process()


def install() -> None:
    """Install a handler for SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 that only records the signal.

    The program then stops at a point where it can be continued; a later Ctrl-C ends it at once. Signals
    that are ignored, as under `nohup`, stay ignored.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)


def ignore() -> None:
    """Ignore all further signals, because a signal during Python's exit must not turn success into failure."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _handle(number: int, frame: FrameType | None) -> None:
    if _process.received is not None:
        if number == signal.SIGINT and time.monotonic() - _process.at > _APART:
            raise KeyboardInterrupt
        return
    _process.received, _process.at = signal.Signals(number), time.monotonic()
    said = f"\n{_process.received.name}: stops as soon as the run can be continued. Ctrl-C ends it at once.\n"
    os.write(2, said.encode())  # print is not safe in a handler
    if _process.pass_on is not None and number != signal.SIGINT:  # a terminal sends SIGINT to all processes itself
        _process.pass_on(_process.received)


def share(marker: Path | None, pass_on: Callable[[signal.Signals], object] | None) -> None:
    """Set up this process to stop with the other processes of a run if a signal reaches any of them.

    Args:
        marker: File that a process touches when it stops, so that the others stop too. A file that
            exists already is from an earlier attempt, and stops no process until it is touched again.
            None for a single process.
        pass_on: Function that sends a signal to the processes started by this one; None without any.
    """
    _process.marker, _process.pass_on = marker, pass_on
    _process.stale = None if marker is None else touched(marker)


def touched(marker: Path) -> int | None:
    """Return the modification time of a file in nanoseconds; None if there is no such file."""
    try:
        return marker.stat().st_mtime_ns
    except OSError:
        return None


def requested() -> signal.Signals | None:
    """Return the signal that asks this process to stop; None if there is none.

    It is the signal that this process has received, or SIGTERM if another process of the run is stopping.
    """
    if _process.received is None and _process.marker is not None:
        at = touched(_process.marker)
        if at is not None and at != _process.stale:
            _process.received = signal.SIGTERM
    return _process.received


def check() -> None:
    """Raise `Interrupted` if a signal has come to any process of the run; then all of them stop.

    Raises:
        Interrupted: A signal has come.
    """
    if requested() is not None:
        stop()


def tell() -> None:
    """Tell the other processes of the run to stop, if a signal has come; do not stop this process."""
    if requested() is not None and _process.marker is not None:
        _process.marker.touch()


def stop() -> None:
    """Raise `Interrupted`, and tell the other processes of the run to stop too.

    Raises:
        Interrupted: Always.
    """
    if _process.marker is not None:
        _process.marker.touch()
    raise Interrupted(_process.received or signal.SIGTERM)


def requeue() -> str | None:
    """Requeue the SLURM job of this process if it is running, and return a message for the log.

    Jobs in other states are not requeued: SLURM itself requeues jobs that it preempts, and cancelled
    jobs and jobs at their time limit are meant to end.

    Returns:
        A message that says whether the job is requeued; None outside SLURM.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    shown = _scontrol("show", "job", job)
    if shown is None:
        return f"SLURM job {job} is not requeued: scontrol does not answer."
    state = re.search(r"JobState=(\w+)", shown)
    if state is None or state[1] != "RUNNING":
        return f"SLURM job {job} is {state[1] if state else 'gone'}, so this program does not requeue it."
    return f"SLURM job {job} {'is requeued' if _scontrol('requeue', job) is not None else 'cannot be requeued'}."


def _scontrol(*arguments: str) -> str | None:
    try:
        done = subprocess.run(("scontrol", *arguments), capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
