"""Measure what attention knows, or test it as an explanation: one measurement over the data, on any devices."""

import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
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
from rich.text import Text

from attention_probing.attention.extraction import return_free_memory
from attention_probing.commands import GOES_ON
from attention_probing.commands.command_line import CommandLine
from attention_probing.commands.faults import full_disk, trainer_fault
from attention_probing.commands.parser import Parser
from attention_probing.commands.state import RunState, check_new_folder, new_folder, run_digest, save_config, sources_of
from attention_probing.commands.tasks import check_tasks, is_launched, refuse_shell
from attention_probing.commands.twins import USE, WORLDS, TwinName, TwinOption, add_twins, twins_of
from attention_probing.datamodules.corpus import CorpusDataModule, data_for
from attention_probing.measures.contract import Measure, check_measurement
from attention_probing.measures.devices import OneProcess
from attention_probing.measures.kept_batches import has_batches
from attention_probing.measures.loop import run_measurement
from attention_probing.models.configs import settings_class
from attention_probing.results import Provenance, Result
from attention_probing.results.errors import UserError
from attention_probing.results.figure_files import FigureFiles
from attention_probing.results.files import is_full
from attention_probing.results.options import Positive, checked
from attention_probing.results.progress import inform, is_first, quiet
from attention_probing.results.publication import publish
from attention_probing.results.reader import TWINS

if TYPE_CHECKING:
    from lightning_fabric import Fabric

QUIET = "Print only the main scores, the folder and warnings: no progress, no tables."
TRUST = "Python modules of your own that configs and checkpoints may import."
Inspect = Callable[[object, Sequence[str]], None]
"""Function that reads the files of a datamodule for some stages, and raises a `CorpusError` if one is damaged."""
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
        if self.fast_dev_run:
            return 1
        limit = self.limit_test_batches
        if limit is not None and limit == int(limit):
            return int(limit)
        return limit

    @property
    def are_one_process(self) -> bool:
        """True if these devices are the CPU, without other processes."""
        if self.strategy != "auto" or self.num_nodes != 1 or self.devices not in ("auto", 1, "1"):
            return False
        if self.precision not in (None, "32-true") or is_launched():
            return False
        if self.accelerator == "auto":
            return not _has_accelerator()
        return self.accelerator == "cpu"

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
        devices = 1
        parallel = getattr(fabric.strategy, "parallel_devices", None)
        if parallel:
            devices = len(parallel)
        check_tasks(devices, self.num_nodes)
        return fabric


def _has_accelerator() -> bool:
    """Return True if Lightning would find another device than the CPU."""
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        return True
    return find_spec("torch_xla") is not None


def make_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(prog="probing measure", description=__doc__)
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="A config: a file, or its name below configs/.")
    use = "Seed of all random draws; true for $PL_GLOBAL_SEED, else 0; false for none."
    parser.add_argument("--seed_everything", type=bool | int, default=0, help=use)
    parser.add_subclass_arguments(Measure, "model", required=True, help="The measurement.")
    parser.add_subclass_arguments(CorpusDataModule, "data", help="The data; by default those of the checkpoint.")
    parser.add_class_arguments(Devices, "trainer")
    parser.add_class_arguments(FigureFiles, "figures")
    parser.add_argument("--twin", type=TwinOption | None, default=None, help=USE)
    parser.add_argument("--quiet", action="store_true", help=QUIET)
    parser.add_argument("--trust", type=list[str] | str | None, default=None, help=TRUST)
    return parser


def parse(line: CommandLine) -> tuple[Parser, Namespace]:
    """Parse a command line; return the parser and the settings.

    Without `--data`, the settings of the data are those that the measurement implies, for instance by the checkpoint
    that it reads. Options such as `--data.cache` change them.

    Raises:
        UserError: A checkpoint cannot be used.
        SettingsError: A config file grants a permission that only the command line may grant.
    """
    parser = make_parser()
    has_options_of_data = any(name.startswith("--data.") for name, _ in line.options)
    if has_options_of_data and "data" not in line.classes:
        data = implied_data(line)
        if data is not None:
            parser.set_defaults({"data": data.as_dict()})
    settings = parser.parse_line(line)
    kind = measure_class(settings.model.class_path)
    assert kind is not None
    arguments = settings.model.get("init_args", settings.model)
    settings.data = kind.data_of(arguments, settings.data)
    return parser, settings


