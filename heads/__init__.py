"""Predictors of dependency arcs and of antecedents that are not trained: single attention heads, and rules."""

from heads.antecedent_heads import AntecedentHeads
from heads.arc_evaluation import Baselines
from heads.single_heads import SingleHeads
