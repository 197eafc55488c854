import numpy as np
import pandas as pd
import pytest

from reports.latex import escape, latex_table

NAN = float("nan")


def body(frame: pd.DataFrame) -> list[list[str]]:
    """The cells of each row, without what stands around them."""
    lines = latex_table(frame, "probe", "table").splitlines()
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
\begin{tabular}{lrllrrrrr}
\toprule
relation & n & head & direction & test & low & high & best\_offset & p \\
\midrule
nmod:poss & 1234 & 3-9 & dependent $\rightarrow$ head & 80.8 & 79.0 & 82.5 & 1 & 0.000999 \\
{}[unused1] & 7 & 2-5 & head $\rightarrow$ dependent & -- & -- & -- & $-2$ & 0.25 \\
\bottomrule
\end{tabular}
"""
    assert latex_table(frame, "heads", "best_heads") == expected


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
    lines = latex_table(pd.DataFrame({first: [first, "x"], "other": [first, first]}), "probe", "t").splitlines()
    assert [line for line in lines if line.endswith(r"\\")] == [
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
    assert body(frame) == [
        ["$-5.0$", r"$1.235 \times 10^{4}$", "3", "25.0", "True", "2", "x", "[1, 2]"],
        ["100.0", r"$-1.234 \times 10^{-5}$", "0.5", "50.0", "False", "--", "--", "--"],
    ]
    assert r"\begin{tabular}{rrrrrrll}" in latex_table(frame, "probe", "t")


def test_the_ends_of_an_interval_follow_their_column() -> None:
    # Each end alone would pass for a fraction.
    frame = pd.DataFrame({"bits": [0.5, 2.0], "bits.low": [0.25, 0.5], "bits.high": [0.75, 1.0], "gain": [0.5, 0.5]})
    assert body(frame) == [["0.5", "0.25", "0.75", "50.0"], ["2", "0.5", "1", "50.0"]]


def test_a_long_table_is_one_tabular_with_all_rows() -> None:
    text = latex_table(pd.DataFrame({"n": range(200)}), "probe", "t")
    assert text.count(r"\begin{") == text.count(r"\end{") == text.count(r"\midrule") == 1
    assert body(pd.DataFrame({"n": range(200)})) == [[str(n)] for n in range(200)]


def test_a_table_without_rows_keeps_its_head() -> None:
    frame = pd.DataFrame({"a": pd.Series(dtype=str), "b": pd.Series(dtype=np.int64)})
    assert latex_table(frame, "two\nlines", "t").splitlines() == [
        "% two lines: t",
        r"% requires \usepackage{booktabs}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"a & b \\",
        r"\midrule",
        r"\bottomrule",
        r"\end{tabular}",
    ]
