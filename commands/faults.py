"""Errors that a user reads as one line with a remedy, instead of a traceback."""

import re
import time
from pathlib import Path

import torch.distributed as dist
from pytorch_lightning.utilities import rank_zero_only
from torch.multiprocessing.spawn import ProcessRaisedException

from results.errors import UserError, lacks_memory
from results.settings import in_a_line

TOGETHER = 10.0
"""Seconds within which all processes of a run find the same fault, and end with the first of them."""

_LOST = re.compile(
    r"(?i)connection (was )?(closed|reset|refused)|broken pipe|timed out (waiting|initializing)|"
    r"(operation|wait) timeout|remote process exited"
)
"""Messages of gloo, NCCL and their store about a process that has ended or does not answer."""


def fault(error: BaseException | None) -> BaseException | None:
    """Return the error to print without a traceback; None for a bug, which keeps its traceback.

    It is the first `UserError` among an exception and its causes. The causes are searched because the command line's
    parser wraps exceptions of constructors. For an error of torch which reports that another process of the run has
    ended or does not answer, or of a lack of memory, it is a new `UserError`.

    Args:
        error: The exception.
    """
    while error is not None and not isinstance(error, UserError):
        if is_of_another(error):
            lines = str(error).strip().splitlines()
            said = lines[-1 if isinstance(error, ProcessRaisedException) else 0]  # the last line of the traceback
            return UserError(
                f"Another process of the run has ended or does not answer: look at its output. Give the same "
                f"command again. ({said})"
            )
        if lacks_memory(error):
            return UserError(
                f"There is not enough memory. Free some, or give something smaller. ({in_a_line(str(error))})"
            )
        error = error.__cause__  # not __context__: a bug in the handling of a fault gets its traceback
    return error


def is_of_another(error: BaseException) -> bool:
    """Return True if an error reports that another process of the run has ended or does not answer."""
    if isinstance(error, ProcessRaisedException):  # by a process that was spawned; the last line is the error
        return _LOST.search(str(error).rstrip().rpartition("\n")[2]) is not None
    return isinstance(error, RuntimeError) and dist.is_initialized() and _LOST.search(str(error)) is not None


def wait_for_the_first() -> None:
    """Let a rank other than 0 wait, so that rank 0 alone prints a fault of all, and ends this process meanwhile."""
    if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
        time.sleep(TOGETHER)


_ABSENT = re.compile(r"Requirement '([^']+)' not met|No module named '([\w.]+)'")
_CLASS = re.compile(r"class_path '([\w.]+)'")


def not_installed(error: Exception) -> str | None:
    """Return the message for an error that a class raises because a package is missing; None for any other error.

    Args:
        error: Error of the parser that makes the object.
    """
    absent = _ABSENT.search(str(error))
    if absent is None:
        return None
    package = absent[1] or absent[2]
    kind = _CLASS.search(str(error))
    named = kind[1] if kind else "A class of the settings"
    return f"{named} needs the package {package}, which is not installed. Install it, or leave the class out."


def full_disk(run: Path, error: OSError) -> UserError:
    """Return the UserError for a run that has stopped because the disk is full.

    Args:
        run: Folder of the run.
        error: Error of the operating system.
    """
    scored = (run / "results.json").exists()
    written = "The scores are written: only figures or the page are missing. " if scored else ""
    return UserError(
        f"{error.filename or run}: {error.strerror}. {written}Free some space, then repeat the command; what it "
        f"has kept lies in {run} and in the cache."
    )


def trainer_fault(error: Exception) -> UserError:
    """Return a UserError for an error of Lightning about an option of the trainer."""
    said = " ".join(str(error).split()).rstrip(".!")
    return UserError(f"The options of --trainer cannot be used: {said}.")
