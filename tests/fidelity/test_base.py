"""What holds for every test: its columns, that a text is measured alike in any batch, and options that are refused."""

import re
from collections.abc import Callable, Sequence

import pytest

from fidelity import (
    Adversary,
    ConsistentAdversary,
    Correlation,
    Fidelity,
    FidelityError,
    FidelityTest,
    GuidedMLP,
    Permutation,
    Perturbation,
    Rationale,
    SetErasure,
    SingleToken,
    SingleWeight,
)
from models.interface import WORD
from tests.fidelity.tiny import CLASSES, LEVELS, TEXTS, Kind, classified, close, measurements

TESTS: list[FidelityTest] = [
    Adversary(copies=3, steps=5),
    Correlation(),
    Permutation(permutations=9),
    Perturbation(permutations=9),
    Rationale(),
    SetErasure(),
    SingleToken(),
    SingleWeight(),
]


@pytest.mark.parametrize(("kind", "level"), LEVELS)
@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.name)
def test_a_text_alone_is_measured_as_in_a_padded_batch(test: FidelityTest, kind: Kind, level: str | None) -> None:
    if (test.name, level) == ("adversary", WORD):
        return  # refused: there are several distributions
    padded = measurements(test, classified(kind, time=12, level=level)).numbers
    assert set(padded) == set(test.columns(CLASSES))
    for row in range(len(TEXTS)):
        alone = measurements(test, classified(kind, [row], level=level)).numbers
        for name, value in alone.items():
            # A correlation of numbers that hardly differ makes their rounding larger.
            close(padded[name][row], value[0], 1e-6 if test.name == "correlation" else 1e-9)


TWICE = ["attention", "attention"]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (Adversary, {"copies": 0}, "copies 0"),
        (Adversary, {"tolerance": 0.0}, "tolerance 0.0"),
        (Adversary, {"epsilons": [0.1, 0]}, "above 0"),
        *((ConsistentAdversary, {"strengths": few}, "strengths are [") for few in ((0.1, 0.1), (-0.1, 0.1))),
        (ConsistentAdversary, {"patience": 0}, "patience 0 and seeds None: give 1 or more"),
        (Correlation, {"saliencies": ["leave_one_out"] * 2}, "each once, and not ['leave_one_out', 'leave_one_out']"),
        (Correlation, {"saliencies": []}, "one or more"),
        *((GuidedMLP, {"sources": few}, "base, adversary: sources are [") for few in (("own", "own"), ("gold",))),
        (Permutation, {"permutations": 0}, "give 1 or more"),
        (Rationale, {"rankings": TWICE}, "each once, and not ['attention', 'attention']"),
        (Rationale, {"fractions": (0.1, 1.0)}, "fractions [0.1, 1.0]"),
        (Rationale, {"draws": 0}, "at least one draw"),
        (SetErasure, {"rankings": TWICE}, "each once"),
        (SetErasure, {"draws": 0}, "0 random orders"),
        (Fidelity, {"tests": [Perturbation()] * 2}, "each once, and not ['perturbation', 'perturbation']"),
        (Fidelity, {"tests": []}, "name one or more"),
        (Fidelity, {"tests": [Permutation()], "examples": -1}, "eval_tokens None: give examples 0 or more"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    make: Callable[..., object], options: dict[str, Sequence[object]], message: str
) -> None:
    with pytest.raises(FidelityError, match=re.escape(message)):
        make(**options, **({"checkpoints": "a.ckpt"} if make is Fidelity else {}))
