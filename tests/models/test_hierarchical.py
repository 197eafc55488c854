"""The hierarchical classifier against a slow one that reads sentences one by one."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

import models.hierarchical
from datamodules import TextBatch
from models.base import TextSizes
from models.hierarchical import HierarchicalClassifier
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
from tests.models.batches import VOCABULARY, batch_of

# Three sentences, one word, and two sentences; <s> and </s> around the first text, <sep> within the last.
TEXTS = [[3, 7, 8, 9, 10, 11, 12, 4], [10], [11, 12, 7, 5, 13, 14, 8]]
SENTENCES = [[-1, 0, 0, 0, 1, 2, 2, -1], [0], [0, 0, 0, -1, 1, 1, 1]]
SPECIAL = [[number < 0 for number in numbers] for numbers in SENTENCES]

KINDS: dict[str, Callable[[], tuple[TextEncoder, Attention, TextEncoder, Attention]]] = {
    "rnn": lambda: (RecurrentEncoder("gru", 3), AdditiveAttention(), RecurrentEncoder("gru", 2), AdditiveAttention()),
    "conv": lambda: (ConvolutionEncoder((1, 3), 3), DotAttention(), ConvolutionEncoder((3,), 5), DotAttention()),
    "noenc": lambda: (NoEncoder(), AdditiveAttention(), NoEncoder(), UniformAttention()),
    "average": lambda: (AverageEncoder(4), UniformAttention(), AverageEncoder(5), AdditiveAttention()),
}


def texts(rows: slice = slice(None), time: int | None = None) -> TextBatch:
    return batch_of(TEXTS[rows], time=time, special=SPECIAL[rows], sentences=SENTENCES[rows])


def classifier(kind: str = "rnn", weight_decay: float = 0.0) -> HierarchicalClassifier:
    torch.manual_seed(0)
    model = HierarchicalClassifier(*KINDS[kind](), EmbeddingSpec(size=6), weight_decay=weight_decay)
    model.build(TextSizes(3, VOCABULARY))
    return model.eval()


def distribution(attention: Attention, states: Tensor) -> Tensor:
    exponents = attention.scores(states[None])[0].exp()
    return exponents / exponents.sum()


def slowly(
    model: HierarchicalClassifier, embedded: Tensor, row: int, imposed: Mapping[str, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of one text, and the weights of its tokens and sentences, sentence by sentence.

    Embedded words are those of the text, `[time, size]`; imposed weights `[positions]`.
    """
    imposed = imposed or {}
    numbers = SENTENCES[row]
    of_words, vectors = torch.zeros(len(numbers)), []
    for sentence in range(max(numbers) + 1):
        places = [place for place, number in enumerate(numbers) if number == sentence]
        states = model.encoder(embedded[places][None], torch.ones(1, len(places), dtype=torch.bool))[0]
        weights = imposed["word"][places] if "word" in imposed else distribution(model.attention, states)
        of_words = of_words.index_put((torch.tensor(places),), weights)
        vector = torch.zeros(states.size(1))
        for weight, state in zip(weights, states, strict=True):
            vector = vector + weight * state
        vectors.append(vector)
    mask = torch.ones(1, len(vectors), dtype=torch.bool)
    states = model.sentence_encoder(torch.stack(vectors)[None], mask)[0]
    of_sentences = imposed.get("sentence", distribution(model.sentence_attention, states))
    text = torch.zeros(states.size(1))
    for weight, state in zip(of_sentences, states, strict=False):
        text = text + weight * state
    return model.decision.weight @ text + model.decision.bias, of_words, of_sentences


