import numpy as np
import pandas as pd
import pytest

from reports.numbers import are_fractions, intervals, number, spread_of

NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("uas", [0.0, 1.0], True),
        ("change", [-1.0, 0.5], True),
        ("bits", [0.5, 1.001], False),
        ("change", [-1.001, 0.5], False),
        ("uas", [NAN, 0.5], True),
        ("uas", [float("inf"), 0.5], True),
        ("empty", [], True),
        ("p", [0.5], False),
        ("heads.uas.p", [0.5], False),
        ("heads.p.low", [0.5], True),
        ("map", [0.5], True),
        ("loss", [0.5], False),
        ("loss.tying", [0.5], False),
        ("dev_loss", [0.5], False),
        ("lossless", [0.5], True),
        ("bits_per_word", [0.5], False),
        ("compression", [0.98], False),
        ("mean_jsd", [0.5], False),
        ("p_holm", [0.5], False),
        ("epsilon", [0.5], False),
        ("tying.adversary.max_jsd_strict", [0.5], False),
        ("consistent_adversary.area", [0.5], False),
        ("strengths.uas", [0.5], True),
    ],
)
def test_fractions_lie_within_one_and_are_neither_p_values_nor_nats(
    name: str, values: list[float], expected: bool
) -> None:
    assert are_fractions(name, np.array(values)) is expected


@pytest.mark.parametrize(
    ("value", "fraction", "expected"),
    [(0.80849, True, "80.8"), (0.80849, False, "0.8085"), (-0.05, True, "-5.0"), (3.0, False, "3"), (NAN, True, "?")],
)
def test_numbers_are_short(value: float, fraction: bool, expected: str) -> None:
    assert number(value, fraction, missing="?") == expected


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("a b.low b b.high", {"b": ("b.low", "b.high")}),
        ("a low high b", {"a": ("low", "high")}),
        ("a high low", {"a": ("low", "high")}),
        ("low high", {}),
        ("a low", {}),
        ("a a.high", {}),
    ],
)
def test_ends_are_found_by_name(columns: str, expected: dict[str, tuple[str, str]]) -> None:
    assert intervals(pd.DataFrame([[0.5] * len(columns.split())], columns=columns.split())) == expected


def test_plain_ends_belong_to_the_column_of_floats_before_them() -> None:
    frame = pd.DataFrame({"accuracy": [0.5], "head": ["3-9"], "n": [2], "low": [0.4], "high": [0.6]})
    assert intervals(frame) == {"accuracy": ("low", "high")}


def test_a_deviation_is_judged_by_the_column_it_belongs_to() -> None:
    frame = pd.DataFrame({"probe": ["a"], "bits": [9.5], "bits.sd": [0.5], "uas": [0.5], "uas.sd": [0.1]})
    assert spread_of(frame) == {"bits.sd": "bits", "uas.sd": "uas"}
    frame = pd.DataFrame({"epochs": [6.3], "uas": [0.5], "low": [0.4], "high": [0.6], "sd": [0.01], "accuracy": [0.9]})
    assert spread_of(frame) == {"sd": "uas"}
    assert spread_of(pd.DataFrame({"sd": [0.2], "uas": [0.5], "x.sd": [0.1]})) == {}
