"""Captured and changed attention against the model's own, for every text model of transformers that can be built small.

    python -m studies.architectures [--lowest] [MODEL TYPE …]

Without model types it writes docs/architectures.md; with some, it prints their rows. With `--lowest` it writes only the
paragraph on the lowest version of transformers, which must be the one that is installed.
"""

import argparse
import os
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_MAPPING, AutoModel, PreTrainedModel

from attention_probing.attention.ablation import AblatedModel, Ablation
from attention_probing.attention.capture import LayerCall, capture_attention
from attention_probing.attention.checks import AttentionLayers, check, read_attention
from attention_probing.attention.quantities import LayerParts, Norms, find_parts
from attention_probing.attention.source import EncoderError
from attention_probing.results.errors import UserError
from studies.by_hand import (
    NoReferenceError,
    largest_difference,
    norms_by_hand,
    run_with_heads_patched,
    run_with_heads_scaled,
)

PAGE = Path(__file__).parents[1] / "docs" / "architectures.md"
MADE, LOWEST = "<!-- made by studies/architectures.py -->", "<!-- lowest version -->"
VOCABULARY, LAYERS, WINDOW = 60, 4, 8
LENGTHS = (5, 28, 14)
"""Numbers of pieces of the texts: below, above and next to the windows."""
OFF = (frozenset({(0, 0)}), frozenset({(1, 2), (2, 1)}))
"""Sets of 0-based (layer, head) pairs to switch off."""
CLOSE = 1e-5
"""Largest difference of what heads that are off leave, and of norms, from what is computed by hand."""
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
TOKENS = {"pad": 0, "bos": 2, "eos": 3, "cls": 2, "sep": 3}
OTHER_TOKEN = 4
"""Ids of special tokens of a small model, where those of the default are beyond its vocabulary."""
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
    "not attention weights": "scores before the softmax instead of weights",
    "no attention weights": "no attention weights (linear attention, convolution or state space)",
    "attention of the shapes": "pooled, windowed or linear attention",
    "replaces its attention": "the mode changes with the length of a text",
    "token ids alone": "more than token ids are needed",
    "own weights cannot be read": "weights are used before they can be read",
    "no model of its own": "the encoder is no model of its own",
}


def small(model_type: str) -> dict[str, Any]:
    """Return settings of a small model of an architecture."""
    default = CONFIG_MAPPING[model_type]()
    settings: dict[str, Any] = {}
    for name, value in vars(default).items():
        size = _small_size(name)
        is_size = (type(value) is int and value > 0) or (value is None and name == "num_key_value_heads")
        if is_size and size is not None and "feed_forward" not in name:
            settings[name] = size
        if name.endswith("token_id") and isinstance(value, int) and value >= VOCABULARY:
            token = name.partition("_")[0]
            settings[name] = TOKENS.get(token, OTHER_TOKEN)
    return {**settings, **FURTHER.get(model_type, {})}


def _small_size(setting: str) -> int | None:
    """Return the value of a setting in a small model; None if it keeps its default."""
    for pattern, size in SIZES:
        if re.search(pattern, setting):
            return size
    return None


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
        unmade: PreTrainedModel = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    size = sum(parameter.numel() for parameter in unmade.parameters())
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
    rows = [torch.randint(5, VOCABULARY, (length,), generator=generator) for length in LENGTHS]
    longest = max(LENGTHS)

    for row in rows:
        yield "alone", {"input_ids": row[None], "attention_mask": torch.ones_like(row)[None]}, (slice(0, len(row)),)
    for padding in ("right", "left"):
        ids = torch.full((len(rows), longest), pad)
        mask = torch.zeros_like(ids)
        real = []
        for number, row in enumerate(rows):
            start = 0 if padding == "right" else longest - len(row)
            positions = slice(start, start + len(row))
            ids[number, positions] = row
            mask[number, positions] = 1
            real.append(positions)
        yield padding, {"input_ids": ids, "attention_mask": mask}, tuple(real)


