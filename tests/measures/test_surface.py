from collections import defaultdict
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from attention import Encoder
from datamodules import TextDataModule
from measures import Surface
from metrics.attention_mass import PLAIN, STATISTICS
from results import Curves, Estimate, Floats
from tests import tiny
from tests.measures.passes import ENCODERS, batches, encoder, make_even, sees, show
from tests.measures.passes import uniform as even_rows
from tests.metrics.attention_mass import KINDS, mean, statistics

NO_DATA = cast(TextDataModule, None)  # which this analysis does not ask


def begun(encoder: Encoder) -> Surface:
    surface = Surface()
    surface.begin(NO_DATA, encoder)
    return surface


def broad_from(surface: Surface) -> Floats:
    found = surface.by_head()["broad_from"]
    assert isinstance(found, Estimate)
    return found.value


@pytest.mark.parametrize("kind", ENCODERS)
def test_tables_and_scores_equal_loops_over_tokens(kind: str, tmp_path: Path) -> None:
    model = encoder(kind, tmp_path)
    surface = begun(model)
    loops: dict[tuple[int, int, int], dict[str, float]] = {}  # by input, layer and head
    uniform: dict[tuple[int, str], list[float]] = defaultdict(list)

    def possible(found: dict[str, float], even: dict[str, float]) -> dict[str, float]:
        """Without what can only be 0: what is 0 if attention is uniform, with no column but the first removed."""
        return {
            name: value if even[name.removesuffix("_without_heaviest")] else np.nan for name, value in found.items()
        }

    for batch in batches(model):
        passed = show(model, batch, surface)
        for item, length in enumerate(batch.lengths.tolist()):
            number = int(batch.index[item])
            kinds = {name: getattr(batch, name)[item, :length].tolist() for name in KINDS}
            even = [statistics(even_rows(kind, layer, length), kinds) for layer in range(model.layers)]
            for layer, weights in enumerate(passed):
                for head in range(model.heads):
                    rows = weights[item, head, :length, :length].double().tolist()
                    loops[number, layer, head] = possible(statistics(rows, kinds), even[layer])
            for layer in range(model.layers):
                for name, value in possible(even[layer], even[layer]).items():
                    uniform[layer, name].append(value)
    inputs = range(7)

    def known(values: list[float]) -> list[float]:
        return [value for value in values if not np.isnan(value)]

    result = surface.result({})
    table, layers = result.tables["surface"].frame, result.tables["layers"].frame
    assert len(table) == model.layers * model.heads
    assert len(layers) == model.layers
    known_of_heads = surface._numbers.by_head()
    for name in STATISTICS:
        by_layer: list[list[float]] = [[] for _ in range(model.layers)]
        for row in table.to_dict("records"):
            layer, head = row["layer"] - 1, row["head"] - 1
            values = [loops[number, layer, head][name] for number in inputs]
            assert row[name] == pytest.approx(mean(known(values)), abs=2e-5, nan_ok=True)
            if not name.endswith("_without_heaviest"):
                beside = mean(known(uniform[layer, name]))
                assert row[f"uniform.{name}"] == pytest.approx(beside, abs=2e-5, nan_ok=True)
            assert row[f"{name}.low"] <= row[name] <= row[f"{name}.high"] or len(known(values)) < 2
            assert "entropy" in name or not row[f"{name}.high"] > 1 + 1e-6
            of_head = known_of_heads[name]
            assert of_head.over().value[layer, head] == pytest.approx(row[name], nan_ok=True)
            for half in (0, 1):
                found = of_head.over(slice(half, None, 2)).value
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
    assert ("end_delimiters" in result.figures) == ("bert" in kind)
    blank = {name for name in PLAIN if table[name].isna().all()}
    assert blank == {
        "bert": set(),
        "modernbert": set(),
        "gpt2": {"start", "end", "next", "end_to_end", "other_to_end", "start_entropy"},
    }.get(kind, {"end", "next", "end_to_end", "other_to_end", "start_entropy"})
    assert ("first" in result.tables["layers"].answer) == (kind == "gpt2")
    assert ("surface.first" in result.headline) == (kind == "gpt2")
    shares = sum(table[name].fillna(0.0) for name in ("start", "end", "punctuation", "rest"))
    assert ((shares + table["first"] * (kind == "gpt2") - 1).abs() < 0.2).all()  # not all inputs have punctuation
    entropy = result.figures["entropy"]
    assert isinstance(entropy, Curves)
    layers_of_line, line = entropy.lines["uniform attention"]
    assert layers_of_line == [1, 2]
    assert line == pytest.approx([mean(uniform[layer, "entropy"]) for layer in range(2)], abs=2e-5)


@pytest.mark.parametrize("kind", ENCODERS)
def test_even_attention_is_as_broad_as_its_layer_allows(kind: str, tmp_path: Path) -> None:
    model = encoder(kind, tmp_path)
    make_even(model)
    surface = begun(model)
    lengths = [int(length) for batch in batches(model) for length in batch.lengths]
    for batch in batches(model):
        show(model, batch, surface)
    table = surface.result({}).tables["surface"].frame
    for row in table.to_dict("records"):
        layer = row["layer"] - 1
        for name in ("entropy", "start", "previous", "next", "self", "punctuation", "first"):
            assert row[name] == pytest.approx(row[f"uniform.{name}"], abs=1e-5, nan_ok=True)
        windowed = not sees(kind, layer, tiny.WINDOW, 0)
        assert not windowed or row["entropy"] < np.log(tiny.WINDOW)
        # Over the whole input 3.8 nats are broad; here they are out of reach, and in every layer by as much.
        bound = broad_from(surface)[layer, row["head"] - 1]
        assert bound / row["entropy"] == pytest.approx(3.8 / np.mean(np.log(lengths)), rel=1e-5)
        assert surface.classes()["behaviour"][len(table) - 1] == "other"
