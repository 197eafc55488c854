import pytest

from results import Estimate, Unit
from results.sentences import p_said, said

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
