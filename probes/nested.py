"""Training inside a test: copies of one probe, each on data of its own, as control tasks and online codes need them."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor

from datamodules import AttentionBatch, DependencyDataModule
from datamodules.dependency import Field
from heads.experiment import DependencyExperiment
from results import Result
from results.errors import UserError, check_numbers
from training import (
    Best,
    TrainedModule,
    Training,
    alone,
    kept_file,
    nested_trainer,
    quiet,
    recorded_gradients,
    share,
    train_nested,
)

Mode = Literal["min", "max"]
Probe = TypeVar("Probe", bound=TrainedModule[Any, Any])


@runtime_checkable
class TrainedProbe(Protocol):
    """What a dependency probe that is trained says of itself."""

    monitor: ClassVar[tuple[str, Mode]]
    """What is logged on dev and best at the dev optimum."""
    reads: ClassVar[Collection[Field]]
    """Tensors of a batch that it reads."""
    headline: ClassVar[str]
    """The main score of its result, a ratio of counts of sentences."""

    def cross_entropy(self, batch: AttentionBatch) -> Tensor:
        """−ln p of the gold head of every word, `[batch, n]`; 0 in the padding."""
        ...


class Trained(NamedTuple, Generic[Probe]):
    """A probe with the weights of its best epoch, on the CPU.

    Attributes:
        probe: the probe.
        epochs: the best epoch, counted from 1: passes over its data.
        dev: what was monitored, at that epoch.
        stopped: whether training ended because dev got no better, rather than at `max_epochs`.
    """

    probe: Probe
    epochs: int
    dev: float
    stopped: bool

    @classmethod
    def from_best(cls, probe: Probe, best: Best) -> "Trained[Probe]":
        """Copy an untrained probe and load the best weights of another copy's training."""
        # The test around is in inference mode, and what is made in it can never be trained.
        with isolate_rng(), recorded_gradients():
            fresh = deepcopy(probe)
            fresh.on_load_checkpoint({"epoch": best.epoch - 1, "state_dict": best.state, "probe": best.part})
            fresh.load_state_dict(best.state)
        fresh.epochs, fresh.epochs_run = best.epoch, best.epochs
        return cls(fresh, best.epoch, best.value, best.stopped)


def train_copy(
    probe: TrainedModule[Any, Any],
    data: DependencyDataModule,
    *,
    monitor: str,
    mode: Mode,
    max_epochs: int,
    patience: int,
    seed: int,
    batches: int = 1,
    device: torch.device | None = None,
) -> Best:
    """Train a copy of a probe to its optimum on dev; the probe itself and the random numbers outside stay as they are.

    The data must be a variant of their own, because a trainer is attached to them. Validation runs after every epoch;
    on small data only after as many as make `batches` batches, and schedules of the learning rate that count epochs
    count validation checks then. Before the first check, validation also runs after 1, 2, 4, … epochs, only to keep
    better weights. Other arguments are those of `train_nested`.

    Raises:
        TrainingError: nothing was monitored, or what was is not a finite number.
    """
    with isolate_rng(), recorded_gradients():
        data.setup("fit")
        return train_nested(
            deepcopy(probe),
            monitor=monitor,
            mode=mode,
            max_epochs=max_epochs,
            patience=patience,
            seed=seed,
            remedy="A lower learning rate may help; dev must have a sentence, and every gold head must be among "
            "the candidates.",
            device=device,
            every=epochs_between_checks(data, batches),
            datamodule=data,
        )


def epochs_between_checks(data: DependencyDataModule, batches: int) -> int:
    """After how many epochs validation runs on data that are set up: one, or as many as make so many batches."""
    return -(-batches // len(data.train_dataloader()))


def result_of(probe: TrainedModule[Any, Any], data: DependencyDataModule, device: torch.device | None = None) -> Result:
    """The result of a trained probe on dev and test of these data."""
    with isolate_rng(), quiet(), alone():
        nested_trainer(device).test(probe, datamodule=data, verbose=False)
    assert probe.result is not None
    return probe.result


class NestedExperiment(DependencyExperiment):
    """An experiment that trains copies of a probe itself: run it with `python train.py test`.

    Subclasses fill one hole, `outcome`. The copies are trained where the test runs; no other option of its trainer is
    passed on to theirs.

    Args:
        probe: what is trained.
        max_epochs: validation checks after which every training ends at the latest.
        patience: validation checks without improvement after which a training ends.
        batches: validation runs after every epoch; on small data only after as many as make this number of batches,
            and, to keep better weights, after 1, 2, 4, … epochs before.
        seed: of the initialisation and of whatever else is drawn; None for that of the run. The order of the training
            batches has the seed of the datamodule.
    """

    reads = frozenset()  # of the test around: the nested trainers read batches of their own

    def __init__(
        self,
        probe: TrainedModule,  # type: ignore[type-arg] # jsonargparse takes no parametrized class
        max_epochs: int = 100,
        patience: int = 5,
        batches: int = 50,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        check_numbers(self, least=1, max_epochs=max_epochs, patience=patience, batches=batches)
        # Not as a submodule: Lightning would attach this module's trainer to it, and every copy would copy that.
        self._untrained = (probe,)
        self.max_epochs, self.patience, self.batches = max_epochs, patience, batches

    @property
    def probe(self) -> TrainedModule[Any, Any]:
        return self._untrained[0]

    @property
    def contract(self) -> TrainedProbe:
        """The probe, as one of heads; a UserError if it is not."""
        if not isinstance(self.probe, TrainedProbe):
            raise UserError(
                f"{type(self).__name__} trains a probe of heads, and {type(self.probe).__name__} predicts no heads: "
                f"give --model.init_args.probe one that does, for instance AttentionOnlyProbe."
            )
        return self.probe

    def setup(self, stage: str) -> None:
        """Open the train split beside dev and test."""
        assert self.contract
        super().setup(stage)
        self.data.setup("fit")

    def trained_copies(
        self, on: Mapping[str, DependencyDataModule], monitor: str, mode: Mode
    ) -> list[Trained[TrainedModule[Any, Any]]]:
        """Train one copy of the probe per named datamodule; return each at its best dev epoch.

        The ranks share the trainings; an interrupted run keeps those that have ended.
        """
        train = partial(
            train_copy,
            self.probe,
            monitor=monitor,
            mode=mode,
            max_epochs=self.max_epochs,
            patience=self.patience,
            batches=self.batches,
            seed=self.seed,
            device=self.device,
        )
        trainings = []
        for number, (name, data) in enumerate(on.items(), start=1):
            data.setup("fit")
            sentences = len(data.splits["train"] if data.train_on is None else data.train_on)
            check = epochs_between_checks(data, self.batches) * sentences + len(data.splits["dev"])
            file = kept_file(self.trainer, f"copy-{number}.ckpt")
            trainings.append(Training(name, file, partial(train, data), cost=check))
        return [Trained.from_best(self.probe, best) for best in share(trainings, self.data.ranks)]

    def update(self, batch: AttentionBatch) -> None:
        """Nothing: the copies are tested by trainers of their own."""
