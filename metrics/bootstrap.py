"""Intervals and paired tests for any statistic of a test set, such as a ratio, from random subsets of its units.

Each draw keeps every unit with probability 1/2: the double-or-nothing bootstrap (Owen & Eckles 2012). A *unit* is what
is independent of the rest: a text, a document with all its sentences, or a sentence where no documents are known.

Differences on the same units are tested by the draws: p = 2 (1 + k) / (1 + m), where k of m draws are not on the side
of the difference. For a difference of means this is the test of sign flips (Fisher 1935): the sum over a subset is
not above zero exactly if the flipped signs of this subset make the sum as large as the observed one. A draw in which
a number is undefined counts for neither side. All subsets are enumerated for at most `EXACT` units, so p is exact, and
never below 2 / 2^units. The interval of a difference has the ends at which this p reaches .05 (Hartigan 1969), so it
contains 0 exactly if p is above .05.

The interval of a number that is not compared is somewhat wider for few units (`LEVEL_MARGIN`), which skewed numbers
need. An interval is nan where no draw would be left beyond it, as for fewer than six units, or seven, and where all
draws are equal, because the variation of the units is then unknown. These numbers have methods of their own:

- Shares of few items have exact intervals (`share_interval`), differences of shares of few items are wide enough for
  such intervals of their gains and losses (`_signed_interval`).
- Correlations have the interval of a jackknife on Fisher's scale (`_fisher_interval`).
- Means over seeds also vary with the seeds (`_widened_for_seeds`).

The draws depend only on the number of units, the number of draws and the seed, so all estimates of one test set share
them, and runs are compared unit by unit.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtr, ndtri, stdtrit

from attention_probing.metrics.statistics import CorrelationStatistic, Ratio, Statistic, ratio, two_columns
from attention_probing.results import FEW, TIE, Counts, Estimate, Flags, Floats, Integers, Unit

TAIL = (1 - 0.95) / 2
LEVEL_MARGIN = 1.5
"""The interval of a number that is not compared is that of a normal quantile 1 + LEVEL_MARGIN / units times as large.
With it, intervals of skewed numbers cover in 92 % at ten units (table of coverage in docs/known_answers.md)."""

EXACT = 12  # most units whose subsets are all enumerated: 4,095
LEAST_FOUND = 5  # found, and missed, of a share whose interval is not exact: the rule of thumb for proportions
CELLS = 1 << 20  # most weights (draws × units) in float64 at a time: 8 MB for a split of any size
MOST_KEPT = 1 << 27  # most weights that are kept for the next statistic of the test set: 128 MB, a byte each
TEST_DRAWS = 10_000  # random subsets of a test of two runs, unless another number is given
LEAST_SEEDS = 3  # of an interval over seeds alone
BLOCKS = 500  # most parts of the units that the jackknife leaves out, one at a time
POOLED_SEEDS = 1.2
"""The variance between seeds counts if it is at least so many times what the units explain of it (a preliminary test,
Bancroft 1944). Without the factor p is below .05 in only 3.0 % of nulls whose seeds do not differ."""


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


def _few(found: Floats, items: Floats) -> Flags:
    """Return True for each column of counts `[units, columns]` with few items, few found or few missed."""
    right = found.sum(axis=0)
    total = items.sum(axis=0)
    missed = np.where(total < FEW, 0, total - right)
    return np.asarray(np.minimum(right, missed) < LEAST_FOUND)


def _signed_interval(gained: Floats, items: Floats, tail: float) -> tuple[float, float]:
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


def bootstrap_ratio(
    numerator: ArrayLike,
    denominator: ArrayLike,
    unit: Unit = "fraction",
    *,
    share: bool,
    compared: bool = False,
    of_units: bool = False,
    draws: int = 1000,
    seed: int = 0,
) -> Estimate[Any]:
    """Return Σ numerator / Σ denominator with a 95 % interval over units.

    All columns share the draws. Memory stays bounded, unlike in `scipy.stats.bootstrap`, which copies every resampled
    column: 12,544 sentences × 60 relations × 1000 draws take 6 GB.

    Args:
        numerator: Counts `[units, ...]`, for instance the right words of each document.
        denominator: Counts `[units, ...]`, for instance all words of each document.
        unit: Unit of the ratio.
        share: True if the numerators count some of the items that the denominators count; such a ratio of few items
            has the interval of `share_interval`. False for other numbers, such as distances.
        compared: True if the numerators are differences between two sides of the same items. The estimates then have
            the interval and the p-value of a difference. Differences of shares (`share`) lie between −1 and 1.
        of_units: True if the denominators are not items, but weights of the units.
        draws: Number of subsets.
        seed: Seed of the subsets.

    Returns:
        The ratios and their intervals, `[...]`; `inputs` are the numbers of items, or of units with a weight. A ratio
        is nan if its denominator is zero in all units.

    Raises:
        ValueError: A count is not finite.
    """
    counts = _finite(np.asarray(numerator, dtype=np.float64))
    totals = _finite(np.asarray(denominator, dtype=np.float64))
    shape = counts.shape[1:]
    columns = int(np.prod(shape))
    above = counts.reshape(len(counts), columns)
    below = totals.reshape(len(counts), columns)
    # Units of each column that have something to count.
    units = np.count_nonzero(below, axis=0)
    ratios = np.full((0, columns), np.nan)
    if (units >= 2).any():
        ratios = _ratios_of_subsets(above, below, draws, seed)
    tails = np.full(columns, TAIL) if compared else _level_tails(units)
    low, high = _ends(ratios, tails)
    if share and compared:
        few = _few_differ(above, below) & (0.5**units <= TAIL)
        for column in np.flatnonzero(few):
            ends = _signed_interval(above[:, column], below[:, column], TAIL)
            low[column] = np.fmin(low[column], ends[0])
            high[column] = np.fmax(high[column], ends[1])
    elif share:
        few = _few(above, below) & (units >= 2)
        _, low[few], high[few] = share_interval(above[:, few], below[:, few])
    value = ratio(above.sum(axis=0), below.sum(axis=0))
    inputs = units if of_units else below.sum(axis=0)
    return Estimate(
        value.reshape(shape)[()],
        low.reshape(shape)[()],
        high.reshape(shape)[()],
        unit=unit,
        p=_p(ratios).reshape(shape)[()] if compared else None,
        inputs=inputs.reshape(shape)[()],
    )


def _ratios_of_subsets(numerators: Floats, denominators: Floats, draws: int, seed: int) -> Floats:
    """Return the ratios of the sums over random subsets of the units, `[draws, columns]`.

    Args:
        numerators: Counts, `[units, columns]`.
        denominators: Counts, `[units, columns]`.
        draws: Number of subsets.
        seed: Seed of the subsets.
    """
    counts = np.hstack([numerators, denominators])
    sums = np.concatenate([weights @ counts for weights in resamples(len(counts), draws, seed)])
    above, below = np.hsplit(sums, 2)
    return ratio(above, below)


def _few_differ(gained: Floats, items: Floats) -> Flags:
    """Return True for columns `[units, columns]` with few gains or few losses, or where few items do not differ."""
    gains = np.maximum(gained, 0)
    losses = np.maximum(-gained, 0)
    return _few(gains, items) | _few(losses, items)


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


def resample(
    statistic: Statistic,
    values: ArrayLike,
    unit: Unit,
    *,
    draws: int = 1000,
    seed: int = 0,
    units: ArrayLike | None = None,
) -> Estimate:
    """Compute a statistic of a test set, its 95 % interval, and its value under each draw.

    Args:
        statistic: Function that takes values `[rows, columns]` and weights `[draws, rows]`, and returns one number per
            draw, `[draws]`. A weight is 1 if the row is in the draw, else 0.
        values: One row per item, `[rows, columns]`. Rows with a nan are ignored, but may be drawn like the others, so
            that all statistics share their draws.
        unit: Unit of the statistic.
        draws: Number of subsets; 0 for no interval.
        seed: Seed of the subsets.
        units: Number of the unit that each row belongs to, such as its document, `[rows]`; None if each row is a unit.

    Returns:
        The estimate. The interval is nan for fewer than two units (rows with a nan not counted), and if `draws` is 0.
    """
    rows = np.asarray(values, dtype=np.float64)
    place = np.arange(len(rows))
    if units is not None:
        place = np.unique(np.asarray(units), return_inverse=True)[1]
    total = int(place.max(initial=-1)) + 1
    has_values = ~np.isnan(rows).any(axis=1)
    rows = rows[has_values]
    place = place[has_values]
    value = np.nan
    if len(rows):
        value = float(statistic(rows, np.ones((1, len(rows))))[0])
    if isinstance(statistic, Ratio):
        numerator, denominator = (_sums(column, place, total) for column in statistic.counts(rows))
        return _resample_ratio(statistic, value, numerator, denominator, unit, draws, seed)
    number = len(np.unique(place))
    score = Estimate(value, unit=unit, inputs=float(len(rows)), units=number)
    if number < 2 or not draws:
        return _without_draws(score, total, draws)
    of_subsets = [statistic(rows, weights[:, place]) for weights in resamples(total, draws, seed)]
    under_draws = np.concatenate(of_subsets)
    if isinstance(statistic, CorrelationStatistic):
        low, high = _fisher_interval(statistic, rows, place, value)
    else:
        low, high = _interval(under_draws, _level_tail(number))
    return replace(score, low=low, high=high, draws=under_draws)


def _resample_ratio(
    statistic: Ratio, value: float, numerator: Floats, denominator: Floats, unit: Unit, draws: int, seed: int
) -> Estimate:
    """Return a ratio with its interval, and its value under each draw; see `resample`.

    Args:
        statistic: The statistic.
        value: The ratio.
        numerator: Numerator of each unit, `[units]`.
        denominator: Denominator of each unit, `[units]`.
        unit: Unit of the ratio.
        draws: Number of subsets.
        seed: Seed of the subsets.
    """
    units = int(np.count_nonzero(denominator))
    if statistic.share or statistic.signed:
        counts = Counts(numerator, denominator, statistic.signed)
        inputs = float(denominator.sum())
    else:
        counts = None
        inputs = float(units)
    score = Estimate(value, unit=unit, inputs=inputs, units=units, counts=counts)
    if units < 2 or not draws:
        return _without_draws(score, len(denominator), draws)
    ratios = _ratios_of_subsets(numerator[:, None], denominator[:, None], draws, seed)[:, 0]
    low, high = _interval(ratios, _level_tail(units))
    if counts is not None:
        low, high = _few_ends(counts, low, high)
    return replace(score, low=low, high=high, draws=ratios)


def _without_draws(score: Estimate, units: int, draws: int) -> Estimate:
    """Return a number with an interval of nan, and nan under each draw from so many units."""
    number = draws
    if draws and units <= EXACT:
        number = (1 << units) - 1
    return replace(score, low=np.nan, high=np.nan, draws=np.full(number, np.nan))


def _sums(column: Floats, place: Integers, total: int) -> Floats:
    """Sum a column of rows over the units they belong to, `[units]`."""
    return np.bincount(place, weights=column, minlength=total).astype(np.float64)


def _few_ends(counts: Counts, low: float, high: float, tail: float = TAIL) -> tuple[float, float]:
    """Return the ends of an interval, or those for few items if the counts are few."""
    found, items, signed = counts
    if not signed:
        if not _few(found[:, None], items[:, None])[0]:
            return low, high
        _, *exact = share_interval(found, items, tail)
        return float(exact[0]), float(exact[1])
    if not _few_differ(found[:, None], items[:, None])[0]:
        return low, high
    if 0.5 ** np.count_nonzero(items) > tail:
        return np.nan, np.nan  # no p of so few units reaches the tail
    ends = _signed_interval(found, items, tail)
    return float(np.fmin(low, ends[0])), float(np.fmax(high, ends[1]))


def _fisher_interval(statistic: Statistic, values: Floats, place: Integers, value: float) -> tuple[float, float]:
    """Return the 95 % interval of a correlation, by the jackknife on Fisher's scale artanh (Efron 1982, §3.1).

    It is nan for a correlation of ±1, whose sample says nothing of its variation.

    Args:
        statistic: The correlation.
        values: Two columns, `[rows, 2]`.
        place: Unit of each row, `[rows]`.
        value: Correlation of all rows.
    """
    units = np.unique(place, return_inverse=True)[1]
    parts = min(int(units.max(initial=-1)) + 1, BLOCKS)
    part = units % parts
    if parts < 3 or not abs(value) < 1 - TIE:
        return np.nan, np.nan
    chunk = max(1, CELLS // len(values))
    left_out = []
    for start in range(0, parts, chunk):
        numbers = np.arange(start, min(start + chunk, parts))
        weights = (part != numbers[:, None]).astype(np.float64)
        left_out.append(statistic(values, weights))
    limit = 1 - 1e-9
    scale = np.arctanh(np.clip(np.concatenate(left_out), -limit, limit))
    error = np.sqrt((parts - 1) / parts * ((scale - scale.mean()) ** 2).sum())
    margin = stdtrit(parts - 1, 1 - TAIL) * error
    middle = np.arctanh(value)
    return float(np.tanh(middle - margin)), float(np.tanh(middle + margin))


def pool_seeds(seeds: Sequence[Estimate]) -> Estimate:
    """Return the mean of estimates from runs that differ only in the seed.

    The `draws` of all estimates must come from the same subsets of the same units. They are averaged over the runs. The
    interval covers the variation of units and of seeds (`_widened_for_seeds`), and is nan for two seeds that differ.
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
    wide = _widened_for_seeds(value, draws, (pool,))
    assert pool.units is not None
    low, high = _interval(wide, _level_tail(pool.units))
    if counts is not None:
        low, high = _bounded_ends(counts, low, high)
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


