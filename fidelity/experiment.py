"""All tests over all checkpoints: every classifier reads every text once, and the tests measure what it says."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jsonargparse import Namespace
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor, nn

from datamodules import ClassificationDataModule, TextBatch
from fidelity.base import CheckpointResult, FidelityTest, by_variant
from fidelity.checkpoints import Checkpoint, files_of, load, read
from fidelity.classified import ClassifiedBatch, classify
from fidelity.saliency import Saliency
from metrics.bootstrap import difference, holm, mean, pooled, resample
from metrics.classification import f1_score
from metrics.rows import ItemRows
from models.base import gathered
from processes.progress import Progress
from results import ColouredText, ColouredTexts, Estimate, Figure, Result, Table, Unit, numbers
from results.errors import UserError, check_numbers, counted
from training import Experiment, recorded_gradients
from training.checkpoints import data_settings
from training.experiment import check_names

OWN = ("gold", "predicted", "words", "correct")  # columns of every text, also of one that no test measures


class Example(NamedTuple):
    """A text, by its place in the split, under one classifier; by name, `rows` have a number for each token."""

    text: int
    checkpoint: str
    predicted: int
    confidence: float
    rows: Mapping[str, Sequence[float]]


class Fidelity(Experiment[ClassificationDataModule]):
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
    """

    experiment = "fidelity"
    takes = ClassificationDataModule
    counts_progress = True  # in texts of each checkpoint: a batch of many takes minutes

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
        super().__init__(seed)
        check_numbers(self, least=0, examples=examples)
        check_numbers(self, least=1, ig_steps=ig_steps, eval_tokens=eval_tokens)
        paths = [checkpoints] if isinstance(checkpoints, str) else checkpoints
        if not paths:
            raise UserError(
                "There is no checkpoint: name one or more with --model.init_args.checkpoints '[a.ckpt, b.ckpt]'."
            )
        check_names("tests", [test.name for test in tests])
        self.paths, self.tests = [Path(path).expanduser() for path in paths], tests
        for path in self.paths:
            files_of(path)  # before the data are read
        self.level, self.examples, self.ig_steps, self.eval_tokens = level, examples, ig_steps, eval_tokens
        self.checkpoints: list[Checkpoint] = []

    @classmethod
    def data_of(cls, arguments: Namespace) -> Namespace | None:
        """Settings of the data that the first checkpoint was trained on, for a command line that names no data."""
        paths = [arguments.checkpoints] if isinstance(arguments.checkpoints, str) else arguments.checkpoints
        if not paths:
            return None
        path = files_of(Path(paths[0]).expanduser())[0]
        return data_settings(path, read(path)[1])

    @property
    def data(self) -> ClassificationDataModule:
        """Datamodule of the run; a UserError if its labels are numbers."""
        data = super().data
        if data.regression:
            raise UserError(
                "Fidelity tests ask whether decisions between classes change, and the labels of these data are numbers "
                "(--data.init_args.regression). Give checkpoints of a classification."
            )
        return data

    def prepare(self) -> None:
        """Load the classifiers; a UserError for a checkpoint that cannot be used."""
        if self.checkpoints:
            return
        self.checkpoints = load(self.paths, self.data)
        self.data.eval_tokens = self.eval_tokens or self.data.eval_tokens
        self.models = nn.ModuleList(checkpoint.model for checkpoint in self.checkpoints)
        classes = len(self.data.labels)
        self._columns = [(test, column) for test in self.tests for column in test.columns(classes)]
        names = [*OWN, *(f"{test.name}.{column}" for test, column in self._columns)]
        self.rows = nn.ModuleList(ItemRows(dict.fromkeys(names)) for _ in self.checkpoints)

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

    def update(self, batch: TextBatch) -> None:
        if batch.split != "test" or not len(batch.index):
            return
        with recorded_gradients():
            for place, checkpoint in enumerate(self.checkpoints):
                self._measure(place, checkpoint, batch)
                self._progress.advance()

    def _measure(self, place: int, checkpoint: Checkpoint, batch: TextBatch) -> None:
        output, classified = classify(checkpoint, batch, self.level, seed=self.seed, pad=self.data.vocabulary.pad)
        predicted = output.logits.argmax(-1)
        own = (batch.labels, predicted, batch.words.sum(1), predicted == batch.labels)
        columns = {name: column.double() for name, column in zip(OWN, own, strict=True)}
        unknown = torch.full((len(batch.index),), torch.nan, dtype=torch.float64, device=batch.index.device)
        columns |= {f"{test.name}.{column}": unknown.clone() for test, column in self._columns}
        if classified is not None:
            saliency = Saliency(classified, self.ig_steps)
            measured = {test: test.measure(classified, saliency) for test in self.tests}
            tested = torch.isin(batch.index, classified.batch.index)
            for test, column in self._columns:
                columns[f"{test.name}.{column}"][tested] = measured[test].numbers[column].detach().to(unknown)
            highlights = {name: colours for one in measured.values() for name, colours in one.highlights.items()}
            self._examples += examples_of(classified, saliency, highlights, self._chosen)
        rows = self.rows[place]
        assert isinstance(rows, ItemRows)
        rows.update(index=batch.index, **columns)

    def outcome(self) -> Result:
        results = []
        progress = Progress("Scores and their intervals", len(self.checkpoints))
        for pair in zip(self.checkpoints, self.rows, strict=True):
            results.append(self._result_of(*pair))
            progress.advance()
        tables = {"fidelity": fidelity_table(results)}
        if len(by_variant(results)) > 1:
            tables["comparison"] = comparison_table(results)
        figures: dict[str, Figure] = {}
        audit = self._audit(results)
        for test in self.tests:
            tables |= test.tables(results)
            figures |= test.figures(results)
            audit |= {f"{test.name}.{name}": value for name, value in test.audit().items()}
        asked = [name for name in _by_score(results) if self._is_asked(name)]
        tables["summary"] = summary_table(results, asked)
        if examples := gathered(self._examples):
            figures["examples"] = example_page(examples, self.data, self.checkpoints)
        ids = self.data.splits["test"].ids
        items = pd.concat(
            [one.values.assign(checkpoint=one.name, id=[ids[text] for text in one.values.index]) for one in results],
            ignore_index=True,
        )
        scores, prefixes = result_scores(results), ["", *(f"{variant}." for variant in by_variant(results))]
        headline = [f"{prefix}{name}" for prefix in prefixes for name in asked if f"{prefix}{name}" in scores]
        return Result(self.experiment, scores, tables, figures, audit, items, headline=headline)

    def _is_asked(self, score: str) -> bool:
        """Return if a score is one of the classifier, or answers the question of its test."""
        test = next((test for test in self.tests if score.startswith(f"{test.name}.")), None)
        return test is None or score.endswith(test.headline)

    def _audit(self, results: Sequence[CheckpointResult]) -> dict[str, object]:
        total, measured = len(self.data.splits["test"]), len(results[0].values)
        # Less than all of them where the trainer was told to read a part.
        audit: dict[str, object] = {} if measured == total else {"texts": f"{measured} of {total}"}
        tested = [_tested(result).tolist() for result in results]
        audit["checkpoints"] = {
            one.name: {"file": str(one.path), "sha256": one.digest, "skipped_texts": texts.count(False)}
            for one, texts in zip(self.checkpoints, tested, strict=True)
        }
        if (sets := len(set(map(tuple, tested)))) > 1:
            audit["compared_over_different_texts"] = f"{sets} sets, for their levels of attention differ"
        return audit

    def _result_of(self, checkpoint: Checkpoint, rows: nn.Module) -> CheckpointResult:
        assert isinstance(rows, ItemRows)
        found = rows.take()
        texts = found.pop("index")
        frame = pd.DataFrame(found, index=texts)
        classes, positive = len(self.data.labels), self.data.positive
        scores = {
            "f1": resample(f1_score(positive, classes), frame[["gold", "predicted"]], "fraction"),
            "accuracy": resample(mean, frame[["correct"]], "fraction"),
        }
        for test in self.tests:
            for name, (columns, statistic, unit) in test.scores(classes, positive).items():
                own = frame[[f"{test.name}.{column}" for column in columns]]
                scores[f"{test.name}.{name}"] = resample(statistic, own, unit)
        return CheckpointResult(checkpoint.name, checkpoint.variant, checkpoint.seed, classes, positive, frame, scores)


