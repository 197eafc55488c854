"""Prediction of a classifier's errors by its attention (Ostmeier et al. 2026), beside its own confidence."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from torch import Tensor, nn

from attention_probing.datamodules import TextBatch
from attention_probing.fidelity.classifier_measure import ClassifierMeasure
from attention_probing.fidelity.error_comparison import (
    ATTENTION,
    RANDOM,
    FittedErrors,
    JudgedDecisions,
    report_errors,
)
from attention_probing.fidelity.head_features import HeadFeatures, head_names, reading_heads
from attention_probing.metrics.attention_features import FEATURES, Feature, mean_features, row_features
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.models import TextClassifier, TransformerClassifier
from attention_probing.models.text_classifier import Level
from attention_probing.results import Floats, Integers, Result
from attention_probing.results.errors import UserError, pluralize, setting
from attention_probing.results.options import Positive, checked
from attention_probing.results.progress import inform


class ErrorPrediction(ClassifierMeasure):
    """Prediction of a classifier's errors from the attention of its heads, and from its own confidence.

    The features of each head on a text, see `metrics.attention_features`, are the inputs of a sparse logistic
    regression (`error_regression`) that is fitted to dev: is the decision wrong? The score is the AUROC on test: the
    probability that an error ranks above a right decision. Predictors:

    - `confidence`: the probability of the predicted class, low for errors; nothing is fitted;
    - `length`: the number of tokens;
    - `attention`: the features of all heads;
    - `attention_confidence`: the score of `attention` and the log-odds of the predicted class, in a second regression
      (`error_regression.join_predictors`). Its AUROC minus that of `confidence` tells what attention adds;
    - `random_weights`, `random_weights_confidence`: the same, with features of the attention of a model with random
      weights on the same texts; the decisions and the confidence stay those of the classifier;
    - `shuffled`: the features of `attention`, fitted to labels of error in random order; a mean.

    In a transformer a head is an attention head, and its features are means over rows of the text, that is over the
    tokens that attend. In other classifiers each level of attention counts as one head, with one row (with one for each
    sentence at the level `word` of a hierarchical classifier), and without `distance`.

    Ostmeier et al. take the mean over the tokens of an answer that a language model has generated; a classifier
    generates none. For the same reason the lookback ratio (Chuang et al. 2024), which compares attention to a context
    with attention to generated tokens, is undefined here, and left out. Their released code has 1 − exp(−H) of a row
    instead of its entropy H, and a score without training, the mean over all heads, which is left out.

    The intervals cover the texts of test, the texts of dev that the coefficients are fitted to, and the seeds of
    several checkpoints. They do not cover the choice of C, nor, for one checkpoint, the random weights.

    Without `--data` it uses the data of the first checkpoint. If dev and test are one file, as in GLUE, a random half
    of its texts is fitted, and the other tested.

    Args:
        checkpoints: One or several trained classifiers, as for `Fidelity`.
        features: Features of each head.
        rows: Rows of a transformer that features are means of: `all` real tokens, or that of the `decision`, the token
            that the classification head reads.
        random_weights: False to leave out the model with random weights, which reads all texts too.
        halves: Number of random halves of dev that each regression is fitted to again, for the intervals.
        shuffles: Number of random orders of the labels of error.
        eval_tokens: Largest size of a batch, in tokens with padding; None for the datamodule's.
    """

    experiment = "errors"
    question = "ErrorPrediction asks which decisions are wrong"

    @checked
    def __init__(
        self,
        checkpoints: list[str] | str,
        features: Sequence[Feature] = FEATURES,
        rows: Literal["all", "decision"] = "all",
        random_weights: bool = True,
        halves: Positive = 50,
        shuffles: Positive = 20,
        eval_tokens: Positive | None = None,
    ) -> None:
        super().__init__(checkpoints, eval_tokens)
        if not features:
            raise UserError(f"{setting('model.features')} is empty. Give one or more of {', '.join(FEATURES)}.")
        self.features = tuple(features)
        self.rows = rows
        self.random_weights = random_weights
        self.halves = halves
        self.shuffles = shuffles

    def begin(self) -> None:
        """Load the classifiers (see `load`), and make those with random weights."""
        self.load()
        files = self.data.files()
        has_column_of_splits = bool(self.data.columns.split)
        self._is_one_file = files["dev"] == files["test"] and not has_column_of_splits
        models = nn.ModuleDict()
        rows = nn.ModuleDict()
        for number, checkpoint in enumerate(self.checkpoints):
            models[f"{number}"] = checkpoint.model
            if self.random_weights:
                models[f"{number} random"] = checkpoint.make_random(self.data, self.seed + number)
            for split in ("dev", "test"):
                rows[f"{number} {split}"] = Rows()
        self.models = models.to(self.device).eval()
        self._rows = rows
        self._heads: dict[int, tuple[str, ...]] = {}
        dev = pluralize(len(self.data.splits["dev"]), "dev text")
        test = pluralize(len(self.data.splits["test"]), "test text")
        inform(f"Error prediction: {dev}, {test}, {pluralize(len(self.checkpoints), 'classifier')}.")

    def update(self, batch: TextBatch) -> None:
        if batch.split == "dev" and self._is_one_file:
            return
        for number in range(len(self.checkpoints)):
            reading = self._read(f"{number}", batch)
            self._heads[number] = reading.heads
            columns = {"logits": reading.logits, "gold": batch.labels, "length": batch.lengths}
            columns[ATTENTION] = reading.features
            if self.random_weights:
                columns[RANDOM] = self._read(f"{number} random", batch).features
            rows = self._rows[f"{number} {batch.split}"]
            assert isinstance(rows, Rows)
            rows.add(batch.index, **columns)

    def _read(self, name: str, batch: TextBatch) -> "HeadFeatures":
        model = self.models[name]
        assert isinstance(model, TextClassifier)
        reading = read_heads(model, batch, self.rows)
        chosen = [FEATURES.index(feature) for feature in self.features]
        return replace(reading, features=reading.features[..., chosen])

    def result(self) -> Result:
        variants: dict[str, list[FittedErrors]] = {}
        frames = []
        checkpoints = {}
        for number, checkpoint in enumerate(self.checkpoints):
            columns = {split: self._take(number, split) for split in ("dev", "test")}
            tested = self._test(number, columns)
            variants.setdefault(checkpoint.variant, []).append(tested)
            frames.append(self._items(tested, columns["test"]))
            of_checkpoint = {"file": str(checkpoint.path), "sha256": checkpoint.digest}
            checkpoints[checkpoint.name] = of_checkpoint | tested.audit("texts")
        audit: dict[str, object] = {}
        if self._is_one_file:
            audit["dev_and_test"] = "one file, of whose texts a random half was fitted, and the other tested"
        audit["checkpoints"] = checkpoints
        faults = [checkpoint.fault for checkpoint in self.checkpoints if checkpoint.fault]
        if faults:
            audit["warnings"] = faults
        model = self.checkpoints[0].model
        sizes = None
        if isinstance(model, TransformerClassifier):
            sizes = model.classifier.layers, model.classifier.heads
        items = pd.concat(frames, ignore_index=True)
        return report_errors(self.experiment, variants, items, audit, noun="texts", sizes=sizes)

    def _take(self, number: int, split: str) -> dict[str, NDArray[Any]]:
        rows = self._rows[f"{number} {split}"]
        assert isinstance(rows, Rows)
        return rows.take()

    def _test(self, number: int, columns: Mapping[str, Mapping[str, NDArray[Any]]]) -> FittedErrors:
        """Fit the regressions of a checkpoint to dev, and score the texts of test."""
        dev = decisions_of(columns["dev"])
        test = decisions_of(columns["test"])
        if self._is_one_file:
            all_texts = test
            order = np.random.default_rng(self.seed).permutation(len(all_texts))
            middle = len(all_texts) // 2
            dev = all_texts.select(np.sort(order[:middle]))
            test = all_texts.select(np.sort(order[middle:]))
        names = list(product(self._heads.get(number, ()), self.features))
        tested = FittedErrors(self.checkpoints[number].name, dev, test, names)
        tested.fit(self.halves, self.shuffles, self.seed)
        return tested

    def _items(self, tested: FittedErrors, columns: Mapping[str, NDArray[Any]]) -> pd.DataFrame:
        """Return a row for each text of test, with the scores of all predictors, higher for errors."""
        ids = self.data.splits["test"].ids
        test = tested.test
        places = np.searchsorted(columns[ITEM], test.items)
        return tested.frame(
            checkpoint=[tested.name] * len(test),
            id=[ids[text] for text in test.items],
            gold=columns["gold"][places],
            predicted=columns["logits"][places].argmax(axis=1),
        )


def read_heads(model: TextClassifier, batch: TextBatch, rows: Literal["all", "decision"]) -> HeadFeatures:
    """Classify a batch in one forward pass, and compute the features of every head while the model runs.

    No map of attention is kept beyond its layer.

    Args:
        model: The classifier.
        batch: The texts.
        rows: Rows of a transformer that features are means of, see `ErrorPrediction`.
    """
    if not isinstance(model, TransformerClassifier):
        output = model(batch)
        of_levels = [_level_features(level) for level in output.levels.values()]
        return HeadFeatures(output.logits, tuple(output.levels), torch.cat(of_levels, 1))
    chosen = batch.mask
    if rows == "decision":
        position = torch.arange(batch.mask.size(1), device=batch.mask.device)
        chosen = position == model.classifier.decision_positions(batch.mask)[:, None]

    def reduce(weights: Tensor, scratch: Tensor) -> Tensor:
        return mean_features(row_features(weights, scratch=scratch), chosen)

    with reading_heads(reduce) as of_layers:
        logits = model.classifier.logits(batch.tokens, batch.mask, batch.segments)
    return HeadFeatures(logits, head_names(of_layers), torch.cat(of_layers, 1))


def _level_features(level: Level) -> Tensor:
    """Return the features of one level of attention, `[batch, 1, features]`: of its row, or the mean of its groups."""
    allowed = level.mask[:, None]  # [batch, rows, positions]
    if level.groups is not None:
        numbers = torch.arange(int(level.groups.max()) + 1, device=level.mask.device)
        allowed = level.groups[:, None] == numbers[:, None]
    weights = level.weights[:, None] * allowed
    first = allowed.int().argmax(-1)
    return mean_features(row_features(weights.float()[:, None], first), allowed.any(-1))


def decisions_of(columns: Mapping[str, NDArray[Any]]) -> JudgedDecisions:
    """Return the decisions of a classifier.

    The confidence is the log-odds of the predicted class. Features that no text has, such as distances in a classifier
    without a row for each token, are 0.

    Args:
        columns: Columns by name, from `Rows.take`: `logits` `[texts, classes]`, `gold`, `length`, and features.
    """
    items: Integers = columns[ITEM]
    logits = columns.get("logits", np.empty((0, 2)))
    gold = columns.get("gold", np.empty(0, np.int64))
    predicted = logits.argmax(axis=1)
    places = predicted[:, None]
    highest = np.take_along_axis(logits, places, 1)[:, 0]
    others = logits.copy()
    np.put_along_axis(others, places, -np.inf, 1)
    log_odds: Floats = highest - logsumexp(others, axis=1)
    features = {}
    for name in (ATTENTION, RANDOM):
        if name in columns:
            features[name] = np.nan_to_num(columns[name].reshape(len(items), -1))
    length = columns.get("length", np.empty(0, np.int64))
    return JudgedDecisions(items, predicted != gold, log_odds, length, features)
