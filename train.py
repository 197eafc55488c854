"""Run an experiment: `python train.py {fit,validate,test,predict} --config configs/….yaml`."""

import os
import sys
from shutil import get_terminal_size

import processes.threads  # noqa: F401 # before torch
from processes import preemption
from processes.overview import overview

if __name__ == "__main__":
    preemption.install()  # torch takes seconds to load
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(overview(get_terminal_size().columns), end="")
        sys.exit()
    if sys.argv[1:] == ["--check"]:  # what libraries print is no answer
        answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

# isort: split
import json
from functools import partial

import analysis  # noqa: F401 # LightningCLI finds by its short name whatever is imported
import datamodules  # noqa: F401
import fidelity  # noqa: F401
import heads  # noqa: F401
import interventions  # noqa: F401
import models  # noqa: F401
import probes  # noqa: F401
from reports.writer import ResultWriter
from training import cli

main = partial(cli.main, ResultWriter)
run = partial(cli.run, ResultWriter)

if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:  # command lines as JSON; a sweep asks for their faults
        for fault in cli.check_all(json.load(sys.stdin)):
            print(json.dumps(fault), file=answers, flush=True)
        sys.exit()
    code = run()
    preemption.ignore()
    sys.exit(code)
