r"""Usage: python train.py COMMAND [options].

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

  python train.py fit --config demo
  python train.py measure --config clark2019/heads --encoder gpt2 \
      --corpus 'my-{split}.conllu'           {split} is train, dev or test
  python train.py measure --config judge --checkpoints a.ckpt b.ckpt
  python train.py fit --help                 options of every run
  python train.py fit --data.help DependencyDataModule
                                             options of a class of --data
  python train.py compare --help             options of another command

Documentation: docs/index.md. Configs, by folder; --config FOLDER/NAME:
"""

import math
import os
import re
import resource
import sys
import textwrap
from argparse import HelpFormatter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

HELP = str(__doc__)  # the docstring, so that the commands and what they do stand in one place
COMMANDS = dict(re.findall(r"^  (\w+) +(.+)$", HELP.partition("A config")[0], re.MULTILINE))
RUNS = ("fit", "validate", "test", "predict", "measure")
GOES_ON = "The same command goes on from what is kept."
"""What is said of a run that was ended from outside."""
CONFIGS = Path(__file__).parents[1] / "configs"


def overview(columns: int) -> str:
    """Return the help text of train.py: its commands, and its configs by folder.

    Args:
        columns: Width of the terminal.
    """
    names: dict[str, list[str]] = {}
    for path in sorted(CONFIGS.rglob("*.yaml")):
        if re.search("^model:", path.read_text(encoding="utf-8"), re.MULTILINE):
            names.setdefault(path.parent.relative_to(CONFIGS).as_posix(), []).append(path.stem)
    width = max(map(len, names), default=0)
    lines, indent = [HELP], " " * (width + 4)
    for folder, stems in names.items():
        start = f"  {folder:{width}}  "
        lines.append(textwrap.fill(", ".join(stems), columns, initial_indent=start, subsequent_indent=indent))
    return "\n".join([*lines, ""])


def parser_of(name: str) -> Any:  # noqa: ANN401 # jsonargparse takes long to import
    """Return the parser of the command line of a command, an ArgumentParser without options."""
    from jsonargparse import ArgumentParser

    prog, does = f"python train.py {name}", f"{COMMANDS[name]}."
    return ArgumentParser(prog=prog, description=does[0].upper() + does[1:], formatter_class=HelpFormatter)


_LEAST = 1.5e9  # bytes; with less, libraries end in errors of any kind, or wait for ever, while they are imported


def _address_space() -> float:
    """Return the bytes of memory that this process may map; infinite without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return math.inf if limit == resource.RLIM_INFINITY else limit


def main(words: Sequence[str]) -> int:
    """Run a command of train.py.

    Args:
        words: Words of the command line.

    Returns:
        The exit code: 2 if there is no such command. Commands other than those of `RUNS` exit by themselves.
    """
    name = words[0] if words else ""
    if name in ("-h", "--help"):
        print(overview(get_terminal_size().columns), end="")
        return 0
    from results import UserError, command
    from results.errors import command_line

    if name in RUNS:
        if _address_space() < _LEAST:
            fault = f"`ulimit -v` allows {_address_space() / 1e9:.1f} GB of memory, but PyTorch alone needs 1.5 GB"
            print(f"Error: {fault}: there is not enough memory. Raise the limit.", file=sys.stderr)
            return 1
        try:
            with command_line():  # reports a wrong name before the imports below
                import_module("commands.shorthand").expanded(words)
            # Lightning starts other processes with sys.argv, and warns of words that are given beside it.
            return int(import_module("commands.lightning").run(None if words == sys.argv[1:] else list(words)))
        except UserError as error:
            command.print_fault(error)
            return 1
        except (KeyboardInterrupt, SystemExit) as end:
            # Lightning's trainer turns a KeyboardInterrupt into an exit with code 1.
            if not isinstance(end, KeyboardInterrupt) and not isinstance(end.__context__, KeyboardInterrupt):
                raise
            if (os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_PROCID") or "0") == "0":
                print(f"Interrupted. {GOES_ON}", file=sys.stderr)
            return 130
    if name not in COMMANDS:
        fault = f"the first word is {name}, which is no command" if name else "no command is given"
        names = " | ".join(COMMANDS)
        print(f"error: {fault}: write python train.py {names}, then its options; --help says more", file=sys.stderr)
        return 2
    command.run(import_module(f"commands.{name}").main, words[1:])
