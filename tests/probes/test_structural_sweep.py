"""Training on a tiny encoder, against a loop that trains one matrix as the paper says it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

from attention.encoder import EncoderSpec
from datamodules import DependencyDataModule
from heads.experiment import ExperimentError
from probes.structural import (
    GAIN,
    Pair,
    StructuralDepthProbe,
    StructuralDistanceProbe,
    StructuralProbe,
    StructuralSizes,
)
from results import HeatMap, Result
from tests.tiny import save_bert
from training import TrainingError

# Lightning's advice when a checkpoint is loaded without the callback that wrote it, as these tests do.
pytestmark = pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")

ROOT = Path(__file__).parent.parent.parent
PROBES = [StructuralDistanceProbe, StructuralDepthProbe]
EPOCHS, RATE = 12, 0.03
MakeData = Callable[..., DependencyDataModule]


@pytest.fixture
def data(bert: Path, corpus: str, cache: str) -> MakeData:
    def make(
        hidden: tuple[int, ...] = (0, 1, 2), encoder: Path | None = bert, random_init: bool = False
    ) -> DependencyDataModule:
        return DependencyDataModule(
            corpus,
            encoder=None if encoder is None else EncoderSpec(str(encoder)),
            hidden=hidden,
            cache=cache,
            max_sentences=4,
            random_init=random_init,
        )

    return make


def trainer(folder: Path, epochs: int = EPOCHS, *callbacks: Callback, **options: Any) -> Trainer:  # noqa: ANN401
    return Trainer(
        max_epochs=epochs,
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=list(callbacks) or None,
        enable_checkpointing=bool(callbacks),
        **options,
    )


def fitted(probe: StructuralProbe, data: DependencyDataModule, run: Trainer) -> StructuralProbe:
    torch.manual_seed(0)
    run.fit(probe, datamodule=data)
    return probe


def scored(probe: StructuralProbe, data: DependencyDataModule, folder: Path, checkpoint: Path | None = None) -> Result:
    trainer(folder).test(probe, datamodule=data, verbose=False, ckpt_path=checkpoint, weights_only=True)
    assert probe.result is not None
    return probe.result


def by_hand(
    probe: StructuralProbe, data: DependencyDataModule, pair: int, start: Tensor
) -> tuple[Tensor, int, float, int]:
    """One matrix alone: its best state, the epoch and loss of it, and the epochs that were run."""
    matrix = torch.nn.Parameter(start.clone())
    adam = torch.optim.Adam([matrix], RATE)
    layer = data.hidden_layers.index(probe.pairs[pair].layer)

    def losses(batch: Any) -> Tensor:  # noqa: ANN401
        predicted = probe.predict(probe.states(batch)[:, layer] @ matrix.T)[:, None]
        return probe.losses(predicted, batch)[:, 0]

    best, kept, at, epoch = float("inf"), start, 0, 0
    loader = data.train_dataloader()
    for epoch in range(1, EPOCHS + 1):
        loader.sampler.set_epoch(epoch - 1)  # type: ignore[attr-defined]
        for batch in loader:
            adam.zero_grad()
            losses(batch).mean().backward()  # type: ignore[no-untyped-call]
            adam.step()
        with torch.no_grad():
            dev = float(torch.cat([losses(batch) for batch in data.val_dataloader()]).mean())
        if dev < best - GAIN:
            best, kept, at = dev, matrix.detach().clone(), epoch
        else:
            adam.param_groups[0]["lr"] *= 0.1
            if epoch - at == probe.patience:
                break
    return kept, at, best, epoch


@pytest.mark.parametrize("kind", PROBES)
def test_every_pair_of_a_sweep_is_trained_as_if_it_were_alone(
    kind: type[StructuralProbe], data: MakeData, tmp_path: Path
) -> None:
    def make(layers: tuple[int, ...], ranks: tuple[int, ...]) -> StructuralProbe:
        return kind(layers, ranks, learning_rate=RATE, patience=2)

    run = trainer(tmp_path)
    sweep = fitted(make((0, 2), (3, 6)), data(), run)
    assert sweep.pairs == (Pair(0, 3), Pair(0, 6), Pair(2, 3), Pair(2, 6))
    table = scored(sweep, data(), tmp_path).tables["sweep"].frame
    opened = data()
    opened.setup("fit")
    ends = []
    for place, (layer, rank) in enumerate(sweep.pairs):
        alone = fitted(make((layer,), (rank,)), data(), trainer(tmp_path))
        torch.testing.assert_close(alone.kept[0], sweep.kept[place], rtol=0, atol=1e-6)
        assert alone.best_epoch[0] == sweep.best_epoch[place]
        row = scored(alone, data(), tmp_path).tables["sweep"].frame.iloc[0]
        pd.testing.assert_series_equal(row, table.iloc[place], check_names=False, atol=1e-9)

        torch.manual_seed(0)
        untouched = make((layer,), (rank,))
        untouched.bind(StructuralSizes((Pair(layer, rank),), opened.hidden_size), {})
        kept, at, best, last = by_hand(sweep, opened, place, untouched.matrices[0].detach())
        torch.testing.assert_close(sweep.kept[place].detach(), kept, rtol=0, atol=1e-4)
        assert int(sweep.best_epoch[place]) == at
        assert float(sweep.best_loss[place]) == pytest.approx(best, abs=1e-5)
        ends.append(last)
    # It ends with the pair that takes longest; that some end earlier is what leaving them out is tested by.
    assert run.current_epoch == max(ends)
    assert min(ends) < max(ends) or kind is StructuralDepthProbe


@pytest.mark.parametrize("kind", PROBES)
def test_the_pair_of_the_best_dev_score_is_reported(
    kind: type[StructuralProbe], data: MakeData, tmp_path: Path
) -> None:
    probe = fitted(kind(ranks=(2, 16), learning_rate=RATE), data(), trainer(tmp_path, 3))
    result = scored(probe, data(), tmp_path)
    table, scores, items = result.tables["sweep"].frame, result.numbers, result.items
    assert list(table) == ["layer", "rank", "epochs", "dev", "test", "low", "high"]
    assert list(zip(table["layer"], table["rank"], strict=True)) == [(k, r) for k in (0, 1, 2) for r in (2, 16)]
    chosen = table.iloc[int(table["dev"].argmax())]
    assert (result.audit["layer"], result.audit["rank"]) == (chosen["layer"], chosen["rank"])
    assert result.audit["epochs"] == chosen["epochs"]
    assert [scores[kind.headline + end] for end in ("", ".low", ".high")] == chosen[["test", "low", "high"]].tolist()
    assert items is not None
    assert len(items) == 17
    assert items["id"].tolist() == data_ids(data)
    for name, (right, total) in result.ratios.items():
        assert scores[name] == pytest.approx(items[right].sum() / items[total].sum())
        assert scores[f"{name}.low"] <= scores[name] <= scores[f"{name}.high"]
    known = items[items["words"].between(5, 50) & items["spearman"].notna()]
    assert scores[kind.correlation] == pytest.approx(known.groupby("words")["spearman"].mean().mean())
    figure = result.figures["sweep"]
    assert isinstance(figure, HeatMap)
    assert figure.marked is not None
    assert figure.values[figure.marked] == chosen["test"]
    assert (figure.row_labels, figure.column_labels) == (["0", "1", "2"], ["2", "16"])


def data_ids(data: MakeData) -> list[str]:
    opened = data()
    opened.setup("test")
    return opened.splits["test"].ids


def test_a_checkpoint_gives_the_same_scores_and_fits_nothing_else(data: MakeData, tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, "probe", monitor="val_loss", mode="min")
    probe = fitted(StructuralDistanceProbe((1, 2), (4,)), data(), trainer(tmp_path, 3, keep))
    path = tmp_path / "probe.ckpt"
    expected = scored(probe, data(), tmp_path)
    again = scored(StructuralDistanceProbe((1, 2), (4,)), data((1, 2)), tmp_path, path)
    assert again.numbers == expected.numbers
    pd.testing.assert_frame_equal(again.tables["sweep"].frame, expected.tables["sweep"].frame)
    assert again.audit == expected.audit
    assert scored(probe, data(), tmp_path, path).numbers == expected.numbers
    loaded = StructuralDistanceProbe.load_from_checkpoint(path, weights_only=True)
    assert loaded.pairs == (Pair(1, 4), Pair(2, 4))
    assert torch.equal(loaded.kept[1], probe.kept[1])
    other = save_bert(tmp_path / "other", seed=5)
    for wrong, args in ((data(encoder=other), ((1, 2), (4,))), (data(), ((1,), (4,))), (data(), ((1, 2), (5,)))):
        with pytest.raises(TrainingError, match=r"hidden states of layers 1, 2, at ranks 4, and this run has"):
            scored(StructuralDistanceProbe(*args), wrong, tmp_path, path)


@pytest.mark.parametrize("every", [{"every_n_epochs": 3}, {"every_n_train_steps": 29}], ids=["between", "within"])
def test_training_resumes_as_if_it_had_never_stopped(every: dict[str, Any], data: MakeData, tmp_path: Path) -> None:
    """Between two epochs, after the look at dev; and within the third epoch of eleven batches."""
    keep = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **every)
    whole = fitted(StructuralDistanceProbe(ranks=(4,), learning_rate=RATE), data(), trainer(tmp_path, 6, keep))
    first = min(tmp_path.iterdir(), key=lambda path: int(path.stem.partition("=")[2]))
    probe = StructuralDistanceProbe(ranks=(4,), learning_rate=RATE)
    run = trainer(tmp_path, 6)
    run.fit(probe, datamodule=data(), ckpt_path=first, weights_only=True)
    assert run.global_step == 66
    assert first.stem == ("step=33" if "every_n_epochs" in every else "step=29")
    for expected, found in zip(whole.kept, probe.kept, strict=True):
        assert torch.equal(expected, found)
    assert torch.equal(whole.best_epoch, probe.best_epoch)


def test_val_loss_is_the_mean_of_the_best_and_the_same_when_it_is_validated_again(
    data: MakeData, tmp_path: Path
) -> None:
    probe = StructuralDepthProbe(ranks=(4,), learning_rate=RATE)
    run = trainer(tmp_path, 4)
    fitted(probe, data(), run)
    logged = float(run.callback_metrics["val_loss"])
    assert logged == pytest.approx(float(probe.best_loss.mean()))
    assert {"val_loss_layer0_rank4", "val_loss_layer1_rank4", "train_loss"} <= run.callback_metrics.keys()
    assert trainer(tmp_path).validate(probe, datamodule=data(), verbose=False)[0]["val_loss"] == pytest.approx(logged)


def test_without_dev_the_last_weights_are_kept(data: MakeData, tmp_path: Path) -> None:
    probe = fitted(StructuralDistanceProbe(), data((1,)), trainer(tmp_path, 2, limit_val_batches=0))
    assert torch.equal(probe.kept[0], probe.matrices[0])
    assert probe.best_epoch.tolist() == [2]
    assert "sweep" not in scored(probe, data((1,)), tmp_path).figures


def test_what_cannot_be_run_is_refused(data: MakeData, tmp_path: Path) -> None:
    probe = StructuralDistanceProbe()
    with pytest.raises(TrainingError, match="was not trained: train it with `fit`"):
        scored(probe, data(), tmp_path)
    with pytest.raises(ExperimentError, match="predicts distances or depths, no heads"):
        trainer(tmp_path).predict(probe, datamodule=data())
    with pytest.raises(ExperimentError, match=r"needs attention: .*encoder must not be null"):
        fitted(StructuralDistanceProbe(), data((), None), trainer(tmp_path))
    with pytest.raises(ExperimentError, match=r"needs hidden states: --data\.init_args\.hidden"):
        fitted(StructuralDistanceProbe(), data(()), trainer(tmp_path))
    with pytest.raises(ExperimentError, match=r"no hidden states of layer 2, only of 0, 1"):
        fitted(StructuralDistanceProbe((2,)), data((0, 1)), trainer(tmp_path))
    with pytest.raises(ExperimentError, match="patience: 0"):
        StructuralDistanceProbe(patience=0)
    trained = fitted(StructuralDistanceProbe(), data(), trainer(tmp_path, 1))
    with pytest.raises(ExperimentError, match="random_init must be false"):
        scored(trained, data(random_init=True), tmp_path)


def test_a_pair_whose_loss_was_never_a_number_is_named(data: MakeData, tmp_path: Path) -> None:
    probe = fitted(StructuralDistanceProbe(ranks=(3,)), data(), trainer(tmp_path, 1))
    probe.best_epoch[1] = 0
    with pytest.raises(ExperimentError, match=r"loss on dev of layer 1 at rank 3 was never a finite number"):
        scored(probe, data(), tmp_path)


@pytest.mark.slow
def test_two_processes_train_together_and_find_what_one_finds(
    data: MakeData, bert: Path, corpus: str, cache: str, tmp_path: Path
) -> None:
    command = [
        "fit",
        "--model=probes.structural.StructuralDistanceProbe",
        "--model.init_args.ranks=[4]",
        "--model.init_args.patience=1",  # so that some pair stops while others go on
        "--data=DependencyDataModule",
        f"--data.init_args.corpus={corpus}",
        f"--data.init_args.encoder.name={bert}",
        f"--data.init_args.cache={cache}",
        "--data.init_args.hidden=[0,1,2]",
        "--data.init_args.max_sentences=4",
        "--data.init_args.eval_cells=200",
        "--checkpoint.monitor=val_loss",
        "--checkpoint.mode=min",
        "--trainer.accelerator=cpu",
        "--trainer.devices=2",
        "--trainer.strategy=ddp",
        "--trainer.max_epochs=5",
        "--trainer.enable_progress_bar=false",
        f"--trainer.default_root_dir={tmp_path}",
    ]
    environment = {key: value for key, value in os.environ.items() if key != "PL_GLOBAL_SEED"}
    done = subprocess.run(
        [sys.executable, "train.py", *command], cwd=ROOT, env=environment, timeout=240, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(next(tmp_path.rglob("results.json")).read_text())["scores"]
    probe = StructuralDistanceProbe(ranks=(4,))
    alone = scored(probe, data(), tmp_path, next(tmp_path.rglob("*.ckpt")))
    assert found == pytest.approx(alone.numbers, abs=1e-6)
    assert len(set(probe.best_epoch.tolist())) > 1
