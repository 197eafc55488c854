from itertools import chain

import numpy as np
import pytest
import torch
from scipy import special, stats

from attention_probing.metrics.moments import Moments


def test_means_and_intervals_equal_those_of_all_numbers_kept() -> None:
    random = np.random.default_rng(0)
    values = random.normal(3.0, 2.0, (41, 2, 3))
    values[random.random(values.shape) < 0.2] = np.nan
    group = torch.from_numpy(random.integers(0, 2, 41))
    moments = Moments(2, (2, 3), "fraction")
    for start in range(0, 41, 7):
        moments.update(group[start : start + 7], torch.from_numpy(values[start : start + 7]))
    means = moments.compute()
    for groups in ([0], [1], [0, 1]):
        found = means.over(groups)
        for place in np.ndindex(2, 3):
            own = values[np.isin(group.numpy(), groups)][(..., *place)]
            own = own[~np.isnan(own)]
            interval = stats.ttest_1samp(own, 0.0).confidence_interval(0.95)
            assert found.inputs[place] == len(own)
            np.testing.assert_allclose(list(found[place].columns("").values()), [own.mean(), *interval], atol=1e-8)


def test_one_input_has_no_interval_and_none_no_mean() -> None:
    moments = Moments(2, (1,), "fraction")
    moments.update(torch.tensor([0]), torch.tensor([[0.5]]))
    means = moments.compute()
    one, none = means.over([0]), means.over([1])
    assert one.value == [0.5]
    assert np.isnan([*one.interval, none.value]).all()
    assert list(chain(one.inputs, none.inputs)) == [1, 0]


@pytest.mark.parametrize("values", [[1.0] * 9 + [0.0], [0.0, 1.0], [1e-6, 2e-6, 4e-6, 3e-6], [0.25, 0.5, 0.125]])
def test_intervals_of_bounded_numbers_are_those_of_log_odds(values: list[float]) -> None:
    count, mean, sd = len(values), np.mean(values), np.std(values, ddof=1)
    margin = stats.t.ppf(0.975, count - 1) * sd / np.sqrt(count)
    apart = margin / (mean * (1 - mean))  # the derivative of the log odds
    of_shares = special.expit(special.logit(mean) + np.array([-apart, apart]))
    of_amounts = np.exp(np.log(mean) + np.array([-margin, margin]) / mean)
    for bounds, expected in {
        (0.0, 1.0): of_shares,
        (0.0, np.inf): of_amounts,
        (-np.inf, np.inf): mean + np.array([-margin, margin]),
    }.items():
        moments = Moments(1, (1,), "fraction", bounds=bounds)
        moments.update(torch.zeros(count, dtype=torch.long), torch.tensor(values)[:, None])
        means = moments.compute()
        for found in (means.over(), means.select(slice(0, 1)).over(), means.at(0).over()):
            ends = [float(np.ravel(part)[0]) for part in found.columns("").values()]
            assert ends[1:] == pytest.approx(expected, rel=1e-6)
            assert bounds[0] <= ends[1] < ends[0] < ends[2] <= bounds[1]


def test_each_number_has_its_own_bounds() -> None:
    moments = Moments(2, (2, 3), "fraction", bounds=(-1, [1.0, np.inf, 2.0]))
    random = np.random.default_rng(0)
    moments.update(torch.arange(4) % 2, torch.from_numpy(random.uniform(-1, 1, (4, 2, 3))))
    whole = moments.compute()
    for place, bounds in enumerate([(-1, 1), (-1, np.inf), (-1, 2)]):
        alone = Moments(2, (2,), "fraction", bounds=bounds)
        alone.update(
            torch.arange(4) % 2, torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (4, 2, 3)))[..., place]
        )
        np.testing.assert_equal(whole.at(place).over().columns(""), alone.compute().over().columns(""))
    high = whole.over().interval[1]
    assert high[:, 0].max() <= 1
    assert high[:, 1].max() > 1


def test_a_mean_at_its_bound_has_an_interval_of_no_width() -> None:
    moments = Moments(1, (2,), "fraction", bounds=(0, 1))
    moments.update(torch.zeros(3, dtype=torch.long), torch.tensor([[0.0, 1.0]]).expand(3, -1))
    found = moments.compute().over()
    for part in found.columns("").values():
        assert part.tolist() == [0.0, 1.0]


def test_differences_below_the_resolution_are_no_evidence() -> None:
    moments = Moments(1, (3,), "fraction")
    for value in (1e-11, -1.5e-11, 2e-11):
        moments.update(torch.zeros(1, dtype=torch.long), torch.tensor([[value, 0.0, 0.25]], dtype=torch.float64))
    noise, zero, alike = moments.compute().p()
    assert noise > 0.8
    assert zero == 1
    assert alike < 1e-6


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinite_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="infinite"):
        Moments(1, (1,), "fraction").update(torch.tensor([0, 0]), torch.tensor([[value], [1.0]]))


def test_sums_keep_their_precision_in_a_module_of_another() -> None:
    """A trainer with `bf16-true` converts the module, and with it a metric that it holds."""
    moments = Moments(1, (2,), "fraction")
    moments.to(torch.bfloat16)
    moments.update(torch.tensor([0]), torch.tensor([[1 / 3, 1000.125]], dtype=torch.float64))
    assert (moments.sums.dtype, moments.counts.dtype) == (torch.float64, torch.int64)
    assert moments.sums.tolist() == [[1 / 3, 1000.125]]
    moments.reset()
    assert moments.sums.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("values", "bounds"), [([1.5, 1.6], (0, 1)), ([-0.5, 0.2], (0, np.inf)), ([0.0, 1.6, 0.1, 0.1], (0, 1))]
)
def test_numbers_outside_of_their_bounds_are_refused(values: list[float], bounds: tuple[float, float]) -> None:
    """The last have a mean within the bounds, but too large a variance."""
    moments = Moments(1, (1,), "nats", bounds=bounds)
    moments.update(torch.zeros(len(values), dtype=torch.long), torch.tensor(values)[:, None])
    with pytest.raises(ValueError, match=r"are not all between their bounds 0 and (1|inf): give the lowest"):
        moments.compute()
