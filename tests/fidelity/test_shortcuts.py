"""Precision and ranks of planted words against slow ones, and the table of judges where the answer is known."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import kendalltau

from attention_probing.datamodules import TextBatch
from attention_probing.fidelity import Shortcut
from attention_probing.fidelity.classified import ClassifiedBatch, classify
from attention_probing.fidelity.contract import CheckpointResult
from attention_probing.fidelity.shortcuts import LEARNT, agreement, finds_best, metric_columns
from attention_probing.metrics.draws import resamples
from attention_probing.results import Estimate, UserError
from tests.fidelity.test_experiment import QUICK, run_over
from tests.fidelity.tiny import LEVELS, TEXTS, Kind, checkpoint, measurements, saliency_of, texts
from tests.fidelity.trained import fitted
from tests.models.batches import VOCABULARY

RANKINGS = ("random", "attention", "input_x_gradient", "integrated_gradients", "leave_one_out", "planted")
PLANTED = ((1, 3), (0, 1), (2, 6), (0, 2), (3, 4), (0, 1))
"""Planted words of the texts, among their words; the third text of the transformer has fewer words."""


def planted_texts(kind: Kind, rows: list[int]) -> TextBatch:
    batch = texts(kind, rows)
    for at, row in enumerate(rows):
        words = batch.words[at].nonzero().flatten().tolist()
        batch.rationale[at, [words[min(place, len(words) - 1)] for place in PLANTED[row]]] = True
    return batch


def classified_of(kind: Kind, level: str | None, rows: list[int]) -> ClassifiedBatch:
    found = classify(checkpoint(kind, level=level), planted_texts(kind, rows), seed=0, vocabulary=VOCABULARY)[1]
    assert found is not None
    return found


@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_precision_and_ranks_are_those_of_a_slow_count(kind: Kind, level: str | None) -> None:
    classified = classified_of(kind, level, list(range(len(TEXTS))))
    test = Shortcut(RANKINGS)
    found = measurements(test, classified)
    assert set(found) == set(test.scores())
    saliency = saliency_of(classified)
    for at in range(len(TEXTS)):
        own = classified.token_to_position[at].tolist()
        gold = {own[time] for time in classified.batch.rationale[at].nonzero().flatten().tolist()}
        words = sorted({position for position in own if position >= 0})
        for ranking in RANKINGS:
            precision, rank = [], []
            for order in saliency.rankings(ranking, 5)[:, at].tolist():
                ranked = sorted(words, key=lambda word: -order[word])
                precision.append(len(gold & set(ranked[: len(gold)])) / len(gold))
                rank.append(np.mean([ranked.index(word) + 1 for word in gold]))
            assert found[f"{ranking}.precision_at_k"][at].item() == pytest.approx(np.mean(precision))
            assert found[f"{ranking}.mean_rank"][at].item() == pytest.approx(np.mean(rank))
        assert found["planted.precision_at_k"][at] == 1
        assert found["planted.mean_rank"][at] == (len(gold) + 1) / 2
        assert found["chance.precision_at_k"][at].item() == pytest.approx(len(gold) / len(words))
        assert found["learnt"][at] == (classified.predicted[at] == classified.batch.labels[at])
    assert test.audit() == {"not_learnt": {}}


def test_tau_and_the_best_ranking_are_those_of_a_slow_count() -> None:
    random = np.random.default_rng(0)
    values = np.concatenate([random.normal(size=(40, 5)), random.integers(2, size=(40, 5))], axis=1)
    values[:, 7] = values[:, 6]  # two rankings with the same precision
    (weights,) = resamples(40, 30)
    taus, firsts = agreement(values, weights), finds_best(values, weights)
    for draw, counts in enumerate(weights):
        mean = (counts[:, None] * values).sum(0) / counts.sum()
        one, other = mean[:5].round(9), mean[5:].round(9)
        assert taus[draw] == pytest.approx(kendalltau(one, other).statistic, nan_ok=True)
        best = [place for place in range(5) if one[place] == one.max()]
        assert firsts[draw] == np.mean([other[place] == other.max() for place in best])


def result(variant: str, seed: int, learnt: float = 1.0, **columns: Any) -> CheckpointResult:  # noqa: ANN401
    """Texts whose columns are a constant and the same small noise."""
    noise = np.random.default_rng(seed).normal(size=20) / 1000
    frame = pd.DataFrame({name.replace("__", "."): value + noise for name, value in columns.items()})
    scores = {"shortcut.learnt": Estimate(learnt, unit="fraction")}
    return CheckpointResult(f"{variant}, seed {seed}", variant, seed, frame, scores)


TRUTH = {f"shortcut__{name}__precision_at_k": value for name, value in {"a": 0.9, "b": 0.5, "c": 0.1}.items()}


def test_judges_are_judged_by_the_planted_words(caplog: pytest.LogCaptureFixture) -> None:
    metrics = {
        # Right, wrong way round, and right for a metric of which lower is better.
        **{f"rationale__{name}__comprehensiveness": value for name, value in {"a": 3, "b": 2, "c": 1}.items()},
        **{f"rationale__{name}__aopc": value for name, value in {"a": 1, "b": 2, "c": 3}.items()},
        **{f"rationale__{name}__sufficiency": value for name, value in {"a": 1, "b": 2, "c": 3}.items()},
        # One of three pairs is wrong, and so is the best; several orders of one ranking are averaged.
        **{f"erasure__{name}__fraction": value for name, value in {"a": 2, "b": 1}.items()},
        **{f"erasure__c__fraction_{draw}": value for draw, value in ((1, 2), (2, 6))},
        "rationale__a__auprc": 1.0, "rationale__b__auprc": 2.0,  # no judge
        "rationale__a__naopc": 1.0,  # of one ranking
    }  # fmt: skip
    found = [result("x", seed, **TRUTH, **metrics) for seed in (0, 1)]
    found.append(result("y", 0, LEARNT - 0.01, **TRUTH, **metrics))
    test = Shortcut(["attention"])
    test.rankings = dict.fromkeys("abc", "attention")
    with caplog.at_level(logging.WARNING):
        table = test.tables(found)["shortcut.judges"]
    assert "below 99% for y, seed 0 (98.0%)" in caplog.text
    assert test.audit()["not_learnt"] == {"y, seed 0": pytest.approx(0.98)}
    frame = table.frame[table.frame["variant"] == "x"].set_index("metric")
    assert frame["better"].to_dict() == {
        "rationale.comprehensiveness": "higher",
        "rationale.aopc": "higher",
        "rationale.sufficiency": "lower",
        "erasure.fraction": "lower",
    }
    assert frame["rankings"].tolist() == [3, 3, 3, 3]
    assert frame["tau"].tolist() == pytest.approx([1, -1, 1, 1 / 3])
    assert frame[["tau.low", "tau.high"]].isna().all(axis=None)  # all texts are alike
    assert frame["first"].tolist() == [1, 0, 1, 0]
    assert frame["best"].tolist() == ["a", "c", "a", "b"]
    assert frame["reachable"].tolist() == [1] * 4
    assert set(frame["truth"]) == {"a"}
    assert frame["texts"].tolist() == [40] * 4
    assert table.main == ("variant", "metric", "tau", "reachable", "first", "best")


def test_equal_rankings_bound_tau_and_texts_without_a_value_are_left_out() -> None:
    values = {"a": 3.0, "b": 2.0, "c": 1.0}
    metrics = {f"rationale__{name}__aopc": value for name, value in values.items()}
    one = result("x", 0, **TRUTH | {"shortcut__b__precision_at_k": 0.9}, **metrics)
    one.values.loc[3, "rationale.b.aopc"] = np.nan
    test = Shortcut(["attention"])
    test.rankings = dict.fromkeys("abc", "attention")
    (row,) = test.tables([one])["shortcut.judges"].frame.to_dict("records")
    assert row["texts"] == 19
    assert row["truth"] == "a, b"
    assert [row["tau"], row["reachable"]] == pytest.approx([(2 / 3) ** 0.5] * 2)
    assert test.tables([result("x", 0, **TRUTH)]) == {}


def test_columns_are_told_from_rankings_that_begin_alike() -> None:
    columns = ["t.a.m_1", "t.a.m_2", "t.a_b.m", "t.other.m", "correct", "shortcut.a.m"]
    assert metric_columns(columns, ["a", "a_b"]) == {"t.m": {"a": ["t.a.m_1", "t.a.m_2"], "a_b": ["t.a_b.m"]}}
    assert metric_columns(["t.a.m", "t.a.v2.m"], ["a", "a.v2"]) == {"t.m": {"a": ["t.a.m"], "a.v2": ["t.a.v2.m"]}}


def test_data_without_a_shortcut_are_refused() -> None:
    data: Any = SimpleNamespace(shortcut=None)
    with pytest.raises(UserError, match="shortcut needs data with a planted shortcut, but these have none"):
        Shortcut().begin([], data, torch.device("cpu"), 0)


TESTS = "--model.tests=[{class_path: Shortcut, init_args: {rankings: [random, attention, planted]}}, "
TESTS += "{class_path: Rationale, init_args: {rankings: [random, attention, planted]}}]"


@pytest.mark.slow
def test_a_classifier_learns_the_shortcut_and_is_tested_on_the_same_planting(tmp_path: Path) -> None:
    options = ("--data.shortcut.kind=token", "--data.shortcut.share=0.8")
    run = fitted(tmp_path, "run", *options, epochs=25)
    _, folder, found = run_over([run], QUICK, TESTS, folder=tmp_path / "test")
    scores = found["scores"]
    assert scores["shortcut.learnt"] == scores["accuracy"] == 1
    assert scores["shortcut.planted.precision_at_k"] == scores["shortcut.planted.mean_rank"] == 1
    # The deciding words of the texts are the planted ones for all tests.
    assert scores["rationale.planted.token_f1"] == 1
    assert scores["rationale.random.token_f1"] == pytest.approx(scores["shortcut.random.precision_at_k"])
    judges = pd.read_csv(folder / found["tables"]["shortcut.judges"])
    assert judges["metric"].tolist() == ["rationale.comprehensiveness", "rationale.sufficiency"]
    for other in ("--data.shortcut.seed=1", "--data.shortcut=null"):
        data = ("--data=ClassificationDataModule", f"--data.corpus={tmp_path}/texts/{{split}}.tsv")
        given = (*data, "--data.positive=good", *options[1:], other)
        with pytest.raises(UserError, match=r"trained on other data|needs data with a planted shortcut"):
            run_over([run], QUICK, TESTS, *given, folder=tmp_path / "other")
