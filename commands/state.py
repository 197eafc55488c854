"""Folder of a run: config, log, checkpoints, and the state from which the same command continues an interrupted run."""

import hashlib
import json
import logging
import shutil
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from filelock import FileLock
from jsonargparse import ArgumentParser, Namespace

from attention_probing.datamodules.corpus import CorpusDataModule
from attention_probing.models.checkpoints import CHECKPOINTS, LAST, damage
from attention_probing.models.configs import with_short_classes
from attention_probing.results.digests import Digests, source_digest
from attention_probing.results.errors import UserError
from attention_probing.results.files import remove_leftovers, try_folder, write_atomically
from attention_probing.results.locks import try_lock
from attention_probing.results.progress import inform
from attention_probing.results.settings import score_settings

log = logging.getLogger(__name__)


def run_digest(command: str, config: Mapping[str, object], world: int) -> str:
    """Return a hash of what identifies a run: command, options that affect its scores, and number of devices.

    Args:
        command: Command of the program.
        config: Config of the run.
        world: Number of devices.
    """
    text = json.dumps([command, sorted(score_settings(config).items()), world], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sources_of(data: object) -> list[object]:
    """Return a digest of this program, and the names and SHA-256 of the files of a datamodule."""
    sources: list[object] = [source_digest()]
    if isinstance(data, CorpusDataModule):
        files = sorted(data.files().items())
        digests = Digests(data.cache).of(path for _, path in files if path.is_file())
        sources += [[name, digests[path]] for name, path in files if path in digests]
    return sources


class SavedTraining(NamedTuple):
    """Training that an interrupted run saved.

    Attributes:
        checkpoint: Checkpoint from which the training continues.
        epochs: Number of finished epochs.
        ended: True if the training had ended, so that only its test is missing.
        best: Path of the best checkpoint so far; empty if there is none.
        log: Content of `metrics.csv` after these epochs.
    """

    checkpoint: Path
    epochs: int
    ended: bool
    best: str
    log: str


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
        folders = dict[int, Path]()
        for folder in parent.glob(f"version_*/state-{digest}"):
            number = folder.parent.name.removeprefix("version_")
            if number.isdigit():
                folders[int(number)] = folder
        if not folders:
            return None
        return cls(folders[max(folders)])

    @property
    def run(self) -> Path:
        """Folder of the run to which the state belongs."""
        return self.folder.parent

    @property
    def checkpoint(self) -> Path:
        """Path of the checkpoint that `Resume` writes after each epoch."""
        return self.folder / LAST

    @property
    def log(self) -> Path:
        """Path of the log of the run, which `MetricsFile` writes."""
        return self.run / "metrics.csv"

    @cached_property
    def training(self) -> SavedTraining | None:
        """Training in `checkpoint`; None if there is none, or if a file that it needs is missing or damaged.

        The files are read at the first access, and not again.
        """
        if not self.checkpoint.is_file() or not _is_whole(self.checkpoint):
            return None
        content = torch.load(self.checkpoint, map_location="cpu", weights_only=True, mmap=True)
        resume = content["resume"]
        if not all(_is_whole(Path(path)) for path in resume["checkpoints"]):
            return None
        return SavedTraining(self.checkpoint, content["epoch"], resume["ended"], resume["best"], resume["log"])

    def prepare(self) -> None:
        """Delete what the continued run must not find: temporary files, a damaged checkpoint, later rows of the log."""
        for folder in (self.run, self.folder, self.run / CHECKPOINTS):
            remove_leftovers(folder)
        if self.training is None:
            self.checkpoint.unlink(missing_ok=True)
        if self.training is not None and self.training.log:
            write_atomically(self.log, self.training.log)
        else:
            self.log.unlink(missing_ok=True)

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
    unfinished = None
    try:
        if resume:
            unfinished = RunState.find(parent, digest)
        state = unfinished or RunState(new_folder(parent) / f"state-{digest}")
        state.folder.mkdir(exist_ok=True)
        lock = try_lock(state.folder / "lock")
        if lock is None:
            raise UserError(
                f"{state.run}: another process works on this run. Wait for it, or begin a new run with --resume never."
            )
        if unfinished is not None:
            inform(f"Continues the unfinished run in {state.run}. To begin a new run, add `--resume never`.")
            state.prepare()
    except OSError as error:
        if unfinished is None:
            raise no_folder(parent, error) from error
        raise UserError(
            f"{unfinished.folder}: the saved state of the interrupted run cannot be read or written "
            f"({error.strerror}). Nothing was removed: repair the fault, then repeat the command."
        ) from error
    return state, lock


def new_folder(parent: Path) -> Path:
    """Make the folder `<parent>/version_<n>` of a new run, and return its path.

    Raises:
        UserError: It cannot be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        number = 0
        while True:
            folder = parent / f"version_{number}"
            with suppress(FileExistsError):
                folder.mkdir()
                return folder
            number += 1
    except OSError as error:
        raise no_folder(parent, error) from error


def check_new_folder(parent: Path) -> None:
    """Make the folder of a new run and delete it again, with the folders above it that were not there.

    Raises:
        UserError: It cannot be made.
    """
    try:
        try_folder(parent)
    except OSError as error:
        raise no_folder(parent, error) from error


def no_folder(parent: Path, error: OSError) -> UserError:
    """Return the UserError for a folder in which no folder of a run can be made."""
    return UserError(
        f"{parent}: no folder can be made there for the run ({error.strerror}). Give --trainer.default_root_dir a "
        "folder that can be written."
    )


def save_config(parser: ArgumentParser, config: Namespace, path: Path) -> None:
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
    for path in (folder / CHECKPOINTS, folder, folder.parent):
        with suppress(OSError):
            path.rmdir()


def _is_whole(path: Path) -> bool:
    """Return True if a file is an undamaged checkpoint; else log its name."""
    fault = damage(path)
    if fault is None:
        return True
    log.warning("%s: %s, so training is repeated to make it again.", path, fault)
    return False
