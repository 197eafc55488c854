"""Progress of a training where no bar is shown."""

import math
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from attention_probing.results.progress import Progress


class ProgressLines(Callback):
    """Callback that logs the finished batches of a training, their rate, the time left, and the latest dev scores."""

    def __init__(self) -> None:
        self._progress = Progress("", 0)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start counting the batches of the training over all remaining epochs, which early stopping may leave out."""
        total = math.inf
        why = ""
        if math.isinf(trainer.num_training_batches):
            why = "the number of batches is not known before"
        elif trainer.max_epochs in (None, -1):
            why = "the training has no largest number of epochs"
        else:
            total = (trainer.max_epochs - trainer.current_epoch) * trainer.num_training_batches
            if trainer.early_stopping_callbacks:
                why = "early stopping may end it before"
        self._progress.begin("Training, batches", total, why)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:  # noqa: ANN401
        """Count a finished training batch; if a line is due, log it with the epoch and the latest dev scores."""
        notes = [f"epoch {trainer.current_epoch + 1}"]
        for name, value in trainer.callback_metrics.items():
            if name.startswith("val_"):
                notes.append(f"{name} {float(value):.4g}")
        self._progress.advance(note=", ".join(notes))
