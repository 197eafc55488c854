"""Importance for the loss of attention to delimiters, punctuation and other tokens (Clark et al. 2019, §3.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor

from attention_probing.attention.capture import intervening
from attention_probing.datamodules import SegmentBatch
from attention_probing.measures.by_head import HeadMeans, by_class, by_name, head_rows
from attention_probing.measures.contract import MapMeasure
from attention_probing.measures.task import Classification, LanguageModelling, MeanStateClassification, Task
from attention_probing.metrics.moments import Means, Moments
from attention_probing.models import recorded_gradients
from attention_probing.models.checkpoints import checkpoint_file
from attention_probing.models.integrated_gradients import integrate_gradients
from attention_probing.results import (
    Curves,
    Estimate,
    Figure,
    Floats,
    Result,
    Table,
    Unit,
    UserError,
    fill_sentence,
    format_estimate,
    on_one_scale,
)
from attention_probing.results.errors import setting
from attention_probing.results.heads import head_map
from attention_probing.results.options import Positive, checked
from attention_probing.results.progress import Progress
from attention_probing.results.sentences import clear_largest

TOKEN_CLASSES = ("start", "end", "punctuation", "first", "rest")
"""Classes of tokens that receive attention: the two kinds of delimiters, `.` and `,`, a first token that is none of
them, and all others."""

LOSS_UNITS: Mapping[str, Unit] = {"loss": "nats", "accuracy": "fraction"}
"""Units of the numbers of each input beside its gradients."""

SYMBOLS = {"gradient": "|∂L/∂α|", "integrated_gradients": "|α ∫ ∂L/∂α|"}
"""Formula of the importance of a weight by each method."""

COMPLETENESS = ("change", "incompleteness")
"""Numbers of each input and layer that tell if integrated gradients are complete: the absolute change of the loss
without the attention of the layer, and the absolute difference of this change from the sum of the attributions."""

INCOMPLETE = 0.05
"""Incompleteness, as a share of the change of the loss, above which there is a warning."""

FITTED = 2000
"""Random texts of the train split for the logistic regression."""

_INTEGRATED = "Integrated gradients of a batch, inputs in each layer"
_CELLS = 1 << 25  # weights of all layers, or logits, in memory during one pass: 128 MB


def attention_gradients(task: Task, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return the loss and accuracy of each text, and the gradient of the loss by each attention weight.

    Each weight is a free variable that the softmax does not constrain. Later layers depend on it as in
    the model.

    Args:
        task: The model and its loss.
        inputs: Inputs of a batch, from `Task.inputs`.

    Returns:
        Loss of each text `[batch]`; accuracy of each text `[batch]`; and for each layer the gradient
        of the loss with respect to its weights, `[batch, heads, from, to]`.
    """
    weights: list[Tensor] = []

    def keep(layer: int, weights_of_layer: Tensor, values: Tensor) -> tuple[Tensor, None]:
        if layer == 0:
            weights_of_layer = weights_of_layer.detach().requires_grad_()
        weights.append(weights_of_layer)
        return weights_of_layer, None

    with intervening(keep):
        outputs = task.outputs(inputs)
        gold = task.gold(inputs)
        losses = task.losses(outputs, gold)
    accuracies = task.accuracies(outputs, gold)
    gradients = torch.autograd.grad(losses.nansum(), weights)
    return losses.detach(), accuracies.detach(), list(gradients)


@dataclass(frozen=True, eq=False)
class IntegratedAttention:
    """Integrated gradients of the loss by the attention weights of a layer, and how complete they are.

    Attributes:
        attributions: Part of each weight in the loss, `[batch, heads, from, to]`.
        change: Loss of each text minus its loss without the attention of the layer, `[batch]`.
        errors: Sum of the attributions of each text minus this change, `[batch]`.
    """

    attributions: Tensor
    change: Tensor
    errors: Tensor


def integrated_attention(
    task: Task, inputs: Mapping[str, Tensor], weights: Tensor, layer: int, points: int
) -> IntegratedAttention:
    """Return the integrated gradients of the loss of each text by the attention weights of one layer.

    The path leads from zero weights to the real ones, in this layer alone, as in Hao et al. (2021, §3). Later layers
    depend on it as in the model.

    Args:
        task: The model and its loss.
        inputs: Inputs of a batch, from `Task.inputs`.
        weights: Attention weights of the layer, `[batch, heads, from, to]`.
        layer: The layer, from 0.
        points: Number of points on the path.
    """

    def losses(imposed: Tensor) -> Tensor:
        def impose(number: int, real: Tensor, values: Tensor) -> tuple[Tensor, None]:
            return (imposed if number == layer else real), None

        with intervening(impose):
            return task.losses(task.outputs(inputs), task.gold(inputs))

    nothing = torch.zeros_like(weights)
    attributions, errors = integrate_gradients(losses, weights, nothing, points=points)
    with torch.no_grad():
        change = losses(weights) - losses(nothing)
    return IntegratedAttention(attributions, change, errors)


