"""One training on one device and on three: the same steps, losses and parameters."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attention_probing.commands import launch
from attention_probing.models.regularizers import MaskedLanguageModel
from tests.models.corpora import write_texts
from tests.trainers import DEVICES

pytestmark = DEVICES

Train = Callable[..., tuple[dict[str, Any], list[dict[str, str]], dict[str, Tensor]]]


@pytest.fixture
def trained(tmp_path: Path, cache: str) -> Train:
    """Trains on some devices; gives `results.json`, the rows of `metrics.csv`, and the parameters."""

    def fit(*options: str, devices: int) -> tuple[dict[str, Any], list[dict[str, str]], dict[str, Tensor]]:
        runs = tmp_path / f"on_{devices}"
        launch.main(
            [
                "fit",
                *options,
                f"--data.cache={cache}",
                f"--trainer.default_root_dir={runs}",
                "--trainer.enable_progress_bar=false",
                "--trainer.accelerator=cpu",
                "--trainer.max_epochs=3",
                "--figures.formats=[]",
                *([f"--trainer.devices={devices}", "--trainer.strategy=ddp_fork"] if devices > 1 else []),
            ]
        )
        (found,), (checkpoint,) = runs.rglob("results.json"), runs.rglob("*.ckpt")
        with (found.parent / "metrics.csv").open(encoding="utf-8") as rows:
            logged = list(csv.DictReader(rows))
        state: dict[str, Tensor] = torch.load(checkpoint, weights_only=True)["state_dict"]
        return json.loads(found.read_text(encoding="utf-8")), logged, state

    return fit


def compare(trained: Train, *options: str) -> None:
    (one, rows, state), (three, others, shared) = (trained(*options, devices=devices) for devices in (1, 3))
    assert three["audit"]["devices"] == 3
    assert "devices" not in one["audit"]
    assert [row["step"] for row in rows] == [row["step"] for row in others]
    for row, other in zip(rows, others, strict=True):
        logged = {name for name, text in row.items() if text}
        assert logged == {name for name, text in other.items() if text}
        for name in logged:
            assert float(row[name]) == pytest.approx(float(other[name]), abs=2e-6), name
    for name, parameter in state.items():
        torch.testing.assert_close(shared[name], parameter, atol=1e-5, rtol=1e-5, equal_nan=True)
    assert one["scores"] == pytest.approx(three["scores"], abs=1e-6, nan_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        ["AttentionOnlyProbe", "--data.batch_size=2"],
        [
            "attention_probing.probes.structural.StructuralDistanceProbe",
            "--data.hidden=[0,2]",
            "--checkpoint.monitor=val_loss",
            "--checkpoint.mode=min",
        ],
    ],
    ids=lambda model: model[0].rpartition(".")[2],
)
def test_probes(model: list[str], trained: Train, corpus: str, bert: Path) -> None:
    data = ["--data=DependencyDataModule", f"--data.corpus={corpus}"]
    sizes = ["--data.batch_size=4", f"--data.encoder.name={bert}"]
    compare(trained, f"--model={model[0]}", *data, *sizes, *model[1:], "--trainer.gradient_clip_val=0.5")


@pytest.mark.slow
def test_classifiers(trained: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With masks that the texts decide: what is drawn in training is drawn on each device."""
    draws = MaskedLanguageModel._draws

    def by_text(self: MaskedLanguageModel, tokens: Tensor, words: Tensor, choice: int) -> Tensor:
        training, self.training = self.training, False
        try:
            return draws(self, tokens, words, choice)
        finally:
            self.training = training

    monkeypatch.setattr(MaskedLanguageModel, "_draws", by_text)
    corpus = write_texts(tmp_path, ("bad", "good"), (22, 11, 13))
    model = ["--model=AttentionClassifier", "--model.embedding={size: 8}"]
    model += ["--model.encoder=RecurrentEncoder", "--model.encoder.init_args.hidden=4"]
    model += ["--model.attention=AdditiveAttention"]
    model += ["--model.regularizers=[Tying, MaskedLanguageModel]"]
    data = ["--data=ClassificationDataModule", f"--data.corpus={corpus}", "--data.positive=good"]
    compare(trained, *model, *data, "--data.batch_size=5", "--checkpoint.monitor=val_f1")
