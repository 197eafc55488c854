"""What holds for every test: its columns, that a text is measured alike in any batch, and options that are refused."""

import math
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

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
from models.text_model import WORD
from results import UserError
from tests.fidelity.tiny import (
    CLASSES,
    LEVELS,
    TEXTS,
    Kind,
    checkpoint,
    classified,
    close,
    measurements,
    texts,
    with_constants,
)
from tests.models.batches import VOCABULARY

NAMES = ["median_tvd", "max_attention"]
TESTS: list[FidelityTest] = [
    with_constants(Adversary(copies=3, steps=5, draws=20), ascents=2, ascent_steps=5),
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


@pytest.mark.parametrize(("declared", "named"), [(["median_tvd"], "max_attention"), ([*NAMES, "area"], "area")])
def test_columns_that_are_not_those_that_are_measured_are_named(declared: list[str], named: str) -> None:
    test = type("Own", (Permutation,), {"columns": lambda self, classes: declared})()
    columns = [f"permutation.{column}" for column in declared]
    data = SimpleNamespace(vocabulary=VOCABULARY)
    own: dict[str, Any] = {"level": None, "seed": 0, "data": data, "_columns": columns, "_explanations": {}}
    experiment: Any = SimpleNamespace(tests=[test], **own)
    with pytest.raises(ValueError, match=rf"Own \(permutation\): .* only one of them names {named}\."):
        Fidelity._measure(experiment, checkpoint("flat"), texts("flat"))


TWICE = ["attention", "attention"]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (Adversary, {"copies": 0}, "Adversary: copies is 0, but must be at least 1"),
        (Adversary, {"draws": 0}, "draws is 0"),
        (Adversary, {"epsilon": math.nan}, "epsilon is nan"),
        *(
            (ConsistentAdversary, {"strengths": few}, "must be a non-empty list")
            for few in ((0.1, 0.1), (-0.1, 0.1), (math.nan, 0.1))
        ),
        (ConsistentAdversary, {"patience": 0}, "patience is 0, but must be at least 1"),
        (
            Correlation,
            {"saliencies": ["leave_one_out"] * 2},
            "saliencies lists leave_one_out more than once",
        ),
        (Correlation, {"saliencies": []}, "saliencies is empty"),
        (Rationale, {"rankings": TWICE}, "rankings lists attention more than once"),
        (Rationale, {"fractions": (0.1, 1.0)}, "fractions is [0.1, 1.0]"),
        (SetErasure, {"rankings": TWICE}, "rankings lists attention more than once"),
        (Fidelity, {"tests": [Perturbation()] * 2}, "--model.init_args.tests lists perturbation more than once"),
        (Fidelity, {"tests": []}, "--model.init_args.tests is empty"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    make: Callable[..., object], options: dict[str, Sequence[object]], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        make(**options, **({"checkpoints": "a.ckpt"} if make is Fidelity else {}))
