"""HTML page of a run or a sweep, made from the files in its folder: `python train.py page RUN [--out page.html]`.

The page is one file that works without a network, with scores, figures and their numbers, tables, audit, run
description, config and citations. It has at most `LIMIT` bytes: what is left out is named on it, with the file that has
it.
"""

import json
import math
import os
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias
from urllib.parse import quote

import numpy as np
import pandas as pd
import yaml

from results import FEW, ColouredText, ColouredTexts, Table, Unit
from results.document import Packed, document, render, resource
from results.errors import UserError, counted
from results.estimates import ENDS
from results.files import below, checkpoints_in, quoted, unquoted, write_atomically
from results.reader import Record, RecordError, find_record, rows_of
from results.settings import leaves, read_yaml
from results.tables import DASH, LATEX_ROWS, Latex, few_items, flat, latex_lines, number, written, zeros_in_words

PAGE = "page.html"
MOST = 50_000  # rows of a table that a page may hold
ROWS = 200  # rows of a table that are elements of the page; sorting, filtering and copying work on all rows
LISTED = 20  # entries of a list that are shown
BESIDE = 480  # widest figure, in pixels, that is placed beside another
FULL = 10  # multiple of the even share of a row of texts from which a word has the full colour
SCALE = 1.3  # enlarges figures on the screen, as their letters have the size of print
SIGNS: Mapping[str, str] = {"fraction": "×100", "nats": "nats", "bits": "bits"}
LIMIT = 2_000_000  # bytes of a page
ROOT = Path(__file__).resolve().parents[1]
PLANS, REGISTRY = ROOT / "configs", ROOT / "corpora" / "public.yaml"
CORPUS_OPTIONS = ("corpus", "treebank", "documents")
APPLICATION = "attention-probing"


@dataclass(frozen=True, eq=False)
class ShownTable:
    """Table on a page: numbers with units for display, and the strings of its CSV file for copying.

    Attributes:
        kind: `rows` of a table, or `numbers` of a figure.
        name: Name of the table or the figure.
        file: Name of the CSV file.
        table: Rows and units.
        raw: The rows as strings of the CSV file.
        experiment: Name of the experiment.
        links: Link addresses for the cells of a column, by name of the column; empty for a cell without a link.
        rows: Number of rows in the file, which may be more than this table has; None if it has all.
    """

    kind: Literal["rows", "numbers"]
    name: str
    file: str
    table: Table
    raw: pd.DataFrame
    experiment: str
    links: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rows: int | None = None

    def __len__(self) -> int:
        return len(self.raw) if self.rows is None else self.rows

    @property
    def block(self) -> str:
        """Id of the element with the data of this table, which the scripts of the page read."""
        return identifier(f"{self.kind} {self.name}")

    @cached_property
    def cells(self) -> dict[str, list[str]]:
        """Cells of this table as formatted strings: for each column, by name, the list of its cells.

        The interval of a number stands in the cell of the number; it has no columns of its own.
        """
        return {str(name): cells for name, cells in written(self.table, missing=DASH).items()}

    @cached_property
    def numeric(self) -> dict[str, bool]:
        """Bool for each column of this table, by name; True if it is numeric."""
        return {name: pd.api.types.is_numeric_dtype(self.table.frame[name]) for name in self.cells}

    @property
    def heads(self) -> list[tuple[str, bool, str]]:
        """Heading of each column: its name, True if it is numeric, and the sign of its unit.

        The sign is empty if the unit has none.
        """
        units = {name: unit for name, unit in self.table.units.items() if isinstance(unit, str)}
        return [(name, numeric, SIGNS.get(units.get(name, ""), "")) for name, numeric in self.numeric.items()]

    @property
    def first_rows(self) -> Iterator[list[tuple[str, bool, str]]]:
        """First rows of this table, at most `ROWS`, which the page can show without its scripts.

        A row has an entry for each column: the text of the cell, True if the column is numeric, and the
        link of the cell, empty for none.
        """
        columns = [
            [(text, self.numeric[name], link) for text, link in zip(cells[:ROWS], self._links(name), strict=False)]
            for name, cells in self.cells.items()
        ]
        return map(list, zip(*columns, strict=True))

    def _links(self, name: str) -> Iterable[str]:
        return self.links.get(name) or repeat("")

    @property
    def few(self) -> int:
        """Number of items below which a row of this table has a star; 0 if none has."""
        return FEW if few_items(self.table) else 0

    @cached_property
    def latex(self) -> Latex | None:
        """LaTeX lines of this table; None if it has too many columns for a printed page."""
        return latex_lines(self.table, self.experiment, self.name)

    @cached_property
    def packed(self) -> Packed:
        """Data of this table for the scripts of the page.

        They hold the formatted cells, the same values as strings of the CSV file, and the table's LaTeX
        lines.
        """
        return self._packed(len(self.raw))

    @cached_property
    def beginning(self) -> Packed:
        """Data of the first `ROWS` rows of this table for the scripts of the page, in the format of `packed`."""
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

    @property
    def cost(self) -> int:
        """Number of characters of the data of this table in the HTML."""
        return _coded(self.packed)


