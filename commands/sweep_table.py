"""Table of the scores of a sweep: mean over the seeds, their standard deviation, and intervals.

The score of a row is the mean over its seeds, `sd` their standard deviation (n − 1). With one seed, the interval is the
interval of the run. With several seeds, it covers the variation of items and of seeds; see `commands.seeds`.
"""

import math
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from attention_probing.commands.seeds import averaged, estimate_from_counts, over_seeds, with_common_units
from attention_probing.commands.sweep_plan import RUN_COLUMNS, STATISTICS, Row, Sweep
from attention_probing.metrics.bootstrap import TEST_DRAWS, difference, mean_and_sd
from attention_probing.metrics.p_values import holm, least_p, p_units
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
from attention_probing.results.errors import near, pluralize
from attention_probing.results.record import NAN, Record, RecordError
from attention_probing.results.sentences import UNDEFINED

Records = Mapping[str, Record]  # results of finished runs, by key


def collect(sweep: Sweep, records: Records, out: Path) -> tuple[Result, Provenance]:
    """Return the result of a sweep: a table with its rows, and a table with its finished runs.

    The first table has the name of the sweep and the columns of `Sweep.columns`. Its scores are means
    over the seeds whose runs are all finished. The second table, `<name>_runs`, has the columns
    `Sweep.labels`, `seed`, `command`, `config`, `folder`, `epochs`, and the scores.

    If the sweep has a `reference`, the table `<name>_differences` follows; see `differences`.

    Args:
        sweep: The sweep.
        records: Results of the finished runs, by key of the run.
        out: Folder of the sweep.

    Returns:
        The result and its provenance. The result has these tables, the scores by `<row>.<column>`, and an
        audit. The audit has `faults`, messages about scores and intervals that cannot be computed, and
        `warnings`. The provenance has the entries about encoder and data that are the same in all runs.
    """
    rows, labels, columns = sweep.rows, sweep.labels, sweep.columns
    faults: list[str] = []
    lines, scores = [], dict[str, Estimate]()
    units: dict[str, Unit] = dict.fromkeys(rows[0].scores, "ratio")
    for row in rows:
        done = row.done(records)
        line: dict[str, object] = {**dict(zip(labels, row.labels, strict=True)), "seeds": len(done)}
        line["epochs"] = _epochs(row, done)
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
    main = [column for column, full in columns.items() if full in (*labels, *rows[0].scores)]
    runs = Table(_runs(labels, rows, records, out), {"epochs": "count", **units})
    tables = {sweep.name: Table(shown, known, interval, main), f"{sweep.name}_runs": runs}
    if sweep.reference:
        tables[f"{sweep.name}_differences"] = differences(sweep, records, units, faults)
    audit = {"faults": faults, "warnings": _warnings(rows, records)}
    encoder = _common([record.encoder for record in records.values()])
    data = _common([record.data for record in records.values()])
    answer = _answer(rows, scores, tables.get(f"{sweep.name}_differences"))
    return Result(sweep.name, scores, tables, audit=audit, answer=answer), Provenance(encoder, data, {})


def _answer(rows: Sequence[Row], scores: Mapping[str, Estimate], differences: Table | None) -> str:
    """Return the range of the first score over the rows, and the number of rows that differ from their reference."""
    name = next(iter(rows[0].scores))
    found = {row.name: scores[f"{row.name}.{name}"] for row in rows}
    text = range_answer(name, {row: one for row, one in found.items() if not math.isnan(one.value)})
    if differences is not None:
        own = differences.frame.query("score == @name")
        if own["p_holm"].notna().any():
            text += f"; {count_significant(own, 'row', 'p_holm')} differ from their reference (p < .05 after Holm)"
    return fill_sentence(text, {})


def range_answer(name: str, found: Mapping[str, Estimate]) -> str:
    """Return the lowest and the highest score of the rows, without intervals: these would not hold for the extremes.

    Args:
        name: Name of the score.
        found: Score of each row that has one.
    """
    if not found:
        return UNDEFINED
    order = sorted(found, key=lambda row: found[row].value)
    first, last = order[0], order[-1]
    if len(order) == 1:
        return f"{name} of {first} is {format_estimate(found[first])}"
    ends = [format_estimate(replace(found[row], low=None, high=None)) for row in (first, last)]
    if ends[0] == ends[1]:
        return f"{name} is {ends[0]} in all {pluralize(len(order), 'row')}"
    return f"over {pluralize(len(order), 'row')} {name} goes from {ends[0]} ({first}) to {ends[1]} ({last})"


