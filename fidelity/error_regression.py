"""Sparse logistic regression that tells the errors of a model from features of its inputs, and its AUROC."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.classification import area_under_roc
from attention_probing.results import Estimate, Flags, Floats, Integers

STRENGTHS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Values of C that cross-validation chooses from, the inverse of the penalty. Ostmeier et al.'s (2026) released code
has .1."""
FOLDS = 5
"""Folds of the cross-validation; fewer if there are fewer errors."""
LEAST = 2
"""Least number of errors, and of right decisions, that a regression can be fitted to."""
_DRAWS_OF_HALF = 100  # of the AUROC of a half's fit, of which only the variance is used


def make_regression(strength: float) -> Pipeline:
    """Return a logistic regression with an ℓ1 penalty on standardised features, not yet fitted.

    Errors and right decisions have the same weight in sum. Errors are rare, and liblinear, which the released code of
    Ostmeier et al. (2026) uses too, also penalises the intercept: without these weights the penalty would act on the
    rate of errors before it acts on a feature. Their code has no weights.

    Args:
        strength: C, the inverse of the strength of the penalty.
    """
    regression = LogisticRegression(
        C=strength,
        l1_ratio=1,
        solver="liblinear",
        class_weight="balanced",
        max_iter=10_000,
        random_state=0,
    )
    return make_pipeline(StandardScaler(), regression)


def _folds(wrong: Flags, seed: int) -> StratifiedKFold:
    """Return random folds that all have errors and right decisions."""
    rarer = min(int(wrong.sum()), int((~wrong).sum()))
    return StratifiedKFold(min(FOLDS, rarer), shuffle=True, random_state=seed)


def choose_strength(features: Floats, wrong: Flags, seed: int) -> float:
    """Return the C in `STRENGTHS` with the highest mean AUROC in cross-validation; of equal ones the lowest.

    Args:
        features: Features of the texts, `[texts, features]`.
        wrong: Bool `[texts]`, True for errors of the model; at least `LEAST` are True, and `LEAST` are False.
        seed: Seed of the folds.
    """
    name = f"{LogisticRegression.__name__.lower()}__C"
    search = GridSearchCV(
        make_regression(1.0), {name: STRENGTHS}, scoring="roc_auc", cv=_folds(wrong, seed), refit=False
    )
    search.fit(features, wrong)
    return float(search.best_params_[name])


class Half(NamedTuple):
    """A random half of the texts, and the regression that was fitted to it.

    Attributes:
        texts: Places of its texts, int64 `[texts of the half]`.
        pipeline: The regression; None if the half has too few errors.
    """

    texts: Integers
    pipeline: Pipeline | None


@dataclass(frozen=True, eq=False)
class ErrorRegression:
    """Regression that was fitted to tell the errors of a model.

    Attributes:
        strength: C, chosen by cross-validation.
        pipeline: The fitted regression.
        halves: The same regression fitted to random halves of the texts.
    """

    strength: float
    pipeline: Pipeline
    halves: tuple[Half, ...] = ()

    @property
    def coefficients(self) -> Floats:
        """Coefficients of the standardised features, `[features]`."""
        return coefficients_of(self.pipeline)

    @property
    def chosen(self) -> Floats:
        """Share of the halves in whose fit the coefficient is not 0, `[features]`; nan without halves."""
        flags = [coefficients_of(half.pipeline) != 0 for half in self.halves if half.pipeline is not None]
        if not flags:
            return np.full_like(self.coefficients, np.nan)
        share: Floats = np.mean(flags, axis=0)
        return share


def coefficients_of(pipeline: Pipeline) -> Floats:
    """Return the coefficients of a fitted regression, `[features]`, for standardised features."""
    coefficients: Floats = pipeline[-1].coef_[0]
    return coefficients


def can_be_fitted(wrong: Flags) -> bool:
    """Return True if a regression can be fitted to so many errors and right decisions, bool `[texts]`."""
    return bool(LEAST <= wrong.sum() <= len(wrong) - LEAST)


