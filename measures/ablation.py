"""Score of a task with heads ablated (Kovaleva et al. 2019), or pruned one after the other (Michel et al. 2019)."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import comb, prod
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
import torch
from jsonargparse import Namespace
from lightning_utilities.core.rank_zero import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor, nn

from attention_probing.attention.ablation import PIECES, Ablation, Kind
from attention_probing.attention.capture import Mixture, intervening, replacing
from attention_probing.attention.heads import Head, Heads, parse_heads
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import (
    ClassificationDataModule,
    PairBatch,
    PairDataModule,
    SegmentBatch,
    TextBatch,
    TextDataModule,
)
from attention_probing.datamodules.corpus import CorpusDataModule, data_for
from attention_probing.measures.by_head import head_rows
from attention_probing.measures.contract import Measure
from attention_probing.measures.task import (
    REFERENCES,
    Classification,
    LanguageModelling,
    MinimalPairs,
    Task,
    TaskOutputs,
    make_ablation,
)
from attention_probing.metrics.bootstrap import (
    EXACT,
    against_random_draws,
    difference,
    draws_for,
    holm,
    least_p,
    p_units,
    pool_seeds,
    with_interval_and_p,
)
from attention_probing.metrics.moments import Moments
from attention_probing.metrics.rows import Rows
from attention_probing.models import recorded_gradients
from attention_probing.models.checkpoints import checkpoint_file, data_settings, read_checkpoint
from attention_probing.results import Bars, Curves, Estimate, Figure, Floats, Result, Table, Unit
from attention_probing.results.errors import UserError, check_names, pluralize, setting
from attention_probing.results.heads import head_map
from attention_probing.results.options import Positive, Several, checked
from attention_probing.results.progress import Progress, inform
from attention_probing.results.sentences import (
    LEVEL,
    UNDEFINED,
    Difference,
    describe_differences,
    fill_sentence,
    format_estimate,
)

_ABLATED = {"sets": "set", "ablation": "head", "layers": "layer"}
DRAWS = 10_000  # of the bootstrap, or more, as far as they fit into memory


class TaskMeasure(Measure[CorpusDataModule[Any]]):
    """Base of measurements that score a model with attention heads ablated.

    With a checkpoint the task is the classification that the model was trained
    for, and `--data` defaults to the data of that training. Without a checkpoint the task is language modelling, on
    texts (`TextDataModule`), or minimal pairs (`PairDataModule`).

    Subclasses implement `sets` and `summary`.

    Args:
        checkpoint: Checkpoint of a `TransformerClassifier`; None for language modelling or minimal pairs.
        split: Split of labelled texts that is scored.

    Attributes:
        task: Model and its score, known once the data are set up.
    """

    takes: ClassVar[type[Any]] = CorpusDataModule
    task: Task

    @checked
    def __init__(self, checkpoint: str | None, split: Literal["dev", "test"]) -> None:
        super().__init__()
        self.checkpoint = None if checkpoint is None else checkpoint_file(checkpoint)
        self.split = split

    @classmethod
    def data_of(cls, arguments: Namespace | Self, given: Namespace | None) -> Namespace | None:
        """Return the given data settings; if the command line has no `--data`, those stored in the checkpoint."""
        checkpoint = getattr(arguments, "checkpoint", None)
        if given is not None or checkpoint is None:
            return given
        path = checkpoint_file(checkpoint)
        return data_settings(path, read_checkpoint(path))

    def begin(self) -> None:
        """Load the model, choose the sets of heads to ablate, and create the rows of the model's outputs.

        Raises:
            UserError: The model and the data do not fit.
        """
        self._load_task()
        with torch.inference_mode():
            self._sets_of = self.sets()
        self._rows = Rows()

    def _load_task(self) -> None:
        name, device = type(self).__name__, self.device
        if self.checkpoint is not None:
            labelled = data_for(f"{name} with a checkpoint", ClassificationDataModule, self.data)
            # Two copies of a batch at least run at once.
            labelled.eval_tokens = PIECES.get(device.type, PIECES["cuda"]) // 2
            self.task = Classification.from_data(self.checkpoint, labelled, device)
        elif isinstance(self.data, PairDataModule):
            self.task = MinimalPairs(self.data.splits["test"])
        else:
            texts = data_for(f"{name} without a checkpoint", TextDataModule, self.data)
            if len(texts.encoders) > 1 or texts.quantity != "attention":
                raise UserError(
                    f"{name} replaces the attention of one encoder. Leave out `random_init`, `before` and `quantity`."
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
            split: The split; if texts for language modelling or minimal pairs lack it, all test data are used.
            most: Largest number of texts.
        """
        if not (there := self._has(split)) and not isinstance(self.data, PairDataModule):
            rank_zero_warn(
                f"The data have no {split} split, so the replacements for ablated heads are computed on texts of the "
                f"test split, which are scored too. To keep them apart, give corpora with a {split} split."
            )
        return self.task.drawn(self.data, split if there else None, most, self.seed)

    def _has(self, split: Split) -> bool:
        """Return False if the texts lack a split: minimal pairs have one split alone."""
        return self.checkpoint is not None or (isinstance(self.data, TextDataModule) and self.data.has_split(split))

    def update(self, batch: TextBatch | SegmentBatch | PairBatch) -> None:
        if isinstance(batch, TextBatch) and batch.split != self.split:
            return
        if not len(batch.index):
            return
        outputs = self.task.rows(self.task.inputs(batch), self._sets_of)
        self._rows.add(batch.index, **outputs)

    def result(self) -> Result:
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

    @property
    def name(self) -> str:
        """Name in a sentence, such as `3-1` for a head."""
        return "-".join(str(self.columns[column]) for column in ("set", "layer", "head") if column in self.columns)


