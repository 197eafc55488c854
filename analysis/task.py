"""What heads are needed for: a model on texts, what it says of each of them, and the score that is made of this."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor, nn

from analysis.base import AnalysisError
from analysis.importance import IGNORED, Loss, MaskedLoss, NextTokenLoss
from attention import Encoder
from attention.ablation import PIECES, AblatedModel, Ablation, Kind, Reference
from attention.capture import Heads
from attention.digest import Digests
from corpora.sentence import CorpusError
from datamodules import ClassificationDataModule, SegmentBatch, TextBatch, TextDataModule
from datamodules.batch import Split
from datamodules.classification import SCORES
from metrics.bootstrap import Floats, Resampled, Statistic, mean, ratio, resample
from metrics.classification import auroc, f1_score, mcc_score
from metrics.correlation import pearson, spearman
from models import TransformerClassifier
from results import Unit

REFERENCES = 1000
"""Texts of dev that `mean` is over, drawn at random; `resample` draws from some of them."""


class Task(ABC):
    """A model that is scored on texts with some of its heads replaced.

    Attributes:
        model: whose attention goes through the registered function.
        layers: attention layers.
        heads: heads of each layer.
        causal: whether no token attends to a later one.
        score: name of the main score.
        unit: of it.
        lower_is_better: whether a head that helps raises the score by going.
        width: numbers that are kept of a text for each set of heads.
        references: where the texts come from that `mean` and `resample` are made of.
    """

    model: nn.Module
    layers: int
    heads: int
    causal: bool
    score: str
    unit: Unit
    lower_is_better: ClassVar[bool] = False
    width: int
    references: str = "dev"

    def __init__(self) -> None:
        self.ablated = AblatedModel(self.model, self.layers)
        self._reference: Reference | None = None

    @abstractmethod
    def inputs(self, batch: Any) -> dict[str, Tensor]:  # noqa: ANN401 # each task has its own
        """What `numbers` and `losses` read of a batch: `input_ids`, `attention_mask` and more, each `[batch, …]`."""

    @abstractmethod
    def gold(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """What is known of each text without the model, `[batch, 1]`."""

    @abstractmethod
    def numbers(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """What the model says of each text, `[batch, width]`."""

    @abstractmethod
    def losses(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The loss of each text in nats, `[batch]`, by which gradients reach the attention."""

    @abstractmethod
    def statistic(self) -> Statistic:
        """The main score of rows `[texts, 1 + width]`: what is known, and what the model says."""

    def choose(self, score: str) -> None:
        """Take another main score; an AnalysisError where there is none of that name."""
        if score != self.score:
            raise AnalysisError(f"--model.init_args.score: there is no {score}, only {self.score}.")

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, object]:
        """What decides all numbers: the model and the texts."""

    @abstractmethod
    def drawn(self, split: Split, most: int, seed: int) -> list[dict[str, Tensor]]:
        """Inputs of at most so many texts of another split, drawn at random: the same on every rank."""

    def ablation(self, kind: Kind, seed: int) -> Ablation:
        """Of this model; what heads give in texts of dev is found out once."""
        if kind in ("mean", "resample") and self._reference is None:
            self._reference = Reference.of(self.numbers, self.drawn("dev", REFERENCES, seed))
        return Ablation(kind, self.causal, self._reference, seed)

    def run(self, batch: TextBatch | SegmentBatch, ablation: Ablation, sets: Sequence[Heads]) -> Tensor:
        """What the model says of each text with each set of heads replaced, `[sets, batch, width]`."""
        return self.ablated.run(self.numbers, self.inputs(batch), ablation, sets, batch.index.tolist())

    def resampled(self, rows: Floats, draws: int, seed: int = 0) -> Resampled:
        """The main score of rows `[texts, 1 + width]` under resamples of the texts."""
        return resample(self.statistic(), rows, self.unit, draws=draws, seed=seed)


