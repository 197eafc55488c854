"""Curves over two measures, summed up as one number."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def area(tvd: ArrayLike, jsd: ArrayLike) -> NDArray[np.float64]:
    """Area under a curve of how far attention was changed (JSD) at which change of the decision (TVD).

    The curve begins at (0, 0), the model itself, and runs through the points in the order of their TVD. It never
    falls: what was reached at a small change of the decision can be had at any larger one too, so that a point counts
    with the highest JSD up to it. Between points it is straight, behind the last it is flat up to TVD = 1. The area
    lies in 0 – ln 2; it is high where attention could be changed much while the decisions stayed the same. Wiegreffe &
    Pinter (2019, Figure 5) draw such curves; the area is ours.

    Args:
        tvd: `[..., points]`, in 0–1, in any order.
        jsd: `[..., points]`, in 0 – ln 2.

    Returns:
        `[...]`; nan where a point is.

    Raises:
        ValueError: the shapes differ, or there is no point.
    """
    x, y = np.asarray(tvd, np.float64), np.asarray(jsd, np.float64)
    if x.shape != y.shape or not x.shape or not x.shape[-1]:
        raise ValueError(f"TVD {x.shape} and JSD {y.shape} of a curve must have one shape, [..., points], with a point")
    order = np.lexsort((y, x), axis=-1)  # of equal TVD the lower JSD first, whatever order they came in
    x, y = np.take_along_axis(x, order, -1), np.take_along_axis(y, order, -1)
    none = np.zeros((*x.shape[:-1], 1))
    x = np.concatenate([none, x, none + 1], axis=-1)
    y = np.maximum.accumulate(np.concatenate([none, y], axis=-1), axis=-1)
    y = np.concatenate([y, y[..., -1:]], axis=-1)
    return np.asarray(np.trapezoid(y, x, axis=-1))
