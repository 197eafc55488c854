"""Trainings with imposed attention (Wiegreffe & Pinter 2019): adversaries (§4), and token-wise models (§3.4).

`Recipe` trains models inside the measurement; `fidelity.roar` uses it too.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.seed import isolate_rng
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from attention_probing.corpora.splits import Split
from attention_probing.datamodules import ClassificationDataModule, TextBatch
from attention_probing.datamodules.batches import Ranks
from attention_probing.fidelity.checkpoints import OPTIMISATION, Checkpoint
from attention_probing.fidelity.classified import ClassifiedBatch, levels_of
from attention_probing.fidelity.comparison import CheckpointResult, column_means
from attention_probing.fidelity.erasure import by_max_attention, max_attention, violins
from attention_probing.fidelity.experiment import FidelityTest, Measurements, Score
from attention_probing.fidelity.saliency import Saliency
from attention_probing.measures.trainings import Best, Training, share, train_nested
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.classification import f1_score
from attention_probing.metrics.distributions import area, jsd, kl, tvd
from attention_probing.metrics.statistics import mean
from attention_probing.models import (
    AttentionClassifier,
    AverageEncoder,
    HierarchicalClassifier,
    TextClassifier,
    TransformerClassifier,
    UniformAttention,
)
from attention_probing.models.text_classifier import WORD, Output
from attention_probing.results import Curves, Estimate, Figure, Floats, Table, Unit
from attention_probing.results.digests import Digests, digest
from attention_probing.results.errors import UserError, check_numbers, check_values

Stop = Literal["train", "dev"]

VERSION = 1  # of the trainings: files of another version are not found again

_UNITS: dict[str, Unit] = {"strength": "ratio", "tvd": "fraction", "jsd": "nats", "epochs": "count"}
_UNITS |= {"f1": "fraction", "accuracy": "fraction", "outside": "fraction"}

# Models compared beside the adversaries: the checkpoint itself, the first of its variant, the first with uniform
# attention.
ITSELF, FIRST, UNIFORM = "itself", "first", "uniform"
_BESIDE = {FIRST: "another seed", UNIFORM: "uniform attention"}
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
    headline = ("area", "max_jsd")
    directions: ClassVar = dict.fromkeys(headline, "↓")
    claims: ClassVar = {"max_jsd": "the attention of the farthest adversarial model is on average {} (JSD) away"}

    def __init__(
        self,
        strengths: tuple[float, ...] = (0.0, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
        max_epochs: int = 80,
        patience: int = 10,
        seeds: int | None = None,
        stop: Stop = "train",
    ) -> None:
        check_values(self, stop=stop)
        self.strengths = {f"{strength:g}": strength for strength in strengths}
        if not strengths or not all(0 <= one < math.inf for one in strengths) or len(self.strengths) < len(strengths):
            raise UserError(
                f"ConsistentAdversary: strengths is {list(strengths)}, but must be one or more different numbers ≥ 0."
            )
        check_numbers(self, least=1, max_epochs=max_epochs, patience=patience, seeds=seeds)
        self.max_epochs, self.patience, self.seeds, self.stop = max_epochs, patience, seeds, stop
        self._begun: tuple[Checkpoint, ...] = ()
        self._adversaries: dict[str, dict[str, TrainedAdversary]] = {}

    def begin(
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        self._begun, self._adversaries = tuple(checkpoints), {}
        wanted: list[tuple[Recipe, str]] = []
        for checkpoint in checkpoints:
            variant = [one for one in checkpoints if one.variant == checkpoint.variant]
            if checkpoint.has_recipe and checkpoint in variant[: self.seeds] and not has_uniform_attention(checkpoint):
                recipe = Recipe(checkpoint, data, device, self.max_epochs, self.patience, seed)
                wanted += product([recipe], self.strengths)
        trainings = [adversary_training(recipe, self.strengths[name], self.stop) for recipe, name in wanted]
        found = share(trainings)
        for (recipe, name), best in zip(wanted, found, strict=True):
            self._adversaries.setdefault(recipe.checkpoint.name, {})[name] = trained_adversary(recipe, best)

    def columns(self, classes: int) -> Sequence[str]:
        others = (*self.strengths, ITSELF, FIRST, UNIFORM)
        compared = [f"{what}_{other}" for other in others for what in ("tvd", "jsd", "predicted", "outside")]
        return ["gold", "max_attention", *compared]

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        batch = classified.batch
        numbers = {"gold": batch.labels.double(), "max_attention": max_attention(classified)}
        numbers |= _compared(ITSELF, classified.output, classified)
        for name, other in self._others(classified.checkpoint.name).items():
            numbers |= _compared(name, other.model(batch), classified)
        return Measurements(numbers)

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        tvds, jsds = ([f"{what}_{name}" for name in self.strengths] for what in ("tvd", "jsd"))
        return {"area": Score((*tvds, *jsds), _area, "nats"), "max_jsd": Score(jsds, _highest, "nats")}

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
            values = result.columns(self.name)
            for name, other in {ITSELF: None, **self._others(result.name)}.items():
                decisions = values[["gold", f"predicted_{name}"]].dropna()
                label = other.name if other else ITSELF
                names = {"variant": result.variant, "checkpoint": result.name, "other": label}
                numbers = {
                    "strength": self.strengths.get(name, math.nan),
                    **_mean(values, "tvd", name).named("tvd"),
                    **_mean(values, "jsd", name).named("jsd"),
                    "outside": values[f"outside_{name}"].mean(),
                    "f1": resample(f1_score(result.positive, result.classes), decisions, "fraction").value,
                    "accuracy": (decisions["gold"] == decisions[f"predicted_{name}"]).mean(),
                    "epochs": other.best.epochs if isinstance(other, TrainedAdversary) else math.nan,
                }
                rows.append({**names, **numbers})
        return {self.name: Table(pd.DataFrame(rows), _UNITS)}

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
        curves: dict[str, list[list[tuple[float, ...]]]] = {}  # by variant and seed, the points of a curve
        beside: dict[str, list[tuple[float, ...]]] = {}
        for result in results:
            values, others = result.columns(self.name), self._others(result.name)
            found = {name: tuple(_mean(values, what, name).value for what in ("tvd", "jsd")) for name in others}
            if result.name in self._adversaries:
                of_seed = [(0.0, 0.0), *(found[name] for name in self.strengths)]
                curves.setdefault(result.variant, []).append(of_seed)
            # Distances are symmetric: the distance of a seed to the first is also the first's to the seed.
            for name in (FIRST, UNIFORM):
                if name in found:
                    beside.setdefault(_BESIDE[name], []).append(found[name])
        lines = {variant: _axes(np.mean(seeds, axis=0)) for variant, seeds in curves.items()}
        points = {variant: _axes(np.concatenate(seeds)) for variant, seeds in curves.items() if len(seeds) > 1}
        points |= {name: _axes(np.array(pairs)) for name, pairs in beside.items()}
        figures: dict[str, Figure] = {}
        if lines or points:
            title, axes = "Model-consistent adversaries", ("TVD of the decisions", "JSD of the attention")
            figures[self.name] = Curves(title, *axes, lines, points, y_range=(0.0, math.log(2)))
        if any(result.columns(self.name)[f"jsd_{FIRST}"].notna().any() for result in results):
            seeds = by_max_attention(results, self.name, f"jsd_{FIRST}")
            figures[f"{self.name}.seeds"] = violins("Attention under other seeds", seeds, "JSD to the first seed")
        return figures

    def _others(self, name: str) -> "dict[str, TrainedAdversary | Checkpoint]":
        """Return a checkpoint's adversaries, the first of its variant, the first with uniform attention; not itself."""
        checkpoint = next(one for one in self._begun if one.name == name)
        others: dict[str, TrainedAdversary | Checkpoint] = {**self._adversaries.get(name, {})}
        others[FIRST] = next(one for one in self._begun if one.variant == checkpoint.variant)
        uniform = next((one for one in self._begun if has_uniform_attention(one)), None)
        if uniform and isinstance(checkpoint.model, AttentionClassifier) and not has_uniform_attention(checkpoint):
            others[UNIFORM] = uniform
        return {label: other for label, other in others.items() if other is not checkpoint}

    def audit(self) -> Mapping[str, object]:
        """Return three counts.

        They are `adversaries`; `cut_off`, the adversaries whose training was ended by `max_epochs`; and
        `checkpoints_left_out`, the Hugging Face models, whose training is not known.
        """
        found = [adversary.best for each in self._adversaries.values() for adversary in each.values()]
        left_out = sum(not checkpoint.has_recipe for checkpoint in self._begun)
        cut_off = sum(not best.stopped for best in found)
        return {"adversaries": len(found), "cut_off": cut_off, "checkpoints_left_out": left_out}


