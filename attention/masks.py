"""Masks of a model: the positions that each position may attend to, in every layer."""

from contextvars import Context
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attention_probing.attention.capture import LayerCall, Mixture, measuring, replacing

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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


@torch.inference_mode()
def find_masks(model: "PreTrainedModel", pieces: int, tapped: bool = False) -> tuple[Tensor, Tensor]:
    """Return the distinct masks that are True where a position may attend to another, and the mask of each layer.

    The masks come from a forward pass over an input of `pieces` pieces, and are not inferred from the
    architecture. They may differ by layer, for instance in the width of a window. A model that was changed by `tap`
    runs with parameters of zero: its scores are then equal, and every position that the mask allows has weight.

    Args:
        model: Model that uses the attention function of `attention.capture`, or was changed by `tap`.
        pieces: Number of pieces of the input.
        tapped: True for a model that was changed by `tap`.

    Returns:
        Bool `[masks, from, to]`, and the index of the mask of each attention layer, int64 `[layers]`.
    """
    distinct: list[Tensor] = []
    mask_of_layer: list[int] = []
    tokens = torch.arange(pieces, device=model.device)[None] % 6 + 1
    real = torch.ones_like(tokens, dtype=torch.bool)
    inputs = {"input_ids": tokens, "attention_mask": real.long()}

    def add(mask: Tensor) -> None:
        for place, other in enumerate(distinct):
            if torch.equal(other, mask):
                mask_of_layer.append(place)
                return
        mask_of_layer.append(len(distinct))
        distinct.append(mask.clone())

    def read_mask(_: int, module: nn.Module, mixture: Mixture) -> Tensor:
        [[mask]] = mixture.allowed(real.to(mixture.value.device))
        add(mask.to(model.device))
        return mixture.values  # in place of the outputs, which no mask depends on

    def read_weights(_: int, call: LayerCall) -> Tensor:
        add((call.mixture.weights[0] > 0).any(0).to(model.device))
        return call.mixture.weights

    def run() -> None:
        if not tapped:
            with replacing(read_mask):
                model(**inputs)
            return
        zeros = {}
        for name, parameter in model.named_parameters():
            zeros[name] = parameter.new_zeros(()).expand_as(parameter)
        with measuring(read_weights):
            functional_call(model, zeros, (), inputs)

    Context().run(run)  # an empty context: the caller may be in the middle of a captured pass
    return torch.stack(distinct), torch.tensor(mask_of_layer, device=model.device)
