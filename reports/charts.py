"""Drawings of many values: spreads, curves and histograms, registered with `reports.figures.draw`."""

import textwrap
from collections.abc import Sequence
from typing import Literal, cast

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

from reports.figures import draw
from reports.style import COLUMN, legend_above, print_style, with_unit, wrapped
from results import Curves, Histograms, Spreads

FEW = 5
"""Fewer values than these have no quartiles to speak of: each is drawn as a dot."""
SHORT = 12
"""Most coordinates of a line that has a mark at each."""
MANY = 200
"""From so many points on, they are small and transparent."""
WHISKERS = (5, 95)
"""The percentiles at which the whiskers of a box end."""
LETTER = 0.065
"""Width of a letter of a label, in inches."""
LETTERS = 22
"""Letters in a line of a category's name."""
TALLEST = 7.5
"""Height of the most rows, in inches: what title, legend and caption leave of a page."""
DASHES, MARKERS = ("-", "--", "-.", ":"), "osD^vPX*"
"""What tells lines and points apart beside their colours."""
INK = "0.15"


@draw.register
def _(figure: Spreads) -> Canvas:
    """Draw lying violins or boxes, the first category at the top, the number of values at the end of each row.

    Lying, so that names of any length fit. Rates are bars in the same rows, in a panel of their own on the right.
    """
    names, series = [textwrap.fill(name, LETTERS) for name in figure.categories], len(figure.series)
    pitch = max(0.13 * series + 0.15, 0.12 * (max(name.count("\n") for name in names) + 1) + 0.08)
    pitch, width = min(pitch, TALLEST / len(names)), 0.84 / series
    height = 1.0 + pitch * len(names)
    with print_style():
        engine = ConstrainedLayoutEngine(h_pad=0.05, w_pad=0.05)
        canvas = Canvas(figsize=(COLUMN, height), layout=engine)
        shares = (5, 3) if figure.rates else (1,)
        panels = canvas.subplots(1, len(shares), squeeze=False, sharey=True, width_ratios=shares)[0]
        _draw_groups(panels, figure, width, min(6.0, 65 * pitch * width))
        panels[0].set(
            xlabel=textwrap.fill(with_unit(figure.label, figure.unit), 22 if figure.rates else 40),
            ylabel=textwrap.fill(figure.category_label, max(8, int(pitch * len(names) / LETTER))),
            yticks=range(len(names)),
            yticklabels=names,
            ylim=(len(names) - 0.5, -0.5),
        )
        if figure.rates:
            panels[1].set_xlabel(textwrap.fill(with_unit(figure.rate_label, "fraction"), 16))
            panels[1].set_xlim(0.0, max(panels[1].get_xlim()[1], 1.0))
        for panel in panels:
            panel.tick_params(axis="y", length=0)
            panel.grid(axis="x")
            panel.xaxis.set_major_locator(MaxNLocator(5 if panel is panels[0] else 3))
            sns.despine(ax=panel, left=True)
        if series > 1:
            patches = [Patch(color=colour) for colour in sns.color_palette("colorblind", series)]
            # Without rates, the numbers of values take the right edge.
            edge = 0.0 if figure.rates else 0.3
            legend = legend_above(panels[-1], figure.series, patches, width=COLUMN - edge)
            # The layout would make room for it beside its panel, where it is the wider one; it needs some above only.
            legend.set_in_layout(False)
            room = legend.get_window_extent().height / canvas.dpi
            canvas.set_figheight(height + room)
            engine.set(rect=(0.0, 0.0, 1.0, height / (height + room)))
        box = f"box: quartiles, whiskers: percentiles {WHISKERS[0]} and {WHISKERS[1]}"
        note = box if figure.kind == "box" else "bar: quartiles, dot: median"
        canvas.supxlabel(f"{note}, numbers: n of each row", fontsize=6, color="0.35")
        canvas.suptitle(wrapped(figure.title, COLUMN))
        return canvas


@draw.register
def _(figure: Curves) -> Canvas:
    """Draw lines and points, a name in one colour; points lie on top."""
    names = list({**figure.lines, **figure.points})
    colours = sns.color_palette("colorblind", len(names))
    with print_style():
        canvas = Canvas(figsize=(COLUMN, 2.6), layout=ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.06))
        axes = canvas.add_subplot()
        for index, name in enumerate(names):
            marker = MARKERS[index % len(MARKERS)]
            if name in figure.lines:
                x, y = figure.lines[name]
                axes.plot(
                    x,
                    y,
                    label=name,
                    color=colours[index],
                    linewidth=1.2,
                    linestyle=DASHES[index % len(DASHES)],
                    marker=marker if len(x) <= SHORT else None,
                    markersize=3,
                )
            if name in figure.points:
                x, y = figure.points[name]
                many = len(x) >= MANY
                axes.plot(
                    x,
                    y,
                    label=None if name in figure.lines else name,
                    color=colours[index],
                    linestyle="",
                    marker="o" if many else marker,
                    markersize=2 if many else 5,
                    markeredgewidth=0 if many else 0.5,
                    markeredgecolor="white",
                    alpha=0.35 if many else 1.0,
                    zorder=2.5,
                )
        axes.set(xlabel=textwrap.fill(figure.x_label, 40), ylabel=textwrap.fill(figure.y_label, int(1.8 / LETTER)))
        if figure.log_x:
            axes.set_xscale("log")
        if figure.x_range is not None:
            axes.update_datalim([(end, 0.0) for end in figure.x_range], updatey=False)
        if figure.y_range is not None:
            axes.update_datalim([(0.0, end) for end in figure.y_range], updatex=False)
        axes.autoscale_view()
        if figure.log_x:
            low, high = axes.get_xlim()
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 100 else (1.0, 2.0, 5.0)))
            # The usual labels are formulas, which the style leaves as they are.
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid()
        sns.despine(ax=axes)
        if len(names) > 1:
            _strengthen(legend_above(axes, names, length=1.8))
        canvas.suptitle(wrapped(figure.title, COLUMN))
        return canvas


