"""Prediction of a decoder's errors on minimal pairs by its attention (Ostmeier et al. 2026), beside its confidence."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention_probing.attention import Encoder, resolve
from attention_probing.datamodules import PairBatch, PairDataModule
from attention_probing.fidelity.error_comparison import (
    ATTENTION,
    PARADIGM,
    RANDOM,
    FittedErrors,
    JudgedDecisions,
    report_errors,
)
from attention_probing.fidelity.head_features import reading_heads
from attention_probing.measures.contract import Measure
from attention_probing.measures.pair_tasks import MinimalPairs, require_numbers
from attention_probing.metrics.attention_features import (
    ANSWER_FEATURES,
    AnswerFeature,
    lookback_ratios,
    mean_features,
    row_features,
)
from attention_probing.metrics.pairs import are_right, choosing_half, log_ratios
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.results import Floats, Integers, Result
from attention_probing.results.errors import UserError, pluralize, setting
from attention_probing.results.heads import head_name
from attention_probing.results.options import Positive, checked
from attention_probing.results.progress import inform

PairRows = Literal["all", "answer", "context"]
"""Rows that features are means of; see `PairErrorPrediction`."""


class PairErrorPrediction(Measure[PairDataModule]):
    """Prediction of a decoder's errors on minimal pairs from the attention of its heads, and from its own confidence.

    The decision is the sentence with the higher probability (`MinimalPairs`), and an error is a pair whose unacceptable
    sentence has it. All else is as in `ErrorPrediction`, with these differences:

    - `confidence` is the difference of the two log-probabilities, without its sign;
    - half of the pairs of each paradigm, drawn at random, are fitted, the other half is tested;
    - `paradigm` predicts errors by the paradigm of the pair alone. Paradigms differ in difficulty, and a head shows
      which construction it reads, so attention can tell errors by telling paradigms apart. What it adds is the AUROC of
      `attention_paradigm_confidence`, which joins the three, minus that of `paradigm_confidence`. Pairs of one paradigm
      have neither.
    - `length` is the mean number of tokens of both sentences.

    Features are the means of both sentences. They do not show which of the two is acceptable, nor which the model
    prefers: exchanging the sentences changes nothing. Features of the preferred sentence alone would give the label
    away, although no label is needed to compute them. In a paradigm the acceptable sentences have one form and the
    others another (*this actress* and *these actress*), attention shows the form, and an error is a preferred sentence
    of the wrong form. Then the attention of random weights tells almost all errors.

    The features of a sentence are means over rows. In Ostmeier et al. (2026, abstract and released code) these are of
    the tokens of an answer to a question, or of the question before an answer is there. Here the *context* are the
    tokens before the first one that differs between the sentences, with the start token, and the *answer* are the
    others; a sentence whose tokens are all in the other one has its last token as the answer. `lookback` (Chuang et al.
    2024), the attention to the context beside the attention to the answer so far, has rows of the answer alone; with
    the rows `context` it is 0 for all pairs.

    Deviations: the model does not generate its answer, but compares two that are given. Distance, start token and the
    predictors beside attention are ours, as in `ErrorPrediction`.

    The intervals cover the pairs of test, and the pairs of dev that the coefficients are fitted to, in the given
    paradigms. They do not cover the choice of C, nor the random weights.

    Args:
        features: Features of each head.
        rows: Rows that features are means of: `all` tokens, those of the `answer`, or those of the `context`.
        random_weights: False to leave out the decoder with random weights, which reads all pairs too.
        halves: Number of random halves of the fitted pairs that each regression is fitted to again, for the intervals.
        shuffles: Number of random orders of the labels of error.

    Raises:
        UserError: No feature is given. In `begin`: the encoder is no decoder with a language-modelling head. In
            `result`: a log-probability is NaN.
    """

    experiment = "pair_errors"
    takes = PairDataModule

    @checked
    def __init__(
        self,
        features: Sequence[AnswerFeature] = ANSWER_FEATURES,
        rows: PairRows = "all",
        random_weights: bool = True,
        halves: Positive = 50,
        shuffles: Positive = 20,
    ) -> None:
        super().__init__()
        if not features:
            raise UserError(f"{setting('model.features')} is empty. Give one or more of {', '.join(ANSWER_FEATURES)}.")
        self.features = tuple(features)
        self.rows: PairRows = rows
        self.random_weights = random_weights
        self.halves = halves
        self.shuffles = shuffles

    def begin(self) -> None:
        """Check the decoder, and make the one with random weights."""
        pairs = self.data.splits["test"]
        encoder = pairs.encoder
        if not encoder.causal:
            raise UserError(
                f"{type(self).__name__} reads the attention of a decoder, but {encoder.source.spec.name} sees the "
                "words on both sides. Name a decoder with a language-modelling head (gpt2) with "
                f"{setting('encoder')}."
            )
        self.task = MinimalPairs(pairs)
        self._random: Encoder | None = None
        if self.random_weights:
            specification = replace(encoder.source.spec, weights="random", seed=self.seed)
            self._random = Encoder(resolve(specification), self.device)
        self._rows = Rows()
        inform(f"Error prediction: {pluralize(len(pairs), 'minimal pair')}.")

    def update(self, batch: PairBatch) -> None:
        if not len(batch.index):
            return
        inputs = self.task.inputs(batch)
        reader = PairReader(batch, self.rows)
        with torch.autocast(batch.tokens.device.type, enabled=False):
            with reading_heads(reader.reduce) as of_layers:
                log_probabilities = self.task.outputs(inputs)
            columns = {
                "log_probabilities": log_probabilities,
                "length": means_of_pairs(batch.lengths.float()),
                ATTENTION: self._features(of_layers),
            }
            if self._random is not None:
                with reading_heads(reader.reduce) as of_layers:
                    self._random.model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
                columns[RANDOM] = self._features(of_layers)
        self._rows.add(batch.index, **columns)

    def _features(self, of_layers: Sequence[Tensor]) -> Tensor:
        """Return the features that the options name, `[pairs, heads, features]`."""
        places = [ANSWER_FEATURES.index(feature) for feature in self.features]
        of_sentences = torch.cat(list(of_layers), 1)[..., places]
        return means_of_pairs(of_sentences)

    def result(self) -> Result:
        columns = self._rows.take()
        require_numbers(columns["log_probabilities"])
        pairs = [self.task.pairs[item] for item in columns[ITEM]]
        paradigms = np.array([pair.paradigm for pair in pairs])
        decisions = decisions_on_pairs(columns, paradigms)
        _, paradigm_of_pair = np.unique(paradigms, return_inverse=True)
        is_fitted = choosing_half(paradigm_of_pair, self.seed)
        fitted = np.flatnonzero(is_fitted)
        tested = np.flatnonzero(~is_fitted)

        names = []
        for layer, head, feature in product(range(self.task.layers), range(self.task.heads), self.features):
            names.append((head_name(layer, head), feature))
        model = self.task.encoder.source.spec.name
        errors = FittedErrors(model, decisions.select(fitted), decisions.select(tested), names)
        errors.fit(self.halves, self.shuffles, self.seed)

        good, bad = columns["log_probabilities"].T
        tested_pairs = [pairs[place] for place in tested]
        frame = errors.frame(
            id=[f"{pair.paradigm}/{pair.id}" for pair in tested_pairs],
            field=[pair.field for pair in tested_pairs],
            good=good[tested],
            bad=bad[tested],
        )
        audit: dict[str, object] = {"dev_and_test": "random halves of the pairs of each paradigm"}
        audit |= errors.audit("pairs")
        audit["ties"] = int((good == bad).sum())
        sizes = self.task.layers, self.task.heads
        return report_errors(self.experiment, {model: [errors]}, frame, audit, noun="pairs", sizes=sizes)


def decisions_on_pairs(columns: Mapping[str, NDArray[Any]], paradigms: NDArray[np.str_]) -> JudgedDecisions:
    """Return the decisions of a decoder; a tie counts as right.

    Args:
        columns: Columns by name, from `Rows.take`: `log_probabilities` `[pairs, 2]`, of the acceptable sentence first,
            `length`, and features.
        paradigms: Paradigm of each pair, `[pairs]`.
    """
    items: Integers = columns[ITEM]
    log_probabilities = columns["log_probabilities"]
    features: dict[str, Floats] = {}
    kinds = np.unique(paradigms)
    if len(kinds) > 1:
        features[PARADIGM] = (paradigms[:, None] == kinds).astype(np.float64)
    for name in (ATTENTION, RANDOM):
        if name in columns:
            features[name] = np.nan_to_num(columns[name].reshape(len(items), -1))
    wrong = are_right(log_probabilities) == 0
    confidence = np.abs(log_ratios(log_probabilities))
    return JudgedDecisions(items, wrong, confidence, columns["length"], features)


def means_of_pairs(numbers: Tensor) -> Tensor:
    """Return the mean of the numbers of both sentences of each pair, `[pairs, …]`.

    Args:
        numbers: Numbers of each sentence, `[2 · pairs, …]`.
    """
    return numbers.view(-1, 2, *numbers.shape[1:]).mean(1)


class PairReader:
    """Reduces the attention of a layer on minimal pairs to features of its heads.

    Args:
        batch: The pairs.
        rows: Rows that features are means of, see `PairErrorPrediction`.

    Attributes:
        context: Number of tokens of each sentence before its answer, with the start token, int64 `[2 · pairs]`.
        answer: Bool `[2 · pairs, from]`, True for the tokens of the answer.
        rows: Bool `[2 · pairs, from]`, True for the rows that features are means of.
    """

    def __init__(self, batch: PairBatch, rows: PairRows) -> None:
        good = batch.tokens[::2]
        bad = batch.tokens[1::2]
        differ = (good != bad) | (batch.mask[::2] != batch.mask[1::2])
        position = torch.arange(batch.tokens.size(1), device=batch.tokens.device)
        first = torch.where(differ, position, len(position)).amin(1)
        self.context = torch.minimum(first.repeat_interleave(2), batch.lengths - 1)
        self.answer = batch.mask & (position >= self.context[:, None])
        self.rows = batch.mask
        if rows == "answer":
            self.rows = self.answer
        elif rows == "context":
            self.rows = batch.mask & ~self.answer

    def reduce(self, weights: Tensor, scratch: Tensor) -> Tensor:
        """Return the features of the heads of a layer, `[2 · pairs, heads, features]`, see `ANSWER_FEATURES`.

        Args:
            weights: Attention `[2 · pairs, heads, from, to]`.
            scratch: Tensor of the same shape, which is overwritten.
        """
        of_rows = mean_features(row_features(weights, scratch=scratch), self.rows)
        lookback = lookback_ratios(weights, self.context)[..., None]
        return torch.cat([of_rows, mean_features(lookback, self.rows & self.answer)], -1)
