"""A result as a notebook shows it."""

import re
from base64 import b64decode
from dataclasses import replace
from html import unescape

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from attention_probing.results import ColouredText, ColouredTexts, Estimate, HeatMap, Result, Table
from attention_probing.results.notebook import FIGURES
from attention_probing.results.tables import PRINTED_ROWS

HEADS = HeatMap("Heads", np.eye(2), ["1", "2"], ["1", "2"], "Layer", "Head", "Weight", unit="fraction")
TEXTS = ColouredTexts("Texts", (ColouredText("a", "b", ("word",), {"row": [0.5]}),))
FRAME = pd.DataFrame(
    {"head": ["1-2", "[UNK]"], "n": [6, 40], "seen": [0.5, 0.25], "cost": [0.5, 2.0], "dev": [1.0, 0.1]}
)
RESULT = Result(
    "heads",
    {"uas": Estimate(0.543, 0.535, 0.551, unit="fraction"), "loss": Estimate(2.5, unit="nats")},
    {
        "best": Table(FRAME, {"seen": "fraction", "cost": "nats", "dev": "fraction"}, main=("head", "seen", "cost")),
        "rest": Table(FRAME[["head"]]),
    },
    {"texts": TEXTS, **dict.fromkeys(("one", "two", "three"), HEADS)},
    {"cut": 3, "dropped": 0, "of": {"test": 2}},
    headline=["uas"],
    answer="Head 1-2 sees <b> in 50 %.",
)


def tables_in(html: str) -> list[list[list[str]]]:
    """Text of all cells of all tables."""
    return [
        [
            [unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)]
            for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)
        ]
        for table in re.findall(r"<table.*?</table>", html, re.DOTALL)
    ]


def test_a_result_shows_answer_scores_tables_figures_and_audit() -> None:
    html = RESULT._repr_html_()
    assert unescape(re.findall(r"<b>(.*?)</b>", html)[0]) == RESULT.answer
    best, scores, audit = tables_in(html)
    assert scores == [["score", "value"], ["uas", "54.3 [53.5, 55.1]"]]
    assert best == [["head", "n", "seen", "cost nats"], ["1-2", "6*", "50.0", "0.5"], ["[UNK]", "40", "25.0", "2"]]
    assert audit == [["cut", "3"], ["of.test", "2"]]
    pictures = re.findall(r'<img alt="(\w+)" [^>]*src="data:image/png;base64,([^"]+)"', html)
    assert [name for name, _ in pictures] == ["one", "two", "three"][:FIGURES]
    assert all(b64decode(content).startswith(b"\x89PNG") for _, content in pictures)
    named = [*map('.table("{}")'.format, RESULT.tables), *map('.figure("{}")'.format, ("one", "two", "three"))]
    assert f"</summary>{', '.join(named)}</details>" in html


def test_scores_that_a_main_table_names_are_not_shown_twice() -> None:
    named = Table(pd.DataFrame({"score": ["uas"], "test": ["UAS"]}), main=("test",))
    shown, audit = tables_in(replace(RESULT, tables={"tests": named})._repr_html_())
    assert shown == [["test"], ["UAS"]]
    assert audit[0] == ["cut", "3"]


def test_long_tables_are_cut_and_scores_without_a_headline_are_all_there() -> None:
    long = Table(pd.DataFrame({"head": range(PRINTED_ROWS + 5)}), main=("head",))
    html = replace(RESULT, headline=(), tables={"long": long})._repr_html_()
    cut, scores, _ = tables_in(html)
    assert scores[1:] == [["uas", "54.3 [53.5, 55.1]"], ["loss", "2.5 nats"]]
    assert [row[0] for row in cut[1:]] == [str(row) for row in range(PRINTED_ROWS)]
    assert f"<i>long: {PRINTED_ROWS} of {PRINTED_ROWS + 5} rows</i>" in html


def test_a_table_is_a_frame_and_a_figure_a_drawing() -> None:
    assert RESULT.table("best") is FRAME
    figure = RESULT.figure("one")
    assert isinstance(figure, Figure)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert repr(RESULT) == "<Result heads: Head 1-2 sees <b> in 50 %.>"
    assert repr(replace(RESULT, answer="")) == "<Result heads: 2 scores>"


def test_a_wrong_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(KeyError, match=r"There is no table 'bst'; give one of best, rest \(did you mean `best`"):
        RESULT.table("bst")
    with pytest.raises(KeyError, match=r"There is no figure 'best'; give one of texts, one, two, three"):
        RESULT.figure("best")


def test_backticks_are_code_and_a_note_stands_below_its_table() -> None:
    table = Table(FRAME[["head"]], main=("head",), note="Not `mark`.")
    html = replace(RESULT, answer="In `obj`.", tables={"best": table})._repr_html_()
    assert "<b>In <code>obj</code>.</b>" in html
    assert "</table><small>Not <code>mark</code>.</small>" in html