@dataclass(frozen=True)
class Row:
    """Comparison of one model type with its eager attention.

    Attributes:
        model_type: Name of the model type.
        layers: Its attention layers; None if it is refused or cannot be built small.
        refused: The message of the refusal.
        unbuilt: The reason why no small model can be built.
        gaps: Largest difference of weights by padding and length, such as `left, 5`.
        states: Largest difference of last hidden states, relative to the largest number.
        intact: Largest relative difference of last hidden states with no head switched off; None if heads cannot be
            switched off.
        off: Largest relative difference of last hidden states with heads off, halved or patched, from the same by
            hand; None if heads cannot be switched off.
        shares: True if the layers below the heads that are off are computed once for all sets of heads.
        unchanged: Reason why heads cannot be switched off, or their zeroing cannot be compared.
        norms: Largest difference of norms from norms by hand, relative to the largest; None if there are no norms.
        without_norms: Reason why there are no norms, or they cannot be compared.
    """

    model_type: str
    layers: AttentionLayers | None = None
    refused: str = ""
    unbuilt: str = ""
    gaps: Mapping[str, float] | None = None
    states: float = 0.0
    intact: float | None = None
    off: float | None = None
    shares: bool = False
    unchanged: str = ""
    norms: float | None = None
    without_norms: str = ""

    @property
    def gap(self) -> float:
        """The largest difference of weights and states."""
        gaps = self.gaps or {}
        return max(self.states, *gaps.values())

    @property
    def gap_of_changes(self) -> float:
        """The largest difference of norms, and of states with heads changed or not."""
        return max(self.intact or 0, self.off or 0, self.norms or 0)

    @property
    def is_equal(self) -> bool:
        """True if all differences of weights and states are within rounding."""
        return self.gap <= 1e-4

    @property
    def changes_equal(self) -> bool:
        """True if switching heads off is zeroing by hand, and switching nothing off is the model, within rounding."""
        return max(self.intact or 0, self.off or 0) <= CLOSE

    @property
    def norms_equal(self) -> bool:
        """True if the norms are those by hand, within rounding."""
        return (self.norms or 0) <= CLOSE

    @property
    def is_wrong(self) -> bool:
        """True if one of the comparisons of a model that is loaded shows a difference."""
        return not (self.is_equal and self.changes_equal and self.norms_equal)

    @property
    def cells(self) -> str:
        """The row of the table."""
        assert self.layers is not None
        assert self.gaps is not None
        access = ["own weights" if self.layers.tapped else "interface"]
        if self.layers.is_hybrid:
            attending = ", ".join(str(layer + 1) for layer in self.layers.attending)
            access.append(f"layers {attending} of {self.layers.layers}")
        if self.layers.has_sinks:
            access.append("sinks")

        cells = [f"`{self.model_type}`", ", ".join(access)]
        for gap in (*self.gaps.values(), self.states):
            cells.append(_format_gap(gap))
        if self.off is None:
            cells.append(self.unchanged)
        else:
            cells.append(f"off {_format_gap(self.off)}, intact {_format_gap(self.intact)}")
        if self.norms is None:
            cells.append(self.without_norms)
        else:
            cells.append(f"norms {_format_gap(self.norms)}")
        return f"| {' | '.join(cells)} |"


def _format_gap(gap: float | None) -> str:
    if not gap or gap < 1e-6:
        return "0"
    return f"{gap:.0e}"


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
        compared = compare_captures(model_type, model, eager, layers)
        compared = replace(compared, **compare_heads_off(model, eager, layers))
        return replace(compared, **compare_norms(model, eager, layers))


@torch.inference_mode()
def compare_captures(model_type: str, model: PreTrainedModel, eager: PreTrainedModel, layers: AttentionLayers) -> Row:
    """Return the differences between what captures read and the eager model."""
    all_layers = frozenset(range(len(layers.attending)))
    gaps: dict[str, float] = {}
    states = 0.0
    for padding, inputs, real in texts(model):
        read = read_attention(model, inputs)
        captured: dict[int, Tensor] = {}
        capture_attention(model, inputs, captured.__setitem__, all_layers)
        outputs = eager(**inputs, output_attentions=True)
        weights = [layer for layer in outputs.attentions if layer is not None]
        assert len(captured) == len(read.weights) == len(weights)

        pairs = [*zip(captured.values(), weights, strict=True), *zip(read.weights, weights, strict=True)]
        for number, positions in enumerate(real):
            differences = []
            for ours, theirs in pairs:
                difference = (ours - theirs)[number, :, positions, positions]
                differences.append(difference.abs().max())
            pieces = positions.stop - positions.start
            gaps[f"{padding}, {pieces}"] = float(torch.stack(differences).max().nan_to_num(9))
        states = max(states, largest_difference(read.state, outputs[0], real, square=False))
    return Row(model_type, layers, gaps=gaps, states=states)


