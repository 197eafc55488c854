"""Attention, encoders and embeddings against their equations, text by text and word by word."""

import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from datamodules import Vocabulary
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
    WordEmbedding,
)
from results.errors import UserError

SIZE, LENGTHS = 6, [5, 1, 9, 4]
ENCODERS: dict[str, Callable[[], TextEncoder]] = {
    "bilstm": lambda: RecurrentEncoder(hidden=4),
    "bigru": lambda: RecurrentEncoder("gru", hidden=4),
    "lstm": lambda: RecurrentEncoder(hidden=4, bidirectional=False),
    "two layers": lambda: RecurrentEncoder(hidden=4, layers=2, dropout=0.5),
    "convolution": lambda: ConvolutionEncoder((1, 3, 7), filters=3),
    "average": lambda: AverageEncoder(5),
    "none": NoEncoder,
}


def built(name: str) -> TextEncoder:
    torch.manual_seed(0)
    encoder = ENCODERS[name]()
    encoder.build(SIZE)
    return encoder.eval()


def texts() -> tuple[Tensor, Tensor]:
    """Embedded words of texts of `LENGTHS` words, padded with zeros, and their mask."""
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return torch.randn(*mask.shape, SIZE, generator=torch.Generator().manual_seed(1)) * mask[..., None], mask


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_recurrent_encoder_reads_each_text_alone_in_both_directions(
    cell: Literal["lstm", "gru"], bidirectional: bool, layers: int
) -> None:
    torch.manual_seed(0)
    encoder = RecurrentEncoder(cell, hidden=4, bidirectional=bidirectional, layers=layers)
    encoder.build(SIZE)
    assert encoder.size == (8 if bidirectional else 4)
    embedded, mask = texts()
    found = encoder(embedded, mask)
    for row, length in enumerate(LENGTHS):
        states = embedded[row, :length]
        for networks in encoder.networks:
            ways = [networks[0](states)[0]]  # type: ignore[index]
            if bidirectional:
                ways.append(networks[1](states.flip(0))[0].flip(0))  # type: ignore[index]
            states = torch.cat(ways, dim=1)
        torch.testing.assert_close(found[row, :length], states, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ENCODERS)
def test_what_stands_in_the_padding_reaches_no_state_and_gets_no_gradient(name: str) -> None:
    encoder = built(name)
    embedded, mask = texts()
    dirty = embedded.masked_fill(~mask[..., None], 3.0).requires_grad_()
    states = encoder(embedded, mask)
    assert (states[~mask] == 0).all()
    torch.testing.assert_close(encoder(dirty, mask), states, atol=1e-6, rtol=0)
    (gradient,) = torch.autograd.grad(encoder(dirty, mask).square().sum(), dirty)
    assert (gradient[~mask] == 0).all()
    for row, length in enumerate(LENGTHS):
        alone = embedded[row : row + 1, :length].clone().requires_grad_()
        loss = encoder(alone, mask[row : row + 1, :length]).square().sum()
        (expected,) = torch.autograd.grad(loss, alone)
        torch.testing.assert_close(gradient[row, :length], expected[0], atol=1e-5, rtol=1e-4)


def test_dropout_falls_on_what_the_second_layer_reads_and_only_in_training() -> None:
    encoder = built("two layers")
    embedded, mask = texts()
    kept = encoder(embedded, mask)
    assert torch.equal(kept, encoder(embedded, mask))
    assert not torch.equal(kept, encoder.train()(embedded, mask))
    single = RecurrentEncoder(hidden=4, dropout=0.5)
    single.build(SIZE)
    assert torch.equal(single.train()(embedded, mask), single.eval()(embedded, mask))


def test_gradients_in_evaluation_find_the_networks_as_cudnn_wants_them_and_change_no_state() -> None:
    """cuDNN refuses to go backward through what ran in evaluation mode."""
    encoder = built("two layers")
    embedded, mask = texts()
    with torch.no_grad():
        expected = encoder(embedded, mask)
    networks = [module for module in encoder.modules() if isinstance(module, nn.LSTM)]
    assert not any(network.training for network in networks)
    found = encoder(embedded, mask)
    assert all(network.training for network in networks)
    assert not encoder.dropout.training  # type: ignore[union-attr]
    torch.testing.assert_close(found.detach(), expected, atol=1e-6, rtol=0)


