"""Roles of attention heads: positional and syntactic heads, and what heads do where their function does not apply."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import pandas as pd

from attention_probing.measures.best_heads import ChosenHeads
from attention_probing.metrics.attachment import ALL, PLAIN, Arcs, count, count_found, sums_by
from attention_probing.metrics.bootstrap import bootstrap_ratio
from attention_probing.metrics.heads import DIRECTIONS, Predictions, offset_shares
from attention_probing.metrics.stability import (
    NO_CHOICE,
    count_choices,
    resampled_shares,
    set_overlap,
    stability_columns,
)
from attention_probing.metrics.statistics import ratio
from attention_probing.results import Estimate, Flags, Floats, Integers, Table, Unit
from attention_probing.results.tables import ARROWS

POSITIONAL = 0.9
"""Share of words of a positional head (Voita et al. 2019, §5)."""
MARGIN = 0.1
"""Margin of a syntactic head over the best fixed offset (Voita et al. 2019, §5)."""


class HeadFunction(NamedTuple):
    """The relation that an attention head finds best, compared with fixed offsets.

    Attributes:
        relation: Name of the relation; empty if no relation counts.
        direction: Direction of attention; empty if no relation counts.
        margin: Accuracy of the head on dev minus that of the best fixed offset; nan if no relation counts.
        predictor: The head in this direction, a column of `Predictions.predicted`.
    """

    relation: str
    direction: str
    margin: float
    predictor: int


def head_roles(
    heads: ChosenHeads, confidence: Floats, minimum: int, unit: Unit = "fraction"
) -> tuple[Table, dict[str, Estimate]]:
    """Classify every head as positional, syntactic, both or neither, on dev (Voita et al. 2019, §5).

    A head is positional if it attends to the same offset from at least 90 % of the words. It is
    syntactic if its accuracy on some relation, in either direction, is at least 10 points above
    the best fixed offset's. Relations with fewer than `minimum` words do not count, nor do
    relations of punctuation, nor relations to ROOT, which no head can find.

    Args:
        heads: Predictions of all heads on dev and on the scored split.
        confidence: Mean of each head's largest weights, `[layers, heads]`.
        minimum: Least number of words of a relation.
        unit: Unit of the confidence.

    Returns:
        A table with a row for each head, and the scores `positional_heads` and `syntactic_heads`,
        shares of all heads; `positional_heads.overlap` and `syntactic_heads.overlap` are the mean overlaps of the set
        of these heads with those of 100 resamples of dev (`metrics.stability.set_overlap`). The columns are:

        - `head` and `confidence`;
        - `offset`, `offset_share`, `positional`: the most frequent offset, the share of words with
            it, and True if the head is positional;
        - `relation`, `direction`, `margin`, `syntactic`: the relation and direction in which the
            head's accuracy exceeds the best fixed offset's most, the difference of the two
            accuracies on dev, and True if the head is syntactic;
        - `accuracy`, `low`, `high`, `fixed_offset`: on this relation in the scored split, the
            accuracy of the head with its interval, and the accuracy of the offset;
        - `positional_again`, `syntactic_again`: number of the resamples of dev on which the head has this role, at its
            offset on dev, and with any relation;
        - `chosen`, `rivals`: number of them on which its largest margin is that of the same relation and direction,
            and the relations that are chosen instead.

        These last numbers are blank, and the overlaps nan, if dev is a single unit.
    """
    dev = heads.dev
    scored = heads.scored
    number = len(heads.names)
    margins = _margins(dev, minimum)
    functions = [_function(head, number, margins) for head in range(number)]
    relations = [function.relation for function in functions]
    predictors = [function.predictor for function in functions]
    offsets, shares = offset_shares(dev.arcs, dev.predicted[:, :number])
    nothing = np.zeros(len(scored.arcs), np.bool_)
    words = [scored.groups.get(relation, nothing) for relation in relations]

    frame = pd.DataFrame({"head": [heads.names.head(head) for head in range(number)]})
    frame["confidence"] = confidence.flatten()
    frame["offset"] = offsets
    frame["offset_share"] = shares
    frame["positional"] = shares >= POSITIONAL
    frame["relation"] = relations
    frame["direction"] = [function.direction for function in functions]
    frame["margin"] = [function.margin for function in functions]
    frame["syntactic"] = frame["margin"] >= MARGIN
    frame["accuracy"] = [scored.accuracy(function.relation, function.predictor) for function in functions]
    frame["low"], frame["high"] = heads.intervals(words, predictors)
    frame["fixed_offset"] = [_offset_accuracy(heads, relation) for relation in relations]

    again = _RolesAgain.from_dev(heads, offsets, minimum)
    frame = frame.join(again.columns(functions))

    scores: dict[str, Estimate] = {}
    for role in ("positional", "syntactic"):
        scores[f"{role}_heads"] = Estimate(float(frame[role].mean()), unit="fraction")
        overlap = again.overlap(role, frame[role].to_numpy())
        scores[f"{role}_heads.overlap"] = Estimate(overlap, unit="fraction")
    units: dict[str, Unit] = dict.fromkeys(("offset_share", "margin", "accuracy", "fixed_offset"), "fraction")
    units["confidence"] = unit
    return Table(frame, units, interval="accuracy"), scores


@dataclass(frozen=True, eq=False)
class _RolesAgain:
    """Roles of attention heads on resamples of dev.

    Attributes:
        positional: True for positional heads, `[resamples, heads]`.
        margins: Margin of each head in each direction over the best fixed offset, `[resamples, heads, functions]`.
        functions: Relation and direction of each index of the last axis; of equals, `_function` takes the first.
        is_defined: False if dev is a single unit.
    """

    positional: Flags
    margins: Floats
    functions: Sequence[tuple[str, str]]
    is_defined: bool

    @classmethod
    def from_dev(cls, heads: ChosenHeads, offsets: Integers, minimum: int) -> Self:
        """Count the resamples of dev.

        Args:
            heads: Predictions of all heads on dev.
            offsets: Most frequent offset of each head on dev, `[heads]`.
            minimum: Least number of words of a relation on dev.
        """
        dev = heads.dev
        arcs = dev.arcs
        number = len(heads.names)
        words = arcs.length > 1
        predicted = dev.predicted[words, :number]
        at_offset = (predicted > 0) & (predicted - arcs.word[words, None] == offsets)
        positional = resampled_shares(*count_found(arcs, words, at_offset), heads.seed) >= POSITIONAL
        margins = [np.empty((len(positional), number, 0))]
        functions = []
        for relation in sorted(_counted_relations(dev, minimum), reverse=True):
            accuracies = resampled_shares(*dev.count_units(relation), heads.seed)
            by_offset = resampled_shares(*dev.by_offset.count_units(relation), heads.seed)
            margins_of_relation = accuracies - by_offset.max(axis=1, keepdims=True)
            for direction in (1, 0):
                functions.append((relation, DIRECTIONS[direction]))
                start = direction * number
                margins.append(margins_of_relation[:, start : start + number, None])
        return cls(positional, np.concatenate(margins, axis=2), functions, arcs.number_of_units > 1)

    @property
    def syntactic(self) -> Flags:
        """True for syntactic heads, `[resamples, heads]`."""
        syntactic: Flags = np.any(self.margins >= MARGIN, axis=2)
        return syntactic

    def overlap(self, role: str, chosen: Flags) -> float:
        """Return the mean overlap of the heads with a role on dev with those on resamples; nan if it is undefined."""
        if not self.is_defined:
            return np.nan
        return set_overlap(chosen, self._with_role[role])

    @property
    def _with_role(self) -> Mapping[str, Flags]:
        """True for heads with a role, `[resamples, heads]` by role."""
        return {"positional": self.positional, "syntactic": self.syntactic}

    def columns(self, functions_on_dev: Sequence[HeadFunction]) -> pd.DataFrame:
        """Return the columns of the table of roles, given the function of each head on dev."""
        cells = [NO_CHOICE] * len(functions_on_dev)
        times = pd.DataFrame()
        for role, has_role in self._with_role.items():
            counts: list[int | None] = np.count_nonzero(has_role, axis=0).tolist()
            if not self.is_defined:
                counts = [None] * len(counts)
            times[f"{role}_again"] = pd.array(counts, dtype="Int64")
        if self.functions and self.is_defined:
            for head, function in enumerate(functions_on_dev):
                again = count_choices(self.margins[:, head])
                place = self.functions.index((function.relation, function.direction))
                cells[head] = again.describe(place, self._name)
        return times.join(stability_columns(cells))

    def _name(self, function: int) -> str:
        relation, direction = self.functions[function]
        return f"{relation}{ARROWS[direction]}"


def _offset_accuracy(heads: ChosenHeads, relation: str) -> float:
    """Return the accuracy, on the scored split, of the offset that is best on dev; nan without a relation."""
    if relation not in heads.dev.groups:
        return np.nan
    return heads.scored.by_offset.accuracy(relation, heads.dev.by_offset.best(relation))


def _margins(dev: Predictions, minimum: int) -> dict[str, Floats]:
    """Return the accuracy of each predictor minus that of the best fixed offset, `[K]`, by relation that counts."""
    margins = {}
    for relation in _counted_relations(dev, minimum):
        best_offset = dev.by_offset.best(relation)
        margins[relation] = dev.accuracies(relation) - dev.by_offset.accuracy(relation, best_offset)
    return margins


def _counted_relations(dev: Predictions, minimum: int) -> list[str]:
    """Return the relations that count for roles: with enough words that are no punctuation, and with governors."""
    counted = []
    for relation, words in dev.groups.items():
        is_relation = relation not in (ALL, PLAIN)
        has_words = np.count_nonzero(words & ~dev.arcs.punctuation) >= minimum
        has_governors = dev.arcs.head[words].any()
        if is_relation and has_words and has_governors:
            counted.append(relation)
    return counted


def _function(head: int, heads: int, margins: Mapping[str, Floats]) -> HeadFunction:
    """Return the relation and direction in which a head has the largest margin.

    Of equal margins the last relation and the backward direction count.

    Args:
        head: Index of the head, counted layer by layer.
        heads: Number of heads.
        margins: Margin of each predictor, `[2 · heads]`, by relation.
    """
    best = HeadFunction("", "", np.nan, head)
    for relation in sorted(margins, reverse=True):
        for direction in (1, 0):
            predictor = direction * heads + head
            margin = float(margins[relation][predictor])
            if not best.relation or margin > best.margin:
                best = HeadFunction(relation, DIRECTIONS[direction], margin, predictor)
    return best


def no_op(heads: ChosenHeads, roles: pd.DataFrame, shares: Floats) -> tuple[Table, Estimate | None]:
    """Compare attention to delimiters where the function of a head applies and where it does not.

    Clark et al. (2019, §3.2) suggest that attention to delimiters is a no-op of heads whose function does not apply
    to a word. The function of a syntactic head is its relation in the table `roles`. It applies to the words that
    attend along such an arc: dependents or, in the direction `head→dependent`, governors. These words are compared
    with the other words of the same sentence. Punctuation is left out, and so are sentences in which the function
    applies to all words or to none.

    Args:
        heads: Predictions of all heads on dev and on the scored split.
        roles: Frame of the table of `head_roles`.
        shares: Attention of each word to the delimiters together, `[words, heads]`.

    Returns:
        A table, and the mean difference over the syntactic heads and their sentences; None if no head is syntactic.
        The table has a row for each syntactic head and the columns `head`, `relation`, `direction`, `sentences`,
        `with` and `without` (mean share where the function applies, and elsewhere), and `difference` with its
        interval over sentences.
    """
    arcs = heads.scored.arcs
    nothing = np.zeros(len(arcs), np.bool_)
    rows = []
    all_differences = np.zeros(np.count_nonzero(arcs.word == 1))
    all_sentences = np.zeros_like(all_differences)
    for head in np.flatnonzero(roles["syntactic"]):
        relation = roles["relation"][head]
        direction = roles["direction"][head]
        words = heads.scored.groups.get(relation, nothing) & (arcs.head > 0)
        applies = _governors(arcs, words) if direction == DIRECTIONS[1] else words
        with_it, without_it = _means(arcs, applies, shares[:, head])
        compared = ~np.isnan(with_it + without_it)  # sentences with words of both kinds
        differences = np.where(compared, without_it - with_it, 0.0)
        all_differences += differences
        all_sentences += compared
        difference = _mean_difference(heads, differences, 1.0 * compared)
        number = int(compared.sum())
        mean_with = with_it[compared].mean() if number else np.nan
        mean_without = without_it[compared].mean() if number else np.nan
        means = (mean_with, mean_without, difference.value, difference.low, difference.high)
        rows.append((roles["head"][head], relation, direction, number, *means))
    columns = ["head", "relation", "direction", "sentences", "with", "without", "difference", "low", "high"]
    units: dict[str, Unit] = dict.fromkeys(("with", "without", "difference"), "fraction")
    table = Table(pd.DataFrame(rows, columns=columns), units, "difference")
    if not rows:
        return table, None
    return table, _mean_difference(heads, all_differences, all_sentences)


def _governors(arcs: Arcs, words: Flags) -> Flags:
    """Return True for the governors of these words, `[words]`."""
    governors = np.zeros_like(words)
    governors[np.flatnonzero(words) - arcs.word[words] + arcs.head[words]] = True
    return governors


def _means(arcs: Arcs, applies: Flags, shares: Floats) -> tuple[Floats, Floats]:
    """Return the mean share over the words where a function applies, and over the others, each `[sentences]`.

    Punctuation is left out. A mean is nan in a sentence without such words.
    """
    means = []
    for words in (applies, ~applies):
        plain = words & ~arcs.punctuation
        means.append(ratio(count(arcs, plain * shares), count(arcs, plain)))
    return means[0], means[1]


def _mean_difference(heads: ChosenHeads, differences: Floats, sentences: Floats) -> Estimate:
    """Return the mean of all differences, with its interval over the units of the arcs.

    Args:
        heads: Heads with the scored split.
        differences: Sum of the differences of each sentence, `[sentences]`.
        sentences: Number of differences of each sentence, `[sentences]`.
    """
    columns = np.stack([differences, sentences], axis=1).astype(np.float64)
    sums = sums_by(heads.scored.arcs.units, columns)
    return bootstrap_ratio(sums[:, 0], sums[:, 1], share=False, of_units=True, seed=heads.seed)
