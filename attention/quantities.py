"""Quantities between two tokens: attention, and measures of what a head or a layer moves from one token to another.

Weights alone do not say what a head does: values differ in size (Kobayashi et al. 2020, 2021), part of the weights of
a long input cannot change the output (Brunner et al. 2020), and layers mix what lower layers have mixed already (Abnar
& Zuidema 2020).

Notation: α are the weights of a layer, v its values, u = v W_O the values after the part of the output projection that
reads the head, b_O the bias of this projection, x the input of the layer, s = Σ α u + b_O + x the state after the
residual connection. i is the token that attends (from), j the token that is attended to.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers.pytorch_utils import Conv1D

from attention_probing.attention.alignment import Reduction, keep_apart
from attention_probing.attention.capture import LayerCall, Mixture, input_of, replacing
from attention_probing.metrics.distributions import divided_by_sums
from attention_probing.results.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

QuantityName = Literal[
    "attention",
    "attention_without_first",
    "norms",
    "norms_summed",
    "norms_residual",
    "effective",
    "value_zeroing",
    "rollout",
    "alti",
]
"""Names of the quantities; `QUANTITIES` has their classes."""

QUANTITIES_VERSION = 1
"""Part of the key of a store of another quantity than attention: raise it when the numbers of a quantity change."""
CELLS = 1 << 22
"""Largest number of elements of a tensor over pairs of tokens and dimensions, as `Alti` needs."""
_CLOSE = 1e-4  # relative to the largest number


@dataclass(frozen=True, eq=False)
class LayerParts:
    """Modules of a layer around its attention.

    Attributes:
        heads: Number of heads.
        block: The layer, which reads and returns hidden states.
        projection: Output projection of the attention, `nn.Linear` or GPT-2's `Conv1D`.
        residual: True if the rest of the layer reads s.
        norm: Normalisation of s whose result replaces it (post-norm, as in BERT); None if s itself is passed
            on (pre-norm, as in GPT-2).
    """

    heads: int
    block: nn.Module
    projection: nn.Module
    residual: bool
    norm: nn.LayerNorm | None

    @cached_property
    def by_head(self) -> Tensor:
        """Output projection W_O of each head, `[heads, dim, size]`."""
        weight = cast(Tensor, self.projection.weight)
        by_input = weight if isinstance(self.projection, Conv1D) else weight.T
        return by_input.reshape(self.heads, -1, by_input.size(1))

    @cached_property
    def root(self) -> Tensor:
        """R with R Rᵀ = W_O W_Oᵀ of each head, `[heads, dim, dim]`; v R and v W_O have the same singular values."""
        basis, sizes, _ = torch.linalg.svd(self.by_head, full_matrices=False)
        root: Tensor = basis * sizes[:, None]
        return root

    def moved(self, call: LayerCall) -> Tensor:
        """Return u of each head, `[batch, heads, pieces, size]`."""
        return call.mixture.values @ self.by_head

    def state(self, call: LayerCall) -> Tensor:
        """Return s `[batch, pieces, size]`."""
        projected: Tensor = self.projection(call.mixture.outputs.transpose(1, 2).flatten(2))
        return projected + call.input


def find_parts(model: "PreTrainedModel", name: str) -> tuple[LayerParts, ...]:
    """Return the modules around the attention of each layer, found in one forward pass.

    The output projection is the linear layer that reads the output of the attention function.

    Args:
        model: Model with the attention function of `attention.capture`.
        name: Name of the model, for messages.

    Raises:
        UserError: No linear layer reads this output.
    """
    modules = dict(model.named_modules())
    names = {module: path for path, module in modules.items()}
    calls: list[_ModuleCall] = []  # in the order of the pass
    starts: list[_AttentionCall] = []  # by layer

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(_ModuleCall(module, input_of(args, kwargs)))

    def attend(_: int, module: nn.Module, mixture: Mixture) -> Tensor:
        starts.append(_AttentionCall(module, mixture.outputs.size(1), len(calls)))
        calls.append(_ModuleCall(module, mixture.outputs.transpose(1, 2).flatten(2)))
        return mixture.outputs

    hooks = [module.register_forward_pre_hook(record, with_kwargs=True) for module in model.modules()]
    try:
        with torch.inference_mode(), replacing(attend):
            model(input_ids=torch.arange(1, 7, device=model.device)[None])
    finally:
        for hook in hooks:
            hook.remove()
    ends = [start.before for start in starts[1:]]
    ends.append(len(calls))
    parts = []
    earlier = 0  # calls before the attention of the layer below
    for number, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        block = _block_around(names[start.module], modules)
        calls_of_block = [place for place, call in enumerate(calls[: start.before]) if call.module is block]
        begin = max(calls_of_block)
        if begin < earlier:
            raise UserError(
                f"{name}, layer {number}: one block computes several attentions, which cannot be told apart. "
                "Choose the quantity attention or rollout."
            )
        before = calls[begin : start.before]
        after = calls[start.before : end]
        parts.append(_parts_of_layer(start.heads, before, after, f"{name}, layer {number}"))
        earlier = start.before
    if not all(part.norm for part in parts):
        # The lowest layer of ModernBERT has no normalisation before its attention, though it is a pre-norm model.
        parts = [replace(part, norm=None) for part in parts]
    return tuple(parts)


class _ModuleCall(NamedTuple):
    """A call of a module in a forward pass, with its input."""

    module: nn.Module
    input: Tensor


class _AttentionCall(NamedTuple):
    """A call of the attention function.

    Attributes:
        module: The attention module.
        heads: Number of its heads.
        before: Number of calls of modules before it.
    """

    module: nn.Module
    heads: int
    before: int


def _block_around(path: str, modules: Mapping[str, nn.Module]) -> nn.Module:
    """Return the layer around an attention module: the outermost module on its path that is in a list of modules."""
    names = path.split(".")
    for length in range(1, len(names)):
        if isinstance(modules[".".join(names[:length])], nn.ModuleList):
            return modules[".".join(names[: length + 1])]
    return modules[path]


def _parts_of_layer(heads: int, before: Sequence[_ModuleCall], after: Sequence[_ModuleCall], name: str) -> LayerParts:
    """Return the parts of a layer from the modules that it calls before its attention function, and after it.

    Args:
        heads: Number of heads of the layer.
        before: Calls from that of the layer on.
        after: The output of the heads, and the calls that follow.
        name: Name of the model and the layer, for messages.
    """
    block = before[0].module
    layer_input = before[0].input
    outputs = after[0].input
    followers = after[1:]
    readers_of_heads = [call.module for call in followers if _is_linear(call.module) and _close(call.input, outputs)]
    if not readers_of_heads:
        raise UserError(
            f"{name}: no linear layer reads the output of the attention heads, so norms of what they write cannot be "
            "computed. Choose the quantity attention or rollout."
        )
    projection = readers_of_heads[0]
    with torch.inference_mode():
        projected = projection(outputs)
    readers: list[nn.Module] = []
    # MobileBERT's attention works in a bottleneck, which is narrower than the input of the layer.
    if projected.shape == layer_input.shape:
        state = projected + layer_input
        readers = [call.module for call in followers if _close(call.input, state)]
    norms = [module for module in readers if isinstance(module, nn.LayerNorm)]
    # In a post-norm layer, queries and values are linear in the input of the layer, and not in its normalisation.
    readers_of_input = [call.module for call in before if call.input.data_ptr() == layer_input.data_ptr()]
    is_post_norm = any(map(_is_linear, readers_of_input))
    norm = norms[0] if norms and is_post_norm else None
    return LayerParts(heads, block, projection, bool(readers), norm)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Conv1D)


def _close(tensor: Tensor, other: Tensor) -> bool:
    if tensor.shape != other.shape:
        return False
    return bool((tensor - other).abs().max() <= _CLOSE * other.abs().max())


class Quantity(ABC):
    """Maps between tokens in one forward pass: numbers for each pair of a token (from) and another (to).

    Args:
        parts: Modules of each layer, by its 0-based number; empty if `needs_parts` is False.
        real: Bool `[batch, pieces]`, False in the padding.
        reduction: Reduction of maps over pieces to maps over words.

    Attributes:
        name: Name of the quantity.
        has_heads: True for a map for each head, False for one map for each layer.
        range: Lowest and highest possible number.
        sums_to_one: True if the rows over words sum to one.
        needs_lower: True if all lower layers are needed.
        needs_parts: True if more than the weights is needed.
        needs_all: True if every token must see every other: no decoder, no window.
    """

    name: ClassVar[QuantityName]
    has_heads: ClassVar[bool] = True
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    sums_to_one: ClassVar[bool] = False
    needs_lower: ClassVar[bool] = False
    needs_parts: ClassVar[bool] = True
    needs_all: ClassVar[bool] = False

    def __init__(self, parts: Mapping[int, LayerParts], real: Tensor, reduction: Reduction) -> None:
        self.parts = parts
        self.real = real
        self.reduction = reduction

    @classmethod
    def undefined(cls, part: LayerParts) -> str:
        """Return why the quantity is not defined for a layer, with a remedy; empty if it is defined."""
        return ""

    @abstractmethod
    def maps(self, layer: int, call: LayerCall) -> Tensor:
        """Return the maps of a layer, `[batch, heads or 1, from, to]` over pieces; rows of padding are undefined.

        Args:
            layer: 0-based layer. If `needs_lower`, all lower layers come before it.
            call: Attention of the layer, and arguments of the layer.
        """

    def words(self, maps: Tensor) -> Tensor:
        """Reduce maps over pieces to words: sum over the pieces of the word attended to, mean over those of the other.

        For norms the sum is an upper bound of the norm of the summed vectors.

        Args:
            maps: The maps over pieces, from `maps`.
        """
        return self.reduction.words(maps)


class Weights(Quantity):
    """Attention weights α, after softmax."""

    name = "attention"
    sums_to_one = True
    needs_parts = False

    def maps(self, layer: int, call: LayerCall) -> Tensor:
        return call.mixture.weights


class WithoutFirst(Quantity):
    """α without the first token, each row divided by its sum; a row without weight on other tokens stays.

    Decoders give the first token the weight that they have no use for (attention sinks; Xiao et al. 2024).
    """

    name = "attention_without_first"
    sums_to_one = True
    needs_parts = False

    def maps(self, layer: int, call: LayerCall) -> Tensor:
        weights = call.mixture.weights
        others = weights.clone()
        others[..., 0] = 0
        return torch.where(others.any(-1, keepdim=True), divided_by_sums(others), weights)


class Norms(Quantity):
    """‖α u‖ of each head, the norm of what it moves (Kobayashi et al. 2020, §3; their code's `weighted_norm`)."""

    name = "norms"
    range = (0.0, float("inf"))

    def maps(self, layer: int, call: LayerCall) -> Tensor:
        sizes: Tensor = torch.linalg.vector_norm(call.mixture.values @ self.parts[layer].root, dim=-1)
        return call.mixture.weights * sizes[:, :, None]


class SummedNorms(Quantity):
    """‖Σ α u‖, summed over heads before the norm ("AttnN"; Kobayashi et al. 2020, §5)."""

    name = "norms_summed"
    has_heads = False
    range = (0.0, float("inf"))

    def maps(self, layer: int, call: LayerCall) -> Tensor:
        return summed_norms(call.mixture.weights, self.parts[layer].moved(call))[:, None]


class ResidualNorms(Quantity):
    """Norms after residual connection and normalisation ("AttnResLnN"; Kobayashi et al. 2021, §3), of post-norm layers.

    With w = Σ α u, to which x is added where i = j: ‖γ ⊙ (w − mean w)‖ / √(var s + ε).
    """

    name = "norms_residual"
    has_heads = False
    range = (0.0, float("inf"))

    @classmethod
    def undefined(cls, part: LayerParts) -> str:
        if part.norm is not None:
            return ""
        return "its layers do not normalise input plus attention (post-norm, as BERT's do). Choose norms_summed"

    def maps(self, layer: int, call: LayerCall) -> Tensor:
        norm = self.parts[layer].norm
        assert norm is not None
        moved = _centre(self.parts[layer].moved(call), norm)
        residual = _centre(call.input, norm)
        sizes = (self.parts[layer].state(call).var(-1, unbiased=False) + norm.eps).sqrt()
        norms = summed_norms(call.mixture.weights, moved, residual) / sizes[..., None]
        return norms[:, None]


class Effective(Quantity):
    """Effective attention: α without the part that cannot change the head's output (Brunner et al. 2020, §3).

    Of each row it is the projection on the column space of T = v W_O. It is α itself where the rows of T are
    linearly independent. Numbers may be negative, and rows need not sum to one. Every token must see every
    other, as the projection would give weight to hidden tokens.
    """

    name = "effective"
    range = (-float("inf"), float("inf"))
    needs_all = True

    def maps(self, layer: int, call: LayerCall) -> Tensor:
        moved = call.mixture.values @ self.parts[layer].root
        moved = moved.masked_fill(~self.real[:, None, :, None], 0)
        return effective_attention(call.mixture.weights, moved, self.real.sum(1))


class ValueZeroing(Quantity):
    """1 − cosine of the layer's output at i with and without the values of word j (Mohebbi et al. 2023, §3).

    All pieces of a word are zeroed at once, in all heads; weights and lower layers stay. Rows are divided by their
    sum. The layer runs once for each word.
    """

    name = "value_zeroing"
    has_heads = False
    sums_to_one = True

    def maps(self, layer: int, call: LayerCall) -> Tensor:
        """Return the maps from pieces to positions, `[batch, 1, pieces, positions]`."""
        mixture = call.mixture
        whole = normalize(self._run(layer, call, mixture.outputs), dim=-1)
        distances = []
        pieces_by_word = self.reduction.columns.to(mixture.outputs.dtype)
        for pieces_of_word in pieces_by_word.unbind(2):
            zeroed = (mixture.weights * pieces_of_word[:, None, None]) @ mixture.values
            without = self._run(layer, call, mixture.outputs - zeroed)
            # Half the squared distance of unit vectors, which is exact where the cosine is close to 1.
            distances.append((whole - normalize(without, dim=-1)).square().sum(-1) / 2)
        return torch.stack(distances, -1)[:, None]

    def words(self, maps: Tensor) -> Tensor:
        words = self.reduction.rows[:, :1] @ maps
        return divided_by_sums(keep_apart(words, self.reduction.pieceless))

    def _run(self, layer: int, call: LayerCall, outputs: Tensor) -> Tensor:
        """Return the layer's output for other outputs of its heads, `[batch, pieces, size]`."""
        args, kwargs = call.arguments_without_cache

        def run() -> Tensor:
            with replacing(lambda *_: outputs):
                output = self.parts[layer].block(*args, **kwargs)
            state: Tensor = output if isinstance(output, Tensor) else output[0]
            return state

        return Context().run(run)  # an empty context: this pass is inside a captured one


class _Product(Quantity):
    """Products over layers: how much of an input token is in a token, through this layer and all below."""

    has_heads = False
    sums_to_one = True
    needs_lower = True

    def __init__(self, parts: Mapping[int, LayerParts], real: Tensor, reduction: Reduction) -> None:
        super().__init__(parts, real, reduction)
        self._product: Tensor | None = None  # of the layers so far

    @abstractmethod
    def mixing(self, layer: int, call: LayerCall) -> Tensor:
        """Return how much of each token (to) one layer mixes into another (from), `[batch, from, to]`.

        Rows sum to one.
        """

    def maps(self, layer: int, call: LayerCall) -> Tensor:
        mixing = self.mixing(layer, call)
        if self._product is not None:
            mixing = mixing @ self._product
        self._product = mixing
        return mixing[:, None]


class Rollout(_Product):
    """Attention rollout: product over layers of (mean over heads + I)/2 (Abnar & Zuidema 2020, §3)."""

    name = "rollout"
    needs_parts = False

    def mixing(self, layer: int, call: LayerCall) -> Tensor:
        return with_residual(call.mixture.weights)


class Alti(_Product):
    """Contributions to the layer's output, rolled out over layers ("ALTI"; Ferrando et al. 2022, §3).

    With T the share of w in y, the normalised state: c = max(0, ‖y‖₁ − ‖y − T‖₁) divided by the row's sum. In a
    pre-norm layer nothing normalises s, and y is s.
    """

    name = "alti"

    @classmethod
    def undefined(cls, part: LayerParts) -> str:
        if part.residual:
            return ""
        return "its layers read no sum of input and attention. Choose norms or norms_summed"

    def mixing(self, layer: int, call: LayerCall) -> Tensor:
        part = self.parts[layer]
        norm = part.norm
        state = part.state(call)
        moved = part.moved(call)
        residual = call.input
        sizes = torch.ones_like(state[..., :1])
        if norm is not None:
            moved = _centre(moved, norm)
            residual = _centre(residual, norm)
            sizes = (state.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
            state = norm(state)
        return contributions(call.mixture.weights, moved, residual, sizes, state)


_CLASSES: Sequence[type[Quantity]] = (
    Weights,
    WithoutFirst,
    Norms,
    SummedNorms,
    ResidualNorms,
    Effective,
    ValueZeroing,
    Rollout,
    Alti,
)
QUANTITIES: Mapping[str, type[Quantity]] = {quantity.name: quantity for quantity in _CLASSES}


def summed_norms(weights: Tensor, moved: Tensor, residual: Tensor | None = None) -> Tensor:
    """Return ‖Σ_h α_ij u_j + δ_ij x_i‖ without vectors for each pair of tokens, `[batch, from, to]`.

    The square is a sum over pairs of heads: Σ α^h_ij α^g_ij ⟨u^h_j, u^g_j⟩.

    Args:
        weights: α `[batch, heads, from, to]`.
        moved: u `[batch, heads, to, size]`.
        residual: x `[batch, from, size]`, added where i = j; None for nothing.
    """
    moved_by_token = moved.transpose(1, 2)  # [batch, to, heads, size]
    weights_to_token = weights.permute(0, 3, 2, 1)  # [batch, to, from, heads]
    products = moved_by_token @ moved_by_token.mT  # [batch, to, heads, heads]
    squares = ((weights_to_token @ products) * weights_to_token).sum(-1).mT
    if residual is not None:
        diagonal = weights.diagonal(dim1=2, dim2=3).mT  # [batch, tokens, heads]
        cross = (diagonal * (moved_by_token @ residual[..., None])[..., 0]).sum(-1)
        squares = squares + torch.diag_embed(2 * cross + residual.square().sum(-1))
    return squares.clamp_min(0).sqrt()


def effective_attention(weights: Tensor, moved: Tensor, tokens: Tensor | None = None) -> Tensor:
    """Return the weights projected on the column space of a matrix, `[batch, heads, from, to]`.

    Args:
        weights: α `[batch, heads, from, to]`.
        moved: The matrix T, or one with the same column space and singular values, `[batch, heads, to, dim]`; zero
            in the padding.
        tokens: Number of tokens of each text, int64 `[batch]`; None if nothing is padded.
    """
    if tokens is None:
        tokens = torch.full(moved.shape[:1], moved.size(-2), device=moved.device)
    # The rounding error of a singular value; below it, a direction is not in the column space.
    error = torch.finfo(moved.dtype).eps * tokens.clamp_min(moved.size(-1))[:, None, None]
    if int(tokens.max()) <= moved.size(-1) and _independent(moved, tokens, error):
        return weights
    basis, sizes, _ = torch.linalg.svd(moved, full_matrices=False)
    least = error * sizes[..., :1]
    column_space: Tensor = (basis * (sizes > least)[..., None, :]).to(weights.dtype)
    return (weights @ column_space) @ column_space.mT


def _independent(moved: Tensor, tokens: Tensor, error: Tensor) -> bool:
    """Return True if all singular values of every matrix are certainly above their rounding error.

    Much quicker than a decomposition: the squares of the singular values, less the square of the error times
    their sum, are those of a positive definite matrix.
    """
    exact = moved.double()
    gram = exact @ exact.mT
    bound = (error.double() * gram.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True).sqrt()).square()
    real = torch.arange(moved.size(-2), device=moved.device) < tokens[:, None, None]
    gram = gram - torch.diag_embed(torch.where(real, bound, -1.0))
    return not torch.linalg.cholesky_ex(gram).info.any()


def with_residual(weights: Tensor) -> Tensor:
    """Return the mean of the heads' weights with the residual connection as half of the attention of each token.

    Args:
        weights: α `[batch, heads, from, to]`.

    Returns:
        `[batch, from, to]`, rows summing to one.
    """
    mean = weights.mean(1) + torch.eye(weights.size(-1), dtype=weights.dtype, device=weights.device)
    return mean / mean.sum(-1, keepdim=True)


def contributions(weights: Tensor, moved: Tensor, residual: Tensor, sizes: Tensor, state: Tensor) -> Tensor:
    """Return the share of each token in the output of each other, `[batch, from, to]`; see `Alti`.

    Args:
        weights: α `[batch, heads, from, to]`.
        moved: u `[batch, heads, to, size]`, centred and scaled as the normalisation does.
        residual: x `[batch, from, size]`, likewise.
        sizes: Divisor of the normalisation, `[batch, from, 1]`.
        state: y `[batch, from, size]`.
    """
    batch, _, tokens, size = moved.shape
    by_token = weights.new_zeros(batch, tokens, tokens)
    flat = moved.permute(0, 2, 1, 3)  # [batch, to, heads, size]
    step = max(CELLS // (batch * tokens * size), 1)
    for start in range(0, tokens, step):
        some = slice(start, start + step)
        weights_of_rows = weights[:, :, some].permute(0, 3, 2, 1)  # [batch, to, from, heads]
        shares = (weights_of_rows @ flat).transpose(1, 2)  # [batch, from, to, size]
        places = torch.arange(start, start + shares.size(1), device=weights.device)
        shares[:, places - start, places] += residual[:, some]
        without = (state[:, some, None] - shares / sizes[:, some, None]).abs().sum(-1)
        by_token[:, some] = (state[:, some].abs().sum(-1, keepdim=True) - without).clamp_min(0)
    return divided_by_sums(by_token)


def _centre(vectors: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return γ ⊙ (vector − its mean), the part of a LayerNorm that is linear."""
    centred = vectors - vectors.mean(-1, keepdim=True)
    return centred if norm.weight is None else centred * norm.weight
