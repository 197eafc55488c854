"""Table of published findings with our numbers: `python -m reports.paper [--runs DIR] [--out FILE]`.

docs/papers/published.yaml has the published numbers, and says how each finding is judged. The plan that it names has
the runs. docs/papers/index.md is written from the two and from the results of the runs.
"""

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.text import Text
from scipy.stats import t as student

from metrics.bootstrap import paired_bootstrap
from processes.jobs import results_of
from reports.reader import Record, RecordError, first_of, over_seeds, read_record
from reports.tables import DASH, number
from results import Estimate, Unit, UserError, command
from results.digests import file_digest
from results.errors import counted, near
from results.files import write_atomically
from training.config import read_yaml, typed

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "docs" / "papers" / "published.yaml"
ENCODER = tuple(f"data.init_args.{name}.name" for name in ("encoder", "tokenizer", "before"))
"""Options that name an encoder. Runs that differ from a row of the plan only in these are of another encoder."""
COLUMNS = ("paper", "item", "published", "ours", "low", "high", "verdict", "command")
SEEN, NOT_SEEN, CANNOT, MISSING = VERDICTS = ("seen", "not seen", "cannot be seen here", "not run")
_PLACE = re.compile(r"(?:(?P<row>[^@]+)@)?(?P<name>[^\[@]+)(?:\[(?P<where>[^\]]+)\])?")
_RULE = re.compile(r"([<>±]) (.+)")


