"""Shares of five patterns among attention maps, by rules (Kovaleva et al. 2019, §4.1), and the maps of one input."""

from collections.abc import Iterable, Mapping, Sequence
from textwrap import shorten
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention_probing.datamodules import SegmentBatch, TextDataModule
from attention_probing.measures.by_head import HeadMeans, class_map, head_rows
from attention_probing.measures.contract import Measure
from attention_probing.metrics.gathered import gather_items
from attention_probing.metrics.moments import Means
from attention_probing.metrics.patterns import PATTERNS, by_rules, structure
from attention_probing.results import Bars, Figure, Maps, Result, Table, Unit, fill_sentence, numbers
from attention_probing.results.heads import head_name

GLYPHS = {"vertical": "V", "diagonal": "D", "vertical + diagonal": "VD", "block": "B", "heterogeneous": "H"}
"""Names of the patterns in figures, each with its letters."""
NAMES = tuple(GLYPHS)
EXAMPLES = 6  # most maps of each pattern in the gallery
BRIGHTEST = 0.25  # weight at the end of the gallery's colour scale: broad attention would be invisible on a wider one
_WIDTH = 160  # letters of the text in the title of raw maps
_UNITS: Mapping[str, Unit] = dict.fromkeys(PATTERNS, "fraction")


class GalleryMap(NamedTuple):
    """Attention map of one head on one input, shown in the gallery of examples.

    Attributes:
        order: Sort key: minus the distance to the nearest threshold of the rules, then input, layer and
            head. The clearest map comes first.
        pattern: Index of the pattern in `NAMES`.
        corpus: Name of the corpus of the input.
        weights: Attention `[tokens, tokens]`, from × to.
    """

    order: tuple[float, int, int, int]
    pattern: int
    corpus: str
    weights: NDArray[np.float32]


def clearest(maps: Iterable[GalleryMap]) -> list[GalleryMap]:
    """Return the `EXAMPLES` clearest maps, the clearest first, at most one of each attention head.

    The clearest map is the farthest from the nearest threshold of the rules that assign patterns, see
    `GalleryMap.order`. Fewer maps are returned if they belong to fewer than `EXAMPLES` heads.
    """
    by_head: dict[tuple[int, int], GalleryMap] = {}
    for one in sorted(maps, key=lambda one: one.order):
        by_head.setdefault(one.order[2:], one)
    return list(by_head.values())[:EXAMPLES]


