"""Error rates of every p-value and coverage of every interval that this application writes, on simulated data.

    python -m studies.calibration
    python -m studies.calibration coverage

print the rows of the tables of calibration and of coverage in docs/known_answers.md. Each case simulates what a
statistic reads, and calls the function that the experiment calls. Words come in sentences that are easy or hard for
both sides; documents and seeds differ as users' do.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.special import expit
from scipy.stats import binomtest, norm
from sklearn.linear_model import LogisticRegression

from attention_probing.commands.sweep_transfer import find_shared_heads
from attention_probing.datamodules.gold import other_of_class
from attention_probing.fidelity.correlation import agreements
from attention_probing.fidelity.error_regression import auroc_of_errors
from attention_probing.measures import clusters
from attention_probing.measures.best_heads import ChosenHeads
from attention_probing.measures.head_sets import random_sets
from attention_probing.measures.paradigm_clusters import ParadigmClusters
from attention_probing.metrics.attachment import Arcs
from attention_probing.metrics.bootstrap import bootstrap_ratio, resample
from attention_probing.metrics.classification import accuracy_drop, f1_score
from attention_probing.metrics.differences import (
    against_random_draws,
    difference,
    paired_bootstrap,
    with_interval_and_p,
)
from attention_probing.metrics.head_effects import HeadEffect, effect_of_head
from attention_probing.metrics.heads import Predictions
from attention_probing.metrics.moments import Moments
from attention_probing.metrics.p_values import holm
from attention_probing.metrics.pairs import choosing_half
from attention_probing.metrics.refits import FittedNumber
from attention_probing.metrics.seeds import mean_over_seeds, pool_seeds
from attention_probing.metrics.statistics import mean, median, pearson, proportion, spearman
from attention_probing.results import Estimate, Flags, Floats, Integers
from attention_probing.results.heads import HeadNames

NULLS, DRAWS = 1000, 999
Draw = np.random.Generator


def sentences(rng: Draw, number: int = 80) -> tuple[Floats, Floats]:
    """Draw the number of words of each sentence, and how easy they are in it."""
    return rng.integers(1, 12, number).astype(np.float64), rng.beta(3, 2, number)


def runs(rng: Draw, effect: float, number: int = 80) -> list[Floats]:
    """Draw right words and all words of two runs on the same sentences."""
    words, ease = sentences(rng, number)
    right = [rng.binomial(words.astype(int), np.clip(ease + gain, 0, 1)) for gain in (effect, 0.0)]
    return [right[0].astype(np.float64), words, right[1].astype(np.float64), words]


def two_runs(rng: Draw, effect: float, number: int = 80) -> float:
    """Return p of two runs on the same sentences."""
    return paired_bootstrap(*runs(rng, effect, number), share=True, draws=DRAWS).p or 0.0


def two_runs_f1(rng: Draw, effect: float, number: int = 80) -> float:
    """Return p of two runs by F1, whose denominators differ."""
    gold = (rng.random(number) < 0.5).astype(np.float64)
    sides = []
    for wrong in (0.2, 0.2 + effect):
        predicted = np.where(rng.random(number) < wrong, 1 - gold, gold)
        sides += [2 * gold * predicted, gold + predicted]
    return paired_bootstrap(*sides, draws=DRAWS).p or 0.0


def decisions(rng: Draw, effect: float, number: int = 300) -> float:
    """Return p of a changed model, such as one with an ablated head: some of its decisions flip."""
    before = rng.random(number) < 0.8
    to_right, to_wrong = rng.random((2, number)) < np.array([[0.2], [0.05 + effect]])
    after = np.where(before, ~to_wrong, to_right)
    return accuracy_difference(after, before).p or 0.0


def accuracy_difference(after: Flags | Floats, before: Flags | Floats) -> Estimate:
    """Return the difference of the accuracies of two models on the same texts; right decisions are True or 1."""
    sides = []
    for is_right in (after, before):
        sides.append(resample(proportion, is_right[:, None], "fraction", draws=DRAWS))
    return difference(*sides)


def numbers(rng: Draw, effect: float, number: int = 200) -> float:
    """Return p of two variants of one seed, by a number of each text, such as a measure of a ranking."""
    texts = rng.exponential(1, number)
    means = []
    for gain in (effect, 0.0):
        values = texts + rng.exponential(1, number) + gain
        means.append(resample(mean, values[:, None], "ratio", draws=DRAWS))
    return difference(*means).p or 0.0


def seeds(
    rng: Draw, effect: float, number: int = 3, spread: float = 0.0, texts: int = 1821, others: float = 0.1
) -> float:
    """Return p of two variants of several seeds each, by accuracy on texts that are easy or hard for all.

    Args:
        rng: Random generator.
        effect: Difference of the accuracies of the variants.
        number: Number of seeds of each variant.
        spread: Standard deviation of the accuracy between seeds of one variant.
        texts: Number of texts.
        others: Standard deviation, over texts, of what a variant does better or worse whatever its seed.
    """
    ease = rng.beta(4, 1, texts)
    sides = []
    for gain in (effect, 0.0):
        ease_of_variant = ease + gain + rng.normal(0, others, texts)
        sides.append(pooled_accuracy(rng, ease_of_variant, number, spread, draws=DRAWS))
    return difference(*sides).p or 0.0


def pooled_accuracy(rng: Draw, ease: Floats, seeds: int, spread: float, draws: int = 1000) -> Estimate:
    """Draw decisions of several seeds, and return their pooled accuracy.

    Args:
        rng: Random generator.
        ease: Probability of a right decision on each text, before it is clipped to 0–1.
        seeds: Number of seeds.
        spread: Standard deviation of the accuracy between seeds.
        draws: Number of bootstrap draws.
    """
    of_seeds = []
    for _ in range(seeds):
        is_right = rng.random(len(ease)) < np.clip(ease + rng.normal(0, spread), 0, 1)
        of_seeds.append(resample(proportion, is_right[:, None], "fraction", draws=draws))
    return pool_seeds(of_seeds)


def documents(rng: Draw, effect: float, number: int = 20, spread: float = 0.1) -> float:
    """Return p of two runs on 200 sentences of documents on which one or the other is better.

    Args:
        rng: Random generator.
        effect: Difference of the accuracies of the runs.
        number: Number of documents.
        spread: Standard deviation over documents of the difference of the accuracies.
    """
    document = np.arange(200) % number
    words, ease = sentences(rng, 200)
    gains = effect + rng.normal(0, spread, number)[document]
    counts = words.astype(int)
    right = rng.binomial(counts, np.clip(ease + gains, 0, 1)).astype(np.float64)
    right_of_other = rng.binomial(counts, ease).astype(np.float64)
    return paired_bootstrap(right, words, right_of_other, words, share=True, units=document, draws=DRAWS).p or 0.0


def largest_of_thirty(rng: Draw, effect: float) -> float:
    """Return p of the largest of 30 differences of two runs, as a sentence names it; one of them has the effect."""
    family = []
    for place in range(30):
        columns = runs(rng, effect if place == 0 else 0.0, 40)
        family.append(paired_bootstrap(*columns, share=True, draws=4 * DRAWS))
    top = max(family, key=lambda one: abs(one.value))
    return with_interval_and_p(top, tests=len(family)).p or 0.0


def sets(
    rng: Draw, effect: float, size: int = 3, others: int = 5, heads: int = 12, move: str = "normal", flips: float = 0.02
) -> float:
    """Return p of a set of heads of two layers against random sets; one of its heads has the effect.

    Every head has an effect of its own. Effects on all texts are `normal` or `skewed`; `sparse` ones turn few texts,
    and most heads turn none of the texts that another one turns.
    """
    shape = (2, heads, 200)
    few = rng.random(shape) < flips
    moves = {
        "normal": np.broadcast_to(rng.normal(0, 0.05, (2, heads, 1)), shape),
        "skewed": np.broadcast_to(-rng.exponential(0.05, (2, heads, 1)), shape),
        "sparse": rng.normal(0, 3, shape) * few,
    }[move].copy()
    of_set = []
    for layer in range(2):
        for head in rng.permutation(heads)[: (size + layer) // 2]:
            of_set.append((layer, int(head)))
    head_set = frozenset(of_set)
    decides = np.ones(200, np.bool_)
    if move == "sparse":
        decides = rng.random(200) < 0.1
    moves[next(iter(head_set))][decides] -= effect
    ease = rng.normal(1, 1, 200)
    noise = 0.0 if move == "sparse" else 0.3
    scores = []
    for heads_off in (head_set, *random_sets(head_set, heads, others, rng)):
        logits = ease + sum(moves[head] for head in heads_off) + rng.normal(0, noise, 200)
        scores.append(resample(proportion, (logits > 0)[:, None], "fraction", draws=DRAWS))
    _, beyond_random = against_random_draws(scores[0], scores[1:])
    return beyond_random.p or 0.0


def layers(rng: Draw, effect: float) -> float:
    """Return p of distances of 24 heads of six layers, from places that the layers shift."""
    layer = np.repeat(np.arange(6), 4)
    places = rng.normal(0, 1, (24, 8)) + effect * rng.normal(0, 1, (6, 8))[layer]
    distances = np.linalg.norm(places[:, None] - places, axis=2)
    _, _, p = clusters.layer_test(distances, layer, int(rng.integers(1 << 30)))
    return p


def inputs(rng: Draw, effect: float) -> float:
    """Return p of a share of attention in 100 inputs, after and before fine-tuning."""
    before = rng.beta(1, 4, 100)
    after = np.clip(before + rng.normal(effect, 0.05, 100) * (1 + 3 * before), 0, 2)
    if not effect:  # either is as likely to be the later one
        before, after = np.where(rng.integers(2, size=100) == 1, (before, after), (after, before))
    differences = Moments(1, (), "fraction")
    differences.update(torch.zeros(100, dtype=torch.int64), torch.from_numpy(after - before))
    return float(differences.compute().p())


def ranks(rng: Draw, effect: float) -> float:
    """Return p of Kendall's τ of two rankings of 30 words."""
    one = rng.normal(0, 1, (1, 30))
    other = effect * one + rng.normal(0, 1, (1, 30))
    return float(agreements(one, other).p[0])


