from .adversary import Adversary as Adversary
from .consistent_adversary import ConsistentAdversary as ConsistentAdversary, GuidedMLP as GuidedMLP
from .correlation import Correlation as Correlation
from .effects import EffectProbe as EffectProbe, Effects as Effects
from .erasure import (
    Permutation as Permutation,
    Perturbation as Perturbation,
    SetErasure as SetErasure,
    SingleWeight as SingleWeight,
)
from .experiment import (
    Fidelity as Fidelity,
    FidelityTest as FidelityTest,
    Measurements as Measurements,
    Score as Score,
    means as means,
    proportions as proportions,
)
from .rationale import Rationale as Rationale, SingleToken as SingleToken
from .roar import Roar as Roar
from .saliency import Explainer as Explainer
from .shortcuts import Shortcut as Shortcut
from .single_text import Explanation as Explanation, explain as explain
