import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from attention import EncoderSpec, Options
from datamodules import DependencyDataModule
from heads import Baselines
from heads.experiment import ExperimentError
from probes import AttentionOnlyProbe
from results import Bars, Result
from tests.tiny import save_bert

# Lightning's advice when a checkpoint is loaded without the callback that wrote it, as these tests do.
pytestmark = pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")

MakeData = Callable[..., DependencyDataModule]


@pytest.fixture
def data(bert: Path, corpus: str, cache: str) -> MakeData:
    def make(encoder: Path | None = bert, options: Options | None = None) -> DependencyDataModule:
        return DependencyDataModule(
            corpus,
            encoder=None if encoder is None else EncoderSpec(str(encoder)),
            options=options or Options(),
            cache=cache,
            max_sentences=4,
        )

    return make


def trainer(folder: Path, epochs: int = 2, *callbacks: Callback) -> Trainer:
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
    )


def scored(module: LightningModule, data: DependencyDataModule, folder: Path) -> Result:
    trainer(folder).test(module, datamodule=data, verbose=False)
    assert isinstance(module, AttentionOnlyProbe | Baselines)
    assert module.result is not None
    return module.result


def test_baselines_need_no_encoder_and_have_no_scores_of_a_probe(data: MakeData, tmp_path: Path) -> None:
    result = scored(Baselines(), data(None), tmp_path)
    assert {"offset.uas", "right_branching.uas", "left_branching.uas", "uniform.uas", "offset.uas.low"} <= set(
        result.numbers
    )
    assert "uas" not in result.numbers
    assert result.items is None
    assert result.tables["relations"].frame["probe"].isna().all()


def test_a_trained_probe_is_scored_on_test_beside_the_same_baselines(data: MakeData, tmp_path: Path) -> None:
    probe = AttentionOnlyProbe(learning_rate=0.1)
    training = trainer(tmp_path, 3)
    training.fit(probe, datamodule=data())
    training.test(probe, datamodule=data(), verbose=False)
    result, baselines = probe.result, scored(Baselines(), data(None), tmp_path)
    assert result is not None
    assert {name: result.numbers[name] for name in baselines.numbers} == baselines.numbers
    items = result.items
    assert items is not None
    assert list(items["id"]) == [f"tiny-test-{index}" for index in range(17)]
    assert result.numbers["uas"] == items["correct"].sum() / items["scored"].sum()
    assert result.numbers["uas.low"] <= result.numbers["uas"] <= result.numbers["uas.high"]
    assert set(result.figures) == {"relations", "weights_dependent_to_head", "weights_head_to_dependent"}
    pd.testing.assert_series_equal(
        result.tables["relations"].frame["offset"], baselines.tables["relations"].frame["offset"], check_names=False
    )


def test_validation_logs_uas_without_punctuation(data: MakeData, tmp_path: Path) -> None:
    probe, module = AttentionOnlyProbe(), data()
    run = trainer(tmp_path)
    run.fit(probe, datamodule=module)
    metrics = run.validate(probe, datamodule=module, verbose=False)[0]
    right = total = 0
    for batch in module.val_dataloader():
        predicted = probe.predict(batch, tree=False).heads
        scored = batch.mask & ~batch.punctuation
        right += int((predicted == batch.heads)[scored].sum())
        total += int(scored.sum())
    assert metrics["val_uas"] == pytest.approx(right / total)


