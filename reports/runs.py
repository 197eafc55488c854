"""One table of many runs.

The score of a row is the mean over its seeds, `sd` their standard deviation (n − 1). A row with one seed has the
interval of its run. With several seeds the interval is the bootstrap over items, with the counts of all seeds added per
item; it describes the variation over items, not over seeds. Scores without counts have no interval then.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pandas as pd

from metrics.bootstrap import bootstrap_ratio, mean_and_sd
from reports.reader import NAN, Record, RecordError, first_of
from results import Estimate, Provenance, Result, Table, Unit
from results.errors import near

STATISTICS = ("low", "high", "sd")


class Run(Protocol):
    """A call of train.py."""

    @property
    def key(self) -> str:
        """Its name in a mapping of results."""

    @property
    def command(self) -> str:
        """`fit` or another command."""

    @property
    def config(self) -> Path:
        """Its file of settings."""


AnyRun = TypeVar("AnyRun", bound=Run)

Records = Mapping[str, Record]  # of the finished runs by their keys


@dataclass(frozen=True)
class Row(Generic[AnyRun]):
    """A row of the table: its first cells, its runs by seed, and the names of its scores in their results."""

    labels: tuple[str, ...]
    runs: Mapping[int, Sequence[AnyRun]]
    scores: Mapping[str, str]  # by their columns; empty where the row has none

    @property
    def name(self) -> str:
        """The row in a message."""
        return " × ".join(self.labels)

    def all_runs(self) -> list[AnyRun]:
        """Its runs, seed by seed."""
        return [run for runs in self.runs.values() for run in runs]

    def finished(self, records: Records) -> list[Record]:
        """The results of its finished runs."""
        return [records[run.key] for run in self.all_runs() if run.key in records]

    def done(self, records: Records) -> dict[int, list[Record]]:
        """The results of the seeds whose runs are all finished."""
        whole = {seed: runs for seed, runs in self.runs.items() if all(run.key in records for run in runs)}
        return {seed: [records[run.key] for run in runs] for seed, runs in whole.items()}


Rows = Sequence[Row[Any]]


RUN_COLUMNS = ("seed", "command", "config", "folder", "epochs")
"""Of the table of runs, between the labels and the scores."""


def columns_of(labels: Sequence[str], scores: Sequence[str], chosen: Sequence[str], where: str) -> dict[str, str]:
    """Full names of the columns of a table, by their names in it: plain `low`, `high`, `sd` are of the first score.

    The columns are those `chosen`, in order; if none are, `labels` and `scores` with their statistics, plain where
    there is one score. `where` is the place of `chosen` in a message.

    Raises:
        RecordError: Two columns would have one name, or there is no such column.
    """
    ends = [score + end for score in scores for end in ("", *(f".{end}" for end in STATISTICS))]
    everything = [*labels, "seeds", "epochs", *ends]
    listed = [*labels, *RUN_COLUMNS, *scores]
    if twice := [name for table in (everything, listed) for name in table if table.count(name) > 1]:
        raise RecordError(f"{where}: `{twice[0]}` would be the name of two columns: rename the label or the axis")
    names = chosen or ([*everything[: -len(STATISTICS)], *STATISTICS] if len(scores) == 1 else everything)
    found = {name: f"{scores[0]}.{name}" if name in STATISTICS else name for name in names}
    for name, full in found.items():
        if full not in everything:
            there = ", ".join(everything)
            raise RecordError(f"{where}: there is no `{name}`{near(name, everything)}; there are {there}")
    return found


def collect(
    name: str, labels: Sequence[str], rows: Rows, columns: Mapping[str, str], records: Records, out: Path
) -> tuple[Result, Provenance]:
    """Make the table `name` and one of its runs, `<name>_runs`; missing seeds are left out.

    The rows, whose first columns are `labels`, have the same scores; for `columns` see `columns_of`. The runs are below
    `runs` of the folder `out`.

    Returns:
        The tables, with the reasons why cells are empty (`faults`) and `warnings` in the audit; what all runs share.
    """
    faults: list[str] = []
    lines, scores = [], dict[str, Estimate]()
    units: dict[str, Unit] = dict.fromkeys(rows[0].scores, "ratio")
    for row in rows:
        first = next(filter(None, row.scores.values()), "")
        done = row.done(records)
        trained = [next((one.epochs for one in runs if first in one.scores), None) for runs in done.values()]
        line: dict[str, object] = {**dict(zip(labels, row.labels, strict=True)), "seeds": len(done)}
        line["epochs"] = mean_and_sd([epochs for epochs in trained if epochs is not None])[0]
        for column, score in row.scores.items():
            found = scores[f"{row.name}.{column}"] = _over_seeds(row, score, done, faults)
            units[column] = units[column] if math.isnan(found.value) else found.unit
            line |= {column: found.value, **{f"{column}.{end}": getattr(found, end) for end in STATISTICS}}
        lines.append(line)
    shown = pd.DataFrame(lines)[list(columns.values())].set_axis(list(columns), axis=1)
    owners = {column: full if full in units else full.rpartition(".")[0] for column, full in columns.items()}
    known: dict[str, Unit] = {column: units[owner] for column, owner in owners.items() if owner in units}
    known |= {"epochs": "count"} if "epochs" in columns else {}
    interval = next((score for score in list(units)[:1] if score in columns), None)
    runs_table = Table(_runs(labels, rows, records, out), {"epochs": "count", **units})
    warnings = _other_data(rows, records) + _other_items(rows, records)
    if len({record.source for record in records.values()}) > 1:
        warnings.append("the program was changed between these runs: another --out runs all with what it is now")
    answer = [column for column, full in columns.items() if full in (*labels, *rows[0].scores)]
    tables = {name: Table(shown, known, interval, answer), f"{name}_runs": runs_table}
    result = Result(name, scores, tables, audit={"faults": faults, "warnings": warnings})
    encoder, data = (_shared([getattr(one, what) for one in records.values()]) for what in ("encoder", "data"))
    return result, Provenance(encoder, data, {})


def _over_seeds(row: Row[Any], score: str, done: Mapping[int, Sequence[Record]], faults: list[str]) -> Estimate:
    """Mean of a score over the seeds of a row, interval and standard deviation; nan where no run has the score."""
    givers = []
    for seed, runs in done.items() if score else ():
        giver = next((one for one in runs if score in one.scores), None)
        if giver is None:
            there = [name for one in runs for name in one.scores]
            files = ", ".join(str(one.path) for one in runs)
            faults.append(
                f"row `{row.name}`, seed {seed}: {files} has no score `{score}`{near(score, there)}; there are "
                f"{', '.join(there)}. Say under the row's `scores` what it is called there, or null"
            )
        else:
            givers.append(giver)
    if not givers:
        return Estimate(NAN, NAN, NAN, unit="ratio", sd=NAN)
    own = givers[0].scores[score]
    mean, sd = mean_and_sd([one.scores[score].value for one in givers])
    low, high = own.low, own.high
    if len(givers) > 1 or low is None:
        low, high = _pooled_interval(row, score, givers, faults)
    return Estimate(mean, low, high, unit=own.unit, sd=sd)


def _pooled_interval(row: Row[Any], score: str, givers: Sequence[Record], faults: list[str]) -> tuple[float, float]:
    """Interval of the counts of all seeds; nan where a run has none."""
    if any(score not in one.ratios or one.items is None for one in givers):
        return NAN, NAN
    try:
        counts = pd.concat([one.counts(score) for one in givers])
    except RecordError as error:
        faults.append(f"row `{row.name}`: {error}: no interval")
        return NAN, NAN
    pooled = counts.groupby(level=list(range(counts.index.nlevels)), sort=False, dropna=False).sum()
    low, high = bootstrap_ratio(pooled["numerator"].to_numpy(), pooled["denominator"].to_numpy())
    return float(low), float(high)


def _runs(labels: Sequence[str], rows: Rows, records: Records, out: Path) -> pd.DataFrame:
    """One line per finished run, in the order of the rows: folder, epochs and scores."""
    lines = []
    for row in rows:
        for seed, run in ((seed, run) for seed, runs in row.runs.items() for run in runs if run.key in records):
            record = records[run.key]
            known = {name: score.value for name, score in record.scores.items()}
            folder = Path(os.path.relpath(record.path.parent, out / "runs")).as_posix()
            values = [known.get(score, NAN) for score in row.scores.values()]
            lines.append([*row.labels, seed, run.command, run.config.as_posix(), folder, record.epochs, *values])
    columns = [*labels, *RUN_COLUMNS, *rows[0].scores]
    return pd.DataFrame(lines, columns=columns).astype(dict.fromkeys(("epochs", *rows[0].scores), np.float64))


def rows_of(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """Folders of the runs of a table in a folder, by row and seed; a RecordError if there is no table of runs."""
    try:
        name = json.loads((folder / "results.json").read_text(encoding="utf-8"))["experiment"]
        table = pd.read_csv(folder / f"{name}_runs.csv", dtype=str, keep_default_na=False)
        labels = table.columns[: table.columns.get_loc("seed")]
    except (OSError, ValueError, KeyError, TypeError):
        raise RecordError(f"{folder} is no folder of a sweep that has ended: it has no table of its runs") from None
    rows: dict[str, dict[str, list[Path]]] = {}
    for line in table.to_dict("records"):
        row = " × ".join(line[label] for label in labels)
        rows.setdefault(row, {}).setdefault(line["seed"], []).append(folder / "runs" / line["folder"])
    return rows


def _shared(descriptions: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Entries that all non-empty descriptions share."""
    given = [description for description in descriptions if description]
    shared = given[0] if given else {}
    return {name: value for name, value in shared.items() if all(one.get(name) == value for one in given)}


