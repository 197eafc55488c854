"""HTML page of a run or a sweep, made from the files in its folder: `python -m reports.page RUN [--out page.html]`.

The page is one file that works without a network, with scores, figures and their numbers, tables, audit, run
description, config and citations. It has at most `LIMIT` bytes: what is left out is named on it, with the file that has
it.
"""

import argparse
import json
import math
import os
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import yaml

from corpora.registry import CORPORA
from pages import Packed, document
from pages.shell import resource
from reports.reader import NAN, Record, RecordError, find_record, rows_of
from reports.tables import DASH, LATEX_ROWS, Latex, flat, latex_lines, number, written, zeros_in_words
from results import ColouredText, ColouredTexts, Table, Unit, command
from results.errors import UserError, counted
from results.estimates import ENDS
from results.files import write_atomically
from training.config import leaves, read_yaml

PAGE = "page.html"
MOST = 50_000  # rows of a table that a page may hold
ROWS = 200  # of a table that are elements of the page; sorting, filtering and copying are of all
FEW = 15  # rows of a table that has no filter
LONG = 40  # rows from which on a table scrolls by itself
LISTED = 20  # entries of a list of facts
BESIDE = 480  # pixels of a figure that stands beside another
FULL = 10  # multiple of the even share of a row of texts from which a word has the full colour
SCALE = 1.3  # of a figure on the screen, whose letters are as small as in print
SIGNS: Mapping[str, str] = {"fraction": "×100", "nats": "nats", "bits": "bits"}
LIMIT = 2_000_000  # bytes of a page
MANY = 12  # entries that are listed behind a button
PLANS = Path(__file__).resolve().parent.parent / "configs"
CORPUS_OPTIONS = ("corpus", "treebank", "documents")
APPLICATION = "attention-probing"

UNITS = (
    f"Fractions are shown ×100: 54.3 is 0.543. Brackets hold the 95 % interval, sd is the standard deviation over "
    f"seeds, p is two-sided. Nats and bits are marked, other numbers are plain; {DASH} is undefined. Copies have the "
    "numbers as they were computed."
)
OMITTED = {"numbers": "numbers of the figure", "figure": "figure", "rows": f"rows after the first {ROWS} of the table"}


