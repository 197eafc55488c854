from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from models.encoder import AverageEncoder, ConvolutionEncoder, NoEncoder, RecurrentEncoder, TextEncoder
from models.interface import ModelError

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


def texts(time: int = max(LENGTHS), seed: int = 1) -> tuple[Tensor, Tensor]:
    """Embedded words of texts of `LENGTHS` words, padded to `time` with zeros, and their mask."""
    random = torch.Generator().manual_seed(seed)
    embedded = torch.zeros(len(LENGTHS), time, SIZE)
    for row, length in enumerate(LENGTHS):
        embedded[row, :length] = torch.randn(length, SIZE, generator=random)
    return embedded, torch.arange(time) < torch.tensor(LENGTHS)[:, None]


def lstm_by_hand(network: nn.LSTM, words: Tensor) -> Tensor:
    """One text, word by word, from the equations of the long short-term memory."""
    of_input, of_state, bias, bias_ = (parameter.double() for parameter in network.parameters())
    hidden = cell = torch.zeros(network.hidden_size, dtype=torch.double)
    states = []
    for word in words.double():
        enter, forget, new, out = (of_input @ word + of_state @ hidden + bias + bias_).chunk(4)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        hidden = out.sigmoid() * cell.tanh()
        states.append(hidden)
    return torch.stack(states)


def gru_by_hand(network: nn.GRU, words: Tensor) -> Tensor:
    """One text, word by word, from the equations of the gated recurrent unit."""
    of_input, of_state, bias, bias_ = (parameter.double() for parameter in network.parameters())
    hidden = torch.zeros(network.hidden_size, dtype=torch.double)
    states = []
    for word in words.double():
        reset, update, new = (of_input @ word + bias).chunk(3)
        reset_, update_, new_ = (of_state @ hidden + bias_).chunk(3)
        keep = (update + update_).sigmoid()
        hidden = (1 - keep) * (new + (reset + reset_).sigmoid() * new_).tanh() + keep * hidden
        states.append(hidden)
    return torch.stack(states)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_recurrent_encoder_follows_the_equations_in_both_directions(
    cell: Literal["lstm", "gru"], bidirectional: bool, layers: int
) -> None:
    torch.manual_seed(0)
    encoder = RecurrentEncoder(cell, hidden=4, bidirectional=bidirectional, layers=layers)
    encoder.build(SIZE)
    assert encoder.size == (8 if bidirectional else 4)
    by_hand: Callable[..., Tensor] = lstm_by_hand if cell == "lstm" else gru_by_hand
    embedded, mask = texts()
    found = encoder(embedded, mask)
    for row, length in enumerate(LENGTHS):
        states = embedded[row, :length].double()
        for networks in encoder.networks:
            ways = [by_hand(networks[0], states)]  # type: ignore[index]
            if bidirectional:
                ways.append(by_hand(networks[1], states.flip(0)).flip(0))  # type: ignore[index]
            states = torch.cat(ways, dim=1)
        torch.testing.assert_close(found[row, :length].double(), states, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_text_has_the_states_it_has_alone_however_far_it_is_padded(name: str) -> None:
    encoder = built(name)
    embedded, mask = texts()
    longer, longer_mask = texts(max(LENGTHS) + 7)
    states, padded = encoder(embedded, mask), encoder(longer, longer_mask)
    assert states.shape == (*mask.shape, encoder.size)
    for row, length in enumerate(LENGTHS):
        alone = encoder(embedded[row : row + 1, :length], mask[row : row + 1, :length])[0]
        torch.testing.assert_close(states[row, :length], alone, atol=1e-6, rtol=0)
        torch.testing.assert_close(padded[row, :length], alone, atol=1e-6, rtol=0)
    assert states[mask].abs().min() > 0 or name == "convolution"  # ReLU
    assert (states[~mask] == 0).all()
    assert (padded[~longer_mask] == 0).all()


@pytest.mark.parametrize("name", ENCODERS)
def test_what_stands_in_the_padding_reaches_no_state_and_gets_no_gradient(name: str) -> None:
    encoder = built(name)
    embedded, mask = texts()
    dirty = embedded.masked_fill(~mask[..., None], 3.0).requires_grad_()
    torch.testing.assert_close(encoder(dirty, mask), encoder(embedded, mask), atol=1e-6, rtol=0)
    (gradient,) = torch.autograd.grad(encoder(dirty, mask).square().sum(), dirty)
    assert (gradient[~mask] == 0).all()
    for row, length in enumerate(LENGTHS):
        alone = embedded[row : row + 1, :length].clone().requires_grad_()
        loss = encoder(alone, mask[row : row + 1, :length]).square().sum()
        (expected,) = torch.autograd.grad(loss, alone)
        torch.testing.assert_close(gradient[row, :length], expected[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_batch_without_a_text_has_no_states(name: str) -> None:
    encoder = built(name)
    states = encoder(torch.zeros(0, 0, SIZE), torch.zeros(0, 0, dtype=torch.bool))
    assert states.shape == (0, 0, encoder.size)


def test_dropout_falls_on_what_the_second_layer_reads_and_only_in_training() -> None:
    encoder = built("two layers")
    embedded, mask = texts()
    assert isinstance(encoder, RecurrentEncoder)
    kept = encoder(embedded, mask)
    assert torch.equal(kept, encoder(embedded, mask))
    assert not torch.equal(kept, encoder.train()(embedded, mask))
    torch.manual_seed(0)
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
    with pytest.raises(ModelError, match=r"odd widths.*--model.init_args.encoder.init_args.kernels"):
        ConvolutionEncoder(kernels)


def test_average_reads_each_word_by_itself() -> None:
    encoder = built("average")
    assert isinstance(encoder, AverageEncoder)
    embedded, mask = texts()
    states = encoder(embedded, mask)
    for row, length in enumerate(LENGTHS):
        for place in range(length):
            expected = torch.tanh(encoder.linear.weight @ embedded[row, place] + encoder.linear.bias)
            torch.testing.assert_close(states[row, place], expected)


def test_no_encoder_hands_the_words_on() -> None:
    embedded, mask = texts()
    encoder = built("none")
    assert torch.equal(encoder(embedded, mask), embedded)
    assert not list(encoder.parameters())
    assert encoder.size == SIZE
