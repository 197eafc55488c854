"""Draws figures of results with matplotlib, for print: readable in one column, in colours safe for the colour-blind.

Without pyplot, figures share no state and need no display.
"""

import math
import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import singledispatch
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import seaborn as sns
from matplotlib import rc_context, rc_params_from_file
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import BoundaryNorm, ListedColormap, Normalize
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import FontPath, findfont, findSystemFonts, fontManager, get_font
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

from results import AttentionLines, Bars, Curves, HeatMap, Maps, Spreads, Unit
from results.errors import counted

# Widths in inches: a column and the text of a page in the style of ACL (7.7 and 16 cm), where figures are printed at
# their own size; a letter of a tick label, a label, a caption, a title.
COLUMN, PAGE = 3.03, 6.3
CHARACTER, LETTER, LITTLE, TITLE = 0.058, 0.065, 0.05, 0.075
PAD, AMPLE = 0.06, 6.0  # margin of a figure; height for what is above and below the axes, until it is measured
FONT = "DejaVu Sans"  # is part of matplotlib, so that figures are the same on every machine

LEGEND: dict[str, Any] = {"frameon": False, "handletextpad": 0.5, "columnspacing": 1.0}
STYLE = rc_params_from_file(Path(__file__).with_name("print.mplstyle"), use_default_template=False)


