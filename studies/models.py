"""Table of docs/models.md, with a row a question and a column a model: `python -m studies.models RUNS`.

RUNS is the folder of the sweep `configs/models.yaml`.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from attention_probing.commands.sweep_plan import read_sweep
from attention_probing.results import command
from attention_probing.results.record import read_record
from attention_probing.results.tables import DASH, format_markdown, format_number, score_cell

PLAN = Path(__file__).resolve().parent.parent / "configs" / "models.yaml"


def questions(folder: Path, rows: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """Return the table: each score with its interval, and in parentheses the number that it is compared with.

    Args:
        folder: Folder of the sweep.
        rows: Question and model of each row of its plan.
    """
    scores = read_record(folder / "results.json").scores
    known = {name: score for name, score in scores.items() if not math.isnan(score.value)}
    lines: dict[str, dict[str, str]] = {}
    for question, model in rows:
        row = f"{question} × {model}"
        score = known.get(f"{row}.score")
        beside = known.get(f"{row}.beside")
        cell = DASH if score is None else score_cell(score)
        if score is not None and beside is not None:
            cell += f" ({format_number(beside.value, beside.unit, missing=DASH)})"
        line = lines.setdefault(question, {"question": question})
        line[model] = cell
    return pd.DataFrame(lines.values())


def main(args: Sequence[str]) -> int:
    """Run `python -m studies.models` with some arguments, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.models", description="Print the table of docs/models.md.")
    parser.add_argument("folder", type=Path, help="folder of the sweep `models`")
    folder = parser.parse_args(args).folder
    rows = [(row.labels[0], row.labels[1]) for row in read_sweep(PLAN).rows]
    print(format_markdown(questions(folder, rows)))
    return 0


if __name__ == "__main__":
    command.run(main)
