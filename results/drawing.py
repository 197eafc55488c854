"""Draws figures of results with seaborn, for print: readable in one column, in colours safe for the colour-blind.

Without pyplot, figures share no state and need no display.
"""

import io
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context, rc_params_from_file
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from attention_probing.results import AttentionLines, Bars, Curves, HeatMap, Maps, Spreads, Unit
from attention_probing.results.fonts import installed_fonts, one_warning_for_letters

# Inches.
COLUMN_WIDTH = 3.03  # width of a column in the style of ACL, 7.7 cm
PAGE_WIDTH = 6.3  # width of the text of a page in this style, 16 cm
TALLEST = 7.5  # height of the rows of a grid; title, labels and legend take the rest of a page
LETTER = 0.062  # about the width of a letter
LINE = 0.13  # about the height of a line
# Dots per inch of a PNG.
DOTS = 200  # of a file
SCREEN = 130  # in a notebook
NAME_LETTERS = 22  # letters in a line of a name
WORD_LETTERS = 13  # most letters of a word beside attention lines
MOST_NUMBERED = 7  # most rows and columns of a heat map whose cells contain their numbers
UNSEEN = 0.01  # smallest attention that is drawn
FAINT = 0.1  # smallest attention of a gold arc with a solid line
MOST_MARKERS = 12  # of a line
MANY_POINTS = 200  # least number of points that are small and transparent
# Series differ also in print without colour. The numbers of dashes and markers have no common divisor, so that lines
# with the same dash have different markers.
DASHES = ("-", "--", "-.", ":", (0, (7, 1.5)), (0, (4, 1.2, 1, 1.2, 1, 1.2)), (0, (1, 3)))
MARKERS = "osD^vPX*<>hp"
HATCHES = ("", "/////", "\\\\\\\\\\", "xxxxx", "-----", "|||||", "+++++", ".....", "/////-----", "\\\\\\\\\\|||||")
INK = "0.15"
STYLE = rc_params_from_file(Path(__file__).with_name("print.mplstyle"), use_default_template=False)
STYLE["font.family"] = installed_fonts()


