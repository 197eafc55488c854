"""Data → matplotlib figure, for print: readable at the width of one column, in colours safe for the colour-blind.

No files and no pyplot: a figure is an object of its own, so that nothing leaks between experiments and no display is
needed.
"""

import math
import textwrap
from collections.abc import Sequence
from functools import singledispatch

import numpy as np
import seaborn as sns
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure as Canvas
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from reports.style import CHARACTER, COLUMN, PAGE, legend_above, print_style, with_unit, wrapped
from results import AttentionLines, Bars, HeatMap

FEW = 8
"""Most rows and columns of a heat map whose cells hold their numbers."""
LETTERS = 16
"""Letters of a word beside attention lines; a longer one, such as an address, ends in an ellipsis."""
UNSEEN, FAINT = 0.01, 0.1
"""The least attention that is drawn, and the least at which a gold arc is no dashed line."""


@singledispatch
def draw(figure: object) -> Canvas:
    """Draw one of the kinds of figure in `results`; another, such as a page of texts, raises TypeError."""
    raise TypeError(
        f"no drawing is known for {type(figure).__name__}: it is none of the figures of `results` that are drawn"
    )


@draw.register
def _(figure: Bars) -> Canvas:
    """Draw upright bars where the names fit under them, and lying bars in a figure as tall as it takes otherwise."""
    names, series = figure.categories, len(figure.series)
    with print_style():
        needed = sum(max(len(name) * CHARACTER, 0.07 * series) + 0.06 for name in names)
        lying = needed > COLUMN - 0.5
        height = 0.9 + max(0.065 * series + 0.08, 0.17) * len(names) if lying else 2.4
        canvas = Canvas(figsize=(COLUMN, height), layout=ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.06))
        axes = canvas.add_subplot()
        _draw_series(axes, figure, lying)
        label, ticks, margin = with_unit(figure.label, figure.unit), range(len(names)), 0.6
        if lying:
            axes.set(
                xlabel=label,
                ylabel=figure.category_label,
                yticks=ticks,
                yticklabels=names,
                ylim=(len(names) - 1 + margin, -margin),
            )
        else:
            axes.set(
                ylabel=label,
                xlabel=figure.category_label,
                xticks=ticks,
                xticklabels=names,
                xlim=(-margin, len(names) - 1 + margin),
            )
        axes.tick_params(axis="y" if lying else "x", length=0)
        axes.grid(axis="x" if lying else "y")
        (axes.axvline if lying else axes.axhline)(0.0, color="0.15", linewidth=0.6)
        sns.despine(ax=axes, left=lying, bottom=not lying)
        if series > 1:
            legend_above(axes, figure.series)
        # The figure's title, not the axes': it stands above the legend.
        canvas.suptitle(wrapped(figure.title, COLUMN))
        return canvas


@draw.register
def _(figure: HeatMap) -> Canvas:
    """Draw square cells, the first row at the top; a map too wide for one column takes two.

    A map of few cells has its numbers in them. Shares begin at zero: the palest cell is none.
    """
    scale = 100.0 if figure.unit == "fraction" else 1.0
    values = np.ma.masked_invalid(np.asarray(figure.values, dtype=np.float64) * scale)
    rows, columns = values.shape
    around = 1.0 + CHARACTER * max(len(name) for name in figure.row_labels)
    cell = next((size for width in (COLUMN, PAGE) if (size := (width - around) / columns) >= 0.1), PAGE / 2 / columns)
    few = max(rows, columns) <= FEW
    # Few cells are large enough for their numbers, and for the label of the colour bar.
    cell = min(cell, max(0.4, 1.6 / rows) if few else 0.4, 7.5 / rows)
    width = columns * cell + around
    with print_style():
        canvas = Canvas(
            figsize=(width, rows * cell + 0.85), layout=ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.06, compress=True)
        )
        axes = canvas.add_subplot()
        colours = sns.color_palette("vlag" if figure.diverging else "rocket_r", as_cmap=True).with_extremes(bad="0.8")
        least, most = _ends(figure, values / scale)
        image = axes.imshow(values, cmap=colours, vmin=scale * least, vmax=scale * most)
        if few:
            _number_cells(axes, values, image)
        axes.set(xlabel=figure.column_label, ylabel=figure.row_label, title=wrapped(figure.title, width))
        _name_columns(axes, figure.column_labels, cell)
        step = math.ceil(0.11 / cell)
        axes.set_yticks(range(0, rows, step), list(figure.row_labels)[::step])
        axes.tick_params(length=0)
        if figure.marked is not None:
            _mark(axes, *figure.marked)
        # Inside the axes' own box, since a colour bar beside square cells would keep the height of the figure.
        bar = canvas.colorbar(image, cax=axes.inset_axes((1.03, 0.0, min(0.08 / (columns * cell), 0.1), 1.0)))
        bar.locator = MaxNLocator(5)
        bar.set_label(with_unit(figure.value_label, figure.unit))
        sns.despine(ax=axes, left=True, bottom=True)
        bar.outline.set_visible(False)
        return canvas


