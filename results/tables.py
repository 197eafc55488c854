"""Formats results as tables: for the terminal with rich, for print in LaTeX with the rules of booktabs, in Markdown.

Fractions are shown ×100 with one decimal, other floats with four significant digits. CSV and JSON always have the
numbers as they were computed.

pandas' `to_latex` does not compile for rows that start with a bracket, such as the row of the word `[CLS]`, which LaTeX
takes for an argument of the previous row end, nor for the arrows of the directions.
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
            absent, few = frame[column].isna(), _few_items(table) if column == "n" else []
            cells[column] = [missing if none else str(value) for value, none in zip(frame[column], absent, strict=True)]
            cells[column] = [f"{cell}*" if place in few else cell for place, cell in enumerate(cells[column])]
    return cells


def format_markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown; its cells are written as they are."""
    rows = [table.columns, ["---"] * len(table.columns), *table.to_numpy()]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def lacks_interval(table: Table) -> bool:
    """Return True if a number of the table has no interval, though others of its column may have one."""
    for column, ends in table.intervals().items():
        known = table.frame[column].notna()
        if table.frame.loc[known, list(ends)].isna().any(axis=None):
            return True
    return False


def _few_items(table: Table) -> list[int]:
    """Return the numbers, from 0, of the rows with few items, 1 to `FEW` − 1, by the column `n`; none without shares.

    A row without items is blank, so no number of it needs a star.
    """
    if "n" not in table.frame or not any("fraction" in unit for unit in table.units.values()):
        return []
    items = table.frame["n"].astype(float)
    return np.flatnonzero((items > 0) & (items < FEW)).tolist()


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
    large = abs(value) >= 1000
    text = f"{100 * value:.1f}" if unit == "fraction" else f"{value:,.0f}" if large else f"{value:.4g}"
    return text.removeprefix("-") if text in ("-0", "-0.0") else text


def _p_value(value: float, *, least: bool) -> str:
    """Format a p-value as papers do: `.13`, `< .001`, and `≤ .0099` for the least that the draws could have given."""
    if value < 0.001:
        return "< .001"
    digits = 1 - math.floor(math.log10(float(f"{value:.1e}")))
    text = f"{value:.{digits}f}" if value < 0.995 else "1"
    return ("≤ " if least else "") + text.removeprefix("0")


def _cell(values: Iterable[float], unit: Unit, missing: str) -> str:
    """Format a number, with its interval if that is defined: `54.3 [53.5, 55.1]`; `54.3†` if it has none."""
    first, *bounds = (format_number(value, unit, missing="") for value in values)
    if not first:
        return missing
    if not bounds:
        return first
    return f"{first} [{bounds[0]}, {bounds[1]}]" if all(bounds) else f"{first}{NO_INTERVAL}"


ROWS = 25  # rows of a table, of the scores and of the audit that are printed
LISTED = 5  # longest list that is printed; a longer list is given by its length
SHOWN = 20  # entries of a list that a page shows
_MEASURED = re.compile(r"(^|\.)(inputs|scored)\b")  # names of counts over which scores are averaged
DASH = "–"
NO_INTERVAL = "†"  # behind a number whose interval is left out
WHY_NO_INTERVAL = "no interval: too few units or seeds, equal values, or chosen on these data"
LEGEND = f"Fractions ×100, 95 % intervals in brackets, * < {FEW} items. See docs/glossary.md."
SIGNS: Mapping[str, str] = {"nats": "nats", "bits": "bits"}


def scores_table(title: str, scores: Mapping[str, Estimate]) -> RichTable:
    """Return a table of scores for the terminal, one row per score, with its interval."""
    units = any(score.unit in SIGNS for score in scores.values())
    table = _table(title, {"score": "left", "value": "right", **({"unit": "left"} if units else {})})
    for name, score in scores.items():
        table.add_row(*_cells(name, score_cell(score), *([SIGNS.get(score.unit, "")] if units else [])))
    return table


def main_scores(
    scores: Mapping[str, Estimate], headline: Sequence[str], tables: Mapping[str, Table]
) -> tuple[dict[str, Estimate], int]:
    """Return the scores to print, without those that a main table names in a column `score`.

    Args:
        scores: Scores by name.
        headline: Names of the main scores; if there are none, the first `ROWS` scores are printed.
        tables: Tables by name.

    Returns:
        The scores, and the number of scores that neither they nor a main table have.
    """
    named = {str(score) for table in tables.values() if table.main for score in table.frame.get("score", ())}
    apart = {name: score for name, score in scores.items() if name not in named}
    main = {name: apart[name] for name in headline or list(scores)[:ROWS] if name in apart}
    return main, len(apart) - len(main)


