"""Capture and replacement of attention in a forward pass.

transformers looks up the attention function by name at every layer. The function of this module is registered under
`NAME`, together with the mask of eager attention, without which decoders would silently stop being causal. It computes
the weights explicitly and passes them to a callback.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import count, product
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import wrapt
from torch import Tensor, nn
from torch.func import functional_call

from attention_probing.results.errors import UserError, setting

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME, FLOAT32 = "probing", "probing_float32"
"""Names of the attention function: scores in the type of the model, or in single precision."""

_HEAD = re.compile(r"([1-9]\d*)(?:-([1-9]\d*))?")

Receive = Callable[[int, Tensor], None]
"""Called with a 0-based layer and its maps `[batch, heads, from, to]`, by default the attention weights, float32, rows
summing to one (to less with attention sinks); or with the number of a hidden state, 0 for the embeddings and k for
layer k, and the state `[batch, pieces, size]`."""

Intervene = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""Called with a 0-based layer, its weights `[batch, heads, from, to]` and its values `[batch, heads, to, dim]`. Returns
the weights to use instead, and a mask of weights without dropout: bool, broadcast to the weights, or None."""

Head = tuple[int, int]
"""0-based layer and head."""

Heads = frozenset[Head]


def named_heads(names: Iterable[str | int], layers: int, heads: int, option: str) -> Heads:
    """Parse names of attention heads, counted from 1: `6-1`, `6` for all heads of a layer, `all` for all of the model.

    Args:
        names: The names.
        layers: Number of layers of the model.
        heads: Number of heads of each layer.
        option: Option that holds the names, as messages say it.

    Returns:
        Set of 0-based (layer, head) pairs.

    Raises:
        UserError: A name has another form, or there is no such head.
    """
    found: set[Head] = set()
    for name in names:
        if name == "all":
            found |= set(product(range(layers), range(heads)))
            continue
        match = _HEAD.fullmatch(str(name))
        if match is None:
            raise UserError(
                f"{option}: {name!r} is not a head. Write layer-head, both from 1, such as 6-1; a layer "
                f"alone, such "
                "as 6; or all."
            )
        layer, head = int(match[1]), int(match[2] or 0)
        if layer > layers or head > heads:
            raise UserError(
                f"{option}: {name} does not exist; there are {layers} layers of {heads} heads, counted from 1."
            )
        found |= {(layer - 1, one) for one in (range(heads) if not head else [head - 1])}
    return frozenset(found)


