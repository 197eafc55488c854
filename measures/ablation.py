"""Score of a task with heads off, scaled or patched: each head, each layer, and named sets (Kovaleva et al. 2019)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from jsonargparse import Namespace
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor

from attention_probing.attention.ablation import Ablation, Kind
from attention_probing.attention.heads import Heads, parse_heads
from attention_probing.datamodules import PairBatch, PairDataModule, SegmentBatch, TextBatch
from attention_probing.datamodules.corpus import CorpusDataModule
from attention_probing.measures.contract import Measure
from attention_probing.measures.head_sets import (
    DRAWS,
    REFERENCES,
    WHOLE,
    AblatedOutputs,
    TaskOutputs,
    make_ablation,
    random_sets,
)
from attention_probing.measures.pair_tasks import MaskedPairs
from attention_probing.measures.task import Task
from attention_probing.measures.task_loading import data_of_checkpoint, draw_texts, has_split, load_task
from attention_probing.metrics.differences import against_random_draws, difference, with_interval_and_p
from attention_probing.metrics.draws import EXACT
from attention_probing.metrics.p_values import draws_for, holm, least_p, p_units, smallest_p
from attention_probing.models.checkpoints import checkpoint_file
from attention_probing.results import Bars, Estimate, Figure, Finding, Result, Table, Unit, numbers
from attention_probing.results.errors import UserError, check_names, pluralize, setting
from attention_probing.results.heads import head_map
from attention_probing.results.options import Rate, Several, checked
from attention_probing.results.progress import Progress, inform
from attention_probing.results.sentences import (
    LEVEL,
    Difference,
    describe_difference,
    describe_differences,
    fill_sentence,
    format_difference,
)


@dataclass(frozen=True)
class HeadSet:
    """Attention heads that are ablated together; their score is one row of a table.

    Attributes:
        table: Name of the table.
        columns: Columns that identify the row, by name.
        heads: The heads.
        random: Random sets for comparison, with as many heads of the same layers.
    """

    table: Literal["ablation", "layers", "sets"]
    columns: Mapping[str, str | int]
    heads: Heads
    random: tuple[Heads, ...] = ()

    @property
    def name(self) -> str:
        """Name in a sentence, such as `3-1` for a head."""
        if "set" in self.columns:
            return str(self.columns["set"])
        return "-".join(map(str, self.columns.values()))


_SHORT_NAMES = {
    "score.low": "low",
    "score.high": "high",
    "difference.p": "p",
    "beyond_random.p": "beyond_random_p",
}
Differences = dict[tuple[str, str], dict[str, Estimate]]
"""Tested differences by the name of the set, for each table and name of an ablation."""
Scores = Mapping[str, Estimate]
"""Scores of the intact model, by name: the first is that of the task, and others are its further scores."""


class HeadAblation(Measure[CorpusDataModule[Any]]):
    """Scores of a model without some of its attention heads, or with heads that are scaled or patched.

    It ablates each head alone, each layer alone, and each set of heads that the user names. Named
    sets are compared with random sets; a small p-value means that the difference is larger than two things explain:
    the variation of random sets, and the variation of texts (`metrics.differences.against_random_draws`). A paired
    bootstrap over texts tests the difference between each score and the score of the intact model. Holm's method (1979)
    adjusts the p-values over all rows of a table that have the same kind of ablation, so over all factors of `scale`.

    On minimal pairs the table `fields` has a row for each named set and field of grammar, and all tables have the mean
    log-ratio of the two sentences, `log_ratio`, and its change; see `PairTask`.

    Args:
        checkpoint: Checkpoint of a `TransformerClassifier`, or a folder with only one, scored on its own texts; None
            for language modelling or minimal pairs.
        kinds: Replacements of the outputs of heads; `uniform` as in Kovaleva et al. (2019), `zero`
            as in Michel et al. (2019). `scale` multiplies the outputs, and `patch` takes them from the other sentence
            of a minimal pair; see `attention.ablation.Ablation`.
        heads: True to ablate each head alone.
        layers: True to ablate each layer alone, that is all heads of the layer.
        sets: Named sets: the heads of each set, by name of the set. A head is written `layer-head`,
            a whole layer `layer`, both counted from 1.
        random: Number of random sets for each named set, at least 2, with as many heads of the same layers; fewer
            sets if no more exist. They may share heads with the named set.
        split: Split of labelled texts that is scored. The ablations `mean` and `resample` take
            replacements from at most 1,000 texts of dev; if dev is scored, the mean thus includes
            the scored text, and `resample` never takes the scored text. Minimal pairs have no dev: the
            texts are sentences of the scored pairs.
        factors: Factors of `scale`, each with rows of its own; 1 changes nothing.

    Raises:
        UserError: There is nothing to ablate, `kinds` or `factors` has duplicates, the data do not fit the
            checkpoint, the model has no such head, or the texts of `patch` are no minimal pairs.
    """

    experiment = "ablation"
    takes = CorpusDataModule

    @checked
    def __init__(
        self,
        checkpoint: str | None = None,
        kinds: Sequence[Kind] = ("zero",),
        heads: bool = True,
        layers: bool = True,
        sets: dict[str, list[str | int]] | None = None,
        random: Several = 20,
        split: Literal["dev", "test"] = "dev",
        factors: Sequence[Rate] = (0.5, 1.5, 2.0),
    ) -> None:
        super().__init__()
        check_names(setting("model.kinds"), kinds)
        check_names(setting("model.factors"), [f"{factor:g}" for factor in factors])
        if not (heads or layers or sets):
            raise UserError("Nothing is ablated. Give `heads` or `layers` true, or `sets` of heads.")
        self.checkpoint = None if checkpoint is None else checkpoint_file(checkpoint)
        self.kinds = tuple(kinds)
        self.each_head = heads
        self.each_layer = layers
        self.named = dict(sets or {})
        self.random = random
        self.split = split
        self.factors = tuple(factors)

    @classmethod
    def data_of(cls, arguments: Namespace | Self, given: Namespace | None) -> Namespace | None:
        return data_of_checkpoint(arguments, given)

    def check_data(self, data: CorpusDataModule[Any]) -> None:
        if not isinstance(data, PairDataModule):
            self._refuse_patch("the data are no minimal pairs")

    def _refuse_patch(self, reason: str) -> None:
        """Raise a UserError if `patch` is among the kinds, with the reason why it is not possible."""
        if "patch" in self.kinds:
            raise UserError(
                "The kind of ablation `patch` takes the outputs of heads from the other sentence of a minimal pair, "
                f"but {reason}. Leave it out of {setting('model.kinds')}, or name a decoder and minimal pairs: "
                f"{setting('data', 'PairDataModule')}."
            )

    def begin(self) -> None:
        self.task = load_task(type(self).__name__, self.checkpoint, self.data, self.device, self.seed)
        if isinstance(self.task, MaskedPairs):  # it reads other texts for each sentence of a pair
            self._refuse_patch("a masked language model reads a sentence once for each of its tokens")
        self.head_sets = self._make_head_sets()
        self.ablations = self._make_ablations()
        sets: list[Heads] = []
        for head_set in self.head_sets:
            sets.append(head_set.heads)
            sets.extend(head_set.random)
        # The whole model runs once, beside the sets of the first kind.
        first, *others = self.ablations
        by_ablation = {first: [WHOLE, *sets], **dict.fromkeys(others, sets)}
        self._outputs = AblatedOutputs(self.task, by_ablation, self.split)
        shared = "layers below the ablated ones are computed once per batch"
        if not self.task.ablated_model.shares:
            shared = "each needs a full forward pass"
        inform(f"Ablating {pluralize(len(self.ablations) * len(sets), 'set')} of heads; {shared}.")

    def _make_head_sets(self) -> list[HeadSet]:
        """Return the sets of single heads, of layers and of the user, which have random sets beside them."""
        layers = range(self.task.layers)
        heads = range(self.task.heads)
        sets: list[HeadSet] = []
        if self.each_head:
            for layer, head in product(layers, heads):
                columns: dict[str, str | int] = {"layer": layer + 1, "head": head + 1}
                sets.append(HeadSet("ablation", columns, frozenset({(layer, head)})))
        if self.each_layer:
            for layer in layers:
                sets.append(HeadSet("layers", {"layer": layer + 1}, frozenset(product([layer], heads))))
        for place, (name, words) in enumerate(self.named.items()):
            named = parse_heads(words, self.task.layers, self.task.heads, f"{setting('model.sets')}.{name}")
            generator = np.random.default_rng([self.seed, place])
            random = random_sets(named, self.task.heads, self.random, generator)
            sets.append(HeadSet("sets", {"set": name, "heads": len(named)}, named, random))
        return sets

    @torch.inference_mode()
    def _make_ablations(self) -> list[Ablation]:
        """Return an ablation of each kind, and for `scale` one of each factor."""
        ablations = []
        for kind in self.kinds:
            ablation = make_ablation(kind, self.task.outputs, self._draw_references, self.seed)
            if kind == "scale":
                ablations += [replace(ablation, factor=factor) for factor in self.factors]
            else:
                ablations.append(ablation)
        return ablations

    def _draw_references(self) -> list[dict[str, Tensor]]:
        """Return batches of the texts that replacements of the outputs of heads are taken from."""
        return draw_texts(self.task, self.data, "dev", REFERENCES, self.seed)

    def update(self, batch: TextBatch | SegmentBatch | PairBatch) -> None:
        self._outputs.add(batch, self.advance)

    def result(self) -> Result:
        outputs = self._outputs.take()
        tests = self.task.layers * self.task.heads
        if "scale" in self.kinds:
            tests *= len(self.factors)
        draws = draws_for(tests, len(outputs), DRAWS)
        least = min(1.0, tests * smallest_p(len(outputs), draws))
        can_be_significant = not self.each_head or least < LEVEL
        if not can_be_significant:
            self._warn_of_least_p(len(outputs), draws, tests)
        first = self.ablations[0].name
        outputs.warn_of_one_label(first)
        whole = outputs.score(first, WHOLE, draws)
        outputs.warn_of_chance(whole)
        further = outputs.further_scores(first, WHOLE, draws)
        tables, differences = self._tables(outputs, {self.task.score: whole, **further})
        scores = {self.task.score: whole, **further}
        headline = [*scores]
        figures: dict[str, Figure] = {}
        for ablation in self.ablations:
            if self.each_head:
                rows = _rows_of(tables["ablation"].frame, ablation)
                scores |= self._count_heads(ablation.name, rows, can_be_significant)
                headline += [f"{ablation.name}.heads_that_help", f"{ablation.name}.heads_that_hurt"]
            figures |= self._figures(ablation, tables)
        audit: dict[str, object] = {"texts": len(outputs), "draws": draws, **self._audit_of_references()}
        audit["score"] = self.task.score
        audit["lower_is_better"] = self.task.lower_is_better
        if self.each_head:
            audit["least_p_holm"] = least
        if "patch" in self.kinds:
            audit |= self.task.audit_of_patch(outputs.items)
        score = self.task.score.rpartition(".")[2]
        answer = f"the {score} of the intact model is {{{self.task.score}}} over {{n}} {self.task.noun}"
        if can_be_significant:
            answer += f"; ablated alone ({_describe(self.ablations[0])}), {self._describe_changes(tables, differences)}"
        answer = fill_sentence(answer, scores, n=len(outputs))
        finding = Finding(self.task.score, f"{score} of the intact model")
        if self.each_head and can_be_significant:
            words = f"heads that help (ablated alone, {_describe(self.ablations[0])})"
            finding = Finding(f"{first}.heads_that_help", words)
        return Result(
            self.experiment, scores, tables, figures, audit, headline=headline, answer=answer, finding=finding
        )

    def _warn_of_least_p(self, texts: int, draws: int, tests: int) -> None:
        """Warn that no head can be significant after Holm's correction."""
        tested = "combinations of head and factor" if "scale" in self.kinds else "heads"
        remedy = "more" if texts <= EXACT else "fewer"
        rank_zero_warn(
            f"With {texts} texts the smallest p is {smallest_p(texts, draws):.2g}, so none of "
            f"{tests} {tested} can be significant after Holm's correction. The counts of "
            f"significant heads stay empty. To get them, score {remedy} texts."
        )

    def _describe_changes(self, tables: Mapping[str, Table], differences: Differences) -> str:
        """Return how many sets, heads or layers matter if ablated by the first kind, and the one that changes most."""
        nouns = {"sets": "set", "ablation": "head", "layers": "layer"}
        name = next(name for name in nouns if name in tables)
        ablation = self.ablations[0]
        rows = _rows_of(tables[name].frame, ablation)
        p = "p_holm"
        than = ""
        if name == "sets" and "beyond_random" in rows and rows["beyond_random"].notna().any():
            p = "beyond_random_p_holm"
            than = " otherwise than random heads of the same layers"
        units = tables[name].unit_rows()[p]
        is_tested = tables[name].frame["kind"] == ablation.kind
        tests = max(1, int(tables[name].frame[p][is_tested].notna().sum()))
        family = []
        for row, (set_name, change) in zip(rows.index, differences[name, ablation.name].items(), strict=True):
            if change.draws.size:
                change = with_interval_and_p(change, tests)
            family.append(Difference(set_name, change, p_unit=units[row]))
        tested = np.flatnonzero(rows[p].notna()).tolist()
        if than and len(tested) == 1:
            [place] = tested
            size = format_difference(tables[name].estimate(int(rows.index[place]), "difference"))
            beyond = describe_difference(family[place])
            return (
                f"{nouns[name]} {family[place].name} changes it by {size}; against random heads of the same layers "
                f"that is {beyond}"
            )
        return describe_differences(family, rows[p].tolist(), nouns[name], "change it", than)

    def _tables(self, outputs: TaskOutputs, whole: Scores) -> tuple[dict[str, Table], Differences]:
        """Return the tables of heads, layers and named sets with a row for each kind; the smallest is printed.

        Beside them are the tested differences of each table and kind.

        Named sets stand beside random sets: `other_heads` is the mean number of heads of a random set outside the named
        one. P-values are adjusted for all rows of one kind.
        """
        rows: dict[str, list[dict[str, object]]] = {}
        differences: Differences = {}
        first = self.ablations[0].name
        score = whole[self.task.score]
        draws = len(score.draws)
        fields: dict[str, tuple[TaskOutputs, Scores]] = {}
        for field, texts in self.task.groups(outputs.items).items():
            outputs_of_field = outputs.only(texts)
            score_of_field = outputs_of_field.score(first, WHOLE, draws)
            further = outputs_of_field.further_scores(first, WHOLE, draws)
            fields[field] = (outputs_of_field, {self.task.score: score_of_field, **further})
        progress = Progress("Scores and their intervals", len(self.ablations) * len(self.head_sets))
        for ablation, head_set in product(self.ablations, self.head_sets):
            row, change = _score_row(outputs, ablation, head_set, whole)
            rows.setdefault(head_set.table, []).append(row)
            differences.setdefault((head_set.table, ablation.name), {})[head_set.name] = change
            if head_set.table == "sets":
                for field, (outputs_of_field, whole_of_field) in fields.items():
                    row, _ = _score_row(outputs_of_field, ablation, head_set, whole_of_field)
                    rows.setdefault("fields", []).append({"field": field, "n": len(outputs_of_field), **row})
            progress.advance()
        least = least_p(score.units or 0, draws)
        tables = {name: _table(rows_of_table, self.task, least) for name, rows_of_table in rows.items()}
        *others, _ = tables
        for name in others:
            tables[name] = replace(tables[name], main=())
        return tables, differences

    def _audit_of_references(self) -> dict[str, object]:
        """Return where the replacements of the outputs of heads are from."""
        references = [ablation.reference for ablation in self.ablations if ablation.reference is not None]
        if not references:
            return {}
        source = "dev"
        if isinstance(self.data, PairDataModule):
            source = "the pairs"
        elif not has_split(self.data, "dev"):
            source = "the test split, as there is no dev split"
        reference = references[-1]
        scores_dev = self.checkpoint is not None and self.split == "dev"
        return {
            "reference": f"{reference.texts} texts of {source}, {len(reference.lengths)} to resample",
            "means_include_scored_texts": scores_dev or source != "dev",
        }

    def _count_heads(self, ablation: str, rows: pd.DataFrame, can_be_significant: bool) -> dict[str, Estimate]:
        """Count the heads that help, that hurt, and that are undecided after Holm's correction.

        The counts are nan if no p-value can be small enough.
        """
        gain = rows["difference"] if self.task.lower_is_better else -rows["difference"]
        significant = rows["p_holm"] < LEVEL
        help_it = int((significant & (gain > 0)).sum())
        hurt_it = int((significant & (gain < 0)).sum())
        counts = {
            "heads_that_help": help_it,
            "heads_that_hurt": hurt_it,
            "heads_undecided": len(rows) - help_it - hurt_it,
        }
        scores: dict[str, Estimate] = {}
        for name, count in counts.items():
            number = count if can_be_significant else np.nan
            scores[f"{ablation}.{name}"] = Estimate(number, unit="count")
        unit = self.task.unit
        scores[f"{ablation}.lowest_difference"] = Estimate(rows["difference"].min(), unit=unit)
        scores[f"{ablation}.highest_difference"] = Estimate(rows["difference"].max(), unit=unit)
        return scores

    def _figures(self, ablation: Ablation, tables: Mapping[str, Table]) -> dict[str, Figure]:
        """Draw a map of the differences of all heads, and a bar for each layer."""
        task = self.task
        figures: dict[str, Figure] = {}
        label = f"change of {task.score}"
        name = ablation.name
        change = "off"
        detail = f"{name}, {self.split}"
        if ablation.kind == "scale":
            change = f"times {ablation.factor:g}"
            detail = self.split
        elif ablation.kind == "patch":
            change = "patched"
            detail = self.split
        if "ablation" in tables:
            rows = _rows_of(tables["ablation"].frame, ablation)
            values = rows["difference"].to_numpy().reshape(task.layers, task.heads)
            title = f"Heads {change}, one at a time ({detail})"
            heat_map = head_map(title, values, value_label=label, unit=task.unit, title_says="split")
            figures[f"ablation_{name}"] = replace(heat_map, diverging=True)
        if "layers" in tables:
            rows = _rows_of(tables["layers"].frame, ablation)
            table = tables["layers"].rows(rows.index.tolist())
            title = f"All heads of a layer {change} ({detail})"
            figures[f"layers_{name}"] = Bars.from_table(
                title, table, "layer", {_describe(ablation): "difference"}, label, "layer", title_says="split"
            )
        return figures


