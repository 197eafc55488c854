"""Parts of a page: tables that sort, filter and copy, figures, facts, and texts with a button that copies them."""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from pages import Packed
from reports.tables import DASH, Latex, latex_lines, number, written
from results import Table

MOST = 50_000  # rows of a table that a page may hold
ROWS = 200  # of a table that are elements of the page; sorting, filtering and copying are of all
FEW = 15  # rows of a table that has no filter
LONG = 40  # rows from which on a table scrolls by itself
LISTED = 20  # entries of a list of facts
BESIDE = 480  # pixels of a figure that stands beside another
SCALE = 1.3  # of a figure on the screen, whose letters are as small as in print
SIGNS: Mapping[str, str] = {"fraction": "×100", "nats": "nats", "bits": "bits"}


@dataclass(frozen=True)
class ShownTable:
    """A table as it stands on a page: numbers with their units, and the texts of its file.

    Attributes:
        links: Addresses for the cells of a column; empty where a cell has none.
        rows: Number of rows of the file, where this is its beginning.
    """

    name: str
    file: str
    table: Table
    raw: pd.DataFrame
    experiment: str
    links: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rows: int | None = None

    def __len__(self) -> int:
        return len(self.raw) if self.rows is None else self.rows

    @cached_property
    def cells(self) -> dict[str, list[str]]:
        """The cells of the shown columns; intervals are behind their numbers."""
        return {str(name): cells for name, cells in written(self.table, missing=DASH).items()}

    @cached_property
    def numeric(self) -> dict[str, bool]:
        """Which of the shown columns are numbers."""
        return {name: pd.api.types.is_numeric_dtype(self.table.frame[name]) for name in self.cells}

    @cached_property
    def latex(self) -> Latex | None:
        """Its lines of LaTeX; None where the columns are too many for a page of print."""
        return latex_lines(self.table, self.experiment, self.name)

    @cached_property
    def packed(self) -> Packed:
        """What the scripts of the page read: cells, the texts of the file, and lines of LaTeX."""
        return self._packed(len(self.raw))

    @cached_property
    def beginning(self) -> Packed:
        """The same of the first rows."""
        return self._packed(ROWS)

    def _packed(self, rows: int) -> Packed:
        raw = {str(name): column.tolist()[:rows] for name, column in self.raw.items()}
        shown = {name: cells[:rows] for name, cells in self.cells.items()}
        latex = self.latex
        content = {
            "names": list(shown),
            "numeric": list(self.numeric.values()),
            "cells": [None if cells == raw[name] else cells for name, cells in shown.items()],  # None: as in the file
            "columns": list(raw),
            "raw": list(raw.values()),
            "links": [list(self.links[name]) if name in self.links else None for name in shown],
            "latex": latex and {"head": latex.head, "rows": latex.rows[:rows], "foot": latex.foot},
        }
        return Packed(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode())


@dataclass(frozen=True)
class Drawing:
    """A figure: its picture, the texts that stand for it as HTML, or neither where its file cannot be read."""

    name: str
    caption: str
    file: str
    svg: str = ""
    texts: str = ""
    numbers: ShownTable | None = None

    @cached_property
    def cost(self) -> int:
        """Characters of a page, about."""
        return cost(zlib.compress(self.svg.encode())) + len(self.texts)

    @property
    def wide(self) -> bool:
        """Whether it takes both columns of a page of print."""
        return self.size is None or self.size[0] > BESIDE

    @cached_property
    def size(self) -> tuple[int, int] | None:
        """Width and height in pixels, so that nothing moves when it is drawn; None where it does not say them."""
        words = self.svg[self.svg.find("<svg") :].partition(">")[0].split('"')
        found = {name.strip(): value for name, value in zip(words[::2], words[1::2], strict=False)}
        try:
            width, height = (round(float(found[side].removesuffix("pt")) / 72 * 96) for side in ("width=", "height="))
        except (KeyError, ValueError):
            return None
        return round(width * SCALE), round(height * SCALE)

    @property
    def html(self) -> str:
        """The picture, which the scripts of the page fill where it is a vector graphic, or the texts."""
        sides = 'width="{}" height="{}"'.format(*self.size) if self.size else ""
        image = f'alt="{escape(self.caption)}" {sides}'
        if self.svg:
            return f'<div class="card"><img {image} data-figure="{escape(self.name)}"></div>'
        return self.texts


def typed(raw: pd.DataFrame, described: Mapping[str, Any] | None) -> Table:
    """Make a table of the texts of a CSV file; without a description what looks like a number is one, in no unit."""
    frame = raw.copy()
    for name in list(raw) if described is None else [name for name in described["numeric"] if name in raw]:
        try:
            frame[name] = pd.to_numeric(raw[name].replace("", np.nan))
        except (ValueError, TypeError):
            continue  # words, or a file that was changed
    numbers = [str(name) for name in frame if pd.api.types.is_numeric_dtype(frame[name])]
    frame = frame.where(frame != "", None)
    if described is None:
        floats = [name for name in numbers if pd.api.types.is_float_dtype(frame[name])]
        return Table(frame, dict.fromkeys(floats, "ratio"))
    units = {name: unit for name, unit in described["units"].items() if name in numbers}
    frame = frame.astype(dict.fromkeys(units, np.float64))
    return Table(frame, units, described["interval"] if described["interval"] in numbers else None)


