"""Table of published findings with our numbers: `python -m studies.paper [--runs DIR] [--out FILE]`.

studies/published.yaml has the published numbers, and says how each finding is judged. The plan that it names has
the runs. docs/papers/index.md is written from the two and from the results of the runs, with a column for each encoder
that the runs were given; docs/papers/index.json has our numbers, so that the page keeps those whose runs are elsewhere.
"""

import argparse
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pandas as pd
from rich.console import Console
from rich.text import Text

from attention_probing.commands.sweep_options import Options, options_of
from attention_probing.commands.sweep_plan import read_sweep
from attention_probing.commands.sweep_rows import Row
from attention_probing.results import UserError, command
from attention_probing.results.errors import list_first, pluralize
from attention_probing.results.files import write_atomically
from attention_probing.results.record import Record
from attention_probing.results.tables import DASH, format_markdown, format_number, score_cell
from studies.findings import (
    CANNOT,
    FIXED,
    MISSING,
    NOT_SEEN,
    SEEN,
    VERDICTS,
    Finding,
    Judgement,
    Published,
    interval_of,
    judge,
    read_published,
)
from studies.numbers import (
    ENCODER,
    Numbers,
    compare_with_former,
    encoders_of,
    finished_runs,
    read_numbers,
    row_of,
    rows_of,
    write_numbers,
)

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "studies" / "published.yaml"
PAGE = ROOT / "docs" / "papers" / "index.md"
COLUMNS = ("seen if", "published")  # beside the items and the models
MARKS = {SEEN: "✓", NOT_SEEN: "✗"}
_BLANKS = re.compile(r"\s+", re.ASCII)  # but no-break spaces, which keep an interval on one line
_MARKUP = re.compile(r"[\\`*_{}|<]|&(?=[#\w])|\](?=[(\[])")  # what Markdown or HTML may read as more than text


@dataclass(frozen=True)
class Line:
    """Line of the page: a finding, and its judgement with each encoder whose runs it needs.

    Attributes:
        finding: The finding.
        judgements: Judgement by encoder.
        why: Reason why the finding cannot be seen here; empty if it can.
    """

    finding: Finding
    judgements: dict[str, Judgement]
    why: str = ""

    @property
    def differs(self) -> bool:
        """True if the finding is seen with one encoder and not with another."""
        return bool(self._intervals(SEEN) and self._intervals(NOT_SEEN))

    @property
    def is_clear(self) -> bool:
        """True if the interval of an encoder with which the finding is seen lies apart from that of one without."""
        for low, high in self._intervals(SEEN):
            for least, most in self._intervals(NOT_SEEN):
                if low > most or high < least:
                    return True
        return False

    def _intervals(self, verdict: str) -> list[tuple[float, float]]:
        """Return the deciding intervals of the encoders with a verdict."""
        return [judgement.interval for judgement in self.judgements.values() if judgement.verdict == verdict]

    @property
    def condition(self) -> str:
        """Condition under which the finding is seen, without the number of a model."""
        seen = self.finding.seen
        if seen == "±":
            return seen
        if not FIXED.fullmatch(seen):
            return "lower" if seen[0] == "<" else "higher"
        units = [judgement.ours.unit for judgement in self.judgements.values() if judgement.ours]
        if not units:
            return DASH
        bound = self.finding.bound(units[0])
        low, high = interval_of(bound)
        least = format_number(low, bound.unit, missing=DASH)
        if seen[0] in "<>":
            return f"{seen[0]} {least}"
        return f"{least} to {format_number(high, bound.unit, missing=DASH)}"

    @property
    def published(self) -> str:
        """Published number or statement, with its source."""
        published = self.finding.published
        text = published if isinstance(published, str) else f"{published:g}"
        return f"{text} ({self.finding.source})"

    def cell(self, encoder: str) -> str:
        """Return mark, number and interval with one encoder; a number of ours to compare with follows `vs`.

        The cell of the default encoder says that a row has not been run; that of another encoder is then blank.
        """
        judgement = self.judgements.get(encoder)
        if judgement is None:
            return ""
        if judgement.verdict == MISSING:
            return "" if encoder else MISSING
        if judgement.verdict == CANNOT or judgement.ours is None or judgement.bound is None:
            return DASH
        number = score_cell(judgement.ours).replace(", ", ",\N{NO-BREAK SPACE}")
        cell = f"{MARKS[judgement.verdict]} {number}"
        if not FIXED.fullmatch(self.finding.seen):
            cell += f" vs {format_number(judgement.bound.value, judgement.bound.unit, missing=DASH)}"
        return cell


