"""Training inside a test, to the optimum on dev; the random numbers of the test stay as they are."""

import io
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.utilities import rank_zero_info
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor

from processes.ranks import Ranks
from results.errors import counted
from results.files import keep, kept, remove_leftovers
from training.checkpoints import TrainingError
from training.lifecycle import TrainedModule
from training.lightning_private import alone, ignore_signals
from training.resume import StopBetweenBatches


class Best(NamedTuple):
    """The end of a training."""

    state: Mapping[str, Tensor]  # the parameters of the best epoch, by name, on the CPU
    epochs: int  # passes over the training data
    epoch: int  # the best of them, counted from 1
    value: float  # what was monitored, in that epoch
    stopped: bool  # for lack of improvement, rather than at the most epochs
    part: Mapping[str, Any] = MappingProxyType({})  # what else a checkpoint says of a `TrainedModule`


def load_best(path: Path) -> Best | None:
    """Return a training that ended earlier and was kept; None where there is none, or its file is damaged."""
    content = kept(path)
    return None if content is None else Best(**torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))


def save_best(path: Path, best: Best) -> None:
    """Keep a training that has ended; the file appears whole or not at all."""
    content = io.BytesIO()
    torch.save({**best._asdict(), "part": dict(best.part)}, content)
    remove_leftovers(path.parent)
    keep(path, content.getbuffer())


class Training(NamedTuple):
    """A training inside a test, independent of the others."""

    name: str  # for the log
    file: Path | None  # keeps the outcome; None for nowhere
    train: Callable[[], Best]
    cost: float = 1.0  # about how long it takes, in proportion to the others


def share(trainings: Sequence[Training], ranks: Ranks) -> list[Best]:
    """Return the outcome of each training; each is made by one rank as by a single device, or was kept earlier.

    Each training falls to the rank that has the least to do, the longest ones first. What is kept nowhere cannot be
    shared: every rank makes it.

    Raises:
        LostRank: another rank gives no sign of life.
        Interrupted: a signal has come; what has ended is kept.
    """
    loads, owners = [0.0] * ranks.world, [ranks.rank] * len(trainings)
    for place in sorted(range(len(trainings)), key=lambda place: -trainings[place].cost):
        if trainings[place].file is not None:
            owners[place] = loads.index(min(loads))
            loads[owners[place]] += trainings[place].cost
    found: dict[int, Best] = {}
    with ExitStack() as alive:
        for folder in {training.file.parent for training in trainings if training.file is not None}:
            folder.mkdir(parents=True, exist_ok=True)
            alive.enter_context(ranks.alive(folder))
        for place in sorted(range(len(trainings)), key=lambda place: owners[place] != ranks.rank):  # own ones first
            name, file, train, _ = trainings[place]
            if owners[place] == ranks.rank:
                found[place], how = _made(file, train)
            else:
                assert file is not None
                found[place] = ranks.wait_for(partial(load_best, file), owners[place], file)
                how = f"by rank {owners[place]}"
            best = found[place]
            cut = "" if best.stopped else ", cut off by max_epochs"
            rank_zero_info(
                f"{name}: {how}, {counted(best.epochs, 'epoch')}{cut}; best is {best.value:.4f} in epoch {best.epoch}."
            )
    return [found[place] for place in range(len(trainings))]


def _made(file: Path | None, train: Callable[[], Best]) -> tuple[Best, str]:
    """Return the outcome of a training of this rank, and where it comes from."""
    if file is not None and (kept := load_best(file)) is not None:
        return kept, "found"
    began = time.perf_counter()
    best = train()
    if file is not None:
        save_best(file, best)
    return best, f"trained in {time.perf_counter() - began:.1f} s"


