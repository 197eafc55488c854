"""The best attention head of each relation, chosen on dev and scored beside baselines (Clark et al. 2019, §4.2)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import pandas as pd

from attention_probing.corpora.splits import Split
from attention_probing.metrics.attachment import (
    ALL,
    PLAIN,
    compare_found,
    count,
    count_gains,
    count_units,
    found_shares,
)
from attention_probing.metrics.heads import (
    ARC_LENGTHS,
    DIRECTIONS,
    OFFSETS_BY_DISTANCE,
    Predictions,
    permutation_p,
)
from attention_probing.metrics.p_values import DRAWS_OF_ROW, draws_for, holm, least_p, max_sign_flip_p, p_units
from attention_probing.metrics.stability import choose_again, stability_columns, warn_of_choice
from attention_probing.results import Estimate, Finding, Flags, Floats, Table, Unit
from attention_probing.results.errors import pluralize
from attention_probing.results.estimates import FEW
from attention_probing.results.heads import HeadNames, heads_table
from attention_probing.results.sentences import LEVEL, fill_sentence, format_difference
from attention_probing.results.tables import ARROWS


@dataclass(frozen=True, eq=False)
class ChosenHeads:
    """Single attention heads that are chosen on dev and scored on test, or scored on dev too.

    Clark et al. (2019) score on the data that they choose on.

    Attributes:
        dev: Predictions on dev.
        scored: Predictions on the split that is scored; the same object as `dev` if dev is scored.
        names: Names of the attention heads.
        transferred: True if dev is of another language than the scored split. Heads are then compared with the fixed
            offset that is best on the scored split itself, which favours the offset.
        seed: Seed of bootstrap and permutations.
    """

    dev: Predictions
    scored: Predictions
    names: HeadNames
    seed: int = 0
    transferred: bool = False

    @cached_property
    def groups(self) -> Mapping[str, Flags]:
        """Groups of words of the scored split, bool `[words]` by name, without relations to ROOT.

        Heads and offsets predict words, so they cannot find a word whose governor is ROOT.
        """
        groups = {}
        for name, words in self.scored.groups.items():
            if name in (ALL, PLAIN) or (self.scored.arcs.head[words] > 0).any():
                groups[name] = words
        return groups

    @property
    def split(self) -> Split:
        """Name of the scored split. If it is dev (mode `paper`), the column `test` of all tables is nan."""
        return "dev" if self.scored is self.dev else "test"

    @cached_property
    def heads(self) -> Mapping[str, int]:
        """The predictor that is best on dev for each group: a head in one direction, a column of `predicted`.

        A group without words on dev has none.
        """
        heads = {}
        for group in self.groups:
            words_of_dev = self.dev.groups.get(group)
            if words_of_dev is not None and words_of_dev.any():
                heads[group] = self.dev.best(group)
        return heads

    @cached_property
    def offsets(self) -> Mapping[str, int]:
        """The fixed offset that is best on dev for each group of `heads`, as its place in `OFFSETS_BY_DISTANCE`."""
        return {group: self.dev.by_offset.best(group) for group in self.heads}

    @cached_property
    def compared_offsets(self) -> Mapping[str, int]:
        """The fixed offset that the head of each group is compared with, as its place in `OFFSETS_BY_DISTANCE`."""
        if not self.transferred:
            return self.offsets
        return {group: self.scored.by_offset.best(group) for group in self.heads}

    def name(self, predictor: int) -> str:
        """Return the name of the head of a predictor, such as `6-1`."""
        _, head = self.names.split(predictor)
        return self.names.head(head)

    def direction(self, predictor: int) -> str:
        """Return the direction in which a predictor reads the attention."""
        direction, _ = self.names.split(predictor)
        return DIRECTIONS[direction]

    def hits(self, predictor: int) -> Flags:
        """Return True for each word of the scored split whose governor a predictor finds, `[words]`."""
        hits: Flags = self.scored.predicted[:, predictor] == self.scored.arcs.head
        return hits

    def offset_hits(self, offset: int) -> Flags:
        """Return True for each word of the scored split whose governor is at a fixed offset, `[words]`."""
        hits: Flags = self.scored.by_offset.predicted[:, offset] == self.scored.arcs.head
        return hits

    def intervals(self, groups: Collection[Flags], predictors: Iterable[int]) -> tuple[Floats, Floats]:
        """Return 95 % intervals of accuracies on the scored split, over the units of its arcs.

        Args:
            groups: Groups of words, each bool `[words]`.
            predictors: For each group, the predictor whose accuracy on this group gets an interval: its column
                in `self.scored.predicted`, which is a head in one direction.

        Returns:
            Lower ends and upper ends, each `[groups]`.
        """
        hits = [self.hits(predictor) for predictor in predictors]
        return found_shares(self.scored.arcs, hits, list(groups), seed=self.seed).interval

    def best_heads(self, control: "ChosenHeads | None", permutations: int) -> Table:
        """Return a table of the best attention head for each relation and for all words, chosen on dev.

        Args:
            control: Heads of an encoder with random weights on the same splits; None for no control.
            permutations: Number of permutations of the test that gives `p_shuffled`, and least number of draws of the
                test that gives `p_offset`.

        Returns:
            Table with a row for each group of words (see `Predictions.groups`) and these columns:

            - `relation`, `n`: the group, and its number of words in the scored split;
            - `head`, `direction`: the head and direction that are best on dev;
            - `dev`, `test`: their accuracy on each split; `test` is nan if dev is scored;
            - `low`, `high`: 95 % interval of their accuracy on test; nan if dev is scored, because no interval of one
                head holds for the best of all on the same words;
            - `n_dev`, `dev_gap`: number of words of the group in dev, and accuracy of the head minus that of the best
                fixed offset there;
            - `chosen`, `rivals`: number of 100 resamples of dev on which the same head is chosen in the same direction,
                and those that are chosen instead (`metrics.stability`); blank if the words of dev are of one unit;
            - `offset`, `best_offset`: accuracy, on the scored split, of the fixed offset that is best on
                dev, and this offset; if `transferred`, also `own_offset` and `best_own_offset`, of the fixed offset
                that is best on the scored split;
            - `random_init`: accuracy, on the scored split, of the head with random weights that is best
                on dev; nan without a control;
            - `random_init_chosen`, only with a control: `chosen` of this head with random weights;
            - `over_offset`, with its interval: accuracy of the head minus that of the offset, on the scored split; if
                `transferred`, minus `own_offset`;
            - `p_offset`: two-sided p-value of this difference, by flips of its sign in each unit (document or
                sentence), as the interval. Head and offset are chosen on dev, so the choice favours neither on test.
                If dev is scored, there is no interval, and p is one-sided: every draw chooses anew among all heads
                (`max_sign_flip_p`);
            - `p_holm`: `p_offset` after Holm's correction for the number of rows;
            - `p_shuffled`: p-value of `permutation_p` on the scored split.

            A relation that no word of dev has is left blank but for `n`: no head can be chosen.
        """
        draws = draws_for(len(self.groups), self.scored.arcs.number_of_units, permutations, each=DRAWS_OF_ROW)
        scored = self.scored
        groups = [self.groups[group] for group in self.heads]
        frame = pd.DataFrame({"relation": list(self.heads)})
        frame["n"] = [int(np.count_nonzero(words)) for words in groups]
        frame["head"] = [self.name(head) for head in self.heads.values()]
        frame["direction"] = [self.direction(head) for head in self.heads.values()]
        frame["dev"] = _accuracies(self.dev, self.heads)
        frame["test"] = np.nan
        frame[["low", "high"]] = np.nan
        if self.split == "test":
            frame["test"] = _accuracies(scored, self.heads)
            frame["low"], frame["high"] = self.intervals(groups, self.heads.values())
        frame["offset"] = _accuracies(scored.by_offset, self.offsets)
        frame["best_offset"] = [OFFSETS_BY_DISTANCE[offset] for offset in self.offsets.values()]
        if self.transferred:
            frame["own_offset"] = _accuracies(scored.by_offset, self.compared_offsets)
            frame["best_own_offset"] = [OFFSETS_BY_DISTANCE[offset] for offset in self.compared_offsets.values()]
        frame["random_init"] = np.nan
        if control is not None:
            random_heads = {group: control.dev.best(group) for group in self.heads}
            frame["random_init"] = _accuracies(control.scored, random_heads)
        frame["n_dev"] = [int(np.count_nonzero(self.dev.groups[group])) for group in self.heads]
        frame["dev_gap"] = frame["dev"] - _accuracies(self.dev.by_offset, self.offsets)
        over_offset = _over_offset(self, draws)
        frame["over_offset"] = over_offset.value
        frame["over_offset.low"], frame["over_offset.high"] = over_offset.interval
        frame["p_offset"] = over_offset.p
        frame["p_holm"] = holm(frame["p_offset"].tolist())
        frame["p_shuffled"] = _p_shuffled(self, permutations)
        frame = frame.join(_stability(self, self.heads))
        if control is not None:
            frame["random_init_chosen"] = _stability(control, random_heads)["chosen"]
        frame = _with_blank_rows(frame, self)
        units = _units(self, frame, draws, permutations)
        main = self._main_columns(has_control=control is not None)
        return Table(frame, units, interval=self.split, main=main)

    def _main_columns(self, *, has_control: bool) -> list[str]:
        """Return the main columns of `best_heads`."""
        main = ["relation", "head", "direction", self.split]
        main.append("own_offset" if self.transferred else "offset")
        if has_control:
            main.append("random_init")
        main += ["p_holm", "chosen"]
        return main

    def by_sentence(self, groups: Iterable[str]) -> tuple[pd.DataFrame, dict[str, tuple[str, str]]]:
        """Return the number of words of each group whose governor the best head of the group finds.

        A group without words on dev, for which no head is chosen, has no words here.

        Args:
            groups: Names of groups of words; see `Predictions.groups`.

        Returns:
            A frame with a row for each sentence of the scored split and the columns `<group>.found` and
            `<group>.words`, and the names of these two columns by name of the group.
        """
        arcs = self.scored.arcs
        nothing = np.zeros(len(arcs), np.bool_)
        columns: dict[str, Floats] = {}
        ratios: dict[str, tuple[str, str]] = {}
        for group in groups:
            words = nothing
            right = nothing
            if group in self.heads:
                words = self.groups[group]
                right = words & self.hits(self.heads[group])
            columns[f"{group}.found"] = count(arcs, right)
            columns[f"{group}.words"] = count(arcs, words)
            ratios[group] = (f"{group}.found", f"{group}.words")
        return pd.DataFrame(columns), ratios

    def by_length(self) -> Table:
        """Return the accuracy of each relation's best head and best fixed offset, by length of the arc.

        Head and offset are chosen on dev over all lengths. Words under ROOT have no arc length and are
        left out, as are groups without words on dev.

        Returns:
            Table with a row for each group of words and class of lengths, and these columns:

            - `relation`: the group of words; see `Predictions.groups`;
            - `length`: the class of lengths, a key of `ARC_LENGTHS`;
            - `n`: number of words of this group and class in the scored split;
            - `head`, `direction`: the best head, and the direction of attention in which it is best;
            - `accuracy`, `offset`: accuracy of the head and of the fixed offset in the scored split.
        """
        arcs = self.scored.arcs
        distance = np.where(arcs.head > 0, np.abs(arcs.head - arcs.word), 0)
        rows = []
        for group, head in self.heads.items():
            words = self.groups[group]
            by_head = self.hits(head)
            by_offset = self.offset_hits(self.offsets[group])
            for name, (shortest, longest) in ARC_LENGTHS.items():
                inside = words & (distance >= shortest) & (distance <= longest)
                n = int(np.count_nonzero(inside))
                if not n:
                    continue
                accuracy = np.count_nonzero(inside & by_head) / n
                offset = np.count_nonzero(inside & by_offset) / n
                rows.append((group, name, n, self.name(head), self.direction(head), accuracy, offset))
        columns = ["relation", "length", "n", "head", "direction", "accuracy", "offset"]
        return Table(pd.DataFrame(rows, columns=columns), {"accuracy": "fraction", "offset": "fraction"})

    def all_heads(self) -> Table:
        """Return the accuracy of every attention head, in both directions, on every group of words.

        The groups are all words, all words but punctuation, and the words of each relation.

        Returns:
            Table with columns `relation, n, direction, head, layer, number, dev, test`. `relation` is
            the group, and `n` its number of words in the scored split. `head` is the name
            `layer-number`, both from 1. `dev` and `test` are the accuracies on these splits; `test` is
            nan if dev is scored.
        """
        accuracies: dict[str, tuple[int, Floats, Floats | float]] = {}
        for group, words in self.groups.items():
            n = int(np.count_nonzero(words))
            test = self.scored.accuracies(group) if self.split == "test" else np.nan
            accuracies[group] = (n, self.dev.accuracies(group), test)
        table = heads_table("relation", accuracies, DIRECTIONS, self.names)
        parts = table.frame["head"].str.split("-")
        table.frame.insert(4, "layer", parts.str[0].astype(int))
        table.frame.insert(5, "number", parts.str[1].astype(int))
        return table


def _stability(heads: ChosenHeads, chosen: Mapping[str, int]) -> pd.DataFrame:
    """Return the columns `chosen` and `rivals` of the heads that are chosen on dev for each group of words."""

    def name(predictor: int) -> str:
        return f"{heads.name(predictor)}{ARROWS[heads.direction(predictor)]}"

    cells = []
    for group, predictor in chosen.items():
        again = choose_again(*heads.dev.count_units(group), seed=heads.seed)
        cells.append(again.describe(predictor, name))
    return stability_columns(cells)


def _units(heads: ChosenHeads, frame: pd.DataFrame, draws: int, permutations: int) -> dict[str, Unit | Sequence[Unit]]:
    """Return the units of the columns of `best_heads`, whose p-values have a least value."""
    shares = ["dev", "test", "offset", "random_init", "dev_gap", "over_offset"]
    if heads.transferred:
        shares.append("own_offset")
    units: dict[str, Unit | Sequence[Unit]] = {}
    for name in shares:
        units[name] = "fraction"
    least = least_p(heads.scored.arcs.number_of_units, draws)
    if heads.split == "dev":
        least = 1 / (1 + draws)
    units["p_offset"] = p_units(frame["p_offset"], least)
    units["p_shuffled"] = p_units(frame["p_shuffled"], 1 / (1 + permutations))
    units["p_holm"] = units["p_offset"]
    return units


def note_on_p(frame: pd.DataFrame) -> str:
    """Return how many small p-values of a table of best heads are of heads that find less than the offset."""
    significant = frame["p_holm"] < LEVEL
    below = int((significant & (frame["over_offset"] < 0)).sum())
    if not below:
        return ""
    return f"p_holm is two-sided: of {int(significant.sum())} below .05, {below} are of heads below the offset."


def _over_offset(heads: ChosenHeads, draws: int) -> Estimate[Floats]:
    """Return the accuracy of each group's head minus that of its offset, with intervals and p-values `[groups]`."""
    arcs = heads.scored.arcs
    by_head = []
    by_offset = []
    groups = []
    for group, head in heads.heads.items():
        by_head.append(heads.hits(head))
        by_offset.append(heads.offset_hits(heads.compared_offsets[group]))
        groups.append(heads.groups[group])
    difference = compare_found(arcs, by_head, by_offset, groups, draws=draws, seed=heads.seed)
    if heads.split == "test":
        return difference
    predictors = range(heads.scored.predicted.shape[1])
    p = []
    for offset_hits, words in zip(by_offset, groups, strict=True):
        gains = []
        for predictor in predictors:
            gains.append(count_gains(arcs, heads.hits(predictor), offset_hits, words))
        has_words = count_units(arcs, words) > 0
        p.append(max_sign_flip_p(np.stack(gains, axis=1)[has_words], draws=draws, seed=heads.seed))
    undefined = np.full(len(p), np.nan)
    return replace(difference, low=undefined, high=undefined, p=np.array(p))


