"""Compare runs on the same items: `python -m sweeps.compare RUN RUN … [--score NAME] [--common] [--json FILE]`.

RUN is the folder of a run, its `results.json`, or `DIR:ROW`, the runs of a row of the sweep in DIR, all its seeds. The
first is the reference that the others are compared with. Runs whose configs differ in nothing but seeds and folders are
one line: its score is the mean over the seeds, `sd` their standard deviation (n − 1), and what is tested is the mean of
each item's counts over the seeds.

Runs on different items, as of two encoders that leave out different sentences, are refused, unless `--common` leaves
out of all runs what is not in each of them; the scores are then of the items that are left.

Intervals are of 95 %, by the bootstrap over items, and tell of the items, not of the seeds. p-values are two-sided: of
random swaps of the two runs' items, and of the paired bootstrap. With several comparisons those of the swaps stand
there corrected for it too (Holm).
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.text import Text

from metrics.attachment import Floats
from metrics.bootstrap import bootstrap_ratio, holm, mean_and_sd, paired_bootstrap, paired_permutation
from reports.tables import data_table
from reports.writer import plain
from results import Estimate, Table, Unit
from results.errors import UserError, near
from sweeps.collect import Outcome, by_id, first_of, read_outcome
from sweeps.plan import SweepError, load
from training.config import seeds, settings

EXPECTED = "the folder of a run, its results.json, or DIR:ROW, a row of the sweep in DIR,"
"""What a command line names."""

DRAWS = 10_000
"""Resamples and random swaps of the tests."""

NAN = float("nan")


class CompareError(UserError):
    """Runs that cannot be compared."""


@dataclass(frozen=True)
class Scored:
    """A run's score, with what it was computed from.

    Attributes:
        folder: The run's folder.
        name: Of the score.
        unit: What the score is.
        score: The score that the run reports.
        counts: Columns `numerator, denominator`, one row per item, indexed by what names the items.
        data: Per split what the data were.
        settings: The config as text, without seeds and folders; None where the run has no config.
        seeds: The seeds in the config, as text.
        label: What the run was named by, where that is the row of a sweep.
    """

    folder: Path
    name: str
    unit: Unit
    score: float
    counts: pd.DataFrame
    data: Mapping[str, object]
    settings: str | None
    seeds: str
    label: str = ""


def read_runs(name: str, score: str | None) -> list[Scored]:
    """Read the run, or the runs of the row of a sweep, that a command line names.

    Raises:
        CompareError: There is no such run or row, or one cannot be read: `read_run`.
    """
    folder, _, row = name.partition(":")
    if Path(name).exists() or not Path(folder).is_dir():
        if (Path(name) / "runs").is_dir():
            raise CompareError(f"{name} is a sweep; name a row of it, {name}:ROW: {', '.join(_rows(Path(name)))}")
        return [read_run(Path(name), score)]
    rows = _rows(Path(folder))
    if row not in rows:
        raise CompareError(f"{folder} has no row {row!r}{near(row, rows)}; there are: {', '.join(rows)}")
    found: list[Scored] = []
    for runs in rows[row].values():
        found.append(replace(_first_with(runs, score), label=f"{Path(folder).resolve().name}:{row}"))
        score = found[0].name
    return found


def _first_with(runs: Sequence[Path], score: str | None) -> Scored:
    """Of several runs of one row and seed the first that has the score, as in the table of the sweep."""
    for run in runs[:-1]:
        try:
            return read_run(run, score)
        except CompareError:
            continue
    return read_run(runs[-1], score)


def _rows(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """The folders of the runs of a sweep: per row and seed."""
    try:
        name = json.loads((folder / "results.json").read_text(encoding="utf-8"))["experiment"]
        table = pd.read_csv(folder / f"{name}_runs.csv", dtype=str, keep_default_na=False)
        labels = table.columns[: table.columns.get_loc("seed")]
    except (OSError, ValueError, KeyError, TypeError):
        raise CompareError(f"{folder} is no folder of a sweep that has ended: it has no table of its runs") from None
    rows: dict[str, dict[str, list[Path]]] = {}
    for line in table.to_dict("records"):
        row = " × ".join(line[label] for label in labels)
        rows.setdefault(row, {}).setdefault(line["seed"], []).append(folder / "runs" / line["folder"])
    return rows


def read_run(run: Path, score: str | None) -> Scored:
    """Read a run's score and its counts; without a name the first score that the run has counts of.

    Raises:
        CompareError: It is no run that is done, has no such score, or no counts for it, or other counts.
    """
    path = run / "results.json" if run.is_dir() else run
    if not path.is_file():
        raise CompareError(f"{run}: {_expected(run)}")
    try:
        outcome = read_outcome(path)
    except SweepError as error:
        raise CompareError(f"{error}; {EXPECTED} is expected") from None
    try:
        score = score or next(iter(outcome.ratios), "uas")
        counts = _counts(outcome, score)
        config = path.parent / "config.yaml"
        made = load(config) if config.is_file() else None
    except SweepError as error:
        raise CompareError(str(error)) from None
    text = None if made is None else json.dumps(settings(made), sort_keys=True, default=str)
    drawn = " ".join(f"{name}={value}" for name, value in sorted(seeds(made).items()))
    value, again = outcome.scores[score].value, _score(counts)
    if not np.isclose(value, again, rtol=0, atol=1e-6, equal_nan=True):
        raise CompareError(f"{path}: {score} is {value} there but {again} by {outcome.items}, which is of another run")
    return Scored(path.parent, score, outcome.scores[score].unit, value, counts, outcome.data, text, drawn)


def _score(counts: pd.DataFrame) -> float:
    sums = counts.sum()
    return float(sums["numerator"] / sums["denominator"]) if sums["denominator"] else NAN


def _expected(run: Path) -> str:
    """What is wrong with a path at which no run is."""
    if not run.is_dir():
        return f"there is no such file or folder; {EXPECTED} is expected"
    below = [str(path.parent) for kind in ("*", "*/*", "*/*/*") for path in sorted(run.glob(f"{kind}/results.json"))]
    hint = f"; below it there are {first_of(below)}" if below else ": no test has ended in it"
    return f"the folder is there, but has no results.json{hint}; {EXPECTED} is expected"


def _counts(outcome: Outcome, score: str) -> pd.DataFrame:
    """The counts of a score per item, by `id` where the items have such, else by all that names them."""
    where = outcome.path
    if score not in outcome.ratios or score not in outcome.scores:
        why = (
            "cannot be compared item by item"
            if score in outcome.scores
            else f"is no score{near(score, outcome.scores)}"
        )
        known = ", ".join(outcome.ratios) or "none, it was made before runs wrote them, or has no items"
        raise CompareError(f"{where}: {score} {why}; there are counts per item of: {known}")
    if outcome.items is None or not outcome.items.is_file():
        raise CompareError(f"{where}: the items of its test, {outcome.items or 'items.parquet'}, are not there")
    try:
        counts = outcome.counts(score)
    except (OSError, ValueError, KeyError) as error:
        raise CompareError(f"{outcome.items} cannot be read: {' '.join(str(error).split())}") from None
    if counts is None or None in counts.index.names:
        raise CompareError(f"{outcome.items} does not name its items: it has no column id, sentence or document")
    counts = by_id(counts)
    if not counts.index.is_unique:
        names = " and ".join(map(str, counts.index.names))
        raise CompareError(
            f"{outcome.items}: {int(counts.index.duplicated().sum())} items repeat the {names} of others"
        )
    if not np.isfinite(counts.to_numpy()).all():
        raise CompareError(f"{outcome.items}: a count of {score} is missing or infinite")
    return counts


def grouped(runs: Sequence[Scored]) -> list[list[Scored]]:
    """Runs by line: the same config with other seeds. One of a seed that is there already is a line of its own."""
    groups: list[list[Scored]] = []
    for run in runs:
        for group in groups:
            alike = run.settings is not None and run.settings == group[0].settings
            if alike and not _other_data(run, group[0]) and all(run.seeds != other.seeds for other in group):
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def compare(groups: Sequence[Sequence[Scored]], score: str) -> Table:
    """One line per group, compared with the first.

    Returns:
        Columns `run, seeds, <score>, <score>.low, <score>.high, sd`, and where there are several groups `difference,
        difference.low, difference.high, permutation.p, bootstrap.p`, nan for the first; where there are several
        comparisons `holm.p`.

    Raises:
        CompareError: The runs were not scored on the same items.
    """
    reference = groups[0][0]
    pooled = [_pooled(group, reference) for group in groups]
    folders = _labels([group[0].folder for group in groups])
    names = [group[0].label or folder for group, folder in zip(groups, folders, strict=True)]
    lines = []
    for name, group, counts in zip(names, groups, pooled, strict=True):
        mean, sd = mean_and_sd([run.score for run in group])
        estimate = Estimate(mean, *map(float, bootstrap_ratio(*counts.T)), unit=reference.unit)
        line: dict[str, object] = {"run": name, "seeds": len(group), **estimate.named(score), "sd": sd}
        if len(groups) > 1:
            line |= _against(counts, pooled[0]) if counts is not pooled[0] else dict.fromkeys(_TESTS, NAN)
        lines.append(line)
    frame = pd.DataFrame(lines)
    units: dict[str, Unit] = {score: reference.unit}
    if len(groups) > 1:
        units |= {"difference": reference.unit, "permutation.p": "p", "bootstrap.p": "p"}
    if len(groups) > 2:
        frame["holm.p"] = holm(frame["permutation.p"].tolist())
        units["holm.p"] = "p"
    return Table(frame, units, interval=score)


_TESTS = ("difference", "difference.low", "difference.high", "permutation.p", "bootstrap.p")


def _against(counts: Floats, reference: Floats) -> dict[str, object]:
    columns = (*counts.T, *reference.T)
    found = paired_bootstrap(*columns, draws=DRAWS)
    swaps = paired_permutation(*columns, draws=DRAWS)
    return dict(zip(_TESTS, (found.value, found.low, found.high, swaps, found.p), strict=True))


def _pooled(group: Sequence[Scored], reference: Scored) -> Floats:
    """Mean counts over a group's seeds, `[items, 2]`, the items in the order of the reference."""
    order = reference.counts.index
    for run in group:
        names = run.counts.index
        if names.names != order.names:
            both = [" and ".join(map(str, index.names)) for index in (order, names)]
            raise CompareError(
                f"items of {reference.folder} are named by {both[0]}, those of {run.folder} by {both[1]}"
            )
        missing, added = order.difference(names), names.difference(order)
        if len(missing) or len(added):
            raise CompareError(
                f"{reference.folder} and {run.folder} were not scored on the same items: {_some(missing)} only in the "
                f"former, {_some(added)} only in the latter, {len(order) - len(missing)} in both; --common compares "
                "them on the items that all runs have"
            )
    pooled: Floats = np.mean([run.counts.loc[order].to_numpy(dtype=np.float64) for run in group], axis=0)
    return pooled


