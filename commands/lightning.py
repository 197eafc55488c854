"""LightningCLI over the classes of all rooms, for fit.py and for Python: `main` and `run` of train.py."""

import commands.threads  # noqa: F401 # before torch

# isort: split
from functools import partial
from importlib import import_module

from results.writer import ResultWriter
from training import cli
from training.parsing import ROOMS

for room in ROOMS:
    import_module(room)  # LightningCLI finds a class by its short name once it is imported

main = partial(cli.main, ResultWriter)
run = partial(cli.run, ResultWriter)
check_all = cli.check_all
