"""Figures as plain data, checked when they are created; `results.drawing` draws them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attention_probing.results.estimates import Table, Unit

MOST_ROWS = 100_000
"""Largest number of rows in the numbers of a figure; a grid of raw maps has millions of weights."""

TitlePart = Literal["split", "corpora"]
_Rows = Iterable[tuple[object, ...]]


@dataclass(frozen=True, eq=False)
class Figure(ABC):
    """Base class of figures: the numbers and labels of a figure, which `results.drawing` draws.

    Attributes:
        title: Title, which is also the caption.
        title_says: What the title has already, so that a caption does not add it: the `split`, as in "chosen on dev",
            or the `corpora`.
    """

    title: str
    title_says: TitlePart | None = field(default=None, kw_only=True)

    def data(self) -> Table | None:
        """Return the numbers of this figure as a table, one row per bar, cell, point or word.

        The result is None if there are more than 100,000 rows (`MOST_ROWS`).
        """
        frame = self.frame(MOST_ROWS + 1)
        if len(frame) > MOST_ROWS:
            return None
        columns, _ = self._numbers()
        units = {name: unit for name, unit in columns.items() if unit is not None}
        return Table(frame.astype(dict.fromkeys(units, np.float64)), units)

    def frame(self, most: int | None = None) -> pd.DataFrame:
        """Return the numbers of this figure, at most the first `most` rows."""
        columns, rows = self._numbers()
        return pd.DataFrame(islice(rows, most), columns=list(columns))

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
    """

    categories: tuple[str, ...]
    series: Mapping[str, Sequence[float]]
    label: str
    intervals: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    unit: Unit = field(kw_only=True)
    category_label: str = ""

    @classmethod
    def from_table(
        cls,
        title: str,
        table: Table,
        category: str,
        series: Mapping[str, str],
        label: str,
        category_label: str = "",
        title_says: TitlePart | None = None,
    ) -> Self:
        """Create bars from columns of a table, with their intervals: a group per row, a bar per column.

        Args:
            title: Title of the figure.
            table: The table.
            category: Column with the names of the groups.
            series: Column with the heights of the bars, by name of the series.
            label: Label of the axis of the values.
            category_label: Label of the axis of the categories.
            title_says: What the title has already of its sources.

        Raises:
            ValueError: The heights have several units, or there are none.
        """
        frame = table.frame
        heights = {}
        intervals = {}
        units: set[Unit] = set()
        for name, column in series.items():
            heights[name] = frame[column].tolist()
            units.update(table.unit_rows().get(column, ()))
            if column in table.intervals():
                low, high = table.intervals()[column]
                intervals[name] = frame[low].tolist(), frame[high].tolist()
        [unit] = units
        return cls(
            title,
            tuple(frame[category].astype(str)),
            heights,
            label,
            intervals,
            unit=unit,
            category_label=category_label,
            title_says=title_says,
        )

    def _numbers(self) -> tuple[Mapping[str, Unit | None], _Rows]:
        columns: dict[str, Unit | None] = {"category": None, "series": None, "value": self.unit}
        if self.intervals:
            columns |= {"value.low": None, "value.high": None}
        return columns, self._rows()

    def _rows(self) -> Iterator[tuple[object, ...]]:
        missing = [math.nan] * len(self.categories)
        for name, values in self.series.items():
            if not self.intervals:
                for category, value in zip(self.categories, values, strict=True):
                    yield category, name, value
                continue
            lows, highs = self.intervals.get(name, (missing, missing))
            for category, value, low, high in zip(self.categories, values, lows, highs, strict=True):
                yield category, name, value, low, high


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
    """

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
            KeyError: A category has no glyph.
        """
        places = {name: float(place) for place, name in enumerate(glyphs)}
        values = []
        for row in cells:
            values.append([math.nan if cell is None else places[cell] for cell in row])
        return cls(
            title,
            np.array(values),
            row_labels,
            column_labels,
            row_label,
            column_label,
            value_label="category",
            unit="count",
            glyphs=glyphs,
        )

    def _numbers(self) -> tuple[Mapping[str, Unit | None], _Rows]:
        columns = _axes(self.row_label, self.column_label)
        values: list[object] = np.ravel(self.values).astype(float).tolist()
        if self.glyphs:
            categories: Mapping[object, str] = dict(enumerate(self.glyphs))
            values = [categories.get(value) for value in values]
            columns["category"] = None
        else:
            columns["value"] = self.unit
        return columns, self._rows(values)

    def _rows(self, values: Iterable[object]) -> Iterator[tuple[object, ...]]:
        cells = product(self.row_labels, self.column_labels)
        for (row, column), value in zip(cells, values, strict=True):
            yield row, column, value


