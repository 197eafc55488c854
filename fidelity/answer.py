"""The answer of a run of fidelity tests in a few sentences."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

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
    describe_difference,
    describe_differences,
    format_difference,
    format_estimate,
    negate,
)


def answer(results: Sequence[CheckpointResult], tests: Sequence[FidelityTest], main_scores: Collection[str]) -> str:
    """Return the answer: which classifiers are at chance, the first claim of the tests, and the best ranking.

    The best ranking is by the first main measure with a direction, of the first variant that has it. Rankings of a
    classifier that is not above the most frequent label are not named: it may have no decisions to explain. If all
    classifiers are so, there is no claim either.
    """
    at_chance = _classifiers_at_chance(results)
    if len(at_chance) == len(by_variant(results)):
        return _join_sentences(_describe_chance(results, at_chance))
    best = _describe_best_ranking(results, tests, main_scores, at_chance)
    claim = _describe_first_claim(results, tests, before_rankings=bool(best))
    start = _describe_texts(results)
    sentences = _describe_chance(results, at_chance)
    if claim:
        sentences.append(f"{start}, {claim}")
    if best:
        sentences.append(f"of {best}" if claim else f"{start}, of {best}")
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
    """Return what to say of the variants that are not above the most frequent label, by variant."""
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
    """Return what to say of a classifier that is not above the most frequent gold label; empty if it is above.

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
    label = f"always the most frequent label ({_without_interval(majority)})"
    texts = pluralize(len(runs[0].decisions), "text")
    text = f"is right on {format_estimate(accuracy)} of {texts}, not significantly above {label}"
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
        clause: What the score says, with `{}` for the number, or `{change}` for a drop as a signed change.
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


# The best ranking


def _describe_best_ranking(
    results: Sequence[CheckpointResult],
    tests: Sequence[FidelityTest],
    main_scores: Collection[str],
    at_chance: Collection[str],
) -> str:
    """Return the clause about the best ranking by the first main measure that has a direction and two rankings.

    A ranking is called the best only if its difference to random is significant, and no other ranking has its value.
    Interval and p-value of this difference hold for all rankings at once.

    Args:
        results: Results of all checkpoints.
        tests: The tests.
        main_scores: Names of the main scores.
        at_chance: Variants whose rankings are not named.
    """
    ranked = RankingScores.from_results(results, tests)
    measure = _first_comparable_measure(ranked, main_scores)
    if measure is None or ranked.first_variant(measure) in at_chance:
        return ""
    variant = ranked.first_variant(measure)
    best, *others = ranked.sort_rankings(measure)
    score = ranked.scores[Key(variant, measure, best)]
    test_name, _, name = measure.rpartition(".")
    printed = printed_name(name)
    of_variant = f" for {variant}" if _is_one_of_several(results) else ""
    start = f"{1 + len(others)} rankings{of_variant}"

    values = {ranking: ranked.scores[Key(variant, measure, ranking)].value for ranking in others}
    equal = [ranking for ranking in others if abs(values[ranking] - score.value) <= TIE]
    if equal:
        names = ", ".join(map(printed_name, (best, *equal)))
        return f"{start}, {1 + len(equal)} share the best {printed} ({names}): {_without_interval(score)}"

    differences = {}
    for baseline in (BASELINE, ATTENTION):
        if baseline in others:
            contrasts = ranked.contrasts_with(baseline, smallest_p(results))
            differences[baseline] = contrasts[Key(variant, measure, best)].for_all(baseline, len(others))
    to_random = differences.get(BASELINE)
    if best != BASELINE and to_random is None:
        return f"{start}, none is compared with random words, so none is named"
    p = None if to_random is None else to_random.value.p
    if p is None or not p < LEVEL:
        return f"{start}, none is better than random by {printed} (p < .05, all at once)"

    (test,) = (test for test in tests if test.name == test_name)
    reading = test.readings.get(name, Reading())
    does = reading.claim or f"has the best {printed}"
    clauses = [f"{start}, {printed_name(best)} {does}: {_without_interval(score)}"]
    for baseline in reversed(differences):
        clauses.append(f"difference to {baseline} {describe_difference(differences[baseline])}")
    return "; ".join(clauses)


def _first_comparable_measure(ranked: RankingScores, main_scores: Collection[str]) -> str | None:
    """Return the first main measure that has a direction and at least two rankings; None if there is none."""
    for measure, rankings in ranked.main_measures(main_scores).items():
        if ranked.directions[measure] and len(rankings) > 1:
            return measure
    return None


def _without_interval(score: Estimate) -> str:
    """Return a number without its interval, which would not hold for the best of several."""
    return format_estimate(replace(score, low=None, high=None))
