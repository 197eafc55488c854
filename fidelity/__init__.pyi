from .adversary import Adversary as Adversary
from .consistent_adversary import ConsistentAdversary as ConsistentAdversary
from .contract import (
    FidelityTest as FidelityTest,
    Reading as Reading,
    Score as Score,
    means as means,
    proportions as proportions,
)
from .correlation import Correlation as Correlation
from .effects import EffectProbe as EffectProbe, Effects as Effects
from .erasure import SetErasure as SetErasure, SingleWeight as SingleWeight
from .error_prediction import ErrorPrediction as ErrorPrediction
from .experiment import Fidelity as Fidelity
from .guided_mlp import GuidedMLP as GuidedMLP
from .pair_errors import PairErrorPrediction as PairErrorPrediction
from .permutation import Permutation as Permutation
from .perturbation import Perturbation as Perturbation
from .rationale import Rationale as Rationale
from .roar import Roar as Roar
from .saliency import Explainer as Explainer
from .shortcuts import Shortcut as Shortcut
from .single_text import Explanation as Explanation, explain as explain
from .single_token import SingleToken as SingleToken
from .soft_erasure import SoftErasure as SoftErasure
