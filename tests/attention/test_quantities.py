"""Quantities against published numbers, slow loops, and the outputs of the models themselves."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, Cache, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from attention_probing.attention import Encoder
from attention_probing.attention.alignment import Reduction
from attention_probing.attention.capture import NAME, LayerCall, capture_attention, remember_arguments
from attention_probing.attention.quantities import (
    QUANTITIES,
    LayerParts,
    QuantityName,
    effective_attention,
    find_parts,
    summed_norms,
    with_residual,
)
from attention_probing.attention.specification import Options
from attention_probing.results.errors import UserError
from tests.attention.architectures import ARCHITECTURES, build, projections
from tests.attention.extractions import Extraction


def _matrix(rows: int, columns: int, frequency: float, shift: float) -> Tensor:
    t = torch.arange(rows * columns, dtype=torch.float64).reshape(rows, columns)
    return 0.5 * torch.cos(frequency * t**2 + shift)


@pytest.fixture(scope="module")
def layer() -> tuple[PreTrainedModel, Tensor, LayerParts, LayerCall]:
    """One BERT layer with the weights of a fixture whose numbers the authors' code has computed."""
    size, n = 8, 5
    config = BertConfig(
        hidden_size=size, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16, vocab_size=20,
        hidden_act="gelu", layer_norm_eps=1e-12, max_position_embeddings=8,
    )  # fmt: skip
    model: Any = BertModel(config, add_pooling_layer=False).double()
    model.train(False)
    model.set_attn_implementation(NAME)
    m = torch.arange(size, dtype=torch.float64)
    block = model.encoder.layer[0]
    own = block.attention.self
    with torch.no_grad():
        for linear, frequency, shift in ((own.query, 0.3, 1), (own.key, 0.7, 2), (own.value, 1.1, 3)):
            linear.weight.copy_(_matrix(size, size, frequency, shift).T)
            linear.bias.zero_()
        own.value.bias.copy_(0.1 * torch.sin(m + 1))
        output = block.attention.output
        output.dense.weight.copy_(_matrix(size, size, 1.3, 4).T)
        output.dense.bias.copy_(0.1 * torch.cos(m + 1))
        block.intermediate.dense.weight.copy_(_matrix(size, 16, 0.9, 5).T)
        block.intermediate.dense.bias.copy_(0.1 * torch.sin(torch.arange(16, dtype=torch.float64)))
        block.output.dense.weight.copy_(_matrix(16, size, 0.4, 6).T)
        block.output.dense.bias.copy_(0.1 * torch.cos(m))
        for norm in (output.LayerNorm, block.output.LayerNorm):
            norm.weight.copy_(1 + 0.1 * m)
            norm.bias.copy_(0.05 * m)
    t = torch.arange(n * size, dtype=torch.float64).reshape(n, size)
    given = torch.sin(1 + 0.13 * t**2)
    [parts] = find_parts(model, "fixture")
    remember_arguments([block])
    calls: list[LayerCall] = []

    def keep(_: int, call: LayerCall) -> Tensor:
        calls.append(call)
        return call.mixture.weights

    def receive(*_: object) -> None:
        pass

    class Layers(nn.Module):
        def forward(self, **_: object) -> None:
            model.encoder(given[None])

    capture_attention(Layers(), {}, receive, frozenset({0}), measure=keep)  # type: ignore[arg-type]
    return model, given, parts, calls[0]


def _maps(kind: type, parts: LayerParts, call: LayerCall) -> Tensor:
    real = torch.ones(1, call.input.size(1), dtype=torch.bool)
    whole = Reduction.of_pieces(real)
    quantity = kind([parts], real, Reduction(whole.rows.double(), whole.columns.double(), whole.owners))
    with torch.inference_mode():
        maps: Tensor = quantity.words(quantity.maps(0, call))
    return maps[0]


