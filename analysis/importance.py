"""How much the loss depends on attention to delimiters, punctuation and the rest (Clark et al. 2019, §3.3)."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from analysis.base import Analysis, AnalysisError, ByHead
from analysis.tables import by_class, head_map
from attention import Encoder
from attention.capture import intervening
from corpora.sentence import CorpusError
from datamodules import SegmentBatch, TextDataModule
from metrics.moments import Interval, Moments
from models import TransformerClassifier
from processes.ranks import run_seed
from results import Curves, Estimate, Result, Table, Unit, on_one_scale
from results.errors import check_numbers
from training import recorded_gradients
from training.checkpoints import checkpoint_file

CLASSES = ("start", "end", "punctuation", "rest")
"""Of tokens that are attended to: the two kinds of delimiters, `.` and `,`, and all others."""

MASKED, HIDDEN, REPLACED = 0.15, 0.8, 0.1
"""Share of the tokens that are masked, and of these the shares that become the mask and a random token (Devlin et al.
2019, §3.1); the others stay as they are."""

MEASURED: Mapping[str, Unit] = {"loss": "nats", "accuracy": "fraction"}

IGNORED = -100  # what PyTorch's cross-entropy leaves out

_C = 0.01  # of 1, .1, .01, .001 and .0003 that of the lowest loss on dev of SST-2, with 2,000 texts and with all
_CELLS = 1 << 25  # weights of all layers, or logits, that one pass keeps: 128 MB
_BITS = 48  # gradients are tiny; their sum over half of the inputs may reach 2¹⁵


class Loss(Protocol):
    """What is lost on each input, by which gradients reach the attention weights."""

    name: str
    width: int  # logits of one token

    def prepare(self, batch: SegmentBatch) -> tuple[Tensor, Tensor]:
        """The tokens that are read, int64 `[batch, time]`, and what is to be predicted, `[batch, …]`."""

    def of(self, inputs: Mapping[str, Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
        """The loss in nats and the accuracy of each input, `[batch]`; nan where there is nothing to predict."""


def gradients(losses: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """What `losses` gives, and the derivative of its first part by the weights of each layer.

    That part is the losses `[batch]` of one pass, and the derivatives are `[batch, heads, from, to]`.

    A weight is free in its own layer; through it the loss depends on later layers as it does in the model.
    """
    weights: list[Tensor] = []

    def keep(layer: int, found: Tensor, values: Tensor) -> tuple[Tensor, None]:
        weights.append(found if layer else found.detach().requires_grad_())
        return weights[-1], None

    with intervening(keep):
        each, accuracy = losses()
    return each.detach(), accuracy.detach(), list(torch.autograd.grad(each.nansum(), weights))


def class_means(gradient: Tensor, real: Tensor, classes: Tensor, allowed: Tensor) -> Tensor:
    """Mean |gradient| over the rows of real tokens and those columns of each class that they may attend to.

    Args:
        gradient: `[batch, heads, from, to]`.
        real: bool `[batch, tokens]`.
        classes: bool `[batch, classes, tokens]`.
        allowed: bool `[batch, 1, from, to]`; other weights do not exist, and are left out.

    Returns:
        Float64 `[batch, heads, classes]`, nan where an input has no token of the class.
    """
    cells = (real[:, :, None] & allowed[:, 0]).double()
    columns = classes.double().transpose(1, 2)
    sums = (gradient.double().abs() * cells[:, None]).sum(2) @ columns
    return sums / (cells.sum(1, keepdim=True) @ columns)


def class_masks(batch: SegmentBatch) -> Tensor:
    """Which tokens are of each of `CLASSES`, bool `[batch, classes, time]`."""
    named = [batch.start, batch.end, batch.punctuation]
    rest = batch.mask & ~torch.stack(named).any(0)
    return torch.stack([*named, rest], 1)


class MaskedLoss:
    """Cross-entropy of masked tokens, as in BERT's training; the masks of an input depend on its number alone."""

    name = "masked tokens"

    def __init__(self, encoder: Encoder, seed: int) -> None:
        assert encoder.language_model is not None
        if encoder.tokenizer.mask_token_id is None:
            raise AnalysisError(
                f"{encoder.source.spec.name}: its tokenizer has no mask, so it cannot predict masked tokens. Choose "
                f"another encoder."
            )
        self._model, self._seed = encoder.language_model, seed
        self._mask, self._ordinary = encoder.tokenizer.mask_token_id, encoder.ordinary
        self.width = self._model.config.vocab_size

    def prepare(self, batch: SegmentBatch) -> tuple[Tensor, Tensor]:
        tokens, words, index = (one.cpu().numpy() for one in (batch.tokens, batch.words, batch.index))
        read, targets = tokens.copy(), np.full_like(tokens, IGNORED)
        for row, number in enumerate(index):
            random = np.random.default_rng([self._seed, int(number)])
            places = np.flatnonzero(words[row] >= 0)
            chosen = random.choice(places, max(1, round(MASKED * len(places))), replace=False)
            targets[row, chosen] = tokens[row, chosen]
            fate = random.random(len(chosen))
            others = random.choice(self._ordinary, len(chosen))
            read[row, chosen] = np.select(
                [fate < HIDDEN, fate < HIDDEN + REPLACED], [self._mask, others], tokens[row, chosen]
            )
        return torch.from_numpy(read).to(batch.tokens.device), torch.from_numpy(targets).to(batch.tokens.device)

    def of(self, inputs: Mapping[str, Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
        return _token_losses(self._model(**inputs).logits, targets)


class NextTokenLoss:
    """Cross-entropy of every token after the first."""

    name = "next tokens"

    def __init__(self, encoder: Encoder) -> None:
        assert encoder.language_model is not None
        self._model = encoder.language_model
        self.width = self._model.config.vocab_size

    def prepare(self, batch: SegmentBatch) -> tuple[Tensor, Tensor]:
        following = batch.tokens.masked_fill(~batch.mask, IGNORED).roll(-1, 1)
        following[:, -1] = IGNORED
        return batch.tokens, following

    def of(self, inputs: Mapping[str, Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
        return _token_losses(self._model(**inputs).logits, targets)


class LabelLoss:
    """Cross-entropy of a logistic regression on the mean of the last hidden states, delimiters included.

    Args:
        encoder: whose hidden states are read.
        train: labelled texts that the regression is fitted to.

    Raises:
        AnalysisError: a text has no label, or all have the same.
    """

    name = "labels"

    def __init__(self, encoder: Encoder, train: Iterator[SegmentBatch]) -> None:
        self._encoder = encoder
        features: list[Tensor] = []
        labels: list[str | None] = []
        for batch in train:
            on_device = batch.to(encoder.device)
            with torch.inference_mode():
                inputs = encoder.inputs(on_device.tokens, on_device.mask, on_device.segments)
                features.append(_mean(encoder.last_hidden(inputs), on_device.mask).cpu())
            labels += [passages[0].label for passages in batch.passages]
        self.labels = sorted({label for label in labels if label is not None})
        self.texts = len(labels)
        if None in labels or len(self.labels) < 2:
            found = "without a label" if None in labels else f"all labelled {' '.join(self.labels) or 'nothing'}"
            raise AnalysisError(
                f"Importance: {encoder.source.spec.name} has no head for language modelling, and the texts to fit a "
                f"classifier to are {found}. Read texts of two labels or more (--data.init_args.corpora sst2), or name "
                f"an encoder whose files hold such a head (--data.init_args.encoder.name bert-base-uncased)."
            )
        model = make_pipeline(StandardScaler(), LogisticRegression(C=_C, max_iter=1000))
        model.fit(torch.cat(features).double().numpy(), [self.labels.index(str(label)) for label in labels])
        scaler, regression = model[0], model[1]
        weight = regression.coef_ / scaler.scale_
        bias = regression.intercept_ - weight @ scaler.mean_
        if len(self.labels) == 2:  # scikit-learn has one row, that of the second
            weight, bias = np.vstack([0 * weight, weight]), np.append(0.0, bias)
        self._weight = torch.from_numpy(weight).to(encoder.device)
        self._bias = torch.from_numpy(bias).to(encoder.device)
        self.width = len(self.labels)

    def prepare(self, batch: SegmentBatch) -> tuple[Tensor, Tensor]:
        return batch.tokens, _labels_of(batch, self.labels)

    def of(self, inputs: Mapping[str, Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
        mean = _mean(self._encoder.last_hidden(inputs), inputs["attention_mask"].bool())
        logits = mean @ self._weight.T.to(mean.dtype) + self._bias.to(mean.dtype)
        return nn.functional.cross_entropy(logits, targets, reduction="none"), (logits.argmax(1) == targets).float()


class CheckpointLoss:
    """Cross-entropy of a trained `TransformerClassifier`, whose own attention it is then about.

    Raises:
        AnalysisError: it has other layers, heads or pieces than the encoder.
        TrainingError: the file is damaged, or no such checkpoint.
    """

    name = "labels, by a checkpoint"

    def __init__(self, encoder: Encoder, path: Path) -> None:
        model = TransformerClassifier.load_from_checkpoint(path, encoder.device).requires_grad_(False)
        self._classifier, self.labels = model.classifier, list(model.sizes.labels)
        self.width = len(self.labels)
        pieces = model.sizes.vocabulary.words
        own = tuple(encoder.tokenizer.convert_ids_to_tokens(list(range(len(pieces)))))
        shapes = [(one.layers, one.heads) for one in (encoder, self._classifier)]
        if shapes[0] != shapes[1] or pieces != tuple(piece or "" for piece in own):
            raise AnalysisError(
                f"Importance: {path} is a classifier on another encoder than {encoder.source.spec.name}, which reads "
                f"the texts. Name that of the classifier with --data.init_args.encoder.name."
            )

    def prepare(self, batch: SegmentBatch) -> tuple[Tensor, Tensor]:
        return batch.tokens, _labels_of(batch, self.labels)

    def of(self, inputs: Mapping[str, Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
        tokens, real = inputs["input_ids"], inputs["attention_mask"].bool()
        segments = inputs.get("token_type_ids", torch.zeros_like(tokens))
        logits = _precise(self._classifier.logits(tokens, real, segments))
        return nn.functional.cross_entropy(logits, targets, reduction="none"), (logits.argmax(1) == targets).float()


def _labels_of(batch: SegmentBatch, known: list[str]) -> Tensor:
    """The number of each text's label, int64 `[batch]`; an AnalysisError for one that is not known."""
    labels = [str(passages[0].label) for passages in batch.passages]
    if strange := sorted(set(labels) - set(known)):
        raise AnalysisError(
            f"Importance: the classifier knows the labels {', '.join(known)}, and {batch.corpus} has "
            f"{', '.join(strange)} too. Read texts with these labels."
        )
    return torch.tensor([known.index(label) for label in labels], device=batch.tokens.device)


def _mean(hidden: Tensor, real: Tensor) -> Tensor:
    """The mean `[batch, size]` of the hidden states of real tokens."""
    return (_precise(hidden) * real[:, :, None]).sum(1) / real.sum(1, keepdim=True)


def _precise(numbers: Tensor) -> Tensor:
    """In float32 or more, whatever the weights are."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


def _token_losses(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean loss and accuracy `[batch]` over the tokens to predict, of logits `[batch, time, vocabulary]`."""
    losses = nn.functional.cross_entropy(
        _precise(logits).transpose(1, 2), targets, reduction="none", ignore_index=IGNORED
    )
    right = (logits.argmax(2) == targets).float()
    count = (targets != IGNORED).sum(1)
    return losses.sum(1) / count, right.sum(1) / count


class Importance(Analysis):
    """Mean |∂L/∂α| by the class of the token that is attended to, for every head and layer.

    L is the loss of each input under the head for language modelling that the encoder's files hold: the mean over 15 %
    of its tokens, which are masked, or over the next tokens. An encoder without such a head reads labelled texts: L is
    the cross-entropy of a logistic regression on the mean of the last hidden states, fitted to the train split of the
    same corpus; or that of a trained classifier, with its own attention.

    The means are over the rows of all real tokens and the columns of the class that these may attend to in the layer,
    and then over inputs that have a token of the class.

    Args:
        classifier: checkpoint of a `TransformerClassifier` on this encoder, whose loss is taken instead; the texts must
            have its labels. Not for random weights beside it.
        train: how many texts of the train split the regression is fitted to, drawn at random.
        seed: of the masks, together with the number of each input, and of that drawing; None for that of the run.

    Raises:
        AnalysisError: the encoder's files hold no head for language modelling, and the texts are not of one labelled
            corpus with a train split.
    """

    name = "importance"

    def __init__(self, classifier: str | None = None, train: int = 2000, seed: int | None = None) -> None:
        super().__init__()
        check_numbers(self, least=1, train=train)
        check_numbers(self, least=0, seed=seed)
        self.classifier = None if classifier is None else checkpoint_file(classifier)
        self.texts, self.seed = train, seed

    def begin(self, data: TextDataModule, encoder: Encoder) -> None:
        self._encoder = encoder
        self._loss = self._loss_of(data, encoder)
        self._by_head = Moments(2, (encoder.layers, encoder.heads, len(CLASSES)), _BITS, (0, np.inf))
        self._by_layer = Moments(2, (encoder.layers, len(CLASSES)), _BITS, (0, np.inf))
        self._losses = Moments(2, (2,), bounds=(0, [np.inf, 1.0]))  # of MEASURED

    def _loss_of(self, data: TextDataModule, encoder: Encoder) -> Loss:
        seed = run_seed(self.seed)
        if self.classifier is not None and encoder.source.spec.weights == "pretrained":
            return CheckpointLoss(encoder, self.classifier)
        if encoder.language_model is not None:
            return NextTokenLoss(encoder) if encoder.causal else MaskedLoss(encoder, seed)
        if len(data.names) > 1:
            raise AnalysisError(
                f"{type(self).__name__}: {encoder.source.spec.name} has no head for language modelling, and a "
                f"classifier is of one corpus, not of {', '.join(data.names)}. Name one in --data.init_args.corpora."
            )
        try:
            return LabelLoss(encoder, data.drawn("train", self.texts, seed))
        except CorpusError as error:
            reason = str(error).partition(". ")[0]
            raise AnalysisError(
                f"{type(self).__name__}: {encoder.source.spec.name} has no head for language modelling, so that a "
                f"classifier is fitted to labelled texts; {reason}. Read labelled texts with a train split "
                f"(--data.init_args.corpora sst2), or name an encoder whose files hold such a head (bert-base-uncased)."
            ) from error

    def end(self, batch: SegmentBatch) -> None:
        tokens, targets = self._loss.prepare(batch)
        time = tokens.size(1)
        cells = time * max(self._encoder.layers * self._encoder.heads * time, self._loss.width)
        columns = (tokens, targets, batch.mask, batch.segments, class_masks(batch), batch.index % 2)
        with recorded_gradients():
            # What was made in inference mode takes part in no gradient; a copy does.
            parts = [torch.split(column.clone(), max(1, _CELLS // cells)) for column in columns]
            for rows in zip(*parts, strict=True):
                self._measure(*rows)

    def _measure(
        self, tokens: Tensor, targets: Tensor, real: Tensor, segments: Tensor, classes: Tensor, group: Tensor
    ) -> None:
        inputs = self._encoder.inputs(tokens, real, segments)
        losses, accuracy, found = gradients(lambda: self._loss.of(inputs, targets))
        allowed = self._encoder.allowed(real)
        each = [class_means(one, real, classes, allowed.at(layer)) for layer, one in enumerate(found)]
        means = torch.stack(each, 1)
        means[losses.isnan()] = torch.nan
        self._by_head.update(group, means)
        self._by_layer.update(group, means.mean(2))
        self._losses.update(group, torch.stack([losses, accuracy], 1))

    def by_head(self) -> Mapping[str, ByHead]:
        """Mean |∂L/∂α| of the weights to each class."""
        means = self._by_head.compute()
        return {f"importance_{name}": ByHead.of(means.at(place), "nats") for place, name in enumerate(CLASSES)}

    def result(self, others: Mapping[str, Analysis]) -> Result:
        found, layers = self._by_head.compute(), self._by_layer.compute().over()
        heads = {name: found.at(place).over() for place, name in enumerate(CLASSES)}
        measured = self._losses.compute().over()
        present = [place for place, name in enumerate(CLASSES) if heads[name].inputs.any()]
        numbers = list(range(1, len(layers.value) + 1))
        maps = {
            f"importance_{CLASSES[place]}": head_map(
                f"Importance of attention to {CLASSES[place]}",
                heads[CLASSES[place]].value,
                "mean |∂L/∂α| (nats)",
                "nats",
            )
            for place in present
        }
        curves = Curves(
            title="Importance of attention, by what it goes to",
            x_label="layer",
            y_label="mean |∂L/∂α| (nats)",
            lines={CLASSES[place]: (numbers, layers.value[:, place].tolist()) for place in present},
        )
        fitted = {"classifier_texts": self._loss.texts} if isinstance(self._loss, LabelLoss) else {}
        return Result(
            experiment=self.name,
            scores={
                f"{self.name}.{name}": Estimate(*(float(number[place]) for number in measured[:3]), unit=unit)
                for place, (name, unit) in enumerate(MEASURED.items())
            },
            headline=[f"{self.name}.{name}" for name in MEASURED],
            tables={
                "importance": Table(by_class(heads, "importance"), {"importance": "nats"}, interval="importance"),
                "importance_layers": _layer_table(layers),
            },
            figures={"importance": curves, **on_one_scale(maps)},
            audit={"loss": self._loss.name, "inputs": int(measured.inputs[0]), **fitted},
        )


def _layer_table(layers: Interval) -> Table:
    """A row for each layer and class, of an interval `[layers, classes]`."""
    rows = [
        (layer + 1, name, *(float(number[layer, place]) for number in layers[:3]), int(layers.inputs[layer, place]))
        for layer in range(len(layers.value))
        for place, name in enumerate(CLASSES)
    ]
    frame = pd.DataFrame(rows, columns=["layer", "class", "importance", "low", "high", "inputs"])
    answer = ("layer", "class", "importance")
    return Table(frame, {"importance": "nats"}, interval="importance", answer=answer)
