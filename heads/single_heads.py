"""Every attention head as a predictor of dependencies (Clark et al. 2019, §4.2), with intervals, controls and tests."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attention.store import Store
from datamodules import AttentionBatch
from datamodules.batches import EncoderOf, Split
from datamodules.corpus import STAGES
from datamodules.dependency import DependencySplit
from heads.arc_evaluation import (
    SHOWN,
    DependencyExperiment,
    baseline_scores,
    check_relations,
    rows_of,
    split_key,
)
from metrics.attachment import (
    ALL,
    OFFSETS,
    PLAIN,
    Arcs,
    attached,
    attachment_scores,
    count,
    edges_found,
    groups_of,
    offset_heads,
    ratio_scores,
    sentence_scores,
)
from metrics.bootstrap import bootstrap_ratio
from metrics.heads import (
    ARC_LENGTHS,
    DIRECTIONS,
    Direction,
    RowPeaks,
    hit_counts,
    most_attended,
    offset_shares,
    permutation_p,
)
from metrics.rows import ArcRows
from metrics.trees import gold_in_trees, tree_counts
from results import AttentionLines, Bars, Estimate, Flags, Floats, HeatMap, Integers, Result, Table, Unit, on_one_scale
from results.errors import UserError, check_numbers, check_values

POSITIONAL, MARGIN = 0.9, 0.1
"""Share of words of a positional head, and margin of a syntactic head (Voita et al. 2019, §5)."""

_OFFSETS = sorted(OFFSETS, key=lambda k: (abs(k), -k))
"""The fixed offsets, nearest first, ahead before behind."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """Gold arcs of one split, and the syntactic head of every word predicted by each of K predictors.

    Attributes:
        arcs: gold arcs.
        relations: names of the relations.
        predicted: `[words, K]`, predicted position of each word's head, below 0 where nothing is predicted. A predictor
            is an attention head in one direction; predictors are in the order direction, layer, head.
    """

    arcs: Arcs
    relations: Sequence[str]
    predicted: NDArray[np.integer]

    @cached_property
    def groups(self) -> Mapping[str, Flags]:
        """Words of each relation that occurs, and all words: bool `[words]` by group."""
        return groups_of(self.arcs, self.relations)

    @cached_property
    def counts(self) -> Mapping[str, Integers]:
        """Number of words whose head each predictor finds, `[K]` by group."""
        return dict(zip(self.groups, hit_counts(self.arcs, self.predicted, self.groups), strict=True))

    @cached_property
    def by_offset(self) -> "Predictions":
        """Predictions of the fixed-offset baselines on the same arcs; a column for each offset, nearest first."""
        return Predictions(self.arcs, self.relations, np.stack([offset_heads(self.arcs, k) for k in _OFFSETS], axis=1))

    @property
    def without_weight(self) -> int:
        """Number of missing predictions, where no other word of the sentence has any weight."""
        return int(np.count_nonzero(self.predicted[self.arcs.length > 1] < 0))

    def found(self, predictor: int) -> tuple[Floats, Floats]:
        """Return two arrays, each float64 `[words]`, for one predictor, a column of `predicted`.

        The first is 1.0 where the predictor finds the gold head; the second is 1.0 where it finds the gold arc in
        either direction. See `attached` and `edges_found` of `metrics.attachment`.
        """
        column = self.predicted[:, predictor].astype(np.int64)
        return attached(self.arcs, column), edges_found(self.arcs, column)

    def best(self, group: str) -> int:
        """Return the index of the predictor that finds most heads of a group of words, the first of equals.

        For a group without words, all words without punctuation decide.
        """
        return int(self.counts.get(group, self.counts[PLAIN]).argmax())

    def accuracies(self, group: str) -> Floats:
        """Return the share of a group's words whose head each predictor finds, `[K]`; nan for an absent group."""
        if group not in self.groups:
            return np.full(self.predicted.shape[1], np.nan)
        shares: Floats = self.counts[group] / np.count_nonzero(self.groups[group])
        return shares

    def accuracy(self, group: str, predictor: int) -> float:
        """Return the accuracy of one predictor, a column of `predicted`, on a group; nan for a group without words."""
        return float(self.accuracies(group)[predictor])


