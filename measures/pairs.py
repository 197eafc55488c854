"""Accuracy of a language model on minimal pairs, by paradigm and field (Warstadt et al. 2020, BLiMP, TACL 8)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from attention_probing.attention.ablation import Ablation
from attention_probing.datamodules import PairBatch, PairDataModule
from attention_probing.measures.contract import Measure
from attention_probing.measures.head_sets import DRAWS, WHOLE, AblatedOutputs, TaskOutputs
from attention_probing.measures.pair_tasks import pair_task
from attention_probing.metrics.draws import TAIL
from attention_probing.metrics.pairs import are_right
from attention_probing.metrics.shares import share_interval
from attention_probing.results import Estimate, Finding, Floats, Result, Table, fill_sentence, format_estimate
from attention_probing.results.errors import pluralize
from attention_probing.results.sentences import clear_largest, clear_smallest

_OF_EACH = "Intervals are of each field alone; those of fields in the answer hold for all fields at once."


class MinimalPairAccuracy(Measure[PairDataModule]):
    """Share of minimal pairs whose acceptable sentence has the higher probability; see `PairTask`.

    For a masked language model, pseudo-log-likelihoods are compared; see `MaskedPairs`. Intervals come from a bootstrap
    over pairs. Ties count as right, as in lm-evaluation-harness; the audit counts them, and the pairs of equal
    sentences among them.

    Raises:
        UserError: In `begin`: the encoder has no language-modelling head.
    """

    experiment = "pairs"
    takes = PairDataModule

    def begin(self) -> None:
        self.task = pair_task(self.data.splits["test"])
        self._outputs = AblatedOutputs(self.task, {Ablation("zero"): [WHOLE]})  # the model is run once, intact

    def update(self, batch: PairBatch) -> None:
        self._outputs.add(batch, self.advance)

    def result(self) -> Result:
        outputs = self._outputs.take()
        pairs = pd.DataFrame([self.task.pairs[item] for item in outputs.items])
        groups = self.task.groups(outputs.items)
        scores = {"pairs.accuracy": _accuracy(outputs)}
        at_once = {}
        for field, is_in_field in groups.items():
            outputs_of_field = outputs.only(is_in_field)
            scores[f"pairs.{field}.accuracy"] = _accuracy(outputs_of_field)
            at_once[field] = _accuracy_at_once(outputs_of_field, len(groups))
        paradigms = _table(outputs, pairs, ["paradigm", "field"])
        fields = _table(outputs, pairs, ["field"])
        # One field, or one paradigm, has the accuracy of all pairs, which is printed anyway.
        if len(groups) > 1:
            fields = replace(fields, main=("field", "n", "accuracy"), note=_OF_EACH)
        elif len(paradigms.frame) > 1:
            paradigms = replace(paradigms, main=("paradigm", "n", "accuracy"))
        tables = {"paradigms": paradigms, "fields": fields}
        items, ratios = _items(outputs, pairs)
        ties = int(tables["fields"].frame["ties"].sum())
        equal_sentences = int((pairs["good"] == pairs["bad"]).sum())
        audit: dict[str, object] = {"pairs": len(pairs), "ties": ties, "equal_sentences": equal_sentences}
        masking = self.data.splits["test"].masking
        if masking is not None:
            audit["masking"] = masking
        return Result(
            self.experiment,
            scores,
            tables,
            audit=audit,
            items=items,
            ratios=ratios,
            shares=tuple(ratios),
            headline=["pairs.accuracy"],
            answer=fill_sentence(pairs_answer(at_once, ties, masking is not None), scores, n=len(pairs)),
            finding=Finding("pairs.accuracy", "acceptable sentences at least as probable as their pair"),
        )


def _table(outputs: TaskOutputs, pairs: pd.DataFrame, labels: Sequence[str]) -> Table:
    """Return the accuracy and the ties of each group of pairs that have the same labels.

    Args:
        outputs: Log-probabilities of all pairs.
        pairs: Columns of `corpora.pairs.Pair`.
        labels: Columns whose values make the groups.
    """
    rows = []
    for values, pairs_of_group in pairs.groupby(list(labels)):
        group = outputs.only(pairs.index.isin(pairs_of_group.index))
        good, bad = _log_probabilities(group)
        row: dict[str, object] = dict(zip(labels, values, strict=True))
        row["n"] = len(group)
        row |= _accuracy(group).columns("accuracy")
        row["ties"] = int((good == bad).sum())
        rows.append(row)
    frame = pd.DataFrame(rows).sort_values(list(labels)[::-1], ignore_index=True)
    return Table(frame, {"accuracy": "fraction"})


def _items(outputs: TaskOutputs, pairs: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, tuple[str, str]]]:
    """Return a row for each pair, and the columns with the numerator and the denominator of each score."""
    good, bad = _log_probabilities(outputs)
    items = pd.DataFrame({"id": pairs["paradigm"] + "/" + pairs["id"], "field": pairs["field"]})
    items["good"] = good
    items["bad"] = bad
    items["right"] = are_right(outputs.outputs["zero", WHOLE]).astype(int)
    items["pairs"] = 1
    ratios = {"pairs.accuracy": ("right", "pairs")}
    for field, in_field in pd.get_dummies(pairs["field"], dtype=int).items():
        items[f"right.{field}"] = items["right"] * in_field
        items[f"pairs.{field}"] = in_field
        ratios[f"pairs.{field}.accuracy"] = (f"right.{field}", f"pairs.{field}")
    return items, ratios


def pairs_answer(fields: Mapping[str, Estimate], ties: int = 0, is_masked: bool = False) -> str:
    """Return the answer, for `fill_sentence`: the accuracy, and the fields where it is clearly highest and lowest.

    Args:
        fields: Accuracy in each field, with intervals that hold for all fields at once.
        ties: Number of pairs of equally probable sentences, which count as right.
        is_masked: True if the model is a masked language model.
    """
    answer = "{pairs.accuracy} of {n} acceptable sentences are at least as probable as their pair"
    if is_masked:
        answer += " by pseudo-log-likelihood"
    if ties:
        answer += f" ({pluralize(ties, 'pair')} equally probable)"
    for word, name in (("most", clear_largest(fields)), ("fewest", clear_smallest(fields))):
        if name is not None:
            answer += f", {word} in the field {name}, {format_estimate(fields[name])}"
    return answer


def _log_probabilities(outputs: TaskOutputs) -> tuple[Floats, Floats]:
    """Return the (pseudo-)log-probabilities of the acceptable and of the other sentences, each `[pairs]`."""
    good, bad = outputs.outputs["zero", WHOLE].T
    return good, bad


def _accuracy(outputs: TaskOutputs) -> Estimate:
    return outputs.score("zero", WHOLE, DRAWS)


def _accuracy_at_once(outputs: TaskOutputs, fields: int) -> Estimate:
    """Return the accuracy with an interval that holds for so many fields at once (Bonferroni)."""
    right = are_right(outputs.outputs["zero", WHOLE])
    return Estimate(*share_interval(right, np.ones_like(right), TAIL / fields), unit="fraction")
