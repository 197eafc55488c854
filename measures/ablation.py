"""Score of a task with heads ablated: single heads, layers, named sets (Kovaleva et al. 2019, Michel et al. 2019)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import comb, prod
from typing import Any, Literal

import numpy as np
import pandas as pd
from jsonargparse import Namespace
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from attention.ablation import PIECES, Ablation, Kind
from attention.capture import Heads, named_heads
from datamodules import ClassificationDataModule, SegmentBatch, TextBatch, TextDataModule
from datamodules.batches import Split
from datamodules.corpus import CorpusDataModule, data_for
from measures.contract import Measure
from measures.task import REFERENCES, Classification, LanguageModelling, Task, TaskOutputs, make_ablation
from metrics.bootstrap import against_random_draws, difference, draws_for, holm, p_units, pooled
from metrics.rows import ItemRows
from models.checkpoints import checkpoint_file, data_settings, read_checkpoint
from results import Bars, Estimate, Figure, Result, Table, Unit
from results.errors import UserError, check_names, check_numbers, check_values, counted
from results.heads import head_map
from results.progress import Progress

LEVEL = 0.05  # of a head that helps or hurts, after Holm's correction
DRAWS = 10_000  # of the bootstrap, or more, as far as they fit into memory


class TaskMeasure(Measure[CorpusDataModule[Any]]):
    """Base of measurements that score a model with attention heads ablated.

    With a checkpoint the task is the classification that the model was trained
    for, and `--data` defaults to the data of that training. Without a checkpoint the task is language modelling, on
    texts (`TextDataModule`).

    Subclasses implement `sets` and `summary`.

    Args:
        checkpoint: Checkpoint of a `TransformerClassifier`; None for language modelling.
        split: Split of labelled texts that is scored.

    Attributes:
        task: Model and its score, known once the data are set up.
        references: Description, for messages, of the texts that the ablations `mean` and `resample` take replacements
            from.
    """

    takes = CorpusDataModule
    task: Task

    def __init__(self, checkpoint: str | None, split: Literal["dev", "test"]) -> None:
        super().__init__()
        check_values(self, split=split)
        self.checkpoint = None if checkpoint is None else checkpoint_file(checkpoint)
        self.split, self.references = split, "dev"

    @classmethod
    def data_of(cls, arguments: Namespace, given: Namespace | None) -> Namespace | None:
        """Return the given data settings; if the command line has no `--data`, those stored in the checkpoint."""
        if given is not None or arguments.checkpoint is None:
            return given
        path = checkpoint_file(arguments.checkpoint)
        return data_settings(path, read_checkpoint(path))

    def prepare(self) -> None:
        """Load the model; raise a UserError if model and data do not fit."""
        name, device = type(self).__name__, self.device
        if self.checkpoint is not None:
            labelled = data_for(f"{name} with a checkpoint", ClassificationDataModule, self.data)
            # Two copies of a batch at least run at once.
            labelled.eval_tokens = PIECES.get(device.type, PIECES["cuda"]) // 2
            self.task = Classification.from_data(self.checkpoint, labelled, device)
        else:
            texts = data_for(f"{name} without a checkpoint", TextDataModule, self.data)
            if len(texts.encoders) > 1 or texts.quantity != "attention":
                raise UserError(
                    f"{name} replaces the attention of one encoder. Leave out `random_init`, `before` and `quantity` "
                    "of --data.init_args."
                )
            self.task = LanguageModelling(texts.encoders["given"], self.seed)

    def sets(self) -> Mapping[Ablation, Sequence[Heads]]:
        """Return the sets of heads to ablate, for each ablation (the replacement of the heads' outputs).

        The model is run once for each set, with all its heads ablated. The method is called when the
        model is on its device.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement sets().")

    def summary(self, outputs: TaskOutputs) -> Result:
        """Return the result of the measurement.

        Args:
            outputs: Outputs of the model for all texts, with each set of heads ablated.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement summary().")

    def drawn(self, split: Split, most: int) -> list[dict[str, Tensor]]:
        """Draw random texts of a split, and return batches of the model's inputs for them.

        All processes draw the same texts.

        Args:
            split: The split; if texts for language modelling lack it, all test data are used.
            most: Largest number of texts.
        """
        data, there = self.data, True
        if isinstance(data, TextDataModule) and not (there := data.has_split(split)):
            self.references = f"the test split, as there is no {split} split"
            rank_zero_warn(
                f"The data have no {split} split, so the replacements for ablated heads are computed on texts of the "
                f"test split, which are scored too. To keep them apart, give corpora with a {split} split."
            )
        return self.task.drawn(data, split if there else None, most, self.seed)

    def begin(self) -> None:
        """Determine the sets of heads to ablate, and create the metric that gathers the model's outputs."""
        self._sets_of = self.sets()
        self._rows = ItemRows(self.task.columns(self._sets_of)).to(self.device)

    def reads_batch(self, batch: object) -> bool:
        of_split = batch.split == self.split if isinstance(batch, TextBatch) else isinstance(batch, SegmentBatch)
        return of_split and len(batch.index) > 0  # type: ignore[attr-defined]

    def update(self, batch: TextBatch | SegmentBatch) -> None:
        rows = self.task.rows(self.task.inputs(batch), self._sets_of)
        self._rows.update(index=batch.index, **{name: column.to(self.device) for name, column in rows.items()})

    def outcome(self) -> Result:
        return self.summary(TaskOutputs.from_rows(self.task, self._rows.take(), self._sets_of))


@dataclass(frozen=True)
class HeadSet:
    """Attention heads that are ablated together; their score is one row of a table.

    Attributes:
        table: Name of the table.
        columns: Columns that identify the row, by name.
        heads: The heads.
        random: Random sets for comparison, with as many heads of the same layers.
    """

    table: Literal["ablation", "layers", "sets"]
    columns: Mapping[str, str | int]
    heads: Heads
    random: tuple[Heads, ...] = ()


class HeadAblation(TaskMeasure):
    """Scores of a model without some of its attention heads.

    It ablates each head alone, each layer alone, and each set of heads that the user names. Named
    sets are compared with random sets; a small p-value means that the named set is unlike one more random set, and
    that other texts would show it too (`metrics.bootstrap.against_random_draws`). A paired bootstrap over texts tests
    the difference between each score and the score of the intact model. Holm's method (1979) adjusts the p-values over
    all rows of a table that have the same kind of ablation.

    Args:
        checkpoint: Checkpoint of a `TransformerClassifier`, scored on its own texts; None for
            language modelling.
        kinds: Replacements of the outputs of heads; `uniform` as in Kovaleva et al. (2019), `zero`
            as in Michel et al. (2019).
        heads: True to ablate each head alone.
        layers: True to ablate each layer alone, that is all heads of the layer.
        sets: Named sets: the heads of each set, by name of the set. A head is written `layer-head`,
            a whole layer `layer`, both counted from 1.
        random: Number of random sets for each named set, at least 2, with as many heads of the same layers; fewer
            if there are no more. They may share heads with the named set.
        split: Split of labelled texts that is scored. The ablations `mean` and `resample` take
            replacements from at most 1,000 texts of dev; if dev is scored, the mean thus includes
            the scored text, and `resample` never takes the scored text.

    Raises:
        UserError: There is nothing to ablate, `kinds` has duplicates, the data do not fit the
            checkpoint, or the model has no such head.
    """

    experiment = "ablation"

    def __init__(
        self,
        checkpoint: str | None = None,
        kinds: Sequence[Kind] = ("zero",),
        heads: bool = True,
        layers: bool = True,
        sets: dict[str, list[str | int]] | None = None,
        random: int = 20,
        split: Literal["dev", "test"] = "dev",
    ) -> None:
        super().__init__(checkpoint, split)
        check_values(self, kinds=kinds)
        check_names("--model.init_args.kinds", kinds)
        if not (heads or layers or sets):
            raise UserError("Nothing is ablated: --model.init_args needs `heads` or `layers` true, or `sets` of heads.")
        check_numbers(self, least=2, random=random)
        self.kinds, self.each_head, self.each_layer = tuple(kinds), heads, layers
        self.named, self.random = dict(sets or {}), random

    def prepare(self) -> None:
        super().prepare()
        self.head_sets = self._head_sets()

    def _head_sets(self) -> list[HeadSet]:
        task, found = self.task, list[HeadSet]()
        heads = list(product(range(task.layers), range(task.heads)))
        if self.each_head:
            found += [HeadSet("ablation", {"layer": i + 1, "head": j + 1}, frozenset({(i, j)})) for i, j in heads]
        if self.each_layer:
            layers = [frozenset(head for head in heads if head[0] == layer) for layer in range(task.layers)]
            found += [HeadSet("layers", {"layer": number}, layer) for number, layer in enumerate(layers, start=1)]
        for place, (name, wanted) in enumerate(self.named.items()):
            own = named_heads(wanted, task.layers, task.heads, f"--model.init_args.sets.{name}")
            drawn = np.random.default_rng([self.seed, place])
            random = random_sets(own, task.heads, self.random, drawn)
            found.append(HeadSet("sets", {"set": name, "heads": len(own)}, own, random))
        return found

    def sets(self) -> Mapping[Ablation, Sequence[Heads]]:
        run, heads = self.task.outputs, [heads for one in self.head_sets for heads in (one.heads, *one.random)]
        ablations = [make_ablation(kind, run, lambda: self.drawn("dev", REFERENCES), self.seed) for kind in self.kinds]
        references = [one.reference for one in ablations if one.reference is not None]
        self._reference = references[-1] if references else None
        shared = "layers below the ablated ones are computed once per batch"
        shared = shared if self.task.ablated.shares else "each needs a full forward pass"
        rank_zero_info(f"Ablating {counted(len(ablations) * len(heads), 'set')} of heads; {shared}.")
        # The whole model runs once, beside the sets of the first kind.
        return {one: [frozenset(), *heads] if one is ablations[0] else heads for one in ablations}

    def summary(self, outputs: TaskOutputs) -> Result:
        task, tests = self.task, self.task.layers * self.task.heads
        draws = draws_for(tests, len(outputs), DRAWS)
        least = min(1.0, 2 / (1 + draws) * tests)
        if self.each_head and least >= LEVEL:
            rank_zero_warn(
                f"With {len(outputs)} texts only {draws} bootstrap resamples fit into memory, so none of {tests} heads "
                "can be significant after Holm's correction. The counts of significant heads stay empty. To get them, "
                "score fewer texts."
            )
        outputs.warn_of_one_label(self.kinds[0])
        whole = outputs.score(self.kinds[0], frozenset(), draws)
        scores, figures = {task.score: whole}, dict[str, Figure]()
        headline = list(scores)
        tables = self._tables(outputs, whole)
        for kind in self.kinds:
            if self.each_head:
                heads = tables["ablation"].frame
                scores |= self._counts(kind, heads[heads["kind"] == kind], known=least < LEVEL)
                headline += [f"{kind}.heads_that_help", f"{kind}.heads_that_hurt"]
            figures |= self._figures(kind, tables)
        audit: dict[str, object] = {"texts": len(outputs), "draws": draws, **self._audit()}
        audit |= {"score": task.score, "lower_is_better": task.lower_is_better}
        if self.each_head:
            audit["least_p_holm"] = least
        return Result(self.experiment, scores, tables, figures, audit, headline=headline)

    def _tables(self, outputs: TaskOutputs, whole: Estimate) -> dict[str, Table]:
        """Return the tables of heads, layers and named sets with a row for each kind; the smallest is printed.

        Named sets stand beside random sets: `other_heads` is the mean number of heads of a random set outside the named
        one. P-values are adjusted for all rows of one kind.
        """
        rows: dict[str, list[dict[str, object]]] = {}
        draws = len(whole.draws)
        progress = Progress("Scores and their intervals", len(self.kinds) * len(self.head_sets))
        for kind, one in product(self.kinds, self.head_sets):
            found = outputs.score(kind, one.heads, draws)
            row: dict[str, object] = {"kind": kind, **one.columns, **compared([found], whole)}
            row.pop("sd", None)
            if one.random:
                random = [outputs.score(kind, heads, draws) for heads in one.random]
                average, apart = against_random_draws(found, random)
                row |= average.named("random") | apart.named("beyond_random")
                row["other_heads"] = np.mean([len(heads - one.heads) for heads in one.random])
            rows.setdefault(one.table, []).append(row)
            progress.advance()
        of_scores = ("score", "difference", "random", "beyond_random")
        units: dict[str, Unit] = {**dict.fromkeys(of_scores, self.task.unit), "other_heads": "count"}
        tables = dict[str, Table]()
        for name, own in rows.items():
            frame = pd.DataFrame(own).rename(columns={"beyond_random.p": "beyond_random_p"})
            known: dict[str, Unit | Sequence[Unit]] = {name: unit for name, unit in units.items() if name in frame}
            for p in (column for column in ("p", "beyond_random_p") if column in frame):
                adjusted = frame.groupby("kind", sort=False)[p].transform(lambda of_kind: holm(of_kind.tolist()))
                frame[f"{p}_holm"] = adjusted.to_numpy()
                known |= dict.fromkeys((p, f"{p}_holm"), p_units(frame[p], 2 / (1 + draws)))
            if name == "sets":
                asked = ("beyond_random", "beyond_random_p_holm") if "beyond_random" in frame else ("score", "p_holm")
                answer = ["kind", "set", "difference", *asked]
            else:
                answer = ["kind", "layer", *(["head"] if name == "ablation" else []), "difference", "p_holm"]
            printed = answer if len(tables) == len(rows) - 1 else ()
            tables[name] = Table(frame, known, interval="score", answer=printed)
        return tables

    def _audit(self) -> dict[str, object]:
        audit: dict[str, object] = {}
        if (reference := self._reference) is not None:
            kept = len(reference.lengths)
            audit["reference"] = f"{reference.texts} texts of {self.references}, {kept} to resample"
            of_dev = self.checkpoint is not None and self.split == "dev"
            audit["means_include_scored_texts"] = of_dev or self.references != "dev"
        return audit

    def _counts(self, kind: Kind, heads: pd.DataFrame, *, known: bool) -> dict[str, Estimate]:
        """Count the heads that help, that hurt, and that are undecided after Holm's correction.

        The counts are nan unless `known`: no p-value could be small enough.
        """
        gain = heads["difference"] if self.task.lower_is_better else -heads["difference"]
        clear = heads["p_holm"] < LEVEL
        groups = {"help": clear & (gain > 0), "hurt": clear & (gain < 0)}
        counts = {f"heads_that_{name}": int(of.sum()) for name, of in groups.items()}
        counts["heads_undecided"] = len(heads) - sum(counts.values())
        extremes = {"lowest": heads["difference"].min(), "highest": heads["difference"].max()}
        return {
            **{f"{kind}.{name}": Estimate(count if known else np.nan, unit="count") for name, count in counts.items()},
            **{f"{kind}.{name}_difference": Estimate(value, unit=self.task.unit) for name, value in extremes.items()},
        }

    def _figures(self, kind: Kind, tables: Mapping[str, Table]) -> dict[str, Figure]:
        """Draw a map of the differences of all heads, and a bar for each layer."""
        task, found = self.task, dict[str, Figure]()
        label = f"change of {task.score}"
        frames = {name: table.frame[table.frame["kind"] == kind] for name, table in tables.items()}
        if "ablation" in frames:
            values = frames["ablation"]["difference"].to_numpy().reshape(task.layers, task.heads)
            title = f"Heads off, one at a time ({kind}, {self.split})"
            found[f"ablation_{kind}"] = replace(
                head_map(title, values, value_label=label, unit=task.unit), diverging=True
            )
        if "layers" in frames:
            title = f"All heads of a layer off ({kind}, {self.split})"
            shown = tables["layers"].rows(frames["layers"].index.tolist())
            found[f"layers_{kind}"] = Bars.from_table(title, shown, "layer", {kind: "difference"}, label, "layer")
        return found


def compared(found: Sequence[Estimate], whole: Estimate) -> dict[str, float]:
    """Average a score over several random orders of pruning, and compare it with the intact model's.

    Args:
        found: Score under each order, with its bootstrap draws; one score for a ranking that is not
            random.
        whole: Score of the intact model under the same draws.

    Returns:
        Columns of a table row, by name. `score` is the average, with its interval `low, high` and the
        standard deviation `sd` over orders, nan for one order. `difference` is the average minus the
        intact model's score, with its interval `difference.low, difference.high` and its p-value `p`.
    """
    score = pooled(found)
    row = {name.removeprefix("score."): number for name, number in score.named("score").items()}
    apart = difference(score, whole).named("difference")
    return row | {name.replace("difference.p", "p"): number for name, number in apart.items()}


def random_sets(like: Heads, heads: int, number: int, random: np.random.Generator) -> tuple[Heads, ...]:
    """Draw different random sets with as many heads of each layer as another set.

    Each such set but the given one is as likely, and may share heads with it, so that all are exchangeable if the given
    set is one of many. There are fewer than `number` if there are no more.

    Args:
        like: The other set, as pairs of 0-based layer and head.
        heads: Number of heads of each layer of the model.
        number: Largest number of sets.
        random: Random generator.
    """
    sizes = Counter(layer for layer, _ in sorted(like))
    others = prod(comb(heads, size) for size in sizes.values()) - 1
    found = {like: None}
    while len(found) <= min(number, others):
        drawn = {layer: random.choice(heads, size, replace=False).tolist() for layer, size in sizes.items()}
        found.setdefault(frozenset((layer, head) for layer, own in drawn.items() for head in own))
    return tuple(found)[1:]