def judge_on_all(finding: Finding, models: Mapping[str, Numbers], notes: list[str]) -> Line:
    """Judge a finding with each encoder: with the default one, and with those that change the runs of its rows.

    Args:
        finding: The finding.
        models: Numbers by encoder; the first is the default encoder.
        notes: Receives messages about numbers that the results lack.
    """
    if finding.cannot:
        return Line(finding, {"": Judgement(None, None, CANNOT)}, finding.cannot)
    default = models[""].keys
    judgements = {}
    why = ""
    for encoder, numbers in models.items():
        rows = [row_of(place) for place in finding.places()]
        if encoder and all(numbers.keys[row] == default[row] for row in rows):
            continue
        try:
            judgements[encoder] = judge(finding, numbers)
        except UserError as error:
            judgements[encoder] = Judgement(None, None, CANNOT)
            notes.append(f"{finding.paper}, {finding.item}: {error}")
            why = why or "the results have no such number"
    if any(judgement.verdict != CANNOT for judgement in judgements.values()):
        why = ""
    elif not why:
        why = "the number is undefined"
    return Line(finding, judgements, why)


def write_page(path: Path, folder: Path, out: Path, options: Options | None = None) -> list[str]:
    """Write the page with the table of published findings: a table for each paper, with a column for each encoder.

    Args:
        path: File of the published findings.
        folder: Folder of one or several sweeps with the runs.
        out: File of the page, in Markdown. Our numbers are written beside it, with the suffix `.json`. Numbers
            that are there already are kept if their runs are not below `folder` and the plan still has them.
        options: Options of the program that all runs were given, without the encoder.

    Returns:
        Messages: how many findings are seen, which runs are not used, and which numbers are kept.

    Raises:
        UserError: The published findings, the plan or the numbers of the former page cannot be read.
    """
    plan, published, findings = read_published(path)
    file = out.with_suffix(".json")
    notes: list[str] = []
    runs = finished_runs(folder, notes)
    before = read_numbers(file)
    with_heading = dict.fromkeys(["", *published.models])
    with_numbers = encoders_of(runs.values()) | before.keys()
    rows: dict[str, Sequence[Row]] = {}
    for encoder in [*with_heading, *sorted(with_numbers - with_heading.keys())]:
        rows_of_plan = read_sweep(plan, _with_encoder(options or {}, encoder)).rows
        rows[encoder] = _exchange(rows_of_plan, published.instead.get(encoder, {}))
    models = {}
    for encoder, rows_of_model in rows.items():
        models[encoder] = Numbers.from_rows(rows_of_model, runs, before.get(encoder, {}), notes)
    lines = [judge_on_all(finding, models, notes) for finding in findings]
    notes += compare_with_former(models, before, file, folder)
    notes += _list_strange(runs, rows.values(), folder, plan)
    headings = {}
    for encoder, numbers in models.items():
        if numbers.now or not encoder:
            headings[encoder] = published.models.get(encoder, encoder or "default encoder")
    page = Page(published, lines, headings, _command_of_row(plan, options or {}), _rows_by_version(models))
    write_numbers(file, {encoder: models[encoder].now for encoder in headings})
    write_atomically(out, "\n\n".join(page.blocks()) + "\n")
    return list(dict.fromkeys([*page.counts(), *notes]))


def _with_encoder(options: Options, encoder: str) -> Options:
    """Return options of runs with an encoder; that of the default encoder is the empty text."""
    if not encoder:
        return options
    return {**options, ENCODER: encoder}


