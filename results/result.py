"""The result of an experiment, and the description of its data."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from results.estimates import Estimate, Table, numbers
from results.figures import Figure

_FILE_STEM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, eq=False)
class Result:
    """Result of an experiment. The names of tables and figures become file names.

    Attributes:
        experiment: name of the experiment.
        scores: estimates by name; nan if a score is undefined.
        tables: tables by name.
        figures: figures by name.
        audit: counts of what was left out or changed.
        items: one row per test item, if any.
        ratios: scores that divide the sums of two columns of `items`; runs on the same items are compared by them.
        headline: names of the scores that answer the question of the experiment; they are printed first.

    Raises:
        ValueError: a score has no name or is infinite, the name of a table or figure cannot be a file name, a ratio
            belongs to no score or names no columns of the items, or a headline is no score.
    """

    experiment: str
    scores: Mapping[str, Estimate]
    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    audit: Mapping[str, object] = field(default_factory=dict)
    items: pd.DataFrame | None = None
    ratios: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    headline: Sequence[str] = ()

    def __post_init__(self) -> None:
        if strange := [name for name in self.headline if name not in self.scores]:
            raise ValueError(f"Result {self.experiment!r}: headline must name scores, not {strange}")
        columns = () if self.items is None else tuple(self.items)
        for name, pair in self.ratios.items():
            if name not in self.scores or not set(pair) <= set(columns):
                raise ValueError(
                    f"Result {self.experiment!r}: ratios[{name!r}] is {pair}, but {name!r} must be one of `scores`, "
                    "and the pair two columns of `items`"
                )
        for name, score in self.scores.items():
            if not name.strip():
                raise ValueError(f"a score of {self.experiment!r} has an empty name: {score}")
            for end, number in score.named(name).items():
                if math.isinf(number):
                    raise ValueError(f"the score {end!r} of {self.experiment!r} is infinite")
        for name in (*self.tables, *self.figures):
            if not _FILE_STEM.fullmatch(name):
                raise ValueError(
                    f"{name!r} of {self.experiment!r} cannot be a file name: use only letters, digits and . _ + -"
                )

    @property
    def numbers(self) -> dict[str, float]:
        """Numbers of all scores by name, as in `results.json`."""
        return numbers(self.scores)


def merged(experiment: str, results: Mapping[str, Result]) -> Result:
    """Merge several results into one, without their items.

    A score, table or figure keeps its name unless an earlier result has used it; then it becomes `<name of the
    result>.<name>`, as do all entries of the audit. Equal scores of one name are kept once.

    Args:
        experiment: name of the merged experiment.
        results: results by name.
    """
    scores, tables, figures = dict[str, Estimate](), dict[str, Table](), dict[str, Figure]()
    audit, headline = dict[str, object](), list[str]()
    for name, result in results.items():
        fresh = {key: free_name(key, name, scores) for key, value in result.scores.items() if scores.get(key) != value}
        headline += [fresh[key] for key in result.headline if key in fresh]
        scores |= {known: result.scores[key] for key, known in fresh.items()}
        tables |= {free_name(key, name, tables): table for key, table in result.tables.items()}
        figures |= {free_name(key, name, figures): figure for key, figure in result.figures.items()}
        audit |= {f"{name}.{key}": value for key, value in result.audit.items()}
    return Result(experiment, scores, tables, figures, audit, headline=headline)


def free_name(key: str, owner: str, taken: Mapping[str, object]) -> str:
    """Return `key`, or `<owner>.<key>` if `taken` has it."""
    return f"{owner}.{key}" if key in taken else key


@dataclass(frozen=True, eq=False)
class Provenance:
    """Description of the encoder and the data of a run.

    Attributes:
        encoder: name, weights, layers and heads of the encoder.
        data: file, SHA-256 and number of sentences of each split.
        audit: counts of what was left out or changed when the data were read and encoded.
    """

    encoder: Mapping[str, object]
    data: Mapping[str, object]
    audit: Mapping[str, object]
