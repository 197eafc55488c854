"""Experiments over gold arcs: what is predicted of dev and test, scored beside the fixed baselines."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from datamodules import AttentionBatch, DependencyDataModule
from datamodules.base import part_of
from datamodules.dependency import FIELDS, Field
from metrics.attachment import (
    ALL,
    PLAIN,
    RATIOS,
    Arcs,
    Floats,
    Integers,
    attached,
    attachment_scores,
    best_offsets,
    count,
    edges_found,
    left_branching,
    offset_heads,
    ratio_scores,
    relation_accuracies,
    right_branching,
    sentence_scores,
    uniform_attached,
    uniform_edges_found,
)
from metrics.rows import ArcPredictions
from results import Bars, Estimate, Figure, Result, Table, UserError, free_name, merged


class ExperimentError(UserError):
    """An experiment that cannot be run as it is."""


class DependencyExperiment(LightningModule):
    """Reads dev, where choices are made, and test, where they are scored.

    Subclasses fill three holes: `prepare`, `update` and `outcome`.

    Attributes:
        experiment: name of the experiment.
        reads: what its batches hold beside the gold arcs.
        reads_random_init: whether it has a use for batches of an encoder with random weights.
        result: filled at the end of a test.
    """

    experiment: str
    reads: ClassVar[Set[Field]] = frozenset(("attention",))
    reads_random_init: ClassVar[bool] = False
    example_input_array = None

    def __init_subclass__(cls, **options: object) -> None:
        """Take `reads` as any collection; a TypeError names what no batch holds."""
        super().__init_subclass__(**options)
        if unknown := set(cls.reads) - FIELDS:
            raise TypeError(f"{cls.__name__}.reads: a batch holds {', '.join(sorted(FIELDS))}, not {unknown}")
        cls.reads = frozenset(cls.reads)

    def __init__(self) -> None:
        super().__init__()
        self.result: Result | None = None

    def setup(self, stage: str) -> None:
        if self.data.random_init and not self.reads_random_init:
            raise ExperimentError(
                f"{type(self).__name__} makes nothing of random weights: --data.init_args.random_init must be false."
            )
        self.data.read_only(self.reads)
        self.prepare()

    def prepare(self) -> None:
        """Make what counts, and refuse what does not fit the data, which are set up."""

    def update(self, batch: AttentionBatch) -> None:
        """Take in a batch of dev or test."""
        raise TypeError(f"{type(self).__name__} does not say what it takes from a batch.")

    def outcome(self) -> Result | None:
        """The result, once all batches were seen; None on a process that need not have one."""
        raise TypeError(f"{type(self).__name__} does not say what comes out.")

    def test_step(self, batch: AttentionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.update(batch)

    def on_test_epoch_end(self) -> None:
        self.result = self.outcome()

    @property
    def data(self) -> DependencyDataModule:
        """The datamodule of the run; refuses one without dependencies."""
        data = part_of(self.trainer.datamodule, DependencyDataModule)  # type: ignore[attr-defined]
        if data is None:
            given = type(self.trainer.datamodule).__name__  # type: ignore[attr-defined]
            raise ExperimentError(
                f"{type(self).__name__} needs gold arcs, and {given} has none: use DependencyDataModule."
            )
        return data

    @property
    def attention(self) -> DependencyDataModule:
        """The datamodule of the run; refuses one without an encoder."""
        if self.data.encoder_identity is None:
            raise ExperimentError(f"{type(self).__name__} needs attention: --data.init_args.encoder must not be null.")
        return self.data


def check_relations(wanted: Sequence[str], known: Sequence[str]) -> None:
    """Refuse relations that the corpus does not have."""
    if strange := [name for name in wanted if name not in known]:
        raise ExperimentError(
            f"relations: the corpus has no {', '.join(map(repr, strange))}; its relations are {', '.join(known)}."
        )


@dataclass(frozen=True)
class PredictedArcs:
    """What is predicted of the words of a batch, each int64 `[batch, n]`; anything in the padding.

    Attributes:
        heads: the head of each word on its own, 0 = root.
        tree: the head of each word in the best tree.
        relations: the relation to `heads`, by the numbers of the datamodule.
    """

    heads: Tensor
    tree: Tensor | None = None
    relations: Tensor | None = None

    @property
    def columns(self) -> Tensor:
        """`[batch, n, 3]`, -1 for what was not predicted."""
        absent = torch.full_like(self.heads, -1)
        given = (self.heads, self.tree, self.relations)
        return torch.stack([absent if column is None else column for column in given], dim=-1)


class ArcExperiment(DependencyExperiment):
    """Predicts one head for every word.

    Subclasses fill two holes: `predicted`, when they predict anything beyond the baselines, and `figures`.

    Args:
        relations: relations in the table and the figure, in this order, beside all words; by default all of them.
    """

    reads: ClassVar[Set[Field]] = frozenset()

    def __init__(self, relations: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.relations = relations
        self._dev, self._test = ArcPredictions(3), ArcPredictions(3)
        self._labelled: bool | None = None

    def prepare(self) -> None:
        check_relations(self.relations, self.data.relations)

    def predict(self, batch: AttentionBatch, tree: bool) -> PredictedArcs | None:
        """What is predicted, with the best tree where it is asked for; None for an experiment of baselines alone."""
        return None

    def figures(self) -> Mapping[str, Figure]:
        """Figures of the experiment's own, beside the bars per relation."""
        return {}

    @property
    def trained_for(self) -> Mapping[str, object]:
        """What a trained probe says of its epochs."""
        return {}

    def update(self, batch: AttentionBatch) -> None:
        if batch.split == "dev":
            gather(self._dev, batch, None)
            return
        predicted = self.predict(batch, tree=True)
        if predicted is not None:
            self._labelled = predicted.relations is not None
        gather(self._test, batch, predicted)

    def outcome(self) -> Result:
        """Scores on test, beside those of the baselines."""
        (dev, _), (test, predicted) = self._dev.compute(), self._test.compute()
        self._dev.reset()
        self._test.reset()
        labelled, self._labelled = self._labelled, None
        names = self.data.relations
        scores = baseline_scores(dev, test, len(names))
        found, items, ratios = None, None, dict[str, tuple[str, str]]()
        if labelled is not None:
            heads, tree, relations = predicted.astype("int64").T
            found = attached(test, heads)
            items = sentence_scores(test, found, edges_found(test, heads))
            items.insert(1, "id", [self.data.splits["test"].ids[index] for index in items["sentence"]])
            ratios = {**RATIOS, "tree.uas": ("tree_correct", "scored"), "tree.uuas": ("tree_edges_found", "edges")}
            items["tree_correct"] = count(test, attached(test, tree) * ~test.punctuation)
            items["tree_edges_found"] = sentence_scores(test, found, edges_found(test, tree))["edges_found"]
            if labelled:
                ratios["las"] = ("labelled_correct", "scored")
                items["labelled_correct"] = count(test, found * (relations == test.relation) * ~test.punctuation)
            scores = ratio_scores(items, ratios) | scores
        table = rows_of(relation_table(dev, test, names, found), self.relations)
        figures = {"relations": relation_bars(table), **self.figures()}
        headline = ["offset.uas", "uniform.uas"] if found is None else ["uas", "uuas", "offset.uas"]
        return Result(self.experiment, scores, {"relations": table}, figures, self.trained_for, items, ratios, headline)