def compare_heads_off(model: PreTrainedModel, eager: PreTrainedModel, layers: AttentionLayers) -> dict[str, Any]:
    """Return the differences of a model with heads off, halved and patched from the same by hand, for a `Row`.

    They are attributes of the row; `off` is the largest difference of the three kinds.
    """
    if layers.tapped:
        return {"unchanged": OWN_WEIGHTS}
    if layers.is_hybrid:
        return {"unchanged": HYBRID}
    ablated = AblatedModel(model, layers.layers, layers.heads)
    intact = off = 0.0
    for _, inputs, real in texts(model):
        number, pieces = inputs["input_ids"].shape
        rows = torch.arange(number).roll(-1)[:, None].expand(-1, pieces)
        is_real = inputs["attention_mask"].bool()
        places = torch.arange(pieces).where(is_real & is_real.roll(-1, 0), -1)
        try:
            expected = _change_by_hand(eager, inputs, layers.layers)
        except NoReferenceError as error:
            return {"unchanged": f"not compared: {error}"}
        with torch.inference_mode():
            unchanged = eager(**inputs)[0]
        for ablation, by_hand in expected.items():
            sets = [frozenset(), *OFF]
            same, *ours = ablated.run(lambda given: model(**given)[0], inputs, ablation, sets, partners=(rows, places))
            intact = max(intact, largest_difference(same, unchanged, real, square=False))
            for one, other in zip(ours, by_hand, strict=True):
                off = max(off, largest_difference(one, other, real, square=False))
    return {"intact": intact, "off": off, "shares": ablated.shares}


def _change_by_hand(model: PreTrainedModel, inputs: Mapping[str, Tensor], layers: int) -> dict[Ablation, list[Tensor]]:
    """Return the last hidden states with each set of `OFF` zeroed, halved and patched by hand.

    Raises:
        NoReferenceError: Not every layer calls the eager attention function of its file.
    """
    zeroed = []
    halved = []
    patched = []
    for heads in OFF:
        zeroed.append(run_with_heads_scaled(model, inputs, heads, layers, 0.0))
        halved.append(run_with_heads_scaled(model, inputs, heads, layers, 0.5))
        patched.append(run_with_heads_patched(model, inputs, heads, layers))
    return {Ablation("zero"): zeroed, Ablation("scale", factor=0.5): halved, Ablation("patch"): patched}


def compare_norms(model: PreTrainedModel, eager: PreTrainedModel, layers: AttentionLayers) -> dict[str, Any]:
    """Return the difference of norms from norms by hand, as attributes of a `Row`."""
    if layers.tapped:
        return {"without_norms": NO_VALUES}
    try:
        parts = find_parts(model, "it")
    except UserError as error:
        return {"without_norms": str(error)}
    largest = 0.0
    for _, inputs, real in texts(model):
        try:
            expected = norms_by_hand(eager, inputs, len(layers.attending))
        except NoReferenceError as error:
            return {"without_norms": f"not compared: {error}"}
        ours = read_norms(model, inputs, parts)
        for one, other in zip(ours, expected, strict=True):
            largest = max(largest, largest_difference(one, other, real, square=True))
    return {"norms": largest}


def read_norms(model: PreTrainedModel, inputs: Mapping[str, Tensor], parts: Sequence[LayerParts]) -> list[Tensor]:
    """Return the quantity `norms` of every layer, `[batch, heads, from, to]`, as captures compute it."""
    reduction: Any = None  # from pieces to words, which is not asked for
    quantity = Norms(dict(enumerate(parts)), inputs["attention_mask"].bool(), reduction)
    norms: dict[int, Tensor] = {}

    def measure(layer: int, call: LayerCall) -> Tensor:
        return quantity.maps(layer, call)

    capture_attention(model, inputs, norms.__setitem__, frozenset(range(len(parts))), measure=measure)
    return list(norms.values())


