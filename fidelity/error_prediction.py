"""Whether attention tells that a classifier errs (Ostmeier et al. 2026), beside the classifier's own confidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import expit, logsumexp
from torch import Tensor, nn

from attention_probing.attention.capture import intervening
from attention_probing.datamodules import TextBatch
from attention_probing.fidelity.classifier_measure import ClassifierMeasure
from attention_probing.fidelity.error_regression import (
    LEAST,
    Design,
    Known,
    Predictor,
    auroc_of_errors,
    can_be_fitted,
    fit_predictor,
    fit_shuffled,
    join_predictor,
    score_texts,
)
from attention_probing.metrics.attention_features import FEATURES, Feature, mean_features, row_features
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.contrasts import Contrast, correct_for_number
from attention_probing.metrics.differences import against_random_draws
from attention_probing.metrics.p_values import draws_for, least_p
from attention_probing.metrics.refits import FittedNumber
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.metrics.seeds import pool_seeds
from attention_probing.metrics.statistics import proportion
from attention_probing.models import TextClassifier, TransformerClassifier
from attention_probing.models.text_classifier import Level
from attention_probing.results import Bars, Estimate, Figure, Flags, Floats, Integers, Result, Table, Unit
from attention_probing.results.errors import UserError, list_first, pluralize, setting
from attention_probing.results.heads import head_map, head_name
from attention_probing.results.options import Positive, checked
from attention_probing.results.progress import inform, warn
from attention_probing.results.sentences import LEVEL, fill_sentence, format_difference

CONFIDENCE = "confidence"
LENGTH = "length"
ATTENTION = "attention"
WITH_CONFIDENCE = "attention_confidence"
RANDOM = "random_weights"
RANDOM_WITH_CONFIDENCE = "random_weights_confidence"
SHUFFLED = "shuffled"
JOINED = {ATTENTION: WITH_CONFIDENCE, RANDOM: RANDOM_WITH_CONFIDENCE}
"""Name of the predictor that has the confidence too, by the name of the one that has not."""

DRAWS = 1000
NO_CONTRAST = Contrast(Estimate(np.nan, np.nan, np.nan, unit="fraction", p=np.nan), np.nan, "p")
"""Row of a predictor that is not compared with the confidence."""


class ErrorPrediction(ClassifierMeasure):
    """Prediction of a classifier's errors from the attention of its heads, and from its own confidence.

    The features of each head on a text, see `metrics.attention_features`, are the inputs of a sparse logistic
    regression (`error_regression`) that is fitted to dev: is the decision wrong? The score is the AUROC on test: the
    probability that an error ranks above a right decision. Predictors:

    - `confidence`: the probability of the predicted class, low for errors; nothing is fitted;
    - `length`: the number of tokens;
    - `attention`: the features of all heads;
    - `attention_confidence`: the score of `attention` and the log-odds of the predicted class, in a second regression
      (`error_regression.join_predictor`). Its AUROC minus that of `confidence` tells what attention adds;
    - `random_weights`, `random_weights_confidence`: the same, with features of the attention of a model with random
      weights on the same texts; the decisions and the confidence stay those of the classifier;
    - `shuffled`: the features of `attention`, fitted to labels of error in random order; a mean.

    In a transformer a head is an attention head, and its features are means over rows of the text, that is over the
    tokens that attend. In other classifiers each level of attention counts as one head, with one row (with one for each
    sentence at the level `word` of a hierarchical classifier), and without `distance`.

    Ostmeier et al. take the mean over the tokens of an answer that a language model has generated; a classifier
    generates none. For the same reason the lookback ratio (Chuang et al. 2024), which compares attention to a context
    with attention to generated tokens, is undefined here, and left out.

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
        dev, test = (pluralize(len(self.data.splits[split]), f"{split} text") for split in ("dev", "test"))
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
        tested = [self._test(number) for number in range(len(self.checkpoints))]
        variants: dict[str, list[CheckpointErrors]] = {}
        for checkpoint, of_checkpoint in zip(self.checkpoints, tested, strict=True):
            variants.setdefault(checkpoint.variant, []).append(of_checkpoint)
        comparisons = {variant: Comparison.of(of_variant) for variant, of_variant in variants.items()}
        first = next(iter(variants))
        scores: dict[str, Estimate] = {}
        for variant, comparison in comparisons.items():
            prefix = "" if variant == first else f"{variant}."
            for name, score in comparison.scores().items():
                scores[f"{prefix}{name}"] = score
        self._warn_of_faults(tested)
        tables = {"errors": errors_table(comparisons)}
        heads = heads_table(tested)
        if heads is not None:
            tables["heads"] = heads
        return Result(
            self.experiment,
            scores,
            tables,
            self._figures(comparisons, variants[first]),
            self._audit(tested),
            pd.concat([self._items(number, tested[number]) for number in range(len(tested))], ignore_index=True),
            headline=["error_rate", *comparisons[first].controls],
            answer=comparisons[first].answer([of_checkpoint.fault for of_checkpoint in variants[first]]),
        )

    def _take(self, number: int, split: str) -> "Texts":
        rows = self._rows[f"{number} {split}"]
        assert isinstance(rows, Rows)
        return Texts(rows.take())

    def _test(self, number: int) -> "CheckpointErrors":
        """Fit the regressions of a checkpoint to dev, and score the texts of test."""
        dev, test = self._take(number, "dev"), self._take(number, "test")
        if self._is_one_file:
            order = np.random.default_rng(self.seed).permutation(len(test))
            middle = len(test) // 2
            dev, test = test.select(np.sort(order[:middle])), test.select(np.sort(order[middle:]))
        names = []
        for head in self._heads.get(number, ()):
            names += [(head, feature) for feature in self.features]
        draws = draws_for(5, len(test), DRAWS)
        tested = CheckpointErrors(self.checkpoints[number].name, dev, test, names, draws)
        tested.fit(self.halves, self.shuffles, self.seed)
        return tested

    def _warn_of_faults(self, tested: "Sequence[CheckpointErrors]") -> None:
        faults = [f"{one.name}: {one.fault}" for one in tested if one.fault]
        if faults:
            warn(f"AUROC is undefined. {list_first(faults)}.")

    def _figures(
        self, comparisons: "Mapping[str, Comparison]", of_first: "Sequence[CheckpointErrors]"
    ) -> dict[str, Figure]:
        """Return bars of the AUROC of all predictors, and a map of the weights of heads for a transformer."""
        predictors = tuple(next(iter(comparisons.values())).numbers)
        heights = {}
        intervals = {}
        for variant, comparison in comparisons.items():
            estimates = [comparison.auroc(predictor) for predictor in predictors]
            heights[variant] = [estimate.value for estimate in estimates]
            ends = [estimate.interval for estimate in estimates]
            intervals[variant] = [low for low, _ in ends], [high for _, high in ends]
        bars = Bars(
            "What tells that a classifier errs",
            predictors,
            heights,
            "AUROC of errors (%)",
            intervals,
            unit="fraction",
            category_label="predictor",
        )
        figures: dict[str, Figure] = {"errors": bars}
        model = self.checkpoints[0].model
        if isinstance(model, TransformerClassifier):
            weights = np.mean([of_seed.weights_of_heads() for of_seed in of_first], axis=0)
            figures["heads"] = head_map(
                "Heads that tell errors",
                weights.reshape(model.classifier.layers, model.classifier.heads),
                value_label="sum of |coefficients|",
                unit="ratio",
            )
        return figures

    def _audit(self, tested: "Sequence[CheckpointErrors]") -> dict[str, object]:
        audit: dict[str, object] = {}
        if self._is_one_file:
            audit["dev_and_test"] = "one file, of whose texts a random half was fitted, and the other tested"
        checkpoints = {}
        for checkpoint, one in zip(self.checkpoints, tested, strict=True):
            of_checkpoint: dict[str, object] = {"file": str(checkpoint.path), "sha256": checkpoint.digest}
            of_checkpoint["dev_texts"] = len(one.dev)
            of_checkpoint["dev_errors"] = int(one.dev.wrong.sum())
            strengths = {}
            for name, predictor in one.predictors.items():
                if predictor.regression is not None:
                    strengths[name] = predictor.regression.strength
            of_checkpoint["strength"] = strengths
            if one.fault:
                of_checkpoint["undefined"] = one.fault
            checkpoints[checkpoint.name] = of_checkpoint
        audit["checkpoints"] = checkpoints
        faults = [checkpoint.fault for checkpoint in self.checkpoints if checkpoint.fault]
        if faults:
            audit["warnings"] = faults
        return audit

    def _items(self, number: int, tested: "CheckpointErrors") -> pd.DataFrame:
        """Return a row for each text of test, with the scores of all predictors, higher for errors."""
        test = tested.test
        ids = self.data.splits["test"].ids
        frame = pd.DataFrame(
            {
                "checkpoint": tested.name,
                "id": [ids[text] for text in test.items],
                "gold": test.gold,
                "predicted": test.predicted,
                "wrong": test.wrong.astype(np.int64),
                "probability": expit(test.log_odds),
                "tokens": test.length,
            }
        )
        for name, predictor in tested.predictors.items():
            frame[f"{name}.score"] = predictor.scores
        return frame


