import numpy as np
import pandas as pd
import pytest

from reports.latex import escape, latex_table
from results import Table, Unit
from tests.reports.tables import table

NAN = float("nan")


def body(frame: pd.DataFrame, interval: str | None = None, **units: Unit) -> list[list[str]]:
    """The cells of each row, without what stands around them."""
    return rows_of(latex_table(table(frame, interval, **units), "probe", "table") or "")


def rows_of(text: str) -> list[list[str]]:
    lines = text.splitlines()
    rows = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    return [row.removesuffix(r" \\").split(" & ") for row in rows]


def test_a_small_table_to_the_letter() -> None:
    frame = pd.DataFrame(
        {
            "relation": ["nmod:poss", "[unused1]"],
            "n": [1234, 7],
            "head": ["3-9", "2-5"],
            "direction": ["dependent → head", "head → dependent"],
            "test": [0.80812, NAN],
            "low": [0.79, NAN],
            "high": [0.825, NAN],
            "best_offset": [1, -2],
            "p": [0.000999, 0.25],
        }
    )
    expected = r"""% heads: best_heads
% requires \usepackage{booktabs}
\begin{tabular}{lrllrrr}
\toprule
relation & n & head & direction & test & best offset & p \\
\midrule
nmod:poss & 1234 & 3-9 & dependent $\rightarrow$ head & 80.8 [79.0, 82.5] & 1 & 0.000999 \\
{}[unused1] & 7 & 2-5 & head $\rightarrow$ dependent & -- & $-2$ & 0.25 \\
\bottomrule
\end{tabular}
"""
    assert latex_table(table(frame, interval="test", p="p"), "heads", "best_heads") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AT&T", r"AT\&T"),
        ("100 %", r"100 \%"),
        ("$5 #1", r"\$5 \#1"),
        ("a_b", r"a\_b"),
        ("{x}", r"\{x\}"),
        ("~^\\", r"\textasciitilde{}\textasciicircum{}\textbackslash{}"),
        (r"\&", r"\textbackslash{}\&"),
        ('<b>|"', r"\textless{}b\textgreater{}\textbar{}\textquotedbl{}"),
        ("a -- b --- c - d", "a -{}- b -{}-{}- c - d"),
        ("``so''", "`{}`so'{}'"),
        ("–", r"\textendash{}"),
        ("≥ 6", r"$\geq$ 6"),
        ("two\nlines\t", "two lines"),
        ("naïve [CLS] (*)", "naïve [CLS] (*)"),
    ],
)
def test_text_is_printed_as_it_is(text: str, expected: str) -> None:
    assert escape(text) == expected


@pytest.mark.parametrize("first", ["[CLS]", "*"])
def test_a_rule_or_row_end_does_not_take_a_cell_for_its_argument(first: str) -> None:
    text = latex_table(table(pd.DataFrame({first: [first, "x"], "other": [first, first]})), "probe", "t")
    assert text is not None
    assert [line for line in text.splitlines() if line.endswith(r"\\")] == [
        rf"{{}}{first} & other \\",
        rf"{{}}{first} & {first} \\",
        rf"x & {first} \\",
    ]


def test_numbers_are_those_of_the_terminal() -> None:
    frame = pd.DataFrame(
        {
            "change": [-0.05, 1.0],
            "bits": [12345.678, -0.000012345],
            "few": [3.0, 0.5],
            "single": np.array([0.25, 0.5], dtype=np.float32),
            "known": [True, False],
            "count": pd.array([2, None], dtype="Int64"),
            "text": ["x", None],
            "list": [[1, 2], None],
        }
    )
    assert body(frame, bits="bits", few="ratio") == [
        ["$-5.0$", r"$1.235 \times 10^{4}$", "3", "25.0", "True", "2", "x", "[1, 2]"],
        ["100.0", r"$-1.234 \times 10^{-5}$", "0.5", "50.0", "False", "--", "--", "--"],
    ]
    assert r"\begin{tabular}{rrrrrrll}" in (latex_table(table(frame), "probe", "t") or "")


def test_an_interval_stands_in_the_cell_of_its_value() -> None:
    frame = pd.DataFrame({"bits": [0.5, 2.0], "bits.low": [-0.25, 0.5], "bits.high": [0.75, 1.0], "gain": [0.5, 0.5]})
    assert body(frame, bits="bits") == [["0.5 [$-0.25$, 0.75]", "50.0"], ["2 [0.5, 1]", "50.0"]]


def test_rows_of_nats_are_printed_as_they_are_between_rows_of_fractions() -> None:
    scores = ["erasure.attention.never_flips", "adversary.max_jsd", "base.single_weight.delta_js", "area.f1"]
    frame = pd.DataFrame({"score": scores, "base": [0.5] * 4, "base.low": [0.25] * 4, "base.high": [0.75] * 4})
    units: list[Unit] = ["fraction", "nats", "nats", "fraction"]
    text = latex_table(Table(frame, {"base": units}), "probe", "table") or ""
    assert rows_of(text) == [
        ["erasure attention never flips", "50.0 [25.0, 75.0]"],
        ["adversary max jsd", "0.5 [0.25, 0.75]"],
        ["base single weight delta js", "0.5 [0.25, 0.75]"],
        ["area f1", "50.0 [25.0, 75.0]"],
    ]


def heads(*names: str) -> list[str]:
    lines = (
        latex_table(table(pd.DataFrame([[0.5] * len(names)], columns=list(names))), "probe", "t") or ""
    ).splitlines()
    return lines[lines.index(r"\toprule") + 1 : lines.index(r"\midrule")]


def test_heads_are_words() -> None:
    assert heads("best_offset", "f1.low", "rate 0.5_x, .5") == [r"best offset & f1 low & rate 0.5 x, .5 \\"]


def test_neighbours_of_one_name_stand_under_one_head() -> None:
    assert heads("n", "uas", "uas.sd", "erasure.attention.never_flips", "erasure.mass", "other.x") == [
        r" & \multicolumn{2}{c}{uas} & \multicolumn{2}{c}{erasure} &  \\",
        r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}",
        r"n &  & sd & attention never flips & mass & other x \\",
    ]
    assert heads("rate 0.5", "rate 0.7") == [r"rate 0.5 & rate 0.7 \\"]


def test_what_no_page_holds_is_no_table_of_latex() -> None:
    assert body(pd.DataFrame({"n": range(60)})) == [[str(n)] for n in range(60)]
    assert latex_table(table(pd.DataFrame({"n": range(61)})), "probe", "t") is None
    wide = pd.DataFrame([[0.5] * 16], columns=[f"c{n}" for n in range(16)]).assign(**{"c0.low": 0.25, "c0.high": 1.0})
    assert len(body(wide)[0]) == 16
    assert latex_table(table(wide.assign(more=1)), "probe", "t") is None


def test_a_table_without_rows_keeps_its_head() -> None:
    frame = pd.DataFrame({"a": pd.Series(dtype=str), "b": pd.Series(dtype=np.int64)})
    assert (latex_table(table(frame), "two\nlines", "t") or "").splitlines() == [
        "% two lines: t",
        r"% requires \usepackage{booktabs}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"a & b \\",
        r"\midrule",
        r"\bottomrule",
        r"\end{tabular}",
    ]
