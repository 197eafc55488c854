"""Table of the scores of a sweep: mean over the seeds, their standard deviation, and intervals.

The score of a row is the mean over its seeds, `sd` their standard deviation (n − 1). With one seed, the interval is the
interval of the run. With several seeds, it covers the variation of items and of seeds; see `commands.seeds`.
"""

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from attention_probing.commands.comparison import Side, estimate_sides, shared_items
from attention_probing.commands.seeds import averaged, over_seeds
from attention_probing.commands.sweep_plan import RUN_COLUMNS, STATISTICS
from attention_probing.commands.sweep_rows import Row, Sweep
from attention_probing.commands.sweep_scores import describe_missing, record_with
from attention_probing.commands.sweep_warnings import list_warnings
from attention_probing.metrics.contrasts import correct_for_number
from attention_probing.metrics.differences import difference
from attention_probing.metrics.draws import TEST_DRAWS
from attention_probing.metrics.p_values import least_p
from attention_probing.metrics.seeds import mean_and_sd
from attention_probing.results import (
    Estimate,
    Provenance,
    Result,
    Table,
    Unit,
    count_significant,
    fill_sentence,
    format_estimate,
)
from attention_probing.results.errors import pluralize
from attention_probing.results.record import NAN, Record, RecordError
from attention_probing.results.sentences import UNDEFINED

MOST_RANGES = 4
"""Largest number of scores whose ranges are in the answer of a grid."""

Records = Mapping[str, Record]  # results of finished runs, by key


def collect(sweep: Sweep, records: Records, out: Path) -> tuple[Result, Provenance]:
    """Return the result of a sweep: a table with its rows, and a table with its finished runs.

    The first table has the name of the sweep and the columns of `Sweep.columns`. Its scores are means
    over the seeds whose runs are all finished. The second table, `<name>_runs`, has the columns
    `Sweep.labels`, `seed`, `command`, `config`, `folder`, `epochs`, and the scores.

    If the sweep has a `reference`, the table `<name>_differences` follows; see `differences_table`.

    Args:
        sweep: The sweep.
        records: Results of the finished runs, by key of the run.
        out: Folder of the sweep.

    Returns:
        The result and its provenance. The result has these tables, the scores by `<row>.<column>`, and an
        audit. The audit has `faults`, messages about scores and intervals that cannot be computed, and
        `warnings`. The provenance has the entries about encoder and data that are the same in all runs.
    """
    faults: list[str] = []
    scores = _average_scores(sweep, records, faults)
    units = _find_units(sweep, scores)
    tables = {
        sweep.name: _make_table(sweep, records, scores, units),
        f"{sweep.name}_runs": Table(_list_runs(sweep, records, out), {"epochs": "count", **units}),
    }
    answer = _answer(sweep, scores)
    if sweep.reference:
        compared = differences_table(sweep, records, units, faults)
        tables[f"{sweep.name}_differences"] = compared
        answer += _answer_of_differences(compared, next(iter(units)))
        if _has_one_trained_seed(sweep, records):
            answer += "; a row with one seed says nothing about other seeds"
    audit = {"faults": faults, "warnings": list_warnings(sweep.rows, records)}
    encoder = _keep_shared([record.encoder for record in records.values()])
    data = _keep_shared([record.data for record in records.values()])
    result = Result(sweep.name, scores, tables, audit=audit, answer=fill_sentence(answer, {}))
    return result, Provenance(encoder, data, {})


def _average_scores(sweep: Sweep, records: Records, faults: list[str]) -> dict[str, Estimate]:
    """Return the mean over the finished seeds of each score of each row, by `<row>.<column>`."""
    scores = {}
    for row in sweep.rows:
        done = row.done(records)
        for column, score in row.scores.items():
            scores[f"{row.name}.{column}"] = _average_score(row, score, done, faults)
    return scores


def _find_units(sweep: Sweep, scores: Mapping[str, Estimate]) -> dict[str, Unit]:
    """Return the unit of each column of scores: that of the last row with a number."""
    units: dict[str, Unit] = dict.fromkeys(sweep.rows[0].scores, "ratio")
    for row in sweep.rows:
        for column in row.scores:
            score = scores[f"{row.name}.{column}"]
            if not math.isnan(score.value):
                units[column] = score.unit
    return units


