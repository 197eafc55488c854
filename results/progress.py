"""Warnings in the log, and progress of long computations where no bar is shown: a pipe, a file, a notebook."""

import logging
import math
import time
from datetime import timedelta
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities import rank_zero_only

from results.errors import spoken

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

    The first line comes after 10 s.

    Args:
        what: Name of the computation, with the unit of its amounts, such as `Training, batches`.
        total: Sum of all amounts that will be given to `advance`; infinite if unknown.
    """

    def __init__(self, what: str, total: float) -> None:
        self._what, self._total, self._done = what, total, 0.0
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
        self._next, passed = now + EVERY, now - self._began
        known = f" of {self._total:,.0f} ({self._done / self._total:.0%})" if math.isfinite(self._total) else ""
        left = f", about {_clock(passed * (self._total / self._done - 1))} to go" if known else ""
        rate = f"{self._done / passed:{',.0f' if self._done >= 100 * passed else '.3g'}} a second"
        _log_line(f"{self._what}: {self._done:,.0f}{known} in {_clock(passed)}, {rate}{left}{note and f'; {note}'}.")


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
        """Start counting the batches of the training, over all remaining epochs if their number is known."""
        most = None if trainer.early_stopping_callbacks else trainer.max_epochs
        epochs = most - trainer.current_epoch if most not in (None, -1) else float("inf")
        self._progress = Progress("Training, batches", epochs * trainer.num_training_batches)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:  # noqa: ANN401
        """Count a finished training batch; if a line is due, log it with the epoch and the latest dev scores."""
        found = {name: value for name, value in trainer.callback_metrics.items() if name.startswith("val_")}
        note = ", ".join(f"{name} {float(value):.4g}" for name, value in found.items())
        epoch = f"epoch {trainer.current_epoch + 1}"
        self._progress.advance(note=f"{epoch}, {note}" if note else epoch)
