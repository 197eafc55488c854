"""Progress of a run in the log, where no progress bar is drawn: in a pipe, a file, or a notebook."""

from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from processes.progress import Progress


class ProgressLines(Callback):
    """Logs now and then the batches that are done, their rate, the time that is left, and the last scores on dev."""

    def __init__(self) -> None:
        self._progress = Progress("", 0)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the batches of the epochs to come."""
        epochs = trainer.max_epochs - trainer.current_epoch if trainer.max_epochs not in (None, -1) else float("inf")
        self._progress = Progress("Training, batches", epochs * trainer.num_training_batches)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the batches of all dataloaders."""
        self._progress = Progress("Testing, batches", sum(trainer.num_test_batches))

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the batches of all dataloaders."""
        self._progress = Progress("Predicting, batches", sum(trainer.num_predict_batches))

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:  # noqa: ANN401
        """Add the batch, with the last scores on dev."""
        found = {name: value for name, value in trainer.callback_metrics.items() if name.startswith("val_")}
        note = ", ".join(f"{name} {float(value):.4g}" for name, value in found.items())
        epoch = f"epoch {trainer.current_epoch + 1}"
        self._progress.advance(note=f"{epoch}, {note}" if note else epoch)

    def on_test_batch_end(self, *_: Any) -> None:  # noqa: ANN401
        """Add the batch."""
        self._progress.advance()

    def on_predict_batch_end(self, *_: Any) -> None:  # noqa: ANN401
        """Add the batch."""
        self._progress.advance()