@dataclass(eq=False)
class Mixture:
    """Attention of one layer in a forward pass: weights, values and outputs, computed on first use.

    In a captured pass, outputs come from PyTorch's fused attention, which keeps no weights, unless the weights were
    read or set before. Other passes compute the weights, so that a pass with an intervention and a pass without one
    compute the outputs in the same way.

    Args:
        scores: Function that takes a slice of `from`, and returns the scores of these rows with `mask` added,
            `[batch, heads, from, to]`.
        value: Values `[batch, key heads, to, dim]`.
        groups: Number of query heads for each key head.
        mask: The mask of the layer, kept to tell which positions are allowed; None if the layer has none. Positions
            that the layer chooses by their content (DeepSeek-V3.2) are not in it, but `scores` hides the others.
        drop: Function that applies dropout to weights.
        fused: Function that returns the outputs without the weights; None if there is none for this layer.
        sink: Score of no position at all (gpt-oss), broadcast to `[batch, heads, from, 1]`, which takes part in the
            softmax, so that rows of weights sum to less than one; None for none.
        undropped: Bool, broadcast to the weights, True for weights that are exempt from dropout; None
            if dropout applies to all.
    """

    scores: Callable[[slice], Tensor]
    value: Tensor
    groups: int
    mask: Tensor | None
    drop: Callable[[Tensor], Tensor]
    fused: Callable[[], Tensor] | None = None
    sink: Tensor | None = None
    undropped: Tensor | None = None

    @cached_property
    def weights(self) -> Tensor:
        """Attention weights before dropout, float32 `[batch, heads, from, to]`."""
        return self.rows(slice(None))

    def rows(self, of: slice) -> Tensor:
        """Return the rows of the weights from some positions, without computing the others.

        Args:
            of: The positions in `from`.
        """
        if "weights" in vars(self):
            return self.weights[:, :, of]
        scores = self.scores(of)
        kind = torch.promote_types(scores.dtype, torch.float32)
        if self.sink is None:
            return scores.softmax(-1, dtype=kind)
        sink = self.sink.to(kind).expand(-1, -1, self.value.size(2), -1)[:, :, of]
        scores = torch.cat([scores.to(kind), sink.expand(*scores.shape[:-1], 1)], -1)
        return scores.softmax(-1)[..., :-1]

    @cached_property
    def values(self) -> Tensor:
        """Values `[batch, heads, to, dim]`; with grouped heads, repeated for all query heads of a group."""
        return self.value if self.groups == 1 else self.value.repeat_interleave(self.groups, dim=1)

    @cached_property
    def outputs(self) -> Tensor:
        """Outputs of the heads `[batch, heads, from, dim]`: sums of values weighted by attention after dropout."""
        if self.fused is not None and "weights" not in vars(self):
            return self.fused()
        weights = self.weights.to(self.values.dtype)
        dropped = self.drop(weights)
        if self.undropped is not None:
            dropped = dropped.where(~self.undropped, weights)
        return dropped @ self.values

    def allowed(self, real: Tensor) -> Tensor:
        """Return a mask that is True where a position may attend to another, bool `[batch, 1, from, to]`.

        A position may attend to the real positions that the layer's mask allows: all of them, those in a
        window, or those that are not later. Rows of padding are undefined.

        Args:
            real: Bool `[batch, to]`, True for real positions.
        """
        seen = real[:, None, None, :]
        if self.mask is None:
            return seen.expand(-1, -1, real.size(1), -1)
        return seen & (self.mask > torch.finfo(self.mask.dtype).min / 2)


class AttentionMasks(NamedTuple):
    """Masks of the positions that each position may attend to, for all layers of a model.

    Attributes:
        masks: Distinct masks, bool `[batch, masks, from, to]`, True where attention is allowed.
        of_layers: Index of each layer's mask among the distinct masks, int64 `[layers]`.
    """

    masks: Tensor
    of_layers: Tensor

    def at(self, layer: int) -> Tensor:
        """Return the mask of a layer, counted from 0, bool `[batch, 1, from, to]`, True where attention is allowed."""
        return self.masks[:, self.of_layers[layer, None]]


def uniform_attention(allowed: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return attention with equal weights on all allowed positions, `[…, from, to]`.

    Args:
        allowed: Bool `[…, from, to]`, True for allowed positions.
        dtype: Type of the weights.
    """
    weights = allowed.to(dtype)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1)


Replace = Callable[[int, nn.Module, Mixture], Tensor]
"""Called with a 0-based layer, its attention module and its mixture; returns the outputs to use instead."""


@dataclass(frozen=True, eq=False)
class LayerCall:
    """Attention of one layer in a forward pass, and the arguments of the layer.

    Attributes:
        mixture: Weights, values and outputs of the heads.
        args: Positional arguments of the layer; empty unless `remember_arguments` was called for it.
        kwargs: Keyword arguments of the layer.
    """

    mixture: Mixture
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> Tensor:
        """Input of the layer, `[batch, pieces, size]`."""
        return given_to(self.args, self.kwargs)

    @property
    def uncached(self) -> tuple[list[Any], dict[str, Any]]:
        """Arguments and keyword arguments without the cache of keys and values, to run the layer once more."""
        from transformers import Cache

        def without(one: object) -> object:
            return None if isinstance(one, Cache) else one

        return [without(one) for one in self.args], {name: without(one) for name, one in self.kwargs.items()}


def given_to(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the first tensor among the arguments of a module, which is its input; an empty one if there is none."""
    return next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), torch.empty(0))


Measure = Callable[[int, LayerCall], Tensor]
"""Called with a 0-based layer and its call; returns maps `[batch, heads, from, to]`."""


