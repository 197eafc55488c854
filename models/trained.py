"""Base class of every trained module: parameters built for the data, checkpoints, and facts about the training."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities.seed import isolate_rng

from attention_probing.attention.extraction import return_free_memory
from attention_probing.attention.loading import usable_device
from attention_probing.datamodules.corpus import Data, data_for
from attention_probing.models.checkpoints import (
    CHECKPOINT_FORMAT,
    TrainingError,
    configured_model,
    instantiate,
    read_checkpoint,
    warn_of_interrupted_training,
)
from attention_probing.models.losses import device_count
from attention_probing.results import Result
from attention_probing.results.options import check_options

SCHEDULE_STEPS = 50
"""Least number of optimizer steps between two changes of the learning rate by a schedule of epochs."""

ModuleSizes = TypeVar("ModuleSizes")


@dataclass(frozen=True)
class Origin(Generic[ModuleSizes]):
    """Properties of the data for which a module's parameters are built.

    Attributes:
        sizes: Sizes of the parameters, a dataclass. Trained parameters fit a run only if `source` and certain fields
            of `sizes` are equal. The class attribute `compared`, if there is one, maps these fields to their names in
            messages.
        source: Digests of the data files, and options of the datamodule that determine the module's input.
    """

    sizes: ModuleSizes
    source: Mapping[str, object] = field(default_factory=dict)


class RefuseUntrained(Callback):
    """Callback that ends a validation, a test or a prediction of a module that was not trained."""

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise TrainingError if the module was neither trained nor loaded from a checkpoint."""
        assert isinstance(pl_module, TrainedModule)
        refuse_untrained(pl_module)

    on_test_start = on_predict_start = on_validation_start