def table_html(view: ShownTable, block: str, *, whole: bool = True, filled: bool = True) -> str:
    """A table with its tools, whose rows the scripts read from `block`.

    Without `whole` the block has the first rows alone; without `filled` the scripts make the rows.
    """
    units = {name: unit for name, unit in view.table.units.items() if isinstance(unit, str)}
    heads = "".join(
        f'<th scope="col" aria-sort="none"{_number(view.numeric[name])}><button type="button">{escape(name)}'
        f"{_sign(units.get(name, ''))}</button></th>"
        for name in view.cells
    )
    known, file, long = escape(view.name), escape(view.file), " long" if len(view) > LONG else ""
    search = f'<label>Filter <input type="search" aria-label="Filter the rows of {known}"></label>'
    latex = '<button type="button" data-do="latex">Copy as LaTeX</button>' if view.latex else ""
    more = "" if whole else f'<span class="more">; the others are in {file}</span>'
    return (
        f'<div class="table" data-block="{block}" data-name="{known}" data-file="{file}">\n<div class="tools">'
        f'{search if len(view) > FEW else ""}<button type="button" data-do="tsv">Copy as TSV</button>{latex}'
        f'<button type="button" data-do="csv">Save as CSV</button><span role="status"></span></div>\n'
        f'<div class="scroll{long}" tabindex="0" role="region" aria-label="Table {known}">\n<table>\n'
        f'<caption><span class="count">{_count(len(view))}</span>{more}</caption>\n<thead><tr>{heads}</tr></thead>\n'
        f"<tbody>{chr(10).join(_rows(view)) if filled else ''}</tbody>\n</table>\n</div>\n</div>"
    )


def _rows(view: ShownTable) -> Iterator[str]:
    """The first rows as HTML; the first cell of a row is its head, unless it is a number."""
    for place, row in enumerate(zip(*(cells[:ROWS] for cells in view.cells.values()), strict=True)):
        cells = []
        for index, (name, cell) in enumerate(zip(view.cells, row, strict=True)):
            text, numeric = escape(cell), view.numeric[name]
            if name in view.links and (address := view.links[name][place]):
                text = f'<a href="{escape(address)}">{text}</a>'
            cells.append(f'<th scope="row">{text}' if not index and not numeric else f"<td{_number(numeric)}>{text}")
        yield f"<tr>{''.join(cells)}"


def _number(numeric: bool) -> str:
    return " class=n" if numeric else ""


def _sign(unit: str) -> str:
    return f" <small>{SIGNS[unit]}</small>" if unit in SIGNS else ""


def rows_of(rows: int) -> str:
    """A number of rows in words."""
    return f"{rows:,} row{'' if rows == 1 else 's'}"


def _count(rows: int) -> str:
    return rows_of(rows) if rows <= ROWS else f"{ROWS:,} of {rows_of(rows)} shown"


def counts(entries: Mapping[str, Any]) -> str:
    """Counts as `facts`; those of zero are behind a button."""
    found = list(_flat(entries))
    zeros = [(name, text) for name, text in found if text == "0"]
    shown = _facts([(name, text) for name, text in found if text != "0"])
    if zeros:
        number = "1 count that is 0" if len(zeros) == 1 else f"{len(zeros)} counts that are 0"
        shown += f"<details><summary>{number}</summary>{_facts(zeros)}</details>"
    return shown


def facts(entries: Mapping[str, Any]) -> str:
    """Nested facts as a table of names, joined with dots, and values."""
    return _facts(list(_flat(entries)))


def _facts(found: Sequence[tuple[str, str]]) -> str:
    rows = "\n".join(f'<tr><th scope="row">{escape(name)}<td>{escape(text)}' for name, text in found)
    return f'<table class="facts">\n{rows}\n</table>' if rows else ""


def _flat(entries: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in entries.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        elif isinstance(value, list):
            more = f" and {len(value) - LISTED} more" if len(value) > LISTED else ""
            yield f"{above}{name}", ", ".join(map(str, value[:LISTED])) + more or "none"
        else:
            yield f"{above}{name}", number(value, "ratio", missing=DASH) if isinstance(value, float) else str(value)


def copied(text: str, label: str) -> str:
    """A text with a button that copies it."""
    return (
        f'<div class="copied"><pre tabindex="0" role="region" aria-label="{escape(label)}">{escape(text)}</pre>'
        f'<button type="button" data-do="copy">Copy</button><span role="status"></span></div>'
    )


def identifier(*parts: str) -> str:
    """An id of letters, digits, dots, dashes and underscores; other signs by their numbers, between colons."""
    signs = {" ": "-"}
    return "-".join(
        "".join(sign if sign.isalnum() or sign in "._-" else signs.get(sign, f":{ord(sign):x}:") for sign in part)
        for part in parts
    )


def beginning(table: Table, rows: int) -> Table:
    """The first rows of a table."""
    units = {name: unit if isinstance(unit, str) else list(unit)[:rows] for name, unit in table.units.items()}
    return Table(table.frame.head(rows), units, table.interval)


def cost(packed: bytes) -> int:
    """Characters of a page that packed content takes."""
    return 4 * len(packed) // 3
