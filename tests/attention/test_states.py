from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attention.encoder import Encoder, EncoderSpec, resolve
from attention.interface import NAME, capture_attention
from attention.options import StoreError
from attention.states import States
from tests import tiny
from tests.attention.test_interface import ARCHITECTURES, LAYERS, SIZES, build, inputs

LENGTHS = ((9, 9, 9), (9, 4, 7))
each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@pytest.fixture
def model(name: str) -> PreTrainedModel:
    return build(name, {})


def eager(model: PreTrainedModel, lengths: tuple[int, ...]) -> tuple[Tensor, ...]:
    with torch.inference_mode():
        states: tuple[Tensor, ...] = model(**inputs(lengths), output_hidden_states=True).hidden_states
    return states


def found_in(model: PreTrainedModel) -> States:
    model.set_attn_implementation(NAME)
    return States(model, LAYERS, "tiny")


def captured(
    model: PreTrainedModel, lengths: tuple[int, ...], states: Sequence[int], layers: Sequence[int] = ()
) -> dict[str, Tensor]:
    """The states asked for as `state.k`, the weights asked for as `layer.k`, in the order in which they came."""
    found: dict[str, Tensor] = {}

    def receive(layer: int, weights: Tensor) -> None:
        found[f"layer.{layer}"] = weights

    def receive_state(number: int, state: Tensor) -> None:
        found[f"state.{number}"] = state

    capture_attention(model, inputs(lengths), receive, frozenset(layers), receive_state, frozenset(states))
    return found


@each_architecture
def test_captured_states_are_those_of_eager_attention(model: PreTrainedModel) -> None:
    own = {lengths: eager(model, lengths) for lengths in LENGTHS}
    states = found_in(model)
    assert (states.count, states.size) == (LAYERS + 1, 32)
    for lengths, wanted in own.items():
        found = captured(model, lengths, range(LAYERS + 1))
        assert list(found) == [f"state.{number}" for number in range(LAYERS + 1)]
        for number, state in enumerate(wanted):
            single = found[f"state.{number}"]
            assert single.dtype == torch.float32
            assert single.shape == state.shape == (3, 9, 32)
            real = inputs(lengths)["attention_mask"].bool()
            torch.testing.assert_close(single[real], state[real], rtol=1e-6, atol=1e-5)


@each_architecture
def test_a_subset_of_states_is_that_of_all(model: PreTrainedModel) -> None:
    found_in(model)
    every = captured(model, (9, 4), range(LAYERS + 1))
    for wanted in ((0,), (1,), (LAYERS,), (0, 2)):
        found = captured(model, (9, 4), wanted)
        assert found.keys() == {f"state.{number}" for number in wanted}
        assert all(torch.equal(found[name], every[name]) for name in found)


@each_architecture
def test_weights_and_states_come_from_one_pass(model: PreTrainedModel) -> None:
    found_in(model)
    alone = captured(model, (9, 4), (), range(LAYERS))
    found = captured(model, (9, 4), range(LAYERS + 1), range(LAYERS))
    assert list(found) == ["state.0", "layer.0", "state.1", "layer.1", "state.2", "layer.2", "state.3"]
    assert all(torch.equal(found[name], alone[name]) for name in alone)


WANTED = {((0,), ()): 0, ((1,), ()): 1, ((1,), (0,)): 1, ((1,), (2,)): 2, ((0,), (1,)): 1, ((LAYERS,), (0,)): LAYERS}
"""Hidden states and layers of attention that are wanted, and how many layers get beyond their attention."""


@each_architecture
def test_a_pass_ends_with_the_last_thing_wanted(model: PreTrainedModel, name: str) -> None:
    found_in(model)
    seen = 0

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1

    for path, module in model.named_modules():
        if path.endswith(f".{ARCHITECTURES[name].after}"):
            module.register_forward_pre_hook(count)
    for (states, layers), calls in WANTED.items():
        seen = 0
        captured(model, (9,), states, layers)
        assert seen == calls


@each_architecture
def test_hooks_leave_an_ordinary_pass_as_it_was(model: PreTrainedModel) -> None:
    model.set_attn_implementation(NAME)
    with torch.inference_mode():
        before = model(**inputs((9, 4))).last_hidden_state
        found_in(model)
        assert torch.equal(model(**inputs((9, 4))).last_hidden_state, before)


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_passes_side_by_side_do_not_mix(model: PreTrainedModel) -> None:
    """ALBERT's layers are one module, called again and again: the calls of a pass are its own."""
    found_in(model)
    alone = [captured(model, lengths, (0, 1, 3)) for lengths in LENGTHS]
    meeting = Barrier(2)

    def meet(*_: object) -> None:
        meeting.wait(20)

    for module in model.modules():
        if isinstance(module, nn.LayerNorm):  # neither pass gets ahead of the other
            module.register_forward_pre_hook(meet)
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda lengths: captured(model, lengths, (0, 1, 3)), LENGTHS))
    for single, both in zip(alone, together, strict=True):
        assert list(single) == list(both)
        assert all(torch.equal(single[name], both[name]) for name in single)


