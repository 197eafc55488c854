"""Heads off, scaled and patched, and norms of what heads write, computed by hand in a model's own eager attention.

These are the references of `studies.architectures`. They share nothing with `attention/` but the model.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

EAGER = "eager_attention_forward"
"""End of the name of the attention function in every file of transformers that uses the attention interface."""


class NoReferenceError(Exception):
    """Error for a model whose heads cannot be reached by hand."""


@contextmanager
def wrapping_eager_attention(model: PreTrainedModel, wrap: Callable[..., Any]) -> Iterator[None]:
    """Call `wrap(function, *args, **kwargs)` for every call of the model's own eager attention function.

    Args:
        model: Model with `attn_implementation="eager"`.
        wrap: Gets the function and its arguments, and returns what the function would return: the outputs
            `[batch, from, heads, dim]` and the weights `[batch, heads, from, to]`.
    """
    functions: list[tuple[ModuleType, str, Callable[..., Any]]] = []
    for file in {sys.modules[type(module).__module__] for module in model.modules()}:
        for name, value in list(vars(file).items()):
            if name.endswith(EAGER):
                functions.append((file, name, value))
    for file, name, function in functions:
        setattr(file, name, partial(wrap, function))
    try:
        yield
    finally:
        for file, name, function in functions:
            setattr(file, name, function)


@torch.inference_mode()
def run_with_heads_changed(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    heads: frozenset[tuple[int, int]],
    layers: int,
    change: Callable[[int, int, Tensor], Tensor],
) -> Tensor:
    """Return the last hidden states `[batch, pieces, size]` of a model some of whose heads write something else.

    Args:
        model: Model with `attn_implementation="eager"`.
        inputs: Its inputs, each `[batch, pieces]`.
        heads: 0-based (layer, head) pairs to change.
        layers: Number of layers with attention.
        change: Function that gets a layer, a head and its outputs `[batch, pieces, dim]`, and returns other outputs.

    Raises:
        NoReferenceError: Not every layer calls the eager attention function of its file.
    """
    calls = 0

    def replace(function: Callable[..., Any], *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        nonlocal calls
        outputs, weights = function(*args, **kwargs)
        outputs = outputs.clone()
        for layer, head in heads:
            if layer == calls:
                outputs[:, :, head] = change(layer, head, outputs[:, :, head].clone())
        calls += 1
        return outputs, weights

    with wrapping_eager_attention(model, replace):
        state: Tensor = model(**inputs)[0]
    _require_calls(calls, layers)
    return state


def run_with_heads_scaled(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    heads: frozenset[tuple[int, int]],
    layers: int,
    factor: float,
) -> Tensor:
    """Return the last hidden states of a model whose heads write a multiple; see `run_with_heads_changed`.

    Args:
        model: The model.
        inputs: Its inputs.
        heads: The heads.
        layers: Number of layers with attention.
        factor: The factor; 0 switches the heads off.
    """
    return run_with_heads_changed(model, inputs, heads, layers, lambda _layer, _head, outputs: factor * outputs)


def run_with_heads_patched(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], heads: frozenset[tuple[int, int]], layers: int
) -> Tensor:
    """Return the last hidden states of a model whose heads write what they write in the next text of the batch.

    The last text is followed by the first. Positions that are padding in one of the two texts keep their outputs. See
    `run_with_heads_changed` for the arguments.
    """
    is_real = inputs["attention_mask"].bool()
    is_real = is_real & is_real.roll(-1, 0)
    intact: dict[tuple[int, int], Tensor] = {}

    def keep(layer: int, head: int, outputs: Tensor) -> Tensor:
        intact[layer, head] = outputs
        return outputs

    def patch(layer: int, head: int, outputs: Tensor) -> Tensor:
        return torch.where(is_real[:, :, None], intact[layer, head].roll(-1, 0), outputs)

    run_with_heads_changed(model, inputs, heads, layers, keep)
    return run_with_heads_changed(model, inputs, heads, layers, patch)


def _require_calls(calls: int, layers: int) -> None:
    """Raise NoReferenceError if not every layer has called the eager attention function."""
    if calls != layers:
        raise NoReferenceError(f"{calls} of {layers} layers call {EAGER}")


@dataclass(eq=False)
class _EagerCall:
    """One call of the eager attention function.

    Attributes:
        weights: Attention weights `[batch, heads, from, to]`.
        values: Values `[batch, key heads, to, dim]`.
        projection: The first linear layer that is called afterwards: the output projection.
    """

    weights: Tensor
    values: Tensor
    projection: nn.Module | None = None


@torch.inference_mode()
def norms_by_hand(model: PreTrainedModel, inputs: Mapping[str, Tensor], layers: int) -> list[Tensor]:
    """Return ‖α v W_O‖ of each head in each layer, `[batch, heads, from, to]` (Kobayashi et al. 2020, §3).

    The value of one head at one position passes through the output projection alone, without the bias.

    Args:
        model: Model with `attn_implementation="eager"`.
        inputs: Its inputs, each `[batch, pieces]`.
        layers: Number of layers with attention.

    Raises:
        NoReferenceError: Not every layer calls the eager attention function of its file, or no linear layer follows it.
    """
    calls: list[_EagerCall] = []

    def record(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        outputs, weights = function(*args, **kwargs)
        _module, _query, _key, value, *_ = args
        calls.append(_EagerCall(weights, value))
        return outputs, weights

    def find_projection(module: nn.Module, _: object) -> None:
        if calls and calls[-1].projection is None:
            calls[-1].projection = module

    linear = [module for module in model.modules() if isinstance(module, nn.Linear | Conv1D)]
    hooks = [module.register_forward_pre_hook(find_projection) for module in linear]
    try:
        with wrapping_eager_attention(model, record):
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    _require_calls(len(calls), layers)
    return [_norms_of(call) for call in calls]


def _norms_of(call: _EagerCall) -> Tensor:
    """Return the norms of one layer, `[batch, heads, from, to]`."""
    if call.projection is None:
        raise NoReferenceError("no linear layer follows the attention")
    heads = call.weights.size(1)
    values = call.values.repeat_interleave(heads // call.values.size(1), dim=1)
    batch, _, pieces, dim = values.shape
    nothing = values.new_zeros(batch, pieces, heads * dim)
    by_head: list[Tensor] = []
    for head in range(heads):
        alone = values.new_zeros(batch, pieces, heads, dim)
        alone[:, :, head] = values[:, head]
        written = call.projection(alone.flatten(2)) - call.projection(nothing)
        by_head.append(call.weights[:, head] * written.norm(dim=-1)[:, None, :])
    return torch.stack(by_head, 1)


def largest_difference(one: Tensor, other: Tensor, real: Sequence[slice], *, square: bool) -> float:
    """Return the largest difference at real positions, relative to the largest number there and to 1.

    Args:
        one: Numbers `[batch, pieces, …]`, or maps `[batch, heads, from, to]`.
        other: The reference, of the same shape.
        real: Real positions of each row of the batch.
        square: True for maps.
    """
    largest = 0.0
    for row, positions in enumerate(real):
        places: tuple[slice, ...] = ()  # of the state of a whole text
        if square:
            places = (slice(None), positions, positions)
        elif other.dim() > 2:
            places = (positions,)
        numbers = one[row][places]
        reference = other[row][places]
        difference = (numbers - reference).abs().max() / reference.abs().max().clamp_min(1)
        largest = max(largest, float(difference.nan_to_num(9)))
    return largest