def reason(refused: str) -> str:
    """Return a short form of a refusal."""
    return _shorten(refused, REASONS, default="other")


def _shorten(message: str, reasons: Mapping[str, str], default: str) -> str:
    """Return the reason whose key is a part of a message, or a default."""
    for part, short in reasons.items():
        if part in message:
            return short
    return default


def join_types(rows: Iterable[Row]) -> str:
    """Return the names of model types as code, separated by commas."""
    return ", ".join(f"`{row.model_type}`" for row in rows)


@dataclass(frozen=True)
class Counts:
    """Rows of the page by the outcome of their comparison.

    Attributes:
        built: Model types that can be built small.
        unbuilt: Model types that cannot.
        equal: Model types whose weights and states are the model's own.
        silent: Model types whose weights, states, heads that are off or norms differ without a message.
        changed: Model types whose heads can be switched off, and were compared with zeroing by hand.
        with_norms: Model types that have norms, which were compared with norms by hand.
    """

    built: Sequence[Row]
    unbuilt: Sequence[Row]
    equal: Sequence[Row]
    silent: Sequence[Row]
    changed: Sequence[Row]
    with_norms: Sequence[Row]

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> "Counts":
        """Sort the rows."""
        built = [one for one in rows if not one.unbuilt]
        loaded = [one for one in built if one.layers]
        return cls(
            built,
            unbuilt=[one for one in rows if one.unbuilt],
            equal=[one for one in loaded if one.is_equal],
            silent=[one for one in loaded if one.is_wrong],
            changed=[one for one in loaded if one.off is not None],
            with_norms=[one for one in loaded if one.norms is not None],
        )

    @property
    def refused(self) -> dict[str, list[Row]]:
        """Model types that are refused, by the short form of the refusal."""
        by_reason: dict[str, list[Row]] = {}
        for one in self.built:
            if one.refused:
                by_reason.setdefault(reason(one.refused), []).append(one)
        return by_reason

    @property
    def summary(self) -> str:
        """One sentence for each comparison, with its counts."""
        refused = sum(len(rows) for rows in self.refused.values())
        off = sum(one.changes_equal for one in self.changed)
        norms = sum(one.norms_equal for one in self.with_norms)
        sharing = sum(one.shares for one in self.changed)
        return (
            f"**{len(self.equal)} equal, {refused} refused, {len(self.silent)} wrong without a word.** "
            f"Heads can be switched off in {len(self.changed)} types: {off} equal zeroing by hand, and with nothing "
            f"off the model itself; {sharing} compute the layers below only once. "
            f"Norms exist for {len(self.with_norms)} types: {norms} equal norms by hand."
        )


def _sentence_of_run(rows: Sequence[Row], seconds: float) -> str:
    counts = Counts.from_rows(rows)
    return (
        f"transformers {transformers.__version__}, {seconds:.0f} s on {os.cpu_count()} cores: {len(rows)} model types "
        f"of text, of which {len(counts.built)} can be built small. {counts.summary}"
    )