class Canvas(Figure):
    """Figure of matplotlib that notebooks show, also without pyplot."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        with one_warning_for_letters():
            self.savefig(png, dpi=SCREEN, bbox_inches="tight")
        return png.getvalue()


def draw(figure: object) -> Canvas:
    """Draw a figure, such as a `results.Bars`, with matplotlib in sizes for print.

    Returns:
        The matplotlib figure.

    Raises:
        TypeError: The figure is a `ColouredTexts`, which is a page of HTML, or has an unknown type.
    """
    with rc_context(STYLE):
        return _draw(figure)


def print_area(canvas: Canvas) -> Bbox:
    """Return the part of a figure that a PDF shows, in inches, cut above and below.

    It is as wide as a column or a page, or as the figure if that is wider.
    """
    canvas.draw_without_rendering()
    box = canvas.get_tightbbox()
    width = box.width
    for usual_width in (PAGE_WIDTH, COLUMN_WIDTH):
        if box.width <= usual_width:
            width = usual_width
    middle = (box.x0 + box.x1) / 2
    left = middle - width / 2
    right = middle + width / 2
    return Bbox([[left, box.y0 - 0.02], [right, box.y1 + 0.02]])


@singledispatch
def _draw(figure: object) -> Canvas:
    raise TypeError(f"there is no drawing function for {type(figure).__name__}: add one in results/drawing.py")


def _canvas(title: str, width: float, height: float) -> Canvas:
    """Make an empty figure under its title, with a width and a height, without that of the title, in inches."""
    lines = _fill(title, max(16, width / 0.075))
    canvas = Canvas(figsize=(width, height + LINE * (lines.count("\n") + 1)), layout="constrained")
    canvas.suptitle(lines)
    return canvas


def _legend(
    canvas: Canvas, handles: Sequence[Artist], names: Iterable[str], length: float = 1.0, title: str = ""
) -> None:
    """Put a legend below, in as many columns as fit, and make the figure higher by it; handles have a length."""
    labels = [_fill(name, 40) for name in names]
    width = _longest(labels) * LETTER + 0.2 + 0.1 * length
    columns = max(1, int(canvas.get_figwidth() / width))
    canvas.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        title=title,
        frameon=False,
        handletextpad=0.5,
        columnspacing=1.0,
        handlelength=length,
    )
    lines = math.ceil(sum(_count_lines(label) for label in labels) / columns)
    if title:
        lines += 1
    canvas.set_figheight(canvas.get_figheight() + LINE * lines + 0.1)


def _with_unit(label: str, unit: Unit) -> str:
    """Mark the label of an axis whose fractions are shown ×100."""
    return f"{label} (%)" if unit == "fraction" and "%" not in label else label


def _scale(unit: Unit) -> float:
    return 100.0 if unit == "fraction" else 1.0


def _fill(text: str, letters: float) -> str:
    """Break a text into lines of so many letters. The name of an encoder stays whole."""
    return textwrap.fill(text, max(1, int(letters)), break_on_hyphens=False)


def _short(name: str, letters: int = NAME_LETTERS) -> str:
    """Cut a name to so many letters; an ellipsis stands for the rest."""
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def _tell_apart(names: Sequence[str]) -> list[str]:
    """Return names as `_short` cuts them, or whole if two of them would then be equal."""
    short = [_short(name) for name in names]
    if len(set(short)) < len(set(names)):
        return list(names)
    return short


def _longest(names: Iterable[str]) -> int:
    """Return the number of letters of the longest line."""
    lines = "\n".join(names).split("\n")
    return max(map(len, lines))


def _count_lines(name: str) -> int:
    return name.count("\n") + 1


@_draw.register
def _draw_bars(figure: Bars) -> Canvas:
    """Draw upright bars where the names fit under them, else lying bars."""
    names = [_fill(name, NAME_LETTERS) for name in figure.categories]
    series = len(figure.series)
    widths = [max(_longest([name]) * LETTER, 0.07 * series) + 0.06 for name in names]
    lying = sum(widths) > COLUMN_WIDTH - 0.5
    lines = max(map(_count_lines, names))
    height = 1.6
    if lying:
        height = max(0.065 * series + 0.08, 0.12 * lines + 0.05) * len(names)
    canvas = _canvas(figure.title, COLUMN_WIDTH, height + 0.5)
    axes = canvas.add_subplot()
    _add_bars(axes, figure, lying)
    along: Axis = axes.yaxis
    across: Axis = axes.xaxis
    if lying:
        along = axes.xaxis
        across = axes.yaxis
    along.set_label_text(_fill(_with_unit(figure.label, figure.unit), 30))
    across.set_label_text(_fill(figure.category_label, 30))
    across.set_ticks(np.arange(len(names)), names)
    if lying:
        axes.set_ylim(len(names) - 0.4, -0.6)
    across.set_tick_params(length=0)
    along.grid(visible=True)
    sns.despine(ax=axes)
    if series > 1:
        _legend(canvas, *axes.get_legend_handles_labels())
    return canvas


def _add_bars(axes: Axes, figure: Bars, lying: bool) -> None:
    """Add the bars of each series, and lines for their intervals."""
    series = len(figure.series)
    scale = _scale(figure.unit)
    palette = sns.color_palette("colorblind", series)
    width = 0.8 / series
    add_bars = axes.barh if lying else axes.bar
    # Lines instead of error bars, because error bars must contain the value.
    add_lines = axes.hlines if lying else axes.vlines
    for index, (name, numbers) in enumerate(figure.series.items()):
        places = np.arange(len(figure.categories)) + (index - (series - 1) / 2) * width
        values = scale * np.asarray(numbers, dtype=np.float64)
        add_bars(
            places,
            values,
            width,
            label=name,
            color=palette[index],
            linewidth=0,
            hatch=HATCHES[index % len(HATCHES)],
            hatchcolor="white",
        )
        if name in figure.intervals:
            low, high = scale * np.asarray(figure.intervals[name], dtype=np.float64)
            has_ends = np.isfinite([values, low, high]).all(axis=0)
            add_lines(places[has_ends], low[has_ends], high[has_ends], color=INK, linewidth=0.7)


@_draw.register
def _draw_heat_map(figure: HeatMap) -> Canvas:
    """Draw square cells, the first row at the top, over two columns of the page where one is too narrow.

    Few cells contain their numbers, and categories their letters. The scale of fractions begins at zero.
    """
    values = _scale(figure.unit) * np.asarray(figure.values, dtype=np.float64)
    rows, columns = values.shape
    row_names = _tell_apart(figure.row_labels)
    column_names = [_short(name) for name in figure.column_labels]
    around = 1.0 + LETTER * _longest(row_names)
    width = COLUMN_WIDTH
    if (COLUMN_WIDTH - around) / columns < 0.12:
        width = PAGE_WIDTH
    cell = min((width - around) / columns, TALLEST / rows, 0.4)
    canvas = _canvas(figure.title, max(columns * cell + around, 2.2), rows * cell + 0.6)
    axes = canvas.add_subplot()
    frame = pd.DataFrame(values, row_names, column_names)
    style: dict[str, Any] = {"ax": axes, "mask": np.isnan(values), "square": True, "annot_kws": {"fontsize": 7}}
    if figure.glyphs:
        _add_categories(canvas, figure, frame, style)
    else:
        _add_numbers(axes, figure, frame, style, rows * cell)
    axes.set(xlabel=figure.column_label, ylabel=figure.row_label)
    axes.tick_params(length=0)
    axes.tick_params(axis="y", rotation=0)
    if figure.marked is not None:  # in black on white, visible on light and dark cells
        corner = figure.marked[::-1]
        mark = Rectangle(corner, 1, 1, fill=False, edgecolor="black", linewidth=1.1, clip_on=False)
        mark.set_path_effects([withStroke(linewidth=2.6, foreground="white")])
        axes.add_patch(mark)
    return canvas


def _add_categories(canvas: Canvas, figure: HeatMap, frame: pd.DataFrame, style: Mapping[str, Any]) -> None:
    """Add the cells of a map of categories, with their letters, and a legend of these."""
    values = frame.to_numpy()
    letters = np.full(values.shape, "", dtype=object)
    for category, glyph in enumerate(figure.glyphs.values()):
        letters[values == category] = glyph
    palette = sns.color_palette("colorblind", len(figure.glyphs))
    sns.heatmap(
        frame,
        annot=letters,
        fmt="",
        cbar=False,
        cmap=ListedColormap(palette),
        vmin=-0.5,
        vmax=len(palette) - 0.5,
        linewidths=0.5,
        **style,
    )
    handles = [Patch(facecolor=colour) for colour in palette]
    entries = [f"{glyph}  {name}" for name, glyph in figure.glyphs.items()]
    _legend(canvas, handles, entries)


def _add_numbers(axes: Axes, figure: HeatMap, frame: pd.DataFrame, style: Mapping[str, Any], height: float) -> None:
    """Add the cells of a map of numbers, with a colour bar of a height in inches."""
    values = frame.to_numpy()
    low, high = _ends(figure, values)
    digits = 0 if max(-low, high) >= 10 else 2
    numbers = None
    if max(values.shape) <= MOST_NUMBERED:
        numbers = np.round(values, digits) + 0.0  # without the sign of -0.0
    label = _fill(_with_unit(figure.value_label, figure.unit), max(16, height / LETTER))
    sns.heatmap(
        frame,
        annot=numbers,
        fmt=f".{digits}f",
        cmap="vlag" if figure.diverging else "rocket_r",
        vmin=low,
        vmax=high,
        cbar_kws={"label": label},
        **style,
    )
    axes.set_facecolor("0.8")  # of missing values


def _ends(figure: HeatMap, values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the values at the ends of the colour scale, fractions ×100."""
    if figure.limits:
        low, high = [_scale(figure.unit) * end for end in figure.limits]
    else:
        finite = values[np.isfinite(values)].tolist() or [0.0, 1.0]
        low = min(finite)
        high = max(finite)
    if figure.diverging:
        largest = max(-low, high)
        return -largest, largest
    if figure.unit == "fraction":
        low = min(low, 0.0)
    return low, high


