"""Probes trained inside a measurement: control tasks (Hewitt & Liang 2019), description length (Voita & Titov 2020)."""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities.seed import isolate_rng

from attention_probing.datamodules import AttentionBatch, DependencyDataModule
from attention_probing.datamodules.batches import BatchLoader
from attention_probing.datamodules.dependency import Field, read_fields
from attention_probing.measures.contract import Measure
from attention_probing.measures.trainings import Best, Training, result_of, run_trainings, train_nested
from attention_probing.metrics.attachment import ratio_scores
from attention_probing.metrics.differences import paired_bootstrap
from attention_probing.models import TrainedModule, recorded_gradients
from attention_probing.models.trained import epochs_of
from attention_probing.probes import HeadSelectionProbe, StructuralDistanceProbe, StructuralProbe
from attention_probing.probes.frozen import MonitorMode
from attention_probing.results import (
    Bars,
    Estimate,
    Finding,
    Result,
    Table,
    Unit,
    fill_sentence,
    number_of_items,
    numbers,
)
from attention_probing.results.errors import UserError, pluralize
from attention_probing.results.options import Positive, checked

Probe = TypeVar("Probe", bound=TrainedModule[Any, Any])
DependencyProbe = HeadSelectionProbe | StructuralProbe
"""Probe over a dependency treebank that a measurement can train copies of."""


def best_copy(probe: Probe, best: Best) -> Probe:
    """Return a copy of an untrained probe with the best weights of a finished training, on the CPU.

    Args:
        probe: The untrained probe.
        best: Best state of the training, as from `train_copy`.
    """
    # The measurement is in inference mode, and tensors that are made in it can never be trained.
    with isolate_rng(), recorded_gradients():
        fresh = deepcopy(probe)
        fresh.on_load_checkpoint({"epoch": best.epoch - 1, "state_dict": best.state, "probe": best.part})
        fresh.load_state_dict(best.state)
    fresh.epochs_run = best.epochs
    return fresh


def train_copy(
    probe: TrainedModule[Any, Any],
    data: DependencyDataModule,
    *,
    batches: int = 1,
    **options: Any,  # noqa: ANN401 # options of train_nested
) -> Best:
    """Train a copy of a probe to its optimum on dev, and return its best weights.

    The probe itself and the random state of the caller do not change.

    The training checks dev after every epoch, or after every k epochs if an epoch has fewer than
    `batches` training batches; k is the least number of epochs that together have `batches` batches.
    Patience and learning-rate schedules count these checks; see `models.EarlyStoppingBySteps`.

    Args:
        probe: The untrained probe.
        data: A datamodule for this training only, because a trainer is attached to it.
        batches: Least number of training batches between two checks.
        options: Further arguments of `train_nested`, such as `monitor` and `max_epochs`.

    Returns:
        Weights of the best epoch on the CPU, with the number of this epoch and its monitored score.

    Raises:
        TrainingError: The monitored score was never logged, or never a finite number.
    """
    with isolate_rng(), recorded_gradients():
        data.setup("fit")
        return train_nested(
            deepcopy(probe),
            remedy="A lower learning rate may help; dev must have a sentence, and every gold governor must be among "
            "the candidates.",
            every=epochs_of(batches, len(data.train_dataloader())),
            datamodule=data,
            **options,
        )


