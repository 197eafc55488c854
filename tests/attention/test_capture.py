from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Barrier
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attention_probing.attention.capture import NAME, attend, capture_attention, intervening, replacing
from attention_probing.attention.checks import read_attention
from attention_probing.attention.encoder import find_state_size
from attention_probing.results.errors import UserError
from tests import tiny
from tests.attention.architectures import ARCHITECTURES, HEADS, LAYERS, SIZES, VOCABULARY, build, projections

each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)
only_bert = pytest.mark.parametrize("name", ["bert"])
LENGTHS = ((9, 9, 9), (9, 4, 7))
EVERY_LAYER, EVERY_STATE = range(LAYERS), range(LAYERS + 1)


@pytest.fixture
def model(name: str) -> PreTrainedModel:
    return build(name)


def inputs(lengths: tuple[int, ...]) -> dict[str, Tensor]:
    ids = torch.randint(5, VOCABULARY, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": ids * mask + 1 - mask, "attention_mask": mask}


@torch.inference_mode()
def run(model: PreTrainedModel, lengths: tuple[int, ...], **options: bool) -> Any:  # noqa: ANN401 # a ModelOutput
    return model(**inputs(lengths), **options)


def captured(
    model: PreTrainedModel, lengths: tuple[int, ...], layers: Sequence[int] = (), states: Sequence[int] = ()
) -> dict[str, Tensor]:
    """The weights asked for as `layer.k`, the states asked for as `state.k`, in the order in which they came."""
    found: dict[str, Tensor] = {}

    def receive(layer: int, weights: Tensor) -> None:
        found[f"layer.{layer}"] = weights

    def receive_state(number: int, state: Tensor) -> None:
        found[f"state.{number}"] = state

    model.set_attn_implementation(NAME)
    capture_attention(model, inputs(lengths), receive, frozenset(layers), receive_state, frozenset(states))
    return found


@each_architecture
def test_attention_and_states_are_those_of_eager_attention(model: PreTrainedModel) -> None:
    eager = {lengths: run(model, lengths, output_attentions=True, output_hidden_states=True) for lengths in LENGTHS}
    assert find_state_size(model, LAYERS, "tiny") == 32
    for lengths, own in eager.items():
        found = captured(model, lengths, EVERY_LAYER, EVERY_STATE)
        assert list(found) == [*(f"layer.{layer}" for layer in EVERY_LAYER), *(f"state.{k}" for k in EVERY_STATE)]
        assert all(tensor.dtype == torch.float32 for tensor in found.values())
        for layer, weights in enumerate(own.attentions):
            assert weights.shape == (3, HEADS, 9, 9)
            torch.testing.assert_close(found[f"layer.{layer}"], weights, rtol=0, atol=1e-6)
        real = inputs(lengths)["attention_mask"].bool()
        for number, state in enumerate(own.hidden_states):
            assert found[f"state.{number}"].shape == state.shape == (3, 9, 32)
            torch.testing.assert_close(found[f"state.{number}"][real], state[real], rtol=1e-6, atol=1e-5)
        assert torch.equal(found[f"state.{LAYERS}"], run(model, lengths).last_hidden_state)


WANTED: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {
    **{((0,), ()): 0, ((1,), ()): 1, ((2,), ()): 2, ((0, 2), ()): 2},
    **dict.fromkeys([((), (0,)), ((), (0, 2)), ((0,), (1,)), ((2,), (LAYERS,))], LAYERS),
}
"""Layers of attention and hidden states that are wanted, and how many layers get beyond their attention."""


@each_architecture
def test_a_part_is_that_of_the_whole_and_the_pass_ends_with_the_last_attention_if_no_state_is_wanted(
    model: PreTrainedModel, name: str
) -> None:
    seen = 0

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1

    for module in projections(model, name):
        module.register_forward_pre_hook(count)
    plain = captured(model, (9, 4), EVERY_LAYER)
    every = captured(model, (9, 4), EVERY_LAYER, EVERY_STATE)
    assert all(torch.equal(every[layer], weights) for layer, weights in plain.items())
    seen = 0
    run(model, (9, 4))
    assert seen == LAYERS  # a full pass goes through each of them
    for (layers, states), calls in WANTED.items():
        seen = 0
        found = captured(model, (9, 4), layers, states)
        assert seen == calls
        assert found.keys() == {f"layer.{layer}" for layer in layers} | {f"state.{number}" for number in states}
        for one in found:  # a layer that nobody reads is computed by fused attention
            torch.testing.assert_close(found[one], every[one], rtol=1e-5, atol=1e-6)


@each_architecture
@pytest.mark.parametrize("lengths", LENGTHS, ids=["unpadded", "padded"])
def test_gradients_are_what_eager_gives(model: PreTrainedModel, lengths: tuple[int, ...]) -> None:
    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        hidden = model(**inputs(lengths)).last_hidden_state
        real = inputs(lengths)["attention_mask"].bool()
        hidden[real].square().sum().backward()
        return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}

    eager = gradients()
    model.set_attn_implementation(NAME)
    ours = gradients()
    assert ours.keys() == eager.keys()
    for name, gradient in eager.items():
        torch.testing.assert_close(ours[name], gradient, rtol=0, atol=1e-5 * max(1, float(gradient.abs().max())))


