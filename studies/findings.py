"""Published findings, and how each is judged by our numbers."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from attention_probing.commands.sweep_plan import read_sweep
from attention_probing.results import Estimate, Unit, UserError
from attention_probing.results.errors import near
from attention_probing.results.settings import parse_mapping, read_yaml
from studies.numbers import Numbers, row_of

VERDICTS = ("seen", "not seen", "cannot be seen here", "not run")
SEEN, NOT_SEEN, CANNOT, MISSING = VERDICTS
CLOSE, MOST = 0.1, 5.0  # farthest from a published number: this share of it, and in points of the page at most this
_NUMBER = r"-?\d*\.?\d+"
FIXED = re.compile(rf"±|[<>] {_NUMBER}|{_NUMBER} to {_NUMBER}")
"""Condition that names no other number of ours."""
_RULE = re.compile(rf"{FIXED.pattern}|[<>] .+")
_PLACE = re.compile(r"[^@]+@[^\[\]@]+(\[[^\[\]]+\])?")


@dataclass(frozen=True)
class Finding:
    """Published finding, and how it is judged here.

    The place of a number is `ROW@SCORE`, or `ROW@TABLE:COLUMN[KEY=VALUE;KEY=VALUE]` for a cell of a
    table, as in `Record.number`; ROW is a row of the plan. Without `ROW@` it is the row of `ours`.

    Attributes:
        paper: Name of the page of the paper, such as `clark2019`.
        item: Reported quantity.
        source: Table, figure or section of the paper.
        published: The published number or statement.
        of: Model and data of the published number.
        ours: Place of our number.
        minus: Place of a number that is subtracted from ours; both need counts for each item.
        seen: When the finding is seen: `> X` or `< X`, our interval lies above or below X, which is a
            number (fractions are in 0–1) or a place with its interval; `X to Y`, our interval lies between
            two numbers; `±`, our number lies within a tenth of `published`, and within five as printed.
        tested: Place of the difference of our number and the bound by a paired test, if a run has one; its interval
            then decides whether the finding is seen.
        why: Most likely reason if the finding is not seen with the default encoder.
        cannot: Reason why the finding cannot be seen here; then there is no `ours`.
    """

    paper: str
    item: str
    source: str
    published: str | float
    of: str
    ours: str = ""
    minus: str = ""
    seen: str = ""
    tested: str = ""
    why: str = "no reason is known"
    cannot: str = ""

    def places(self) -> list[str]:
        """Return the places of our number, of a number that is subtracted, and of a bound that is no number."""
        places = [self.ours, self.minus]
        if not FIXED.fullmatch(self.seen):
            places.append(self.seen[2:])
        return [self.whole(place) for place in places if place]

    def whole(self, place: str) -> str:
        """Return a place with its row, by default that of our number."""
        return place if "@" in place else f"{row_of(self.ours)}@{place}"

    def bound(self, unit: Unit) -> Estimate:
        """Return the fixed number that ours, of this unit, is compared with, or the interval in which it must lie."""
        if self.seen == "±":
            middle = float(self.published)
            scale = 100 if unit == "fraction" else 1
            reach = min(CLOSE * abs(middle), MOST)
            return Estimate(middle / scale, (middle - reach) / scale, (middle + reach) / scale, unit=unit)
        if unit == "least_p":
            unit = "p"
        first, *last = map(float, re.findall(_NUMBER, self.seen))
        if not last:
            return Estimate(first, unit=unit)
        return Estimate(first, first, last[0], unit=unit)


@dataclass(frozen=True)
class Published:
    """Content of the file of published findings.

    Attributes:
        plan: Path of the plan of the runs, from the folder of the file.
        about: Text at the head of the page.
        differences: Text above the findings on which models differ.
        rule: Text on how a cell is read, and how a finding is judged.
        models: Heading of the column of an encoder; that of the default encoder has the key "".
        instead: Row of the plan that is run in place of another one, by encoder and name of the other.
        findings: The findings, as mappings.
    """

    plan: str
    about: str
    differences: str = ""
    rule: str = ""
    models: dict[str, str] = field(default_factory=dict)
    instead: dict[str, dict[str, str]] = field(default_factory=dict)
    findings: list[dict] = field(default_factory=list)  # type: ignore[type-arg]


def read_published(path: Path) -> tuple[Path, Published, list[Finding]]:
    """Read the published findings; return the path of the plan, the content of the file, and the findings.

    Raises:
        SettingsError: The file cannot be read, or an entry has a missing, unknown, empty or mistyped value.
        UserError: It is not said how a finding is judged, or the plan has no such row.
    """
    content = parse_mapping(Published, read_yaml(path), str(path))
    plan = (path.parent / content.plan).resolve()
    rows = [row.name for row in read_sweep(plan).rows]
    _check_exchanged(content, rows, path)
    findings = []
    for position, entry in enumerate(content.findings, 1):
        where = f"{path}: finding {position} ({entry.get('paper')}: {entry.get('item')})"
        finding = parse_mapping(Finding, entry, where)
        is_judged = bool(_RULE.fullmatch(finding.seen))
        if finding.seen == "±" and isinstance(finding.published, str):
            is_judged = False
        if bool(finding.cannot) == bool(finding.ours) or (finding.ours and not is_judged):
            raise UserError(
                f"{where}: give either `cannot`, or `ours` and `seen`, which is '> X', '< X', 'X to Y', or '±' for a "
                "number as `published`"
            )
        places = finding.places()
        if finding.tested:
            places.append(finding.whole(finding.tested))
        for place in places:
            row = row_of(place)
            if not _PLACE.fullmatch(place):
                form = "write ROW@SCORE or ROW@TABLE:COLUMN[KEY=VALUE]"
                raise UserError(f"{where}: {place!r} is no place of a number: {form}")
            if row not in rows:
                raise UserError(f"{where}: {plan.name} has no row {row!r}{near(row, rows)}, which {place!r} names")
        findings.append(finding)
    return plan, content, findings


def _check_exchanged(content: Published, rows: Sequence[str], path: Path) -> None:
    """Raise UserError if an encoder has a row in place of another, and the plan lacks one of the two."""
    for encoder, instead in content.instead.items():
        for row in [*instead, *instead.values()]:
            if row not in rows:
                raise UserError(f"{path}: `instead`, {encoder}: {content.plan} has no row {row!r}{near(row, rows)}")


class Judgement(NamedTuple):
    """Judgement of a finding on one model.

    Attributes:
        ours: Our number.
        bound: Number that it is compared with.
        verdict: One of `VERDICTS`.
        interval: The interval that decided: of the difference of `ours` and `bound` if the condition is `<` or `>`,
            else of `ours`; nan where nothing was decided.
    """

    ours: Estimate | None
    bound: Estimate | None
    verdict: str
    interval: tuple[float, float] = (math.nan, math.nan)


def judge(finding: Finding, numbers: Numbers) -> Judgement:
    """Judge a finding, which has a place `ours`, by the numbers of one encoder.

    Raises:
        UserError: The results have no such number.
    """
    places = finding.places()
    number_of_ours = 2 if finding.minus else 1
    others = places[number_of_ours:]
    ours = numbers.at(*places[:number_of_ours])
    bound = numbers.at(*others) if others else None
    if ours is None or (others and bound is None):
        return Judgement(ours, bound, MISSING)
    if bound is None:
        bound = finding.bound(ours.unit)
    if math.isnan(ours.value) or math.isnan(bound.value):
        return Judgement(ours, bound, CANNOT)
    tested = None
    if finding.tested:
        tested = numbers.at(finding.whole(finding.tested))
    elif others and not finding.minus:
        tested = numbers.paired(*places)
    differences = []
    if tested is not None:
        differences.append(tested)
    if finding.minus:
        differences.append(ours)
    for difference in differences:
        if difference.low is None or math.isnan(difference.low):
            return Judgement(ours, bound, CANNOT)  # over too few items for an interval
    interval = _deciding_interval(finding, ours, bound, tested)
    is_seen = _is_seen(finding, ours, bound, interval)
    return Judgement(ours, bound, SEEN if is_seen else NOT_SEEN, interval)


def _deciding_interval(
    finding: Finding, ours: Estimate, bound: Estimate, tested: Estimate | None
) -> tuple[float, float]:
    """Return the interval that decides; `tested` is the paired difference of our number and the bound, if known."""
    if tested is not None:
        return interval_of(tested)
    low, high = interval_of(ours)
    if finding.seen[0] not in "<>":
        return low, high
    least, most = interval_of(bound)
    return low - most, high - least


def _is_seen(finding: Finding, ours: Estimate, bound: Estimate, interval: tuple[float, float]) -> bool:
    """Return True if the deciding interval lies where the finding says; of a plain score (±) only the number counts."""
    low, high = interval
    if finding.seen[0] == ">":
        return low > 0
    if finding.seen[0] == "<":
        return high < 0
    least, most = interval_of(bound)
    if finding.seen == "±":
        return least <= ours.value <= most
    return least <= low and high <= most


def interval_of(one: Estimate) -> tuple[float, float]:
    """Return the interval of a number; a number without an interval is exact."""
    low, high = one.low, one.high
    if low is None or math.isnan(low):
        low = one.value
    if high is None or math.isnan(high):
        high = one.value
    return low, high