@contextmanager
def fonts_for(text: str) -> Iterator[None]:
    """Make matplotlib use `FONT` within a `with` block, and other installed fonts for letters that `FONT` lacks.

    Only the letters of `text` are considered. If no installed font has a letter, a warning names its
    script.
    """
    families, missing = _families(text)
    if missing:
        scripts = sorted({unicodedata.name(letter, "unnamed").split()[0].lower() for letter in missing})
        warnings.warn(
            f"No installed font has {counted(len(missing), 'character')} of the figures ({', '.join(scripts)}): boxes "
            "are drawn instead. Install a font with them, for instance Debian's fonts-noto-cjk for Chinese, Japanese "
            "and Korean, or fonts-noto-core for other scripts.",
            stacklevel=3,
        )
    with rc_context({"font.family": families}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font")
        yield


def _families(text: str) -> tuple[list[str], set[str]]:
    """Return the fewest fonts that have the characters of a text, `FONT` first, and the characters that none has."""
    families = [FONT]
    missing = {letter for letter in text if letter.isprintable()} - _letters(findfont(FONT))
    if not missing:
        return families, missing
    known = {entry.fname for entry in fontManager.ttflist}
    for path in findSystemFonts():  # matplotlib's own list lacks fonts installed later
        if path not in known:
            with suppress(OSError, RuntimeError):  # matplotlib cannot draw this font
                fontManager.addfont(path)
    fonts = {
        entry.name: _letters(FontPath(entry.fname, entry.index))
        for entry in fontManager.ttflist
        if (entry.style, entry.weight) == ("normal", 400)
        if not entry.name.startswith("Last Resort")  # draws a box for every character
    }
    # Han characters have different shapes in different languages; a collection has a font for each.
    kana, hangul = (any(low <= letter <= high for letter in missing) for low, high in ("ぁヿ", "가힣"))
    region = "JP" if kana else "KR" if hangul else "SC"
    while missing:
        best = max(sorted(fonts), key=lambda name: (len(missing & fonts[name]), "Sans" in name, name.endswith(region)))
        if not missing & fonts[best]:
            break
        families.append(best)
        missing -= fonts[best]
    return families, missing


def _letters(path: FontPath) -> set[str]:
    return set(map(chr, get_font(path).get_charmap()))


def _canvas(title: str, width: float, height: float, *, pad: float = PAD, compress: bool = False) -> Canvas:
    """Make an empty figure under its title, of a width in inches, with room for axes of a height; see `_fit`."""
    layout = ConstrainedLayoutEngine(h_pad=pad, w_pad=pad, compress=compress)
    canvas = Canvas(figsize=(width, height + AMPLE), layout=layout)
    canvas.suptitle(_fill(title, max(16, int(width / TITLE))))  # not the axes' title: it stands above the legend
    return canvas


def _fit(canvas: Canvas, axes: Axes, height: float) -> None:
    """Set the height of a figure so that its axes have the height that is given."""
    canvas.draw_without_rendering()
    canvas.set_figheight(canvas.get_figheight() + height - axes.get_window_extent().height / canvas.dpi)


def _fit_grid(canvas: Canvas, axes: Axes, width: float, height: float) -> None:
    """Set the size of a figure so that its grid of cells has the size that is given."""
    canvas.draw_without_rendering()
    cells, whole = axes.get_window_extent(), axes.get_tightbbox()
    assert whole is not None
    beyond = [part.get_window_extent() for part in (*canvas.texts, *canvas.legends)]
    others = sum(box.height / canvas.dpi + 2 * PAD for box in beyond if box.height)
    around = (whole.width - cells.width) / canvas.dpi, (whole.height - cells.height) / canvas.dpi + others
    canvas.set_size_inches(max(width + around[0] + 2 * PAD, NARROWEST), height + around[1] + 2 * PAD)


def _scale(unit: Unit) -> float:
    return 100.0 if unit == "fraction" else 1.0


def _with_unit(label: str, unit: Unit) -> str:
    """Mark the label of an axis whose fractions are shown ×100."""
    return f"{label} (%)" if unit == "fraction" and "%" not in label else label


def _spread(text: str) -> str:
    """Append a null to each letter of double width, such as Chinese, so that the length equals the width."""
    return "".join(letter + "\0" * (unicodedata.east_asian_width(letter) in "WF") for letter in text)


def _fill(text: str, letters: float) -> str:
    """Break a text into lines of the width of so many Latin letters. The name of an encoder stays whole."""
    return textwrap.fill(_spread(text), max(1, int(letters)), break_on_hyphens=False).replace("\0", "")


def _short(name: str, letters: int) -> str:
    """Cut a name to the width of so many Latin letters; an ellipsis stands for the rest."""
    spread = _spread(name)
    return name if len(spread) <= letters else f"{spread[: letters - 1]}…".replace("\0", "")


def _longest(names: Iterable[str]) -> int:
    """Return the width of the widest line of names, in Latin letters."""
    return max(len(_spread(line)) for name in names for line in name.split("\n"))


def _legend_above(
    axes: Axes, names: Iterable[str], handles: Sequence[Artist] = (), *, width: float = COLUMN, length: float = 1.0
) -> Legend:
    """Put the legend above the axes, in one line where its names fit `width` inches, in columns otherwise.

    Without handles it takes the labelled artists of the axes; `length` is the length of the handles, in letters.
    """
    room, handle = width - 0.15, 0.18 + 0.1 * length
    labels = [_fill(name, (room - handle) / CHARACTER) for name in names]
    widths = [_longest([label]) * CHARACTER + handle for label in labels]
    return axes.legend(
        handles or axes.get_legend_handles_labels()[0],
        labels,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(widths) if sum(widths) <= room else max(1, int(room / max(widths))),
        handlelength=length,
        borderaxespad=0.2,
        **LEGEND,
    )


DOTS = 200  # dots per inch of a PNG
FEW = 8  # most rows and columns of a heat map whose cells contain their numbers
LETTERS = 13  # most letters of a word beside attention lines; a longer word, such as an address, ends in an ellipsis
UNSEEN, FAINT = 0.01, 0.1  # smallest attention that is drawn; smallest attention of a gold arc with a solid line
FEW_VALUES = 5  # fewer values are drawn as dots
SHORT = 12  # most points of a line with a marker at every point
MANY = 200  # smallest number of points that are small and transparent
NAME_LETTERS = 22  # letters in a line of a category's name
NARROWEST = 2.2  # smallest width of a figure in inches, for its title
TALLEST = 7.5  # greatest height of the rows, in inches: title, legend and caption take the rest of a page
# Series differ also in print without colour and for the colour-blind. The numbers of dashes and markers have no common
# divisor, so that lines with the same dash have different markers.
DASHES = ("-", "--", "-.", ":", (0, (7, 1.5)), (0, (4, 1.2, 1, 1.2, 1, 1.2)), (0, (1, 3)))
MARKERS = "osD^vPX*<>hp"
HATCHES = ("", "/////", "\\\\\\\\\\", "xxxxx", "-----", "|||||", "+++++", ".....", "/////-----", "\\\\\\\\\\|||||")
INK = "0.15"


def draw(figure: object) -> Canvas:
    """Draw a figure, such as a `results.Bars`, with matplotlib in sizes for print.

    Returns:
        The matplotlib figure.

    Raises:
        TypeError: The figure is a `ColouredTexts`, which is a page of HTML, or has an unknown type.
    """
    with rc_context(STYLE):
        return _draw(figure)


@singledispatch
def _draw(figure: object) -> Canvas:
    raise TypeError(f"there is no drawing function for {type(figure).__name__}: add one in results/drawing.py")


@_draw.register
def _(figure: Bars) -> Canvas:
    """Draw upright bars where the names fit under them, else lying bars."""
    names, series = [_fill(name, NAME_LETTERS) for name in figure.categories], len(figure.series)
    needed = sum(max(_longest([name]) * CHARACTER, 0.07 * series) + 0.06 for name in names)
    lying = needed > COLUMN - 0.5
    lines = 1 + max(name.count("\n") for name in names)
    height = max(0.065 * series + 0.08, 0.12 * lines + 0.05) * len(names) if lying else 1.6
    canvas = _canvas(figure.title, COLUMN, height)
    axes = canvas.add_subplot()
    _draw_series(axes, figure, lying)
    ends, places, label = (-0.6, len(names) - 0.4), range(len(names)), _with_unit(figure.label, figure.unit)
    if lying:
        label = _fill(label, (COLUMN - 0.5 - CHARACTER * _longest(names)) / LETTER)
        kind = _fill(figure.category_label, max(8, height / LETTER))
        axes.set(xlabel=label, ylabel=kind, yticks=places, yticklabels=names, ylim=ends[::-1])
        axes.axvline(0.0, color=INK, linewidth=0.6)
    else:
        label, kind = _fill(label, 1.7 / LETTER), _fill(figure.category_label, 34)
        axes.set(ylabel=label, xlabel=kind, xticks=places, xticklabels=names, xlim=ends)
        axes.axhline(0.0, color=INK, linewidth=0.6)
    axes.tick_params(axis="y" if lying else "x", length=0)
    axes.grid(axis="x" if lying else "y")
    sns.despine(ax=axes, left=lying, bottom=not lying)
    if series > 1:
        _legend_above(axes, figure.series)
    _fit(canvas, axes, height)
    return canvas


def _draw_series(axes: Axes, figure: Bars, lying: bool) -> None:
    """Draw the series side by side in each group, with their intervals."""
    scale = _scale(figure.unit)
    places = np.arange(len(figure.categories), dtype=np.float64)
    width = 0.8 / len(figure.series)
    colours = sns.color_palette("colorblind", len(figure.series))
    for index, (name, series) in enumerate(figure.series.items()):
        values: NDArray[np.float64] = np.asarray(series, dtype=np.float64) * scale
        at = places + (index - (len(figure.series) - 1) / 2) * width
        bars = axes.barh if lying else axes.bar
        bars(at, values, width, label=name, color=colours[index], linewidth=0, **_hatched(index))
        if name not in figure.intervals:
            continue
        low, high = np.asarray(figure.intervals[name], dtype=np.float64) * scale
        known = np.isfinite(values) & np.isfinite(low) & np.isfinite(high)
        # Lines instead of error bars, because error bars must contain the value.
        lines = axes.hlines if lying else axes.vlines
        lines(at[known], low[known], high[known], color=INK, linewidth=0.7)


def _hatched(index: int) -> dict[str, Any]:
    """Return the hatch of a series, which distinguishes its areas without colour."""
    return {"hatch": HATCHES[index % len(HATCHES)], "hatchcolor": "white"}


@_draw.register
def _(figure: HeatMap) -> Canvas:
    """Draw square cells, the first row at the top, over two columns of the page where one is too narrow.

    Few cells contain their numbers, and categories their letters. The scale of fractions begins at zero.
    """
    values = np.ma.masked_invalid(np.asarray(figure.values, dtype=np.float64))
    rows, columns = values.shape
    names = _cell_names(figure)
    around = (0.5 if figure.glyphs else 1.1) + CHARACTER * _longest(names[0])
    cell = _cell_size(figure, around)
    width, size = max(columns * cell + around, NARROWEST), (columns * cell, rows * cell)
    canvas = _canvas(figure.title, width, size[1], compress=True)
    axes = canvas.add_subplot()
    if figure.glyphs:
        _draw_categories(canvas, axes, figure, values, cell, width)
    else:
        _draw_numbers(canvas, axes, figure, values * _scale(figure.unit), cell)
    _name_cells(axes, figure, names, cell, size[1])
    if figure.marked is not None:
        _mark(axes, *figure.marked)
    sns.despine(ax=axes, left=True, bottom=True)
    _fit_grid(canvas, axes, *size)
    return canvas


def _cell_size(figure: HeatMap, around: float) -> float:
    """Return the side of a cell: one column of the page where that leaves enough for a cell, else two."""
    rows, columns = len(figure.row_labels), len(figure.column_labels)
    least = 0.17 if figure.glyphs else 0.1
    wide = next((width for width in (COLUMN, PAGE) if (width - around) / columns >= least), PAGE)
    cell = (wide - around) / columns
    if figure.glyphs:
        return min(cell, 0.3, 9.0 / rows)
    # Few cells are enlarged, for their numbers and for the label of the colour bar.
    return min(cell, max(0.4, 1.6 / rows) if max(rows, columns) <= FEW else 0.4, TALLEST / rows)


def _draw_numbers(canvas: Canvas, axes: Axes, figure: HeatMap, values: np.ma.MaskedArray, cell: float) -> None:
    """Draw the values, fractions ×100, as colours with a colour bar."""
    rows, columns = values.shape
    colours = sns.color_palette("vlag" if figure.diverging else "rocket_r", as_cmap=True).with_extremes(bad="0.8")
    scale = _scale(figure.unit)
    least, most = _ends(figure, values / scale)
    image = axes.imshow(values, cmap=colours, vmin=scale * least, vmax=scale * most)
    if max(rows, columns) <= FEW:
        digits = 0 if np.abs(values).max() >= 10 else 2
        _write_cells(axes, values, image, lambda value: f"{value:.{digits}f}", 6.5)
    elif figure.diverging:
        _mark_negative(axes, values, image, cell)
    _draw_bar(canvas, axes, image, (1.03, 0.0, min(0.08 / (columns * cell), 0.1), 1.0), figure, rows * cell)


def _draw_categories(
    canvas: Canvas, axes: Axes, figure: HeatMap, values: np.ma.MaskedArray, cell: float, width: float
) -> None:
    """Draw the colours of the categories with their letters, and a legend of both below."""
    names, glyphs = list(figure.glyphs), list(figure.glyphs.values())
    colours = sns.color_palette("colorblind", len(names))
    palette = ListedColormap(colours).with_extremes(bad="white")
    image = axes.imshow(values, cmap=palette, vmin=-0.5, vmax=len(names) - 0.5)
    _write_cells(axes, values, image, lambda value: glyphs[int(value)], min(6.5, 72 * cell / 1.6))
    axes.set_xticks(np.arange(values.shape[1] + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(values.shape[0] + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.5)  # lines between the cells
    axes.tick_params(which="minor", length=0)
    entries = [f"{glyph}  {_short(name, int((width - 0.6) / CHARACTER))}" for name, glyph in figure.glyphs.items()]
    room = max(1, int((width - 0.1) / (_longest(entries) * CHARACTER + 0.3)))
    handles = [Patch(facecolor=colour) for colour in colours]
    canvas.legend(handles, entries, loc="outside lower center", ncols=room, handlelength=1.0, **LEGEND)


def _draw_bar(
    canvas: Canvas,
    axes: Axes,
    image: ScalarMappable,
    box: tuple[float, float, float, float],
    figure: HeatMap | Maps,
    height: float,
    extend: Literal["max", "neither"] = "neither",
) -> None:
    """Draw a colour bar of a height in inches in a box beside the cells."""
    # An inset has the height of the cells; a colour bar beside the axes would have the height of the figure.
    bar = canvas.colorbar(image, cax=axes.inset_axes(box), extend=extend)
    bar.locator = MaxNLocator(5)
    bar.set_label(_fill(_with_unit(figure.value_label, figure.unit), max(10, height / LETTER)))
    bar.outline.set_visible(False)


def _ends(figure: HeatMap, values: np.ma.MaskedArray) -> tuple[float, float]:
    """Return the values at the ends of the colour scale."""
    low, high = figure.limits or ((float(values.min()), float(values.max())) if values.count() else (0.0, 1.0))
    if figure.diverging:
        return -max(abs(low), abs(high)), max(abs(low), abs(high))
    return min(low, 0.0) if figure.unit == "fraction" else low, high


def _write_cells(
    axes: Axes, values: np.ma.MaskedArray, image: AxesImage, text: Callable[[float], str], size: float
) -> None:
    """Write the text of each value into its cell, pale on dark colours, in letters of a size in points."""
    for row, column in zip(*(~np.ma.getmaskarray(values)).nonzero(), strict=True):
        ink = _ink(image, values[row, column])
        axes.text(column, row, text(values[row, column]), ha="center", va="center", color=ink, fontsize=size)


def _mark_negative(axes: Axes, values: np.ma.MaskedArray, image: AxesImage, cell: float) -> None:
    """Write a minus sign into the cells below zero, as red and blue are alike in grey; not into those almost white."""
    seen = np.ma.filled(np.ma.asarray(image.norm(values)) < 0.475, False)  # zero lies at the middle of the scale
    for row, column in np.argwhere(seen).tolist():
        ink = _ink(image, values[row, column])
        axes.plot(column, row, "_", color=ink, markersize=min(72 * 0.35 * cell, 5.0), markeredgewidth=0.8)


def _ink(image: AxesImage, value: float) -> str:
    """Return the colour of letters on the colour of a value."""
    [(red, green, blue, _)] = image.to_rgba(np.array([value]))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else INK


def _mark(axes: Axes, row: int, column: int) -> None:
    """Frame a cell in black on white, visible on light and dark cells."""
    frame = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=1.1, clip_on=False)
    frame.set_path_effects([withStroke(linewidth=2.6, foreground="white")])
    axes.add_patch(frame)


def _cell_names(figure: HeatMap | Maps) -> tuple[list[str], list[str]]:
    """Return the names of the rows and of the columns of a grid; long ones end in an ellipsis."""
    rows, columns = (
        [_short(name, NAME_LETTERS) for name in names] for names in (figure.row_labels, figure.column_labels)
    )
    return rows, columns


def _are_turned(names: Sequence[str], cell: float) -> bool:
    """Return True if names of columns do not fit below their cells."""
    return _longest(names) > 2 and _longest(names) * CHARACTER + 0.025 > cell


def _name_cells(
    axes: Axes, figure: HeatMap, names: tuple[Sequence[str], Sequence[str]], cell: float, height: float
) -> None:
    """Label rows and columns, these horizontally where they fit, else turned; only some where there is little room."""
    rows, columns = names
    turned = _are_turned(columns, cell)
    step = math.ceil((0.11 if turned else _longest(columns) * CHARACTER + 0.025) / cell)
    axes.set_xticks(range(0, len(columns), step), columns[::step], rotation=90 if turned else 0)
    step = math.ceil(0.11 / cell)
    axes.set_yticks(range(0, len(rows), step), rows[::step])
    axes.set(xlabel=figure.column_label, ylabel=_fill(figure.row_label, max(8, height / LETTER)))
    axes.tick_params(length=0)


@_draw.register
def _(figure: Maps) -> Canvas:
    """Draw framed pictures of one size, over two columns of the page where they are many; see `_shrunk`."""
    rows, columns = len(figure.row_labels), len(figure.column_labels)
    row_names, column_names = _cell_names(figure)
    around = 0.95 + CHARACTER * _longest(row_names)
    caption = 0.14 if figure.names else 0.0
    gap = 0.04
    cell = min((PAGE - around) / columns - gap, (9.2 - 0.85) / rows - gap - caption, 1.0)
    width = max(columns * (cell + gap) + around, NARROWEST)
    size = columns * (cell + gap) - gap, rows * (cell + gap + caption) - gap
    canvas = _canvas(figure.title, width, size[1], compress=True)
    axes = canvas.add_subplot()
    pitch, drop = 1 + gap / cell, 1 + (gap + caption) / cell  # from one picture to the next, in sizes of a picture
    drawn = {(y, x): one for y, row in enumerate(figure.maps) for x, one in enumerate(row) if one is not None}
    scale, pixels = _scale(figure.unit), math.ceil(cell * DOTS)
    most = float(max(map(np.max, drawn.values())))
    top = most if figure.top is None else figure.top
    norm = Normalize(0.0, scale * (top or 1.0))
    colours = sns.color_palette("rocket_r", as_cmap=True)
    for (y, x), one in drawn.items():
        left, upper = x * pitch, y * drop
        corners = (left, left + 1, upper + 1, upper)
        axes.imshow(_shrunk(one * scale, pixels), colours, norm, extent=corners, interpolation="nearest")
        axes.add_patch(Rectangle((left, upper), 1, 1, fill=False, edgecolor="0.6", linewidth=0.3, clip_on=False))
        if figure.names:
            name = _short(figure.names[y][x], max(1, int(cell / LITTLE)))
            axes.text(left + 0.5, upper - 0.02, name, ha="center", va="bottom", fontsize=6)
    axes.set(xlim=(0.0, columns * pitch - gap / cell), ylim=(rows * drop - (gap + caption) / cell, -caption / cell))
    axes.set(xlabel=figure.column_label, ylabel=figure.row_label)
    axes.set_xticks(0.5 + pitch * np.arange(columns), column_names, rotation=90 * _are_turned(column_names, cell))
    axes.set_yticks(0.5 + drop * np.arange(rows), row_names)
    axes.tick_params(length=0)
    across, high = columns * (cell + gap), min(1.0, 1.5 / size[1])
    box = (1 + 0.07 / across, 1 - high, 0.08 / across, high)
    arrow: Literal["max", "neither"] = "max" if top < most else "neither"
    _draw_bar(canvas, axes, ScalarMappable(norm, colours), box, figure, high * size[1], arrow)
    sns.despine(ax=axes, left=True, bottom=True)
    _fit_grid(canvas, axes, *size)
    return canvas


def _shrunk(matrix: NDArray[np.floating], most: int) -> NDArray[np.floating]:
    """Return a matrix of at most so many rows and columns: the largest value of each block, so that thin lines stay."""
    if len(matrix) <= most:
        return matrix
    starts = np.arange(most) * len(matrix) // most
    return np.maximum.reduceat(np.maximum.reduceat(matrix, starts, axis=0), starts, axis=1)


@_draw.register
def _(figure: AttentionLines) -> Canvas:
    """Draw one line per pair of words with the weight as opacity; many words are smaller and closer.

    Weights under `UNSEEN` are left out. Gold arcs lie on top, thicker, in colour and with an opacity of at least 0.4;
    arcs under `FAINT` are thin dashed lines.
    """
    size = len(figure.words)
    pitch = min(max(7.8 / size, 0.138), 0.18)  # letters of 6 to 7.5 points
    # Long sentences get a wider figure; otherwise lines between distant words would be almost vertical.
    width = min(COLUMN + 0.08 * max(size - 30, 0), PAGE)
    names = [_short(word, LETTERS) for word in figure.words]
    with rc_context({"ytick.labelsize": min(44 * pitch, 7.5)}):
        canvas = _canvas(figure.title, width, size * pitch, pad=0.05)
        axes = canvas.add_subplot()
        kinds = _draw_pairs(axes, figure)
        for side, label in ((axes, figure.from_label), (axes.twinx(), figure.to_label)):
            side.set(xlim=(0.0, 1.0), xticks=(), ylim=(size - 0.5, -0.5))
            side.set_yticks(range(size), names)
            side.tick_params(length=0, pad=2)
            # Above the words, which are two points from the axes.
            at, points, align = (0, -2, "right") if side is axes else (1, 2, "left")
            name = _fill(label, LETTERS)
            side.annotate(name, (at, 1), (points, 3), "axes fraction", "offset points", ha=align, fontweight="bold")
            sns.despine(ax=side, left=True, bottom=True)
        if kinds:
            canvas.legend(
                handles=kinds, loc="outside lower center", ncols=min(2, len(kinds)), handlelength=1.6, **LEGEND
            )
        _fit(canvas, axes, size * pitch)
        return canvas


def _draw_pairs(axes: Axes, figure: AttentionLines) -> list[Line2D]:
    """Draw the lines between the columns at 0 and 1; return a handle of each kind of line for the legend."""
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
        # The largest weights are drawn last, on top.
        pairs.sort(key=lambda pair: (weights[pair], pair))
        ends = [((0.01, one), (0.99, two)) for one, two in pairs]
        opaque = [(*colour, max(weights[pair], least)) for pair in pairs]
        lines = LineCollection(ends, colors=opaque, linewidths=width, linestyles=[dashes], label=label)
        axes.add_collection(lines, autolim=False)
        handles.append(Line2D([], [], color=colour, linewidth=width, linestyle=dashes, label=label))
    return handles


@_draw.register
def _(figure: Spreads) -> Canvas:
    """Draw lying violins with their numbers of values, and rates as bars in a second panel on the right."""
    names, series = [_fill(name, NAME_LETTERS) for name in figure.categories], len(figure.series)
    pitch = max(0.13 * series + 0.15, 0.12 * (max(name.count("\n") for name in names) + 1) + 0.08)
    pitch, width = min(pitch, TALLEST / len(names)), 0.84 / series
    canvas = _canvas(figure.title, COLUMN, pitch * len(names), pad=0.05)
    shares = (5, 3) if figure.rates else (1,)
    panels = canvas.subplots(1, len(shares), squeeze=False, sharey=True, width_ratios=shares)[0]
    _draw_groups(panels, figure, width, min(6.0, 65 * pitch * width))
    room = (COLUMN - 0.5 - CHARACTER * _longest(names)) / LETTER
    panels[0].set(
        xlabel=_fill(_with_unit(figure.label, figure.unit), max(14, 0.6 * room if figure.rates else room)),
        ylabel=_fill(figure.category_label, max(8, int(pitch * len(names) / LETTER))),
        yticks=range(len(names)),
        yticklabels=names,
        ylim=(len(names) - 0.5, -0.5),
    )
    if figure.rates:
        panels[1].set_xlabel(_fill(_with_unit(figure.rate_label, "fraction"), max(8, 0.35 * room)))
        panels[1].set_xlim(0.0, max(panels[1].get_xlim()[1], 1.0))
    for panel, share in zip(panels, shares, strict=True):
        panel.tick_params(axis="y", length=0)
        panel.grid(axis="x")
        ticks = int(room * LETTER * share / sum(shares) / 0.3)
        panel.xaxis.set_major_locator(MaxNLocator(max(1, min(5, ticks))))
        sns.despine(ax=panel, left=True)
    note = "bar: quartiles, dot: median, numbers: n of each row"
    canvas.supxlabel(_fill(note, 0.9 * COLUMN / LITTLE), fontsize=6, color="0.35")
    _fit(canvas, panels[0], pitch * len(names))
    if series > 1:
        _name_spreads(canvas, panels[-1], figure)
    return canvas


def _name_spreads(canvas: Canvas, panel: Axes, figure: Spreads) -> None:
    """Put the legend above the panel, and make the figure higher by it."""
    colours = sns.color_palette("colorblind", len(figure.series))
    patches = [Patch(facecolor=colour, linewidth=0, **_hatched(index)) for index, colour in enumerate(colours)]
    # Without rates, the numbers of values are at the right edge.
    edge = 0.0 if figure.rates else 0.3
    legend = _legend_above(panel, figure.series, patches, width=COLUMN - edge)
    # The layout would widen the panel for the legend; it needs room above only.
    legend.set_in_layout(False)
    room, height = legend.get_window_extent().height / canvas.dpi, canvas.get_figheight()
    canvas.set_figheight(height + room)
    if isinstance(engine := canvas.get_layout_engine(), ConstrainedLayoutEngine):
        engine.set(rect=(0.0, 0.0, 1.0, height / (height + room)))


def _draw_groups(panels: Sequence[Axes], figure: Spreads, width: float, letters: float) -> None:
    """Draw the series side by side in each category; `letters` is the size of the numbers of values, in points."""
    axes, series, scale = panels[0], len(figure.series), _scale(figure.unit)
    places = np.arange(len(figure.categories), dtype=np.float64)
    colours = sns.color_palette("colorblind", series)
    least = 0.0
    for index, (name, groups) in enumerate(figure.series.items()):
        at = places + (index - (series - 1) / 2) * width
        arrays: list[NDArray[np.float64]] = [np.asarray(group, dtype=np.float64) * scale for group in groups]
        values = [array[~np.isnan(array)] for array in arrays]
        least = min([least, *(group.min() for group in values if len(group))])
        _draw_violins(axes, values, at, 0.85 * width, colours[index], _hatched(index))
        for place, group in zip(at, values, strict=True):
            grey: dict[str, Any] = {"va": "center", "fontsize": letters, "color": "0.35"}
            beside = axes.get_yaxis_transform()  # x in the axes, y in the data
            if not len(group):
                axes.text(0.02, place, "no values", transform=beside, fontstyle="italic", **grey)
            axes.annotate(f"{len(group):,}", (1.0, place), (2, 0), beside, "offset points", **grey)
        if name in figure.rates:
            rates = 100.0 * np.asarray(figure.rates[name], dtype=np.float64)
            panels[1].barh(at, rates, 0.85 * width, color=colours[index], linewidth=0, **_hatched(index))
    if least == 0.0:
        axes.set_xlim(left=0.0)


def _draw_violins(
    axes: Axes,
    values: Sequence[NDArray[np.float64]],
    at: NDArray[np.float64],
    width: float,
    colour: tuple[float, float, float],
    hatch: Mapping[str, Any],
) -> None:
    """Draw the groups of values of one series at their places; few values, and values that are all equal, are dots."""
    spread = [len(group) >= FEW_VALUES and bool(np.ptp(group) > 0) for group in values]
    for place, group, wide in zip(at, values, spread, strict=True):
        # Without dots nothing is drawn: an empty line would take room in the layout.
        if len(group) and not wide:
            dots = np.full(len(group), place)
            axes.plot(group, dots, "o", color=colour, markersize=2.5, markeredgewidth=0, clip_on=False)
    enough = [index for index, wide in enumerate(spread) if wide]
    if not enough:
        return
    groups, at = [values[index] for index in enough], at[enough]
    parts = axes.violinplot(groups, at, orientation="horizontal", widths=width, showextrema=False)
    for body in cast(list[PolyCollection], parts["bodies"]):
        body.set(facecolor=colour, edgecolor=colour, linewidth=0.5, alpha=0.75, **hatch)
    quartiles = np.array([np.percentile(group, (25, 50, 75)) for group in groups])
    axes.hlines(at, quartiles[:, 0], quartiles[:, 2], color=INK, linewidth=1.4)
    dot: dict[str, Any] = {"color": "white", "markersize": 2.4, "markeredgecolor": INK, "markeredgewidth": 0.4}
    # Not clipped, so that a dot at the start of the axis is whole.
    axes.plot(quartiles[:, 1], at, "o", zorder=3, clip_on=False, **dot)


@_draw.register
def _(figure: Curves) -> Canvas:
    """Draw lines and points, one colour per name, points on top; a plane is framed and has no ticks."""
    names, height = list({**figure.lines, **figure.points}), 2.4 if figure.plane else 1.8
    colours = sns.color_palette("rocket_r" if figure.bar_label else "colorblind", len(names))
    canvas = _canvas(figure.title, COLUMN, height)
    axes = canvas.add_subplot()
    _draw_curves(axes, figure, names, colours)
    if figure.plane:
        axes.set(xticks=(), yticks=())
        axes.margins(0.08)
    else:
        _set_axes(axes, figure)
    if figure.bar_label:
        steps = ScalarMappable(BoundaryNorm(np.arange(len(names) + 1) - 0.5, len(names)), ListedColormap(colours))
        bar = canvas.colorbar(steps, ax=axes, shrink=0.8)
        shown = range(0, len(names), math.ceil(len(names) / 16))
        bar.set_ticks(list(shown), labels=[names[index] for index in shown])
        bar.ax.tick_params(length=0)
        bar.outline.set_visible(False)
        bar.minorticks_off()
        bar.set_label(figure.bar_label)
    elif len(names) > 1 or figure.plane:
        for handle in _legend_above(axes, names, length=1.0 if figure.plane else 1.8).get_lines():
            handle.set(alpha=1.0, markersize=max(handle.get_markersize(), 4))
    _fit(canvas, axes, height)
    if figure.plane:  # after the size is known: limits that were widened for another size stay wide
        axes.set(aspect="equal", adjustable="datalim")
    return canvas


def _draw_curves(axes: Axes, figure: Curves, names: Sequence[str], colours: Sequence[Any]) -> None:
    for index, name in enumerate(names):
        marker = "o" if figure.bar_label else MARKERS[index % len(MARKERS)]
        if name in figure.lines:
            x, y = figure.lines[name]
            # Lines with many points get markers only if there are more lines than dashes.
            marks = marker if len(x) <= SHORT or len(names) > len(DASHES) else None
            dashes, every = DASHES[index % len(DASHES)], math.ceil(len(x) / SHORT) or None
            style: dict[str, Any] = {"linewidth": 1.2, "linestyle": dashes, "marker": marks, "markersize": 3}
            axes.plot(x, y, label=name, color=colours[index], markevery=every, **style)
        if name in figure.points:
            x, y = figure.points[name]
            label = None if name in figure.lines else name
            style = {"linestyle": "", "marker": marker, "zorder": 2.5, **_point_style(figure, len(x))}
            axes.plot(x, y, label=label, color=colours[index], **style)


def _point_style(figure: Curves, number: int) -> dict[str, Any]:
    """Return the style of a set of so many points."""
    if figure.plane:
        many = sum(len(x) for x, _ in figure.points.values()) >= MANY
        return {"markersize": 2.5 if many else 4.5, "markeredgewidth": 0.4, "markeredgecolor": INK}
    if number >= MANY:
        return {"markersize": 2.5, "markeredgewidth": 0, "alpha": 0.35}
    return {"markersize": 5, "markeredgewidth": 0.5, "markeredgecolor": "white"}


def _set_axes(axes: Axes, figure: Curves) -> None:
    """Label the axes; mark whole numbers alone where x counts something, such as layers."""
    axes.set(xlabel=_fill(figure.x_label, 34), ylabel=_fill(figure.y_label, int(1.8 / LETTER)))
    drawn = (*figure.lines.values(), *figure.points.values())
    if figure.log_x:
        axes.set_xscale("log")
    elif all(float(value).is_integer() for x, _ in drawn for value in x):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if figure.y_range is not None:
        axes.update_datalim([(0.0, end) for end in figure.y_range], updatex=False)
    axes.autoscale_view()
    if figure.log_x:
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 100 else (1.0, 2.0, 5.0)))
        # The default labels are formulas, which the style does not parse.
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid()
    sns.despine(ax=axes)
