"""What keeps hidden states true to their words (Tutek & Šnajder 2020): each is one transform, or one term of the loss.

Transforms are applied in the order in which they are given; terms are added to the loss of the labels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from models.interface import ModelError
from results.errors import check_numbers
from training import Mean


@dataclass(frozen=True)
class RegularizerSizes:
    """What the parameters of a regulariser depend on."""

    embedded: int  # size of an embedded word
    hidden: int  # size of a hidden state as the encoder makes it
    vocabulary: int  # number of words
    mask: int | None  # number of the mask token in the vocabulary; None where it has none


@dataclass(frozen=True)
class Encoded:
    """A batch on its way from the words to attention; each tensor begins with `[batch, time]`."""

    tokens: Tensor  # int64
    words: Tensor  # bool, real tokens that are no delimiters
    embedded: Tensor  # [..., embedded], what the encoder read
    hidden: Tensor  # [..., hidden], what the encoder made of it
    averaged: Tensor  # [..., averaged], behind all transforms: what attention averages
    encode: Callable[[Tensor], Tensor]  # other tokens in the place of these to their hidden states


class Regularizer(nn.Module):
    """A transform of the hidden states, a term of the loss, or both.

    Subclasses with parameters fill `build`, those that transform `transform` and, where the size changes,
    `output_size`, and those that add to the loss `term`, which is logged as `loss.<name>`.
    """

    name: ClassVar[str]

    def build(self, sizes: RegularizerSizes) -> None:
        """Make the parameters."""

    def output_size(self, embedded: int, hidden: int) -> int:
        """Size of a hidden state behind its transform, from that of an embedded word and that before it."""
        return hidden

    def transform(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Hidden states `[batch, time, output_size]` out of embedded words and the hidden states so far."""
        return hidden

    def term(self, state: Encoded) -> Mean | None:
        """A mean, its weight included; None where there is no term."""
        return None


