"""Adversaries: whole models with other attention and the same decisions (Wiegreffe & Pinter 2019, §4)."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from attention_probing.datamodules import ClassificationDataModule, TextBatch
from attention_probing.fidelity.checkpoints import Checkpoint
from attention_probing.fidelity.classified import ClassifiedBatch
from attention_probing.fidelity.contract import CheckpointResult, FidelityTest, Reading, Score, column_means
from attention_probing.fidelity.highest_weight import by_max_attention, max_attention, violins
from attention_probing.fidelity.recipe import Recipe
from attention_probing.fidelity.saliency import Saliency
from attention_probing.fidelity.split_outputs import SplitOutputs, attention_of
from attention_probing.measures.trainings import Best, Training, run_trainings
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.classification import f1_score
from attention_probing.metrics.distributions import area, jsd, kl, tvd
from attention_probing.metrics.statistics import mean
from attention_probing.models import (
    AttentionClassifier,
    HierarchicalClassifier,
    TextClassifier,
    UniformAttention,
)
from attention_probing.models.text_classifier import Output
from attention_probing.results import Curves, Estimate, Figure, Floats, Table, Unit
from attention_probing.results.errors import UserError
from attention_probing.results.options import Positive, checked

Stop = Literal["train", "dev"]
Point = tuple[float, float]
Axes = tuple[list[float], list[float]]
_UNITS: dict[str, Unit] = {"strength": "ratio", "tvd": "fraction", "jsd": "nats", "epochs": "count"}
_UNITS |= {"f1": "fraction", "accuracy": "fraction", "outside": "fraction"}
# Models compared beside the adversaries: the checkpoint itself, the first of its variant, the first with uniform
# attention.
ITSELF, FIRST_SEED, UNIFORM = "itself", "first", "uniform"
_BESIDE = {FIRST_SEED: "another seed", UNIFORM: "uniform attention"}
"""Names of other checkpoints in the figure."""


class ConsistentAdversary(FidelityTest):
    """Difference in attention between a checkpoint and adversaries trained to make the same decisions.

    One adversary is trained for each strength λ. It should decide like the checkpoint, with other
    attention: the loss on train is TVD − λ · KL (Wiegreffe & Pinter 2019, §4). TVD is the total
    variation distance between the outputs of adversary and checkpoint; KL is the divergence between
    their attention distributions. Training follows the checkpoint's configuration, from other random
    initial weights (in a transformer only the classification head is random).

    On test, each adversary is a point of a curve: the mean TVD of the outputs and the mean JSD of the
    attention. The curve begins at the checkpoint itself, (0, 0). The score `area` is the area under the
    curve of JSD over TVD, see `metrics.distributions.area`; `max_jsd` is the largest mean JSD of an
    adversary. Two other kinds of models are compared with the checkpoint: the first seed of the same
    variant, to show the effect of a new training alone; and a checkpoint with uniform attention. A
    checkpoint with uniform attention has no adversaries, nor has a model from Hugging Face files.

    KL is infinite if the adversary gives weight to a word to which the checkpoint gives none, which is possible
    only with sparse attention (`EntmaxAttention`). The loss replaces such a weight of 0 by the smallest normal
    number: an adversary with all its weight on these words gains λ · 87 nats, and the same λ leads farther than
    with softmax. JSD is finite, so compare the curves and not the points of one λ. The column `outside` of the
    table is the weight that the adversary gives to these words.

    In a hierarchical classifier the attention over sentences is tested. In a transformer, divergences
    are means over its heads. Adversaries are kept in `adversaries/` of the datamodule's cache; a run
    that is started again trains only the missing ones.

    Args:
        strengths: Values of λ. The TVD of two classes is twice the TVD in Wiegreffe & Pinter's code, so
            λ is twice theirs.
        max_epochs: Largest number of epochs of a training.
        patience: Epochs without a lower loss before a training ends.
        seeds: Number of checkpoints of each variant that get adversaries, in the order of the
            checkpoints; None for all.
        stop: Split whose loss ends a training and selects its best epoch: `train`, as in the paper, or
            `dev`.
    """

    name = "consistent_adversary"
    readings: ClassVar = {
        "area": Reading("↓"),
        "max_jsd": Reading("↓", "the attention of the farthest adversarial model is on average {} (JSD) away"),
    }

    @checked
    def __init__(
        self,
        strengths: tuple[float, ...] = (0.0, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
        max_epochs: Positive = 80,
        patience: Positive = 10,
        seeds: Positive | None = None,
        stop: Stop = "train",
    ) -> None:
        self.strengths = {f"{strength:g}": strength for strength in strengths}
        in_range = all(0 <= strength < math.inf for strength in strengths)
        if not strengths or not in_range or len(self.strengths) < len(strengths):
            raise UserError(
                f"ConsistentAdversary: strengths is {list(strengths)}, but must be one or more different numbers ≥ 0."
            )
        self.max_epochs = max_epochs
        self.patience = patience
        self.seeds = seeds
        self.stop = stop
        self._checkpoints: tuple[Checkpoint, ...] = ()
        self._adversaries: dict[str, dict[str, TrainedAdversary]] = {}

    def begin(
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        self._checkpoints = tuple(checkpoints)
        self._adversaries = {}
        self._f1 = f1_score(data.positive, len(data.labels))
        recipes = []
        for checkpoint in checkpoints:
            if self._gets_adversaries(checkpoint):
                recipes.append(Recipe(checkpoint, data, device, self.max_epochs, self.patience, seed))
        pairs = list(product(recipes, self.strengths))
        trainings = [adversary_training(recipe, self.strengths[name], self.stop) for recipe, name in pairs]
        for (recipe, name), best in zip(pairs, run_trainings(trainings), strict=True):
            of_checkpoint = self._adversaries.setdefault(recipe.checkpoint.name, {})
            of_checkpoint[name] = load_adversary(recipe, best)

    def _gets_adversaries(self, checkpoint: Checkpoint) -> bool:
        seeds = [other for other in self._checkpoints if other.variant == checkpoint.variant]
        is_among_seeds = checkpoint in seeds[: self.seeds]
        return is_among_seeds and checkpoint.has_recipe and not has_uniform_attention(checkpoint)

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        outputs = {ITSELF: classified.output}
        for name, other in self._others(classified.checkpoint.name).items():
            outputs[name] = other.model(classified.batch)
        columns = {"gold": classified.batch.labels.double(), "max_attention": max_attention(classified)}
        for name in (*self.strengths, ITSELF, FIRST_SEED, UNIFORM):
            if name in outputs:
                distances = compare_outputs(outputs[name], classified)
            else:
                distances = dict.fromkeys(DISTANCES, torch.full_like(classified.confidence, torch.nan))
            for distance, values in distances.items():
                columns[f"{distance}_{name}"] = values
        return columns

    def scores(self) -> Mapping[str, Score]:
        tvds = [f"tvd_{name}" for name in self.strengths]
        jsds = [f"jsd_{name}" for name in self.strengths]
        return {
            "area": Score((*tvds, *jsds), _area, "nats", main=True),
            "max_jsd": Score(jsds, _highest, "nats", main=True),
        }

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return a table with one row for each checkpoint and each model that it is compared with.

        A checkpoint is compared with its adversaries, with the first seed of its variant, and with a
        checkpoint with uniform attention. A further row, `itself`, compares it with itself. Columns:

        - `variant` and `checkpoint`: names of the checkpoint.
        - `other`: name of the model that it is compared with.
        - `strength`: λ, if that model is an adversary.
        - `tvd` and `jsd`: mean TVD of the outputs and mean JSD of the attention, between the two models.
        - `outside`: mean weight that the other model gives where the checkpoint gives none, so that KL is infinite.
        - `f1`, `accuracy`, `epochs`: scores and training epochs of the model that it is compared with.
        """
        rows = []
        for result in results:
            texts = result.columns(self.name)
            names = {"variant": result.variant, "checkpoint": result.name}
            rows.append({**names, "other": ITSELF, **self._table_row(texts, ITSELF)})
            for name, other in self._others(result.name).items():
                row = self._table_row(texts, name)
                if isinstance(other, TrainedAdversary):
                    row["epochs"] = other.best.epochs
                rows.append({**names, "other": other.name, **row})
        return {self.name: Table(pd.DataFrame(rows), _UNITS)}

    def _table_row(self, texts: pd.DataFrame, name: str) -> dict[str, float]:
        """Return the numbers of a row of the table, without epochs.

        Args:
            texts: Rows of the texts under a checkpoint.
            name: Name of the model that it is compared with, as in columns.
        """
        decisions = texts[["gold", f"predicted_{name}"]].dropna()
        return {
            "strength": self.strengths.get(name, math.nan),
            **_mean(texts, "tvd", name).columns("tvd"),
            **_mean(texts, "jsd", name).columns("jsd"),
            "outside": texts[f"outside_{name}"].mean(),
            "f1": resample(self._f1, decisions, "fraction").value,
            "accuracy": (decisions["gold"] == decisions[f"predicted_{name}"]).mean(),
            "epochs": math.nan,
        }

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return the figures `consistent_adversary` and `consistent_adversary.seeds`.

        The figure `consistent_adversary` plots the mean JSD of the attention (y) against the mean TVD of
        the outputs (x), both relative to a checkpoint. Each variant has a line from the checkpoint itself,
        at (0, 0), through its adversaries in the order of λ; its coordinates are means over the seeds of
        the variant. If there are several seeds, the adversaries of each seed are points of the same
        colour. Checkpoints with another seed or with uniform attention are separate points.

        The figure `consistent_adversary.seeds` exists only if a variant has several seeds. It has
        violins of the JSD between the attention of each seed and of the first seed, in bins of the
        texts' highest attention weight.
        """
        figures: dict[str, Figure] = {}
        lines, points = self._curves(results)
        if lines or points:
            title = "Model-consistent adversaries"
            axes = ("TVD of the decisions", "JSD of the attention")
            figures[self.name] = Curves(title, *axes, lines, points, y_range=(0.0, math.log(2)))
        column = f"jsd_{FIRST_SEED}"
        if any(result.columns(self.name)[column].notna().any() for result in results):
            by_bin = by_max_attention(results, self.name, column)
            figures[f"{self.name}.seeds"] = violins("Attention under other seeds", by_bin, "JSD to the first seed")
        return figures

    def _curves(self, results: Sequence[CheckpointResult]) -> tuple[dict[str, Axes], dict[str, Axes]]:
        """Return the lines and the points of the figure `consistent_adversary`, by name."""
        curves: dict[str, list[list[Point]]] = {}  # by variant and seed, the points of a curve
        beside: dict[str, list[Point]] = {}
        for result in results:
            texts = result.columns(self.name)
            of_others: dict[str, Point] = {}
            for name in self._others(result.name):
                of_others[name] = (_mean(texts, "tvd", name).value, _mean(texts, "jsd", name).value)
            if result.name in self._adversaries:
                curve = [(0.0, 0.0)]
                curve += [of_others[name] for name in self.strengths]
                curves.setdefault(result.variant, []).append(curve)
            # Distances are symmetric: the distance of a seed to the first is also the first's to the seed.
            for name in (FIRST_SEED, UNIFORM):
                if name in of_others:
                    beside.setdefault(_BESIDE[name], []).append(of_others[name])
        lines = {}
        points = {}
        for variant, seeds in curves.items():
            lines[variant] = _axes(np.mean(seeds, axis=0))
            if len(seeds) > 1:
                points[variant] = _axes(np.concatenate(seeds))
        for name, pairs in beside.items():
            points[name] = _axes(np.array(pairs))
        return lines, points

    def _others(self, name: str) -> "dict[str, TrainedAdversary | Checkpoint]":
        """Return a checkpoint's adversaries, the first of its variant, the first with uniform attention; not itself."""
        [checkpoint] = [one for one in self._checkpoints if one.name == name]
        others: dict[str, TrainedAdversary | Checkpoint] = dict(self._adversaries.get(name, {}))
        seeds = [one for one in self._checkpoints if one.variant == checkpoint.variant]
        if seeds[0] is not checkpoint:
            others[FIRST_SEED] = seeds[0]
        is_flat = isinstance(checkpoint.model, AttentionClassifier)
        if is_flat and not has_uniform_attention(checkpoint):
            uniform = [one for one in self._checkpoints if has_uniform_attention(one)]
            if uniform:
                others[UNIFORM] = uniform[0]
        return others

    def audit(self) -> Mapping[str, object]:
        """Return three counts.

        They are `adversaries`; `cut_off`, the adversaries whose training was ended by `max_epochs`; and
        `checkpoints_left_out`, the Hugging Face models, whose training is not known.
        """
        adversaries: list[TrainedAdversary] = []
        for of_checkpoint in self._adversaries.values():
            adversaries.extend(of_checkpoint.values())
        cut_off = sum(not adversary.best.stopped for adversary in adversaries)
        left_out = sum(not checkpoint.has_recipe for checkpoint in self._checkpoints)
        return {"adversaries": len(adversaries), "cut_off": cut_off, "checkpoints_left_out": left_out}