ROWS: dict[str, list[tuple[int, int, tuple[float, ...]]]] = {  # quantity: head, row and its numbers, both from 1
    "attention": [(1, 1, (0.127551, 0.327511, 0.188578, 0.113597, 0.242764))],
    "norms": [
        (1, 1, (0.129441, 0.550807, 0.092208, 0.119051, 0.117888)),
        (2, 5, (0.201310, 0.232771, 0.631172, 0.185250, 0.119563)),
    ],
    "norms_summed": [(1, 1, (0.207262, 0.750958, 0.164852, 0.271423, 0.412512))],
    "norms_residual": [
        (1, 1, (4.416367, 1.628200, 0.278064, 0.491255, 0.900080)),
        (1, 4, (0.685184, 2.947417, 0.502832, 6.327505, 1.255503)),
    ],
    "effective": [(1, 1, (0.063907, 0.332703, 0.200406, 0.180943, 0.171555))],
    "value_zeroing": [
        (1, 1, (0.007816, 0.669553, 0.013013, 0.021849, 0.287769)),
        (1, 5, (0.305857, 0.021000, 0.340376, 0.323407, 0.009360)),
    ],
    "alti": [(1, 1, (0.788132, 0, 0, 0.156746, 0.055122)), (1, 4, (0.637459, 0, 0, 0.362541, 0))],
}


@pytest.mark.parametrize("name", ROWS)
def test_a_layer_has_the_numbers_of_the_authors_code(
    name: str, layer: tuple[PreTrainedModel, Tensor, LayerParts, LayerCall]
) -> None:
    _, _, parts, call = layer
    maps = _maps(QUANTITIES[name], parts, call)
    for head, row, numbers in ROWS[name]:
        assert maps[head - 1, row - 1].tolist() == pytest.approx(numbers, abs=1e-6)


def test_attention_with_the_residual_connection_has_the_diagonal_of_the_authors_code(
    layer: tuple[PreTrainedModel, Tensor, LayerParts, LayerCall],
) -> None:
    _, _, parts, call = layer
    with torch.inference_mode():
        found = summed_norms(call.mixture.weights, call.mixture.values @ parts.by_head, call.input)
    assert found[0].diagonal().tolist() == pytest.approx([2.300063, 2.362163, 1.877044, 1.860985, 1.540528], abs=1e-6)


def test_rollout_has_the_numbers_of_the_authors_code() -> None:
    t = torch.arange(48, dtype=torch.float64).reshape(3, 1, 4, 4)
    scores = torch.exp(torch.sin(1 + 0.7 * t**2))
    mixed = [with_residual(one)[0] for one in (scores / scores.sum(-1, keepdim=True))[:, None]]
    rollout = mixed[2] @ mixed[1] @ mixed[0]
    assert rollout[0].tolist() == pytest.approx([0.356528, 0.230453, 0.217025, 0.195994], abs=1e-6)
    assert rollout[3].tolist() == pytest.approx([0.223733, 0.130627, 0.180654, 0.464986], abs=1e-6)


