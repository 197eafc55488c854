"""Errors that a user reads as one line with a remedy, instead of a traceback."""

import logging
import re
import signal
from pathlib import Path

import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from attention_probing.commands import GOES_ON
from attention_probing.results.errors import UserError, lacks_memory
from attention_probing.results.settings import in_a_line

_LOST = re.compile(
    r"(?i)connection (was )?(closed|reset|refused)|broken pipe|timed out (waiting|initializing)|"
    r"(operation|wait) timeout|remote process exited"
)
"""Messages of gloo, NCCL and their store about a process that has ended or does not answer."""
_OBSERVED = re.compile(r"\[rank: (\d+)\] Child process .* terminated with code (-?\d+)")
"""Message of Lightning before it kills all processes of a run, because one that it started has ended."""


def find_user_error(error: BaseException | None) -> BaseException | None:
    """Return the error to print without a traceback; None for a bug, which keeps its traceback.

    It is the first `UserError` among an exception and its causes. The causes are searched because the command line's
    parser wraps exceptions of constructors. For an error of torch which reports that another process of the run has
    ended or does not answer, it is a new `UserError`; for a lack of memory, too.

    Args:
        error: The exception.
    """
    while error is not None and not isinstance(error, UserError):
        if isinstance(error, ProcessExitedException):
            return UserError(f"{how_rank_ended(error.error_index, error.exit_code)} {GOES_ON}")
        if is_of_another(error):
            detail = _line_of_torch(error)
            return UserError(
                f"Another process of the run has ended or does not answer: look at its output. {GOES_ON} ({detail})"
            )
        if lacks_memory(error):
            line = in_a_line(str(error))
            detail = f" ({line})" if line else ""
            return UserError(f"There is not enough memory. Free some, or give something smaller.{detail}")
        error = error.__cause__  # not __context__: a bug in the handling of a fault gets its traceback
    return error


def _line_of_torch(error: BaseException) -> str:
    """Return the line of an error of torch that says what happened."""
    lines = str(error).strip().splitlines()
    line = lines[0]
    if isinstance(error, ProcessRaisedException):  # with the traceback of the other process
        line = lines[-1]
    return line.partition(" This is typically")[0]  # gloo's advice


def is_of_another(error: BaseException) -> bool:
    """Return True if an error reports that another process of the run has ended or does not answer."""
    if isinstance(error, ProcessExitedException):
        return True
    if isinstance(error, ProcessRaisedException):  # by a process that was spawned
        last_line = str(error).rstrip().rpartition("\n")[2]
        return _LOST.search(last_line) is not None
    if isinstance(error, RuntimeError) and dist.is_initialized():
        return _LOST.search(str(error)) is not None
    return False


def how_rank_ended(rank: int, code: int) -> str:
    """Return a sentence about a process of the run that has ended.

    Args:
        rank: Its rank.
        code: Its exit code; below 0 the number of a signal.
    """
    if code >= 0:
        return f"Rank {rank} of the run ended with exit code {code}."
    names = {number.value: number.name for number in signal.Signals}
    name = names.get(-code, f"signal {-code}")
    if -code == signal.SIGKILL:
        name = f"{name} (often: out of memory)"
    return f"Rank {rank} of the run was ended by {name}."


def reword(record: logging.LogRecord) -> bool:
    """Reword the message of Lightning about a process that has ended; a filter of its logger, which keeps all lines."""
    observed = _OBSERVED.match(record.getMessage())
    if observed:
        rank = int(observed[1])
        code = int(observed[2])
        record.msg = f"Error: {how_rank_ended(rank, code)} {GOES_ON}"
        record.args = None
    return True


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
    path = _CLASS.search(str(error))
    name = path[1] if path else "A class of the settings"
    return f"{name} needs the package {package}, which is not installed. Install it, or leave the class out."


def full_disk(run: Path, error: OSError) -> UserError:
    """Return the UserError for a run that has stopped because the disk is full.

    Args:
        run: Folder of the run.
        error: Error of the operating system.
    """
    written = ""
    if (run / "results.json").exists():
        written = "The scores are written: only figures or the page are missing. "
    return UserError(
        f"{error.filename or run}: {error.strerror}. {written}Free some space, then repeat the command; what it "
        f"has kept lies in {run} and in the cache."
    )


def trainer_fault(error: Exception) -> UserError:
    """Return a UserError for an error of Lightning about an option of the trainer."""
    reason = " ".join(str(error).split()).rstrip(".!")
    return UserError(f"The options of --trainer cannot be used: {reason}.")
