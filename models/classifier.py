"""Embedding, encoder, attention, decision: the flat classifier of the papers on attention as explanation."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from datamodules import TextBatch
from models.base import TextClassifier, TextSizes
from models.interface import WORD, Level, ModelError, Output, checked_levels
from models.layers import DEFAULT_EMBEDDING, Attention, EmbeddingSpec, TextEncoder, WordEmbedding
from models.regularizers import Encoded, Regularizer, RegularizerSizes
from results.errors import check_numbers
from training import Mean


class AttentionClassifier(TextClassifier):
    """Word embeddings `e`, hidden states `h`, one attention over them, and a linear decision.

    The model of Jain & Wallace (2019), of Tutek & Šnajder (2020) with their regularisers, and the flat one (FLAN) of
    Serrano & Smith (2019). Delimiters are read, but get no attention.

    The other options are those of `TextClassifier`.

    Args:
        encoder: makes the hidden states.
        attention: weighs them.
        embedding: of the words.
        regularizers: applied in their order; each may change the hidden states, add a term to the loss, or both.
        dropout: of the attended sum.

    Raises:
        ModelError: a regulariser is named twice.
    """

    objects: ClassVar[tuple[str, ...]] = ("encoder", "attention", "embedding", "regularizers")

    def __init__(
        self,
        encoder: TextEncoder,
        attention: Attention,
        embedding: EmbeddingSpec = DEFAULT_EMBEDDING,
        regularizers: Sequence[Regularizer] = (),
        dropout: float = 0.0,
        **training: Any,  # noqa: ANN401 # those of TextClassifier
    ) -> None:
        super().__init__(**training)
        check_numbers(self, least=0, below=1, dropout=dropout)
        names = [regularizer.name for regularizer in regularizers]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ModelError(f"--model.init_args.regularizers: {twice[0]} stands there twice; name it once.")
        self.spec = embedding
        self.encoder, self.attention = encoder, attention
        self.regularizers = nn.ModuleList(regularizers)
        self.embedded_dropout, self.dropout = nn.Dropout(embedding.dropout), nn.Dropout(dropout)

    @property
    def term_names(self) -> Sequence[str]:  # type: ignore[override]
        """Names of the regularisers that add to the loss."""
        return [each.name for each in self._regularizers if type(each).term is not Regularizer.term]

    @property
    def _regularizers(self) -> list[Regularizer]:
        return list(self.regularizers)  # type: ignore[arg-type]

    def build(self, sizes: TextSizes) -> None:
        words = sizes.vocabulary
        self.embedding = WordEmbedding(self.spec, words, sizes.vectors, sizes.known, sizes.vector_size)
        embedded = self.embedding.size
        self.encoder.build(embedded)
        hidden = averaged = self.encoder.size
        for regularizer in self._regularizers:
            regularizer.build(RegularizerSizes(embedded, hidden, len(words), words.mask))
            averaged = regularizer.output_size(embedded, averaged)
        self.attention.build(averaged)
        self.decision = nn.Linear(averaged, sizes.classes)

    def _encode(self, embedded: Tensor, mask: Tensor) -> Tensor:
        # Dropped for the encoder alone: residual and tying are about the word itself.
        hidden: Tensor = self.encoder(self.embedded_dropout(embedded), mask)
        return hidden

    def _run(
        self, batch: TextBatch, embedded: Tensor | None = None, imposed: Mapping[str, Tensor] | None = None
    ) -> tuple[Output, Encoded]:
        tokens, mask, words = batch.tokens, batch.mask, batch.words
        embedded = self.embedding(tokens) if embedded is None else embedded
        hidden = averaged = self._encode(embedded, mask)
        for regularizer in self._regularizers:
            averaged = regularizer.transform(embedded, averaged)
        weights = checked_levels(imposed or {}, (WORD,)).get(WORD)
        if weights is None:
            weights = self.attention(averaged, words)
        output = Output(self._decide(averaged, weights), {WORD: Level(weights, words, averaged)}, embedded)

        def encode(other: Tensor) -> Tensor:
            return self._encode(self.embedding(other), mask)

        return output, Encoded(tokens, words, embedded, hidden, averaged, encode)

    def _decide(self, averaged: Tensor, weights: Tensor) -> Tensor:
        if self.training:  # dropout is of the attended sum
            logits: Tensor = self.decision(self.dropout(torch.einsum("...bt,btd->...bd", weights, averaged)))
            return logits
        # The decision is linear: taken for each word first, it is cheaper where many weights are tried on one text.
        words = nn.functional.linear(averaged, self.decision.weight)
        return torch.einsum("...bt,btc->...bc", weights, words) + self.decision.bias

    def forward(
        self, batch: TextBatch, *, embedded: Tensor | None = None, imposed: Mapping[str, Tensor] | None = None
    ) -> Output:
        return self._run(batch, embedded, imposed)[0]

    def decide(self, output: Output, imposed: Mapping[str, Tensor]) -> Tensor:
        level = output.levels[WORD]
        return self._decide(level.hidden, checked_levels(imposed, (WORD,)).get(WORD, level.weights))

    def loss_terms(self, batch: TextBatch) -> tuple[Output, Mapping[str, Mean]]:
        output, encoded = self._run(batch)
        terms = {regularizer.name: regularizer.term(encoded) for regularizer in self._regularizers}
        return output, {name: term for name, term in terms.items() if term is not None}
