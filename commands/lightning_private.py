"""The uses of private parts of Lightning by commands; `models.trained` has the others.

pyproject.toml bounds the minor version of Lightning for them. tests/commands/test_lightning_private.py has a test of
each, which fails when a library changes it.
"""

import csv
import io
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning_fabric.loggers.logger import rank_zero_experiment
from lightning_fabric.utilities.seed import _collect_rng_states, _set_rng_states
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter
from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher


class CommandLine(LightningCLI):
    """LightningCLI with public names for the private parts that a subclass uses."""

    @property
    def settings(self) -> Namespace:
        """Parsed settings of the chosen command, such as `fit`."""
        settings: Namespace = self.config[self.config.subcommand]
        return settings

    @property
    def objects(self) -> Namespace:
        """Settings of the chosen command, with objects in place of `class_path` and `init_args`."""
        objects: Namespace = self.config_init[self.config.subcommand]
        return objects

    @property
    def plain_settings(self) -> dict[str, Any]:
        """Settings of the chosen command in plain types, as written to `config.yaml`."""
        self._dump_config()
        plain: dict[str, Any] = self.config_dump
        return plain

    def parser_of(self, command: str) -> LightningArgumentParser:
        """Return the parser of one command of the command line."""
        return self._subcommand_parsers[command]

    def run_command(self) -> None:
        """Run the chosen command; the constructor of LightningCLI calls this last."""
        super()._run_subcommand(self.config.subcommand)

    def _run_subcommand(self, subcommand: str) -> None:
        self.run_command()

    def _parse_ckpt_path(self) -> None:
        """Do nothing: Lightning would silently replace the config's hyperparameters by the checkpoint's."""


class ContinuedCSVLogger(CSVLogger):
    """Logger that continues the `metrics.csv` of an interrupted run; Lightning's own logger would delete the file.

    Args:
        folder: Folder of the run.
        rows: Function that returns the earlier content of the file.
    """

    def __init__(self, folder: Path, rows: Callable[[], str]) -> None:
        super().__init__(folder, "", "")
        self._rows = rows

    @property
    @rank_zero_experiment
    def experiment(self) -> ExperimentWriter:
        """Writer of `metrics.csv`, which already holds the earlier rows."""
        if self._experiment is None:  # also in a forked process
            rows = self._rows()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Experiment logs directory .* exists and is not empty")
                self._experiment = ExperimentWriter(self.log_dir)
            for row in csv.DictReader(io.StringIO(rows)):
                self._experiment.metrics.append({name: text for name, text in row.items() if text})  # type: ignore[misc]
        assert isinstance(self._experiment, ExperimentWriter)
        return self._experiment


def guard_restoring(trainer: Trainer, refuse: Callable[[Exception], None]) -> None:
    """Let a trainer call `refuse` with any exception that it raises while it restores a training.

    A checkpoint that was received may hold anything, and Lightning and PyTorch raise what they meet in it.

    Args:
        trainer: The trainer, before it restores.
        refuse: Function that raises another exception, or returns to let this one pass.
    """
    connector = trainer._checkpoint_connector

    def guarded(restore: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **options: Any) -> None:  # noqa: ANN401 # of Lightning
            try:
                restore(*args, **options)
            except Exception as error:
                refuse(error)
                raise

        return call

    for name in ("_restore_modules_and_callbacks", "restore_training_state"):
        setattr(connector, name, guarded(getattr(connector, name)))


def overwrite(checkpoint: ModelCheckpoint) -> None:
    """Let a callback overwrite checkpoints of an earlier attempt, like `enable_version_counter: false`."""
    checkpoint._enable_version_counter = False


def set_root(trainer: Trainer, folder: Path) -> None:
    """Set the root folder of a trainer, where it looks for `hpc_ckpt_*.ckpt` on SLURM."""
    trainer._default_root_dir = str(folder)  # type: ignore[attr-defined]


def started_processes(trainer: Trainer) -> list[subprocess.Popen[bytes]]:
    """Return the processes that a trainer has started for the other ranks."""
    launcher = trainer.strategy.launcher
    return launcher.procs if isinstance(launcher, _SubprocessScriptLauncher) else []


def steps_of(trainer: Trainer) -> int:
    """Return the step that loggers record: the number of batches so far that ended in an optimiser step."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def continue_training(trainer: Trainer, steps: int) -> None:
    """Correct the counters of a trainer that continues from a checkpoint changed by `repeat_batch`.

    Lightning itself restores them wrongly. It counts one step too many if the checkpoint was written
    before the first batch of an epoch, and lets learning-rate schedules that monitor a dev score skip
    the continued epoch.

    Args:
        trainer: The trainer, after it has loaded the checkpoint.
        steps: Result of `steps_of` when the checkpoint was written.
    """
    trainer.fit_loop.epoch_loop._batches_that_stepped = steps
    trainer.fit_loop.restarting = False


def repeat_batch(checkpoint: dict[str, Any]) -> None:
    """Change a checkpoint written just before a batch so that training continues with this batch.

    Lightning has counted the batch as ready and would otherwise skip it.

    Args:
        checkpoint: Content of the checkpoint, changed in place.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    progress["is_last_batch"] = False
    for count in (progress["total"], progress["current"]):
        count["ready"] -= 1


def random_states() -> dict[str, Any]:
    """Return the states of all random number generators of this process, in plain types and tensors."""
    states = _collect_rng_states()
    kind, keys, *rest = states["numpy"]
    return {**states, "numpy": (kind, keys.tolist(), *rest)}


def set_random_states(states: dict[str, Any]) -> None:
    """Restore the random number generators of this process from the result of `random_states`."""
    _set_rng_states(states)
