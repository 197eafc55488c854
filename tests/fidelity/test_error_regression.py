"""The sparse regression of errors, beside scikit-learn called in the plainest way on the same features."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from attention_probing.fidelity.error_regression import (
    STRENGTHS,
    Design,
    JoinedPredictor,
    Known,
    auroc_of_errors,
    can_be_fitted,
    choose_strength,
    coefficients_of,
    fit_predictor,
    fit_regression,
    fit_shuffled,
    join_predictors,
    score_texts,
)
from attention_probing.results import Flags, Floats

TEXTS = 160


def texts(seed: int = 0, tells: float = 1.5) -> Design:
    """Texts with six features of other means and sizes, the second of which tells errors; a fifth is wrong."""
    rng = np.random.default_rng(seed)
    features = rng.normal(0, 1, (TEXTS, 6))
    wrong = rng.random(TEXTS) < 1 / (1 + np.exp(1.5 - tells * features[:, 1]))
    return Design(features * [1, 0.01, 30, 1, 5, 2] + [0, 3, -50, 0, 1, 8], wrong)


def plainly(fitted: Design, strength: float) -> tuple[LogisticRegression, Floats, Floats]:
    """A regression on features that are standardised by hand, with the means and standard deviations."""
    mean, sd = fitted.features.mean(0), fitted.features.std(0)
    weights = np.where(fitted.wrong, 0.5 / fitted.wrong.sum(), 0.5 / (~fitted.wrong).sum()) * len(fitted.wrong)
    plain = LogisticRegression(C=strength, l1_ratio=1, solver="liblinear", max_iter=10_000, random_state=0)
    return plain.fit((fitted.features - mean) / sd, fitted.wrong, sample_weight=weights), mean, sd


def test_coefficients_and_scores_are_those_of_scikit_learn() -> None:
    dev, test = texts(0), texts(1)
    regression = fit_regression(dev.features, dev.wrong, 3, 0)
    plain, mean, sd = plainly(dev, regression.strength)
    np.testing.assert_allclose(regression.coefficients, plain.coef_[0], atol=1e-8)
    scores = score_texts(regression.pipeline, test.features)
    np.testing.assert_allclose(scores, plain.decision_function((test.features - mean) / sd), atol=1e-8)
    predictor = fit_predictor(dev, test, 3, 200, 0)
    assert predictor.auroc.value == pytest.approx(roc_auc_score(test.wrong, scores))
    assert predictor.auroc.inputs == test.wrong.sum()
    assert int(np.abs(regression.coefficients).argmax()) == 1


def test_the_penalty_has_the_highest_mean_auroc_over_folds_of_dev() -> None:
    dev = texts(2, tells=0.7)
    folds = StratifiedKFold(5, shuffle=True, random_state=7)
    means = []
    for strength in STRENGTHS:
        areas = []
        for fitted, left_out in folds.split(dev.features, dev.wrong):
            plain, mean, sd = plainly(Design(dev.features[fitted], dev.wrong[fitted]), strength)
            scores = plain.decision_function((dev.features[left_out] - mean) / sd)
            areas.append(roc_auc_score(dev.wrong[left_out], scores))
        means.append(np.mean(areas))
    assert choose_strength(dev.features, dev.wrong, 7) == STRENGTHS[int(np.argmax(means))]


def test_of_equal_penalties_the_strongest_is_chosen() -> None:
    """Nothing is told by features without variation: every C has an AUROC of one half."""
    wrong = np.arange(40) < 10
    assert choose_strength(np.ones((40, 3)), wrong, 0) == min(STRENGTHS)


def test_a_half_is_fitted_with_twice_the_weight() -> None:
    dev = texts(3)
    regression = fit_regression(dev.features, dev.wrong, 6, 11)
    rng = np.random.default_rng(11)
    for half in regression.halves:
        assert half.pipeline is not None
        chosen = rng.integers(2, size=TEXTS) == 1
        some = Design(dev.features[chosen], dev.wrong[chosen])
        twice = Design(np.repeat(some.features, 2, axis=0), np.repeat(some.wrong, 2))
        plain, _, _ = plainly(twice, regression.strength)
        np.testing.assert_allclose(coefficients_of(half.pipeline), plain.coef_[0], atol=1e-3)
    flags = [coefficients_of(half.pipeline) != 0 for half in regression.halves if half.pipeline is not None]
    np.testing.assert_allclose(regression.chosen, np.mean(flags, axis=0))
    assert regression.chosen[1] == 1


def test_a_known_number_is_joined_to_scores_of_texts_that_were_not_fitted() -> None:
    dev, test = texts(6), texts(7)
    rng = np.random.default_rng(0)
    known = Known(rng.normal(0, 1, TEXTS) - 2 * dev.wrong, rng.normal(0, 1, TEXTS) - 2 * test.wrong)
    predictor = fit_predictor(dev, test, 4, 200, 3)
    assert predictor.regression is not None
    joined = join_predictors([JoinedPredictor(predictor, dev, test)], known, 200, 3)
    left_out = np.empty(TEXTS)
    for fitted, others in StratifiedKFold(5, shuffle=True, random_state=3).split(dev.features, dev.wrong):
        part = Design(dev.features[fitted], dev.wrong[fitted])
        plain, mean, sd = plainly(part, predictor.regression.strength)
        left_out[others] = plain.decision_function((dev.features[others] - mean) / sd)
    both = np.column_stack([left_out, known.dev])
    second = LogisticRegression().fit((both - both.mean(0)) / both.std(0), dev.wrong)
    of_test = (np.column_stack([predictor.scores, known.test]) - both.mean(0)) / both.std(0)
    np.testing.assert_allclose(joined.scores, second.decision_function(of_test), atol=1e-4)
    alone = roc_auc_score(test.wrong, -known.test)
    assert joined.auroc.value > max(alone, predictor.auroc.value)
    assert len(joined.halves) == 4
    assert all(half.value > 0.8 for half in joined.halves)


def test_shuffled_labels_are_the_same_labels_in_another_order() -> None:
    dev, test = texts(4), texts(5)
    regression = fit_regression(dev.features, dev.wrong, 1, 0)
    fits = fit_shuffled(regression, *dev, 8, 0)
    areas = [roc_auc_score(test.wrong, score_texts(fit, test.features)) for fit in fits]
    assert len({round(area, 6) for area in areas}) > 4
    assert abs(np.mean(areas) - 0.5) < 0.15
    assert roc_auc_score(test.wrong, score_texts(regression.pipeline, test.features)) > 0.75


@pytest.mark.parametrize("errors", [0, 1, 39, 40])
def test_too_few_errors_or_right_decisions_fit_nothing(errors: int) -> None:
    wrong: Flags = np.arange(40) < errors
    assert not can_be_fitted(wrong)
    predictor = fit_predictor(Design(np.zeros((40, 2)), wrong), texts(), 3, 100, 0)
    assert predictor.regression is None
    assert np.isnan(predictor.auroc.value)
    assert len(predictor.halves) == 3
    assert np.isnan(predictor.scores).all()


def test_auroc_needs_errors_and_right_decisions_and_counts_the_fewer() -> None:
    scores = np.arange(30.0)
    assert np.isnan(auroc_of_errors(scores, np.zeros(30, bool), 100).value)
    assert np.isnan(auroc_of_errors(scores, np.ones(30, bool), 100).value)
    most_wrong = auroc_of_errors(scores, scores > 7, 100)
    assert most_wrong.value == 1
    assert most_wrong.inputs == 8