def _p_shuffled(heads: ChosenHeads, permutations: int) -> list[float]:
    """Return p of `permutation_p` for the head of each group."""
    chosen = [heads.heads.get(group, -1) for group in heads.scored.groups]
    p = permutation_p(heads.dev, heads.scored, chosen, permutations=permutations, seed=heads.seed)
    by_group = dict(zip(heads.scored.groups, p.tolist(), strict=True))
    return [by_group[group] for group in heads.heads]


def _accuracies(predictions: Predictions, predictors: Mapping[str, int]) -> list[float]:
    """Return the accuracy of one predictor for each group of words."""
    return [predictions.accuracy(group, predictor) for group, predictor in predictors.items()]


def _with_blank_rows(frame: pd.DataFrame, heads: ChosenHeads) -> pd.DataFrame:
    """Return a table of best heads with a row for every group; it is blank but for `n` if no head is chosen."""
    unseen = heads.groups.keys() - heads.heads.keys()
    if not unseen:
        return frame
    whole_numbers = dict.fromkeys(frame.columns.intersection(["n", "n_dev", "best_offset", "best_own_offset"]), "Int64")
    frame = frame.astype(whole_numbers).set_index("relation").reindex(list(heads.groups))
    for group in unseen:
        frame.loc[group, "n"] = int(np.count_nonzero(heads.groups[group]))
        frame.loc[group, "n_dev"] = 0
    return frame.reset_index()


