"""Calibration of every p-value that this application writes, on simulated null cases and on cases with an effect.

    python -m studies.calibration

prints the rows of the table of calibration in docs/known_answers.md. Each case simulates what a statistic reads, and
calls the function that the experiment calls. Words come in sentences that are easy or hard for both sides.
"""

import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import binomtest

from fidelity.correlation import agreements
from measures import clusters
from measures.ablation import random_sets
from measures.single_heads import ChosenHeads
from metrics.attachment import Arcs
from metrics.bootstrap import (
    against_random_draws,
    difference,
    holm,
    paired_bootstrap,
    paired_permutation,
    pooled,
    resample,
)
from metrics.heads import Predictions
from metrics.moments import Moments, recorded, subtract
from metrics.statistics import mean, proportion
from results import Floats
from results.heads import Names

NULLS, DRAWS = 1000, 199
Draw = np.random.Generator


def sentences(rng: Draw, number: int = 80) -> tuple[Floats, Floats]:
    """Number of words of each sentence, and how easy they are in it."""
    return rng.integers(1, 12, number).astype(np.float64), rng.beta(3, 2, number)


def runs(rng: Draw, effect: float) -> list[Floats]:
    """Right words and all words of two runs on the same sentences."""
    words, ease = sentences(rng)
    right = [rng.binomial(words.astype(int), np.clip(ease + gain, 0, 1)) for gain in (effect, 0.0)]
    return [right[0].astype(np.float64), words, right[1].astype(np.float64), words]


def permuted(rng: Draw, effect: float) -> float:
    """Return p of random swaps of the sentences of two runs."""
    return paired_permutation(*runs(rng, effect), draws=DRAWS)


def bootstrapped(rng: Draw, effect: float) -> float:
    """Return p of the paired bootstrap of two runs."""
    return paired_bootstrap(*runs(rng, effect), draws=DRAWS).p or 0.0


def decisions(rng: Draw, effect: float) -> float:
    """A model that is changed, as by an ablated head: some of 300 texts flip."""
    before = rng.random(300) < 0.8
    to_right, to_wrong = rng.random((2, 300)) < np.array([[0.2], [0.05 + effect]])
    after = np.where(before, ~to_wrong, to_right)
    both = [resample(proportion, one[:, None], "fraction", draws=DRAWS) for one in (after, before)]
    return difference(*both).p or 0.0


def seeds(rng: Draw, effect: float) -> float:
    """Two variants of three seeds each, by a number of each text, such as a measure of a ranking."""
    texts = rng.exponential(1, 200)
    means = [
        pooled(
            [resample(mean, (texts + rng.exponential(1, 200) + gain)[:, None], "ratio", draws=DRAWS) for _ in range(3)]
        )
        for gain in (effect, 0.0)
    ]
    return difference(*means).p or 0.0