def page(rows: Sequence[Row], seconds: float) -> str:
    """Return the Markdown of docs/architectures.md."""
    counts = Counts.from_rows(rows)
    text = PAGE.read_text(encoding="utf-8")
    head = text.partition(MADE)[0]
    lowest = text.partition(LOWEST)[2].partition("\n\n")[0].strip()
    tapped = [one for one in counts.equal if one.layers and one.layers.tapped]
    kinds = {
        "Read from their own weights": tapped,
        "With sinks": [one for one in counts.equal if one.layers and one.layers.has_sinks],
        "Hybrid": [one for one in counts.equal if one.layers and one.layers.is_hybrid],
    }
    families = [one for one in counts.equal if one.model_type in FAMILIES]
    largest = max(1e-6, *(one.gap for one in counts.equal))
    largest_change = max(1e-6, *(one.gap_of_changes for one in counts.equal))
    short, long, middle = LENGTHS
    lines = [
        MADE,
        "",
        f"`python -m studies.architectures`, {_sentence_of_run(rows, seconds)} "
        f"Of the ten largest families, equal: {join_types(families)}.",
        "",
        f"Weights and last hidden states are compared in single precision, for texts of {short}, {middle} and {long} "
        f"pieces (windows, chunks and top-k are {WINDOW}), alone, padded on the right and padded on the left. "
        f"Equal models differ by at most {largest:.0e}. *By hand* means in the eager attention function of the model's "
        "own file, without the code of this application: outputs of heads are set to zero, halved or patched, and the "
        "value of each head at each position passes through the output projection alone. States and norms differ from "
        f"those by hand by at most {largest_change:.0e}, relative to the largest number.",
        "",
        LOWEST,
        lowest,
        "",
        f"- Read through the interface ({len(counts.equal) - len(tapped)}): all types not named below",
    ]
    for kind, of_kind in kinds.items():
        lines.append(f"- {kind} ({len(of_kind)}): {join_types(of_kind)}")
    for one in counts.silent:
        lines.append(f"- `{one.model_type}` differs: {one.cells}")
    lines += ["", "## Heads off and norms", ""]
    lines += _lines_by_reason("Heads are not switched off:", counts.equal, "unchanged")
    whole = [one for one in counts.changed if not one.shares]
    lines.append(
        f"- Every set of heads that is off is a pass through the whole model ({len(whole)}): {join_types(whole)}"
    )
    lines += _lines_by_reason("No norms:", counts.equal, "without_norms")
    lines += ["", "## Refused", ""]
    for cause, refused in sorted(counts.refused.items(), key=lambda item: -len(item[1])):
        lines.append(f"- {cause} ({len(refused)}): {join_types(refused)}")
    unbuilt = join_types(counts.unbuilt)
    lines += ["", f"Not built small, as their configurations want other sizes: {unbuilt}.", ""]
    return head + "\n".join(lines)


OWN_WEIGHTS = "of all types that are read from their own weights, which cannot be changed"
NO_VALUES = "of the types that are read from their own weights, which come without values"
HYBRID = "of the hybrid types, as interventions need attention in every layer"
NORM_REASONS = {
    "no linear layer reads": "no linear layer reads the outputs of the heads, for instance behind a gate",
    "one block computes several": "one block computes several attentions",
}


def _lines_by_reason(title: str, rows: Sequence[Row], attribute: str) -> list[str]:
    """Return a line for each reason that rows give in an attribute, with the model types that give it."""
    by_reason: dict[str, list[Row]] = {}
    for one in rows:
        message = getattr(one, attribute)
        if message:
            short = _shorten(message, NORM_REASONS, default=message)
            by_reason.setdefault(short, []).append(one)
    lines = []
    for short, of_reason in by_reason.items():
        line = f"- {title} {short} ({len(of_reason)})"
        if short not in (OWN_WEIGHTS, NO_VALUES, HYBRID):  # which are listed above
            line = f"{line}: {join_types(of_reason)}"
        lines.append(line)
    return lines


def page_with_lowest(rows: Sequence[Row], seconds: float) -> str:
    """Return the page of docs/architectures.md with another paragraph on the lowest version of transformers."""
    before, mark, after = PAGE.read_text(encoding="utf-8").partition(LOWEST)
    rest = after.partition("\n\n")[2].lstrip()
    silent = Counts.from_rows(rows).silent
    wrong = f" Wrong: {join_types(silent)}." if silent else ""
    return (
        f"{before}{mark}\nThe lowest version: `python -m studies.architectures --lowest`, "
        f"{_sentence_of_run(rows, seconds)}{wrong}\n\n{rest}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows of some model types, or write the page of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL TYPE")
    parser.add_argument("--lowest", action="store_true", help="write the paragraph on the lowest version alone")
    given = parser.parse_args(arguments)
    start = time.monotonic()
    rows: list[Row] = []
    for name in given.names or text_models():
        compared = row(name)
        rows.append(compared)
        if compared.layers:
            print(compared.cells, flush=True)
        else:
            print(f"{name}: {compared.refused or compared.unbuilt}", flush=True)
    if given.names:
        return
    write = page_with_lowest if given.lowest else page
    PAGE.write_text(write(rows, time.monotonic() - start), encoding="utf-8")


if __name__ == "__main__":
    main()
