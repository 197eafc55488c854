"""Would the same head be chosen on another sample? How often a choice returns on resamples of the data it was made on.

Méloux et al. (2025, arXiv 2510.00845, abstract) resample the inputs of methods that find circuits, and ask that
findings be reported with a measure of their stability. Here the finding is a choice, for instance of the head that
finds most governors on dev, and what is counted is its name.
A resample draws as many units (documents, or sentences where no documents are marked) as there are, with replacement,
and the choice is made on it anew. Nothing is predicted again: the units' counts are added up, each as often as its unit
was drawn. The names of rivals and the blank for a single unit are of this application.

A resample is as large as the data, because the choice on dev was made on so many units. The subsets of `metrics.draws`
keep half of the units on average, so that intervals agree with tests by flips of signs.

Stability is no evidence of a function: a head that is best for a trivial reason returns too, in an encoder with random
weights as well (Méloux et al. 2025, "The dead salmons of AI interpretability", abstract).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from attention_probing.metrics.statistics import ratio
from attention_probing.results import Flags, Floats, Integers

RESAMPLES = 100
"""Number of resamples, so that counts of them read as percentages."""
HALF = RESAMPLES / 2
MOST_RIVALS = 3
"""Largest number of rivals that are named."""
NONE = "none"
"""Name, among the rivals, of the resamples on which nothing can be chosen."""

StabilityCells = tuple[int | None, str | None]
"""How often a choice returns, and its rivals; None if they are undefined."""
NO_CHOICE: StabilityCells = (None, None)


@lru_cache(maxsize=1)  # choices on the same split are made one after another
def draw_resamples(units: int, seed: int = 0) -> Integers:
    """Draw as many units as there are, with replacement, `RESAMPLES` times.

    Args:
        units: Number of units.
        seed: Seed of the resamples.

    Returns:
        How often each unit is in each resample, int64 `[RESAMPLES, units]`. It depends on nothing else, so all choices
        on one split share their resamples.
    """
    rng = np.random.default_rng(seed)
    equal = np.full(units, 1 / max(units, 1))
    times = rng.multinomial(units, equal, size=RESAMPLES)
    times.setflags(write=False)  # it is shared
    return times


def resampled_shares(found: Floats, counted: Floats, seed: int = 0) -> Floats:
    """Return the share of what counts that each candidate finds on each resample, `[RESAMPLES, candidates]`.

    A share is nan on a resample in which nothing counts.

    Args:
        found: What each candidate finds in each unit, `[units, candidates]`.
        counted: What counts in each unit, `[units]`; or for each candidate, `[units, candidates]`.
        seed: Seed of the resamples.
    """
    if counted.ndim == 1:
        counted = counted[:, None]
    times = draw_resamples(len(found), seed).astype(np.float64)
    return ratio(times @ found, times @ counted)


@dataclass(frozen=True, eq=False)
class ChoiceStability:
    """How often each candidate is chosen on resamples of the units that one of them was chosen on.

    Attributes:
        times: Number of resamples on which each candidate is chosen, int64 `[candidates]`. The sum is below
            `RESAMPLES` if nothing can be chosen on some of them.
        tied: Number of resamples on which each candidate is as good as the chosen one, but comes after it,
            int64 `[candidates]`.
        is_defined: False if fewer than two units count: all resamples are then equal.
    """

    times: Integers
    tied: Integers
    is_defined: bool = True

    def describe(self, chosen: int, name: Callable[[int], str]) -> StabilityCells:
        """Return how often a candidate is chosen again, and its rivals; see `again` and `rivals`."""
        return self.again(chosen), self.rivals(chosen, name)

    def again(self, chosen: int) -> int | None:
        """Return on how many of the `RESAMPLES` a candidate is chosen again; None if this is undefined."""
        return int(self.times[chosen]) if self.is_defined else None

    def rivals(self, chosen: int, name: Callable[[int], str]) -> str | None:
        """Return the candidates that are chosen instead, most often first: `7-2 31, 3-4 12`.

        At most `MOST_RIVALS` are named, of equals the first. Then come resamples without anything to choose by, as
        `none 5`, and the number of candidates that only their place keeps from being chosen, because they are as good
        on at least half of the resamples, as `4 as good`. A choice among such candidates returns by its place alone.

        Args:
            chosen: The candidate that was chosen on all units.
            name: Function that returns the name of a candidate.

        Returns:
            The text, empty without a rival; None if it is undefined.
        """
        if not self.is_defined:
            return None
        instead = self.times.copy()
        instead[chosen] = 0
        order = np.argsort(-instead, kind="stable")[:MOST_RIVALS].tolist()
        parts = [f"{name(rival)} {instead[rival]}" for rival in order if instead[rival]]
        without_choice = RESAMPLES - int(self.times.sum())
        if without_choice:
            parts.append(f"{NONE} {without_choice}")
        as_good = np.count_nonzero(self.tied >= HALF)
        if as_good:
            parts.append(f"{as_good} as good")
        return ", ".join(parts)


def choose_again(found: Floats, counted: Floats, seed: int = 0) -> ChoiceStability:
    """Choose the candidate with the greatest share on each resample of the units, of equals the first.

    Args:
        found: What each candidate finds in each unit, `[units, candidates]`.
        counted: What counts in each unit, `[units]`; or for each candidate, `[units, candidates]`.
        seed: Seed of the resamples.
    """
    shares = resampled_shares(found, counted, seed)
    units = np.count_nonzero(counted.reshape(len(counted), -1).any(axis=1))
    return count_choices(shares, is_defined=bool(units >= 2))


def choose_from_shortlist_again(
    effects: Floats, candidates: Integers, estimates: Floats, seed: int = 0
) -> ChoiceStability:
    """Make a shortlist of estimates on each resample of the units, and choose from it by the effect.

    The shortlist has the largest estimates, in either direction. What newly comes onto it has no known effect, and is
    left out; so a count can still be too high.

    Args:
        effects: Effects of what is on the shortlist of all units, `[units, candidates]`.
        candidates: Its places among all estimates, `[candidates]`; the shortlist of a resample is as long.
        estimates: Estimates of everything, `[units, all]`.
        seed: Seed of the resamples.
    """
    times = draw_resamples(len(effects), seed).astype(np.float64)
    sizes = np.abs(times @ estimates)
    listed = np.argsort(-sizes, axis=1, kind="stable")[:, : len(candidates)]
    is_listed = np.zeros(sizes.shape, np.bool_)
    np.put_along_axis(is_listed, listed, True, axis=1)
    known = np.where(is_listed[:, candidates], times @ effects, np.nan)
    return count_choices(known, is_defined=len(effects) >= 2)


def count_choices(shares: Floats, *, is_defined: bool = True) -> ChoiceStability:
    """Count how often each candidate has the greatest number, of equals the first; nan is never chosen.

    Args:
        shares: Numbers `[resamples, candidates]`.
        is_defined: False if the resamples do not differ.
    """
    can_choose = ~np.isnan(shares).all(axis=1)
    shares = np.nan_to_num(shares[can_choose], nan=-np.inf)
    best = shares.argmax(axis=1)
    times = np.bincount(best, minlength=shares.shape[1])
    are_best = np.count_nonzero(shares == shares.max(axis=1, initial=-np.inf, keepdims=True), axis=0)
    return ChoiceStability(times, are_best - times, is_defined)


def set_overlap(chosen: Flags, resampled: Flags) -> float:
    """Return the mean Jaccard overlap of a set with the sets that are chosen on resamples.

    The overlap of two sets is the number of their common members divided by the number of members of either; that of
    two empty sets is 1.

    Args:
        chosen: True for the members of the set, `[candidates]`.
        resampled: The same on each resample, `[resamples, candidates]`.
    """
    common = (chosen & resampled).sum(axis=1)
    either = (chosen | resampled).sum(axis=1)
    overlaps = np.where(either > 0, common / np.maximum(either, 1), 1.0)
    return float(overlaps.mean())


def stability_columns(cells: Sequence[StabilityCells]) -> pd.DataFrame:
    """Return the columns `chosen` and `rivals` of a table with a choice in each row.

    Args:
        cells: The two cells of each row, as from `ChoiceStability.describe`; `NO_CHOICE` for a row without a choice.
    """
    times = pd.array([again for again, _ in cells], dtype="Int64")
    return pd.DataFrame({"chosen": times, "rivals": [rivals for _, rivals in cells]})


def warn_of_choice(times: float | None, split: str = "dev") -> str:
    """Return ` (chosen again in 38 of 100 resamples of dev)` for a choice that returns in fewer than half of them.

    Args:
        times: Number of resamples on which the choice returns; missing if it is undefined.
        split: What is resampled.

    Returns:
        The words behind the name of what was chosen; empty for a choice that returns more often.
    """
    if pd.isna(times) or times >= HALF:
        return ""
    return f" (chosen again in {int(times)} of {RESAMPLES} resamples of {split})"
