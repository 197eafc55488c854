"""What every experiment returns: numbers, frames, and figures as plain data. No drawing and no files here."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from metrics.charts import ColouredTexts, Curves, Histograms, Spreads

_FILE_STEM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, eq=False)
class Bars:
    """Grouped bars: one group per category, one bar per series in it.

    Attributes:
        title: Title of the figure.
        categories: Names of the groups, in the order in which they are drawn.
        series: Values `[categories]` per series, in the order of the legend.
        label: What the values are, for the axis.
        intervals: Low and high ends, each `[categories]`, of the series that have them; nan where one has none.
        percent: Whether the values are fractions, to be shown ×100.
        category_label: What the categories are, for the axis.

    Raises:
        ValueError: There is nothing to draw, a length differs from the categories', or an interval has no series.
    """

    title: str
    categories: tuple[str, ...]
    series: Mapping[str, Sequence[float]]
    label: str
    intervals: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    percent: bool = True
    category_label: str = ""

    def __post_init__(self) -> None:
        """Refuse data that cannot be drawn, here, where the experiment that made it is on the stack."""
        if not self.categories or not self.series:
            raise ValueError(f"bars {self.title!r} have no categories or no series")
        strangers = self.intervals.keys() - self.series.keys()
        if strangers:
            raise ValueError(f"bars {self.title!r} have intervals without a series: {sorted(strangers)}")
        lengths = {f"series {name!r}": len(values) for name, values in self.series.items()}
        for name, (low, high) in self.intervals.items():
            lengths |= {f"low end of {name!r}": len(low), f"high end of {name!r}": len(high)}
        for what, length in lengths.items():
            if length != len(self.categories):
                raise ValueError(f"bars {self.title!r}: {what} has {length} values, not {len(self.categories)}")


@dataclass(frozen=True, eq=False)
class HeatMap:
    """A matrix as colours, for instance layers × heads.

    Attributes:
        title: Title of the figure.
        values: `[rows, columns]`; nan is drawn as missing. The first row is drawn at the top.
        row_labels: Names of the rows.
        column_labels: Names of the columns.
        row_label: What the rows are.
        column_label: What the columns are.
        value_label: What the values are, for the colour bar.
        diverging: Whether zero is the middle of the scale: differences and signed weights.
        percent: Whether the values are fractions, to be shown ×100.
        marked: Row and column, 0-based, of a cell to put a frame around, for instance the best head.
        limits: Values at the ends of the colour scale, in the unit of `values`, so that maps can be compared; None
            takes those of this map. Of a diverging map the larger magnitude counts.

    Raises:
        ValueError: `values` is not a matrix with one row and one column per label, has no cell `marked`, or does not
            lie within the limits.
    """

    title: str
    values: NDArray[np.float64]
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    row_label: str
    column_label: str
    value_label: str
    diverging: bool = False
    percent: bool = False
    marked: tuple[int, int] | None = None
    limits: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Refuse a matrix that its labels do not fit, and a mark beside it."""
        labels = (len(self.row_labels), len(self.column_labels))
        if np.shape(self.values) != labels or 0 in labels:
            raise ValueError(
                f"heat map {self.title!r} has values of shape {np.shape(self.values)} for {labels[0]} row labels and "
                f"{labels[1]} column labels"
            )
        if self.marked is not None and not _inside(self.marked, labels):
            raise ValueError(f"heat map {self.title!r} of shape {labels} has no cell {self.marked} to mark")
        if self.limits is not None:
            low, high = self.limits
            if not (low <= high and (np.isnan(self.values) | ((self.values >= low) & (self.values <= high))).all()):
                raise ValueError(f"heat map {self.title!r} has values that do not lie within {low}–{high}")


def on_one_scale(maps: Mapping[str, HeatMap]) -> Mapping[str, HeatMap]:
    """Give maps of one quantity one scale of colours, from the lowest of all their values to the highest."""
    values = np.concatenate([np.ravel(figure.values) for figure in maps.values()] or [np.empty(0)])
    if np.isnan(values).all():
        return maps
    limits = float(np.nanmin(values)), float(np.nanmax(values))
    return {name: replace(figure, limits=limits) for name, figure in maps.items()}


