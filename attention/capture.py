"""Reading of a forward pass: attention weights, which can also be replaced, and hidden states.

transformers looks attention up by name at every layer. Ours is registered under `NAME`, together with the mask that
eager attention uses: without that mask, decoders would silently stop being causal. It computes attention openly and
hands the weights over. transformers returns hidden states only at the end of a whole pass, and all at once: here a
first pass finds the module that each of them enters or leaves; from then on a hook at that place hands it over, and the
pass may stop there.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from results.errors import UserError

NAME = "probing"

_HEAD = re.compile(r"([1-9]\d*)(?:-([1-9]\d*))?")
_TOLERANCE = 1e-5  # of hidden states, relative to their largest number

Receive = Callable[[int, Tensor], None]
"""Called with a 0-based layer and its weights `[batch, heads, from, to]`, fp32, rows summing to one; or with the number
of a hidden state, 0 for that of the embeddings and k for that of layer k, and itself: `[batch, pieces, size]`."""

Intervene = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""Called with a 0-based layer, its weights `[batch, heads, from, to]` and its values `[batch, heads, to, dim]`. Returns
the weights to use instead, and a mask of those that dropout spares: bool, broadcast to the weights; None for none.
"""

Head = tuple[int, int]
"""A layer and a head of it, both 0-based."""

Heads = frozenset[Head]


def named_heads(names: Iterable[str | int], layers: int, heads: int, option: str) -> Heads:
    """Parse names of heads, counted from 1: `6-1`, or `6` for all heads of a layer.

    Raises:
        UserError: a name is written otherwise, or there is no such head; `option` is what held it.
    """
    found: set[Head] = set()
    for name in names:
        match = _HEAD.fullmatch(str(name))
        if match is None:
            raise UserError(
                f"{option}: {name!r} is no head. Write layer-head, counted from 1, as 6-1; or a layer, as 6."
            )
        layer, head = int(match[1]), int(match[2] or 0)
        if layer > layers or head > heads:
            raise UserError(
                f"{option}: there is no {name}; there are {layers} layers of {heads} heads, counted from 1."
            )
        found |= {(layer - 1, one) for one in (range(heads) if not head else [head - 1])}
    return frozenset(found)


class Mixture:
    """The attention of one layer; nothing is computed before it is asked for."""

    def __init__(self, compute: Callable[[], tuple[Tensor, Tensor, Tensor]], mask: Tensor | None) -> None:
        self._compute, self._mask = compute, mask

    @cached_property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._compute()

    @property
    def weights(self) -> Tensor:
        """`[batch, heads, from, to]`."""
        return self._parts[0]

    @property
    def values(self) -> Tensor:
        """`[batch, heads, to, dim]`, those of grouped heads repeated."""
        return self._parts[1]

    @property
    def outputs(self) -> Tensor:
        """The values mixed by the weights, `[batch, heads, from, dim]`: what the output projection reads."""
        return self._parts[2]

    def allowed(self, real: Tensor) -> Tensor:
        """Return the positions that each position may attend to, bool `[batch, 1, from, to]`.

        That is what the mask of the layer allows, a window or what came before, among the real positions, bool
        `[batch, to]`. In rows of the padding it has no meaning.
        """
        seen = real[:, None, None, :]
        if self._mask is None:
            return seen.expand(-1, -1, real.size(1), -1)
        return seen & (self._mask > torch.finfo(self._mask.dtype).min / 2)


class AttentionMasks(NamedTuple):
    """Masks of the positions that each position of some inputs may attend to.

    Attributes:
        masks: bool `[batch, masks, from, to]`, those that differ; one where all layers see alike.
        of_layers: the mask of each layer, int64 `[layers]`.
    """

    masks: Tensor
    of_layers: Tensor

    def at(self, layer: int) -> Tensor:
        """Return the mask of a 0-based layer, bool `[batch, 1, from, to]`."""
        return self.masks[:, self.of_layers[layer, None]]


