"""A Trainer that prints nothing, and writes checkpoints alone, where a callback asks for them."""

from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from pytorch_lightning import Callback, LightningDataModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from attention_probing.datamodules import CorpusDataModule, DependencyDataModule
from attention_probing.measures import Measure, measure
from attention_probing.measures.nested import best_copy, train_copy
from attention_probing.measures.trainings import Best
from attention_probing.models import TrainedModule
from attention_probing.results import Result

CONTINUES = pytest.mark.filterwarnings(
    "ignore:The dirpath has changed",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:Be aware that when using `ckpt_path`",
)
"""Mark of tests that begin with a checkpoint, or in the folder of an earlier run: Lightning remarks on both."""

DEVICES = pytest.mark.filterwarnings("ignore:It is recommended to use .* on epoch level in distributed")
"""Mark of tests that train on several devices: Lightning cannot know that a logged value is of all devices already."""

Probe = TypeVar("Probe", bound=TrainedModule[Any, Any])


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
    module: TrainedModule[Any, Any] | Measure[Any], data: LightningDataModule, checkpoint: Path | None = None
) -> Result:
    if isinstance(module, Measure):
        return measure(cast("CorpusDataModule[Any]", data), measurements=module)
    trainer().test(module, datamodule=data, verbose=False, ckpt_path=checkpoint, weights_only=True)
    assert module.result is not None
    return module.result


M = TypeVar("M", bound=Measure[Any])


def changed(measurement: M, **attributes: object) -> M:
    """The measurement with other constants, such as fewer permutations, or another seed."""
    for name, value in attributes.items():
        assert hasattr(measurement, name)
        setattr(measurement, name, value)
    return measurement


def trained(probe: Probe, data: DependencyDataModule, **options: Any) -> tuple[Probe, Best]:  # noqa: ANN401
    """A copy of a probe at its optimum on dev, and its training."""
    best = train_copy(probe, data, **options)
    return best_copy(probe, best), best