@dataclass(frozen=True)
class ShownTable:
    """A table on a page: its numbers with units, and the strings of its CSV file.

    Attributes:
        name: name of the table.
        file: name of its CSV file.
        table: rows and units.
        raw: the rows as strings of the CSV file.
        experiment: name of the experiment.
        links: addresses for the cells of a column; empty for a cell without a link.
        rows: number of rows of the file, if this table has only the first; else None.
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
        """Formatted cells of this table by column; an interval is in the cell of its number."""
        return {str(name): cells for name, cells in written(self.table, missing=DASH).items()}

    @cached_property
    def numeric(self) -> dict[str, bool]:
        """True for numeric columns, by column of this table."""
        return {name: pd.api.types.is_numeric_dtype(self.table.frame[name]) for name in self.cells}

    @cached_property
    def latex(self) -> Latex | None:
        """LaTeX lines of this table; None if it has too many columns for a printed page."""
        return latex_lines(self.table, self.experiment, self.name)

    @cached_property
    def packed(self) -> Packed:
        """Data of this table for the scripts of the page: cells, strings of the file, and LaTeX lines."""
        return self._packed(len(self.raw))

    @cached_property
    def beginning(self) -> Packed:
        """As `packed`, for the first rows of the table only."""
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
class ShownFigure:
    """A figure on a page: an SVG, coloured texts as HTML, or nothing if its file cannot be read.

    Attributes:
        name: name of the figure.
        caption: caption.
        file: name of its file.
        svg: content of the SVG file; empty for texts.
        texts: coloured texts as HTML; empty for an SVG.
        numbers: table of the numbers that it shows, if any.
    """

    name: str
    caption: str
    file: str
    svg: str = ""
    texts: str = ""
    numbers: ShownTable | None = None

    @cached_property
    def cost(self) -> int:
        """Approximate number of characters of this figure in the HTML."""
        return cost(zlib.compress(self.svg.encode())) + len(self.texts)

    @property
    def wide(self) -> bool:
        """True if the figure takes both columns of a printed page."""
        return self.size is None or self.size[0] > BESIDE

    @cached_property
    def size(self) -> tuple[int, int] | None:
        """Width and height of this figure in pixels, reserved before it is drawn; None if the SVG lacks them."""
        found = re.search(r'<svg[^>]* width="([\d.]+)pt" height="([\d.]+)pt"', self.svg)
        if found is None:
            return None
        width, height = (round(float(side) / 72 * 96 * SCALE) for side in found.groups())
        return width, height

    @property
    def html(self) -> str:
        """HTML of this figure: the texts, or for an SVG an image that the scripts of the page fill."""
        if not self.svg:
            return self.texts
        sides = 'width="{}" height="{}"'.format(*self.size) if self.size else ""
        image = f'<img alt="{escape(self.caption)}" {sides} data-figure="{escape(self.name)}">'
        return f'<div class="card">{image}</div>'


def typed(raw: pd.DataFrame, described: Mapping[str, Any]) -> Table:
    """Convert rows of a CSV file, read as strings, to a table with units.

    Args:
        raw: the rows.
        described: description of the columns in `results.json`, by `reports.writer.described`.
    """
    units: dict[str, Any] = {
        name: unit if isinstance(unit, str) else unit[: len(raw)] for name, unit in described["units"].items()
    }
    numeric = [name for name in described["numeric"] if name in raw]
    frame = raw.assign(**{name: pd.to_numeric(raw[name].replace("", np.nan)) for name in numeric})
    frame = frame.where(frame != "", None)
    return Table(frame.astype(dict.fromkeys(units, np.float64)), units, described["interval"])


def table_html(view: ShownTable, block: str, *, whole: bool = True, filled: bool = True) -> str:
    """Return a table as HTML, with buttons to filter, copy and save it.

    Args:
        view: the table.
        block: id of the element with the data of the table, which the scripts read.
        whole: True if these data have all rows, False if only the first.
        filled: include the first rows in the HTML; otherwise the scripts create them.
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
    """Return a page with coloured texts alone, as HTML."""
    body = f'<main class="texts">\n<h1>{escape(figure.title)}</h1>\n{html_texts(figure, 2)}\n</main>'
    return document(figure.title, body, styles=[resource("texts.css")])


def html_texts(figure: ColouredTexts, level: int) -> str:
    """Return coloured texts as HTML, each with a heading and, once per row of values, its words.

    The opacity of a word is its share of the total magnitude of the row, relative to the even share, 1/n of n words:
    even attention is pale in texts of any length. The tooltip of a word shows its value.

    Args:
        figure: the texts.
        level: level of the headings, 2 for `<h2>`.
    """
    return "\n".join([_text_legend(figure), *(_text_section(text, level) for text in figure.texts)])


def _text_legend(figure: ColouredTexts) -> str:
    """Return the legend of the colours as HTML, with negative and missing values only if there are any."""
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
    """Return the class and style of a word as HTML attributes; `strength` is its value relative to the full colour."""
    return f'class="{"above" if strength >= 0 else "below"}" style="--share: {min(abs(strength), 1.0):.3f}"'


def _value(value: float) -> str:
    return f"{'−' if value < 0 else ''}{abs(value):.3g}"


def counts(entries: Mapping[str, Any]) -> str:
    """Return counts as HTML, nested or not; counts of zero are hidden behind a button."""
    found = flat(entries)
    zeros = {name: count for name, count in found.items() if str(count) == "0"}
    shown = facts({name: count for name, count in found.items() if name not in zeros})
    hidden = f"<details><summary>{zeros_in_words(len(zeros))}</summary>{facts(zeros)}</details>"
    return shown + hidden if zeros else shown


