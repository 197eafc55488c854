"""Checks before a run: whether it can be made, and what time and disk it will take."""

import json
import os
import platform
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
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
from attention.extraction import batches, missing_shards, passes
from attention.specification import Items
from attention.store import Manifest, Part, Store, store_key
from datamodules.corpus import AttentionDataModule, CorpusDataModule, parts_of
from datamodules.vectors import ENCODER, find_vectors
from processes import preemption
from processes.ranks import Ranks, run_name
from results.digests import Digests
from results.errors import UserError, counted
from results.files import write_atomically
from training.checkpoints import read_checkpoint
from training.lifecycle import TrainedModule

ENOUGH = 2.0
"""Seconds of forward passes from which the time of an extraction is judged."""
_POLL_SECONDS = 0.1


class Report:
    """The findings of a preflight: rows of a table, and all faults."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self.faults: list[str] = []

    @contextmanager
    def part(self, name: str) -> Iterator[list[str]]:
        """Add a row with the lines that are put into the list; an error of the input is noted as a fault."""
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
        """Return the rows as a table for the terminal."""
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
    """Add to a report what is known of a run beforehand; nothing is fetched, and no run or store is made.

    Where all is at hand the first task goes through the set-up as the run will, with a sample of the extraction.

    Args:
        report: what is found is added to it.
        module: the model of the run.
        data: its data; neither has been set up.
        trainer: None where none can be made.
        stage: the command.
        tasks: number of this process, and of all that were started for the run.
        runs: the folder of runs.
        checkpoint: what the run begins with, or tests.
    """
    data.trainer, before = trainer, len(report.faults)
    with offline():
        stages = look_for_sources(report, data, stage)
        ranks = Ranks(*tasks, data.rank_timeout)
        with report.part("folder of runs") as found:
            above = _existing(runs)
            if not (above.is_dir() and os.access(above, os.W_OK)):
                remedy = "Give --trainer.default_root_dir a folder that can be written"
                raise UserError.at(runs, None, "no folder can be made there for the run", remedy)
            found.append(str(runs))
        with report.part("folder of stores") as found:
            found.append(see_folder(data.cache, ranks, report.faults))
        if ranks.rank == 0 and trainer is not None and len(report.faults) == before:
            rehearse(report, module, data, trainer, stages, checkpoint)


def look_for_sources(report: Report, data: CorpusDataModule[Any], stage: str) -> list[str]:
    """Look for the files, the encoder and the word vectors on this machine; return the stages of the run."""
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
    """Check that this process can write a folder, and that the first task sees what the others write; say so in words.

    The other tasks hand their faults to the first, which adds them to its own.

    Raises:
        UserError: a task sees another folder under this name, or none.
        OSError: it cannot be written.
    """
    node = os.environ.get("SLURMD_NODENAME", platform.node())
    name = run_name() or f"{platform.node()}-{os.getpid()}"  # without one this process is alone
    signs = [folder / f".preflight-{name}-{rank}" for rank in range(ranks.world)]
    own = signs[ranks.rank]
    heard: dict[int, tuple[str, list[str]]] = {}

    def all_heard() -> bool:
        for rank, sign in enumerate(signs):
            if rank not in heard and sign.exists():
                heard[rank] = json.loads(sign.read_text(encoding="utf-8"))
                sign.unlink()
        return len(heard) == len(signs)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(own, json.dumps([node, faults]))
        if ranks.rank:
            if not _until(lambda: not own.exists(), ranks.patience):
                raise UserError(_unseen(folder, f"the first task has not seen what node {node} wrote", ranks))
            faults.clear()
            return ""
        if not _until(all_heard, ranks.patience):
            silent = nodes_of_step() - {name for name, _ in heard.values()}
            who = f"node {' and '.join(sorted(silent))}" if silent else f"task {min(set(range(len(signs))) - {*heard})}"
            raise UserError(_unseen(folder, f"nothing is seen of what {who} writes", ranks))
    finally:
        own.unlink(missing_ok=True)
    faults += [f"node {name}: {fault}" for name, others in heard.values() for fault in others if fault not in faults]
    if ranks.world == 1:
        return str(folder)
    return f"{folder}, seen by {ranks.world} tasks on {', '.join(sorted({name for name, _ in heard.values()}))}"


def _until(done: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is done, at most so many seconds; return whether it was."""
    end = time.monotonic() + seconds
    while not (ended := done()) and time.monotonic() < end:
        preemption.check()
        time.sleep(_POLL_SECONDS)
    return ended


def _unseen(folder: Path, what: str, ranks: Ranks) -> str:
    return (
        f"{folder}: {what} there, within {ranks.patience:.0f} s (--data.init_args.rank_timeout). Give "
        f"--data.init_args.cache a folder that all nodes share, and start all {ranks.world} tasks with srun."
    )


