"""A trained probe over arcs: every word gets a score for every candidate head."""

from collections.abc import Mapping, Set
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torchmetrics import SumMetric

from datamodules import AttentionBatch
from datamodules.dependency import Field
from metrics.attachment import attached
from metrics.rows import ArcPredictions
from metrics.trees import tree_heads
from probes.base import ArcExperiment, Guess, gather
from probes.bound import BoundProbe
from probes.labels import RelationClassifier


class ArcProbe(BoundProbe, ArcExperiment):
    """A trained probe that gives every word a score for every candidate head.

    Subclasses fill `build`, which makes the parameters once the sizes are known, and `forward`.

    Args:
        learning_rate: of Adam.
        decay: factor of the learning rate; 1 keeps it, as the original does.
        schedule: whether the rate falls after every `epoch`, or on a `plateau`: after an epoch that did not lower the
            loss on dev.
        labels: whether a classifier of relations is trained beside, for `las`; see `RelationClassifier`.
        relations: relations in the table and the figure, in this order, beside all words; by default all of them.
    """

    reads: ClassVar[Set[Field]] = frozenset(("attention",))
    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val_uas", "max")
    """What is best at the dev optimum."""
    headline: ClassVar[str] = "uas"
    """The main score."""

    def __init__(
        self,
        learning_rate: float = 2e-3,
        decay: float = 1.0,
        schedule: Literal["epoch", "plateau"] = "epoch",
        labels: bool = False,
        relations: tuple[str, ...] = (),
    ) -> None:
        super().__init__(relations)
        self.learning_rate, self.decay, self.schedule, self.labels = learning_rate, decay, schedule, labels
        self._val, self._found = ArcPredictions(3), ArcPredictions(3)
        self._loss, self._words = SumMetric(nan_strategy="disable"), SumMetric()
        self._val_loss, self._val_words = SumMetric(nan_strategy="disable"), SumMetric()
        self._relations: tuple[str, ...] = ()
        self.predictions: pd.DataFrame | None = None

    def forward(self, batch: AttentionBatch) -> Tensor:
        """Scores `[batch, n, n+1]` of the candidates of every word, ROOT first; -inf where there is no candidate."""
        raise TypeError(f"{type(self).__name__} does not say how it scores.")

    def setup(self, stage: str) -> None:
        """Make the parameters for the encoder and the word vectors of the datamodule.

        Raises:
            ProbeError: it has none of what the probe reads.
        """
        super().setup(stage)
        reads: Set[Field] = self.reads | (ArcProbe.reads if self.labels else frozenset())
        data = self.attention if "attention" in reads else self.data
        data.read_only(reads)
        self.bind_to(data, reads)
        if not self._relations:
            self._classify(data.relations)

    def _classify(self, relations: tuple[str, ...]) -> None:
        self._relations = relations
        if self.labels:
            heads = len(self.sizes.layers) * len(self.sizes.heads)
            self.classifier = RelationClassifier(heads, len(relations))

    def nats(self, batch: AttentionBatch) -> Tensor:
        """Cross-entropy of the gold head of every word over its candidates, `[batch, n]`; 0 in the padding."""
        return _nats(self(batch), batch)

    def training_step(self, batch: AttentionBatch, batch_idx: int) -> Tensor:
        """Cross-entropy over the candidate heads, summed over the words, as in Clark et al. (2019, §5)."""
        loss = self.nats(batch).sum()
        # Summed here and logged once an epoch: Lightning's `log` costs more than this probe's forward pass.
        self._loss.update(loss.detach())
        self._words.update(batch.lengths.sum())
        if self.labels:
            loss = loss + self._label_loss(batch)
        return loss

    def on_train_epoch_end(self) -> None:
        """Log `train_loss`, nats per word."""
        self.log("train_loss", self._loss.compute() / self._words.compute())
        self._loss.reset()
        self._words.reset()

    def guess(self, batch: AttentionBatch, tree: bool) -> Guess:
        """The candidate of the highest score for every word, and the tree of the highest score."""
        return self._guess(self(batch), batch, tree)

    def _guess(self, scores: Tensor, batch: AttentionBatch, tree: bool) -> Guess:
        heads = scores.argmax(-1)
        relations = None
        if self.labels:
            known = self._numbers().to(heads.device)
            relations = known[self.classifier(batch, heads).argmax(-1)]
        return Guess(heads, tree_heads(scores, batch.lengths) if tree else None, relations)

    def _numbers(self) -> Tensor:
        """The datamodule's number of each relation that was trained; -1 for one that its splits do not have."""
        places = {name: place for place, name in enumerate(self.data.relations)}
        return torch.tensor([places.get(name, -1) for name in self._relations])

    def _label_loss(self, batch: AttentionBatch) -> Tensor:
        """Cross-entropy of the relations, at the gold heads, summed over the words."""
        numbers = self._numbers()
        own = torch.full((len(self.data.relations) + 1,), -1)  # the last place is that of the padding, -1
        own[numbers] = torch.where(numbers >= 0, torch.arange(len(numbers)), -1)
        own[-1] = -1
        logits = self.classifier(batch, batch.heads.clamp(min=0))
        gold = own.to(logits.device)[batch.relations]
        return nn.functional.cross_entropy(logits.flatten(0, 1), gold.flatten(), ignore_index=-1, reduction="sum")

    def predict_step(self, batch: AttentionBatch, batch_idx: int) -> Tensor:
        """Predicted heads `[batch, n]`, -1 in the padding; gathered for `predictions` too."""
        guess = self.guess(batch, tree=True)
        gather(self._found, batch, guess)
        return guess.heads.masked_fill(~batch.mask, -1)

    def on_predict_epoch_end(self) -> None:
        """Fill `predictions`: `id, word, form, head, tree_head` and, with labels, `relation`; 0 = root."""
        arcs, predicted = self._found.compute()
        self._found.reset()
        split = self.data.splits["test"]
        self.predictions = pd.DataFrame(
            {
                "id": [split.ids[index] for index in arcs.sentence],
                "word": arcs.word,
                "form": [form for index in np.unique(arcs.sentence) for form in split.words(int(index))],
                "head": predicted[:, 0],
                "tree_head": predicted[:, 1],
            }
        )
        if self.labels:
            names = (*self.data.relations, None)  # the last, -1, is a relation that these data do not have
            self.predictions["relation"] = [names[number] for number in predicted[:, 2].tolist()]

    def validation_step(self, batch: AttentionBatch, batch_idx: int) -> None:
        """Gather the predictions on dev, and the loss."""
        scores = self(batch)
        self._val_loss.update(_nats(scores, batch).sum())
        self._val_words.update(batch.lengths.sum())
        gather(self._val, batch, self._guess(scores, batch, tree=False))

    def on_validation_epoch_end(self) -> None:
        """Log `val_uas`, UAS on dev without punctuation, and `val_loss`, nats per word."""
        arcs, predicted = self._val.compute()
        self._val.reset()
        right = attached(arcs, predicted[:, 0].astype(np.int64))[~arcs.punctuation]
        self.log("val_uas", float(right.mean()) if len(right) else 0.0, prog_bar=True)
        self.log("val_loss", self._val_loss.compute() / self._val_words.compute())
        self._val_loss.reset()
        self._val_words.reset()

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Adam, as in Clark et al. (2019)."""
        adam = torch.optim.Adam(self.parameters(), self.learning_rate, fused=True)
        if self.schedule == "epoch":
            return {"optimizer": adam, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(adam, self.decay)}
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(adam, factor=self.decay, patience=0, threshold=0)
        return {"optimizer": adam, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}

    def checkpoint_part(self) -> dict[str, Any]:
        """The names of the relations too."""
        return {**super().checkpoint_part(), "relations": self._relations}

    def restore(self, part: Mapping[str, Any]) -> None:
        """Make the classifier of the relations that were trained: other splits may have others."""
        relations = tuple(part["relations"])
        if self._relations != relations:
            self._classify(relations)


def _nats(scores: Tensor, batch: AttentionBatch) -> Tensor:
    words = nn.functional.cross_entropy(scores.flatten(0, 1), batch.heads.flatten(), ignore_index=-1, reduction="none")
    return words.view_as(batch.heads)
