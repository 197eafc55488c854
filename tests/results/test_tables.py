import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from attention_probing.metrics.bootstrap import bootstrap_ratio
from attention_probing.results import Estimate, Table, Unit
from attention_probing.results.latex import escape, latex_table
from attention_probing.results.tables import DASH, audit_text, data_table, format_cells, list_few, scores_table

NAN = float("nan")


def table(frame: pd.DataFrame, interval: str | None = None, main: Sequence[str] = (), **units: Unit) -> Table:
    """Floats are fractions, but those of another unit, and the ends of intervals."""
    ends = {f"{name}.{end}" for name in frame for end in ("low", "high", "sd")}
    ends |= {"low", "high", "sd"} if interval else set()
    floats = [str(name) for name in frame if pd.api.types.is_float_dtype(frame[name]) and name not in ends]
    return Table(frame, {**dict.fromkeys(floats, "fraction"), **units}, interval, main)


def latex(frame: pd.DataFrame, interval: str | None = None, **units: Unit) -> list[str]:
    """The lines of a table in LaTeX."""
    return (latex_table(table(frame, interval, **units), "probe", "t", "T") or "").splitlines()


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
                "without values": [NAN, NAN],
            }
        )
        shown = data_table("relations", table(frame, interval="accuracy", bits="bits"), "relations.csv")
        assert cells(shown) == [
            ["relation", "n", "accuracy", "probe", "best_offset", "bits"],
            ["[unused1]", "12*", "50.0 [40.0, 60.0]", "12.5 [10.0, 20.0]", "-1", "0.5"],
            ["det", "3*", "25.0†", "100.0 [100.0, 100.0]", "1", "3"],
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

    def test_long_names_break_after_underscores_before_rows_become_blocks(self) -> None:
        name = "determiner_noun_agreement_with_adj_irregular_1"
        frame = pd.DataFrame({"paradigm": [name, "short name"], "effect": [0.5, 0.25]})
        frame = frame.assign(**{"effect.low": [0.1, 0.1], "effect.high": [0.9, 0.9]})
        shown = cells(data_table("t", table(frame, main=("paradigm", "effect")), "t.csv", 45), 45)
        assert shown == [
            ["paradigm", "effect"],
            ["determiner_noun_agreement_", "50.0"],
            ["with_adj_irregular_1", "[10.0, 90.0]"],
            ["short name", "25.0"],
            ["", "[10.0, 90.0]"],
        ]

    def test_a_number_in_a_sentence_is_not_broken_where_names_are(self) -> None:
        name = "determiner_noun_agreement_with_adj_irregular_1"
        sentence = "a note on this row is: p = 0.0123 (see https://a.org/some_page_of_a_site)"
        frame = pd.DataFrame({"paradigm": [name], "note": [sentence]})
        shown = cells(data_table("t", table(frame, main=("paradigm", "note")), "t.csv", 70), 70)
        assert [row[0] for row in shown if row[0]] == ["paradigm", "determiner_noun_agreement_", "with_adj_irregular_1"]
        lines = [row[1] for row in shown[1:]]
        assert " ".join(lines) == sentence

    def test_the_answer_takes_lines_where_it_cannot_take_columns(self) -> None:
        """Headings break, then intervals go below their numbers, then every row is a block of lines."""
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
        assert at(58)[2:4] == [[run, "50.0", "–"], ["", "[40.0, 60.0]", ""]]
        assert at(50)[:2] == [["column", "value"], ["run", run]]

    def test_the_direction_of_a_head_becomes_an_arrow_where_it_does_not_fit(self) -> None:
        """As in best_heads of a treebank at 80 columns."""
        frame = pd.DataFrame(
            {
                "relation": ["all (no punctuation)", "mark", "vocative"],
                "n": [25094, 82, 1],
                "head": ["3-9", "10-12", NAN],
                "direction": ["dependent→head", "head→dependent", NAN],
                "test": [0.484, 1.0, NAN],
                "low": [0.469, 0.969, NAN],
                "high": [0.499, 1.0, NAN],
                "offset": [0.369, 1.0, NAN],
                "random_init": [0.111, 0.095, NAN],
                "p_holm": [0.0099, 1.0, NAN],
            }
        )
        units: dict[str, Unit] = {"test": "fraction", "offset": "fraction", "random_init": "fraction", "p_holm": "p"}
        given = Table(frame, units, "test", ("relation", "head", "direction", *units), note="A note.")
        wide = data_table("t", given, "t.csv", 120)
        assert str(wide.caption) == "A note."
        assert [row[3] for row in cells(wide)] == ["direction", "dependent→head", "head→dependent", DASH]
        for width in (80, 40):
            narrow = data_table("t", given, "t.csv", width)
            assert str(narrow.caption) == "Attention: → dependent→head, ← head→dependent\nA note."
            console = Console(width=width, color_system=None)
            with console.capture() as printed:
                console.print(narrow)
            text = printed.get()
            assert max(map(len, text.splitlines())) <= width
            assert "3-9 →" in text
            assert "10-12 ←" in text
            assert "direction" not in text

    def test_heads_without_a_direction_have_no_arrow(self) -> None:
        frame = pd.DataFrame({"head": ["1-1", "2-3"], "long name of a number": [0.5, 0.25]})
        printed = cells(data_table("t", table(frame, main=("head", "long name of a number")), "t.csv", 25), 25)
        assert [row[0] for row in printed if "-" in row[0]] == ["1-1", "2-3"]

    def test_other_directions_than_those_of_attention_stay_words(self) -> None:
        frame = pd.DataFrame({"head": ["1-1"], "direction": ["up" * 20], "number": [0.5]})
        printed = cells(data_table("t", table(frame, main=("head", "direction", "number")), "t.csv", 30), 30)
        assert [name for name, _ in printed if name] == ["column", "head", "direction", "number"]

    def test_no_part_of_a_word_is_broken_or_lost(self) -> None:
        text = "abcdefghijkl mnop_qrst/u vwxyz"
        frame = pd.DataFrame({"word": [text], "number": [0.5]})
        for width in (20, 25, 31):
            printed = cells(data_table("t", table(frame, main=("word", "number")), "t.csv", width), width)[1:]
            lines = [word for word, _ in printed]
            assert len(lines) > 1
            assert "".join(lines).replace(" ", "") == text.replace(" ", "")
            assert all(line[-1] in "_/" or f"{line} " in text for line in lines[:-1])

    @pytest.mark.parametrize("width", range(60, 101))
    def test_no_digit_of_a_number_is_cropped(self, width: int) -> None:
        frame = pd.DataFrame(
            {
                "relation": ["all", "all (no punctuation)", "punct"],
                "n": [2386, 1999, 387],
                "head": ["5-3", "5-3", "7-11"],
                "direction": ["dependent→head", "dependent→head", "head→dependent"],
                "test": [0.352, 0.385, 1.0],
                "test.low": [0.336, 0.369, 0.846],
                "test.high": [0.369, 0.403, 1.0],
                "offset": [0.241, 0.274, 0.191],
                "random_init": [0.093, 0.094, 0.145],
                "p_holm": [0.0086, 0.0086, 0.39],
                "chosen": [93, 100, 79],
            }
        )
        main = ("relation", "head", "direction", "test", "offset", "random_init", "p_holm", "chosen")
        shown = data_table("best_heads", table(frame, main=main, p_holm="p", chosen="count"), "best_heads.csv", width)
        console = Console(width=width, color_system=None)
        with console.capture() as printed:
            console.print(shown)
        lines = printed.get().splitlines()
        for text in ("5-3 →", "7-11 ←", "[33.6, 36.9]", "[84.6, 100.0]", "9.4", "14.5", "1999", ".39"):
            assert any(text in line for line in lines), text
        for number in ("93", "100", "79"):
            assert any(re.search(rf"(^|\s){number}\s*$", line) for line in lines), number


def test_an_audit_is_one_paragraph() -> None:
    audit = {
        "too_long": 3,
        "alignment": {"unaligned": 2, "empty": 0, "words": ["a", "b"]},
        "ids": list(range(9)),
        "dropped": 0,
        "coverage": 0.8566641279,
        "policy": "skip",
    }
    assert audit_text(audit) == (
        "Audit: too_long 3; alignment: unaligned 2, words ['a', 'b']; ids 9 entries; coverage 0.8567; policy skip; "
        "2 counts that are 0."
    )
    measured = {
        "surface.inputs with punctuation": 0,
        "links": {"scored": 0},
        "warnings": ["printed at the end"],
        "checkpoints": {"base, seed 0": {"file": "a.ckpt", "sha256": "ab", "skipped_texts": 1200}},
        "cut": 0,
    }
    assert audit_text(measured) == (
        "Audit: surface: inputs with punctuation 0; links: scored 0; checkpoints: base, seed 0.skipped_texts 1,200; "
        "1 count that is 0."
    )
    many = {f"n{number}": number for number in range(28)}
    listed = "; ".join(f"n{number} {number}" for number in range(1, 26))
    assert audit_text(many) == f"Audit: {listed}; 2 other entries; 1 count that is 0."


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
            "test": [0.80812, 0.5],
            "low": [0.79, NAN],
            "high": [0.825, NAN],
            "best_offset": [1, -2],
            "p": [0.000999, 0.25],
        }
    )
    expected = r"""% heads: best_heads; requires \usepackage{booktabs,graphicx}
\begin{table*}[t]
\centering\footnotesize\setlength{\tabcolsep}{4pt}
\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%
\begin{tabular}{lrllrrr}
\toprule
relation & $n$ & head & direction & test & \begin{tabular}[b]{@{}r@{}}best\\offset\end{tabular} & $p$ \\
\midrule
nmod:poss & 1,234 & 3-9 & dependent $\rightarrow$ head & 80.8 {\scriptsize [79.0, 82.5]} & 1 & $<$ .001 \\
{}[unused1] & 7\rlap{*} & 2-5 & head $\rightarrow$ dependent & 50.0\rlap{$^\dagger$} & $-$2 & .25 \\
\bottomrule
\end{tabular}}
\caption{Heads. Fractions are $\times$100; 95\,\% intervals in brackets; $p$ from sign flips or permutations; \
$^\dagger$\,no interval: too few units or seeds, equal values, or chosen on these data; \
*\,is fewer than 20 items.}
\label{tab:heads-best_heads}
\end{table*}
"""
    shown = table(frame, interval="test", main=("relation", "n", "head", "direction", "test", "best_offset"), p="p")
    assert latex_table(shown, "heads", "best_heads", "heads") == expected.replace("; \\\n", "; ")


