"""Measure what attention knows, or test it as an explanation: one measurement over the data, on any devices."""

import os
import random
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.distributed as dist
import yaml
from jsonargparse import ActionConfigFile, Namespace  # type: ignore[attr-defined] # named in its documentation
from rich.console import Console

from attention_probing.commands.command_line import CommandLine
from attention_probing.commands.faults import full_disk, trainer_fault
from attention_probing.commands.parser import Parser
from attention_probing.commands.state import RunState, check_new_folder, new_folder, run_digest, save_config, sources_of
from attention_probing.commands.tasks import check_tasks, is_launched, refuse_shell
from attention_probing.datamodules.corpus import CorpusDataModule, data_for
from attention_probing.measures.contract import Measure
from attention_probing.measures.devices import OneProcess
from attention_probing.measures.loop import run_measurement
from attention_probing.models.configs import settings_class
from attention_probing.results import Result
from attention_probing.results.errors import UserError
from attention_probing.results.files import is_full
from attention_probing.results.options import Positive, checked
from attention_probing.results.progress import inform, is_first, quiet
from attention_probing.results.writer import FigureFiles, publish

if TYPE_CHECKING:
    from lightning_fabric import Fabric

QUIET = "Print only the main scores, the folder and warnings: no progress, no tables."
TRUST = "Python modules of your own that configs and checkpoints may import."
PRECISIONS = Literal["16-true", "16-mixed", "bf16-true", "bf16-mixed", "32-true", "64-true"]


@checked
@dataclass(frozen=True)
class Devices:
    """Devices and output folder of a measurement, with the names of the options of Lightning's Trainer.

    Attributes:
        accelerator: Kind of device: `cpu`, `gpu`, or `auto` for the best there is.
        strategy: How several devices run together: `ddp`, or `auto`.
        devices: Number of devices of a node, their indices, or `auto` for all.
        num_nodes: Number of nodes.
        precision: Precision of models that do not set their own; None for `32-true`.
        limit_test_batches: Number of batches that are read of each dataloader, or a fraction below 1; None for all.
        fast_dev_run: True to read one batch of each dataloader, and to write nothing.
        enable_progress_bar: False for lines of progress in place of a bar; without a terminal there is no bar.
        default_root_dir: Folder of the runs.
    """

    accelerator: str = "auto"
    strategy: str = "auto"
    devices: list[int] | str | int = "auto"
    num_nodes: Positive = 1
    precision: PRECISIONS | None = None
    limit_test_batches: float | None = None
    fast_dev_run: bool = False
    enable_progress_bar: bool = True
    default_root_dir: str = "runs"

    @property
    def limit(self) -> float | None:
        """Number or fraction of batches to read; None for all."""
        most = 1 if self.fast_dev_run else self.limit_test_batches
        return int(most) if most is not None and most == int(most) else most

    @property
    def are_one_process(self) -> bool:
        """True if these devices are the CPU, without other processes."""
        if self.strategy != "auto" or self.num_nodes != 1 or self.devices not in ("auto", 1, "1"):
            return False
        if self.precision not in (None, "32-true") or is_launched():
            return False
        return self.accelerator == "cpu" or (self.accelerator == "auto" and not _has_accelerator())

    def fabric(self) -> "Fabric | OneProcess":
        """Return a Fabric with these devices, not launched; or what stands for it on the CPU.

        Raises:
            UserError: There are no such devices, or SLURM started a wrong number of tasks.
        """
        if self.are_one_process:
            return OneProcess()
        from lightning_fabric import Fabric
        from lightning_fabric.utilities.exceptions import MisconfigurationException

        refuse_shell()
        try:
            fabric = Fabric(
                accelerator=self.accelerator,
                strategy=self.strategy,
                devices=self.devices,
                num_nodes=self.num_nodes,
                precision=self.precision,
            )
        except (MisconfigurationException, ImportError, RuntimeError, TypeError, ValueError) as error:
            raise trainer_fault(error) from error
        check_tasks(len(getattr(fabric.strategy, "parallel_devices", None) or [self]), self.num_nodes)
        return fabric


def _has_accelerator() -> bool:
    """Return True if Lightning would find another device than the CPU."""
    return torch.cuda.is_available() or torch.backends.mps.is_available() or find_spec("torch_xla") is not None


def parser() -> Parser:
    """Return the parser of the command."""
    made = Parser(prog="probing measure", description=__doc__)
    made.add_argument("-c", "--config", action=ActionConfigFile, help="A config: a file, or its name below configs/.")
    use = "Seed of all random draws; true for $PL_GLOBAL_SEED, else 0; false for none."
    made.add_argument("--seed_everything", type=bool | int, default=0, help=use)
    made.add_subclass_arguments(Measure, "model", required=True, help="The measurement.")
    made.add_subclass_arguments(CorpusDataModule, "data", help="The data; by default those of the checkpoint.")
    made.add_class_arguments(Devices, "trainer")
    made.add_class_arguments(FigureFiles, "figures")
    made.add_argument("--quiet", action="store_true", help=QUIET)
    made.add_argument("--trust", type=list[str] | str | None, default=None, help=TRUST)
    return made