def train_nested(
    module: LightningModule,
    *callbacks: Callback,
    monitor: str,
    mode: Literal["min", "max"],
    max_epochs: int,
    patience: int,
    seed: int,
    remedy: str,
    device: torch.device | None = None,
    every: int = 1,
    optimisation: Mapping[str, Any] | None = None,
    **data: Any,  # noqa: ANN401 # those of Trainer.fit
) -> Best:
    """Train a module, and return its parameters at the optimum on dev; the module keeps those of its last epoch.

    Args:
        module: what is trained.
        callbacks: beside those that keep the best epoch and stop the training.
        monitor: what the module logs on dev.
        mode: whether the lowest or the highest is best.
        max_epochs: validation checks after which training ends at the latest.
        patience: validation checks without improvement after which it ends.
        seed: of what is drawn in training, and of the parameters that are made in `setup`.
        remedy: what helps where the optimum is not finite, for the message.
        device: where it is trained; None for the CPU.
        every: epochs between validation checks; see `_ValidationChecks`.
        optimisation: further settings of the trainer, for instance `gradient_clip_val`.
        data: what `Trainer.fit` trains on.

    Raises:
        TrainingError: what is monitored is never a finite number.
    """
    with isolate_rng(), recorded_gradients(), TemporaryDirectory() as folder:
        torch.manual_seed(seed)
        checkpoint = ModelCheckpoint(folder, monitor=monitor, mode=mode, save_weights_only=True)
        stop = _ValidationChecks(monitor, mode=mode, patience=patience, every=every)
        epochs = max_epochs * every
        kept = (checkpoint, stop, StopBetweenBatches(), *callbacks)
        trainer = nested_trainer(device, *kept, epochs=epochs, every=every, **(optimisation or {}))
        with quiet(), alone():
            trainer.fit(module, **data)
        value = math.nan if checkpoint.best_model_score is None else float(checkpoint.best_model_score)
        if not math.isfinite(value):
            raise TrainingError(
                f"{type(module).__name__} has no optimum on dev: {monitor} is {value} at best. {remedy}"
            )
        best = torch.load(checkpoint.best_model_path, map_location="cpu", weights_only=True)
    stopped = stop.stopped_epoch > 0 or trainer.current_epoch < epochs  # some modules stop by themselves
    part = best.get(module.checkpoint_key, {}) if isinstance(module, TrainedModule) else {}
    return Best(best["state_dict"], trainer.current_epoch, int(best["epoch"]) + 1, value, stopped, part)


class _ValidationChecks(EarlyStopping):
    """Validates every so many epochs; only these checks count for patience and for schedules of the learning rate.

    Before the first check, validation also runs after 1, 2, 4, … epochs: with a few sentences the optimum may come long
    before it. These extra checks only let a better checkpoint be kept. The random numbers of training stay as they
    are, though every pass over a loader draws one.
    """

    def __init__(self, monitor: str, *, mode: Literal["min", "max"], patience: int, every: int) -> None:
        super().__init__(monitor, mode=mode, patience=patience)
        self.every = every
        self._extra = False
        self._isolated = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        for config in trainer.lr_scheduler_configs:
            if config.interval == "epoch":
                config.frequency *= self.every

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        self._extra = epoch < self.every and epoch.bit_count() == 1
        if isinstance(pl_module, TrainedModule):
            pl_module.extra_check = self._extra
        trainer.check_val_every_n_epoch = epoch if self._extra else self.every

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        if self._extra and trainer.is_last_batch:  # validation is next; no hook of its own is early enough
            self._isolated.enter_context(isolate_rng())

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._isolated.close()
        if not self._extra:
            super().on_validation_end(trainer, pl_module)


def nested_trainer(
    device: torch.device | None,
    *callbacks: Callback,
    epochs: int | None = None,
    every: int = 1,
    **optimisation: Any,  # noqa: ANN401 # those of Trainer
) -> Trainer:
    """Return a trainer that runs inside a test, on the CPU if no device is given, and prints and writes nothing.

    It has these callbacks alone, runs `epochs` at most, and validates after each `every` of them.
    """
    device = device or torch.device("cpu")
    with quiet():
        trainer = Trainer(
            accelerator=device.type,
            devices=1 if device.index is None else [device.index],
            plugins=[LightningEnvironment()],  # one process, whatever cluster the outer trainer found itself on
            max_epochs=epochs,
            check_val_every_n_epoch=every,
            callbacks=list(callbacks),
            logger=False,
            enable_checkpointing=bool(callbacks),
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            **optimisation,
        )
    ignore_signals(trainer)
    return trainer


@contextmanager
def recorded_gradients() -> Iterator[None]:
    """Record gradients inside a test; tensors that are made in the inference mode of its trainer have none."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def quiet(name: str = "pytorch_lightning.utilities.rank_zero") -> Iterator[None]:
    """Keep back a logger's messages below warnings, by default those of every Trainer about devices and its end."""
    lightning = logging.getLogger(name)
    level = lightning.level
    lightning.setLevel(logging.WARNING)
    try:
        yield
    finally:
        lightning.setLevel(level)
