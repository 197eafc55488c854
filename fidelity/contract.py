"""The contract of a fidelity test: numbers for each text, scores over the texts, and how scores are read."""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity.checkpoints import Checkpoint
from attention_probing.fidelity.classified import ClassifiedBatch
from attention_probing.fidelity.saliency import Explainer, Saliency
from attention_probing.metrics.statistics import Statistic, mean, proportion, ratio
from attention_probing.results import Estimate, Figure, Floats, Table, Unit
from attention_probing.results.errors import UserError, list_first


class Score(NamedTuple):
    """Definition of a score of a test: a statistic over the texts.

    Attributes:
        columns: Columns of the test that the statistic reads.
        statistic: Function that computes the score in each bootstrap resample, `[draws]`, from the
            values of these columns, `[texts, columns]`, and the number of times that each text was
            drawn, `[draws, texts]`.
        unit: Unit of the score.
        main: True for a main score, which is printed. If a test has no main score, all its scores are main scores.
    """

    columns: Sequence[str]
    statistic: Statistic
    unit: Unit
    main: bool = False


def means(columns: Iterable[str], unit: Unit = "fraction", *, main: bool = False) -> dict[str, Score]:
    """Define one score for each column: the mean of the column over the texts, under the column's name."""
    return {column: Score([column], mean, unit, main) for column in columns}


def proportions(columns: Iterable[str], *, main: bool = False) -> dict[str, Score]:
    """Define one score for each column of decisions: the share of texts with a yes.

    A decision is 1 for yes and 0 for no, or the mean of several decisions, for instance over random orders. If there
    are few decisions, the interval of the share is exact (`metrics.shares.share_interval`). Use `means` for other
    numbers, whose interval is never of this kind, even if all of them are 0.
    """
    return {column: Score([column], proportion, "fraction", main) for column in columns}


class Reading(NamedTuple):
    """Direction and meaning of a score, or of a measure of rankings.

    Attributes:
        better: `↑` if high values speak for attention or for the ranking, `↓` if low ones do, empty if neither.
        claim: Clause of the answer: what a score says, as `uniform attention changes F1 by {change}`, or what the
            best ranking by a measure does. A run uses the first claim that it has a number for.
        beside: Measures of rankings that must be read together with this one; the printed table has them for the best
            ranking, attention and random.
        attention: Clause of the answer: what a measure of rankings says of attention and of random words, with the
            numbers `{attention}` and `{random}`. `{attention:points}` and `{random:points}` are shares in points.
    """

    better: Literal["↑", "↓", ""] = ""
    claim: str = ""
    beside: Sequence[str] = ()
    attention: str = ""


@dataclass(frozen=True, eq=False)
class CheckpointResult:
    """Numbers and scores of one checkpoint.

    Attributes:
        name: Name of the checkpoint, as in `Checkpoint`.
        variant: Name shared by checkpoints that differ only in the seed.
        seed: Seed of the training run; -1 if unknown.
        values: One row per test text, by its index in the split; columns are `<test>.<column>`, nan for skipped texts.
        scores: Estimates by `<test>.<score>`.
        others: Columns `gold` and `predicted` of texts that are classified and not tested; None if there are none.
    """

    name: str
    variant: str
    seed: int
    values: pd.DataFrame
    scores: Mapping[str, Estimate]
    others: pd.DataFrame | None = None

    @property
    def decisions(self) -> pd.DataFrame:
        """Gold and predicted label of every text that is classified: those of `values`, and the `others`."""
        of_values = self.values[["gold", "predicted"]]
        if self.others is None:
            return of_values
        return pd.concat([of_values, self.others])

    def columns(self, test: str) -> pd.DataFrame:
        """Return the numbers of a test, one row per text; columns are named without the prefix `<test>.`."""
        prefix = f"{test}."
        names = [name for name in self.values if str(name).startswith(prefix)]
        return self.values[names].rename(columns=lambda name: name.removeprefix(prefix))

    @property
    def tested(self) -> "pd.Series[bool]":
        """Bool for each text, True if at least one test has a value for it."""
        return self.values.filter(like=".").notna().any(axis=1)


def by_variant(results: Sequence[CheckpointResult]) -> dict[str, list[CheckpointResult]]:
    """Group results by variant, the name shared by checkpoints that differ only in the seed.

    Variants, and the checkpoints of a variant, keep the order of `results`.
    """
    variants: dict[str, list[CheckpointResult]] = {}
    for result in results:
        variants.setdefault(result.variant, []).append(result)
    return variants


