"""The measurement that runs fidelity tests over checkpoints, and the base class of a test."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from jsonargparse import Namespace
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor, nn

from attention_probing.attention import EncoderSpec
from attention_probing.datamodules import ClassificationDataModule, TextBatch
from attention_probing.fidelity.checkpoints import Checkpoint, files_of, is_model, load, read
from attention_probing.fidelity.classified import UNCOUNTED, ClassifiedBatch, classify, to_tokens
from attention_probing.fidelity.comparison import (
    CheckpointResult,
    Judged,
    answer,
    by_score,
    by_variant,
    comparison_table,
    fidelity_table,
    judge_tables,
    result_scores,
)
from attention_probing.fidelity.explanations import FILE, Explanations, read_explanations
from attention_probing.fidelity.saliency import KNOWN, Explainer, Saliency, check_rankings, is_ranking, name_of
from attention_probing.measures.contract import Measure
from attention_probing.metrics.bootstrap import draws_for, resample
from attention_probing.metrics.classification import f1_score, mostly_one_label
from attention_probing.metrics.gathered import gather_items
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.metrics.statistics import Statistic, mean, proportion
from attention_probing.models import recorded_gradients
from attention_probing.models.checkpoints import data_settings
from attention_probing.results import ColouredText, ColouredTexts, Figure, Result, Table, Unit
from attention_probing.results.errors import UserError, check_names, check_numbers, check_values, pluralize, setting
from attention_probing.results.progress import inform

EXAMPLES = 10  # texts on the example page, evenly spread over those that are read
OWN = ("gold", "predicted", "words", "correct")  # columns of every text, also of texts that no test measures


@dataclass(frozen=True)
class Measurements:
    """Numbers that a test measures on a batch.

    Attributes:
        numbers: Values of the texts `[batch]` by names of `FidelityTest.columns`; columns that are not there are nan.
        highlights: Values of the words `[batch, positions]` by name; they colour the words of example texts.
    """

    numbers: Mapping[str, Tensor]
    highlights: Mapping[str, Tensor] = field(default_factory=dict)


class Score(NamedTuple):
    """Definition of a score of a test: a statistic over the texts.

    Attributes:
        columns: Columns of the test that the statistic reads.
        statistic: Function that computes the score in each bootstrap resample, `[draws]`, from the
            values of these columns, `[texts, columns]`, and the number of times that each text was
            drawn, `[draws, texts]`.
        unit: Unit of the score.
    """

    columns: Sequence[str]
    statistic: Statistic
    unit: Unit


def means(columns: Iterable[str], unit: Unit = "fraction") -> dict[str, Score]:
    """Define one score for each column: the mean of the column over the texts, under the column's name."""
    return {column: Score([column], mean, unit) for column in columns}


def proportions(columns: Iterable[str]) -> dict[str, Score]:
    """Define one score for each column of decisions: the share of texts with a yes.

    A decision is 1 for yes and 0 for no, or the mean of several decisions, for instance over random orders. If there
    are few decisions, the interval of the share is exact (`metrics.bootstrap.share_interval`). Use `means` for other
    numbers, whose interval is never of this kind, even if all of them are 0.
    """
    return {column: Score([column], proportion, "fraction") for column in columns}


