"""Captured attention against the model's own, for many architectures, paddings and types."""

import re
from collections.abc import Iterator
from dataclasses import replace
from inspect import signature
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from attention_probing.attention.ablation import AblatedModel
from attention_probing.attention.capture import capture_attention
from attention_probing.attention.checks import check
from studies import architectures as matrix
from tests import tiny

PIECES, LAYERS, VOCABULARY = 9, 3, 60
SIZES = {**tiny.SIZES, "num_hidden_layers": LAYERS, "max_position_embeddings": 32}
GROUPED = SIZES | {"num_key_value_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "roberta": SIZES | {"pad_token_id": 1},
    "modernbert": SIZES
    | {"global_attn_every_n_layers": 2, "local_attention": 6, "pad_token_id": 0}
    | {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
    "deberta-v2": SIZES
    | {"relative_attention": True, "position_buckets": 4, "pos_att_type": ["p2c", "c2p"], "share_att_key": True}
    | {"norm_rel_ebd": "layer_norm", "position_biased_input": False, "max_relative_positions": -1},
    "mpnet": SIZES | {"pad_token_id": 1},
    "xlnet": {"d_model": 32, "n_layer": LAYERS, "n_head": 4, "d_inner": 40},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": LAYERS, "num_heads": 4},
    "gpt2": {"n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 32, "bos_token_id": 1, "eos_token_id": 1},
    "gpt_neox": SIZES,
    "opt": SIZES | {"ffn_dim": 40, "word_embed_proj_dim": 32},
    "phi": GROUPED,
    "falcon": SIZES | {"multi_query": True, "new_decoder_architecture": False},
    "bloom": {"hidden_size": 32, "n_layer": LAYERS, "n_head": 4},
    "llama": GROUPED,
    "mistral": GROUPED | {"sliding_window": 4},
    "qwen3": GROUPED | {"head_dim": 8},
    "olmo2": GROUPED | {"eos_token_id": 1},
    "gemma3_text": GROUPED | {"head_dim": 8, "sliding_window": 4},
}
"""Sizes of a small model of each architecture."""
TAPPED = {"deberta-v2", "mpnet", "xlnet", "falcon", "bloom"}
"""Architectures that go round the attention interface."""
LENGTHS = {"left": (9, 4, 7), "right": (9, 4, 7), "none": (9, 9), "one": (7,)}
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def built(name: str) -> PreTrainedModel:
    made = tiny.build(name, 0, **{"vocab_size": VOCABULARY, **MODELS[name]})
    return made.get_encoder() if made.config.is_encoder_decoder else made


def texts(model: PreTrainedModel, padding: str) -> dict[str, Tensor]:
    lengths = torch.tensor(LENGTHS[padding])[:, None]
    place, longest = torch.arange(int(lengths.max())), int(lengths.max())
    mask = (place >= longest - lengths if padding == "left" else place < lengths).long()
    ids = torch.randint(5, VOCABULARY, mask.shape, generator=torch.Generator().manual_seed(0))
    given = {"input_ids": ids * mask + 1 - mask, "attention_mask": mask}
    counts_pads = model.config.model_type in ("roberta", "mpnet")  # and numbers positions without them by itself
    if padding == "left" and "position_ids" in signature(model.forward).parameters and not counts_pads:
        given["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)
    return given


def weights_of(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Tensor]:
    found: list[Tensor] = []
    capture_attention(model, inputs, lambda _, one: found.append(one), frozenset(range(LAYERS)))
    return found


def gaps(name: str, kind: str) -> Iterator[float]:
    """The largest difference between captured and own weights of real pieces, rounded as the model does, by padding."""
    model = built(name).to(TYPES[kind])  # type: ignore[arg-type]
    given = {padding: texts(model, padding) for padding in LENGTHS}
    with torch.inference_mode():
        own = {padding: model(**inputs, output_attentions=True).attentions for padding, inputs in given.items()}
    layers = check(model, name)
    assert layers.attending == tuple(range(LAYERS))
    assert layers.tapped == (name in TAPPED)
    for padding, inputs in given.items():
        found = weights_of(model, inputs)
        assert len(found) == LAYERS
        real = inputs["attention_mask"].bool()
        assert all(weights.dtype == torch.float32 for weights in found)
        differences = [(found[layer].to(weights.dtype) - weights).abs() for layer, weights in enumerate(own[padding])]
        yield max(float(one.transpose(1, 2)[real].max()) for one in differences)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", TYPES)
def test_captured_weights_are_the_models_own_under_any_padding(name: str, kind: str) -> None:
    assert [*gaps(name, kind)] == [0] * len(LENGTHS)


SAMPLE = [*matrix.FAMILIES, "gpt_oss", "deepseek_v32", "jamba", "gpt_neo", "convbert", "longformer", "mamba"]
SAMPLE += ["afmoe", "apertus", "exaone4", "prophetnet", "deepseek_v3"]


@pytest.mark.parametrize("name", SAMPLE)
def test_the_page_has_what_a_model_gives(name: str) -> None:
    found = matrix.row(name)
    assert not found.unbuilt
    assert found.layers is None or (found.is_equal and found.changes_equal and found.norms_equal)
    text = matrix.PAGE.read_text(encoding="utf-8")
    if found.layers is None:
        kinds = {matrix.reason(found.refused)}
    else:
        kinds = {"Read from their own weights"} if found.layers.tapped else set()  # the others are not named
        kinds |= {"With sinks"} if found.layers.has_sinks else set()
        kinds |= {"Hybrid"} if found.layers.is_hybrid else set()
    parts = dict(re.findall(r"## ([^\n]*)\n(.*?)(?=\n## |\Z)", f"## Read\n{text}", re.DOTALL))
    for title, part in parts.items():
        lines = [line for line in part.splitlines() if line.startswith("- ") and f"`{name}`" in line]
        named = {line[2:].rpartition(" (")[0] for line in lines}
        if title == "Heads off and norms":
            left_out = found.unchanged not in ("", matrix.OWN_WEIGHTS, matrix.HYBRID)  # these are named above
            assert any("Heads are not switched off" in one for one in named) == left_out
            assert any("pass through the whole model" in one for one in named) == (
                found.off is not None and not found.shares
            )
            assert any("No norms" in one for one in named) == (found.without_norms not in ("", matrix.NO_VALUES))
        else:
            assert named == {kind for kind in kinds if (kind in matrix.REASONS.values()) == (title == "Refused")}


@pytest.mark.parametrize(
    ("change", "shown"),
    [({"gaps": {"left, 5": 0.1}}, "| 1e-01 | 0 |"), ({"off": 0.1}, "off 1e-01"), ({"norms": 0.1}, "norms 1e-01")],
)
def test_a_difference_is_counted_as_silent(change: dict[str, Any], shown: str) -> None:
    good = matrix.row("bert")
    page = matrix.page([good, replace(good, model_type="wrong", **change)], 1)
    assert re.search(r"\*\*[12] equal, 0 refused, 1 wrong without a word.\*\*", page)
    [line] = [line for line in page.splitlines() if line.startswith("- `wrong` differs: ")]
    assert shown in line


def test_the_paragraph_on_the_lowest_version_is_replaced_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [matrix.row("bert")]
    before = matrix.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(transformers, "__version__", "5.0.0")
    after = matrix.page_with_lowest(rows, 1)
    differing = set(after.splitlines()) ^ set(before.splitlines())
    assert all("studies.architectures --lowest" in line for line in differing)
    assert "transformers 5.0.0, 1 s" in after


def test_heads_that_are_off_wrongly_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_heads(self: AblatedModel, run: Any, inputs: Any, ablation: Any, sets: Any, **options: Any) -> Tensor:  # noqa: ANN401
        others = [frozenset((layer, (head + 1) % self.heads) for layer, head in heads) for heads in sets]
        return plain(self, run, inputs, ablation, others, **options)

    plain = AblatedModel.run
    monkeypatch.setattr(AblatedModel, "run", wrong_heads)
    found = matrix.row("bert")
    assert found.is_equal
    assert not found.changes_equal
