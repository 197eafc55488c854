"""Tables of docs/models.md: `python -m studies.models RUNS`.

RUNS is the folder of the sweep `configs/models.yaml`. The first table has a row a question and a column a model. The
second judges each finding of `studies/published.yaml` for which these runs have the numbers.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from attention_probing.commands.sweep_plan import read_sweep
from attention_probing.results import UserError, command
from attention_probing.results.record import Record, read_record
from attention_probing.results.tables import DASH, format_markdown, format_number, score_cell
from studies.paper import (
    NOT_SEEN,
    PUBLISHED,
    ROOT,
    SEEN,
    Finding,
    Numbers,
    finished_runs,
    judge,
    read_published,
    row_of,
)

PLAN = ROOT / "configs" / "models.yaml"
_DATA = "data.init_args."
SAME = {f"{_DATA}{name}" for name in ("encoder.name", "store", "random_init", "corpora")} | {"model.init_args.trees"}
"""Options with which a run still measures what its config says."""
FEWER = {"surface", "bags", "importance"}
"""Rows of the plan of the papers whose runs read fewer texts here: a plain score (±) is not judged by them."""


def questions(folder: Path, rows: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """Return the first table: each score with its interval, and what it is compared with in parentheses.

    Args:
        folder: Folder of the sweep.
        rows: Question and model of each row of its plan.
    """
    scores = read_record(folder / "results.json").scores
    known = {name: score for name, score in scores.items() if not math.isnan(score.value)}
    found: dict[str, dict[str, str]] = {}
    for question, model in rows:
        score, beside = (known.get(f"{question} × {model}.{column}") for column in ("score", "beside"))
        other = "" if beside is None else f" ({format_number(beside.value, beside.unit, missing=DASH)})"
        found.setdefault(question, {"question": question})[model] = DASH if score is None else score_cell(score) + other
    return pd.DataFrame(found.values())


def findings(
    runs: Mapping[str, Mapping[str, Sequence[Record]]], published: Sequence[Finding], notes: list[str]
) -> pd.DataFrame:
    """Return the second table: number and verdict of each finding that the runs of a model can judge.

    Args:
        runs: Runs of each row of the plan of the papers, by model.
        published: The published findings.
        notes: Receives messages about findings whose numbers a model's runs lack.
    """
    numbers = {model: Numbers(known, defaultdict(str)) for model, known in runs.items()}
    found = []
    for finding in (one for one in published if one.ours and not (one.seen == "±" and row_of(one.ours) in FEWER)):
        cells = [_cell(finding, model, one, notes) for model, one in numbers.items()]
        if {*cells} != {DASH}:
            published_as = finding.published if isinstance(finding.published, str) else f"{finding.published:g}"
            found.append([finding.item, published_as, *cells])
    return pd.DataFrame(found, columns=["item", "published", *runs])


def _cell(finding: Finding, model: str, numbers: Numbers, notes: list[str]) -> str:
    """Return number and verdict of a finding; a dash if it is undefined, or if runs that it needs are not there."""
    try:
        ours, _, verdict = judge(finding, numbers)
    except UserError as error:  # no row of the table, for instance of attention to later tokens in a decoder
        notes.append(f"{model}, {finding.item}: {error}")
        return DASH
    return DASH if ours is None or verdict not in (SEEN, NOT_SEEN) else f"{score_cell(ours)} {verdict}"


def runs_of(folder: Path, plan: Path, papers: Path, notes: list[str]) -> dict[str, dict[str, list[Record]]]:
    """Return the runs of the sweep that measure what a row of the plan of the papers does, by model and row.

    They have its config, and none but the options of `SAME`. Of questions with equal runs the first counts.

    Args:
        folder: Folder of the sweep.
        plan: Plan of the sweep; its label columns are question and model.
        papers: Plan of the published findings.
        notes: Receives messages about results that cannot be read.

    Raises:
        UserError: No run of the sweep is finished.
    """
    first = [(row.all_runs()[0], row.name) for row in reversed(read_sweep(papers).rows)]
    names = {run.config.resolve(): name for run, name in first if not run.needs}
    records = finished_runs(folder, notes)
    found: dict[str, dict[str, list[Record]]] = {}
    for row in read_sweep(plan).rows:
        own, runs = found.setdefault(row.labels[1], {}), row.all_runs()
        name, options = names.get(runs[0].config.resolve()), {option for option, _ in runs[0].options}
        if name is not None and options <= SAME and len(row.finished(records)) == len(runs):
            own.setdefault(name, row.finished(records))
    if not any(found.values()):
        raise UserError(f"{folder}: no run of {plan} is finished. Run `probing sweep {plan} --out {folder}`.")
    return found


def main(args: Sequence[str]) -> int:
    """Run `python -m studies.models` with some arguments, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.models", description="Print the tables of docs/models.md.")
    parser.add_argument("folder", type=Path, help="folder of the sweep `models`")
    folder = parser.parse_args(args).folder
    print(format_markdown(questions(folder, [(row.labels[0], row.labels[1]) for row in read_sweep(PLAN).rows])))
    papers, _, published = read_published(PUBLISHED)
    notes = list[str]()
    table = findings(runs_of(folder, PLAN, papers, notes), published, notes)
    print(f"\n{format_markdown(table)}\n")
    for model, cells in table.iloc[:, 2:].items():
        not_seen = cells.str.endswith(NOT_SEEN).sum()
        print(f"{model}: {cells.str.endswith(SEEN).sum() - not_seen} seen, {not_seen} not seen")
    print("", *dict.fromkeys(notes), sep="\n")
    return 0


if __name__ == "__main__":
    command.run(main)
