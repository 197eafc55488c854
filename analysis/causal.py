"""Whether the heads that find a relation are needed for it: they are off, beside random heads of the same layers."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from analysis.ablation import DRAWS, random_heads
from analysis.importance import IGNORED, Loss, MaskedLoss, NextTokenLoss
from analysis.tables import estimate_bars, name_of
from analysis.task import REFERENCES, RESAMPLED, Classification
from attention import Encoder, EncoderSpec, resolve
from attention.ablation import PIECES, AblatedModel, Ablation, Kind, Reference
from attention.alignment import reduce, reduction
from attention.capture import Head, Heads
from attention.extraction import pad
from datamodules import AttentionBatch, ClassificationDataModule, DependencyDataModule
from datamodules.batches import LengthBatches, Split
from datamodules.corpus import corpus_of
from datamodules.dependency import DependencySplit
from heads.experiment import check_relations
from heads.single_heads import Names, Predictions
from metrics.attachment import Floats
from metrics.bootstrap import Resampled, difference, holm, ratio, resample
from metrics.heads import most_attended
from metrics.rows import ArcRows, ItemRows
from probes.head_selection import HeadSelectionProbe
from probes.nested import NestedExperiment
from processes.ranks import Ranks
from results import Bars, Estimate, Figure, Result, Table, Unit
from results.errors import check_numbers, check_values
from training import ExperimentError, TrainedModule
from training.checkpoints import checkpoint_file, data_settings, datamodule_from, read_checkpoint

_PARTS = 4  # of what may run at once is one batch, so that several copies of it run together
_GOLD = ("index", "lengths", "heads", "relations", "punctuation", "hidden", "vectors")


@dataclass(frozen=True)
class Chosen:
    """The heads of a relation that are put out of action.

    Attributes:
        relation: its name.
        number: it in the datamodule.
        best: those that find it best on dev below the layers that the probe reads, best first.
        random: sets of as many heads of the same layers.
        best_of_all: the best head of all layers.
    """

    relation: str
    number: int
    best: tuple[Head, ...]
    random: tuple[Heads, ...]
    best_of_all: Head

    @property
    def shared(self) -> int:
        """Number of heads of the random sets that are among the best: layers may have too few others."""
        return sum(len(heads & frozenset(self.best)) for heads in self.random)

    @property
    def repeated(self) -> int:
        """Number of random sets that are the same as an earlier one."""
        return len(self.random) - len(set(self.random))

    @property
    def sets(self) -> list[Heads]:
        """None, the best, and each of the random sets."""
        return [frozenset(), frozenset(self.best), *self.random]


class Sentences:
    """The sentences of a split as an encoder reads them.

    Sentences that are read in several windows are left out.
    """

    def __init__(self, data: DependencyDataModule, split: Split, encoder: Encoder) -> None:
        path = data.files()[split]
        cut = data.items(data.extraction(path, encoder.source), data.read(path), encoder).inputs
        self.pieces = [parts[0] for parts in cut]
        self.whole = np.array([len(parts) == 1 for parts in cut], np.bool_)

    def of(self, gold: DependencySplit, relation: int) -> list[tuple[int, NDArray[np.int64]]]:
        """Every sentence that has words in a relation, by number, and the positions of these words, from 1."""
        found = []
        for item in np.flatnonzero(self.whole).tolist():
            words = np.flatnonzero(gold.relations(item) == relation) + 1
            if len(words):
                found.append((item, words))
        return found


def batches_of(lengths: Sequence[int], device: torch.device, ranks: Ranks) -> Iterator[list[int]]:
    """Places of inputs of so many pieces, in batches of this process; which batches there are depends on no process."""
    most = PIECES.get(device.type, PIECES["cuda"]) // _PARTS
    sizes = np.asarray(lengths, np.int64)
    whole = {"max_cells": most, "max_sentences": max(len(sizes), 1), "shuffle": False, "cells": "tokens"}
    return (some for some in LengthBatches(sizes, rank=ranks.rank, world=ranks.world, **whole) if some)  # type: ignore[arg-type]


class Measure(ABC):
    """What is measured with heads off, input by input.

    Attributes:
        name: in tables.
        unit: of the score.
        what: the score in words.
        on: in titles, where it is measured on other texts than those of the relations.
    """

    name: ClassVar[str]
    unit: Unit
    what: str
    on: str = ""

    @abstractmethod
    def resampled(self, chosen: Chosen) -> tuple[int, list[Resampled]]:
        """How many words or texts it is of, and the score with each of the sets off; every process takes part."""


class ProbeAccuracy(Measure):
    """Accuracy of a probe on the words of the relation, from the layers above the heads that are off."""

    name, unit, what = "probe", "fraction", "accuracy of the probe"

    def __init__(
        self, probe: HeadSelectionProbe, gold: DependencySplit, sentences: Sentences, run: "Run", layers: int
    ) -> None:
        self._probe, self._gold, self._sentences, self._run, self._layers = probe, gold, sentences, run, layers

    def resampled(self, chosen: Chosen) -> tuple[int, list[Resampled]]:
        items = [item for item, _ in self._sentences.of(self._gold, chosen.number)]
        gathered = ItemRows({"numbers": 1 + len(chosen.sets)}).to(self._run.device)
        for some in self._run.batches([len(self._sentences.pieces[item]) for item in items]):
            own = [items[place] for place in some]
            parts = [self._sentences.pieces[item] for item in own]
            rows, columns = reduction(parts, self._run.data.options.from_pieces, self._run.device)
            batch = self._gold[own].to(self._run.device)
            known = {name: getattr(batch, name) for name in _GOLD}
            inputs = {**pad(parts, self._run.encoder), "rows": rows, "columns": columns, **known}
            predicted = self._run.ablated.run(self._predicted, inputs, self._run.ablation, chosen.sets, own)
            words = batch.relations == chosen.number
            right = ((predicted == batch.heads) & words).sum(2)
            gathered.update(index=batch.index, numbers=torch.cat([words.sum(1)[:, None], right.T], 1))
        found = gathered.compute()["numbers"]
        return int(found[:, 0].sum()), [_resampled(found[:, [column, 0]], self.unit) for column in _columns(chosen)]

    def _predicted(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Heads of the words, `[batch, n]`, from attention that is reduced as soon as it is there."""
        # A pass that starts from a layer counts from there; the layers that are read are always the last.
        upper: deque[Tensor] = deque(maxlen=self._layers)

        def receive(_: int, weights: Tensor) -> None:
            upper.append(reduce(weights, inputs["rows"], inputs["columns"]))

        encoder = self._run.encoder
        given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        encoder.capture(given, receive, frozenset(range(encoder.layers)))
        known = {name: inputs[name] for name in _GOLD}
        batch = AttentionBatch(attention=torch.stack(list(upper), 1), split=self._gold.split, **known)  # type: ignore[arg-type]
        return self._probe.predict(batch, tree=False).heads


