"""Results of the fidelity tests for each checkpoint; tables and sentences that compare variants, seeds and rankings."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product, takewhile
from typing import NamedTuple

import numpy as np
import pandas as pd

from attention_probing.metrics.bootstrap import (
    difference,
    holm,
    least_p,
    p_units,
    pool_seeds,
    resample,
    with_interval_and_p,
)
from attention_probing.metrics.statistics import proportion, ratio
from attention_probing.results import TIE, Estimate, Floats, Table, Unit, numbers
from attention_probing.results.errors import pluralize
from attention_probing.results.sentences import (
    LEVEL,
    Difference,
    describe_differences,
    format_difference,
    format_estimate,
    negate,
)
from attention_probing.results.tables import printed_name


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
    rows: list[dict[str, object]] = []
    units: list[Unit] = []
    for score, variants in by_score(results).items():
        if _is_nan(variants):
            continue
        means = {variant: pool_seeds(seeds) for variant, seeds in variants.items()}
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
    of_p = p_units(frame["p"], smallest_p(results))
    return Table(frame, {"mean": units, "difference": units, "p": of_p, "p_holm": of_p}, interval="mean")


def smallest_p(results: Sequence[CheckpointResult]) -> float:
    """Return the smallest p-value of the differences between the scores, by the number of their draws."""
    scores = [score for result in results for score in result.scores.values()]
    return least_p(max(score.units or 0 for score in scores), max(len(score.draws) for score in scores))


def result_scores(results: Sequence[CheckpointResult]) -> dict[str, Estimate]:
    """Return, for each variant, the mean of every score over its seeds, with an interval over texts and seeds.

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
    return replace(pool_seeds(seeds), sd=None)


BASELINE, ATTENTION = "random", "attention"
PRINTED = 20  # most rows of the main table with all rankings
SECONDS = "seconds per text"


class Judged(NamedTuple):
    """Names and directions of the scores of a test.

    Attributes:
        test: Name of the test.
        rankings: Names of the rankings that it takes, as in the scores.
        directions: Measures of rankings to show, or scores, with `↑` if higher is better, `↓` if lower is, or an empty
            string; if there are none, all measures are shown.
        claims: Clauses of the answer; see `FidelityTest`.
        beside: Measures to read together with a measure; see `FidelityTest`.
    """

    test: str
    rankings: Sequence[str]
    directions: Mapping[str, str]
    claims: Mapping[str, str] = {}
    beside: Mapping[str, Sequence[str]] = {}

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
    results: Sequence[CheckpointResult], tests: Sequence[Judged], seconds: Mapping[tuple[str, str], float]
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
    found, measures = ranked_scores(results, tests)
    if not measures:
        return {}
    apart, nothing = _against(found, BASELINE), Estimate(math.nan, math.nan, math.nan, unit="ratio")
    heads = {name: f"{name} {arrow}".strip() for name, arrow in measures.items()}
    directed = any(measures.values())
    rankings = dict.fromkeys(ranking for _, name, ranking in found if measures[name] or not directed)
    rows = []
    for variant, ranking in product(by_variant(results), rankings):
        row: dict[str, object] = {"variant": variant, "ranking": ranking}
        for name, head in heads.items():
            row |= replace(found.get((variant, name, ranking), nothing), sd=None).named(head)
        rows.append(row | {SECONDS: seconds.get((variant, ranking), math.nan)})
    frame = pd.DataFrame(rows).dropna(axis="columns", how="all")
    of_columns: dict[str, Unit] = {heads[name]: own.unit for (_, name, _), own in found.items()}
    of_columns[SECONDS] = "ratio"
    tables = {"judge": Table(frame, {column: unit for column, unit in of_columns.items() if column in frame})}
    if apart:
        frame = pd.DataFrame(
            {"variant": variant, "measure": heads[name], "ranking": ranking}
            | found[variant, name, ranking].named("value")
            | {**one.named("difference"), "p_holm": p}
            for (variant, name, ranking), (one, p) in apart.items()
        ).rename(columns={"difference.p": "p"})
        units, of_p = [found[key].unit for key in apart], p_units(frame["p"], smallest_p(results))
        tables["judge_random"] = Table(frame, {"value": units, "difference": units, "p": of_p, "p_holm": of_p})
    return tables


Key = tuple[str, str, str]  # variant, measure, ranking
Compared = tuple[Estimate, float]  # a difference, and its p-value after Holm's correction


