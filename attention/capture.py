"""Capture and replacement of attention in a forward pass, and capture of hidden states.

transformers looks up the attention function by name at every layer. The function of this module is registered under
`NAME`, together with the mask of eager attention, without which decoders would silently stop being causal. It computes
the weights explicitly and passes them to a callback. transformers returns hidden states only at the end of a pass. Here
a first pass finds the module that each hidden state enters or leaves; a hook at this module then captures it, and the
pass may stop there.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count, product
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from results.errors import UserError

NAME = "probing"

_HEAD = re.compile(r"([1-9]\d*)(?:-([1-9]\d*))?")
_TOLERANCE = 1e-5  # for hidden states, relative to their largest number

Receive = Callable[[int, Tensor], None]
"""Called with a 0-based layer and its weights `[batch, heads, from, to]`, float32, rows summing to one; or with the
number of a hidden state, 0 for the embeddings and k for layer k, and the state `[batch, pieces, size]`."""

Intervene = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""Called with a 0-based layer, its weights `[batch, heads, from, to]` and its values `[batch, heads, to, dim]`. Returns
the weights to use instead, and a mask of weights without dropout: bool, broadcast to the weights, or None."""

Head = tuple[int, int]
"""0-based layer and head."""

Heads = frozenset[Head]


def named_heads(names: Iterable[str | int], layers: int, heads: int, option: str) -> Heads:
    """Parse names of attention heads, counted from 1: `6-1`, or `6` for all heads of a layer.

    Args:
        names: The names.
        layers: Number of layers of the model.
        heads: Number of heads of each layer.
        option: Option that holds the names, for messages.

    Returns:
        Set of 0-based (layer, head) pairs.

    Raises:
        UserError: A name has another form, or there is no such head.
    """
    found: set[Head] = set()
    for name in names:
        match = _HEAD.fullmatch(str(name))
        if match is None:
            raise UserError(
                f"{option}: {name!r} is not a head. Write layer-head, both from 1, such as 6-1; or a layer alone, such "
                "as 6."
            )
        layer, head = int(match[1]), int(match[2] or 0)
        if layer > layers or head > heads:
            raise UserError(
                f"{option}: {name} does not exist; the model has {layers} layers of {heads} heads, counted from 1."
            )
        found |= {(layer - 1, one) for one in (range(heads) if not head else [head - 1])}
    return frozenset(found)


class Mixture:
    """The attention of one layer in a forward pass: weights, values and outputs, each computed on first use.

    Args:
        scores: Function that returns the scores `[batch, heads, from, to]`, mask included.
        value: Values `[batch, key heads, to, dim]`.
        groups: Number of query heads for each key head.
        mask: Mask of the layer, added to the scores; None without.
        drop: Function that applies dropout to weights.
    """

    undropped: Tensor | None = None
    """Weights without dropout, a mask broadcast to the weights."""

    def __init__(
        self,
        scores: Callable[[], Tensor],
        value: Tensor,
        groups: int,
        mask: Tensor | None,
        drop: Callable[[Tensor], Tensor],
    ) -> None:
        self._scores, self._value, self._groups, self._mask, self._drop = scores, value, groups, mask, drop

    @cached_property
    def weights(self) -> Tensor:
        """Attention weights before dropout, float32 `[batch, heads, from, to]`."""
        scores = self._scores()
        return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))

    @cached_property
    def values(self) -> Tensor:
        """Values `[batch, heads, to, dim]`; grouped key heads are repeated for each query head."""
        return self._value if self._groups == 1 else self._value.repeat_interleave(self._groups, dim=1)

    @cached_property
    def outputs(self) -> Tensor:
        """Outputs of the heads `[batch, heads, from, dim]`: values averaged with the weights, before the projection."""
        weights = self.weights.to(self.values.dtype)
        dropped = self._drop(weights)
        if self.undropped is not None:
            dropped = dropped.where(~self.undropped, weights)
        return dropped @ self.values

    def allowed(self, real: Tensor) -> Tensor:
        """Return a mask of the positions that each position may attend to in this layer, bool `[batch, 1, from, to]`.

        These are the real positions that the layer's mask allows: all, a window, or earlier ones. Rows of padding are
        undefined.

        Args:
            real: bool `[batch, to]`, True for real positions.
        """
        seen = real[:, None, None, :]
        if self._mask is None:
            return seen.expand(-1, -1, real.size(1), -1)
        return seen & (self._mask > torch.finfo(self._mask.dtype).min / 2)