def relation(rng: Draw) -> tuple[Arcs, Floats]:
    """Draw a relation whose head is the next word, more often in some sentences.

    Returns:
        The arcs, and the probability that the head of each word is the next one.
    """
    lengths = rng.integers(3, 10, 60)
    word = np.concatenate([np.arange(1, length + 1) for length in lengths])
    length = np.repeat(lengths, lengths)
    ease = np.repeat(rng.beta(4, 6, 60), lengths)
    other = rng.integers(1, length)
    is_next = (rng.random(len(word)) < ease) & (word < length)
    head = np.where(is_next, word + 1, other + (other >= word))
    nothing = np.zeros_like(word)
    gold = Arcs(np.repeat(np.arange(60), lengths), word, length, head, nothing, nothing.astype(np.bool_))
    return gold, np.where(word < length, ease + (1 - ease) / (length - 1), 0)


PREDICTORS = 12


def aside(rng: Draw, effect: float) -> Predictions:
    """Draw heads that prefer an offset and know nothing of the arcs; the first finds some of them with an effect."""
    gold, _ = relation(rng)
    other = rng.integers(1, gold.length, (PREDICTORS, len(gold)))
    predicted = other + (other >= gold.word)
    preferred = gold.word + np.resize([1, -1, 2, -2], PREDICTORS)[:, None]
    follows = (rng.random(predicted.shape) < 0.5) & (preferred >= 1) & (preferred <= gold.length)
    predicted = np.where(follows, preferred, predicted)
    predicted[0] = np.where(rng.random(len(gold)) < effect, gold.head, predicted[0])
    return Predictions(gold, ["r"], predicted.T)


