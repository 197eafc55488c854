"""Heads that a decoder's grammar depends on: effects of every head on every paradigm of minimal pairs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list
from torch import Tensor

from attention_probing.attention.ablation import Ablation
from attention_probing.attention.heads import Heads
from attention_probing.datamodules import PairBatch, PairDataModule
from attention_probing.datamodules.batches import LengthBatches
from attention_probing.measures.attribution import estimate_effects, head_gradients
from attention_probing.measures.clusters import PERMUTATIONS
from attention_probing.measures.contract import Measure
from attention_probing.measures.head_sets import DRAWS, WHOLE, TaskOutputs, random_sets
from attention_probing.measures.kept_batches import Columns, KeptBatches
from attention_probing.measures.pair_tasks import MinimalPairs, require_numbers
from attention_probing.measures.pair_times import PassTimes
from attention_probing.measures.paradigm_clusters import FEWEST, ParadigmClusters
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.differences import with_interval_and_p
from attention_probing.metrics.head_effects import TOO_FEW, HeadEffect, effect_of_head, reason_not_to_test
from attention_probing.metrics.p_values import draws_for, holm, least_p, p_units, smallest_p
from attention_probing.metrics.pairs import are_right, choosing_half, log_ratios
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.metrics.shares import share_interval
from attention_probing.metrics.stability import NO_CHOICE, choose_again, stability_columns
from attention_probing.metrics.statistics import mean, proportion, rank_correlations
from attention_probing.results import Estimate, Figure, Flags, Floats, HeatMap, Integers, Result, Table, Unit, numbers
from attention_probing.results.errors import UserError, check_names, pluralize, setting
from attention_probing.results.heads import HeadNames
from attention_probing.results.options import Several, checked
from attention_probing.results.progress import Progress, inform
from attention_probing.results.sentences import (
    LEVEL,
    Difference,
    fill_sentence,
    format_estimate,
    format_p,
    largest_difference,
)

GrammarKind = Literal["zero", "patch"]
"""Kinds of `attention.ablation.Ablation` whose effects can be estimated without other texts than the pairs."""

_TIMED_TOKENS = 256  # of the batch whose passes are timed
_SHORT_NAMES = {"effect.p": "p", "beyond_random.p": "beyond_random_p"}
_DONE = {"zero": "switched off", "patch": "patched"}
_COUNTS = ("tested", "with_head", "beyond_random")
_EFFECT_COLUMNS = (
    "effect",
    "effect.low",
    "effect.high",
    "effect.p",
    "random",
    "random.low",
    "random.high",
    "random.sd",
    "beyond_random",
    "beyond_random.low",
    "beyond_random.high",
    "beyond_random.p",
    "accuracy_effect",
    "accuracy_effect.low",
    "accuracy_effect.high",
)


@dataclass(frozen=True, eq=False)
class Paradigm:
    """Pairs that one template made, and how the intact model does on them.

    Attributes:
        name: Name of the paradigm.
        field: Field of grammar.
        number: Number of the paradigm, for seeds.
        chooses: Bool, True for the measured pairs that choose a head, `[pairs]`.
        tests: The same for the pairs that test it.
        accuracy: Accuracy of the intact model over both.
        reason: Reason why no head is tested; empty if one is.
    """

    name: str
    field: str
    number: int
    chooses: Flags
    tests: Flags
    accuracy: Estimate
    reason: str


@dataclass(frozen=True, eq=False)
class ChosenHead:
    """The head with the largest effect on the choosing half of a paradigm.

    Attributes:
        paradigm: The paradigm.
        ablation: Replacement of its output.
        head: Index of the head, counted layer by layer from 0.
        heads: The set of this head alone.
        random: Random heads of the same layer, each a set.
        again: On how many of 100 resamples of the choosing half it is chosen again; None if undefined.
        rivals: Heads that are chosen instead.
    """

    paradigm: Paradigm
    ablation: Ablation
    head: int
    heads: Heads
    random: tuple[Heads, ...]
    again: int | None
    rivals: str | None


class GrammarHeads(Measure[PairDataModule]):
    """Effect of every attention head of a decoder on every paradigm of minimal pairs.

    The effect of a head is a number of the intact model minus the same number with the head's output replaced
    (`attention.ablation.Ablation`). The number is the *log-ratio*, which is the log-probability of the acceptable
    sentence minus that of the other in nats; or the accuracy.

    For each paradigm a random half of the pairs chooses the head with the largest effect on the log-ratio. The other
    half tests it, exactly: against the intact model, and against random heads of the same layer
    (`metrics.differences.against_random_draws`). Holm's method adjusts each of the two p-values over all paradigms.
    A paradigm is tested if it has 20 pairs or more, and if the intact model's accuracy on the choosing half is above
    chance: its interval lies above .5.

    A small p says that the head matters, or that it matters more than the other heads of its layer. Some head matters
    most in every model, also in one with random weights, so the second p allows for its choice
    (`metrics.differences.widen_for_choice`).

    Paradigms that share heads are those whose effects over all heads correlate (`ParadigmClusters`).

    A run that was interrupted goes on where it was, if the same command is given again.

    Args:
        kinds: Replacements: `zero` switches the head off, `patch` gives it its output in the other sentence.
        choose: How the effects of all heads are found. `gradient` estimates them to first order, in one pass forward
            and back for each pair (`measures.attribution`). `exact` replaces every head in a pass of its own, and also
            scores how well the gradient would have ranked the heads.
        random: Number of random heads of the same layer beside each chosen one; fewer if the layer has fewer.

    Raises:
        UserError: `kinds` has duplicates. In `begin`: the encoder is no decoder with a language-modelling head.
    """

    experiment = "grammar_heads"
    takes = PairDataModule
    tells_time = True

    @checked
    def __init__(
        self,
        kinds: Sequence[GrammarKind] = ("zero", "patch"),
        choose: Literal["gradient", "exact"] = "gradient",
        random: Several = 20,
    ) -> None:
        super().__init__()
        check_names(setting("model.kinds"), kinds)
        self.ablations = [Ablation(kind) for kind in kinds]
        self.choose = choose
        self.random = random

    def begin(self) -> None:
        pairs = self.data.splits["test"]
        if pairs.masking is not None:
            raise UserError(
                f"{type(self).__name__} reads decoders, but {pairs.encoder.source.spec.name} is a masked language "
                f"model. Name a decoder (gpt2) with {setting('encoder')}, or ablate heads with HeadAblation."
            )
        self.task = MinimalPairs(pairs)
        every_head = product(range(self.task.layers), range(self.task.heads))
        self._heads: list[Heads] = [frozenset({head}) for head in every_head]
        self._names = HeadNames(tuple(range(self.task.layers)), tuple(range(self.task.heads)))
        self._every_set = {ablation: [WHOLE, *self._heads] for ablation in self.ablations}
        self._numbers = KeptBatches(self.kept_folder(self.data))
        self._rows = Rows()
        if self._numbers.found:
            inform(f"An interrupted run of this command has left {pluralize(self._numbers.found, 'batch', 'batches')}.")
        self.times = self._time_passes()
        inform(f"{self._describe_work()}: about {_describe_time(self.predict_seconds())} if nothing else runs here.")

    def update(self, batch: PairBatch) -> None:
        if len(batch.index):
            columns = self._numbers.take("effects", batch.index, partial(self._measure, batch))
            self._rows.add(batch.index, **columns)

    def _measure(self, batch: PairBatch) -> Columns:
        """Return the log-probabilities of the pairs, and the effects of all heads on them."""
        inputs = self.task.inputs(batch)
        columns = self._estimate(inputs)
        if self.choose == "exact":
            columns |= self.task.rows(inputs, self._every_set)
        return columns

    def _estimate(self, inputs: Mapping[str, Tensor]) -> Columns:
        """Return the log-probabilities `[pairs, 2]`, and estimated effects `[pairs, heads]` by kind."""

        def log_ratio(outputs: Tensor) -> Tensor:
            return outputs[:, 0] - outputs[:, 1]

        with torch.autocast(inputs["index"].device.type, enabled=False):
            log_probabilities, outputs, gradients = head_gradients(self.task.outputs, log_ratio, inputs)
            columns = {"intact": log_probabilities}
            for ablation in self.ablations:
                of_texts = estimate_effects(outputs, gradients, ablation, self.task.partners(inputs))
                of_pairs = of_texts.view(len(log_probabilities), 2, -1).sum(1)
                columns[_estimated(ablation)] = of_pairs
        return columns

    def result(self) -> Result:
        columns = self._rows.take()
        measured = self._effects_of(columns)
        chosen = []
        for ablation, paradigm in product(self.ablations, measured.paradigms):
            chosen += measured.choose(ablation, paradigm, self.random)
        if self.choose == "exact":
            outputs = TaskOutputs.from_rows(self.task, columns, self._every_set)
            tested = [(one, outputs.only(one.paradigm.tests)) for one in chosen]
        else:
            tested = self._test(measured, chosen)
        return GrammarReport(measured, tested).result()

    def _effects_of(self, columns: Mapping[str, NDArray[Any]]) -> "PairEffects":
        """Return the effects of all heads on all pairs that were read.

        Raises:
            UserError: A log-probability is NaN.
        """
        intact = columns["intact"]
        require_numbers(intact)
        estimated = {ablation: columns[_estimated(ablation)] for ablation in self.ablations}
        exact = {}
        if self.choose == "exact":
            outputs = TaskOutputs.from_rows(self.task, columns, self._every_set)
            for ablation in self.ablations:
                before = log_ratios(outputs.outputs[ablation.name, WHOLE])
                after = [log_ratios(outputs.outputs[ablation.name, heads]) for heads in self._heads]
                exact[ablation] = before[:, None] - np.stack(after, 1)
        return PairEffects(self.task, self._names, columns[ITEM], intact, estimated, exact, self.seed)

    def _test(self, measured: "PairEffects", chosen: Sequence[ChosenHead]) -> list[tuple[ChosenHead, TaskOutputs]]:
        """Run the model with each chosen head and its random heads replaced, on the pairs that test it.

        The paradigms are divided among the processes.
        """
        if chosen:
            seconds = self._seconds_of_tests(measured, chosen)
            inform(f"Testing {pluralize(len(chosen), 'chosen head')}: about {_describe_time(seconds)}.")
        progress = Progress("Testing heads, pairs", sum(int(one.paradigm.tests.sum()) for one in chosen))
        tested = []
        for place, one in enumerate(chosen):
            sets = {one.ablation: [WHOLE, one.heads, *one.random]}
            rows = Rows()
            if place % self.ranks.world == self.ranks.rank:
                for batch in self._batches(measured.items[one.paradigm.tests]):
                    compute = partial(self._replace, batch, sets)
                    part = f"{one.ablation.name}-{self._names.head(one.head)}"
                    rows.add(batch.index, **self._numbers.take(part, batch.index, compute))
                    progress.advance(len(batch.index))
            tested.append((one, TaskOutputs.from_rows(self.task, rows.take(), sets)))
        return tested

    def _batches(self, items: Integers) -> Iterator[PairBatch]:
        """Yield batches of some pairs."""
        pairs = self.data.splits["test"]
        for places in LengthBatches(pairs.lengths, items=items.tolist(), shuffle=False, **pairs.bounds):
            yield pairs[places].to(self.device)

    def _replace(self, batch: PairBatch, sets: Mapping[Ablation, Sequence[Heads]]) -> Columns:
        return self.task.rows(self.task.inputs(batch), sets)

    def _time_passes(self) -> PassTimes:
        """Time passes over a few pairs of medium length."""
        pairs = self.data.splits["test"]
        by_length = np.argsort(pairs.lengths, kind="stable")
        longest = int(pairs.lengths[by_length[len(by_length) // 2]])
        middle = max(len(by_length) // 2 - _TIMED_TOKENS // longest, 0)
        items = by_length[middle : len(by_length) // 2 + 1]
        batch = pairs[items.tolist()].to(self.device)
        inputs = self.task.inputs(batch)

        def replace_heads(sets: Sequence[Heads]) -> None:
            self.task.rows(inputs, dict.fromkeys(self.ablations, sets))

        def estimate() -> None:
            self._estimate(inputs)

        tokens = batch.tokens.numel()
        return PassTimes.measure(estimate, replace_heads, tokens, self.task.layers, self.task.heads, self.device)

    def predict_seconds(self) -> float:
        """Return the time of all passes; every paradigm is assumed to be tested, with heads of all layers."""
        pairs = self.data.splits["test"]
        times = self.times
        tokens = self._tokens(range(len(pairs)))
        seconds = tokens * times.estimate
        if self.choose == "exact":
            return seconds + tokens * (times.intact + len(self._heads) * times.replaced_on_average)
        heads = 1 + min(self.random, self.task.heads - 1)
        return seconds + tokens / 2 * (times.intact + heads * times.replaced_on_average)

    def _seconds_of_tests(self, measured: "PairEffects", chosen: Sequence[ChosenHead]) -> float:
        """Return the time of the passes that test the chosen heads."""
        seconds = 0.0
        for one in chosen:
            tokens = self._tokens(measured.items[one.paradigm.tests])
            [(layer, _)] = one.heads
            heads = 1 + len(one.random)
            passes = self.times.intact + heads * self.times.replaced(layer)
            seconds += tokens * passes / len(self.ablations)
        return seconds

    def _tokens(self, items: Sequence[int] | Integers) -> int:
        """Return the number of tokens of the batches of some pairs, padding included, for each process."""
        pairs = self.data.splits["test"]
        tokens = 0
        for places in LengthBatches(pairs.lengths, items=list(items), shuffle=False, **pairs.bounds):
            tokens += len(places) * int(pairs.lengths[places].max())
        return tokens // self.ranks.world

    def _describe_work(self) -> str:
        """Return what will be done, for the first message."""
        pairs = pluralize(len(self.data.splits["test"]), "pair")
        heads = pluralize(len(self._heads), "head")
        kinds = " and ".join(ablation.name for ablation in self.ablations)
        if self.choose == "exact":
            return f"Effects of {heads} ({kinds}) on {pairs}, a pass for each head"
        return f"Effects of {heads} ({kinds}) on {pairs}, estimated by gradients; then tests of the chosen heads"


def _describe_time(seconds: float) -> str:
    """Return a time in words, such as `21 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 10 * 60:
        return f"{seconds / 60:.1f} min"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _estimated(ablation: Ablation) -> str:
    """Return the column of estimated effects."""
    return f"estimated_{ablation.name}"


@dataclass(frozen=True, eq=False)
class PairEffects:
    """Effects of all heads on the log-ratios of all measured pairs.

    Attributes:
        task: The task.
        names: Names of the heads.
        items: Index of each pair, int64 `[pairs]`.
        intact: Log-probabilities of both sentences in the intact model, `[pairs, 2]`.
        estimated: First-order effects in nats, `[pairs, heads]`, by ablation.
        exact: Exact effects, the same; empty if they were not measured.
        seed: Seed of the halves, the random heads and the permutations.
        paradigms: The paradigms, by field and name.
    """

    task: MinimalPairs
    names: HeadNames
    items: Integers
    intact: Floats
    estimated: Mapping[Ablation, Floats]
    exact: Mapping[Ablation, Floats]
    seed: int

    @cached_property
    def _fields_and_names(self) -> list[tuple[str, str]]:
        """Field and name of the paradigm of each pair."""
        pairs = [self.task.pairs[item] for item in self.items]
        return [(pair.field, pair.paradigm) for pair in pairs]

    @cached_property
    def _paradigm_numbers(self) -> Integers:
        """Number of the paradigm of each pair, `[pairs]`: its place among all, by field and name."""
        known = sorted(set(self._fields_and_names))
        return np.array([known.index(of_pair) for of_pair in self._fields_and_names])

    @cached_property
    def paradigms(self) -> list[Paradigm]:
        """The paradigms of the measured pairs, by field and name."""
        right = are_right(self.intact)
        paradigms = []
        for number, (field, name) in enumerate(sorted(set(self._fields_and_names))):
            is_of = self._paradigm_numbers == number
            own = right[is_of]
            share, low, high = share_interval(own, np.ones_like(own))
            accuracy = Estimate(share, low, high, unit="fraction")
            reason = reason_not_to_test(own, self.chooses[is_of])
            chooses = is_of & self.chooses
            tests = is_of & ~self.chooses
            paradigms.append(Paradigm(name, field, number, chooses, tests, accuracy, reason))
        return paradigms

    def effects(self, ablation: Ablation) -> Floats:
        """Return the effects that choose heads, `[pairs, heads]`: the exact ones, if there are any."""
        return self.exact.get(ablation, self.estimated[ablation])

    def reason(self, ablation: Ablation, paradigm: Paradigm) -> str:
        """Return the reason why no head of a paradigm is tested; empty if one is."""
        if not paradigm.reason and not self.effects(ablation)[paradigm.chooses].any():
            return "no head changes a pair"
        return paradigm.reason

    def choose(self, ablation: Ablation, paradigm: Paradigm, random: int) -> list[ChosenHead]:
        """Choose the head with the largest effect on the choosing half; of a paradigm that is not tested, none.

        Args:
            ablation: Replacement of the outputs.
            paradigm: The paradigm.
            random: Largest number of random heads of the same layer.
        """
        if self.reason(ablation, paradigm):
            return []
        effects = self.effects(ablation)[paradigm.chooses]
        best = int(effects.mean(0).argmax())
        stability = choose_again(effects, np.ones(len(effects)), self.seed)
        again, rivals = stability.describe(best, self.names.head)
        heads = frozenset({divmod(best, self.task.heads)})
        generator = np.random.default_rng([self.seed, paradigm.number])
        others = random_sets(heads, self.task.heads, random, generator)
        return [ChosenHead(paradigm, ablation, best, heads, others, again, rivals)]

    @cached_property
    def chooses(self) -> Flags:
        """True for the pairs that choose heads, `[pairs]`."""
        return choosing_half(self._paradigm_numbers, self.seed)

    def matrix(self, ablation: Ablation, pairs: Flags | None = None) -> Floats:
        """Return the mean effect of each head on each paradigm, `[paradigms, heads]`.

        Args:
            ablation: Replacement of the outputs.
            pairs: Bool `[pairs]`, the pairs to average over; None for all.
        """
        effects = self.effects(ablation)
        rows = []
        for paradigm in self.paradigms:
            is_of = self._paradigm_numbers == paradigm.number
            if pairs is not None:
                is_of = is_of & pairs
            rows.append(effects[is_of].mean(0) if is_of.any() else np.full(effects.shape[1], np.nan))
        return np.stack(rows)

    def clusters(self, ablation: Ablation) -> tuple[list[Paradigm], ParadigmClusters | None]:
        """Return the tested paradigms, and clusters of those that share heads; None for fewer than `FEWEST`."""
        effects = self.effects(ablation)
        tested = []
        for paradigm in self.paradigms:
            if not self.reason(ablation, paradigm) and effects[paradigm.tests].any():
                tested.append(paradigm)
        if len(tested) < FEWEST:
            return tested, None
        places = [paradigm.number for paradigm in tested]
        choosing = self.matrix(ablation, self.chooses)[places]
        testing = self.matrix(ablation, ~self.chooses)[places]
        fields = [paradigm.field for paradigm in tested]
        return tested, ParadigmClusters.from_effects(choosing, testing, fields, self.seed)


@dataclass(frozen=True, eq=False)
class GrammarReport:
    """Tables, figures and scores of the effects of heads on paradigms.

    Attributes:
        measured: Effects of all heads on all pairs.
        tested: The chosen heads, each with the outputs of the model on the pairs that test it.
    """

    measured: PairEffects
    tested: Sequence[tuple[ChosenHead, TaskOutputs]]

    def result(self) -> Result:
        measured = self.measured
        task = measured.task
        values = np.column_stack([measured.items, measured.intact])
        scores = {task.score: resample(task.statistic(), values, task.unit, draws=DRAWS)}
        figures: dict[str, Figure] = {}
        heads = self._heads_table()
        cluster_rows = []
        for ablation in measured.estimated:
            chosen = [one for one, _ in self.tested if one.ablation is ablation]
            _warn_of_few_pairs(ablation, len(chosen), self._least_p[ablation.name])
            counts = self._counts(heads.frame[heads.frame["kind"] == ablation.name])
            for name, number in counts.items():
                scores[f"{ablation.name}.{name}"] = Estimate(number, unit="count")
            scores |= self._agreement(ablation)
            tested, clusters = measured.clusters(ablation)
            if clusters is not None:
                scores |= _cluster_scores(ablation.name, clusters)
                cluster_rows += _cluster_rows(ablation.name, tested, clusters)
                figures[f"shared_{ablation.name}"] = _shared_figure(ablation.name, tested, clusters)
            if chosen:
                figures[f"heads_{ablation.name}"] = self._matrix_figure(ablation, chosen)
        tables = {
            "fields": self._fields_table(heads.frame),
            "heads": heads,
            "paradigms": self._paradigms_table(),
            "matrix": self._matrix_table(),
        }
        if cluster_rows:
            tables["clusters"] = Table(pd.DataFrame(cluster_rows), {"reliability": "ratio"})
        endings = (*_COUNTS, "cluster_p", "field_p")
        headline = [task.score, *(name for name in scores if name.endswith(endings))]
        answer = fill_sentence(self._answer(scores), scores, n=len(measured.items))
        return Result(GrammarHeads.experiment, scores, tables, figures, self._audit(), headline=headline, answer=answer)

    @property
    def _draws(self) -> int:
        """Number of bootstrap draws, so that p-values can be small after Holm's correction."""
        most = max((len(outputs) for _, outputs in self.tested), default=0)
        return draws_for(len(self.measured.paradigms), most, DRAWS)

    @cached_property
    def _effects(self) -> list[HeadEffect]:
        """Effects of the chosen heads on the pairs that test them, in the order of `tested`."""
        progress = Progress("Effects and their intervals", len(self.tested))
        effects = []
        for one, outputs in self.tested:
            of_sets = outputs.outputs
            name = one.ablation.name
            others = [of_sets[name, heads] for heads in one.random]
            changed = of_sets[name, one.heads]
            heads = len(self.measured.names)
            effects.append(effect_of_head(of_sets[name, WHOLE], changed, others, self._draws, heads))
            progress.advance()
        return effects

    @cached_property
    def _least_p(self) -> dict[str, float]:
        """Least p of an effect that the pairs allow after Holm's correction, by kind; 1 without a tested paradigm."""
        least = {}
        for ablation in self.measured.estimated:
            smallest = []
            for one, outputs in self.tested:
                if one.ablation is ablation:
                    smallest.append(smallest_p(len(outputs), self._draws))
            least[ablation.name] = 1.0
            if smallest:
                least[ablation.name] = min(1.0, len(smallest) * min(smallest))
        return least

    def _counts(self, rows: pd.DataFrame) -> dict[str, float]:
        """Count the tested paradigms, those whose head lowers the log-ratio, and those whose head does beyond others.

        A count is nan if no p-value of it can be small enough.

        Args:
            rows: Rows of chosen heads, of one kind.
        """
        tested = int(rows["head"].notna().sum())
        with_head: float = np.nan
        beyond_random: float = np.nan
        can_be_found = self._least_p[rows["kind"].iloc[0]] <= LEVEL
        if can_be_found or not tested:
            helps = (rows["p_holm"] < LEVEL) & (rows["effect"] > 0)
            with_head = int(helps.sum())
            if rows["beyond_random_p_holm"].notna().any() or not tested:
                is_beyond = (rows["beyond_random_p_holm"] < LEVEL) & (rows["beyond_random"] > 0)
                beyond_random = int((helps & is_beyond).sum())
        return dict(zip(_COUNTS, (tested, with_head, beyond_random), strict=True))

    def _fields_table(self, heads: pd.DataFrame) -> Table:
        """Return the counts of paradigms by kind and field, with the accuracy of the intact model.

        Args:
            heads: Rows of the chosen heads, from `_heads_table`.
        """
        measured = self.measured
        right = are_right(measured.intact)
        fields = np.array([measured.task.pairs[item].field for item in measured.items])
        rows = []
        for (kind, field), of_field in heads.groupby(["kind", "field"], sort=False):
            own = right[fields == field]
            share, low, high = share_interval(own, np.ones_like(own))
            accuracy = Estimate(share, low, high, unit="fraction")
            row: dict[str, object] = {"kind": kind, "field": field, "n": len(own), **accuracy.columns("accuracy")}
            row["paradigms"] = len(of_field)
            row |= self._counts(of_field)
            rows.append(row)
        main = ("kind", "field", "accuracy", "paradigms", *_COUNTS)
        units: dict[str, Unit] = {"accuracy": "fraction", **dict.fromkeys(_COUNTS, "count")}
        return Table(pd.DataFrame(rows), units, main=main)

    def _heads_table(self) -> Table:
        """Return a row for each kind and paradigm, with the chosen head and its tested effects; blank with a reason."""
        tested = {}
        for (one, outputs), effect in zip(self.tested, self._effects, strict=True):
            tested[one.ablation, one.paradigm.number] = (one, len(outputs), effect)
        rows = []
        stability = []
        least = []
        for ablation, paradigm in product(self.measured.estimated, self.measured.paradigms):
            row: dict[str, object] = {"kind": ablation.name, "field": paradigm.field, "paradigm": paradigm.name}
            cells = NO_CHOICE
            pairs = 0  # that test a head
            row["n"] = pairs
            row["accuracy"] = paradigm.accuracy.value
            row["head"] = None
            numbers_of_head = dict.fromkeys(_EFFECT_COLUMNS, np.nan)
            if (ablation, paradigm.number) in tested:
                one, pairs, effect = tested[ablation, paradigm.number]
                row["n"] = pairs
                row["head"] = self.measured.names.head(one.head)
                numbers_of_head |= _numbers_of(effect)
                cells = (one.again, one.rivals)
            row |= numbers_of_head
            row["reason"] = self.measured.reason(ablation, paradigm)
            rows.append(row)
            stability.append(cells)
            least.append(least_p(pairs, self._draws))
        frame = pd.concat([pd.DataFrame(rows).rename(columns=_SHORT_NAMES), stability_columns(stability)], axis=1)
        return _with_corrected_p(frame, least)

    def _paradigms_table(self) -> Table:
        """Return the accuracy of the intact model on each paradigm."""
        rows = []
        for paradigm in self.measured.paradigms:
            pairs = int(paradigm.chooses.sum() + paradigm.tests.sum())
            row: dict[str, object] = {"field": paradigm.field, "paradigm": paradigm.name, "n": pairs}
            row |= paradigm.accuracy.columns("accuracy")
            row["reason"] = paradigm.reason
            rows.append(row)
        return Table(pd.DataFrame(rows), {"accuracy": "fraction"})

    def _matrix_table(self) -> Table:
        """Return the mean effect of each head on each paradigm, on each half of the pairs and on all."""
        measured = self.measured
        heads = [measured.names.head(head) for head in range(len(measured.names))]
        frames = []
        for ablation in measured.estimated:
            choosing = measured.matrix(ablation, measured.chooses)
            testing = measured.matrix(ablation, ~measured.chooses)
            every = measured.matrix(ablation)
            for paradigm in measured.paradigms:
                columns = {
                    "kind": ablation.name,
                    "paradigm": paradigm.name,
                    "head": heads,
                    "effect": every[paradigm.number],
                    "choosing": choosing[paradigm.number],
                    "testing": testing[paradigm.number],
                }
                frames.append(pd.DataFrame(columns))
        units: dict[str, Unit] = dict.fromkeys(("effect", "choosing", "testing"), "nats")
        return Table(pd.concat(frames, ignore_index=True), units)

    def _matrix_figure(self, ablation: Ablation, chosen: Sequence[ChosenHead]) -> HeatMap:
        """Return a map of tested paradigms × the heads that one of them has chosen."""
        names = self.measured.names
        heads = sorted({one.head for one in chosen})
        paradigms = [one.paradigm for one in chosen]
        values = self.measured.matrix(ablation)[[paradigm.number for paradigm in paradigms]][:, heads]
        how = "exact" if self.measured.exact else "first-order"
        return HeatMap(
            title=f"Effects of the chosen heads on the log-ratio ({ablation.name}, {how})",
            values=values,
            row_labels=[paradigm.name for paradigm in paradigms],
            column_labels=[names.head(head) for head in heads],
            row_label="paradigm, by field",
            column_label="layer-head",
            value_label="effect (nats)",
            unit="nats",
            diverging=True,
        )

    def _agreement(self, ablation: Ablation) -> dict[str, Estimate]:
        """Return how well estimates rank heads beside exact effects, on the pairs that test a head, over paradigms.

        They rank all heads if all were replaced. Else they rank the chosen head and the random heads of its layer. This
        says less, so these scores have names of their own.
        """
        correlations = []
        same = []
        for one, outputs in self.tested:
            if one.ablation is ablation:
                estimated, exact = _both_effects(self.measured, one, outputs)
                correlations.append(rank_correlations(estimated, exact))
                same.append(estimated.argmax() == exact.argmax())
        if not same:
            return {}
        prefix = f"{ablation.name}." if self.measured.exact else f"{ablation.name}.layer_"
        return {
            f"{prefix}spearman": resample(mean, np.array(correlations)[:, None], "ratio", draws=DRAWS),
            f"{prefix}same_head": resample(proportion, np.array(same)[:, None], "fraction", draws=DRAWS),
        }

    def _audit(self) -> dict[str, object]:
        """Return what was left out, and how the numbers were made."""
        measured = self.measured
        reasons: Counter[str] = Counter(paradigm.reason for paradigm in measured.paradigms if paradigm.reason)
        good, bad = measured.intact.T
        audit: dict[str, object] = {
            "pairs": len(measured.items),
            "choosing_pairs": int(measured.chooses.sum()),
            "paradigms": len(measured.paradigms),
            **{reason.replace(" ", "_"): count for reason, count in sorted(reasons.items())},
            "ties": int((good == bad).sum()),
            "chosen_by": "exact effects" if measured.exact else "first-order effects",
            "draws": self._draws,
        }
        if any(ablation.kind == "patch" for ablation in measured.estimated):
            audit |= measured.task.audit_of_patch(measured.items)
        return audit

    def _largest(self, ablation: Ablation) -> str:
        """Return the chosen head with the largest effect, for the answer; empty if a sentence may not name it."""
        of_kind = []
        for (one, outputs), effect in zip(self.tested, self._effects, strict=True):
            if one.ablation is ablation:
                of_kind.append((one, len(outputs), effect.effect))
        family = []
        for one, pairs, estimate in of_kind:
            name = f"{self.measured.names.head(one.head)} on {one.paradigm.name}"
            family.append(Difference(name, with_interval_and_p(estimate, len(of_kind)), pairs))
        top = largest_difference(family)
        if top is None:
            return ""
        return f"the largest effect is that of {top.name}, {format_estimate(top.value)}"

    def _answer(self, scores: Mapping[str, Estimate]) -> str:
        """Return the answer for `fill_sentence`: accuracy first, then the heads, then what paradigms share."""
        paradigms = self.measured.paradigms
        above = sum(not paradigm.reason for paradigm in paradigms)
        few = sum(paradigm.reason == TOO_FEW for paradigm in paradigms)
        no_better = len(paradigms) - above - few
        accuracy = f"the accuracy is {{pairs.accuracy}} over {{n}} pairs, above chance in {above} of "
        accuracy += pluralize(len(paradigms), "paradigm")
        if no_better:
            accuracy += f", at or below it in {no_better}"
        if few:
            accuracy += f", with too few pairs in {few}"
        parts = [accuracy]
        tested = [ablation for ablation in self.measured.estimated if scores[f"{ablation.name}.tested"].value]
        for ablation in tested:
            of_kind = [scores[f"{ablation.name}.{name}"].value for name in _COUNTS]
            if ablation is tested[0]:
                parts.append(f"{_DONE[ablation.name]}, {_describe_heads(self._least_p[ablation.name], *of_kind)}")
                parts.append(self._largest(ablation))
            elif not np.isnan(of_kind[1]):
                parts.append(f"{_DONE[ablation.name]}, in {_describe_counts(*of_kind)}")
        return "; ".join(filter(None, parts))


def _warn_of_few_pairs(ablation: Ablation, paradigms: int, least: float) -> None:
    """Warn if no head of any tested paradigm can be significant after Holm's correction.

    Args:
        ablation: Replacement of the outputs.
        paradigms: Number of tested paradigms.
        least: Least p that the pairs allow after the correction.
    """
    if paradigms and least > LEVEL:
        rank_zero_warn(
            f"{ablation.name}: the smallest p that the pairs allow is {least:.2g} after Holm's correction over "
            f"{pluralize(paradigms, 'paradigm')}, so no head can be significant. The counts of paradigms with a head "
            "stay empty. To get them, read more pairs of each paradigm, or fewer paradigms "
            f"({setting('data.fields')})."
        )


def _both_effects(measured: PairEffects, one: ChosenHead, outputs: TaskOutputs) -> tuple[Floats, Floats]:
    """Return the estimated and the exact mean effects of the heads that were replaced, each `[heads]`."""
    of_sets = outputs.outputs
    name = one.ablation.name
    estimated_of_pairs = measured.estimated[one.ablation][one.paradigm.tests]
    intact = log_ratios(of_sets[name, WHOLE])
    estimated = []
    exact = []
    for of_ablation, heads in of_sets:
        if of_ablation == name and heads:
            [(layer, head)] = heads
            estimated.append(estimated_of_pairs[:, layer * measured.task.heads + head].mean())
            exact.append((intact - log_ratios(of_sets[name, heads])).mean())
    return np.array(estimated), np.array(exact)


def _describe_heads(least: float, tested: float, with_head: float, beyond_random: float) -> str:
    """Return in how many of the tested paradigms the chosen head matters."""
    if np.isnan(with_head):
        least_p = format_p(least).removeprefix("p = ")
        return f"so few pairs cannot tell in any of {tested:.0f} (p is at least {least_p} after Holm)"
    text = "the head chosen on half of the pairs costs log-ratio on the other half (p < .05 after Holm) in "
    text += _describe_counts(tested, with_head, beyond_random)
    if not np.isnan(beyond_random):
        text += " more than random heads of its layer"
    return text


def _describe_counts(tested: float, with_head: float, beyond_random: float) -> str:
    """Return the counts of paradigms in words, such as `9 of 17, in none`; a blank last one is left out."""
    text = f"{with_head:.0f}" if with_head else "none"
    text += f" of {tested:.0f}"
    if not np.isnan(beyond_random):
        beyond = f"{beyond_random:.0f}" if beyond_random else "none"
        text += f", in {beyond}"
    return text


def _numbers_of(effect: HeadEffect) -> dict[str, float]:
    by_name = {
        "effect": effect.effect,
        "random": effect.random,
        "beyond_random": effect.beyond_random,
        "accuracy_effect": effect.accuracy,
    }
    return numbers(by_name)


def _with_corrected_p(frame: pd.DataFrame, least: Sequence[float]) -> Table:
    """Return the table of chosen heads, with p-values adjusted over the paradigms of each kind.

    Args:
        frame: The rows.
        least: Least p-value that the pairs of each row allow.
    """
    units: dict[str, Unit | Sequence[Unit]] = {"accuracy": "fraction", "accuracy_effect": "fraction"}
    units |= dict.fromkeys(("effect", "random", "beyond_random"), "nats")
    for p in ("p", "beyond_random_p"):
        by_kind = frame.groupby("kind", sort=False)[p]
        frame[f"{p}_holm"] = by_kind.transform(lambda column: holm(column.tolist()))
        of_rows: list[Unit] = []
        for value, smallest in zip(frame[p], least, strict=True):
            of_rows += p_units([value], smallest)
        units[p] = of_rows
        units[f"{p}_holm"] = of_rows
    return Table(frame, units)


def _cluster_scores(kind: str, clusters: ParadigmClusters) -> dict[str, Estimate]:
    """Return how well the effects of paradigms are repeated, and the tests of clusters and fields."""
    least = 1 / (1 + PERMUTATIONS)
    scores = {
        "reliability": Estimate(float(np.median(clusters.reliability)), unit="ratio"),
        "clusters": Estimate(int(clusters.clusters.max()), unit="count"),
        "within_clusters": Estimate(1 - clusters.within, unit="ratio"),
        "between_clusters": Estimate(1 - clusters.between, unit="ratio"),
        "cluster_p": Estimate(clusters.p, unit=p_units([clusters.p], least)[0]),
        "field_p": Estimate(clusters.p_of_fields, unit=p_units([clusters.p_of_fields], least)[0]),
    }
    return {f"{kind}.{name}": score for name, score in scores.items()}


def _cluster_rows(kind: str, tested: Sequence[Paradigm], clusters: ParadigmClusters) -> list[dict[str, object]]:
    """Return the cluster of each tested paradigm, and the reliability of its effects."""
    rows: list[dict[str, object]] = []
    for paradigm, cluster, reliability in zip(tested, clusters.clusters, clusters.reliability, strict=True):
        rows.append(
            {
                "kind": kind,
                "cluster": int(cluster),
                "field": paradigm.field,
                "paradigm": paradigm.name,
                "reliability": float(reliability),
            }
        )
    return rows


def _shared_figure(kind: str, tested: Sequence[Paradigm], clusters: ParadigmClusters) -> HeatMap:
    """Return the correlations of paradigms between the halves of the pairs, in the order of the tree."""
    order = leaves_list(clusters.tree)
    labels = [f"{tested[place].name} ({clusters.clusters[place]})" for place in order]
    return HeatMap(
        title=f"Paradigms that share heads ({kind}): correlation of effects between halves of the pairs",
        values=clusters.correlations[np.ix_(order, order)],
        row_labels=labels,
        column_labels=labels,
        row_label="paradigm (cluster), choosing half",
        column_label="testing half",
        value_label="Pearson's r",
        unit="ratio",
        diverging=True,
        limits=(-1.0, 1.0),
    )
