"""The test of model-consistent adversaries on a tiny corpus, and runs that were killed."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from datamodules import ClassificationDataModule
from fidelity.base import CheckpointResult
from fidelity.checkpoints import Checkpoint, FidelityError
from fidelity.consistent_adversary import ConsistentAdversary
from metrics.distributions import area
from results import Curves
from tests.fidelity.recipes import (
    CPU,
    WARNINGS,
    checkpoint_of,
    config_of,
    refuse_training,
    result_of,
    texts_in,
)

pytestmark = [pytest.mark.filterwarnings(warning) for warning in WARNINGS]
STRENGTHS = (0.0, 0.01, 0.3)
LN2 = math.log(2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ClassificationDataModule:
    return texts_in(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def checkpoints(data: ClassificationDataModule) -> list[Checkpoint]:
    """Two seeds of one configuration, and one of uniform attention."""
    return [
        checkpoint_of(data, config_of(0)),
        checkpoint_of(data, config_of(1)),
        checkpoint_of(data, config_of(0, "UniformAttention"), "uniform"),
    ]


def begun(
    checkpoints: list[Checkpoint],
    data: ClassificationDataModule,
    **options: Any,  # noqa: ANN401
) -> ConsistentAdversary:
    chosen: dict[str, Any] = {"strengths": STRENGTHS, "max_epochs": 12, "patience": 12} | options
    test = ConsistentAdversary(**chosen)
    test.begin(checkpoints, data, CPU, 0)
    return test


@pytest.fixture(scope="module")
def test(checkpoints: list[Checkpoint], data: ClassificationDataModule) -> ConsistentAdversary:
    return begun(checkpoints, data)


@pytest.fixture(scope="module")
def results(
    test: ConsistentAdversary, checkpoints: list[Checkpoint], data: ClassificationDataModule
) -> list[CheckpointResult]:
    return [result_of(test, checkpoint, data) for checkpoint in checkpoints]


def means(result: CheckpointResult, *columns: str) -> list[float]:
    return [float(result.values[f"consistent_adversary.{column}"].mean()) for column in columns]


def test_more_strength_takes_attention_further_and_never_beyond_ln_2(results: list[CheckpointResult]) -> None:
    for result in results[:2]:
        tvds, jsds = (
            [*means(result, *(f"{what}_{label}" for label in ("0", "0.01", "0.3")))] for what in ("tvd", "jsd")
        )
        assert jsds[2] > jsds[0] + 0.1
        assert tvds[0] < 0.2
        for label in ("0", "0.01", "0.3"):
            values = result.values[[f"consistent_adversary.{what}_{label}" for what in ("tvd", "jsd")]].to_numpy()
            assert not np.isnan(values).any()
            assert (values >= 0).all()
            assert (values[:, 1] <= LN2).all()
            assert (values[:, 0] <= 1 + 1e-9).all()


def slow_distances(p: list[float], q: list[float]) -> tuple[float, float]:
    """TVD and JSD of two distributions, weight by weight."""
    tvd = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    jsd = 0.0
    for a, b in zip(p, q, strict=True):
        jsd += sum(one * math.log(2 * one / (a + b)) / 2 for one in (a, b) if one > 0)
    return tvd, jsd


def test_each_text_is_compared_as_it_would_be_alone(
    test: ConsistentAdversary,
    results: list[CheckpointResult],
    checkpoints: list[Checkpoint],
    data: ClassificationDataModule,
) -> None:
    others = {
        "0.01": test._adversaries[checkpoints[1].name]["0.01"].model,
        "first": checkpoints[0].model,
        "uniform": checkpoints[2].model,
        "itself": checkpoints[1].model,
    }
    values = results[1].values
    for text in (0, 7, 28):
        batch = data.splits["test"][[text]]
        assert values["consistent_adversary.gold"][text] == int(batch.labels)
        with torch.no_grad():
            base = checkpoints[1].model(batch)
            for label, other in others.items():
                output = other(batch)
                pairs = [
                    (one.logits[0].double().softmax(-1).tolist(), one.levels["word"].weights[0].tolist())
                    for one in (base, output)
                ]
                tvd, _ = slow_distances(pairs[0][0], pairs[1][0])
                _, jsd = slow_distances(pairs[0][1], pairs[1][1])
                assert values[f"consistent_adversary.tvd_{label}"][text] == pytest.approx(tvd, abs=1e-5), label
                assert values[f"consistent_adversary.jsd_{label}"][text] == pytest.approx(jsd, abs=1e-5), label
                assert values[f"consistent_adversary.predicted_{label}"][text] == int(output.logits.argmax())


def test_a_checkpoint_lies_at_0_0_of_its_own_curve(results: list[CheckpointResult], test: ConsistentAdversary) -> None:
    table = test.tables(results)["consistent_adversary"].frame
    own = table[table["other"] == "itself"]
    assert len(own) == 3
    assert (own[["tvd", "tvd.low", "tvd.high", "jsd", "jsd.low", "jsd.high"]] == 0).all(axis=None)
    figure = test.figures(results)["consistent_adversary"]
    assert isinstance(figure, Curves)
    assert all((xs[0], ys[0]) == (0, 0) for xs, ys in figure.lines.values())


def test_the_scores_are_the_area_and_the_highest_point_of_the_curve(results: list[CheckpointResult]) -> None:
    for result in results[:2]:
        tvds, jsds = (
            [*means(result, *(f"{what}_{label}" for label in ("0", "0.01", "0.3")))] for what in ("tvd", "jsd")
        )
        for name, expected in (("area", float(area(tvds, jsds))), ("max_jsd", max(jsds))):
            found = result.scores[f"consistent_adversary.{name}"].estimate.named(name)
            assert found[name] == pytest.approx(expected)
            assert found[f"{name}.low"] < found[name] < found[f"{name}.high"] <= LN2
    # Uniform attention cannot be changed: it has no adversary.
    assert math.isnan(results[2].scores["consistent_adversary.area"].value)


def test_the_table_and_the_figure_hold_the_curve_and_what_is_beside_it(
    results: list[CheckpointResult], test: ConsistentAdversary, checkpoints: list[Checkpoint]
) -> None:
    table = test.tables(results)["consistent_adversary"].frame
    assert table[["checkpoint", "other"]].value_counts().to_dict() == {
        ("base, seed 0", "itself"): 1,
        ("base, seed 0", "adversary"): 3,
        ("base, seed 0", "uniform, seed 0"): 1,
        ("base, seed 1", "itself"): 1,
        ("base, seed 1", "adversary"): 3,
        ("base, seed 1", "base, seed 0"): 1,
        ("base, seed 1", "uniform, seed 0"): 1,
        ("uniform, seed 0", "itself"): 1,
    }
    adversary = table[(table["checkpoint"] == "base, seed 1") & (table["strength"] == 0.3)].iloc[0]
    values = results[1].values
    gold, predicted = (values[f"consistent_adversary.{name}"].to_numpy() for name in ("gold", "predicted_0.3"))
    assert adversary["accuracy"] == pytest.approx((gold == predicted).mean())
    positive = results[1].positive
    right = ((gold == positive) & (predicted == positive)).sum()
    assert adversary["f1"] == pytest.approx(2 * right / ((gold == positive).sum() + (predicted == positive).sum()))
    assert [adversary["tvd"], adversary["jsd"]] == pytest.approx(means(results[1], "tvd_0.3", "jsd_0.3"))
    assert adversary["jsd.low"] < adversary["jsd"] < adversary["jsd.high"]
    assert 1 <= adversary["epochs"] <= 12
    figure = test.figures(results)["consistent_adversary"]
    assert isinstance(figure, Curves)
    assert list(figure.lines) == ["base, seed 0", "base, seed 1"]
    assert figure.points.keys() == {"base, seed 0", "uniform, seed 0"}
    assert [one for (one,) in figure.points["base, seed 0"]] == pytest.approx(
        means(results[1], "tvd_first", "jsd_first")
    )
    assert len(figure.points["uniform, seed 0"][0]) == 2
    assert 0 < figure.points["base, seed 0"][1][0] < LN2


def test_a_second_run_trains_nothing_and_measures_the_same(
    checkpoints: list[Checkpoint],
    data: ClassificationDataModule,
    results: list[CheckpointResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_training(monkeypatch)
    again = begun(checkpoints, data)
    pd.testing.assert_frame_equal(result_of(again, checkpoints[0], data).values, results[0].values, check_exact=True)


def test_a_killed_run_goes_on_with_the_strength_that_it_was_killed_in(
    checkpoints: list[Checkpoint], data: ClassificationDataModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "cache", tmp_path)
    options = {"seeds": 1, "max_epochs": 2}
    with monkeypatch.context() as killed:
        refuse_training(killed, after=2)
        with pytest.raises(KeyboardInterrupt):
            begun(checkpoints, data, **options)
    finished = {path.name: path.read_bytes() for path in (tmp_path / "adversaries").iterdir()}
    assert len(finished) == 2
    with monkeypatch.context() as killed:
        refuse_training(killed, after=1)  # the third is all that is trained
        begun(checkpoints, data, **options)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "adversaries").iterdir()}
    assert len(kept) == 3
    assert kept | finished == kept


@pytest.mark.parametrize("change", [{"patience": 4}, {"regularized": True}, {"max_epochs": 3}])
def test_other_options_are_other_adversaries(
    checkpoints: list[Checkpoint],
    data: ClassificationDataModule,
    tmp_path: Path,
    change: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data, "cache", tmp_path)
    options = {"strengths": (0.1,), "max_epochs": 2, "seeds": 1}
    begun(checkpoints, data, **options)
    refuse_training(monkeypatch)
    begun(checkpoints, data, **options)
    with pytest.raises(KeyboardInterrupt):
        begun(checkpoints, data, **options | change)


def test_the_labels_are_never_looked_at(
    checkpoints: list[Checkpoint], data: ClassificationDataModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"strengths": (0.1,), "max_epochs": 2, "seeds": 1}
    states = []
    for folder in ("as they are", "others"):
        monkeypatch.setattr(data, "cache", tmp_path / folder)
        if folder == "others":
            monkeypatch.setattr(data.splits["train"], "labels", 1 - data.splits["train"].labels)
        test = begun(checkpoints, data, **options)
        states.append(test._adversaries[checkpoints[0].name]["0.1"].best.state)
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_what_ended_before_it_was_done_is_counted(
    checkpoints: list[Checkpoint], data: ClassificationDataModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "cache", tmp_path)
    cut = begun(checkpoints, data, strengths=(0.0, 0.1), max_epochs=2, seeds=1)
    assert cut.audit() == {"adversaries": 2, "cut_off": 2}
    still = replace(checkpoints[0], config={**config_of(0, learning_rate=0.0, dropout=0.0)})
    ended = begun([still], data, strengths=(0.1,), max_epochs=5, patience=1)
    assert ended.audit() == {"adversaries": 1, "cut_off": 0}


@pytest.mark.parametrize("strengths", [(), (0.1, 0.1), (-0.1, 0.1)])
def test_strengths_that_make_no_curve_are_refused(strengths: tuple[float, ...]) -> None:
    with pytest.raises(FidelityError, match=r"one model for each λ: strengths are \["):
        ConsistentAdversary(strengths)
