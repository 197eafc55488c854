"""Table of published findings with our numbers: `python -m reports.paper [--runs DIR] [--out FILE]`.

docs/papers/published.yaml has the published numbers, and says how each finding is judged. The plan that it names has
the runs. docs/papers/index.md is written from the two and from the results of the runs.
"""

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
REQUIRED = ("paper", "item", "source", "published", "of")
SEEN, NOT_SEEN, CANNOT, MISSING = "seen", "not seen", "cannot be seen here", "not run"

HEAD = """# Published findings, and what is seen here

Written by `python -m reports.paper` from `{published}` and the runs of `{plan}` (`make paper`). Fractions are in
%. Intervals are 95 % intervals over the items of the test set, with the seeds pooled; for numbers without counts for
each item they are over seeds. A finding is *seen* if our interval lies on the stated side of the number or interval
that it is compared with, or, for a plain score, if ours is within the stated distance. Models and data differ from the
published ones, so sizes of numbers may differ where a finding is seen."""
"""Beginning of the page."""

_PLACE = re.compile(r"(?:(?P<row>[^@]+)@)?(?P<name>[^\[@]+)(?:\[(?P<where>[^\]]+)\])?")


@dataclass(frozen=True)
class Finding:
    """Published finding, and how it is judged here.

    A place of a number is `ROW@SCORE`, or `ROW@TABLE:COLUMN[KEY=VALUE]` for a cell of a table; ROW is a
    row of the plan. Without `ROW@` the row is the row of `ours`. `KEY=last` is the largest number of a
    column, such as the last layer; `[max]` is the row with the largest number in COLUMN.

    Attributes:
        paper: Name of the page of the paper, such as `clark2019`.
        item: What is reported.
        source: Table, figure or section of the paper.
        published: The published number or statement.
        of: Model and data of the published number.
        ours: Place of our number.
        minus: Place of a number that is subtracted from ours; both need counts for each item.
        above: The finding is seen if our interval lies above this number, or the interval at this place.
        below: The same, for below.
        within: The finding is seen if ours differs from `published` by at most this number, as printed.
        why: Most likely reason if the finding is not seen.
        cannot: Reason why the finding cannot be seen here.
    """

    paper: str
    item: str
    source: str
    published: str | float
    of: str
    ours: str = ""
    minus: str = ""
    above: str | float | None = None
    below: str | float | None = None
    within: float | None = None
    why: str = ""
    cannot: str = ""


@dataclass(frozen=True)
class Planned:
    """Run of a row of the plan, found in a folder.

    Attributes:
        row: Name of the row.
        encoder: Name of the encoder if it is not the default.
        record: Results of the run.
    """

    row: str
    encoder: str
    record: Record


Runs = Mapping[str, Sequence[Record]]  # runs with different seeds, by row of the plan


