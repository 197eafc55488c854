"""Intervals and p-values the slow way: from lists of units, and of sorted draws."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from attention_probing.metrics.draws import resamples
from attention_probing.results import Estimate

TAIL = 0.025


def subsets(units: int, draws: int, seed: int = 0) -> list[list[int]]:
    """The units of each subset."""
    found = []
    for weights in resamples(units, draws, seed):
        for row in weights:
            found.append([unit for unit in range(units) if row[unit]])
    return found


def level_tail(units: int) -> float:
    """Probability beyond each end of the interval of a number that is not compared."""
    normal = stats.norm.ppf(0.975)
    return float(stats.norm.cdf(-normal * (1 + 1.5 / units)))


def sorted_ends(draws: Sequence[float], tail: float = TAIL) -> tuple[float, float]:
    """The interval of which a tail of the draws is beyond each end; the empty subset and undefined draws are, too.

    It is unknown where none is left, or all are equal.
    """
    known = [draw for draw in draws if not math.isnan(draw)]
    if not known or max(known) - min(known) < 1e-12:
        return math.nan, math.nan
    everywhere = [math.inf] * (1 + len(draws) - len(known))
    place = math.floor(tail * (1 + len(draws)) + 1e-12)
    low = sorted([-one for one in everywhere] + known)[place]
    high = sorted(known + everywhere, reverse=True)[place]
    if math.isinf(low) or math.isinf(high):
        return math.nan, math.nan
    return low, high


def counted_p(draws: Sequence[float]) -> float:
    """Twice the share of draws that are not on one side of zero; the empty subset and undefined draws are not."""
    not_above = 1 + sum(not draw > 1e-12 for draw in draws)
    not_below = 1 + sum(not draw < -1e-12 for draw in draws)
    return min(1.0, 2 * min(not_above, not_below) / (1 + len(draws)))


def jackknife(correlation: Callable[[list[int]], float], parts: Sequence[Sequence[int]]) -> tuple[float, float]:
    """The interval of a correlation on Fisher's scale, from the correlations without each part of the rows.

    Args:
        correlation: Correlation of some rows.
        parts: Rows of each part.
    """
    every = sorted(row for part in parts for row in part)
    scale = []
    for part in parts:
        rest = [row for row in every if row not in set(part)]
        scale.append(math.atanh(correlation(rest)))
    number = len(parts)
    average = sum(scale) / number
    variance = (number - 1) / number * sum((one - average) ** 2 for one in scale)
    margin = stats.t.ppf(0.975, number - 1) * math.sqrt(variance)
    middle = math.atanh(correlation(every))
    return float(np.tanh(middle - margin)), float(np.tanh(middle + margin))


def numbers(found: Estimate) -> tuple[float, ...]:
    """Value, interval, and p-value of a difference."""
    return tuple(found.columns("").values())


def width(found: Estimate) -> float:
    low, high = found.interval
    return float(high - low)


def p_of(found: Estimate) -> float:
    assert found.p is not None
    return float(found.p)


def ends(found: Estimate) -> tuple[float, ...]:
    return numbers(found)[1:3]