def _make_table(
    sweep: Sweep, records: Records, scores: Mapping[str, Estimate], units_of_scores: Mapping[str, Unit]
) -> Table:
    """Return the table with a line for each row and the columns of `Sweep.columns`."""
    lines = []
    for row in sweep.rows:
        done = row.done(records)
        line: dict[str, object] = dict(zip(sweep.labels, row.labels, strict=True))
        line["seeds"] = len(done)
        line["epochs"] = _average_epochs(row, done)
        for column in row.scores:
            score = scores[f"{row.name}.{column}"]
            line[column] = score.value
            for statistic in STATISTICS:
                line[f"{column}.{statistic}"] = getattr(score, statistic)
        lines.append(line)
    columns = sweep.columns
    frame = pd.DataFrame(lines)[list(columns.values())].set_axis(list(columns), axis=1)
    units: dict[str, Unit] = {}
    for column, full_name in columns.items():
        owner = full_name
        if full_name not in units_of_scores:
            owner = full_name.rpartition(".")[0]
        if owner in units_of_scores:
            units[column] = units_of_scores[owner]
    if "epochs" in columns:
        units["epochs"] = "count"
    first = next(iter(units_of_scores))
    interval = first if first in columns else None
    main = [column for column, full_name in columns.items() if full_name in (*sweep.labels, *units_of_scores)]
    return Table(frame, units, interval, main)


def _answer(sweep: Sweep, scores: Mapping[str, Estimate]) -> str:
    """Return the range of the first column over the rows that have it.

    A row of a grid is compared only with rows that take the column from the same score: its axes may have one of
    questions, such as accuracy of one task and correlation of another, and then each score has a range of its own.
    """
    name = next(iter(sweep.rows[0].scores))
    is_grid = len(sweep.labels) > 1
    groups: dict[str, dict[str, Estimate]] = {}
    for row in sweep.rows:
        score = scores[f"{row.name}.{name}"]
        if not math.isnan(score.value):
            group = row.scores[name] if is_grid else name
            groups.setdefault(group, {})[row.name] = score
    if len(groups) < 2:
        return range_answer(name, next(iter(groups.values()), {}))
    if len(groups) > MOST_RANGES:
        return f"the rows have {len(groups)} different scores as {name}, which are not compared with each other"
    return "; ".join(range_answer(group, of_group) for group, of_group in groups.items())


def _answer_of_differences(table: Table, score: str) -> str:
    """Return the number of rows that differ in a score from their reference; empty without a p-value."""
    of_score = table.frame[table.frame["score"] == score]
    if not of_score["p_holm"].notna().any():
        return ""
    tested = of_score["p_holm"].notna()
    verb = "differs from its" if tested.sum() == 1 else "differ from their"
    return f"; {count_significant(of_score, 'row', 'p_holm')} {verb} reference (p < .05 after Holm)"


def _has_one_trained_seed(sweep: Sweep, records: Records) -> bool:
    """Return True if a trained row is compared with its reference by one seed alone."""
    for row, reference, seeds, _ in _list_pairs(sweep, records):
        epochs = [_average_epochs(one, one.done(records)) for one in (row, reference)]
        if len(seeds) == 1 and not all(map(math.isnan, epochs)):
            return True
    return False


def range_answer(name: str, scores: Mapping[str, Estimate]) -> str:
    """Return the lowest and the highest score of the rows, without intervals: these would not hold for the extremes.

    Args:
        name: Name of the score.
        scores: Score of each row that has one.
    """
    if not scores:
        return UNDEFINED
    order = sorted(scores, key=lambda row: scores[row].value)
    lowest = order[0]
    highest = order[-1]
    if len(order) == 1:
        return f"{name} of {lowest} is {format_estimate(scores[lowest])}"
    low = format_estimate(replace(scores[lowest], low=None, high=None))
    high = format_estimate(replace(scores[highest], low=None, high=None))
    if low == high:
        return f"{name} is {low} in all {pluralize(len(order), 'row')}"
    return f"over {pluralize(len(order), 'row')} {name} goes from {low} ({lowest}) to {high} ({highest})"


def differences_table(sweep: Sweep, records: Records, units: Mapping[str, Unit], faults: list[str]) -> Table:
    """Compare rows with their reference, score by score, on the items and seeds that both have.

    Args:
        sweep: The sweep.
        records: Results of the finished runs, by key of the run.
        units: Unit of each score.
        faults: List that receives a message for each pair and score that cannot be compared.

    Returns:
        Table with a row for each pair and score with counts for each item, and these columns:

        - the labels, and `score`;
        - `difference`, `low`, `high`: mean over the seeds minus that of the reference, with its 95 % interval;
        - `p`, `p_holm`: two-sided p-value by sign flips of items, or of their documents, and for several seeds by the
            variation of these; and after Holm's correction over the table;
        - `items`, `left_out`: number of items that both have, and of those that only one has.
    """
    lines = []
    differences = []
    least = []
    units_of_lines = []
    for row, reference, seeds, column in _list_pairs(sweep, records):
        try:
            sides = [_read_side(one, seeds, column, records) for one in (row, reference)]
            items = shared_items(sides)
        except RecordError as error:
            faults.append(f"`{row.name}` is not compared with `{reference.name}` by {column}: {error}")
            continue
        if not len(items):
            faults.append(f"`{row.name}` and `{reference.name}` share no item of {column}")
            continue
        estimates = estimate_sides([side.on(items) for side in sides])
        apart = difference(*estimates)
        differences.append(replace(apart, draws=np.empty(0), runs=()))  # those of many pairs take much memory
        least.append(least_p(estimates[0].units or 0, TEST_DRAWS))
        units_of_lines.append(units[column])
        line: dict[str, object] = dict(zip(sweep.labels, row.labels, strict=True))
        line["score"] = column
        line["items"] = len(items)
        line["left_out"] = _count_items(sides) - len(items)
        lines.append(line)
    contrasts = correct_for_number(differences, least)
    for line, contrast in zip(lines, contrasts, strict=True):
        line["difference"] = contrast.difference.value
        line["low"] = contrast.difference.low
        line["high"] = contrast.difference.high
        line["p"] = contrast.difference.p
        line["p_holm"] = contrast.p_holm
    main = [*sweep.labels, "score", "difference", "low", "high", "p", "p_holm"]
    frame = pd.DataFrame(lines, columns=[*main, "items", "left_out"])
    units_of_p = [contrast.p_unit for contrast in contrasts]
    return Table(frame, {"difference": units_of_lines, "p": units_of_p, "p_holm": units_of_p}, "difference", main)


