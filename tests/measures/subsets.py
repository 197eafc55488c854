"""Intervals and p-values of a few numbers from all subsets of their units, one subset after the other."""

from collections.abc import Sequence
from itertools import chain, combinations

import numpy as np
from scipy.stats import binomtest


def sums_of_subsets(gains: Sequence[float], items: Sequence[float]) -> list[float]:
    """Σ gains / Σ items of every subset of the units but the empty one; nan without items."""
    units = range(len(gains))
    ratios = []
    for subset in chain.from_iterable(combinations(units, size) for size in range(1, len(gains) + 1)):
        total = sum(items[unit] for unit in subset)
        ratios.append(sum(gains[unit] for unit in subset) / total if total else np.nan)
    return ratios


def p_at(value: float, draws: Sequence[float]) -> float:
    """Two-sided p-value that a number is `value`; an undefined draw counts against it on either side."""
    below = sum(not draw > value for draw in draws)
    above = sum(not draw < value for draw in draws)
    return min(1.0, 2 * (1 + min(below, above)) / (1 + len(draws)))


def interval_by_hand(draws: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest draw at which p is above .05; nan if p never is below, or if all draws are equal."""
    kept = [draw for draw in draws if p_at(draw, draws) > 0.05]
    if p_at(np.inf, draws) > 0.05 or max(kept) - min(kept) < 1e-12:
        return np.nan, np.nan
    return min(kept), max(kept)


def signed_interval_by_hand(gains: Sequence[int]) -> tuple[float, float]:
    """Interval of a difference of shares of as many items as there are gains, each −1, 0 or 1 (Donner & Zou 2012)."""
    number = len(gains)
    lows, shares, highs = [], [], []
    for sign in (1, -1):
        found = sum(gain == sign for gain in gains)
        exact = binomtest(found, number).proportion_ci(0.95, "exact")
        lows.append(exact.low)
        shares.append(found / number)
        highs.append(exact.high)
    difference = shares[0] - shares[1]
    low = difference - ((shares[0] - lows[0]) ** 2 + (highs[1] - shares[1]) ** 2) ** 0.5
    high = difference + ((highs[0] - shares[0]) ** 2 + (shares[1] - lows[1]) ** 2) ** 0.5
    return low, high