def _some(items: pd.Index) -> str:
    return f"{len(items)} ({first_of(list(map(str, items)))})" if len(items) else "0"


def common(runs: Sequence[Scored]) -> tuple[list[Scored], list[str]]:
    """The runs on the items that all of them have, and what was left out of each.

    Raises:
        CompareError: They have none in common.
    """
    shared = runs[0].counts.index
    for run in runs[1:]:
        shared = shared[shared.isin(run.counts.index)] if run.counts.index.names == shared.names else shared
    if not len(shared):
        raise CompareError(f"{', '.join(str(run.folder) for run in runs)} have no item in common")
    found, told = [], []
    for run in runs:
        kept = run.counts[run.counts.index.isin(shared)]
        found.append(replace(run, counts=kept, score=_score(kept)))
        if len(left_out := run.counts.index.difference(shared)):
            told.append(
                f"of {run.label or run.folder} {_some(left_out)} of {len(run.counts)} items are left out: not all runs "
                f"have them; its {run.name} was {run.score:.4g} and is {found[-1].score:.4g} without them"
            )
    return found, told


def warnings(groups: Sequence[Sequence[Scored]]) -> list[str]:
    """What whoever reads the comparison should know of the runs."""
    reference = groups[0][0]
    found = []
    for run in (run for group in groups for run in group):
        if run.settings is None:
            found.append(f"{run.folder} has no config.yaml: no other seed can be told to belong to it")
        if others := _other_data(run, reference):
            found.append(f"{run.folder} and {reference.folder} read other files as {' and '.join(others)}")
        totals = [one.counts["denominator"].reindex(reference.counts.index) for one in (run, reference)]
        # Of F1 this is no sign of other data: it is out of what was predicted, too.
        if run.name != "f1" and (differing := int((totals[0] != totals[1]).sum())):
            found.append(f"in {differing} items {run.folder} counts out of another number than {reference.folder}")
    return found


