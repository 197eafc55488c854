"""An interrupted run is continued by the same command, to the same numbers."""

import atexit
import csv
import hashlib
import io
import json
import logging
import os
import random
import re
import shutil
import subprocess
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import torch
import torch.distributed as dist
from lightning_fabric.loggers.logger import rank_zero_experiment
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter
from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor
from torch.distributed.constants import default_pg_timeout
from torch.multiprocessing.spawn import ProcessRaisedException
from torchmetrics import Metric

from datamodules.corpus import CorpusDataModule
from processes import locks, preemption
from processes.ranks import LostRank, Ranks
from results.digests import file_digest
from results.files import commit, is_full, keep, kept, remove_leftovers, temporary, write_atomically
from training.config import is_neutral, leaves
from training.lifecycle import TrainingError

EVERY = 300.0
"""Seconds of training after which the state is written without a signal: SIGKILL leaves no time for it."""

PATIENCE = 30.0
"""Seconds that the other processes of an interrupted run have to stop by themselves."""

_NOTHING, _SAVE, _STOP = range(3)  # what all ranks do is the greatest that one of them wants


_LOST = re.compile(
    r"(?i)connection (was )?(closed|reset|refused)|broken pipe|timed out (waiting|initializing)|"
    r"(operation|wait) timeout|remote process exited"
)
"""What gloo, NCCL and their store say of a process that is gone."""

_WAITED = re.compile(r"(?i)timed out|timeout")
"""What they say of one that does not answer."""

log = logging.getLogger(__name__)


