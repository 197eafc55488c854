"""Table of published findings with our numbers: `python -m reports.paper [--runs DIR] [--out FILE]`.

docs/papers/published.yaml has the published numbers, and says how each finding is judged. The plan that it names has
the runs. docs/papers/index.md is written from the two and from the results of the runs; docs/papers/index.json has our
numbers, so that the page keeps those whose runs are elsewhere.
"""

import argparse
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from metrics.bootstrap import paired_bootstrap
from processes.jobs import results_of
from reports.reader import Record, RecordError, averaged, first_of, over_seeds, read_record, read_table
from reports.tables import DASH, number, score_cell
from results import Estimate, Unit, UserError, command
from results.digests import digest
from results.errors import counted, near
from results.files import write_atomically
from sweeps.plan import Options, Row, options_of, read_sweep
from training.config import read_yaml, typed

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "docs" / "papers" / "published.yaml"
ENCODER = "data.init_args.encoder.name"
_ENCODERS = (ENCODER, "data.init_args.tokenizer.name", "data.init_args.before.name")
"""Options of runs that name the encoder of a table."""
COLUMNS = ("paper", "item", "published", "ours", "low", "high", "verdict", "command")
SEEN, NOT_SEEN, CANNOT, MISSING = VERDICTS = ("seen", "not seen", "cannot be seen here", "not run")
_PLACE = re.compile(r"(?:([^@]+)@)?([^\[@]+)(?:\[([^\]]+)\])?")
_NUMBER = r"-?\d*\.?\d+"
_RULE = re.compile(rf"± {_NUMBER}|[<>] .+")


