"""The layers of a text classifier: word embeddings, encoders, and attention over their hidden states."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from entmax import entmax15, entmax_bisect, sparsemax
from torch import Tensor, nn

from attention_probing.datamodules import Vocabulary
from attention_probing.results.errors import UserError, setting
from attention_probing.results.options import Bounds, Positive, Probability, checked

EMBEDDING_SIZE = 300
EMBEDDING_SPREAD = 0.1
"""Size of an embedding, and standard deviation of its entries, without word vectors."""


@checked
@dataclass(frozen=True)
class EmbeddingSpec:
    """Options of the word embeddings.

    Attributes:
        size: Size of an embedding; None for the size of the word vectors, and 300 without word vectors.
        project: Size after a learned linear map of the embeddings; None for no map. The regularisers `Residual` and
            `Tying` need embedded words and hidden states of the same size.
        dropout: Dropout of the encoder's input.
    """

    size: Positive | None = None
    project: Positive | None = None
    dropout: Probability = 0.0


DEFAULT_EMBEDDING = EmbeddingSpec()


class WordEmbedding(nn.Module):
    """Embeddings of the words of a vocabulary; the padding's embedding is zero and never trained.

    Words with a word vector start from it. Other words start from random numbers, normally distributed around 0.
    Their standard deviation is that of all numbers in the known word vectors, or 0.1 if there are none. The linear
    map of the option `project` has no bias, so that the padding stays zero.

    Args:
        spec: The options.
        vocabulary: The words.
        vectors: float32 `[vocabulary, vector_size]`, word vectors; None without word vectors, or if the embeddings
            will be loaded from a checkpoint.
        known: Bool `[vocabulary]`, True for words that have a vector.
        vector_size: Size of the word vectors, needed if the embeddings will be loaded from a checkpoint.

    Raises:
        UserError: The vectors have another size than `spec.size`.
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
            size = spec.size or vector_size or EMBEDDING_SIZE
            rows = torch.randn(len(vocabulary), size) * EMBEDDING_SPREAD
        elif spec.size in (None, vectors.size(1)):
            assert known is not None
            spread = EMBEDDING_SPREAD
            if known.any():
                spread = float(vectors[known].std(correction=0))
            rows = torch.where(known[:, None], vectors, torch.randn(vectors.shape) * spread)
        else:
            raise UserError(
                f"The word vectors have {vectors.size(1)} dimensions, but {setting('model.embedding.size')} is "
                f"{spec.size}. Remove the size ({setting('model.embedding.size', 'null')}), or give vectors of "
                f"{spec.size} dimensions ({setting('data.vectors')}). To map the vectors to {spec.size} dimensions, "
                f"remove the size and set {setting('model.embedding.project', spec.size)}."
            )
        rows[vocabulary.pad] = 0
        self.rows = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
            rows, freeze=False, padding_idx=vocabulary.pad
        )
        self.size = spec.project or rows.size(1)
        self.projection: nn.Module = nn.Identity()
        if spec.project:
            projection = nn.Linear(rows.size(1), self.size, bias=False)
            # The information of the vectors lies in their angles and distances: an orthogonal map keeps them.
            nn.init.orthogonal_(projection.weight)
            self.projection = projection

    def forward(self, tokens: Tensor) -> Tensor:
        """Return embedded words `[batch, time, size]` for tokens, int64 `[batch, time]`; zero in the padding."""
        embedded: Tensor = self.projection(self.rows(tokens))
        return embedded


