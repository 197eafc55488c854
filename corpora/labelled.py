"""Readers of labelled texts in TSV, CSV and JSONL files; every record is validated."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from attention_probing.corpora.lines import check_words, infer_format
from attention_probing.corpora.records import (
    JSON_KINDS,
    RecordFormat,
    add_visible_keys,
    count_doubtful,
    read_objects,
    read_rows,
    strip_invisible,
    strip_mark,
)
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.splits import SPLITS
from attention_probing.results.errors import pluralize, setting
from attention_probing.results.options import checked

Skipped = Literal["empty", "malformed"]
NumberedRecord = tuple[int, Mapping[str, object]]
"""Number of the record's first line, and its values by the fields of `Columns`."""

_SUFFIXES: dict[str, RecordFormat] = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl"}
_LONGEST_NAME = 40  # characters of a foreign column name in a message
_PLACE = re.compile("[0-9]{1,9}")
_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")  # JSON can escape them


@dataclass(frozen=True, slots=True)
class LabelledText:
    """One text with its label.

    Attributes:
        id: Value of the id column, else the number of the line; unique within the file.
        text: The text, not empty, without white space at its ends.
        label: The label, not empty; an empty string in a file without labels.
        line: Line of the file at which the record starts, counted from 1.
        pair: Second sentence of a pair; None in a file without pairs.
        rationale: 0-based positions, ascending, of the words that explain the label; words are separated by white
            space. Empty if the annotators marked no word; None if the text is not annotated.
    """

    id: str
    text: str
    label: str
    line: int
    pair: str | None = None
    rationale: tuple[int, ...] | None = None


@dataclass(frozen=True)
class LabelledTexts:
    """The labelled texts of one file, and the counts of its reader.

    The entries of `audit` are:

    - `texts`: texts kept.
    - `duplicates`: texts kept that repeat the text and pair of an earlier record.
    - `conflicting`: duplicates whose label differs from that of the first record with this text and pair.
    - `empty`: records skipped because the text or pair is empty.
    - `labels_left_out`: records skipped because of their label, see `Columns.leave_out`; this entry exists only if
      there are any.
    - `quoted_texts`: records of a TSV or CSV file that were read with the quotes of CSV, see `is_quoted`; this entry
      exists only if there are any.
    - `multiline_records`: records of a CSV file that span several lines; `longest_record_lines`: lines of the longest
      of them; `longest_record_line`: the line at which it starts. These entries exist only if there are any.
    - `invisible_characters`: characters without a width that were removed, see `records.strip_invisible`, from
      labels, ids, splits and names of columns, and byte-order marks from the beginnings of texts; this entry exists
      only if there are any.
    - `malformed`: records skipped because the number of fields is wrong; this entry exists
      only with `read_labelled(skip_malformed=True)`.

    Attributes:
        texts: Texts in the order of the file, at least one.
        audit: Counts by name, as listed above.
    """

    texts: tuple[LabelledText, ...]
    audit: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.texts)


@checked
@dataclass(frozen=True)
class Columns:
    """Columns of a file of labelled texts: their names or, in a TSV or CSV file without a header, their numbers from 1.

    None stands for a column that the file does not have. If all columns are numbers, the file has no header. Other
    columns of the file, such as an index that pandas wrote without a name, are ignored.

    Attributes:
        text: Column of the text, or of the first sentence of a pair.
        label: Column of the label.
        pair: Column of the second sentence of a pair.
        id: Column of the id.
        rationale: Column with the 0-based positions of the rationale words, separated by white space.
        split: Column that says `train`, `dev` or `test`, in a file that holds all splits.
        leave_out: Labels whose records are skipped, such as `-` of SNLI, for texts without an agreed label.

    Raises:
        CorpusError: `leave_out` names labels, but `label` is None.
    """

    text: str | int = "text"
    label: str | int | None = "label"
    pair: str | int | None = None
    id: str | int | None = None
    rationale: str | int | None = None
    split: str | int | None = None
    leave_out: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        if self.leave_out and self.label is None:
            names = list(self.leave_out)
            raise CorpusError(f"columns.leave_out is {names}, but columns.label is null. Name its column.")

    @property
    def names(self) -> dict[str, str]:
        """Names or numbers of the columns that the file has, by field."""
        columns = {}
        for field, name in asdict(self).items():
            if isinstance(name, str | int):
                columns[field] = str(name)
        return columns