@dataclass(frozen=True, eq=False)
class HeadFeatures:
    """Decisions of a classifier on a batch, and the features of its heads.

    Attributes:
        logits: `[batch, classes]`.
        heads: Names of the heads, `[heads]`.
        features: `[batch, heads, features]`, in the order of `FEATURES`; nan for one that the heads do not have.
    """

    logits: Tensor
    heads: tuple[str, ...]
    features: Tensor


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
    of_layers: list[Tensor] = []
    scratch: list[Tensor] = []  # one for all layers

    def reduce(layer: int, weights: Tensor, values: Tensor) -> tuple[Tensor, None]:
        of_rows = weights.float()
        if not scratch:
            scratch.append(torch.empty_like(of_rows))
        of_layers.append(mean_features(row_features(of_rows, scratch=scratch[0]), chosen))
        return weights, None

    with intervening(reduce):
        logits = model.classifier.logits(batch.tokens, batch.mask, batch.segments)
    names = []
    for layer, features in enumerate(of_layers):
        names += [head_name(layer, head) for head in range(features.size(1))]
    return HeadFeatures(logits, tuple(names), torch.cat(of_layers, 1))


def _level_features(level: Level) -> Tensor:
    """Return the features of one level of attention, `[batch, 1, features]`: of its row, or the mean of its groups."""
    allowed = level.mask[:, None]  # [batch, rows, positions]
    if level.groups is not None:
        numbers = torch.arange(int(level.groups.max()) + 1, device=level.mask.device)
        allowed = level.groups[:, None] == numbers[:, None]
    weights = level.weights[:, None] * allowed
    first = allowed.int().argmax(-1)
    return mean_features(row_features(weights.float()[:, None], first), allowed.any(-1))


