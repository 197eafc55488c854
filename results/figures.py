"""Figures as plain data, checked where they are made; `reports` draws them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from results.result import Unit


@dataclass(frozen=True, eq=False)
class Bars:
    """Grouped bars: one group per category, one bar per series in it, in the order in which they are drawn.

    Attributes:
        series: Values `[categories]` per series.
        intervals: Low and high ends, each `[categories]`, of the series that have them; nan where there is none.
        unit: Unit of the values; fractions are shown ×100.

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
        lengths = {f"series {name!r}": len(values) for name, values in self.series.items()}
        for name, (low, high) in self.intervals.items():
            lengths |= {f"low end of {name!r}": len(low), f"high end of {name!r}": len(high)}
        _check_groups(f"bars {self.title!r}", self.categories, self.series, {"intervals": self.intervals}, lengths)


@dataclass(frozen=True, eq=False)
class HeatMap:
    """A matrix as colours, for instance layers × heads.

    Attributes:
        values: `[rows, columns]`; nan is drawn as missing. The first row is drawn at the top.
        row_labels: Names of the single rows; `row_label` is that of the axis, as for columns.
        value_label: Label of the colour bar.
        diverging: Whether zero is the middle of the scale: differences and signed weights.
        unit: Unit of the values; fractions are shown ×100.
        marked: Row and column, 0-based, of a framed cell, for instance the best head.
        limits: Values at the ends of the colour scale, in the unit of `values`; None takes those of this map. A
            diverging map uses the larger magnitude.

    Raises:
        ValueError: Shapes do not fit, there is no cell `marked`, or a value lies outside the limits.
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
        labels = (len(self.row_labels), len(self.column_labels))
        if np.shape(self.values) != labels or 0 in labels:
            raise ValueError(
                f"heat map {self.title!r} has values of shape {np.shape(self.values)} for {labels[0]} row labels and "
                f"{labels[1]} column labels"
            )
        if self.marked is not None and self.marked not in np.ndindex(labels):
            raise ValueError(f"heat map {self.title!r} of shape {labels} has no cell {self.marked} to mark")
        if self.limits is not None and not (self.limits[0] <= self.limits[1] and _within(self.values, *self.limits)):
            raise ValueError(f"heat map {self.title!r} has values that do not lie within {self.limits}")


def on_one_scale(maps: Mapping[str, HeatMap]) -> Mapping[str, HeatMap]:
    """Give maps of one quantity a common colour scale, from the lowest to the highest of their values."""
    values = np.concatenate([np.ravel(figure.values) for figure in maps.values()] or [np.empty(0)])
    if np.isnan(values).all():
        return maps
    limits = float(np.nanmin(values)), float(np.nanmax(values))
    return {name: replace(figure, limits=limits) for name, figure in maps.items()}


@dataclass(frozen=True, eq=False)
class AttentionLines:
    """Attention of one head in one sentence, as lines between two columns of its words (Clark et al. 2019, fig. 5).

    Attributes:
        words: The words, from top to bottom, with the delimiters where they are to be shown.
        weights: Attention `[words, words]` from the row's word to the column's, in 0–1.
        arcs: Gold pairs (from, to) of 0-based positions in `words`, shown in colour. For a head that attends from
            dependents to heads a pair is (dependent, head).
        from_label: Label of the words on the left, which attend; `to_label` is on the right.

    Raises:
        ValueError: The weights do not fit the words or are not within 0–1, or an arc leaves the sentence.
    """

    title: str
    words: tuple[str, ...]
    weights: NDArray[np.floating]
    arcs: frozenset[tuple[int, int]] = frozenset()
    from_label: str = "from"
    to_label: str = "to"

    def __post_init__(self) -> None:
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
        strays = sorted(set(self.arcs) - set(np.ndindex(size)))
        if strays:
            raise ValueError(f"attention lines {self.title!r} of {size[0]} words have arcs outside them: {strays}")


@dataclass(frozen=True, eq=False)
class Spreads:
    """Distributions of values: one violin or box per category and series, for instance per bin of maximum attention.

    Attributes:
        series: Per series the values of each category, `[categories][values]`; may be empty; nan is ignored.
        kind: A violin with its quartiles, or a box from quartile to quartile.
        rates: Shares `[categories]` of the series that have them, as bars in a second panel; nan where there is none.
            For instance the share of decisions that never flip.
        unit: Of the values; rates are fractions.

    Raises:
        ValueError: Parts do not fit each other, rates are not within 0–1, or a value is infinite.
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
        what = f"spreads {self.title!r}"
        if self.kind not in ("violin", "box"):
            raise ValueError(f"{what} are to be drawn as {self.kind!r}: use 'violin' or 'box'")
        lengths = {f"series {name!r}": len(groups) for name, groups in self.series.items()}
        lengths |= {f"rates of {name!r}": len(shares) for name, shares in self.rates.items()}
        _check_groups(what, self.categories, self.series, {"rates": self.rates}, lengths)
        for name, groups in self.series.items():
            for category, values in zip(self.categories, groups, strict=True):
                _refuse_infinite(values, f"{what}: {category!r} of series {name!r}")
        for name, shares in self.rates.items():
            if not _within(shares, 0.0, 1.0):
                raise ValueError(f"{what}: rates of {name!r} are not within 0–1: {list(shares)}")


