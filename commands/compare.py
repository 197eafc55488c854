"""Compare runs on the same items.

Usage: `probing compare RUN RUN … [--score NAME] [--common] [--json FILE]`. RUN is the folder of a run, its
`results.json`, or `DIR:ROW` for all seeds of a row of the sweep in DIR. Seeds are pooled and tests are paired; see
docs/sweeps.md.
"""

import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.text import Text

from attention_probing.commands import parser_of
from attention_probing.commands.seeds import as_left_out, estimate_from_counts, with_common_units
from attention_probing.metrics.bootstrap import TEST_DRAWS, with_interval_and_p
from attention_probing.metrics.contrasts import contrast_with
from attention_probing.metrics.p_values import least_p
from attention_probing.results import Estimate, Table, Unit, fill_sentence, format_estimate
from attention_probing.results.errors import list_first, near, pluralize
from attention_probing.results.files import check_writable
from attention_probing.results.reader import find_runs, read_config
from attention_probing.results.record import Record, RecordError, compute_ratio, find_record, to_json
from attention_probing.results.sentences import Difference, describe_difference, describe_differences
from attention_probing.results.settings import seeds, settings_without_seeds
from attention_probing.results.tables import LEGEND, data_table


@dataclass(frozen=True, eq=False)
class Scored:
    """Run with one of its scores, by which it is compared with other runs.

    Attributes:
        record: Results of the run.
        name: Name of the score.
        counts: Numerator and denominator of the score for each item, one row per item.
        config: Config of the run; None without a `config.yaml`.
        label: Name of the run in the table; empty for the name of its folder.
    """

    record: Record
    name: str
    counts: pd.DataFrame
    config: object
    label: str

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.record.path.parent

    @property
    def value(self) -> float:
        """Score of the run: sum of the numerators in `counts` / sum of the denominators."""
        return compute_ratio(self.counts)

    def other_data(self, other: "Scored") -> list[str]:
        """Return the names of the splits that this run and another read from different files, or plant differently."""
        mine, others = (
            {name: said.get("sha256") and (said["sha256"], said.get("shortcut")) for name, said in one.record.splits}
            for one in (self, other)
        )
        return [name for name in mine if None not in (mine[name], others.get(name)) and mine[name] != others[name]]

    def alike(self, other: "Scored") -> bool:
        """Return True if this run and another differ only in their seeds."""
        known = self.config is not None and other.config is not None and not self.other_data(other)
        same = known and settings_without_seeds(self.config) == settings_without_seeds(other.config)
        return same and seeds(self.config) != seeds(other.config)


def scored(record: Record, score: str | None, label: str = "", beside: Record | None = None) -> Scored:
    """Select a score of a run, and read its counts: a numerator and a denominator for each test item.

    Args:
        record: Results of the run.
        score: Name of the score; None takes the first score that has counts.
        label: Name of the run in the table; empty for the name of its folder.
        beside: The first run, which has this score.

    Raises:
        RecordError: The score has no counts.
        SettingsError: The config cannot be read.
    """
    name = score or next(iter(record.ratios), "uas")
    if beside is not None and name not in record.ratios:
        first, own = beside.ratios, record.ratios
        shared = [one for one in first if one in own]
        remedy = f"Give --score {' or '.join(shared)}" if shared else "Compare runs of the same experiment"
        has = [f"{one.path.parent} has {list_first(list(one.ratios)) or 'none'}" for one in (beside, record)]
        raise RecordError(f"{name} has counts per item in one run alone: {' and '.join(has)}. {remedy}")
    counts = record.counts(name, by_id=True)
    return Scored(record, name, counts, read_config(record), label)


def grouped(runs: Sequence[Scored]) -> list[list[Scored]]:
    """Group runs that differ only in their seeds, and return the runs of each group.

    The seeds of a group are different: a second run with the same seed begins a group of its own.
    """
    groups: list[list[Scored]] = []
    for run in runs:
        group = next((group for group in groups if all(run.alike(other) for other in group)), None)
        if group is None:
            groups.append(group := [])
        group.append(run)
    return groups


