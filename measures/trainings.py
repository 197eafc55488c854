"""Training of a module inside a measurement, up to its best dev epoch; it leaves all random states unchanged."""

import io
import math
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor
from torchmetrics import Metric

from attention_probing.metrics.gathered import Gathered
from attention_probing.metrics.rows import Rows
from attention_probing.models import (
    EarlyStoppingBySteps,
    TrainedModule,
    TrainingError,
    ignore_signals,
    recorded_gradients,
)
from attention_probing.models.progress import ProgressLines
from attention_probing.results import Result
from attention_probing.results.errors import UserError, pluralize, setting
from attention_probing.results.files import keep, read_kept, remove_leftovers
from attention_probing.results.locks import make_together
from attention_probing.results.progress import inform, quiet

_OF_ALL = "It is recommended to use .* when logging on epoch level in distributed"


class Best(NamedTuple):
    """Result of a training inside a measurement.

    Attributes:
        state: Parameters of the best epoch by name, on the CPU.
        epochs: Number of epochs of the training.
        epoch: Best epoch, from 1.
        value: Monitored score in the best epoch.
        stopped: True if early stopping or the module itself ended the training, False if the maximum number
            of epochs did.
        part: The module's part of a checkpoint; see `TrainedModule.checkpoint_part`.
    """

    state: Mapping[str, Tensor]
    epochs: int
    epoch: int
    value: float
    stopped: bool
    part: Mapping[str, Any] = MappingProxyType({})


class Training(NamedTuple):
    """A training inside a measurement, independent of all other trainings.

    Attributes:
        name: Name in the log.
        file: File for the result; None saves nothing.
        train: Function that runs the training.
        cost: Expected duration, relative to the other trainings.
    """

    name: str
    file: Path | None
    train: Callable[[], Best]
    cost: float = 1.0


def run_trainings(trainings: Sequence[Training]) -> list[Best]:
    """Run trainings, and return the result of each on every rank.

    Each training whose result is kept in a file runs on one rank only, the one that takes it first; the longest are
    taken first. Its file is read if it was made earlier. A training whose `file` is None is run by every rank.

    Args:
        trainings: The trainings, the same on all ranks.

    Returns:
        The results, in the order of `trainings`.

    Raises:
        UserError: The folder of a file cannot be written.
    """
    longest_first = sorted(trainings, key=lambda training: -training.cost)
    by_file = {training.file: training for training in longest_first if training.file is not None}
    _check_folders({file.parent for file in by_file})
    origins = {}  # of the results that this process does not make
    for file in by_file:
        origins[file] = "found in the saved state" if file.exists() else "by another process"

    def make(file: Path, training: Training) -> None:
        start = time.perf_counter()
        best = _load_or_train(training)
        del origins[file]
        _report(training, best, f"trained in {time.perf_counter() - start:.1f} s")

    missing = [training for training in trainings if training.file is None or not training.file.exists()]
    if missing:
        inform(f"Trains {pluralize(len(missing), 'model')}, the longest first.")
    makers = {}
    for file, training in by_file.items():
        makers[file] = partial(make, file, training)
    make_together(makers)
    results = []
    for training in trainings:
        best = _load_or_train(training)
        results.append(best)
        if training.file is None:
            _report(training, best, "trained by each process")
        elif training.file in origins:
            _report(training, best, origins[training.file])
    return results


