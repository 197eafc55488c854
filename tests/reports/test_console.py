import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from reports.console import audit_table, frame_table, scores_table

NAN = float("nan")


def cells(table: Table, width: int = 120) -> list[list[str]]:
    """The cells of each printed line between the title and the caption, without the rule."""
    table.title, table.caption = None, None
    # Lines between the columns, so that a cell can be told from the next.
    table.box = box.MINIMAL
    console = Console(width=width, color_system=None)
    with console.capture() as printed:
        console.print(table)
    lines = [line for line in printed.get().splitlines() if line.strip() and "─" not in line]
    return [[cell.strip() for cell in line.split("│")] for line in lines]


class TestScores:
    def test_fractions_with_intervals(self) -> None:
        scores = {"uas": 0.54321, "uas.low": 0.536, "uas.high": 0.55, "offset.uas": 0.309, "empty": NAN}
        assert cells(scores_table("probe", scores)) == [
            ["score", "value"],
            ["uas", "54.3 [53.6, 55.0]"],
            ["offset.uas", "30.9"],
            ["empty", "–"],
        ]

    def test_other_numbers_stay(self) -> None:
        scores = {"bits": 12345.678, "bits.low": 0.5, "bits.high": 20000.0, "change": -0.05, "one": 1.0}
        assert cells(scores_table("probe", scores))[1:] == [
            ["bits", "1.235e+04 [0.5, 2e+04]"],
            ["change", "-5.0"],
            ["one", "100.0"],
        ]

    def test_p_values_are_no_percentages(self) -> None:
        scores = {"uas": 0.5, "uas.p": 0.000999, "p": 0.25, "loop": 0.25}
        assert cells(scores_table("heads", scores))[1:] == [
            ["uas", "50.0"],
            ["uas.p", "0.000999"],
            ["p", "0.25"],
            ["loop", "25.0"],
        ]
        frame = pd.DataFrame({"p": [0.04, NAN], "accuracy": [0.04, NAN]})
        assert cells(frame_table("t", frame, "t.csv"))[1:] == [["0.04", "4.0"], ["–", "–"]]

    def test_an_unknown_interval_is_left_out(self) -> None:
        scores = {"uas": 0.5, "uas.low": NAN, "uas.high": NAN, "half.low": 0.25}
        assert cells(scores_table("probe", scores))[1:] == [["uas", "50.0"], ["half.low", "25.0"]]


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
        assert cells(frame_table("relations", frame, "relations.csv")) == [
            ["relation", "n", "accuracy", "probe", "best_offset", "bits"],
            ["[unused1]", "12", "50.0 [40.0, 60.0]", "12.5 [10.0, 20.0]", "-1", "0.5"],
            ["det", "3", "25.0", "100.0 [100.0, 100.0]", "1", "3"],
        ]

    def test_what_is_missing_is_a_dash_in_any_column(self) -> None:
        frame = pd.DataFrame({"head": ["3-9", None], "offset": pd.array([2, None], dtype="Int64")})
        assert cells(frame_table("t", frame, "t.csv"))[1:] == [["3-9", "2"], ["–", "–"]]

    def test_low_without_high_is_a_column_of_its_own(self) -> None:
        frame = pd.DataFrame({"accuracy": [0.5], "low": [0.4]})
        assert cells(frame_table("t", frame, "t.csv")) == [["accuracy", "low"], ["50.0", "40.0"]]

    def test_long_tables_are_cut_and_say_where_the_rest_is(self) -> None:
        # The last value decides, though it is not printed, that these are no fractions.
        frame = pd.DataFrame({"value": [*np.linspace(0, 1, 40), 7.0]})
        table = frame_table("long", frame, "long.csv")
        assert str(table.caption) == "11 more rows in long.csv"
        printed = cells(table)
        assert len(printed) == 1 + 30
        assert printed[2] == ["0.02564"]
        assert frame_table("short", frame.head(30), "short.csv").caption is None

    def test_of_very_many_scores_the_first_are_printed(self) -> None:
        scores = {f"s{number}{end}": 0.5 for number in range(83) for end in ("", ".low", ".high")}
        table = scores_table("t", scores)
        assert str(table.caption) == "3 more scores in results.json"
        assert len(cells(table)) == 1 + 80

    def test_wide_tables_are_cut_and_intervals_do_not_count(self) -> None:
        frame = pd.DataFrame({f"c{place}": [place + 2.0] for place in range(12)}).assign(
            **{"c0.low": 1.0, "c0.high": 3.0}
        )
        assert frame_table("t", frame, "t.csv").caption is None
        assert cells(frame_table("t", frame, "t.csv"))[1][0] == "2 [1, 3]"
        wide = pd.concat([frame.assign(more=1, and_more=2)] * 31)
        table = frame_table("t", wide, "t.csv")
        assert str(table.caption) == "1 more rows and 2 more columns in t.csv"
        assert cells(table)[0] == [f"c{number}" for number in range(12)]

    def test_five_columns_with_intervals_fit_a_plain_terminal(self) -> None:
        frame = pd.DataFrame({"relation": ["all (no punctuation)"], "n": [25094]})
        for name in ("probe", "offset"):
            frame[[name, f"{name}.low", f"{name}.high"]] = [[0.543, 0.536, 0.55]]
        frame["best_offset"] = -1
        assert len(cells(frame_table("relations", frame, "relations.csv"), width=80)) == 2

    def test_a_narrow_terminal_loses_no_digit(self) -> None:
        frame = pd.DataFrame({str(column): [0.12345, 0.98765] for column in range(8)})
        lines = cells(frame_table("wide", frame, "wide.csv"), width=36)
        columns = ["".join(line[column] for line in lines) for column in range(8)]
        assert columns == [f"{column}12.398.8" for column in range(8)]
        assert len(lines) > 3


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
