"""Formats results as tables for the terminal with rich, and in Markdown; `results.latex` for print.

Fractions are shown ×100 with one decimal, other floats with four significant digits. CSV and JSON always have the
numbers as they were computed.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text

from attention_probing.results.errors import pluralize
from attention_probing.results.estimates import FEW, Estimate, Table, Unit


def format_cells(table: Table, *, missing: str) -> dict[str, list[str]]:
    """Format a table as strings, and return a list of cells for each column, by name.

    Intervals are in the cells of their numbers, for instance `54.3 [53.5, 55.1]`. In the column `n`, numbers of items
    below `FEW` have a star: `6*`; so have shares of so few items by `Table.items`.

    Args:
        table: The table.
        missing: Cell of an absent value.
    """
    frame = table.frame
    intervals = table.intervals()
    units = table.unit_rows()
    ends: set[str] = set()
    for low_and_high in intervals.values():
        ends.update(low_and_high)
    cells: dict[str, list[str]] = {}
    for column in frame.columns:
        if column in ends:
            continue
        if column in units and pd.api.types.is_float_dtype(frame[column]):
            cells[column] = []
            numbers = frame[[column, *intervals.get(column, ())]].to_numpy(dtype=float).tolist()
            for number_and_ends, unit in zip(numbers, units[column], strict=True):
                cells[column].append(_cell(number_and_ends, unit, missing))
            rows_with_star = _shares_of_few_items(table, column)
        else:
            cells[column] = [str(value) for value in frame[column]]
            for row in np.flatnonzero(frame[column].isna()).tolist():
                cells[column][row] = missing
            rows_with_star = rows_of_few_items(table) if column == "n" else []
        for row in rows_with_star:
            cells[column][row] += "*"
    return cells


def format_markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown; its cells are written as they are."""
    lines = []
    for row in [table.columns, ["---"] * len(table.columns), *table.to_numpy()]:
        cells = " | ".join(map(str, row))
        lines.append(f"| {cells} |")
    return "\n".join(lines)


def answering_columns(table: Table) -> set[str]:
    """Return the names of the columns that answer the question of a table; a page shows them before the others.

    They are `Table.main`, or the names of the rows if it is empty; numbers of items; p-values, and values and
    differences with intervals beside them.
    """
    names = takewhile(lambda column: not pd.api.types.is_numeric_dtype(table.frame[column]), table.frame)
    columns = {*(table.main or names), "n"}
    if table.interval:
        columns.add(table.interval)
    p_columns = columns_of_p_values(table)
    if p_columns:
        columns |= {*p_columns, *table.intervals()}
    return columns


def columns_of_p_values(table: Table) -> list[str]:
    """Return the names of the columns with p-values."""
    columns = []
    for column, units in table.unit_rows().items():
        if "p" in units or "least_p" in units:
            columns.append(column)
    return columns


def lacks_interval(table: Table) -> bool:
    """Return True if a number of the table has no interval, though others of its column may have one."""
    units = table.unit_rows()
    for column, ends in table.intervals().items():
        is_count = [unit == "count" for unit in units[column]]
        has_number = table.frame[column].notna() & ~np.array(is_count)
        if table.frame.loc[has_number, list(ends)].isna().any(axis=None):
            return True
    return False


def rows_of_few_items(table: Table) -> list[int]:
    """Return the numbers, from 0, of the rows with few items, 1 to `FEW` − 1, by the column `n`; none without shares.

    A row without items is blank, so no number of it needs a star.
    """
    if "n" not in table.frame or not any("fraction" in unit for unit in table.units.values()):
        return []
    items = table.frame["n"].astype(float)
    return np.flatnonzero((items > 0) & (items < FEW)).tolist()


def _shares_of_few_items(table: Table, column: str) -> list[int]:
    """Return the numbers, from 0, of the rows of a column with a share of fewer than `FEW` items, by `Table.items`."""
    if column not in table.items:
        return []
    units = table.unit_rows()[column]
    values = table.frame[column].tolist()
    rows = []
    for row, (value, unit, items) in enumerate(zip(values, units, table.items[column], strict=True)):
        if unit == "fraction" and value == value and items < FEW:
            rows.append(row)
    return rows


