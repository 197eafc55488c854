"""What is trained over frozen attention or hidden states, and control tasks and description length over it."""

from probes.antecedent import AntecedentAttentionProbe, AntecedentWordsProbe
from probes.base import Sizes
from probes.control import ControlTask
from probes.description_length import DescriptionLength
from probes.head_selection import AttentionOnlyProbe, AttentionWordsProbe, DistancesWordsProbe, HeadSelectionProbe
from probes.structural import StructuralDepthProbe, StructuralDistanceProbe
