"""Means over runs that differ only in the seed."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from metrics.bootstrap import bootstrap_ratio, mean_and_sd
from results import Estimate
from results.reader import Record


def mean_counts(seeds: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the counts of each item, means over runs that differ only in the seed.

    The counts of each run are first scaled to the mean total denominator, so that the ratio of the returned counts is
    the mean of the ratios of the runs. Without the scaling, a run with a larger denominator would weigh more, and a
    bootstrap of the counts would estimate another number than this mean. Denominators differ between runs if they
    depend on predictions, as for F1.

    Args:
        seeds: Counts of each run, from `Record.counts`.
    """
    totals = [float(one["denominator"].sum()) for one in seeds]
    scales = [float(np.mean(totals)) / total if total else 0.0 for total in totals]
    scaled = pd.concat([one * scale for one, scale in zip(seeds, scales, strict=True)])
    return scaled.groupby(level=list(range(scaled.index.nlevels)), sort=False, dropna=False).sum() / len(seeds)


def over_seeds(records: Sequence[Record], score: str) -> Estimate:
    """Return the mean of a score over runs that differ only in the seed, with its standard deviation over them.

    The interval of one run is that of the run. With several runs it is the bootstrap of the mean over items, by
    `mean_counts`. Without counts, its ends are the means of the ends of the runs' intervals; it is nan if a run has
    none.

    Args:
        records: The runs.
        score: Name of the score, or place of a cell of a table; see `Record.number`.

    Raises:
        RecordError: A run has no such number, or its counts cannot be read.
    """
    found = averaged([one.number(score) for one in records])
    counted_all = all(score in one.content["ratios"] and one.items is not None for one in records)
    if counted_all and not math.isnan(found.value) and (len(records) > 1 or records[0].scores[score].low is None):
        counts = mean_counts([one.counts(score) for one in records])
        columns = counts["numerator"].to_numpy(), counts["denominator"].to_numpy()
        low, high = bootstrap_ratio(*columns, found.unit, runs=len(records)).interval
        found = replace(found, low=low, high=high)
    return found


def averaged(seeds: Sequence[Estimate]) -> Estimate:
    """Return the mean of a number over runs with different seeds, with its standard deviation over them.

    The ends of the interval are the means of the ends; they are nan if a run has no interval.
    """
    mean, sd = mean_and_sd([one.value for one in seeds])
    low, high = np.array([(one.low, one.high) for one in seeds], dtype=float).mean(axis=0).tolist()  # None becomes nan
    return Estimate(mean, low, high, unit=seeds[0].unit, sd=sd)
