"""Labelled texts from TSV, CSV and JSONL files, validated record by record.

TSV has no quoting: a double quote is text, as in the files of GLUE. CSV is that of RFC 4180. JSONL: one object a line.
"""

import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from corpora.lines import format_of, numbered_lines
from corpora.sentence import CorpusError
from results.errors import check_values

Format = Literal["tsv", "csv", "jsonl"]
Record = tuple[int, Mapping[str, object]]  # line at which it starts, and its values by the fields of `Columns`

_SUFFIXES: dict[str, Format] = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl"}
_OPTION = "--data.init_args"
_SHOWN = 40  # characters of a foreign column name in a message
_LONGEST_FIELD = 2**31 - 1  # of CSV; the library's own limit of 131,072 characters is less than a long document
_SEPARATED = {
    "tsv": "Write one tab between two fields, and a blank for a tab or a line end inside a text",
    "csv": "Put a text that holds commas, quotes or line ends in double quotes, and double the quotes inside",
}
_PLACE = re.compile("[0-9]{1,9}")
_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")  # JSON can escape them
_KINDS = {dict: "an object", list: "a list", type(None): "null", bool: "true or false", int: "a number"}


@dataclass(frozen=True, slots=True)
class LabelledText:
    """One text with its label.

    Attributes:
        id: What the id column says, else the number of the line; unique within the file.
        text: The text, not empty, without white space at its ends.
        label: The label, not empty, likewise; empty where the file has no labels.
        line: The line of the file at which the record starts, counted from 1.
        pair: The second sentence of a pair, as `text`.
        rationale: Places, counted from 0 and ascending, of those words of `text` that decide the label; words are what
            stands between white space. Empty where none decides; None where the corpus does not say.
    """

    id: str
    text: str
    label: str
    line: int
    pair: str | None = None
    rationale: tuple[int, ...] | None = None


@dataclass(frozen=True)
class LabelledTexts:
    """The texts of one file in their order, at least one, and the reader's counts.

    The `audit` counts `texts` that are kept, `duplicates` whose text and pair repeat those of an earlier one,
    `conflicting` duplicates whose label is not that of the first, and records that were skipped: `empty` ones, and
    where they are left out `malformed` ones.
    """

    texts: tuple[LabelledText, ...]
    audit: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Columns:
    """The columns of a file by their names or, of a table without header, by their numbers from 1; None: there is none.

    A `rationale` holds the places of the deciding words, from 0, with white space between.
    """

    text: str = "text"
    label: str | None = "label"
    pair: str | None = None
    id: str | None = None
    rationale: str | None = None

    def __post_init__(self) -> None:
        check_values(self, **vars(self))


def read_labelled(
    path: Path,
    *,
    columns: Columns = Columns(),
    format: Format | None = None,
    header: bool = True,
    empty: Literal["error", "skip"] = "error",
    malformed: Literal["error", "skip"] = "error",
) -> LabelledTexts:
    """Read the labelled texts of a TSV, CSV or JSONL file, and count what was skipped or unusual.

    Blank lines between records are no records. White space at the ends of texts, pairs, labels and ids is dropped. In
    JSONL a label or an id may be a string, an integer or, for a label, true or false; a rationale may be a list of
    integers, or null where nobody has marked one. Accepted: CRLF line ends, a byte-order mark.

    Args:
        path: The file, in UTF-8.
        columns: Which columns to read; the others are ignored.
        format: None takes it from the suffix.
        header: Whether the first record of a TSV or CSV file names the columns; without, `columns` has their numbers.
        empty: What becomes of a record whose text or pair is empty.
        malformed: What becomes of a record of a TSV or CSV file with more or fewer fields than the first.

    Raises:
        CorpusError: The file is missing, empty, in another encoding, malformed, lacks a column, or has an empty label,
            an id twice, or a rationale outside its text; the message names file, line and remedy.
        UserError: There is no such value.
    """
    path = Path(path)
    check_values(read_labelled, format=format, empty=empty, malformed=malformed)
    wanted = _wanted(columns)
    audit = dict.fromkeys(("texts", "duplicates", "conflicting", "empty"), 0)
    texts: list[LabelledText] = []
    labels: dict[tuple[str, str | None], str] = {}  # of the first of equal texts
    lines: dict[str, int] = {}  # of the ids
    left_out = Counter[str](malformed=0) if malformed == "skip" else None
    for found in labelled_texts(path, columns=columns, format=format, header=header, left_out=left_out):
        line = found.line
        if not found.text or found.pair == "":
            if empty == "error":
                field = "pair" if found.text else "text"
                wrong = f"the {field} (column {wanted[field]!r}) is empty"
                raise CorpusError.at(path, line, wrong, f"Fill or remove it, or leave it out by `{_OPTION}.empty skip`")
            audit["empty"] += 1
            continue
        if found.id in lines:
            wrong = f"the id {found.id!r} is that of line {lines[found.id]} too"
            raise CorpusError.at(path, line, wrong, f"Name a column of unique ids with `{_OPTION}.columns.id`, or none")
        lines[found.id] = line
        first = labels.setdefault((found.text, found.pair), found.label)
        audit["conflicting"] += first != found.label
        texts.append(found)
    if not texts:
        raise CorpusError.at(path, None, "the file holds no text", "Check that it is the file you meant")
    audit |= {"texts": len(texts), "duplicates": len(texts) - len(labels), **(left_out or {})}
    return LabelledTexts(tuple(texts), audit)


