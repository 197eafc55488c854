from collections import defaultdict
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from analysis import Surface
from attention import Encoder
from datamodules import TextDataModule
from metrics.surface import PLAIN, STATISTICS
from results import Curves
from tests.analysis.passes import ENCODERS, batches, encoder, show, summed
from tests.metrics.surface import KINDS, mean, statistics

NO_DATA = cast(TextDataModule, None)  # which this analysis does not ask


def begun(encoder: Encoder) -> Surface:
    surface = Surface()
    surface.begin(NO_DATA, encoder)
    return surface


@pytest.mark.parametrize("kind", ENCODERS)
def test_tables_and_scores_equal_loops_over_tokens(kind: str, tmp_path: Path) -> None:
    model = encoder(kind, tmp_path)
    surface = begun(model)
    loops: dict[tuple[int, int, int], dict[str, float]] = {}  # by input, layer and head
    uniform: dict[str, list[float]] = defaultdict(list)
    for batch in batches(model):
        passed = show(model, batch, surface)
        for item, length in enumerate(batch.lengths.tolist()):
            number = int(batch.index[item])
            kinds = {name: getattr(batch, name)[item, :length].tolist() for name in KINDS}
            for layer, weights in enumerate(passed):
                for head in range(model.heads):
                    rows = weights[item, head, :length, :length].double().tolist()
                    loops[number, layer, head] = statistics(rows, kinds)
            seen = [[float(not model.causal or to <= place) for to in range(length)] for place in range(length)]
            for name, value in statistics([[one / sum(row) for one in row] for row in seen], kinds).items():
                uniform[name].append(value)
    inputs = range(7)

    def known(values: list[float]) -> list[float]:
        return [value for value in values if not np.isnan(value)]

    result = surface.result({})
    table, layers = result.tables["surface"].frame, result.tables["layers"].frame
    assert len(table) == model.layers * model.heads
    assert len(layers) == model.layers
    known_of_heads = surface.statistics()
    for name in STATISTICS:
        by_layer: list[list[float]] = [[] for _ in range(model.layers)]
        for row in table.to_dict("records"):
            layer, head = row["layer"] - 1, row["head"] - 1
            values = [loops[number, layer, head][name] for number in inputs]
            assert row[name] == pytest.approx(mean(known(values)), abs=2e-5, nan_ok=True)
            if not name.endswith("_without_heaviest"):
                assert row[f"uniform.{name}"] == pytest.approx(mean(known(uniform[name])), abs=2e-5, nan_ok=True)
            assert row[f"{name}.low"] <= row[name] <= row[f"{name}.high"] or len(known(values)) < 2
            of_head = known_of_heads[name]
            assert of_head.interval.value[layer, head] == pytest.approx(row[name], nan_ok=True)
            assert of_head.halves is not None
            for half, found in enumerate(of_head.halves):
                expected = mean(known([values[number] for number in inputs if number % 2 == half]))
                assert found[layer, head] == pytest.approx(expected, abs=2e-5, nan_ok=True)
        for number in inputs:
            for layer in range(model.layers):
                values = [loops[number, layer, head][name] for head in range(model.heads)]
                by_layer[layer].append(mean(known(values)))
        assert layers[name].tolist() == pytest.approx(list(map(mean, map(known, by_layer))), abs=2e-5, nan_ok=True)
        if name not in PLAIN:
            continue
        score = result.scores[f"surface.{name}"]
        of_inputs = [
            mean(known([loops[i, layer, head][name] for layer in range(2) for head in range(4)])) for i in inputs
        ]
        assert score.value == pytest.approx(mean(known(of_inputs)), abs=2e-5, nan_ok=True)
    assert (result.audit["inputs"], result.audit["inputs with punctuation"]) == (7, 6)
    assert ("end_delimiters" in result.figures) == (kind == "bert")
    assert isinstance(entropy := result.figures["entropy"], Curves)
    assert entropy.lines["uniform attention"][1][0] == pytest.approx(mean(uniform["entropy"]), abs=2e-5)


def test_two_processes_have_the_sums_of_one(tmp_path: Path) -> None:
    model = encoder("bert", tmp_path)
    whole, parts = begun(model), [begun(model), begun(model)]
    for place, batch in enumerate(batches(model)):
        show(model, batch, whole, parts[place % 2])
    states = [list(summed(surface)) for surface in (whole, *parts)]
    assert len(states[0]) == 12
    for one, first, second in zip(*states, strict=True):
        assert one.dtype == torch.int64
        assert torch.equal(one, first + second)
