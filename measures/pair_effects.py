"""Effects of heads on minimal pairs, by paradigm: one half of the pairs chooses a head, and the other half tests it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from attention_probing.attention.ablation import Ablation
from attention_probing.attention.heads import Heads
from attention_probing.measures.head_sets import TaskOutputs, random_sets
from attention_probing.measures.pair_tasks import MinimalPairs
from attention_probing.measures.paradigm_clusters import FEWEST, ParadigmClusters
from attention_probing.metrics.head_effects import HeadEffect, reason_not_to_test
from attention_probing.metrics.pairs import are_right, choosing_half, log_ratios
from attention_probing.metrics.shares import share_interval
from attention_probing.metrics.stability import choose_again, choose_from_shortlist_again
from attention_probing.results import Estimate, Flags, Floats, Integers
from attention_probing.results.heads import HeadNames


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
    """The head with the largest effect on the choosing half of a paradigm, of those that were replaced there.

    Attributes:
        paradigm: The paradigm.
        ablation: Replacement of its output.
        head: Index of the head, counted layer by layer from 0.
        heads: The set of this head alone.
        random: Random heads of the same layer, each a set.
        again: Number of 100 resamples of the choosing half on which it is chosen again, from a new shortlist; None if
            undefined.
        rivals: Heads that are chosen instead.
    """

    paradigm: Paradigm
    ablation: Ablation
    head: int
    heads: Heads
    random: tuple[Heads, ...]
    again: int | None
    rivals: str | None


@dataclass(frozen=True, eq=False)
class TestedHead:
    """A chosen head, and what its replacement changes on the pairs that test it.

    Attributes:
        chosen: The head.
        outputs: Outputs of the model on these pairs: intact, and with the head and each of its random heads replaced.
        effect: Effect of the head.
    """

    chosen: ChosenHead
    outputs: TaskOutputs
    effect: HeadEffect

    @property
    def pairs(self) -> int:
        """Number of pairs that test the head."""
        return len(self.outputs)

    def log_ratios(self, heads: Heads) -> Floats:
        """Return the log-ratios of these pairs with a set of heads replaced, `[pairs]`."""
        return log_ratios(self.outputs.outputs[self.chosen.ablation.name, heads])


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
        paradigms = sorted(set(self._fields_and_names))
        return np.array([paradigms.index(field_and_name) for field_and_name in self._fields_and_names])

    @cached_property
    def paradigms(self) -> list[Paradigm]:
        """The paradigms of the measured pairs, by field and name."""
        right = are_right(self.intact)
        paradigms = []
        for number, (field, name) in enumerate(sorted(set(self._fields_and_names))):
            belongs = self._paradigm_numbers == number
            right_of_paradigm = right[belongs]
            share, low, high = share_interval(right_of_paradigm, np.ones_like(right_of_paradigm))
            accuracy = Estimate(share, low, high, unit="fraction")
            reason = reason_not_to_test(right_of_paradigm, self.chooses[belongs])
            chooses = belongs & self.chooses
            tests = belongs & ~self.chooses
            paradigms.append(Paradigm(name, field, number, chooses, tests, accuracy, reason))
        return paradigms

    def effects(self, ablation: Ablation) -> Floats:
        """Return the effects of all heads, `[pairs, heads]`: the exact ones, if there are any."""
        return self.exact.get(ablation, self.estimated[ablation])

    @property
    def order(self) -> str:
        """`exact` if the effects of all heads were measured, `first-order` if they are estimates."""
        return "exact" if self.exact else "first-order"

    def reason(self, ablation: Ablation, paradigm: Paradigm) -> str:
        """Return the reason why no head of a paradigm is tested; empty if one is."""
        if not paradigm.reason and not self.effects(ablation)[paradigm.chooses].any():
            return "no head changes a pair"
        return paradigm.reason

    def to_test(self) -> list[tuple[Ablation, Paradigm]]:
        """Return each replacement and paradigm whose head is tested."""
        cases = product(self.estimated, self.paradigms)
        return [(ablation, paradigm) for ablation, paradigm in cases if not self.reason(ablation, paradigm)]

    def shortlist(self, ablation: Ablation, paradigm: Paradigm, most: int) -> Integers:
        """Return the heads with the largest estimates on the choosing half, in either direction, int64 `[heads]`.

        An estimate of the wrong sign is often a large one: what a low layer writes passes through many others, and a
        derivative says little about the removal of all of it.
        """
        effects = self.estimated[ablation][paradigm.chooses].mean(0)
        return np.argsort(-np.abs(effects), kind="stable")[:most]

    def choose(
        self, ablation: Ablation, paradigm: Paradigm, candidates: Integers, effects: Floats, random: int
    ) -> ChosenHead:
        """Choose the head with the largest mean effect on the choosing half.

        Args:
            ablation: Replacement of the outputs.
            paradigm: The paradigm.
            candidates: Heads to choose from, `[candidates]`.
            effects: Their exact effects on the pairs of the choosing half, `[pairs, candidates]`.
            random: Largest number of random heads of the same layer.
        """
        best = int(effects.mean(0).argmax())
        if self.exact:
            stability = choose_again(effects, np.ones(len(effects)), self.seed)
        else:
            estimates = self.estimated[ablation][paradigm.chooses]
            stability = choose_from_shortlist_again(effects, candidates, estimates, self.seed)
        again, rivals = stability.describe(best, lambda place: self.names.head(int(candidates[place])))
        head = int(candidates[best])
        generator = np.random.default_rng([self.seed, paradigm.number])
        others = random_sets(self.set_of(head), self.task.heads, random, generator)
        return ChosenHead(paradigm, ablation, head, self.set_of(head), others, again, rivals)

    def set_of(self, head: int) -> Heads:
        """Return the set of one head alone."""
        return frozenset({divmod(head, self.task.heads)})

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
            belongs = self._paradigm_numbers == paradigm.number
            if pairs is not None:
                belongs = belongs & pairs
            row = np.full(effects.shape[1], np.nan)
            if belongs.any():
                row = effects[belongs].mean(0)
            rows.append(row)
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
