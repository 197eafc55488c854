"""Folder of a run: config, log, checkpoints, and the state from which the same command continues the run."""

import hashlib
import io
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jsonargparse import Namespace
from lightning_fabric.plugins import TorchCheckpointIO
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.cli import LightningArgumentParser
from pytorch_lightning.utilities import rank_zero_info

from processes.ranks import acquire_lock
from results.digests import file_digest
from results.digests import source_digest as source_digest
from results.errors import UserError
from results.files import commit, is_full, keep, kept, remove_leftovers, temporary, write_atomically
from training.config import score_settings

log = logging.getLogger(__name__)


def run_digest(command: str, config: Mapping[str, object], world: int) -> str:
    """Return a hash of what identifies a run: command, options that affect its scores, and number of devices.

    Args:
        command: Command of train.py.
        config: Config of the run.
        world: Number of devices.
    """
    text = json.dumps([command, sorted(score_settings(config).items()), world], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Left(NamedTuple):
    """Work that an interrupted run has left, as far as its files are undamaged.

    Attributes:
        training: Checkpoint from which the training continues; None if the training must start again or has ended.
        ended: Facts about a training that has ended: `best`, the path of its best checkpoint within the run's
            folder (empty if there is none), and `epochs_run`, its number of epochs. None if no training has
            ended.
        best: SHA-256 of each of the best checkpoints so far, by path within the run's folder; empty unless
            `training` is given.
        log: Content of `metrics.csv` when the work was saved.
    """

    training: Path | None = None
    ended: Mapping[str, Any] | None = None
    best: Mapping[str, str] = MappingProxyType({})
    log: str = ""


@dataclass(frozen=True)
class OwnCheckpoints:
    """Checkpoints written by a run, and copies of the best ones.

    The copies are needed because `ModelCheckpoint` deletes a checkpoint when it finds a better one.

    Attributes:
        state: State folder of the run, which holds the copies, and a list of the checkpoints that the
            run has written and not deleted.
    """

    state: Path

    @property
    def names(self) -> set[str]:
        """Names of the checkpoints that the run has written and not deleted, in the form that `name` returns."""
        content = kept(self.state / ".written.json")
        return set() if content is None else set(json.loads(bytes(content)))

    def name(self, path: Path) -> str:
        """Return the name of a checkpoint: its path relative to the run's folder, or absolute if it lies elsewhere.

        A relative path stays valid if the run's folder is moved.
        """
        whole, run = path.absolute(), self.state.parent.absolute()
        return str(whole.relative_to(run) if whole.is_relative_to(run) else whole)

    def note(self, path: Path, removed: bool = False) -> None:
        """Record that the run is about to write a checkpoint or, if `removed`, that it has deleted one."""
        own, name = self.names, self.name(path)
        names = sorted(own - {name} if removed else own | {name})
        keep(self.state / ".written.json", json.dumps(names).encode())

    def keep_best(self, paths: Iterable[str]) -> dict[str, str]:
        """Copy checkpoints into the state folder, and return the SHA-256 of each copied checkpoint.

        Checkpoints that do not exist are skipped.

        Args:
            paths: Paths of the best checkpoints.

        Returns:
            SHA-256 by name of the checkpoint, as the method `name` returns it.
        """
        found = {}
        for path in map(Path, paths):
            if path.is_file():
                sha256 = found[self.name(path)] = file_digest(path)
                _link(path, self.copy(sha256))
        return found

    def drop_others(self, digests: Iterable[str]) -> None:
        """Delete all copies of checkpoints except those with these SHA-256 digests.

        Call it only after the saved state that refers to the remaining copies has been written.
        """
        names = {self.copy(sha256).name for sha256 in digests}
        for path in self.copy("*").parent.glob("*.ckpt"):
            if path.name not in names:
                path.unlink()

    def put_back(self, best: Mapping[str, str]) -> None:
        """Delete the checkpoints that the run has written, and put the copies of the best ones in their place.

        Other files are left alone.

        Args:
            best: SHA-256 of each best checkpoint, by name.
        """
        for name in {*self.names, *best}:
            (self.state.parent / name).unlink(missing_ok=True)
        for name, sha256 in best.items():
            _link(self.copy(sha256), self.state.parent / name)

    def copy(self, sha256: str) -> Path:
        """Return the path, in the state folder, for the copy of the checkpoint with this SHA-256.

        Nothing is copied: `keep_best` writes the file, which may not exist yet.
        """
        return self.state / "checkpoints" / f"{sha256}.ckpt"


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
    def checkpoints(self) -> OwnCheckpoints:
        """Checkpoints written by the run, with copies of the best."""
        return OwnCheckpoints(self.folder)

    @property
    def training(self) -> Path:
        """Path of the checkpoint of an unfinished training: weights, optimiser, data position and random states."""
        return self.folder / "training.ckpt"

    @property
    def trained(self) -> Path:
        """Path of the file about a training that has ended: best checkpoint, number of epochs, log."""
        return self.folder / "trained.json"

    @property
    def holds_work(self) -> bool:
        """True if the state folder has files other than the lock and the hidden files of the ranks."""
        return any(path.name != "lock" for path in self.folder.glob("[!.]*"))

    def lock(self) -> int:
        """Lock the state folder until the returned file descriptor is closed or this process ends.

        Raises:
            UserError: Another process has the lock.
            OSError: The folder does not exist or cannot be written.
        """
        lock = acquire_lock(self.folder / "lock")
        if lock is None:
            raise UserError(
                f"{self.run}: another process is working on this run. Wait for it, or begin a new run with --resume "
                "never."
            )
        if not (self.folder / "lock").exists():  # the other process has removed it
            os.close(lock)
            raise FileNotFoundError(str(self.folder))
        return lock

    @cached_property
    def left(self) -> Left:
        """Work that an interrupted run has left; it is read from the files at the first access, and not again."""
        if (content := kept(self.trained)) is not None:
            ended = json.loads(bytes(content))
            if not ended["best"] or _is_sound(self.run / ended["best"], ended["sha256"]):
                return Left(ended=ended, log=ended["log"])
        if kept(self.training) is not None:
            # The reader of zip files ignores the checksum appended to it.
            saved = torch.load(self.training, map_location="cpu", weights_only=True, mmap=True)["resume"]
            if all([_is_sound(self.checkpoints.copy(sha256), sha256) for sha256 in saved["best"].values()]):
                return Left(self.training, best=saved["best"], log=saved["log"])
        return Left()

    def tidy(self) -> None:
        """Delete damaged files, and restore the checkpoints that the run had when the state was saved.

        The checkpoints of a training that has ended are left as they are.
        """
        for folder in (self.run, self.folder, self.run / "checkpoints"):
            remove_leftovers(folder)
        if self.left.ended is not None:
            return
        self.trained.unlink(missing_ok=True)
        if self.left.training is None:
            self.training.unlink(missing_ok=True)
        self.checkpoints.put_back(self.left.best)

    def keep_trained(self, best: str, epochs: int | None) -> None:
        """Write the file `trained`: the best checkpoint, number of epochs and log of an ended training.

        Args:
            best: Path of the best checkpoint, empty if there is none. It is stored relative to the
                run's folder, with the SHA-256 of the checkpoint.
            epochs: Number of epochs of the training, as in `epochs_run`.
        """
        path = Path(best)
        found = {"best": self.checkpoints.name(path), "sha256": file_digest(path)} if best else {"best": ""}
        keep(self.trained, json.dumps({**found, "epochs_run": epochs, "log": self.log()}).encode())

    def log(self) -> str:
        """Return the content of the run's `metrics.csv`; empty if there is no such file."""
        path = self.run / "metrics.csv"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def log_left(self) -> str:
        """Return the rows of `metrics.csv` up to the time when the state was saved.

        Later rows are dropped, because a resumed run repeats their steps.
        """
        # After a training in forked processes, which have ended, the file itself is longer.
        return max(self.left.log, self.log() if self.trained.exists() else "", key=len)

    def clear(self) -> None:
        """Delete the state of a finished run; other processes see it whole or not at all."""
        removed = self.folder.with_name(f".{self.folder.name}")
        with suppress(OSError):
            self.folder.rename(removed)
        for folder in (removed, self.folder):
            shutil.rmtree(folder, ignore_errors=True)
        stop = self.folder.name.replace("state-", ".stop-")
        for marker in self.run.parent.glob(f"{stop}.*"):  # of earlier attempts too
            marker.unlink(missing_ok=True)


def open_state(parent: Path, digest: str, resume: bool) -> tuple[RunState, int]:
    """Return the state of an unfinished or new run, and the file descriptor of its lock.

    The lock is held until the file descriptor is closed or this process ends.

    Args:
        parent: Folder of the runs of one model class.
        digest: Hash that identifies the run; see `run_digest`.
        resume: True continues the unfinished run with this digest, if there is one.

    Raises:
        UserError: Another process is working on the run, or its folder cannot be made or read.
    """
    found = RunState.find(parent, digest) if resume else None
    try:
        state = found or RunState(new_folder(parent) / f"state-{digest}")
        if found is None:
            state.folder.mkdir()
        lock = state.lock()
        if found is not None:
            rank_zero_info(f"Continues the unfinished run in {state.run}. To begin a new run, add `--resume never`.")
            state.tidy()
    except OSError as error:
        if found is None:
            raise UserError(
                f"{parent}: no folder can be made there for the run ({error.strerror}). Give "
                f"--trainer.default_root_dir a folder that can be written."
            ) from error
        if isinstance(error, FileNotFoundError):  # the other process has just ended
            return open_state(parent, digest, resume)
        raise UserError(
            f"{found.folder}: the saved state of the interrupted run cannot be read or written ({error.strerror}). "
            "Nothing was removed: repair the fault, then repeat the command."
        ) from error
    return state, lock


def new_folder(parent: Path) -> Path:
    """Make the folder `<parent>/version_<n>` of a new run, and return its path."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in count():
        with suppress(FileExistsError):
            (folder := parent / f"version_{number}").mkdir()
            break
    return folder


def remove_run(folder: Path) -> None:
    """Delete the files that a run writes before it computes anything, then its folders if they are empty."""
    for pattern in ("config.yaml", "hparams.yaml", "metrics.csv", "tensorboard/*tfevents*", "tensorboard/hparams.yaml"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    for path in folder.glob("state-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in (folder / "tensorboard", folder / "checkpoints", folder, folder.parent):
        with suppress(OSError):
            path.rmdir()


def _is_sound(path: Path, sha256: str) -> bool:
    """Return True if a file has this SHA-256; else log its name."""
    sound = path.is_file() and file_digest(path) == sha256
    if not sound:
        fault = "is damaged" if path.is_file() else "is missing"
        log.warning("%s %s, so training is repeated to make it again.", path, fault)
    return sound


def _link(path: Path, other: Path) -> None:
    other.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, other)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        shutil.copyfile(path, temporary(other))
        commit(temporary(other), other)


class RunCheckpoints(TorchCheckpointIO):
    """Lightning plugin that writes the checkpoints of a run atomically, and records them in its state.

    One checkpoint is not recorded: `RunState.training`, from which an unfinished training continues.
    It is written with a checksum instead.

    Args:
        state: State of the run.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None) -> None:
        """Write a checkpoint atomically; `storage_options` is ignored."""
        content, place = io.BytesIO(), Path(path)
        torch.save(checkpoint, content)
        if place.absolute() == self._state.training.absolute():
            keep(place, content.getbuffer())
            return
        self._state.checkpoints.note(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, content.getbuffer())

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete a checkpoint, and record this in the state of the run."""
        super().remove_checkpoint(path)
        self._state.checkpoints.note(Path(path), removed=True)


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
        with warnings.catch_warnings():
            # jsonargparse 4.49 deprecates `skip_none`, which Lightning 2.6 uses too; `encoder: null` must be kept.
            warnings.filterwarnings("ignore", message=r"\s*skip_none .* deprecated")
            self._parser.save(self._config, self._path, skip_none=False, overwrite=True)
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
