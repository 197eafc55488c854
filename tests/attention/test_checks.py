"""Models that are read wrongly by a check on one short text without padding."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AttentionInterface, AutoModel, PreTrainedModel

from attention_probing.attention import Encoder, EncoderError, EncoderSpec, Options
from attention_probing.attention.capture import NAME, MismatchError, attend
from attention_probing.attention.checks import check, read_attention
from attention_probing.results.errors import UserError
from studies import architectures as matrix
from tests import tiny


def save(folder: Path, model_type: str, **settings: object) -> Path:
    """Write a small model whose tokenizer knows the words of the tests."""
    matrix_settings = {**matrix.small(model_type), "vocab_size": len(tiny.bert_tokenizer()), **settings}
    config = CONFIG_MAPPING[model_type](**matrix_settings)
    torch.manual_seed(0)
    model = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3, generator=torch.Generator().manual_seed(parameter.numel()))
            else:
                parameter.copy_(parameter.nan_to_num(0, 0, 0).clamp(-5, 5))
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0  # as it stays in training
    return tiny.save(folder, model, tiny.bert_tokenizer())


LONG = "the quick brown fox jumps over the lazy dogs while a small café serves naïve guests strong coffee hourly"


def own(folder: Path, encoder: Encoder, text: str) -> np.ndarray[Any, Any]:
    """The weights that eager attention gives a text, `[layers, heads, from, to]`."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    model.config.use_cache = False
    ids = encoder.tokenizer(text.split(), is_split_into_words=True, return_tensors="pt").input_ids
    with torch.inference_mode():
        found = model(input_ids=ids, output_attentions=True).attentions
    return np.stack([one[0].numpy() for one in found if one is not None])


@pytest.mark.parametrize(
    ("model_type", "is_tapped", "has_sinks"),
    [
        ("deepseek_v32", False, False),  # chosen positions
        ("gpt_oss", False, True),
        ("flint", False, True),
        ("granite_swa", True, False),  # scales the outputs by the sink, and not the weights
        ("diffllama", True, False),  # calls the interface twice in a layer
        ("gpt_neo", True, False),
    ],
)
def test_texts_beyond_the_window_have_the_models_own_attention(
    model_type: str, is_tapped: bool, has_sinks: bool, tmp_path: Path
) -> None:
    encoder = Encoder(str(save(tmp_path, model_type)))
    assert (encoder.tapped, encoder.has_sinks) == (is_tapped, has_sinks)
    short, long = encoder.attention(["the fox", LONG], over="pieces")
    for found, text in ((short, "the fox"), (long, LONG)):  # in one batch
        np.testing.assert_allclose(found.to_numpy(), own(tmp_path, encoder, text), rtol=0, atol=1e-5)
    rows = encoder.attention([LONG])[0].to_numpy()[..., 1:-1, :].sum(-1)
    assert (rows < 0.99).any() == has_sinks
    assert (rows < 1.001).all()


