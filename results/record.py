"""The content of `results.json` as a typed model: what is written has this form, and reading it is validating it."""

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from attention_probing.results.digests import RECORD, checksums, find_alteration
from attention_probing.results.errors import UserError, list_first, near, pluralize, shorten
from attention_probing.results.estimates import ENDS, UNITS, Estimate, Table, Unit
from attention_probing.results.files import check_regular, path_below, read_csv, write_atomically

NAN = float("nan")
KEYS = ("document", "sentence", "id")
"""Columns that identify an item."""
UNITS_OF_ITEMS = ("whole_document", "document")
"""Columns that say which items belong together; the first that a run has is used."""
SCHEMA_VERSION = 3
"""Version of the form of `results.json` that is written."""
_LONGEST = 1 << 24  # bytes of a results.json


class RecordError(UserError):
    """Error raised if results do not exist, cannot be read, or do not fit the request."""


class _Model(BaseModel):
    # Strict: a number is no text, and true is no number. Later versions may write more entries.
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, validate_by_name=True)


class TableColumns(_Model):
    """Columns of the CSV file of a table.

    Attributes:
        numeric: Names of the columns with numbers.
        units: Unit of each column with a unit: one for all rows, or one for each row.
        interval: Column to which the columns called just `low`, `high` and `sd` belong.
    """

    numeric: list[str]
    units: dict[str, Unit | list[Unit]]
    interval: str | None

    @classmethod
    def from_table(cls, table: Table) -> Self:
        """Describe the columns of a table."""
        numeric = [str(name) for name in table.frame.select_dtypes("number")]
        units: dict[str, Unit | list[Unit]] = {}
        for name, unit in table.units.items():
            units[name] = unit if isinstance(unit, str) else list(unit)
        return cls(numeric=numeric, units=units, interval=table.interval)


