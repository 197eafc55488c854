"""Notes and warnings of a run, and its progress where no bar is shown: in a pipe, a file or a notebook.

Only the first process of a run says something.
"""

import logging
import math
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TextIO

from lightning_utilities.core.rank_zero import rank_zero_only
from rich.console import Console

from attention_probing.results.settings import PACKAGE

FIRST = 10.0  # seconds before the first line
EVERY = 30.0  # seconds between two lines
FAULT_SECONDS = 10.0
"""Seconds within which all processes of a run find the same fault, and end with the first of them."""

_notes = logging.getLogger(f"{PACKAGE}.notes")
_log = logging.getLogger(f"{PACKAGE}.progress")


def wrap(message: str) -> str:
    """Return a message in lines as wide as the terminal, as answers are printed; in a pipe 80 characters or $COLUMNS.

    A longer word, such as a path, stays whole, and so does a command, which is a line behind four blanks.
    """
    width = Console(stderr=True).width
    lines = []
    for line in message.splitlines():
        if not line.startswith("    "):
            line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        lines.append(line)
    return "\n".join(lines)


class _Terminal(logging.StreamHandler[TextIO]):
    """Handler that prints to standard error, unless the program of a user has handlers of its own."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override] # as it is now, which a notebook or a test replaces
        return sys.stderr

    def format(self, record: logging.LogRecord) -> str:
        message = super().format(record)
        if record.levelno == logging.WARNING:
            message = f"Warning: {message}"
        return wrap(message)

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def _rank() -> int:
    """Return the rank of this process by the variables that Lightning reads, in its order."""
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"):
        if name in os.environ:
            return int(os.environ[name])
    return 0


if not hasattr(rank_zero_only, "rank"):  # Lightning, which sets it, is imported only where something is trained
    rank_zero_only.rank = _rank()  # type: ignore[attr-defined]
logging.getLogger(PACKAGE).addHandler(_Terminal())
logging.getLogger(PACKAGE).setLevel(logging.INFO)


def is_first() -> bool:
    """Return True in the first process of a run."""
    return bool(rank_zero_only.rank == 0)  # type: ignore[attr-defined]


def wait_for_the_first() -> None:
    """Let a rank other than 0 wait, so that rank 0 alone prints a fault of all, and ends this process meanwhile."""
    if not is_first():
        time.sleep(FAULT_SECONDS)


@rank_zero_only
def inform(message: str) -> None:
    """Log a note in the first process of a run."""
    _notes.info(message)


@rank_zero_only
def warn(message: str) -> None:
    """Log a warning in the first process of a run."""
    logging.getLogger(__name__).warning(message)


@contextmanager
def quiet(*, progress: bool = False) -> Iterator[None]:
    """Within the block, silence the notes of this program and of Lightning; warnings are still said.

    Args:
        progress: True to silence progress, too.
    """
    names = ("pytorch_lightning.utilities.rank_zero", _notes.name)
    if progress:
        names = ("pytorch_lightning", PACKAGE)
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


class Progress:
    """Progress of a computation: logs the finished fraction and the estimated time left, every 30 s.

    The first line comes after 10 s. If the total is unknown or only an upper bound, each line says why.

    Args:
        name: Name of the computation, with the unit of its amounts, such as `Training, batches`.
        total: Sum of all amounts that will be given to `advance`, or an upper bound of it; infinite if unknown.
        why: Reason that `total` is an upper bound or infinite, such as `early stopping may end it before`.

    Raises:
        ValueError: The total is infinite, without a reason.
    """

    def __init__(self, name: str, total: float, why: str = "") -> None:
        self.begin(name, total, why)

    def begin(self, name: str, total: float, why: str = "") -> None:
        """Start anew with another computation; arguments as of the class."""
        if math.isinf(total) and not why:
            raise ValueError(f"{name}: a computation without a total needs a reason for it.")
        self._name = name
        self._total = total
        self._why = why
        self._done = 0.0
        self._began = time.monotonic()
        self._next = self._began + FIRST

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        """Add an amount of finished work, and log a line if it is due.

        Args:
            amount: Finished work since the last call.
            note: End of the line.
        """
        self._done += amount
        now = time.monotonic()
        if now < self._next or self._done >= self._total * (1 - 1e-9):  # a sum of shares of a batch is not exact
            return
        self._next = now + EVERY
        passed = now - self._began
        rate = self._done / passed
        speed = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
        end = f"; {note}" if note else ""
        _log_line(f"{self._name}: {self._amount()} in {_clock(passed)}, {speed} a second, {self._rest(passed)}{end}.")

    def _amount(self) -> str:
        """Return the finished amount, with its share of a known total."""
        if math.isinf(self._total):
            return f"{self._done:,.0f}"
        most = "at most " if self._why else ""
        return f"{self._done:,.0f} of {most}{self._total:,.0f} ({self._done / self._total:.0%})"

    def _rest(self, passed: float) -> str:
        """Return the time left, given the seconds so far; or the reason that it is not known."""
        if math.isinf(self._total):
            return f"time left unknown: {self._why}"
        rest = _clock(passed * (self._total / self._done - 1))
        if self._why:
            return f"at most {rest} to go: {self._why}"
        return f"about {rest} to go"


def is_logged() -> bool:
    """Return True if this process logs progress: it is the first of the run, which is not quiet."""
    return is_first() and _log.isEnabledFor(logging.INFO)


@rank_zero_only
def _log_line(line: str) -> None:
    _log.info(line)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
