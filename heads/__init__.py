"""Predictors without training: single heads and rules as predictors of arcs and of antecedents."""

from heads.antecedent_heads import AntecedentHeads
from heads.arc_evaluation import Baselines
from heads.single_heads import SingleHeads
