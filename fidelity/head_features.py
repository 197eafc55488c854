"""Features of every attention head, computed while a model runs: no map of attention is kept beyond its layer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_probing.attention.capture import intervening
from attention_probing.results.heads import head_name

Reduce = Callable[[Tensor, Tensor], Tensor]
"""Called with the weights of a layer, float32 `[batch, heads, from, to]`, and a tensor of the same shape that may be
overwritten. Returns the features of its heads, `[batch, heads, features]`."""


@dataclass(frozen=True, eq=False)
class HeadFeatures:
    """Outputs of a model for a batch, and the features of its heads.

    Attributes:
        logits: Logits of a classifier `[batch, classes]`, or other outputs for each text.
        heads: Names of the heads, `[heads]`.
        features: `[batch, heads, features]`; nan for one that the heads do not have.
    """

    logits: Tensor
    heads: tuple[str, ...]
    features: Tensor


@contextmanager
def reading_heads(reduce: Reduce) -> Iterator[list[Tensor]]:
    """Compute the features of every head in the one forward pass of a `with` block.

    Args:
        reduce: Function that computes the features of a layer.

    Yields:
        The features of each layer, `[batch, heads, features]`; the list grows during the pass.
    """
    of_layers: list[Tensor] = []
    scratch: list[Tensor] = []  # one for all layers

    def read(layer: int, weights: Tensor, values: Tensor) -> tuple[Tensor, None]:
        maps = weights.float()
        if not scratch or scratch[0].shape != maps.shape:
            scratch[:] = [torch.empty_like(maps)]
        of_layers.append(reduce(maps, scratch[0]))
        return weights, None

    with intervening(read):
        yield of_layers


def head_names(of_layers: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the names of all heads, by the features of each layer `[batch, heads, features]`."""
    names = []
    for layer, features in enumerate(of_layers):
        names += [head_name(layer, head) for head in range(features.size(1))]
    return tuple(names)