def run_digest(command: str, config: Mapping[str, object], world: int) -> str:
    """Return a digest of the command, the options that change the numbers, and the number of devices."""
    options = [(name, value) for name, value in leaves(config) if not is_neutral(name)]
    text = json.dumps([command, sorted(options), world], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def ignore_signals(trainer: Trainer) -> None:
    """Keep Lightning from handling signals: it saves within a batch, and talks to other ranks wherever they are."""
    trainer._signal_connector.register_signal_handlers = _register_none  # type: ignore[method-assign]


def _register_none() -> None:
    """Register no handler; a function of this module, because strategies that spawn processes pickle the trainer."""


class StopBetweenBatches(Callback):
    """Stops a training or a test between two batches, without keeping a state."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Stop if a signal asks for it.

        Raises:
            Interrupted: a signal has come.
        """
        preemption.check()

    def on_test_batch_start(self, *_: object) -> None:
        """Stop if a signal asks for it.

        Raises:
            Interrupted: a signal has come.
        """
        preemption.check()

    def on_predict_batch_start(self, *_: object) -> None:
        """Stop if a signal asks for it; `Interrupted`."""
        preemption.check()


def is_of_another(error: BaseException) -> bool:
    """Return whether an error says that another process of the run has ended, or does not answer."""
    if isinstance(error, ProcessRaisedException):  # by a process that was spawned; the last line is the error
        return _LOST.search(str(error).rstrip().rpartition("\n")[2]) is not None
    return isinstance(error, LostRank) or (
        isinstance(error, RuntimeError) and dist.is_initialized() and _LOST.search(str(error)) is not None
    )


def _limit_collectives(seconds: float) -> None:
    """Set how long a collective of all ranks waits for one of them: gradients, sums over devices, metrics.

    A device that runs into the limit of NCCL is killed by it; the question before each batch, which waits `seconds`,
    comes to an error in words before that.
    """
    if dist.get_backend() != "gloo":
        seconds += PATIENCE
    # torch 2.13 has no public function for it; the limit with which Lightning makes the group holds for all stages.
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))


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
class RunState:
    """State of an unfinished run, kept in its folder; it is removed at the end of the run.

    Attributes:
        folder: `<folder of the run>/state-<digest>`.
    """

    folder: Path

    @classmethod
    def find(cls, parent: Path, digest: str) -> "RunState | None":
        """Return the state of the latest run of this digest below a folder that is not done; None without one."""
        found = [
            path
            for path in parent.glob(f"version_*/state-{digest}")
            if path.parent.name.removeprefix("version_").isdigit()
        ]
        return cls(max(found, key=lambda path: int(path.parent.name.removeprefix("version_")))) if found else None

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.folder.parent

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
        """True where anything would be lost with it: more than the lock and the signs that ranks give each other."""
        return any(path.name != "lock" for path in self.folder.glob("[!.]*"))

    def lock(self) -> int:
        """Hold the folder until the file descriptor that is returned is closed, or this process ends.

        Raises:
            RunInUse: another process has it.
            OSError: it is not there, or can hold no file.
        """
        lock = locks.acquire(self.folder / "lock")
        if lock is None:
            raise RunInUse(str(self.folder))
        if not (self.folder / "lock").exists():  # the other process has removed it
            os.close(lock)
            raise FileNotFoundError(str(self.folder))
        return lock

    @cached_property
    def left(self) -> Left:
        """The remains that this process has found there; the same in every process of the run, whoever comes first."""
        if (content := kept(self.trained)) is not None:
            ended = json.loads(bytes(content))
            if not ended["best"] or _is_sound(self.run / ended["best"], ended["sha256"]):
                return Left(ended=ended, log=ended["log"])
        if kept(self.training) is not None:
            # A zip file, whose reader takes no notice of the checksum behind it.
            saved = torch.load(self.training, map_location="cpu", weights_only=True, mmap=True)["resume"]
            if all([_is_sound(self._copy(sha256), sha256) for sha256 in saved["best"].values()]):
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
        for name in {*self._own(), *self.left.best}:
            (self.run / name).unlink(missing_ok=True)
        for name, sha256 in self.left.best.items():
            _link(self._copy(sha256), self.run / name)

    def note(self, checkpoint: Path) -> None:
        """Note that a checkpoint is the run's own, before it is written: `tidy` removes no others."""
        keep(self._written, json.dumps([*self._own() - {self._name(checkpoint)}, self._name(checkpoint)]).encode())

    def forget(self, checkpoint: Path) -> None:
        """Note that a checkpoint of the run has been removed."""
        keep(self._written, json.dumps([*self._own() - {self._name(checkpoint)}]).encode())

    def _own(self) -> set[str]:
        """The checkpoints that the run has written, by their paths."""
        content = kept(self._written)
        return set() if content is None else set(json.loads(bytes(content)))

    @property
    def _written(self) -> Path:
        return self.folder / ".written.json"

    def _name(self, path: Path) -> str:
        """A path relative to the folder of the run, which may be moved, or an absolute one outside."""
        whole, run = path.absolute(), self.run.absolute()
        return str(whole.relative_to(run) if whole.is_relative_to(run) else whole)

    def keep_best(self, checkpoints: Iterable[str]) -> dict[str, str]:
        """Keep the checkpoints that callbacks hold for best now: they remove them as soon as another is better.

        Returns the SHA-256 of each, by its path.
        """
        found = {}
        for path in map(Path, checkpoints):
            if path.is_file():
                sha256 = found[self._name(path)] = file_digest(path)
                _link(path, self._copy(sha256))
        return found

    def drop_others(self, digests: Iterable[str]) -> None:
        """Keep none but those of these digests, now that the state is written which names them."""
        names = {self._copy(sha256).name for sha256 in digests}
        for path in self._copy("*").parent.glob("*.ckpt"):
            if path.name not in names:
                path.unlink()

    def _copy(self, sha256: str) -> Path:
        return self.folder / "checkpoints" / f"{sha256}.ckpt"

    def keep_trained(self, best: str, epochs: int | None) -> None:
        """Note that the training has ended, and how."""
        path = Path(best)
        found = {"best": self._name(path), "sha256": file_digest(path)} if best else {"best": "", "sha256": ""}
        keep(self.trained, json.dumps({**found, "epochs_run": epochs, "log": self.log()}).encode())

    def log(self) -> str:
        """Return the rows of `metrics.csv` so far."""
        path = self.run / "metrics.csv"
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def clear(self) -> None:
        """Remove it, at once for other processes: the run is done."""
        removed = self.folder.with_name(f".{self.folder.name}")
        with suppress(OSError):
            self.folder.rename(removed)
        for folder in (removed, self.folder):
            shutil.rmtree(folder, ignore_errors=True)


