"""Running a command: an error of the user's input becomes one line on standard error, without a traceback."""

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console
from rich.text import Text

from attention_probing.results.errors import UserError, command_line
from attention_probing.results.progress import wrap


def print_fault(fault: BaseException) -> None:
    """Print the message of an exception to standard error; that of an OSError without its number."""
    message = str(fault)
    if isinstance(fault, OSError) and fault.filename is not None and fault.strerror is not None:
        message = f"{fault.filename}: {fault.strerror}."
    Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), message), soft_wrap=True)


def _format_warning(message: Warning | str, *_: object, **__: object) -> str:
    """Return a warning of Python without the place in the program."""
    return wrap(f"Warning: {message}") + "\n"


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Within the block, print warnings of Python as all messages are, without the place in the program."""
    format_of_python = warnings.formatwarning
    warnings.formatwarning = _format_warning
    try:
        yield
    finally:
        warnings.formatwarning = format_of_python


@command_line()
def run(main: Callable[[Sequence[str]], int], args: Sequence[str] | None = None) -> NoReturn:
    """Run a command, and exit with its exit code.

    The exit code is 1, after a message, if the user's input is wrong or a file cannot be read or written, and
    130 after Ctrl-C; SIGTERM and SIGHUP end it in order, with 128 plus the number of the signal.

    Args:
        main: The command, a function from arguments to the exit code.
        args: The arguments; None for those of the program.
    """
    for end in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(end) is not signal.SIG_IGN:  # as under nohup
            signal.signal(end, lambda number, _: sys.exit(128 + number))  # ends the runs of a sweep as well
    try:
        with plain_warnings():
            code = main(sys.argv[1:] if args is None else args)
        sys.stdout.flush()
        sys.exit(code)
    except BrokenPipeError:  # `| head` has read enough; Python must not flush again as it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped.")
        sys.exit(130)
    except (UserError, OSError) as error:
        print_fault(error)
        sys.exit(1)
