"""Numbers with their intervals and units, tables of them, and the result of an experiment."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

import pandas as pd

if TYPE_CHECKING:
    from results.figures import Figure

Unit = Literal["fraction", "nats", "bits", "count", "ratio", "p"]
"""Unit of a number. Fractions, including correlations, are printed ×100; `ratio` is any other plain number."""

UNITS: tuple[Unit, ...] = get_args(Unit)
ENDS = ("low", "high", "sd", "p")
"""Numbers that belong to a value, named `<name>.low` and so on."""

_FILE_STEM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval. None: there is no such number; nan: it is undefined.

    Attributes:
        sd: Standard deviation over seeds.
        p: Two-sided p-value of the number being zero.

    Raises:
        ValueError: There is no such unit, or only one end of the interval.
    """

    value: float
    low: float | None = None
    high: float | None = None
    unit: Unit = field(kw_only=True)
    sd: float | None = field(default=None, kw_only=True)
    p: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"there is no unit {self.unit!r}: use one of {', '.join(UNITS)}")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"an interval has two ends, not {self.low} and {self.high}")

    def named(self, name: str) -> dict[str, float]:
        """Return the numbers that it has, as `<name>`, `<name>.low`, `<name>.high`, `<name>.sd`, `<name>.p`."""
        numbers = {f"{name}.{end}": getattr(self, end) for end in ENDS}
        return {name: self.value, **{end: number for end, number in numbers.items() if number is not None}}


def estimates(
    names: Iterable[str], values: Iterable[float], low: Iterable[float], high: Iterable[float], unit: Unit
) -> dict[str, Estimate]:
    """Return an estimate for each name, from as many values and ends of intervals."""
    return {
        name: Estimate(*map(float, numbers), unit=unit) for name, *numbers in zip(names, values, low, high, strict=True)
    }


def numbers(scores: Mapping[str, Estimate]) -> dict[str, float]:
    """Return every number of named estimates, as `<name>`, `<name>.low`, `<name>.high` and so on."""
    return {end: number for name, score in scores.items() for end, number in score.named(name).items()}


@dataclass(frozen=True, eq=False)
class Table:
    """A frame whose numbers have units.

    The ends of the interval of column `x` are columns `x.low` and `x.high`, its standard deviation is `x.sd`; plain
    `low`, `high` and `sd` belong to the column `interval`. They have the unit of their column.

    Attributes:
        units: Units of the columns of floats, except ends of intervals and standard deviations: one for all rows, or
            one per row.
        interval: The column to which plain `low`, `high` and `sd` belong.
        answer: The columns that answer the question of the experiment. A table that names them is printed, with these
            columns at any width; any table is written to its file.

    Raises:
        ValueError: A column of floats has no unit, a unit or an answer has no column, or there is no such unit.
    """

    frame: pd.DataFrame
    units: Mapping[str, Unit | Sequence[Unit]] = field(default_factory=dict)
    interval: str | None = None
    answer: Sequence[str] = ()

    def __post_init__(self) -> None:
        columns = [str(column) for column in self.frame]
        named = {*self.units, *self.answer, *([self.interval] if self.interval else [])}
        if strange := sorted(named - set(columns)):
            raise ValueError(f"units, intervals or answers of columns that are not there: {', '.join(strange)}")
        owned = {end for ends in self._owned().values() for end in ends.values()}
        floats = [name for name in columns if pd.api.types.is_float_dtype(self.frame[name])]
        if missing := [name for name in floats if name not in self.units and name not in owned]:
            raise ValueError(f"columns without a unit: {', '.join(missing)}")
        for name, unit in self.units.items():
            of_rows = [unit] if isinstance(unit, str) else list(unit)
            if not set(of_rows) <= set(UNITS) or not (isinstance(unit, str) or len(of_rows) == len(self.frame)):
                raise ValueError(f"{name!r} has units {of_rows}: give one of {', '.join(UNITS)}, or one for each row")

    def _owned(self) -> dict[str, dict[str, str]]:
        """Return the columns of the ends and of the standard deviation, by the column they belong to."""
        columns = {str(column) for column in self.frame}
        found: dict[str, dict[str, str]] = {}
        for name in columns:
            owned = {end: f"{name}.{end}" for end in ("low", "high", "sd") if f"{name}.{end}" in columns}
            if name == self.interval:
                owned |= {end: end for end in ("low", "high", "sd") if end in columns}
            if owned:
                found[name] = owned
        return found

    def intervals(self) -> dict[str, tuple[str, str]]:
        """Return the columns of the low and the high end, by the column they belong to."""
        return {name: (ends["low"], ends["high"]) for name, ends in self._owned().items() if {"low", "high"} <= {*ends}}

    def unit_rows(self) -> dict[str, list[Unit]]:
        """Return the unit of every number, by column and row; columns without a unit are absent."""
        rows = len(self.frame)
        of_columns = {name: [unit] * rows if isinstance(unit, str) else list(unit) for name, unit in self.units.items()}
        for name, ends in self._owned().items():
            if name in of_columns:
                of_columns |= dict.fromkeys(ends.values(), of_columns[name])
        return of_columns