def level(rng: Draw, effect: float) -> Predictions:
    """Draw heads that find as many words as the next word does, half of them the same; with an effect one finds more.

    That one is the first head.
    """
    gold, probability = relation(rng)
    gains = effect * (np.arange(PREDICTORS) == 0)[:, None]
    is_right = rng.random((PREDICTORS, len(gold))) < probability + gains
    predicted = np.where(is_right, gold.head, -1)
    next_word = np.minimum(gold.word + 1, gold.length)
    predicted = np.where(rng.random(predicted.shape) < 0.5, next_word, predicted)
    return Predictions(gold, ["r"], predicted.T)


def shared_head(rng: Draw, effect: float) -> float:
    """Return p of one relation for which languages share a head; each has its own few heads for eight relations."""
    rows = []
    for language in range(6):
        heads = rng.integers(6, size=8)
        if rng.random() < effect:
            heads[0] = 0
        for place, head in enumerate(heads):
            rows.append({"language": f"l{language}", "relation": f"r{place}", "head": f"1-{head}"})
    frame = pd.DataFrame(rows).assign(direction="", difference=np.nan, p_holm=np.nan)
    return float(find_shared_heads(frame, seed=int(rng.integers(1 << 31)))["p"][0])


def best(
    rng: Draw, make: Callable[[Draw, float], Predictions], effect: float, column: str, paper: bool = False
) -> float:
    """Return a cell of `best_heads`, chosen on dev and scored on test, or chosen and scored on one split."""
    dev = make(rng, effect)
    test = make(rng, effect)
    heads = ChosenHeads(dev, dev if paper else test, HeadNames((0, 1), (0, 1, 2)), int(rng.integers(1 << 30)))
    return float(heads.best_heads(None, 99).frame.set_index("relation").loc["r", column])  # type: ignore[arg-type]


def twin_of(rng: Draw, real: Predictions) -> Predictions:
    """Return predictions with the arcs of other sentences of the same length, as under `gold: shuffled`."""
    arcs = real.arcs
    starts = np.flatnonzero(arcs.word == 1)
    others = other_of_class(arcs.length[starts], rng)
    words = []
    for start in starts[others]:
        words.append(start + np.arange(arcs.length[start]))
    return replace(real, arcs=replace(arcs, head=arcs.head[np.concatenate(words)]))


def null_twin(rng: Draw, effect: float, column: str, planted: float = 0.3) -> float:
    """Return a cell of `best_heads` of heads of which the first finds arcs; without an effect, that of its null twin.

    A head that is worse than the offset, as in most twins, is no finding: the p of a difference below 0 is 1.
    """
    dev = aside(rng, planted)
    test = aside(rng, planted)
    if not effect:
        dev = twin_of(rng, dev)
        test = twin_of(rng, test)
    heads = ChosenHeads(dev, test, HeadNames((0, 1), (0, 1, 2)), int(rng.integers(1 << 30)))
    row = heads.best_heads(None, 99).frame.set_index("relation").loc["r"].to_dict()
    if column == "p_offset" and row["over_offset"] <= 0:
        return 1.0
    return float(row[column])


def any_of_four(rng: Draw, effect: float) -> float:
    """Return the least of four p-values of pairs of runs after Holm's correction, one of them with the effect.

    It stands for every family of p-values, also of ablation and causal check: the correction is the same function.
    """
    family = []
    for place in range(4):
        family.append(two_runs(rng, effect if place == 0 else 0.0))
    return float(holm(family).min())


