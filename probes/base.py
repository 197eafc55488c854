"""What every experiment over gold arcs shares: predictions in, scores beside the baselines out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torchmetrics import SumMetric

from datamodules import AttentionBatch, DependencyDataModule
from metrics.attachment import Arcs, Integers, attached, edges_found
from metrics.predictions import ArcPredictions
from metrics.results import Figure, Result
from metrics.scores import attachment_scores, sentence_scores
from probes.comparison import baseline_scores, relation_bars, relation_table


class ProbeError(ValueError):
    """A probe that cannot be run as it is."""


class DependencyExperiment(LightningModule):
    """Reads dev, where choices are made, and test, where they are scored.

    Attributes:
        result: filled at the end of a test.
    """

    experiment: str
    example_input_array = None

    def __init__(self) -> None:
        super().__init__()
        self.result: Result | None = None

    @property
    def data(self) -> DependencyDataModule:
        """The datamodule of the run.

        Raises:
            ProbeError: it is not one of dependencies.
        """
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, DependencyDataModule):
            raise ProbeError(
                f"{type(self).__name__} needs gold arcs, and {type(data).__name__} has none: use DependencyDataModule."
            )
        return data

    @property
    def attention(self) -> DependencyDataModule:
        """The datamodule of the run, with attention.

        Raises:
            ProbeError: it has no encoder.
        """
        if self.data.encoder_identity is None:
            raise ProbeError(f"{type(self).__name__} needs attention: --data.init_args.encoder must not be null.")
        return self.data


class ArcExperiment(DependencyExperiment):
    """Predicts one head for every word.

    Subclasses fill two holes: `predict_heads`, when they predict anything beyond the baselines, and `figures`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._dev, self._test = ArcPredictions(), ArcPredictions()
        self._predicts = False

    def predict_heads(self, batch: AttentionBatch) -> Tensor | None:
        """Predicted heads int64 `[batch, n]`, 0 = root; None for an experiment of baselines alone."""
        return None

    def figures(self) -> Mapping[str, Figure]:
        """Figures of the experiment's own, beside the bars per relation."""
        return {}

    def test_step(self, batch: AttentionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Gather dev (dataloader 0) and test (dataloader 1).

        Raises:
            ProbeError: there are more, those of `random_init`.
        """
        if dataloader_idx > 1:
            raise ProbeError(
                f"{type(self).__name__} makes nothing of random weights: --data.init_args.random_init must be false."
            )
        predicted = self.predict_heads(batch)
        self._predicts = predicted is not None
        _gather(self._test if dataloader_idx else self._dev, batch, predicted)

    def on_test_epoch_end(self) -> None:
        """Score, and fill `result`."""
        (dev, _), (test, predicted) = self._dev.compute(), self._test.compute()
        self._dev.reset()
        self._test.reset()
        self.result = self._result(dev, test, predicted if self._predicts else None)

    def _result(self, dev: Arcs, test: Arcs, predicted: Integers | None) -> Result:
        names = self.data.relations
        found = None if predicted is None else attached(test, predicted)
        edges = None if predicted is None else edges_found(test, predicted)
        scores = {} if found is None or edges is None else attachment_scores(test, found, edges)
        table = relation_table(dev, test, names, found)
        items = None
        if found is not None and edges is not None:
            items = sentence_scores(test, found, edges)
            items.insert(1, "id", [self.data.splits["test"].ids[index] for index in items["sentence"]])
        return Result(
            experiment=self.experiment,
            scores=scores | baseline_scores(dev, test, len(names)),
            tables={"relations": table},
            figures={"relations": relation_bars(table), **self.figures()},
            items=items,
        )


def _gather(metric: ArcPredictions, batch: AttentionBatch, predicted: Tensor | None) -> None:
    predicted = torch.full_like(batch.heads, -1) if predicted is None else predicted
    metric.update(batch.index, batch.heads, batch.relations, batch.punctuation, batch.lengths, predicted)


class ArcProbe(ArcExperiment):
    """A trained probe that gives every word a score for every candidate head.

    Subclasses fill `build`, which makes the parameters once the encoder's size is known, and `forward`.

    Args:
        learning_rate: of Adam.
        decay: factor of the learning rate after every epoch; 1 keeps it, as the original does.
    """

    def __init__(self, learning_rate: float = 2e-3, decay: float = 1.0) -> None:
        super().__init__()
        self.learning_rate, self.decay = learning_rate, decay
        self._val = ArcPredictions()
        self._loss, self._words = SumMetric(nan_strategy="disable"), SumMetric()
        self._encoder: Mapping[str, object] | None = None
        self._size: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self._trained = False
        self._found = ArcPredictions()
        self.predictions: pd.DataFrame | None = None

    def build(self, layers: int, heads: int) -> None:
        """Make the parameters for that many layers, and heads in each."""
        raise TypeError(f"{type(self).__name__} does not say how it is built.")

    def setup(self, stage: str) -> None:
        """Make the parameters for the encoder of the datamodule."""
        self._encoder = self.attention.encoder_identity
        self._make(self.data.layers, self.data.heads)

    def _make(self, layers: tuple[int, ...], heads: tuple[int, ...]) -> None:
        if self._size is None:
            self._size = layers, heads
            self.build(len(layers), len(heads))

    def on_fit_start(self) -> None:
        """From here on the parameters mean something."""
        self._trained = True

    def on_validation_start(self) -> None:
        """Refuse to score a probe that has learned nothing."""
        self._require_training()

    on_test_start = on_predict_start = on_validation_start

    def _require_training(self) -> None:
        if not self._trained:
            raise ProbeError(
                f"{type(self).__name__} was not trained: train it with `fit`, or give the checkpoint of one that was "
                f"with --ckpt_path."
            )

    def training_step(self, batch: AttentionBatch, batch_idx: int) -> Tensor:
        """Cross-entropy over the candidate heads, summed over the words, as in Clark et al. (2019, §5)."""
        loss = nn.functional.cross_entropy(
            self(batch).flatten(0, 1), batch.heads.flatten(), ignore_index=-1, reduction="sum"
        )
        # Summed here and logged once an epoch: Lightning's `log` costs more than this probe's forward pass.
        self._loss.update(loss.detach())
        self._words.update(batch.lengths.sum())
        return loss

    def on_train_epoch_end(self) -> None:
        """Log `train_loss`, nats per word."""
        self.log("train_loss", self._loss.compute() / self._words.compute())
        self._loss.reset()
        self._words.reset()

    def predict_heads(self, batch: AttentionBatch) -> Tensor:
        """The candidate of the highest score for every word."""
        heads: Tensor = self(batch).argmax(-1)
        return heads

    def predict_step(self, batch: AttentionBatch, batch_idx: int) -> Tensor:
        """Predicted heads `[batch, n]`, -1 in the padding; gathered for `predictions` too."""
        predicted = self.predict_heads(batch)
        _gather(self._found, batch, predicted)
        return predicted.masked_fill(~batch.mask, -1)

    def on_predict_epoch_end(self) -> None:
        """Fill `predictions`: `id, word, form, head`, one row per word, 0 = root."""
        arcs, predicted = self._found.compute()
        self._found.reset()
        split = self.data.splits["test"]
        self.predictions = pd.DataFrame(
            {
                "id": [split.ids[index] for index in arcs.sentence],
                "word": arcs.word,
                "form": [form for index in np.unique(arcs.sentence) for form in split.words(int(index))],
                "head": predicted,
            }
        )

    def validation_step(self, batch: AttentionBatch, batch_idx: int) -> None:
        """Gather the predictions on dev."""
        _gather(self._val, batch, self.predict_heads(batch))

    def on_validation_epoch_end(self) -> None:
        """Log `val_uas`, UAS on dev without punctuation."""
        arcs, predicted = self._val.compute()
        self._val.reset()
        right = attached(arcs, predicted)[~arcs.punctuation]
        self.log("val_uas", float(right.mean()) if len(right) else 0.0, prog_bar=True)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Adam, as in Clark et al. (2019)."""
        adam = torch.optim.Adam(self.parameters(), self.learning_rate)
        return {"optimizer": adam, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(adam, self.decay)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what the parameters belong to."""
        checkpoint["probe"] = {"encoder": self._encoder, "size": self._size}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the weights of another encoder.

        Raises:
            ProbeError: the checkpoint was trained on another encoder, or on other layers or heads of it.
        """
        trained: dict[str, Any] = checkpoint["probe"]
        layers, heads = trained["size"]
        if self._size is not None and (trained["encoder"], (layers, heads)) != (self._encoder, self._size):
            raise ProbeError(
                f"The checkpoint was trained on {_describe(trained['encoder'], layers, heads)}, and the data come from "
                f"{_describe(self._encoder, *self._size)}. Give --data.init_args.encoder the encoder of the checkpoint."
            )
        self._encoder = trained["encoder"]
        self._trained = True
        self._make(layers, heads)


def _describe(encoder: Mapping[str, object] | None, layers: tuple[int, ...], heads: tuple[int, ...]) -> str:
    encoder = encoder or {}
    sha, weights = str(encoder.get("weights_sha256"))[:12], encoder.get("weights")
    return f"{weights} weights {sha}…, {len(layers)} layers × {len(heads)} heads"
