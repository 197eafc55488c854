import dataclasses
from typing import get_args

import pytest

import results
from results import ColouredText, ColouredTexts, Curves, Histograms, Spreads

NAN, INF = float("nan"), float("inf")
SPREADS = Spreads(
    "Flips",
    ("random", "attention"),
    {"base": [[0.5, NAN], []], "tying": [[0.1], [0.2, 0.3]]},
    "share of words",
    rates={"base": [0.25, NAN]},
    unit="fraction",
)
CURVES = Curves("Adversaries", "TVD", "JSD", {"base": ([0, 0.1], [0, NAN])}, {"seeds": ([0.05], [0.2])})
HISTOGRAMS = Histograms("Agreement", "τ", {"base": [-1.0, 1.0, NAN], "tying": []}, -1, 1)
TEXT = ColouredText("7", "gold 1", ("a", "film"), {"attention": [0.1, 0.9], "gradient": [-2.0, NAN]})


@pytest.mark.parametrize("kind", [Spreads, Curves, Histograms, ColouredTexts])
def test_every_kind_is_a_figure_of_results(kind: type) -> None:
    assert kind in get_args(results.Figure)


class TestSpreads:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"categories": ()}, "no categories or no series"),
            ({"series": {}, "rates": {}}, "no categories or no series"),
            ({"kind": "swarm"}, "drawn as 'swarm': use 'violin' or 'box'"),
            ({"series": {"base": [[0.5]]}}, "series 'base' has 1 categories, not 2"),
            ({"rates": {"base": [0.5]}}, "rates of 'base' has 1 categories, not 2"),
            ({"rates": {"residual": [0.5, 0.5]}}, r"rates without a series: \['residual'\]"),
            ({"rates": {"base": [0.5, 1.5]}}, r"rates of 'base' are not within 0–1: \[0.5, 1.5\]"),
            ({"rates": {"base": [-0.1, NAN]}}, "rates of 'base' are not within 0–1"),
            ({"series": {"base": [[0.5], [0.5, -INF]]}}, "'attention' of series 'base' has an infinite value"),
        ],
    )
    def test_misfits_are_refused(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=f"'Flips'.*{message}"):
            dataclasses.replace(SPREADS, **change)  # type: ignore[arg-type]

    def test_a_test_that_found_nothing_may_say_so(self) -> None:
        assert dataclasses.replace(SPREADS, series={"base": [[], [NAN]]}, rates={"base": [NAN, NAN]}).rates


class TestCurves:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"lines": {}, "points": {}}, "no lines and no points"),
            ({"lines": {"base": ([0, 1], [0])}}, "line 'base' has 2 values of x and 1 of y"),
            ({"points": {"seeds": ([], [0])}}, "points 'seeds' has 0 values of x and 1 of y"),
            ({"points": {"seeds": ([1, INF], [0, 0])}}, "points 'seeds' has an infinite value"),
            ({"lines": {"base": ([1], [-INF])}}, "line 'base' has an infinite value"),
            ({"log_x": True}, "line 'base' has an x of 0.0, which a logarithmic scale has no place for"),
            ({"x_range": (0.5, 0.5)}, "the x axis cannot run from 0.5 to 0.5"),
            ({"y_range": (0, NAN)}, "the y axis cannot run from 0 to nan"),
            ({"lines": {}, "log_x": True, "x_range": (0, 1)}, "a logarithmic x axis cannot begin at 0"),
        ],
    )
    def test_misfits_are_refused(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=f"'Adversaries'.*{message}"):
            dataclasses.replace(CURVES, **change)  # type: ignore[arg-type]

    def test_a_logarithmic_axis_takes_what_is_above_zero(self) -> None:
        assert dataclasses.replace(CURVES, lines={"base": ([1e-9, NAN], [0, 1])}, log_x=True, x_range=(1e-9, 1)).log_x


class TestHistograms:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"series": {}}, "no series"),
            ({"low": 1.0}, "cannot have 20 bins from 1.0 to 1"),
            ({"high": INF}, "cannot have 20 bins from -1 to inf"),
            ({"bins": 0}, "cannot have 0 bins"),
            ({"series": {"base": [0.0, 1.01]}}, "'base' has values from 0.0 to 1.01, outside -1–1"),
            ({"series": {"base": [-1.01, NAN]}}, "'base' has values from -1.01 to -1.01"),
            ({"series": {"base": [INF]}}, "'base' has values from inf to inf"),
        ],
    )
    def test_misfits_are_refused(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=f"'Agreement'.*{message}"):
            dataclasses.replace(HISTOGRAMS, **change)  # type: ignore[arg-type]

    def test_a_rounding_error_is_no_misfit(self) -> None:
        assert dataclasses.replace(HISTOGRAMS, series={"base": [1 + 1e-9, -1 - 1e-9]}).bins == 20


class TestColouredTexts:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"words": (), "rows": {"attention": []}}, "no words or no rows"),
            ({"rows": {}}, "no words or no rows"),
            ({"rows": {"gradient": [0.5]}}, "row 'gradient' has 1 values for 2 words"),
            ({"rows": {"gradient": [0.5, INF]}}, "row 'gradient' has an infinite value"),
        ],
    )
    def test_misfits_are_refused(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=f"'7'.*{message}"):
            dataclasses.replace(TEXT, **change)  # type: ignore[arg-type]

    def test_a_page_without_texts_is_refused(self) -> None:
        with pytest.raises(ValueError, match="'Examples' have no texts"):
            ColouredTexts("Examples", ())
