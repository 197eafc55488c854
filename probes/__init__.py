"""Experiments over frozen attention and hidden states: what they know of syntax and coreference."""

from probes.antecedent import AntecedentProbe
from probes.antecedent_training import AntecedentAttentionProbe, AntecedentWordsProbe
from probes.attention_only import AttentionOnlyProbe
from probes.attention_words import AttentionWordsProbe
from probes.baselines import Baselines, DistancesWordsProbe
from probes.control import ControlTask
from probes.description_length import DescriptionLength
from probes.heads import HeadsProbe
from probes.structural import StructuralDepthProbe, StructuralDistanceProbe

__all__ = [
    "AntecedentAttentionProbe",
    "AntecedentProbe",
    "AntecedentWordsProbe",
    "AttentionOnlyProbe",
    "AttentionWordsProbe",
    "Baselines",
    "ControlTask",
    "DescriptionLength",
    "DistancesWordsProbe",
    "HeadsProbe",
    "StructuralDepthProbe",
    "StructuralDistanceProbe",
]
