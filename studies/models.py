"""Tables of docs/models.md: `python -m studies.models RUNS`.

RUNS is the folder of the sweep `configs/models.yaml`. The first table has a row a question and a column a model. The
second has the published findings of `studies/published.yaml` about an encoder that the same runs can judge.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from commands.sweep_plan import read_sweep
from results import UserError, command
from results.reader import Record, read_record
from results.tables import DASH, markdown, number, score_cell
from studies.paper import NOT_SEEN, PUBLISHED, ROOT, SEEN, Finding, Numbers, finished_runs, judge, read_published

PLAN = ROOT / "configs" / "models.yaml"


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
        other = "" if beside is None else f" ({number(beside.value, beside.unit, missing=DASH)})"
        found.setdefault(question, {"question": question})[model] = DASH if score is None else score_cell(score) + other
    return pd.DataFrame(found.values())


def findings(runs: dict[str, dict[str, list[Record]]], published: Sequence[Finding]) -> pd.DataFrame:
    """Return the second table: number and verdict of each finding that the runs of a model can judge.

    Args:
        runs: Runs of each row of the plan of the papers, by model.
        published: The published findings.
    """
    numbers = [Numbers(known, defaultdict(str)) for known in runs.values()]
    found = []
    for finding in (one for one in published if one.ours):
        cells = [_cell(finding, one) for one in numbers]
        if {*cells} != {DASH}:
            published_as = finding.published if isinstance(finding.published, str) else f"{finding.published:g}"
            found.append([finding.item, published_as, *cells])
    return pd.DataFrame(found, columns=["item", "published", *runs])


def _cell(finding: Finding, numbers: Numbers) -> str:
    try:
        ours, _, verdict = judge(finding, numbers)
    except UserError:  # the table of this model has no such row, for instance of a layer
        return DASH
    return DASH if ours is None or verdict not in (SEEN, NOT_SEEN) else f"{score_cell(ours)} {verdict}"


def runs_of(folder: Path, plan: Path, papers: Path) -> dict[str, dict[str, list[Record]]]:
    """Return the finished runs of the sweep, by model and by the row of the plan of the papers with the same config.

    Of several questions with one config, the first stands for the row. Rows that read another training are left out.

    Args:
        folder: Folder of the sweep.
        plan: Plan of the sweep; its label columns are question and model.
        papers: Plan of the published findings.
    """
    first = [(row.all_runs()[0], row.name) for row in reversed(read_sweep(papers).rows)]
    names = {run.config.resolve(): name for run, name in first if not run.trained}
    records = finished_runs(folder, [])
    found: dict[str, dict[str, list[Record]]] = {}
    for row in read_sweep(plan).rows:
        own, name = found.setdefault(row.labels[1], {}), names.get(row.all_runs()[0].config.resolve())
        if name is not None and row.finished(records):
            own.setdefault(name, row.finished(records))
    return found


def main(args: Sequence[str]) -> int:
    """Run `python -m studies.models` with some arguments, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.models", description="Print the tables of docs/models.md.")
    parser.add_argument("folder", type=Path, help="folder of the sweep configs/models.yaml")
    folder = parser.parse_args(args).folder
    print(markdown(questions(folder, [(row.labels[0], row.labels[1]) for row in read_sweep(PLAN).rows])))
    papers, _, published = read_published(PUBLISHED)
    table = findings(runs_of(folder, PLAN, papers), published)
    print(f"\n{markdown(table)}\n")
    for model, cells in table.iloc[:, 2:].items():
        not_seen = cells.str.endswith(NOT_SEEN).sum()
        print(f"{model}: {cells.str.endswith(SEEN).sum() - not_seen} seen, {not_seen} not seen")
    return 0


if __name__ == "__main__":
    command.run(main)
