"""Nested training against losses that are written down, and files that a run leaves for the next."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from datamodules import TextBatch
from fidelity.consistent_adversary import Recipe
from measures.trainings import Best, share
from models import TrainingError
from tests.fidelity.trained import BATCH_SIZE, CLIP, Checkpoints, Data, recipe_of


@pytest.fixture
def recipe(checkpoints: Checkpoints, data: Data, tmp_path: Path) -> Recipe:
    own = recipe_of(checkpoints[0], data).own_data
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
    loader = recipe.own_data.train_dataloader()
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
    with pytest.raises(TrainingError, match=r"Written: train_loss was never a finite number, .*for base, seed 0: give"):
        fitted(recipe, [float("nan")] * 9)


BEST = Best({"a": torch.arange(3.0)}, 5, 2, 0.25, True)


def keep(recipe: Recipe, *options: object, best: Best | None = BEST) -> Best:
    def train() -> Best:
        if best is None:
            raise KeyboardInterrupt
        return best

    return share([recipe.training("things", options, "Thing", train)])[0]


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
