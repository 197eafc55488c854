"""What a training adds to the folder of its run: config, checkpoints, and the state from which it is continued."""

import atexit
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from jsonargparse import Namespace
from lightning_fabric.plugins import TorchCheckpointIO
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser

from attention_probing.commands.faults import RankLocks, is_of_another
from attention_probing.commands.lightning_private import (
    continue_training,
    random_states,
    repeat_batch,
    set_random_states,
    started_processes,
    steps_of,
)
from attention_probing.commands.state import RunState, remove_run, save_config
from attention_probing.models import TrainingError
from attention_probing.results.digests import file_digest
from attention_probing.results.errors import UserError
from attention_probing.results.files import is_full, keep, write_atomically
from attention_probing.results.progress import inform


class RunCheckpoints(TorchCheckpointIO):
    """Lightning plugin that writes the checkpoints of a run atomically.

    A checkpoint that is no longer among the best is deleted only after the next saved state, which no longer refers to
    it. The saved state, `RunState.training`, is written with a checksum.

    Args:
        state: State of the run.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._outdated = set[Path]()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None) -> None:
        """Write a checkpoint atomically; `storage_options` is ignored."""
        content, place = io.BytesIO(), Path(path)
        torch.save(checkpoint, content)
        if place.absolute() == self._state.training.absolute():
            keep(place, content.getbuffer())
            self.delete_outdated()
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, content.getbuffer())
        self._outdated.discard(place)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete a checkpoint after the next saved state."""
        self._outdated.add(Path(path))

    def delete_outdated(self) -> None:
        """Delete the checkpoints given to `remove_checkpoint`."""
        while self._outdated:
            self._outdated.pop().unlink(missing_ok=True)


class Resume(Callback):
    """Callback that saves the state of a training before the first batch of every epoch but the first.

    A run that is killed at any time is continued by the same command, which repeats at most one epoch; a test starts
    again. Lightning restores all but the random states and the number of steps.

    Args:
        state: State of the run.
    """

    def __init__(self, state: RunState) -> None:
        self.state = state
        self._saving: dict[str, Any] | None = None
        self._restored: Mapping[str, Any] | None = None
        self._locks: RankLocks | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Send the path of the state folder from rank 0 to all ranks.

        Raises:
            TrainingError: A rank does not see the folder.
        """
        if trainer.world_size > 1:
            self.state = RunState(Path(trainer.strategy.broadcast(str(self.state.folder.absolute()))))
            if not self.state.folder.is_dir():
                raise TrainingError(
                    f"{self.state.folder}: rank {trainer.global_rank} does not see this folder of rank 0. Give "
                    f"--trainer.default_root_dir a folder on a file system that all nodes share."
                )
            if self._locks is None:  # else set by the training that precedes this test
                self._locks = RankLocks(self.state.folder, trainer.global_rank, trainer.world_size)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Save the state before the first batch of an epoch; at the first batch of a continued training, restore it."""
        if self._restored is not None:
            set_random_states(self._restored["random"])
            continue_training(trainer, self._restored["steps"])
            self._restored = None
        elif batch_idx == 0 and trainer.current_epoch > 0:
            own = {"random": random_states(), "steps": steps_of(trainer)}
            ranks = [own] * trainer.world_size
            if trainer.world_size > 1:
                dist.all_gather_object(ranks, own)
            for logger in trainer.loggers:
                logger.save()
            keepers = model_checkpoints(trainer)
            best = {path for one in keepers for path in (*one.best_k_models, one.last_model_path) if path}
            digests = {path: file_digest(Path(path)) for path in sorted(best) if Path(path).is_file()}
            self._saving = {"ranks": ranks, "best": digests, "log": self.state.log()}
            trainer.save_checkpoint(self.state.training, weights_only=False)
            self._saving = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that the training has ended, and delete the checkpoints that are not among the best."""
        if trainer.is_global_zero:
            self.state.keep_trained(best_checkpoint(trainer), trainer.current_epoch)
            if isinstance(writer := trainer.strategy.checkpoint_io, RunCheckpoints):
                writer.delete_outdated()

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let rank 0, which then deletes the state, wait for the other ranks, which may still read it."""
        trainer.strategy.barrier()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the data for resuming to the checkpoint of the saved state, and to no other checkpoint."""
        if self._saving is not None:
            checkpoint["resume"] = self._saving
            repeat_batch(checkpoint)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Read what `on_train_batch_start` restores: Lightning draws random numbers while it sets up the training."""
        if trainer.training and "resume" in checkpoint:
            self._restored = checkpoint["resume"]["ranks"][trainer.global_rank]

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Delete the state folder of a run that fails before it has saved any work, and end the processes it started.

        The folder stays if the same command can continue the run: after an interruption, the end of another process,
        or on a full disk.
        """
        if self._locks is not None:
            self._locks.explain(exception)
        goes_on = not isinstance(exception, Exception) or is_of_another(exception) or is_full(exception)
        if trainer.is_global_zero and not goes_on and not self.state.holds_work:
            self.state.clear()
        for child in started_processes(trainer):  # about to print the same fault
            atexit.register(child.kill)  # not before: Lightning kills this process with its first child


def model_checkpoints(trainer: Trainer) -> list[ModelCheckpoint]:
    """Return the callbacks of a trainer that keep the best checkpoints."""
    return [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]


def best_checkpoint(trainer: Trainer) -> str:
    """Return the path of the best checkpoint of a training; empty if there is none."""
    return next((one.best_model_path for one in model_checkpoints(trainer) if one.best_model_path), "")


class RunConfig(Callback):
    """Callback that writes `config.yaml` into the folder of the run.

    If the run fails before it has computed anything, the callback deletes the folder; `on_exception` says
    in which cases.

    Args:
        folder: Folder of the run.
        parser: Parser of the command.
        config: Settings of the command.
    """

    def __init__(self, folder: Path, parser: LightningArgumentParser, config: Namespace) -> None:
        self.folder, self._parser, self._config = folder, parser, config
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
        count = sum(parameter.numel() for parameter in pl_module.parameters() if parameter.requires_grad)
        on = f"on {trainer.world_size} × {trainer.strategy.root_device.type}"
        inform(f"Training {type(pl_module).__name__}, {count:,} parameters, {on}, in {self.folder}")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Store the text of `config.yaml` in the checkpoint, so that the checkpoint can be used alone."""
        if self._path.is_file():
            checkpoint["config"] = self._path.read_text(encoding="utf-8")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Delete the folder of a run that fails before it has computed anything.

        This happens after a user's error, and after any error before `config.yaml` is written. In both cases
        the folder stays if it has a checkpoint or a `results.json`, or if the disk is full.
        """
        if not trainer.is_global_zero:
            return
        begun = any(self.folder.rglob("*.ckpt")) or (self.folder / "results.json").exists()
        early = isinstance(exception, UserError | MisconfigurationException) or not self._path.exists()
        if early and not begun and not is_full(exception):
            remove_run(self.folder)
