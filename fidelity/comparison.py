"""Results of the fidelity tests for each checkpoint, and tables that compare variants, seeds and rankings of words."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import pandas as pd

from metrics.bootstrap import difference, holm, p_units, pooled, ratio
from results import Estimate, Floats, Table, Unit, numbers


@dataclass(frozen=True, eq=False)
class CheckpointResult:
    """Measurements and scores of one checkpoint.

    Attributes:
        name: Name of the checkpoint, as in `Checkpoint`.
        variant: Name shared by checkpoints that differ only in the seed.
        seed: Seed of the training run; -1 if unknown.
        classes: Number of classes.
        positive: Class whose F1 is reported; None for the mean over the classes.
        values: One row per test text, by its index in the split; columns are `<test>.<column>`, nan for skipped texts.
        scores: Estimates by `<test>.<score>`.
    """

    name: str
    variant: str
    seed: int
    classes: int
    positive: int | None
    values: pd.DataFrame
    scores: Mapping[str, Estimate]

    def columns(self, test: str) -> pd.DataFrame:
        """Return the measurements of a test, one row per text; columns are named without the prefix `<test>.`."""
        return self.values.filter(regex=rf"^{test}\.").rename(columns=lambda column: column.removeprefix(f"{test}."))

    @property
    def tested(self) -> "pd.Series[bool]":
        """Bool for each text, True if at least one test has a value for it."""
        return self.values.filter(like=".").notna().any(axis=1)


def by_variant(results: Sequence[CheckpointResult]) -> dict[str, list[CheckpointResult]]:
    """Group results by variant, the name shared by checkpoints that differ only in the seed.

    Variants, and the checkpoints of a variant, keep the order of `results`.
    """
    variants: dict[str, list[CheckpointResult]] = {}
    for result in results:
        variants.setdefault(result.variant, []).append(result)
    return variants


def over_seeds(results: Sequence[CheckpointResult], test: str) -> dict[str, pd.DataFrame]:
    """Return the measurements of a test by variant, with the checkpoints of all seeds in one frame.

    A variant is the name shared by checkpoints that differ only in the seed. Its frame has the rows of
    its checkpoints one after another: one row per checkpoint and test text, nan for skipped texts.

    Args:
        results: Results of all checkpoints.
        test: Name of the test.
    """
    return {variant: pd.concat([one.columns(test) for one in ours]) for variant, ours in by_variant(results).items()}


def column_means(values: Floats, weights: Floats) -> Floats:
    """Return the mean of each column in each draw, `[draws, columns]`; nan for a draw of no text.

    Args:
        values: Values of the texts, `[texts, columns]`.
        weights: Number of times that each text was drawn, `[draws, texts]`.
    """
    return ratio(weights @ values, weights.sum(axis=1, keepdims=True))


def fidelity_table(results: Sequence[CheckpointResult]) -> Table:
    """Return a table of all scores, one row per checkpoint.

    Columns: `checkpoint`, `variant` and `seed`; `texts` and `skipped`, the numbers of tested and of
    skipped texts; and each score with the ends of its interval, `<score>.low` and `<score>.high`.
    Missing and undefined scores are nan.
    """
    rows = []
    for result in results:
        texts = int(result.tested.sum())
        row: dict[str, object] = {"checkpoint": result.name, "variant": result.variant, "seed": result.seed}
        row |= {"texts": texts, "skipped": len(result.values) - texts}
        rows.append(row | numbers(result.scores))
    units = {name: score.unit for result in results for name, score in result.scores.items()}
    return Table(pd.DataFrame(rows), units)


def comparison_table(results: Sequence[CheckpointResult]) -> Table:
    """Return a table that compares the variants with the first variant, one row per score and variant.

    A variant is the name shared by checkpoints that differ only in the seed. Columns:

    - `mean`: mean of the score over the seeds of the variant; `low` and `high`: its bootstrap interval
      over texts;
    - `sd`: standard deviation over the seeds; `seeds`: their number;
    - `difference`: mean minus the mean of the first variant, with its interval `difference.low` and
      `difference.high` and the p-value `p`; both variants use the same resamples of the texts;
    - `p_holm`: `p` after Holm's correction for the number of variants compared on the score.

    `difference`, its interval, `p` and `p_holm` are nan for the first variant.
    """
    rows: list[dict[str, object]] = []
    units: list[Unit] = []
    for score, variants in by_score(results).items():
        means = {variant: pooled(seeds) for variant, seeds in variants.items()}
        first = means.get(results[0].variant)
        nothing = Estimate(math.nan, math.nan, math.nan, unit=_unit(variants), p=math.nan)
        against = [difference(mean, first) if first and mean is not first else nothing for mean in means.values()]
        adjusted = holm([math.nan if apart.p is None else apart.p for apart in against])
        for (variant, seeds), apart, p in zip(variants.items(), against, adjusted.tolist(), strict=True):
            names = {"score": score, "variant": variant, "seeds": len(seeds)}
            rows.append(names | means[variant].named("mean") | apart.named("difference") | {"p_holm": p})
            units.append(nothing.unit)
    short = {"mean.low": "low", "mean.high": "high", "mean.sd": "sd", "difference.p": "p"}
    frame = pd.DataFrame(rows).rename(columns=short)
    of_p = p_units(frame["p"], least_p(results))
    return Table(frame, {"mean": units, "difference": units, "p": of_p, "p_holm": of_p}, interval="mean")


def least_p(results: Sequence[CheckpointResult]) -> float:
    """Return the smallest p-value of the differences between the scores, by the number of their bootstrap draws."""
    return 2 / (1 + max(len(score.draws) for result in results for score in result.scores.values()))


def summary_table(results: Sequence[CheckpointResult], first: Sequence[str] = ()) -> Table:
    """Return a table of the mean scores, one row per score and one column per variant.

    A variant is the name shared by checkpoints that differ only in the seed. Its column has the mean
    over these seeds; the ends of the bootstrap interval are in the columns `<variant>.low` and
    `<variant>.high`.

    Args:
        results: Results of all checkpoints.
        first: Names of the scores in the first rows.
    """
    scores = by_score(results)
    found = {name: scores[name] for name in dict.fromkeys((*first, *scores))}
    rows = [
        {"score": score} | numbers({variant: _mean(seeds) for variant, seeds in variants.items()})
        for score, variants in found.items()
    ]
    units, names = [_unit(variants) for variants in found.values()], by_variant(results)
    # For one variant it repeats the scores.
    return Table(pd.DataFrame(rows), dict.fromkeys(names, units), main=("score", *names) if len(names) > 1 else ())


def result_scores(results: Sequence[CheckpointResult]) -> dict[str, Estimate]:
    """Return, for each variant, the mean of every score over its seeds, with a bootstrap interval.

    A variant is the name shared by checkpoints that differ only in the seed. The names of the means are
    `<variant>.<score>`, or `<score>` alone for the first variant.
    """
    found = by_score(results)
    scores: dict[str, Estimate] = {}
    for variant in by_variant(results):
        prefix = "" if variant == results[0].variant else f"{variant}."
        scores |= {f"{prefix}{name}": _mean(seeds[variant]) for name, seeds in found.items() if variant in seeds}
    return scores


def by_score(results: Sequence[CheckpointResult]) -> dict[str, dict[str, list[Estimate]]]:
    """Return the estimates of each score by variant: a mapping from scores to variants to lists.

    A variant is the name shared by checkpoints that differ only in the seed; its list has one estimate
    per seed. Estimates that are nan are left out, unless all estimates of the list are nan.
    """
    found: dict[str, dict[str, list[Estimate]]] = {}
    for variant, ours in by_variant(results).items():
        for name in dict.fromkeys(name for result in ours for name in result.scores):
            seeds = [result.scores[name] for result in ours if name in result.scores]
            found.setdefault(name, {})[variant] = [one for one in seeds if not math.isnan(one.value)] or seeds
    return found


def _unit(variants: Mapping[str, Sequence[Estimate]]) -> Unit:
    return next(iter(variants.values()))[0].unit


def _mean(seeds: Sequence[Estimate]) -> Estimate:
    return replace(pooled(seeds), sd=None)


BASELINE = "random"
LEVEL = 0.05  # of a difference to random, after Holm's correction
PRINTED = 3  # columns of measures and variants that are printed at any width of the terminal
SIDES = {"better than random": {("↑", True), ("↓", False)}, "worse than random": {("↑", False), ("↓", True)}}
"""Direction of a measure, and whether the ranking is above random."""
SECONDS = "seconds per text"


class Judged(NamedTuple):
    """Test that takes rankings.

    Attributes:
        test: Name of the test.
        rankings: Names of the rankings, as in the scores.
        directions: Measures to show, with `↑` if higher is better, `↓` if lower is, or an empty string; if there are
            none, all measures are shown.
    """

    test: str
    rankings: Sequence[str]
    directions: Mapping[str, str]

    def measures(self, scores: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield the measures `<test>.<measure>` that have a score `<test>.<ranking>.<measure>`, and their directions.

        Args:
            scores: Names of all scores.
        """
        prefixes = [f"{self.test}.{ranking}." for ranking in self.rankings]
        ends = dict.fromkeys(name.removeprefix(one) for name in scores for one in prefixes if name.startswith(one))
        for measure in self.directions or ends:
            if measure in ends and "." not in measure:
                yield f"{self.test}.{measure}", self.directions.get(measure, "")


