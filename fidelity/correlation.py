"""Correlation of attention with other measures of the importance of words (Jain & Wallace 2019, §4.1)."""

import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import ConstantInputWarning, NearConstantInputWarning, kendalltau, pearsonr
from torch import Tensor

from attention_probing.fidelity.classified import ClassifiedBatch
from attention_probing.fidelity.contract import CheckpointResult, FidelityTest, Reading, Score, frames_by_variant, means
from attention_probing.fidelity.saliency import MEASURES, OF_LAYERS, Explainer, Saliency, check_rankings
from attention_probing.metrics.statistics import Ratio, rank_correlations
from attention_probing.results import Curves, Figure, Floats, Table
from attention_probing.results.options import checked
from attention_probing.results.sentences import LEVEL

ROUNDING = 1e-6
"""Tolerance of ties: for weights relative to the weight, as a softmax rounds; for measures, which are sums, relative to
the largest value of the text; for leave-one-out, a difference of probabilities, absolute."""
COEFFICIENTS = ("kendall", "pearson", "spearman")
HISTOGRAM_BINS = 20  # bins of a histogram of coefficients
INCOMPLETENESS = "integrated_gradients.incompleteness"


class Correlation(FidelityTest):
    """Correlation, over the words of a text, between attention and measures of word importance.

    Attention is correlated with the absolute value of each measure. For leave-one-out, the total
    variation distance between the outputs with and without the word takes the place of the absolute
    value. Kendall's τ is τ-b. Measures are also correlated with each other, for reference. Values that
    differ only by rounding count as ties: otherwise two occurrences of one word could be ranked by their
    last digits, which depend on the batch.

    Columns: `<measure>.kendall`, `.pearson` and `.spearman`, the correlations with attention, and `.p`,
    the p-value of τ. For the correlation of two measures there are the same four columns,
    `<measure>_<measure>.kendall` and so on. All four are nan if attention or a measure has the same
    value for all words. `words` is the number of words; `integrated_gradients.incompleteness` is
    explained at `Saliency.incompleteness`.

    Scores: the mean over the texts of each coefficient and of the incompleteness, under the name of the
    column; and `<measure>.significant`, the share of texts with p ≤ .05. Texts whose coefficient is nan
    are left out, and counted in the table `correlation`.

    Args:
        saliencies: The measures, each once; `file:PATH` reads one (`fidelity.explanations`), an object
            computes one (`fidelity.saliency.Explainer`).
    """

    name = "correlation"
    readings: ClassVar = {"kendall": Reading()}  # agreement with attention is neither good nor bad

    @checked
    def __init__(self, saliencies: Sequence[str | Explainer] = MEASURES) -> None:
        self.rankings = check_rankings("correlation: saliencies", saliencies, (*MEASURES, *OF_LAYERS))
        with_each_other = [f"{one}_{other}" for one, other in combinations(self.rankings, 2)]
        self._pairs = [*self.rankings, *with_each_other]  # of attention and a measure by the name of the measure

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        magnitudes = [saliency.magnitude(measure) for measure in self.rankings.values()]
        values = torch.stack([classified.attention, *magnitudes], dim=1).double().cpu().numpy()
        words = classified.words.cpu().numpy()
        # In the order of `_pairs`: attention with each measure, then the measures with each other.
        first, second = np.triu_indices(values.shape[1], 1)
        agreement = np.empty((len(words), len(Agreement._fields), len(first)))
        for text, is_word in enumerate(words):
            values_of_words = self._tie(values[text][:, is_word])
            agreement[text] = agreements(values_of_words[first], values_of_words[second])
        columns = {}
        for place, pair in enumerate(self._pairs):
            for field, name in enumerate(Agreement._fields):
                columns[f"{pair}.{name}"] = torch.from_numpy(agreement[:, field, place])
        if "integrated_gradients" in self.rankings:
            columns[INCOMPLETENESS] = saliency.incompleteness
        columns["words"] = classified.words.sum(1)
        for name, measure in self.rankings.items():
            classified.highlights[name] = saliency.signed_values(measure)
        return columns

    def _tie(self, values: Floats) -> Floats:
        """Make values of the words of a text equal that differ only by rounding.

        Args:
            values: Attention and the measures, `[1 + measures, words]`.
        """
        tolerance = ROUNDING * values.max(axis=1, keepdims=True) * np.ones_like(values)
        tolerance[0] = ROUNDING * values[0]
        for place, name in enumerate(self.rankings, start=1):
            if name == "leave_one_out":
                tolerance[place] = np.maximum(tolerance[place], ROUNDING)
        return without_rounding(values, tolerance)

    def scores(self) -> Mapping[str, Score]:
        scores: dict[str, Score] = {}
        for pair in self._pairs:
            is_with_attention = pair in self.rankings
            scores |= means([f"{pair}.kendall"], main=is_with_attention)
            scores |= means([f"{pair}.pearson", f"{pair}.spearman"])
            scores[f"{pair}.significant"] = Score([f"{pair}.p"], _significant, "fraction")
        if "integrated_gradients" in self.rankings:
            scores |= means([INCOMPLETENESS])
        return scores

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the table `correlation`, with one row for each checkpoint and pair of measures.

        Attention counts as a measure. Columns: `texts`, the number of texts with a coefficient;
        `undefined`, the number of tested texts without one; `kendall` and `kendall.sd`, the mean and
        standard deviation of τ over texts; `significant`, the share of texts with p ≤ .05; and the means
        `pearson` and `spearman`.
        """
        rows = []
        for result, pair in product(results, self._pairs):
            texts = result.columns(self.name)
            kendall = texts[f"{pair}.kendall"]
            row = {
                "checkpoint": result.name,
                "pair": f"attention_{pair}" if pair in self.rankings else pair,
                "texts": kendall.count(),
                "undefined": texts["words"].count() - kendall.count(),
                "kendall": kendall.mean(),
                "kendall.sd": kendall.std(),
                "significant": result.scores[f"{self.name}.{pair}.significant"].value,
                "pearson": texts[f"{pair}.pearson"].mean(),
                "spearman": texts[f"{pair}.spearman"].mean(),
            }
            rows.append(row)
        return {self.name: Table(pd.DataFrame(rows), dict.fromkeys((*COEFFICIENTS, "significant"), "fraction"))}

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return a figure `correlation.<measure>` for each measure of word importance.

        It has a line for each variant: the histogram, over texts, of Kendall's τ between attention and
        the measure. The texts of all seeds of a variant are taken together. Texts whose τ is nan are
        left out.
        """
        variants = frames_by_variant(results, self.name)
        figures = {}
        for measure in self.rankings:
            lines = {}
            for variant, texts in variants.items():
                taus = texts[f"{measure}.kendall"].dropna().to_numpy()
                lines[f"{variant} (n = {len(taus):,})"] = _outline(taus)
            title = f"Attention and {measure.replace('_', ' ')}"
            figures[f"{self.name}.{measure}"] = Curves(title, "Kendall's τ of a text", "texts (%)", lines)
        return figures