def test_a_note_ends_the_caption_in_latex() -> None:
    text = latex_table(Table(pd.DataFrame({"n": [30]}), note="100 % of it."), "probe", "t", "T")
    assert text is not None
    assert r"\caption{T. 100 \% of it.}" in text


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
    lines = (latex_table(Table(frame, {"base": units}), "probe", "t", "T") or "").splitlines()
    assert r"erasure never flips & 50.0 \\" in lines
    assert r"max JSD & 0.5 \\" in lines


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["best_offset", "f1.low", "rate 0.5_x, .5"], [["best", "offset"], ["F1", "low"], ["rate", "0.5", "x,", ".5"]]),
        (["random_p_holm", "tau", "iou_f1 ↑"], [["random $p$", "Holm"], [r"$\tau$"], ["IoU", r"F1 $\uparrow$"]]),
        (["mass_on_[SEP]"], [["mass", "on [SEP]"]]),
        (["n", "uas.sd", "correlation.kendall"], [["$n$"], ["UAS", "SD"], ["correlation", r"Kendall's $\tau$"]]),
    ],
)
def test_headings_are_words_below_each_other(names: list[str], expected: list[list[str]]) -> None:
    lines = latex(pd.DataFrame([[0.5] * len(names)], columns=names))
    [head] = lines[lines.index(r"\toprule") + 1 : lines.index(r"\midrule")]
    stacked = [r"\\".join(words) for words in expected]
    wrapped = [rf"\begin{{tabular}}[b]{{@{{}}r@{{}}}}{one}\end{{tabular}}" if r"\\" in one else one for one in stacked]
    assert head == " & ".join(wrapped) + r" \\"


