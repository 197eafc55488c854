"""A Trainer that prints nothing, and writes checkpoints alone, where a callback asks for them."""

from typing import Any

from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint


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