def _other_data(run: Scored, other: Scored) -> list[str]:
    """Splits that both runs read, of files that differ."""

    def digests(data: Mapping[str, object]) -> dict[str, object]:
        return {split: said["sha256"] for split, said in data.items() if isinstance(said, dict) and "sha256" in said}

    mine, others = digests(run.data), digests(other.data)
    return [split for split in mine if split in others and mine[split] != others[split]]


def _labels(folders: Sequence[Path]) -> list[str]:
    """The folders, without the parents that all share."""
    if len(folders) == 1:
        return [str(folders[0])]
    parents = os.path.commonpath([folder.resolve().parent for folder in folders])
    return [folder.resolve().relative_to(parents).as_posix() for folder in folders]


def main(args: Sequence[str], *, console: Console | None = None) -> int:
    """Run the command line `args`; returns the exit code.

    Raises:
        CompareError: The runs cannot be compared.
    """
    console = console or Console()
    parser = argparse.ArgumentParser(prog="python -m sweeps.compare", description="Compare runs on the same items.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help=f"{EXPECTED} all its seeds")
    parser.add_argument("--score", help="what to compare them by (the first that has counts: uas, accuracy)")
    parser.add_argument("--common", action="store_true", help="leave out the items that are not in all of the runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to FILE as well")
    options = parser.parse_args(args)
    runs = read_runs(options.runs[0], options.score)
    runs += [run for name in options.runs[1:] for run in read_runs(name, runs[0].name)]
    for place, run in enumerate(runs):
        if run.folder.resolve() in [other.folder.resolve() for other in runs[:place]]:
            raise CompareError(f"{run.folder} is named twice")
    runs, left_out = common(runs) if options.common else (runs, [])
    groups = grouped(runs)
    table = compare(groups, runs[0].name)
    items, names = len(runs[0].counts), " and ".join(map(str, runs[0].counts.index.names))
    console.print(data_table(f"{runs[0].name}, against the first", table, "the output of --json"))
    console.print()
    console.print(Text(f"{items} items, matched by {names}; {DRAWS} draws a test."), soft_wrap=True)
    told = left_out + warnings(groups)
    for warning in told:
        console.print(Text(f"Warning: {warning}", "yellow"), soft_wrap=True)
    if options.json is not None:
        lines = [
            {**line, "runs": [{"folder": str(run.folder), "score": run.score, "seeds": run.seeds} for run in group]}
            for line, group in zip(table.frame.to_dict("records"), groups, strict=True)
        ]
        content = {"score": runs[0].name, "items": items, "draws": DRAWS, "lines": lines, "warnings": told}
        text = json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        options.json.write_text(text, encoding="utf-8")
        console.print(Text(f"Written to {options.json}"), soft_wrap=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (CompareError, OSError) as error:
        Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(1)