def implied_data(line: CommandLine) -> Namespace | None:
    """Return the settings of the data that the measurement of a command line implies by a checkpoint; None without one.

    The line is not yet parsed: a checkpoint that is no path is left to the parser, which tells the fault.

    Raises:
        UserError: The checkpoint cannot be used.
    """
    kind = measure_class(line.classes.get("model", ""))
    if kind is None:
        return None
    arguments = line.model_arguments()
    checkpoints = Namespace()  # type: ignore[no-untyped-call]
    for name in ("checkpoint", "checkpoints"):
        value = arguments.get(name)
        paths = value if isinstance(value, list) else [value]
        if all(isinstance(path, str) for path in paths):
            checkpoints[name] = value
    if not vars(checkpoints):
        return None
    return kind.data_of(checkpoints, None)


def measure_class(path: str) -> type[Measure[Any]] | None:
    """Return the measurement of a name or path that settings may name; None if there is none."""
    kind = settings_class(Measure, path)
    if isinstance(kind, type) and issubclass(kind, Measure):
        return kind
    return None


def check(line: CommandLine, inspect: Inspect | None = None) -> None:
    """Check options, classes and the existence of the data files; run nothing.

    Args:
        line: The command line.
        inspect: Function that reads the data files too; None for none.

    Raises:
        UserError: One of them is wrong.
    """
    parser, settings = parse(line)
    objects = parser.instantiate(settings)
    refuse_unfit(objects)
    make_twins(parser, settings)
    if inspect is not None:
        inspect(objects.data, ("test",))


def refuse_unfit(objects: Any) -> None:  # noqa: ANN401 # a namespace
    """Raise UserError if the data are of another class than the measurement reads, unfit for it, or lack a file.

    Also if the class of the measurement is not complete.
    """
    check_measurement(objects.model)
    data_for(type(objects.model).__name__, objects.model.takes, objects.data)
    objects.model.check_data(objects.data)
    for absent in objects.data.absent(("test",)):
        raise absent


def run(line: CommandLine) -> Result | None:
    """Run the command, and return the result; None on several devices, and of a measurement without one.

    Raises:
        UserError: An option, the data or a model cannot be used, or the disk is full.
    """
    parser, settings = parse(line)
    _seed(settings)
    objects = parser.instantiate(settings)
    fabric = objects.trainer.fabric()
    refuse_unfit(objects)  # before anything is loaded
    measurement = MeasurementRun(parser, settings, objects)
    measurement.twins = make_twins(parser, settings)
    del objects  # which the run drops when it has measured
    try:
        with ExitStack() as stack:
            if settings.quiet:
                stack.enter_context(quiet(progress=True))
            result: Result | None = fabric.launch(measurement.work)
    except OSError as error:
        if not is_full(error):
            raise
        raise full_disk(measurement.parent, error) from error
    if dist.is_initialized():  # a later run in this process has a group of its own
        dist.destroy_process_group()
    return result


def make_twins(parser: Parser, settings: Namespace) -> "dict[TwinName, MeasurementRun]":
    """Return the runs of the null twins that `--twin` asks for, by their names.

    Raises:
        UserError: The measurement or its data have no such twin.
    """
    runs: dict[TwinName, MeasurementRun] = {}
    for name, of_twin in twins_of(settings).items():
        objects = parser.instantiate(of_twin)
        refuse_unfit(objects)
        runs[name] = MeasurementRun(parser, of_twin, objects)
    return runs


