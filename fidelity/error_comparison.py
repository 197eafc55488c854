"""Predictors of a model's errors beside each other: does attention tell more than the model's own confidence?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from attention_probing.fidelity.error_regression import (
    LEAST,
    Design,
    JoinedPredictor,
    Known,
    Predictor,
    auroc_of_errors,
    can_be_fitted,
    fit_predictor,
    fit_shuffled,
    join_predictors,
    score_texts,
)
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.contrasts import Contrast, correct_for_number
from attention_probing.metrics.differences import against_random_draws
from attention_probing.metrics.p_values import draws_for, least_p
from attention_probing.metrics.refits import FittedNumber
from attention_probing.metrics.seeds import pool_seeds
from attention_probing.metrics.statistics import proportion
from attention_probing.results import FEW, Bars, Estimate, Figure, Finding, Flags, Floats, Integers, Result, Table, Unit
from attention_probing.results.errors import list_first, pluralize
from attention_probing.results.heads import head_map
from attention_probing.results.progress import warn
from attention_probing.results.sentences import LEVEL, fill_sentence, format_difference
from attention_probing.results.tables import NO_INTERVAL

CONFIDENCE = "confidence"
LENGTH = "length"
PARADIGM = "paradigm"
ATTENTION = "attention"
RANDOM = "random_weights"
SHUFFLED = "shuffled"
WITH_CONFIDENCE = "attention_confidence"
PARADIGM_CONFIDENCE = "paradigm_confidence"
WITH_ALL = "attention_paradigm_confidence"
RANDOM_CONFIDENCE = "random_weights_confidence"
RANDOM_ALL = "random_weights_paradigm_confidence"
JOINED = {
    PARADIGM_CONFIDENCE: (PARADIGM,),
    WITH_CONFIDENCE: (ATTENTION,),
    WITH_ALL: (PARADIGM, ATTENTION),
    RANDOM_CONFIDENCE: (RANDOM,),
    RANDOM_ALL: (PARADIGM, RANDOM),
}
"""Predictors that are joined with the confidence, by the name of what they make together."""

DRAWS = 1000
NO_CONTRAST = Contrast(Estimate(np.nan, np.nan, np.nan, unit="fraction", p=np.nan), np.nan, "p")
"""Row of a predictor that is not compared with the confidence."""


@dataclass(frozen=True, eq=False)
class JudgedDecisions:
    """Decisions of a model, and features that may tell which of them are wrong.

    Attributes:
        items: Index of each text or pair in its split, int64 `[items]`.
        wrong: Bool `[items]`, True if the decision is wrong.
        log_odds: Log-odds of the decision by the model, its confidence, `[items]`.
        length: Number of tokens, `[items]`.
        features: Features of each predictor that is fitted, `[items, features]` by its name: `attention`, and those of
            controls. Features that no item has are 0.
    """

    items: Integers
    wrong: Flags
    log_odds: Floats
    length: Floats
    features: Mapping[str, Floats] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.items)

    def select(self, places: Integers) -> "JudgedDecisions":
        """Return some of the decisions, by their places in this order."""
        features = {name: of_items[places] for name, of_items in self.features.items()}
        return JudgedDecisions(
            self.items[places], self.wrong[places], self.log_odds[places], self.length[places], features
        )

    def designs(self) -> dict[str, Design]:
        """Return the features of each predictor that is fitted, `length` first."""
        designs = {LENGTH: Design(self.length[:, None].astype(np.float64), self.wrong)}
        for name, features in self.features.items():
            designs[name] = Design(features, self.wrong)
        return designs


class FittedErrors:
    """Predictors of the errors of one model, fitted to dev and tested on test.

    Args:
        name: Name of the model.
        dev: Decisions to fit.
        test: Decisions to test.
        names: Head and feature of each column of the attention features.

    Attributes:
        fault: Reason why AUROC is undefined, of all or of fitted predictors; empty if it is defined.
        predictors: Predictors by name, of all but `shuffled`.
        shuffled: AUROC of each fit to shuffled labels.
    """

    def __init__(
        self, name: str, dev: JudgedDecisions, test: JudgedDecisions, names: Sequence[tuple[str, str]]
    ) -> None:
        self.name = name
        self.dev = dev
        self.test = test
        self.names = names
        compared = {*test.features, LENGTH}
        joined = [name for name, parts in JOINED.items() if compared.issuperset(parts)]
        self.draws = draws_for(len(compared) + len(joined), len(test), DRAWS)
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
        fitted: dict[str, JoinedPredictor] = {}
        for name in of_dev:
            predictor = fit_predictor(of_dev[name], of_test[name], halves, self.draws, seed)
            self.predictors[name] = predictor
            fitted[name] = JoinedPredictor(predictor, of_dev[name], of_test[name])
            for joined, names in JOINED.items():
                if name == names[-1] and fitted.keys() >= set(names):
                    parts = [fitted[part] for part in names]
                    self.predictors[joined] = join_predictors(parts, known, self.draws, seed)
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

    def audit(self, noun: str) -> dict[str, object]:
        """Return counts, strengths of the penalty and faults of the fits, for the audit of a result.

        Args:
            noun: Name of the decisions in the plural.
        """
        strengths = {}
        for name, predictor in self.predictors.items():
            if predictor.regression is not None:
                strengths[name] = predictor.regression.strength
        audit: dict[str, object] = {f"dev_{noun}": len(self.dev), "dev_errors": int(self.dev.wrong.sum())}
        audit["strength"] = strengths
        if self.fault:
            audit["undefined"] = self.fault
        return audit

    def frame(self, **columns: Sequence[object] | NDArray[Any]) -> pd.DataFrame:
        """Return a row for each decision on test, with the scores of all predictors, higher for errors.

        Args:
            **columns: First columns by name.
        """
        frame = pd.DataFrame(columns)
        frame["wrong"] = self.test.wrong.astype(np.int64)
        frame["probability"] = expit(self.test.log_odds)
        frame["tokens"] = self.test.length
        for name, predictor in self.predictors.items():
            frame[f"{name}.score"] = predictor.scores
        return frame


def _fault(dev: JudgedDecisions, test: JudgedDecisions) -> str:
    """Return the reason why AUROC is undefined; empty if it is defined."""
    if not test.wrong.any():
        return f"none of the {pluralize(len(test), 'decision')} on test is wrong"
    if test.wrong.all():
        return f"all of the {pluralize(len(test), 'decision')} on test are wrong"
    if not can_be_fitted(dev.wrong):
        errors = int(dev.wrong.sum())
        verb = "is" if errors == 1 else "are"
        return (
            f"{errors} of the {pluralize(len(dev), 'decision')} on dev {verb} wrong, but a regression needs {LEAST} "
            f"errors and {LEAST} right decisions"
        )
    return ""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Predictors of the errors of one variant, as means over its seeds.

    Attributes:
        numbers: AUROC by predictor, of all but `shuffled`.
        contrasts: AUROC minus that of `confidence`, by predictor, of all but `confidence` and `shuffled`.
        gain: AUROC that attention adds to the confidence, or to the confidence and the paradigm together.
        over_random: The gain minus what the attention of random weights adds to the same; None without random weights.
        controls: Differences of AUROC by name of the score, with p: `attention` minus controls, and what attention
            adds to other predictors.
        shuffled: Mean AUROC of the fits to shuffled labels.
        error_rate: Share of the decisions on test that are wrong.
        decisions: Number of decisions on test.
        errors: Number of errors on test, mean over the seeds.
        chosen: Number of coefficients that are not 0, by predictor, mean over the seeds.
    """

    numbers: Mapping[str, FittedNumber]
    contrasts: Mapping[str, Contrast]
    gain: Contrast
    over_random: Contrast | None
    controls: Mapping[str, Estimate]
    shuffled: Estimate
    error_rate: Estimate
    decisions: int
    errors: int
    chosen: Mapping[str, float]

    @classmethod
    def of(cls, seeds: Sequence[FittedErrors]) -> Self:
        """Compare the predictors of checkpoints that differ only in the seed."""
        numbers = {}
        chosen = {}
        for name in seeds[0].predictors:
            predictors = [seed.predictors[name] for seed in seeds]
            aurocs = [predictor.auroc for predictor in predictors]
            halves = [predictor.halves for predictor in predictors if predictor.halves]
            numbers[name] = FittedNumber.from_seeds(aurocs, halves)
            fits = [predictor.regression for predictor in predictors if predictor.regression is not None]
            if fits:
                chosen[name] = float(np.mean([np.count_nonzero(fit.coefficients) for fit in fits]))

        base = numbers[CONFIDENCE]
        least = least_p(base.pool.units or 0, seeds[0].draws)
        differences = {name: number.minus(base) for name, number in numbers.items() if name != CONFIDENCE}
        corrected = correct_for_number(list(differences.values()), [least] * len(differences))
        contrasts = dict(zip(differences, corrected, strict=True))
        gain = contrasts[WITH_CONFIDENCE]

        shuffles = []
        for fits_to_one_order in zip(*[seed.shuffled for seed in seeds], strict=True):
            shuffles.append(pool_seeds(fits_to_one_order))
        attention = numbers[ATTENTION]
        shuffled, over_shuffled = against_random_draws(attention.pool, shuffles)
        controls = {f"{ATTENTION}.minus_{SHUFFLED}": over_shuffled}
        over_random = None
        if RANDOM in numbers:
            controls[f"{ATTENTION}.minus_{RANDOM}"] = attention.minus(numbers[RANDOM])
            joined = WITH_ALL if PARADIGM in numbers else WITH_CONFIDENCE
            joined_of_random = RANDOM_ALL if PARADIGM in numbers else RANDOM_CONFIDENCE
            # Both gains are over the same predictor, so it drops out of their difference.
            difference = numbers[joined].minus(numbers[joined_of_random])
            controls[f"{joined}.minus_{joined_of_random}"] = difference
            [over_random] = correct_for_number([difference], [least])
        if PARADIGM in numbers:
            difference = numbers[WITH_ALL].minus(numbers[PARADIGM_CONFIDENCE])
            controls[f"{WITH_ALL}.minus_{PARADIGM_CONFIDENCE}"] = difference
            [gain] = correct_for_number([difference], [least])

        rates = [resample(proportion, seed.test.wrong[:, None], "fraction", draws=seed.draws) for seed in seeds]
        errors = [seed.test.wrong.sum() for seed in seeds]
        return cls(
            numbers,
            contrasts,
            gain,
            over_random,
            controls,
            shuffled,
            error_rate=pool_seeds(rates),
            decisions=len(seeds[0].test),
            errors=round(float(np.mean(errors))),
            chosen=chosen,
        )

    def auroc(self, predictor: str) -> Estimate:
        """Return the AUROC of a predictor, with its interval, which is cut off at 0 and 1.

        The interval is moved out for new fits (`widen_for_refits`), which may lead it beyond what an AUROC can be.
        """
        estimate = self.numbers[predictor].estimate
        low, high = np.clip(estimate.interval, 0.0, 1.0).tolist()
        return replace(estimate, low=low, high=high)

    def scores(self) -> dict[str, Estimate]:
        """Return the scores of a result by name."""
        scores = {f"{predictor}.auroc": self.auroc(predictor) for predictor in self.numbers}
        scores[f"{SHUFFLED}.auroc"] = replace(self.shuffled, sd=None)
        for predictor, contrast in self.contrasts.items():
            scores[f"{predictor}.minus_confidence"] = contrast.difference
        scores |= self.controls
        scores["error_rate"] = self.error_rate
        return scores

    @property
    def finding(self) -> Finding:
        """What attention adds, by which null twins are compared."""
        if PARADIGM in self.numbers:
            score = f"{WITH_ALL}.minus_{PARADIGM_CONFIDENCE}"
            return Finding(score, "AUROC that attention adds to confidence and paradigm", is_difference=True)
        score = f"{WITH_CONFIDENCE}.minus_{CONFIDENCE}"
        return Finding(score, "AUROC that attention adds to the confidence", is_difference=True)

    def answer(self, faults: Sequence[str]) -> str:
        """Return a sentence with the AUROC of attention and the confidence, and a verdict on what attention adds.

        Args:
            faults: Reason why AUROC is undefined, for each checkpoint; empty if it is defined.
        """
        reasons = list(dict.fromkeys(fault for fault in faults if fault))
        scores = self.scores()
        predictors = (
            "attention tells the errors with an AUROC of {attention.auroc}, the model's own confidence with "
            "{confidence.auroc}"
        )
        if PARADIGM in self.numbers:
            predictors += ", the paradigm with {paradigm.auroc}"
        star = "*" if 0 < self.errors < FEW else ""
        verb = "is" if self.errors == 1 else "are"
        parts = [f"of {{n}} decisions {self.errors:,}{star} {verb} wrong", predictors]
        gain = self.gain.difference
        if not np.isnan(gain.value):
            compared = "both together differ from the confidence alone"
            if PARADIGM in self.numbers:
                compared = "all three differ from confidence and paradigm"
            finding = f"{compared} by {_format_contrast(self.gain)}"
            over_random = None
            if self.over_random is not None:
                over_random = self.over_random.difference
                if _is_above_0(gain):
                    finding += (
                        f", and from random weights in place of attention by {_format_contrast(self.over_random)}"
                    )
            parts.append(f"{finding}: {_verdict(gain, over_random)}")
        if RANDOM in self.numbers:
            parts.append("the attention of random weights reaches {random_weights.auroc}")
        answer = fill_sentence("; ".join(parts), scores, n=self.decisions)
        if reasons:
            answer = f"{answer} AUROC is undefined: {'; '.join(reasons)}."
        return answer


