"""Classifiers over word embeddings: the flat classifier, and the hierarchical attention network (HAN)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attention_probing.datamodules import TextBatch
from attention_probing.models.layers import DEFAULT_EMBEDDING, Attention, EmbeddingSpec, TextEncoder, WordEmbedding
from attention_probing.models.losses import Mean
from attention_probing.models.regularizers import Encoded, Regularizer
from attention_probing.models.text_classifier import (
    SENTENCE,
    WORD,
    Level,
    Output,
    TextClassifier,
    TextSizes,
    check_levels,
)
from attention_probing.results.errors import UserError, setting
from attention_probing.results.options import Probability

LEVELS = (WORD, SENTENCE)
SENTENCES_OF_PASS = 64  # sentences that are encoded together


class AttentionClassifier(TextClassifier):
    """A text classifier: word embeddings `e`, hidden states `h`, attention over them, and a linear layer.

    This is the model of Jain & Wallace (2019), of Tutek & Šnajder (2020) with their regularisers, and the flat model
    (FLAN) of Serrano & Smith (2019). The encoder reads delimiters, but they get no attention. `TextClassifier` lists
    further options.

    Args:
        encoder: Encoder that turns embedded words into hidden states.
        attention: Attention over the hidden states.
        embedding: Options of the word embeddings.
        regularizers: Regularisers, applied in this order; each may change the hidden states, add a term to the loss,
            or both.
        dropout: Dropout of the vector of the text, the mean of the hidden states weighted by attention.

    Attributes:
        guide: Function that returns the weights to impose on a batch where `forward` is given none; None if the
            classifier attends by itself.

    Raises:
        UserError: A regulariser is named twice.
    """

    guide: Callable[[TextBatch], Mapping[str, Tensor]] | None = None
    objects: ClassVar[tuple[str, ...]] = ("encoder", "attention", "embedding", "regularizers")

    def __init__(
        self,
        encoder: TextEncoder,
        attention: Attention,
        embedding: EmbeddingSpec = DEFAULT_EMBEDDING,
        regularizers: Sequence[Regularizer] = (),
        dropout: Probability = 0.0,
        **training: Any,  # noqa: ANN401 # options of TextClassifier
    ) -> None:
        super().__init__(**training)
        names = [regularizer.name for regularizer in regularizers]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise UserError(
                f"{setting('model.regularizers')} contains several regularizers called {repeated[0]}. Keep one of them."
            )
        self.spec = embedding
        self.encoder = encoder
        self.attention = attention
        self.regularizers = nn.ModuleList(regularizers)
        self._regularizers = tuple(regularizers)  # with their own type
        self.term_names = [each.name for each in regularizers if type(each).term is not Regularizer.term]
        self.embedded_dropout = nn.Dropout(embedding.dropout)
        self.dropout = nn.Dropout(dropout)

    def build(self, sizes: TextSizes) -> None:
        words = sizes.vocabulary
        self.embedding = WordEmbedding(self.spec, words, sizes.vectors, sizes.known, sizes.vector_size)
        embedded = self.embedding.size
        self.encoder.build(embedded)
        hidden = averaged = self.encoder.size
        for regularizer in self._regularizers:
            regularizer.build(embedded, hidden, words)
            averaged = regularizer.output_size(embedded, averaged)
        self.attention.build(averaged)
        self.decision = nn.Linear(averaged, sizes.classes)

    def _encode(self, embedded: Tensor, mask: Tensor) -> Tensor:
        # Dropout for the encoder alone: residual and tying use the word itself.
        hidden: Tensor = self.encoder(self.embedded_dropout(embedded), mask)
        return hidden

    def _run(
        self, batch: TextBatch, embedded: Tensor | None = None, imposed: Mapping[str, Tensor] | None = None
    ) -> tuple[Output, Encoded]:
        if embedded is None:
            embedded = self.embedding(batch.tokens)
        hidden = self._encode(embedded, batch.mask)
        averaged = hidden
        for regularizer in self._regularizers:
            averaged = regularizer.transform(embedded, averaged)
        if imposed is None and self.guide is not None:
            imposed = self.guide(batch)
        weights = check_levels(imposed or {}, (WORD,)).get(WORD)
        if weights is None:
            weights = self.attention(averaged, batch.words)
        level = Level(weights, batch.words, averaged)
        output = Output(self._decide(averaged, weights), {WORD: level}, embedded)

        def encode(tokens: Tensor) -> Tensor:
            return self._encode(self.embedding(tokens), batch.mask)

        return output, Encoded(batch.tokens, batch.words, embedded, hidden, averaged, encode)

    def _decide(self, averaged: Tensor, weights: Tensor) -> Tensor:
        if self.training:
            vector = torch.einsum("...bt,btd->...bd", weights, averaged)
            logits: Tensor = self.decision(self.dropout(vector))
            return logits
        # The decision is linear: applied to each word first, it is cheaper for many weights on one text.
        words = nn.functional.linear(averaged, self.decision.weight)
        return torch.einsum("...bt,btc->...bc", weights, words) + self.decision.bias

    def forward(
        self, batch: TextBatch, *, embedded: Tensor | None = None, imposed: Mapping[str, Tensor] | None = None
    ) -> Output:
        return self._run(batch, embedded, imposed)[0]

    def decide(self, output: Output, imposed: Mapping[str, Tensor]) -> Tensor:
        level = output.levels[WORD]
        weights = check_levels(imposed, (WORD,)).get(WORD, level.weights)
        return self._decide(level.hidden, weights)

    def loss_terms(self, batch: TextBatch) -> tuple[Output, Mapping[str, Mean]]:
        output, encoded = self._run(batch)
        terms = {}
        for regularizer in self._regularizers:
            term = regularizer.term(encoded)
            if term is not None:
                terms[regularizer.name] = term
        return output, terms


class HierarchicalClassifier(TextClassifier):
    """A text classifier with two levels of encoder and attention: over words and over sentences.

    This is the network of Yang et al. (2016), as analysed by Serrano & Smith (2019). The first level turns the words
    of each sentence into a sentence vector, the second turns the sentence vectors into a vector of the text. Each
    sentence is encoded by itself, so no hidden state of a word depends on another sentence. Delimiters belong to no
    sentence and are not read; an attention weight imposed on a delimiter has no effect. The levels of attention are
    `word`, whose weights sum to one in each sentence, and `sentence`. `TextClassifier` lists further options.

    Args:
        encoder: Encoder of the words of a sentence.
        attention: Attention over the words of a sentence.
        sentence_encoder: Encoder of the sentences of a text.
        sentence_attention: Attention over the sentences of a text.
        embedding: Options of the word embeddings.
        dropout: Dropout of the vector of the text.
    """

    objects: ClassVar[tuple[str, ...]] = ("encoder", "attention", "sentence_encoder", "sentence_attention", "embedding")

    def __init__(
        self,
        encoder: TextEncoder,
        attention: Attention,
        sentence_encoder: TextEncoder,
        sentence_attention: Attention,
        embedding: EmbeddingSpec = DEFAULT_EMBEDDING,
        dropout: Probability = 0.0,
        **training: Any,  # noqa: ANN401 # options of TextClassifier
    ) -> None:
        super().__init__(**training)
        self.spec = embedding
        self.encoder = encoder
        self.attention = attention
        self.sentence_encoder = sentence_encoder
        self.sentence_attention = sentence_attention
        self.embedded_dropout = nn.Dropout(embedding.dropout)
        self.dropout = nn.Dropout(dropout)

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
        imposed = check_levels(imposed or {}, LEVELS)
        if embedded is None:
            embedded = self.embedding(batch.tokens)
        hidden, weights = self._read(self.embedded_dropout(embedded), batch.sentences)
        words = Level(imposed.get(WORD, weights), batch.sentences >= 0, hidden, batch.sentences)
        sentences = self._sentences(words, words.weights)
        if SENTENCE in imposed:
            sentences = replace(sentences, weights=imposed[SENTENCE])
        logits = self._decide(sentences.hidden, sentences.weights)
        return Output(logits, {WORD: words, SENTENCE: sentences}, embedded)

    def decide(self, output: Output, imposed: Mapping[str, Tensor]) -> Tensor:
        imposed = check_levels(imposed, LEVELS)
        words = output.levels[WORD]
        sentences = output.levels[SENTENCE]
        if WORD in imposed:
            sentences = self._sentences(words, imposed[WORD])
        return self._decide(sentences.hidden, imposed.get(SENTENCE, sentences.weights))

    def _read(self, embedded: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states `[batch, time, dim]` and weights `[batch, time]` of words, each sentence by itself."""
        in_sentence = groups >= 0
        lengths = _members(groups).sum(2)
        lengths = lengths[lengths > 0]
        # All words and all sentences one after the other, in the order of the texts.
        flat = embedded[in_sentence]
        starts = lengths.cumsum(0) - lengths
        places: list[Tensor] = []
        states: list[Tensor] = []
        weights: list[Tensor] = []
        # Sentences of similar length are encoded together, for less padding.
        for sentences in torch.split(lengths.argsort(), SENTENCES_OF_PASS):
            offsets = torch.arange(int(lengths[sentences[-1]]), device=groups.device)
            mask = offsets < lengths[sentences, None]
            words = (starts[sentences, None] + offsets).masked_fill(~mask, 0)
            encoded = self.encoder(nn.functional.embedding(words, flat), mask)
            places.append(words[mask])
            states.append(encoded[mask])
            weights.append(self.attention(encoded, mask)[mask])
        order = torch.cat(places).argsort()
        hidden = states[0].new_zeros(*groups.shape, self.encoder.size)
        hidden[in_sentence] = torch.cat(states)[order]
        attended = weights[0].new_zeros(groups.shape)
        attended[in_sentence] = torch.cat(weights)[order]
        return hidden, attended

    def _sentences(self, words: Level, weights: Tensor) -> Level:
        """Return the level of sentences, `[..., batch, sentences]`, under weights of words, `[..., batch, time]`."""
        assert words.groups is not None
        members = _members(words.groups)
        vectors = torch.einsum("...bst,btd->...bsd", weights[..., None, :] * members, words.hidden)
        mask = members.any(2).expand(vectors.shape[:-1])
        states = self.sentence_encoder(vectors.flatten(0, -3), mask.flatten(0, -2))
        states = states.view(*mask.shape, self.sentence_encoder.size)
        attended = self.sentence_attention(states.flatten(0, -3), mask.flatten(0, -2))
        return Level(attended.view(mask.shape), mask, states)

    def _decide(self, hidden: Tensor, weights: Tensor) -> Tensor:
        logits: Tensor = self.decision(self.dropout(torch.einsum("...bs,...bsd->...bd", weights, hidden)))
        return logits


def _members(groups: Tensor) -> Tensor:
    """Return the words of each sentence, bool `[batch, sentences, time]`, from the sentence of each word."""
    numbers = torch.arange(int(groups.max()) + 1, device=groups.device)
    return groups[:, None] == numbers[:, None]
