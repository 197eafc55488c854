"""Means over runs that differ only in the seed."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.seeds import LEAST_SEEDS, mean_and_sd, pool_seeds, seeds_margin
from attention_probing.metrics.statistics import two_columns
from attention_probing.results import Estimate, Unit
from attention_probing.results.record import Record


def with_common_units(runs: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Return the counts of several runs, with numbers of units that are the same for an item in all runs.

    Documents are those of the runs that have them, such as runs of a version that read the marks. Without documents
    each item is a unit; its number in a run would depend on the order of the run's items.

    Args:
        runs: Counts of each run, from `Record.counts`.
    """
    units = pd.concat([counts["unit"] for counts in runs])
    items = units.index[~units.index.duplicated()]
    with_documents = [counts["unit"] for counts in runs if not counts["unit"].is_unique]
    numbers = np.arange(len(items))
    if with_documents:
        documents = pd.concat(with_documents)
        documents = documents[~documents.index.duplicated()].reindex(items)
        of_documents = pd.factorize(documents, sort=True)[0]
        numbers = np.where(of_documents < 0, len(items) + numbers, of_documents)
    common = pd.Series(numbers, index=items)
    return [counts.assign(unit=common.reindex(counts.index).to_numpy()) for counts in runs]


def estimate_from_counts(seeds: Sequence[pd.DataFrame], unit: Unit, *, share: bool, draws: int = 1000) -> Estimate:
    """Return the mean of a score over runs that differ only in the seed, from its counts for each item.

    Its interval covers the variation of items, or of their documents, and of seeds; see `metrics.seeds.pool_seeds`.

    Args:
        seeds: Counts of each run, from `Record.counts`. An item that a run lacks has no counts in it.
        unit: Unit of the score.
        share: True if the numerators count some of the items that the denominators count.
        draws: Number of draws.
    """
    seeds = with_common_units(seeds)
    units = pd.concat([counts["unit"] for counts in seeds])
    units = units[~units.index.duplicated()]
    items = units.index
    statistic = two_columns(share=share)
    estimates = []
    for counts in seeds:
        columns = counts[["numerator", "denominator"]].reindex(items, fill_value=0.0)
        estimates.append(resample(statistic, columns.to_numpy(), unit, units=units.to_numpy(), draws=draws))
    return pool_seeds(estimates)


def as_left_out(estimate: Estimate, runs: Sequence[Estimate]) -> Estimate:
    """Return an estimate without its interval if a run has left out its own, as for a head chosen on the scored words.

    Args:
        estimate: The estimate over the runs.
        runs: The score of each run.
    """
    if any(run.low is not None and math.isnan(run.low) for run in runs):
        return replace(estimate, low=math.nan, high=math.nan)
    return estimate


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
    mean = averaged([record.number(score) for record in records])
    have_counts = all(score in record.ratios and record.items is not None for record in records)
    if not have_counts or math.isnan(mean.value):
        return mean
    estimates = [record.scores[score] for record in records]
    if len(estimates) == 1 and estimates[0].low is not None:
        return mean
    counts = [record.counts(score) for record in records]
    share = all(score in record.shares for record in records)
    from_counts = as_left_out(estimate_from_counts(counts, mean.unit, share=share), estimates)
    return replace(mean, low=from_counts.low, high=from_counts.high)


def averaged(seeds: Sequence[Estimate]) -> Estimate:
    """Return the mean of a number over runs with different seeds, with its standard deviation over them.

    Each half of the interval is the mean of the halves of the runs, joined in quadrature with the half of Student's
    interval over the seeds. The interval is nan if a run has none, and for two seeds, which say too little of others.
    """
    mean, sd = mean_and_sd([run.value for run in seeds])
    ends = np.array([(run.low, run.high) for run in seeds], dtype=float)  # None becomes nan
    low, high = ends.mean(axis=0).tolist()
    if len(seeds) > 1:
        margin = math.nan
        if len(seeds) >= LEAST_SEEDS:
            margin = seeds_margin(sd, len(seeds))
        low = mean - math.hypot(mean - low, margin)
        high = mean + math.hypot(high - mean, margin)
    return Estimate(mean, low, high, unit=seeds[0].unit, sd=sd)
