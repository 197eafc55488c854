"""All tests over all checkpoints: every classifier reads every text once, and the tests measure what it says."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from jsonargparse import Namespace
from numpy.typing import NDArray
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor, nn

from datamodules import ClassificationDataModule, TextBatch
from datamodules.sampling import run_seed
from fidelity.base import CheckpointResult, FidelityTest, Score, by_variant
from fidelity.checkpoints import Checkpoint, FidelityError, data_settings, files_of, load
from fidelity.classified import ClassifiedBatch, classify
from fidelity.saliency import Saliency
from metrics.bootstrap import Resampled, difference, holm, mean, pooled, resample
from metrics.classification import f1_score
from metrics.progress import Progress, counted
from metrics.rows import ItemRows
from results import ColouredText, ColouredTexts, Estimate, Result, Table, Unit
from training import recorded_gradients

OWN = ("gold", "predicted", "words", "correct")
"""Columns of every text, also of a text that no test measures."""


_SHORT = {"mean.low": "low", "mean.high": "high", "mean.sd": "sd", "difference.p": "p"}


class Example(NamedTuple):
    """A text under one classifier.

    Attributes:
        text: its place in the split.
        checkpoint: name of the classifier.
        predicted: its class.
        confidence: probability of that class.
        rows: by name, a number of each token.
    """

    text: int
    checkpoint: str
    predicted: int
    confidence: float
    rows: Mapping[str, Sequence[float]]


class Fidelity(LightningModule):
    """Whether attention explains the decisions of trained classifiers, by every test that is named.

    Run it with `python train.py test`. Without `--data` the texts are those that the first checkpoint was trained on;
    the tests read its test split. Texts of fewer than two words are classified, but not tested.

    Args:
        checkpoints: file or files of trained classifiers; a folder stands for all below. Those that differ in nothing
            but the seed are one variant; the variant of the first is what the others are compared with.
        tests: what is measured.
        level: level of attention that is tested; None for the sentences of a hierarchical classifier, else for all.
        examples: texts of the page of examples, evenly spread over the split; 0 for no page.
        ig_steps: points on the path of integrated gradients.
        eval_tokens: bound of a batch, in padded tokens; None for that of the data.
        seed: of everything that is drawn; None for that of the run.

    Raises:
        FidelityError: there is no checkpoint or no test, a test is named twice, or a number is too small.
    """

    experiment = "fidelity"
    example_input_array = None

    def __init__(
        self,
        checkpoints: list[str] | str,
        tests: list[FidelityTest],
        level: str | None = None,
        examples: int = 10,
        ig_steps: int = 50,
        eval_tokens: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if examples < 0 or ig_steps < 1 or (eval_tokens is not None and eval_tokens < 1):
            raise FidelityError(
                f"--model.init_args: examples {examples}, ig_steps {ig_steps} and eval_tokens {eval_tokens}: give "
                f"examples 0 or more, and the others 1 or more."
            )
        paths = [checkpoints] if isinstance(checkpoints, str) else checkpoints
        if not paths:
            raise FidelityError(
                "There is no checkpoint: name one or more with --model.init_args.checkpoints '[a.ckpt, b.ckpt]'."
            )
        names = [test.name for test in tests]
        if not names or len(set(names)) < len(names):
            raise FidelityError(f"--model.init_args.tests: name one or more, each once, and not {names}.")
        self.paths, self.tests = [Path(path).expanduser() for path in paths], tests
        self.level, self.examples, self.ig_steps, self.eval_tokens = level, examples, ig_steps, eval_tokens
        self._seed = seed
        self.result: Result | None = None
        self.checkpoints: list[Checkpoint] = []

    @classmethod
    def data_of(cls, arguments: Namespace) -> Namespace | None:
        """Settings of the data that the first checkpoint was trained on, for a command line that names no data.

        Args:
            arguments: those of the class.

        Raises:
            FidelityError: there is no such checkpoint, or it is not that of a classifier.
        """
        paths = [arguments.checkpoints] if isinstance(arguments.checkpoints, str) else arguments.checkpoints
        return data_settings(files_of([Path(paths[0]).expanduser()])[0]) if paths else None

    @property
    def data(self) -> ClassificationDataModule:
        """The datamodule of the run.

        Raises:
            FidelityError: it is not one of labelled texts.
        """
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, ClassificationDataModule):
            raise FidelityError(f"Fidelity tests classifiers of texts, and {type(data).__name__} has no labelled ones.")
        return data

    @property
    def seed(self) -> int:
        """Its own seed, or that of the run."""
        return run_seed(self._seed)

    def setup(self, stage: str) -> None:
        """Load the classifiers.

        Raises:
            FidelityError: a checkpoint cannot be used.
        """
        if self.checkpoints:
            return
        self.checkpoints = load(self.paths, self.data)
        self.data.eval_tokens = self.eval_tokens or self.data.eval_tokens
        self.models = nn.ModuleList(checkpoint.model for checkpoint in self.checkpoints)
        classes = len(self.data.labels)
        self._columns = [(test, column) for test in self.tests for column in test.columns(classes)]
        width = len(OWN) + len(self._columns)
        self.rows = nn.ModuleList(ItemRows(width) for _ in self.checkpoints)

    def on_test_start(self) -> None:
        """Prepare the tests; some train models of their own."""
        with recorded_gradients():
            for test in self.tests:
                test.begin(self.checkpoints, self.data, self.device, self.seed)
        total = len(self.data.splits["test"])
        self._chosen = frozenset(np.linspace(0, total - 1, min(self.examples, total), dtype=int).tolist())
        self._examples: list[Example] = []
        batches = int(self.trainer.num_test_batches[1])  # those of a part, where the trainer reads one
        rank_zero_info(
            f"{counted(total, 'text')} in the test split, {counted(batches, 'batch', 'batches')} to read, "
            f"{counted(len(self.checkpoints), 'classifier')}, {counted(len(self.tests), 'test')}."
        )
        # A batch of many checkpoints takes minutes, and the progress bar counts batches.
        self._progress = Progress("Fidelity", batches * len(self.checkpoints))

    def test_step(self, batch: TextBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Measure the test split."""
        if batch.split != "test" or not len(batch.index):
            return
        with recorded_gradients():
            batch = _copied(batch)  # the batch itself was made in inference mode
            for place, checkpoint in enumerate(self.checkpoints):
                self._measure(place, checkpoint, batch)
                self._progress.advance()

    def _measure(self, place: int, checkpoint: Checkpoint, batch: TextBatch) -> None:
        output, classified = classify(checkpoint, batch, self.level, seed=self.seed, pad=self.data.vocabulary.pad)
        predicted = output.logits.argmax(-1)
        own = [batch.labels, predicted, batch.words.sum(1), predicted == batch.labels]
        numbers = torch.full((len(batch.index), len(self._columns)), torch.nan, dtype=torch.float64)
        if classified is not None:
            tested = torch.isin(batch.index, classified.batch.index).cpu()
            saliency = Saliency(classified, self.ig_steps)
            found, highlights = [], dict[str, Tensor]()
            for test in self.tests:
                measured = test.measure(classified, saliency)
                columns = test.columns(len(self.data.labels))
                found += [measured.numbers[column].detach().double().cpu() for column in columns]
                highlights |= measured.highlights
            numbers[tested] = torch.stack(found, 1)
            self._examples += examples_of(classified, saliency, highlights, self._chosen)
        rows = self.rows[place]
        assert isinstance(rows, ItemRows)
        rows.update(batch.index, torch.cat([torch.stack(own, 1).double().cpu(), numbers], 1).to(batch.index.device))

    def on_test_epoch_end(self) -> None:
        """Sum up, and fill `result`."""
        results = []
        progress = Progress("Scores and their intervals", len(self.checkpoints))
        for pair in zip(self.checkpoints, self.rows, strict=True):
            results.append(self._result_of(*pair))
            progress.advance()
        tables = {"fidelity": fidelity_table(results)}
        if len({result.variant for result in results}) > 1:
            tables["comparison"] = comparison_table(results)
        figures: dict[str, Any] = {}
        total, measured = len(self.data.splits["test"]), len(results[0].values)
        # Less than all of them where the trainer was told to read a part.
        audit: dict[str, object] = {} if measured == total else {"texts": f"{measured} of {total}"}
        audit["checkpoints"] = {
            one.name: {"file": str(one.path), "sha256": one.digest, "skipped_texts": _tested(result).count(False)}
            for one, result in zip(self.checkpoints, results, strict=True)
        }
        if len(tested := {tuple(_tested(result)) for result in results}) > 1:
            audit["compared_over_different_texts"] = f"{len(tested)} sets, for their levels of attention differ"
        for test in self.tests:
            tables |= test.tables(results)
            figures |= test.figures(results)
            audit |= {f"{test.name}.{name}": value for name, value in test.audit().items()}
        tables["summary"] = summary_table(results)  # behind the others, near to where the eye falls
        if examples := _gathered(self._examples):
            figures["examples"] = example_page(examples, self.data, self.checkpoints)
        ids = self.data.splits["test"].ids
        items = pd.concat(
            [one.values.assign(checkpoint=one.name, id=[ids[text] for text in one.values.index]) for one in results],
            ignore_index=True,
        )
        self.result = Result(self.experiment, result_scores(results), tables, figures, audit, items)

    def _result_of(self, checkpoint: Checkpoint, rows: nn.Module) -> CheckpointResult:
        assert isinstance(rows, ItemRows)
        texts, values = rows.compute()
        rows.reset()
        names = [*OWN, *(f"{test.name}.{column}" for test, column in self._columns)]
        frame = pd.DataFrame(values, columns=names, index=texts)
        classes, positive = len(self.data.labels), self.data.positive
        scores = {
            "f1": _estimate(frame, "", Score(("gold", "predicted"), f1_score(positive, classes), "fraction")),
            "accuracy": _estimate(frame, "", Score(("correct",), mean, "fraction")),
        }
        for test in self.tests:
            for name, score in test.scores(classes, positive).items():
                scores[f"{test.name}.{name}"] = _estimate(frame, f"{test.name}.", score)
        return CheckpointResult(checkpoint.name, checkpoint.variant, checkpoint.seed, classes, positive, frame, scores)