def has_star(table: Table) -> bool:
    """Return True if a cell of the table has a star for few items."""
    if rows_of_few_items(table):
        return True
    return any(_shares_of_few_items(table, column) for column in table.items)


def format_number(value: float, unit: Unit, *, missing: str) -> str:
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
    if unit == "fraction":
        text = f"{100 * value:.1f}"
    elif abs(value) >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.4g}"
    return text.removeprefix("-") if text in ("-0", "-0.0") else text


def _p_value(value: float, *, least: bool) -> str:
    """Format a p-value as papers do: `.13`, `< .001`, and `≤ .0099` for the least that the draws could have given."""
    if value < 0.001:
        return "< .001"
    if value >= 0.995:
        text = "1"
    else:
        digits = 1 - math.floor(math.log10(float(f"{value:.1e}")))
        text = f"{value:.{digits}f}".removeprefix("0")
    return f"≤ {text}" if least else text


def _cell(values: Iterable[float], unit: Unit, missing: str) -> str:
    """Format a number, with its interval if that is defined: `54.3 [53.5, 55.1]`; `54.3†` if it has none.

    Counts have no interval anywhere, so they have no sign for it.
    """
    first, *bounds = (format_number(value, unit, missing="") for value in values)
    if not first:
        return missing
    if not bounds or (unit == "count" and not any(bounds)):
        return first
    if not all(bounds):
        return f"{first}{NO_INTERVAL}"
    low, high = bounds
    return f"{first} [{low}, {high}]"


PRINTED_ROWS = 25  # rows of a table, of the scores and of the audit that are printed
LISTED = 5  # longest list that is printed; a longer list is given by its length
_NAME_WIDTH = 30  # of the lines of a long name that is broken
_UNBROKEN = ("head",)  # columns of words whose cells stay in one line: an arrow beside the head
SHOWN = 20  # entries of a list that a page shows
_MEASURED = re.compile(r"(^|\.)(inputs|scored)\b")  # names of counts over which scores are averaged
DASH = "–"
NO_INTERVAL = "†"  # behind a number whose interval is left out
WHY_NO_INTERVAL = "no interval: too few units or seeds, equal values, or chosen on these data"
LEGEND = f"Fractions ×100, 95 % intervals in brackets, * < {FEW} items. See docs/glossary.md."
ARROWS: Mapping[str, str] = {
    "dependent→head": "→",
    "head→dependent": "←",
    "mention→antecedent": "→",
    "antecedent→mention": "←",
}
"""Sign of each direction of attention behind the name of a head: → is from the word in question, ← towards it."""
SIGNS: Mapping[str, str] = {"nats": "nats", "bits": "bits"}


def scores_table(title: str, scores: Mapping[str, Estimate]) -> RichTable:
    """Return a table of scores for the terminal, one row per score, with its interval."""
    columns: dict[str, Literal["left", "right"]] = {"score": "left", "value": "right"}
    has_signs = any(score.unit in SIGNS for score in scores.values())
    if has_signs:
        columns["unit"] = "left"
    table = _table(title, columns)
    for name, score in scores.items():
        cells = [name, score_cell(score)]
        if has_signs:
            cells.append(SIGNS.get(score.unit, ""))
        table.add_row(*_cells(*cells))
    return table


def main_scores(
    scores: Mapping[str, Estimate], headline: Sequence[str], tables: Mapping[str, Table]
) -> tuple[dict[str, Estimate], int]:
    """Return the scores to print, without those that a main table names in a column `score`.

    Args:
        scores: Scores by name.
        headline: Names of the main scores; if there are none, the first `PRINTED_ROWS` scores are printed.
        tables: Tables by name.

    Returns:
        The scores, and the number of scores that neither they nor a main table have.
    """
    in_tables: set[str] = set()
    for table in tables.values():
        if table.main and "score" in table.frame:
            in_tables.update(map(str, table.frame["score"]))
    others = {name: score for name, score in scores.items() if name not in in_tables}
    names = headline or list(scores)[:PRINTED_ROWS]
    main = {name: others[name] for name in names if name in others}
    return main, len(others) - len(main)


