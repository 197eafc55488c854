"""Numbers as they stand in the sentence that answers an experiment."""

from results.estimates import Estimate, Unit
from results.tables import number

_SIGNS = {"fraction": " %", "nats": " nats", "bits": " bits"}


def said(score: Estimate, unit: Unit | None = None) -> str:
    """Return a number with its unit and its 95 % interval: `66.4 % [60.1, 72.0]`.

    Args:
        score: The number, not an array; nan is `undefined`.
        unit: Unit to write it in, in place of its own: `ratio` for fractions that are no shares, such as correlations.
    """
    unit = unit or score.unit
    value = number(score.value, unit, missing="undefined")
    ends = [] if score.low is None else [number(end, unit, missing="?") for end in score.interval]
    sign = _SIGNS.get(unit, "") if score.value == score.value else ""
    return f"{value}{sign}" + (f" [{ends[0]}, {ends[1]}]" if ends and "?" not in ends else "")


def p_said(value: float, unit: Unit = "p") -> str:
    """Return a p-value with its sign: `p = .13`, `p < .001`, or `p ≤ .0099` for a `least_p`."""
    text = number(value, unit, missing="undefined")
    return f"p = {text}" if text[0] in ".01" else f"p {text}"
