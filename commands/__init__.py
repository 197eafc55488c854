r"""Usage: probing COMMAND [CONFIG] [options].

  fit       train a model, keep the best checkpoint, test it on the test split
  validate  score a checkpoint on the dev split
  test      score a checkpoint on the test split
  predict   write the predictions of a checkpoint for the test split
  measure   measure what attention knows, or test it as an explanation
  sweep     run the rows of a table, on this machine or on SLURM
  compare   compare runs on the same items
  view      write a page of attention between words
  fetch     fetch a public corpus by its name
  export    write a fine-tuned transformer as plain files of transformers

A config is a published experiment; options change parts of it:

  probing fit demo
  probing measure clark2019/heads --encoder gpt2 --corpus 'my-{split}.conllu'
                                             {split} is train, dev or test
  probing measure judge --checkpoints a.ckpt b.ckpt
  probing measure clark2019/heads --dry      predict memory, disk and time
  probing fit --help                         options of every run
  probing fit --data.help DependencyDataModule
                                             options of a class of --data
  probing compare --help                     options of another command
  probing --version                          version, and where it is installed
  probing --configs                          folder of the configs, to copy one

In a checkout, `python train.py` is the same as `probing`.

Documentation: docs/ of github.com/attention-probing/attention-probing

Configs, by folder; give FOLDER/NAME:
"""

import math
import re
import resource
import sys
import textwrap
from argparse import HelpFormatter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, NoReturn

from attention_probing import __version__

HELP = str(__doc__)  # the docstring, so that the commands and what they do stand in one place
COMMANDS = dict(re.findall(r"^  (\w+) +(.+)$", HELP.partition("A config")[0], re.MULTILINE))
RUNS = ("fit", "validate", "test", "predict", "measure")
GOES_ON = "The same command goes on from what is kept."
"""What is said of a run that was ended from outside."""
STARTS_AGAIN = "The same command starts again."
_AFTER_INTERRUPT = {
    "fit": GOES_ON,
    "measure": f"{STARTS_AGAIN} It uses what is kept: stores of attention, trained models.",
}
"""What the same command does after Ctrl-C, as in docs/cluster.md; other commands start again, and an interrupt may have
a message that says otherwise."""
CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def overview(columns: int) -> str:
    """Return the help text of the program: its commands, and its configs by folder.

    Args:
        columns: Width of the terminal.
    """
    names: dict[str, list[str]] = {}
    for path in sorted(CONFIGS.rglob("*.yaml")):
        if re.search("^model:", path.read_text(encoding="utf-8"), re.MULTILINE):
            folder = path.parent.relative_to(CONFIGS).as_posix()
            names.setdefault(folder, []).append(path.stem)
    width = max(map(len, names), default=0)
    lines = [HELP]
    for folder, stems in names.items():
        text = textwrap.fill(
            ", ".join(stems),
            columns,
            initial_indent=f"  {folder:{width}}  ",
            subsequent_indent=" " * (width + 4),
        )
        lines.append(text)
    return "\n".join(lines) + "\n"


def parser_of(name: str) -> Any:  # noqa: ANN401 # jsonargparse takes long to import
    """Return the parser of the command line of a command, an ArgumentParser without options."""
    from jsonargparse import ArgumentParser

    from attention_probing.results.settings import in_a_line

    class CommandParser(ArgumentParser):
        def error(self, message: str, ex: Exception | None = None) -> NoReturn:
            self.print_usage(sys.stderr)
            print(f"Error: {in_a_line(message)}. {self.prog} --help says more.", file=sys.stderr)
            self.exit(2)

    does = COMMANDS[name]
    description = f"{does[0].upper()}{does[1:]}."
    return CommandParser(prog=f"probing {name}", description=description, formatter_class=HelpFormatter)


_LEAST = 1.5e9  # bytes; with less, libraries end in errors of any kind, or wait for ever, while they are imported


def _address_space() -> float:
    """Return the bytes of memory that this process may map; infinite without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return math.inf
    return limit


def main(words: Sequence[str]) -> int:
    """Run a command.

    Args:
        words: Words of the command line.

    Returns:
        The exit code: 2 if there is no such command. Commands other than those of `RUNS` exit by themselves.
    """
    name = words[0] if words else ""
    if name in ("-h", "--help"):
        print(overview(get_terminal_size().columns), end="")
        return 0
    if name == "--version":
        print(f"attention-probing {__version__}, in {Path(__file__).resolve().parents[1]}")
        return 0
    if name == "--configs":
        print(CONFIGS)
        return 0
    if name in RUNS:
        return _run(words)
    if name not in COMMANDS:
        fault = "no command is given"
        if name:
            fault = f"the first word is {name}, which is no command"
        if name == "explain":
            fault += " (a text is explained by probing view --text TEXT --checkpoints a.ckpt)"
        names = " | ".join(COMMANDS)
        print(f"Error: {fault}: write probing {names}, then its options; --help says more", file=sys.stderr)
        return 2
    from attention_probing.results import command

    command.run(import_module(f"{__name__}.{name}").main, words[1:])


def _run(words: Sequence[str]) -> int:
    """Run one of the commands of `RUNS`, and return the exit code."""
    from attention_probing.results import UserError, command
    from attention_probing.results.errors import command_line
    from attention_probing.results.progress import is_first, wait_for_the_first

    memory = _address_space()
    if memory < _LEAST:
        fault = f"`ulimit -v` allows {memory / 1e9:.1f} GB of memory, but PyTorch alone needs 1.5 GB"
        print(f"Error: {fault}: there is not enough memory. Raise the limit.", file=sys.stderr)
        return 1
    try:
        with command_line():  # reports a wrong name or option before the imports below
            line = import_module(f"{__name__}.command_line").CommandLine.from_words(words)
        message = import_module(f"{__name__}.spelling").wrong_option(line)
        if message is not None:
            wait_for_the_first()
            print(f"Error: {message}", file=sys.stderr)
            return 2
        with command.plain_warnings():
            return int(import_module(f"{__name__}.launch").run(line))
    except UserError as error:
        wait_for_the_first()
        command.print_fault(error)
        return 1
    except (KeyboardInterrupt, SystemExit) as end:
        # Lightning's trainer turns a KeyboardInterrupt into an exit with code 1.
        is_interrupt = isinstance(end, KeyboardInterrupt) or isinstance(end.__context__, KeyboardInterrupt)
        if not is_interrupt:
            raise
        if is_first():
            advice = _AFTER_INTERRUPT.get(words[0], STARTS_AGAIN)
            if isinstance(end, KeyboardInterrupt):
                advice = str(end) or advice
            print(f"Interrupted. {advice}", file=sys.stderr)
        return 130
