"""Whether attention orders the words of a text as other measures of their importance do (Jain & Wallace 2019, §4.1)."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import ConstantInputWarning, NearConstantInputWarning, kendalltau, pearsonr, rankdata

from fidelity.base import FidelityTest, Measured, Score, Subject
from fidelity.checkpoints import FidelityError
from fidelity.reading import Reading
from fidelity.saliency import MEASURES, Measure
from metrics.bootstrap import Floats, mean
from results import Figure, Histograms, Table

LEVEL = 0.05
"""A correlation whose p-value is at most this is significant."""
ROUNDING = 1e-6
"""Weights of words are equal if they differ by at most this share of themselves, as a softmax rounds; measures if they
differ by at most this share of the largest of the text, since they are sums; and two probabilities, as leaving a word
out compares them, if they differ by at most this."""
COEFFICIENTS = ("kendall", "pearson", "spearman")
INCOMPLETENESS = "integrated_gradients.incompleteness"


class Correlation(FidelityTest):
    """Correlation over the words of a text between attention and measures of how much each word matters.

    Of the measures the magnitude counts, of leaving a word out the total variation distance. Kendall's is τ-b. As a
    reference stands the agreement of the measures with each other, which need not be high either. Values that differ
    by rounding alone are equal: a word that stands in a text twice may have the same twice but for the last digits,
    which depend on the batch.

    Columns: `<measure>.kendall`, `.pearson` and `.spearman` with attention, and `.p` of τ; the same of two measures as
    `<measure>_<measure>.kendall` and so on; nan where one side is the same for all words. `words`, which the text has.
    `integrated_gradients.incompleteness`, how far their sum is from what it should be.

    Scores: means over the texts, and in the place of `.p` `<measure>.significant`, the share of texts with p ≤ .05.
    Texts without a coefficient are left out of its mean, and counted in the table `correlation`.

    Args:
        saliencies: the measures.

    Raises:
        FidelityError: there is none, or one stands there twice.
    """

    name = "correlation"

    def __init__(self, saliencies: Sequence[Measure] = MEASURES) -> None:
        if not saliencies or len(set(saliencies)) < len(saliencies):
            raise FidelityError(f"correlation: name one or more saliencies, each once, and not {list(saliencies)}.")
        self.saliencies = tuple(saliencies)

    @property
    def _pairs(self) -> list[str]:
        return [*self.saliencies, *(f"{one}_{other}" for one, other in combinations(self.saliencies, 2))]

    def columns(self, classes: int) -> Sequence[str]:
        """See `FidelityTest`."""
        found = ["words", *(f"{pair}.{name}" for pair in self._pairs for name in Agreement._fields)]
        return [*found, INCOMPLETENESS] if "integrated_gradients" in self.saliencies else found

    def measure(self, reading: Reading) -> Measured:
        """Every pair of sides over the words of each text."""
        measures = [reading.saliency.magnitude(measure) for measure in self.saliencies]
        sides = torch.stack([reading.attention, *measures], dim=1).double().cpu().numpy()
        words = reading.words.cpu().numpy()
        floors = np.array([0.0, *(ROUNDING * (measure == "leave_one_out") for measure in self.saliencies)])
        # As in `_pairs`: attention against each, then each against each.
        one, other = np.array(list(combinations(range(sides.shape[1]), 2)), dtype=np.int64).reshape(-1, 2).T
        found = np.full((len(Agreement._fields), len(words), len(one)), np.nan)
        for texts, alike in _of_equal_length(words):
            chosen = sides[texts[:, None, None], np.arange(sides.shape[1])[:, None], alike[:, None]]
            tolerance = np.maximum(ROUNDING * chosen.max(axis=-1), floors)[..., None] * np.ones_like(chosen)
            tolerance[:, 0] = ROUNDING * chosen[:, 0]
            chosen = without_rounding(chosen, tolerance)
            agreement = agreements(*(chosen[:, side].reshape(-1, alike.shape[1]) for side in (one, other)))
            found[:, texts] = np.stack(agreement).reshape(-1, len(texts), len(one))
        numbers = {"words": reading.words.sum(1)}
        for place, pair in enumerate(self._pairs):
            for field, name in enumerate(Agreement._fields):
                numbers[f"{pair}.{name}"] = torch.from_numpy(found[field, :, place])
        if "integrated_gradients" in self.saliencies:
            numbers[INCOMPLETENESS] = reading.saliency.incompleteness
        return Measured(numbers, {measure: reading.saliency.signed(measure) for measure in self.saliencies})

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        """See `FidelityTest`."""
        scores: dict[str, Score] = {}
        for pair in self._pairs:
            scores |= {f"{pair}.{name}": Score((f"{pair}.{name}",), mean, "fraction") for name in COEFFICIENTS}
            scores[f"{pair}.significant"] = Score((f"{pair}.p",), _significant, "fraction")
        if "integrated_gradients" in self.saliencies:
            scores[INCOMPLETENESS] = Score((INCOMPLETENESS,), mean, "fraction")
        return scores

    def tables(self, subjects: Sequence[Subject]) -> Mapping[str, Table]:
        """A row for every checkpoint and pair: over how many texts, mean and deviation of τ, and the other means.

        `undefined` are texts that were tested, and have no coefficient.
        """
        rows = [self._row(subject, pair) for subject in subjects for pair in self._pairs]
        return {self.name: Table(pd.DataFrame(rows), dict.fromkeys((*COEFFICIENTS, "significant"), "fraction"))}

    def _row(self, subject: Subject, pair: str) -> Mapping[str, object]:
        values = {name: subject.values[f"{self.name}.{pair}.{name}"] for name in COEFFICIENTS}
        tested, defined = subject.values[f"{self.name}.words"].notna(), values["kendall"].notna()
        return {
            "checkpoint": subject.name,
            "pair": f"attention_{pair}" if pair in self.saliencies else pair,
            "texts": int(defined.sum()),
            "undefined": int((tested & ~defined).sum()),
            "kendall": values["kendall"].mean(),
            "kendall.sd": values["kendall"].std(),
            "significant": subject.scores[f"{self.name}.{pair}.significant"].value,
            "pearson": values["pearson"].mean(),
            "spearman": values["spearman"].mean(),
        }

    def figures(self, subjects: Sequence[Subject]) -> Mapping[str, Figure]:
        """For each measure a histogram of τ with attention, a series for each variant over all its seeds."""
        figures = {}
        for measure in self.saliencies:
            taus: dict[str, list[float]] = {}
            for subject in subjects:
                taus.setdefault(subject.variant, []).extend(subject.values[f"{self.name}.{measure}.kendall"])
            title = f"Attention and {measure.replace('_', ' ')}"
            figures[f"{self.name}.{measure}"] = Histograms(title, "Kendall's τ of a text", taus, -1, 1)
        return figures


class Agreement(NamedTuple):
    """Correlations of two sides, each `[texts]`; nan where one side is the same for all words.

    Attributes:
        kendall: τ-b.
        pearson: r.
        spearman: r of the ranks, those of ties averaged.
        p: two-sided, of τ-b.
    """

    kendall: Floats
    pearson: Floats
    spearman: Floats
    p: Floats


def agreements(one: Floats, other: Floats) -> Agreement:
    """Correlate two sides of texts of equal length, `[texts, words]` each, over the words."""
    tau = [kendalltau(a, b) for a, b in zip(one, other, strict=True)]
    with warnings.catch_warnings():  # they become nan
        warnings.simplefilter("ignore", ConstantInputWarning)
        warnings.simplefilter("ignore", NearConstantInputWarning)
        pearson = pearsonr(one, other, axis=1).statistic
        spearman = pearsonr(rankdata(one, axis=1), rankdata(other, axis=1), axis=1).statistic
    return Agreement(
        np.array([each.statistic for each in tau]), pearson, spearman, np.array([each.pvalue for each in tau])
    )


def without_rounding(values: Floats, tolerance: Floats) -> Floats:
    """The same values, where those that are no further apart than the tolerance have become equal to the lowest.

    Args:
        values: `[..., words]`; three that stand close one after the other become one.
        tolerance: `[..., words]`, of each value to the next lower one.
    """
    order = values.argsort(axis=-1)
    ascending = np.take_along_axis(values, order, axis=-1)
    begins = np.diff(ascending, axis=-1, prepend=-np.inf) > np.take_along_axis(tolerance, order, axis=-1)
    lowest = np.maximum.accumulate(np.where(begins, np.arange(values.shape[-1]), 0), axis=-1)
    found = np.empty_like(values)
    np.put_along_axis(found, order, np.take_along_axis(ascending, lowest, axis=-1), axis=-1)
    return found


def _of_equal_length(words: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Places `[texts]` of texts that have as many words, and the slots of these, `[texts, words]`."""
    counts = words.sum(axis=1)
    for count in np.unique(counts):
        texts = np.flatnonzero(counts == count)
        yield texts, np.nonzero(words[texts])[1].reshape(len(texts), count)


def _significant(values: Floats, weights: Floats) -> Floats:
    return mean((values <= LEVEL).astype(np.float64), weights)
