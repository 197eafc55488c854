"""Means over runs that differ only in the seed."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from metrics.bootstrap import LEAST_SEEDS, mean_and_sd, pooled, resample, seeds_margin
from metrics.statistics import two_columns
from results import Estimate, Unit
from results.reader import Record


def estimate_from_counts(seeds: Sequence[pd.DataFrame], unit: Unit, *, share: bool, draws: int = 1000) -> Estimate:
    """Return the mean of a score over runs that differ only in the seed, from its counts for each item.

    Its interval covers the variation of items, or of their documents, and of seeds; see `metrics.bootstrap.pooled`.

    Args:
        seeds: Counts of each run, from `Record.counts`. An item that a run lacks has no counts in it.
        unit: Unit of the score.
        share: True if the numerators count some of the items that the denominators count.
        draws: Number of draws.
    """
    items = seeds[0].index
    for counts in seeds[1:]:
        items = items.union(counts.index, sort=False)
    units = pd.concat([counts["unit"] for counts in seeds])
    units = units[~units.index.duplicated()].loc[items]
    found = []
    for counts in seeds:
        both = counts[["numerator", "denominator"]].reindex(items, fill_value=0.0)
        found.append(resample(two_columns(share=share), both.to_numpy(), unit, units=units.to_numpy(), draws=draws))
    return pooled(found)


def over_seeds(records: Sequence[Record], score: str) -> Estimate:
    """Return the mean of a score over runs that differ only in the seed, with its standard deviation over them.

    The interval of one run is that of the run. With several runs it covers items and seeds, by `estimate_from_counts`,
    or without counts by `averaged`.

    Args:
        records: The runs.
        score: Name of the score, or place of a cell of a table; see `Record.number`.

    Raises:
        RecordError: A run has no such number, or its counts cannot be read.
    """
    found = averaged([one.number(score) for one in records])
    counted_all = all(score in one.content["ratios"] and one.items is not None for one in records)
    if not counted_all or math.isnan(found.value):
        return found
    if len(records) == 1 and records[0].scores[score].low is not None:
        return found
    share = all(score in one.shares for one in records)
    own = estimate_from_counts([one.counts(score) for one in records], found.unit, share=share)
    return replace(found, low=own.low, high=own.high)


def averaged(seeds: Sequence[Estimate]) -> Estimate:
    """Return the mean of a number over runs with different seeds, with its standard deviation over them.

    Each half of the interval is the mean of the halves of the runs, joined in quadrature with the half of Student's
    interval over the seeds. The interval is nan if a run has none, and for two seeds, which say too little of others.
    """
    mean, sd = mean_and_sd([one.value for one in seeds])
    ends = np.array([(one.low, one.high) for one in seeds], dtype=float)  # None becomes nan
    low, high = ends.mean(axis=0).tolist()
    if len(seeds) > 1:
        margin = seeds_margin(sd, len(seeds)) if len(seeds) >= LEAST_SEEDS else math.nan
        low = mean - math.hypot(mean - low, margin)
        high = mean + math.hypot(high - mean, margin)
    return Estimate(mean, low, high, unit=seeds[0].unit, sd=sd)