def score_cell(score: Estimate) -> str:
    """Format a score by its unit, with its interval if it has one, and a star if it has few items."""
    ends = () if score.low is None or score.high is None else (score.low, score.high)
    return _cell((score.value, *ends), score.unit, DASH) + "*" * _is_few(score)


def _is_few(score: Estimate) -> bool:
    """Return True for a known share of fewer than `FEW` items."""
    few = score.unit == "fraction" and score.inputs is not None and score.inputs < FEW
    return bool(few) and not math.isnan(score.value)


def list_few(scores: Mapping[str, Estimate], tables: Mapping[str, Table]) -> list[str]:
    """Name the scores of fewer than `FEW` items, and the tables with rows of so few."""
    rows = {name: len(_few_items(table)) for name, table in tables.items()}
    few = [f"{pluralize(number, 'row')} of {name}.csv" for name, number in rows.items() if number]
    return [name for name, score in scores.items() if _is_few(score)] + few


def data_table(title: str, table: Table, file: str, width: int = 80) -> RichTable:
    """Return a table for the terminal, with the first rows of a table of results.

    It has the columns that answer the question of the experiment, `table.main`, the number of items `n`, and further
    columns with values as far as they fit. A caption counts the rows and columns that are left out. If these
    columns are too wide, headings are broken after underscores and dots; then words at blanks, then intervals
    go below their numbers; if that is not enough, every row becomes a block of lines.

    Args:
        title: Title of the table.
        table: Rows and units.
        file: File with all rows and columns, named in the caption.
        width: Width of the terminal in characters.
    """
    cells = format_cells(table, missing=DASH)
    needed = {name: _needed(name, column[:ROWS]) for name, column in cells.items()}
    shown = [name for name in cells if name in (*table.main, "n")]
    for name in cells:
        fits = sum(needed[one] for one in (*shown, name)) - 2 <= width
        if name not in shown and fits and set(cells[name][:ROWS]) != {DASH}:
            shown.append(name)
    columns = {name: column[:ROWS] for name, column in cells.items() if name in shown}
    numeric = {name: pd.api.types.is_numeric_dtype(table.frame[name]) for name in columns}
    layouts = (_beside(title, columns, numeric, width, level) for level in range(4))
    laid_out = next(filter(None, layouts), None) or _stacked(title, columns)
    more = {"row": len(table.frame) - ROWS, "column": len(cells) - len(shown)}
    if left := " and ".join(pluralize(number, f"more {kind}") for kind, number in more.items() if number > 0):
        laid_out.caption = Text(f"{left} in {file}")
    return laid_out


def _parts(name: str) -> list[str]:
    """Split a heading after its blanks, underscores and dots."""
    return [part.rstrip() for part in re.findall(r"[^\s_.]+[\s_.]*|[\s_.]+", name)]


def _needed(name: str, cells: Iterable[str]) -> int:
    """Return the width of a column and of the space beside it."""
    return 2 + _width([*_parts(name), *cells])


def _width(texts: Iterable[str]) -> int:
    """Return the width of the longest line."""
    return max((cell_len(line) for text in texts for line in text.split("\n")), default=0)


def _beside(
    title: str, columns: Mapping[str, list[str]], numeric: Mapping[str, bool], width: int, level: int
) -> RichTable | None:
    """Lay out columns beside each other; None where they do not fit.

    From level 1 on headings break between their parts, from level 2 on words fold at blanks. At level 3 intervals
    stand below numbers.
    """
    heads = {name: "\n".join(_parts(name)) if level else name for name in columns}
    below = {name: [cell.replace(" [", "\n[", 1) for cell in columns[name]] for name in columns if numeric[name]}
    columns = {**columns, **below} if level == 3 else columns
    words = {name: " ".join(column).split() for name, column in columns.items() if level > 1 and not numeric[name]}
    least = {name: _width([heads[name], *words.get(name, column)]) for name, column in columns.items()}
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


def audit_text(audit: Mapping[str, object]) -> str:
    """Format an audit for the terminal, as in `Audit: test: words 25,094, duplicates 106; 24 counts that are 0.`.

    Entries that are 0 are only counted, except the numbers of inputs and of scored items, because a 0 there explains a
    missing score. Files and their checksums are left out. The writer prints `warnings` itself.
    """
    every = flatten({name: value for name, value in audit.items() if name != "warnings"})
    counts = {name: value for name, value in every.items() if not name.endswith((".file", ".sha256"))}
    entries = {name: value for name, value in counts.items() if str(value) != "0" or _MEASURED.search(name)}
    groups: dict[str, list[str]] = {}
    for name, value in list(entries.items())[:ROWS]:
        group, dot, key = name.partition(".")
        groups.setdefault(f"{group}{':' if dot else ''}", []).append(f"{key} {_entry(value)}".strip())
    parts = [f"{group} {', '.join(ones)}" for group, ones in groups.items()]
    more = {"other entry": len(entries) - ROWS, "count that is 0": len(counts) - len(entries)}
    plurals = ("other entries", "counts that are 0")
    parts += [pluralize(n, one, many) for (one, n), many in zip(more.items(), plurals, strict=True) if n > 0]
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
    """Return the texts so that rich does not drop a token such as `[unused1]` as markup."""
    return (Text(text) for text in texts)