def _tested(result: CheckpointResult) -> "pd.Series[bool]":
    """Which texts have a number of any test: those of the classifier itself have no dot in their names."""
    return result.values.filter(like=".").notna().any(axis=1)


def fidelity_table(results: Sequence[CheckpointResult]) -> Table:
    """A row for each checkpoint: how many texts were tested and skipped, and every score; nan for what it has not."""
    rows = []
    for result in results:
        texts = int(_tested(result).sum())
        row: dict[str, object] = {"checkpoint": result.name, "variant": result.variant, "seed": result.seed}
        row |= {"texts": texts, "skipped": len(result.values) - texts}
        rows.append(row | numbers(result.scores))
    units = {name: score.unit for result in results for name, score in result.scores.items()}
    return Table(pd.DataFrame(rows), units)


def comparison_table(results: Sequence[CheckpointResult]) -> Table:
    """A row for each score and variant.

    Columns: `score, variant, seeds, mean, low, high, sd`, over the seeds; and against the first variant, under the same
    resamples of the texts, `difference, difference.low, difference.high, p` and `p_holm`, adjusted for the variants of
    the score: nan in its own row. Intervals and p-values describe the variation over texts, `sd` that over seeds.
    """
    rows: list[dict[str, object]] = []
    units: list[Unit] = []
    for score, variants in _by_score(results).items():
        means = {variant: pooled(seeds) for variant, seeds in variants.items()}
        first = means.get(results[0].variant)
        nothing = Estimate(math.nan, math.nan, math.nan, unit=_unit(variants), p=math.nan)
        against = [difference(mean, first) if first and mean is not first else nothing for mean in means.values()]
        adjusted = holm([math.nan if apart.p is None else apart.p for apart in against])
        for (variant, seeds), apart, p in zip(variants.items(), against, adjusted.tolist(), strict=True):
            names = {"score": score, "variant": variant, "seeds": len(seeds)}
            rows.append(names | means[variant].named("mean") | apart.named("difference") | {"p_holm": p})
            units.append(nothing.unit)
    short = {"mean.low": "low", "mean.high": "high", "mean.sd": "sd", "difference.p": "p"}
    frame = pd.DataFrame(rows).rename(columns=short)
    return Table(frame, {"mean": units, "difference": units, "p": "p", "p_holm": "p"}, interval="mean")


