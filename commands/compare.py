"""Compare runs on the same items.

Usage: `probing compare RUN RUN … [--score NAME] [--common] [--json FILE]`. RUN is the folder of a run, its
`results.json`, or `DIR:ROW` for all seeds of a row of the sweep in DIR. Seeds are pooled and tests are paired; see
docs/sweeps.md.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.text import Text

from attention_probing.commands import parser_of
from attention_probing.commands.comparison import Side, estimate_sides
from attention_probing.commands.scored_runs import ScoredRun, describe_options, read_groups
from attention_probing.commands.seeds import as_left_out
from attention_probing.metrics.contrasts import Contrast, contrast_with
from attention_probing.metrics.differences import with_interval_and_p
from attention_probing.metrics.draws import TEST_DRAWS
from attention_probing.metrics.p_values import least_p
from attention_probing.results import Estimate, Table, Unit, fill_sentence, format_estimate
from attention_probing.results.errors import pluralize
from attention_probing.results.files import check_writable
from attention_probing.results.record import to_json
from attention_probing.results.sentences import Difference, describe_difference, describe_differences
from attention_probing.results.tables import LEGEND, data_table


def compare(groups: Sequence[Sequence[ScoredRun]]) -> tuple[Table, list[Estimate]]:
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
    score = groups[0][0].name
    sides = []
    for group in groups:
        sides.append(Side(score, [run.record for run in group], [run.counts for run in group]))
    estimates = []
    for side, estimate in zip(sides, estimate_sides(sides), strict=True):
        estimates.append(as_left_out(estimate, [record.scores[score] for record in side.records]))
    first, *others = estimates
    contrasts = contrast_with(first, others, least_p(first.units or 0, TEST_DRAWS))
    lines = []
    for name, group, estimate in zip(_name_groups(groups), groups, estimates, strict=True):
        line: dict[str, object] = {"run": name, "seeds": len(group), **replace(estimate, sd=None).columns(score)}
        line["sd"] = math.nan if estimate.sd is None else estimate.sd
        lines.append(line)
    for line, contrast in zip(lines[1:], contrasts, strict=True):
        line |= replace(contrast.difference, p=None).columns("difference")
        line["permutation.p"] = contrast.difference.p
        if len(others) > 1:
            line["holm.p"] = contrast.p_holm
    units = _list_units(score, sides[0].unit, contrasts)
    table = Table(pd.DataFrame(lines), units, interval=score, main=("run", *units))
    return table, [contrast.difference for contrast in contrasts]


def _name_groups(groups: Sequence[Sequence[ScoredRun]]) -> list[str]:
    """Return the name of each group in the table: its label, or its first folder below the folder of all."""
    if len(groups) == 1:
        run = groups[0][0]
        return [run.label or str(run.folder)]
    folders = [group[0].folder.resolve() for group in groups]
    parent = os.path.commonpath([folder.parent for folder in folders])
    names = []
    for group, folder in zip(groups, folders, strict=True):
        names.append(group[0].label or folder.relative_to(parent).as_posix())
    return names


def _list_units(score: str, unit: Unit, contrasts: Sequence[Contrast]) -> dict[str, Unit | Sequence[Unit]]:
    """Return the units of the columns of the table."""
    units: dict[str, Unit | Sequence[Unit]] = {score: unit}
    if contrasts:
        units["difference"] = unit
        units_of_p: list[Unit] = ["p"]
        units_of_p += [contrast.p_unit for contrast in contrasts]
        units["permutation.p"] = units_of_p
    if len(contrasts) > 1:
        units["holm.p"] = units["permutation.p"]
    return units


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
    for name, difference, unit in zip(runs[1:], differences, units[1:], strict=True):
        for_all = with_interval_and_p(difference, tests=len(differences))
        family.append(Difference(name, for_all, p_unit=unit))
    if len(family) == 1:
        (only,) = family
        text += f"; the difference of {only.name} is {describe_difference(only)}"
        if table.frame["seeds"].max() == 1:
            text += ", of these two runs: other seeds may differ"
        return fill_sentence(text, {})
    changes = describe_differences(family, table.frame["holm.p"][1:].tolist(), "other run", "differ")
    return fill_sentence(f"{text}; {changes}", {})


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
    groups, cautions = read_groups(options.runs, options.score, options.common)
    table, differences = compare(groups)
    first = groups[0][0]
    items = len(first.counts)
    columns = " and ".join(map(str, first.counts.index.names))
    console.print(Text(compare_answer(table, differences, first.name, items), "bold"), end="\n\n")
    title = f"{first.name}, against the first"
    console.print(data_table(title, table, "the output of --json FILE", console.width))
    console.print()
    console.print(Text(LEGEND))
    matched = f"{pluralize(items, 'item')}, matched by {columns}; {TEST_DRAWS:,} draws a test."
    console.print(Text(matched), soft_wrap=True)
    for group in groups:
        for note in _describe_group(group, first):
            console.print(Text(note), soft_wrap=True)
    for caution in cautions:
        console.print(Text(f"Warning: {caution}", "yellow"))
    if options.json is not None:
        options.json.write_text(_format_json(table, groups, cautions), encoding="utf-8")
        console.print(Text(f"Written to {options.json}"), soft_wrap=True)
    return 0


def _describe_group(group: Sequence[ScoredRun], first: ScoredRun) -> list[str]:
    """Return sentences about a group of runs: its seeds, and options other than those of the first run."""
    notes = []
    if len(group) > 1:
        folders = ", ".join(str(run.folder) for run in group)
        notes.append(f"One row, as they differ in the seed alone: {folders}.")
    options = describe_options(group[0], first)
    if options:
        notes.append(f"{group[0].folder} has {options}.")
    return notes


def _format_json(table: Table, groups: Sequence[Sequence[ScoredRun]], cautions: Sequence[str]) -> str:
    """Return the table as JSON, with the runs of each line."""
    lines = []
    for line, group in zip(table.frame.to_dict("records"), groups, strict=True):
        runs = [{"folder": str(run.folder), "score": run.value} for run in group]
        lines.append({**line, "runs": runs})
    first = groups[0][0]
    content = {
        "score": first.name,
        "items": len(first.counts),
        "draws": TEST_DRAWS,
        "lines": lines,
        "warnings": cautions,
    }
    text = json.dumps(to_json(content), indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n"
