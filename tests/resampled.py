"""Choices on resamples in plain loops, slow and obvious."""

from collections.abc import Sequence
from fractions import Fraction

from attention_probing.metrics.stability import draw_resamples


def choose_by_hand(
    found: Sequence[Sequence[float]], counted: Sequence[Sequence[float]], seed: int
) -> tuple[list[int], list[int], int]:
    """How often each candidate is chosen, how often it is as good but later, and how often nothing can be chosen.

    Args:
        found: What each candidate finds, by unit.
        counted: What counts for each candidate, by unit.
        seed: Seed of the resamples.
    """
    candidates = range(len(found[0]))
    chosen = [0 for _ in candidates]
    as_good = [0 for _ in candidates]
    without = 0
    for times in draw_resamples(len(found), seed).tolist():
        units = [unit for unit, number in enumerate(times) for _ in range(number)]
        shares: dict[int, Fraction] = {}
        for candidate in candidates:
            below = sum(int(counted[unit][candidate]) for unit in units)
            if below:
                shares[candidate] = Fraction(sum(int(found[unit][candidate]) for unit in units), below)
        if not shares:
            without += 1
            continue
        best, *others = [candidate for candidate in shares if shares[candidate] == max(shares.values())]
        chosen[best] += 1
        for other in others:
            as_good[other] += 1
    return chosen, as_good, without
