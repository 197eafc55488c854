import numpy as np
import pandas as pd
import pytest

from attention_probing.results import (
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

NAN = float("nan")


@pytest.mark.parametrize(
    "figure",
    [
        Bars("", ("a", "b"), {"x": [0.5]}, "", unit="fraction"),
        Bars("", ("a", "b"), {"x": [0.5, 0.6]}, "", {"x": ([0.4, 0.5], [0.6])}, unit="fraction"),
        HeatMap("", np.zeros((3, 2)), ["1", "2"], ["1", "2", "3", "4"], "Layer", "Head", "", unit="fraction"),
        Maps("", [[np.eye(2), None]], "12", "12", "Layer", "Head", "", unit="fraction"),
        Spreads("", ("a", "b"), {"x": [[0.5], []]}, "", rates={"x": [0.25]}, unit="fraction"),
        Curves("", "", "", {"x": ([0, 1], [0])}),
        ColouredTexts("", (ColouredText("", "", ("a", "film"), {"attention": [0.1]}),)),
    ],
    ids=lambda figure: type(figure).__name__,
)
def test_numbers_that_do_not_fit_are_refused(figure: Figure) -> None:
    with pytest.raises(ValueError, match=r"is shorter than|is longer than"):
        figure.data()


def test_bars_of_a_table_have_one_unit() -> None:
    frame = pd.DataFrame({"group": ["a", "b"], "x": [0.5, 2.0], "y": [0.25, 1.0]})
    shares: dict[str, Unit | list[Unit]] = {"x": "fraction", "y": ["fraction", "fraction"]}
    assert Bars.from_table("t", Table(frame, shares), "group", {"x": "x", "y": "y"}, "share").unit == "fraction"
    mixed: dict[str, Unit | list[Unit]] = {"x": ["fraction", "nats"], "y": "fraction"}
    with pytest.raises(ValueError, match="too many values"):
        Bars.from_table("t", Table(frame, mixed), "group", {"x": "x", "y": "y"}, "share")


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
    monkeypatch.setattr(figures, "MOST_ROWS", 3)
    assert [name for name, (figure, _, _) in CASES.items() if figure.data() is None] == [
        name for name, (_, _, rows) in CASES.items() if len(rows) > 3
    ]