def summary_table(results: Sequence[CheckpointResult], asked: Sequence[str] = ()) -> Table:
    """A row for each score, a column for each variant: the mean over its seeds, with `.low` and `.high`.

    The scores that are `asked` for come first.
    """
    by_score = _by_score(results)
    found = {name: by_score[name] for name in dict.fromkeys((*asked, *by_score))}
    rows = [
        {"score": score} | numbers({variant: _pooled(seeds) for variant, seeds in variants.items()})
        for score, variants in found.items()
    ]
    units, names = [_unit(variants) for variants in found.values()], by_variant(results)
    # For one variant it repeats the scores.
    return Table(pd.DataFrame(rows), dict.fromkeys(names, units), answer=("score", *names) if len(names) > 1 else ())


def result_scores(results: Sequence[CheckpointResult]) -> dict[str, Estimate]:
    """Every score of each variant, the mean over its seeds; but for the first variant, named as `tying.erasure.…`."""
    found = _by_score(results)
    scores: dict[str, Estimate] = {}
    for variant in by_variant(results):
        prefix = "" if variant == results[0].variant else f"{variant}."
        scores |= {f"{prefix}{name}": _pooled(seeds[variant]) for name, seeds in found.items() if variant in seeds}
    return scores


def _by_score(results: Sequence[CheckpointResult]) -> dict[str, dict[str, list[Estimate]]]:
    """The seeds of each variant by score: those where it is defined, or where it is nowhere, all."""
    found: dict[str, dict[str, list[Estimate]]] = {}
    for variant, ours in by_variant(results).items():
        for name in dict.fromkeys(name for result in ours for name in result.scores):
            seeds = [result.scores[name] for result in ours if name in result.scores]
            found.setdefault(name, {})[variant] = [one for one in seeds if not math.isnan(one.value)] or seeds
    return found


def _unit(variants: Mapping[str, Sequence[Estimate]]) -> Unit:
    return next(iter(variants.values()))[0].unit


def _pooled(seeds: Sequence[Estimate]) -> Estimate:
    return replace(pooled(seeds), sd=None)


def examples_of(
    classified: ClassifiedBatch, saliency: Saliency, highlights: Mapping[str, Tensor], chosen: Collection[int]
) -> list[Example]:
    """The texts of a batch whose places in the split are chosen.

    Words are coloured by attention, input × gradient, and the highlights, by name `[batch, positions]`.
    """
    if not set(chosen).intersection(classified.batch.index.tolist()):
        return []
    rows = {"attention": classified.attention, "input_x_gradient": saliency.input_x_gradient, **highlights}
    tokens = {name: classified.to_tokens(values.detach()).tolist() for name, values in rows.items()}
    found = []
    for place, text in enumerate(classified.batch.index.tolist()):
        if text in chosen:
            shown = {name: values[place][: int(classified.batch.lengths[place])] for name, values in tokens.items()}
            decision = int(classified.predicted[place]), float(classified.confidence[place])
            found.append(Example(text, classified.checkpoint.name, *decision, shown))
    return found


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