def rehearse(
    report: Report,
    module: LightningModule,
    data: CorpusDataModule[Any],
    trainer: Trainer,
    stages: Sequence[str],
    checkpoint: Path | None,
) -> None:
    """Set data and model up for some stages as a run does, except that stores are not made but measured."""
    needs = Needs()
    for part in parts_of(data, AttentionDataModule):  # type: ignore[type-abstract]
        part.make = needs
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
                f"{data.cache}: {decimal(needs.bytes)} are needed for the stores, and {decimal(free)} are free. Free "
                f"{decimal(needs.bytes - free)} more, or put the stores elsewhere (--data.init_args.cache)."
            )
        found.append(f"{decimal(needs.bytes)} to be written, {decimal(free)} free")
        if needs.bytes:
            at_once = trainer.num_devices
            if needs.device == "cpu":  # processes of one machine share its cores
                at_once = min(at_once, max((os.cpu_count() or 1) // torch.get_num_threads(), 1))
            took = timedelta(seconds=round(needs.seconds / (at_once * trainer.num_nodes)))
            found.append(f"about {took} of extraction on {trainer.world_size} × {needs.device}, judged by a sample")


class Needs:
    """A stand-in for `make_store`: makes stores of labels alone, and adds up the bytes and seconds of the others.

    Attributes:
        bytes: that are not on the disk yet.
        seconds: of forward passes on one device, an estimate; writing goes on beside them.
        device: what was timed.
    """

    def __init__(self) -> None:
        self.bytes, self.seconds, self.device = 0, 0.0, ""
        self._rate = 0.0  # seconds of a piece, of the first store: the others have the same encoder
        self._stores: dict[str, Store] = {}

    def __call__(
        self,
        items: Items,
        cache: Path,
        digests: Digests,
        encoder: LoadedEncoder | None = None,
        ranks: Ranks | None = None,
    ) -> Store:
        """Return the store of labels for the arguments of `make_store`; nothing is written."""
        identity = items.extraction.identity(digests)
        folder = cache / store_key(identity)
        if folder.name in self._stores:
            return self._stores[folder.name]
        if encoder is not None:
            self._rate = self._rate or seconds_of_a_piece(items, encoder)
            missing = missing_shards(items, folder, digests)
            self.bytes += sum(map(items.bytes, missing))
            inputs = (items.inputs[item] for shard in missing for item in items.shards[shard])
            self.seconds += self._rate * sum(len(part) for parts in inputs for part in parts)
            self.device = encoder.device.type
        manifest = items.manifest(identity, encoder, Part("", 0, ""))
        self._stores[folder.name] = LabelStore(items, manifest)
        return self._stores[folder.name]


class LabelStore(Store):
    """A store of labels, with nothing on the disk."""

    def __init__(self, items: Items, manifest: Manifest) -> None:
        self.labels, self.manifest = items.labels, manifest


def seconds_of_a_piece(items: Items, encoder: LoadedEncoder) -> float:
    """Return the seconds of forward passes over a sample of the items, divided by its number of pieces."""
    kind = encoder.device.type
    jobs = [(shard, batch) for shard in range(len(items.shards)) for batch in batches(items, shard, kind)]
    random.Random(0).shuffle(jobs)
    pieces, began = 0, time.perf_counter()
    with closing(passes(encoder, items, jobs)) as running:
        for (_, batch), _ in running:
            pieces += sum(len(items.inputs[item][part]) for item, part in batch)
            if (passed := time.perf_counter() - began) > ENOUGH:
                break
    return passed / pieces


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest above it that is there."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def started_tasks() -> tuple[int, int]:
    """Return the number of this process, from 0, and of all that SLURM or torchrun has started for the run."""
    names = ("RANK", "WORLD_SIZE") if TorchElasticEnvironment.detect() else ("SLURM_PROCID", "SLURM_NTASKS")
    detected = TorchElasticEnvironment.detect() or (SLURMEnvironment.detect() and "SLURM_PROCID" in os.environ)
    rank, world = (int(os.environ[name]) for name in names) if detected else (0, 1)
    return rank, world


def was_requeued() -> bool:
    """Return whether SLURM has begun the job of this process before."""
    return os.environ.get("SLURM_RESTART_COUNT", "0") != "0"


def nodes_of_step() -> set[str]:
    """Return the nodes of this step of SLURM; none where they are not known."""
    listed = os.environ.get("SLURM_STEP_NODELIST", "")
    if not listed or shutil.which("scontrol") is None:
        return set()
    command = ["scontrol", "show", "hostnames", listed]
    return set(subprocess.run(command, capture_output=True, text=True, check=False).stdout.split())


def refuse_shell() -> None:
    """Raise a UserError in the shell of an allocation, which is no task of it."""
    if SLURMEnvironment.detect() and "SLURM_PROCID" not in os.environ:
        raise UserError("This is the shell of a SLURM allocation, which has no task: start the command with srun.")


def check_tasks(trainer: Trainer) -> None:
    """Refuse a SLURM step with other than one task for each device.

    Its tasks would each run the whole experiment, or wait for tasks that never start.

    Raises:
        UserError: SLURM started more or fewer tasks than the trainer has devices on all its nodes.
    """
    if TorchElasticEnvironment.detect():  # it goes first in Lightning as well
        return
    if not SLURMEnvironment.detect():
        # Lightning takes no notice of SLURM in a job that is named as `salloc` names it; only srun sets this number.
        if (tasks := int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))) > 1:
            raise UserError(
                f"SLURM has {tasks} tasks, and each would be the whole run: the job is named "
                f"{SLURMEnvironment.job_name()}, and Lightning takes no notice of SLURM in such a job. Give srun "
                f"--ntasks 1, or salloc another --job-name."
            )
        return
    tasks, nodes = int(os.environ["SLURM_NTASKS"]), int(os.environ.get("SLURM_NNODES", "1"))
    if tasks != trainer.num_devices * trainer.num_nodes:
        options = f"--trainer.devices {tasks // nodes} --trainer.num_nodes {nodes}, or "
        raise UserError(
            f"SLURM has {counted(tasks, 'task')}, and the trainer wants {trainer.num_devices * trainer.num_nodes} "
            f"(devices × nodes: {trainer.num_devices} × {trainer.num_nodes}). Give "
            f"{'' if tasks % nodes else options}srun --nodes {trainer.num_nodes} --ntasks-per-node "
            f"{trainer.num_devices}."
        )