def told_errors(rng: Draw, effects: Sequence[float], texts: int = 200) -> list[FittedNumber]:
    """Return the AUROC of errors by each set of eight features, and last that by a confidence that tells nothing.

    A set predicts errors by a weighted sum that is fitted to texts of dev and tested on others. The weights are the
    differences of the means of errors and right decisions, which need no search. The confidence is not fitted.

    Args:
        rng: Random generator.
        effects: Effect of the first feature of each set on the log-odds of an error.
        texts: Number of texts of dev, and of test.
    """
    sets = rng.normal(0, 1, (2, len(effects), texts, 8))
    log_odds = np.full((2, texts), -1.0)
    for number, effect in enumerate(effects):
        log_odds += effect * sets[:, number, :, 0]
    dev, test = rng.random((2, texts)) < expit(log_odds)
    halves = [np.flatnonzero(rng.integers(2, size=texts)) for _ in range(10)]
    numbers = []
    for of_dev, of_test in zip(*sets, strict=True):
        areas: list[Estimate] = []
        for fitted in (np.arange(texts), *halves):
            weights = _mean_difference(of_dev[fitted], dev[fitted])
            areas.append(auroc_of_errors(of_test @ weights, test, 100 if areas else DRAWS))
        numbers.append(FittedNumber.from_seeds(areas[:1], [areas[1:]]))
    confidence = auroc_of_errors(rng.normal(0, 1, texts), test, DRAWS)
    return [*numbers, FittedNumber.from_seeds([confidence])]


def _stacked_scores(sides: Sequence[Floats], confidence: Floats, wrong: Flags, fitted: Integers) -> Floats:
    """Return scores of the texts of test by sets of features and a confidence, joined as in `join_predictors`.

    Args:
        sides: Features of each set, `[2, texts, features]`, of dev and of test.
        confidence: `[2, texts]`.
        wrong: Errors on dev, bool `[texts]`.
        fitted: Texts of dev that are fitted.
    """
    is_wrong = wrong[fitted]
    fold = np.arange(len(fitted)) % 5
    columns = [confidence[0, fitted]]
    of_test = [confidence[1]]
    for features in sides:
        own = features[0, fitted]
        left_out = np.empty(len(fitted))
        for number in range(5):
            inside = fold != number
            left_out[~inside] = own[~inside] @ _mean_difference(own[inside], is_wrong[inside])
        columns.append(left_out)
        of_test.append(features[1] @ _mean_difference(own, is_wrong))
    second = LogisticRegression().fit(np.column_stack(columns), is_wrong)
    scores: Floats = second.decision_function(np.column_stack(of_test))
    return scores


def _mean_difference(features: Floats, wrong: Flags) -> Floats:
    """Return the mean features of errors minus those of right decisions, `[features]`."""
    difference: Floats = features[wrong].mean(axis=0) - features[~wrong].mean(axis=0)
    return difference


def errors_beside_others(rng: Draw, effect: float, texts: int = 200) -> float:
    """Return p of what a set of features adds to the confidence and another set, which both tell errors."""
    sets = rng.normal(0, 1, (2, 2, texts, 8))
    confidence = rng.normal(0, 1, (2, texts))
    log_odds = 0.8 * (sets[0, :, :, 0] + confidence) + effect * sets[1, :, :, 0] - 1
    dev, test = rng.random((2, texts)) < expit(log_odds)
    numbers = []
    fits = [np.arange(texts)]
    fits += [np.flatnonzero(rng.integers(2, size=texts)) for _ in range(10)]
    for used in (2, 1):
        areas: list[Estimate] = []
        for fitted in fits:
            scores = _stacked_scores([*sets[:used]], confidence, dev, fitted)
            areas.append(auroc_of_errors(scores, test, 100 if areas else DRAWS))
        numbers.append(FittedNumber.from_seeds(areas[:1], [areas[1:]]))
    both, base = numbers
    return both.minus(base).p or 0.0


def errors_by_features(rng: Draw, effect: float) -> float:
    """Return p of two sets of features that tell errors equally well, or one of them better."""
    one, other, _ = told_errors(rng, (0.4 + effect, 0.4))
    return one.minus(other).p or 0.0


def errors_beside_confidence(rng: Draw, effect: float) -> float:
    """Return p of features that are fitted, against a confidence that is not, and tells nothing."""
    features, confidence = told_errors(rng, (effect,))
    return features.minus(confidence).p or 0.0


