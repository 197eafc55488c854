"""A Trainer that prints nothing, and writes checkpoints alone, where a callback asks for them."""

from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningDataModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from heads.antecedent import AntecedentExperiment
from heads.experiment import DependencyExperiment
from results import Result


def trainer(epochs: int = 1, *callbacks: Callback, **options: Any) -> Trainer:  # noqa: ANN401
    return Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=list(callbacks),
        enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
        **options,
    )


def scored(
    module: DependencyExperiment | AntecedentExperiment, data: LightningDataModule, checkpoint: Path | None = None
) -> Result:
    trainer().test(module, datamodule=data, verbose=False, ckpt_path=checkpoint, weights_only=True)
    assert module.result is not None
    return module.result