@dataclass(frozen=True)
class Finding:
    """Published finding, and how it is judged here.

    The place of a number is `ROW@SCORE`, or `ROW@TABLE:COLUMN[KEY=VALUE]` for a cell of a table; ROW is
    a row of the plan. Without `ROW@` it is the row of `ours`. `KEY=last` is the largest number of a
    column, such as the last layer; `[max]` is the row with the largest number in COLUMN.

    Attributes:
        paper: Name of the page of the paper, such as `clark2019`.
        item: What is reported.
        source: Table, figure or section of the paper.
        published: The published number or statement.
        of: Model and data of the published number.
        ours: Place of our number.
        minus: Place of a number that is subtracted from ours; both need counts for each item.
        seen: When the finding is seen: `> X` or `< X`, our interval lies above or below X, which is a
            number, or the interval at a place; `± X`, ours differs from `published` by at most X, as
            printed.
        why: Most likely reason if the finding is not seen.
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


class Planned(NamedTuple):
    """Run of a row of the plan: the row, the name of the encoder (empty for the default), and the results."""

    row: str
    encoder: str
    record: Record


Runs = Mapping[str, Sequence[Record]]  # runs with different seeds, by row of the plan


def read_published(path: Path) -> tuple[Published, list[Finding]]:
    """Read the published findings.

    Raises:
        SettingsError: The file cannot be read, or an entry has a missing, unknown, empty or mistyped value.
        UserError: It is not said how a finding is judged.
    """
    content = typed(Published, read_yaml(path), str(path))
    found = []
    for place, entry in enumerate(content.findings, 1):
        where = f"{path}: finding {place} ({entry.get('paper')}: {entry.get('item')})"
        one = typed(Finding, entry, where)
        if one.cannot and not one.ours:
            found.append(one)
            continue
        rule = _RULE.fullmatch(one.seen)
        if one.cannot or not one.ours or rule is None or (rule[1] == "±" and isinstance(one.published, str)):
            raise UserError(
                f"{where}: give either `cannot`, or `ours` and `seen`, which is '> X', '< X', or '± X' for a number "
                "as `published`"
            )
        found.append(one)
    return content, found


def find_runs(plan: Path, folder: Path) -> tuple[list[Planned], list[str]]:
    """Find the finished runs of a plan below a folder, by the identity that the sweep has written to `run.json`.

    A run belongs to a row if its command, its config file and all its options are those of the row;
    only the seed and the name of the encoder may differ. If it reads the checkpoints of other runs, these
    runs must belong to the rows that the row names.

    Args:
        plan: The plan; it must have `rows`, each with one run for a seed.
        folder: Folder of one or several sweeps.

    Returns:
        The runs, and messages about runs that are not used: those of no row, those of which a later run
        with the same row, seed and encoder exists, and damaged results.
    """
    content: Any = read_yaml(plan)
    rows = {_identity_of_row(row, plan.parent): name for name, row in content["rows"].items()}
    said = {path.parent: json.loads(path.read_text(encoding="utf-8")) for path in folder.rglob("run.json")}
    paths = {run: path for run in said if (path := results_of(run)) is not None}
    found: dict[str, Planned] = {}  # by key of the run
    latest: dict[tuple[object, ...], Path] = {}
    strange, notes = list[str](), list[str]()
    # A training comes before the runs that read it.
    for run in sorted(paths, key=lambda run: (bool(_trained(said[run])[1]), paths[run].stat().st_mtime)):
        reads, keys = _trained(said[run])
        trained = [found.get(key) for key in keys]
        options = dict(said[run]["options"])
        encoders = {options.pop(name) for name in ENCODER if name in options} | {one.encoder for one in trained if one}
        sources = tuple(sorted({one.row if one else "" for one in trained}))
        own = said[run]["command"], said[run]["config_sha256"], tuple(sorted(options.items())), reads, sources
        if own not in rows or len(encoders) > 1:
            strange.append(str(run))
            continue
        try:
            one = Planned(rows[own], next(iter(encoders), ""), read_record(paths[run]))
        except RecordError as error:
            notes.append(str(error))
            continue
        place = one.row, one.encoder, said[run]["seed"]
        if place in latest:
            notes.append(
                f"`{one.row}`, seed {place[2]}, was run twice: {run} is used, it is later than {latest[place]}"
            )
        latest[place], found[run.name] = run, one
    if strange:
        notes.append(
            f"{counted(len(strange), 'run')} below {folder} of another config, corpus or option than the rows of "
            f"{plan.name}, not used: {first_of(strange)}"
        )
    return [found[run.name] for run in latest.values()], notes


def _trained(said: Mapping[str, Any]) -> tuple[str, Any]:
    """Return how a run reads the models that other runs have trained, and the keys of these runs."""
    return next(((how, said[how]) for how in ("checkpoints", "checkpoint", "encoder") if how in said), ("", []))


def _identity_of_row(row: Mapping[str, Any], folder: Path) -> tuple[object, ...]:
    """Return what identifies the runs of a row: command, digest of the config, options, and rows that it reads."""
    options = {name: one if isinstance(one, str) else json.dumps(one) for name, one in row.get("set", {}).items()}
    reads, sources = _trained(row)
    names = [sources] if isinstance(sources, str) else sources
    trained = tuple(sorted(str(name).removeprefix(":") for name in names))
    config = file_digest(folder / row["config"])
    return row.get("command", "fit"), config, tuple(sorted(options.items())), reads, trained


def number_at(place: str, default: str, runs: Runs) -> Estimate | None:
    """Return the number at a place of the results, as a mean over the seeds; None if the row was not run.

    The interval is over the items of the test set. If a run with several seeds has no counts for each
    item, it is Student's interval over the seeds.

    Args:
        place: The place; see `Finding`.
        default: Row of places without `ROW@`.
        runs: Runs by row.

    Raises:
        UserError: There is no such number in the results.
    """
    row, name, where = _parsed(place)
    records = runs.get(row or default, ())
    table, _, column = name.partition(":")
    for record in records:
        known = record.content["tables"] if column else record.scores
        if (table if column else name) not in known:
            raise UserError(f"{record.path} has no `{name}`{near(name, known)}, which {place} names")
    if not records or (not column and (len(records) == 1 or name in records[0].content["ratios"])):
        return over_seeds(records, name) if records else None
    cells = [_cell(record, table, column, where) if column else record.scores[name] for record in records]
    if len(cells) == 1:
        return cells[0]
    values = [cell.value for cell in cells]
    mean, half = np.mean(values), student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return Estimate(float(mean), float(mean - half), float(mean + half), unit=cells[0].unit)


def _parsed(place: str) -> tuple[str, str, str]:
    if (match := _PLACE.fullmatch(place)) is None:
        raise UserError(f"{place!r} is no place of a number: write ROW@SCORE or ROW@TABLE:COLUMN[KEY=VALUE]")
    return match["row"] or "", match["name"], match["where"] or "max"


def _cell(record: Record, table: str, column: str, where: str) -> Estimate:
    """Return the number in one cell of a table of a run, with its interval."""
    path = record.path.with_name(record.content["tables"][table])
    frame, of_table = pd.read_csv(path, dtype=str), record.content["columns"][table]
    ends = ("low", "high") if of_table["interval"] == column else (f"{column}.low", f"{column}.high")
    try:
        if where == "max":
            frame = frame.loc[[frame[column].astype(float).idxmax()]]
        for key, _, value in (pair.partition("=") for pair in where.split(",") if where != "max"):
            frame = frame[frame[key] == (str(frame[key].astype(int).max()) if value == "last" else value)]
        (line,), units = frame.to_dict("records"), of_table["units"].get(column, "count")
        unit: Unit = units if isinstance(units, str) else units[frame.index[0]]  # type: ignore[assignment]
        interval = [float(line[end]) if end in line else None for end in ends]
        return Estimate(float(line[column]), *interval, unit=unit)
    except (KeyError, ValueError) as error:
        raise UserError(f"{path} has not one row with a number `{column}` where {where} ({error})") from None


def difference_at(place: str, other: str, default: str, runs: Runs) -> Estimate | None:
    """Return the difference of two scores with counts for each item, with the interval of the paired bootstrap.

    Args:
        place: Place of the first score.
        other: Place of the score that is subtracted.
        default: Row of places without `ROW@`.
        runs: Runs by row.

    Returns:
        The difference of the means over seeds; None if a row was not run.

    Raises:
        UserError: The scores have no counts, or are over different items.
    """
    counts = []
    for row, name, _ in (_parsed(place), _parsed(other)):
        frames = [record.counts(name, by_id=True) for record in runs.get(row or default, ())]
        if not frames:
            return None
        counts.append(sum(frames[1:], start=frames[0]) / len(frames))
    if not counts[0].index.sort_values().equals(counts[1].index.sort_values()):
        raise UserError(f"{place} and {other} are not over the same items, so their difference has no paired test")
    ours, theirs = (frame.loc[counts[0].index].to_numpy().T for frame in counts)
    return paired_bootstrap(*ours, *theirs)


def judged(finding: Finding, runs: Runs) -> tuple[Estimate | None, str]:
    """Return our number for a finding, None if there is none, and the verdict.

    Args:
        finding: The finding.
        runs: Runs of one encoder, by row of the plan.
    """
    if finding.cannot:
        return None, f"{CANNOT} ({finding.cannot})"
    row, (sign, _, bound) = _parsed(finding.ours)[0], finding.seen.partition(" ")
    both = finding.ours, row, runs
    ours = difference_at(finding.ours, finding.minus, row, runs) if finding.minus else number_at(*both)
    try:
        limit: Estimate | None = Estimate(float(bound), unit="ratio")
    except ValueError:
        limit = number_at(bound, row, runs)
    if ours is None or limit is None:
        return ours, MISSING
    if sign == "±":
        seen = abs(ours.value * (100 if ours.unit == "fraction" else 1) - float(finding.published)) <= limit.value
    elif sign == ">":
        seen = _end(ours, "low") > _end(limit, "high")
    else:
        seen = _end(ours, "high") < _end(limit, "low")
    return ours, SEEN if seen else NOT_SEEN


def _end(number: Estimate, end: str) -> float:
    """Return an end of the interval of a number, or the number itself if it has no interval."""
    value = getattr(number, end)
    return number.value if value is None or math.isnan(value) else float(value)


def write_page(path: Path, folder: Path, out: Path) -> list[str]:
    """Write the page with the table of published findings.

    Args:
        path: File of the published findings.
        folder: Folder of one or several sweeps with the runs.
        out: File of the page, in Markdown.

    Returns:
        Messages: how many findings are seen, and which runs are not used.

    Raises:
        UserError: The published findings cannot be read, or the results lack a number that they name.
    """
    published, findings = read_published(path)
    plan = (path.parent / published.plan).resolve()
    found, notes = find_runs(plan, folder)
    how = f"python -m sweeps.run {plan.relative_to(ROOT) if plan.is_relative_to(ROOT) else plan} --rows"
    parts, counts = [published.about.strip()], list[str]()
    for encoder in dict.fromkeys(["", *(one.encoder for one in found)]):
        runs: dict[str, list[Record]] = {}
        for run in found:
            if run.encoder == encoder:
                runs.setdefault(run.row, []).append(run.record)
        lines, reasons, verdicts = list[str](), list[str](), Counter[str]()
        for one in findings:
            row = _parsed(one.ours)[0] if one.ours else ""
            if encoder and row not in runs:
                continue
            ours, verdict = judged(one, runs)
            ours = ours or Estimate(math.nan, unit="count")
            ends = (math.nan if end is None else end for end in (ours.value, ours.low, ours.high))
            numbers = [number(end, ours.unit, missing=DASH) for end in ends]
            said = one.published if isinstance(one.published, str) else f"{one.published:g}"
            asked = f"`{how} '{row}'`" if row else DASH
            cells = (
                f"[{one.paper}]({one.paper}.md)",
                one.item,
                f"{said} ({one.of}; {one.source})",
                *numbers,
                verdict,
                asked,
            )
            lines.append(f"| {' | '.join(cells)} |")
            verdicts[verdict.partition(" (")[0]] += 1
            reasons += [f"- {one.paper}, {one.item}: {one.why}"] if verdict == NOT_SEEN else []
        counts.append(", ".join(f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS))
        parts += [f"## {encoder or 'Default encoder'}", f"{len(lines)} findings: {counts[-1]}."]
        parts.append("\n".join([f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *lines]))
        parts += ["**Not seen: the most likely reasons**", "\n".join(reasons)] if reasons else []
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, "\n\n".join(parts) + "\n")
    return [*counts, *notes]


def main(args: Sequence[str]) -> int:
    """Run `python -m reports.paper` with some arguments, and return the exit code.

    Raises:
        UserError: The page cannot be written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m reports.paper", description="Write the table of published findings with our numbers."
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the sweeps (default: runs)")
    parser.add_argument("--published", type=Path, default=PUBLISHED, help="file of the published findings")
    parser.add_argument("--out", type=Path, default=PUBLISHED.with_name("index.md"), help="file of the page")
    given = parser.parse_args(args)
    if not given.runs.is_dir():
        raise UserError(f"{given.runs}: there is no such folder. Make the runs with `make paper`, or name their folder")
    for message in [*write_page(given.published, given.runs, given.out), f"Written to {given.out}"]:
        Console().print(Text(message), soft_wrap=True)
    return 0


if __name__ == "__main__":
    command.run(main)
