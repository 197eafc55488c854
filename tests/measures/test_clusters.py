from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon, pdist, squareform

from attention import Encoder
from datamodules import TextDataModule
from measures import Clusters, Surface
from measures.clusters import CLUSTERS, PERMUTATIONS, cut, layer_test, places, tree_of
from results import Curves
from tests.measures.passes import ENCODERS, batches, encoder, show


def begun(encoder: Encoder, folder: Path) -> tuple[Surface, Clusters]:
    surface, clusters = Surface(), Clusters()
    for analysis in (surface, clusters):
        analysis.begin(TextDataModule(cache=str(folder), max_cells=4096), encoder)
    return surface, clusters


@pytest.mark.parametrize("kind", ENCODERS)
def test_distances_equal_loops_over_tokens(kind: str, tmp_path: Path) -> None:
    model = encoder(kind, tmp_path)
    surface, clusters = begun(model, tmp_path)
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
    result = clusters.result({"surface": surface})
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
    found = cut(tree_of(distances))
    assert len(set(zip(groups.tolist(), found.tolist(), strict=True))) == len(set(found.tolist())) == CLUSTERS
    np.testing.assert_allclose(squareform(pdist(places(distances))), distances, atol=1e-2)
    within, between, p = layer_test(distances, groups, 0)
    assert within < 1 < between
    assert p == 1 / (1 + PERMUTATIONS)
    assert layer_test(distances, np.arange(48) // 6, 0)[2] > 0.05
    assert np.isnan(layer_test(distances, np.zeros(48, np.int64), 0)[1:]).all()


def test_equal_heads_are_at_one_place() -> None:
    distances = np.zeros((CLUSTERS + 1, CLUSTERS + 1))
    assert cut(tree_of(distances)).tolist() == [1] * (CLUSTERS + 1)
    assert np.ptp(places(distances), axis=0).max() < 1e-6