def _outline(taus: Floats) -> tuple[list[float], list[float]]:
    """Return the outline of a histogram of coefficients, in % of the texts: two corners at each edge of a bin."""
    # Rounding may take a correlation above one.
    counts, edges = np.histogram(np.clip(taus, -1.0, 1.0), HISTOGRAM_BINS, (-1.0, 1.0))
    shares = np.repeat(100.0 * counts / max(len(taus), 1), 2)
    return np.repeat(edges, 2).tolist(), [0.0, *shares.tolist(), 0.0]


class Agreement(NamedTuple):
    """Correlations over the words of a text between two lists of values, for several pairs of lists.

    All fields are `[pairs]`. They are nan if one of the two lists is constant.

    Attributes:
        kendall: Kendall's τ-b.
        pearson: Pearson's r.
        spearman: Spearman's ρ.
        p: Two-sided p-value of τ-b.
    """

    kendall: Floats
    pearson: Floats
    spearman: Floats
    p: Floats


def agreements(one: Floats, other: Floats) -> Agreement:
    """Correlate each row of `one` with the same row of `other`, over the words.

    Args:
        one: Values of the words, `[pairs, words]`.
        other: Values of the words to correlate with, `[pairs, words]`.
    """
    taus = []
    for values, other_values in zip(one, other, strict=True):
        test = kendalltau(values, other_values)
        taus.append((test.statistic, test.pvalue))
    with warnings.catch_warnings():  # they become nan
        warnings.simplefilter("ignore", ConstantInputWarning)
        warnings.simplefilter("ignore", NearConstantInputWarning)
        pearson = pearsonr(one, other, axis=1).statistic
        spearman = rank_correlations(one, other)
    kendall, p = np.array(taus).T
    return Agreement(kendall, pearson, spearman, p)


def without_rounding(values: Floats, tolerance: Floats) -> Floats:
    """Remove differences due to rounding: make values equal that differ by no more than rounding.

    The values of a text are divided into groups, from the lowest value upwards. A group has all values that exceed its
    lowest value by at most the tolerance of that value, so no group is wider than rounding. Numbers in single precision
    are compared in double precision.

    Args:
        values: Values of the words, `[..., words]`.
        tolerance: Largest rounding difference of each value, `[..., words]`.

    Returns:
        The lowest value of each word's group, `[..., words]`.
    """
    lowest_of_groups = values.copy()
    for text in np.ndindex(values.shape[:-1]):
        lowest = np.nan
        most = np.nan
        for word in values[text].argsort().tolist():
            value = float(values[text][word])
            if not value - lowest <= most:  # the first word, too
                lowest = value
                most = float(tolerance[text][word])
            lowest_of_groups[text][word] = lowest
    return lowest_of_groups


def _count_significant(values: Floats) -> tuple[Floats, Floats]:
    return (values[:, 0] <= LEVEL).astype(np.float64), np.ones(len(values))


_significant = Ratio(_count_significant, share=True)