@dataclass(frozen=True, eq=False)
class AttentionLines:
    """One sentence's attention in one head, as lines between two columns of its words.

    Clark et al. (2019), fig. 5: the words that attend on the left, the words attended to on the right.

    Attributes:
        title: Title of the figure.
        words: The words, from top to bottom; the delimiters are the first and the last, where they are to be shown.
        weights: Attention `[words, words]` from the row's word to the column's, in 0–1.
        arcs: Pairs *from, to* of places in `words`, 0-based, that are gold and stand out in colour. The pair runs as
            the attention does: for a head that attends from dependents to heads it is (dependent, head).
        from_label: What the words on the left are.
        to_label: What the words on the right are.

    Raises:
        ValueError: There are no words, the weights are not one per pair of words or not within 0–1, or an arc leaves
            the sentence.
    """

    title: str
    words: tuple[str, ...]
    weights: NDArray[np.floating]
    arcs: frozenset[tuple[int, int]] = frozenset()
    from_label: str = "from"
    to_label: str = "to"

    def __post_init__(self) -> None:
        """Refuse attention that does not fit the words."""
        size = (len(self.words), len(self.words))
        if not self.words or np.shape(self.weights) != size:
            raise ValueError(
                f"attention lines {self.title!r} have weights of shape {np.shape(self.weights)} for {size[0]} words"
            )
        # Sums over the pieces of a word may pass one by a rounding error; nan is within nothing.
        if not ((self.weights >= 0) & (self.weights <= 1 + 1e-3)).all():
            raise ValueError(
                f"attention lines {self.title!r} have weights from {np.min(self.weights)} to {np.max(self.weights)}, "
                "not within 0–1"
            )
        strays = sorted(arc for arc in self.arcs if not _inside(arc, size))
        if strays:
            raise ValueError(f"attention lines {self.title!r} of {size[0]} words have arcs outside them: {strays}")


Figure = Bars | HeatMap | AttentionLines | Spreads | Curves | Histograms | ColouredTexts


def _inside(place: tuple[int, int], shape: tuple[int, int]) -> bool:
    return all(0 <= index < length for index, length in zip(place, shape, strict=True))


@dataclass(frozen=True, eq=False)
class Result:
    """What an experiment found out.

    Attributes:
        experiment: Name of the experiment.
        scores: Named numbers, fractions in 0–1 unless the name says otherwise; the ends of the 95 % interval of `name`
            are `name.low` and `name.high`. nan where a score is undefined.
        tables: Named frames; the names become file names.
        figures: Named figures; the names become file names.
        audit: What was left out or changed on the way, counted.
        items: One row per test item, when the experiment has such.
        ratios: Scores that are the sum of one column of `items` divided by the sum of another: what two runs on the
            same items are compared by.

    Raises:
        ValueError: A score has no name or is infinite, the name of a table or figure cannot be a file name, or a ratio
            belongs to no score or names no columns of the items.
    """

    experiment: str
    scores: Mapping[str, float]
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    audit: Mapping[str, object] = field(default_factory=dict)
    items: pd.DataFrame | None = None
    ratios: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse names and numbers that could not be written down."""
        columns = () if self.items is None else tuple(self.items)
        for name, pair in self.ratios.items():
            if name not in self.scores or not set(pair) <= set(columns):
                raise ValueError(f"{name!r} of {self.experiment!r} is no score, or {pair} are no columns of its items")
        for name, score in self.scores.items():
            if not name.strip():
                raise ValueError(f"a score of {self.experiment!r} has an empty name: {score}")
            if math.isinf(score):
                raise ValueError(f"the score {name!r} of {self.experiment!r} is infinite")
        for name in (*self.tables, *self.figures):
            if not _FILE_STEM.fullmatch(name):
                raise ValueError(
                    f"{name!r} of {self.experiment!r} cannot be a file name: use letters, digits and any of . _ + -"
                )


@dataclass(frozen=True, eq=False)
class Provenance:
    """What a datamodule says of its inputs.

    Attributes:
        encoder: The pretrained model: name, weights, layers, heads.
        data: The corpus: per split file, hash and number of sentences.
        audit: What was left out or changed while reading and encoding, counted.
    """

    encoder: Mapping[str, object]
    data: Mapping[str, object]
    audit: Mapping[str, object]