@dataclass(frozen=True, eq=False)
class ShownFigure:
    """Figure on a page: an SVG, coloured texts as HTML, or nothing if its file cannot be read.

    Attributes:
        name: Name of the figure.
        caption: Caption.
        file: Name of its file.
        svg: Content of the SVG file; empty for coloured texts.
        texts: Coloured texts as HTML; empty for an SVG.
        numbers: Table of the numbers that the figure shows; None if there is none.
    """

    name: str
    caption: str
    file: str
    svg: str = ""
    texts: str = ""
    numbers: ShownTable | None = None
    kind: ClassVar = "figure"

    @cached_property
    def cost(self) -> int:
        """Approximate number of characters that this figure adds to the HTML of the page."""
        return _coded(zlib.compress(self.svg.encode())) + len(self.texts)

    @property
    def wide(self) -> bool:
        """True if the figure takes both columns of a printed page."""
        return self.size is None or self.size[0] > BESIDE

    @cached_property
    def size(self) -> tuple[int, int] | None:
        """Width and height of this figure in pixels, reserved before it is drawn; None if the SVG lacks them."""
        found = re.search(r'<svg[^>]* width="(\d+\.?\d*)pt" height="(\d+\.?\d*)pt"', self.svg)
        if found is None:
            return None
        width, height = (round(float(side) / 72 * 96 * SCALE) for side in found.groups())
        return width, height


def _coded(packed: bytes) -> int:
    """Return the number of characters of packed content in the HTML, after base64."""
    return 4 * len(packed) // 3


def typed(raw: pd.DataFrame, described: Mapping[str, Any]) -> Table:
    """Convert the rows of a CSV file, read as strings, to a table with numbers and units.

    Args:
        raw: The rows.
        described: Description of the columns in `results.json`, from `results.writer.described`.
    """
    units: dict[str, Any] = {
        name: unit if isinstance(unit, str) else unit[: len(raw)] for name, unit in described["units"].items()
    }
    numeric = [name for name in described["numeric"] if name in raw]
    frame = raw.assign(**{name: pd.to_numeric(raw[name].replace("", np.nan)) for name in numeric})
    frame = frame.where(frame != "", None)
    return Table(frame.astype(dict.fromkeys(units, np.float64)), units, described["interval"])


def html_page(figure: ColouredTexts) -> str:
    """Return an HTML page that has only coloured texts."""
    body = render("texts_page.html", title=figure.title, **_texts(figure, level=2))
    return document(figure.title, body, styles=[resource("texts.css")])


def _texts(figure: ColouredTexts, level: int) -> dict[str, object]:
    """Return the variables of `texts.html`; the headings are `<h2>` for level 2."""
    values = [value for text in figure.texts for row in text.rows.values() for value in row]
    below = [-1.0, -0.5, -0.1] if any(value < 0 for value in values) else []
    return {
        "texts": [{"name": text.name, "caption": text.caption, "rows": _text_rows(text)} for text in figure.texts],
        "level": level,
        "full": FULL,
        "steps": [*below, 0.0, 0.1, 0.5, 1.0],
        "missing": any(math.isnan(value) for value in values),
    }