class ProbeMeasure(Measure[DependencyDataModule]):
    """Base of measurements that train copies of a probe.

    Subclasses implement `result`. The order of the training batches depends on the datamodule's seed.

    Args:
        probe: The probe to train, a `DependencyProbe`.
        max_epochs: Largest number of validation checks of a training; see `train_copy`.

    Attributes:
        patience: Validation checks without improvement after which a training ends.
        batches: Least number of training batches between two validation checks.
    """

    takes = DependencyDataModule
    reads: tuple[Field, ...] = ()  # the trainers read batches of their own
    patience: int = 5
    batches: int = 50

    @checked
    def __init__(self, probe: DependencyProbe, max_epochs: Positive = 100) -> None:
        super().__init__()
        # Not as a submodule: it stays on the CPU, as its copies begin there.
        self._untrained = (probe,)
        self.max_epochs = max_epochs

    @property
    def probe(self) -> DependencyProbe:
        """Untrained probe whose copies are trained."""
        return self._untrained[0]

    def begin(self) -> None:
        """Load the train split in addition to dev and test."""
        read_fields(self.data, self.reads, type(self).__name__)  # refuses before the store of train is made
        self.data.setup("fit")
        self.data.read_only(frozenset(self.reads))

    def train_copies(
        self, data: Mapping[str, DependencyDataModule], monitor: str, mode: MonitorMode
    ) -> list[tuple[DependencyProbe, Best]]:
        """Train one copy of the probe on each datamodule.

        The trainings are divided among the processes, and all processes get all results. A measurement that was
        interrupted does not repeat finished trainings.

        Args:
            data: Datamodules by the name of the training.
            monitor: Name of the logged score or loss that decides the best epoch.
            mode: `min` if the best value is the lowest, else `max`.

        Returns:
            A pair for each datamodule, in the order of `data`: the copy with the weights of its best
            epoch, and the result of its training.
        """
        train = partial(
            train_copy,
            self.probe,
            batches=self.batches,
            monitor=monitor,
            mode=mode,
            max_epochs=self.max_epochs,
            patience=self.patience,
            seed=self.seed,
            device=self.device,
        )
        trainings = []
        for number, (name, datamodule) in enumerate(data.items(), start=1):
            datamodule.setup("fit")
            folder = self.kept_folder(datamodule)
            file = None if folder is None else folder / f"copy-{number}.ckpt"
            cost = self._sentences_per_check(datamodule)
            trainings.append(Training(name, file, partial(train, datamodule), cost))
        return [(best_copy(self.probe, best), best) for best in run_trainings(trainings)]

    def _sentences_per_check(self, data: DependencyDataModule) -> int:
        """Return how many sentences are read up to and with a check on dev."""
        epochs = epochs_of(self.batches, len(data.train_dataloader()))
        train = data.splits["train"] if data.train_on is None else data.train_on
        return epochs * len(train) + len(data.splits["dev"])


Behaviour = Literal["self", "first", "last"]
CONTROL_BEHAVIOURS: tuple[Behaviour, ...] = ("self", "first", "last")
"""Position of a word's head in the control task: the word itself, or the first or last word of the sentence."""


def behaviour(word: str, seed: int) -> Behaviour:
    """Return the governor of a word type in the control task: `self`, `first` or `last`.

    `self` is the word itself, `first` and `last` are the first and the last word of the sentence. A hash of the word
    form and the seed chooses one of the three, with equal probability and the same on every machine.
    """
    digest = blake2b(f"{seed} {word}".encode(), digest_size=8).digest()
    return CONTROL_BEHAVIOURS[int.from_bytes(digest, "big") % len(CONTROL_BEHAVIOURS)]


def control_arcs(words: Sequence[str], seed: int) -> list[int]:
    """Return the governors of a sentence's words in the control task (Hewitt & Liang 2019, §2.2).

    The governor of a word is the word itself, or the first or last word of the sentence, so the arcs are no
    tree. `behaviour` chooses one of the three from the word's form and the seed.

    Args:
        words: Words of the sentence.
        seed: Seed of the choices.

    Returns:
        Position of each word's head, from 1.
    """
    ends = {"first": 1, "last": len(words)}
    return [ends.get(behaviour(word, seed), place) for place, word in enumerate(words, start=1)]


def control_tree(words: Sequence[str], seed: int) -> list[int]:
    """Return the governors of a sentence's words in a control task for probes of trees.

    Hewitt & Liang (2019) have no control task for trees. This one starts from the heads of
    `control_arcs`. Three kinds of words get ROOT as their head instead: the first word, the last
    word, and each word that would be its own head. The arcs therefore have no cycles, but may have
    several roots.

    Args:
        words: Words of the sentence.
        seed: Seed of `control_arcs`.

    Returns:
        Position of each word's head, from 1; 0 for ROOT.
    """
    governors = control_arcs(words, seed)
    for place, governor in enumerate(governors, start=1):
        if place in (1, len(words), governor):
            governors[place - 1] = 0
    return governors


def selectivity(task: Result, control: Result, score: str) -> dict[str, Estimate]:
    """Return a score of a probe on the `task` and on the `control` task, and their difference, the `selectivity`.

    The difference is paired by document, or by sentence where no documents are marked.

    Args:
        task: Result of the probe on the task.
        control: Result of the probe on the control task, on the same sentences.
        score: Name of the score, which has counts for each sentence.
    """
    assert task.items is not None
    assert control.items is not None
    right, total = task.ratios[score]
    paired = paired_bootstrap(
        task.items[right],
        task.items[total],
        control.items[right],
        control.items[total],
        share=score in task.shares,
        units=task.items.get("document"),
    )
    task_score = task.scores[score]
    control_score = control.scores[score]
    difference = Estimate(task_score.value - control_score.value, paired.low, paired.high, unit=task_score.unit)
    return {"task": task_score, "control": control_score, "selectivity": difference}


