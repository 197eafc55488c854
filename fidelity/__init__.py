"""Whether attention explains a decision: the tests of the literature, over trained classifiers."""

from fidelity.adversary import Adversary
from fidelity.base import FidelityTest
from fidelity.checkpoints import FidelityError
from fidelity.consistent_adversary import ConsistentAdversary
from fidelity.correlation import Correlation
from fidelity.diagnostic import Diagnostic
from fidelity.erasure import SetErasure
from fidelity.experiment import Fidelity
from fidelity.perturbation import Permutation, Perturbation
from fidelity.rationale import Rationale
from fidelity.single_token import SingleToken
from fidelity.single_weight import SingleWeight

__all__ = [
    "Adversary",
    "ConsistentAdversary",
    "Correlation",
    "Diagnostic",
    "Fidelity",
    "FidelityError",
    "FidelityTest",
    "Permutation",
    "Perturbation",
    "Rationale",
    "SetErasure",
    "SingleToken",
    "SingleWeight",
]
