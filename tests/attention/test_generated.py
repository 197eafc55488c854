"""Attention of generated tokens in one pass, against that of transformers' generation step by step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from attention_probing.attention import Encoder, EncoderError
from attention_probing.attention.alignment import readable
from attention_probing.results import UserError
from attention_probing.results.view import View
from tests import tiny

SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "bos_token_id": 0, "eos_token_id": None},
    "llama": {**tiny.SIZES, "num_key_value_heads": 2, "max_position_embeddings": 128, "eos_token_id": None},
}
TOKENIZERS = {"gpt2": tiny.gpt2_tokenizer, "llama": tiny.llama_tokenizer}
PROMPTS = [
    " ".join((tiny.TEXTS[number % 3] + " " + tiny.TEXTS[0]).split()[number % 5 :][: 3 + number % 7])
    for number in range(4)
]


@pytest.fixture(scope="module", params=sorted(SIZES))
def decoder(request: pytest.FixtureRequest) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    tokenizer = TOKENIZERS[request.param]()
    config = AutoConfig.for_model(request.param, vocab_size=len(tokenizer), **SIZES[request.param])
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return model.eval(), tokenizer  # type: ignore[no-untyped-call]


def test_a_view_has_a_row_for_each_step(decoder: tuple[PreTrainedModel, PreTrainedTokenizerFast]) -> None:
    found = Encoder.from_model(*decoder).generated(PROMPTS[0], tokens=4)
    view, prompt = View.from_generated(found), found.sizes["to"] - 3
    assert (len(view.words), view.steps, view.sink) == (prompt + 4, prompt, True)
    assert list(view.words)[1:prompt] == found["to"].to_numpy()[1:prompt].tolist()
    assert list(view.words)[prompt:] == found["from"].to_numpy().tolist()
    assert (view.values[:, :, prompt:, :-1] == found.to_numpy()).all()
    assert not view.values[:, :, :prompt].any()


def assert_steps_equal(
    encoder: Encoder, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: str, tolerance: float = 1e-6
) -> None:
    """Compare the attention of 12 steps."""
    found = encoder.generated(prompt, tokens=12)
    given = torch.tensor([tokenizer(prompt)["input_ids"]])
    own: Any = model.generate(  # type: ignore[operator]
        given, attention_mask=torch.ones_like(given), max_new_tokens=12, do_sample=False, pad_token_id=0,
        output_attentions=True, return_dict_in_generate=True,
    )  # fmt: skip
    assert found["from"].to_numpy().tolist() == readable(tokenizer, own.sequences[0, given.size(1) :].tolist())
    assert found.shape == (encoder.layers, encoder.heads, 12, given.size(1) + 11)
    assert int(found["generated"].sum()) == 11
    for step, layers in enumerate(own.attentions):
        length = given.size(1) + step
        for layer, weights in enumerate(layers):
            row = torch.from_numpy(found.to_numpy()[layer, :, step])
            torch.testing.assert_close(row[:, :length], weights[0, :, -1], rtol=0, atol=tolerance)
            assert not row[:, length:].any()


def test_every_step_has_the_attention_of_generate(
    decoder: tuple[PreTrainedModel, PreTrainedTokenizerFast],
) -> None:
    encoder = Encoder.from_model(*decoder)
    assert (encoder.layers, encoder.heads) == (2, 4)
    for prompt in PROMPTS:
        assert_steps_equal(encoder, *decoder, prompt)


@pytest.mark.parametrize("name", ["gemma-3-270m", "smollm2-135m"])
def test_every_step_of_a_real_model_has_the_attention_of_generate(name: str, pretrained: Callable[[str], Path]) -> None:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        pretrained(name), attn_implementation="eager", dtype=torch.float32
    )
    model.eval()  # type: ignore[no-untyped-call]
    encoder = Encoder(str(pretrained(name)))
    for prompt in ("The capital of France is", "She opened the door, and then the door"):
        # A step of generation multiplies one row by what is cached, so sums are rounded differently in every layer.
        assert_steps_equal(encoder, model, encoder.tokenizer, prompt, 1e-5)


def test_a_continuation_is_read_as_if_it_was_generated(
    decoder: tuple[PreTrainedModel, PreTrainedTokenizerFast],
) -> None:
    model, tokenizer = decoder
    text, prompt = " the dogs sleep", tokenizer(PROMPTS[0])["input_ids"]
    ids = [*prompt, *tokenizer(text, add_special_tokens=False)["input_ids"]]
    found = Encoder.from_model(model, tokenizer).generated(PROMPTS[0], continuation=text)
    assert found["from"].to_numpy().tolist() == readable(tokenizer, ids[len(prompt) :])
    with torch.no_grad():
        own = model(torch.tensor([ids[:-1]]), output_attentions=True).attentions
    for layer, weights in enumerate(own):
        rows = torch.from_numpy(found.to_numpy()[layer])
        torch.testing.assert_close(rows, weights[0, :, len(prompt) - 1 :], rtol=0, atol=1e-6)


def test_what_cannot_be_generated_is_refused(
    decoder: tuple[PreTrainedModel, PreTrainedTokenizerFast], bert: Path, folders: dict[str, Path]
) -> None:
    encoder = Encoder.from_model(*decoder)
    with pytest.raises(UserError, match=r"takes at most \d+ pieces; prompt and continuation have 5\d\d"):
        encoder.generated("the dog", tokens=500)
    with pytest.raises(UserError, match=r"The continuation has no tokens"):
        encoder.generated("the dog", continuation="")
    with pytest.raises(UserError, match=r"^generated: tokens is 0, but must be at least 1"):
        encoder.generated("the dog", tokens=0)
    with pytest.raises(UserError, match=r"generated: prompt is \['the'\], but must be text"):
        encoder.generated(["the"])  # type: ignore[arg-type]
    with pytest.raises(EncoderError, match=r"is not a decoder, so it cannot generate"):
        Encoder(str(bert)).generated("the dog")
    with pytest.raises(EncoderError, match=r"cannot generate: its files have no language-modelling head"):
        Encoder(str(folders["llama"])).generated("the dog")
    assert Encoder(str(folders["llama"])).generated("the dog", continuation="saw a cat").sizes["from"] > 1