class ControlTask(ProbeMeasure):
    """Selectivity of a probe: its score minus the score of a copy on a control task.

    Control tasks are from Hewitt & Liang (2019). In such a task every word type has a random behaviour:
    its head is the word itself, or the first or last word of the sentence (`control_arcs`; for probes of
    trees `control_tree`). Attention and hidden states do not encode behaviours, so a high score means
    that the probe has memorised word types. One copy is trained on the gold governors and one on the control
    heads. The best epoch of each is chosen on dev with heads of the same kind. UAS leaves out
    punctuation in both tasks. The result also counts the test words whose type is not in train, since no
    probe can have memorised them.

    `ProbeMeasure` lists the options.
    """

    experiment = "control"

    def result(self) -> Result:
        predicts_arcs = isinstance(self.probe, HeadSelectionProbe)
        make_governors = control_arcs if predicts_arcs else control_tree
        governors = partial(make_governors, seed=self.seed)
        data = self.data.variant()
        control_data = self.data.variant(heads=governors)
        copies = self.train_copies({"task": data, "control": control_data}, *self.probe.monitor)
        (probe, best), (control_probe, control_best) = copies
        task = result_of(probe, data, self.device)
        control = result_of(control_probe, control_data, self.device)
        headline = self.probe.headline
        names = [headline]
        # The control arcs make no tree, so scores of trees do not apply to them.
        if not predicts_arcs:
            names.extend(name for name in task.ratios if name != headline)
        scores: dict[str, Estimate] = {}
        rows: list[dict[str, Any]] = []
        shares: list[str] = []
        compared = ("task", "control", "selectivity")
        items_of_rows: dict[str, list[float]] = {column: [] for column in compared}
        for name in names:
            columns = selectivity(task, control, name)
            rows.append({"score": name, **numbers(columns)})
            for column in compared:
                items_of_rows[column].append(number_of_items(columns[column]))
            scores[name] = columns["task"]
            scores[f"control.{name}"] = columns["control"]
            name_of_selectivity = "selectivity" if name == headline else f"{name}.selectivity"
            scores[name_of_selectivity] = columns["selectivity"]
            if name in task.shares:
                shares.extend([name, f"control.{name}"])
        units = [task.scores[name].unit for name in names]
        table = Table(
            pd.DataFrame(rows), dict.fromkeys(compared, units), main=("score", *compared), items=items_of_rows
        )
        items, ratios = _items_of_both(task, control, names)
        audit = {
            **task.audit,
            "epochs": best.epoch,
            "control_epochs": control_best.epoch,
            "cut_off": sum(not training.stopped for training in (best, control_best)),
            **self._unseen(),
        }
        return Result(
            self.experiment,
            scores,
            {"selectivity": table},
            audit=audit,
            items=items,
            ratios=ratios,
            headline=(headline, f"control.{headline}", "selectivity"),
            answer=_control_answer(headline, scores, len(items)),
            finding=Finding("selectivity", "selectivity of the probe", is_difference=True),
            shares=shares,
        )

    def _unseen(self) -> dict[str, int]:
        """Count the words of test, and among them the words whose type is not in train."""
        train = self.data.splits["train"]
        test = self.data.splits["test"]
        types: set[str] = set()
        for item in range(len(train)):
            types.update(train.words(item))
        words: list[str] = []
        for item in range(len(test)):
            words.extend(test.words(item))
        unseen = [word for word in words if word not in types]
        return {"test_words": len(words), "test_words_not_in_train": len(unseen)}


def _items_of_both(
    task: Result, control: Result, names: Sequence[str]
) -> tuple[pd.DataFrame, dict[str, tuple[str, str]]]:
    """Return the counts of each sentence on both tasks, and the columns with the counts of each score.

    The first of the scores also has a ratio `selectivity` if both tasks count the same words.
    """
    assert task.items is not None
    assert control.items is not None
    labels = [name for name in ("document", "sentence", "id") if name in task.items]
    items = task.items[labels].copy()
    ratios: dict[str, tuple[str, str]] = {}
    for name in names:
        right, total = task.ratios[name]
        ratios[name] = (right, total)
        ratios[f"control.{name}"] = (f"control.{right}", f"control.{total}")
        for column in (right, total):
            items[column] = task.items[column]
            items[f"control.{column}"] = control.items[column]
    right, total = ratios[names[0]]
    if (items[total] == items[f"control.{total}"]).all():
        # Over the same words selectivity is a ratio, by which two probes can be compared.
        items["selective"] = items[right] - items[f"control.{right}"]
        ratios["selectivity"] = ("selective", total)
    return items, ratios