def _axes(pairs: Floats) -> tuple[list[float], list[float]]:
    """Return the x and the y coordinates of points `[points, 2]`."""
    xs, ys = pairs.T.tolist()
    return xs, ys


def _compared(name: str, output: Output, classified: ClassifiedBatch) -> dict[str, Tensor]:
    """Return columns of a batch: distances of another model's decisions and attention from the checkpoint's."""
    ours, theirs = (attention_of(one).double() for one in (classified.output, output))
    probabilities = output.logits.softmax(-1, dtype=torch.float64)
    return {
        f"tvd_{name}": tvd(probabilities, classified.probabilities),
        # Weights in single precision may sum to a little more than one.
        f"jsd_{name}": jsd(theirs, ours).mean(0).clamp(max=math.log(2)),
        f"predicted_{name}": probabilities.argmax(-1).double(),
        f"outside_{name}": theirs.masked_fill(ours > 0, 0).sum(-1).mean(0),
    }


def _mean(values: pd.DataFrame, what: str, name: str) -> Estimate:
    return resample(mean, values[[f"{what}_{name}"]], _UNITS[what])


def _area(values: Floats, weights: Floats) -> Floats:
    return area(*np.split(column_means(values, weights), 2, axis=1))


def _highest(values: Floats, weights: Floats) -> Floats:
    return np.asarray(column_means(values, weights).max(axis=1))


