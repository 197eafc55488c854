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
from fidelity.reading import Reading
from metrics.bootstrap import Resampled, Statistic
from results import Figure, Table, Unit


@dataclass(frozen=True)
class Measured:
    """What a test found out about the texts of a batch.

    Attributes:
        numbers: by column `[batch]`; nan where one is undefined.
        tokens: by name `[batch, slots]`, what the words of example texts can be coloured by.
    """

    numbers: Mapping[str, Tensor]
    tokens: Mapping[str, Tensor] = field(default_factory=dict)


class Score(NamedTuple):
    """How a score comes from the numbers of the texts.

    Attributes:
        columns: what it reads of every text.
        statistic: makes one number of them.
        unit: of that number.
    """

    columns: Sequence[str]
    statistic: Statistic
    unit: Unit


@dataclass(frozen=True, eq=False)
class Subject:
    """What was found of one checkpoint.

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
    """One published test: what it measures of every text, and how that is summed up.

    Subclasses fill `columns`, `measure` and `scores`; those that show more than numbers also `tables` and `figures`.
    Names of columns and scores are without the test's own, which is put in front of them; names of tables and figures
    begin with it.
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
        """Names of the numbers that `measure` gives of every text."""

    @abstractmethod
    def measure(self, reading: Reading) -> Measured:
        """The numbers of the texts of a batch, each of which has at least two words.

        Gradients are recorded; the parameters have none.
        """

    @abstractmethod
    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        """The scores by name."""

    def tables(self, subjects: Sequence[Subject]) -> Mapping[str, Table]:
        """What stands beside the scores."""
        return {}

    def figures(self, subjects: Sequence[Subject]) -> Mapping[str, Figure]:
        """What is drawn."""
        return {}

    def audit(self) -> Mapping[str, object]:
        """What was left out or approximated, counted."""
        return {}
