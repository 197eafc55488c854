import dataclasses

import numpy as np
import pytest

from results import (
    AttentionLines,
    Bars,
    Categories,
    ColouredText,
    ColouredTexts,
    Curves,
    HeatMap,
    Histograms,
    Maps,
    Scatter,
    Spreads,
)

NAN, INF = float("nan"), float("inf")
BARS = Bars(
    "Relations", ("det", "obj"), {"probe": [0.5, 0.6]}, "Accuracy", {"probe": ([0.4, 0.5], [0.6, 0.7])}, unit="fraction"
)
HEADS = HeatMap("Heads", np.zeros((2, 3)), ["1", "2"], ["1", "2", "3"], "Layer", "Head", "Weight", unit="fraction")
MAPS = Maps(
    "Raw", [[np.eye(2), None], [np.zeros((3, 3)), np.eye(1)]], "12", "12", "Layer", "Head", "Weight", unit="fraction"
)
ROLES = Categories("Roles", [["broad", None]], {"broad": "B", "next": "N"}, "1", "12", "Layer", "Head")
PLANE = Scatter("Heads", np.zeros((2, 2)), ("1", "2"), "layer")
LINES = AttentionLines("Head 3-9", ("[CLS]", "Go", "[SEP]"), np.eye(3), frozenset({(1, 0)}), "dependent", "head")
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
Drawable = (
    Bars
    | HeatMap
    | Maps
    | Categories
    | Scatter
    | AttentionLines
    | Spreads
    | Curves
    | Histograms
    | ColouredText
    | ColouredTexts
)


