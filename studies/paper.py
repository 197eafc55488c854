"""Table of published findings with our numbers: `python -m studies.paper [--runs DIR] [--out FILE]`.

studies/published.yaml has the published numbers, and says how each finding is judged. The plan that it names has
the runs. docs/papers/index.md is written from the two and from the results of the runs; docs/papers/index.json has our
numbers, so that the page keeps those whose runs are elsewhere.
"""

import argparse
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from rich.console import Console
from rich.text import Text

from attention_probing.commands.comparison import Side, estimate_sides, shared_items
from attention_probing.commands.seeds import over_seeds
from attention_probing.commands.sweep_jobs import results_of
from attention_probing.commands.sweep_options import Options, options_of
from attention_probing.commands.sweep_plan import read_sweep
from attention_probing.commands.sweep_rows import Row
from attention_probing.metrics.differences import difference as paired_difference
from attention_probing.results import Estimate, Unit, UserError, command
from attention_probing.results.digests import digest
from attention_probing.results.errors import list_first, near, pluralize
from attention_probing.results.files import write_atomically
from attention_probing.results.record import Record, RecordError, read_record
from attention_probing.results.settings import parse_mapping, read_yaml
from attention_probing.results.tables import DASH, format_markdown, format_number, score_cell

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "studies" / "published.yaml"
PAGE = ROOT / "docs" / "papers" / "index.md"
ENCODER = "data.init_args.encoder.name"
_ENCODERS = (ENCODER, "data.init_args.tokenizer.name", "data.init_args.before.name")
"""Options of runs that name the encoder of a table."""
COLUMNS = ("item", "seen if", "published", "ours", "verdict", "row")
_BESIDE = ("paper", "of", "judged", "reason")  # columns for the headings, for the counts and for the reasons
SEEN, NOT_SEEN, CANNOT, MISSING = VERDICTS = ("seen", "not seen", "cannot be seen here", "not run")
_NUMBER = r"-?\d*\.?\d+"
_MINUS = " − "
_FIXED = re.compile(rf"±|[<>] {_NUMBER}|{_NUMBER} to {_NUMBER}")
_RULE = re.compile(rf"{_FIXED.pattern}|[<>] .+")
CLOSE, MOST = 0.1, 5.0  # farthest from a published number: this share of it, and in points of the page at most this
_PLACE = re.compile(r"[^@]+@[^\[\]@]+(\[[^\[\]]+\])?")
_MARKUP = re.compile(r"[\\`*_{}|<]|&(?=[#\w])|\](?=[(\[])")  # what Markdown or HTML may read as more than text


@dataclass(frozen=True)
class Finding:
    """Published finding, and how it is judged here.

    The place of a number is `ROW@SCORE`, or `ROW@TABLE:COLUMN[KEY=VALUE;KEY=VALUE]` for a cell of a
    table, as in `Record.number`; ROW is a row of the plan. Without `ROW@` it is the row of `ours`.

    Attributes:
        paper: Name of the page of the paper, such as `clark2019`.
        item: What is reported.
        source: Table, figure or section of the paper.
        published: The published number or statement.
        of: Model and data of the published number.
        ours: Place of our number.
        minus: Place of a number that is subtracted from ours; both need counts for each item.
        seen: When the finding is seen: `> X` or `< X`, our interval lies above or below X, which is a
            number (fractions are in 0–1) or a place with its interval; `X to Y`, our interval lies between
            two numbers; `±`, our number lies within a tenth of `published`, and within five as printed.
        tested: Place of the difference of our number and the bound by a paired test, if a run has one; its interval
            then decides whether the finding is seen.
        why: Most likely reason if the finding is not seen with the default encoder.
        cannot: Reason why the finding cannot be seen here; then there is no `ours`.
    """

    paper: str
    item: str
    source: str
    published: str | float
    of: str
    ours: str = ""
    minus: str = ""
    seen: str = ""
    tested: str = ""
    why: str = "no reason is known"
    cannot: str = ""

    def places(self) -> list[str]:
        """Return the places of our number, of a number that is subtracted, and of a bound that is no number."""
        bound = "" if _FIXED.fullmatch(self.seen) else self.seen[2:]
        return [self.whole(text) for text in (self.ours, self.minus, bound) if text]

    def whole(self, place: str) -> str:
        """Return a place with its row, by default that of our number."""
        return place if "@" in place else f"{row_of(self.ours)}@{place}"

    def bound(self, unit: Unit) -> Estimate:
        """Return the fixed number that ours, of this unit, is compared with, or the interval in which it must lie."""
        if self.seen == "±":
            middle, scale = float(self.published), 100 if unit == "fraction" else 1
            reach = min(CLOSE * abs(middle), MOST)
            return Estimate(middle / scale, (middle - reach) / scale, (middle + reach) / scale, unit=unit)
        first, *ends = map(float, re.findall(_NUMBER, self.seen))
        return Estimate(first, *((first, *ends) if ends else ()), unit="p" if unit == "least_p" else unit)