class MeasurementRun:
    """A measurement over its data, which writes its result into the folder of a run.

    Its twins are measured after it, and written below its folder.

    Args:
        parser: Parser of the command.
        settings: Settings of the command.
        objects: Objects of the settings: `model`, `data`, `trainer` and `figures`.

    Attributes:
        parent: Folder of the runs of this measurement.
        digest: Digest of the command.
        kept: Folder in which trained models are kept while the measurement runs.
        twins: Runs of the null twins, by their names.
        provenance: Description of encoder and data, after `measure` in the first process.

    Raises:
        UserError: The folder cannot be written.
    """

    def __init__(self, parser: Parser, settings: Namespace, objects: Namespace) -> None:
        self.parser = parser
        self.settings = settings
        self.figures: FigureFiles = objects.figures
        self.measurement: Measure[Any] = objects.model
        self.data: CorpusDataModule[Any] = objects.data
        self.devices: Devices = objects.trainer
        self.parent = Path(self.devices.default_root_dir) / type(self.measurement).__name__
        if is_first():
            check_new_folder(self.parent)  # before hours of work
        self.digest = _digest(parser, settings, self.data)
        self.kept = self.data.cache / "trained" / self.digest
        self.measurement.kept = self.kept
        self.twins: dict[TwinName, MeasurementRun] = {}
        self.provenance: Provenance

    def work(self, fabric: "Fabric | OneProcess") -> Result | None:
        """Measure, and write the result in the first process; return it if there is no other process."""
        result = self.measure(fabric)
        of_twins: dict[TwinName, Result] = {}
        try:
            for name, twin in self.twins.items():
                inform(f"The same is measured again, {WORLDS[name]}.")
                _seed(twin.settings)
                of_twin = twin.measure(fabric)
                if of_twin is not None:
                    of_twins[name] = of_twin
        finally:  # what is known is written if a twin fails
            if result is not None:
                result = add_twins(result, of_twins)
            if self.devices.fast_dev_run:
                inform("One batch of each dataloader was measured, and nothing was written.")
            elif fabric.global_rank == 0 and result is not None:
                self.write(result, of_twins)
        fabric.barrier()  # the first process prints, and deletes what the others may still read
        if fabric.global_rank == 0:
            for run in (self, *self.twins.values()):
                rmtree(run.kept, ignore_errors=True)
        return result if fabric.world_size == 1 else None

    def measure(self, fabric: "Fabric | OneProcess") -> Result | None:
        """Measure once, and drop measurement and data; processes but the first may return None.

        Raises:
            KeyboardInterrupt: It was interrupted; with the message `GOES_ON` if finished batches are kept.
        """
        limit = self.devices.limit
        bar = self.devices.enable_progress_bar and not self.settings.quiet and Console().is_terminal
        try:
            result = run_measurement(self.measurement, self.data, fabric, limit=limit, bar=bar)
        except KeyboardInterrupt as interrupt:
            if has_batches(self.kept):
                raise KeyboardInterrupt(GOES_ON) from interrupt
            raise
        if fabric.global_rank == 0 and result is not None and not self.devices.fast_dev_run:
            self.provenance = self.data.provenance
        del self.measurement, self.data  # with their encoder, before a twin loads its own
        return_free_memory()
        return result

    def write(self, result: Result, of_twins: Mapping[TwinName, Result]) -> None:
        """Write all results and print that of the run; continue in the folder of a run that was killed meanwhile.

        Args:
            result: The result, with the scores of the twins.
            of_twins: Results of the twins that were measured.
        """
        killed = RunState.find(self.parent, self.digest)
        folder = new_folder(self.parent) if killed is None else killed.run
        unfinished = folder / f"state-{self.digest}"  # until all is written
        unfinished.mkdir(exist_ok=True)
        self.publish(folder, result)
        for name, of_twin in of_twins.items():
            self.twins[name].publish(folder / TWINS / name, of_twin, silent=True)
        if of_twins and result.ratios and not self.settings.quiet:
            folders = " ".join(str(folder / TWINS / name) for name in of_twins)
            advice = f"Differences with intervals and p: probing compare {folder} {folders}"
            Console().print(Text(advice), soft_wrap=True)
        unfinished.rmdir()

    def publish(self, folder: Path, result: Result, *, silent: bool = False) -> None:
        """Write the settings and the result into a folder, and print the result unless `silent`."""
        folder.mkdir(parents=True, exist_ok=True)
        save_config(self.parser, self.settings, folder / "config.yaml")
        publish(
            folder,
            result,
            self.provenance,
            limit=self.devices.limit,
            figures=self.figures,
            quiet=self.settings.quiet,
            silent=silent,
        )


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


def _digest(parser: Parser, settings: Namespace, data: object) -> str:
    """Return the digest of the options, this program and the data files; the same on any devices."""
    plain = yaml.safe_load(parser.dump(settings, skip_none=False))
    devices = plain["trainer"]
    plain["trainer"] = {name: devices[name] for name in ("precision", "limit_test_batches", "fast_dev_run")}
    plain["sources"] = sources_of(data)
    return run_digest("measure", plain, 1)