def class_means(gradient: Tensor, real: Tensor, classes: Tensor, allowed: Tensor) -> Tensor:
    """Return the mean absolute gradient over the attention weights from all real tokens to the tokens of each class.

    Args:
        gradient: Gradient of the loss, or its integral times the weight, `[batch, heads, from, to]`.
        real: Bool `[batch, tokens]`, True for tokens other than padding.
        classes: Bool `[batch, classes, tokens]`, tokens of each class.
        allowed: Bool `[batch, 1, from, to]`, True for weights that no attention mask hides; others are left
            out.

    Returns:
        Float64 `[batch, heads, classes]`, nan where an input has no token of the class.
    """
    cells = (real[:, :, None] & allowed[:, 0]).double()
    columns = classes.double().transpose(1, 2)
    sums = (gradient.double().abs() * cells[:, None]).sum(2) @ columns
    return sums / (cells.sum(1, keepdim=True) @ columns)


def class_masks(batch: SegmentBatch) -> Tensor:
    """Return bool `[batch, classes, time]`, True for the tokens of each of the `TOKEN_CLASSES`.

    The classes are start delimiters, end delimiters, punctuation (`.` and `,`), the first token if it is none of
    these, and all other real tokens.
    """
    named = [batch.start, batch.end, batch.punctuation]
    rest = batch.mask & ~torch.stack(named).any(0)
    first = rest.clone()
    first[:, 1:] = False
    return torch.stack([*named, first, rest & ~first], 1)