def facts(entries: Mapping[str, Any]) -> str:
    """Return nested entries as an HTML table of names, joined with dots, and values."""
    found = ((name, _fact(value)) for name, value in flat(entries).items())
    rows = "\n".join(f'<tr><th scope="row">{escape(name)}<td>{escape(text)}' for name, text in found)
    return f'<table class="facts">\n{rows}\n</table>' if rows else ""


def _fact(value: object) -> str:
    if isinstance(value, list):
        more = f" and {len(value) - LISTED} more" if len(value) > LISTED else ""
        return ", ".join(map(str, value[:LISTED])) + more or "none"
    return number(value, "ratio", missing=DASH) if isinstance(value, float) else str(value)


def copied(text: str, label: str) -> str:
    """Return a text as HTML with a button that copies it; `label` is its name for screen readers."""
    return (
        f'<div class="copied"><pre tabindex="0" role="region" aria-label="{escape(label)}">{escape(text)}</pre>'
        f'<button type="button" data-do="copy">Copy</button><span role="status"></span></div>'
    )


def identifier(*parts: str) -> str:
    """Return an HTML id made from names.

    Letters, digits, dots, dashes and underscores stay, blanks become dashes, other characters their code points.
    """
    signs = {" ": "-"}
    return "-".join(
        "".join(sign if sign.isalnum() or sign in "._-" else signs.get(sign, f":{ord(sign):x}:") for sign in part)
        for part in parts
    )


def cost(packed: bytes) -> int:
    """Return the number of characters of packed content in the HTML, after base64."""
    return 4 * len(packed) // 3


def write_page(run: Path, out: Path | None = None) -> Path:
    """Write the page of a run or a sweep to `out`, by default `page.html` in its folder; return its path.

    Files of the run that are missing or damaged are named on the page.

    Raises:
        UserError: there are no results in `run`.
        OSError: the page cannot be written.
    """
    record = find_record(run)
    path = record.path.with_name(PAGE) if out is None else out
    return write_atomically(path, RunPage(RunFolder(record, path.resolve().parent)).html())


