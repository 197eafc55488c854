"""The commands that make one run: fit, validate, test, predict and measure.

Lightning is imported for those that use its Trainer; it takes longer than all other imports together.
"""

import io
import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention_probing.commands import measure
from attention_probing.commands.command_line import CommandLine
from attention_probing.commands.faults import find_user_error, reword
from attention_probing.commands.spelling import wrong_option
from attention_probing.commands.trust import import_trusted, trusted_modules
from attention_probing.models.configs import only_known_classes
from attention_probing.results.command import print_fault
from attention_probing.results.errors import command_line
from attention_probing.results.progress import wait_for_the_first

if TYPE_CHECKING:
    from attention_probing.commands.lightning import ProbingCLI


@command_line()
def main(args: Sequence[str] | None = None) -> Any:  # noqa: ANN401
    """Run fit, validate, test, predict or measure.

    Args:
        args: Words of the command line; None for `sys.argv`.

    Returns:
        The `Result` of measure, else the `ProbingCLI` with model, data and trainer.
    """
    return start(CommandLine.from_words(sys.argv[1:] if args is None else args))


@command_line()
def start(
    line: CommandLine,
    *,
    cli: "Callable[..., ProbingCLI] | None" = None,
    measuring: Callable[[CommandLine], object] = measure.run,
) -> Any:  # noqa: ANN401
    """Run a command line.

    Args:
        line: The command line.
        cli: Class of the command line of all but measure, or function that makes it; None for `ProbingCLI`.
        measuring: Function that runs measure.

    Returns:
        What `main` returns.
    """
    with only_known_classes(trusted_modules(line.values)):
        import_trusted(line.values)
        if "--dry" in line.words:
            return import_module("attention_probing.commands.dry").run(line)
        if line.command == "measure":
            return measuring(line)
        lightning = import_module("attention_probing.commands.lightning")
        writer = import_module("attention_probing.commands.writer").ResultWriter
        return (cli or lightning.ProbingCLI)(line, writer)


def run(line: CommandLine) -> int:
    """Run a command line; print a user's error in one line, without a traceback.

    Returns:
        The exit code: 0, or 1 for a user's error.
    """
    try:
        start(line)
    except Exception as error:
        users_error = find_user_error(error)
        if users_error is None:
            raise
        wait_for_the_first()
        print_fault(users_error)
        return 1
    return 0


def check(words: Sequence[str], inspect: measure.Inspect | None = None) -> str | None:
    """Return the message of the first error in a command line, without running it; None if it is valid.

    Args:
        words: Words of the command line.
        inspect: Function that reads the data files; None to check only that they exist.
    """
    printed = io.StringIO()
    cli = None
    if words[:1] != ["measure"]:
        checked = import_module("attention_probing.commands.lightning").CheckedCLI
        cli = partial(checked, inspect=inspect)
    try:
        with redirect_stderr(printed), redirect_stdout(printed), command_line():
            line = CommandLine.from_words(words)
            message = wrong_option(line)
            if message is not None:
                return message
            start(line, cli=cli, measuring=partial(measure.check, inspect=inspect))
    except SystemExit:  # of the command line's parser
        return printed.getvalue().partition("Error: ")[2].strip()
    except Exception as error:
        users_error = find_user_error(error)
        if users_error is None:
            return f"{type(error).__name__}: {error}"
        return str(users_error)
    return None


def _is_no_note_of_lightning(record: logging.LogRecord) -> bool:
    """Return False for a message below warnings of Lightning: of hardware, of files that it reads, of its makers."""
    if record.levelno > logging.INFO:
        return True
    return not {"pytorch_lightning", "lightning_fabric"} & set(Path(record.pathname).parts)


for _message in (
    ".*LeafSpec.*is deprecated",  # Lightning 2.6 uses it on batches; torch 2.13 deprecates it
    "The dirpath has changed",  # a run has a folder of its own, whatever checkpoint it begins with
    "The `srun` command is available",  # on the login node of a cluster, of every run that is meant for it alone
    "The number of training batches .* logging interval",  # the only values that are logged are of whole epochs
    "Checkpoint directory .* exists and is not empty",  # of a run that is continued
    "It is recommended to use .* when logging on epoch level in distributed",  # values are of all devices already
):
    warnings.filterwarnings("ignore", message=_message)
for _name in ("pytorch_lightning.utilities.rank_zero", "lightning_fabric.utilities.seed"):
    logging.getLogger(_name).addFilter(_is_no_note_of_lightning)
logging.getLogger("lightning_fabric.strategies.launchers.subprocess_script").addFilter(reword)
