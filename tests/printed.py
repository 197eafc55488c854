"""What a terminal shows of a table, at any width."""

import math
import re

import pandas as pd
from rich.console import Console

from attention_probing.results import Result, Table
from attention_probing.results.tables import DASH, PRINTED_ROWS, data_table, format_cells

WIDTHS = (60, 80, 200)


def lines(name: str, table: Table, width: int) -> list[str]:
    """The lines of a table in a terminal of a width."""
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as printed:
        console.print(data_table(name, table, f"{name}.csv", width))
    return printed.get().splitlines()


def lost(name: str, table: Table, width: int) -> list[str]:
    """Headings and numbers of the answer that a terminal of a width does not show whole.

    Every number is looked for as often as its column has it, by itself: its neighbours may be in other lines.
    """
    shown = lines(name, table, width)
    assert max(map(len, shown)) <= width
    words = pd.Series(" ".join(shown).split()).value_counts()
    cells = format_cells(table, missing=DASH)
    wanted = [
        piece
        for column in table.main
        if pd.api.types.is_numeric_dtype(table.frame[column])
        for cell in cells[column][:PRINTED_ROWS]
        for piece in cell.split()
    ]
    counts = pd.Series(wanted, dtype=object).value_counts()
    left = [f"{piece} ({width})" for piece, number in counts.items() if words.get(piece, 0) < number]
    parts = [part for column in table.main for part in re.findall(r"[^\s_.]+", column)]
    return left + [f"{part} ({width})" for part in parts if part not in " ".join(shown)]


def lost_answers(result: Result) -> list[str]:
    """What some width does not show of the answers of a result."""
    tables = {name: table for name, table in result.tables.items() if table.main}
    return [left for width in WIDTHS for name, table in tables.items() for left in lost(name, table, width)]


def share(result: Result, name: str) -> str:
    """A share and its interval, if it is known, in a sentence, from `results.json`'s numbers."""
    value, low, high = (100 * result.numbers[f"{name}{end}"] for end in ("", ".low", ".high"))
    if math.isnan(low):
        return f"{value:.1f} %"
    return f"{value:.1f} % [{low:.1f}, {high:.1f}]"
