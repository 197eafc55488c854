"""Tasks: models that are scored on texts, with their inputs, outputs for each text, losses and scores."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jsonargparse import Namespace
from lightning_utilities.core.rank_zero import rank_zero_warn
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from attention_probing.attention import Encoder
from attention_probing.attention.ablation import (
    PIECES,
    AblatedModel,
    Ablation,
    Sources,
    partners_of_pairs,
    pieces_at_once,
)
from attention_probing.attention.heads import Heads
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import (
    ClassificationDataModule,
    PairBatch,
    PairDataModule,
    PairSplit,
    SegmentBatch,
    TextBatch,
    TextDataModule,
)
from attention_probing.datamodules.batches import LengthBatches
from attention_probing.datamodules.corpus import CorpusDataModule, data_for
from attention_probing.metrics.classification import auroc, f1_score, mcc_score
from attention_probing.metrics.statistics import Ratio, Statistic, pearson, spearman
from attention_probing.models import TransformerClassifier
from attention_probing.models.checkpoints import checkpoint_file, data_settings, read_checkpoint
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
        has_partners: True if each text has another one, whose outputs the ablation `patch` takes.
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
    has_partners: ClassVar[bool] = False

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

    def rows(self, inputs: Mapping[str, Tensor], sets: Mapping[Ablation, Sequence[Heads]]) -> dict[str, Tensor]:
        """Run the model on a batch with each set of heads ablated.

        It runs in single precision, whatever precision the measurement has.

        Args:
            inputs: Inputs of a batch, from `inputs`.
            sets: Sets of heads for each ablation.

        Returns:
            Columns by name: `gold`, the gold values `[batch]`; and for each ablation, by its name such as
            `zero`, the outputs with each of its sets ablated, one set after the other,
            `[batch, sets × width]`.
        """
        index = inputs["index"]
        with torch.autocast(index.device.type, enabled=False):
            rows = {"gold": self.gold(inputs)}
            for ablation, head_sets in sets.items():
                outputs = self.ablated_outputs(inputs, ablation, head_sets)
                rows[ablation.name] = outputs.transpose(0, 1).flatten(1)
        return rows

    def ablated_outputs(self, inputs: Mapping[str, Tensor], ablation: Ablation, sets: Sequence[Heads]) -> Tensor:
        """Run the model on a batch with each set of heads ablated, and return its outputs, `[sets, batch, width]`.

        Args:
            inputs: Inputs of a batch, from `inputs`.
            ablation: Replacement of the outputs of the ablated heads.
            sets: Sets of heads.
        """
        partners = self.partners(inputs) if ablation.kind == "patch" else None
        return self.ablated_model.run(self.outputs, inputs, ablation, sets, inputs["index"].tolist(), partners)


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
            return nn.functional.mse_loss(_precise(outputs)[:, 0], gold, reduction="none")
        return nn.functional.cross_entropy(_precise(outputs), gold, reduction="none")

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
            of_decisions = f1_score(self.positive, self.width)
        elif self.score == "mcc":
            of_decisions = mcc_score(self.width)
        else:
            raise ValueError(f"there is no score {self.score}")

        def statistic(values: Floats, weights: Floats) -> Floats:
            gold = values[:, 0]
            logits = values[:, 1:]
            return of_decisions(np.column_stack([gold, logits.argmax(1)]), weights)

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
        states = _precise(self._encoder.last_hidden(_of_model(inputs)))
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
    scaler, regression = model[0], model[1]
    weight = regression.coef_ / scaler.scale_
    bias = regression.intercept_ - weight @ scaler.mean_
    if len(bias) == 1:  # of two labels scikit-learn has one row, for the second
        weight = np.vstack([0 * weight, weight])
        bias = np.append(0.0, bias)
    return weight, bias


def _of_model(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
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
        tokens, targets = _next_tokens(batch) if self.encoder.causal else self._masked_tokens(batch)
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
        return torch.from_numpy(inputs).to(batch.tokens.device), torch.from_numpy(targets).to(batch.tokens.device)

    def gold(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return (inputs["targets"] != IGNORED).sum(1)

    def outputs(self, inputs: Mapping[str, Tensor]) -> Tensor:
        targets = inputs["targets"]
        logits = self._language_model(**_of_model(inputs)).logits
        losses = nn.functional.cross_entropy(
            _precise(logits).transpose(1, 2), targets, reduction="none", ignore_index=IGNORED
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


class MinimalPairs(Task):
    """Task of giving the acceptable sentence of a minimal pair the higher probability (Warstadt et al. 2020, §4).

    The log-probability of a sentence is the sum over its tokens after the start token; see `PairSplit`. A tie counts as
    right, so that the accuracy is `acc` of lm-evaluation-harness's `blimp_*`, where the first of equal choices wins.

    The inputs have two texts for each pair, the acceptable sentence first. Both have the index of the pair, so that the
    ablation `resample` takes the outputs for both from the same texts, and from no sentence of the pair. The outputs
    are both log-probabilities, `[pairs, 2]`, and the gold value is the index of the pair.

    A further score is `pairs.log_ratio`, the mean of log p(acceptable) − log p(unacceptable) in nats. Unlike the
    accuracy it shows a change that turns no decision. Zhang and Nanda (2024, §4) recommend the difference of two logits
    for patching; it stands here between whole sentences, as the accuracy does.

    The ablation `patch` exchanges the outputs between the two sentences of a pair. Nothing differs before the first
    token that the sentences do not share, so patching can change only the probabilities of the tokens after it.

    A masked language model gives a sentence no probability; its task is `MaskedPairs`. `from_split` chooses.

    Args:
        split: The pairs, as tokens of a decoder whose files hold a head for language modelling.

    Attributes:
        masks: True if the log-probabilities are those of masked tokens.

    Raises:
        TypeError: The pairs are tokens of a masked language model.
        UserError: The decoder's files hold no such head.
    """

    name = "minimal pairs"
    score = "pairs.accuracy"
    unit = "fraction"
    width = 2
    has_partners = True
    masks: ClassVar[bool] = False

    def __init__(self, split: PairSplit) -> None:
        if self.masks != (split.masking is not None):
            raise TypeError("MinimalPairs is for decoders, MaskedPairs for other encoders: call from_split.")
        encoder = split.encoder
        reason = lacks_language_modelling(encoder)
        if reason is not None:
            raise UserError(
                f"{reason}, which minimal pairs need. Name a decoder (gpt2) or a masked language model "
                f"(bert-base-uncased) with a language-modelling head with {setting('encoder')}."
            )
        encoder.require_interface(type(self).__name__)
        assert encoder.language_model is not None
        self._split = split
        self.pairs = split.pairs
        self.encoder = encoder
        self._language_model = encoder.language_model
        self.model = self._language_model.base_model
        self.layers = encoder.layers
        self.heads = encoder.heads
        self.vocabulary = int(self._language_model.config.vocab_size)

    @staticmethod
    def from_split(split: PairSplit) -> "MinimalPairs":
        """Return the task of some pairs: `MaskedPairs` if they are read by a masked language model."""
        return MinimalPairs(split) if split.masking is None else MaskedPairs(split)

    def inputs(self, batch: PairBatch) -> dict[str, Tensor]:
        tokens, targets = _next_tokens(batch)
        index = batch.index.repeat_interleave(2)
        return {"input_ids": tokens, "attention_mask": batch.mask.long(), "index": index, "targets": targets}

    def gold(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return inputs["index"][::2]

    def outputs(self, inputs: Mapping[str, Tensor]) -> Tensor:
        logits = self._language_model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        losses = []
        # One sentence at a time: its log-probabilities are no second tensor of the size of all logits.
        for of_sentence, targets in zip(logits, inputs["targets"], strict=True):
            losses.append(nn.functional.cross_entropy(_precise(of_sentence), targets, reduction="sum"))
        return -torch.stack(losses).view(-1, 2)

    def statistic(self) -> Statistic:
        return _first_is_more_probable

    def further_statistics(self) -> Mapping[str, tuple[Statistic, Unit]]:
        return {"pairs.log_ratio": (log_ratio, "nats")}

    def partners(self, inputs: Mapping[str, Tensor]) -> Sources:
        return partners_of_pairs(inputs["input_ids"], inputs["attention_mask"].sum(1))

    def audit_of_patch(self, items: Integers) -> dict[str, object]:
        """Return what `patch` can change of some pairs.

        Args:
            items: Indices of the pairs.

        Returns:
            Entries of the audit: the number of pairs whose sentences have different numbers of tokens, and of the
            positions in them that have no partner and so keep their own outputs; how many of the tokens that are
            predicted stand behind the first difference, so that `patch` can change their probability; and the number
            of pairs without such tokens.
        """
        batch = self._split[items.tolist()]
        _, positions = partners_of_pairs(batch.tokens, batch.lengths)
        alone = (positions < 0) & batch.mask
        lengths = batch.lengths.view(-1, 2)
        good, bad = batch.tokens.view(-1, 2, batch.tokens.size(1)).unbind(1)
        shared = (good == bad).cumprod(1).sum(1)  # tokens at the start
        behind = (lengths - 1 - shared[:, None]).clamp(min=0)
        return {
            "pairs_of_unequal_length": int((lengths[:, 0] != lengths[:, 1]).sum()),
            "positions_without_partner": int(alone.sum()),
            "tokens_patch_can_change": f"{int(behind.sum()):,} of {int((lengths - 1).sum()):,}",
            "pairs_patch_cannot_change": int((behind == 0).all(1).sum()),
        }

    def groups(self, items: Integers) -> Mapping[str, Flags]:
        """Return the pairs of each field of grammar, bool `[pairs]`."""
        fields = np.array([self.pairs[item].field for item in items])
        return {str(field): fields == field for field in np.unique(fields)}

    def draw(self, data: Any, split: Split | None, most: int, seed: int) -> list[dict[str, Tensor]]:  # noqa: ANN401
        pairs = data.splits["test"]  # the only split, whatever `split` says
        order = np.random.default_rng(seed).permutation(len(pairs))
        count = int((pairs.texts[order].cumsum() <= most).sum())
        places = order[: max(count, 1)].tolist()
        batches = LengthBatches(pairs.lengths, items=places, shuffle=False, **pairs.bounds)
        return [self.inputs(pairs[items].to(self.encoder.device)) for items in batches]


class MaskedPairs(MinimalPairs):
    """Task of giving the acceptable sentence of a minimal pair the higher pseudo-log-likelihood.

    The pseudo-log-likelihood of a sentence is the sum of the log-probabilities of its tokens, each of them masked and
    predicted from all others (Salazar et al. 2020, §2). The pieces of a rare word give each other away, which makes the
    word seem probable; so the tokens of the same word to the right are masked too by default (PLL-word-l2r of Kauf &
    Ivanova 2023). Words are those that the tokenizer cuts into pieces, as in the code of that paper and in minicons:
    `don't` is three words of BERT and one of XLM-R.

    The inputs have a text for each token to predict, the sentence with this token masked, one sentence after the other,
    with the index of the pair and

    - `sentence`: number of its sentence in the batch, 2 · pair + 1 for the unacceptable one, int64 `[texts]`. Of two
      equal sentences only the first has texts, so that they are a tie;
    - `place` and `target`: position and id of the token to predict, int64 `[texts]`.

    Logits are computed at these positions alone, unless the head reads other positions too.

    Args:
        split: The pairs, as tokens of an encoder whose files hold a head for masked language modelling.

    Raises:
        UserError: The files hold no such head, or the tokenizer has no mask token.
    """

    has_partners = False  # a sentence is read once for each token, and so is its partner, with other tokens masked
    masks = True

    def __init__(self, split: PairSplit) -> None:
        super().__init__(split)
        self._masking = split.masking
        self._most = split.bounds["max_cells"]
        self.vocabulary = split.logits_per_token
        self._skips_positions = self._can_skip_positions()
        if not self._skips_positions:
            self.vocabulary = int(self._language_model.config.vocab_size)
            self._most = max(self._most // split.longest, 1)

    @torch.inference_mode()
    def _can_skip_positions(self) -> bool:
        """Return True if the head reads no other state than that of the position whose token it predicts."""
        tokens = torch.arange(12, device=self.encoder.device).view(2, 6) % 6 + 1
        mask = torch.ones_like(tokens, dtype=torch.bool)
        inputs = self.encoder.inputs(tokens, mask, torch.zeros_like(tokens))
        place = torch.tensor([1, 4], device=tokens.device)
        expected = self._language_model(**inputs).logits[[0, 1], place]
        try:
            logits = self._logits_at(inputs, place)
        except Exception:  # of any kind, if the head cannot read one state of each text
            return False
        if logits.shape != expected.shape:
            return False
        tolerance = torch.finfo(expected.dtype).eps ** 0.5
        gap = float((logits - expected).abs().max())
        return bool(gap <= tolerance * max(1.0, float(expected.abs().max())))

    def _logits_at(self, inputs: Mapping[str, Tensor], place: Tensor) -> Tensor:
        """Return the logits at one position of each text, `[texts, vocabulary]`, computed for no other position."""
        texts = torch.arange(len(place), device=place.device)

        def keep_places(module: nn.Module, args: object, output: Any) -> None:  # noqa: ANN401 # of a Hugging Face model
            output["last_hidden_state"] = output.last_hidden_state[texts, place][:, None]

        hook = self.model.register_forward_hook(keep_places)
        try:
            logits: Tensor = self._language_model(**_of_model(inputs)).logits
        finally:
            hook.remove()
        return logits.flatten(0, 1)

    def inputs(self, batch: PairBatch) -> dict[str, Tensor]:
        to_mask = batch.words >= 0
        is_equal = (batch.tokens[::2] == batch.tokens[1::2]).all(1)
        to_mask[1::2] &= ~is_equal[:, None]
        sentence, place = to_mask.nonzero(as_tuple=True)
        tokens = batch.tokens[sentence]
        position = torch.arange(tokens.size(1), device=tokens.device)
        masked = position == place[:, None]
        if self._masking == "word_l2r":
            words = batch.words[sentence]
            is_of_word = words == words.gather(1, place[:, None])
            masked = is_of_word & (position >= place[:, None])
        mask = self.encoder.tokenizer.mask_token_id
        inputs = self.encoder.inputs(
            tokens.masked_fill(masked, mask), batch.mask[sentence], segments=torch.zeros_like(tokens)
        )
        target = tokens.gather(1, place[:, None])[:, 0]
        index = batch.index[sentence // 2]
        return {**inputs, "index": index, "sentence": sentence, "place": place, "target": target}

    def gold(self, inputs: Mapping[str, Tensor]) -> Tensor:
        pairs: Tensor = inputs["index"].unique_consecutive()  # type: ignore[no-untyped-call]
        return pairs

    def log_probabilities(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Run the model, and return the log-probability of the token to predict in each text, `[texts]`."""
        place = inputs["place"]
        if self._skips_positions:
            logits = self._logits_at(inputs, place)
        else:
            texts = torch.arange(len(place), device=place.device)
            logits = self._language_model(**_of_model(inputs)).logits[texts, place]
        return -nn.functional.cross_entropy(_precise(logits), inputs["target"], reduction="none")

    def outputs(self, inputs: Mapping[str, Tensor]) -> Tensor:
        parts = [self.log_probabilities(part) for part in self._in_parts(inputs)]
        return _sum_by_pair(torch.cat(parts)[None], inputs["sentence"])[0]

    def ablated_outputs(self, inputs: Mapping[str, Tensor], ablation: Ablation, sets: Sequence[Heads]) -> Tensor:
        parts = []
        for part in self._in_parts(inputs):
            index = part["index"].tolist()
            parts.append(self.ablated_model.run(self.log_probabilities, part, ablation, sets, index))
        return _sum_by_pair(torch.cat(parts, 1), inputs["sentence"])

    def _in_parts(self, inputs: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Yield the inputs of as many texts at a time as the datamodule has tokens in a batch."""
        texts, longest = inputs["input_ids"].shape
        at_once = max(self._most // longest, 1)
        for first in range(0, texts, at_once):
            yield {name: tensor[first : first + at_once] for name, tensor in inputs.items()}

    def draw(self, data: Any, split: Split | None, most: int, seed: int) -> list[dict[str, Tensor]]:  # noqa: ANN401
        parts: list[dict[str, Tensor]] = []
        for inputs in super().draw(data, split, most, seed):
            parts.extend(self._in_parts(inputs))
        return parts


def _sum_by_pair(log_probabilities: Tensor, sentence: Tensor) -> Tensor:
    """Sum log-probabilities of tokens by sentence, and return those of both sentences of each pair, `[sets, pairs, 2]`.

    Args:
        log_probabilities: `[sets, texts]`.
        sentence: Number of the sentence of each text; see `MaskedPairs`.
    """
    pairs = int(sentence.max()) // 2 + 1
    sums = log_probabilities.new_zeros(len(log_probabilities), 2 * pairs)
    sums.index_add_(1, sentence, log_probabilities)
    good, bad = sums.view(-1, pairs, 2).unbind(2)
    has_texts = sentence.bincount(minlength=2 * pairs)[1::2] > 0
    return torch.stack([good, bad.where(has_texts, good)], 2)


first_output_per_gold = Ratio(lambda values: (values[:, 1], values[:, 0]))
"""Statistic of the ratio of two sums over texts: first outputs to gold values, the first column.

In language modelling this is the mean loss of a token: the first output of a text is the sum of its losses, and the
gold value is the number of its tokens to predict.
"""

log_ratio = Ratio(lambda values: (values[:, 1] - values[:, 2], np.ones(len(values))))
"""Statistic of the mean difference of two outputs of each text, the second and third column, such as log p(good) − log
p(bad)."""

found_of_asked = Ratio(first_output_per_gold.counts, share=True)
"""Statistic of the share of the words asked for, the first column, that are found, the second."""


def _next_tokens(batch: SegmentBatch | PairBatch) -> tuple[Tensor, Tensor]:
    """Return the tokens and, as targets, the next token at each position, int64 `[batch, time]`."""
    following = batch.tokens.masked_fill(~batch.mask, IGNORED).roll(-1, 1)
    following[:, -1] = IGNORED
    return batch.tokens, following


def _label_numbers(batch: SegmentBatch, known: Sequence[str]) -> Tensor:
    """Return the number of each text's label, int64 `[batch]`; raise a UserError for an unknown label."""
    labels = [str(passages[0].label) for passages in batch.passages]
    strange = sorted(set(labels) - set(known))
    if strange:
        raise UserError(
            f"The classifier was trained on the labels {', '.join(known)}, but {batch.corpus} also has "
            f"{', '.join(strange)}. Give {setting('corpus')} a corpus with only the classifier's labels."
        )
    return torch.tensor([known.index(label) for label in labels], device=batch.tokens.device)


_accuracy = Ratio(lambda values: (values[:, 0] == values[:, 1:].argmax(axis=1), np.ones(len(values))), share=True)

_first_is_more_probable = Ratio(
    lambda values: ((values[:, 1] >= values[:, 2]).astype(np.float64), np.ones(len(values))), share=True
)


def _precise(numbers: Tensor) -> Tensor:
    """Convert numbers to float32, unless they are more precise."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


def load_task(
    measurement: str, checkpoint: Path | None, data: CorpusDataModule[Any], device: torch.device, seed: int
) -> Task:
    """Load the model of a measurement that scores it with attention heads ablated.

    With a checkpoint the task is the classification that the model was trained for. Without a checkpoint the task is
    language modelling, on texts (`TextDataModule`), or minimal pairs (`PairDataModule`).

    Args:
        measurement: Class name of the measurement, for messages.
        checkpoint: Checkpoint of a `TransformerClassifier`; None for language modelling or minimal pairs.
        data: Datamodule of the texts.
        device: Device of the model.
        seed: Seed of masked tokens.

    Raises:
        UserError: The model and the data do not fit.
    """
    if checkpoint is not None:
        labelled = data_for(f"{measurement} with a checkpoint", ClassificationDataModule, data)
        # Two copies of a batch at least run at once.
        labelled.eval_tokens = PIECES.get(device.type, PIECES["cuda"]) // 2
        return Classification.from_data(checkpoint, labelled, device)
    if isinstance(data, PairDataModule):
        return MinimalPairs.from_split(data.splits["test"])
    texts = data_for(f"{measurement} without a checkpoint", TextDataModule, data)
    if len(texts.encoders) > 1 or texts.quantity != "attention":
        raise UserError(
            f"{measurement} replaces the attention of one encoder. Leave out `random_init`, `before` and `quantity`."
        )
    return LanguageModelling(texts.encoders["given"], seed)


def data_of_checkpoint(arguments: object, given: Namespace | None) -> Namespace | None:
    """Return the given data settings; without any, those in the checkpoint that a measurement or its arguments name."""
    checkpoint = getattr(arguments, "checkpoint", None)
    if given is not None or checkpoint is None:
        return given
    path = checkpoint_file(checkpoint)
    return data_settings(path, read_checkpoint(path))


def has_split(data: CorpusDataModule[Any], split: Split) -> bool:
    """Return False if the texts lack a split: minimal pairs have one split alone."""
    if isinstance(data, TextDataModule):
        return data.has_split(split)
    return not isinstance(data, PairDataModule)


def draw_texts(task: Task, data: CorpusDataModule[Any], split: Split, most: int, seed: int) -> list[dict[str, Tensor]]:
    """Draw random texts of a split, and return batches of the model's inputs for them.

    All processes draw the same texts.

    Args:
        task: The task.
        data: Datamodule of the texts.
        split: The split; if texts for language modelling or minimal pairs lack it, all test data are used.
        most: Largest number of texts.
        seed: Seed of the draw.
    """
    if has_split(data, split):
        return task.draw(data, split, most, seed)
    if not isinstance(data, PairDataModule):
        rank_zero_warn(
            f"The data have no {split} split, so the replacements for ablated heads are computed on texts of the "
            f"test split, which are scored too. To keep them apart, give corpora with a {split} split."
        )
    return task.draw(data, None, most, seed)
