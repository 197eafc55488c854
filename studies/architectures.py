"""Captured attention against the model's own, for every text model of transformers that can be built small.

    python -m studies.architectures [MODEL TYPE …]

Without arguments it writes docs/architectures.md; with some, it prints their rows.
"""

import os
import re
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_MAPPING, AutoModel, PreTrainedModel

from attention.capture import capture_attention, read
from attention.checks import AttentionLayers, EncoderError, check

PAGE = Path(__file__).parents[1] / "docs" / "architectures.md"
VOCABULARY, LAYERS, WINDOW = 60, 4, 8
SHORT, LONG = 5, 19
LARGEST = 30_000_000
"""Parameters of a model that its sizes below do not make small; it is left out."""
SIZES: Sequence[tuple[str, int]] = (
    (r"^(ff_)?vocab(ulary)?_size$|^vocab_size_per_layer_input$", VOCABULARY),
    (r"^(max_position_embeddings|n_positions|n_ctx|(max_)?seq(uence)?_len(gth)?|max_(source|target)_positions)$", 128),
    (r"(key_value_heads|kv_heads|multi_query_group_num)$", 2),
    (r"^(num_experts_per_tok(en)?|moe_top_?k|top_k_experts|router_top_k|moe_k|num_selected_experts)$", 2),
    (r"^(n_group|topk_group|num_expert_group|n_groups|mamba_n_groups|n_shared_experts|num_shared_experts)$", 1),
    (r"(experts|num_experts)$", 4),
    (r"(^|_)(hidden_|encoder_|decoder_|num_|n_)*layers?$", LAYERS),
    (r"(attention_heads|num_heads|n_heads?)$|^(mamba_num|linear_num_(key|value))_heads$", 4),
    (r"^(swa_|global_|attention_|qk_nope_|qk_rope_|v_|linear_key_|linear_value_)?head_dim$|^(d_kv|kv_channels)$", 8),
    (r"(intermediate_size|ffn_dim|d_ff|ffn_hidden_size|n_inner|d_inner|^hidden_dim|mlp_dim|feed_forward_size)", 48),
    (r"^(hidden_size(_per_layer_input)?|d_model|dim|n_embd|emb(ed)?_dim|embedding_size|d_embed)$", 32),
    (r"^(word_embed_proj_dim|true_hidden_size|intra_bottleneck_size|lru_width|attention_hidden_size)$", 32),
    (r"(lora_rank|^index_head_dim|^mamba_(d_head|head_dim))$", 16),
    (r"^(index_n_heads|mamba_dt_rank|pkm_.*)$", 2),
    (r"(sliding_window(_size)?|^window_size|index_topk|attention_chunk_size|local_attention)$", WINDOW),
    (r"(mamba_d_state|ssm_state_size|^state_size|mamba_chunk_size)$", 8),
)
"""Names of settings, and their values in a small model; the first that fits counts."""
LATENT, SMALL_HEADS = {"num_key_value_heads": 4}, {"head_dim": 8}
VISION = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
FURTHER: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("axk1", "axk2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa"), LATENT),
    **dict.fromkeys(
        ("glm4_moe_lite", "longcat_flash", "minicpm3", "dots3_note_text", "esmc", "glm5_next_text"), LATENT
    ),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral"), SMALL_HEADS),
    "deepseek_v2": {**LATENT, "num_experts_per_tok": 2},
    **dict.fromkeys(("glm_image_text", "glm_ocr_text", "glm4v_text", "qwen2_vl_text", "qwen2_5_vl_text"), VISION),
    "bamba": {"attn_layer_indices": [1, 3], "mamba_n_heads": 4, "mamba_d_head": 16},
    "codegen": {"rotary_dim": 4},
    "gptj": {"rotary_dim": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 4, "mamba_d_head": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "mobilebert": {"embedding_size": 32, "true_hidden_size": 16, "intra_bottleneck_size": 16},
    "esm": {"vocab_size": VOCABULARY, "mask_token_id": 4, "pad_token_id": 1},
    "dots1": {"pad_token_id": 0},
}
"""Settings that some models need besides."""
FAMILIES = ("bert", "roberta", "deberta-v2", "modernbert", "t5", "gpt2", "llama", "qwen3", "gemma3_text", "mistral")
"""The ten families with the most published models."""
REASONS = {
    "mixes padding": "padding reaches the text",
    "no attention weights": "no attention weights (linear attention, convolution or state space)",
    "attention of the shapes": "pooled, windowed or linear attention",
    "replaces its attention": "the mode changes with the length of a text",
    "token ids alone": "more than token ids are needed",
    "own weights cannot be read": "weights are used before they can be read",
    "no model of its own": "the encoder is no model of its own",
}


