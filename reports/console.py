"""Results as rich tables for the terminal, with numbers in the form of `reports.numbers`."""

from collections.abc import Iterator, Mapping, Sequence, Sized

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from reports.numbers import are_fractions, number, written

ROWS = 30
"""Rows of a table that are printed; the file has them all."""

SCORES = 80
"""Scores that are printed; `results.json` has them all."""

COLUMNS = 12
"""Columns of a table that are printed, intervals not counted; the file has them all."""

DASH = "–"


def scores_table(title: str, scores: Mapping[str, float]) -> Table:
    """Lay out scores, one row each; `name.low` and `name.high` stand behind `name` as its interval."""
    table = _table(title, ["score", "value"], numbers={1})
    ends = {f"{name}{end}" for name in scores for end in (".low", ".high")}
    names = [name for name in scores if name not in ends]
    for name in names[:SCORES]:
        values = [scores[f"{name}{end}"] for end in ("", ".low", ".high") if f"{name}{end}" in scores]
        table.add_row(*_cells(name, _interval(values, are_fractions(name, np.asarray(values)))))
    if len(names) > SCORES:
        table.caption = Text(f"{len(names) - SCORES} more scores in results.json")
    return table


def frame_table(title: str, frame: pd.DataFrame, file: str) -> Table:
    """Lay out a frame's first rows and columns; a caption says how many more there are in `file`.

    Columns `x.low` and `x.high` become the interval of column `x`; plain `low` and `high` become that of the column of
    floats before them.
    """
    cells = written(frame, missing=DASH)  # of all rows, though not all are printed: they decide what is ×100
    columns = list(cells)[:COLUMNS]
    numeric = {place for place, column in enumerate(columns) if pd.api.types.is_numeric_dtype(frame[column])}
    table = _table(title, [str(column) for column in columns], numbers=numeric)
    for row in zip(*(cells[column][:ROWS] for column in columns), strict=True):
        table.add_row(*_cells(*row))
    more = {"rows": len(frame) - ROWS, "columns": len(cells) - COLUMNS}
    if left := " and ".join(f"{number} more {kind}" for kind, number in more.items() if number > 0):
        table.caption = Text(f"{left} in {file}")
    return table


def audit_table(audit: Mapping[str, object]) -> Table:
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


def _table(title: str, columns: Sequence[str], numbers: set[int]) -> Table:
    # One rule under the head, two spaces between columns: five columns with intervals fit into 80 characters.
    table = Table(
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


def _interval(values: Sequence[float], fractions: bool) -> str:
    """Write a value, and the ends of its interval behind it when they come along and are known."""
    first, *bounds = (number(value, fractions, missing=DASH) for value in values)
    return f"{first} [{bounds[0]}, {bounds[1]}]" if len(bounds) == 2 and DASH not in bounds else first


def _flat(entries: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in entries.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        elif isinstance(value, Sized) and not isinstance(value, str) and len(value) > 5:
            yield f"{above}{name}", f"{len(value)} entries"
        else:
            yield f"{above}{name}", f"{value:.4g}" if isinstance(value, float) else str(value)
