"""Formats results as tables: for the terminal with rich, for print in LaTeX with the rules of booktabs, in Markdown.

Fractions are shown ×100 with one decimal, other floats with four significant digits. CSV and JSON always have the
numbers as they were computed.

pandas' `to_latex` does not compile for rows that start with a bracket, such as the row of the word `[CLS]`, which LaTeX
takes for an argument of the previous row end, nor for the arrows of the directions.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Literal

import numpy as np
import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text

from results.errors import counted
from results.estimates import FEW, Estimate, Table, Unit


def written(table: Table, *, missing: str) -> dict[str, list[str]]:
    """Format a table as strings, and return a list of cells for each column, by name.

    Intervals are in the cells of their numbers, for instance `54.3 [53.5, 55.1]`. In the column `n`, numbers of items
    below `FEW` have a star: `6*`.

    Args:
        table: The table.
        missing: Cell of an absent value.
    """
    frame, intervals, units = table.frame, table.intervals(), table.unit_rows()
    ends = {end for pair in intervals.values() for end in pair}
    cells: dict[str, list[str]] = {}
    for column in (column for column in frame.columns if column not in ends):
        if column in units and pd.api.types.is_float_dtype(frame[column]):
            numbers = frame[[column, *intervals.get(column, ())]].to_numpy(dtype=float).tolist()
            cells[column] = [_cell(row, unit, missing) for row, unit in zip(numbers, units[column], strict=True)]
        else:
            absent, few = frame[column].isna(), few_items(table) if column == "n" else []
            cells[column] = [missing if none else str(value) for value, none in zip(frame[column], absent, strict=True)]
            cells[column] = [f"{cell}*" if place in few else cell for place, cell in enumerate(cells[column])]
    return cells


def markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown; its cells are written as they are."""
    rows = [table.columns, ["---"] * len(table.columns), *table.to_numpy()]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def few_items(table: Table) -> list[int]:
    """Return the numbers, from 0, of the rows with fewer than `FEW` items by the column `n`; none without shares."""
    if not _has_shares(table):
        return []
    return np.flatnonzero(table.frame["n"].astype(float) < FEW).tolist()


def _has_shares(table: Table) -> bool:
    """Return True if the rows of a table are shares of `n` items, so that few items have a star."""
    return "n" in table.frame and any("fraction" in unit for unit in table.units.values())


def number(value: float, unit: Unit, *, missing: str) -> str:
    """Format a number by its unit.

    Fractions are multiplied by 100 and have one decimal, p-values two significant digits or `< .001`. Other numbers
    have four significant digits, from 1,000 on no decimals. A `least_p` of .001 or more begins with ≤.

    Args:
        value: The number.
        unit: Its unit.
        missing: Text for nan.
    """
    if math.isnan(value):
        return missing
    if unit in ("p", "least_p"):
        return _p_value(value, least=unit == "least_p")
    large = abs(value) >= 1000
    text = f"{100 * value:.1f}" if unit == "fraction" else f"{value:,.0f}" if large else f"{value:.4g}"
    return text.removeprefix("-") if text in ("-0", "-0.0") else text


def _p_value(value: float, *, least: bool) -> str:
    """Format a p-value as papers do: `.13`, `< .001`, and `≤ .0099` for the least that the draws could have given."""
    if value < 0.001:
        return "< .001"
    return ("≤ " if least else "") + (f"{value:.2g}".removeprefix("0") or "0")


def _cell(values: Iterable[float], unit: Unit, missing: str) -> str:
    """Format a number, with its interval if that is defined: `54.3 [53.5, 55.1]`."""
    first, *bounds = (number(value, unit, missing="") for value in values)
    return f"{first or missing} [{bounds[0]}, {bounds[1]}]" if bounds and all(bounds) else first or missing


def described(table: Table) -> dict[str, object]:
    """Describe the columns of a table's CSV file, for `results.json`.

    Returns:
        Three entries: `numeric`, the names of numeric columns; `units`, the units of columns by name; and
        `interval`, the column to which the columns called just `low`, `high` and `sd` belong.
    """
    numeric = [str(name) for name in table.frame if pd.api.types.is_numeric_dtype(table.frame[name])]
    booleans = [str(name) for name in table.frame if pd.api.types.is_bool_dtype(table.frame[name])]
    units = {name: unit if isinstance(unit, str) else list(unit) for name, unit in table.units.items()}
    return {"numeric": [name for name in numeric if name not in booleans], "units": units, "interval": table.interval}


