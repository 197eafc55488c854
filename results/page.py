"""HTML page of a run or a sweep: one file beside those that it shows, which works without a network."""

import io
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from attention_probing.results.citations import BIBLIOGRAPHY
from attention_probing.results.digests import RECORD
from attention_probing.results.document import document, render, resource
from attention_probing.results.errors import pluralize
from attention_probing.results.estimates import ENDS, FEW, Estimate, Table, Unit, score_rows
from attention_probing.results.files import csv_text, write_atomically
from attention_probing.results.record import Record
from attention_probing.results.result import Result
from attention_probing.results.tables import DASH, SIGNS, answering_columns, format_cells, format_facts

PAGE = "page.html"
PAGE_ROWS = 1000
"""Most rows of a table on the page."""


@dataclass(frozen=True)
class PageTable:
    """Table of a page.

    Attributes:
        name: Name of the table.
        file: Name of the file that has all rows.
        total: Number of rows in the file.
        columns: Names of the columns in the file.
        heads: Heading of each column, those that answer first: name, its place in `columns`, True if it is numeric,
            and the sign of its unit.
        rows: Formatted cells of each row, and the strings of the file for sorting and copying.
        latex: The table in LaTeX; empty if it is too large for a printed page.
        note: Sentence below the number of rows; it may be empty.
        links: Addresses for the cells of a column, by name of the column; empty for a cell without a link.
    """

    name: str
    file: str
    total: int
    columns: Sequence[str]
    heads: Sequence[tuple[str, int, bool, str]]
    rows: Sequence[tuple[tuple[str, ...], Sequence[str]]]
    latex: str = ""
    note: str = ""
    links: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def from_table(cls, name: str, table: Table, folder: Path, file: str) -> "PageTable":
        """Create the table from the first rows of a table, whose LaTeX lies in a folder beside its file."""
        first = table.rows(range(min(PAGE_ROWS, len(table.frame))))
        raw = pd.read_csv(io.StringIO(csv_text(first.frame)), dtype=str, keep_default_na=False)
        formatted = format_cells(first, missing=DASH)
        first_columns = answering_columns(table) if table.main else set()
        cells = {}
        for column in sorted(formatted, key=lambda column: column not in first_columns):
            cells[column] = formatted[column]
        columns = list(first.frame)
        heads = []
        for column in cells:
            is_numeric = pd.api.types.is_numeric_dtype(table.frame[column])
            sign = SIGNS.get(str(table.units.get(column)), "")
            heads.append((column, columns.index(column), is_numeric, sign))
        formatted_rows = zip(*cells.values(), strict=True)
        rows = list(zip(formatted_rows, raw.to_numpy().tolist(), strict=True))
        links = {}
        if name.endswith("_runs"):
            links["folder"] = [_link_to_run(folder, run) for run in first.frame["folder"]]
        latex = (folder / file).with_suffix(".tex")
        text = latex.read_text(encoding="utf-8") if latex.is_file() else ""
        return cls(name, file, len(table.frame), list(map(str, raw)), heads, rows, text, table.note, links)


def _link_to_run(folder: Path, run: str) -> str:
    """Return the address of the page of a run of a sweep; empty if it has none."""
    page = f"runs/{run}/{PAGE}"
    return quote(page) if (folder / page).is_file() else ""


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
    tables = {}
    for name, table in result.tables.items():
        tables[name] = PageTable.from_table(name, table, folder, record.tables[name])
    scores = None
    faults = []
    if record.is_sweep:
        scores = tables.pop(result.experiment, None)
        faults = [*record.audit.get("faults", ()), *record.audit.get("warnings", ())]
    elif result.scores:
        scores = PageTable.from_table("scores", _score_table(result.scores), folder, RECORD)
    main = []
    others = []
    for name, page_table in tables.items():
        if result.tables[name].main:
            main.append(page_table)
        else:
            others.append(page_table)
    body = render(
        "page.html",
        title=title,
        answer=result.answer,
        faults=faults,
        scores=scores,
        figures=[_figure(folder, name, file, record) for name, file in record.figures.items()],
        main=main,
        tables=others,
        audit=format_facts(record.audit),
        ran={
            "Data": format_facts(record.data),
            "Encoder": format_facts(record.encoder),
            "Versions": format_facts({"seed": record.seed, **record.versions}),
        },
        config=_read_config(folder, record),
        files={name: quote(name) for name in _find_files(folder)},
        citation=(folder / BIBLIOGRAPHY).read_text(encoding="utf-8"),
        few=FEW,
        pluralize=pluralize,
    )
    page = document(title, body, styles=[resource("page.css")], scripts=[resource("tables.js")])
    return write_atomically(folder / PAGE, page)


def _read_config(folder: Path, record: Record) -> str:
    """Return the text of the config of a run; empty if there is none."""
    if record.config is None:
        return ""
    return (folder / record.config).read_text(encoding="utf-8")


def _find_files(folder: Path) -> list[str]:
    """Return the names of the files of a run, without hidden ones and the page itself."""
    names = []
    for pattern in ("*", "tables/*", "figures/*"):
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and not path.name.startswith(".") and path.name != PAGE:
                names.append(path.relative_to(folder).as_posix())
    return names


def _score_table(scores: Mapping[str, Estimate]) -> Table:
    """Return the scores as a table, without numbers that no score has."""
    frame = pd.DataFrame(score_rows(scores)).astype(dict.fromkeys(ENDS, float))
    frame = frame.drop(columns=[end for end in ENDS if frame[end].isna().all()])
    units: dict[str, Unit | Sequence[Unit]] = {"value": frame["unit"].tolist()}
    if "p" in frame:
        units["p"] = "p"
    return Table(frame, units, interval="value")


def _figure(folder: Path, name: str, file: str, record: Record) -> dict[str, object]:
    """Return the variables of the template for a figure: its picture, or the page of its coloured texts."""
    path = folder / file
    texts = ""
    picture = ""
    if path.suffix == ".html":
        texts = path.read_text(encoding="utf-8")
    if path.suffix == ".png":
        picture = f"data:image/png;base64,{b64encode(path.read_bytes()).decode()}"
    links = {path.name: quote(file)}
    numbers = record.figure_data.get(name)
    if numbers:
        links[Path(numbers).name] = quote(numbers)
    return {"name": name, "caption": record.captions[name], "texts": texts, "picture": picture, "links": links}
