"""Experiments over frozen attention: what it knows of syntax."""

from probes.attention_only import AttentionOnlyProbe
from probes.baselines import Baselines

__all__ = ["AttentionOnlyProbe", "Baselines"]