Differences = dict[tuple[str, Kind], dict[str, Estimate]]
"""Tested differences by the name of the set, for each table and kind of ablation."""


class HeadAblation(TaskMeasure):
    """Scores of a model without some of its attention heads.

    It ablates each head alone, each layer alone, and each set of heads that the user names. Named
    sets are compared with random sets; a small p-value means that the difference is larger than two things explain:
    the variation of random sets, and the variation of texts (`metrics.bootstrap.against_random_draws`). A paired
    bootstrap over texts tests the difference between each score and the score of the intact model. Holm's method (1979)
    adjusts the p-values over all rows of a table that have the same kind of ablation.

    On minimal pairs the table `fields` has a row for each named set and field of grammar.

    Args:
        checkpoint: Checkpoint of a `TransformerClassifier`, scored on its own texts; None for
            language modelling or minimal pairs.
        kinds: Replacements of the outputs of heads; `uniform` as in Kovaleva et al. (2019), `zero`
            as in Michel et al. (2019).
        heads: True to ablate each head alone.
        layers: True to ablate each layer alone, that is all heads of the layer.
        sets: Named sets: the heads of each set, by name of the set. A head is written `layer-head`,
            a whole layer `layer`, both counted from 1.
        random: Number of random sets for each named set, at least 2, with as many heads of the same layers; fewer
            sets if no more exist. They may share heads with the named set.
        split: Split of labelled texts that is scored. The ablations `mean` and `resample` take
            replacements from at most 1,000 texts of dev; if dev is scored, the mean thus includes
            the scored text, and `resample` never takes the scored text. Minimal pairs have no dev: the
            texts are sentences of the scored pairs.

    Raises:
        UserError: There is nothing to ablate, `kinds` has duplicates, the data do not fit the
            checkpoint, or the model has no such head.
    """

    experiment = "ablation"

    @checked
    def __init__(
        self,
        checkpoint: str | None = None,
        kinds: Sequence[Kind] = ("zero",),
        heads: bool = True,
        layers: bool = True,
        sets: dict[str, list[str | int]] | None = None,
        random: Several = 20,
        split: Literal["dev", "test"] = "dev",
    ) -> None:
        super().__init__(checkpoint, split)
        check_names(setting("model.kinds"), kinds)
        if not (heads or layers or sets):
            raise UserError("Nothing is ablated. Give `heads` or `layers` true, or `sets` of heads.")
        self.kinds, self.each_head, self.each_layer = tuple(kinds), heads, layers
        self.named, self.random = dict(sets or {}), random

    def _head_sets(self) -> list[HeadSet]:
        task, found = self.task, list[HeadSet]()
        heads = list(product(range(task.layers), range(task.heads)))
        if self.each_head:
            found += [HeadSet("ablation", {"layer": i + 1, "head": j + 1}, frozenset({(i, j)})) for i, j in heads]
        if self.each_layer:
            layers = [frozenset(head for head in heads if head[0] == layer) for layer in range(task.layers)]
            found += [HeadSet("layers", {"layer": number}, layer) for number, layer in enumerate(layers, start=1)]
        for place, (name, wanted) in enumerate(self.named.items()):
            own = parse_heads(wanted, task.layers, task.heads, f"{setting('model.sets')}.{name}")
            drawn = np.random.default_rng([self.seed, place])
            random = random_sets(own, task.heads, self.random, drawn)
            found.append(HeadSet("sets", {"set": name, "heads": len(own)}, own, random))
        return found

    def sets(self) -> Mapping[Ablation, Sequence[Heads]]:
        self.head_sets = self._head_sets()
        run, heads = self.task.outputs, [heads for one in self.head_sets for heads in (one.heads, *one.random)]
        ablations = [make_ablation(kind, run, lambda: self.drawn("dev", REFERENCES), self.seed) for kind in self.kinds]
        references = [one.reference for one in ablations if one.reference is not None]
        self._reference = references[-1] if references else None
        shared = "layers below the ablated ones are computed once per batch"
        shared = shared if self.task.ablated.shares else "each needs a full forward pass"
        inform(f"Ablating {pluralize(len(ablations) * len(heads), 'set')} of heads; {shared}.")
        # The whole model runs once, beside the sets of the first kind.
        return {one: [frozenset(), *heads] if one is ablations[0] else heads for one in ablations}

    def summary(self, outputs: TaskOutputs) -> Result:
        task, tests = self.task, self.task.layers * self.task.heads
        draws = draws_for(tests, len(outputs), DRAWS)
        smallest = max(2 / (1 + draws), 2 * 0.5 ** len(outputs))
        least = min(1.0, smallest * tests)
        if self.each_head and least >= LEVEL:
            rank_zero_warn(
                f"With {len(outputs)} texts the smallest p is {smallest:.2g}, so none of {tests} heads can be "
                "significant after Holm's correction. The counts of significant heads stay empty. To get them, score "
                f"{'more' if len(outputs) <= EXACT else 'fewer'} texts."
            )
        outputs.warn_of_one_label(self.kinds[0])
        whole = outputs.score(self.kinds[0], frozenset(), draws)
        scores, figures = {task.score: whole}, dict[str, Figure]()
        headline = list(scores)
        tables, differences = self._tables(outputs, whole)
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
        known = not self.each_head or least < LEVEL
        answer = fill_sentence(self._answer(tables, differences, known=known), scores, n=len(outputs))
        return Result(self.experiment, scores, tables, figures, audit, headline=headline, answer=answer)

    def _answer(self, tables: Mapping[str, Table], differences: Differences, *, known: bool) -> str:
        """Return how many sets, heads or layers matter if ablated by the first kind, and the one that changes most."""
        name, what = next((name, what) for name, what in _ABLATED.items() if name in tables)
        task, kind = self.task, self.kinds[0]
        own = tables[name].frame.query("kind == @kind")
        beyond = name == "sets" and bool(own["beyond_random"].notna().any())
        apart = differences[name, kind]
        p = "beyond_random_p_holm" if beyond else "p_holm"
        units = tables[name].unit_rows()[p]
        tests = max(1, int(own[p].notna().sum()))
        family = []
        for row, (place, one) in zip(own.index, apart.items(), strict=True):
            at_once = with_interval_and_p(one, tests) if one.draws.size else one
            family.append(Difference(place, at_once, p_unit=units[row]))
        than = " otherwise than random heads of the same layers" if beyond else ""
        score, items = task.score.rpartition(".")[2], "pairs" if isinstance(task, MinimalPairs) else "texts"
        text = f"the {score} of the intact model is {{{task.score}}} over {{n}} {items}"
        if not known:
            return text
        changes = describe_differences(family, own[p].tolist(), what, "change it", than)
        return f"{text}; ablated alone ({kind}), {changes}"

    def _tables(self, outputs: TaskOutputs, whole: Estimate) -> tuple[dict[str, Table], Differences]:
        """Return the tables of heads, layers and named sets with a row for each kind; the smallest is printed.

        Beside them are the tested differences of each table and kind.

        Named sets stand beside random sets: `other_heads` is the mean number of heads of a random set outside the named
        one. P-values are adjusted for all rows of one kind.
        """
        rows: dict[str, list[dict[str, object]]] = {}
        differences: Differences = {}
        groups = {name: outputs.only(texts) for name, texts in self.task.groups().items()}
        wholes = {name: some.score(self.kinds[0], frozenset(), len(whole.draws)) for name, some in groups.items()}
        progress = Progress("Scores and their intervals", len(self.kinds) * len(self.head_sets))
        for kind, one in product(self.kinds, self.head_sets):
            row, apart = self._row(outputs, kind, one, whole)
            rows.setdefault(one.table, []).append(row)
            differences.setdefault((one.table, kind), {})[one.name] = apart
            for name, some in groups.items() if one.table == "sets" else ():
                row, _ = self._row(some, kind, one, wholes[name])
                rows.setdefault("fields", []).append({"field": name, "n": len(some), **row})
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
                least = least_p(whole.units or 0, len(whole.draws))
                known |= dict.fromkeys((p, f"{p}_holm"), p_units(frame[p], least))
            of_sets = ("beyond_random", "beyond_random_p_holm") if "beyond_random" in frame else ("score", "p_holm")
            asked = of_sets if "set" in frame else ["p_holm"]
            shown = ("kind", "set", "field", "layer", "head", "difference", *asked)
            main = [column for column in shown if column in frame]
            printed = main if len(tables) == len(rows) - 1 else ()
            tables[name] = Table(frame, known, interval="score", main=printed)
        return tables, differences

    def _row(
        self, outputs: TaskOutputs, kind: Kind, one: HeadSet, whole: Estimate
    ) -> tuple[dict[str, object], Estimate]:
        """Return the row of a table for a set of heads, and its tested difference.

        The difference is to the intact model, or to random sets if there are any.
        """
        draws = len(whole.draws)
        found = outputs.score(kind, one.heads, draws)
        row: dict[str, object] = {"kind": kind, **one.columns, **against_whole([found], whole)}
        row.pop("sd", None)
        tested = difference(found, whole)
        if one.random:
            random = [outputs.score(kind, heads, draws) for heads in one.random]
            average, tested = against_random_draws(found, random)
            row |= average.named("random") | tested.named("beyond_random")
            row["other_heads"] = np.mean([len(heads - one.heads) for heads in one.random])
        return row, tested

    def _audit(self) -> dict[str, object]:
        audit: dict[str, object] = {}
        if (reference := self._reference) is not None:
            kept = len(reference.lengths)
            own = "the pairs" if isinstance(self.data, PairDataModule) else "the test split, as there is no dev split"
            of = "dev" if self._has("dev") else own
            audit["reference"] = f"{reference.texts} texts of {of}, {kept} to resample"
            of_dev = self.checkpoint is not None and self.split == "dev"
            audit["means_include_scored_texts"] = of_dev or not self._has("dev")
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


