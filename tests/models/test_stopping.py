"""Early stopping that counts steps, against an ordinary Trainer; and what a result says of a training cut short."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from attention_probing.commands import CONFIGS
from attention_probing.datamodules import DependencyDataModule
from attention_probing.models import EarlyStoppingBySteps
from attention_probing.models.trained import SCHEDULE_STEPS
from attention_probing.probes import AttentionOnlyProbe
from tests.trainers import CONTINUES, trainer

pytestmark = CONTINUES

FEW = [3, 5, 8, 11, 20, 33]
"""Sentences of the tiny treebank that make two batches."""
MakeData = Callable[..., DependencyDataModule]
RunConfig = Callable[..., tuple[Any, dict[str, Any], Path]]


class Told(Callback):
    """Tells the learning rate in every epoch, and the loss on dev at every validation by its epoch."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.losses: dict[int, float] = {}

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.losses[trainer.current_epoch + 1] = float(trainer.callback_metrics["val_loss"])


def fitted(probe: LightningModule, data: DependencyDataModule, epochs: int, *callbacks: Callback) -> Told:
    told = Told()
    trainer(epochs, told, *callbacks, num_sanity_val_steps=0).fit(probe, datamodule=data)
    return told


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_schedule_of_epochs_falls_after_steps(accumulated: int, make_data: MakeData) -> None:
    told, data = Told(), make_data(seed=0).variant(train=FEW)
    epochs = SCHEDULE_STEPS * accumulated // 2
    run = trainer(2 * epochs + 3, told, accumulate_grad_batches=accumulated)
    run.fit(AttentionOnlyProbe(0.5, 0.5), datamodule=data)
    assert run.num_training_batches == 2
    assert told.rates == [0.5] * epochs + [0.25] * epochs + [0.125] * 3


@pytest.mark.parametrize(("steps", "every"), [(1, 1), (5, 3), (8, 4)])
def test_a_training_goes_on_until_dev_is_no_better_for_as_many_steps(
    steps: int, every: int, make_data: MakeData
) -> None:
    data, patience = make_data(seed=0).variant(train=FEW), 2
    stop = EarlyStoppingBySteps("val_loss", "min", patience, steps)
    whole = fitted(AttentionOnlyProbe(0.3), data, 60).losses
    best, stale, end = math.inf, 0, 0
    while stale < patience:
        end += every
        best, stale = (whole[end], 0) if whole[end] < best else (best, stale + 1)
    assert patience * every < end < 60
    early = [epoch for epoch in (1, 2) if epoch < every]
    found = fitted(AttentionOnlyProbe(0.3), data, 60, stop).losses
    assert found == {epoch: whole[epoch] for epoch in (*early, *range(every, end + 1, every))}


def test_the_last_epoch_is_validated_too(make_data: MakeData, tmp_path: Path) -> None:
    data, keep = make_data(seed=0).variant(train=FEW), ModelCheckpoint(tmp_path, "{epoch}", monitor="val_loss")
    told = fitted(AttentionOnlyProbe(0.002), data, 10, keep, EarlyStoppingBySteps("val_loss", "min", 5, 8))
    assert list(told.losses) == [1, 2, 4, 8, 10]
    assert Path(keep.best_model_path).stem == "epoch=9"


@pytest.mark.parametrize(("epochs", "rate", "last"), [(1, 0.01, True), (12, 20.0, False)])
def test_a_run_says_if_its_best_epoch_is_the_last(
    epochs: int, rate: float, last: bool, corpus: str, run_config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    config = CONFIGS / "demo.yaml"
    options = [f"--trainer.max_epochs={epochs}", f"--model.learning_rate={rate}"]
    _, record, _ = run_config("fit", f"--config={config}", f"--data.corpus={corpus}", *options)
    audit = record["audit"]
    assert (audit["epochs"] == audit["epochs_run"]) == last
    told = f"the best epoch on dev ({epochs}) is the last that was allowed"
    assert any(one.startswith(told) for one in audit.get("warnings", [])) == last
    assert (f"Warning: {told}" in " ".join(capsys.readouterr().out.split())) == last
