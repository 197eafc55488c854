"""Regularisers that keep hidden states close to their words (Tutek & Šnajder 2020).

A regulariser transforms the hidden states or adds a term to the loss; transforms are applied in the order of the list.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attention_probing.datamodules import Vocabulary
from attention_probing.models.losses import Mean
from attention_probing.results.errors import UserError, setting
from attention_probing.results.options import Rate, Share, checked


@dataclass(frozen=True)
class Encoded:
    """Embedded words and hidden states of a batch, before attention.

    Attributes:
        tokens: int64 `[batch, time]`.
        words: Bool `[batch, time]`, True for tokens that are neither delimiters nor padding.
        embedded: Embedded words `[batch, time, embedded size]`, input of the encoder.
        hidden: Hidden states `[batch, time, hidden size]`, output of the encoder.
        averaged: `[batch, time, averaged size]`, hidden states after the transforms of all regularisers;
            attention averages them.
        encode: Function that takes int64 `[batch, time]`, other tokens in place of `tokens`, and returns
            their hidden states `[batch, time, hidden size]`.
    """

    tokens: Tensor
    words: Tensor
    embedded: Tensor
    hidden: Tensor
    averaged: Tensor
    encode: Callable[[Tensor], Tensor]


class Regularizer(nn.Module):
    """Base class of regularisers: a transform of the hidden states, a term of the loss, or both.

    Subclasses with parameters implement `build`. Subclasses with a transform implement `transform`
    and, if the size changes, `output_size`. Subclasses with a term of the loss implement `term`.

    Attributes:
        name: Name of the regulariser; its term is logged as `train_loss.<name>`, and reported on
            test as `loss.<name>`.
    """

    name: ClassVar[str]

    def build(self, embedded: int, hidden: int, vocabulary: Vocabulary) -> None:
        """Create the parameters of the regulariser, if it has any.

        Args:
            embedded: Size of an embedded word.
            hidden: Size of a hidden state of the encoder.
            vocabulary: Tokens of the data.
        """

    def output_size(self, embedded: int, hidden: int) -> int:
        """Return the size of a hidden state after the transform.

        Args:
            embedded: Size of an embedded word.
            hidden: Size of a hidden state before the transform.
        """
        return hidden

    def transform(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Return transformed hidden states `[batch, time, output_size]`; by default they stay as they are.

        Args:
            embedded: Embedded words `[batch, time, embedded]`.
            hidden: Hidden states before the transform, `[batch, time, hidden]`.
        """
        return hidden

    def term(self, state: Encoded) -> Mean | None:
        """Return the regulariser's term of the loss, times its weight; None for a regulariser without a term.

        Args:
            state: Embedded words and hidden states of a batch.

        Returns:
            The mean over the texts or words of the batch, with the number of these.
        """
        return None


