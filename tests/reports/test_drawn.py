import math

import numpy as np
import pandas as pd
import pytest

from reports import drawn as module
from reports.drawn import drawn, texts_of
from results import (
    AttentionLines,
    Bars,
    Categories,
    ColouredText,
    ColouredTexts,
    Curves,
    Figure,
    HeatMap,
    Histograms,
    Maps,
    Scatter,
    Spreads,
)

NAN = math.nan
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
        Categories("", [["x", None]], {"x": "X"}, ["1"], ["1", "2"], "layer", "head"),
        ["layer", "head", "category"],
        [("1", "1", "x"), ("1", "2", None)],
    ),
    "scatter": (
        Scatter("", np.array([[1.0, 2.0], [3.0, 4.0]]), ["b", "a"], "layer"),
        ["layer", "x", "y"],
        [("b", 1.0, 2.0), ("a", 3.0, 4.0)],
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
    "histograms": (
        # A rounding error beyond an end belongs to the last bin; what is missing is in none.
        Histograms("", "", {"x": [0.1, 0.2, NAN, 1.0 + 1e-9, 0.9]}, 0.0, 1.0, 2),
        ["series", "from", "to", "n", "share"],
        [("x", 0.0, 0.5, 2, 0.5), ("x", 0.5, 1.0, 2, 0.5)],
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
    table = drawn(figure)
    assert table is not None
    pd.testing.assert_frame_equal(table.frame, pd.DataFrame(rows, columns=columns))


def test_every_figure_has_numbers() -> None:
    assert {type(figure) for figure, _, _ in CASES.values()} == set(Figure.__args__)


def test_texts_come_back_from_their_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    table = drawn(TEXTS)
    assert table is not None
    file = tmp_path_factory.mktemp("texts") / "t.data.csv"
    table.frame.to_csv(file, index=False)
    read = texts_of("t", pd.read_csv(file, dtype=str, keep_default_na=False))
    for text, expected in zip(read.texts, TEXTS.texts, strict=True):
        assert (text.name, text.caption, text.words) == (expected.name, expected.caption, expected.words)
        assert list(text.rows) == list(expected.rows)
        for row, values in expected.rows.items():
            np.testing.assert_array_equal(text.rows[row], values)


def test_of_too_many_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    assert [name for name, (figure, _, rows) in CASES.items() if drawn(figure) is None] == [
        name for name, (_, _, rows) in CASES.items() if len(rows) > 3
    ]