@dataclass(frozen=True)
class Published:
    """Content of the file of published findings.

    Attributes:
        plan: Path of the plan of the runs, from the folder of the file.
        about: Text at the head of the page.
        findings: The findings, as mappings.
    """

    plan: str
    about: str
    findings: list[dict] = field(default_factory=list)  # type: ignore[type-arg]


Runs = Mapping[str, Sequence[Record]]  # runs with all seeds, by row of the plan
Keys = dict[str, str]  # digest of the keys of all runs of a row, by row of the plan
Kept = dict[str, list[Any]]  # by place, a number: value, low and high end, unit, and keys of the rows


def read_published(path: Path) -> tuple[Path, str, list[Finding]]:
    """Read the published findings; return the path of the plan, the text at the head of the page, and the findings.

    Raises:
        SettingsError: The file cannot be read, or an entry has a missing, unknown, empty or mistyped value.
        UserError: It is not said how a finding is judged, or the plan has no such row.
    """
    content = parse_mapping(Published, read_yaml(path), str(path))
    plan, found = (path.parent / content.plan).resolve(), list[Finding]()
    rows = [row.name for row in read_sweep(plan).rows]
    for position, entry in enumerate(content.findings, 1):
        where = f"{path}: finding {position} ({entry.get('paper')}: {entry.get('item')})"
        one = parse_mapping(Finding, entry, where)
        judged = _RULE.fullmatch(one.seen) and not (one.seen == "±" and isinstance(one.published, str))
        if bool(one.cannot) == bool(one.ours) or (one.ours and not judged):
            raise UserError(
                f"{where}: give either `cannot`, or `ours` and `seen`, which is '> X', '< X', 'X to Y', or '±' for a "
                "number as `published`"
            )
        named = [*one.places(), *([one.whole(one.tested)] if one.tested else [])]
        for row, place in ((row_of(place), place) for place in named):
            if not _PLACE.fullmatch(place):
                form = "write ROW@SCORE or ROW@TABLE:COLUMN[KEY=VALUE]"
                raise UserError(f"{where}: {place!r} is no place of a number: {form}")
            if row not in rows:
                raise UserError(f"{where}: {plan.name} has no row {row!r}{near(row, rows)}, which {place!r} names")
        found.append(one)
    return plan, content.about.strip().replace("<", "&lt;"), found


def row_of(place: str) -> str:
    """Return the row of the plan in the place of a number."""
    return place.partition("@")[0]


def finished_runs(folder: Path, notes: list[str]) -> dict[str, Record]:
    """Return the results of all finished runs below a folder by the key of the run; of equal runs, those of the latest.

    Args:
        folder: Folder of one or several sweeps.
        notes: Receives messages about results that cannot be read, and about runs that are there twice.
    """
    done = (results_of(file.parent) for file in folder.rglob("run.json"))
    found: dict[str, Record] = {}
    for path in sorted((path for path in done if path is not None), key=lambda path: path.stat().st_mtime):
        key = path.parents[2].name
        try:
            record = read_record(path)
            notes += [f"{path} is used, it is later than {found[key].path}"] if key in found else []
            found[key] = record
        except RecordError as error:
            notes.append(str(error))
    return found


def encoders_of(runs: Iterable[Record]) -> set[str]:
    """Return the names of the encoders that runs of sweeps were given as an option."""
    files = (record.path.parents[2] / "run.json" for record in runs)
    options = (json.loads(file.read_text(encoding="utf-8"))["options"] for file in files)
    return {value for given in options for name, value in given if name in _ENCODERS}


