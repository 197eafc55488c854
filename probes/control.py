"""Control tasks: what a probe learns of labels that mean nothing (Hewitt & Liang 2019)."""

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Literal

import pandas as pd

from metrics.bootstrap import paired_bootstrap
from probes.head_selection import HeadSelectionProbe
from probes.nested import NestedExperiment, result_of
from results import Estimate, Result, Table

Behaviour = Literal["self", "first", "last"]
BEHAVIOURS: tuple[Behaviour, ...] = ("self", "first", "last")
"""Where a word's head is in the control task."""


def behaviour(word: str, seed: int) -> Behaviour:
    """The behaviour of a word type, each with probability 1/3: drawn by a hash of the form, alike on every machine."""
    digest = blake2b(f"{seed} {word}".encode(), digest_size=8).digest()
    return BEHAVIOURS[int.from_bytes(digest, "big") % len(BEHAVIOURS)]


def control_arcs(words: Sequence[str], seed: int) -> list[int]:
    """Heads of the control task for arcs, 1-based: the word itself, the first or the last word of the sentence.

    As in Hewitt & Liang (2019, §2.2). They make no tree, and a word may be its own head.
    """
    heads = {"first": 1, "last": len(words)}
    return [heads.get(behaviour(word, seed), place) for place, word in enumerate(words, start=1)]


def control_tree(words: Sequence[str], seed: int) -> list[int]:
    """Heads of the control task for probes of trees, 1-based, 0 = ROOT.

    Ours, Hewitt & Liang (2019) have no control for them: the control arcs, with a word that would be its own head
    under ROOT instead, and so the first and the last word whatever their type. All other words hang on one of these
    two or on ROOT: there is no cycle, and any number of roots.
    """
    arcs = control_arcs(words, seed)
    return [0 if place in (1, len(words), head) else head for place, head in enumerate(arcs, start=1)]


class ControlTask(NestedExperiment):
    """Selectivity of a probe: its score less that of a copy trained on a control task (Hewitt & Liang 2019).

    In the control task every word type has a behaviour drawn at random: its head is the word itself, the first or the
    last word of the sentence (`control_arcs`; for probes of trees `control_tree`). Nothing in attention or hidden
    states tells which, so that whatever a copy scores beyond the best guess from positions it has learned by heart. One
    copy is trained on the gold heads and one on the control, each to its own optimum on dev, where the heads are of the
    same kind. UAS leaves out the same words in both. The audit counts words of test whose type is not in train: their
    behaviour can only be guessed.
    """

    experiment = "control"

    def outcome(self) -> Result:
        arcs = isinstance(self.probe, HeadSelectionProbe)
        heads = partial(control_arcs if arcs else control_tree, seed=self.seed)
        tasks = {"task": self.data.variant(), "control": self.data.variant(heads=heads)}
        on_task, on_control = copies = self.trained_copies(tasks, *self.contract.monitor)
        results = (result_of(copy.probe, data, self.device) for copy, data in zip(copies, tasks.values(), strict=True))
        task, control = results
        headline = self.contract.headline
        # Where the arcs of the control make no tree, scores of trees say nothing of it.
        names = [headline] if arcs else list(dict.fromkeys((headline, *task.ratios)))
        scores: dict[str, Estimate] = {}
        rows = []
        for name in names:
            columns = {"task": task.scores[name], "control": control.scores[name]}
            columns["selectivity"] = _difference(name, task, control)
            selectivity = "selectivity" if name == headline else f"{name}.selectivity"
            scores |= dict(zip((name, f"control.{name}", selectivity), columns.values(), strict=True))
            rows.append({"score": name} | {end: x for c, one in columns.items() for end, x in one.named(c).items()})
        units = [task.scores[name].unit for name in names]
        compared = ("task", "control", "selectivity")
        table = Table(pd.DataFrame(rows), dict.fromkeys(compared, units), answer=("score", *compared))
        items, ratios = _paired(names, task, control)
        (right, scored), (by_chance, _) = ratios[headline], ratios[f"control.{headline}"]
        if (items[scored] == items[f"control.{scored}"]).all():
            # Of the same words: a ratio of its own, in which two probes can be compared.
            items["selective"] = items[right] - items[by_chance]
            ratios["selectivity"] = ("selective", scored)
        audit = {
            **task.audit,
            "epochs": on_task.epochs,
            "control_epochs": on_control.epochs,
            "cut_off": sum(not copy.stopped for copy in copies),
            **self._unseen(),
        }
        return Result(
            self.experiment,
            scores,
            {"selectivity": table},
            audit=audit,
            items=items,
            ratios=ratios,
            headline=(headline, f"control.{headline}", "selectivity"),
        )

    def _unseen(self) -> dict[str, int]:
        """Words whose behaviour cannot have been learned."""
        train, test = (self.data.splits[split] for split in ("train", "test"))
        seen = {word for item in range(len(train)) for word in train.words(item)}
        words = [word for item in range(len(test)) for word in test.words(item)]
        return {"test_words": len(words), "test_words_not_in_train": sum(word not in seen for word in words)}


def _difference(name: str, task: Result, control: Result) -> Estimate:
    """One score of the task less that of the control, bounded over sentences."""
    of_task, of_control = task.scores[name], control.scores[name]
    assert task.items is not None
    assert control.items is not None
    paired = paired_bootstrap(*(items[column] for items in (task.items, control.items) for column in task.ratios[name]))
    return Estimate(of_task.value - of_control.value, paired.low, paired.high, unit=of_task.unit)


def _paired(names: Sequence[str], task: Result, control: Result) -> tuple[pd.DataFrame, dict[str, tuple[str, str]]]:
    """One row per sentence with the counts of both, and the scores, all ratios of them."""
    assert task.items is not None
    assert control.items is not None
    items, ratios = task.items[["sentence", "id"]].copy(), {}
    for name in names:
        numerator, denominator = ratios[name] = task.ratios[name]
        ratios[f"control.{name}"] = (f"control.{numerator}", f"control.{denominator}")
        for column in (numerator, denominator):
            items[column], items[f"control.{column}"] = task.items[column], control.items[column]
    return items, ratios
