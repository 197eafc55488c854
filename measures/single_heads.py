"""Every attention head as a predictor of dependencies and antecedents (Clark et al. 2019, §4.2–4.3), and baselines."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attention_probing.attention.store import Store
from attention_probing.attention.words import drawable
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import AntecedentBatch, AttentionBatch, CoreferenceDataModule, DependencyDataModule
from attention_probing.datamodules.batches import EncoderOf
from attention_probing.datamodules.corpus import STAGES
from attention_probing.datamodules.dependency import DependencySplit
from attention_probing.measures.contract import Measure
from attention_probing.metrics.attachment import (
    ALL,
    ATTACHMENT_RATIOS,
    PLAIN,
    Arcs,
    attachment_scores,
    count,
    count_units,
    ratio_scores,
    sentence_scores,
    sums_by,
)
from attention_probing.metrics.bootstrap import bootstrap_ratio, holm, least_p, max_sign_flip_p, p_units
from attention_probing.metrics.heads import (
    ARC_LENGTHS,
    DIRECTIONS,
    OFFSETS_BY_DISTANCE,
    MostAttended,
    Predictions,
    RowPeaks,
    delimiter_shares,
    offset_shares,
    permutation_p,
)
from attention_probing.metrics.rows import ArcRows
from attention_probing.metrics.statistics import ratio
from attention_probing.metrics.trees import gold_in_trees, tree_counts
from attention_probing.probes.antecedent_evaluation import AntecedentEvaluation, check_coreference
from attention_probing.probes.arc_evaluation import (
    SHOWN,
    ArcEvaluation,
    baseline_scores,
    blank_relations,
    check_relations,
    read_fields,
    rows_of,
    split_key,
)
from attention_probing.results import (
    AttentionLines,
    Bars,
    Estimate,
    Flags,
    Floats,
    HeatMap,
    Integers,
    Result,
    Table,
    Unit,
    on_one_scale,
)
from attention_probing.results.errors import UserError, check_values, pluralize, setting
from attention_probing.results.estimates import FEW
from attention_probing.results.heads import HeadNames, head_map, heads_table
from attention_probing.results.sentences import LEVEL, fill_sentence, format_difference

POSITIONAL, MARGIN = 0.9, 0.1
"""Share of words of a positional head, and margin of a syntactic head (Voita et al. 2019, §5)."""
DRAWS_OF_ROW = 200
"""Draws of the test against the offset for each row, so that p can be small after Holm's correction for the rows."""

