"""HTML page of a run or a sweep, made from the files in its folder: `python train.py page RUN [--out page.html]`.

The page is one file that works without a network. It has at most `LIMIT` bytes: what is left out is named on it, with
the file that has it.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import numpy as np
import pandas as pd

from results.document import Packed, document, render, resource
from results.errors import counted
from results.estimates import ENDS, FEW, Table, Unit
from results.files import below, quoted, unquoted, write_atomically
from results.protocol import cited, classes, commands, corpora, phrase, texts_of_configs
from results.reader import Record, find_record
from results.tables import DASH, SIGNS, facts, flat, latex_table, typed, written, zeros_in_words

PAGE = "page.html"
LIMIT = 2_000_000  # bytes of a page
ROWS = {"rows": 1000, "numbers": 200}  # most rows of a table of the result, and of the numbers of a figure
FIRST = 100  # rows of a table that remain on a page that is too large


@dataclass(eq=False)
class PagePart:
    """Table or figure of a page, which can be left out.

    Attributes:
        kind: `rows` of a table, `numbers` of a figure, or a `figure`.
        name: Name of the table or the figure.
        file: Name of its file.
        columns: Names of the columns in the CSV file.
        heads: Heading of each column: name, its place in `columns`, True if it is numeric, and the sign of its unit.
        rows: Rows of the table: the formatted cells, and the strings of the CSV file.
        total: Number of rows in the file.
        links: Link addresses for the cells of a column, by name of the column; empty for a cell without a link.
        latex: The table in LaTeX; None if it is too large for a printed page.
        caption: Caption of a figure.
        svg: SVG of a figure.
        texts: Page of coloured texts.
        numbers: Table with the numbers of a figure.
        omitted: True if it is left out; of a table of the result, only the rows after the first are.
    """

    kind: Literal["rows", "numbers", "figure"]
    name: str
    file: str
    columns: Sequence[str] = ()
    heads: Sequence[tuple[str, int, bool, str]] = ()
    rows: Sequence[tuple[tuple[str, ...], Sequence[str]]] = ()
    total: int = 0
    links: Mapping[str, Sequence[str]] = field(default_factory=dict)
    latex: str | None = None
    caption: str = ""
    svg: str = ""
    texts: str = ""
    numbers: "PagePart | None" = None
    omitted: bool = False


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
    return write_atomically(path, RunPage(record, path.resolve().parent).html())


class RunPage:
    """HTML page of a run or a sweep.

    Args:
        record: Content of its `results.json`.
        at: Folder of the page, to which its links are relative.
    """

    def __init__(self, record: Record, at: Path) -> None:
        self.record, self.folder, self.at, content = record, record.path.parent, at, record.content
        self.faults: list[str] = []
        tables = [self._read("rows", name, file) for name, file in content["tables"].items()]
        self.tables = [table for table in tables if table is not None]
        self.scores = next((table for table in self.tables if table.name == record.experiment), None)
        self.scores = self.scores if record.is_sweep else self._scores()
        self.figures = [self._figure(name, file) for name, file in content["figures"].items()]

    def address(self, path: Path) -> str:
        """Return the address of a file for a link on the page, relative to the folder of the page."""
        return quote(Path(os.path.relpath(path.resolve(), self.at)).as_posix())

    def html(self) -> str:
        """Return the page; if it is too large, leave out numbers of figures, then figures, then rows of tables.

        The largest of a kind is left out first.
        """
        numbers = [one.numbers for one in self.figures if one.numbers is not None]
        content = self._content()
        text = self._rendered(content)
        for parts in (numbers, self.figures, [table for table in self.tables if len(table.rows) > FIRST]):
            for part in sorted(parts, key=lambda one: -len(str(one.rows) + one.svg + one.texts)):
                if len(text.encode()) <= LIMIT:
                    break
                part.omitted, part.rows, part.svg, part.texts = True, part.rows[:FIRST], "", ""
                text = self._rendered(content)
        return text

    def _rendered(self, content: Mapping[str, object]) -> str:
        others = [table for table in self.tables if table is not self.scores]
        body = render("page.html", page=self, tables=others, notices=self._notices(), **content)
        pictures = {one.name: one.svg for one in self.figures if one.svg}
        data = {"pictures": Packed(json.dumps(pictures, ensure_ascii=False).encode())}
        title = ": ".join(filter(None, (self.record.experiment, str(content["run"]))))
        return document(title, body, styles=[resource("page.css")], scripts=[resource("tables.js")], data=data)

    def _content(self) -> dict[str, object]:
        """Return the variables of the template that do not depend on what is left out."""
        content, settings = self.record.content, texts_of_configs(self.record, self.faults)
        counts, known = flat(content["audit"]), {"seed": content["seed"], **content["versions"]}
        zeros = {name: count for name, count in counts.items() if str(count) == "0"}
        files = sorted(path.name for path in self.folder.iterdir() if path.is_file() and path.name[0] != ".")
        return {
            "counts": facts({name: count for name, count in counts.items() if name not in zeros}),
            "zeros": facts(zeros),
            "ran": {"Data": facts(content["data"]), "Encoder": facts(content["encoder"]), "Versions": facts(known)},
            "config": self._text("config.yaml") if content["config"] else "",
            "files": [name for name in files if name != PAGE],
            "run": phrase(self.record, settings),
            "commands": commands(self.record),
            "citation": cited(classes(settings), corpora(settings)),
            **{"few": FEW, "counted": counted, "zeros_in_words": zeros_in_words},
        }

    def _notices(self) -> dict[str, list[str]]:
        """Return the notices before the scores by title: problems, unreadable files, and parts left out."""
        audit = self.record.content["audit"]
        problems = [audit.get(kind) for kind in ("faults", "warnings") if self.record.is_sweep]
        what = {"numbers": "numbers of the figure", "figure": "figure", "rows": "rows of the table"}
        parts = [*(one.numbers for one in self.figures if one.numbers), *self.figures, *self.tables]
        return {
            "Problems of the sweep": [str(one) for lines in problems if isinstance(lines, list) for one in lines],
            "Files that cannot be shown": list(dict.fromkeys(self.faults)),
            f"Left out, so that the page stays below {LIMIT / 1e6:.0f} MB; the files lie beside it": [
                f"{what[part.kind]} {part.name}: {part.file}" for part in parts if part.omitted
            ],
        }

    def _text(self, file: str) -> str:
        """Return the text of a file in the folder; empty, with a message in `faults`, if it cannot be read."""
        try:
            return below(self.folder, file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            self.faults.append(f"{file}: {getattr(error, 'strerror', None) or error}")
            return ""

    def _read(self, kind: Literal["rows", "numbers"], name: str, file: str) -> PagePart | None:
        """Read a table from its CSV file; None, with a message in `faults`, if the file cannot be read."""
        try:
            raw = pd.read_csv(below(self.folder, file), dtype=str, keep_default_na=False)
        except (OSError, ValueError) as error:
            self.faults.append(f"{file}: {' '.join(str(error).split())}")
            return None
        part, raw = PagePart(kind, name, file, total=len(raw)), raw.head(ROWS[kind])
        words = raw.rename(columns=unquoted).map(unquoted)
        try:
            table = typed(words, self.record.content["columns"].get(Path(file).stem, {}))
            if self.record.is_sweep and name == f"{self.record.experiment}_runs" and "folder" in raw:
                pages = [below(self.folder, f"runs/{folder}/{PAGE}") for folder in raw["folder"]]
                part.links = {"folder": [self.address(page) if page.is_file() else "" for page in pages]}
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # the file was edited
            self.faults.append(f"{file} does not fit results.json: {error}")
            table = Table(words)
        return self._filled(part, table, raw)

    def _scores(self) -> PagePart | None:
        """Return the scores of the run as a table; None if there are none."""
        if not self.record.scores:
            return None
        frame = pd.DataFrame(self.record.score_rows()).astype(dict.fromkeys(ENDS, np.float64))
        frame = frame.drop(columns=[end for end in ENDS if frame[end].isna().all()])
        units: dict[str, Unit | Sequence[Unit]] = {"value": frame["unit"].tolist()}
        units |= {"p": "p"} if "p" in frame else {}
        raw = frame.map(lambda value: "" if pd.isna(value) else str(quoted(value)))
        part = PagePart("rows", "scores", "results.json", total=len(frame))
        return self._filled(part, Table(frame, units, interval="value"), raw)

    def _filled(self, part: PagePart, table: Table, raw: pd.DataFrame) -> PagePart:
        """Add the rows of a table to its part: formatted cells with units, and the strings of its file for copying."""
        cells, places = written(table, missing=DASH), list(table.frame)
        units = {column: SIGNS.get(str(unit), "") for column, unit in table.units.items()}
        numeric = {column: pd.api.types.is_numeric_dtype(table.frame[column]) for column in cells}
        part.heads = [(column, places.index(column), numeric[column], units.get(column, "")) for column in cells]
        part.rows = list(zip(zip(*cells.values(), strict=True), raw.to_numpy().tolist(), strict=True))
        part.columns = list(map(str, raw))
        part.latex = latex_table(table, self.record.experiment, part.name) if len(raw) == part.total else None
        return part

    def _figure(self, name: str, file: str) -> PagePart:
        content = self.record.content
        data, caption = content["figure_data"].get(name), str(content["captions"].get(name) or name)
        numbers = self._read("numbers", name, data) if data else None
        if file.endswith(".html"):
            return PagePart("figure", name, file, caption=caption, texts=self._text(file), numbers=numbers)
        vector = str(Path(file).with_suffix(".svg"))
        return PagePart("figure", name, vector, caption=caption, svg=self._text(vector), numbers=numbers)