DROPOUT: dict[str, dict[str, Any]] = {
    "bert": {"attention_probs_dropout_prob": 0.5, "hidden_dropout_prob": 0.0},
    "gpt2": {"attn_pdrop": 0.5, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
}
"""Half of the attention weights are dropped in training, and nothing else is."""


@pytest.mark.parametrize("name", DROPOUT)
def test_dropout_in_training_acts_on_the_values_and_not_on_what_is_captured(name: str) -> None:
    model = build(name, **DROPOUT[name])
    undropped = run(model, (9, 4), output_attentions=True)
    model.train()

    def trained() -> Tensor:
        torch.manual_seed(1)
        hidden: Tensor = run(model, (9, 4)).last_hidden_state
        return hidden

    eager = trained()
    torch.testing.assert_close(captured(model, (9, 4), [0])["layer.0"], undropped.attentions[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(trained(), eager, rtol=0, atol=1e-6)
    assert not torch.allclose(eager, undropped.last_hidden_state)  # something was dropped


def fail(number: int, *_: object) -> NoReturn:
    raise RuntimeError(f"no room for {number}")


def capture_and_fail(model: PreTrainedModel) -> None:
    capture_attention(model, inputs((9,)), lambda *_: None, frozenset({0}), fail, frozenset({0, 2}))


def intervene_and_fail(model: PreTrainedModel) -> None:
    with intervening(fail):
        model(**inputs((9,)))


@only_bert
@pytest.mark.parametrize("attempt", [capture_and_fail, intervene_and_fail])
def test_a_receiver_or_an_intervention_that_fails_leaves_nothing_behind(
    attempt: Callable[[PreTrainedModel], None], model: PreTrainedModel
) -> None:
    state, whole = captured(model, (9,), states=(2,))["state.2"], run(model, (9,)).last_hidden_state
    with pytest.raises(RuntimeError, match="no room for 0"):
        attempt(model)
    assert torch.equal(run(model, (9,)).last_hidden_state, whole)
    assert torch.equal(captured(model, (9,), states=(2,))["state.2"], state)


@pytest.mark.parametrize("outer", [intervening(fail), replacing(fail)], ids=["intervening", "replacing"])
def test_outputs_are_not_replaced_within_an_intervention_or_a_replacement(outer: AbstractContextManager[None]) -> None:
    with outer, pytest.raises(RuntimeError, match="would drop the outer change"), replacing(fail):
        pass
    with replacing(fail), intervening(fail):  # which acts before the outputs are replaced
        pass


@only_bert
def test_a_model_that_goes_round_the_interface_passes_nothing_on(model: PreTrainedModel) -> None:
    found: dict[int, Tensor] = {}
    capture_attention(model, inputs((9,)), found.__setitem__, frozenset({0}))  # it is eager still
    assert found == {}
    assert read_attention(model, inputs((9,))).modules == []
    model.set_attn_implementation(NAME)
    capture_attention(model, inputs((9,)), found.__setitem__, frozenset({1}))
    assert found.keys() == {1}
    assert [module.layer_idx for module in read_attention(model, inputs((9,))).modules] == [*EVERY_LAYER]


@each_architecture
def test_an_intervention_sees_what_each_layer_would_use(model: PreTrainedModel) -> None:
    expected = captured(model, (9, 4), EVERY_LAYER)
    found: dict[str, Tensor] = {}

    def see(layer: int, weights: Tensor, values: Tensor) -> tuple[Tensor, None]:
        assert f"layer.{layer}" not in found
        assert values.shape[:3] == (2, HEADS, 9)
        found[f"layer.{layer}"] = weights
        return weights, None

    with intervening(see):
        seen = run(model, (9, 4)).last_hidden_state
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[layer], weights) for layer, weights in expected.items())
    assert torch.equal(seen, run(model, (9, 4)).last_hidden_state)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("training", [False, True])
def test_the_weights_of_an_intervention_are_mixed_and_those_it_spares_are_not_dropped(
    key_heads: int, training: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 5, 3, generator=generator)
    key, value = (torch.randn(2, key_heads, 5, 3, generator=generator) for _ in range(2))
    other = torch.rand(2, 4, 5, 5, generator=generator)
    spared = torch.rand(2, 4, 5, 1, generator=generator) < 0.5
    torch.manual_seed(0)
    with intervening(lambda layer, weights, values: (other, spared)):
        mixed, _ = attend(nn.Module().train(training), query, key, value, None, None, 0.5)
    exact = 0
    for batch, head, source in torch.cartesian_prod(*map(torch.arange, query.shape[:3])).tolist():
        values = value[batch, head * key_heads // 4]
        expected = sum(other[batch, head, source, target] * values[target] for target in range(5))
        same = torch.allclose(mixed[batch, source, head], expected, atol=1e-6)  # type: ignore[arg-type]
        exact += same
        assert same or (training and not bool(spared[batch, head, source]))
    assert exact == 40 if not training else exact < 40


def looped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, softcap: float | None, bias: Tensor
) -> Iterator[tuple[int, int, int, Tensor, Tensor]]:
    """Attention by the book, row by row: batch, head, from, the weights and the mixed value."""
    groups = query.size(1) // key.size(1)
    for batch, head, source in torch.cartesian_prod(*map(torch.arange, query.shape[:3])).tolist():
        scores = torch.stack([query[batch, head, source] @ k for k in key[batch, head // groups]]) * scaling
        scores = scores + bias[batch, head, source]
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        exponents = (scores + mask[batch, 0, source]).exp()
        weights = exponents / exponents.sum()
        yield batch, head, source, weights, weights @ value[batch, head // groups]


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_attention_by_the_book(key_heads: int, softcap: float | None, scaling: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 5, 3, generator=generator)
    key, value = (torch.randn(2, key_heads, 5, 3, generator=generator) for _ in range(2))
    mask = torch.randn(2, 1, 5, 5, generator=generator)
    bias = torch.randn(2, 4, 5, 5, generator=generator)
    seen: list[Tensor] = []

    def see(layer: int, weights: Tensor, values: Tensor) -> tuple[Tensor, None]:
        seen.append(weights)
        return weights, None

    with intervening(see):
        mixed, _ = attend(
            nn.Module().eval(), query, key, value, mask, scaling, 0.5, softcap=softcap, position_bias=bias
        )
    [weights] = seen
    for batch, head, source, row, out in looped(query, key, value, mask, scaling or 3**-0.5, softcap, bias):
        torch.testing.assert_close(weights[batch, head, source], row)
        torch.testing.assert_close(mixed[batch, source, head], out)


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_passes_side_by_side_do_not_mix(model: PreTrainedModel) -> None:
    """ALBERT's layers are one module, called again and again: the calls of a pass are its own."""
    alone = [captured(model, lengths, states=(0, 1, 3)) for lengths in LENGTHS]
    meeting = Barrier(2)

    def meet(*_: object) -> None:
        meeting.wait(20)

    for module in model.modules():
        if isinstance(module, nn.LayerNorm):  # neither pass gets ahead of the other
            module.register_forward_pre_hook(meet)
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda lengths: captured(model, lengths, states=(0, 1, 3)), LENGTHS))
    for single, both in zip(alone, together, strict=True):
        assert list(single) == list(both)
        assert all(torch.equal(single[name], both[name]) for name in single)


def test_states_of_several_sizes_are_refused() -> None:
    """OPT may project the embeddings up, and the last states down again."""
    model = tiny.build("opt", 0, **SIZES, word_embed_proj_dim=16, ffn_dim=40)
    with pytest.raises(UserError, match=r"tiny gives 4 hidden states of the shapes .*16.*, but 4 of the shape"):
        find_state_size(model, LAYERS, "tiny")
