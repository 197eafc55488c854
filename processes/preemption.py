"""Signals that end a process early: they set a flag, and the program stops where its work can be continued.

SLURM sends SIGTERM before it preempts a job or ends it at its time limit, and SIGUSR1 where `--signal=SIGUSR1@30` asks
for it. submitit sends SIGUSR2. Ctrl-C at a terminal is SIGINT. A handler that saved at once would do so in the middle
of a batch, and on every rank somewhere else. Imported before torch, so that no signal is missed while that loads.
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
"""Seconds between two Ctrl-C that are two: one may arrive more than once."""


class Interrupted(BaseException):
    """The program stops because of a signal. No error: like KeyboardInterrupt it passes `except Exception`.

    Attributes:
        signal: which one.
    """

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"interrupted by {self.signal.name}")


@dataclass
class _Process:
    """State of this process; see the functions below."""

    received: signal.Signals | None = None
    at: float = 0.0
    marker: Path | None = None
    stale: int | None = None
    pass_on: Callable[[signal.Signals], object] | None = None


_process = _Process()


def install() -> None:
    """Handle the signals in this process from here on, but for those that are ignored (as under `nohup`)."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)


def ignore() -> None:
    """Ignore the signals from here on, where all is done; Python would let one that comes at its end kill it."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _handle(number: int, frame: FrameType | None) -> None:
    if _process.received is not None:
        if number == signal.SIGINT and time.monotonic() - _process.at > _APART:
            raise KeyboardInterrupt
        return
    _process.received, _process.at = signal.Signals(number), time.monotonic()
    told = f"\n{_process.received.name}: stops as soon as the run can be continued. Ctrl-C ends it at once.\n"
    os.write(2, told.encode())  # print is not safe in a handler
    if _process.pass_on is not None and number != signal.SIGINT:  # a terminal sends that to all of them itself
        _process.pass_on(_process.received)


def share(marker: Path | None, pass_on: Callable[[signal.Signals], object] | None) -> None:
    """Stop together with the other processes of a run: a signal may reach one of them alone.

    Args:
        marker: a file that asks all of them to stop; one that is there already was left by an earlier attempt. None for
            a process by itself.
        pass_on: sends a signal to the processes that this one has started; None where there are none.
    """
    _process.marker, _process.pass_on = marker, pass_on
    _process.stale = None if marker is None else touched(marker)


def touched(marker: Path) -> int | None:
    """Return when a file was last touched, in nanoseconds; None if there is none."""
    try:
        return marker.stat().st_mtime_ns
    except OSError:
        return None


def requested() -> signal.Signals | None:
    """Return the signal that asks this process, or another one of its run, to stop; None without one."""
    if _process.received is None and _process.marker is not None:
        at = touched(_process.marker)
        if at is not None and at != _process.stale:
            _process.received = signal.SIGTERM
    return _process.received


def check() -> None:
    """Stop here if a signal asks for it, and let the other processes of the run know.

    Raises:
        Interrupted: it does.
    """
    if requested() is not None:
        stop()


def tell() -> None:
    """Let the other processes of the run know of a signal that has come."""
    if requested() is not None and _process.marker is not None:
        _process.marker.touch()


def stop() -> None:
    """Stop here, and let the other processes of the run know.

    Raises:
        Interrupted: always.
    """
    if _process.marker is not None:
        _process.marker.touch()
    raise Interrupted(_process.received or signal.SIGTERM)


def requeue() -> str | None:
    """Put the SLURM job of this process back into the queue, and say what was done; None outside SLURM.

    A job that is no longer running is left alone: SLURM itself requeues what it preempts, and what the user cancels or
    what has used up its time ends.
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
        return f"SLURM job {job} is {state[1] if state else 'gone'}, and not requeued from here."
    return f"SLURM job {job} {'is requeued' if _scontrol('requeue', job) is not None else 'cannot be requeued'}."


def _scontrol(*arguments: str) -> str | None:
    try:
        done = subprocess.run(("scontrol", *arguments), capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
