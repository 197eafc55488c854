"""Fonts of the figures, and one warning for all letters that no installed font has."""

import re
import unicodedata
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from attention_probing.results.errors import pluralize

SCRIPTS = (
    "CJK SC",
    "CJK JP",
    "CJK KR",
    "Devanagari",
    "Bengali",
    "Gujarati",
    "Gurmukhi",
    "Kannada",
    "Malayalam",
    "Sinhala",
    "Tamil",
    "Telugu",
    "Thai",
    "Khmer",
    "Myanmar",
    "Ethiopic",
)
FONTS = ("DejaVu Sans", *(f"Noto Sans {script}" for script in SCRIPTS))
"""Fonts in the order in which a letter is looked for.

The first is part of matplotlib, so that figures are the same on every machine. The others, where they are installed,
have letters that it lacks (Debian's fonts-noto-cjk and fonts-noto-core).
"""
_OF_MATPLOTLIB = re.compile(r"Glyph (\d+) .*missing from")
_CJK = re.compile("CJK|HANGUL|HIRAGANA|KATAKANA|IDEOGRAPH|FULLWIDTH|HALFWIDTH|BOPOMOFO")
_SHOWN = 5  # letters that the warning shows
_given: dict[tuple[object, ...], set[tuple[object, ...]]] = {}
"""Warnings of drawing that were given and are not to be given again, by the filters of warnings at that time."""


def installed_fonts() -> list[str]:
    """Return the fonts of `FONTS` that are installed.

    matplotlib keeps a list of fonts from its first start. Fonts of `FONTS` that were installed later are added here.
    """
    from matplotlib.font_manager import findSystemFonts, fontManager

    files = set()
    for script in SCRIPTS:
        name = f"NotoSans{script.partition(' ')[0]}"
        files |= {f"{name}-Regular", f"{name}-Bold", f"{name}-VF"}
    known_paths = {font.fname for font in fontManager.ttflist}
    for path in findSystemFonts():
        stem = Path(path).name.partition(".")[0]
        if path not in known_paths and stem in files:
            fontManager.addfont(path)
    names = set(fontManager.get_font_names())
    return [name for name in FONTS if name in names]


@contextmanager
def one_warning_for_letters() -> Iterator[None]:
    """Within the block, gather matplotlib's warnings of letters without a font; warn once of all at its end."""
    letters: dict[str, None] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        match = _OF_MATPLOTLIB.match(str(warning.message))
        if match:
            letter = chr(int(match[1]))
            letters[letter] = None
        else:
            _give_again(warning)
    if letters:
        warnings.warn(_describe_missing(list(letters)), stacklevel=3)


def _give_again(warning: warnings.WarningMessage) -> None:
    """Give a recorded warning to the filters of the program, which by default show it once for each line of code.

    Python remembers what it has shown in a registry of each module, which every `catch_warnings` empties.
    """
    place = (str(warning.message), warning.category, warning.filename, warning.lineno)
    given = _given.setdefault(tuple(warnings.filters), set())
    if place in given:
        return
    registry: dict[str | tuple[str, type[Warning], int], int] = {}
    warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno, registry=registry)
    if registry.keys() - {"version"}:  # an entry, unless a filter shows the warning always or never
        given.add(place)


def _describe_missing(letters: Collection[str]) -> str:
    """Return the warning of letters that are drawn as boxes, with the packages that have them."""
    examples = " ".join(list(letters)[:_SHOWN])
    if len(letters) > _SHOWN:
        examples += " …"
    is_cjk = [_CJK.match(unicodedata.name(letter, "")) is not None for letter in letters]
    packages = []
    if any(is_cjk):
        packages.append("fonts-noto-cjk of Debian or font-ttf-noto-cjk of conda-forge")
    if not all(is_cjk):
        packages.append("fonts-noto-core of Debian")
    return (
        f"No installed font has {pluralize(len(letters), 'letter')} of the figures ({examples}), and boxes stand for "
        f"them. Install {', and '.join(packages)}."
    )