@checked
def read_labelled(
    path: Path,
    *,
    columns: Columns = Columns(),
    format: RecordFormat | None = None,
    skip: Sequence[Skipped] = (),
    split: str | None = None,
) -> LabelledTexts:
    """Read the labelled texts of a TSV, CSV or JSONL file, and count skipped and repeated ones.

    Blank lines between records are skipped. White space at the ends of texts, pairs, labels and ids is dropped. In
    JSONL a label may be a string, an integer, true or false; an id may be a string or an integer; a rationale may
    be a list of integers, or null for a text without annotation. CRLF line ends and a byte-order mark are accepted.

    Args:
        path: The file, in UTF-8.
        columns: Columns to read; others are ignored.
        format: `tsv`, `csv` or `jsonl`; None takes it from the suffix.
        skip: Records to skip and count: `empty`, whose text or pair is empty, and `malformed`, of a TSV or CSV file,
            with more or fewer fields than the first. Without it they are errors.
        split: Split to read of a file with a column `split`; None reads all records.

    Raises:
        CorpusError: The file is missing, empty, in another encoding, malformed, lacks a column, or has an empty
            label, a repeated id, a word of a million characters, another split than train, dev and test, or a
            rationale outside its text; the message names file, line and remedy.
        UserError: An option has a value that is not allowed.
    """
    return collect_texts(LabelledFile(Path(path), columns, format, split=split), skip)


def collect_texts(file: "LabelledFile", skip: Sequence[Skipped] = ()) -> LabelledTexts:
    """Read all texts of a file, and count skipped and repeated ones.

    Args:
        file: The file.
        skip: See `read_labelled`.

    Raises:
        CorpusError: As for `read_labelled`.
    """
    path = file.path
    audit = {"texts": 0, "duplicates": 0, "conflicting": 0, "empty": 0}
    texts: list[LabelledText] = []
    labels: dict[tuple[str, str | None], str] = {}  # of the first of equal texts
    lines: dict[str, int] = {}  # of the ids
    left_out = Counter[str](malformed=0) if "malformed" in skip else None
    for text in file.texts(left_out):
        if not text.text or text.pair == "":
            if "empty" not in skip:
                field = "pair" if text.text else "text"
                wrong = f"the {file.describe_field(field)} is empty"
                raise CorpusError.at(path, text.line, wrong, "Fill the field, or remove the row")
            audit["empty"] += 1
            continue
        if text.id in lines:
            wrong = f"the id {text.id!r} is also that of line {lines[text.id]}"
            remedy = (
                f"Name a column of unique ids with {setting(file.option + '.columns.id')}, or leave it out to "
                f"number the rows"
            )
            raise CorpusError.at(path, text.line, wrong, remedy)
        lines[text.id] = text.line
        first_label = labels.setdefault((text.text, text.pair), text.label)
        audit["conflicting"] += first_label != text.label
        texts.append(text)
    if not texts:
        of_split = f" of {file.split}" if file.split else ""
        raise CorpusError.at(path, None, f"the file holds no text{of_split}", "Check that it is the file you meant")
    audit["texts"] = len(texts)
    audit["duplicates"] = len(texts) - len(labels)
    audit |= file.audit
    if left_out is not None:
        audit |= left_out
    return LabelledTexts(tuple(texts), audit)


def _list_columns(names: Iterable[str]) -> str:
    """Return the names of columns for a message, the long ones shortened."""
    parts = []
    for name in names:
        if not name:
            parts.append("'' (an index of pandas, which to_csv(index=False) leaves out)")
        elif len(name) > _LONGEST_NAME:
            parts.append(f"{name[:_LONGEST_NAME]}…")
        else:
            parts.append(name)
    return ", ".join(parts)