def test_effective_attention_looks_at_the_rank_and_not_at_the_number_of_columns() -> None:
    """Plain sinusoids have rank 2: a basis of all four columns would keep too much."""
    t = torch.arange(20, dtype=torch.float64).reshape(5, 4)
    moved, weights = torch.sin(1 + 0.13 * t), torch.rand(5, 5, dtype=torch.float64).softmax(-1)
    found = effective_attention(weights[None, None], moved[None, None])[0, 0]
    null = torch.linalg.svd(moved)[0][:, 2:]
    torch.testing.assert_close(found, weights - weights @ null @ null.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(found @ moved, weights @ moved, rtol=0, atol=1e-12)
    assert not effective_attention(weights[None, None], torch.zeros(1, 1, 5, 4, dtype=torch.float64)).any()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_parts_of_each_layer_are_found(name: str) -> None:
    model = build(name)
    model.set_attn_implementation(NAME)
    parts = find_parts(model, name)
    assert [part.projection for part in parts] in (projections(model, name), 3 * projections(model, name))
    post_norm = name in ("bert", "roberta", "electra", "distilbert", "albert")
    assert all((part.norm is not None) == post_norm for part in parts)
    # GPT-NeoX adds attention and MLP at once; Gemma 2 and 3 normalise the output of the attention.
    assert all(part.residual == (name not in ("gpt_neox", "gemma2", "gemma3_text")) for part in parts)


VALUES = {"bert": "attention.self.value", "gpt2": "attn.c_attn", "llama": "self_attn.v_proj"}
NORMS = {"bert": "attention.output.LayerNorm"}
OUTPUTS = {name: ARCHITECTURES[name][1] for name in VALUES}
PADDED = (11, 7)


class Loops:
    """The quantities of one text, computed token by token from what the layers of a model read and return.

    Args:
        model: Model with eager attention.
        name: Name of its architecture.
        ids: Pieces of the text.
    """

    def __init__(self, model: PreTrainedModel, name: str, ids: Tensor) -> None:
        self.model, self.name, self.ids = model, name, ids[None]
        paths = [path for path, _ in model.named_modules() if path.endswith(OUTPUTS[name])]
        self.blocks = [model.get_submodule(path.removesuffix(f".{OUTPUTS[name]}")) for path in paths]
        self.given: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.values: list[Tensor] = []
        hooks = [block.register_forward_pre_hook(self._given, with_kwargs=True) for block in self.blocks]
        hooks += [block.get_submodule(VALUES[name]).register_forward_hook(self._values) for block in self.blocks]
        with torch.no_grad():
            self.weights = [one[0].double() for one in model(self.ids, output_attentions=True).attentions]
        for hook in hooks:
            hook.remove()

    def _given(self, _: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        self.given.append((args or (kwargs["hidden_states"],))[0][0])

    def _values(self, _: nn.Module, args: object, output: Tensor) -> None:
        self.values.append(output[0].chunk(3, -1)[2] if self.name == "gpt2" else output[0])

    def moved(self, layer: int) -> Tensor:
        """Weighted values after the output projection, head by head, `[heads, from, to, size]`."""
        weights, dense = self.weights[layer], self.blocks[layer].get_submodule(OUTPUTS[self.name])
        heads, n, _ = weights.shape
        values = self.values[layer].view(n, -1, 8)  # eight dimensions for each head
        zero = weights.new_zeros(n, heads * 8)
        found = weights.new_empty(heads, n, n, zero.size(1))
        with torch.no_grad():
            none = dense(zero)
            for head in range(heads):
                alone = zero.clone()
                alone[:, head * 8 : head * 8 + 8] = values[:, head * values.size(1) // heads]
                found[head] = weights[head][..., None] * (dense(alone) - none)
            self.bias = none[0]
        return found

    def norms(self, layer: int) -> Tensor:
        return self.moved(layer).square().sum(-1).sqrt()

    def norms_summed(self, layer: int) -> Tensor:
        return self.moved(layer).sum(0, keepdim=True).square().sum(-1).sqrt()

    def _shares(self, layer: int) -> tuple[Tensor, Tensor]:
        """The vector of each pair of tokens in the normalised state, and this state."""
        moved = self.moved(layer).sum(0)
        state = moved.sum(1) + self.bias + self.given[layer]
        places = torch.arange(len(state))
        moved[places, places] += self.given[layer]
        if self.name not in NORMS:
            return moved, state
        norm = self.blocks[layer].get_submodule(NORMS[self.name])
        assert isinstance(norm, nn.LayerNorm)
        with torch.no_grad():
            moved = norm.weight * (moved - moved.mean(-1, keepdim=True))
            moved = moved / (state.var(-1, unbiased=False) + norm.eps).sqrt()[:, None, None]
            return moved, norm(state)

    def norms_residual(self, layer: int) -> Tensor:
        return self._shares(layer)[0].square().sum(-1).sqrt()[None]

    def effective(self, layer: int) -> Tensor:
        found = self.weights[layer].clone()
        for head, moved in enumerate(self.moved(layer)):
            # Any row of the mixture: all have the same vectors, with other weights.
            vectors = moved[-1] / self.weights[layer][head, -1, :, None]
            basis, sizes, _ = torch.linalg.svd(vectors)
            null = basis[:, int((sizes > 1e-5 * sizes[0]).sum()) :]
            found[head] -= found[head] @ null @ null.T
        return found

    def value_zeroing(self, layer: int) -> Tensor:
        """The model runs once for each token, whose values are zeroed in one layer by a hook."""
        block, width = self.blocks[layer], self.values[layer].size(-1)
        outputs: list[Tensor] = []

        def keep(_: nn.Module, args: object, output: Tensor | tuple[Tensor, ...]) -> None:
            outputs.append((output if isinstance(output, Tensor) else output[0])[0])

        for token in (None, *range(self.ids.size(1))):

            def zero(_: nn.Module, args: object, output: Tensor, token: int | None = token) -> Tensor:
                output = output.clone()
                if token is not None:
                    output[0, token, -width:] = 0
                return output

            hooks = (
                block.register_forward_hook(keep),
                block.get_submodule(VALUES[self.name]).register_forward_hook(zero),
            )
            with torch.no_grad():
                self.model(self.ids)
            for hook in hooks:
                hook.remove()
        whole, *without = outputs
        found = torch.stack([1 - torch.cosine_similarity(whole, one, dim=-1) for one in without], 1)
        return (found / found.sum(1, keepdim=True))[None]

    def rollout(self, layer: int) -> Tensor:
        found = torch.eye(self.ids.size(1), dtype=torch.float64)
        for below in range(layer + 1):
            found = (self.weights[below].mean(0) + torch.eye(len(found), dtype=torch.float64)) / 2 @ found
        return found[None]

    def alti(self, layer: int) -> Tensor:
        found = torch.eye(self.ids.size(1), dtype=torch.float64)
        for below in range(layer + 1):
            shares, state = self._shares(below)
            own = torch.empty_like(found)
            for place in np.ndindex(own.shape):
                left = (state[place[0]] - shares[place]).abs().sum()
                own[place] = max(0.0, float(state[place[0]].abs().sum() - left))
            found = own / own.sum(1, keepdim=True) @ found
        return found[None]


@pytest.mark.parametrize("name", VALUES)
def test_every_quantity_is_that_of_a_slow_loop_padded_or_not(name: str) -> None:
    model = build(name)
    texts = [torch.randint(4, 60, (length,), generator=torch.Generator().manual_seed(length)) for length in PADDED]
    loops = [Loops(deepcopy(model).double(), name, text) for text in texts]
    model.set_attn_implementation(NAME)
    parts = find_parts(model, name)
    remember_arguments(part.block for part in parts)
    ids = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    real = torch.arange(PADDED[0]) < torch.tensor(PADDED)[:, None]
    for kind in QUANTITIES.values():
        bidirectional = name in NORMS
        if kind.name in ("attention", "attention_without_first") or (
            kind.name in ("norms_residual", "effective") and not bidirectional
        ):
            continue
        quantity, found = kind(dict(enumerate(parts)), real, Reduction.of_pieces(real)), dict[int, Tensor]()
        capture_attention(
            model, {"input_ids": ids, "attention_mask": real.long()}, found.__setitem__, frozenset(range(3)),
            measure=quantity.maps, lower=True,
        )  # fmt: skip
        for layer, row in np.ndindex(3, 2):
            n, expected = PADDED[row], getattr(loops[row], kind.name)(layer).float()
            maps = quantity.words(found[layer])[row, :, :n, :n]
            close = torch.allclose(maps, expected, rtol=1e-5, atol=1e-5 * max(1, float(expected.abs().max())))
            gap = float((maps - expected).abs().max())
            assert close, f"{kind.name}, layer {layer + 1}, text {row + 1}: {gap}"


SENTENCES = ["The foxglove jumps over the dogs .", "He overslept yesterday ."]


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_without_the_first_token_a_row_is_shared_by_the_others(name: str) -> None:
    model = build(name)
    model.set_attn_implementation(NAME)
    inputs = {"input_ids": torch.arange(4, 11)[None]}
    raw, without = dict[int, Tensor](), dict[int, Tensor]()
    capture_attention(model, inputs, raw.__setitem__, frozenset(range(3)))
    quantity = QUANTITIES["attention_without_first"]({}, torch.empty(0), Reduction.of_pieces(torch.ones(1, 7)))
    capture_attention(model, inputs, without.__setitem__, frozenset(range(3)), measure=quantity.maps)
    for layer, head, row in np.ndindex(3, 4, 7):
        weights = raw[layer][0, head, row].tolist()
        rest = sum(weights[1:])
        expected = weights if rest == 0 else [0.0, *(weight / rest for weight in weights[1:])]
        assert without[layer][0, head, row].tolist() == pytest.approx(expected, abs=1e-6)
    assert (without[1][0, :, 1:, 0] == 0).all()
    assert bool((without[1][0, :, 0, 0] == 1).all()) is (name == "llama")


@pytest.mark.parametrize("name", QUANTITIES)
def test_a_store_holds_a_quantity_as_it_was_computed(name: QuantityName, extraction: Extraction) -> None:
    """Negative numbers and numbers above 1 come back from the disk."""
    extraction = replace(extraction, lengths=(9, 4, 1), options=Options(quantity=name, layers=(2,)))
    store = extraction.prepare()
    encoder = Encoder(str(extraction.encoder))
    words = [sentence.words for sentence in extraction.treebank.sentences]
    arrays = encoder.attention(words, options=Options(quantity=name, layers=(2,), precision="float32"))
    assert store.manifest.quantity == store.manifest.maps_name == name
    for item, array in enumerate(arrays):
        found = store.read(name, item)
        assert found.shape[:2] == (1, 4 if QUANTITIES[name].has_heads else 1)
        torch.testing.assert_close(found, torch.from_numpy(array.to_numpy()), rtol=2**-10, atol=1e-6)


def test_stores_of_attention_keep_the_key_that_they_had_before_other_quantities(extraction: Extraction) -> None:
    identity = extraction.prepare().manifest.identity
    assert identity["quantities"] == ["attention"]
    assert identity["options"] == {
        "layers": None, "heads": None, "precision": "float16", "too_long": "error", "from_pieces": "mean"
    }  # fmt: skip
    assert not {"quantity", "measures"} & identity.keys()
    other = replace(extraction, options=Options(quantity="rollout")).prepare().manifest
    assert (other.identity["quantity"], other.heads) == ("rollout", (0,))


def test_upper_layers_of_a_rollout_have_been_rolled_out_from_the_lowest(folders: dict[str, Path]) -> None:
    encoder = Encoder(str(folders["bert"]))
    every = encoder.attention(SENTENCES, quantity="rollout")
    upper = encoder.attention(SENTENCES, options=Options(layers=(2,), precision="float32"), quantity="rollout")
    for one, other in zip(every, upper, strict=True):
        np.testing.assert_array_equal(one.to_numpy()[1:], other.to_numpy())


def test_value_zeroing_leaves_out_all_pieces_of_a_word_at_once(folders: dict[str, Path]) -> None:
    encoder = Encoder(str(folders["bert"]))
    [words], [pieces] = (
        encoder.attention(SENTENCES[:1], quantity="value_zeroing", over=over) for over in ("words", "pieces")
    )
    assert words.sizes["to"] < pieces.sizes["to"]
    summed = pieces.sel(layer=1, head=1)[1, pieces["to_word"].to_numpy() == 2].sum()
    assert abs(float(words.sel(layer=1, head=1)[1, 2] - summed)) > 1e-3


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "no such name": ({"quantity": "norm"}, "norms"),
    "heads of a quantity without heads": ({"quantity": "alti", "heads": (1,)}, "one map for each layer"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_do_not_fit_a_quantity_are_refused(case: str) -> None:
    options, message = REFUSED[case]
    with pytest.raises(UserError, match=message):
        Options(**options)  # type: ignore[arg-type]


def test_a_pre_norm_model_has_no_norms_after_normalisation(folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r"GPT2Model\) has no norms_residual: its layers do not normalise .* Choose"):
        Encoder(str(folders["gpt2"])).attention(SENTENCES, quantity="norms_residual")


def test_a_model_whose_heads_no_linear_layer_reads_is_refused(folders: dict[str, Path]) -> None:
    encoder = Encoder(str(folders["bert"]))
    model: Any = encoder.model
    own = model.encoder.layer[0].attention.output
    own.dense = nn.Sequential(nn.Tanh(), own.dense)
    with pytest.raises(UserError, match="layer 1: no linear layer reads the output"):
        encoder.attention(SENTENCES, quantity="effective")


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_effective_attention_of_a_decoder_is_refused(name: str, folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r"has no effective: its tokens do not see all others .* Choose norms"):
        Encoder(str(folders[name])).attention(SENTENCES, quantity="effective")


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_a_layer_that_runs_again_is_whole_and_leaves_the_cache_of_keys_as_it_is(name: str) -> None:
    model = build(name)
    model.set_attn_implementation(NAME)
    parts = find_parts(model, name)
    remember_arguments(part.block for part in parts)
    assert all(sum(isinstance(one, nn.Linear | Conv1D) for one in part.block.modules()) > 3 for part in parts)
    inputs, caches = {"input_ids": torch.arange(4, 13)[None]}, list[Cache]()
    real = torch.ones(1, 9, dtype=torch.bool)
    quantity = QUANTITIES["value_zeroing"](dict(enumerate(parts)), real, Reduction.of_pieces(real))

    def measure(layer: int, call: LayerCall) -> Tensor:
        caches.extend(one for one in (*call.args, *call.kwargs.values()) if isinstance(one, Cache))
        return quantity.maps(layer, call)

    capture_attention(model, inputs, lambda *_: None, frozenset({0, 1}), measure=measure)
    assert all(cache.get_seq_length() == 9 for cache in caches)
    assert bool(caches) == (name != "t5")


def test_the_rank_of_a_text_does_not_depend_on_its_padding() -> None:
    drawn = torch.Generator().manual_seed(0)
    moved = torch.zeros(1, 1, 40, 4)
    moved[0, 0, :5] = torch.randn(5, 4, generator=drawn)
    left, sizes, right = torch.linalg.svd(moved[0, 0, :5], full_matrices=False)
    sizes[-1] = 20 * torch.finfo(torch.float32).eps * sizes[0]  # above the error for 5 tokens, below that for 40
    moved[0, 0, :5] = left * sizes @ right
    weights = torch.zeros(1, 1, 40, 40)
    weights[..., :5, :5] = torch.rand(5, 5, generator=drawn).softmax(-1)
    alone = effective_attention(weights[..., :5, :5], moved[..., :5, :])
    padded = effective_attention(weights, moved, torch.tensor([5]))[..., :5, :5]
    assert torch.allclose(padded, alone, atol=0.01)  # the direction of the smallest singular value is not exact
    assert not torch.allclose(effective_attention(weights, moved)[..., :5, :5], alone, atol=0.03)


@pytest.mark.parametrize("rank", [5, 4])
def test_effective_attention_of_few_tokens_is_raw_attention_only_if_their_vectors_are_independent(rank: int) -> None:
    drawn = torch.Generator().manual_seed(1)
    moved = torch.zeros(2, 3, 7, 8)
    moved[:, :, :5] = torch.randn(2, 3, 5, rank, generator=drawn) @ torch.randn(rank, 8, generator=drawn)
    moved[1, :, 4] = 0  # a text of four tokens
    weights = torch.zeros(2, 3, 7, 7)
    weights[..., :5] = torch.rand(2, 3, 7, 5, generator=drawn).softmax(-1)
    weights[1, ..., 4] = 0
    found = effective_attention(weights, moved, torch.tensor([5, 4]))
    projection = moved @ torch.linalg.pinv(moved)
    torch.testing.assert_close(found, weights @ projection, rtol=0, atol=1e-5)
    assert torch.equal(found, weights) == (rank == 5)