class Patterns(Measure[TextDataModule]):
    """Shares of five patterns among the attention maps (Kovaleva et al. 2019, §4.1).

    The shares are given by layer, by head and by corpus. Each head has one attention map on each input,
    and rules assign it a pattern; see `metrics.patterns`. Intervals are over inputs. A gallery shows the
    maps that the rules assign most clearly.
    """

    experiment = "patterns"
    takes = TextDataModule

    def begin(self) -> None:
        self.encoder.require_every_layer(type(self).__name__)
        self._corpora = self.data.names
        self.numbers = HeadMeans(self.encoder, _UNITS, groups=2 * len(self._corpora))  # a group is a half of a corpus
        self._gallery: list[list[GalleryMap]] = [[] for _ in PATTERNS]

    def update_layer(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        delimiters = (batch.start | batch.end).sum(1)
        allowed = self.encoder.allowed(batch.mask).at(layer)
        found = structure(weights, batch.lengths, delimiters, batch.segments, allowed)
        patterns, margins = by_rules(found, batch.segments.any(1))
        self.numbers.add(torch.nn.functional.one_hot(patterns, len(PATTERNS)))
        self._offer(batch, layer, weights, patterns, margins)

    def _offer(self, batch: SegmentBatch, layer: int, weights: Tensor, patterns: Tensor, margins: Tensor) -> None:
        """Offer maps of a layer `[batch, heads, from, to]` to the gallery; patterns and margins are `[batch, heads]`.

        Of each pattern and head only the clearest map of the batch is offered.
        """
        numbers, of, margin = (part.cpu().numpy() for part in (batch.index, patterns, margins))
        by_number = numbers.argsort()  # of equals argmax takes the first
        for pattern, kept in enumerate(self._gallery):
            own = np.where(of == pattern, margin, -np.inf)[by_number]
            for head, place in enumerate(by_number[own.argmax(0)].tolist()):
                order = (-float(margin[place, head]), int(numbers[place]), layer, head)
                if of[place, head] == pattern and (len(kept) < EXAMPLES or order < kept[-1].order):
                    length = int(batch.lengths[place])
                    shown = weights[place, head, :length, :length].float().cpu().numpy().copy()
                    kept[:] = clearest([*kept, GalleryMap(order, pattern, batch.corpus, shown)])

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
        groups = {name: [2 * place, 2 * place + 1] for place, name in enumerate(self._corpora)}
        model, layers = self.numbers.over("model"), self.numbers.over("layers")
        heads = head_rows(self.numbers.over())
        heads.insert(2, "pattern", self.classes()["pattern"])
        by_layer = {name: head_rows(self.numbers.over("layers", own)) for name, own in groups.items()}
        each = [{"corpus": name, **numbers(self.numbers.over("model", own))} for name, own in groups.items()]
        joined = pd.concat(by_layer, names=["corpus"]).reset_index("corpus").reset_index(drop=True)
        tables = {
            "patterns": Table(joined, _UNITS),
            "patterns_total": Table(pd.DataFrame(each), _UNITS, main=("corpus", *PATTERNS)),
            "head_patterns": Table(heads, _UNITS),
        }
        cells = [[NAMES[place] for place in row] for row in self.numbers.means().over().value.argmax(-1)]
        figures: dict[str, Figure] = {"pattern_heads": class_map("Most frequent pattern of each head", cells, GLYPHS)}
        shown = {"layer": Table(head_rows(layers), _UNITS), "corpus": tables["patterns_total"]}
        series = dict(zip(NAMES, PATTERNS, strict=True))
        for name in ("layer", *(["corpus"] if len(groups) > 1 else [])):
            bars = Bars.from_table(f"Patterns by {name}", shown[name], name, series, "share of maps", name)
            figures[f"patterns_by_{name}"] = bars
        if gallery := _gallery_figure(gather_items([one for kept in self._gallery for one in kept])):
            figures["pattern_gallery"] = gallery
        scores = {f"pattern.{name}": model[name] for name in PATTERNS}
        audit = {"inputs": int(model["block"].inputs)}
        order = sorted(series.items(), key=lambda pair: -model[pair[1]].value)
        shares = ", ".join(f"{{pattern.{pattern}}} are {name}" for name, pattern in order if model[pattern].value)
        text = f"of the attention maps of {len(heads)} heads on {{n}} inputs {shares}"
        answer = fill_sentence(text, scores, n=audit["inputs"])
        return Result(self.experiment, scores, tables, figures, audit=audit, headline=list(scores), answer=answer)


def _gallery_figure(found: Sequence[GalleryMap]) -> Maps | None:
    """Draw a row for each pattern that occurs, the clearest map first; None without maps."""
    rows = {name: clearest(one for one in found if one.pattern == place) for place, name in enumerate(NAMES)}
    rows = {name: maps for name, maps in rows.items() if maps}
    if not rows:
        return None
    padded = [[*maps, *[None] * (max(map(len, rows.values())) - len(maps))] for maps in rows.values()]
    return Maps(
        "The clearest maps of each pattern",
        [[one.weights if one else None for one in maps] for maps in padded],
        list(rows),
        [str(place + 1) for place in range(len(padded[0]))],
        "",
        "",
        "attention",
        [[f"{head_name(*one.order[2:])} {one.corpus}" if one else "" for one in maps] for maps in padded],
        top=BRIGHTEST,
        unit="fraction",
    )


class RawMaps(Measure[TextDataModule]):
    """Attention maps of all layers and heads on the first input, without padding.

    Unlike other analyses it keeps the weights themselves, and no sums.
    """

    experiment = "maps"
    takes = TextDataModule

    def begin(self) -> None:
        self._found: tuple[int, str, list[NDArray[np.float32]]] | None = None  # index, text, [heads, from, to] by layer

    def update_layer(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        index, place = (int(one) for one in batch.index.min(0))
        if not layer and (self._found is None or index < self._found[0]):
            self._found = index, " | ".join(" ".join(passage.words) for passage in batch.passages[place]), []
        if self._found is not None and index == self._found[0]:
            length = int(batch.lengths[place])
            self._found[2].append(weights[place, :, :length, :length].float().cpu().numpy().copy())

    def result(self) -> Result:
        """Return the figure `maps`, with the attention map of every layer and head on the first input."""
        index, text, rows = min((one for one in gather_items([self._found]) if one), key=lambda one: one[0])
        figure = Maps(
            f"Attention of every head in: {shorten(text, _WIDTH, placeholder=' …')}",
            [list(weights) for weights in rows],
            [str(row) for row in range(1, len(rows) + 1)],
            [str(column) for column in range(1, len(rows[0]) + 1)],
            "layer",
            "head",
            "attention",
            unit="fraction",
        )
        audit = {"input": index, "tokens": rows[0].shape[-1]}
        return Result(self.experiment, {}, figures={"maps": figure}, audit=audit)