def heads_answer(best: Table, punctuation: Collection[str] = ()) -> str:
    """Return two sentences on the table `ChosenHeads.best_heads`: all words, and relations whose heads beat offsets.

    If heads were chosen on dev and scored on test, the second sentence names the relation whose head is farthest above
    the offset on dev, with its numbers on test. If dev is scored, no relation is named, as the choice has no interval.
    A head that is chosen again in fewer than half of the resamples of dev is said to be one. All p are after Holm's
    correction for the rows of the table.

    Args:
        best: The table.
        punctuation: Relations of punctuation, which are not counted.
    """
    frame = best.frame
    held_out = best.interval == "test"
    rows = int(frame["p_holm"].count())
    row_of_plain = frame.index[frame["relation"] == PLAIN][0]
    start = "chosen on dev" if held_out else "chosen and scored on dev"
    text = f"{start}, head {{head}}{{again}} finds the governors of {_accuracies_text(best)}; "
    text += "the best head with untrained layers {random_init}"
    answer = _fill_row(best, text, row_of_plain)
    tested = _tested_relations(best, punctuation)
    if tested.empty:
        return answer
    beat = _beat_offset(tested)
    text = _count_relations(tested, beat, bool(frame["relation"].isin(punctuation).any()))
    text += f" (p < .05 after Holm over {pluralize(rows, 'row')}, n ≥ {FEW})"
    top = _widest_on_dev(tested) if held_out else None
    if top is None or not beat[top]:
        return f"{answer} {fill_sentence(text, {})}"
    relation = frame["relation"][top]
    text += f"; the widest gap on dev is in `{relation}`: head {{head}}{{again}} finds {_accuracies_text(best)}"
    return f"{answer} {_fill_row(best, text, top)}"