@pytest.mark.parametrize("name", ["bert"])
def test_a_receiver_that_fails_leaves_no_capture_behind(model: PreTrainedModel) -> None:
    found_in(model)
    expected = captured(model, (9,), (2,))["state.2"]

    def fail(number: int, state: Tensor) -> None:
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        capture_attention(model, inputs((9,)), lambda *_: None, frozenset(), fail, frozenset({0, 2}))
    with torch.inference_mode():
        assert model(**inputs((9,))).last_hidden_state.shape == (1, 9, 32)
    assert torch.equal(captured(model, (9,), (2,))["state.2"], expected)


# What cannot be kept


def test_states_of_several_sizes_are_refused() -> None:
    """OPT may project the embeddings up, and the last states down again."""
    model = tiny.build("opt", 0, **SIZES, word_embed_proj_dim=16, ffn_dim=40)
    with pytest.raises(StoreError, match=r"tiny has 4 hidden states of shapes .*16.* to its 3 layers\. Only one of"):
        found_in(model)


@pytest.mark.parametrize("name", ["bert"])
@pytest.mark.parametrize(("count", "shown"), [(0, "0 hidden states of shapes set()"), (3, "3 hidden states of shapes")])
def test_another_number_of_states_than_layers_is_refused(
    count: int, shown: str, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = model.forward

    def fewer(**kwargs: object) -> object:
        output = whole(**kwargs)
        output.hidden_states = output.hidden_states[:count]
        return output

    monkeypatch.setattr(model, "forward", fewer)
    with pytest.raises(StoreError) as error:
        found_in(model)
    assert shown in str(error.value)


@pytest.mark.parametrize("name", ["bert"])
@pytest.mark.parametrize(
    ("change", "gap"),
    [(torch.clone, "nan"), (lambda state: state.mul_(2), r"\d\.\de[-+]\d\d")],
    ids=["copy", "in place"],
)
def test_a_state_that_is_seen_nowhere_or_changes_later_is_refused(
    change: Callable[[Tensor], Tensor], gap: str, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = model.forward

    def altered(**kwargs: object) -> object:
        output = whole(**kwargs)
        if output.hidden_states is not None:
            first, second, *others = output.hidden_states
            output.hidden_states = (first, change(second), *others)
        return output

    monkeypatch.setattr(model, "forward", altered)
    with pytest.raises(StoreError, match=rf"tiny: hidden state 1 cannot be captured \(it differs .* by {gap}\)"):
        found_in(model)


# Through the encoder


def test_of_an_encoder_decoder_the_states_are_the_encoders(tmp_path: Path) -> None:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4}
    tokenizer = tiny.bert_tokenizer()
    whole = tiny.build("t5", 0, vocab_size=len(tokenizer), **sizes)
    encoder = Encoder(resolve(EncoderSpec(str(tiny.save(tmp_path, whole, tokenizer)))))
    assert (encoder.states.count, encoder.states.size) == (4, 32)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        wanted = whole(input_ids=ids, decoder_input_ids=ids, output_hidden_states=True).encoder_hidden_states
    found: dict[int, Tensor] = {}
    encoder.capture({"input_ids": ids}, lambda *_: None, frozenset(), found.__setitem__, frozenset(range(4)))
    assert sorted(found) == [0, 1, 2, 3]
    for number, state in enumerate(wanted):
        torch.testing.assert_close(found[number], state, rtol=0, atol=1e-5)


def test_an_encoder_that_is_asked_for_no_states_has_no_hooks(tmp_path: Path) -> None:
    encoder = Encoder(resolve(EncoderSpec(str(tiny.save_bert(tmp_path)))))
    modules = list(encoder._model.modules())
    before = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules]
    encoder.capture({"input_ids": torch.tensor([[5, 6]])}, lambda *_: None, frozenset({0, 1}))
    assert [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules] == before
    encoder.capture(
        {"input_ids": torch.tensor([[5, 6]])}, lambda *_: None, frozenset(), lambda *_: None, frozenset({1})
    )
    after = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules]
    assert sum(after) == sum(before) + 3