def _describe(ablation: Ablation) -> str:
    """Return an ablation in words, such as `zero` or `scale 0.5`."""
    return ablation.name.replace("_", " ")


def _rows_of(frame: pd.DataFrame, ablation: Ablation) -> pd.DataFrame:
    """Return the rows of a table that belong to an ablation."""
    belongs = frame["kind"] == ablation.kind
    if ablation.kind == "scale":
        belongs &= frame["factor"] == ablation.factor
    return frame[belongs]


def _score_row(
    outputs: TaskOutputs, ablation: Ablation, head_set: HeadSet, whole: Scores
) -> tuple[dict[str, object], Estimate]:
    """Return the row of a table for a set of heads, and its tested difference.

    The difference is to the intact model, or to random sets if there are any.
    """
    task = outputs.task
    draws = len(whole[task.score].draws)
    score = outputs.score(ablation.name, head_set.heads, draws)
    change = difference(score, whole[task.score])
    factor = ablation.factor if ablation.kind == "scale" else np.nan
    row: dict[str, object] = {"kind": ablation.kind, "factor": factor, **head_set.columns}
    row |= numbers({"score": score, "difference": change})
    if head_set.random:
        random = [outputs.score(ablation.name, heads, draws) for heads in head_set.random]
        average, change = against_random_draws(score, random)
        row |= numbers({"random": average, "beyond_random": change})
        other_heads = [len(heads - head_set.heads) for heads in head_set.random]
        row["other_heads"] = np.mean(other_heads)
    for name, estimate in outputs.further_scores(ablation.name, head_set.heads, draws).items():
        column = _column_of(name)
        change_of_score = replace(difference(estimate, whole[name]), p=None)
        row |= numbers({column: estimate, f"{column}_change": change_of_score})
    return row, change