class Texts:
    """Texts of a split with the decisions of one classifier.

    Args:
        columns: Columns by name, from `Rows.take`.

    Attributes:
        items: Index of each text in its split, int64 `[texts]`.
        gold: Gold class, int64 `[texts]`.
        predicted: Predicted class, int64 `[texts]`.
        wrong: Bool `[texts]`, True if the decision is wrong.
        log_odds: Log-odds of the predicted class, `[texts]`.
        length: Number of tokens, delimiters included, int64 `[texts]`.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._columns = columns
        self.items: Integers = columns[ITEM]
        logits = columns.get("logits", np.empty((0, 2)))
        self.gold: Integers = columns.get("gold", np.empty(0, np.int64))
        self.length: Integers = columns.get("length", np.empty(0, np.int64))
        self.predicted: Integers = logits.argmax(axis=1)
        self.wrong: Flags = self.predicted != self.gold
        places = self.predicted[:, None]
        highest = np.take_along_axis(logits, places, 1)[:, 0]
        others = logits.copy()
        np.put_along_axis(others, places, -np.inf, 1)
        self.log_odds: Floats = highest - logsumexp(others, axis=1)

    def __len__(self) -> int:
        return len(self.items)

    def select(self, places: Integers) -> "Texts":
        """Return some of the texts, by their places in this order."""
        return Texts({name: column[places] for name, column in self._columns.items()})

    def designs(self) -> dict[str, Design]:
        """Return the features of each predictor that is fitted.

        Features that no text has, such as distances in a classifier without a row for each token, are 0.
        """
        designs = {LENGTH: Design(self.length[:, None].astype(np.float64), self.wrong)}
        for name in (ATTENTION, RANDOM):
            if name in self._columns:
                features = np.nan_to_num(self._columns[name].reshape(len(self), -1))
                designs[name] = Design(features, self.wrong)
        return designs


class CheckpointErrors:
    """Predictors of the errors of one checkpoint, fitted to dev and tested on test.

    Args:
        name: Name of the checkpoint.
        dev: Texts to fit.
        test: Texts to test.
        names: Head and feature of each column of the attention features.
        draws: Number of draws over the texts of test.

    Attributes:
        fault: Why AUROC, or the AUROC of what is fitted, is undefined; empty if it is defined.
        predictors: Predictors by name, of all but `shuffled`.
        shuffled: AUROC of each fit to shuffled labels.
    """

    def __init__(self, name: str, dev: Texts, test: Texts, names: Sequence[tuple[str, Feature]], draws: int) -> None:
        self.name = name
        self.dev = dev
        self.test = test
        self.names = names
        self.draws = draws
        self.fault = _fault(dev, test)
        self.predictors: dict[str, Predictor] = {}
        self.shuffled: list[Estimate] = []

    def fit(self, halves: int, shuffles: int, seed: int) -> None:
        """Fit all predictors, and compute their AUROC.

        Args:
            halves: Number of random halves of dev.
            shuffles: Number of random orders of the labels of error.
            seed: Seed of folds, halves and orders.
        """
        wrong = self.test.wrong
        unsure = -self.test.log_odds
        self.predictors[CONFIDENCE] = Predictor(unsure, auroc_of_errors(unsure, wrong, self.draws))
        of_dev = self.dev.designs()
        of_test = self.test.designs()
        known = Known(self.dev.log_odds, self.test.log_odds)
        for name in of_dev:
            data = of_dev[name], of_test[name]
            self.predictors[name] = fit_predictor(*data, halves, self.draws, seed)
            if name in JOINED:
                self.predictors[JOINED[name]] = join_predictor(self.predictors[name], known, *data, self.draws, seed)
        regression = self.predictors[ATTENTION].regression
        if regression is None:
            self.shuffled = [self.predictors[ATTENTION].auroc] * shuffles
            return
        for fit in fit_shuffled(regression, *of_dev[ATTENTION], shuffles, seed):
            scores = score_texts(fit, of_test[ATTENTION].features)
            self.shuffled.append(auroc_of_errors(scores, wrong, self.draws))

    def weights_of_heads(self) -> Floats:
        """Return the sum of the absolute coefficients of the features of each head, `[heads]`; 0 without a fit."""
        heads = len({head for head, _ in self.names})
        regression = self.predictors[ATTENTION].regression
        if regression is None:
            return np.zeros(heads)
        weights: Floats = np.abs(regression.coefficients).reshape(heads, -1).sum(axis=1)
        return weights


def _fault(dev: Texts, test: Texts) -> str:
    """Return why AUROC is undefined; empty if it is not."""
    errors = int(test.wrong.sum())
    if errors in (0, len(test)):
        count = "all" if errors else "none"
        return f"{count} of the {pluralize(len(test), 'decision')} on test {'are' if errors else 'is'} wrong"
    if not can_be_fitted(dev.wrong):
        errors = int(dev.wrong.sum())
        return (
            f"{errors} of the {pluralize(len(dev), 'decision')} on dev {'is' if errors == 1 else 'are'} wrong, but a "
            f"regression needs {LEAST} errors and {LEAST} right decisions"
        )
    return ""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Predictors of the errors of one variant, as means over its seeds.

    Attributes:
        numbers: AUROC by predictor, of all but `shuffled`.
        contrasts: AUROC minus that of `confidence`, by predictor, of all but `confidence` and `shuffled`.
        controls: AUROC of `attention` minus that of controls, by name of the score, with p.
        shuffled: Mean AUROC of the fits to shuffled labels.
        error_rate: Share of the texts of test that are decided wrongly.
        texts: Number of texts of test.
        errors: Number of errors on test, mean over the seeds.
        chosen: Number of coefficients that are not 0, by predictor, mean over the seeds.
    """

    numbers: Mapping[str, FittedNumber]
    contrasts: Mapping[str, Contrast]
    controls: Mapping[str, Estimate]
    shuffled: Estimate
    error_rate: Estimate
    texts: int
    errors: int
    chosen: Mapping[str, float]

    @classmethod
    def of(cls, seeds: Sequence[CheckpointErrors]) -> Self:
        """Compare the predictors of checkpoints that differ only in the seed."""
        numbers = {}
        chosen = {}
        for name in seeds[0].predictors:
            of_seeds = [seed.predictors[name] for seed in seeds]
            halves = [of_seed.halves for of_seed in of_seeds if of_seed.halves]
            numbers[name] = FittedNumber.from_seeds([of_seed.auroc for of_seed in of_seeds], halves)
            fits = [of_seed.regression for of_seed in of_seeds if of_seed.regression is not None]
            if fits:
                chosen[name] = float(np.mean([np.count_nonzero(fit.coefficients) for fit in fits]))
        base = numbers[CONFIDENCE]
        differences = {name: number.minus(base) for name, number in numbers.items() if name != CONFIDENCE}
        units = base.pool.units or 0
        least = least_p(units, seeds[0].draws)
        contrasts = correct_for_number(list(differences.values()), [least] * len(differences))
        shuffles = [pool_seeds(of_order) for of_order in zip(*(seed.shuffled for seed in seeds), strict=True)]
        attention = numbers[ATTENTION].pool
        shuffled, beyond = against_random_draws(attention, shuffles)
        controls = {f"{ATTENTION}.minus_{SHUFFLED}": beyond}
        if RANDOM in numbers:
            controls[f"{ATTENTION}.minus_{RANDOM}"] = numbers[ATTENTION].minus(numbers[RANDOM])
        rates = [resample(proportion, seed.test.wrong[:, None], "fraction", draws=seed.draws) for seed in seeds]
        errors = round(float(np.mean([seed.test.wrong.sum() for seed in seeds])))
        return cls(
            numbers,
            dict(zip(differences, contrasts, strict=True)),
            controls,
            shuffled,
            pool_seeds(rates),
            len(seeds[0].test),
            errors,
            chosen,
        )

    def auroc(self, predictor: str) -> Estimate:
        """Return the AUROC of a predictor, with its interval."""
        return self.numbers[predictor].estimate

    def scores(self) -> dict[str, Estimate]:
        """Return the scores of a result by name."""
        scores = {f"{predictor}.auroc": self.auroc(predictor) for predictor in self.numbers}
        scores[f"{SHUFFLED}.auroc"] = replace(self.shuffled, sd=None)
        for predictor, contrast in self.contrasts.items():
            scores[f"{predictor}.minus_confidence"] = contrast.difference
        scores |= self.controls
        scores["error_rate"] = self.error_rate
        return scores

    def answer(self, faults: Sequence[str]) -> str:
        """Return what tells the errors, and whether attention adds to the confidence.

        Args:
            faults: Why AUROC is undefined, for each checkpoint; empty if it is defined.
        """
        reasons = list(dict.fromkeys(fault for fault in faults if fault))
        scores = self.scores()
        parts = [
            "of {n} decisions {errors} are wrong",
            "attention tells the errors with an AUROC of {attention.auroc}, the model's own confidence with "
            "{confidence.auroc}",
        ]
        contrast = self.contrasts[WITH_CONFIDENCE]
        gain = contrast.difference
        p = None if gain.p is None else Estimate(gain.p, unit=contrast.p_unit)
        if not np.isnan(gain.value):
            change = format_difference(gain, p)
            parts.append(f"both together differ from the confidence alone by {change}: {_verdict(gain)}")
        if RANDOM in self.numbers:
            parts.append("the attention of random weights reaches {random_weights.auroc}")
        answer = fill_sentence("; ".join(parts), scores, n=self.texts, errors=self.errors)
        if reasons:
            answer = f"{answer} AUROC is undefined: {'; '.join(reasons)}."
        return answer