@pytest.mark.parametrize(
    ("figure", "change", "message"),
    [
        (BARS, {"categories": ()}, "no categories or no series"),
        (BARS, {"series": {"probe": [0.5]}}, "series 'probe' has length 1, but there are 2"),
        (BARS, {"intervals": {"probe": ([0.4, 0.5], [0.6])}}, "high end of 'probe' has length 1, but there are 2"),
        (BARS, {"intervals": {"offset": ([0.4] * 2, [0.6] * 2)}}, r"intervals without a series: \['offset'\]"),
        *((HEADS, {"values": np.zeros(shape)}, r"shape .* for 2 row labels and 3") for shape in ((3, 2), 6, (2, 3, 1))),
        *((HEADS, {"marked": cell}, r"shape \(2, 3\) has no cell") for cell in ((2, 0), (0, 3), (-1, 0), (0, -1))),
        *((HEADS, {"limits": ends}, "do not lie within") for ends in ((1, 2), (-2, -1), (0, NAN), (1, -1))),
        (MAPS, {"maps": [[np.eye(2), None]]}, r"lengths \[2\] for 2 row labels and 2"),
        (MAPS, {"maps": [[np.eye(2)], [None]]}, r"lengths \[1, 1\] for 2 row labels and 2"),
        (MAPS, {"maps": [[None] * 2] * 2}, "have no matrix"),
        *((MAPS, {"top": top}, f"ends at {top}") for top in (0, -1.0, NAN, INF)),
        (MAPS, {"names": ["ab"]}, r"names have rows of lengths \[2\] for 2"),
        *(
            (MAPS, {"maps": [[np.zeros(shape)] * 2] * 2}, r"shape .* not square")
            for shape in ((2, 3), 4, (2, 2, 1), (0, 0))
        ),
        *((MAPS, {"maps": [[np.full((2, 2), one)] * 2] * 2}, "not from zero on") for one in (-0.1, NAN, INF)),
        (ROLES, {"cells": [["broad"]]}, r"lengths \[1\] for 1 row labels and 2"),
        (ROLES, {"cells": [["broad", "previous"]]}, r"without a glyph: \['previous'\]"),
        (ROLES, {"glyphs": {"broad": "B", "next": "B"}}, r"glyphs \['B', 'B'\]: give each of 1–10"),
        (ROLES, {"glyphs": {"broad": "B", "next": "next"}}, "its own 1–2 letters"),
        (ROLES, {"glyphs": {"broad": "B"} | {str(one): str(one) for one in range(10)}}, "1–10 categories"),
        *((PLANE, {"points": np.zeros(shape)}, "points of shape .* for 2 groups") for shape in ((3, 2), (2, 3), 2)),
        (PLANE, {"points": np.zeros((0, 2)), "groups": ()}, "for 0 groups"),
        (PLANE, {"points": np.array([[0, NAN], [0, 0]])}, "not finite"),
        *((LINES, {"weights": np.zeros(shape)}, "weights of shape .* for 3 words") for shape in (3, (3, 4), (3, 3, 1))),
        (LINES, {"words": (), "weights": np.zeros((0, 0)), "arcs": frozenset()}, "for 0 words"),
        *(
            (LINES, {"weights": np.full((3, 3), one)}, "weights from .* not within 0–1")
            for one in (-0.1, 1.1, NAN, INF)
        ),
        *((LINES, {"arcs": {(1, 0), arc}}, r"arcs outside them: \[\(") for arc in ((3, 0), (0, 3), (-1, 0), (0, -1))),
        (SPREADS, {"categories": ()}, "no categories or no series"),
        (SPREADS, {"kind": "swarm"}, "drawn as 'swarm': use 'violin' or 'box'"),
        (SPREADS, {"series": {"base": [[0.5]]}}, "series 'base' has length 1, but there are 2"),
        (SPREADS, {"rates": {"base": [0.5]}}, "rates of 'base' has length 1, but there are 2"),
        (SPREADS, {"rates": {"residual": [0.5, 0.5]}}, r"rates without a series: \['residual'\]"),
        (SPREADS, {"rates": {"base": [0.5, 1.5]}}, r"rates of 'base' are not within 0–1: \[0.5, 1.5\]"),
        (SPREADS, {"series": {"base": [[0.5], [0.5, -INF]]}}, "'attention' of series 'base' has an infinite value"),
        (CURVES, {"lines": {}, "points": {}}, "no lines and no points"),
        (CURVES, {"lines": {"base": ([0, 1], [0])}}, "line 'base' has 2 values of x and 1 of y"),
        (CURVES, {"points": {"seeds": ([1, INF], [0, 0])}}, "points 'seeds' has an infinite value"),
        (CURVES, {"log_x": True}, "line 'base' has an x of 0.0, which a logarithmic scale has no place for"),
        (CURVES, {"x_range": (0.5, 0.5)}, "the x axis cannot run from 0.5 to 0.5"),
        (CURVES, {"y_range": (0, NAN)}, "the y axis cannot run from 0 to nan"),
        (CURVES, {"lines": {}, "log_x": True, "x_range": (0, 1)}, "a logarithmic x axis cannot begin at 0"),
        (HISTOGRAMS, {"series": {}}, "no series"),
        (HISTOGRAMS, {"low": 1.0}, "cannot have 20 bins from 1.0 to 1"),
        (HISTOGRAMS, {"bins": 0}, "cannot have 0 bins"),
        (HISTOGRAMS, {"series": {"base": [0.0, 1.01]}}, "'base' has values from 0.0 to 1.01, outside -1–1"),
        (HISTOGRAMS, {"series": {"base": [INF]}}, "'base' has values from inf to inf"),
        (TEXT, {"words": (), "rows": {"attention": []}}, "no words or no rows"),
        (TEXT, {"rows": {"gradient": [0.5]}}, "row 'gradient' has 1 values for 2 words"),
        (TEXT, {"rows": {"gradient": [0.5, INF]}}, "row 'gradient' has an infinite value"),
        (ColouredTexts("Examples", (TEXT,)), {"texts": ()}, "have no texts"),
    ],
)
def test_misfits_are_refused(figure: Drawable, change: dict[str, object], message: str) -> None:
    title = figure.name if isinstance(figure, ColouredText) else figure.title
    with pytest.raises(ValueError, match=f"{title!r}.*{message}"):
        dataclasses.replace(figure, **change)  # type: ignore[arg-type]
