"""The one attention function that every encoder runs: it computes attention openly and hands the weights over.

transformers looks attention up by name at every layer. Ours is registered under `NAME`, together with the mask that
eager attention uses: without that mask, decoders would silently stop being causal.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

NAME = "probing"

Receive = Callable[[int, Tensor], None]
"""Called with a 0-based layer and its weights `[batch, heads, from, to]`, fp32, rows summing to one; or with the number
of a hidden state, 0 for that of the embeddings and k for that of layer k, and itself: `[batch, pieces, size]`."""

Intervene = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""Called with a 0-based layer, its weights `[batch, heads, from, to]` and its values `[batch, heads, to, dim]`; returns
the weights that take their place, and those of them that dropout spares: bool, broadcast to the weights, None for none.
"""


class _Finished(Exception):
    """Leaves a forward pass from within: what follows cannot change anything that is still wanted."""


@dataclass
class _Capture:
    receive: Receive
    layers: frozenset[int]
    receive_state: Receive | None
    states: frozenset[int]
    seen: int = 0
    calls: Counter[Hashable] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._missing = len(self.layers) + len(self.states)

    def weights(self, weights: Tensor) -> None:
        layer, self.seen = self.seen, self.seen + 1
        if layer in self.layers:
            self.receive(layer, weights)
            self._received()

    def state(self, number: int, state: Tensor) -> None:
        if self.receive_state is not None and number in self.states:
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
) -> tuple[Tensor, Tensor]:
    """Softmax attention, with its weights handed to the capture and to the intervention in progress.

    Args:
        module: the attention layer that calls.
        query: `[batch, heads, from, dim]`.
        key: `[batch, key heads, to, dim]`; with grouped heads each serves `heads / key heads` queries.
        value: as `key`.
        attention_mask: added to the scores, `[batch, 1, from, to]`; `None` masks nothing.
        scaling: factor of the dot product, `dim ** -0.5` when `None`.
        dropout: probability, applied in training mode only.
        softcap: Gemma's bound on the scores.
        position_bias: T5's addition to the scores, `[batch, heads, from, to]`.

    Returns:
        The mixed values `[batch, from, heads, dim]` and the weights `[batch, heads, from, to]`.
    """
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
    return (dropped @ value).transpose(1, 2).contiguous(), dropped


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, eager_mask)


def pass_state(place: Hashable, numbers: Mapping[int, int], state: Tensor | None) -> None:
    """Hand a hidden state to the capture in progress, if there is one and wants it.

    Args:
        place: where it passes; called once for every call of the module there.
        numbers: from such calls, counted from 0 in every pass, to hidden states.
        state: the hidden state `[batch, pieces, size]`.
    """
    capture = _ACTIVE.get()
    if capture is None or not capture.states:
        return
    call = capture.calls[place]
    capture.calls[place] += 1
    if state is not None and call in numbers:
        capture.state(numbers[call], state)


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
        model: loaded with `attn_implementation=NAME`, in eval mode.
        inputs: what its forward takes, `input_ids` and `attention_mask` `[batch, pieces]`.
        receive: gets layer and weights; the weights are valid during the call only.
        layers: 0-based layers wanted.
        receive_state: gets number and hidden state, valid during the call only.
        states: hidden states wanted, by number, of a model that `attention.states.States` was made of.

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