def _control_answer(headline: str, scores: Mapping[str, Estimate], sentences: int) -> str:
    """Return the answer: the headline score on both tasks, and the selectivity."""
    unit = ""
    unit_of_difference = ":points"
    if headline.startswith("spearman"):
        unit = unit_of_difference = ":ratio"
    answer = f"on {{n}} sentences the {headline} of the probe is {{{headline}{unit}}}; on the control task, with "
    answer += f"random governors by word type, {{control.{headline}{unit}}}; "
    answer += f"the selectivity is {{selectivity{unit_of_difference}}}"
    return fill_sentence(answer, scores, n=sentences)


def borders(portions: Sequence[float], sentences: int) -> list[int]:
    """Return the number of sentences up to the end of each block of the online code.

    Args:
        portions: Ends of the blocks as shares of the sentences.
        sentences: Number of sentences.

    Returns:
        Ascending numbers: each share of `sentences`, rounded down, but at least 1. If several blocks
        would end after the same sentence, they become one block.
    """
    return sorted({max(1, int(portion * sentences)) for portion in portions})


def code_bits(
    probe: DependencyProbe, loader: BatchLoader[AttentionBatch], sentences: int, device: torch.device
) -> NDArray[np.float64]:
    """Return the code length of the gold governors of each sentence under a trained probe, in bits.

    Args:
        probe: The trained probe.
        loader: Batches of sentences of one split.
        sentences: Number of sentences of the split.
        device: Device of the computation.

    Returns:
        Bits of each sentence, float64 `[sentences]`; 0 for sentences that the loader leaves out.

    Raises:
        UserError: A gold governor has probability zero, so that its code is infinite.
    """
    bits = np.zeros(sentences)
    assert isinstance(probe, HeadSelectionProbe | StructuralDistanceProbe)
    probe = probe.to(device).eval()
    with torch.inference_mode():
        for batch in loader:
            nats = probe.cross_entropy(batch.to(device)).cpu().double().sum(dim=1).numpy()
            bits[batch.index.numpy()] = nats / math.log(2)
    if not np.isfinite(bits).all():
        raise UserError(
            f"{type(probe).__name__} gives a gold governor of the train sentence with index "
            f"{int(np.argmax(~np.isfinite(bits)))} no probability above 0, so the code length is infinite. Its "
            "probabilities must cover every word and ROOT; if its loss is nan, lower its learning rate."
        )
    return bits


