"""Numbers with intervals and units, and tables of numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, get_args

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

Unit = Literal["fraction", "nats", "bits", "count", "ratio", "p", "least_p"]
"""Unit of a number. Fractions, including correlations, are printed ×100; `ratio` is any other plain number. A p-value
that no draw could have made smaller is a `least_p`, and printed with ≤."""

UNITS: tuple[Unit, ...] = get_args(Unit)
ENDS = ("low", "high", "sd", "p")
"""Numbers that belong to a value, named `<name>.low` and so on."""
TIE = 1e-12
"""Numbers that differ by less are equal: the order of summation changes the last digit."""

FEW = 20
"""A share of fewer items has an exact interval, and is marked where it is printed."""


class Counts(NamedTuple):
    """Items of each unit that a share counts.

    Attributes:
        found: Number of items that are found; for a difference of shares, the difference of these numbers, `[units]`.
        items: Number of items, `[units]`.
        signed: True for a difference of shares.
    """

    found: Floats
    items: Floats
    signed: bool = False


@dataclass(frozen=True)
class Estimate(Generic[Number]):
    """Number with its 95 % interval, or an array of numbers with their intervals, for instance one for each head.

    A field is None if it was not computed, and nan if it is undefined.

    Attributes:
        value: The number, or an array; the other numbers have its shape.
        low: Low end of the interval.
        high: High end of the interval.
        unit: Unit of the number.
        sd: Standard deviation over seeds.
        p: Two-sided p-value for the hypothesis that the number is zero.
        inputs: Number of inputs that a mean is taken over, or of items that a share counts.
        units: Number of independent units, such as documents or texts, that the number is computed over.
        draws: Value under each draw of the test set, `[draws]`; see `metrics.bootstrap`.
        counts: Items of each unit, if the number is a share or a difference of shares; None for other numbers.
        runs: Estimates of runs that differ only in the seed, of which this is the mean.

    Raises:
        ValueError: There is no such unit, or only one end of the interval.
    """

    value: Number
    low: Number | None = None
    high: Number | None = None
    unit: Unit = field(kw_only=True)
    sd: Number | None = field(default=None, kw_only=True)
    p: Number | None = field(default=None, kw_only=True)
    inputs: Any = field(default=None, kw_only=True, compare=False)
    units: int | None = field(default=None, kw_only=True, compare=False, repr=False)
    draws: Floats = field(default_factory=lambda: np.empty(0), kw_only=True, compare=False, repr=False)
    counts: Counts | None = field(default=None, kw_only=True, compare=False, repr=False)
    runs: "tuple[Estimate, ...]" = field(default=(), kw_only=True, compare=False, repr=False)

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
        """Low and high end of the interval; the estimate must have one."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def named(self, name: str) -> dict[str, Number]:
        """Return the numbers of this estimate by name: `<name>`, `<name>.low`, `.high`, `.sd` and `.p`.

        The last four are the ends of the interval, the standard deviation over seeds and the p-value.
        Numbers that were not computed are left out.
        """
        numbers = {f"{name}.{end}": getattr(self, end) for end in ENDS}
        return {name: self.value, **{end: number for end, number in numbers.items() if number is not None}}


def numbers(scores: Mapping[str, Estimate]) -> dict[str, float]:
    """Return the numbers of all scores by name: `<name>`, `<name>.low`, `.high`, `.sd` and `.p`.

    Numbers that were not computed are left out.
    """
    return {end: number for name, score in scores.items() for end, number in score.named(name).items()}


def score_rows(scores: Mapping[str, Estimate]) -> list[dict[str, object]]:
    """Return a row for each score, with the keys `score, value, low, high, sd, p, unit`.

    `score` is the name of the score. Numbers that were not computed are None.
    """
    return [
        {"score": name, "value": one.value, **{end: getattr(one, end) for end in ENDS}, "unit": one.unit}
        for name, one in scores.items()
    ]


@dataclass(frozen=True, eq=False)
class Table:
    """Data frame whose numbers have units.

    A column `x` may come with the columns `x.low` and `x.high`, the ends of its interval, and `x.sd`, its
    standard deviation. One column, named by `interval`, may instead come with columns called just `low`,
    `high` and `sd`. All these have the unit of the column they belong to.

    Attributes:
        frame: The rows.
        units: Unit of each column of floats, except interval ends and standard deviations: one for all
            rows, or one per row.
        interval: Column to which the columns called just `low`, `high` and `sd` belong.
        main: Columns that answer the question of the experiment. A table is printed only if it has such
            columns, and these are printed at any width of the terminal. Every table is written to a file.

    Raises:
        ValueError: A column of floats has no unit, `units`, `interval` or `main` names a column that does
            not exist, or there is no such unit.
    """

    frame: pd.DataFrame
    units: Mapping[str, Unit | Sequence[Unit]] = field(default_factory=dict)
    interval: str | None = None
    main: Sequence[str] = ()

    def __post_init__(self) -> None:
        columns = [str(column) for column in self.frame]
        named = {*self.units, *self.main, *([self.interval] if self.interval else [])}
        if strange := sorted(named - set(columns)):
            raise ValueError(f"`units`, `interval` or `main` name columns that the table lacks: {', '.join(strange)}")
        owned = {end for ends in self._owned().values() for end in ends.values()}
        floats = [name for name in columns if pd.api.types.is_float_dtype(self.frame[name])]
        if missing := [name for name in floats if name not in self.units and name not in owned]:
            raise ValueError(f"columns without a unit: {', '.join(missing)}")
        for name, unit in self.units.items():
            of_rows = [unit] if isinstance(unit, str) else list(unit)
            if not set(of_rows) <= set(UNITS) or not (isinstance(unit, str) or len(of_rows) == len(self.frame)):
                raise ValueError(f"{name!r} has units {of_rows}: give one of {', '.join(UNITS)}, or one for each row")

    def rows(self, places: Sequence[int]) -> "Table":
        """Return the table of the rows at some places from 0, in the order of these places."""
        found = {
            name: unit if isinstance(unit, str) else [unit[row] for row in places] for name, unit in self.units.items()
        }
        return replace(self, frame=self.frame.iloc[list(places)].reset_index(drop=True), units=found)

    def estimate(self, row: int, column: str) -> Estimate:
        """Return the number in a row, counted from 0, and a column, with its interval and its unit."""
        columns = {"value": column, **self._owned().get(column, {})}
        found: dict[str, Any] = {end: float(self.frame[name].iloc[row]) for end, name in columns.items()}
        return Estimate(**found, unit=self.unit_rows()[column][row])

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
        """Return, for each column with an interval, the names of the columns with its low and its high end."""
        return {name: (ends["low"], ends["high"]) for name, ends in self._owned().items() if {"low", "high"} <= {*ends}}

    def unit_rows(self) -> dict[str, list[Unit]]:
        """Return the unit of every row of each column that has units, by name of the column."""
        rows = len(self.frame)
        of_columns = {name: [unit] * rows if isinstance(unit, str) else list(unit) for name, unit in self.units.items()}
        for name, ends in self._owned().items():
            if name in of_columns:
                of_columns |= dict.fromkeys(ends.values(), of_columns[name])
        return of_columns
