"""Random subsets of the units of a test set, and the intervals and p-values of numbers under these draws.

Each draw keeps every unit with probability 1/2: the double-or-nothing bootstrap (Owen & Eckles 2012). A *unit* is what
is independent of the rest: a text, a document with all its sentences, or a sentence where no documents are known. All
subsets are enumerated for at most `EXACT` units. The draws depend only on the number of units, the number of draws and
the seed, so all estimates of one test set share them, and runs are compared unit by unit.

Of a difference, p = 2 (1 + k) / (1 + m), where k of m draws are not on its side. For a difference of means this is the
test of sign flips (Fisher 1935): the sum over a subset is not above zero exactly if the flipped signs of this subset
make the sum as large as the observed one. A draw in which a number is undefined counts for neither side. With all
subsets p is exact, and never below 2 / 2^units. The interval of a difference has the ends at which this p reaches .05
(Hartigan 1969), so it contains 0 exactly if p is above .05.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from attention_probing.results import TIE, Floats

TAIL = (1 - 0.95) / 2
LEVEL_MARGIN = 1.5
"""The interval of a number that is not compared is that of a normal quantile 1 + LEVEL_MARGIN / units times as large.
With it, intervals of skewed numbers cover in 92 % at ten units (table of coverage in docs/known_answers.md)."""
EXACT = 12  # most units whose subsets are all enumerated: 4,095
CELLS = 1 << 20  # most weights (draws × units) in float64 at a time: 8 MB for a split of any size
MOST_KEPT = 1 << 27  # most weights that are kept for the next statistic of the test set: 128 MB, a byte each
TEST_DRAWS = 10_000  # random subsets of a test of two runs, unless another number is given


def resamples(units: int, draws: int = 1000, seed: int = 0) -> Iterator[Floats]:
    """Yield random subsets of `units` units, as weights 1 and 0 `[some draws, units]`.

    Each unit is in a subset with probability 1/2. For at most `EXACT` units these are all subsets but the empty one,
    whatever `draws` says. The subsets come in several arrays, to bound memory.
    """
    for some in _subsets(units, draws, seed):
        yield some.astype(np.float64)


def _subsets(units: int, draws: int, seed: int) -> Iterable[NDArray[np.uint8]]:
    if units * draws > MOST_KEPT:
        return _draw_subsets(units, draws, seed)
    return _keep_subsets(units, draws, seed)


@lru_cache(maxsize=1)  # statistics of the same test set are computed one after another
def _keep_subsets(units: int, draws: int, seed: int) -> list[NDArray[np.uint8]]:
    return list(_draw_subsets(units, draws, seed))


def _draw_subsets(units: int, draws: int, seed: int) -> Iterator[NDArray[np.uint8]]:
    if units <= EXACT:
        numbers = np.arange(1, 1 << units)
        yield (numbers[:, None] >> np.arange(units) & 1).astype(np.uint8)
        return
    rng = np.random.default_rng(seed)
    chunk = max(1, CELLS // units)
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        bits = rng.integers(256, size=(size, (units + 7) // 8), dtype=np.uint8)
        yield np.unpackbits(bits, axis=1)[:, :units]


def level_tails(units: NDArray[np.integer]) -> Floats:
    """Return the probability beyond each end of the interval of a number that is not compared, for each of units."""
    return np.asarray(ndtr(ndtri(TAIL) * (1 + LEVEL_MARGIN / np.maximum(units, 1))))


def level_tail(units: int) -> float:
    """Return the probability beyond each end of the interval of one number that is not compared."""
    return float(level_tails(np.array(units)))


def interval_of_draws(draws: Floats, tail: float) -> tuple[float, float]:
    """Return the ends of one interval, from the values under the draws, `[draws]`; see `ends_of_draws`."""
    low, high = ends_of_draws(draws[:, None], np.array([tail]))
    return float(low[0]), float(high[0])


def ends_of_draws(draws: Floats, tails: Floats) -> tuple[Floats, Floats]:
    """Return the ends of the intervals that leave a tail of the draws beyond each end, `[columns]`.

    An undefined draw, and the empty subset, count as beyond both ends. The ends are nan if no draw is left for an end,
    or if all draws are equal.

    Args:
        draws: Values under the draws, `[draws, columns]`; nan if undefined.
        tails: Probability beyond each end, `[columns]`.
    """
    number, columns = draws.shape
    nothing = np.full(columns, np.nan)
    if not number:
        return nothing, nothing.copy()
    ascending = np.sort(draws, axis=0)  # nan last
    defined = number - np.count_nonzero(np.isnan(draws), axis=0)
    beyond = np.floor(tails * (1 + number) + TIE).astype(int) - (1 + number - defined)
    last = np.maximum(defined - 1, 0)
    place = np.clip(beyond, 0, last)
    column = np.arange(columns)
    low = ascending[place, column]
    high = ascending[last - place, column]
    width = ascending[last, column] - ascending[0, column]
    has_ends = (beyond >= 0) & (defined > 2 * beyond) & (width > TIE)
    return np.where(has_ends, low, nothing), np.where(has_ends, high, nothing)


def p_of_draws(draws: Floats) -> Floats:
    """Return the two-sided p-values that the numbers are 0, from their values under the draws `[draws, columns]`.

    The p-value is nan where no draw is defined.
    """
    number = len(draws)
    undefined = np.count_nonzero(np.isnan(draws), axis=0)
    below = np.count_nonzero(draws <= TIE, axis=0)
    above = np.count_nonzero(draws >= -TIE, axis=0)
    p = np.minimum(1.0, 2 * (1 + undefined + np.minimum(below, above)) / (1 + number))
    return np.where(undefined < number, p, np.nan)


def check_finite(counts: Floats) -> Floats:
    """Return counts, or raise ValueError if one is not finite."""
    if not np.isfinite(counts).all():
        odd = counts[~np.isfinite(counts)][0]
        raise ValueError(
            f"numerators and denominators must be finite, but one is {odd}; give 0 for both in units not scored"
        )
    return counts