@draw.register
def _(figure: AttentionLines) -> Canvas:
    """Draw one line per pair of words, as opaque as its weight; the more words, the smaller and closer they are.

    Weights under `UNSEEN` are left out. Gold arcs lie on top, thicker, in colour and never paler than 0.4; one under
    `FAINT` is a thin dashed line.
    """
    size = len(figure.words)
    pitch = min(max(7.8 / size, 0.13), 0.18)
    # Beyond what a column holds in height, wider too: lines between far words would run almost upright.
    width = min(COLUMN + 0.08 * max(size - 30, 0), PAGE)
    names = [word if len(word) <= LETTERS else f"{word[: LETTERS - 1]}…" for word in figure.words]
    with print_style(), rc_context({"ytick.labelsize": min(44 * pitch, 7.5)}):
        canvas = Canvas(figsize=(width, size * pitch + 0.85), layout=ConstrainedLayoutEngine(h_pad=0.05, w_pad=0.05))
        axes = canvas.add_subplot()
        kinds = _draw_pairs(axes, figure)
        for side, label in ((axes, figure.from_label), (axes.twinx(), figure.to_label)):
            side.set(xlim=(0.0, 1.0), xticks=(), ylim=(size - 0.5, -0.5))
            side.set_yticks(range(size), names)
            side.tick_params(length=0, pad=2)
            # Over the words, whose column ends or begins two points from the axes.
            at, points, align = (0, -2, "right") if side is axes else (1, 2, "left")
            side.annotate(
                textwrap.fill(label, LETTERS),
                (at, 1),
                (points, 3),
                xycoords="axes fraction",
                textcoords="offset points",
                horizontalalignment=align,
                fontweight="bold",
            )
            sns.despine(ax=side, left=True, bottom=True)
        if kinds:
            canvas.legend(
                handles=kinds,
                loc="outside lower center",
                ncols=len(kinds),
                frameon=False,
                handlelength=1.6,
                handletextpad=0.5,
                columnspacing=1.0,
            )
        canvas.suptitle(wrapped(figure.title, width))
        return canvas


def _draw_series(axes: Axes, figure: Bars, lying: bool) -> None:
    """Draw the series side by side in each group, with their intervals."""
    scale = 100.0 if figure.unit == "fraction" else 1.0
    places = np.arange(len(figure.categories), dtype=np.float64)
    width = 0.8 / len(figure.series)
    colours = sns.color_palette("colorblind", len(figure.series))
    for index, (name, series) in enumerate(figure.series.items()):
        values: NDArray[np.float64] = np.asarray(series, dtype=np.float64) * scale
        at = places + (index - (len(figure.series) - 1) / 2) * width
        if lying:
            axes.barh(at, values, width, label=name, color=colours[index], linewidth=0)
        else:
            axes.bar(at, values, width, label=name, color=colours[index], linewidth=0)
        if name not in figure.intervals:
            continue
        low, high = np.asarray(figure.intervals[name], dtype=np.float64) * scale
        known = np.isfinite(values) & np.isfinite(low) & np.isfinite(high)
        # Lines from end to end: an interval need not hold the value itself, which an error bar takes for granted.
        lines = axes.hlines if lying else axes.vlines
        lines(at[known], low[known], high[known], color="0.15", linewidth=0.7)