def ranked_scores(
    results: Sequence[CheckpointResult], tests: Sequence[Judged]
) -> tuple[dict[Key, Estimate], dict[str, str]]:
    """Return the scores of rankings that are not nan, means over seeds, and the direction of each of their measures.

    A measure has the name `<test>.<measure>`.
    """
    scores = by_score(results)
    measures = {name: arrow for test in tests for name, arrow in test.measures(scores)}
    rankings = dict.fromkeys(ranking for test in tests for ranking in test.rankings)
    found = {
        (variant, name, ranking): pool_seeds(seeds)
        for variant, name, ranking in product(by_variant(results), measures, rankings)
        if (seeds := scores.get(_score(name, ranking), {}).get(variant)) and not math.isnan(seeds[0].value)
    }
    known = {name for _, name, _ in found}
    return found, {name: arrow for name, arrow in measures.items() if name in known}


def _score(measure: str, ranking: str) -> str:
    """Return the name of the score of a measure `<test>.<measure>` for a ranking."""
    test, _, own = measure.rpartition(".")
    return f"{test}.{ranking}.{own}"


def _compared(estimates: Sequence[Estimate], base: Estimate, *, same_runs: bool) -> list[Compared]:
    """Return the differences to a base, with p-values corrected over all of them."""
    apart = [difference(one, base, same_runs=same_runs) for one in estimates]
    return list(zip(apart, holm([math.nan if one.p is None else one.p for one in apart]).tolist(), strict=True))


def _against(found: Mapping[Key, Estimate], baseline: str) -> dict[Key, Compared]:
    """Return the difference of each ranking to a baseline; p-values are corrected over the rankings."""
    apart: dict[Key, Compared] = {}
    for variant, name in dict.fromkeys(key[:2] for key in found):
        others = [key for key in found if key[:2] == (variant, name) and key[2] != baseline]
        if (base := found.get((variant, name, baseline))) is not None:
            apart |= zip(others, _compared([found[key] for key in others], base, same_runs=True), strict=True)
    return apart


def _main(found: Mapping[Key, Estimate], directions: Mapping[str, str], asked: Collection[str]) -> dict[str, list[str]]:
    """Return the last measure of each test that is among the main scores, with its rankings.

    The rankings are those of the first variant that has the measure, the best first if the measure has a direction.
    """
    last = {name.rpartition(".")[0]: name for _, name, ranking in found if _score(name, ranking) in asked}
    ranked = {}
    for name in last.values():
        first, sign = _first(found, name), {"↑": -1, "↓": 1}.get(directions[name], 0)
        values = {key[2]: sign * own.value for key, own in found.items() if key[:2] == (first, name)}
        ranked[name] = sorted(values, key=values.__getitem__)
    return ranked


def _first(found: Mapping[Key, Estimate], measure: str) -> str:
    """Return the first variant that has a measure."""
    return next(variant for variant, name, _ in found if name == measure)