def sets(
    rng: Draw, effect: float, size: int = 3, others: int = 5, heads: int = 12, move: str = "normal", flips: float = 0.02
) -> float:
    """A set of heads of two layers against random sets; every head has an effect of its own, one decides if told to.

    Effects of heads on all texts are `normal` or `skewed`; `sparse` ones turn few texts, and most heads turn none of
    the texts that another one turns.
    """
    shape, few = (2, heads, 200), rng.random((2, heads, 200)) < flips
    moves = {
        "normal": np.broadcast_to(rng.normal(0, 0.05, (2, heads, 1)), shape),
        "skewed": np.broadcast_to(-rng.exponential(0.05, (2, heads, 1)), shape),
        "sparse": rng.normal(0, 3, shape) * few,
    }[move].copy()
    own = frozenset(
        (int(layer), int(head)) for layer in range(2) for head in rng.permutation(heads)[: (size + layer) // 2]
    )
    decides = rng.random(200) < 0.1 if move == "sparse" else np.ones(200, np.bool_)
    moves[next(iter(own))][decides] -= effect
    ease, noise = rng.normal(1, 1, 200), 0.0 if move == "sparse" else 0.3
    scores = []
    for chosen in (own, *random_sets(own, heads, others, rng)):
        logits = ease + sum(moves[head] for head in chosen) + rng.normal(0, noise, 200)
        scores.append(resample(proportion, (logits > 0)[:, None], "fraction", draws=DRAWS))
    return against_random_draws(scores[0], scores[1:])[1].p or 0.0


def layers(rng: Draw, effect: float) -> float:
    """Distances of 24 heads of six layers, from places that the layers shift."""
    of = np.repeat(np.arange(6), 4)
    places = rng.normal(0, 1, (24, 8)) + effect * rng.normal(0, 1, (6, 8))[of]
    distances = np.linalg.norm(places[:, None] - places, axis=2)
    return clusters.layer_test(distances, of, int(rng.integers(1 << 30)))[2]


def inputs(rng: Draw, effect: float) -> float:
    """Share of attention in 100 inputs, after and before fine-tuning."""
    old = rng.beta(1, 4, 100)
    new = np.clip(old + rng.normal(effect, 0.05, 100) * (1 + 3 * old), 0, 2)
    old, group = np.clip(old, 0, 2), torch.zeros(100, dtype=torch.int64)
    if not effect:  # either is as likely to be the later one
        old, new = np.where(rng.integers(2, size=100) == 1, (old, new), (new, old))
    found = []
    for values in (new, old):
        moments = Moments(1, (), "fraction")
        moments.pair()
        with recorded() as updates:
            moments.update(group, torch.from_numpy(values))
        found.append((moments, updates))
    subtract(found[0][1], found[1][1])
    differences = found[0][0].compute().differences
    assert differences is not None
    return float(differences.p())


def ranks(rng: Draw, effect: float) -> float:
    """Kendall's τ of two rankings of 30 words."""
    one = rng.normal(0, 1, (1, 30))
    return float(agreements(one, effect * one + rng.normal(0, 1, (1, 30))).p[0])


def relation(rng: Draw) -> tuple[Arcs, Floats]:
    """A relation whose head is the next word, more often in some sentences; and how likely this is for each word."""
    lengths = rng.integers(3, 10, 60)
    word, length = np.concatenate([np.arange(1, n + 1) for n in lengths]), np.repeat(lengths, lengths)
    ease, other = np.repeat(rng.beta(4, 6, 60), lengths), rng.integers(1, length)
    head = np.where((rng.random(len(word)) < ease) & (word < length), word + 1, other + (other >= word))
    nothing = np.zeros_like(word)
    gold = Arcs(np.repeat(np.arange(60), lengths), word, length, head, nothing, nothing.astype(np.bool_))
    return gold, np.where(word < length, ease + (1 - ease) / (length - 1), 0)


PREDICTORS = 12


def aside(rng: Draw, effect: float) -> Predictions:
    """Heads with a liking for an offset, that know nothing of the arcs; the first finds some of them if told to."""
    gold, _ = relation(rng)
    other = rng.integers(1, gold.length, (PREDICTORS, len(gold)))
    found, near = other + (other >= gold.word), gold.word + np.resize([1, -1, 2, -2], PREDICTORS)[:, None]
    liked = (rng.random(found.shape) < 0.5) & (near >= 1) & (near <= gold.length)
    found = np.where(liked, near, found)
    found[0] = np.where(rng.random(len(gold)) < effect, gold.head, found[0])
    return Predictions(gold, ["r"], found.T)


def level(rng: Draw, effect: float) -> Predictions:
    """Heads that find as many words as the next word does, half of them the same; the first finds more if told to."""
    gold, likely = relation(rng)
    gains = effect * (np.arange(PREDICTORS) == 0)[:, None]
    own = np.where(rng.random((PREDICTORS, len(gold))) < likely + gains, gold.head, -1)
    return Predictions(
        gold, ["r"], np.where(rng.random(own.shape) < 0.5, np.minimum(gold.word + 1, gold.length), own).T
    )


def best(
    rng: Draw, make: Callable[[Draw, float], Predictions], effect: float, column: str, paper: bool = False
) -> float:
    """A cell of `best_heads`, chosen on dev and scored on test, or chosen and scored on one split."""
    dev, test = make(rng, effect), make(rng, effect)
    heads = ChosenHeads(dev, dev if paper else test, Names((0, 1), (0, 1, 2)), int(rng.integers(1 << 30)))
    return float(heads.best_heads(None, 99).frame.set_index("relation").loc["r", column])  # type: ignore[arg-type]


def any_of_four(rng: Draw, effect: float) -> float:
    """The least of four p-values of pairs of runs after Holm's correction, one of them with the effect.

    It stands for every family of p-values, also of ablation and causal check: the correction is the same function.
    """
    return float(holm([permuted(rng, effect * (place == 0)) for place in range(4)]).min())


class Case(NamedTuple):
    """Simulated verdicts of one p-value.

    Attributes:
        columns: Columns that have it, `<file>: <column>`.
        simulate: Returns a p-value of simulated data; the effect is 0 for a null case.
        effect: Size of the effect of a case that has one.
    """

    columns: str
    simulate: Callable[[Draw, float], float]
    effect: float


CASES: Mapping[str, Case] = {
    "best head, shuffled arcs": Case(
        "measures/single_heads.py: p_shuffled", lambda rng, effect: best(rng, aside, effect, "p_shuffled"), 0.15
    ),
    "the same, chosen and scored on dev": Case(
        "measures/single_heads.py: p_shuffled", lambda rng, effect: best(rng, aside, effect, "p_shuffled", True), 0.15
    ),
    "best head against best offset": Case(
        "measures/single_heads.py: p_offset", lambda rng, effect: best(rng, level, effect, "p_offset"), 0.3
    ),
    "the same, chosen and scored on dev ": Case(
        "measures/single_heads.py: p_offset", lambda rng, effect: best(rng, level, effect, "p_offset", True), 0.3
    ),
    "pairs of runs, swaps": Case("commands/compare.py: permutation.p, commands/sweep_table.py: p", permuted, 0.08),
    "pairs of runs, bootstrap": Case("commands/compare.py: bootstrap.p", bootstrapped, 0.08),
    "pairs of decisions": Case("measures/ablation.py: p", decisions, 0.1),
    "pairs of variants": Case("fidelity/comparison.py: p", seeds, 0.2),
    "set of heads, 5 random sets": Case("measures/causal.py: p, measures/ablation.py: beyond_random_p", sets, 0.6),
    "one head, 3 other heads": Case(
        "measures/causal.py: p, measures/ablation.py: beyond_random_p",
        lambda rng, effect: sets(rng, effect, 1, 3, 4),
        0.6,
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
    ),
    "heads of a layer": Case("measures/clusters.py: p", layers, 0.5),
    "fine-tuning": Case("measures/attention_analyses.py: p", inputs, 0.02),
    "Kendall's τ in a text": Case("fidelity/correlation.py: .p", ranks, 0.6),
    "Holm, any of four pairs of runs": Case(
        "holm.p and p_holm, beyond_random_p_holm of other families: the least of a family", any_of_four, 0.12
    ),
}


def rate(case: Case, effect: float, number: int = NULLS) -> tuple[int, int]:
    """Number of p-values up to .05, and of all."""
    found = [case.simulate(np.random.default_rng([seed, effect > 0]), effect) for seed in range(number)]
    return int(np.count_nonzero(np.array(found) <= 0.05)), int(np.count_nonzero(~np.isnan(found)))


def row(name: str, case: Case, number: int) -> str:
    """A row of the table in docs/known_answers.md."""
    cells = []
    for effect in (0.0, case.effect):
        hits, known = rate(case, effect, number)
        ends = binomtest(hits, known).proportion_ci()
        cells.append(f"{100 * hits / known:.1f} [{100 * ends.low:.1f}, {100 * ends.high:.1f}] | {known:,}")
    return f"| {name.strip()} | {case.columns} | {cells[0]} | {cells[1].partition(' |')[0]} |"


def main(number: int = NULLS) -> None:
    """Print the rows of the table, of so many nulls and effects."""
    for name, case in CASES.items():
        start = time.perf_counter()
        print(row(name, case, number), flush=True)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