def _bounded_ends(counts: Counts, low: float, high: float) -> tuple[float, float]:
    """Return the ends of an interval of a mean over seeds, at least as wide as that of few items, and within bounds."""
    few_low, few_high = _few_ends(counts, low, high)
    if (few_low, few_high) != (low, high):
        low = float(np.fmin(low, few_low))
        high = float(np.fmax(high, few_high))
    least = -1.0 if counts.signed else 0.0
    return max(low, least), min(high, 1.0)


def _widened_for_seeds(value: float, draws: Floats, sides: Sequence[Estimate]) -> Floats:
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


def difference(a: Estimate, b: Estimate, *, same_runs: bool = False, fixed: bool = False) -> Estimate:
    """Return the difference a − b of two estimates, with its 95 % interval and p-value.

    Both are computed from the differences between the `draws` of the two estimates, which must come from the same
    subsets of the same units; for means over seeds (`pool_seeds`) they cover the variation of the seeds too. For few
    items that differ, the interval of a difference of shares is at least `_signed_interval`.

    Args:
        a: A number.
        b: The number that is subtracted.
        same_runs: True if both are numbers of the same runs, in the same order, such as two rankings of the words by
            the same models: the seeds are then paired, too.
        fixed: True if `b` is no run with a seed, such as the intact model of which several random changes are scored.

    Raises:
        ValueError: The numbers of draws, or of paired seeds, differ.
    """
    value = a.value - b.value
    counts = None
    if a.counts is not None and b.counts is not None and np.array_equal(a.counts.items, b.counts.items):
        counts = Counts(a.counts.found - b.counts.found, a.counts.items, signed=True)
    sides: tuple[Estimate, ...] = (a, b)
    if same_runs and a.runs:
        runs = []
        for run, other in zip(a.runs, b.runs, strict=True):
            runs.append(replace(run, value=run.value - other.value, draws=run.draws - other.draws))
        sides = (replace(a, value=value, runs=tuple(runs)),)
    elif fixed:
        sides = (a,)
    draws = _widened_for_seeds(value, a.draws - b.draws, sides)
    return with_interval_and_p(Estimate(value, unit=a.unit, draws=draws, units=a.units, counts=counts))