@dataclass(frozen=True)
class RunFolder:
    """Folder of a run or a sweep, with readers for its files.

    Attributes:
        record: content of its `results.json`.
        at: folder of the page, to which its links are relative.
        faults: messages about files that could not be read so far.
    """

    record: Record
    at: Path
    faults: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Path of the folder of the run or sweep."""
        return self.record.path.parent

    @property
    def content(self) -> Mapping[str, Any]:
        """Content of `results.json`."""
        return self.record.content

    def text(self, file: str) -> str:
        """Return the text of a file in the folder; if it cannot be read, empty, with a message in `faults`."""
        try:
            return (self.folder / file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self.faults.append(f"{file}: {getattr(error, 'strerror', None) or error}")
            return ""

    def address(self, path: Path) -> str:
        """Return a file's address for a link, relative to the folder of the page."""
        return quote(Path(os.path.relpath(path.resolve(), self.at)).as_posix())

    @cached_property
    def runs(self) -> list[Path]:
        """Folders of the runs of a sweep; empty for a single run."""
        try:
            rows = rows_of(self.folder) if self.record.is_sweep else {}
        except RecordError as error:
            self.faults.append(str(error))
            return []
        return [run for seeds in rows.values() for runs in seeds.values() for run in runs]

    @cached_property
    def config_text(self) -> str:
        """Text of `config.yaml`; empty if the run has none."""
        return self.text("config.yaml") if self.content["config"] else ""

    @cached_property
    def configs(self) -> list[Mapping[str, Any]]:
        """Parsed config of the run, or the configs of all runs of a sweep."""
        folders = self.runs if self.record.is_sweep else [self.folder] if self.content["config"] else []
        found = []
        for folder in folders:
            try:
                config = read_yaml(folder / "config.yaml")
            except (UserError, OSError) as error:
                self.faults.append(str(error))
                continue
            if isinstance(config, Mapping):
                found.append(config)
        return found

    @property
    def models(self) -> list[str]:
        """Short names of the model classes in the configs."""
        models = (config.get("model") for config in self.configs)
        paths = (model.get("class_path") if isinstance(model, Mapping) else model for model in models)
        return list(dict.fromkeys(str(path).rpartition(".")[2] for path in paths if path))

    @property
    def classes(self) -> list[str]:
        """Short names of all classes in the configs, models first."""
        named = [str(value) for config in self.configs for name, value in leaves(config) if _last(name) == "class_path"]
        return list(dict.fromkeys([*self.models, *map(_last, named)]))

    @property
    def corpora(self) -> list[str]:
        """Corpora in the configs: registered names or files."""
        found = dict[str, None]()
        for config in self.configs:
            for name, value in leaves({key: config.get(key) for key in ("data", "model")}):
                option = name.startswith("data.") and _last(name) in CORPUS_OPTIONS
                if isinstance(value, str) and (option or value in CORPORA):
                    found[value] = None
        return list(found)

    @property
    def run_on(self) -> str:
        """Phrase that names the models, the encoder and the corpora of the run or sweep."""
        encoder = self.content["encoder"]
        on = [str(encoder.get("name") or "")]
        shape = [encoder.get(name) for name in ("layers", "heads")]
        if all(isinstance(size, int) for size in shape):
            on[0] += f" ({shape[0]} layers × {shape[1]} heads)"
        on += self.corpora or list(dict.fromkeys(str(said.get("file")) for _, said in _parts(self.content["data"])))
        what = ", ".join(self.models) + (f" in {len(self.runs)} runs" if self.record.is_sweep else "")
        return " on ".join(filter(None, (what, ", ".join(filter(None, on)))))

    def table(self, name: str, file: str, described: str | None = None) -> ShownTable | None:
        """Read a table from its CSV file; only the first rows if it has more than `MOST`.

        Args:
            name: name of the table.
            file: name of the CSV file.
            described: name of its description in `results.json`; the name of the table by default.

        Returns:
            The table; None, with a message in `faults`, if the file cannot be read.
        """
        try:
            raw = pd.read_csv(self.folder / file, dtype=str, keep_default_na=False)
        except (OSError, ValueError) as error:
            self.faults.append(f"{file}: {' '.join(str(error).split())}")
            return None
        rows, raw = len(raw), raw if len(raw) <= MOST else raw.head(ROWS)
        try:
            table = typed(raw, self.content["columns"].get(described or name, {}))
        except (KeyError, TypeError, ValueError) as error:  # rows that were added or taken away
            self.faults.append(f"{file} does not fit what results.json says of its columns: {error}")
            table = Table(raw)
        links = {}
        if self.record.is_sweep and name == f"{self.record.experiment}_runs" and "folder" in raw:
            pages = [self.folder / "runs" / folder / PAGE for folder in raw["folder"]]
            links["folder"] = [self.address(page) if page.is_file() else "" for page in pages]
        return ShownTable(name, file, table, raw, self.record.experiment, links, rows)

    def scores(self) -> ShownTable | None:
        """Return the scores of the run as a table; None if there are none."""
        scores = self.record.scores
        lines: list[dict[str, object]] = []
        for name, one in scores.items():
            ends = {end: NAN if (number := getattr(one, end)) is None else number for end in ENDS}
            lines.append({"score": name, "value": one.value, **ends, "unit": one.unit})
        if not lines:
            return None
        frame = pd.DataFrame(lines)
        frame = frame.drop(columns=[end for end in ENDS if frame[end].isna().all()])
        units: dict[str, Unit | Sequence[Unit]] = {"value": [one.unit for one in scores.values()]}
        units |= {"p": "p"} if "p" in frame else {}
        raw = frame.map(lambda value: "" if pd.isna(value) else str(value))
        table = Table(frame, units, interval="value")
        return ShownTable("scores", "results.json", table, raw, self.record.experiment)

    def drawing(self, name: str, file: str) -> ShownFigure:
        """Read the figure `name` from its `file`, with the table of its numbers."""
        caption, data = str(self.content["captions"].get(name) or name), self.content["figure_data"].get(name)
        numbers = self.table(name, data, f"{name}.data") if data else None
        if file.endswith(".html"):
            return ShownFigure(name, caption, file, texts=self._texts(caption, numbers), numbers=numbers)
        vector = str(Path(file).with_suffix(".svg"))
        return ShownFigure(name, caption, vector, svg=self.text(vector), numbers=numbers)

    def _texts(self, caption: str, numbers: ShownTable | None) -> str:
        try:
            return "" if numbers is None else html_texts(ColouredTexts.from_frame(caption, numbers.raw), 4)
        except (KeyError, ValueError) as error:
            self.faults.append(f"{caption}: its numbers cannot be shown as coloured texts: {error}")
            return ""