class Importance(MapMeasure):
    """Mean absolute gradient |∂L/∂α| of every attention head, by class of the token attended to.

    α is an attention weight, and L the loss of one input. There are three kinds of loss:

    - With the option `classifier`, L is the loss of that classifier, and α is a weight of its own
      attention.
    - Otherwise, if the encoder's files hold a head for language modelling, L is the mean loss over
      masked tokens (15 %) or, in a causal encoder, over the next tokens.
    - Otherwise the texts must have labels. L is then the cross-entropy of a logistic regression on the
      mean of the last hidden states, fitted to the train split of the same corpus.

    The mean is taken over the weights from real tokens to tokens of the class, and then over inputs
    with such tokens.

    With `method: integrated_gradients` the gradient is integrated (Sundararajan et al. 2017): |α ∫ ∂L/∂α|, on the path
    from no attention in the layer to its attention, as in Hao et al. (2021, §3). The attributions of a layer then add
    up to the loss minus the loss without the attention of the layer. How far they miss it is the score
    `importance.incompleteness`, and stands by layer in the table `completeness`; a warning says if it is large.

    Args:
        classifier: Checkpoint of a `TransformerClassifier` fine-tuned from this encoder, or a folder with only one;
            the texts must have its labels. It is not used for an encoder with random weights.
        method: `gradient`, as in Clark et al. (2019, §3.2), or `integrated_gradients`.
        ig_steps: Number of points on the path of `integrated_gradients`. Each takes a pass forward and back for every
            layer.

    Raises:
        UserError: `classifier` was fine-tuned from another encoder, or lacks a label of the texts; or,
            where `classifier` is not used, the encoder's files hold no head for language modelling, and
            the texts are not one labelled corpus with a train split.
    """

    experiment = "importance"
    quantities = ("attention",)  # computed in passes of its own

    @checked
    def __init__(
        self,
        classifier: str | None = None,
        method: Literal["gradient", "integrated_gradients"] = "gradient",
        ig_steps: Positive = 20,
    ) -> None:
        super().__init__()
        self.classifier = None if classifier is None else checkpoint_file(classifier)
        self.method = method
        self.ig_steps = ig_steps

    def begin(self) -> None:
        self._task = self._make_task()
        self._progress = Progress(_INTEGRATED, 0)
        self.numbers = HeadMeans(self.encoder, dict.fromkeys(TOKEN_CLASSES, "nats"), (0, np.inf))
        self._losses = Moments(2, (len(LOSS_UNITS),), tuple(LOSS_UNITS.values()), bounds=(0, [np.inf, 1.0]))
        if self.method == "integrated_gradients":
            count = len(COMPLETENESS)
            self._completeness = Moments(2, (self.encoder.layers, count), "nats", bounds=(0, np.inf))
            self._mean_completeness = Moments(2, (count,), "nats", bounds=(0, np.inf))

    def _make_task(self) -> Task:
        """Return the model whose loss is differentiated."""
        data = self.data
        encoder = self.encoder
        name = encoder.source.spec.name
        if self.classifier is not None and encoder.source.spec.weights == "pretrained":
            classification = Classification(self.classifier, encoder.device)
            classification.require_encoder(encoder)
            return classification
        if encoder.language_model is not None:
            return LanguageModelling(encoder, self.seed)
        if len(data.names) > 1 or not data.has_split("train"):
            raise UserError(
                f"{type(self).__name__}: {name} has no language-modelling head, so a classifier is trained on labelled "
                f"texts instead. Give one labelled corpus with a train split ({setting('data.corpora', 'sst2')}), or "
                "an encoder with a language-modelling head (bert-base-uncased)."
            )
        return MeanStateClassification(encoder, data.draw_segments("train", FITTED, self.seed))

    def update(self, batch: SegmentBatch) -> None:
        time = batch.tokens.size(1)
        cells = time * max(self.encoder.layers * self.encoder.heads * time, self._task.vocabulary)
        columns = {**self._task.inputs(batch), "real": batch.mask, "classes": class_masks(batch)}
        rows = max(1, _CELLS // cells)
        means = []
        losses = []
        completeness = []
        self._progress.begin(_INTEGRATED, len(batch.index) * self.encoder.layers)
        with recorded_gradients():
            # Tensors of inference mode have no gradient; their copies do.
            parts = {name: torch.split(column.clone(), rows) for name, column in columns.items()}
            for place in range(len(parts["index"])):
                inputs = {name: part[place] for name, part in parts.items()}
                measure = self._measure if self.method == "gradient" else self._integrate
                means_of_part, losses_of_part, completeness_of_part = measure(inputs)
                means.append(means_of_part)
                losses.append(losses_of_part)
                completeness.append(completeness_of_part)
        for means_of_layer in torch.cat(means, 1):
            self.numbers.add(means_of_layer)
        self.numbers.close(batch.index % 2)
        self._losses.update(batch.index % 2, torch.cat(losses))
        if self.method == "integrated_gradients":
            by_layer = torch.cat(completeness)
            self._completeness.update(batch.index % 2, by_layer)
            self._mean_completeness.update(batch.index % 2, by_layer.mean(1))

    def _measure(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean gradients of a batch, its losses, and no completeness.

        Returns:
            Means `[layers, batch, heads, classes]`; loss and accuracy `[batch, 2]`; and nan, `[batch, layers, 2]`.
        """
        losses, accuracies, gradients = attention_gradients(self._task, inputs)
        completeness = losses.new_full((len(losses), len(gradients), len(COMPLETENESS)), torch.nan)
        return self._means(inputs, gradients, losses), torch.stack([losses, accuracies], 1), completeness

    def _integrate(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean integrated gradients of a batch, its losses, and how complete each layer is.

        Returns:
            Means `[layers, batch, heads, classes]`; loss and accuracy `[batch, 2]`; and the numbers of `COMPLETENESS`,
            `[batch, layers, 2]`.
        """
        weights: list[Tensor] = []

        def keep(_: int, weights_of_layer: Tensor, values: Tensor) -> tuple[Tensor, None]:
            weights.append(weights_of_layer.detach())
            return weights_of_layer, None

        with torch.no_grad(), intervening(keep):
            outputs = self._task.outputs(inputs)
        gold = self._task.gold(inputs)
        losses = self._task.losses(outputs, gold)
        accuracies = self._task.accuracies(outputs, gold)
        attributions = []
        completeness = []
        for layer, weights_of_layer in enumerate(weights):
            integrated = integrated_attention(self._task, inputs, weights_of_layer, layer, self.ig_steps)
            self._progress.advance(len(losses))
            attributions.append(integrated.attributions)
            completeness.append(torch.stack([integrated.change.abs(), integrated.errors.abs()], 1))
        means = self._means(inputs, attributions, losses)
        return means, torch.stack([losses, accuracies], 1), torch.stack(completeness, 1)

    def _means(self, inputs: Mapping[str, Tensor], gradients: Sequence[Tensor], losses: Tensor) -> Tensor:
        """Return the mean of the gradients of each layer by class, `[layers, batch, heads, classes]`."""
        real = inputs["real"]
        allowed = self.encoder.allowed(real)
        means = []
        for layer, gradient in enumerate(gradients):
            means_of_layer = class_means(gradient, real, inputs["classes"], allowed.at(layer))
            means_of_layer[losses.isnan()] = torch.nan
            means.append(means_of_layer)
        return torch.stack(means)

    def by_head(self) -> Mapping[str, Means]:
        """Return the mean |∂L/∂α| of each attention head, for each class of tokens attended to.

        The keys are `importance_<class>`, with the names in `TOKEN_CLASSES`.
        """
        return self.numbers.by_head("importance_")

    def result(self) -> Result:
        heads = self.numbers.over()
        layers = self.numbers.over("layers")
        losses = by_name(self._losses.compute(), list(LOSS_UNITS))
        present = [name for name in TOKEN_CLASSES if heads[name].inputs.any()]
        by_head = by_class({name: heads[name] for name in present}, "importance")
        by_layer = by_class({name: layers[name] for name in present}, "importance")
        by_layer = by_layer.sort_values("layer", kind="stable", ignore_index=True)
        units: dict[str, Unit] = {"importance": "nats"}
        at_once = self.numbers.over("layers", tests=len(by_layer))
        candidates: dict[str, Estimate] = {}
        for name, layer in product(present, range(self.encoder.layers)):
            candidates[f"{name} in layer {layer + 1}"] = at_once[name][layer]
        scores = {f"{self.experiment}.{name}": estimate for name, estimate in losses.items()}
        inputs = int(losses["loss"].inputs)
        audit: dict[str, object] = {"loss": self._task.name, "inputs": inputs}
        tables = {
            "importance": Table(by_head, units, interval="importance"),
            "importance_layers": Table(by_layer, units, "importance", ("layer", "class", "importance")),
        }
        answer = importance_answer(candidates, SYMBOLS[self.method])
        if self.method == "integrated_gradients":
            audit["ig_steps"] = self.ig_steps
            tables["completeness"], completeness = self._completeness_results()
            scores |= completeness
            answer += (
                "; the attributions miss changes of the loss of {importance.change} by {importance.incompleteness}"
            )
        if isinstance(self._task, MeanStateClassification):
            audit["classifier_texts"] = self._task.texts
        return Result(
            experiment=self.experiment,
            scores=scores,
            headline=list(scores),
            answer=fill_sentence(answer, scores, n=inputs),
            tables=tables,
            figures=_figures({name: heads[name] for name in present}, layers, SYMBOLS[self.method]),
            audit=audit,
        )

    def _completeness_results(self) -> tuple[Table, dict[str, Estimate]]:
        """Return a table and scores of the numbers of `COMPLETENESS`, and warn if the attributions are incomplete."""
        by_layer = by_name(self._completeness.compute(), COMPLETENESS)
        frame = head_rows(by_layer)
        frame["share"] = frame["incompleteness"] / frame["change"]
        units: dict[str, Unit] = {"change": "nats", "incompleteness": "nats", "share": "fraction"}
        scores = by_name(self._mean_completeness.compute(), COMPLETENESS)
        missed = scores["incompleteness"].value / scores["change"].value
        if missed > INCOMPLETE:
            rank_zero_warn(
                f"The integrated gradients miss the change of the loss by {missed:.1%}, more than {INCOMPLETE:.0%}. "
                f"Give more points on the path: {setting('model.analyses.ig_steps', str(5 * self.ig_steps))}."
            )
        return Table(frame, units), {f"{self.experiment}.{name}": estimate for name, estimate in scores.items()}


def _figures(
    heads: Mapping[str, Estimate[Floats]], layers: Mapping[str, Estimate[Floats]], symbol: str
) -> dict[str, Figure]:
    """Draw the importance of each class of tokens over layers, and a map of all heads for each class."""
    label = f"mean {symbol} (nats)"
    lines = {}
    maps = {}
    for name, estimate in heads.items():
        by_layer = layers[name].value.tolist()
        numbers_of_layers = list(range(1, len(by_layer) + 1))
        lines[name] = (numbers_of_layers, by_layer)
        title = f"Importance of attention to {name}"
        maps[f"importance_{name}"] = head_map(title, estimate.value, value_label=label, unit="nats")
    curves = Curves(
        title="Importance of attention, by what it goes to",
        x_label="layer",
        y_label=label,
        lines=lines,
    )
    return {"importance": curves, **on_one_scale(maps)}


def importance_answer(candidates: Mapping[str, Estimate], symbol: str = SYMBOLS["gradient"]) -> str:
    """Return the answer, for `fill_sentence`: the class and layer with the clearly largest importance, and the loss.

    Args:
        candidates: Mean importance by class and layer, with intervals that hold for all of them at once.
        symbol: Formula of the importance.
    """
    loss = "the loss is {importance.loss}"
    top = clear_largest(candidates)
    if top is None:
        return f"on {{n}} inputs attention to no class in a layer clearly has most {symbol}; {loss}"
    most = format_estimate(candidates[top])
    return f"attention to {top} has most {symbol}, {most} over {{n}} inputs; {loss}"