def weights(path: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["state_dict"]
    return state


def test_a_run_stopped_in_the_middle_of_an_epoch_goes_on_as_if_nothing_had_happened(
    data: MakeData, tmp_path: Path
) -> None:
    def run(folder: Path, checkpoint: Path | None, steps: int) -> Path:
        keep = ModelCheckpoint(folder, "{step}", every_n_train_steps=steps, save_top_k=-1)
        probe = AttentionOnlyProbe(learning_rate=0.1, decay=0.5)
        torch.manual_seed(0)
        trainer(folder, 2, keep).fit(probe, datamodule=data(), ckpt_path=checkpoint, weights_only=True)
        return folder

    whole = run(tmp_path / "whole", None, 5)
    batches = 12  # of 41 sentences, at most 4 of like length each, bounded by cells
    resumed = run(tmp_path / "resumed", whole / "step=5.ckpt", 1)
    last = max(int(path.stem.partition("=")[2]) for path in resumed.iterdir())
    assert last == max(int(path.stem.partition("=")[2]) for path in run(tmp_path / "each", None, 1).iterdir())
    assert 5 < batches < last
    expected, found = weights(tmp_path / "each" / f"step={last}.ckpt"), weights(resumed / f"step={last}.ckpt")
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


def test_a_checkpoint_of_another_encoder_is_refused(data: MakeData, tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, "probe")
    trainer(tmp_path, 1, keep).fit(AttentionOnlyProbe(), datamodule=data())
    path = tmp_path / "probe.ckpt"
    other = save_bert(tmp_path / "other", seed=5)
    for wrong in (data(other), data(options=Options(layers=(1,)))):
        with pytest.raises(ValueError, match=r"trained on pretrained weights .*, 2 layers × 4 heads, and the data"):
            trainer(tmp_path).test(AttentionOnlyProbe(), datamodule=wrong, ckpt_path=path, verbose=False)
    trainer(tmp_path).test(AttentionOnlyProbe(), datamodule=data(), ckpt_path=path, verbose=False)


def test_a_checkpoint_loads_without_a_trainer(data: MakeData, tmp_path: Path) -> None:
    probe = AttentionOnlyProbe(learning_rate=0.1)
    trainer(tmp_path, 1, ModelCheckpoint(tmp_path, "probe")).fit(probe, datamodule=data())
    loaded = AttentionOnlyProbe.load_from_checkpoint(tmp_path / "probe.ckpt", weights_only=True)
    assert torch.equal(loaded.weight, probe.weight)
    assert loaded.weight.abs().sum() > 0


@pytest.mark.parametrize("kind", [Baselines, AttentionOnlyProbe])
def test_the_relations_that_are_named_are_in_table_and_figure(
    data: MakeData, tmp_path: Path, kind: type[Baselines | AttentionOnlyProbe]
) -> None:
    module = kind()
    if kind is AttentionOnlyProbe:
        trainer(tmp_path, 1).fit(module, datamodule=data())
    full = scored(module, data(), tmp_path)
    module.relations = ("nsubj", "det")
    some = scored(module, data(), tmp_path)
    by_name = full.tables["relations"].frame.set_index("relation")
    names = ["all", "all (no punctuation)", "nsubj", "det"]
    assert_frame_equal(some.tables["relations"].frame, by_name.loc[names].reset_index())
    bars = some.figures["relations"]
    assert isinstance(bars, Bars)
    assert list(bars.categories) == names
    with pytest.raises(ExperimentError, match=r"relations: the corpus has no 'nsbj'; its relations are .*, nsubj"):
        trainer(tmp_path).test(kind(relations=("nsbj",)), datamodule=data(), verbose=False)


def test_a_probe_without_attention_is_refused(data: MakeData, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"AttentionOnlyProbe needs attention: .*encoder must not be null"):
        trainer(tmp_path).fit(AttentionOnlyProbe(), datamodule=data(None))


def test_two_runs_with_one_seed_end_in_the_same_numbers(data: MakeData, tmp_path: Path) -> None:
    def scores() -> str:
        torch.manual_seed(0)
        probe, run = AttentionOnlyProbe(learning_rate=0.1), trainer(tmp_path, 2)
        run.fit(probe, datamodule=data())
        run.test(probe, datamodule=data(), verbose=False)
        assert probe.result is not None
        return json.dumps(probe.result.numbers)

    assert scores() == scores()