class Classification(Task):
    """A fine-tuned transformer on labelled texts.

    Args:
        checkpoint: of a `TransformerClassifier`.
        data: set up.
        device: where it runs.

    Attributes:
        classifier: the model under its head.

    Raises:
        TrainingError: the file is damaged, no such checkpoint, or of other data.
    """

    def __init__(self, checkpoint: Path, data: ClassificationDataModule, device: torch.device) -> None:
        self.data = data
        trained = TransformerClassifier.load_from_checkpoint(checkpoint, device)
        self._trained = trained.eval().requires_grad_(False)
        classifier = self._trained.classifier
        self.classifier = classifier
        self.model, self.layers, self.heads = classifier.model.base_model, classifier.layers, classifier.heads
        self.causal = classifier.causal
        self._digest = Digests(data.cache).one(checkpoint)
        self._check(checkpoint)
        self.width = len(data.labels) or 1  # a regression has one output
        self.score, self.unit = data.score, "fraction"
        super().__init__()

    def _check(self, checkpoint: Path) -> None:
        labels, pieces = self._trained.sizes.labels, self._trained.sizes.vocabulary.digest
        if labels != tuple(self.data.labels) or pieces != self.data.vocabulary.digest:
            raise AnalysisError(
                f"{checkpoint}: the classifier knows {', '.join(labels)} and pieces of its own tokenizer, and the data "
                f"have the labels {', '.join(self.data.labels)} and maybe another tokenizer. Give --data what it was "
                f"trained on, or leave --data out."
            )

    def inputs(self, batch: TextBatch) -> dict[str, Tensor]:
        return {
            "input_ids": batch.tokens,
            "attention_mask": batch.mask.long(),
            "segments": batch.segments,
            "words": batch.words,
            "labels": batch.labels,
        }

    def gold(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return inputs["labels"][:, None].double()

    def numbers(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return self.classifier.logits(inputs["input_ids"], inputs["attention_mask"].bool(), inputs["segments"])

    def losses(self, inputs: Mapping[str, Tensor]) -> Tensor:
        numbers, labels = self.numbers(inputs).float(), inputs["labels"]
        if self.data.regression:
            return nn.functional.mse_loss(numbers[:, 0], labels, reduction="none")
        return nn.functional.cross_entropy(numbers, labels, reduction="none")

    def choose(self, score: str) -> None:
        possible = SCORES[self.data.regression]
        if score not in possible:
            raise AnalysisError(f"--model.init_args.score: there is no {score}; give {' or '.join(possible)}.")
        self.score = score

    def statistic(self) -> Statistic:
        classes, positive = len(self.data.labels), self.data.positive
        of_decisions: Mapping[str, Statistic] = {
            "accuracy": _accuracy,
            "f1": f1_score(positive, classes),
            "mcc": mcc_score(classes),
        }
        of_numbers: Mapping[str, Statistic] = {"pearson": pearson, "spearman": spearman}
        if self.score in of_numbers:
            return of_numbers[self.score]

        def statistic(values: Floats, weights: Floats) -> Floats:
            if self.score == "auroc":
                return auroc(values[:, 0].astype(np.int64), softmax(values[:, 1:], axis=1), positive, weights)
            return of_decisions[self.score](np.column_stack([values[:, 0], values[:, 1:].argmax(1)]), weights)

        return statistic

    @property
    def identity(self) -> Mapping[str, object]:
        data = self.data
        read = [data.format, data.columns, data.header, data.empty, data.token_options]
        return {"checkpoint": self._digest, "data": data.provenance.data, "read": repr(read)}

    def drawn(self, split: Split, most: int, seed: int) -> list[dict[str, Tensor]]:
        texts = self.data.splits[split]
        places = np.random.default_rng(seed).permutation(len(texts))[:most]
        places = places[np.argsort(texts.lengths[places], kind="stable")]
        device = next(self.model.parameters()).device
        size = max(PIECES[device.type] // int(texts.lengths[places].max()), 1)
        batches = [texts[places[first : first + size].tolist()] for first in range(0, len(places), size)]
        return [self.inputs(batch.to(device)) for batch in batches]


def _accuracy(values: Floats, weights: Floats) -> Floats:
    """Share of the rows whose two columns, gold and predicted class, are equal."""
    return mean((values[:, 0] == values[:, 1])[:, None].astype(np.float64), weights)


class LanguageModelling(Task):
    """An encoder under its head for language modelling: the loss of masked tokens, or of the next ones.

    Args:
        data: set up.
        seed: of the masks.

    Raises:
        AnalysisError: the encoder's files hold no such head.
    """

    lower_is_better = True

    def __init__(self, data: TextDataModule, seed: int) -> None:
        self._data, self._seed = data, seed
        self._encoder: Encoder = data.encoders["given"]
        encoder = self._encoder
        if encoder.language_model is None:
            raise AnalysisError(
                f"{encoder.source.spec.name} has no head for language modelling. Name a fine-tuned classifier with "
                f"--model.init_args.checkpoint, or an encoder that has such a head (bert-base-uncased, gpt2) with "
                f"--data.init_args.encoder.name."
            )
        self._loss: Loss = NextTokenLoss(encoder) if encoder.causal else MaskedLoss(encoder, seed)
        self.model, self.layers, self.heads = encoder.language_model.base_model, encoder.layers, encoder.heads
        self.causal, self.width = encoder.causal, 2
        self.score, self.unit = "loss", "nats"
        super().__init__()

    def inputs(self, batch: SegmentBatch) -> dict[str, Tensor]:
        tokens, targets = self._loss.prepare(batch)
        return {**self._encoder.inputs(tokens, batch.mask, batch.segments), "targets": targets}

    def gold(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return (inputs["targets"] != IGNORED).sum(1, keepdim=True).double()

    def numbers(self, inputs: Mapping[str, Tensor]) -> Tensor:
        model_inputs = {name: tensor for name, tensor in inputs.items() if name != "targets"}
        return torch.stack(self._loss.of(model_inputs, inputs["targets"]), 1)

    def losses(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return self.numbers(inputs)[:, 0]

    def statistic(self) -> Statistic:
        return _mean_loss

    @property
    def identity(self) -> Mapping[str, object]:
        data = self._data
        read = [data.sources, data.max_length, data.max_cells, self._seed]
        return {"encoder": data.provenance.encoder, "data": data.provenance.data, "read": repr(read)}

    def drawn(self, split: Split, most: int, seed: int) -> list[dict[str, Tensor]]:
        try:
            batches = list(self._data.drawn(split, most, seed))
        except CorpusError:  # a file, or a corpus that comes as one piece
            batches = list(self._data.drawn(None, most, seed))
            self.references = "the texts themselves"
        return [self.inputs(batch.to(self._encoder.device)) for batch in batches]


def _mean_loss(values: Floats, weights: Floats) -> Floats:
    """Mean loss over tokens of texts by columns tokens, mean loss and accuracy."""
    return ratio(weights @ (values[:, 0] * values[:, 1]), weights @ values[:, 0])
