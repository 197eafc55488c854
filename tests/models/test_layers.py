"""Attention, encoders and embeddings against their equations, text by text and word by word."""

import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from attention_probing.datamodules import Vocabulary
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
    WordEmbedding,
)
from attention_probing.results.errors import UserError

SIZE, LENGTHS = 6, [5, 1, 9, 4]
ENCODERS: dict[str, Callable[[], TextEncoder]] = {
    "bilstm": lambda: RecurrentEncoder(hidden=4),
    "bigru": lambda: RecurrentEncoder("gru", hidden=4),
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
def test_a_recurrent_encoder_reads_each_text_alone_in_both_directions(cell: Literal["lstm", "gru"]) -> None:
    torch.manual_seed(0)
    encoder = RecurrentEncoder(cell, hidden=4)
    encoder.build(SIZE)
    assert encoder.size == 8
    embedded, mask = texts()
    found = encoder(embedded, mask)
    for row, length in enumerate(LENGTHS):
        states = embedded[row, :length]
        for networks in encoder.networks:
            ways = networks[0](states)[0], networks[1](states.flip(0))[0].flip(0)  # type: ignore[index]
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


def test_gradients_in_evaluation_find_the_networks_as_cudnn_wants_them_and_change_no_state() -> None:
    """cuDNN refuses to go backward through what ran in evaluation mode."""
    encoder = built("bilstm")
    embedded, mask = texts()
    with torch.no_grad():
        expected = encoder(embedded, mask)
    networks = [module for module in encoder.modules() if isinstance(module, nn.LSTM)]
    assert not any(network.training for network in networks)
    found = encoder(embedded, mask)
    assert all(network.training for network in networks)
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
    with pytest.raises(UserError, match=r"^`kernels` .*odd widths"):
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
SPARSE: dict[str, Callable[[], Attention]] = {
    "1": lambda: EntmaxAttention(alpha=1),
    "1.25": lambda: EntmaxAttention(alpha=1.25),
    "1.5": EntmaxAttention,
    "1.5 of dot": lambda: EntmaxAttention("dot"),
    "2": lambda: EntmaxAttention(alpha=2),
    "1.7 learned": lambda: EntmaxAttention(alpha=1.7, learned=True),
}


def built_attention(name: str) -> Attention:
    torch.manual_seed(0)
    attention = (ATTENTIONS | SPARSE)[name]()
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


def slow_entmax(scores: list[float], alpha: float) -> list[float]:
    """The weights max((α − 1) z − τ, 0)^(1/(α − 1)), with the τ with which they sum to one."""
    if alpha == 1:
        return [math.exp(score) / sum(map(math.exp, scores)) for score in scores]

    def weights(threshold: float) -> list[float]:
        return [max((alpha - 1) * score - threshold, 0) ** (1 / (alpha - 1)) for score in scores]

    high = (alpha - 1) * max(scores)
    low = high - 1
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(weights(middle)) > 1 else (low, middle)
    return weights(low)


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_weights_are_those_of_a_slow_threshold(name: str) -> None:
    attention = built_attention(name)
    assert isinstance(attention, EntmaxAttention)
    hidden, mask = hidden_and_mask()
    weights, alpha = attention(hidden, mask).detach(), torch.as_tensor(attention.alpha).item()
    assert name.startswith(f"{round(alpha, 6):g}")
    for row in (0, 2):
        inside = mask[row].nonzero().squeeze(1).tolist()
        expected = torch.zeros(POSITIONS)
        by_hand = [score_by_hand(attention.scored, hidden[row, place]) for place in inside]
        expected[inside] = torch.tensor(slow_entmax(by_hand, alpha))
        torch.testing.assert_close(weights[row], expected, atol=1e-5, rtol=0)
        assert float(weights[row].sum()) == pytest.approx(1, abs=1e-6)
    assert (weights[~mask] == 0).all()
    if alpha > 1.5:
        assert (weights[0] == 0).any()
    # A text gets the same weights beside shorter and longer ones.
    torch.testing.assert_close(attention(hidden[2:, :5], mask[2:, :5]), weights[2:, :5], atol=1e-6, rtol=0)


@pytest.mark.parametrize("alpha", [1, 2])
def test_a_learned_alpha_begins_within_its_bounds(alpha: float) -> None:
    with pytest.raises(UserError, match=r"EntmaxAttention: alpha is \d, but a learned α must begin between 1 and 2"):
        EntmaxAttention(alpha=alpha, learned=True)


@pytest.mark.parametrize("name", ATTENTIONS | SPARSE)
def test_hidden_states_outside_the_mask_change_nothing_and_get_no_gradient(name: str) -> None:
    attention = built_attention(name)
    hidden, mask = hidden_and_mask()
    if name in SPARSE:  # where one word has all weight, there is no gradient
        hidden = hidden / 5
    dirty = hidden.masked_fill(~mask[..., None], 1e4).requires_grad_()
    torch.testing.assert_close(attention(dirty, mask), attention(hidden, mask), atol=0, rtol=0)
    if name != "uniform":
        with torch.autograd.set_detect_anomaly(True):
            found = attention(dirty, mask)[:, [1, 3, 4]].square().sum()
            gradient, *others = torch.autograd.grad(found, [dirty, *attention.parameters()])
        assert (gradient[~mask] == 0).all()
        assert gradient.isfinite().all()
        assert all(other.isfinite().all() for other in others)
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


@pytest.mark.parametrize(("asked", "size"), [(None, 300), (7, 7)])
def test_without_vectors_rows_are_small_and_of_the_size_asked_for(asked: int | None, size: int) -> None:
    embedding = embedding_of(size=asked)
    assert embedding.size == size
    assert embedding(torch.zeros(2, 3, dtype=torch.int64)).shape == (2, 3, size)
    assert float(embedding.rows.weight.detach().std()) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("project", [None, 4])
def test_padding_is_zero_and_stays_so(project: int | None) -> None:
    kept = VECTORS.clone()
    embedding = embedding_of(VECTORS, project=project)
    before = embedding.rows.weight.detach().clone()
    loss = embedding(torch.arange(WORDS)[None]).square().sum() + embedding(torch.full((1, 4), PAD)).sum()
    loss.backward()
    torch.optim.SGD(embedding.parameters(), 0.1).step()
    expected = torch.full((WORDS,), True)
    expected[PAD] = False
    assert torch.equal((before != embedding.rows.weight.detach()).any(dim=1), expected)
    assert (embedding(torch.full((1, 2), PAD)) == 0).all()
    assert torch.equal(VECTORS, kept)  # what was given is not changed


def test_a_projection_is_one_linear_map_without_a_bias() -> None:
    embedding = embedding_of(VECTORS, project=4)
    assert embedding.size == 4
    (weight,) = embedding.projection.parameters()
    found = embedding(torch.tensor([[2, 4]]))[0]
    torch.testing.assert_close(found, torch.stack([weight @ VECTORS[2], weight @ VECTORS[4]]))


def test_vectors_of_another_size_than_asked_for_are_refused_by_both_sizes() -> None:
    with pytest.raises(
        UserError,
        match=r"5 dimensions, but `size` is 300\. Remove the size \(`size=None`\)",
    ):
        embedding_of(VECTORS, size=300)
    assert embedding_of(VECTORS, size=5).size == 5


def test_a_learned_alpha_near_one_gives_the_softmax_and_finite_gradients() -> None:
    learned = EntmaxAttention(learned=True)
    learned.build(SIZE)
    torch.nn.init.constant_(learned.exponent, -40.0)
    scores = torch.tensor([[2, 1, 0.1, -1]], requires_grad=True)
    weights = learned.normalise(scores)
    torch.testing.assert_close(weights, scores.softmax(-1), atol=2e-3, rtol=0)
    assert all(one.isfinite().all() for one in torch.autograd.grad(weights[0, 0], [scores, learned.exponent]))