class Concat(Regularizer):
    """`h_t := [rnn(e)_t ; e_t]`."""

    name = "concat"

    def output_size(self, embedded: int, hidden: int) -> int:
        return hidden + embedded

    def transform(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        return torch.cat([hidden, embedded], dim=2)


class Residual(Regularizer):
    """`h_t := e_t + rnn(e)_t`; a ModelError where they are not of one size."""

    name = "residual"

    def output_size(self, embedded: int, hidden: int) -> int:
        _one_size(self, embedded, hidden)
        return hidden

    def transform(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        return embedded + hidden


class Tying(Regularizer):
    """`weight · (1/T) Σ_t ‖h_t − e_t‖²`, over the T words of a text, the mean over the texts.

    h are the states as the encoder makes them. The authors' later code leaves out the square and counts padding; this
    is the paper's formula. The default weight is ours.

    Args:
        weight: δ.

    Raises:
        ModelError: embedded words and hidden states are not of one size.
    """

    name = "tying"

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        check_numbers(self, least=0, weight=weight)
        self.weight = weight

    def build(self, sizes: RegularizerSizes) -> None:
        _one_size(self, sizes.embedded, sizes.hidden)

    def term(self, state: Encoded) -> Mean:
        return _over_words(self.weight, (state.hidden - state.embedded).square().sum(2), state.words)


class MaskedLanguageModel(Regularizer):
    """`weight · −log p(w_t | the text, some chosen words replaced)`, the mean over the chosen words of a batch.

    Embedding and encoder are those of the classifier; the decoder is one linear map of the chosen words' states. Each
    word is chosen with the probability `share`, and one of every text in any case. A chosen word is read as the mask
    token with the probability `masked`, as a random one with `random`, and otherwise as it is: its state is then asked
    for the word that its encoder has read. In training all is drawn anew; in evaluation the text itself decides, so
    that it is the same in every epoch and batch.

    By default every chosen word is masked, and no state is asked for a word that its encoder has read. BERT (Devlin et
    al. 2019, §3.1) has `share` .15, `masked` .8 and `random` .1. With `share` 1 and `masked` .15 all words of a text
    are predicted, and 15 % of them masked; a lower `share` draws a sample of them, with the same expectation. The
    default weight is ours, the share BERT's.

    Args:
        weight: η.
        share: of the words that are chosen.
        masked: share of the chosen words that are read as the mask token.
        random: share of the chosen words that are read as any row of the vocabulary.

    Raises:
        UserError: a share is no probability, or `share` is 0.
        ModelError: `masked` and `random` are more than 1 together, or the vocabulary has no mask token.
    """

    name = "mlm"

    def __init__(self, weight: float = 0.5, share: float = 0.15, masked: float = 1.0, random: float = 0.0) -> None:
        super().__init__()
        check_numbers(self, above=0, most=1, share=share)
        check_numbers(self, least=0, weight=weight, masked=masked, random=random)
        if masked + random > 1:
            raise ModelError(
                f"MaskedLanguageModel masks a share of the chosen words, and replaces another at random: masked is "
                f"{masked} and random {random}; give shares from 0, of at most 1 together."
            )
        self.weight, self.share, self.masked, self.random = weight, share, masked, random

    def build(self, sizes: RegularizerSizes) -> None:
        if sizes.mask is None:
            raise ModelError(
                "MaskedLanguageModel masks words, and the vocabulary of these data has no mask token: give a tokenizer "
                "that has one (--data.init_args.tokenizer), or none for whitespace words."
            )
        self.mask_token = sizes.mask
        self.decoder = nn.Linear(sizes.hidden, sizes.vocabulary)

    def term(self, state: Encoded) -> Mean:
        chosen = self.chosen(state.tokens, state.words)
        hidden = state.encode(self.replaced(state.tokens, state.words, chosen))
        # A sum, because the mean over no word would be NaN.
        nats = cross_entropy(self.decoder(hidden[chosen]), state.tokens[chosen], reduction="sum")
        count = chosen.sum()
        return Mean(self.weight * nats / count.clamp(min=1), count)

    def chosen(self, tokens: Tensor, words: Tensor) -> Tensor:
        """Bool `[batch, time]`, the words that are chosen."""
        draws = self._draws(tokens, words, 0).masked_fill(~words, 2)
        lowest = draws == draws.amin(1, keepdim=True) if draws.numel() else words
        return ((draws < self.share) | lowest) & words

    def replaced(self, tokens: Tensor, words: Tensor, chosen: Tensor) -> Tensor:
        """What the encoder reads, int64 `[batch, time]`: the tokens, but for the chosen that are masked or random."""
        if self.masked == 1:  # nothing else is to be drawn
            return tokens.masked_fill(chosen, self.mask_token)
        draws = self._draws(tokens, words, 1)
        mask, random = draws < self.masked, draws < self.masked + self.random
        # Any row, specials included, as in BERT's code. In float32 a draw below 1 may come out as the number of rows.
        rows = self.decoder.out_features
        others = (self._draws(tokens, words, 2) * rows).long().clamp(max=rows - 1)
        read = torch.where(chosen & random, others, tokens)
        return read.masked_fill(chosen & mask, self.mask_token)

    def _draws(self, tokens: Tensor, words: Tensor, choice: int) -> Tensor:
        """Numbers in [0, 1), float32 `[batch, time]`, for the first, second or third choice about every word."""
        if self.training:
            return torch.rand(tokens.shape, device=tokens.device)
        draws = torch.zeros(tokens.shape)
        # Only the words of the text and their places in it decide.
        for row, (text, real) in enumerate(zip(tokens.cpu(), words.cpu(), strict=True)):
            drawn = np.random.default_rng(text[real].numpy()).random((3, int(real.sum())))
            draws[row, real] = torch.from_numpy(drawn[choice]).float()
        return draws.to(tokens.device)


class Conicity(Regularizer):
    """`weight · mean_t cos(h_t, h̄)` over the words of a text, the mean over the texts (Chandrahas et al. 2018).

    h are the states that attention averages, and h̄ is their mean: the term is low where they point into different
    directions. Mohankumar et al. (2020) keep it low in classifiers with attention.
    """

    name = "conicity"

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        check_numbers(self, least=0, weight=weight)
        self.weight = weight

    def term(self, state: Encoded) -> Mean:
        words = state.words[..., None]
        mean = (state.averaged * words).sum(1, keepdim=True) / words.sum(1, keepdim=True).clamp(min=1)
        return _over_words(self.weight, cosine_similarity(state.averaged, mean, dim=2), state.words)


def _one_size(regularizer: Regularizer, embedded: int, hidden: int) -> None:
    if embedded != hidden:
        raise ModelError(
            f"{type(regularizer).__name__} needs embedded words and hidden states of one size, and they have "
            f"{embedded} and {hidden} dimensions: --model.init_args.embedding.project {hidden}, or an encoder whose "
            f"states have {embedded}."
        )


def _over_words(weight: float, values: Tensor, words: Tensor) -> Mean:
    """A weight times the mean over the words of each text, then over the texts; a text without a word counts as 0."""
    means = values.masked_fill(~words, 0).sum(1) / words.sum(1).clamp(min=1)
    return Mean(weight * (means.sum() / max(len(means), 1)), len(means))