def _exchange(rows: Sequence[Row], instead: Mapping[str, str]) -> list[Row]:
    """Return the rows, some with the runs of another row: `instead` has the name of the other by that of the row."""
    by_name = {row.name: row for row in rows}
    exchanged = []
    for row in rows:
        other = by_name[instead.get(row.name, row.name)]
        exchanged.append(replace(other, labels=row.labels))
    return exchanged


def _list_strange(runs: Mapping[str, Record], rows: Iterable[Sequence[Row]], folder: Path, plan: Path) -> list[str]:
    """Return a message about the runs that no row reads."""
    used: set[str] = set()
    for rows_of_model in rows:
        for row in rows_of_model:
            for run in row.all_runs():
                used.update(needed.key for needed in run.with_needed())
    strange = [str(record.path.parents[2]) for key, record in runs.items() if key not in used]
    if not strange:
        return []
    return [
        f"{pluralize(len(strange), 'run')} below {folder} of another config, corpus or option than the rows of "
        f"{plan.name}, not used: {list_first(strange)}"
    ]


def _rows_by_version(models: Mapping[str, Numbers]) -> dict[tuple[str, str], list[str]]:
    """Return the rows whose results a version of the program made, by version and encoder."""
    by_version: dict[tuple[str, str], list[str]] = {}
    for encoder, numbers in models.items():
        for name, number in numbers.now.items():
            row, *others = rows_of(name)
            if others:
                continue  # a difference of two rows, which stand by themselves
            rows = by_version.setdefault((number.version, encoder), [])
            if row not in rows:
                rows.append(row)
    return by_version


def _command_of_row(plan: Path, options: Options) -> str:
    """Return the command that makes the runs of a row, in Markdown."""
    path = plan.relative_to(ROOT) if plan.is_relative_to(ROOT) else plan
    words = ["probing", "sweep", str(path), "--row", "ROW"]
    if options:
        words.append("--")
    for name, value in options.items():
        words.append(f"--{name}={value}")
    line = shlex.join(words)
    if line.isprintable() and not set(line) & set("`|"):
        return f"`{line}`"
    return f"<code>{escaped(line)}</code>"