def heads(batch: int, count: int, size: int, seed: int) -> Tensor:
    return torch.randn(batch, count, size, 3, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("kind", ["s_aux", "sinks"])
def test_sinks_and_chosen_positions_by_the_book(key_heads: int, kind: str) -> None:
    query, key, value = heads(2, 4, 5, 0), heads(2, key_heads, 5, 1), heads(2, key_heads, 5, 2)
    sinks = torch.randn(2, 4, 5, 1) if kind == "sinks" else torch.randn(4)
    chosen = torch.stack([torch.randperm(5)[:2] for _ in range(10)]).view(2, 5, 2).int()
    mask = torch.zeros(2, 1, 5, 5).masked_fill(torch.rand(2, 1, 5, 5) < 0.2, torch.finfo(torch.float32).min)

    class Attention(nn.Module):
        def forward(self, **_: object) -> tuple[Tensor]:
            given: dict[str, Any] = {kind: sinks, "indices": chosen}
            return (attend(self, query, key, value, mask, **given)[0],)

    reading = read_attention(Attention().train(False), {"attention_mask": torch.ones(2, 5)})  # type: ignore[arg-type]
    assert reading.fused < 1e-6
    for batch, head, source in torch.cartesian_prod(*map(torch.arange, (2, 4, 5))).tolist():
        own_key, own_value = key[batch, head * key_heads // 4], value[batch, head * key_heads // 4]
        sink = sinks[batch, head, source, 0] if kind == "sinks" else sinks[head]
        seen = [to for to in chosen[batch, source].tolist() if mask[batch, 0, source, to] == 0]
        exponents = {to: (query[batch, head, source] @ own_key[to] * 3**-0.5).exp() for to in seen}
        whole = sum(exponents.values(), sink.exp())
        expected = sum((one / whole * own_value[to] for to, one in exponents.items()), torch.zeros(3))
        torch.testing.assert_close(reading.state[batch, source, head], expected, rtol=0, atol=1e-5)
        weights = torch.tensor([float(exponents.get(to, torch.zeros(())) / whole) for to in range(5)])
        torch.testing.assert_close(reading.weights[0][batch, head, source], weights, rtol=0, atol=1e-6)


def test_fused_attention_that_differs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", lambda *a, **b: fused(*a, **b) * 1.01)
    assert check(matrix.build("llama"), "llama").tapped


@pytest.mark.parametrize("given", [torch.zeros(1), print], ids=["tensor", "function"])
def test_what_the_attention_function_does_not_know_is_refused_by_name(given: object) -> None:
    query = heads(1, 2, 3, 0)
    attend(nn.Module(), query, query, query, None, position_ids=torch.arange(3), sliding_window=4, block_mask=None)
    with pytest.raises(MismatchError, match="`block_indices`, which captures"):
        attend(nn.Module(), query, query, query, None, block_indices=given)


def test_a_model_with_an_unknown_argument_is_read_through_its_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    attention = modeling_llama.LlamaAttention.forward

    def with_more(self: nn.Module, *args: Any, **options: Any) -> object:  # noqa: ANN401
        return attention(self, *args, **options, block_indices=torch.zeros(1))  # type: ignore[arg-type, call-arg]

    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", with_more)
    assert check(matrix.build("llama"), "llama").tapped
    with pytest.raises(
        EncoderError, match=r"takes the argument `block_indices`, which captures do not support.*cannot be changed"
    ):
        check(matrix.build("llama"), "llama", changes=True)


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("convbert", "mixes padding into the text"),
        ("prophetnet", r"not attention weights, probably scores before the softmax: the lowest is -\d"),
        ("big_bird", "replaces its attention when it reads a short text.*original_full"),
        ("pegasus_x", "attention of the shapes dict"),
        ("ibert", "own weights cannot be read"),
        ("fsmt", "no model of its own"),
        ("mamba", "no attention weights"),
        ("longformer", "pooled, windowed or linear attention"),
    ],
)
def test_a_refusal_names_the_reason(model_type: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=message):
        Encoder(str(save(tmp_path, model_type)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_padding_that_reaches_the_text_is_seen_in_half_precision_too(dtype: str, tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="mixes padding into the text"):
        Encoder(EncoderSpec(str(save(tmp_path, "convbert")), dtype=dtype))  # type: ignore[arg-type]


def test_a_quantised_model_that_depends_on_padding_is_not_blamed_on_its_architecture() -> None:
    model = matrix.build("convbert")
    model.config.quantization_config = SimpleNamespace(quant_method="bitsandbytes")
    with pytest.raises(EncoderError) as refusal:
        check(model, "mine")
    message = str(refusal.value)
    assert re.search(r"^mine \(ConvBertModel\): padding a batch changes attention weights by \d", message)
    assert "weights are quantised (bitsandbytes)" in message
    assert message.endswith("Give the model with plain weights, or with 4 bits.")
    assert "architecture" not in message


def test_sinks_too_small_to_be_seen_in_sums_are_sinks(tmp_path: Path) -> None:
    folder = save(tmp_path, "gpt_oss")
    model = AutoModel.from_pretrained(folder)
    for layer in model.layers:
        nn.init.constant_(layer.self_attn.sinks, -30)
    model.save_pretrained(folder)
    encoder = Encoder(str(folder))
    assert encoder.has_sinks
    with pytest.raises(UserError, match="sinks"):
        encoder.attention([LONG], quantity="rollout")


@pytest.mark.parametrize("model_type", ["gemma3_text", "gpt_neo", "jamba", "xlnet"])
def test_the_check_leaves_the_model_as_it_was(model_type: str) -> None:
    model = matrix.build(model_type)
    assert matrix.WINDOW != 6

    def state() -> list[object]:
        owners = (model.config, *model.modules())
        plain = [
            {name: one for name, one in vars(owner).items() if type(one) in (int, bool) and name[0] != "_"}
            for owner in owners
        ]
        return [plain, [type(module) for module in model.modules()], [*map(str, model.state_dict().values())]]

    before, buffers = state(), [one.clone() for one in model.buffers()]
    check(model, model_type)
    assert state() == before
    assert all(torch.equal(one, other) for one, other in zip(model.buffers(), buffers, strict=True))


def test_a_fault_beyond_a_large_top_k_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published model chooses 2,048 positions, more than any text of a check has."""
    monkeypatch.setattr("attention_probing.attention.capture._hide_others", lambda indices, query, key, mask: mask)
    settings = {**matrix.small("deepseek_v32"), "index_topk": 2048}
    monkeypatch.setattr(matrix, "small", lambda _: settings)
    model = matrix.build("deepseek_v32")
    assert model.config.index_topk == 2048
    assert check(model, "deepseek_v32").tapped
    assert model.config.index_topk == 2048


def test_states_that_differ_are_seen_although_the_weights_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(*args: Any, **options: Any) -> tuple[Tensor, None]:  # noqa: ANN401
        outputs, _ = attend(*args, **options)
        return outputs * 0.9, None

    model = matrix.build("bert")
    monkeypatch.setitem(AttentionInterface._global_mapping, NAME, scaled)
    assert check(model, "bert").tapped


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("jamba"), "jamba")


class TestHybrids:
    """Models of which some layers have no attention."""

    def test_layers_carry_the_models_own_numbers(self, folder: Path) -> None:
        encoder = Encoder(str(folder))
        assert (encoder.layers, encoder.attending) == (4, (1, 3))
        [array] = encoder.attention([LONG])
        assert array["layer"].to_numpy().tolist() == [2, 4]
        [last] = encoder.attention([LONG], options=Options(layers=(4,), precision="float32"))
        np.testing.assert_allclose(last.sel(layer=4), array.sel(layer=4), rtol=0, atol=1e-5)
        with pytest.raises(UserError, match=r"^`layers` contains 1, but 2 layers have attention.*some of 2, 4\."):
            encoder.attention([LONG], options=Options(layers=(1, 2)))
        assert encoder.state_size == 32
        assert encoder.allowed(torch.ones(1, 5, dtype=torch.bool)).of_layers.shape == (4,)

    def test_layers_without_attention_are_nan(self, folder: Path) -> None:
        encoder, found = Encoder(str(folder)), dict[int, Tensor]()
        tokens = torch.arange(5, 10)[None]
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        encoder.capture(inputs, lambda layer, one: found.__setitem__(layer, one.clone()), frozenset(range(4)))
        assert list(found) == [0, 1, 2, 3]
        assert [bool(one.isnan().all()) for one in found.values()] == [True, False, True, False]
        states: dict[int, Tensor] = {}
        encoder.capture(inputs, lambda *_: None, frozenset({3}), states.__setitem__, frozenset({0, 4}))
        assert states.keys() == {0, 4}

    @pytest.mark.parametrize("quantity", ["rollout", "alti"])
    def test_products_over_layers_are_refused(self, folder: Path, quantity: Any) -> None:  # noqa: ANN401
        with pytest.raises(UserError, match="the layers between those with attention mix tokens too"):
            Encoder(str(folder)).attention([LONG], quantity=quantity)

    def test_interventions_are_refused(self, folder: Path) -> None:
        with pytest.raises(EncoderError, match="attention in 2 of its 4 layers, but Ablation needs it in all"):
            Encoder(str(folder)).require_interface("Ablation")


def test_rollout_of_rows_that_do_not_sum_to_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rows of its attention sum to less than one \(sinks\)"):
        Encoder(str(save(tmp_path, "gpt_oss"))).attention([LONG], quantity="rollout")


def test_masks_of_models_that_are_read_through_hooks_are_their_own(tmp_path: Path) -> None:
    encoder = Encoder(str(save(tmp_path, "gpt_neo")))
    assert encoder.causal
    allowed = encoder.allowed(torch.ones(1, 20, dtype=torch.bool))
    for layer in range(4):
        width = 20 if layer % 2 == 0 else matrix.WINDOW
        expected = [[row - width < column <= row for column in range(20)] for row in range(20)]
        assert allowed.at(layer)[0, 0].tolist() == expected


def test_masks_do_not_depend_on_weights_that_vanish(tmp_path: Path) -> None:
    folder = save(tmp_path, "bloom")
    model: PreTrainedModel = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query_key_value" in name:
                parameter.mul_(100)  # most weights are 0 in single precision
    model.save_pretrained(folder)
    encoder = Encoder(str(folder))
    assert encoder.tapped
    assert encoder.causal
    assert encoder.allowed(torch.ones(1, 9, dtype=torch.bool)).at(0)[0, 0].equal(torch.ones(9, 9).tril().bool())


def test_norms_in_the_bottleneck_of_mobilebert(tmp_path: Path) -> None:
    encoder = Encoder(str(save(tmp_path, "mobilebert")))
    [norms], [weights] = (
        encoder.attention([LONG], quantity="norms", over="pieces"),
        encoder.attention([LONG], over="pieces"),
    )
    layer: Any = encoder.model.encoder.layer[0].attention  # type: ignore[union-attr, index]
    ids = torch.tensor([encoder.tokenizer(LONG.split(), is_split_into_words=True).input_ids])
    values: list[Tensor] = []
    layer.self.value.register_forward_hook(lambda *given: values.append(given[-1]))
    encoder.model(input_ids=ids)
    for head in range(4):
        part = slice(4 * head, 4 * head + 4)
        moved = values[0][0][:, part] @ layer.output.dense.weight[:, part].T
        expected = weights.to_numpy()[0, head] * moved.norm(dim=-1).numpy()
        np.testing.assert_allclose(norms.to_numpy()[0, head], expected, rtol=1e-4, atol=1e-6)