def weights_of(layer: int, call: LayerCall) -> Tensor:
    """Return the attention weights of a layer, the default `Measure`."""
    return call.mixture.weights


class _Finished(Exception):
    """Ends a forward pass after the last wanted layer."""


class MismatchError(Exception):
    """Error for attention that is not the model's own, for instance by an argument that is not known here."""


@dataclass
class _Capture:
    receive: Receive
    layers: frozenset[int]
    last: int | None  # the pass ends after the attention of this layer; None for a whole pass
    measure: Measure
    lower: bool
    modules: list[nn.Module] = field(default_factory=list)  # that have attended
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), {})  # of the layer that runs

    def attention(self, module: nn.Module, mixture: Mixture) -> None:
        layer = len(self.modules)
        self.modules.append(module)
        if self.lower or layer in self.layers:
            maps = self.measure(layer, LayerCall(mixture, *self.arguments))
        if layer in self.layers:
            self.receive(layer, maps)
        if layer == self.last:
            raise _Finished


_ACTIVE: ContextVar[_Capture | None] = ContextVar("active capture", default=None)


def _unchanged(module: nn.Module, mixture: Mixture) -> Tensor:
    return mixture.outputs


_OUTPUTS: ContextVar[Callable[[nn.Module, Mixture], Tensor]] = ContextVar("outputs of the heads", default=_unchanged)

_REDUNDANT = frozenset(
    {"position_ids", "cache_position", "position_embeddings", "cu_seq_lens_q", "cu_seq_lens_k", "token_type_ids"}
)
"""Tensors that say nothing beyond the mask, the queries and the keys."""


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
    indices: Tensor | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    exact: bool = False,
    **others: object,
) -> tuple[Tensor, None]:
    """Compute softmax attention in place of the attention function of transformers.

    Within the contexts of this module it also captures the weights (`capture_attention`), changes them
    (`intervening`), or replaces the outputs (`replacing`).

    Args:
        module: The calling attention module; dropout applies in its training mode.
        query: `[batch, heads, from, dim]`.
        key: `[batch, key heads, to, dim]`; with grouped heads, one key head serves `heads / key heads` query heads.
        value: `[batch, key heads, to, dim]`.
        attention_mask: Mask added to the scores, `[batch, 1, from, to]`.
        scaling: Factor of the dot product; by default `dim ** -0.5`.
        dropout: Dropout probability of the weights.
        softcap: Bound on the scores, as in Gemma; None for no bound.
        position_bias: Addition to the scores, as in T5, `[batch, heads, from, to]`.
        indices: The only positions that each position may attend to, as in DeepSeek-V3.2, int `[batch, from, chosen]`.
        s_aux: Score of the sink of each head, as in gpt-oss, `[heads]`; see `Mixture`.
        sinks: The same for each position, `[batch, heads, from, 1]`.
        exact: True to compute scores in single precision at least.
        **others: Arguments that change nothing: numbers, names, and tensors that repeat what the mask says.

    Returns:
        Outputs of the heads `[batch, from, heads, dim]`, and None instead of the weights.

    Raises:
        MismatchError: A further argument is a tensor or a function that could change attention.
    """
    if unknown := [
        name for name, one in others.items() if isinstance(one, Tensor | Callable) and name not in _REDUNDANT
    ]:
        raise MismatchError(f"its attention function takes the argument `{unknown[0]}`, which captures do not support")
    groups = query.size(1) // key.size(1)
    sink = s_aux.view(1, -1, 1, 1) if s_aux is not None else sinks
    mask = attention_mask if indices is None else _chosen(indices, query, key, attention_mask)

    kind = torch.promote_types(query.dtype, torch.float32) if exact else query.dtype

    @cache
    def keys() -> Tensor:
        return (key if groups == 1 else key.repeat_interleave(groups, dim=1)).to(kind)

    def scores(rows: slice) -> Tensor:
        # In place, which gradients allow here: for long inputs these are the largest tensors of the pass.
        found = (query[:, :, rows].to(kind) @ keys().transpose(2, 3)).mul_(
            query.size(-1) ** -0.5 if scaling is None else scaling
        )
        if position_bias is not None:
            found.add_(position_bias[..., rows, :])
        if softcap is not None:
            found = found.div_(softcap).tanh_() * softcap  # not in place: the gradient of tanh needs its result
        return found if mask is None else found.add_(mask[..., rows, :])

    def fused() -> Tensor:
        keyed, valued = key, value
        added = [one for one in (position_bias, mask) if one is not None]
        if sink is not None:  # a key of zeros, whose score is that of the sink, with a value of zeros
            blank = query.new_zeros(*query.shape[:3], key.size(2))
            added = [torch.cat([sum(added, blank), sink.to(query.dtype).expand(*query.shape[:3], 1)], -1)]
            keyed, valued = (nn.functional.pad(one, (0, 0, 0, 1)) for one in (key, value))
        bias = sum(added[1:], added[0]) if added else None
        return nn.functional.scaled_dot_product_attention(
            query, keyed, valued, bias, scale=scaling, enable_gqa=groups > 1
        )

    drop = partial(nn.functional.dropout, p=dropout, training=module.training)
    capture = _ACTIVE.get()
    fuses = capture is not None and softcap is None  # which fused attention does not know
    mixture = Mixture(scores, value, groups, attention_mask, drop, fused if fuses else None, sink)
    if capture is not None:
        capture.attention(module, mixture)
    return _OUTPUTS.get()(module, mixture).transpose(1, 2).contiguous(), None


