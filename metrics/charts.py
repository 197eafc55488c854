"""Figures of many values, as plain data: how they spread, how one goes with another, and single texts in colour.

Kinds of `metrics.results.Figure`, like those of `metrics.results` itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray


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
        percent: Whether the values are fractions, to be shown ×100. The rates always are.

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
    percent: bool = False

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


def _within(values: Sequence[float], low: float, high: float) -> bool:
    """Whether all values that are not nan lie between the ends, both included."""
    array: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    return bool((np.isnan(array) | ((array >= low) & (array <= high))).all())


def _refuse_infinite(values: Iterable[float], what: str) -> None:
    if np.isinf(np.fromiter(values, dtype=np.float64)).any():
        raise ValueError(f"{what} has an infinite value")
