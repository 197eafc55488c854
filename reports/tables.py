"""Results as tables: for the terminal with rich, and for print in LaTeX with the rules of booktabs.

Fractions are shown ×100 with one decimal, other floats with four significant digits. CSV and JSON always hold the
numbers as they were computed.

pandas' `to_latex` does not compile for rows that start with a bracket, such as that of the word `[CLS]`, which LaTeX
takes for an argument of the row end before, nor for the arrows of our directions.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text

from results import Estimate, Table, Unit


def written(table: Table, *, missing: str) -> dict[str, list[str]]:
    """Write the cells of every column, with intervals behind their numbers and `missing` for absent values."""
    frame, intervals, units = table.frame, table.intervals(), table.unit_rows()
    ends = {end for pair in intervals.values() for end in pair}
    cells: dict[str, list[str]] = {}
    for column in (column for column in frame.columns if column not in ends):
        if column in units and pd.api.types.is_float_dtype(frame[column]):
            numbers = frame[[column, *intervals.get(column, ())]].to_numpy(dtype=float).tolist()
            cells[column] = [_cell(row, unit, missing) for row, unit in zip(numbers, units[column], strict=True)]
        else:
            absent = frame[column].isna()
            cells[column] = [missing if none else str(value) for value, none in zip(frame[column], absent, strict=True)]
    return cells


def number(value: float, unit: Unit, *, missing: str) -> str:
    """Write a float, ×100 with one decimal when it is a fraction; nan becomes `missing`."""
    if math.isnan(value):
        return missing
    return f"{100 * value:.1f}" if unit == "fraction" else f"{value:.4g}"


def _cell(values: Iterable[float], unit: Unit, missing: str) -> str:
    """A number, with its interval where that is defined: `54.3 [53.5, 55.1]`."""
    first, *bounds = (number(value, unit, missing="") for value in values)
    return f"{first or missing} [{bounds[0]}, {bounds[1]}]" if bounds and all(bounds) else first or missing


ROWS, COLUMNS, SCORES = 30, 12, 80  # printed: rows and columns of a table, not counting intervals, and scores
DASH = "–"


def scores_table(title: str, scores: Mapping[str, Estimate]) -> RichTable:
    """Lay out scores, one row each, with their intervals."""
    table = _table(title, ["score", "value"], numbers={1})
    for name, score in list(scores.items())[:SCORES]:
        ends = () if score.low is None or score.high is None else (score.low, score.high)
        table.add_row(*_cells(name, _cell((score.value, *ends), score.unit, DASH)))
    if len(scores) > SCORES:
        table.caption = Text(f"{len(scores) - SCORES} more scores in results.json")
    return table


def data_table(title: str, table: Table, file: str, width: int = 80) -> RichTable:
    """Lay out the first rows, and the columns that fit a width; a caption counts the others, which are in `file`."""
    frame, cells = table.frame, written(table, missing=DASH)
    columns = _fitting({name: column[:ROWS] for name, column in cells.items()}, width)
    numeric = {place for place, column in enumerate(columns) if pd.api.types.is_numeric_dtype(frame[column])}
    shown = _table(title, [str(column) for column in columns], numbers=numeric)
    for row in zip(*(cells[column][:ROWS] for column in columns), strict=True):
        shown.add_row(*_cells(*row))
    more = {"row": len(frame) - ROWS, "column": len(cells) - len(columns)}
    if left := " and ".join(f"{number} more {kind}{'s' * (number > 1)}" for kind, number in more.items() if number > 0):
        shown.caption = Text(f"{left} in {file}")
    return shown


def _fitting(cells: Mapping[str, list[str]], width: int) -> list[str]:
    """The first columns that fit beside each other without a line break: two at least, `COLUMNS` at most."""
    ends = accumulate(max(map(cell_len, (str(name), *column))) + 2 for name, column in cells.items())
    fitting = sum(end <= width + 2 for end in ends)
    return list(cells)[: min(max(fitting, 2), COLUMNS)]


def audit_table(audit: Mapping[str, object]) -> RichTable:
    """Lay out the audit, one row per entry, nested names joined with dots; a caption counts the omitted zeros."""
    table = _table("audit", ["what", "value"], numbers={1})
    entries = list(_flat(audit))
    for name, value in entries:
        if value != "0":
            table.add_row(*_cells(name, value))
    if nothing := sum(value == "0" for _, value in entries):
        counts = "1 count that is 0" if nothing == 1 else f"{nothing} counts that are 0"
        table.caption = Text(f"without {counts}, which results.json has")
    return table


def _table(title: str, columns: Sequence[str], numbers: set[int]) -> RichTable:
    # One rule under the head, two spaces between columns: five columns with intervals fit into 80 characters.
    table = RichTable(
        title=Text(title, style="bold"),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for place, column in enumerate(columns):
        # In a narrow terminal cells wrap: the default would cut numbers short.
        table.add_column(Text(column), justify="right" if place in numbers else "left", overflow="fold")
    return table


def _cells(*texts: str) -> Iterator[Text]:
    """Protect the texts from rich, which would drop a token such as `[unused1]` as markup."""
    return (Text(text) for text in texts)


def _flat(entries: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in entries.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        elif isinstance(value, Sized) and not isinstance(value, str) and len(value) > 5:
            yield f"{above}{name}", f"{len(value)} entries"
        else:
            yield f"{above}{name}", f"{value:.4g}" if isinstance(value, float) else str(value)


MISSING = "--"
LATEX_ROWS, LATEX_COLUMNS = 60, 16  # the largest table that fits on a page; larger ones have no LaTeX file
_DOT = re.compile(r"(?<=\w)\.(?=[^\W\d])|(?<=[^\W\d])\.(?=\w)")  # between two words, not between digits

_TEXT = {"~": "asciitilde", "^": "asciicircum", "\\": "backslash", "–": "endash", "—": "emdash"}
# Other letters altogether in TeX's first font encoding.
_TEXT |= {"<": "less", ">": "greater", "|": "bar", '"': "quotedbl"}
# Signs of our own names and labels that pdflatex does not know.
_MATH = {"→": "rightarrow", "←": "leftarrow", "↔": "leftrightarrow", "×": "times", "≤": "leq", "≥": "geq"}
_MATH |= {"α": "alpha", "Δ": "Delta"}
_SIGNS = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {sign: rf"\text{name}{{}}" for sign, name in _TEXT.items()}
    | {sign: rf"$\{name}$" for sign, name in _MATH.items()}
    | {"−": "$-$", "…": r"\ldots{}"}
)


@dataclass(frozen=True)
class Latex:
    """The lines of a `tabular`: what stands before the rows, one line per row, and what stands behind them."""

    head: list[str]
    rows: list[str]
    foot: list[str]

    def __str__(self) -> str:
        return "\n".join([*self.head, *self.rows, *self.foot]) + "\n"


def latex_table(table: Table, experiment: str, name: str) -> str | None:
    """Write a table as one `tabular`, ready for LaTeX's `input`; None where it is too large for a page.

    Columns of numbers are right-aligned. Intervals are in the cells of their values. Heads and names of scores are
    written as words; adjacent columns with the same name before a dot, as `uas` and `uas.sd`, share a head.
    """
    lines = latex_lines(table, experiment, name) if len(table.frame) <= LATEX_ROWS else None
    return None if lines is None else str(lines)


def latex_lines(table: Table, experiment: str, name: str) -> Latex | None:
    """Write the lines of `latex_table`, of any number of rows; None where the columns are too many."""
    frame, cells = table.frame, written(table, missing="")
    if len(cells) > LATEX_COLUMNS:
        return None
    numeric = [pd.api.types.is_numeric_dtype(frame[column]) for column in cells]
    columns = []
    for (column, texts), number in zip(cells.items(), numeric, strict=True):
        write = _signed if number else _words if column == "score" else escape
        columns.append([write(text) for text in texts])
    head = [
        "% " + " ".join(f"{experiment}: {name}".split()),
        r"% requires \usepackage{booktabs}",
        rf"\begin{{tabular}}{{{''.join('r' if number else 'l' for number in numeric)}}}",
        r"\toprule",
        *_head([str(column) for column in cells]),
        r"\midrule",
    ]
    rows = [_row([cell or MISSING for cell in row]) for row in zip(*columns, strict=True)]
    return Latex(head, rows, [r"\bottomrule", r"\end{tabular}"])


def _head(names: Sequence[str]) -> list[str]:
    """The head, below a line of groups if there are any."""
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
    """Escape a text for LaTeX, in one line; other letters than ASCII are left to the font."""
    signs = " ".join(text.split()).translate(_SIGNS)
    # Pairs of these would become dashes or double quotes.
    return re.sub(r"([-'`])(?=\1)", r"\1{}", signs)


def _signed(text: str) -> str:
    """Write negative numbers and powers of ten as formulas."""
    return re.sub(r"-?\d[\d.]*(?:e[-+]\d+)?", lambda found: _formula(found[0]), text)


def _formula(digits: str) -> str:
    mantissa, _, exponent = digits.partition("e")
    formula = rf"{mantissa} \times 10^{{{int(exponent)}}}" if exponent else digits
    return f"${formula}$" if exponent or digits.startswith("-") else digits


def _row(cells: list[str]) -> str:
    row = " & ".join(cells)
    # The row end or rule before the row would take these for its argument.
    return rf"{'{}' if row.startswith(('[', '*')) else ''}{row} \\"