@dataclass(frozen=True, eq=False)
class Recipe:
    """Settings of a checkpoint's training, with which other models are trained for comparison.

    Optimiser, learning rate, clipping and batch size are the checkpoint's. A training ends after
    `max_epochs` epochs, or after `patience` epochs without improvement. All random numbers depend on `seed`
    and the checkpoint. Finished trainings are kept as files.

    Attributes:
        checkpoint: Checkpoint whose configuration is used.
        data: Datamodule of the run, set up.
        device: Device of the trainings.
        max_epochs: Largest number of epochs.
        patience: Epochs without improvement before a training ends.
        seed: Seed of the run.
    """

    checkpoint: Checkpoint
    data: ClassificationDataModule
    device: torch.device
    max_epochs: int
    patience: int
    seed: int

    @cached_property
    def training_seed(self) -> int:
        """Seed of all trainings for this checkpoint, from `seed` and the checkpoint's digest."""
        return int(digest(f"{self.seed} {self.checkpoint.digest}".encode())[:8], 16)

    @cached_property
    def own_data(self) -> ClassificationDataModule:
        """Datamodule with the splits of `data` and the batch size of the checkpoint's training."""
        own = copy(self.data)
        own.place(Ranks(), self.device)  # this process trains alone
        own.seed = self.training_seed
        own.batch_size = self.checkpoint.config["data"].get("init_args", {}).get("batch_size", own.batch_size)
        return own

    def fit(
        self,
        module: LightningModule,
        monitor: str,
        mode: Literal["min", "max"],
        **texts: Any,  # noqa: ANN401
    ) -> Best:
        """Train a module with these settings, and return the parameters of its best epoch.

        Args:
            module: Module to train.
            monitor: Name of the logged value that decides which epoch is best.
            mode: `min` if the lowest value is best, `max` if the highest.
            **texts: Data, as in Lightning's `Trainer.fit`: `train_dataloaders` or `datamodule`.

        Returns:
            The parameters on the CPU, with the number of the best epoch and its monitored value.

        Raises:
            TrainingError: The monitored value is never finite.
        """
        run = self.checkpoint.config.get("trainer", {})
        return train_nested(
            module,
            monitor=monitor,
            mode=mode,
            max_epochs=self.max_epochs,
            patience=self.patience,
            seed=self.training_seed,
            remedy=f"It is trained for {self.checkpoint.name}: give the test smaller strengths, or leave it out.",
            device=self.device,
            optimisation={name: run[name] for name in OPTIMISATION if run.get(name) is not None},
            **texts,
        )

    def training(
        self, kind: str, options: Sequence[object], name: str, train: Callable[[], Best], before: int = 0
    ) -> Training:
        """Return the description of a training; `measures.trainings.share` runs it later.

        Its best epoch is kept as a file, so that later runs need not repeat the training.

        Args:
            kind: Folder of the file in the datamodule's cache. The file's name is a digest of the recipe
                and `options`.
            options: Everything apart from the recipe that affects the trained model.
            name: Name of the training in the log.
            train: Function that trains and returns the best epoch.
            before: Largest number of epochs of another training that `train` runs first; it counts toward
                the expected duration.
        """
        path = self.data.cache / kind / f"{digest(json.dumps([*self._identity, *options]).encode())}.ckpt"
        return Training(f"{name} of {self.checkpoint.name}", path, train, before + self.max_epochs)

    def texts(self, split: Split) -> list[object]:
        """Return digests that identify the texts of a split, which may have been cut."""
        file, lengths = self.data.files()[split], self.data.splits[split].lengths
        read = [self.data.splits[split].digest] if self.data.format == "eraser" else []  # from further files
        return [Digests(self.data.cache).one(file), digest(lengths.tobytes()), *read]

    @cached_property
    def _identity(self) -> list[object]:
        vectors = None if self.data.vectors is None else dict(self.data.vectors.identity)
        data = [*self.texts("train"), dict(self.data.identity), vectors, self.own_data.batch_size]
        model = self.checkpoint.model
        levels = list(model.levels) if isinstance(model, TransformerClassifier) else []
        return [VERSION, self.checkpoint.digest, data, self.max_epochs, self.patience, self.seed, *levels]

    @cached_property
    def outputs(self) -> "Mapping[str, SplitOutputs]":
        """Outputs of the checkpoint for all texts of train and dev, by split."""
        model, splits = self.checkpoint.model.to(self.device), get_args(Stop)
        return {split: collect_outputs(model, self.data, self.device, split) for split in splits}