def small(model_type: str) -> dict[str, Any]:
    """Return settings of a small model of an architecture."""
    default, found = CONFIG_MAPPING[model_type](), dict[str, Any]()
    for name, value in vars(default).items():
        size = next((size for pattern, size in SIZES if re.search(pattern, name)), None)
        is_size = (type(value) is int and value > 0) or (value is None and name == "num_key_value_heads")
        if is_size and size is not None and "feed_forward" not in name:
            found[name] = size
        if name.endswith("token_id") and isinstance(value, int) and value >= VOCABULARY:
            found[name] = {"pad": 0, "bos": 2, "eos": 3, "cls": 2, "sep": 3}.get(name.partition("_")[0], 4)
    return {**found, **FURTHER.get(model_type, {})}


def text_models() -> list[str]:
    """Return the model types whose models read text."""
    found = []
    for model_type, config in CONFIG_MAPPING.items():
        try:
            kinds = MODEL_MAPPING.get(config, None)
            kind: Any = kinds[0] if isinstance(kinds, tuple | list) else kinds
            reads = getattr(kind, "input_modalities", "text")
            takes = kind is not None and "input_ids" in signature(kind.forward).parameters
        except (ImportError, AttributeError, ValueError):  # models that need another library, or are not there
            continue
        if takes and reads in ("text", ("text",), ["text"]):
            found.append(model_type)
    return found


def build(model_type: str, seed: int = 0) -> PreTrainedModel:
    """Make a small model with eager attention and random weights that are far from their initialisation."""
    config = CONFIG_MAPPING[model_type](**small(model_type))
    with torch.device("meta"):
        size = sum(one.numel() for one in AutoModel.from_config(config).parameters())  # type: ignore[no-untyped-call]
    if size > LARGEST:
        raise ValueError(f"{size / 1e6:.0f} million parameters")
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModel.from_config(config, attn_implementation="eager")  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3, generator=generator)
            else:  # some are left as they were in memory
                usual = parameter.where(parameter.isfinite() & (parameter.abs() < 100), torch.zeros(()))
                parameter.copy_(usual + torch.empty_like(parameter).normal_(0, 0.1, generator=generator))
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0  # as it stays in training
    model.train(False).config.use_cache = False
    return model.requires_grad_(False)


def texts(model: PreTrainedModel) -> Iterator[tuple[str, dict[str, Tensor], tuple[slice, ...]]]:
    """Yield each padding with inputs of a model, and the real positions of each row."""
    generator = torch.Generator().manual_seed(1)
    pad = getattr(model.config, "pad_token_id", None) or 0
    long, short = (torch.randint(5, VOCABULARY, (size,), generator=generator) for size in (LONG, SHORT))
    fill = torch.full((LONG - SHORT,), pad)

    def inputs(*rows: Tensor, real: Sequence[slice]) -> tuple[dict[str, Tensor], tuple[slice, ...]]:
        ids = torch.stack(rows)
        mask = torch.zeros_like(ids)
        for row, some in enumerate(real):
            mask[row, some] = 1
        return {"input_ids": ids, "attention_mask": mask}, tuple(real)

    whole = slice(0, LONG)
    yield "alone", *inputs(short, real=[slice(0, SHORT)])
    yield "alone", *inputs(long, real=[whole])
    yield "right", *inputs(torch.cat([short, fill]), long, real=[slice(0, SHORT), whole])
    yield "left", *inputs(torch.cat([fill, short]), long, real=[slice(LONG - SHORT, LONG), whole])


@dataclass(frozen=True)
class Row:
    """What a model type gives.

    Attributes:
        model_type: Its name.
        layers: How it is read; None if it is refused or cannot be built small.
        refused: The message of the refusal.
        unbuilt: The reason why no small model can be built.
        gaps: Largest difference of weights by padding and length, such as `left, short`.
        states: Largest difference of last hidden states, relative to the largest number.
    """

    model_type: str
    layers: AttentionLayers | None = None
    refused: str = ""
    unbuilt: str = ""
    gaps: Mapping[str, float] | None = None
    states: float = 0.0

    @property
    def gap(self) -> float:
        """The largest of all differences."""
        return max((*(self.gaps or {}).values(), self.states))

    @property
    def is_equal(self) -> bool:
        """True if all differences are within rounding."""
        return self.gap <= 1e-4

    @property
    def cells(self) -> str:
        """The row of the table."""
        assert self.layers is not None
        assert self.gaps is not None
        through = "own weights" if self.layers.tapped else "interface"
        notes = [f"layers {', '.join(str(one + 1) for one in self.layers.attending)} of {self.layers.layers}"]
        notes = [*(notes if self.layers.is_hybrid else []), *(["sinks"] if self.layers.has_sinks else [])]
        numbers = [_shown(gap) for gap in (*self.gaps.values(), self.states)]
        return f"| {' | '.join((f'`{self.model_type}`', ', '.join([through, *notes]), *numbers))} |"


def _shown(gap: float) -> str:
    return "0" if gap < 1e-6 else f"{gap:.0e}"