@dataclass(frozen=True)
class Numbers:
    """Our numbers with one encoder: those of finished runs, and those that the page had before.

    Attributes:
        runs: Runs with all seeds, by row of the plan, for the rows whose runs are all finished.
        keys: Digest of the keys of all runs of a row, by row of the plan.
        before: Numbers of the former page.
        now: Receives the numbers of the page.
    """

    runs: Runs
    keys: Keys
    before: Kept = field(default_factory=dict)
    now: Kept = field(default_factory=dict)

    def at(self, *places: str) -> Estimate | None:
        """Return the number at a place, as a mean over the seeds, or the difference of the numbers at two places.

        If the runs are not all there, it is the number that the former page had from runs with the same
        keys; None if there is none.

        Raises:
            UserError: The results have no such number, or for a difference no counts for each item.
        """
        name = _MINUS.join(places)
        keys = " ".join(self.keys[row_of(place)] for place in places)
        if all(row_of(place) in self.runs for place in places):
            row, _, score = name.partition("@")
            found = difference(places, self.runs) if places[1:] else over_seeds(self.runs[row], score)
            self.now[name] = [found.value, found.low, found.high, found.unit, keys]
        elif self.before.get(name, [None])[-1] == keys:
            self.now[name] = self.before[name]
        else:
            return None
        value, low, high, unit, _ = self.now[name]
        if low is None or math.isnan(low):
            return Estimate(value, unit=unit)
        return Estimate(value, low, high, unit=unit)

    def paired(self, ours: str, other: str) -> Estimate | None:
        """Return the difference of two scores by a paired test; None unless both have counts for the same items."""
        rows = [self.runs.get(row_of(place), ()) for place in (ours, other)]
        scores = [place.partition("@")[2] for place in (ours, other)]
        with_counts = [
            bool(records) and all(score in record.ratios for record in records)
            for records, score in zip(rows, scores, strict=True)
        ]
        if not all(with_counts) and _MINUS.join((ours, other)) not in self.before:
            return None
        try:
            return self.at(ours, other)
        except UserError:  # other items
            return None

    def notes(self, file: Path, folder: Path) -> list[str]:
        """Return messages about numbers of the former page: those that are kept, and those that are lost.

        Args:
            file: File of the numbers.
            folder: Folder of the runs.
        """
        found = []
        if lost := sorted(self.before.keys() - self.now.keys()):
            found.append(
                f"no longer in {file}: {pluralize(len(lost), 'number')} of rows whose runs the plan has changed, or "
                f"that no finding names: {list_first(lost)}"
            )
        if kept := {row_of(place) for name in self.now for place in name.split(_MINUS)} - self.runs.keys():
            found.append(
                f"kept from {file}, because their runs are not below {folder}: the numbers of "
                f"{pluralize(len(kept), 'row')}: {list_first(sorted(kept))}"
            )
        return found


def numbers_of(rows: Sequence[Row], runs: Mapping[str, Record], before: Kept, notes: list[str]) -> Numbers:
    """Return the numbers of the rows of the plan.

    Args:
        rows: The rows, with one encoder.
        runs: Results of finished runs, by key.
        before: Numbers of the former page with this encoder.
        notes: Receives messages about rows of which only some runs are finished.
    """
    keys = {row.name: digest(" ".join(run.key for run in row.all_runs()).encode())[:16] for row in rows}
    whole = {}
    for row in rows:
        records, wanted = row.finished(runs), len(row.all_runs())
        if len(records) == wanted:
            whole[row.name] = records
        elif records:
            notes.append(f"row `{row.name}` is not used: {len(records)} of its {wanted} runs are finished")
    return Numbers(whole, keys, before)


def difference(places: Sequence[str], runs: Runs) -> Estimate:
    """Return the difference of two scores with counts for each item, means over seeds, with its interval.

    Raises:
        UserError: The scores have no counts, or are over different items.
    """
    sides = []
    for place in places:
        row, _, score = place.partition("@")
        sides.append(Side.from_records(score, runs[row]))
    items = shared_items(sides)
    for side in sides:
        if any(len(counts) != len(items) for counts in side.counts):
            raise UserError(
                f"{' and '.join(places)} are not over the same items, so their difference has no paired test"
            )
    return paired_difference(*estimate_sides([side.on(items) for side in sides]))


