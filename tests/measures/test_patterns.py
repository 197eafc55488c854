from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_probing.attention import Encoder
from attention_probing.datamodules import SegmentBatch, TextDataModule
from attention_probing.measures import Patterns, RawMaps
from attention_probing.metrics.patterns import PATTERNS, Structure, by_rules, structure
from attention_probing.results import Bars, HeatMap, Maps
from tests.measures.passes import ENCODERS, batches, begin, encoder, sees, show
from tests.metrics.test_patterns import random_map, slow


@dataclass
class Corpora:
    """What the analysis asks of the data."""

    names: tuple[str, ...] = ("test", "other")


DATA = cast(TextDataModule, Corpora())


def begun(encoder: Encoder) -> Patterns:
    patterns = Patterns()
    begin(patterns, encoder, DATA)
    return patterns


def of_two_corpora(model: Encoder) -> list[SegmentBatch]:
    *some, last = batches(model)
    return [*some, replace(last, corpus="other")]


def feed(model: Encoder, kind: str, batch: SegmentBatch, *analyses: Patterns) -> list[Tensor]:
    """Let analyses see maps of all patterns: tiny encoders have hardly any but heterogeneous ones."""
    time = batch.tokens.size(1)
    passed = [torch.full((len(batch.index), model.heads, time, time), 0.1) for _ in range(model.layers)]
    for layer, weights in enumerate(passed):
        for item, size in enumerate(batch.lengths.tolist()):
            for head in range(model.heads):
                random = np.random.default_rng([int(batch.index[item]), layer, head])
                own = random_map(random, batch.segments[item, :size].numpy(), partial(sees, kind, layer))
                weights[item, head, :size] = 0.0
                weights[item, head, :size, :size] = own
        for analysis in analyses:
            analysis.update_layer(batch, layer, weights)
    for analysis in analyses:
        analysis.update(batch)
    return passed


def loops(model: Encoder, kind: str, batch: SegmentBatch, passed: list[Tensor]) -> Iterator[tuple[int, int, int, str]]:
    """Number of the input, layer, head, and pattern of every map."""
    for item, size in enumerate(batch.lengths.tolist()):
        delimiters = int((batch.start | batch.end)[item].sum())
        for layer, weights in enumerate(passed):
            for head in range(model.heads):
                rows = weights[item, head, :size, :size].double().tolist()
                _, pattern = slow(rows, delimiters, batch.segments[item, :size].tolist(), partial(sees, kind, layer))
                yield int(batch.index[item]), layer, head, pattern


@pytest.mark.parametrize("kind", ENCODERS)
def test_shares_equal_loops_over_cells(kind: str, tmp_path: Path) -> None:
    model = encoder(kind, tmp_path)
    patterns = begun(model)
    maps: list[tuple[str, int, int, int, str]] = []
    for batch in of_two_corpora(model):
        maps += [(batch.corpus, *one) for one in loops(model, kind, batch, feed(model, kind, batch, patterns))]
    result = patterns.result()

    def shares(**wanted: object) -> list[float]:
        own = []
        for corpus, index, layer, head, pattern in maps:
            found = {"corpus": corpus, "layer": layer, "head": head, "half": index % 2}
            if {**found, **wanted} == found:
                own.append(pattern)
        return [own.count(pattern) / len(own) for pattern in PATTERNS]

    assert sum(share > 0 for share in shares()) > 1
    table, totals = result.tables["patterns"].frame, result.tables["patterns_total"].frame
    assert [name for name in map(str, table) if "." not in name] == ["corpus", "layer", *PATTERNS]
    assert list(zip(table["corpus"], table["layer"], strict=True)) == [
        (corpus, layer) for corpus in ("test", "other") for layer in (1, 2)
    ]
    for row in table.to_dict("records"):
        expected = shares(corpus=row["corpus"], layer=row["layer"] - 1)
        assert [row[pattern] for pattern in PATTERNS] == pytest.approx(expected)
        ends = [row[f"{pattern}.{end}"] for pattern in PATTERNS for end in ("low", "high")]
        assert np.isnan(ends).all() == (row["corpus"] == "other")  # one input
    for row in totals.to_dict("records"):
        assert [row[pattern] for pattern in PATTERNS] == pytest.approx(shares(corpus=row["corpus"]))
    known, [kinds] = patterns.by_head(), patterns.classes().values()
    for row in result.tables["head_patterns"].frame.to_dict("records"):
        place = row["layer"] - 1, row["head"] - 1
        expected = shares(layer=place[0], head=place[1])
        assert [row[pattern] for pattern in PATTERNS] == pytest.approx(expected)
        assert row["pattern"] == PATTERNS[int(np.argmax(expected))] == kinds[place[0] * model.heads + place[1]]
        for number, pattern in enumerate(PATTERNS):
            of_head = known[pattern]
            assert of_head.over().value[place] == pytest.approx(expected[number])
            for half in (0, 1):
                found = of_head.over(slice(half, None, 2)).value
                assert found[place] == pytest.approx(shares(layer=place[0], head=place[1], half=half)[number])
    assert result.audit["inputs"] == 7
    assert result.finding is not None
    assert result.finding.score == "pattern.vertical"  # whatever pattern most maps have
    assert {name: type(figure) for name, figure in result.figures.items()} == {
        "pattern_heads": HeatMap,
        "patterns_by_layer": Bars,
        "patterns_by_corpus": Bars,
        "pattern_gallery": Maps,
    }


