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
_PARTS = ("low", "high", "sd")
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
        draws: Value under each draw of the test set, `[draws]`; see `metrics.draws`.
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
        numbers = {}
        for name in ("value", *ENDS, "inputs"):
            array = getattr(self, name)
            if array is not None:
                numbers[name] = array[place]
        return replace(self, **numbers)

    @property
    def interval(self) -> tuple[Number, Number]:
        """Low and high end of the interval; the estimate must have one."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def columns(self, name: str) -> dict[str, Number]:
        """Return the numbers of this estimate by name: `<name>`, `<name>.low`, `.high`, `.sd` and `.p`.

        The last four are the ends of the interval, the standard deviation over seeds and the p-value.
        Numbers that were not computed are left out.
        """
        by_name = {name: self.value}
        for end in ENDS:
            number = getattr(self, end)
            if number is not None:
                by_name[f"{name}.{end}"] = number
        return by_name


def numbers(scores: Mapping[str, Estimate]) -> dict[str, float]:
    """Return the numbers of all scores by name: `<name>`, `<name>.low`, `.high`, `.sd` and `.p`.

    Numbers that were not computed are left out.
    """
    by_name: dict[str, float] = {}
    for name, score in scores.items():
        by_name |= score.columns(name)
    return by_name


def number_of_items(score: Estimate) -> float:
    """Return the number of items of a score, `inputs`; nan if it is unknown."""
    return np.nan if score.inputs is None else float(score.inputs)


def score_rows(scores: Mapping[str, Estimate]) -> list[dict[str, object]]:
    """Return a row for each score, with the keys `score, value, low, high, sd, p, unit`.

    `score` is the name of the score. Numbers that were not computed are None.
    """
    rows = []
    for name, score in scores.items():
        row: dict[str, object] = {"score": name, "value": score.value}
        for end in ENDS:
            row[end] = getattr(score, end)
        row["unit"] = score.unit
        rows.append(row)
    return rows


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
        note: Sentence below the table, on what its rows would be misread for; it may be empty.
        items: Number of items of each row, by column, where it differs between columns and the frame has no column
            `n`; nan if it is unknown.

    Raises:
        ValueError: A column of floats has no unit, `units`, `interval` or `main` names a column that does
            not exist, or there is no such unit.
    """

    frame: pd.DataFrame
    units: Mapping[str, Unit | Sequence[Unit]] = field(default_factory=dict)
    interval: str | None = None
    main: Sequence[str] = ()
    note: str = ""
    items: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = [str(column) for column in self.frame]
        in_options = {*self.units, *self.main}
        if self.interval:
            in_options.add(self.interval)
        unknown = sorted(in_options - set(columns))
        if unknown:
            raise ValueError(f"`units`, `interval` or `main` name columns that the table lacks: {', '.join(unknown)}")
        with_unit = set(self.units)
        for parts in self._parts().values():
            with_unit.update(parts.values())
        missing = []
        for name in columns:
            if name not in with_unit and pd.api.types.is_float_dtype(self.frame[name]):
                missing.append(name)
        if missing:
            raise ValueError(f"columns without a unit: {', '.join(missing)}")
        for name, unit in self.units.items():
            units = [unit] if isinstance(unit, str) else list(unit)
            is_complete = isinstance(unit, str) or len(units) == len(self.frame)
            if not is_complete or not set(units) <= set(UNITS):
                raise ValueError(f"{name!r} has units {units}: give one of {', '.join(UNITS)}, or one for each row")

    def rows(self, places: Sequence[int]) -> "Table":
        """Return the table of the rows at some places from 0, in the order of these places."""
        frame = self.frame.iloc[list(places)].reset_index(drop=True)
        units: dict[str, Unit | Sequence[Unit]] = {}
        for name, unit in self.units.items():
            units[name] = unit
            if not isinstance(unit, str):
                units[name] = [unit[row] for row in places]
        items = {}
        for name, numbers in self.items.items():
            items[name] = [numbers[row] for row in places]
        return replace(self, frame=frame, units=units, items=items)

    def estimate(self, row: int, column: str) -> Estimate:
        """Return the number in a row, counted from 0, and a column, with its interval and its unit."""
        numbers: dict[str, Any] = {"value": float(self.frame[column].iloc[row])}
        for part, name in self._parts().get(column, {}).items():
            numbers[part] = float(self.frame[name].iloc[row])
        return Estimate(**numbers, unit=self.unit_rows()[column][row])

    def _parts(self) -> dict[str, dict[str, str]]:
        """Return, for each column that has them, the columns of its interval's ends and its standard deviation."""
        columns = {str(column) for column in self.frame}
        parts: dict[str, dict[str, str]] = {}
        for name in columns:
            parts_of_column = {}
            for part in _PARTS:
                if f"{name}.{part}" in columns:
                    parts_of_column[part] = f"{name}.{part}"
                if name == self.interval and part in columns:
                    parts_of_column[part] = part
            if parts_of_column:
                parts[name] = parts_of_column
        return parts

    def intervals(self) -> dict[str, tuple[str, str]]:
        """Return, for each column with an interval, the names of the columns with its low and its high end."""
        intervals = {}
        for name, parts in self._parts().items():
            if "low" in parts and "high" in parts:
                intervals[name] = parts["low"], parts["high"]
        return intervals

    def unit_rows(self) -> dict[str, list[Unit]]:
        """Return the unit of every row of each column that has units, by name of the column."""
        units: dict[str, list[Unit]] = {}
        for name, unit in self.units.items():
            units[name] = [unit] * len(self.frame) if isinstance(unit, str) else list(unit)
        for name, parts in self._parts().items():
            if name in units:
                units |= dict.fromkeys(parts.values(), units[name])
        return units