def _last(name: str) -> str:
    """Return the last part of a dotted name."""
    return name.rpartition(".")[2]


def _parts(data: Mapping[str, Any], above: Sequence[str] = ()) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the descriptions of single files, by the dotted names under which they stand."""
    plain = {key: value for key, value in data.items() if not isinstance(value, Mapping)}
    if plain:
        yield ".".join(above) or "all", plain
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _parts(value, (*above, str(key)))


class RunPage:
    """HTML page of a run or a sweep, from the files in its folder, a `RunFolder`."""

    def __init__(self, source: RunFolder) -> None:
        self.source, content = source, source.content
        self.omitted: dict[tuple[str, str], str] = {}  # kind and name of what was left out: the file that has it
        tables = [source.table(name, file) for name, file in content["tables"].items()]
        self.tables = [table for table in tables if table]
        own = next((table for table in self.tables if table.name == source.record.experiment), None)
        self.scores = own if source.record.is_sweep else source.scores()
        self.drawings = [source.drawing(name, file) for name, file in content["figures"].items()]
        numbers = [one.numbers for one in self.drawings if one.numbers]
        for kind, views in (("rows", self.tables), ("numbers", numbers)):
            self.omitted |= {(kind, view.name): view.file for view in views if len(view) > MOST}
        self.filled = True  # whether rows of tables are elements of the page before its scripts make them
        self.data: dict[str, object] = {}

    def html(self) -> str:
        """Return the page as HTML, without its largest parts if it would exceed `LIMIT` bytes."""
        text = self._html()
        if len(text.encode()) > LIMIT:  # at first without what the scripts can make
            self.filled = False
            text = self._html()
        parts = [part for part in self._parts() if part[:2] not in self.omitted]
        while parts and (excess := len(text.encode()) - LIMIT) > 0:
            while parts and excess > 0:
                kind, name, file, size = parts.pop(0)
                self.omitted[kind, name] = file
                excess -= size
            text = self._html()
        return text

    def _parts(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield parts that can be left out, in order: kind, name, file that has the part, and size."""
        numbers = [one.numbers for one in self.drawings if one.numbers and self._has("numbers", one.name)]
        rows = [table for table in self.tables if len(table) > ROWS and self._has("rows", table.name)]
        for parts in (
            [("numbers", table.name, table.file, cost(table.packed)) for table in numbers],
            [("figure", one.name, one.file, one.cost) for one in self.drawings],
            [("rows", table.name, table.file, cost(table.packed)) for table in rows],
        ):
            yield from sorted(parts, key=lambda part: -part[-1])

    def _has(self, kind: str, name: str) -> bool:
        return (kind, name) not in self.omitted

    def _html(self) -> str:
        source, records = self.source, self.source.content
        self.data = {"limits": {"rows": ROWS, "latex": LATEX_ROWS}}
        listed = [table for table in self.tables if table is not self.scores]
        scores = "<p>There are none.</p>" if self.scores is None else self._table(self.scores)
        figures = "\n".join(map(self._figure, self.drawings))
        sections = {
            "Scores": f'<p class="note">{UNITS}</p>\n{scores}',
            "Figures": f'<div class="figures">\n{figures}\n</div>' if figures else "",
            "Tables": "\n".join(map(self._listed_table, listed)),
            "Audit": counts(records["audit"]) or "<p>Nothing was counted.</p>",
            "What was run": _what_was_run(records),
            "Config and command": _config(source),
            "Files": _files(source),
            "Citation": '<p class="note">BibTeX of the protocols that were run, of the corpora and of this application.'
            f"</p>\n{copied(cited(source.classes, source.corpora), 'BibTeX')}",
        }
        below = {"Figures": [one.name for one in self.drawings], "Tables": [table.name for table in listed]}
        contents = "\n".join(_contents(name, below.get(name, [])) for name, content in sections.items() if content)
        body = "\n".join(
            f'<section aria-labelledby="{at}">\n<h2 id="{at}">{name}</h2>\n{content}\n</section>'
            for name, content in sections.items()
            for at in [identifier(name.lower())]
            if content
        )
        name, run_on = source.record.experiment, source.run_on
        page = (
            f'<div class="page">\n<nav aria-label="Contents">\n<ul>\n{contents}\n</ul>\n</nav>\n<main>\n'
            f'<h1>{escape(name)}</h1>\n<p class="on">{escape(run_on)}</p>\n'
            "<noscript><p>Figures and sorting need the scripts of this page; the files of the run stand below.</p>"
            f"</noscript>\n{self._notices()}\n{body}\n</main>\n</div>"
        )
        if pictures := {one.name: one.svg for one in self.drawings if one.svg and self._has("figure", one.name)}:
            self.data["pictures"] = Packed(json.dumps(pictures, ensure_ascii=False).encode())
        styles = [resource("texts.css"), resource("report.css")]
        title = ": ".join(filter(None, (name, run_on)))
        return document(title, page, styles=styles, scripts=[resource("report.js")], data=self.data)

    def _notices(self) -> str:
        """Return the notices before the scores as HTML: problems, unreadable files, and parts left out."""
        audit, sweep = self.source.content["audit"], self.source.record.is_sweep
        problems = [audit.get(kind) for kind in ("faults", "warnings") if sweep]
        found = {
            "Problems of the sweep": [str(one) for lines in problems if isinstance(lines, list) for one in lines],
            "Files that cannot be shown": list(dict.fromkeys(self.source.faults)),
            f"Left out, so that the page stays below {LIMIT / 1e6:.0f} MB; the files lie beside it": [
                f"{OMITTED[kind]} {name}: {file}" for (kind, name), file in self.omitted.items()
            ],
        }
        return "\n".join(
            f'<section class="notice"><h2>{title}</h2>{_listed(list(map(escape, lines)), "entries")}</section>'
            for title, lines in found.items()
            if lines
        )

    def _listed_table(self, table: ShownTable) -> str:
        absent = list(table.links.get("folder", ())).count("")
        remedy = "<code>python -m reports.page RUN</code> makes the page of a run."
        note = f'<p class="note">Without a page: {absent} of {len(table)} runs. {remedy}</p>' if absent else ""
        return f'<h3 id="{identifier("table", table.name)}">{escape(table.name)}</h3>\n{note}{self._table(table)}'

    def _table(self, table: ShownTable) -> str:
        block, whole = identifier("rows", table.name), self._has("rows", table.name)
        self.data[block] = table.packed if whole else table.beginning
        return table_html(table, block, whole=whole, filled=self.filled)

    def _figure(self, one: ShownFigure) -> str:
        shown = self._has("figure", one.name)
        content = one.html if shown else f'<p class="note">Left out of this page: {escape(one.file)}</p>'
        files = [Path(one.file).with_suffix(suffix) for suffix in (".svg", ".pdf", ".png", ".html")]
        lying = [file for file in files if (self.source.folder / file).is_file()]
        links = [_link(self.source, file.name, file.suffix[1:].upper()) for file in lying]
        save = f'<button type="button" data-save="{escape(one.name)}">Save as SVG</button>' if shown and one.svg else ""
        return (
            f'<figure{" class=wide" if one.wide else ""} id="{identifier("figure", one.name)}">\n'
            f"<h3>{escape(one.name)}</h3>\n{content}\n"
            f'<figcaption>{escape(one.caption)}</figcaption>\n<div class="tools">{save}<span>{" ".join(links)}</span>'
            f"</div>\n{self._numbers(one)}\n</figure>"
        )

    def _numbers(self, one: ShownFigure) -> str:
        """Return the numbers of a figure as HTML, whose rows appear when they are opened."""
        if one.numbers is None:
            return '<p class="note">What is drawn was not written as numbers.</p>'
        if not self._has("numbers", one.name):
            return f'<p class="note">Its numbers are in {escape(one.numbers.file)}.</p>'
        block = identifier("numbers", one.name)
        self.data[block] = one.numbers.packed
        summary = f"Numbers of this figure ({counted(len(one.numbers), 'row')})"
        table = table_html(one.numbers, block, filled=False)
        return f'<details class="numbers"><summary>{summary}</summary>\n{table}\n</details>'


