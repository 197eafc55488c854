"""Progress of long computations, in the log."""

import logging
import math
import time
from datetime import timedelta

from pytorch_lightning.utilities import rank_zero_only

FIRST, EVERY = 10.0, 30.0  # seconds before the first line, and between two lines

# A child of Lightning's logger, which shows it, but not the one that nested trainings silence.
_log = logging.getLogger("pytorch_lightning.progress")


class Progress:
    """Logs how much of a computation is done and about how long the rest will take, now and then.

    `total` is the sum of the amounts that `advance` will be given, infinite where it is not known.
    """

    def __init__(self, what: str, total: float) -> None:
        self._what, self._total, self._done = what, total, 0.0
        self._began = time.monotonic()
        self._next = self._began + FIRST

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        """Add to what is done, and log a line when it is time, with a note at its end."""
        self._done += amount
        now = time.monotonic()
        if now < self._next or self._done >= self._total:
            return
        self._next, passed = now + EVERY, now - self._began
        known = f" of {self._total:,.0f} ({self._done / self._total:.0%})" if math.isfinite(self._total) else ""
        left = f", about {_clock(passed * (self._total / self._done - 1))} to go" if known else ""
        rate = f"{self._done / passed:.3g} a second"
        _log_line(f"{self._what}: {self._done:,.0f}{known} in {_clock(passed)}, {rate}{left}{note and f'; {note}'}.")


def is_logged() -> bool:
    """Return whether progress is logged; a quiet run logs none."""
    return _log.isEnabledFor(logging.INFO)


@rank_zero_only
def _log_line(line: str) -> None:
    _log.info(line)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