def _text_rows(text: ColouredText) -> list[dict[str, object]]:
    """Return the rows of a text: words with their values, mean magnitude, and largest magnitude; None for nan."""
    rows: list[dict[str, object]] = []
    for name, row in text.rows.items():
        values = [None if math.isnan(value) else value for value in row]
        magnitudes = [abs(value) for value in values if value is not None]
        even, largest = sum(magnitudes) / max(len(magnitudes), 1), max(magnitudes, default=None)
        words = list(zip(text.words, values, strict=True))
        rows.append({"name": name, "words": words, "even": even, "largest": largest})
    return rows


def facts(entries: Mapping[str, Any]) -> dict[str, str]:
    """Format the values of nested mappings as text, and return them by their names joined with dots.

    A list becomes its first `LISTED` entries, separated by commas, and the number of its other entries.
    An empty list becomes `none`.
    """
    return {name: _fact(value) for name, value in flat(entries).items()}


def _fact(value: object) -> str:
    if isinstance(value, list):
        more = f" and {len(value) - LISTED} more" if len(value) > LISTED else ""
        return ", ".join(map(str, value[:LISTED])) + more or "none"
    return number(value, "ratio", missing=DASH) if isinstance(value, float) else str(value)


def identifier(text: str) -> str:
    """Return an HTML id made from a text.

    Letters, digits, dots, dashes and underscores are kept. Blanks become dashes, and other characters are replaced by
    their code points.
    """
    signs = {" ": "-"}
    return "".join(sign if sign.isalnum() or sign in "._-" else signs.get(sign, f":{ord(sign):x}:") for sign in text)


def write_page(run: Path, out: Path | None = None) -> Path:
    """Write the HTML page of a run or a sweep, and return its path.

    Files that are missing or damaged are named on the page.

    Args:
        run: Folder of the run or sweep, or its `results.json`.
        out: Path of the page; by default `page.html` in the folder.

    Raises:
        UserError: There are no results in `run`.
        OSError: The page cannot be written.
    """
    record = find_record(run)
    path = record.path.with_name(PAGE) if out is None else out
    return write_atomically(path, RunPage(RunFolder(record, path.resolve().parent)).html())


