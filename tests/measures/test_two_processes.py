"""Two copies of an analysis that share the batches, as two processes do, sum what one copy sums over all of them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from attention_probing import measures
from attention_probing.datamodules.batches import Ranks
from attention_probing.measures import (
    Bags,
    Change,
    Clusters,
    Importance,
    Linguistic,
    MapMeasure,
    Patterns,
    RawMaps,
    Relations,
    RepeatedSequences,
    Surface,
)
from attention_probing.metrics.gathered import Gathered
from tests.measures.passes import TREES, batch_of, begin, show
from tests.measures.test_importance import language_model
from tests.rooms import exports

SUMMED: list[Callable[[], MapMeasure]] = [
    *(Surface, Bags, Clusters, Patterns, Linguistic, Change, Importance),
    *(Relations, partial(Importance, method="integrated_gradients", ig_steps=2), partial(RepeatedSequences, length=5)),
]


def sums(analysis: MapMeasure) -> Iterator[Tensor]:
    """States of all metrics of an analysis, each reduced over processes by addition."""
    for metric in analysis.modules():
        if isinstance(metric, Gathered):
            yield from (getattr(metric, name) for name in metric._sums)


@pytest.mark.parametrize("make", SUMMED, ids=lambda make: make().experiment)
def test_copies_that_share_the_batches_sum_what_one_does(make: Callable[[], MapMeasure], tmp_path: Path) -> None:
    encoder = language_model("bert", tmp_path)
    whole, *parts = analyses = [make() for _ in range(3)]
    for analysis, ranks in zip(analyses, (Ranks(), Ranks(0, 2), Ranks(1, 2)), strict=True):
        data = SimpleNamespace(names=("test",), max_cells=4096, max_length=64)
        analysis.ranks = ranks
        data.passages, data.encoders = lambda: ((tree,) for tree in TREES), {"before": encoder}
        begin(analysis, encoder, data)
    for place, texts in enumerate((TREES[:3], TREES[3:4], TREES[4:])):
        batch = batch_of(encoder, *texts, first=place * 3)
        weights = show(encoder, batch)
        for analysis in (whole, parts[place % 2]):
            for layer, own in enumerate(weights):
                analysis.update_layer(batch, layer, own)
            for layer, other in enumerate(reversed(weights) if analysis.compares else ()):
                analysis.update_layer(replace(batch, encoder="before"), layer, other)
            analysis.update(batch)
    for one, first, second in zip(*map(sums, analyses), strict=True):
        assert one.any()
        torch.testing.assert_close(one, first + second, rtol=1e-12, atol=0)


def test_every_analysis_is_summed_or_keeps_single_maps() -> None:
    ours = {kind for kind in exports(measures).values() if isinstance(kind, type) and issubclass(kind, MapMeasure)}
    ours -= {MapMeasure}
    assert {type(make()) for make in SUMMED} | {RawMaps} == ours
