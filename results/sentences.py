"""Sentences that answer an experiment, and numbers as they stand in them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from attention_probing.results.errors import pluralize
from attention_probing.results.estimates import FEW, TIE, Estimate, Unit
from attention_probing.results.tables import format_number

LEVEL = 0.05  # p-values below it are called significant
UNDEFINED = "undefined"
_SIGNS = {"fraction": " %", "nats": " nats", "bits": " bits"}


def format_estimate(score: Estimate, unit: Unit | None = None) -> str:
    """Return a number with its unit and its 95 % interval: `66.4 % [60.1, 72.0]`.

    Args:
        score: The number, not an array; nan is `undefined`.
        unit: `ratio` for fractions that are no shares, such as correlations, which have two decimals; None for its own.
    """
    if score.value != score.value:
        return UNDEFINED
    numbers = [score.value]
    if score.low is not None and score.low == score.low:
        numbers += score.interval
    if unit is None:
        texts = [format_number(number, score.unit, missing="") for number in numbers]
        sign = _SIGNS.get(score.unit, "")
    else:
        texts = [f"{number:.2f}" for number in numbers]
        sign = ""
    value, *interval = texts
    if not interval:
        return f"{value}{sign}"
    return f"{value}{sign} [{', '.join(interval)}]"


def format_difference(score: Estimate, p: Estimate | None = None) -> str:
    """Return a difference and its p-value, if there is one: `+34.9 points [28.0, 41.0], p < .001`."""
    text = format_estimate(score).replace(" %", " points", 1)
    if score.value > 0:
        text = f"+{text}"
    if p is None or p.value != p.value:
        return text
    return f"{text}, {format_p(p.value, p.unit)}"


def format_p(value: float, unit: Unit = "p") -> str:
    """Return a p-value with its sign: `p = .13`, `p < .001`, or `p ≤ .0099` for a `least_p`."""
    text = format_number(value, unit, missing=UNDEFINED)
    return f"p = {text}" if text[0] in ".01" else f"p {text}"


def count_significant(rows: pd.DataFrame, noun: str, p: str) -> str:
    """Return how many of the rows that have a p-value have p < .05: `2 of 9 heads`, or `none of 9 heads`."""
    tested = rows[p].dropna()
    significant = int((tested < LEVEL).sum())
    return f"{significant or 'none'} of {pluralize(len(tested), noun)}"


@dataclass(frozen=True)
class Difference:
    """Difference from a base that several differences share; a sentence may name the largest of them.

    Attributes:
        name: What differs, for a sentence.
        value: The difference, with the interval and the p-value that hold for all of the differences at once
            (`metrics.differences.with_interval_and_p`), so that they also hold for the largest.
        items: Number of items; None if it is the same for all differences.
        p_unit: `least_p` for the smallest p-value that the draws allow.
    """

    name: str
    value: Estimate
    items: int | None = None
    p_unit: Unit = "p"


def describe_differences(
    differences: Sequence[Difference], corrected: Sequence[float], noun: str, verb: str, than: str = ""
) -> str:
    """Return how many of several differences are significant, and the largest if a sentence may call it so.

    One difference alone is given with its p-value. Differences without a p-value are not counted.

    Args:
        differences: The differences.
        corrected: Their p-values after Holm's correction, in the same order.
        noun: What each difference is of, such as `head`.
        verb: Verb and object, such as `change it`.
        than: What it is compared with, such as ` otherwise than random heads of the same layers`.
    """
    tested = []
    for difference, p in zip(differences, corrected, strict=True):
        if p == p and math.isfinite(difference.value.value):
            tested.append((difference, p))
    if not tested:
        return UNDEFINED
    if len(tested) == 1:
        difference, p = tested[0]
        word, _, rest = verb.partition(" ")
        verb_of_one = f"does not significantly {verb}"
        if p < LEVEL:
            verb_of_one = f"{word}s {rest}".strip()
        return f"{noun} {difference.name} {verb_of_one}{than}: {describe_difference(difference)}"
    significant = sum(p < LEVEL for _, p in tested)
    text = f"{significant or 'none'} of {pluralize(len(tested), noun)} {verb}{than} (p < .05 after Holm)"
    top = largest_difference([difference for difference, _ in tested])
    if top is None:
        return text
    largest = "the largest difference"
    if any(_has_few_items(difference) for difference, _ in tested):
        largest += f" (n ≥ {FEW})"
    return f"{text}; {largest} is that of {top.name}, {describe_difference(top)}"


def describe_difference(difference: Difference) -> str:
    """Return a difference with interval, p-value and number of items."""
    p = None
    if difference.value.p is not None:
        p = Estimate(difference.value.p, unit=difference.p_unit)
    text = format_difference(difference.value, p)
    if difference.items is not None:
        text += f", n = {difference.items:,}"
    return text


def _has_few_items(difference: Difference) -> bool:
    return difference.items is not None and difference.items < FEW


def largest_difference(differences: Sequence[Difference]) -> Difference | None:
    """Return the largest of several differences, of either sign, if a sentence may call it so; else None.

    It must be significant together with all others, over at least `FEW` items, larger than every other difference of
    so many items, and one of at least two.
    """
    candidates = []
    for difference in differences:
        if math.isfinite(difference.value.value) and not _has_few_items(difference):
            candidates.append(difference)
    if len(candidates) < 2:
        return None
    first, second = sorted(candidates, key=lambda difference: -abs(difference.value.value))[:2]
    p = first.value.p
    if p is None or not p < LEVEL:
        return None
    if abs(first.value.value) - abs(second.value.value) <= TIE:
        return None
    return first


def clear_largest(values: Mapping[str, Estimate]) -> str | None:
    """Return the name of the largest of several numbers, if it is clear; else None.

    It is clear if its interval lies above those of all others, and all have one. The intervals should hold for all
    numbers at once.
    """
    finite = {name: score for name, score in values.items() if math.isfinite(score.value)}
    if len(finite) < 2:
        return None
    top = max(finite, key=lambda name: finite[name].value)
    low = finite.pop(top).low
    for other in finite.values():
        if low is None or other.high is None or not low > other.high:
            return None
    return top


def clear_smallest(values: Mapping[str, Estimate]) -> str | None:
    """Return the name of the smallest of several numbers, if it is clear; see `clear_largest`."""
    return clear_largest({name: negate(score) for name, score in values.items()})


def negate(score: Estimate) -> Estimate:
    """Return a number and its interval with the opposite sign."""
    if score.low is None:
        return replace(score, value=-score.value)
    low, high = score.interval
    return replace(score, value=-score.value, low=-high, high=-low)


def fill_sentence(text: str, scores: Mapping[str, Estimate], **words: Estimate | str | int) -> str:
    """Fill numbers and words into a sentence without its full stop, and leave out parts with an undefined number.

    Semicolons divide the parts. `{uas}` is a score as `format_estimate` writes it, `{uas:ratio}` the same with the
    unit `ratio`, `{gain:points}` a score as a difference. `words` are further scores, integers and words.
    """
    values: dict[str, Estimate | str | int] = {**scores, **words}

    def fill(match: re.Match[str]) -> str:
        name, _, unit = match[1].partition(":")
        value = values.get(name, match[0])  # braces of a name stay
        if isinstance(value, int):
            return f"{value:,}"
        if not isinstance(value, Estimate):
            return value
        if unit == "points":
            return format_difference(value)
        return format_estimate(value, "ratio" if unit else None)

    parts = []
    for part in text.split("; "):
        part = re.sub(r"{(.+?)}", fill, part)
        if UNDEFINED not in part:
            parts.append(part)
    sentence = "; ".join(parts) or "no score is defined on these data"
    return f"{sentence[0].upper()}{sentence[1:]}."