ROWS = 25  # rows of a table, of the scores and of the audit that are printed
LISTED = 5  # longest list that is printed; a longer list is given by its length
SHOWN = 20  # entries of a list that a page shows
_MEASURED = re.compile(r"(^|\.)(inputs|scored)\b")  # names of counts over which scores are averaged
DASH = "–"
LEGEND = f"Fractions are ×100, with 95 % intervals in brackets; * is fewer than {FEW} items."
LEGEND += " docs/glossary.md explains the scores."
SIGNS: Mapping[str, str] = {"nats": "nats", "bits": "bits"}


def scores_table(title: str, scores: Mapping[str, Estimate], headline: Sequence[str] = ()) -> RichTable:
    """Return a table of scores for the terminal, one row per score, with its interval.

    Args:
        title: Title of the table.
        scores: Scores by name.
        headline: Names of the scores in the first rows.
    """
    units = any(score.unit in SIGNS for score in scores.values())
    table = _table(title, {"score": "left", "value": "right", **({"unit": "left"} if units else {})})
    for name in list(dict.fromkeys((*headline, *scores)))[:ROWS]:
        table.add_row(*_cells(name, score_cell(scores[name]), *([SIGNS.get(scores[name].unit, "")] if units else [])))
    if len(scores) > ROWS:
        table.caption = Text(f"{counted(len(scores) - ROWS, 'more score')} in results.json")
    return table


def score_cell(score: Estimate) -> str:
    """Format a score by its unit, with its interval if it has one, and a star if it has few items."""
    ends = () if score.low is None or score.high is None else (score.low, score.high)
    return _cell((score.value, *ends), score.unit, DASH) + "*" * is_few(score)


def is_few(score: Estimate) -> bool:
    """Return True for a known share of fewer than `FEW` items."""
    few = score.unit == "fraction" and score.inputs is not None and score.inputs < FEW
    return bool(few) and not math.isnan(score.value)


def data_table(title: str, table: Table, file: str, width: int = 80) -> RichTable:
    """Return a table for the terminal, with the first rows of a table of results.

    It has the columns that answer the question of the experiment, `table.main`, the number of items `n`, and further
    columns as far as they fit. A caption counts the rows and columns that are left out. If these
    columns are too wide, headings are broken after underscores and dots; then words at blanks, and intervals go
    below their numbers; if that is not enough, every row becomes a block of lines.

    Args:
        title: Title of the table.
        table: Rows and units.
        file: File with all rows and columns, named in the caption.
        width: Width of the terminal in characters.
    """
    cells = written(table, missing=DASH)
    needed = {name: 2 + _width([*_parts(name), *column[:ROWS]]) for name, column in cells.items()}
    shown = [name for name in cells if name in (*table.main, "n")]
    for name in cells:
        if name not in shown and sum(needed[one] for one in (*shown, name)) - 2 <= width:
            shown.append(name)
    columns = {name: column[:ROWS] for name, column in cells.items() if name in shown}
    numeric = {name: pd.api.types.is_numeric_dtype(table.frame[name]) for name in columns}
    layouts = (_beside(title, columns, numeric, width, level) for level in range(3))
    laid_out = next(filter(None, layouts), None) or _stacked(title, columns)
    more = {"row": len(table.frame) - ROWS, "column": len(cells) - len(shown)}
    if left := " and ".join(counted(number, f"more {kind}") for kind, number in more.items() if number > 0):
        laid_out.caption = Text(f"{left} in {file}")
    return laid_out


def _parts(name: str) -> list[str]:
    """Split a heading after its blanks, underscores and dots."""
    return [part.rstrip() for part in re.findall(r"[^\s_.]+[\s_.]*|[\s_.]+", name)]


def _width(texts: Iterable[str]) -> int:
    """Return the width of the longest line."""
    return max((cell_len(line) for text in texts for line in text.split("\n")), default=0)


def _beside(
    title: str, columns: Mapping[str, list[str]], numeric: Mapping[str, bool], width: int, level: int
) -> RichTable | None:
    """Lay out columns beside each other; None where they do not fit.

    From level 1 on headings break between their parts. At level 2 words fold at blanks, and intervals stand below
    numbers.
    """
    heads = {name: "\n".join(_parts(name)) if level else name for name in columns}
    if level == 2:
        columns = {
            name: [cell.replace(" [", "\n[", 1) for cell in column] if numeric[name] else column
            for name, column in columns.items()
        }
    least = {
        name: _width([heads[name], *(" ".join(column).split() if level == 2 and not numeric[name] else column)])
        for name, column in columns.items()
    }
    room = width - 2 * (len(columns) - 1)
    if sum(least.values()) > room:
        return None
    table = _table(title, {})
    for name, head in heads.items():
        side: Literal["left", "right"] = "right" if numeric[name] else "left"
        table.add_column(Text(head), justify=side, overflow="fold", no_wrap=numeric[name], min_width=least[name])
    for row in zip(*columns.values(), strict=True):
        table.add_row(*_cells(*row))
    return table


