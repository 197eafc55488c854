"""Draws figures of results with seaborn, for print: readable in one column, in colours safe for the colour-blind.

Without pyplot, figures share no state and need no display.
"""

import io
import math
import textwrap
from collections.abc import Iterable, Sequence
from functools import singledispatch
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context, rc_params_from_file
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from attention_probing.results import AttentionLines, Bars, Curves, HeatMap, Maps, Spreads, Unit

COLUMN, PAGE = 3.03, 6.3  # inches: a column and the text of a page in the style of ACL (7.7 and 16 cm)
TALLEST = 7.5  # inches of the rows of a grid; title, labels and legend take the rest of a page
LETTER, LINE = 0.062, 0.13  # inches: about the width of a letter and the height of a line
DOTS, SCREEN = 200, 130  # dots per inch of a PNG, of a file and in a notebook
# The first is part of matplotlib, so that figures are the same on every machine. The others, where they are installed,
# have the letters that it lacks (Debian's fonts-noto-cjk and fonts-noto-core).
SCRIPTS = ("CJK SC", "CJK JP", "CJK KR", "Devanagari", "Bengali", "Tamil", "Telugu", "Thai", "Ethiopic")
FONTS = ("DejaVu Sans", *(f"Noto Sans {script}" for script in SCRIPTS))
NAME, WORD = 22, 13  # letters in a line of a name; most letters of a word beside attention lines
FEW = 7  # most rows and columns of a heat map whose cells contain their numbers
UNSEEN, FAINT = 0.01, 0.1  # smallest attention that is drawn; smallest attention of a gold arc with a solid line
SHORT, MANY = 12, 200  # most markers of a line; least points that are small and transparent
# Series differ also in print without colour. The numbers of dashes and markers have no common divisor, so that lines
# with the same dash have different markers.
DASHES = ("-", "--", "-.", ":", (0, (7, 1.5)), (0, (4, 1.2, 1, 1.2, 1, 1.2)), (0, (1, 3)))
MARKERS = "osD^vPX*<>hp"
HATCHES = ("", "/////", "\\\\\\\\\\", "xxxxx", "-----", "|||||", "+++++", ".....", "/////-----", "\\\\\\\\\\|||||")
INK = "0.15"
STYLE = rc_params_from_file(Path(__file__).with_name("print.mplstyle"), use_default_template=False)
STYLE["font.family"] = [name for name in FONTS if name in fontManager.get_font_names()]


class Canvas(Figure):
    """Figure of matplotlib that notebooks show, also without pyplot."""

    def _repr_png_(self) -> bytes:
        self.savefig(png := io.BytesIO(), dpi=SCREEN, bbox_inches="tight")
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
    drawn = canvas.get_tightbbox()
    width = next((width for width in (COLUMN, PAGE) if drawn.width <= width), drawn.width)
    middle, half = (drawn.x0 + drawn.x1) / 2, width / 2
    return Bbox([[middle - half, drawn.y0 - 0.02], [middle + half, drawn.y1 + 0.02]])


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
    columns = max(1, int(canvas.get_figwidth() / (_longest(labels) * LETTER + 0.2 + 0.1 * length)))
    style: dict[str, Any] = {"frameon": False, "handletextpad": 0.5, "columnspacing": 1.0, "handlelength": length}
    canvas.legend(handles, labels, loc="outside lower center", ncols=columns, title=title, **style)
    lines = math.ceil(sum(label.count("\n") + 1 for label in labels) / columns) + bool(title)
    canvas.set_figheight(canvas.get_figheight() + LINE * lines + 0.1)


def _with_unit(label: str, unit: Unit) -> str:
    """Mark the label of an axis whose fractions are shown ×100."""
    return f"{label} (%)" if unit == "fraction" and "%" not in label else label


def _scale(unit: Unit) -> float:
    return 100.0 if unit == "fraction" else 1.0


def _fill(text: str, letters: float) -> str:
    """Break a text into lines of so many letters. The name of an encoder stays whole."""
    return textwrap.fill(text, max(1, int(letters)), break_on_hyphens=False)


def _short(name: str, letters: int = NAME) -> str:
    """Cut a name to so many letters; an ellipsis stands for the rest."""
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def _longest(names: Iterable[str]) -> int:
    return max(len(line) for name in names for line in name.split("\n"))


