"""Run a command: `python train.py COMMAND …`; `python train.py --help` lists the commands."""

import sys

import commands

if __name__ == "__main__":
    sys.exit(commands.main(sys.argv[1:]))

# isort: split
from commands.lightning import main, run  # noqa: F401 # command lines in Python
