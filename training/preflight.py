"""Checks before a run: its inputs, its tasks on SLURM or torchrun, and the time and disk space that it needs."""

import json
import os
import platform
import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from pytorch_lightning import LightningModule, Trainer
from rich import box
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from attention.encoder import LoadedEncoder, offline, resolve
from attention.extraction import jobs_of, missing_shards, passes
from attention.long_inputs import find_most_attended
from attention.specification import Items
from attention.store import Manifest, Part, Store, store_key
from datamodules.corpus import AttentionDataModule, CorpusDataModule, parts_of
from datamodules.vectors import ENCODER, find_vectors
from processes.ranks import LostRank, Ranks, run_name
from results.digests import Digests
from results.errors import UserError, counted
from results.files import write_atomically
from training.checkpoints import read_checkpoint
from training.lifecycle import TrainedModule

ENOUGH = 2.0
"""Seconds of forward passes from which the time of an extraction is estimated."""


class Report:
    """Findings of the checks before a run: the rows of a table, and the messages of all errors."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self.faults: list[str] = []

    @contextmanager
    def part(self, name: str) -> Iterator[list[str]]:
        """Check one thing in a `with` block, and add its row to the table when the block ends.

        The block appends the lines of the row to the yielded list. A UserError or OSError that it raises is
        caught, and its message is added to `faults`. If it raised one or added a fault itself, the row says
        "fault: see below" instead of the lines.

        Args:
            name: Name of the row.
        """
        found: list[str] = []
        before, fault = len(self.faults), ""
        try:
            yield found
        except (UserError, OSError) as error:
            fault = str(error)
            self.faults += [fault] if fault not in self.faults else []  # another part may have found it too
        good = not fault and len(self.faults) == before
        self.rows.append((name, "\n".join(found) if good else "fault: see below"))

    def table(self, title: str) -> Table:
        """Return the findings as a table for the terminal."""
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column("checked")
        table.add_column("found", overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


def inspect(
    report: Report,
    module: LightningModule,
    data: CorpusDataModule[Any],
    trainer: Trainer | None,
    stage: str,
    tasks: tuple[int, int],
    runs: Path,
    checkpoint: Path | None = None,
) -> None:
    """Check the inputs and folders of a run, without executing it.

    Nothing is downloaded, and no run folder and no attention store is made.

    If it finds no fault, the process of rank 0 also sets up data and model as the run does, and times
    the extraction of attention on a sample. This is left out without a trainer.

    Args:
        report: Receives the findings.
        module: The model, before its `setup`.
        data: The datamodule, before its `setup`.
        trainer: The trainer; None if it cannot be made.
        stage: Command of train.py.
        tasks: Rank of this process, and number of processes of the run.
        runs: Folder of all runs.
        checkpoint: Value of `--ckpt_path`; None if it is not given.
    """
    data.trainer, before = trainer, len(report.faults)
    with offline():
        stages = look_for_sources(report, data, stage)
        ranks = Ranks(*tasks, data.rank_timeout)
        with report.part("folder of runs") as found:
            if not (_existing(runs).is_dir() and os.access(_existing(runs), os.W_OK)):
                remedy = "Give --trainer.default_root_dir a folder that can be written"
                raise UserError.at(runs, None, "no folder can be made there for the run", remedy)
            found.append(str(runs))
        with report.part("folder of stores") as found:
            found.append(see_folder(data.cache, ranks, report.faults))
        if ranks.rank == 0 and trainer is not None and len(report.faults) == before:
            rehearse(report, module, data, trainer, stages, checkpoint)


def look_for_sources(report: Report, data: CorpusDataModule[Any], stage: str) -> list[str]:
    """Check that data files, encoders and word vectors are on this machine; return the stages of the run.

    The stages are the command and, after `fit` with a test split, `test`.

    Args:
        report: Receives the findings.
        data: The datamodule, before its `setup`.
        stage: Command of train.py.
    """
    stages = [stage]
    with report.part("files") as found:
        files = data.files()
        if data.splits_of(stage, files)[1]:
            stages.append("test")
        elif stage == "fit" and data.trainer is not None:
            found.append("the training is not tested")
        report.faults += map(str, data.absent(stages))
        found += [f"{split} {path.name}" for split, path in files.items()]
    for encoder in data.needed_encoders:
        with report.part("encoder") as found:
            source = resolve(encoder)
            found.append(f"{encoder.name} ({source.origin})")
    if (vectors := data.vector_spec) is not None and vectors.name != ENCODER:
        with report.part("word vectors") as found:
            found.append(str(find_vectors(vectors, data.root, fetch=False)[0]))
    return stages


def see_folder(folder: Path, ranks: Ranks, faults: list[str]) -> str:
    """Check that all tasks can write to a folder and see each other's files there; return a line for the report.

    Args:
        folder: The folder.
        ranks: This process among the processes of the run.
        faults: Error messages of this task, changed in place. The first task receives the messages of all tasks;
            the lists of the other tasks are emptied.

    Raises:
        UserError: The folder cannot be written, or a task does not see the file of another task.
    """
    node = os.environ.get("SLURMD_NODENAME", platform.node())
    name = run_name() or f"{platform.node()}-{os.getpid()}"  # without a name this process is alone
    signs = [folder / f".preflight-{name}-{rank}" for rank in range(ranks.world)]
    own = signs[ranks.rank]
    heard: dict[int, tuple[str, list[str]]] = {}  # node and faults of each task

    def hear(rank: int) -> tuple[str, list[str]] | None:
        for other, sign in enumerate(signs):
            if sign.exists():
                heard[other] = json.loads(sign.read_text(encoding="utf-8"))
                sign.unlink()
        return heard.get(rank)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(own, json.dumps([node, faults]))
    except OSError as error:
        raise UserError(
            f"{folder}: no files can be written there ({error.strerror}). Give --data.init_args.cache a folder that "
            "can be written."
        ) from error
    try:
        if ranks.rank:
            ranks.wait_for(lambda: not own.exists() or None, 0, own)
            faults.clear()
            return ""
        for rank, sign in enumerate(signs):
            ranks.wait_for(partial(hear, rank), rank, sign)
    except LostRank as lost:
        silent = set() if ranks.rank else nodes_of_step() - {name for name, _ in heard.values()}
        other = f"task {lost.rank}" + (f" on node {' or '.join(sorted(silent))}" if silent else "")
        raise UserError(
            f"{folder}: node {node} and {other} do not see each other's files (within {ranks.patience:.0f} s, "
            f"--data.init_args.rank_timeout). Give --data.init_args.cache a folder that all nodes share, and check "
            f"that all {ranks.world} tasks were started."
        ) from None
    finally:
        own.unlink(missing_ok=True)
        # Also if a task is lost: the tasks that were heard leave the report of their faults to this one.
        told = [heard[rank] for rank in sorted(heard)]
        faults += [f"node {name}: {fault}" for name, others in told for fault in others if fault not in faults]
    seen = f", seen by {ranks.world} tasks on {', '.join(sorted({name for name, _ in told}))}"
    return f"{folder}{seen if ranks.world > 1 else ''}"


def rehearse(
    report: Report,
    module: LightningModule,
    data: CorpusDataModule[Any],
    trainer: Trainer,
    stages: Sequence[str],
    checkpoint: Path | None,
) -> None:
    """Set up data and model for some stages as a run does, but do not extract attention.

    The size of the attention stores and the time of their extraction are only estimated.

    Args:
        report: Receives the findings.
        module: The model, before its `setup`.
        data: The datamodule, before its `setup`.
        trainer: The trainer.
        stages: Stages of the run.
        checkpoint: Value of `--ckpt_path`.
    """
    needs, streamed = Needs(), Needs(streams=True)
    for part in parts_of(data, AttentionDataModule):  # type: ignore[type-abstract]
        part.make = streamed if part.streams else needs
    module.trainer = trainer
    trainer.datamodule = data  # type: ignore[attr-defined]
    with report.part("set-up") as found:
        for stage in stages:
            data.setup(stage)
            module.setup(stage)
        if checkpoint is not None:
            module.on_load_checkpoint(dict(read_checkpoint(checkpoint)))
        if "fit" not in stages and isinstance(module, TrainedModule):
            module.refuse_untrained()
        found.append(f"{type(module).__name__} fits the data")
        if "fit" in stages:
            batches = counted(len(data.train_dataloader()), "training batch", "training batches")
            found.append(f"{batches} an epoch, max_epochs {trainer.max_epochs}")
    with report.part("stores") as found:
        free = shutil.disk_usage(_existing(data.cache)).free
        if needs.bytes > free:
            raise UserError(
                f"{data.cache}: the stores need {decimal(needs.bytes)}, but only {decimal(free)} are free. Free "
                f"{decimal(needs.bytes - free)} more, or choose another folder with --data.init_args.cache."
            )
        found.append(f"{decimal(needs.bytes)} to be written, {decimal(free)} free")
        if needs.bytes:
            at_once = trainer.num_devices
            if needs.device == "cpu":  # processes of one machine share its cores
                at_once = min(at_once, max((os.cpu_count() or 1) // torch.get_num_threads(), 1))
            took = timedelta(seconds=round(needs.seconds / (at_once * trainer.num_nodes)))
            found.append(f"about {took} of extraction on {trainer.world_size} × {needs.device}, by a sample")
        if streamed.bytes:
            took = timedelta(seconds=round(streamed.seconds))
            found.append(
                f"`store: stream`: {decimal(streamed.bytes)} are not written. One pass over all splits takes about "
                f"{took}, by a sample" + (", and each epoch reads train and dev again" if "fit" in stages else "")
            )


class Needs:
    """Replacement for `make_store` that estimates the size of attention stores and the time to extract them.

    It writes nothing, and returns stores that hold only labels.

    Args:
        streams: True to time passes that keep the most attended words alone, as streams of long texts may have to.

    Attributes:
        bytes: Total size in bytes of the store files that are not on the disk yet.
        seconds: Estimated seconds of forward passes on one device; the time to write files is not added.
        device: Type of the device on which the forward passes were timed.
    """

    def __init__(self, streams: bool = False) -> None:
        self.streams = streams
        self.bytes, self.seconds, self.device = 0, 0.0, ""
        self._rate = 0.0  # seconds per piece, from the first store: all have the same encoder
        self._stores: dict[str, Store] = {}

    def __call__(
        self,
        items: Items,
        cache: Path,
        digests: Digests,
        encoder: LoadedEncoder | None = None,
        ranks: Ranks | None = None,
    ) -> Store:
        """Return a store of labels for the arguments of `make_store`; write nothing."""
        identity = items.extraction.identity(digests)
        folder = cache / store_key(identity)
        if folder.name in self._stores:
            return self._stores[folder.name]
        if encoder is not None:
            self._rate = self._rate or seconds_of_a_piece(items, encoder, self.streams)
            every = range(len(items.shards))  # a stream reads no store that may be there
            missing = every if self.streams else missing_shards(items, folder, digests)
            self.bytes += sum(map(items.bytes, missing))
            inputs = (items.inputs[item] for shard in missing for item in items.shards[shard])
            self.seconds += self._rate * sum(len(part) for parts in inputs for part in parts)
            self.device = encoder.device.type
        manifest = items.manifest(identity, encoder, Part("", 0, ""))
        self._stores[folder.name] = LabelStore(items, manifest)
        return self._stores[folder.name]


class LabelStore(Store):
    """Store that holds only the table of labels of its items, in memory; it has no attention and no files.

    Args:
        items: Items whose labels (words, and tree or mentions) the store has.
        manifest: Manifest of the store; the files that it names need not exist.
    """

    def __init__(self, items: Items, manifest: Manifest) -> None:
        self.labels, self.manifest = items.labels, manifest


def seconds_of_a_piece(items: Items, encoder: LoadedEncoder, streams: bool = False) -> float:
    """Return the measured time of forward passes over a random sample of the items, in seconds per word piece.

    Args:
        items: The items.
        encoder: The encoder.
        streams: True for passes that keep the most attended words alone.
    """
    jobs = list(jobs_of(items, range(len(items.shards)), encoder.device.type))
    random.Random(0).shuffle(jobs)
    pieces, began = 0, time.perf_counter()
    most = partial(find_most_attended, encoder, items)
    run = ((job, most(job[1])) for job in jobs) if streams else passes(encoder, items, jobs)
    with closing(run) as running:
        for (_, batch), _ in running:
            pieces += sum(len(items.inputs[item][part]) for item, part in batch)
            if (passed := time.perf_counter() - began) > ENOUGH:
                break
    return passed / pieces


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def started_tasks() -> tuple[int, int]:
    """Return the rank of this process in the run, and the number of processes of the run.

    They are read from the environment that SLURM or torchrun sets for the processes it starts. If this
    process was started by neither, they are 0 and 1.
    """
    names = ("RANK", "WORLD_SIZE") if TorchElasticEnvironment.detect() else ("SLURM_PROCID", "SLURM_NTASKS")
    detected = TorchElasticEnvironment.detect() or (SLURMEnvironment.detect() and "SLURM_PROCID" in os.environ)
    rank, world = (int(os.environ[name]) for name in names) if detected else (0, 1)
    return rank, world


def nodes_of_step() -> set[str]:
    """Return the names of the nodes on which this SLURM job step runs; empty if they are not known."""
    listed = os.environ.get("SLURM_STEP_NODELIST", "")
    if not listed or shutil.which("scontrol") is None:
        return set()
    command = ["scontrol", "show", "hostnames", listed]
    return set(subprocess.run(command, capture_output=True, text=True, check=False).stdout.split())


def was_requeued() -> bool:
    """Return True if SLURM has restarted the job of this process."""
    return os.environ.get("SLURM_RESTART_COUNT", "0") != "0"


def refuse_shell() -> None:
    """Raise UserError in the interactive shell of a SLURM allocation, where no task runs."""
    if SLURMEnvironment.detect() and "SLURM_PROCID" not in os.environ:
        raise UserError(
            "The command runs in the shell of a SLURM allocation, not in a task. Start it with srun: srun python "
            "train.py …"
        )


def check_tasks(trainer: Trainer) -> None:
    """Check that SLURM started one task for each device; otherwise each task would be a whole run, or wait forever.

    Outside SLURM and under torchrun, there is nothing to check.

    Raises:
        UserError: The number of tasks differs from the trainer's number of devices on all nodes, or SLURM
            started several tasks in a job in which Lightning ignores SLURM.
    """
    if TorchElasticEnvironment.detect():  # takes precedence in Lightning too
        return
    if not SLURMEnvironment.detect():
        # Lightning ignores SLURM in a job with the name that `salloc` gives; only srun sets this variable.
        if (tasks := int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))) > 1:
            raise UserError(
                f"SLURM started {tasks} tasks, but Lightning ignores SLURM in a job named "
                f"'{SLURMEnvironment.job_name()}', so each task would do the whole run. Use srun --ntasks 1, or "
                f"another salloc --job-name."
            )
        return
    tasks, nodes = int(os.environ["SLURM_NTASKS"]), int(os.environ.get("SLURM_NNODES", "1"))
    if tasks != trainer.num_devices * trainer.num_nodes:
        options = f"Give --trainer.devices {tasks // nodes} --trainer.num_nodes {nodes}, or start"
        raise UserError(
            f"SLURM has {counted(tasks, 'task')}, but the trainer needs {trainer.num_devices * trainer.num_nodes} "
            f"({counted(trainer.num_devices, 'device')} × {counted(trainer.num_nodes, 'node')}). "
            f"{'Start' if tasks % nodes else options} the command with srun --nodes {trainer.num_nodes} "
            f"--ntasks-per-node {trainer.num_devices}."
        )
