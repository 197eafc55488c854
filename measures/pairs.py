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
        assert isinstance(self.data, PairDataModule)
        fields = {name: outputs.only(own) for name, own in self.task.groups(outputs.gold).items()}
        paradigms = {name: outputs.only(outputs.gold == place) for place, name in enumerate(self.task.paradigms)}
        rows = [
            self._row({"paradigm": name, "field": self.task.paradigms[name]}, own) for name, own in paradigms.items()
        ]
        both = outputs.outputs["zero", _WHOLE]
        pairs = self.data.splits["test"].pairs
        items = pd.DataFrame(
            {
                "id": [f"{pair.paradigm}/{pair.id}" for pair in pairs],
                "field": [pair.field for pair in pairs],
                "good": both[:, 0],
                "bad": both[:, 1],
                "right": (both[:, 0] >= both[:, 1]).astype(int),
                "pairs": 1,
            }
        )
        ties = int((both[:, 0] == both[:, 1]).sum())
        scores = {"pairs.accuracy": self._accuracy(outputs)}
        scores |= {f"pairs.{name}.accuracy": self._accuracy(own) for name, own in fields.items()}
        by_field = pd.DataFrame([self._row({"field": name}, own) for name, own in fields.items()])
        tables = {
            "paradigms": _table(pd.DataFrame(rows).sort_values(["field", "paradigm"], ignore_index=True), ()),
            "fields": _table(by_field, ("field", "n", "accuracy")),
        }
        audit = {"pairs": len(pairs), "ties": ties, "equal_sentences": sum(pair.good == pair.bad for pair in pairs)}
        return Result(
            self.experiment,
            scores,
            tables,
            audit=audit,
            items=items,
            ratios={"pairs.accuracy": ("right", "pairs")},
            headline=tuple(scores),
        )

    def _row(self, names: Mapping[str, str], outputs: TaskOutputs) -> dict[str, object]:
        both = outputs.outputs["zero", _WHOLE]
        ties = int((both[:, 0] == both[:, 1]).sum())
        return {**names, "n": len(outputs), **self._accuracy(outputs).named("accuracy"), "ties": ties}

    def _accuracy(self, outputs: TaskOutputs) -> Estimate:
        return outputs.score("zero", _WHOLE, DRAWS)


def _table(frame: pd.DataFrame, answer: Sequence[str]) -> Table:
    return Table(frame, {"accuracy": "fraction"}, answer=answer)