def _axes(pairs: Floats) -> Axes:
    """Return the x and the y coordinates of points `[points, 2]`."""
    xs, ys = pairs.T.tolist()
    return xs, ys


DISTANCES = ("tvd", "jsd", "predicted", "outside")
"""Columns of `compare_outputs`."""


def compare_outputs(output: Output, classified: ClassifiedBatch) -> dict[str, Tensor]:
    """Return distances of another model's decisions and attention from the checkpoint's, each `[batch]`.

    Args:
        output: Output of the other model.
        classified: The texts, with the output of the checkpoint.
    """
    attention = attention_of(classified.output).double()
    other = attention_of(output).double()
    probabilities = output.logits.softmax(-1, dtype=torch.float64)
    return {
        "tvd": tvd(probabilities, classified.probabilities),
        # Weights in single precision may sum to a little more than one.
        "jsd": jsd(other, attention).mean(0).clamp(max=math.log(2)),
        "predicted": probabilities.argmax(-1).double(),
        "outside": other.masked_fill(attention > 0, 0).sum(-1).mean(0),
    }


def _mean(texts: pd.DataFrame, what: str, name: str) -> Estimate:
    return resample(mean, texts[[f"{what}_{name}"]], _UNITS[what])


def _area(values: Floats, weights: Floats) -> Floats:
    tvds, jsds = np.split(column_means(values, weights), 2, axis=1)
    return area(tvds, jsds)