def _what_was_run(content: Mapping[str, Any]) -> str:
    parts = []
    if files := [{"data": name, **said} for name, said in _parts(content["data"])]:
        names = list(dict.fromkeys(name for file in files for name in file))
        heads = "".join(f'<th scope="col">{escape(name)}' for name in names)
        rows = "\n".join(
            f'<tr><th scope="row">{"<td>".join(escape(str(file.get(name, ""))) for name in names)}' for file in files
        )
        parts.append(
            '<h3>Data</h3>\n<div class="scroll" tabindex="0" role="region" aria-label="Data">'
            f'<table class="data">\n<tr>{heads}\n{rows}\n</table></div>'
        )
    parts += [f"<h3>Encoder</h3>\n{facts(content['encoder'])}"] if content["encoder"] else []
    known = {"seed": content["seed"], **content["versions"]}
    parts.append(f"<h3>Seed and versions</h3>\n{facts({name: one for name, one in known.items() if one is not None})}")
    return "\n".join(parts)


def _config(source: RunFolder) -> str:
    commands = "\n".join(copied(command, "Command") for command in _commands(source))
    if not source.config_text:
        return commands or "<p>The run has left no config.yaml.</p>"
    what, lines = "The plan" if source.record.is_sweep else "The config of the run", source.config_text.count("\n")
    return (
        f"{commands}\n<details><summary>{what}, config.yaml ({lines} lines)</summary>\n"
        f'<pre tabindex="0" role="region" aria-label="config.yaml">{escape(source.config_text)}</pre>\n</details>'
    )


