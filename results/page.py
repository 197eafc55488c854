"""HTML page of a run or a sweep: one file beside those that it shows, which works without a network."""

import io
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from attention_probing.results.citations import BIBLIOGRAPHY
from attention_probing.results.document import document, render, resource
from attention_probing.results.errors import pluralize
from attention_probing.results.estimates import ENDS, FEW, Estimate, Table, Unit, score_rows
from attention_probing.results.files import csv_text, write_atomically
from attention_probing.results.record import Record
from attention_probing.results.result import Result
from attention_probing.results.tables import DASH, SIGNS, format_cells, format_facts

PAGE = "page.html"
ROWS = 1000
"""Most rows of a table on the page."""


@dataclass(frozen=True)
class PageTable:
    """Table of a page.

    Attributes:
        name: Name of the table.
        file: Name of the file that has all rows.
        total: Number of rows in the file.
        columns: Names of the columns in the file.
        heads: Heading of each column: name, its place in `columns`, True if it is numeric, and the sign of its unit.
        rows: Formatted cells of each row, and the strings of the file for sorting and copying.
        latex: The table in LaTeX; empty if it is too large for a printed page.
        links: Addresses for the cells of a column, by name of the column; empty for a cell without a link.
    """

    name: str
    file: str
    total: int
    columns: Sequence[str]
    heads: Sequence[tuple[str, int, bool, str]]
    rows: Sequence[tuple[tuple[str, ...], Sequence[str]]]
    latex: str = ""
    links: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def from_table(cls, name: str, table: Table, folder: Path, file: str) -> "PageTable":
        """Create the table from the first rows of a table, whose LaTeX lies in a folder beside its file."""
        shown = table.rows(range(min(ROWS, len(table.frame))))
        raw = pd.read_csv(io.StringIO(csv_text(shown.frame)), dtype=str, keep_default_na=False)
        cells, places = format_cells(shown, missing=DASH), list(shown.frame)
        signs = {column: SIGNS.get(str(unit), "") for column, unit in table.units.items()}
        numeric = [pd.api.types.is_numeric_dtype(table.frame[column]) for column in cells]
        heads = [
            (column, places.index(column), number, signs.get(column, ""))
            for column, number in zip(cells, numeric, strict=True)
        ]
        rows = list(zip(zip(*cells.values(), strict=True), raw.to_numpy().tolist(), strict=True))
        pages = [f"runs/{run}/{PAGE}" for run in shown.frame["folder"]] if name.endswith("_runs") else []
        links = {"folder": [quote(page) if (folder / page).is_file() else "" for page in pages]} if pages else {}
        latex = (folder / file).with_suffix(".tex")
        text = latex.read_text(encoding="utf-8") if latex.is_file() else ""
        return cls(name, file, len(table.frame), list(map(str, raw)), heads, rows, text, links)


def write_page(folder: Path, result: Result, record: Record, title: str) -> Path:
    """Write the HTML page of a run or a sweep, and return its path.

    Args:
        folder: Folder of the run or sweep, with all its other files.
        result: The result.
        record: Its record, with the names of all files.
        title: Title of the page.

    Raises:
        OSError: A file cannot be read, or the page cannot be written.
    """
    paths = record.tables
    tables = {name: PageTable.from_table(name, one, folder, paths[name]) for name, one in result.tables.items()}
    is_sweep = f"{result.experiment}_runs" in tables
    scores = tables.pop(result.experiment, None) if is_sweep else None
    if result.scores and not is_sweep:
        scores = PageTable.from_table("scores", _score_table(result.scores), folder, "results.json")
    found = [path for where in ("*", "tables/*", "figures/*") for path in sorted(folder.glob(where)) if path.is_file()]
    files = [path.relative_to(folder).as_posix() for path in found if path.name[0] != "." and path.name != PAGE]
    versions = {"seed": record.seed, **record.versions}
    body = render(
        "page.html",
        title=title,
        answer=result.answer,
        faults=[line for kind in ("faults", "warnings") for line in record.audit.get(kind, ()) if is_sweep],
        scores=scores,
        figures=[_figure(folder, name, file, record) for name, file in record.figures.items()],
        main=[table for name, table in tables.items() if result.tables[name].main],
        tables=[table for name, table in tables.items() if not result.tables[name].main],
        audit=format_facts(record.audit),
        ran={
            "Data": format_facts(record.data),
            "Encoder": format_facts(record.encoder),
            "Versions": format_facts(versions),
        },
        config=(folder / record.config).read_text(encoding="utf-8") if record.config else "",
        files={name: quote(name) for name in files},
        citation=(folder / BIBLIOGRAPHY).read_text(encoding="utf-8"),
        few=FEW,
        pluralize=pluralize,
    )
    page = document(title, body, styles=[resource("page.css")], scripts=[resource("tables.js")])
    return write_atomically(folder / PAGE, page)


def _score_table(scores: Mapping[str, Estimate]) -> Table:
    """Return the scores as a table, without numbers that no score has."""
    frame = pd.DataFrame(score_rows(scores)).astype(dict.fromkeys(ENDS, float))
    frame = frame.drop(columns=[end for end in ENDS if frame[end].isna().all()])
    units: dict[str, Unit | Sequence[Unit]] = {"value": frame["unit"].tolist()}
    return Table(frame, units | ({"p": "p"} if "p" in frame else {}), interval="value")


def _figure(folder: Path, name: str, file: str, record: Record) -> dict[str, object]:
    """Return the variables of the template for a figure: its picture, or the page of its coloured texts."""
    path, numbers = folder / file, record.figure_data.get(name)
    texts = path.read_text(encoding="utf-8") if path.suffix == ".html" else ""
    picture = f"data:image/png;base64,{b64encode(path.read_bytes()).decode()}" if path.suffix == ".png" else ""
    links = {Path(one).name: quote(one) for one in (file, numbers) if one}
    return {"name": name, "caption": record.captions[name], "texts": texts, "picture": picture, "links": links}
