"""The parts of a classifier: word embeddings, encoders that make hidden states of them, attention over these."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from datamodules import Vocabulary
from models.interface import ModelError
from results.errors import check_numbers, check_values

EMBEDDING_SIZE = 300
EMBEDDING_SPREAD = 0.1
"""Size of a row, and standard deviation of its entries, where there are no word vectors."""


@dataclass(frozen=True)
class EmbeddingSpec:
    """What is asked of the word embeddings on the command line.

    Attributes:
        size: of a word's row; None for that of the word vectors, and 300 without any.
        trainable: whether the rows are trained. What has no vector is otherwise frozen as it was drawn, too.
        project: size of what the encoder reads, by a learned linear map; None for the rows themselves. Residual and
            tying need embedded words and hidden states of one size.
        dropout: share of the entries of what the encoder reads that is dropped in training.
    """

    size: int | None = None
    trainable: bool = True
    project: int | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_values(self, **vars(self))
        check_numbers(self, least=1, size=self.size, project=self.project)
        check_numbers(self, least=0, below=1, dropout=self.dropout)


DEFAULT_EMBEDDING = EmbeddingSpec()


class WordEmbedding(nn.Module):
    """A row for every word of a vocabulary, of which the padding's is zero and never trained.

    Rows without a vector are drawn from a normal distribution around 0 whose standard deviation is that of all entries
    of the known vectors, or 0.1 where no vector is known. The projection has no bias, so that the padding stays zero.

    Args:
        spec: what is asked for.
        vocabulary: its words.
        vectors: float32 `[vocabulary, size]`, word vectors; None without, and for rows that a checkpoint has.
        known: bool `[vocabulary]`, rows of `vectors` that are one.
        vector_size: of the vectors.

    Raises:
        ModelError: the vectors have another size than was asked for.
    """

    def __init__(
        self,
        spec: EmbeddingSpec,
        vocabulary: Vocabulary,
        vectors: Tensor | None = None,
        known: Tensor | None = None,
        vector_size: int | None = None,
    ) -> None:
        super().__init__()
        if vectors is None:
            rows = torch.randn(len(vocabulary), spec.size or vector_size or EMBEDDING_SIZE) * EMBEDDING_SPREAD
        elif spec.size in (None, vectors.size(1)):
            assert known is not None
            spread = float(vectors[known].std(correction=0)) if known.any() else EMBEDDING_SPREAD
            rows = torch.where(known[:, None], vectors, torch.randn(vectors.shape) * spread)
        else:
            raise ModelError(
                f"The word vectors have {vectors.size(1)} dimensions, and {spec.size} are asked for: leave "
                f"--model.init_args.embedding.size out (where a config names it: --model.init_args.embedding "
                f"'{{size: null}}'), or give other vectors (--data.init_args.vectors); a linear map to {spec.size} is "
                f"--model.init_args.embedding.project {spec.size}."
            )
        rows[vocabulary.pad] = 0
        self.rows = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
            rows, freeze=not spec.trainable, padding_idx=vocabulary.pad
        )
        self.size = spec.project or rows.size(1)
        self.projection = nn.Linear(rows.size(1), self.size, bias=False) if spec.project else nn.Identity()
        if isinstance(self.projection, nn.Linear):
            # What the vectors know lies in their angles and distances: the map begins as one that keeps them.
            nn.init.orthogonal_(self.projection.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embedded words `[batch, time, size]` of tokens int64 `[batch, time]`; zero in the padding."""
        embedded: Tensor = self.projection(self.rows(tokens))
        return embedded


