import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from reports.console import audit_table, data_table, scores_table
from results import Estimate, Unit
from tests.reports.tables import table

NAN = float("nan")


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


def test_scores_stand_with_their_intervals() -> None:
    scores = {
        "uas": Estimate(0.54321, 0.536, 0.55, unit="fraction"),
        "offset.uas": Estimate(0.309, unit="fraction"),
        "empty": Estimate(NAN, unit="bits"),
        "bits": Estimate(12345.678, 0.5, 20000.0, unit="bits"),
        "p": Estimate(0.25, unit="p"),
    }
    assert cells(scores_table("probe", scores)) == [
        ["score", "value"],
        ["uas", "54.3 [53.6, 55.0]"],
        ["offset.uas", "30.9"],
        ["empty", "–"],
        ["bits", "1.235e+04 [0.5, 2e+04]"],
        ["p", "0.25"],
    ]


def test_of_very_many_scores_the_first_are_printed() -> None:
    shown = scores_table("t", {f"s{number}": Estimate(0.5, 0.4, 0.6, unit="fraction") for number in range(83)})
    assert str(shown.caption) == "3 more scores in results.json"
    assert len(cells(shown)) == 1 + 80


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
            ["[unused1]", "12", "50.0 [40.0, 60.0]", "12.5 [10.0, 20.0]", "-1", "0.5"],
            ["det", "3", "25.0", "100.0 [100.0, 100.0]", "1", "3"],
        ]

    def test_what_is_missing_is_a_dash_in_any_column(self) -> None:
        frame = pd.DataFrame({"head": ["3-9", None], "offset": pd.array([2, None], dtype="Int64")})
        assert cells(data_table("t", table(frame), "t.csv"))[1:] == [["3-9", "2"], ["–", "–"]]

    def test_long_tables_are_cut_and_say_where_the_rest_is(self) -> None:
        frame = pd.DataFrame({"value": [*np.linspace(0, 1, 40), 7.0]})
        shown = data_table("long", table(frame, value="nats"), "long.csv")
        assert str(shown.caption) == "11 more rows in long.csv"
        printed = cells(shown)
        assert len(printed) == 1 + 30
        assert printed[2] == ["0.02564"]
        assert data_table("short", table(frame.head(30)), "short.csv").caption is None

    def test_wide_tables_are_cut_and_intervals_do_not_count(self) -> None:
        frame = pd.DataFrame({f"c{place}": [place + 2.0] for place in range(12)}).assign(
            **{"c0.low": 1.0, "c0.high": 3.0}
        )
        units: dict[str, Unit] = {f"c{place}": "count" for place in range(12)}
        assert data_table("t", table(frame, **units), "t.csv").caption is None
        assert cells(data_table("t", table(frame, **units), "t.csv"))[1][0] == "2 [1, 3]"
        wide = pd.concat([frame.assign(more=1, and_more=2)] * 31)
        shown = data_table("t", table(wide, **units), "t.csv")
        assert str(shown.caption) == "1 more rows and 2 more columns in t.csv"
        assert cells(shown)[0] == [f"c{number}" for number in range(12)]

    def test_five_columns_with_intervals_fit_a_plain_terminal(self) -> None:
        frame = pd.DataFrame({"relation": ["all (no punctuation)"], "n": [25094]})
        for name in ("probe", "offset"):
            frame[[name, f"{name}.low", f"{name}.high"]] = [[0.543, 0.536, 0.55]]
        frame["best_offset"] = -1
        assert len(cells(data_table("relations", table(frame), "relations.csv"), width=80)) == 2

    def test_a_narrow_terminal_loses_no_digit(self) -> None:
        frame = pd.DataFrame({str(column): [0.12345, 0.98765] for column in range(8)})
        lines = cells(data_table("wide", table(frame), "wide.csv"), width=36)
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
