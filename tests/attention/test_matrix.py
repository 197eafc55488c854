"""Captured attention against the model's own, for many architectures, paddings and types; docs/architectures.md."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests import tiny

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
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
    if padding == "left" and "position_ids" in model.forward.__code__.co_varnames and "padding_idx" not in str(model):
        given["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)
    return given