@_draw.register
def _draw_maps(figure: Maps) -> Canvas:
    """Draw pictures of one size in a mosaic; of a large matrix a dot is the largest value of a block."""
    rows = len(figure.row_labels)
    columns = len(figure.column_labels)
    row_names = [_short(name) for name in figure.row_labels]
    column_names = [_short(name) for name in figure.column_labels]
    around = 0.95 + LETTER * _longest(row_names)
    caption = LINE if figure.names else 0.0
    cell = min((PAGE_WIDTH - around) / columns, TALLEST / rows - caption, 1.0)
    dots = math.ceil(DOTS * (cell - 0.04))  # of a picture
    gap = math.ceil(DOTS * 0.04)  # dots behind it
    above = math.ceil(DOTS * caption)  # dots of the caption above it
    wide = dots + gap
    high = dots + gap + above
    mosaic = np.full((rows * high, columns * wide), np.nan)
    canvas = _canvas(figure.title, max(columns * cell + around, 2.2), rows * (cell + caption) + 0.6)
    axes = canvas.add_subplot()
    for row, column in np.ndindex(rows, columns):
        matrix = figure.maps[row][column]
        if matrix is None:
            continue
        x = column * wide
        y = row * high + above
        mosaic[y : y + dots, x : x + dots] = _scale(figure.unit) * _picture(matrix, dots)
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), dots, dots, fill=False, edgecolor="0.6", linewidth=0.3))
        if figure.names:
            name = _short(figure.names[row][column], max(1, int(cell / 0.06)))
            axes.text(x + dots / 2, y - 3, name, ha="center", va="bottom", fontsize=7)
    _add_mosaic(canvas, axes, figure, mosaic)
    widest = max(map(len, figure.column_labels)) * LETTER
    rotation = 90 if widest > cell else 0
    axes.set_xticks(np.arange(columns) * wide + dots / 2, column_names, rotation=rotation)
    axes.set_yticks(np.arange(rows) * high + above + dots / 2, row_names)
    axes.set(xlabel=figure.column_label, ylabel=figure.row_label)
    axes.tick_params(length=0)
    sns.despine(ax=axes, left=True, bottom=True)
    return canvas


