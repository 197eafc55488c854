"""Surface statistics, bags of vectors and clusters of heads, against loops over positions."""

import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon, pdist, squareform
from scipy.stats import binomtest
from torch import Tensor, nn

from attention_probing.attention import Encoder
from attention_probing.attention.capture import Mixture, replacing
from attention_probing.datamodules import SegmentBatch, TextDataModule
from attention_probing.measures import Bags, Clusters, Surface
from attention_probing.measures.clusters import CLUSTERS, PERMUTATIONS, cut_tree, layer_test, places, tree_of
from attention_probing.measures.surface_statistics import surface_answer
from attention_probing.metrics.attention_mass import PLAIN, STATISTICS
from attention_probing.results import Curves, Estimate, Floats, UserError
from tests import tiny
from tests.attention.test_checks import save
from tests.measures.intervals import at_once_by_hand
from tests.measures.passes import ENCODERS, batches, begin, encoder, make_even, sees, show, uniform as even_rows
from tests.metrics.attention_mass import KINDS, mean, statistics


def begun(encoder: Encoder) -> Surface:
    return begin(Surface(), encoder)


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
        other = {"sink": "first"}  # a head may be a sink where uniform attention is none
        return {
            name: value if even[other.get(name, name.removesuffix("_without_heaviest"))] else np.nan
            for name, value in found.items()
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

    result = surface.result()
    table, layers = result.tables["surface"].frame, result.tables["layers"].frame
    assert len(table) == model.layers * model.heads
    assert len(layers) == model.layers
    known_of_heads = surface.numbers.by_head()
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
    *compared, _, _ = result.headline
    top = max(compared, key=lambda name: result.numbers[name]).removeprefix("surface.")
    names = {"start": "start delimiter", "first": "first token", "end": "end delimiters"}
    names["punctuation"] = "full stops and commas"
    inputs_with = result.audit.get(f"inputs with {top}", 7)
    assert isinstance(inputs_with, int)
    [most] = layers.nlargest(1, top).to_dict("records")
    ends = {
        row["layer"]: at_once_by_hand(row[top], (row[f"{top}.low"], row[f"{top}.high"]), inputs_with, model.layers)
        for row in layers.to_dict("records")
    }
    low, _ = ends.pop(most["layer"])
    assert all(low <= high for _, high in ends.values())  # these encoders are too small for a layer clearly ahead
    of_top = result.scores[f"surface.{top}"]
    of_kinds = len(compared)
    wide = at_once_by_hand(of_top.value, of_top.interval, inputs_with, of_kinds)  # of all kinds of tokens at once
    assert result.finding is not None
    assert result.finding.score == ("surface.start" if result.audit["inputs with start"] else "surface.first")
    first, last = (f"{100 * end:.1f}" for end in wide)
    assert result.answer.startswith(
        f"On {inputs_with} inputs {100 * of_top.value:.1f} % [{first}, {last}] of attention goes to the {names[top]}; "
        f"entropy is {result.numbers['surface.entropy']:.4g} nats ["
    )
    assert result.figures["sinks_by_head"].values.ravel().tolist() == table["sink"].tolist()  # type: ignore[attr-defined]
    assert ("end_delimiters" in result.figures) == ("bert" in kind)
    blank = {name for name in PLAIN if table[name].isna().all()}
    assert blank == {
        "bert": set(),
        "modernbert": set(),
        "gpt2": {"start", "end", "heaviest_end", "next", "end_to_end", "other_to_end", "start_entropy"},
    }.get(kind, {"end", "heaviest_end", "next", "end_to_end", "other_to_end", "start_entropy"})
    assert ("first" in result.tables["layers"].main) == (kind == "gpt2")
    assert ("surface.first" in result.headline) == (kind == "gpt2")
    shares = sum(table[name].fillna(0.0) for name in ("start", "end", "punctuation", "rest"))
    assert ((shares + table["first"] * (kind == "gpt2") - 1).abs() < 0.2).all()  # not all inputs have punctuation
    entropy = result.figures["entropy"]
    assert isinstance(entropy, Curves)
    layers_of_line, line = entropy.lines["uniform attention"]
    assert layers_of_line == [1, 2]
    assert line == pytest.approx([mean(uniform[layer, "entropy"]) for layer in range(2)], abs=2e-5)


def test_a_head_is_a_sink_above_the_threshold_and_rates_of_0_and_1_have_exact_intervals(tmp_path: Path) -> None:
    model = encoder("bert", tmp_path)
    firsts: list[Tensor] = []  # mean attention to the first position, `[layers, heads]` of each input
    for batch in batches(model):
        passed = show(model, batch)
        for item, length in enumerate(batch.lengths.tolist()):
            firsts.append(torch.stack([weights[item, :, :length, 0].mean(-1) for weights in passed]))
    means = torch.stack(firsts).numpy()
    for epsilon in (0.0, float(np.median(means)), 0.999):
        surface = begin(Surface(epsilon=epsilon), model)
        for batch in batches(model):
            show(model, batch, surface)
        result = surface.result()
        table = result.tables["surface"].frame
        expected = (means > epsilon).mean(0)
        assert table["sink"].tolist() == pytest.approx(expected.ravel().tolist())
        assert result.tables["layers"].frame["sink"].tolist() == pytest.approx(expected.mean(1).tolist())
        assert result.numbers["surface.sink"] == pytest.approx(expected.mean())
        for row in table.to_dict("records"):
            found = round(7 * row["sink"])
            if found in (0, 7):
                ends = binomtest(found, 7).proportion_ci(method="exact")
                assert (row["sink.low"], row["sink.high"]) == pytest.approx((ends.low, ends.high))
            else:
                assert 0 < row["sink.low"] < row["sink"] < row["sink.high"] < 1
    with pytest.raises(UserError, match=r"epsilon is 1, but must be at least 0 and below 1"):
        Surface(epsilon=1)


def test_a_layer_is_named_if_it_is_clearly_ahead() -> None:
    def estimate(value: float, low: float, high: float) -> Estimate:
        return Estimate(value, low, high, unit="fraction")

    shares = {"end": estimate(0.5, 0.4, 0.6), "punctuation": estimate(0.2, 0.1, 0.3)}
    layers = {
        "end": {"1": estimate(0.3, 0.2, 0.4), "2": estimate(0.7, 0.5, 0.8)},
        "punctuation": {"1": estimate(0.9, 0.8, 0.95), "2": estimate(0.1, 0.05, 0.2)},
    }
    uniform = {"end": np.array([0.25, 0.125]), "punctuation": np.array([0.5, 0.5])}
    inputs = {"end": 1200, "punctuation": 900}
    start = "on 1,200 inputs 50.0 % [40.0, 60.0] of attention goes to the end delimiters"
    found = surface_answer(shares, layers, uniform, inputs)
    assert found == f"{start}, most in layer 2, 70.0 % [50.0, 80.0] (uniform 12.5 %)"
    layers["end"]["1"] = estimate(0.3, 0.2, 0.5)
    assert surface_answer(shares, layers, uniform, inputs) == start


@pytest.mark.parametrize("kind", ENCODERS)
def test_even_attention_is_as_broad_as_its_layer_allows(kind: str, tmp_path: Path) -> None:
    model = encoder(kind, tmp_path)
    make_even(model)
    surface = begun(model)
    lengths = [int(length) for batch in batches(model) for length in batch.lengths]
    for batch in batches(model):
        show(model, batch, surface)
    table = surface.result().tables["surface"].frame
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


def begun_bags(model: Encoder) -> Bags:
    bags = Bags()
    begin(bags, model)
    return bags


def cosine(first: Tensor, second: Tensor) -> float:
    return float(first @ second / (first.norm() * second.norm()))


def values_of(model: Encoder, batch: SegmentBatch) -> list[Tensor]:
    """The values of each layer, `[batch, heads, to, dim]`."""
    found: list[Tensor] = []

    def read(_: int, module: nn.Module, mixture: Mixture) -> Tensor:
        found.append(mixture.values.double())
        return mixture.outputs

    with torch.inference_mode(), replacing(read):
        model.model(**model.inputs(batch.tokens, batch.mask, batch.segments))
    return found


def test_rows_with_a_sink_are_divided_by_their_sums(tmp_path: Path) -> None:
    model = Encoder(str(save(tmp_path, "gpt_oss")))
    bags, sums, inputs = begun_bags(model), torch.zeros(model.layers, model.heads), 0
    for batch in batches(model):
        for layer, weights in enumerate(show(model, batch, bags)):
            for item, length in enumerate(batch.lengths.tolist()):
                rows = weights[item, :, :length, :length]
                rows = rows / rows.sum(-1, keepdim=True)
                sums[layer] += torch.special.entr(rows).sum(-1).mean(-1)
        inputs += len(batch.index)
    table = bags.result().tables["bags"].frame
    assert table["entropy"].tolist() == pytest.approx((sums / inputs).ravel().tolist(), abs=1e-5)


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_numbers_are_those_of_loops_over_positions(kind: str, tmp_path: Path) -> None:
    model = encoder(kind, tmp_path)
    bags = begun_bags(model)
    sums = torch.zeros(model.layers, model.heads, 3, dtype=torch.float64)
    for batch in batches(model):
        passed = show(model, batch, bags)
        values = values_of(model, batch)
        for item, length in enumerate(batch.lengths.tolist()):
            for layer, weights in enumerate(passed):
                for head in range(model.heads):
                    own = values[layer][item, head, :length]
                    rows = weights[item, head, :length, :length].double()
                    numbers = []
                    for row in range(length):
                        seen = [column for column in range(length) if sees(kind, layer, row, column)]
                        mean = own[seen].mean(0)
                        numbers.append(
                            (
                                cosine(rows[row] @ own, mean),
                                sum(cosine(own[column], mean) for column in seen) / len(seen),
                                -sum(float(p) * math.log(p) for p in rows[row].tolist() if p > 0),
                            )
                        )
                    sums[layer, head] += torch.tensor(numbers, dtype=torch.float64).mean(0)
    table = bags.result().tables["bags"].frame
    found = torch.tensor(table[["cosine", "single", "entropy"]].to_numpy().copy())
    assert torch.allclose(found, (sums / 7).view(-1, 3), atol=1e-5)


def begun_clusters(encoder: Encoder, folder: Path) -> tuple[Surface, Clusters]:
    surface, clusters = Surface(), Clusters()
    for analysis in (surface, clusters):
        analysis.together = {"surface": surface}
        begin(analysis, encoder, TextDataModule(cache=str(folder), max_cells=4096))
    return surface, clusters


@pytest.mark.parametrize("kind", ENCODERS)
def test_distances_equal_loops_over_tokens(kind: str, tmp_path: Path) -> None:
    model = encoder(kind, tmp_path)
    surface, clusters = begun_clusters(model, tmp_path)
    count, tokens = model.layers * model.heads, 0
    expected = np.zeros((count, count))
    for batch in batches(model):
        passed = torch.stack(show(model, batch, surface, clusters), 1).flatten(1, 2).double().numpy()
        for item, n in enumerate(batch.lengths.tolist()):
            tokens += n
            for one, other in np.ndindex(count, count):
                for token in range(n):
                    p, q = (0.999 * passed[item, head, token, :n] + 0.001 / n for head in (one, other))
                    expected[one, other] += 0.0 if one == other else jensenshannon(p, q) ** 2
    expected /= tokens
    result = clusters.result()
    table = result.tables["head_distances"].frame
    assert len(table) == count * (count - 1) // 2
    kinds: dict[bool, list[float]] = {True: [], False: []}
    for row in table.to_dict("records"):
        one, other = ((row[f"{of}layer"] - 1) * model.heads + row[f"{of}head"] - 1 for of in ("", "other_"))
        assert one < other
        assert row["distance"] == pytest.approx(expected[one, other], rel=1e-4)
        kinds[row["layer"] == row["other_layer"]].append(float(expected[one, other]))
    assert result.scores["within_layer"].value == pytest.approx(np.mean(kinds[True]), rel=1e-4)
    assert result.scores["between_layer"].value == pytest.approx(np.mean(kinds[False]), rel=1e-4)
    heads = result.tables["clusters"].frame
    assert heads["behaviour"].tolist() == surface.classes()["behaviour"]
    assert heads["cluster"].astype(str).tolist() == clusters.classes()["cluster"]
    assert isinstance(drawn := result.figures["clusters_by_layer"], Curves)
    assert {layer: len(x) for layer, (x, _) in drawn.points.items()} == {
        str(layer): model.heads for layer in range(1, model.layers + 1)
    }


def test_planted_groups_are_found_and_near_heads_of_one_layer_are_significant() -> None:
    random = np.random.default_rng(0)
    centres = 10 * random.standard_normal((CLUSTERS, 2))
    groups = np.arange(48) % CLUSTERS
    points = centres[groups] + 0.1 * random.standard_normal((48, 2))
    distances = squareform(pdist(points))
    found = cut_tree(tree_of(distances))
    assert len(set(zip(groups.tolist(), found.tolist(), strict=True))) == len(set(found.tolist())) == CLUSTERS
    np.testing.assert_allclose(squareform(pdist(places(distances))), distances, atol=1e-2)
    within, between, p = layer_test(distances, groups, 0)
    assert within < 1 < between
    assert p == 1 / (1 + PERMUTATIONS)
    assert layer_test(distances, np.arange(48) // 6, 0)[2] > 0.05
    assert np.isnan(layer_test(distances, np.zeros(48, np.int64), 0)[1:]).all()


def test_equal_heads_are_at_one_place() -> None:
    distances = np.zeros((CLUSTERS + 1, CLUSTERS + 1))
    assert cut_tree(tree_of(distances)).tolist() == [1] * (CLUSTERS + 1)
    assert np.ptp(places(distances), axis=0).max() < 1e-6
