"""Probes trained over frozen attention or hidden states, with control tasks and description length."""

from probes.antecedent import AntecedentAttentionProbe, AntecedentWordsProbe
from probes.control import ControlTask
from probes.description_length import DescriptionLength
from probes.frozen import Sizes
from probes.head_selection import AttentionOnlyProbe, AttentionWordsProbe, DistancesWordsProbe, HeadSelectionProbe
from probes.structural import StructuralDepthProbe, StructuralDistanceProbe
