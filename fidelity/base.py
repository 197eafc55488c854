"""What every test of attention as an explanation fills in."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from datamodules import ClassificationDataModule
from fidelity.checkpoints import Checkpoint
from fidelity.classified import ClassifiedBatch
from fidelity.saliency import Saliency
from metrics.bootstrap import Resampled, Statistic
from results import Figure, Table, Unit


@dataclass(frozen=True)
class Measurements:
    """What a test measures on a batch.

    Attributes:
        numbers: by column `[batch]`; nan where one is undefined.
        highlights: by name `[batch, positions]`, what the words of example texts can be coloured by.
    """

    numbers: Mapping[str, Tensor]
    highlights: Mapping[str, Tensor] = field(default_factory=dict)


class Score(NamedTuple):
    """How a score is computed from the columns of the texts.

    Attributes:
        columns: names of its columns.
        statistic: of their values.
        unit: of the score.
    """

    columns: Sequence[str]
    statistic: Statistic
    unit: Unit


@dataclass(frozen=True, eq=False)
class CheckpointResult:
    """Measurements and scores of one checkpoint.

    Attributes:
        name: of the checkpoint, unique.
        variant: name that it shares with the checkpoints that differ from it in nothing but the seed.
        seed: of its training.
        classes: how many labels there are.
        positive: the class that F1 is of; None for the mean over the classes.
        values: a row for each text of test, in its order and under its place in the split, with the columns of all
            tests as `<test>.<column>`; nan where the text was skipped.
        scores: of all tests as `<test>.<score>`.
    """

    name: str
    variant: str
    seed: int
    classes: int
    positive: int | None
    values: pd.DataFrame
    scores: Mapping[str, Resampled]


class FidelityTest(ABC):
    """One published test: what it measures on every text, and the scores of a test set.

    Subclasses fill `columns`, `measure` and `scores`; those with tables or figures also `tables` and `figures`. The
    experiment puts the name of the test before the names of columns and scores; names of tables and figures begin with
    it.
    """

    name: ClassVar[str]

    def begin(  # noqa: B027 # most have nothing to prepare
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        """Prepare, before the first batch.

        Args:
            checkpoints: all that are tested, in their order.
            data: the texts.
            device: where the test runs.
            seed: of everything that is drawn.
        """

    @abstractmethod
    def columns(self, classes: int) -> Sequence[str]:
        """Names of the columns that `measure` fills."""

    @abstractmethod
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        """The columns of a batch. Gradients are recorded; the parameters have none.

        Args:
            classified: texts of at least two words each, and what the classifier says of them.
            saliency: how much each of their words matters; computed when first used, and shared by the tests.
        """

    @abstractmethod
    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        """The scores by name."""

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Tables beside the scores."""
        return {}

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Figures."""
        return {}

    def audit(self) -> Mapping[str, object]:
        """What was left out or approximated, counted."""
        return {}


def by_variant(results: Sequence[CheckpointResult]) -> dict[str, list[CheckpointResult]]:
    """The checkpoints of each variant, both in the order in which they were given."""
    variants: dict[str, list[CheckpointResult]] = {}
    for result in results:
        variants.setdefault(result.variant, []).append(result)
    return variants
