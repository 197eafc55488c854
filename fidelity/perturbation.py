"""Attention that is made uniform or shuffled at test time, over the same hidden states."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fidelity.base import CheckpointResult, FidelityTest, Measurements, Score, means, over_seeds
from fidelity.classified import ClassifiedBatch, permuted, uniform_weights
from fidelity.saliency import Saliency
from metrics.classification import accuracy_drop, f1_drop
from metrics.distributions import tvd
from results import Figure, Floats, Spreads, Table, Unit
from results.errors import check_numbers

# Of the highest attention weight of a text (Jain & Wallace 2019, fig. 6).
BINS = ("0–.25", ".25–.5", ".5–.75", ".75–1")


class Perturbation(FidelityTest):
    """What a classifier loses when its attention is replaced at test time (Tutek & Šnajder 2020, §5).

    Attention is made `uniform`, the same weight on every position, or `permuted`, shuffled within the text; at the
    level of words of a hierarchical model both happen within each sentence. All heads are shuffled alike.

    Scores, each for both: `<kind>_drop` and `<kind>_accuracy_drop`, F1 and accuracy lost, positive for a loss;
    `<kind>_flips`, the share of decisions that become others. F1 is that of the positive class where there are two
    classes, else the mean over classes. Columns: `gold` and `own`, the classes; `<kind>_class_<n>`, the share of draws
    in which the text is given class n; `<kind>_flips`, in which it is given another than its own.

    Args:
        permutations: 1 or more shuffles of every text. The F1 is that of all of their decisions together.
    """

    name = "perturbation"
    headline = ("_drop",)
    kinds = ("uniform", "permuted")

    def __init__(self, permutations: int = 10) -> None:
        check_numbers(self, least=1, permutations=permutations)
        self.permutations = permutations

    def columns(self, classes: int) -> Sequence[str]:
        own = [column for kind in self.kinds for column in (*_class_columns(kind, classes), f"{kind}_flips")]
        return ["gold", "own", *own]

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        noise = classified.noise(self.name, self.permutations)
        uniform = uniform_weights(classified.groups, classified.weights.dtype)
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
            found |= means([f"{kind}_flips"])
        return found


class Permutation(FidelityTest):
    """How far shuffled attention moves the output, against how peaked the attention is (Jain & Wallace 2019, §4.2.1).

    A decision that hangs on the weights changes when they are shuffled, at least where one of them is high. Columns:
    `median_tvd`, the median over the shuffles of the total variation distance between the two outputs, in 0–1; and
    `max_attention`, the highest weight of the text (of several heads that of their mean). Score: `median_tvd`, the mean
    over the texts of these medians.

    Args:
        permutations: 1 or more shuffles of every text.
    """

    name = "permutation"

    def __init__(self, permutations: int = 100) -> None:
        check_numbers(self, least=1, permutations=permutations)
        self.permutations = permutations

    def columns(self, classes: int) -> Sequence[str]:
        return ("median_tvd", "max_attention")

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        weights = permuted(classified.weights, classified.noise(self.name, self.permutations), classified.groups)
        distances = tvd(classified.decide(weights), classified.probabilities)
        # Not torch.median: of an even number of shuffles it is the lower of the middle two.
        return Measurements({"median_tvd": distances.quantile(0.5, dim=0), "max_attention": max_attention(classified)})

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        return means(["median_tvd"])

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """`permutation`: mean and median over the texts of `median_tvd`, by the highest weight; see `bin_table`."""
        return {self.name: bin_table(by_max_attention(results, self.name, "median_tvd"), "tvd", "fraction")}

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """`permutation`: violins by the highest weight (Jain & Wallace's fig. 6)."""
        values = by_max_attention(results, self.name, "median_tvd")
        return {self.name: violins("Attention shuffled", values, "median TVD of the output")}


def max_attention(classified: ClassifiedBatch) -> Tensor:
    """The highest weight of every text, `[batch]`."""
    return classified.attention.amax(-1)


def by_max_attention(results: Sequence[CheckpointResult], test: str, column: str) -> Mapping[str, Sequence[Floats]]:
    """Values of a column by variant, over all its seeds, in the `BINS` of the column `max_attention`."""
    found: dict[str, list[Floats]] = {}
    for variant, values in over_seeds(results, test).items():
        pairs = values[["max_attention", column]].dropna().to_numpy(np.float64)
        # The last bin holds 1 too.
        bins = np.minimum(pairs[:, 0] * len(BINS), len(BINS) - 1).astype(np.int64)
        found[variant] = [pairs[bins == place, 1] for place in range(len(BINS))]
    return found


def bin_table(values: Mapping[str, Sequence[Floats]], what: str, unit: Unit) -> Table:
    """A row for each variant and bin with texts."""
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
    """One violin for each bin and variant."""
    series = {variant: [some.tolist() for some in by_bin] for variant, by_bin in values.items()}
    return Spreads(title, BINS, series, label, unit="ratio", category_label="highest attention weight of the text")


def _class_columns(kind: str, classes: int) -> Sequence[str]:
    return [f"{kind}_class_{number}" for number in range(classes)]