def chosen_head(
    rng: Draw,
    effect: float,
    heads: int = 8,
    cost: float = 0.0,
    pairs: int = 40,
    layers: int = 5,
    spread: float = 0.0,
) -> HeadEffect:
    """Return the tested effect of the head that half of the pairs of a paradigm choose.

    Effects are what the log-ratio of a pair loses without each head. Part of them is the same for
    all heads of a pair.

    Args:
        rng: Random generator.
        effect: Mean effect of the first head, beyond that of all others.
        heads: Number of heads of a layer.
        cost: Mean effect of every head.
        pairs: Number of pairs.
        layers: Number of layers.
        spread: Standard deviation of the mean effects of the heads, which are normal.
    """
    shape = (layers, heads, pairs)
    lost = cost + rng.normal(0, 0.2, pairs) + rng.normal(0, 0.4, shape)
    if spread:
        lost += rng.normal(0, spread, (layers, heads, 1))
    lost[0, 0] += effect
    intact = np.stack([rng.normal(2, 2, pairs), np.zeros(pairs)], 1)
    chooses = choosing_half(np.zeros(pairs, np.int64), int(rng.integers(1 << 31)))
    layer, best = np.unravel_index(lost[..., chooses].mean(2).argmax(), shape[:2])
    sets = []
    for head in (best, *(head for head in range(heads) if head != best)):
        without = intact - np.stack([lost[layer, head], np.zeros(pairs)], 1)
        sets.append(without[~chooses])
    return effect_of_head(intact[~chooses], sets[0], sets[1:], DRAWS, layers * heads)


def beyond_other_heads(rng: Draw, effect: float, heads: int, layers: int) -> float:
    """Return p of the head with the largest effect, beyond the other heads of its layer; all heads have effects."""
    return chosen_head(rng, effect, heads, layers=layers, spread=1.0).beyond_random.p or 0.0


def clusters_of_paradigms(rng: Draw, effect: float) -> float:
    """Return p of clusters of twelve paradigms; without an effect their effects are those of all, and noise."""
    own = effect * rng.exponential(1, (12, 40)) * (rng.random((12, 40)) < 0.2)
    return _paradigm_clusters(rng, own).p


def fields_of_paradigms(rng: Draw, effect: float) -> float:
    """Return p of three fields of twelve paradigms, each with heads of its own; with an effect, also of its field."""
    own = rng.exponential(1, (12, 40)) * (rng.random((12, 40)) < 0.2)
    of_fields = rng.exponential(1, (3, 40)) * (rng.random((3, 40)) < 0.2)
    return _paradigm_clusters(rng, own + effect * of_fields.repeat(4, axis=0)).p_of_fields


def _paradigm_clusters(rng: Draw, own: Floats) -> ParadigmClusters:
    """Return clusters by effects of heads on all paradigms, and effects of their own, on two halves of the pairs."""
    of_all = rng.exponential(1, 40) * (rng.random(40) < 0.2)
    choosing, testing = of_all + own + rng.normal(0, 0.3, (2, *own.shape))
    return ParadigmClusters.from_effects(
        choosing, testing, ["a"] * 4 + ["b"] * 4 + ["c"] * 4, int(rng.integers(1 << 31))
    )


class Case(NamedTuple):
    """Simulated verdicts of one p-value.

    Attributes:
        columns: Columns that have it, `<file>: <column>`.
        simulate: Returns a p-value of simulated data; the effect is 0 for a null case.
        effect: Size of the effect of a case that has one.
        conservative: True if p may be below .05 in fewer than 3 % of nulls: few values of p can occur, as where few
            items differ, two tests must both find something, p is Bonferroni's, or the best head of a null follows an
            offset.
    """

    columns: str
    simulate: Callable[[Draw, float], float]
    effect: float
    conservative: bool = False


FEW_UNITS = (3, 5, 8, 10, 20, 50, 200)

