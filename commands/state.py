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
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock
from jsonargparse import ArgumentParser, Namespace

from attention_probing.datamodules.corpus import CorpusDataModule
from attention_probing.models.configs import with_short_classes
from attention_probing.results.digests import file_digest, source_digest
from attention_probing.results.errors import UserError
from attention_probing.results.files import keep, read_kept, remove_leftovers, try_folder
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
        if (content := read_kept(self.trained)) is not None:
            ended = json.loads(bytes(content))
            if not ended["best"] or _is_sound(Path(ended["best"]), ended["sha256"]):
                return SavedWork(ended=ended, log=ended["log"])
        if read_kept(self.training) is not None:
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
        if (lock := try_lock(state.folder / "lock")) is None:
            raise UserError(
                f"{state.run}: another process works on this run. Wait for it, or begin a new run with --resume never."
            )
        if found is not None:
            inform(f"Continues the unfinished run in {state.run}. To begin a new run, add `--resume never`.")
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