class LabelledFile:
    """A TSV, CSV or JSONL file of labelled texts, read record by record.

    Args:
        path: The file, in UTF-8.
        columns: Columns to read; others are ignored.
        format: `tsv`, `csv` or `jsonl`; None takes it from the suffix.
        option: Option, such as `data`, that holds `columns` and `format`, for error messages.
        split: Split to read of a file with a column `split`; None reads all records.

    Attributes:
        audit: Receives the counts `labels_left_out`, `quoted_texts`, `invisible_characters` and those of records over
            several lines; see `LabelledTexts`.
    """

    def __init__(
        self, path: Path, columns: Columns, format: RecordFormat | None, option: str = "data", split: str | None = None
    ) -> None:
        self.path = path
        self.option = option
        self.split = split
        self.format = format or infer_format(path, _SUFFIXES, setting(f"{option}.format"))
        self.audit = Counter[str]()
        self._leave_out = {strip_invisible(str(label), Counter()) for label in columns.leave_out}
        self._columns = columns.names
        self._header = not all(map(str.isdecimal, self._columns.values()))

    def texts(self, left_out: Counter[str] | None = None) -> Iterator[LabelledText]:
        """Yield the labelled texts of the file one by one, without storing them.

        Unlike in `read_labelled`, a text may be empty and an id may occur twice.

        Args:
            left_out: Counter of skipped records: a record with a wrong number of fields is skipped and counted as
                `malformed`. None raises an error for such a record.

        Raises:
            CorpusError: The file is missing, in another encoding, malformed, lacks a column, or has an empty label
                or a rationale outside its text.
        """
        for text in self._texts(left_out):
            if text.label in self._leave_out:
                self.audit["labels_left_out"] += 1
            else:
                yield text

    def _texts(self, left_out: Counter[str] | None) -> Iterator[LabelledText]:
        """Yield the texts with labels that are left out, too."""
        if self.format == "jsonl":
            for line, values in self._objects():
                if self._is_of_split(line, values):
                    yield self._text(line, values)
            return
        for line, fields, row in self._records(self.format, left_out):
            if not self._is_of_split(line, fields):
                continue
            texts = [fields[name] for name in ("text", "pair", "label") if name in fields]
            count_doubtful(self.audit, self.format, line, row, texts)
            yield self._text(line, fields)

    def _is_of_split(self, line: int, values: Mapping[str, object]) -> bool:
        if "split" not in values:
            return self.split is None
        split = values["split"]
        if isinstance(split, str):
            split = strip_invisible(split, self.audit)
        if split not in SPLITS:
            wrong = f"the {self.describe_field('split')} is {values['split']!r}"
            raise self._error(line, wrong, f"Write one of {', '.join(SPLITS)}, or remove the row")
        return self.split is None or split == self.split

    def describe_field(self, field: str) -> str:
        """Return the description of a field for error messages, such as `label (column 'gold')`.

        Args:
            field: Field of `Columns` that the file has.
        """
        return f"{field} (column {self._columns[field]!r})"

    def _error(self, line: int, wrong: str, remedy: str) -> CorpusError:
        return CorpusError.at(self.path, line, wrong, remedy)

    def _objects(self) -> Iterator[NumberedRecord]:
        """Yield the records of a JSONL file."""
        for number, record in read_objects(self.path, self.audit):
            yield number, self._values(number, record)

    def _values(self, line: int, record: Mapping[str, object]) -> dict[str, object]:
        """Return the values of an object by the fields of `Columns`."""
        record = add_visible_keys(record, self._columns.values(), self.audit)
        values = {}
        for field, name in self._columns.items():
            if name not in record:
                raise self._no_key(line, name, field, record)
            values[field] = record[name]
        return values

    def _no_key(self, line: int, name: str, field: str, record: Mapping[str, object]) -> CorpusError:
        wrong = f"the object has no key {name!r}, because it is empty"
        if record:
            wrong = f"the object has no key {name!r}; its keys are {_list_columns(record)}"
        remedy = f"Add the key, or name another one with {setting(f'{self.option}.columns.{field}')}"
        return self._error(line, wrong, remedy)

    def _records(
        self, form: Literal["tsv", "csv"], left_out: Counter[str] | None
    ) -> Iterator[tuple[int, Mapping[str, str], list[str]]]:
        """Yield the line, the values by field, and the whole row of each record of a TSV or CSV file."""
        places: dict[str, int] = {}
        for number, row in read_rows(self.path, form, self.audit, left_out):
            if not places:
                places = self._places(number, row)
                if self._header:
                    continue
            yield number, {field: row[place] for field, place in places.items()}, row

    def _places(self, number: int, first: list[str]) -> dict[str, int]:
        """Return the place of each column in a row, from the first row."""
        names = [str(place + 1) for place in range(len(first))]
        if self._header:
            names = [strip_invisible(name, self.audit) for name in first]
        for field, name in self._columns.items():
            if name not in names:
                raise self._no_column(number, name, field, names)
            if names.count(name) > 1:
                wrong = f"the header has {names.count(name)} columns {name!r}"
                raise self._error(number, wrong, "Rename all but one of them")
        return {field: names.index(name) for field, name in self._columns.items()}

    def _no_column(self, number: int, name: str, field: str, names: Sequence[str]) -> CorpusError:
        option = setting(f"{self.option}.columns.{field}")
        if self._header:
            wrong = f"the header has no column {name!r}; its columns are {_list_columns(names)}"
            remedy = f"Name the right column with {option}; if the file has no header, give all columns their numbers"
            return self._error(number, wrong, f"{remedy} from 1")
        wrong = f"the columns are numbered from 1 to {len(names)}, and none is {name}"
        return self._error(number, wrong, f"Give {option} the number of a column")

    def _text(self, line: int, values: Mapping[str, object]) -> LabelledText:
        """Check the values of one record; its text or pair may still be empty."""
        text = self._string(line, values, "text")
        label = ""
        if "label" in values:
            label = sys.intern(self._string(line, values, "label", bool, int))
            self._check_filled(line, "label", label)
        name = str(line)
        if "id" in values:
            name = self._string(line, values, "id", int)
            self._check_filled(line, "id", name)
        rationale = None
        if "rationale" in values:
            rationale = self._rationale(line, values["rationale"], words=len(text.split()))
        pair = None
        if "pair" in values:
            pair = self._string(line, values, "pair")
        return LabelledText(name, text, label, line, pair, rationale)

    def _check_filled(self, line: int, field: str, value: str) -> None:
        if not value:
            raise self._error(line, f"the {self.describe_field(field)} is empty", "Fill it, or remove the row")

    def _string(self, line: int, values: Mapping[str, object], field: str, *others: type) -> str:
        """Return the value of a field as a string; values of the types `others` are converted."""
        value = values[field]
        if isinstance(value, others):
            value = json.dumps(value)
        if not isinstance(value, str):
            accepted = "a string, a whole number, true or false" if others else "a string"
            wrong = f"the {self.describe_field(field)} is {JSON_KINDS[type(value)]}, but must be {accepted}"
            raise self._error(line, wrong, "Correct the value, or remove the line")
        odd = _NO_CHARACTER.search(value)
        if odd is not None:
            kind = "NUL" if odd[0] == "\0" else "half of a surrogate pair"
            code = f"\\u{ord(odd[0]):04x}"
            wrong = f"character {odd.start() + 1} of the {self.describe_field(field)} is {code}, {kind}"
            raise self._error(line, wrong, "Remove this character")
        if field in ("label", "id"):
            return strip_invisible(value, self.audit)
        check_words(self.path, line, value)
        return strip_mark(value, self.audit)

    def _rationale(self, line: int, value: object, words: int) -> tuple[int, ...] | None:
        """Return the places of the deciding words of a text of `words` words."""
        if value is None:  # JSON's null
            return None
        if isinstance(value, str):
            value = value.split()
        places: list[Any] = value if isinstance(value, list) else [value]
        for place in places:
            is_number = type(place) is int or (isinstance(place, str) and _PLACE.fullmatch(place))
            if not is_number:
                wrong = f"the {self.describe_field('rationale')} contains {place!r}, which is not a word index"
                raise self._error(line, wrong, "Write word indices from 0, separated by spaces")
            if not 0 <= int(place) < words:
                wrong = (
                    f"the {self.describe_field('rationale')} contains the word index {place}, but the text has "
                    f"{pluralize(words, 'word')}"
                )
                raise self._error(line, wrong, "Count the words between white space from 0")
        return tuple(sorted(set(map(int, places))))
