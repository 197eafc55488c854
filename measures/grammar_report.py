"""Tables, figures, scores and the answer about the heads that grammar depends on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from lightning_utilities.core.rank_zero import rank_zero_warn
from scipy.cluster.hierarchy import leaves_list

from attention_probing.attention.ablation import Ablation
from attention_probing.measures.clusters import PERMUTATIONS
from attention_probing.measures.head_sets import DRAWS, WHOLE
from attention_probing.measures.pair_effects import PairEffects, Paradigm, TestedHead
from attention_probing.measures.paradigm_clusters import ParadigmClusters
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.differences import with_interval_and_p
from attention_probing.metrics.head_effects import TOO_FEW, HeadEffect
from attention_probing.metrics.p_values import holm, least_p, p_units, smallest_p
from attention_probing.metrics.pairs import are_right
from attention_probing.metrics.shares import share_interval
from attention_probing.metrics.stability import NO_CHOICE, StabilityCells, stability_columns
from attention_probing.metrics.statistics import mean, proportion, rank_correlations
from attention_probing.results import Estimate, Figure, Finding, Floats, HeatMap, Result, Table, Unit, numbers
from attention_probing.results.errors import pluralize, setting
from attention_probing.results.sentences import (
    LEVEL,
    Difference,
    fill_sentence,
    format_estimate,
    format_p,
    largest_difference,
)

_SHORT_NAMES = {"effect.p": "p", "beyond_random.p": "beyond_random_p"}
_DONE = {"zero": "switched off", "patch": "patched"}
_COUNTS = ("tested", "with_head", "beyond_random")
# Main columns of the table of heads, which fit 80 characters with BLiMP's names.
_MAIN = ("paradigm", "head", "chosen", "effect", "p_holm")
_OF_PARADIGM = ("field", "paradigm", "n", "accuracy", "head")
_OF_HEAD = (
    "effect",
    "effect.low",
    "effect.high",
    "p",
    "random",
    "random.low",
    "random.high",
    "random.sd",
    "beyond_random",
    "beyond_random.low",
    "beyond_random.high",
    "beyond_random_p",
    "accuracy_effect",
    "accuracy_effect.low",
    "accuracy_effect.high",
)


@dataclass(frozen=True, eq=False)
class GrammarReport:
    """Tables, figures and scores of the effects of heads on paradigms, under all replacements.

    Attributes:
        experiment: Name of the measurement.
        measured: Effects of all heads on all pairs.
        tested: The chosen heads, of all replacements.
        draws: Number of bootstrap draws of their effects.
        shortlist: Number of heads on the shortlist of estimates.
    """

    experiment: str
    measured: PairEffects
    tested: Sequence[TestedHead]
    draws: int
    shortlist: int

    @cached_property
    def _by_kind(self) -> list["KindReport"]:
        reports = []
        for ablation in self.measured.estimated:
            tested = [head for head in self.tested if head.chosen.ablation is ablation]
            reports.append(KindReport(ablation, self.measured, tested, self.draws, self.shortlist))
        return reports

    def result(self) -> Result:
        measured = self.measured
        task = measured.task
        values = np.column_stack([measured.items, measured.intact])
        scores = {task.score: resample(task.statistic(), values, task.unit, draws=DRAWS)}
        tables = {"fields": self._fields_table()}
        figures: dict[str, Figure] = {}
        cluster_rows = []
        for report in self._by_kind:
            report.warn_of_few_pairs()
            scores |= report.scores()
            figures |= report.figures()
            tables[f"heads_{report.kind}"] = report.heads
            cluster_rows += report.cluster_rows()
        tables["paradigms"] = self._paradigms_table()
        tables["matrix"] = self._matrix_table()
        if cluster_rows:
            tables["clusters"] = Table(pd.DataFrame(cluster_rows), {"reliability": "ratio"})
        endings = (*_COUNTS, "cluster_p", "field_p")
        headline = [task.score]
        headline += [name for name in scores if name.endswith(endings)]
        answer = fill_sentence(self._answer(), scores, n=len(measured.items))
        return Result(
            self.experiment,
            scores,
            tables,
            figures,
            self._audit(),
            headline=headline,
            answer=answer,
            finding=self._finding(),
        )

    def _finding(self) -> Finding:
        kind = self._by_kind[0].kind
        paradigms = len(self.measured.paradigms)
        name = f"{kind}.with_head"
        if np.isnan(self._by_kind[0].counts()["with_head"]):
            return Finding(self.measured.task.score, "acceptable sentences that are at least as probable")
        words = "paradigms that are above chance and have a head that costs log-ratio, "
        return Finding(name, f"{words}{_DONE[kind]} (p < .05 after Holm), of {paradigms:,}")

    def _fields_table(self) -> Table:
        """Return the counts of paradigms by kind and field, with the accuracy of the intact model."""
        measured = self.measured
        right = are_right(measured.intact)
        fields = np.array([measured.task.pairs[item].field for item in measured.items])
        rows = []
        for report in self._by_kind:
            for field in sorted(set(fields)):
                right_of_field = right[fields == field]
                share, low, high = share_interval(right_of_field, np.ones_like(right_of_field))
                accuracy = Estimate(share, low, high, unit="fraction")
                row: dict[str, object] = {"kind": report.kind, "field": field, "n": len(right_of_field)}
                row |= accuracy.columns("accuracy")
                row["paradigms"] = sum(paradigm.field == field for paradigm in measured.paradigms)
                row |= report.counts(field)
                rows.append(row)
        main = ("kind", "field", "accuracy", "paradigms", *_COUNTS)
        units: dict[str, Unit] = {"accuracy": "fraction", **dict.fromkeys(_COUNTS, "count")}
        return Table(pd.DataFrame(rows), units, main=main)

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
            all_pairs = measured.matrix(ablation)
            for paradigm in measured.paradigms:
                columns = {
                    "kind": ablation.name,
                    "paradigm": paradigm.name,
                    "head": heads,
                    "effect": all_pairs[paradigm.number],
                    "choosing": choosing[paradigm.number],
                    "testing": testing[paradigm.number],
                }
                frames.append(pd.DataFrame(columns))
        units: dict[str, Unit] = dict.fromkeys(("effect", "choosing", "testing"), "nats")
        return Table(pd.concat(frames, ignore_index=True), units)

    def _audit(self) -> dict[str, object]:
        """Return what was left out, and how the numbers were made."""
        measured = self.measured
        audit: dict[str, object] = {
            "pairs": len(measured.items),
            "choosing_pairs": int(measured.chooses.sum()),
            "paradigms": len(measured.paradigms),
        }
        reasons = Counter(paradigm.reason for paradigm in measured.paradigms if paradigm.reason)
        for reason, count in sorted(reasons.items()):
            audit[reason.replace(" ", "_")] = count
        good, bad = measured.intact.T
        audit["ties"] = int((good == bad).sum())
        audit["matrix"] = f"{measured.order} effects"
        audit["draws"] = self.draws
        if any(ablation.kind == "patch" for ablation in measured.estimated):
            audit |= measured.task.audit_of_patch(measured.items)
        return audit

    def _answer(self) -> str:
        """Return the answer for `fill_sentence`: accuracy first, then the heads."""
        paradigms = self.measured.paradigms
        above = sum(not paradigm.reason for paradigm in paradigms)
        few = sum(paradigm.reason == TOO_FEW for paradigm in paradigms)
        accuracy = f"the accuracy is {{pairs.accuracy}} over {{n}} pairs, above chance in {above} of "
        accuracy += f"{pluralize(len(paradigms), 'paradigm')} on the pairs that choose"
        if few:
            accuracy += f", with too few pairs in {few}"
        parts = [accuracy]
        reports = [report for report in self._by_kind if report.tested]
        for number, report in enumerate(reports):
            part = report.answer(is_first=number == 0)
            if part:
                parts.append(part)
        return "; ".join(parts)


@dataclass(frozen=True, eq=False)
class KindReport:
    """Table, figures and scores of one replacement of heads.

    Attributes:
        ablation: The replacement.
        measured: Effects of all heads on all pairs.
        tested: The heads that were chosen under this replacement.
        draws: Number of bootstrap draws of their effects.
        shortlist: Number of heads on the shortlist of estimates.
    """

    ablation: Ablation
    measured: PairEffects
    tested: Sequence[TestedHead]
    draws: int
    shortlist: int

    @property
    def kind(self) -> str:
        """Name of the replacement."""
        return self.ablation.name

    @cached_property
    def heads(self) -> Table:
        """A row for each paradigm with its chosen head, the largest effect first; then those without, with a reason.

        Holm's method adjusts p-values over the paradigms.
        """
        tested = sorted(self.tested, key=lambda head: -head.effect.effect.value)
        rows = []
        for head in tested:
            row = self._cells_of_paradigm(head.chosen.paradigm)
            row |= {"n": head.pairs, "head": self.measured.names.head(head.chosen.head)}
            row |= _numbers_of(head.effect)
            rows.append(row)
        with_head = {head.chosen.paradigm.number for head in tested}
        for paradigm in self.measured.paradigms:
            if paradigm.number not in with_head:
                rows.append(self._cells_of_paradigm(paradigm))
        without = len(rows) - len(tested)
        stability: list[StabilityCells] = [(head.chosen.again, head.chosen.rivals) for head in tested]
        least = [least_p(head.pairs, self.draws) for head in tested]
        stability += [NO_CHOICE] * without
        least += [1.0] * without
        frame = pd.DataFrame(rows, columns=[*_OF_PARADIGM, *_OF_HEAD, "reason"])
        frame = frame.astype(dict.fromkeys(_OF_HEAD, float))
        return _with_corrected_p(pd.concat([frame, stability_columns(stability)], axis=1), least)

    def _cells_of_paradigm(self, paradigm: Paradigm) -> dict[str, object]:
        """Return the cells of a row that do not depend on the head."""
        return {
            "field": paradigm.field,
            "paradigm": paradigm.name,
            "n": 0,
            "accuracy": paradigm.accuracy.value,
            "head": None,
            "reason": self.measured.reason(self.ablation, paradigm),
        }

    @cached_property
    def least_p(self) -> float:
        """Least p of an effect that the pairs allow after Holm's correction; 1 without a tested paradigm."""
        smallest = [smallest_p(head.pairs, self.draws) for head in self.tested]
        if not smallest:
            return 1.0
        return min(1.0, len(smallest) * min(smallest))

    def counts(self, field: str | None = None) -> dict[str, float]:
        """Count the tested paradigms, those with a head that costs log-ratio, and those where random heads cost less.

        A count is nan if no p-value of it can be small enough.

        Args:
            field: Field of grammar; None for all paradigms.
        """
        rows = self.heads.frame
        if field is not None:
            rows = rows[rows["field"] == field]
        tested = int(rows["head"].notna().sum())
        with_head: float = np.nan
        beyond_random: float = np.nan
        if self.least_p <= LEVEL or not tested:
            helps = (rows["p_holm"] < LEVEL) & (rows["effect"] > 0)
            with_head = int(helps.sum())
            if rows["beyond_random_p_holm"].notna().any() or not tested:
                is_beyond = (rows["beyond_random_p_holm"] < LEVEL) & (rows["beyond_random"] > 0)
                beyond_random = int((helps & is_beyond).sum())
        return dict(zip(_COUNTS, (tested, with_head, beyond_random), strict=True))

    def warn_of_few_pairs(self) -> None:
        """Warn if no head of any tested paradigm can be significant after Holm's correction."""
        if self.tested and self.least_p > LEVEL:
            rank_zero_warn(
                f"{self.kind}: the smallest p that the pairs allow is {self.least_p:.2g} after Holm's correction over "
                f"{pluralize(len(self.tested), 'paradigm')}, so no head can be significant. The counts of paradigms "
                "with a head stay empty. To get them, read more pairs of each paradigm, or fewer paradigms "
                f"({setting('data.fields')})."
            )

    def scores(self) -> dict[str, Estimate]:
        scores: dict[str, Estimate] = {}
        for name, number in self.counts().items():
            scores[name] = Estimate(number, unit="count")
        scores |= self._agreement()
        _, clusters = self._paradigms_and_clusters
        if clusters is not None:
            scores |= _cluster_scores(clusters)
        return {f"{self.kind}.{name}": score for name, score in scores.items()}

    def _agreement(self) -> dict[str, Estimate]:
        """Return how well estimates rank heads beside exact effects, on the pairs that test a head, over paradigms.

        They rank all heads if all were replaced; then it is also known in how many paradigms the head with the largest
        exact effect would have been on the shortlist. Else they rank the chosen head and the random heads of its layer.
        This says less, so these scores have names of their own.
        """
        if not self.tested:
            return {}
        correlations = []
        same = []
        for head in self.tested:
            estimated, exact = self._both_effects(head)
            correlations.append(rank_correlations(estimated, exact))
            same.append(estimated.argmax() == exact.argmax())
        prefix = "" if self.measured.exact else "layer_"
        scores = {
            f"{prefix}spearman": resample(mean, np.array(correlations)[:, None], "ratio", draws=DRAWS),
            f"{prefix}same_head": resample(proportion, np.array(same)[:, None], "fraction", draws=DRAWS),
        }
        if self.measured.exact:
            is_listed = []
            for head in self.tested:
                listed = self.measured.shortlist(self.ablation, head.chosen.paradigm, self.shortlist)
                is_listed.append(head.chosen.head in listed)
            scores["on_shortlist"] = resample(proportion, np.array(is_listed)[:, None], "fraction", draws=DRAWS)
        return scores

    def _both_effects(self, tested: TestedHead) -> tuple[Floats, Floats]:
        """Return the estimated and the exact mean effects of the heads that were replaced, each `[heads]`."""
        estimated_of_pairs = self.measured.estimated[self.ablation][tested.chosen.paradigm.tests]
        intact = tested.log_ratios(WHOLE)
        estimated = []
        exact = []
        for kind, heads in tested.outputs.outputs:
            if kind == self.kind and heads:
                [(layer, head)] = heads
                estimated.append(estimated_of_pairs[:, layer * self.measured.task.heads + head].mean())
                exact.append((intact - tested.log_ratios(heads)).mean())
        return np.array(estimated), np.array(exact)

    @cached_property
    def _paradigms_and_clusters(self) -> tuple[list[Paradigm], ParadigmClusters | None]:
        return self.measured.clusters(self.ablation)

    def cluster_rows(self) -> list[dict[str, object]]:
        """Return the cluster of each tested paradigm, and the reliability of its effects."""
        paradigms, clusters = self._paradigms_and_clusters
        rows: list[dict[str, object]] = []
        if clusters is None:
            return rows
        for paradigm, cluster, reliability in zip(paradigms, clusters.clusters, clusters.reliability, strict=True):
            row: dict[str, object] = {"kind": self.kind, "cluster": int(cluster), "field": paradigm.field}
            row |= {"paradigm": paradigm.name, "reliability": float(reliability)}
            rows.append(row)
        return rows

    def figures(self) -> dict[str, Figure]:
        figures: dict[str, Figure] = {}
        paradigms, clusters = self._paradigms_and_clusters
        if clusters is not None:
            figures[f"shared_{self.kind}"] = _shared_figure(f"{self.kind}, {self.measured.order}", paradigms, clusters)
        if self.tested:
            figures[f"heads_{self.kind}"] = self._matrix_figure()
        return figures

    def _matrix_figure(self) -> HeatMap:
        """Return a map of tested paradigms × the heads that one of them has chosen."""
        names = self.measured.names
        heads = sorted({head.chosen.head for head in self.tested})
        paradigms = [head.chosen.paradigm for head in self.tested]
        numbers_of_paradigms = [paradigm.number for paradigm in paradigms]
        matrix = self.measured.matrix(self.ablation)
        return HeatMap(
            title=f"Effects of the chosen heads on the log-ratio ({self.kind}, {self.measured.order})",
            values=matrix[np.ix_(numbers_of_paradigms, heads)],
            row_labels=[paradigm.name for paradigm in paradigms],
            column_labels=[names.head(head) for head in heads],
            row_label="paradigm, by field",
            column_label="layer-head",
            value_label="effect (nats)",
            unit="nats",
            diverging=True,
        )

    def answer(self, *, is_first: bool) -> str:
        """Return this replacement's part of the answer.

        Args:
            is_first: True to write it out, with the head of the largest effect; False for the counts alone, which
                follow those of another replacement.
        """
        tested, with_head, beyond_random = self.counts().values()
        kind = _DONE[self.kind]
        if is_first:
            described = _describe_heads(kind, self.least_p, tested, with_head, beyond_random)
            largest = self._largest()
            if largest:
                described += f"; {largest}"
            return described
        if np.isnan(with_head):
            return ""
        return _describe_further_heads(kind, with_head, beyond_random)

    def _largest(self) -> str:
        """Return the chosen head with the largest effect, for the answer; empty if a sentence may not name it."""
        family = []
        for head in self.tested:
            name = f"{self.measured.names.head(head.chosen.head)} on {head.chosen.paradigm.name}"
            estimate = with_interval_and_p(head.effect.effect, len(self.tested))
            family.append(Difference(name, estimate, head.pairs))
        top = largest_difference(family)
        if top is None:
            return ""
        return f"the largest of the {len(family)} effects is {format_estimate(top.value)}, of {top.name}"


