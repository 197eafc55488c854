"""Figures as plain data, checked where they are made; `reports` draws them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from results.result import Unit


@dataclass(frozen=True, eq=False)
class Bars:
    """Grouped bars: one group per category, one bar per series in it.

    Attributes:
        title: Title of the figure.
        categories: Names of the groups, in the order in which they are drawn.
        series: Values `[categories]` per series, in the order of the legend.
        label: What the values are, for the axis.
        intervals: Low and high ends, each `[categories]`, of the series that have them; nan where one has none.
        unit: Of the values; fractions are shown ×100.
        category_label: What the categories are, for the axis.

    Raises:
        ValueError: There is nothing to draw, a length differs from the categories', or an interval has no series.
    """

    title: str
    categories: tuple[str, ...]
    series: Mapping[str, Sequence[float]]
    label: str
    intervals: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    unit: Unit = field(kw_only=True)
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
        unit: Of the values; fractions are shown ×100.
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
    unit: Unit = field(kw_only=True)
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


@dataclass(frozen=True, eq=False)
class Spreads:
    """How values spread: one violin or box per category and series, for instance per bin of maximum attention.

    Attributes:
        title: Title of the figure.
        categories: Names of the groups, in the order in which they are drawn.
        series: Per series the values of each category, `[categories][values]`; a category may be empty, and nan is left
            out.
        label: What the values are, for the axis.
        kind: What is drawn of the values: a violin with the quartiles in it, or a box from quartile to quartile.
        category_label: What the categories are, for the axis.
        rates: Shares `[categories]`, of the series that have them, as bars in a panel of their own; nan where one has
            none. For instance the decisions that never flip, which have no value to spread.
        rate_label: What the shares are, for the axis.
        unit: Of the values; rates are fractions.

    Raises:
        ValueError: There is nothing to draw, a length differs from the categories', rates have no series or are not
            within 0–1, a value is infinite, or the kind is unknown.
    """

    title: str
    categories: tuple[str, ...]
    series: Mapping[str, Sequence[Sequence[float]]]
    label: str
    kind: Literal["violin", "box"] = "violin"
    category_label: str = ""
    rates: Mapping[str, Sequence[float]] = field(default_factory=dict)
    rate_label: str = ""
    unit: Unit = field(kw_only=True)

    def __post_init__(self) -> None:
        """Refuse data that cannot be drawn, here, where the experiment that made it is on the stack."""
        if not self.categories or not self.series:
            raise ValueError(f"spreads {self.title!r} have no categories or no series")
        if self.kind not in ("violin", "box"):
            raise ValueError(f"spreads {self.title!r} are to be drawn as {self.kind!r}: use 'violin' or 'box'")
        strangers = self.rates.keys() - self.series.keys()
        if strangers:
            raise ValueError(f"spreads {self.title!r} have rates without a series: {sorted(strangers)}")
        lengths = {f"series {name!r}": len(groups) for name, groups in self.series.items()}
        lengths |= {f"rates of {name!r}": len(shares) for name, shares in self.rates.items()}
        for what, length in lengths.items():
            if length != len(self.categories):
                raise ValueError(f"spreads {self.title!r}: {what} has {length} categories, not {len(self.categories)}")
        for name, groups in self.series.items():
            for category, values in zip(self.categories, groups, strict=True):
                _refuse_infinite(values, f"spreads {self.title!r}: {category!r} of series {name!r}")
        for name, shares in self.rates.items():
            if not _within(shares, 0.0, 1.0):
                raise ValueError(f"spreads {self.title!r}: rates of {name!r} are not within 0–1: {list(shares)}")


@dataclass(frozen=True, eq=False)
class Curves:
    """Lines and points over two axes; a line and points of one name have one colour.

    Attributes:
        title: Title of the figure.
        x_label: What runs along.
        y_label: What runs upright.
        lines: Coordinates x and y, of equal length, per line, in the order of the legend; nan interrupts a line.
        points: Likewise per set of points; nan is left out.
        log_x: Whether x is drawn on a logarithmic scale.
        x_range: What the x axis reaches at least, however far the data do.
        y_range: What the y axis reaches at least.

    Raises:
        ValueError: There is nothing to draw, x and y differ in length, a coordinate is infinite, x is not positive on
            a logarithmic scale, or a range does not rise.
    """

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    points: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    log_x: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Refuse coordinates that cannot be drawn."""
        if not self.lines and not self.points:
            raise ValueError(f"curves {self.title!r} have no lines and no points")
        for part, name, (x, y) in (
            (part, name, pair)
            for part, pairs in (("line", self.lines), ("points", self.points))
            for name, pair in pairs.items()
        ):
            what = f"curves {self.title!r}: {part} {name!r}"
            if len(x) != len(y):
                raise ValueError(f"{what} has {len(x)} values of x and {len(y)} of y")
            _refuse_infinite((*x, *y), what)
            if self.log_x and not _within(x, np.nextafter(0.0, 1.0), np.inf):
                raise ValueError(f"{what} has an x of {np.nanmin(x)}, which a logarithmic scale has no place for")
        for axis, ends in (("x", self.x_range), ("y", self.y_range)):
            if ends is not None and not (np.isfinite(ends).all() and ends[0] < ends[1]):
                raise ValueError(f"curves {self.title!r}: the {axis} axis cannot run from {ends[0]} to {ends[1]}")
        if self.log_x and self.x_range is not None and self.x_range[0] <= 0:
            raise ValueError(f"curves {self.title!r}: a logarithmic x axis cannot begin at {self.x_range[0]}")


