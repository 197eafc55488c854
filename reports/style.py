"""What all drawings share: sizes for print, labels, and a legend above the axes."""

import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.legend import Legend

COLUMN = 3.4
"""Width of one column of a two-column page, in inches."""
PAGE = 7.0
"""Width of both columns, in inches."""
CHARACTER = 0.058
"""Width of a character of a tick label, in inches."""


def print_style() -> AbstractContextManager[None]:
    """Set sizes for print, for as long as the context lasts."""
    return rc_context(
        {
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib: the same figure on every machine
            "font.size": 7.5,
            "axes.titlesize": 8.5,
            "axes.labelsize": 7.5,
            "axes.linewidth": 0.6,
            "axes.axisbelow": True,
            "text.parse_math": False,  # a price in a corpus is no formula
            "figure.titlesize": 8.5,
            "xtick.labelsize": 7,
            "ytick.labelsize": 7,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "xtick.major.size": 2.5,
            "ytick.major.size": 2.5,
            "legend.fontsize": 7,
            "grid.linewidth": 0.4,
            "grid.color": "0.88",
        }
    )


def with_unit(label: str, percent: bool) -> str:
    """Say in the label of an axis that its fractions are shown ×100."""
    return f"{label} (%)" if percent and "%" not in label else label


def wrapped(title: str, width: float) -> str:
    """Break a title into lines that fit a figure of a width in inches."""
    return textwrap.fill(title, max(16, int(width / 0.075)))


def legend_above(
    axes: Axes,
    names: Iterable[str],
    handles: Sequence[Artist] | None = None,
    *,
    width: float = COLUMN,
    length: float = 1.0,
) -> Legend:
    """Put the legend above the axes: in one line where its names fit a width in inches, in columns otherwise.

    The handles are those of the axes' labelled artists where none are given; `length`, theirs, is in letters.
    """
    room, handle = width - 0.15, 0.18 + 0.1 * length
    labels = [textwrap.fill(name, int((room - handle) / CHARACTER)) for name in names]
    widths = [max(map(len, label.split("\n"))) * CHARACTER + handle for label in labels]
    return axes.legend(
        axes.get_legend_handles_labels()[0] if handles is None else handles,
        labels,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(widths) if sum(widths) <= room else max(1, int(room / max(widths))),
        frameon=False,
        handlelength=length,
        handletextpad=0.5,
        columnspacing=1.0,
        borderaxespad=0.2,
    )
