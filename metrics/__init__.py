"""Formulas as functions, state as torchmetrics, and the plain data that experiments return."""

from metrics.antecedent import (
    ANTECEDENT_DIRECTIONS,
    ANTECEDENT_GROUPS,
    Accuracies,
    AntecedentCounts,
    Links,
    accuracies,
    antecedent_hits,
    antecedent_hits_among_words,
    find_links,
)
from metrics.arborescence import maximum_arborescence, tree_heads
from metrics.attachment import (
    OFFSETS,
    Arcs,
    attached,
    best_offsets,
    edges_found,
    left_branching,
    offset_heads,
    right_branching,
    uniform_attached,
    uniform_edges_found,
)
from metrics.predictions import ArcPredictions
from metrics.results import AttentionLines, Bars, Figure, HeatMap, Provenance, Result
from metrics.scores import attachment_scores, relation_accuracies, sentence_scores
from metrics.significance import PairedDifference, bootstrap_ratio, holm, paired_bootstrap, paired_permutation

__all__ = [
    "ANTECEDENT_DIRECTIONS",
    "ANTECEDENT_GROUPS",
    "OFFSETS",
    "Accuracies",
    "AntecedentCounts",
    "ArcPredictions",
    "Arcs",
    "AttentionLines",
    "Bars",
    "Figure",
    "HeatMap",
    "Links",
    "PairedDifference",
    "Provenance",
    "Result",
    "accuracies",
    "antecedent_hits",
    "antecedent_hits_among_words",
    "attached",
    "attachment_scores",
    "best_offsets",
    "bootstrap_ratio",
    "edges_found",
    "find_links",
    "holm",
    "left_branching",
    "maximum_arborescence",
    "offset_heads",
    "paired_bootstrap",
    "paired_permutation",
    "relation_accuracies",
    "right_branching",
    "sentence_scores",
    "tree_heads",
    "uniform_attached",
    "uniform_edges_found",
]
