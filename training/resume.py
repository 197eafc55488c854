"""An interrupted run is continued by the same command, to the same numbers."""

import csv
import hashlib
import json
import math
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
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
import torch.distributed as dist
from lightning_fabric.loggers.logger import rank_zero_experiment
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter
from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor
from torchmetrics import Metric

from datamodules.base import CorpusDataModule
from processes import locks, preemption
from processes.ranks import LostRank, Ranks
from results.files import commit, temporary, write_atomically
from training.config import is_neutral, leaves
from training.lifecycle import TrainingError

EVERY = 300.0
"""Seconds of training after which the state is written without a signal: SIGKILL leaves no time for it."""

PATIENCE = 30.0
"""Seconds that the other processes of an interrupted run have to stop by themselves."""

_NOTHING, _SAVE, _STOP = range(3)  # what all ranks do is the greatest that one of them wants


_LOST = re.compile(
    r"(?i)connection (was )?(closed|reset|refused)|broken pipe|timed out waiting|(operation|wait) timeout|"
    r"remote process exited"
)
"""What gloo, NCCL and their store say of a process that is gone."""


def run_digest(command: str, config: Mapping[str, object], world: int) -> str:
    """What tells a run from every other: the command, the options that change its numbers, the number of devices."""
    options = [(name, value) for name, value in leaves(config) if not is_neutral(name)]
    text = json.dumps([command, sorted(options), world], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def ignore_signals(trainer: Trainer) -> None:
    """Keep Lightning from handling signals: it saves within a batch, and talks to other ranks wherever they are."""
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]


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
    """Whether an error says that another process of the run has ended, or does not answer."""
    return isinstance(error, LostRank) or (
        isinstance(error, RuntimeError) and dist.is_initialized() and _LOST.search(str(error)) is not None
    )


class RunInUse(Exception):
    """Another process is at the same run."""


@dataclass(frozen=True)
class RunState:
    """What an unfinished run keeps in its folder to be continued; it is removed at the end of the run.

    Attributes:
        folder: `<folder of the run>/state-<digest>`.
    """

    folder: Path

    @classmethod
    def find(cls, parent: Path, digest: str) -> "RunState | None":
        """The state of the latest run of this digest below a folder that is not done; None without one."""
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
    def steps(self) -> float:
        """Steps of the training that are not repeated."""
        if self.trained.exists():
            return math.inf
        if not self.training.exists():
            return 0
        return int(torch.load(self.training, map_location="cpu", weights_only=True, mmap=True)["global_step"])

    @property
    def trained(self) -> Path:
        """What the test needs of a training that has ended."""
        return self.folder / "trained.json"

    @property
    def holds_work(self) -> bool:
        """Whether anything would be lost with it: more than the lock and the signs that ranks give each other."""
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

    def tidy(self) -> None:
        """Put the checkpoints back as they were in the state; what was written after it comes again."""
        if self.trained.exists():
            return
        if not self.training.exists():
            for path in self.run.iterdir():
                if path.is_file():
                    path.unlink()
        for path in self.run.glob("checkpoints/*.ckpt"):
            path.unlink()
        for path in self._best.glob("*.ckpt"):
            _link(path, self.run / "checkpoints" / path.name)

    def keep_best(self, checkpoints: Iterable[str]) -> None:
        """Keep the checkpoints that callbacks hold for best now: they remove them as soon as another is better."""
        for path in map(Path, checkpoints):
            (self._best / path.name).unlink(missing_ok=True)
            if path.is_file():
                _link(path, self._best / path.name)

    def drop_others(self, checkpoints: Iterable[str]) -> None:
        """Keep no others, now that the state is written which names these."""
        names = {Path(path).name for path in checkpoints}
        for path in self._best.glob("*.ckpt"):
            if path.name not in names:
                path.unlink()

    @property
    def _best(self) -> Path:
        return self.folder / "checkpoints"

    def keep_trained(self, best: str, epochs: int | None) -> None:
        """Note that the training has ended, and how."""
        write_atomically(self.trained, json.dumps({"best": best, "epochs_run": epochs}))

    def clear(self) -> None:
        """Remove it, at once for other processes: the run is done."""
        removed = self.folder.with_name(f".{self.folder.name}")
        with suppress(OSError):
            self.folder.rename(removed)
        for folder in (removed, self.folder):
            shutil.rmtree(folder, ignore_errors=True)


