"""Parts of pages: tables that sort, filter and copy, figures, coloured texts, facts, and texts that can be copied."""

import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from pages import Packed, document
from pages.shell import resource
from reports.tables import DASH, Latex, flat, latex_lines, number, written, zeros_in_words
from results import ColouredText, ColouredTexts, Table
from results.errors import counted

MOST = 50_000  # rows of a table that a page may hold
ROWS = 200  # of a table that are elements of the page; sorting, filtering and copying are of all
FEW = 15  # rows of a table that has no filter
LONG = 40  # rows from which on a table scrolls by itself
LISTED = 20  # entries of a list of facts
BESIDE = 480  # pixels of a figure that stands beside another
FULL = 10  # multiple of the even share of a row of texts from which a word has the full colour
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
        """True for each shown column of numbers."""
        return {name: pd.api.types.is_numeric_dtype(self.table.frame[name]) for name in self.cells}

    @cached_property
    def latex(self) -> Latex | None:
        """Its lines of LaTeX; None where the columns are too many for a page of print."""
        return latex_lines(self.table, self.experiment, self.name)

    @cached_property
    def packed(self) -> Packed:
        """The data for the scripts of the page: cells, the texts of the file, and lines of LaTeX."""
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
    """A figure: its vector graphic, the texts that stand for it as HTML, or neither where it cannot be read."""

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
        """True if it takes both columns of a printed page."""
        return self.size is None or self.size[0] > BESIDE

    @cached_property
    def size(self) -> tuple[int, int] | None:
        """Width and height in pixels, so that nothing moves when it is drawn; None where it does not say them."""
        found = re.search(r'<svg[^>]* width="([\d.]+)pt" height="([\d.]+)pt"', self.svg)
        if found is None:
            return None
        width, height = (round(float(side) / 72 * 96 * SCALE) for side in found.groups())
        return width, height

    @property
    def html(self) -> str:
        """The picture, which the scripts of the page fill where it is a vector graphic, or the texts."""
        if not self.svg:
            return self.texts
        sides = 'width="{}" height="{}"'.format(*self.size) if self.size else ""
        image = f'<img alt="{escape(self.caption)}" {sides} data-figure="{escape(self.name)}">'
        return f'<div class="card">{image}</div>'


def typed(raw: pd.DataFrame, described: Mapping[str, Any]) -> Table:
    """Make a table of the first texts of a CSV file, or of all, by what `results.json` says of its columns."""
    units: dict[str, Any] = {
        name: unit if isinstance(unit, str) else unit[: len(raw)] for name, unit in described["units"].items()
    }
    numeric = [name for name in described["numeric"] if name in raw]
    frame = raw.assign(**{name: pd.to_numeric(raw[name].replace("", np.nan)) for name in numeric})
    frame = frame.where(frame != "", None)
    return Table(frame.astype(dict.fromkeys(units, np.float64)), units, described["interval"])