@dataclass(frozen=True)
class Finding:
    """Published finding, and how it is judged here.

    The place of a number is `ROW@SCORE`, or `ROW@TABLE:COLUMN[KEY=VALUE;KEY=VALUE]` for a cell of a
    table; ROW is a row of the plan. Without `ROW@` it is the row of `ours`. As a VALUE, `last` is the
    largest number of a column, such as the last layer, `last-1` the one before, and `middle` the middle
    one; `[max]` is the row with the largest number in COLUMN.

    Attributes:
        paper: Name of the page of the paper, such as `clark2019`.
        item: What is reported.
        source: Table, figure or section of the paper.
        published: The published number or statement.
        of: Model and data of the published number.
        ours: Place of our number.
        minus: Place of a number that is subtracted from ours; both need counts for each item.
        seen: When the finding is seen: `> X` or `< X`, our interval lies above or below X, which is a
            number (fractions are in 0–1) or a place with its interval; `± X`, ours differs from
            `published` by at most X, as printed.
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
    why: str = "no reason is known"
    cannot: str = ""

    def places(self) -> list["Place"]:
        """Return the places of our number, of a number that is subtracted from it, and of the bound."""
        texts = (self.ours, self.minus, "" if self.has_fixed_bound else self.seen[2:])
        return [place_of(text, self.ours) for text in texts if text]

    @property
    def has_fixed_bound(self) -> bool:
        """True if the rule `seen` has a number, not a place."""
        return re.fullmatch(_NUMBER, self.seen[2:]) is not None


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


class Place(NamedTuple):
    """Place of a number in the results: row of the plan, score or `table:column`, and condition of the cell."""

    row: str
    name: str
    where: str

    def __str__(self) -> str:
        return f"{self.row}@{self.name}" + (f"[{self.where}]" if ":" in self.name else "")


Runs = Mapping[str, Sequence[Record]]  # runs with all seeds, by row of the plan


def read_published(path: Path) -> tuple[Path, str, list[Finding]]:
    """Read the published findings; return the path of the plan, the text at the head of the page, and the findings.

    Raises:
        SettingsError: The file cannot be read, or an entry has a missing, unknown, empty or mistyped value.
        UserError: It is not said how a finding is judged, or the plan has no such row.
    """
    content = typed(Published, read_yaml(path), str(path))
    plan, found = (path.parent / content.plan).resolve(), list[Finding]()
    rows = [row.name for row in read_sweep(plan).rows]
    for place, entry in enumerate(content.findings, 1):
        where = f"{path}: finding {place} ({entry.get('paper')}: {entry.get('item')})"
        one = typed(Finding, entry, where)
        judged = _RULE.fullmatch(one.seen) and not (one.seen[0] == "±" and isinstance(one.published, str))
        if bool(one.cannot) == bool(one.ours) or (one.ours and not judged):
            raise UserError(
                f"{where}: give either `cannot`, or `ours` and `seen`, which is '> X', '< X', or '± X' for a number "
                "as `published`"
            )
        for named in one.places():
            if named.row not in rows:
                fault = f"{plan.name} has no row {named.row!r}{near(named.row, rows)}"
                raise UserError(f"{where}: {fault}, which {str(named)!r} names")
        found.append(one)
    return plan, content.about.strip(), found


def place_of(text: str, ours: str = "") -> Place:
    """Parse the place of a number; without a row it is in the row of the place `ours`."""
    match, own = _PLACE.fullmatch(text), _PLACE.fullmatch(ours)
    if match is None:
        raise UserError(f"{text!r} is no place of a number: write ROW@SCORE or ROW@TABLE:COLUMN[KEY=VALUE]")
    return Place(match[1] or (own[1] if own else None) or "", match[2], match[3] or "max")


def find_runs(rows: Sequence[Row], results: Mapping[str, Sequence[Path]], notes: list[str]) -> Runs:
    """Return the results of all seeds of each row, for the rows whose runs are all finished.

    Args:
        rows: Rows of the plan.
        results: Paths of `results.json` by the key of the run.
        notes: Receives messages about rows that are not used, and about runs that are there twice.
    """
    found: dict[str, list[Record]] = {}
    for row in rows:
        records = []
        for run in row.all_runs():
            paths = sorted(results.get(run.key, ()), key=lambda path: path.stat().st_mtime)
            if len(paths) > 1:
                notes.append(f"row `{row.name}`, seed {run.seed}: {paths[-1]} is used, it is later than {paths[-2]}")
            try:
                records += [read_record(path) for path in paths[-1:]]
            except RecordError as error:
                notes.append(str(error))
        if len(records) == len(row.all_runs()):
            found[row.name] = records
        elif records:
            notes.append(f"row `{row.name}` is not used: {len(records)} of its {len(row.all_runs())} runs are finished")
    return found


@dataclass(frozen=True)
class Numbers:
    """Our numbers with one encoder: those of finished runs, and those that the page had before.

    Attributes:
        runs: Runs with all seeds, by row of the plan, for the rows whose runs are all finished.
        keys: Digest of the keys of all runs of a row, by row of the plan.
        before: Numbers of the former page by place: value, low and high end, unit, and `keys` of the rows.
        now: Receives the numbers of the page, in the form of `before`.
        kept: Receives the rows of the numbers that are taken from `before`.
    """

    runs: Runs
    keys: Mapping[str, str]
    before: Mapping[str, list[Any]] = field(default_factory=dict)
    now: dict[str, list[Any]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)

    def at(self, place: Place, minus: Place | None = None) -> Estimate | None:
        """Return the number at a place, as a mean over the seeds, or the difference of two.

        If the runs are not all there, it is the number that the former page had from runs with the same
        keys; None if there is none.

        Args:
            place: Place of the number.
            minus: Place of a number that is subtracted; both need counts for each item.

        Raises:
            UserError: The results have no such number, or no such counts.
        """
        places = [place, *([minus] if minus else [])]
        name = " − ".join(map(str, places))
        keys = " ".join(self.keys.get(one.row, "") for one in places)
        if all(one.row in self.runs for one in places):
            records = self.runs[place.row]
            found = difference(place, minus, self.runs) if minus else number_in(place, records)
            self.now[name] = [found.value, found.low, found.high, found.unit, keys]
            return found
        value, low, high, unit, of = self.before.get(name, [None] * 5)
        if of != keys:
            return None
        self.now[name] = self.before[name]
        self.kept.update(one.row for one in places)
        return Estimate(value, low, high, unit=unit)


def number_in(place: Place, records: Sequence[Record]) -> Estimate:
    """Return the number at a place of the results of all seeds of a row, as a mean over them.

    Raises:
        UserError: There is no such number in the results.
    """
    table, _, column = place.name.partition(":")
    for record in records:
        known = record.content["tables"] if column else record.scores
        if (table if column else place.name) not in known:
            raise UserError(f"{record.path} has no `{place.name}`{near(place.name, known)}")
    if not column:
        return over_seeds(records, place.name)
    return averaged([_cell(record, table, column, place.where) for record in records])


def _cell(record: Record, table: str, column: str, where: str) -> Estimate:
    """Return the number in one cell of a table of a run, with its interval."""
    frame, of_table = read_table(record, table, str), record.content["columns"][table]
    ends = ("low", "high") if of_table["interval"] == column else (f"{column}.low", f"{column}.high")
    try:
        if where == "max":
            frame = frame.loc[[frame[column].astype(float).idxmax()]]
        for key, _, value in (pair.partition("=") for pair in where.split(";") if where != "max"):
            if re.fullmatch(r"middle|last(-\d+)?", value):
                last = frame[key].astype(int).max()
                value = str(math.ceil(last / 2) if value == "middle" else last - int(value.partition("-")[2] or 0))
            frame = frame[frame[key] == value]
        if len(frame) != 1:
            raise ValueError(counted(len(frame), "row"))
        line, units = frame.iloc[0], of_table["units"].get(column, "count")
        unit: Unit = units if isinstance(units, str) else units[frame.index[0]]  # type: ignore[assignment]
        interval = [float(line[end]) if end in line else None for end in ends]
        return Estimate(float(line[column]), *interval, unit=unit)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"{record.path}: table `{table}` has not one row with a number in `{column}` where {where}: {error}"
        ) from None


def difference(place: Place, other: Place, runs: Runs) -> Estimate:
    """Return the difference of two scores with counts for each item, with the interval of the paired bootstrap.

    It is the difference of the means over seeds.

    Raises:
        UserError: The scores have no counts, or are over different items.
    """
    frames = [[record.counts(name, by_id=True) for record in runs[row]] for row, name, _ in (place, other)]
    ours, theirs = (sum(seeds[1:], start=seeds[0]) / len(seeds) for seeds in frames)
    if not ours.index.sort_values().equals(theirs.index.sort_values()):
        raise UserError(f"{place} and {other} are not over the same items, so their difference has no paired test")
    return paired_bootstrap(*ours.to_numpy().T, *theirs.loc[ours.index].to_numpy().T)


def judge(finding: Finding, numbers: Numbers) -> tuple[Estimate | None, Estimate | None, str]:
    """Return our number for a finding, the number that it is compared with, and the verdict.

    Args:
        finding: The finding, which has a place `ours`.
        numbers: Numbers of one encoder.

    Raises:
        UserError: The results have no such number.
    """
    place, *others = finding.places()
    ours = numbers.at(place, others.pop(0) if finding.minus else None)
    limit = numbers.at(others[0]) if others else Estimate(float(finding.seen[2:]), unit="ratio")
    if ours is None or limit is None:
        return ours, limit, MISSING
    if math.isnan(ours.value) or math.isnan(limit.value):
        return ours, limit, CANNOT
    if finding.seen[0] == "±":
        seen = abs(ours.value * (100 if ours.unit == "fraction" else 1) - float(finding.published)) <= limit.value
    elif finding.seen[0] == ">":
        seen = _end(ours, "low") > _end(limit, "high")
    else:
        seen = _end(ours, "high") < _end(limit, "low")
    return ours, limit, SEEN if seen else NOT_SEEN


def _end(one: Estimate, end: str) -> float:
    """Return an end of the interval of a number, or the number itself if it has no interval."""
    value = getattr(one, end)
    return one.value if value is None or math.isnan(value) else float(value)


def write_page(path: Path, folder: Path, out: Path, options: Options | None = None) -> list[str]:
    """Write the page with the table of published findings: one table for each encoder of the runs.

    Args:
        path: File of the published findings.
        folder: Folder of one or several sweeps with the runs.
        out: File of the page, in Markdown. Our numbers are written beside it, with the suffix `.json`. Numbers
            that are there already are kept if their runs are not below `folder` and the plan still has them.
        options: Options of train.py that all runs were given, without the encoder.

    Returns:
        Messages: how many findings are seen, which runs are not used, and which numbers are kept.

    Raises:
        UserError: The published findings, the plan or the numbers of the former page cannot be read.
    """
    plan, about, findings = read_published(path)
    before, now = read_numbers(out.with_suffix(".json")), dict[str, dict[str, list[Any]]]()
    finished = {
        file: done for file in sorted(folder.rglob("run.json")) if (done := results_of(file.parent)) is not None
    }
    results: dict[str, list[Path]] = {}
    for file, done in finished.items():
        results.setdefault(file.parent.name, []).append(done)
    of_runs = (dict(json.loads(file.read_text(encoding="utf-8"))["options"]) for file in finished)
    encoders = sorted({one[name] for one in of_runs for name in _ENCODERS if name in one} | set(before) - {""})
    default = {row.name: row for row in read_sweep(plan, options).rows}
    parts, counts, notes, used = [about], list[str](), list[str](), set[str]()
    for encoder in ("", *encoders):
        given = {**(options or {}), **({ENCODER: encoder} if encoder else {})}
        rows = {row.name: row for row in read_sweep(plan, given).rows}
        used |= {run.key for row in rows.values() for one in row.all_runs() for run in one.needed()}
        keys = {name: digest(" ".join(run.key for run in row.all_runs()).encode())[:16] for name, row in rows.items()}
        numbers = Numbers(find_runs(list(rows.values()), results, notes), keys, before.get(encoder, {}))
        own = [
            one
            for one in findings
            if not encoder or any(rows[place.row] != default[place.row] for place in one.places())
        ]
        lines, reasons, verdicts = _lines(own, numbers, plan, given, notes)
        now |= {encoder: numbers.now} if numbers.now else {}
        if lost := sorted(numbers.before.keys() - numbers.now.keys()):
            notes.append(
                f"no longer in {out.with_suffix('.json')}: {counted(len(lost), 'number')} of rows whose runs the plan "
                f"has changed, or that no finding names: {first_of(lost)}"
            )
        if numbers.kept:
            notes.append(
                f"kept from {out.with_suffix('.json')}, because their runs are not below {folder}: the numbers "
                f"of {counted(len(numbers.kept), 'row')}: {first_of(sorted(numbers.kept))}"
            )
        found = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS)
        counts.append(f"{encoder or 'Default encoder'}: {found}")
        parts += [f"## {encoder or 'Default encoder'}", f"{len(lines)} findings: {found}.", _table(COLUMNS, lines)]
        if reasons and not encoder:
            because = [f"| {'; '.join(items)} | {why} |" for why, items in reasons.items()]
            parts += ["**Not seen: the most likely reasons**", _table(("not seen", "reason"), because)]
    if strange := [str(file.parent) for file in finished if file.parent.name not in used]:
        notes.append(
            f"{counted(len(strange), 'run')} below {folder} of another config, corpus or option than the rows of "
            f"{plan.name}, not used: {first_of(strange)}"
        )
    sealed = {"sha256": _seal(now), "numbers": now}
    write_atomically(out.with_suffix(".json"), json.dumps(sealed, indent=1, ensure_ascii=False) + "\n")
    write_atomically(out, "\n\n".join(parts) + "\n")
    return list(dict.fromkeys([*counts, *notes]))


def read_numbers(path: Path) -> dict[str, dict[str, list[Any]]]:
    """Return the numbers beside a page by encoder and place; empty if there is no file.

    Raises:
        UserError: The file is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"numbers": {}}
        numbers: dict[str, dict[str, list[Any]]] = content["numbers"]
        if numbers and content["sha256"] != _seal(numbers):
            raise ValueError("its numbers do not have its checksum")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({error}). Restore it; if you delete it, only numbers whose runs are there remain"
        ) from None
    return numbers


