"""Passes of a decoder over minimal pairs that measure the effects of its heads, and the time that they take."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from attention_probing.attention.ablation import Ablation
from attention_probing.attention.heads import Heads
from attention_probing.datamodules import PairBatch, PairSplit
from attention_probing.datamodules.batches import LengthBatches, Ranks
from attention_probing.measures.attribution import estimate_effects, head_gradients
from attention_probing.measures.head_sets import WHOLE, TaskOutputs
from attention_probing.measures.kept_batches import Columns, KeptBatches
from attention_probing.measures.pair_tasks import MinimalPairs
from attention_probing.measures.pair_times import PassTimes
from attention_probing.metrics.rows import Rows
from attention_probing.results import Integers
from attention_probing.results.progress import Progress, inform

_TIMED_TOKENS = 256  # of the batch whose passes are timed


@dataclass(frozen=True, eq=False)
class Replacements:
    """Sets of heads to be replaced, each alone, on some of the pairs.

    Attributes:
        ablation: Replacement of their outputs.
        items: Indices of the pairs, int64 `[pairs]`.
        sets: The sets of heads.
    """

    ablation: Ablation
    items: Integers
    sets: Sequence[Heads]

    @property
    def name(self) -> str:
        """Name that tells them from others on the same pairs."""
        return f"{self.ablation.name} {[sorted(heads) for heads in self.sets]}"

    @property
    def all_sets(self) -> Mapping[Ablation, Sequence[Heads]]:
        """The sets, and before them that of the intact model, by ablation."""
        return {self.ablation: [WHOLE, *self.sets]}


class PairPasses:
    """Passes of a decoder over minimal pairs; their numbers are kept until the measurement ends.

    Args:
        task: The task.
        pairs: The pairs.
        ablations: Replacements of the outputs of heads, whose effects are estimated.
        kept: Where the numbers of every batch are kept.
        ranks: Rank of this process, and number of processes.
        device: Device of the passes.
    """

    def __init__(
        self,
        task: MinimalPairs,
        pairs: PairSplit,
        ablations: Sequence[Ablation],
        kept: KeptBatches,
        ranks: Ranks,
        device: torch.device,
    ) -> None:
        self._task = task
        self._pairs = pairs
        self._ablations = ablations
        self._kept = kept
        self._ranks = ranks
        self._device = device

    def effects(
        self, batch: PairBatch, sets: Mapping[Ablation, Sequence[Heads]], advance: Callable[[float], None]
    ) -> Columns:
        """Return the log-probabilities of the pairs of a batch, and the effects of heads on them.

        Args:
            batch: The pairs.
            sets: Sets of heads to be replaced, by ablation; empty to only estimate the effects of all heads.
            advance: Function that is called with each share of the batch that is finished; see `Measure.advance`.

        Returns:
            The columns `intact` with the log-probabilities `[pairs, 2]`, for each ablation `estimated_column` with
            effects `[pairs, heads]`, and those of `Task.rows`.
        """
        return self._kept.take("effects", batch.index, partial(self._measure, batch, sets, advance))

    def _measure(
        self, batch: PairBatch, sets: Mapping[Ablation, Sequence[Heads]], advance: Callable[[float], None]
    ) -> Columns:
        columns = self._estimate(batch)
        if sets:
            columns |= self._task.rows(self._task.inputs(batch), sets, advance)
        return columns

    def _estimate(self, batch: PairBatch) -> Columns:
        inputs = self._task.inputs(batch)

        def log_ratio(outputs: torch.Tensor) -> torch.Tensor:
            return outputs[:, 0] - outputs[:, 1]

        with torch.autocast(self._device.type, enabled=False):
            log_probabilities, outputs, gradients = head_gradients(self._task.outputs, log_ratio, inputs)
            columns = {"intact": log_probabilities}
            for ablation in self._ablations:
                effects_on_texts = estimate_effects(outputs, gradients, ablation, self._task.partners(inputs))
                effects_on_pairs = effects_on_texts.view(len(log_probabilities), 2, -1).sum(1)
                columns[estimated_column(ablation)] = effects_on_pairs
        return columns

    def replace(self, name: str, replacements: Sequence[Replacements], times: PassTimes) -> list[TaskOutputs]:
        """Run the model with sets of heads replaced, and return its outputs for each of the replacements.

        They are divided among the processes.

        Args:
            name: What is done, for messages.
            replacements: The replacements.
            times: Times of passes, to tell how long it will take.
        """
        share = replacements[self._ranks.rank :: self._ranks.world]
        if replacements:
            seconds = sum(self._seconds(replacement, times) for replacement in share)
            inform(f"{name}: about {describe_time(seconds)}.")
        progress = Progress(f"{name}, pairs", sum(len(replacement.items) for replacement in share))
        rows_of_replacements = []
        for place, replacement in enumerate(replacements):
            rows = Rows()
            if place % self._ranks.world == self._ranks.rank:
                for batch in self._batches(replacement.items):
                    compute = partial(self._rows_of, batch, replacement.all_sets)
                    rows.add(batch.index, **self._kept.take(replacement.name, batch.index, compute))
                    progress.advance(len(batch.index))
            rows_of_replacements.append(rows)
        outputs = []
        # All are gathered after the last pass: a process that gathers waits for the others.
        for replacement, rows in zip(replacements, rows_of_replacements, strict=True):
            outputs.append(TaskOutputs.from_rows(self._task, rows.take(), replacement.all_sets))
        return outputs

    def _rows_of(self, batch: PairBatch, sets: Mapping[Ablation, Sequence[Heads]]) -> Columns:
        return self._task.rows(self._task.inputs(batch), sets)

    def _places(self, items: Integers) -> Iterator[list[int]]:
        """Yield the pairs of each batch of some pairs."""
        yield from LengthBatches(self._pairs.lengths, items=items.tolist(), shuffle=False, **self._pairs.bounds)

    def _batches(self, items: Integers) -> Iterator[PairBatch]:
        for places in self._places(items):
            yield self._pairs[places].to(self._device)

    def time(self) -> PassTimes:
        """Time passes over a few pairs of medium length; an interrupted run has timed them already."""
        lengths = self._pairs.lengths
        by_length = np.argsort(lengths, kind="stable")
        half = len(by_length) // 2
        medium = int(lengths[by_length[half]])
        first = max(half - _TIMED_TOKENS // medium, 0)
        batch = self._pairs[by_length[first : half + 1].tolist()].to(self._device)
        numbers = self._kept.take("times", batch.index, partial(self._time_passes, batch))
        estimate, intact, first_layer, last_layer = numbers["seconds"].tolist()
        return PassTimes(estimate, intact, first_layer, last_layer, self._task.layers)

    def _time_passes(self, batch: PairBatch) -> Columns:
        inform("Timing a few passes, to tell how long this will take.")

        def replace_heads(sets: Sequence[Heads]) -> None:
            self._rows_of(batch, {self._ablations[0]: sets})

        def estimate() -> None:
            self._estimate(batch)

        tokens = batch.tokens.numel()
        times = PassTimes.measure(estimate, replace_heads, tokens, self._task.layers, self._task.heads, self._device)
        seconds = [times.estimate, times.intact, times.first, times.last]
        return {"seconds": torch.tensor(seconds, dtype=torch.float64)}

    def _seconds(self, replacements: Replacements, times: PassTimes) -> float:
        """Return the time of the passes with some heads replaced."""
        passes = times.intact
        for heads in replacements.sets:
            [(layer, _)] = heads
            passes += times.replaced(layer)
        return passes * self.tokens(replacements.items)

    def tokens(self, items: Integers) -> int:
        """Return the number of tokens of the batches of some pairs, padding included."""
        tokens = 0
        for places in self._places(items):
            tokens += len(places) * int(self._pairs.lengths[places].max())
        return tokens


def estimated_column(ablation: Ablation) -> str:
    """Return the name of the column of estimated effects."""
    return f"estimated_{ablation.name}"


def describe_time(seconds: float) -> str:
    """Return a time in words, such as `21 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 10 * 60:
        return f"{seconds / 60:.1f} min"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