@dataclass(frozen=True)
class Page:
    """The page of published findings, in Markdown.

    Attributes:
        published: Content of the file of published findings.
        lines: The findings with their judgements.
        headings: Heading of the column of each encoder; the first is that of the default encoder.
        command_of_row: Command that makes the runs of a row, in Markdown.
        versions: Rows whose results a version of the program made, by version and encoder.
    """

    published: Published
    lines: Sequence[Line]
    headings: Mapping[str, str]
    command_of_row: str
    versions: Mapping[tuple[str, str], Sequence[str]]

    def blocks(self) -> list[str]:
        """Return the blocks of the page: the head, the findings on which models differ, the counts and the papers."""
        blocks = [_without_tags(self.published.about)]
        blocks += self._differences()
        blocks += ["## Counts", _markdown(self._counts_by_paper())]
        blocks.append("## How a finding is judged")
        if self.published.rule:
            blocks.append(_without_tags(self.published.rule))
        blocks.append(f"The runs of a row: {self.command_of_row}; with another encoder: `--encoder NAME` behind `--`.")
        for paper in self._papers():
            blocks += self._section(paper)
        reasons = [f"{number}. {escaped(why)}" for why, number in self._reasons().items()]
        if reasons:
            blocks += ["## Most likely reasons", "\n".join(reasons)]
        if self.versions:
            blocks += ["## Versions", "Version of the program that made the results of a row:", self._versions()]
        return blocks

    def counts(self) -> list[str]:
        """Return the number of findings with each verdict as a sentence for each encoder."""
        sentences = []
        for encoder, heading in self.headings.items():
            counts = _count(self.lines, encoder)
            if encoder:
                counts.pop(MISSING)
            verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
            sentences.append(f"{heading}: {verdicts}")
        return sentences

    def _papers(self) -> list[str]:
        return list(dict.fromkeys(line.finding.paper for line in self.lines))

    def _differences(self) -> list[str]:
        """Return the findings that are seen with one encoder and not with another, first those with intervals apart."""
        several = [line for line in self.lines if len(_judged(line)) > 1]
        if not several:
            return []
        blocks = ["## Where models differ"]
        if self.published.differences:
            blocks.append(_without_tags(self.published.differences))
        clear = [line for line in several if line.is_clear]
        others = [line for line in several if line.differs and not line.is_clear]
        blocks.append(
            f"{pluralize(len(several), 'finding')} can be judged on more than one model; "
            f"the verdicts differ on {len(clear) + len(others)}."
        )
        if clear:
            blocks.append(
                f"On {len(clear)} the models lie apart: the deciding interval of one with ✓ and that of one with ✗ "
                "do not overlap."
            )
            blocks.append(self._table_of_differences(clear))
        if others:
            blocks.append(
                f"On {len(others)} the intervals overlap: one model is just across the bound, which does not show "
                "that models differ."
            )
            blocks.append(self._table_of_differences(others))
        return blocks

    def _table_of_differences(self, lines: Sequence[Line]) -> str:
        rows = []
        for line in lines:
            cells = [line.cell(encoder) for encoder in self.headings]
            rows.append([line.finding.paper, line.finding.item, line.condition, line.published, *cells])
        return _markdown(pd.DataFrame(rows, columns=["paper", "item", *COLUMNS, *self.headings.values()]))

    def _counts_by_paper(self) -> pd.DataFrame:
        """Return the numbers of findings that are seen and not seen, by paper and encoder."""
        rows = []
        for paper in self._papers():
            lines = [line for line in self.lines if line.finding.paper == paper]
            cells = []
            for encoder in self.headings:
                counts = _count(lines, encoder)
                is_blank = not counts[SEEN] and not counts[NOT_SEEN]
                cells.append("" if is_blank else f"{counts[SEEN]} ✓, {counts[NOT_SEEN]} ✗")
            counts = _count(lines, "")
            rows.append([paper, *cells, counts[CANNOT], counts[MISSING]])
        return pd.DataFrame(rows, columns=["paper", *self.headings.values(), CANNOT, MISSING])

    def _section(self, paper: str) -> list[str]:
        """Return the table of a paper, and the list of its findings that cannot be seen here."""
        lines = [line for line in self.lines if line.finding.paper == paper]
        possible = [line for line in lines if not line.why]
        blocks = [f"## {_link(paper)}"]
        if possible:
            blocks.append(self._table_of_findings(possible))
            blocks.append(f"Rows: {', '.join(self._row_names(possible))}")
        impossible = []
        for line in lines:
            if line.why:
                finding = escaped(f"{line.finding.item}: {line.published}")
                impossible.append(f"- {finding}: {escaped(line.why)}")
        if impossible:
            blocks += ["Cannot be seen here:", "\n".join(impossible)]
        return blocks

    def _table_of_findings(self, lines: Sequence[Line]) -> str:
        """Return the table of findings of one paper, in groups by the models and data of the published numbers.

        Every group begins with a row of headings, the first of which is its models and data. That of the first group
        is the header of the table.
        """
        encoders = [encoder for encoder in self.headings if any(line.cell(encoder) for line in lines)]
        headings = [self.headings[encoder] for encoder in encoders]
        if encoders == [""]:
            headings = ["ours"]
        groups: dict[str, list[Line]] = {}
        for line in lines:
            groups.setdefault(line.finding.of, []).append(line)

        header: list[str] = []
        rows: list[list[str]] = []
        for models_and_data, group in groups.items():
            titles = [escaped(title) for title in (models_and_data, *COLUMNS, *headings)]
            if header:
                rows.append([f"**{title}**" for title in titles])
            else:
                header = titles
            for line in group:
                rows.append([escaped(cell) for cell in self._cells(line, encoders)])
        return format_markdown(pd.DataFrame(rows, columns=header))

    def _cells(self, line: Line, encoders: Sequence[str]) -> list[str]:
        """Return the cells of a finding; a number in parentheses is that of the reason with the default encoder."""
        cells = [line.finding.item, line.condition, line.published]
        for encoder in encoders:
            cell = line.cell(encoder)
            if not encoder and cell.startswith(MARKS[NOT_SEEN]):
                cell += f" ({self._reasons()[line.finding.why]})"
            cells.append(cell)
        return cells

    def _row_names(self, lines: Sequence[Line]) -> list[str]:
        """Return the rows of the plan that findings read, in Markdown."""
        names: dict[str, None] = {}
        for line in lines:
            for place in line.finding.places():
                names[f"`{row_of(place)}`"] = None
        return list(names)

    def _versions(self) -> str:
        """Return the list of the rows that a version made."""
        lines = []
        for version, encoder in sorted(self.versions):
            rows = ", ".join(f"`{row}`" for row in self.versions[version, encoder])
            lines.append(f"- {version}, {escaped(self.headings[encoder])}: {rows}")
        return "\n".join(lines)

    def _reasons(self) -> dict[str, int]:
        """Return the number of each reason why a finding is not seen with the default encoder, as papers stand."""
        reasons: dict[str, int] = {}
        for paper in self._papers():
            for line in self.lines:
                is_not_seen = "" in line.judgements and line.judgements[""].verdict == NOT_SEEN
                if line.finding.paper == paper and is_not_seen:
                    reasons.setdefault(line.finding.why, len(reasons) + 1)
        return reasons


