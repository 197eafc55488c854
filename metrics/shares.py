"""Intervals of shares of few items, and of differences of such shares, which draws over units would make too narrow."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from attention_probing.metrics.draws import TAIL
from attention_probing.metrics.statistics import ratio
from attention_probing.results import FEW, Counts, Flags, Floats

LEAST_FOUND = 5  # found, and missed, of a share whose interval is not exact: the rule of thumb for proportions


def share_interval(found: ArrayLike, items: ArrayLike, tail: float = TAIL) -> tuple[Any, Any, Any]:
    """Return the share of items that are found, and the ends of its exact interval, each `[...]`.

    The interval is that of Clopper & Pearson (1934), with the effective number of items as the number of trials. It is
    lower than the number of items if the items of a unit resemble each other (Korn & Graubard 1998, without their
    correction of degrees of freedom). If every unit has one item, every unit is a trial. If all items are found or
    none, the resemblance is unknown, and every item is a trial.

    Args:
        found: Number of items of each unit that are found, `[units, ...]`.
        items: Number of items of each unit, `[units, ...]`.
        tail: Probability beyond each end; by default that of a 95 % interval.
    """
    found = np.asarray(found, np.float64)
    items = np.asarray(items, np.float64)
    total = items.sum(axis=0)
    share = ratio(found.sum(axis=0), total)
    variance = ratio(((found - share * items) ** 2).sum(axis=0), total**2)
    trials = np.fmin(total, ratio(share * (1 - share), variance))
    right = share * trials
    low = np.where(share > 0, betaincinv(right, trials - right + 1, tail), 0.0)
    high = np.where(share < 1, betaincinv(right + 1, trials - right, 1 - tail), 1.0)
    return share[()], low[()], high[()]


def have_few_items(found: Floats, items: Floats) -> Flags:
    """Return True for each column of counts `[units, columns]` with few items, few found or few missed."""
    right = found.sum(axis=0)
    total = items.sum(axis=0)
    missed = np.where(total < FEW, 0, total - right)
    return np.asarray(np.minimum(right, missed) < LEAST_FOUND)


def have_few_changes(gained: Floats, items: Floats) -> Flags:
    """Return True for columns `[units, columns]` with few gains or few losses, or where few items do not differ."""
    gains = np.maximum(gained, 0)
    losses = np.maximum(-gained, 0)
    return have_few_items(gains, items) | have_few_items(losses, items)


def signed_interval(gained: Floats, items: Floats, tail: float) -> tuple[float, float]:
    """Return an interval of a difference of two shares of the same items, for few items that differ.

    The gains and the losses are shares of the items with exact intervals. Their difference has the interval of Donner &
    Zou (2012, eq. 6), which recovers variances from the ends of both.

    Args:
        gained: Difference of the numbers of items found, `[units]`.
        items: Number of items, `[units]`.
        tail: Probability beyond each end.
    """
    gain, gain_low, gain_high = share_interval(np.maximum(gained, 0), items, tail)
    loss, loss_low, loss_high = share_interval(np.maximum(-gained, 0), items, tail)
    low = gain - loss - np.hypot(gain - gain_low, loss_high - loss)
    high = gain - loss + np.hypot(gain_high - gain, loss - loss_low)
    return float(low), float(high)


def ends_for_few(counts: Counts, low: float, high: float, tail: float = TAIL) -> tuple[float, float]:
    """Return the ends of an interval, or those for few items if the counts are few."""
    found, items, signed = counts
    if not signed:
        if not have_few_items(found[:, None], items[:, None])[0]:
            return low, high
        _, *exact = share_interval(found, items, tail)
        return float(exact[0]), float(exact[1])
    if not have_few_changes(found[:, None], items[:, None])[0]:
        return low, high
    if 0.5 ** np.count_nonzero(items) > tail:
        return np.nan, np.nan  # no p of so few units reaches the tail
    ends = signed_interval(found, items, tail)
    return float(np.fmin(low, ends[0])), float(np.fmax(high, ends[1]))


def bounded_ends(counts: Counts, low: float, high: float) -> tuple[float, float]:
    """Return the ends of an interval of a mean over seeds, at least as wide as that of few items, and within bounds."""
    few_low, few_high = ends_for_few(counts, low, high)
    if (few_low, few_high) != (low, high):
        low = float(np.fmin(low, few_low))
        high = float(np.fmax(high, few_high))
    least = -1.0 if counts.signed else 0.0
    return max(low, least), min(high, 1.0)
