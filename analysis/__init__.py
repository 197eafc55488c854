"""What attention looks like: statistics, clusters, patterns and roles of heads, from one pass over some texts."""

from analysis.atlas import Atlas
from analysis.base import Analysis
from analysis.change import Change
from analysis.clusters import Clusters
from analysis.experiment import AttentionAnalyses
from analysis.linguistic import Linguistic
from analysis.maps import RawMaps
from analysis.patterns import Patterns
from analysis.relations import Relations
from analysis.repeated import RepeatedSequences
from analysis.surface import Surface
