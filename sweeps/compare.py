"""Compare runs on the same items: `python -m sweeps.compare RUN RUN … [--score NAME] [--common] [--json FILE]`.

RUN is the folder of a run, its `results.json`, or `DIR:ROW`, all seeds of a row of the sweep in DIR. The first RUN is
the reference. Runs whose configs differ only in seeds and folders are one line: its score is the mean over the seeds,
`sd` their standard deviation (n − 1), and the tests use the mean counts of each item over the seeds.

Runs on different items are refused, for instance when two encoders leave out different sentences. `--common` compares
them on the items that all of them have.

Intervals are 95 % bootstrap intervals over items; they do not describe the variation over seeds. p-values are
two-sided: of random swaps of the items of two runs, and of the paired bootstrap. With several comparisons the p-values
of the swaps are also corrected (Holm).
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
"""Forms of RUN."""

DRAWS = 10_000
"""Resamples and random swaps of the tests."""

NAN = float("nan")


class CompareError(UserError):
    """Runs that cannot be compared."""


@dataclass(frozen=True)
class Scored:
    """A score of a run with its counts.

    Attributes:
        folder: Folder of the run.
        name: Name of the score.
        unit: Unit of the score.
        score: The score that the run reports.
        counts: Columns `numerator, denominator`, one row per item, indexed by the columns that identify the items.
        data: Description of the data of each split.
        settings: The config as text, without seeds and folders; None where the run has no config.
        seeds: The seeds in the config, as text.
        label: `DIR:ROW`, where the run was named so.
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
    """Read the run, or the runs of a row of a sweep, that a RUN of the command line names.

    Raises:
        CompareError: There is no such run or row, or a run cannot be read.
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
    """The first run of a row and seed that has the score, as in the table of the sweep."""
    for run in runs[:-1]:
        with suppress(CompareError):
            return read_run(run, score)
    return read_run(runs[-1], score)


def _rows(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """Folders of the runs of a sweep, by row and seed."""
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
    """Read a score of a run and its counts; None takes the first score with counts.

    Raises:
        CompareError: The run is not finished, or has no such score, or no counts that give it.
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
    """Say why there is no run at a path."""
    if not run.is_dir():
        return f"there is no such file or folder; {EXPECTED} is expected"
    below = [str(path.parent) for kind in ("*", "*/*", "*/*/*") for path in sorted(run.glob(f"{kind}/results.json"))]
    hint = f"; below it there are {first_of(below)}" if below else ": no test has ended in it"
    return f"the folder is there, but has no results.json{hint}; {EXPECTED} is expected"


def _counts(outcome: Outcome, score: str) -> pd.DataFrame:
    """The checked counts of a score, indexed as by `by_id`."""
    where = outcome.path
    if score not in outcome.ratios or score not in outcome.scores:
        why = (
            "cannot be compared item by item"
            if score in outcome.scores
            else f"is no score{near(score, outcome.scores)}"
        )
        known = ", ".join(outcome.ratios) or "none; experiments such as SingleHeads have none to compare"
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
    """Group runs of the same config with different seeds; a run with a repeated seed is a group of its own."""
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
    """Mean counts over the seeds of a group, `[items, 2]`, in the order of the reference."""
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
    """Restrict runs to the items that all of them have; return them and a warning for each that lost items.

    Raises:
        CompareError: They have no item in common.
    """
    shared = runs[0].counts.index
    for run in runs[1:]:
        shared = shared[shared.isin(run.counts.index)] if run.counts.index.names == shared.names else shared
    if not len(shared):
        raise CompareError(f"{', '.join(str(run.folder) for run in runs)} have no item in common")
    found, lost = [], []
    for run in runs:
        kept = run.counts[run.counts.index.isin(shared)]
        found.append(replace(run, counts=kept, score=_score(kept)))
        if len(left_out := run.counts.index.difference(shared)):
            lost.append(
                f"of {run.label or run.folder} {_some(left_out)} of {len(run.counts)} items are left out: not all runs "
                f"have them; its {run.name} was {run.score:.4g} and is {found[-1].score:.4g} without them"
            )
    return found, lost


def warnings(groups: Sequence[Sequence[Scored]]) -> list[str]:
    """Warn of runs without a config, with other data, or with other denominators."""
    reference = groups[0][0]
    found = []
    for run in (run for group in groups for run in group):
        if run.settings is None:
            found.append(f"{run.folder} has no config.yaml: no other seed can be told to belong to it")
        if others := _other_data(run, reference):
            found.append(f"{run.folder} and {reference.folder} read other files as {' and '.join(others)}")
        totals = [one.counts["denominator"].reindex(reference.counts.index) for one in (run, reference)]
        # The denominator of F1 depends on the predictions.
        if run.name != "f1" and (differing := int((totals[0] != totals[1]).sum())):
            found.append(f"in {differing} items {run.folder} counts out of another number than {reference.folder}")
    return found


def _other_data(run: Scored, other: Scored) -> list[str]:
    """Splits that both runs read from different files."""

    def digests(data: Mapping[str, object]) -> dict[str, object]:
        return {split: said["sha256"] for split, said in data.items() if isinstance(said, dict) and "sha256" in said}

    mine, others = digests(run.data), digests(other.data)
    return [split for split in mine if split in others and mine[split] != others[split]]


def _labels(folders: Sequence[Path]) -> list[str]:
    """The folders relative to their common parent."""
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
    cautions = left_out + warnings(groups)
    for warning in cautions:
        console.print(Text(f"Warning: {warning}", "yellow"), soft_wrap=True)
    if options.json is not None:
        lines = [
            {**line, "runs": [{"folder": str(run.folder), "score": run.score, "seeds": run.seeds} for run in group]}
            for line, group in zip(table.frame.to_dict("records"), groups, strict=True)
        ]
        content = {"score": runs[0].name, "items": items, "draws": DRAWS, "lines": lines, "warnings": cautions}
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