def _describe_heads(kind: str, least: float, tested: float, with_head: float, beyond_random: float) -> str:
    """Return in how many of the tested paradigms the chosen head matters, under the first replacement."""
    if np.isnan(with_head):
        least_p = format_p(least).removeprefix("p = ")
        return f"{kind}, so few pairs cannot tell in any of {tested:.0f} (p is at least {least_p} after Holm)"
    text = f"in {_count(with_head)} of these {tested:.0f} the chosen head, {kind}, lowers the log-ratio of the other "
    text += "half (p < .05 after Holm)"
    if with_head and not np.isnan(beyond_random):
        text += f", in {_count(beyond_random)} by more than random heads of its layer"
    return text


def _describe_further_heads(kind: str, with_head: float, beyond_random: float) -> str:
    """Return the counts of a further replacement in fewer words, which refer to those of `_describe_heads`."""
    text = f"{kind}, in {_count(with_head)}"
    if with_head and not np.isnan(beyond_random):
        text += f", in {_count(beyond_random)} by more"
    return text


def _count(number: float) -> str:
    return f"{number:.0f}" if number else "none"


def _numbers_of(effect: HeadEffect) -> dict[str, float]:
    by_name = {
        "effect": effect.effect,
        "random": effect.random,
        "beyond_random": effect.beyond_random,
        "accuracy_effect": effect.accuracy,
    }
    cells = {}
    for name, number in numbers(by_name).items():
        cells[_SHORT_NAMES.get(name, name)] = number
    return cells


