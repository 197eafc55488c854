"""The answer of a run of fidelity tests in a few sentences."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attention_probing.fidelity.comparison import (
    ATTENTION,
    BASELINE,
    Key,
    RankingScores,
    by_score,
    is_undefined,
    smallest_p,
)
from attention_probing.fidelity.contract import CheckpointResult, FidelityTest, Reading, by_variant
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.contrasts import contrast_with
from attention_probing.metrics.differences import difference
from attention_probing.metrics.seeds import pool_seeds
from attention_probing.metrics.statistics import proportion
from attention_probing.results import TIE, Estimate
from attention_probing.results.errors import pluralize
from attention_probing.results.printed_names import printed_name
from attention_probing.results.sentences import (
    LEVEL,
    Difference,
    describe_difference,
    describe_differences,
    format_difference,
    format_estimate,
    negate,
)


def answer(results: Sequence[CheckpointResult], tests: Sequence[FidelityTest], main_scores: Collection[str]) -> str:
    """Return the answer: which classifiers are at chance, the first claim of the tests, attention, the best ranking.

    Attention is compared with random words, and the best ranking with attention, by the first main measure with a
    direction, of the first variant that has it. Rankings of a classifier that is not above the most frequent label are
    not named: it may have no decisions to explain. If all classifiers are so, there is no claim either.
    """
    at_chance = _classifiers_at_chance(results)
    if len(at_chance) == len(by_variant(results)):
        return _join_sentences(_describe_chance(results, at_chance))
    rankings = _describe_rankings(results, tests, main_scores, at_chance)
    claim = _describe_first_claim(results, tests, before_rankings=bool(rankings))
    clauses = [claim, *rankings] if claim else rankings
    sentences = _describe_chance(results, at_chance)
    if clauses:
        sentences.append(f"{_describe_texts(results)}, {clauses[0]}")
        sentences.extend(clauses[1:])
    return _join_sentences(sentences)


def _join_sentences(sentences: Sequence[str]) -> str:
    """Return sentences as one text, each with a capital and a full stop."""
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences)


def _describe_texts(results: Sequence[CheckpointResult]) -> str:
    """Return the beginning of a sentence: the number of tested texts, and of seeds if there are several."""
    start = f"on {pluralize(int(results[0].tested.sum()), 'text')}"
    seeds = {len(runs) for runs in by_variant(results).values()}
    if max(seeds) == 1:
        return start
    up_to = "up to " if len(seeds) > 1 else ""
    return f"{start} (means of {up_to}{max(seeds)} seeds)"


def _is_one_of_several(results: Sequence[CheckpointResult]) -> bool:
    """Return True if there are several variants, so that sentences must name the one they are about."""
    return len(by_variant(results)) > 1


# Classifiers at chance


def _classifiers_at_chance(results: Sequence[CheckpointResult]) -> dict[str, str]:
    """Return a clause on each variant that is not above the most frequent label, by variant."""
    faults = {}
    for variant, runs in by_variant(results).items():
        fault = chance_fault(runs)
        if fault:
            faults[variant] = fault
    return faults


def _describe_chance(results: Sequence[CheckpointResult], at_chance: Mapping[str, str]) -> list[str]:
    """Return the sentences about classifiers at chance; none if there are none."""
    if not at_chance:
        return []
    first, *others = at_chance
    name = first if _is_one_of_several(results) else "the classifier"
    sentences = [f"{name} {at_chance[first]}"]
    if others:
        verb = "is" if len(others) == 1 else "are"
        sentences.append(f"nor {verb} {' and '.join(others)} above it")
    return sentences


def chance_fault(runs: Sequence[CheckpointResult]) -> str:
    """Return a clause on a classifier that is not above the most frequent gold label; empty if it is above.

    Args:
        runs: Results of one variant, one for each seed.
    """
    accuracies = []
    majorities = []
    for run in runs:
        gold = run.decisions["gold"].to_numpy()
        predicted = run.decisions["predicted"].to_numpy()
        labels, counts = np.unique(gold, return_counts=True)
        most_frequent = labels[counts.argmax()]
        accuracies.append(resample(proportion, (gold == predicted)[:, None], "fraction"))
        majorities.append(resample(proportion, (gold == most_frequent)[:, None], "fraction"))
    accuracy = pool_seeds(accuracies)
    majority = pool_seeds(majorities)
    gain = difference(accuracy, majority, same_runs=True)
    if gain.value > 0 and gain.p is not None and gain.p < LEVEL:
        return ""
    label = f"always giving the most frequent label ({_without_interval(majority)})"
    texts = pluralize(len(runs[0].decisions), "text")
    text = f"is right on {format_estimate(accuracy)} of {texts}, not significantly better than {label}"
    if all(run.decisions["predicted"].nunique() == 1 for run in runs):
        text += ", and predicts one class"
    return f"{text}: nothing can be concluded about attention in it, and no ranking is named"


# The first claim


def _describe_first_claim(
    results: Sequence[CheckpointResult], tests: Sequence[FidelityTest], *, before_rankings: bool
) -> str:
    """Return the first claim of the tests that has a number; empty if none has.

    Args:
        results: Results of all checkpoints.
        tests: The tests.
        before_rankings: True to read only the tests before the first that compares rankings.
    """
    scores = by_score(results)
    for test in tests:
        if before_rankings and test.rankings:
            break
        for name, reading in test.readings.items():
            variants = scores.get(f"{test.name}.{name}")
            if reading.claim and variants and not is_undefined(variants):
                return _describe_claim(reading.claim, variants, results)
    return ""


def _describe_claim(
    clause: str, variants: Mapping[str, Sequence[Estimate]], results: Sequence[CheckpointResult]
) -> str:
    """Return a clause with the score of the first variant that has it, and how many others differ from that.

    Args:
        clause: Clause on the score, with `{}` for the number, or `{change}` for a drop as a signed change.
        variants: Estimates of the score by variant, one for each seed.
        results: Results of all checkpoints.
    """
    means = {}
    for variant, seeds in variants.items():
        if not np.isnan(seeds[0].value):
            means[variant] = pool_seeds(seeds)
    first, *others = means
    name = f" ({first})" if _is_one_of_several(results) else ""
    text = clause.replace("{}", format_estimate(means[first]) + name)
    text = text.replace("{change}", format_difference(negate(means[first])) + name)
    if not others:
        return text
    contrasts = contrast_with(means[first], [means[variant] for variant in others], smallest_p(results))
    differences = []
    for variant, contrast in zip(others, contrasts, strict=True):
        one = contrast.for_all(variant, len(others))
        if "{change}" in clause:
            one = replace(one, value=negate(one.value))
        differences.append(one)
    has_seeds = max(map(len, variants.values())) > 1
    noun = "variant" if has_seeds else "trained model"
    corrected = [contrast.p_holm for contrast in contrasts]
    return f"{text}; {describe_differences(differences, corrected, noun, f'differ from {first}')}"


# Attention among the rankings


def _describe_rankings(
    results: Sequence[CheckpointResult],
    tests: Sequence[FidelityTest],
    main_scores: Collection[str],
    at_chance: Collection[str],
) -> list[str]:
    """Return a clause about attention and one about the best ranking, of the first variant that is measured.

    The measure is the first main one that has a direction and two rankings. There is no clause about attention if it
    is not among the rankings.

    Args:
        results: Results of all checkpoints.
        tests: The tests.
        main_scores: Names of the main scores.
        at_chance: Variants whose rankings are not named.
    """
    ranked = RankingScores.from_results(results, tests)
    measure = _first_comparable_measure(ranked, main_scores)
    if measure is None:
        return []
    variant = ranked.first_variant(measure)
    if variant in at_chance:
        return []
    judged = _Judged.from_ranked(ranked, variant, measure, smallest_p(results))
    test_name, _, name = measure.rpartition(".")
    [test] = [test for test in tests if test.name == test_name]
    reading = test.readings.get(name, Reading())
    clauses = [_describe_attention(judged, reading), _describe_best_ranking(judged, reading)]
    if _is_one_of_several(results):
        clauses = [f"in {variant}, {clause}" for clause in clauses if clause]
    return [clause for clause in clauses if clause]


@dataclass(frozen=True)
class _Judged:
    """Rankings of one variant by one measure.

    Attributes:
        printed: The name of the measure in print.
        scores: Score of each ranking, the best first.
        sign: 1 if high values are better, −1 if low ones are.
        to_random: Difference of each ranking to `random`, with the interval and the p-value for all at once; empty
            without this ranking.
        to_attention: The same to `attention`.
    """

    printed: str
    scores: Mapping[str, Estimate]
    sign: int
    to_random: Mapping[str, Difference]
    to_attention: Mapping[str, Difference]

    @classmethod
    def from_ranked(cls, ranked: RankingScores, variant: str, measure: str, least: float) -> "_Judged":
        """Select the scores of a variant by a measure; `least` is the smallest possible p-value."""
        scores = {}
        for ranking in ranked.sort_rankings(measure):
            scores[ranking] = ranked.scores[Key(variant, measure, ranking)]
        differences: dict[str, dict[str, Difference]] = {BASELINE: {}, ATTENTION: {}}
        for baseline, of_rankings in differences.items():
            contrasts = ranked.contrasts_with(baseline, least)
            for ranking in scores:
                contrast = contrasts.get(Key(variant, measure, ranking))
                if contrast is not None:
                    of_rankings[ranking] = contrast.for_all(baseline, len(scores) - 1)
        printed = printed_name(measure.rpartition(".")[2])
        sign = 1 if ranked.directions[measure] == "↑" else -1
        return cls(printed, scores, sign, differences[BASELINE], differences[ATTENTION])


def _describe_attention(judged: _Judged, reading: Reading) -> str:
    """Return the clause that compares attention with random words; empty if one of them is not among the rankings."""
    difference = judged.to_random.get(ATTENTION)
    if difference is None:
        return ""
    clause = reading.attention or f"attention has {judged.printed} {{attention}}, random words {{random}}"
    for ranking in (ATTENTION, BASELINE):
        number = _without_interval(judged.scores[ranking])
        clause = clause.replace(f"{{{ranking}}}", number)
        clause = clause.replace(f"{{{ranking}:points}}", number.replace(" %", " points"))
    verdict = "difference"
    p = difference.value.p
    if p is None or not p < LEVEL:
        verdict = "no significant difference,"
    elif judged.sign * difference.value.value < 0:
        verdict = "attention is worse, difference"
    return f"{clause}: {verdict} {describe_difference(difference)}"


def _describe_best_ranking(judged: _Judged, reading: Reading) -> str:
    """Return the clause about the best ranking, with its difference to attention, or to random without attention.

    A ranking is called the best only if its difference to random is significant, and no other ranking has its value.
    Others with the same number in print are named, too.
    """
    best, *others = judged.scores
    score = judged.scores[best]
    value = _without_interval(score)
    start = f"of {1 + len(others)} rankings"

    equal = []
    alike = []
    for ranking in others:
        other = judged.scores[ranking]
        if abs(other.value - score.value) <= TIE:
            equal.append(ranking)
        elif _without_interval(other) == value:
            alike.append(printed_name(ranking))
    if equal:
        names = ", ".join(map(printed_name, (best, *equal)))
        return f"{start}, {1 + len(equal)} share the best {judged.printed} ({names}): {value}"

    to_random = judged.to_random.get(best)
    if best != BASELINE and to_random is None:
        return f"{start}, none is compared with random words, so none is named"
    p = None if to_random is None else to_random.value.p
    if p is None or not p < LEVEL:
        return f"{start}, none is better than random by {judged.printed} (p < .05, all at once)"

    does = reading.claim or f"has the best {judged.printed}"
    like = f", like {' and '.join(alike)}" if alike else ""
    number = "" if best == ATTENTION else f": {value}"  # that of attention stands in its own clause
    clause = f"{start}, {printed_name(best)} {does}{number}{like}"
    difference = judged.to_attention.get(best)
    if difference is None and best != ATTENTION:
        difference = to_random
    if difference is None:
        return clause
    return f"{clause}; difference to {difference.name} {describe_difference(difference)}"


def _first_comparable_measure(ranked: RankingScores, main_scores: Collection[str]) -> str | None:
    """Return the first main measure that has a direction and at least two rankings; None if there is none."""
    for measure, rankings in ranked.main_measures(main_scores).items():
        if ranked.directions[measure] and len(rankings) > 1:
            return measure
    return None


def _without_interval(score: Estimate) -> str:
    """Return a number without its interval, which would not hold for the best of several."""
    return format_estimate(replace(score, low=None, high=None))
