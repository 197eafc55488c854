"""The flat and the hierarchical classifier against slow ones that read words and sentences one by one."""

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import pytest
import torch
from entmax import entmax_bisect
from torch import Tensor

from attention_probing.datamodules import TextBatch
from attention_probing.models import classifiers
from attention_probing.models.classifiers import AttentionClassifier, HierarchicalClassifier
from attention_probing.models.layers import (
    AdditiveAttention,
    Attention,
    AverageEncoder,
    ConvolutionEncoder,
    DotAttention,
    EmbeddingSpec,
    EntmaxAttention,
    NoEncoder,
    RecurrentEncoder,
    TextEncoder,
    UniformAttention,
)
from attention_probing.models.regularizers import Concat, MaskedLanguageModel, Regularizer, Residual, Tying
from attention_probing.models.text_classifier import TextClassifier, TextSizes
from attention_probing.results.errors import UserError
from tests.models.batches import VOCABULARY, batch_of

# Three sentences, one word, and two sentences; <s> and </s> around the first text, <sep> within the last.
TEXTS = [[3, 7, 8, 9, 10, 11, 12, 4], [10], [11, 12, 7, 5, 13, 14, 8]]
SENTENCES = [[-1, 0, 0, 0, 1, 2, 2, -1], [0], [0, 0, 0, -1, 1, 1, 1]]
SPECIAL = [[number < 0 for number in numbers] for numbers in SENTENCES]


def texts(time: int | None = None) -> TextBatch:
    return batch_of(TEXTS, time=time, special=SPECIAL, sentences=SENTENCES)


def flat(
    encoder: TextEncoder | None = None,
    attention: Attention | None = None,
    *regularizers: Regularizer,
    **options: Any,  # noqa: ANN401
) -> AttentionClassifier:
    """With embedded words and hidden states of 6 numbers."""
    encoder, attention = encoder or RecurrentEncoder(hidden=3), attention or AdditiveAttention()
    return AttentionClassifier(encoder, attention, EmbeddingSpec(size=4, project=6), regularizers, **options)


def hierarchical(*parts: Any, **options: Any) -> HierarchicalClassifier:  # noqa: ANN401
    gru = RecurrentEncoder("gru", 3), AdditiveAttention(), RecurrentEncoder("gru", 2), AdditiveAttention()
    words, over_words, sentences, over_sentences = parts or gru
    return HierarchicalClassifier(words, over_words, sentences, over_sentences, EmbeddingSpec(size=6), **options)


FLAT: dict[str, Callable[[], TextClassifier]] = {
    "lstm": flat,
    "gru": lambda: flat(RecurrentEncoder("gru", 3), DotAttention()),
    "uniform": lambda: flat(RecurrentEncoder("lstm", 3), UniformAttention()),
    "convolution": lambda: flat(ConvolutionEncoder((1, 3), 3), AdditiveAttention()),
    "average": lambda: flat(AverageEncoder(6), DotAttention()),
    "none": lambda: flat(NoEncoder(), AdditiveAttention()),
    "sparse": lambda: flat(None, EntmaxAttention("dot", learned=True)),
    "concat": lambda: flat(None, DotAttention(), Concat()),
    "residual": lambda: flat(None, None, Residual()),
    "residual and concat": lambda: flat(None, None, Residual(), Concat()),
    "terms": lambda: flat(None, DotAttention(), Tying(), MaskedLanguageModel()),
}
HIERARCHICAL: dict[str, Callable[[], TextClassifier]] = {
    "of rnn": hierarchical,
    "of convolutions": lambda: hierarchical(
        ConvolutionEncoder((1, 3), 3), DotAttention(), ConvolutionEncoder((3,), 5), DotAttention()
    ),
    "of none": lambda: hierarchical(NoEncoder(), AdditiveAttention(), NoEncoder(), UniformAttention()),
    "of averages": lambda: hierarchical(AverageEncoder(4), UniformAttention(), AverageEncoder(5), AdditiveAttention()),
    "of sparse": lambda: hierarchical(
        AverageEncoder(4), EntmaxAttention(alpha=2), AverageEncoder(5), EntmaxAttention()
    ),
}
KINDS = FLAT | HIERARCHICAL
each_kind = pytest.mark.parametrize("kind", KINDS)
one_of_each = pytest.mark.parametrize("kind", ["lstm", "of rnn"])


def built(model: TextClassifier) -> TextClassifier:
    torch.manual_seed(0)
    model.build(TextSizes(3, VOCABULARY))
    return model.eval()