def _entry(value: object) -> str:
    if isinstance(value, Sized) and not isinstance(value, str) and len(value) > LISTED:
        return f"{len(value)} entries"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def flatten(entries: Mapping[str, object], above: str = "") -> dict[str, object]:
    """Flatten nested mappings into one, with names joined by dots.

    Args:
        entries: The mapping.
        above: Prefix of all names.
    """
    found: dict[str, object] = {}
    for name, value in entries.items():
        found |= flatten(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return found


def format_facts(entries: Mapping[str, Any]) -> dict[str, str]:
    """Format the values of nested mappings as text, by names joined with dots; of a list, the first entries."""

    def fact(value: object) -> str:
        if isinstance(value, list):
            more = f" and {len(value) - SHOWN} more" if len(value) > SHOWN else ""
            return ", ".join(map(str, value[:SHOWN])) + more or "none"
        return format_number(value, "ratio", missing=DASH) if isinstance(value, float) else str(value)

    return {name: fact(value) for name, value in flatten(entries).items()}


MISSING = "--"
LATEX_ROWS = 40  # most rows of a table on a page
LATEX_COLUMN, LATEX_WIDTH = 60, 112  # letters in a line of a column and of a page of ACL, in `\footnotesize`
NAMED = ("score", "measure", "ranking", "pair")  # columns whose cells are names of this application
_WORDS = "UAS UUAS F1 MCC AUROC AUPRC AUC MSE TVD JSD JS AOPC NAOPC LDS RACU IoU SD MLP Pearson Spearman Holm"
NAMES = {word.lower(): word for word in _WORDS.split()} | {"kendall": "Kendall's τ", "tau": "τ"}
NAMES |= {"input_x_gradient": "gradient × input", "attention_times_gradient": "attention × gradient"}
NAMES |= {"comprehensiveness": "Comp.", "median_fraction": "erased share"}
"""Names of scores and rankings in print, and of words in them; see `printed_name`."""
_NAME = re.compile(rf"(?<![^\W_])({'|'.join(sorted(NAMES, key=len, reverse=True))})(?![^\W_])")
_DOT = re.compile(r"(?<=\w)\.(?=[^\W\d])|(?<=[^\W\d])\.(?=\w)")  # between two words, not between digits

_TEXT = {"~": "asciitilde", "^": "asciicircum", "\\": "backslash", "–": "endash", "—": "emdash"}
# TeX's default font encoding has other characters at these places.
_TEXT |= {"<": "less", ">": "greater", "|": "bar", '"': "quotedbl"}
# Signs in names and labels of this application that pdflatex does not know.
_MATH = {"→": "rightarrow", "←": "leftarrow", "↔": "leftrightarrow", "×": "times", "≤": "leq", "≥": "geq"}
_MATH |= {"α": "alpha", "τ": "tau", "ρ": "rho", "Δ": "Delta", "↑": "uparrow", "↓": "downarrow"}
_SIGNS = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {sign: rf"\text{name}{{}}" for sign, name in _TEXT.items()}
    | {sign: rf"$\{name}$" for sign, name in _MATH.items()}
    | {"−": "$-$", "…": r"\ldots{}"}
)
_NUMERIC = str.maketrans({"-": "$-$", "<": "$<$", "≤": r"$\leq$", "*": r"\rlap{*}", NO_INTERVAL: r"\rlap{$^\dagger$}"})


def printed_name(name: str) -> str:
    """Return a name in print: `max_jsd` is `max JSD`. Names that `NAMES` lacks have blanks in place of underscores."""
    return _NAME.sub(lambda found: NAMES[found[0]], name).replace("_", " ")


