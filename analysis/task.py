"""What heads are needed for: a model on texts, what it says of each of them, and the score that is made of this."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_warn
from scipy.special import softmax
from torch import Tensor, nn

from analysis.base import AnalysisError
from analysis.importance import IGNORED, Loss, MaskedLoss, NextTokenLoss
from attention import Encoder
from attention.ablation import AblatedModel, Ablation, Kind, Reference, pieces_at_once
from attention.capture import Heads
from datamodules import ClassificationDataModule, SegmentBatch, TextBatch, TextDataModule
from datamodules.batches import LengthBatches, Split
from datamodules.classification import SCORES
from metrics.bootstrap import Floats, Resampled, Statistic, mean, ratio, resample
from metrics.classification import auroc, f1_score, mcc_score
from metrics.correlation import pearson, spearman
from models import TransformerClassifier
from results import Unit
from results.digests import Digests

REFERENCES = 1000
"""Texts of dev that `mean` is over, drawn at random."""
RESAMPLED = 256
"""Of them those that `resample` draws from."""
_DRAWN = 4096  # most pieces of a batch of drawn texts: outputs or gradients of all layers are kept of it


class Task(ABC):
    """A model that is scored on texts with some of its heads replaced.

    Attributes:
        model: whose attention goes through the registered function.
        layers: attention layers.
        heads: heads of each layer.
        score: name of the main score.
        unit: of it.
        loss_unit: of `losses`.
        lower_is_better: whether a lower score is better, as of a loss.
        width: numbers that are kept of a text for each set of heads.
        labels: those that it tells apart; none where it predicts something else.
        vocabulary: logits of each token; 0 where there are none.
        references: where the texts come from that `mean` and `resample` are made of.
    """

    model: nn.Module
    layers: int
    heads: int
    score: str
    unit: Unit
    loss_unit: Unit = "nats"
    lower_is_better: ClassVar[bool] = False
    width: int
    vocabulary: int = 0
    labels: Sequence[str] = ()
    references: str = "dev"

    def __init__(self) -> None:
        self.ablated = AblatedModel(self.model, self.layers, self.heads, width=self.vocabulary)
        self._references: dict[bool, Reference] = {}

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
        """The loss of each text, `[batch]`, by which gradients reach the attention."""

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
        """Of this model; the outputs of heads in texts of dev are found out once."""
        if kind in ("zero", "uniform"):
            return Ablation(kind)
        keeps = kind == "resample"
        if keeps not in self._references:
            drawn = self.drawn("dev", REFERENCES, seed)
            self._references[keeps] = Reference.from_batches(self.numbers, drawn, RESAMPLED if keeps else 0)
        reference = self._references[keeps]
        if keeps and len(reference.lengths) < 2:
            raise AnalysisError(
                "resample: dev has one text, and no other to draw from. Give it more, or choose another kind."
            )
        return Ablation(kind, reference, seed)

    def rows(self, batch: TextBatch | SegmentBatch, sets: Mapping[Ablation, Sequence[Heads]]) -> Tensor:
        """What is known of each text, and what the model says of it with each set of heads replaced.

        Float64 `[batch, 1 + width × all sets]`, in single precision whatever the trainer's is.
        """
        with torch.autocast(batch.index.device.type, enabled=False):
            inputs = self.inputs(batch)
            found = [self.gold(inputs)]
            for ablation, some in sets.items():
                numbers = self.ablated.run(self.numbers, inputs, ablation, some, batch.index.tolist())
                found.append(numbers.transpose(0, 1).flatten(1).double())
        return torch.cat(found, 1)

    def warn_of_one_label(self, rows: Floats) -> None:
        """Warn where the first of the sets, the whole model, decides alike on all texts, of which the rows are."""
        found = np.unique(rows[:, 1 : 1 + self.width].argmax(1))
        if len(self.labels) > 1 and len(found) == 1:
            rank_zero_warn(
                f"The whole model gives all {len(rows)} texts the label {self.labels[found[0]]!r}: there is little "
                f"that it could need a head for. Train it longer."
            )

    def resampled(self, rows: Floats, place: int, draws: int) -> Resampled:
        """The main score with the set of that place replaced, of the rows of all texts, under resamples of these.

        Raises:
            AnalysisError: the model says no number of some text.
        """
        own = rows[:, [0, *range(1 + place * self.width, 1 + (place + 1) * self.width)]]
        if np.isnan(own).any():
            raise AnalysisError(
                f"The model says no number of {int(np.isnan(own).any(1).sum())} of {len(own)} texts with some heads "
                f"replaced. Choose another kind of ablation."
            )
        return resample(self.statistic(), own, self.unit, draws=draws)


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
        self._trained = trained.requires_grad_(False)
        classifier = self._trained.classifier
        self.classifier = classifier
        self.model, self.layers, self.heads = classifier.model.base_model, classifier.layers, classifier.heads
        self._digest = Digests(data.cache).one(checkpoint)
        self._check(checkpoint)
        self.labels, self.width = data.labels, len(data.labels) or 1  # a regression has one output
        self.score, self.unit = data.score, "fraction"
        self.loss_unit = "ratio" if data.regression else "nats"
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
        device = next(self.model.parameters()).device
        bound = min(pieces_at_once(device, int(texts.lengths[places].max()), self.heads), _DRAWN)
        batches = LengthBatches(
            texts.lengths, items=places.tolist(), max_cells=bound, max_sentences=most, shuffle=False, cells="tokens"
        )
        return [{**self.inputs(batch), "index": batch.index} for batch in (texts[some].to(device) for some in batches)]


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
        self.vocabulary = encoder.vocabulary
        self._loss: Loss = NextTokenLoss(encoder) if encoder.causal else MaskedLoss(encoder, seed)
        self.model, self.layers, self.heads = encoder.language_model.base_model, encoder.layers, encoder.heads
        self.width = 2
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
        files = {name: Digests(data.cache).one(path) for name, path in data.files().items()}
        read = [data.sources, data.max_length, data.max_cells, self._seed]
        return {"encoder": data.provenance.encoder, "files": files, "read": repr(read)}

    def drawn(self, split: Split, most: int, seed: int) -> list[dict[str, Tensor]]:
        there = self._data.has_split(split)
        if not there:
            self.references = f"what is scored, as there is no {split} split"
            rank_zero_warn(f"What heads are replaced by is of {self.references}.")
        batches = self._data.drawn(split if there else None, most, seed)
        return [self.inputs(batch.to(self._encoder.device)) for batch in batches]


def _mean_loss(values: Floats, weights: Floats) -> Floats:
    """Mean loss over tokens of texts by columns tokens, mean loss and accuracy."""
    return ratio(weights @ (values[:, 0] * values[:, 1]), weights @ values[:, 0])
