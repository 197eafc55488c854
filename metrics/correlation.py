"""Correlations of two columns of numbers, under the resamples of the bootstrap, and the scores of a regression."""

import numpy as np

from metrics.bootstrap import check_columns, mean, ratio, resample
from results import Estimate, Floats


def pearson(values: Floats, weights: Floats) -> Floats:
    """Pearson's r of the two columns of `values` `[units, 2]`, each unit as often as it was drawn: `[draws]`.

    Weights are whole numbers `[draws, units]`; nan where a column is constant in a draw.
    """
    x, y = check_columns(values, 2).T
    return _correlation(x, y, weights)


def spearman(values: Floats, weights: Floats) -> Floats:
    """Spearman's ρ, as `pearson`: Pearson's r of the ranks within each draw; equal values have their mean rank."""
    x, y = check_columns(values, 2).T
    return _correlation(_ranks(x, weights), _ranks(y, weights), weights)


def _ranks(column: Floats, weights: Floats) -> Floats:
    """Return the mean rank of each unit among all that were drawn, `[draws, units]`."""
    _, places = np.unique(column, return_inverse=True)
    order = np.argsort(places, kind="stable")
    starts = np.flatnonzero(np.diff(places[order], prepend=-1))
    drawn = np.add.reduceat(weights[:, order], starts, axis=1)  # of each value, [draws, values]
    return (drawn.cumsum(axis=1) - (drawn - 1) / 2)[:, places]


def _correlation(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Return Pearson's r of x and y, `[units]` or `[draws, units]`, under weights `[draws, units]`: `[draws]`."""
    total = weights.sum(axis=1, keepdims=True)
    parts = []
    for column in (x, y):
        constant = _spread(column, weights) == 0
        centred = column - ratio((weights * column).sum(axis=1, keepdims=True), total)
        parts.append(np.where(constant[:, None], np.nan, centred))  # a mean of equal numbers may be off by a digit
    own = [(weights * part**2).sum(axis=1) for part in parts]
    return ratio((weights * parts[0] * parts[1]).sum(axis=1), np.sqrt(own[0] * own[1]))


def _spread(column: Floats, weights: Floats) -> Floats:
    """Largest minus smallest of the numbers that were drawn, `[draws]`."""
    drawn = weights > 0
    spread: Floats = np.where(drawn, column, -np.inf).max(axis=1) - np.where(drawn, column, np.inf).min(axis=1)
    return spread


def regression_scores(
    gold: Floats, predicted: Floats, *, prefix: str = "", draws: int = 1000, seed: int = 0
) -> dict[str, Estimate]:
    """`pearson`, `spearman` and the mean squared error `mse` with 95 % intervals over texts.

    Of gold and predicted numbers `[texts]`; the intervals are nan with fewer than two texts or without draws.
    """
    both = np.column_stack([gold, predicted])
    options = {"draws": draws, "seed": seed}
    return {
        f"{prefix}pearson": resample(pearson, both, "fraction", **options),
        f"{prefix}spearman": resample(spearman, both, "fraction", **options),
        f"{prefix}mse": resample(mean, ((gold - predicted) ** 2)[:, None], "ratio", **options),
    }
