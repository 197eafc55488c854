"""Records of TSV, CSV and JSONL files: numbered rows and objects, and counts of those that may be read wrongly.

In TSV there is no quoting: a double quote is text, as in the files of GLUE. CSV follows RFC 4180, except that blanks
after a comma are dropped, so that a quote behind them encloses a field. JSONL has one object a line.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from attention_probing.corpora.lines import BYTE_ORDER_MARK, LONGEST_LINE, read_lines
from attention_probing.corpora.registry import CORPORA
from attention_probing.corpora.sentence import CorpusError
from attention_probing.results.errors import pluralize
from attention_probing.results.progress import warn

RecordFormat = Literal["tsv", "csv", "jsonl"]

_SEPARATED = {
    "tsv": "Separate fields by exactly one tab; replace tabs and line breaks inside a text by spaces",
    "csv": "Enclose a text with commas, quotes or line breaks in double quotes, and double the quotes inside",
}
_QUOTED = re.compile(r'"(?:[^"]|(""))*"')  # a field of CSV that had to be quoted; the group is a quote inside
# A field of CSV whose quotes are read as text. A quoted text may begin with a line break, and end in a quotation.
_BEHIND_SPACE = re.compile(r'[^\S\n]+".*"\s*', re.DOTALL)
# Soft hyphens, marks of direction and of byte order, and others without a width. A joiner is one between other letters
# than ASCII's, where Persian and emoji need it.
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]"
    "|(?<![^\\x00-\\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\\x00-\\x7f])"
)
JSON_KINDS: Mapping[type, str] = {
    dict: "an object",
    list: "a list",
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a decimal number",
    str: "a string",
}
"""Name of each type of JSON, for messages."""


def is_quoted(*fields: str | None) -> bool:
    """Return True if a record is quoted as in CSV, with quotes that were read as text.

    That is a record with a quoted field that has doubled quotes inside, or with several fields, all quoted.

    TSV is read without quoting; a CSV file may have been quoted twice.
    """
    matches = [_QUOTED.fullmatch(field) for field in fields if field]
    has_doubled_quotes = any(match is not None and match[1] for match in matches)
    all_quoted = len(matches) > 1 and None not in matches
    return has_doubled_quotes or all_quoted


def count_doubtful(
    audit: Counter[str], form: Literal["tsv", "csv"], line: int, row: Sequence[str], texts: Sequence[str]
) -> None:
    """Count a record of a table if it may have been read otherwise than it was meant.

    Args:
        audit: Receives the counts `quoted_texts`, `multiline_records`, `longest_record_lines` and
            `longest_record_line`, see `LabelledTexts`.
        form: `tsv` or `csv`.
        line: Line at which the record starts.
        row: All fields of the record.
        texts: The fields that are read as texts or labels, as they are in the file.
    """
    behind_space = form == "csv" and any(map(_BEHIND_SPACE.fullmatch, texts))
    if behind_space or is_quoted(*map(str.strip, texts)):
        audit["quoted_texts"] += 1
    length = 1 + sum(field.count("\n") for field in row)
    if length == 1:
        return
    audit["multiline_records"] += 1
    if length > audit["longest_record_lines"]:
        audit["longest_record_lines"] = length
        audit["longest_record_line"] = line


def strip_invisible(name: str, audit: Counter[str]) -> str:
    """Return a label or a name without characters that have no width, and without white space at its ends.

    These characters make two labels of what looks like one. They come from joined files, each with a byte-order mark,
    and from web pages. A joiner between other letters than ASCII's stays, as in Persian and in emoji.

    Args:
        name: The label or name.
        audit: Receives the count `invisible_characters`.
    """
    if name.isascii():
        return name.strip()
    visible, removed = _INVISIBLE.subn("", name)
    if removed:
        audit["invisible_characters"] += removed
    return visible.strip()


def strip_mark(text: str, audit: Counter[str]) -> str:
    """Return a text without a byte-order mark at its beginning, and without white space at its ends.

    Args:
        text: The text.
        audit: Receives the count `invisible_characters`.
    """
    text = text.strip()
    if not text.startswith(BYTE_ORDER_MARK):
        return text
    audit["invisible_characters"] += 1
    return text.removeprefix(BYTE_ORDER_MARK).lstrip()


def add_visible_keys(record: Mapping[str, object], keys: Iterable[str], audit: Counter[str]) -> Mapping[str, object]:
    """Return an object of JSONL that has its keys as `strip_invisible` returns them, too, if it lacks one of some keys.

    Args:
        record: The object.
        keys: Names of the keys that are read.
        audit: Receives the count `invisible_characters`.
    """
    if all(name in record for name in keys):
        return record
    values = dict(record)
    for name, value in record.items():
        values.setdefault(strip_invisible(name, audit), value)
    return values


def read_rows(
    path: Path,
    form: Literal["tsv", "csv"],
    audit: Counter[str] | None = None,
    left_out: Counter[str] | None = None,
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the fields of each record of a TSV or CSV file, the header included.

    Blank lines between records are skipped. The number is that of the record's first line.

    Args:
        path: The file, in UTF-8.
        form: `tsv` or `csv`.
        audit: Receives the count `invisible_characters` of byte-order marks, see `read_lines`.
        left_out: Counter of skipped records: a record with more or fewer fields than the first is skipped and
            counted as `malformed`. None raises CorpusError for such a record.

    Raises:
        CorpusError: The file is missing, in another encoding, or not valid CSV, or a record is malformed and
            `left_out` is None.
    """
    width = 0
    lines = read_lines(path, audit)
    split_lines = _comma_rows if form == "csv" else _tab_rows
    for number, row in split_lines(path, lines):
        if len(row) < 2 and not "".join(row).strip():
            continue
        width = width or len(row)
        if len(row) == width:
            yield number, row
        elif left_out is not None:
            left_out["malformed"] += 1
        else:
            wrong = f"the row has {pluralize(len(row), 'field')}, but the first row has {width}"
            raise CorpusError.at(path, number, wrong, _SEPARATED[form])