def uniform_attention(allowed: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the same weight on all positions that each may attend to, of a mask bool `[…, from, to]`."""
    weights = allowed.to(dtype)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1)


Replace = Callable[[int, nn.Module, Mixture], Tensor]
"""Called with a 0-based layer, the module that attends and its mixture; returns what is used as its outputs."""

Place = tuple[nn.Module, bool]
"""A module, and whether the tensor enters it; else it leaves."""


class _Finished(Exception):
    """Ends a forward pass early: everything wanted has been received."""


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
        """`numbers` leads from calls of the module, counted from 0 in every pass, to hidden states."""
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
_INTERVENTION: ContextVar[Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]] | None] = ContextVar(
    "active intervention", default=None
)
_REPLACEMENT: ContextVar[Callable[[nn.Module, Mixture], Tensor] | None] = ContextVar("active replacement", default=None)


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
) -> tuple[Tensor, Tensor | None]:
    """Softmax attention, handed to the capture, the intervention and the replacement in progress.

    Args:
        module: the attention layer that calls; its training mode decides about dropout.
        query: `[batch, heads, from, dim]`.
        key: `[batch, key heads, to, dim]`; with grouped heads each serves `heads / key heads` queries.
        value: as `key`.
        attention_mask: added to the scores, `[batch, 1, from, to]`.
        scaling: factor of the dot product, `dim ** -0.5` when `None`.
        dropout: probability.
        softcap: Gemma's bound on the scores.
        position_bias: T5's addition to the scores, `[batch, heads, from, to]`.

    Returns:
        The mixed values `[batch, from, heads, dim]` and the weights `[batch, heads, from, to]`; None for those where
        the mixed values are replaced.
    """

    def mix() -> tuple[Tensor, Tensor, Tensor]:
        return _mixed(
            module, query, key, value, attention_mask, scaling, dropout, softcap=softcap, position_bias=position_bias
        )

    mixture, replace = Mixture(mix, attention_mask), _REPLACEMENT.get()
    if replace is None:
        return mixture.outputs.transpose(1, 2).contiguous(), mixture.weights
    return replace(module, mixture).transpose(1, 2).contiguous(), None


def _mixed(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None,
    dropout: float,
    *,
    softcap: float | None,
    position_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights after dropout, the values, and the mixed values; see `attend`."""
    groups = query.size(1) // key.size(1)
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    # In place, which gradients allow here: for long inputs these are the largest tensors of the whole pass.
    scores = (query @ key.transpose(2, 3)).mul_(query.size(-1) ** -0.5 if scaling is None else scaling)
    if position_bias is not None:
        scores.add_(position_bias)
    if softcap is not None:
        scores = scores.div_(softcap).tanh_() * softcap  # not in place: the gradient of tanh needs its result
    if attention_mask is not None:
        scores.add_(attention_mask)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    capture = _ACTIVE.get()
    if capture is not None:
        capture.weights(weights)
    intervene, spared = _INTERVENTION.get(), None
    if intervene is not None:
        weights, spared = intervene(weights, value)
    weights = weights.to(query.dtype)
    dropped = nn.functional.dropout(weights, dropout, module.training)
    if spared is not None:
        dropped = dropped.where(~spared, weights)
    return dropped, value, dropped @ value


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
    """Run `model` once, handing over the weights of each wanted layer, and hidden states; stop after the last of them.

    Args:
        model: with `attn_implementation=NAME`, in eval mode; for hidden states one that `States` was made of.
        inputs: what its forward takes, `input_ids` and `attention_mask` `[batch, pieces]`.
        receive: gets layer and weights, valid during the call only.
        layers: 0-based layers wanted.
        receive_state: gets number and hidden state, valid during the call only.
        states: hidden states wanted, by number.

    Returns:
        How many layers called the attention function. Less than wanted means that the architecture goes round it.
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
    """Return the positions that each may attend to in an input of `pieces`, bool `[layers, from, to]`.

    transformers makes the masks of a pass, with windows that may differ by layer, and they are read where they are
    used: nothing is concluded from the kind of the model.
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

    Context().run(run)  # an empty one: who asks may be in the middle of a pass that is captured
    return torch.stack(found)


@contextmanager
def intervening(intervene: Intervene) -> Iterator[None]:
    """Let `intervene` see and change the weights of every layer in the one pass that runs inside.

    Gradients flow through what it returns, and to whatever that was computed from.
    """
    layers = count()
    token = _INTERVENTION.set(lambda weights, value: intervene(next(layers), weights, value))
    try:
        yield
    finally:
        _INTERVENTION.reset(token)


@contextmanager
def replacing(replace: Replace, first: int = 0) -> Iterator[None]:
    """Let `replace` give the outputs of the heads of every layer in the one pass that runs inside.

    Layers are counted from `first`, that which attends first in the pass.
    """
    layers = count(first)
    token = _REPLACEMENT.set(lambda module, mixture: replace(next(layers), module, mixture))
    try:
        yield
    finally:
        _REPLACEMENT.reset(token)


class States:
    """The hidden states of a model as transformers counts them: 0 leaves the embeddings, k leaves layer k.

    As there, the last one has gone through the normalisation behind the last layer, where a model has one. Making it
    leaves hooks in the model, which do nothing but in a capture. There are `count` states, one more than layers, of
    `size` numbers each.

    Raises:
        UserError: they are not one for each layer and all of one size, or pass no module.
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
                    f"{name}: hidden state {number} cannot be captured (it differs from its own by {gap:.1e}). Choose "
                    f"another architecture (BERT, RoBERTa, ELECTRA, GPT-2, Llama, ModernBERT, …)."
                )


def _record(
    model: PreTrainedModel, inputs: Mapping[str, Tensor]
) -> tuple[dict[tuple[object, ...], tuple[Place, int]], tuple[Tensor, ...]]:
    """Run a model: the place and call at which each tensor was first seen, by its memory, and the hidden states."""
    first: dict[tuple[object, ...], tuple[Place, int]] = {}
    calls: Counter[Place] = Counter()
    alive: list[Tensor] = []  # so that no memory is used twice

    def see(place: Place, tensor: Tensor | None) -> None:
        if tensor is not None:
            alive.append(tensor)
            first.setdefault(_memory(tensor), (place, calls[place]))
        calls[place] += 1

    hooks = [_watch((module, entering), see) for module in model.modules() for entering in (True, False)]
    try:
        with torch.inference_mode():
            own = model(**inputs, output_hidden_states=True).hidden_states
    finally:
        for hook in hooks:
            hook.remove()
    return first, tuple(own or ())


def _memory(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that a tensor shares with its views of the same shape alone."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _watch(place: Place, see: Callable[[Place, Tensor | None], None]) -> RemovableHandle:
    """Show the first tensor that passes the place, at every call of its module."""
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
    """Have each hidden state handed over at its place; a module that serves several layers is called several times."""
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
