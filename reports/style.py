"""What all drawings share: sizes for print, labels, and a legend above the axes."""

import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.font_manager import FontPath, findfont, findSystemFonts, fontManager, get_font
from matplotlib.legend import Legend

from results import Unit

COLUMN = 3.4
"""Width of one column of a two-column page, in inches."""
PAGE = 7.0
"""Width of both columns, in inches."""
CHARACTER = 0.058
"""Width of a character of a tick label, in inches."""
FONT = "DejaVu Sans"
"""Ships with matplotlib: the same figure on every machine, as long as it has the characters."""


def print_style() -> AbstractContextManager[None]:
    """Set sizes for print, for as long as the context lasts."""
    return rc_context(
        {
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


@contextmanager
def fonts_for(text: str) -> Iterator[None]:
    """Draw with `FONT` and, for characters that it lacks, with installed fonts, for as long as the context lasts.

    One warning names the characters that no font has, which are drawn as boxes.
    """
    families, missing = _families(text)
    if missing:
        scripts = sorted({unicodedata.name(letter, "unnamed").split()[0].lower() for letter in missing})
        warnings.warn(
            f"No installed font has {len(missing)} characters of the figures ({', '.join(scripts)}): they are drawn as "
            "boxes. Install one, for instance Debian's fonts-noto-cjk for Chinese, Japanese and Korean, or "
            "fonts-noto-core for other scripts.",
            stacklevel=3,
        )
    with rc_context({"font.family": families}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font")
        yield


def _families(text: str) -> tuple[list[str], set[str]]:
    """Names of as few fonts as have the characters of a text, `FONT` first, and the characters that none has."""
    families = [FONT]
    missing = {letter for letter in text if letter.isprintable()} - _letters(findfont(FONT))
    if not missing:
        return families, missing
    known = {entry.fname for entry in fontManager.ttflist}
    for path in findSystemFonts():  # those installed since matplotlib listed them, too
        if path not in known:
            with suppress(OSError, RuntimeError):  # it is no font that matplotlib can draw
                fontManager.addfont(path)
    fonts = {
        entry.name: _letters(FontPath(entry.fname, entry.index))
        for entry in fontManager.ttflist
        if (entry.style, entry.weight) == ("normal", 400)
        if not entry.name.startswith("Last Resort")  # it has a box for every character
    }
    # One character of Han has other shapes in other languages, and fonts of one collection differ in these alone.
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


def with_unit(label: str, unit: Unit) -> str:
    """Say in the label of an axis that its fractions are shown ×100."""
    return f"{label} (%)" if unit == "fraction" and "%" not in label else label


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
