"""Heads that a decoder's grammar depends on: effects of every head on every paradigm of minimal pairs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attention_probing.attention.ablation import Ablation
from attention_probing.attention.heads import Heads
from attention_probing.corpora.pairs import MinimalPair
from attention_probing.datamodules import PairBatch, PairDataModule
from attention_probing.measures.contract import Measure
from attention_probing.measures.grammar_report import GrammarReport
from attention_probing.measures.head_sets import DRAWS, WHOLE, TaskOutputs
from attention_probing.measures.kept_batches import KeptBatches
from attention_probing.measures.pair_effects import ChosenHead, PairEffects, TestedHead
from attention_probing.measures.pair_passes import PairPasses, Replacements, describe_time, estimated_column
from attention_probing.measures.pair_tasks import MinimalPairs, require_numbers
from attention_probing.metrics.head_effects import LEAST_PAIRS, effect_of_head
from attention_probing.metrics.p_values import draws_for
from attention_probing.metrics.pairs import log_ratios
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.results import Floats, Integers, Result
from attention_probing.results.errors import UserError, check_names, pluralize, setting
from attention_probing.results.heads import HeadNames
from attention_probing.results.options import Positive, Several, checked
from attention_probing.results.progress import Progress, inform

GrammarKind = Literal["zero", "patch"]
"""Kinds of `attention.ablation.Ablation` whose effects can be estimated without other texts than the pairs."""


class GrammarHeads(Measure[PairDataModule]):
    """Effect of every attention head of a decoder on every paradigm of minimal pairs.

    The effect of a head is a number of the intact model minus the same number with the head's output replaced
    (`attention.ablation.Ablation`). The number is the *log-ratio*, which is the log-probability of the acceptable
    sentence minus that of the other in nats; or the accuracy.

    For each paradigm a random half of the pairs chooses a head: that with the largest effect on the log-ratio, of those
    on a shortlist of estimates, or of all heads (`choose`). The other half tests it, exactly: against the intact model,
    and against random heads of the same layer (`metrics.differences.against_random_draws`). Holm's method adjusts each
    of the two p-values over all paradigms. A paradigm is tested if it has 20 pairs or more, and if the intact model's
    accuracy on the choosing half is above chance: its interval lies above .5.

    A small p says that the head matters, or that it matters more than the other heads of its layer. Some head matters
    most in every model, also in one with random weights, so the second p allows for its choice
    (`metrics.differences.widen_for_choice`).

    Paradigms that share heads are those whose effects correlate over all heads (`ParadigmClusters`); the effects are
    estimates unless `choose` is `exact`.

    A run that was interrupted goes on where it was, if the same command is given again.

    Args:
        kinds: Replacements: `zero` switches the head off, `patch` gives it its output in the other sentence.
        choose: How the effects of all heads are found. `gradient` estimates them to first order, in one pass forward
            and back for each pair (`measures.attribution`). The heads with the largest estimates, in either direction,
            are then replaced on the choosing half, and the largest exact effect chooses. `exact` replaces every head in
            a pass of its own, and also scores how well the estimates would have ranked the heads, and in how many
            paradigms the shortlist has the best one.
        random: Number of random heads of the same layer beside each chosen one; fewer if the layer has fewer.
        shortlist: Number of heads that are replaced on the choosing half, under `gradient`. Estimates are good in some
            decoders and bad in others; `exact` on a few paradigms shows how long the shortlist must be.

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
        shortlist: Positive = 8,
    ) -> None:
        super().__init__()
        check_names(setting("model.kinds"), kinds)
        self.ablations = [Ablation(kind) for kind in kinds]
        self.choose = choose
        self.random = random
        self.shortlist = shortlist

    def begin(self) -> None:
        pairs = self.data.splits["test"]
        if pairs.masking is not None:
            raise UserError(
                f"{type(self).__name__} reads decoders, but {pairs.encoder.source.spec.name} is a masked language "
                f"model. Name a decoder (gpt2) with {setting('encoder')}, or ablate heads with HeadAblation."
            )
        self._require_pairs(pairs.pairs)
        self.task = MinimalPairs(pairs)
        every_head = product(range(self.task.layers), range(self.task.heads))
        self._heads: list[Heads] = [frozenset({head}) for head in every_head]
        self._names = HeadNames(tuple(range(self.task.layers)), tuple(range(self.task.heads)))
        self._every_set = {ablation: [WHOLE, *self._heads] for ablation in self.ablations}
        kept = KeptBatches(self.kept_folder(self.data))
        if kept.found > 1:  # more than the times
            inform("An interrupted run of this command has left a part of its numbers, which are taken from there.")
        self._rows = Rows()
        self._passes = PairPasses(self.task, pairs, self.ablations, kept, self.ranks, self.device)
        self.times = self._passes.time()
        inform(self._describe_work())

    def _require_pairs(self, pairs: Sequence[MinimalPair]) -> None:
        """Raise a UserError if no paradigm has enough pairs to test a head, before any pass."""
        sizes = Counter((pair.field, pair.paradigm) for pair in pairs)
        most = max(sizes.values())
        if most < LEAST_PAIRS:
            raise UserError(
                f"A head is tested for paradigms with {LEAST_PAIRS} pairs or more, but the largest has "
                f"{pluralize(most, 'pair')}. Read more pairs of each paradigm with {setting('data.per_paradigm')}, or "
                f"ablate heads over all pairs with HeadAblation (kumon2026/patch)."
            )

    def update(self, batch: PairBatch) -> None:
        if len(batch.index):
            sets = self._every_set if self.choose == "exact" else {}
            self._rows.add(batch.index, **self._passes.effects(batch, sets, self.advance))

    def result(self) -> Result:
        columns = self._rows.take()
        measured = self._effects_of(columns)
        if self.choose == "exact":
            outputs = TaskOutputs.from_rows(self.task, columns, self._every_set)
            chosen_heads = self._choose_of_all(measured)
            outputs_of_chosen = [outputs.only(chosen.paradigm.tests) for chosen in chosen_heads]
        else:
            chosen_heads = self._choose_of_shortlists(measured)
            replacements = []
            for chosen in chosen_heads:
                items = measured.items[chosen.paradigm.tests]
                replacements.append(Replacements(chosen.ablation, items, (chosen.heads, *chosen.random)))
            name = f"Testing {pluralize(len(chosen_heads), 'chosen head')}"
            outputs_of_chosen = self._passes.replace(name, replacements, self.times)
        return self._report(measured, chosen_heads, outputs_of_chosen)

    def _report(
        self, measured: PairEffects, chosen_heads: Sequence[ChosenHead], outputs_of_chosen: Sequence[TaskOutputs]
    ) -> Result:
        """Test the chosen heads, given the outputs of the model on the pairs that test them, and report all."""
        most = max(map(len, outputs_of_chosen), default=0)
        draws = draws_for(len(measured.paradigms), most, DRAWS)  # so that p can be small after Holm's correction
        progress = Progress("Effects and their intervals", len(chosen_heads))
        tested = []
        for chosen, outputs in zip(chosen_heads, outputs_of_chosen, strict=True):
            by_set = outputs.outputs
            kind = chosen.ablation.name
            intact = by_set[kind, WHOLE]
            replaced = by_set[kind, chosen.heads]
            random = [by_set[kind, heads] for heads in chosen.random]
            effect = effect_of_head(intact, replaced, random, draws, len(self._heads))
            tested.append(TestedHead(chosen, outputs, effect))
            progress.advance()
        return GrammarReport(self.experiment, measured, tested, draws, self.shortlist).result()

    def _effects_of(self, columns: Mapping[str, NDArray[Any]]) -> PairEffects:
        """Return the effects of all heads on all pairs that were read.

        Raises:
            UserError: A log-probability is NaN.
        """
        intact = columns["intact"]
        require_numbers(intact)
        estimated = {ablation: columns[estimated_column(ablation)] for ablation in self.ablations}
        exact = {}
        if self.choose == "exact":
            outputs = TaskOutputs.from_rows(self.task, columns, self._every_set)
            all_heads = np.arange(len(self._heads))
            for ablation in self.ablations:
                exact[ablation] = self._effects_in(outputs, ablation, all_heads)
        return PairEffects(self.task, self._names, columns[ITEM], intact, estimated, exact, self.seed)

    def _choose_of_all(self, measured: PairEffects) -> list[ChosenHead]:
        """Choose a head for each kind and paradigm by the exact effects of all heads."""
        all_heads = np.arange(len(self._heads))
        chosen = []
        for ablation, paradigm in measured.to_test():
            effects = measured.exact[ablation][paradigm.chooses]
            chosen.append(measured.choose(ablation, paradigm, all_heads, effects, self.random))
        return chosen

    def _choose_of_shortlists(self, measured: PairEffects) -> list[ChosenHead]:
        """Choose a head for each kind and paradigm by the exact effects of the heads with the largest estimates."""
        cases = measured.to_test()
        shortlists = [measured.shortlist(ablation, paradigm, self.shortlist) for ablation, paradigm in cases]
        replacements = []
        for (ablation, paradigm), heads in zip(cases, shortlists, strict=True):
            sets = [self._heads[head] for head in heads]
            replacements.append(Replacements(ablation, measured.items[paradigm.chooses], sets))
        outputs = self._passes.replace(f"Choosing {pluralize(len(cases), 'head')}", replacements, self.times)
        chosen = []
        for (ablation, paradigm), heads, outputs_of_case in zip(cases, shortlists, outputs, strict=True):
            effects = self._effects_in(outputs_of_case, ablation, heads)
            chosen.append(measured.choose(ablation, paradigm, heads, effects, self.random))
        return chosen

    def _effects_in(self, outputs: TaskOutputs, ablation: Ablation, heads: Integers) -> Floats:
        """Return the exact effects of some heads that were replaced, in nats, `[pairs, heads]`."""
        by_set = outputs.outputs
        intact = log_ratios(by_set[ablation.name, WHOLE])
        replaced = [log_ratios(by_set[ablation.name, self._heads[head]]) for head in heads]
        return intact[:, None] - np.stack(replaced, 1)

    def predict_seconds(self) -> tuple[float, float]:
        """Return the time of the passes over all pairs, and the most that the passes after them can take.

        These replace heads for the paradigms that the model is above chance in, which are not known beforehand.
        """
        times = self.times
        tokens = self._passes.tokens(np.arange(len(self.data.splits["test"]))) / self.ranks.world
        seconds = tokens * times.estimate
        if self.choose == "exact":
            passes = times.intact + len(self._heads) * times.replaced_on_average
            return seconds + len(self.ablations) * tokens * passes, 0.0
        replaced = min(self.shortlist, len(self._heads)) + 1 + min(self.random, self.task.heads - 1)
        passes = times.intact + replaced / 2 * max(times.first, times.last)  # half of the pairs choose, half test
        return seconds, len(self.ablations) * tokens * passes

    def _describe_work(self) -> str:
        """Return the first message: the work to be done, and the time that it will take."""
        pairs = pluralize(len(self.data.splits["test"]), "pair")
        heads = pluralize(len(self._heads), "head")
        kinds = " and ".join(ablation.name for ablation in self.ablations)
        first, rest = map(describe_time, self.predict_seconds())
        work = f"Effects of {heads} ({kinds}) on {pairs}, if nothing else runs here"
        if self.choose == "exact":
            return f"{work}: about {first}, a pass for each head."
        return (
            f"{work}: about {first} to estimate them; then at most {rest} to replace the largest, less where the model "
            "is not above chance."
        )
