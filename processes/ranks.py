"""The processes of one run: which one this is, and how they wait for each other's files."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TypeVar

from processes import preemption

_POLL_SECONDS = 0.5
_TOUCH_SECONDS = 5.0

Found = TypeVar("Found")


class LostRank(Exception):
    """Another process of the run gives no sign of life."""


@dataclass(frozen=True)
class Ranks:
    """This process, number `rank` of `world`; another that gives no sign of life for `patience` seconds is lost.

    They wait for files, because a collective barrier would time out while one of them still has hours to work.
    """

    rank: int = 0
    world: int = 1
    patience: float = 120.0

    @contextmanager
    def alive(self, folder: Path) -> Iterator[None]:
        """Give signs of life to the other ranks: a file of this one is touched while it works."""
        if self.world == 1:
            yield
            return
        sign, ended = _sign(folder, self.rank), Event()

        def touch() -> None:
            while not ended.wait(min(_TOUCH_SECONDS, self.patience / 4)):
                sign.touch()

        sign.touch()
        thread = Thread(target=touch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            sign.unlink(missing_ok=True)

    def wait_for(self, found: Callable[[], Found | None], owner: int, file: Path) -> Found:
        """What another rank makes, once it is there.

        Args:
            found: looks for it.
            owner: who makes it, and gives signs of life in the folder of `file`.
            file: what is waited for, for the message.

        Raises:
            LostRank: the owner gives no sign of life.
            Interrupted: a signal has come.
        """
        seen, since = None, time.monotonic()
        while (one := found()) is None:
            life = preemption.touched(_sign(file.parent, owner))
            if life != seen:
                seen, since = life, time.monotonic()
            elif time.monotonic() - since > self.patience:
                raise LostRank(
                    f"{file.parent}: rank {owner}, which was to write {file.name}, has given no sign of life for "
                    f"{self.patience:.0f} s (--data.init_args.rank_timeout). Look at its output; a new run goes on "
                    f"with what is finished."
                )
            preemption.check()
            time.sleep(_POLL_SECONDS)
        return one


def run_name() -> str:
    """Names this run among those that work at the same time; the same in all its processes."""
    job = os.environ.get("SLURM_JOB_ID")
    return f"{job}.{os.environ.get('SLURM_STEP_ID', '')}" if job else os.environ.get("PROBING_RUN", "")


def _sign(folder: Path, rank: int) -> Path:
    return folder / f".alive-{run_name()}-{rank}"