@dataclass(frozen=True, eq=False)
class Curves:
    """Lines and points over two axes; a line and points of one name have one colour.

    Attributes:
        lines: Coordinates x and y, of equal length, per line, in the order of the legend; nan interrupts a line.
        points: Coordinates per set of points; nan is ignored.
        x_range: Range that the x axis covers at least; `y_range` likewise.

    Raises:
        ValueError: x and y differ in length, a coordinate or a range cannot be drawn, or there is nothing to draw.
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
        if not self.lines and not self.points:
            raise ValueError(f"curves {self.title!r} have no lines and no points")
        drawn = {f"line {name!r}": pair for name, pair in self.lines.items()}
        drawn |= {f"points {name!r}": pair for name, pair in self.points.items()}
        for name, (x, y) in drawn.items():
            what = f"curves {self.title!r}: {name}"
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
    """Share of the values of each series in bins of equal width.

    Attributes:
        series: Values per series, in the order of the legend; nan is ignored.
        low: Start of the first of the `bins`.
        high: End of the last, included.

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
    """One text, shown once per row, with words coloured by their values in that row.

    Attributes:
        name: For instance its split and index.
        caption: Text of the heading after the name, for instance the gold and the predicted class.
        rows: Values `[words]` per row, for instance attention and gradient, coloured relative to the mean magnitude of
            the row; values below zero have another colour, nan has none.

    Raises:
        ValueError: There are no words or no rows, a row does not have one value per word, or a value is infinite.
    """

    name: str
    caption: str
    words: tuple[str, ...]
    rows: Mapping[str, Sequence[float]]

    def __post_init__(self) -> None:
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
    """Example texts in colour, which become one page of HTML; ValueError where there are none."""

    title: str
    texts: tuple[ColouredText, ...]

    def __post_init__(self) -> None:
        if not self.texts:
            raise ValueError(f"coloured texts {self.title!r} have no texts")


@dataclass(frozen=True, eq=False)
class Maps:
    """Square matrices as small pictures in a grid, on one colour scale from zero: for instance layers × heads.

    Attributes:
        maps: `[rows][columns]` matrices `[size, size]` of any sizes; None leaves a place empty. The first row of a
            matrix is drawn at the top.
        row_labels: Names of the single rows; `row_label` is that of the axis, as for columns.
        value_label: Label of the colour bar.
        names: Captions of the single pictures, `[rows][columns]`; empty without any.
        top: Value at the end of the colour scale, which larger ones share; None takes the largest of all.
        unit: Unit of the values; fractions are shown ×100.

    Raises:
        ValueError: There is nothing to draw, shapes do not fit, a matrix is not square, or a value is below zero,
            infinite or nan.
    """

    title: str
    maps: Sequence[Sequence[NDArray[np.floating] | None]]
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    row_label: str
    column_label: str
    value_label: str
    names: Sequence[Sequence[str]] = ()
    top: float | None = None
    unit: Unit = field(kw_only=True)

    def __post_init__(self) -> None:
        what = f"maps {self.title!r}"
        _check_grid(what, self.maps, self.row_labels, self.column_labels)
        if self.names:
            _check_grid(f"{what}: names", self.names, self.row_labels, self.column_labels)
        drawn = [one for row in self.maps for one in row if one is not None]
        if not drawn or not (self.top is None or 0 < self.top < np.inf):
            raise ValueError(f"{what} have no matrix, or a scale that ends at {self.top}")
        for one in drawn:
            if one.ndim != 2 or one.shape[0] != one.shape[1] or not one.size:
                raise ValueError(f"{what} have a matrix of shape {one.shape}, not square")
            if not ((one >= 0) & np.isfinite(one)).all():
                raise ValueError(f"{what} have values from {np.min(one)} to {np.max(one)}, not from zero on")


