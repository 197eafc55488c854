"""Attention over hidden states: one distribution a text."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class Attention(nn.Module, ABC):
    """A distribution over the slots of each row, out of one score a slot.

    It is made from plain arguments, before any size is known. Subclasses fill two holes: `build` and `scores`.
    """

    @abstractmethod
    def build(self, size: int) -> None:
        """Make the parameters, for hidden states of this size."""

    @abstractmethod
    def scores(self, hidden: Tensor) -> Tensor:
        """Scores `[batch, slots]` of hidden states `[batch, slots, size]`, before the softmax."""

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The distribution.

        Args:
            hidden: `[batch, slots, size]`.
            mask: bool `[batch, slots]`, slots that may get weight.

        Returns:
            `[batch, slots]`: every row sums to one, or is zero where it has no slot; exactly 0 outside the mask.
        """
        scores = self.scores(hidden)
        # The lowest number and not -inf: a row without a slot would be NaN on the way, which anomaly detection reports.
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
        return weights.masked_fill(~mask, 0)


class AdditiveAttention(Attention):
    """`vᵀ tanh(W h_t + b)`, without a query (Bahdanau et al. 2015, as Jain & Wallace 2019, §2, use it).

    Args:
        size: rows of W; None for half the size of a hidden state, as in Jain & Wallace's code.
    """

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self.size = size

    def build(self, size: int) -> None:
        """W and b, and v."""
        between = self.size or max(1, size // 2)
        self.projection = nn.Linear(size, between)
        self.query = nn.Linear(between, 1, bias=False)

    def scores(self, hidden: Tensor) -> Tensor:
        """One score a slot."""
        scores: Tensor = self.query(self.projection(hidden).tanh())
        return scores.squeeze(-1)


class DotAttention(Attention):
    """`h_t · q / √d` with a learned q, d the size of a hidden state (Jain & Wallace 2019, §2)."""

    def build(self, size: int) -> None:
        """The learned q."""
        self.query = nn.Linear(size, 1, bias=False)

    def scores(self, hidden: Tensor) -> Tensor:
        """One score a slot."""
        scores: Tensor = self.query(hidden)
        return scores.squeeze(-1) / math.sqrt(hidden.size(-1))


class UniformAttention(Attention):
    """The same weight on every slot: what attention has to be better than (Wiegreffe & Pinter 2019)."""

    def build(self, size: int) -> None:
        """Nothing is learned."""

    def scores(self, hidden: Tensor) -> Tensor:
        """All equal."""
        return hidden.new_zeros(hidden.shape[:-1])
