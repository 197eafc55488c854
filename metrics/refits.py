"""Numbers of a model that was fitted to some units and tested on others, with intervals that cover both."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from attention_probing.metrics.differences import difference, with_interval_and_p
from attention_probing.metrics.draws import interval_of_draws, level_tail
from attention_probing.metrics.seeds import LEAST_SEEDS, pool_seeds, widen_for_seeds
from attention_probing.results import Estimate, Floats


@dataclass(frozen=True, eq=False)
class Refits:
    """A number of models that were fitted to random halves of the units, on one test set.

    A fit to a half gives its units twice their weight (the double-or-nothing bootstrap of `metrics.draws`), so the
    numbers vary as those of other samples of the size of the whole would.

    Attributes:
        values: The number of each fit, `[fits]`; nan if it is undefined.
        draws: The number of each fit under each draw of the units of the test set, `[fits, draws]`.
    """

    values: Floats
    draws: Floats

    @classmethod
    def from_seeds(cls, seeds: Sequence[Sequence[Estimate]]) -> Self:
        """Return the means over runs that differ only in the seed.

        Args:
            seeds: The number of each fit, with its draws, for each run. All runs have the same halves in the same
                order.
        """
        values = []
        draws = []
        for run in seeds:
            values.append([fit.value for fit in run])
            draws.append([fit.draws for fit in run])
        return cls(np.mean(values, axis=0), np.mean(draws, axis=0))

    def minus(self, other: "Refits") -> "Refits":
        """Return the differences of two numbers of models that were fitted to the same halves."""
        return Refits(self.values - other.values, self.draws - other.draws)

    def negative(self) -> "Refits":
        """Return the numbers with the opposite sign."""
        return Refits(-self.values, -self.draws)


@dataclass(frozen=True, eq=False)
class FittedNumber:
    """A number of a fitted model, or of several that differ in the seed, on a test set.

    Attributes:
        pool: The number, or its mean over the seeds, with draws over the units of the test set (`pool_seeds`).
        refits: The number of fits to random halves of the units that were fitted; None if nothing was fitted.
    """

    pool: Estimate
    refits: Refits | None = None

    @classmethod
    def from_seeds(cls, seeds: Sequence[Estimate], halves: Sequence[Sequence[Estimate]] = ()) -> Self:
        """Return the mean of the numbers of runs that differ only in the seed.

        Args:
            seeds: The number of each run, with its draws.
            halves: The number of each fit to a half, for each run, as for `Refits.from_seeds`; empty if nothing was
                fitted.
        """
        refits = Refits.from_seeds(halves) if halves else None
        return cls(pool_seeds(seeds), refits)

    @property
    def estimate(self) -> Estimate:
        """The number with its interval over the units of the test set, the seeds, and the units that were fitted."""
        pool = self.pool
        if 1 < len(pool.runs) < LEAST_SEEDS and np.isnan(pool.interval[0]):
            return pool  # two seeds that differ say too little of others
        draws = widen_for_seeds(pool.value, pool.draws, (pool,))
        draws = widen_for_refits(pool.value, draws, self.refits)
        low, high = interval_of_draws(draws, level_tail(pool.units or 1))
        return replace(pool, low=low, high=high)

    def minus(self, other: "FittedNumber") -> Estimate:
        """Return the difference of two numbers of the same runs and test set, with interval and p-value.

        They cover the units of the test set, the seeds, and the units that were fitted, all of them paired.

        Args:
            other: The number that is subtracted.
        """
        apart = difference(self.pool, other.pool, same_runs=True)
        refits = self.refits
        if refits is not None and other.refits is not None:
            refits = refits.minus(other.refits)
        elif other.refits is not None:
            refits = other.refits.negative()
        return with_interval_and_p(replace(apart, draws=widen_for_refits(apart.value, apart.draws, refits)))


def widen_for_refits(value: float, draws: Floats, refits: Refits | None) -> Floats:
    """Spread draws over the units of a test set about a number, by what a fit to other units changes.

    The units that are fitted and those that are tested are crossed, as seeds and units are in
    `seeds.widen_for_seeds`. The numbers of the refits vary by what fits differ on any test set, and by what each of
    them does on these units beyond the others. The draws of the refits tell the size of the second, which `draws` have
    already; the first is added to the variance of `draws`.

    Args:
        value: The number.
        draws: Its values under the draws, `[draws]`.
        refits: The number of the refits; None if nothing was fitted.
    """
    if refits is None or not np.isfinite(draws).any():
        return draws
    fits = np.isfinite(refits.values)
    defined = np.isfinite(refits.draws[fits]).all(axis=0)
    number = int(np.count_nonzero(fits))
    if number < 2 or not defined.any():
        return draws
    values = refits.values[fits]
    of_fits = refits.draws[fits][:, defined]
    beyond = of_fits - of_fits.mean(axis=0) - (values - values.mean())[:, None]
    on_these_units = (beyond**2).mean() * number / (number - 1)
    of_fit = max(float(np.var(values, ddof=1) - on_these_units), 0.0)
    spread = float(np.nanmean((draws - value) ** 2))
    if not spread > 0:
        return draws
    wide: Floats = value + (draws - value) * np.sqrt(1 + of_fit / spread)
    return wide
