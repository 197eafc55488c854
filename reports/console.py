"""Results as rich tables for the terminal, with numbers in the form of `reports.numbers`."""

from collections.abc import Iterator, Mapping, Sequence, Sized

import pandas as pd
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from reports.numbers import with_interval, written
from results import Estimate, Table

ROWS = 30
"""Rows of a table that are printed; the file has them all."""

SCORES = 80
"""Scores that are printed; `results.json` has them all."""

COLUMNS = 12
"""Columns of a table that are printed, intervals not counted; the file has them all."""

DASH = "–"


def scores_table(title: str, scores: Mapping[str, Estimate]) -> RichTable:
    """Lay out scores, one row each, with their intervals."""
    table = _table(title, ["score", "value"], numbers={1})
    for name, score in list(scores.items())[:SCORES]:
        table.add_row(*_cells(name, with_interval(score, missing=DASH)))
    if len(scores) > SCORES:
        table.caption = Text(f"{len(scores) - SCORES} more scores in results.json")
    return table


def data_table(title: str, table: Table, file: str) -> RichTable:
    """Lay out a table's first rows and columns; a caption says how many more there are in `file`."""
    frame, cells = table.frame, written(table, missing=DASH)
    columns = list(cells)[:COLUMNS]
    numeric = {place for place, column in enumerate(columns) if pd.api.types.is_numeric_dtype(frame[column])}
    shown = _table(title, [str(column) for column in columns], numbers=numeric)
    for row in zip(*(cells[column][:ROWS] for column in columns), strict=True):
        shown.add_row(*_cells(*row))
    more = {"rows": len(frame) - ROWS, "columns": len(cells) - COLUMNS}
    if left := " and ".join(f"{number} more {kind}" for kind, number in more.items() if number > 0):
        shown.caption = Text(f"{left} in {file}")
    return shown


def audit_table(audit: Mapping[str, object]) -> RichTable:
    """Lay out the audit, one row per entry; entries inside an entry are named by both, joined with a dot.

    Counts of 0 are not shown: there are many, and they would hide the others. A caption says how many there are.
    """
    table = _table("audit", ["what", "value"], numbers={1})
    entries = list(_flat(audit))
    for name, value in entries:
        if value != "0":
            table.add_row(*_cells(name, value))
    if nothing := sum(value == "0" for _, value in entries):
        counts = "1 count that is 0" if nothing == 1 else f"{nothing} counts that are 0"
        table.caption = Text(f"without {counts}, which results.json has")
    return table


def _table(title: str, columns: Sequence[str], numbers: set[int]) -> RichTable:
    # One rule under the head, two spaces between columns: five columns with intervals fit into 80 characters.
    table = RichTable(
        title=Text(title, style="bold"),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for place, column in enumerate(columns):
        # In a narrow terminal cells wrap: the default would cut numbers short.
        table.add_column(Text(column), justify="right" if place in numbers else "left", overflow="fold")
    return table


def _cells(*texts: str) -> Iterator[Text]:
    """Protect the texts from rich, which would take a token such as `[unused1]` for markup and drop it."""
    return (Text(text) for text in texts)


def _flat(entries: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in entries.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        elif isinstance(value, Sized) and not isinstance(value, str) and len(value) > 5:
            yield f"{above}{name}", f"{len(value)} entries"
        else:
            yield f"{above}{name}", f"{value:.4g}" if isinstance(value, float) else str(value)