def test_the_gallery_has_the_clearest_maps_of_different_heads(tmp_path: Path) -> None:
    model = encoder("bert", tmp_path)
    patterns = begun(model)
    every: list[list[tuple[float, int, int, int, Tensor]]] = [[] for _ in PATTERNS]
    for batch in reversed(of_two_corpora(model)):
        for layer, weights in enumerate(feed(model, "bert", batch, patterns)):
            found = structure_of(model, batch, layer, weights)
            own, margins = by_rules(found, batch.segments.any(1))
            for item, size in enumerate(batch.lengths.tolist()):
                for head in range(model.heads):
                    order = (-float(margins[item, head]), int(batch.index[item]), layer, head)
                    every[int(own[item, head])].append((*order, weights[item, head, :size, :size]))
    figure = patterns.result().figures["pattern_gallery"]
    assert isinstance(figure, Maps)
    kinds = [of for of in every if of]
    assert len(figure.maps) == len(kinds) > 3
    for row, names, of in zip(figure.maps, figure.names, kinds, strict=True):
        wanted: dict[tuple[int, int], Tensor] = {}
        for _, _, layer, head, map_ in sorted(of, key=lambda one: one[:4]):
            wanted.setdefault((layer, head), map_)
        expected = list(wanted.items())[:6]
        assert [name.split()[0] for name in names if name] == [f"{one + 1}-{two + 1}" for (one, two), _ in expected]
        for shown, (_, map_) in zip(row, expected, strict=False):
            assert shown is not None
            np.testing.assert_array_equal(shown, map_)


def structure_of(model: Encoder, batch: SegmentBatch, layer: int, weights: Tensor) -> Structure:
    allowed = model.allowed(batch.mask).at(layer)
    return structure(weights, batch.lengths, (batch.start | batch.end).sum(1), batch.segments, allowed)


def test_raw_maps_are_those_of_the_first_input(tmp_path: Path) -> None:
    model = encoder("bert", tmp_path)
    raw, first = RawMaps(), batches(model)[0]
    begin(raw, model, DATA)
    for batch in reversed(batches(model)):  # another process may read a later batch first
        passed = show(model, batch, raw)
    result, size = raw.result(), int(first.lengths[0])
    figure = result.figures["maps"]
    assert isinstance(figure, Maps)
    assert "the fox , the dogs . | coffee" in figure.title
    assert result.audit == {"input": 0, "tokens": size}
    for row, layer in zip(figure.maps, passed, strict=True):
        np.testing.assert_array_equal(np.stack(row), layer[0, :, :size, :size])  # type: ignore[arg-type]