class AttentionMasks(NamedTuple):
    """Masks of the positions that each position may attend to, for all layers of a model.

    Attributes:
        masks: Distinct masks, bool `[batch, masks, from, to]`.
        of_layers: Index of each layer's mask, int64 `[layers]`.
    """

    masks: Tensor
    of_layers: Tensor

    def at(self, layer: int) -> Tensor:
        """Return the mask of a 0-based layer, bool `[batch, 1, from, to]`, True where attention is allowed."""
        return self.masks[:, self.of_layers[layer, None]]


def uniform_attention(allowed: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return attention with equal weights on all allowed positions, `[…, from, to]`.

    Args:
        allowed: bool `[…, from, to]`, True for allowed positions.
        dtype: Type of the weights.
    """
    weights = allowed.to(dtype)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1)


Replace = Callable[[int, nn.Module, Mixture], Tensor]
"""Called with a 0-based layer, its attention module and its mixture; returns the outputs to use instead."""

Place = tuple[nn.Module, bool]
"""A module, and True for its input, False for its output."""


class _Finished(Exception):
    """Ends a forward pass after the last wanted tensor."""


@dataclass
class _Capture:
    receive: Receive
    layers: frozenset[int]
    receive_state: Receive | None
    states: frozenset[int]
    seen: int = 0
    calls: Counter[Place] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._missing = len(self.layers) + len(self.states)

    def weights(self, weights: Tensor) -> None:
        layer, self.seen = self.seen, self.seen + 1
        if layer in self.layers:
            self.receive(layer, weights)
            self._received()

    def state(self, place: Place, numbers: Mapping[int, int], state: Tensor | None) -> None:
        """Receive a state; `numbers` maps calls of the module, from 0 in every pass, to numbers of hidden states."""
        number = numbers.get(self.calls[place])
        self.calls[place] += 1
        if self.receive_state and state is not None and number is not None and number in self.states:
            self.receive_state(number, state)
            self._received()

    def _received(self) -> None:
        self._missing -= 1
        if not self._missing:
            raise _Finished


_ACTIVE: ContextVar[_Capture | None] = ContextVar("active capture", default=None)


def _unchanged(module: nn.Module, mixture: Mixture) -> Tensor:
    return mixture.outputs


_OUTPUTS: ContextVar[Callable[[nn.Module, Mixture], Tensor]] = ContextVar("outputs of the heads", default=_unchanged)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Compute softmax attention for transformers; apply the active capture, intervention and replacement.

    Args:
        module: The calling attention module; dropout applies in its training mode.
        query: `[batch, heads, from, dim]`.
        key: `[batch, key heads, to, dim]`; with grouped heads one key head serves `heads / key heads` queries.
        value: As `key`.
        attention_mask: Mask added to the scores, `[batch, 1, from, to]`.
        scaling: Factor of the dot product; by default `dim ** -0.5`.
        dropout: Probability.
        softcap: Gemma's bound on the scores.
        position_bias: T5's addition to the scores, `[batch, heads, from, to]`.

    Returns:
        Outputs of the heads `[batch, from, heads, dim]`, and None instead of the weights.
    """
    groups = query.size(1) // key.size(1)

    def scores() -> Tensor:
        keys = key if groups == 1 else key.repeat_interleave(groups, dim=1)
        # In place, which gradients allow here: for long inputs these are the largest tensors of the pass.
        found = (query @ keys.transpose(2, 3)).mul_(query.size(-1) ** -0.5 if scaling is None else scaling)
        if position_bias is not None:
            found.add_(position_bias)
        if softcap is not None:
            found = found.div_(softcap).tanh_() * softcap  # not in place: the gradient of tanh needs its result
        return found if attention_mask is None else found.add_(attention_mask)

    drop = partial(nn.functional.dropout, p=dropout, training=module.training)
    mixture = Mixture(scores, value, groups, attention_mask, drop)
    if (capture := _ACTIVE.get()) is not None:
        capture.weights(mixture.weights)
    return _OUTPUTS.get()(module, mixture).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, eager_mask)