def _commands(source: RunFolder) -> list[str]:
    """Return the commands that repeat a run or a sweep."""
    place, here = source.folder.resolve(), Path.cwd().resolve()
    shown = place.relative_to(here) if place.is_relative_to(here) else place
    config = shlex.quote(str(shown / "config.yaml"))
    if source.record.is_sweep:
        plans = (path for path in sorted(PLANS.rglob("*.yaml")) if path.read_text("utf-8") == source.config_text)
        plan = next((path.relative_to(PLANS.parent).as_posix() for path in plans), "PLAN.yaml")
        return [f"python -m sweeps.run {plan} --out {shlex.quote(str(shown))}"]
    if not source.content["config"]:
        return []
    checkpoints = sorted((source.folder / "checkpoints").glob("*.ckpt"), key=lambda one: (one.stem == "last", one.name))
    if not checkpoints:
        return [f"python train.py test --config {config}"]
    checkpoint = shlex.quote(str(shown / "checkpoints" / checkpoints[0].name))
    return [
        f"python train.py fit --config {config}",
        f"python train.py test --config {config} --ckpt_path {checkpoint}",
    ]


def _files(source: RunFolder) -> str:
    """Return links to the files of the folder as HTML."""
    paths = sorted(path for path in source.folder.iterdir() if path.is_file() and path.name[0] != ".")
    sizes = {path.name: path.stat().st_size for path in paths if path.name != PAGE}
    items = [f"{_link(source, name, name)} <small>{_bytes(size)}</small>" for name, size in sizes.items()]
    return f'<p class="note">In the folder of the run; the links are to it.</p>{_listed(items, "files")}'


