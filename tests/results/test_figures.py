import dataclasses

import numpy as np
import pandas as pd
import pytest

from results import (
    AttentionLines,
    Bars,
    ColouredText,
    ColouredTexts,
    Curves,
    Figure,
    HeatMap,
    Maps,
    Spreads,
    Table,
    Unit,
    figures,
)

NAN, INF = float("nan"), float("inf")
BARS = Bars(
    "Relations", ("det", "obj"), {"probe": [0.5, 0.6]}, "Accuracy", {"probe": ([0.4, 0.5], [0.6, 0.7])}, unit="fraction"
)
HEADS = HeatMap("Heads", np.zeros((2, 3)), ["1", "2"], ["1", "2", "3"], "Layer", "Head", "Weight", unit="fraction")
MAPS = Maps(
    "Raw", [[np.eye(2), None], [np.zeros((3, 3)), np.eye(1)]], "12", "12", "Layer", "Head", "Weight", unit="fraction"
)
ROLES = HeatMap.from_categories("Roles", [["broad", None]], {"broad": "B", "next": "N"}, "1", "12", "Layer", "Head")
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
TEXT = ColouredText("7", "gold 1", ("a", "film"), {"attention": [0.1, 0.9], "gradient": [-2.0, NAN]})


@pytest.mark.parametrize(
    ("figure", "change", "message"),
    [
        (BARS, {"categories": ()}, "no categories or no series"),
        (BARS, {"series": {"probe": [0.5]}}, "series 'probe': 1 values for 2 categories"),
        (BARS, {"intervals": {"probe": ([0.4, 0.5], [0.6])}}, "high end of 'probe': 1 values for 2 categories"),
        (BARS, {"intervals": {"offset": ([0.4] * 2, [0.6] * 2)}}, r"series that do not exist: \['offset'\]"),
        *((HEADS, {"values": np.zeros(shape)}, r"shape .* for 2 row labels and 3") for shape in ((3, 2), 6, (2, 3, 1))),
        *((HEADS, {"marked": cell}, r"no cell .* to mark in \(2, 3\)") for cell in ((2, 0), (0, 3), (-1, 0), (0, -1))),
        *((HEADS, {"limits": ends}, "values outside") for ends in ((1, 2), (-2, -1), (0, NAN), (1, -1))),
        (MAPS, {"maps": [[np.eye(2), None]]}, r"\[\(1, 2\)\] for \(2, 2\) labels"),
        (MAPS, {"maps": [[None] * 2] * 2}, "no matrix"),
        *((MAPS, {"top": top}, f"ends at {top}") for top in (0, -1.0, NAN, INF)),
        (MAPS, {"names": ["ab"]}, r"\[\(2, 2\), \(1, 2\)\] for"),
        *((MAPS, {"maps": [[np.zeros(shape)] * 2] * 2}, "not square") for shape in ((2, 3), 4, (2, 2, 1), (0, 0))),
        *((MAPS, {"maps": [[np.full((2, 2), one)] * 2] * 2}, "not finite, or below zero") for one in (-0.1, NAN, INF)),
        (ROLES, {"glyphs": {"broad": "B", "next": "B"}}, r"glyphs \['B', 'B'\]: give each of at most 10"),
        (ROLES, {"glyphs": {"broad": "B"} | {str(one): str(one) for one in range(10)}}, "at most 10 categories"),
        *((LINES, {"weights": np.zeros(shape)}, "weights of shape .* for 3 words") for shape in (3, (3, 4), (3, 3, 1))),
        *((LINES, {"weights": np.full((3, 3), one)}, "weights outside 0–1") for one in (-0.1, 1.1, NAN, INF)),
        (LINES, {"arcs": {(1, 0), (0, 3)}}, r"arcs outside the 3 words: \[\(0, 3"),
        (SPREADS, {"rates": {"base": [0.5]}}, "rates of 'base': 1 values for 2 categories"),
        (SPREADS, {"rates": {"residual": [0.5, 0.5]}}, r"series that do not exist: \['residual'\]"),
        (SPREADS, {"rates": {"base": [0.5, 1.5]}}, "rates of 'base' outside 0–1"),
        (SPREADS, {"series": {"base": [[0.5], [0.5, -INF]]}}, "an infinite value"),
        (CURVES, {"lines": {}, "points": {}}, "no lines and no points"),
        (CURVES, {"lines": {"base": ([0, 1], [0])}}, "line 'base': 2 values of x and 1 of y"),
        (CURVES, {"points": {"seeds": ([1, INF], [0, 0])}}, "points 'seeds': an infinite value"),
        (CURVES, {"log_x": True}, "line 'base': a logarithmic scale needs x > 0"),
        (CURVES, {"y_range": (0, NAN)}, "a y axis without two finite ends"),
        (TEXT, {"rows": {"gradient": [0.5]}}, "row 'gradient' has 1 values for 2 words"),
        (TEXT, {"rows": {"gradient": [0.5, INF]}}, "row 'gradient' has an infinite value"),
        (ColouredTexts("Examples", (TEXT,)), {"texts": ()}, "no texts"),
    ],
)
def test_misfits_are_refused(figure: Figure | ColouredText, change: dict[str, object], message: str) -> None:
    title = figure.name if isinstance(figure, ColouredText) else figure.title
    with pytest.raises(ValueError, match=f"{title!r}.*{message}"):
        dataclasses.replace(figure, **change)  # type: ignore[arg-type]


def test_a_category_without_a_glyph_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'Roles'.*without a glyph: \['previous'\]"):
        HeatMap.from_categories("Roles", [["broad", "previous"]], {"broad": "B"}, "1", "12", "Layer", "Head")