def read(encoder: TextEncoder, embedded: Tensor) -> Tensor:
    """States of one sequence by itself."""
    states: Tensor = encoder(embedded[None], torch.ones(1, len(embedded), dtype=torch.bool))[0]
    return states


def distribution(attention: Attention, states: Tensor) -> Tensor:
    if isinstance(attention, EntmaxAttention):
        found: Tensor = entmax_bisect(attention.scores(states[None])[0], torch.as_tensor(attention.alpha).item())
        return found
    exponents = attention.scores(states[None])[0].exp()
    return exponents / exponents.sum()


def average(weights: Tensor, states: Tensor) -> Tensor:
    total = torch.zeros(states.size(1))
    for weight, state in zip(weights, states, strict=False):
        total = total + weight * state
    return total


def slowly(
    model: TextClassifier, embedded: Tensor, row: int, imposed: Mapping[str, Tensor] | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of one text, and its weights by level.

    Embedded words are those of the text, `[time, size]`; imposed weights `[positions]`.
    """
    imposed, numbers = imposed or {}, SENTENCES[row]
    of_words, vectors = torch.zeros(len(numbers)), []
    if isinstance(model, AttentionClassifier):
        states = read(model.encoder, embedded)
        for regularizer in model.regularizers:
            if isinstance(regularizer, Concat):
                states = torch.cat([states, embedded], dim=1)
            elif isinstance(regularizer, Residual):
                states = states + embedded
        words = torch.tensor([place for place, number in enumerate(numbers) if number >= 0])
        weights = imposed.get("word", of_words.index_put((words,), distribution(model.attention, states[words])))
        return model.decision.weight @ average(weights, states) + model.decision.bias, {"word": weights}
    assert isinstance(model, HierarchicalClassifier)
    for sentence in range(max(numbers) + 1):
        places = torch.tensor([place for place, number in enumerate(numbers) if number == sentence])
        states = read(model.encoder, embedded[places])
        weights = imposed["word"][places] if "word" in imposed else distribution(model.attention, states)
        of_words = of_words.index_put((places,), weights)
        vectors.append(average(weights, states))
    states = read(model.sentence_encoder, torch.stack(vectors))
    of_sentences = imposed.get("sentence", distribution(model.sentence_attention, states))
    logits = model.decision.weight @ average(of_sentences, states) + model.decision.bias
    return logits, {"word": of_words, "sentence": of_sentences}


def embedded_words(model: TextClassifier, row: int) -> Tensor:
    words: Tensor = model.get_submodule("embedding")(torch.tensor(TEXTS[row]))
    return words


def random_weights(model: TextClassifier, *leading: int) -> dict[str, Tensor]:
    """No distributions at all, and more than nothing everywhere: in the padding and on delimiters, too."""
    random = torch.Generator().manual_seed(9)
    levels = model(texts()).levels
    return {name: torch.rand(*leading, *levels[name].weights.shape, generator=random) * 3 - 1 for name in levels}


@each_kind
@pytest.mark.parametrize("together", [64, 2])
@torch.no_grad()
def test_logits_and_weights_are_those_of_texts_read_one_by_one(
    kind: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classifiers, "SENTENCES_OF_PASS", together)
    model, batch = built(KINDS[kind]()), texts(time=8 if together == 64 else 40)
    output = model(batch)
    assert list(output.levels) == (["word"] if kind in FLAT else ["word", "sentence"])
    assert output.embedded.shape == (*batch.tokens.shape, 6)
    for row in range(len(TEXTS)):
        logits, weights = slowly(model, embedded_words(model, row), row)
        torch.testing.assert_close(output.logits[row], logits, atol=1e-6, rtol=1e-5)
        for name, own in weights.items():
            torch.testing.assert_close(output.levels[name].weights[row, : len(own)], own, atol=1e-6, rtol=1e-5)
    assert torch.equal(output.levels["word"].mask, batch.words)
    for level in output.levels.values():
        assert (level.weights[~level.mask] == 0).all()


@each_kind
@torch.no_grad()
def test_imposed_weights_are_used_exactly_at_each_level_alone_and_at_all(kind: str) -> None:
    model, batch = built(KINDS[kind]()), texts()
    every = random_weights(model)
    for levels in [some for size in range(len(every) + 1) for some in combinations(every, size)]:
        imposed = {name: every[name] for name in levels}
        output = model(batch, imposed=imposed)
        decided = model.decide(model(batch), imposed)
        for row in range(len(TEXTS)):
            of_text = {name: weights[row] for name, weights in imposed.items()}
            logits, weights = slowly(model, embedded_words(model, row), row, of_text)
            torch.testing.assert_close(output.logits[row], logits, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(decided[row], logits, atol=1e-5, rtol=1e-4)
            for name in weights.keys() - imposed.keys():
                found = output.levels[name].weights[row, : len(weights[name])]
                torch.testing.assert_close(found, weights[name])
        assert all(torch.equal(output.levels[name].weights, weights) for name, weights in imposed.items())


@each_kind
@torch.no_grad()
def test_many_imposed_weights_at_once_decide_as_one_by_one(kind: str) -> None:
    model = built(KINDS[kind]())
    output, every = model(texts()), random_weights(model, 4, 2)
    for imposed in (every, *({name: weights} for name, weights in every.items())):
        logits = model.decide(output, imposed)
        assert logits.shape == (4, 2, 3, 3)
        for first, second in torch.cartesian_prod(torch.arange(4), torch.arange(2)).tolist():
            one = model.decide(output, {name: weights[first, second] for name, weights in imposed.items()})
            torch.testing.assert_close(logits[first, second], one, atol=1e-5, rtol=1e-5)
    if kind in HIERARCHICAL:
        mixed = every | {"sentence": every["sentence"][0, 0]}
        one = model.decide(output, mixed | {"word": every["word"][3, 1]})
        torch.testing.assert_close(model.decide(output, mixed)[3, 1], one, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "levels"), [("lstm", "word"), ("of rnn", "word, sentence")])
def test_weights_for_a_level_that_is_not_there_are_refused(kind: str, levels: str) -> None:
    model, imposed = built(KINDS[kind]()), {"paragraph": torch.zeros(3, 8)}
    for attempt in (lambda: model(texts(), imposed=imposed), lambda: model.decide(model(texts()), imposed)):
        with pytest.raises(
            UserError, match=rf"No weights can be imposed on level 'paragraph'; .* levels are {levels}\.$"
        ):
            attempt()


@one_of_each
def test_other_embeddings_take_the_place_of_the_words_and_have_gradients_as_those_of_the_slow_model(kind: str) -> None:
    model, batch = built(KINDS[kind]()), texts()
    embedded = (1.5 * model.get_submodule("embedding")(batch.tokens)).detach().requires_grad_()
    output = model(batch, embedded=embedded)
    assert output.embedded is embedded
    logits = torch.stack([slowly(model, embedded[row, : len(text)], row)[0] for row, text in enumerate(TEXTS)])
    torch.testing.assert_close(output.logits, logits, atol=1e-6, rtol=1e-5)
    (found,) = torch.autograd.grad(output.logits[:, 1].sum(), embedded)
    (expected,) = torch.autograd.grad(logits[:, 1].sum(), embedded)
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-4)
    seen = batch.mask if kind in FLAT else batch.words  # delimiters of sentences are not read
    assert (found[~seen] == 0).all()
    assert (found[seen] != 0).all()


@pytest.mark.parametrize("make", [flat, hierarchical])
def test_no_attention_decays_and_everything_else_does(make: Callable[..., TextClassifier]) -> None:
    model = built(make(weight_decay=0.1))
    groups = model.configure_optimizers()["optimizer"].param_groups
    decays = {id(each): group["weight_decay"] for group in groups for each in group["params"]}
    for name, parameter in model.named_parameters():
        assert decays[id(parameter)] == (0.0 if name.startswith(("attention.", "sentence_attention.")) else 0.1)


def tied(differences: Tensor) -> float:
    """The mean over the texts of the mean over their words of the squares."""
    each = []
    for row, numbers in enumerate(SENTENCES):
        squares = [float(differences[row, place].square().sum()) for place, number in enumerate(numbers) if number >= 0]
        each.append(sum(squares) / len(squares))
    return sum(each) / len(each)


def test_the_same_regularizer_twice_is_refused() -> None:
    with pytest.raises(UserError, match=r"^`regularizers` contains several regularizers called tying"):
        flat(None, None, Tying(), Concat(), Tying(2.0))


def test_dropout_reaches_what_the_encoder_reads_but_not_the_word_that_is_tied() -> None:
    model = AttentionClassifier(NoEncoder(), UniformAttention(), EmbeddingSpec(size=50, dropout=0.5), [Tying()])
    batch = texts()
    output, terms = built(model).train().loss_terms(batch)
    words = model.embedding(batch.tokens).detach()
    assert (output.embedded == words).all()
    read = output.levels["word"].hidden[batch.mask]
    assert 0.3 < float((read == 0).float().mean()) < 0.7
    # Dropped entries are off by the word's own, the others, which are doubled, by as much again.
    assert float(terms["tying"].value.detach()) == pytest.approx(tied(words), rel=1e-5)
