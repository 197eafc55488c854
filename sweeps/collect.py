"""Collects the results of the runs of a sweep in one table.

The score of a row is the mean over its seeds, `sd` their standard deviation (n − 1). A row with one seed has the
interval of its run. With several seeds the interval is the bootstrap over items, with the counts of all seeds added per
item; it describes the variation over items, not over seeds. Scores without counts have no interval then.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from metrics.bootstrap import bootstrap_ratio, mean_and_sd
from results import Estimate, Provenance, Result, Table, Unit
from results.errors import near
from results.result import ENDS
from sweeps.plan import STATISTICS, Row, Run, Sweep, SweepError

UNITS = ("document", "sentence", "id")
"""Columns that identify an item."""

FIRST = 3
"""Number of names that a message lists."""

NAN = float("nan")


@dataclass(frozen=True)
class Outcome:
    """The results of a run.

    Attributes:
        path: Its `results.json`.
        scores: Its scores; without units, as in old files, they are plain numbers.
        epochs: Epoch of the tested checkpoint, from 1; nan where nothing was trained, or it is unknown.
        ratios: Numerator and denominator of scores that divide two columns of the items.
        items: File of the items.
        encoder: Description of the encoder.
        data: Description of the data of each split.
        source: Digest of the program; None where it is unknown.
    """

    path: Path
    scores: Mapping[str, Estimate]
    epochs: float
    ratios: Mapping[str, Sequence[str]]
    items: Path | None
    encoder: Mapping[str, object]
    data: Mapping[str, object]
    source: str | None = None

    def counts(self, score: str) -> pd.DataFrame | None:
        """Numerator and denominator of a score for each item; None where there are no such counts."""
        if score not in self.ratios or self.items is None:
            return None
        frame = pd.read_parquet(self.items)
        counts = frame[list(self.ratios[score])].set_axis(["numerator", "denominator"], axis=1).astype(np.float64)
        units = [column for column in UNITS if column in frame]
        return counts.set_index(pd.MultiIndex.from_frame(frame[units])) if units else counts


@dataclass(frozen=True)
class Collected:
    """The results of a sweep.

    Attributes:
        result: The table of the sweep, and a table of its runs.
        provenance: Encoder and data that all runs share.
        faults: Reasons why cells are empty.
        warnings: Warnings for readers of the table.
    """

    result: Result
    provenance: Provenance
    faults: tuple[str, ...]
    warnings: tuple[str, ...]


def read_outcome(path: Path) -> Outcome:
    """Read a `results.json`.

    Raises:
        SweepError: It was not written by a run of this application.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        epochs = content["audit"].get("epochs")
        return Outcome(
            path,
            estimates_of(content["scores"], content.get("units", {})),
            float(epochs) if isinstance(epochs, int | float) else NAN,
            dict(content.get("ratios", {})),
            None if content["items"] is None else path.parent / content["items"],
            dict(content["encoder"]),
            dict(content["data"]),
            content.get("versions", {}).get("source_sha256"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SweepError(
            f"{path} is there, but is not what a run writes as its results.json ({type(error).__name__}: {error})"
        ) from None


def estimates_of(numbers: Mapping[str, float | None], units: Mapping[str, Unit]) -> dict[str, Estimate]:
    """Join the numbers `x`, `x.low`, `x.high`, … of a `results.json` to the score `x`."""
    known = {name: NAN if number is None else float(number) for name, number in numbers.items()}
    owners = {name: name.rpartition(".") for name in known}
    names = [name for name, (owner, _, end) in owners.items() if not (end in ENDS and owner in known)]
    return {
        name: Estimate(
            known[name],
            known.get(f"{name}.low"),
            known.get(f"{name}.high"),
            unit=units.get(name, "ratio"),
            sd=known.get(f"{name}.sd"),
            p=known.get(f"{name}.p"),
        )
        for name in names
    }


def by_id(counts: pd.DataFrame) -> pd.DataFrame:
    """Index counts by `id` where the items have one, else by all columns that identify them.

    Sentence numbers differ between encoders where one of them leaves out a sentence.
    """
    others = [name for name in counts.index.names if name != "id"]
    return counts.droplevel(others) if "id" in counts.index.names and others else counts


def collect(sweep: Sweep, outcomes: Mapping[str, Outcome]) -> Collected:
    """Make the tables of a sweep and of its runs from outcomes by the keys of the runs; missing seeds are left out."""
    faults: list[str] = []
    done = [_done(row, outcomes) for row in sweep.rows]
    cells = [_scores(row, of_row, faults) for row, of_row in zip(sweep.rows, done, strict=True)]
    frame = pd.DataFrame([_row(sweep, *of_row) for of_row in zip(sweep.rows, cells, done, strict=True)])
    scores = {
        f"{row.name}.{score}": one for row, found in zip(sweep.rows, cells, strict=True) for score, one in found.items()
    }
    units: dict[str, Unit] = {}
    for score in sweep.scores:
        known = [found[score].unit for found in cells if not math.isnan(found[score].value)]
        units[score] = known[0] if known else "ratio"
    warnings = _other_data(sweep, outcomes) + _other_items(sweep, outcomes)
    if len({outcome.source for outcome in outcomes.values()}) > 1:
        warnings.append(
            "the program was changed between these runs: another --out runs all of them with what it is now"
        )
    chosen = frame[[sweep.source(column) for column in sweep.columns]].set_axis(list(sweep.columns), axis=1)
    tables = {sweep.name: _shown(sweep, chosen, units), f"{sweep.name}_runs": _runs_table(sweep, outcomes, units)}
    runs = {run.key for row in sweep.rows for runs in row.runs.values() for run in runs}
    audit = {"runs": len(runs), "done": len(outcomes), "faults": faults, "warnings": warnings}
    every = list(outcomes.values())
    encoder, data = _shared([one.encoder for one in every]), _shared([one.data for one in every])
    return Collected(
        Result(sweep.name, scores, tables, audit=audit), Provenance(encoder, data, {}), tuple(faults), tuple(warnings)
    )


def _shown(sweep: Sweep, frame: pd.DataFrame, units: Mapping[str, Unit]) -> Table:
    """The chosen columns with their units."""
    first = sweep.scores[0]
    of_columns: dict[str, Unit] = {}
    for column in map(str, frame):
        owner = column if column in units else column.rpartition(".")[0] or first
        if column in units or column in STATISTICS or owner in units:
            of_columns[column] = units[owner]
    if "epochs" in frame:
        of_columns["epochs"] = "count"
    return Table(frame, of_columns, interval=first if first in frame else None)


Done = Mapping[int, Sequence[Outcome]]
"""The outcomes of a row by seed."""


def _scores(row: Row, done: Done, faults: list[str]) -> dict[str, Estimate]:
    """Scores of a row: mean over its seeds, interval and standard deviation; nan where no run has the score."""
    found: dict[str, Estimate] = {}
    for column, score in row.scores.items():
        givers = []
        if score is not None:
            asked = [_giver(row, seed, score, runs, faults) for seed, runs in done.items()]
            givers = [outcome for outcome in asked if outcome is not None]
        if score is None or not givers:
            found[column] = Estimate(NAN, NAN, NAN, unit="ratio", sd=NAN)
            continue
        mean, sd = mean_and_sd([outcome.scores[score].value for outcome in givers])
        low, high = _interval(row, score, givers, faults)
        found[column] = Estimate(mean, low, high, unit=givers[0].scores[score].unit, sd=sd)
    return found


def _done(row: Row, outcomes: Mapping[str, Outcome]) -> Done:
    """The outcomes of the seeds whose runs are all done."""
    return {
        seed: [outcomes[run.key] for run in runs]
        for seed, runs in row.runs.items()
        if all(run.key in outcomes for run in runs)
    }


def _row(sweep: Sweep, row: Row, scores: Mapping[str, Estimate], done: Done) -> dict[str, object]:
    """Cells of a row: labels, number of seeds, mean epochs of the runs with its first score, and the scores."""
    names = [name for name in row.scores.values() if name is not None]
    givers = [next((one for one in runs if names and names[0] in one.scores), None) for runs in done.values()]
    trained = [outcome.epochs for outcome in givers if outcome is not None]
    cells: dict[str, object] = dict(zip(sweep.labels, row.labels, strict=True))
    cells |= {"seeds": len(done), "epochs": mean_and_sd(trained)[0]}
    for column, score in scores.items():
        cells[column] = score.value
        cells |= {sweep.column(column, end): getattr(score, end) for end in STATISTICS}
    return cells


def _giver(row: Row, seed: int, score: str, runs: Sequence[Outcome], faults: list[str]) -> Outcome | None:
    """The first run that has a score."""
    for outcome in runs:
        if score in outcome.scores:
            return outcome
    there = [name for run in runs for name in run.scores]
    files = ", ".join(str(run.path) for run in runs)
    faults.append(
        f"row `{row.name}`, seed {seed}: {files} has no score `{score}`{near(score, there)}; there are "
        f"{', '.join(there)}. Say under the row's `scores` what it is called there, or null"
    )
    return None


def _interval(row: Row, score: str, givers: Sequence[Outcome], faults: list[str]) -> tuple[float, float]:
    own = givers[0].scores[score]
    if len(givers) == 1 and own.low is not None and own.high is not None:
        return own.low, own.high
    counts = [found for outcome in givers if (found := outcome.counts(score)) is not None]
    if not counts or len(counts) < len(givers):
        return NAN, NAN
    table = pd.concat(counts)
    pooled = table.groupby(level=list(range(table.index.nlevels)), sort=False, dropna=False).sum()
    if len(pooled) < max(map(len, counts)):
        faults.append(f"row `{row.name}`: items of {givers[0].items} have the same {' and '.join(UNITS)}: no interval")
        return NAN, NAN
    low, high = bootstrap_ratio(pooled["numerator"].to_numpy(), pooled["denominator"].to_numpy())
    return float(low), float(high)


def _runs_table(sweep: Sweep, outcomes: Mapping[str, Outcome], units: Mapping[str, Unit]) -> Table:
    """One line per finished run, in the order of the rows: folder, epochs and scores."""
    lines = []
    for row in sweep.rows:
        for seed, runs in row.runs.items():
            for run in runs:
                if run.key in outcomes:
                    lines.append(dict(zip(sweep.labels, row.labels, strict=True)) | _line(row, seed, run, outcomes))
    columns = [*sweep.labels, "seed", "command", "config", "folder", "epochs", *sweep.scores]
    frame = pd.DataFrame(lines, columns=columns).astype(dict.fromkeys(("epochs", *sweep.scores), np.float64))
    return Table(frame, {"epochs": "count", **units})


def _line(row: Row, seed: int, run: Run, outcomes: Mapping[str, Outcome]) -> dict[str, object]:
    outcome = outcomes[run.key]
    folder = outcome.path.parent.relative_to(outcome.path.parents[3]).as_posix()
    values = {
        column: outcome.scores[score].value if score is not None and score in outcome.scores else NAN
        for column, score in row.scores.items()
    }
    place = {"seed": seed, "command": run.command, "config": run.config.as_posix(), "folder": folder}
    return {**place, "epochs": outcome.epochs, **values}


def _shared(descriptions: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Entries that all non-empty descriptions share."""
    given = [description for description in descriptions if description]
    shared = dict(given[0]) if given else {}
    return {name: value for name, value in shared.items() if all(one.get(name) == value for one in given)}


def _other_data(sweep: Sweep, outcomes: Mapping[str, Outcome]) -> list[str]:
    """Warn of files that differ between rows: a corpus that changed while results were kept."""
    rows: dict[str, dict[object, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in sweep.rows:
        for run in (run for runs in row.runs.values() for run in runs if run.key in outcomes):
            for split in outcomes[run.key].data.values():
                if isinstance(split, dict) and row.name not in rows[str(split.get("file"))][split.get("sha256")]:
                    rows[str(split.get("file"))][split.get("sha256")].append(row.name)
    return [
        f"{file} was not the same file to all rows: {' | '.join(map(', '.join, kinds.values()))}"
        for file, kinds in rows.items()
        if len(kinds) > 1
    ]


def _other_items(sweep: Sweep, outcomes: Mapping[str, Outcome]) -> list[str]:
    """Warn of scores whose rows have different items: encoders leave out sentences that are too long for them."""
    scores: dict[str, list[str]] = defaultdict(list)
    for score in sweep.scores:
        rows: dict[frozenset[object], list[str]] = defaultdict(list)
        for row in sweep.rows:
            if items := _items(row, score, outcomes):
                rows[items].append(row.name)
        if len(rows) > 1:
            shared = frozenset.intersection(*rows)
            left_out = sorted(map(str, frozenset.union(*rows) - shared))
            kinds = " | ".join(f"{len(items)} under {', '.join(names)}" for items, names in rows.items())
            how = (
                f"{kinds}; {len(shared)} under all, without {first_of(left_out)}. What all of them have is compared by"
            )
            how = f"different items for {{}}: {how} `python -m sweeps.compare DIR:ROW DIR:ROW --common`"
            scores[how if shared else f"other data for {{}}: {kinds}; none under all"].append(score)
    return [f"the rows stand on {how.replace('{}', ', '.join(names), 1)}" for how, names in scores.items()]


def _items(row: Row, score: str, outcomes: Mapping[str, Outcome]) -> frozenset[object]:
    """Items of a score of a row; none where they are unknown."""
    name = row.scores[score]
    for run in (run for runs in row.runs.values() for run in runs if run.key in outcomes):
        counts = outcomes[run.key].counts(name) if name else None
        if counts is not None and None not in counts.index.names:
            return frozenset(by_id(counts).index)
    return frozenset()


def first_of(names: Sequence[str]) -> str:
    """List the first names and the number of the others."""
    more = len(names) - FIRST
    return ", ".join(names[:FIRST]) + (f" and {more} more" if more > 0 else "")