class WordLoss(Measure):
    """Loss of a language model on the pieces of the relation's words, mean over pieces.

    Masked models read a copy of the sentence for every word, in which all pieces of this word are masked.
    """

    name, unit, what = "loss", "nats", "loss on the words of the relation"

    def __init__(self, loss: Loss, gold: DependencySplit, sentences: Sentences, run: "Run") -> None:
        self._loss, self._gold, self._sentences, self._run = loss, gold, sentences, run

    def resampled(self, chosen: Chosen) -> tuple[int, list[Resampled]]:
        encoder, found = self._run.encoder, self._sentences.of(self._gold, chosen.number)
        copies = [
            (item, words)
            for item, all_words in found
            for words in ([all_words] if encoder.causal else all_words[:, None])
        ]
        gathered = ItemRows({"numbers": 1 + len(chosen.sets)}).to(self._run.device)
        for some in self._run.batches([len(self._sentences.pieces[item]) for item, _ in copies]):
            inputs = self._inputs([copies[place] for place in some])
            own = [copies[place][0] for place in some]
            losses = self._run.ablated.run(self._losses, inputs, self._run.ablation, chosen.sets, own)
            counts = (inputs["targets"] != IGNORED).sum(1)
            numbers = torch.cat([counts[:, None], losses.T], 1)
            gathered.update(index=torch.tensor(some, device=losses.device), numbers=numbers)
        rows = gathered.compute()
        # The words of a sentence are not independent: it is the sentences that are drawn anew.
        owners = np.array([copies[place][0] for place in rows["index"].tolist()], np.int64)
        sentences, of = np.unique(owners, return_inverse=True)
        sums = np.zeros((len(sentences), rows["numbers"].shape[1]))
        np.add.at(sums, of, rows["numbers"])
        words = sum(len(own) for _, own in found)
        return words, [_resampled(sums[:, [column, 0]], self.unit) for column in _columns(chosen)]

    def _inputs(self, copies: Sequence[tuple[int, NDArray[np.int64]]]) -> dict[str, Tensor]:
        """What the model reads of sentences, and the pieces of some of their words as targets, `[batch, pieces]`."""
        encoder = self._run.encoder
        parts = [self._sentences.pieces[item] for item, _ in copies]
        inputs = pad(parts, encoder)
        asked = torch.zeros_like(inputs["input_ids"], dtype=torch.bool)
        for row, (part, (_, words)) in enumerate(zip(parts, copies, strict=True)):
            asked[row, : len(part)] = torch.from_numpy(np.isin(part.positions, words)).to(asked.device)
        targets = inputs["input_ids"].masked_fill(~asked, IGNORED)
        if encoder.causal:
            targets = targets.roll(-1, 1)
            targets[:, -1] = IGNORED  # nothing comes before a first piece
        else:
            mask = encoder.tokenizer.mask_token_id
            inputs["input_ids"] = inputs["input_ids"].masked_fill(asked, mask)
        return {**inputs, "targets": targets}

    def _losses(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Sum over the targets of each input, `[batch]`."""
        given = {name: tensor for name, tensor in inputs.items() if name != "targets"}
        counts = (inputs["targets"] != IGNORED).sum(1)
        return (self._loss.of(given, inputs["targets"])[0] * counts).nan_to_num(0.0)  # nan where there is no target


class TaskScore(Measure):
    """Score of a fine-tuned classifier on dev, whose own heads of the same numbers are off."""

    name = "task"

    def __init__(self, task: Classification, data: ClassificationDataModule, run: "Run", kind: Kind, seed: int) -> None:
        self._task, self._texts, self._run = task, data.splits["dev"], run
        self._ablation = task.ablation(kind, seed)
        self.unit, self.what = task.unit, f"{task.score} of the task"
        self.on = f": {task.score} on {corpus_of(data.files()['dev'])['corpus']}, dev"

    def resampled(self, chosen: Chosen) -> tuple[int, list[Resampled]]:
        task = self._task
        gathered = ItemRows({"numbers": 1 + task.width * len(chosen.sets)}).to(self._run.device)
        for some in self._run.batches(self._texts.lengths.tolist()):
            batch = self._texts[some].to(self._run.device)
            gathered.update(index=batch.index, numbers=task.rows(batch, {self._ablation: chosen.sets}))
        rows = gathered.compute()["numbers"]
        return len(rows), [task.resampled(rows, place, DRAWS) for place in range(len(chosen.sets))]


@dataclass(frozen=True, eq=False)
class Run:
    """What all measures share: the encoder, its heads that are off, and the processes."""

    data: DependencyDataModule
    encoder: Encoder
    ablation: Ablation
    device: torch.device
    ranks: Ranks = field(default_factory=Ranks)

    @cached_property
    def ablated(self) -> AblatedModel:
        """The encoder; passes share what lies below the heads that are off."""
        return AblatedModel(self.encoder.model, self.encoder.layers, self.encoder.heads, width=self.encoder.vocabulary)

    def batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Places of inputs of so many pieces, in the batches of this process."""
        return batches_of(lengths, self.device, self.ranks)


def _columns(chosen: Chosen) -> range:
    return range(1, 1 + len(chosen.sets))


def _resampled(counts: Floats, unit: Unit) -> Resampled:
    """A ratio of sums over sentences, `[sentences, 2]`."""
    return resample(lambda rows, weights: ratio(weights @ rows[:, 0], weights @ rows[:, 1]), counts, unit, draws=DRAWS)


def rank_heads(dev: Predictions, relation: str, names: Names) -> tuple[Head, ...]:
    """All heads by their accuracy on a relation in the better of the two directions, best first.

    Raises:
        ExperimentError: the relation has no word.
    """
    if relation not in dev.groups:
        raise ExperimentError(f"relations: dev has no word in the relation {relation!r}, on which heads are chosen.")
    accuracy = dev.accuracies(relation).reshape(2, -1).max(0)
    order = np.argsort(-accuracy, kind="stable")
    return tuple((int(place) // len(names.heads), int(place) % len(names.heads)) for place in order)


class CausalCheck(NestedExperiment):
    """Puts out of action the heads that are best at a relation, beside random heads of the same layers.

    The best heads are chosen on dev, as by `SingleHeads`, below the `upper` last layers. Heads are `needed` for the
    relation as far as what follows changes more than with random sets of as many heads of the same layers off:

    - probe: the accuracy, on the words of the relation in test, of a probe that reads the upper layers alone. It is
      trained on them as they are, and then reads those of the encoder with heads off.
    - task: the score on dev of a fine-tuned transformer, with its own heads of the same numbers off.
    - loss: that of the language model on the words of the relation in test: with all their pieces masked, one word at a
      time; or as the next pieces, where the encoder is causal. Only for an encoder whose files hold the head for it.

    Intervals and p-values are of the paired bootstrap over sentences or texts, with the sets as they were drawn;
    p-values are adjusted over the relations of each measure (Holm 1979).

    The other options are those of `NestedExperiment`; `seed` also draws the random sets.

    Args:
        probe: of heads, from attention.
        relations: for which heads are put out of action.
        checkpoint: of a `TransformerClassifier` made of the same encoder, which is scored on dev of what it was trained
            on; None for no task.
        heads: how many of the best heads are off together.
        random: random sets, of other heads than the best as far as there are enough; the audit counts the heads that
            are among the best, and the sets that repeat another.
        upper: last layers, which the probe reads; heads are off below them.
        kind: what heads give instead. Their `mean` output over dev leaves what they always give, so that what is lost
            is what they say of the sentence; `zero` also moves all that comes after.

    Raises:
        ExperimentError: later, there are no such relations, layers or heads, or the probe reads no attention.
    """

    experiment = "causal"
    reads = frozenset(("attention",))

    def __init__(
        self,
        probe: TrainedModule,  # type: ignore[type-arg] # jsonargparse takes no parametrized class
        relations: tuple[str, ...] = ("det", "obj", "nsubj", "amod"),
        checkpoint: str | None = None,
        heads: int = 3,
        random: int = 5,
        upper: int = 2,
        kind: Kind = "mean",
        **training: Any,  # noqa: ANN401 # those of NestedExperiment
    ) -> None:
        super().__init__(probe, **training)
        check_values(self, kind=kind)
        check_numbers(self, least=1, heads=heads, random=random, upper=upper)
        if not relations or len(set(relations)) < len(relations):
            raise ExperimentError(f"--model.init_args: relations {list(relations)}: name one or more, each once.")
        self.relations = tuple(relations)
        self.checkpoint = None if checkpoint is None else checkpoint_file(checkpoint)
        self.heads, self.random, self.upper, self.kind = heads, random, upper, kind

    def prepare(self) -> None:
        if not isinstance(self.probe, HeadSelectionProbe) or "attention" not in self.probe.reads:
            raise ExperimentError(
                f"CausalCheck asks a probe what attention says, and {type(self.probe).__name__} does not read it: give "
                f"--model.init_args.probe AttentionOnlyProbe."
            )
        data = self.data
        if data.options.layers is not None or data.options.heads is not None:
            raise ExperimentError(
                "CausalCheck needs the attention of all heads: leave out --data.init_args.options.layers and "
                "--data.init_args.options.heads."
            )
        check_relations(self.relations, data.relations)
        if not 1 <= self.upper < len(data.layers):
            raise ExperimentError(
                f"--model.init_args.upper: the probe can read 1 to {len(data.layers) - 1} of the {len(data.layers)} "
                f"layers, not {self.upper}."
            )
        if self.heads > (below := (len(data.layers) - self.upper) * len(data.heads)):
            raise ExperimentError(
                f"--model.init_args.heads: there are {below} heads below the upper {self.upper} layers, and "
                f"{self.heads} are to be off."
            )
        self._task = None if self.checkpoint is None else self._classification(self.checkpoint)
        self._dev = ArcRows(heads=2 * len(data.layers) * len(data.heads))

    def update(self, batch: AttentionBatch) -> None:
        """Take in what every head finds in dev."""
        if batch.split == "dev":
            predicted = most_attended(batch.attention, batch.lengths).flatten(2)
            self._dev.add(batch, heads=predicted)

    def outcome(self) -> Result:
        """Choose, train, put out of action, and say what came of it."""
        chosen = self._chosen()
        upper = self.data.variant(lowest=len(self.data.layers) - self.upper)
        [copy] = self.trained_copies({"Probe of the upper layers": upper}, *self.contract.monitor)
        assert isinstance(copy.probe, HeadSelectionProbe)
        assert isinstance(self.data.encoder, EncoderSpec)
        encoder = Encoder(resolve(self.data.encoder), self.device)
        sentences = Sentences(self.data, "test", encoder)
        run = Run(self.data, encoder, self._ablation(encoder), self.device, self.data.ranks)
        upper.read_only(frozenset(self.contract.reads) - {"attention"})
        upper.setup("test")
        gold = upper.splits["test"]
        measures: dict[str, Measure | str] = {
            "probe": ProbeAccuracy(copy.probe.to(self.device), gold, sentences, run, self.upper),
            "task": TaskScore(*self._task, run, self.kind, self.seed)
            if self._task
            else "no --model.init_args.checkpoint is given",
            "loss": self._loss(gold, sentences, run),
        }
        found: dict[str, list[Needed]] = {}
        for name, measure in measures.items():
            if isinstance(measure, str):
                continue
            for one in chosen:
                found.setdefault(name, []).append(Needed.of(one, *measure.resampled(one), measure))
                rank_zero_info(f"{name}: measured with {len(one.sets) - 1} sets of heads off for {one.relation}.")
        first = len(self.data.layers) - self.upper + 1
        audit: dict[str, object] = {
            "kind": self.kind,
            "probe_reads_layers": f"{first}-{len(self.data.layers)}",
            "probe_dev": copy.dev,
            "probe_epochs": copy.epochs,
            "windowed_sentences_left_out": int(np.count_nonzero(~sentences.whole)),
            "random_heads_among_best": {one.relation: one.shared for one in chosen},
            "random_sets_drawn_twice": {one.relation: one.repeated for one in chosen},
            "left_blank": {name: why for name, why in measures.items() if isinstance(why, str)},
        }
        if run.ablation.reference is not None:
            audit["reference"] = f"{run.ablation.reference.texts} sentences of dev"
        scores = {f"{name}.{one.chosen.relation}": one.beyond for name, rows in found.items() for one in rows}
        figures: dict[str, Figure] = {f"causal_{name}": bars(rows) for name, rows in found.items()}
        tables = {"causal": causal_table(chosen, list(measures), found)}
        return Result(self.experiment, scores, tables, figures, audit, headline=tuple(scores))

    def _chosen(self) -> list[Chosen]:
        """The best heads of each relation on dev, and random ones."""
        arcs, predicted = self._dev.arcs()
        data = self.data
        dev, names = Predictions(arcs, data.relations, predicted["heads"]), Names(data.layers, data.heads)
        found = []
        for place, relation in enumerate(self.relations):
            ranked = rank_heads(dev, relation, names)
            best = [head for head in ranked if head[0] < len(data.layers) - self.upper][: self.heads]
            drawn = np.random.default_rng([self.seed, place])
            random = tuple(random_heads(frozenset(best), len(data.heads), drawn) for _ in range(self.random))
            found.append(Chosen(relation, data.relations.index(relation), tuple(best), random, ranked[0]))
        return found

    def _ablation(self, encoder: Encoder) -> Ablation:
        """What the outputs of heads are replaced by, as in sentences of dev."""
        reference = None
        if self.kind in ("mean", "resample"):
            sentences = Sentences(self.data, "dev", encoder)
            whole = np.flatnonzero(sentences.whole)
            drawn = np.sort(np.random.default_rng(self.seed).permutation(whole)[:REFERENCES])
            pieces = [sentences.pieces[item] for item in drawn.tolist()]
            inputs = [
                pad([pieces[place] for place in some], encoder)
                for some in batches_of([len(one) for one in pieces], self.device, Ranks())
            ]
            reference = Reference.from_batches(encoder.last_hidden, inputs, RESAMPLED if self.kind == "resample" else 0)
        return Ablation(self.kind, reference, self.seed)

    def _classification(self, path: Path) -> tuple[Classification, ClassificationDataModule]:
        """The fine-tuned task, and what it was trained on."""
        settings = data_settings(path, read_checkpoint(path))
        settings.init_args.cache = str(self.data.cache)
        settings.init_args.root = settings.init_args.root or str(self.data.root)
        data = datamodule_from(settings)
        assert isinstance(data, ClassificationDataModule)
        data.setup("test")
        task = Classification(path, data, self.trainer.strategy.root_device)
        layers, heads = len(self.data.layers), len(self.data.heads)
        if (task.layers, task.heads) != (layers, heads):
            raise ExperimentError(
                f"{path}: the classifier has {task.layers} layers of {task.heads} heads, and the encoder {layers} of "
                f"{heads}. Give --data.init_args.encoder.name what it was made of."
            )
        made_of, read = data.tokenizer, self.data.encoder
        if made_of is not None and read is not None and made_of.name != read.name:
            rank_zero_warn(
                f"{path}: the classifier was made of {made_of.name}, and the heads are found in {read.name}. What is "
                f"said of the task is of other heads, unless the two are one encoder."
            )
        return task, data

    def _loss(self, gold: DependencySplit, sentences: Sentences, run: Run) -> Measure | str:
        """The language model; why there is none."""
        encoder = run.encoder
        if encoder.language_model is None:
            return f"the files of {encoder.source.spec.name} hold no head for language modelling"
        if not encoder.causal and encoder.tokenizer.mask_token_id is None:
            return f"the tokenizer of {encoder.source.spec.name} has no mask"
        loss = NextTokenLoss(encoder) if encoder.causal else MaskedLoss(encoder, self.seed)
        return WordLoss(loss, gold, sentences, run)


@dataclass(frozen=True, eq=False)
class Needed:
    """What one measure says of one relation.

    Attributes:
        n: words or texts.
        intact: score of the whole model.
        best: its change with the best heads off.
        random: mean change over random sets, with the standard deviation over them.
        beyond: the first change less the second.
    """

    chosen: Chosen
    measure: Measure
    n: int
    intact: Estimate
    best: Estimate
    random: Estimate
    beyond: Estimate

    @classmethod
    def of(cls, chosen: Chosen, n: int, found: Sequence[Resampled], measure: Measure) -> "Needed":
        """From the scores with none, the best, and each random set off."""
        whole, best, *random = found
        spread = float(np.std([one.value for one in random], ddof=1)) if len(random) > 1 else np.nan
        of_random = replace(difference(random, [whole]), sd=spread)
        return cls(
            chosen, measure, n, whole.estimate, difference([best], [whole]), of_random, difference([best], random)
        )

    @property
    def row(self) -> dict[str, float]:
        """The numbers of its row."""
        columns = {"intact": self.intact, "best": self.best, "random": self.random, "beyond": self.beyond}
        named = {end: number for name, one in columns.items() for end, number in one.named(name).items()}
        return {"n": self.n, **{name: number for name, number in named.items() if name not in ("best.p", "random.p")}}


def causal_table(chosen: Sequence[Chosen], measures: Sequence[str], found: Mapping[str, Sequence[Needed]]) -> Table:
    """A row for each measure and relation, blank where the measure does not apply."""
    rows: list[dict[str, object]] = []
    units: list[Unit] = []
    for name in measures:
        of_measure = found.get(name)
        adjusted = holm([one.row["beyond.p"] for one in of_measure or ()])
        for place, one in enumerate(chosen):
            heads = " ".join(name_of(*head) for head in one.best)
            row: dict[str, object] = {"measure": name, "relation": one.relation, "heads": heads}
            row["best_of_all"] = name_of(*one.best_of_all)
            if of_measure:
                row |= {**of_measure[place].row, "p_holm": adjusted[place]}
            rows.append(row)
            units.append(of_measure[place].measure.unit if of_measure else "fraction")
    frame = pd.DataFrame(rows).rename(columns={"beyond.p": "p"})
    frame["n"] = frame["n"].astype("Int64")
    columns: dict[str, Unit | Sequence[Unit]] = dict.fromkeys(("intact", "best", "random", "beyond"), units)
    answer = ("measure", "relation", "heads", "beyond", "p_holm")
    return Table(frame, {**columns, "p": "p", "p_holm": "p"}, answer=answer)


def bars(rows: Sequence[Needed]) -> Bars:
    """The change with the best heads off beside that with random ones."""
    series = {
        "best heads off": [one.best for one in rows],
        "random heads of the same layers off": [one.random for one in rows],
    }
    return estimate_bars(
        f"Heads of a relation off{rows[0].measure.on}",
        [one.chosen.relation for one in rows],
        series,
        f"change of the {rows[0].measure.what}",
        "relation",
    )
