"""Attention that is shuffled at test time (Jain & Wallace 2019, §4.2.1)."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from attention_probing.fidelity.classified import ClassifiedBatch
from attention_probing.fidelity.contract import (
    CheckpointResult,
    FidelityTest,
    Reading,
    Score,
    means,
)
from attention_probing.fidelity.highest_weight import bin_table, by_max_attention, max_attention, violins
from attention_probing.fidelity.saliency import Saliency
from attention_probing.metrics.distributions import tvd
from attention_probing.results import Figure, Table


class Permutation(FidelityTest):
    """Change of the output when attention is shuffled (Jain & Wallace 2019, §4.2.1).

    If a decision depends on the weights, shuffling them changes the output. Peaked attention should
    react most, so the table and the figure bin the texts by their highest weight. There are two columns:

    - `median_tvd`: median over shuffles of the TVD (0 to 1) between the original and the new output;
    - `max_attention`: highest weight of the text, after averaging over heads.

    The score is the mean over texts of `median_tvd`.
    """

    name = "permutation"
    readings: ClassVar = {"median_tvd": Reading("↑", "shuffled attention changes the output by {} (median TVD)")}
    permutations = 100  # shuffles of every text

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        noise = classified.noise(self.name, self.permutations)
        weights = permute(classified.weights, noise, classified.groups)
        distances = tvd(classified.decide(weights), classified.probabilities)
        # Not torch.median: for an even number of shuffles it is the lower of the middle two.
        median_tvd = distances.quantile(0.5, dim=0)
        return {"median_tvd": median_tvd, "max_attention": max_attention(classified)}

    def scores(self) -> Mapping[str, Score]:
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


def permute(weights: Tensor, noise: Tensor, groups: Tensor) -> Tensor:
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
    # Sorted by group, then by noise: the n-th of them gives its weight to the n-th position of the group.
    by_noise = noise.argsort(-1)
    groups_by_noise = groups.expand(noise.shape).gather(-1, by_noise)
    givers = by_noise.gather(-1, groups_by_noise.argsort(dim=-1, stable=True))
    source = torch.empty_like(givers).scatter_(-1, positions, givers)
    itself = torch.arange(groups.size(-1), device=groups.device)
    source = torch.where(groups < 0, itself, source)
    shape = (noise.size(0), *weights.shape)
    return weights.expand(shape).gather(-1, source[:, None].expand(shape))