def test_only_main_tables_have_more_rows_than_a_page_and_are_cut() -> None:
    assert body(pd.DataFrame({"n": range(1, 41)})) == [[str(n)] for n in range(1, 41)]
    frame = pd.DataFrame({"n": range(41)})
    assert not latex(frame)
    cut = latex_table(Table(frame, main=("n",)), "probe", "t", "T") or ""
    assert cut.count(" \\\\\n") == 1 + 40
    assert "39 \\\\\n" in cut
    assert r"\caption{T. 1 row below these left out.}" in cut


def test_rows_without_values_are_left_out_and_counted() -> None:
    frame = pd.DataFrame(
        {"relation": ["a", "b", "c", "d"], "n": [0, 20, 0, 30], "test": [NAN, 0.5, NAN, NAN], "p": 0.1}
    )
    known = table(frame.assign(offset=[NAN, NAN, NAN, 0.25]), main=("relation", "test", "offset"), p="p")
    text = latex_table(known, "probe", "t", "T") or ""
    assert [row for row in text.splitlines() if " .10 " in row] == [
        r"b & 20 & 50.0 & .10 & -- \\",
        r"d & 30 & -- & .10 & 25.0 \\",
    ]
    assert "; 2 rows without values left out.}" in text
    assert not latex(pd.DataFrame({"relation": ["a"], "test": [NAN]}))


