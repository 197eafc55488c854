"""P-values: their correction for the number of tests, their smallest values, and the test of a greatest sum."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from attention_probing.metrics.draws import CELLS, EXACT
from attention_probing.results import TIE, Floats, Unit

DRAWS_OF_ROW = 200
"""Draws for each relation of a table: the two-sided p-value of one of them can be .01 after the correction."""
_MOST_CELLS = 1 << 28  # most draws × units of p-values that are corrected for their number, two bytes each


def holm(p_values: Sequence[float]) -> Floats:
    """Return Holm-corrected p-values (Holm 1979), which control the family-wise error rate.

    A nan stays nan and is not counted as a test.
    """
    values = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(values.shape, np.nan)
    order = np.argsort(values)[: np.count_nonzero(~np.isnan(values))]  # argsort puts nan last
    factors = np.arange(order.size, 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return adjusted


def draws_for(tests: int, units: int, least: int, *, each: int = 100) -> int:
    """Return the number of bootstrap draws for p-values that Holm's method corrects for their number.

    Each p-value takes a number of draws, so that it can still be small after the correction. With many units the draws
    are fewer, so that they fit into memory, but at least 1000.

    Args:
        tests: Number of p-values.
        units: Number of units that are resampled.
        least: Number of draws if there are few tests.
        each: Number of draws for each p-value.
    """
    draws = max(least, each * tests)
    most = max(_MOST_CELLS // max(units, 1), 1000)
    return min(draws, most)


def least_p(units: int, draws: int) -> float:
    """Return the p-value that no draw could make smaller; 0 if all subsets are enumerated, so that each p is exact.

    Args:
        units: Number of units.
        draws: Number of subsets that are drawn for more than `EXACT` units.
    """
    return 0.0 if units <= EXACT else 2 / (1 + draws)


def smallest_p(units: int, draws: int) -> float:
    """Return the smallest p-value of a difference that so many units and draws allow; see `least_p`."""
    return float(max(2 / (1 + draws), 2 * 0.5**units))


def p_units(p_values: ArrayLike, least: float) -> list[Unit]:
    """Return the unit of each p-value: `least_p` for the smallest possible one, which is printed with ≤.

    It is the unit after Holm's correction, too, which multiplies the smallest possible p-value like the others.

    Args:
        p_values: P-values before correction.
        least: The smallest possible p-value: 1 / (1 + draws) of a one-sided test by draws, else `least_p`.
    """
    units: list[Unit] = []
    for p in np.asarray(p_values, np.float64).tolist():
        units.append("least_p" if p < 1.5 * least else "p")
    return units


def max_sign_flip_p(differences: ArrayLike, *, draws: int = 1000, seed: int = 0) -> float:
    """Return the one-sided p-value of the greatest of K sums of paired differences, by random signs of the units.

    The null hypothesis is that no sum is above zero. Each draw gives the differences of each unit a random sign, and
    takes the greatest of the K sums, as the observed one was chosen (max statistic of Westfall & Young 1993). The
    p-value is (1 + k) / (1 + draws), where k draws have a maximum at least as great as the observed one. It is nan
    without units.

    Args:
        differences: Differences of each unit, `[units, K]`.
        draws: Number of random draws.
        seed: Seed of the draws.
    """
    moved = np.asarray(differences, dtype=np.float64)
    if not len(moved):
        return np.nan
    rng = np.random.default_rng(seed)
    chunk = max(1, CELLS // len(moved))
    greatest = []
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        signs = 2.0 * rng.integers(2, size=(size, len(moved)), dtype=np.int8) - 1
        greatest.append((signs @ moved).max(axis=1))
    observed = moved.sum(axis=0).max()
    as_great = np.count_nonzero(np.concatenate(greatest) >= observed - TIE)
    return float((1 + as_great) / (1 + draws))
