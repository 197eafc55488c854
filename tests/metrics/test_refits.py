"""Numbers of fitted models: intervals over the units that are tested and the units that are fitted."""

import numpy as np
import pytest

from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.differences import difference
from attention_probing.metrics.refits import FittedNumber
from attention_probing.metrics.statistics import mean
from attention_probing.results import Estimate, Floats

UNITS, FITS = 400, 40


def number(values: Floats) -> Estimate:
    return resample(mean, values[:, None], "ratio", draws=1000)


def fitted(values: Floats, shifts: Floats, own: Floats | float = 0.0) -> FittedNumber:
    """The mean of values, and of refits which are shifted on all units, or on each unit on their own."""
    refits = [number(values + shift) for shift in np.broadcast_to(shifts[:, None] + own, (len(shifts), UNITS))]
    return FittedNumber.from_seeds([number(values)], [refits])


def width(estimate: Estimate) -> float:
    low, high = estimate.interval
    return high - low


def test_without_a_fit_the_number_and_the_difference_are_those_of_the_test_set() -> None:
    rng = np.random.default_rng(0)
    one, other = number(rng.normal(0, 1, UNITS)), number(rng.normal(0, 1, UNITS))
    plain = FittedNumber.from_seeds([one])
    assert plain.estimate.interval == pytest.approx(one.interval)
    apart, expected = plain.minus(FittedNumber.from_seeds([other])), difference(one, other)
    assert (apart.value, apart.interval, apart.p) == (expected.value, expected.interval, expected.p)


def test_what_fits_differ_on_all_units_is_added_to_the_variance() -> None:
    """The variance of the mean of 400 normal units is 1/400, and the fits have eight times as much."""
    rng = np.random.default_rng(1)
    values = rng.normal(0, 1, UNITS)
    shifts = rng.normal(0, 1, FITS)
    shifts *= np.sqrt(8 * values.var() / UNITS) / shifts.std(ddof=1)
    wide = fitted(values, shifts)
    assert width(wide.estimate) / width(number(values)) == pytest.approx(3, abs=0.25)
    against = FittedNumber.from_seeds([number(rng.normal(0, 1, UNITS))])
    alone = FittedNumber.from_seeds([number(values)])
    assert width(wide.minus(against)) > 1.5 * width(alone.minus(against))
    assert width(against.minus(wide)) == pytest.approx(width(wide.minus(against)))


def test_what_each_fit_does_on_these_units_alone_is_not_added_twice() -> None:
    """Each refit has noise of its own on each unit: their means differ, as other test units would show, by chance."""
    rng = np.random.default_rng(2)
    values = rng.normal(0, 1, UNITS)
    noisy = fitted(values, np.zeros(FITS), rng.normal(0, 2, (FITS, UNITS)))
    assert noisy.refits is not None
    assert noisy.refits.values.std() > 0.08  # 2 / √400
    assert width(noisy.estimate) / width(number(values)) < 1.6  # √5 = 2.2 if it were added


def test_what_two_fits_share_cancels_out_in_their_difference() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(0, 1, UNITS)
    shifts = rng.normal(0, 1, FITS)
    one, other = fitted(values, shifts), fitted(values + rng.normal(0.2, 0.1, UNITS), shifts)
    assert width(one.estimate) > 10 * width(number(values))
    apart = other.minus(one)
    assert apart.p is not None
    assert apart.p < 0.01
    assert width(apart) < 0.05


def test_undefined_refits_are_left_out_and_two_seeds_that_differ_have_no_interval() -> None:
    rng = np.random.default_rng(4)
    values = rng.normal(0, 1, UNITS)
    good, bad = number(values + 0.1), number(np.full(UNITS, np.nan))
    whole = FittedNumber.from_seeds([number(values)], [[good, number(values - 0.1)]])
    some = FittedNumber.from_seeds([number(values)], [[good, number(values - 0.1), bad]])
    assert some.estimate.interval == pytest.approx(whole.estimate.interval)
    two = FittedNumber.from_seeds([number(values), number(values + 3)])
    assert np.isnan(two.estimate.interval[0])