class Record(_Model):
    """Results of a run or a sweep: the content of its `results.json`.

    Names of files are relative to the folder. A default is the value of an entry that earlier versions did not write.

    Attributes:
        schema_version: Version of this form, the entry `schema`.
        experiment: Name of the experiment.
        answer: The answer of the experiment in one sentence; empty if it has none, or before version 1.0.
        numbers: Every score by its name, the entry `scores`; beside it `<name>.low` and `<name>.high` (95 % interval),
            `<name>.sd` (over seeds) and `<name>.p`. None where a number is undefined.
        units: Unit of every score.
        tables: CSV file of every table.
        latex: LaTeX file of every table that fits on a page.
        columns: Columns of every table, and as `<name>.data` of the numbers of every figure.
        figures: Picture of every figure.
        figure_data: Numbers that a figure draws, if CSV is among its formats and there are at most 100,000.
        captions: Caption of every figure.
        items_file: Parquet file with one row per test item, the entry `items`; None if there is none.
        ratios: Scores that are the sum of one column of the items divided by the sum of another.
        shares: Scores in `ratios` whose first column counts some of the items that the second counts; empty before
            version 1.1.
        audit: Counts of what was left out or changed, by name.
        seed: Seed of the run.
        encoder: Description of the encoder.
        data: Description of the data.
        versions: Versions of Python and of packages, and as `source_sha256` the SHA-256 of the source code of this
            application that wrote the results.
        config: File with the config of the run; None if there is none.
        checksums: SHA-256 of tables, numbers of figures, items and config, by file name; under `results.json` that of
            this content without this entry, as JSON with sorted keys.
    """

    schema_version: Annotated[int, Field(alias="schema")]
    experiment: str
    answer: str = ""
    numbers: Annotated[dict[str, float | None], Field(alias="scores")]
    units: dict[str, Unit]
    tables: dict[str, str]
    latex: dict[str, str]
    columns: dict[str, TableColumns]
    figures: dict[str, str]
    figure_data: dict[str, str]
    captions: dict[str, str]
    items_file: Annotated[str | None, Field(alias="items")]
    ratios: dict[str, Annotated[list[str], Field(min_length=2, max_length=2)]]
    shares: list[str] = []
    audit: dict[str, Any]
    seed: int | None
    encoder: dict[str, Any]
    data: dict[str, Any]
    versions: dict[str, Any]
    config: str | None
    checksums: dict[str, str]

    _path: Path = PrivateAttr(default=Path(RECORD))
    _scores: dict[str, Estimate] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check_entries(self) -> Self:
        """Join the numbers to scores, and check what is read of the entries whose keys are not fixed."""
        self._scores = join_numbers(self.numbers, self.units)
        if not isinstance(self.versions.get("source_sha256"), str):
            raise ValueError("`versions` has no text `source_sha256`")
        return self

    @property
    def path(self) -> Path:
        """Path of the `results.json`."""
        return self._path

    @property
    def scores(self) -> Mapping[str, Estimate]:
        """Scores by name."""
        return self._scores

    @property
    def items(self) -> Path | None:
        """Path of the file with one row per test item; None if there is none."""
        if self.items_file is None:
            return None
        return self.path.parent / self.items_file

    @property
    def source(self) -> str:
        """SHA-256 of the source code of this application that wrote the results."""
        return str(self.versions["source_sha256"])

    @property
    def epochs(self) -> float:
        """Epoch of the tested checkpoint, from 1; nan if nothing was trained, or the epoch is unknown."""
        epochs = self.audit.get("epochs")
        return float(epochs) if isinstance(epochs, int | float) else NAN

    @property
    def is_sweep(self) -> bool:
        """True if these results belong to a sweep, a table of many runs, and not to a single run."""
        return f"{self.experiment}_runs" in self.tables

    @property
    def splits(self) -> list[tuple[str, Mapping[str, Any]]]:
        """(Name, description) of each file that the run has read: splits, corpora and word vectors.

        The description has the entry `file`, the name of the file, and if it is known `sha256`; other
        entries depend on the kind of the file. In results of the atlas, which reads several kinds of
        corpora, a name begins with the kind, as in `coreference.test`.
        """
        return list(_files(self.data))

    def has(self, place: str) -> bool:
        """Return whether there is a score of this name, or the table of a cell; see `number`."""
        if place in self.scores:
            return True
        table, colon, _ = place.partition(":")
        return bool(colon) and table in self.tables

    def number(self, place: str) -> Estimate:
        """Return a score, or the number in a cell of a table, with its interval.

        Args:
            place: Name of the score, or `TABLE:COLUMN[KEY=VALUE;KEY=VALUE]` for the one row of a table with
                these values. As a VALUE, `last` is the largest number of a column, such as the last layer,
                `last-1` the one before, and `middle` the middle one; `[max]` is the row with the largest
                number in COLUMN.

        Raises:
            RecordError: There is no such score or cell.
        """
        if place in self.scores:
            return self.scores[place]
        table, colon, cell = place.partition(":")
        if not self.has(place):
            names = self.tables if colon else self.scores
            raise RecordError(f"{self.path} has no `{table}`{near(table, names)}")
        column, _, where = cell.removesuffix("]").partition("[")
        frame = self.table(table, as_text=True)
        try:
            return _number_in_cell(frame, self.columns[table], column, where)
        except (LookupError, ValueError, TypeError) as error:
            fault = f"table `{table}` has not one row with a number in `{column}` where {where}: {error}"
            raise RecordError(f"{self.path}: {fault}") from None

    def table(self, name: str, *, as_text: bool = False) -> pd.DataFrame:
        """Return a table of the run, which must have it; an empty cell is nan.

        Args:
            name: Name of the table.
            as_text: True to take all cells as text; False to take numbers as numbers, and truth values as such.

        Raises:
            RecordError: The file cannot be read.
        """
        path = path_below(self.path.parent, self.tables[name])
        try:
            frame = read_csv(path, na_values=[""], dtype=str)
            if not as_text:
                _convert(frame, self.columns[name].numeric)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise RecordError(f"{path} cannot be read ({reason}). Run the experiment again") from None
        return frame

    def counts(self, score: str, *, by_id: bool = False) -> pd.DataFrame:
        """Return the numerator and the denominator of a score for each test item.

        Args:
            score: Name of the score.
            by_id: True to identify items by their `id` alone, if they have one. Use it to compare encoders:
                sentence numbers differ if one encoder leaves out a sentence.

        Returns:
            Frame with columns `numerator`, `denominator` and `unit`, the independent unit that the item belongs to:
            its document, or the item itself if no documents are marked. It is indexed by `id` or by the other columns
            that identify an item.

        Raises:
            RecordError: There are no such counts, or two items have the same index.
        """
        frame = self._read_items(score)
        counts = frame[list(self.ratios[score])].astype(np.float64)
        counts.columns = pd.Index(["numerator", "denominator"])
        counts["unit"] = np.arange(len(frame))
        unit_columns = [name for name in UNITS_OF_ITEMS if name in frame]
        if unit_columns:
            counts["unit"] = frame[unit_columns[0]]
        names = [name for name in KEYS if name in frame]
        if by_id and "id" in frame:
            names = ["id"]
        if not names:
            raise RecordError(
                f"{self.items} has no column id, sentence or document, so its items cannot be matched with those of "
                f"another run. Run the experiment again"
            )
        counts = counts.set_index([frame[name] for name in names])
        twins = int(counts.index.duplicated().sum())
        if twins:
            verb = "has" if twins == 1 else "have"
            raise RecordError(
                f"{self.items}: {pluralize(twins, 'item')} {verb} the same {' and '.join(names)} as another item, so "
                "items of two runs cannot be matched. Give the items of the test split unique ones, and test again"
            )
        return counts

    def _read_items(self, score: str) -> pd.DataFrame:
        """Return the rows of the test items, with finite counts of a score."""
        if score not in self.ratios or score not in self.scores:
            remedy = "no score has such counts"
            if self.ratios:
                remedy = f"choose a score with counts per item: {', '.join(self.ratios)}"
            hint = near(score, self.ratios)
            raise RecordError(f"{self.path}: {score} cannot be compared item by item{hint}; {remedy}")
        if self.items is None or not self.items.is_file():
            raise RecordError(
                f"{self.path}: {self.items or 'items.parquet'} with the counts per test item is missing, and runs are "
                f"compared item by item. Copy it back beside results.json, or test again"
            )
        try:
            frame = pd.read_parquet(self.items)
            counts = frame[self.ratios[score]].to_numpy(np.float64)
            if not np.isfinite(counts).all():
                raise ValueError(f"a count of {score} is not a finite number")
        except (OSError, ValueError, TypeError, KeyError) as error:
            reason = " ".join(str(error).split())
            raise RecordError(f"{self.items} cannot be read ({reason}). Run the experiment again") from None
        return frame

    def save(self, folder: Path) -> None:
        """Write this record into a folder, with the checksums of itself and of the files that it names.

        Raises:
            OSError: The file cannot be written.
        """
        content = self.model_dump(by_alias=True, exclude={"checksums"})
        content["checksums"] = checksums(folder, content)
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(folder / RECORD, f"{text}\n")


