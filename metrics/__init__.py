"""Formulas as functions, state as torchmetrics, and the plain data that experiments return."""

from metrics.attachment import (
    OFFSETS,
    ArcPredictions,
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
from metrics.results import Bars, Figure, HeatMap, Provenance, Result
from metrics.scores import attachment_scores, relation_accuracies, sentence_scores
from metrics.significance import bootstrap_ratio

__all__ = [
    "OFFSETS",
    "ArcPredictions",
    "Arcs",
    "Bars",
    "Figure",
    "HeatMap",
    "Provenance",
    "Result",
    "attached",
    "attachment_scores",
    "best_offsets",
    "bootstrap_ratio",
    "edges_found",
    "left_branching",
    "offset_heads",
    "relation_accuracies",
    "right_branching",
    "sentence_scores",
    "uniform_attached",
    "uniform_edges_found",
]