class SplitOutputs(NamedTuple):
    """Outputs of a classifier for all texts of a split.

    Attributes:
        probabilities: Probabilities of the classes, `[texts, classes]`.
        weights: Attention for each text, `[positions, heads]`.
    """

    probabilities: Tensor
    weights: Sequence[Tensor]

    def padded(self, texts: Tensor, positions: int) -> tuple[Tensor, Tensor]:
        """Return the outputs for a batch of texts, with attention padded to a common number of positions.

        Args:
            texts: Indices of the texts in the split, int64 `[batch]`.
            positions: Number of positions after padding.

        Returns:
            Probabilities `[batch, classes]`, and attention `[heads, batch, positions]`, 0 in the
            padding.
        """
        weights = pad_sequence([self.weights[text] for text in texts.tolist()], batch_first=True)
        return self.probabilities[texts], pad(weights, (0, 0, 0, positions - weights.size(1))).permute(2, 0, 1)


@torch.no_grad()
def collect_outputs(
    model: TextClassifier, data: ClassificationDataModule, device: torch.device, split: Split = "train"
) -> SplitOutputs:
    """Classify all texts of a split; return the outputs."""
    probabilities: dict[int, Tensor] = {}
    weights: dict[int, Tensor] = {}
    for batch in data.splits[split].batches(data.eval_tokens):
        batch = batch.to(device)
        output: Output = model(batch)
        mask = output.levels[levels_of(output, None)[0]].mask
        sizes = (mask * torch.arange(1, mask.size(1) + 1, device=device)).amax(1)  # up to the last position with weight
        texts = batch.index.tolist()
        probabilities |= dict(zip(texts, output.logits.softmax(-1), strict=True))
        rows = zip(texts, attention_of(output).permute(1, 2, 0), sizes.tolist(), strict=True)
        weights |= {text: row[:size].clone() for text, row, size in rows}
    order = sorted(weights)
    return SplitOutputs(torch.stack([probabilities[text] for text in order]), [weights[text] for text in order])


