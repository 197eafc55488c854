"""Training of probe copies inside a measurement, each on its own data, for control tasks and online codes."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar

from pytorch_lightning.utilities.seed import isolate_rng

from datamodules import DependencyDataModule
from measures.contract import Measure
from measures.trainings import Best, Training, share, train_nested
from models import TrainedModule, recorded_gradients
from probes import DependencyProbe
from probes.arc_evaluation import read_fields
from probes.frozen import Mode
from results.errors import check_numbers

Probe = TypeVar("Probe", bound=TrainedModule[Any, Any])


def best_copy(probe: Probe, best: Best) -> Probe:
    """Return a copy of an untrained probe with the best weights of a finished training, on the CPU.

    Args:
        probe: The untrained probe.
        best: Best state of the training, as from `train_copy`.
    """
    # The measurement is in inference mode, and tensors that are made in it can never be trained.
    with isolate_rng(), recorded_gradients():
        fresh = deepcopy(probe)
        fresh.on_load_checkpoint({"epoch": best.epoch - 1, "state_dict": best.state, "probe": best.part})
        fresh.load_state_dict(best.state)
    fresh.epochs_run = best.epochs
    return fresh


def train_copy(
    probe: TrainedModule[Any, Any],
    data: DependencyDataModule,
    *,
    batches: int = 1,
    **options: Any,  # noqa: ANN401 # options of train_nested
) -> Best:
    """Train a copy of a probe to its optimum on dev, and return its best weights.

    The probe itself and the random state of the caller do not change.

    The training checks dev after every epoch, or after every k epochs if an epoch has fewer than
    `batches` training batches; k is the least number of epochs that together have `batches` batches.
    Patience and learning-rate schedules count these checks, not epochs. Before the first check, dev is
    also evaluated after 1, 2, 4, … epochs (fewer than k): the weights are kept if they are the best so
    far, but these evaluations do not count as checks.

    Args:
        probe: The untrained probe.
        data: A datamodule for this training only, because a trainer is attached to it.
        batches: Least number of training batches between two checks.
        options: Further arguments of `train_nested`, such as `monitor` and `max_epochs`.

    Returns:
        Weights of the best epoch on the CPU, with the number of this epoch and its monitored score.

    Raises:
        TrainingError: The monitored score was never logged, or never a finite number.
    """
    with isolate_rng(), recorded_gradients():
        data.setup("fit")
        return train_nested(
            deepcopy(probe),
            remedy="A lower learning rate may help; dev must have a sentence, and every gold governor must be among "
            "the candidates.",
            every=epochs_between_checks(data, batches),
            datamodule=data,
            **options,
        )


def epochs_between_checks(data: DependencyDataModule, batches: int) -> int:
    """Return the least number of epochs that have at least `batches` training batches together.

    Args:
        data: The datamodule, after `setup`.
        batches: Number of training batches.
    """
    return -(-batches // len(data.train_dataloader()))


class ProbeMeasure(Measure[DependencyDataModule]):
    """Base of measurements that train copies of a probe.

    Subclasses implement `outcome`. The order of the training batches depends on the datamodule's seed.

    Args:
        probe: The probe to train, a `DependencyProbe`.
        max_epochs: Largest number of validation checks of a training; see `train_copy`.

    Attributes:
        patience: Validation checks without improvement after which a training ends.
        batches: Least number of training batches between two validation checks.
    """

    takes = DependencyDataModule
    reads: Collection[str] = ()  # the trainers read batches of their own
    patience: int = 5
    batches: int = 50

    def __init__(self, probe: DependencyProbe, max_epochs: int = 100) -> None:
        super().__init__()
        check_numbers(self, least=1, max_epochs=max_epochs)
        # Not as a submodule: it stays on the CPU, as its copies begin there.
        self._untrained = (probe,)
        self.max_epochs = max_epochs

    @property
    def probe(self) -> DependencyProbe:
        """Untrained probe whose copies are trained."""
        return self._untrained[0]

    def prepare(self) -> None:
        """Load the train split in addition to dev and test."""
        read_fields(self.data, self.reads, type(self).__name__)
        self.data.setup("fit")

    def trained_copies(
        self, on: Mapping[str, DependencyDataModule], monitor: str, mode: Mode
    ) -> list[tuple[DependencyProbe, Best]]:
        """Train one copy of the probe on each datamodule.

        The trainings are divided among the processes, and all processes get all results. A measurement that was
        interrupted does not repeat finished trainings.

        Args:
            on: Datamodules by the name of the training.
            monitor: Name of the logged score or loss that decides the best epoch.
            mode: `min` if the best value is the lowest, else `max`.

        Returns:
            A pair for each datamodule, in the order of `on`: the copy with the weights of its best
            epoch, and the result of its training.
        """
        limits: dict[str, Any] = {"max_epochs": self.max_epochs, "patience": self.patience, "batches": self.batches}
        options: dict[str, Any] = {"monitor": monitor, "mode": mode, "seed": self.seed, "device": self.device}
        train, trainings = partial(train_copy, self.probe, **limits, **options), []
        for number, (name, data) in enumerate(on.items(), start=1):
            data.setup("fit")
            sentences = len(data.splits["train"] if data.train_on is None else data.train_on)
            check = epochs_between_checks(data, self.batches) * sentences + len(data.splits["dev"])
            file = self.kept and self.kept / f"copy-{number}.ckpt"
            trainings.append(Training(name, file, partial(train, data), cost=check))
        return [(best_copy(self.probe, best), best) for best in share(trainings)]
