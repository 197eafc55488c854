"""Sentences that answer an experiment, and numbers as they stand in them."""

import re
from collections.abc import Mapping

import pandas as pd

from results.estimates import Estimate, Unit
from results.tables import number

LEVEL = 0.05  # p-values below it are called significant
UNDEFINED = "undefined"
_SIGNS = {"fraction": " %", "nats": " nats", "bits": " bits"}


def said(score: Estimate, unit: Unit | None = None) -> str:
    """Return a number with its unit and its 95 % interval: `66.4 % [60.1, 72.0]`.

    Args:
        score: The number, not an array; nan is `undefined`.
        unit: Unit to write it in, in place of its own: `ratio` for fractions that are no shares, such as correlations.
    """
    unit = unit or score.unit
    value = number(score.value, unit, missing=UNDEFINED)
    ends = [] if score.low is None else [number(end, unit, missing="?") for end in score.interval]
    sign = _SIGNS.get(unit, "") if score.value == score.value else ""
    return f"{value}{sign}" + (f" [{ends[0]}, {ends[1]}]" if ends and "?" not in ends else "")


def difference_said(score: Estimate, p: Estimate) -> str:
    """Return a difference and its p-value, unless that is nan: `+34.9 points [28.0, 41.0], p < .001`."""
    text = "+" * (score.value > 0) + said(score).replace(" %", " points", 1)
    return text if p.value != p.value else f"{text}, {p_said(p.value, p.unit)}"


def p_said(value: float, unit: Unit = "p") -> str:
    """Return a p-value with its sign: `p = .13`, `p < .001`, or `p ≤ .0099` for a `least_p`."""
    text = number(value, unit, missing=UNDEFINED)
    return f"p = {text}" if text[0] in ".01" else f"p {text}"


def most(rows: pd.DataFrame, change: str, p: str) -> tuple[str, int]:
    """Return `k of n`, for k of n rows with p < .05, and the label of the largest change of these, or else of all."""
    clear = rows[rows[p] < LEVEL]
    return f"{len(clear) or 'none'} of {len(rows)}", int((clear if len(clear) else rows)[change].abs().idxmax())


def filled(text: str, scores: Mapping[str, Estimate], **words: Estimate | str | int) -> str:
    """Fill numbers and words into a sentence; parts between semicolons that have an undefined number are left out.

    Args:
        text: The sentence without its full stop. `{uas}` is a score as `said` writes it, `{uas:ratio}` the same in
            another unit, `{n}` a word.
        scores: Scores by name.
        words: Further scores, and words and integers, by name.
    """

    def fill(found: re.Match[str]) -> str:
        name, _, unit = found[1].partition(":")
        value = {**scores, **words}[name]
        if isinstance(value, Estimate):
            return said(value, "ratio" if unit else None)
        return f"{value:,}" if isinstance(value, int) else value

    parts = [re.sub(r"{(.+?)}", fill, part) for part in text.split("; ")]
    text = "; ".join(part for part in parts if UNDEFINED not in part) or "no score is defined on these data"
    return f"{text[0].upper()}{text[1:]}."
