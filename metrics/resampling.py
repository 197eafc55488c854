"""Statistics of values per text, and their intervals by one set of resamples that all classifiers share.

A resample is how often each text was drawn, as in `metrics.significance`. It depends on nothing but the number of
texts, the number of draws and the seed: whatever is estimated of the same test set is estimated under the same
resamples, so that two classifiers, and the seeds of each, are compared text by text. The seeds are not resampled.
Intervals and p-values say how far the texts could have been others, and the spread over seeds is told beside them.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metrics.classification import f1
from metrics.significance import CELLS, PairedDifference, resamples, two_sided_p

Floats = NDArray[np.float64]

Statistic = Callable[[Floats, Floats], Floats]
"""From values `[texts, columns]` and how often each text counts, `[draws, texts]`, to one number a draw, `[draws]`.

The values hold no nan; a draw in which the statistic is undefined gets nan.
"""

LEVEL = 0.95
"""Mass inside the intervals."""


def mean(values: Floats, weights: Floats) -> Floats:
    """Mean of the one column of `values` `[texts, 1]` under each of `weights` `[draws, texts]`: `[draws]`."""
    return _ratio(weights @ _columns(values, 1)[:, 0], weights.sum(axis=1))


def median(values: Floats, weights: Floats) -> Floats:
    """Median of the one column of `values` `[texts, 1]`, each text as often as it was drawn: `[draws]`.

    Of an even number of texts the mean of the middle two, as `numpy.median`. Weights are whole numbers.
    """
    column = _columns(values, 1)[:, 0]
    found = np.full(len(weights), np.nan)
    counts = weights.sum(axis=1)
    drawn = counts > 0
    order = np.argsort(column, kind="stable")
    # The place of a text in the drawn multiset ends at this many.
    ends, ascending = weights[drawn][:, order].cumsum(axis=1), column[order]
    lower, upper = (counts[drawn] - 1) // 2, counts[drawn] // 2
    middle = [ascending[(ends > place[:, None]).argmax(axis=1)] for place in (lower, upper)]
    found[drawn] = (middle[0] + middle[1]) / 2
    return found


def f1_score(positive: int | None, classes: int) -> Statistic:
    """F1 of the columns gold and predicted class; of the class `positive`, or without one the mean over the classes."""

    def statistic(values: Floats, weights: Floats) -> Floats:
        gold, predicted = _columns(values, 2).astype(np.int64).T
        return f1(_confusions(weights, gold, np.eye(classes)[predicted]), positive)

    return statistic


def f1_drop(positive: int | None, classes: int) -> Statistic:
    """How much F1 is lost when the decisions are others, positive for a loss.

    Columns: gold class, predicted class, and for each class in which share of draws it is predicted instead. The
    second F1 is of the confusions in which each text stands with these shares: those of all draws taken together.

    Args:
        positive: The class that F1 is of; None for the mean over the classes.
        classes: How many there are.
    """

    def statistic(values: Floats, weights: Floats) -> Floats:
        gold, predicted = _columns(values, 2 + classes)[:, :2].astype(np.int64).T
        own = f1(_confusions(weights, gold, np.eye(classes)[predicted]), positive)
        return own - f1(_confusions(weights, gold, values[:, 2:]), positive)

    return statistic


def accuracy_drop(values: Floats, weights: Floats) -> Floats:
    """How much accuracy is lost when the decisions are others; columns as for `f1_drop`, `[draws]`."""
    gold, predicted = values[:, :2].astype(np.int64).T
    shares = values[np.arange(len(values)), 2 + gold]
    return mean(((gold == predicted) - shares)[:, None], weights)


class Estimate(NamedTuple):
    """A statistic of the texts.

    Attributes:
        value: Of every text once; nan where it is undefined.
        low: Low end of the 95 % interval, by the percentile bootstrap over texts; nan for fewer than two texts.
        high: Its high end.
        draws: `[draws]` the statistic of each resample, nan where it is undefined.
    """

    value: float
    low: float
    high: float
    draws: Floats


@lru_cache(maxsize=1)  # of one test set, one after another, come many statistics
def weights_of(texts: int, draws: int = 1000, seed: int = 0) -> NDArray[np.uint16]:
    """How often each text is drawn in each resample: read-only `[draws, texts]`."""
    weights = np.empty((draws, texts), dtype=np.uint16)
    start = 0
    for some in resamples(texts, draws, np.random.default_rng(seed)) if texts else ():
        weights[start : start + len(some)] = some
        start += len(some)
    weights.flags.writeable = False
    return weights


def estimate(statistic: Statistic, values: ArrayLike, *, draws: int = 1000, seed: int = 0) -> Estimate:
    """Estimate a statistic of the texts, under the resamples that all estimates of as many texts share.

    Args:
        statistic: Of the columns of `values`.
        values: `[texts, columns]`, a row for every text of the test set. Rows with a nan are left out of the
            statistic, and keep their place in the resamples.
        draws: Number of resamples.
        seed: Seed of the resampling.
    """
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2:
        raise ValueError(f"the values of texts must be [texts, columns], not {rows.shape}")
    sound = ~np.isnan(rows).any(axis=1)
    kept = rows[sound]
    if not len(kept):
        return Estimate(np.nan, np.nan, np.nan, np.full(draws, np.nan))
    value = float(statistic(kept, np.ones((1, len(kept))))[0])
    if len(kept) < 2:
        return Estimate(value, np.nan, np.nan, np.full(draws, np.nan))
    weights, chunk = weights_of(len(rows), draws, seed), max(1, CELLS // len(rows))
    found = [
        statistic(kept, weights[start : start + chunk, sound].astype(np.float64)) for start in range(0, draws, chunk)
    ]
    resampled = np.concatenate(found)
    return Estimate(value, *_interval(resampled), resampled)


class Pooled(NamedTuple):
    """A statistic of classifiers that differ in nothing but their seed.

    Attributes:
        value: Mean over the seeds.
        low: Low end of the 95 % interval of that mean: all seeds see the same resamples of the texts.
        high: Its high end.
        sd: Standard deviation over the seeds; nan for a single one.
    """

    value: float
    low: float
    high: float
    sd: float


def pooled(estimates: Sequence[Estimate]) -> Pooled:
    """Pool the estimates of at least one seed, made under the same resamples.

    Raises:
        ValueError: They were not.
    """
    values = np.array([one.value for one in estimates])
    sd = float(values.std(ddof=1)) if len(values) > 1 else np.nan
    return Pooled(float(values.mean()), *_interval(_mean_draws(estimates)), sd)


def difference(a: Sequence[Estimate], b: Sequence[Estimate]) -> PairedDifference:
    """Bound how much higher the mean over the seeds of `a` is than that of `b`, under the same resamples.

    Interval and p-value as in `metrics.significance.paired_bootstrap`.

    Raises:
        ValueError: They were not made under the same resamples.
    """
    value = float(np.mean([one.value for one in a]) - np.mean([one.value for one in b]))
    resampled = _mean_draws(a, like=b) - _mean_draws(b)
    low, high = _interval(resampled)
    resampled = resampled[~np.isnan(resampled)]
    if not resampled.size:
        return PairedDifference(value, low, high, np.nan)
    return PairedDifference(value, low, high, two_sided_p(resampled))


def _mean_draws(estimates: Sequence[Estimate], like: Iterable[Estimate] = ()) -> Floats:
    """Mean over the seeds of each draw; nan where one of them is."""
    sizes = sorted({len(one.draws) for one in (*estimates, *like)})
    if len(sizes) != 1:
        raise ValueError(f"estimates under {sizes} resamples cannot be compared: make them with one number of draws")
    mean_draws: Floats = np.mean([one.draws for one in estimates], axis=0)
    return mean_draws


def _interval(resampled: Floats) -> tuple[float, float]:
    """The middle of the draws that are defined."""
    resampled = resampled[~np.isnan(resampled)]
    if not resampled.size:
        return np.nan, np.nan
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return float(low), float(high)


def _confusions(weights: Floats, gold: NDArray[np.int64], shares: Floats) -> Floats:
    """Confusions `[draws, classes, classes]` of texts that count as one of several classes by shares."""
    classes = shares.shape[1]
    cells = np.zeros((len(gold), classes, classes))
    cells[np.arange(len(gold)), gold] = shares
    return (weights @ cells.reshape(len(gold), -1)).reshape(-1, classes, classes)


def _columns(values: Floats, columns: int) -> Floats:
    if values.shape[1:] != (columns,):
        raise ValueError(f"the statistic is of {columns} columns, and the values are {values.shape}")
    return values


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    ratio: Floats = np.divide(numerator, denominator, out=np.full_like(numerator, np.nan), where=denominator != 0)
    return ratio
