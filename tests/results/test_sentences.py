import pandas as pd
import pytest

from results import Estimate, Unit
from results.sentences import difference_said, filled, largest, p_said, said, significant

NAN = float("nan")


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (Estimate(0.664, 0.601, 0.72, unit="fraction"), "66.4 % [60.1, 72.0]"),
        (Estimate(-0.0001, unit="fraction"), "0.0 %"),
        (Estimate(12.5, 11.0, 14.25, unit="bits"), "12.5 bits [11, 14.25]"),
        (Estimate(41790.2, unit="count"), "41,790"),
        (Estimate(0.5, NAN, NAN, unit="fraction"), "50.0 %"),
        (Estimate(NAN, unit="fraction"), "undefined"),
    ],
)
def test_a_number_has_its_unit_and_interval(score: Estimate, expected: str) -> None:
    assert said(score) == expected


def test_a_correlation_is_no_percentage() -> None:
    assert said(Estimate(0.25, 0.125, 0.5, unit="fraction"), "ratio") == "0.25 [0.12, 0.50]"


@pytest.mark.parametrize(
    ("score", "p", "expected"),
    [
        (Estimate(0.349, 0.28, 0.41, unit="fraction"), None, "+34.9 points [28.0, 41.0]"),
        (Estimate(-0.02, unit="nats"), Estimate(0.0004, unit="p"), "-0.02 nats, p < .001"),
        (Estimate(0.0, unit="fraction"), Estimate(NAN, unit="p"), "0.0 points"),
        (Estimate(NAN, unit="fraction"), Estimate(0.5, unit="p"), "undefined, p = .50"),
    ],
)
def test_a_difference_has_its_sign_and_its_p_value(score: Estimate, p: Estimate | None, expected: str) -> None:
    assert difference_said(score, p) == expected


def test_parts_with_an_undefined_number_are_left_out() -> None:
    scores = {
        "uas": Estimate(0.5, unit="fraction"),
        "rho": Estimate(0.25, unit="fraction"),
        "mse": Estimate(NAN, unit="nats"),
    }
    text = "the probe has {uas} of {n} words; the error is {mse}; ρ is {rho:ratio}, {rho:points} above {who}, not {x}"
    assert filled(text, scores, n=22029, who="`obj`") == (
        "The probe has 50.0 % of 22,029 words; ρ is 0.25, +25.0 points above `obj`, not {x}."
    )
    assert filled("the error is {mse}", scores) == "No score is defined on these data."


def test_significant_rows_are_counted_and_the_largest_change_is_that_of_any_row() -> None:
    rows = pd.DataFrame({"change": [-0.3, 0.2, NAN, 0.9], "p": [0.01, 0.04, NAN, 0.05]}, index=[4, 5, 6, 7])
    assert significant(rows, "head", "p") == "2 of 4 heads"
    assert significant(rows[2:], "head", "p") == "none of 2 heads"
    assert (largest(rows, "change"), largest(rows[:3], "change"), largest(rows[2:3], "change")) == (7, 4, 6)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.1289, "p", "p = .13"),
        (1.0, "p", "p = 1"),
        (0.9, "p", "p = .90"),
        (0.00999, "p", "p = .010"),
        (0.00099, "least_p", "p < .001"),
        (0.0099, "least_p", "p ≤ .0099"),
        (0.0, "p", "p < .001"),
        (NAN, "p", "p undefined"),
    ],
)
def test_a_p_value_is_written_as_in_papers(value: float, unit: Unit, expected: str) -> None:
    assert p_said(value, unit) == expected