def random_weights(*shape: int) -> Tensor:
    """No distributions at all, and more than nothing everywhere: in the padding and on delimiters, too."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(9)) * 3 - 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("together", [64, 2])
@torch.no_grad()
def test_logits_and_weights_are_those_of_sentences_read_one_by_one(
    kind: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models.hierarchical, "TOGETHER", together)
    model, batch = classifier(kind), texts()
    output = model(batch)
    word, sentence = output.levels.values()
    assert list(output.levels) == ["word", "sentence"]
    for row, text in enumerate(TEXTS):
        logits, of_words, of_sentences = slowly(model, model.embedding(torch.tensor(text)), row)
        torch.testing.assert_close(output.logits[row], logits, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(word.weights[row, : len(text)], of_words, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(sentence.weights[row, : len(of_sentences)], of_sentences, atol=1e-6, rtol=1e-5)
    assert torch.equal(word.mask, batch.words)
    assert sentence.mask.tolist() == [[True, True, True], [True, False, False], [True, True, False]]
    for level in (word, sentence):
        assert (level.weights[~level.mask] == 0).all()
        assert (level.hidden[~level.mask] == 0).all()


@torch.no_grad()
def test_weights_sum_to_one_in_each_group() -> None:
    word, sentence = classifier()(texts()).levels.values()
    assert word.groups.tolist() == texts().sentences.tolist()
    for row in range(len(TEXTS)):
        for group in range(max(SENTENCES[row]) + 1):
            assert float(word.weights[row, word.groups[row] == group].sum()) == pytest.approx(1)
    assert sentence.groups is None
    torch.testing.assert_close(sentence.weights.sum(1), torch.ones(3))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_padding_more_changes_no_logit(kind: str) -> None:
    model = classifier(kind)
    together, wide = model(texts()).logits, model(texts(time=40)).logits
    alone = torch.cat([model(texts(slice(row, row + 1))).logits for row in range(len(TEXTS))])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)
    torch.testing.assert_close(wide, alone, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("levels", [("word",), ("sentence",), ("word", "sentence")])
@torch.no_grad()
def test_imposed_weights_are_used_exactly_at_each_level_alone_and_at_both(kind: str, levels: tuple[str, ...]) -> None:
    model, batch = classifier(kind), texts()
    imposed = {name: random_weights(3, 8 if name == "word" else 3) for name in levels}
    output = model(batch, imposed=imposed)
    decided = model.decide(model(batch), imposed)
    for row, text in enumerate(TEXTS):
        of_text = {name: weights[row] for name, weights in imposed.items()}
        logits, _, of_sentences = slowly(model, model.embedding(torch.tensor(text)), row, of_text)
        torch.testing.assert_close(output.logits[row], logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(decided[row], logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(output.levels["sentence"].weights[row, : len(of_sentences)], of_sentences)
    for name in levels:
        assert torch.equal(output.levels[name].weights, imposed[name])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_models_own_weights_imposed_change_nothing(kind: str) -> None:
    model, batch = classifier(kind), texts()
    output = model(batch)
    own = {name: level.weights for name, level in output.levels.items()}
    for imposed in ({}, {"word": own["word"]}, {"sentence": own["sentence"]}, own):
        torch.testing.assert_close(model.decide(output, imposed), output.logits, atol=1e-6, rtol=0)
        torch.testing.assert_close(model(batch, imposed=imposed).logits, output.logits, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_many_imposed_weights_at_once_decide_as_one_by_one(kind: str) -> None:
    model = classifier(kind)
    output = model(texts())
    words, sentences = random_weights(4, 2, 3, 8), random_weights(4, 2, 3, 3)
    for imposed in ({"word": words}, {"sentence": sentences}, {"word": words, "sentence": sentences}):
        logits = model.decide(output, imposed)
        assert logits.shape == (4, 2, 3, 3)
        for first in range(4):
            for second in range(2):
                one = model.decide(output, {name: weights[first, second] for name, weights in imposed.items()})
                torch.testing.assert_close(logits[first, second], one, atol=1e-5, rtol=1e-5)
    mixed = model.decide(output, {"word": words, "sentence": sentences[0, 0]})
    one = model.decide(output, {"word": words[3, 1], "sentence": sentences[0, 0]})
    torch.testing.assert_close(mixed[3, 1], one, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_deciding_anew_reads_no_word_again_and_no_sentence_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier()
    output = model(texts())

    def refuse(*_: object) -> None:
        raise AssertionError("it was encoded again")

    monkeypatch.setattr(model.encoder, "forward", refuse)
    model.decide(output, {"word": random_weights(3, 8)})
    monkeypatch.setattr(model.sentence_encoder, "forward", refuse)
    model.decide(output, {"sentence": random_weights(3, 3)})
    with pytest.raises(AssertionError, match="encoded again"):
        model.decide(output, {"word": random_weights(3, 8)})


@torch.no_grad()
def test_words_know_of_no_other_sentence_and_delimiters_are_not_read() -> None:
    model, batch = classifier(), texts()
    embedded = model.embedding(batch.tokens)
    hidden = model(batch, embedded=embedded).levels["word"].hidden
    changed = embedded.clone()
    changed[0, 4] += 1  # the second sentence
    changed[batch.special] += 1
    moved = (model(batch, embedded=changed).levels["word"].hidden != hidden).any(2)
    assert moved.nonzero().tolist() == [[0, 4]]


def test_gradients_of_embedded_words_are_those_of_the_slow_model() -> None:
    model, batch = classifier(), texts()
    embedded = model.embedding(batch.tokens).detach().requires_grad_()
    output = model(batch, embedded=embedded)
    assert output.embedded is embedded
    (found,) = torch.autograd.grad(output.logits[:, 1].sum(), embedded)
    logits = torch.stack([slowly(model, embedded[row, : len(text)], row)[0] for row, text in enumerate(TEXTS)])
    (expected,) = torch.autograd.grad(logits[:, 1].sum(), embedded)
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-4)
    assert (found[~batch.words] == 0).all()
    assert (found[batch.words] != 0).all()


def test_gradients_of_imposed_weights_are_differences_of_logits() -> None:
    model = classifier().double()
    output = model(texts())
    for name, positions in (("word", 8), ("sentence", 3)):
        weights = random_weights(3, positions).double().requires_grad_()
        torch.autograd.gradcheck(lambda given, name=name: model.decide(output, {name: given}), weights)


def test_no_attention_decays_and_everything_else_does() -> None:
    model = classifier(weight_decay=0.1)
    decays = {
        id(parameter): group["weight_decay"] for group in model.parameter_groups() for parameter in group["params"]
    }
    for name, parameter in model.named_parameters():
        assert decays[id(parameter)] == (0.0 if name.startswith(("attention.", "sentence_attention.")) else 0.1)


def test_weights_for_a_level_that_is_not_there_are_refused() -> None:
    with pytest.raises(ModelError, match=r"no attention paragraph .* there is word, sentence"):
        classifier()(texts(), imposed={"paragraph": random_weights(3, 1)})
