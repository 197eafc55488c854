import math
from dataclasses import replace
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from attention_probing.datamodules import Vocabulary
from attention_probing.models.layers import RecurrentEncoder
from attention_probing.models.regularizers import (
    Concat,
    Encoded,
    MaskedLanguageModel,
    Regularizer,
    Residual,
    Tying,
)
from attention_probing.results.errors import UserError

SIZE, VOCABULARY, PAD, MASK = 6, 30, 0, 2
LENGTHS = [5, 2, 9, 4]
WORDS = Vocabulary(tuple(map(str, range(VOCABULARY))), PAD, 1, MASK, None, None, None)


class Model:
    """Embedding and encoder of one size; texts begin and end with a delimiter, and the second is nothing but those."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, SIZE, padding_idx=PAD)
        self.encoder = RecurrentEncoder(hidden=SIZE // 2)
        self.encoder.build(SIZE)
        random = torch.Generator().manual_seed(1)
        tokens = torch.randint(5, VOCABULARY, (len(LENGTHS), max(LENGTHS)), generator=random)
        lengths = torch.tensor(LENGTHS)[:, None]
        places = torch.arange(tokens.size(1))
        self.mask = places < lengths
        self.words = self.mask & (places > 0) & (places < lengths - 1)
        self.tokens = tokens.masked_fill(~self.mask, PAD)
        self.encoded: list[Tensor] = []

    def encode(self, tokens: Tensor) -> Tensor:
        self.encoded.append(tokens)
        hidden: Tensor = self.encoder(self.embedding(tokens), self.mask)
        return hidden

    @property
    def state(self) -> Encoded:
        embedded = self.embedding(self.tokens)
        hidden = self.encoder(embedded, self.mask)
        averaged = torch.cat([hidden, embedded], dim=2)
        return Encoded(self.tokens, self.words, embedded, hidden, averaged, self.encode)


def texts_of(model: Model) -> list[list[int]]:
    """The places of the words of each text."""
    return [row.nonzero()[:, 0].tolist() for row in model.words]


R = TypeVar("R", bound=Regularizer)


def built(regularizer: R) -> R:
    torch.manual_seed(3)
    regularizer.build(SIZE, SIZE, WORDS)
    return regularizer


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_concat_puts_the_word_behind_its_state_and_residual_adds_it() -> None:
    embedded, hidden, other = drawn(2, 3, 4), drawn(2, 3, 6), drawn(2, 3, 4) + 1
    found, added = Concat().transform(embedded, hidden), Residual().transform(embedded, other)
    assert found.shape[2] == Concat().output_size(4, 6) == 10
    assert Residual().output_size(4, 4) == 4
    assert torch.equal(found, torch.cat([hidden, embedded], dim=2))
    assert torch.equal(added, embedded + other)


def test_words_and_states_of_two_sizes_are_refused_with_the_projection_that_helps() -> None:
    remedy = r"50 and 300 dimensions\. Set `project=300`"
    with pytest.raises(UserError, match=f"Residual needs .* {remedy}"):
        Residual().output_size(50, 300)
    with pytest.raises(UserError, match=f"Tying needs .* {remedy}"):
        Tying().build(50, 300, WORDS)
    with pytest.raises(UserError, match="6 and 12 dimensions"):  # the states have grown
        Residual().output_size(SIZE, Concat().output_size(SIZE, SIZE))


def test_tying_squares_the_distance_and_counts_words_alone() -> None:
    model = Model()
    state = model.state
    total = 0.0
    for row, places in enumerate(texts_of(model)):
        squares = 0.0
        for place in places:
            for entry in range(SIZE):
                squares += float((state.hidden[row, place, entry] - state.embedded[row, place, entry]).detach()) ** 2
        total += squares / len(places) if places else 0.0
    found = built(Tying(weight=0.7)).term(state)
    assert float(found.value.detach()) == pytest.approx(0.7 * total / len(LENGTHS), rel=1e-5)


@pytest.mark.parametrize("regularizer", [Tying(), MaskedLanguageModel()])
def test_terms_of_texts_without_a_word_are_zero_and_so_is_their_gradient(regularizer: Regularizer) -> None:
    model = Model()
    state = model.state
    term = built(regularizer).term(replace(state, words=torch.zeros_like(state.words)))
    assert term is not None
    assert float(term.value.detach()) == 0
    gradients = torch.autograd.grad(term.value, list(model.encoder.parameters()), allow_unused=True)
    assert all(gradient is None or (gradient == 0).all() for gradient in gradients)


@pytest.mark.parametrize(
    ("share", "masked", "random"), [(0.3, 1.0, 0.0), (1.0, 0.8, 0.1), (1.0, 0.15, 0.0), (1.0, 0.0, 0.0)]
)
def test_the_language_model_predicts_the_chosen_words_alone_from_what_it_reads(
    share: float, masked: float, random: float
) -> None:
    model = Model()
    language = built(MaskedLanguageModel(weight=0.4, share=share, masked=masked, random=random)).eval()
    chosen = language.choose_tokens(model.tokens, model.words)
    found = language.term(model.state)
    (read,) = model.encoded
    assert torch.equal(read[~chosen], model.tokens[~chosen])
    if masked == 1:
        assert (read[chosen] == MASK).all()
    else:
        assert torch.equal(chosen, model.words)
    nats = []
    for row, place in chosen.nonzero().tolist():
        length = LENGTHS[row]
        states = model.encoder(model.embedding(read[row : row + 1, :length]), torch.ones(1, length, dtype=torch.bool))
        scores = (language.decoder.weight @ states[0, place] + language.decoder.bias).tolist()
        nats.append(math.log(sum(map(math.exp, scores))) - scores[int(model.tokens[row, place])])
    assert float(found.value.detach()) == pytest.approx(0.4 * sum(nats) / len(nats), rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("masked", "random"), [(1.0, 0.0), (0.8, 0.1), (0.15, 0.0), (0.0, 0.0), (0.0, 1.0), (0.5, 0.5)]
)
def test_chosen_words_are_masked_random_or_kept_by_their_shares(training: bool, masked: float, random: float) -> None:
    torch.manual_seed(0)
    language = built(MaskedLanguageModel(share=0.6, masked=masked, random=random))
    language.train(training)
    tokens = torch.randint(5, VOCABULARY, (300, 40))
    words = torch.rand(300, 40) < 0.8
    chosen = language.choose_tokens(tokens, words)
    read = language.replace_tokens(tokens, words, chosen)
    assert torch.equal(read[~chosen], tokens[~chosen])
    before, after = tokens[chosen], read[chosen]
    replaced = (after != MASK) & (after != before)
    total = len(after)
    other = random * (1 - 2 / VOCABULARY)
    assert int((after == MASK).sum()) / total == pytest.approx(masked + random / VOCABULARY, abs=0.02)
    assert int(replaced.sum()) / total == pytest.approx(other, abs=0.02)
    assert int((after == before).sum()) / total == pytest.approx(1 - masked - random + random / VOCABULARY, abs=0.02)
    # Every row may stand there, but for the mask token, which is counted as one.
    assert set(after[replaced].tolist()) == (set(range(VOCABULARY)) - {MASK} if random else set())


@pytest.mark.parametrize("training", [True, False])
def test_words_alone_are_chosen_one_of_each_text_at_least_and_the_share_of_all(training: bool) -> None:
    torch.manual_seed(0)
    language = MaskedLanguageModel(share=0.15).train(training)
    tokens = torch.randint(5, VOCABULARY, (300, 40))
    words = torch.rand(300, 40) < 0.8
    words[0] = False
    chosen = language.choose_tokens(tokens, words)
    assert not chosen[~words].any()
    assert chosen[1:].any(dim=1).all()
    assert int(chosen.sum()) / int(words.sum()) == pytest.approx(0.15, abs=0.015)
    rare = MaskedLanguageModel(share=1e-6).train(training).choose_tokens(tokens, words)
    assert rare.sum(1).tolist() == [0] + [1] * 299
    assert torch.equal(MaskedLanguageModel(share=1).train(training).choose_tokens(tokens, words), words)


def test_choices_are_new_in_training_and_the_texts_own_in_evaluation() -> None:
    torch.manual_seed(0)
    language = built(MaskedLanguageModel(share=0.5, masked=0.3, random=0.4))
    tokens, words = torch.randint(5, VOCABULARY, (8, 20)), torch.ones(8, 20, dtype=torch.bool)
    chosen = language.choose_tokens(tokens, words)
    assert not torch.equal(chosen, language.choose_tokens(tokens, words))
    assert not torch.equal(
        language.replace_tokens(tokens, words, chosen), language.replace_tokens(tokens, words, chosen)
    )
    language.eval()
    before = torch.get_rng_state()
    chosen = language.choose_tokens(tokens, words)
    read = language.replace_tokens(tokens, words, chosen)
    assert torch.equal(torch.get_rng_state(), before)
    assert len({tuple(row.tolist()) for row in chosen}) == 8
    # The same texts in another order, and padded further.
    shown, real = pad(tokens[5:7].flip(0), (0, 9)), pad(words[5:7].flip(0), (0, 9))
    others = language.choose_tokens(shown, real)
    assert torch.equal(others[:, :20].flip(0), chosen[5:7])
    again = language.replace_tokens(shown, real, others)
    assert torch.equal(again[:, :20].flip(0), read[5:7])
    assert (again[:, 20:] == PAD).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0}, "share is 0"),
        ({"share": 1.5}, r"share is 1\.5"),
        ({"masked": 0.8, "random": 0.3}, r"masked is 0\.8 and random is 0\.3"),
        ({"masked": -0.1}, r"masked is -0\.1"),
        ({}, r"needs a mask token.*Set `tokenizer` to a model"),
    ],
)
def test_without_a_mask_token_or_a_share_there_is_no_language_model(options: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MaskedLanguageModel(**options).build(SIZE, SIZE, replace(WORDS, mask=None))