def on_same_items(runs: Sequence[Scored], common: bool) -> tuple[list[Scored], list[str]]:
    """Restrict all runs to the same items, in the order of the first run.

    Args:
        runs: The runs.
        common: True to drop items that some run lacks.

    Returns:
        The runs, and a warning for each run that has lost items.

    Raises:
        RecordError: The runs have different items and `common` is False, or they share no item.
    """
    first = runs[0]
    order = first.counts.index
    shared, lost = order, []
    for run in runs:
        names = run.counts.index
        if names.names != order.names:
            both = [" and ".join(map(str, index.names)) for index in (order, names)]
            raise RecordError(
                f"{first.folder} and {run.folder} cannot be compared: items of {first.folder} are identified by "
                f"{both[0]}, those of {run.folder} by {both[1]}. Compare runs of the same experiment"
            )
        missing, added = order.difference(names), names.difference(order)
        if len(missing) + len(added) and not common:
            raise RecordError(
                f"{first.folder} and {run.folder} were not scored on the same items: {_some(missing)} only in the "
                f"former, {_some(added)} only in the latter, {len(order) - len(missing)} in both; --common compares "
                "them on the items that all runs have"
            )
        shared = shared[shared.isin(names)]
    if not len(shared):
        folders = ", ".join(str(run.folder) for run in runs)
        raise RecordError(f"{folders} have no item in common. Compare runs that were scored on the same data")
    found = [replace(run, counts=run.counts.loc[shared]) for run in runs]
    for run, kept in zip(runs, found, strict=True):
        if len(left_out := run.counts.index.difference(shared)):
            lost.append(
                f"{run.label or run.folder}: {_some(left_out)} of {len(run.counts)} items are left out, because not "
                f"all runs have them; its {run.name} is {kept.value:.4g} without and {run.value:.4g} with them"
            )
    return found, lost


def _some(items: pd.Index) -> str:
    return f"{len(items)} ({list_first(list(map(str, items)))})" if len(items) else "0"


def compare(groups: Sequence[Sequence[Scored]]) -> tuple[Table, list[Estimate]]:
    """Compare each group of runs with the first group.

    The runs of a group differ in their seeds. All runs must have the same items.

    Args:
        groups: The groups; the first is the reference.

    Returns:
        The differences of the other groups to the first one, with their draws, after a table with one row per group
        and these columns:

        - `run` and `seeds`: name of the group, and number of its runs;
        - `<score>`, `<score>.low`, `<score>.high` and `sd`: mean of the score over the runs, its 95 %
            interval, and the standard deviation over the runs, nan for one run;
        - for two or more groups, `difference`, `difference.low` and `difference.high`: score of the
            group minus score of the first group, with its 95 % interval; nan for the first group;
        - for two or more groups, `permutation.p`: two-sided p-value of the difference, by sign flips of the items,
            or of their documents, and for several seeds by the variation of these; nan for the first group;
        - for three or more groups, `holm.p`: `permutation.p` after Holm's correction.
    """
    score, unit = groups[0][0].name, groups[0][0].record.scores[groups[0][0].name].unit
    share = all(run.name in run.record.shares for group in groups for run in group)
    counts = iter(with_common_units([run.counts for group in groups for run in group]))
    found = []
    for group in groups:
        seeds_of_group = [next(counts) for _ in group]
        estimate = estimate_from_counts(seeds_of_group, unit, share=share, draws=TEST_DRAWS)
        found.append(as_left_out(estimate, [run.record.scores[score] for run in group]))
    folders = [group[0].folder.resolve() for group in groups]
    parent = os.path.commonpath([folder.parent for folder in folders])
    first = found[0]
    contrasts = contrast_with(first, found[1:], least_p(first.units or 0, TEST_DRAWS))
    lines = []
    for place, (group, folder, estimate) in enumerate(zip(groups, folders, found, strict=True)):
        name = group[0].label or (folder.relative_to(parent).as_posix() if len(groups) > 1 else str(group[0].folder))
        line: dict[str, object] = {"run": name, "seeds": len(group), **replace(estimate, sd=None).named(score)}
        line["sd"] = math.nan if estimate.sd is None else estimate.sd
        if place > 0:
            contrast = contrasts[place - 1]
            line |= replace(contrast.difference, p=None).named("difference")
            line["permutation.p"] = contrast.difference.p
            if len(groups) > 2:
                line["holm.p"] = contrast.p_holm
        lines.append(line)
    units: dict[str, Unit | Sequence[Unit]] = {score: unit}
    if len(groups) > 1:
        units["difference"] = unit
        units["permutation.p"] = ["p", *(contrast.p_unit for contrast in contrasts)]
    if len(groups) > 2:
        units["holm.p"] = units["permutation.p"]
    table = Table(pd.DataFrame(lines), units, interval=score, main=("run", *units))
    return table, [contrast.difference for contrast in contrasts]


