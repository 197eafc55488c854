"""Every single head as a predictor of dependencies (Clark et al. 2019, §4.2), with intervals, controls and tests."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import nn

from datamodules import AttentionBatch
from datamodules.base import STAGES
from datamodules.batch import EncoderOf, Split
from datamodules.dependency import DependencySplit
from metrics.attachment import Floats, Integers, attached, attachment_scores, edges_found, sentence_scores
from metrics.bootstrap import bootstrap_ratio
from metrics.heads import ALL, DIRECTIONS, PLAIN, RowPeaks, most_attended
from metrics.rows import ArcPredictions
from metrics.trees import gold_in_trees, tree_counts
from probes.base import DependencyExperiment, check_relations
from probes.comparison import FRACTION, baseline_scores, rows_of
from probes.ensembles import choose, hits
from probes.head_figures import Drawing, best_bars, check_drawing, draw_sentence, examples, relation_maps
from probes.head_tables import Names, Predictions, all_heads, best_heads, by_length, roles
from results import Estimate, Figure, Result, Table

_DRAWN = 3  # sentences, when none are named


class HeadsProbe(DependencyExperiment):
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

    def setup(self, stage: str) -> None:
        """Make a metric for each of dev and test, and for each of the two with random weights."""
        super().setup(stage)
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

    def test_step(self, batch: AttentionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
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

    def on_test_epoch_end(self) -> None:
        """Choose, score, and fill `result`."""
        names = Names(self.data.layers, self.data.heads)
        parts = {name: metric.compute() for name, metric in self._gathered.items()}  # type: ignore[operator]
        confidence: Floats = self._peaks[0].compute().cpu().numpy()  # type: ignore[operator]
        for metric in (*self._gathered.values(), *self._peaks):
            metric.reset()
        if not self.trainer.is_global_zero:
            return  # the statistics are the first process's, which writes them
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
        self.result = Result(
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
