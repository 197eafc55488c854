"""Intervals and p-values by hand: from all subsets of a few units, one after the other, and for several numbers."""

from collections.abc import Sequence
from itertools import chain, combinations

import numpy as np
from scipy.special import expit, logit
from scipy.stats import binomtest, t as student


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


def at_once_by_hand(
    value: float, interval: tuple[float, float], inputs: int, numbers: int, *, share: bool = True
) -> tuple[float, float]:
    """Student's interval of a mean that holds for several means at once, from that of the mean alone.

    Args:
        value: The mean.
        interval: Its 95 % interval.
        inputs: Number of inputs.
        numbers: Number of means (Bonferroni).
        share: True for means from 0 to 1, whose interval is symmetric in log odds; False if it is in logarithms.
    """
    wider = student.isf(0.025 / numbers, inputs - 1) / student.isf(0.025, inputs - 1)
    scale, back = (logit, expit) if share else (np.log, np.exp)
    low, high = (float(back(scale(value) + wider * (scale(end) - scale(value)))) for end in interval)
    return low, high