def _verdict(gain: Estimate) -> str:
    """Return what the difference between the AUROC with attention and without says."""
    if gain.p is None or not gain.p < LEVEL:
        return "no evidence that attention knows more"
    if gain.value > 0:
        return "attention knows more"
    return "attention makes it worse"


def errors_table(comparisons: Mapping[str, Comparison]) -> Table:
    """Return the table `errors`, with a row for each variant and predictor.

    Columns:

    - `auroc`: AUROC of errors on test, with the interval `low` and `high`; of `shuffled` the mean of the fits;
    - `minus_confidence`: the same minus that of `confidence`, with its interval, `p`, and `p_holm`, corrected for the
      number of predictors of the variant;
    - `chosen`: number of coefficients that are not 0, mean over seeds;
    - `texts`: number of texts; `n`: number of errors among them, mean over seeds.
    """
    rows = []
    units: list[Unit] = []
    for variant, comparison in comparisons.items():
        for predictor in (*comparison.numbers, SHUFFLED):
            estimate = comparison.shuffled if predictor == SHUFFLED else comparison.auroc(predictor)
            low, high = estimate.interval
            contrast = comparison.contrasts.get(predictor, NO_CONTRAST)
            gain = contrast.difference
            gain_low, gain_high = gain.interval
            rows.append(
                {
                    "variant": variant,
                    "predictor": predictor,
                    "auroc": estimate.value,
                    "low": low,
                    "high": high,
                    "chosen": comparison.chosen.get(predictor, np.nan),
                    "minus_confidence": gain.value,
                    "minus_confidence.low": gain_low,
                    "minus_confidence.high": gain_high,
                    "p": gain.p,
                    "p_holm": contrast.p_holm,
                    "texts": comparison.texts,
                    "n": comparison.errors,
                }
            )
            units.append(contrast.p_unit)
    main = ["predictor", "auroc", "minus_confidence", "p_holm", "n"]
    if len(comparisons) > 1:
        main = ["variant", *main]
    of_columns: dict[str, Unit | Sequence[Unit]] = {"auroc": "fraction", "minus_confidence": "fraction"}
    of_columns |= {"chosen": "count", "p": units, "p_holm": units}
    note = "n counts the errors. AUROC is the probability that an error ranks above a right decision; 50 is chance."
    return Table(pd.DataFrame(rows), of_columns, interval="auroc", main=tuple(main), note=note)


def heads_table(tested: Sequence[CheckpointErrors]) -> Table | None:
    """Return the table `heads`: the coefficients of `attention` that are not 0, the largest of each checkpoint first.

    Columns: `checkpoint`, `head`, `feature`; `coefficient` of the standardised feature, above 0 if it is higher for
    errors; and `halves`, the share of the fits to halves of dev that choose it too. It is None if nothing was fitted,
    or no coefficient is left.
    """
    rows = []
    for checkpoint in tested:
        regression = checkpoint.predictors[ATTENTION].regression
        if regression is None:
            continue
        coefficients = regression.coefficients
        for place in np.argsort(-np.abs(coefficients), kind="stable"):
            if coefficients[place] == 0:
                break
            head, feature = checkpoint.names[place]
            row: dict[str, object] = {"checkpoint": checkpoint.name, "head": head, "feature": feature}
            row |= {"coefficient": coefficients[place], "halves": regression.chosen[place]}
            rows.append(row)
    if not rows:
        return None
    main = ["head", "feature", "coefficient", "halves"]
    if len(tested) > 1:
        main = ["checkpoint", *main]
    return Table(pd.DataFrame(rows), {"coefficient": "ratio", "halves": "fraction"}, main=tuple(main))
