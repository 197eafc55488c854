import pytest

from reports.numbers import number, with_interval
from results import Estimate, Unit

NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.80849, "fraction", "80.8"),
        (1.5, "fraction", "150.0"),
        (-0.05, "fraction", "-5.0"),
        (NAN, "fraction", "?"),
        (0.80849, "nats", "0.8085"),
        (0.000999, "p", "0.000999"),
        (12345.678, "bits", "1.235e+04"),
        (3.0, "count", "3"),
        (0.5, "ratio", "0.5"),
    ],
)
def test_fractions_are_percent_and_other_numbers_have_four_digits(value: float, unit: Unit, expected: str) -> None:
    assert number(value, unit, missing="?") == expected


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (Estimate(0.54321, 0.536, 0.55, unit="fraction"), "54.3 [53.6, 55.0]"),
        (Estimate(0.5, 0.25, 2.0, unit="bits"), "0.5 [0.25, 2]"),
        (Estimate(0.5, NAN, NAN, unit="fraction"), "50.0"),
        (Estimate(0.5, unit="fraction", sd=0.1), "50.0"),
        (Estimate(NAN, NAN, NAN, unit="nats"), "–"),
    ],
)
def test_an_interval_stands_behind_its_value_where_it_is_known(estimate: Estimate, expected: str) -> None:
    assert with_interval(estimate, missing="–") == expected
