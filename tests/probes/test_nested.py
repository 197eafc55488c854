"""Nested training against an ordinary Trainer whose every epoch is kept, and what it must leave alone."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor

from attention_probing.commands import CONFIGS
from attention_probing.datamodules import AttentionBatch, DependencyDataModule
from attention_probing.measures.trainings import result_of
from attention_probing.models import TrainingError
from attention_probing.probes import AttentionOnlyProbe, StructuralDistanceProbe
from tests.trainers import trained, trainer

TO_LOWEST_LOSS: dict[str, Any] = {"monitor": "val_loss", "mode": "min", "seed": 0}
FEW = [3, 5, 8, 11, 20, 33]
RunConfig = Callable[..., tuple[Any, dict[str, Any], Path]]
MakeData = Callable[..., DependencyDataModule]


class EveryEpoch(Callback):
    """Keeps the loss on dev and the weights of every epoch."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.weights: list[dict[str, Tensor]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.losses.append(float(trainer.callback_metrics["val_loss"]))
        self.weights.append({name: tensor.clone() for name, tensor in pl_module.state_dict().items()})


class Watched(AttentionOnlyProbe):
    """Tells at every validation how many epochs have passed, and the rate of the optimizer by then."""

    checks: list[tuple[int, float]] = []

    def on_validation_epoch_end(self) -> None:
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        type(self).checks.append((self.trainer.current_epoch + 1, rate))
        super().on_validation_epoch_end()


class NotANumber(AttentionOnlyProbe):
    def forward(self, batch: AttentionBatch) -> Tensor:
        return super().forward(batch) * torch.nan


def ordinary(*callbacks: Callback, epochs: int = 1) -> Trainer:
    return trainer(epochs, *callbacks, num_sanity_val_steps=0)


@pytest.mark.parametrize("rate", [0.001, 0.3, 3.0])
def test_the_epoch_after_which_dev_got_no_better_is_kept(rate: float, data: DependencyDataModule) -> None:
    every = EveryEpoch()
    ordinary(every, epochs=12).fit(AttentionOnlyProbe(rate), datamodule=data)
    best = 0
    for epoch, loss in enumerate(every.losses):
        if loss < every.losses[best]:
            best = epoch
        elif epoch - best == 3:
            break
    probe, found = trained(AttentionOnlyProbe(rate), data.variant(), max_epochs=12, patience=3, **TO_LOWEST_LOSS)
    assert (found.epoch, found.stopped) == (best + 1, epoch < 11)
    assert found.stopped == (rate > 0.001)
    assert found.value == every.losses[best]
    for name, tensor in probe.state_dict().items():
        assert torch.equal(tensor, every.weights[best][name]), name


def test_extra_checks_leave_the_random_numbers_of_training_as_they_are(data: DependencyDataModule) -> None:
    drawn: list[float] = []

    class Noisy(AttentionOnlyProbe):
        def training_step(self, batch: AttentionBatch, batch_idx: int) -> Tensor:
            drawn.append(float(torch.rand(())))
            return super().training_step(batch, batch_idx)

    few = data.variant(train=[3, 5, 8])
    trained(Noisy(), few, max_epochs=1, patience=1, batches=6, **TO_LOWEST_LOSS)
    found = drawn.copy()
    drawn.clear()
    few.setup("fit")
    run = ordinary(epochs=6)
    run.check_val_every_n_epoch = 6
    torch.manual_seed(0)
    run.fit(Noisy(), datamodule=few)
    assert len(found) == 6
    assert found == drawn


def test_extra_checks_do_not_stop_a_structural_probe(make_data: MakeData, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lowers its rate and ends by itself."""
    monkeypatch.setattr("attention_probing.probes.structural.PATIENCE", 1)
    rates: list[tuple[int, float]] = []

    class Told(StructuralDistanceProbe):
        def on_validation_epoch_end(self) -> None:
            super().on_validation_epoch_end()
            rates.append((self.trainer.current_epoch + 1, self.trainer.optimizers[0].param_groups[0]["lr"]))

    few = make_data(hidden=(1,)).variant(train=[3, 5, 8])
    probe, found = trained(Told(learning_rate=10.0), few, max_epochs=5, patience=5, batches=6, **TO_LOWEST_LOSS)
    assert rates == [(1, 10.0), (2, 10.0), (4, 10.0), (6, 1.0)]
    assert (found.epoch, probe.best_epoch.tolist(), found.stopped) == (2, [2], True)


def test_nothing_outside_is_disturbed(data: DependencyDataModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "17")
    probe, before, random = AttentionOnlyProbe(0.1), data.variant(), torch.random.get_rng_state()
    with torch.inference_mode():  # as in a test
        variant = data.variant()
        found, _ = trained(probe, variant, monitor="val_uas", mode="max", max_epochs=2, patience=2, seed=5)
        result_of(found, variant)
        assert torch.is_inference_mode_enabled()
    assert torch.equal(torch.random.get_rng_state(), random)
    assert os.environ["PL_GLOBAL_SEED"] == "17"
    assert data.trainer is None
    assert before.splits == {}
    assert not list(probe.parameters())
    assert found.weight.requires_grad
    assert not found.weight.is_inference()


def test_a_loss_that_is_no_number_is_refused(data: DependencyDataModule) -> None:
    with pytest.raises(TrainingError, match="NotANumber: val_loss was never finite"):
        trained(NotANumber(), data.variant(), max_epochs=2, patience=2, **TO_LOWEST_LOSS)


@pytest.mark.slow
def test_two_processes_share_the_trainings_and_find_what_one_finds(
    corpus: str, run_config: RunConfig, logged: Path
) -> None:
    path = CONFIGS / "hewitt2019/control.yaml"
    command = ["measure", f"--config={path}", f"--data.corpus={corpus}", "--model.max_epochs=3"]
    _, one, alone = run_config(*command)
    logged.write_text("")
    _, two, together = run_config(*command, processes=2)
    for part in ("scores", "tables", "audit", "units", "ratios"):
        assert two[part] == one[part], part
    for name in (*one["tables"].values(), one["items"]):
        assert (together / name).read_bytes() == (alone / name).read_bytes(), name
    said = logged.read_text()
    assert sorted(re.findall(r"(?m)^(.+): (?:trained in|by another process)", said)) == ["control", "task"]
    assert not list(together.rglob("state-*"))