def remove_run(folder: Path) -> None:
    """Remove what a run has written before it computed anything, and its folder if nothing else is in it."""
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
        self._state.note(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, content.getbuffer())

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint that is no longer among the best."""
        super().remove_checkpoint(path)
        self._state.forget(Path(path))


class ContinuedCSVLogger(CSVLogger):
    """Continues the `metrics.csv` of a run, which Lightning's own logger would remove.

    Args:
        state: of the run; the rows of the steps that are not repeated are in it.
    """

    def __init__(self, state: RunState) -> None:
        super().__init__(state.run, "", "")
        self._state = state

    @property
    @rank_zero_experiment
    def experiment(self) -> ExperimentWriter:
        """The writer of the file, which has the rows that are kept."""
        if self._experiment is None:  # as in a forked process, whose parent knows nothing of the rows either
            rows, file = self._state.left.log, self._state.run / "metrics.csv"
            if self._state.trained.exists() and file.exists():  # a forked process has trained, and is gone
                rows = max(rows, file.read_text(encoding="utf-8", errors="replace"), key=len)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Experiment logs directory .* exists and is not empty")
                self._experiment = ExperimentWriter(self.log_dir)
            for row in csv.DictReader(io.StringIO(rows)):
                self._experiment.metrics.append({name: text for name, text in row.items() if text})  # type: ignore[misc]
        assert isinstance(self._experiment, ExperimentWriter)
        return self._experiment


class Resume(StopBetweenBatches):
    """Keeps the state of a run, and stops it between two batches when a signal asks for it.

    All ranks agree on the batch before which a training stops. A validation is finished first. A test keeps no state
    and begins again. Its ranks stop one by one. Before the ranks gather what they have found in a validation or a test
    they meet: one may need an hour more than another for its share, and a collective waits for none that long.

    While a rank works it gives signs of life. A collective of a training that waits for a frozen rank ends in an error
    after the limit of the run, which names the rank.

    Args:
        state: where the state is kept.
    """

    def __init__(self, state: RunState) -> None:
        self.state = state
        self._group: dist.ProcessGroup | None = None
        self._ranks = Ranks()
        self._attempt = ""
        self._validations = 0
        self._alive = ExitStack()
        self._saving: dict[str, Any] | None = None
        self._restored: Mapping[str, Any] | None = None
        self._written = time.monotonic()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop if a signal has come; let all ranks know the folder of the state, which the first has made.

        Raises:
            Interrupted: a signal has come.
            TrainingError: a rank does not see the folder.
        """
        if trainer.world_size > 1:
            data = trainer.datamodule  # type: ignore[attr-defined]
            alone = Ranks(trainer.global_rank, trainer.world_size)
            self._ranks = data.ranks if isinstance(data, CorpusDataModule) else alone
            if self._group is None:
                # A question on the GPU would wait for all that it has to do.
                self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._ranks.patience))
            own = str(self.state.folder.absolute()), uuid4().hex[:8]
            folder, self._attempt = trainer.strategy.broadcast(own)
            self.state = RunState(Path(folder))
            if not self.state.folder.is_dir():
                raise TrainingError(
                    f"{folder}: rank {trainer.global_rank} does not see this folder of rank 0. Give "
                    f"--trainer.default_root_dir a folder on a file system that all nodes share."
                )
            self._alive.enter_context(self._ranks.alive(self.state.folder))
            limit = timedelta(seconds=self._ranks.patience) if stage == "fit" else default_pg_timeout
            _limit_collectives(limit.total_seconds())
        if self._agreed() == _STOP:
            preemption.stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give no more signs of life."""
        self._alive.close()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Meet the other ranks, before what they have found is gathered.

        Raises:
            Interrupted: a signal has stopped another rank.
            LostRank: another rank gives no sign of life.
        """
        self._validations += 1
        if not self._ranks.meet(self._place(f"validated{self._validations}"), self._place("left")):
            preemption.stop()
        self._ranks.leave(self._place(f"validated{self._validations - 1}"))  # all have come to the next one

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Meet the other ranks, before what they have found is gathered.

        Raises:
            Interrupted: a signal has stopped another rank.
            LostRank: another rank gives no sign of life.
        """
        if not self._ranks.meet(self._place("tested"), self._place("left")):
            preemption.stop()

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have the first rank wait for the others, who may still read the state that it removes."""
        self._alive.close()
        if trainer.is_global_zero:
            self._ranks.meet(self._place("done"), self._place("left"))
        else:
            self._ranks.come(self._place("done"))

    def _place(self, name: str) -> Path:
        return self.state.folder / f".{name}-{self._attempt}"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the time to the next state from here."""
        self._written = time.monotonic()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Restore what Lightning does not, or write the state and stop if any rank is asked to.

        Raises:
            Interrupted: a signal has come.
        """
        if self._restored is not None:
            set_random_states(self._restored["random"])
            _set_metric_states(pl_module, self._restored["metrics"])
            # Lightning counts a step more where the first batch of an epoch is next, and its schedules of the learning
            # rate that watch dev would leave out the epoch that is continued.
            trainer.fit_loop.epoch_loop._batches_that_stepped = self._restored["steps"]
            trainer.fit_loop.restarting = False
            self._restored = None
        # Gradients that wait for further batches are in no checkpoint.
        wanted = self._agreed() if batch_idx % trainer.accumulate_grad_batches == 0 else _NOTHING
        if wanted != _NOTHING:
            self._save(trainer, pl_module)
            self._written = time.monotonic()
        if wanted == _STOP:
            rank_zero_info(
                f"Stopped in epoch {trainer.current_epoch + 1}, before batch {batch_idx + 1}. The same command "
                f"continues the training."
            )
            preemption.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Forget the state of a run that fails before there is work in it; end processes that do not stop.

        Raises:
            LostRank: the exception says that a collective has waited too long; this names the rank.
        """
        launcher = trainer.strategy.launcher
        procs = launcher.procs if isinstance(launcher, _SubprocessScriptLauncher) else []
        lost = self._lost(exception)
        self._alive.close()
        if isinstance(exception, preemption.Interrupted) and self._attempt:
            self._ranks.come(self._place("left"))
        if not isinstance(exception, preemption.Interrupted):
            known = is_of_another(exception) or preemption.requested() is not None or self.state.holds_work
            known = known or is_full(exception)  # the same command goes on, once there is room
            if trainer.is_global_zero and not known:
                self.state.clear()
            for process in procs:  # frozen, or about to tell the same fault
                atexit.register(process.kill)  # not before: Lightning kills this process with its first child
            if lost is not None:
                raise lost from exception
            return
        deadline = time.monotonic() + PATIENCE
        for process in procs:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()

    def _lost(self, exception: BaseException) -> LostRank | None:
        """Name the ranks for which a collective has waited too long, if that is what an exception says."""
        waited = isinstance(exception, RuntimeError) and is_of_another(exception) and _WAITED.search(str(exception))
        if not waited or not self._attempt or preemption.requested() is not None:
            return None
        frozen = self._ranks.frozen(self.state.folder)
        if not frozen:
            return None
        who = f"rank {frozen[0]} gives" if len(frozen) == 1 else f"ranks {', '.join(map(str, frozen))} give"
        return LostRank(
            f"{self.state.run}: {who} no sign of life, and the others have waited for {self._ranks.patience:.0f} s "
            f"(--data.init_args.rank_timeout). Look at its output; the same command goes on from what is kept."
        )

    def _agreed(self) -> int:
        late = time.monotonic() - self._written > EVERY
        wanted = _STOP if preemption.requested() is not None else _SAVE if late else _NOTHING
        if self._group is not None:
            asked = torch.tensor(wanted)
            dist.all_reduce(asked, dist.ReduceOp.MAX, self._group)
            wanted = int(asked)
        return wanted

    def _save(self, trainer: Trainer, pl_module: LightningModule) -> None:
        steps = trainer.fit_loop.epoch_loop._batches_that_stepped
        own = {"random": random_states(), "metrics": _metric_states(pl_module), "steps": steps}
        ranks = [own]
        if self._group is not None:
            ranks = [own] * dist.get_world_size()
            dist.all_gather_object(ranks, own, self._group)
        for logger in trainer.loggers:
            logger.save()
        best: dict[str, str] = {}
        if trainer.is_global_zero:
            keepers = [one for one in trainer.checkpoint_callbacks if isinstance(one, ModelCheckpoint)]
            paths = {path for one in keepers for path in (*one.best_k_models, one.last_model_path) if path}
            best = self.state.keep_best(paths)
        self._saving = {"ranks": ranks, "best": best, "log": self.state.log()}
        trainer.save_checkpoint(self.state.training, weights_only=False)
        self._saving = None
        if trainer.is_global_zero:
            self.state.drop_others(best.values())

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add to the state, not to other checkpoints, what Lightning leaves out."""
        if self._saving is None:
            return
        checkpoint["resume"] = self._saving
        # Lightning has counted the next batch as ready, and would leave it out.
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        progress["is_last_batch"] = False
        for count in (progress["total"], progress["current"]):
            count["ready"] -= 1

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep what is restored before the first batch: until then random numbers are drawn in making everything."""
        if trainer.training and "resume" in checkpoint:
            self._restored = checkpoint["resume"]["ranks"][trainer.global_rank]


def _metrics(module: LightningModule) -> dict[str, Metric]:
    return {name: metric for name, metric in module.named_modules() if isinstance(metric, Metric)}


def _metric_states(module: LightningModule) -> dict[str, dict[str, Any]]:
    """Return the states of the metrics of a module that have counted something."""
    return {
        name: {"state": dict(metric.metric_state), "updates": metric.update_count}
        for name, metric in _metrics(module).items()
        if metric.update_called
    }


def _set_metric_states(module: LightningModule, states: Mapping[str, Mapping[str, Any]]) -> None:
    metrics = _metrics(module)
    for name, saved in states.items():
        for key, value in saved["state"].items():
            setattr(metrics[name], key, value.to(metrics[name].device) if isinstance(value, Tensor) else value)
        metrics[name]._update_count = saved["updates"]


def kept_file(trainer: Trainer, name: str) -> Path | None:
    """Return the file of an outcome that is kept until the run is done; None where no state is kept."""
    states = [callback.state for callback in trainer.callbacks if isinstance(callback, Resume)]  # type: ignore[attr-defined]
    return states[0].folder / name if states else None


def random_states() -> dict[str, Any]:
    """Return the states of all generators of random numbers of this process, in plain types and tensors."""
    version, keys, gauss = random.getstate()
    kind, numbers, *rest = np.random.get_state()
    return {
        "python": [version, torch.tensor(keys), gauss],
        "numpy": [str(kind), torch.from_numpy(np.asarray(numbers).astype(np.int64)), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_states(states: Mapping[str, Any]) -> None:
    """Continue the random numbers where `random_states` found them."""
    version, keys, gauss = states["python"]
    random.setstate((version, tuple(keys.tolist()), gauss))
    kind, numbers, *rest = states["numpy"]
    np.random.set_state((kind, numbers.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"]:
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])
