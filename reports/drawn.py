"""The numbers that a figure draws, as a tidy table: one row per bar, cell, point or word."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from itertools import pairwise, product

import numpy as np
import pandas as pd

from results import (
    AttentionLines,
    Bars,
    Categories,
    ColouredText,
    ColouredTexts,
    Curves,
    Figure,
    HeatMap,
    Histograms,
    Maps,
    Scatter,
    Spreads,
    Table,
    Unit,
)

MOST = 100_000  # rows; a grid of raw maps has millions of weights, which are in no file of numbers


def drawn(figure: Figure) -> Table | None:
    """Give the numbers of a figure in the order in which they are drawn, nan where there is none.

    More than `MOST` rows give None.
    """
    if isinstance(figure, Maps) and sum(one.size for row in figure.maps for one in row if one is not None) > MOST:
        return None  # before they are made
    table = _drawn(figure)
    return table if len(table.frame) <= MOST else None


@singledispatch
def _drawn(figure: object) -> Table:
    raise TypeError(f"no numbers are known of {type(figure).__name__}, only of figures of `results`")


@_drawn.register
def _(figure: Bars) -> Table:
    missing = [math.nan] * len(figure.categories)
    rows = [
        (category, name, value, low, high)
        for name, values in figure.series.items()
        for category, value, low, high in zip(
            figure.categories, values, *figure.intervals.get(name, (missing, missing)), strict=True
        )
    ]
    columns = ["category", "series", "value", "value.low", "value.high"]
    return _table(rows, columns if figure.intervals else columns[:3], {"value": figure.unit})


@_drawn.register
def _(figure: HeatMap) -> Table:
    names = _axes(figure.row_label, figure.column_label)
    values = np.asarray(figure.values, dtype=np.float64).ravel().tolist()
    cells = product(figure.row_labels, figure.column_labels)
    rows = [(*cell, value) for cell, value in zip(cells, values, strict=True)]
    return _table(rows, [*names, "value"], {"value": figure.unit})


@_drawn.register
def _(figure: Maps) -> Table:
    rows = [
        (row, column, one + 1, two + 1, float(value))
        for row, maps in zip(figure.row_labels, figure.maps, strict=True)
        for column, matrix in zip(figure.column_labels, maps, strict=True)
        if matrix is not None
        for (one, two), value in np.ndenumerate(np.asarray(matrix, dtype=np.float64))
    ]
    names = _axes(figure.row_label, figure.column_label)
    return _table(rows, [*names, "from", "to", "value"], {"value": figure.unit})


@_drawn.register
def _(figure: Categories) -> Table:
    cells = product(figure.row_labels, figure.column_labels)
    kinds = [kind for row in figure.cells for kind in row]
    rows = [(*cell, kind) for cell, kind in zip(cells, kinds, strict=True)]
    return _table(rows, [*_axes(figure.row_label, figure.column_label), "category"], {})


@_drawn.register
def _(figure: Scatter) -> Table:
    rows = [(group, *map(float, point)) for group, point in zip(figure.groups, figure.points, strict=True)]
    return _table(rows, [figure.group_label or "group", "x", "y"], {"x": "ratio", "y": "ratio"})


@_drawn.register
def _(figure: AttentionLines) -> Table:
    rows = [
        (one + 1, figure.words[one], two + 1, figure.words[two], float(weight), (one, two) in figure.arcs)
        for (one, two), weight in np.ndenumerate(np.asarray(figure.weights, dtype=np.float64))
    ]
    return _table(rows, ["from", "from.word", "to", "to.word", "attention", "gold"], {"attention": "fraction"})


@_drawn.register
def _(figure: Spreads) -> Table:
    rows = [
        (category, name, float(value), math.nan)
        for name, groups in figure.series.items()
        for category, values in zip(figure.categories, groups, strict=True)
        for value in values
    ]
    for name, shares in figure.rates.items():
        rows += [
            (category, name, math.nan, float(rate)) for category, rate in zip(figure.categories, shares, strict=True)
        ]
    units: dict[str, Unit] = {"value": figure.unit, "rate": "fraction"}
    columns = ["category", "series", *units] if figure.rates else ["category", "series", "value"]
    return _table(rows, columns, {name: unit for name, unit in units.items() if name in columns})


@_drawn.register
def _(figure: Curves) -> Table:
    rows = [
        (kind, name, float(x), float(y))
        for kind, sets in (("line", figure.lines), ("point", figure.points))
        for name, pair in sets.items()
        for x, y in zip(*pair, strict=True)
    ]
    return _table(rows, ["kind", "series", "x", "y"], {"x": "ratio", "y": "ratio"})


@_drawn.register
def _(figure: Histograms) -> Table:
    edges = np.linspace(figure.low, figure.high, figure.bins + 1)
    rows = []
    for name, series in figure.series.items():
        values = np.asarray(series, dtype=np.float64)
        values = np.clip(values[~np.isnan(values)], figure.low, figure.high)
        counts, _ = np.histogram(values, edges)
        rows += [
            (name, float(low), float(high), int(count), count / max(len(values), 1))
            for (low, high), count in zip(pairwise(edges), counts, strict=True)
        ]
    return _table(rows, ["series", "from", "to", "n", "share"], {"from": "ratio", "to": "ratio", "share": "fraction"})


TEXTS = ("text", "name", "caption", "row", "word", "value")
"""Columns of the numbers of coloured texts; `text` counts the texts from 1."""


@_drawn.register
def _(figure: ColouredTexts) -> Table:
    rows = [
        (number, text.name, text.caption, row, word, float(value))
        for number, text in enumerate(figure.texts, 1)
        for row, values in text.rows.items()
        for word, value in zip(text.words, values, strict=True)
    ]
    return _table(rows, list(TEXTS), {"value": "ratio"})


def texts_of(title: str, frame: pd.DataFrame) -> ColouredTexts:
    """Make the coloured texts whose numbers are in `frame`, which holds strings."""
    texts = []
    for _, text in frame.groupby("text", sort=False):
        rows = {str(row): part for row, part in text.groupby("row", sort=False)}
        words = tuple(next(iter(rows.values()))["word"])
        values = {row: [float(value) if value else math.nan for value in part["value"]] for row, part in rows.items()}
        first = text.iloc[0]
        texts.append(ColouredText(str(first["name"]), str(first["caption"]), words, values))
    return ColouredTexts(title, tuple(texts))


def _axes(*labels: str) -> list[str]:
    """Names of the columns of a grid, by the labels of its axes where these are two, in small letters."""
    names = [label.strip().lower() for label in labels]
    taken = {"", "value", "category", "from", "to"}
    return names if len(set(names)) == 2 and not taken & set(names) else ["row", "column"]


def _table(rows: Iterable[Sequence[object]], columns: Sequence[str], units: Mapping[str, Unit]) -> Table:
    frame = pd.DataFrame([row[: len(columns)] for row in rows], columns=list(columns))
    return Table(frame.astype(dict.fromkeys(units, np.float64)), units)
