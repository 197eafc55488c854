"""Results as LaTeX tables with the rules of booktabs, with numbers in the form of `reports.numbers`.

Not pandas' `to_latex`: a row that starts with a bracket, such as that of the word `[CLS]`, compiles to an error there,
since the row end before it takes the bracket for its own argument, and so do the arrows of our directions.
"""

import re
from collections.abc import Sequence

import pandas as pd

from reports.numbers import written
from results import Table

MISSING = "--"

ROWS, COLUMNS = 60, 16
"""What fits on a page: longer and wider tables are CSV alone."""

_DOT = re.compile(r"(?<=\w)\.(?=[^\W\d])|(?<=[^\W\d])\.(?=\w)")
"""A dot that parts two words, and not the digits of a number."""

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


def latex_table(table: Table, experiment: str, name: str) -> str | None:
    """Write a table as one `tabular`, ready to be read with LaTeX's `input`; None for more than `ROWS` or `COLUMNS`.

    Columns of numbers are right-aligned, others left-aligned. Intervals stand behind their values, in the same cell.
    Heads and names of scores are words; neighbours whose names begin alike up to a dot, as `uas` and `uas.sd`, stand
    under one head.
    """
    frame, cells = table.frame, written(table, missing="")
    if len(frame) > ROWS or len(cells) > COLUMNS:
        return None
    numeric = [pd.api.types.is_numeric_dtype(frame[column]) for column in cells]
    columns = []
    for (column, texts), number in zip(cells.items(), numeric, strict=True):
        write = _signed if number else _words if column == "score" else escape
        columns.append([write(text) for text in texts])
    lines = [
        "% " + " ".join(f"{experiment}: {name}".split()),
        r"% requires \usepackage{booktabs}",
        rf"\begin{{tabular}}{{{''.join('r' if number else 'l' for number in numeric)}}}",
        r"\toprule",
        *_head([str(column) for column in cells]),
        r"\midrule",
        *(_row([cell or MISSING for cell in row]) for row in zip(*columns, strict=True)),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _head(names: Sequence[str]) -> list[str]:
    """The head, and above it the groups, where there are such."""
    groups: list[tuple[str, list[str]]] = []
    for name in names:
        group, *rest = _DOT.split(name, maxsplit=1)
        if groups and groups[-1][0] == group and rest:
            groups[-1][1].extend(rest)
        else:
            groups.append((group, rest or [""]))
    if all(len(heads) == 1 for _, heads in groups):
        return [_row([_words(name) for name in names])]
    above, rules, below, place = [], [], list[str](), 1
    for group, heads in groups:
        alone = len(heads) == 1
        above.append("" if alone else rf"\multicolumn{{{len(heads)}}}{{c}}{{{_words(group)}}}")
        below += [_words(names[place - 1])] if alone else map(_words, heads)
        rules += [] if alone else [rf"\cmidrule(lr){{{place}-{place + len(heads) - 1}}}"]
        place += len(heads)
    return [_row(above), "".join(rules), _row(below)]


def _words(name: str) -> str:
    return escape(_DOT.sub(" ", name).replace("_", " "))


def escape(text: str) -> str:
    """Write any text so that LaTeX prints it as it is, in one line; letters beyond ASCII are left to the font."""
    signs = " ".join(text.split()).translate(_SIGNS)
    # Pairs of these would print as a dash or as double quotes.
    return re.sub(r"([-'`])(?=\1)", r"\1{}", signs)


def _signed(text: str) -> str:
    """Give numbers a minus instead of a hyphen, and a power of ten instead of an `e`."""
    return re.sub(r"-?\d[\d.]*(?:e[-+]\d+)?", lambda found: _formula(found[0]), text)


def _formula(digits: str) -> str:
    mantissa, _, exponent = digits.partition("e")
    formula = rf"{mantissa} \times 10^{{{int(exponent)}}}" if exponent else digits
    return f"${formula}$" if exponent or digits.startswith("-") else digits


def _row(cells: list[str]) -> str:
    row = " & ".join(cells)
    # What stands before the row, `\\` or a rule, would take these for its own.
    return rf"{'{}' if row.startswith(('[', '*')) else ''}{row} \\"
