"""Attention that is replaced by uniform or shuffled attention at test time (Tutek & Šnajder 2020, §5)."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity.checkpoints import Checkpoint
from attention_probing.fidelity.classified import ClassifiedBatch, renormalise
from attention_probing.fidelity.contract import (
    FidelityTest,
    Reading,
    Score,
    proportions,
)
from attention_probing.fidelity.permutation import permute
from attention_probing.fidelity.saliency import Saliency
from attention_probing.metrics.classification import accuracy_drop, f1_drop


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
    readings: ClassVar = {
        "uniform_drop": Reading("↑", "uniform attention changes F1 by {change}"),
        "permuted_drop": Reading("↑"),
    }
    kinds = ("uniform", "permuted")
    permutations = 10  # shuffles of every text

    def begin(
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        self._classes = len(data.labels)
        self._positive = data.positive

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        noise = classified.noise(self.name, self.permutations)
        uniform = renormalise((classified.groups >= 0).to(classified.weights.dtype), classified.groups)
        replaced = {
            "uniform": uniform.expand(1, *classified.weights.shape),
            "permuted": permute(classified.weights, noise, classified.groups),
        }
        classes = classified.probabilities.size(-1)
        columns = {"gold": classified.batch.labels, "own": classified.predicted}
        for kind, weights in replaced.items():
            decisions = classified.decide(weights).argmax(-1)  # [draws, batch]
            shares = one_hot(decisions, classes).double().mean(0)
            columns |= zip(_class_columns(kind, classes), shares.unbind(-1), strict=True)
            columns[f"{kind}_flips"] = (decisions != classified.predicted).double().mean(0)
        return columns

    def scores(self) -> Mapping[str, Score]:
        f1 = f1_drop(self._positive, self._classes)
        scores = {}
        for kind in self.kinds:
            columns = ("gold", "own", *_class_columns(kind, self._classes))
            scores[f"{kind}_drop"] = Score(columns, f1, "fraction", main=True)
            scores[f"{kind}_accuracy_drop"] = Score(columns, accuracy_drop, "fraction")
            scores |= proportions([f"{kind}_flips"])
        return scores


def _class_columns(kind: str, classes: int) -> Sequence[str]:
    return [f"{kind}_class_{number}" for number in range(classes)]