def wide(rows: int, columns: int) -> pd.DataFrame:
    """A label, columns with intervals of 20 letters each, n, and a column without values."""
    frame = pd.DataFrame({"ranking": ["a"] * rows})
    for name in (f"measure_{number}" for number in range(columns)):
        frame = frame.assign(**{name: -0.5, f"{name}.low": -0.75, f"{name}.high": -0.25})
    return frame.assign(n=100, empty=NAN)


def test_a_table_is_as_wide_as_it_needs_and_never_wider_than_a_page() -> None:
    def lines(rows: int, columns: int) -> tuple[str, list[str]]:
        text = latex(wide(rows, columns))
        [begin] = [line for line in text if line.startswith(r"\begin{table")]
        assert text[-1] == begin.replace("begin", "end").removesuffix("[t]")
        return begin, text[text.index(r"\midrule") + 1 : text.index(r"\bottomrule")]

    one = r"$-$50.0 {\scriptsize [$-$75.0, $-$25.0]}"
    assert lines(1, 1) == (r"\begin{table}[t]", [rf"a & 100 & {one} \\"])
    assert lines(1, 2) == (r"\begin{table}[t]", [rf"a & 100 & {one} & {one} \\"])
    assert lines(1, 3) == (r"\begin{table*}[t]", [rf"a & 100 & {one} & {one} & {one} \\"])
    assert lines(1, 4) == (r"\begin{table*}[t]", [" & ".join(["a", "100", *[one] * 4]) + r" \\"])
    assert lines(1, 9) == lines(1, 4)


def test_the_columns_that_answer_come_first_and_are_never_left_out() -> None:
    def format_cells(frame: pd.DataFrame, *main: str, **units: Unit) -> tuple[list[str], list[str]]:
        """The headings, and the names that the comment says are left out."""
        text = latex_table(table(frame, main=main, **units), "probe", "t", "T") or ""
        head = text.split("\\toprule\n")[1].split(" \\\\\n")[0]
        left = re.findall(r"^% without the columns (.*) of t.csv$", text, re.MULTILINE)
        return re.sub(
            r"\\begin\{tabular\}.*?@\{\}\}(.*?)\\end\{tabular\}", lambda found: found[1].replace(r"\\", " "), head
        ).split(" & "), left

    def measures(*numbers: int) -> list[str]:
        return [f"measure {number}" for number in numbers]

    frame = wide(1, 12)
    shown, [left] = format_cells(frame, "ranking", "measure_11", "measure_7")
    assert shown == ["ranking", *measures(7, 11), "$n$", *measures(0, 1)]
    assert left == ", ".join(f"measure_{number}" for number in (2, 3, 4, 5, 6, 8, 9, 10))
    every = ["ranking", *measures(*range(12)), "$n$"]
    assert format_cells(frame, "ranking", *(f"measure_{number}" for number in range(12))) == (every, [])
    # Nor is a difference beside its p-value; other columns are.
    more = frame.assign(p_holm=0.05, dev=0.5)
    assert format_cells(more, "ranking", "measure_11", p_holm="p") == ([*every, "$p$ Holm"], ["dev"])


def test_names_of_this_application_are_words_and_names_of_texts_are_as_they_are() -> None:
    names = ["attention_input_x_gradient", "attention_times_gradient", "iou_f1 ↑", "n"]
    assert body(pd.DataFrame({"ranking": names, "word": names})) == [
        [r"attention gradient $\times$ input", r"attention\_input\_x\_gradient"],
        [r"attention $\times$ gradient", r"attention\_times\_gradient"],
        [r"IoU F1 $\uparrow$", r"iou\_f1 $\uparrow$"],
        ["$n$", "n"],
    ]