def read_published(path: Path) -> tuple[Path, list[Finding]]:
    """Read the published findings; return the path of the plan with the runs, and the findings.

    Raises:
        SettingsError: The file cannot be read, or an entry has an unknown, empty or mistyped value.
        UserError: A finding has no source, or has not one way to judge it.
    """
    content = read_yaml(path)
    if not isinstance(content, Mapping) or set(content) != {"plan", "findings"}:
        raise UserError(f"{path} must have the keys `plan` and `findings`")
    found = []
    for place, entry in enumerate(content["findings"], 1):
        where = f"{path}: finding {place}"
        if isinstance(entry, Mapping):
            where += f" ({entry.get('paper')}: {entry.get('item')})"
            if missing := [name for name in REQUIRED if entry.get(name) in (None, "")]:
                raise UserError(
                    f"{where} has no `{missing[0]}`. Add it, so that a reader can find the published number"
                )
        finding = typed(Finding, entry, where)
        rules = [name for name in ("above", "below", "within") if getattr(finding, name) is not None]
        if bool(finding.cannot) == bool(finding.ours) or (finding.ours and len(rules) != 1):
            raise UserError(
                f"{where} must have either `cannot`, or `ours` with one of `above`, `below` and `within`. It has "
                f"{', '.join([*(name for name in ('ours', 'cannot') if getattr(finding, name)), *rules]) or 'none'}"
            )
        if finding.within is not None and not isinstance(finding.published, int | float):
            raise UserError(f"{where}: `within` needs a number as `published`, not {finding.published!r}")
        found.append(finding)
    return path.parent / content["plan"], found


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
    content = read_yaml(plan)
    rows: Mapping[str, Mapping[str, Any]] = content["rows"] if isinstance(content, Mapping) else {}
    expected = {_identity_of_row(row, plan.parent): name for name, row in rows.items()}
    said = {path.parent: json.loads(path.read_text(encoding="utf-8")) for path in folder.rglob("run.json")}
    paths = {run: path for run in said if (path := results_of(run)) is not None}
    # A training comes before the runs that read it.
    order = sorted(paths, key=lambda run: (bool(_trained(said[run])[1]), paths[run].stat().st_mtime))
    found: dict[str, Planned] = {}  # by key of the run
    latest: dict[tuple[str, str, int], Path] = {}
    strange, notes = list[str](), list[str]()
    for run in order:
        reads, keys = _trained(said[run])
        trained = [found.get(key) for key in keys]
        options = dict(said[run]["options"])
        encoders = {options.pop(name) for name in ENCODER if name in options}
        encoders |= {one.encoder for one in trained if one is not None}
        sources = tuple(sorted({"" if one is None else one.row for one in trained}))
        own = (said[run]["command"], said[run]["config_sha256"], tuple(sorted(options.items())), reads, sources)
        row = expected.get(own)
        if row is None or len(encoders) > 1:
            strange.append(str(run))
            continue
        try:
            one = Planned(row, next(iter(encoders), ""), read_record(paths[run]))
        except RecordError as error:
            notes.append(str(error))
            continue
        place = one.row, one.encoder, int(said[run]["seed"])
        if place in latest:
            notes.append(
                f"`{row}`, seed {place[2]}, was run twice: {run} is used, because it is later than {latest[place]}"
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
    names: list[str] = [sources] if isinstance(sources, str) else sources
    config = file_digest(folder / row["config"])
    trained = tuple(sorted(name.removeprefix(":") for name in names))
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
    if not records:
        return None
    table, _, column = name.partition(":")
    if column:
        cells = [_cell(record, table, column, where, place) for record in records]
    else:
        if missing := [one for one in records if name not in one.scores]:
            raise UserError(f"{missing[0].path}: there is no score `{name}`{near(name, missing[0].scores)}")
        pooled = over_seeds(records, name)
        if len(records) == 1 or not math.isnan(pooled.interval[0]):
            return pooled
        cells = [record.scores[name] for record in records]
    if len(cells) == 1:
        return cells[0]
    values = [cell.value for cell in cells]
    mean, half = np.mean(values), student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return Estimate(float(mean), float(mean - half), float(mean + half), unit=cells[0].unit)


def _parsed(place: str) -> tuple[str, str, dict[str, str]]:
    match = _PLACE.fullmatch(place)
    if match is None:
        raise UserError(f"{place!r} is no place of a number: write ROW@SCORE or ROW@TABLE:COLUMN[KEY=VALUE]")
    where = (match["where"] or "").split(",") if match["where"] != "max" else []
    pairs = (pair.partition("=") for pair in where if pair)
    return match["row"] or "", match["name"], {key.strip(): value.strip() for key, _, value in pairs}


def _cell(record: Record, table: str, column: str, where: Mapping[str, str], place: str) -> Estimate:
    """Return the number in one cell of a table of a run, with its interval."""
    if table not in record.content["tables"]:
        tables = record.content["tables"]
        raise UserError(f"{record.path}: there is no table `{table}`{near(table, tables)}, which {place} names")
    frame = pd.read_csv(record.path.with_name(record.content["tables"][table]), dtype=str)
    if strange := [name for name in (*where, column) if name not in frame]:
        raise UserError(
            f"{record.path}: table `{table}` has no column `{strange[0]}`{near(strange[0], map(str, frame))}"
        )
    numbers = frame[column].astype(float)
    for key, value in where.items():
        frame = frame[frame[key] == (str(frame[key].astype(int).max()) if value == "last" else value)]
    frame = frame.loc[[numbers.idxmax()]] if not where else frame
    if len(frame) != 1:
        raise UserError(
            f"{record.path}: {place} fits {counted(len(frame), 'row')} of table `{table}`, but must fit one"
        )
    of_table = record.content["columns"][table]
    prefix = "" if of_table["interval"] == column else f"{column}."
    ends = [float(frame[f"{prefix}{end}"].iloc[0]) if f"{prefix}{end}" in frame else None for end in ("low", "high")]
    units: Unit | Sequence[Unit] = of_table["units"].get(column, "count")
    unit: Unit = units if isinstance(units, str) else units[int(frame.index[0])]
    return Estimate(float(frame[column].iloc[0]), *ends, unit=unit)


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
    for one in (place, other):
        row, name, _ = _parsed(one)
        if not (records := runs.get(row or default, ())):
            return None
        frames = [record.counts(name, by_id=True) for record in records]
        counts.append(sum(frames[1:], start=frames[0]) / len(frames))
    ours, theirs = counts
    if not ours.index.sort_values().equals(theirs.index.sort_values()):
        raise UserError(f"{place} and {other} are not over the same items, so their difference has no paired test")
    columns = (frame.loc[ours.index].to_numpy().T for frame in counts)
    return paired_bootstrap(*next(columns), *next(columns))


def judged(finding: Finding, runs: Runs) -> tuple[Estimate | None, str]:
    """Return our number for a finding, None if there is none, and the verdict.

    Args:
        finding: The finding.
        runs: Runs of one encoder, by row of the plan.
    """
    if finding.cannot:
        return None, f"{CANNOT} ({finding.cannot})"
    row = _parsed(finding.ours)[0]
    if finding.minus:
        ours = difference_at(finding.ours, finding.minus, row, runs)
    else:
        ours = number_at(finding.ours, row, runs)
    bound = next(one for one in (finding.above, finding.below, finding.within) if one is not None)
    limit = number_at(bound, row, runs) if isinstance(bound, str) else Estimate(bound, unit="ratio")
    if ours is None or limit is None:
        return ours, MISSING
    low, high = (ours.value if end is None or math.isnan(end) else end for end in (ours.low, ours.high))
    bottom, top = (limit.value if end is None or math.isnan(end) else end for end in (limit.low, limit.high))
    if finding.within is not None:
        scale = 100 if ours.unit == "fraction" else 1
        seen = abs(scale * ours.value - float(finding.published)) <= finding.within
    else:
        seen = low > top if finding.above is not None else high < bottom
    return ours, SEEN if seen else NOT_SEEN


def table_of(findings: Iterable[Finding], runs: Runs, plan: str) -> pd.DataFrame:
    """Return the table of all findings for one encoder, with the columns `COLUMNS`, all as text.

    Args:
        findings: The findings.
        runs: Runs of the encoder, by row of the plan.
        plan: Path of the plan, for the commands.
    """
    lines = []
    for one in findings:
        ours, verdict = judged(one, runs)
        row = _parsed(one.ours)[0] if one.ours else ""
        numbers = (math.nan,) * 3 if ours is None else (ours.value, ours.low, ours.high)
        unit = "count" if ours is None else ours.unit
        cells = [number(math.nan if end is None else end, unit, missing=DASH) for end in numbers]
        how = f"`python -m sweeps.run {plan} --rows '{row}'`" if row else DASH
        said = one.published if isinstance(one.published, str) else f"{one.published:g}"
        published = f"{said} ({one.of}; {one.source})"
        lines.append((f"[{one.paper}]({one.paper}.md)", one.item, published, *cells, verdict, how))
    return pd.DataFrame(lines, columns=list(COLUMNS))


def write_page(published: Path, folder: Path, out: Path) -> list[str]:
    """Write the page with the table of published findings.

    Args:
        published: File of the published findings.
        folder: Folder of one or several sweeps with the runs.
        out: File of the page, in Markdown.

    Returns:
        Messages: how many findings are seen, and which runs are not used.

    Raises:
        UserError: The published findings cannot be read, or the results lack a number that they name.
    """
    plan, findings = read_published(published)
    found, notes = find_runs(plan, folder)
    where = plan.resolve()
    name = (where.relative_to(ROOT) if where.is_relative_to(ROOT) else where).as_posix()
    parts, counts = list[str](), list[str]()
    for encoder in dict.fromkeys(["", *(one.encoder for one in found)]):
        runs: dict[str, list[Record]] = {}
        for one in found:
            if one.encoder == encoder:
                runs.setdefault(one.row, []).append(one.record)
        of_encoder = [one for one in findings if not encoder or _parsed(one.ours or "-")[0] in runs]
        frame = table_of(of_encoder, runs, name)
        verdicts = Counter(verdict.partition(" (")[0] for verdict in frame["verdict"])
        counts.append(", ".join(f"{verdicts[kind]} {kind}" for kind in (SEEN, NOT_SEEN, CANNOT, MISSING)))
        title = encoder or "all-MiniLM-L6-v2, and classifiers that are trained here"
        lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in frame.itertuples(index=False)]
        reasons = [
            f"- {one.paper}, {one.item}: {one.why or 'no reason is known'}"
            for one, verdict in zip(of_encoder, frame["verdict"], strict=True)
            if verdict == NOT_SEEN
        ]
        parts += [f"## {title}", f"{len(frame)} findings: {counts[-1]}.", "\n".join(lines)]
        parts += ["**Not seen: the most likely reasons**", "\n".join(reasons)] if reasons else []
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, "\n\n".join([HEAD.format(plan=name, published=published.name), *parts]) + "\n")
    return [*counts, *notes]


def main(args: Sequence[str]) -> int:
    """Run `python -m reports.paper` with some arguments, and return the exit code.

    Raises:
        UserError: The page cannot be written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m reports.paper", description="Write the table of published findings with our numbers."
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/paper"), help="folder of the runs (default: runs/paper)"
    )
    parser.add_argument("--published", type=Path, default=PUBLISHED, help="file of the published findings")
    parser.add_argument("--out", type=Path, default=PUBLISHED.with_name("index.md"), help="file of the page")
    given = parser.parse_args(args)
    if not given.runs.is_dir():
        raise UserError(f"{given.runs}: there is no such folder. Make the runs with `make paper`, or name their folder")
    for message in write_page(given.published, given.runs, given.out):
        Console().print(Text(message), soft_wrap=True)
    Console().print(Text(f"Written to {given.out}"), soft_wrap=True)
    return 0


if __name__ == "__main__":
    command.run(main)
