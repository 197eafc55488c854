"""Integrated gradients (Sundararajan et al. 2017): the one door to captum."""

from collections.abc import Callable

from torch import Tensor


def integrate_gradients(
    function: Callable[..., Tensor], values: Tensor, baselines: Tensor, *arguments: Tensor, points: int
) -> tuple[Tensor, Tensor]:
    """Return what each value adds to a function on the straight path from its baseline, and the error of the sums.

    A value v with the baseline b gets (v − b) ∫ ∂f(b + t (v − b)) / ∂v dt over t from 0 to 1, by Gauss–Legendre
    quadrature. Of each item, the exact numbers add up to f(v) − f(b).

    Args:
        function: Returns a number for each item, `[items]`; it is called with values and with `arguments` of the same
            items, one point of the path at a time.
        values: `[items, …]`.
        baselines: Starts of the paths, of the same shape.
        *arguments: Further arguments of the function, `[items, …]`.
        points: Number of points on the path.

    Returns:
        The numbers of all values, `[items, …]`; and for each item their sum minus f(v) − f(b), `[items]`.
    """
    from captum.attr import IntegratedGradients  # loaded late: most runs need no integrated gradients

    attributions, errors = IntegratedGradients(function).attribute(
        values,
        baselines=baselines,
        additional_forward_args=arguments or None,
        n_steps=points,
        internal_batch_size=len(values),  # one point of all items
        return_convergence_delta=True,
    )
    return attributions.detach(), errors.detach()