def _add_mosaic(canvas: Canvas, axes: Axes, figure: Maps, mosaic: NDArray[np.float64]) -> None:
    """Add the pictures, and a colour bar that ends in an arrow if a value lies above its end."""
    largest = float(np.nanmax(mosaic))
    top = largest
    if figure.top is not None:
        top = _scale(figure.unit) * figure.top
    image = axes.imshow(mosaic, sns.color_palette("rocket_r", as_cmap=True), vmin=0.0, vmax=top or 1.0)
    extend = "max" if top < largest else "neither"
    bar = canvas.colorbar(image, ax=axes, shrink=0.5, extend=extend)
    bar.set_label(_with_unit(figure.value_label, figure.unit))


def _picture(matrix: NDArray[np.floating], dots: int) -> NDArray[np.floating]:
    """Return a square matrix as `[dots, dots]`; each dot is the largest value of a block."""
    starts = np.arange(dots) * len(matrix) // dots
    rows = np.maximum.reduceat(matrix, starts, axis=0)
    return np.maximum.reduceat(rows, starts, axis=1)


class _Lines(NamedTuple):
    """Lines of one kind in a figure of attention.

    Attributes:
        label: Name of the kind.
        pairs: The words that each line connects, as positions (from, to).
        colour: Colour of the lines.
        least: Smallest opacity.
        width: Width of the lines.
        dashes: Style of the lines.
    """

    label: str
    pairs: Sequence[tuple[int, ...]]
    colour: tuple[float, ...]
    least: float
    width: float
    dashes: str


@_draw.register
def _draw_attention_lines(figure: AttentionLines) -> Canvas:
    """Draw one line per pair of words with the weight as opacity; many words are smaller and closer.

    Weights under `UNSEEN` are left out. Gold arcs lie on top, thicker, in colour and with an opacity of at least 0.4;
    arcs under `FAINT` are thin dashed lines.
    """
    size = len(figure.words)
    pitch = min(max(TALLEST / size, 0.138), 0.18)
    # Long sentences get a wider figure; otherwise lines between distant words would be almost vertical.
    width = min(COLUMN_WIDTH + 0.08 * max(size - 30, 0), PAGE_WIDTH)
    canvas = _canvas(figure.title, width, size * pitch + 0.3)
    axes = canvas.add_subplot()
    weights = np.minimum(np.asarray(figure.weights, dtype=np.float64), 1.0)
    kinds: dict[str, Artist] = {}
    for lines in _kinds_of_lines(figure, weights):
        if lines.pairs:
            kinds[lines.label] = _add_lines(axes, lines, weights)
    right_axes = axes.twinx()
    _add_words(axes, figure.words, figure.from_label, place=0, align="right")
    _add_words(right_axes, figure.words, figure.to_label, place=1, align="left")
    if kinds:
        _legend(canvas, list(kinds.values()), kinds, 1.6)
    return canvas


