"""Attention inside sentences, and over them: the hierarchical network (HAN) of Yang et al. (2016)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from datamodules import TextBatch
from models.base import TextClassifier, TextSizes
from models.interface import SENTENCE, WORD, Level, Output, checked_levels
from models.layers import DEFAULT_EMBEDDING, Attention, EmbeddingSpec, TextEncoder, WordEmbedding
from results.errors import check_numbers

LEVELS = (WORD, SENTENCE)
TOGETHER = 64  # sentences that are encoded in one go


class HierarchicalClassifier(TextClassifier):
    """Words to a vector of each sentence, sentences to a vector of the text, each by an encoder and an attention.

    The network of Yang et al. (2016), as Serrano & Smith (2019) take it apart. Each sentence is encoded by itself, so
    that no word knows of another sentence; delimiters belong to none and are not read. Levels: `word`, whose weights
    sum to one in each sentence, and `sentence`. A weight imposed on a token of no sentence has no effect.

    The other options are those of `TextClassifier`.

    Args:
        encoder: of the words of a sentence.
        attention: over the words of a sentence.
        sentence_encoder: of the sentences of a text.
        sentence_attention: over the sentences of a text.
        embedding: of the words.
        dropout: of the vector of the text.
    """

    objects: ClassVar[tuple[str, ...]] = ("encoder", "attention", "sentence_encoder", "sentence_attention", "embedding")

    def __init__(
        self,
        encoder: TextEncoder,
        attention: Attention,
        sentence_encoder: TextEncoder,
        sentence_attention: Attention,
        embedding: EmbeddingSpec = DEFAULT_EMBEDDING,
        dropout: float = 0.0,
        **training: Any,  # noqa: ANN401 # those of TextClassifier
    ) -> None:
        super().__init__(**training)
        check_numbers(self, least=0, below=1, dropout=dropout)
        self.spec = embedding
        self.encoder, self.attention = encoder, attention
        self.sentence_encoder, self.sentence_attention = sentence_encoder, sentence_attention
        self.embedded_dropout, self.dropout = nn.Dropout(embedding.dropout), nn.Dropout(dropout)

    def build(self, sizes: TextSizes) -> None:
        self.embedding = WordEmbedding(self.spec, sizes.vocabulary, sizes.vectors, sizes.known, sizes.vector_size)
        self.encoder.build(self.embedding.size)
        self.attention.build(self.encoder.size)
        self.sentence_encoder.build(self.encoder.size)
        self.sentence_attention.build(self.sentence_encoder.size)
        self.decision = nn.Linear(self.sentence_encoder.size, sizes.classes)

    def forward(
        self, batch: TextBatch, *, embedded: Tensor | None = None, imposed: Mapping[str, Tensor] | None = None
    ) -> Output:
        imposed = checked_levels(imposed or {}, LEVELS)
        embedded = self.embedding(batch.tokens) if embedded is None else embedded
        hidden, own = self._read(self.embedded_dropout(embedded), batch.sentences)
        words = Level(imposed.get(WORD, own), batch.sentences >= 0, hidden, batch.sentences)
        sentences = self._sentences(words, words.weights)
        sentences = replace(sentences, weights=imposed.get(SENTENCE, sentences.weights))
        return Output(self._decide(sentences.hidden, sentences.weights), {WORD: words, SENTENCE: sentences}, embedded)

    def decide(self, output: Output, imposed: Mapping[str, Tensor]) -> Tensor:
        imposed = checked_levels(imposed, LEVELS)
        words, sentences = output.levels[WORD], output.levels[SENTENCE]
        if WORD in imposed:
            sentences = self._sentences(words, imposed[WORD])
        return self._decide(sentences.hidden, imposed.get(SENTENCE, sentences.weights))

    def _read(self, embedded: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states `[batch, time, dim]` and weights `[batch, time]` of words, each sentence by itself."""
        words, lengths = groups >= 0, _members(groups).sum(2)
        # One after the other, in the order of the texts: the words, and the sentences that they make up.
        flat, lengths = embedded[words], lengths[lengths > 0]
        starts = lengths.cumsum(0) - lengths
        found = []
        by_length = lengths.argsort()  # those of like length together: the longest pads all others to its own
        for some in (by_length[start : start + TOGETHER] for start in range(0, len(by_length), TOGETHER)):
            within = torch.arange(int(lengths[some[-1]]), device=groups.device)
            places = within < lengths[some, None]
            numbers = (starts[some, None] + within).masked_fill(~places, 0)
            states = self.encoder(nn.functional.embedding(numbers, flat), places)
            found.append((numbers[places], states[places], self.attention(states, places)[places]))
        order, *values = (torch.cat(parts) for parts in zip(*found, strict=True))
        hidden, weights = (value.new_zeros(*words.shape, *value.shape[1:]) for value in values)
        hidden[words], weights[words] = (value[order.argsort()] for value in values)
        return hidden, weights

    def _sentences(self, words: Level, weights: Tensor) -> Level:
        """The upper level, `[..., batch, sentences]`, under these weights of the words, `[..., batch, time]`."""
        assert words.groups is not None
        members = _members(words.groups)
        vectors = torch.einsum("...bst,btd->...bsd", weights[..., None, :] * members, words.hidden)
        mask = members.any(2).expand(vectors.shape[:-1])
        states = self.sentence_encoder(vectors.flatten(0, -3), mask.flatten(0, -2)).view(
            *mask.shape, self.sentence_encoder.size
        )
        attended = self.sentence_attention(states.flatten(0, -3), mask.flatten(0, -2))
        return Level(attended.view(mask.shape), mask, states)

    def _decide(self, hidden: Tensor, weights: Tensor) -> Tensor:
        logits: Tensor = self.decision(self.dropout(torch.einsum("...bs,...bsd->...bd", weights, hidden)))
        return logits


def _members(groups: Tensor) -> Tensor:
    """Bool `[batch, sentences, time]`, which words are of which sentence, from the sentence of each word."""
    numbers = torch.arange(int(groups.max()) + 1, device=groups.device)
    return groups[:, None] == numbers[:, None]