def table_html(view: ShownTable, block: str, *, whole: bool = True, filled: bool = True) -> str:
    """Write a table with its tools, whose rows the scripts read from `block`.

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
    """Yield the first rows as HTML; the first cell of a row is its head, unless it is a number."""
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


def _count(rows: int) -> str:
    return counted(rows, "row") if rows <= ROWS else f"{ROWS:,} of {counted(rows, 'row')} shown"


def html_page(figure: ColouredTexts) -> str:
    """Write a page of nothing but the texts."""
    body = f'<main class="texts">\n<h1>{escape(figure.title)}</h1>\n{html_texts(figure, 2)}\n</main>'
    return document(figure.title, body, styles=[resource("texts.css")])


def html_texts(figure: ColouredTexts, level: int) -> str:
    """Write a heading of a level for each text and its words once per row; the title of a word holds its number.

    The opacity of a word is its share of the total magnitude of the row, relative to the even share, 1/n of n words:
    even attention is pale in texts of any length.
    """
    return "\n".join([_text_legend(figure), *(_text_section(text, level) for text in figure.texts)])


def _text_legend(figure: ColouredTexts) -> str:
    """Write the legend of the colours; values below zero and missing values are in it only where there are any."""
    numbers = [value for text in figure.texts for values in text.rows.values() for value in values]
    below = [-1.0, -0.5, -0.1] if any(value < 0 for value in numbers) else []
    samples = " ".join(f"<span {_looks(step)}>{_value(FULL * step)}×</span>" for step in (*below, 0.0, 0.1, 0.5, 1.0))
    missing = ' <span class="missing">no value</span>' if any(math.isnan(value) for value in numbers) else ""
    return (
        f'<p class="legend">Colour: share of the total magnitude of the row, in multiples of the even share (1/n of n '
        f"words); full from {FULL}× on: {samples}{missing}</p>"
    )


def _text_section(text: ColouredText, level: int) -> str:
    rows = "\n".join(_text_row(name, text.words, values) for name, values in text.rows.items())
    heading = escape(": ".join(filter(None, (text.name, text.caption))))
    # dir="auto": a text may run from right to left.
    return f'<section class="text">\n<h{level} dir="auto">{heading}</h{level}>\n<table>\n{rows}\n</table>\n</section>'


def _text_row(name: str, words: Sequence[str], values: Sequence[float]) -> str:
    magnitudes = [abs(value) for value in values if not math.isnan(value)]
    even = sum(magnitudes) / max(len(magnitudes), 1)
    spans = []
    for word, value in zip(words, values, strict=True):
        if math.isnan(value):
            looks, number = 'class="missing"', "no value"
        else:
            looks, number = _looks(value / (FULL * even or 1.0)), _value(value)
        spans.append(f'<span {looks} title="{escape(name)}: {number}">{escape(word)}</span>')
    largest = max(magnitudes, default=0.0)
    times = f", {_value(largest / even)}× even" if even else ""
    scale = f"largest {_value(largest)}{times}" if magnitudes else "no values"
    return f'<tr><th scope="row">{escape(name)}<small>{scale}</small></th>\n<td dir="auto">{" ".join(spans)}</td></tr>'


def _looks(strength: float) -> str:
    """Write the class and style of a value relative to the magnitude that has the full colour."""
    return f'class="{"above" if strength >= 0 else "below"}" style="--share: {min(abs(strength), 1.0):.3f}"'


def _value(value: float) -> str:
    return f"{'−' if value < 0 else ''}{abs(value):.3g}"


def counts(entries: Mapping[str, Any]) -> str:
    """Write counts as `facts`; counts of zero are behind a button."""
    found = flat(entries)
    zeros = {name: count for name, count in found.items() if str(count) == "0"}
    shown = facts({name: count for name, count in found.items() if name not in zeros})
    hidden = f"<details><summary>{zeros_in_words(len(zeros))}</summary>{facts(zeros)}</details>"
    return shown + hidden if zeros else shown


def facts(entries: Mapping[str, Any]) -> str:
    """Write nested facts as a table of names, joined with dots, and values."""
    found = ((name, _fact(value)) for name, value in flat(entries).items())
    rows = "\n".join(f'<tr><th scope="row">{escape(name)}<td>{escape(text)}' for name, text in found)
    return f'<table class="facts">\n{rows}\n</table>' if rows else ""


def _fact(value: object) -> str:
    if isinstance(value, list):
        more = f" and {len(value) - LISTED} more" if len(value) > LISTED else ""
        return ", ".join(map(str, value[:LISTED])) + more or "none"
    return number(value, "ratio", missing=DASH) if isinstance(value, float) else str(value)


def copied(text: str, label: str) -> str:
    """Write a text with a button that copies it."""
    return (
        f'<div class="copied"><pre tabindex="0" role="region" aria-label="{escape(label)}">{escape(text)}</pre>'
        f'<button type="button" data-do="copy">Copy</button><span role="status"></span></div>'
    )


def identifier(*parts: str) -> str:
    """Make an id of letters, digits, dots, dashes and underscores; other signs become their numbers between colons."""
    signs = {" ": "-"}
    return "-".join(
        "".join(sign if sign.isalnum() or sign in "._-" else signs.get(sign, f":{ord(sign):x}:") for sign in part)
        for part in parts
    )


def cost(packed: bytes) -> int:
    """Return the number of characters that packed content takes on a page."""
    return 4 * len(packed) // 3
