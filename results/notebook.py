"""HTML of a result for the output of a notebook."""

from base64 import b64encode
from html import escape
from typing import TYPE_CHECKING

import pandas as pd

from attention_probing.results import ColouredTexts
from attention_probing.results.drawing import draw
from attention_probing.results.tables import (
    DASH,
    LEGEND,
    ROWS,
    SIGNS,
    format_cells,
    format_facts,
    main_scores,
    score_cell,
)

if TYPE_CHECKING:
    from attention_probing.results import Result

FIGURES = 2  # number of figures that are shown


def result_html(result: "Result") -> str:
    """Return the answer, the main tables and scores, the first figures, and the audit without zeros as HTML."""
    shown = {}
    for name, table in result.tables.items():
        if table.main:
            cells = format_cells(table.rows(range(min(ROWS, len(table.frame)))), missing=DASH)
            rows = f": {ROWS} of {len(table.frame)} rows" if len(table.frame) > ROWS else ""
            signs = {column: f" {SIGNS.get(str(unit), '')}".rstrip() for column, unit in table.units.items()}
            chosen = [column for column in cells if column in (*table.main, "n")]
            shown[name + rows] = pd.DataFrame({column + signs.get(column, ""): cells[column] for column in chosen})
    if scores := main_scores(result.scores, result.headline, result.tables)[0]:
        values = [f"{score_cell(score)} {SIGNS.get(score.unit, '')}" for score in scores.values()]
        shown["scores"] = pd.DataFrame({"score": list(scores), "value": values})
    drawn = [name for name, figure in result.figures.items() if not isinstance(figure, ColouredTexts)]
    audit = pd.Series({name: fact for name, fact in format_facts(result.audit).items() if fact not in ("0", "none")})
    html = [f"<p><b>{escape(result.answer)}</b></p>"]
    html += [f"<p><i>{name}</i></p>{frame.to_html(index=False, border=0)}" for name, frame in shown.items()]
    for name in drawn[:FIGURES]:
        picture = f"data:image/png;base64,{b64encode(draw(result.figures[name])._repr_png_()).decode()}"
        html.append(f'<img alt="{name}" style="display: inline; max-height: 26rem" src="{picture}">')
    listed = ", ".join([*map('.table("{}")'.format, result.tables), *map('.figure("{}")'.format, drawn)])
    html.append(f"<details><summary>Audit</summary>{audit.to_frame().to_html(header=False, border=0)}</details>")
    html.append(f"<details><summary>Tables and figures</summary>{listed}</details><small>{LEGEND}</small>")
    return "\n".join(html)
