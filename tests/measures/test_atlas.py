from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from attention_probing.attention.source import EncoderSpec
from attention_probing.datamodules import AtlasDataModule
from attention_probing.measures import Atlas, RepeatedSequences
from attention_probing.measures.atlas import (
    HeadSummary,
    atlas_of,
    control_table,
    of_antecedents,
    outside,
    roles_of,
    stability_table,
)
from attention_probing.measures.by_head import without_interval
from attention_probing.metrics.moments import Means
from attention_probing.results import Estimate, Floats, Result, Table
from tests import documents
from tests.trainers import scored


def by_head(*numbers: Any) -> Estimate[Floats]:  # noqa: ANN401
    return Estimate(*(np.asarray(number, np.float64) for number in numbers), unit="fraction")


ROWS: list[tuple[dict[str, Any], list[str]]] = [
    ({"previous": 0.51, "next": 0.5, "start": 0.61}, ["previous", "start"]),
    ({"entropy": 1.3, "broad_from": 1.29}, ["broad"]),  # a layer with a window
    ({"entropy": 3.8, "broad_from": 3.8}, []),
    ({"previous": 0.1, "end": 0.6, "punctuation": float("nan")}, []),
    ({"syntactic": True, "relation_accuracy.low": 0.5, "fixed_offset": 0.4, "next": 0.9}, ["syntactic", "next"]),
    ({"syntactic": True, "relation_accuracy.low": 0.4, "fixed_offset": 0.4}, []),
    ({"antecedent": 0.5, "antecedent.low": 0.42, "nearest_mention": 0.4}, ["coreference"]),
    ({"antecedent": 0.49, "antecedent.low": 0.42, "nearest_mention": 0.4}, []),
    ({"antecedent": 0.9, "antecedent.low": 0.4, "nearest_mention": 0.4}, []),
    ({"induction": 0.41, "duplicate": 0.4}, ["induction"]),
]


@pytest.mark.parametrize(("row", "roles"), ROWS)
def test_roles_follow_their_thresholds(row: dict[str, Any], roles: list[str]) -> None:
    assert roles_of(row) == roles


def test_a_head_is_outside_where_no_random_head_comes_near() -> None:
    random = {"self": by_head([[0.2, 0.3]], [[0.1, 0.25]], [[0.3, 0.35]]), "other": by_head([[0.0]], [[0.0]], [[0.0]])}
    given = {"self": by_head([[0.4, 0.36, 0.04, 0.2]], [[0.36, 0.34, 0.0, 0.1]], [[0.5, 0.5, 0.09, 0.3]])}
    found = outside(given, random)
    assert found.keys() == {"self"}
    assert found["self"].tolist() == [[True, False, True, False]]
    table = control_table(HeadSummary(given, {}), HeadSummary(random, {})).frame
    [row] = table.to_dict("records")
    assert (row["heads"], row["share"], row["outside"]) == (2, 0.5, "1-1 1-3")
    assert [row[name] for name in ("mean", "random_low", "random_high")] == pytest.approx([0.25, 0.1, 0.35])


def test_stability_is_that_of_the_halves() -> None:
    halves = np.array([[[0.1, 0.7], [0.3, 0.2]], [[0.2, 0.4], [0.3, 0.1]]])
    ones = np.ones_like(halves)
    means = Means(ones.astype(np.int64), halves, halves**2, 0 * ones, ones, "fraction")
    known = HeadSummary({"previous": means, "self": by_head(*halves, halves[0])}, {})
    table, scores = stability_table(known)
    [row] = table.frame.to_dict("records")
    assert row["correlation"] == pytest.approx(np.corrcoef(halves[0].ravel(), halves[1].ravel())[0, 1])
    assert row["difference"] == pytest.approx(0.125)
    assert scores["stability.role"].value == 0.75  # 1-2 is a previous-token head in the first half alone


