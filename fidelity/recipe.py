"""Trainings by a checkpoint's own recipe, inside a measurement."""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from pytorch_lightning import LightningModule

from attention_probing.corpora.splits import Split
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.datamodules.batches import Ranks
from attention_probing.fidelity.checkpoints import OPTIMISATION, Checkpoint
from attention_probing.fidelity.split_outputs import SplitOutputs, collect_outputs
from attention_probing.measures.trainings import Best, Training, train_nested
from attention_probing.models import (
    TransformerClassifier,
)
from attention_probing.results.digests import Digests, digest

VERSION = 1  # of the trainings: files of another version are not found again


@dataclass(frozen=True, eq=False)
class Recipe:
    """Settings of a checkpoint's training, with which other models are trained for comparison.

    Optimiser, learning rate, clipping and batch size are the checkpoint's. A training ends after
    `max_epochs` epochs, or after `patience` epochs without improvement. All random numbers depend on `seed`
    and the checkpoint. Finished trainings are kept as files.

    Attributes:
        checkpoint: Checkpoint whose configuration is used.
        data: Datamodule of the run, set up.
        device: Device of the trainings.
        max_epochs: Largest number of epochs.
        patience: Epochs without improvement before a training ends.
        seed: Seed of the run.
    """

    checkpoint: Checkpoint
    data: ClassificationDataModule
    device: torch.device
    max_epochs: int
    patience: int
    seed: int

    @cached_property
    def training_seed(self) -> int:
        """Seed of all trainings for this checkpoint, from `seed` and the checkpoint's digest."""
        return int(digest(f"{self.seed} {self.checkpoint.digest}".encode())[:8], 16)

    @cached_property
    def training_data(self) -> ClassificationDataModule:
        """Datamodule with the splits of `data` and the batch size of the checkpoint's training."""
        data = copy(self.data)
        data.place(Ranks(), self.device)  # this process trains alone
        data.seed = self.training_seed
        options = self.checkpoint.config["data"].get("init_args", {})
        data.batch_size = options.get("batch_size", data.batch_size)
        return data

    def fit(
        self,
        module: LightningModule,
        monitor: str,
        mode: Literal["min", "max"],
        **texts: Any,  # noqa: ANN401
    ) -> Best:
        """Train a module with these settings, and return the parameters of its best epoch.

        Args:
            module: Module to train.
            monitor: Name of the logged value that decides which epoch is best.
            mode: `min` if the lowest value is best, `max` if the highest.
            **texts: Data, as in Lightning's `Trainer.fit`: `train_dataloaders` or `datamodule`.

        Returns:
            The parameters on the CPU, with the number of the best epoch and its monitored value.

        Raises:
            TrainingError: The monitored value is never finite.
        """
        trainer = self.checkpoint.config.get("trainer", {})
        optimisation = {name: trainer[name] for name in OPTIMISATION if trainer.get(name) is not None}
        return train_nested(
            module,
            monitor=monitor,
            mode=mode,
            max_epochs=self.max_epochs,
            patience=self.patience,
            seed=self.training_seed,
            remedy=f"It is trained for {self.checkpoint.name}: give the test smaller strengths, or leave it out.",
            device=self.device,
            optimisation=optimisation,
            **texts,
        )

    def training(
        self, kind: str, options: Sequence[object], name: str, train: Callable[[], Best], before: int = 0
    ) -> Training:
        """Return the description of a training; `measures.trainings.run_trainings` runs it later.

        Its best epoch is kept as a file, so that later runs need not repeat the training.

        Args:
            kind: Folder of the file in the datamodule's cache. The file's name is a digest of the recipe
                and `options`.
            options: Everything apart from the recipe that affects the trained model.
            name: Name of the training in the log.
            train: Function that trains and returns the best epoch.
            before: Largest number of epochs of another training that `train` runs first; it counts toward
                the expected duration.
        """
        identity = json.dumps([*self._identity, *options])
        path = self.data.cache / kind / f"{digest(identity.encode())}.ckpt"
        return Training(f"{name} of {self.checkpoint.name}", path, train, before + self.max_epochs)

    def texts(self, split: Split) -> list[object]:
        """Return digests that identify the texts of a split, which may have been cut."""
        texts = self.data.splits[split]
        file = self.data.files()[split]
        digests: list[object] = [Digests(self.data.cache).of_file(file), digest(texts.lengths.tobytes())]
        if self.data.format == "eraser":  # texts are read from further files
            digests.append(texts.digest)
        return digests

    @cached_property
    def _identity(self) -> list[object]:
        vectors = None if self.data.vectors is None else dict(self.data.vectors.identity)
        data = [*self.texts("train"), dict(self.data.identity), vectors, self.training_data.batch_size]
        identity: list[object] = [VERSION, self.checkpoint.digest, data, self.max_epochs, self.patience, self.seed]
        model = self.checkpoint.model
        if isinstance(model, TransformerClassifier):
            identity += model.levels
        return identity

    @cached_property
    def outputs(self) -> "Mapping[str, SplitOutputs]":
        """Outputs of the checkpoint for all texts of train and dev, by split."""
        model = self.checkpoint.model.to(self.device)
        return {split: collect_outputs(model, self.data, self.device, split) for split in ("train", "dev")}
