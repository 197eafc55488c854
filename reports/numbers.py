"""The form of numbers in tables, the same in the terminal and in print.

Which numbers are fractions follows from the numbers: a score, or a column of floats, whose finite values all lie in
[−1, 1] is shown ×100 with one decimal, unless its name says that they are something else: p-values, nats, bits,
settings. In a table with a column `score` each row has the unit of its score. Other floats keep four significant
digits. CSV and JSON always hold the numbers as they were computed.
"""

import math

import numpy as np
import pandas as pd

PLAIN = frozenset({"p", "nats", "bits", "jsd", "js", "loss", "area", "compression", "epsilon", "strength"})
"""Words in the names of columns and scores that are no fractions, whatever their values are."""

SCORE = "score"
"""The column of names of a table whose rows are scores."""


def are_fractions(name: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bool:
    """Say whether the values of a column or a score are shown ×100.

    p-values, losses and divergences, which are nats, bits, and what an experiment was set to are not: `PLAIN`.
    """
    return not _plain(name) and bool((np.abs(values[np.isfinite(values)]) <= 1).all())


def _plain(name: str) -> bool:
    parts = name.split(".")
    return not PLAIN.isdisjoint(parts[-1].split("_")) or "loss" in parts


def number(value: float, fraction: bool, *, missing: str) -> str:
    """Write a float, ×100 with one decimal when it is a fraction; nan becomes `missing`."""
    if math.isnan(value):
        return missing
    return f"{100 * value:.1f}" if fraction else f"{value:.4g}"


def written(frame: pd.DataFrame, *, missing: str) -> dict[str, list[str]]:
    """Write every column, row by row; the ends of an interval stand behind what they belong to, `54.3 [53.5, 55.1]`.

    Returns:
        The cells of each column that is no end of an interval; `missing` for what is absent.
    """
    found, owners = intervals(frame), spread_of(frame)
    folded = {end for ends in found.values() for end in ends}
    cells: dict[str, list[str]] = {}
    for column in (column for column in frame.columns if column not in folded):
        if pd.api.types.is_float_dtype(frame[column]):
            fractions = _fractions(frame, owners.get(column, column))
            values = frame[[column, *found.get(column, ())]].to_numpy(dtype=np.float64)
            cells[column] = [_cell(*pair, missing) for pair in zip(values.tolist(), fractions, strict=True)]
        else:
            absent = frame[column].isna()
            cells[column] = [missing if none else str(value) for value, none in zip(frame[column], absent, strict=True)]
    return cells


def _fractions(frame: pd.DataFrame, column: str) -> list[bool]:
    """Whether each cell of a column is shown ×100."""
    if SCORE not in frame or _plain(column):
        return [are_fractions(column, frame[column].to_numpy(dtype=np.float64))] * len(frame)
    floats = [name for name in frame.columns if pd.api.types.is_float_dtype(frame[name]) and not _plain(name)]
    rows = frame[floats].to_numpy(dtype=np.float64)
    return [are_fractions(str(name), row) for name, row in zip(frame[SCORE], rows, strict=True)]


def _cell(values: list[float], fraction: bool, missing: str) -> str:
    first, *bounds = (number(value, fraction, missing="") for value in values)
    return f"{first or missing} [{bounds[0]}, {bounds[1]}]" if bounds and all(bounds) else first or missing


def spread_of(frame: pd.DataFrame) -> dict[str, str]:
    """Find the columns that hold the standard deviation of another column, which decides whether it is shown ×100.

    Column `x.sd` is that of column `x`; plain `sd` is that of the column of floats before it, ends of intervals apart.
    """
    owners: dict[str, str] = {}
    before: str | None = None
    for column in frame.columns:
        owner = before if column == "sd" else str(column).removesuffix(".sd")
        if column == "sd" or str(column).endswith(".sd"):
            if owner is not None and owner in frame.columns:
                owners[str(column)] = owner
        elif pd.api.types.is_float_dtype(frame[column]) and str(column).rpartition(".")[2] not in ("low", "high"):
            before = str(column)
    return owners


def intervals(frame: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Find the columns that hold the ends of another column's interval.

    Columns `x.low` and `x.high` are those of column `x`; plain `low` and `high` are those of the column of floats
    before them.
    """
    found: dict[str, tuple[str, str]] = {}
    before: str | None = None
    for column in frame.columns:
        if column == "low" and "high" in frame.columns and before is not None:
            found[before] = ("low", "high")
        elif pd.api.types.is_float_dtype(frame[column]) and column != "high":
            before = column
            if {f"{column}.low", f"{column}.high"} <= set(frame.columns):
                found[column] = (f"{column}.low", f"{column}.high")
    return found
