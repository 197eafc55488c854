"""Means over seeds, with intervals that cover the variation of the seeds beside that of the units."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from attention_probing.metrics.draws import TAIL, interval_of_draws, level_tail
from attention_probing.metrics.shares import bounded_ends
from attention_probing.results import TIE, Counts, Estimate, Floats, Unit

LEAST_SEEDS = 3  # of an interval over seeds alone
POOLED_SEEDS = 1.2
"""The variance between seeds counts if it is at least so many times what the units explain of it (a preliminary test,
Bancroft 1944). Without the factor p is below .05 in only 3.0 % of nulls whose seeds do not differ."""


def pool_seeds(seeds: Sequence[Estimate]) -> Estimate:
    """Return the mean of estimates from runs that differ only in the seed.

    The `draws` of all estimates must come from the same subsets of the same units. They are averaged over the runs. The
    interval covers the variation of units and of seeds (`widen_for_seeds`), and is nan for two seeds that differ.
    `sd` is the standard deviation over seeds, nan for one run.
    """
    if len(seeds) == 1:
        return replace(seeds[0], sd=np.nan)
    value, sd = mean_and_sd([run.value for run in seeds])
    draws = np.mean([run.draws for run in seeds], axis=0)
    counts = _mean_counts(seeds)
    pool = Estimate(
        value,
        unit=seeds[0].unit,
        sd=sd,
        draws=draws,
        inputs=seeds[0].inputs,
        units=seeds[0].units,
        counts=counts,
        runs=tuple(seeds),
    )
    wide = widen_for_seeds(value, draws, (pool,))
    assert pool.units is not None
    low, high = interval_of_draws(wide, level_tail(pool.units))
    if counts is not None:
        low, high = bounded_ends(counts, low, high)
    if np.isnan(draws).all():
        intervals = np.array([run.interval for run in seeds], np.float64)
        low, high = intervals.mean(axis=0).tolist()
    if len(seeds) < LEAST_SEEDS and wide is not draws:
        low = high = np.nan  # two seeds that differ say too little of others
    return replace(pool, low=low, high=high)


def _mean_counts(seeds: Sequence[Estimate]) -> Counts | None:
    """Return the mean of the counts of estimates; None if one has no counts."""
    counts = [run.counts for run in seeds if run.counts is not None]
    if len(counts) < len(seeds):
        return None
    found = np.mean([of_run.found for of_run in counts], axis=0)
    items = np.mean([of_run.items for of_run in counts], axis=0)
    signed = any(of_run.signed for of_run in counts)
    return Counts(found, items, signed)


def widen_for_seeds(value: float, draws: Floats, sides: Sequence[Estimate]) -> Floats:
    """Spread draws over units about a mean over seeds, or a difference of two, by what the seeds vary.

    Seeds and units are crossed: the variance of the mean over k seeds is that over units, plus σ²/k for seeds of
    variance σ². The scores of the seeds vary by σ² and by what each seed does on the units beyond the others, of which
    the draws of the seeds tell the size. The sum has Satterthwaite's (1946) degrees of freedom, and the draws get the
    quantiles of Student's t in place of normal ones.

    If one side of a difference has a single seed, σ² is that of the other side. It is left out if both have one.

    Args:
        value: The mean or the difference.
        draws: Its values under the draws of the units, `[draws]`.
        sides: The estimates that are averaged over seeds, one or two.
    """
    several = [side for side in sides if len(side.runs) > 1]
    if not several:
        return draws
    between = np.array([_variance_of_runs(side) for side in several])
    within = np.array([_variance_within(side) for side in several])
    freedom = np.array([len(side.runs) - 1 for side in several])
    share = np.array([1 / len(side.runs) for side in several])
    if len(several) < len(sides):
        share = share + 1
    seeds = (between * share).sum()
    units = (within * share).sum()
    if not seeds > POOLED_SEEDS * units + TIE**2:
        return draws
    spread = 0.0
    if np.isfinite(draws).any():
        spread = float(np.nanmean((draws - value) ** 2))
    total = spread + seeds - units
    degrees = total**2 / ((between * share) ** 2 / freedom).sum()
    if spread > TIE**2:
        normal = np.clip((draws - value) / np.sqrt(spread), -8, 8)
    else:
        ranks = (np.arange(len(draws)) + 0.5) / max(len(draws), 1)
        normal = np.where(np.isnan(draws), np.nan, ndtri(ranks))
    wide: Floats = value + np.sqrt(total) * np.sign(normal) * -stdtrit(degrees, ndtr(-np.abs(normal)))
    return wide


def _variance_of_runs(side: Estimate) -> float:
    """Return the variance of the numbers of the seeds."""
    return float(np.var([run.value for run in side.runs], ddof=1))


def _variance_within(side: Estimate) -> float:
    """Return the mean variance, over draws of the units, of a seed's number about the mean of all seeds."""
    values = np.array([run.value for run in side.runs])
    draws = np.stack([run.draws for run in side.runs])
    apart = draws - draws.mean(axis=0)
    apart = apart - (values - side.value)[:, None]
    defined = np.isfinite(apart).all(axis=0)
    if not defined.any():
        return 0.0
    variances = (apart[:, defined] ** 2).mean(axis=1)
    return float(variances.sum() / (len(side.runs) - 1))


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values over seeds and their standard deviation (n − 1).

    The mean is nan without values, the standard deviation for fewer than two.
    """
    mean = sd = np.nan
    if len(values):
        mean = float(np.mean(values))
    if len(values) > 1:
        sd = float(np.std(values, ddof=1))
    return mean, sd


def seeds_margin(sd: float, seeds: int) -> float:
    """Return half of the 95 % interval of Student's t of a mean over seeds; nan for fewer than two.

    Args:
        sd: Standard deviation over the seeds.
        seeds: Number of seeds.
    """
    if seeds < 2:
        return np.nan
    return float(-stdtrit(seeds - 1, TAIL) * sd / np.sqrt(seeds))


def mean_over_seeds(values: Sequence[float], unit: Unit) -> Estimate:
    """Return the mean of numbers of which each seed has one, with Student's 95 % interval over the seeds.

    The interval is nan for fewer than three seeds, and if all numbers are equal.
    """
    value, sd = mean_and_sd(values)
    margin = np.nan
    if len(values) >= LEAST_SEEDS and sd > TIE:
        margin = seeds_margin(sd, len(values))
    return Estimate(value, value - margin, value + margin, unit=unit, sd=sd)
