"""Shares of five patterns among attention maps, by rules (Kovaleva et al. 2019, §4.1), and the maps of one input."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention_probing.datamodules import SegmentBatch
from attention_probing.measures.by_head import HeadMeans, class_map, head_rows
from attention_probing.measures.contract import MapMeasure
from attention_probing.metrics.gathered import gather_items
from attention_probing.metrics.moments import Means
from attention_probing.metrics.patterns import PATTERNS, by_rules, structure
from attention_probing.results import Bars, Estimate, Figure, Finding, Maps, Result, Table, Unit, fill_sentence, numbers
from attention_probing.results.heads import head_name

GLYPHS = {"vertical": "V", "diagonal": "D", "vertical + diagonal": "VD", "block": "B", "heterogeneous": "H"}
"""Names of the patterns in figures, each with its letters."""
PATTERN_NAMES = tuple(GLYPHS)
MOST_MAPS = 6  # most maps of each pattern in the gallery
BRIGHTEST = 0.25  # weight at the end of the gallery's colour scale: broad attention would be invisible on a wider one
_WIDTH = 160  # letters of the text in the title of raw maps
_UNITS: Mapping[str, Unit] = dict.fromkeys(PATTERNS, "fraction")


class GalleryMap(NamedTuple):
    """Attention map of one head on one input, shown in the gallery of examples.

    Attributes:
        order: Sort key: minus the distance to the nearest threshold of the rules, then input, layer and
            head. The clearest map comes first.
        pattern: Index of the pattern in `PATTERN_NAMES`.
        corpus: Name of the corpus of the input.
        weights: Attention `[tokens, tokens]`, from × to.
    """

    order: tuple[float, int, int, int]
    pattern: int
    corpus: str
    weights: NDArray[np.float32]

    @property
    def title(self) -> str:
        """Name of the head, and of the corpus."""
        _, _, layer, head = self.order
        return f"{head_name(layer, head)} {self.corpus}"


def clearest(maps: Iterable[GalleryMap]) -> list[GalleryMap]:
    """Return the `MOST_MAPS` clearest maps, the clearest first, at most one of each attention head.

    The clearest map is the farthest from the nearest threshold of the rules that assign patterns, see
    `GalleryMap.order`. Fewer maps are returned if they belong to fewer than `MOST_MAPS` heads.
    """
    by_head: dict[tuple[int, int], GalleryMap] = {}
    for example in sorted(maps, key=lambda example: example.order):
        by_head.setdefault(example.order[2:], example)
    return list(by_head.values())[:MOST_MAPS]


class Patterns(MapMeasure):
    """Shares of five patterns among the attention maps (Kovaleva et al. 2019, §4.1).

    The shares are given by layer, by head and by corpus. Each head has one attention map on each input,
    and rules assign it a pattern; see `metrics.patterns`. Intervals are over inputs. A gallery shows the
    maps that the rules assign most clearly.
    """

    experiment = "patterns"

    def begin(self) -> None:
        self.encoder.require_every_layer(type(self).__name__)
        self._corpora = self.data.names
        self.numbers = HeadMeans(self.encoder, _UNITS, groups=2 * len(self._corpora))  # a group is a half of a corpus
        self._gallery: list[list[GalleryMap]] = [[] for _ in PATTERNS]

    def update_layer(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        delimiters = (batch.start | batch.end).sum(1)
        allowed = self.encoder.allowed(batch.mask).at(layer)
        parts = structure(weights, batch.lengths, delimiters, batch.segments, allowed)
        patterns, margins = by_rules(parts, batch.segments.any(1))
        self.numbers.add(torch.nn.functional.one_hot(patterns, len(PATTERNS)))
        self._offer(batch, layer, weights, patterns, margins)

    def _offer(self, batch: SegmentBatch, layer: int, weights: Tensor, patterns: Tensor, margins: Tensor) -> None:
        """Offer maps of a layer `[batch, heads, from, to]` to the gallery; patterns and margins are `[batch, heads]`.

        Of each pattern and head only the clearest map of the batch is offered.
        """
        index = batch.index.cpu().numpy()
        pattern_of = patterns.cpu().numpy()
        margin = margins.cpu().numpy()
        by_index = index.argsort()  # of equals argmax takes the first
        for pattern, best in enumerate(self._gallery):
            margin_of_pattern = np.where(pattern_of == pattern, margin, -np.inf)[by_index]
            clearest_places = by_index[margin_of_pattern.argmax(0)].tolist()
            for head, place in enumerate(clearest_places):
                if pattern_of[place, head] != pattern:
                    continue  # no input of the batch
                order = (-float(margin[place, head]), int(index[place]), layer, head)
                if len(best) < MOST_MAPS or order < best[-1].order:
                    length = int(batch.lengths[place])
                    example = weights[place, head, :length, :length].float().cpu().numpy().copy()
                    best[:] = clearest([*best, GalleryMap(order, pattern, batch.corpus, example)])

    def update(self, batch: SegmentBatch) -> None:
        self.numbers.close(2 * self._corpora.index(batch.corpus) + batch.index % 2)

    def by_head(self) -> Mapping[str, Means]:
        """Return the share of inputs on which each attention head shows each pattern, by pattern name."""
        return self.numbers.by_head()

    def classes(self) -> Mapping[str, Sequence[str]]:
        """Return the most frequent pattern of each attention head, layer by layer.

        On a tie it is the first in the order of `PATTERNS`. The only key of the mapping is `pattern`.
        """
        shares = self.numbers.means().over().value
        return {"pattern": [PATTERNS[place] for place in shares.argmax(-1).ravel()]}

    def result(self) -> Result:
        """Return the shares of the patterns as scores, tables and figures, with the gallery of examples.

        The tables have a column for each pattern, with its share of the attention maps:

        - `patterns`: a row for each corpus and layer.
        - `patterns_total`: a row for each corpus.
        - `head_patterns`: a row for each head, which also names the head's most frequent pattern.
        """
        tables = self._tables()
        model = self.numbers.over("model")
        figures: dict[str, Figure] = {"pattern_heads": self._head_map()}
        by_layer = Table(head_rows(self.numbers.over("layers")), _UNITS)
        figures["patterns_by_layer"] = _pattern_bars("layer", by_layer)
        if len(self._corpora) > 1:
            figures["patterns_by_corpus"] = _pattern_bars("corpus", tables["patterns_total"])
        examples = [example for best in self._gallery for example in best]
        gallery = _gallery_figure(gather_items(examples))
        if gallery is not None:
            figures["pattern_gallery"] = gallery
        scores = {f"pattern.{name}": model[name] for name in PATTERNS}
        inputs = int(model["block"].inputs)
        heads = len(tables["head_patterns"].frame)
        answer = fill_sentence(_patterns_answer(model, heads), scores, n=inputs)
        audit = {"inputs": inputs}
        # One pattern for every run: the most frequent of each would favour the run over its twins.
        finding = Finding("pattern.vertical", "attention maps that are vertical")
        return Result(
            self.experiment, scores, tables, figures, audit=audit, headline=list(scores), answer=answer, finding=finding
        )

    def _tables(self) -> dict[str, Table]:
        by_layer = []
        total = []
        for place, corpus in enumerate(self._corpora):
            halves = [2 * place, 2 * place + 1]
            rows = head_rows(self.numbers.over("layers", halves))
            rows.insert(0, "corpus", corpus)
            by_layer.append(rows)
            total.append({"corpus": corpus, **numbers(self.numbers.over("model", halves))})
        heads = head_rows(self.numbers.over())
        heads.insert(2, "pattern", self.classes()["pattern"])
        return {
            "patterns": Table(pd.concat(by_layer, ignore_index=True), _UNITS),
            "patterns_total": Table(pd.DataFrame(total), _UNITS, main=("corpus", *PATTERNS)),
            "head_patterns": Table(heads, _UNITS),
        }

    def _head_map(self) -> Figure:
        """Return the map of the most frequent pattern of each head."""
        most_frequent = self.numbers.means().over().value.argmax(-1)  # [layers, heads]
        cells = np.asarray(PATTERN_NAMES)[most_frequent].tolist()
        return class_map("Most frequent pattern of each head", cells, GLYPHS)


def _pattern_bars(name: str, table: Table) -> Bars:
    """Return the share of each pattern in the rows of a table, which have a label in the column `name`."""
    series = dict(zip(PATTERN_NAMES, PATTERNS, strict=True))
    return Bars.from_table(f"Patterns by {name}", table, name, series, "share of maps", name)


def _patterns_answer(shares: Mapping[str, Estimate], heads: int) -> str:
    """Return the answer, for `fill_sentence`: the share of each pattern, the most frequent first."""
    names = dict(zip(PATTERNS, PATTERN_NAMES, strict=True))
    parts = []
    for pattern in sorted(PATTERNS, key=lambda pattern: -shares[pattern].value):
        if shares[pattern].value:
            parts.append(f"{{pattern.{pattern}}} are {names[pattern]}")
    return f"of the attention maps of {heads} heads on {{n}} inputs {', '.join(parts)}"


def _gallery_figure(examples: Sequence[GalleryMap]) -> Maps | None:
    """Draw a row for each pattern that occurs, the clearest map first; None without maps."""
    rows: dict[str, list[GalleryMap]] = {}
    for place, name in enumerate(PATTERN_NAMES):
        examples_of_pattern = [example for example in examples if example.pattern == place]
        if examples_of_pattern:
            rows[name] = clearest(examples_of_pattern)
    if not rows:
        return None
    width = max(len(row) for row in rows.values())
    maps: list[list[NDArray[np.float32] | None]] = []
    titles = []
    for row in rows.values():
        blanks = width - len(row)
        weights: list[NDArray[np.float32] | None] = [example.weights for example in row]
        weights += [None] * blanks
        maps.append(weights)
        titles_of_row = [example.title for example in row]
        titles_of_row += [""] * blanks
        titles.append(titles_of_row)
    return Maps(
        title="The clearest maps of each pattern",
        maps=maps,
        row_labels=list(rows),
        column_labels=[str(number) for number in range(1, width + 1)],
        row_label="",
        column_label="",
        value_label="attention",
        names=titles,
        top=BRIGHTEST,
        unit="fraction",
    )


class RawMaps(MapMeasure):
    """Attention maps of all layers and heads on the first input, without padding.

    Unlike other analyses it keeps the weights themselves, and no sums.
    """

    experiment = "maps"

    def begin(self) -> None:
        self._first: _FirstInput | None = None

    def update_layer(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        index = int(batch.index.min())
        row = int(batch.index.argmin())
        if layer == 0 and (self._first is None or index < self._first.index):
            passages = [" ".join(passage.words) for passage in batch.passages[row]]
            self._first = _FirstInput(index, " | ".join(passages), [])
        if self._first is not None and index == self._first.index:
            length = int(batch.lengths[row])
            of_layer = weights[row, :, :length, :length].float().cpu().numpy()
            self._first.weights.append(of_layer.copy())

    def result(self) -> Result:
        """Return the figure `maps`, with the attention map of every layer and head on the first input."""
        inputs = [example for example in gather_items([self._first]) if example is not None]
        first = min(inputs, key=lambda example: example.index)
        layers = len(first.weights)
        heads = len(first.weights[0])
        figure = Maps(
            title=f"Attention of every head in: {shorten(first.text, _WIDTH, placeholder=' …')}",
            maps=[list(weights) for weights in first.weights],
            row_labels=[str(number) for number in range(1, layers + 1)],
            column_labels=[str(number) for number in range(1, heads + 1)],
            row_label="layer",
            column_label="head",
            value_label="attention",
            unit="fraction",
        )
        audit = {"input": first.index, "tokens": first.weights[0].shape[-1]}
        return Result(self.experiment, {}, figures={"maps": figure}, audit=audit)


@dataclass(frozen=True, eq=False)
class _FirstInput:
    """Input with the lowest index so far: its text, and its attention `[heads, from, to]` by layer."""

    index: int
    text: str
    weights: list[NDArray[np.float32]]
