"""Files that a training adds to the folder of its run: config, log, checkpoints, and the state to continue from."""

import atexit
import csv
import io
import random
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jsonargparse import Namespace
from lightning_fabric.plugins import TorchCheckpointIO
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from attention_probing.commands.faults import is_of_another
from attention_probing.commands.state import RunState, remove_run, save_config
from attention_probing.models import TrainingError
from attention_probing.results.errors import UserError
from attention_probing.results.files import is_full, write_atomically
from attention_probing.results.progress import inform


class RunCheckpoints(TorchCheckpointIO):
    """Lightning plugin that writes checkpoints atomically, and deletes outdated ones when `Resume` says so.

    Attributes:
        loading: True from the time a checkpoint is read until the training begins.
    """

    def __init__(self) -> None:
        self.loading = False
        self._outdated = set[Path]()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None) -> None:
        """Write a checkpoint atomically; `storage_options` is ignored."""
        content = io.BytesIO()
        torch.save(checkpoint, content)
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content.getbuffer())
        self._outdated.discard(file)

    def load_checkpoint(self, *args: Any, **options: Any) -> dict[str, Any]:  # noqa: ANN401 # as in Lightning
        """Read a checkpoint, and note that a training is being restored."""
        self.loading = True
        return super().load_checkpoint(*args, **options)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Note that a checkpoint is outdated; the saved state may still refer to it."""
        self._outdated.add(Path(path))

    def delete_outdated(self) -> None:
        """Delete the checkpoints given to `remove_checkpoint`."""
        while self._outdated:
            self._outdated.pop().unlink(missing_ok=True)


class Resume(Callback):
    """Callback that saves the training after every epoch, so that the same command continues it.

    A run that is killed at any time repeats at most one epoch; a test starts again. The checkpoint is written when the
    next epoch begins: by then Lightning has logged the epoch, and stepped the schedules that monitor a score on dev.
    Lightning restores all but the random numbers, which this callback adds to the checkpoint.

    Args:
        state: State of the run.
        checkpoints: Plugin of the trainer that writes checkpoints.
    """

    def __init__(self, state: RunState, checkpoints: RunCheckpoints) -> None:
        self.state = state
        self.checkpoints = checkpoints
        self._first_epoch = 0
        self._saved: dict[str, Any] | None = None
        self._random: Mapping[str, Any] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Send the path of the state folder from rank 0 to all ranks.

        Raises:
            TrainingError: A rank does not see the folder.
        """
        if trainer.world_size == 1:
            return
        self.state = RunState(Path(trainer.strategy.broadcast(str(self.state.folder.absolute()))))
        if not self.state.folder.is_dir():
            raise TrainingError(
                f"{self.state.folder}: rank {trainer.global_rank} does not see this folder of rank 0. Give "
                f"--trainer.default_root_dir a folder on a file system that all nodes share."
            )

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Read the random numbers of this rank from a checkpoint that `save` wrote."""
        if trainer.training and "resume" in checkpoint:
            self._random = checkpoint["resume"]["random"][trainer.global_rank]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the first epoch of this process."""
        self.checkpoints.loading = False
        self._first_epoch = trainer.current_epoch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the training after an epoch; in the first epoch of a continued training, restore random numbers."""
        if trainer.current_epoch > self._first_epoch:
            self.save(trainer, ended=False)
        elif self._random is not None:
            set_random_states(self._random)
            # Lightning begins every epoch but the first of a process with a new pass, which draws a number.
            iter(trainer.train_dataloader)  # type: ignore[arg-type]
            # With --trainer.max_steps Lightning would look for the batch at which the epoch was interrupted.
            trainer.fit_loop.epoch_loop.restarting = False

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the end of the training, after which only the test is missing."""
        self.save(trainer, ended=True)

    def save(self, trainer: Trainer, *, ended: bool) -> None:
        """Write the checkpoint of the saved state, with the random numbers of all ranks; every rank calls this.

        Args:
            trainer: The trainer.
            ended: True if the training has ended.
        """
        states: list[Any] = [random_states()]
        if trainer.world_size > 1:
            states = [None] * trainer.world_size
            dist.all_gather_object(states, random_states())
        needed = set[str]()
        for callback in model_checkpoints(trainer):
            needed.update(callback.best_k_models, [callback.best_model_path, callback.last_model_path])
        log = ""
        if self.state.log.is_file():
            log = self.state.log.read_text(encoding="utf-8")
        self._saved = {
            "ended": ended,
            "best": best_checkpoint(trainer),
            "checkpoints": sorted(needed - {""}),
            "log": log,
            "random": states,
        }
        trainer.save_checkpoint(self.state.checkpoint, weights_only=False)
        self._saved = None
        self.checkpoints.delete_outdated()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add what Lightning does not save to the checkpoint of the saved state, and to no other."""
        if self._saved is None:
            return
        checkpoint["resume"] = self._saved
        if not self._saved["ended"]:
            # Lightning has counted the next epoch already, and would take it for one that was interrupted.
            epochs = checkpoint["loops"]["fit_loop"]["epoch_progress"]
            epochs["total"]["ready"] -= 1
            epochs["current"]["ready"] -= 1

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let rank 0, which then deletes the state, wait for the other ranks, which may still read it."""
        trainer.strategy.barrier()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Delete the state folder of a run that fails before it has saved any work, and end the processes it started.

        The folder stays if the same command can continue the run: after an interruption, the end of another process,
        or on a full disk.
        """
        goes_on = not isinstance(exception, Exception) or is_of_another(exception) or is_full(exception)
        if trainer.is_global_zero and not goes_on and not self.state.checkpoint.exists():
            self.state.clear()
        launcher = trainer.strategy.launcher
        if launcher is not None:  # other ranks are about to print the same fault
            # Not before the exit: Lightning kills this process with its first child.
            atexit.register(launcher.kill, signal.SIGKILL)


def random_states() -> dict[str, Any]:
    """Return the states of all random number generators of this process, in plain types and tensors."""
    algorithm, keys, *position = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (algorithm, np.asarray(keys).tolist(), *position),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_states(states: Mapping[str, Any]) -> None:
    """Restore the random number generators of this process from the result of `random_states`."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])


