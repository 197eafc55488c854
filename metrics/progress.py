"""Progress of long computations, in the log."""

import logging
import time
from datetime import timedelta

from pytorch_lightning.utilities import rank_zero_only

EVERY = 10.0  # seconds between two lines, and before the first

# A child of Lightning's logger, which shows it, but not the one that nested trainings silence.
_log = logging.getLogger("pytorch_lightning.progress")


class Progress:
    """Logs how much of a computation is done and about how long the rest will take, at most every `EVERY` seconds.

    `total` is the sum of the amounts that `advance` will be given.
    """

    def __init__(self, what: str, total: float) -> None:
        self._what, self._total, self._done = what, total, 0.0
        self._began = self._logged = time.monotonic()

    def advance(self, amount: float = 1.0) -> None:
        """Add to what is done, and log a line when it is time."""
        self._done += amount
        now = time.monotonic()
        if now - self._logged >= EVERY and self._done < self._total:
            self._logged, passed = now, now - self._began
            left = passed * (self._total / self._done - 1)
            _log_line(f"{self._what}: {self._done / self._total:.0%} in {_clock(passed)}, about {_clock(left)} to go.")


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number before its noun: `1 text`, `1,821 texts`; `many` where the plural is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


@rank_zero_only
def _log_line(line: str) -> None:
    _log.info(line)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