def _number_in_cell(frame: pd.DataFrame, columns: TableColumns, column: str, where: str) -> Estimate:
    """Return the number in the only row of a table that fulfils a condition, with its interval; see `Record.number`."""
    rows = _rows_where(frame, column, where)
    if len(rows) != 1:
        raise ValueError(pluralize(len(rows), "row"))
    row = rows.iloc[0]
    unit = columns.units.get(column, "count")
    if not isinstance(unit, str):
        unit = unit[rows.index[0]]
    value = float(row[column])
    prefix = "" if columns.interval == column else f"{column}."
    if f"{prefix}low" not in frame or f"{prefix}high" not in frame:
        return Estimate(value, unit=unit)
    return Estimate(value, float(row[f"{prefix}low"]), float(row[f"{prefix}high"]), unit=unit)


def _convert(frame: pd.DataFrame, numeric: Collection[str]) -> None:
    """Convert the columns of numbers and of truth values, in place; others stay text, such as the labels 0 and 1."""
    for name in frame:
        if name in numeric:
            frame[name] = pd.to_numeric(frame[name])
        elif frame[name].dropna().isin(["True", "False"]).all():
            frame[name] = frame[name].map({"True": True, "False": False})


def _rows_where(frame: pd.DataFrame, column: str, where: str) -> pd.DataFrame:
    """Return the rows of a table that fulfil the condition of a place; see `Record.number`."""
    if where == "max":
        return frame.loc[[frame[column].astype(float).idxmax()]]
    for condition in where.split(";"):
        key, _, value = condition.partition("=")
        if re.fullmatch(r"middle|last(-\d+)?", value):
            value = str(_place_in(frame[key].astype(int).max(), value))
        frame = frame[frame[key] == value]
    return frame


def _place_in(last: int, word: str) -> int:
    """Return the number that `middle`, `last` or `last-1` stands for among 1 to `last`."""
    if word == "middle":
        return math.ceil(last / 2)
    before_last = word.partition("-")[2] or 0
    return last - int(before_last)