def score_cell(score: Estimate) -> str:
    """Format a score by its unit, with its interval if it has one, and a star if it has few items."""
    numbers = [score.value]
    if score.low is not None and score.high is not None:
        numbers += [score.low, score.high]
    cell = _cell(numbers, score.unit, DASH)
    return f"{cell}*" if _is_few(score) else cell


def _is_few(score: Estimate) -> bool:
    """Return True for a known share of fewer than `FEW` items."""
    if score.unit != "fraction" or score.inputs is None or math.isnan(score.value):
        return False
    return bool(score.inputs < FEW)


def list_few(scores: Mapping[str, Estimate], tables: Mapping[str, Table]) -> list[str]:
    """Name the scores of fewer than `FEW` items, and the tables with rows of so few."""
    few = [name for name, score in scores.items() if _is_few(score)]
    for name, table in tables.items():
        rows = len(rows_of_few_items(table))
        if rows:
            few.append(f"{pluralize(rows, 'row')} of {name}.csv")
    return few


def data_table(title: str, table: Table, file: str, width: int = 80) -> RichTable:
    """Return a table for the terminal, with the first rows of a table of results.

    It has the columns that answer the question of the experiment, `table.main`, the number of items `n`, and further
    columns with values as far as they fit. A caption counts the rows and columns that are left out. If these
    columns are too wide, headings are broken after underscores and dots, and the direction of a head becomes an arrow
    behind its name, which the caption explains; then words at blanks, then intervals go below their numbers, then long
    names are broken; if that is not enough, every row becomes a block of lines. The note of the table is the end of the
    caption.

    Args:
        title: Title of the table.
        table: Rows and units.
        file: File with all rows and columns, named in the caption.
        width: Width of the terminal in characters.
    """
    cells = format_cells(table, missing=DASH)
    columns = {name: column[:PRINTED_ROWS] for name, column in cells.items()}
    fitting = _columns_that_fit(columns, {*table.main, "n"}, width)
    columns = {name: column for name, column in columns.items() if name in fitting}
    numeric = {name: pd.api.types.is_numeric_dtype(table.frame[name]) for name in columns}
    directions = columns.get("direction", ())
    layout = _lay_out_columns(title, columns, numeric, width, level=0)
    if layout is None:
        columns = _add_arrows(columns)
        layout = _lay_out_narrow(title, columns, numeric, width)
    more = []
    more_rows = len(table.frame) - PRINTED_ROWS
    more_columns = len(cells) - len(fitting)
    if more_rows > 0:
        more.append(pluralize(more_rows, "more row"))
    if more_columns > 0:
        more.append(pluralize(more_columns, "more column"))
    lines = []
    if more:
        lines.append(f"{' and '.join(more)} in {file}")
    if directions and "direction" not in columns:
        lines.append(_explain_arrows(directions))
    if table.note:
        lines.append(table.note)
    if lines:
        layout.caption = Text("\n".join(lines))
    return layout


def _columns_that_fit(columns: Mapping[str, Sequence[str]], main: Collection[str], width: int) -> list[str]:
    """Return the main columns, and further ones with values as far as they fit into a width."""
    fitting = [name for name in columns if name in main]
    total = sum(needed_width(name, columns[name]) for name in fitting) - 2
    for name, cells in columns.items():
        needed = needed_width(name, cells)
        is_empty = set(cells) == {DASH}
        if name not in fitting and not is_empty and total + needed <= width:
            fitting.append(name)
            total += needed
    return fitting