def gather(metric: ArcPredictions, batch: AttentionBatch, predicted: PredictedArcs | None) -> None:
    """Add a batch, and what was predicted of it, if anything was."""
    columns = (predicted or PredictedArcs(torch.full_like(batch.heads, -1))).columns
    metric.update(batch.index, batch.heads, batch.relations, batch.punctuation, batch.lengths, columns)


SHOWN = 25
"""Relations in the figure: the most frequent ones."""


def baseline_scores(dev: Arcs, test: Arcs, relations: int) -> dict[str, Estimate]:
    """Scores on test of every baseline, as `offset.uas`, `right_branching.uas`, …; the offset is chosen on dev.

    So are the layer and the direction of uniform attention, where the arcs have a reach.
    """
    offset, _ = best_offsets(dev, relations)
    heads: dict[str, Integers] = {
        "offset": offset_heads(test, offset),
        "right_branching": right_branching(test),
        "left_branching": left_branching(test),
    }
    # Without a reach all layers and directions are one way, and each split may be without.
    way = 0 if test.reach is None else int(uniform_attached(dev)[:, ~dev.punctuation].sum(1).argmax())
    scores = attachment_scores(test, uniform_attached(test)[way], uniform_edges_found(test)[way], prefix="uniform.")
    for name, predicted in heads.items():
        scores |= attachment_scores(test, attached(test, predicted), edges_found(test, predicted), prefix=f"{name}.")
    return scores