def _files(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and the description of each file in the description of the data; parts of data are read too."""
    for name, part in data.items():
        if not isinstance(part, Mapping):
            continue
        if "file" in part:
            yield prefix + name, part
        else:
            yield from _files(part, f"{prefix}{name}.")


def join_numbers(numbers: Mapping[str, float | None], units: Mapping[str, Unit]) -> dict[str, Estimate]:
    """Join the numbers `x`, `x.low`, `x.high`, … to the score `x`.

    Args:
        numbers: Numbers by name; None if undefined.
        units: Unit of each score.

    Raises:
        ValueError: A score has no number, or only one end of its interval.
    """
    scores = {}
    for name, unit in units.items():
        if name not in numbers:
            raise ValueError(f"`scores` has no {name}, which `units` names")
        parts: dict[str, Any] = {"value": _number(numbers[name])}
        for end in ENDS:
            if f"{name}.{end}" in numbers:
                parts[end] = _number(numbers[f"{name}.{end}"])
        scores[name] = Estimate(**parts, unit=unit)
    return scores


def _number(entry: float | None) -> float:
    return NAN if entry is None else entry


def compute_ratio(counts: pd.DataFrame) -> float:
    """Compute a score from its counts: the sum of the numerators divided by the sum of the denominators.

    It is nan if the denominators sum to 0.

    Args:
        counts: Columns with numerator and denominator, one row per item.
    """
    numerator, denominator = counts[["numerator", "denominator"]].sum()
    if not denominator:
        return NAN
    return float(numerator / denominator)


def find_record(run: Path) -> Record:
    """Read the results of a run or a sweep.

    Args:
        run: Its folder, or its `results.json`.

    Raises:
        RecordError: There are no results, or they cannot be read.
    """
    path = run / RECORD if run.is_dir() else run
    if path.is_file():
        return read_record(path)
    if not run.is_dir():
        raise RecordError(f"{run}: there is no such file or folder")
    below: list[str] = []
    for depth in ("*", "*/*", "*/*/*"):
        below.extend(str(path.parent) for path in sorted(run.glob(f"{depth}/{RECORD}")))
    hint = ": no test has ended in it"
    if below:
        hint = f"; runs below it: {list_first(below)}"
    raise RecordError(f"{run}: the folder exists, but has no {RECORD}{hint}")


def read_record(path: Path) -> Record:
    """Read a `results.json` file.

    Raises:
        RecordError: The file cannot be read, or was not written by a run of this application.
    """
    try:
        content = json.loads(check_regular(path, _LONGEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is damaged: it is not valid JSON ({error}). Run the experiment again") from None
    try:
        record = Record.model_validate(content)
        alteration = find_alteration(path, content)
    except ValidationError as error:
        fault = _describe_fault(error, content)
        raise RecordError(f"{path} is not the results.json of a run ({fault}). Run the experiment again") from None
    except (OSError, ValueError) as error:  # the name of a file can be no path
        raise RecordError(f"{path} is not the results.json of a run ({error}). Run the experiment again") from None
    if alteration is not None:
        raise RecordError(alteration)
    record._path = path
    return record


_ALLOWED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "dict_type": "a mapping, {name: …}",
    "model_type": "a mapping, {name: …}",
    "list_type": "a list",
    "too_short": "a list of two",
    "too_long": "a list of two",
}
"""Values of the types of entries, by the type of pydantic's error."""


def _describe_fault(error: ValidationError, content: object) -> str:
    """Return one fault of a record: the entry, its value, and the values that it may have."""
    fault = max(error.errors(), key=lambda fault: len(fault["loc"]))  # of a union the type that fits best
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    if fault["type"] == "missing":
        return f"has no entry `{fault['loc'][-1]}`"
    names = []
    value: Any = content
    for place in fault["loc"]:
        inside: dict[Any, Any] = {}
        if isinstance(value, dict):
            inside = value
        elif isinstance(value, list):
            inside = dict(enumerate(value))
        if place in inside:  # else it is the name of a type of a union
            names.append(str(place))
            value = inside[place]
    entry = f"`{'.'.join(names)}`" if names else "it"
    allowed = _ALLOWED.get(fault["type"], fault["msg"])
    if fault["type"] == "literal_error":
        allowed = f"one of {', '.join(UNITS)}"
    return f"{entry} is {shorten(repr(value))}, but must be {allowed}"


def to_json(value: object, at: str = "result") -> Any:  # noqa: ANN401 # of any kind
    """Convert numpy numbers, arrays, tuples and paths to types that JSON has; nan becomes None.

    Args:
        value: The value, which may be nested.
        at: Location of the value, for messages.

    Raises:
        TypeError: A value has a type that JSON lacks.
        ValueError: A number is infinite.
    """
    if isinstance(value, np.generic | np.ndarray):
        return to_json(value.tolist(), at)
    if isinstance(value, float):
        if math.isinf(value):
            raise ValueError(f"{at} is infinite, which cannot be written as strict JSON")
        return None if math.isnan(value) else value
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(inner, f"{at}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner, f"{at}[{place}]") for place, inner in enumerate(value)]
    raise TypeError(f"{at} is a {type(value).__name__}, which cannot be written as JSON")