class FidelityTest(ABC):
    """Base class of fidelity tests, which measure every text and compute scores over a test set.

    Subclasses implement `measure` and `scores`, and optionally `tables` and `figures`. The names
    of tables and figures begin with the name of the test. The names of columns and scores do not: the
    measurement prepends it.

    Attributes:
        name: Name of the test.
        headline: Endings of the names of the main scores, which are printed; by default all scores are main scores.
        rankings: Rankings and measures of words that the test reads: names, `file:PATH` for one from a file, or
            objects. In columns and scores a file has its name without the ending.
        names: Names of the rankings in columns and scores, for a test that uses `take`.
        further: Columns that no score reads.
        draws: Number of random orders of a text.
        level: Level of attention to test, the option of `Fidelity`, which sets it before `begin`.
        directions: Measures of the scores `<ranking>.<measure>` that the table `judge` shows: `↑` if higher is better,
            `↓` if lower is, an empty string if neither. If there are none, the table shows all measures. Without
            rankings, scores with an arrow in the printed table: `↑` if a high value speaks for attention.
        claims: Clauses of the answer: what a score says, as `uniform attention changes F1 by {change}`, or what the
            best ranking by a measure does. A run uses the first ones.
        beside: Measures of rankings that must be read together with a main measure, by its name; the printed table has
            them for the best ranking, attention and random.
    """

    name: ClassVar[str]
    headline: tuple[str, ...] = ("",)
    directions: ClassVar[Mapping[str, str]] = {}
    claims: ClassVar[Mapping[str, str]] = {}
    beside: ClassVar[Mapping[str, Sequence[str]]] = {}
    rankings: Sequence[str | Explainer] = ()
    names: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    draws: int = 5
    level: str | None = None

    def take(self, known: Sequence[str] = KNOWN, **option: Sequence[str | Explainer]) -> None:
        """Check the option that lists the rankings of a test, and set `rankings` and `names`.

        Args:
            known: Names that a ranking may have.
            **option: The rankings, each once, by the name of the option.

        Raises:
            UserError: The option has a value that is not allowed.
        """
        check_values(self, **option)
        ((name, rankings),) = option.items()
        self.rankings, self.names = tuple(rankings), check_rankings(f"{self.name}: {name}", rankings, known)

    def means_of(self, orders: Sequence[Tensor], **measures: Tensor) -> dict[str, Tensor]:
        """Return the columns `<ranking>.<measure>`: the mean of a measure over the orders of each ranking, `[batch]`.

        Args:
            orders: Orders of each ranking, `[orders, batch, positions]`.
            **measures: Values of each text in all orders of all rankings, `[orders, batch]`, by name.
        """
        parts = [len(one) for one in orders]
        return {
            f"{ranking}.{measure}": own.mean(0)
            for measure, values in measures.items()
            for ranking, own in zip(self.names, torch.split(values, parts), strict=True)
        }

    def begin(  # noqa: B027 # most have nothing to prepare
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        """Prepare the test before the first batch, for instance by training models.

        Args:
            checkpoints: Classifiers to test.
            data: Datamodule of the run, set up.
            device: Device of the classifiers.
            seed: Seed of all random numbers.
        """

    def columns(self, classes: int) -> Sequence[str]:
        """Return the names of the columns that `measure` fills, one value per text.

        By default they are the columns that the scores read, and those in `further`.

        Args:
            classes: Number of classes.
        """
        read = (column for score in self.scores(classes, None).values() for column in score.columns)
        return list(dict.fromkeys([*read, *self.further]))

    def changed_copies(self, classified: ClassifiedBatch) -> float:
        """Return how many changed copies of these texts `measure` has classified, for the time left in the log.

        It is infinite if that is not known before, which is the default.

        Args:
            classified: The texts.
        """
        return math.inf

    @abstractmethod
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        """Return what the test measures on a batch of texts under one classifier.

        The method may compute gradients with respect to activations, but not with respect to parameters, which are
        frozen.

        Args:
            classified: The texts, with attention and output of the classifier.
            saliency: Importance of the words of these texts. All tests share it, so that each measure is
                computed once.
        """

    @abstractmethod
    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        """Return the definitions of the test's scores, by name of the score.

        Args:
            classes: Number of classes.
            positive: Class whose F1 is reported; None for the mean over the classes.
        """

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the tables of the test by name, from the results of all checkpoints; none by default."""
        return {}

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return the figures of the test by name, from the results of all checkpoints; none by default."""
        return {}

    def audit(self) -> Mapping[str, object]:
        """Return counts of what the test left out or approximated, by name; none by default."""
        return {}


class Example(NamedTuple):
    """Text for the example page, with the decision of the first classifier of a variant.

    Attributes:
        text: Index of the text in the split.
        variant: Name of the variant.
        predicted: Predicted class.
        confidence: Probability of the predicted class.
        rows: Values of the tokens, `[tokens]`, by name of the measure, for instance `attention`.
    """

    text: int
    variant: str
    predicted: int
    confidence: float
    rows: Mapping[str, Sequence[float]]


class Fidelity(Measure[ClassificationDataModule]):
    """Tests of attention as an explanation of the decisions of trained classifiers.

    Without `--data` it uses the data of the first checkpoint. The tests read the test split. Texts of fewer than two
    words are classified, but not tested.

    Args:
        checkpoints: One or several files of trained classifiers; a folder stands for all checkpoints below
            it. A folder with config.json is a Hugging Face classifier, and so is `owner/name`
            on the hub, if there is no such local path. Checkpoints that differ only in the seed are one
            variant. The variant of the first checkpoint is the reference with which all others are compared.
        tests: The tests to run.
        level: Level of attention to test: `word` or `sentence`, or heads of a transformer: `6-1`, `6` for
            all heads of a layer, `all` for those of all layers. None tests the sentences of a hierarchical
            classifier, and all levels of other classifiers: those of a transformer's option `heads`, else
            the heads of its last layer.
        texts: Number of texts to read, drawn at random from the test split; None for all.
            `--trainer.limit_test_batches` would read the shortest.
        eval_tokens: Largest size of a batch, in tokens with padding; None for the datamodule's.
        seed: Seed of all random numbers; None for the seed of the run.
    """

    experiment = "fidelity"
    takes = ClassificationDataModule

    def __init__(
        self,
        checkpoints: list[str] | str,
        tests: list[FidelityTest],
        level: str | None = None,
        texts: int | None = None,
        eval_tokens: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        check_numbers(self, least=1, texts=texts, eval_tokens=eval_tokens)
        check_names(setting("model.tests"), [test.name for test in tests])
        paths = [checkpoints] if isinstance(checkpoints, str) else checkpoints
        if not paths:
            raise UserError(f"No checkpoint is given. Give one or more with {setting('checkpoints')}.")
        self.paths, self.tests = [Path(path).expanduser() for path in paths], tests
        for path in self.paths:
            files_of(path)  # before the data are read
        self.level, self.texts, self.eval_tokens = level, texts, eval_tokens
        self.checkpoints: list[Checkpoint] = []
        self._explanations: dict[str, Explanations] = {}

    @classmethod
    def data_of(cls, arguments: Namespace | Self, given: Namespace | None) -> Namespace | None:
        """Return the given data settings; without `--data`, those stored in the first checkpoint of a run.

        Without a given tokenizer, that of the first Hugging Face model is used.

        Args:
            arguments: The measurement, or its arguments from the command line, with `checkpoints`.
            given: Settings of `--data`; None if it is not given.

        Returns:
            The settings; None if neither they nor a checkpoint are given.

        Raises:
            UserError: There is no such checkpoint, it is not one of a text classifier, or no settings are
                given and no checkpoint has any.
        """
        named = arguments.checkpoints if isinstance(arguments, Namespace) else arguments.paths
        paths = [named] if isinstance(named, str) else named
        files = [file for path in paths for file in files_of(Path(path).expanduser())]
        if given is not None:
            model = next(filter(is_model, files), None)
            options: Any = given.get("init_args") or {}
            if model is not None and "tokenizer" in options and options.tokenizer is None:
                options.tokenizer = Namespace(vars(EncoderSpec(str(model))))  # type: ignore[no-untyped-call]
            return given
        if (first := next((file for file in files if not is_model(file)), None)) is not None:
            return data_settings(first, read(first)[1])
        if files:
            raise UserError(
                f"{files[0]}: a Hugging Face classifier does not say which texts to test on. Give "
                f"{setting('data', 'ClassificationDataModule')}, and its corpus with {setting('corpus')}."
            )
        return None

    def begin(self) -> None:
        """Load the classifiers, and prepare all tests; some of them train models.

        Raises:
            UserError: The labels of the data are numbers to predict, not classes; or a checkpoint cannot be used, see
                `fidelity.checkpoints.load`.
        """
        if self.data.regression:
            raise UserError(
                "Fidelity tests ask whether the predicted class changes, but the labels of these data are numbers "
                f"({setting('data.regression')}). Give data whose labels are classes, and checkpoints trained on them."
            )
        self.checkpoints = load(self.paths, self.data, self.level)
        self.data.eval_tokens = self.eval_tokens or self.data.eval_tokens
        named = {one for test in self.tests for one in test.rankings if isinstance(one, str)}
        files = sorted(one for one in named if one.startswith(FILE))
        names = [checkpoint.name for checkpoint in self.checkpoints]
        total = len(self.data.splits["test"])
        self._read = np.sort(np.random.default_rng(self.seed).permutation(total)[: self.texts])
        self._explanations = {
            one: read_explanations(Path(one.removeprefix(FILE)), self.data, names, self._read.tolist()) for one in files
        }
        self.models = nn.ModuleList(checkpoint.model for checkpoint in self.checkpoints)
        classes = len(self.data.labels)
        self._columns = [f"{test.name}.{column}" for test in self.tests for column in test.columns(classes)]
        self.rows = nn.ModuleList(Rows() for _ in self.checkpoints)
        self.models.to(self.device).eval()
        for test in self.tests:
            test.level = self.level
            test.begin(self.checkpoints, self.data, self.device, self.seed)
        read = len(self._read)
        places = np.linspace(0, read - 1, min(EXAMPLES, read), dtype=int)
        self._chosen = frozenset(self._read[places].tolist())
        self._examples: list[Example] = []
        self._seconds: list[tuple[str, str, float, int]] = []  # variant, ranking, seconds of a batch, its texts
        inform(
            f"{f'{read:,} of ' if read < total else ''}{pluralize(total, 'text')} in the test split, "
            f"{pluralize(len(self.checkpoints), 'classifier')}, {pluralize(len(self.tests), 'test')}."
        )

    def update(self, batch: TextBatch) -> None:
        if batch.split != "test" or not len(batch.index):
            return
        index = batch.index.cpu().numpy()
        items: list[int] = index[np.isin(index, self._read)].tolist()
        if not items:
            return
        if len(items) < len(index):
            batch = self.data.splits["test"][items].to(self.device)
        with recorded_gradients():
            for checkpoint, rows in zip(self.checkpoints, self.rows, strict=True):
                rows.add(batch.index, **self._measure(checkpoint, batch))  # type: ignore[operator]

    def _measure(self, checkpoint: Checkpoint, batch: TextBatch) -> dict[str, Tensor]:
        """Return all columns of a batch under a checkpoint, each `[batch]`; keep the example texts in it."""
        output, classified = classify(checkpoint, batch, self.level, seed=self.seed, vocabulary=self.data.vocabulary)
        predicted = output.logits.argmax(-1)
        own = (batch.labels, predicted, batch.words.sum(1), predicted == batch.labels)
        columns = {name: column.double() for name, column in zip(OWN, own, strict=True)}
        unknown = torch.full((len(batch.index),), torch.nan, dtype=torch.float64, device=batch.index.device)
        columns |= dict.fromkeys(self._columns, unknown)
        if classified is not None:
            saliency = Saliency(classified, self._explanations)
            measured = dict[FidelityTest, Measurements]()
            texts = pluralize(len(classified.batch.index), "text")
            for test in self.tests:
                copies = test.changed_copies(classified)
                why = UNCOUNTED if math.isinf(copies) else ""
                classified.progress.begin(f"{test.name}, changed copies of {texts}", copies, why)
                measured[test] = test.measure(classified, saliency)
            tested = torch.isin(batch.index, classified.batch.index)
            for test, one in measured.items():
                for column, values in one.numbers.items():
                    columns[f"{test.name}.{column}"] = unknown.masked_scatter(tested, values.detach().to(unknown))
            self._seconds += [
                (checkpoint.variant, name_of(ranking), seconds, len(classified.batch.index))
                for ranking, seconds in saliency.seconds.items()
            ]
            chosen = [row for row, text in enumerate(classified.batch.index.tolist()) if text in self._chosen]
            if chosen and checkpoint is next(one for one in self.checkpoints if one.variant == checkpoint.variant):
                rankings = [one for test in self.tests for one in test.rankings if is_ranking(one)]
                shown = dict.fromkeys(("attention", "input_x_gradient", *rankings))
                colours = {name_of(one): saliency.rankings(one, 1)[0] for one in shown}
                colours |= {name: own for one in measured.values() for name, own in one.highlights.items()}
                self._examples += examples_of(classified, colours, chosen)
        return columns

    def result(self) -> Result:
        results = [
            self._result(checkpoint, rows.take())  # type: ignore[operator]
            for checkpoint, rows in zip(self.checkpoints, self.rows, strict=True)
        ]
        asked = [name for name in by_score(results) if self._is_asked(name)]
        judged = [
            Judged(test.name, tuple(map(name_of, test.rankings)), test.directions, test.claims, test.beside)
            for test in self.tests
        ]
        tables = {"fidelity": fidelity_table(results, judged, asked)}
        tables |= judge_tables(results, judged, self._seconds_per_text())
        if len(results) > 1:
            tables["comparison"] = comparison_table(results)
        figures: dict[str, Figure] = {}
        audit = self._audit(results)
        for test in self.tests:
            tables |= test.tables(results)
            figures |= test.figures(results)
            audit |= {f"{test.name}.{name}": value for name, value in test.audit().items()}
        if examples := gather_items(self._examples):
            figures["examples"] = example_page(examples, self.data, list(by_variant(results)))
        ids = self.data.splits["test"].ids
        items = pd.concat(
            [one.values.assign(checkpoint=one.name, id=[ids[text] for text in one.values.index]) for one in results],
            ignore_index=True,
        )
        scores, said = result_scores(results), answer(results, judged, asked)
        headline = [name for name in tables["fidelity"].frame["score"] if name in scores]  # of the first variant
        return Result(self.experiment, scores, tables, figures, audit, items, {}, headline, said)

    def _seconds_per_text(self) -> dict[tuple[str, str], float]:
        """Return the seconds that a ranking takes for a text, by variant and ranking."""
        columns = ["variant", "ranking", "seconds", "texts"]
        sums = pd.DataFrame(gather_items(self._seconds), columns=columns).groupby(columns[:2]).sum()
        means: dict[tuple[str, str], float] = (sums["seconds"] / sums["texts"]).to_dict()  # type: ignore[assignment]
        return means

    def _is_asked(self, score: str) -> bool:
        """Return True if a score is the classifier's F1, or answers the question of its test."""
        test = next((test for test in self.tests if score.startswith(f"{test.name}.")), None)
        return score == "f1" if test is None else score.endswith(test.headline)

    def _audit(self, results: Sequence[CheckpointResult]) -> dict[str, object]:
        total, measured = len(self.data.splits["test"]), len(results[0].values)
        audit: dict[str, object] = {} if measured == total else {"texts": f"{measured} of {total}"}
        if self._explanations:
            audit["explanations"] = {
                one.path.stem: {"file": str(one.path), "sha256": one.sha256} for one in self._explanations.values()
            }
        tested = [result.tested.tolist() for result in results]
        checkpoints = {
            one.name: {"file": str(one.path), "sha256": one.digest, "skipped_texts": texts.count(False)}
            | ({} if one.has_recipe else one.model.audit)
            for one, texts in zip(self.checkpoints, tested, strict=True)
        }
        for one in results:
            gold, predicted = (one.values[name].to_numpy(np.int64) for name in ("gold", "predicted"))
            if one_label := mostly_one_label(gold, predicted, self.data.labels):
                rank_zero_warn(f"{one.name} {one_label}, so there is hardly a decision to explain. Train it again.")
                checkpoints[one.name]["one_label"] = one_label
        audit["checkpoints"] = checkpoints
        if (sets := len(set(map(tuple, tested)))) > 1:
            audit["compared_over_different_texts"] = f"{sets} sets, for their levels of attention differ"
        return audit

    def _result(self, checkpoint: Checkpoint, columns: dict[str, np.ndarray]) -> CheckpointResult:
        texts = columns.pop(ITEM)
        frame = pd.DataFrame(columns, index=texts)
        classes, positive = len(self.data.labels), self.data.positive
        # Variants are compared with the first one, and rankings with random ones; Holm's method corrects for both.
        rankings = {name_of(ranking) for test in self.tests for ranking in test.rankings}
        tests = max(len({one.variant for one in self.checkpoints}), len(rankings)) - 1
        draws = draws_for(tests, len(frame), 1000)
        scores = {
            "f1": resample(f1_score(positive, classes), frame[["gold", "predicted"]], "fraction", draws=draws),
            "accuracy": resample(proportion, frame[["correct"]], "fraction", draws=draws),
        }
        for test in self.tests:
            for name, (used, statistic, unit) in test.scores(classes, positive).items():
                own = frame[[f"{test.name}.{column}" for column in used]]
                scores[f"{test.name}.{name}"] = resample(statistic, own, unit, draws=draws)
        return CheckpointResult(checkpoint.name, checkpoint.variant, checkpoint.seed, classes, positive, frame, scores)


def examples_of(classified: ClassifiedBatch, values: Mapping[str, Tensor], rows: Sequence[int]) -> list[Example]:
    """Return texts of a batch for the example page, with the decision and the values of their tokens.

    Args:
        classified: The texts, with the decisions of a classifier.
        values: Values of the words by name, `[batch, positions]`.
        rows: Rows of the texts in the batch.
    """
    batch, variant = classified.batch, classified.checkpoint.variant
    tokens = {name: to_tokens(one.detach(), classified.token_to_position) for name, one in values.items()}
    return [
        Example(
            int(batch.index[row]),
            variant,
            int(classified.predicted[row]),
            float(classified.confidence[row]),
            {name: one[row, : int(batch.lengths[row])].tolist() for name, one in tokens.items()},
        )
        for row in rows
    ]


def example_page(found: Sequence[Example], data: ClassificationDataModule, variants: Sequence[str]) -> ColouredTexts:
    """Return the example page, with one entry for each text.

    An entry has the gold label of the text. For each variant it also has the predicted label with its
    probability, and the text coloured by each measure.

    Args:
        found: Example texts with the decisions of all variants, in any order.
        data: Datamodule with the words and labels of the texts.
        variants: Names of all variants.
    """
    split, labels, texts = data.splits["test"], data.labels, []
    in_order = sorted(found, key=lambda one: (one.text, variants.index(one.variant)))
    for text, group in groupby(in_order, key=lambda one: one.text):
        here = list(group)
        decisions = [f", {one.variant} predicts {labels[one.predicted]} (P = {one.confidence:.3f})" for one in here]
        rows = {f"{one.variant}: {name}": row for one in here for name, row in one.rows.items()}
        words = tuple(split.readable(text))
        if data.tokenizer is None:  # words outside the vocabulary are shown as in the text
            words = tuple(form or word for form, word in zip(split.forms(text), words, strict=True))
        name, gold = f"Text {split.ids[text]} of test", labels[split.labels[text]]
        texts.append(ColouredText(name, f"gold {gold}{''.join(decisions)}", words, rows))
    return ColouredTexts("Example texts", tuple(texts))