def test_a_caption_says_what_the_columns_hold() -> None:
    def caption(frame: pd.DataFrame, **units: Unit) -> str:
        """The notes behind the title."""
        [line] = [line for line in latex(frame, **units) if line.startswith(r"\caption")]
        return line.removeprefix(r"\caption{T. ").removesuffix(".}")

    shares = pd.DataFrame({"n": [20], "uas": [0.5], "uas.low": [0.25], "uas.high": [0.75]})
    intervals, tested = (
        r"Fractions are $\times$100; 95\,\% intervals in brackets",
        "from sign flips or permutations",
    )
    assert caption(shares) == intervals
    assert caption(shares.assign(n=19)) == rf"{intervals}; *\,is fewer than 20 items"
    assert (
        caption(pd.DataFrame({"a_b": [0.5], "max_jsd": [0.25]}), a_b="nats", max_jsd="nats") == "A b, max JSD in nats"
    )
    assert caption(shares.assign(p=0.1), p="p") == f"{intervals}; $p$ {tested}"
    corrected = caption(shares[["n"]].assign(p_holm=0.1), p_holm="least_p")
    assert corrected == f"$p$ {tested}; Holm: corrected for multiple tests"


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (-0.0004, "fraction", "0.0"),
        (41790.0, "count", "41,790"),
        (-1234.5, "nats", "$-$1,234"),
        (0.00001234, "nats", r"1.234${}\times 10^{-5}$"),
        (0.00043, "p", "$<$ .001"),
        (0.0099, "p", ".0099"),
        (0.0099, "least_p", r"$\leq$ .0099"),
        (0.0346, "p", ".035"),
    ],
)
def test_numbers_are_printed_as_in_papers(value: float, unit: Unit, expected: str) -> None:
    assert body(pd.DataFrame({"x": [value]}), x=unit) == [[expected]]


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


def test_a_p_that_could_not_be_smaller_is_an_upper_bound() -> None:
    units: dict[str, Sequence[Unit]] = {name: ["least_p", "least_p", "p", "p"] for name in ("p", "p_holm")}
    frame = pd.DataFrame({"p": [2 / 1001, 2 / 100001, 0.01, NAN], "p_holm": [6 / 1001, 6 / 100001, 0.02, NAN]})
    known = Table(frame, units, main=("p", "p_holm"))
    shown = cells(data_table("t", known, "t.csv"))[1:]
    assert shown == [["≤ .0020", "≤ .0060"], ["< .001", "< .001"], [".010", ".020"], ["–", "–"]]
    printed = (latex_table(known, "probe", "t", "T") or "").splitlines()
    assert r"$\leq$ .0020 & $\leq$ .0060 \\" in printed
    assert r"$<$ .001 & $<$ .001 \\" in printed
    last = known.rows([3, 0])
    assert last.unit_rows()["p"] == ["p", "least_p"]
    assert last.frame["p"].tolist()[1] == 2 / 1001


def test_a_row_without_items_is_blank_and_not_of_few() -> None:
    table = Table(pd.DataFrame({"n": [0, 6, 20], "share": [np.nan, 0.5, 0.5]}), {"share": "fraction"})
    assert format_cells(table, missing=DASH) == {"n": ["0", "6*", "20"], "share": [DASH, "50.0", "50.0"]}
    assert list_few({}, {"t": table}) == ["1 row of t.csv"]


def test_scores_of_few_items_are_marked() -> None:
    few, enough = (bootstrap_ratio([1] * size, [1] * size, share=True) for size in (6, 20))
    assert cells(scores_table("t", {"few": few, "enough": enough}))[1:] == [
        ["few", "100.0 [54.1, 100.0]*"],
        ["enough", "100.0 [83.2, 100.0]"],
    ]


def test_shares_of_few_items_are_marked_in_a_table_without_n() -> None:
    frame = pd.DataFrame({"test": ["f1", "nats", "f1", "none"], "base": [0.5, 0.5, 0.5, np.nan], "tying": 0.25})
    of_rows: list[Unit] = ["fraction", "nats", "fraction", "fraction"]
    units = {"base": of_rows, "tying": of_rows}
    items = {"base": [6.0, 6, 20, 6], "tying": [np.nan, np.nan, 19, 20]}
    table = Table(frame, units, main=("test", "base", "tying"), items=items)
    expected = {"base": ["50.0*", "0.5", "50.0", DASH], "tying": ["25.0", "0.25", "25.0*", "25.0"]}
    assert format_cells(table, missing=DASH) == {"test": frame["test"].tolist(), **expected}
    assert format_cells(table.rows([2, 0]), missing=DASH)["tying"] == ["25.0*", "25.0"]
    text = latex_table(table, "probe", "t", "T") or ""
    assert r"*\,is fewer than 20 items" in text
    assert r"*\,is" not in (latex_table(table.rows([1]), "probe", "t", "T") or "")
