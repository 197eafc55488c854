"""What is measured without training: single heads and rules as predictors of arcs and of antecedents."""

from heads.antecedent import AntecedentHeads
from heads.experiment import Analyses, Baselines
from heads.single_heads import SingleHeads