@dataclass(frozen=True, eq=False)
class Result:
    """Result of an experiment. The names of tables and figures become file names.

    Attributes:
        scores: Named estimates; nan where a score is undefined.
        headline: Names of the scores that answer the question of the experiment; they are printed first.
        audit: Counts of what was left out or changed.
        items: One row per test item, if any.
        ratios: Scores that divide the sums of two columns of `items`; runs on the same items are compared by them.

    Raises:
        ValueError: A score has no name or is infinite, the name of a table or figure cannot be a file name, a ratio
            belongs to no score or names no columns of the items, or a headline is no score.
    """

    experiment: str
    scores: Mapping[str, Estimate]
    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: "Mapping[str, Figure]" = field(default_factory=dict)
    audit: Mapping[str, object] = field(default_factory=dict)
    items: pd.DataFrame | None = None
    ratios: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    headline: Sequence[str] = ()

    def __post_init__(self) -> None:
        if strange := [name for name in self.headline if name not in self.scores]:
            raise ValueError(f"{strange} of {self.experiment!r} are headlines, and no scores")
        columns = () if self.items is None else tuple(self.items)
        for name, pair in self.ratios.items():
            if name not in self.scores or not set(pair) <= set(columns):
                raise ValueError(f"{name!r} of {self.experiment!r} is no score, or {pair} are no columns of its items")
        for name, score in self.scores.items():
            if not name.strip():
                raise ValueError(f"a score of {self.experiment!r} has an empty name: {score}")
            for end, number in score.named(name).items():
                if math.isinf(number):
                    raise ValueError(f"the score {end!r} of {self.experiment!r} is infinite")
        for name in (*self.tables, *self.figures):
            if not _FILE_STEM.fullmatch(name):
                raise ValueError(
                    f"{name!r} of {self.experiment!r} cannot be a file name: use letters, digits and any of . _ + -"
                )

    @property
    def numbers(self) -> dict[str, float]:
        """All numbers of the scores, as in `results.json`."""
        return numbers(self.scores)


def merged(experiment: str, results: Mapping[str, Result]) -> Result:
    """Join several results, by name, to one without their items.

    A score, table or figure keeps its name; another one of that name is called `<name>.<its name>`, as are all entries
    of the audit. Scores that are equal are one.
    """
    scores, tables, figures = dict[str, Estimate](), dict[str, Table](), dict[str, "Figure"]()
    audit, headline = dict[str, object](), list[str]()
    for name, result in results.items():
        fresh = {key: free_name(key, name, scores) for key, value in result.scores.items() if scores.get(key) != value}
        headline += [fresh[key] for key in result.headline if key in fresh]
        scores |= {known: result.scores[key] for key, known in fresh.items()}
        tables |= {free_name(key, name, tables): table for key, table in result.tables.items()}
        figures |= {free_name(key, name, figures): figure for key, figure in result.figures.items()}
        audit |= {f"{name}.{key}": value for key, value in result.audit.items()}
    return Result(experiment, scores, tables, figures, audit, headline=headline)


def free_name(key: str, owner: str, taken: Mapping[str, object]) -> str:
    """Return the key itself, or `<owner>.<key>` where it is taken."""
    return f"{owner}.{key}" if key in taken else key


@dataclass(frozen=True, eq=False)
class Provenance:
    """Description of the inputs of a datamodule."""

    encoder: Mapping[str, object]  # name, weights, layers, heads
    data: Mapping[str, object]  # file, hash and number of sentences of each split
    audit: Mapping[str, object]  # counts of what was left out or changed while reading and encoding
