"""Every attention head as a predictor of governors: the measurement of Clark et al. (2019, §4.2)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd

from attention_probing.corpora.splits import Split
from attention_probing.datamodules import AttentionBatch, DependencyDataModule
from attention_probing.datamodules.batches import EncoderOf
from attention_probing.datamodules.corpus import STAGES
from attention_probing.datamodules.dependency import DependencySplit, check_arcs, check_relations, read_fields
from attention_probing.measures.best_heads import ChosenHeads, above_offset, heads_answer, note_on_p
from attention_probing.measures.contract import Measure
from attention_probing.measures.ensembles import ensembles_table
from attention_probing.measures.head_figures import accuracy_maps, best_bars, example_sentences, stability_bars
from attention_probing.measures.head_roles import head_roles, no_op
from attention_probing.measures.head_trees import UNDIRECTED, ChosenEdges, HeadEdges
from attention_probing.metrics.attachment import (
    ALL,
    ATTACHMENT_RATIOS,
    PLAIN,
    Arcs,
    add_arcs,
    attachment_scores,
    baseline_scores,
    found_shares,
    ratio_scores,
    sentence_scores,
    take_arcs,
)
from attention_probing.metrics.heads import MostAttended, Predictions, confidence, delimiter_shares
from attention_probing.metrics.relations import blank_relations, keep_relations
from attention_probing.metrics.rows import Rows
from attention_probing.metrics.trees import gold_in_trees
from attention_probing.results import Estimate, Figure, Floats, Integers, Result, Table, Unit
from attention_probing.results.heads import HeadNames
from attention_probing.results.options import checked

_SHARE = 30_000  # shares of attention are gathered as int16, in parts of this


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

    @checked
    def __init__(
        self, mode: Literal["held_out", "paper"] = "held_out", trees: bool = True, relations: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self.seed = 0  # of resamples: equal in all runs, so that these can be paired
        self.mode = mode
        self.trees = trees
        self.relations = relations
        self._scored: Split = "dev" if mode == "paper" else "test"

    def begin(self) -> None:
        data = self.data
        field = "attention" if self.trees else "most_attended"
        read_fields(data, (field,), type(self).__name__, random_init=True)
        check_relations(self.relations, data.relations)
        check_arcs(data, dict.fromkeys(("dev", self._scored)))
        self._names = HeadNames(data.layers, data.heads)
        delimiters = data.splits[self._scored].store.manifest.delimiters
        self._reads_delimiters = any(delimiters.values()) and data.options.measured.sums_to_one
        encoders: tuple[EncoderOf, ...] = ("given", "random_init") if data.random_init else ("given",)
        self._words: dict[tuple[Split, EncoderOf], Rows] = {}  # a row for each word
        self._peaks: dict[EncoderOf, Rows] = {}  # a row for each sentence of dev
        for encoder in encoders:
            self._words["dev", encoder] = Rows()
            self._words["test", encoder] = Rows()
            self._peaks[encoder] = Rows()

    def update(self, batch: AttentionBatch) -> None:
        positions = batch.most_attended
        peaks = batch.peaks
        if positions.dim() == 1:  # they are to be computed from the attention
            most = MostAttended(batch.lengths)
            most.add(batch.attention)
            positions = most.positions
            peaks = most.peaks
        columns = {"heads": positions.flatten(2)}  # both directions of every head
        if self.trees and batch.encoder == "given":
            columns["in_trees"] = gold_in_trees(batch.attention, batch.heads, batch.punctuation, batch.lengths)
            if self._reads_delimiters and batch.split == self._scored:
                shares = delimiter_shares(batch.attention, batch.lengths).flatten(2)
                columns["delimiters"] = (shares * _SHARE).round().int()
        add_arcs(self._words[batch.split, batch.encoder], batch, **columns)
        if batch.split == "dev":
            self._peaks[batch.encoder].add(batch.index, peaks=peaks.float().sum(-1), words=batch.lengths)

    def result(self) -> Result | None:
        words = {key: take_arcs(rows) for key, rows in self._words.items()}
        peaks = {encoder: rows.take() for encoder, rows in self._peaks.items()}
        if self.ranks.rank != 0:
            return None  # the first process computes the statistics and writes them

        heads = self._chosen_heads(words, "given")
        control = self._chosen_heads(words, "random_init") if self.data.random_init else None
        best = keep_relations(heads.best_heads(control, self.permutations), self.relations, blank=True)
        best = replace(best, note=note_on_p(best.frame))
        roles, role_scores = self._roles(heads, peaks["given"])
        tables = {
            "best_heads": best,
            "best_heads_by_length": keep_relations(heads.by_length(), self.relations),
            "heads": keep_relations(heads.all_heads(), self.relations),
            "roles": roles,
        }
        scores = _attachment_scores(heads, "heads.")
        _, scored = words[self._scored, "given"]
        if self.trees:
            _, dev = words["dev", "given"]
            tables["trees"], scores["heads.tree_uuas"] = trees_table(heads, dev["in_trees"], scored["in_trees"])
        if "delimiters" in scored:
            tables["no_op"], difference = no_op(heads, roles.frame, scored["delimiters"] / _SHARE)
            if difference is not None:
                scores["no_op"] = difference
        above, finding = above_offset(best, heads.scored.punctuation)
        scores |= above
        headline = ["heads.uas", "offset.uas", *above]
        if control is not None:
            headline.append("random_init.uas")
            scores |= _attachment_scores(control, "random_init.")
            tables["random_init.roles"], _ = self._roles(control, peaks["random_init"])
        if self.trees and self.ensemble > 1:
            tables["ensembles"] = self._ensembles(heads)
        items, ratios = self._items(heads)
        ratios_of_relations = {name: columns for name, columns in ratios.items() if name not in scores}
        if ratios_of_relations:
            scores |= ratio_scores(items, ratios_of_relations, seed=self.seed)
        if self._scored == "dev":
            _remove_intervals(scores, tables)
        scores |= role_scores
        scores |= baseline_scores(heads.dev.arcs, heads.scored.arcs, len(self.data.relations))
        return Result(
            experiment=self.experiment,
            scores=scores,
            tables=tables,
            figures=self._figures(heads, best),
            audit={
                "mode": self.mode,
                "units": self._split.describe_units(),
                "permutations": self.permutations,
                **blank_relations(best),
                "predictions_without_weight": self._without_weight(words),
            },
            items=items,
            ratios=ratios,
            shares=list(ratios),
            headline=headline,
            answer=heads_answer(best, heads.scored.punctuation),
            finding=finding,
        )

    @property
    def _split(self) -> DependencySplit:
        """The scored split."""
        return self.data.splits[self._scored]

    def _chosen_heads(self, words: "_WordsOfSplits", encoder: EncoderOf) -> ChosenHeads:
        """Return the predictions of all heads of an encoder on dev and on the scored split."""
        predictions: dict[Split, Predictions] = {}
        for split in dict.fromkeys(("dev", self._scored)):
            arcs, columns = words[split, encoder]
            data = self.data.splits if encoder == "given" else self.data.random_splits
            predictions[split] = Predictions(_within_reach(arcs, data[split]), self.data.relations, columns["heads"])
        transferred = self._scored == "test" and self.data.transfer_from is not None
        return ChosenHeads(predictions["dev"], predictions[self._scored], self._names, self.seed, transferred)

    def _roles(self, heads: ChosenHeads, peaks: Mapping[str, Floats]) -> tuple[Table, dict[str, Estimate]]:
        """Return the table of the roles of heads, and shares of all heads."""
        unit: Unit = "fraction" if self.data.options.measured.sums_to_one else "ratio"
        return head_roles(heads, confidence(peaks["peaks"], peaks["words"]), self.minimum, unit)

    def _ensembles(self, heads: ChosenHeads) -> Table:
        """Return the table of ensembles of heads."""
        dev = self.data.splits["dev"].store
        return ensembles_table(heads, dev, self._split.store, self.relations, self.minimum, self.ensemble)

    def _items(self, heads: ChosenHeads) -> tuple[pd.DataFrame, dict[str, tuple[str, str]]]:
        """Return counts of the best heads for each sentence, and the columns of each score that is a ratio of them."""
        hits = heads.scored.hits(heads.dev.best(PLAIN))
        counts_of_all_words = sentence_scores(heads.scored.arcs, *hits)
        groups = (ALL, *self.relations) if self.relations else ()
        counts_of_relations, columns_of_relations = heads.by_sentence(groups)
        items = pd.concat([counts_of_all_words, counts_of_relations], axis=1)
        ids = [self._split.ids[sentence] for sentence in items["sentence"]]
        items.insert(1 + ("document" in items), "id", ids)
        ratios = {}
        for name, columns in (ATTACHMENT_RATIOS | columns_of_relations).items():
            ratios[f"heads.{name}"] = columns
        return items, ratios

    def _figures(self, heads: ChosenHeads, best: Table) -> dict[str, Figure]:
        """Return bars of the best heads and of their stability, maps of the accuracy of all heads, and examples."""
        figures: dict[str, Figure] = {}
        bars = {"best_heads": best_bars(best), "stability": stability_bars(best)}
        for name, figure in bars.items():
            if figure is not None:
                figures[name] = figure
        figures.update(accuracy_maps(heads, best.frame, self.maps))
        figures.update(example_sentences(heads, best.frame, self._split, self.minimum))
        return figures

    def _without_weight(self, words: "_WordsOfSplits") -> dict[str, int]:
        """Count predictions without any weight, by split.

        They are behind a causal mask, or where a weight is below the least number that the store keeps.
        """
        counts: dict[str, int] = {}
        for split in STAGES["test"]:
            arcs, columns = words[split, "given"]
            counts[split] = Predictions(arcs, self.data.relations, columns["heads"]).without_weight
        return counts


_WordsOfSplits = Mapping[tuple[Split, EncoderOf], tuple[Arcs, Mapping[str, Integers]]]
"""Gold arcs and numbers of the words of each split, read with each encoder."""


def _within_reach(arcs: Arcs, split: DependencySplit) -> Arcs:
    """Add the positions that the encoder may attend to from each word, so that baselines keep to them."""
    if split.reach is None:
        return arcs
    first = np.cumsum(split.lengths) - split.lengths  # row of the first word of each sentence of the split
    rows = first[arcs.sentence] + arcs.word - 1
    return replace(arcs, reach=split.reach[rows])


def _attachment_scores(heads: ChosenHeads, prefix: str) -> dict[str, Estimate]:
    """Return the attachment scores of the head that is best on dev for all words without punctuation."""
    hits = heads.scored.hits(heads.dev.best(PLAIN))
    return attachment_scores(heads.scored.arcs, *hits, prefix=prefix, seed=heads.seed)


def _remove_intervals(scores: dict[str, Estimate], tables: Mapping[str, Table]) -> None:
    """Blank the intervals of heads that were chosen on the scored words, for which no interval of one head holds."""
    for name, score in scores.items():
        scores[name] = replace(score, low=np.nan, high=np.nan)
    for name in ("roles", "random_init.roles"):
        if name in tables:
            tables[name].frame[["low", "high"]] = np.nan


def trees_table(heads: ChosenHeads, dev: Integers, scored: Integers) -> tuple[Table, Estimate]:
    """Return the UUAS of every head's maximum spanning trees, and that of the head that is best on dev.

    Args:
        heads: Predictions of all heads on dev and on the scored split.
        dev: Gold edges of dev that are in the trees, as from `gold_in_trees`, `[words, heads]`.
        scored: The same on the scored split.

    Returns:
        Table with columns `head, dev, test`, and the score of the best head.
    """
    number = len(heads.names)
    edges_of_dev = HeadEdges(heads.dev.arcs, dev, heads.dev.predicted[:, :number])
    edges_of_scored = HeadEdges(heads.scored.arcs, scored, heads.scored.predicted[:, :number])
    edges = ChosenEdges(edges_of_dev, edges_of_scored, heads.names, heads.seed)
    frame = pd.DataFrame({"head": [edges.name(UNDIRECTED, place) for place in range(number)]})
    frame["dev"] = edges.dev.shares(UNDIRECTED)
    frame["test"] = np.nan
    if heads.split == "test":
        frame["test"] = edges.test.shares(UNDIRECTED)
    hits = edges.test.hits(UNDIRECTED)[:, edges.best(UNDIRECTED)]
    uuas = found_shares(edges.test.arcs, [hits], [edges.test.counted], seed=edges.seed)
    return Table(frame, {"dev": "fraction", "test": "fraction"}), uuas[0]
