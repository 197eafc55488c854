"""HTML of a result for the output of a notebook."""

from base64 import b64encode
from typing import TYPE_CHECKING

import pandas as pd

from attention_probing.results import ColouredTexts, Table
from attention_probing.results.document import mark_code
from attention_probing.results.drawing import draw
from attention_probing.results.tables import (
    DASH,
    LEGEND,
    PRINTED_ROWS,
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
    html = [f"<p><b>{mark_code(result.answer)}</b></p>"]
    for name, table in result.tables.items():
        if table.main:
            html.append(_table_html(name, table))
    scores, _ = main_scores(result.scores, result.headline, result.tables)
    if scores:
        values = [f"{score_cell(score)} {SIGNS.get(score.unit, '')}" for score in scores.values()]
        frame = pd.DataFrame({"score": list(scores), "value": values})
        html.append(_frame_html("scores", frame))
    figures = [name for name, figure in result.figures.items() if not isinstance(figure, ColouredTexts)]
    for name in figures[:FIGURES]:
        png = b64encode(draw(result.figures[name])._repr_png_()).decode()
        style = "display: inline; max-height: 26rem"
        html.append(f'<img alt="{name}" style="{style}" src="data:image/png;base64,{png}">')
    facts = format_facts(result.audit)
    known_facts = {name: fact for name, fact in facts.items() if fact not in ("0", "none")}
    audit = pd.Series(known_facts).to_frame().to_html(header=False, border=0)
    html.append(f"<details><summary>Audit</summary>{audit}</details>")
    calls = [f'.table("{name}")' for name in result.tables]
    calls += [f'.figure("{name}")' for name in figures]
    html.append(f"<details><summary>Tables and figures</summary>{', '.join(calls)}</details><small>{LEGEND}</small>")
    return "\n".join(html)


def _table_html(name: str, table: Table) -> str:
    """Return the main columns of the first rows of a table, with the signs of their units."""
    rows = len(table.frame)
    cells = format_cells(table.rows(range(min(PRINTED_ROWS, rows))), missing=DASH)
    columns = {}
    for column, texts in cells.items():
        if column in table.main or column == "n":
            sign = SIGNS.get(str(table.units.get(column)), "")
            columns[f"{column} {sign}".rstrip()] = texts
    heading = f"{name}: {PRINTED_ROWS} of {rows} rows" if rows > PRINTED_ROWS else name
    html = _frame_html(heading, pd.DataFrame(columns))
    if table.note:
        html += f"<small>{mark_code(table.note)}</small>"
    return html


def _frame_html(heading: str, frame: pd.DataFrame) -> str:
    return f"<p><i>{heading}</i></p>{frame.to_html(index=False, border=0)}"