class TrainedModule(LightningModule, ABC, Generic[Data, ModuleSizes]):
    """LightningModule whose parameters have sizes that depend on the data, and whose test computes one `Result`.

    It must be trained before it is tested. Its checkpoint holds the arguments of its constructor, the
    sizes of its parameters and the source of its input (see `Origin`), so that `load_from_checkpoint`
    needs neither a Trainer nor a datamodule.

    Before a training or a test, `setup` asks the subclass for the `origin_of` the data, and lets it `build` its
    parameters in these sizes, or compares the origin with that of existing parameters. Subclasses implement these two,
    `test_step` and `outcome`.

    Attributes:
        experiment: Name of the experiment in `results.json`.
        takes: Required class of the datamodule.
        sizes_type: Class of `sizes`; its method `from_plain` creates them from the entry `sizes` of a checkpoint.
        result: Result of the test; None before the test, and on ranks whose `outcome` is None.
        checkpoint_key: Key under which a checkpoint holds `sizes` and `source` of the parameters (see `Origin`);
            subclasses may add other entries.
        may_come_trained: True if `build` may load trained parameters, for example with transformers.
        objects: Names of constructor arguments that are objects. A checkpoint of `probing` has the
            settings to make them; for other checkpoints, pass them to `load_from_checkpoint`.
        sizes: Sizes of the parameters, once they are built.
        source: Source of the input that the parameters were built for; None before they are built.
        trained: True once `fit` has begun or a checkpoint is loaded.
        epochs: Epoch of the loaded checkpoint, from 1; None without a checkpoint.
        epochs_run: Total number of epochs at the end of the training of this run; None without a training.
            Epochs before an interruption, and those of a checkpoint that the training continues, are included.
        trained_on: Number of devices (`devices`); empty if the training used one device.
        loaded_from: File given to `load_from_checkpoint`, and the config of its run; None for other
            modules.
        every: Number of epochs between two steps of a learning-rate schedule; 0 for the least number of epochs with
            `SCHEDULE_STEPS` optimizer steps. `EarlyStoppingBySteps` sets it to the number of epochs between its checks.
            Validations between the checks may save better weights, but do not affect the learning rate.
    """

    experiment: ClassVar[str]
    takes: ClassVar[type[Any]]
    sizes_type: ClassVar[type[Any]]
    checkpoint_key: ClassVar[str] = "probe"
    may_come_trained: ClassVar[bool] = False
    objects: ClassVar[tuple[str, ...]] = ()
    example_input_array = None

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=self.objects, logger=False)
        check_options(self, **self.hparams)
        self.result: Result | None = None
        self.source: Mapping[str, object] | None = None
        self.trained = False
        self.epochs: int | None = None
        self.epochs_run: int | None = None
        self.every = 0
        self.trained_on: dict[str, object] = {}
        self.loaded_from: tuple[Path, Mapping[str, Any]] | None = None

    @property
    def data(self) -> Data:
        """Datamodule of the trainer.

        Raises:
            UserError: The trainer has no datamodule of the class `takes`.
        """
        return data_for(type(self).__name__, self.takes, self.trainer.datamodule)  # type: ignore[attr-defined, no-any-return]

    def setup(self, stage: str) -> None:
        """Build the parameters for the datamodule of the trainer, or check that existing parameters fit it."""
        self.make_for(self.data)

    def make_for(self, data: Data) -> None:
        """Build the parameters for a datamodule, after its `setup`, or check that existing parameters fit it.

        Raises:
            UserError: The module does not support these data.
            TrainingError: The existing parameters were built for other data.
        """
        self.bind(self.origin_of(data))

    def bind(self, origin: Origin[ModuleSizes]) -> None:
        """Build the parameters for data of this origin, or check that existing parameters fit them.

        Raises:
            TrainingError: The existing parameters were built for other data.
        """
        if self.source is None:
            self.sizes = origin.sizes
            self.source = origin.source
            # Not in `configure_model`: Lightning would draw the initial weights on the device of the trainer.
            self.build(origin.sizes)
            return
        reason = data_mismatch(Origin(self.sizes, self.source), origin)
        if reason is not None:
            raise TrainingError(reason)

    def origin_of(self, data: Data) -> Origin[ModuleSizes]:
        """Return the sizes that the parameters have for a datamodule, after its `setup`, and the source of their input.

        By default `sizes_type.origin_of` returns them.

        Raises:
            UserError: The module does not support these data.
        """
        origin: Origin[ModuleSizes] = self.sizes_type.origin_of(data)
        return origin

    @abstractmethod
    def build(self, sizes: ModuleSizes) -> None:
        """Create the parameters of the module with these sizes."""

    @abstractmethod
    def outcome(self) -> Result | None:
        """Return the result of the test; called once on every rank, after all batches. Other ranks may return None."""

    def on_test_epoch_end(self) -> None:
        """Call `outcome` after all test batches, and store its value in `result`."""
        return_free_memory()  # of the forward passes, which the statistics do not need
        self.result = self.outcome()

    def on_fit_start(self) -> None:
        """Mark the module as trained, and seed the random numbers of each device differently."""
        self.trained = True
        if self.trainer.global_rank:
            torch.manual_seed(torch.initial_seed() + self.trainer.global_rank)

    def on_train_start(self) -> None:
        """Let schedules of epochs count steps: they change the rate after every `every` epochs."""
        trainer = self.trainer
        batches = SCHEDULE_STEPS * trainer.accumulate_grad_batches
        every = self.every or epochs_of(batches, trainer.num_training_batches)
        for schedule in trainer.lr_scheduler_configs:
            if schedule.interval == "epoch":
                schedule.frequency *= every

    def on_train_end(self) -> None:
        """Store the number of training epochs in `epochs_run`, which is reported with the results."""
        self.epochs_run = self.trainer.current_epoch

    def configure_callbacks(self) -> list[Callback]:
        """Return the callback that refuses to validate, test or predict before a training."""
        return [RefuseUntrained()]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the sizes and the source of the parameters to a checkpoint, and the attribute `trained_on`.

        If several devices share a batch, `trained_on` is set to their number. Otherwise it is empty, or
        as in the loaded checkpoint.
        """
        assert self.source is not None
        sizes: Any = self.sizes
        checkpoint[self.checkpoint_key] = {"source": dict(self.source), "sizes": asdict(sizes)}
        devices = device_count(self)
        if devices > 1:
            self.trained_on = {"devices": devices}
        checkpoint["trained_on"] = self.trained_on
        checkpoint["format"] = CHECKPOINT_FORMAT

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Build the parameters with the sizes in the checkpoint, or check that existing parameters fit the checkpoint.

        Raises:
            TrainingError: The checkpoint is of another class, or its parameters do not fit the data of the run.
        """
        part = checkpoint.get(self.checkpoint_key)
        if not isinstance(part, Mapping) or "sizes" not in part:
            name = type(self).__name__
            raise TrainingError(f"This is no checkpoint of {name}. Give a file from checkpoints/ of a run of {name}.")
        self.bind(Origin(self.sizes_type.from_plain(part["sizes"]), part.get("source", {})))
        parameters = self.state_dict()
        for name, value in checkpoint["state_dict"].items():
            if name not in parameters:
                raise TrainingError(other_model(f"which has a {name}"))
            if value.shape != parameters[name].shape:
                sizes = f"{list(value.shape)}, not {list(parameters[name].shape)}"
                raise TrainingError(other_model(f"whose {name} has the shape {sizes}"))
        self.epochs = checkpoint["epoch"] + 1
        self.trained_on = checkpoint.get("trained_on", {})
        self.trained = True

    @classmethod
    def load_from_checkpoint(  # type: ignore[override] # fewer arguments than in Lightning
        cls,
        checkpoint_path: str | Path,
        map_location: torch.device | str | None = None,
        **options: Any,  # noqa: ANN401 # arguments of the constructor
    ) -> Self:
        """Return the trained module in a checkpoint in evaluation mode, without a Trainer or datamodule.

        Args:
            checkpoint_path: The checkpoint.
            map_location: Device of the module; None for the CPU.
            options: Constructor arguments that override those in the checkpoint.

        Raises:
            TrainingError: The file is damaged or not a checkpoint of this class, or this program cannot
                use its settings.
            UserError: PyTorch cannot use the device `map_location`.
        """
        device = usable_device(map_location or "cpu")
        path = Path(checkpoint_path)
        content = read_checkpoint(path)
        warn_of_interrupted_training(path, content)
        with isolate_rng():  # initial parameters leave the random numbers of the caller unchanged
            module = instantiate(cls, path, configured_model(path, content), options)
            try:
                module.on_load_checkpoint(dict(content))
            except TrainingError as error:
                raise TrainingError(f"{path}: {error}") from None
        module.load_state_dict(content["state_dict"])
        module.loaded_from = path, {"config": content.get("config")}
        return module.to(device).eval()