@dataclass(frozen=True)
class RunFolder:
    """Folder of a run or a sweep, from which the page reads its contents.

    Attributes:
        record: Content of its `results.json`.
        at: Folder of the page, to which its links are relative.
        faults: Messages about files that could not be read so far.
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
        """Return the text of a file in the folder.

        If it cannot be read, return an empty string, and add a message to `faults`.
        """
        try:
            return below(self.folder, file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            self.faults.append(f"{file}: {getattr(error, 'strerror', None) or error}")
            return ""

    def address(self, path: Path) -> str:
        """Return the address of a file for a link on the page, relative to the folder of the page."""
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
    def settings(self) -> list[tuple[str, str]]:
        """Settings whose values are strings, as pairs of dotted name and value.

        They come from the config of the run. For a sweep they come from the configs of all its runs, one
        after another, so the same name can occur several times. If a config cannot be read, a message is
        added to `faults`.
        """
        folders = self.runs if self.record.is_sweep else [self.folder] if self.content["config"] else []
        found: list[tuple[str, object]] = []
        for folder in folders:
            try:
                found += leaves(read_yaml(folder / "config.yaml"))
            except (UserError, OSError) as error:
                self.faults.append(str(error))
        return [(name, value) for name, value in found if isinstance(value, str)]

    @property
    def models(self) -> list[str]:
        """Names of the model classes in the configs, without their modules."""
        paths = (value for name, value in self.settings if name in ("model", "model.class_path"))
        return list(dict.fromkeys(map(_last, paths)))

    @property
    def classes(self) -> list[str]:
        """Names of all classes in the configs, without their modules; models come first."""
        paths = (value for name, value in self.settings if _last(name) == "class_path")
        return list(dict.fromkeys([*self.models, *map(_last, paths)]))

    @property
    def corpora(self) -> list[str]:
        """Corpora in the configs, as registered names or as files."""
        data, model = ([one for one in self.settings if one[0].startswith(part)] for part in ("data.", "model."))
        options = {value: None for name, value in data if _last(name) in CORPUS_OPTIONS or value in registered()}
        return list(options | {value: None for _, value in model if value in registered()})

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

    def table(self, kind: Literal["rows", "numbers"], name: str, file: str) -> ShownTable | None:
        """Read a table from its CSV file; if it has more than `MOST` rows, only its first `ROWS` rows.

        Args:
            kind: `rows` for a table of the result, `numbers` for the numbers of a figure.
            name: Name of the table or the figure.
            file: Name of the CSV file.

        Returns:
            The table; None, with a message in `faults`, if the file cannot be read.
        """
        try:
            raw = pd.read_csv(below(self.folder, file), dtype=str, keep_default_na=False).rename(columns=unquoted)
        except (OSError, ValueError) as error:
            self.faults.append(f"{file}: {' '.join(str(error).split())}")
            return None
        rows, raw = len(raw), raw if len(raw) <= MOST else raw.head(ROWS)
        links = {}
        try:
            table = typed(raw.map(unquoted), self.content["columns"].get(Path(file).stem, {}))
            if self.record.is_sweep and name == f"{self.record.experiment}_runs" and "folder" in raw:
                pages = [below(self.folder, f"runs/{folder}/{PAGE}") for folder in raw["folder"]]
                links["folder"] = [self.address(page) if page.is_file() else "" for page in pages]
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # the file was edited
            self.faults.append(f"{file} does not fit results.json: {error}")
            table = Table(raw.map(unquoted))
        return ShownTable(kind, name, file, table, raw, self.record.experiment, links, rows)

    def scores(self) -> ShownTable | None:
        """Return the scores of the run as a table; None if there are none."""
        if not self.record.scores:
            return None
        frame = pd.DataFrame(self.record.score_rows()).astype(dict.fromkeys(ENDS, np.float64))
        frame = frame.drop(columns=[end for end in ENDS if frame[end].isna().all()])
        units: dict[str, Unit | Sequence[Unit]] = {"value": frame["unit"].tolist()}
        units |= {"p": "p"} if "p" in frame else {}
        raw = frame.map(lambda value: "" if pd.isna(value) else str(quoted(value)))
        table = Table(frame, units, interval="value")
        return ShownTable("rows", "scores", "results.json", table, raw, self.record.experiment)

    def drawing(self, name: str, file: str) -> ShownFigure:
        """Read a figure, and the table of its numbers, from their files.

        Args:
            name: Name of the figure.
            file: Name of its file.
        """
        caption, data = str(self.content["captions"].get(name) or name), self.content["figure_data"].get(name)
        numbers = self.table("numbers", name, data) if data else None
        if file.endswith(".html"):
            return ShownFigure(name, caption, file, texts=self._texts(caption, numbers), numbers=numbers)
        vector = str(Path(file).with_suffix(".svg"))
        return ShownFigure(name, caption, vector, svg=self.text(vector), numbers=numbers)

    def _texts(self, caption: str, numbers: ShownTable | None) -> str:
        try:
            if numbers is None:
                return ""
            return render("texts.html", **_texts(ColouredTexts.from_frame(caption, numbers.raw.map(unquoted)), level=4))
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


Part: TypeAlias = ShownTable | ShownFigure
"""Part of a page that can be left out; `kind`, `name` and `file` describe it, `cost` is its size."""


class RunPage:
    """HTML page of a run or a sweep, from the files in its folder.

    Attributes:
        source: Folder of the run or the sweep.
        scores: Table of the scores; None if there are none.
        tables: All tables of the result; for a sweep, the table of the scores is one of them.
        figures: All figures.
        numbers: Tables of the numbers that the figures show.
        omitted: Parts that are left out because of their size. Of a table of the result, only the rows
            after the first `ROWS` are left out.
        filled: True if the HTML contains the first rows of the result's tables, False if the page's
            scripts create them.
        config: Text of the config; empty if the run has none.
        citation: BibTeX entries.
    """

    def __init__(self, source: RunFolder) -> None:
        self.source, content = source, source.content
        tables = [source.table("rows", name, file) for name, file in content["tables"].items()]
        self.tables = [table for table in tables if table is not None]
        own = next((table for table in self.tables if table.name == source.record.experiment), None)
        self.scores = own if source.record.is_sweep else source.scores()
        self.figures = [source.drawing(name, file) for name, file in content["figures"].items()]
        self.numbers = [one.numbers for one in self.figures if one.numbers is not None]
        self.omitted: list[Part] = [table for table in (*self.tables, *self.numbers) if len(table) > MOST]
        self.filled = True
        # These read the last files, so that `source.faults` is complete.
        self.config, self.citation = source.config_text, cited(source.classes, source.corpora)

    @property
    def commands(self) -> list[str]:
        """Shell commands that repeat the run or the sweep; empty if a run has no config."""
        place, here = self.source.folder.resolve(), Path.cwd().resolve()
        shown = place.relative_to(here) if place.is_relative_to(here) else place
        config = shlex.quote(str(shown / "config.yaml"))
        if self.source.record.is_sweep:
            plans = (path for path in sorted(PLANS.rglob("*.yaml")) if path.read_text("utf-8") == self.config)
            plan = next((path.relative_to(PLANS.parent).as_posix() for path in plans), "PLAN.yaml")
            return [f"python train.py sweep {plan} --out {shlex.quote(str(shown))}"]
        if not self.source.content["config"]:
            return []
        checkpoints = checkpoints_in(self.source.folder)
        if not checkpoints:
            return [f"python train.py test --config {config}"]
        checkpoint = shlex.quote(str(shown / "checkpoints" / checkpoints[0].name))
        return [
            f"python train.py fit --config {config}",
            f"python train.py test --config {config} --ckpt_path {checkpoint}",
        ]

    @property
    def sizes(self) -> dict[str, int]:
        """Size in bytes of each file of the folder, by name, without the page and hidden files."""
        paths = sorted(path for path in self.source.folder.iterdir() if path.is_file() and path.name[0] != ".")
        return {path.name: path.stat().st_size for path in paths if path.name != PAGE}

    def formats(self, figure: ShownFigure) -> list[Path]:
        """Return the files of a figure, one for each of its formats."""
        files = [Path(figure.file).with_suffix(suffix) for suffix in (".svg", ".pdf", ".png", ".html")]
        return [file for file in files if file.name in self.sizes]

    def html(self) -> str:
        """Return the page as HTML.

        If it would be larger than `LIMIT` bytes, parts are left out: first the numbers of figures, then
        figures, then rows of tables, each in the order of their size, largest first.
        """
        text = self._html()
        if len(text.encode()) > LIMIT:  # first leave out what the scripts can create
            self.filled = False
            text = self._html()
        parts = self._parts()
        while parts and (excess := len(text.encode()) - LIMIT) > 0:
            while parts and excess > 0:
                excess -= parts[0].cost
                self.omitted.append(parts.pop(0))
            text = self._html()
        return text

    def _parts(self) -> list[Part]:
        """Return the parts that can be left out, in the order in which they are."""
        found: list[Part] = []
        for kind in (self.numbers, self.figures, [table for table in self.tables if len(table) > ROWS]):
            found += sorted((part for part in kind if part not in self.omitted), key=lambda part: -part.cost)
        return found

    def _html(self) -> str:
        content = self.source.content
        counts, known = flat(content["audit"]), {"seed": content["seed"], **content["versions"]}
        zeros = {name: count for name, count in counts.items() if str(count) == "0"}
        files = [{"data": name, **said} for name, said in _parts(content["data"])]
        columns = dict.fromkeys(name for file in files for name in file)
        body = render(
            "report.html",
            page=self,
            source=self.source,
            tables=[table for table in self.tables if table is not self.scores],
            notices=self._notices(),
            counts=facts({name: count for name, count in counts.items() if name not in zeros}),
            zeros=facts(zeros),
            data=[{name: file.get(name, "") for name in columns} for file in files],
            encoder=facts(content["encoder"]),
            versions=facts({name: one for name, one in known.items() if one is not None}),
            rows=ROWS,
            counted=counted,
            zeros_in_words=zeros_in_words,
            id=identifier,
        )
        styles = [resource("texts.css"), resource("report.css")]
        title = ": ".join(filter(None, (self.source.record.experiment, self.source.run_on)))
        return document(title, body, styles=styles, scripts=[resource("report.js")], data=self._data())

    def _data(self) -> dict[str, object]:
        """Return the data for the scripts of the page."""
        data: dict[str, object] = {"limits": {"rows": ROWS, "latex": LATEX_ROWS}}
        for table in [*self.tables, *([self.scores] if self.scores is not None else [])]:
            data[table.block] = table.beginning if table in self.omitted else table.packed
        data |= {table.block: table.packed for table in self.numbers if table not in self.omitted}
        if pictures := {one.name: one.svg for one in self.figures if one.svg and one not in self.omitted}:
            data["pictures"] = Packed(json.dumps(pictures, ensure_ascii=False).encode())
        return data

    def _notices(self) -> dict[str, list[str]]:
        """Return the notices before the scores by title: problems, unreadable files, and parts left out."""
        audit, sweep = self.source.content["audit"], self.source.record.is_sweep
        problems = [audit.get(kind) for kind in ("faults", "warnings") if sweep]
        omitted = {
            "numbers": "numbers of the figure",
            "figure": "figure",
            "rows": f"rows after the first {ROWS} of the table",
        }
        return {
            "Problems of the sweep": [str(one) for lines in problems if isinstance(lines, list) for one in lines],
            "Files that cannot be shown": list(dict.fromkeys(self.source.faults)),
            f"Left out, so that the page stays below {LIMIT / 1e6:.0f} MB; the files lie beside it": [
                f"{omitted[part.kind]} {part.name}: {part.file}" for part in self.omitted
            ],
        }


@cache
def citations() -> dict[str, Any]:
    """Return the content of `citations.yaml`.

    It has three parts: `entries`, BibTeX entries by key; `classes`, the keys to cite for each class; and
    `own`, classes without entries, because they only combine other classes or are new in this application.
    """
    found: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("citations.yaml").read_text(encoding="utf-8"))
    return found


@cache
def registered() -> dict[str, Any]:
    """Return the entries of the registry of corpora as data: this room lies below that of the registry."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C library may not be there
    found: dict[str, Any] = yaml.load(REGISTRY.read_text(encoding="utf-8"), loader)
    return found


def cited(classes: Iterable[str], corpora: Iterable[str]) -> str:
    """Return the BibTeX entries to cite for some classes and corpora, each once.

    Names without an entry are skipped. The last entry is this application.

    Args:
        classes: Names of classes, without their modules.
        corpora: Registered names of corpora.
    """
    known = citations()
    keys = dict.fromkeys(key for name in classes for key in known["classes"].get(name, ()))
    entries = [known["entries"][key].strip() for key in (*keys, APPLICATION)]
    entries[-1:-1] = [_corpus(name) for name in dict.fromkeys(corpora) if name in registered()]
    return "\n\n".join(entries) + "\n"


def _corpus(name: str) -> str:
    """Return the entry of a corpus, whose paper the registry names in one line."""
    corpus = registered()[name]
    title, note = name.replace("_", r"\_"), " ".join(corpus["citation"].split()).replace("&", r"\&")
    lines = [f"  title = {{{title}}},", f"  note = {{{note}}},", f"  url = {{{corpus['homepage']}}}"]
    return "\n".join([f"@misc{{{name},", *lines, "}"])
