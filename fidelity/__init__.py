"""Whether attention explains a decision: the tests of the literature, over trained classifiers."""

from fidelity.adversary import Adversary
from fidelity.base import FidelityTest, Measurements, means
from fidelity.consistent_adversary import ConsistentAdversary
from fidelity.correlation import Correlation
from fidelity.erasure import SetErasure, SingleWeight
from fidelity.experiment import Fidelity
from fidelity.guided_mlp import GuidedMLP
from fidelity.perturbation import Permutation, Perturbation
from fidelity.rationale import Rationale
from fidelity.single_token import SingleToken