CASES: Mapping[str, Case] = {
    "best head, shuffled arcs": Case(
        "measures/best_heads.py: p_shuffled", lambda rng, effect: best(rng, aside, effect, "p_shuffled"), 0.15
    ),
    "the same, chosen and scored on dev": Case(
        "measures/best_heads.py: p_shuffled", lambda rng, effect: best(rng, aside, effect, "p_shuffled", True), 0.15
    ),
    "best head against best offset": Case(
        "measures/best_heads.py: p_offset", lambda rng, effect: best(rng, level, effect, "p_offset"), 0.3
    ),
    "the same, chosen and scored on dev ": Case(
        "measures/best_heads.py: p_offset", lambda rng, effect: best(rng, level, effect, "p_offset", True), 0.3
    ),
    "best head, and its twin with the arcs of others": Case(
        "measures/best_heads.py: p_shuffled", partial(null_twin, column="p_shuffled"), 1, conservative=True
    ),
    "the same, against the best offset": Case(
        "measures/best_heads.py: p_offset", partial(null_twin, column="p_offset"), 1, conservative=True
    ),
    "pairs of runs": Case("commands/compare.py: permutation.p, commands/sweep_table.py: p", two_runs, 0.08),
    "pairs of runs by F1": Case(
        "commands/compare.py: permutation.p, commands/sweep_table.py: p", partial(two_runs_f1, number=200), 0.1
    ),
    "pairs of decisions": Case("measures/ablation.py: p, measures/pruning.py: p", decisions, 0.1, conservative=True),
    "pairs of variants": Case("fidelity/comparison.py: p", numbers, 0.3),
    **{
        f"pairs of runs, {number} sentences": Case(
            "commands/compare.py: permutation.p, commands/sweep_table.py: p",
            partial(two_runs, number=number),
            0.2,
            conservative=number <= 20,
        )
        for number in FEW_UNITS
    },
    **{
        f"pairs of decisions, {number} texts": Case(
            "measures/ablation.py: p, measures/pruning.py: p",
            partial(decisions, number=number),
            0.3,
            conservative=True,
        )
        for number in FEW_UNITS
    },
    **{
        f"pairs of variants, {number} texts": Case(
            "fidelity/comparison.py: p", partial(numbers, number=number), 1.0, conservative=number <= 5
        )
        for number in FEW_UNITS
    },
    **{
        f"{number} seeds a side, sd {100 * spread:.1f} points": Case(
            "fidelity/comparison.py: p, commands/compare.py: permutation.p, commands/sweep_table.py: p",
            partial(seeds, number=number, spread=spread),
            0.04,
        )
        for number in (3, 5)
        for spread in (0.0, 0.005, 0.01, 0.02)
    },
    **{
        f"{number} documents, sd 10 points": Case(
            "commands/compare.py: permutation.p, measures/best_heads.py: p_offset, measures/head_trees.py: p",
            partial(documents, number=number),
            0.1,
        )
        for number in (10, 20)
    },
    "head shared by languages": Case("commands/sweep_transfer.py: p", shared_head, 0.7, conservative=True),
    "largest of 30 differences": Case("answers: the named difference", largest_of_thirty, 0.25, conservative=True),
    "set of heads, 5 random sets": Case("measures/causal.py: p, measures/ablation.py: beyond_random_p", sets, 0.6),
    "one head, 3 other heads": Case(
        "measures/causal.py: p, measures/ablation.py: beyond_random_p",
        lambda rng, effect: sets(rng, effect, 1, 3, 4),
        0.6,
        conservative=True,
    ),
    "set of heads, skewed effects": Case(
        "measures/causal.py: p, measures/ablation.py: beyond_random_p",
        lambda rng, effect: sets(rng, effect, move="skewed"),
        0.6,
    ),
    "set of heads, each moves 2 % of the texts": Case(
        "measures/causal.py: p, measures/ablation.py: beyond_random_p",
        lambda rng, effect: sets(rng, effect, move="sparse"),
        5.0,
        conservative=True,
    ),
    "head chosen on other pairs": Case(
        "measures/grammar_report.py: p", lambda rng, effect: chosen_head(rng, effect).effect.p or 0.0, 0.35
    ),
    "head chosen on other pairs, beyond 7 other heads": Case(
        "measures/grammar_report.py: beyond_random_p",
        lambda rng, effect: chosen_head(rng, effect, cost=0.2).beyond_random.p or 0.0,
        0.5,
        conservative=True,
    ),
    "head chosen on other pairs, beyond 3 other heads": Case(
        "measures/grammar_report.py: beyond_random_p",
        lambda rng, effect: chosen_head(rng, effect, 4, 0.2).beyond_random.p or 0.0,
        0.7,
        conservative=True,
    ),
    **{
        f"largest of {layers} × {heads} normal effects, beyond {heads - 1} other heads": Case(
            "measures/grammar_report.py: beyond_random_p",
            partial(beyond_other_heads, heads=heads, layers=layers),
            15.0,
            conservative=True,
        )
        for layers, heads in ((1, 4), (1, 9), (1, 16), (4, 9), (18, 4), (30, 9))
    },
    "clusters of paradigms": Case("measures/grammar_report.py: cluster_p", clusters_of_paradigms, 0.5),
    "fields of paradigms": Case("measures/grammar_report.py: field_p", fields_of_paradigms, 0.5),
    "heads of a layer": Case("measures/clusters.py: p", layers, 0.5),
    "fine-tuning": Case("measures/attention_analyses.py: p", inputs, 0.02),
    "errors, by two fits": Case("fidelity/error_comparison.py: p", errors_by_features, 0.6),
    "errors, beside other predictors": Case(
        "fidelity/error_comparison.py: p", errors_beside_others, 1.1, conservative=True
    ),
    "errors, by a fit and without": Case("fidelity/error_comparison.py: p", errors_beside_confidence, 0.6),
    "Kendall's τ in a text": Case("fidelity/correlation.py: .p", ranks, 0.6),
    "Holm, any of four pairs of runs": Case(
        "holm.p and p_holm, beyond_random_p_holm of other families: the least of a family", any_of_four, 0.12
    ),
}


def rate(case: Case, effect: float, number: int = NULLS) -> tuple[int, int]:
    """Return the number of p-values up to .05, and of all."""
    p = []
    for seed in range(number):
        rng = np.random.default_rng([seed, effect > 0])
        p.append(case.simulate(rng, effect))
    hits = np.count_nonzero(np.array(p) <= 0.05)
    known = np.count_nonzero(~np.isnan(p))
    return int(hits), int(known)


