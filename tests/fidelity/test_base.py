"""What holds for every test: its columns, and that a text is measured alike in any batch."""

import pytest

from fidelity import (
    Adversary,
    Correlation,
    FidelityTest,
    Permutation,
    Perturbation,
    Rationale,
    SetErasure,
    SingleToken,
    SingleWeight,
)
from models.interface import WORD
from tests.fidelity.tiny import CLASSES, TEXTS, Kind, classified, close, measurements

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


@pytest.mark.parametrize(("kind", "level"), [("flat", None), ("han", None), ("han", WORD), ("transformer", None)])
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
