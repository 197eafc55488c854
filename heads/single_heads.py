"""Every single head as a predictor of dependencies (Clark et al. 2019, §4.2), with intervals, controls and tests."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from datamodules import AttentionBatch
from datamodules.base import STAGES
from datamodules.batch import EncoderOf, Split
from datamodules.dependency import DependencySplit
from heads.ensembles import choose, hits
from heads.experiment import (
    FRACTION,
    SHOWN,
    DependencyExperiment,
    ExperimentError,
    baseline_scores,
    check_relations,
    rows_of,
)
from metrics.attachment import (
    OFFSETS,
    Arcs,
    Flags,
    Floats,
    Integers,
    attached,
    attachment_scores,
    edges_found,
    offset_heads,
    sentence_scores,
)
from metrics.bootstrap import bootstrap_ratio
from metrics.heads import (
    ALL,
    DIRECTIONS,
    LENGTHS,
    PLAIN,
    Direction,
    RowPeaks,
    groups_of,
    hit_counts,
    most_attended,
    offset_shares,
    permutation_p,
)
from metrics.rows import ArcPredictions
from metrics.trees import gold_in_trees, tree_counts
from results import AttentionLines, Bars, Estimate, Figure, HeatMap, Result, Table, Unit, on_one_scale

P: Unit = "p"
POSITIONAL, MARGIN = 0.9, 0.1
"""What makes a head positional, and a head syntactic (Voita et al. 2019, §5)."""


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
        """The fixed offsets as predictors, nearest first, ahead before behind."""
        ordered = sorted(OFFSETS, key=lambda k: (abs(k), -k))
        return Predictions(self.arcs, self.relations, np.stack([offset_heads(self.arcs, k) for k in ordered], axis=1))

    @property
    def without_weight(self) -> int:
        """Predictions of nothing, because no other word has any weight; of words that are not alone in a sentence."""
        return int(np.count_nonzero(self.predicted[self.arcs.length > 1] < 0))

    def column(self, predictor: int) -> Integers:
        """What one predictor says of every word, `[words]`."""
        return self.predicted[:, predictor].astype(np.int64)

    def best(self, group: str) -> int:
        """The predictor with most hits in a group, the first of equals; that of all words if the group is not here."""
        return int(self.counts.get(group, self.counts[PLAIN]).argmax())

    def accuracy(self, group: str, predictor: int) -> float:
        """Share of the group's words whose head the predictor names; nan if the group is not here."""
        if group not in self.groups:
            return float("nan")
        return float(self.counts[group][predictor] / np.count_nonzero(self.groups[group]))


