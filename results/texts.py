"""HTML page of example texts whose words are coloured by their values."""

import math

from attention_probing.results.document import document, render, resource
from attention_probing.results.figures import ColouredText, ColouredTexts

FULL = 10  # multiple of the even share of a row of texts from which a word has the full colour


def html_page(figure: ColouredTexts) -> str:
    """Return an HTML page that has only coloured texts."""
    values: list[float] = []
    for text in figure.texts:
        for row in text.rows.values():
            values.extend(row)
    steps = [0.0, 0.1, 0.5, 1.0]
    if any(value < 0 for value in values):
        steps = [-1.0, -0.5, -0.1, *steps]
    texts = []
    for text in figure.texts:
        texts.append({"name": text.name, "caption": text.caption, "rows": _rows(text)})
    body = render(
        "texts.html",
        title=figure.title,
        texts=texts,
        full=FULL,
        steps=steps,
        missing=any(math.isnan(value) for value in values),
    )
    return document(figure.title, body, styles=[resource("texts.css")])


def _rows(text: ColouredText) -> list[dict[str, object]]:
    """Return the rows of a text: words with their values, mean magnitude, and largest magnitude; None for nan."""
    rows: list[dict[str, object]] = []
    for name, row in text.rows.items():
        values = [None if math.isnan(value) else value for value in row]
        magnitudes = [abs(value) for value in values if value is not None]
        rows.append(
            {
                "name": name,
                "words": list(zip(text.words, values, strict=True)),
                "even": sum(magnitudes) / max(len(magnitudes), 1),
                "largest": max(magnitudes, default=None),
            }
        )
    return rows