def head_name(layer: int, head: int) -> str:
    """Return the name `layer-head`, both counted from 1, of a 0-based layer and attention head."""
    return f"{layer + 1}-{head + 1}"


@dataclass(frozen=True)
class Names:
    """Names of the attention heads of a store.

    Attributes:
        layers: layers of the store, from 0.
        heads: heads of each layer that the store holds, from 0.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]

    def head(self, index: int) -> str:
        """Return the name `layer-head`, both from 1, of an attention head; `index` counts heads layer by layer."""
        layer, head = divmod(index, len(self.heads))
        return head_name(self.layers[layer], self.heads[head])

    def place(self, head: str) -> tuple[int, int]:
        """Return the index in `layers` and the index in `heads` of an attention head, given its name `layer-head`."""
        layer, number = (int(part) - 1 for part in head.split("-"))
        return self.layers.index(layer), self.heads.index(number)

    def __len__(self) -> int:
        return len(self.layers) * len(self.heads)

    def split(self, predictor: int) -> tuple[int, int]:
        """Return the indices of a predictor's direction and head; the order is direction, layer, head."""
        return divmod(predictor, len(self))


@dataclass(frozen=True, eq=False)
class ChosenHeads:
    """Single attention heads that are chosen on dev and scored on another split, or on dev itself, as in the paper.

    Attributes:
        dev: predictions on dev.
        scored: predictions on the split that is scored.
        names: names of the attention heads.
        seed: seed of bootstrap and permutations.
    """

    dev: Predictions
    scored: Predictions
    names: Names
    seed: int = 0

    @property
    def split(self) -> Split:
        """Name of the scored split; if it is dev (mode `paper`), the columns `test` of all tables are nan."""
        return "dev" if self.scored is self.dev else "test"

    def intervals(self, groups: Collection[Flags], predictors: Iterable[int]) -> tuple[Floats, Floats]:
        """Return the ends of 95 % intervals of accuracies on the scored split, by bootstrap over sentences.

        Args:
            groups: groups of words, each bool `[words]`.
            predictors: one predictor for each group; the i-th is scored on the i-th group.

        Returns:
            Lower ends and upper ends, each `[groups]`.
        """
        arcs, predicted = self.scored.arcs, self.scored.predicted
        hits = [words & (predicted[:, k] == arcs.head) for words, k in zip(groups, predictors, strict=True)]
        right, total = (np.stack([count(arcs, words) for words in flags], axis=1) for flags in (hits, groups))
        return bootstrap_ratio(right, total, seed=self.seed).interval

    def best_heads(self, control: "ChosenHeads | None", permutations: int) -> Table:
        """Return the best predictor of each group of words.

        Args:
            control: the same splits through an encoder with random weights.
            permutations: number of permutations under `p`.

        Returns:
            Table with columns `relation, n, head, direction, dev, test, low, high, offset, best_offset, random_init,
            p`. The predictor and the offset are chosen on dev; n, interval and p-value belong to the scored split.
        """
        dev, scored, groups = self.dev, self.scored, self.scored.groups
        chosen = {group: dev.best(group) for group in groups}
        offsets = {group: dev.by_offset.best(group) for group in groups}
        low, high = self.intervals(groups.values(), chosen.values())
        accuracy = [scored.accuracy(*one) for one in chosen.items()]
        random = [control.scored.accuracy(group, control.dev.best(group)) for group in groups] if control else np.nan
        reached = [int(scored.counts[group][k]) for group, k in chosen.items()]
        frame = pd.DataFrame(
            {
                "relation": list(groups),
                "n": [int(np.count_nonzero(words)) for words in groups.values()],
                "head": [self.names.head(self.names.split(k)[1]) for k in chosen.values()],
                "direction": [DIRECTIONS[self.names.split(k)[0]] for k in chosen.values()],
                "dev": [dev.accuracy(*one) for one in chosen.items()],
                "test": np.nan if self.split == "dev" else accuracy,
                "low": low,
                "high": high,
                "offset": [scored.by_offset.accuracy(*one) for one in offsets.items()],
                "best_offset": [_OFFSETS[k] for k in offsets.values()],
                "random_init": random,
                "p": permutation_p(
                    scored.arcs, scored.predicted, groups, reached, permutations=permutations, seed=self.seed
                ),
            }
        )
        units: dict[str, Unit] = {"p": "p", **dict.fromkeys(("dev", "test", "offset", "random_init"), "fraction")}
        answer = ["relation", "head", self.split, "offset", *(["random_init"] if control else []), "p"]
        return Table(frame, units, interval=self.split, answer=answer)

    def by_length(self) -> Table:
        """Return the accuracy of the best head and of the best offset of each relation, by length of the arc.

        Both are chosen on dev over all lengths. Words under ROOT have no length and are left out.

        Returns:
            Table with columns `relation, length, n, head, direction, accuracy, offset`.
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
        """Return the accuracy of every attention head, in both directions, on every relation.

        Returns:
            Table with columns `relation, n, direction, head, layer, number, dev, test`; `head` is `layer-number`, both
            from 1.
        """
        groups = {
            group: (
                int(np.count_nonzero(words)),
                self.dev.accuracies(group),
                np.nan if self.split == "dev" else self.scored.accuracies(group),
            )
            for group, words in self.scored.groups.items()
        }
        table = heads_table("relation", groups, DIRECTIONS, self.names)
        for place, part in enumerate(("layer", "number")):
            table.frame.insert(4 + place, part, table.frame["head"].str.split("-").str[place].astype(int))
        return table

    def roles(self, confidence: Floats, minimum: int) -> tuple[Table, dict[str, Estimate]]:
        """Classify every head as positional, syntactic, both or neither, on dev (Voita et al. 2019, §5).

        A head is positional if it attends to one offset for at least 90 % of the words. It is syntactic if on some
        relation of at least `minimum` words it is 10 points better than the best fixed offset, in either direction.
        Relations of punctuation, and relations to ROOT, which no head can find, do not count.

        Args:
            confidence: mean of each head's largest weights, `[layers, heads]`, from the metric `RowPeaks`.
            minimum: least number of words of a relation.

        Returns:
            A table with columns `head, confidence, offset, offset_share, positional, relation, direction, margin,
            syntactic, accuracy, low, high, fixed_offset`. The relation has the greatest margin of the head; the head's
            accuracy on it and the accuracy of the best fixed offset belong to the scored split. And the scores
            `positional_heads` and `syntactic_heads`, shares of all heads.
        """
        dev, scored, size = self.dev, self.scored, len(self.names)
        margins = {
            name: dev.accuracies(name) - dev.by_offset.accuracy(name, dev.by_offset.best(name))
            for name, words in dev.groups.items()
            if name not in (ALL, PLAIN)
            and np.count_nonzero(words & ~dev.arcs.punctuation) >= minimum
            and dev.arcs.head[words].any()
        }
        best = [
            max(
                (
                    (float(above[head + way * size]), name, direction)
                    for name, above in margins.items()
                    for way, direction in enumerate(DIRECTIONS)
                ),
                default=(np.nan, "", ""),
            )
            for head in range(size)
        ]
        relations = [relation for _, relation, _ in best]
        predictors = [head + (direction == DIRECTIONS[1]) * size for head, (*_, direction) in enumerate(best)]
        offset, share = offset_shares(dev.arcs, dev.predicted[:, :size])
        nothing = np.zeros(len(scored.arcs), np.bool_)
        low, high = self.intervals([scored.groups.get(name, nothing) for name in relations], predictors)
        margin = np.array([margin for margin, _, _ in best])
        table = pd.DataFrame(
            {
                "head": [self.names.head(head) for head in range(size)],
                "confidence": confidence.flatten(),
                "offset": offset,
                "offset_share": share,
                "positional": share >= POSITIONAL,
                "relation": relations,
                "direction": [direction for *_, direction in best],
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
        columns = ("confidence", "offset_share", "margin", "accuracy", "fixed_offset")
        return Table(table, dict.fromkeys(columns, "fraction"), interval="accuracy"), shares

    def maps(self, best: pd.DataFrame, most: int) -> Mapping[str, HeatMap]:
        """Return heat maps of the accuracy of every attention head, one for each of the `most` most frequent relations.

        A map has the direction of the relation's best head, which is framed; all maps share one scale of colours.

        Args:
            best: frame of a table of `best_heads`.
            most: largest number of maps.
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

    def examples(self, best: pd.DataFrame, sentences: DependencySplit, minimum: int) -> tuple["AttentionDrawing", ...]:
        """Choose example sentences to draw.

        The heads with the greatest gain over the best offset are chosen, each with the sentence in which it finds most
        arcs.

        Args:
            best: frame of a table of `best_heads`.
            sentences: the scored split.
            minimum: least number of words of a relation.
        """
        scored, arcs = self.scored, self.scored.arcs
        relations = best[~best["relation"].isin([ALL, PLAIN]) & (best["n"] >= minimum)]
        gain = relations["test"].fillna(relations["dev"]) - relations["offset"]
        found: list[AttentionDrawing] = []
        for _, row in relations.loc[gain.sort_values(ascending=False, kind="stable").index].iterrows():
            layer, head = self.names.place(row["head"])
            k = DIRECTIONS.index(row["direction"]) * len(self.names) + layer * len(self.names.heads) + head
            right = scored.groups[row["relation"]] & (scored.predicted[:, k] == arcs.head)
            right &= np.isin(arcs.length, _WORDS)
            if len(found) < _EXAMPLES and right.any():
                sentence = sentences.ids[int(np.bincount(arcs.sentence[right]).argmax())]
                found.append(AttentionDrawing(row["head"], sentence, row["relation"], row["direction"]))
        return tuple(found)


