"""A whole model with other attention and the same decisions (Wiegreffe & Pinter 2019, §4)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules import ClassificationDataModule
from fidelity.base import FidelityTest, Measured, Score, Subject
from fidelity.checkpoints import Checkpoint, FidelityError
from fidelity.imitation import Adversaries, attention_of, uniform
from fidelity.perturbation import by_max_attention, max_attention, violins
from fidelity.reading import Reading, levels_of
from fidelity.training import Best, Recipe
from metrics.bootstrap import mean, resample
from metrics.classification import f1_score
from metrics.distributions import area, jsd, tvd
from models import AttentionClassifier, TextClassifier
from models.interface import Output
from results import Curves, Figure, Table, Unit

Floats = NDArray[np.float64]

ITSELF, FIRST, UNIFORM = "itself", "first", "uniform"
"""What a checkpoint is compared with beside its adversaries: itself, the first of its variant, the first with uniform
attention."""


_UNITS: dict[str, Unit] = {
    "strength": "ratio",
    "tvd": "fraction",
    "jsd": "nats",
    "f1": "fraction",
    "accuracy": "fraction",
    "epochs": "count",
}


class Adversary(NamedTuple):
    """A trained adversary, and how it was trained."""

    model: TextClassifier
    best: Best


class ConsistentAdversary(FidelityTest):
    """How far a new model, trained to decide as the checkpoint does, can take its attention from the checkpoint's.

    One adversary for each λ is trained on TVD − λ · KL over train, by the recipe of the checkpoint and from another
    initialisation (of a transformer only the classification head is drawn). On test, the mean TVD of the decisions and
    the mean JSD of the attention of each make a curve, which begins at the checkpoint itself, (0, 0). `area` is that
    under the curve, `max_jsd` its highest point. Beside it stand the other seeds of the same variant, and a checkpoint
    with uniform attention: what a new training alone changes, and what no attention at all does. Uniform attention
    itself has no adversary.

    Of a hierarchical classifier the attention is that over sentences, of a transformer the mean over the heads that it
    shows. Adversaries are kept in `adversaries/` of the datamodule's cache: a run that is started again goes on with
    those that are not there.

    Args:
        strengths: λ. With the TVD of two classes, which is twice that in Wiegreffe & Pinter's code, λ is twice theirs.
        max_epochs: after which a training ends at the latest.
        patience: epochs in a row without a lower training loss, after which one ends.
        seeds: of how many checkpoints of each variant adversaries are trained, the first in their order; None for all.
        regularized: whether the terms of the checkpoint's regularisers are added to the loss. By default the adversary
            has the same parts, and only decisions and attention to learn; with the terms its hidden states are also as
            true to their words as the checkpoint's were asked to be.
        seed: of the trainings; None for that of the experiment.

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
        seed: int | None = None,
    ) -> None:
        self._labels = {f"{strength:g}": strength for strength in strengths}
        if not strengths or min(strengths) < 0 or len(self._labels) < len(strengths):
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
        self._seed = seed
        self._begun: tuple[Checkpoint, ...] = ()
        self._adversaries: dict[str, dict[str, Adversary]] = {}

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
            if checkpoint not in variant[: self.seeds] or uniform(checkpoint):
                continue
            drawn = seed if self._seed is None else self._seed
            recipe = Recipe(checkpoint, data, device, self.max_epochs, self.patience, drawn)
            recipe.alone(type(self).__name__)
            adversaries = Adversaries(recipe, self.regularized)
            self._adversaries[checkpoint.name] = {
                label: Adversary(*adversaries.of(strength)) for label, strength in self._labels.items()
            }

    def columns(self, classes: int) -> Sequence[str]:
        """The gold class, and the comparison with each other model: TVD, JSD and that model's decision."""
        others = (*self._labels, ITSELF, FIRST, UNIFORM)
        return [
            "gold",
            "max_attention",
            *(f"{what}_{other}" for other in others for what in ("tvd", "jsd", "predicted")),
        ]

    @torch.no_grad()
    def measure(self, reading: Reading) -> Measured:
        """Run the adversaries, and the other checkpoints that are to be compared."""
        batch = reading.batch
        nothing = torch.full((len(batch.index),), torch.nan, dtype=torch.float64, device=batch.index.device)
        numbers = dict.fromkeys(self.columns(reading.probabilities.size(-1)), nothing)
        numbers["gold"], numbers["max_attention"] = batch.labels.double(), max_attention(reading)
        numbers |= _compared(ITSELF, reading.output, reading)
        for label, adversary in self._adversaries.get(reading.checkpoint.name, {}).items():
            numbers |= _compared(label, adversary.model(batch), reading)
        for label, other in _others(reading.checkpoint, self._begun).items():
            numbers |= _compared(label, other.model(batch), reading)
        return Measured(numbers)

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        """The area under the curve, and its highest point."""
        tvds, jsds = ([f"{what}_{label}" for label in self._labels] for what in ("tvd", "jsd"))
        return {"area": Score((*tvds, *jsds), _area, "ratio"), "max_jsd": Score(jsds, _highest, "nats")}

    def tables(self, subjects: Sequence[Subject]) -> Mapping[str, Table]:
        """A row for each pair of models: the checkpoint, and `other`.

        `tvd` and `jsd` are means over the texts; `f1` and `accuracy` are those of the other model, and `epochs` how
        long it was trained.
        """
        rows = [row for subject in subjects for row in self._rows(subject)]
        return {self.name: Table(pd.DataFrame(rows), _UNITS)}

    def _rows(self, subject: Subject) -> Iterator[dict[str, object]]:
        here = self._checkpoint(subject)
        adversaries, others = self._adversaries.get(here.name, {}), _others(here, self._begun)
        names = {ITSELF: ITSELF} | {label: "adversary" for label in adversaries}
        names |= {label: other.name for label, other in others.items()}
        for label, other in names.items():
            row: dict[str, object] = {"variant": subject.variant, "checkpoint": subject.name, "other": other}
            row["strength"] = self._labels.get(label, math.nan)
            for what in ("tvd", "jsd"):
                values = self._values(subject, f"{what}_{label}")
                row |= resample(mean, values, _UNITS[what]).estimate.named(what)
            decisions = self._values(subject, "gold", f"predicted_{label}")
            row["f1"] = resample(f1_score(subject.positive, subject.classes), decisions, "fraction").value
            row["accuracy"] = resample(_accuracy, decisions, "fraction").value
            row["epochs"] = adversaries[label].best.epochs if label in adversaries else math.nan
            yield row

    def figures(self, subjects: Sequence[Subject]) -> Mapping[str, Figure]:
        """Mean TVD against mean JSD: a line for each checkpoint with adversaries, points for seeds and uniform.

        `consistent_adversary.seeds`: JSD to the first seed by the highest weight, where there are several.
        """
        lines: dict[str, tuple[list[float], list[float]]] = {}
        points: dict[str, tuple[list[float], list[float]]] = {}

        def point(subject: Subject, label: str) -> tuple[float, float]:
            values = {what: self._values(subject, f"{what}_{label}") for what in ("tvd", "jsd")}
            x, y = (resample(mean, some, _UNITS[what]).value for what, some in values.items())
            return x, y

        for subject in subjects:
            here = self._checkpoint(subject)
            if here.name in self._adversaries:
                found = sorted(point(subject, label) for label in (ITSELF, *self._labels))
                lines[here.name] = ([x for x, _ in found], [y for _, y in found])
            # Distances are symmetric: what a seed has to the first belongs to the line of the first.
            for label, other in _others(here, self._begun).items():
                xs, ys = points.setdefault(other.name, ([], []))
                x, y = point(subject, label)
                xs.append(x)
                ys.append(y)
        figures: dict[str, Figure] = {}
        if lines or points:
            title, labels = "Model-consistent adversaries", ("TVD of the decisions", "JSD of the attention")
            figures[self.name] = Curves(title, *labels, lines, points, y_range=(0.0, math.log(2)))
        if not all(np.isnan(self._values(subject, f"jsd_{FIRST}")).all() for subject in subjects):
            seeds = by_max_attention(subjects, self.name, f"jsd_{FIRST}")
            figures[f"{self.name}.seeds"] = violins("Attention under other seeds", seeds, "JSD to the first seed")
        return figures

    def _checkpoint(self, subject: Subject) -> Checkpoint:
        return next(one for one in self._begun if one.name == subject.name)

    def _values(self, subject: Subject, *columns: str) -> Floats:
        values: Floats = subject.values[[f"{self.name}.{column}" for column in columns]].to_numpy(np.float64)
        return values

    def audit(self) -> Mapping[str, object]:
        """How many adversaries there are, and how many were still getting better when they had to end."""
        found = [adversary.best for each in self._adversaries.values() for adversary in each.values()]
        return {"adversaries": len(found), "cut_off": sum(not best.stopped for best in found)}


def _others(checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]) -> dict[str, Checkpoint]:
    """The first of its variant, and the first with uniform attention over the same words; not the checkpoint itself."""
    others = {FIRST: next(one for one in checkpoints if one.variant == checkpoint.variant)}
    even = next((one for one in checkpoints if uniform(one)), None)
    if even is not None and isinstance(checkpoint.model, AttentionClassifier) and not uniform(checkpoint):
        others[UNIFORM] = even
    return {label: other for label, other in others.items() if other is not checkpoint}


def _compared(label: str, output: Output, reading: Reading) -> dict[str, Tensor]:
    """Columns of a batch: how far another model's decisions and attention are from those that were read."""
    names = levels_of(reading.output, None)
    ours, theirs = (attention_of(one, names).double() for one in (reading.output, output))
    probabilities = output.logits.softmax(-1)
    return {
        f"tvd_{label}": tvd(probabilities.double(), reading.probabilities.double()),
        # Weights in single precision may add up to a little more than one.
        f"jsd_{label}": jsd(theirs, ours).mean(0).clamp(max=math.log(2)),
        f"predicted_{label}": probabilities.argmax(-1).double(),
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
