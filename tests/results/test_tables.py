from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from metrics.bootstrap import bootstrap_ratio
from results import Estimate, Table, Unit
from results.tables import audit_table, data_table, escape, latex_table, scores_table

NAN = float("nan")


def table(frame: pd.DataFrame, interval: str | None = None, main: Sequence[str] = (), **units: Unit) -> Table:
    """Floats are fractions, but those of another unit, and the ends of intervals."""
    ends = {f"{name}.{end}" for name in frame for end in ("low", "high", "sd")}
    ends |= {"low", "high", "sd"} if interval else set()
    floats = [str(name) for name in frame if pd.api.types.is_float_dtype(frame[name]) and name not in ends]
    return Table(frame, {**dict.fromkeys(floats, "fraction"), **units}, interval, main)


def latex(frame: pd.DataFrame, interval: str | None = None, **units: Unit) -> list[str]:
    """The lines of a table in LaTeX."""
    return (latex_table(table(frame, interval, **units), "probe", "t") or "").splitlines()


def cells(shown: RichTable, width: int = 120) -> list[list[str]]:
    """The cells of each printed line between the title and the caption, without the rule."""
    shown.title, shown.caption = None, None
    # Lines between the columns, so that a cell can be told from the next.
    shown.box = box.MINIMAL
    console = Console(width=width, color_system=None)
    with console.capture() as printed:
        console.print(shown)
    lines = [line for line in printed.get().splitlines() if line.strip() and "─" not in line]
    return [[cell.strip() for cell in line.split("│")] for line in lines]


class TestFrames:
    def test_intervals_fold_into_their_column(self) -> None:
        frame = pd.DataFrame(
            {
                "relation": ["[unused1]", "det"],
                "n": [12, 3],
                "accuracy": [0.5, 0.25],
                "low": [0.4, NAN],
                "high": [0.6, NAN],
                "probe": [0.125, 1.0],
                "probe.high": [0.2, 1.0],
                "probe.low": [0.1, 1.0],
                "best_offset": [-1, 1],
                "bits": [0.5, 3.0],
            }
        )
        shown = data_table("relations", table(frame, interval="accuracy", bits="bits"), "relations.csv")
        assert cells(shown) == [
            ["relation", "n", "accuracy", "probe", "best_offset", "bits"],
            ["[unused1]", "12*", "50.0 [40.0, 60.0]", "12.5 [10.0, 20.0]", "-1", "0.5"],
            ["det", "3*", "25.0", "100.0 [100.0, 100.0]", "1", "3"],
        ]

    def test_long_tables_are_cut_and_say_where_the_rest_is(self) -> None:
        frame = pd.DataFrame({"value": [*np.linspace(0, 1, 40), 7.0]})
        shown = data_table("long", table(frame, value="nats"), "long.csv")
        assert str(shown.caption) == "16 more rows in long.csv"
        printed = cells(shown)
        assert len(printed) == 1 + 25
        assert printed[2] == ["0.02564"]
        assert data_table("short", table(frame.head(25)), "short.csv").caption is None

    def test_the_number_of_items_is_never_left_out_and_small_numbers_are_marked(self) -> None:
        """As in best_heads at 80 columns, where the answer alone is wider than the terminal."""
        words = {"relation": ["nsubj", "compound:prt"], "n": [6, 20], "head": ["3-9", "10-12"]}
        numbers = {name: [0.5, 0.25] for name in ("test", "low", "high", "offset", "random_init")}
        frame = pd.DataFrame(words | {"direction": ["dependent→head"] * 2} | numbers)
        units: dict[str, Unit] = dict.fromkeys(("test", "offset", "random_init"), "fraction")
        given = Table(frame, units, "test", ("relation", "head", "direction", "test", "offset", "random_init"))
        for width in (200, 80, 40):
            printed = " ".join(word for row in cells(data_table("t", given, "t.csv", width), width) for word in row)
            assert " 6* " in printed, printed
            assert " 20 " in printed, printed

    def test_the_answer_takes_lines_where_it_cannot_take_columns(self) -> None:
        """Words fold and intervals go below their numbers, then every row is a block of lines."""
        run = "a-folder/of-runs/version_0"
        frame = pd.DataFrame(
            {
                "run": [run, "b"],
                "uas": [0.5, 0.25],
                "low": [0.4, 0.2],
                "high": [0.6, 0.3],
                "sd": [0.1, 0.1],
                "permutation.p": [NAN, 0.0123],
            }
        )
        given = Table(frame, {"uas": "fraction", "permutation.p": "p"}, "uas", ("run", "uas", "permutation.p"))
        heading, score = ["run", "uas", "permutation.p"], "50.0 [40.0, 60.0]"

        def at(width: int) -> list[list[str]]:
            return cells(data_table("t", given, "t.csv", width), width)

        assert at(80)[:2] == [["run", "uas", "sd", "permutation.p"], [run, score, "10.0", "–"]]
        assert at(60)[:2] == [heading, [run, score, "–"]]
        assert at(59)[:3] == [["", "", "permutation."], ["run", "uas", "p"], [run, score, "–"]]
        assert at(45)[2:5] == [["a-folder/", score, "–"], ["of-runs/", "", ""], ["version_0", "", ""]]
        assert at(40)[2:5] == [["a-folder/", "50.0", "–"], ["of-runs/", "[40.0, 60.0]", ""], ["version_0", "", ""]]
        assert at(34)[:3] == [["column", "value"], ["run", "a-folder/of-runs/"], ["", "version_0"]]

    def test_no_part_of_a_word_is_broken_or_lost(self) -> None:
        text = "abcdefghijkl mnop_qrst/u vwxyz"
        frame = pd.DataFrame({"word": [text], "number": [0.5]})
        for width in (20, 25, 31):
            printed = cells(data_table("t", table(frame, main=("word", "number")), "t.csv", width), width)[1:]
            lines = [word for word, _ in printed]
            assert len(lines) > 1
            assert "".join(lines).replace(" ", "") == text.replace(" ", "")
            assert all(line[-1] in "_/" or f"{line} " in text for line in lines[:-1])


