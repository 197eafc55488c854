"""The form of numbers in tables, the same in the terminal and in print.

Which numbers are fractions follows from the numbers: a score, or a column of floats, whose finite values all lie in
[−1, 1] is shown ×100 with one decimal, unless its name says that they are something else: p-values, nats, settings.
Other floats keep four significant digits. CSV and JSON always hold the numbers as they were computed.
"""

import math

import numpy as np
import pandas as pd

PLAIN = frozenset({"p", "p_holm", "delta_js", "area", "epsilon", "strength"})
"""Ends of names of columns and scores that are no fractions, whatever their values are."""


def are_fractions(name: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bool:
    """Say whether the values of a column or a score are shown ×100.

    p-values, losses and divergences, which are nats, and what an experiment was set to are not: `PLAIN`.
    """
    parts = name.split(".")
    plain = parts[-1] in PLAIN or "jsd" in parts[-1] or "loss" in parts
    return not plain and bool((np.abs(values[np.isfinite(values)]) <= 1).all())


def number(value: float, fraction: bool, *, missing: str) -> str:
    """Write a float, ×100 with one decimal when it is a fraction; nan becomes `missing`."""
    if math.isnan(value):
        return missing
    return f"{100 * value:.1f}" if fraction else f"{value:.4g}"


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
