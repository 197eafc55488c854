"""Numbers with intervals and units, and tables of numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Number = TypeVar("Number", float, Floats, default=float)  # `typing` has defaults from Python 3.13 on
else:
    from typing import TypeVar

    Number = TypeVar("Number", float, Floats)

Unit = Literal["fraction", "nats", "bits", "count", "ratio", "p"]
"""Unit of a number. Fractions, including correlations, are printed ×100; `ratio` is any other plain number."""

UNITS: tuple[Unit, ...] = get_args(Unit)
ENDS = ("low", "high", "sd", "p")
"""Numbers that belong to a value, named `<name>.low` and so on."""


@dataclass(frozen=True)
class Estimate(Generic[Number]):
    """A number with its 95 % interval, or arrays of numbers and their intervals, such as one for each head.

    A field is None if the number does not exist, and nan if it is undefined.

    Attributes:
        value: the number, or an array; the other numbers have its shape.
        low: low end of the interval.
        high: high end of the interval.
        unit: unit of the number.
        sd: standard deviation over seeds.
        p: two-sided p-value of the number being zero.
        inputs: number of inputs that a mean is taken over.
        draws: the statistic under each resample of the test set, `[draws]`.

    Raises:
        ValueError: there is no such unit, or only one end of the interval.
    """

    value: Number
    low: Number | None = None
    high: Number | None = None
    unit: Unit = field(kw_only=True)
    sd: Number | None = field(default=None, kw_only=True)
    p: Number | None = field(default=None, kw_only=True)
    inputs: Any = field(default=None, kw_only=True, compare=False)
    draws: Floats = field(default_factory=lambda: np.empty(0), kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"{self.unit!r} is not a unit: use one of {', '.join(UNITS)}")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"an interval needs both ends or neither, not {self.low} and {self.high}")

    def __getitem__(self, place: Any) -> "Estimate[Any]":  # noqa: ANN401 - any index of an array
        numbers = {name: getattr(self, name) for name in ("value", *ENDS, "inputs")}
        return replace(self, **{name: number[place] for name, number in numbers.items() if number is not None})

    @property
    def interval(self) -> tuple[Number, Number]:
        """Low and high end of the interval of this estimate, which must have one."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def named(self, name: str) -> dict[str, Number]:
        """Return the numbers of this estimate that exist: `<name>`, `<name>.low`, `.high`, `.sd`, `.p`."""
        numbers = {f"{name}.{end}": getattr(self, end) for end in ENDS}
        return {name: self.value, **{end: number for end, number in numbers.items() if number is not None}}


def numbers(scores: Mapping[str, Estimate]) -> dict[str, float]:
    """Return the numbers of all scores by name: `<name>`, `<name>.low`, `<name>.high` and so on."""
    return {end: number for name, score in scores.items() for end, number in score.named(name).items()}


@dataclass(frozen=True, eq=False)
class Table:
    """A data frame whose numbers have units.

    The ends of the interval of column `x` are columns `x.low` and `x.high`, its standard deviation is `x.sd`; plain
    `low`, `high` and `sd` belong to the column `interval`. They have the unit of their column.

    Attributes:
        frame: the rows.
        units: units of the columns of floats, except ends of intervals and standard deviations: one for all rows, or
            one per row.
        interval: column to which plain `low`, `high` and `sd` belong.
        answer: columns that answer the question of the experiment. Only a table with such columns is printed, with
            these columns at any width; every table is written to its file.

    Raises:
        ValueError: a column of floats has no unit, a unit or an answer has no column, or there is no such unit.
    """

    frame: pd.DataFrame
    units: Mapping[str, Unit | Sequence[Unit]] = field(default_factory=dict)
    interval: str | None = None
    answer: Sequence[str] = ()

    def __post_init__(self) -> None:
        columns = [str(column) for column in self.frame]
        named = {*self.units, *self.answer, *([self.interval] if self.interval else [])}
        if strange := sorted(named - set(columns)):
            raise ValueError(f"`units`, `interval` or `answer` name columns that the table lacks: {', '.join(strange)}")
        owned = {end for ends in self._owned().values() for end in ends.values()}
        floats = [name for name in columns if pd.api.types.is_float_dtype(self.frame[name])]
        if missing := [name for name in floats if name not in self.units and name not in owned]:
            raise ValueError(f"columns without a unit: {', '.join(missing)}")
        for name, unit in self.units.items():
            of_rows = [unit] if isinstance(unit, str) else list(unit)
            if not set(of_rows) <= set(UNITS) or not (isinstance(unit, str) or len(of_rows) == len(self.frame)):
                raise ValueError(f"{name!r} has units {of_rows}: give one of {', '.join(UNITS)}, or one for each row")

    def _owned(self) -> dict[str, dict[str, str]]:
        """Return the columns of interval ends and standard deviation for each column that has them."""
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
        """Return, for each column of this table with an interval, the columns of its low and its high end."""
        return {name: (ends["low"], ends["high"]) for name, ends in self._owned().items() if {"low", "high"} <= {*ends}}

    def unit_rows(self) -> dict[str, list[Unit]]:
        """Return the units of every column of this table, one per row; columns without a unit are absent."""
        rows = len(self.frame)
        of_columns = {name: [unit] * rows if isinstance(unit, str) else list(unit) for name, unit in self.units.items()}
        for name, ends in self._owned().items():
            if name in of_columns:
                of_columns |= dict.fromkeys(ends.values(), of_columns[name])
        return of_columns
