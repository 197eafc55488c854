"""Reader of minimal pairs: an acceptable sentence, and an unacceptable one that differs from it as little as possible.

The format is that of BLiMP (Warstadt et al. 2020), one JSON object a line, or that of another project with other names.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from attention_probing.corpora.lines import check_words
from attention_probing.corpora.records import (
    add_visible_keys,
    count_doubtful,
    read_objects,
    read_rows,
    strip_invisible,
    strip_mark,
)
from attention_probing.corpora.sentence import CorpusError
from attention_probing.results.errors import setting
from attention_probing.results.options import checked

_SENTENCES = ("good", "bad")
_ALL = "all"
"""Paradigm and field of pairs whose file has no such column."""


@checked
@dataclass(frozen=True)
class PairColumns:
    """Names of the keys or columns of a file of minimal pairs; the defaults are those of BLiMP.

    None stands for a column that the file does not have: all pairs are then of one paradigm or field, `all`, and the
    id is the number of the line. Other columns are ignored.

    Attributes:
        good: Column of the acceptable sentence.
        bad: Column of the unacceptable sentence.
        paradigm: Column of the paradigm.
        field: Column of the field of grammar.
        id: Column of the name of the pair in its paradigm.
    """

    good: str = "sentence_good"
    bad: str = "sentence_bad"
    paradigm: str | None = "UID"
    field: str | None = "field"
    id: str | None = "pairID"


@dataclass(frozen=True)
class MinimalPair:
    """An acceptable and an unacceptable sentence.

    Attributes:
        paradigm: Name of the paradigm, such as `anaphor_gender_agreement`; all pairs of one are made by one template.
        id: Name of the pair in its paradigm.
        field: Field of grammar of the paradigm. BLiMP writes one of them in two ways; a `/` is read as `_`.
        good: The acceptable sentence.
        bad: The unacceptable sentence. It may equal the other: two of BLiMP's 13,400 do.
        line: Line of the file, from 1.
    """

    paradigm: str
    id: str
    field: str
    good: str
    bad: str
    line: int


def read_pairs(
    path: Path,
    columns: PairColumns = PairColumns(),
    option: str = "data.columns",
    audit: Counter[str] | None = None,
) -> tuple[MinimalPair, ...]:
    """Return the minimal pairs of a JSONL file, or of a table (`.tsv`, `.csv`) with a header.

    In JSONL the paradigm, the field and the id may be whole numbers.

    Args:
        path: The file, in UTF-8.
        columns: Names of the columns.
        option: Option, such as `data.columns`, that holds `columns`, for error messages.
        audit: Receives the counts `quoted_texts`, `invisible_characters` and those of records over several lines, see
            `corpora.labelled.LabelledTexts`.

    Raises:
        CorpusError: The file is missing, in another encoding, malformed, or holds no pair with two different sentences;
            a line lacks a key, or has an empty value or one of another type; or a pair is given twice.
    """
    pairs: dict[tuple[str, str], MinimalPair] = {}
    if audit is None:
        audit = Counter()
    keys = {field: key for field, key in asdict(columns).items() if key is not None}
    for line, record in _read_records(path, keys, audit):
        values = {"paradigm": _ALL, "field": _ALL, "id": str(line)}
        for field, key in keys.items():
            if key not in record:
                raise _no_key(path, line, record, field, key, option)
            value = _clean(record[key], field, audit)
            if not value:
                wrong = f"the value of {key!r} is {record[key]!r}"
                raise CorpusError.at(path, line, wrong, f"Give each pair a text for {setting(f'{option}.{field}')}")
            check_words(path, line, value)
            values[field] = value
        values["field"] = values["field"].replace("/", "_")
        pair = MinimalPair(**values, line=line)
        first = pairs.setdefault((pair.paradigm, pair.id), pair)
        if first is not pair:
            wrong = f"the pair {pair.id} of {pair.paradigm} is also in line {first.line}"
            remedy = (
                f"Give every pair of a paradigm a `{columns.id}` of its own, or leave them out: "
                f"{setting(option + '.id', 'null')}"
            )
            raise CorpusError.at(path, line, wrong, remedy)
    if all(pair.good == pair.bad for pair in pairs.values()):
        wrong = "the two sentences of every pair are equal"
        if not pairs:
            wrong = "the file holds no pair"
        raise CorpusError.at(path, None, wrong, "Check that it is the file you meant")
    return tuple(pairs.values())


def _read_records(
    path: Path, keys: Mapping[str, str], audit: Counter[str]
) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Yield the line and the values of each record, by the name of the column.

    Args:
        path: The file.
        keys: Names of the columns that are read, by field.
        audit: See `read_pairs`.
    """
    suffix = path.suffix.lower()
    if suffix not in (".tsv", ".csv"):
        for line, record in read_objects(path, audit):
            yield line, add_visible_keys(record, keys.values(), audit)
        return
    form: Literal["tsv", "csv"] = "csv" if suffix == ".csv" else "tsv"
    header: list[str] = []
    for line, row in read_rows(path, form, audit):
        if not header:
            header = _header(path, line, row, audit)
            continue
        fields = dict(zip(header, row, strict=True))
        texts = [fields[key] for field, key in keys.items() if field != "id" and key in fields]
        count_doubtful(audit, form, line, row, texts)
        yield line, fields


def _header(path: Path, line: int, row: list[str], audit: Counter[str]) -> list[str]:
    header = [strip_invisible(name, audit) for name in row]
    for name in header:
        if header.count(name) > 1:
            raise CorpusError.at(path, line, f"the header has several columns {name!r}", "Rename all but one")
    return header


def _no_key(path: Path, line: int, record: Mapping[str, object], field: str, key: str, option: str) -> CorpusError:
    wrong = f"there is no key {key!r}; the keys are {', '.join(map(str, record)) or 'none'}"
    remedy = f"Name the right one with {setting(f'{option}.{field}')}"
    if field not in _SENTENCES:
        remedy += ", or null if there is none"
    return CorpusError.at(path, line, wrong, remedy)


def _clean(value: object, field: str, audit: Counter[str]) -> str:
    """Return a sentence or a name as text; empty if the value is of another type."""
    if type(value) is int and field not in _SENTENCES:
        return str(value)
    if not isinstance(value, str):
        return ""
    clean = strip_mark if field in _SENTENCES else strip_invisible
    return clean(value, audit)
