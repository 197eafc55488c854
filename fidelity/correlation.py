"""Whether attention orders the words of a text as other measures of their importance do (Jain & Wallace 2019, §4.1)."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import ConstantInputWarning, NearConstantInputWarning, kendalltau, pearsonr, rankdata

from fidelity.base import CheckpointResult, FidelityTest, Measurements, Score, means, over_seeds
from fidelity.classified import ClassifiedBatch
from fidelity.saliency import MEASURES, Measure, Saliency
from metrics.bootstrap import mean
from results import Curves, Figure, Floats, Table
from results.errors import UserError, check_values

LEVEL = 0.05  # a correlation whose p-value is at most this is significant
ROUNDING = 1e-6
"""Weights are ties if they differ by at most this share of themselves, as a softmax rounds; measures, which are sums,
if they differ by at most this share of the largest of the text; probabilities, in leave-one-out, if they differ by at
most this."""
COEFFICIENTS = ("kendall", "pearson", "spearman")
BINS = 20  # of a histogram of coefficients
INCOMPLETENESS = "integrated_gradients.incompleteness"


class Correlation(FidelityTest):
    """Correlation over the words of a text between attention and measures of how much each word matters.

    Uses |value| for every measure except leave-one-out, which uses the total variation distance. Kendall's τ is τ-b.
    The agreement of the measures with each other is a reference. Values that differ by rounding alone count as ties: a
    word that stands in a text twice may have two values that differ in the last digits, which depend on the batch.

    Columns: `<measure>.kendall`, `.pearson` and `.spearman` with attention, and `.p` of τ; the same of two measures as
    `<measure>_<measure>.kendall` and so on; nan where one side is the same for all words. `words`, which the text has.
    `integrated_gradients.incompleteness`, how far their sum is from what it should be.

    Scores: means over the texts, and in the place of `.p` `<measure>.significant`, the share of texts with p ≤ .05.
    Texts without a coefficient are left out of its mean, and counted in the table `correlation`.

    Args:
        saliencies: the measures, each once.
    """

    name = "correlation"
    headline = (".kendall",)

    def __init__(self, saliencies: Sequence[Measure] = MEASURES) -> None:
        check_values(self, saliencies=saliencies)
        if not saliencies or len(set(saliencies)) < len(saliencies):
            raise UserError(f"correlation: name one or more saliencies, each once, and not {list(saliencies)}.")
        self.saliencies = tuple(saliencies)

    @property
    def _pairs(self) -> list[str]:
        return [*self.saliencies, *(f"{one}_{other}" for one, other in combinations(self.saliencies, 2))]

    def columns(self, classes: int) -> Sequence[str]:
        found = ["words", *(f"{pair}.{name}" for pair in self._pairs for name in Agreement._fields)]
        return [*found, INCOMPLETENESS] if "integrated_gradients" in self.saliencies else found

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        measures = [saliency.magnitude(measure) for measure in self.saliencies]
        sides = torch.stack([classified.attention, *measures], dim=1).double().cpu().numpy()
        words = classified.words.cpu().numpy()
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
        numbers = {"words": classified.words.sum(1)}
        for place, pair in enumerate(self._pairs):
            for field, name in enumerate(Agreement._fields):
                numbers[f"{pair}.{name}"] = torch.from_numpy(found[field, :, place])
        if "integrated_gradients" in self.saliencies:
            numbers[INCOMPLETENESS] = saliency.incompleteness
        return Measurements(numbers, {measure: saliency.signed(measure) for measure in self.saliencies})

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        scores: dict[str, Score] = {}
        for pair in self._pairs:
            scores |= means(f"{pair}.{name}" for name in COEFFICIENTS)
            scores[f"{pair}.significant"] = Score((f"{pair}.p",), _significant, "fraction")
        return scores | means([INCOMPLETENESS] if "integrated_gradients" in self.saliencies else [])

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """A row for every checkpoint and pair: over how many texts, mean and deviation of τ, and the other means.

        `undefined` are texts that were tested, and have no coefficient.
        """
        rows = []
        for result, pair in product(results, self._pairs):
            own = result.of(self.name)
            kendall = own[f"{pair}.kendall"]
            row = {
                "checkpoint": result.name,
                "pair": f"attention_{pair}" if pair in self.saliencies else pair,
                "texts": kendall.count(),
                "undefined": own["words"].count() - kendall.count(),
                "kendall": kendall.mean(),
                "kendall.sd": kendall.std(),
                "significant": result.scores[f"{self.name}.{pair}.significant"].value,
                "pearson": own[f"{pair}.pearson"].mean(),
                "spearman": own[f"{pair}.spearman"].mean(),
            }
            rows.append(row)
        return {self.name: Table(pd.DataFrame(rows), dict.fromkeys((*COEFFICIENTS, "significant"), "fraction"))}

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return a histogram of τ with attention for each measure, with an outline for each variant."""
        seeds, figures = over_seeds(results, self.name), {}
        for measure in self.saliencies:
            taus = {variant: values[f"{measure}.kendall"].dropna().to_numpy() for variant, values in seeds.items()}
            lines = {f"{variant} (n = {len(own):,})": _outline(own) for variant, own in taus.items()}
            title = f"Attention and {measure.replace('_', ' ')}"
            figures[f"{self.name}.{measure}"] = Curves(title, "Kendall's τ of a text", "texts (%)", lines)
        return figures


def _outline(taus: Floats) -> tuple[list[float], list[float]]:
    """Return the outline of a histogram of coefficients, in % of the texts: two corners at each edge of a bin."""
    # A correlation may pass one by a rounding error.
    counts, edges = np.histogram(np.clip(taus, -1.0, 1.0), BINS, (-1.0, 1.0))
    shares = np.repeat(100.0 * counts / max(len(taus), 1), 2)
    return np.repeat(edges, 2).tolist(), [0.0, *shares.tolist(), 0.0]


class Agreement(NamedTuple):
    """Correlations of two sides, each `[texts]`, and the two-sided p of τ-b; nan where a side is constant."""

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
    kendall, p = np.array([(each.statistic, each.pvalue) for each in tau]).T
    return Agreement(kendall, pearson, spearman, p)


def without_rounding(values: Floats, tolerance: Floats) -> Floats:
    """The values `[..., words]`, where one no further above the next lower than its tolerance has become equal to it.

    So three that stand close one after the other become one.
    """
    order = values.argsort(axis=-1)
    ascending = np.take_along_axis(values, order, axis=-1)
    begins = np.diff(ascending, axis=-1, prepend=-np.inf) > np.take_along_axis(tolerance, order, axis=-1)
    lowest = np.maximum.accumulate(np.where(begins, np.arange(values.shape[-1]), 0), axis=-1)
    found = np.empty_like(values)
    np.put_along_axis(found, order, np.take_along_axis(ascending, lowest, axis=-1), axis=-1)
    return found


def _of_equal_length(words: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Places `[texts]` of texts that have as many words, and the positions of these, `[texts, words]`."""
    counts = words.sum(axis=1)
    for count in np.unique(counts):
        texts = np.flatnonzero(counts == count)
        yield texts, np.nonzero(words[texts])[1].reshape(len(texts), count)


def _significant(values: Floats, weights: Floats) -> Floats:
    return mean((values <= LEVEL).astype(np.float64), weights)