def _link(path: Path, other: Path) -> None:
    other.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, other)
    except OSError:  # a file system without links
        shutil.copyfile(path, other)


class ContinuedCSVLogger(CSVLogger):
    """Continues the `metrics.csv` of a run, which Lightning's own logger would remove.

    Args:
        state: of the run; rows of the steps that are not repeated are kept.
    """

    def __init__(self, state: RunState) -> None:
        super().__init__(state.run, "", "")
        self._state = state

    @property
    @rank_zero_experiment
    def experiment(self) -> ExperimentWriter:
        """The writer of the file, which has the rows that are kept."""
        if self._experiment is None:  # as in a forked process, whose parent knows nothing of the rows either
            kept = _rows(self._state.run / "metrics.csv", self._state.steps)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Experiment logs directory .* exists and is not empty")
                self._experiment = ExperimentWriter(self.log_dir)
            self._experiment.metrics.extend(kept)
        assert isinstance(self._experiment, ExperimentWriter)
        return self._experiment


def _rows(path: Path, steps: float) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = [{name: text for name, text in row.items() if text} for row in csv.DictReader(file)]
    return [row for row in rows if row.get("step", "").isdigit() and int(row["step"]) < steps]


class Resume(StopBetweenBatches):
    """Keeps the state of a run, and stops it between two batches when a signal asks for it.

    All ranks agree on the batch before which a training stops. A validation is finished first. A test keeps no state
    and begins again. Its ranks stop one by one, and meet before they gather what they have found: one may need an hour
    more than another for its share, and a collective waits for none that long.

    Args:
        state: where the state is kept.
    """

    def __init__(self, state: RunState) -> None:
        self.state = state
        self._group: dist.ProcessGroup | None = None
        self._ranks = Ranks()
        self._attempt = ""
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
        if self._agreed() == _STOP:
            preemption.stop()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give signs of life to the other ranks from here on."""
        self._alive.enter_context(self._ranks.alive(self.state.folder))

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
        """Forget the state of a run that fails before there is work in it; end processes that do not stop."""
        launcher = trainer.strategy.launcher
        self._alive.close()
        if isinstance(exception, preemption.Interrupted) and self._attempt:
            self._ranks.come(self._place("left"))
        if not isinstance(exception, preemption.Interrupted):
            known = is_of_another(exception) or preemption.requested() is not None or self.state.holds_work
            if trainer.is_global_zero and not known:
                self.state.clear()
            return
        if not isinstance(launcher, _SubprocessScriptLauncher):
            return
        deadline = time.monotonic() + PATIENCE
        for process in launcher.procs:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()

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
        partial = temporary(self.state.training)
        self._saving = {"ranks": ranks}
        trainer.save_checkpoint(partial, weights_only=False)
        self._saving = None
        if trainer.is_global_zero:
            keepers = [one for one in trainer.checkpoint_callbacks if isinstance(one, ModelCheckpoint)]
            self.state.keep_best(
                {path for one in keepers for path in (*one.best_k_models, one.last_model_path) if path}
            )
            commit(partial, self.state.training)

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
    """What the metrics of a module have counted so far."""
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
    """Where a part of an unfinished run keeps its outcome until the run is done; None where no state is kept."""
    states = [callback.state for callback in trainer.callbacks if isinstance(callback, Resume)]  # type: ignore[attr-defined]
    return states[0].folder / name if states else None


def random_states() -> dict[str, Any]:
    """The states of all generators of random numbers of this process, in plain types and tensors."""
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
