"""Control tasks: the score of a probe on random labels of word types (Hewitt & Liang 2019)."""

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Literal

import pandas as pd

from measures.nested import ProbeMeasure
from measures.trainings import result_of
from metrics.bootstrap import paired_bootstrap
from probes.head_selection import HeadSelectionProbe
from results import Estimate, Result, Table, numbers

Behaviour = Literal["self", "first", "last"]
BEHAVIOURS: tuple[Behaviour, ...] = ("self", "first", "last")
"""Position of a word's head in the control task: the word itself, or the first or last word of the sentence."""


def behaviour(word: str, seed: int) -> Behaviour:
    """Return the governor of a word type in the control task: `self`, `first` or `last`.

    `self` is the word itself, `first` and `last` are the first and the last word of the sentence. A hash of the word
    form and the seed chooses one of the three, with equal probability and the same on every machine.
    """
    digest = blake2b(f"{seed} {word}".encode(), digest_size=8).digest()
    return BEHAVIOURS[int.from_bytes(digest, "big") % len(BEHAVIOURS)]


def control_arcs(words: Sequence[str], seed: int) -> list[int]:
    """Return the governors of a sentence's words in the control task (Hewitt & Liang 2019, §2.2).

    The governor of a word is the word itself, or the first or last word of the sentence, so the arcs are no
    tree. `behaviour` chooses one of the three from the word's form and the seed.

    Args:
        words: Words of the sentence.
        seed: Seed of the choices.

    Returns:
        Position of each word's head, from 1.
    """
    heads = {"first": 1, "last": len(words)}
    return [heads.get(behaviour(word, seed), place) for place, word in enumerate(words, start=1)]


def control_tree(words: Sequence[str], seed: int) -> list[int]:
    """Return the governors of a sentence's words in a control task for probes of trees.

    Hewitt & Liang (2019) have no control task for trees. This one starts from the heads of
    `control_arcs`. Three kinds of words get ROOT as their head instead: the first word, the last
    word, and each word that would be its own head. The arcs therefore have no cycles, but may have
    several roots.

    Args:
        words: Words of the sentence.
        seed: Seed of `control_arcs`.

    Returns:
        Position of each word's head, from 1; 0 for ROOT.
    """
    arcs = control_arcs(words, seed)
    return [0 if place in (1, len(words), head) else head for place, head in enumerate(arcs, start=1)]


class ControlTask(ProbeMeasure):
    """Selectivity of a probe: its score minus the score of a copy on a control task.

    Control tasks are from Hewitt & Liang (2019). In such a task every word type has a random behaviour:
    its head is the word itself, or the first or last word of the sentence (`control_arcs`; for probes of
    trees `control_tree`). Attention and hidden states do not encode behaviours, so a high score means
    that the probe has memorised word types. One copy is trained on the gold governors and one on the control
    heads. The best epoch of each is chosen on dev with heads of the same kind. UAS leaves out
    punctuation in both tasks. The result also counts the test words whose type is not in train, since no
    probe can have memorised them.

    `ProbeMeasure` lists the options.
    """

    experiment = "control"

    def outcome(self) -> Result:
        arcs = isinstance(self.probe, HeadSelectionProbe)
        heads = partial(control_arcs if arcs else control_tree, seed=self.seed)
        tasks = {"task": self.data.variant(), "control": self.data.variant(heads=heads)}
        copies = self.trained_copies(tasks, *self.probe.monitor)
        results = [result_of(probe, data, self.device) for (probe, _), data in zip(copies, tasks.values(), strict=True)]
        (task, control), (on_task, on_control) = results, (best for _, best in copies)
        assert task.items is not None
        assert control.items is not None
        headline = self.probe.headline
        # The control arcs make no tree, so scores of trees do not apply to them.
        names = [headline] if arcs else list(dict.fromkeys((headline, *task.ratios)))
        items, rows = task.items[["sentence", "id"]].copy(), []
        scores: dict[str, Estimate] = {}
        ratios: dict[str, tuple[str, str]] = {}
        for name in names:
            right, total = ratios[name] = task.ratios[name]
            ratios[f"control.{name}"] = (f"control.{right}", f"control.{total}")
            for column in (right, total):
                items[column], items[f"control.{column}"] = task.items[column], control.items[column]
            of_task, of_control = task.scores[name], control.scores[name]
            interval = paired_bootstrap(*(items[f"{of}{one}"] for of in ("", "control.") for one in (right, total)))
            value = of_task.value - of_control.value
            difference = Estimate(value, interval.low, interval.high, unit=of_task.unit)
            columns = {"task": of_task, "control": of_control, "selectivity": difference}
            selectivity = "selectivity" if name == headline else f"{name}.selectivity"
            scores |= dict(zip((name, f"control.{name}", selectivity), columns.values(), strict=True))
            rows.append({"score": name} | numbers(columns))
        compared = ("task", "control", "selectivity")
        units = [task.scores[name].unit for name in names]
        table = Table(pd.DataFrame(rows), dict.fromkeys(compared, units), answer=("score", *compared))
        right, total = ratios[headline]
        if (items[total] == items[f"control.{total}"]).all():
            # Over the same words selectivity is a ratio, by which two probes can be compared.
            items["selective"] = items[right] - items[f"control.{right}"]
            ratios["selectivity"] = ("selective", total)
        audit = {
            **task.audit,
            "epochs": on_task.epoch,
            "control_epochs": on_control.epoch,
            "cut_off": sum(not best.stopped for _, best in copies),
            **self._unseen(),
        }
        shown, tables = (headline, f"control.{headline}", "selectivity"), {"selectivity": table}
        return Result(self.experiment, scores, tables, audit=audit, items=items, ratios=ratios, headline=shown)

    def _unseen(self) -> dict[str, int]:
        """Count the words of test, and among them the words whose type is not in train."""
        train, test = (self.data.splits[split] for split in ("train", "test"))
        seen = {word for item in range(len(train)) for word in train.words(item)}
        words = [word for item in range(len(test)) for word in test.words(item)]
        return {"test_words": len(words), "test_words_not_in_train": sum(word not in seen for word in words)}
