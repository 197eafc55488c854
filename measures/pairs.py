"""Accuracy of a decoder on minimal pairs, by paradigm and field of grammar (Warstadt et al. 2020, BLiMP, TACL 8)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from attention_probing.attention.ablation import Ablation
from attention_probing.attention.heads import Heads
from attention_probing.datamodules import PairDataModule
from attention_probing.measures.ablation import DRAWS, TaskMeasure
from attention_probing.measures.task import MinimalPairs, TaskOutputs
from attention_probing.metrics.bootstrap import TAIL, share_interval
from attention_probing.results import Estimate, Result, Table, fill_sentence, format_estimate
from attention_probing.results.errors import pluralize
from attention_probing.results.sentences import clear_largest, clear_smallest

_WHOLE: Heads = frozenset()  # no head is ablated


class MinimalPairAccuracy(TaskMeasure):
    """Share of minimal pairs whose acceptable sentence has the higher probability; see `MinimalPairs`.

    Intervals come from a bootstrap over pairs. Ties count as right, as in lm-evaluation-harness; the audit counts them,
    and the pairs of equal sentences among them.

    Raises:
        UserError: In `begin`: the encoder is no decoder with a language-modelling head.
    """

    experiment = "pairs"
    takes = PairDataModule

    def __init__(self) -> None:
        super().__init__(None, "test")

    def sets(self) -> Mapping[Ablation, Sequence[Heads]]:
        """Return the empty set of heads alone: the model is run once, intact."""
        return {Ablation("zero"): [_WHOLE]}

    def summary(self, outputs: TaskOutputs) -> Result:
        assert isinstance(self.task, MinimalPairs)
        pairs, tables = pd.DataFrame(self.task.pairs), dict[str, Table]()
        for name, labels in {"paradigms": ["paradigm", "field"], "fields": ["field"]}.items():
            groups = ((key, outputs.only(pairs.index.isin(own.index))) for key, own in pairs.groupby(labels))
            rows = [{**dict(zip(labels, key, strict=True)), **_row(own)} for key, own in groups]
            frame = pd.DataFrame(rows).sort_values(labels[::-1], ignore_index=True)
            main = ("field", "n", "accuracy") if name == "fields" else ()  # columns to print
            tables[name] = Table(frame, {"accuracy": "fraction"}, main=main)
        scores = {"pairs.accuracy": _accuracy(outputs)}
        fields = self.task.groups()
        scores |= {f"pairs.{name}.accuracy": _accuracy(outputs.only(of)) for name, of in fields.items()}
        good, bad = outputs.outputs["zero", _WHOLE].T
        names = pd.DataFrame({"id": pairs["paradigm"] + "/" + pairs["id"], "field": pairs["field"]})
        items = names.assign(good=good, bad=bad, right=(good >= bad).astype(int), pairs=1)
        ratios = {"pairs.accuracy": ("right", "pairs")}
        for field, own in pd.get_dummies(pairs["field"], dtype=int).items():
            items = items.assign(**{f"right.{field}": items["right"] * own, f"pairs.{field}": own})
            ratios[f"pairs.{field}.accuracy"] = f"right.{field}", f"pairs.{field}"
        at_once = {name: _at_once(outputs.only(of), len(fields)) for name, of in fields.items()}
        ties, equal = int(tables["fields"].frame["ties"].sum()), int((pairs["good"] == pairs["bad"]).sum())
        return Result(
            self.experiment,
            scores,
            tables,
            audit={"pairs": len(pairs), "ties": ties, "equal_sentences": equal},
            items=items,
            ratios=ratios,
            shares=tuple(ratios),
            headline=tuple(scores),
            answer=fill_sentence(pairs_answer(at_once, ties), scores, n=len(pairs)),
        )


def pairs_answer(fields: Mapping[str, Estimate], ties: int = 0) -> str:
    """Return the answer, for `fill_sentence`: the accuracy, and the fields where it is clearly highest and lowest.

    Args:
        fields: Accuracy in each field, with intervals that hold for all fields at once.
        ties: Number of pairs of equally probable sentences, which count as right.
    """
    answer = "{pairs.accuracy} of {n} acceptable sentences are at least as probable as their pair"
    if ties:
        answer += f" ({pluralize(ties, 'pair')} equally probable)"
    for word, name in (("most", clear_largest(fields)), ("fewest", clear_smallest(fields))):
        if name is not None:
            answer += f", {word} in the field {name}, {format_estimate(fields[name])}"
    return answer


def _at_once(outputs: TaskOutputs, fields: int) -> Estimate:
    """Return the accuracy with an interval that holds for so many fields at once (Bonferroni)."""
    good, bad = outputs.outputs["zero", _WHOLE].T
    right = (good >= bad).astype(np.float64)
    return Estimate(*share_interval(right, np.ones_like(right), TAIL / fields), unit="fraction")


def _row(outputs: TaskOutputs) -> dict[str, object]:
    good, bad = outputs.outputs["zero", _WHOLE].T
    return {"n": len(outputs), **_accuracy(outputs).named("accuracy"), "ties": int((good == bad).sum())}


def _accuracy(outputs: TaskOutputs) -> Estimate:
    return outputs.score("zero", _WHOLE, DRAWS)
