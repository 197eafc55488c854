"""A whole model with other attention and the same decisions (Wiegreffe & Pinter 2019, §4)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from datamodules import ClassificationDataModule, TextBatch
from fidelity.base import CheckpointResult, FidelityTest, Measurements, Score
from fidelity.checkpoints import Checkpoint
from fidelity.classified import ClassifiedBatch, levels_of
from fidelity.perturbation import by_max_attention, max_attention, violins
from fidelity.recipe import Recipe
from fidelity.saliency import Saliency
from metrics.bootstrap import mean, ratio, resample
from metrics.classification import f1_score
from metrics.distributions import area, jsd, kl, tvd
from models import AttentionClassifier, HierarchicalClassifier, TextClassifier, UniformAttention
from models.interface import Output
from processes.ranks import Ranks
from results import Curves, Estimate, Figure, Floats, Table, Unit
from results.errors import UserError, check_numbers
from training import Best, Training, share

_UNITS: dict[str, Unit] = {"strength": "ratio", "tvd": "fraction", "jsd": "nats", "epochs": "count"}
_UNITS |= {"f1": "fraction", "accuracy": "fraction"}

# Compared beside the adversaries: itself, the first of its variant, the first with uniform attention.
ITSELF, FIRST, UNIFORM = "itself", "first", "uniform"


class ConsistentAdversary(FidelityTest):
    """How far a new model that is trained to decide as the checkpoint can differ from it in attention.

    Trains one adversary for each λ on TVD − λ · KL over train, by the recipe of the checkpoint and from another
    initialisation (of a transformer only the classification head is drawn). On test, the mean TVD of the decisions and
    the mean JSD of the attention of each make a curve, which begins at the checkpoint itself, (0, 0). `area` is that
    under the curve, `max_jsd` its highest point. Two comparisons stand beside it: the other seeds of the variant, for
    what a new training alone changes, and a checkpoint with uniform attention, which has no adversary itself.

    Tests the attention over sentences of a hierarchical classifier, and the mean over the heads of a transformer.
    Adversaries are kept in `adversaries/` of the datamodule's cache: a run that is started again trains the rest.

    Args:
        strengths: λ. With the TVD of two classes, which is twice that in Wiegreffe & Pinter's code, λ is twice theirs.
        max_epochs: after which a training ends at the latest.
        patience: epochs without a lower training loss after which it ends.
        seeds: of how many checkpoints of each variant adversaries are trained, the first in their order; None for all.
        regularized: whether the terms of the checkpoint's regularisers are added to the loss.
    """

    name = "consistent_adversary"
    headline = ("area", "max_jsd")

    def __init__(
        self,
        strengths: tuple[float, ...] = (0.0, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
        max_epochs: int = 80,
        patience: int = 10,
        seeds: int | None = None,
        regularized: bool = False,
    ) -> None:
        self.strengths = {f"{strength:g}": strength for strength in strengths}
        if not strengths or not all(0 <= one < math.inf for one in strengths) or len(self.strengths) < len(strengths):
            raise UserError(
                f"ConsistentAdversary trains one model for each λ: strengths are {list(strengths)}; give one or more, "
                f"0 or above, each once."
            )
        check_numbers(self, least=1, max_epochs=max_epochs, patience=patience, seeds=seeds)
        self.max_epochs, self.patience, self.seeds, self.regularized = max_epochs, patience, seeds, regularized
        self._begun: tuple[Checkpoint, ...] = ()
        self._adversaries: dict[str, dict[str, TrainedAdversary]] = {}

    def begin(
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        self._begun, self._adversaries = tuple(checkpoints), {}
        wanted: list[tuple[Adversaries, str]] = []
        for checkpoint in checkpoints:
            variant = [one for one in checkpoints if one.variant == checkpoint.variant]
            if checkpoint in variant[: self.seeds] and not has_uniform_attention(checkpoint):
                recipe = Recipe(checkpoint, data, device, self.max_epochs, self.patience, seed)
                wanted += product([Adversaries(recipe, self.regularized)], self.strengths)
        found = share([adversaries.training(self.strengths[name]) for adversaries, name in wanted], data.ranks)
        for (adversaries, name), best in zip(wanted, found, strict=True):
            of_checkpoint = self._adversaries.setdefault(adversaries.recipe.checkpoint.name, {})
            of_checkpoint[name] = adversaries.trained(best)

    def columns(self, classes: int) -> Sequence[str]:
        others = (*self.strengths, ITSELF, FIRST, UNIFORM)
        compared = [f"{what}_{other}" for other in others for what in ("tvd", "jsd", "predicted")]
        return ["gold", "max_attention", *compared]

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        batch = classified.batch
        nothing = torch.full((len(batch.index),), torch.nan, dtype=torch.float64, device=batch.index.device)
        numbers = dict.fromkeys(self.columns(classified.probabilities.size(-1)), nothing)
        numbers["gold"], numbers["max_attention"] = batch.labels.double(), max_attention(classified)
        numbers |= _compared(ITSELF, classified.output, classified)
        for name, other in self._others(classified.checkpoint.name).items():
            numbers |= _compared(name, other.model(batch), classified)
        return Measurements(numbers)

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        tvds, jsds = ([f"{what}_{name}" for name in self.strengths] for what in ("tvd", "jsd"))
        return {"area": Score((*tvds, *jsds), _area, "ratio"), "max_jsd": Score(jsds, _highest, "nats")}

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """A row for each checkpoint and `other` model: mean `tvd` and `jsd`, and its `f1`, `accuracy`, `epochs`."""
        rows = []
        for result in results:
            values = result.of(self.name)
            for name, other in {ITSELF: None, **self._others(result.name)}.items():
                decisions = values[["gold", f"predicted_{name}"]]
                label = other.name if other else ITSELF
                names = {"variant": result.variant, "checkpoint": result.name, "other": label}
                numbers = {
                    "strength": self.strengths.get(name, math.nan),
                    **_mean(values, "tvd", name).named("tvd"),
                    **_mean(values, "jsd", name).named("jsd"),
                    "f1": resample(f1_score(result.positive, result.classes), decisions, "fraction").value,
                    "accuracy": resample(_accuracy, decisions, "fraction").value,
                    "epochs": other.best.epochs if isinstance(other, TrainedAdversary) else math.nan,
                }
                rows.append({**names, **numbers})
        return {self.name: Table(pd.DataFrame(rows), _UNITS)}

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Mean TVD against mean JSD: a line for each checkpoint with adversaries, points for seeds and uniform.

        `consistent_adversary.seeds`: JSD to the first seed by the highest weight, where there are several.
        """
        lines: dict[str, tuple[list[float], list[float]]] = {}
        points: dict[str, tuple[list[float], list[float]]] = {}
        for result in results:
            values, others = result.of(self.name), self._others(result.name)
            found = {name: tuple(_mean(values, what, name).value for what in ("tvd", "jsd")) for name in others}
            if result.name in self._adversaries:
                xs, ys = zip(*sorted([(0.0, 0.0), *(found[name] for name in self.strengths)]), strict=True)
                lines[result.name] = (list(xs), list(ys))
            # Distances are symmetric: what a seed has to the first belongs to the line of the first.
            for name, other in others.items():
                if isinstance(other, Checkpoint):
                    for axis, value in zip(points.setdefault(other.name, ([], [])), found[name], strict=True):
                        axis.append(value)
        figures: dict[str, Figure] = {}
        if lines or points:
            title, axes = "Model-consistent adversaries", ("TVD of the decisions", "JSD of the attention")
            figures[self.name] = Curves(title, *axes, lines, points, y_range=(0.0, math.log(2)))
        if any(result.of(self.name)[f"jsd_{FIRST}"].notna().any() for result in results):
            seeds = by_max_attention(results, self.name, f"jsd_{FIRST}")
            figures[f"{self.name}.seeds"] = violins("Attention under other seeds", seeds, "JSD to the first seed")
        return figures

    def _others(self, name: str) -> "dict[str, TrainedAdversary | Checkpoint]":
        """Adversaries of a checkpoint, the first of its variant, and the first with uniform attention; not itself."""
        checkpoint = next(one for one in self._begun if one.name == name)
        others: dict[str, TrainedAdversary | Checkpoint] = {**self._adversaries.get(name, {})}
        others[FIRST] = next(one for one in self._begun if one.variant == checkpoint.variant)
        uniform = next((one for one in self._begun if has_uniform_attention(one)), None)
        if uniform and isinstance(checkpoint.model, AttentionClassifier) and not has_uniform_attention(checkpoint):
            others[UNIFORM] = uniform
        return {label: other for label, other in others.items() if other is not checkpoint}

    def audit(self) -> Mapping[str, object]:
        """How many adversaries there are, and how many were cut off by max_epochs."""
        found = [adversary.best for each in self._adversaries.values() for adversary in each.values()]
        return {"adversaries": len(found), "cut_off": sum(not best.stopped for best in found)}