def above_offset(best: Table, punctuation: Collection[str]) -> tuple[dict[str, Estimate], Finding]:
    """Return the number of relations whose head beats the offset, and the finding of `SingleHeads`.

    The number is the score `heads.above_offset`. It counts verdicts, so it has no interval. There is none if no
    relation is tested; the finding is then the accuracy over all words.

    Args:
        best: The table `ChosenHeads.best_heads`.
        punctuation: Relations of punctuation, which are not counted.
    """
    tested = _tested_relations(best, punctuation)
    if tested.empty:
        return {}, Finding("heads.uas", "governors that the best head finds")
    name = "heads.above_offset"
    number = Estimate(int(_beat_offset(tested).sum()), unit="count")
    words = f"relations with a head above the offset (p < .05 after Holm), of {len(tested)}"
    return {name: number}, Finding(name, words)


def _tested_relations(best: Table, punctuation: Collection[str]) -> pd.DataFrame:
    """Return the rows of relations of at least `FEW` words, without punctuation, whose head is tested."""
    frame = best.frame
    counted = frame[(frame["n"] >= FEW) & ~frame["relation"].isin([ALL, PLAIN, *punctuation])]
    return counted.dropna(subset="p_offset")


def _beat_offset(tested: pd.DataFrame) -> "pd.Series[bool]":
    """Return for each row whether the head finds more than the offset, with a significant difference."""
    # p is two-sided: without the sign, heads that are worse would count too.
    return (tested["p_holm"] < LEVEL) & (tested["over_offset"] > 0)


