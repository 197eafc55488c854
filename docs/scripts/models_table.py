"""Print the table of docs/models.md, a row a question and a column a model.

PYTHONPATH=. python docs/scripts/models_table.py FOLDER
"""

import sys
from pathlib import Path

import pandas as pd

from results.reader import read_record
from results.tables import DASH, number, score_cell
from studies.languages import markdown


def main(folder: Path) -> None:
    """Print each score with its interval, and what it is compared with in parentheses."""
    record = read_record(folder / "results.json")
    table = pd.read_csv(folder / "models.csv")[["question", "model"]]
    cells = []
    for question, model in table.itertuples(index=False):
        score, beside = (record.scores.get(f"{question} × {model}.{column}") for column in ("score", "beside"))
        other = (
            "" if beside is None or pd.isna(beside.value) else f" ({number(beside.value, beside.unit, missing=DASH)})"
        )
        cells.append(DASH if score is None or pd.isna(score.value) else score_cell(score) + other)
    wide = table.assign(cell=cells).pivot(index="question", columns="model", values="cell")
    wide = wide.loc[table["question"].unique(), table["model"].unique()].reset_index()
    print(markdown({str(name): list(column) for name, column in wide.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
