"""Processor time before a command begins its work, in fresh processes: `python -m benchmarks.start [--json FILE]`.

Best of the rounds; give `--rounds 5`.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness import Report, Settings, alternate, command

FIRST_BATCH = """
import os, sys
from attention_probing import commands
from attention_probing.measures import loop
loop._batches = lambda *_: os._exit(0)
commands.main(sys.argv[1:])
"""
"""A program that runs a command line up to the loop over batches."""


def processor_time(words: Sequence[str], folder: Path, code: int = 0) -> Callable[[], float]:
    """Return a function that runs Python with these words, and returns the processor seconds of the process.

    Args:
        words: Words after `python`.
        folder: Working folder, with the stores.
        code: Exit code that the process must have.
    """

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        environment = {**os.environ, "PROBING_CACHE": str(folder / "stores"), "OMP_NUM_THREADS": "1"}
        ended = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, check=False)
        if ended.returncode != code:
            raise RuntimeError(ended.stderr.decode())
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return seconds


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """Processor time before a command begins its work, and of what it imports."""
    probing = ["-m", "attention_probing"]
    words = ["measure", "clark2019/heads", "--corpus", "sample"]
    processor_time(["-c", FIRST_BATCH, *words], folder)()  # extracts the attention
    seconds = alternate(
        settings.rounds,
        torch=processor_time(["-c", "import torch"], folder),
        lightning=processor_time(["-c", "import pytorch_lightning"], folder),
        package=processor_time(["-c", "import attention_probing"], folder),
        help=processor_time([*probing, "--help"], folder),
        wrong=processor_time([*probing, *words, "--model.mod", "paper"], folder, code=2),
        first=processor_time(["-c", FIRST_BATCH, *words], folder),
    )
    report.figure("corpus", "sample", "its attention is stored")
    report.ratio("to_torch", seconds["first"], seconds["torch"], "measure before its first batch ÷ import torch")
    meaning = "measure before its first batch ÷ import pytorch_lightning, which it does not import"
    report.ratio("to_lightning", seconds["first"], seconds["lightning"], meaning, wanted="< 1")
    report.seconds("import_s", seconds["package"], "import attention_probing", wanted="≤ 0.3")
    report.seconds("help_s", seconds["help"], "probing --help")
    report.seconds("wrong_option_s", seconds["wrong"], "a wrong option of a class", wanted="≤ 2")
    report.seconds("measure_s", seconds["first"], "measure on the sample, before its first batch", wanted="≤ 5")
    report.seconds("torch_s", seconds["torch"], "import torch")
    report.seconds("lightning_s", seconds["lightning"], "import pytorch_lightning")


main = command("start", measure)
