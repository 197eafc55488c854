"""Encoders: the embedded words of a text to hidden states, one a token, which attention averages."""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from models.interface import ModelError


class TextEncoder(nn.Module, ABC):
    """What makes hidden states of embedded words.

    It is made from plain arguments, before any size is known. Subclasses fill two holes: `build`, which makes the
    parameters and sets `size`, and `states`.

    Attributes:
        size: of a hidden state; known once it is built.
    """

    size: int

    @abstractmethod
    def build(self, input_size: int) -> None:
        """Make the parameters, for embedded words of this size."""

    @abstractmethod
    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """Hidden states `[batch, time, size]`, anything in the padding; there is a text, and it has a token."""

    def forward(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """Hidden states, which do not depend on how far a text is padded.

        Args:
            embedded: `[batch, time, input_size]`.
            mask: bool `[batch, time]`, real tokens; they stand before the padding.

        Returns:
            `[batch, time, size]`, zero in the padding.
        """
        if not mask.numel():
            return embedded.new_zeros(*mask.shape, self.size)
        return self.states(embedded, mask).masked_fill(~mask[..., None], 0)


class RecurrentEncoder(TextEncoder):
    """LSTM or GRU in one or both directions.

    The direction from the end reads every text reversed within its own length, so that padding comes last in both and
    touches no state. That is exact, and on a CPU faster than packed sequences.

    Args:
        cell: `lstm` or `gru`.
        hidden: size of the states of one direction.
        bidirectional: whether there is a direction from the end, whose states stand behind those from the start.
        layers: how many, each reading the states of that below.
        dropout: share of the states that is dropped between layers.
    """

    def __init__(
        self,
        cell: Literal["lstm", "gru"] = "lstm",
        hidden: int = 150,
        bidirectional: bool = True,
        layers: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.cell, self.hidden, self.layers = cell, hidden, layers
        self.directions = 2 if bidirectional else 1
        self.size = hidden * self.directions
        self.dropout = nn.Dropout(dropout)

    def build(self, input_size: int) -> None:
        """One network a layer and direction."""
        cell = nn.LSTM if self.cell == "lstm" else nn.GRU
        below = [input_size] + [self.size] * (self.layers - 1)
        self.networks = nn.ModuleList(
            nn.ModuleList(cell(size, self.hidden, batch_first=True) for _ in range(self.directions)) for size in below
        )

    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """From the start, and from the end behind it."""
        order = reversal(mask)
        states = embedded
        for layer, networks in enumerate(self.networks):
            assert isinstance(networks, nn.ModuleList)
            # Saliency wants gradients in evaluation, which cuDNN has in training mode alone. To a single layer without
            # dropout the two modes are one.
            networks.train(torch.is_grad_enabled())
            read = self.dropout(states) if layer else states
            ways = [networks[0](read)[0]]
            if self.directions == 2:
                ways.append(reordered(networks[1](reordered(read, order))[0], order))
            states = torch.cat(ways, dim=2)
        return states


def reversal(mask: Tensor) -> Tensor:
    """Int64 `[batch, time]`: the place whose token stands here once each text is reversed; padding stays in place."""
    places = torch.arange(mask.size(1), device=mask.device)
    return torch.where(mask, mask.sum(1, keepdim=True) - 1 - places, places)


def reordered(states: Tensor, order: Tensor) -> Tensor:
    """States `[batch, time, size]` in another order of each text, `[batch, time]`."""
    return states.gather(1, order[..., None].expand_as(states))


class ConvolutionEncoder(TextEncoder):
    """Convolutions of several widths side by side, ReLU, one state a token (Jain & Wallace 2019).

    Args:
        kernels: widths in tokens, all odd, so that a state has as many tokens before as behind it.
        filters: of each width.

    Raises:
        ModelError: a width is even, or there is none.
    """

    def __init__(self, kernels: tuple[int, ...] = (1, 3, 5, 7), filters: int = 32) -> None:
        super().__init__()
        if not kernels or any(kernel < 1 or kernel % 2 == 0 for kernel in kernels):
            raise ModelError(
                f"A convolution of widths {kernels} has no token in its middle: give odd widths, for instance "
                f"--model.init_args.encoder.init_args.kernels [1,3,5,7]."
            )
        self.kernels, self.filters = kernels, filters
        self.size = filters * len(kernels)

    def build(self, input_size: int) -> None:
        """One convolution a width, with zeros before and behind the text."""
        self.convolutions = nn.ModuleList(
            nn.Conv1d(input_size, self.filters, kernel, padding=kernel // 2) for kernel in self.kernels
        )

    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """Filters of the narrowest kernel first, in the order of `kernels`."""
        # What a projection or a perturbation left in the padding is not to be seen from the last words.
        read = embedded.masked_fill(~mask[..., None], 0).mT
        return torch.cat([convolution(read) for convolution in self.convolutions], dim=1).relu().mT


class AverageEncoder(TextEncoder):
    """Each word by itself, Linear and tanh: the "Average" of Jain & Wallace (2019).

    Args:
        size: of a hidden state.
    """

    def __init__(self, size: int = 256) -> None:
        super().__init__()
        self.size = size

    def build(self, input_size: int) -> None:
        """One linear map."""
        self.linear = nn.Linear(input_size, self.size)

    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """No state knows of another word."""
        states: Tensor = self.linear(embedded).tanh()
        return states


class NoEncoder(TextEncoder):
    """The embedded words themselves: the "noenc" of Serrano & Smith (2019)."""

    def build(self, input_size: int) -> None:
        """Nothing is learned."""
        self.size = input_size

    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """As they are."""
        return embedded
