"""Results as LaTeX tables with the rules of booktabs, with numbers in the form of `reports.numbers`.

Not pandas' `to_latex`: a row that starts with a bracket, such as that of the word `[CLS]`, compiles to an error there,
since the row end before it takes the bracket for its own argument, and so do the arrows of our directions.
"""

import re

import numpy as np
import pandas as pd

from reports.numbers import are_fractions, intervals, number, spread_of

MISSING = "--"

_SIGNS = str.maketrans(
    {
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        # Other letters altogether in TeX's first font encoding.
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        # Signs of our own names and labels that pdflatex does not know.
        "→": r"$\rightarrow$",
        "←": r"$\leftarrow$",
        "↔": r"$\leftrightarrow$",
        "−": r"$-$",
        "×": r"$\times$",
        "≤": r"$\leq$",
        "≥": r"$\geq$",
        "α": r"$\alpha$",
        "Δ": r"$\Delta$",
        "–": r"\textendash{}",
        "—": r"\textemdash{}",
        "…": r"\ldots{}",
    }
)


def latex_table(frame: pd.DataFrame, experiment: str, name: str) -> str:
    """Write a frame as one `tabular`, however long, ready to be read with LaTeX's `input`.

    Columns of numbers are right-aligned, others left-aligned. The ends of an interval are columns of their own, ×100
    when the values they belong to are.
    """
    owners = spread_of(frame) | {end: column for column, ends in intervals(frame).items() for end in ends}
    numeric = [pd.api.types.is_numeric_dtype(frame[column]) for column in frame.columns]
    columns = [_cells(frame[column], frame[owners.get(column, column)]) for column in frame.columns]
    lines = [
        "% " + " ".join(f"{experiment}: {name}".split()),
        r"% requires \usepackage{booktabs}",
        rf"\begin{{tabular}}{{{''.join('r' if number else 'l' for number in numeric)}}}",
        r"\toprule",
        _row([escape(str(column)) for column in frame.columns]),
        r"\midrule",
        *(_row(list(cells)) for cells in zip(*columns, strict=True)),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Write any text so that LaTeX prints it as it is, in one line; letters beyond ASCII are left to the font."""
    signs = " ".join(text.split()).translate(_SIGNS)
    # Pairs of these would print as a dash or as double quotes.
    return re.sub(r"([-'`])(?=\1)", r"\1{}", signs)


def _cells(column: pd.Series, owner: pd.Series) -> list[str]:
    """Write a column; `owner`, the column whose ends of intervals or deviations it holds, or itself, says if ×100."""
    if pd.api.types.is_float_dtype(column):
        fractions = are_fractions(str(owner.name), owner.to_numpy(dtype=np.float64))
        texts = [number(value, fractions, missing="") for value in column.to_numpy(dtype=np.float64)]
        return [_signed(text) if text else MISSING for text in texts]
    write = _signed if pd.api.types.is_integer_dtype(column) else escape
    return [MISSING if missing else write(str(value)) for value, missing in zip(column, column.isna(), strict=True)]


def _signed(digits: str) -> str:
    """Give a number a minus instead of a hyphen, and a power of ten instead of an `e`."""
    mantissa, _, exponent = digits.partition("e")
    formula = rf"{mantissa} \times 10^{{{int(exponent)}}}" if exponent else digits
    return f"${formula}$" if exponent or digits.startswith("-") else digits


def _row(cells: list[str]) -> str:
    row = " & ".join(cells)
    # What stands before the row, `\\` or a rule, would take these for its own.
    return rf"{'{}' if row.startswith(('[', '*')) else ''}{row} \\"