def fidelity_table(results: Sequence[CheckpointResult], tests: Sequence[Judged], asked: Collection[str]) -> Table:
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
        asked: Names of the main scores.
    """
    scores, (found, measures) = by_score(results), ranked_scores(results, tests)
    of_rankings, ranked = {_score(*key[1:]) for key in found}, _main(found, measures, asked)
    plain = [name for name in asked if name not in of_rankings and not _is_nan(scores[name])]
    beside = {f"{test.test}.{name}": others for test in tests for name, others in test.beside.items()}
    companions = {name: _companions(name, order, beside.get(name, ()), scores) for name, order in ranked.items()}
    if len(plain) + sum(len(order) + len(companions[name]) for name, order in ranked.items()) > PRINTED:
        for name in filter(measures.get, ranked):
            ranked[name] = [one for one in ranked[name] if one in (ranked[name][0], ATTENTION, BASELINE)]
    arrows = {f"{test.test}.{score}": arrow for test in tests for score, arrow in test.directions.items()} | measures
    of_tests = {name: ": ".join(map(printed_name, name.split(".", 1))) for name in plain}
    words = {name: f"{text} {arrows.get(name, '')}".strip() for name, text in of_tests.items()}
    for name, order in ranked.items():
        measure = f"{printed_name(name.rpartition('.')[2])} {arrows[name]}".strip()
        words |= {_score(name, one): f"{measure}, {printed_name(one)}" for one in order}
        for other, one in companions[name]:
            measure = f"{printed_name(other.rpartition('.')[2])} {arrows.get(other, '')}".strip()
            words[_score(other, one)] = f"{measure}, {printed_name(one)}"
    rows = [
        {"test": text + " (nats)" * (_unit(scores[name]) == "nats")}
        | numbers({one: _mean(seeds) for one, seeds in scores[name].items()})
        | {"score": name}
        for name, text in words.items()
    ]
    units = {variant: [_unit(scores[name]) for name in words] for variant in by_variant(results)}
    return Table(pd.DataFrame(rows), units, main=("test", *units))


def _companions(
    measure: str, order: Sequence[str], others: Sequence[str], scores: Collection[str]
) -> list[tuple[str, str]]:
    """Return the measures to read together with a measure, each with a ranking: the best, attention and random.

    Args:
        measure: Name of the measure, `<test>.<measure>`.
        order: Its rankings, the best first.
        others: Names of the measures to read together with it, without the test.
        scores: Names of all scores.
    """
    test = measure.rpartition(".")[0]
    shown = [one for one in order if one in (order[0], ATTENTION, BASELINE)]
    pairs = product([f"{test}.{other}" for other in others], shown)
    return [(other, one) for other, one in pairs if _score(other, one) in scores]


def _is_nan(variants: Mapping[str, Sequence[Estimate]]) -> bool:
    return all(math.isnan(seeds[0].value) for seeds in variants.values())


def answer(results: Sequence[CheckpointResult], tests: Sequence[Judged], asked: Collection[str]) -> str:
    """Return the answer: which classifiers are at chance, the first claim of the tests, and the best ranking.

    The best ranking is by the first main measure with a direction, of the first variant that has it. Rankings of a
    classifier that is not above the most frequent label are not named: it may have no decisions to explain.
    """
    variants = by_variant(results)
    faults = {variant: chance_fault(runs) for variant, runs in variants.items()}
    at_chance = {variant: fault for variant, fault in faults.items() if fault}
    sentences = []
    if at_chance:
        first, *others = at_chance
        name = first if len(variants) > 1 else "the classifier"
        sentences.append(f"{name} {at_chance[first]}")
        if others:
            verb = "is" if len(others) == 1 else "are"
            sentences.append(f"nor {verb} {' and '.join(others)} above it")
    best = _best_ranking(results, tests, asked, at_chance)
    before = takewhile(lambda test: not test.rankings, tests) if best else tests
    claims = {f"{test.test}.{score}": claim for test in before for score, claim in test.claims.items()}
    scores = by_score(results)
    name_of_claim = next((name for name in claims if name in scores and not _is_nan(scores[name])), None)
    start = f"on {pluralize(int(results[0].tested.sum()), 'text')}"
    seeds = {len(runs) for runs in variants.values()}
    if max(seeds) > 1:
        up_to = "up to " if len(seeds) > 1 else ""
        start += f" (means of {up_to}{max(seeds)} seeds)"
    if name_of_claim is not None:
        sentences.append(f"{start}, {_claim(claims[name_of_claim], scores[name_of_claim], results)}")
        start = ""
    if best:
        sentences.append(f"{start}, of {best}" if start else f"of {best}")
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences)


def chance_fault(runs: Sequence[CheckpointResult]) -> str:
    """Return what to say of a classifier that is not above the most frequent gold label; empty if it is above.

    Args:
        runs: Results of one variant, one for each seed.
    """
    right, majority = [], []
    for run in runs:
        gold, predicted = run.values["gold"].to_numpy(), run.values["predicted"].to_numpy()
        labels, counts = np.unique(gold, return_counts=True)
        most_frequent = labels[counts.argmax()]
        right.append(resample(proportion, (gold == predicted)[:, None], "fraction"))
        majority.append(resample(proportion, (gold == most_frequent)[:, None], "fraction"))
    accuracy, baseline = pool_seeds(right), pool_seeds(majority)
    above = difference(accuracy, baseline, same_runs=True)
    if above.value > 0 and above.p is not None and above.p < LEVEL:
        return ""
    frequent = format_estimate(replace(baseline, low=None, high=None))
    text = (
        f"is right on {format_estimate(accuracy)}, not significantly above always the most frequent label ({frequent})"
    )
    one_class = all(run.values["predicted"].nunique() == 1 for run in runs)
    return f"{text}{', and predicts one class' if one_class else ''}: no ranking is named"


def _claim(clause: str, variants: Mapping[str, Sequence[Estimate]], results: Sequence[CheckpointResult]) -> str:
    """Return a clause with the score of the first variant that has it, and how many others differ from that.

    Args:
        clause: What the score says, with `{}` for the number, or `{change}` for a drop as a signed change.
        variants: Estimates of the score by variant, one for each seed.
        results: Results of all checkpoints.
    """
    known = {variant: pool_seeds(own) for variant, own in variants.items() if not math.isnan(own[0].value)}
    (first, own), *others = known.items()
    several = len(by_variant(results)) > 1
    named = f" ({first})" if several else ""
    text = clause.replace("{}", format_estimate(own) + named).replace(
        "{change}", format_difference(negate(own)) + named
    )
    if not others:
        return text
    apart = _compared([one for _, one in others], own, same_runs=False)
    family = []
    for (variant, _), (one, _) in zip(others, apart, strict=True):
        named_one = _named(variant, one, len(others), results)
        if "{change}" in clause:
            named_one = replace(named_one, value=negate(named_one.value))
        family.append(named_one)
    trained = "variant" if max(map(len, variants.values())) > 1 else "trained model"
    return f"{text}; {describe_differences(family, [p for _, p in apart], trained, f'differ from {first}')}"


def _named(name: str, apart: Estimate, tests: int, results: Sequence[CheckpointResult]) -> Difference:
    """Return a difference for a sentence, with interval and p-value that hold for all of several at once."""
    (unit,) = p_units([math.nan if apart.p is None else apart.p], smallest_p(results))
    return Difference(name, with_interval_and_p(apart, tests), p_unit=unit)


def _best_ranking(
    results: Sequence[CheckpointResult], tests: Sequence[Judged], asked: Collection[str], at_chance: Collection[str]
) -> str:
    """Return the clause about the best ranking by the first main measure that has a direction and two rankings.

    A ranking is called the best only if its difference to random is significant, and no other ranking has its value.
    Interval and p-value of this difference hold for all rankings at once.

    Args:
        results: Results of all checkpoints.
        tests: The tests.
        asked: Names of the main scores.
        at_chance: Variants whose rankings are not named.
    """
    found, measures = ranked_scores(results, tests)
    ranked = {name: order for name, order in _main(found, measures, asked).items() if measures[name] and len(order) > 1}
    name = next(iter(ranked), None)
    if name is None or _first(found, name) in at_chance:
        return ""
    best, *others = ranked[name]
    variant = _first(found, name)
    test, _, measure = name.rpartition(".")
    (claims,) = (one.claims for one in tests if one.test == test)
    own = found[variant, name, best]
    several = f" for {variant}" if len(by_variant(results)) > 1 else ""
    start = f"{1 + len(others)} rankings{several}"
    equal = [one for one in others if abs(found[variant, name, one].value - own.value) <= TIE]
    if equal:
        names = ", ".join(map(printed_name, (best, *equal)))
        return f"{start}, {1 + len(equal)} share the best {printed_name(measure)} ({names}): {_plain(own)}"
    parts = {}
    for baseline in (BASELINE, ATTENTION):
        if baseline in others:
            apart, _ = _against(found, baseline)[variant, name, best]
            parts[baseline] = _named(baseline, apart, len(others), results)
    to_random = parts.get(BASELINE)
    if best != BASELINE and to_random is None:
        return f"{start}, none is compared with random words, so none is named"
    p = None if to_random is None else to_random.value.p
    if p is None or not p < LEVEL:
        return f"{start}, none is better than random by {printed_name(measure)} (p < .05, all at once)"
    does = claims.get(measure, f"has the best {printed_name(measure)}")
    clauses = [f"{start}, {printed_name(best)} {does}: {_plain(own)}"]
    for baseline, one in reversed(parts.items()):
        of_p = None if one.value.p is None else Estimate(one.value.p, unit=one.p_unit)
        clauses.append(f"difference to {baseline} {format_difference(one.value, of_p)}")
    return "; ".join(clauses)


def _plain(score: Estimate) -> str:
    """Return a number without its interval, which would not hold for the best of several."""
    return format_estimate(replace(score, low=None, high=None))