def test_a_convolution_is_the_sum_over_its_window() -> None:
    encoder = built("convolution")
    assert isinstance(encoder, ConvolutionEncoder)
    embedded, mask = texts()
    states = encoder(embedded, mask)
    for row, length in enumerate(LENGTHS):
        for place in range(length):
            expected = []
            for width, convolution in zip((1, 3, 7), encoder.convolutions, strict=True):
                assert isinstance(convolution, nn.Conv1d)
                assert convolution.bias is not None
                total = convolution.bias.clone()
                for offset in range(-(width // 2), width // 2 + 1):
                    if 0 <= place + offset < length:
                        weight = convolution.weight[:, :, offset + width // 2]
                        total = total + weight @ embedded[row, place + offset]
                expected += total.relu().tolist()
            torch.testing.assert_close(states[row, place], torch.tensor(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kernels", [(3, 4), (0,), ()])
def test_a_convolution_without_a_middle_is_refused(kernels: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"--model.init_args.encoder.init_args.kernels .*odd widths"):
        ConvolutionEncoder(kernels)


def test_average_reads_each_word_by_itself() -> None:
    encoder = built("average")
    assert isinstance(encoder, AverageEncoder)
    embedded, mask = texts()
    expected = torch.stack([torch.tanh(encoder.linear.weight @ word + encoder.linear.bias) for word in embedded[mask]])
    torch.testing.assert_close(encoder(embedded, mask)[mask], expected)


POSITIONS = 7
ATTENTIONS: dict[str, Callable[[], Attention]] = {
    "additive": AdditiveAttention,
    "additive of 4": lambda: AdditiveAttention(4),
    "dot": DotAttention,
    "uniform": UniformAttention,
}


def built_attention(name: str) -> Attention:
    torch.manual_seed(0)
    attention = ATTENTIONS[name]()
    attention.build(SIZE)
    return attention


def hidden_and_mask() -> tuple[Tensor, Tensor]:
    """Three texts: all positions, none, and some between others, as words between delimiters are."""
    random = torch.Generator().manual_seed(2)
    mask = torch.tensor([[1] * POSITIONS, [0] * POSITIONS, [0, 1, 1, 0, 1, 0, 0]], dtype=torch.bool)
    return torch.randn(3, POSITIONS, SIZE, generator=random) * 5, mask


@torch.no_grad()
def score_by_hand(attention: Attention, state: Tensor) -> float:
    if isinstance(attention, AdditiveAttention):
        rows = zip(
            attention.projection.weight.double(), attention.projection.bias, attention.query.weight[0], strict=True
        )
        return sum(float(query) * math.tanh(float(row @ state.double()) + float(bias)) for row, bias, query in rows)
    if isinstance(attention, DotAttention):
        return sum(float(h) * float(q) for h, q in zip(state, attention.query.weight[0], strict=True)) / math.sqrt(SIZE)
    return 0.0


@pytest.mark.parametrize("name", ATTENTIONS)
def test_weights_are_the_softmax_of_the_scores_of_the_positions_that_may_get_any(name: str) -> None:
    attention = built_attention(name)
    hidden, mask = hidden_and_mask()
    weights = attention(hidden, mask)
    for row in range(3):
        scores = [
            score_by_hand(attention, state) if may else None for state, may in zip(hidden[row], mask[row], strict=True)
        ]
        total = sum(math.exp(score) for score in scores if score is not None)
        expected = [0.0 if score is None else math.exp(score) / total for score in scores]
        torch.testing.assert_close(weights[row], torch.tensor(expected), atol=1e-6, rtol=1e-5)
    assert (weights[~mask] == 0).all()
    if isinstance(attention, AdditiveAttention):  # half the size, unless another is asked for
        assert len(attention.projection.weight) == (4 if name == "additive of 4" else 3)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_hidden_states_outside_the_mask_change_nothing_and_get_no_gradient(name: str) -> None:
    attention = built_attention(name)
    hidden, mask = hidden_and_mask()
    dirty = hidden.masked_fill(~mask[..., None], 1e4).requires_grad_()
    torch.testing.assert_close(attention(dirty, mask), attention(hidden, mask), atol=0, rtol=0)
    if name != "uniform":
        with torch.autograd.set_detect_anomaly(True):
            (gradient,) = torch.autograd.grad(attention(dirty, mask)[:, 1].sum(), dirty)
        assert (gradient[~mask] == 0).all()
        assert gradient.isfinite().all()
        assert (gradient[0] != 0).any()


WORDS, PAD = 400, 3
VECTORS = torch.randn(WORDS, 5, generator=torch.Generator().manual_seed(0)) * 0.5
KNOWN = torch.arange(WORDS) % 2 == 0
"""Vectors of size 5 whose entries spread by 0.5, of every second word."""


def embedding_of(vectors: Tensor | None = None, known: Tensor | None = KNOWN, **options: Any) -> WordEmbedding:  # noqa: ANN401
    torch.manual_seed(0)
    words = tuple(str(number) for number in range(WORDS))
    return WordEmbedding(EmbeddingSpec(**options), Vocabulary(words, PAD, *[0] * 5), vectors, known)


def test_known_words_have_their_vector_and_others_one_of_the_same_spread() -> None:
    embedding = embedding_of(VECTORS)
    found = embedding(torch.arange(WORDS)[None])[0].detach()
    assert torch.equal(found[KNOWN], VECTORS[KNOWN])
    others = ~KNOWN & (torch.arange(WORDS) != PAD)
    assert not torch.isclose(found[others], VECTORS[others]).any(dim=1).all()
    assert float(found[others].std()) == pytest.approx(float(VECTORS[KNOWN].std()), rel=0.1)
    assert float(found[others].mean()) == pytest.approx(0, abs=0.05)
    assert embedding.size == 5


@pytest.mark.parametrize("known_words", [0, 1])
def test_where_hardly_a_word_is_known_the_others_are_numbers_still(known_words: int) -> None:
    rows = embedding_of(torch.full((WORDS, 1), 2.0), torch.arange(WORDS) < known_words).rows.weight.detach()
    assert rows.isfinite().all()
    if not known_words:
        assert float(rows.std()) == pytest.approx(0.1, rel=0.1)


def test_no_encoder_hands_the_words_on() -> None:
    embedded, mask = texts()
    assert torch.equal(built("none")(embedded, mask), embedded)


@pytest.mark.parametrize(("asked", "size"), [(None, 300), (7, 7)])
def test_without_vectors_rows_are_small_and_of_the_size_asked_for(asked: int | None, size: int) -> None:
    embedding = embedding_of(size=asked)
    assert embedding.size == size
    assert embedding(torch.zeros(2, 3, dtype=torch.int64)).shape == (2, 3, size)
    assert float(embedding.rows.weight.detach().std()) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("project", [None, 4])
@pytest.mark.parametrize("trainable", [True, False])
def test_padding_is_zero_and_stays_so_and_frozen_rows_stay_all(trainable: bool, project: int | None) -> None:
    kept = VECTORS.clone()
    embedding = embedding_of(VECTORS, trainable=trainable, project=project)
    before = embedding.rows.weight.detach().clone()
    loss = embedding(torch.arange(WORDS)[None]).square().sum() + embedding(torch.full((1, 4), PAD)).sum()
    if parameters := [parameter for parameter in embedding.parameters() if parameter.requires_grad]:
        loss.backward()
        torch.optim.SGD(parameters, 0.1).step()
    expected = torch.full((WORDS,), trainable)
    expected[PAD] = False
    assert torch.equal((before != embedding.rows.weight.detach()).any(dim=1), expected)
    assert (embedding(torch.full((1, 2), PAD)) == 0).all()
    assert torch.equal(VECTORS, kept)  # what was given is not changed


def test_a_projection_is_one_linear_map_without_a_bias() -> None:
    embedding = embedding_of(VECTORS, trainable=False, project=4)
    assert embedding.size == 4
    (weight,) = (parameter for parameter in embedding.parameters() if parameter.requires_grad)
    found = embedding(torch.tensor([[2, 4]]))[0]
    torch.testing.assert_close(found, torch.stack([weight @ VECTORS[2], weight @ VECTORS[4]]))


def test_vectors_of_another_size_than_asked_for_are_refused_by_both_sizes() -> None:
    with pytest.raises(UserError, match=r"5 dimensions, but --model\.init_args\.embedding\.size is 300\. Remove"):
        embedding_of(VECTORS, size=300)
    assert embedding_of(VECTORS, size=5).size == 5
