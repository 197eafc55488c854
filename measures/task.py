"""Tasks: models that are scored on texts, with their inputs, outputs for each text, losses and scores."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from attention_probing.attention import Encoder
from attention_probing.attention.ablation import (
    AblatedModel,
    Ablation,
    Sources,
    pieces_at_once,
)
from attention_probing.attention.heads import Heads
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import (
    ClassificationDataModule,
    PairBatch,
    SegmentBatch,
    TextBatch,
)
from attention_probing.datamodules.batches import LengthBatches
from attention_probing.measures.contract import ignore
from attention_probing.metrics.classification import auroc, f1_score, mcc_score
from attention_probing.metrics.statistics import Ratio, Statistic, pearson, spearman
from attention_probing.models import TransformerClassifier
from attention_probing.results import Flags, Floats, Integers, Unit, UserError
from attention_probing.results.errors import pluralize, setting

MASKED, HIDDEN, REPLACED = 0.15, 0.8, 0.1
"""Share of the tokens that are predicted; of these, shares that become the mask and a random token (Devlin et al. 2019,
§3.1). The other predicted tokens stay as they are."""

IGNORED = -100  # targets that PyTorch's cross-entropy leaves out

_DRAWN = 4096  # most pieces of a batch of drawn texts: outputs or gradients of all its layers stay in memory
_C = 0.01  # of 1, .1, .01, .001 and .0003 the value with the lowest loss on dev of SST-2, with 2,000 texts and with all


class Task(ABC):
    """Base of tasks: a model with attention heads, and a score of its outputs on texts.

    Attributes:
        name: Name of the predictions in the audit of the results, such as `masked tokens`.
        model: Transformers model whose attention can be captured and replaced.
        layers: Number of attention layers.
        heads: Number of attention heads of each layer.
        width: Number of outputs for each text.
        vocabulary: Largest number of logits for each token; 0 for a model without a vocabulary.
        labels: Names of the classes, if the outputs are logits of classes.
        score: Name of the score.
        unit: Unit of the score.
        loss_unit: Unit of the losses.
        lower_is_better: True if the score is a loss.
        chance: The score by chance, if it is the same for all data.
        noun: What is scored, in the plural.
    """

    name: str
    model: nn.Module
    layers: int
    heads: int
    width: int
    vocabulary: int = 0
    labels: Sequence[str] = ()
    score: str
    unit: Unit
    loss_unit: Unit = "nats"
    lower_is_better: ClassVar[bool] = False
    chance: ClassVar[float | None] = None
    noun: ClassVar[str] = "texts"

    @abstractmethod
    def inputs(self, batch: Any) -> dict[str, Tensor]:  # noqa: ANN401 # each task has its own
        """Convert a batch of the datamodule to the inputs of the model, tensors `[batch, …]` by name.

        The names are `index`, the index of each text in the data; `input_ids`; `attention_mask`; and
        others that the task needs.
        """

    @abstractmethod
    def gold(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the gold value of each text, `[batch]`, for instance its label."""

    @abstractmethod
    def outputs(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Run the model, and return its outputs for each text, `[batch, width]`.

        Gradients with respect to the attention can be computed from the outputs.
        """

    @abstractmethod
    def statistic(self) -> Statistic:
        """Return the function that computes the score for each bootstrap draw.

        The function has two arguments. The first has a row for each text, `[texts, 1 + width]`: its
        gold value, followed by its outputs. The second says how often each text occurs in each draw,
        `[draws, texts]`. The function returns the scores `[draws]`.
        """

    def further_statistics(self) -> Mapping[str, tuple[Statistic, Unit]]:
        """Return functions of further scores, as `statistic` returns that of the first, and their units, by name."""
        return {}

    def partners(self, inputs: Mapping[str, Tensor]) -> Sources:
        """Return, for each position of the inputs, the row and position whose output `patch` takes.

        Args:
            inputs: Inputs of a batch, from `inputs`.
        """
        raise TypeError(f"{type(self).__name__} has no pairs of texts.")

    def audit_of_patch(self, items: Integers) -> dict[str, object]:
        """Return the entries of the audit on what `patch` can change in some texts.

        Args:
            items: Indices of the texts, or of the pairs of texts.
        """
        raise TypeError(f"{type(self).__name__} has no pairs of texts.")

    def losses(self, outputs: Tensor, gold: Tensor) -> Tensor:
        """Return the loss of each text, `[batch]`; nan for a text in which nothing is to be predicted.

        Args:
            outputs: Outputs of the model, `[batch, width]`.
            gold: Gold value of each text, `[batch]`.
        """
        raise TypeError(f"{type(self).__name__} has no loss.")

    def accuracies(self, outputs: Tensor, gold: Tensor) -> Tensor:
        """Return the share of correct predictions in each text, `[batch]`; nan for a text without predictions.

        Args:
            outputs: Outputs of the model, `[batch, width]`.
            gold: Gold value of each text, `[batch]`.
        """
        raise TypeError(f"{type(self).__name__} has no accuracy.")

    def draw(self, data: Any, split: Split | None, most: int, seed: int) -> list[dict[str, Tensor]]:  # noqa: ANN401
        """Draw random texts, and return batches of the model's inputs for them; all processes draw the same texts.

        Args:
            data: Datamodule of the texts.
            split: Split to draw from; None for the texts that the measurement reads.
            most: Largest number of texts, of each corpus if there are several.
            seed: Seed of the draw.
        """
        raise TypeError(f"{type(self).__name__} draws no texts.")

    def groups(self, items: Integers) -> Mapping[str, Flags]:
        """Return named groups of texts that are also scored by themselves, bool `[texts]`; by default none.

        Args:
            items: Index of each text in its split, `[texts]`.
        """
        return {}

    @cached_property
    def ablated_model(self) -> AblatedModel:
        """Runner of the model with heads ablated.

        It computes the layers below the ablated heads once for all sets of heads.
        """
        return AblatedModel(self.model, self.layers, self.heads, width=self.vocabulary)

    def rows(
        self,
        inputs: Mapping[str, Tensor],
        sets: Mapping[Ablation, Sequence[Heads]],
        advance: Callable[[float], None] = ignore,
    ) -> dict[str, Tensor]:
        """Run the model on a batch with each set of heads ablated.

        It runs in single precision, whatever precision the measurement has.

        Args:
            inputs: Inputs of a batch, from `inputs`.
            sets: Sets of heads for each ablation.
            advance: Function that is called with each share of the batch that is finished; see `Measure.advance`.

        Returns:
            Columns by name: `gold`, the gold values `[batch]`; and for each ablation, by its name such as
            `zero`, the outputs with each of its sets ablated, one set after the other,
            `[batch, sets × width]`.
        """
        index = inputs["index"]
        passes = len(inputs["input_ids"]) * sum(map(len, sets.values()))  # of one text with one set

        def finish(number: int) -> None:
            advance(number / passes)

        with torch.autocast(index.device.type, enabled=False):
            rows = {"gold": self.gold(inputs)}
            for ablation, head_sets in sets.items():
                outputs = self.ablated_outputs(inputs, ablation, head_sets, finish)
                rows[ablation.name] = outputs.transpose(0, 1).flatten(1)
        return rows

    def ablated_outputs(
        self,
        inputs: Mapping[str, Tensor],
        ablation: Ablation,
        sets: Sequence[Heads],
        finish: Callable[[int], None],
    ) -> Tensor:
        """Run the model on a batch with each set of heads ablated, and return its outputs, `[sets, batch, width]`.

        Args:
            inputs: Inputs of a batch, from `inputs`.
            ablation: Replacement of the outputs of the ablated heads.
            sets: Sets of heads.
            finish: Function that is called with each number of texts times sets that are finished.
        """
        partners = self.partners(inputs) if ablation.kind == "patch" else None
        index = inputs["index"].tolist()
        return self.ablated_model.run(self.outputs, inputs, ablation, sets, index, partners, finish)


class LabelTask(Task):
    """Base of tasks that predict a label or a number for each text.

    For labels the outputs are logits; for numbers there is one output.

    Attributes:
        positive: Index of the positive class of F1; None without one.
        regression: True if the task predicts numbers.
    """

    score = "accuracy"
    unit = "fraction"
    positive: int | None = None
    regression = False

    def gold(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return inputs["labels"]

    def losses(self, outputs: Tensor, gold: Tensor) -> Tensor:
        if self.regression:
            return nn.functional.mse_loss(at_least_float32(outputs)[:, 0], gold, reduction="none")
        return nn.functional.cross_entropy(at_least_float32(outputs), gold, reduction="none")

    def accuracies(self, outputs: Tensor, gold: Tensor) -> Tensor:
        return (outputs.argmax(1) == gold).float()

    def statistic(self) -> Statistic:
        if self.score == "pearson":
            return pearson
        if self.score == "spearman":
            return spearman
        if self.score == "accuracy":
            return _accuracy
        if self.score == "auroc":
            return self._auroc
        if self.score == "f1":
            score_decisions = f1_score(self.positive, self.width)
        elif self.score == "mcc":
            score_decisions = mcc_score(self.width)
        else:
            raise ValueError(f"there is no score {self.score}")

        def statistic(values: Floats, weights: Floats) -> Floats:
            gold = values[:, 0]
            logits = values[:, 1:]
            return score_decisions(np.column_stack([gold, logits.argmax(1)]), weights)

        return statistic

    def _auroc(self, values: Floats, weights: Floats) -> Floats:
        """Return the area under the ROC curve of the positive class for each draw, `[draws]`; see `Task.statistic`."""
        gold = values[:, 0].astype(np.int64)
        logits = values[:, 1:]
        return auroc(gold, softmax(logits, axis=1), self.positive, weights)


class Classification(LabelTask):
    """Task of predicting labels of texts by a fine-tuned transformer.

    Args:
        checkpoint: Checkpoint of a `TransformerClassifier`.
        device: Device of the model.

    Attributes:
        classifier: The transformer with its classification head.
        pieces: Vocabulary of the model's tokenizer.

    Raises:
        TrainingError: The file is damaged, or a checkpoint of another class.
    """

    name = "labels, by a checkpoint"

    def __init__(self, checkpoint: Path, device: torch.device) -> None:
        trained = TransformerClassifier.load_from_checkpoint(checkpoint, device).requires_grad_(False)
        self.classifier = trained.classifier
        self.pieces = trained.sizes.vocabulary
        self.model = self.classifier.model.base_model
        self.layers = self.classifier.layers
        self.heads = self.classifier.heads
        self.labels = trained.sizes.labels
        self.width = len(self.labels) or 1
        self.regression = not self.labels
        self.loss_unit = "ratio" if self.regression else "nats"

    @classmethod
    def from_data(cls, checkpoint: Path, data: ClassificationDataModule, device: torch.device) -> Self:
        """Load a classifier to score it on the texts of a datamodule.

        Raises:
            UserError: The classifier was trained with other labels, or with another tokenizer, than the
                datamodule has.
        """
        task = cls(checkpoint, device)
        fault = ""
        if task.labels != tuple(data.labels):
            labels = ", ".join(task.labels) or "numbers"
            labels_of_data = ", ".join(data.labels) or "numbers"
            fault = f"the labels of the classifier are {labels}, but those of the data are {labels_of_data}"
        elif task.pieces.digest != data.vocabulary.digest:
            fault = "the classifier and the data have different tokenizers"
        if fault:
            raise UserError(f"{checkpoint}: {fault}. Give the data that it was trained on, or none.")
        task.score = data.score
        task.positive = data.positive
        return task

    def require_encoder(self, encoder: Encoder) -> None:
        """Raise a UserError if the classifier was fine-tuned from another encoder than the one given."""
        pieces = encoder.tokenizer.convert_ids_to_tokens(list(range(len(self.pieces.words))))
        words = tuple(piece or "" for piece in pieces)
        if (self.layers, self.heads, self.pieces.words) != (encoder.layers, encoder.heads, words):
            raise UserError(
                f"The classifier was not fine-tuned from {encoder.source.spec.name}: it has {self.layers} layers of "
                f"{self.heads} heads, and its layers, heads or vocabulary differ from those of this encoder. Name its "
                f"own encoder with {setting('encoder')}."
            )

    def inputs(self, batch: TextBatch | SegmentBatch) -> dict[str, Tensor]:
        if isinstance(batch, TextBatch):
            words = batch.words
            labels = batch.labels
        else:
            words = batch.words >= 0
            labels = _label_numbers(batch, self.labels)
        return {
            "index": batch.index,
            "input_ids": batch.tokens,
            "attention_mask": batch.mask.long(),
            "segments": batch.segments,
            "words": words,
            "labels": labels,
        }

    def outputs(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return self.classifier.logits(inputs["input_ids"], inputs["attention_mask"].bool(), inputs["segments"])

    def draw(self, data: Any, split: Split | None, most: int, seed: int) -> list[dict[str, Tensor]]:  # noqa: ANN401
        texts = data.splits[split]
        device = next(self.model.parameters()).device
        places = np.random.default_rng(seed).permutation(len(texts))[:most]
        longest = int(texts.lengths[places].max())
        batches = LengthBatches(
            texts.lengths,
            items=places.tolist(),
            max_cells=min(pieces_at_once(device, longest, self.heads), _DRAWN),
            max_items=most,
            shuffle=False,
            cells="tokens",
        )
        return [self.inputs(texts[items].to(device)) for items in batches]


class MeanStateClassification(LabelTask):
    """Task of predicting the labels of texts by logistic regression on the encoder's last layer.

    The input of the regression is the mean hidden state of this layer over all tokens, delimiters
    included.

    Args:
        encoder: Encoder of the hidden states.
        train: Labelled texts to fit the regression to.

    Attributes:
        texts: Number of texts that the regression was fitted to.

    Raises:
        UserError: A text has no label, or all labels are equal.
    """

    name = "labels"

    def __init__(self, encoder: Encoder, train: Iterable[SegmentBatch]) -> None:
        encoder.require_interface(type(self).__name__)
        self._encoder = encoder
        self.model = encoder.model
        self.layers = encoder.layers
        self.heads = encoder.heads
        features: list[Tensor] = []
        labels: list[str | None] = []
        for batch in train:
            on_device = batch.to(encoder.device)
            inputs = encoder.inputs(on_device.tokens, on_device.mask, on_device.segments)
            with torch.inference_mode():
                features.append(self._means(inputs).cpu())
            labels.extend(passages[0].label for passages in batch.passages)
        self.labels = sorted({label for label in labels if label is not None})
        self.texts = len(labels)
        self.width = len(self.labels)
        if None in labels or len(self.labels) < 2:
            raise UserError(
                f"{encoder.source.spec.name} has no language-modelling head, so a classifier is trained, but the train "
                f"texts have {pluralize(len(self.labels), 'label')}, and {labels.count(None)} of them have no label. "
                f"Give texts of two labels or more ({setting('data.corpora', 'sst2')})."
            )
        numbers = [self.labels.index(str(label)) for label in labels]
        weight, bias = _fit_regression(torch.cat(features).double().numpy(), numbers)
        self._weight = torch.from_numpy(weight).to(encoder.device)
        self._bias = torch.from_numpy(bias).to(encoder.device)

    def _means(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the mean of the hidden states of real tokens, `[batch, size]`."""
        states = at_least_float32(self._encoder.last_hidden(inputs_of_model(inputs)))
        real = inputs["attention_mask"].bool()
        return (states * real[:, :, None]).sum(1) / real.sum(1, keepdim=True)

    def inputs(self, batch: SegmentBatch) -> dict[str, Tensor]:
        inputs = self._encoder.inputs(batch.tokens, batch.mask, batch.segments)
        return {**inputs, "index": batch.index, "labels": _label_numbers(batch, self.labels)}

    def outputs(self, inputs: Mapping[str, Tensor]) -> Tensor:
        means = self._means(inputs)
        return means @ self._weight.T.to(means.dtype) + self._bias.to(means.dtype)


def _fit_regression(features: Floats, labels: Sequence[int]) -> tuple[Floats, Floats]:
    """Fit a logistic regression to standardised features; return its weight and bias for features as they are.

    Args:
        features: `[texts, size]`.
        labels: Number of the label of each text.

    Returns:
        Weight `[labels, size]`, and bias `[labels]`.
    """
    model = make_pipeline(StandardScaler(), LogisticRegression(C=_C, max_iter=1000))
    model.fit(features, labels)
    scaler = model[0]
    regression = model[1]
    weight = regression.coef_ / scaler.scale_
    bias = regression.intercept_ - weight @ scaler.mean_
    if len(bias) == 1:  # of two labels scikit-learn has one row, for the second
        weight = np.vstack([0 * weight, weight])
        bias = np.append(0.0, bias)
    return weight, bias


def inputs_of_model(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs that a Hugging Face model takes."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    return {name: inputs[name] for name in names if name in inputs}


def lacks_language_modelling(encoder: Encoder) -> str | None:
    """Return the reason why no language modelling loss can be computed for an encoder; None if it can."""
    if encoder.language_model is None:
        return f"{encoder.source.spec.name} has no language-modelling head"
    if not encoder.causal and encoder.tokenizer.mask_token_id is None:
        return f"{encoder.source.spec.name} has no mask token in its tokenizer, so it cannot predict masked tokens"
    return None


class LanguageModelling(Task):
    """Task of language modelling: predicting masked tokens, or next tokens if the encoder is causal.

    The gold value of a text is the number of its tokens to predict. The output for a text is two
    numbers: the sum of the losses of these tokens, in nats, and the number of them that are predicted
    correctly.

    Args:
        encoder: Encoder whose files hold a head for language modelling.
        seed: Seed of the masks, together with the index of each text.

    Raises:
        UserError: The encoder's files hold no such head, or its tokenizer has no mask token.
    """

    score = "loss"
    unit = "nats"
    lower_is_better = True
    width = 2

    def __init__(self, encoder: Encoder, seed: int) -> None:
        encoder.require_interface(type(self).__name__)
        reason = lacks_language_modelling(encoder)
        if reason is not None:
            raise UserError(
                f"{reason}. Name an encoder that can predict tokens (bert-base-uncased, gpt2) with "
                f"{setting('encoder')}, or the checkpoint of a fine-tuned classifier with "
                f"{setting('model.checkpoint')} (of Importance: `classifier`)."
            )
        assert encoder.language_model is not None
        self.name = "next tokens" if encoder.causal else "masked tokens"
        self.encoder = encoder
        self._seed = seed
        self._language_model = encoder.language_model
        self.model = self._language_model.base_model
        self.layers = encoder.layers
        self.heads = encoder.heads
        self.vocabulary = int(self._language_model.config.vocab_size)

    def inputs(self, batch: SegmentBatch) -> dict[str, Tensor]:
        make_targets = next_tokens if self.encoder.causal else self._masked_tokens
        tokens, targets = make_targets(batch)
        inputs = self.encoder.inputs(tokens, batch.mask, batch.segments)
        return {**inputs, "index": batch.index, "targets": targets}

    def _masked_tokens(self, batch: SegmentBatch) -> tuple[Tensor, Tensor]:
        """Mask tokens as in BERT's training; return inputs and targets, int64 `[batch, time]`."""
        tokens = batch.tokens.cpu().numpy()
        words = batch.words.cpu().numpy()
        inputs = tokens.copy()
        targets = np.full_like(tokens, IGNORED)
        mask = self.encoder.tokenizer.mask_token_id
        for row, number in enumerate(batch.index.tolist()):
            random = np.random.default_rng([self._seed, number])
            places = np.flatnonzero(words[row] >= 0)
            predicted = random.choice(places, max(1, round(MASKED * len(places))), replace=False)
            targets[row, predicted] = tokens[row, predicted]
            fate = random.random(len(predicted))
            others = random.choice(self.encoder.ordinary, len(predicted))
            is_hidden = fate < HIDDEN
            is_replaced = fate < HIDDEN + REPLACED
            inputs[row, predicted] = np.select([is_hidden, is_replaced], [mask, others], tokens[row, predicted])
        device = batch.tokens.device
        return torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)

    def gold(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return (inputs["targets"] != IGNORED).sum(1)

    def outputs(self, inputs: Mapping[str, Tensor]) -> Tensor:
        targets = inputs["targets"]
        logits = self._language_model(**inputs_of_model(inputs)).logits
        losses = nn.functional.cross_entropy(
            at_least_float32(logits).transpose(1, 2), targets, reduction="none", ignore_index=IGNORED
        )
        loss = losses.sum(1)
        right = (logits.argmax(2) == targets).sum(1)
        return torch.stack([loss, right.to(loss.dtype)], 1)

    def losses(self, outputs: Tensor, gold: Tensor) -> Tensor:
        return outputs[:, 0] / gold

    def accuracies(self, outputs: Tensor, gold: Tensor) -> Tensor:
        return outputs[:, 1] / gold

    def statistic(self) -> Statistic:
        return first_output_per_gold

    def draw(self, data: Any, split: Split | None, most: int, seed: int) -> list[dict[str, Tensor]]:  # noqa: ANN401
        return [self.inputs(batch.to(self.encoder.device)) for batch in data.draw_segments(split, most, seed)]


first_output_per_gold = Ratio(lambda values: (values[:, 1], values[:, 0]))
"""Statistic of the ratio of two sums over texts: first outputs to gold values, the first column.

In language modelling this is the mean loss of a token: the first output of a text is the sum of its losses, and the
gold value is the number of its tokens to predict.
"""

found_of_asked = Ratio(first_output_per_gold.counts, share=True)
"""Statistic of the share of the words asked for, the first column, that are found, the second."""


def next_tokens(batch: SegmentBatch | PairBatch) -> tuple[Tensor, Tensor]:
    """Return the tokens and, as targets, the next token at each position, int64 `[batch, time]`."""
    following = batch.tokens.masked_fill(~batch.mask, IGNORED).roll(-1, 1)
    following[:, -1] = IGNORED
    return batch.tokens, following


def _label_numbers(batch: SegmentBatch, known_labels: Sequence[str]) -> Tensor:
    """Return the number of each text's label, int64 `[batch]`; raise a UserError for an unknown label."""
    labels = [str(passages[0].label) for passages in batch.passages]
    unknown = sorted(set(labels) - set(known_labels))
    if unknown:
        raise UserError(
            f"The classifier was trained on the labels {', '.join(known_labels)}, but {batch.corpus} also has "
            f"{', '.join(unknown)}. Give {setting('corpus')} a corpus with only the classifier's labels."
        )
    numbers = [known_labels.index(label) for label in labels]
    return torch.tensor(numbers, device=batch.tokens.device)


_accuracy = Ratio(lambda values: (values[:, 0] == values[:, 1:].argmax(axis=1), np.ones(len(values))), share=True)


def at_least_float32(numbers: Tensor) -> Tensor:
    """Convert numbers to float32, unless they are more precise."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))