@pytest.fixture(scope="module")
def data(bert: Path, corpus: str, cache: str, tmp_path_factory: pytest.TempPathFactory) -> AtlasDataModule:
    folder = tmp_path_factory.mktemp("atlas")
    files = documents.write_splits(folder, [[6, 3, 5, 7], [8, 5, 9]] * 4)
    return AtlasDataModule(treebank=corpus, documents=files, encoder=EncoderSpec(str(bert)), cache=cache, max_length=32)


@pytest.fixture(scope="module")
def result(data: AtlasDataModule) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attention_probing.measures.repeated.SEQUENCES", 4)
        patch.setattr("attention_probing.measures.SingleHeads.minimum", 5)
        return scored(Atlas([RepeatedSequences(length=5)]), data)


def test_each_head_has_a_row_that_joins_what_is_known_of_it(result: Result) -> None:
    for prefix in ("", "random_init."):
        atlas = result.tables[f"{prefix}atlas"].frame
        assert list(zip(atlas["layer"], atlas["head"], strict=True)) == list(product((1, 2), (1, 2, 3, 4)))
        roles = result.tables[f"{prefix}roles"].frame
        for column, source in {
            "relation": "relation",
            "relation_accuracy": "accuracy",
            "confidence": "confidence",
        }.items():
            pd.testing.assert_series_equal(atlas[column], roles[source], check_names=False)
        repeated = result.tables[f"{prefix}repeated"].frame
        pd.testing.assert_series_equal(atlas["induction.low"], repeated["induction.low"])
        heads = result.tables["antecedent.heads" if not prefix else "random_init.heads"].frame
        for _, row in atlas.iterrows():
            own = heads[(heads["mentions"] == "all") & (heads["head"] == f"{row['layer']}-{row['head']}")]
            assert row["antecedent"] == own.iloc[int(own["dev"].argmax())]["test"]
    # p-values of one permutation would mean nothing.
    assert not {"best_heads", "antecedent"} & set(result.tables)
    assert set(result.tables["control"].frame["statistic"]) >= {"induction", "relation_accuracy", "antecedent"}


def test_the_answer_names_the_three_most_frequent_roles() -> None:
    entropy = np.array([[0.5, 0.5, 0.5, 9.0]] * 2)
    previous = np.array([[0.9, 0.9, 0.1, 0.1], [0.9, 0.1, 0.1, 0.1]])
    bound = without_interval(np.full((2, 4), 3.8), "nats")
    halves, ones = np.stack([previous] * 2), np.ones((2, 2, 4))
    means = Means(ones.astype(np.int64), halves, halves**2, 0 * ones, ones, "fraction")
    given = HeadSummary({"previous": means, "entropy": without_interval(entropy, "nats"), "broad_from": bound}, {})
    assert atlas_of({"given": given}).answer == (
        "Of 8 heads 37.5 % have the role previous, 25.0 % have the role broad, 37.5 % have no role; "
        "100.0 % have the same role in both halves of the texts."
    )
    random = HeadSummary({"previous": by_head(*[0 * previous] * 3)}, {})
    assert "; 100.0 % have none with untrained layers; " in atlas_of({"given": given, "random_init": random}).answer


def test_the_direction_of_an_antecedent_is_chosen_on_dev() -> None:
    heads = pd.DataFrame({"mentions": "all", "head": ["1-1", "1-2"] * 2, "dev": [0.5, 0.2, 0.4, 0.3]})
    heads = heads.assign(test=[0.1, 0.2, 0.9, 0.8], low=0.0, high=1.0)
    scored = Result(
        "antecedent",
        {"nearest.all": Estimate(0.25, unit="fraction")},
        {"heads": Table(heads, {"dev": "fraction", "test": "fraction"}, interval="test")},
    )
    found = of_antecedents(scored, "", (1, 2)).estimates()
    assert found["antecedent"].value.tolist() == [[0.1, 0.8]]
    assert found["nearest_mention"].value.tolist() == [[0.25, 0.25]]