def _compared(name: str, output: Output, classified: ClassifiedBatch) -> dict[str, Tensor]:
    """Columns of a batch: how far another model's decisions and attention are from the checkpoint's."""
    ours, theirs = (attention_of(one).double() for one in (classified.output, output))
    probabilities = output.logits.softmax(-1)
    return {
        f"tvd_{name}": tvd(probabilities.double(), classified.probabilities.double()),
        # Weights in single precision may add up to a little more than one.
        f"jsd_{name}": jsd(theirs, ours).mean(0).clamp(max=math.log(2)),
        f"predicted_{name}": probabilities.argmax(-1).double(),
    }


def _mean(values: pd.DataFrame, what: str, name: str) -> Estimate:
    return resample(mean, values[[f"{what}_{name}"]], _UNITS[what])


def _means(values: Floats, weights: Floats) -> Floats:  # [draws, columns]; nan for a draw of no text
    return ratio(weights @ values, weights.sum(axis=1, keepdims=True))


def _area(values: Floats, weights: Floats) -> Floats:
    return area(*np.split(_means(values, weights), 2, axis=1))


def _highest(values: Floats, weights: Floats) -> Floats:
    highest: Floats = _means(values, weights).max(axis=1)
    return highest


def _accuracy(values: Floats, weights: Floats) -> Floats:
    return mean((values[:, :1] == values[:, 1:]).astype(np.float64), weights)