def differences(sweep: Sweep, records: Records, units: Mapping[str, Unit], faults: list[str]) -> Table:
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
    lines, of_lines, least = [], list[Unit](), list[float]()
    for row, other in sweep.compared():
        both = row.done(records).keys() & other.done(records).keys()
        for column, unit in units.items():
            if not (both and row.scores[column] and other.scores[column]):
                continue
            try:
                counts = [_counts(one, column, both, records) for one in (row, other)]
            except RecordError as error:
                faults.append(f"`{row.name}` is not compared with `{other.name}` by {column}: {error}")
                continue
            indices = [one[0].index for one in counts]
            shared = indices[0].intersection(indices[1])
            if not len(shared):
                faults.append(f"`{row.name}` and `{other.name}` share no item of {column}")
                continue
            share = all(_is_share(one, column, records) for one in (row, other))
            own = iter(with_common_units([one.loc[shared] for seeds_of in counts for one in seeds_of]))
            sides = []
            for seeds_of in counts:
                of_side = [next(own) for _ in seeds_of]
                sides.append(estimate_from_counts(of_side, unit, share=share, draws=TEST_DRAWS))
            found = difference(*sides)
            least.append(least_p(sides[0].units or 0, TEST_DRAWS))
            line: dict[str, object] = {**dict(zip(sweep.labels, row.labels, strict=True)), "score": column}
            line |= {"difference": found.value, "low": found.low, "high": found.high}
            line |= {"p": found.p, "p_holm": NAN, "items": len(shared)}
            lines.append(line | {"left_out": len(indices[0].union(indices[1])) - len(shared)})
            of_lines.append(unit)
    columns = [*sweep.labels, "score", "difference", "low", "high", "p", "p_holm", "items", "left_out"]
    frame = pd.DataFrame(lines, columns=columns)
    frame["p_holm"] = holm(frame["p"].tolist())
    of_p = [p_units([p], bound)[0] for p, bound in zip(frame["p"], least, strict=True)]
    return Table(frame, {"difference": of_lines, "p": of_p, "p_holm": of_p}, "difference", columns[:-2])


def _counts(row: Row, column: str, seeds: Collection[int], records: Records) -> list[pd.DataFrame]:
    """Return the counts of a score for each item, one frame for each of some seeds.

    Raises:
        RecordError: A seed has no counts, or they cannot be read.
    """
    score, done = row.scores[column], row.done(records)
    givers = [next((one for one in done[seed] if one.has(score)), done[seed][0]) for seed in done if seed in seeds]
    return [one.counts(score, by_id=True) for one in givers]


def _is_share(row: Row, column: str, records: Records) -> bool:
    """Return True if a score is a share of items in all runs of a row that have it."""
    score = row.scores[column]
    return all(score in one.shares for one in row.finished(records) if one.has(score))


def _epochs(row: Row, done: Mapping[int, Sequence[Record]]) -> float:
    """Return the mean number of epochs over the seeds of a row, from the runs that have its first score."""
    first = next(filter(None, row.scores.values()), "")
    trained = [next((one.epochs for one in runs if one.has(first)), None) for runs in done.values()]
    return mean_and_sd([epochs for epochs in trained if epochs is not None])[0]


def _over_seeds(row: Row, score: str, done: Mapping[int, Sequence[Record]], faults: list[str]) -> Estimate:
    """Return the mean of a score over the seeds of a row, with interval and standard deviation; nan without a run."""
    givers = []
    for seed, runs in done.items() if score else ():
        giver = next((one for one in runs if one.has(score)), None)
        if giver is None:
            there = [name for one in runs for name in one.scores]
            files = ", ".join(str(one.path) for one in runs)
            faults.append(
                f"row `{row.name}`, seed {seed}: {files} {'has' if len(runs) == 1 else 'have'} no score "
                f"`{score}`{near(score, there)}; the scores are "
                f"{', '.join(there)}. Name one of them under the row's `scores`, or null for an empty cell"
            )
        else:
            givers.append(giver)
    if not givers:
        return Estimate(NAN, NAN, NAN, unit="ratio", sd=NAN)
    try:
        return over_seeds(givers, score)
    except RecordError as error:
        known = [one.scores[score] for one in givers if score in one.scores]
        faults.append(f"row `{row.name}` has no {'interval' if known else 'number'}: {error}")
        return replace(averaged(known or [Estimate(NAN, unit="ratio")]), low=NAN, high=NAN)