def _format_contrast(contrast: Contrast) -> str:
    """Return a difference and its p before correction."""
    p = contrast.difference.p
    return format_difference(contrast.difference, None if p is None else Estimate(p, unit=contrast.p_unit))


def _verdict(gain: Estimate, over_random: Estimate | None) -> str:
    """Return a verdict on the difference between the AUROC with attention and without.

    Args:
        gain: The difference.
        over_random: The difference minus that of random weights; None without random weights.
    """
    if not _is_significant(gain):
        return "no evidence that attention knows more"
    if gain.value <= 0:
        return "attention makes it worse"
    if over_random is None:
        return "attention knows more (not compared with random weights)"
    if _is_above_0(over_random):
        return "attention knows more"
    return "no evidence that it knows more than the attention of random weights"


def _is_significant(difference: Estimate) -> bool:
    return difference.p is not None and difference.p < LEVEL


def _is_above_0(difference: Estimate) -> bool:
    return _is_significant(difference) and difference.value > 0


def errors_table(comparisons: Mapping[str, Comparison], noun: str = "texts") -> Table:
    """Return the table `errors`, with a row for each variant and predictor.

    Columns:

    - `auroc`: AUROC of errors on test, with the interval `low` and `high`; of `shuffled` the mean of the fits;
    - `minus_confidence`: the same minus that of `confidence`, with its interval, `p`, and `p_holm`, corrected for the
      number of predictors of the variant;
    - `chosen`: number of coefficients that are not 0, mean over seeds;
    - `texts`, or what else `noun` is: number of decisions; `n`: number of errors among them, mean over seeds.

    Args:
        comparisons: The predictors of each variant.
        noun: Name of the decisions in the plural.
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
                    noun: comparison.decisions,
                    "n": comparison.errors,
                }
            )
            units.append(contrast.p_unit)
    main = ["predictor", "auroc", "minus_confidence", "p_holm", "n"]
    if any(0 in comparison.chosen.values() for comparison in comparisons.values()):
        main.insert(2, "chosen")
    if len(comparisons) > 1:
        main = ["variant", *main]
    of_columns: dict[str, Unit | Sequence[Unit]] = {"auroc": "fraction", "minus_confidence": "fraction"}
    of_columns |= {"chosen": "count", "p": units, "p_holm": units}
    note = "n counts the errors. AUROC is the probability that an error ranks above a right decision; 50 is chance."
    if any(0 in comparison.chosen.values() for comparison in comparisons.values()):
        note += f" With 0 in `chosen` the regression chose no feature, so its AUROC is 50{NO_INTERVAL}."
    return Table(pd.DataFrame(rows), of_columns, interval="auroc", main=tuple(main), note=note)


def heads_table(tested: Sequence[FittedErrors]) -> Table | None:
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
    note = (
        "coefficient: of the standardised feature, above 0 if it is higher in errors. halves: share of the fits to "
        "random halves of the fitted data that choose the feature."
    )
    return Table(pd.DataFrame(rows), {"coefficient": "ratio", "halves": "fraction"}, main=tuple(main), note=note)


def report_errors(
    experiment: str,
    variants: Mapping[str, Sequence[FittedErrors]],
    items: pd.DataFrame,
    audit: dict[str, object],
    *,
    noun: str,
    sizes: tuple[int, int] | None,
) -> Result:
    """Return the result of a measurement that predicts a model's errors.

    Args:
        experiment: Name of the measurement.
        variants: Models that differ only in the seed, by the name of what they share; the first one has the answer.
        items: A row for each decision on test.
        audit: Audit of the result.
        noun: Name of the decisions in the plural: `texts` or `pairs`.
        sizes: Number of layers and of heads of each layer, for a map of the heads; None for a model without them.
    """
    comparisons = {variant: Comparison.of(seeds) for variant, seeds in variants.items()}
    first = next(iter(variants))
    scores: dict[str, Estimate] = {}
    for variant, comparison in comparisons.items():
        prefix = "" if variant == first else f"{variant}."
        for name, score in comparison.scores().items():
            scores[f"{prefix}{name}"] = score
    fitted = list(chain.from_iterable(variants.values()))
    faults = [f"{seed.name}: {seed.fault}" for seed in fitted if seed.fault]
    if faults:
        warn(f"AUROC is undefined. {list_first(faults)}.")
    tables = {"errors": errors_table(comparisons, noun)}
    heads = heads_table(fitted)
    if heads is not None:
        tables["heads"] = heads
    figures: dict[str, Figure] = {"errors": _bars(comparisons)}
    if sizes is not None:
        weights = np.mean([seed.weights_of_heads() for seed in variants[first]], axis=0)
        figures["heads"] = head_map(
            "Heads that tell errors", weights.reshape(sizes), value_label="sum of |coefficients|", unit="ratio"
        )
    return Result(
        experiment,
        scores,
        tables,
        figures,
        audit,
        items,
        headline=["error_rate", *comparisons[first].controls],
        answer=comparisons[first].answer([seed.fault for seed in variants[first]]),
        finding=comparisons[first].finding,
    )


def _bars(comparisons: Mapping[str, Comparison]) -> Bars:
    """Return bars of the AUROC of all predictors."""
    predictors = tuple(next(iter(comparisons.values())).numbers)
    heights = {}
    intervals = {}
    for variant, comparison in comparisons.items():
        values = []
        lows = []
        highs = []
        for predictor in predictors:
            estimate = comparison.auroc(predictor)
            low, high = estimate.interval
            values.append(estimate.value)
            lows.append(low)
            highs.append(high)
        heights[variant] = values
        intervals[variant] = (lows, highs)
    return Bars(
        "What tells that the model errs",
        predictors,
        heights,
        "AUROC of errors (%)",
        intervals,
        unit="fraction",
        category_label="predictor",
    )
