"""Shares of five patterns among attention maps, by rules (Kovaleva et al. 2019, §4.1)."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from analysis.base import Analysis
from analysis.tables import head_rows, name_of
from attention import Encoder
from datamodules import SegmentBatch, TextDataModule
from metrics.moments import Means, Moments
from metrics.patterns import PATTERNS, by_rules, structure
from results import Bars, Estimate, Figure, Floats, HeatMap, Maps, Result, Table, Unit, numbers
from training import gathered

GLYPHS = {"vertical": "V", "diagonal": "D", "vertical + diagonal": "VD", "block": "B", "heterogeneous": "H"}
"""Names of the patterns as they are shown, each with its letters in the figure."""
NAMES = tuple(GLYPHS)
FRACTION: Unit = "fraction"
EXAMPLES = 6  # most maps of each pattern in the gallery
BRIGHTEST = (
    0.25  # weight at the end of the colour scale of the gallery: broad attention would not be seen on a wider one
)


Cell = TypeVar("Cell")


Order = tuple[float, int, int, int]
"""The clearest map comes first: minus the distance to the nearest threshold of the rules; then number, layer, head."""


class Example(NamedTuple):
    """A map in the gallery, `[tokens, tokens]`."""

    pattern: int
    order: Order
    corpus: str
    weights: NDArray[np.float32]

    @property
    def head(self) -> tuple[int, int]:
        """Its layer and head."""
        return self.order[2:]


class Gallery:
    """The clearest maps of each pattern by the rules, each of another head; at most `EXAMPLES` of a pattern are kept.

    A head keeps its clearest map, so the order in which maps are offered does not matter.
    """

    def __init__(self) -> None:
        self._kept: list[dict[tuple[int, int], Example]] = [{} for _ in PATTERNS]

    def offer(self, batch: SegmentBatch, layer: int, weights: Tensor, patterns: Tensor, margins: Tensor) -> None:
        """Take in all maps of a layer `[batch, heads, from, to]`, their patterns and margins `[batch, heads]`."""
        numbers, of, clear = (part.cpu().numpy() for part in (batch.index, patterns, margins))
        by_number = numbers.argsort()  # of equals argmax takes the first
        for pattern, kept in enumerate(self._kept):
            own = np.where(of == pattern, clear, -np.inf)[by_number]
            for head, place in enumerate(by_number[own.argmax(0)].tolist()):
                order = (-float(clear[place, head]), int(numbers[place]), layer, head)
                if of[place, head] != pattern or not self._wanted(kept, order):
                    continue
                length = int(batch.lengths[place])
                own_weights = weights[place, head, :length, :length].float().cpu().numpy().copy()
                _keep(kept, Example(pattern, order, batch.corpus, own_weights))

    @staticmethod
    def _wanted(kept: Mapping[tuple[int, int], Example], order: Order) -> bool:
        if (before := kept.get(order[2:])) is not None:
            return order < before.order
        return len(kept) < EXAMPLES or order < max(one.order for one in kept.values())

    def of_all_devices(self) -> list[list[Example]]:
        """Return the clearest maps of all devices, by pattern; every process takes part."""
        best: list[dict[tuple[int, int], Example]] = [{} for _ in PATTERNS]
        for example in gathered([example for kept in self._kept for example in kept.values()]):
            if self._wanted(best[example.pattern], example.order):
                _keep(best[example.pattern], example)
        return [sorted(kept.values(), key=lambda one: one.order) for kept in best]


def _keep(kept: dict[tuple[int, int], Example], example: Example) -> None:
    kept[example.head] = example
    if len(kept) > EXAMPLES:
        del kept[max(kept, key=lambda head: kept[head].order)]


class Patterns(Analysis):
    """Shares of five patterns among the maps of all inputs and heads: by layer, by head and by corpus.

    The rules are those of `metrics.patterns`. Intervals are over inputs.

    Args:
        boundary: whether a block must hold more than nearness explains; see `metrics.patterns.by_rules`.
    """

    name = "patterns"

    def __init__(self, boundary: bool = True) -> None:
        super().__init__()
        self.boundary = boundary

    def begin(self, data: TextDataModule, encoder: Encoder) -> None:
        self._corpora, self._encoder = data.names, encoder
        groups, kinds = 2 * len(self._corpora), len(PATTERNS)  # a group is a half of a corpus
        self._of_heads = Moments(groups, (encoder.layers, encoder.heads, kinds), FRACTION, bounds=(0, 1))
        self._of_layers = Moments(groups, (encoder.layers, kinds), FRACTION, bounds=(0, 1))
        self._of_model = Moments(groups, (kinds,), FRACTION, bounds=(0, 1))
        self._gallery = Gallery()
        self._passed: list[Tensor] = []

    def update(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        delimiters = (batch.start | batch.end).sum(1)
        allowed = self._encoder.allowed(batch.mask).at(layer)
        found = structure(weights, batch.lengths, delimiters, batch.segments, allowed)
        patterns, margins = by_rules(found, batch.segments.any(1), self.boundary)
        self._passed.append(patterns)
        self._gallery.offer(batch, layer, weights, patterns, margins)

    def end(self, batch: SegmentBatch) -> None:
        shown = torch.nn.functional.one_hot(torch.stack(self._passed, 1), len(PATTERNS)).double()
        self._passed.clear()
        group = 2 * self._corpora.index(batch.corpus) + batch.index % 2
        self._of_heads.update(group, shown)
        self._of_layers.update(group, shown.mean(2))
        self._of_model.update(group, shown.mean((1, 2)))

    def by_head(self) -> Mapping[str, Means]:
        """Return the share of the inputs in which a head shows each pattern."""
        means = self._of_heads.compute()
        return {name: means.at(place) for place, name in enumerate(PATTERNS)}

    def classes(self) -> Mapping[str, Sequence[str]]:
        """Return the pattern that each head shows most often; the first of equals."""
        shares = self._of_heads.compute().over().value
        return {"pattern": [PATTERNS[place] for place in shares.argmax(-1).ravel()]}

    def result(self, others: Mapping[str, Analysis]) -> Result:
        """Return tables by corpus and layer (`patterns`), by corpus, and by head; the gallery."""
        heads, layers, model = (moments.compute() for moments in (self._of_heads, self._of_layers, self._of_model))
        of_corpora = {name: [2 * place, 2 * place + 1] for place, name in enumerate(self._corpora)}  # their groups
        by_corpus = {name: model.over(groups) for name, groups in of_corpora.items()}
        totals = _shares(list(by_corpus.values()))
        totals.insert(0, "corpus", self._corpora)
        units = dict.fromkeys(PATTERNS, FRACTION)
        whole = model.over()
        scores = {f"pattern.{name}": whole[place] for place, name in enumerate(PATTERNS)}
        tables = {
            "patterns": _layer_table({name: layers.over(groups) for name, groups in of_corpora.items()}),
            "patterns_total": Table(totals, units, answer=("corpus", *PATTERNS)),
            "head_patterns": _head_table(heads),
        }
        numbers = [str(layer) for layer in range(1, layers.sums.shape[1] + 1)]
        figures: dict[str, Figure] = {
            "pattern_heads": _head_figure(heads.over()),
            "patterns_by_layer": _bars("Patterns by layer", numbers, _rows(layers.over()), "layer"),
        }
        if len(by_corpus) > 1:
            figures["patterns_by_corpus"] = _bars(
                "Patterns by corpus", self._corpora, list(by_corpus.values()), "corpus"
            )
        if gallery := _gallery_figure(self._gallery.of_all_devices()):
            figures["pattern_gallery"] = gallery
        headline = [f"pattern.{name}" for name in PATTERNS]
        return Result(self.name, scores, tables, figures, {"inputs": int(whole.inputs[0])}, headline=headline)


def _shares(rows: Sequence[Estimate[Floats]]) -> pd.DataFrame:
    """Return columns with the share of each pattern and its interval, a row for each estimate `[patterns]`."""
    return pd.DataFrame([numbers({name: row[place] for place, name in enumerate(PATTERNS)}) for row in rows])


def _layer_table(of_corpora: Mapping[str, Estimate[Floats]]) -> Table:
    frame = _shares([row for found in of_corpora.values() for row in _rows(found)])
    layers = len(frame) // len(of_corpora)
    frame.insert(0, "corpus", np.repeat(list(of_corpora), layers))
    frame.insert(1, "layer", np.tile(np.arange(1, layers + 1), len(of_corpora)))
    return Table(frame, dict.fromkeys(PATTERNS, FRACTION))


def _rows(found: Estimate[Floats]) -> list[Estimate[Floats]]:
    """Split an estimate along its first axis."""
    return [found[place] for place in range(len(found.value))]


def _head_table(shares: Means) -> Table:
    frame = head_rows({name: shares.at(place).over() for place, name in enumerate(PATTERNS)})
    frame.insert(2, "pattern", [PATTERNS[place] for place in shares.over().value.argmax(-1).ravel()])
    return Table(frame, dict.fromkeys(PATTERNS, FRACTION))


def _head_figure(shares: Estimate[Floats]) -> HeatMap:
    layers, heads = shares.value.shape[:2]
    return HeatMap.from_categories(
        "Most frequent pattern of each head",
        [[NAMES[place] for place in row] for row in shares.value.argmax(-1)],
        GLYPHS,
        [str(layer) for layer in range(1, layers + 1)],
        [str(head) for head in range(1, heads + 1)],
        "layer",
        "head",
    )


def _bars(title: str, categories: Sequence[str], rows: Sequence[Estimate[Floats]], label: str) -> Bars:
    columns = {shown: [row.value[place] for row in rows] for place, shown in enumerate(NAMES)}
    ends = {
        shown: ([row.interval[0][place] for row in rows], [row.interval[1][place] for row in rows])
        for place, shown in enumerate(NAMES)
    }
    return Bars(title, tuple(categories), columns, "share of maps", ends, unit="fraction", category_label=label)


def _gallery_figure(best: Sequence[Sequence[Example]]) -> Maps | None:
    """Draw a row for each pattern that occurs, the clearest map first; None without any."""
    rows = {NAMES[place]: examples for place, examples in enumerate(best) if examples}
    if not rows:
        return None
    width = max(map(len, rows.values()))

    def filled(examples: Sequence[Example], what: Callable[[Example], Cell], blank: Cell) -> list[Cell]:
        return [*map(what, examples), *[blank] * (width - len(examples))]

    return Maps(
        "The clearest maps of each pattern",
        [filled(examples, lambda one: one.weights, None) for examples in rows.values()],
        list(rows),
        [str(place) for place in range(1, width + 1)],
        "",
        "",
        "attention",
        [filled(examples, lambda one: f"{name_of(*one.head)} {one.corpus}", "") for examples in rows.values()],
        top=BRIGHTEST,
        unit="fraction",
    )