def judge_tables(
    results: Sequence[CheckpointResult],
    tests: Sequence[Judged],
    main: Collection[str],
    seconds: Mapping[tuple[str, str], float],
) -> dict[str, Table]:
    """Return the tables `judge` and `judge_random`; none if no test takes rankings.

    `judge` has a row for each variant and ranking. It has a column for each measure, the mean over the seeds of the
    variant, with its interval; the arrow in its name says which direction is better. `better than random` and `worse
    than random` count the measures with a direction whose difference to the ranking `random` of the same variant has
    a p-value below .05 after Holm's correction. `seconds per text` is a time of this run. Columns without any value,
    such as the agreement with marked words where none are marked, are left out.

    `judge_random` has a row for each variant, ranking other than `random`, and measure: the value, the difference to
    `random` with its interval and `p`, and `p_holm`, corrected over the rankings of the variant.

    Args:
        results: Results of all checkpoints.
        tests: Tests that take rankings.
        main: Names of the main scores of the tests. For each test, the last measure with a direction that has a main
            score is printed at any terminal width: at most three such columns, or two beside a column of variants.
        seconds: Seconds that a ranking takes for a text, by variant and ranking.
    """
    scores = {
        score: {variant: pooled(seeds) for variant, seeds in variants.items()}
        for score, variants in by_score(results).items()
    }
    measures = {name: arrow for test in tests for name, arrow in test.measures(scores)}
    rankings = dict.fromkeys(ranking for test in tests for ranking in test.rankings)
    found = {
        (variant, name, ranking): own
        for variant, name, ranking in product(by_variant(results), measures, rankings)
        if (own := scores.get(_score(name, ranking), {}).get(variant)) and not math.isnan(own.value)
    }
    units = {name: own.unit for (_, name, _), own in found.items()}
    measures = {name: arrow for name, arrow in measures.items() if name in units}
    if not measures:
        return {}
    apart = _against_random(found)
    heads = {name: f"{name} {arrow}".strip() for name, arrow in measures.items()}
    rows = []
    for variant, ranking in product(by_variant(results), rankings):
        row: dict[str, object] = {"variant": variant, "ranking": ranking}
        for name, head in heads.items():
            own = found.get((variant, name, ranking), Estimate(math.nan, math.nan, math.nan, unit=units[name]))
            row |= replace(own, sd=None).named(head)
        row |= _counts({name: apart.get((variant, name, ranking)) for name in measures}, measures)
        rows.append(row | {SECONDS: seconds.get((variant, ranking), math.nan)})
    asked = [name for name in measures if measures[name] and any(_score(name, one) in main for one in rankings)]
    last = {name.rpartition(".")[0]: heads[name] for name in asked}
    frame, several = pd.DataFrame(rows), ["variant"] if len(by_variant(results)) > 1 else []
    empty = [column for column in (*SIDES, SECONDS) if frame[column].isna().all()]
    frame = frame.drop(columns=[*empty, *([] if several else ["variant"])])
    of_columns: dict[str, Unit] = {head: units[name] for name, head in heads.items()}
    of_columns |= {**dict.fromkeys(SIDES, "count"), SECONDS: "ratio"}
    main = [*several, "ranking", *last.values()][: PRINTED + 1] + list(SIDES)
    kept = {column: unit for column, unit in of_columns.items() if column in frame}
    tables = {"judge": Table(frame, kept, main=[column for column in main if column in frame])}
    return tables | _random_table(found, apart, heads, bool(several), least_p(results))