def latex_table(table: Table, experiment: str, name: str, title: str) -> str | None:
    r"""Format a table as a `table` of LaTeX, to be included with `\input`.

    It has a caption and the label `tab:<experiment>-<name>`. Columns without values are left out, and columns that
    do not fit on a page, see `_fitted`; a comment names them. Rows without values and rows after the first
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
    numbers = [column for column in table.main or table.frame if column in table.units] or list(table.frame)
    known = np.flatnonzero(table.frame[numbers].notna().any(axis="columns")).tolist()
    if not known or (len(known) > LATEX_ROWS and not table.main):
        return None
    left = {"without values": len(table.frame) - len(known), "below these": len(known) - LATEX_ROWS}
    table = table.rows(known[:LATEX_ROWS])
    cells = {column: texts for column, texts in format_cells(table, missing="").items() if any(texts)}
    if table.main and "score" not in table.main:
        cells.pop("score", None)  # names in results.json
    columns, width = _fitted(table, cells)
    more = ", ".join(column for column in cells if column not in columns)
    star = "*" * (width > LATEX_COLUMN)  # over both columns
    sides = ["r" if pd.api.types.is_numeric_dtype(table.frame[column]) else "l" for column in columns]
    printed = [_latex_cells(column, cells[column], side) for column, side in zip(columns, sides, strict=True)]
    lines = [
        rf"% {' '.join(f'{experiment}: {name}'.split())}; requires \usepackage{{booktabs,graphicx}}",
        *([f"% without the columns {more} of {name}.csv"] if more else []),
        rf"\begin{{table{star}}}[t]",
        r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{''.join(sides)}}}",
        r"\toprule",
        _row(map(_heading, columns, sides)),
        r"\midrule",
        *map(_row, zip(*printed, strict=True)),
        r"\bottomrule",
        r"\end{tabular}}",
        rf"\caption{{{_caption(table, columns, title, left)}}}",
        rf"\label{{tab:{experiment}-{name}}}",
        rf"\end{{table{star}}}",
    ]
    return "\n".join([*lines, ""])


def _fitted(table: Table, cells: Mapping[str, Sequence[str]]) -> tuple[list[str], int]:
    """Return the columns that fit on a page, and their width in letters.

    Columns that answer come first and are never left out: `Table.main`, or names of the rows if it is empty; numbers
    of items; p-values, and values and differences with intervals beside them.
    """
    names = takewhile(lambda column: not pd.api.types.is_numeric_dtype(table.frame[column]), cells)
    main = {*(table.main or names), table.interval, "n"}
    if tested := _tested(table):
        main |= {*tested, *table.intervals()}
    columns = sorted(cells, key=lambda column: column not in main)
    widths = {column: _needed(column, cells[column]) for column in columns}
    while sum(widths.values()) > LATEX_WIDTH and columns[-1] not in main and columns[1:]:
        widths.pop(columns.pop())
    return columns, sum(widths.values())


def _tested(table: Table) -> list[str]:
    """Return the columns of p-values."""
    return [column for column, units in table.unit_rows().items() if {"p", "least_p"} & {*units}]


def _latex_cells(column: str, cells: Iterable[str], side: str) -> list[str]:
    """Return the LaTeX of the cells of a column; on the right side are numbers, their intervals in small print."""
    if side == "l":
        return [(_words if column in NAMED else escape)(cell) or MISSING for cell in cells]
    return [re.sub(r"\[.*\]", r"{\\scriptsize \g<0>}", _numeric(cell)) or MISSING for cell in cells]


def _caption(table: Table, columns: Collection[str], title: str, left: Mapping[str, int]) -> str:
    """Return the text of a caption: the title, what stands in the columns, and the numbers of rows left out."""
    notes = [r"fractions are $\times$100"] if any("fraction" in unit for unit in table.units.values()) else []
    for sign in SIGNS:
        if of_sign := [_words(column) for column in columns if table.units.get(column) == sign]:
            notes.append(f"{', '.join(of_sign)} in {sign}")
    notes += [r"95\,\% intervals in brackets"] if table.intervals().keys() & {*columns} else []
    tested = [column for column in columns if column in _tested(table)]
    if tested:
        notes.append("$p$ from sign flips or permutations")
    if any(column in table.intervals() for column in columns) and lacks_interval(table):
        notes.append(rf"$^\dagger$\,{WHY_NO_INTERVAL}")
    notes += ["Holm: corrected for multiple tests"] if any("holm" in column for column in tested) else []
    notes += [rf"*\,is fewer than {FEW} items"] if _few_items(table) else []
    notes += [f"{pluralize(number, 'row')} {which} left out" for which, number in left.items() if number > 0]
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in (escape(title), "; ".join(notes)) if text)


def _heading(name: str, side: str) -> str:
    """Return the heading of a column, one word below the other; signs and brackets stay beside the word before."""
    lines = re.sub(r" (?![$\[*])", r"\\\\", _words(name))
    return rf"\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}{lines}\end{{tabular}}" if r"\\" in lines else lines


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


def _numeric(text: str) -> str:
    """Return the LaTeX of a number, with thousands separated."""
    text = re.sub(r"(?<![\d.])\d{4,}(?![\d.])", lambda digits: f"{int(digits[0]):,}", text.translate(_NUMERIC))
    return re.sub(r"e\$-\$0*(\d+)", r"${}\\times 10^{-\1}$", text)


def _row(cells: Iterable[str]) -> str:
    row = " & ".join(cells)
    # LaTeX would read these as an argument of the row end or rule before the row.
    return rf"{'{}' if row.startswith(('[', '*')) else ''}{row} \\"