@draw.register
def _(figure: Histograms) -> Canvas:
    """Draw the outline of each series: the share of its texts per bin. The legend says how many they are."""
    edges = np.linspace(figure.low, figure.high, figure.bins + 1)
    colours = sns.color_palette("colorblind", len(figure.series))
    with print_style():
        canvas = Canvas(figsize=(COLUMN, 2.4), layout=ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.06))
        axes, names = canvas.add_subplot(), []
        for index, (name, series) in enumerate(figure.series.items()):
            values = _known(series)
            # What passes an end by a rounding error belongs to the bin at that end.
            counts, _ = np.histogram(np.clip(values, figure.low, figure.high), edges)
            names.append(f"{name} (n = {len(values):,})" if name else f"n = {len(values):,}")
            axes.stairs(
                100.0 * counts / max(len(values), 1),
                edges,
                label=names[-1],
                color=colours[index],
                linewidth=1.2,
                linestyle=DASHES[index % len(DASHES)],
            )
        axes.set(xlabel=textwrap.fill(figure.label, 40), ylabel="texts (%)", xlim=(figure.low, figure.high))
        axes.set_ylim(bottom=0.0)
        axes.grid(axis="y")
        sns.despine(ax=axes)
        legend_above(axes, names, length=1.8)
        canvas.suptitle(wrapped(figure.title, COLUMN))
        return canvas


def _draw_groups(panels: Sequence[Axes], figure: Spreads, width: float, letters: float) -> None:
    """Draw the series side by side in each category: spreads and their numbers of values, and rates where there are.

    `letters` is the size of the numbers of values, in points.
    """
    axes, series, scale = panels[0], len(figure.series), 100.0 if figure.unit == "fraction" else 1.0
    places = np.arange(len(figure.categories), dtype=np.float64)
    colours = sns.color_palette("colorblind", series)
    least = 0.0
    for index, (name, groups) in enumerate(figure.series.items()):
        at = places + (index - (series - 1) / 2) * width
        values = [_known(group) * scale for group in groups]
        least = min([least, *(group.min() for group in values if len(group))])
        _draw_spreads(axes, figure.kind, values, at, 0.85 * width, colours[index])
        for place, group in zip(at, values, strict=True):
            if not len(group):
                axes.text(
                    0.02,
                    place,
                    "no values",
                    transform=axes.get_yaxis_transform(),
                    verticalalignment="center",
                    fontsize=letters,
                    fontstyle="italic",
                    color="0.35",
                )
            axes.annotate(
                f"{len(group):,}",
                (1.0, place),
                (2, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                verticalalignment="center",
                fontsize=letters,
                color="0.35",
            )
        if name in figure.rates:
            rates = 100.0 * np.asarray(figure.rates[name], dtype=np.float64)
            panels[1].barh(at, rates, 0.85 * width, color=colours[index], linewidth=0)
    if least == 0.0:
        axes.set_xlim(left=0.0)


def _draw_spreads(
    axes: Axes,
    kind: Literal["violin", "box"],
    values: Sequence[NDArray[np.float64]],
    at: NDArray[np.float64],
    width: float,
    colour: tuple[float, float, float],
) -> None:
    """Draw one series: a violin or box of each group of values, at its place on the upright axis.

    Few values, and values that are all one, have no spread: each is a dot.
    """
    spread = [len(group) >= FEW and bool(np.ptp(group) > 0) for group in values]
    for place, group, wide in zip(at, values, spread, strict=True):
        # Dots of nothing would take room in the corner of the page.
        if len(group) and not wide:
            axes.plot(
                group, np.full(len(group), place), "o", color=colour, markersize=2.5, markeredgewidth=0, clip_on=False
            )
    enough = [index for index, wide in enumerate(spread) if wide]
    if not enough:
        return
    groups, at = [values[index] for index in enough], at[enough]
    if kind == "box":
        line = {"color": INK, "linewidth": 0.6}
        axes.boxplot(
            groups,
            positions=at,
            orientation="horizontal",
            widths=width,
            whis=WHISKERS,
            showfliers=False,
            manage_ticks=False,
            patch_artist=True,
            capwidths=0.5 * width,
            boxprops={"facecolor": colour, "edgecolor": INK, "linewidth": 0.6},
            medianprops={"color": INK, "linewidth": 1.4, "solid_capstyle": "butt"},
            whiskerprops=line,
            capprops=line,
        )
        return
    parts = axes.violinplot(groups, at, orientation="horizontal", widths=width, showextrema=False)
    for body in cast(list[PolyCollection], parts["bodies"]):
        body.set(facecolor=colour, edgecolor=colour, linewidth=0.5, alpha=0.75)
    quartiles = np.array([np.percentile(group, (25, 50, 75)) for group in groups])
    axes.hlines(at, quartiles[:, 0], quartiles[:, 2], color=INK, linewidth=1.4)
    axes.plot(
        quartiles[:, 1],
        at,
        "o",
        color="white",
        markersize=2.4,
        markeredgecolor=INK,
        markeredgewidth=0.4,
        zorder=3,
        clip_on=False,  # whole, where the axis begins too
    )


def _strengthen(legend: Legend) -> None:
    """Draw transparent points opaque and large in the legend, where one stands for all."""
    for handle in legend.get_lines():
        handle.set(alpha=1.0, markersize=max(handle.get_markersize(), 4))


def _known(values: Sequence[float]) -> NDArray[np.float64]:
    array: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    return array[~np.isnan(array)]