class TextEncoder(nn.Module, ABC):
    """What makes hidden states of embedded words.

    It is made from plain arguments, before any size is known. Subclasses fill `build`, which makes the parameters, and
    `states`.
    """

    size: int  # of a hidden state; known once it is built

    @abstractmethod
    def build(self, input_size: int) -> None:
        """Make the parameters, for embedded words of this size."""

    @abstractmethod
    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """Hidden states `[batch, time, size]`, anything in the padding; there is a text, and it has a token."""

    def forward(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """Hidden states `[batch, time, size]`, zero in the padding; they do not depend on how far a text is padded.

        Of `embedded` `[batch, time, input_size]`; the mask, bool `[batch, time]`, has real tokens before the padding.
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
        layers: number of layers.
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
        check_values(self, cell=cell)
        check_numbers(self, least=1, hidden=hidden, layers=layers)
        check_numbers(self, least=0, below=1, dropout=dropout)
        self.cell, self.hidden, self.layers = cell, hidden, layers
        self.directions = 2 if bidirectional else 1
        self.size = hidden * self.directions
        self.dropout = nn.Dropout(dropout)

    def build(self, input_size: int) -> None:
        cell = nn.LSTM if self.cell == "lstm" else nn.GRU
        below = [input_size] + [self.size] * (self.layers - 1)
        self.networks = nn.ModuleList(
            nn.ModuleList(cell(size, self.hidden, batch_first=True) for _ in range(self.directions)) for size in below
        )

    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        # The place whose token stands here once each text is reversed; padding stays in place.
        places = torch.arange(mask.size(1), device=mask.device)
        order = torch.where(mask, mask.sum(1, keepdim=True) - 1 - places, places)[..., None]
        states = embedded
        for layer, networks in enumerate(self.networks):
            assert isinstance(networks, nn.ModuleList)
            # Saliency wants gradients in evaluation, which cuDNN has in training mode alone. To a single layer without
            # dropout the two modes are one.
            networks.train(torch.is_grad_enabled())
            read = self.dropout(states) if layer else states
            ways = [networks[0](read)[0]]
            if self.directions == 2:
                from_end = networks[1](read.gather(1, order.expand_as(read)))[0]
                ways.append(from_end.gather(1, order.expand_as(from_end)))
            states = torch.cat(ways, dim=2)
        return states


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
        check_numbers(self, least=1, filters=filters)
        self.kernels, self.filters = kernels, filters
        self.size = filters * len(kernels)

    def build(self, input_size: int) -> None:
        self.convolutions = nn.ModuleList(
            nn.Conv1d(input_size, self.filters, kernel, padding=kernel // 2) for kernel in self.kernels
        )

    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        # What a projection or a perturbation left in the padding is not to be seen from the last words.
        read = embedded.masked_fill(~mask[..., None], 0).mT
        return torch.cat([convolution(read) for convolution in self.convolutions], dim=1).relu().mT


class AverageEncoder(TextEncoder):
    """Each word by itself, Linear and tanh: the "Average" of Jain & Wallace (2019)."""

    def __init__(self, size: int = 256) -> None:
        super().__init__()
        check_numbers(self, least=1, size=size)
        self.size = size

    def build(self, input_size: int) -> None:
        self.linear = nn.Linear(input_size, self.size)

    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.linear(embedded).tanh()
        return states


class NoEncoder(TextEncoder):
    """The embedded words themselves: the "noenc" of Serrano & Smith (2019)."""

    def build(self, input_size: int) -> None:
        self.size = input_size

    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        return embedded


class Attention(nn.Module, ABC):
    """A distribution over the positions of each row, out of one score a position.

    It is made from plain arguments, before any size is known. Subclasses fill `build` and `scores`.
    """

    @abstractmethod
    def build(self, size: int) -> None:
        """Make the parameters, for hidden states of this size."""

    @abstractmethod
    def scores(self, hidden: Tensor) -> Tensor:
        """Scores `[batch, positions]` of hidden states `[batch, positions, size]`, before the softmax."""

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Weights `[batch, positions]` of hidden states `[batch, positions, size]`, 0 outside the mask.

        Rows sum to one, or are zero where the mask, bool `[batch, positions]`, is empty.
        """
        scores = self.scores(hidden)
        # The lowest number and not -inf: a row with an empty mask would be NaN, which anomaly detection reports.
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
        return weights.masked_fill(~mask, 0)


class AdditiveAttention(Attention):
    """`vᵀ tanh(W h_t + b)`, without a query (Bahdanau et al. 2015, as Jain & Wallace 2019, §2, use it).

    Args:
        size: rows of W; None for half the size of a hidden state, as in Jain & Wallace's code.
    """

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        check_numbers(self, least=1, size=size)
        self.size = size

    def build(self, size: int) -> None:
        between = self.size or max(1, size // 2)
        self.projection = nn.Linear(size, between)
        self.query = nn.Linear(between, 1, bias=False)

    def scores(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.query(self.projection(hidden).tanh())
        return scores.squeeze(-1)


class DotAttention(Attention):
    """`h_t · q / √d` with a learned q, d the size of a hidden state (Jain & Wallace 2019, §2)."""

    def build(self, size: int) -> None:
        self.query = nn.Linear(size, 1, bias=False)

    def scores(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.query(hidden)
        return scores.squeeze(-1) / math.sqrt(hidden.size(-1))


class UniformAttention(Attention):
    """The same weight on every position: what attention has to be better than (Wiegreffe & Pinter 2019)."""

    def build(self, size: int) -> None:
        """Nothing is learned."""

    def scores(self, hidden: Tensor) -> Tensor:
        return hidden.new_zeros(hidden.shape[:-1])