def with_interval_and_p(apart: Estimate, tests: int = 1) -> Estimate:
    """Return a difference with the interval and the p-value of its draws.

    Args:
        apart: The difference, with its draws; its `counts` are differences of items found, and items.
        tests: Number of differences of which this one was chosen by its size. Interval and p then hold for all of them
            at once (Bonferroni), and so for the chosen one.
    """
    low, high = _interval(apart.draws, TAIL / tests)
    if apart.counts is not None and np.count_nonzero(apart.counts.items) > 1:
        low, high = _few_ends(apart.counts, low, high, TAIL / tests)
    p = np.nan
    if apart.draws.size:
        p = float(np.minimum(1.0, _p(apart.draws[:, None])[0] * tests))
    return replace(apart, low=low, high=high, p=p)


def paired_bootstrap(
    a_numerator: ArrayLike,
    a_denominator: ArrayLike,
    b_numerator: ArrayLike,
    b_denominator: ArrayLike,
    *,
    unit: Unit = "fraction",
    share: bool = False,
    units: ArrayLike | None = None,
    draws: int = TEST_DRAWS,
    seed: int = 0,
) -> Estimate:
    """Return the difference a − b of two ratios of counts, with its 95 % interval and p-value.

    Both sides are counted on the same items and see the same subsets of units, so that the difficulty of a sentence
    cancels out. See `difference`.

    Args:
        a_numerator: Counts of side a, `[items]`, for instance the right words of each sentence.
        a_denominator: Counts of side a, `[items]`, for instance all words of each sentence.
        b_numerator: Counts of side b, `[items]`, in the same order of items.
        b_denominator: Counts of side b, `[items]`, in the same order of items.
        unit: Unit of measurement of the ratios, recorded in the returned estimate.
        share: True if the numerators count some of the items that the denominators count.
        units: Number of the unit that each item belongs to, `[items]`; None if each item is a unit.
        draws: Number of subsets.
        seed: Seed of the subsets.

    Returns:
        The difference with its interval and p-value. The difference is nan if a denominator is zero in every unit.
        Interval and p-value are nan if a denominator is nonzero in fewer than two units.

    Raises:
        ValueError: A count is not finite.
    """
    statistic = two_columns(share=share)
    a_counts = _finite(np.column_stack([a_numerator, a_denominator]))
    b_counts = _finite(np.column_stack([b_numerator, b_denominator]))
    a = resample(statistic, a_counts, unit, draws=draws, seed=seed, units=units)
    b = resample(statistic, b_counts, unit, draws=draws, seed=seed, units=units)
    return difference(a, b)


