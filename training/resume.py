"""Saved state of a run, from which the same command continues an interrupted run to the same numbers."""

import atexit
import io
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor
from torch.distributed.constants import default_pg_timeout
from torchmetrics import Metric

from datamodules.corpus import CorpusDataModule
from processes import preemption
from processes.ranks import LostRank, Ranks
from results.files import is_full, keep, kept, remove_leftovers
from training.checkpoints import TrainingError
from training.faults import has_waited, is_of_another
from training.lightning_private import (
    continue_training,
    limit_collectives,
    random_states,
    repeat_batch,
    set_random_states,
    set_update_count,
    started_processes,
    steps_of,
)
from training.run import RunState

EVERY = 300.0
"""Seconds of training between two saved states; SIGKILL leaves no time to save one."""

PATIENCE = 30.0
"""Seconds for the other processes of an interrupted run to stop by themselves."""


class Wish(IntEnum):
    """Request of a rank before a training batch: go on, save the state, or stop.

    The ranks exchange their requests, and all follow the greatest.
    """

    GO_ON = 0
    SAVE = 1
    STOP = 2


class StopBetweenBatches(Callback):
    """Callback that stops a training, test or prediction between two batches after a signal, without saving a state."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Raise `Interrupted` before a training batch if a signal has come."""
        preemption.check()

    def on_test_batch_start(self, *_: object) -> None:
        """Raise `Interrupted` before a test batch if a signal has come."""
        preemption.check()

    def on_predict_batch_start(self, *_: object) -> None:
        """Raise `Interrupted` before a batch of predictions if a signal has come."""
        preemption.check()