def fit_regression(features: Floats, wrong: Flags, halves: int, seed: int) -> ErrorRegression:
    """Choose the penalty, and fit the regression to all texts and to random halves of them.

    A half counts each of its texts twice, by twice the C.

    Args:
        features: Features of the texts, `[texts, features]`.
        wrong: Bool `[texts]`, True for errors of the model; see `can_be_fitted`.
        halves: Number of random halves. They depend on the number of texts and the seed alone.
        seed: Seed of the folds and the halves.
    """
    strength = choose_strength(features, wrong, seed)
    pipeline = make_regression(strength).fit(features, wrong)
    fits = []
    for half in _halves(len(wrong), halves, seed):
        fit = None
        if can_be_fitted(wrong[half]):
            fit = make_regression(2 * strength).fit(features[half], wrong[half])
        fits.append(Half(half, fit))
    return ErrorRegression(strength, pipeline, tuple(fits))


def _halves(texts: int, number: int, seed: int) -> list[Integers]:
    """Return the texts of random halves: each text is in a half with probability 1/2."""
    rng = np.random.default_rng(seed)
    halves = []
    for _ in range(number):
        halves.append(np.flatnonzero(rng.integers(2, size=texts)))
    return halves


def fit_shuffled(regression: ErrorRegression, features: Floats, wrong: Flags, number: int, seed: int) -> list[Pipeline]:
    """Fit a regression to the same texts with their labels of error in a random order, with the same C.

    Args:
        regression: The regression whose C is used.
        features: Features of the texts, `[texts, features]`.
        wrong: Bool `[texts]`, True for errors of the model.
        number: Number of random orders, each of which gives one fit.
        seed: Seed of the orders.
    """
    rng = np.random.default_rng(seed)
    fits = []
    for _ in range(number):
        fits.append(make_regression(regression.strength).fit(features, rng.permutation(wrong)))
    return fits


def score_texts(pipeline: Pipeline, features: Floats) -> Floats:
    """Return how likely each text is an error, `[texts]`, on the scale of log-odds.

    Args:
        pipeline: A fitted regression.
        features: Features of the texts, `[texts, features]`.
    """
    scores: Floats = pipeline.decision_function(features)
    return scores


def auroc_of_errors(scores: Floats, wrong: Flags, draws: int) -> Estimate:
    """Return the AUROC of errors: the probability that an error has a higher score than a right decision.

    Its `inputs` are the errors, or the right decisions if they are fewer. It is nan without errors, without right
    decisions, and for scores of nan.

    Args:
        scores: Scores of the texts, `[texts]`.
        wrong: Bool `[texts]`, True for errors of the model.
        draws: Number of draws over the texts.
    """
    area = resample(area_under_roc, np.column_stack([wrong, scores]), "fraction", draws=draws)
    return replace(area, inputs=float(min(wrong.sum(), (~wrong).sum())))


class Design(NamedTuple):
    """Texts with the features of a predictor.

    Attributes:
        features: `[texts, features]`.
        wrong: Bool `[texts]`, True for errors of the model.
    """

    features: Floats
    wrong: Flags


@dataclass(frozen=True, eq=False)
class Predictor:
    """Scores of the texts of a test set, by which errors are told.

    Attributes:
        scores: `[texts]`, higher for errors; nan if nothing could be fitted.
        auroc: AUROC of errors, with its draws over the texts.
        regression: The regression that gives the scores; None if nothing was fitted.
        halves: AUROC of the fit to each half of the texts that were fitted; empty if no fit is needed.
    """

    scores: Floats
    auroc: Estimate
    regression: ErrorRegression | None = None
    halves: tuple[Estimate, ...] = ()


