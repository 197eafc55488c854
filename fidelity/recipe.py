"""Training inside a test, by the recipe of a checkpoint: what is trained once is kept as a file."""

import json
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.callbacks import LambdaCallback

from datamodules import ClassificationDataModule
from fidelity.checkpoints import OPTIMISATION, Checkpoint
from processes.progress import Progress
from results.digests import Digests, digest
from training import Best, Training, train_nested

VERSION = 1  # of what is trained here: files of another are not found again


@dataclass(frozen=True, eq=False)
class Recipe:
    """How copies of a checkpoint's kind are trained.

    Optimiser, learning rate, clipping and size of the batches are those of its run. Training ends after `max_epochs`,
    or `patience` epochs without improvement. The seed decides, with the checkpoint, everything that is drawn.
    """

    checkpoint: Checkpoint
    data: ClassificationDataModule
    device: torch.device
    max_epochs: int
    patience: int
    seed: int

    @cached_property
    def training_seed(self) -> int:
        """The seed of the trainings: another for each checkpoint."""
        return int(digest(f"{self.seed} {self.checkpoint.digest}".encode())[:8], 16)

    @cached_property
    def own_data(self) -> ClassificationDataModule:
        """The same splits in the batches of the recipe, for trainers of its own."""
        own = copy(self.data)
        own.trainer, own.seed = None, self.training_seed
        own.batch_size = self.checkpoint.config["data"].get("init_args", {}).get("batch_size", own.batch_size)
        return own

    def fit(
        self,
        module: LightningModule,
        monitor: str,
        mode: Literal["min", "max"],
        **texts: Any,  # noqa: ANN401
    ) -> Best:
        """Train a module by the recipe; see `train_nested`, which takes `texts` as data."""
        progress = Progress(f"{type(module).__name__} of {self.checkpoint.name}", self.max_epochs)
        run = self.checkpoint.config.get("trainer", {})
        return train_nested(
            module,
            LambdaCallback(on_train_epoch_end=lambda *_: progress.advance()),
            monitor=monitor,
            mode=mode,
            max_epochs=self.max_epochs,
            patience=self.patience,
            seed=self.training_seed,
            remedy=f"It is trained for {self.checkpoint.name}: give the test smaller strengths, or leave it out of "
            f"--model.init_args.tests.",
            device=self.device,
            optimisation={name: run[name] for name in OPTIMISATION if run.get(name) is not None},
            **texts,
        )

    def training(
        self, kind: str, options: Sequence[object], name: str, train: Callable[[], Best], before: int = 0
    ) -> Training:
        """A training that this or an earlier run makes, and keeps for later ones.

        The file is in the folder `kind` of the datamodule's cache, under a digest of the recipe and of `options`, all
        else that the outcome depends on. `name` is for the log, `before` the epochs of another training that this one
        begins with.
        """
        path = self.data.cache / kind / f"{digest(json.dumps([*self._identity, *options]).encode())}.ckpt"
        return Training(f"{name} of {self.checkpoint.name}", path, train, before + self.max_epochs)

    @cached_property
    def _identity(self) -> list[object]:
        train = Digests(self.data.cache).one(self.data.files()["train"])
        lengths = digest(self.data.splits["train"].lengths.tobytes())  # texts may have been cut
        vectors = None if self.data.vectors is None else dict(self.data.vectors.identity)
        data = [train, lengths, dict(self.data.identity), vectors, self.own_data.batch_size]
        return [VERSION, self.checkpoint.digest, data, self.max_epochs, self.patience, self.seed]