def frames_by_variant(results: Sequence[CheckpointResult], test: str) -> dict[str, pd.DataFrame]:
    """Return the numbers of a test by variant, with the checkpoints of all seeds in one frame.

    A variant is the name shared by checkpoints that differ only in the seed. Its frame has the rows of
    its checkpoints one after another: one row per checkpoint and test text, nan for skipped texts.

    Args:
        results: Results of all checkpoints.
        test: Name of the test.
    """
    frames = {}
    for variant, seeds in by_variant(results).items():
        frames[variant] = pd.concat([result.columns(test) for result in seeds])
    return frames


def column_means(values: Floats, weights: Floats) -> Floats:
    """Return the mean of each column in each draw, `[draws, columns]`; nan for a draw of no text.

    Args:
        values: Values of the texts, `[texts, columns]`.
        weights: Number of times that each text was drawn, `[draws, texts]`.
    """
    return ratio(weights @ values, weights.sum(axis=1, keepdims=True))


class FidelityTest(ABC):
    """Base class of fidelity tests, which measure every text and compute scores over a test set.

    Subclasses have a `name` and implement `measure` and `scores`, and optionally `begin`, `tables` and `figures`. The
    names of tables and figures begin with the name of the test. The names of columns and scores do not: `Fidelity`
    prepends it.

    Attributes:
        name: Name of the test.
        readings: Direction and meaning of scores, by name of the score; for scores `<ranking>.<measure>`, by name of
            the measure. The table `judge` shows the measures in this order, or all measures if none is described.
        rankings: Rankings of words that the test compares, by their names in columns and scores; see `check_rankings`.
        draws: Number of random orders of a text.
        why_at_most: Reason that `changed_copies` is an upper bound; empty if it is not.
    """

    name: ClassVar[str]
    readings: ClassVar[Mapping[str, Reading]] = {}
    rankings: Mapping[str, str | Explainer] = {}
    draws: int = 5
    why_at_most: ClassVar[str] = ""

    def begin(  # noqa: B027 # most have nothing to prepare
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        """Prepare the test before the first batch, for instance by training models.

        Args:
            checkpoints: Classifiers to test.
            data: Datamodule of the run, set up.
            device: Device of the classifiers.
            seed: Seed of all random numbers.
        """

    def changed_copies(self, classified: ClassifiedBatch) -> float:
        """Return the number of changed copies of texts that `measure` will classify, for the time left in the log.

        It is an upper bound if `why_at_most` says why. It is infinite if it is not known before, which is the default.
        """
        return math.inf

    @abstractmethod
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        """Return one number for each text under one classifier, `[batch]`, by name of the column.

        The names are the same for all batches of a classifier, and every column that `scores` reads is among them; nan
        stands for a number that a text does not have. A test that cannot be applied to the classifier returns an empty
        mapping, and all its numbers are nan. The method may compute gradients with respect to activations, but not with
        respect to parameters, which are frozen. It may add values of the words to `batch.highlights`.

        Args:
            classified: The texts, with attention and output of the classifier.
            saliency: Importance of the words of these texts. All tests share it, so that each measure is
                computed once.
        """

    @abstractmethod
    def scores(self) -> Mapping[str, Score]:
        """Return the definitions of the test's scores, by name of the score; called after `begin`."""

    def main_scores(self) -> list[str]:
        """Return the names of the main scores, which are printed: all scores if none is declared."""
        scores = self.scores()
        declared = [name for name, score in scores.items() if score.main]
        return declared or list(scores)

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the tables of the test by name, from the results of all checkpoints; none by default."""
        return {}

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return the figures of the test by name, from the results of all checkpoints; none by default."""
        return {}

    def audit(self) -> Mapping[str, object]:
        """Return counts of what the test left out or approximated, by name; none by default."""
        return {}


def check_columns(test: FidelityTest, columns: Collection[str]) -> None:
    """Check that `measure` of a test returned every column that its scores read, or no column at all.

    Args:
        test: The test.
        columns: Names of the columns that `measure` returned for a batch.

    Raises:
        UserError: A column is missing.
    """
    if not columns:
        return
    for score in test.scores().values():
        for column in score.columns:
            if column not in columns:
                returned = list_first([repr(name) for name in columns])
                raise UserError(
                    f"{type(test).__name__}: scores() reads the column {column!r}, but measure() returned {returned}. "
                    "Return the column, or read one of these."
                )
