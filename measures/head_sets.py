"""Sets of heads that are ablated together: the outputs of a model without them, and random sets beside them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb, prod
from typing import Any, Self

import numpy as np
from lightning_utilities.core.rank_zero import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor

from attention_probing.attention.ablation import Ablation, Kind, ReferenceOutputs, RunModel
from attention_probing.attention.heads import Head, Heads
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import PairBatch, SegmentBatch, TextBatch
from attention_probing.measures.contract import ignore
from attention_probing.measures.task import Task
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.classification import mostly_one_label
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.metrics.statistics import Statistic
from attention_probing.results import Estimate, Flags, Floats, Integers, Unit, UserError, format_estimate

WHOLE: Heads = frozenset()
"""The empty set: no head is ablated."""
DRAWS = 10_000  # of the bootstrap, or more, as far as they fit into memory
REFERENCES = 1000
"""Random texts of dev under `mean`."""
RESAMPLED = 256
"""Texts among them that `resample` draws from."""


class AblatedOutputs:
    """Rows of the outputs of a task for each text, with each set of heads ablated.

    Args:
        task: The task.
        sets: Sets of heads for each ablation. The model is run once for each set, with all its heads ablated.
        split: Split of labelled texts that is scored. Other texts have no split, and all are scored.
    """

    def __init__(self, task: Task, sets: Mapping[Ablation, Sequence[Heads]], split: Split = "test") -> None:
        self._task = task
        self._sets = sets
        self._split = split
        self._rows = Rows()

    def add(self, batch: TextBatch | SegmentBatch | PairBatch, advance: Callable[[float], None] = ignore) -> None:
        """Run the model on the texts of a batch, and add its outputs.

        Args:
            batch: The batch.
            advance: Function that is called with each share of the batch that is finished; see `Measure.advance`.
        """
        if isinstance(batch, TextBatch) and batch.split != self._split:
            return
        if not len(batch.index):
            return
        inputs = self._task.inputs(batch)
        self._rows.add(batch.index, **self._task.rows(inputs, self._sets, advance))

    def take(self) -> "TaskOutputs":
        """Return the outputs for the texts of all devices; every process must call it."""
        return TaskOutputs.from_rows(self._task, self._rows.take(), self._sets)


@dataclass(frozen=True, eq=False)
class TaskOutputs:
    """Outputs of a task for all texts, with each set of heads ablated.

    Attributes:
        task: The task.
        items: Index of each text in its split, `[texts]`.
        gold: Gold value of each text, `[texts]`.
        outputs: Outputs `[texts, width]`, by name of the ablation and set of heads.
    """

    task: Task
    items: Integers
    gold: Floats
    outputs: Mapping[tuple[str, Heads], Floats]

    @classmethod
    def from_rows(cls, task: Task, rows: Mapping[str, NDArray[Any]], sets: Mapping[Ablation, Sequence[Heads]]) -> Self:
        """Create the outputs from the columns that `Task.rows` returns, gathered over all texts.

        Args:
            task: The task.
            rows: Columns of all texts, by name.
            sets: Sets of heads for each ablation, as given to `Task.rows`.
        """
        outputs: dict[tuple[str, Heads], Floats] = {}
        for ablation, head_sets in sets.items():
            by_set = rows[ablation.name].reshape(-1, len(head_sets), task.width)
            for place, heads in enumerate(head_sets):
                outputs[ablation.name, heads] = by_set[:, place]
        return cls(task, rows[ITEM], rows["gold"], outputs)

    def __len__(self) -> int:
        return len(self.gold)

    def only(self, texts: Flags) -> Self:
        """Return the outputs for some of the texts, given as bool `[texts]`."""
        outputs = {key: numbers[texts] for key, numbers in self.outputs.items()}
        return replace(self, items=self.items[texts], gold=self.gold[texts], outputs=outputs)

    def score(self, ablation: str, heads: Heads, draws: int) -> Estimate:
        """Return the score with a set of heads ablated, and its bootstrap interval over texts.

        Args:
            ablation: Name of the ablation.
            heads: The set; empty for the intact model.
            draws: Number of bootstrap draws.

        Raises:
            UserError: An output is NaN.
        """
        return self._estimate(self.task.statistic(), self.task.unit, ablation, heads, draws)

    def further_scores(self, ablation: str, heads: Heads, draws: int) -> dict[str, Estimate]:
        """Return the other scores of the task, by name, as `score` returns the first one."""
        scores = {}
        for name, (statistic, unit) in self.task.further_statistics().items():
            scores[name] = self._estimate(statistic, unit, ablation, heads, draws)
        return scores

    def _estimate(self, statistic: Statistic, unit: Unit, ablation: str, heads: Heads, draws: int) -> Estimate:
        values = np.column_stack([self.gold, self.outputs[ablation, heads]])
        undefined = int(np.isnan(values).any(1).sum())
        if undefined:
            when = "when some heads are ablated" if heads else "even without ablation"
            raise UserError(
                f"The model output is nan for {undefined} of {len(values)} texts {when}. Use another model, or another "
                "kind of ablation."
            )
        return resample(statistic, values, unit, draws=draws)

    def warn_of_one_label(self, ablation: str) -> None:
        """Warn if the intact model predicts the same label for almost every text.

        Args:
            ablation: Name of an ablation whose sets include the empty one, the intact model.
        """
        predicted = self.outputs[ablation, WHOLE].argmax(1)
        one_label = mostly_one_label(self.gold.astype(np.int64), predicted, self.task.labels)
        if one_label:
            rank_zero_warn(f"The model without ablation {one_label}, so ablation can change little. Train it longer.")

    def warn_of_chance(self, whole: Estimate) -> None:
        """Warn if the intact model is not above chance: its interval includes chance, or lies below it.

        Args:
            whole: Score of the intact model.
        """
        chance = self.task.chance
        if chance is None or whole.low is None or not whole.low <= chance:
            return
        by_chance = format_estimate(Estimate(chance, unit=whole.unit))
        rank_zero_warn(
            f"The model without ablation is right in {format_estimate(whole)} of the {self.task.noun}, which is not "
            f"above chance ({by_chance}), so effects on it say little. Name another model, or other {self.task.noun}."
        )


def make_ablation(
    kind: Kind, run: RunModel, texts: Callable[[], Sequence[Mapping[str, Tensor]]], seed: int
) -> Ablation:
    """Create an ablation of the heads of a model; that of `scale` has the factor 1.

    Args:
        kind: Replacement of the outputs of heads.
        run: Function that runs the model on inputs.
        texts: Function that returns batches of inputs; `mean` and `resample` take replacements from the
            head outputs on these texts.
        seed: Seed of `resample`.

    Raises:
        UserError: For `resample` there are fewer than two texts.
    """
    if kind not in ("mean", "resample"):
        return Ablation(kind)
    kept_texts = RESAMPLED if kind == "resample" else 0
    reference = ReferenceOutputs.from_batches(run, texts(), kept_texts)
    count = len(reference.lengths)
    if reference.numbers is not None:
        count = len(set(reference.numbers.tolist()))
    if kind == "resample" and count < 2:
        raise UserError(
            "The kind of ablation `resample` replaces head outputs by those of other texts, but there is only one "
            "text. Add texts, or choose another kind."
        )
    return Ablation(kind, reference, seed)


def random_sets(like: Heads, heads: int, number: int, random: np.random.Generator) -> tuple[Heads, ...]:
    """Draw different random sets with as many heads of each layer as another set.

    All such sets except the given one are equally likely, and they may share heads with it. If the given set is itself
    a random one, all sets are therefore exchangeable. Fewer than `number` sets are returned if no more exist.

    Args:
        like: The other set, as pairs of 0-based layer and head.
        heads: Number of heads of each layer of the model.
        number: Largest number of sets.
        random: Random generator.
    """
    sizes = Counter(layer for layer, _ in sorted(like))
    choices_of_layers = [comb(heads, size) for size in sizes.values()]
    other_sets = prod(choices_of_layers) - 1
    sets: list[Heads] = []
    while len(sets) < min(number, other_sets):
        drawn: set[Head] = set()
        for layer, size in sizes.items():
            heads_of_layer = random.choice(heads, size, replace=False).tolist()
            drawn.update((layer, head) for head in heads_of_layer)
        if drawn != like and drawn not in sets:
            sets.append(frozenset(drawn))
    return tuple(sets)
