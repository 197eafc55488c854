"""Extraction of each quantity against bare forward passes; peaks of memory.

`python -m benchmarks.quantities [--json FILE]`
"""

from pathlib import Path
from typing import get_args

from attention import Encoder, EncoderSpec, Options, resolve
from attention.quantities import QuantityName
from benchmarks.extraction import BareForward, TimedExtraction, memory
from benchmarks.harness import Report, Settings, Treebanks, alternate, command, timed

# The first keeps most on disk, the second makes the largest tensors.
HEAVY: tuple[QuantityName, ...] = ("norms", "alti")
WANTED = {"norms": "≤ 1.3", "effective": "≤ 1.3", "rollout": "≤ 1.15", "norms_residual": "≤ 2.0"}


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """Extraction of each quantity against bare forward passes; peaks of memory."""
    treebanks = Treebanks.choose(settings, folder, report, "its dev split, all layers and heads")
    encoder = Encoder(resolve(EncoderSpec()))
    names = [name for name in get_args(QuantityName) if name != "value_zeroing"]
    jobs = {name: TimedExtraction(treebanks.dev, encoder, folder, Options(quantity=name)) for name in names}
    items = jobs["attention"].items()
    bare = BareForward(encoder, items)
    seconds = alternate(settings.rounds, bare=timed(bare), **{name: timed(job) for name, job in jobs.items()})
    report.figure("sentences", len(items), "extracted")
    report.seconds("bare_forward_s", seconds["bare"], "sdpa forward passes over the same batches, one after the other")
    for name in names:
        meaning = "extraction to disk ÷ the bare forward passes"
        report.ratio(name, seconds[name], seconds["bare"], meaning, wanted=WANTED.get(name, ""))
    for quantity in HEAVY if settings.memory else ():
        memory(treebanks, folder, report, quantity)


main = command("quantities", measure)
