"""Formats tables for print in LaTeX, with the rules of booktabs.

pandas' `to_latex` does not compile for rows that start with a bracket, such as the row of the word `[CLS]`, which LaTeX
takes for an argument of the previous row end, nor for the arrows of the directions.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from attention_probing.results.errors import pluralize
from attention_probing.results.estimates import FEW, Table
from attention_probing.results.printed_names import printed_name
from attention_probing.results.tables import (
    NO_INTERVAL,
    SIGNS,
    WHY_NO_INTERVAL,
    answering_columns,
    columns_of_p_values,
    format_cells,
    has_star,
    lacks_interval,
    needed_width,
)

MISSING = "--"
LATEX_ROWS = 40  # most rows of a table on a page
LATEX_COLUMN = 60  # letters in a line of a column of ACL, in `\footnotesize`
LATEX_WIDTH = 112  # letters in a line of a page
NAMED = ("score", "measure", "ranking", "pair")  # columns whose cells are names of this application
_DOT = re.compile(r"(?<=\w)\.(?=[^\W\d])|(?<=[^\W\d])\.(?=\w)")  # between two words, not between digits

_TEXT = {"~": "asciitilde", "^": "asciicircum", "\\": "backslash", "–": "endash", "—": "emdash"}
# TeX's default font encoding has other characters at these places.
_TEXT |= {"<": "less", ">": "greater", "|": "bar", '"': "quotedbl"}
# Signs in names and labels of this application that pdflatex does not know.
_MATH = {"→": "rightarrow", "←": "leftarrow", "↔": "leftrightarrow", "×": "times", "≤": "leq", "≥": "geq"}
_MATH |= {"α": "alpha", "τ": "tau", "ρ": "rho", "Δ": "Delta", "↑": "uparrow", "↓": "downarrow"}
_IN_LATEX = {"−": "$-$", "…": r"\ldots{}"}
_IN_LATEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
_IN_LATEX |= {sign: rf"\text{name}{{}}" for sign, name in _TEXT.items()}
_IN_LATEX |= {sign: rf"$\{name}$" for sign, name in _MATH.items()}
_SIGNS = str.maketrans(_IN_LATEX)
_NUMERIC = str.maketrans({"-": "$-$", "<": "$<$", "≤": r"$\leq$", "*": r"\rlap{*}", NO_INTERVAL: r"\rlap{$^\dagger$}"})


def latex_table(table: Table, experiment: str, name: str, title: str) -> str | None:
    r"""Format a table as a `table` of LaTeX, to be included with `\input`.

    It has a caption and the label `tab:<experiment>-<name>`. Columns without values are left out, and columns that
    do not fit on a page, see `_columns_of_page`; a comment names them. Rows without values and rows after the first
    `LATEX_ROWS` are left out; the caption counts them. In headings and names of scores, dots and underscores become
    blanks.

    Args:
        table: Rows and units.
        experiment: Name of the experiment of the table.
        name: Name of the table.
        title: First sentence of the caption, without a full stop.

    Returns:
        The LaTeX; None for a table without values, and for one of more than `LATEX_ROWS` rows that has no main columns.
    """
    rows = _rows_with_values(table)
    if not rows or (len(rows) > LATEX_ROWS and not table.main):
        return None
    left_out = {"without values": len(table.frame) - len(rows), "below these": len(rows) - LATEX_ROWS}
    table = table.rows(rows[:LATEX_ROWS])
    cells = {column: texts for column, texts in format_cells(table, missing="").items() if any(texts)}
    if table.main and "score" not in table.main:
        cells.pop("score", None)  # names in results.json
    columns, width = _columns_of_page(table, cells)
    more = ", ".join(column for column in cells if column not in columns)
    environment = "table*" if width > LATEX_COLUMN else "table"  # with the star over both columns
    sides = []
    latex_cells = []
    for column in columns:
        side = "r" if pd.api.types.is_numeric_dtype(table.frame[column]) else "l"
        sides.append(side)
        latex_cells.append(_latex_cells(column, cells[column], side))
    source = " ".join(f"{experiment}: {name}".split())
    lines = [rf"% {source}; requires \usepackage{{booktabs,graphicx}}"]
    if more:
        lines.append(f"% without the columns {more} of {name}.csv")
    lines += [
        rf"\begin{{{environment}}}[t]",
        r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{''.join(sides)}}}",
        r"\toprule",
        _row(map(_heading, columns, sides)),
        r"\midrule",
        *map(_row, zip(*latex_cells, strict=True)),
        r"\bottomrule",
        r"\end{tabular}}",
        rf"\caption{{{_caption(table, columns, title, left_out)}}}",
        rf"\label{{tab:{experiment}-{name}}}",
        rf"\end{{{environment}}}",
        "",
    ]
    return "\n".join(lines)


def _rows_with_values(table: Table) -> list[int]:
    """Return the numbers, from 0, of the rows with a value in a main column that has a unit; if none has, in any."""
    columns = [column for column in table.main or table.frame if column in table.units]
    if not columns:
        columns = list(table.frame)
    has_value = table.frame[columns].notna().any(axis="columns")
    return np.flatnonzero(has_value).tolist()


def _columns_of_page(table: Table, cells: Mapping[str, Sequence[str]]) -> tuple[list[str], int]:
    """Return the columns that fit on a page, and their width in letters.

    Columns that answer (`answering_columns`) come first and are never left out.
    """
    main = answering_columns(table)
    columns = sorted(cells, key=lambda column: column not in main)
    widths = {column: needed_width(column, cells[column]) for column in columns}
    while sum(widths.values()) > LATEX_WIDTH and columns[-1] not in main and len(columns) > 1:
        widths.pop(columns.pop())
    return columns, sum(widths.values())


def _latex_cells(column: str, cells: Iterable[str], side: str) -> list[str]:
    """Return the LaTeX of the cells of a column; on the right side are numbers, their intervals in small print."""
    format_cell: Callable[[str], str]
    if side == "r":
        format_cell = _number
    elif column in NAMED:
        format_cell = _words
    else:
        format_cell = escape
    return [format_cell(cell) or MISSING for cell in cells]


def _caption(table: Table, columns: Collection[str], title: str, left_out: Mapping[str, int]) -> str:
    """Return the text of a caption: the title, what stands in the columns, and the numbers of rows left out."""
    notes = _notes_on_units(table, columns)
    has_intervals = any(column in table.intervals() for column in columns)
    if has_intervals:
        notes.append(r"95\,\% intervals in brackets")
    p_columns = [column for column in columns if column in columns_of_p_values(table)]
    if p_columns:
        notes.append("$p$ from sign flips or permutations")
    if has_intervals and lacks_interval(table):
        notes.append(rf"$^\dagger$\,{WHY_NO_INTERVAL}")
    if any("holm" in column for column in p_columns):
        notes.append("Holm: corrected for multiple tests")
    if has_star(table):
        notes.append(rf"*\,is fewer than {FEW} items")
    for place, rows in left_out.items():
        if rows > 0:
            notes.append(f"{pluralize(rows, 'row')} {place} left out")
    sentences = [_sentence(escape(title))]
    if notes:
        sentences.append(_sentence("; ".join(notes)))
    if table.note:
        sentences.append(escape(table.note))
    return " ".join(sentences)


def _notes_on_units(table: Table, columns: Iterable[str]) -> list[str]:
    """Return the notes of a caption on the units of the columns."""
    notes = []
    if any("fraction" in unit for unit in table.units.values()):
        notes.append(r"fractions are $\times$100")
    for sign in SIGNS:
        names = [_words(column) for column in columns if table.units.get(column) == sign]
        if names:
            notes.append(f"{', '.join(names)} in {sign}")
    return notes


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _heading(name: str, side: str) -> str:
    """Return the heading of a column, one word below the other; signs and brackets stay beside the word before."""
    lines = re.sub(r" (?![$\[*])", r"\\\\", _words(name))
    if r"\\" not in lines:
        return lines
    return rf"\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}{lines}\end{{tabular}}"


def _words(name: str) -> str:
    """Return the LaTeX of a name."""
    return re.sub(r"(?<!\S)[np](?!\S)", r"$\g<0>$", escape(printed_name(_DOT.sub(" ", name))))


def escape(text: str) -> str:
    """Escape a text for LaTeX, and join its lines into one.

    Letters outside ASCII are kept; the document's font must have them.
    """
    signs = " ".join(text.split()).translate(_SIGNS)
    # TeX turns pairs of these signs into dashes or double quotes.
    return re.sub(r"([-'`])(?=\1)", r"\1{}", signs)


def _number(text: str) -> str:
    """Return the LaTeX of a number, with thousands separated, and its interval in small print."""
    text = text.translate(_NUMERIC)
    text = re.sub(r"(?<![\d.])\d{4,}(?![\d.])", lambda digits: f"{int(digits[0]):,}", text)
    text = re.sub(r"e\$-\$0*(\d+)", r"${}\\times 10^{-\1}$", text)
    return re.sub(r"\[.*\]", r"{\\scriptsize \g<0>}", text)


def _row(cells: Iterable[str]) -> str:
    row = " & ".join(cells)
    if row.startswith(("[", "*")):
        row = f"{{}}{row}"  # LaTeX would read these signs as an argument of the row end or rule before the row
    return rf"{row} \\"