def _other_data(rows: Rows, records: Records) -> list[str]:
    """Warn of files that differ between rows: a corpus that changed while results were kept."""
    files = [
        (str(said.get("file")), str(said.get("sha256")), row.name)
        for row in rows
        for record in row.finished(records)
        for _, said in record.splits
    ]
    found = []
    frame = pd.DataFrame(files, columns=["file", "sha256", "row"]).drop_duplicates()
    for file, kinds in frame.groupby("file", sort=False):
        if kinds["sha256"].nunique() > 1:
            names = kinds.groupby("sha256", sort=False)["row"].agg(", ".join)
            found.append(f"{file} was not the same file to all rows: {' | '.join(names)}")
    return found


def _other_items(rows: Rows, records: Records) -> list[str]:
    """Warn of scores whose rows have different items: encoders leave out sentences that are too long for them."""
    scores: dict[str, list[str]] = {}
    for score in rows[0].scores:
        kinds: dict[frozenset[object], list[str]] = {}
        for row in rows:
            if items := _items(row, score, records):
                kinds.setdefault(items, []).append(row.name)
        if len(kinds) > 1:
            shared = frozenset.intersection(*kinds)
            left_out = sorted(map(str, frozenset.union(*kinds) - shared))
            counts = " | ".join(f"{len(items)} under {', '.join(names)}" for items, names in kinds.items())
            how = f"other data for {{}}: {counts}; none under all"
            if shared:
                how = (
                    f"different items for {{}}: {counts}; {len(shared)} under all, without {first_of(left_out)}. What "
                    "all of them have is compared by `python -m sweeps.compare DIR:ROW DIR:ROW --common`"
                )
            scores.setdefault(how, []).append(score)
    return [f"the rows stand on {how.replace('{}', ', '.join(names), 1)}" for how, names in scores.items()]


def _items(row: Row[Any], score: str, records: Records) -> frozenset[object]:
    """Items of a score of a row; none where they are unknown."""
    for record in row.finished(records):
        with suppress(RecordError):
            return frozenset(record.counts(row.scores[score], by_id=True).index)
    return frozenset()
