"""Accuracy of a decoder on minimal pairs, by paradigm and field of grammar (Warstadt et al. 2020, BLiMP, TACL 8)."""

from collections.abc import Mapping, Sequence

import pandas as pd

from attention.ablation import Ablation
from attention.capture import Heads
from datamodules import PairDataModule
from measures.ablation import DRAWS, TaskMeasure
from measures.task import MinimalPairs, TaskOutputs
from results import Estimate, Result, Table

_WHOLE: Heads = frozenset()  # no head is ablated
_ANSWER: Mapping[str, Sequence[str]] = {"paradigms": (), "fields": ("field", "n", "accuracy")}  # columns to print


class MinimalPairAccuracy(TaskMeasure):
    """Share of minimal pairs whose acceptable sentence has the higher probability; see `MinimalPairs`.

    Intervals come from a bootstrap over pairs. Ties count as right, as in lm-evaluation-harness; the audit counts them,
    and the pairs of equal sentences among them.

    Raises:
        UserError: In `prepare`: the encoder is no decoder with a language-modelling head.
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
        pairs, of = self.data.splits["test"].pairs, self.task.paradigms
        fields = {name: outputs.only(own) for name, own in self.task.groups(outputs.gold).items()}
        paradigms = {name: outputs.only(outputs.gold == place) for place, name in enumerate(of)}
        rows = [{"paradigm": name, "field": of[name], **_row(own)} for name, own in paradigms.items()]
        frames = {
            "paradigms": pd.DataFrame(rows).sort_values(["field", "paradigm"], ignore_index=True),
            "fields": pd.DataFrame([{"field": name, **_row(own)} for name, own in fields.items()]),
        }
        scores = {"pairs.accuracy": _accuracy(outputs)}
        scores |= {f"pairs.{name}.accuracy": _accuracy(own) for name, own in fields.items()}
        good, bad = outputs.outputs["zero", _WHOLE].T
        named = [(f"{pair.paradigm}/{pair.id}", pair.field) for pair in pairs]
        items = pd.DataFrame(named, columns=["id", "field"])
        items = items.assign(good=good, bad=bad, right=(good >= bad).astype(int), pairs=1)
        equal = sum(pair.good == pair.bad for pair in pairs)
        return Result(
            self.experiment,
            scores,
            {name: Table(frame, {"accuracy": "fraction"}, answer=_ANSWER[name]) for name, frame in frames.items()},
            audit={"pairs": len(pairs), "ties": int((good == bad).sum()), "equal_sentences": equal},
            items=items,
            ratios={"pairs.accuracy": ("right", "pairs")},
            headline=tuple(scores),
        )


def _row(outputs: TaskOutputs) -> dict[str, object]:
    good, bad = outputs.outputs["zero", _WHOLE].T
    return {"n": len(outputs), **_accuracy(outputs).named("accuracy"), "ties": int((good == bad).sum())}


def _accuracy(outputs: TaskOutputs) -> Estimate:
    return outputs.score("zero", _WHOLE, DRAWS)
