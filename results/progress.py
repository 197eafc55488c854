"""Warnings in the log, and progress of long computations where no bar is shown: a pipe, a file, a notebook."""

import logging
import math
import time
from datetime import timedelta
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities import rank_zero_only

from attention_probing.results.errors import spoken

FIRST, EVERY = 10.0, 30.0  # seconds before the first line, and between two lines

# A child of Lightning's logger, which shows it, but not the one that nested trainings silence.
LOGGER = "pytorch_lightning.progress"
"""Name of the logger of progress."""

_log = logging.getLogger(LOGGER)


@rank_zero_only
def warn(message: str) -> None:
    """Log a warning in the first process of a run; the message is `spoken`."""
    logging.getLogger(__name__).warning(spoken(message))


class Progress:
    """Progress of a computation: logs the finished fraction and the estimated time left, every 30 s.

    The first line comes after 10 s. If the total is unknown or only an upper bound, each line says why.

    Args:
        what: Name of the computation, with the unit of its amounts, such as `Training, batches`.
        total: Sum of all amounts that will be given to `advance`, or an upper bound of it; infinite if unknown.
        why: Reason that `total` is an upper bound or infinite, such as `early stopping may end it before`.

    Raises:
        ValueError: The total is infinite, without a reason.
    """

    def __init__(self, what: str, total: float, why: str = "") -> None:
        self.begin(what, total, why)

    def begin(self, what: str, total: float, why: str = "") -> None:
        """Start anew with another computation; arguments as of the class."""
        if math.isinf(total) and not why:
            raise ValueError(f"{what}: a computation without a total needs a reason for it.")
        self._what, self._total, self._why = what, total, why
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
        if now < self._next or self._done >= self._total:
            return
        self._next = now + EVERY
        passed = now - self._began
        rate = f"{self._done / passed:{',.0f' if self._done >= 100 * passed else '.3g'}} a second"
        end = f"; {note}" if note else ""
        _log_line(f"{self._what}: {self._amount()} in {_clock(passed)}, {rate}, {self._left(passed)}{end}.")

    def _amount(self) -> str:
        """Return the finished amount, with its share of a known total."""
        if math.isinf(self._total):
            return f"{self._done:,.0f}"
        most = "at most " if self._why else ""
        return f"{self._done:,.0f} of {most}{self._total:,.0f} ({self._done / self._total:.0%})"

    def _left(self, passed: float) -> str:
        """Return the time left, given the seconds so far; or the reason that it is not known."""
        if math.isinf(self._total):
            return f"time left unknown: {self._why}"
        left = _clock(passed * (self._total / self._done - 1))
        return f"at most {left} to go: {self._why}" if self._why else f"about {left} to go"


def is_logged() -> bool:
    """Return True if this process logs progress: it is the first of the run, which is not quiet."""
    return getattr(rank_zero_only, "rank", 0) == 0 and _log.isEnabledFor(logging.INFO)


@rank_zero_only
def _log_line(line: str) -> None:
    _log.info(line)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class ProgressLines(Callback):
    """Callback that logs the finished batches of a training, their rate, the time left, and the latest dev scores."""

    def __init__(self) -> None:
        self._progress = Progress("", 0)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start counting the batches of the training over all remaining epochs, which early stopping may leave out."""
        total = math.inf
        why = ""
        if math.isinf(trainer.num_training_batches):
            why = "the number of batches is not known before"
        elif trainer.max_epochs in (None, -1):
            why = "the training has no largest number of epochs"
        else:
            total = (trainer.max_epochs - trainer.current_epoch) * trainer.num_training_batches
            if trainer.early_stopping_callbacks:
                why = "early stopping may end it before"
        self._progress.begin("Training, batches", total, why)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:  # noqa: ANN401
        """Count a finished training batch; if a line is due, log it with the epoch and the latest dev scores."""
        found = {name: value for name, value in trainer.callback_metrics.items() if name.startswith("val_")}
        note = ", ".join(f"{name} {float(value):.4g}" for name, value in found.items())
        epoch = f"epoch {trainer.current_epoch + 1}"
        self._progress.advance(note=f"{epoch}, {note}" if note else epoch)