def against_random_draws(score: Estimate, others: Sequence[Estimate]) -> tuple[Estimate, Estimate]:
    """Compare a number with N random ones, such as the score without given heads with scores without random heads.

    There are two sources of error, and the difference counts only if it is clear of both (Berger 1982):

    - The number could be one more random number. The error is that of Student's prediction of a further value from N
      values, which is exact if these are normal and equally correlated, as for overlapping random sets. (A test of
      ranks would not need normality, but its p-value is never below 1 / (N + 1).)
    - The units could be others: the draws over units, as in `difference`.

    Each draw is therefore moved out to the farther of the two, and gives interval and p-value.

    Args:
        score: The number.
        others: The random numbers, with draws from the same subsets of the same units.

    Returns:
        The mean of the others, nan if there are none; and the number minus this mean, with interval and p, which are
        nan for fewer than two others.

    Raises:
        ValueError: The numbers of draws differ.
    """
    mean, sd = mean_and_sd([other.value for other in others])
    draws = np.full_like(score.draws, np.nan)
    if others:
        draws = np.mean([other.draws for other in others], axis=0)
    low, high = _interval(draws, TAIL)
    average = replace(score, value=mean, low=low, high=high, sd=sd, draws=draws, counts=None)
    apart = Estimate(score.value - mean, unit=score.unit, draws=score.draws - draws)
    if len(others) < 2:
        return average, replace(apart, low=np.nan, high=np.nan, p=np.nan)
    error = max(sd * np.sqrt(1 + 1 / len(others)), TIE)
    farther = _move_out(apart, error, len(others) - 1)
    return average, with_interval_and_p(replace(apart, draws=farther))