def against_whole(found: Sequence[Estimate], whole: Estimate) -> dict[str, float]:
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
    score = pool_seeds(found)  # random orders, which vary like seeds
    row = {name.removeprefix("score."): number for name, number in score.named("score").items()}
    apart = difference(score, whole, fixed=True).named("difference")
    return row | {name.replace("difference.p", "p"): number for name, number in apart.items()}


def random_sets(like: Heads, heads: int, number: int, random: np.random.Generator) -> tuple[Heads, ...]:
    """Draw different random sets with as many heads of each layer as another set.

    All such sets except the given one are equally likely, and they may share heads with it. If the given set is itself
    a random one, all sets are therefore exchangeable. Fewer than `number` sets are returned if no more exist.

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


_STEPS = 10
SHARES = tuple(step / _STEPS for step in range(_STEPS + 1))
"""Shares of the heads that are pruned (Michel et al. 2019, §4)."""

Ranking = Literal["importance", "confidence", "random"]


def head_derivatives(
    losses: Callable[[Mapping[str, Tensor]], Tensor], inputs: Mapping[str, Tensor], off: Heads = frozenset()
) -> Tensor:
    """Return ∂L/∂ξ for every text and attention head, `[batch, layers, heads]` (Michel et al. 2019, §4.1).

    ξ is a factor that multiplies the output of a head. It is 0 for the heads in `off`, and 1 for all
    others. One backward pass gives the derivatives of all texts.

    Args:
        losses: Function that returns the loss of each text, `[batch]`, given inputs; each loss must depend
            on one text alone.
        inputs: Inputs of a batch.
        off: Heads that are pruned, as pairs of 0-based layer and head.
    """
    factors: list[Tensor] = []

    def scale(layer: int, module: nn.Module, mixture: Mixture) -> Tensor:
        outputs = mixture.outputs
        factor = outputs.new_ones(outputs.shape[:2])
        factor[:, [head for of, head in off if of == layer]] = 0
        factors.append(factor.requires_grad_())
        return outputs * factor[:, :, None, None]

    with recorded_gradients(), replacing(scale):
        total = losses({name: tensor.clone() for name, tensor in inputs.items()}).sum()
        return torch.stack(torch.autograd.grad(total, factors), 1)


def head_confidences(run: Callable[[Mapping[str, Tensor]], Tensor], inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the largest attention weight of each head from each piece to any piece of a word.

    Pieces that belong to no word, such as delimiters, do not count as targets, and their own values are
    nan. Voita et al. (2019, §4) leave out only the end-of-sentence symbol.

    Args:
        run: Function that runs the model on inputs; what it returns is not used.
        inputs: Inputs of a batch, with `words`, bool `[batch, pieces]`, True for pieces of words.

    Returns:
        `[batch, pieces, layers, heads]`, where `pieces` are the pieces that attend.
    """
    words, found = inputs["words"], list[Tensor]()

    def see(layer: int, weights: Tensor, values: Tensor) -> tuple[Tensor, None]:
        largest = weights.masked_fill(~words[:, None, None], 0.0).amax(3)
        found.append(largest.masked_fill(~words[:, None], torch.nan).transpose(1, 2))
        return weights, None

    with torch.inference_mode(), intervening(see):
        run(inputs)
    return torch.stack(found, 2)