@dataclass(frozen=True, eq=False)
class Categories:
    """A grid whose cells belong to categories, for instance the role of each head, as colours and letters.

    Attributes:
        cells: Category of each cell, `[rows][columns]`; None is drawn empty. The first row is drawn at the top.
        glyphs: One or two letters for each category, in the order of the legend; no two are equal.
        row_labels: Names of the single rows; `row_label` is that of the axis, as for columns.

    Raises:
        ValueError: Shapes do not fit, a cell has no known category, there are more than `MOST` categories, or a glyph
            is not one or two letters of its own.
    """

    MOST: ClassVar[int] = 10

    title: str
    cells: Sequence[Sequence[str | None]]
    glyphs: Mapping[str, str]
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    row_label: str
    column_label: str

    def __post_init__(self) -> None:
        what = f"categories {self.title!r}"
        _check_grid(what, self.cells, self.row_labels, self.column_labels)
        glyphs = list(self.glyphs.values())
        if not 0 < len(glyphs) <= self.MOST or len(set(glyphs)) < len(glyphs) or {*map(len, glyphs)} - {1, 2}:
            raise ValueError(f"{what} have glyphs {glyphs}: give each of 1–{self.MOST} categories its own 1–2 letters")
        if strange := {cell for row in self.cells for cell in row if cell is not None} - self.glyphs.keys():
            raise ValueError(f"{what} have cells of categories without a glyph: {sorted(strange)}")


@dataclass(frozen=True, eq=False)
class Scatter:
    """Points on a plane of which distances alone mean something, for instance heads by multidimensional scaling.

    Attributes:
        points: Both coordinates of each point, `[points, 2]`.
        groups: Group of each point, which has a colour; groups are in the order in which they come.
        group_label: What groups are, for instance layers.
        ordered: Whether the groups are steps of a scale: their colours are then from light to dark.

    Raises:
        ValueError: There are no points, shapes do not fit, or a coordinate is infinite or nan.
    """

    title: str
    points: NDArray[np.floating]
    groups: Sequence[str]
    group_label: str
    ordered: bool = False

    def __post_init__(self) -> None:
        if not len(self.groups) or np.shape(self.points) != (len(self.groups), 2):
            raise ValueError(
                f"scatter {self.title!r} has points of shape {np.shape(self.points)} for {len(self.groups)} groups"
            )
        if not np.isfinite(self.points).all():
            raise ValueError(f"scatter {self.title!r} has points that are not finite")


Figure = Bars | HeatMap | Maps | Categories | Scatter | AttentionLines | Spreads | Curves | Histograms | ColouredTexts


def _check_grid(what: str, grid: Sequence[Sequence[object]], rows: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse a grid that is empty or has other sizes than its labels."""
    if not rows or not columns or [len(row) for row in grid] != [len(columns)] * len(rows):
        raise ValueError(
            f"{what} have rows of lengths {[len(row) for row in grid]} for {len(rows)} row labels and {len(columns)} "
            "column labels"
        )


def _check_groups(
    what: str,
    categories: Sequence[str],
    series: Mapping[str, object],
    additions: Mapping[str, Mapping[str, object]],
    lengths: Mapping[str, int],
) -> None:
    """Refuse a figure without data, additions to series that are not there, and lengths other than the categories'."""
    if not categories or not series:
        raise ValueError(f"{what} have no categories or no series")
    for name, added in additions.items():
        if unknown := sorted(added.keys() - series.keys()):
            raise ValueError(f"{what} have {name} without a series: {unknown}")
    for part, length in lengths.items():
        if length != len(categories):
            raise ValueError(f"{what}: {part} has length {length}, but there are {len(categories)} categories")


def _within(values: ArrayLike, low: float, high: float) -> bool:
    """Whether all values that are not nan lie between the ends, both included."""
    array: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    return bool((np.isnan(array) | ((array >= low) & (array <= high))).all())


def _refuse_infinite(values: Iterable[float], what: str) -> None:
    if np.isinf(np.fromiter(values, dtype=np.float64)).any():
        raise ValueError(f"{what} has an infinite value")
