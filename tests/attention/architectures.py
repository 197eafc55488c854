"""Small models of many architectures, for tests of what happens inside a forward pass."""

from torch import nn
from transformers import PreTrainedModel

from tests import tiny

VOCABULARY, LAYERS, HEADS, DIM = 60, 3, 4, 8
SIZES: dict[str, object] = {
    **tiny.SIZES,
    **{"num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "max_position_embeddings": 32},
}
ARCHITECTURES: dict[str, tuple[dict[str, object], str]] = {
    "bert": (SIZES, "attention.output.dense"),
    "roberta": (SIZES | {"pad_token_id": 1}, "attention.output.dense"),
    "electra": (SIZES | {"embedding_size": 16}, "attention.output.dense"),
    "distilbert": ({"dim": 32, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 40}, "attention.out_lin"),
    "albert": (SIZES | {"embedding_size": 16}, "attention.dense"),
    "gpt2": ({"n_embd": 32, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 32}, "attn.c_proj"),
    "gpt_neox": (SIZES | {"use_parallel_residual": True}, "attention.dense"),
    "llama": (SIZES | {"num_key_value_heads": 2}, "self_attn.o_proj"),
    # A window of 4 pieces in every other layer, and a bound on the scores low enough to be felt.
    "gemma2": (
        SIZES | {"num_key_value_heads": 2, "head_dim": DIM, "sliding_window": 4, "attn_logit_softcapping": 0.5},
        "self_attn.o_proj",
    ),
    # Norms of queries and keys, `[batch, heads, pieces, dim]`.
    "gemma3_text": (SIZES | {"num_key_value_heads": 2, "head_dim": DIM, "sliding_window": 4}, "self_attn.o_proj"),
    "modernbert": (
        SIZES
        | {"global_attn_every_n_layers": 2, "local_attention": 6, "pad_token_id": 0}
        | {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
        "attn.Wo",
    ),
    "t5": ({"d_model": 32, "d_kv": DIM, "d_ff": 40, "num_layers": LAYERS, "num_heads": HEADS}, "SelfAttention.o"),
}
"""Sizes of a small model, and the module of each layer that reads the outputs of the heads."""


def build(name: str, seed: int = 0, **further: object) -> PreTrainedModel:
    """Make a model whose every parameter is drawn; of an encoder-decoder the encoder."""
    made = tiny.build(name, seed, **{"vocab_size": VOCABULARY, **ARCHITECTURES[name][0], **further})
    return made.get_encoder() if made.config.is_encoder_decoder else made


def projections(model: PreTrainedModel, name: str) -> list[nn.Module]:
    """The modules that read the outputs of the heads; a head's columns lie side by side."""
    return [module for path, module in model.named_modules() if path.endswith(f".{ARCHITECTURES[name][1]}")]
