"""What every experiment over gold arcs shares: predictions in, scores beside the baselines out."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar

import torch
from pytorch_lightning import LightningModule
from torch import Tensor

from datamodules import AttentionBatch, DependencyDataModule
from datamodules.dependency import Field
from metrics.attachment import RATIOS, Arcs, Integers, attached, count, edges_found, ratio_scores, sentence_scores
from metrics.rows import ArcPredictions
from probes.comparison import baseline_scores, relation_bars, relation_table, rows_of
from results import Figure, Result


class ProbeError(ValueError):
    """A probe that cannot be run as it is."""


class DependencyExperiment(LightningModule):
    """Reads dev, where choices are made, and test, where they are scored.

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

    def __init__(self) -> None:
        super().__init__()
        self.result: Result | None = None

    def setup(self, stage: str) -> None:
        """Leave out of the batches what is not read.

        Raises:
            ProbeError: the data have batches of random weights, and the experiment has no use for them.
        """
        if self.data.random_init and not self.reads_random_init:
            raise ProbeError(
                f"{type(self).__name__} makes nothing of random weights: --data.init_args.random_init must be false."
            )
        self.data.read_only(self.reads)

    @property
    def data(self) -> DependencyDataModule:
        """The datamodule of the run.

        Raises:
            ProbeError: it is not one of dependencies.
        """
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, DependencyDataModule):
            raise ProbeError(
                f"{type(self).__name__} needs gold arcs, and {type(data).__name__} has none: use DependencyDataModule."
            )
        return data

    @property
    def attention(self) -> DependencyDataModule:
        """The datamodule of the run, with attention.

        Raises:
            ProbeError: it has no encoder.
        """
        if self.data.encoder_identity is None:
            raise ProbeError(f"{type(self).__name__} needs attention: --data.init_args.encoder must not be null.")
        return self.data


def check_relations(wanted: Sequence[str], known: Sequence[str]) -> None:
    """Refuse relations that the corpus does not have.

    Raises:
        ProbeError: there is no such relation.
    """
    if strange := [name for name in wanted if name not in known]:
        raise ProbeError(
            f"relations: the corpus has no {', '.join(map(repr, strange))}; its relations are {', '.join(known)}."
        )


@dataclass(frozen=True)
class Guess:
    """What is predicted of the words of a batch, each int64 `[batch, n]`; anything in the padding.

    Attributes:
        heads: the head of each word on its own, 0 = root.
        tree: the head of each word in the best tree; None where no tree was sought.
        relations: the relation to `heads`, by the numbers of the datamodule; None where none is predicted.
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

    Subclasses fill two holes: `guess`, when they predict anything beyond the baselines, and `figures`.

    Args:
        relations: relations in the table and the figure, in this order, beside all words; by default all of them.
    """

    reads: ClassVar[Set[Field]] = frozenset()

    def __init__(self, relations: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.relations = relations
        self._dev, self._test = ArcPredictions(3), ArcPredictions(3)
        self._labelled: bool | None = None

    def setup(self, stage: str) -> None:
        """Look for the relations that were named."""
        super().setup(stage)
        check_relations(self.relations, self.data.relations)

    def guess(self, batch: AttentionBatch, tree: bool) -> Guess | None:
        """What is predicted, with the best tree where it is asked for; None for an experiment of baselines alone."""
        return None

    def figures(self) -> Mapping[str, Figure]:
        """Figures of the experiment's own, beside the bars per relation."""
        return {}

    @property
    def trained_for(self) -> Mapping[str, int]:
        """What a trained probe says of its epochs."""
        return {}

    def test_step(self, batch: AttentionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Gather the gold arcs of dev, and those of test with what is predicted."""
        if batch.split == "dev":
            gather(self._dev, batch, None)
            return
        guess = self.guess(batch, tree=True)
        if guess is not None:
            self._labelled = guess.relations is not None
        gather(self._test, batch, guess)

    def on_test_epoch_end(self) -> None:
        """Score, and fill `result`."""
        (dev, _), (test, predicted) = self._dev.compute(), self._test.compute()
        self._dev.reset()
        self._test.reset()
        self.result = self._result(dev, test, predicted)
        self._labelled = None

    def _result(self, dev: Arcs, test: Arcs, predicted: Integers) -> Result:
        names = self.data.relations
        baselines = baseline_scores(dev, test, len(names))
        if self._labelled is None:
            table = rows_of(relation_table(dev, test, names, None), self.relations)
            figures = {"relations": relation_bars(table), **self.figures()}
            return Result(self.experiment, baselines, {"relations": table}, figures)
        heads, tree, relations = predicted.astype("int64").T
        found = attached(test, heads)
        items = sentence_scores(test, found, edges_found(test, heads))
        items.insert(1, "id", [self.data.splits["test"].ids[index] for index in items["sentence"]])
        ratios = {**RATIOS, "tree.uas": ("tree_correct", "scored"), "tree.uuas": ("tree_edges_found", "edges")}
        items["tree_correct"] = count(test, attached(test, tree) * ~test.punctuation)
        items["tree_edges_found"] = sentence_scores(test, found, edges_found(test, tree))["edges_found"]
        if self._labelled:
            ratios["las"] = ("labelled_correct", "scored")
            items["labelled_correct"] = count(test, found * (relations == test.relation) * ~test.punctuation)
        table = rows_of(relation_table(dev, test, names, found), self.relations)
        return Result(
            experiment=self.experiment,
            scores=ratio_scores(items, ratios) | baselines,
            tables={"relations": table},
            figures={"relations": relation_bars(table), **self.figures()},
            audit=self.trained_for,
            items=items,
            ratios=ratios,
        )


def gather(metric: ArcPredictions, batch: AttentionBatch, guess: Guess | None) -> None:
    """Add a batch, and what was predicted of it, if anything was."""
    columns = (guess or Guess(torch.full_like(batch.heads, -1))).columns
    metric.update(batch.index, batch.heads, batch.relations, batch.punctuation, batch.lengths, columns)