def test_audit_is_flat() -> None:
    audit = {
        "too_long": 3,
        "alignment": {"unaligned": 2, "empty": 0, "words": ["a", "b"]},
        "ids": list(range(9)),
        "dropped": 0,
        "coverage": 0.8566641279,
        "policy": "skip",
    }
    assert cells(audit_table(audit)) == [
        ["what", "value"],
        ["too_long", "3"],
        ["alignment.unaligned", "2"],
        ["alignment.words", "['a', 'b']"],
        ["ids", "9 entries"],
        ["coverage", "0.8567"],
        ["policy", "skip"],
    ]
    assert str(audit_table(audit).caption) == "without 2 counts that are 0, which results.json has"
    measured = {
        "surface.inputs with punctuation": 0,
        "links": {"scored": 0},
        "warnings": ["printed at the end"],
        "cut": 0,
    }
    assert cells(audit_table(measured))[1:] == [["surface.inputs with punctuation", "0"], ["links.scored", "0"]]
    assert str(audit_table(measured).caption) == "without 1 count that is 0, which results.json has"
    many = {f"n{number}": number for number in range(28)}
    assert len(cells(audit_table(many))) == 1 + 25
    assert str(audit_table(many).caption) == "without 2 more entries and 1 count that is 0, which results.json has"


def body(frame: pd.DataFrame, interval: str | None = None, **units: Unit) -> list[list[str]]:
    """The cells of each row in LaTeX, without the lines around them."""
    lines = latex(frame, interval, **units)
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
% * fewer than 20 items
\begin{tabular}{lrllrrr}
\toprule
relation & n & head & direction & test & best offset & p \\
\midrule
nmod:poss & 1234 & 3-9 & dependent $\rightarrow$ head & 80.8 [79.0, 82.5] & 1 & $<$ .001 \\
{}[unused1] & 7* & 2-5 & head $\rightarrow$ dependent & -- & $-2$ & .25 \\
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
    lines = latex(pd.DataFrame({first: [first], "other": [first]}))
    assert [line for line in lines if line.endswith(r"\\")] == [
        rf"{{}}{first} & other \\",
        rf"{{}}{first} & {first} \\",
    ]


