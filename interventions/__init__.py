"""Interventions on attention heads: ablation, causal check, importance and pruning, by scores of a model on texts."""

from interventions.ablation import HeadAblation
from interventions.causal import CausalCheck
from interventions.importance import Importance
from interventions.pruning import Pruning
