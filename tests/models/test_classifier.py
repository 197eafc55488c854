"""The flat classifier against a slow one that reads texts one by one, with loops."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from datamodules import TextBatch
from models.base import TextSizes
from models.classifier import AttentionClassifier
from models.interface import ModelError
from models.layers import (
    AdditiveAttention,
    Attention,
    AverageEncoder,
    ConvolutionEncoder,
    DotAttention,
    EmbeddingSpec,
    NoEncoder,
    RecurrentEncoder,
    TextEncoder,
    UniformAttention,
)
from models.regularizers import Concat, Conicity, MaskedLanguageModel, Regularizer, Residual, Tying
from tests.models.batches import VOCABULARY, batch_of

TEXTS = ([7, 8, 9], [10], [11, 12, 7, 7, 13, 14])
ENCODERS: dict[str, Callable[[], TextEncoder]] = {
    "lstm": lambda: RecurrentEncoder("lstm", 3),
    "gru": lambda: RecurrentEncoder("gru", 3, layers=2),
    "one way": lambda: RecurrentEncoder("lstm", 6, bidirectional=False),
    "convolution": lambda: ConvolutionEncoder((1, 3), 3),
    "average": lambda: AverageEncoder(6),
    "none": NoEncoder,
}
ATTENTIONS: dict[str, Callable[[], Attention]] = {
    "additive": AdditiveAttention,
    "dot": DotAttention,
    "uniform": UniformAttention,
}


def classifier(
    encoder: TextEncoder | None = None,
    attention: Attention | None = None,
    regularizers: list[Regularizer] | None = None,
    weight_decay: float = 0.0,
) -> AttentionClassifier:
    """A built one, in evaluation mode, with embedded words and hidden states of 6 numbers."""
    torch.manual_seed(0)
    model = AttentionClassifier(
        encoder or RecurrentEncoder(hidden=3),
        attention or AdditiveAttention(),
        EmbeddingSpec(size=4, project=6),
        regularizers or [],
        weight_decay=weight_decay,
    )
    model.build(TextSizes(3, VOCABULARY))
    model.eval()
    return model


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_padding_more_changes_nothing(encoder: str, attention: str) -> None:
    model = classifier(ENCODERS[encoder](), ATTENTIONS[attention]())
    with torch.no_grad():
        alone = torch.cat([model(batch_of([text])).logits for text in TEXTS])
        together = model(batch_of(TEXTS))
        wide = model(batch_of(TEXTS, time=40))
    torch.testing.assert_close(together.logits, alone, atol=1e-6, rtol=0)
    torch.testing.assert_close(wide.logits, alone, atol=1e-6, rtol=0)
    weights, mask = wide.levels["word"].weights, wide.levels["word"].mask
    assert mask.sum(1).tolist() == [3, 1, 6]
    assert not weights[~mask].any()
    torch.testing.assert_close(weights.sum(1), torch.ones(3))


def by_hand(model: AttentionClassifier, text: list[int], weights: list[float] | None = None) -> Tensor:
    """Logits of one text, token by token."""
    e = list(model.embedding(torch.tensor([text]))[0])
    h = list(model.encoder(torch.stack(e)[None], torch.ones(1, len(text), dtype=torch.bool))[0])
    for regularizer in model.regularizers:
        if isinstance(regularizer, Concat):
            h = [torch.cat([of, word]) for of, word in zip(h, e, strict=True)]
        elif isinstance(regularizer, Residual):
            h = [of + word for of, word in zip(h, e, strict=True)]
    if weights is None:
        if isinstance(model.attention, AdditiveAttention):
            scores = [float(model.attention.query(torch.tanh(model.attention.projection(of)))) for of in h]
        else:
            assert isinstance(model.attention, DotAttention)
            scores = [float(of @ model.attention.query.weight[0]) / math.sqrt(len(of)) for of in h]
        total = sum(math.exp(score) for score in scores)
        weights = [math.exp(score) / total for score in scores]
    attended = torch.stack([weight * of for weight, of in zip(weights, h, strict=True)]).sum(0)
    logits: Tensor = model.decision(attended)
    return logits


@pytest.mark.parametrize("attention", ["additive", "dot"])
@pytest.mark.parametrize(
    ("regularizers", "size"),
    [([], 6), ([Concat], 12), ([Residual], 6), ([Residual, Concat], 12), ([Tying, MaskedLanguageModel, Conicity], 6)],
)
@torch.no_grad()
def test_it_is_the_sum_over_tokens_of_weights_times_states(
    attention: str, regularizers: list[type[Regularizer]], size: int
) -> None:
    model = classifier(attention=ATTENTIONS[attention](), regularizers=[kind() for kind in regularizers])
    output = model(batch_of(TEXTS))
    assert output.levels["word"].hidden.shape == (3, 6, size)
    assert output.embedded.shape == (3, 6, 6)
    for text, logits in zip(TEXTS, output.logits, strict=True):
        torch.testing.assert_close(logits, by_hand(model, text), atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_imposed_weights_are_used_as_they_are() -> None:
    model = classifier()
    batch = batch_of(TEXTS)
    own = model(batch)
    # Neither of one sum, nor nonnegative, nor zero where there is no word: what is imposed is not put right.
    strange = torch.randn(5, 2, 3, 6)
    decided = model.decide(own, {"word": strange})
    assert decided.shape == (5, 2, 3, 3)
    for place in ((0, 0), (4, 1), (2, 0)):
        imposed = model(batch, imposed={"word": strange[place]})
        assert (
            imposed.levels["word"].weights is strange[place] or (imposed.levels["word"].weights == strange[place]).all()
        )
        torch.testing.assert_close(decided[place], imposed.logits, atol=1e-6, rtol=1e-5)
    for text, row, logits in zip(TEXTS, strange[0, 0], decided[0, 0], strict=True):
        hidden_there = [float(weight) for weight in row[: len(text)]]
        torch.testing.assert_close(logits, by_hand(model, text, hidden_there), atol=1e-5, rtol=1e-4)
    assert (model.decide(own, {"word": own.levels["word"].weights}) == own.logits).all()
    assert (model.decide(own, {}) == own.logits).all()


def test_a_level_that_is_not_there_is_refused() -> None:
    model = classifier()
    batch = batch_of(TEXTS)
    for attempt in (
        lambda: model(batch, imposed={"sentence": torch.zeros(3, 6)}),
        lambda: model.decide(model(batch), {"sentence": torch.zeros(3, 6)}),
    ):
        with pytest.raises(ModelError, match="no attention sentence to impose weights on; there is word"):
            attempt()


def test_other_embeddings_take_the_place_of_the_words() -> None:
    model = classifier()
    batch, other = batch_of(TEXTS), batch_of([[13, 7, 8], [9], [8, 8, 8, 10, 11, 7]])
    with torch.no_grad():
        torch.testing.assert_close(
            model(batch, embedded=model(other).embedded).logits, model(other).logits, atol=1e-6, rtol=0
        )
    embedded = model(batch).embedded.detach().requires_grad_()
    model(batch, embedded=embedded).logits[:, 1].sum().backward()
    assert embedded.grad is not None
    assert embedded.grad[batch.mask].abs().sum(-1).gt(0).all()
    assert not embedded.grad[~batch.mask].any()


@torch.no_grad()
def test_delimiters_are_read_but_not_attended_to() -> None:
    model = classifier()
    start, end = VOCABULARY.start, VOCABULARY.end
    assert start is not None
    assert end is not None
    text = [start, 7, 8, end]
    batch = batch_of([text], special=[[True, False, False, True]])
    weights = model(batch).levels["word"].weights
    assert (weights > 0).tolist() == [[False, True, True, False]]
    assert not torch.allclose(model(batch).logits, model(batch_of([[7, 8]])).logits)


def test_terms_are_named_and_only_those_of_regularizers_that_have_one() -> None:
    model = classifier(regularizers=[Concat(), Tying(2.0), MaskedLanguageModel(), Conicity(0.5)])
    assert list(model.term_names) == ["tying", "mlm", "conicity"]
    output, terms = model.outcome(batch_of(TEXTS))
    assert list(terms) == ["tying", "mlm", "conicity"]
    assert all(term.shape == () for term in terms.values())
    mask = batch_of(TEXTS).mask
    with torch.no_grad():
        embedded = output.embedded.detach()
        hidden = model.encoder(embedded, mask)
    each = [
        sum(float(((hidden[i, t] - embedded[i, t]) ** 2).sum()) for t in range(len(text))) / len(text)
        for i, text in enumerate(TEXTS)
    ]
    assert float(terms["tying"].detach()) == pytest.approx(2 * sum(each) / 3, rel=1e-5)


def test_the_same_regularizer_twice_is_refused() -> None:
    with pytest.raises(ModelError, match=r"regularizers: tying stands there twice"):
        classifier(regularizers=[Tying(), Concat(), Tying(2.0)])


def test_attention_is_not_decayed_and_frozen_embeddings_are_not_trained() -> None:
    model = classifier(weight_decay=0.1)
    decayed, still = model.parameter_groups()
    assert (decayed["weight_decay"], still["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {names[id(one)] for one in still["params"]} == {
        "attention.projection.weight",
        "attention.projection.bias",
        "attention.query.weight",
    }
    assert len(decayed["params"]) + 3 == len(names)
    frozen = AttentionClassifier(NoEncoder(), UniformAttention(), EmbeddingSpec(size=4, trainable=False))
    frozen.build(TextSizes(2, VOCABULARY))
    (alone,) = frozen.parameter_groups()
    assert alone["params"] == [frozen.decision.weight, frozen.decision.bias]


def test_dropout_reaches_what_the_encoder_reads_but_not_the_word_that_is_tied() -> None:
    torch.manual_seed(0)
    model = AttentionClassifier(NoEncoder(), UniformAttention(), EmbeddingSpec(size=50, dropout=0.5), [Tying()])
    model.build(TextSizes(2, VOCABULARY))
    batch: TextBatch = batch_of(TEXTS)
    output, terms = model.train().outcome(batch)
    words = model.embedding(batch.tokens)
    assert (output.embedded == words).all()
    read = output.levels["word"].hidden[batch.mask]
    assert 0.3 < float((read == 0).float().mean()) < 0.7
    # Dropped entries are off by the word's own, the others, which are doubled, by as much again.
    per_text = [float(words[i, : len(text)].detach().square().sum()) / len(text) for i, text in enumerate(TEXTS)]
    assert float(terms["tying"].detach()) == pytest.approx(sum(per_text) / 3, rel=1e-5)
