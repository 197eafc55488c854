"""Uniform and shuffled attention at test time, with unchanged hidden states."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fidelity.classified import ClassifiedBatch, renormalised
from fidelity.comparison import CheckpointResult, over_seeds
from fidelity.experiment import FidelityTest, Measurements, Score, means, proportions
from fidelity.saliency import Saliency
from metrics.classification import accuracy_drop, f1_drop
from metrics.distributions import tvd
from results import Figure, Floats, Spreads, Table, Unit

BINS = ("0–.25", ".25–.5", ".5–.75", ".75–1")  # of the highest weight of a text (Jain & Wallace 2019, fig. 6)


class Perturbation(FidelityTest):
    """Decrease in F1 and accuracy if attention is replaced at test time (Tutek & Šnajder 2020, §5).

    There are two kinds of replacement: `uniform` gives every position the same weight, and `permuted`
    shuffles the weights within the text. At the level of words of a hierarchical model both happen
    within each sentence. All heads are shuffled in the same way.

    Scores for each kind: `<kind>_drop` and `<kind>_accuracy_drop`, the decrease in F1 and in accuracy;
    `<kind>_flips`, the share of decisions that change. With two classes F1 is the positive class's,
    else the mean over classes.

    Columns: `gold`, the label; `own`, the decision under the classifier's own attention;
    `<kind>_class_<n>`, the share of replacements under which the decision is class n; `<kind>_flips`,
    the share of replacements under which the decision is not `own`. For each text, `uniform` has one
    replacement, and `permuted` has ten shuffles, all of whose decisions count in F1.
    """

    name = "perturbation"
    headline = ("_drop",)
    kinds = ("uniform", "permuted")
    permutations = 10  # shuffles of every text

    def columns(self, classes: int) -> Sequence[str]:
        own = [column for kind in self.kinds for column in (*_class_columns(kind, classes), f"{kind}_flips")]
        return ["gold", "own", *own]

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        noise = classified.noise(self.name, self.permutations)
        uniform = renormalised((classified.groups >= 0).to(classified.weights.dtype), classified.groups)
        replaced = {
            "uniform": uniform.expand(1, *classified.weights.shape),
            "permuted": permuted(classified.weights, noise, classified.groups),
        }
        classes = classified.probabilities.size(-1)
        numbers = {"gold": classified.batch.labels, "own": classified.predicted}
        for kind, weights in replaced.items():
            decisions = classified.decide(weights).argmax(-1)  # [draws, batch]
            shares = one_hot(decisions, classes).double().mean(0)
            numbers |= dict(zip(_class_columns(kind, classes), shares.unbind(-1), strict=True))
            numbers[f"{kind}_flips"] = (decisions != classified.predicted).double().mean(0)
        return Measurements(numbers)

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        found = {}
        for kind in self.kinds:
            columns = ("gold", "own", *_class_columns(kind, classes))
            found[f"{kind}_drop"] = Score(columns, f1_drop(positive, classes), "fraction")
            found[f"{kind}_accuracy_drop"] = Score(columns, accuracy_drop, "fraction")
            found |= proportions([f"{kind}_flips"])
        return found


class Permutation(FidelityTest):
    """Change of the output when attention is shuffled (Jain & Wallace 2019, §4.2.1).

    If a decision depends on the weights, shuffling them changes the output, at least if one of them is
    high. The change is therefore shown for texts with a similar highest weight. There are two columns:

    - `median_tvd`: median over shuffles of the TVD (0 to 1) between the original and the new output;
    - `max_attention`: highest weight of the text, after averaging over heads.

    The score is the mean over texts of `median_tvd`.
    """

    name = "permutation"
    permutations = 100  # shuffles of every text

    def columns(self, classes: int) -> Sequence[str]:
        return ("median_tvd", "max_attention")

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        weights = permuted(classified.weights, classified.noise(self.name, self.permutations), classified.groups)
        distances = tvd(classified.decide(weights), classified.probabilities)
        # Not torch.median: for an even number of shuffles it is the lower of the middle two.
        return Measurements({"median_tvd": distances.quantile(0.5, dim=0), "max_attention": max_attention(classified)})

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        return means(["median_tvd"])

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the table `permutation`: mean and median of `median_tvd` over the texts of a bin.

        Texts are divided into bins by their highest attention weight. There is a row for each variant
        and bin; the columns are those of `bin_table`.
        """
        return {self.name: bin_table(by_max_attention(results, self.name, "median_tvd"), "tvd", "fraction")}

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return the figure `permutation`: violins of `median_tvd` for each variant.

        Texts are divided into bins by their highest attention weight, as in Jain & Wallace's Fig. 6.
        """
        values = by_max_attention(results, self.name, "median_tvd")
        return {self.name: violins("Attention shuffled", values, "median TVD of the output")}


def permuted(weights: Tensor, noise: Tensor, groups: Tensor) -> Tensor:
    """Shuffle attention weights within their distributions, in the same way for all heads.

    Args:
        weights: Attention `[heads, batch, positions]`.
        noise: Random numbers whose order gives the permutations, `[draws, batch, positions]`.
        groups: Index of the distribution that each position belongs to, int64 `[batch, positions]`;
            positions with -1 keep their weight.

    Returns:
        Shuffled weights `[draws, heads, batch, positions]`.
    """
    positions = groups.argsort(dim=-1, stable=True).expand(noise.shape)
    by_noise = noise.argsort(-1)
    # Sorted by group, then by noise: the n-th of them gives its weight to the n-th position of the group.
    givers = by_noise.gather(-1, groups.expand(noise.shape).gather(-1, by_noise).argsort(dim=-1, stable=True))
    source = torch.empty_like(givers).scatter_(-1, positions, givers)
    outside = groups < 0
    source = torch.where(outside, torch.arange(groups.size(-1), device=groups.device), source)
    shape = (noise.size(0), *weights.shape)
    return weights.expand(shape).gather(-1, source[:, None].expand(shape))


def max_attention(classified: ClassifiedBatch) -> Tensor:
    """Return the highest attention weight of each text, `[batch]`, after averaging over heads."""
    return classified.attention.amax(-1)


def by_max_attention(results: Sequence[CheckpointResult], test: str, column: str) -> Mapping[str, Sequence[Floats]]:
    """Return the values of a test's column by variant, in bins of the texts' highest attention weight.

    The texts of all seeds of a variant are taken together. Texts whose value is nan are left out.

    Args:
        results: Results of all checkpoints.
        test: Name of the test.
        column: Name of the column.

    Returns:
        For each variant, four arrays of values, `[texts]`: one for each quarter of the range of the
        highest weight, from 0–.25 to .75–1.
    """
    found: dict[str, list[Floats]] = {}
    for variant, values in over_seeds(results, test).items():
        pairs = values[["max_attention", column]].dropna().to_numpy(np.float64)
        # The last bin includes 1.
        bins = np.minimum(pairs[:, 0] * len(BINS), len(BINS) - 1).astype(np.int64)
        found[variant] = [pairs[bins == place, 1] for place in range(len(BINS))]
    return found


def bin_table(values: Mapping[str, Sequence[Floats]], what: str, unit: Unit) -> Table:
    """Return a table of the mean and median value, one row for each variant and bin that has texts.

    Columns: `variant`; `max_attention`, the bin of the texts' highest attention weight, such as
    `.25–.5`; `texts`, the number of values; `mean_<what>` and `median_<what>`.

    Args:
        values: Values `[texts]` of each bin by variant, from `by_max_attention`.
        what: Name of the values in the last two columns.
        unit: Unit of the values.
    """
    rows = [
        (variant, name, len(some), some.mean(), np.median(some))
        for variant, by_bin in values.items()
        for name, some in zip(BINS, by_bin, strict=True)
        if len(some)
    ]
    columns = [f"mean_{what}", f"median_{what}"]
    frame = pd.DataFrame(rows, columns=["variant", "max_attention", "texts", *columns])
    return Table(frame, dict.fromkeys(columns, unit))


def violins(title: str, values: Mapping[str, Sequence[Floats]], label: str) -> Spreads:
    """Return a figure with one violin for each variant and bin of the texts' highest attention weight.

    Args:
        title: Title of the figure.
        values: Values `[texts]` of each bin by variant, from `by_max_attention`.
        label: Label of the axis of the values.
    """
    series = {variant: [some.tolist() for some in by_bin] for variant, by_bin in values.items()}
    return Spreads(title, BINS, series, label, unit="ratio", category_label="highest attention weight of the text")


def _class_columns(kind: str, classes: int) -> Sequence[str]:
    return [f"{kind}_class_{number}" for number in range(classes)]