@torch.inference_mode()
def capture_attention(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    receive: Receive,
    layers: frozenset[int],
    receive_state: Receive | None = None,
    states: frozenset[int] = frozenset(),
) -> int:
    """Run `model` once, pass the wanted weights and hidden states to callbacks, and stop after the last of them.

    Args:
        model: Model with `attn_implementation=NAME`, in eval mode; hidden states need a `States` of this model.
        inputs: Arguments of its forward, `input_ids` and `attention_mask` `[batch, pieces]`.
        receive: Called with a 0-based layer and its weights, which are valid during the call only.
        layers: Wanted 0-based layers.
        receive_state: Called with the index of a hidden state and the state, which is valid during the call only.
        states: Indices of the wanted hidden states: 0 for the embeddings, k for layer k.

    Returns:
        Number of layers that called the attention function; fewer than wanted if the architecture bypasses it.
    """
    capture = _Capture(receive, layers, receive_state, states)
    token = _ACTIVE.set(capture)
    try:
        model(**inputs)
    except _Finished:
        pass
    finally:
        _ACTIVE.reset(token)
    return capture.seen


@torch.inference_mode()
def allowed_by_layer(model: PreTrainedModel, pieces: int) -> Tensor:
    """Return the positions that each position may attend to in an input of `pieces`, bool `[layers, from, to]`.

    transformers makes the masks in a pass, with windows that may differ by layer. They are read in the attention
    function, not inferred from the architecture.
    """
    found: list[Tensor] = []
    tokens = torch.arange(pieces, device=model.device)[None] % 6 + 1
    real = torch.ones_like(tokens, dtype=torch.bool)

    def read(_: int, module: nn.Module, mixture: Mixture) -> Tensor:
        found.append(mixture.allowed(real)[0, 0])
        return mixture.outputs

    def run() -> None:
        with replacing(read):
            model(input_ids=tokens, attention_mask=real.long())

    Context().run(run)  # an empty context: the caller may be in the middle of a captured pass
    return torch.stack(found)


@contextmanager
def intervening(intervene: Intervene) -> Iterator[None]:
    """Within the block, let `intervene` read and change the attention weights of every layer.

    The block must run exactly one forward pass. Gradients flow through the returned weights.
    """
    layers, outer = count(), _OUTPUTS.get()

    def change(module: nn.Module, mixture: Mixture) -> Tensor:
        mixture.weights, mixture.undropped = intervene(next(layers), mixture.weights, mixture.values)
        return outer(module, mixture)

    token = _OUTPUTS.set(change)
    try:
        yield
    finally:
        _OUTPUTS.reset(token)


@contextmanager
def replacing(replace: Replace, first: int = 0) -> Iterator[None]:
    """Within the block, compute the head outputs of every layer by `replace` instead of by attention.

    The block must run exactly one forward pass, whose layers are counted from `first`.

    Raises:
        RuntimeError: The block lies within another `replacing` or within `intervening`, which would have no effect.
    """
    if _OUTPUTS.get() is not _unchanged:
        raise RuntimeError(
            "replacing() within intervening() or replacing() would drop the outer change. Put intervening() inside, or "
            "run two forward passes."
        )
    layers = count(first)
    token = _OUTPUTS.set(lambda module, mixture: replace(next(layers), module, mixture))
    try:
        yield
    finally:
        _OUTPUTS.reset(token)


