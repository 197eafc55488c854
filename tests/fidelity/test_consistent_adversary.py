"""Model-consistent adversaries against loops in double precision and texts that are read one by one."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fidelity.comparison import CheckpointResult
from fidelity.consistent_adversary import (
    ConsistentAdversary,
    Recipe,
    TrainedAdversary,
    adversarial_loss,
    adversary_training,
    attention_of,
    collect_outputs,
    trained_adversary,
)
from measures.trainings import share
from metrics.distributions import area
from results import Curves
from tests.fidelity import tiny
from tests.fidelity.trained import (
    CPU,
    Checkpoints,
    Data,
    config_of,
    recipe_of,
    result_of,
)

Begin = Callable[..., ConsistentAdversary]
Results = list[CheckpointResult]
LABELS = ("0", "0.01", "0.3")
LN2 = math.log(2)


def begun(checkpoints: Checkpoints, data: Data, **options: Any) -> ConsistentAdversary:  # noqa: ANN401
    chosen: dict[str, Any] = {"strengths": (0.0, 0.01, 0.3), "max_epochs": 12, "patience": 12} | options
    test = ConsistentAdversary(**chosen)
    test.begin(checkpoints, data, CPU, 0)
    return test


@pytest.fixture(scope="module")
def test(checkpoints: Checkpoints, data: Data) -> ConsistentAdversary:
    return begun(checkpoints, data)


@pytest.fixture(scope="module")
def results(test: ConsistentAdversary, checkpoints: Checkpoints, data: Data) -> Results:
    return [result_of(test, checkpoint, data) for checkpoint in checkpoints]


@pytest.fixture
def begin(checkpoints: Checkpoints, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Begins a short test of one checkpoint; nothing is trained yet."""
    monkeypatch.setattr(data, "cache", tmp_path)
    return lambda **options: begun(checkpoints[:1], data, **{"max_epochs": 2} | options)


def means(result: CheckpointResult, what: str) -> list[float]:
    """Of each adversary."""
    columns = [f"{what}_{label}" for label in LABELS]
    return [float(mean) for mean in result.columns("consistent_adversary")[columns].mean()]


def test_each_text_is_compared_as_it_would_be_alone(
    test: ConsistentAdversary, results: Results, checkpoints: Checkpoints, data: Data
) -> None:
    adversary = test._adversaries[checkpoints[1].name]["0.01"].model
    others = {"0.01": adversary, "first": checkpoints[0].model, "uniform": checkpoints[2].model}
    values = results[1].columns("consistent_adversary")
    for text in (0, 7, 28):
        batch = data.splits["test"][[text]]
        assert values["gold"][text] == int(batch.labels)
        with torch.no_grad():
            base = checkpoints[1].model(batch)
            for label, other in {**others, "itself": checkpoints[1].model}.items():
                output = other(batch)
                decisions, weights = (
                    [values.tolist() for values in pair]
                    for pair in (
                        [one.logits[0].double().softmax(-1) for one in (base, output)],
                        [one.levels["word"].weights[0] for one in (base, output)],
                    )
                )
                assert values[f"tvd_{label}"][text] == pytest.approx(tiny.slow_tvd(*decisions), abs=1e-5), label
                assert values[f"jsd_{label}"][text] == pytest.approx(tiny.slow_jsd(*weights), abs=1e-5), label
                assert values[f"predicted_{label}"][text] == int(output.logits.argmax())


def test_the_scores_are_the_area_and_the_highest_point_of_the_curve(results: Results) -> None:
    for result in results[:2]:
        tvds, jsds = means(result, "tvd"), means(result, "jsd")
        for name, expected in (("area", float(area(tvds, jsds))), ("max_jsd", max(jsds))):
            found = result.scores[f"consistent_adversary.{name}"].named(name)
            assert found[name] == pytest.approx(expected)
            assert result.scores[f"consistent_adversary.{name}"].unit == "nats"  # TVD, the other axis, has no unit
            assert found[f"{name}.low"] < found[name] < found[f"{name}.high"] <= LN2
    # Uniform attention cannot be changed: it has no adversary.
    assert math.isnan(results[2].scores["consistent_adversary.area"].value)


def test_the_table_and_the_figure_hold_the_curve_and_what_is_beside_it(
    results: Results, test: ConsistentAdversary
) -> None:
    table = test.tables(results)["consistent_adversary"].frame
    base = ["itself", *["adversary"] * 3]
    assert table[["checkpoint", "other"]].to_numpy().tolist() == [
        *(["base, seed 0", other] for other in (*base, "uniform, seed 0")),
        *(["base, seed 1", other] for other in (*base, "base, seed 0", "uniform, seed 0")),
        ["uniform, seed 0", "itself"],
    ]
    own = table[table["other"] == "itself"]
    assert (own[["tvd", "tvd.low", "tvd.high", "jsd", "jsd.low", "jsd.high"]] == 0).all(axis=None)
    adversary = table[(table["checkpoint"] == "base, seed 1") & (table["strength"] == 0.3)].iloc[0]
    values, positive = results[1].columns("consistent_adversary"), results[1].positive
    gold, predicted = values["gold"], values["predicted_0.3"]
    assert adversary["accuracy"] == pytest.approx((gold == predicted).mean())
    right = ((gold == positive) & (predicted == positive)).sum()
    assert adversary["f1"] == pytest.approx(2 * right / ((gold == positive).sum() + (predicted == positive).sum()))
    for what in ("tvd", "jsd"):
        assert adversary[what] == pytest.approx(means(results[1], what)[2])
    assert adversary["jsd.low"] < adversary["jsd"] < adversary["jsd.high"]
    assert 1 <= adversary["epochs"] <= 12
    figure = test.figures(results)["consistent_adversary"]
    assert isinstance(figure, Curves)
    assert list(figure.lines) == ["base"]
    curves = [[[0.0, *means(result, what)] for what in ("tvd", "jsd")] for result in results[:2]]
    assert np.array(figure.lines["base"]) == pytest.approx(np.mean(curves, axis=0))
    assert np.array(figure.points["base"]) == pytest.approx(np.concatenate(curves, axis=1))
    assert figure.points.keys() == {"base", "another seed", "uniform attention"}
    expected = [values["tvd_first"].mean(), values["jsd_first"].mean()]
    assert [one for (one,) in figure.points["another seed"]] == pytest.approx(expected)
    assert len(figure.points["uniform attention"][0]) == 2
    assert 0 < figure.points["another seed"][1][0] < LN2


