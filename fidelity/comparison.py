"""Tables that compare variants of a classifier, their seeds, and rankings of words."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import pandas as pd

from attention_probing.fidelity.contract import CheckpointResult, FidelityTest, Reading, by_variant
from attention_probing.metrics.contrasts import Contrast, contrast_with
from attention_probing.metrics.p_values import least_p
from attention_probing.metrics.seeds import pool_seeds
from attention_probing.results import Estimate, Table, Unit, number_of_items, numbers
from attention_probing.results.printed_names import printed_name

BASELINE = "random"
ATTENTION = "attention"
PRINTED = 20  # most rows of the main table with all rankings
SECONDS = "seconds per text"
_SIGNS = {"↑": -1, "↓": 1, "": 0}
"""Factor of a measure with which the best ranking is the lowest, by direction."""


# Scores of the variants


def by_score(results: Sequence[CheckpointResult]) -> dict[str, dict[str, list[Estimate]]]:
    """Return the estimates of each score by variant: a mapping from scores to variants to lists.

    A variant is the name shared by checkpoints that differ only in the seed; its list has one estimate
    per seed. Estimates that are nan are left out, unless all estimates of the list are nan.
    """
    scores: dict[str, dict[str, list[Estimate]]] = {}
    for variant, runs in by_variant(results).items():
        seeds: dict[str, list[Estimate]] = {}
        for run in runs:
            for name, estimate in run.scores.items():
                seeds.setdefault(name, []).append(estimate)
        for name, estimates in seeds.items():
            defined = [estimate for estimate in estimates if not math.isnan(estimate.value)]
            scores.setdefault(name, {})[variant] = defined or estimates
    return scores


def result_scores(results: Sequence[CheckpointResult]) -> dict[str, Estimate]:
    """Return, for each variant, the mean of every score over its seeds, with an interval over texts and seeds.

    A variant is the name shared by checkpoints that differ only in the seed. The names of the means are
    `<variant>.<score>`, or `<score>` alone for the first variant.
    """
    by_name = by_score(results)
    means: dict[str, Estimate] = {}
    for variant in by_variant(results):
        prefix = "" if variant == results[0].variant else f"{variant}."
        for name, variants in by_name.items():
            if variant in variants:
                means[f"{prefix}{name}"] = _mean_over_seeds(variants[variant])
    return means


def comparison_table(results: Sequence[CheckpointResult]) -> Table:
    """Return a table that compares the variants with the first variant, one row per score and variant.

    A variant is the name shared by checkpoints that differ only in the seed. Columns:

    - `mean`: mean of the score over the seeds of the variant; `low` and `high`: its interval over texts and seeds;
    - `sd`: standard deviation over the seeds; `seeds`: their number;
    - `difference`: mean minus the mean of the first variant, with its interval `difference.low` and
      `difference.high` and the p-value `p`, over texts and seeds;
    - `p_holm`: `p` after Holm's correction for the number of variants compared on the score.

    `difference`, its interval, `p` and `p_holm` are nan for the first variant. Scores that are nan for all variants
    have no rows.
    """
    least = smallest_p(results)
    rows: list[dict[str, object]] = []
    units: list[Unit] = []
    units_of_p: list[Unit] = []
    for score, variants in by_score(results).items():
        if is_undefined(variants):
            continue
        unit = unit_of_score(variants)
        means = {variant: pool_seeds(seeds) for variant, seeds in variants.items()}
        contrasts: dict[str, Contrast] = {}
        first = means.get(results[0].variant)
        if first is not None:
            others = {variant: mean for variant, mean in means.items() if mean is not first}
            contrasts.update(zip(others, contrast_with(first, list(others.values()), least), strict=True))
        undefined = Contrast(Estimate(math.nan, math.nan, math.nan, unit=unit, p=math.nan), math.nan, "p")
        for variant, mean in means.items():
            contrast = contrasts.get(variant, undefined)
            row: dict[str, object] = {"score": score, "variant": variant, "seeds": len(variants[variant])}
            row |= mean.columns("mean")
            row |= contrast.difference.columns("difference")
            row["p_holm"] = contrast.p_holm
            rows.append(row)
            units.append(unit)
            units_of_p.append(contrast.p_unit)
    short = {"mean.low": "low", "mean.high": "high", "mean.sd": "sd", "difference.p": "p"}
    frame = pd.DataFrame(rows).rename(columns=short)
    of_columns = {"mean": units, "difference": units, "p": units_of_p, "p_holm": units_of_p}
    return Table(frame, of_columns, interval="mean")


def smallest_p(results: Sequence[CheckpointResult]) -> float:
    """Return the smallest p-value of the differences between the scores, by the number of their draws."""
    units = 0
    draws = 0
    for result in results:
        for score in result.scores.values():
            units = max(units, score.units or 0)
            draws = max(draws, len(score.draws))
    return least_p(units, draws)


def is_undefined(variants: Mapping[str, Sequence[Estimate]]) -> bool:
    """Return True if a score is nan for all variants."""
    return all(math.isnan(seeds[0].value) for seeds in variants.values())


def unit_of_score(variants: Mapping[str, Sequence[Estimate]]) -> Unit:
    """Return the unit of a score."""
    first = next(iter(variants.values()))
    return first[0].unit


def _mean_over_seeds(seeds: Sequence[Estimate]) -> Estimate:
    return replace(pool_seeds(seeds), sd=None)


# Scores of rankings


class Key(NamedTuple):
    """Place of a score of a ranking.

    Attributes:
        variant: Name of the variant.
        measure: Name of the measure, `<test>.<measure>`.
        ranking: Name of the ranking.
    """

    variant: str
    measure: str
    ranking: str

    @property
    def score(self) -> str:
        """Name of the score, `<test>.<ranking>.<measure>`."""
        return score_name(self.measure, self.ranking)


def score_name(measure: str, ranking: str) -> str:
    """Return the name of the score of a measure `<test>.<measure>` for a ranking, `<test>.<ranking>.<measure>`."""
    test, _, name = measure.rpartition(".")
    return f"{test}.{ranking}.{name}"


@dataclass(frozen=True, eq=False)
class RankingScores:
    """Scores of rankings that are not nan, means over the seeds of a variant.

    Attributes:
        scores: Means by variant, measure and ranking.
        directions: `↑` if higher is better, `↓` if lower is, or an empty string, by measure.
    """

    scores: Mapping[Key, Estimate]
    directions: Mapping[str, str]

    @classmethod
    def from_results(cls, results: Sequence[CheckpointResult], tests: Sequence[FidelityTest]) -> "RankingScores":
        """Select the scores of the rankings of some tests.

        Args:
            results: Results of all checkpoints.
            tests: The tests.
        """
        by_name = by_score(results)
        directions: dict[str, str] = {}
        rankings: dict[str, None] = {}
        for test in tests:
            directions |= _directions(test, by_name)
            rankings |= dict.fromkeys(test.rankings)
        scores: dict[Key, Estimate] = {}
        for key in map(Key._make, product(by_variant(results), directions, rankings)):
            seeds = by_name.get(key.score, {}).get(key.variant)
            if seeds and not math.isnan(seeds[0].value):
                scores[key] = pool_seeds(seeds)
        measured = {key.measure for key in scores}
        return cls(scores, {measure: arrow for measure, arrow in directions.items() if measure in measured})

    def first_variant(self, measure: str) -> str:
        """Return the first variant that has a measure."""
        return next(key.variant for key in self.scores if key.measure == measure)

    def sort_rankings(self, measure: str) -> list[str]:
        """Return the rankings of the first variant that has a measure.

        The best ranking is the first if the measure has a direction.
        """
        variant = self.first_variant(measure)
        sign = _SIGNS[self.directions[measure]]
        values = {}
        for key, score in self.scores.items():
            if (key.variant, key.measure) == (variant, measure):
                values[key.ranking] = sign * score.value
        return sorted(values, key=values.__getitem__)

    def main_measures(self, main_scores: Collection[str]) -> dict[str, list[str]]:
        """Return the last measure of each test that is among the main scores, with its rankings in order.

        Args:
            main_scores: Names of the main scores.
        """
        last: dict[str, str] = {}
        for key in self.scores:
            if key.score in main_scores:
                test = key.measure.rpartition(".")[0]
                last[test] = key.measure
        return {measure: self.sort_rankings(measure) for measure in last.values()}

    def contrasts_with(self, baseline: str, least: float) -> dict[Key, Contrast]:
        """Compare each ranking with a baseline; p-values are corrected over the rankings of a variant and a measure.

        Args:
            baseline: Name of the ranking that the others are compared with.
            least: The smallest possible p-value.
        """
        groups: dict[tuple[str, str], list[Key]] = {}
        for key in self.scores:
            groups.setdefault((key.variant, key.measure), []).append(key)
        contrasts: dict[Key, Contrast] = {}
        for (variant, measure), keys in groups.items():
            base = self.scores.get(Key(variant, measure, baseline))
            if base is not None:
                others = [key for key in keys if key.ranking != baseline]
                scores = [self.scores[key] for key in others]
                of_others = contrast_with(base, scores, least, same_runs=True)
                contrasts.update(zip(others, of_others, strict=True))
        return contrasts


def _directions(test: FidelityTest, scores: Collection[str]) -> dict[str, str]:
    """Return the directions of the measures of a test that have a score of a ranking, by `<test>.<measure>`.

    Args:
        test: The test.
        scores: Names of all scores.
    """
    prefixes = [f"{test.name}.{ranking}." for ranking in test.rankings]
    measured: dict[str, None] = {}
    for name, prefix in product(scores, prefixes):
        measure = name.removeprefix(prefix)
        if name.startswith(prefix) and "." not in measure:
            measured[measure] = None
    directions: dict[str, str] = {}
    for measure in test.readings or measured:
        if measure in measured:
            directions[f"{test.name}.{measure}"] = test.readings.get(measure, Reading()).better
    return directions


def judge_tables(
    results: Sequence[CheckpointResult], tests: Sequence[FidelityTest], seconds: Mapping[tuple[str, str], float]
) -> dict[str, Table]:
    """Return the tables `judge` and `judge_random`; none if no test takes rankings.

    `judge` has a row for each variant and ranking. It has a column for each measure, the mean over the seeds of the
    variant, with its interval; the arrow in its name says which direction is better. `seconds per text` is a time of
    this run. Columns without any value, such as the agreement with marked words where none are marked, are left out,
    and so are rankings without a measure that has a direction.

    `judge_random` has a row for each variant, ranking other than `random`, and measure: the value, the difference to
    `random` with its interval and `p`, and `p_holm`, corrected over the rankings of the variant.

    Args:
        results: Results of all checkpoints.
        tests: The tests.
        seconds: Seconds that a ranking takes for a text, by variant and ranking.
    """
    ranked = RankingScores.from_results(results, tests)
    if not ranked.directions:
        return {}
    columns = {measure: f"{measure} {arrow}".strip() for measure, arrow in ranked.directions.items()}
    tables = {"judge": _judge_table(ranked, columns, list(by_variant(results)), seconds)}
    contrasts = ranked.contrasts_with(BASELINE, smallest_p(results))
    if contrasts:
        tables["judge_random"] = _random_table(ranked, columns, contrasts)
    return tables


def _judge_table(
    ranked: RankingScores,
    columns: Mapping[str, str],
    variants: Sequence[str],
    seconds: Mapping[tuple[str, str], float],
) -> Table:
    """Return the table `judge`; see `judge_tables`.

    Args:
        ranked: The scores.
        columns: Name of the column of each measure.
        variants: Names of all variants.
        seconds: Seconds that a ranking takes for a text, by variant and ranking.
    """
    nothing = Estimate(math.nan, math.nan, math.nan, unit="ratio")
    is_any_directed = any(ranked.directions.values())
    rankings: dict[str, None] = {}
    for key in ranked.scores:
        if ranked.directions[key.measure] or not is_any_directed:
            rankings[key.ranking] = None
    rows = []
    for variant, ranking in product(variants, rankings):
        row: dict[str, object] = {"variant": variant, "ranking": ranking}
        for measure, column in columns.items():
            score = ranked.scores.get(Key(variant, measure, ranking), nothing)
            row |= replace(score, sd=None).columns(column)
        row[SECONDS] = seconds.get((variant, ranking), math.nan)
        rows.append(row)
    frame = pd.DataFrame(rows).dropna(axis="columns", how="all")
    units: dict[str, Unit] = {columns[key.measure]: score.unit for key, score in ranked.scores.items()}
    if SECONDS in frame:
        units[SECONDS] = "ratio"
    return Table(frame, units)


def _random_table(ranked: RankingScores, columns: Mapping[str, str], contrasts: Mapping[Key, Contrast]) -> Table:
    """Return the table `judge_random`; see `judge_tables`.

    Args:
        ranked: The scores.
        columns: Name of each measure in the table.
        contrasts: Differences to random words.
    """
    rows = []
    units = []
    for key, contrast in contrasts.items():
        score = ranked.scores[key]
        row: dict[str, object] = {"variant": key.variant, "measure": columns[key.measure], "ranking": key.ranking}
        row |= score.columns("value")
        row |= contrast.difference.columns("difference")
        row["p_holm"] = contrast.p_holm
        rows.append(row)
        units.append(score.unit)
    frame = pd.DataFrame(rows).rename(columns={"difference.p": "p"})
    units_of_p = [contrast.p_unit for contrast in contrasts.values()]
    return Table(frame, {"value": units, "difference": units, "p": units_of_p, "p_holm": units_of_p})


# The main table


def fidelity_table(
    results: Sequence[CheckpointResult], tests: Sequence[FidelityTest], main_scores: Collection[str]
) -> Table:
    """Return the main table, one row per main score and one column per variant.

    Columns: `test`, the score in words, with an arrow to the side that speaks for attention or for the ranking, and
    `nats` where it has this unit; for each variant the mean over its seeds, with the ends of its bootstrap interval in
    `<variant>.low` and `<variant>.high`; and `score`, the name of the score. A test of rankings has rows for its last
    measure among the main scores, the best ranking of the first variant first. If there are more than `PRINTED` rows, a
    measure with a direction has rows for the best ranking, attention and random alone. Measures that must be read
    together with it follow for these three.

    Args:
        results: Results of all checkpoints.
        tests: The tests.
        main_scores: Names of the main scores.
    """
    scores = by_score(results)
    arrows, companions = _describe_measures(tests)
    texts = _label_scores(RankingScores.from_results(results, tests), scores, main_scores, arrows, companions)
    rows = []
    items: dict[str, list[float]] = {variant: [] for variant in by_variant(results)}
    for name, text in texts.items():
        variants = scores[name]
        in_nats = unit_of_score(variants) == "nats"
        row: dict[str, object] = {"test": f"{text} (nats)" if in_nats else text}
        means = {variant: _mean_over_seeds(seeds) for variant, seeds in variants.items()}
        row |= numbers(means)
        row["score"] = name
        rows.append(row)
        for variant, of_rows in items.items():
            of_rows.append(number_of_items(means[variant]) if variant in means else math.nan)
    units_of_rows = [unit_of_score(scores[name]) for name in texts]
    units = dict.fromkeys(by_variant(results), units_of_rows)
    return Table(pd.DataFrame(rows), units, main=("test", *units), items=items)


def _describe_measures(tests: Sequence[FidelityTest]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the arrow of each score or measure, and the measures to read together with it, by `<test>.<name>`."""
    arrows: dict[str, str] = {}
    companions = {}
    for test in tests:
        for name, reading in test.readings.items():
            arrows[f"{test.name}.{name}"] = reading.better
            companions[f"{test.name}.{name}"] = [f"{test.name}.{other}" for other in reading.beside]
    return arrows, companions