def on_one_scale(maps: Mapping[str, HeatMap]) -> Mapping[str, HeatMap]:
    """Return the given heat maps with a common colour scale.

    The scale goes from the lowest to the highest value of all maps, which must show the same quantity.
    If no map has a value, the maps are returned unchanged.

    Args:
        maps: Heat maps by name.
    """
    if not maps:
        return maps
    values = np.concatenate([np.ravel(figure.values) for figure in maps.values()])
    if np.isnan(values).all():
        return maps
    limits = (float(np.nanmin(values)), float(np.nanmax(values)))
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

    def _numbers(self) -> tuple[Mapping[str, Unit | None], _Rows]:
        columns = _axes(self.row_label, self.column_label)
        columns |= {"from": None, "to": None, "value": self.unit}
        return columns, self._rows()

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for row, maps in zip(self.row_labels, self.maps, strict=True):
            for column, matrix in zip(self.column_labels, maps, strict=True):
                if matrix is None:
                    continue
                for (start, end), value in np.ndenumerate(matrix):
                    yield row, column, start + 1, end + 1, float(value)


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
    """

    words: tuple[str, ...]
    weights: NDArray[np.floating]
    arcs: frozenset[tuple[int, int]] = frozenset()
    from_label: str = "from"
    to_label: str = "to"

    def _numbers(self) -> tuple[Mapping[str, Unit | None], _Rows]:
        columns: dict[str, Unit | None] = dict.fromkeys(("from", "from.word", "to", "to.word", "attention", "gold"))
        columns["attention"] = "fraction"
        return columns, self._rows()

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for (start, end), weight in np.ndenumerate(self.weights):
            is_gold = (start, end) in self.arcs
            yield start + 1, self.words[start], end + 1, self.words[end], float(weight), is_gold


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
    """

    categories: tuple[str, ...]
    series: Mapping[str, Sequence[Sequence[float]]]
    label: str
    category_label: str = ""
    rates: Mapping[str, Sequence[float]] = field(default_factory=dict)
    rate_label: str = ""
    unit: Unit = field(kw_only=True)

    def _numbers(self) -> tuple[Mapping[str, Unit | None], _Rows]:
        columns: dict[str, Unit | None] = {"category": None, "series": None, "value": self.unit}
        if self.rates:
            columns["rate"] = "fraction"
        return columns, self._rows()

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for name, groups in self.series.items():
            for category, values in zip(self.categories, groups, strict=True):
                for value in values:
                    if self.rates:
                        yield category, name, value, math.nan
                    else:
                        yield category, name, value
        for name, rates in self.rates.items():
            for category, rate in zip(self.categories, rates, strict=True):
                yield category, name, math.nan, rate


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
    """

    x_label: str
    y_label: str
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    points: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    log_x: bool = False
    y_range: tuple[float, float] | None = None
    plane: bool = False
    bar_label: str = ""

    def _numbers(self) -> tuple[Mapping[str, Unit | None], _Rows]:
        return {"kind": None, "series": None, "x": "ratio", "y": "ratio"}, self._rows()

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for kind, sets in (("line", self.lines), ("point", self.points)):
            for name, pair in sets.items():
                for x, y in zip(*pair, strict=True):
                    yield kind, name, x, y


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
    """

    name: str
    caption: str
    words: tuple[str, ...]
    rows: Mapping[str, Sequence[float]]


@dataclass(frozen=True, eq=False)
class ColouredTexts(Figure):
    """Example texts in colour, which become one page of HTML.

    Attributes:
        texts: The texts.
    """

    texts: tuple[ColouredText, ...]

    def _numbers(self) -> tuple[Mapping[str, Unit | None], _Rows]:
        columns: dict[str, Unit | None] = dict.fromkeys(("text", "name", "caption", "row", "word", "value"))
        columns["value"] = "ratio"
        return columns, self._rows()

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for number, text in enumerate(self.texts, 1):
            for name, values in text.rows.items():
                for word, value in zip(text.words, values, strict=True):
                    yield number, text.name, text.caption, name, word, value


def _axes(*labels: str) -> dict[str, Unit | None]:
    """Return the columns of a grid, named by the labels of its axes if these differ, in small letters."""
    names = [label.strip().lower() for label in labels]
    other_columns = {"", "value", "category", "from", "to"}
    if len(set(names)) < len(names) or other_columns & set(names):
        names = ["row", "column"]
    return dict.fromkeys(names)
