"""Probes trained over frozen attention or hidden states, and the evaluation of what they predict."""

from probes.antecedent import AntecedentAttentionProbe, AntecedentWordsProbe
from probes.frozen import Sizes
from probes.head_selection import AttentionOnlyProbe, AttentionWordsProbe, DistancesWordsProbe, HeadSelectionProbe
from probes.structural import StructuralDepthProbe, StructuralDistanceProbe, StructuralProbe

DependencyProbe = HeadSelectionProbe | StructuralProbe
"""A trained probe over a dependency treebank; a `ProbeMeasure` can train copies of it."""