def read_objects(path: Path, audit: Counter[str] | None = None) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the line number and the object of each line of a JSONL file that is not blank.

    Args:
        path: The file, in UTF-8.
        audit: Receives the count of byte-order marks, see `read_lines`.

    Raises:
        CorpusError: The file is missing or in another encoding, or a line is not a JSON object.
    """
    for number, line in read_lines(path, audit):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorpusError.at(path, number, _json_fault(error), "Write one object per line") from None
        if not isinstance(record, dict):
            wrong = f"the line is {JSON_KINDS[type(record)]}, not an object"
            raise CorpusError.at(path, number, wrong, "Write one object per line")
        yield number, record


def _json_fault(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"the line is not valid JSON ({error.msg} at character {error.pos + 1})"
    if isinstance(error, RecursionError):
        return "the line has brackets that are nested too deeply"
    return "the line has a number with too many digits"


def _tab_rows(_: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    for number, line in lines:
        yield number, line.split("\t")


def _comma_rows(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file, each with its first line; a row may go over several lines."""
    rows = csv.reader((f"{line}\n" for _, line in lines), strict=True, skipinitialspace=True)
    start = 1
    while True:
        before = csv.field_size_limit(LONGEST_LINE)  # of all readers of the process; its own, 131,072, is short
        try:
            row = next(rows, None)
        except csv.Error as error:
            wrong = f"the row that starts here is not valid CSV ({error})"
            raise CorpusError.at(path, start, wrong, _SEPARATED["csv"]) from None
        finally:
            csv.field_size_limit(before)
        if row is None:
            return
        yield start, row
        start = rows.line_num + 1


def warn_of_records(name: str, audit: Mapping[str, int]) -> None:
    """Log warnings if records of a table may have been read otherwise than they were meant.

    These are texts with the quotes of CSV, records of CSV over several lines, and characters without a width. Corpora
    of the registry are as they should be.

    Args:
        name: Name of a corpus of the registry, or the file.
        audit: Counts of the corpus's reader, see `corpora.labelled.LabelledTexts`.
    """
    if name in CORPORA:
        return
    quoted = audit.get("quoted_texts", 0)
    if quoted:
        warn(
            f"{name}: {pluralize(quoted, 'text')} in double quotes, as in CSV, but these quotes were read as words. "
            "TSV is read without quoting; in CSV a text was quoted twice, or white space other than a blank stands "
            "before its quotes. Save it as CSV, in pandas to_csv('my.csv', index=False)."
        )
    joined = audit.get("multiline_records", 0)
    if joined:
        longest = f"the longest has {audit['longest_record_lines']}, from line {audit['longest_record_line']}"
        warn(
            f"{name}: {pluralize(joined, 'record')} over several lines; {longest}. If texts have no line breaks, "
            "there is a double quote too many, and several records were read as one text: remove it, or double it in "
            "a quoted text."
        )
    invisible = audit.get("invisible_characters", 0)
    if invisible:
        warn(
            f"{name}: {pluralize(invisible, 'character')} without a width, such as a byte-order mark, dropped from the "
            "beginning of lines and texts, from labels, ids or names of columns. Check the program that wrote the file."
        )