def model_checkpoints(trainer: Trainer) -> list[ModelCheckpoint]:
    """Return the callbacks of a trainer that keep the best checkpoints."""
    callbacks = []
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint):
            callbacks.append(callback)
    return callbacks


def best_checkpoint(trainer: Trainer) -> str:
    """Return the path of the best checkpoint of a training; empty if there is none."""
    for callback in model_checkpoints(trainer):
        if callback.best_model_path:
            return callback.best_model_path
    return ""


class MetricsFile(Logger):
    """Logger that adds rows to `metrics.csv`; Lightning's own logger deletes the rows of an interrupted run.

    Args:
        file: The file.
    """

    name = None  # the folder of the run has a name
    version = None  # the progress bar would show it

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    @property
    def save_dir(self) -> str:
        """Folder of the run."""
        return str(self.file.parent)

    @rank_zero_only
    def log_hyperparams(self, *args: object, **options: object) -> None:
        """Do nothing: `config.yaml` has all options."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a row; write the file anew if the row has a column that the file lacks."""
        row: dict[str, float | None] = dict(metrics)
        row["step"] = step
        columns: Sequence[str] = ()
        earlier: list[dict[str, str]] = []
        if self.file.is_file():
            with self.file.open(encoding="utf-8", newline="") as file:
                reader = csv.DictReader(file)
                columns = reader.fieldnames or ()
                if not row.keys() <= set(columns):
                    earlier = list(reader)
        if row.keys() <= set(columns):
            with self.file.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, columns).writerow(row)
            return
        content = io.StringIO()
        writer = csv.DictWriter(content, sorted({*columns, *row}))
        writer.writeheader()
        writer.writerows([*earlier, row])
        write_atomically(self.file, content.getvalue())


class RunConfig(Callback):
    """Callback that writes `config.yaml` into the folder of the run.

    If the run fails before it has computed anything, the callback deletes the folder; `on_exception` says
    in which cases.

    Args:
        folder: Folder of the run.
        parser: Parser of the command.
        config: Settings of the command.
        checkpoints: Plugin of the trainer that writes checkpoints.
    """

    def __init__(
        self, folder: Path, parser: LightningArgumentParser, config: Namespace, checkpoints: RunCheckpoints
    ) -> None:
        self.folder = folder
        self._parser = parser
        self._config = config
        self._checkpoints = checkpoints
        self._path = folder / "config.yaml"
        self._written = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write `config.yaml` into the folder of the run."""
        if self._written or not trainer.is_global_zero:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        save_config(self._parser, self._config, self._path)
        self._written = True

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the model, its number of parameters, the devices and the folder."""
        if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= trainer.current_epoch:
            return  # nothing is trained
        sizes = [parameter.numel() for parameter in pl_module.parameters() if parameter.requires_grad]
        model = f"{type(pl_module).__name__}, {sum(sizes):,} parameters"
        devices = f"{trainer.world_size} × {trainer.strategy.root_device.type}"
        inform(f"Training {model}, on {devices}, in {self.folder}")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Store the text of `config.yaml` in the checkpoint, so that the checkpoint can be used alone."""
        if self._path.is_file():
            checkpoint["config"] = self._path.read_text(encoding="utf-8")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Delete the folder of a run that fails before it has computed anything.

        This happens after a user's error, and after any error before `config.yaml` is written or while a checkpoint is
        restored. The folder stays if it has a checkpoint or a `results.json`, or if the disk is full.
        """
        if not trainer.is_global_zero:
            return
        has_results = any(self.folder.rglob("*.ckpt")) or (self.folder / "results.json").exists()
        is_users = isinstance(exception, UserError | MisconfigurationException)
        is_early = is_users or self._checkpoints.loading or not self._path.exists()
        if is_early and not has_results and not is_full(exception):
            remove_run(self.folder)