def relation_table(dev: Arcs, test: Arcs, relations: tuple[str, ...], found: Floats | None) -> Table:
    """Accuracy per relation of a probe beside the best fixed offset of that relation, chosen on dev, scored on test.

    `found` `[words]` of test is 1 where the probe found the head. The columns are `relation, n, probe, low, high,
    offset, best_offset`; `best_offset` is the offset itself. Without a probe the interval is that of `offset`.
    """
    overall, own = best_offsets(dev, len(relations))
    by_offset = np.zeros(len(test))
    for k in np.unique(own[test.relation]):
        chosen = own[test.relation] == k
        by_offset[chosen] = attached(test, offset_heads(test, int(k)))[chosen]
    table = relation_accuracies(test, by_offset, relations)
    # The rows over all relations: one offset for all words, not each relation's own.
    single = relation_accuracies(test, attached(test, offset_heads(test, overall)), relations)
    over_all = ~table["relation"].isin(relations)
    table[over_all] = single[over_all]
    offset = dict(zip(relations, own.tolist(), strict=True))
    probe = table if found is None else relation_accuracies(test, found, relations)
    frame = pd.DataFrame(
        {
            "relation": table["relation"],
            "n": table["n"],
            "probe": np.nan if found is None else probe["accuracy"],
            "low": probe["low"],
            "high": probe["high"],
            "offset": table["accuracy"],
            "best_offset": [offset.get(name, overall) for name in table["relation"]],
        }
    )
    interval = "offset" if found is None else "probe"
    answer = ["relation", *([] if found is None else ["probe"]), "offset"]
    return Table(frame, dict.fromkeys(("probe", "offset"), "fraction"), interval, answer)


def rows_of(table: Table, relations: Sequence[str]) -> Table:
    """The rows over all words, and those of the relations that were named, in their order; all rows where none was."""
    if not relations:
        return table
    order = [ALL, PLAIN, *relations]
    shown = table.frame[table.frame["relation"].isin(order)]
    place = shown["relation"].map(order.index)
    return replace(table, frame=shown.loc[place.sort_values(kind="stable").index].reset_index(drop=True))


def relation_bars(table: Table) -> Bars:
    """The most frequent relations of a `relation_table`, as bars."""
    shown = table.frame.head(SHOWN)
    series = {"probe": shown["probe"].tolist()} if shown["probe"].notna().any() else {}
    series["best fixed offset"] = shown["offset"].tolist()
    return Bars(
        title="Words with the right head, per relation",
        categories=tuple(shown["relation"]),
        series=series,
        label="accuracy (%)",
        intervals={next(iter(series)): (shown["low"].tolist(), shown["high"].tolist())},
        unit="fraction",
    )


class Baselines(ArcExperiment):
    """Best fixed offset per relation and overall, right- and left-branching, and uniform attention.

    The offsets are chosen on dev and scored on test. Uniform attention is scored by expectation: every word's head is
    equally likely to be ROOT or any other word. Nothing is trained, so `python train.py test` runs it.

    Args:
        relations: relations in the table and the figure, in this order, beside all words; by default all of them.
    """

    experiment = "baselines"


class Analyses(DependencyExperiment):
    """Several experiments without training in one pass over the data, for instance `Baselines` and `SingleHeads`.

    A score, table or figure keeps its name; another one of that name is called `<experiment>.<name>`. The counts of
    sentences stand side by side in columns `<experiment>.<column>`.

    Args:
        analyses: the experiments.

    Raises:
        ExperimentError: there is none, or one is named twice.
    """

    experiment = "analyses"

    def __init__(self, analyses: list[DependencyExperiment]) -> None:
        super().__init__()
        names = [analysis.experiment for analysis in analyses]
        if not names or len(set(names)) < len(names):
            raise ExperimentError(f"--model.init_args.analyses: name one or more, each once, and not {names}.")
        self._analyses = nn.ModuleList(analyses)
        self.reads = frozenset().union(*(analysis.reads for analysis in analyses))  # type: ignore[misc]
        self.reads_random_init = any(analysis.reads_random_init for analysis in analyses)  # type: ignore[misc]

    @property
    def analyses(self) -> list[DependencyExperiment]:
        return list(self._analyses)  # type: ignore[arg-type]

    def prepare(self) -> None:
        for analysis in self.analyses:
            analysis.trainer = self.trainer
            analysis.prepare()

    def update(self, batch: AttentionBatch) -> None:
        for analysis in self.analyses:
            if batch.encoder == "given" or analysis.reads_random_init:
                analysis.update(batch)

    def outcome(self) -> Result | None:
        """All results as one."""
        # All of them before any is left out: each gathers from every process.
        results = [(analysis.experiment, analysis.outcome()) for analysis in self.analyses]
        items, ratios = list[pd.DataFrame](), dict[str, tuple[str, str]]()
        found = dict[str, Result]()
        for name, result in results:
            if result is None:
                return None
            found[name] = result
            if result.items is not None:
                columns = {key: f"{name}.{key}" for key in result.items if key not in ("sentence", "id")}
                items.append(result.items.set_index(["sentence", "id"]).rename(columns=columns))
                pairs = {key: (columns[over], columns[under]) for key, (over, under) in result.ratios.items()}
                ratios |= {free_name(key, name, ratios): pair for key, pair in pairs.items()}
        joined = pd.concat(items, axis=1).reset_index() if items else None
        return replace(merged(self.experiment, found), items=joined, ratios=ratios)
