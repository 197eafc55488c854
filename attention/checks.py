"""The check of a model when it is loaded: the attention that is read from it must be its own.

Texts of two lengths, the longer one beyond all windows of the model, are read alone, padded on the right and padded on
the left, by transformers' eager attention and by `attention.capture`. Weights and last hidden states must be equal.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from attention_probing.attention.capture import FLOAT32, NAME, LayerCall, MismatchError, measuring, tap
from attention_probing.attention.loading import quantisation_of, quiet_transformers
from attention_probing.attention.source import EncoderError, Scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOLERANCE = 1e-5
# Relative tolerance where sums run in another order: the larger of 1e-4 and 16 rounding errors.
_LOOSE = 1e-4
_ROUNDINGS = 16
_PADDED = 100
"""Factor of this tolerance for a text beside a longer one, as differences grow from layer to layer."""
_MOST_PADDED = 0.25
"""Largest tolerance for a text beside a longer one. In bfloat16, rounding moves the states of SmolLM2-135M by .08 of
their norm; padding moves those of ConvBERT by .67."""
_WINDOW = re.compile(r"(window(_size)?|(?<!feed_forward)chunk_size|index_topk|local_attention|block_size)$")
_NARROW = 6
"""Width to which windows, chunks and numbers of chosen positions are narrowed for the check."""
# Pieces of the two texts, the second beyond the narrowed windows.
_SHORT = 4
_LONG = 2 * _NARROW + 1
_OTHER = "Choose another architecture (BERT, RoBERTa, ELECTRA, GPT-2, Llama, ModernBERT, …)."


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """Attention of all layers in a forward pass, and its result.

    Attributes:
        modules: Attention module of each layer that passed its attention on.
        weights: Weights of each of these layers, `[batch, heads, from, to]`.
        state: Last hidden state, `[batch, pieces, size]`.
        fused: Largest difference of the outputs of fused attention from those of the weights, relative to the largest
            output, in any layer.
        has_sinks: True if a layer has a score for no position, so that rows of its weights sum to less than one.
    """

    modules: Sequence[nn.Module]
    weights: Sequence[Tensor]
    state: Tensor
    fused: float = 0.0
    has_sinks: bool = False


@torch.inference_mode()
def read_attention(model: "PreTrainedModel", inputs: Mapping[str, Tensor]) -> ForwardPass:
    """Run `model` once, and return the attention of all layers, for short inputs.

    Args:
        model: Model with `attn_implementation=NAME`, or one that was changed by `tap`.
        inputs: Arguments of the model, `input_ids` and `attention_mask` `[batch, pieces]`.
    """
    weights: list[Tensor] = []
    sinks: list[bool] = []
    gaps = [0.0]
    real = inputs["attention_mask"][:, None, :, None]

    def keep(_: int, call: LayerCall) -> Tensor:
        mixture = call.mixture
        weights.append(mixture.weights)
        sinks.append(mixture.sink is not None)
        if mixture.fused is not None and mixture.outputs.size(2) == real.size(2):
            gap = (mixture.fused() - mixture.outputs) * real
            gaps.append(float(gap.abs().max() / mixture.outputs.abs().max()))
        return mixture.weights

    with measuring(keep) as modules:
        state: Tensor = model(**inputs)[0]
    return ForwardPass(modules, weights, state, max(gaps), any(sinks))


@dataclass(frozen=True)
class AttentionLayers:
    """The attention layers of a model.

    Attributes:
        layers: Number of layers of the model, with and without attention.
        attending: The model's own numbers of the layers with attention, 0-based, in the order of a forward pass.
        heads: Number of heads of each layer with attention.
        tapped: True if the model was changed by `attention.capture.tap`.
        has_sinks: True if rows of attention sum to less than one, because the softmax has a score for no position.
    """

    layers: int
    attending: tuple[int, ...]
    heads: int
    tapped: bool
    has_sinks: bool

    @property
    def is_hybrid(self) -> bool:
        """True if some layers have no attention."""
        return len(self.attending) < self.layers


def check(model: "PreTrainedModel", name: str, scores: Scores = "model", *, changes: bool = False) -> AttentionLayers:
    """Make a model use this package's attention function; check that its attention stays the same.

    Where the function does not give the model's own attention, the weights that its modules return are read instead,
    see `attention.capture.tap`.

    Args:
        model: Model with eager attention, changed in place.
        name: Name of the model, for messages.
        scores: How the scores are computed; see `EncoderSpec`.
        changes: True to refuse a model whose attention cannot be changed, or is not a distribution in every layer.

    Returns:
        The attention layers of the model.

    Raises:
        EncoderError: The attention cannot be captured, or differs from the attention of the eager model.
    """
    name = f"{name} ({type(model).__name__})"
    body: PreTrainedModel = model.base_model if changes else model  # type: ignore[assignment] # without its classifier
    texts = _Texts.of(body)
    try:
        with _narrow_windows(body):
            eager = _read_eager(body, texts, name)
            reading, tapped = _make_readable(body, texts, eager, name, scores, changes=changes)
    except _CannotRunError:
        _read_eager(body, texts, name)  # a model with windows that cannot be narrowed (Longformer) has another reason
        raise
    if scores == "float32":
        model.set_attn_implementation(FLOAT32)
    attending = number_layers(body, reading.modules)
    layers = max(attending) + 1
    if not body.config.is_encoder_decoder:
        layers = max(layers, getattr(body.config, "num_hidden_layers", 0))
    weights_of_short = eager["alone"][0].weights
    sums = torch.cat([weights.float().sum(-1).flatten() for weights in eager["alone"][1].weights])
    is_below_one = float(sums.min()) < 1 - _rounding_of_sums(reading.state.dtype)
    attention = AttentionLayers(
        layers=layers,
        attending=attending,
        heads=weights_of_short[0].size(1),
        tapped=tapped,
        has_sinks=reading.has_sinks or (tapped and is_below_one),
    )
    if changes and (attention.is_hybrid or attention.has_sinks):
        why = "its rows sum to less than one (sinks)"
        if attention.is_hybrid:
            why = "some of its layers have no attention"
        raise EncoderError(f"{name}: {why}, so its attention cannot be replaced by another distribution. {_OTHER}")
    return attention


@dataclass(frozen=True)
class _Texts:
    """Two texts for a model, alone and padded.

    Attributes:
        batches: Inputs of the model: the short and the long text alone, and both padded on the right and on the left.
        lengths: Numbers of pieces.
    """

    batches: Mapping[str, Sequence[Mapping[str, Tensor]]]
    lengths: tuple[int, int]

    @classmethod
    def of(cls, model: "PreTrainedModel") -> "_Texts":
        pad = getattr(model.config, "pad_token_id", None)
        if not isinstance(pad, int) or pad < 0:
            pad = 0
        short, long = _lengths_of_texts(model)
        tokens = [token for token in range(1, 8) if token != pad][:6]
        tokens_of_text = [tokens[place * (place + 1) // 2 % 6] for place in range(long)]
        text = torch.tensor(tokens_of_text, device=model.device)

        def batch(*rows: Tensor) -> dict[str, Tensor]:
            ids = torch.stack(rows)
            return {"input_ids": ids, "attention_mask": (ids != pad).long()}

        padding = text.new_full((long - short,), pad)
        right = torch.cat([text[:short], padding])
        left = torch.cat([padding, text[:short]])
        batches = {
            "alone": [batch(text[:short]), batch(text)],
            "right": [batch(right, text)],
            "left": [batch(left, text)],
        }
        return cls(batches, (short, long))

    def cut(self, readings: Sequence[ForwardPass], padding: str) -> list[ForwardPass]:
        """Return the weights and states of each text without its padding."""
        if padding == "alone":
            return list(readings)
        [reading] = readings
        alone = []
        for row, length in enumerate(self.lengths):
            real = slice(0, length)
            if padding == "left":
                real = slice(-length, None)
            weights = [layer[row : row + 1, :, real, real] for layer in reading.weights]
            state = reading.state[row : row + 1]
            if state.dim() == 3:  # some models have only the state of the whole text (DPR)
                state = state[:, real]
            alone.append(replace(reading, weights=weights, state=state))
        return alone


def _lengths_of_texts(model: "PreTrainedModel") -> tuple[int, int]:
    """Return the numbers of pieces of the short and the long text, at most as many as the model has positions for."""
    positions = getattr(model.config, "max_position_embeddings", None)
    long = _LONG
    if positions and positions > 2:
        long = max(min(_LONG, positions - 2), 1)  # two fewer, as the positions of RoBERTa begin with 2
    return min(_SHORT, long), long


@contextmanager
def _narrow_windows(model: "PreTrainedModel") -> Iterator[None]:
    """Narrow the windows, chunks and numbers of chosen positions of a model during a `with` block."""
    modules = list(model.modules())
    configs = {}
    for module in modules:
        config = getattr(module, "config", None)
        if config is not None:
            configs[id(config)] = config
    widths = []
    for owner in (*configs.values(), *modules):
        for name, value in vars(owner).items():
            if type(value) is int and value > _NARROW and _WINDOW.search(name):
                widths.append((owner, name, value))
    try:
        for owner, name, _ in widths:
            setattr(owner, name, _NARROW)
        yield
    finally:
        for owner, name, value in widths:
            setattr(owner, name, value)


def _read_eager(model: "PreTrainedModel", texts: _Texts, name: str) -> dict[str, list[ForwardPass]]:
    """Return the weights and states of the eager model, by padding."""
    before = [type(module).__name__ for module in model.modules()]
    eager: dict[str, list[ForwardPass]] = {}
    for padding, batches in texts.batches.items():
        try:
            readings = [_run_eager(model, batch) for batch in batches]
        except Exception as error:  # of any kind, if the architecture does not take text
            raise _CannotRunError(
                f"{name} cannot be run on token ids alone ({_describe(error)}). Choose an encoder or decoder of text; "
                "for a model of text and images, save its text model with save_pretrained, and give that folder."
            ) from error
        if padding == "alone":
            changes = []
            after = [type(module).__name__ for module in model.modules()]
            for old, new in zip(before, after, strict=False):
                if old != new:
                    changes.append(f"{old} → {new}")
            for reading, pieces in zip(readings, texts.lengths, strict=True):
                _refuse_other_weights(reading, pieces, name, changes)
        eager[padding] = texts.cut(readings, padding)
    tolerance = min(_PADDED * _loose(eager["alone"][0].state), _MOST_PADDED)
    fault = find_difference(eager["right"], eager["alone"], tolerance, order=2)
    quantised = quantisation_of(model)
    if fault and quantised:
        raise EncoderError(
            f"{name}: padding a batch changes {fault}. The weights are quantised ({quantised}), and such a model may "
            "round its activations by batch, as bitsandbytes does with 8 bits. Give the model with plain weights, or "
            "with 4 bits."
        )
    if fault:
        raise EncoderError(f"{name} mixes padding into the text: padding a batch changes {fault}. {_OTHER}")
    return eager


def _refuse_other_weights(reading: ForwardPass, pieces: int, name: str, changes: Sequence[str]) -> None:
    """Raise EncoderError if a model gives no weights between all positions of a text, or replaces its modules.

    Args:
        reading: Weights of the eager model for one text.
        pieces: Number of pieces of the text.
        name: Name of the model, for messages.
        changes: Modules that the model has replaced while it read the texts.
    """
    remedy = "Choose an encoder or decoder with full self-attention."
    if changes:
        fault = f"replaces its attention when it reads a short text ({changes[0]}), and keeps the other for later texts"
        remedy = "Choose full attention in its config.json (of BigBird, attention_type original_full)."
    else:
        fault = _fault_of_weights(reading.weights, pieces)
    if fault:
        raise EncoderError(f"{name} {fault}. {remedy}")


def _fault_of_weights(by_layer: Sequence[Tensor], pieces: int) -> str:
    """Return the fault of a model whose layers do not give weights between all positions; empty if they do."""
    if not by_layer:
        return "returns no attention weights"
    shapes = {_describe_shape(weights) for weights in by_layer}
    shape_of_lowest = tuple(getattr(by_layer[0], "shape", ()))
    if len(shapes) > 1 or shape_of_lowest[2:] != (pieces, pieces):
        return (
            f"returns attention of the shapes {', '.join(sorted(shapes))} (pooled, windowed or linear attention), but "
            f"[1, heads, {pieces}, {pieces}] is needed, with the same number of heads in every layer"
        )
    if any(weights.isnan().any() for weights in by_layer):
        return "gives attention weights of a short text that are nan"
    if not all(_are_weights(weights) for weights in by_layer):
        lowest = min(float(weights.min()) for weights in by_layer)
        highest = max(float(weights.float().sum(-1).max()) for weights in by_layer)
        return (
            f"returns numbers that are not attention weights, probably scores before the softmax: the lowest is "
            f"{lowest:.2g}, and a row sums to {highest:.2g}"
        )
    return ""


def _describe_shape(weights: object) -> str:
    """Return the shape of a tensor, or the type of another object."""
    if isinstance(weights, Tensor):
        return str(tuple(weights.shape))
    return type(weights).__name__


def _are_weights(weights: Tensor) -> bool:
    """Return True if no number is below zero and no row sums to more than one."""
    sums = weights.float().sum(-1)
    return bool((weights >= 0).all()) and float(sums.max()) <= 1 + _rounding_of_sums(weights.dtype)


def _rounding_of_sums(dtype: torch.dtype) -> float:
    """Return the largest rounding error of the sum of a row of weights."""
    return max(5e-4, 2 * torch.finfo(dtype).eps)


class _CannotRunError(EncoderError):
    """Error for a model that cannot read a text."""


@torch.inference_mode()
def _run_eager(model: "PreTrainedModel", batch: Mapping[str, Tensor]) -> ForwardPass:
    output = model(**batch, output_attentions=True)
    by_layer = getattr(output, "attentions", None) or ()
    return ForwardPass([], [weights for weights in by_layer if weights is not None], output[0])


def find_difference(
    ours: Sequence[ForwardPass],
    others: Sequence[ForwardPass],
    tolerance: float = _TOLERANCE,
    order: float = float("inf"),
) -> str:
    """Return the first difference between two readings of the same texts, with its size; empty if there is none.

    Args:
        ours: One reading.
        others: The other; the first is rounded to its type.
        tolerance: Largest norm of a difference, relative to the norm of the other and to 1; at least a rounding error.
        order: Order of the norms: the largest number, or 2 for the root of the sum of squares.
    """
    for reading, other in zip(ours, others, strict=True):
        if len(reading.weights) != len(other.weights):
            return f"{len(reading.weights)} layers, not {len(other.weights)}"
        pairs = []
        for weights, other_weights in zip(reading.weights, other.weights, strict=True):
            pairs.append(("attention weights", weights, other_weights))
        pairs.append(("last hidden states", reading.state, other.state))
        for kind, numbers, other_numbers in pairs:
            if numbers.shape != other_numbers.shape:
                return f"the shapes of the {kind}, {tuple(numbers.shape)} and {tuple(other_numbers.shape)}"
            gap = (numbers.to(other_numbers.dtype) - other_numbers).float().norm(order)
            size = other_numbers.float().norm(order).clamp_min(1)
            most = max(tolerance, torch.finfo(other_numbers.dtype).eps)
            if not float(gap) <= most * float(size):  # also if it is not a number
                return f"{kind} by {float(gap / size):.1e}"
    return ""


def _loose(state: Tensor) -> float:
    """Return the tolerance where sums run in another order."""
    return float(max(_LOOSE, _ROUNDINGS * torch.finfo(state.dtype).eps))


def _try(model: "PreTrainedModel", texts: _Texts, eager: Mapping[str, Sequence[ForwardPass]]) -> ForwardPass:
    """Read the texts as captures do, and return the reading of the last of them.

    Raises:
        MismatchError: A reading is not that of the eager model.
    """
    readings: list[ForwardPass] = []
    for padding, batches in texts.batches.items():
        readings = [read_attention(model, batch) for batch in batches]
        if len(readings[0].modules) != len(eager["alone"][0].weights):
            raise MismatchError("its attention is computed elsewhere")
        fault = find_difference(texts.cut(readings, padding), eager[padding])
        if fault:
            raise MismatchError(f"captured attention differs from the model's own eager attention: {fault}")
        gap = max(reading.fused for reading in readings)
        if gap > _loose(readings[0].state):
            raise MismatchError(f"fused attention differs from its own by {gap:.1e}")
    return readings[-1]


def _make_readable(
    model: "PreTrainedModel",
    texts: _Texts,
    eager: Mapping[str, Sequence[ForwardPass]],
    name: str,
    scores: Scores,
    *,
    changes: bool,
) -> tuple[ForwardPass, bool]:
    """Make a model pass its attention to captures, and return a reading of it, and True if it was tapped.

    Args:
        model: The model.
        texts: The texts of the check.
        eager: Readings of the eager model.
        name: Name of the model, for messages.
        scores: How the scores are computed; see `EncoderSpec`.
        changes: True to refuse a model whose attention cannot be changed.
    """
    try:
        with quiet_transformers():
            model.set_attn_implementation(NAME)
        return _try(model, texts, eager), False
    except Exception as error:  # of any kind, from a model that wants another function
        reason = _describe(error)
    if model.config._attn_implementation == NAME:
        with quiet_transformers():
            model.set_attn_implementation("eager")
    outside = f"{name} computes its attention outside transformers' attention interface ({reason})"
    if changes or scores != "model":
        cannot = "changed" if changes else f"captured with scores {scores}"
        raise EncoderError(f"{outside}, so it cannot be {cannot}. {_OTHER}")
    try:
        if not tap(model, texts.batches["alone"][1], eager["alone"][1].weights):
            raise MismatchError("no module returns its weights")
        return _try(model, texts, eager), True
    except Exception as error:  # of any kind, from a model that needs its weights later
        raise EncoderError(f"{outside}, and its own weights cannot be read ({_describe(error)}). {_OTHER}") from error


def number_layers(model: "PreTrainedModel", modules: Sequence[nn.Module]) -> tuple[int, ...]:
    """Return the model's own number of each attention layer, 0-based: its `layer_idx`, else its place among the layers.

    A model that calls one module in several layers (ALBERT) has its layers numbered in the order of the pass.
    """
    paths = {module: path.split(".") for path, module in model.named_modules()}
    indices: list[object] = []
    places: list[object] = []
    for module in modules:
        indices.append(getattr(module, "layer_idx", None))
        numbers_in_path = [int(name) for name in paths[module] if name.isdigit()]
        places.append(numbers_in_path[0] if numbers_in_path else None)
    for numbers in (indices, places):
        usable = [number for number in numbers if isinstance(number, int) and number >= 0]
        is_ascending = all(lower < upper for lower, upper in pairwise(usable))
        if len(usable) == len(modules) and is_ascending:
            return tuple(usable)
    return tuple(range(len(modules)))


def _describe(error: Exception) -> str:
    """Return kind and message of an error; the message alone if the kind is one of this module."""
    message = " ".join(str(error).split())
    if isinstance(error, MismatchError):
        return message
    return f"{type(error).__name__}: {message}"
