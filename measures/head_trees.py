"""Dependency trees in single attention heads, and their most attended words (Htut et al. 2019)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from attention_probing.corpora.splits import Split
from attention_probing.datamodules import AttentionBatch, DependencyDataModule
from attention_probing.datamodules.batches import EncoderOf
from attention_probing.datamodules.dependency import check_arcs, check_relations, read_fields
from attention_probing.measures.contract import Measure
from attention_probing.metrics.attachment import (
    ALL,
    Arcs,
    add_arcs,
    baseline_scores,
    compare_found,
    count,
    count_found,
    edges_found,
    found_shares,
    offset_heads,
    ratio_scores,
    take_arcs,
)
from attention_probing.metrics.heads import DIRECTIONS, most_attended
from attention_probing.metrics.p_values import DRAWS_OF_ROW, draws_for, holm, least_p, p_units
from attention_probing.metrics.rows import Rows
from attention_probing.metrics.stability import (
    NO_CHOICE,
    StabilityCells,
    choose_again,
    stability_columns,
    warn_of_choice,
)
from attention_probing.metrics.trees import gold_in_rooted_trees, gold_in_trees, neighbour_edges
from attention_probing.results import Estimate, Finding, Flags, Floats, Integers, Result, Table, Unit, fill_sentence
from attention_probing.results.errors import pluralize
from attention_probing.results.estimates import FEW
from attention_probing.results.heads import HeadNames, head_map
from attention_probing.results.sentences import LEVEL, format_difference
from attention_probing.results.tables import ARROWS

UNDIRECTED = "undirected"
ROOTED = "rooted"
MAX = "max"
"""How edges are found: in the undirected maximum spanning tree; in the maximum spanning tree from the gold root; or
between each word and the word that it attends to most (Htut et al. 2019, §3)."""

SCORES = {UNDIRECTED: "heads.tree", ROOTED: "heads.rooted_tree", MAX: "heads.max"}
"""Beginning of the names of the scores of each way."""

DISTANCES = (1, 2, 3)  # of the baseline of MAX, in words, as the offsets of Clark et al. (2019, §4.2)

DRAWS = 1000  # least number of draws of a test


class HeadTrees(Measure[DependencyDataModule]):
    """Share of gold edges in the trees of each attention head, and between words and those they attend to most.

    It follows Htut et al. (2019, §3). The maximum spanning tree of a head starts at the gold root; the arc from a
    governor to a dependent weighs the attention between the two, in one of two directions. Beside it stands the
    undirected maximum spanning tree, whose edges weigh the attention in both directions together, as in Hewitt &
    Manning (2019, §4). The third way, MAX, makes no tree: an edge joins each word and the word that it attends to most.

    Scores are UUAS: shares of the gold edges between words other than punctuation that are found, whatever their
    direction. Trees have no punctuation. The best head is chosen on dev and scored on test, with a 95 % interval over
    documents, or over sentences where no documents are marked. A paired test compares trees with right branching, which
    joins neighbours (words with only punctuation between them), and MAX with the best fixed distance of each relation:
    a head that attends to one offset finds all edges of this length. The baseline of the paper, the most frequent
    offset with its direction, finds at most as many.

    Args:
        relations: Relations in the table `relations`, in this order, after the row for all edges; by default all
            relations. The row of a relation without edges on test is blank, with n = 0.

    Raises:
        UserError: In `begin`: no word of dev or test depends on another word.
    """

    experiment = "trees"
    takes = DependencyDataModule

    def __init__(self, relations: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.seed = 0  # of resamples: equal in all runs, so that these can be paired
        self.relations = relations

    def begin(self) -> None:
        data = self.data
        read_fields(data, ("attention",), type(self).__name__, random_init=True)
        check_relations(self.relations, data.relations)
        check_arcs(data, ("dev", "test"))
        self._names = HeadNames(data.layers, data.heads)
        encoders: tuple[EncoderOf, ...] = ("given", "random_init") if data.random_init else ("given",)
        self._rows: dict[tuple[EncoderOf, Split], Rows] = {}
        for encoder in encoders:
            self._rows[encoder, "dev"] = Rows()
            self._rows[encoder, "test"] = Rows()

    def update(self, batch: AttentionBatch) -> None:
        gold = (batch.heads, batch.punctuation, batch.lengths)
        attention = batch.attention.cpu()  # once for all trees, which are found there
        undirected = gold_in_trees(attention, *gold)
        rooted = gold_in_rooted_trees(attention, *gold)
        attends_to = most_attended(batch.attention, batch.lengths)[:, :, 0].flatten(2)
        add_arcs(
            self._rows[batch.encoder, batch.split],
            batch,
            in_trees=torch.cat([undirected, rooted], dim=2),
            attends_to=attends_to,
        )

    def result(self) -> Result | None:
        splits: dict[tuple[EncoderOf, Split], HeadEdges] = {}
        for encoder_and_split, rows in self._rows.items():
            arcs, columns = take_arcs(rows)
            splits[encoder_and_split] = HeadEdges(arcs, columns["in_trees"], columns["attends_to"])
        if self.ranks.rank != 0:
            return None  # the first process computes the statistics and writes them

        edges = ChosenEdges(splits["given", "dev"], splits["given", "test"], self._names, self.seed)
        control = None
        if self.data.random_init:
            control = ChosenEdges(splits["random_init", "dev"], splits["random_init", "test"], self._names, self.seed)
        best = best_trees(edges, control)
        relations = self._relations_table(edges, control)
        items, ratios = self._items(edges)
        scores = ratio_scores(items, ratios, seed=self.seed)
        for row, tree in enumerate(best.frame["tree"]):
            scores[f"{SCORES[tree]}_over_right_branching"] = best.estimate(row, "over_right_branching")
        scores |= baseline_scores(edges.dev.arcs, edges.test.arcs, len(self.data.relations))
        return Result(
            experiment=self.experiment,
            scores=scores,
            tables={"best_trees": best, "relations": relations, "trees": all_trees(edges)},
            figures={
                "trees": head_map(
                    "Edges in the undirected spanning tree of each head",
                    edges.test.shares(UNDIRECTED).reshape(len(self._names.layers), -1),
                    self._names,
                    self._names.place(edges.name(UNDIRECTED, edges.best(UNDIRECTED))),
                    value_label="UUAS (%)",
                ),
            },
            audit={"units": self.data.splits["test"].describe_units(), "edges": int(edges.test.counted.sum())},
            items=items,
            ratios=ratios,
            shares=list(ratios),
            headline=["heads.tree_uuas", "heads.rooted_tree_uuas", "right_branching.tree_uuas"],
            answer=trees_answer(best, relations),
            finding=Finding("heads.tree_uuas", "edges in the trees of the best head"),
        )

    def _relations_table(self, edges: "ChosenEdges", control: "ChosenEdges | None") -> Table:
        """Return the table of MAX for all edges, and for the named relations, or all that occur on test."""
        names = list(self.data.relations)
        frequency = np.bincount(edges.test.arcs.relation[edges.test.counted], minlength=len(names))
        order = np.argsort(-frequency, kind="stable")
        relations: Sequence[str] = self.relations
        if not relations:
            relations = [names[relation] for relation in order if frequency[relation]]
        groups: dict[str, int | None] = {ALL: None}
        for name in relations:
            groups[name] = names.index(name) if name in names else -1  # no word is of this relation
        return best_relations(edges, control, groups)

    def _items(self, edges: "ChosenEdges") -> tuple[pd.DataFrame, dict[str, tuple[str, str]]]:
        """Return counts of edges for each sentence of test, and the columns of each score that is a ratio of them."""
        test = edges.test
        arcs = test.arcs
        ids = self.data.splits["test"].ids
        columns: dict[str, object] = {}
        if arcs.documents is not None:
            columns["document"] = arcs.documents
        sentences = arcs.sentence[arcs.word == 1]
        columns["sentence"] = sentences
        columns["id"] = [ids[sentence] for sentence in sentences]
        columns["edges"] = count(arcs, test.counted)
        columns["right_branching"] = count(arcs, test.by_neighbours)
        ratios = {"right_branching.tree_uuas": ("right_branching", "edges")}
        for way, score in SCORES.items():
            columns[way] = count(arcs, test.hits(way)[:, edges.best(way)])
            ratios[f"{score}_uuas"] = (way, "edges")
        return pd.DataFrame(columns), ratios


@dataclass(frozen=True, eq=False)
class HeadEdges:
    """Gold edges of a split, and which of them each attention head finds.

    Attributes:
        arcs: Gold arcs.
        in_trees: 1 if the edge of a word to its gold head is in a tree, 0 if not, -1 if it does not count,
            `[words, 3·heads]`: undirected trees, then trees from the gold root in the two `DIRECTIONS`; or
            `[words, heads]`, undirected trees alone.
        attends_to: Position of the word that each word attends to most, `[words, heads]`.
    """

    arcs: Arcs
    in_trees: Integers
    attends_to: NDArray[np.integer]

    @property
    def heads(self) -> int:
        """Number of attention heads."""
        return int(self.attends_to.shape[1])

    @cached_property
    def counted(self) -> Flags:
        """True for words whose edge to the gold head counts: both are words other than punctuation, `[words]`."""
        counted: Flags = self.in_trees[:, 0] >= 0
        return counted

    @cached_property
    def by_neighbours(self) -> Flags:
        """True for words whose edge right branching finds, `[words]`."""
        return self.counted & neighbour_edges(self.arcs)

    @cached_property
    def by_distance(self) -> Flags:
        """True for words whose gold head is at each of the `DISTANCES`, before or after them, `[words, distances]`."""
        predicted = [offset_heads(self.arcs, distance) for distance in DISTANCES]
        return self._hits_of(predicted)

    @cached_property
    def _hits_by_max(self) -> Flags:
        predicted = [positions.astype(np.int64) for positions in self.attends_to.T]
        return self._hits_of(predicted)

    def _hits_of(self, predicted: Sequence[Integers]) -> Flags:
        """Return True for words whose edge a predictor finds, `[words, predictors]`.

        Args:
            predicted: Position of the word that each predictor joins to each word, `[words]`.
        """
        hits = [edges_found(self.arcs, positions) == 1 for positions in predicted]
        by_predictor: Flags = np.stack(hits, axis=1)
        return by_predictor & self.counted[:, None]

    def hits(self, way: str) -> Flags:
        """Return True for words whose edge a head finds, `[words, heads]`; for `rooted` `[words, 2·heads]`.

        Args:
            way: `undirected`, `rooted` or `max`.
        """
        if way == MAX:
            return self._hits_by_max
        undirected, rooted = np.split(self.in_trees == 1, [self.heads], axis=1)
        if way == UNDIRECTED:
            return undirected
        return rooted

    def shares(self, way: str, words: Flags | None = None) -> Floats:
        """Return the share of the edges, or of the edges of some words, that each head finds, `[heads]`.

        Args:
            way: `undirected`, `rooted` or `max`; for `rooted` there are `[2·heads]` shares.
            words: Bool `[words]`; None for all words.
        """
        edges = self.counted if words is None else self.counted & words
        shares: Floats = self.hits(way)[edges].sum(axis=0) / max(int(edges.sum()), 1)
        return shares


@dataclass(frozen=True, eq=False)
class ChosenEdges:
    """Edges that attention heads find on dev, where heads are chosen, and on test, where they are scored.

    Attributes:
        dev: Edges of dev.
        test: Edges of test.
        names: Names of the attention heads.
        seed: Seed of the resamples.
    """

    dev: HeadEdges
    test: HeadEdges
    names: HeadNames
    seed: int = 0

    def best(self, way: str, dev_words: Flags | None = None) -> int:
        """Return the place of the head, for `rooted` in a direction, that finds most edges of dev; on a tie the first.

        Args:
            way: `undirected`, `rooted` or `max`.
            dev_words: Words of dev whose edges count, bool `[words]`; None for all.
        """
        return int(self.dev.shares(way, dev_words).argmax())

    def describe_choice(self, way: str, place: int, dev_words: Flags | None = None) -> StabilityCells:
        """Return how often the head at a place is chosen again on resamples of dev, and its rivals.

        Args:
            way: `undirected`, `rooted` or `max`.
            place: The place that `best` returns.
            dev_words: Words of dev whose edges count, bool `[words]`; None for all.
        """
        words = self.dev.counted if dev_words is None else self.dev.counted & dev_words
        found, counted = count_found(self.dev.arcs, words, self.dev.hits(way)[words])

        def name(rival: int) -> str:
            direction = self.direction(way, rival)
            sign = "" if direction is None else ARROWS[direction]
            return f"{self.name(way, rival)}{sign}"

        return choose_again(found, counted, self.seed).describe(place, name)

    def name(self, way: str, place: int) -> str:
        """Return the name of the head at a place, such as `6-1`."""
        if way == ROOTED:
            place = place % len(self.names)  # places of both directions, one after the other
        return self.names.head(place)

    def direction(self, way: str, place: int) -> str | None:
        """Return the direction in which attention is read at a place; None for undirected trees."""
        if way != ROOTED:
            return None
        return DIRECTIONS[place // len(self.names)]


def best_trees(edges: ChosenEdges, control: ChosenEdges | None) -> Table:
    """Return the table of the heads with the best trees on dev, beside right branching.

    Args:
        edges: Edges of the trees of all heads.
        control: The same for an encoder with random weights; None for no control.

    Returns:
        Table with a row for the `undirected` trees and one for the trees from the gold root (`rooted`). Columns:

        - `tree`, `n`: the kind of tree, and the number of gold edges on test;
        - `head`, `direction`: the head with the highest UUAS on dev, and the direction of its attention;
        - `dev`, `test`, `low`, `high`: its UUAS, and the 95 % interval on test;
        - `right_branching`: UUAS of right branching on test;
        - `random_init`: UUAS, on test, of the head with random weights that is best on dev; nan without a control;
        - `over_right_branching`, with its interval: UUAS of the head minus that of right branching;
        - `p`, `p_holm`: its two-sided p-value, and that after Holm's correction for the rows;
        - `chosen`, `rivals`: number of 100 resamples of dev on which the same head is chosen, and those that are chosen
            instead (`metrics.stability`).
    """
    ways = (UNDIRECTED, ROOTED)
    test = edges.test
    number = int(test.counted.sum())
    rows = []
    hits = []
    random_init = []
    stability = []
    for way in ways:
        place = edges.best(way)
        row = {"tree": way, "n": number, "head": edges.name(way, place), "direction": edges.direction(way, place)}
        row["dev"] = float(edges.dev.shares(way)[place])
        rows.append(row)
        hits.append(test.hits(way)[:, place])
        share_of_random = np.nan
        if control is not None:
            share_of_random = float(control.test.shares(way)[control.best(way)])
        random_init.append(share_of_random)
        stability.append(edges.describe_choice(way, place))
    frame = pd.DataFrame(rows)
    counted = [test.counted] * len(ways)
    share = found_shares(test.arcs, hits, counted, seed=edges.seed)
    frame["test"] = share.value
    frame["low"], frame["high"] = share.interval
    frame["right_branching"] = int(test.by_neighbours.sum()) / max(number, 1)
    frame["random_init"] = random_init
    by_neighbours = [test.by_neighbours] * len(ways)
    difference = compare_found(test.arcs, hits, by_neighbours, counted, draws=DRAWS, seed=edges.seed)
    units = _add_difference(frame, "over_right_branching", difference, DRAWS, edges)
    frame = frame.join(stability_columns(stability))
    for name in ("dev", "test", "right_branching", "random_init"):
        units[name] = "fraction"
    main = ["tree", "head", "direction", "test", "right_branching", "p_holm"]
    if control is not None:
        main.insert(5, "random_init")
    return Table(frame, units, interval="test", main=main)


def best_relations(edges: ChosenEdges, control: ChosenEdges | None, groups: Mapping[str, int | None]) -> Table:
    """Return the table of the heads that find most edges of each relation by MAX, beside the best fixed distance.

    Args:
        edges: Edges that all heads find.
        control: The same for an encoder with random weights; None for no control.
        groups: Id of each relation by name; None for the edges of all relations.

    Returns:
        Table with a row for each relation. Columns:

        - `relation`, `n`: the relation, and its number of gold edges on test;
        - `head`: the head that finds most of its edges on dev;
        - `dev`, `test`, `low`, `high`: share of the edges that it finds, and the 95 % interval on test;
        - `distance`, `best_distance`: share of the edges of test between words at the distance (1 to 3) that is best on
            dev, and this distance;
        - `random_init`: share that the best head with random weights finds; nan without a control;
        - `over_distance`, with its interval: share of the head minus that of the distance;
        - `p`, `p_holm`: its two-sided p-value, and that after Holm's correction for the rows;
        - `chosen`, `rivals`: number of 100 resamples of dev on which the same head is chosen, and those that are chosen
            instead.

        A relation without edges on dev is blank but for `n`: no head can be chosen.
    """
    heads = [_head_of_relation(edges, control, relation) for relation in groups.values()]
    by_head = [head.hits for head in heads]
    by_distance = [head.by_distance for head in heads]
    words = [head.words for head in heads]
    arcs = edges.test.arcs
    share = found_shares(arcs, by_head, words, seed=edges.seed)
    frame = pd.DataFrame({"relation": list(groups)})
    frame["n"] = [int(_words_of(edges.test, relation).sum()) for relation in groups.values()]
    frame["head"] = [head.name for head in heads]
    frame["dev"] = [head.dev for head in heads]
    frame["test"] = share.value
    frame["low"], frame["high"] = share.interval
    frame["distance"] = found_shares(arcs, by_distance, words, seed=edges.seed).value
    frame["best_distance"] = pd.Series([head.best_distance for head in heads], dtype="Int64")
    frame["random_init"] = [head.random_init for head in heads]
    draws = draws_for(len(heads), arcs.number_of_units, DRAWS, each=DRAWS_OF_ROW)
    difference = compare_found(arcs, by_head, by_distance, words, draws=draws, seed=edges.seed)
    units = _add_difference(frame, "over_distance", difference, draws, edges)
    frame = frame.join(stability_columns([head.stability for head in heads]))
    for name in ("dev", "test", "distance", "random_init"):
        units[name] = "fraction"
    return Table(frame, units, interval="test", main=["relation", "head", "test", "distance", "p_holm"])


@dataclass(frozen=True, eq=False)
class _RelationHead:
    """The head that finds most edges of a relation on dev by MAX, and what it and the best distance find on test.

    Attributes:
        hits: True for words whose edge the head finds, `[words]`.
        by_distance: True for words whose gold head is at the best distance, `[words]`.
        words: Words of test with an edge of the relation, `[words]`; none if no head could be chosen.
        name: Name of the head; None if no head could be chosen.
        dev: Share of the edges of dev that the head finds.
        best_distance: The distance at which most edges of dev are.
        random_init: Share of the edges of test that the best head with random weights finds.
        stability: How often the head is chosen again on resamples of dev, and its rivals.
    """

    hits: Flags
    by_distance: Flags
    words: Flags
    name: str | None = None
    dev: float = np.nan
    best_distance: int | None = None
    random_init: float = np.nan
    stability: StabilityCells = NO_CHOICE


def _head_of_relation(edges: ChosenEdges, control: ChosenEdges | None, relation: int | None) -> _RelationHead:
    """Choose the head and the distance of a relation on dev; see `best_relations`."""
    words_of_dev = _words_of(edges.dev, relation)
    words = _words_of(edges.test, relation)
    if not words_of_dev.any():
        nothing = np.zeros(len(words), np.bool_)
        return _RelationHead(nothing, nothing, nothing)
    place = edges.best(MAX, words_of_dev)
    distance = int(edges.dev.by_distance[words_of_dev].sum(axis=0).argmax())
    random_init = np.nan
    if control is not None:
        random_head = control.best(MAX, _words_of(control.dev, relation))
        random_init = float(control.test.shares(MAX, words)[random_head])
    return _RelationHead(
        hits=edges.test.hits(MAX)[:, place],
        by_distance=edges.test.by_distance[:, distance],
        words=words,
        name=edges.name(MAX, place),
        dev=float(edges.dev.shares(MAX, words_of_dev)[place]),
        best_distance=DISTANCES[distance],
        random_init=random_init,
        stability=edges.describe_choice(MAX, place, words_of_dev),
    )


def _words_of(edges: HeadEdges, relation: int | None) -> Flags:
    """Return True for the words whose edge is of a relation, bool `[words]`; None stands for all relations."""
    if relation is None:
        return edges.counted
    of_relation: Flags = edges.counted & (edges.arcs.relation == relation)
    return of_relation


def _add_difference(
    frame: pd.DataFrame, name: str, difference: Estimate[Floats], draws: int, edges: ChosenEdges
) -> dict[str, Unit | Sequence[Unit]]:
    """Add the columns of a difference and its p-values to a table, and return their units."""
    frame[name] = difference.value
    frame[f"{name}.low"], frame[f"{name}.high"] = difference.interval
    frame["p"] = difference.p
    frame["p_holm"] = holm(frame["p"].tolist())
    units_of_p = p_units(frame["p"], least_p(edges.test.arcs.number_of_units, draws))
    return {name: "fraction", "p": units_of_p, "p_holm": units_of_p}


def all_trees(edges: ChosenEdges) -> Table:
    """Return the UUAS of the trees of every head: a table with columns `tree, direction, head, dev, test`."""
    rows = []
    for way in (UNDIRECTED, ROOTED):
        scores = zip(edges.dev.shares(way), edges.test.shares(way), strict=True)
        for place, (dev, test) in enumerate(scores):
            rows.append((way, edges.direction(way, place), edges.name(way, place), dev, test))
    columns = ["tree", "direction", "head", "dev", "test"]
    return Table(pd.DataFrame(rows, columns=columns), {"dev": "fraction", "test": "fraction"})


def trees_answer(best: Table, relations: Table) -> str:
    """Return the answer: the best trees beside right branching, and relations that heads find better than a distance.

    All p are after Holm's correction for the rows of their table.

    Args:
        best: The table `best_trees`.
        relations: The table `best_relations`.
    """
    text = (
        "chosen on dev, the spanning trees of head {undirected_head}{undirected_again} find {undirected} of {n} edges, "
        "right branching {right_branching} ({undirected_gain}); from the gold root, those of head "
        "{rooted_head}{rooted_again} find {rooted} ({rooted_gain})"
    )
    words: dict[str, Estimate | str | int] = {
        "n": int(best.frame["n"][0]),
        "right_branching": best.estimate(0, "right_branching"),
    }
    for row, tree in enumerate(best.frame["tree"]):
        words[tree] = best.estimate(row, "test")
        words[f"{tree}_head"] = str(best.frame["head"][row])
        words[f"{tree}_again"] = warn_of_choice(best.frame["chosen"][row])
        gain = best.estimate(row, "over_right_branching")
        words[f"{tree}_gain"] = format_difference(gain, best.estimate(row, "p_holm"))
    tested = relations.frame[(relations.frame["n"] >= FEW) & (relations.frame["relation"] != ALL)]
    tested = tested.dropna(subset="p")
    if len(tested):
        beat = (tested["p_holm"] < LEVEL) & (tested["over_distance"] > 0)
        number = f"{int(beat.sum()) or 'none'} of {pluralize(len(tested), 'relation')}"
        text += f"; the most attended words beat the best distance in {number} (p < .05 after Holm, n ≥ {FEW})"
    return fill_sentence(text, {}, **words)