def judge(finding: Finding, numbers: Numbers) -> tuple[Estimate | None, Estimate | None, str]:
    """Return our number for a finding, the number that it is compared with, and the verdict.

    Args:
        finding: The finding, which has a place `ours`.
        numbers: Numbers of one encoder.

    Raises:
        UserError: The results have no such number.
    """
    places, own = finding.places(), 2 if finding.minus else 1
    ours = numbers.at(*places[:own])
    limit = numbers.at(*places[own:]) if places[own:] else finding.bound(ours.unit if ours else "ratio")
    if ours is None or limit is None:
        return ours, limit, MISSING
    if math.isnan(ours.value) or math.isnan(limit.value):
        return ours, limit, CANNOT
    if finding.minus and (ours.low is None or math.isnan(ours.low)):
        return ours, limit, CANNOT  # a difference over too few items for an interval
    (low, high), (least, most) = map(_interval, (ours, limit))
    if finding.seen[0] in "<>":
        apart = None
        if finding.tested:
            apart = numbers.at(finding.whole(finding.tested))
        elif len(places) == 2 and not finding.minus:
            apart = numbers.paired(*places)
        if apart is not None and (apart.low is None or math.isnan(apart.low)):
            return ours, limit, CANNOT  # over too few items for an interval
        if apart is not None:
            (low, high), (least, most) = _interval(apart), (0.0, 0.0)
        seen = low > most if finding.seen[0] == ">" else high < least
    else:
        low, high = (ours.value, ours.value) if finding.seen == "±" else (low, high)
        seen = least <= low and high <= most
    return ours, limit, SEEN if seen else NOT_SEEN


def _interval(one: Estimate) -> tuple[float, float]:
    """Return the interval of a number; a number without an interval is exact."""
    low, high = (one.value if end is None or math.isnan(end) else end for end in (one.low, one.high))
    return low, high


def write_page(path: Path, folder: Path, out: Path, options: Options | None = None) -> list[str]:
    """Write the page with the table of published findings: one table for each encoder of the runs.

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
    plan, about, findings = read_published(path)
    file, notes, counts, parts = out.with_suffix(".json"), list[str](), list[str](), [about]
    runs, before = finished_runs(folder, notes), read_numbers(file)
    now, default, used = dict[str, Kept](), Keys(), set[str]()
    for encoder in ("", *sorted(encoders_of(runs.values()) | before.keys() - {""})):
        given = {**(options or {}), **({ENCODER: encoder} if encoder else {})}
        rows = read_sweep(plan, given).rows
        used |= {run.key for row in rows for one in row.all_runs() for run in one.with_needed()}
        numbers = numbers_of(rows, runs, before.get(encoder, {}), notes)
        default = default or numbers.keys
        own = _changed(findings, numbers.keys, default) if encoder else findings
        lines = [_line(one, numbers, notes) for one in own]
        found, section = _section(encoder, pd.DataFrame(lines, columns=[*COLUMNS, *_BESIDE]), _command(plan, given))
        counts.append(found)
        parts += section
        notes += numbers.notes(file, folder)
        now |= {encoder: numbers.now} if numbers.now else {}
    if strange := [str(record.path.parents[2]) for key, record in runs.items() if key not in used]:
        notes.append(
            f"{pluralize(len(strange), 'run')} below {folder} of another config, corpus or option than the rows of "
            f"{plan.name}, not used: {list_first(strange)}"
        )
    _write_numbers(file, now)
    write_atomically(out, "\n\n".join(parts) + "\n")
    return list(dict.fromkeys([*counts, *notes]))


def _changed(findings: Sequence[Finding], keys: Keys, default: Keys) -> list[Finding]:
    """Return the findings of a row that has other runs than with the default encoder."""
    changed = {row for row, key in keys.items() if key != default[row]}
    return [one for one in findings if any(row_of(place) in changed for place in one.places())]


def read_numbers(path: Path) -> dict[str, Kept]:
    """Return the numbers beside a page by encoder and place; empty if there is no file.

    Raises:
        UserError: The file is damaged.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        numbers: dict[str, Kept] = content["numbers"]
        if content["sha256"] != _seal(numbers):
            raise ValueError("its numbers do not have its checksum")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({error}). Restore it; if you delete it, only numbers whose runs are there remain"
        ) from None
    return numbers