def _runs(labels: Sequence[str], rows: Sequence[Row], records: Records, out: Path) -> pd.DataFrame:
    """Return one line per finished run, in the order of the rows, with folder, epochs and scores."""
    lines = []
    for row in rows:
        for seed, run in ((seed, run) for seed, runs in row.runs.items() for run in runs if run.key in records):
            record = records[run.key]
            folder = Path(os.path.relpath(record.path.parent, out / "runs")).as_posix()
            values = [_value(record, score) for score in row.scores.values()]
            lines.append([*row.labels, seed, run.command, run.config.as_posix(), folder, record.epochs, *values])
    columns = [*labels, *RUN_COLUMNS, *rows[0].scores]
    return pd.DataFrame(lines, columns=columns).astype(dict.fromkeys(("epochs", *rows[0].scores), np.float64))


def _value(record: Record, score: str) -> float:
    """Return a number of a run; nan if it has none."""
    try:
        return record.number(score).value
    except RecordError:
        return NAN


def _common(descriptions: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the entries shared by all non-empty descriptions."""
    given = [description for description in descriptions if description]
    shared = given[0] if given else {}
    return {name: value for name, value in shared.items() if all(one.get(name) == value for one in given)}


def _warnings(rows: Sequence[Row], records: Records) -> list[str]:
    """Return warnings about rows with other data, other items, or another version of the program."""
    found = _other_data(rows, records) + _other_items(rows, records)
    if len({record.source for record in records.values()}) > 1:
        found.append("the program was changed between these runs. To make all with one version, give another --out")
    return found


def _other_data(rows: Sequence[Row], records: Records) -> list[str]:
    """Return warnings about corpus files that differ between rows."""
    files = [
        (_file_of(said), str(said.get("sha256")), row.name)
        for row in rows
        for record in row.finished(records)
        for _, said in record.splits
    ]
    found = []
    frame = pd.DataFrame(files, columns=["file", "sha256", "row"]).drop_duplicates()
    for file, kinds in frame.groupby("file", sort=False):
        if kinds["sha256"].nunique() > 1:
            names = kinds.groupby("sha256", sort=False)["row"].agg(", ".join)
            found.append(f"{file} differs between rows: {' | '.join(names)}")
    return found


def _file_of(said: Mapping[str, object]) -> str:
    """Return the name of a file, with the name of its corpus if that is a public one."""
    corpus, file = str(said.get("corpus", "")), str(said.get("file"))
    return f"{corpus} {file}" if corpus.isidentifier() else file


def _other_items(rows: Sequence[Row], records: Records) -> list[str]:
    """Return warnings about scores with different items of the same files, as when encoders skip long sentences."""
    scores: dict[str, list[str]] = {}
    for score in rows[0].scores:
        corpora: dict[frozenset[str], dict[frozenset[object], list[str]]] = {}
        for row in rows:
            items, files = _items(row, score, records)
            if items:
                corpora.setdefault(files, {}).setdefault(items, []).append(row.name)
        for kinds in corpora.values():
            if len(kinds) > 1:
                counts = " | ".join(f"{len(items)} in {', '.join(names)}" for items, names in kinds.items())
                scores.setdefault(f"{counts}; {len(frozenset.intersection(*kinds))} are shared", []).append(score)
    remedy = "`probing compare DIR:ROW DIR:ROW --common` compares shared items"
    return [f"the rows have different items for {', '.join(names)}: {how}. {remedy}" for how, names in scores.items()]


def _items(row: Row, score: str, records: Records) -> tuple[frozenset[object], frozenset[str]]:
    """Return the items of a score of a row, and the hashes of its test files (of all files, without a test split).

    Both are empty if the items are unknown.
    """
    for record in row.finished(records):
        with suppress(RecordError):
            items = frozenset[object](record.counts(row.scores[score], by_id=True).index)
            files = [(name, str(said.get("sha256", said["file"]))) for name, said in record.splits]
            tested = [file for name, file in files if name.rpartition(".")[2] == "test"]
            return items, frozenset(tested or (file for _, file in files))
    return frozenset(), frozenset()
