"""Published tests of whether attention explains the decisions of trained text classifiers."""

from fidelity.adversary import Adversary
from fidelity.consistent_adversary import ConsistentAdversary, GuidedMLP
from fidelity.correlation import Correlation
from fidelity.effects import EffectProbe, Effects
from fidelity.erasure import Permutation, Perturbation, SetErasure, SingleWeight
from fidelity.experiment import Fidelity, FidelityTest, Measurements, Score, means, proportions
from fidelity.rationale import Rationale, SingleToken
from fidelity.roar import Roar
from fidelity.saliency import Explainer
from fidelity.shortcuts import Shortcut