def normalised(importance: Floats) -> Floats:
    """Divide the importance of heads, `[layers, heads]`, by the ℓ2 norm of their layer (Michel et al. 2019, §4.1)."""
    norm = np.sqrt(np.square(importance).sum(1, keepdims=True))
    shares: Floats = np.divide(importance, norm, out=np.zeros_like(importance), where=norm > 0)
    return shares


class Pruning(TaskMeasure):
    """Scores of a classifier as its heads are pruned, a tenth at a time, without training.

    Heads are pruned in the order of a ranking. `importance` is E_x |∂L(x)/∂ξ_h| over texts of train, divided by
    the ℓ2 norm of the layer, lowest first (Michel et al. 2019). `confidence` is a head's largest attention weight,
    averaged over the words of the same texts, lowest first (Voita et al. 2019). `random` is a random order. A layer
    may lose all its heads, as by default in the released code of Michel et al.

    The outputs of pruned heads are set to zero, which gives the same scores as a model without them.

    Args:
        checkpoint: Checkpoint of a `TransformerClassifier`; `--data` defaults to the texts it was
            trained on.
        rankings: Rankings of the heads.
        exact: True to estimate importance again after each step, with the heads pruned so far off.
        texts: Number of random texts of train for importance and confidence.
        seeds: Number of random orders, whose scores are averaged.
        split: Split that is scored.

    Raises:
        UserError: An option is out of range, or data and checkpoint do not fit.
    """

    experiment = "pruning"
    task: Classification

    @checked
    def __init__(
        self,
        checkpoint: str,
        rankings: Sequence[Ranking] = ("importance", "confidence", "random"),
        exact: bool = False,
        texts: Positive = 1000,
        seeds: Positive = 5,
        split: Literal["dev", "test"] = "test",
    ) -> None:
        super().__init__(checkpoint, split)
        check_names(setting("model.rankings"), rankings)
        self.rankings, self.exact, self.texts, self.seeds = tuple(rankings), exact, texts, seeds

    def sets(self) -> Mapping[Ablation, Sequence[Heads]]:
        """Rank the heads, and return the sets of heads to prune for the points of all pruning curves.

        At a point the first heads of an order are pruned, from none to all in steps of a tenth; `random`
        has several orders. A set that several points share is returned once. The only key of the mapping
        is the ablation `zero`.
        """
        total = self.task.layers * self.task.heads
        self._counts = [total * step // _STEPS for step in range(_STEPS + 1)]
        # Every process has the same batches, and sums some of them.
        self._train = self.drawn("train", self.texts)[self.ranks.rank :: self.ranks.world]
        self._heads: list[Head] = list(product(range(self.task.layers), range(self.task.heads)))
        self._importance = self._important(frozenset())
        # Over all words of the texts.
        self._confidence = self._mean(lambda inputs: head_confidences(self.task.outputs, inputs), "fraction", 1).value
        self._order = self._by_importance()
        random = [np.random.default_rng([self.seed, place]).permutation(total) for place in range(self.seeds)]
        orders: dict[Ranking, list[list[Head]]] = {
            "importance": [self._order],
            "confidence": [sorted(self._heads, key=lambda head: self._confidence[head])],
            "random": [[self._heads[place] for place in order.tolist()] for order in random],
        }
        self._orders = {name: orders[name] for name in self.rankings}
        self._sets = list(dict.fromkeys(one for name in self._orders for sets in self._off(name) for one in sets))
        removed = pluralize(len(self._sets), "set")
        inform(f"Pruning curve: scoring the model with {removed} of its {pluralize(total, 'head')} ablated.")
        return {Ablation("zero"): self._sets}

    def _off(self, name: Ranking) -> list[list[Heads]]:
        """Return the heads that are off at each share, for each order of a ranking."""
        return [[frozenset(order[:count]) for order in self._orders[name]] for count in self._counts]

    def _important(self, off: Heads) -> Estimate[Floats]:
        """Return mean |∂L/∂ξ| over texts of train, `[layers, heads]`, with some heads off."""
        unit = self.task.loss_unit
        return self._mean(lambda inputs: head_derivatives(self._losses, inputs, off).abs(), unit, np.inf)

    def _mean(self, values: Callable[[Mapping[str, Tensor]], Tensor], unit: Unit, most: float) -> Estimate[Floats]:
        """Return the mean of numbers in 0…most of the texts of train, `[…, layers, heads]`, with its interval."""
        found = Moments(1, (self.task.layers, self.task.heads), unit, (0, most)).to(self.device)
        for inputs in self._train:
            rows = values(inputs).flatten(0, -3)
            found.update(torch.zeros(len(rows), dtype=torch.int64, device=self.device), rows)
        return found.compute().over()

    def _losses(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return self.task.losses(self.task.outputs(inputs), self.task.gold(inputs))

    def _by_importance(self) -> list[Head]:
        order: list[Head] = []
        importance = self._importance.value
        for count in self._counts[1:]:
            if self.exact and order:
                importance = self._important(frozenset(order)).value
                importance[tuple(np.transpose(order))] = 0  # heads that are gone are in no norm
            ranked = normalised(importance)
            left = sorted((head for head in self._heads if head not in order), key=lambda head: float(ranked[head]))
            order += left[: count - len(order)]
        return order

    def summary(self, outputs: TaskOutputs) -> Result:
        task, draws = self.task, draws_for(len(self._orders) * len(SHARES), len(outputs), DRAWS)
        found = {heads: outputs.score("zero", heads, draws) for heads in self._sets}
        outputs.warn_of_one_label("zero")
        whole = found[frozenset()]
        frame = pd.DataFrame(
            [
                {
                    "ranking": name,
                    "pruned": share,
                    **against_whole([found[heads] for heads in sets], whole),
                    "heads": len(sets[0]),
                }
                for name in self._orders
                for share, sets in zip(SHARES, self._off(name), strict=True)
            ]
        )
        frame["p_holm"] = holm(frame["p"].where(frame["heads"] > 0).tolist())
        scores = {task.score: whole}
        for name, own in frame.groupby("ranking", sort=False):
            # The least share whose score lies below the interval of the whole model; nan for none.
            least = own.loc[own["score"] < whole.interval[0], "pruned"].min()  # nan without an interval, too
            scores[f"pruning.{name}.leaves_at"] = Estimate(float(least), unit="fraction")
        audit = {
            "texts": len(outputs),
            "draws": draws,
            "importance": f"over {pluralize(int(self._importance.inputs.max()), 'text')} of train",
        }
        least = least_p(whole.units or 0, draws)
        tables, figures = self._tables(frame, p_units(frame["p"], least)), self._figures(frame, whole)
        shares = {name: scores[f"pruning.{name}.leaves_at"] for name in self._orders}
        never = UNDEFINED if np.isnan(whole.interval[0]) else "never"
        falls = (
            f"{never if one.value != one.value else format_estimate(one)} by {name}" for name, one in shares.items()
        )
        text = f"the {task.score} of the intact model is {{{task.score}}} over {{n}} texts; heads pruned when it "
        answer = fill_sentence(f"{text}falls below this interval: {', '.join(falls)}", scores, n=len(outputs))
        return Result(self.experiment, scores, tables, figures, audit, headline=list(scores), answer=answer)

    def _tables(self, frame: pd.DataFrame, of_p: Sequence[Unit]) -> dict[str, Table]:
        unit = self.task.unit
        units: dict[str, Unit | Sequence[Unit]] = {"pruned": "fraction", "score": unit, "difference": unit}
        units |= {"p": of_p, "p_holm": of_p}
        order = np.empty((self.task.layers, self.task.heads), np.int64)
        order[tuple(np.transpose(self._order))] = range(1, order.size + 1)
        columns: dict[str, Estimate[Floats] | NDArray[Any]] = {
            "importance": self._importance,
            "normalised": normalised(self._importance.value),
            "confidence": self._confidence,
            "order": order,
        }
        of_heads: dict[str, Unit] = {"importance": self.task.loss_unit, "normalised": "ratio", "confidence": "fraction"}
        return {
            "pruning": Table(frame, units, interval="score", main=("ranking", *units)),
            "importance": Table(head_rows(columns), of_heads),
        }

    def _figures(self, frame: pd.DataFrame, whole: Estimate) -> dict[str, Figure]:
        scale = 100 if self.task.unit == "fraction" else 1
        lines = {
            str(name): ((100 * own["pruned"]).tolist(), (scale * own["score"]).tolist())
            for name, own in frame.groupby("ranking", sort=False)
        }
        low, high = (scale * end for end in whole.interval)
        ends = [0.0, 100.0, np.nan, 0.0, 100.0], [low, low, np.nan, high, high]
        importance = normalised(self._importance.value)
        return {
            "pruning": Curves(
                title="Score as heads are pruned",
                x_label="heads pruned (%)",
                y_label=f"{self.task.score} (%)" if scale > 1 else self.task.score,
                lines={**lines, "interval of the whole model": ends},
            ),
            "importance": head_map(
                "Importance of heads", importance, value_label="normalised importance", unit="ratio"
            ),
            "confidence": head_map("Confidence of heads", self._confidence, value_label="mean of the largest weight"),
        }
