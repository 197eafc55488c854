"""Word embeddings: random or pretrained, trained or frozen, and projected to another size where one is asked for."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from datamodules import Vocabulary
from models.interface import ModelError

SIZE = 300
SPREAD = 0.1


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

    def table(self, vocabulary: Vocabulary, vectors: Tensor | None, known: Tensor | None) -> "WordEmbedding":
        """What is asked for, for the words of a vocabulary; see `WordEmbedding`."""
        return WordEmbedding(len(vocabulary), vocabulary.pad, self.size, vectors, known, self.trainable, self.project)


class WordEmbedding(nn.Module):
    """A row for every word of a vocabulary, of which the padding's is zero and never trained.

    Rows without a vector are drawn from a normal distribution around 0 whose standard deviation is that of all entries
    of the known vectors, or 0.1 where no vector is known.

    Args:
        vocabulary_size: rows.
        pad: the row of the padding.
        size: of a row; None for that of the vectors, and 300 without any.
        vectors: float32 `[vocabulary_size, size]`, word vectors; None without.
        known: bool `[vocabulary_size]`, rows of `vectors` that are one; None for all.
        trainable: whether the rows are trained.
        project: size of an embedded word, by a linear map without a bias, so that the padding stays zero; it begins as
            an isometry (as an orthogonal projection, where that size is the smaller). None for the rows themselves.

    Attributes:
        size: of an embedded word.

    Raises:
        ModelError: the vectors have another size than was asked for.
    """

    def __init__(
        self,
        vocabulary_size: int,
        pad: int,
        size: int | None = None,
        vectors: Tensor | None = None,
        known: Tensor | None = None,
        trainable: bool = True,
        project: int | None = None,
    ) -> None:
        super().__init__()
        if vectors is None:
            rows = torch.randn(vocabulary_size, SIZE if size is None else size) * SPREAD
        elif size in (None, vectors.size(1)):
            given = torch.ones(vocabulary_size, dtype=torch.bool) if known is None else known
            spread = float(vectors[given].std(correction=0)) if given.any() else SPREAD
            rows = torch.where(given[:, None], vectors, torch.randn(vectors.shape) * spread)
        else:
            raise ModelError(
                f"The word vectors have {vectors.size(1)} dimensions, and {size} are asked for: leave "
                f"--model.init_args.embedding.size out (where a config names it: --model.init_args.embedding "
                f"'{{size: null}}'), or give other vectors (--data.init_args.vectors); a linear map to {size} is "
                f"--model.init_args.embedding.project {size}."
            )
        rows[pad] = 0
        self.rows = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
            rows, freeze=not trainable, padding_idx=pad
        )
        self.size = project or rows.size(1)
        self.projection = nn.Linear(rows.size(1), project, bias=False) if project else nn.Identity()
        if isinstance(self.projection, nn.Linear):
            # What the vectors know lies in their angles and distances: the map begins as one that keeps them.
            nn.init.orthogonal_(self.projection.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embedded words `[batch, time, size]` of tokens int64 `[batch, time]`; zero in the padding."""
        embedded: Tensor = self.projection(self.rows(tokens))
        return embedded