def _stacked(title: str, columns: Mapping[str, list[str]]) -> RichTable:
    """Lay out a block of lines for each row, a line for each column."""
    table = _table(title, {"column": "left", "value": "left"})
    for row in zip(*columns.values(), strict=True):
        if table.row_count:
            table.add_row()
        for name, cell in zip(columns, row, strict=True):
            table.add_row(*_cells(name, cell))
    return table


def audit_table(audit: Mapping[str, object]) -> RichTable:
    """Return a table of an audit for the terminal, one row per entry.

    Names of nested entries are joined with dots. Entries that are 0 are left out and counted in a caption, except the
    numbers of inputs and of scored items, because a 0 there explains a missing score. The writer prints `warnings`
    itself.
    """
    table = _table("audit", {"what": "left", "value": "right"})
    every = flat({name: value for name, value in audit.items() if name != "warnings"})
    entries = {name: value for name, value in every.items() if str(value) != "0" or _MEASURED.search(name)}
    for name, value in list(entries.items())[:ROWS]:
        table.add_row(*_cells(name, _entry(value)))
    left = [counted(len(entries) - ROWS, "more entry", "more entries")] if len(entries) > ROWS else []
    zeros = len(every) - len(entries)
    left += [counted(zeros, "count that is 0", "counts that are 0")] if zeros else []
    if left:
        table.caption = Text(f"without {' and '.join(left)}, which results.json has")
    return table


def _table(title: str, columns: Mapping[str, Literal["left", "right"]]) -> RichTable:
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
    for column, side in columns.items():
        # In a narrow terminal cells wrap: the default would cut numbers short.
        table.add_column(Text(column), justify=side, overflow="fold")
    return table


def _cells(*texts: str) -> Iterator[Text]:
    """Return the texts so that rich does not drop a token such as `[unused1]` as markup."""
    return (Text(text) for text in texts)


def _entry(value: object) -> str:
    if isinstance(value, Sized) and not isinstance(value, str) and len(value) > LISTED:
        return f"{len(value)} entries"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def flat(entries: Mapping[str, object], above: str = "") -> dict[str, object]:
    """Flatten nested mappings into one, with names joined by dots.

    Args:
        entries: The mapping.
        above: Prefix of all names.
    """
    found: dict[str, object] = {}
    for name, value in entries.items():
        found |= flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return found


def facts(entries: Mapping[str, Any]) -> dict[str, str]:
    """Format the values of nested mappings as text, by names joined with dots; of a list, the first entries."""

    def fact(value: object) -> str:
        if isinstance(value, list):
            more = f" and {len(value) - SHOWN} more" if len(value) > SHOWN else ""
            return ", ".join(map(str, value[:SHOWN])) + more or "none"
        return number(value, "ratio", missing=DASH) if isinstance(value, float) else str(value)

    return {name: fact(value) for name, value in flat(entries).items()}


MISSING = "--"
LATEX_ROWS, LATEX_COLUMNS = 60, 16  # the largest table that fits on a page; larger ones have no LaTeX file
LATEX_WIDTH = 120  # characters of a line of print; in wider tables headings are stacked and intervals below numbers
_DOT = re.compile(r"(?<=\w)\.(?=[^\W\d])|(?<=[^\W\d])\.(?=\w)")  # between two words, not between digits

_TEXT = {"~": "asciitilde", "^": "asciicircum", "\\": "backslash", "–": "endash", "—": "emdash"}
# TeX's default font encoding has other characters at these places.
_TEXT |= {"<": "less", ">": "greater", "|": "bar", '"': "quotedbl"}
# Signs in names and labels of this application that pdflatex does not know.
_MATH = {"→": "rightarrow", "←": "leftarrow", "↔": "leftrightarrow", "×": "times", "≤": "leq", "≥": "geq"}
_MATH |= {"α": "alpha", "Δ": "Delta", "↑": "uparrow", "↓": "downarrow"}
_SIGNS = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {sign: rf"\text{name}{{}}" for sign, name in _TEXT.items()}
    | {sign: rf"$\{name}$" for sign, name in _MATH.items()}
    | {"−": "$-$", "…": r"\ldots{}"}
)


