"""Print the table of docs/models.md, a row a question and a column a model: `python docs/scripts/models.py runs/models`."""

import sys
from pathlib import Path

import pandas as pd

from results.reader import read_record
from results.tables import DASH, number, score_cell

record = read_record(Path(sys.argv[1]) / "results.json")
table = pd.read_csv(record.path.with_name("models.csv"))[["question", "model"]]
cells = []
for question, model in table.itertuples(index=False):
    score, beside = (record.scores.get(f"{question} × {model}.{column}") for column in ("score", "beside"))
    other = "" if beside is None or pd.isna(beside.value) else f" ({number(beside.value, beside.unit, missing=DASH)})"
    cells.append(DASH if score is None or pd.isna(score.value) else score_cell(score) + other)
wide = table.assign(cell=cells).pivot(index="question", columns="model", values="cell")
wide = wide.loc[table["question"].unique(), table["model"].unique()].reset_index()
print(*(f"| {' | '.join(row)} |" for row in [[*wide], ["---"] * len(wide.columns), *wide.to_numpy()]), sep="\n")