def _write_numbers(path: Path, numbers: Mapping[str, Kept]) -> None:
    sealed = {"sha256": _seal(numbers), "numbers": numbers}
    write_atomically(path, json.dumps(sealed, indent=1, ensure_ascii=False) + "\n")


def _seal(numbers: Mapping[str, Kept]) -> str:
    return digest(json.dumps(numbers, sort_keys=True).encode())


def _command(plan: Path, options: Options) -> str:
    """Return the command that makes the runs of a row, in Markdown."""
    words = ["probing", "sweep", str(plan.relative_to(ROOT) if plan.is_relative_to(ROOT) else plan)]
    words += ["--row", "ROW", *(["--"] if options else []), *(f"--{name}={value}" for name, value in options.items())]
    asked = shlex.join(words)
    return f"`{asked}`" if asked.isprintable() and not set(asked) & set("`|") else f"<code>{escaped(asked)}</code>"


def _line(one: Finding, numbers: Numbers, notes: list[str]) -> list[str]:
    """Return the cells of a finding in the columns `COLUMNS` and `_BESIDE`."""
    ours, limit, verdict, why = None, None, CANNOT, one.cannot or "the number is undefined"
    if one.ours:
        try:
            ours, limit, verdict = judge(one, numbers)
        except UserError as error:
            why = "the results have no such number"
            notes.append(f"{one.paper}, {one.item}: {error}")
    bound = DASH
    if limit and verdict in (SEEN, NOT_SEEN):
        ends = " to ".join(format_number(end, limit.unit, missing=DASH) for end in _interval(limit))
        bound = f"{one.seen[0]} {score_cell(limit)}" if one.seen[0] in "<>" else "±" if one.seen == "±" else ends
    published = one.published if isinstance(one.published, str) else f"{one.published:g}"
    shown = f"{verdict} ({why})" if verdict == CANNOT else verdict
    rows = ", ".join(dict.fromkeys(row_of(place) for place in one.places())) or DASH
    cells = [one.item, bound, f"{published} ({one.source})", score_cell(ours) if ours else DASH, shown, rows]
    return [*cells, one.paper, one.of, verdict, one.why]


def _section(encoder: str, lines: pd.DataFrame, asked: str) -> tuple[str, list[str]]:
    """Return the counts of verdicts with one encoder, and the blocks of its part of the page."""
    name, papers = encoder or "Default encoder", lines["paper"].unique()
    by_paper = pd.crosstab(lines["paper"], lines["judged"]).reindex(papers, columns=VERDICTS, fill_value=0)
    found = ", ".join(f"{count} {verdict}" for verdict, count in by_paper.sum().items())
    blocks = [f"## {escaped(name)}", f"{len(lines)} findings: {found}.", _markdown(by_paper.reset_index())]
    blocks += [f"The runs of a row (an empty cell: the row above): {asked}"]
    reasons = list[str]()
    if not encoder:  # the reasons are about the default encoder
        reasons += dict.fromkeys(lines.loc[lines["judged"] == NOT_SEEN, "reason"])
        numbered = {why: f" ({place})" for place, why in enumerate(reasons, 1)}
        marks = lines["reason"].map(numbered).where(lines["judged"] == NOT_SEEN, "")
        lines = lines.assign(verdict=lines["verdict"] + marks.astype(str))
    for (paper, of), some in lines.groupby(["paper", "of"], sort=False):
        shown = some["row"].where(some["row"] != some["row"].shift(), "")
        blocks += [f"### {_link(str(paper))}: {escaped(of)}", _markdown(some.assign(row=shown)[list(COLUMNS)])]
    if reasons:
        blocks += ["### Most likely reasons", "\n".join(f"{n}. {escaped(why)}" for n, why in enumerate(reasons, 1))]
    return f"{name}: {found}", blocks


def _link(paper: str) -> str:
    return f"[{escaped(paper)}]({quote(paper)}.md)"


def escaped(text: object) -> str:
    """Return text for one line of Markdown that is shown as it is, whatever it contains."""
    return _MARKUP.sub(lambda sign: f"&#{ord(sign[0])};", " ".join(str(text).split()))


def _markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown; cells of the column `paper` become links to the page of the paper."""
    return format_markdown(table.apply(lambda cells: cells.map(_link if cells.name == "paper" else escaped)))


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
