"""Effects of heads on minimal pairs: half of the pairs choose a head, and the other half tests it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.differences import (
    against_random_draws,
    difference,
    widen_for_choice,
    with_interval_and_p,
)
from attention_probing.metrics.pairs import are_right, log_ratios
from attention_probing.metrics.shares import share_interval
from attention_probing.metrics.statistics import mean, proportion
from attention_probing.results import Estimate, Flags, Floats

LEAST_PAIRS = 20
"""Fewest pairs of a paradigm whose heads are tested: ten to choose, and ten to test."""
TOO_FEW = f"fewer than {LEAST_PAIRS} pairs"
CHANCE = 0.5


def reason_not_to_test(right: Floats, chooses: Flags) -> str:
    """Return the reason why the heads of a paradigm are not tested; empty if they are.

    The accuracy is compared with chance on the choosing half alone. Pairs that test a head must not decide whether it
    is tested: those of a model that gets them right by luck lose log-ratio with any change.

    Args:
        right: 1 for each pair of the paradigm that the intact model gets right, else 0, `[pairs]`.
        chooses: True for the pairs that choose a head, `[pairs]`.
    """
    if len(right) < LEAST_PAIRS:
        return TOO_FEW
    choosing = right[chooses]
    _, low, high = share_interval(choosing, np.ones_like(choosing))
    if high < CHANCE:
        return "below chance on the choosing half"
    if low <= CHANCE:
        return "not above chance on the choosing half"
    return ""


@dataclass(frozen=True, eq=False)
class HeadEffect:
    """Effect of a head on the pairs of a paradigm, beside the effects of random heads of its layer.

    An effect is the number of the intact model minus that of the changed one: above 0 the head helps.

    Attributes:
        effect: Mean effect on the log-ratio, in nats, with interval and p over pairs.
        random: Mean effect of the random heads.
        beyond_random: Difference of both, with interval and p over heads and pairs (`against_random_draws`), which
            allow for the choice of the head (`widen_for_choice`).
        accuracy: Effect on the accuracy, with interval.
    """

    effect: Estimate
    random: Estimate
    beyond_random: Estimate
    accuracy: Estimate


def effect_of_head(intact: Floats, changed: Floats, others: Sequence[Floats], draws: int, heads: int) -> HeadEffect:
    """Test the effect of a head on pairs by which it was not chosen.

    Args:
        intact: Log-probabilities of both sentences in the intact model, `[pairs, 2]`.
        changed: The same with the head replaced.
        others: The same with each of the random heads replaced.
        draws: Number of bootstrap draws.
        heads: Number of heads of which this one was chosen, in all layers.
    """

    def mean_effect(log_probabilities: Floats) -> Estimate:
        of_pairs = log_ratios(intact) - log_ratios(log_probabilities)
        return resample(mean, of_pairs[:, None], "nats", draws=draws)

    effect = mean_effect(changed)
    of_others = [mean_effect(other) for other in others]
    random, beyond_random = against_random_draws(effect, of_others)
    beyond_random = widen_for_choice(beyond_random, [other.value for other in of_others], heads)
    before, after = (
        resample(proportion, are_right(log_probabilities)[:, None], "fraction", draws=draws)
        for log_probabilities in (intact, changed)
    )
    accuracy = replace(difference(before, after), p=None)
    return HeadEffect(with_interval_and_p(effect), random, beyond_random, accuracy)