def _add_words(axes: Axes, words: Sequence[str], label: str, *, place: float, align: Literal["left", "right"]) -> None:
    """Add the words on one side of the lines, under a label at a place of the x axis from 0 to 1."""
    axes.set(xlim=(0.0, 1.0), xticks=(), ylim=(len(words) - 0.5, -0.5))
    axes.set_yticks(range(len(words)), [_short(word, WORD_LETTERS) for word in words], fontsize=7)
    axes.tick_params(length=0, pad=2)
    name = _fill(label, WORD_LETTERS)
    axes.annotate(name, (place, 1), (0, 3), "axes fraction", "offset points", ha=align, fontweight="bold")
    sns.despine(ax=axes, left=True, bottom=True)


def _kinds_of_lines(figure: AttentionLines, weights: NDArray[np.float64]) -> list[_Lines]:
    """Return the lines of attention, of gold arcs, and of gold arcs with little attention."""
    palette = sns.color_palette("colorblind")
    visible = [tuple(pair) for pair in np.argwhere(weights >= UNSEEN)]
    attention = [pair for pair in visible if pair not in figure.arcs]
    arcs = [arc for arc in figure.arcs if weights[arc] >= FAINT]
    faint = [arc for arc in figure.arcs if weights[arc] < FAINT]
    return [
        _Lines("attention", attention, palette[0], least=0.0, width=0.9, dashes="-"),
        _Lines("gold arc", arcs, palette[3], least=0.4, width=1.7, dashes="-"),
        _Lines(f"gold arc, below {FAINT}", faint, palette[3], least=0.9, width=0.7, dashes="--"),
    ]


def _add_lines(axes: Axes, lines: _Lines, weights: NDArray[np.float64]) -> Artist:
    """Add the lines of a kind, and return one for the legend."""
    # The largest weights are drawn last, on top.
    pairs = sorted(lines.pairs, key=lambda pair: (weights[pair], pair))
    colours = [(*lines.colour, max(weights[pair], lines.least)) for pair in pairs]
    ends = [((0.01, start), (0.99, end)) for start, end in pairs]
    style: dict[str, Any] = {"linewidths": lines.width, "linestyles": lines.dashes, "label": lines.label}
    axes.add_collection(LineCollection(ends, colors=colours, **style), autolim=False)
    return LineCollection([], colors=[lines.colour], **style)


@_draw.register
def _draw_spreads(figure: Spreads) -> Canvas:
    """Draw lying violins with their numbers of values, and rates as bars in a second panel on the right."""
    names = [_fill(name, NAME_LETTERS) for name in figure.categories]
    series = list(figure.series)
    lines = max(map(_count_lines, names))
    height = max(0.13 * len(series) + 0.15, LINE * lines + 0.08)
    canvas = _canvas(figure.title, COLUMN_WIDTH, min(height * len(names), TALLEST) + 0.8)
    number_of_panels = 2 if figure.rates else 1
    panels = canvas.subplots(1, number_of_panels, squeeze=False, sharey=True)[0]
    palette = sns.color_palette("colorblind", len(series))
    style: dict[str, Any] = {"y": "category", "hue": "series", "order": figure.categories, "hue_order": series}
    style |= {"orient": "h", "palette": palette, "saturation": 1.0, "legend": False}
    _add_violins(panels[0], figure, style)
    panels[0].set_yticks(range(len(names)), names)
    if figure.rates:
        frame = figure.frame()
        sns.barplot(frame.assign(rate=100 * frame["rate"]), x="rate", ax=panels[1], **style)
        rate_label = _fill(_with_unit(figure.rate_label, "fraction"), 14)
        panels[1].set(xlabel=rate_label, xlim=(0, None))
    for panel in panels:
        panel.tick_params(axis="y", length=0)
        panel.grid(axis="x")
        panel.xaxis.set_major_locator(MaxNLocator(3 if figure.rates else 5))
        sns.despine(ax=panel, left=True)
    if len(series) > 1:
        _legend(canvas, [Patch(facecolor=colour) for colour in palette], series)
    return canvas