def test_rows_of_nats_are_printed_as_they_are_between_rows_of_fractions() -> None:
    frame = pd.DataFrame({"score": ["erasure.never_flips", "max_jsd"], "base": [0.5] * 2})
    units: list[Unit] = ["fraction", "nats"]
    lines = (latex_table(Table(frame, {"base": units}), "probe", "t") or "").splitlines()
    assert lines[6:8] == [r"erasure never flips & 50.0 \\", r"max jsd & 0.5 \\"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["best_offset", "f1.low", "rate 0.5_x, .5"], [r"best offset & f1 low & rate 0.5 x, .5 \\"]),
        (
            ["n", "uas", "uas.sd", "erasure.attention.never_flips", "erasure.mass", "other.x"],
            [
                r" & \multicolumn{2}{c}{uas} & \multicolumn{2}{c}{erasure} &  \\",
                r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}",
                r"n &  & sd & attention never flips & mass & other x \\",
            ],
        ),
    ],
)
def test_heads_are_words_and_neighbours_of_one_name_share_one(names: list[str], expected: list[str]) -> None:
    lines = latex(pd.DataFrame([[0.5] * len(names)], columns=names))
    assert lines[lines.index(r"\toprule") + 1 : lines.index(r"\midrule")] == expected


def test_what_no_page_holds_is_no_table_of_latex() -> None:
    assert body(pd.DataFrame({"n": range(60)})) == [[str(n)] for n in range(60)]
    assert not latex(pd.DataFrame({"n": range(61)}))
    wide = pd.DataFrame([[0.5] * 16], columns=[f"c{n}" for n in range(16)]).assign(**{"c0.low": 0.25, "c0.high": 1.0})
    assert len(body(wide)[0]) == 16
    assert not latex(wide.assign(more=1))


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (Estimate(-0.05, unit="fraction", sd=0.1), "-5.0"),
        (Estimate(0.80849, unit="nats"), "0.8085"),
        (Estimate(0.54321, 0.536, 0.55, unit="fraction"), "54.3 [53.6, 55.0]"),
        (Estimate(0.5, 0.25, 2.0, unit="ratio"), "0.5 [0.25, 2]"),
        (Estimate(NAN, NAN, NAN, unit="nats"), "–"),
    ],
)
def test_scores_have_their_unit_and_their_interval_where_it_is_known(estimate: Estimate, expected: str) -> None:
    printed = cells(scores_table("probe", {"offset.uas": estimate}))
    unit = ["nats"] if estimate.unit == "nats" else []
    assert printed == [["score", "value", *["unit"] * len(unit)], ["offset.uas", expected, *unit]]


def test_a_wide_table_has_stacked_headings_and_intervals_below_their_numbers() -> None:
    names = ["test.naopc ↑", *(f"test.measure_{number} ↓" for number in range(8))]
    frame = pd.DataFrame({"ranking": ["a"]})
    for name in names:
        frame = frame.assign(**{name: [-0.5], f"{name}.low": [-0.75], f"{name}.high": [0.25]})
    units: dict[str, Unit] = dict.fromkeys(names, "fraction")
    shown = latex(frame, **units)
    assert r"\shortstack{naopc\\$\uparrow$} & \shortstack{measure\\0\\$\downarrow$}" in shown[6]
    assert shown[-3].startswith(r"a & \shortstack[r]{$-50.0$\\{\scriptsize [$-75.0$, 25.0]}} & ")
    few = latex(frame.iloc[:, :10], **{name: units[name] for name in names[:3]})
    assert few[-3] == "a" + r" & $-50.0$ [$-75.0$, 25.0]" * 3 + r" \\"


def test_a_p_that_could_not_be_smaller_is_an_upper_bound() -> None:
    units: dict[str, Sequence[Unit]] = {name: ["least_p", "least_p", "p", "p"] for name in ("p", "p_holm")}
    frame = pd.DataFrame({"p": [2 / 1001, 2 / 100001, 0.01, NAN], "p_holm": [6 / 1001, 6 / 100001, 0.02, NAN]})
    known = Table(frame, units, main=("p", "p_holm"))
    shown = cells(data_table("t", known, "t.csv"))[1:]
    assert shown == [["≤ .002", "≤ .006"], ["< .001", "< .001"], [".01", ".02"], ["–", "–"]]
    printed = (latex_table(known, "probe", "t") or "").splitlines()
    assert r"$\leq$ .002 & $\leq$ .006 \\" in printed
    assert r"$<$ .001 & $<$ .001 \\" in printed
    last = known.rows([3, 0])
    assert last.unit_rows()["p"] == ["p", "least_p"]
    assert last.frame["p"].tolist()[1] == 2 / 1001


def test_scores_of_few_items_are_marked() -> None:
    few, enough = (bootstrap_ratio([1] * size, [1] * size) for size in (6, 20))
    assert cells(scores_table("t", {"few": few, "enough": enough}))[1:] == [
        ["few", "100.0 [54.1, 100.0]*"],
        ["enough", "100.0 [83.2, 100.0]"],
    ]