@_draw.register
def _(figure: Bars) -> Canvas:
    """Draw upright bars where the names fit under them, else lying bars."""
    names, series, scale = [_fill(name, NAME) for name in figure.categories], len(figure.series), _scale(figure.unit)
    lying = sum(max(_longest([name]) * LETTER, 0.07 * series) + 0.06 for name in names) > COLUMN - 0.5
    lines = 1 + max(name.count("\n") for name in names)
    height = max(0.065 * series + 0.08, 0.12 * lines + 0.05) * len(names) if lying else 1.6
    canvas = _canvas(figure.title, COLUMN, height + 0.5)
    axes, palette = canvas.add_subplot(), sns.color_palette("colorblind", series)
    places, width = np.arange(len(names)), 0.8 / series
    for index, (name, numbers) in enumerate(figure.series.items()):
        at, values = places + (index - (series - 1) / 2) * width, scale * np.asarray(numbers, dtype=np.float64)
        style: dict[str, Any] = {"color": palette[index], "linewidth": 0}
        style |= {"hatch": HATCHES[index % len(HATCHES)], "hatchcolor": "white"}
        (axes.barh if lying else axes.bar)(at, values, width, label=name, **style)
        if name in figure.intervals:
            ends = scale * np.asarray(figure.intervals[name], dtype=np.float64)
            known = np.isfinite([values, *ends]).all(axis=0)
            # Lines instead of error bars, because error bars must contain the value.
            (axes.hlines if lying else axes.vlines)(at[known], *ends[:, known], color=INK, linewidth=0.7)
    along, across = (axes.xaxis, axes.yaxis) if lying else (axes.yaxis, axes.xaxis)
    along.set_label_text(_fill(_with_unit(figure.label, figure.unit), 30))
    across.set_label_text(_fill(figure.category_label, 30))
    across.set_ticks(places, names)
    if lying:
        axes.set_ylim(len(names) - 0.4, -0.6)
    across.set_tick_params(length=0)
    along.grid(visible=True)
    sns.despine(ax=axes)
    if series > 1:
        _legend(canvas, *axes.get_legend_handles_labels())
    return canvas


@_draw.register
def _(figure: HeatMap) -> Canvas:
    """Draw square cells, the first row at the top, over two columns of the page where one is too narrow.

    Few cells contain their numbers, and categories their letters. The scale of fractions begins at zero.
    """
    values = _scale(figure.unit) * np.asarray(figure.values, dtype=np.float64)
    (rows, columns), names, few = values.shape, list(map(_short, figure.row_labels)), max(values.shape) <= FEW
    around = 1.0 + LETTER * _longest(names)
    wide = next((width for width in (COLUMN, PAGE) if (width - around) / columns >= 0.12), PAGE)
    cell = min((wide - around) / columns, TALLEST / rows, 0.4)
    canvas = _canvas(figure.title, max(columns * cell + around, 2.2), rows * cell + 0.6)
    axes, frame = canvas.add_subplot(), pd.DataFrame(values, names, list(map(_short, figure.column_labels)))
    style: dict[str, Any] = {"ax": axes, "mask": np.isnan(values), "square": True, "annot_kws": {"fontsize": 7}}
    if figure.glyphs:
        glyphs, palette = [*figure.glyphs.values()], sns.color_palette("colorblind", len(figure.glyphs))
        letters = [["" if math.isnan(value) else glyphs[int(value)] for value in row] for row in values]
        style |= {"cmap": ListedColormap(palette), "vmin": -0.5, "vmax": len(glyphs) - 0.5, "linewidths": 0.5}
        sns.heatmap(frame, annot=np.array(letters), fmt="", cbar=False, **style)
        entries = [f"{glyph}  {name}" for name, glyph in figure.glyphs.items()]
        _legend(canvas, [Patch(facecolor=colour) for colour in palette], entries)
    else:
        low, high = _ends(figure, values)
        bar = {"label": _fill(_with_unit(figure.value_label, figure.unit), max(16, rows * cell / LETTER))}
        style |= {"cmap": "vlag" if figure.diverging else "rocket_r", "vmin": low, "vmax": high, "cbar_kws": bar}
        digits = 0 if max(-low, high) >= 10 else 2
        shown = np.round(values, digits) + 0.0 if few else None  # without the sign of -0.0
        sns.heatmap(frame, annot=shown, fmt=f".{digits}f", **style)
        axes.set_facecolor("0.8")  # of missing values
    axes.set(xlabel=figure.column_label, ylabel=figure.row_label)
    axes.tick_params(length=0)
    axes.tick_params(axis="y", rotation=0)
    if figure.marked is not None:  # in black on white, visible on light and dark cells
        mark = Rectangle(figure.marked[::-1], 1, 1, fill=False, edgecolor="black", linewidth=1.1, clip_on=False)
        mark.set_path_effects([withStroke(linewidth=2.6, foreground="white")])
        axes.add_patch(mark)
    return canvas