def labelled_texts(
    path: Path,
    *,
    columns: Columns = Columns(),
    format: Format | None = None,
    header: bool = True,
    option: str = _OPTION,
    left_out: Counter[str] | None = None,
) -> Iterator[LabelledText]:
    """Yield the texts of a file as they are read, empty ones too, and keep none of them.

    Arguments and errors are those of `read_labelled`; ids may come twice, and there may be no text. In messages
    `option` is what holds the options `columns`, `format` and `header`. Records with more or fewer fields than the
    first are left out and counted as `malformed` in `left_out`; without it they are an error.
    """
    form = format or format_of(path, _SUFFIXES, f"`{option}.format`")
    wanted = _wanted(columns)
    records = (
        _objects(path, wanted, option) if form == "jsonl" else _table(path, form, wanted, header, option, left_out)
    )
    return (_text(path, line, values, wanted) for line, values in records)


def _wanted(columns: Columns) -> dict[str, str]:
    return {field: name for field, name in asdict(columns).items() if name is not None}


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that has any."""
    number = 0
    for number, line in numbered_lines(path):
        yield number, line
    if not number:
        raise CorpusError.at(path, None, "the file is empty", "Check that it is the file you meant")


def _objects(path: Path, wanted: Mapping[str, str], option: str) -> Iterator[Record]:
    """Yield the records of a JSONL file."""
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorpusError.at(path, number, f"this is no JSON ({error})", "Write one object a line") from None
        if not isinstance(found, dict):
            raise CorpusError.at(path, number, f"this is {_kind(found)}, not an object", "Write one object a line")
        for field, name in wanted.items():
            if name not in found:
                raise _no_column(path, number, f"the object has no key {name!r}", field, found, option)
        yield number, {field: found[name] for field, name in wanted.items()}


def _table(
    path: Path,
    form: Literal["tsv", "csv"],
    wanted: Mapping[str, str],
    header: bool,
    option: str,
    left_out: Counter[str] | None,
) -> Iterator[Record]:
    """Yield the records of a TSV or CSV file."""
    places: dict[str, int] = {}
    width = 0
    rows = _comma_rows(path) if form == "csv" else ((number, line.split("\t")) for number, line in _lines(path))
    for number, row in rows:
        if len(row) < 2 and not "".join(row).strip():
            continue
        if not places:
            width = len(row)
            places = _places(path, number, row, wanted, header, option)
            if header:
                continue
        if len(row) != width:
            if left_out is not None:
                left_out["malformed"] += 1
                continue
            wrong = f"the record has {len(row)} field{'s' * (len(row) != 1)} instead of {width}"
            raise CorpusError.at(path, number, wrong, _SEPARATED[form])
        yield number, {field: row[place] for field, place in places.items()}


def _comma_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file, each with the line at which it starts; one may go over several lines."""
    rows = csv.reader((f"{line}\n" for _, line in _lines(path)), strict=True)
    while True:
        start = rows.line_num + 1
        limit = csv.field_size_limit(_LONGEST_FIELD)  # of the whole process: lifted for one row at a time
        try:
            row = next(rows, None)
        except csv.Error as error:
            wrong = f"the record that starts here is no CSV ({error})"
            raise CorpusError.at(path, start, wrong, _SEPARATED["csv"]) from None
        finally:
            csv.field_size_limit(limit)
        if row is None:
            return
        yield start, row


