"""HTML of a result for the output of a notebook."""

from base64 import b64encode
from typing import TYPE_CHECKING

import pandas as pd

from results import ColouredTexts
from results.document import render
from results.drawing import draw
from results.tables import DASH, LEGEND, ROWS, SIGNS, facts, score_cell, written

if TYPE_CHECKING:
    from results import Result

FIGURES = 2  # number of figures that are shown


def result_html(result: "Result") -> str:
    """Return the answer, the main scores and tables, the first figures, and the audit without zeros as HTML."""
    names = list(result.headline or result.scores)[:ROWS]
    scores = [result.scores[name] for name in names]
    values = [f"{score_cell(score)} {SIGNS.get(score.unit, '')}" for score in scores]
    audit = {name: value for name, value in facts(result.audit).items() if value not in ("0", "none")}
    tables = {"scores": {"score": names, "value": values}}
    for name, table in result.tables.items():
        cells = written(table.rows(range(min(ROWS, len(table.frame)))), missing=DASH) if table.main else {}
        if shown := [column for column in cells if column in (*table.main, "n")]:
            signs = {column: SIGNS.get(str(table.units.get(column)), "") for column in shown}
            more = f": {ROWS} of {len(table.frame)} rows" if len(table.frame) > ROWS else ""
            tables[f"{name}{more}"] = {f"{column} {signs[column]}".rstrip(): cells[column] for column in shown}
    drawn = [name for name, figure in result.figures.items() if not isinstance(figure, ColouredTexts)]
    return render(
        "result.html",
        answer=result.answer,
        tables={name: pd.DataFrame(cells).to_html(index=False, border=0) for name, cells in tables.items()},
        pictures={name: b64encode(draw(result.figures[name])._repr_png_()).decode() for name in drawn[:FIGURES]},
        audit=pd.Series(audit).to_frame().to_html(header=False, border=0) if audit else "",
        more={"table": list(result.tables), "figure": drawn},
        legend=LEGEND,
    )