class DescriptionLength(ProbeMeasure):
    """Description length of the gold governors by the online code (Voita & Titov 2020, §2.2.2), in bits.

    The shuffled train split is sent in blocks. The first block is coded uniformly: log₂(n+1) bits for
    each word of a sentence of n words, because its head is one of n+1 candidates. Every other block is
    coded by a copy of the probe that was trained on all blocks before it; its weights are those of the
    epoch with the lowest `val_loss` on dev. All words are coded, punctuation too. Compression is the
    length of the uniform code of the whole split divided by the length of the online code.

    Another copy is trained on the whole split, and its score on test is reported. The code length of
    train under this copy, `data_bits`, is the part of the online code that describes the data; the rest,
    `model_bits`, describes the probe.

    The interval of the compression is over sentences of train, for fixed trained copies. It does not
    cover the variation over orders of the sentences and initialisations, which depend on `seed`.

    `ProbeMeasure` lists the options.

    Attributes:
        portions: Ends of the blocks, as shares of the train split (Voita & Titov 2020, §2.2.2).
    """

    experiment = "description_length"
    portions: Sequence[float] = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)

    def begin(self) -> None:
        """Load the train split too.

        Raises:
            UserError: The probe does not predict probabilities of candidate governors.
        """
        if not isinstance(self.probe, HeadSelectionProbe | StructuralDistanceProbe):
            raise UserError(
                f"{type(self.probe).__name__} predicts no probabilities of governors, so a description length cannot "
                "be computed. Use another probe, for instance AttentionOnlyProbe."
            )
        super().begin()

    def result(self) -> Result:
        train = self.data.splits["train"]
        ends = borders(self.portions, len(train))
        order = np.random.default_rng(self.seed).permutation(len(train))
        copies = self._train_on_blocks(order, ends)
        *online, (final, best) = copies
        data = self.data.variant()
        data.setup("fit")
        data.read_only(frozenset(self.probe.reads))
        uniform: NDArray[np.float64] = train.lengths * np.log2(train.lengths + 1)
        bits = uniform.copy()  # the first block has the uniform code
        for (probe, _), (start, stop) in zip(online, pairwise(ends), strict=True):
            block = order[start:stop]
            loader = data.batches("train", block.tolist())
            bits[block] = code_bits(probe, loader, len(bits), self.device)[block]
        items = pd.DataFrame({"sentence": np.arange(len(train)), "id": train.ids, "words": train.lengths})
        items["bits"] = bits
        items["uniform"] = uniform
        if (train.documents >= 0).all():
            items.insert(0, "document", train.documents)
        ratios = {"compression": ("uniform", "bits")}
        data_bits = code_bits(final, data.batches("train"), len(train), self.device).sum()
        headline = self.probe.headline
        scores = {"codelength_bits": _bits(bits.sum()), "uniform_bits": _bits(uniform.sum())}
        scores |= ratio_scores(items, ratios, unit="ratio", share=False, of_units=True)
        scores[headline] = result_of(final, data, self.device).scores[headline]
        scores["data_bits"] = _bits(data_bits)
        scores["model_bits"] = _bits(bits.sum() - data_bits)
        answer = "the governors of {n} train words take {codelength_bits} in the online code; {uniform_bits} in the "
        answer += f"uniform code, {{compression}} times as much; the {headline} on test is {{{headline}}}"
        units: dict[str, Unit] = {
            "portion": "fraction",
            "bits": "bits",
            "bits_per_word": "bits",
            "dev_loss": self.probe.loss_unit,
        }
        trainings = [training for _, training in copies]
        blocks = _blocks(items, order, ends, trainings[:-1])
        return Result(
            experiment=self.experiment,
            scores=scores,
            answer=fill_sentence(answer, scores, n=int(train.lengths.sum())),
            tables={"blocks": Table(blocks.drop(columns="uniform"), units, main=("portion", "bits", "bits_per_word"))},
            headline=("codelength_bits", "compression"),
            finding=Finding("compression", "uniform code divided by the online code"),
            figures={"blocks": _block_bars(blocks)},
            audit={
                "epochs": best.epoch,
                "cut_off": sum(not training.stopped for training in trainings),
                "merged_portions": len(self.portions) - len(ends),
            },
            items=items,
            ratios=ratios,
        )

    def _train_on_blocks(self, order: NDArray[np.int64], ends: Sequence[int]) -> list[tuple[DependencyProbe, Best]]:
        """Train a copy of the probe on the sentences up to the end of each block; that of the last has all.

        Args:
            order: Sentences of train in their shuffled order.
            ends: Number of sentences up to the end of each block.
        """
        data: dict[str, DependencyDataModule] = {}
        for end in ends[:-1]:
            data[pluralize(end, "sentence")] = self.data.variant(train=order[:end].tolist())
        data["All sentences"] = self.data.variant()
        return self.train_copies(data, "val_loss", "min")


def _blocks(
    items: pd.DataFrame, order: NDArray[np.int64], ends: Sequence[int], trainings: Sequence[Best]
) -> pd.DataFrame:
    """Return a row for each block: its share of train, its cost, and the training of the copy that codes it.

    Args:
        items: Words, bits and uniform code of each sentence of train.
        order: Sentences of train in their shuffled order.
        ends: Number of sentences up to the end of each block.
        trainings: Training for each block but the first, which has the uniform code.
    """
    rows = []
    for place, (start, stop) in enumerate(pairwise((0, *ends))):
        block = order[start:stop]
        words = int(items["words"].to_numpy()[block].sum())
        bits = float(items["bits"].to_numpy()[block].sum())
        row = {"portion": stop / len(items), "sentences": stop - start, "words": words}
        row["epochs"] = 0
        row["bits"] = bits
        row["bits_per_word"] = bits / words
        row["dev_loss"] = np.nan
        if place:
            row["epochs"] = trainings[place - 1].epoch
            row["dev_loss"] = trainings[place - 1].value
        row["uniform"] = items["uniform"].to_numpy()[block].sum() / words
        rows.append(row)
    return pd.DataFrame(rows)


def _block_bars(blocks: pd.DataFrame) -> Bars:
    """Draw the bits per word of each block, by the online and by the uniform code."""
    return Bars(
        title="Cost of every block of train",
        title_says="split",
        categories=tuple(f"{100 * portion:.3g} %" for portion in blocks["portion"]),
        series={"online code": blocks["bits_per_word"].tolist(), "uniform code": blocks["uniform"].tolist()},
        label="bits per word",
        unit="bits",
    )


def _bits(number: float) -> Estimate:
    return Estimate(float(number), unit="bits")
