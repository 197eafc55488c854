"""Analyses of attention: statistics, clusters, patterns and roles of heads, from one pass over some texts."""

from analysis.atlas import Atlas
from analysis.attention_analyses import Analysis, AttentionAnalyses
from analysis.bags import Bags
from analysis.change import Change
from analysis.clusters import Clusters
from analysis.generated import lookback_ratio, retrieval_scores
from analysis.linguistic import Linguistic
from analysis.patterns import Patterns, RawMaps
from analysis.relations import Relations
from analysis.repeated import RepeatedSequences
from analysis.surface_statistics import Surface