class Resume(StopBetweenBatches):
    """Callback that saves the state of a run, and stops the run between two batches after a signal.

    All ranks stop a training before the same batch; a validation is finished first. A test saves no state and
    starts again when the run is continued; its ranks stop one by one.

    At the end of a validation or test, each rank creates a file and waits for the files of the others before
    results are gathered. One rank may need an hour longer than another, and a collective would time out.

    Each working rank regularly touches another file. If a collective of a training times out because a rank is
    frozen, these files show which rank it is, and the error message names it.

    Args:
        state: State of the run.
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

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Send the path of the state folder from rank 0 to all ranks.

        If a signal to stop has already come, stop the run.

        Raises:
            Interrupted: A signal has come.
            TrainingError: A rank does not see the folder.
        """
        if trainer.world_size > 1:
            data = trainer.datamodule  # type: ignore[attr-defined]
            alone = Ranks(trainer.global_rank, trainer.world_size)
            self._ranks = data.ranks if isinstance(data, CorpusDataModule) else alone
            if self._group is None:
                # A collective on the GPU would wait for all queued kernels.
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
            # NCCL kills a process at its limit; the all-reduce before each batch, which waits `patience` seconds,
            # fails earlier with a message.
            spare = PATIENCE if dist.get_backend() != "gloo" else 0.0
            limit_collectives(limit.total_seconds() + spare)
        self._written = time.monotonic()  # when the data are set up
        if self._agreed() == Wish.STOP:
            preemption.stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop touching the file that shows that this rank is alive."""
        self._alive.close()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wait for the other ranks before the results of a validation are gathered.

        Raises:
            Interrupted: A signal has stopped another rank.
            LostRank: Another rank gives no sign of life.
        """
        self._validations += 1
        self._meet(f"validated{self._validations}")
        self._ranks.leave(self._place(f"validated{self._validations - 1}"))  # all ranks have passed it

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wait for the other ranks before the results of a test are gathered.

        Raises:
            Interrupted: A signal has stopped another rank.
            LostRank: Another rank gives no sign of life.
        """
        self._meet("tested")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make rank 0 wait for the other ranks before it deletes the saved state, which they may still be reading."""
        self._alive.close()
        if trainer.is_global_zero:
            self._ranks.meet(self._place("done"), self._place("left"))
        else:
            self._ranks.come(self._place("done"))

    def _meet(self, name: str) -> None:
        """Wait for the other ranks.

        Raises:
            Interrupted: A signal has stopped another rank.
            LostRank: Another rank has stopped touching its file.
        """
        if not self._ranks.meet(self._place(name), self._place("left")):
            preemption.stop()

    def _place(self, name: str) -> Path:
        return self.state.folder / f".{name}-{self._attempt}"

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Save the state if it is due; after a signal, save it and stop.

        The state is due `EVERY` seconds after it was last saved. It is enough that one rank finds it due
        or has received a signal. With accumulated gradients, the state is only saved after an optimiser
        step.

        At the first batch of a continued training, first restore what Lightning does not: the random
        states of each rank, the states of metrics, and the number of steps.

        Raises:
            Interrupted: A signal has come.
        """
        if self._restored is not None:
            set_random_states(self._restored["random"])
            _set_metric_states(pl_module, self._restored["metrics"])
            continue_training(trainer, self._restored["steps"])
            self._restored = None
        # A checkpoint does not hold accumulated gradients.
        wanted = self._agreed() if batch_idx % trainer.accumulate_grad_batches == 0 else Wish.GO_ON
        if wanted != Wish.GO_ON:
            self._save(trainer, pl_module)
            self._written = time.monotonic()
        if wanted == Wish.STOP:
            rank_zero_info(
                f"Stopped in epoch {trainer.current_epoch + 1}, before batch {batch_idx + 1}. The same command "
                f"continues the training."
            )
            preemption.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Delete the state folder of a run that fails before it has saved any work.

        The folder stays if the same command can continue the run: after a signal, the end of another
        process, or on a full disk. Processes that the trainer has started are killed if they do not stop
        by themselves.

        Raises:
            LostRank: The exception reports that a collective has timed out; the new message names the
                frozen rank.
        """
        children, lost = started_processes(trainer), self._lost(exception)
        self._alive.close()
        if isinstance(exception, preemption.Interrupted):
            if self._attempt:
                self._ranks.come(self._place("left"))
            _end(children)
            return
        goes_on = is_of_another(exception) or preemption.requested() is not None or is_full(exception)
        if trainer.is_global_zero and not goes_on and not self.state.holds_work:
            self.state.clear()
        for child in children:  # frozen, or about to print the same fault
            atexit.register(child.kill)  # not before: Lightning kills this process with its first child
        if lost is not None:
            raise lost from exception

    def _lost(self, exception: BaseException) -> LostRank | None:
        """Return the error that names the ranks for which a collective has waited too long; None for other errors."""
        if not has_waited(exception) or not self._attempt or preemption.requested() is not None:
            return None
        frozen = self._ranks.frozen(self.state.folder)
        if not frozen:
            return None
        who = f"rank {frozen[0]} gives" if len(frozen) == 1 else f"ranks {', '.join(map(str, frozen))} give"
        whose = "its" if len(frozen) == 1 else "their"
        return LostRank(
            f"{self.state.run}: {who} no sign of life; the others have waited for {self._ranks.patience:.0f} s "
            f"(--data.init_args.rank_timeout). Look at {whose} output; the same command continues the run."
        )

    def _agreed(self) -> Wish:
        late = time.monotonic() - self._written > EVERY
        wanted = Wish.STOP if preemption.requested() is not None else Wish.SAVE if late else Wish.GO_ON
        if self._group is not None:
            asked = torch.tensor(wanted)
            dist.all_reduce(asked, dist.ReduceOp.MAX, self._group)
            wanted = Wish(int(asked))
        return wanted

    def _save(self, trainer: Trainer, pl_module: LightningModule) -> None:
        own = {"random": random_states(), "metrics": _metric_states(pl_module), "steps": steps_of(trainer)}
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
            best = self.state.checkpoints.keep_best(paths)
        self._saving = {"ranks": ranks, "best": best, "log": self.state.log()}
        trainer.save_checkpoint(self.state.training, weights_only=False)
        self._saving = None
        if trainer.is_global_zero:
            self.state.checkpoints.drop_others(best.values())

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the data for resuming to the checkpoint of the saved state, and to no other checkpoint.

        The data are the random states, metric states and number of steps of each rank, the SHA-256 of
        the best checkpoints so far, and the content of `metrics.csv`. The state is saved just before a
        batch; `repeat_batch` changes the checkpoint so that the resumed training begins with this
        batch.
        """
        if self._saving is not None:
            checkpoint["resume"] = self._saving
            repeat_batch(checkpoint)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Read the random states, metric states and number of steps of this rank from the saved state.

        `on_train_batch_start` restores them at the first batch, because Lightning draws random numbers
        while it sets up the training. Other checkpoints are ignored.
        """
        if trainer.training and "resume" in checkpoint:
            self._restored = checkpoint["resume"]["ranks"][trainer.global_rank]


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait up to `PATIENCE` seconds for processes that were asked to stop, then kill the others."""
    deadline = time.monotonic() + PATIENCE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def _metrics(module: LightningModule) -> dict[str, Metric]:
    return {name: metric for name, metric in module.named_modules() if isinstance(metric, Metric)}


def _metric_states(module: LightningModule) -> dict[str, dict[str, Any]]:
    """Return the states of the updated metrics of a module, by name."""
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
        set_update_count(metrics[name], saved["updates"])


def kept_file(trainer: Trainer, name: str) -> Path | None:
    """Return the path of a file in the state folder of the run, where partial results are kept for resuming.

    Args:
        trainer: Trainer of the run.
        name: Name of the file.

    Returns:
        The path; None if the run saves no state.
    """
    states = [callback.state for callback in trainer.callbacks if isinstance(callback, Resume)]  # type: ignore[attr-defined]
    return states[0].folder / name if states else None


def kept_tensors(file: Path | None, compute: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], bool]:
    """Return the tensors that an interrupted run saved in `file`; if there are none, compute and save them.

    Args:
        file: File of the tensors; None saves nothing.
        compute: Function that returns the tensors.

    Returns:
        The tensors, and True if they were read from `file`; tensors from a file are on the CPU.
    """
    if file is not None and (saved := load_tensors(file)) is not None:
        return saved, True
    tensors = compute()
    if file is not None:
        save_tensors(file, tensors)
    return tensors, False


def load_tensors(file: Path) -> dict[str, Any] | None:
    """Return the tensors in a file written by `save_tensors`; None if it is missing or damaged."""
    content = kept(file)
    return None if content is None else torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def save_tensors(file: Path, tensors: Mapping[str, Any]) -> None:
    """Save tensors and plain values to a file atomically, with a checksum."""
    content = io.BytesIO()
    torch.save(dict(tensors), content)
    remove_leftovers(file.parent)
    keep(file, content.getbuffer())