def _chosen(indices: Tensor, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Return a mask that also hides all positions but the chosen ones, `[batch, 1, from, to]`."""
    hidden = query.new_full((len(query), query.size(2), key.size(2)), torch.finfo(query.dtype).min)
    hidden = hidden.scatter_(-1, indices.long(), 0)[:, None]
    return hidden if mask is None else torch.minimum(mask, hidden)


@wrapt.when_imported("transformers.modeling_utils")
def _register(models: Any) -> None:  # noqa: ANN401 # the module
    """Register the attention functions with the first model; importing the models of transformers takes seconds."""
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    for name, function in ((NAME, attend), (FLOAT32, partial(attend, exact=True))):
        models.AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, eager_mask)


@contextmanager
def _capturing(capture: _Capture) -> Iterator[None]:
    """Pass the attention of a forward pass to a capture, which may end the pass."""
    token = _ACTIVE.set(capture)
    try:
        yield
    except _Finished:
        pass
    finally:
        _ACTIVE.reset(token)


@torch.inference_mode()
def capture_attention(
    model: "PreTrainedModel",
    inputs: Mapping[str, Tensor],
    receive: Receive,
    layers: frozenset[int],
    receive_state: Receive | None = None,
    states: frozenset[int] = frozenset(),
    measure: Measure = weights_of,
    lower: bool = False,
) -> None:
    """Run `model` once, and pass the wanted weights and hidden states to callbacks.

    Without hidden states, the pass stops after the attention of the last wanted layer.

    Args:
        model: Model with `attn_implementation=NAME`, in eval mode.
        inputs: Arguments of the model, `input_ids` and `attention_mask` `[batch, pieces]`.
        receive: Called with each wanted 0-based layer and its attention weights before dropout, float32
            `[batch, heads, from, to]`, valid during the call only.
        layers: Wanted 0-based layers.
        receive_state: Called at the end of the pass with the index of each wanted hidden state and the
            state `[batch, pieces, size]`. The last state includes the final normalisation of the model,
            as in transformers.
        states: Indices of the wanted hidden states: 0 for the embeddings, k for layer k.
        measure: Function that computes the maps of a layer, which `receive` gets instead of the weights.
        lower: True if `measure` is also called for the other layers below the last wanted one.
    """
    capture = _Capture(receive, layers, None if states else max(layers, default=None), measure, lower)
    output = None
    with _capturing(capture):
        output = model(**inputs, output_hidden_states=bool(states))
    if receive_state is not None and output is not None:
        for number in sorted(states):
            receive_state(number, output.hidden_states[number])


@dataclass(frozen=True, eq=False)
class Reading:
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
def read(model: "PreTrainedModel", inputs: Mapping[str, Tensor]) -> Reading:
    """Run `model` once, and return the attention of all layers, for short inputs.

    Args:
        model: Model with `attn_implementation=NAME`, or one that was changed by `tap`.
        inputs: Arguments of the model, `input_ids` and `attention_mask` `[batch, pieces]`.
    """
    weights, gaps, sinks = list[Tensor](), [0.0], list[bool]()

    def keep(_: int, call: LayerCall) -> Tensor:
        mixture = call.mixture
        weights.append(mixture.weights)
        sinks.append(mixture.sink is not None)
        if mixture.fused is not None and mixture.outputs.size(2) == inputs["attention_mask"].size(1):
            gap = (mixture.fused() - mixture.outputs) * inputs["attention_mask"][:, None, :, None]
            gaps.append(float(gap.abs().max() / mixture.outputs.abs().max()))
        return mixture.weights

    capture = _Capture(lambda *_: None, frozenset(), None, keep, lower=True)
    with _capturing(capture):
        state: Tensor = model(**inputs)[0]
    return Reading(capture.modules, weights, state, max(gaps), any(sinks))


_ORDERS = ((0, 1, 2, 3), (2, 3, 0, 1))  # of batch, heads, from and to; modules of XLNet put the positions first


@torch.inference_mode()
def tap(model: "PreTrainedModel", inputs: Mapping[str, Tensor], own: Sequence[Tensor]) -> bool:
    """Make a model that bypasses the attention interface pass its weights to `capture_attention`.

    In each layer, one module returns the weights if `output_attentions` is true. A captured pass reads them there, and
    replaces them by an empty tensor, so that the weights of several layers never exist at the same time.

    Args:
        model: The model.
        inputs: Arguments of a short pass over one text.
        own: Weights of each layer that the model returned for these inputs, `[1, heads, from, to]`.

    Returns:
        False if no module returns the weights of some layer; the model is then unchanged.
    """
    found: list[tuple[nn.Module, int, tuple[int, ...]]] = []

    def look(module: nn.Module, _: object, output: object) -> None:
        for place, one in enumerate(output if isinstance(output, tuple | list) else ()):
            for order in _ORDERS if isinstance(one, Tensor) and one.dim() == len(_ORDERS[0]) else ():
                if len(found) < len(own) and torch.equal(one.permute(order), own[len(found)]):
                    found.append((module, place, order))

    def pass_on(place: int, order: tuple[int, ...], module: nn.Module, _: object, output: Sequence[Any]) -> object:
        if (capture := _ACTIVE.get()) is None:
            return output
        weights = output[place].permute(order)
        mixture = Mixture(lambda rows: weights[:, :, rows], weights, 1, None, lambda dropped: dropped)
        mixture.weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
        capture.attention(module, mixture)
        return type(output)((*output[:place], weights.new_empty((0,) * weights.dim()), *output[place + 1 :]))  # type: ignore[call-arg]

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    try:
        model(**inputs, output_attentions=True)
    finally:
        for hook in hooks:
            hook.remove()
    if len(found) == len(own):
        model.register_forward_pre_hook(_asking, with_kwargs=True)
        for module, place, order in found:
            module.register_forward_hook(partial(pass_on, place, order))
    return len(found) == len(own)


def _asking(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Ask a model that was changed by `tap` for its weights, in a captured pass."""
    return args, kwargs if _ACTIVE.get() is None else {**kwargs, "output_attentions": True}


def remember_arguments(layers: Iterable[nn.Module]) -> None:
    """Keep, in every captured pass, the arguments of some layers for the `measure` of `capture_attention`."""

    def remember(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (capture := _ACTIVE.get()) is not None:
            capture.arguments = args, kwargs

    for layer in set(layers):
        layer.register_forward_pre_hook(remember, with_kwargs=True)


@torch.inference_mode()
def allowed_by_layer(model: "PreTrainedModel", pieces: int, tapped: bool = False) -> tuple[Tensor, Tensor]:
    """Return the distinct masks that are True where a position may attend to another, and the mask of each layer.

    The masks come from a forward pass over an input of `pieces` pieces, and are not inferred from the
    architecture. They may differ by layer, for instance in the width of a window. A model that was changed by `tap`
    runs with parameters of zero: its scores are then equal, and every position that the mask allows has weight.

    Args:
        model: Model that uses the attention function of this module, or was changed by `tap`.
        pieces: Number of pieces of the input.
        tapped: True for a model that was changed by `tap`.

    Returns:
        Bool `[masks, from, to]`, and the index of the mask of each attention layer, int64 `[layers]`.
    """
    distinct, of_layers = list[Tensor](), list[int]()
    tokens = torch.arange(pieces, device=model.device)[None] % 6 + 1
    real = torch.ones_like(tokens, dtype=torch.bool)
    inputs = {"input_ids": tokens, "attention_mask": real.long()}

    def add(mask: Tensor) -> None:
        place = next((place for place, one in enumerate(distinct) if torch.equal(one, mask)), len(distinct))
        distinct.extend([mask.clone()] if place == len(distinct) else [])
        of_layers.append(place)

    def read(_: int, module: nn.Module, mixture: Mixture) -> Tensor:
        add(mixture.allowed(real.to(mixture.value.device))[0, 0].to(model.device))
        return mixture.values  # in place of the outputs, which no mask depends on

    def weighted(_: int, call: LayerCall) -> Tensor:
        add((call.mixture.weights[0] > 0).any(0).to(model.device))
        return call.mixture.weights

    def run() -> None:
        if not tapped:
            with replacing(read):
                model(**inputs)
            return
        blank = {name: one.new_zeros(()).expand_as(one) for name, one in model.named_parameters()}
        with _capturing(_Capture(lambda *_: None, frozenset(), None, weighted, lower=True)):
            functional_call(model, blank, (), inputs)

    Context().run(run)  # an empty context: the caller may be in the middle of a captured pass
    return torch.stack(distinct), torch.tensor(of_layers, device=model.device)


@contextmanager
def intervening(intervene: Intervene) -> Iterator[None]:
    """Call `intervene` in every layer during a `with` block, to read and change attention weights.

    The block must run exactly one forward pass. Gradients flow through the weights that `intervene`
    returns.

    Args:
        intervene: Function with three arguments: the 0-based number of the layer, its attention weights
            before dropout `[batch, heads, from, to]`, and its values `[batch, heads, to, dim]`. It
            returns the weights to use instead, and a bool mask, broadcast to the weights, True for
            weights that are exempt from dropout (None if dropout applies to all).
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

    The block must run exactly one forward pass.

    Args:
        replace: Function of the layer's number, its attention module and its attention as a `Mixture`.
            It returns the outputs of the heads to use instead, `[batch, heads, from, dim]`.
        first: Number given to the first layer that runs, larger than 0 if the pass starts above the
            lowest layer.

    Raises:
        RuntimeError: The block lies within another `replacing` or within `intervening`, whose change
            would be lost.
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


def state_size(model: "PreTrainedModel", layers: int, name: str) -> int:
    """Return the size of the hidden states of a model.

    Args:
        model: The model.
        layers: Number of its layers.
        name: Name of the model, for messages.

    Raises:
        UserError: The states differ in size, or are not one for each layer and one for the embeddings.
    """
    inputs = {"input_ids": torch.arange(1, 7, device=model.device)[None]}
    with torch.inference_mode():
        states: tuple[Tensor, ...] = model(**inputs, output_hidden_states=True).hidden_states or ()
    shapes = {tuple(state.shape) for state in states}
    if len(states) != layers + 1 or len(shapes) > 1 or states[0].shape[:2] != inputs["input_ids"].shape:
        raise UserError(
            f"{name} gives {len(states)} hidden states of the shapes {', '.join(map(str, sorted(shapes)))}, "
            f"but {layers + 1} of the shape (1, {inputs['input_ids'].size(1)}, size) are needed: one of the "
            f"embeddings, and one of each layer. Choose another encoder, or leave out {setting('data.hidden')}."
        )
    return int(states[0].size(2))
