"""The result of an experiment, and the description of its data."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pandas as pd

from attention_probing.results.errors import Item, one_of, pluralize
from attention_probing.results.estimates import ENDS, Estimate, Table, numbers
from attention_probing.results.figures import Figure

if TYPE_CHECKING:
    from attention_probing.results.drawing import Canvas

_FILE_STEM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class Finding:
    """The score that says most of what an experiment finds, for a sentence that compares it with other worlds.

    Attributes:
        score: Name of the score, chosen before the numbers are known: the largest of several scores of a run would be
            larger than the same score of its twins by the choice alone.
        words: What it is, as the beginning of a sentence without its number: `selectivity of the probe`.
        is_difference: True if the score is a difference of two numbers, so that a sentence gives points.
    """

    score: str
    words: str
    is_difference: bool = False


@dataclass(frozen=True, eq=False)
class Result:
    """Result of an experiment.

    The names of tables and figures become file names.

    Attributes:
        experiment: Name of the experiment.
        scores: Estimates by name; nan if a score is undefined.
        tables: Tables by name.
        figures: Figures by name.
        audit: Counts of what was left out or changed, by name.
        items: Frame with one row per test item; None if there is none.
        ratios: Names of two columns of `items`, by name of the score. The score is the sum of the first
            column divided by the sum of the second. Runs on the same items can be compared by such
            scores.
        shares: Names of scores in `ratios` that are shares: the first column counts some of the items that the second
            counts. The intervals of shares of few items are exact.
        headline: Names of the scores that answer the question of the experiment; they are printed first.
        answer: The answer in one sentence, with its numbers, intervals, number of items and comparison; see
            `results.sentences`. It is printed before everything else. Empty if there is none.
        finding: The score by which a null twin is compared; None for the first of the headline, under its name.

    Raises:
        ValueError: A score has no name or is infinite, the name of a table or figure cannot be a file
            name, `ratios` names a score or a column that does not exist, or `headline` or `finding` names a score
            that does not exist.
    """

    experiment: str
    scores: Mapping[str, Estimate]
    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    audit: Mapping[str, object] = field(default_factory=dict)
    items: pd.DataFrame | None = None
    ratios: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    headline: Sequence[str] = ()
    answer: str = ""
    shares: Collection[str] = ()
    finding: Finding | None = None

    def __post_init__(self) -> None:
        self._check_named_scores()
        columns = () if self.items is None else tuple(self.items)
        for name, pair in self.ratios.items():
            if not set(pair) <= set(columns):
                raise ValueError(
                    f"Result {self.experiment!r}: ratios[{name!r}] is {pair}, but must name two columns of `items`"
                )
        for name, score in self.scores.items():
            if not name.strip():
                raise ValueError(f"a score of {self.experiment!r} has an empty name: {score}")
            for end, number in score.columns(name).items():
                if math.isinf(number):
                    raise ValueError(f"the score {end!r} of {self.experiment!r} is infinite")
        for name in (*self.tables, *self.figures):
            if not _FILE_STEM.fullmatch(name):
                raise ValueError(
                    f"{name!r} of {self.experiment!r} cannot be a file name: use only letters, digits and . _ + -"
                )

    def _check_named_scores(self) -> None:
        """Raise ValueError if another part names a score that does not exist."""
        parts: dict[str, Iterable[str]] = {"headline": self.headline, "ratios": self.ratios, "shares": self.shares}
        if self.finding is not None:
            parts["finding"] = [self.finding.score]
        for part, names in parts.items():
            for name in names:
                if name not in self.scores:
                    raise ValueError(f"Result {self.experiment!r}: `{part}` has {name!r}, which is not among `scores`")

    def __repr__(self) -> str:
        return f"<Result {self.experiment}: {self.answer or pluralize(len(self.scores), 'score')}>"

    def _repr_html_(self) -> str:
        # Here, because it draws, which most imports of a Result need not.
        from attention_probing.results.notebook import result_html

        return result_html(self)

    def table(self, name: str) -> pd.DataFrame:
        """Return the rows of a table, with numbers as they were computed: fractions are not ×100.

        Raises:
            KeyError: There is no such table.
        """
        return _find(name, self.tables, "table").frame

    def figure(self, name: str) -> "Canvas":
        """Return a drawing of a figure by matplotlib, which a notebook shows.

        Raises:
            KeyError: There is no such figure.
            TypeError: The figure is a page of coloured texts.
        """
        from attention_probing.results.drawing import draw

        return draw(_find(name, self.figures, "figure"))

    @property
    def numbers(self) -> dict[str, float]:
        """Numbers of all scores by name: `<name>`, `<name>.low`, `.high`, `.sd` and `.p`.

        They are the scores in `results.json`. Numbers that were not computed are left out.
        """
        return numbers(self.scores)


def _find(name: str, items: Mapping[str, Item], kind: str) -> Item:
    if name not in items:
        raise KeyError(f"There is no {kind} {name!r}; give {one_of(name, items)}.")
    return items[name]


def merge_results(experiment: str, results: Mapping[str, Result]) -> Result:
    """Merge several results into one, without their `items` and `ratios`.

    A score, table or figure keeps its name, unless an earlier result has one of the same name; then it
    becomes `<name of the result>.<name>`. A score that is equal to an earlier one of the same
    name is left out. Entries of the audit are always renamed to `<name of the result>.<name>`. The finding is that of
    the first result that has one.

    Args:
        experiment: Name of the merged experiment.
        results: Results by name.
    """
    scores: dict[str, Estimate] = {}
    tables: dict[str, Table] = {}
    figures: dict[str, Figure] = {}
    audit: dict[str, object] = {}
    headline: list[str] = []
    finding: Finding | None = None
    for name, result in results.items():
        new_names: dict[str, str] = {}
        for key, score in result.scores.items():
            if key in scores and _have_equal_numbers(scores[key], score):
                continue
            new_names[key] = free_name(key, name, scores)
            scores[new_names[key]] = score
        headline += [new_names[key] for key in result.headline if key in new_names]
        if finding is None and result.finding is not None:
            score_name = result.finding.score
            finding = replace(result.finding, score=new_names.get(score_name, score_name))
        for key, table in result.tables.items():
            tables[free_name(key, name, tables)] = table
        for key, figure in result.figures.items():
            figures[free_name(key, name, figures)] = figure
        for key, value in result.audit.items():
            audit[f"{name}.{key}"] = value
    answer = " ".join(result.answer for result in results.values() if result.answer)
    return Result(experiment, scores, tables, figures, audit, headline=headline, answer=answer, finding=finding)


def _have_equal_numbers(score: Estimate, other: Estimate) -> bool:
    """Return True if two scores are equal in value, interval, p and unit; undefined numbers are equal."""
    if score.unit != other.unit:
        return False
    for part in ("value", *ENDS):
        number = getattr(score, part)
        other_number = getattr(other, part)
        both_undefined = number != number and other_number != other_number
        if number != other_number and not both_undefined:
            return False
    return True


def free_name(key: str, owner: str, others: Mapping[str, object]) -> str:
    """Return `key`, or `<owner>.<key>` if `others` already has `key`."""
    return f"{owner}.{key}" if key in others else key


@dataclass(frozen=True, eq=False)
class Provenance:
    """Description of the encoder and the data of a run.

    Attributes:
        encoder: Name, weights, layers and heads of the encoder.
        data: File, SHA-256 and number of sentences of each split.
        audit: Counts of what was left out or changed when the data were read and encoded.
    """

    encoder: Mapping[str, object]
    data: Mapping[str, object]
    audit: Mapping[str, object]