def test_what_ended_before_it_was_done_is_counted(begin: Begin, checkpoints: Checkpoints, data: Data) -> None:
    assert begin(strengths=(0.0, 0.1)).audit() == {"adversaries": 2, "cut_off": 2, "checkpoints_left_out": 0}
    still = replace(checkpoints[0], config=config_of(0, learning_rate=0.0, dropout=0.0))
    ended = begun([still], data, strengths=(0.1,), max_epochs=5, patience=1)
    assert ended.audit() == {"adversaries": 1, "cut_off": 0, "checkpoints_left_out": 0}


def slow_loss(p: Tensor, w: Tensor, base_p: Tensor, base_w: Tensor, strength: float) -> float:
    """The formula in loops over Python's floats."""
    heads, texts, positions = w.shape
    total = 0.0
    for text in range(texts):
        total += sum(abs(float(a) - float(b)) for a, b in zip(p[text], base_p[text], strict=True)) / 2
        divergence = 0.0
        for head in range(heads):
            for position in range(positions):
                ours, theirs = float(w[head, text, position]), float(base_w[head, text, position])
                if ours > 0:
                    divergence += ours * math.log(ours / theirs)
        total -= strength * divergence / heads
    return total / texts


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("strength", [0.0, 0.02, 1.5])
def test_the_loss_is_the_formula(heads: int, strength: float) -> None:
    random = np.random.default_rng(0)

    def distributions(*shape: int) -> Tensor:
        values = random.dirichlet([0.7] * shape[-1], shape[:-1])
        return torch.from_numpy(values)

    p, base_p = distributions(5, 3), distributions(5, 3)
    w, base_w = distributions(heads, 5, 6), distributions(heads, 5, 6)
    for weights in (w, base_w):  # padding, and a weight of the adversary that is exactly 0
        weights[:, 1, 4:] = 0
    w[:, 2, 3] = 0
    found = float(adversarial_loss(p, w, base_p, base_w, strength))
    assert found == pytest.approx(slow_loss(p, w, base_p, base_w, strength), rel=1e-12)
    p.requires_grad_(), w.requires_grad_()
    assert torch.autograd.gradcheck(lambda p, w: adversarial_loss(p, w + 0.01, base_p, base_w + 0.01, strength), (p, w))


def made(recipe: Recipe) -> TrainedAdversary:
    return trained_adversary(recipe, *share([adversary_training(recipe, 0.01)]))


def test_an_adversary_is_that_of_the_lowest_loss_and_the_same_when_it_is_found_again(
    data: Data, checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = checkpoints[0]
    recipe = recipe_of(checkpoint, data, max_epochs=4)
    monkeypatch.setattr(data, "cache", tmp_path)
    before = {name: value.clone() for name, value in checkpoint.model.state_dict().items()}
    model, best, _ = made(recipe)
    again, found, _ = made(recipe_of(checkpoint, data, max_epochs=4))
    assert best[1:] == found[1:]
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
        assert torch.equal(value, best.state[name]), name
        assert torch.equal(checkpoint.model.state_dict()[name], before[name]), name
    assert not torch.equal(model.state_dict()["decision.weight"], before["decision.weight"])
    # Trained again, in a folder of its own, it is the same in every bit.
    monkeypatch.setattr(data, "cache", tmp_path / "other")
    third = made(recipe).model.state_dict()
    assert all(torch.equal(value, best.state[name]) for name, value in third.items())


def test_the_loss_on_dev_can_end_a_training(
    data: Data, checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(checkpoints[0], data, max_epochs=3)
    monkeypatch.setattr(data, "cache", tmp_path)
    on_train, on_dev = (adversary_training(recipe, 0.01, stop) for stop in ("train", "dev"))
    assert on_train.file != on_dev.file
    files = data.files()
    with monkeypatch.context() as patched:
        patched.setattr(data, "files", lambda: {**files, "dev": files["test"]})
        on_others = [adversary_training(recipe, 0.01, stop).file for stop in ("train", "dev")]
    assert [on_others[0] == on_train.file, on_others[1] == on_dev.file] == [True, False]
    (best,) = share([on_dev])
    model = trained_adversary(recipe, best).model
    base = collect_outputs(checkpoints[0].model, data, CPU, "dev")
    losses, texts = 0.0, 0
    for batch in data.splits["dev"].batches(1000):
        with torch.no_grad():
            output = model(batch)
        weights = attention_of(output)
        there = base.padded(batch.index, weights.size(-1))
        losses += float(adversarial_loss(output.logits.softmax(-1), weights, *there, 0.01)) * len(batch.index)
        texts += len(batch.index)
    assert best.value == pytest.approx(losses / texts, rel=1e-4)
