"""Coloured texts → HTML, as a page or as a part of one."""

import math
from collections.abc import Sequence
from html import escape

from pages import document
from pages.shell import resource
from results import ColouredText, ColouredTexts

FULL = 10  # multiple of the even share of a row from which a word has the full colour


def html_page(figure: ColouredTexts) -> str:
    """Write a page of nothing but the texts."""
    body = f'<main class="texts">\n<h1>{escape(figure.title)}</h1>\n{html_texts(figure, 2)}\n</main>'
    return document(figure.title, body, styles=[resource("texts.css")])


def html_texts(figure: ColouredTexts, level: int) -> str:
    """Write a heading of a level for each text and its words once per row; the title of a word holds its number.

    The opacity of a word is its share of the total magnitude of the row, relative to the even share, 1/n of n words:
    even attention is pale in texts of any length.
    """
    return "\n".join([_legend(figure), *(_section(text, level) for text in figure.texts)])


def _legend(figure: ColouredTexts) -> str:
    """Legend of the colours; of values below zero and of missing values only where there are any."""
    numbers = [value for text in figure.texts for values in text.rows.values() for value in values]
    below = [-1.0, -0.5, -0.1] if any(value < 0 for value in numbers) else []
    samples = " ".join(f"<span {_looks(step)}>{_number(FULL * step)}×</span>" for step in (*below, 0.0, 0.1, 0.5, 1.0))
    missing = ' <span class="missing">no value</span>' if any(math.isnan(value) for value in numbers) else ""
    return (
        f'<p class="legend">Colour: share of the total magnitude of the row, in multiples of the even share (1/n of n '
        f"words); full from {FULL}× on: {samples}{missing}</p>"
    )


def _section(text: ColouredText, level: int) -> str:
    rows = "\n".join(_row(name, text.words, values) for name, values in text.rows.items())
    heading = escape(": ".join(filter(None, (text.name, text.caption))))
    # dir="auto": a text may run from right to left.
    return f'<section class="text">\n<h{level} dir="auto">{heading}</h{level}>\n<table>\n{rows}\n</table>\n</section>'


def _row(name: str, words: Sequence[str], values: Sequence[float]) -> str:
    magnitudes = [abs(value) for value in values if not math.isnan(value)]
    even = sum(magnitudes) / max(len(magnitudes), 1)
    spans = []
    for word, value in zip(words, values, strict=True):
        if math.isnan(value):
            looks, number = 'class="missing"', "no value"
        else:
            looks, number = _looks(value / (FULL * even or 1.0)), _number(value)
        spans.append(f'<span {looks} title="{escape(name)}: {number}">{escape(word)}</span>')
    largest = max(magnitudes, default=0.0)
    times = f", {_number(largest / even)}× even" if even else ""
    scale = f"largest {_number(largest)}{times}" if magnitudes else "no values"
    return f'<tr><th scope="row">{escape(name)}<small>{scale}</small></th>\n<td dir="auto">{" ".join(spans)}</td></tr>'


def _looks(strength: float) -> str:
    """Colour of a value relative to the magnitude of the full colour, which the theme decides."""
    return f'class="{"above" if strength >= 0 else "below"}" style="--share: {min(abs(strength), 1.0):.3f}"'


def _number(value: float) -> str:
    return f"{'−' if value < 0 else ''}{abs(value):.3g}"
