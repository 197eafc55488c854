"""What a second process brings to an extraction, to bare forward passes and to a training, with one thread each.

`python -m benchmarks.devices [--json FILE]`
"""

import multiprocessing
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from pytorch_lightning import LightningModule, Trainer

from attention import Encoder
from attention.encoder import EncoderSpec, resolve
from benchmarks.extraction import BareForward, TimedExtraction
from benchmarks.harness import Report, Settings, Treebanks, alternate, command, timed
from benchmarks.job import datamodule, fit
from benchmarks.probe_training import EpochTimer, random_vectors
from datamodules import DependencyDataModule, VectorSpec
from datamodules.batches import Ranks
from probes import AttentionWordsProbe

Result = TypeVar("Result")


class CommonTimer(EpochTimer):
    """Starts when all processes are about to."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wait for the others, then start the clock."""
        trainer.strategy.barrier()
        super().on_train_epoch_start(trainer, pl_module)


# What a process makes once, before anything is timed.


@cache
def _extraction(corpus: Path, folder: Path) -> TimedExtraction:
    torch.set_num_threads(1)
    return TimedExtraction(corpus, Encoder(resolve(EncoderSpec())), folder)


@cache
def _bare(corpus: Path, folder: Path) -> BareForward:
    extraction = _extraction(corpus, folder)
    return BareForward(extraction.encoder, extraction.items())


@cache
def _data(cache: Path, corpus: Path, vectors: VectorSpec) -> DependencyDataModule:
    data = datamodule(cache, corpus, max_sentences=128, vectors=vectors)
    data.setup("fit")
    return data


# What one rank does.


def load(_: Ranks, corpus: Path, folder: Path) -> None:
    """Load the encoder, and prepare the inputs of the bare forward passes."""
    _bare(corpus, folder)


def extract(ranks: Ranks, corpus: Path, folder: Path, cache: Path) -> bytes:
    """Its part of an extraction, from tokenising until it has the whole store; the manifest, with all checksums."""
    return _extraction(corpus, folder).make(cache).manifest.dump()


def forward(ranks: Ranks, corpus: Path, folder: Path) -> None:
    """Its share of the same forward passes by the model alone: of two ranks every second pass."""
    _bare(corpus, folder)(slice(ranks.rank, None, ranks.world))


def train(ranks: Ranks, cache: Path, corpus: Path, vectors: VectorSpec, port: int) -> float:
    """Seconds of a training epoch of a new probe; two ranks share every batch, through DDP and gloo."""
    os.environ |= {"LOCAL_RANK": str(ranks.rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    timer = CommonTimer()
    fit(AttentionWordsProbe(), _data(cache, corpus, vectors), timer, validate=False, devices=ranks.world)
    if ranks.world > 1:
        dist.destroy_process_group()
    return timer.seconds


def at_once(processes: Sequence[ProcessPoolExecutor], job: Callable[..., Result], *arguments: object) -> list[Result]:
    """What a job returns in each of these processes, which are the ranks of one run."""
    given = [process.submit(job, Ranks(rank, len(processes)), *arguments) for rank, process in enumerate(processes)]
    return [future.result() for future in given]


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """What a second process brings to an extraction, to bare forward passes and to a training: one thread each."""
    treebanks = Treebanks.choose(settings, folder, report, "dev is extracted; the first of train are trained on")
    stored, vectors = folder / "stored", random_vectors(treebanks, folder / "vectors.txt")
    sentences = len(_data(stored, treebanks.large, vectors).stores["train"])
    manifests: set[bytes] = set()

    def extracted(processes: Sequence[ProcessPoolExecutor]) -> None:
        cache = Path(tempfile.mkdtemp(dir=folder))
        manifests.update(at_once(processes, extract, treebanks.dev, folder, cache))

    def trained(processes: Sequence[ProcessPoolExecutor]) -> float:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return max(at_once(processes, train, stored, treebanks.large, vectors, port))

    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as first, ProcessPoolExecutor(1, spawn) as second:
        one, two = (first,), (first, second)
        at_once(two, load, treebanks.dev, folder)
        trained(two)
        seconds = alternate(
            settings.rounds,
            extraction_1=timed(lambda: extracted(one)),
            extraction_2=timed(lambda: extracted(two)),
            bare_1=timed(lambda: at_once(one, forward, treebanks.dev, folder)),
            bare_2=timed(lambda: at_once(two, forward, treebanks.dev, folder)),
            training_1=lambda: trained(one),
            training_2=lambda: trained(two),
        )
    if len(manifests) > 1:
        raise RuntimeError("One process and two have made different stores.")
    report.figure("sentences", sentences, "trained on")
    for name, meaning in (
        ("extraction", "extraction to disk, from tokenising until every process has the whole store"),
        ("bare", "the forward passes of the model alone (sdpa), over the same batches: what the machine can give"),
        ("training", "an epoch of a probe with word vectors, in the same steps; two processes through DDP and gloo"),
    ):
        above, below = seconds[f"{name}_1"], seconds[f"{name}_2"]
        report.ratio(f"{name}_2_processes", above, below, f"{meaning}: one process ÷ two")
        report.seconds(f"{name}_1_s", above, "one process")
        report.seconds(f"{name}_2_s", below, "two processes")
    report.ratio(
        "extraction_of_bare",
        [report.ratios["extraction_2_processes"]],
        [report.ratios["bare_2_processes"]],
        "extraction_2_processes ÷ bare_2_processes",
        wanted="≥ .9",
    )


main = command("devices", measure)