_SHARE = 30_000  # shares of attention are gathered as int16, in parts of this


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

    @property
    def groups(self) -> Mapping[str, Flags]:
        """Groups of words of the scored split, bool `[words]` by name, without relations to ROOT.

        Heads and offsets predict words, so they cannot find a word whose governor is ROOT.
        """
        arcs = self.scored.arcs
        return {
            name: words
            for name, words in self.scored.groups.items()
            if name in (ALL, PLAIN) or (arcs.head[words] > 0).any()
        }

    @property
    def split(self) -> Split:
        """Name of the scored split. If it is dev (mode `paper`), the column `test` of all tables is nan."""
        return "dev" if self.scored is self.dev else "test"

    def intervals(self, groups: Collection[Flags], predictors: Iterable[int]) -> tuple[Floats, Floats]:
        """Return 95 % intervals of accuracies on the scored split, over the units of its arcs.

        Args:
            groups: Groups of words, each bool `[words]`.
            predictors: For each group, the predictor whose accuracy on this group gets an interval: its column
                in `self.scored.predicted`, which is a head in one direction.

        Returns:
            Lower ends and upper ends, each `[groups]`.
        """
        arcs, predicted = self.scored.arcs, self.scored.predicted
        hits = [words & (predicted[:, k] == arcs.head) for words, k in zip(groups, predictors, strict=True)]
        right, total = (np.stack([count_units(arcs, words) for words in flags], axis=1) for flags in (hits, groups))
        return bootstrap_ratio(right, total, share=True, seed=self.seed).interval

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
            - `offset`, `best_offset`: accuracy, on the scored split, of the fixed offset that is best on
                dev, and this offset; if `transferred`, also `own_offset` and `best_own_offset`, of the fixed offset
                that is best on the scored split;
            - `random_init`: accuracy, on the scored split, of the head with random weights that is best
                on dev; nan without a control;
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
        dev, scored, groups = self.dev, self.scored, self.groups
        chosen = {group: dev.best(group) for group in groups}
        offsets = {group: dev.by_offset.best(group) for group in groups}
        compared = offsets
        own_offset: dict[str, list[float] | list[int]] = {}
        if self.transferred:
            compared = {group: scored.by_offset.best(group) for group in groups}
            own_offset["own_offset"] = [scored.by_offset.accuracy(*one) for one in compared.items()]
            own_offset["best_own_offset"] = [OFFSETS_BY_DISTANCE[k] for k in compared.values()]
        low, high = self.intervals(groups.values(), chosen.values())
        if self.split == "dev":
            low, high = np.full_like(low, np.nan), np.full_like(high, np.nan)
        on_dev = [int(np.count_nonzero(dev.groups.get(group, ()))) for group in groups]
        dev_accuracy = np.array([dev.accuracy(*one) for one in chosen.items()])
        dev_offset = np.array([dev.by_offset.accuracy(*one) for one in offsets.items()])
        accuracy = [scored.accuracy(*one) for one in chosen.items()]
        random = [control.scored.accuracy(group, control.dev.best(group)) for group in groups] if control else np.nan
        draws = max(permutations, DRAWS_OF_ROW * len(groups))
        frame = pd.DataFrame(
            {
                "relation": list(groups),
                "n": [int(np.count_nonzero(words)) for words in groups.values()],
                "head": [self.names.head(self.names.split(k)[1]) for k in chosen.values()],
                "direction": [DIRECTIONS[self.names.split(k)[0]] for k in chosen.values()],
                "dev": dev_accuracy,
                "test": np.nan if self.split == "dev" else accuracy,
                "low": low,
                "high": high,
                "offset": [scored.by_offset.accuracy(*one) for one in offsets.items()],
                "best_offset": [OFFSETS_BY_DISTANCE[k] for k in offsets.values()],
                **own_offset,
                "random_init": random,
                "n_dev": on_dev,
                "dev_gap": dev_accuracy - dev_offset,
                **self._over_offsets(chosen, compared, draws),
                "p_shuffled": self._p_shuffled(chosen, permutations),
            }
        )
        if (unseen := frame["dev"].isna()).any():  # without a word in dev, nothing is chosen
            of_offsets = [name for name in ("best_offset", "best_own_offset") if name in frame]
            frame[of_offsets] = frame[of_offsets].astype("Int64")
            frame.loc[unseen, frame.columns.difference(["relation", "n", "n_dev"])] = pd.NA
        shares = ["dev", "test", "offset", "random_init", "dev_gap", "over_offset"]
        shares += ["own_offset"] if self.transferred else []
        units: dict[str, Unit | Sequence[Unit]] = dict(dict.fromkeys(shares, "fraction"))
        number = int(scored.arcs.units.max(initial=-1)) + 1
        least = 1 / (1 + draws) if self.split == "dev" else least_p(number, draws)
        units |= {"p_offset": p_units(frame["p_offset"], least)}
        units |= {"p_shuffled": p_units(frame["p_shuffled"], 1 / (1 + permutations))}
        frame.insert(list(frame).index("p_shuffled"), "p_holm", holm(frame["p_offset"].astype(float).tolist()))
        units["p_holm"] = units["p_offset"]
        of_random = ["random_init"] if control else []
        of_offset = "own_offset" if self.transferred else "offset"
        main = ["relation", "head", self.split, of_offset, *of_random, "p_holm"]
        return Table(frame, units, interval=self.split, main=main)

    def _over_offsets(self, heads: Mapping[str, int], offsets: Mapping[str, int], draws: int) -> dict[str, Any]:
        """Compare the chosen head and the chosen offset of each group: the columns `over_offset` and `p_offset`."""
        differences = [self._gains(group, [heads[group]], offsets[group])[:, 0] for group in self.groups]
        totals = [count_units(self.scored.arcs, words) for words in self.groups.values()]
        both = np.stack(differences, axis=1), np.stack(totals, axis=1)
        apart = bootstrap_ratio(*both, share=True, compared=True, draws=draws, seed=self.seed)
        if self.split == "test":
            return {**replace(apart, p=None).named("over_offset"), "p_offset": apart.p}
        every = range(self.scored.predicted.shape[1])
        p = []
        for place, group in enumerate(self.groups):
            gains = self._gains(group, every, offsets[group])[totals[place] > 0]
            p.append(max_sign_flip_p(gains, draws=draws, seed=self.seed))
        return {"over_offset": apart.value, "over_offset.low": np.nan, "over_offset.high": np.nan, "p_offset": p}

    def _gains(self, group: str, predictors: Sequence[int], offset: int) -> Floats:
        """Return the words that predictors find, minus those that an offset finds, `[units, predictors]`.

        Args:
            group: Name of the group of words.
            predictors: Columns of `self.scored.predicted`.
            offset: Column of the fixed offset in `self.scored.by_offset.predicted`.
        """
        scored, arcs = self.scored, self.scored.arcs
        fixed = scored.by_offset.predicted[:, offset] == arcs.head
        gains = []
        for predictor in predictors:
            found = scored.predicted[:, predictor] == arcs.head
            gains.append(count_units(arcs, self.groups[group] * (1.0 * found - fixed)))
        return np.stack(gains, axis=1)

    def _p_shuffled(self, heads: Mapping[str, int], permutations: int) -> list[float]:
        """Return p of `permutation_p` for the chosen head of each group."""
        scored = self.scored
        chosen = [heads.get(group, -1) for group in scored.groups]
        found = permutation_p(self.dev, scored, chosen, permutations=permutations, seed=self.seed)
        by_group = dict(zip(scored.groups, found.tolist(), strict=True))
        return [by_group[group] for group in self.groups]

    def by_sentence(self, groups: Iterable[str]) -> tuple[pd.DataFrame, dict[str, tuple[str, str]]]:
        """Return the number of words of each group whose governor the best head of the group finds.

        Args:
            groups: Names of groups of words; see `Predictions.groups`.

        Returns:
            A frame with a row for each sentence of the scored split and the columns `<group>.found` and
            `<group>.words`, and the names of these two columns by name of the group.
        """
        scored, arcs, nothing = self.scored, self.scored.arcs, np.zeros(len(self.scored.arcs), np.bool_)
        columns, pairs = dict[str, Floats](), dict[str, tuple[str, str]]()
        for group in groups:
            words = scored.groups.get(group, nothing)
            pairs[group] = f"{group}.found", f"{group}.words"
            found = words & (scored.predicted[:, self.dev.best(group)] == arcs.head)
            columns |= {name: count(arcs, flags) for name, flags in zip(pairs[group], (found, words), strict=True)}
        return pd.DataFrame(columns), pairs

    def by_length(self) -> Table:
        """Return the accuracy of each relation's best head and best fixed offset, by length of the arc.

        Head and offset are chosen on dev over all lengths. Words under ROOT have no arc length and are
        left out.

        Returns:
            Table with a row for each group of words and class of lengths, and these columns:

            - `relation`: the group of words; see `Predictions.groups`;
            - `length`: the class of lengths, a key of `ARC_LENGTHS`;
            - `n`: number of words of this group and class in the scored split;
            - `head`, `direction`: the best head, and the direction of attention in which it is best;
            - `accuracy`, `offset`: accuracy of the head and of the fixed offset in the scored split.
        """
        dev, scored, arcs = self.dev, self.scored, self.scored.arcs
        distance = np.where(arcs.head > 0, np.abs(arcs.head - arcs.word), 0)
        rows = []
        for group, words in scored.groups.items():
            k, offset = dev.best(group), dev.by_offset.best(group)
            direction, head = self.names.split(k)
            right = scored.predicted[:, k] == arcs.head
            fixed = scored.by_offset.predicted[:, offset] == arcs.head
            for name, (shortest, longest) in ARC_LENGTHS.items():
                inside = words & (distance >= shortest) & (distance <= longest)
                if n := int(np.count_nonzero(inside)):
                    shares = (np.count_nonzero(inside & hits) / n for hits in (right, fixed))
                    rows.append((group, name, n, self.names.head(head), DIRECTIONS[direction], *shares))
        frame = pd.DataFrame(rows, columns=["relation", "length", "n", "head", "direction", "accuracy", "offset"])
        return Table(frame, dict.fromkeys(("accuracy", "offset"), "fraction"))

    def all_heads(self) -> Table:
        """Return the accuracy of every attention head, in both directions, on every group of words.

        The groups are all words, all words but punctuation, and the words of each relation.

        Returns:
            Table with columns `relation, n, direction, head, layer, number, dev, test`. `relation` is
            the group, and `n` its number of words in the scored split. `head` is the name
            `layer-number`, both from 1. `dev` and `test` are the accuracies on these splits; `test` is
            nan if dev is scored.
        """
        groups = {
            group: (
                int(np.count_nonzero(words)),
                self.dev.accuracies(group),
                np.nan if self.split == "dev" else self.scored.accuracies(group),
            )
            for group, words in self.groups.items()
        }
        table = heads_table("relation", groups, DIRECTIONS, self.names)
        for place, part in enumerate(("layer", "number")):
            table.frame.insert(4 + place, part, table.frame["head"].str.split("-").str[place].astype(int))
        return table

    def roles(self, confidence: Floats, minimum: int, unit: Unit = "fraction") -> tuple[Table, dict[str, Estimate]]:
        """Classify every head as positional, syntactic, both or neither, on dev (Voita et al. 2019, §5).

        A head is positional if it attends to the same offset from at least 90 % of the words. It is
        syntactic if its accuracy on some relation, in either direction, is at least 10 points above
        the best fixed offset's. Relations with fewer than `minimum` words do not count, nor do
        relations of punctuation, nor relations to ROOT, which no head can find.

        Args:
            confidence: Mean of each head's largest weights, `[layers, heads]`, from the metric
                `RowPeaks`.
            minimum: Least number of words of a relation.
            unit: Unit of the confidence.

        Returns:
            A table with a row for each head, and the scores `positional_heads` and `syntactic_heads`,
            shares of all heads. The columns are:

            - `head` and `confidence`;
            - `offset`, `offset_share`, `positional`: the most frequent offset, the share of words with
                it, and True if the head is positional;
            - `relation`, `direction`, `margin`, `syntactic`: the relation and direction in which the
                head's accuracy exceeds the best fixed offset's most, the difference of the two
                accuracies on dev, and True if the head is syntactic;
            - `accuracy`, `low`, `high`, `fixed_offset`: on this relation in the scored split, the
                accuracy of the head with its interval, and the accuracy of the offset.
        """
        dev, scored, size = self.dev, self.scored, len(self.names)
        margins = {
            name: dev.accuracies(name) - dev.by_offset.accuracy(name, dev.by_offset.best(name))
            for name, words in dev.groups.items()
            if name not in (ALL, PLAIN)
            and np.count_nonzero(words & ~dev.arcs.punctuation) >= minimum
            and dev.arcs.head[words].any()
        }
        # Of equal margins the last relation and the backward direction count.
        names, ways = sorted(margins, reverse=True), DIRECTIONS[::-1]
        above = np.reshape([margins[name].reshape(2, size)[::-1] for name in names], (-1, size))
        best = above.argmax(0) if names else np.full(size, -1)
        relations = [names[k // 2] if names else "" for k in best.tolist()]
        directions = [ways[k % 2] if names else "" for k in best.tolist()]
        predictors = [head + (way == DIRECTIONS[1]) * size for head, way in enumerate(directions)]
        offset, share = offset_shares(dev.arcs, dev.predicted[:, :size])
        nothing = np.zeros(len(scored.arcs), np.bool_)
        low, high = self.intervals([scored.groups.get(name, nothing) for name in relations], predictors)
        margin = above.max(0) if names else np.full(size, np.nan)
        table = pd.DataFrame(
            {
                "head": [self.names.head(head) for head in range(size)],
                "confidence": confidence.flatten(),
                "offset": offset,
                "offset_share": share,
                "positional": share >= POSITIONAL,
                "relation": relations,
                "direction": directions,
                "margin": margin,
                "syntactic": margin >= MARGIN,
                "accuracy": [scored.accuracy(*one) for one in zip(relations, predictors, strict=True)],
                "low": low,
                "high": high,
                "fixed_offset": [scored.by_offset.accuracy(name, dev.by_offset.best(name)) for name in relations],
            }
        )
        kinds = ("positional", "syntactic")
        shares = {f"{kind}_heads": Estimate(float(table[kind].mean()), unit="fraction") for kind in kinds}
        columns = ("offset_share", "margin", "accuracy", "fixed_offset")
        units: dict[str, Unit] = {**dict.fromkeys(columns, "fraction"), "confidence": unit}
        return Table(table, units, interval="accuracy"), shares

    def no_op(self, roles: pd.DataFrame, shares: Floats) -> tuple[Table, dict[str, Estimate]]:
        """Compare attention to delimiters where the function of a head applies and where it does not.

        Clark et al. (2019, §3.2) suggest that attention to delimiters is a no-op of heads whose function does not apply
        to a word. The function of a syntactic head is its relation in the table `roles`. It applies to the words that
        attend along such an arc: dependents or, in the direction `head→dependent`, governors. These words are compared
        with the other words of the same sentence. Punctuation is left out, and so are sentences in which the function
        applies to all words or to none.

        Args:
            roles: Frame of the table of `roles`.
            shares: Attention of each word to the delimiters together, `[words, heads]`.

        Returns:
            The table `no_op` and, by name, the score `no_op`. The table has a row for each syntactic head and the
            columns `head`, `relation`, `direction`, `sentences`, `with` and `without` (mean share where the function
            applies, and elsewhere), and `difference` with its interval over sentences. The score is the mean
            difference over the syntactic heads and their sentences; it is absent if there are no syntactic heads.
        """
        arcs, rows, found = self.scored.arcs, [], []
        functions = roles[roles["syntactic"]][["head", "relation", "direction"]].itertuples()
        for place, *function in functions:
            own = applies = self.scored.groups.get(function[1], np.zeros(len(arcs), np.bool_)) & (arcs.head > 0)
            if function[2] == DIRECTIONS[1]:
                applies = np.zeros_like(own)
                applies[np.flatnonzero(own) - arcs.word[own] + arcs.head[own]] = True
            kinds = np.stack([applies, ~applies]) & ~arcs.punctuation
            totals, sums = (np.stack([count(arcs, one) for one in of]) for of in (kinds, kinds * shares[:, place]))
            both = 1.0 * totals.all(0)
            means = sums / np.maximum(totals, 1) * both
            found.append((np.asarray(means[1] - means[0]), np.asarray(both)))
            one = self._mean_difference(*found[-1])
            compared = ratio(means.sum(1), both.sum())
            rows.append((*function, int(both.sum()), *compared, one.value, one.low, one.high))
        columns = ["head", "relation", "direction", "sentences", "with", "without", "difference", "low", "high"]
        table = Table(pd.DataFrame(rows, columns=columns), dict.fromkeys(columns[4:7], "fraction"), "difference")
        if not found:
            return table, {}
        differences = np.sum([one for one, _ in found], axis=0)
        sentences = np.sum([both for _, both in found], axis=0)
        return table, {"no_op": self._mean_difference(differences, sentences)}

    def _mean_difference(self, differences: Floats, sentences: Floats) -> Estimate:
        """Return the mean of differences over sentences, each counted so often, over the units of the arcs.

        Args:
            differences: Sum of the differences of each sentence, `[sentences]`.
            sentences: Number of differences of each sentence, `[sentences]`.
        """
        columns = np.stack([differences, sentences], axis=1).astype(np.float64)
        sums = sums_by(self.scored.arcs.units, columns)
        return bootstrap_ratio(sums[:, 0], sums[:, 1], share=False, of_units=True, seed=self.seed)

    def maps(self, best: pd.DataFrame, most: int) -> Mapping[str, HeatMap]:
        """Return heat maps of the accuracy of every attention head, one for each group of words.

        The groups are those in the first rows of the table: all words, all words without punctuation,
        and then relations, the most frequent first. A group is skipped if no attention head (on dev) and
        no fixed offset finds any of its governors. A map shows the direction of the group's best
        head, and frames this head. All maps share one colour scale.

        Args:
            best: Frame of the table that `best_heads` returns.
            most: Largest number of maps.

        Returns:
            The maps by name, `heads_<group>`; other characters than letters and digits become `_`.
        """
        figures: dict[str, HeatMap] = {}
        for relation, head, way in _found(best).head(most)[["relation", "head", "direction"]].itertuples(index=False):
            shape = 2, len(self.names.layers), len(self.names.heads)
            accuracy = self.scored.accuracies(relation).reshape(shape)[DIRECTIONS.index(way)]
            stem = "heads_" + re.sub("[^A-Za-z0-9]+", "_", relation).strip("_")
            if stem in figures:  # labels that differ in other letters alone
                stem += f"_{len(figures) + 1}"
            title = f"Accuracy of each head: {relation}, {way}"
            figures[stem] = head_map(title, accuracy, self.names, self.names.place(head))
        return on_one_scale(figures)

    def drawings(self, best: pd.DataFrame, sentences: DependencySplit, minimum: int) -> dict[str, AttentionLines]:
        """Draw the attention of up to three relations' best heads, each in one sentence (Clark et al. 2019, Fig. 5).

        The relations are those whose best head gains most over the best fixed offset. For each, the
        sentence of 8 to 18 words is chosen in which the head finds most arcs of the relation.

        Args:
            best: Frame of the table that `best_heads` returns.
            sentences: The scored split.
            minimum: Least number of words of a relation.
        """
        scored, arcs = self.scored, self.scored.arcs
        relations = best[~best["relation"].isin([ALL, PLAIN]) & (best["n"] >= max(minimum, 1))]
        gain = relations["test"].fillna(relations["dev"]) - relations["offset"]
        found = dict[str, AttentionLines]()
        for _, row in relations.loc[gain.sort_values(ascending=False, kind="stable").index].iterrows():
            words = scored.groups[row["relation"]]
            right = words & (scored.predicted[:, self.dev.best(row["relation"])] == arcs.head)
            right &= np.isin(arcs.length, _WORDS)
            if len(found) < _EXAMPLES and right.any():
                sentence = int(np.bincount(arcs.sentence[right]).argmax())
                linked = words & (arcs.sentence == sentence) & (arcs.head > 0)
                ends = (arcs.word, arcs.head) if row["direction"] == DIRECTIONS[0] else (arcs.head, arcs.word)
                pairs = np.stack([end[linked] for end in ends], axis=1)
                name = f"attention_{len(found) + 1}_{row['head']}"
                found[name] = draw_sentence(row, sentences, sentence, self.names.place(row["head"]), pairs)
        return found


Group = tuple[Flags, int]
"""Words of a relation, bool `[words]`, and a direction: 0 reads the attention from a word to its governor, 1 from
the head to the word."""


def choose_ensembles(store: Store, arcs: Arcs, groups: Sequence[Group], most: int) -> list[tuple[tuple[int, ...], int]]:
    """Choose heads whose averaged attention finds more governors than each alone (Limisiewicz et al. 2020, §4.2).

    Attention heads are added one at a time, each time the one that helps most, until none helps or there are `most`.
    The attention is read once for each head that is added, for all groups together.

    Args:
        store: Stored attention of the sentences.
        arcs: Gold arcs of the sentences.
        groups: Words for which heads are chosen.
        most: Largest number of attention heads.

    Returns:
        For each group, indices of the chosen attention heads, counted layer by layer, in the order of the choice; and
        the number of its words whose governor they find.
    """
    chosen: list[tuple[int, ...]] = [()] * len(groups)
    reached = [-1] * len(groups)
    open_groups: Sequence[int] = range(len(groups))
    for _ in range(most):
        counts: dict[int, Tensor | int] = dict.fromkeys(open_groups, 0)
        for group, some, weights in _between(store, arcs, {group: groups[group] for group in open_groups}):
            together = weights + sum(weights[:, head, None] for head in chosen[group])
            counts[group] = counts[group] + _right(together, torch.from_numpy(arcs.head[some])[:, None]).sum(0)
        still = []
        for group, found in counts.items():
            assert isinstance(found, Tensor)
            found[list(chosen[group])] = -1
            best = int(found.argmax())
            if int(found[best]) > reached[group]:
                chosen[group], reached[group] = (*chosen[group], best), int(found[best])
                still.append(group)
        if not (open_groups := still):
            break
    return list(zip(chosen, reached, strict=True))


def ensemble_hits(store: Store, arcs: Arcs, groups: Sequence[Group], heads: Sequence[Sequence[int]]) -> list[Floats]:
    """Return, for each word of each group, 1.0 if the averaged attention of its heads finds its governor.

    Args:
        store: Stored attention of the sentences.
        arcs: Gold arcs of the sentences.
        groups: The words.
        heads: Indices of the attention heads of each group, counted layer by layer.

    Returns:
        For each group float64, one number for each True in its words, in the order of the arcs.
    """
    right = np.zeros((len(groups), len(arcs)))
    for group, some, weights in _between(store, arcs, dict(enumerate(groups))):
        together = weights[:, list(heads[group])].sum(1)
        right[group, some] = _right(together, torch.from_numpy(arcs.head[some])).numpy()
    return [right[group, words] for group, (words, _) in enumerate(groups)]


def _right(weights: Tensor, gold: Tensor) -> Tensor:
    """Return True where the gold governor `[...]` has the greatest weight of `[..., n]`; zeros predict nothing."""
    most, place = weights.max(-1)
    return (place + 1 == gold) & (most > 0)


def _between(store: Store, arcs: Arcs, groups: Mapping[int, Group]) -> Iterator[tuple[int, NDArray[np.int64], Tensor]]:
    """Yield, by sentence and group, rows of arcs, and weights between their words and all n words, `[rows, heads, n]`.

    The word itself is minus infinity. A word without another one is its own prediction, and wrong.
    """
    starts = np.flatnonzero(arcs.word == 1)
    first = dict(zip(arcs.sentence[starts].tolist(), starts.tolist(), strict=True))
    wanted = np.unique(arcs.sentence[np.logical_or.reduce([words for words, _ in groups.values()])])
    for sentence, found in store.each(store.manifest.maps_name, wanted.tolist()):
        weights, start = found.flatten(0, 1)[..., 1:-1, 1:-1], first[sentence]
        weights.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
        for group, (words, direction) in groups.items():
            some = start + np.flatnonzero(words[start : start + weights.size(-1)])
            if len(some):
                word = torch.from_numpy(arcs.word[some]) - 1
                rows = weights[:, word] if direction == 0 else weights[..., word].mT
                yield group, some, rows.transpose(0, 1)


_EXAMPLES = 3
_WORDS = range(8, 19)
"""Words of an example sentence: enough to see something, few enough to read it."""


def draw_sentence(
    row: pd.Series, split: DependencySplit, sentence: int, head: tuple[int, int], arcs: Integers
) -> AttentionLines:
    """Return a drawing of the attention of one head in one sentence, delimiters included if the tokenizer writes them.

    Args:
        row: Row of the table that `ChosenHeads.best_heads` returns.
        split: The split with its stored attention.
        sentence: Index of the sentence in the split.
        head: Place of the head in the stored attention.
        arcs: Positions from and to, from 1, of the attention that is coloured, `[arcs, 2]`.
    """
    manifest, words = split.store.manifest, split.store.labels["words"][sentence].as_py()
    first, last = 1 - manifest.delimiters["start"], len(words) + 1 + manifest.delimiters["end"]
    weights, what = drawable(split.store.read(manifest.maps_name, sentence)[head].numpy(), manifest.quantity)
    return AttentionLines(
        title=f"Head {row['head']} (layer-head){what}, {row['relation']}, {row['direction']}",
        words=tuple(["[start]", *words, "[end]"][first:last]),
        weights=weights[first:last, first:last].astype(np.float64),
        arcs=frozenset((source, target) for source, target in (arcs - first).tolist()),
        from_label="attends",
        to_label="is attended to",
    )


def best_bars(best: Table) -> Bars:
    """Return a bar chart of the accuracy of the best attention head of each of the most frequent relations.

    Two more bars per relation show the accuracy of its best fixed offset and, if it was computed, of the
    best head of an encoder with random weights.

    Args:
        best: Table that `ChosenHeads.best_heads` returns.
    """
    best = best.rows(_found(best.frame).index[:SHOWN].tolist())
    shown = best.frame
    series = {"best head": str(best.interval), "best fixed offset": "offset"}
    if shown["random_init"].notna().any():
        series["best head, random weights"] = "random_init"
    how = "chosen on dev, scored on test" if best.interval == "test" else "chosen and scored on one split"
    named = replace(best, frame=shown.assign(name=shown["relation"] + " " + shown["head"]))
    title, label = f"Best single head per relation, {how}", "relation and its best head (layer-head)"
    return Bars.from_table(title, named, "name", series, "accuracy (%)", label)


def without_intervals(scores: Mapping[str, Estimate], tables: Iterable[Table | None]) -> dict[str, Estimate]:
    """Leave out the intervals of heads that were chosen on the scored words, for which no interval of one head holds.

    Args:
        scores: Scores of chosen heads.
        tables: Tables of chosen heads, whose columns `low` and `high` are blanked.
    """
    for table in tables:
        if table is not None:
            table.frame[["low", "high"]] = np.nan
    return {name: replace(one, low=np.nan, high=np.nan) for name, one in scores.items()}


def heads_answer(best: Table, punctuation: Collection[str] = ()) -> str:
    """Return two sentences on the table `ChosenHeads.best_heads`: all words, and relations whose heads beat offsets.

    If heads were chosen on dev and scored on test, the second sentence names the relation whose head is farthest above
    the offset on dev, with its numbers on test. If dev is scored, no relation is named, as the choice has no interval.

    Args:
        best: The table.
        punctuation: Relations of punctuation, which are not counted.
    """
    frame = best.frame
    held_out = best.interval == "test"
    rows = int(frame["p_holm"].count())
    plain = frame.index[frame["relation"] == PLAIN][0]
    start = "chosen on dev" if held_out else "chosen and scored on dev"
    text = f"{start}, head {{head}} finds the governors of {_finds(best)}; the best head with random weights "
    answer = _fill_row(best, text + "{random_init}", plain)
    named = [ALL, PLAIN, *punctuation]
    tested = frame[~frame["relation"].isin(named) & (frame["n"] >= FEW)].dropna(subset="p_offset")
    if tested.empty:
        return answer
    beat = (tested["p_holm"] < LEVEL) & (tested["over_offset"] > 0)
    count = f"{int(beat.sum()) or 'none'} of {pluralize(len(tested), 'relation')}"
    family = f"p < .05 after Holm over {pluralize(rows, 'row')}, n ≥ {FEW}"
    without = " without punctuation" if frame["relation"].isin(punctuation).any() else ""
    text = f"in {count}{without} {'heads' if beat.any() else 'do heads'} beat the offset ({family})"
    top = _widest_on_dev(tested) if held_out else None
    if top is not None and beat[top]:
        relation = frame["relation"][top]
        text += f"; the widest gap on dev is in `{relation}`: head {{head}} finds {_finds(best)}"
        return f"{answer} {_fill_row(best, text, top)}"
    return f"{answer} {fill_sentence(text, {})}"


def _finds(best: Table) -> str:
    """Return the part of a sentence on a row with the accuracies of head and offset, and their difference."""
    offset = "offset"
    of_language = ""
    if "own_offset" in best.frame:
        offset = "own_offset"
        of_language = " of the target language"
    return f"{{{best.interval}}} of {{n}} words, the best fixed offset{of_language} {{{offset}}} ({{gain}})"


def _fill_row(best: Table, text: str, row: int) -> str:
    """Fill the numbers of a row of the table into a sentence."""
    names = [str(best.interval), "offset", "random_init"]
    names += ["own_offset"] if "own_offset" in best.frame else []
    found = {name: best.estimate(row, name) for name in names}
    gain = format_difference(best.estimate(row, "over_offset"), best.estimate(row, "p_offset"))
    if best.interval == "dev":
        gain += " one-sided"
    return fill_sentence(text, found, head=best.frame["head"][row], n=int(best.frame["n"][row]), gain=gain)


def _widest_on_dev(tested: pd.DataFrame) -> int | None:
    """Return the row whose head is farthest above its offset on dev, of rows with enough dev words; None on a tie."""
    enough = tested[tested["n_dev"] >= FEW]
    order = enough["dev_gap"].sort_values(ascending=False)
    if len(order) < 2 or order.iloc[0] <= 0 or order.iloc[0] == order.iloc[1]:
        return None
    return cast("int", order.index[0])


def _found(best: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of relations that some head or offset finds; relations to ROOT have none."""
    return best[(best["dev"].fillna(0.0) > 0) | (best["offset"] > 0)]


class SingleHeads(Measure[DependencyDataModule]):
    """Accuracy of each attention head in finding governors.

    It follows Clark et al. (2019, §4.2). Each attention head is read in two directions. In the
    first, the predicted governor of a word w is the word to which w attends most; in the
    second, it is the word that attends most to w.

    The best attention head of each relation, and of all words, is chosen on dev and scored on test,
    with a 95 % interval over documents, or over sentences where no documents are marked. A paired test
    compares it with the best fixed offset, and a permutation test with heads that are chosen on permuted
    arcs. Tables also have the best head of an encoder with random weights if the datamodule's `random_init`
    is set.

    Args:
        mode: `held_out` chooses on dev and scores on test; `paper` chooses and scores on dev, as the
            original does.
        trees: True to score the spanning trees and the ensembles of heads too. Without them, `store: stream` keeps
            only the most attended words, so that the memory for the attention does not limit the length of a
            text or the number of heads.
        relations: Relations shown in tables and figures, in this order, after the rows for all
            words; by default all relations. The roles of heads always count all relations. Each relation
            given, and `all`, is also a score `heads.<relation>` with counts, by which runs can be compared. The row of
            a relation that no word of the scored split has is blank, with n = 0, and its score is nan.

    Attributes:
        permutations: Number of draws of the permutation test, and least number of those of the test against the offset.
        ensemble: Largest number of attention heads in an ensemble (Limisiewicz et al. 2020); 1 makes no ensembles.
        minimum: Least number of words on dev that a relation needs to count for ensembles and for the roles of heads.
        maps: Largest number of maps of the accuracy of every head: of all words, of all words without punctuation, and
            of relations, the most frequent first.
    """

    experiment = "heads"
    takes = DependencyDataModule
    permutations: int = 1000
    ensemble: int = 4
    minimum: int = 50
    maps: int = 12

    def __init__(
        self, mode: Literal["held_out", "paper"] = "held_out", trees: bool = True, relations: tuple[str, ...] = ()
    ) -> None:
        super().__init__(seed=0)  # of resamples: equal in all runs, so that these can be paired
        check_values(self, mode=mode)
        self.mode, self.trees, self.relations = mode, trees, relations
        self._scored: Split = "dev" if mode == "paper" else "test"
        self._gathered, self._peaks = nn.ModuleDict(), nn.ModuleDict()

    def begin(self) -> None:
        data = self.data
        reads = "attention" if self.trees else "most_attended"
        read_fields(data, (reads,), type(self).__name__, random_init=True)
        names = HeadNames(data.layers, data.heads)
        # Both directions of every head; for the given encoder also spanning trees.
        columns: dict[EncoderOf, dict[str, int | None]] = {
            "given": {"heads": 2 * len(names), **({"in_trees": len(names)} if self.trees else {})},
            "random_init": {"heads": 2 * len(names)},
        }
        for encoder, widths in columns.items():
            self._peaks[encoder] = RowPeaks(len(data.layers), len(data.heads))
            for split in STAGES["test"]:
                self._gathered[split_key(split, encoder)] = ArcRows(**widths)
        delimiters = any(data.splits[self._scored].store.manifest.delimiters.values())
        self._shares = delimiters and self.trees and data.options.measured.sums_to_one
        if self._shares:
            self._gathered[self._scored] = ArcRows(**columns["given"], delimiters=len(names))
        check_relations(self.relations, data.relations)
        for split in dict.fromkeys(("dev", self._scored)):
            if not data.splits[split].arcs:
                raise UserError(
                    f"{data.files()[split]}: no word depends on another word, so no arc can be scored. "
                    f"Give {setting('corpus')} a treebank with arcs."
                )

    def update(self, batch: AttentionBatch) -> None:
        positions, peaks = batch.most_attended, batch.peaks
        if positions.dim() == 1:  # they are to be computed from the attention
            most = MostAttended(batch.lengths)
            most.add(batch.attention)
            positions, peaks = most.positions, most.peaks
        predicted = {"heads": positions.flatten(2)}
        if batch.encoder == "given" and self.trees:
            predicted["in_trees"] = gold_in_trees(batch.attention, batch.heads, batch.punctuation, batch.lengths)
        if self._shares and (batch.encoder, batch.split) == ("given", self._scored):
            shares = delimiter_shares(batch.attention, batch.lengths).flatten(2)
            predicted["delimiters"] = (shares * _SHARE).round().int()
        if batch.split == "dev":
            self._peaks[batch.encoder].update(peaks, batch.lengths)  # type: ignore[operator]
        self._gathered[split_key(batch.split, batch.encoder)].add(batch, **predicted)  # type: ignore[operator]

    def result(self) -> Result | None:
        rows: dict[str, tuple[Arcs, Mapping[str, Integers]]] = {
            name: metric.arcs()  # type: ignore[operator]
            for name, metric in self._gathered.items()
        }
        confidence: dict[str, Floats] = {
            encoder: metric.compute().cpu().numpy()  # type: ignore[operator]
            for encoder, metric in self._peaks.items()
        }
        if self.ranks.rank != 0:
            return None  # the first process computes the statistics and writes them
        names, relations = HeadNames(self.data.layers, self.data.heads), self.data.relations
        arcs = {name: self._within_reach(own, name) for name, (own, _) in rows.items()}
        found = {name: Predictions(arcs[name], relations, predicted["heads"]) for name, (_, predicted) in rows.items()}
        encoders: tuple[EncoderOf, EncoderOf] = ("given", "random_init")
        given, random = (
            ChosenHeads(
                found[split_key("dev", of)],
                found[split_key(self._scored, of)],
                names,
                self.seed,
                transferred=self._scored == "test" and self.data.transfer_from is not None,
            )
            for of in encoders
        )
        control = random if len(random.dev.arcs) else None
        dev, scored, split = given.dev, given.scored, self.data.splits[self._scored]
        best = rows_of(given.best_heads(control, self.permutations), self.relations, blank=True)
        unit: Unit = "fraction" if self.data.options.measured.sums_to_one else "ratio"
        role_table, shares = given.roles(confidence["given"], self.minimum, unit)
        tables = {
            "best_heads": best,
            "best_heads_by_length": rows_of(given.by_length(), self.relations),
            "heads": rows_of(given.all_heads(), self.relations),
            "roles": role_table,
        }
        scores: dict[str, Estimate] = {}
        if self.trees:
            on_dev, trees = (tree_counts(arcs[name], rows[name][1]["in_trees"]) for name in ("dev", self._scored))
            tables["trees"], scores = _trees(on_dev, trees, given)
        if self._shares:
            delimiters = rows[self._scored][1]["delimiters"] / _SHARE
            tables["no_op"], no_op = given.no_op(role_table.frame, delimiters)
            scores |= no_op
        headline = ["heads.uas", "offset.uas"]
        hits = scored.found(dev.best(PLAIN))
        scores = attachment_scores(scored.arcs, *hits, prefix="heads.", seed=self.seed) | scores
        if control is not None:
            by_random = control.scored.found(control.dev.best(PLAIN))
            scores |= attachment_scores(control.scored.arcs, *by_random, prefix="random_init.", seed=self.seed)
            headline.append("random_init.uas")
            tables["random_init.roles"], _ = control.roles(confidence["random_init"], self.minimum, unit)
        if self.trees and self.ensemble > 1:
            tables["ensembles"] = self._ensembles(given, split)
        counts, pairs = given.by_sentence((ALL, *self.relations) if self.relations else ())
        items = pd.concat([sentence_scores(scored.arcs, *hits), counts], axis=1)
        if pairs:
            scores |= ratio_scores(items, pairs, prefix="heads.", seed=self.seed)
        if self._scored == "dev":
            scores = without_intervals(scores, [tables.get(name) for name in ("roles", "random_init.roles")])
        items.insert(1 + ("document" in items), "id", [split.ids[index] for index in items["sentence"]])
        return Result(
            experiment=self.experiment,
            scores=scores | shares | baseline_scores(dev.arcs, scored.arcs, len(relations)),
            tables=tables,
            figures={
                **({"best_heads": best_bars(best)} if len(_found(best.frame)) else {}),
                **given.maps(best.frame, self.maps),
                **given.drawings(best.frame, split, self.minimum),
            },
            audit={
                "mode": self.mode,
                "units": split.describe_units(),
                "permutations": self.permutations,
                **blank_relations(best),
                # Behind a causal mask, or where a weight is below the least number that the store keeps.
                "predictions_without_weight": {split: found[split].without_weight for split in STAGES["test"]},
            },
            items=items,
            ratios={f"heads.{name}": pair for name, pair in (ATTACHMENT_RATIOS | pairs).items()},
            shares=[f"heads.{name}" for name in (ATTACHMENT_RATIOS | pairs)],
            headline=headline,
            answer=heads_answer(best, scored.punctuation),
        )

    def _within_reach(self, arcs: Arcs, name: str) -> Arcs:
        """Add the positions that the encoder may attend to from each word, so that baselines keep to them."""
        splits = {split_key(split, "given"): data for split, data in self.data.splits.items()}
        splits |= {split_key(split, "random_init"): data for split, data in self.data.random_splits.items()}
        if name not in splits or (reach := splits[name].reach) is None:
            return arcs
        before = np.cumsum(splits[name].lengths) - splits[name].lengths  # words of the sentences before
        return replace(arcs, reach=reach[before[arcs.sentence] + arcs.word - 1])

    def _ensembles(self, given: ChosenHeads, split: DependencySplit) -> Table:
        """Return `relation, n, direction, heads, dev, test, low, high, single`; `single` is the first head alone."""
        dev, scored, names = given.dev, given.scored, given.names
        totals = {name: int(np.count_nonzero(words)) for name, words in dev.groups.items()}
        relations = [
            name
            for name in self.relations or given.groups
            if name not in (ALL, PLAIN) and name in given.groups and totals.get(name, 0) >= self.minimum
        ]
        wanted = list(product(relations, range(len(DIRECTIONS))))
        on_dev = [(dev.groups[name], direction) for name, direction in wanted]
        chosen = choose_ensembles(self.data.splits["dev"].store, dev.arcs, on_dev, self.ensemble) if wanted else []
        on_scored = [(scored.groups[name], direction) for name, direction in wanted]
        hits = ensemble_hits(split.store, scored.arcs, on_scored, [heads for heads, _ in chosen]) if wanted else []
        rows = []
        for (name, direction), (heads, found), right in zip(wanted, chosen, hits, strict=True):
            words = scored.groups[name]
            unit = np.unique(scored.arcs.units_of_words[words], return_inverse=True)[1]
            counts = np.bincount(unit, weights=right), np.bincount(unit)
            low, high = bootstrap_ratio(*counts, share=True, seed=self.seed).interval
            if given.split == "dev":  # no interval of one ensemble holds for the best of all
                low = high = np.nan
            single = scored.accuracy(name, heads[0] + direction * len(names))
            together = " + ".join(names.head(head) for head in heads)
            test = np.nan if given.split == "dev" else float(right.mean())
            row = (name, len(right), DIRECTIONS[direction], together, found / totals[name], test)
            rows.append((*row, float(low), float(high), single))
        columns = ["relation", "n", "direction", "heads", "dev", "test", "low", "high", "single"]
        units: dict[str, Unit] = dict.fromkeys(("dev", "test", "single"), "fraction")
        return Table(pd.DataFrame(rows, columns=columns), units, given.split)


def _trees(
    dev: tuple[Integers, Integers], scored: tuple[Integers, Integers], given: ChosenHeads
) -> tuple[Table, dict[str, Estimate]]:
    """Return the UUAS of every head's maximum spanning trees, `head, dev, test`; and of the best head on dev.

    Both splits are gold edges in the trees `[sentences, heads]`, and all gold edges `[sentences]`.
    """
    on_dev, on_scored = (found.sum(axis=0) / max(int(edges.sum()), 1) for found, edges in (dev, scored))
    heads = [given.names.head(k) for k in range(len(given.names))]
    frame = pd.DataFrame({"head": heads, "dev": on_dev, "test": np.nan if given.split == "dev" else on_scored})
    best_on_dev = int(dev[0].sum(axis=0).argmax())
    items = pd.DataFrame({"found": scored[0][:, best_on_dev], "edges": scored[1], "document": given.scored.arcs.units})
    best = ratio_scores(items, {"heads.tree_uuas": ("found", "edges")}, seed=given.seed)
    return Table(frame, dict.fromkeys(("dev", "test"), "fraction")), best


class AntecedentHeads(Measure[CoreferenceDataModule]):
    """Antecedent selection by every attention head (Clark et al. 2019, §4.3).

    For every mention with an antecedent in its window, an attention head predicts an earlier mention:
    the one whose head word gets the most attention from the mention's head word. In the other
    direction of attention, it predicts the earlier mention whose head word gives the most attention to
    the mention's head word.

    The best attention head is chosen on dev for all mentions together, and for each type of mention.
    These heads are scored on test. Three baselines are scored on the same mentions: the nearest
    earlier mention, the nearest earlier mention with the same head word, and a rule-based sieve.
    Intervals are over documents.

    Args:
        mode: `held_out` chooses on dev and scores on test; `paper` chooses and scores on dev, as Clark
            et al. (2019) do.
    """

    experiment = "antecedent"
    takes = CoreferenceDataModule

    def __init__(self, mode: Literal["held_out", "paper"] = "held_out") -> None:
        super().__init__(seed=0)  # of resamples: equal in all runs, so that these can be paired
        check_values(self, mode=mode)
        self.mode: Literal["held_out", "paper"] = mode

    def begin(self) -> None:
        check_coreference(self.data, type(self).__name__)
        self.evaluation = AntecedentEvaluation(self.mode, self.seed)
        self.evaluation.prepare(self.data)

    def update(self, batch: AntecedentBatch) -> None:
        self.evaluation.update(batch)

    def result(self) -> Result:
        return self.evaluation.result(self.experiment)


class Baselines(Measure[DependencyDataModule]):
    """Baselines: fixed offsets, left and right branching, and uniform attention.

    No attention is read. The best fixed offset, per relation and overall, is chosen on dev and scored
    on test. Uniform attention is scored by expectation: ROOT and all other words are equally likely
    heads.

    Args:
        relations: Relations shown in the table and the figure, in this order, after the row for
            all words and the row for all words but punctuation; by default all relations. The row of a relation that
            no word of test has is blank, with n = 0.
    """

    experiment = "baselines"
    takes = DependencyDataModule

    def __init__(self, relations: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.evaluation = ArcEvaluation(relations)

    def begin(self) -> None:
        read_fields(self.data, (), type(self).__name__)
        check_relations(self.evaluation.relations, self.data.relations)

    def update(self, batch: AttentionBatch) -> None:
        self.evaluation.update(batch)

    def result(self) -> Result:
        return self.evaluation.result(self.experiment, self.data)
