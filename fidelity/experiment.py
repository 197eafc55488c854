"""The measurement that runs fidelity tests over checkpoints."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from numpy.typing import NDArray
from torch import nn

from attention_probing.datamodules import TextBatch
from attention_probing.datamodules.text_split import TextSplit
from attention_probing.fidelity.answer import answer
from attention_probing.fidelity.checkpoints import Checkpoint
from attention_probing.fidelity.classified import UNCOUNTED, ClassifiedBatch, classify
from attention_probing.fidelity.classifier_measure import ClassifierMeasure
from attention_probing.fidelity.comparison import comparison_table, fidelity_table, judge_tables, result_scores
from attention_probing.fidelity.contract import CheckpointResult, FidelityTest, by_variant, check_columns
from attention_probing.fidelity.examples import Example, example_page, examples_of
from attention_probing.fidelity.explanations import FileExplainer, read_explanations
from attention_probing.fidelity.saliency import FILE, Explainer, Saliency, is_ranking, name_of
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.classification import f1_score, mostly_one_label
from attention_probing.metrics.gathered import gather_items
from attention_probing.metrics.p_values import draws_for
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.metrics.statistics import proportion
from attention_probing.models import recorded_gradients
from attention_probing.results import Estimate, Figure, Result
from attention_probing.results.errors import check_names, pluralize, setting
from attention_probing.results.options import NonNegative, Positive, checked
from attention_probing.results.progress import inform

EXAMPLE_TEXTS = 10  # texts on the example page, evenly spread over those that are read
CLASSIFIED_TEXTS = 1000
"""Texts of the test split that are classified, however few are tested: 40 do not tell a good classifier from chance."""
EVERY_TEXT = ""
"""Name of the rows of every text, also of texts that no test measures."""


class Fidelity(ClassifierMeasure):
    """Tests of attention as an explanation of the decisions of trained classifiers.

    Without `--data` it uses the data of the first checkpoint. The tests read the test split. Texts of fewer than two
    words are classified, but not tested.

    Args:
        checkpoints: One or several files of trained classifiers; a folder stands for all checkpoints below
            it. A folder with config.json is a Hugging Face classifier; if there is no such local path, so is the name
            of a folder in `$PROBING_MODELS`, and `owner/name` on the hub. Checkpoints that differ only in the seed are
            one variant. The variant of the first checkpoint is the reference with which all others are compared.
        tests: The tests to run.
        level: Level of attention to test: `word` or `sentence`, or heads of a transformer: `6-1`, `6` for
            all heads of a layer, `all` for those of all layers. None tests the sentences of a hierarchical
            classifier, and all levels of other classifiers: those of a transformer's option `heads`, else
            the heads of its last layer.
        texts: Number of texts to test, drawn at random from the test split; None for all.
            `--trainer.limit_test_batches` would read the shortest. Whether a classifier is at chance is told by at
            least `CLASSIFIED_TEXTS` texts.
        eval_tokens: Largest size of a batch, in tokens with padding; None for the datamodule's.
        seed: Seed of all random numbers; None for the seed of the run.
    """

    experiment = "fidelity"
    question = "Fidelity tests ask whether the predicted class changes"

    @checked
    def __init__(
        self,
        checkpoints: list[str] | str,
        tests: list[FidelityTest],
        level: str | None = None,
        texts: Positive | None = None,
        eval_tokens: Positive | None = None,
        seed: NonNegative | None = None,
    ) -> None:
        check_names(setting("model.tests"), [test.name for test in tests])
        super().__init__(checkpoints, eval_tokens)
        if seed is not None:
            self.seed = seed
        self.tests = tests
        self.level = level
        self.texts = texts

    def begin(self) -> None:
        """Load the classifiers (see `load`), and prepare all tests; some of them train models."""
        self.load(self.level)
        total = len(self.data.splits["test"])
        order = np.random.default_rng(self.seed).permutation(total)
        self._texts = np.sort(order[: self.texts])
        self._others = np.sort(order[len(self._texts) : CLASSIFIED_TEXTS])
        self._files = self._read_files()
        self.models = nn.ModuleList(checkpoint.model for checkpoint in self.checkpoints)
        self.models.to(self.device).eval()
        for test in self.tests:
            test.begin(self.checkpoints, self.data, self.device, self.seed)
        self._rows: dict[str, dict[str, Rows]] = {}  # by checkpoint, and by test; EVERY_TEXT for those of no test
        names_of_rows = [EVERY_TEXT, *(test.name for test in self.tests)]
        for checkpoint in self.checkpoints:
            self._rows[checkpoint.name] = {name: Rows() for name in names_of_rows}
        self._decisions = {checkpoint.name: Rows() for checkpoint in self.checkpoints}  # of texts that are not tested
        self._seconds: list[tuple[str, str, float, int]] = []  # variant, ranking, seconds of a batch, its texts
        self._examples: list[Example] = []
        self._choose_examples()
        texts = pluralize(total, "text")
        if len(self._texts) < total:
            texts = f"{len(self._texts):,} of {texts}"
        classifiers = pluralize(len(self.checkpoints), "classifier")
        inform(f"{texts} in the test split, {classifiers}, {pluralize(len(self.tests), 'test')}.")

    def _read_files(self) -> dict[str, FileExplainer]:
        """Read the files of rankings, and return them by ranking, `file:PATH`."""
        names: set[str] = set()
        for test in self.tests:
            for ranking in test.rankings.values():
                if isinstance(ranking, str) and ranking.startswith(FILE):
                    names.add(ranking)
        checkpoints = [checkpoint.name for checkpoint in self.checkpoints]
        files = {}
        for name in sorted(names):
            path = Path(name.removeprefix(FILE))
            files[name] = read_explanations(path, self.data, checkpoints, self._texts.tolist())
        return files

    def _choose_examples(self) -> None:
        """Choose the texts and the checkpoints of the example page: the first checkpoint of each variant."""
        places = np.linspace(0, len(self._texts) - 1, min(EXAMPLE_TEXTS, len(self._texts)), dtype=int)
        self._example_texts = frozenset(self._texts[places].tolist())
        first: dict[str, str] = {}
        for checkpoint in self.checkpoints:
            first.setdefault(checkpoint.variant, checkpoint.name)
        self._example_checkpoints = frozenset(first.values())

    def update(self, batch: TextBatch) -> None:
        if batch.split != "test":
            return
        split = self.data.splits["test"]
        index = batch.index.cpu().numpy()
        tested = _select(batch, np.isin(index, self._texts), split)
        if tested is not None:
            with recorded_gradients():
                for checkpoint in self.checkpoints:
                    self._measure(checkpoint, tested)
        others = _select(batch, np.isin(index, self._others), split)
        if others is None:
            return
        for checkpoint in self.checkpoints:
            with torch.no_grad():
                predicted = checkpoint.model(others).logits.argmax(-1)
            self._decisions[checkpoint.name].add(others.index, gold=others.labels, predicted=predicted)

    def _measure(self, checkpoint: Checkpoint, batch: TextBatch) -> None:
        """Classify a batch with a checkpoint, and add rows with the numbers of all tests."""
        rows = self._rows[checkpoint.name]
        output, classified = classify(checkpoint, batch, seed=self.seed, vocabulary=self.data.vocabulary)
        predicted = output.logits.argmax(-1)
        rows[EVERY_TEXT].add(
            batch.index,
            gold=batch.labels,
            predicted=predicted,
            words=batch.words.sum(1),
            correct=predicted == batch.labels,
        )
        if classified is None:
            return
        saliency = Saliency(classified, self._files)
        texts = len(classified.batch.index)
        for test in self.tests:
            copies = test.changed_copies(classified)
            reason = UNCOUNTED if math.isinf(copies) else test.why_at_most
            classified.progress.begin(f"{test.name}, changed copies of {pluralize(texts, 'text')}", copies, reason)
            columns = test.measure(classified, saliency)
            check_columns(test, columns)
            rows[test.name].add(classified.batch.index, **columns)
        for ranking, seconds in saliency.seconds.items():
            self._seconds.append((checkpoint.variant, name_of(ranking), seconds, texts))
        if checkpoint.name in self._example_checkpoints:
            self._add_examples(classified, saliency)

    def _add_examples(self, classified: ClassifiedBatch, saliency: Saliency) -> None:
        """Keep the texts of a batch that are shown on the example page, with the values of their words."""
        texts = classified.batch.index.tolist()
        rows = [row for row, text in enumerate(texts) if text in self._example_texts]
        if not rows:
            return
        rankings: dict[str, str | Explainer] = {"attention": "attention", "input_x_gradient": "input_x_gradient"}
        for test in self.tests:
            for name, ranking in test.rankings.items():
                if is_ranking(ranking):
                    rankings[name] = ranking
        values = {name: saliency.rankings(ranking, 1)[0] for name, ranking in rankings.items()}
        self._examples += examples_of(classified, values | classified.highlights, rows)

    def result(self) -> Result:
        results = [self._result_of(checkpoint) for checkpoint in self.checkpoints]
        main_scores = ["f1"]
        for test in self.tests:
            main_scores += [f"{test.name}.{name}" for name in test.main_scores()]
        of_scores = fidelity_table(results, self.tests, main_scores)
        tables = {"fidelity": replace(of_scores, note=self._describe_texts(results[0]))}
        tables |= judge_tables(results, self.tests, self._seconds_per_text())
        if len(results) > 1:
            tables["comparison"] = comparison_table(results)
        figures: dict[str, Figure] = {}
        audit = self._audit(results)
        for test in self.tests:
            tables |= test.tables(results)
            figures |= test.figures(results)
            audit |= {f"{test.name}.{name}": value for name, value in test.audit().items()}
        examples = gather_items(self._examples)
        if examples:
            figures["examples"] = example_page(examples, self.data, list(by_variant(results)))
        scores = result_scores(results)
        headline = [name for name in tables["fidelity"].frame["score"] if name in scores]  # of the first variant
        return Result(
            self.experiment,
            scores,
            tables,
            figures,
            audit,
            self._items(results),
            headline=headline,
            answer=answer(results, self.tests, main_scores),
        )

    def _describe_texts(self, result: CheckpointResult) -> str:
        """Return a sentence on how many texts of test are read, and how many of them no test measures."""
        read = len(result.values)
        total = len(self.data.splits["test"])
        of_all = "" if read == total else f" of the {total:,}"
        text = f"n = {read:,}{of_all} texts of test."
        skipped = int((~result.tested).sum())
        if skipped:
            text += f" Tests leave out {pluralize(skipped, 'text')} with fewer than two words or sentences."
        return text

    def _items(self, results: Sequence[CheckpointResult]) -> pd.DataFrame:
        """Return the rows of all checkpoints in one frame, with the names of the checkpoints and the ids of the texts.

        Args:
            results: Results of all checkpoints.
        """
        ids = self.data.splits["test"].ids
        frames = []
        for result in results:
            ids_of_rows = [ids[text] for text in result.values.index]
            frames.append(result.values.assign(checkpoint=result.name, id=ids_of_rows))
        return pd.concat(frames, ignore_index=True)

    def _seconds_per_text(self) -> dict[tuple[str, str], float]:
        """Return the seconds that a ranking takes for a text, by variant and ranking."""
        columns = ["variant", "ranking", "seconds", "texts"]
        frame = pd.DataFrame(gather_items(self._seconds), columns=columns)
        sums = frame.groupby(["variant", "ranking"]).sum()
        means: dict[tuple[str, str], float] = (sums["seconds"] / sums["texts"]).to_dict()  # type: ignore[assignment]
        return means

    def _audit(self, results: Sequence[CheckpointResult]) -> dict[str, object]:
        audit: dict[str, object] = {}
        total = len(self.data.splits["test"])
        texts = len(results[0].values)
        if texts != total:
            audit["texts"] = f"{texts} of {total}"
        if self._files:
            files = {}
            for file in self._files.values():
                files[file.name] = {"file": str(file.path), "sha256": file.sha256}
            audit["explanations"] = files
        checkpoints = {}
        for checkpoint, result in zip(self.checkpoints, results, strict=True):
            checkpoints[checkpoint.name] = self._audit_of(checkpoint, result)
        audit["checkpoints"] = checkpoints
        faults = [checkpoint.fault for checkpoint in self.checkpoints if checkpoint.fault]
        if faults:
            audit["warnings"] = faults
        sets = len({tuple(result.tested) for result in results})
        if sets > 1:
            audit["compared_over_different_texts"] = f"{sets} sets, for their levels of attention differ"
        return audit

    def _audit_of(self, checkpoint: Checkpoint, result: CheckpointResult) -> dict[str, object]:
        """Return the audit of one checkpoint; warn if it predicts mostly one label."""
        audit: dict[str, object] = {
            "file": str(checkpoint.path),
            "sha256": checkpoint.digest,
            "skipped_texts": int((~result.tested).sum()),
        }
        if not checkpoint.has_recipe:
            audit |= checkpoint.model.audit
        gold = result.values["gold"].to_numpy(np.int64)
        predicted = result.values["predicted"].to_numpy(np.int64)
        one_label = mostly_one_label(gold, predicted, self.data.labels)
        if one_label:
            rank_zero_warn(f"{checkpoint.name} {one_label}, so there is hardly a decision to explain. Train it again.")
            audit["one_label"] = one_label
        return audit

    def _result_of(self, checkpoint: Checkpoint) -> CheckpointResult:
        """Return the rows of a checkpoint from all devices, and its scores."""
        rows = self._take_rows(checkpoint)
        # Variants are compared with the first one, and rankings with random ones; Holm's method corrects for both.
        variants = {one.variant for one in self.checkpoints}
        rankings = set[str]().union(*[test.rankings for test in self.tests])
        comparisons = max(len(variants), len(rankings)) - 1
        draws = draws_for(comparisons, len(rows), 1000)
        f1 = f1_score(self.data.positive, len(self.data.labels))
        scores: dict[str, Estimate] = {
            "f1": resample(f1, rows[["gold", "predicted"]], "fraction", draws=draws),
            "accuracy": resample(proportion, rows[["correct"]], "fraction", draws=draws),
        }
        for test in self.tests:
            for name, score in test.scores().items():
                values = rows[[f"{test.name}.{column}" for column in score.columns]]
                scores[f"{test.name}.{name}"] = resample(score.statistic, values, score.unit, draws=draws)
        others = None
        if len(self._others):
            others = _decision_frame(self._decisions[checkpoint.name])
        return CheckpointResult(checkpoint.name, checkpoint.variant, checkpoint.seed, rows, scores, others)

    def _take_rows(self, checkpoint: Checkpoint) -> pd.DataFrame:
        """Return the rows of a checkpoint from all devices, by index of the text; nan for texts that are not tested.

        Columns of a test have its name as prefix. Those that its scores read come first.
        """
        rows = self._rows[checkpoint.name]
        of_texts = rows[EVERY_TEXT].take()
        texts = of_texts.pop(ITEM)
        frames = [pd.DataFrame(of_texts, index=texts)]
        for test in self.tests:
            columns = rows[test.name].take()
            tested = columns.pop(ITEM)
            frame = pd.DataFrame(columns, index=tested)
            names: dict[str, None] = {}
            for score in test.scores().values():
                names |= dict.fromkeys(score.columns)
            names |= dict.fromkeys(map(str, frame))
            frames.append(frame.reindex(index=texts, columns=list(names)).add_prefix(f"{test.name}."))
        return pd.concat(frames, axis=1).astype(np.float64)


def _select(batch: TextBatch, wanted: NDArray[np.bool_], split: TextSplit) -> TextBatch | None:
    """Return a batch of the wanted texts of a batch of the split, a bool for each; None if no text is wanted."""
    if not wanted.any():
        return None
    if wanted.all():
        return batch
    index = batch.index.cpu().numpy()
    return split[index[wanted].tolist()].to(batch.index.device)


def _decision_frame(rows: Rows) -> pd.DataFrame:
    """Return the decisions on texts that are not tested, from all devices, by index of the text."""
    columns = rows.take()
    texts = columns.pop(ITEM)
    return pd.DataFrame(columns, index=texts).astype(np.float64)