def _seal(numbers: Mapping[str, Mapping[str, Any]]) -> str:
    return digest(json.dumps(numbers, sort_keys=True).encode())


def _table(columns: Sequence[str], lines: Sequence[str]) -> str:
    return "\n".join([f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *lines])


def _command(plan: Path, rows: Iterable[str], options: Options) -> str:
    """Return the command that makes the runs of some rows."""
    words = ["python", "-m", "sweeps.run", str(plan.relative_to(ROOT) if plan.is_relative_to(ROOT) else plan)]
    words += [word for row in rows for word in ("--row", row)]
    return shlex.join([*words, *(["--"] if options else []), *(f"--{name}={value}" for name, value in options.items())])


def _lines(
    findings: Sequence[Finding], numbers: Numbers, plan: Path, options: Options, notes: list[str]
) -> tuple[list[str], dict[str, list[str]], Counter[str]]:
    """Return the lines of a table of findings, those that are not seen by reason, and the counts of verdicts."""
    lines, verdicts = list[str](), Counter[str]()
    reasons: dict[str, list[str]] = {}
    for one in findings:
        ours, limit, verdict, why = None, None, CANNOT, one.cannot
        if one.ours:
            try:
                ours, limit, verdict = judge(one, numbers)
                why = "the number is undefined"
            except UserError as error:
                why = "the results have no such number"
                notes.append(f"{one.paper}, {one.item}: {error}")
        verdicts[verdict] += 1
        if verdict == NOT_SEEN:
            reasons.setdefault(one.why, []).append(f"{one.paper}, {one.item}")
        ours = ours or Estimate(math.nan, unit="count")
        ends = (math.nan if end is None else end for end in (ours.value, ours.low, ours.high))
        cells = [number(end, ours.unit, missing=DASH) for end in ends]
        beside = ""
        if limit and not math.isnan(ours.value) and one.seen[0] in "<>":
            side = "above" if one.seen[0] == ">" else "below"
            bound = replace(limit, unit=ours.unit) if one.has_fixed_bound else limit
            beside = f"; seen if {side} {score_cell(bound)}"
        published = one.published if isinstance(one.published, str) else f"{one.published:g}"
        rows = dict.fromkeys(place.row for place in one.places())
        asked = f"`{_command(plan, rows, options)}`" if rows else DASH
        shown = f"{verdict} ({why})" if verdict == CANNOT else verdict
        names = f"[{one.paper}]({one.paper}.md)", one.item + beside, f"{published} ({one.of}; {one.source})"
        lines.append(f"| {' | '.join((*names, *cells, shown, asked))} |")
    return lines, reasons, verdicts


def main(args: Sequence[str]) -> int:
    """Run `python -m reports.paper` with some arguments, and return the exit code.

    Raises:
        UserError: The page cannot be written.
    """
    place = list(args).index("--") if "--" in args else len(args)
    parser = argparse.ArgumentParser(
        prog="python -m reports.paper",
        description="Write the table of published findings with our numbers.",
        epilog="Options after -- are those that all runs were given, as in sweeps.run.",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the sweeps (default: runs)")
    parser.add_argument(
        "--published", type=Path, default=PUBLISHED, help="published findings (default: docs/papers/published.yaml)"
    )
    parser.add_argument("--out", type=Path, help="file of the page (default: index.md beside the published findings)")
    given = parser.parse_args(list(args[:place]))
    if not given.runs.is_dir():
        raise UserError(f"{given.runs}: there is no such folder. Make the runs with `make paper`, or name their folder")
    out = given.out or given.published.with_name("index.md")
    notes = write_page(given.published, given.runs, out, options_of(args[place + 1 :]))
    for message in [*notes, f"Written to {out}"]:
        Console().print(Text(message), soft_wrap=True)
    return 0


if __name__ == "__main__":
    command.run(main)