def _link(source: RunFolder, name: str, text: str) -> str:
    return f'<a href="{escape(source.address(source.folder / name))}">{escape(text)}</a>'


def _bytes(size: int) -> str:
    return f"{size:,} B" if size < 1000 else f"{size / 1000:,.0f} kB"


def _listed(items: Sequence[str], what: str) -> str:
    """Return a list as HTML, hidden behind a button if it is long."""
    entries = "".join(f"<li>{item}</li>" for item in items)
    listed = f"<ul>{entries}</ul>"
    return f"<details><summary>{len(items)} {what}</summary>{listed}</details>" if len(items) > MANY else listed


def _contents(name: str, below: Sequence[str]) -> str:
    """Return an entry of the table of contents as HTML, with the entries below it."""
    kind = name.lower().rstrip("s")
    items = [f'<a href="#{quote(identifier(kind, one))}">{escape(one)}</a>' for one in below]
    nested = _listed(items, name.lower()) if items else ""
    return f'<li><a href="#{identifier(name.lower())}">{name}</a>{nested}</li>'


@cache
def citations() -> dict[str, Any]:
    """Return the content of `citations.yaml`: BibTeX `entries` by key, the keys of `classes`, and `own`.

    `own` lists classes without entries: they only combine other classes, or are new in this application.
    """
    found: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("citations.yaml").read_text(encoding="utf-8"))
    return found


def cited(classes: Iterable[str], corpora: Iterable[str]) -> str:
    """Return the BibTeX entries for classes and registered corpora, by their short names, each once.

    Names without an entry are skipped. The last entry is that of this application.
    """
    known = citations()
    keys = dict.fromkeys(key for name in classes for key in known["classes"].get(name, ()))
    entries = [known["entries"][key].strip() for key in (*keys, APPLICATION)]
    entries[-1:-1] = [_corpus(name) for name in dict.fromkeys(corpora) if name in CORPORA]
    return "\n\n".join(entries) + "\n"


def _corpus(name: str) -> str:
    """Return the entry of a corpus, whose paper the registry names in one line."""
    corpus = CORPORA[name]
    title, note = name.replace("_", r"\_"), " ".join(corpus.citation.split()).replace("&", r"\&")
    lines = [f"  title = {{{title}}},", f"  note = {{{note}}},", f"  url = {{{corpus.homepage}}}"]
    return "\n".join([f"@misc{{{name},", *lines, "}"])


def main(args: Sequence[str]) -> int:
    """Run the command with the arguments `args`: write a page and print its path; return the exit code.

    Raises:
        UserError: there are no results in the folder.
    """
    parser = argparse.ArgumentParser(prog="python -m reports.page", description="Write the page of a run or a sweep.")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run or of a sweep, or its results.json")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the page goes (RUN/page.html)")
    options = parser.parse_args(args)
    print(write_page(options.run, options.out))
    return 0


if __name__ == "__main__":
    command.run(main)