class TextEncoder(nn.Module, ABC):
    """Base class of encoders, which turn embedded words into hidden states.

    Subclasses implement `build`, which creates the parameters, and `states`, which computes the
    hidden states. The constructor of a subclass takes only its options, because sizes are not known
    before `build`.

    Attributes:
        size: Size of a hidden state, known after `build`.
    """

    size: int

    @abstractmethod
    def build(self, input_size: int) -> None:
        """Create the parameters of the encoder, and set `size`.

        Args:
            input_size: Size of an embedded word.
        """

    @abstractmethod
    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """Return hidden states `[batch, time, size]`; in the padding they may have any value.

        Args:
            embedded: Embedded words `[batch, time, input_size]`.
            mask: Bool `[batch, time]`, True for real tokens.
        """

    def forward(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """Return the hidden states `[batch, time, size]` of one or more texts; zero in the padding.

        The padding does not influence the hidden states of real tokens.

        Args:
            embedded: Embedded words `[batch, time, input_size]`.
            mask: Bool `[batch, time]`, True for real tokens, which precede the padding.
        """
        return self.states(embedded, mask).masked_fill(~mask[..., None], 0)


class RecurrentEncoder(TextEncoder):
    """LSTM or GRU encoder that reads every text in both directions; their hidden states are concatenated.

    The backward direction reads every text reversed within its own length, so that padding comes last in both
    directions and does not influence hidden states of words. The result is the same as with packed sequences, and
    faster on a CPU.

    Args:
        cell: `lstm` or `gru`.
        hidden: Size of the hidden states of one direction.
    """

    @checked
    def __init__(self, cell: Literal["lstm", "gru"] = "lstm", hidden: Positive = 150) -> None:
        super().__init__()
        self.cell = cell
        self.hidden = hidden
        self.size = 2 * hidden

    def build(self, input_size: int) -> None:
        cell = nn.LSTM if self.cell == "lstm" else nn.GRU
        forward = cell(input_size, self.hidden, batch_first=True)
        backward = cell(input_size, self.hidden, batch_first=True)
        self.networks = nn.ModuleList([nn.ModuleList([forward, backward])])  # as checkpoints name them

    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        # Position of the token that stands here in the reversed text; padding stays in place.
        places = torch.arange(mask.size(1), device=mask.device)
        order = torch.where(mask, mask.sum(1, keepdim=True) - 1 - places, places)[..., None]
        there, back = list(self.networks[0].children())
        # Saliency needs gradients in evaluation, which cuDNN has only in training mode; without dropout both are equal.
        self.networks.train(torch.is_grad_enabled())
        forward = there(embedded)[0]
        backward = back(embedded.gather(1, order.expand_as(embedded)))[0]
        return torch.cat([forward, backward.gather(1, order.expand_as(backward))], dim=2)


class ConvolutionEncoder(TextEncoder):
    """Encoder of parallel convolutions of several widths with ReLU (Jain & Wallace 2019).

    Each token has one hidden state.

    Args:
        kernels: Widths of the convolutions in tokens, all odd, so that a window is centred on its token.
        filters: Number of filters of each width.

    Raises:
        UserError: A width is even, or there is none.
    """

    @checked
    def __init__(self, kernels: tuple[int, ...] = (1, 3, 5, 7), filters: Positive = 32) -> None:
        super().__init__()
        if not kernels or any(kernel < 1 or kernel % 2 == 0 for kernel in kernels):
            raise UserError(
                f"{setting('model.encoder.init_args.kernels')} is {list(kernels)}, but must be one or more odd "
                "widths, such as [1,3,5,7]; an even width has no centre token."
            )
        self.kernels = kernels
        self.filters = filters
        self.size = filters * len(kernels)

    def build(self, input_size: int) -> None:
        self.convolutions = nn.ModuleList()
        for kernel in self.kernels:
            self.convolutions.append(nn.Conv1d(input_size, self.filters, kernel, padding=kernel // 2))

    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        # A window at the end of a text reaches into the padding, which may hold perturbed embeddings.
        read = embedded.masked_fill(~mask[..., None], 0).mT
        filtered = [convolution(read) for convolution in self.convolutions]
        return torch.cat(filtered, dim=1).relu().mT


class AverageEncoder(TextEncoder):
    """Encoder with a linear layer and tanh for each word by itself, the "Average" of Jain & Wallace (2019).

    Args:
        size: Size of a hidden state.
    """

    @checked
    def __init__(self, size: Positive = 256) -> None:
        super().__init__()
        self.size = size

    def build(self, input_size: int) -> None:
        self.linear = nn.Linear(input_size, self.size)

    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.linear(embedded).tanh()
        return states


class NoEncoder(TextEncoder):
    """Encoder that returns embedded words as hidden states, the "noenc" of Serrano & Smith (2019)."""

    def build(self, input_size: int) -> None:
        self.size = input_size

    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        return embedded


class Attention(nn.Module, ABC):
    """Base of attention over hidden states: the softmax of one score for each position.

    The constructor of a subclass takes only its options, because sizes are not known yet. Subclasses implement
    `build`, which creates the parameters, and `scores`; those with another function than softmax override
    `normalise`.
    """

    @abstractmethod
    def build(self, size: int) -> None:
        """Create the parameters of the attention.

        Args:
            size: Size of a hidden state.
        """

    @abstractmethod
    def scores(self, hidden: Tensor) -> Tensor:
        """Return the scores `[batch, positions]`, before the softmax, for hidden states `[batch, positions, size]`."""

    def normalise(self, scores: Tensor) -> Tensor:
        """Return weights that sum to one in each row, for scores, both `[batch, positions]`.

        Positions outside the mask have the lowest number as their score; in an empty row these are all positions.
        """
        return scores.softmax(-1)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return attention weights `[batch, positions]`, which sum to one in each row.

        A row in which `mask` is False everywhere has zeros.

        Args:
            hidden: Hidden states `[batch, positions, size]`.
            mask: Bool `[batch, positions]`, True for positions that may get weight; all others get 0.
        """
        scores = self.scores(hidden)
        # Not -inf: a row with an empty mask would be NaN, which anomaly detection reports.
        weights = self.normalise(scores.masked_fill(~mask, torch.finfo(scores.dtype).min))
        return weights.masked_fill(~mask, 0)


class AdditiveAttention(Attention):
    """Attention with scores `vᵀ tanh(W h_t + b)`, without a query (Bahdanau et al. 2015; Jain & Wallace 2019, §2).

    Args:
        size: Number of rows of W; None for half the size of a hidden state, as in Jain & Wallace's code.
    """

    @checked
    def __init__(self, size: Positive | None = None) -> None:
        super().__init__()
        self.size = size

    def build(self, size: int) -> None:
        between = self.size or max(1, size // 2)
        self.projection = nn.Linear(size, between)
        self.query = nn.Linear(between, 1, bias=False)

    def scores(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.query(self.projection(hidden).tanh())
        return scores.squeeze(-1)


class DotAttention(Attention):
    """Attention with scores `h_t · q / √d` (Jain & Wallace 2019, §2).

    q is a learned vector, and d the size of a hidden state.
    """

    def build(self, size: int) -> None:
        self.query = nn.Linear(size, 1, bias=False)

    def scores(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.query(hidden)
        return scores.squeeze(-1) / math.sqrt(hidden.size(-1))


class UniformAttention(Attention):
    """Attention with the same weight on every position, a baseline (Wiegreffe & Pinter 2019)."""

    def build(self, size: int) -> None:
        """Do nothing, because uniform attention has no parameters."""

    def scores(self, hidden: Tensor) -> Tensor:
        return hidden.new_zeros(hidden.shape[:-1])


class EntmaxAttention(Attention):
    """Sparse attention: α-entmax in place of the softmax, which gives most words a weight of exactly 0.

    α is 1 for softmax, 2 for sparsemax (Martins & Astudillo 2016), and 1.5 for entmax 1.5 (Peters et al. 2019). The
    higher α, the fewer words have weight.

    Args:
        scores: Scores of `AdditiveAttention` or of `DotAttention`.
        alpha: α, from 1 to 2; if it is learned, its first value, between 1 and 2.
        learned: Train α as 1 + sigmoid(a), with a parameter a (Correia et al. 2019, §3.2), but at least 1.001, for
            the bisection divides by α − 1. It is logged after each epoch, and reported in the audit of `test`.

    Raises:
        UserError: A learned α would begin at 1 or 2, which a sigmoid does not reach.
    """

    @checked
    def __init__(
        self,
        scores: Literal["additive", "dot"] = "additive",
        alpha: Annotated[float, Bounds(least=1, most=2)] = 1.5,
        learned: bool = False,
    ) -> None:
        super().__init__()
        if learned and alpha in (1, 2):
            raise UserError(
                f"EntmaxAttention: alpha is {alpha:g}, but a learned α must begin between 1 and 2, such as 1.5."
            )
        self.scored: Attention = AdditiveAttention() if scores == "additive" else DotAttention()
        self.fixed = alpha
        self.learned = learned

    def build(self, size: int) -> None:
        self.scored.build(size)
        if self.learned:
            self.exponent = nn.Parameter(torch.tensor(self.fixed - 1).logit())

    def scores(self, hidden: Tensor) -> Tensor:
        return self.scored.scores(hidden)

    @property
    def alpha(self) -> float | Tensor:
        """Value of α, from 1 to 2; a scalar tensor with gradient if it is learned."""
        if self.learned:
            return 1 + self.exponent.sigmoid().clamp(min=1e-3)
        return self.fixed

    def normalise(self, scores: Tensor) -> Tensor:
        # Not in half precision, which autocast leaves to softmax alone. Entmax does not change if all scores shift;
        # unshifted, the scores of an empty row would be too large for the bisection, which would return nan.
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        scores = scores - scores.detach().amax(-1, keepdim=True)
        weights: Tensor
        if self.learned or self.fixed not in (1, 1.5, 2):
            weights = entmax_bisect(scores, self.alpha)
        elif self.fixed == 1:
            weights = scores.softmax(-1)
        elif self.fixed == 1.5:
            weights = entmax15(scores)
        else:
            weights = sparsemax(scores)
        return weights
