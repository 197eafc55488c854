"""Heads that are off, by hooks on the output projections of transformers' own models."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

DIM = 8  # of a head of the tiny models

Head = tuple[int, int]


def projections(model: PreTrainedModel) -> list[nn.Module]:
    """What reads the outputs of the heads of each layer, `[1, pieces, heads · dim]`."""
    base: Any = model.base_model
    if model.config.model_type == "gpt2":
        return [block.attn.c_proj for block in base.h]
    return [layer.attention.output.dense for layer in base.encoder.layer]


@contextmanager
def seeing(model: PreTrainedModel, see: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """Pass what enters each projection through `see`, which gets its layer."""
    hooks = [
        module.register_forward_pre_hook(lambda _, args, layer=layer: (see(layer, args[0]), *args[1:]))
        for layer, module in enumerate(projections(model))
    ]
    yield
    for hook in hooks:
        hook.remove()


def scaled(model: PreTrainedModel, heads: Collection[Head], factor: float) -> Any:  # noqa: ANN401
    """Multiply the columns of these heads by a factor."""

    def see(layer: int, outputs: Tensor) -> Tensor:
        outputs = outputs.clone()
        for of, head in heads:
            if of == layer:
                outputs[..., head * DIM : (head + 1) * DIM] *= factor
        return outputs

    return seeing(model, see)


def patched(
    model: PreTrainedModel, heads: Collection[Head], others: Sequence[Tensor], partners: Sequence[int | None]
) -> Any:  # noqa: ANN401
    """Set columns of these heads to those of another text, `others` by layer, at the partner of each position."""

    def see(layer: int, outputs: Tensor) -> Tensor:
        outputs = outputs.clone()
        for of, head in heads:
            for place, partner in enumerate(partners):
                if of == layer and partner is not None:
                    columns = slice(head * DIM, (head + 1) * DIM)
                    outputs[0, place, columns] = others[layer][0, partner, columns]
        return outputs

    return seeing(model, see)


def off(model: PreTrainedModel, heads: Collection[Head], means: Sequence[Tensor] | None = None) -> Any:  # noqa: ANN401
    """Set columns of these heads to zero, or to their means `[positions, heads · dim]` by layer."""

    def see(layer: int, outputs: Tensor) -> Tensor:
        outputs = outputs.clone()
        for of, head in heads:
            if of == layer:
                columns = slice(head * DIM, (head + 1) * DIM)
                if means is None:
                    outputs[..., columns] = 0
                else:
                    places = [min(place, len(means[layer]) - 1) for place in range(outputs.size(1))]
                    outputs[..., columns] = means[layer][places][:, columns]
        return outputs

    return seeing(model, see)
