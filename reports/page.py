"""The page of a run or a sweep, made from what lies in its folder: `python -m reports.page RUN [--out page.html]`.

Scores, figures with their numbers, tables, audit, what was run, config and citations stand in one file of HTML without
a network. It grows to `LIMIT` at most: what is left out is named on it, with the file that has it.
"""

import argparse
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from corpora.registry import CORPORA
from pages import Packed, document
from pages.shell import resource
from reports.citations import cited
from reports.parts import (
    MOST,
    ROWS,
    Drawing,
    ShownTable,
    copied,
    cost,
    counts,
    facts,
    html_texts,
    identifier,
    table_html,
    typed,
)
from reports.reader import NAN, Record, RecordError, find_record, rows_of
from reports.tables import DASH, LATEX_ROWS
from results import ColouredTexts, Table, Unit, command
from results.errors import UserError, counted
from results.estimates import ENDS
from results.files import write_atomically
from training.config import leaves, read_yaml

PAGE = "page.html"
LIMIT = 2_000_000  # bytes of a page
MANY = 12  # entries that are listed behind a button
PLANS = Path(__file__).resolve().parent.parent / "configs"
CORPUS_OPTIONS = ("corpus", "treebank", "documents")

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
    record = find_record(run)
    path = record.path.with_name(PAGE) if out is None else out
    return write_atomically(path, RunPage(Source(record, path.resolve().parent)).html())


@dataclass(frozen=True)
class Source:
    """The folder of a run or a sweep.

    Attributes:
        record: Its results.
        at: The folder of the page, from which its links lead.
        faults: Files that cannot be read, and why; grows while they are read.
    """

    record: Record
    at: Path
    faults: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The folder."""
        return self.record.path.parent

    @property
    def content(self) -> Mapping[str, Any]:
        """The content of `results.json`."""
        return self.record.content

    def text(self, file: str) -> str:
        """Return the text of a file of the folder; empty where it cannot be read."""
        try:
            return (self.folder / file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self.faults.append(f"{file}: {getattr(error, 'strerror', None) or error}")
            return ""

    def address(self, path: Path) -> str:
        """Return the address of a file in a link."""
        return quote(Path(os.path.relpath(path.resolve(), self.at)).as_posix())

    @cached_property
    def runs(self) -> list[Path]:
        """Folders of the runs of a sweep; none of a run."""
        try:
            rows = rows_of(self.folder) if self.record.is_sweep else {}
        except RecordError as error:
            self.faults.append(str(error))
            return []
        return [run for seeds in rows.values() for runs in seeds.values() for run in runs]

    @cached_property
    def config_text(self) -> str:
        """The text of `config.yaml`; empty where the run has none."""
        return self.text("config.yaml") if self.content["config"] else ""

    @cached_property
    def configs(self) -> list[Mapping[str, Any]]:
        """The config of the run, or the configs of all runs of a sweep."""
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
        """Short names of the classes of the models that the configs name."""
        models = (config.get("model") for config in self.configs)
        paths = (model.get("class_path") if isinstance(model, Mapping) else model for model in models)
        return list(dict.fromkeys(str(path).rpartition(".")[2] for path in paths if path))

    @property
    def classes(self) -> list[str]:
        """Short names of all classes that the configs name, the models first."""
        named = [str(value) for config in self.configs for name, value in leaves(config) if _last(name) == "class_path"]
        return list(dict.fromkeys([*self.models, *map(_last, named)]))

    @property
    def corpora(self) -> list[str]:
        """Corpora that the configs name: by their names, or by their files."""
        found = dict[str, None]()
        for config in self.configs:
            for name, value in leaves({key: config.get(key) for key in ("data", "model")}):
                option = name.startswith("data.") and _last(name) in CORPUS_OPTIONS
                if isinstance(value, str) and (option or value in CORPORA):
                    found[value] = None
        return list(found)

    @property
    def run_on(self) -> str:
        """Model class, encoder and corpora, in words."""
        encoder = self.content["encoder"]
        on = [str(encoder.get("name") or "")]
        shape = [encoder.get(name) for name in ("layers", "heads")]
        if all(isinstance(size, int) for size in shape):
            on[0] += f" ({shape[0]} layers × {shape[1]} heads)"
        on += self.corpora or list(dict.fromkeys(str(said.get("file")) for _, said in _parts(self.content["data"])))
        what = ", ".join(self.models) + (f" in {len(self.runs)} runs" if self.record.is_sweep else "")
        return " on ".join(filter(None, (what, ", ".join(filter(None, on)))))

    def table(self, name: str, file: str, described: str | None = None) -> ShownTable | None:
        """Read a table from its CSV file, of more than `MOST` rows the first; None where it cannot be read.

        Its columns are `described` in the results, under its name by default.
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
        """Return the scores of a run as a table; None without any."""
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

    def drawing(self, name: str, file: str) -> Drawing:
        """Read a figure and its numbers."""
        caption, data = str(self.content["captions"].get(name) or name), self.content["figure_data"].get(name)
        numbers = self.table(name, data, f"{name}.data") if data else None
        if file.endswith(".html"):
            return Drawing(name, caption, file, texts=self._texts(caption, numbers), numbers=numbers)
        vector = str(Path(file).with_suffix(".svg"))
        return Drawing(name, caption, vector, svg=self.text(vector), numbers=numbers)

    def _texts(self, caption: str, numbers: ShownTable | None) -> str:
        try:
            return "" if numbers is None else html_texts(ColouredTexts.from_frame(caption, numbers.raw), 4)
        except (KeyError, ValueError) as error:
            self.faults.append(f"{caption}: its numbers are no coloured texts: {error}")
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
    """The page of a run or a sweep."""

    def __init__(self, source: Source) -> None:
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
        """Yield what can be left out, the first first: kind, name, the file that has it, and its size."""
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
        """Write what a reader must know before the scores: problems, faults, and what is not on the page."""
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

    def _figure(self, one: Drawing) -> str:
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

    def _numbers(self, one: Drawing) -> str:
        """Write the numbers of a figure, whose rows appear when they are opened."""
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