def row(name: str, case: Case, number: int) -> str:
    """Return a row of the table in docs/known_answers.md."""
    shares = []
    nulls = 0
    for effect in (0.0, case.effect):
        hits, known = rate(case, effect, number)
        ends = binomtest(hits, known).proportion_ci()
        shares.append(f"{100 * hits / known:.1f} [{100 * ends.low:.1f}, {100 * ends.high:.1f}]")
        if not effect:
            nulls = known
    false, power = shares
    return f"| {name.strip()} | {case.columns} | {false} | {nulls:,} | {power} |"


class Covered(NamedTuple):
    """Simulated intervals of one kind of number.

    Attributes:
        simulate: Returns an interval of a simulated sample of a size, and the true number.
        sizes: Sizes of the samples.
        few: True if few items have exact intervals, which may cover more than 98 %.
    """

    simulate: Callable[[Draw, int], tuple[Estimate, float]]
    sizes: Sequence[int] = (10, 30, 100)
    few: bool = False


def share_of_texts(rng: Draw, number: int, truth: float = 0.8) -> tuple[Estimate, float]:
    """Draw a share of decisions."""
    return resample(proportion, (rng.random(number) < truth)[:, None], "fraction"), truth


def share_of_words(rng: Draw, number: int) -> tuple[Estimate, float]:
    """Draw a share of words in sentences, or documents, that are easy or hard."""
    words, ease = sentences(rng, number)
    return bootstrap_ratio(rng.binomial(words.astype(int), ease), words, share=True), 0.6


def gain_of_words(rng: Draw, number: int) -> tuple[Estimate, float]:
    """Draw a difference of shares of words."""
    return word_difference(rng, number, DRAWS), 0.1


def word_difference(rng: Draw, number: int, draws: int) -> Estimate:
    """Draw the difference of the shares of right words of two runs, which is ten points in truth."""
    words, ease = sentences(rng, number)
    counts = words.astype(int)
    right = rng.binomial(counts, 0.9 * ease + 0.1).astype(np.float64)
    right_of_other = rng.binomial(counts, 0.9 * ease).astype(np.float64)
    return paired_bootstrap(right, words, right_of_other, words, share=True, draws=draws)


def gain_of_decisions(rng: Draw, number: int, gains: float = 0.2, losses: float = 0.1) -> tuple[Estimate, float]:
    """Draw a difference of decisions on the same texts, some of which flip."""
    flipped = rng.choice([1.0, -1.0, 0.0], number, p=[gains, losses, 1 - gains - losses])
    before = np.where(flipped == 0, rng.random(number) < 0.8, flipped < 0)
    return accuracy_difference(before + flipped, before), gains - losses


def lost_decisions(rng: Draw, number: int) -> tuple[Estimate, float]:
    """Draw the share of right decisions that a change loses."""
    gold = rng.integers(2, size=number)
    before = np.where(rng.random(number) < 0.8, gold, 1 - gold)
    after = np.where(rng.random(number) < 0.1, 1 - before, before)
    values = np.column_stack([gold, before, after == 0, after == 1])
    return resample(accuracy_drop, values, "fraction"), 0.8 * 0.1 - 0.2 * 0.1


def mean_of_texts(rng: Draw, number: int, shape: float = 4.0) -> tuple[Estimate, float]:
    """Draw a mean of a skewed number of texts between 0 and 1, such as a share of attention."""
    return resample(mean, rng.beta(1, shape, number)[:, None], "fraction"), 1 / (1 + shape)


def exponential_mean(rng: Draw, number: int) -> tuple[Estimate, float]:
    """Draw a mean of a skewed number of texts without bound, such as a divergence."""
    return resample(mean, rng.exponential(1, number)[:, None], "nats"), 1.0


def median_of_texts(rng: Draw, number: int) -> tuple[Estimate, float]:
    """Draw a median of a skewed number."""
    return resample(median, rng.beta(1, 4, number)[:, None], "fraction"), 1 - 0.5**0.25


def gain_of_means(rng: Draw, number: int) -> tuple[Estimate, float]:
    """Draw a difference of means of numbers of the same texts."""
    texts = rng.exponential(1, number)
    means = []
    for gain in (0.5, 0.0):
        values = texts + rng.exponential(1, number) + gain
        means.append(resample(mean, values[:, None], "nats", draws=DRAWS))
    return difference(*means), 0.5


def correlation(rng: Draw, number: int, rho: float = 0.5, ranked: bool = False) -> tuple[Estimate, float]:
    """Draw Pearson's r, or Spearman's ρ, of two normal numbers."""
    one, noise = rng.normal(size=(2, number))
    other = rho * one + np.sqrt(1 - rho**2) * noise
    pairs = np.stack([one, other], axis=1)
    if ranked:
        return resample(spearman, pairs, "fraction"), float(6 / np.pi * np.arcsin(rho / 2))
    return resample(pearson, pairs, "fraction"), rho


def f1_of_texts(rng: Draw, number: int) -> tuple[Estimate, float]:
    """Draw F1 of a class."""
    gold = rng.integers(2, size=number)
    predicted = np.where(rng.random(number) < 0.8, gold, 1 - gold)
    return resample(f1_score(1, 2), np.column_stack([gold, predicted]), "fraction"), 0.8