def _draw_pairs(axes: Axes, figure: AttentionLines) -> list[Line2D]:
    """Draw the lines between the two columns, which stand at 0 and 1; return a line of each kind for the legend."""
    weights = np.minimum(np.asarray(figure.weights, dtype=np.float64), 1.0)
    palette = sns.color_palette("colorblind")
    blue, red = palette[0], palette[3]
    seen = [(one, two) for one, two in np.argwhere(weights >= UNSEEN).tolist() if (one, two) not in figure.arcs]
    strong = [arc for arc in figure.arcs if weights[arc] >= FAINT]
    faint = [arc for arc in figure.arcs if weights[arc] < FAINT]
    solid: tuple[float, Sequence[float]] = (0, ())
    handles = []
    for label, pairs, colour, least, width, dashes in (
        ("attention", seen, blue, 0.0, 0.9, solid),
        ("gold arc", strong, red, 0.4, 1.7, solid),
        (f"gold arc, below {FAINT}", faint, red, 0.9, 0.7, (0, (4, 2))),
    ):
        if not pairs:
            continue
        # The heaviest last, so that nothing covers it.
        pairs.sort(key=lambda pair: (weights[pair], pair))
        lines = LineCollection(
            [((0.01, one), (0.99, two)) for one, two in pairs],
            colors=[(*colour, max(weights[pair], least)) for pair in pairs],
            linewidths=width,
            linestyles=[dashes],
            label=label,
        )
        axes.add_collection(lines, autolim=False)
        handles.append(Line2D([], [], color=colour, linewidth=width, linestyle=dashes, label=label))
    return handles


def _ends(figure: HeatMap, values: np.ma.MaskedArray) -> tuple[float, float]:
    """Values at the ends of the colour scale."""
    low, high = figure.limits or ((float(values.min()), float(values.max())) if values.count() else (0.0, 1.0))
    if figure.diverging:
        return -max(abs(low), abs(high)), max(abs(low), abs(high))
    return min(low, 0.0) if figure.unit == "fraction" else low, high


def _number_cells(axes: Axes, values: np.ma.MaskedArray, image: AxesImage) -> None:
    """Write each value into its cell, pale on dark colours."""
    digits = 0 if np.abs(values).max() >= 10 else 2
    for row, column in zip(*(~np.ma.getmaskarray(values)).nonzero(), strict=True):
        red, green, blue, _ = image.cmap(image.norm(values[row, column]))
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        axes.text(
            column,
            row,
            f"{values[row, column]:.{digits}f}",
            horizontalalignment="center",
            verticalalignment="center",
            color="white" if dark else "0.15",
            fontsize=6.5,
        )


def _mark(axes: Axes, row: int, column: int) -> None:
    """Put a frame around a cell, in black on white, which stands out from light cells and from dark ones."""
    around = withStroke(linewidth=2.6, foreground="white")
    axes.add_patch(
        Rectangle(
            (column - 0.5, row - 0.5),
            1,
            1,
            fill=False,
            edgecolor="black",
            linewidth=1.1,
            clip_on=False,
            path_effects=[around],
        )
    )


def _name_columns(axes: Axes, names: Sequence[str], cell: float) -> None:
    """Label the columns: level where the names fit, turned where they do not, and not all where even that is tight."""
    width = max(len(name) for name in names) * CHARACTER + 0.025
    turned = width > cell and max(len(name) for name in names) > 2
    step = math.ceil((0.11 if turned else width) / cell)
    axes.set_xticks(range(0, len(names), step), list(names)[::step], rotation=90 if turned else 0)