def _count(lines: Iterable[Line], encoder: str) -> dict[str, int]:
    """Return the number of findings with each verdict."""
    counts = dict.fromkeys(VERDICTS, 0)
    for line in lines:
        if encoder in line.judgements:
            counts[line.judgements[encoder].verdict] += 1
    return counts


def _judged(line: Line) -> list[str]:
    """Return the encoders with which a finding is seen or not seen."""
    return [encoder for encoder, judgement in line.judgements.items() if judgement.verdict in MARKS]


def _without_tags(text: str) -> str:
    """Return Markdown without HTML."""
    return text.strip().replace("<", "&lt;")


def _link(paper: str) -> str:
    text = escaped(paper).replace("[", "&#91;")
    return f"[{text}]({quote(paper)}.md)"


def escaped(text: object) -> str:
    """Return text for one line of Markdown that is shown as it is, whatever it contains."""
    line = _BLANKS.sub(" ", str(text)).strip()
    return _MARKUP.sub(lambda sign: f"&#{ord(sign[0])};", line)


def _markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown; cells of the column `paper` become links to the page of the paper."""
    cells = table.map(escaped)
    if "paper" in table:
        cells["paper"] = table["paper"].map(_link)
    cells.columns = [escaped(heading) for heading in table.columns]
    return format_markdown(cells)


def main(args: Sequence[str]) -> int:
    """Run `python -m studies.paper` with some arguments, and return the exit code.

    Raises:
        UserError: The page cannot be written.
    """
    place = list(args).index("--") if "--" in args else len(args)
    parser = argparse.ArgumentParser(
        prog="python -m studies.paper",
        description="Write the table of published findings with our numbers.",
        epilog="Options after -- are those that all runs were given, as in probing sweep.",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the sweeps (default: runs)")
    parser.add_argument(
        "--published", type=Path, default=PUBLISHED, help="published findings (default: those of studies)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="file of the page (default: docs/papers/index.md, or index.md beside other published findings)",
    )
    given = parser.parse_args(list(args[:place]))
    if not given.runs.is_dir():
        raise UserError(f"{given.runs}: there is no such folder. Make the runs with `make paper`, or name their folder")
    out = given.out or (PAGE if given.published == PUBLISHED else given.published.with_name("index.md"))
    notes = write_page(given.published, given.runs, out, options_of(args[place + 1 :]))
    for message in [*notes, f"Written to {out}"]:
        Console().print(Text(message), soft_wrap=True)
    return 0


if __name__ == "__main__":
    command.run(main)
