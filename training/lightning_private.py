"""The private parts of Lightning, torch and torchmetrics that a run needs.

pyproject.toml bounds the minor version of Lightning for them. tests/training/test_lightning_private.py has a test of
each, which fails when a library changes it.
"""

import csv
import io
import signal
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from jsonargparse import Namespace
from lightning_fabric.loggers.logger import rank_zero_experiment
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter
from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher
from torchmetrics import Metric


class CommandLine(LightningCLI):
    """LightningCLI with public names for the private steps that a subclass reads or changes."""

    @property
    def settings(self) -> Namespace:
        """Settings of the command, as parsed."""
        settings: Namespace = self.config[self.config.subcommand]
        return settings

    @property
    def objects(self) -> Namespace:
        """Settings of the command, with an object in the place of each class."""
        objects: Namespace = self.config_init[self.config.subcommand]
        return objects

    @property
    def plain_settings(self) -> dict[str, Any]:
        """Settings of the command in plain types, as `config.yaml` has them."""
        self._dump_config()
        plain: dict[str, Any] = self.config_dump
        return plain

    def parser_of(self, command: str) -> LightningArgumentParser:
        """Return the parser of one command."""
        return self._subcommand_parsers[command]

    def run_command(self) -> None:
        """Run the command: the last step of Lightning's constructor."""
        super()._run_subcommand(self.config.subcommand)

    def _run_subcommand(self, subcommand: str) -> None:
        self.run_command()

    def _parse_ckpt_path(self) -> None:
        """Do nothing: Lightning would silently replace the hyperparameters of the config by those of the checkpoint."""


class ContinuedCSVLogger(CSVLogger):
    """Continues the `metrics.csv` of a run, which Lightning's own logger would remove.

    Args:
        folder: of the run.
        rows: returns the rows of the steps that are not repeated, as CSV.
    """

    def __init__(self, folder: Path, rows: Callable[[], str]) -> None:
        super().__init__(folder, "", "")
        self._rows = rows

    @property
    @rank_zero_experiment
    def experiment(self) -> ExperimentWriter:
        """The writer of the file, which has the rows that are kept."""
        if self._experiment is None:  # as in a forked process, whose parent knows nothing of the rows either
            rows = self._rows()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Experiment logs directory .* exists and is not empty")
                self._experiment = ExperimentWriter(self.log_dir)
            for row in csv.DictReader(io.StringIO(rows)):
                self._experiment.metrics.append({name: text for name, text in row.items() if text})  # type: ignore[misc]
        assert isinstance(self._experiment, ExperimentWriter)
        return self._experiment


def attached_trainer(module: LightningModule) -> Trainer | None:
    """Return the trainer that runs a module, None without one; `module.trainer` would raise."""
    return module._trainer


def ignore_signals(trainer: Trainer) -> None:
    """Keep Lightning from handling signals: it saves within a batch, and talks to other ranks wherever they are."""
    trainer._signal_connector.register_signal_handlers = _register_none  # type: ignore[method-assign]


def _register_none() -> None:
    """Register no handler; a function of this module, because strategies that spawn processes pickle the trainer."""


def set_root(trainer: Trainer, folder: Path) -> None:
    """Make a folder the root of a trainer: on SLURM it continues from any `hpc_ckpt_*.ckpt` that it finds there."""
    trainer._default_root_dir = str(folder)  # type: ignore[attr-defined]


def started_processes(trainer: Trainer) -> list[subprocess.Popen[bytes]]:
    """Return the processes that a trainer has started by running the program once more for each."""
    launcher = trainer.strategy.launcher
    return launcher.procs if isinstance(launcher, _SubprocessScriptLauncher) else []


def signal_started(trainer: Trainer, number: signal.Signals) -> None:
    """Send a signal to the processes that a trainer has started."""
    for process in started_processes(trainer):
        process.send_signal(number)


def steps_of(trainer: Trainer) -> int:
    """Return the number of batches that the optimiser has stepped on, by which loggers count."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def continue_training(trainer: Trainer, steps: int) -> None:
    """Correct how Lightning continues from a checkpoint that `repeat_batch` has changed.

    It counts a step more where the first batch of an epoch is next, and schedules of the learning rate that watch dev
    would leave out the epoch that is continued.
    """
    trainer.fit_loop.epoch_loop._batches_that_stepped = steps
    trainer.fit_loop.restarting = False


def repeat_batch(checkpoint: dict[str, Any]) -> None:
    """Have the training continue with the batch before which the checkpoint was made.

    Lightning has counted it as ready, and would leave it out.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    progress["is_last_batch"] = False
    for count in (progress["total"], progress["current"]):
        count["ready"] -= 1


def set_update_count(metric: Metric, count: int) -> None:
    """Set how often a metric was updated; one that was not warns when it is computed."""
    metric._update_count = count


def limit_collectives(seconds: float) -> None:
    """Set how long a collective of all ranks waits for one of them.

    torch 2.13 has no public function for it; the limit with which Lightning makes the group holds for all stages.
    """
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))


@contextmanager
def alone() -> Iterator[None]:
    """Keep a trainer inside a test from the other ranks, which do something else.

    Metrics gather from all processes, and Lightning warns of values that are not reduced, wherever `torch.distributed`
    is initialised, whatever trainer they belong to: both ask this function of torch.
    """
    initialised = dist.is_initialized
    dist.is_initialized = lambda: False
    try:
        yield
    finally:
        dist.is_initialized = initialised
