"""The form of numbers in tables, the same in the terminal and in print.

Fractions are shown ×100 with one decimal, other floats with four significant digits. CSV and JSON always hold the
numbers as they were computed.
"""

import math
from collections.abc import Sequence

import pandas as pd

from results import Estimate, Table, Unit


def number(value: float, unit: Unit, *, missing: str) -> str:
    """Write a float, ×100 with one decimal when it is a fraction; nan becomes `missing`."""
    if math.isnan(value):
        return missing
    return f"{100 * value:.1f}" if unit == "fraction" else f"{value:.4g}"


def with_interval(estimate: Estimate, *, missing: str) -> str:
    """Write an estimate, and behind it its interval where that is defined: `54.3 [53.5, 55.1]`."""
    ends = [end for end in (estimate.low, estimate.high) if end is not None]
    return _cell([estimate.value, *ends], estimate.unit, missing)


def written(table: Table, *, missing: str) -> dict[str, list[str]]:
    """Write every column, row by row; an interval stands behind the number it belongs to.

    Returns:
        The cells of each column that is no end of an interval; `missing` for what is absent.
    """
    frame, intervals, units = table.frame, table.intervals(), table.unit_rows()
    ends = {end for pair in intervals.values() for end in pair}
    cells: dict[str, list[str]] = {}
    for column in (column for column in frame.columns if column not in ends):
        if column in units and pd.api.types.is_float_dtype(frame[column]):
            numbers = frame[[column, *intervals.get(column, ())]].to_numpy(dtype=float).tolist()
            cells[column] = [_cell(row, unit, missing) for row, unit in zip(numbers, units[column], strict=True)]
        else:
            absent = frame[column].isna()
            cells[column] = [missing if none else str(value) for value, none in zip(frame[column], absent, strict=True)]
    return cells


def _cell(values: Sequence[float], unit: Unit, missing: str) -> str:
    first, *bounds = (number(value, unit, missing="") for value in values)
    return f"{first or missing} [{bounds[0]}, {bounds[1]}]" if bounds and all(bounds) else first or missing