def _column_of(score: str) -> str:
    """Return the column of a further score: `log_ratio` for `pairs.log_ratio`."""
    return score.rpartition(".")[2]


def _table(rows: Sequence[dict[str, object]], task: Task, least: float) -> Table:
    """Return a table of scores, with p-values adjusted for all rows of one kind.

    Args:
        rows: The rows.
        task: The task.
        least: Least p-value that the texts allow.
    """
    frame = pd.DataFrame(rows).rename(columns=_SHORT_NAMES)
    units: dict[str, Unit | Sequence[Unit]] = {}
    if frame["factor"].isna().all():
        frame = frame.drop(columns="factor")
    else:
        units["factor"] = "ratio"
    for name in ("score", "difference", "random", "beyond_random"):
        if name in frame:
            units[name] = task.unit
    changes = []
    for name, (_, unit) in task.further_statistics().items():
        column = _column_of(name)
        units[column] = unit
        units[f"{column}_change"] = unit
        changes.append(f"{column}_change")
    if "other_heads" in frame:
        units["other_heads"] = "count"
    for p in ("p", "beyond_random_p"):
        if p in frame:
            by_kind = frame.groupby("kind", sort=False)[p]
            frame[f"{p}_holm"] = by_kind.transform(lambda column: holm(column.tolist())).to_numpy()
            units[p] = p_units(frame[p], least)
            units[f"{p}_holm"] = units[p]
    columns = ["kind", "factor", "set", "field", "layer", "head", "difference"]
    if "beyond_random" in frame:
        columns += ["beyond_random", "beyond_random_p_holm"]
    elif "set" in frame:
        columns += ["score", "p_holm"]
    else:
        columns.append("p_holm")
    columns += changes
    main = [column for column in columns if column in frame]
    return Table(frame, units, interval="score", main=main)
