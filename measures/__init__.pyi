from .ablation import HeadAblation as HeadAblation
from .antecedents import AntecedentHeads as AntecedentHeads
from .atlas import Atlas as Atlas
from .attention_analyses import AttentionAnalyses as AttentionAnalyses
from .bags import Bags as Bags
from .baselines import Baselines as Baselines
from .causal import CausalCheck as CausalCheck
from .change import Change as Change
from .clusters import Clusters as Clusters
from .contract import MapMeasure as MapMeasure, Measure as Measure
from .grammar_heads import GrammarHeads as GrammarHeads
from .head_trees import HeadTrees as HeadTrees
from .importance import Importance as Importance
from .linguistic import Linguistic as Linguistic, Relations as Relations
from .loop import measure as measure
from .nested import ControlTask as ControlTask, DescriptionLength as DescriptionLength
from .pairs import MinimalPairAccuracy as MinimalPairAccuracy
from .patterns import Patterns as Patterns, RawMaps as RawMaps
from .pruning import Pruning as Pruning
from .repeated import (
    RepeatedSequences as RepeatedSequences,
    lookback_ratio as lookback_ratio,
    retrieval_scores as retrieval_scores,
)
from .single_heads import SingleHeads as SingleHeads
from .surface_statistics import Surface as Surface
