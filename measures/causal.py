"""Causal check of the attention heads that find a relation: ablation, beside random heads of the same layers."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention_probing.attention import Encoder, EncoderSpec, resolve
from attention_probing.attention.ablation import PIECES, Ablation, OffKind
from attention_probing.attention.alignment import AlignedPieces, FromPieces, Reduction, reduction
from attention_probing.attention.extraction import pad
from attention_probing.attention.heads import Head, Heads
from attention_probing.corpora.pairs import PairColumns
from attention_probing.corpora.splits import Split, corpus_of
from attention_probing.datamodules import (
    AttentionBatch,
    ClassificationDataModule,
    DependencyDataModule,
    PairDataModule,
    PairSplit,
)
from attention_probing.datamodules.attention import items_of_file
from attention_probing.datamodules.batches import LengthBatches, Ranks
from attention_probing.datamodules.dependency import DependencySplit, Field, check_relations
from attention_probing.measures.head_sets import DRAWS, REFERENCES, TaskOutputs, make_ablation, random_sets
from attention_probing.measures.nested import DependencyProbe, ProbeMeasure
from attention_probing.measures.pair_tasks import pair_task
from attention_probing.measures.task import (
    IGNORED,
    Classification,
    LanguageModelling,
    Task,
    found_of_asked,
    lacks_language_modelling,
)
from attention_probing.metrics.attachment import add_arcs, take_arcs
from attention_probing.metrics.differences import against_random_draws, difference, with_interval_and_p
from attention_probing.metrics.heads import Predictions, most_attended
from attention_probing.metrics.p_values import holm, p_units
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.metrics.stability import resampled_shares, set_overlap
from attention_probing.metrics.statistics import Statistic
from attention_probing.models.checkpoints import checkpoint_file, data_settings, datamodule_from, read_checkpoint
from attention_probing.probes.head_selection import HeadSelectionProbe
from attention_probing.results import Bars, Estimate, Finding, Floats, Result, Table, Unit, fill_sentence, numbers
from attention_probing.results.errors import UserError, check_names, pluralize, setting
from attention_probing.results.heads import HeadNames, head_name
from attention_probing.results.options import Positive, Several, checked
from attention_probing.results.progress import inform, warn
from attention_probing.results.sentences import UNDEFINED, Difference, describe_differences

_PARTS = 4  # of what may run at once is one batch, so that several copies of it run together
_CHANGES = ("intact", "best", "random", "beyond")
_GOLD = ("index", "lengths", "heads", "relations", "punctuation", "documents", "hidden", "vectors")


@dataclass(frozen=True)
class RelationHeads:
    """Attention heads that `CausalCheck` ablates for one relation.

    Attributes:
        relation: Name of the relation.
        number: Id of the relation in the datamodule.
        sets: Sets of attention heads to ablate, in this order: the empty set; the heads that find the
            relation best on dev, from the layers below those that the probe reads; and random sets of
            as many heads.
        heads: Names of these best heads, best first, separated by spaces.
        best_of_all: Name of the head that finds the relation best in any layer.
        overlap: Mean overlap of the best heads with those of 100 resamples of dev
            (`metrics.stability.set_overlap`); nan if dev is a single unit.
    """

    relation: str
    number: int
    sets: tuple[Heads, ...]
    heads: str
    best_of_all: str
    overlap: float

    @property
    def random_among_best(self) -> int:
        """Number of heads in the random sets that are also among the best heads."""
        _, best, *random = self.sets
        return sum(len(heads & best) for heads in random)


WordsOf = tuple[int, NDArray[np.int64]]
"""Number of a sentence or text, and positions of some of its words, from 1."""


def pieces_of(data: DependencyDataModule, split: Split, encoder: Encoder) -> Sequence[AlignedPieces]:
    """Return the subword pieces of each sentence of a split, by the tokenizer of an encoder."""
    return items_of_file(data, data.files()[split], encoder).inputs


def _better_accuracies(accuracies: Floats) -> Floats:
    """Return the accuracy of each head in its better direction, `[…, heads]`, from those of both, `[…, 2·heads]`."""
    better: Floats = np.maximum(*np.split(accuracies, 2, axis=-1))
    return better


def words_of(gold: DependencySplit, relation: int) -> list[WordsOf]:
    """Return the words of one relation (the label of their arc), for each sentence of a split that has any.

    Args:
        gold: Gold arcs of the split.
        relation: Id of the relation in the datamodule.
    """
    words_of_sentences = []
    for item in range(len(gold)):
        words = np.flatnonzero(gold.relations(item) == relation) + 1
        if len(words):
            words_of_sentences.append((item, words))
    return words_of_sentences


def batches_of(lengths: Sequence[int], device: torch.device, ranks: Ranks) -> Iterator[list[int]]:
    """Divide inputs into batches of similar length, and yield the batches that this process reads.

    Each batch is a list of indices of inputs. The batches do not depend on the number of processes.

    Args:
        lengths: Number of pieces of each input.
        device: Device of the model, which limits the size of a batch.
        ranks: Number of this process, and of all processes.
    """
    batches = LengthBatches(
        np.asarray(lengths, np.int64),
        max_cells=PIECES.get(device.type, PIECES["cuda"]) // _PARTS,
        max_items=max(len(lengths), 1),
        shuffle=False,
        cells="tokens",
        rank=ranks.rank,
        world=ranks.world,
    )
    return (batch for batch in batches if batch)


class ProbeAccuracy(Task):
    """Task of predicting the governors of selected words by a probe of an encoder's upper layers.

    A batch for `inputs` gives the selected words: pairs of the index of a sentence and the positions of
    its selected words, from 1. The gold number of a sentence is its number of selected words. The output
    is the number of those words whose governor is predicted correctly.

    Args:
        probe: Probe that reads attention.
        encoder: Encoder whose attention heads are ablated, below the layers that the probe reads.
        sentences: Pieces of the sentences.
        arcs: Gold governors, hidden states and word vectors of the same sentences.
        layers: Number of upper layers that the probe reads.
        from_pieces: Conversion of attention between pieces to attention between words.
    """

    name = "heads of words"
    score = "accuracy"
    unit = "fraction"
    width = 1

    def __init__(
        self,
        probe: HeadSelectionProbe,
        encoder: Encoder,
        sentences: Sequence[AlignedPieces],
        arcs: DependencySplit,
        layers: int,
        from_pieces: FromPieces,
    ) -> None:
        encoder.require_interface("CausalCheck")
        self.model = encoder.model
        self.layers = encoder.layers
        self.heads = encoder.heads
        self._probe = probe
        self._encoder = encoder
        self._sentences = sentences
        self._arcs = arcs
        self._upper = layers
        self._from_pieces = from_pieces

    def inputs(self, batch: Sequence[WordsOf]) -> dict[str, Tensor]:
        items = [item for item, _ in batch]
        sentences = [self._sentences[item] for item in items]
        arcs = self._arcs[items].to(self._encoder.device)
        selected = torch.zeros_like(arcs.heads, dtype=torch.bool)
        for row, (_, words) in enumerate(batch):
            selected[row, torch.from_numpy(words - 1)] = True
        inputs = dict(pad(sentences, self._encoder))
        for name in _GOLD:
            inputs[name] = getattr(arcs, name)
        inputs["selected"] = selected
        factors = reduction(sentences, self._from_pieces, self._encoder.device)
        inputs["rows"] = factors.rows
        inputs["columns"] = factors.columns
        inputs["owners"] = factors.owners.to(self._encoder.device)
        return inputs

    def gold(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return inputs["selected"].sum(1)

    def outputs(self, inputs: Mapping[str, Tensor]) -> Tensor:
        factors = Reduction(inputs["rows"], inputs["columns"], inputs["owners"])
        # A pass that starts from a layer counts from there; the layers that are read are always the last.
        upper: deque[Tensor] = deque(maxlen=self._upper)

        def receive(_: int, weights: Tensor) -> None:
            upper.append(factors.words(weights))

        pieces = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        self._encoder.capture(pieces, receive, frozenset(range(self.layers)))
        arcs = {name: inputs[name] for name in _GOLD}
        batch = AttentionBatch(attention=torch.stack(list(upper), 1), split=self._arcs.split, **arcs)  # type: ignore[arg-type]
        predicted = self._probe.predict(batch, tree=False)
        right = (predicted.heads == inputs["heads"]) & inputs["selected"]
        return right.sum(1, keepdim=True)

    def statistic(self) -> Statistic:
        return found_of_asked


class WordLoss(LanguageModelling):
    """Task of language modelling in which only the pieces of selected words are predicted.

    A masked language model sees all these pieces masked at once. A causal model predicts each as the next
    piece.

    Args:
        encoder: Encoder whose files hold a head for language modelling.
        seed: Seed for `LanguageModelling`; it has no effect, as no mask is random.
        sentences: Pieces of the sentences.
    """

    def __init__(self, encoder: Encoder, seed: int, sentences: Sequence[AlignedPieces]) -> None:
        super().__init__(encoder, seed)
        self._sentences = sentences

    def inputs(self, batch: Sequence[WordsOf]) -> dict[str, Tensor]:  # type: ignore[override]
        sentences = [self._sentences[item] for item, _ in batch]
        inputs = pad(sentences, self.encoder)
        selected = torch.zeros_like(inputs["input_ids"], dtype=torch.bool)
        for row, (pieces, (_, words)) in enumerate(zip(sentences, batch, strict=True)):
            is_selected = torch.from_numpy(np.isin(pieces.positions, words))
            selected[row, : len(pieces)] = is_selected.to(selected.device)
        targets = inputs["input_ids"].masked_fill(~selected, IGNORED)
        if self.encoder.causal:
            targets = targets.roll(-1, 1)
            targets[:, -1] = IGNORED  # nothing comes before a first piece
        else:
            mask = self.encoder.tokenizer.mask_token_id
            inputs["input_ids"] = inputs["input_ids"].masked_fill(selected, mask)
        index = torch.tensor([item for item, _ in batch], device=targets.device)
        return {**inputs, "index": index, "targets": targets}


@dataclass(frozen=True, eq=False)
class AblatedScore:
    """Score that is measured for each relation with the relation's attention heads ablated.

    Attributes:
        task: The model and its score.
        ablation: Replacement of the outputs of attention heads.
        words: Function that returns the words to score, given the id of a relation: pairs of the index
            of a sentence or text and the positions of some of its words, from 1.
        lengths: Number of pieces of each sentence or text.
        read: Function that returns the inputs of the task for some of these pairs.
        units: Number of the unit of each sentence or text, for intervals and tests, `[items]`.
        label: Name of the score in figures.
        on: End of the title of the figure.
    """

    task: Task
    ablation: Ablation
    words: Callable[[int], Sequence[WordsOf]]
    lengths: Sequence[int]
    read: Callable[[Sequence[WordsOf]], dict[str, Tensor]]
    units: NDArray[np.int64]
    label: str
    on: str = ""

    def measure(self, chosen: RelationHeads, device: torch.device, ranks: Ranks) -> tuple[dict[str, float], Estimate]:
        """Compute the score for one relation with each of its sets of heads ablated.

        Every process must call it, because the work is divided among them.

        Args:
            chosen: The relation and its sets of heads.
            device: Device of the model.
            ranks: Number of this process, and of all processes.

        Returns:
            The numbers of a table row, by name, and the last of them, `beyond`, as an estimate:

            - `n`: number of words or texts;
            - `intact`: score of the intact model;
            - `best`: change of the score if the best heads are ablated;
            - `random`: mean change over the random sets; nan if there are no other sets of as many heads;
            - `beyond`: `best` minus `random`.

            Intervals have names such as `best.low`. The p-value `beyond.p` is over random sets and units.
        """
        words = self.words(chosen.number)
        outputs = self._outputs(words, chosen.sets, device, ranks)
        scores = [outputs.score(self.ablation.name, heads, DRAWS) for heads in chosen.sets]
        intact, best, *random = scores
        average, beyond = against_random_draws(best, random)
        columns = {
            "intact": intact,
            "best": replace(difference(best, intact), p=None),
            "random": replace(difference(average, intact), sd=average.sd, p=None),
            "beyond": beyond,
        }
        count = sum(len(positions) for _, positions in words)
        return {"n": count, **numbers(columns)}, beyond

    def _outputs(
        self, words: Sequence[WordsOf], sets: Sequence[Heads], device: torch.device, ranks: Ranks
    ) -> TaskOutputs:
        """Return the outputs of the task with each set of heads ablated, summed over the words of each unit."""
        by_ablation = {self.ablation: sets}
        gathered = Rows()
        lengths = [self.lengths[item] for item, _ in words]
        for places in batches_of(lengths, device, ranks):
            inputs = self.read([words[place] for place in places])
            gathered.add(torch.tensor(places), **self.task.rows(inputs, by_ablation))
        rows = gathered.take()
        # Words of a sentence, and of a document, are not independent.
        items = [words[place][0] for place in rows.pop(ITEM).tolist()]
        units, unit_of_row = np.unique(self.units[items], return_inverse=True)
        sums: dict[str, Floats] = {}
        for name, column in rows.items():
            sums[name] = np.zeros((len(units), *column.shape[1:]))
            np.add.at(sums[name], unit_of_row, column)
        return TaskOutputs.from_rows(self.task, {ITEM: units, **sums}, by_ablation)


class CausalCheck(ProbeMeasure):
    """Ablation of a relation's best attention heads, and random heads of the same layers.

    The best heads are chosen on dev, as in `SingleHeads`, from the layers below the upper third. They
    matter for the relation if ablating them changes a score more than ablating random sets of as many
    heads of the same layers. The scores are:

    - probe: accuracy on the test words of the relation, by a probe that reads the upper third of the layers.
      It is trained on the intact encoder, and then reads the encoder with ablated heads.
    - task: score on dev of a fine-tuned transformer, in which the heads with the same layer and number
      are ablated; or, with `pairs`, accuracy of the encoder itself on minimal pairs.
    - loss: loss of the language model on the test words of the relation. All pieces of one word are
      masked at a time, or predicted as next pieces if the encoder is causal. It is left out if the
      encoder's files hold no head for language modelling.

    Intervals come from a paired bootstrap over sentences or texts; they hold for the random sets of this
    run. A small p-value means that the difference from random sets is larger than two things explain: the variation of
    random sets, and the variation of sentences (`metrics.differences.against_random_draws`). P-values are adjusted over
    the relations of each score (Holm 1979).

    Args:
        probe: Probe that predicts governors from attention.
        relations: Relations whose attention heads are ablated. The rows of a relation that no word of dev or of test
            has are blank, with n = 0.
        checkpoint: Checkpoint of a `TransformerClassifier` fine-tuned from the same encoder, or a folder with only
            one, scored on the dev split of its training data. Without it and `pairs`, the score `task` is left out.
        heads: Number of best attention heads that are ablated together.
        random: Number of random sets, at least 2, which may share heads with the best; fewer if no more exist. The
            audit counts random heads among the best. A layer has few other sets of a single head: more sets, or
            more heads, make the test stronger.
        kind: Replacement of the outputs of attention heads. `mean` (over dev, or the minimal pairs) removes only what
            depends on the sentence; `zero` also shifts the inputs of all later layers.
        max_epochs: Largest number of validation checks of the probe's training.
        pairs: `blimp`, or a file of minimal pairs (`PairDataModule`), on which the encoder, with its
            language-modelling head, is scored in place of a `checkpoint`.
        per_paradigm: Largest number of pairs of each paradigm; None for all.
        pair_columns: Names of the columns in a file of minimal pairs; None for those of BLiMP.

    Raises:
        UserError: Both `checkpoint` and `pairs` are given, or `per_paradigm` or `pair_columns` without `pairs`. In
            `begin`: there are no such relations, layers or heads, or the probe reads no attention.
    """

    experiment = "causal"
    reads: tuple[Field, ...] = ("attention",)

    @checked
    def __init__(
        self,
        probe: DependencyProbe,
        relations: tuple[str, ...] = ("det", "obj", "nsubj", "amod"),
        checkpoint: str | None = None,
        heads: Positive = 3,
        random: Several = 5,
        kind: OffKind = "mean",
        max_epochs: int = 100,
        pairs: str | None = None,
        per_paradigm: Positive | None = None,
        pair_columns: PairColumns | None = None,
    ) -> None:
        super().__init__(probe, max_epochs)
        check_names(setting("model.relations"), relations)
        self.relations = tuple(relations)
        self.checkpoint = None if checkpoint is None else checkpoint_file(checkpoint)
        self.heads = heads
        self.random = random
        self.kind = kind
        self.pairs = pairs
        self.per_paradigm = per_paradigm
        self.pair_columns = pair_columns
        if checkpoint is not None and pairs is not None:
            raise UserError(
                f"CausalCheck scores one task: give {setting('model.checkpoint')} or {setting('model.pairs')}, not "
                f"both."
            )
        if per_paradigm is not None and pairs is None:
            raise UserError(
                f"{setting('model.per_paradigm')} limits minimal pairs: give {setting('model.pairs', 'blimp')} too, "
                f"or leave it out."
            )
        if pair_columns is not None and pairs is None:
            raise UserError(
                f"{setting('model.pair_columns')} is of a file of minimal pairs: name it with {setting('model.pairs')}."
            )

    def begin(self) -> None:
        super().begin()
        if not isinstance(self.probe, HeadSelectionProbe) or "attention" not in self.probe.reads:
            raise UserError(
                f"CausalCheck needs a probe that reads attention; {type(self.probe).__name__} does not. Give "
                f"{setting('model.probe', 'AttentionOnlyProbe')}."
            )
        data = self.data
        options = data.options
        if options.layers is not None or options.heads is not None or options.quantity != "attention":
            raise UserError(
                "CausalCheck changes attention weights, and needs those of all heads: leave out `layers`, `heads` and "
                f"`quantity` of {setting('data.options')}."
            )
        check_relations(self.relations, data.relations)
        layers = len(data.layers)
        self._upper = max(1, layers // 3)
        below = (layers - self._upper) * len(data.heads)
        if self.heads > below:
            raise UserError(
                f"{setting('model.heads')} is {self.heads}, but only {below} heads are in the {layers - self._upper} "
                "layers below those that the probe reads. Give fewer, or an encoder with more layers."
            )
        self._encoder = Encoder(resolve(cast("EncoderSpec", data.encoder)), self.device)
        self._task: AblatedScore | None = None
        if self.checkpoint is not None:
            self._task = self._load_classification(self.checkpoint)
        if self.pairs is not None:
            self._task = self._read_minimal_pairs(self.pairs)
        self._dev = Rows()

    def update(self, batch: AttentionBatch) -> None:
        """Collect the governors that every attention head predicts on a batch of dev."""
        if batch.split == "dev":
            predicted = most_attended(batch.attention, batch.lengths).flatten(2)
            add_arcs(self._dev, batch, heads=predicted)

    def result(self) -> Result:
        """Select attention heads, train the probe, ablate the heads, and return the result."""
        chosen = self._choose_heads()
        upper = self.data.variant(lowest=len(self.data.layers) - self._upper)
        [(probe, best)] = self.train_copies({"Probe of the upper layers": upper}, *self.probe.monitor)
        assert isinstance(probe, HeadSelectionProbe)
        upper.setup("test")
        upper.read_only(frozenset(self.probe.reads) - {"attention"})
        ablation = self._make_ablation()
        ablated_scores = self._make_scores(probe.to(self.device), ablation, upper.splits["test"])
        table, scores = self._table(chosen, ablated_scores)
        without_random = []
        random_among_best = {}
        for heads in chosen:
            if len(heads.sets) == 2:
                without_random.append(heads.relation)
            else:
                random_among_best[heads.relation] = heads.random_among_best
        audit: dict[str, object] = {
            "kind": self.kind,
            "probe_reads_layers": f"{len(self.data.layers) - self._upper + 1}-{len(self.data.layers)}",
            "probe_dev": best.value,
            "probe_epochs": best.epoch,
            "random_heads_among_best": random_among_best,
            "left_blank": self._reasons_for_blanks(without_random),
        }
        if ablation.reference is not None:
            audit["reference"] = f"{ablation.reference.texts} sentences of dev"
        figures = {f"causal_{name}": causal_bars(table.frame, name, score) for name, score in ablated_scores.items()}
        answer = fill_sentence(causal_answer(self.heads, table, scores), {})
        tables = {"causal": table}
        headline = tuple(scores)
        finding = _finding(headline)
        return Result(
            self.experiment, scores, tables, figures, audit, headline=headline, answer=answer, finding=finding
        )

    def _reasons_for_blanks(self, without_random: Sequence[str]) -> dict[str, str]:
        """Return the reason of each score that is left out, and of each relation whose rows are blank.

        Args:
            without_random: Relations without random sets of heads.
        """
        reasons = {}
        if self._task is None:
            reasons["task"] = f"no {setting('checkpoints')} and no {setting('model.pairs')} is given"
        lacks_loss = lacks_language_modelling(self._encoder)
        if lacks_loss is not None:
            reasons["loss"] = lacks_loss
        for relation in without_random:
            reasons[f"random and beyond, {relation}"] = "its layers have no other set of as many heads"
        return reasons | self._absent

    def _make_scores(
        self, probe: HeadSelectionProbe, ablation: Ablation, arcs: DependencySplit
    ) -> dict[str, AblatedScore]:
        """Return the scores that this encoder and this checkpoint have.

        Args:
            probe: The trained probe.
            ablation: Ablation of the encoder's heads.
            arcs: Gold arcs of test.
        """
        encoder = self._encoder
        sentences = pieces_of(self.data, "test", encoder)
        lengths = [len(pieces) for pieces in sentences]

        def words(relation: int) -> Sequence[WordsOf]:
            return words_of(arcs, relation)

        def single_words(relation: int) -> Sequence[WordsOf]:
            singles: list[WordsOf] = []
            for item, positions in words_of(arcs, relation):
                singles.extend((item, position) for position in positions[:, None])
            return singles

        accuracy = ProbeAccuracy(probe, encoder, sentences, arcs, self._upper, self.data.options.from_pieces)
        label = "accuracy of the probe"
        scores = {"probe": AblatedScore(accuracy, ablation, words, lengths, accuracy.inputs, arcs.units, label)}
        if self._task is not None:
            scores["task"] = self._task
        if lacks_language_modelling(encoder) is None:
            loss = WordLoss(encoder, self.seed, sentences)
            scored_words = words if encoder.causal else single_words
            label = "loss on the words of the relation"
            scores["loss"] = AblatedScore(loss, ablation, scored_words, lengths, loss.inputs, arcs.units, label)
        return scores

    def _table(
        self, chosen: Sequence[RelationHeads], ablated_scores: Mapping[str, AblatedScore]
    ) -> tuple[Table, dict[str, Estimate]]:
        """Return a table with a row for each score and relation (blank without one), and the scores of the result."""
        rows: list[dict[str, object]] = []
        units: list[Unit] = []
        scores: dict[str, Estimate] = {}
        by_relation = {heads.relation: heads for heads in chosen}
        for name, relation in product(("probe", "task", "loss"), self.relations):
            row: dict[str, object] = {"measure": name, "relation": relation}
            rows.append(row)
            units.append(ablated_scores[name].task.unit if name in ablated_scores else "fraction")
            if relation not in by_relation:
                row["n"] = 0
                continue
            heads = by_relation[relation]
            row["heads"] = heads.heads
            row["best_of_all"] = heads.best_of_all
            row["overlap"] = heads.overlap
            if name in ablated_scores:
                columns, beyond = ablated_scores[name].measure(heads, self.device, self.data.ranks)
                row.update(columns)
                scores[f"{name}.{relation}"] = beyond
                inform(f"{relation}: scored the {name} with {len(heads.sets) - 1} sets of ablated heads.")
        frame = pd.DataFrame(rows).rename(columns={"beyond.p": "p"})
        frame["n"] = frame["n"].astype("Int64")
        frame["p_holm"] = frame.groupby("measure")["p"].transform(lambda column: holm(column.tolist()))
        columns_units: dict[str, Unit | Sequence[Unit]] = dict.fromkeys(_CHANGES, units)
        columns_units["overlap"] = "fraction"
        columns_units |= dict.fromkeys(("p", "p_holm"), p_units(frame["p"], 2 / (1 + DRAWS)))
        return Table(frame, columns_units, main=("measure", "relation", "heads", "beyond", "p_holm")), scores

    def _choose_heads(self) -> list[RelationHeads]:
        """Rank heads on dev in the better of both directions; return the best of each relation, and random sets."""
        data = self.data
        arcs, predicted = take_arcs(self._dev)
        dev = Predictions(arcs, data.relations, predicted["heads"])
        names = HeadNames(data.layers, data.heads)
        self._warn_of_absent_relations()
        chosen = []
        for place, relation in enumerate(self.relations):
            if relation in self._absent:
                continue
            accuracies = _better_accuracies(dev.accuracies(relation))
            order = self._rank_below(accuracies)
            best = [divmod(head, len(data.heads)) for head in order[: self.heads]]
            generator = np.random.default_rng([self.seed, place])
            random = random_sets(frozenset(best), len(data.heads), self.random, generator)
            sets = (frozenset[Head](), frozenset(best), *random)
            heads = " ".join(head_name(*head) for head in best)
            number = data.relations.index(relation)
            best_of_all = names.head(int(accuracies.argmax()))
            overlap = self._overlap(dev, relation, order[: self.heads])
            chosen.append(RelationHeads(relation, number, sets, heads, best_of_all, overlap))
        return chosen

    def _rank_below(self, accuracies: Floats) -> list[int]:
        """Return the heads below the layers that the probe reads, counted layer by layer, the most accurate first.

        Args:
            accuracies: Accuracy of every head, `[heads]`.
        """
        below = len(self.data.heads) * (len(self.data.layers) - self._upper)
        order: list[int] = np.argsort(-accuracies[:below], kind="stable").tolist()
        return order

    def _overlap(self, dev: Predictions, relation: str, best: Sequence[int]) -> float:
        """Return the mean overlap of the best heads of a relation with those of resamples of dev.

        The set of a resample without words of the relation is empty.
        """
        found, counted = dev.count_units(relation)
        if np.count_nonzero(counted) < 2:
            return np.nan
        accuracies = _better_accuracies(resampled_shares(found, counted, seed=0))
        resampled = np.zeros(accuracies.shape, np.bool_)
        for place in np.flatnonzero(~np.isnan(accuracies).any(axis=1)).tolist():
            resampled[place, self._rank_below(accuracies[place])[: self.heads]] = True
        chosen = np.zeros(accuracies.shape[1], np.bool_)
        chosen[list(best)] = True
        return set_overlap(chosen, resampled)

    def _warn_of_absent_relations(self) -> None:
        """Warn of relations without words.

        Raises:
            UserError: No relation has words.
        """
        if len(self._absent) == len(self.relations):
            reasons = "; ".join(f"{relation}: {reason}" for relation, reason in self._absent.items())
            raise UserError(f"{setting('model.relations')}: no relation can be scored ({reasons}). Name others.")
        for relation, reason in self._absent.items():
            if relation in self.data.relations:  # else `check_relations` has warned
                warn(f"{setting('model.relations')}: {reason} {relation!r}: such rows are blank.")

    @cached_property
    def _absent(self) -> dict[str, str]:
        """Reason why heads of a relation cannot be chosen or scored, by the names of such relations."""
        known = self.data.relations
        reasons: dict[str, str] = {}
        splits: tuple[Split, ...] = ("dev", "test")
        for relation, split in product(self.relations, splits):
            if relation not in known or not words_of(self.data.splits[split], known.index(relation)):
                reasons.setdefault(relation, f"no {split} word has the relation")
        return reasons

    def _make_ablation(self) -> Ablation:
        """Return an ablation of the encoder's heads whose references are sentences of dev."""
        encoder = self._encoder

        def draw_sentences() -> list[dict[str, Tensor]]:
            sentences = pieces_of(self.data, "dev", encoder)
            order = np.random.default_rng(self.seed).permutation(len(sentences))
            drawn = [sentences[item] for item in np.sort(order[:REFERENCES]).tolist()]
            lengths = [len(pieces) for pieces in drawn]
            inputs = []
            for places in batches_of(lengths, self.device, Ranks()):
                inputs.append(pad([drawn[place] for place in places], encoder))
            return inputs

        return make_ablation(self.kind, encoder.last_hidden, draw_sentences, self.seed)

    def _load_classification(self, path: Path) -> AblatedScore:
        """Load the fine-tuned classifier and its training data."""
        settings = data_settings(path, read_checkpoint(path))
        settings.init_args.cache = str(self.data.cache)
        settings.init_args.root = str(self.data.root)
        data = datamodule_from(settings)
        assert isinstance(data, ClassificationDataModule)
        data.place(self.ranks, self.device)
        data.setup("test")
        task = Classification.from_data(path, data, self.device)
        task.require_encoder(self._encoder)
        on = f": {task.score} on {corpus_of(data.files()['dev'])['corpus']}, dev"
        return self._on_texts(task, data, "dev", f"{task.score} of the task", on)

    def _read_minimal_pairs(self, corpus: str) -> AblatedScore:
        """Read and tokenize the minimal pairs."""
        data = PairDataModule(
            corpus,
            per_paradigm=self.per_paradigm,
            root=str(self.data.root),
            cache=str(self.data.cache),
            columns=self.pair_columns,
        )
        path = data.files()["test"]
        data.splits["test"] = PairSplit(path, data.read("model.pair_columns"), self._encoder)
        on = f": {corpus_of(path)['corpus']}"
        task = pair_task(data.splits["test"])
        return self._on_texts(task, data, "test", "accuracy on minimal pairs", on)

    def _on_texts(
        self, task: Task, data: ClassificationDataModule | PairDataModule, split: Split, label: str, on: str
    ) -> AblatedScore:
        """Return the score of a task on all texts of a split, from which the replacements are taken too."""
        texts = data.splits[split]
        numbered = [(number, np.zeros(1, np.int64)) for number in range(len(texts))]

        def read(items: Sequence[WordsOf]) -> dict[str, Tensor]:
            return task.inputs(texts[[number for number, _ in items]].to(self.device))

        def draw() -> list[dict[str, Tensor]]:
            return task.draw(data, split, REFERENCES, self.seed)

        ablation = make_ablation(self.kind, task.outputs, draw, self.seed)
        lengths = texts.lengths.tolist()
        return AblatedScore(task, ablation, lambda _: numbered, lengths, read, np.arange(len(texts)), label, on)


