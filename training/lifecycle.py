"""One lifecycle for every trained module: parameters made for the data, refusal of the untrained, checkpoints."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor

from attention.encoder import usable_device
from results.errors import check_values
from training.checkpoints import TrainingError, configured_model, instantiate, read_checkpoint
from training.experiment import Data, Experiment
from training.lightning_private import attached_trainer

Sizes = TypeVar("Sizes")


@dataclass(frozen=True)
class Origin(Generic[Sizes]):
    """Sizes of the parameters, as a dataclass, and the source of their input: whatever decides its numbers."""

    sizes: Sizes
    source: Mapping[str, object]


class TrainedModule(Experiment[Data], Generic[Data, Sizes]):
    """An experiment with parameters, which are made once the data are known and scored only when they are trained.

    Its checkpoint holds the arguments of its constructor, the sizes of its parameters and the source of its input, so
    that `load_from_checkpoint` needs neither a Trainer nor a datamodule.

    Subclasses fill these holes, and call `bind` in their `setup`:

    - `build` makes the parameters for some sizes;
    - `sizes_from` reads the sizes back from a checkpoint;
    - `difference` says why parameters that were trained on some data do not fit others.

    Attributes:
        checkpoint_key: name of its part of a checkpoint.
        may_come_trained: whether what `build` makes can be trained already, as by a library of models.
        objects: arguments of the constructor that are objects themselves. A checkpoint of `train.py` says how they
            were made; for another one they are given to `load_from_checkpoint`.
        origin: what the parameters were made for; None before `bind`.
        trained: whether the parameters mean something.
        epochs: the epoch of the checkpoint that was loaded, from 1; None without one.
        epochs_run: number of epochs of the training, if it took place in this process.
        trained_on: how many devices, and what a batch was one of, where there were several.
        loaded_from: the file of `load_from_checkpoint`, and the config of its run; None without.
        extra_check: whether the validation under way may keep better weights and counts for nothing else.
    """

    checkpoint_key: ClassVar[str] = "probe"
    may_come_trained: ClassVar[bool] = False
    objects: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=self.objects, logger=False)
        check_values(self, **self.hparams)
        self.origin: Origin[Sizes] | None = None
        self.trained = False
        self.epochs: int | None = None
        self.epochs_run: int | None = None
        self.extra_check = False
        self.trained_on: dict[str, object] = {}
        self.loaded_from: tuple[Path, Mapping[str, Any]] | None = None

    @abstractmethod
    def build(self, sizes: Sizes) -> None:
        """Make the parameters."""

    @abstractmethod
    def sizes_from(self, part: Mapping[str, Any]) -> Sizes:
        """Return the sizes in this module's part of a checkpoint; see `checkpoint_part`."""

    @abstractmethod
    def difference(self, trained: Origin[Sizes], run: Origin[Sizes]) -> str | None:
        """Return why trained parameters do not fit a run, and the remedy; None if they fit."""

    @property
    def sizes(self) -> Sizes:
        """Sizes of the parameters, once there are data."""
        assert self.origin is not None
        return self.origin.sizes

    def checkpoint_part(self) -> dict[str, Any]:
        """Return the origin of the parameters for a checkpoint, in plain types and tensors."""
        assert self.origin is not None
        return {"source": dict(self.origin.source), "sizes": asdict(self.origin.sizes)}  # type: ignore[call-overload]

    def bind(self, sizes: Sizes, source: Mapping[str, object]) -> None:
        """Make the parameters for the data of the run; a TrainingError if they were made for other data."""
        run = Origin(sizes, source)
        if self.origin is None:
            self.origin = run
            self.build(sizes)
        elif reason := self.difference(self.origin, run):
            raise TrainingError(reason)

    def on_fit_start(self) -> None:
        """Note that the parameters are trained from here on; give each device random numbers of its own."""
        self.trained = True
        if self.trainer.global_rank:
            torch.manual_seed(torch.initial_seed() + self.trainer.global_rank)

    @property
    def devices(self) -> int:
        """Number of devices that share a batch; 1 without a trainer."""
        trainer = attached_trainer(self)
        return 1 if trainer is None else trainer.world_size

    @property
    def no_loss(self) -> Tensor:
        """Loss of a device that has nothing of a batch: 0, whose gradients are 0."""
        sums = [parameter.sum() for parameter in self.parameters() if parameter.requires_grad]
        return 0 * torch.stack(sums).sum()

    def on_train_end(self) -> None:
        """Keep the number of epochs, for the audit."""
        self.epochs_run = self.trainer.current_epoch

    def refuse_untrained(self) -> None:
        """Raise a TrainingError for a module that was not trained and comes from no checkpoint."""
        if not self.trained:
            raise TrainingError(
                f"{type(self).__name__} was not trained: train it with `fit`, or give a checkpoint with --ckpt_path."
            )

    def on_validation_start(self) -> None:
        """Refuse to score a module that was not trained; TrainingError."""
        self.refuse_untrained()

    on_test_start = on_predict_start = on_validation_start

    @property
    def trained_for(self) -> dict[str, object]:
        """The tested epoch, and the epochs, devices and batches of the training, as far as known, for the audit."""
        known = {"epochs": self.epochs, "epochs_run": self.epochs_run}
        return {**{name: epochs for name, epochs in known.items() if epochs is not None}, **self.trained_on}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the origin of the parameters, and the devices of the training if there are several."""
        checkpoint[self.checkpoint_key] = self.checkpoint_part()
        if self.devices > 1:
            self.trained_on = {"devices": self.devices, "batch_per": self.trainer.datamodule.batch_per}  # type: ignore[attr-defined]
        checkpoint["trained_on"] = self.trained_on

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Make the parameters of the checkpoint, or compare them with those of the run.

        Raises:
            TrainingError: the checkpoint is of another class, or its parameters do not fit the data of the run.
        """
        part = checkpoint.get(self.checkpoint_key)
        if not isinstance(part, Mapping) or not self.wrote(part):
            path, name = getattr(attached_trainer(self), "ckpt_path", None), type(self).__name__
            remedy = f"Give --ckpt_path a file from checkpoints/ of a run of {name}."
            raise TrainingError(f"{path or 'The file'} is not a checkpoint of {name}. {remedy}")
        trained = Origin(self.sizes_from(part), part.get("source", {}))
        if self.origin is None:
            self.bind(trained.sizes, trained.source)
        elif reason := self.difference(trained, self.origin):
            raise TrainingError(reason)
        self.restore(part)
        own = self.state_dict()
        for name, value in checkpoint["state_dict"].items():
            if name in own and value.shape != own[name].shape:
                raise TrainingError(other_model(f"whose {name} is {list(value.shape)} and not {list(own[name].shape)}"))
        self.epochs, self.trained_on = checkpoint["epoch"] + 1, checkpoint.get("trained_on", {})
        self.trained = True

    def restore(self, part: Mapping[str, Any]) -> None:
        """Take over what else is in this module's part of a checkpoint, before its parameters are loaded."""

    def wrote(self, part: Mapping[str, Any]) -> bool:
        """Return whether a part of a checkpoint was written by this kind of module."""
        return "sizes" in part

    @classmethod
    def load_from_checkpoint(  # type: ignore[override] # of the arguments of Lightning those that are of use here
        cls,
        checkpoint_path: str | Path,
        map_location: torch.device | str | None = None,
        **options: Any,  # noqa: ANN401 # those of the constructor
    ) -> Self:
        """Return the trained module of a checkpoint, in evaluation mode; it needs neither a Trainer nor a datamodule.

        `options` are arguments of the constructor in the place of those of the checkpoint.

        Raises:
            TrainingError: the file is damaged, no checkpoint of this class, or says of itself what cannot be used here.
            UserError: PyTorch cannot use the device `map_location`.
        """
        device = usable_device(map_location or "cpu")
        path = Path(checkpoint_path)
        content = read_checkpoint(path)
        with isolate_rng():  # the numbers that parameters are drawn from are not those of the program around
            module = instantiate(cls, path, configured_model(path, content), options)
            module.on_load_checkpoint(dict(content))
        module.load_state_dict(content["state_dict"])
        module.loaded_from = path, {"config": content.get("config")}
        return module.to(device).eval()


def other_model(difference: str) -> str:
    """Return the message for a checkpoint of a model with other parts or sizes."""
    return (
        f"The checkpoint is of another model, {difference}: give --config and the options of --model that it was "
        f"trained with."
    )
