"""How far a long computation has come, told now and then."""

import logging
import time
from datetime import timedelta

from pytorch_lightning.utilities import rank_zero_only

EVERY = 10.0
"""Seconds between two lines."""

# Under Lightning's, which shows it; and not the one that trainings inside a test keep quiet.
_log = logging.getLogger("pytorch_lightning.progress")


class Progress:
    """Tells how far a computation has come and about how long it will go on: in a terminal and in a log alike.

    A line at most every `EVERY` seconds, the first when as much time has passed: what is done before then is not told.

    Args:
        what: is computed, for people.
        total: of the amounts that `advance` will be given.
    """

    def __init__(self, what: str, total: float) -> None:
        self._what, self._total, self._done = what, total, 0.0
        self._began = self._told = time.monotonic()

    def advance(self, amount: float = 1.0) -> None:
        """So much more is done."""
        self._done += amount
        now = time.monotonic()
        if now - self._told >= EVERY and self._done < self._total:
            self._told, passed = now, now - self._began
            left = passed * (self._total / self._done - 1)
            _tell(f"{self._what}: {self._done / self._total:.0%} in {_clock(passed)}, about {_clock(left)} to go.")


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number before its noun: `1 text`, `1,821 texts`; `many` where the plural is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


@rank_zero_only
def _tell(line: str) -> None:
    _log.info(line)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