class States:
    """Hidden states of a model, indexed as in transformers: 0 for the embeddings, k for layer k.

    The last state includes the final normalisation of the model, as in transformers. The constructor registers hooks in
    the model, which act only during a capture.

    Attributes:
        count: Number of states, one more than layers.
        size: Size of each state.

    Raises:
        UserError: The states differ in size, are not one for each layer, or pass no module.
    """

    def __init__(self, model: PreTrainedModel, layers: int, name: str) -> None:
        inputs = {"input_ids": torch.arange(1, 7, device=model.device)[None]}
        passed, own = _record(model, inputs)
        shapes = {tuple(state.shape) for state in own}
        if len(own) != layers + 1 or len(shapes) > 1 or own[0].shape[:2] != inputs["input_ids"].shape:
            raise UserError(
                f"{name} has {len(own)} hidden states of shapes {shapes} to its {layers} layers. Only one of each "
                f"layer and one of the embeddings, all of one size, can be kept."
            )
        self.count, self.size = len(own), own[0].size(2)
        _hook([passed.get(_memory(state)) for state in own])
        found: dict[int, Tensor] = {}
        capture_attention(model, inputs, lambda *_: None, frozenset(), found.__setitem__, frozenset(range(self.count)))
        for number, state in enumerate(own):
            gap = float((found[number] - state).abs().max()) if number in found else float("nan")
            if not gap <= _TOLERANCE * max(1.0, float(state.abs().max())):
                raise UserError(
                    f"{name}: captured hidden state {number} differs from output_hidden_states by {gap:.1e}. Choose "
                    f"another architecture (BERT, RoBERTa, ELECTRA, GPT-2, Llama, ModernBERT, …)."
                )


def _record(
    model: PreTrainedModel, inputs: Mapping[str, Tensor]
) -> tuple[dict[tuple[object, ...], tuple[Place, int]], tuple[Tensor, ...]]:
    """Run a model; return place and call at which each tensor first appeared, by its memory, and the hidden states."""
    first: dict[tuple[object, ...], tuple[Place, int]] = {}
    calls: Counter[Place] = Counter()
    alive: list[Tensor] = []  # no memory is reused

    def see(place: Place, tensor: Tensor | None) -> None:
        if tensor is not None:
            alive.append(tensor)
            first.setdefault(_memory(tensor), (place, calls[place]))
        calls[place] += 1

    with torch.inference_mode(), ExitStack() as hooks:
        for place in product(model.modules(), (True, False)):
            hooks.enter_context(_watch(place, see))
        own = model(**inputs, output_hidden_states=True).hidden_states
    return first, tuple(own or ())


def _memory(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that a tensor shares only with its views of the same shape."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _watch(place: Place, see: Callable[[Place, Tensor | None], None]) -> RemovableHandle:
    """Call `see` with the first tensor at the place, at every call of the module."""
    module, entering = place

    def show(values: Iterable[object]) -> None:
        see(place, next((value for value in values if isinstance(value, Tensor)), None))

    def enter(_: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        show((*args, *kwargs.values()))

    def leave(_: nn.Module, args: tuple[object, ...], output: object) -> None:
        show(output if isinstance(output, tuple) else (output,))

    if entering:
        return module.register_forward_pre_hook(enter, with_kwargs=True)
    return module.register_forward_hook(leave)


def _hook(places: list[tuple[Place, int] | None]) -> None:
    """Register a hook for each hidden state at its place; a module shared by layers is called several times."""
    numbers: defaultdict[Place, dict[int, int]] = defaultdict(dict)
    for number, found in enumerate(places):
        if found is not None:
            place, call = found
            numbers[place][call] = number

    def see(place: Place, state: Tensor | None) -> None:
        if (capture := _ACTIVE.get()) is not None:
            capture.state(place, numbers[place], state)

    for place in numbers:
        _watch(place, see)