def _label_scores(
    ranked: RankingScores,
    scores: Mapping[str, Mapping[str, Sequence[Estimate]]],
    main_scores: Collection[str],
    arrows: Mapping[str, str],
    companions: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Return the rows of the main table in their order: names of scores, with their text.

    Args:
        ranked: Scores of rankings.
        scores: Estimates of all scores by variant.
        main_scores: Names of the main scores.
        arrows: Arrow of each score or measure.
        companions: Measures to read together with a measure.
    """
    of_rankings = {key.score for key in ranked.scores}
    texts: dict[str, str] = {}
    for name in main_scores:
        if name not in of_rankings and not is_undefined(scores[name]):
            words = ": ".join(map(printed_name, name.split(".", 1)))
            texts[name] = f"{words} {arrows.get(name, '')}".strip()
    measures = ranked.main_measures(main_scores)
    beside: dict[str, list[tuple[str, str]]] = {}
    for measure, rankings in measures.items():
        pairs = product(companions.get(measure, ()), _best_and_baselines(rankings))
        beside[measure] = [pair for pair in pairs if score_name(*pair) in scores]
    rows = len(texts)
    for measure, rankings in measures.items():
        rows += len(rankings) + len(beside[measure])
    if rows > PRINTED:
        for measure, rankings in measures.items():
            if ranked.directions[measure]:
                measures[measure] = _best_and_baselines(rankings)
    for measure, rankings in measures.items():
        for other, ranking in [*product([measure], rankings), *beside[measure]]:
            name = printed_name(other.rpartition(".")[2])
            text = f"{name} {arrows.get(other, '')}".strip()
            texts[score_name(other, ranking)] = f"{text}, {printed_name(ranking)}"
    return texts


def _best_and_baselines(rankings: Sequence[str]) -> list[str]:
    """Return the best ranking, the first one, and attention and random if they are among the rankings."""
    return [ranking for ranking in rankings if ranking in (rankings[0], ATTENTION, BASELINE)]
