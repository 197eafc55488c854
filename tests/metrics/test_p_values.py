import itertools

import numpy as np
import pytest

from attention_probing.metrics.p_values import draws_for, holm, least_p, max_sign_flip_p, p_units

NAN = float("nan")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # Sorted: .01·4, .02·3, .03·2 = .06 as the one before it, .4·1.
        ([0.03, 0.01, 0.4, 0.02], [0.06, 0.04, 0.4, 0.06]),
        ([0.6, 0.9], [1.0, 1.0]),
        ([0.04], [0.04]),
        ([NAN, 0.01, 0.04], [NAN, 0.02, 0.04]),  # no p-value, no comparison
        ([], []),
    ],
)
def test_holm_by_hand(given: list[float], expected: list[float]) -> None:
    assert holm(given).tolist() == pytest.approx(expected, nan_ok=True)


def test_the_smallest_p_that_the_draws_allow_is_marked() -> None:
    least = least_p(13, 999)
    assert least == 0.002
    assert p_units([0.002, 0.0029, 0.004, NAN], least) == ["least_p", "least_p", "p", "p"]
    assert p_units([2**-11], least_p(12, 999)) == ["p"]


@pytest.mark.parametrize(
    ("tests", "units", "each", "draws"),
    [
        (4, 50, 100, 1000),  # the least number
        (40, 50, 100, 4000),
        (40, 50, 200, 8000),
        (40, 1 << 16, 200, 1 << 12),  # as far as memory goes
        (40, 1 << 24, 200, 1000),
        (40, 0, 200, 8000),
    ],
)
def test_draws_grow_with_the_tests_as_far_as_memory_goes(tests: int, units: int, each: int, draws: int) -> None:
    assert draws_for(tests, units, 1000, each=each) == draws


@pytest.mark.parametrize("heads", [1, 6])
def test_the_best_of_several_sums_is_tested_as_it_was_chosen(heads: int) -> None:
    rng = np.random.default_rng(heads)
    nulls = [max_sign_flip_p(rng.integers(-2, 3, (40, heads)), draws=99, seed=seed) for seed in range(1000)]
    assert 0.03 <= np.mean(np.array(nulls) <= 0.05) <= 0.07
    signs = np.array(list(itertools.product((1, -1), repeat=10)))
    counts = rng.integers(-1, 4, (10, heads))
    exact = np.mean((signs @ counts).max(axis=1) >= counts.sum(axis=0).max())
    assert max_sign_flip_p(counts, draws=20_000) == pytest.approx(exact, abs=0.01)
    assert np.isnan(max_sign_flip_p(np.zeros((0, heads))))
