"""A whole model with other attention and the same decisions (Wiegreffe & Pinter 2019, §4)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from datamodules import ClassificationDataModule, TextBatch
from datamodules.sampling import LengthBatches
from fidelity.base import CheckpointResult, FidelityTest, Measurements, Score
from fidelity.checkpoints import Checkpoint, FidelityError
from fidelity.classified import ClassifiedBatch, levels_of
from fidelity.perturbation import by_max_attention, max_attention, violins
from fidelity.recipe import Recipe
from fidelity.saliency import Saliency
from metrics.bootstrap import mean, resample
from metrics.classification import f1_score
from metrics.distributions import area, jsd, kl, tvd
from models import AttentionClassifier, HierarchicalClassifier, TextClassifier, UniformAttention
from models.interface import Output
from results import Curves, Figure, Table, Unit
from training import Best

Floats = NDArray[np.float64]
_UNITS: dict[str, Unit] = {
    "strength": "ratio",
    "tvd": "fraction",
    "jsd": "nats",
    "f1": "fraction",
    "accuracy": "fraction",
    "epochs": "count",
}


ITSELF, FIRST, UNIFORM = "itself", "first", "uniform"
"""Comparisons beside the adversaries: itself, the first of its variant, the first with uniform attention."""


class ConsistentAdversary(FidelityTest):
    """How far a new model that is trained to decide as the checkpoint can differ from it in attention.

    Trains one adversary for each λ on TVD − λ · KL over train, by the recipe of the checkpoint and from another
    initialisation (of a transformer only the classification head is drawn). On test, the mean TVD of the decisions and
    the mean JSD of the attention of each make a curve, which begins at the checkpoint itself, (0, 0). `area` is that
    under the curve, `max_jsd` its highest point. Two comparisons stand beside it: the other seeds of the variant, for
    what a new training alone changes, and a checkpoint with uniform attention, which has no adversary itself.

    Tests the attention over sentences of a hierarchical classifier, and the mean over the heads of a transformer.
    Adversaries are kept in `adversaries/` of the datamodule's cache: a run that is started again trains only those that
    are missing.

    Args:
        strengths: λ. With the TVD of two classes, which is twice that in Wiegreffe & Pinter's code, λ is twice theirs.
        max_epochs: after which a training ends at the latest.
        patience: epochs in a row without a lower training loss, after which one ends.
        seeds: of how many checkpoints of each variant adversaries are trained, the first in their order; None for all.
        regularized: whether the terms of the checkpoint's regularisers are added to the loss. By default the adversary
            has the same parts, and learns only decisions and attention.

    Raises:
        FidelityError: a strength is negative, is there twice, or there is none; or a number is below 1.
    """

    name = "consistent_adversary"

    def __init__(
        self,
        strengths: tuple[float, ...] = (0.0, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
        max_epochs: int = 80,
        patience: int = 10,
        seeds: int | None = None,
        regularized: bool = False,
    ) -> None:
        self.strengths = {f"{strength:g}": strength for strength in strengths}
        if not strengths or min(strengths) < 0 or len(self.strengths) < len(strengths):
            raise FidelityError(
                f"ConsistentAdversary trains one model for each λ: strengths are {list(strengths)}; give one or more, "
                f"0 or above, each once."
            )
        if min(max_epochs, patience, 1 if seeds is None else seeds) < 1:
            raise FidelityError(
                f"ConsistentAdversary: max_epochs {max_epochs}, patience {patience} and seeds {seeds}: give 1 or more."
            )
        self.max_epochs, self.patience, self.seeds = max_epochs, patience, seeds
        self.regularized = regularized
        self._begun: tuple[Checkpoint, ...] = ()
        self._adversaries: dict[str, dict[str, TrainedAdversary]] = {}

    def begin(
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        """Train the adversaries that are not there yet.

        Raises:
            FidelityError: there are several devices, or a training has learned nothing.
        """
        self._begun, self._adversaries = tuple(checkpoints), {}
        for checkpoint in checkpoints:
            variant = [one for one in checkpoints if one.variant == checkpoint.variant]
            if checkpoint not in variant[: self.seeds] or has_uniform_attention(checkpoint):
                continue
            recipe = Recipe(checkpoint, data, device, self.max_epochs, self.patience, seed)
            recipe.require_one_device(type(self).__name__)
            adversaries = Adversaries(recipe, self.regularized)
            self._adversaries[checkpoint.name] = {
                name: adversaries.of(strength) for name, strength in self.strengths.items()
            }

    def columns(self, classes: int) -> Sequence[str]:
        """The gold class, and the comparison with each other model: TVD, JSD and that model's decision."""
        others = (*self.strengths, ITSELF, FIRST, UNIFORM)
        return [
            "gold",
            "max_attention",
            *(f"{what}_{other}" for other in others for what in ("tvd", "jsd", "predicted")),
        ]

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        """Run the adversaries, and the other checkpoints that are to be compared."""
        batch = classified.batch
        nothing = torch.full((len(batch.index),), torch.nan, dtype=torch.float64, device=batch.index.device)
        numbers = dict.fromkeys(self.columns(classified.probabilities.size(-1)), nothing)
        numbers["gold"], numbers["max_attention"] = batch.labels.double(), max_attention(classified)
        numbers |= _compared(ITSELF, classified.output, classified)
        models = {**self._adversaries.get(classified.checkpoint.name, {})} | _others(classified.checkpoint, self._begun)
        for name, other in models.items():
            numbers |= _compared(name, other.model(batch), classified)
        return Measurements(numbers)

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        """The area under the curve, and its highest point."""
        tvds, jsds = ([f"{what}_{name}" for name in self.strengths] for what in ("tvd", "jsd"))
        return {"area": Score((*tvds, *jsds), _area, "ratio"), "max_jsd": Score(jsds, _highest, "nats")}

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """A row for each pair of models: the checkpoint, and `other`.

        `tvd` and `jsd` are means over the texts; `f1` and `accuracy` are those of the other model, and `epochs` how
        long it was trained.
        """
        rows = [row for result in results for row in self._rows(result)]
        return {self.name: Table(pd.DataFrame(rows), _UNITS)}

    def _rows(self, result: CheckpointResult) -> Iterator[dict[str, object]]:
        here = self._checkpoint(result)
        adversaries, others = self._adversaries.get(here.name, {}), _others(here, self._begun)
        names = {ITSELF: ITSELF} | dict.fromkeys(adversaries, "adversary")
        names |= {name: other.name for name, other in others.items()}
        for name, other in names.items():
            row: dict[str, object] = {"variant": result.variant, "checkpoint": result.name, "other": other}
            row["strength"] = self.strengths.get(name, math.nan)
            for what in ("tvd", "jsd"):
                values = self._values(result, f"{what}_{name}")
                row |= resample(mean, values, _UNITS[what]).estimate.named(what)
            decisions = self._values(result, "gold", f"predicted_{name}")
            row["f1"] = resample(f1_score(result.positive, result.classes), decisions, "fraction").value
            row["accuracy"] = resample(_accuracy, decisions, "fraction").value
            row["epochs"] = adversaries[name].best.epochs if name in adversaries else math.nan
            yield row

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Mean TVD against mean JSD: a line for each checkpoint with adversaries, points for seeds and uniform.

        `consistent_adversary.seeds`: JSD to the first seed by the highest weight, where there are several.
        """
        lines: dict[str, tuple[list[float], list[float]]] = {}
        points: dict[str, tuple[list[float], list[float]]] = {}

        def point(result: CheckpointResult, name: str) -> tuple[float, float]:
            values = {what: self._values(result, f"{what}_{name}") for what in ("tvd", "jsd")}
            x, y = (resample(mean, some, _UNITS[what]).value for what, some in values.items())
            return x, y

        for result in results:
            here = self._checkpoint(result)
            if here.name in self._adversaries:
                found = sorted(point(result, name) for name in (ITSELF, *self.strengths))
                lines[here.name] = ([x for x, _ in found], [y for _, y in found])
            # Distances are symmetric: what a seed has to the first belongs to the line of the first.
            for name, other in _others(here, self._begun).items():
                xs, ys = points.setdefault(other.name, ([], []))
                x, y = point(result, name)
                xs.append(x)
                ys.append(y)
        figures: dict[str, Figure] = {}
        if lines or points:
            title, axes = "Model-consistent adversaries", ("TVD of the decisions", "JSD of the attention")
            figures[self.name] = Curves(title, *axes, lines, points, y_range=(0.0, math.log(2)))
        if not all(np.isnan(self._values(result, f"jsd_{FIRST}")).all() for result in results):
            seeds = by_max_attention(results, self.name, f"jsd_{FIRST}")
            figures[f"{self.name}.seeds"] = violins("Attention under other seeds", seeds, "JSD to the first seed")
        return figures

    def _checkpoint(self, result: CheckpointResult) -> Checkpoint:
        return next(one for one in self._begun if one.name == result.name)

    def _values(self, result: CheckpointResult, *columns: str) -> Floats:
        values: Floats = result.values[[f"{self.name}.{column}" for column in columns]].to_numpy(np.float64)
        return values

    def audit(self) -> Mapping[str, object]:
        """How many adversaries there are, and how many were still getting better when they had to end."""
        found = [adversary.best for each in self._adversaries.values() for adversary in each.values()]
        return {"adversaries": len(found), "cut_off": sum(not best.stopped for best in found)}


def _others(checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]) -> dict[str, Checkpoint]:
    """The first of its variant, and the first with uniform attention over the same words; not the checkpoint itself."""
    others = {FIRST: next(one for one in checkpoints if one.variant == checkpoint.variant)}
    even = next((one for one in checkpoints if has_uniform_attention(one)), None)
    if even is not None and isinstance(checkpoint.model, AttentionClassifier) and not has_uniform_attention(checkpoint):
        others[UNIFORM] = even
    return {name: other for name, other in others.items() if other is not checkpoint}


def _compared(name: str, output: Output, classified: ClassifiedBatch) -> dict[str, Tensor]:
    """Columns of a batch: how far another model's decisions and attention are from the checkpoint's."""
    names = levels_of(classified.output, None)
    ours, theirs = (attention_of(one, names).double() for one in (classified.output, output))
    probabilities = output.logits.softmax(-1)
    return {
        f"tvd_{name}": tvd(probabilities.double(), classified.probabilities.double()),
        # Weights in single precision may add up to a little more than one.
        f"jsd_{name}": jsd(theirs, ours).mean(0).clamp(max=math.log(2)),
        f"predicted_{name}": probabilities.argmax(-1).double(),
    }


def _means(values: Floats, weights: Floats) -> Floats:
    """`[draws, columns]` of values `[texts, columns]`; nan for a draw of none of them."""
    counts = weights.sum(axis=1, keepdims=True)
    sums = weights @ values
    means: Floats = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return means


def _area(values: Floats, weights: Floats) -> Floats:
    return area(*np.split(_means(values, weights), 2, axis=1))


def _highest(values: Floats, weights: Floats) -> Floats:
    highest: Floats = _means(values, weights).max(axis=1)
    return highest


def _accuracy(values: Floats, weights: Floats) -> Floats:
    return mean((values[:, :1] == values[:, 1:]).astype(np.float64), weights)


@dataclass(frozen=True)
class TrainOutputs:
    """Decisions and attention of a classifier on every text of train.

    Attributes:
        probabilities: `[texts, classes]`.
        weights: `[positions of all texts, heads]`, one text after another.
        starts: int64 `[texts]`, where each text begins.
        sizes: int64 `[texts]`, how many positions it has, up to the last that may get weight.
    """

    probabilities: Tensor
    weights: Tensor
    starts: Tensor
    sizes: Tensor

    def of(self, texts: Tensor, positions: int) -> tuple[Tensor, Tensor]:
        """Probabilities `[batch, classes]` and attention `[heads, batch, positions]` of texts int64 `[batch]`."""
        places = torch.arange(positions, device=texts.device)
        real = places < self.sizes[texts, None]
        rows = torch.where(real, self.starts[texts, None] + places, 0)
        return self.probabilities[texts], self.weights[rows].masked_fill(~real[..., None], 0).permute(2, 0, 1)


@torch.no_grad()
def collect_outputs(model: TextClassifier, data: ClassificationDataModule, device: torch.device) -> TrainOutputs:
    """Run a classifier over train."""
    split = data.splits["train"]
    batches = LengthBatches(
        split.lengths, max_cells=data.eval_tokens, max_sentences=len(split), shuffle=False, cells="tokens"
    )
    index, probabilities, weights, sizes = [], [], [], []
    for items in batches:
        batch = split[items].to(device)
        output: Output = model(batch)
        names = levels_of(output, None)
        mask, own = output.levels[names[0]].mask, attention_of(output, names)
        places = torch.arange(1, mask.size(1) + 1, device=device)
        index.append(batch.index)
        probabilities.append(output.logits.softmax(-1))
        sizes.append((mask * places).amax(1))
        weights.append(own.permute(1, 2, 0)[places <= sizes[-1][:, None]])
    order = torch.cat(index).argsort()
    lengths = torch.cat(sizes)
    starts = lengths.cumsum(0) - lengths
    return TrainOutputs(torch.cat(probabilities)[order], torch.cat(weights), starts[order], lengths[order])


def attention_of(output: Output, names: Sequence[str]) -> Tensor:
    """The weights of these levels, `[levels, batch, positions]`."""
    return torch.stack([output.levels[name].weights for name in names])


def adversarial_loss(
    probabilities: Tensor, weights: Tensor, base_probabilities: Tensor, base_weights: Tensor, strength: float
) -> Tensor:
    """TVD(ŷ_a, ŷ_b) − λ · KL(α_a ‖ α_b), the mean over the texts (Wiegreffe & Pinter 2019, §4).

    Several heads count with the mean of their divergences.

    Args:
        probabilities: ŷ_a `[batch, classes]`.
        weights: α_a `[heads, batch, positions]`.
        base_probabilities: ŷ_b `[batch, classes]`.
        base_weights: α_b `[heads, batch, positions]`.
        strength: λ.
    """
    # Their code takes the TVD of one sigmoid, which is half of that of its two classes: their λ is half of this one.
    return (tvd(probabilities, base_probabilities) - strength * kl(weights, base_weights).mean(0)).mean()


class AdversarialTraining(LightningModule):
    """A classifier that learns to decide as another does, with attention as different as it can be.

    Args:
        model: what is trained, by its own optimiser.
        base: outputs of the other on train.
        strength: λ of the loss; see `adversarial_loss`.
        regularized: whether the terms of the model's regularisers are added to it.
    """

    def __init__(self, model: TextClassifier, base: TrainOutputs, strength: float, regularized: bool = False) -> None:
        super().__init__()
        self.model = model
        self.base, self.strength, self.regularized = base, strength, regularized

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        """The loss; the labels play no part."""
        terms: Mapping[str, Tensor] = {}
        if self.regularized:
            output, terms = self.model.outcome(batch)
        else:
            output = self.model(batch)
        weights = attention_of(output, levels_of(output, None))
        base = self.base.of(batch.index, weights.size(-1))
        loss = adversarial_loss(output.logits.softmax(-1), weights, *base, self.strength)
        loss = loss + sum(terms.values())
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch.index))
        return loss

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """That of the model."""
        return self.model.configure_optimizers()


class TrainedAdversary(NamedTuple):
    """A trained adversary, on the device, in evaluation mode and without gradients; and how it was trained."""

    model: TextClassifier
    best: Best


@dataclass(frozen=True, eq=False)
class Adversaries:
    """The model-consistent adversaries of one trained classifier.

    All have the same initialisation, another than the classifier's. An adversary is that of the epoch with the lowest
    training loss; nothing is chosen on test (in Wiegreffe & Pinter's code the base was).

    Attributes:
        recipe: of the trainings.
        regularized: see `AdversarialTraining`.
    """

    recipe: Recipe
    regularized: bool = False

    @cached_property
    def _base(self) -> TrainOutputs:
        recipe = self.recipe
        return collect_outputs(recipe.checkpoint.model.to(recipe.device), recipe.data, recipe.device)

    def of(self, strength: float) -> TrainedAdversary:
        """The adversary of one λ."""
        recipe = self.recipe

        def train() -> Best:
            fresh = recipe.checkpoint.untrained(recipe.own_data, recipe.training_seed).train()
            module = AdversarialTraining(fresh, self._base, strength, self.regularized)
            found = recipe.fit(module, "train_loss", "min", train_dataloaders=recipe.own_data.train_dataloader())
            return found._replace(state={name.removeprefix("model."): of for name, of in found.state.items()})

        name = f"Adversary λ = {strength:g}"
        best = recipe.load_or_train("adversaries", ["adversary", strength, self.regularized], name, train)
        model = recipe.checkpoint.untrained(recipe.data, recipe.training_seed)
        model.load_state_dict(best.state)
        return TrainedAdversary(model.to(recipe.device).eval().requires_grad_(False), best)


def has_uniform_attention(checkpoint: Checkpoint) -> bool:
    """Whether its attention is uniform, so that no model of its kind has another."""
    model = checkpoint.model
    if isinstance(model, HierarchicalClassifier):
        return isinstance(model.sentence_attention, UniformAttention)
    return isinstance(model, AttentionClassifier) and isinstance(model.attention, UniformAttention)
