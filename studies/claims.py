"""Check of what the papers' pages say against their own tables: the function `faults_of`.

studies/claims.yaml registers every passage of docs/papers with one of the words `all`, `every`, `no`, `none`, `only`
and `half`. An entry has claims about a table of the page, which are compared with its numbers, or a reason why the
passage is no such claim. An interval in the text must stand in a table of the page or in docs/papers/index.json, or
be registered with a reason.
"""

import operator
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

from attention_probing.results import UserError
from attention_probing.results.settings import parse_mapping, read_yaml

CLAIMS = Path(__file__).resolve().parent / "claims.yaml"

_WORDS = re.compile(r"(?<![\w-])(all|every|no|none|only|half)(?![\w-])", re.IGNORECASE)
_NUMBER = r"[−+-]?(?:\d{1,3}(?:,\d{3})+|\d*\.\d+|\d+)"
_ENDS = rf"\[({_NUMBER}), ({_NUMBER})\]"
_INTERVAL = re.compile(rf"(?:(?<![\w.-])({_NUMBER})[^\d\[\]]{{0,40}})?{_ENDS}")
_CODE = re.compile(r"`[^`]*`")
_SEPARATOR = re.compile(r"\|[ :|-]+\|")

COMPARISONS = {">": operator.gt, "<": operator.lt, "≥": operator.ge, "≤": operator.le, "=": operator.eq}
Comparison = Literal[">", "<", "≥", "≤", "="]
Quantifier = Literal["all", "none", "only", "half"]
Part = Literal["value", "low", "high", "share", "marked"]
Rows = dict[str, str | list[str]]
"""Cells that rows must have, by header of the column."""
Interval = Sequence[float | None]
"""Value, low and high end; None for one that is not given."""


@dataclass(frozen=True)
class Other:
    """Cell that others are compared with.

    Attributes:
        column: Header of its column; empty for the column of the cell that is compared.
        rows: Cells that its row must have, and no other row; empty for the row of the cell that is compared.
        part: Part of the cell.
        times: Factor of its number.
    """

    column: str = ""
    rows: Rows = field(default_factory=dict)
    part: Part = "value"
    times: float = 1.0


@dataclass(frozen=True)
class Claim:
    """Statement about cells of one table. Cells without a number are left out.

    Attributes:
        table: Number of the table on its page, from 1.
        columns: Headers of the columns. The second column `p` is `p (2)`. A blank cell of the first column has the
            text of the cell above.
        compare: Sign of the comparison.
        than: Number or cell on the other side.
        quantifier: `all` cells fulfil the comparison, or `none`, or at least `half` of them, or `only` they among the
            rows of `among`.
        rows: Cells that the compared rows must have; empty for all rows.
        without: Cells of rows that are left out.
        among: Cells of the rows of `only`; empty for all rows.
        part: Part of the cell: its first number (`value`), the `low` or `high` end of its interval, the first number in
            parentheses (`share`), or 1 if it has an asterisk, else 0 (`marked`).
    """

    table: int
    columns: list[str]
    compare: Comparison
    than: float | dict[str, Any]
    quantifier: Quantifier = "all"
    rows: Rows = field(default_factory=dict)
    without: Rows = field(default_factory=dict)
    among: Rows = field(default_factory=dict)
    part: Part = "value"


@dataclass(frozen=True)
class Passage:
    """Registered passage of a page.

    Attributes:
        says: Its words, which stand in one place of the page.
        claims: Statements of these words about the tables.
        why: Reason why they, or an interval in them, cannot be compared with a table.
    """

    says: str
    claims: list[dict[str, Any]] = field(default_factory=list)
    why: str = ""


@dataclass(frozen=True)
class Table:
    """Table of a page: its headers, and the text of its cells by header, for each row."""

    headers: list[str]
    rows: list[dict[str, str]]

    def select(self, rows: Rows) -> list[dict[str, str]]:
        """Return the rows that have one of the given cells in each given column, all if none is given.

        Raises:
            UserError: A column is not there, or a given cell is in no row.
        """
        selected = self.rows
        for header, cells in rows.items():
            self.check(header)
            wanted = [cells] if isinstance(cells, str) else cells
            column = [row[header] for row in self.rows]
            for cell in wanted:
                if cell not in column:
                    raise UserError(f"no row has {cell!r} in the column {header!r}")
            selected = [row for row in selected if row[header] in wanted]
        return selected

    def check(self, header: str) -> None:
        """Raise an error if there is no such column.

        Raises:
            UserError: The column is not there.
        """
        if header not in self.headers:
            raise UserError(f"the table has no column {header!r}. Columns are {', '.join(self.headers)}")


def read_claims(path: Path) -> dict[str, list[Passage]]:
    """Read the registered passages by the name of their page.

    Raises:
        SettingsError: The file cannot be read, or an entry has a missing, unknown, empty or mistyped value.
        UserError: An entry has neither claims nor a reason.
    """
    content = read_yaml(path)
    if not isinstance(content, Mapping):
        raise UserError(f"{path} must be a mapping from names of pages to lists of passages")
    found: dict[str, list[Passage]] = {}
    for page, entries in content.items():
        found[page] = []
        for entry in entries:
            where = f"{path}: {page}: {entry.get('says')!r}"
            passage = parse_mapping(Passage, entry, where)
            if not passage.claims and not passage.why:
                raise UserError(f"{where}: give `claims`, or `why` it is no claim about a table")
            found[page].append(passage)
    return found