def _score(measure: str, ranking: str) -> str:
    """Return the name of the score of a measure `<test>.<measure>` for a ranking."""
    test, _, own = measure.rpartition(".")
    return f"{test}.{ranking}.{own}"


Key = tuple[str, str, str]  # variant, measure, ranking
Difference = tuple[Estimate, float]  # to random, and its p-value after Holm's correction


def _against_random(found: Mapping[Key, Estimate]) -> dict[Key, Difference]:
    """Return the difference of each ranking to random; p-values are corrected over the rankings."""
    apart: dict[Key, Difference] = {}
    for variant, name in dict.fromkeys(key[:2] for key in found):
        others = [key for key in found if key[:2] == (variant, name) and key[2] != BASELINE]
        if (random := found.get((variant, name, BASELINE))) is not None:
            differences = [difference(found[key], random) for key in others]
            adjusted = holm([math.nan if one.p is None else one.p for one in differences]).tolist()
            apart |= dict(zip(others, zip(differences, adjusted, strict=True), strict=True))
    return apart


def _counts(apart: Mapping[str, Difference | None], directions: Mapping[str, str]) -> dict[str, float]:
    """Return the numbers of measures on which a ranking is better and worse than random; nan if none is compared."""
    compared = {name: one for name, one in apart.items() if one is not None and directions[name]}
    sure = [(directions[name], one.value > 0) for name, (one, p) in compared.items() if p < LEVEL]
    return {side: sum(map(float, map(at.__contains__, sure))) if compared else math.nan for side, at in SIDES.items()}


def _random_table(
    found: Mapping[Key, Estimate],
    apart: Mapping[Key, Difference],
    heads: Mapping[str, str],
    several: bool,
    least: float,
) -> dict[str, Table]:
    rows = []
    for key, (one, p) in apart.items():
        variant, name, ranking = key
        names = {"variant": variant} if several else {}
        numbers = {**found[key].named("value"), **one.named("difference"), "p_holm": p}
        rows.append({**names, "measure": heads[name], "ranking": ranking, **numbers})
    if not rows:
        return {}
    units = [found[key].unit for key in apart]
    frame = pd.DataFrame(rows).rename(columns={"difference.p": "p"})
    of_p = p_units(frame["p"], least)
    return {"judge_random": Table(frame, {"value": units, "difference": units, "p": of_p, "p_holm": of_p})}