def heads_table(
    kind: str, groups: Mapping[str, tuple[int, Floats, Floats | float]], directions: Sequence[str], names: Names
) -> Table:
    """Return a table with a row for each group, direction and head: columns `<kind>, n, direction, head, dev, test`.

    Args:
        kind: name of the column of groups.
        groups: for each group the number of words or mentions, and the accuracies on dev and on test, each `[2·heads]`.
        directions: names of the two directions.
        names: names of the attention heads.
    """
    heads = [names.head(index) for index in range(len(names))] * 2
    direction = np.repeat(directions, len(names))
    frames = [
        pd.DataFrame({kind: group, "n": n, "direction": direction, "head": heads, "dev": dev, "test": test})
        for group, (n, dev, test) in groups.items()
    ]
    return Table(pd.concat(frames, ignore_index=True), dict.fromkeys(("dev", "test"), "fraction"))


_CELLS = 1 << 22
"""Weights in memory at once in single precision, all heads of some words."""


def choose_ensemble(store: Store, arcs: Arcs, words: Flags, direction: int, most: int) -> tuple[tuple[int, ...], int]:
    """Choose heads whose averaged attention finds more syntactic heads than each alone (Limisiewicz et al. 2020, §4.2).

    The attention head that helps most is added until none helps or there are `most`.

    Args:
        store: stored attention of the sentences.
        arcs: gold arcs of the sentences.
        words: bool `[words]`, words of the relation.
        direction: 0 reads the attention from a word to its head, 1 from the head to the word.
        most: largest number of attention heads.

    Returns:
        Indices of the chosen attention heads, counted layer by layer, in the order of the choice; and the number of
        `words` whose gold head has the greatest weight.
    """
    chosen: tuple[int, ...] = ()
    reached = -1
    while len(chosen) < most:
        counts: Tensor | int = 0
        for rows, gold in _chunks(store, arcs, words, direction):
            together = rows + sum(rows[:, head, None] for head in chosen)
            counts = counts + _right(together, gold[:, None]).sum(0)
        assert isinstance(counts, Tensor)
        counts[list(chosen)] = -1
        best = int(counts.argmax())
        if int(counts[best]) <= reached:
            break
        chosen, reached = (*chosen, best), int(counts[best])
    return chosen, reached