def number_of(text: str) -> float:
    """Return the value of a number as the pages print it, such as −.5 or 1,829."""
    return float(text.replace("−", "-").replace(",", ""))


def part_of(cell: str, part: Part) -> float | None:
    """Return a part of a cell, None if the cell has no number.

    Raises:
        UserError: The cell has a number, but not this part.
    """
    if part == "marked":
        return float("*" in cell)
    ends = re.search(_ENDS, cell)
    share = re.search(rf"\(({_NUMBER})", cell)
    first = re.search(_NUMBER, cell)
    if first is None:
        return None
    if part == "value":
        return number_of(first[0])
    if part == "share" and share:
        return number_of(share[1])
    if part in ("low", "high") and ends:
        return number_of(ends[1] if part == "low" else ends[2])
    raise UserError(f"the cell {cell!r} has no {part}")


def blocks_of(page: str) -> list[list[str]]:
    """Return the blocks of a page between blank lines, as lists of lines, without code."""
    text = re.sub(r"^ *```.*?^ *```", "", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(?: {4}|\t).*", "", text, flags=re.MULTILINE)
    return [block.strip("\n").split("\n") for block in re.split(r"\n\s*\n", text) if block.strip()]


def tables_of(page: str) -> list[Table]:
    """Return the tables of a page."""
    tables = []
    for block in blocks_of(page):
        if len(block) < 2 or not _is_separator(block[1]):
            continue
        headers = _number_headers(_cells(block[0]))
        first = headers[0]
        rows: list[dict[str, str]] = []
        for line in block[2:]:
            row = dict(zip(headers, _cells(line), strict=True))
            if not row[first] and rows:
                row[first] = rows[-1][first]
            rows.append(row)
        tables.append(Table(headers, rows))
    return tables


def _is_separator(line: str) -> bool:
    """Return True for the line between the headers and the rows of a table."""
    return _SEPARATOR.fullmatch(line.strip()) is not None


def _number_headers(names: Sequence[str]) -> list[str]:
    """Return headers of columns, the second `p` as `p (2)`; blank ones stay as they are."""
    headers = []
    times: Counter[str] = Counter()
    for name in names:
        stem = name.partition(" (")[0]
        number = 1 + times[name] if name else 1
        headers.append(name if number == 1 else f"{name} ({number})")
        times[stem] += 1
    return headers


def _cells(line: str) -> list[str]:
    """Return the text of the cells of a line of a table, without the marks of code."""
    inside = line.strip().removeprefix("|").removesuffix("|")
    return [re.sub(r"[`\\]", "", cell).strip() for cell in re.split(r"(?<!\\)\|", inside)]


def prose_of(page: str) -> list[str]:
    """Return the paragraphs and the items of lists of a page, each in one line."""
    paragraphs = []
    for block in blocks_of(page):
        if any(_is_separator(line) for line in block):
            continue
        lines = [line for line in block if not line.startswith(("#", "!["))]
        for item in re.split(r"\n(?=\s*(?:-|\d+\.) )", "\n".join(lines)):
            text = " ".join(item.split())
            paragraphs.append(re.sub(r"^(-|\d+\.) ", "", text))
    return paragraphs


def fault_of_claim(claim: Claim, tables: Sequence[Table]) -> str:
    """Return how a claim differs from the tables of its page, an empty string if it holds.

    Raises:
        UserError: The claim names a table, a column, a row or a part of a cell that is not there.
    """
    if not 1 <= claim.table <= len(tables):
        raise UserError(f"the page has {len(tables)} tables, not {claim.table}")
    table = tables[claim.table - 1]
    dropped = table.select(claim.without) if claim.without else []
    rows = [row for row in table.select(claim.rows) if row not in dropped]
    fulfilled, others = _compare_cells(claim, table, rows)
    if not fulfilled and not others:
        raise UserError("no cell that is compared has a number")
    if claim.quantifier == "none":
        return f"fulfilled by {fulfilled}" if fulfilled else ""
    if claim.quantifier == "half":
        return f"not fulfilled by {others}" if len(others) > len(fulfilled) else ""
    if claim.quantifier == "only":
        rest = [row for row in table.select(claim.among) if row not in rows and row not in dropped]
        also, _ = _compare_cells(claim, table, rest)
        if also:
            return f"also fulfilled by {also}"
    return f"not fulfilled by {others}" if others else ""


def _compare_cells(claim: Claim, table: Table, rows: Sequence[dict[str, str]]) -> tuple[list[str], list[str]]:
    """Return the text of the cells of a claim that fulfil its comparison, and of those that do not.

    Cells without a number are left out.
    """
    compare = COMPARISONS[claim.compare]
    fulfilled = []
    others = []
    for row in rows:
        for column in claim.columns:
            table.check(column)
            ours = part_of(row[column], claim.part)
            theirs = _other_number(claim, table, row, column)
            if ours is None or theirs is None:
                continue
            if compare(ours, theirs):
                fulfilled.append(row[column])
            else:
                others.append(row[column])
    return fulfilled, others


def _other_number(claim: Claim, table: Table, row: dict[str, str], column: str) -> float | None:
    """Return the number that a cell is compared with, None if the other cell has none."""
    if not isinstance(claim.than, Mapping):
        return claim.than
    other = parse_mapping(Other, claim.than, "`than`")
    table.check(other.column or column)
    if other.rows:
        chosen = table.select(other.rows)
        if len(chosen) != 1:
            raise UserError(f"`than` names {len(chosen)} rows instead of one")
        row = chosen[0]
    number = part_of(row[other.column or column], other.part)
    return None if number is None else other.times * number


def faults_of(page: str, passages: Sequence[Passage], kept: Sequence[Interval] = ()) -> list[str]:
    """Return messages about a page and its registered passages; none if all claims hold.

    Args:
        page: Text of the page.
        passages: Its registered passages.
        kept: Numbers of docs/papers/index.json, each with the ends of its interval; fractions are in 0–1.
    """
    prose = prose_of(page)
    tables = tables_of(page)
    faults = []
    separators = 0
    for block in blocks_of(page):
        separators += sum(_is_separator(line) for line in block)
    if separators > len(tables):
        faults.append("a table has no blank line before it, so it is shown as text")
    for passage in passages:
        faults += _faults_of_passage(passage, prose, tables)
    known = _intervals_in(tables)
    for text in prose:
        faults += _unregistered(text, passages)
        faults += _foreign_intervals(text, passages, known, kept)
    return faults


def _faults_of_passage(passage: Passage, prose: Sequence[str], tables: Sequence[Table]) -> Iterator[str]:
    """Yield a message if a registered passage is not in one place, and for each of its claims that does not hold."""
    times = sum(text.count(passage.says) for text in prose)
    if times != 1:
        yield f"registered, but {times} times on the page: {passage.says}"
    for entry in passage.claims:
        try:
            fault = fault_of_claim(parse_mapping(Claim, entry, "claim"), tables)
        except UserError as error:
            fault = str(error)
        if fault:
            yield f"{passage.says}: {entry}: {fault}"


def _within(start: int, end: int, text: str, passages: Sequence[Passage]) -> bool:
    """Return True if a part of a text lies within one of the passages."""
    for passage in passages:
        place = text.find(passage.says)
        if 0 <= place <= start and end <= place + len(passage.says):
            return True
    return False


def _unregistered(text: str, passages: Sequence[Passage]) -> Iterator[str]:
    """Yield the quantifiers of a paragraph that no registered passage has. Code is left out."""
    plain = _CODE.sub(lambda code: " " * len(code[0]), text)
    for word in _WORDS.finditer(plain):
        if not _within(*word.span(), text, passages):
            yield f"not registered: … {text[max(0, word.start() - 60) : word.end() + 60]} …"


def _intervals_in(tables: Sequence[Table]) -> list[list[float | None]]:
    """Return value, low and high end of each interval in the cells of tables; the value is None if there is none."""
    intervals = []
    for table in tables:
        for row in table.rows:
            for cell in row.values():
                for match in _INTERVAL.finditer(cell):
                    intervals.append([None if text is None else number_of(text) for text in match.groups()])
    return intervals


def _foreign_intervals(
    text: str, passages: Sequence[Passage], known: Sequence[Interval], kept: Sequence[Interval]
) -> Iterator[str]:
    """Yield the intervals of a paragraph that are in no table, not kept, and not registered with a reason.

    Args:
        text: The paragraph.
        passages: Registered passages of its page.
        known: Intervals of the tables of the page, as printed.
        kept: Intervals of docs/papers/index.json, whose fractions are printed as percentages.
    """
    explained = [passage for passage in passages if passage.why]
    for interval in _INTERVAL.finditer(text):
        printed = interval.groups()
        if _is_one_of(printed, known, scales=(1, -1)) or _is_one_of(printed, kept, scales=(1, -1, 100, -100)):
            continue
        if not _within(*interval.span(), text, explained):
            yield f"in no table and not kept: {interval[0]}"


def _is_one_of(printed: Sequence[str | None], intervals: Sequence[Interval], scales: Sequence[int]) -> bool:
    """Return True if a printed interval is one of some intervals times one of some scales."""
    return any(_is_printed_as(printed, interval, scale) for interval, scale in product(intervals, scales))


def _is_printed_as(printed: Sequence[str | None], interval: Interval, scale: int) -> bool:
    """Return True if a printed interval, with its value or without, is another times a scale, rounded to its digits."""
    value, low, high = interval
    if scale < 0:
        low, high = high, low
    for text, number in zip(printed, (value, low, high), strict=True):
        if text is None:
            continue
        digits = len(text.partition(".")[2])
        if number is None or abs(number_of(text) - scale * number) > 0.5 * 10**-digits + 1e-9:
            return False
    return True