def _add_violins(axes: Axes, figure: Spreads, style: Mapping[str, Any]) -> None:
    """Add the violins, with the number of values behind each, and label the axes."""
    frame = figure.frame()
    frame["value"] *= _scale(figure.unit)
    sns.violinplot(
        frame.dropna(subset="value"),
        x="value",
        linewidth=0.5,
        ax=axes,
        cut=0,
        density_norm="width",
        inner_kws={"box_width": 2, "whis_width": 0},
        **style,
    )
    across = axes.get_yaxis_transform()  # x in the axes, y in the data
    for index, groups in enumerate(figure.series.values()):
        shift = 0.8 * ((index + 0.5) / len(figure.series) - 0.5)
        for place, values in enumerate(groups):
            number = f"{np.isfinite(values).sum():,}"
            at = (1.0, place + shift)
            axes.annotate(number, at, (2, 0), across, "offset points", va="center", fontsize=7, color="0.35")
    letters = 20 if figure.rates else 34
    label = _fill(_with_unit(figure.label, figure.unit), letters)
    axes.set(xlabel=f"{label}\nbar: quartiles,\nwhite: median, right: n", ylabel=_fill(figure.category_label, 24))


@_draw.register
def _draw_curves(figure: Curves) -> Canvas:
    """Draw lines and points, one colour per name, points on top; a plane is framed and has no ticks."""
    names = list(dict.fromkeys([*figure.lines, *figure.points]))
    canvas = _canvas(figure.title, COLUMN_WIDTH, 2.4)
    axes = canvas.add_subplot()
    palette = "colorblind"
    markers = MARKERS
    if figure.bar_label:
        palette = "rocket_r"
        markers = "o"
    colours = sns.color_palette(palette, len(names))
    for index, name in enumerate(names):
        style: dict[str, Any] = {"color": colours[index], "marker": markers[index % len(markers)]}
        if name in figure.lines:
            _add_line(axes, figure, name, DASHES[index % len(DASHES)], style)
        if name in figure.points:
            _add_points(axes, figure, name, style)
    if figure.plane:
        axes.set(xticks=(), yticks=(), aspect="equal", adjustable="datalim")
    else:
        _set_axes(axes, figure)
    if len(names) > 1 or figure.plane:
        handles, labels = axes.get_legend_handles_labels()
        length = 1.0 if figure.plane else 2.4
        _legend(canvas, handles, labels, length, figure.bar_label)
    return canvas


def _add_line(axes: Axes, figure: Curves, name: str, dashes: object, style: Mapping[str, Any]) -> None:
    x, y = figure.lines[name]
    every = math.ceil(len(x) / MOST_MARKERS) or None
    axes.plot(x, y, label=name, linestyle=dashes, linewidth=1.2, markersize=3, markevery=every, **style)


def _add_points(axes: Axes, figure: Curves, name: str, style: Mapping[str, Any]) -> None:
    """Add points; many are small and transparent."""
    x, y = figure.points[name]
    label = None if name in figure.lines else name
    size: dict[str, Any] = {"markersize": 5, "markeredgewidth": 0.5, "markeredgecolor": "white"}
    if len(x) >= MANY_POINTS:
        size = {"markersize": 2.5, "markeredgewidth": 0, "alpha": 0.5}
    axes.plot(x, y, label=label, linestyle="", zorder=2.5, **size, **style)


def _set_axes(axes: Axes, figure: Curves) -> None:
    """Label the axes; mark whole numbers alone where x counts something, such as layers."""
    axes.set(xlabel=_fill(figure.x_label, 34), ylabel=_fill(figure.y_label, 28))
    if figure.y_range is not None:
        axes.update_datalim([(0.0, end) for end in figure.y_range], updatex=False)
        axes.autoscale_view()
    if figure.log_x:
        axes.set_xscale("log")
        # The default labels are formulas, which the style does not parse.
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif all(_are_whole(x) for x, _ in (*figure.lines.values(), *figure.points.values())):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid()
    sns.despine(ax=axes)


def _are_whole(numbers: Iterable[float]) -> bool:
    return all(float(number).is_integer() for number in numbers)
