"""The folder of a run: its config, its log, its checkpoints, and the state from which the same command continues it."""

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
from functools import cache, cached_property
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
from results.errors import UserError
from results.files import commit, is_full, keep, kept, remove_leftovers, temporary, write_atomically
from training.config import is_neutral, leaves

log = logging.getLogger(__name__)


def run_digest(command: str, config: Mapping[str, object], world: int) -> str:
    """Return a digest of the command, the options that change the numbers, and the number of devices."""
    options = [(name, value) for name, value in leaves(config) if not is_neutral(name)]
    text = json.dumps([command, sorted(options), world], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def source_digest() -> str:
    """Return the SHA-256 of the program, so that a mixture of results of different versions is noticed."""
    root, digest = Path(__file__).parent.parent, hashlib.sha256()
    rooms = [path.parent for path in root.glob("*/__init__.py") if path.parent.name not in ("benchmarks", "tests")]
    # Word lists and templates are YAML beside the code that reads them.
    for path in sorted(path for room in rooms for path in room.rglob("*") if path.suffix in (".py", ".yaml")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


class RunInUse(Exception):
    """Another process is at the same run."""


class Left(NamedTuple):
    """Undamaged remains of earlier attempts at a run.

    Attributes:
        training: the checkpoint from which the training goes on; None where it begins anew, or has ended.
        ended: how the training ended: `best`, a path within the run's folder, and `epochs_run`; None if it has not.
        best: SHA-256 of the checkpoints that are best so far, by their paths.
        log: rows of `metrics.csv`.
    """

    training: Path | None = None
    ended: Mapping[str, Any] | None = None
    best: Mapping[str, str] = MappingProxyType({})
    log: str = ""


@dataclass(frozen=True)
class OwnCheckpoints:
    """Checkpoints that a run has written itself, and copies of the best: its callbacks remove those that are no longer.

    Attributes:
        state: the folder of the state; copies and the list of names lie there.
    """

    state: Path

    @property
    def names(self) -> set[str]:
        """Paths of the checkpoints; see `name`."""
        content = kept(self._list)
        return set() if content is None else set(json.loads(bytes(content)))

    @property
    def _list(self) -> Path:
        return self.state / ".written.json"

    def name(self, path: Path) -> str:
        """Return a path relative to the folder of the run, which may be moved, or an absolute one outside."""
        whole, run = path.absolute(), self.state.parent.absolute()
        return str(whole.relative_to(run) if whole.is_relative_to(run) else whole)

    def note(self, path: Path, removed: bool = False) -> None:
        """Note that a checkpoint is the run's own, before it is written, or that it was removed."""
        own, name = self.names, self.name(path)
        keep(self._list, json.dumps([*(own - {name} if removed else own | {name})]).encode())

    def keep_best(self, paths: Iterable[str]) -> dict[str, str]:
        """Copy the checkpoints that are best now; return the SHA-256 of each by its name."""
        found = {}
        for path in map(Path, paths):
            if path.is_file():
                sha256 = found[self.name(path)] = file_digest(path)
                _link(path, self._copy(sha256))
        return found

    def drop_others(self, digests: Iterable[str]) -> None:
        """Remove the copies of all but these digests, once the state is written that names them."""
        names = {self._copy(sha256).name for sha256 in digests}
        for path in self._copy("*").parent.glob("*.ckpt"):
            if path.name not in names:
                path.unlink()

    def are_sound(self, digests: Iterable[str]) -> bool:
        """Return whether the copies of all these digests are undamaged."""
        return all([_is_sound(self._copy(sha256), sha256) for sha256 in digests])

    def put_back(self, best: Mapping[str, str]) -> None:
        """Replace the checkpoints of the run by the copies of the best, by their names; no other file is touched."""
        for name in {*self.names, *best}:
            (self.state.parent / name).unlink(missing_ok=True)
        for name, sha256 in best.items():
            _link(self._copy(sha256), self.state.parent / name)

    def _copy(self, sha256: str) -> Path:
        return self.state / "checkpoints" / f"{sha256}.ckpt"


@dataclass(frozen=True)
class RunState:
    """State of an unfinished run, kept in its folder; it is removed at the end of the run.

    Attributes:
        folder: `<folder of the run>/state-<digest>`.
    """

    folder: Path

    @classmethod
    def find(cls, parent: Path, digest: str) -> "RunState | None":
        """Return the state of the latest run of this digest below a folder that is not done; None without one."""
        numbers = {path: path.parent.name.removeprefix("version_") for path in parent.glob(f"version_*/state-{digest}")}
        found = {path: int(number) for path, number in numbers.items() if number.isdigit()}
        return cls(max(found, key=found.__getitem__)) if found else None

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.folder.parent

    @property
    def checkpoints(self) -> OwnCheckpoints:
        """The checkpoints of the run."""
        return OwnCheckpoints(self.folder)

    @property
    def training(self) -> Path:
        """The checkpoint of an unfinished training: weights, optimiser, position in the data, and everything else."""
        return self.folder / "training.ckpt"

    @property
    def trained(self) -> Path:
        """The file with what the test needs of a training that has ended."""
        return self.folder / "trained.json"

    @property
    def holds_work(self) -> bool:
        """Whether work would be lost with it: there is more than the lock and the signs that ranks give each other."""
        return any(path.name != "lock" for path in self.folder.glob("[!.]*"))

    def lock(self) -> int:
        """Hold the folder until the file descriptor that is returned is closed, or this process ends.

        Raises:
            RunInUse: another process has it.
            OSError: it is not there, or can hold no file.
        """
        lock = acquire_lock(self.folder / "lock")
        if lock is None:
            raise RunInUse(str(self.folder))
        if not (self.folder / "lock").exists():  # the other process has removed it
            os.close(lock)
            raise FileNotFoundError(str(self.folder))
        return lock

    @cached_property
    def left(self) -> Left:
        """Undamaged remains, as this process has found them; every process of the run finds the same."""
        if (content := kept(self.trained)) is not None:
            ended = json.loads(bytes(content))
            if not ended["best"] or _is_sound(self.run / ended["best"], ended["sha256"]):
                return Left(ended=ended, log=ended["log"])
        if kept(self.training) is not None:
            # A zip file, whose reader takes no notice of the checksum behind it.
            saved = torch.load(self.training, map_location="cpu", weights_only=True, mmap=True)["resume"]
            if self.checkpoints.are_sound(saved["best"].values()):
                return Left(self.training, best=saved["best"], log=saved["log"])
        return Left()

    def tidy(self) -> None:
        """Remove what is damaged, and put the checkpoints of the run back as they were in the state.

        What the run has written after it comes again; nothing else in its folder is touched.
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
        """Keep the end of the training: its best checkpoint, number of epochs and log."""
        path = Path(best)
        found = {"best": self.checkpoints.name(path), "sha256": file_digest(path)} if best else {"best": ""}
        keep(self.trained, json.dumps({**found, "epochs_run": epochs, "log": self.log()}).encode())

    def log(self) -> str:
        """Return the rows of `metrics.csv` so far."""
        path = self.run / "metrics.csv"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def log_left(self) -> str:
        """Return the rows of `metrics.csv` whose steps are not repeated."""
        # Where a forked process has trained, and is gone, the file has more of them.
        return max(self.left.log, self.log() if self.trained.exists() else "", key=len)

    def clear(self) -> None:
        """Remove the state of a run that is done; other processes see it vanish at once."""
        removed = self.folder.with_name(f".{self.folder.name}")
        with suppress(OSError):
            self.folder.rename(removed)
        for folder in (removed, self.folder):
            shutil.rmtree(folder, ignore_errors=True)
        stop = self.folder.name.replace("state-", ".stop-")
        for marker in self.run.parent.glob(f"{stop}.*"):  # those of earlier attempts too
            marker.unlink(missing_ok=True)


def open_state(parent: Path, digest: str, resume: bool) -> tuple[RunState, int]:
    """Return the state of the unfinished run of a digest, or of a new run, with its lock; see `RunState.lock`.

    Args:
        parent: the folder of the runs of a class.
        digest: see `run_digest`.
        resume: whether an unfinished run is continued.

    Raises:
        UserError: another process is at this run, or no folder can be made.
    """
    found = RunState.find(parent, digest) if resume else None
    state = found or RunState(new_folder(parent) / f"state-{digest}")
    try:
        if found is None:
            state.folder.mkdir()
        lock = state.lock()
        if found is not None:
            rank_zero_info(f"Continues the unfinished run in {state.run}; --resume never begins another one.")
            state.tidy()
    except RunInUse:
        raise UserError(
            f"{state.run}: another process is at this run. Wait for it, or begin one beside it with --resume never."
        ) from None
    except OSError as error:
        if found is not None and isinstance(error, FileNotFoundError):  # the other process has just ended
            return open_state(parent, digest, resume)
        raise UserError(
            f"{state.folder}: the state of the run cannot be read or written there ({error.strerror}). What is "
            f"kept there stays; give the same command again, once that is mended."
        ) from error
    return state, lock


def new_folder(parent: Path) -> Path:
    """Make the folder `<parent>/version_<n>` of a new run.

    Raises:
        UserError: it cannot be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in count():
            with suppress(FileExistsError):
                folder = parent / f"version_{number}"
                folder.mkdir()
                break
    except OSError as error:
        raise UserError(
            f"{parent}: no folder can be made there for the run ({error.strerror}). Give --trainer.default_root_dir a "
            f"folder that can be written."
        ) from error
    return folder


def remove_run(folder: Path) -> None:
    """Remove the files that a run writes before it computes anything, and its folder if nothing else is in it."""
    for pattern in ("config.yaml", "hparams.yaml", "metrics.csv", "tensorboard/*tfevents*", "tensorboard/hparams.yaml"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    for path in folder.glob("state-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in (folder / "tensorboard", folder / "checkpoints", folder, folder.parent):
        with suppress(OSError):
            path.rmdir()


def _is_sound(path: Path, sha256: str) -> bool:
    """Return whether a file is unchanged; name it in the log if not."""
    sound = path.is_file() and file_digest(path) == sha256
    if not sound:
        log.warning("%s is damaged or missing, and is made again.", path)
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
    """Writes the checkpoints of a run: each appears whole or not at all, and is noted in the state.

    Args:
        state: of the run; its own checkpoint is one that `results.files.kept` reads.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None) -> None:
        """Write a checkpoint; `storage_options` are not used."""
        content, place = io.BytesIO(), Path(path)
        torch.save(checkpoint, content)
        if place.absolute() == self._state.training.absolute():
            keep(place, content.getbuffer())
            return
        self._state.checkpoints.note(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, content.getbuffer())

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint that is no longer among the best."""
        super().remove_checkpoint(path)
        self._state.checkpoints.note(Path(path), removed=True)


class RunConfig(Callback):
    """Writes `config.yaml` into the folder of the run; removes the folder of a run that fails before it computes.

    Args:
        folder: of the run.
        parser: of the command.
        config: the settings of the command.
    """

    def __init__(self, folder: Path, parser: LightningArgumentParser, config: Namespace) -> None:
        self.folder, self._parser, self._config = folder, parser, config
        self._path = folder / "config.yaml"
        self._written = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write the config, once the data are set up."""
        if self._written or not trainer.is_global_zero:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            # jsonargparse 4.49 deprecates what Lightning 2.6 uses as well; without it `encoder: null` would be lost.
            warnings.filterwarnings("ignore", message=r"\s*skip_none .* deprecated")
            self._parser.save(self._config, self._path, skip_none=False, overwrite=True)
        self._written = True

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what is trained, on what, and where the run is written."""
        if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= trainer.current_epoch:
            return  # nothing is
        count = sum(parameter.numel() for parameter in pl_module.parameters() if parameter.requires_grad)
        on = f"on {trainer.world_size} × {trainer.strategy.root_device.type}"
        rank_zero_info(f"Training {type(pl_module).__name__}, {count:,} parameters, {on}, in {self.folder}")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Store the text of `config.yaml` in the checkpoint, so that it can be used without its folder."""
        if self._path.is_file():
            checkpoint["config"] = self._path.read_text(encoding="utf-8")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove the folder of the run if nothing was computed yet."""
        if not trainer.is_global_zero:
            return
        begun = any(self.folder.rglob("*.ckpt")) or (self.folder / "results.json").exists()
        early = isinstance(exception, UserError | MisconfigurationException) or not self._path.exists()
        if early and not begun and not is_full(exception):
            remove_run(self.folder)
