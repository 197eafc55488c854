"""Every single head as a predictor of dependencies (Clark et al. 2019, §4.2), with intervals, controls and tests."""

import re
from collections.abc import Iterator, Mapping, Sequence
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
from heads.experiment import (
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
"""What makes a head positional, and a head syntactic (Voita et al. 2019, §5)."""

_OFFSETS = sorted(OFFSETS, key=lambda k: (abs(k), -k))
"""The fixed offsets, nearest first, ahead before behind."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """One split: its gold arcs, and what every predictor says of every word.

    Attributes:
        arcs: gold arcs.
        relations: names of their labels.
        predicted: `[words, K]` positions, predictors in the order way, layer, head.
    """

    arcs: Arcs
    relations: Sequence[str]
    predicted: NDArray[np.integer]

    @cached_property
    def groups(self) -> Mapping[str, Flags]:
        """Words of each relation that occurs, and of all."""
        return groups_of(self.arcs, self.relations)

    @cached_property
    def counts(self) -> Mapping[str, Integers]:
        """Hits of every predictor `[K]` in each group."""
        return dict(zip(self.groups, hit_counts(self.arcs, self.predicted, self.groups), strict=True))

    @cached_property
    def by_offset(self) -> "Predictions":
        """The fixed offsets as predictors, in the order of `_OFFSETS`."""
        return Predictions(self.arcs, self.relations, np.stack([offset_heads(self.arcs, k) for k in _OFFSETS], axis=1))

    @property
    def without_weight(self) -> int:
        """Predictions of nothing, because no other word has any weight; of words that are not alone in a sentence."""
        return int(np.count_nonzero(self.predicted[self.arcs.length > 1] < 0))

    def found(self, predictor: int) -> tuple[Floats, Floats]:
        """Words `[words]` whose head one predictor names, and whose edge; see `attached` and `edges_found`."""
        column = self.predicted[:, predictor].astype(np.int64)
        return attached(self.arcs, column), edges_found(self.arcs, column)

    def best(self, group: str) -> int:
        """The predictor with most hits in a group, the first of equals; that of all words if the group is not here."""
        return int(self.counts.get(group, self.counts[PLAIN]).argmax())

    def accuracies(self, group: str) -> Floats:
        """Share of the group's words whose head each predictor names, `[K]`; nan if the group is not here."""
        if group not in self.groups:
            return np.full(self.predicted.shape[1], np.nan)
        shares: Floats = self.counts[group] / np.count_nonzero(self.groups[group])
        return shares

    def accuracy(self, group: str, predictor: int) -> float:
        """That of one predictor."""
        return float(self.accuracies(group)[predictor])


@dataclass(frozen=True)
class Names:
    """How the heads of a store are called, which holds these layers and heads of each, counted from 0."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]

    def head(self, index: int) -> str:
        """`layer-head`, from 1, of a head counted layer by layer."""
        layer, head = divmod(index, len(self.heads))
        return f"{self.layers[layer] + 1}-{self.heads[head] + 1}"

    def place(self, head: str) -> tuple[int, int]:
        """Row and column of `layer-head` among the layers and heads of the store."""
        layer, number = (int(part) - 1 for part in head.split("-"))
        return self.layers.index(layer), self.heads.index(number)

    def __len__(self) -> int:
        return len(self.layers) * len(self.heads)

    def split(self, predictor: int) -> tuple[int, int]:
        """Direction and head of a predictor."""
        return divmod(predictor, len(self))


def best_heads(
    dev: Predictions,
    scored: Predictions,
    random_init: tuple[Predictions, Predictions] | None,
    names: Names,
    *,
    permutations: int,
    seed: int,
) -> Table:
    """`relation, n, head, direction, dev, test, low, high, offset, best_offset, random_init, p` of each group.

    The best predictor is chosen on dev; n, interval and p-value are those of the scored split. Where that is dev
    itself, as in the original, the interval belongs to `dev`, and `test` is nan. `random_init` are dev and the scored
    split through an encoder without training.
    """
    same = scored is dev
    chosen = [dev.best(group) for group in scored.groups]
    low, high = _estimates(scored, chosen, seed).interval
    rows = []
    for place, (group, k) in enumerate(zip(scored.groups, chosen, strict=True)):
        direction, head = names.split(k)
        offset = dev.by_offset.best(group)
        rows.append(
            {
                "relation": group,
                "n": int(np.count_nonzero(scored.groups[group])),
                "head": names.head(head),
                "direction": DIRECTIONS[direction],
                "dev": dev.accuracy(group, k),
                "test": np.nan if same else scored.accuracy(group, k),
                "low": low[place],
                "high": high[place],
                "offset": scored.by_offset.accuracy(group, offset),
                "best_offset": _OFFSETS[offset],
                "random_init": random_init[1].accuracy(group, random_init[0].best(group)) if random_init else np.nan,
            }
        )
    frame = pd.DataFrame(rows)
    reached = [int(scored.counts[group][k]) for group, k in zip(scored.groups, chosen, strict=True)]
    frame["p"] = permutation_p(
        scored.arcs, scored.predicted, scored.groups, reached, permutations=permutations, seed=seed
    )
    shares = ("dev", "test", "offset", "random_init")
    split = "dev" if same else "test"
    answer = ["relation", "head", split, "offset", *(["random_init"] if random_init else []), "p"]
    return Table(frame, {"p": "p", **{name: "fraction" for name in shares}}, interval=split, answer=answer)


def _estimates(scored: Predictions, chosen: Sequence[int], seed: int) -> Estimate[Floats]:
    """Return the accuracy of the predictor that was chosen for each group, with intervals over sentences."""
    groups = scored.groups.values()
    hits = [words & (scored.predicted[:, k] == scored.arcs.head) for words, k in zip(groups, chosen, strict=True)]
    right, total = (np.stack([count(scored.arcs, words) for words in flags], axis=1) for flags in (hits, groups))
    return bootstrap_ratio(right, total, seed=seed)


def by_length(dev: Predictions, scored: Predictions, names: Names) -> Table:
    """Accuracy of the best heads and offsets by length of the arc, on the scored split; words under ROOT have none."""
    arcs = scored.arcs
    distance = np.where(arcs.head > 0, np.abs(arcs.head - arcs.word), 0)
    rows = []
    for group, words in scored.groups.items():
        k, offset = dev.best(group), dev.by_offset.best(group)
        direction, head = names.split(k)
        for name, (shortest, longest) in ARC_LENGTHS.items():
            inside = words & (distance >= shortest) & (distance <= longest)
            if n := int(np.count_nonzero(inside)):
                right = np.count_nonzero(scored.predicted[inside, k] == arcs.head[inside])
                fixed = np.count_nonzero(scored.by_offset.predicted[inside, offset] == arcs.head[inside])
                rows.append((group, name, n, names.head(head), DIRECTIONS[direction], right / n, fixed / n))
    frame = pd.DataFrame(rows, columns=["relation", "length", "n", "head", "direction", "accuracy", "offset"])
    return Table(frame, dict.fromkeys(("accuracy", "offset"), "fraction"))


def heads_table(
    kind: str, groups: Mapping[str, tuple[int, Floats, Floats | float]], directions: Sequence[str], names: Names
) -> Table:
    """`<kind>, n, direction, head, dev, test`, from n and the accuracies `[2·heads]` on dev and test of each group."""
    heads = [names.head(index) for index in range(len(names))] * 2
    direction = np.repeat(directions, len(names))
    frames = [
        pd.DataFrame({kind: group, "n": n, "direction": direction, "head": heads, "dev": dev, "test": test})
        for group, (n, dev, test) in groups.items()
    ]
    return Table(pd.concat(frames, ignore_index=True), dict.fromkeys(("dev", "test"), "fraction"))


def all_heads(dev: Predictions, scored: Predictions, names: Names) -> Table:
    """Every head, direction and relation: `relation, n, direction, head, layer, number, dev, test`."""
    groups = {
        group: (
            int(np.count_nonzero(words)),
            dev.accuracies(group),
            np.nan if scored is dev else scored.accuracies(group),
        )
        for group, words in scored.groups.items()
    }
    table = heads_table("relation", groups, DIRECTIONS, names)
    for place, part in enumerate(("layer", "number")):
        table.frame.insert(4 + place, part, table.frame["head"].str.split("-").str[place].astype(int))
    return table


def roles(
    dev: Predictions, scored: Predictions, confidence: Floats, names: Names, *, minimum: int, seed: int
) -> tuple[Table, dict[str, Estimate]]:
    """What kind of head each is (Voita et al. 2019, §5), on dev, and how many of each kind there are.

    A head is positional if it looks at one offset for at least 90 % of the words, and syntactic if on some relation of
    at least `minimum` words it is 10 points better than the best fixed offset, in either direction. Relations of
    punctuation, and those to ROOT, which no head can find, do not count.

    Returns:
        `head, confidence, offset, offset_share, positional, relation, direction, margin, syntactic, accuracy, low,
        high, fixed_offset`, the confidence that of `RowPeaks` `[layers, heads]`, the relation that of the greatest
        margin; on the scored split the head's accuracy on that relation, and the accuracy of its best fixed offset; and
        `positional_heads`, `syntactic_heads` as shares of all heads.
    """
    offset, share = offset_shares(dev.arcs, dev.predicted[:, : len(names)])
    margins = {
        name: dev.accuracies(name) - dev.by_offset.accuracy(name, dev.by_offset.best(name))
        for name, words in dev.groups.items()
        if name not in (ALL, PLAIN)
        and np.count_nonzero(words & ~dev.arcs.punctuation) >= minimum
        and dev.arcs.head[words].any()
    }
    rows = []
    for head in range(len(names)):
        of_head = [
            (float(above[head + way * len(names)]), name, direction)
            for name, above in margins.items()
            for way, direction in enumerate(DIRECTIONS)
        ]
        margin, relation, direction = max(of_head, default=(float("nan"), "", ""))
        rows.append((names.head(head), share[head] >= POSITIONAL, relation, direction, margin, margin >= MARGIN))
    table = pd.DataFrame(rows, columns=["head", "positional", "relation", "direction", "margin", "syntactic"])
    table.insert(1, "confidence", confidence.flatten())
    table.insert(2, "offset", offset)
    table.insert(3, "offset_share", share)
    ways = [DIRECTIONS.index(way) if way else 0 for way in table["direction"]]
    predictors = [way * len(names) + head for head, way in enumerate(ways)]
    numbers = [_on_relation(dev, scored, *one, seed) for one in zip(table["relation"], predictors, strict=True)]
    for place, column in enumerate(("accuracy", "low", "high", "fixed_offset")):
        table[column] = [float(row[place]) for row in numbers]
    shares = {
        f"{kind}_heads": Estimate(float(table[kind].mean()), unit="fraction") for kind in ("positional", "syntactic")
    }
    columns = ("confidence", "offset_share", "margin", "accuracy", "fixed_offset")
    return Table(table, dict.fromkeys(columns, "fraction"), interval="accuracy"), shares


def _on_relation(
    dev: Predictions, scored: Predictions, group: str, predictor: int, seed: int
) -> tuple[float, float, float, float]:
    """Accuracy of a predictor on a relation of the scored split, its interval, and that of the best fixed offset."""
    if group not in scored.groups:
        return (float("nan"),) * 4
    words = scored.groups[group]
    right = count(scored.arcs, words & (scored.predicted[:, predictor] == scored.arcs.head))
    found = bootstrap_ratio(right, count(scored.arcs, words), seed=seed)
    fixed = scored.by_offset.accuracy(group, dev.by_offset.best(group))
    return found.value, *found.interval, fixed


_CELLS = 1 << 22
"""Weights held at once in single precision, all heads of some words."""


def choose_ensemble(store: Store, arcs: Arcs, words: Flags, direction: int, most: int) -> tuple[tuple[int, ...], int]:
    """Heads whose averaged attention finds more together than each alone (Limisiewicz et al. 2020, §4.2).

    The head that helps most is added, again and again, until none helps or there are `most`.

    Returns:
        Indices into the heads of the store, layer by layer, in the order in which they were chosen; and how many of the
        `words` have the gold head as the greatest weight.
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
    """`[words of the relation]`, 1 where the ensemble finds the gold head, in the order of the arcs."""
    chunks = _chunks(store, arcs, words, direction)
    found = np.zeros(int(words.sum()))
    found[_order(arcs, words)] = torch.cat([_right(rows[:, list(heads)].sum(1), gold) for rows, gold in chunks]).numpy()
    return found


def _right(weights: Tensor, gold: Tensor) -> Tensor:
    """Whether the greatest weight `[..., n]` is the gold head's `[...]`; where all are zero nothing is predicted."""
    most, place = weights.max(-1)
    return (place + 1 == gold) & (most > 0)


def _order(arcs: Arcs, words: Flags) -> Integers:
    """Positions of the relation's words, those of short sentences first, so that little is padded."""
    return np.argsort(arcs.length[words], kind="stable")


def _chunks(store: Store, arcs: Arcs, words: Flags, direction: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Weights between some words of the relation and all words, `[chunk, heads, n]`, and their gold heads `[chunk]`.

    The word itself and the padding are minus infinity. A word without another one is its own prediction, and wrong.
    """
    places = np.flatnonzero(words)[_order(arcs, words)]
    heads = len(store.manifest.layers) * len(store.manifest.heads)
    start = 0
    while start < len(places):
        n = int(arcs.length[places[min(start + 512, len(places)) - 1]])
        stop = min(start + max(_CELLS // (heads * n), 1), start + 512, len(places))
        rows = torch.full((stop - start, heads, int(arcs.length[places[stop - 1]])), -torch.inf)
        for row, place in enumerate(places[start:stop]):
            word, length = int(arcs.word[place]), int(arcs.length[place])
            at = (..., word, slice(None)) if direction == 0 else (..., word)
            weights = store.read("attention", int(arcs.sentence[place]), at)
            rows[row, :, :length] = weights[..., 1:-1].flatten(0, 1)
            rows[row, :, word - 1] = -torch.inf
        yield rows, torch.from_numpy(arcs.head[places[start:stop]])
        start = stop


_EXAMPLES = 3
_WORDS = range(8, 19)
"""Words of a sentence that is drawn by itself: enough to see something, few enough to read it."""


@dataclass(frozen=True)
class Drawing:
    """A sentence of the scored split whose attention is drawn (Clark et al. 2019, Fig. 5).

    Args:
        head: `layer-head`, from 1.
        sentence: its id in the corpus.
        relation: whose arcs are coloured; None colours all.
        direction: the coloured lines run from the dependent to its head, or back.
    """

    head: str
    sentence: str
    relation: str | None = None
    direction: Direction = "dependent→head"

    def __post_init__(self) -> None:
        check_values(self, **vars(self))


def best_bars(best: pd.DataFrame) -> Bars:
    """The most frequent relations of a table `best_heads`, beside the best offset and the best random head."""
    shown = _found(best).head(SHOWN)
    held_out = bool(shown["test"].notna().any())
    controls = {"best fixed offset": shown["offset"].tolist()}
    if shown["random_init"].notna().any():
        controls["best head, random weights"] = shown["random_init"].tolist()
    return Bars(
        title="Best single head per relation"
        + (", chosen on dev, scored on test" if held_out else ", chosen and scored on one split"),
        categories=tuple(f"{name} {head}" for name, head in zip(shown["relation"], shown["head"], strict=True)),
        series={"best head": shown["test" if held_out else "dev"].tolist(), **controls},
        label="accuracy (%)",
        intervals={"best head": (shown["low"].tolist(), shown["high"].tolist())},
        category_label="relation and its best head (layer-head)",
        unit="fraction",
    )


def head_map(
    title: str,
    values: Floats,
    names: Names,
    marked: tuple[int, int] | None = None,
    value_label: str = "accuracy (%)",
    unit: Unit = "fraction",
) -> HeatMap:
    """Numbers of all heads `[layers, heads]` as colours, with a frame around one of them."""
    return HeatMap(
        title=title,
        values=values,
        row_labels=[str(number + 1) for number in names.layers],
        column_labels=[str(number + 1) for number in names.heads],
        row_label="layer",
        column_label="head",
        value_label=value_label,
        unit=unit,
        marked=marked,
    )


def _found(best: pd.DataFrame) -> pd.DataFrame:
    """Relations that some head or offset finds: no word can attend to ROOT."""
    return best[(best["dev"].fillna(0.0) > 0) | (best["offset"] > 0)]


def relation_maps(scored: Predictions, best: pd.DataFrame, names: Names, most: int) -> Mapping[str, HeatMap]:
    """Accuracy of every head on the most frequent relations, in the direction of the best head, which is marked.

    All maps have one scale of colours.
    """
    figures: dict[str, HeatMap] = {}
    size = len(names.layers), len(names.heads)
    for _, row in _found(best).head(most).iterrows():
        direction = DIRECTIONS.index(row["direction"])
        accuracy = scored.accuracies(row["relation"]).reshape(2, *size)[direction]
        stem = "heads_" + re.sub("[^A-Za-z0-9]+", "_", row["relation"]).strip("_")
        if stem in figures:  # labels that differ in other letters alone
            stem += f"_{len(figures) + 1}"
        figures[stem] = head_map(
            f"Accuracy of each head: {row['relation']}, {row['direction']}", accuracy, names, names.place(row["head"])
        )
    return on_one_scale(figures)


def examples(
    scored: Predictions, best: pd.DataFrame, names: Names, split: DependencySplit, minimum: int
) -> tuple[Drawing, ...]:
    """For the heads furthest above the best offset, the sentence in which they find most arcs of their relation.

    Relations of less than `minimum` words are left out.
    """
    relations = best[~best["relation"].isin([ALL, PLAIN]) & (best["n"] >= minimum)]
    accuracy = relations["test"].fillna(relations["dev"])
    order = (accuracy - relations["offset"]).sort_values(ascending=False, kind="stable").index
    found: list[Drawing] = []
    for _, row in relations.loc[order].iterrows():
        words = scored.groups[row["relation"]]
        layer, head = names.place(row["head"])
        direction = DIRECTIONS.index(row["direction"])
        k = (direction * len(names.layers) + layer) * len(names.heads) + head
        right = words & (scored.predicted[:, k] == scored.arcs.head)
        right &= np.isin(scored.arcs.length, _WORDS)
        if len(found) < _EXAMPLES and right.any():
            hits = np.bincount(scored.arcs.sentence[right])
            found.append(Drawing(row["head"], split.ids[int(hits.argmax())], row["relation"], DIRECTIONS[direction]))
    return tuple(found)


def check_drawing(wanted: Drawing, names: Names, split: DependencySplit, relations: Sequence[str]) -> None:
    """Refuse a head, sentence or relation that is not there."""
    if wanted.head not in [names.head(index) for index in range(len(names))]:
        raise UserError(
            f"drawings: there is no head {wanted.head!r}; heads are called layer-head, from {names.head(0)} to "
            f"{names.head(len(names) - 1)}."
        )
    if wanted.sentence not in split.ids:
        raise UserError(
            f"drawings: the split that is scored has no sentence {wanted.sentence!r}; they are called as "
            f"{split.ids[0]!r}, see items.parquet."
        )
    if wanted.relation is not None and wanted.relation not in {*relations, ALL, PLAIN}:
        raise UserError(f"drawings: there is no relation {wanted.relation!r} in the corpus.")


def draw_sentence(wanted: Drawing, scored: Predictions, names: Names, split: DependencySplit) -> AttentionLines:
    """One head's attention in one sentence, delimiters included where the tokenizer writes them."""
    item = split.ids.index(wanted.sentence)
    arcs = scored.arcs
    here = (arcs.sentence == item) & (arcs.head > 0)
    if wanted.relation is not None:
        here &= scored.groups.get(wanted.relation, np.zeros(len(arcs), dtype=np.bool_))
    pairs = [(int(word), int(gold)) for word, gold in zip(arcs.word[here], arcs.head[here], strict=True)]
    if wanted.direction == DIRECTIONS[1]:
        pairs = [(gold, word) for word, gold in pairs]
    words = split.store.labels["words"][item].as_py()
    delimiters = split.store.manifest.delimiters
    first, last = 1 - delimiters["start"], len(words) + 1 + delimiters["end"]
    weights = split.store.read("attention", item)[names.place(wanted.head)].numpy().astype(np.float64)
    return AttentionLines(
        title=f"Head {wanted.head} (layer-head), {wanted.relation or 'all arcs'}, {wanted.direction}",
        words=tuple(["[start]", *words, "[end]"][first:last]),
        weights=weights[first:last, first:last],
        arcs=frozenset((start - first, end - first) for start, end in pairs),
        from_label="attends",
        to_label="is attended to",
    )


class SingleHeads(DependencyExperiment):
    """Accuracy of every head of every layer, in both directions, per relation and overall, from one pass.

    The best head of each relation is chosen on dev and scored on test. It stands beside the best fixed offset, the
    best head of an encoder with random weights (the datamodule's `random_init`), its 95 % interval over sentences,
    and the p-value of a permutation test against the best of all heads. Nothing is trained: run it with
    `python train.py test`.

    Args:
        mode: `held_out` chooses on dev and scores on test; `paper` chooses and scores on dev, as the original does.
        permutations: of the test behind `p`.
        ensemble: most heads of an ensemble (Limisiewicz et al. 2020); 1 makes none.
        minimum: words of a relation on dev that make it count for ensembles and for the roles of heads.
        maps: relations whose accuracies are drawn as a map of layers and heads: the most frequent ones.
        drawings: sentences whose attention is drawn; by default one each for the best heads of three relations.
        seed: of bootstrap and permutations.
        relations: relations in tables and figures, in this order, beside all words; by default all of them. The roles
            of heads are always those among all.
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
        drawings: tuple[Drawing, ...] = (),
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
        # Both directions of every head; of the given encoder also its trees.
        columns: dict[EncoderOf, dict[str, int | None]] = {
            "given": {"heads": 2 * len(names), "in_trees": len(names)},
            "random_init": {"heads": 2 * len(names)},
        }
        self._gathered = nn.ModuleDict(
            {
                split_key(split, encoder): ArcRows(**widths)
                for encoder, widths in columns.items()
                for split in STAGES["test"]
            }
        )
        self._peaks = nn.ModuleDict({encoder: RowPeaks(len(data.layers), len(data.heads)) for encoder in columns})
        check_relations(self.relations, data.relations)
        for split in dict.fromkeys(("dev", self._scored)):
            if not data.splits[split].arcs:
                raise UserError(
                    f"{data.files()[split]}: no word has another word as its head, so there is nothing to find. Give "
                    f"--data.init_args.corpus a treebank with arcs."
                )
        for wanted in self.drawings:
            check_drawing(wanted, names, data.splits[self._scored], data.relations)

    def update(self, batch: AttentionBatch) -> None:
        predicted = {"heads": most_attended(batch.attention, batch.lengths).flatten(2)}
        if batch.encoder == "given":
            trees = gold_in_trees(batch.attention, batch.heads, batch.punctuation, batch.lengths)
            predicted["in_trees"] = trees
        if batch.split == "dev":
            self._peaks[batch.encoder].update(batch.attention, batch.lengths)  # type: ignore[operator]
        self._gathered[split_key(batch.split, batch.encoder)].add(batch, **predicted)  # type: ignore[operator]

    def outcome(self) -> Result | None:
        names = Names(self.data.layers, self.data.heads)
        parts: dict[str, tuple[Arcs, dict[str, NDArray[np.integer]]]] = {}
        for name, metric in self._gathered.items():
            arcs, predicted = metric.arcs()  # type: ignore[operator]
            parts[name] = self._within_reach(arcs, name), predicted
        confidence: dict[str, Floats] = {
            encoder: metric.compute().cpu().numpy()  # type: ignore[operator]
            for encoder, metric in self._peaks.items()
        }
        for metric in self._peaks.values():
            metric.reset()  # type: ignore[operator]
        if not self.trainer.is_global_zero:
            return None  # the statistics are the first process's, which writes them
        labels = self.data.relations
        found_by = {name: Predictions(arcs, labels, rows["heads"]) for name, (arcs, rows) in parts.items()}
        paper = self.mode == "paper"
        dev, test, scored = found_by["dev"], found_by["test"], found_by[self._scored]
        random_dev, random_scored = (found_by[split_key(split, "random_init")] for split in ("dev", self._scored))
        control = (random_dev, random_scored) if len(random_dev.arcs) else None
        split = self.data.splits[self._scored]
        every = best_heads(dev, scored, control, names, permutations=self.permutations, seed=self.seed)
        best = rows_of(every, self.relations)  # only now: the same numbers whatever is shown
        trees = [tree_counts(arcs, rows["in_trees"]) for arcs, rows in (parts["dev"], parts[self._scored])]
        found = scored.found(dev.best(PLAIN))
        tree_table, of_best_tree = _trees(trees[0], trees[1], names, paper=paper, seed=self.seed)
        scores = attachment_scores(scored.arcs, *found, prefix="heads.", seed=self.seed) | of_best_tree
        headline = ["heads.uas", "offset.uas"]
        role_table, shares = roles(dev, scored, confidence["given"], names, minimum=self.minimum, seed=self.seed)
        if control is not None:
            by_random = random_scored.found(random_dev.best(PLAIN))
            scores |= attachment_scores(random_scored.arcs, *by_random, prefix="random_init.", seed=self.seed)
            headline.append("random_init.uas")
        items = sentence_scores(scored.arcs, *found)
        items.insert(1, "id", [split.ids[index] for index in items["sentence"]])
        tables = {
            "best_heads": best,
            "best_heads_by_length": rows_of(by_length(dev, scored, names), self.relations),
            "heads": rows_of(all_heads(dev, scored, names), self.relations),
            "roles": role_table,
            "trees": tree_table,
        }
        drawings = self.drawings or examples(scored, best.frame, names, split, self.minimum)
        if control is not None:
            of_random = confidence["random_init"]
            tables["random_init.roles"], _ = roles(*control, of_random, names, minimum=self.minimum, seed=self.seed)
        if self.ensemble > 1:
            tables["ensembles"] = self._ensembles(dev, scored, names, split)
        return Result(
            experiment=self.experiment,
            scores=scores | shares | baseline_scores(dev.arcs, scored.arcs, len(labels)),
            tables=tables,
            figures={
                **({"best_heads": best_bars(best.frame)} if len(_found(best.frame)) else {}),
                **relation_maps(scored, best.frame, names, self.maps),
                **{
                    f"attention_{place}_{one.head}": draw_sentence(one, scored, names, split)
                    for place, one in enumerate(drawings, 1)
                },
            },
            audit={
                "mode": self.mode,
                "permutations": self.permutations,
                # Behind a causal mask, or where a weight is below what the store keeps.
                "predictions_without_weight": {"dev": dev.without_weight, "test": test.without_weight},
            },
            items=items,
            headline=headline,
        )

    def _within_reach(self, arcs: Arcs, name: str) -> Arcs:
        """Arcs with what the encoder may attend to from each word, so that baselines are of no more than that."""
        splits = {split_key(split, "given"): data for split, data in self.data.splits.items()}
        splits |= {split_key(split, "random_init"): data for split, data in self.data.random_splits.items()}
        if name not in splits or (reach := splits[name].reach) is None:
            return arcs
        before = np.cumsum(splits[name].lengths) - splits[name].lengths  # words of the sentences before
        return replace(arcs, reach=reach[before[arcs.sentence] + arcs.word - 1])

    def _ensembles(self, dev: Predictions, scored: Predictions, names: Names, split: DependencySplit) -> Table:
        """`relation, n, direction, heads, dev, test, low, high, single`: greedy on dev; `single` is the first alone."""
        relations = [name for name in self.relations or scored.groups if name not in (ALL, PLAIN)]
        relations = [name for name in relations if name in scored.groups and name in dev.groups]
        rows = []
        store = self.data.splits["dev"].store
        for name in relations:
            total = int(np.count_nonzero(dev.groups[name]))
            if total < self.minimum:
                continue
            for direction, way in enumerate(DIRECTIONS):
                heads, found = choose_ensemble(store, dev.arcs, dev.groups[name], direction, self.ensemble)
                right = ensemble_hits(split.store, scored.arcs, scored.groups[name], direction, heads)
                low, high = _interval(scored.arcs.sentence[scored.groups[name]], right, self.seed)
                single = scored.accuracy(name, heads[0] + direction * len(names))
                together = " + ".join(names.head(head) for head in heads)
                test = float("nan") if scored is dev else float(right.mean())
                rows.append((name, len(right), way, together, found / total, test, low, high, single))
        columns = ["relation", "n", "direction", "heads", "dev", "test", "low", "high", "single"]
        interval = "dev" if scored is dev else "test"
        return Table(
            pd.DataFrame(rows, columns=columns), dict.fromkeys(("dev", "test", "single"), "fraction"), interval
        )


Trees = tuple[Integers, Integers]
"""Gold edges found `[sentences, heads]`, and those that count `[sentences]`."""


def _trees(dev: Trees, scored: Trees, names: Names, *, paper: bool, seed: int) -> tuple[Table, dict[str, Estimate]]:
    """UUAS of every head's maximum spanning trees, `head, dev, test`; and that of the head that is best on dev."""
    on_dev, on_scored = (found.sum(axis=0) / max(int(edges.sum()), 1) for found, edges in (dev, scored))
    test = np.nan if paper else on_scored
    frame = pd.DataFrame({"head": [names.head(k) for k in range(len(names))], "dev": on_dev, "test": test})
    items = pd.DataFrame({"found": scored[0][:, int(dev[0].sum(axis=0).argmax())], "edges": scored[1]})
    best = ratio_scores(items, {"heads.tree_uuas": ("found", "edges")}, seed=seed)
    return Table(frame, dict.fromkeys(("dev", "test"), "fraction")), best


def _interval(sentence: Integers, right: Floats, seed: int) -> tuple[float, float]:
    """95 % interval of the mean over words, bootstrapped over the sentences that have such words."""
    _, unit = np.unique(sentence, return_inverse=True)
    return bootstrap_ratio(np.bincount(unit, weights=right), np.bincount(unit), seed=seed).interval