def _estimate(frame: pd.DataFrame, prefix: str, score: Score) -> Resampled:
    values: NDArray[np.float64] = frame[[f"{prefix}{column}" for column in score.columns]].to_numpy(np.float64)
    return resample(score.statistic, values, score.unit)


def _tested(result: CheckpointResult) -> list[bool]:
    tests = result.values.drop(columns=list(OWN))
    found: list[bool] = tests.notna().any(axis=1).tolist()
    return found


def _copied(batch: TextBatch) -> TextBatch:
    tensors: dict[str, Any] = {name: value.clone() for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return replace(batch, **tensors)


def fidelity_table(results: Sequence[CheckpointResult]) -> Table:
    """A row for each checkpoint.

    Columns: `checkpoint, variant, seed, texts` (that were tested), `skipped` (that were too short), and every score as
    `<score>, <score>.low, <score>.high`; nan for what it was not tested by.
    """
    rows = []
    for result in results:
        tested = result.values.filter(like=".").notna().any(axis=1)  # of columns that belong to a test
        row: dict[str, object] = {
            "checkpoint": result.name,
            "variant": result.variant,
            "seed": result.seed,
            "texts": int(tested.sum()),
            "skipped": int((~tested).sum()),
        }
        for name, score in result.scores.items():
            row |= score.estimate.named(name)
        rows.append(row)
    units = {name: score.unit for result in results for name, score in result.scores.items()}
    return Table(pd.DataFrame(rows), units)


def comparison_table(results: Sequence[CheckpointResult]) -> Table:
    """A row for each score and variant.

    Columns: `score, variant, seeds, mean, low, high, sd`, the mean over the seeds, its interval and the standard
    deviation over them; and against the first variant, under the same resamples of the texts, `difference,
    difference.low, difference.high, p` and `p_holm`, adjusted for the variants of the score: nan in its own row. The
    intervals and the p-values are about the texts; how far other seeds would be is for `sd` to say.
    """
    variants = by_variant(results)
    rows: list[dict[str, object]] = []
    units: list[Unit] = []
    for score in dict.fromkeys(name for result in results for name in result.scores):
        found = {variant: _seeds(ours, score) for variant, ours in variants.items()}
        first = found[results[0].variant]
        tested = {variant: seeds for variant, seeds in found.items() if seeds}
        against = [difference(seeds, first) if first and seeds is not first else None for seeds in tested.values()]
        adjusted = holm([math.nan if apart is None or apart.p is None else apart.p for apart in against])
        for (variant, seeds), apart, p in zip(tested.items(), against, adjusted.tolist(), strict=True):
            over_seeds = pooled(seeds)
            units.append(over_seeds.unit)
            nothing = Estimate(math.nan, math.nan, math.nan, unit=over_seeds.unit, p=math.nan)
            rows.append(
                {"score": score, "variant": variant, "seeds": len(seeds)}
                | over_seeds.named("mean")
                | (apart or nothing).named("difference")
                | {"p_holm": p}
            )
    frame = pd.DataFrame(rows).rename(columns=_SHORT)
    return Table(frame, {"mean": units, "difference": units, "p": "p", "p_holm": "p"}, interval="mean")


def summary_table(results: Sequence[CheckpointResult]) -> Table:
    """A row for each score, a column for each variant: the mean over its seeds, with `.low` and `.high`."""
    variants = by_variant(results)
    rows, units = [], []
    for score in dict.fromkeys(name for result in results for name in result.scores):
        found = {variant: pooled(seeds) for variant, ours in variants.items() if (seeds := _seeds(ours, score))}
        row: dict[str, object] = {"score": score}
        for variant, over_seeds in found.items():
            row |= replace(over_seeds, sd=None).named(variant)
        rows.append(row)
        units.append(next(iter(found.values())).unit)
    return Table(pd.DataFrame(rows), dict.fromkeys(variants, units))


def result_scores(results: Sequence[CheckpointResult]) -> dict[str, Estimate]:
    """Every score: of each variant the mean over its seeds and the interval of that mean.

    Those of the first variant, which the others are compared with, go by their own names; the names of the others begin
    with the variant, as `tying.erasure.…`.
    """
    variants = by_variant(results)
    scores: dict[str, Estimate] = {}
    for variant, ours in variants.items():
        prefix = "" if variant == results[0].variant else f"{variant}."
        names = dict.fromkeys(name for result in ours for name in result.scores)
        scores |= {f"{prefix}{name}": replace(pooled(_seeds(ours, name)), sd=None) for name in names}
    return scores


def _seeds(results: Sequence[CheckpointResult], score: str) -> list[Resampled]:
    """Of the seeds that have the score: some tests leave seeds out. Where none has it, what they have, undefined."""
    found = [result.scores[score] for result in results if score in result.scores]
    return [one for one in found if not math.isnan(one.value)] or found


def examples_of(
    classified: ClassifiedBatch, saliency: Saliency, highlights: Mapping[str, Tensor], chosen: Collection[int]
) -> list[Example]:
    """The chosen texts among those of a batch.

    Args:
        classified: the batch.
        saliency: of its words.
        highlights: by name `[batch, positions]`, what words are coloured by beside attention and input × gradient.
        chosen: places in the split.
    """
    if not set(chosen).intersection(classified.batch.index.tolist()):
        return []
    rows = {"attention": classified.attention, "input_x_gradient": saliency.input_x_gradient, **highlights}
    tokens = {name: classified.to_tokens(values.detach()).tolist() for name, values in rows.items()}
    return [
        Example(
            text,
            classified.checkpoint.name,
            int(classified.predicted[place]),
            float(classified.confidence[place]),
            {name: values[place][: int(classified.batch.lengths[place])] for name, values in tokens.items()},
        )
        for place, text in enumerate(classified.batch.index.tolist())
        if text in chosen
    ]


def example_page(
    found: Sequence[Example], data: ClassificationDataModule, checkpoints: Sequence[Checkpoint]
) -> ColouredTexts:
    """One page: every text under the first checkpoint of each variant."""
    first = {one.variant: one for one in reversed(checkpoints)}
    names = {one.name: one.variant for one in checkpoints if first[one.variant] is one}
    order = {name: place for place, name in enumerate(names)}
    shown = sorted((one for one in found if one.checkpoint in names), key=lambda one: (one.text, order[one.checkpoint]))
    split, labels = data.splits["test"], data.labels
    texts = []
    for text in dict.fromkeys(one.text for one in shown):
        here = [one for one in shown if one.text == text]
        said = "".join(
            f", {names[one.checkpoint]} predicts {labels[one.predicted]} (P = {one.confidence:.3f})" for one in here
        )
        rows = {f"{names[one.checkpoint]}: {name}": row for one in here for name, row in one.rows.items()}
        tokens = data.text("test", text)[1]
        # A word that the vocabulary has not is shown as it stands in the text; a piece is what the model sees.
        forms = split.forms(text) if data.tokenizer is None else [None] * len(tokens)
        words = tuple(form or token for form, token in zip(forms, tokens, strict=True))
        name, gold = f"Text {split.ids[text]} of test", labels[split.labels[text]]
        texts.append(ColouredText(name, f"gold {gold}{said}", words, rows))
    return ColouredTexts("Example texts", tuple(texts))


def _gathered(found: Sequence[Example]) -> list[Example]:
    """Those of all devices."""
    parts: list[Any] = [list(found)]
    if dist.is_available() and dist.is_initialized():
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, list(found))
    return [example for part in parts for example in part]