def refuse_untrained(module: TrainedModule[Any, Any]) -> None:
    """Raise TrainingError if a module was neither trained nor loaded from a checkpoint."""
    if not module.trained:
        raise TrainingError(
            f"{type(module).__name__} was not trained: train it with `fit`, or give a checkpoint with --ckpt_path."
        )


def data_mismatch(trained: Origin[ModuleSizes], run: Origin[ModuleSizes]) -> str | None:
    """Return an error message with a remedy if trained parameters do not fit the data of a run; None if they fit.

    Args:
        trained: Properties of the data for which the parameters were trained.
        run: Properties of the data of the run.
    """
    then = _values_to_compare(trained)
    now = _values_to_compare(run)
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    if not names:
        return None
    return (
        f"The checkpoint was trained on other data (difference in {' and '.join(names)}): give the corpus and "
        f"the options of the data that it was trained with."
    )


def _values_to_compare(origin: Origin[Any]) -> dict[str, object]:
    """Return what must be equal in a training and in a run, by its name in messages."""
    values = dict(origin.source)
    fields: Mapping[str, str] = getattr(origin.sizes, "compared", {})
    for attribute, name in fields.items():
        values[name] = getattr(origin.sizes, attribute)
    return values


def training_audit(module: TrainedModule[Any, Any]) -> dict[str, object]:
    """Return facts about the training of a module by name, reported with its results.

    - `epochs`: epoch of the loaded checkpoint, from 1; absent without a checkpoint.
    - `epochs_run`: number of epochs of the training in this run; absent without a training.
    - `devices`: number of devices; absent if the training used one.
    - `warnings`: see `training_warnings`; absent if there are none.
    """
    audit: dict[str, object] = {}
    if module.epochs is not None:
        audit["epochs"] = module.epochs
    if module.epochs_run is not None:
        audit["epochs_run"] = module.epochs_run
    return {**audit, **module.trained_on, **training_warnings(module, module.epochs)}


def training_warnings(module: TrainedModule[Any, Any], best: int | None) -> dict[str, object]:
    """Return the entry `warnings` of the audit if the best epoch is the last of the training; else nothing.

    Args:
        module: The module.
        best: Best epoch on dev, from 1; None if it is not known.
    """
    if best is None or best != module.epochs_run:
        return {}
    last = f"the best epoch on dev ({best}) is the last that was allowed, so it may be too short: raise max_epochs"
    return {"warnings": [last]}


def epochs_of(batches: int, per_epoch: float) -> int:
    """Return the least number of epochs that together have this many training batches.

    Args:
        batches: Number of batches.
        per_epoch: Number of batches of an epoch.
    """
    return max(1, math.ceil(batches / per_epoch))


def other_model(difference: str) -> str:
    """Return the error message for a checkpoint of a model with other modules or sizes.

    Args:
        difference: Difference between the models, as a relative clause: `which has a decoder`.
    """
    remedy = "give the config and the options of the model that it was trained with"
    return f"The checkpoint is of another model, {difference}: {remedy}."


@contextmanager
def recorded_gradients() -> Iterator[None]:
    """Within the block, enable gradients inside a measurement or a test, which run in inference mode."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def ignore_signals(trainer: Trainer) -> None:
    """Disable Lightning's signal handlers for a trainer.

    They would save a checkpoint in the middle of an epoch, and let a test go on after SIGTERM. Without them a signal
    ends the process at once, which loses at most one epoch.
    """
    trainer._signal_connector.register_signal_handlers = _register_none  # type: ignore[method-assign]


def _register_none() -> None:
    """Register no handler; a module-level function, because spawning strategies pickle the trainer."""
