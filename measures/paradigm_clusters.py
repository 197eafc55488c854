"""Paradigms of minimal pairs that share heads: correlations of their effects, and clusters tested on other pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from attention_probing.measures.clusters import cut_tree, layer_test, tree_of
from attention_probing.results import Floats

FEWEST = 6
"""Least number of paradigms that clusters are made of."""


@dataclass(frozen=True, eq=False)
class ParadigmClusters:
    """Clusters of paradigms whose effects over heads are alike, made on one half of the pairs and tested on the other.

    Attributes:
        correlations: Pearson's r of the effects of all heads, `[paradigms, paradigms]`; rows are of the choosing half,
            columns of the testing half. The diagonal is thus the reliability of the effects of each paradigm. Two
            paradigms correlate by at most √(reliability of the one · reliability of the other), apart from chance,
            because noise attenuates the correlation (Spearman 1904).
        clusters: Number of the cluster of each paradigm, from 1, by average linkage of 1 − r on the choosing half,
            int64 `[paradigms]`.
        tree: The tree that was cut, as scipy's linkage.
        within: Mean of 1 − r of paradigms of one cluster, on the testing half.
        between: The same of paradigms of different clusters.
        p: P-value of clusters that are no closer than random ones, on the testing half (`layer_test`).
        p_of_fields: The same of the fields of grammar in place of clusters.
    """

    correlations: Floats
    clusters: NDArray[np.int64]
    tree: Floats
    within: float
    between: float
    p: float
    p_of_fields: float

    @classmethod
    def from_effects(cls, choosing: Floats, testing: Floats, fields: Sequence[str], seed: int) -> Self:
        """Cluster paradigms.

        Args:
            choosing: Mean effect of each head on the choosing half, `[paradigms, heads]`.
            testing: The same on the testing half.
            fields: Field of each paradigm.
            seed: Seed of the permutations.
        """
        count = len(choosing)
        correlations = np.corrcoef(choosing, testing)  # of the rows of both
        tree = tree_of(_distances(correlations[:count, :count]))
        clusters = cut_tree(tree)
        distances = _distances(correlations[count:, count:])
        within, between, p = layer_test(distances, clusters, seed)
        _, numbers_of_fields = np.unique(fields, return_inverse=True)
        *_, p_of_fields = layer_test(distances, numbers_of_fields.astype(np.int64), seed)
        return cls(correlations[:count, count:], clusters, tree, within, between, p, p_of_fields)

    @property
    def reliability(self) -> Floats:
        """Correlation of the effects of each paradigm on one half with those on the other, `[paradigms]`."""
        diagonal: Floats = self.correlations.diagonal()
        return diagonal


def _distances(correlations: Floats) -> Floats:
    """Return 1 − r, with a diagonal of exactly 0."""
    distances = 1 - correlations
    np.fill_diagonal(distances, 0)
    return np.maximum(distances, 0)
