"""Adversaries, token-wise models and their recipe against loops, texts that are read one by one, and written losses."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from attention_probing.datamodules import TextBatch
from attention_probing.fidelity.consistent_adversary import (
    ConsistentAdversary,
    TrainedAdversary,
    adversarial_loss,
    adversary_training,
    load_adversary,
)
from attention_probing.fidelity.contract import CheckpointResult
from attention_probing.fidelity.guided_mlp import GuidedMLP, GuideSource, make_guided
from attention_probing.fidelity.recipe import Recipe
from attention_probing.fidelity.split_outputs import attention_of, collect_outputs
from attention_probing.measures.trainings import Best, run_trainings
from attention_probing.metrics.distributions import area
from attention_probing.models import AttentionClassifier, AverageEncoder, TextClassifier, TrainingError
from attention_probing.results import Curves
from tests.fidelity import tiny
from tests.fidelity.tiny import with_constants
from tests.fidelity.trained import (
    BATCH_SIZE,
    CLIP,
    CPU,
    Checkpoints,
    Data,
    config_of,
    recipe_of,
    refuse_training,
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
            found = result.scores[f"consistent_adversary.{name}"].columns(name)
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
    assert (own[["tvd", "jsd"]] == 0).all(axis=None)
    assert own[["tvd.low", "tvd.high", "jsd.low", "jsd.high"]].isna().all(axis=None)  # no text differs from another
    adversary = table[(table["checkpoint"] == "base, seed 1") & (table["strength"] == 0.3)].iloc[0]
    values, positive = results[1].columns("consistent_adversary"), 1
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
    return load_adversary(recipe, *run_trainings([adversary_training(recipe, 0.01)]))


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
    (best,) = run_trainings([on_dev])
    model = load_adversary(recipe, best).model
    base = collect_outputs(checkpoints[0].model, data, CPU, "dev")
    losses, texts = 0.0, 0
    for batch in data.splits["dev"].batches(1000):
        with torch.no_grad():
            output = model(batch)
        weights = attention_of(output)
        there = base.select(batch.index, weights.size(-1))
        losses += float(adversarial_loss(output.logits.softmax(-1), weights, *there, 0.01)) * len(batch.index)
        texts += len(batch.index)
    assert best.value == pytest.approx(losses / texts, rel=1e-4)


SOURCES: tuple[GuideSource, ...] = ("uniform", "own", "base", "adversary")


@pytest.fixture(scope="module")
def both(checkpoints: Checkpoints) -> Checkpoints:
    """One with attention of its own, and one with uniform attention."""
    return checkpoints[::2]


def begun_guided(checkpoints: Checkpoints, data: Data, **options: Any) -> GuidedMLP:  # noqa: ANN401
    guided_test = with_constants(GuidedMLP(4, 3), **{"strength": 0.3, "size": 5, "patience": 4, **options})
    guided_test.begin(checkpoints, data, CPU, 0)
    return guided_test


@pytest.fixture(scope="module")
def guided_test(both: Checkpoints, data: Data) -> GuidedMLP:
    return begun_guided(both, data)


def by_hand(model: AttentionClassifier, tokens: list[int], weights: list[float]) -> Tensor:
    """Logits: the weighted sum of tanh(linear(word)), word by word."""
    encoder = model.encoder
    assert isinstance(encoder, AverageEncoder)
    states = [torch.tanh(encoder.linear(model.embedding(torch.tensor([token]))[0])) for token in tokens]
    logits: Tensor = model.decision(torch.stack([w * h for w, h in zip(weights, states, strict=True)]).sum(0))
    return logits


@torch.no_grad()
def test_every_model_averages_words_by_the_attention_of_its_source(
    guided_test: GuidedMLP, checkpoints: Checkpoints, data: Data
) -> None:
    adversary = ConsistentAdversary((0.3,), max_epochs=3, patience=10)
    adversary.begin(checkpoints[:1], data, CPU, 0)
    guides: dict[str, TextClassifier] = {
        "base": checkpoints[0].model,
        "adversary": adversary._adversaries[checkpoints[0].name]["0.3"].model,
    }
    models = guided_test._models[checkpoints[0].name]
    assert list(models) == list(SOURCES)
    values = result_of(guided_test, checkpoints[0], data).columns("guided_mlp")
    for text in (2, 11, 20):
        batch = data.splits["test"][[text]]
        tokens, words = batch.tokens[0].tolist(), batch.words[0]
        for source, model in models.items():
            assert isinstance(model, AttentionClassifier)
            if source == "uniform":
                weights = words / words.sum()
            elif source == "own":
                weights = model(batch).levels["word"].weights[0]
                assert weights[words].std() > 1e-4
            else:
                weights = guides[source](batch).levels["word"].weights[0]
            expected = by_hand(model, tokens, weights.tolist())
            torch.testing.assert_close(model(batch).logits[0], expected, atol=1e-5, rtol=1e-5)
            assert values[f"predicted_{source}"][text] == int(expected.argmax())
        assert values["gold"][text] == int(batch.labels)


def test_a_guide_is_read_and_neither_trained_nor_saved() -> None:
    guide = tiny.classifier("flat", torch.float32)
    model = make_guided(guide, encoder=AverageEncoder(3))
    model.train()
    assert not guide.training
    assert not list(model.parameters())
    assert model.state_dict() == {}


def test_scores_and_table_are_f1_with_intervals(guided_test: GuidedMLP, both: Checkpoints, data: Data) -> None:
    results = [result_of(guided_test, checkpoint, data) for checkpoint in both]
    table = guided_test.tables(results)["guided_mlp"].frame
    assert table["attention"].tolist() == [*SOURCES, *SOURCES]
    values, positive = results[0].columns("guided_mlp"), data.positive
    gold = values["gold"]
    for source, row in zip(SOURCES, table.itertuples(), strict=False):
        predicted = values[f"predicted_{source}"]
        right = ((gold == positive) & (predicted == positive)).sum()
        expected = 2 * right / ((gold == positive).sum() + (predicted == positive).sum())
        assert row.f1 == pytest.approx(expected)
        assert results[0].scores[f"guided_mlp.{source}.f1"].value == pytest.approx(expected)
    # Uniform attention has no adversary.
    assert table["f1"].isna().tolist() == [False] * 7 + [True]
    assert guided_test.audit()["models"] == 7


def test_a_second_run_trains_nothing_and_other_options_are_other_models(
    guided_test: GuidedMLP, both: Checkpoints, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_training(monkeypatch)
    for name, models in begun_guided(both, data)._models.items():
        for source, model in models.items():
            state = guided_test._models[name][source].state_dict()
            assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    for change in ({"size": 6}, {"strength": 0.2}):
        with pytest.raises(KeyboardInterrupt):
            begun_guided(both, data, **change)


@pytest.fixture
def recipe(checkpoints: Checkpoints, data: Data, tmp_path: Path) -> Recipe:
    own = recipe_of(checkpoints[0], data).training_data
    own.cache, own.batch_size, own.seed = tmp_path, data.batch_size, data.seed
    return recipe_of(checkpoints[0], own, max_epochs=9, patience=3)


class Written(LightningModule):
    """Its loss is that which is written for the epoch, and its one number tells the epoch."""

    def __init__(self, losses: Sequence[float]) -> None:
        super().__init__()
        self.losses, self.number = losses, nn.Parameter(torch.zeros(1))
        self.seen: list[list[int]] = []
        self.drawn: list[float] = []

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        if batch_idx == 0:
            self.seen.append([])
        self.seen[-1] += batch.index.tolist()
        self.drawn.append(float(torch.rand(1)))
        self.batches = batch_idx + 1
        self.settings = (self.trainer.gradient_clip_val, self.trainer.accumulate_grad_batches)
        self.log("train_loss", self.losses[self.current_epoch], on_step=False, on_epoch=True, batch_size=1)
        return self.number.sum() * 0

    def on_train_epoch_end(self) -> None:
        with torch.no_grad():
            self.number.fill_(self.current_epoch + 1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.0)


def fitted(recipe: Recipe, losses: Sequence[float], module: Written | None = None) -> Best:
    loader = recipe.training_data.train_dataloader()
    return recipe.fit(module or Written(losses), "train_loss", "min", train_dataloaders=loader)


@pytest.mark.parametrize(
    ("losses", "epochs", "epoch", "stopped"),
    [
        ([3.0, 2.0, 2.5, 1.0, 1.5, 1.6, 1.0, 0.5, 0.1], 7, 4, True),
        ([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 9, 9, False),
        ([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 4.0, 4.0], 9, 7, False),
        ([1.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0], 4, 1, True),
    ],
)
def test_the_epoch_of_the_lowest_loss_is_kept(
    recipe: Recipe, losses: list[float], epochs: int, epoch: int, stopped: bool
) -> None:
    best = fitted(recipe, losses)
    assert (best.epochs, best.epoch, best.stopped) == (epochs, epoch, stopped)
    assert best.value == losses[epoch - 1]
    assert best.state["number"].tolist() == [epoch]


def test_clipping_and_size_of_the_batches_are_those_of_the_checkpoint_s_run(recipe: Recipe) -> None:
    module = Written([1.0] * 9)
    fitted(recipe, [], module)
    assert module.settings == (CLIP, 1)
    texts = len(recipe.data.splits["train"])
    assert module.batches == -(-texts // BATCH_SIZE)
    assert recipe.data.batch_size != BATCH_SIZE
    assert all(sorted(seen) == list(range(texts)) for seen in module.seen)
    assert module.seen[0] != module.seen[1]


def test_nothing_outside_is_disturbed_and_the_seed_decides_everything(recipe: Recipe) -> None:
    before = torch.random.get_rng_state()
    runs = []
    for seed in (0, 0, 1):
        module = Written([1.0] * 9)
        with torch.inference_mode():  # as in a test
            best = fitted(replace(recipe, seed=seed), [], module)
            assert torch.is_inference_mode_enabled()
        assert not best.state["number"].is_inference()
        runs.append((module.drawn, module.seen))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert recipe.data.trainer is None
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[2][0]
    assert runs[0][1] != runs[2][1]


def test_a_loss_that_is_no_number_is_refused(recipe: Recipe) -> None:
    with pytest.raises(TrainingError, match=r"Written: train_loss was never finite, .*for base, seed 0: give"):
        fitted(recipe, [float("nan")] * 9)


BEST = Best({"a": torch.arange(3.0)}, 5, 2, 0.25, True)


def keep(recipe: Recipe, *options: object, best: Best | None = BEST) -> Best:
    def train() -> Best:
        if best is None:
            raise KeyboardInterrupt
        return best

    return run_trainings([recipe.training("things", options, "Thing", train)])[0]


def other(recipe: Recipe, change: str) -> Recipe:
    """The recipe with one thing changed."""
    data, checkpoint = recipe.data, recipe.checkpoint
    if change == "checkpoint":
        return replace(recipe, checkpoint=replace(checkpoint, digest="f" * 64))
    if change == "batch_size":
        return replace(recipe, checkpoint=replace(checkpoint, config={"data": {"init_args": {"batch_size": 5}}}))
    if change == "train":
        corpus = str(data.cache / "{split}.tsv")
        for split, path in data.files().items():
            text = path.read_text(encoding="utf-8")
            Path(corpus.replace("{split}", split)).write_text(text.replace("film", "plot"), encoding="utf-8")
        data.corpus = corpus
    elif change == "vocabulary":
        data.vocabulary = replace(data.vocabulary, words=(*data.vocabulary.words, "new"))
    elif change == "cut":
        shorter: Any = SimpleNamespace(lengths=data.splits["train"].lengths - 1)
        data.splits = {**data.splits, "train": shorter}
    else:
        return replace(recipe, **{change: getattr(recipe, change) + 1})
    return replace(recipe)


@pytest.mark.parametrize(
    "change", ["seed", "max_epochs", "patience", "checkpoint", "train", "batch_size", "vocabulary", "cut"]
)
def test_whatever_the_outcome_depends_on_is_looked_for_by(recipe: Recipe, change: str) -> None:
    keep(recipe, 1, "x")
    found = keep(replace(recipe), 1, "x", best=None)  # the same: it is not trained again
    assert torch.equal(found.state["a"], BEST.state["a"])
    assert found[1:] == BEST[1:]
    assert len(list((recipe.data.cache / "things").iterdir())) == 1
    with pytest.raises(KeyboardInterrupt):
        keep(recipe, 1, "y", best=None)
    with pytest.raises(KeyboardInterrupt):
        keep(other(recipe, change), 1, "x", best=None)