def row(model_type: str) -> Row:
    """Compare what captures read with the eager model, on texts that the check at loading does not know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            whole = build(model_type)
        except Exception as error:  # of any kind, from a config that wants other sizes
            return Row(model_type, unbuilt=" ".join(f"{type(error).__name__}: {error}".split())[:100])
        model = whole.get_encoder() if whole.config.is_encoder_decoder else whole
        if not isinstance(model, PreTrainedModel):
            return Row(model_type, refused="the encoder is no model of its own in transformers")
        eager = deepcopy(model)
        try:
            layers = check(model, model_type)
        except EncoderError as error:
            return Row(model_type, refused=str(error))
        return compared(model_type, model, eager, layers)


@torch.inference_mode()
def compared(model_type: str, model: PreTrainedModel, eager: PreTrainedModel, layers: AttentionLayers) -> Row:
    """Return the differences between what captures read and the eager model."""
    gaps, states = dict[str, float](), 0.0
    for padding, inputs, real in texts(model):
        found = read(model, inputs)
        product: dict[int, Tensor] = {}
        every = frozenset(range(len(layers.attending)))
        capture_attention(model, inputs, product.__setitem__, every)
        own = eager(**inputs, output_attentions=True)
        weights = [one for one in own.attentions if one is not None]
        assert len(product) == len(found.weights) == len(weights)
        for number, some in enumerate(real):
            size = "short" if some.stop - some.start == SHORT else "long"
            pairs = [*zip(product.values(), weights, strict=True), *zip(found.weights, weights, strict=True)]
            differences = [(one - other)[number, :, some, some].abs().max() for one, other in pairs]
            gaps[f"{padding}, {size}"] = float(torch.stack(differences).max().nan_to_num(9))
            mine, other = found.state[number], own[0][number]
            if mine.dim() > 1:  # not the state of a whole text
                mine, other = mine[some], other[some]
            state = (mine - other).abs().max() / other.abs().max().clamp_min(1)
            states = max(states, float(state.nan_to_num(9)))
    return Row(model_type, layers, gaps=gaps, states=states)


def reason(refused: str) -> str:
    """Return a short form of a refusal."""
    return next((short for part, short in REASONS.items() if part in refused), "other")


def listed(names: Iterable[str]) -> str:
    """Return names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def page(rows: Sequence[Row], seconds: float) -> str:
    """Return the Markdown of docs/architectures.md."""
    built, unbuilt = [one for one in rows if not one.unbuilt], [one.model_type for one in rows if one.unbuilt]
    equal = [one for one in built if one.layers and one.is_equal]
    silent = [one for one in built if one.layers and not one.is_equal]
    refused = dict[str, list[str]]()
    for one in built:
        if one.refused:
            refused.setdefault(reason(one.refused), []).append(one.model_type)
    head = PAGE.read_text(encoding="utf-8").partition("<!-- made by studies/architectures.py -->")[0]
    kinds = {
        "Read from their own weights": [one for one in equal if one.layers and one.layers.tapped],
        "With sinks": [one for one in equal if one.layers and one.layers.has_sinks],
        "Hybrid": [one for one in equal if one.layers and one.layers.is_hybrid],
    }
    direct = len(equal) - len(kinds["Read from their own weights"])
    lines = [
        "<!-- made by studies/architectures.py -->",
        "",
        f"`python -m studies.architectures`, transformers {transformers.__version__}, {seconds:.0f} s on "
        f"{os.cpu_count()} cores: {len(rows)} model types of text, of which {len(built)} can be built small. "
        f"**{len(equal)} equal, {sum(map(len, refused.values()))} refused, {len(silent)} wrong without a word.** "
        f"Of the ten largest families, equal: {listed(one.model_type for one in equal if one.model_type in FAMILIES)}.",
        "",
        f"Weights and last hidden states are compared in single precision, for a text of {SHORT} and one of {LONG} "
        f"pieces (windows, chunks and top-k are {WINDOW}), alone, padded on the right and padded on the left. "
        f"Equal models differ by at most {max(1e-6, *(one.gap for one in equal)):.0e}.",
        "",
        f"- Read through the interface ({direct}): all types not named below",
        *(f"- {kind} ({len(some)}): {listed(one.model_type for one in some)}" for kind, some in kinds.items()),
        *(f"- `{one.model_type}` differs by {one.gap:.0e}" for one in silent),
        "",
        "## Refused",
        "",
        *(
            f"- {why} ({len(names)}): {listed(names)}"
            for why, names in sorted(refused.items(), key=lambda item: -len(item[1]))
        ),
        "",
        f"Not built small, as their configurations want other sizes: {listed(unbuilt)}.",
        "",
    ]
    return head + "\n".join(lines)


def main(names: Sequence[str] = ()) -> None:
    """Print the rows of some model types, or write the page of all."""
    start, found = time.monotonic(), list[Row]()
    for name in names or text_models():
        found.append(row(name))
        last = found[-1]
        print(last.cells if last.layers else f"{name}: {last.refused or last.unbuilt}", flush=True)
    if not names:
        PAGE.write_text(page(found, time.monotonic() - start), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