def _list_pairs(sweep: Sweep, records: Records) -> Iterator[tuple[Row, Row, Collection[int], str]]:
    """Yield each row, its reference, the seeds that both have finished, and each column that both have."""
    for row, reference in sweep.compared():
        seeds = row.done(records).keys() & reference.done(records).keys()
        if not seeds:
            continue
        for column in row.scores:
            if row.scores[column] and reference.scores[column]:
                yield row, reference, seeds, column


def _read_side(row: Row, seeds: Collection[int], column: str, records: Records) -> Side:
    """Return the runs of a row with some seeds, with the counts of a column.

    Raises:
        RecordError: A seed has no counts, or they cannot be read.
    """
    score = row.scores[column]
    givers = []
    for seed, of_seed in row.done(records).items():
        if seed in seeds:
            givers.append(record_with(score, of_seed) or of_seed[0])
    return Side.from_records(score, givers)


def _count_items(sides: Sequence[Side]) -> int:
    """Return the number of items that any run has."""
    items = sides[0].counts[0].index
    for side in sides:
        for counts in side.counts:
            items = items.union(counts.index)
    return len(items)


def _average_epochs(row: Row, done: Mapping[int, Sequence[Record]]) -> float:
    """Return the mean number of epochs over the seeds of a row, from the runs that have its first score."""
    scores = [score for score in row.scores.values() if score]
    first = scores[0] if scores else ""
    epochs = []
    for of_seed in done.values():
        record = record_with(first, of_seed)
        if record is not None:
            epochs.append(record.epochs)
    return mean_and_sd(epochs)[0]


def _average_score(row: Row, score: str, done: Mapping[int, Sequence[Record]], faults: list[str]) -> Estimate:
    """Return the mean of a score over the seeds of a row, with interval and standard deviation; nan without a run."""
    undefined = Estimate(NAN, NAN, NAN, unit="ratio", sd=NAN)
    if not score:
        return undefined
    givers = []
    for seed, of_seed in done.items():
        record = record_with(score, of_seed)
        if record is None:
            faults.append(describe_missing(score, row, seed, of_seed))
        else:
            givers.append(record)
    if not givers:
        return undefined
    try:
        return over_seeds(givers, score)
    except RecordError as error:
        known = [record.scores[score] for record in givers if score in record.scores]
        faults.append(f"row `{row.name}` has no {'interval' if known else 'number'}: {error}")
        if not known:
            return undefined
        return replace(averaged(known), low=NAN, high=NAN)


def _list_runs(sweep: Sweep, records: Records, out: Path) -> pd.DataFrame:
    """Return one line per finished run, in the order of the rows, with folder, epochs and scores."""
    names = list(sweep.rows[0].scores)
    lines = []
    for row in sweep.rows:
        for run in row.all_runs():
            if run.key not in records:
                continue
            record = records[run.key]
            folder = Path(os.path.relpath(record.path.parent, out / "runs")).as_posix()
            values = [_read_value(record, score) for score in row.scores.values()]
            lines.append([*row.labels, run.seed, run.command, run.config.as_posix(), folder, record.epochs, *values])
    frame = pd.DataFrame(lines, columns=[*sweep.labels, *RUN_COLUMNS, *names])
    return frame.astype(dict.fromkeys(("epochs", *names), np.float64))


def _read_value(record: Record, score: str) -> float:
    """Return a number of a run; nan if it has none."""
    try:
        return record.number(score).value
    except RecordError:
        return NAN


def _keep_shared(descriptions: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the entries shared by all non-empty descriptions."""
    known = [description for description in descriptions if description]
    if not known:
        return {}
    shared = {}
    for name, value in known[0].items():
        if all(other.get(name) == value for other in known):
            shared[name] = value
    return shared
