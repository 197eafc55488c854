"""One page of a run or a sweep, made from what lies in its folder.

Scores, figures with their numbers, tables, audit, what was run, config and citations stand in one file of HTML without
a network. It grows to `LIMIT` at most: what is left out is named on it, with the file that has it.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from pages import Packed, document
from pages.shell import resource
from reports.citations import cited
from reports.drawn import texts_of
from reports.parts import (
    MOST,
    ROWS,
    Drawing,
    ShownTable,
    beginning,
    copied,
    cost,
    counts,
    facts,
    identifier,
    rows_of,
    table_html,
    typed,
)
from reports.reader import NAN
from reports.source import Source
from reports.tables import DASH, LATEX_ROWS
from reports.texts import html_texts
from results import Table, Unit
from results.files import write_atomically
from results.result import ENDS

PAGE = "page.html"
LIMIT = 2_000_000  # bytes of a page
MANY = 12  # entries that are listed behind a button

UNITS = (
    f"Fractions are shown ×100: 54.3 is 0.543. Brackets hold the 95 % interval, sd is the standard deviation over "
    f"seeds, p is two-sided. Nats and bits are marked, other numbers are plain; {DASH} is undefined. Copies have the "
    "numbers as they were computed."
)
OMITTED = {"numbers": "numbers of the figure", "figure": "figure", "rows": f"rows after the first {ROWS} of the table"}


def write_page(run: Path, out: Path | None = None) -> Path:
    """Write the page of a run or a sweep, `page.html` in its folder or `out`; return its path.

    Files of the run that are missing or damaged are named on the page.

    Raises:
        UserError: There are no results in `run`.
        OSError: The page cannot be written.
    """
    source = Source.read(run)
    path = source.folder / PAGE if out is None else out
    return write_atomically(path, RunPage(source, path.resolve().parent).html())


class RunPage:
    """The page of a run or a sweep; its links lead from the folder `at`."""

    def __init__(self, source: Source, at: Path) -> None:
        self.source, self.at = source, at
        self.omitted: dict[tuple[str, str], str] = {}  # kind and name of what was left out: the file that has it
        described = source.content["columns"]
        views = [self._view(name, file, described.get(name)) for name, file in source.files("tables")]
        self.tables = [self._shortened(view) for view in views if view]
        self.scores = self._scores()
        self.drawings = [self._drawing(name, file) for name, file in source.files("figures")]
        self.filled = True  # whether rows of tables are elements of the page before its scripts make them
        self.data: dict[str, object] = {}

    def html(self) -> str:
        """Write the page, without its largest parts where it would be too large."""
        while True:
            text = self._html()
            rest = [part for part in self._parts() if part[:2] not in self.omitted]
            excess = len(text.encode()) - LIMIT
            if excess <= 0 or not rest:
                return text
            if self.filled:  # at first without what the scripts can make
                self.filled = False
                continue
            for kind, name, file, size in rest:
                self.omitted[kind, name] = file
                excess -= size
                if excess <= 0:
                    break

    def _parts(self) -> Iterator[tuple[str, str, str, int]]:
        """What can be left out, the first first: kind, name, the file that has it, and its size."""
        numbers = [(one.name, one.numbers) for one in self.drawings if one.numbers and self._has("numbers", one.name)]
        rows = [view for view in self.tables if len(view) > ROWS and self._has("rows", view.name)]
        for parts in (
            [("numbers", name, view.file, cost(view.packed)) for name, view in numbers],
            [("figure", one.name, one.file, one.cost) for one in self.drawings],
            [("rows", view.name, view.file, cost(view.packed)) for view in rows],
        ):
            yield from sorted(parts, key=lambda part: -part[-1])

    # What it is made of

    def _scores(self) -> ShownTable | None:
        """The scores of a run, or the table of a sweep."""
        experiment, scores = self.source.experiment, self.source.record.scores
        if self.source.is_sweep:
            return next((view for view in self.tables if view.name == experiment), None)
        lines = [{"score": name, "value": one.value, "unit": one.unit} for name, one in scores.items()]
        for line, one in zip(lines, scores.values(), strict=True):
            line |= {end: NAN if (number := getattr(one, end)) is None else number for end in ENDS}
        frame = pd.DataFrame(lines, columns=["score", "value", *ENDS, "unit"])
        frame = frame.drop(columns=[end for end in ENDS if frame[end].isna().all()])
        units: dict[str, Unit | Sequence[Unit]] = {"value": [one.unit for one in scores.values()]}
        units |= {"p": "p"} if "p" in frame else {}
        raw = frame.map(lambda value: "" if pd.isna(value) else str(value))
        return (
            ShownTable("scores", "results.json", Table(frame, units, interval="value"), raw, experiment)
            if lines
            else None
        )

    def _view(self, name: str, file: str, described: Mapping[str, Any] | None) -> ShownTable | None:
        raw, experiment = self.source.csv(file), self.source.experiment
        if raw is None:
            return None
        try:
            table = typed(raw, described)
        except (KeyError, TypeError, ValueError) as error:  # rows that were added or taken away
            self.source.faults.append(f"{file} does not fit what results.json says of its columns: {error}")
            table = typed(raw, None)
        links = {}
        if self.source.is_sweep and name == f"{experiment}_runs" and "folder" in raw:
            pages = [self.source.folder / "runs" / folder / PAGE for folder in raw["folder"]]
            links["folder"] = [self._address(page) if page.is_file() else "" for page in pages]
        return ShownTable(name, file, table, raw, experiment, links)

    def _shortened(self, view: ShownTable) -> ShownTable:
        """The table, or its first rows where it has more than a page may hold."""
        if len(view) <= MOST:
            return view
        self.omitted["rows", view.name] = view.file
        return replace(view, table=beginning(view.table, ROWS), raw=view.raw.head(ROWS), rows=len(view))

    def _drawing(self, name: str, file: str) -> Drawing:
        source, content = self.source, self.source.content
        caption, data = str(content["captions"].get(name) or name), content["figure_data"].get(name)
        numbers = self._view(name, data, content["columns"].get(f"{name}.data")) if data else None
        if numbers is not None and len(numbers) > MOST:
            self.omitted["numbers", name] = numbers.file
        vector = str(Path(file).with_suffix(".svg"))
        if file.endswith(".html"):
            return Drawing(name, caption, file, texts=self._texts(caption, numbers), numbers=numbers)
        return Drawing(name, caption, vector, svg=source.text(vector), numbers=numbers)

    def _texts(self, caption: str, numbers: ShownTable | None) -> str:
        if numbers is None:
            return ""
        try:
            return html_texts(texts_of(caption, numbers.raw), 4)
        except (KeyError, ValueError) as error:
            self.source.faults.append(f"{numbers.file} does not hold coloured texts: {error}")
            return ""

    # How it is written

    def _html(self) -> str:
        source = self.source
        self.data = {"limits": {"rows": ROWS, "latex": LATEX_ROWS}}
        listed = [view for view in self.tables if view is not self.scores]
        sections = {
            "Scores": self._score_section(),
            "Figures": self._figures(),
            "Tables": "\n".join(self._table_section(view) for view in listed),
            "Audit": counts(source.content["audit"]) or "<p>Nothing was counted.</p>",
            "What was run": self._what_was_run(),
            "Config and command": self._config(),
            "Files": self._files(),
            "Citation": '<p class="note">BibTeX of the protocols that were run, of the corpora and of this application.'
            f"</p>\n{copied(cited(source.classes, source.corpora), 'BibTeX')}",
        }
        below = {"Figures": [one.name for one in self.drawings], "Tables": [view.name for view in listed]}
        contents = "\n".join(_contents(name, below.get(name, [])) for name, content in sections.items() if content)
        body = "\n".join(
            f'<section aria-labelledby="{at}">\n<h2 id="{at}">{name}</h2>\n{content}\n</section>'
            for name, content in sections.items()
            for at in [identifier(name.lower())]
            if content
        )
        page = (
            f'<div class="page">\n<nav aria-label="Contents">\n<ul>\n{contents}\n</ul>\n</nav>\n<main>\n'
            f'<h1>{escape(source.experiment)}</h1>\n<p class="on">{escape(source.run_on)}</p>\n'
            "<noscript><p>Figures and sorting need the scripts of this page; the files of the run stand below.</p>"
            f"</noscript>\n{self._notices()}\n{body}\n</main>\n</div>"
        )
        if pictures := {one.name: one.svg for one in self.drawings if one.svg and self._has("figure", one.name)}:
            self.data["pictures"] = Packed(json.dumps(pictures, ensure_ascii=False).encode())
        styles = [resource("texts.css"), resource("report.css")]
        title = ": ".join(filter(None, (source.experiment, source.run_on)))
        return document(title, page, styles=styles, scripts=[resource("report.js")], data=self.data)

    def _has(self, kind: str, name: str) -> bool:
        return (kind, name) not in self.omitted

    def _notices(self) -> str:
        """What a reader must know before the scores: problems, faults, and what is not on the page."""
        left = [f"{OMITTED[kind]} {name}: {file}" for (kind, name), file in self.omitted.items()]
        found = {
            "Problems of the sweep": self.source.problems,
            "Files that cannot be shown": list(dict.fromkeys(self.source.faults)),
            f"Left out, so that the page stays below {LIMIT / 1e6:.0f} MB; the files lie beside it": left,
        }
        return "\n".join(
            f'<section class="notice"><h2>{title}</h2>{_listed(list(map(escape, lines)), "entries")}</section>'
            for title, lines in found.items()
            if lines
        )

    def _score_section(self) -> str:
        table = "<p>There are none.</p>" if self.scores is None else self._table(self.scores)
        return f'<p class="note">{UNITS}</p>\n{table}'

    def _table_section(self, view: ShownTable) -> str:
        absent = list(view.links.get("folder", ())).count("")
        remedy = "<code>python -m reports.page RUN</code> makes the page of a run."
        note = f'<p class="note">Without a page: {absent} of {len(view)} runs. {remedy}</p>' if absent else ""
        return f'<h3 id="{identifier("table", view.name)}">{escape(view.name)}</h3>\n{note}{self._table(view)}'

    def _table(self, view: ShownTable) -> str:
        block, whole = identifier("rows", view.name), self._has("rows", view.name)
        self.data[block] = view.packed if whole else view.beginning
        return table_html(view, block, whole=whole, filled=self.filled)

    def _figures(self) -> str:
        figures = "\n".join(self._figure(one) for one in self.drawings)
        return f'<div class="figures">\n{figures}\n</div>' if figures else ""

    def _figure(self, one: Drawing) -> str:
        shown = self._has("figure", one.name)
        content = one.html if shown else f'<p class="note">Left out of this page: {escape(one.file)}</p>'
        files = [Path(one.file).with_suffix(suffix) for suffix in (".svg", ".pdf", ".png", ".html")]
        links = [self._link(file.name, file.suffix[1:].upper()) for file in files if self._lies(file)]
        save = f'<button type="button" data-save="{escape(one.name)}">Save as SVG</button>' if shown and one.svg else ""
        return (
            f'<figure{" class=wide" if one.wide else ""} id="{identifier("figure", one.name)}">\n'
            f"<h3>{escape(one.name)}</h3>\n{content}\n"
            f'<figcaption>{escape(one.caption)}</figcaption>\n<div class="tools">{save}<span>{" ".join(links)}</span>'
            f"</div>\n{self._numbers(one)}\n</figure>"
        )

    def _lies(self, file: Path) -> bool:
        return (self.source.folder / file).is_file()

    def _numbers(self, one: Drawing) -> str:
        """The numbers of a figure, whose rows appear when they are opened."""
        if one.numbers is None:
            return '<p class="note">What is drawn was not written as numbers.</p>'
        if not self._has("numbers", one.name):
            return f'<p class="note">Its numbers are in {escape(one.numbers.file)}.</p>'
        block = identifier("numbers", one.name)
        self.data[block] = one.numbers.packed
        summary = f"Numbers of this figure ({rows_of(len(one.numbers))})"
        table = table_html(one.numbers, block, filled=False)
        return f'<details class="numbers"><summary>{summary}</summary>\n{table}\n</details>'

    def _what_was_run(self) -> str:
        content, files = self.source.content, self.source.files_of_data()
        parts = []
        if len(files):
            heads = "".join(f'<th scope="col">{escape(str(name))}' for name in files)
            rows = "\n".join(
                f'<tr><th scope="row">{escape(str(row[0]))}{"".join(f"<td>{escape(str(cell))}" for cell in row[1:])}'
                for row in files.itertuples(index=False)
            )
            parts.append(
                '<h3>Data</h3>\n<div class="scroll" tabindex="0" role="region" aria-label="Data">'
                f'<table class="data">\n<tr>{heads}\n{rows}\n</table></div>'
            )
        parts += [f"<h3>{name.capitalize()}</h3>\n{facts(content[name])}" for name in ("encoder",) if content[name]]
        seed = {} if content.get("seed") is None else {"seed": content["seed"]}
        versions = {name: version for name, version in content["versions"].items() if version is not None}
        parts.append(f"<h3>Seed and versions</h3>\n{facts({**seed, **versions})}")
        return "\n".join(parts)

    def _config(self) -> str:
        source = self.source
        commands = "\n".join(copied(command, "Command") for command in source.commands())
        if not source.config_text:
            return commands or "<p>The run has left no config.yaml.</p>"
        what, lines = "The plan" if source.is_sweep else "The config of the run", source.config_text.count("\n")
        return (
            f"{commands}\n<details><summary>{what}, config.yaml ({lines} lines)</summary>\n"
            f'<pre tabindex="0" role="region" aria-label="config.yaml">{escape(source.config_text)}</pre>\n</details>'
        )

    def _files(self) -> str:
        """Links to the files of the folder."""
        paths = sorted(path for path in self.source.folder.iterdir() if path.is_file() and path.name[0] != ".")
        sizes = {path.name: path.stat().st_size for path in paths if path.name != PAGE}
        items = [f"{self._link(name, name)} <small>{_bytes(size)}</small>" for name, size in sizes.items()]
        return f'<p class="note">In the folder of the run; the links are to it.</p>{_listed(items, "files")}'

    def _link(self, name: str, text: str) -> str:
        return f'<a href="{escape(self._address(self.source.folder / name))}">{escape(text)}</a>'

    def _address(self, path: Path) -> str:
        return quote(Path(os.path.relpath(path.resolve(), self.at)).as_posix())


def _bytes(size: int) -> str:
    return f"{size:,} B" if size < 1000 else f"{size / 1000:,.0f} kB"


def _listed(items: Sequence[str], what: str) -> str:
    """A list of HTML, behind a button where it is long."""
    entries = "".join(f"<li>{item}</li>" for item in items)
    listed = f"<ul>{entries}</ul>"
    return f"<details><summary>{len(items)} {what}</summary>{listed}</details>" if len(items) > MANY else listed


def _contents(name: str, below: Sequence[str]) -> str:
    """An entry of the contents, with what stands below it."""
    kind = name.lower().rstrip("s")
    items = [f'<a href="#{quote(identifier(kind, one))}">{escape(one)}</a>' for one in below]
    nested = _listed(items, name.lower()) if items else ""
    return f'<li><a href="#{identifier(name.lower())}">{name}</a>{nested}</li>'
