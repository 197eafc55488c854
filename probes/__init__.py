"""Experiments over frozen attention: what it knows of syntax."""

from probes.antecedent import AntecedentProbe
from probes.attention_only import AttentionOnlyProbe
from probes.baselines import Baselines
from probes.heads import HeadsProbe

__all__ = ["AntecedentProbe", "AttentionOnlyProbe", "Baselines", "HeadsProbe"]