def area_over_seeds(rng: Draw, number: int) -> tuple[Estimate, float]:
    """Draw the mean over seeds of a number, such as RACU."""
    return mean_over_seeds(rng.normal(0.3, 0.1, number).tolist(), "ratio"), 0.3


def score_over_seeds(rng: Draw, number: int, spread: float = 0.01) -> tuple[Estimate, float]:
    """Draw the accuracy of several seeds on 500 texts."""
    accuracy = pooled_accuracy(rng, rng.beta(4, 1, 500), number, spread)
    truth = np.mean(np.clip(_EASE + spread * _SHIFTS[:, None], 0, 1))
    return accuracy, float(truth)


def area_of_errors(rng: Draw, number: int) -> tuple[Estimate, float]:
    """Draw the AUROC of features that are fitted to texts, and tell nothing of the errors on others."""
    features, _ = told_errors(rng, (0.0,), number)
    return features.estimate, 0.5


_EASE = np.random.default_rng(1).beta(4, 1, 20_000)
_SHIFTS = norm.ppf((np.arange(50) + 0.5) / 50)


def gain_over_seeds(rng: Draw, number: int, spread: float = 0.01) -> tuple[Estimate, float]:
    """Draw the difference of the accuracies of two variants of several seeds on 500 texts."""
    ease = rng.beta(4, 2, 500) * 0.8
    sides = []
    for gain in (0.1, 0.0):
        sides.append(pooled_accuracy(rng, ease + gain, number, spread))
    return difference(*sides), 0.1


def named_largest(rng: Draw, number: int, differences: int = 30) -> tuple[Estimate, float]:
    """Draw the largest of 30 differences of ten points, with the interval that a sentence gives it."""
    family = [word_difference(rng, number, 4 * DRAWS) for _ in range(differences)]
    top = max(family, key=lambda one: one.value)
    return with_interval_and_p(top, tests=differences), 0.1


COVERED: Mapping[str, Covered] = {
    "share of texts": Covered(share_of_texts, few=True),
    "share of words": Covered(share_of_words),
    "F1 of texts": Covered(f1_of_texts, (100, 300)),
    "difference of shares of words": Covered(gain_of_words),
    "difference of decisions, 20 % gained, 10 % lost": Covered(gain_of_decisions, few=True),
    "difference of decisions, 2 % gained, 1 % lost": Covered(
        partial(gain_of_decisions, gains=0.02, losses=0.01), few=True
    ),
    "decisions lost by a change": Covered(lost_decisions, few=True),
    "mean between 0 and 1": Covered(mean_of_texts),
    "mean without bound": Covered(exponential_mean),
    "median": Covered(median_of_texts),
    "difference of means": Covered(gain_of_means),
    "Pearson's r of .5": Covered(correlation),
    "Pearson's r of .99": Covered(partial(correlation, rho=0.99)),
    "Spearman's ρ of .5": Covered(partial(correlation, ranked=True)),
    "Spearman's ρ of .99": Covered(partial(correlation, rho=0.99, ranked=True)),
    "AUROC of errors, by chance": Covered(area_of_errors, (100,)),
    "number over seeds": Covered(area_over_seeds, (3, 5)),
    "accuracy over seeds": Covered(score_over_seeds, (3, 5)),
    "difference over seeds": Covered(gain_over_seeds, (3, 5)),
    "named largest of 30 differences": Covered(named_largest, (30, 100)),
}


def coverage(case: Covered, size: int, number: int = NULLS) -> tuple[int, int, int]:
    """Return the number of intervals that hold the true number, of intervals, and of samples."""
    held = 0
    given = 0
    for seed in range(number):
        estimate, truth = case.simulate(np.random.default_rng([seed, size]), size)
        low, high = estimate.interval
        if np.isnan(low):
            continue
        given += 1
        held += bool(low - 1e-12 <= truth <= high + 1e-12)
    return held, given, number


def coverage_row(name: str, case: Covered, number: int) -> str:
    """Return a row of the table of coverage in docs/known_answers.md."""
    cells = []
    for size in case.sizes:
        held, given, samples = coverage(case, size, number)
        cell = f"{size}: {100 * held / max(given, 1):.1f}"
        if given < samples:
            cell += f" ({samples - given} left out)"
        cells.append(cell)
    bounds = "92–100" if case.few else "92–98"
    return f"| {name} | {'; '.join(cells)} | {bounds} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows of one of the tables.

    Args:
        arguments: Words of the command line; None for those of the process.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", choices=("calibration", "coverage"), default="calibration")
    parser.add_argument("--number", type=int, default=NULLS, help="nulls and effects, or samples")
    parser.add_argument("--start", type=int, default=0, help="first row")
    parser.add_argument("--step", type=int, default=1, help="step between rows, so that processes can share them")
    options = parser.parse_args(arguments)
    names = list(CASES if options.table == "calibration" else COVERED)
    for name in names[options.start :: options.step]:
        begun = time.perf_counter()
        if options.table == "calibration":
            line = row(name, CASES[name], options.number)
        else:
            line = coverage_row(name, COVERED[name], options.number)
        print(line, flush=True)
        print(f"{name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