def parse(line: CommandLine) -> tuple[Parser, Namespace]:
    """Parse a command line; return the parser and the settings.

    Without `--data`, the settings of the data are those that the measurement implies, for instance by the checkpoint
    that it reads. Options such as `--data.cache` change them.

    Raises:
        UserError: A checkpoint cannot be used.
        SettingsError: A config file grants a permission that only the command line may grant.
    """
    made = parser()
    has_options_of_data = any(name.startswith("--data.") for name, _ in line.options)
    if has_options_of_data and "data" not in line.classes:
        data = implied_data(line)
        if data is not None:
            made.set_defaults({"data": data.as_dict()})
    settings = made.parse_line(line)
    kind = measure_class(settings.model.class_path)
    assert kind is not None
    settings.data = kind.data_of(settings.model.get("init_args", settings.model), settings.data)
    return made, settings


def implied_data(line: CommandLine) -> Namespace | None:
    """Return the settings of the data that the measurement of a command line implies by a checkpoint; None without one.

    The line is not yet parsed: a checkpoint that is no path is left to the parser, which tells the fault.

    Raises:
        UserError: The checkpoint cannot be used.
    """
    kind = measure_class(line.classes.get("model", ""))
    if kind is None:
        return None
    paths = dict[str, object]()
    for name, value in line.model_arguments().items():
        items = value if isinstance(value, list) else [value]
        if name in ("checkpoint", "checkpoints") and all(isinstance(item, str) for item in items):
            paths[name] = value
    return kind.data_of(Namespace(paths), None) if paths else None  # type: ignore[no-untyped-call]


def measure_class(path: str) -> type[Measure[Any]] | None:
    """Return the measurement of a name or path that settings may name; None if there is none."""
    kind = settings_class(Measure, path)
    return kind if isinstance(kind, type) and issubclass(kind, Measure) else None


def check(line: CommandLine) -> None:
    """Check options, classes and the existence of the data files; run nothing.

    Raises:
        UserError: One of them is wrong.
    """
    made, settings = parse(line)
    _refuse_unfit(made.instantiate(settings))


def _refuse_unfit(objects: Any) -> None:  # noqa: ANN401 # a namespace
    """Raise UserError if the data are of another class than the measurement reads, or lack a file."""
    data_for(type(objects.model).__name__, objects.model.takes, objects.data)
    for absent in objects.data.absent(("test",)):
        raise absent


def run(line: CommandLine) -> Result | None:
    """Run the command, and return the result; None on several devices, and of a measurement without one.

    Raises:
        UserError: An option, the data or a model cannot be used, or the disk is full.
    """
    made, settings = parse(line)
    _seed(settings)
    objects = made.instantiate(settings)
    measurement, data, devices = objects.model, objects.data, objects.trainer
    fabric = devices.fabric()
    _refuse_unfit(objects)  # before anything is loaded
    parent = Path(devices.default_root_dir) / type(measurement).__name__
    if is_first():
        check_new_folder(parent)  # before hours of work
    digest = _digest(made, settings, data)
    measurement.kept = data.cache / "trained" / digest
    bar = devices.enable_progress_bar and not settings.quiet and Console().is_terminal

    def write(result: Result) -> None:
        left = RunState.find(parent, digest)  # of the same command, killed while it wrote
        folder = left.run if left else new_folder(parent)
        unfinished = folder / f"state-{digest}"  # until all is written
        unfinished.mkdir(exist_ok=True)
        save_config(made, settings, folder / "config.yaml")
        publish(folder, result, data.provenance, limit=devices.limit, figures=objects.figures, quiet=settings.quiet)
        unfinished.rmdir()

    def work(fabric: "Fabric | OneProcess") -> Result | None:
        result = run_measurement(measurement, data, fabric, limit=devices.limit, bar=bar)
        if devices.fast_dev_run:
            inform("One batch of each dataloader was measured, and nothing was written.")
        elif fabric.global_rank == 0 and result is not None:
            write(result)
        fabric.barrier()  # the first process prints, and deletes what the others may still read
        if fabric.global_rank == 0:
            rmtree(measurement.kept, ignore_errors=True)
        return result if fabric.world_size == 1 else None

    try:
        with quiet(progress=True) if settings.quiet else nullcontext():
            found: Result | None = fabric.launch(work)
    except OSError as error:
        if not is_full(error):
            raise
        raise full_disk(parent, error) from error
    if dist.is_initialized():  # a later run in this process has a group of its own
        dist.destroy_process_group()
    return found


def _seed(settings: Namespace) -> None:
    """Seed all random numbers as Lightning's `seed_everything` does, and note the seed in the settings."""
    seed = settings.seed_everything
    if seed is False:
        return
    if seed is True:
        seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
    if not 0 <= seed < 1 << 32:
        raise UserError(f"--seed_everything {seed}: a seed is a number from 0 to {(1 << 32) - 1:,}.")
    os.environ["PL_GLOBAL_SEED"] = str(seed)  # which the processes of other devices, and the record, read
    os.environ["PL_SEED_WORKERS"] = "1"
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    settings.seed_everything = seed


def _digest(made: Parser, settings: Namespace, data: object) -> str:
    """Return the digest of the options, this program and the sizes of the data files; the same on any devices."""
    plain = yaml.safe_load(made.dump(settings, skip_none=False))
    plain["trainer"] = {name: plain["trainer"][name] for name in ("precision", "limit_test_batches", "fast_dev_run")}
    return run_digest("measure", {**plain, "sources": sources_of(data)}, 1)