def test_bars_of_a_table_have_one_unit() -> None:
    frame = pd.DataFrame({"group": ["a", "b"], "x": [0.5, 2.0], "y": [0.25, 1.0]})
    shares: dict[str, Unit | list[Unit]] = {"x": "fraction", "y": ["fraction", "fraction"]}
    assert Bars.from_table("t", Table(frame, shares), "group", {"x": "x", "y": "y"}, "share").unit == "fraction"
    mixed: dict[str, Unit | list[Unit]] = {"x": ["fraction", "nats"], "y": "fraction"}
    for table, named in (
        (Table(frame, mixed), "'fraction', 'nats'"),
        (Table(frame.head(0), {"x": "fraction", "y": []}), r"not \[\]"),
    ):
        with pytest.raises(ValueError, match=named):
            Bars.from_table("t", table, "group", {"x": "x", "y": "y"}, "share")


TEXTS = ColouredTexts(
    "t",
    (
        ColouredText("7", "gold, 1", ("NA", 'a "b"', ""), {"attention": [0.1, NAN, -2.0], "null": [1.0, 2.0, 3.0]}),
        ColouredText("7", "", ("x",), {"attention": [NAN]}),
    ),
)
CASES: dict[str, tuple[Figure, list[str], list[tuple[object, ...]]]] = {
    "bars": (
        Bars("", ("a", "b"), {"x": [1.0, 2.0], "y": [3.0, NAN]}, "", {"y": ([2.5, 1.0], [3.5, 2.0])}, unit="nats"),
        ["category", "series", "value", "value.low", "value.high"],
        [("a", "x", 1.0, NAN, NAN), ("b", "x", 2.0, NAN, NAN), ("a", "y", 3.0, 2.5, 3.5), ("b", "y", NAN, 1.0, 2.0)],
    ),
    "bars alone": (
        Bars("", ("a",), {"x": [1.0]}, "", unit="nats"),
        ["category", "series", "value"],
        [("a", "x", 1.0)],
    ),
    "heat map": (
        HeatMap("", np.array([[1.0, NAN]]), ["1"], ["1", "2"], "Layer", "Head", "", unit="ratio"),
        ["layer", "head", "value"],
        [("1", "1", 1.0), ("1", "2", NAN)],
    ),
    "heat map of one thing": (
        HeatMap("", np.array([[1.0]]), ["1"], ["2"], "head", "head", "", unit="ratio"),
        ["row", "column", "value"],
        [("1", "2", 1.0)],
    ),
    "maps": (
        Maps("", [[None, np.array([[1.0, 2.0], [3.0, 4.0]])]], ["1"], ["1", "2"], "layer", "head", "", unit="fraction"),
        ["layer", "head", "from", "to", "value"],
        [("1", "2", 1, 1, 1.0), ("1", "2", 1, 2, 2.0), ("1", "2", 2, 1, 3.0), ("1", "2", 2, 2, 4.0)],
    ),
    "categories": (
        HeatMap.from_categories("", [["x", None]], {"x": "X"}, ["1"], ["1", "2"], "layer", "head"),
        ["layer", "head", "category"],
        [("1", "1", "x"), ("1", "2", None)],
    ),
    "lines": (
        AttentionLines("", ("a", "b"), np.array([[0.2, 0.8], [1.0, 0.0]]), frozenset({(1, 0)})),
        ["from", "from.word", "to", "to.word", "attention", "gold"],
        [
            (1, "a", 1, "a", 0.2, False),
            (1, "a", 2, "b", 0.8, False),
            (2, "b", 1, "a", 1.0, True),
            (2, "b", 2, "b", 0.0, False),
        ],
    ),
    "spreads": (
        Spreads("", ("a", "b"), {"x": [[1.0, 2.0], []]}, "", rates={"x": [0.5, NAN]}, unit="nats"),
        ["category", "series", "value", "rate"],
        [("a", "x", 1.0, NAN), ("a", "x", 2.0, NAN), ("a", "x", NAN, 0.5), ("b", "x", NAN, NAN)],
    ),
    "curves": (
        Curves("", "", "", {"x": ([1.0, 2.0], [3.0, NAN])}, {"x": ([5.0], [6.0])}),
        ["kind", "series", "x", "y"],
        [("line", "x", 1.0, 3.0), ("line", "x", 2.0, NAN), ("point", "x", 5.0, 6.0)],
    ),
    "texts": (
        TEXTS,
        ["text", "name", "caption", "row", "word", "value"],
        [
            (1, "7", "gold, 1", "attention", "NA", 0.1),
            (1, "7", "gold, 1", "attention", 'a "b"', NAN),
            (1, "7", "gold, 1", "attention", "", -2.0),
            (1, "7", "gold, 1", "null", "NA", 1.0),
            (1, "7", "gold, 1", "null", 'a "b"', 2.0),
            (1, "7", "gold, 1", "null", "", 3.0),
            (2, "7", "", "attention", "x", NAN),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_of_a_figure(name: str) -> None:
    figure, columns, rows = CASES[name]
    table = figure.data()
    assert table is not None
    pd.testing.assert_frame_equal(table.frame, pd.DataFrame(rows, columns=columns))


def test_every_kind_has_numbers() -> None:
    assert {type(figure) for figure, _, _ in CASES.values()} == set(Figure.__subclasses__())


def test_of_too_many_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST", 3)
    assert [name for name, (figure, _, _) in CASES.items() if figure.data() is None] == [
        name for name, (_, _, rows) in CASES.items() if len(rows) > 3
    ]