def _check_folders(folders: Collection[Path]) -> None:
    """Make folders, and raise a UserError if one cannot be written."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=folder).close()
        except OSError as error:
            fault = f"no trained model can be kept there ({error.strerror})"
            remedy = f"Give {setting('data.cache')} a folder that can be written"
            raise UserError.at(folder, None, fault, remedy) from None


def _report(training: Training, best: Best, how: str) -> None:
    """Log the result of a training, and how it was got."""
    cut = "" if best.stopped else ", cut off by max_epochs"
    epochs = pluralize(best.epochs, "epoch")
    inform(f"{training.name}: {how}, {epochs}{cut}; best is {best.value:.4f} in epoch {best.epoch}.")


def _load_or_train(training: Training) -> Best:
    """Return the result that an earlier run has kept whole; else train, and keep the result."""
    file = training.file
    if file is None:
        return training.train()
    content = read_kept(file)
    if content is not None:
        return Best(**torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
    best = training.train()
    save_tensors(file, {**best._asdict(), "part": dict(best.part)})
    return best


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
    **data: Any,  # noqa: ANN401 # arguments of Trainer.fit
) -> Best:
    """Train a module and return its parameters at the best dev epoch; the module itself keeps its last parameters.

    Args:
        module: The module.
        callbacks: Callbacks besides the best checkpoint and early stopping.
        monitor: Name of a score that the module logs on dev.
        mode: `min` if the lowest score is best, else `max`.
        max_epochs: Maximum number of validation checks; the training has at most `max_epochs · every` epochs.
        patience: Number of validation checks without improvement before the training stops.
        seed: Seed of the training, and of parameters made in `setup`.
        remedy: Advice for the error message if the score is never finite.
        device: Device of the training; None for the CPU.
        every: Epochs between validation checks; see `models.EarlyStoppingBySteps`.
        optimisation: Further options of the trainer, for example `gradient_clip_val`.
        data: Arguments of `Trainer.fit`.

    Raises:
        TrainingError: No validation gave a score, or the best score is not finite.
    """
    with isolate_rng(), recorded_gradients(), TemporaryDirectory() as folder:
        torch.manual_seed(seed)
        checkpoint = ModelCheckpoint(folder, monitor=monitor, mode=mode, save_weights_only=True)
        stop = EarlyStoppingBySteps(monitor, mode=mode, patience=patience, every=every)
        epochs = max_epochs * every
        options = {"max_epochs": epochs, "check_val_every_n_epoch": every, **(optimisation or {})}
        trainer = nested_trainer(device, checkpoint, stop, ProgressLines(), *callbacks, **options)
        with quiet(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_OF_ALL)  # the values are of this process, as they should be
            trainer.fit(module, **data)
        score = checkpoint.best_model_score
        value = math.nan if score is None else float(score)
        if not math.isfinite(value):
            raise TrainingError(f"{type(module).__name__}: {monitor} was never finite, so no epoch is best. {remedy}")
        best = torch.load(checkpoint.best_model_path, map_location="cpu", weights_only=True)
    part: Mapping[str, Any] = {}
    if isinstance(module, TrainedModule):
        part = best.get(module.checkpoint_key, {})
    return Best(
        state=best["state_dict"],
        epochs=trainer.current_epoch,
        epoch=int(best["epoch"]) + 1,
        value=value,
        stopped=stop.stopped_epoch > 0 or trainer.current_epoch < epochs,  # some modules stop by themselves
        part=part,
    )


def nested_trainer(
    device: torch.device | None,
    *callbacks: Callback,
    **options: Any,  # noqa: ANN401 # arguments of Trainer
) -> Trainer:
    """Return a silent trainer for a training or test inside a measurement.

    It uses one process and one device.

    Args:
        device: Device of the trainer; None for the CPU.
        callbacks: Further callbacks.
        options: Further options of the trainer, for example `max_epochs`.
    """
    device = device or torch.device("cpu")
    writes_checkpoints = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    with quiet():
        trainer = Trainer(
            accelerator=device.type,
            devices=1 if device.index is None else [device.index],
            plugins=[LightningEnvironment()],  # one process, even on a cluster
            callbacks=[Alone(), *callbacks],
            logger=False,
            enable_checkpointing=writes_checkpoints,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            **options,
        )
    ignore_signals(trainer)
    return trainer


class Alone(Callback):
    """Callback that lets the metrics of a module gather from no other process, which may train another model."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Separate the metrics, which the module has made by now."""
        for metric in pl_module.modules():
            if isinstance(metric, Gathered | Rows):
                metric.over_devices = False
            elif isinstance(metric, Metric):
                metric.distributed_available_fn = _never

    on_test_start = on_fit_start


def _never() -> bool:
    """Return False; a module-level function, because modules are copied and pickled."""
    return False


def result_of(module: TrainedModule[Any, Any], data: LightningDataModule, device: torch.device | None = None) -> Result:
    """Test a trained module in this process, and return its result; random states are unchanged.

    Args:
        module: The module.
        data: The datamodule.
        device: Device of the test; None for the CPU.
    """
    with isolate_rng(), quiet(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_OF_ALL)
        nested_trainer(device).test(module, datamodule=data, verbose=False)
    assert module.result is not None
    return module.result


def save_tensors(file: Path, tensors: Mapping[str, Any]) -> None:
    """Save tensors and plain values to a file atomically, with a checksum."""
    content = io.BytesIO()
    torch.save(dict(tensors), content)
    remove_leftovers(file.parent)
    keep(file, content.getbuffer())