def _ends(figure: HeatMap, values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the values at the ends of the colour scale, fractions ×100."""
    known = values[np.isfinite(values)].tolist() or [0.0, 1.0]
    low, high = (_scale(figure.unit) * end for end in figure.limits) if figure.limits else (min(known), max(known))
    if figure.diverging:
        return -max(-low, high), max(-low, high)
    return min(low, 0.0) if figure.unit == "fraction" else low, high


@_draw.register
def _(figure: Maps) -> Canvas:
    """Draw pictures of one size in a mosaic; of a large matrix a dot is the largest value of a block."""
    rows, columns, names = len(figure.row_labels), len(figure.column_labels), list(map(_short, figure.row_labels))
    around, caption = 0.95 + LETTER * _longest(names), LINE if figure.names else 0.0
    cell = min((PAGE - around) / columns, TALLEST / rows - caption, 1.0)
    dots, gap, above = (math.ceil(DOTS * inches) for inches in (cell - 0.04, 0.04, caption))
    mosaic = np.full((rows * (dots + gap + above), columns * (dots + gap)), np.nan)
    canvas = _canvas(figure.title, max(columns * cell + around, 2.2), rows * (cell + caption) + 0.6)
    axes = canvas.add_subplot()
    for row, column in np.ndindex(rows, columns):
        if (matrix := figure.maps[row][column]) is None:
            continue
        y, x, size = row * (dots + gap + above) + above, column * (dots + gap), len(matrix)
        places = np.arange(dots) * size // dots
        picture = np.maximum.reduceat(np.maximum.reduceat(matrix, places, axis=0), places, axis=1)
        mosaic[y : y + dots, x : x + dots] = _scale(figure.unit) * picture
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), dots, dots, fill=False, edgecolor="0.6", linewidth=0.3))
        if figure.names:
            name = _short(figure.names[row][column], max(1, int(cell / 0.06)))
            axes.text(x + dots / 2, y - 3, name, ha="center", va="bottom", fontsize=7)
    most = np.nanmax(mosaic) if figure.top is None else _scale(figure.unit) * figure.top
    image = axes.imshow(mosaic, sns.color_palette("rocket_r", as_cmap=True), vmin=0.0, vmax=most or 1.0)
    bar = canvas.colorbar(image, ax=axes, shrink=0.5, extend="max" if most < np.nanmax(mosaic) else "neither")
    bar.set_label(_with_unit(figure.value_label, figure.unit))
    turned = 90 if max(map(len, figure.column_labels)) * LETTER > cell else 0
    axes.set_xticks(np.arange(columns) * (dots + gap) + dots / 2, map(_short, figure.column_labels), rotation=turned)
    axes.set_yticks(np.arange(rows) * (dots + gap + above) + above + dots / 2, names)
    axes.set(xlabel=figure.column_label, ylabel=figure.row_label)
    axes.tick_params(length=0)
    sns.despine(ax=axes, left=True, bottom=True)
    return canvas


@_draw.register
def _(figure: AttentionLines) -> Canvas:
    """Draw one line per pair of words with the weight as opacity; many words are smaller and closer.

    Weights under `UNSEEN` are left out. Gold arcs lie on top, thicker, in colour and with an opacity of at least 0.4;
    arcs under `FAINT` are thin dashed lines.
    """
    size, weights = len(figure.words), np.minimum(np.asarray(figure.weights, dtype=np.float64), 1.0)
    pitch = min(max(TALLEST / size, 0.138), 0.18)
    # Long sentences get a wider figure; otherwise lines between distant words would be almost vertical.
    canvas = _canvas(figure.title, min(COLUMN + 0.08 * max(size - 30, 0), PAGE), size * pitch + 0.3)
    axes, palette = canvas.add_subplot(), sns.color_palette("colorblind")
    seen = [pair for pair in map(tuple, np.argwhere(weights >= UNSEEN)) if pair not in figure.arcs]
    strong, faint = ([arc for arc in figure.arcs if (weights[arc] >= FAINT) == wide] for wide in (True, False))
    kinds: dict[str, Artist] = {}
    for label, pairs, colour, least, width, dashes in (
        ("attention", seen, palette[0], 0.0, 0.9, "-"),
        ("gold arc", strong, palette[3], 0.4, 1.7, "-"),
        (f"gold arc, below {FAINT}", faint, palette[3], 0.9, 0.7, "--"),
    ):
        pairs.sort(key=lambda pair: (weights[pair], pair))  # the largest weights are drawn last, on top
        opaque = [(*colour, max(weights[pair], least)) for pair in pairs]
        style: dict[str, Any] = {"linewidths": width, "linestyles": dashes, "label": label}
        ends = [((0.01, one), (0.99, two)) for one, two in pairs]
        if pairs:
            axes.add_collection(LineCollection(ends, colors=opaque, **style), autolim=False)
            kinds[label] = LineCollection([], colors=[colour], **style)
    for side, label, at, align in ((axes, figure.from_label, 0, "right"), (axes.twinx(), figure.to_label, 1, "left")):
        side.set(xlim=(0.0, 1.0), xticks=(), ylim=(size - 0.5, -0.5))
        side.set_yticks(range(size), [_short(word, WORD) for word in figure.words], fontsize=7)
        side.tick_params(length=0, pad=2)
        name = _fill(label, WORD)
        side.annotate(name, (at, 1), (0, 3), "axes fraction", "offset points", ha=align, fontweight="bold")
        sns.despine(ax=side, left=True, bottom=True)
    if kinds:
        _legend(canvas, list(kinds.values()), kinds, 1.6)
    return canvas


@_draw.register
def _(figure: Spreads) -> Canvas:
    """Draw lying violins with their numbers of values, and rates as bars in a second panel on the right."""
    names, series = [_fill(name, NAME) for name in figure.categories], list(figure.series)
    height = max(0.13 * len(series) + 0.15, LINE * (max(name.count("\n") for name in names) + 1) + 0.08)
    canvas = _canvas(figure.title, COLUMN, min(height * len(names), TALLEST) + 0.8)
    panels = canvas.subplots(1, 2 if figure.rates else 1, squeeze=False, sharey=True)[0]
    style: dict[str, Any] = {"y": "category", "hue": "series", "order": figure.categories, "hue_order": series}
    style |= {"orient": "h", "palette": sns.color_palette("colorblind", len(series)), "saturation": 1.0}
    frame = figure.frame()
    frame["value"] *= _scale(figure.unit)
    violins: dict[str, Any] = {"cut": 0, "density_norm": "width", "inner_kws": {"box_width": 2, "whis_width": 0}}
    drawn = frame.dropna(subset="value")
    sns.violinplot(drawn, x="value", linewidth=0.5, ax=panels[0], legend=False, **violins, **style)
    for index, groups in enumerate(figure.series.values()):
        for place, values in enumerate(groups):
            at = (1.0, place + 0.8 * ((index + 0.5) / len(series) - 0.5))
            number = f"{np.isfinite(values).sum():,}"
            across = panels[0].get_yaxis_transform()  # x in the axes, y in the data
            panels[0].annotate(number, at, (2, 0), across, "offset points", va="center", fontsize=7, color="0.35")
    label = _fill(_with_unit(figure.label, figure.unit), 20 if figure.rates else 34)
    panels[0].set(xlabel=f"{label}\nbar: quartiles,\nwhite: median, right: n", ylabel=_fill(figure.category_label, 24))
    panels[0].set_yticks(range(len(names)), names)
    if figure.rates:
        sns.barplot(frame.assign(rate=100 * frame["rate"]), x="rate", ax=panels[1], legend=False, **style)
        panels[1].set(xlabel=_fill(_with_unit(figure.rate_label, "fraction"), 14), xlim=(0, None))
    for panel in panels:
        panel.tick_params(axis="y", length=0)
        panel.grid(axis="x")
        panel.xaxis.set_major_locator(MaxNLocator(3 if figure.rates else 5))
        sns.despine(ax=panel, left=True)
    if len(series) > 1:
        _legend(canvas, [Patch(facecolor=colour) for colour in style["palette"]], series)
    return canvas


@_draw.register
def _(figure: Curves) -> Canvas:
    """Draw lines and points, one colour per name, points on top; a plane is framed and has no ticks."""
    names = list({**figure.lines, **figure.points})
    canvas = _canvas(figure.title, COLUMN, 2.4)
    axes, palette = canvas.add_subplot(), "rocket_r" if figure.bar_label else "colorblind"
    colours = sns.color_palette(palette, len(names))
    for index, name in enumerate(names):
        style: dict[str, Any] = {"color": colours[index], "marker": "o" if figure.bar_label else MARKERS[index % 12]}
        if name in figure.lines:
            x, y = figure.lines[name]
            style |= {"linestyle": DASHES[index % len(DASHES)], "markevery": math.ceil(len(x) / SHORT) or None}
            axes.plot(x, y, label=name, linewidth=1.2, markersize=3, **style)
        if name in figure.points:
            x, y = figure.points[name]
            style |= {"linestyle": "", "markevery": None, "label": None if name in figure.lines else name}
            many = {"markersize": 2.5, "markeredgewidth": 0, "alpha": 0.5}
            few = {"markersize": 5, "markeredgewidth": 0.5, "markeredgecolor": "white"}
            axes.plot(x, y, zorder=2.5, **style, **(many if len(x) >= MANY else few))
    if figure.plane:
        axes.set(xticks=(), yticks=(), aspect="equal", adjustable="datalim")
    else:
        _set_axes(axes, figure)
    if len(names) > 1 or figure.plane:
        _legend(canvas, *axes.get_legend_handles_labels(), 1.0 if figure.plane else 2.4, figure.bar_label)
    return canvas


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
    elif all(float(one).is_integer() for x, _ in (*figure.lines.values(), *figure.points.values()) for one in x):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid()
    sns.despine(ax=axes)
