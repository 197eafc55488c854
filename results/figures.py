"""Figures as plain data, checked when they are created; `results.drawing` draws them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from results.estimates import Table, Unit

MOST = 100_000
"""Largest number of rows in the numbers of a figure; a grid of raw maps has millions of weights."""

_Rows = Iterable[tuple[object, ...]]


@dataclass(frozen=True, eq=False)
class Figure(ABC):
    """Base class of figures: the numbers and labels of a figure, which `results.drawing` draws.

    Attributes:
        title: Title, which is also the caption.
    """

    title: str

    def data(self) -> Table | None:
        """Return the numbers of this figure as a table, one row per bar, cell, point or word.

        The result is None if there are more than 100,000 rows (`MOST`).
        """
        units, rows = self._numbers()
        found = list(islice(rows, MOST + 1))
        if len(found) > MOST:
            return None
        known = {name: unit for name, unit in units.items() if unit is not None}
        frame = pd.DataFrame(found, columns=list(units))
        return Table(frame.astype(dict.fromkeys(known, np.float64)), known)

    @abstractmethod
    def _numbers(self) -> tuple[Mapping[str, Unit | None], _Rows]:
        """Return the columns with the units of those that have one, and the rows in the order of the drawing."""


@dataclass(frozen=True, eq=False)
class Bars(Figure):
    """Bar chart with groups of bars: one group per category, and in it one bar per series.

    Groups and bars are drawn in the given order.

    Attributes:
        categories: Names of the groups.
        series: Heights of the bars, `[categories]`, by name of the series.
        label: Label of the axis of the values.
        intervals: Low and high ends of the intervals, each `[categories]`, by name of the series; nan for
            no interval. Not every series needs intervals.
        unit: Unit of the values; fractions are shown ×100.
        category_label: Label of the axis of the categories.

    Raises:
        ValueError: There is nothing to draw, a series or an interval does not have one value per category,
            or an interval has no series.
    """

    categories: tuple[str, ...]
    series: Mapping[str, Sequence[float]]
    label: str
    intervals: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    unit: Unit = field(kw_only=True)
    category_label: str = ""

    def __post_init__(self) -> None:
        ends = {
            f"{end} end of {name!r}": values
            for name, pair in self.intervals.items()
            for end, values in zip(("low", "high"), pair, strict=True)
        }
        _check_groups(self, self.categories, self.series, self.intervals, ends)

    @classmethod
    def from_table(
        cls,
        title: str,
        table: Table,
        category: str,
        series: Mapping[str, str],
        label: str,
        category_label: str = "",
    ) -> Self:
        """Create bars from columns of a table, with their intervals: a group per row, a bar per column.

        Args:
            title: Title of the figure.
            table: The table.
            category: Column with the names of the groups.
            series: Column with the heights of the bars, by name of the series.
            label: Label of the axis of the values.
            category_label: Label of the axis of the categories.

        Raises:
            ValueError: The heights have several units, or there are none.
        """
        frame, units = table.frame, table.unit_rows()
        ends = {name: table.intervals().get(column) for name, column in series.items()}
        found = sorted({unit for column in series.values() for unit in units.get(column, ())})
        if len(found) != 1:
            raise ValueError(f"The bars of {title!r} must have one unit, not {found}.")
        return cls(
            title,
            tuple(frame[category].astype(str)),
            {name: frame[column].tolist() for name, column in series.items()},
            label,
            {name: (frame[pair[0]].tolist(), frame[pair[1]].tolist()) for name, pair in ends.items() if pair},
            unit=found[0],
            category_label=category_label,
        )

    def _numbers(self) -> tuple[Mapping[str, Unit | None], _Rows]:
        columns: dict[str, Unit | None] = {"category": None, "series": None, "value": self.unit}
        missing = [math.nan] * len(self.categories)
        ends = {name: self.intervals.get(name, (missing, missing)) if self.intervals else () for name in self.series}
        rows = (
            (category, name, *numbers)
            for name, values in self.series.items()
            for category, *numbers in zip(self.categories, values, *ends[name], strict=True)
        )
        return columns | ({"value.low": None, "value.high": None} if self.intervals else {}), rows


@dataclass(frozen=True, eq=False)
class HeatMap(Figure):
    """Matrix drawn as colours, for instance layers × heads.

    Attributes:
        values: The matrix, `[rows, columns]`; nan is drawn as missing. The first row is drawn at the top.
        row_labels: Name of each row.
        column_labels: Name of each column.
        row_label: Label of the axis of the rows.
        column_label: Label of the axis of the columns.
        value_label: Label of the colour bar.
        diverging: True if zero is the middle of the colour scale, as for differences and signed weights.
        unit: Unit of the values; fractions are shown ×100.
        marked: Row and column, 0-based, of a framed cell, for instance the best head.
        limits: Values at the ends of the colour scale, in the unit of `values`; None takes the lowest and
            highest value of this map. The scale of a diverging map goes from −x to x, where x is the larger
            magnitude of the two limits.
        glyphs: For a map of categories, one or two letters by name of the category; `values` are then
            indices of these categories. A cell shows its letters, and a legend replaces the colour bar. See
            `from_categories`.

    Raises:
        ValueError: Shapes do not fit, the `marked` cell does not exist, a value lies outside the limits, or
            the glyphs are not distinct, or not one or two letters.
    """

    MOST_CATEGORIES: ClassVar[int] = 10

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
    glyphs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape, labels = np.shape(self.values), (len(self.row_labels), len(self.column_labels))
        glyphs, most = list(self.glyphs.values()), self.MOST_CATEGORIES
        fits = shape == labels and 0 not in shape
        wrong = len(glyphs) > most or len({*glyphs}) < len(glyphs) or {*map(len, glyphs)} - {1, 2}
        faults = {
            f"values of shape {shape} for {labels[0]} row labels and {labels[1]} column labels": not fits,
            f"no cell {self.marked} to mark in {labels}": self.marked not in (None, *np.ndindex(labels)),
            f"values outside {self.limits}": self.limits and not _within(self.values, *self.limits),
            f"glyphs {glyphs}: give each of at most {most} categories its own 1–2 letters": wrong,
        }
        _refuse(self, self.title, faults)

    @classmethod
    def from_categories(
        cls,
        title: str,
        cells: Sequence[Sequence[str | None]],
        glyphs: Mapping[str, str],
        row_labels: Sequence[str],
        column_labels: Sequence[str],
        row_label: str,
        column_label: str,
    ) -> Self:
        """Create a heat map of categories, for instance the role of each head.

        Args:
            title: Title of the figure.
            cells: Category of each cell, `[rows][columns]`; None for an empty cell.
            glyphs: One or two letters per category.
            row_labels: Name of each row.
            column_labels: Name of each column.
            row_label: Label of the axis of the rows.
            column_label: Label of the axis of the columns.

        Raises:
            ValueError: A category has no glyph, or the heat map cannot be drawn.
        """
        if strange := {cell for row in cells for cell in row if cell is not None} - glyphs.keys():
            raise ValueError(f"HeatMap {title!r}: categories without a glyph: {sorted(strange)}")
        places = {name: float(place) for place, name in enumerate(glyphs)}
        values = np.array([[math.nan if cell is None else places[cell] for cell in row] for row in cells])
        labels = (row_labels, column_labels, row_label, column_label, "category")
        return cls(title, values, *labels, unit="count", glyphs=glyphs)

    def _numbers(self) -> tuple[Mapping[str, Unit | None], _Rows]:
        names = _axes(self.row_label, self.column_label)
        values = np.asarray(self.values, dtype=np.float64).ravel().tolist()
        categories: Mapping[float, str] = dict(enumerate(self.glyphs))
        cells = product(self.row_labels, self.column_labels)
        rows = (
            (*cell, categories.get(value) if categories else value) for cell, value in zip(cells, values, strict=True)
        )
        return {**names, **({"category": None} if self.glyphs else {"value": self.unit})}, rows


def on_one_scale(maps: Mapping[str, HeatMap]) -> Mapping[str, HeatMap]:
    """Return the given heat maps with a common colour scale.

    The scale goes from the lowest to the highest value of all maps, which must show the same quantity.
    If no map has a value, the maps are returned unchanged.

    Args:
        maps: Heat maps by name.
    """
    values = np.concatenate([np.ravel(figure.values) for figure in maps.values()] or [np.empty(0)])
    if np.isnan(values).all():
        return maps
    limits = float(np.nanmin(values)), float(np.nanmax(values))
    return {name: replace(figure, limits=limits) for name, figure in maps.items()}


@dataclass(frozen=True, eq=False)
class Maps(Figure):
    """Grid of square matrices drawn as small pictures, for instance one attention map for each layer and head.

    All pictures share one colour scale, which begins at zero.

    Attributes:
        maps: Matrices `[size, size]` in rows and columns of the grid; sizes may differ, and None leaves a
            cell of the grid empty. The first row of a matrix is drawn at the top.
        row_labels: Name of each row of the grid.
        column_labels: Name of each column of the grid.
        row_label: Label of the axis of the rows.
        column_label: Label of the axis of the columns.
        value_label: Label of the colour bar.
        names: Captions of the pictures, `[rows][columns]`; empty for none.
        top: Value at the end of the colour scale; larger values have the same colour. None takes the
            largest value.
        unit: Unit of the values; fractions are shown ×100.

    Raises:
        ValueError: There is nothing to draw, shapes do not fit, a matrix is not square, or a value is below
            zero, infinite or nan.
    """

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
        labels = len(self.row_labels), len(self.column_labels)
        shapes = [(len(grid), *{*map(len, grid)}) for grid in (self.maps, self.names) if len(grid)]
        drawn = [one for row in self.maps for one in row if one is not None]
        faults = {
            f"rows and columns {shapes} for {labels} labels": shapes[:1] != [labels] or {*shapes} != {labels},
            "no matrix": not drawn,
            f"a scale that ends at {self.top}": self.top is not None and not 0 < self.top < np.inf,
            "a matrix that is not square": any(one.ndim != 2 or len({*one.shape, 0}) != 2 for one in drawn),
            "values that are not finite, or below zero": not all(_within(one, 0, np.inf, nan=False) for one in drawn),
        }
        _refuse(self, self.title, faults)

    def _numbers(self) -> tuple[Mapping[str, Unit | None], _Rows]:
        rows = (
            (row, column, one + 1, two + 1, float(value))
            for row, maps in zip(self.row_labels, self.maps, strict=True)
            for column, matrix in zip(self.column_labels, maps, strict=True)
            if matrix is not None
            for (one, two), value in np.ndenumerate(matrix)
        )
        return {**_axes(self.row_label, self.column_label), "from": None, "to": None, "value": self.unit}, rows


@dataclass(frozen=True, eq=False)
class AttentionLines(Figure):
    """Attention of one head in one sentence, drawn as lines between its words (Clark et al. 2019, Fig. 5).

    The words stand in two columns, and a line goes from the word that attends to the word that is attended
    to.

    Attributes:
        words: The words, from top to bottom, with the delimiters if they are to be shown.
        weights: Attention `[words, words]`, from × to, between 0 and 1.
        arcs: Pairs (from, to) of 0-based positions in `words` whose lines are coloured, for instance gold
            arcs. For a head that attends from dependents to their syntactic heads, a pair is (dependent,
            head).
        from_label: Label of the words on the left, which attend.
        to_label: Label of the words on the right, which are attended to.

    Raises:
        ValueError: The weights do not fit the words or are not between 0 and 1, or an arc leaves the
            sentence.
    """

    words: tuple[str, ...]
    weights: NDArray[np.floating]
    arcs: frozenset[tuple[int, int]] = frozenset()
    from_label: str = "from"
    to_label: str = "to"

    def __post_init__(self) -> None:
        shape, words = np.shape(self.weights), len(self.words)
        strays = sorted({*self.arcs} - {*np.ndindex(words, words)})
        faults: dict[str, object] = {
            f"weights of shape {shape} for {words} words": shape != (words, words) or not words,
            # Sums over the pieces of a word may exceed one by a rounding error.
            "weights outside 0–1": not _within(self.weights, 0, 1 + 1e-3, nan=False),
            f"arcs outside the {words} words: {strays}": strays,
        }
        _refuse(self, self.title, faults)

    def _numbers(self) -> tuple[Mapping[str, Unit | None], _Rows]:
        rows = (
            (one + 1, self.words[one], two + 1, self.words[two], float(weight), (one, two) in self.arcs)
            for (one, two), weight in np.ndenumerate(self.weights)
        )
        names: dict[str, Unit | None] = dict.fromkeys(("from", "from.word", "to", "to.word"))
        return {**names, "attention": "fraction", "gold": None}, rows


@dataclass(frozen=True, eq=False)
class Spreads(Figure):
    """Distributions of values drawn as violins: one per category and series, for instance per bin of maximum attention.

    Attributes:
        categories: Names of the categories.
        series: Values in each category, `[categories][values]`, by name of the series; may be empty; nan is
            ignored.
        label: Label of the axis of the values.
        category_label: Label of the axis of the categories.
        rates: Shares `[categories]` by name of the series, shown as bars in a second panel, for instance
            the share of decisions that never flip; nan for no bar.
        rate_label: Label of the axis of the shares.
        unit: Unit of the values; the shares are fractions.

    Raises:
        ValueError: Values or shares do not fit the categories, a share is not between 0 and 1, or a value
            is infinite.
    """

    categories: tuple[str, ...]
    series: Mapping[str, Sequence[Sequence[float]]]
    label: str
    category_label: str = ""
    rates: Mapping[str, Sequence[float]] = field(default_factory=dict)
    rate_label: str = ""
    unit: Unit = field(kw_only=True)

    def __post_init__(self) -> None:
        rates = {f"rates of {name!r}": shares for name, shares in self.rates.items()}
        _check_groups(self, self.categories, self.series, self.rates, rates)
        values = [value for groups in self.series.values() for group in groups for value in group]
        faults: dict[str, object] = {f"{name} outside 0–1": not _within(one, 0, 1) for name, one in rates.items()}
        _refuse(self, self.title, faults | {"an infinite value": np.isinf(values).any()})

    def _numbers(self) -> tuple[Mapping[str, Unit | None], _Rows]:
        columns: dict[str, Unit | None] = {"category": None, "series": None, "value": self.unit}
        empty = [math.nan] if self.rates else []
        values: list[tuple[object, ...]] = [
            (category, name, value, *empty)
            for name, groups in self.series.items()
            for category, values in zip(self.categories, groups, strict=True)
            for value in values
        ]
        rates = [
            (category, name, math.nan, rate)
            for name, shares in self.rates.items()
            for category, rate in zip(self.categories, shares, strict=True)
        ]
        return columns | ({"rate": "fraction"} if self.rates else {}), [*values, *rates]


@dataclass(frozen=True, eq=False)
class Curves(Figure):
    """Lines and points in a coordinate system; lines and points with the same name have the same colour.

    Attributes:
        x_label: Label of the x axis.
        y_label: Label of the y axis.
        lines: The x and y coordinates of each line, of equal length, by name in the order of the legend;
            nan interrupts a line.
        points: The x and y coordinates of each set of points, by name; nan is ignored.
        log_x: True to draw the x axis on a logarithmic scale.
        y_range: Range that the y axis covers at least.
        plane: True if only distances have a meaning, as after multidimensional scaling: there are no ticks,
            and both axes have the same scale.
        bar_label: Label of a colour bar that replaces the legend; given if the names are steps of a scale,
            such as layers.

    Raises:
        ValueError: X and y differ in length, a coordinate or a range cannot be drawn, or there is nothing
            to draw.
    """

    x_label: str
    y_label: str
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    points: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    log_x: bool = False
    y_range: tuple[float, float] | None = None
    plane: bool = False
    bar_label: str = ""

    def __post_init__(self) -> None:
        drawn = {f"line {name!r}": pair for name, pair in self.lines.items()}
        drawn |= {f"points {name!r}": pair for name, pair in self.points.items()}
        faults: dict[str, object] = {"no lines and no points": not drawn}
        for name, (x, y) in drawn.items():
            faults |= {
                f"{name}: {len(x)} values of x and {len(y)} of y": len(x) != len(y),
                f"{name}: an infinite value": np.isinf([*x, *y]).any(),
                f"{name}: a logarithmic scale needs x > 0": self.log_x and not _within(x, 5e-324, np.inf),
            }
        low, high = self.y_range or (0.0, 1.0)
        faults["a y axis without two finite ends"] = not (np.isfinite([low, high]).all() and low < high)
        _refuse(self, self.title, faults)

    def _numbers(self) -> tuple[Mapping[str, Unit | None], _Rows]:
        rows = (
            (kind, name, x, y)
            for kind, sets in (("line", self.lines), ("point", self.points))
            for name, pair in sets.items()
            for x, y in zip(*pair, strict=True)
        )
        return {"kind": None, "series": None, "x": "ratio", "y": "ratio"}, rows


@dataclass(frozen=True, eq=False)
class ColouredText:
    """Text whose words are coloured by several quantities; it is shown once for each of them.

    Attributes:
        name: Name of the text, for instance its split and index.
        caption: Text of the heading after the name, for instance the gold and the predicted class.
        words: The words.
        rows: Values of the words, `[words]`, by name of the quantity, for instance attention and gradient.
            The colour of a value is relative to the mean magnitude of its quantity in this text; values
            below zero have another colour, nan has none.

    Raises:
        ValueError: There are no words or no rows, a row does not have one value per word, or a value is
            infinite.
    """

    name: str
    caption: str
    words: tuple[str, ...]
    rows: Mapping[str, Sequence[float]]

    def __post_init__(self) -> None:
        faults: dict[str, object] = {"no words or no rows": not self.words or not self.rows}
        for row, values in self.rows.items():
            faults[f"row {row!r} has {len(values)} values for {len(self.words)} words"] = len(values) != len(self.words)
            faults[f"row {row!r} has an infinite value"] = np.isinf(values).any()
        _refuse(self, self.name, faults)


@dataclass(frozen=True, eq=False)
class ColouredTexts(Figure):
    """Example texts in colour, which become one page of HTML.

    Attributes:
        texts: The texts.

    Raises:
        ValueError: There is no text.
    """

    texts: tuple[ColouredText, ...]

    def __post_init__(self) -> None:
        _refuse(self, self.title, {"no texts": not self.texts})

    def _numbers(self) -> tuple[Mapping[str, Unit | None], _Rows]:
        rows = (
            (number, text.name, text.caption, row, word, value)
            for number, text in enumerate(self.texts, 1)
            for row, values in text.rows.items()
            for word, value in zip(text.words, values, strict=True)
        )
        names: dict[str, Unit | None] = dict.fromkeys(("text", "name", "caption", "row", "word"))
        return {**names, "value": "ratio"}, rows


def _refuse(figure: object, title: str, faults: Mapping[str, object]) -> None:
    """Raise ValueError for the first fault that applies."""
    for fault, applies in faults.items():
        if applies:
            raise ValueError(f"{type(figure).__name__} {title!r}: {fault}")


def _check_groups(
    figure: Figure,
    categories: Sequence[str],
    series: Mapping[str, Sequence[object]],
    additions: Mapping[str, object],
    parts: Mapping[str, Sequence[object]],
) -> None:
    """Refuse a figure without data, additions to series that do not exist, and parts without one value per category."""
    unknown = sorted(additions.keys() - series.keys())
    lengths = {f"series {name!r}": len(values) for name, values in series.items()}
    lengths |= {name: len(values) for name, values in parts.items()}
    size = len(categories)
    faults: dict[str, object] = {"no categories or no series": not categories or not series}
    faults[f"additions to series that do not exist: {unknown}"] = unknown
    faults |= {f"{name}: {length} values for {size} categories": length != size for name, length in lengths.items()}
    _refuse(figure, figure.title, faults)


def _axes(*labels: str) -> dict[str, Unit | None]:
    """Return the columns of a grid, named by the labels of its axes if these differ, in small letters."""
    names = [label.strip().lower() for label in labels]
    taken = {"", "value", "category", "from", "to"}
    return dict.fromkeys(names if len(set(names)) == 2 and not taken & set(names) else ["row", "column"])


def _within(values: ArrayLike, low: float, high: float, *, nan: bool = True) -> bool:
    """Return True if all values are finite and lie between the ends; `nan` allows nan too."""
    array: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    return bool(((np.isnan(array) & nan) | ((array >= low) & (array <= high) & np.isfinite(array))).all())
