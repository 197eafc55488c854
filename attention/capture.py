"""Capture and replacement of attention in a forward pass.

transformers looks up the attention function by name at every layer. The function of this module is registered under
`NAME`, together with the mask of eager attention, without which decoders would silently stop being causal. It computes
the weights explicitly and passes them to a callback.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
import wrapt
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "probing"
"""Name of the attention function."""
FLOAT32 = "probing_float32"
"""Name of the attention function that computes scores in single precision."""

Receive = Callable[[int, Tensor], None]
"""Called with a 0-based layer and its maps `[batch, heads, from, to]`, by default the attention weights, float32, rows
summing to one (to less with attention sinks); or with the number of a hidden state, 0 for the embeddings and k for
layer k, and the state `[batch, pieces, size]`."""

Intervene = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""Called with a 0-based layer, its weights `[batch, heads, from, to]` and its values `[batch, heads, to, dim]`. Returns
the weights to use instead, and a mask of weights without dropout: bool, broadcast to the weights, or None."""


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
        if self.groups == 1:
            return self.value
        return self.value.repeat_interleave(self.groups, dim=1)

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
        columns = real[:, None, None, :]
        if self.mask is None:
            return columns.expand(-1, -1, real.size(1), -1)
        return columns & (self.mask > torch.finfo(self.mask.dtype).min / 2)


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
    def input(self) -> Tensor:
        """Input of the layer, `[batch, pieces, size]`."""
        return input_of(self.args, self.kwargs)

    @property
    def arguments_without_cache(self) -> tuple[list[Any], dict[str, Any]]:
        """Arguments and keyword arguments without the cache of keys and values, to run the layer once more."""
        args = [_without_cache(value) for value in self.args]
        kwargs = {name: _without_cache(value) for name, value in self.kwargs.items()}
        return args, kwargs


def _without_cache(value: Any) -> Any:  # noqa: ANN401 # an argument of a layer
    from transformers import Cache

    return None if isinstance(value, Cache) else value


def input_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the first tensor among the arguments of a module, which is its input; an empty one if there is none."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value
    return torch.empty(0)


ComputeMaps = Callable[[int, LayerCall], Tensor]
"""Called with a 0-based layer and its call; returns maps `[batch, heads, from, to]`."""


def weights_of(layer: int, call: LayerCall) -> Tensor:
    """Return the attention weights of a layer, the default `ComputeMaps`."""
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
    measure: ComputeMaps
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


