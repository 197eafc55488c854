"""What every text classifier shares: training, choice on dev, scores on test, and the seam for imposed attention."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torchmetrics import MeanMetric

from attention.encoder import EncoderSpec
from datamodules import ClassificationDataModule, TextBatch
from datamodules.tokenization import Vocabulary
from metrics.classification import classification_scores
from metrics.rows import ItemRows
from models.checkpoint import KEY, belongings, check
from models.interface import ModelError, Output
from models.predictions import Prediction, prediction_table, predictions_of
from models.scoring import Classified, classification_result
from results import Result

CROSS_ENTROPY = "cross_entropy"
"""Name of the term that every classifier has."""


@dataclass(frozen=True)
class TextSizes:
    """What a classifier's parameters are made for.

    Attributes:
        classes: how many labels there are.
        vocabulary: what the tokens of a batch are numbers of.
        vectors: float32 `[vocabulary, size]`, the word vectors; None without.
        known: bool `[vocabulary]`, words that have one; None without.
        tokenizer: the pretrained model whose pieces the tokens are; None for words.
    """

    classes: int
    vocabulary: Vocabulary
    vectors: Tensor | None = None
    known: Tensor | None = None
    tokenizer: EncoderSpec | None = None


class TextClassifier(LightningModule):
    """A classifier whose attention can be read, and replaced by another.

    Subclasses fill `build`, `forward` and `decide`; those with terms of their own in the loss also `term_names` and
    `outcome`. The loss is the sum of its terms, each logged as `loss.<name>` as it enters the sum; on dev and test it
    is the mean over the texts of what the batches have.

    Args:
        learning_rate: of the optimiser.
        optimizer: `amsgrad` is Adam with the maximum of Reddi et al. (2018), as Jain & Wallace (2019) train.
        weight_decay: of all parameters but those of the attention (Jain & Wallace 2019); decoupled with `adamw`.
        decay: factor of the learning rate after every epoch; 1 keeps it.
        class_weights: whether a class counts in the loss as much as any other: texts are weighted by
            `texts / (classes · texts of the class)` of the train split.
    """

    experiment = "classification"
    term_names: Sequence[str] = ()
    """Names of the terms beside the cross-entropy."""
    example_input_array = None

    def __init__(
        self,
        learning_rate: float = 1e-3,
        optimizer: Literal["adam", "amsgrad", "adamw"] = "adam",
        weight_decay: float = 0.0,
        decay: float = 1.0,
        class_weights: bool = False,
    ) -> None:
        super().__init__()
        self.learning_rate, self.optimizer = learning_rate, optimizer
        self.weight_decay, self.decay = weight_decay, decay
        self.class_weights = class_weights
        self.result: Result | None = None
        self.predictions: pd.DataFrame | None = None
        self._built = False
        self._trained = False
        self._audit: dict[str, object] = {}
        self._weights: Tensor | None = None

    def build(self, sizes: TextSizes) -> None:
        """Make the parameters."""
        raise TypeError(f"{type(self).__name__} does not say how it is built.")

    def forward(
        self, batch: TextBatch, *, embedded: Tensor | None = None, imposed: Mapping[str, Tensor] | None = None
    ) -> Output:
        """Read the texts, attend and decide.

        Args:
            batch: of at least one text.
            embedded: `[batch, time, size]`, in the place of the batch's own embeddings.
            imposed: weights `[batch, slots]` by level, in the place of the model's own; used as they are.
        """
        raise TypeError(f"{type(self).__name__} does not say how it decides.")

    def decide(self, output: Output, imposed: Mapping[str, Tensor]) -> Tensor:
        """Logits `[..., batch, classes]` of the same texts with other attention.

        Args:
            output: of `forward`.
            imposed: weights `[..., batch, slots]` by level, used as they are. Of the levels that are not named, those
                below keep their weights, and those above the lowest that is named attend anew to what they then see.
        """
        raise TypeError(f"{type(self).__name__} does not say how it decides.")

    def outcome(self, batch: TextBatch) -> tuple[Output, Mapping[str, Tensor]]:
        """What `forward` says, and the terms of the loss beside the cross-entropy, each a scalar times its weight."""
        return self(batch), {}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameters with weight decay, and those without: what belongs to an attention module."""
        still = {id(parameter) for module in self._undecayed() for parameter in module.parameters()}
        groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for parameter in self.parameters():
            if parameter.requires_grad:
                groups[id(parameter) not in still].append(parameter)
        decays = {True: self.weight_decay, False: 0.0}
        return [{"params": found, "weight_decay": decays[key]} for key, found in groups.items() if found]

    def _undecayed(self) -> Iterable[nn.Module]:
        return ()

    @property
    def data(self) -> ClassificationDataModule:
        """The datamodule of the run.

        Raises:
            ModelError: it is not one of labelled texts.
        """
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, ClassificationDataModule):
            raise ModelError(
                f"{type(self).__name__} classifies texts, and {type(data).__name__} has none: use "
                f"ClassificationDataModule."
            )
        return data

    def setup(self, stage: str) -> None:
        """Make the parameters for the datamodule of the run; see `prepare`."""
        self.prepare(self.data)

    def prepare(self, data: ClassificationDataModule) -> None:
        """Make the parameters for the vocabulary, the vectors and the labels of a datamodule that is set up.

        Raises:
            ModelError: they do not fit the model.
        """
        if not self._built:
            vectors, known = data.word_vectors() or (None, None)
            self.build(TextSizes(len(data.labels), data.vocabulary, vectors, known, data.tokenizer))
            self._built = True
            width = 1 + len(data.labels)
            self._val, self._dev, self._test = ItemRows(width), ItemRows(width), ItemRows(width)
            names = (CROSS_ENTROPY, *self.term_names)
            self._losses = nn.ModuleDict(
                {f"{part}_{name}": MeanMetric() for part in ("train", "eval") for name in names}
            )
        if self.class_weights:
            counts = torch.from_numpy(data.class_counts).float()
            self._weights = counts.sum() / (len(counts) * counts)

    def _terms(self, batch: TextBatch, part: Literal["train", "eval"]) -> tuple[Output, Mapping[str, Tensor]]:
        output, extra = self.outcome(batch)
        weights = None if self._weights is None else self._weights.to(output.logits)
        terms = {CROSS_ENTROPY: nn.functional.cross_entropy(output.logits, batch.labels, weights), **extra}
        for name, term in terms.items():
            self._loss(part, name).update(term.detach(), len(batch.labels))
        return output, terms

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        """The sum of the terms."""
        _, terms = self._terms(batch, "train")
        return torch.stack(list(terms.values())).sum()

    def on_train_epoch_end(self) -> None:
        """Log `train_loss` and each of its terms as `train_loss.<name>`."""
        losses = self._mean_losses("train")
        self.log("train_loss", sum(losses.values()), sync_dist=True)
        self.log_dict({f"train_loss.{name}": value for name, value in losses.items()}, sync_dist=True)

    def _loss(self, part: Literal["train", "eval"], name: str) -> MeanMetric:
        metric = self._losses[f"{part}_{name}"]
        assert isinstance(metric, MeanMetric)
        return metric

    def _mean_losses(self, part: Literal["train", "eval"]) -> dict[str, float]:
        found = {}
        for name in (CROSS_ENTROPY, *self.term_names):
            metric = self._loss(part, name)
            found[name] = float(metric.compute())
            metric.reset()
        return found

    def _gather(self, metric: ItemRows, batch: TextBatch, logits: Tensor) -> None:
        # Logarithms, taken in double precision on the CPU: as float32 near 1 probabilities would tie.
        logs = logits.detach().cpu().double().log_softmax(-1).float().to(logits.device)
        metric.update(batch.index, torch.cat([batch.labels[:, None], logs], dim=1))

    def validation_step(self, batch: TextBatch, batch_idx: int) -> None:
        """Gather the predictions on dev, and the loss."""
        if len(batch.index):  # else this device has none
            output, _ = self._terms(batch, "eval")
            self._gather(self._val, batch, output.logits)

    def on_validation_epoch_end(self) -> None:
        """Log `val_accuracy`, `val_f1`, `val_auroc` and `val_loss`."""
        dev = self._joined(self._val)
        scores = classification_scores(dev.gold, dev.probabilities, self.data.positive, prefix="val_", draws=0)
        means = {name: score.value for name, score in scores.items()}
        # The same on every device: they are joined already.
        self.log_dict({**means, "val_loss": sum(self._mean_losses("eval").values())}, sync_dist=True)

    def test_step(self, batch: TextBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Gather the predictions on dev and test, and the loss on test."""
        if not len(batch.index):
            return
        if batch.split == "test":
            output, _ = self._terms(batch, "eval")
            self._gather(self._test, batch, output.logits)
        else:
            self._gather(self._dev, batch, self(batch).logits)

    def on_test_epoch_end(self) -> None:
        """Score, and fill `result`."""
        losses = self._mean_losses("eval")
        dev, test = self._joined(self._dev), self._joined(self._test)
        self.result = classification_result(self.experiment, self.data, dev, test, losses, self._audit)

    def _joined(self, metric: ItemRows) -> Classified:
        texts, values = metric.compute()
        metric.reset()
        return Classified(texts, values[:, 0].astype(np.int64), np.exp(values[:, 1:]))

    def on_predict_epoch_start(self) -> None:
        """Begin anew."""
        self._found: list[Prediction] = []

    def predict_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        """Probabilities `[batch, classes]`; gathered for `predictions` too, with the attention."""
        if not len(batch.index):
            return batch.index.new_zeros(0, len(self.data.labels), dtype=torch.float32)
        output: Output = self(batch)
        self._found += predictions_of(batch, output)
        return output.logits.softmax(-1)

    def on_predict_epoch_end(self) -> None:
        """Fill `predictions`; see `prediction_table`."""
        self.predictions = prediction_table(self._found, self.data)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """One of three Adams, and a rate that falls after every epoch."""
        groups = self.parameter_groups()
        adam: torch.optim.Optimizer
        if self.optimizer == "adamw":
            adam = torch.optim.AdamW(groups, self.learning_rate, fused=True)
        else:
            adam = torch.optim.Adam(groups, self.learning_rate, amsgrad=self.optimizer == "amsgrad", fused=True)
        return {"optimizer": adam, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(adam, self.decay)}

    def on_fit_start(self) -> None:
        """From here on the parameters mean something."""
        self._trained = True

    def on_train_end(self) -> None:
        """Remember how long it was trained, to be told beside the epoch that is tested."""
        self._audit["epochs_run"] = self.trainer.current_epoch

    def on_validation_start(self) -> None:
        """Refuse to score a classifier that has learned nothing.

        Raises:
            ModelError: it was not trained, and comes from no checkpoint.
        """
        if not self._trained:
            raise ModelError(
                f"{type(self).__name__} was not trained: train it with `fit`, or give a checkpoint with --ckpt_path."
            )

    on_test_start = on_predict_start = on_validation_start

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what the parameters belong to."""
        checkpoint[KEY] = belongings(self, self.data)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse parameters of another model, other words or other labels; see `models.checkpoint.check`."""
        check(self, self.data, checkpoint)
        self._audit["epochs"] = checkpoint["epoch"] + 1
        self._trained = True
