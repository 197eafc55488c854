"""Folder of a run: config, log, checkpoints, and the state from which the same command continues an interrupted run."""

import atexit
import hashlib
import io
import json
import logging
import shutil
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from filelock import FileLock
from jsonargparse import Namespace
from lightning_fabric.plugins import TorchCheckpointIO
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser
from pytorch_lightning.utilities import rank_zero_info

from attention_probing.commands.faults import RankLocks, is_of_another
from attention_probing.commands.lightning_private import (
    continue_training,
    random_states,
    repeat_batch,
    set_random_states,
    started_processes,
    steps_of,
)
from attention_probing.datamodules.corpus import CorpusDataModule
from attention_probing.models import TrainingError
from attention_probing.models.configs import with_short_classes
from attention_probing.results.digests import file_digest, source_digest
from attention_probing.results.errors import UserError
from attention_probing.results.files import is_full, keep, kept, remove_leftovers, try_folder, write_atomically
from attention_probing.results.locks import held
from attention_probing.results.settings import score_settings

log = logging.getLogger(__name__)


def run_digest(command: str, config: Mapping[str, object], world: int) -> str:
    """Return a hash of what identifies a run: command, options that affect its scores, and number of devices.

    Args:
        command: Command of probing.
        config: Config of the run.
        world: Number of devices.
    """
    text = json.dumps([command, sorted(score_settings(config).items()), world], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sources_of(data: object) -> list[object]:
    """Return a digest of this program, and the sizes of the files of a datamodule."""
    files = data.files() if isinstance(data, CorpusDataModule) else {}
    return [source_digest(), [[name, path.stat().st_size] for name, path in sorted(files.items()) if path.is_file()]]


class SavedWork(NamedTuple):
    """Work that an interrupted run saved, as far as its files are undamaged.

    Attributes:
        training: Checkpoint from which the training continues; None if it must start again or has ended.
        ended: Facts about a training that has ended: `best`, the path of its best checkpoint (empty if there is none),
            and `epochs_run`, its number of epochs. None if no training has ended.
        log: Content of `metrics.csv` when the work was saved.
    """

    training: Path | None = None
    ended: Mapping[str, Any] | None = None
    log: str = ""


@dataclass(frozen=True)
class RunState:
    """Saved state of an unfinished run: a folder that is deleted when the run ends.

    Attributes:
        folder: The folder, `<folder of the run>/state-<digest>`.
    """

    folder: Path

    @classmethod
    def find(cls, parent: Path, digest: str) -> "RunState | None":
        """Return the state of the latest unfinished run with this digest; None if there is none.

        Args:
            parent: Folder of the runs.
            digest: Hash that identifies the run; see `run_digest`.
        """
        numbers = {path: path.parent.name.removeprefix("version_") for path in parent.glob(f"version_*/state-{digest}")}
        found = {path: int(number) for path, number in numbers.items() if number.isdigit()}
        return cls(max(found, key=found.__getitem__)) if found else None

    @property
    def run(self) -> Path:
        """Folder of the run to which the state belongs."""
        return self.folder.parent

    @property
    def training(self) -> Path:
        """Path of the checkpoint of an unfinished training, written before the first batch of each epoch."""
        return self.folder / "last.ckpt"

    @property
    def trained(self) -> Path:
        """Path of the file about a training that has ended: best checkpoint, number of epochs, log."""
        return self.folder / "trained.json"

    @property
    def holds_work(self) -> bool:
        """True if the state folder has files other than the lock."""
        return any(path.name != "lock" for path in self.folder.glob("[!.]*"))

    @cached_property
    def saved_work(self) -> SavedWork:
        """Work that an interrupted run saved; it is read from the files at the first access, and not again."""
        if (content := kept(self.trained)) is not None:
            ended = json.loads(bytes(content))
            if not ended["best"] or _is_sound(Path(ended["best"]), ended["sha256"]):
                return SavedWork(ended=ended, log=ended["log"])
        if kept(self.training) is not None:
            # The reader of zip files ignores the checksum appended to it.
            saved = torch.load(self.training, map_location="cpu", weights_only=True, mmap=True)["resume"]
            if all([_is_sound(Path(path), sha256) for path, sha256 in saved["best"].items()]):
                return SavedWork(self.training, log=saved["log"])
        return SavedWork()

    def tidy(self) -> None:
        """Delete temporary files, and the files of the state that are damaged or out of date."""
        for folder in (self.run, self.folder, self.run / "checkpoints"):
            remove_leftovers(folder)
        if self.saved_work.ended is None:
            self.trained.unlink(missing_ok=True)
            if self.saved_work.training is None:
                self.training.unlink(missing_ok=True)

    def keep_trained(self, best: str, epochs: int | None) -> None:
        """Write the file `trained`: best checkpoint with its SHA-256, number of epochs and log of an ended training.

        Args:
            best: Path of the best checkpoint, empty if there is none.
            epochs: Number of epochs of the training, as in `epochs_run`.
        """
        sha256 = file_digest(Path(best)) if best else ""
        found = {"best": best, "sha256": sha256, "epochs_run": epochs, "log": self.log()}
        keep(self.trained, json.dumps(found).encode())

    def log(self) -> str:
        """Return the content of the run's `metrics.csv`; empty if there is no such file."""
        path = self.run / "metrics.csv"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def log_left(self) -> str:
        """Return the rows of `metrics.csv` up to the saved state; a resumed run repeats later ones."""
        # After a training in forked processes, which have ended, the file itself is longer.
        return max(self.saved_work.log, self.log() if self.trained.exists() else "", key=len)

    def clear(self) -> None:
        """Delete the state of a finished run; other processes see it whole or not at all."""
        removed = self.folder.with_name(f".{self.folder.name}")
        with suppress(OSError):
            self.folder.rename(removed)
        for folder in (removed, self.folder):
            shutil.rmtree(folder, ignore_errors=True)


def open_state(parent: Path, digest: str, resume: bool) -> tuple[RunState, FileLock]:
    """Return the state of an unfinished or new run, and its lock, held until it is released or this process ends.

    Args:
        parent: Folder of the runs of one model class.
        digest: Hash that identifies the run; see `run_digest`.
        resume: True continues the unfinished run with this digest, if there is one.

    Raises:
        UserError: Another process is working on the run, or its folder cannot be made or read.
    """
    found = None
    try:
        if resume:
            found = RunState.find(parent, digest)
        state = found or RunState(new_folder(parent) / f"state-{digest}")
        state.folder.mkdir(exist_ok=True)
        if (lock := held(state.folder / "lock")) is None:
            raise UserError(
                f"{state.run}: another process works on this run. Wait for it, or begin a new run with --resume never."
            )
        if found is not None:
            rank_zero_info(f"Continues the unfinished run in {state.run}. To begin a new run, add `--resume never`.")
            state.tidy()
    except OSError as error:
        if found is None:
            raise no_folder(parent, error) from error
        raise UserError(
            f"{found.folder}: the saved state of the interrupted run cannot be read or written ({error.strerror}). "
            "Nothing was removed: repair the fault, then repeat the command."
        ) from error
    return state, lock


def new_folder(parent: Path) -> Path:
    """Make the folder `<parent>/version_<n>` of a new run, and return its path.

    Raises:
        UserError: It cannot be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in count():
            with suppress(FileExistsError):
                (folder := parent / f"version_{number}").mkdir()
                break
    except OSError as error:
        raise no_folder(parent, error) from error
    return folder


def check_new_folder(parent: Path) -> None:
    """Make the folder of a new run and delete it again, with the folders above it that were not there.

    Raises:
        UserError: It cannot be made.
    """
    try:
        try:
            try_folder(parent)
        except FileNotFoundError:  # another run may just have deleted what it had made here to try
            try_folder(parent)
    except OSError as error:
        raise no_folder(parent, error) from error


def no_folder(parent: Path, error: OSError) -> UserError:
    """Return the UserError for a folder in which no folder of a run can be made."""
    return UserError(
        f"{parent}: no folder can be made there for the run ({error.strerror}). Give --trainer.default_root_dir a "
        "folder that can be written."
    )


def save_config(parser: LightningArgumentParser, config: Namespace, path: Path) -> None:
    """Write the settings of a run, with all defaults, to `config.yaml`."""
    with warnings.catch_warnings():
        # jsonargparse 4.49 deprecates `skip_none`, which Lightning 2.6 uses too; `encoder: null` must be kept.
        warnings.filterwarnings("ignore", message=r"\s*skip_none .* deprecated")
        # In one file: what a file of --data says would else be written beside it, without a checksum.
        parser.save(config, path, skip_none=False, overwrite=True, multifile=False)
    path.write_text(with_short_classes(path.read_text(encoding="utf-8")), encoding="utf-8")


def remove_run(folder: Path) -> None:
    """Delete what a run writes before it computes anything, then its folders if they are empty."""
    for path in (*folder.glob("state-*"), folder / "tensorboard"):
        shutil.rmtree(path, ignore_errors=True)
    for name in ("config.yaml", "metrics.csv"):
        (folder / name).unlink(missing_ok=True)
    for path in (folder / "checkpoints", folder, folder.parent):
        with suppress(OSError):
            path.rmdir()


def _is_sound(path: Path, sha256: str) -> bool:
    """Return True if a file has this SHA-256; else log its name."""
    sound = path.is_file() and file_digest(path) == sha256
    if not sound:
        fault = "is damaged" if path.is_file() else "is missing"
        log.warning("%s %s, so training is repeated to make it again.", path, fault)
    return sound


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
        rank_zero_info(f"Training {type(pl_module).__name__}, {count:,} parameters, {on}, in {self.folder}")

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