def attention_of(output: Output) -> Tensor:
    """Return the attention weights in an output, `[levels, batch, positions]`.

    The levels are the sentence level if there is one, else all levels.
    """
    return torch.stack([output.levels[name].weights for name in levels_of(output, None)])


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
        self.model, self.base, self.strength = model, base, strength

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        """Return the adversarial loss of a batch, a scalar; it does not use the labels."""
        output: Output = self.model(batch)
        weights = attention_of(output)
        base = self.base[batch.split].padded(batch.index, weights.size(-1))
        loss = adversarial_loss(output.logits.softmax(-1), weights, *base, self.strength)
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
    """Return the description of an adversary's training; `measures.trainings.share` runs it later.

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
        fresh = recipe.checkpoint.untrained(recipe.own_data, recipe.training_seed).train()
        kind, texts = AdversarialTraining, {"train_dataloaders": recipe.own_data.train_dataloader()}
        if stop == "dev":
            kind, texts["val_dataloaders"] = ValidatedTraining, recipe.own_data.val_dataloader()
        found = recipe.fit(kind(fresh, recipe.outputs, strength), f"{stop}_loss", "min", **texts)
        return found._replace(state={name.removeprefix("model."): value for name, value in found.state.items()})

    options = ["adversary", strength, *(["dev", *recipe.texts("dev")] if stop == "dev" else [])]
    return recipe.training("adversaries", options, f"Adversary λ = {strength:g}", train)


def trained_adversary(recipe: Recipe, best: Best) -> TrainedAdversary:
    """Return a trained adversary, with the parameters of its best epoch, on the device of the recipe.

    Args:
        recipe: Settings of the training.
        best: Result of the training that `adversary_training` describes.
    """
    model = recipe.checkpoint.untrained(recipe.data, recipe.training_seed)
    model.load_state_dict(best.state)
    return TrainedAdversary(model.to(recipe.device).eval().requires_grad_(False), best)


def has_uniform_attention(checkpoint: Checkpoint) -> bool:
    """Return True if a checkpoint's attention is uniform by construction, so that it can have no adversary."""
    model = checkpoint.model
    if isinstance(model, HierarchicalClassifier):
        return isinstance(model.sentence_attention, UniformAttention)
    return isinstance(model, AttentionClassifier) and isinstance(model.attention, UniformAttention)


Source = Literal["uniform", "own", "base", "adversary"]
"""Source of attention: uniform, learned by the token-wise model itself, the checkpoint's, or its adversary's."""
SOURCES: tuple[Source, ...] = get_args(Source)


def guided(guide: TextClassifier, **parts: Any) -> AttentionClassifier:  # noqa: ANN401
    """Return a flat classifier that uses the attention of another model instead of learning its own.

    Args:
        guide: Model whose attention is used; it is not trained.
        **parts: Options of `AttentionClassifier`.
    """

    def weights(batch: TextBatch) -> dict[str, Tensor]:
        with torch.no_grad():
            return {WORD: guide(batch).levels[WORD].weights}

    model = AttentionClassifier(attention=UniformAttention(), **parts)
    model.guide = weights
    return model


