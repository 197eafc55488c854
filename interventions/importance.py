"""How much the loss depends on attention to delimiters, punctuation and the rest (Clark et al. 2019, §3.3)."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from analysis import Analysis
from analysis.tables import by_class, head_map
from attention import Encoder
from attention.capture import intervening
from corpora.sentence import CorpusError
from datamodules import SegmentBatch, TextDataModule
from interventions.task import Classification, LanguageModelling, MeanStateClassification, Task
from metrics.moments import Means, Moments
from processes.ranks import run_seed
from results import Curves, Estimate, Floats, Result, Table, Unit, UserError, on_one_scale
from results.errors import check_numbers
from training import recorded_gradients
from training.checkpoints import checkpoint_file

CLASSES = ("start", "end", "punctuation", "rest")
"""Of tokens that are attended to: the two kinds of delimiters, `.` and `,`, and all others."""

MEASURED: Mapping[str, Unit] = {"loss": "nats", "accuracy": "fraction"}

_CELLS = 1 << 25  # weights of all layers, or logits, that one pass keeps: 128 MB
_BITS = 48  # gradients are tiny; their sum over half of the inputs may reach 2¹⁵


def attention_gradients(task: Task, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return loss and accuracy of each text, `[batch]`, and the derivative of the loss by the weights of each layer.

    The derivatives are `[batch, heads, from, to]`. A weight is free in its own layer; through it the loss depends on
    later layers as it does in the model.
    """
    weights: list[Tensor] = []

    def keep(layer: int, found: Tensor, values: Tensor) -> tuple[Tensor, None]:
        weights.append(found if layer else found.detach().requires_grad_())
        return weights[-1], None

    with intervening(keep):
        outputs, gold = task.outputs(inputs), task.gold(inputs)
        losses = task.losses(outputs, gold)
    accuracies = task.accuracies(outputs, gold)
    return losses.detach(), accuracies.detach(), list(torch.autograd.grad(losses.nansum(), weights))


def class_means(gradient: Tensor, real: Tensor, classes: Tensor, allowed: Tensor) -> Tensor:
    """Return mean |gradient| over the rows of real tokens and those columns of each class that they may attend to.

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
    """Mark the tokens of each of `CLASSES`, bool `[batch, classes, time]`."""
    named = [batch.start, batch.end, batch.punctuation]
    rest = batch.mask & ~torch.stack(named).any(0)
    return torch.stack([*named, rest], 1)


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
        UserError: the encoder's files hold no head for language modelling, and the texts are not of one labelled corpus
            with a train split.
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
        self._task = self._task_of(data, encoder)
        self._by_head = Moments(2, (encoder.layers, encoder.heads, len(CLASSES)), "nats", _BITS, (0, np.inf))
        self._by_layer = Moments(2, (encoder.layers, len(CLASSES)), "nats", _BITS, (0, np.inf))
        self._losses = Moments(2, (2,), tuple(MEASURED.values()), bounds=(0, [np.inf, 1.0]))

    def _task_of(self, data: TextDataModule, encoder: Encoder) -> Task:
        seed, name = run_seed(self.seed), encoder.source.spec.name
        if self.classifier is not None and encoder.source.spec.weights == "pretrained":
            return Classification.from_encoder(self.classifier, encoder)
        if encoder.language_model is not None:
            return LanguageModelling(encoder, seed)
        if len(data.names) > 1:
            raise UserError(
                f"{type(self).__name__}: {name} has no head for language modelling, and a classifier is of one corpus, "
                f"not of {', '.join(data.names)}. Name one in --data.init_args.corpora."
            )
        try:
            return MeanStateClassification(encoder, data.drawn("train", self.texts, seed))
        except CorpusError as error:
            reason = str(error).partition(". ")[0]
            raise UserError(
                f"{type(self).__name__}: {name} has no head for language modelling, so that a classifier is fitted to "
                f"labelled texts; {reason}. Read labelled texts with a train split (--data.init_args.corpora sst2), or "
                f"name an encoder whose files hold such a head (bert-base-uncased)."
            ) from error

    def end(self, batch: SegmentBatch) -> None:
        time = batch.tokens.size(1)
        cells = time * max(self._encoder.layers * self._encoder.heads * time, self._task.vocabulary)
        columns = {**self._task.inputs(batch), "real": batch.mask, "classes": class_masks(batch)}
        with recorded_gradients():
            # What was made in inference mode takes part in no gradient; a copy does.
            parts = {name: torch.split(one.clone(), max(1, _CELLS // cells)) for name, one in columns.items()}
            for place in range(len(parts["index"])):
                self._measure({name: part[place] for name, part in parts.items()})

    def _measure(self, inputs: Mapping[str, Tensor]) -> None:
        real, group = inputs["real"], inputs["index"] % 2
        losses, accuracies, found = attention_gradients(self._task, inputs)
        allowed = self._encoder.allowed(real)
        each = [class_means(one, real, inputs["classes"], allowed.at(layer)) for layer, one in enumerate(found)]
        means = torch.stack(each, 1)
        means[losses.isnan()] = torch.nan
        self._by_head.update(group, means)
        self._by_layer.update(group, means.mean(2))
        self._losses.update(group, torch.stack([losses, accuracies], 1))

    def by_head(self) -> Mapping[str, Means]:
        """Return mean |∂L/∂α| of the weights to each class."""
        means = self._by_head.compute()
        return {f"importance_{name}": means.at(place) for place, name in enumerate(CLASSES)}

    def result(self, others: Mapping[str, Analysis]) -> Result:
        found, layers = self._by_head.compute(), self._by_layer.compute().over()
        heads = {name: found.at(place).over() for place, name in enumerate(CLASSES)}
        losses = self._losses.compute()
        measured = {name: losses.at(place).over()[()] for place, name in enumerate(MEASURED)}
        present = {place: name for place, name in enumerate(CLASSES) if heads[name].inputs.any()}
        numbers, label = list(range(1, len(layers.value) + 1)), "mean |∂L/∂α| (nats)"
        maps = {
            f"importance_{name}": head_map(f"Importance of attention to {name}", heads[name].value, label, "nats")
            for name in present.values()
        }
        curves = Curves(
            title="Importance of attention, by what it goes to",
            x_label="layer",
            y_label=label,
            lines={name: (numbers, layers.value[:, place].tolist()) for place, name in present.items()},
        )
        task = self._task
        fitted = {"classifier_texts": task.texts} if isinstance(task, MeanStateClassification) else {}
        scores = {f"{self.name}.{name}": one for name, one in measured.items()}
        return Result(
            experiment=self.name,
            scores=scores,
            headline=list(scores),
            tables={
                "importance": Table(by_class(heads, "importance"), {"importance": "nats"}, interval="importance"),
                "importance_layers": _layer_table(layers),
            },
            figures={"importance": curves, **on_one_scale(maps)},
            audit={"loss": task.name, "inputs": int(next(iter(measured.values())).inputs), **fitted},
        )


def _layer_table(layers: Estimate[Floats]) -> Table:
    """Make a table with a row for each layer and class, of an estimate `[layers, classes]`."""
    rows = [
        (layer + 1, name, *layers[layer, place].named("").values(), int(layers.inputs[layer, place]))
        for layer in range(len(layers.value))
        for place, name in enumerate(CLASSES)
    ]
    frame = pd.DataFrame(rows, columns=["layer", "class", "importance", "low", "high", "inputs"])
    answer = ("layer", "class", "importance")
    return Table(frame, {"importance": "nats"}, interval="importance", answer=answer)