def _highest(values: Floats, weights: Floats) -> Floats:
    return np.asarray(column_means(values, weights).max(axis=1))


def adversarial_loss(
    probabilities: Tensor, weights: Tensor, base_probabilities: Tensor, base_weights: Tensor, strength: float
) -> Tensor:
    """Return TVD(ŷ_a, ŷ_b) − λ · KL(α_a ‖ α_b), averaged over texts, a scalar (Wiegreffe & Pinter 2019, §4).

    It is finite where α_b is 0, see `metrics.distributions.kl`.

    Args:
        probabilities: Outputs ŷ_a of the adversary, `[batch, classes]`.
        weights: Attention α_a of the adversary, `[heads, batch, positions]`; KL is averaged over heads.
        base_probabilities: Outputs ŷ_b of the checkpoint, `[batch, classes]`.
        base_weights: Attention α_b of the checkpoint, `[heads, batch, positions]`.
        strength: Weight λ of the KL term.
    """
    # Their code takes the TVD of one sigmoid, half the TVD of its two classes: their λ is half of this λ.
    return (tvd(probabilities, base_probabilities) - strength * kl(weights, base_weights).mean(0)).mean()


class AdversarialTraining(LightningModule):
    """LightningModule that trains an adversary of a given model.

    The adversary learns to give the same outputs as the given model with different attention.

    Args:
        model: The adversary, which is trained.
        base: Outputs and attention of the given model for all texts, by split.
        strength: Weight λ of the KL term in `adversarial_loss`.
    """

    def __init__(self, model: TextClassifier, base: Mapping[str, SplitOutputs], strength: float) -> None:
        super().__init__()
        self.model = model
        self.base = base
        self.strength = strength

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        """Return the adversarial loss of a batch, a scalar; it does not use the labels."""
        output: Output = self.model(batch)
        weights = attention_of(output)
        base_probabilities, base_weights = self.base[batch.split].select(batch.index, weights.size(-1))
        probabilities = output.logits.softmax(-1)
        loss = adversarial_loss(probabilities, weights, base_probabilities, base_weights, self.strength)
        self.log(f"{batch.split}_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch.index))
        return loss

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        return self.model.configure_optimizers()


class ValidatedTraining(AdversarialTraining):
    """AdversarialTraining that also logs the loss on dev, as `dev_loss`."""

    def validation_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        """Return the adversarial loss of a batch of dev."""
        return self.training_step(batch, batch_idx)


class TrainedAdversary(NamedTuple):
    """Adversary after its training.

    Attributes:
        model: The classifier, in evaluation mode and without gradients.
        best: Result of the training, with its best epoch.
        name: Name in tables and figures.
    """

    model: TextClassifier
    best: Best
    name: str = "adversary"


def adversary_training(recipe: Recipe, strength: float, stop: Stop = "train") -> Training:
    """Return the description of an adversary's training; `measures.trainings.run_trainings` runs it later.

    The adversary is trained against the checkpoint of the recipe. All adversaries of a checkpoint start
    from the same random weights, which are not the checkpoint's. The epoch with the lowest loss is kept.
    Nothing is chosen on the test split, unlike in the code of Wiegreffe & Pinter (2019), which chooses
    the base model on it.

    Args:
        recipe: Settings of the training.
        strength: Weight λ of the KL term in the loss.
        stop: Split whose loss ends the training and selects the epoch.
    """

    def train() -> Best:
        data = recipe.training_data
        model = recipe.checkpoint.make_untrained(data, recipe.training_seed).train()
        texts = {"train_dataloaders": data.train_dataloader()}
        module = AdversarialTraining(model, recipe.outputs, strength)
        if stop == "dev":
            texts["val_dataloaders"] = data.val_dataloader()
            module = ValidatedTraining(model, recipe.outputs, strength)
        best = recipe.fit(module, f"{stop}_loss", "min", **texts)
        state = {name.removeprefix("model."): value for name, value in best.state.items()}
        return best._replace(state=state)

    options: list[object] = ["adversary", strength]
    if stop == "dev":
        options += ["dev", *recipe.texts("dev")]
    return recipe.training("adversaries", options, f"Adversary λ = {strength:g}", train)


def load_adversary(recipe: Recipe, best: Best) -> TrainedAdversary:
    """Return a trained adversary, with the parameters of its best epoch, on the device of the recipe.

    Args:
        recipe: Settings of the training.
        best: Result of the training that `adversary_training` describes.
    """
    model = recipe.checkpoint.make_untrained(recipe.data, recipe.training_seed)
    model.load_state_dict(best.state)
    return TrainedAdversary(model.to(recipe.device).eval().requires_grad_(False), best)


def has_uniform_attention(checkpoint: Checkpoint) -> bool:
    """Return True if a checkpoint's attention is uniform by construction, so that it can have no adversary."""
    model = checkpoint.model
    if isinstance(model, HierarchicalClassifier):
        return isinstance(model.sentence_attention, UniformAttention)
    return isinstance(model, AttentionClassifier) and isinstance(model.attention, UniformAttention)