def ensemble_hits(store: Store, arcs: Arcs, words: Flags, direction: int, heads: Sequence[int]) -> Floats:
    """Return, for each word of a relation, 1.0 if the averaged attention of some heads finds its gold head.

    Args:
        store: stored attention of the sentences.
        arcs: gold arcs of the sentences.
        words: bool `[words]`, words of the relation.
        direction: 0 reads the attention from a word to its head, 1 from the head to the word.
        heads: indices of the attention heads, counted layer by layer.

    Returns:
        float64, one number for each True in `words`, in the order of the arcs.
    """
    chunks = _chunks(store, arcs, words, direction)
    found = np.zeros(int(words.sum()))
    found[_order(arcs, words)] = torch.cat([_right(rows[:, list(heads)].sum(1), gold) for rows, gold in chunks]).numpy()
    return found


def _right(weights: Tensor, gold: Tensor) -> Tensor:
    """Return True where the gold head `[...]` has the greatest weight of `[..., n]`; zeros predict nothing."""
    most, place = weights.max(-1)
    return (place + 1 == gold) & (most > 0)


def _order(arcs: Arcs, words: Flags) -> Integers:
    """Return positions of the relation's words, short sentences first, so that little is padded."""
    return np.argsort(arcs.length[words], kind="stable")