def _move_out(apart: Estimate, error: float, degrees: int) -> Floats:
    """Move each draw to the quantile of Student's t with a standard error that has its rank, if that is farther out."""
    draws = apart.draws.copy()
    order = np.argsort(draws, kind="stable")  # nan last
    order = order[: np.count_nonzero(~np.isnan(draws))]
    ranks = (np.arange(len(order)) + 1) / (len(order) + 1)
    quantiles = apart.value + error * stdtrit(degrees, ranks)
    farther = np.abs(quantiles - apart.value) > np.abs(draws[order] - apart.value)
    draws[order] = np.where(farther, quantiles, draws[order])
    return draws


def _level_tails(units: NDArray[np.integer]) -> Floats:
    """Return the probability beyond each end of the interval of a number that is not compared, for each of units."""
    return np.asarray(ndtr(ndtri(TAIL) * (1 + LEVEL_MARGIN / np.maximum(units, 1))))


def _level_tail(units: int) -> float:
    """Return the probability beyond each end of the interval of one number that is not compared."""
    return float(_level_tails(np.array(units)))


def _interval(draws: Floats, tail: float) -> tuple[float, float]:
    """Return the ends of one interval, from the values under the draws, `[draws]`; see `_ends`."""
    low, high = _ends(draws[:, None], np.array([tail]))
    return float(low[0]), float(high[0])


def _ends(draws: Floats, tails: Floats) -> tuple[Floats, Floats]:
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


def _p(draws: Floats) -> Floats:
    """Return the two-sided p-values that the numbers are 0, from their values under the draws `[draws, columns]`.

    The p-value is nan where no draw is defined.
    """
    number = len(draws)
    undefined = np.count_nonzero(np.isnan(draws), axis=0)
    below = np.count_nonzero(draws <= TIE, axis=0)
    above = np.count_nonzero(draws >= -TIE, axis=0)
    p = np.minimum(1.0, 2 * (1 + undefined + np.minimum(below, above)) / (1 + number))
    return np.where(undefined < number, p, np.nan)


def _finite(counts: Floats) -> Floats:
    if not np.isfinite(counts).all():
        odd = counts[~np.isfinite(counts)][0]
        raise ValueError(
            f"numerators and denominators must be finite, but one is {odd}; give 0 for both in units not scored"
        )
    return counts
