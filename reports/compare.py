"""Compare runs on the same items: `python -m reports.compare RUN RUN … [--score NAME] [--json FILE]`.

RUN is the folder of a run, or its `results.json`. The first is the reference that the others are compared with. Runs
whose configs differ in nothing but seeds and folders are one line: its score is the mean over the seeds, `sd` their
standard deviation (n − 1), and what is tested is the mean of each item's counts over the seeds.

Intervals are of 95 %, by the bootstrap over items, and tell of the items, not of the seeds. p-values are two-sided: of
random swaps of the two runs' items, and of the paired bootstrap. With several comparisons those of the swaps stand
there corrected for it too (Holm).
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.text import Text

from metrics.attachment import Floats
from metrics.significance import bootstrap_ratio, holm, paired_bootstrap, paired_permutation
from reports.collect import Outcome, read_outcome
from reports.console import frame_table
from reports.plan import SweepError
from reports.writer import plain
from reports.yaml_fields import load, near

SEEDS = frozenset({"seed", "seed_everything"})
"""Names of options that runs of one line may differ in, wherever they stand in the config."""

FOLDERS = frozenset({"default_root_dir", "save_dir", "dirpath", "cache", "root"})
"""Names of options that say where something lies, not what it is."""

DRAWS = 10_000
"""Resamples and random swaps of the tests."""

NAN = float("nan")


class CompareError(ValueError):
    """Runs that cannot be compared."""


@dataclass(frozen=True)
class Scored:
    """A run's score, with what it was computed from.

    Attributes:
        folder: The run's folder.
        name: Of the score.
        score: The score that the run reports.
        counts: Columns `numerator, denominator`, one row per item, indexed by what names the items.
        data: Per split what the data were.
        settings: The config as text, without seeds and folders; None where the run has no config.
        seeds: The seeds in the config, as text.
    """

    folder: Path
    name: str
    score: float
    counts: pd.DataFrame
    data: Mapping[str, object]
    settings: str | None
    seeds: str


def read_run(run: Path, score: str | None) -> Scored:
    """Read a run's score and its counts; without a name the first score that the run has counts of.

    Raises:
        CompareError: It is no run that is done, has no such score, or no counts for it, or other counts.
    """
    path = run / "results.json" if run.is_dir() else run
    if not path.is_file():
        why = "has no results.json: no test has ended in it" if run.is_dir() else "is neither a folder nor a file"
        raise CompareError(f"{run} {why}")
    try:
        outcome = read_outcome(path)
        score = score or next(iter(outcome.ratios), "uas")
        counts = _counts(outcome, score)
        config = path.parent / "config.yaml"
        settings = load(config) if config.is_file() else None
    except SweepError as error:
        raise CompareError(str(error)) from None
    seeds: list[str] = []
    text = None if settings is None else json.dumps(_unseeded(settings, seeds), sort_keys=True, default=str)
    value = outcome.scores[score]
    sums = counts.sum()
    again = sums["numerator"] / sums["denominator"] if sums["denominator"] else NAN
    if not np.isclose(value, again, rtol=0, atol=1e-6, equal_nan=True):
        raise CompareError(f"{path}: {score} is {value} there but {again} by {outcome.items}, which is of another run")
    return Scored(path.parent, score, value, counts, outcome.data, text, " ".join(seeds))


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
    if "id" in counts.index.names:
        # Of two encoders one may have left out a sentence, and the numbers of those after it are others.
        counts = counts.droplevel([name for name in counts.index.names if name != "id"])
    if not counts.index.is_unique:
        names = " and ".join(map(str, counts.index.names))
        raise CompareError(
            f"{outcome.items}: {int(counts.index.duplicated().sum())} items repeat the {names} of others"
        )
    if not np.isfinite(counts.to_numpy()).all():
        raise CompareError(f"{outcome.items}: a count of {score} is missing or infinite")
    return counts


def _unseeded(value: object, seeds: list[str], at: str = "") -> object:
    """The config without what seeds, which are put into `seeds`, and folders are."""
    if isinstance(value, dict):
        kept: dict[str, object] = {}
        for name, inner in sorted(value.items()):
            if name in SEEDS:
                seeds.append(f"{at}{name}={inner}")
            kept[name] = None if name in SEEDS | FOLDERS else _unseeded(inner, seeds, f"{at}{name}.")
        return kept
    if isinstance(value, list):
        return [_unseeded(inner, seeds, f"{at}{place}.") for place, inner in enumerate(value)]
    return value


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


def compare(groups: Sequence[Sequence[Scored]], score: str) -> pd.DataFrame:
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
    names = _labels([group[0].folder for group in groups])
    lines = []
    for name, group, counts in zip(names, groups, pooled, strict=True):
        low, high = bootstrap_ratio(*counts.T)
        values = [run.score for run in group]
        ends = {f"{score}.low": float(low), f"{score}.high": float(high)}
        line: dict[str, object] = {"run": name, "seeds": len(group), score: statistics.fmean(values), **ends}
        line["sd"] = statistics.stdev(values) if len(values) > 1 else NAN
        if len(groups) > 1:
            line |= _against(counts, pooled[0]) if counts is not pooled[0] else dict.fromkeys(_TESTS, NAN)
        lines.append(line)
    frame = pd.DataFrame(lines)
    if len(groups) > 2:
        frame["holm.p"] = holm(frame["permutation.p"].tolist())
    return frame


_TESTS = ("difference", "difference.low", "difference.high", "permutation.p", "bootstrap.p")


def _against(counts: Floats, reference: Floats) -> dict[str, object]:
    columns = (*counts.T, *reference.T)
    found = paired_bootstrap(*columns, draws=DRAWS)
    swaps = paired_permutation(*columns, draws=DRAWS)
    return dict(zip(_TESTS, (found.difference, found.low, found.high, swaps, found.p), strict=True))


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
        missing, added = len(order.difference(names)), len(names.difference(order))
        if missing or added:
            raise CompareError(
                f"{reference.folder} and {run.folder} were not scored on the same items: {missing} are only in the "
                f"former, {added} only in the latter, {len(order) - missing} in both"
            )
    pooled: Floats = np.mean([run.counts.loc[order].to_numpy(dtype=np.float64) for run in group], axis=0)
    return pooled


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
    parser = argparse.ArgumentParser(prog="python -m reports.compare", description="Compare runs on the same items.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, or its results.json")
    parser.add_argument("--score", help="what to compare them by (the first that has counts: uas, accuracy)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to FILE as well")
    options = parser.parse_args(args)
    runs = [read_run(options.runs[0], options.score)]
    runs += [read_run(run, runs[0].name) for run in options.runs[1:]]
    for place, run in enumerate(runs):
        if run.folder.resolve() in [other.folder.resolve() for other in runs[:place]]:
            raise CompareError(f"{run.folder} is named twice")
    groups = grouped(runs)
    frame = compare(groups, runs[0].name)
    items, names = len(runs[0].counts), " and ".join(map(str, runs[0].counts.index.names))
    console.print(frame_table(f"{runs[0].name}, against the first", frame, "the output of --json"))
    console.print()
    console.print(Text(f"{items} items, matched by {names}; {DRAWS} draws a test."), soft_wrap=True)
    told = warnings(groups)
    for warning in told:
        console.print(Text(f"Warning: {warning}", "yellow"), soft_wrap=True)
    if options.json is not None:
        lines = [
            {**line, "runs": [{"folder": str(run.folder), "score": run.score, "seeds": run.seeds} for run in group]}
            for line, group in zip(frame.to_dict("records"), groups, strict=True)
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
