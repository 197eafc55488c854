"""Numbers compared with one base: their differences, and p-values corrected for the number of comparisons."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attention_probing.metrics.differences import difference, with_interval_and_p
from attention_probing.metrics.p_values import holm, p_units
from attention_probing.results import Estimate, Unit
from attention_probing.results.sentences import Difference


@dataclass(frozen=True)
class Contrast:
    """Difference of a number from the base with which it is compared, one of several.

    Attributes:
        difference: The difference alone, with its interval and p-value.
        p_holm: P-value after Holm's correction over all contrasts; nan if there is no p-value.
        p_unit: `least_p` for the smallest p-value that the draws allow.
    """

    difference: Estimate
    p_holm: float
    p_unit: Unit

    def for_all(self, name: str, tests: int) -> Difference:
        """Return the difference for a sentence, with interval and p-value that hold for all contrasts at once.

        Args:
            name: What differs.
            tests: Number of contrasts.
        """
        return Difference(name, with_interval_and_p(self.difference, tests), p_unit=self.p_unit)


def contrast_with(
    base: Estimate, numbers: Sequence[Estimate], least: float, *, same_runs: bool = False
) -> list[Contrast]:
    """Compare numbers with a base; p-values are corrected over all of them.

    Args:
        base: The number that is subtracted.
        numbers: The numbers, with draws from the same subsets as the base.
        least: The smallest possible p-value (`metrics.p_values.least_p`).
        same_runs: True if all are numbers of the same runs, so that seeds are paired, too.
    """
    differences = [difference(number, base, same_runs=same_runs) for number in numbers]
    return correct_for_number(differences, [least] * len(differences))


def correct_for_number(differences: Sequence[Estimate], least: Sequence[float]) -> list[Contrast]:
    """Correct the p-values of differences for their number.

    Args:
        differences: Differences of numbers from their bases.
        least: The smallest possible p-value of each.
    """
    p_values = []
    for estimate in differences:
        p_values.append(math.nan if estimate.p is None else estimate.p)
    corrected = holm(p_values).tolist()
    contrasts = []
    for estimate, p, p_holm, smallest in zip(differences, p_values, corrected, least, strict=True):
        (unit,) = p_units([p], smallest)
        contrasts.append(Contrast(estimate, p_holm, unit))
    return contrasts