@dataclass(eq=False)
class _DotProducts:
    """Queries, keys and values of one layer, with all that is added to their dot products; see `attend`.

    Attributes:
        mask: Mask added to the scores.
        sink: Score of no position, broadcast to `[batch, heads, from, 1]`.
        dtype: Type in which scores are computed.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float | None
    softcap: float | None
    position_bias: Tensor | None
    mask: Tensor | None
    sink: Tensor | None
    dtype: torch.dtype

    @property
    def groups(self) -> int:
        """Number of query heads for each key head."""
        return self.query.size(1) // self.key.size(1)

    @cached_property
    def keys(self) -> Tensor:
        """Keys `[batch, heads, to, dim]`; with grouped heads, repeated for all query heads of a group."""
        keys = self.key
        if self.groups > 1:
            keys = keys.repeat_interleave(self.groups, dim=1)
        return keys.to(self.dtype)

    def scores(self, rows: slice) -> Tensor:
        """Return the scores of some positions in `from`, before the softmax, `[batch, heads, rows, to]`."""
        scaling = self.scaling
        if scaling is None:
            scaling = self.query.size(-1) ** -0.5
        # In place, which gradients allow here: for long inputs these are the largest tensors of the pass.
        scores = (self.query[:, :, rows].to(self.dtype) @ self.keys.transpose(2, 3)).mul_(scaling)
        if self.position_bias is not None:
            scores.add_(self.position_bias[..., rows, :])
        if self.softcap is not None:
            # The product is not in place, as the gradient of tanh needs its result.
            scores = scores.div_(self.softcap).tanh_() * self.softcap
        if self.mask is not None:
            scores.add_(self.mask[..., rows, :])
        return scores

    def fused_outputs(self) -> Tensor:
        """Return the outputs of PyTorch's fused attention, which keeps no weights, `[batch, heads, from, dim]`."""
        key = self.key
        value = self.value
        bias = self.position_bias
        if bias is None:
            bias = self.mask
        elif self.mask is not None:
            bias = bias + self.mask
        if self.sink is not None:  # a key of zeros, whose score is that of the sink, with a value of zeros
            rows = self.query.shape[:3]
            scores = self.query.new_zeros(*rows, key.size(2))
            if bias is not None:
                scores = scores + bias
            bias = torch.cat([scores, self.sink.to(self.query.dtype).expand(*rows, 1)], -1)
            key = nn.functional.pad(key, (0, 0, 0, 1))
            value = nn.functional.pad(value, (0, 0, 0, 1))
        return nn.functional.scaled_dot_product_attention(
            self.query, key, value, bias, scale=self.scaling, enable_gqa=self.groups > 1
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
    for name, other in others.items():
        if (isinstance(other, Tensor) or callable(other)) and name not in _REDUNDANT:
            raise MismatchError(f"its attention function takes the argument `{name}`, which captures do not support")
    sink = sinks
    if s_aux is not None:
        sink = s_aux.view(1, -1, 1, 1)
    mask = attention_mask
    if indices is not None:
        mask = _hide_others(indices, query, key, attention_mask)
    dtype = query.dtype
    if exact:
        dtype = torch.promote_types(dtype, torch.float32)
    products = _DotProducts(query, key, value, scaling, softcap, position_bias, mask, sink, dtype)
    capture = _ACTIVE.get()
    fused = None
    if capture is not None and softcap is None:  # which fused attention does not know
        fused = products.fused_outputs
    drop = partial(nn.functional.dropout, p=dropout, training=module.training)
    mixture = Mixture(products.scores, value, products.groups, attention_mask, drop, fused, sink)
    if capture is not None:
        capture.attention(module, mixture)
    return _OUTPUTS.get()(module, mixture).transpose(1, 2).contiguous(), None


def _hide_others(indices: Tensor, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Return a mask that also hides all positions but the chosen ones, `[batch, 1, from, to]`."""
    hidden = query.new_full((len(query), query.size(2), key.size(2)), torch.finfo(query.dtype).min)
    hidden = hidden.scatter_(-1, indices.long(), 0)[:, None]
    if mask is None:
        return hidden
    return torch.minimum(mask, hidden)


@wrapt.when_imported("transformers.modeling_utils")
def _register(models: Any) -> None:  # noqa: ANN401 # the module
    """Register the attention functions with the first model; importing the models of transformers takes seconds."""
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    models.AttentionInterface.register(NAME, attend)
    models.AttentionInterface.register(FLOAT32, partial(attend, exact=True))
    for name in (NAME, FLOAT32):
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


@contextmanager
def measuring(measure: ComputeMaps) -> Iterator[list[nn.Module]]:
    """Call `measure` for every layer during a `with` block, which must run exactly one forward pass.

    Yields:
        The attention modules that have been called, in their order; it grows during the pass.
    """
    capture = _Capture(lambda *_: None, frozenset(), None, measure, lower=True)
    with _capturing(capture):
        yield capture.modules


@torch.inference_mode()
def capture_attention(
    model: "PreTrainedModel",
    inputs: Mapping[str, Tensor],
    receive: Receive,
    layers: frozenset[int],
    receive_state: Receive | None = None,
    states: frozenset[int] = frozenset(),
    measure: ComputeMaps = weights_of,
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
    last = None if states else max(layers, default=None)
    output = None
    with _capturing(_Capture(receive, layers, last, measure, lower)):
        output = model(**inputs, output_hidden_states=bool(states))
    if receive_state is not None and output is not None:
        for number in sorted(states):
            receive_state(number, output.hidden_states[number])


_ORDERS = ((0, 1, 2, 3), (2, 3, 0, 1))  # of batch, heads, from and to; modules of XLNet put the positions first


@torch.inference_mode()
def tap(model: "PreTrainedModel", inputs: Mapping[str, Tensor], eager: Sequence[Tensor]) -> bool:
    """Make a model that bypasses the attention interface pass its weights to `capture_attention`.

    In each layer, one module returns the weights if `output_attentions` is true. A captured pass reads them there, and
    replaces them by an empty tensor, so that the weights of several layers never exist at the same time.

    Args:
        model: The model.
        inputs: Arguments of a short pass over one text.
        eager: Weights of each layer that the model returned for these inputs, `[1, heads, from, to]`.

    Returns:
        False if no module returns the weights of some layer; the model is then unchanged.
    """
    returned = _find_returned_weights(model, inputs, eager)
    if len(returned) < len(eager):
        return False
    model.register_forward_pre_hook(_ask_for_weights, with_kwargs=True)
    for module, place, order in returned:
        module.register_forward_hook(partial(_pass_on, place, order))
    return True


def _find_returned_weights(
    model: "PreTrainedModel", inputs: Mapping[str, Tensor], eager: Sequence[Tensor]
) -> list[tuple[nn.Module, int, tuple[int, ...]]]:
    """Return the module that returns the weights of each layer, their place in its output, and the order of the axes.

    Args:
        model: The model.
        inputs: Arguments of a short pass over one text.
        eager: Weights of each layer that the model returned for these inputs.
    """
    returned: list[tuple[nn.Module, int, tuple[int, ...]]] = []

    def compare(module: nn.Module, _: object, output: object) -> None:
        if not isinstance(output, tuple | list):
            return
        for place, part in enumerate(output):
            if not isinstance(part, Tensor) or part.dim() != len(_ORDERS[0]):
                continue
            for order in _ORDERS:
                if len(returned) < len(eager) and torch.equal(part.permute(order), eager[len(returned)]):
                    returned.append((module, place, order))

    hooks = [module.register_forward_hook(compare) for module in model.modules()]
    try:
        model(**inputs, output_attentions=True)
    finally:
        for hook in hooks:
            hook.remove()
    return returned


def _pass_on(place: int, order: tuple[int, ...], module: nn.Module, _: object, output: Sequence[Any]) -> object:
    """Pass the weights in the output of a module to the capture of the pass; return the output without them."""
    capture = _ACTIVE.get()
    if capture is None:
        return output
    weights = output[place].permute(order)
    mixture = Mixture(lambda rows: weights[:, :, rows], weights, 1, None, lambda dropped: dropped)
    mixture.weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    capture.attention(module, mixture)
    blank = weights.new_empty((0,) * weights.dim())
    return type(output)((*output[:place], blank, *output[place + 1 :]))  # type: ignore[call-arg]


def _ask_for_weights(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Ask a model that was changed by `tap` for its weights, in a captured pass."""
    if _ACTIVE.get() is None:
        return args, kwargs
    return args, {**kwargs, "output_attentions": True}


def remember_arguments(layers: Iterable[nn.Module]) -> None:
    """Keep, in every captured pass, the arguments of some layers for the `measure` of `capture_attention`."""

    def remember(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        capture = _ACTIVE.get()
        if capture is not None:
            capture.arguments = (args, kwargs)

    for layer in set(layers):
        layer.register_forward_pre_hook(remember, with_kwargs=True)


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
    layers = count()
    outer = _OUTPUTS.get()

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