@dataclass(frozen=True)
class Names:
    """How the heads of a store are called.

    Attributes:
        layers: 0-based layers it holds.
        heads: 0-based heads of each.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]

    def head(self, index: int) -> str:
        """`layer-head`, from 1, of a head counted layer by layer."""
        layer, head = divmod(index, len(self.heads))
        return f"{self.layers[layer] + 1}-{self.heads[head] + 1}"

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
    """The best predictor of every group, chosen on dev, beside its controls on the split that is scored.

    Args:
        dev: what the choice is made on.
        scored: what accuracies, intervals and p-values are of; dev itself where the original is to be reproduced.
        random_init: dev and the scored split through an encoder without training; None where there is none.
        names: of the heads.
        permutations: of `permutation_p`.
        seed: of bootstrap and permutations.

    Returns:
        `relation, n, head, direction, dev, test, low, high, offset, best_offset, random_init, p`: n words on the scored
        split; the interval is that of the scored accuracy, which is `dev` (and `test` is nan) when the two are one.
    """
    same = scored is dev
    groups = list(scored.groups)
    chosen = [dev.best(group) for group in groups]
    low, high = _intervals(scored, chosen, seed)
    offsets = [dev.by_offset.best(group) for group in groups]
    ordered = sorted(OFFSETS, key=lambda k: (abs(k), -k))
    reached = [int(scored.counts[group][k]) for group, k in zip(groups, chosen, strict=True)]
    columns = {
        "relation": groups,
        "n": [int(np.count_nonzero(words)) for words in scored.groups.values()],
        "head": [names.head(names.split(k)[1]) for k in chosen],
        "direction": [DIRECTIONS[names.split(k)[0]] for k in chosen],
        "dev": [dev.accuracy(group, k) for group, k in zip(groups, chosen, strict=True)],
        "test": [float("nan") if same else scored.accuracy(group, k) for group, k in zip(groups, chosen, strict=True)],
        "low": low,
        "high": high,
        "offset": [scored.by_offset.accuracy(group, k) for group, k in zip(groups, offsets, strict=True)],
        "best_offset": [ordered[k] for k in offsets],
        "random_init": [
            float("nan") if random_init is None else random_init[1].accuracy(group, random_init[0].best(group))
            for group in groups
        ],
        "p": permutation_p(scored.arcs, scored.predicted, scored.groups, reached, permutations=permutations, seed=seed),
    }
    units = {**dict.fromkeys(("dev", "test", "offset", "random_init"), FRACTION), "p": P}
    return Table(pd.DataFrame(columns), units, interval="dev" if same else "test")


def _intervals(scored: Predictions, chosen: Sequence[int], seed: int) -> tuple[Floats, Floats]:
    sentence = np.cumsum(scored.arcs.word == 1) - 1
    sentences = int(sentence[-1]) + 1 if len(sentence) else 0

    def count(of_words: Flags) -> Floats:
        return np.bincount(sentence, weights=of_words, minlength=sentences).astype(np.float64)

    hits = [
        words & (scored.predicted[:, k] == scored.arcs.head)
        for words, k in zip(scored.groups.values(), chosen, strict=True)
    ]
    right = np.stack([count(column) for column in hits], axis=1)
    total = np.stack([count(words) for words in scored.groups.values()], axis=1)
    return bootstrap_ratio(right, total, seed=seed)


def by_length(dev: Predictions, scored: Predictions, names: Names) -> Table:
    """Accuracy of the best heads and of the best offsets by the length of the arc, on the scored split.

    Returns:
        `relation, length, n, head, direction, accuracy, offset`; words under ROOT have no arc.
    """
    arcs = scored.arcs
    distance = np.where(arcs.head > 0, np.abs(arcs.head - arcs.word), 0)
    rows = []
    for group, words in scored.groups.items():
        k, offset = dev.best(group), dev.by_offset.best(group)
        direction, head = names.split(k)
        for name, (shortest, longest) in LENGTHS.items():
            inside = words & (distance >= shortest) & (distance <= longest)
            if n := int(np.count_nonzero(inside)):
                right = np.count_nonzero(scored.predicted[inside, k] == arcs.head[inside])
                fixed = np.count_nonzero(scored.by_offset.predicted[inside, offset] == arcs.head[inside])
                rows.append((group, name, n, names.head(head), DIRECTIONS[direction], right / n, fixed / n))
    frame = pd.DataFrame(rows, columns=["relation", "length", "n", "head", "direction", "accuracy", "offset"])
    return Table(frame, dict.fromkeys(("accuracy", "offset"), FRACTION))


def all_heads(dev: Predictions, scored: Predictions, names: Names) -> Table:
    """Every head, direction and relation: `relation, n, direction, head, layer, number, dev, test`."""
    same = scored is dev
    frames = []
    for group, words in scored.groups.items():
        k = np.arange(2 * len(names))
        heads = [names.head(index) for index in range(len(names))] * 2
        frames.append(
            pd.DataFrame(
                {
                    "relation": group,
                    "n": int(np.count_nonzero(words)),
                    "direction": np.repeat(DIRECTIONS, len(names)),
                    "head": heads,
                    "layer": [int(head.partition("-")[0]) for head in heads],
                    "number": [int(head.partition("-")[2]) for head in heads],
                    "dev": [dev.accuracy(group, int(place)) for place in k],
                    "test": [float("nan") if same else scored.accuracy(group, int(place)) for place in k],
                }
            )
        )
    return Table(pd.concat(frames, ignore_index=True), dict.fromkeys(("dev", "test"), FRACTION))


def roles(dev: Predictions, confidence: Floats, names: Names, *, minimum: int) -> tuple[Table, dict[str, Estimate]]:
    """What kind of head each is (Voita et al. 2019, §5), on dev, and how many of each kind there are.

    A head is positional if it looks at one offset for at least 90 % of the words, and syntactic if on some relation of
    at least `minimum` words it is 10 points better than the best fixed offset, in either direction.

    Args:
        dev: what all is read off.
        confidence: `[layers, heads]` of `RowPeaks`.
        names: of the heads.
        minimum: words of a relation that counts.

    Returns:
        `head, confidence, offset, offset_share, positional, relation, direction, margin, syntactic`, where
        `relation` is that of the greatest margin; and `positional_heads`, `syntactic_heads` as shares of all heads.
    """
    offset, share = offset_shares(dev.arcs, dev.predicted[:, : len(names)])
    relations = [name for name in dev.groups if name not in (ALL, PLAIN)]
    relations = [name for name in relations if np.count_nonzero(dev.groups[name]) >= minimum]
    rows = []
    for head in range(len(names)):
        margins = [
            (dev.accuracy(name, k) - dev.by_offset.accuracy(name, dev.by_offset.best(name)), name, direction)
            for name in relations
            for direction, k in zip(DIRECTIONS, (head, head + len(names)), strict=True)
        ]
        margin, relation, direction = max(margins, default=(float("nan"), "", ""))
        rows.append((names.head(head), share[head] >= POSITIONAL, relation, direction, margin, margin >= MARGIN))
    table = pd.DataFrame(rows, columns=["head", "positional", "relation", "direction", "margin", "syntactic"])
    table.insert(1, "confidence", confidence.flatten())
    table.insert(2, "offset", offset)
    table.insert(3, "offset_share", share)
    shares = {
        f"{kind}_heads": Estimate(float(table[kind].mean()), unit="fraction") for kind in ("positional", "syntactic")
    }
    return Table(table, dict.fromkeys(("confidence", "offset_share", "margin"), FRACTION)), shares


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


def best_bars(best: pd.DataFrame) -> Bars:
    """The most frequent relations of a table `best_heads`, beside the best offset and the best random head."""
    shown = _found(best).head(SHOWN)
    held_out = bool(shown["test"].notna().any())
    controls = {"best fixed offset": shown["offset"].tolist()}
    if shown["random_init"].notna().any():
        controls["best head, random weights"] = shown["random_init"].tolist()
    return Bars(
        title="Best single head per relation" + (", chosen on dev" if held_out else ", chosen and scored on one split"),
        categories=tuple(f"{name} {head}" for name, head in zip(shown["relation"], shown["head"], strict=True)),
        series={"best head": shown["test" if held_out else "dev"].tolist(), **controls},
        label="accuracy (%)",
        intervals={"best head": (shown["low"].tolist(), shown["high"].tolist())},
        category_label="relation and its best head (layer-head)",
        unit="fraction",
    )


def head_map(title: str, accuracy: Floats, names: Names, marked: tuple[int, int]) -> HeatMap:
    """Accuracies of all heads `[layers, heads]`, with a frame around one of them."""
    return HeatMap(
        title=title,
        values=accuracy,
        row_labels=[str(number + 1) for number in names.layers],
        column_labels=[str(number + 1) for number in names.heads],
        row_label="layer",
        column_label="head",
        value_label="accuracy (%)",
        unit="fraction",
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
        counts = scored.counts[row["relation"]].reshape(2, *size)[direction]
        layer, head = (int(number) - 1 for number in row["head"].split("-"))
        stem = "heads_" + re.sub("[^A-Za-z0-9]+", "_", row["relation"]).strip("_")
        if stem in figures:  # labels that differ in other letters alone
            stem += f"_{len(figures) + 1}"
        place = names.layers.index(layer), names.heads.index(head)
        figures[stem] = head_map(f"{row['relation']}, {row['direction']}", counts / row["n"], names, place)
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
        layer, head = (int(number) - 1 for number in row["head"].split("-"))
        index = names.layers.index(layer) * len(names.heads) + names.heads.index(head)
        direction = DIRECTIONS.index(row["direction"])
        right = words & (scored.column(index + direction * len(names)) == scored.arcs.head)
        right &= np.isin(scored.arcs.length, _WORDS)
        if len(found) < _EXAMPLES and right.any():
            hits = np.bincount(scored.arcs.sentence[right])
            found.append(Drawing(row["head"], split.ids[int(hits.argmax())], row["relation"], DIRECTIONS[direction]))
    return tuple(found)


def check_drawing(wanted: Drawing, names: Names, split: DependencySplit, relations: Sequence[str]) -> None:
    """Refuse what cannot be drawn.

    Raises:
        ExperimentError: there is no such head, sentence or relation.
    """
    if wanted.head not in [names.head(index) for index in range(len(names))]:
        raise ExperimentError(
            f"drawings: there is no head {wanted.head!r}; heads are called layer-head, from {names.head(0)} to "
            f"{names.head(len(names) - 1)}."
        )
    if wanted.sentence not in split.ids:
        raise ExperimentError(
            f"drawings: the split that is scored has no sentence {wanted.sentence!r}; they are called as "
            f"{split.ids[0]!r}, see items.parquet."
        )
    if wanted.relation is not None and wanted.relation not in {*relations, ALL, PLAIN}:
        raise ExperimentError(f"drawings: there is no relation {wanted.relation!r} in the corpus.")


def draw_sentence(wanted: Drawing, scored: Predictions, names: Names, split: DependencySplit) -> AttentionLines:
    """One head's attention in one sentence, delimiters included where the tokenizer writes them."""
    layer, head = (int(number) - 1 for number in wanted.head.split("-"))
    place = names.layers.index(layer), names.heads.index(head)
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
    weights = split.store.read("attention", item)[place].numpy().astype(np.float64)
    gold_name = wanted.relation or "all arcs"
    return AttentionLines(
        title=f"Head {wanted.head} (layer-head), {gold_name}, {wanted.direction}",
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
    reads_random_init = True

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
        super().__init__()
        self.mode = mode
        self.permutations, self.ensemble, self.minimum, self.maps = permutations, ensemble, minimum, maps
        self.drawings, self.relations = drawings, relations
        self.seed = seed
        self._gathered, self._peaks = nn.ModuleDict(), nn.ModuleList()

    def prepare(self) -> None:
        """Make a metric for each of dev and test, and for each of the two with random weights."""
        data = self.attention
        size = len(data.layers), len(data.heads)
        heads = size[0] * size[1]
        # Both directions of every head; of the given encoder also its trees.
        columns: dict[EncoderOf, int] = {"given": 3 * heads, "random_init": 2 * heads}
        self._gathered = nn.ModuleDict(
            {_name(split, encoder): ArcPredictions(k) for encoder, k in columns.items() for split in STAGES["test"]}
        )
        self._peaks = nn.ModuleList([RowPeaks(*size)])  # of dev
        check_relations(self.relations, data.relations)
        for wanted in self.drawings:
            check_drawing(wanted, Names(data.layers, data.heads), data.splits[self._scored], data.relations)

    @property
    def _scored(self) -> Split:
        return "dev" if self.mode == "paper" else "test"

    def update(self, batch: AttentionBatch) -> None:
        """Gather what every head says of dev and of test, and what the heads with random weights say."""
        predicted = most_attended(batch.attention, batch.lengths).flatten(2)
        if batch.encoder == "given":
            trees = gold_in_trees(batch.attention, batch.heads, batch.punctuation, batch.lengths)
            predicted = torch.cat([predicted, trees], dim=2)
            if batch.split == "dev":
                self._peaks[0].update(batch.attention, batch.lengths)  # type: ignore[operator]
        self._gathered[_name(batch.split, batch.encoder)].update(  # type: ignore[operator]
            batch.index, batch.heads, batch.relations, batch.punctuation, batch.lengths, predicted
        )

    def outcome(self) -> Result | None:
        """Choose and score."""
        names = Names(self.data.layers, self.data.heads)
        parts = {name: metric.compute() for name, metric in self._gathered.items()}  # type: ignore[operator]
        confidence: Floats = self._peaks[0].compute().cpu().numpy()  # type: ignore[operator]
        for metric in (*self._gathered.values(), *self._peaks):
            metric.reset()
        if not self.trainer.is_global_zero:
            return None  # the statistics are the first process's, which writes them
        labels = self.data.relations
        found_by = {name: Predictions(arcs, labels, rows[:, : 2 * len(names)]) for name, (arcs, rows) in parts.items()}
        paper = self.mode == "paper"
        dev, test, scored = found_by["dev"], found_by["test"], found_by[self._scored]
        random_dev, random_scored = (found_by[_name(split, "random_init")] for split in ("dev", self._scored))
        control = (random_dev, random_scored) if len(random_dev.arcs) else None
        split = self.data.splits[self._scored]
        every = best_heads(dev, scored, control, names, permutations=self.permutations, seed=self.seed)
        best = rows_of(every, self.relations)  # only now: the same numbers whatever is shown
        trees = [tree_counts(arcs, rows[:, 2 * len(names) :]) for arcs, rows in (parts["dev"], parts[self._scored])]
        chosen = scored.column(dev.best(PLAIN))
        found = attached(scored.arcs, chosen), edges_found(scored.arcs, chosen)
        scores = attachment_scores(scored.arcs, *found, prefix="heads.", seed=self.seed)
        scores |= _best_tree(trees[0], trees[1], self.seed)
        role_table, shares = roles(dev, confidence, names, minimum=self.minimum)
        if control is not None:
            arcs, random_best = control[1].arcs, control[1].column(control[0].best(PLAIN))
            found_by_random = attached(arcs, random_best), edges_found(arcs, random_best)
            scores |= attachment_scores(arcs, *found_by_random, prefix="random_init.", seed=self.seed)
        items = sentence_scores(scored.arcs, *found)
        items.insert(1, "id", [split.ids[index] for index in items["sentence"]])
        tables = {
            "best_heads": best,
            "best_heads_by_length": rows_of(by_length(dev, scored, names), self.relations),
            "heads": rows_of(all_heads(dev, scored, names), self.relations),
            "roles": role_table,
            "trees": _tree_table(trees[0], trees[1], names, paper=paper),
        }
        if self.ensemble > 1:
            tables["ensembles"] = self._ensembles(dev, scored, names, split)
        return Result(
            experiment=self.experiment,
            scores=scores | shares | baseline_scores(dev.arcs, scored.arcs, len(labels)),
            tables=tables,
            figures={
                "best_heads": best_bars(best.frame),
                **relation_maps(scored, best.frame, names, self.maps),
                **self._drawn(scored, best.frame, names, split),
            },
            audit={
                "mode": self.mode,
                "permutations": self.permutations,
                # Behind a causal mask, or where a weight is below what the store keeps.
                "predictions_without_weight": {"dev": dev.without_weight, "test": test.without_weight},
            },
            items=items,
        )

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
                found = choose(store, dev.arcs, dev.groups[name], direction, self.ensemble)
                right = hits(split.store, scored.arcs, scored.groups[name], found)
                low, high = _interval(scored.arcs.sentence[scored.groups[name]], right, self.seed)
                single = scored.accuracy(name, found.heads[0] + direction * len(names))
                together = " + ".join(names.head(head) for head in found.heads)
                test = float("nan") if scored is dev else float(right.mean())
                rows.append((name, len(right), way, together, found.hits / total, test, low, high, single))
        columns = ["relation", "n", "direction", "heads", "dev", "test", "low", "high", "single"]
        units = dict.fromkeys(("dev", "test", "single"), FRACTION)
        return Table(pd.DataFrame(rows, columns=columns), units, interval="dev" if scored is dev else "test")

    def _drawn(
        self, scored: Predictions, best: pd.DataFrame, names: Names, split: DependencySplit
    ) -> Mapping[str, Figure]:
        wanted = self.drawings or examples(scored, best, names, split, self.minimum)
        return {
            f"attention_{place}_{one.head}": draw_sentence(one, scored, names, split)
            for place, one in enumerate(wanted, 1)
        }


def _name(split: Split, encoder: EncoderOf) -> str:
    """What the predictions of the heads of an encoder on a split are kept under."""
    return split if encoder == "given" else f"{split}_{encoder}"


Trees = tuple[Integers, Integers]
"""Gold edges found `[sentences, heads]`, and those that count `[sentences]`."""


def _ratio(trees: Trees) -> Floats:
    found, edges = trees
    shares: Floats = found.sum(axis=0) / max(int(edges.sum()), 1)
    return shares


def _tree_table(dev: Trees, scored: Trees, names: Names, *, paper: bool) -> Table:
    """UUAS of every head's maximum spanning trees: `head, dev, test`."""
    test = np.full(len(names), np.nan) if paper else _ratio(scored)
    frame = pd.DataFrame({"head": [names.head(k) for k in range(len(names))], "dev": _ratio(dev), "test": test})
    return Table(frame, dict.fromkeys(("dev", "test"), FRACTION))


def _best_tree(dev: Trees, scored: Trees, seed: int) -> dict[str, Estimate]:
    """UUAS of the head whose spanning trees find most on dev."""
    head = int(dev[0].sum(axis=0).argmax())
    found = scored[0][:, head]
    low, high = bootstrap_ratio(found, scored[1], seed=seed)
    value = float(found.sum() / scored[1].sum()) if scored[1].any() else float("nan")
    return {"heads.tree_uuas": Estimate(value, float(low), float(high), unit="fraction")}


def _interval(sentence: Integers, right: Floats, seed: int) -> tuple[float, float]:
    """95 % interval of the mean over words, bootstrapped over the sentences that have such words."""
    _, unit = np.unique(sentence, return_inverse=True)
    low, high = bootstrap_ratio(np.bincount(unit, weights=right), np.bincount(unit), seed=seed)
    return float(low), float(high)
