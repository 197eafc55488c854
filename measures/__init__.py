"""Measurements of what attention knows and of what it is needed for."""

from measures.ablation import HeadAblation, Pruning
from measures.atlas import Atlas
from measures.attention_analyses import Analysis, AttentionAnalyses
from measures.bags import Bags
from measures.causal import CausalCheck
from measures.change import Change
from measures.clusters import Clusters
from measures.contract import Measure, measure
from measures.importance import Importance
from measures.linguistic import Linguistic, Relations
from measures.nested import ControlTask, DescriptionLength
from measures.pairs import MinimalPairAccuracy
from measures.patterns import Patterns, RawMaps
from measures.repeated import RepeatedSequences, lookback_ratio, retrieval_scores
from measures.single_heads import AntecedentHeads, Baselines, SingleHeads
from measures.surface_statistics import Surface
