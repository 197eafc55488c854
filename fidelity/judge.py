"""Tables that judge rankings of words: every measure of every test that takes rankings, by classifier and ranking."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import pandas as pd

from fidelity.comparison import CheckpointResult, by_score, by_variant, least_p
from metrics.bootstrap import difference, holm, p_units, pooled
from results import Estimate, Table, Unit

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
        main: Names of the scores that answer the question of their test. Of each test the last of these measures that
            has a direction is printed at any width of the terminal, up to three columns with that of the variants.
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
    answer = [*several, "ranking", *last.values()][: PRINTED + 1] + list(SIDES)
    kept = {column: unit for column, unit in of_columns.items() if column in frame}
    tables = {"judge": Table(frame, kept, answer=[column for column in answer if column in frame])}
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