def causal_answer(heads: int, table: Table, differences: Mapping[str, Estimate]) -> str:
    """Return for how many relations ablating their best heads changes each score otherwise than random heads do.

    Args:
        heads: Number of best heads of a relation.
        table: The table `causal`.
        differences: Differences to random heads, with their draws, by `<score>.<relation>`.
    """
    parts = []
    units = table.unit_rows()["p_holm"]
    for measure, rows in table.frame.dropna(subset="beyond").groupby("measure", sort=False):
        tested = rows.dropna(subset="p")
        family = []
        for place in tested.index:
            relation = tested["relation"][place]
            at_once = with_interval_and_p(differences[f"{measure}.{relation}"], tests=len(tested))
            family.append(Difference(f"`{relation}`", at_once, int(tested["n"][place]), units[place]))
        changes = describe_differences(family, tested["p_holm"].tolist(), "relation", f"change the {measure} score")
        if changes != UNDEFINED:
            parts.append(changes)
    text = f"with the {pluralize(heads, 'best head')} off, against random heads, "
    return text + ("; ".join(parts) or "no difference is defined")


def _finding(scores: Sequence[str]) -> Finding | None:
    """Return the change of the probe's score for the first relation that has one."""
    for score in scores:
        measure, _, relation = score.partition(".")
        if measure == "probe":
            words = f"change of the probe's accuracy on `{relation}` without its heads, against random heads"
            return Finding(score, words, is_difference=True)
    return None


def causal_bars(table: pd.DataFrame, name: str, score: AblatedScore) -> Bars:
    """Return a bar chart of the change of a score by ablation, with two bars for each relation.

    One bar is for ablating the best heads of the relation, the other for ablating random heads.

    Args:
        table: Frame of the table `causal`.
        name: Name of the score in the table.
        score: The score.
    """
    units: dict[str, Unit] = dict.fromkeys(_CHANGES, score.task.unit)
    units |= {"overlap": "fraction", "p": "p", "p_holm": "p"}
    has_words = table["n"] > 0  # others have no bars
    rows = Table(table[(table["measure"] == name) & has_words], units)
    label = f"change of the {score.label}"
    series = {"best heads off": "best", "random heads of the same layers off": "random"}
    return Bars.from_table(f"Heads of a relation off{score.on}", rows, "relation", series, label, "relation")