def _chunks(store: Store, arcs: Arcs, words: Flags, direction: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield weights between some words of the relation and all words, `[chunk, heads, n]`, and gold heads `[chunk]`.

    The word itself and the padding are minus infinity. A word without another one is its own prediction, and wrong.
    """
    places = np.flatnonzero(words)[_order(arcs, words)]
    heads = len(store.manifest.layers) * len(store.manifest.heads)
    start = 0
    while start < len(places):
        n = int(arcs.length[places[min(start + 512, len(places)) - 1]])
        some = places[start : start + min(max(_CELLS // (heads * n), 1), 512)]
        rows = torch.full((len(some), heads, int(arcs.length[some[-1]])), -torch.inf)
        for row, place in enumerate(some):
            word, length = int(arcs.word[place]), int(arcs.length[place])
            at = (..., word, slice(None)) if direction == 0 else (..., word)
            weights = store.read("attention", int(arcs.sentence[place]), at)
            rows[row, :, :length] = weights[..., 1:-1].flatten(0, 1)
            rows[row, :, word - 1] = -torch.inf
        yield rows, torch.from_numpy(arcs.head[some])
        start += len(some)


_EXAMPLES = 3
_WORDS = range(8, 19)
"""Words of an example sentence: enough to see something, few enough to read it."""


@dataclass(frozen=True)
class AttentionDrawing:
    """A sentence of the scored split whose attention is shown as a figure (Clark et al. 2019, Fig. 5).

    Attributes:
        head: name of the attention head, `layer-head`, both from 1.
        sentence: id of the sentence in the corpus.
        relation: relation of the coloured arcs; None colours all arcs.
        direction: direction of the coloured lines.
    """

    head: str
    sentence: str
    relation: str | None = None
    direction: Direction = "dependent→head"

    def __post_init__(self) -> None:
        check_values(self, **vars(self))


def check_drawing(wanted: AttentionDrawing, names: Names, split: DependencySplit, relations: Sequence[str]) -> None:
    """Raise a UserError if a drawing names an unknown attention head, sentence or relation."""
    if wanted.head not in [names.head(index) for index in range(len(names))]:
        raise UserError(
            f"--model.init_args.drawings: attention head {wanted.head!r} does not exist; heads are named layer-head, "
            f"from {names.head(0)} to {names.head(len(names) - 1)}."
        )
    if wanted.sentence not in split.ids:
        raise UserError(
            f"--model.init_args.drawings: sentence {wanted.sentence!r} is not in the scored split. Its ids look like "
            f"{split.ids[0]!r}; items.parquet has all of them."
        )
    if wanted.relation is not None and wanted.relation not in {*relations, ALL, PLAIN}:
        raise UserError(f"--model.init_args.drawings: relation {wanted.relation!r} is not in the corpus.")


def draw_sentence(
    wanted: AttentionDrawing, scored: Predictions, names: Names, split: DependencySplit
) -> AttentionLines:
    """Return a drawing of the attention of one head in one sentence, with the delimiters that the tokenizer writes.

    Args:
        wanted: head and sentence.
        scored: gold arcs of the split, which are coloured.
        names: names of the attention heads.
        split: the split with its stored attention.
    """
    item, arcs = split.ids.index(wanted.sentence), scored.arcs
    here = (arcs.sentence == item) & (arcs.head > 0)
    if wanted.relation is not None:
        here &= scored.groups.get(wanted.relation, np.zeros(len(arcs), dtype=np.bool_))
    ends = (arcs.word, arcs.head) if wanted.direction == DIRECTIONS[0] else (arcs.head, arcs.word)
    words = split.store.labels["words"][item].as_py()
    delimiters = split.store.manifest.delimiters
    first, last = 1 - delimiters["start"], len(words) + 1 + delimiters["end"]
    weights = split.store.read("attention", item)[names.place(wanted.head)].numpy().astype(np.float64)
    return AttentionLines(
        title=f"Head {wanted.head} (layer-head), {wanted.relation or 'all arcs'}, {wanted.direction}",
        words=tuple(["[start]", *words, "[end]"][first:last]),
        weights=weights[first:last, first:last],
        arcs=frozenset(zip(*((end[here] - first).tolist() for end in ends), strict=True)),
        from_label="attends",
        to_label="is attended to",
    )


def best_bars(best: pd.DataFrame) -> Bars:
    """Return a bar chart of a frame of `ChosenHeads.best_heads`, with the most frequent relations.

    Bars are the best head, the best fixed offset and, if there is one, the best head with random weights.
    """
    shown = _found(best).head(SHOWN)
    held_out = bool(shown["test"].notna().any())
    controls = {"best fixed offset": shown["offset"].tolist()}
    if shown["random_init"].notna().any():
        controls["best head, random weights"] = shown["random_init"].tolist()
    return Bars(
        title="Best single head per relation"
        + (", chosen on dev, scored on test" if held_out else ", chosen and scored on one split"),
        categories=tuple(shown["relation"] + " " + shown["head"]),
        series={"best head": shown["test" if held_out else "dev"].tolist(), **controls},
        label="accuracy (%)",
        intervals={"best head": (shown["low"].tolist(), shown["high"].tolist())},
        category_label="relation and its best head (layer-head)",
        unit="fraction",
    )


def head_map(
    title: str,
    values: Floats,
    names: Names | None = None,
    marked: tuple[int, int] | None = None,
    value_label: str = "accuracy (%)",
    unit: Unit = "fraction",
) -> HeatMap:
    """Return a heat map of one number for each attention head.

    Args:
        title: title of the figure.
        values: the numbers, `[layers, heads]`.
        names: names of the heads; by default the values are of all heads of an encoder.
        marked: 0-based row and column of a framed cell.
        value_label: label of the colours.
        unit: unit of the values.
    """
    layers, heads = (names.layers, names.heads) if names else map(range, values.shape)
    return HeatMap(
        title=title,
        values=values,
        row_labels=[str(number + 1) for number in layers],
        column_labels=[str(number + 1) for number in heads],
        row_label="layer",
        column_label="head",
        value_label=value_label,
        unit=unit,
        marked=marked,
    )


def _found(best: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of relations that some head or offset finds: no word can attend to ROOT."""
    return best[(best["dev"].fillna(0.0) > 0) | (best["offset"] > 0)]


class SingleHeads(DependencyExperiment):
    """Accuracy of every attention head of every layer, in both directions, per relation and overall, from one pass.

    The best head of each relation is chosen on dev and scored on test, with a 95 % interval over sentences and the
    p-value of a permutation test against the best of all heads. Beside it stand the best fixed offset and the best head
    of an encoder with random weights (the datamodule's `random_init`). Nothing is trained: run it with `python train.py
    test`.

    Args:
        mode: `held_out` chooses on dev and scores on test; `paper` chooses and scores on dev, as the original does.
        permutations: number of permutations under `p`.
        ensemble: largest number of heads in an ensemble (Limisiewicz et al. 2020); 1 makes no ensembles.
        minimum: least number of words on dev of a relation that counts for ensembles and for the roles of heads.
        maps: number of relations, the most frequent first, whose accuracies are shown as maps of layers and heads.
        drawings: sentences whose attention is shown; by default one for the best head of each of three relations.
        seed: seed of bootstrap and permutations.
        relations: relations in tables and figures, in this order, beside all words; by default all of them. The roles
            of heads always count all relations.
    """

    experiment = "heads"
    supports_random_init = True

    def __init__(
        self,
        mode: Literal["held_out", "paper"] = "held_out",
        permutations: int = 1000,
        ensemble: int = 4,
        minimum: int = 50,
        maps: int = 12,
        drawings: tuple[AttentionDrawing, ...] = (),
        seed: int = 0,
        relations: tuple[str, ...] = (),
    ) -> None:
        super().__init__(seed)
        check_values(self, mode=mode)
        self.mode = mode
        self._scored: Split = "dev" if mode == "paper" else "test"
        check_numbers(self, least=1, permutations=permutations, ensemble=ensemble, minimum=minimum)
        check_numbers(self, least=0, maps=maps)
        self.permutations, self.ensemble, self.minimum, self.maps = permutations, ensemble, minimum, maps
        self.drawings, self.relations = drawings, relations
        self._gathered, self._peaks = nn.ModuleDict(), nn.ModuleDict()

    def prepare(self) -> None:
        data = self.data
        names = Names(data.layers, data.heads)
        # Both directions of every head; for the given encoder also spanning trees.
        columns: dict[EncoderOf, dict[str, int | None]] = {
            "given": {"heads": 2 * len(names), "in_trees": len(names)},
            "random_init": {"heads": 2 * len(names)},
        }
        for encoder, widths in columns.items():
            self._peaks[encoder] = RowPeaks(len(data.layers), len(data.heads))
            for split in STAGES["test"]:
                self._gathered[split_key(split, encoder)] = ArcRows(**widths)
        check_relations(self.relations, data.relations)
        for split in dict.fromkeys(("dev", self._scored)):
            if not data.splits[split].arcs:
                raise UserError(
                    f"{data.files()[split]}: no word has another word as its syntactic head, so no arc can be scored. "
                    "Give --data.init_args.corpus a treebank with arcs."
                )
        for wanted in self.drawings:
            check_drawing(wanted, names, data.splits[self._scored], data.relations)

    def update(self, batch: AttentionBatch) -> None:
        predicted = {"heads": most_attended(batch.attention, batch.lengths).flatten(2)}
        if batch.encoder == "given":
            predicted["in_trees"] = gold_in_trees(batch.attention, batch.heads, batch.punctuation, batch.lengths)
        if batch.split == "dev":
            self._peaks[batch.encoder].update(batch.attention, batch.lengths)  # type: ignore[operator]
        self._gathered[split_key(batch.split, batch.encoder)].add(batch, **predicted)  # type: ignore[operator]

    def outcome(self) -> Result | None:
        found: dict[str, Predictions] = {}
        trees: dict[str, tuple[Integers, Integers]] = {}
        for name, metric in self._gathered.items():
            arcs, predicted = metric.arcs()  # type: ignore[operator]
            arcs = self._within_reach(arcs, name)
            found[name] = Predictions(arcs, self.data.relations, predicted["heads"])
            if "in_trees" in predicted:
                trees[name] = tree_counts(arcs, predicted["in_trees"])
        confidence: dict[str, Floats] = {
            encoder: metric.compute().cpu().numpy()  # type: ignore[operator]
            for encoder, metric in self._peaks.items()
        }
        for metric in self._peaks.values():
            metric.reset()  # type: ignore[operator]
        if not self.trainer.is_global_zero:
            return None  # the first process computes the statistics and writes them
        names = Names(self.data.layers, self.data.heads)
        encoders: tuple[EncoderOf, EncoderOf] = ("given", "random_init")
        given, random = (
            ChosenHeads(found[split_key("dev", of)], found[split_key(self._scored, of)], names, self.seed)
            for of in encoders
        )
        control = random if len(random.dev.arcs) else None
        dev, scored, split = given.dev, given.scored, self.data.splits[self._scored]
        best = rows_of(given.best_heads(control, self.permutations), self.relations)
        tree_table, scores = _trees(trees["dev"], trees[self._scored], given)
        role_table, shares = given.roles(confidence["given"], self.minimum)
        tables = {
            "best_heads": best,
            "best_heads_by_length": rows_of(given.by_length(), self.relations),
            "heads": rows_of(given.all_heads(), self.relations),
            "roles": role_table,
            "trees": tree_table,
        }
        headline = ["heads.uas", "offset.uas"]
        hits = scored.found(dev.best(PLAIN))
        scores = attachment_scores(scored.arcs, *hits, prefix="heads.", seed=self.seed) | scores
        if control is not None:
            by_random = control.scored.found(control.dev.best(PLAIN))
            scores |= attachment_scores(control.scored.arcs, *by_random, prefix="random_init.", seed=self.seed)
            headline.append("random_init.uas")
            tables["random_init.roles"], _ = control.roles(confidence["random_init"], self.minimum)
        if self.ensemble > 1:
            tables["ensembles"] = self._ensembles(given, split)
        items = sentence_scores(scored.arcs, *hits)
        items.insert(1, "id", [split.ids[index] for index in items["sentence"]])
        drawings = self.drawings or given.examples(best.frame, split, self.minimum)
        return Result(
            experiment=self.experiment,
            scores=scores | shares | baseline_scores(dev.arcs, scored.arcs, len(self.data.relations)),
            tables=tables,
            figures={
                **({"best_heads": best_bars(best.frame)} if len(_found(best.frame)) else {}),
                **given.maps(best.frame, self.maps),
                **{
                    f"attention_{place}_{one.head}": draw_sentence(one, scored, names, split)
                    for place, one in enumerate(drawings, 1)
                },
            },
            audit={
                "mode": self.mode,
                "permutations": self.permutations,
                # Behind a causal mask, or where a weight is below the least number that the store keeps.
                "predictions_without_weight": {split: found[split].without_weight for split in STAGES["test"]},
            },
            items=items,
            headline=headline,
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
        rows = []
        store = self.data.splits["dev"].store
        for name in self.relations or scored.groups:
            total = int(np.count_nonzero(dev.groups.get(name, 0)))
            if name in (ALL, PLAIN) or name not in scored.groups or total < self.minimum:
                continue
            for direction, way in enumerate(DIRECTIONS):
                heads, found = choose_ensemble(store, dev.arcs, dev.groups[name], direction, self.ensemble)
                right = ensemble_hits(split.store, scored.arcs, scored.groups[name], direction, heads)
                _, unit = np.unique(scored.arcs.sentence[scored.groups[name]], return_inverse=True)
                found_of_units = np.bincount(unit, weights=right)
                low, high = bootstrap_ratio(found_of_units, np.bincount(unit), seed=self.seed).interval
                single = scored.accuracy(name, heads[0] + direction * len(names))
                together = " + ".join(names.head(head) for head in heads)
                test = np.nan if given.split == "dev" else float(right.mean())
                rows.append((name, len(right), way, together, found / total, test, float(low), float(high), single))
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
    items = pd.DataFrame({"found": scored[0][:, int(dev[0].sum(axis=0).argmax())], "edges": scored[1]})
    best = ratio_scores(items, {"heads.tree_uuas": ("found", "edges")}, seed=given.seed)
    return Table(frame, dict.fromkeys(("dev", "test"), "fraction")), best