def _add_arrows(columns: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Write the direction of each head behind its name, as in `9-5 ←`, if the columns have both."""
    joined = dict(columns)
    has_both = "head" in columns and "direction" in columns
    if not has_both or not {*columns["direction"]} <= {*ARROWS, DASH}:
        return joined
    heads = []
    for head, direction in zip(columns["head"], joined.pop("direction"), strict=True):
        heads.append(f"{head} {ARROWS.get(direction, '')}".rstrip())
    joined["head"] = heads
    return joined


def _explain_arrows(directions: Iterable[str]) -> str:
    """Return the meaning of the arrows of some directions: `Attention: → dependent→head, ← head→dependent`."""
    meanings = [f"{ARROWS[direction]} {direction}" for direction in dict.fromkeys(directions) if direction in ARROWS]
    return f"Attention: {', '.join(sorted(meanings, reverse=True))}"


def _lay_out_narrow(title: str, columns: Mapping[str, list[str]], numeric: Mapping[str, bool], width: int) -> RichTable:
    """Lay out columns at the first level of `_lay_out_columns` that fits into a width, else as blocks of lines."""
    for level in range(1, 5):
        table = _lay_out_columns(title, columns, numeric, width, level)
        if table is not None:
            return table
    return _lay_out_blocks(title, columns)


def _parts(name: str) -> list[str]:
    """Split a heading after its blanks, underscores and dots."""
    return [part.rstrip() for part in re.findall(r"[^\s_.]+[\s_.]*|[\s_.]+", name)]


def needed_width(name: str, cells: Iterable[str]) -> int:
    """Return the width of a column and of the space beside it."""
    return 2 + _width([*_parts(name), *cells])


def _width(texts: Iterable[str]) -> int:
    """Return the width of the longest line."""
    lines = "\n".join(texts).split("\n")
    return max(map(cell_len, lines))


def _lay_out_columns(
    title: str, columns: Mapping[str, list[str]], numeric: Mapping[str, bool], width: int, level: int
) -> RichTable | None:
    """Lay out columns beside each other; return None if they do not fit.

    From level 1 on headings break between their parts, from level 2 on words fold at blanks. From level 3 on intervals
    stand below numbers. At level 4 long names break between their parts.
    """
    headings = {name: name for name in columns}
    if level >= 1:
        headings = {name: "\n".join(_parts(name)) for name in columns}
    if level >= 3:
        columns = _put_intervals_below(columns, numeric)
    if level == 4:
        columns = _break_names(columns, numeric)
    folding = []
    if level >= 2:
        folding = [name for name in columns if not numeric[name] and name not in _UNBROKEN]
    least = {}
    for name, cells in columns.items():
        parts = cells
        if name in folding:
            parts = " ".join(cells).split()
        least[name] = _width([headings[name], *parts])
    spare = width - 2 * (len(columns) - 1) - sum(least.values())
    if spare < 0:
        return None
    table = _table(title, {})
    for name, cells in columns.items():
        # With limits in place of exact widths, rich may crop the last column.
        missing = _width([headings[name], *cells]) - least[name]
        wider = min(missing, spare)
        spare -= wider
        side: Literal["left", "right"] = "right" if numeric[name] else "left"
        no_wrap = name not in folding
        exact = least[name] + wider
        table.add_column(Text(headings[name]), justify=side, overflow="fold", no_wrap=no_wrap, width=exact)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*_cells(*row))
    return table


def _put_intervals_below(columns: Mapping[str, list[str]], numeric: Mapping[str, bool]) -> dict[str, list[str]]:
    """Put the interval of each number on a line below it."""
    lines = dict(columns)
    for name, cells in columns.items():
        if numeric[name]:
            lines[name] = [cell.replace(" [", "\n[", 1) for cell in cells]
    return lines


def _break_names(columns: Mapping[str, list[str]], numeric: Mapping[str, bool]) -> dict[str, list[str]]:
    """Break long names of columns that are no numbers after underscores and dots."""
    lines = dict(columns)
    for name, cells in columns.items():
        if not numeric[name]:
            lines[name] = [_break_name(cell) for cell in cells]
    return lines


def _break_name(name: str) -> str:
    """Break a name after underscores and dots, into lines of at most `_NAME_WIDTH` characters where parts are short.

    A text with a blank is no name, and stays whole: its dots and underscores may be in numbers and addresses.
    """
    if " " in name:
        return name
    lines = [""]
    for part in re.findall(r"[^_.]+[_.]*|[_.]+", name):
        if lines[-1] and cell_len(lines[-1] + part) > _NAME_WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _lay_out_blocks(title: str, columns: Mapping[str, list[str]]) -> RichTable:
    """Lay out a block of lines for each row, a line for each column."""
    table = _table(title, {"column": "left", "value": "left"})
    for row in zip(*columns.values(), strict=True):
        if table.row_count:
            table.add_row()
        for name, cell in zip(columns, row, strict=True):
            table.add_row(*_cells(name, cell))
    return table


def audit_text(audit: Mapping[str, object]) -> str:
    """Format an audit for the terminal, as in `Audit: test: words 25,094, duplicates 106; 24 counts that are 0.`.

    Entries that are 0 are only counted, except the numbers of inputs and of scored items, because a 0 there explains a
    missing score. Files and their checksums are left out. The writer prints `warnings` itself.
    """
    counts = {}
    for name, value in flatten(audit).items():
        is_warning = name.partition(".")[0] == "warnings"
        if not is_warning and not name.endswith((".file", ".sha256")):
            counts[name] = value
    entries = {}
    for name, value in counts.items():
        if str(value) != "0" or _MEASURED.search(name):
            entries[name] = value
    groups: dict[str, list[str]] = {}
    for name, value in list(entries.items())[:PRINTED_ROWS]:
        group, dot, key = name.partition(".")
        heading = f"{group}:" if dot else group
        groups.setdefault(heading, []).append(f"{key} {_entry(value)}".strip())
    parts = [f"{heading} {', '.join(texts)}" for heading, texts in groups.items()]
    if len(entries) > PRINTED_ROWS:
        parts.append(pluralize(len(entries) - PRINTED_ROWS, "other entry", "other entries"))
    if len(counts) > len(entries):
        parts.append(pluralize(len(counts) - len(entries), "count that is 0", "counts that are 0"))
    return f"Audit: {'; '.join(parts)}."


def _table(title: str, columns: Mapping[str, Literal["left", "right"]]) -> RichTable:
    # One rule under the head, two spaces between columns: five columns with intervals fit into 80 characters.
    style: dict[str, Any] = {"box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False, "padding": (0, 1, 0, 0)}
    table = RichTable(title=Text(title, style="bold"), title_justify="left", caption_justify="left", **style)
    for column, side in columns.items():
        # In a narrow terminal cells wrap: the default would cut numbers short.
        table.add_column(Text(column), justify=side, overflow="fold")
    return table


def _cells(*texts: str) -> Iterator[Text]:
    """Yield the texts so that rich does not drop a token such as `[unused1]` as markup."""
    for text in texts:
        yield Text(text)


def _entry(value: object) -> str:
    if isinstance(value, Sized) and not isinstance(value, str) and len(value) > LISTED:
        return f"{len(value)} entries"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def flatten(entries: Mapping[str, object], above: str = "") -> dict[str, object]:
    """Flatten nested mappings into one, with names joined by dots.

    Args:
        entries: The mapping.
        above: Prefix of all names.
    """
    flattened: dict[str, object] = {}
    for name, value in entries.items():
        if isinstance(value, Mapping):
            flattened |= flatten(value, f"{above}{name}.")
        else:
            flattened[f"{above}{name}"] = value
    return flattened


def format_facts(entries: Mapping[str, Any]) -> dict[str, str]:
    """Format the values of nested mappings as text, by names joined with dots; of a list, the first entries."""
    return {name: _format_fact(value) for name, value in flatten(entries).items()}


def _format_fact(value: object) -> str:
    if isinstance(value, float):
        return format_number(value, "ratio", missing=DASH)
    if not isinstance(value, list):
        return str(value)
    text = ", ".join(map(str, value[:SHOWN]))
    if len(value) > SHOWN:
        text += f" and {len(value) - SHOWN} more"
    return text or "none"