def _count_relations(tested: pd.DataFrame, beat: "pd.Series[bool]", without_punctuation: bool) -> str:
    """Return in how many relations heads beat the offset; of one relation alone, whether its head does."""
    ending = " without punctuation" if without_punctuation else ""
    if len(tested) == 1:
        relation = tested["relation"].iloc[0]
        verb = "beats" if beat.any() else "does not beat"
        return f"the head of `{relation}`, the only relation{ending} that counts, {verb} the offset"
    relations = f"{pluralize(len(tested), 'relation')}{ending}"
    if not beat.any():
        return f"in none of {relations} do heads beat the offset"
    return f"in {int(beat.sum())} of {relations} heads beat the offset"


def _accuracies_text(best: Table) -> str:
    """Return the part of a sentence on a row with the accuracies of head and offset, and their difference."""
    offset = "offset"
    of_language = ""
    if "own_offset" in best.frame:
        offset = "own_offset"
        of_language = " of the target language"
    return f"{{{best.interval}}} of {{n}} words, the best fixed offset{of_language} {{{offset}}} ({{gain}})"


def _fill_row(best: Table, text: str, row: int) -> str:
    """Fill the numbers of a row of the table into a sentence; p is after Holm's correction, as in the table."""
    names = [str(best.interval), "offset", "random_init"]
    if "own_offset" in best.frame:
        names.append("own_offset")
    scores = {name: best.estimate(row, name) for name in names}
    gain = format_difference(best.estimate(row, "over_offset"), best.estimate(row, "p_holm"))
    if best.interval == "dev":
        gain += " one-sided"
    again = warn_of_choice(best.frame["chosen"][row])
    n = int(best.frame["n"][row])
    return fill_sentence(text, scores, head=best.frame["head"][row], again=again, n=n, gain=gain)


def _widest_on_dev(tested: pd.DataFrame) -> int | None:
    """Return the row whose head is farthest above its offset on dev, of rows with enough dev words; None on a tie."""
    enough = tested[tested["n_dev"] >= FEW]
    order = enough["dev_gap"].sort_values(ascending=False)
    if len(order) < 2 or order.iloc[0] <= 0 or order.iloc[0] == order.iloc[1]:
        return None
    return cast("int", order.index[0])