def _places(
    path: Path, number: int, first: list[str], wanted: Mapping[str, str], header: bool, option: str
) -> dict[str, int]:
    """Return the place of each wanted column in a row, from the first row."""
    names = [name.strip() for name in first] if header else [str(place) for place in range(1, len(first) + 1)]
    for field, name in wanted.items():
        if name not in names and header:
            wrong = f"the header has no column {name!r}"
            raise _no_column(path, number, wrong, field, names, option, may_lack_header=True)
        if name not in names:
            wrong = f"without a header columns have numbers, and there is no column {name!r}"
            raise _no_column(path, number, wrong, field, names, option)
        if names.count(name) > 1:
            raise CorpusError.at(path, number, f"the header has two columns {name!r}", "Give one of them another name")
    return {field: names.index(name) for field, name in wanted.items()}


def _no_column(
    path: Path, number: int, wrong: str, field: str, names: Iterable[str], option: str, *, may_lack_header: bool = False
) -> CorpusError:
    shown = ", ".join(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…" for name in names)
    remedy = f"Name one of them with `{option}.columns.{field}`"
    if may_lack_header:
        remedy += f"; if the file has no header, set `{option}.header false` and number the columns from 1"
    return CorpusError.at(path, number, f"{wrong}; there are {shown or 'none'}", remedy)


def _text(path: Path, line: int, values: Mapping[str, object], wanted: Mapping[str, str]) -> LabelledText:
    """Check the values of one record; its text or pair may still be empty."""

    def string(field: str, *others: type) -> str:
        value = values[field]
        if isinstance(value, others):
            value = json.dumps(value)
        if not isinstance(value, str):
            wrong = f"the {field} (column {wanted[field]!r}) is {_kind(value)}"
            raise CorpusError.at(path, line, wrong, "Write a string")
        if _NO_CHARACTER.search(value):
            wrong = f"the {field} (column {wanted[field]!r}) holds what is no character"
            raise CorpusError.at(path, line, wrong, "Remove NUL and half surrogate pairs from it")
        return value.strip()

    text, label = string("text"), sys.intern(string("label", bool, int)) if "label" in values else ""
    name = string("id", int) if "id" in values else str(line)
    for field, value in (("label", label), ("id", name)):
        if not value and field in values:
            raise CorpusError.at(path, line, f"the {field} (column {wanted[field]!r}) is empty", "Fill it")
    rationale = _rationale(path, line, values["rationale"], len(text.split())) if "rationale" in values else None
    return LabelledText(name, text, label, line, string("pair") if "pair" in values else None, rationale)


def _rationale(path: Path, line: int, value: object, words: int) -> tuple[int, ...] | None:
    """Return the places of the deciding words, of which the text has `words`."""
    if value is None:  # JSON's null
        return None
    given = value.split() if isinstance(value, str) else value if isinstance(value, list) else [value]
    places: set[int] = set()
    for place in given:
        if not (type(place) is int or (isinstance(place, str) and _PLACE.fullmatch(place))):
            wrong = f"the rationale holds {place!r}, which is no place of a word"
            raise CorpusError.at(path, line, wrong, "Write places counted from 0 with blanks between")
        if not 0 <= int(place) < words:
            wrong = f"the rationale names word {place} of a text of {words} words"
            raise CorpusError.at(path, line, wrong, "Count the words between white space from 0")
        places.add(int(place))
    return tuple(sorted(places))


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "a number" if isinstance(value, float) else "a string")
