"""Published tests of whether attention explains the decisions of trained text classifiers."""

from fidelity.adversary import Adversary
from fidelity.consistent_adversary import ConsistentAdversary
from fidelity.correlation import Correlation
from fidelity.effects import EffectProbe, Effects
from fidelity.erasure import SetErasure, SingleWeight
from fidelity.experiment import Fidelity, FidelityTest, Measurements, Score, means, proportions
from fidelity.guided_mlp import GuidedMLP
from fidelity.perturbation import Permutation, Perturbation
from fidelity.rationale import Rationale, SingleToken
from fidelity.roar import Roar
from fidelity.saliency import Explainer
from fidelity.shortcuts import Shortcut