class Concat(Regularizer):
    """Regulariser that appends the embedded word to each hidden state: `h_t := [rnn(e)_t ; e_t]`."""

    name = "concat"

    def output_size(self, embedded: int, hidden: int) -> int:
        return hidden + embedded

    def transform(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        return torch.cat([hidden, embedded], dim=2)


class Residual(Regularizer):
    """Regulariser that adds the embedded word to each hidden state: `h_t := e_t + rnn(e)_t`.

    Raises:
        UserError: Embedded words and hidden states differ in size.
    """

    name = "residual"

    def output_size(self, embedded: int, hidden: int) -> int:
        _one_size(self, embedded, hidden)
        return hidden

    def transform(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        return embedded + hidden


class Tying(Regularizer):
    """Regulariser with the term `weight · (1/T) Σ_t ‖h_t − e_t‖²` over the T words of a text, averaged over texts.

    h is the encoder's output, before transforms, and e are the embedded words. This is the formula of Tutek & Šnajder
    (2020); their later code leaves out the square and counts padding. The default weight is a choice of this package.

    Args:
        weight: Weight of the term, δ in the paper.

    Raises:
        UserError: Embedded words and hidden states have different sizes.
    """

    name = "tying"

    @checked
    def __init__(self, weight: Rate = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def build(self, embedded: int, hidden: int, vocabulary: Vocabulary) -> None:
        _one_size(self, embedded, hidden)

    def term(self, state: Encoded) -> Mean:
        squares = (state.hidden - state.embedded).square().sum(2)
        means = squares.masked_fill(~state.words, 0).sum(1) / state.words.sum(1).clamp(min=1)  # 0 without a word
        return Mean(self.weight * means.mean(), len(means))


class MaskedLanguageModel(Regularizer):
    """Regulariser with the term `weight · −log p(w_t | text with chosen words replaced)`.

    The term is averaged over the chosen words of a batch. The classifier's embedding and encoder read
    the text, and a linear decoder predicts the chosen words from their hidden states. Each word is
    chosen with probability `share`, and at least one word of every text. The encoder reads a chosen word
    as the mask token with probability `masked`, as a random word with probability `random`, and
    unchanged otherwise. The choices are new in every training step. In evaluation they depend only on
    the text, so that they are the same in every epoch and batch.

    By default every chosen word is masked, so that no word is predicted from its own embedding. BERT
    (Devlin et al. 2019, §3.1) has `share` .15, `masked` .8 and `random` .1. With `share` 1 and `masked`
    .15, all words of a text are predicted, and 15 % of them are masked. With a lower `share`, only a
    random sample of the words is predicted, and only words of this sample are masked. The default
    `share` is BERT's, and the default `weight` is a choice of this package.

    Args:
        weight: Weight of the term, η in Tutek & Šnajder (2020).
        share: Probability that a word is chosen.
        masked: Probability that a chosen word is replaced by the mask token.
        random: Probability that a chosen word is replaced by a random entry of the vocabulary.

    Raises:
        UserError: A probability is not from 0 to 1, `share` is 0, `masked` and `random` sum to more than
            1, or the vocabulary has no mask token.
    """

    name = "mlm"

    @checked
    def __init__(self, weight: Rate = 0.5, share: Share = 0.15, masked: Rate = 1.0, random: Rate = 0.0) -> None:
        super().__init__()
        if masked + random > 1:
            raise UserError(
                f"MaskedLanguageModel: masked is {masked} and random is {random}, but their sum must be at most 1."
            )
        self.weight = weight
        self.share = share
        self.masked = masked
        self.random = random

    def build(self, embedded: int, hidden: int, vocabulary: Vocabulary) -> None:
        if vocabulary.mask is None:
            raise UserError(
                "MaskedLanguageModel needs a mask token, but the tokenizer of the data has none. Set "
                f"{setting('data.tokenizer.name')} to a model with a mask token, such as bert-base-uncased, or "
                f"{setting('data.tokenizer')} to null for words between white space."
            )
        self.mask_token = vocabulary.mask
        self.decoder = nn.Linear(hidden, len(vocabulary))

    def term(self, state: Encoded) -> Mean:
        chosen = self.choose_tokens(state.tokens, state.words)
        hidden = state.encode(self.replace_tokens(state.tokens, state.words, chosen))
        # A sum, because the mean over no words would be NaN.
        nats = cross_entropy(self.decoder(hidden[chosen]), state.tokens[chosen], reduction="sum")
        count = chosen.sum()
        return Mean(self.weight * nats / count.clamp(min=1), count)

    def choose_tokens(self, tokens: Tensor, words: Tensor) -> Tensor:
        """Choose the words to predict: each with probability `share`, and at least one of every text.

        Args:
            tokens: int64 `[batch, time]`.
            words: Bool `[batch, time]`, True for tokens that are neither delimiters nor padding.

        Returns:
            bool `[batch, time]`, True for chosen words.
        """
        draws = self._draws(tokens, words, 0).masked_fill(~words, 2)
        lowest = draws == draws.amin(1, keepdim=True)
        return ((draws < self.share) | lowest) & words

    def replace_tokens(self, tokens: Tensor, words: Tensor, chosen: Tensor) -> Tensor:
        """Return the encoder's input, int64 `[batch, time]`, in which chosen tokens are replaced.

        A chosen token becomes the mask token with probability `masked`, a random entry of the vocabulary
        with probability `random`, and otherwise stays unchanged.

        Args:
            tokens: int64 `[batch, time]`.
            words: Bool `[batch, time]`, True for tokens that are neither delimiters nor padding.
            chosen: Bool `[batch, time]`, True for the tokens to predict, as from `choose_tokens`.
        """
        if self.masked == 1:
            return tokens.masked_fill(chosen, self.mask_token)
        draws = self._draws(tokens, words, 1)
        mask = draws < self.masked
        random = draws < self.masked + self.random
        # Any row, specials included, as in BERT's code. In float32 a draw below 1 may round to the number of rows.
        rows = self.decoder.out_features
        others = (self._draws(tokens, words, 2) * rows).long().clamp(max=rows - 1)
        read = torch.where(chosen & random, others, tokens)
        return read.masked_fill(chosen & mask, self.mask_token)

    def _draws(self, tokens: Tensor, words: Tensor, choice: int) -> Tensor:
        """Return numbers in [0, 1), float32 `[batch, time]`, for choice 0, 1 or 2 about every word."""
        if self.training:
            return torch.rand(tokens.shape, device=tokens.device)
        draws = torch.zeros(tokens.shape)
        # They depend on the words of the text and their order alone.
        for row, (text, real) in enumerate(zip(tokens.cpu(), words.cpu(), strict=True)):
            drawn = np.random.default_rng(text[real].numpy()).random((3, int(real.sum())))
            draws[row, real] = torch.from_numpy(drawn[choice]).float()
        return draws.to(tokens.device)


def _one_size(regularizer: Regularizer, embedded: int, hidden: int) -> None:
    if embedded != hidden:
        raise UserError(
            f"{type(regularizer).__name__} needs word embeddings and hidden states of the same size, but they have "
            f"{embedded} and {hidden} dimensions. Set {setting('model.embedding.project', hidden)}, or choose a text "
            f"encoder whose states have {embedded}."
        )
