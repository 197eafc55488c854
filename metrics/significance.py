"""Bootstrap intervals of ratios of counts: accuracies over sentences that differ in length."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

CELLS = 1 << 20
"""Resampling weights held at once (draws × units): 8 MB, whatever the size of the split."""


def bootstrap_ratio(
    numerator: ArrayLike, denominator: ArrayLike, *, draws: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bound Σ numerator / Σ denominator by the percentile bootstrap over units (Efron & Tibshirani 1993, ch. 13).

    The unit is what was sampled independently: sentences, or documents for coreference. Words of one sentence are not
    independent, and resampling them would make the interval too narrow.

    A resample is a vector of weights, how often each unit was drawn, and the resampled sums are one product of
    weights and counts. So one mechanism serves a single ratio and hundreds of columns, all columns see the same
    resamples, and memory stays bounded. `scipy.stats.bootstrap` copies every resampled column instead: 12,544
    sentences × 60 relations × 1000 draws are 6 GB for each of the two counts.

    Args:
        numerator: `[units, ...]` counts, for instance the right words of each sentence.
        denominator: `[units, ...]` counts of the same shape, for instance its words.
        draws: Number of resamples.
        level: Mass inside the interval.
        seed: Seed of the resampling; the same seed gives the same interval.

    Returns:
        Low and high end, each `[...]`. Both are nan where fewer than two units have a denominator, since resampling a
        single unit says nothing about its spread. Resamples in which a column's denominator is zero are left out of
        that column.

    Raises:
        ValueError: The shapes differ, or a count is not finite.
    """
    counts, totals = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    if counts.shape != totals.shape or counts.ndim == 0:
        raise ValueError(f"numerator {counts.shape} and denominator {totals.shape} must have one shape, [units, ...]")
    if not (np.isfinite(counts).all() and np.isfinite(totals).all()):
        raise ValueError("a count is nan or infinite: leave units that were not scored out of both counts, as zeros")
    units, shape = counts.shape[0], counts.shape[1:]
    columns = int(np.prod(shape))
    both = np.concatenate([counts.reshape(units, columns), totals.reshape(units, columns)], axis=1)
    sums = _resampled_sums(both, draws, np.random.default_rng(seed))
    resampled, weights = sums[:, :columns], sums[:, columns:]
    ratios = np.divide(resampled, weights, out=np.full_like(resampled, np.nan), where=weights != 0)

    bounds = np.full((2, columns), np.nan)
    sound = ((both[:, columns:] != 0).sum(axis=0) >= 2) & ~np.isnan(ratios).all(axis=0)
    tail = (1 - level) / 2
    if sound.any():
        bounds[:, sound] = np.nanquantile(ratios[:, sound], [tail, 1 - tail], axis=0)
    return bounds[0].reshape(shape), bounds[1].reshape(shape)


def _resampled_sums(counts: NDArray[np.float64], draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Sum `counts` `[units, columns]` over units drawn with replacement, `[draws, columns]`."""
    units, columns = counts.shape
    sums = np.zeros((draws, columns))
    if units == 0:
        return sums
    chunk = max(1, CELLS // units)
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        picks = rng.integers(units, size=(size, units)) + units * np.arange(size)[:, None]
        weights = np.bincount(picks.ravel(), minlength=size * units).reshape(size, units)
        sums[start : start + size] = weights.astype(np.float64) @ counts
    return sums