@dataclass(frozen=True, eq=False)
class Histograms:
    """How often values fall into each of some bins of equal width: shares of the values, so that series compare.

    Attributes:
        title: Title of the figure.
        label: What the values are, for the axis.
        series: Values per series, in the order of the legend; nan is left out and does not count.
        low: Where the first bin begins.
        high: Where the last bin ends; it holds this value too.
        bins: Number of bins.

    Raises:
        ValueError: There is no series or no bin, or a value lies outside the bins by more than a rounding error.
    """

    title: str
    label: str
    series: Mapping[str, Sequence[float]]
    low: float
    high: float
    bins: int = 20

    def __post_init__(self) -> None:
        """Refuse values that no bin would count."""
        if not self.series:
            raise ValueError(f"histograms {self.title!r} have no series")
        if not (np.isfinite([self.low, self.high]).all() and self.low < self.high) or self.bins < 1:
            raise ValueError(f"histograms {self.title!r} cannot have {self.bins} bins from {self.low} to {self.high}")
        # A correlation may pass one by a rounding error.
        slack = 1e-6 * (self.high - self.low)
        for name, values in self.series.items():
            if not _within(values, self.low - slack, self.high + slack):
                raise ValueError(
                    f"histograms {self.title!r}: series {name!r} has values from {np.nanmin(values)} to "
                    f"{np.nanmax(values)}, outside {self.low}–{self.high}"
                )


@dataclass(frozen=True, eq=False)
class ColouredText:
    """One text, shown once per row, every word on a background as strong as its value in that row.

    Attributes:
        name: What the text is called: its split and its place there, for instance.
        caption: What the heading says beside: the gold class and the predicted one, for instance.
        words: The words, in the order of the text.
        rows: Values `[words]` per row, for instance attention and gradient. A value counts relative to the mean
            magnitude of its row; values below zero have a colour of their own, nan has none.

    Raises:
        ValueError: There are no words or no rows, a row has not one value per word, or one is infinite.
    """

    name: str
    caption: str
    words: tuple[str, ...]
    rows: Mapping[str, Sequence[float]]

    def __post_init__(self) -> None:
        """Refuse rows that do not fit the words."""
        if not self.words or not self.rows:
            raise ValueError(f"coloured text {self.name!r} has no words or no rows")
        for row, values in self.rows.items():
            if len(values) != len(self.words):
                raise ValueError(
                    f"coloured text {self.name!r}: row {row!r} has {len(values)} values for {len(self.words)} words"
                )
            _refuse_infinite(values, f"coloured text {self.name!r}: row {row!r}")


@dataclass(frozen=True, eq=False)
class ColouredTexts:
    """Example texts in colour, which become one page of HTML.

    Attributes:
        title: Title of the page.
        texts: The texts, in the order in which they are shown.

    Raises:
        ValueError: There are no texts.
    """

    title: str
    texts: tuple[ColouredText, ...]

    def __post_init__(self) -> None:
        """Refuse an empty page."""
        if not self.texts:
            raise ValueError(f"coloured texts {self.title!r} have no texts")


Figure = Bars | HeatMap | AttentionLines | Spreads | Curves | Histograms | ColouredTexts


def _inside(place: tuple[int, int], shape: tuple[int, int]) -> bool:
    return all(0 <= index < length for index, length in zip(place, shape, strict=True))


def _within(values: Sequence[float], low: float, high: float) -> bool:
    """Whether all values that are not nan lie between the ends, both included."""
    array: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    return bool((np.isnan(array) | ((array >= low) & (array <= high))).all())


def _refuse_infinite(values: Iterable[float], what: str) -> None:
    if np.isinf(np.fromiter(values, dtype=np.float64)).any():
        raise ValueError(f"{what} has an infinite value")