class TrainOutputs(NamedTuple):
    """Decisions `[texts, classes]` and, of each text, attention `[positions, heads]` of a classifier on train."""

    probabilities: Tensor
    weights: Sequence[Tensor]

    def of(self, texts: Tensor, positions: int) -> tuple[Tensor, Tensor]:
        """Probabilities `[batch, classes]` and attention `[heads, batch, positions]` of texts int64 `[batch]`."""
        weights = pad_sequence([self.weights[text] for text in texts.tolist()], batch_first=True)
        return self.probabilities[texts], pad(weights, (0, 0, 0, positions - weights.size(1))).permute(2, 0, 1)


@torch.no_grad()
def collect_outputs(model: TextClassifier, data: ClassificationDataModule, device: torch.device) -> TrainOutputs:
    """Run a classifier over train."""
    probabilities: dict[int, Tensor] = {}
    weights: dict[int, Tensor] = {}
    for batch in data.splits["train"].batches(data.eval_tokens):
        batch = batch.to(device)
        output: Output = model(batch)
        mask = output.levels[levels_of(output, None)[0]].mask
        sizes = (mask * torch.arange(1, mask.size(1) + 1, device=device)).amax(1)  # to the last that may get weight
        texts = batch.index.tolist()
        probabilities |= dict(zip(texts, output.logits.softmax(-1), strict=True))
        rows = zip(texts, attention_of(output).permute(1, 2, 0), sizes.tolist(), strict=True)
        weights |= {text: row[:size].clone() for text, row, size in rows}
    order = sorted(weights)
    return TrainOutputs(torch.stack([probabilities[text] for text in order]), [weights[text] for text in order])


