"""The score of a task with heads off: single ones, layers, named sets (Kovaleva et al. 2019, Michel et al. 2019)."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from jsonargparse import Namespace
from numpy.typing import NDArray
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from analysis.base import AnalysisError
from analysis.tables import estimate_bars, head_map
from analysis.task import Classification, LanguageModelling, Task
from attention.ablation import PIECES, Ablation, Kind
from attention.capture import Heads, named_heads
from datamodules import ClassificationDataModule, SegmentBatch, TextBatch, TextDataModule
from metrics.bootstrap import Floats, Resampled, difference, holm, pooled
from metrics.rows import ItemRows
from models import TransformerClassifier
from processes.progress import Progress
from processes.ranks import run_seed
from results import Estimate, Figure, Result, Table, Unit
from results.digests import digest
from results.errors import check_numbers, check_values, counted
from results.files import keep, kept, remove_leftovers
from training.checkpoints import checkpoint_file, configured_model, data_settings, read_checkpoint

LEVEL = 0.05  # of a head that helps or hurts, after Holm's correction
DRAWS = 10_000  # of the bootstrap, or more, as far as they fit into memory
_DRAWS_A_TEST = 100  # so that a p-value that was multiplied by the number of tests can still be small
_MOST_CELLS = 1 << 28  # resamples × texts, two bytes each
_VERSION = 1  # raise it when a kept number would come out differently


class TaskExperiment(LightningModule):
    """Scores a model with heads off. Run it with `python train.py test`; nothing is trained.

    With a checkpoint the task is that of the classifier, and without `--data` the texts are those it was trained on.
    Without one it is language modelling, and the data are texts (`TextDataModule`).

    Args:
        checkpoint: of a `TransformerClassifier`; None for language modelling.
        split: of labelled texts, on which the score is taken.
        score: of labelled texts; None for that of the data.
        seed: of what is drawn; None for that of the run.

    Attributes:
        kept_batches: how many an earlier run had scored, once all are read.
    """

    experiment: ClassVar[str]
    example_input_array = None

    def __init__(
        self, checkpoint: str | None, split: Literal["dev", "test"], score: str | None, seed: int | None
    ) -> None:
        super().__init__()
        check_values(self, split=split)
        check_numbers(self, least=0, seed=seed)
        self.checkpoint = None if checkpoint is None else checkpoint_file(checkpoint)
        self.split, self.wanted_score = split, score
        self.kept_batches = 0
        self._seed = seed
        self.result: Result | None = None
        self._task: Task | None = None

    @classmethod
    def data_of(cls, arguments: Namespace) -> Namespace | None:
        """Settings of the data that the checkpoint was trained on, for a command line that names no data."""
        if arguments.checkpoint is None:
            return None
        path = checkpoint_file(arguments.checkpoint)
        content = read_checkpoint(path)
        kind = configured_model(path, content).get("class_path", "").rpartition(".")[2]
        if kind not in ("", TransformerClassifier.__name__):
            raise AnalysisError(
                f"{path} is a checkpoint of {kind}, and heads are those of a TransformerClassifier: `python train.py "
                f"fit --config configs/kovaleva2019/finetuning.yaml` trains one."
            )
        return data_settings(path, content)

    @property
    def seed(self) -> int:
        return run_seed(self._seed)

    @property
    def task(self) -> Task:
        assert self._task is not None
        return self._task

    def setup(self, stage: str) -> None:
        if self._task is not None:
            return
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if self.checkpoint is not None and isinstance(data, ClassificationDataModule):
            self._task = Classification(self.checkpoint, data, self.device_of_run)
            # Two copies of a batch at least run at once.
            data.eval_tokens = PIECES.get(self.device_of_run.type, PIECES["cuda"]) // 2
        elif self.checkpoint is None and isinstance(data, TextDataModule):
            if len(data.encoders) > 1:
                raise AnalysisError(
                    f"{type(self).__name__} is of one encoder: --data.init_args.random_init false, and no "
                    f"--data.init_args.before."
                )
            self._task = LanguageModelling(data, self.seed)
        else:
            given = "no data are" if data is None else f"{type(data).__name__} is"
            needed = "TextDataModule" if self.checkpoint is None else "ClassificationDataModule"
            raise AnalysisError(
                f"{type(self).__name__} with{'out' if self.checkpoint is None else ''} --model.init_args.checkpoint "
                f"needs {needed}, and {given} given. Name a fine-tuned classifier with that option (`python train.py "
                f"fit --config configs/kovaleva2019/finetuning.yaml` leaves one in checkpoints/ of its run), or give "
                f"--data TextDataModule for the loss of a language model."
            )
        if self.wanted_score is not None:
            self.task.choose(self.wanted_score)
        self.prepare()

    def prepare(self) -> None:
        """Refuse what does not fit the task."""

    def sets(self) -> Mapping[Ablation, Sequence[Heads]]:
        """Sets of heads by what replaces their outputs, once there is a trainer on its device."""
        raise TypeError(f"{type(self).__name__} does not say which heads are ablated.")

    def outcome(self, rows: Floats) -> Result:
        """The result, of the rows of all texts; see `Task.rows`."""
        raise TypeError(f"{type(self).__name__} does not say what comes out.")

    def on_test_start(self) -> None:
        """See what is to be ablated, and what an earlier run has left."""
        self._sets_of = self.sets()
        width = 1 + self.task.width * sum(map(len, self._sets_of.values()))
        self.rows = ItemRows({"numbers": width}).to(self.device)
        self._kept = self._kept_rows()

    def _kept_rows(self) -> "KeptRows":
        """What an earlier run has left that computed the same of this model and these texts."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        what: list[object] = [_VERSION, self.split, self.task.identity]
        for ablation, sets in self._sets_of.items():
            what += [ablation.kind, ablation.seed, [sorted(heads) for heads in sets]]
            if ablation.reference is not None:
                what.append(digest(ablation.reference.mean.cpu().numpy().tobytes()))
        return KeptRows(data.cache / f"{self.experiment}-{digest(repr(what).encode())[:24]}")

    def test_step(self, batch: TextBatch | SegmentBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        counts = batch.split == self.split if isinstance(batch, TextBatch) else True
        if counts and len(batch.index):
            rows = self._kept.rows(batch.index, lambda: self.task.rows(batch, self._sets_of))
            self.rows.update(index=batch.index, numbers=rows)

    def on_test_epoch_end(self) -> None:
        """Sum up, and fill `result`."""
        rows = self.rows.take()["numbers"]
        found = torch.tensor(self._kept.found, device=self.device)
        self.kept_batches = int(self.trainer.strategy.reduce(found, reduce_op="sum"))
        self.result = self.outcome(rows)

    @property
    def device_of_run(self) -> torch.device:
        """Where the run computes: `setup` comes before the module is moved there."""
        return self.trainer.strategy.root_device


@dataclass(frozen=True)
class Condition:
    """Heads that are ablated together, and by what kind of ablation."""

    kind: Kind
    name: str
    """`3-1` for a head, `3` for a layer, else the name of a set."""
    of: Literal["head", "layer", "set", "random"]
    heads: Heads

    @property
    def names(self) -> tuple[Kind, str]:
        """What random sets share with the one that they are drawn for."""
        return self.kind, self.name


class HeadAblation(TaskExperiment):
    """The score of a task with each head off, each layer, and each named set beside random ones.

    Differences to the whole model are tested by the paired bootstrap over texts, and p-values are adjusted for all
    heads of the model (Holm 1979). What was computed is kept under the cache folder: a run that was killed goes on.

    Args:
        checkpoint: of a `TransformerClassifier`, whose own texts are scored; None for language modelling.
        kinds: what their outputs are replaced by; `uniform` as Kovaleva et al., `zero` as Michel et al.
        heads: whether every single head is ablated.
        layers: whether every layer is.
        sets: names of further sets, and their heads by `layer-head` or `layer`.
        random: random sets that stand beside each named one, of as many heads of the same layers, which are others as
            far as there are enough.
        split: of labelled texts, on which the score is taken; means and other texts' outputs are of at most 1,000 texts
            of dev. A mean on dev is thus also over the text that is scored; no text is resampled from itself.
        score: of labelled texts; None for that of the data.
        seed: of random sets and of `resample`; None for that of the run.

    Raises:
        AnalysisError: nothing is to be ablated, or data and checkpoint do not fit.
        UserError: later, there is no such head.
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
        score: str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(checkpoint, split, score, seed)
        check_values(self, kinds=kinds)
        if not kinds or len(set(kinds)) < len(kinds) or not (heads or layers or sets):
            raise AnalysisError(
                "--model.init_args: name kinds of ablation, each once, and heads, layers or sets to ablate."
            )
        check_numbers(self, least=0, random=random)
        self.kinds, self.each_head, self.each_layer = tuple(kinds), heads, layers
        self.named, self.random = dict(sets or {}), random

    def prepare(self) -> None:
        self.conditions = self._conditions()

    def sets(self) -> Mapping[Ablation, Sequence[Heads]]:
        ablations = [self.task.ablation(kind, self.seed) for kind in self.kinds]
        found = {one: [each.heads for each in self.conditions if each.kind == one.kind] for one in ablations}
        found[ablations[0]].insert(0, frozenset())  # the whole model
        self._reference = next((one.reference for one in reversed(ablations) if one.reference is not None), None)
        shared = "layers below are computed once" if self.task.ablated.shares else "every time the whole model runs"
        rank_zero_info(f"{counted(len(self.conditions), 'set')} of heads to ablate; {shared}.")
        return found

    def _conditions(self) -> list[Condition]:
        """All sets, one kind after the other."""
        task = self.task
        found: list[tuple[str, Literal["head", "layer", "set", "random"], Heads]] = []
        everything = named_heads(map(str, range(1, task.layers + 1)), task.layers, task.heads, "")
        if self.each_head:
            found += [
                (f"{layer + 1}-{head + 1}", "head", frozenset({(layer, head)})) for layer, head in sorted(everything)
            ]
        if self.each_layer:
            for layer in range(task.layers):
                found.append((str(layer + 1), "layer", frozenset(one for one in everything if one[0] == layer)))
        for place, (name, heads) in enumerate(self.named.items()):
            if not heads:
                raise AnalysisError(f"--model.init_args.sets.{name}: it names no head. Write '[6-1, 5]'.")
            own = named_heads(heads, task.layers, task.heads, f"--model.init_args.sets.{name}")
            drawn = np.random.default_rng([self.seed, place])
            found.append((name, "set", own))
            found += [(name, "random", random_heads(own, task.heads, drawn)) for _ in range(self.random)]
        return [Condition(kind, *one) for kind in self.kinds for one in found]

    def outcome(self, rows: Floats) -> Result:
        task, tests = self.task, self.task.layers * self.task.heads
        draws = draws_for(tests, len(rows))
        least = min(1.0, 2 / (1 + draws) * tests)
        if self.each_head and least >= LEVEL:
            rank_zero_warn(
                f"{draws} resamples of {len(rows)} texts fit into memory, and of {tests} heads none can differ after "
                f"Holm's correction: the counts of heads are left blank. Score fewer texts."
            )
        task.warn_of_one_label(rows)
        whole = task.resampled(rows, 0, draws)
        progress = Progress("Scores and their intervals", len(self.conditions))
        measured = []
        for place, one in enumerate(self.conditions, start=1):
            measured.append(Measured.of(one, task.resampled(rows, place, draws), whole))
            progress.advance()
        scores = {task.score: whole.estimate}
        tables: dict[str, Table] = {}
        figures: dict[str, Figure] = {}
        audit: dict[str, object] = {"texts": len(rows), "draws": draws, "kept_batches": self.kept_batches}
        for kind in self.kinds:
            of_kind = [one for one in measured if one.condition.kind == kind]
            scores |= self._counts(kind, of_kind, known=least < LEVEL)
            figures |= self._figures(kind, of_kind)
        for of, name in (("head", "ablation"), ("layer", "layers")):
            if chosen := [one for one in measured if one.condition.of == of]:
                tables[name] = ablation_table(chosen, task, heads=of == "head")
        if self.named:
            tables["sets"] = self._set_table(measured)
        # One is printed, the smallest.
        printed = next((name for name in ("sets", "layers") if name in tables), "ablation")
        tables = {name: table if name == printed else replace(table, answer=()) for name, table in tables.items()}
        if (reference := self._reference) is not None:
            audit["reference"] = f"{reference.texts} texts of {task.references}, {len(reference.lengths)} to resample"
            of_dev = self.checkpoint is not None and self.split == "dev"
            audit["means_include_scored_texts"] = of_dev or task.references != "dev"
        if self.each_head:
            audit["least_p_holm"] = least
        asked = (task.score, *(f"{kind}.heads_that_{do}" for kind in self.kinds for do in ("help", "hurt")))
        headline = [name for name in asked if name in scores]
        return Result(self.experiment, scores, tables, figures, audit, headline=headline)

    def _counts(self, kind: Kind, measured: "Sequence[Measured]", *, known: bool) -> dict[str, Estimate]:
        """How many heads help, how many hurt, and of how many these texts say neither, after Holm's correction.

        They are nan where it is not `known`, because no p-value could be small enough.
        """
        heads = [one for one in measured if one.condition.of == "head"]
        if not heads:
            return {}
        adjusted = holm([one.p for one in heads])
        sign = 1 if self.task.lower_is_better else -1
        helps = [p < LEVEL and sign * one.difference.value > 0 for one, p in zip(heads, adjusted, strict=True)]
        hurts = [p < LEVEL and sign * one.difference.value < 0 for one, p in zip(heads, adjusted, strict=True)]
        counts = {
            "heads_that_help": sum(helps),
            "heads_that_hurt": sum(hurts),
            "heads_undecided": len(heads) - sum(helps) - sum(hurts),
        }
        changes = [one.difference.value for one in heads]
        extremes = {"lowest": min(changes), "highest": max(changes)}
        return {
            **{f"{kind}.{name}": Estimate(count if known else np.nan, unit="count") for name, count in counts.items()},
            **{f"{kind}.{name}_difference": Estimate(value, unit=self.task.unit) for name, value in extremes.items()},
        }

    def _figures(self, kind: Kind, measured: "Sequence[Measured]") -> dict[str, Figure]:
        """A map of the differences of all heads, and a bar for each layer."""
        task, found = self.task, dict[str, Figure]()
        label = f"change of {task.score}"
        if heads := [one.difference.value for one in measured if one.condition.of == "head"]:
            values = np.array(heads).reshape(task.layers, task.heads)
            title = f"Heads off, one at a time ({kind}, {self.split})"
            found[f"ablation_{kind}"] = replace(head_map(title, values, label, task.unit), diverging=True)
        if layers := [one for one in measured if one.condition.of == "layer"]:
            found[f"layers_{kind}"] = estimate_bars(
                f"All heads of a layer off ({kind}, {self.split})",
                [one.condition.name for one in layers],
                {kind: [one.difference for one in layers]},
                label,
                "layer",
            )
        return found

    def _set_table(self, measured: "Sequence[Measured]") -> Table:
        """A row for each kind and named set, beside the random sets of as many heads of the same layers.

        `other_heads` says how many heads of a random set are not of the named one, on average. P-values are adjusted
        for all sets of one kind.
        """
        rows: list[dict[str, object]] = []
        for one in measured:
            if one.condition.of != "set":
                continue
            own = (one.condition.kind, one.condition.name)
            drawn = [each for each in measured if each.condition.of == "random" and each.condition.names == own]
            row: dict[str, object] = {"kind": own[0], "set": own[1], "heads": len(one.condition.heads), **one.row}
            if drawn:
                others = [len(each.condition.heads - one.condition.heads) for each in drawn]
                row |= pooled([each.draws for each in drawn]).named("random") | {"other_heads": np.mean(others)}
                row |= difference([one.draws], [each.draws for each in drawn]).named("beyond_random")
            rows.append(row)
        frame = pd.DataFrame(rows).rename(columns={"beyond_random.p": "beyond_random_p"})
        for p in (name for name in ("p", "beyond_random_p") if name in frame):
            frame[f"{p}_holm"] = _holm_by_kind(frame, p)
        units: dict[str, Unit] = {
            **dict.fromkeys(("score", "difference", "random", "beyond_random"), self.task.unit),
            **dict.fromkeys(("p", "p_holm", "beyond_random_p", "beyond_random_p_holm"), "p"),
            "other_heads": "count",
        }
        asked = ("beyond_random", "beyond_random_p_holm") if "beyond_random" in frame else ("score", "p_holm")
        answer = ("kind", "set", "difference", *asked)
        known = {name: unit for name, unit in units.items() if name in frame}
        return Table(frame, known, interval="score", answer=answer)


@dataclass(frozen=True, eq=False)
class Measured:
    """The score with some heads ablated, and its difference to that of the whole model."""

    condition: Condition
    score: Estimate
    difference: Estimate
    resampled: Resampled | None
    """Of named and random sets, which are compared; those of all heads would be large."""

    @classmethod
    def of(cls, condition: Condition, found: Resampled, whole: Resampled) -> "Measured":
        """Under the same resamples of the texts."""
        kept = found if condition.of in ("set", "random") else None
        return cls(condition, found.estimate, difference([found], [whole]), kept)

    @property
    def draws(self) -> Resampled:
        assert self.resampled is not None
        return self.resampled

    @property
    def p(self) -> float:
        """Two-sided p-value of the difference."""
        return np.nan if self.difference.p is None else self.difference.p

    @property
    def row(self) -> dict[str, object]:
        """Score and difference with their intervals, and its p-value."""
        own = {"score": self.score.value, "low": self.score.low, "high": self.score.high}
        ends = {"difference.low": self.difference.low, "difference.high": self.difference.high}
        return {**own, "difference": self.difference.value, **ends, "p": self.p}


def ablation_table(measured: Sequence[Measured], task: Task, *, heads: bool) -> Table:
    """A row for each kind and head, or layer: `score, low, high, difference, p_holm` and more.

    P-values are adjusted for all heads, or all layers, of one kind.
    """
    rows: list[dict[str, object]] = []
    for one in measured:
        layer, _, head = one.condition.name.partition("-")
        place = {"layer": int(layer), "head": int(head)} if heads else {"layer": int(layer)}
        rows.append({"kind": one.condition.kind, **place, **one.row})
    frame = pd.DataFrame(rows)
    frame["p_holm"] = _holm_by_kind(frame, "p")
    units = {"score": task.unit, "difference": task.unit, "p": "p", "p_holm": "p"}
    return Table(frame, units, interval="score", answer=("kind", *place, "difference", "p_holm"))


def draws_for(tests: int, texts: int) -> int:
    """How many resamples of the texts so many p-values need that are adjusted for each other, as far as memory goes."""
    return min(max(DRAWS, _DRAWS_A_TEST * tests), max(_MOST_CELLS // max(texts, 1), 1000))


def _holm_by_kind(frame: pd.DataFrame, p: str) -> Floats:
    """Adjusted p-values, those of each kind on their own, which stand one after the other."""
    return np.concatenate([holm(frame.loc[frame["kind"] == kind, p].tolist()) for kind in frame["kind"].unique()])


def random_heads(like: Heads, heads: int, random: np.random.Generator) -> Heads:
    """As many heads of each layer as there are in `like`, others than these as far as there are enough."""
    found: set[tuple[int, int]] = set()
    for layer in sorted({layer for layer, _ in like}):
        own = {head for of, head in like if of == layer}
        others = random.permutation([head for head in range(heads) if head not in own]).tolist()
        drawn = [*others, *random.permutation(sorted(own)).tolist()][: len(own)]
        found |= {(layer, int(head)) for head in drawn}
    return frozenset(found)


class KeptRows:
    """Rows of numbers of every batch, kept in a file each, so that a run that was killed goes on where it was.

    Attributes:
        found: batches whose numbers an earlier run has left.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.found = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)

    def rows(self, index: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """The rows of the items of a batch, int64 `[batch]`, as they were kept, or as they are made now."""
        path = self._folder / f"{digest(repr(index.tolist()).encode())[:24]}.npy"
        if (content := kept(path)) is not None:
            self.found += 1
            loaded: NDArray[np.float64] = np.load(io.BytesIO(content))
            return torch.from_numpy(loaded).to(index.device)
        rows = make()
        made = io.BytesIO()
        np.save(made, rows.cpu().numpy())
        keep(path, made.getbuffer())
        return rows
