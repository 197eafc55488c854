"""What every test of attention as an explanation fills in."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from datamodules import ClassificationDataModule
from fidelity.checkpoints import Checkpoint
from fidelity.classified import ClassifiedBatch
from fidelity.saliency import Saliency
from metrics.bootstrap import Statistic, mean
from results import Estimate, Figure, Table, Unit


@dataclass(frozen=True)
class Measurements:
    """What a test measures on a batch."""

    numbers: Mapping[str, Tensor]
    """By column `[batch]`; nan where one is undefined."""
    highlights: Mapping[str, Tensor] = field(default_factory=dict)
    """By name `[batch, positions]`, what the words of example texts can be coloured by."""


class Score(NamedTuple):
    """A statistic of some columns of the texts."""

    columns: Sequence[str]
    statistic: Statistic
    unit: Unit


def means(columns: Iterable[str], unit: Unit = "fraction") -> dict[str, Score]:
    """Scores that are means over the texts, each of the column of its name."""
    return {column: Score([column], mean, unit) for column in columns}


@dataclass(frozen=True, eq=False)
class CheckpointResult:
    """Measurements and scores of one checkpoint; for name, variant and seed see `Checkpoint`."""

    name: str
    variant: str
    seed: int
    classes: int  # number of labels
    positive: int | None  # the class that F1 is of; None for the mean over the classes
    values: pd.DataFrame
    """A row for each text of test, by its place in the split; columns are `<test>.<column>`; nan if skipped."""
    scores: Mapping[str, Estimate]  # as `<test>.<score>`

    def of(self, test: str) -> pd.DataFrame:
        """The columns of a test, as `<column>`."""
        return self.values.filter(regex=rf"^{test}\.").rename(columns=lambda column: column.removeprefix(f"{test}."))


class FidelityTest(ABC):
    """One published test: what it measures on every text, and the scores of a test set.

    Subclasses fill `columns`, `measure` and `scores`; those with tables or figures also `tables` and `figures`, whose
    names begin with that of the test. The experiment puts it before the names of columns and scores.
    """

    name: ClassVar[str]
    headline: ClassVar[tuple[str, ...]] = ("",)
    """Ends of the names of the scores that answer its question; by default all do."""

    def begin(  # noqa: B027 # most have nothing to prepare
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        """Prepare before the first batch; the seed decides everything that is drawn."""

    @abstractmethod
    def columns(self, classes: int) -> Sequence[str]:
        """Names of the columns that `measure` fills."""

    @abstractmethod
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        """The columns of a batch. Gradients are recorded; the parameters have none. The tests share the saliency."""

    @abstractmethod
    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        """By name."""

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        return {}

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
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


def over_seeds(results: Sequence[CheckpointResult], test: str) -> dict[str, pd.DataFrame]:
    """The columns of a test for each variant, of all its seeds one after the other."""
    return {variant: pd.concat([one.of(test) for one in ours]) for variant, ours in by_variant(results).items()}
