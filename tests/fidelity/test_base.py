"""What holds for every test: its columns, that a text is measured alike in any batch, and options that are refused."""

import math
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fidelity import (
    Adversary,
    ConsistentAdversary,
    Correlation,
    Fidelity,
    FidelityTest,
    Permutation,
    Perturbation,
    Rationale,
    SetErasure,
    Shortcut,
    SingleToken,
    SingleWeight,
)
from metrics.bootstrap import resample, share_interval
from models.text_classifier import WORD
from results import UserError
from tests.fidelity.tiny import (
    CLASSES,
    LEVELS,
    TEXTS,
    Kind,
    classified,
    close,
    measurements,
    with_constants,
)

TESTS: list[FidelityTest] = [
    with_constants(Adversary(steps=5), copies=3, draws=20, ascents=2, ascent_steps=5),
    Correlation(),
    Permutation(),
    Perturbation(),
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


DECISIONS = {"flips_top", "flips_random", "alone", "uniform_flips", "permuted_flips", "undefined", "learnt"}


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("test", [*TESTS, Shortcut()], ids=lambda test: test.name)
def test_only_decisions_are_shares_of_few_texts(test: FidelityTest, value: float) -> None:
    """Distances that are all 0, or measures that are all 1, have an interval without width."""
    found = test.scores(CLASSES, None)
    for name, (columns, statistic, unit) in found.items():
        interval = resample(statistic, np.full((6, len(columns)), value), unit).interval
        if list(columns) == [name] and not name.endswith("precision_at_k"):
            exact = share_interval(np.full(6, value), np.ones(6))[1:]
            assert interval == (exact if name in DECISIONS else (value, value)), name
    assert set(found) & DECISIONS == set(test.columns(CLASSES)) & DECISIONS


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (ConsistentAdversary, {"strengths": (0.1, 0.1)}, "must be a non-empty list"),
        (ConsistentAdversary, {"strengths": (math.nan, 0.1)}, "must be a non-empty list"),
        (Rationale, {"rankings": ["attention", "attention"]}, "rankings lists attention more than once"),
        (Correlation, {"saliencies": []}, "saliencies is empty"),
        (Fidelity, {"tests": [Perturbation()] * 2}, "--model.init_args.tests lists perturbation more than once"),
        (Fidelity, {"tests": [], "checkpoints": []}, "--model.init_args.tests is empty"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    make: Callable[..., object], options: dict[str, Sequence[object]], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        make(**({"checkpoints": "a.ckpt"} if make is Fidelity else {}) | options)