def attention_of(output: Output) -> Tensor:
    """The weights of the levels that are tested, `[levels, batch, positions]`."""
    return torch.stack([output.levels[name].weights for name in levels_of(output, None)])


def adversarial_loss(
    probabilities: Tensor, weights: Tensor, base_probabilities: Tensor, base_weights: Tensor, strength: float
) -> Tensor:
    """TVD(ŷ_a, ŷ_b) − λ · KL(α_a ‖ α_b), the mean over the texts (Wiegreffe & Pinter 2019, §4).

    Decisions ŷ are `[batch, classes]`, attention α is `[heads, batch, positions]`; λ is the strength. Several heads
    count with the mean of their divergences.
    """
    # Their code takes the TVD of one sigmoid, which is half of that of its two classes: their λ is half of this one.
    return (tvd(probabilities, base_probabilities) - strength * kl(weights, base_weights).mean(0)).mean()


class AdversarialTraining(LightningModule):
    """Trains a classifier to decide as another does, with attention as different as it can be; see `adversarial_loss`.

    `base` are outputs of the other on train; `regularized` adds the terms of the model's regularisers to the loss.
    """

    def __init__(self, model: TextClassifier, base: TrainOutputs, strength: float, regularized: bool = False) -> None:
        super().__init__()
        self.model, self.base, self.strength, self.regularized = model, base, strength, regularized

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:  # the labels play no part
        output, terms = self.model.loss_terms(batch) if self.regularized else (self.model(batch), {})
        weights = attention_of(output)
        base = self.base.of(batch.index, weights.size(-1))
        loss = adversarial_loss(output.logits.softmax(-1), weights, *base, self.strength) + sum(
            term.value for term in terms.values()
        )
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch.index))
        return loss

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        return self.model.configure_optimizers()


class TrainedAdversary(NamedTuple):
    """A trained adversary, on the device, in evaluation mode and without gradients; and how it was trained."""

    model: TextClassifier
    best: Best
    name: str = "adversary"


@dataclass(frozen=True, eq=False)
class Adversaries:
    """The model-consistent adversaries of one trained classifier, all of one initialisation, other than its own.

    Each is that of the epoch with the lowest training loss; nothing is chosen on test, as their code chose the base.
    """

    recipe: Recipe
    regularized: bool = False

    @cached_property
    def _base(self) -> TrainOutputs:
        recipe = self.recipe
        return collect_outputs(recipe.checkpoint.model.to(recipe.device), recipe.data, recipe.device)

    def training(self, strength: float) -> Training:
        """The training of the adversary of one λ."""
        recipe = self.recipe

        def train() -> Best:
            fresh = recipe.checkpoint.untrained(recipe.own_data, recipe.training_seed).train()
            module = AdversarialTraining(fresh, self._base, strength, self.regularized)
            found = recipe.fit(module, "train_loss", "min", train_dataloaders=recipe.own_data.train_dataloader())
            return found._replace(state={name.removeprefix("model."): of for name, of in found.state.items()})

        options = ["adversary", strength, self.regularized]
        return recipe.training("adversaries", options, f"Adversary λ = {strength:g}", train)

    def trained(self, best: Best) -> TrainedAdversary:
        """The adversary that a training has made."""
        model = self.recipe.checkpoint.untrained(self.recipe.data, self.recipe.training_seed)
        model.load_state_dict(best.state)
        return TrainedAdversary(model.to(self.recipe.device).eval().requires_grad_(False), best)

    def of(self, strength: float) -> TrainedAdversary:
        """The adversary of one λ, which is found, or trained by this rank alone."""
        return self.trained(*share([self.training(strength)], Ranks()))


def has_uniform_attention(checkpoint: Checkpoint) -> bool:
    """Whether its attention is uniform, so that no model of its kind has another."""
    model = checkpoint.model
    if isinstance(model, HierarchicalClassifier):
        return isinstance(model.sentence_attention, UniformAttention)
    return isinstance(model, AttentionClassifier) and isinstance(model.attention, UniformAttention)