def latex_table(table: Table, experiment: str, name: str) -> str | None:
    r"""Format a table as one LaTeX `tabular`, to be included with `\input`; None if it is too large for a page.

    Columns of numbers are right-aligned. Intervals are in the cells of their values; in tables wider than
    `LATEX_WIDTH` characters they stand below them. In headings and names of scores, dots and underscores
    become blanks. Adjacent columns that have the same name before a dot, as `uas` and `uas.sd`, share a
    heading.

    Args:
        table: Rows and units.
        experiment: Name of the experiment of the table.
        name: Name of the table.
    """
    frame, cells = table.frame, written(table, missing="")
    if len(cells) > LATEX_COLUMNS or len(frame) > LATEX_ROWS:
        return None
    numeric = [pd.api.types.is_numeric_dtype(frame[column]) for column in cells]
    stacked = sum(_width([column, *texts]) for column, texts in cells.items()) > LATEX_WIDTH
    columns = []
    for (column, texts), number in zip(cells.items(), numeric, strict=True):
        write = _signed if number else _words if column == "score" else escape
        columns.append([_below(write(text)) if stacked and number else write(text) for text in texts])
    head = [
        "% " + " ".join(f"{experiment}: {name}".split()),
        r"% requires \usepackage{booktabs}",
        *([f"% * fewer than {FEW} items"] if _has_shares(table) else []),
        rf"\begin{{tabular}}{{{''.join('r' if number else 'l' for number in numeric)}}}",
        r"\toprule",
        *_head([str(column) for column in cells], stacked),
        r"\midrule",
    ]
    rows = [_row([cell or MISSING for cell in row]) for row in zip(*columns, strict=True)]
    return "\n".join([*head, *rows, r"\bottomrule", r"\end{tabular}", ""])


def _below(cell: str) -> str:
    """Put the interval of a number below it, in small print."""
    value, bracket, interval = cell.partition(" [")
    return rf"\shortstack[r]{{{value}\\{{\scriptsize [{interval}}}}}" if bracket else cell


def _head(names: Sequence[str], stacked: bool = False) -> list[str]:
    """Return the lines of the head, below a line of groups if there are any; `stacked`, a word below the other."""
    groups: list[tuple[str, list[str]]] = []
    for name in names:
        group, *rest = _DOT.split(name, maxsplit=1)
        if groups and groups[-1][0] == group and rest:
            groups[-1][1].extend(rest)
        else:
            groups.append((group, rest or [""]))

    def head(name: str) -> str:
        words = _words(name)
        return rf"\shortstack{{{words}}}".replace(" ", r"\\") if stacked and " " in words else words

    if all(len(heads) == 1 for _, heads in groups):
        return [_row([head(name) for name in names])]
    above, rules, below, place = [], [], list[str](), 1
    for group, heads in groups:
        alone = len(heads) == 1
        above.append("" if alone else rf"\multicolumn{{{len(heads)}}}{{c}}{{{_words(group)}}}")
        below += [head(names[place - 1])] if alone else map(head, heads)
        rules += [] if alone else [rf"\cmidrule(lr){{{place}-{place + len(heads) - 1}}}"]
        place += len(heads)
    return [_row(above), "".join(rules), _row(below)]


def _words(name: str) -> str:
    return escape(_DOT.sub(" ", name).replace("_", " "))


def escape(text: str) -> str:
    """Escape a text for LaTeX, and join its lines into one.

    Letters outside ASCII are kept; the document's font must have them.
    """
    signs = " ".join(text.split()).translate(_SIGNS)
    # TeX turns pairs of these signs into dashes or double quotes.
    return re.sub(r"([-'`])(?=\1)", r"\1{}", signs)


def _signed(text: str) -> str:
    """Format negative numbers and powers of ten as formulas."""
    return (
        re.sub(r"-?\d[\d.]*(?:e[-+]\d+)?", lambda found: _formula(found[0]), text)
        .replace("≤", r"$\leq$")
        .replace("<", "$<$")
    )


def _formula(digits: str) -> str:
    mantissa, _, exponent = digits.partition("e")
    formula = rf"{mantissa} \times 10^{{{int(exponent)}}}" if exponent else digits
    return f"${formula}$" if exponent or digits.startswith("-") else digits


def _row(cells: list[str]) -> str:
    row = " & ".join(cells)
    # LaTeX would read these as an argument of the row end or rule before the row.
    return rf"{'{}' if row.startswith(('[', '*')) else ''}{row} \\"