def compare_answer(table: Table, differences: Sequence[Estimate], score: str, items: int) -> str:
    """Return the answer: the score of the first group, how many others differ from it, and which one most.

    Args:
        table: Table of `compare`.
        differences: Differences of the other groups to the first one, with their draws.
        score: Name of the score.
        items: Number of items.
    """
    runs = []
    for name, seeds_of_run in zip(table.frame["run"], table.frame["seeds"], strict=True):
        runs.append(name if seeds_of_run == 1 else f"{name} (mean of {seeds_of_run} seeds)")
    text = f"over {pluralize(items, 'item')} the {score} of {runs[0]} is {format_estimate(table.estimate(0, score))}"
    if not differences:
        return fill_sentence(text, {})
    units = table.unit_rows()["permutation.p"]
    family = []
    for place, one in enumerate(differences, start=1):
        at_once = with_interval_and_p(one, tests=len(differences))
        family.append(Difference(runs[place], at_once, p_unit=units[place]))
    if len(family) == 1:
        (only,) = family
        text += f"; the difference of {only.name} is {describe_difference(only)}"
        if table.frame["seeds"].max() == 1:
            text += ", of these two runs: other seeds may differ"
        return fill_sentence(text, {})
    changes = describe_differences(family, table.frame["holm.p"][1:].tolist(), "other run", "differ")
    return fill_sentence(f"{text}; {changes}", {})


def warnings(runs: Sequence[Scored]) -> list[str]:
    """Return warnings about runs that cannot be compared fully with the first run, or with other seeds.

    There is a warning for each run that

    - has no config, so that it is not grouped with other seeds;
    - read other files than the first run for one of the splits;
    - has another denominator of its score than the first run in some items. F1 is exempt, because its
        denominators depend on the predictions.
    """
    reference = runs[0]
    found = []
    for run in runs:
        if run.config is None:
            found.append(f"{run.folder} has no config.yaml, so it is not grouped with other seeds")
        if others := run.other_data(reference):
            files = " and ".join(others)
            found.append(
                f"{run.folder} and {reference.folder} read different files for {files}, so their scores may differ for "
                "this reason alone"
            )
        differing = int((run.counts["denominator"] != reference.counts["denominator"]).sum())
        if run.name != "f1" and differing:  # the denominator of F1 depends on the predictions
            found.append(
                f"in {pluralize(differing, 'item')} the denominators of {run.folder} and {reference.folder} differ, so "
                "the two scores are not over the same words or mentions"
            )
    return found


def differing_options(run: Scored, first: Scored) -> str:
    """Return the options of a run that differ from those of the first run, seeds apart, with both values."""
    if run.config is None or first.config is None:
        return ""
    own, others = settings_without_seeds(run.config), settings_without_seeds(first.config)
    names = [name for name in {**own, **others} if own.get(name) != others.get(name)]
    return list_first([f"{name.replace('.init_args', '')} {own.get(name)} (not {others.get(name)})" for name in names])


