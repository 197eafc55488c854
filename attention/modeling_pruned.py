"""Transformers that lack some of their heads; this file is saved beside the weights of such a model.

`AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)`, or another of transformers' auto
classes, builds the class that config.json names here. It is that of transformers, made smaller before the weights are
read: `config.kept_heads` lists for each layer the query heads that are left, by their numbers in the whole model, from
0. No other file and no other package is needed but torch and transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True)
class Layout:
    """Names of the modules and attributes in which an architecture has its heads.

    Args:
        layers: of the list of layers in the base model.
        attention: in a layer, of the module that attends.
        output: in a layer, of the projection that reads the heads.
        projections: in the module that attends, of queries, keys and values; one name where they are one module.
        head_size: in the module that attends, of the size of a head.
        heads: in the module that attends, of how many heads it has; None where it does not say.
        width: likewise, of how many numbers they give together.
    """

    layers: str
    attention: str
    output: str
    projections: tuple[str, ...]
    head_size: str
    heads: str | None
    width: str | None


_BERT = Layout(
    "encoder.layer",
    "attention.self",
    "attention.output.dense",
    ("query", "key", "value"),
    "attention_head_size",
    "num_attention_heads",
    "all_head_size",
)

LAYOUTS = {
    "bert": _BERT,
    "roberta": _BERT,
    "electra": _BERT,
    "distilbert": Layout(
        "transformer.layer",
        "attention",
        "attention.out_lin",
        ("q_lin", "k_lin", "v_lin"),
        "attention_head_size",
        "n_heads",
        "dim",
    ),
    "gpt2": Layout("h", "attn", "attn.c_proj", ("c_attn",), "head_dim", "num_heads", "split_size"),
    "llama": Layout("layers", "self_attn", "self_attn.o_proj", ("q_proj", "k_proj", "v_proj"), "head_dim", None, None),
}
"""By `config.model_type`."""


@dataclass(frozen=True)
class Layer:
    """The attention of one layer."""

    layout: Layout
    layer: nn.Module

    @property
    def attention(self) -> nn.Module:
        """The module that attends."""
        return self.layer.get_submodule(self.layout.attention)

    @property
    def output(self) -> nn.Module:
        """The projection that reads the heads."""
        return self.layer.get_submodule(self.layout.output)

    @property
    def head_size(self) -> int:
        """Numbers that a head gives for a token."""
        return int(getattr(self.attention, self.layout.head_size))

    @property
    def heads(self) -> tuple[int, int]:
        """Numbers of query heads and of key heads."""
        sizes = [_outputs(self.attention.get_submodule(name)) for name in self.layout.projections]
        if len(sizes) == 1:
            sizes = [sizes[0] // 3] * 3
        return sizes[0] // self.head_size, sizes[1] // self.head_size

    def numbers(self, heads: Sequence[int]) -> Tensor:
        """Return the places of the numbers of some heads, int64 `[heads · head size]`."""
        device = next(self.layer.parameters()).device
        starts = torch.tensor(heads, dtype=torch.long, device=device)[:, None] * self.head_size
        return (starts + torch.arange(self.head_size, device=device)).flatten()

    def keep(self, heads: Sequence[int]) -> None:
        """Keep these query heads, in ascending order and equally many of every key head that keeps one."""
        queries, keys = self.heads
        group = queries // keys
        own, shared = self.numbers(heads), self.numbers(sorted({head // group for head in heads}))
        modules = [self.attention.get_submodule(name) for name in self.layout.projections]
        if len(modules) == 1:  # queries, keys and values one behind the other
            size = queries * self.head_size
            _select(modules[0], torch.cat([own, own + size, own + 2 * size]), outputs=True)
        else:
            for module, places in zip(modules, (own, shared, shared), strict=True):
                _select(module, places, outputs=True)
        _select(self.output, own, outputs=False)
        for name, size in ((self.layout.heads, len(heads)), (self.layout.width, len(own))):
            if name is not None:
                setattr(self.attention, name, size)
        if group > 1:
            setattr(self.attention, "num_key_value_groups", len(own) // len(shared))  # noqa: B010 # a module's own


def layers_of(model: Any) -> list[Layer]:  # noqa: ANN401 # a PreTrainedModel
    """Return the attention of each layer of a model whose architecture is known here."""
    layout = LAYOUTS[model.config.model_type]
    return [Layer(layout, layer) for layer in model.base_model.get_submodule(layout.layers)]


def _outputs(module: nn.Module) -> int:
    return int(module.weight.shape[_axis(module, outputs=True)])  # type: ignore[index]


def _axis(module: nn.Module, *, outputs: bool) -> int:
    """Return the axis of the weight of a linear module that holds its outputs, or its inputs."""
    return int(outputs) if isinstance(module, Conv1D) else int(not outputs)


def _select(module: Any, places: Tensor, *, outputs: bool) -> None:  # noqa: ANN401 # a linear module or Conv1D
    """Keep some of the outputs of a linear module, or of its inputs."""
    names = {"weight": _axis(module, outputs=outputs)} | ({"bias": 0} if outputs and module.bias is not None else {})
    for name, axis in names.items():
        old = getattr(module, name)
        new = old.detach().index_select(axis, places)
        setattr(module, name, nn.Parameter(new, requires_grad=old.requires_grad))
    size = ("nf" if outputs else "nx") if isinstance(module, Conv1D) else ("out_features" if outputs else "in_features")
    setattr(module, size, len(places))


@cache
def _pruned(name: str) -> type[Any]:
    whole = getattr(transformers, name)

    class Pruned(whole):  # type: ignore[misc, valid-type]
        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
            super().__init__(config, *args, **kwargs)
            # A classifier may have built its body by itself, from the same config: it is whole too.
            for layer, heads in zip(layers_of(self), config.kept_heads, strict=True):
                layer.keep(heads)

    Pruned.__name__ = Pruned.__qualname__ = f"Pruned{name}"
    return Pruned


def __getattr__(name: str) -> type[Any]:
    """`PrunedBertModel` is transformers' `BertModel` without the heads that its config does not keep, and so on."""
    if not name.startswith("Pruned"):
        raise AttributeError(name)
    return _pruned(name.removeprefix("Pruned"))