class GuidedMLP(FidelityTest):
    """F1 of a token-wise MLP with imposed attention, by source (Wiegreffe & Pinter 2019).

    The MLP maps each word by itself, so context can enter only through the attention. It is trained on
    the labels.

    If the checkpoint's attention helps the MLP more than uniform attention, and more than attention
    that the MLP learns itself, it carries information about the text that is useful beyond the
    checkpoint. This does not follow if an adversary's attention helps as much.

    Embeddings and optimisation of the MLP are those of the checkpoint, without its regularisers. The
    best epoch is chosen on dev. Hierarchical classifiers and transformers are left out, because they
    have no single distribution of attention over words. Scores: `<source>.f1`, the F1 on test.

    Args:
        max_epochs: Largest number of epochs of a training of the MLP.
        adversary_epochs: Largest number of epochs of the adversary's training. An adversary that
            `ConsistentAdversary` has trained with λ = .01 and the same epochs, patience and seed is used again.
    """

    name = "guided_mlp"
    headline = (".f1",)
    strength = 1e-2  # weight λ of the KL term in the adversary's loss
    size = 256  # of the hidden states of the MLP
    patience = 5  # epochs without a higher F1 on dev before a training of the MLP ends
    adversary_patience = 10  # as `patience` of `ConsistentAdversary`

    def __init__(self, max_epochs: int = 20, adversary_epochs: int = 80) -> None:
        check_numbers(self, least=1, max_epochs=max_epochs, adversary_epochs=adversary_epochs)
        self.max_epochs, self.adversary_epochs = max_epochs, adversary_epochs
        self._models: dict[str, dict[str, TextClassifier]] = {}
        self._cut_off = self._left_out = 0

    def begin(
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        flat = [checkpoint for checkpoint in checkpoints if isinstance(checkpoint.model, AttentionClassifier)]
        self._models, self._cut_off, self._left_out = {}, 0, len(checkpoints) - len(flat)
        wanted: list[tuple[Recipe, Source]] = []
        for checkpoint in flat:
            recipe = Recipe(checkpoint, data, device, self.max_epochs, self.patience, seed)
            uniform = has_uniform_attention(checkpoint)
            wanted += [(recipe, source) for source in SOURCES if source != "adversary" or not uniform]
        with isolate_rng():
            found = share([self._training(recipe, source) for recipe, source in wanted])
            for (recipe, source), best in zip(wanted, found, strict=True):
                model = self._untrained(recipe, source)
                model.make_for(data)
                model.load_state_dict(best.state)
                model.to(device).eval().requires_grad_(False)
                self._models.setdefault(recipe.checkpoint.name, {})[source] = model
                self._cut_off += not best.stopped

    def _training(self, recipe: Recipe, source: Source) -> Training:
        dev = Digests(recipe.data.cache).one(recipe.data.files()["dev"])
        options: list[object] = [source, self.size, dev]
        before = 0
        if source == "adversary":
            options += [self.strength, self.adversary_epochs]
            before = self.adversary_epochs

        def train() -> Best:
            return recipe.fit(self._untrained(recipe, source), "val_f1", "max", datamodule=recipe.own_data)

        return recipe.training("diagnostics", options, f"Token-wise model with attention `{source}`", train, before)

    def _untrained(self, recipe: Recipe, source: Source) -> AttentionClassifier:
        """Return the model of a source; the guiding adversary is trained unless it is kept."""
        base = recipe.checkpoint.model.to(recipe.device)
        assert isinstance(base, AttentionClassifier)
        optimisation = ("learning_rate", "optimizer", "weight_decay", "decay")
        parts: dict[str, Any] = {name: getattr(base, name) for name in optimisation}
        parts |= {"encoder": AverageEncoder(self.size), "embedding": base.spec, "dropout": base.dropout.p}
        parts = deepcopy(parts)
        if source == "uniform":
            return AttentionClassifier(attention=UniformAttention(), **parts)
        if source == "own":  # the checkpoint's kind of attention, with parameters for states of this size
            return AttentionClassifier(attention=deepcopy(base.attention).train(), **parts)
        guide: TextClassifier = base
        if source == "adversary":
            own = replace(recipe, max_epochs=self.adversary_epochs, patience=self.adversary_patience)
            guide = trained_adversary(own, *share([adversary_training(own, self.strength)])).model
        return guided(guide, **parts)

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        models = self._models.get(classified.checkpoint.name, {})
        numbers = {f"predicted_{name}": model(classified.batch).logits.argmax(-1) for name, model in models.items()}
        return Measurements(numbers | {"gold": classified.batch.labels})

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        f1 = f1_score(positive, classes)
        return {f"{source}.f1": Score(("gold", f"predicted_{source}"), f1, "fraction") for source in SOURCES}

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the table `guided_mlp`: the F1 of the MLP for each checkpoint and source of attention.

        Columns: `variant` and `checkpoint`; `attention`, the source of the attention; `f1`, with the
        ends of its interval, `f1.low` and `f1.high`. They are nan if the checkpoint has no MLP with this
        source.
        """
        rows = [
            {"variant": result.variant, "checkpoint": result.name, "attention": source}
            | result.scores[f"{self.name}.{source}.f1"].named("f1")
            for result in results
            for source in SOURCES
        ]
        return {self.name: Table(pd.DataFrame(rows), {"f1": "fraction"})}

    def audit(self) -> Mapping[str, object]:
        """Return three counts over all checkpoints.

        They are `models`, the trained MLPs; `cut_off`, the MLPs whose training was ended by `max_epochs`;
        and `checkpoints_left_out`, the checkpoints that are not flat classifiers.
        """
        models = sum(len(models) for models in self._models.values())
        return {"models": models, "cut_off": self._cut_off, "checkpoints_left_out": self._left_out}
