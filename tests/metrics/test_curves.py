"""The area under a TVD–JSD curve against areas known by hand, and against a fine grid."""

import math

import numpy as np
import pytest

from metrics.curves import area


def on_a_grid(tvd: list[float], jsd: list[float], steps: int = 200_000) -> float:
    """The same area as the mean height of the curve at the middles of many steps."""
    points = sorted(zip(tvd, jsd, strict=True))
    xs, ys, highest = [0.0], [0.0], 0.0
    for x, y in points:
        highest = max(highest, y)
        xs.append(x)
        ys.append(highest)
    middles = (np.arange(steps) + 0.5) / steps
    return float(np.interp(middles, xs, ys).mean())


def test_one_point_is_a_triangle_and_a_rectangle() -> None:
    assert area([0.2], [0.6]) == pytest.approx(0.2 * 0.6 / 2 + 0.8 * 0.6)


def test_a_point_below_an_earlier_one_counts_as_high_as_that() -> None:
    assert area([0.5, 0.25], [0.1, 0.4]) == pytest.approx(0.25 * 0.4 / 2 + 0.75 * 0.4)


def test_the_whole_square_is_ln_2_and_nothing_is_0() -> None:
    assert area([0.0, 0.3], [math.log(2), 0.1]) == pytest.approx(math.log(2))
    assert area([0.0, 0.3, 1.0], [0.0, 0.0, 0.0]) == 0


def test_the_order_of_the_points_does_not_matter_even_between_points_of_one_tvd() -> None:
    tvd, jsd = np.array([0.1, 0.4, 0.4, 0.05]), np.array([0.2, 0.1, 0.5, 0.3])
    random = np.random.default_rng(0)
    orders = [random.permutation(4) for _ in range(20)]
    found = [float(area(tvd[order], jsd[order])) for order in orders]
    assert found == pytest.approx([found[0]] * 20)
    assert found[0] == pytest.approx(0.05 * 0.3 / 2 + 0.35 * 0.3 + 0.6 * 0.5)


def test_every_draw_is_a_curve_of_its_own() -> None:
    random = np.random.default_rng(1)
    tvd, jsd = random.random((7, 6)), random.random((7, 6)) * math.log(2)
    found = area(tvd, jsd)
    assert found.shape == (7,)
    for draw in range(7):
        assert found[draw] == pytest.approx(on_a_grid(tvd[draw].tolist(), jsd[draw].tolist()), abs=1e-4)


@pytest.mark.parametrize("place", ["tvd", "jsd"])
def test_a_point_that_is_not_known_leaves_no_area(place: str) -> None:
    points = {"tvd": np.array([[0.1, 0.2], [0.1, 0.2]]), "jsd": np.array([[0.3, 0.4], [0.3, 0.4]])}
    points[place][0, 1] = np.nan
    found = area(points["tvd"], points["jsd"])
    assert np.isnan(found[0])
    assert found[1] == area([0.1, 0.2], [0.3, 0.4])


@pytest.mark.parametrize(("tvd", "jsd"), [([0.1, 0.2], [0.1]), ([], []), (0.1, 0.2)])
def test_what_is_no_curve_is_refused(tvd: object, jsd: object) -> None:
    with pytest.raises(ValueError, match=r"must have one shape, \[..., points\], with a point"):
        area(tvd, jsd)  # type: ignore[arg-type]
