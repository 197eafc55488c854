"""Results as rich tables for the terminal.

Which numbers are fractions follows from the numbers: a score, or a column of floats, whose finite values all lie in
[−1, 1] is shown ×100 with one decimal. Other floats keep four significant digits, integers stay as they are, and nan is
a dash. The files always hold the numbers as they were computed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence, Sized

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

ROWS = 30
"""Rows of a table that are printed; the file has them all."""

DASH = "–"


def scores_table(title: str, scores: Mapping[str, float]) -> Table:
    """Lay out scores, one row each; `name.low` and `name.high` stand behind `name` as its interval."""
    table = _table(title, ["score", "value"], numbers={1})
    ends = {f"{name}{end}" for name in scores for end in (".low", ".high")}
    for name, score in scores.items():
        if name not in ends:
            bounds = [scores[f"{name}{end}"] for end in (".low", ".high") if f"{name}{end}" in scores]
            table.add_row(*_cells(name, _numbers([score, *bounds])))
    return table


def frame_table(title: str, frame: pd.DataFrame, file: str) -> Table:
    """Lay out a frame's first rows; a caption says how many more there are in `file`.

    Columns `x.low` and `x.high` become the interval of column `x`; plain `low` and `high` become that of the column of
    floats before them.
    """
    intervals = _intervals(frame)
    folded = {end for ends in intervals.values() for end in ends}
    columns = [column for column in frame.columns if column not in folded]
    numeric = {place for place, column in enumerate(columns) if pd.api.types.is_numeric_dtype(frame[column])}
    table = _table(title, [str(column) for column in columns], numbers=numeric)
    texts = [_texts(frame, [column, *intervals.get(column, ())]) for column in columns]
    for cells in zip(*texts, strict=True):
        table.add_row(*_cells(*cells))
    if len(frame) > ROWS:
        table.caption = Text(f"{len(frame) - ROWS} more rows in {file}")
    return table


def audit_table(audit: Mapping[str, object]) -> Table:
    """Lay out the audit, one row per entry; entries inside an entry are named by both, joined with a dot."""
    table = _table("audit", ["what", "value"], numbers={1})
    for name, value in _flat(audit):
        table.add_row(*_cells(name, value))
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


def _intervals(frame: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Find the columns that hold the ends of another column's interval."""
    found: dict[str, tuple[str, str]] = {}
    before: str | None = None
    for column in frame.columns:
        if column == "low" and "high" in frame.columns and before is not None:
            found[before] = ("low", "high")
        elif pd.api.types.is_float_dtype(frame[column]) and column != "high":
            before = column
            if {f"{column}.low", f"{column}.high"} <= set(frame.columns):
                found[column] = (f"{column}.low", f"{column}.high")
    return found


def _texts(frame: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Write the first rows of a column, with the ends of its interval where `columns` names them."""
    column = frame[columns[0]]
    if not pd.api.types.is_float_dtype(column):
        return [str(value) for value in column.head(ROWS)]
    # All rows decide whether these are fractions, not only those that are printed.
    fractions = _are_fractions(column.to_numpy(dtype=np.float64))
    values = frame[list(columns)].head(ROWS).to_numpy(dtype=np.float64)
    return [_numbers(row.tolist(), fractions) for row in values]


def _numbers(values: Sequence[float], fractions: bool | None = None) -> str:
    """Write a value, and the ends of its interval behind it when they come along and are known."""
    if fractions is None:
        fractions = _are_fractions(np.asarray(values, dtype=np.float64))
    first, *bounds = (_number(value, fractions) for value in values)
    return f"{first} [{bounds[0]}, {bounds[1]}]" if len(bounds) == 2 and DASH not in bounds else first


def _number(value: float, fraction: bool) -> str:
    if math.isnan(value):
        return DASH
    return f"{100 * value:.1f}" if fraction else f"{value:.4g}"


def _are_fractions(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bool:
    return bool((np.abs(values[np.isfinite(values)]) <= 1).all())


def _flat(entries: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in entries.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        elif isinstance(value, Sized) and not isinstance(value, str) and len(value) > 5:
            yield f"{above}{name}", f"{len(value)} entries"
        else:
            yield f"{above}{name}", str(value)
