"""Measurements of what attention knows and of what it is needed for, one published measurement a file."""

from measures.ablation import HeadAblation
from measures.antecedent_heads import AntecedentHeads
from measures.atlas import Atlas
from measures.attention_analyses import Analysis, AttentionAnalyses
from measures.bags import Bags
from measures.baselines import Baselines
from measures.causal import CausalCheck
from measures.change import Change
from measures.clusters import Clusters
from measures.contract import Measure, measure
from measures.control import ControlTask
from measures.description_length import DescriptionLength
from measures.generated import lookback_ratio, retrieval_scores
from measures.importance import Importance
from measures.linguistic import Linguistic
from measures.patterns import Patterns, RawMaps
from measures.pruning import Pruning
from measures.relations import Relations
from measures.repeated import RepeatedSequences
from measures.single_heads import SingleHeads
from measures.surface_statistics import Surface
