import pandas as pd
import pytest

from attention_probing.results import Estimate, Unit
from attention_probing.results.sentences import (
    Difference,
    clear_largest,
    clear_smallest,
    count_significant,
    describe_differences,
    fill_sentence,
    format_difference,
    format_estimate,
    format_p,
    largest_difference,
    negate,
)

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
    assert format_estimate(score) == expected


def test_a_correlation_is_no_percentage() -> None:
    assert format_estimate(Estimate(0.25, 0.125, 0.5, unit="fraction"), "ratio") == "0.25 [0.12, 0.50]"


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
    assert format_difference(score, p) == expected


def test_parts_with_an_undefined_number_are_left_out() -> None:
    scores = {
        "uas": Estimate(0.5, unit="fraction"),
        "rho": Estimate(0.25, unit="fraction"),
        "mse": Estimate(NAN, unit="nats"),
    }
    text = "the probe has {uas} of {n} words; the error is {mse}; ρ is {rho:ratio}, {rho:points} above {who}, not {x}"
    assert fill_sentence(text, scores, n=22029, who="`obj`") == (
        "The probe has 50.0 % of 22,029 words; ρ is 0.25, +25.0 points above `obj`, not {x}."
    )
    assert fill_sentence("the error is {mse}", scores) == "No score is defined on these data."


def test_significant_rows_are_counted_among_those_with_a_p_value() -> None:
    rows = pd.DataFrame({"p": [0.01, 0.04, NAN, 0.05]}, index=[4, 5, 6, 7])
    assert count_significant(rows, "head", "p") == "2 of 3 heads"
    assert count_significant(rows[2:], "head", "p") == "none of 1 head"


def apart(name: str, value: float, p: float | None = 0.01, items: int | None = None) -> Difference:
    return Difference(name, Estimate(value, value - 0.1, value + 0.1, unit="fraction", p=p), items)


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([apart("a", 0.2), apart("b", -0.3), apart("c", 0.1)], "b"),  # of either sign
        ([apart("a", 0.2), apart("b", -0.3, p=0.05)], None),  # not significant together with all others
        ([apart("a", 0.2), apart("b", -0.3, p=None)], None),
        ([apart("a", 0.2), apart("b", -0.3, p=NAN)], None),
        ([apart("a", 0.3), apart("b", -0.3)], None),  # two are the largest
        ([apart("a", 0.3), apart("b", 0.1 + 0.2)], None),  # but for the last digit
        ([apart("a", 0.3)], None),  # one of one
        ([apart("a", 0.3), apart("b", NAN)], None),
        ([], None),
        ([apart("a", 0.2, items=20), apart("b", 0.9, items=19), apart("c", 0.1, items=50)], "a"),  # of few items
        ([apart("a", 0.2, items=20), apart("b", 0.9, items=19)], None),
    ],
)
def test_the_largest_difference_is_significant_over_enough_items_and_one_of_several(
    differences: list[Difference], expected: str | None
) -> None:
    for order in (differences, differences[::-1]):
        found = largest_difference(order)
        assert (None if found is None else found.name) == expected


def test_differences_are_counted_and_the_largest_is_named_if_it_is_clear() -> None:
    three = [apart("a", 0.2, p=0.03, items=40), apart("b", -0.3, items=30), apart("c", 0.1, p=0.6, items=90)]
    counted = "2 of 3 heads change it more than chance (p < .05 after Holm)"
    found = describe_differences(three, [0.03, 0.01, 0.6], "head", "change it", " more than chance")
    largest = "that of b, -30.0 points [-40.0, -20.0], p = .010, n = 30"
    assert found == f"{counted}; the largest difference is {largest}"
    few = [*three, apart("d", 0.9, items=3)]
    found = describe_differences(few, [0.03, 0.01, 0.6, 0.02], "head", "change it")
    assert found == (f"3 of 4 heads change it (p < .05 after Holm); the largest difference (n ≥ 20) is {largest}")
    assert describe_differences(three[::2], [0.05, 0.6], "head", "differ") == (
        "1 of 2 heads differ (p < .05 after Holm); the largest difference is that of a, "
        "+20.0 points [10.0, 30.0], p = .030, n = 40"
    ).replace("1 of", "none of")
    alone = describe_differences(
        [apart("a", 0.2), apart("b", NAN), apart("c", 0.1)], [0.01, 0.02, NAN], "head", "differ"
    )
    assert alone == "head a differs: +20.0 points [10.0, 30.0], p = .010"
    assert describe_differences([apart("b", NAN)], [NAN], "head", "differ") == "undefined"
    least = Difference("a", Estimate(0.2, unit="nats", p=0.002), p_unit="least_p")
    assert describe_differences([least], [0.002], "head", "differ") == "head a differs: +0.2 nats, p ≤ .0020"


def test_the_clear_largest_has_an_interval_above_all_others() -> None:
    values = {"a": Estimate(0.5, 0.4, 0.6, unit="ratio"), "b": Estimate(0.3, 0.2, 0.39, unit="ratio")}
    touching = {**values, "c": Estimate(0.2, 0.1, 0.4, unit="ratio")}
    unknown = Estimate(NAN, NAN, NAN, unit="ratio")
    bare = Estimate(0.45, unit="ratio")  # its value must be below
    assert clear_largest(values) == clear_largest({**values, "x": unknown}) == "a"
    assert clear_largest(touching) is clear_largest({**values, "x": bare}) is None
    assert clear_largest({"a": values["a"]}) is clear_largest({"a": values["a"], "x": unknown}) is None
    assert clear_largest({"a": Estimate(0.9, unit="ratio"), "b": values["b"]}) is None
    assert clear_largest({"a": Estimate(0.9, NAN, NAN, unit="ratio"), "b": values["b"]}) is None
    open_ended = Estimate(0.1, NAN, NAN, unit="ratio")
    assert clear_largest({**values, "x": open_ended}) is None
    assert clear_smallest(values) == "b"
    assert clear_smallest(touching) is None
    assert clear_smallest({name: negate(one) for name, one in values.items()}) == "a"
    turned = negate(values["a"])
    assert (turned.value, turned.interval) == (-0.5, (-0.6, -0.4))
    assert negate(bare).low is None


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
    assert format_p(value, unit) == expected
