"""Early stopping that counts steps: a small corpus is passed over several times before its training is judged."""

from contextlib import ExitStack
from typing import Literal

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.utilities.seed import isolate_rng

from attention_probing.models.trained import SCHEDULE_STEPS, TrainedModule, epochs_of


class EarlyStoppingBySteps(EarlyStopping):
    """Lightning's early stopping with validation checks that have a least number of optimizer steps between them.

    A check comes after every k epochs; k is the least number of epochs with `steps` optimizer steps, and 1 for most
    corpora. Only these checks count for patience and, in a `TrainedModule`, for learning-rate schedules. So a training
    has at least `patience · steps` steps, unless `max_epochs` ends it.

    Validation also runs after 1, 2, 4, … epochs before the first check, as with few sentences the optimum may come
    early, and after the last epoch. These extra checks can only save a better checkpoint. They leave the random numbers
    of the training unchanged, although every pass over a loader draws one.

    Args:
        monitor: Name of a score or loss that the module logs on dev.
        mode: `min` if the lowest value is best, else `max`.
        patience: Checks without improvement after which the training stops.
        steps: Least number of optimizer steps between two checks.
        every: Epochs between two checks, in place of `steps`; None to count steps.
    """

    def __init__(
        self,
        monitor: str,
        mode: Literal["min", "max"],
        patience: int = 5,
        steps: int = SCHEDULE_STEPS,
        every: int | None = None,
    ) -> None:
        super().__init__(monitor, mode=mode, patience=patience, check_on_train_epoch_end=None if every else False)
        self.steps = steps
        self.every = every or 0
        self._extra = False
        self._isolated = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the number of epochs between two checks; a training that is resumed within an epoch begins here."""
        super().on_train_start(trainer, pl_module)
        if not self.every:
            batches = self.steps * trainer.accumulate_grad_batches
            self.every = epochs_of(batches, trainer.num_training_batches)
        if isinstance(pl_module, TrainedModule):
            pl_module.every = self.every
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decide whether validation follows this epoch, and whether it is a check."""
        epoch = trainer.current_epoch + 1
        is_check = epoch % self.every == 0
        is_last = epoch == trainer.max_epochs
        is_early = epoch < self.every and epoch.bit_count() == 1  # 1, 2, 4, …
        self._extra = not is_check and (is_last or is_early)
        # Lightning validates after each epoch whose number this divides.
        trainer.check_val_every_n_epoch = epoch if self._extra else self.every

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        """Keep the random numbers before an extra check; validation is next, and no hook of its own is early enough."""
        if self._extra and trainer.is_last_batch:
            self._isolated.enter_context(isolate_rng())

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the training after `patience` checks without improvement; extra checks do not count."""
        self._isolated.close()
        if not self._extra:
            super().on_validation_end(trainer, pl_module)