def _config(source: Source) -> str:
    commands = "\n".join(copied(command, "Command") for command in _commands(source))
    if not source.config_text:
        return commands or "<p>The run has left no config.yaml.</p>"
    what, lines = "The plan" if source.record.is_sweep else "The config of the run", source.config_text.count("\n")
    return (
        f"{commands}\n<details><summary>{what}, config.yaml ({lines} lines)</summary>\n"
        f'<pre tabindex="0" role="region" aria-label="config.yaml">{escape(source.config_text)}</pre>\n</details>'
    )


def _commands(source: Source) -> list[str]:
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


def _files(source: Source) -> str:
    """Write links to the files of the folder."""
    paths = sorted(path for path in source.folder.iterdir() if path.is_file() and path.name[0] != ".")
    sizes = {path.name: path.stat().st_size for path in paths if path.name != PAGE}
    items = [f"{_link(source, name, name)} <small>{_bytes(size)}</small>" for name, size in sizes.items()]
    return f'<p class="note">In the folder of the run; the links are to it.</p>{_listed(items, "files")}'


def _link(source: Source, name: str, text: str) -> str:
    return f'<a href="{escape(source.address(source.folder / name))}">{escape(text)}</a>'


def _bytes(size: int) -> str:
    return f"{size:,} B" if size < 1000 else f"{size / 1000:,.0f} kB"


def _listed(items: Sequence[str], what: str) -> str:
    """Write a list of HTML, behind a button where it is long."""
    entries = "".join(f"<li>{item}</li>" for item in items)
    listed = f"<ul>{entries}</ul>"
    return f"<details><summary>{len(items)} {what}</summary>{listed}</details>" if len(items) > MANY else listed


def _contents(name: str, below: Sequence[str]) -> str:
    """Write an entry of the contents, with what stands below it."""
    kind = name.lower().rstrip("s")
    items = [f'<a href="#{quote(identifier(kind, one))}">{escape(one)}</a>' for one in below]
    nested = _listed(items, name.lower()) if items else ""
    return f'<li><a href="#{identifier(name.lower())}">{name}</a>{nested}</li>'


def main(args: Sequence[str]) -> int:
    """Run the command line `args`: write a page and print its path. Raises UserError where there are no results."""
    parser = argparse.ArgumentParser(prog="python -m reports.page", description="Write the page of a run or a sweep.")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run or of a sweep, or its results.json")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the page goes (RUN/page.html)")
    options = parser.parse_args(args)
    print(write_page(options.run, options.out))
    return 0


if __name__ == "__main__":
    command.run(main)
