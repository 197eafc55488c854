"""Sentences that answer an experiment, and numbers as they stand in them."""

import re
from collections.abc import Mapping
from typing import cast

import pandas as pd

from results.errors import counted
from results.estimates import Estimate, Unit
from results.tables import number

LEVEL = 0.05  # p-values below it are called significant
UNDEFINED = "undefined"
_SIGNS = {"fraction": " %", "nats": " nats", "bits": " bits"}


def said(score: Estimate, unit: Unit | None = None) -> str:
    """Return a number with its unit and its 95 % interval: `66.4 % [60.1, 72.0]`.

    Args:
        score: The number, not an array; nan is `undefined`.
        unit: `ratio` for fractions that are no shares, such as correlations, which have two decimals; None for its own.
    """
    if score.value != score.value:
        return UNDEFINED
    ends = (score.value, *(() if score.low is None or score.low != score.low else score.interval))
    value, *interval = (number(end, score.unit, missing="") if unit is None else f"{end:.2f}" for end in ends)
    sign = "" if unit else _SIGNS.get(score.unit, "")
    return f"{value}{sign}" + (f" [{', '.join(interval)}]" if interval else "")


def difference_said(score: Estimate, p: Estimate | None = None) -> str:
    """Return a difference and its p-value, if there is one: `+34.9 points [28.0, 41.0], p < .001`."""
    text = "+" * int(score.value > 0) + said(score).replace(" %", " points", 1)
    return text if p is None or p.value != p.value else f"{text}, {p_said(p.value, p.unit)}"


def p_said(value: float, unit: Unit = "p") -> str:
    """Return a p-value with its sign: `p = .13`, `p < .001`, or `p ≤ .0099` for a `least_p`."""
    text = number(value, unit, missing=UNDEFINED)
    return f"p = {text}" if text[0] in ".01" else f"p {text}"


def significant(rows: pd.DataFrame, noun: str, p: str) -> str:
    """Return how many rows have p < .05: `2 of 9 heads`, or `none of 9 heads`."""
    return f"{int((rows[p] < LEVEL).sum()) or 'none'} of {counted(len(rows), noun)}"


def largest(rows: pd.DataFrame, change: str) -> int:
    """Return the label of the row with the largest change, of either sign; nan is the smallest."""
    return cast("int", rows[change].abs().fillna(-1).idxmax())


def filled(text: str, scores: Mapping[str, Estimate], **words: Estimate | str | int) -> str:
    """Fill numbers and words into a sentence without its full stop, and leave out parts with an undefined number.

    Semicolons divide the parts. `{uas}` is a score as `said` writes it, `{uas:ratio}` the same with the unit `ratio`,
    `{gain:points}` a score as a difference. `words` are further scores, integers and words.
    """

    def fill(found: re.Match[str]) -> str:
        name, _, unit = found[1].partition(":")
        value = {**scores, **words}.get(name, found[0])  # braces of a name stay
        if isinstance(value, Estimate):
            return difference_said(value) if unit == "points" else said(value, "ratio" if unit else None)
        return value if isinstance(value, str) else f"{value:,}"

    parts = [re.sub(r"{(.+?)}", fill, part) for part in text.split("; ")]
    text = "; ".join(part for part in parts if UNDEFINED not in part) or "no score is defined on these data"
    return f"{text[0].upper()}{text[1:]}."