def _with_corrected_p(frame: pd.DataFrame, least: Sequence[float]) -> Table:
    """Return the table of chosen heads, with p-values adjusted over the paradigms.

    Args:
        frame: The rows.
        least: Least p-value that the pairs of each row allow.
    """
    units: dict[str, Unit | Sequence[Unit]] = {"accuracy": "fraction", "accuracy_effect": "fraction"}
    units |= dict.fromkeys(("effect", "random", "beyond_random"), "nats")
    for p in ("p", "beyond_random_p"):
        frame[f"{p}_holm"] = holm(frame[p].tolist())
        units_of_rows: list[Unit] = []
        for value, smallest in zip(frame[p], least, strict=True):
            units_of_rows += p_units([value], smallest)
        units[p] = units_of_rows
        units[f"{p}_holm"] = units_of_rows
    return Table(frame, units, main=_MAIN)


def _cluster_scores(clusters: ParadigmClusters) -> dict[str, Estimate]:
    """Return how well the effects of paradigms are repeated, and the tests of clusters and fields."""
    least = 1 / (1 + PERMUTATIONS)
    return {
        "reliability": Estimate(float(np.median(clusters.reliability)), unit="ratio"),
        "clusters": Estimate(int(clusters.clusters.max()), unit="count"),
        "within_clusters": Estimate(1 - clusters.within, unit="ratio"),
        "between_clusters": Estimate(1 - clusters.between, unit="ratio"),
        "cluster_p": Estimate(clusters.p, unit=p_units([clusters.p], least)[0]),
        "field_p": Estimate(clusters.p_of_fields, unit=p_units([clusters.p_of_fields], least)[0]),
    }


def _shared_figure(effects: str, tested: Sequence[Paradigm], clusters: ParadigmClusters) -> HeatMap:
    """Return the correlations of paradigms between the halves of the pairs, in the order of the tree."""
    order = leaves_list(clusters.tree)
    labels = [f"{tested[place].name} ({clusters.clusters[place]})" for place in order]
    return HeatMap(
        title=f"Paradigms that share heads ({effects}): correlation of effects between halves of the pairs",
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
