"""Heads that are scaled and patched, against TransformerLens 4.3.0, which is installed for this test alone.

Its bridge reads the same weights, and hooks change `hook_z`, the outputs of the heads.
"""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from attention_probing.attention.ablation import AblatedModel, Ablation, partners_of_pairs
from attention_probing.attention.capture import NAME
from tests.attention.test_ablation import slow_partner
from tests.tiny import llama_tokenizer, save

LAYERS = HEADS = 4
SENTENCES = ([1, 5, 6, 7, 8, 9], [1, 5, 10, 7, 8, 9]), ([1, 5, 6, 7, 8], [1, 5, 10, 11, 12, 7, 8])
"""Two minimal pairs: one differs in one token, and of the other the second sentence has two tokens more."""
LARGEST = 1e-5
"""Largest difference of a logit."""


def language_model(kind: str) -> Any:  # noqa: ANN401
    """A random decoder of 4 layers of 4 heads; the Llama has two key heads."""
    sizes: dict[str, Any] = {
        "vocab_size": 20,
        "hidden_size": 32,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
    }
    if kind == "llama":
        sizes |= {"num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": 32}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, initializer_range=0.3, **sizes)
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return model.eval()


@pytest.fixture(params=["gpt2", "llama"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any]:
    """The model with the attention of this program, and TransformerLens's bridge of its copy."""
    why = "transformer-lens is not installed: it is a dependency of this test alone (pip install transformer-lens)"
    pytest.importorskip("transformer_lens", reason=why)
    bridge = importlib.import_module("transformer_lens.model_bridge").TransformerBridge
    model = language_model(request.param)
    save(tmp_path, model, llama_tokenizer())
    copy = AutoModelForCausalLM.from_pretrained(tmp_path)
    theirs = bridge.boot_transformers(str(tmp_path), hf_model=copy, device="cpu")
    model.set_attn_implementation(NAME)
    return model, theirs


def ours_of(model: Any, ablation: Ablation, tokens: Tensor, lengths: Tensor) -> dict[tuple[int, int], Tensor]:  # noqa: ANN401
    """Logits `[texts, pieces, words]` with each head changed."""
    mask = (torch.arange(tokens.size(1)) < lengths[:, None]).long()
    inputs = {"input_ids": tokens, "attention_mask": mask}
    heads = [*product(range(LAYERS), range(HEADS))]

    def run(given: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = model(**given).logits
        return logits

    partners = partners_of_pairs(tokens, lengths)
    ablated = AblatedModel(model.base_model, LAYERS, HEADS)
    assert ablated.shares
    found = ablated.run(run, inputs, ablation, [frozenset({one}) for one in heads], partners=partners)
    return dict(zip(heads, found, strict=True))


def theirs_of(model: Any, text: list[int], layer: int, change: Callable[[Tensor], Tensor]) -> Tensor:  # noqa: ANN401
    """Logits `[pieces, words]` of one text whose outputs of the heads of a layer are changed."""
    hooks = [(f"blocks.{layer}.attn.hook_z", lambda outputs, hook: change(outputs.clone()))]
    with torch.no_grad():
        logits: Tensor = model.run_with_hooks(torch.tensor([text]), fwd_hooks=hooks)[0]
    return logits


def patched_by(model: Any, text: list[int], partner: list[int], layer: int, head: int) -> Tensor:  # noqa: ANN401
    """Logits `[pieces, words]` of a text in which a head writes what it writes in its partner."""
    in_partner: list[Tensor] = []

    def keep(outputs: Tensor) -> Tensor:
        in_partner.append(outputs)
        return outputs

    def patch(outputs: Tensor) -> Tensor:
        for place in range(len(text)):
            other = slow_partner(text, partner, place)
            if other is not None:
                outputs[0, place, head] = in_partner[0][0, other, head]
        return outputs

    theirs_of(model, partner, layer, keep)
    return theirs_of(model, text, layer, patch)


def tokens_of(pair: tuple[list[int], list[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, pair))
    padded = [[*text, *[0] * (longest - len(text))] for text in pair]
    return torch.tensor(padded), torch.tensor([len(text) for text in pair])


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("pair", SENTENCES)
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_scaled_heads_are_those_of_transformer_lens(
    factor: float, pair: tuple[list[int], list[int]], both: tuple[Any, Any]
) -> None:
    model, theirs = both
    found = ours_of(model, Ablation("scale", factor=factor), *tokens_of(pair))
    intact = ours_of(model, Ablation("scale"), *tokens_of(pair))

    def scale(outputs: Tensor, head: int) -> Tensor:
        outputs[:, :, head] *= factor
        return outputs

    largest = 0.0
    for (layer, head), (row, text) in product(found, enumerate(pair)):
        expected = theirs_of(theirs, text, layer, partial(scale, head=head))
        ours = found[layer, head][row, : len(text)]
        largest = max(largest, float((ours - expected).abs().max()))
        assert (ours - intact[layer, head][row, : len(text)]).abs().max() > 100 * LARGEST
    print(f"largest difference, factor {factor:g}: {largest:.1e}")
    assert largest < LARGEST


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("pair", SENTENCES)
def test_patched_heads_are_those_of_transformer_lens(pair: tuple[list[int], list[int]], both: tuple[Any, Any]) -> None:
    model, theirs = both
    found = ours_of(model, Ablation("patch"), *tokens_of(pair))
    intact = ours_of(model, Ablation("scale"), *tokens_of(pair))
    largest = 0.0
    for (layer, head), (row, text) in product(found, enumerate(pair)):
        expected = patched_by(theirs, text, pair[1 - row], layer, head)
        ours = found[layer, head][row, : len(text)]
        largest = max(largest, float((ours - expected).abs().max()))
        assert (ours - intact[layer, head][row, : len(text)]).abs().max() > 100 * LARGEST
    print(f"largest difference, patched: {largest:.1e}")
    assert largest < LARGEST