def fit_predictor(dev: Design, test: Design, halves: int, draws: int, seed: int) -> Predictor:
    """Fit a regression to the errors on dev, and score the texts of test.

    Args:
        dev: Texts to fit.
        test: Texts to score.
        halves: Number of random halves of dev that the regression is fitted to again.
        draws: Number of draws over the texts of test.
        seed: Seed of the folds and the halves.
    """
    undefined = np.full(len(test.wrong), np.nan)
    if not can_be_fitted(dev.wrong):
        of_halves = [auroc_of_errors(undefined, test.wrong, _DRAWS_OF_HALF)] * halves
        return Predictor(undefined, auroc_of_errors(undefined, test.wrong, draws), halves=tuple(of_halves))
    regression = fit_regression(dev.features, dev.wrong, halves, seed)
    of_halves = []
    for half in regression.halves:
        scores = undefined if half.pipeline is None else score_texts(half.pipeline, test.features)
        of_halves.append(auroc_of_errors(scores, test.wrong, _DRAWS_OF_HALF))
    scores = score_texts(regression.pipeline, test.features)
    return Predictor(scores, auroc_of_errors(scores, test.wrong, draws), regression, tuple(of_halves))


class Known(NamedTuple):
    """A number of each text that is known without a fit, such as the confidence of the model, on dev and on test.

    Attributes:
        dev: `[texts of dev]`.
        test: `[texts of test]`.
    """

    dev: Floats
    test: Floats


class JoinedPredictor(NamedTuple):
    """A predictor that is joined with others.

    Attributes:
        predictor: Predictor that was fitted to `dev` and scores the texts of `test`.
        dev: Texts to fit, with its features.
        test: Texts to score, with its features.
    """

    predictor: Predictor
    dev: Design
    test: Design


def join_predictors(parts: Sequence[JoinedPredictor], known: Known, draws: int, seed: int) -> Predictor:
    """Return a predictor of errors by the scores of other ones together with a known number.

    They are the inputs of a second logistic regression, with the weak ℓ2 penalty that scikit-learn has by default.
    It is fitted to dev, where the score of a text comes from a fit to the other folds (stacking, Wolpert 1992). If the
    known number were one more feature of the sparse regression, many features that tell nothing would hide what a few
    add to it, or the penalty would remove all of them.

    Args:
        parts: Predictors by features of the same texts, with the same number of halves.
        known: The number that is known.
        draws: Number of draws over the texts of test.
        seed: Seed of the folds.
    """
    first = parts[0]
    wrong = first.test.wrong
    regressions = []
    for part in parts:
        if part.predictor.regression is None:
            return first.predictor
        regressions.append(part.predictor.regression)
    all_texts = np.arange(len(first.dev.wrong))
    pipelines = [regression.pipeline for regression in regressions]
    scores = _join(parts, pipelines, all_texts, known, 1.0, seed)
    aurocs_of_halves = []
    for halves in zip(*[regression.halves for regression in regressions], strict=True):
        texts = halves[0].texts  # the other regressions are fitted to the same ones
        pipelines = [half.pipeline for half in halves if half.pipeline is not None]
        scores_of_half = np.full(len(wrong), np.nan)
        if len(pipelines) == len(parts):
            scores_of_half = _join(parts, pipelines, texts, known, 2.0, seed)
        aurocs_of_halves.append(auroc_of_errors(scores_of_half, wrong, _DRAWS_OF_HALF))
    return Predictor(scores, auroc_of_errors(scores, wrong, draws), halves=tuple(aurocs_of_halves))


def _join(
    parts: Sequence[JoinedPredictor],
    pipelines: Sequence[Pipeline],
    texts: Integers,
    known: Known,
    strength: float,
    seed: int,
) -> Floats:
    """Return the scores `[texts of test]` of the second regression of `join_predictors`.

    Args:
        parts: Predictors that are joined.
        pipelines: Regression of each part, fitted to `texts`.
        texts: Places of the texts of dev that the second regression is fitted to.
        known: The number that is known.
        strength: C of the second regression.
        seed: Seed of the folds.
    """
    wrong = parts[0].dev.wrong[texts]
    folds = _folds(wrong, seed)
    of_dev = []
    of_test = []
    for part, pipeline in zip(parts, pipelines, strict=True):
        features = part.dev.features[texts]
        of_dev.append(cross_val_predict(clone(pipeline), features, wrong, cv=folds, method="decision_function"))
        of_test.append(score_texts(pipeline, part.test.features))
    second = make_pipeline(StandardScaler(), LogisticRegression(C=strength))
    second.fit(np.column_stack([*of_dev, known.dev[texts]]), wrong)
    return score_texts(second, np.column_stack([*of_test, known.test]))