def read_runs(name: str, score: str | None, beside: Record | None = None) -> list[Scored]:
    """Read the runs that one argument of the command line names, and one score of each run.

    The score is read with its counts: its numerator and denominator for each test item.

    Args:
        name: A run folder or a `results.json`; or `SWEEP_DIR:ROW` for the runs of all seeds in a row of
            a sweep.
        score: Name of the score; None takes the first score of the run that has counts.
        beside: The first run, which has this score.

    Raises:
        RecordError: There is no such run, or it has no counts of the score.
    """
    folder, _, row = name.partition(":")
    if Path(name).exists() or not Path(folder).is_dir():
        if (Path(name) / "runs").is_dir():
            raise RecordError(f"{name} is a sweep. Name a row as {name}:ROW, one of {', '.join(find_runs(Path(name)))}")
        return [_read([Path(name)], score, beside=beside)]
    rows = find_runs(Path(folder))
    if row not in rows:
        raise RecordError(f"{folder} has no row {row!r}{near(row, rows)}; there are: {', '.join(rows)}")
    found: list[Scored] = []
    for runs in rows[row].values():
        found.append(_read(runs, score, f"{Path(folder).resolve().name}:{row}", beside))
        score = found[0].name
    return found


def _read(runs: Sequence[Path], score: str | None, label: str = "", beside: Record | None = None) -> Scored:
    """Return the first run of a row and seed that has the score, as in the table of the sweep."""
    for run in runs[:-1]:
        with suppress(RecordError):
            return scored(find_record(run), score, label, beside)
    try:
        record = find_record(runs[-1])
    except RecordError as error:
        raise RecordError(f"{error}. Give a run folder, a results.json, or SWEEP_DIR:ROW") from None
    return scored(record, score, label, beside)


def main(args: Sequence[str], *, console: Console | None = None) -> int:
    """Run the command, and return the exit code.

    Raises:
        UserError: The runs cannot be compared.
    """
    console = console or Console()
    parser = parser_of("compare")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, its results.json, or SWEEP_DIR:ROW")
    parser.add_argument("--score", help="compared score (default: the first with counts, such as uas or accuracy)")
    parser.add_argument("--common", action="store_true", help="leave out the items that are not in all of the runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to FILE as well")
    options = parser.parse_args(args)
    if options.json is not None:
        check_writable(options.json.absolute().parent, "--json")
    runs = read_runs(options.runs[0], options.score)
    runs += [run for name in options.runs[1:] for run in read_runs(name, runs[0].name, runs[0].record)]
    folders = [run.folder.resolve() for run in runs]
    if twice := [run.folder for run in runs if folders.count(run.folder.resolve()) > 1]:
        raise RecordError(f"{twice[-1]} is named twice. Name each run once")
    groups = grouped(runs)
    runs, cautions = on_same_items([run for group in groups for run in group], options.common)
    cautions += warnings(runs)
    rest = iter(runs)
    groups = [[next(rest) for _ in group] for group in groups]
    table, differences = compare(groups)
    score, items, names = runs[0].name, len(runs[0].counts), " and ".join(map(str, runs[0].counts.index.names))
    console.print(Text(compare_answer(table, differences, score, items), "bold"), end="\n\n")
    console.print(data_table(f"{score}, against the first", table, "the output of --json FILE", console.width))
    console.print()
    console.print(Text(LEGEND))
    console.print(Text(f"{pluralize(items, 'item')}, matched by {names}; {TEST_DRAWS:,} draws a test."), soft_wrap=True)
    for group in groups:
        if len(group) > 1:
            seeds = ", ".join(str(run.folder) for run in group)
            console.print(Text(f"One row, as they differ in the seed alone: {seeds}."), soft_wrap=True)
        if said := differing_options(group[0], groups[0][0]):
            console.print(Text(f"{group[0].folder} has {said}."), soft_wrap=True)
    for warning in cautions:
        console.print(Text(f"Warning: {warning}", "yellow"), soft_wrap=True)
    if options.json is not None:
        lines = [
            {**line, "runs": [{"folder": str(run.folder), "score": run.value} for run in group]}
            for line, group in zip(table.frame.to_dict("records"), groups, strict=True)
        ]
        content = to_json({"score": score, "items": items, "draws": TEST_DRAWS, "lines": lines, "warnings": cautions})
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        options.json.write_text(text, encoding="utf-8")
        console.print(Text(f"Written to {options.json}"), soft_wrap=True)
    return 0
