"""Permanent removal of attention heads: smaller weights, and the model classes that load them.

A config of transformers has one number of heads for all layers. This file is therefore saved beside the weights of a
pruned model, and imports torch and transformers alone. `from_pretrained(folder, trust_remote_code=True)` of an auto
class builds the class that config.json names here: the class of transformers, made smaller before the weights are read.
`config.kept_heads` lists the remaining query heads of each layer, by their 0-based numbers in the whole model.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto import modeling_auto
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True)
class Layout:
    """Names of the modules and attributes of an architecture that hold its attention heads.

    Args:
        layers: List of the layers in the base model.
        attention: Attention module in a layer.
        output: Output projection in a layer.
        projections: Projections of queries, keys and values in the attention module; one name for one joint module.
        head_size: Attribute of the attention module that holds the size of a head.
        heads: Attribute of the attention module that holds the number of heads; None if it has no such attribute.
        width: Attribute of the attention module that holds heads times head size; None if it has no such attribute.
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
"""Layouts by `config.model_type`."""

_AUTO_CLASSES: dict[str, Any] = {
    "AutoModel": modeling_auto.MODEL_MAPPING_NAMES,
    "AutoModelForSequenceClassification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "AutoModelForMaskedLM": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "AutoModelForCausalLM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
}
"""Names of model classes by auto class and `config.model_type`."""


@dataclass(frozen=True)
class RemovedHeads:
    """Counts of the heads removed from a model.

    Attributes:
        removed: Query heads removed together with their rows of the projections.
        zeroed: Query heads that stay in the model, with zeros in their columns of the output projection.
        key_heads: Key and value heads removed.
    """

    removed: int = 0
    zeroed: int = 0
    key_heads: int = 0


def is_prunable(model: Any) -> bool:  # noqa: ANN401 # a PreTrainedModel
    """Return True if attention heads can be removed from a model.

    Its architecture must have a `Layout` and no cross-attention, and no heads may have been removed before.
    """
    config = model.config
    return config.model_type in LAYOUTS and not (
        getattr(config, "add_cross_attention", False) or hasattr(config, "kept_heads")
    )


def prune(model: Any, heads: Collection[tuple[int, int]]) -> RemovedHeads:  # noqa: ANN401 # a PreTrainedModel
    """Remove attention heads from a model in place, with the same effect as setting their outputs to zero.

    A head is removed with its rows of the query projection and its columns of the output projection. A
    key and value head is removed if all its query heads are in `heads`.

    In two cases a head of `heads` stays in the model, and only its columns of the output projection are
    set to zero:

    - All heads of a layer are in `heads`. The first head of the layer stays.
    - With grouped heads, the remaining key heads of a layer have different numbers of query heads in
      `heads`. They must keep equally many, so each loses only the smallest of these numbers. The others
      stay.

    Args:
        model: Model of transformers.
        heads: 0-based (layer, head) pairs.

    Returns:
        Counts of removed heads, of heads with zero columns, and of removed key and value heads.

    Raises:
        ValueError: `is_prunable` is False, or a head does not exist.
    """
    if not is_prunable(model):
        raise ValueError(f"{type(model).__name__}: no heads can be removed from this model.")
    layers = _layers(model)
    there = {(number, head) for number, layer in enumerate(layers) for head in range(layer.heads[0])}
    if strange := sorted(set(heads) - there):
        name = "-".join(str(number + 1) for number in strange[0])
        size = f"{len(layers)} layers of {layers[0].heads[0]} heads"
        raise ValueError(f"{type(model).__name__} has no head {name}; it has {size}, counted from 1.")
    counts: Counter[str] = Counter()
    model.config.kept_heads = []
    for number, layer in enumerate(layers):
        queries, keys = layer.heads
        unwanted = {head for of, head in heads if of == number}
        kept = _kept(queries, keys, unwanted)
        zeroed = sorted(unwanted.intersection(kept))
        layer.zero(zeroed)
        layer.keep(kept)
        model.config.kept_heads.append(kept)
        counts.update(removed=queries - len(kept), zeroed=len(zeroed), key_heads=keys - layer.heads[1])
    return RemovedHeads(**counts)


def auto_map(model_type: str) -> dict[str, str]:
    """Return the entry `auto_map` of a pruned model's config.json: the classes that load the model.

    Args:
        model_type: Type of the unpruned model, as in its config, for instance `bert`.

    Returns:
        Name of the class in this file, by name of the auto class: for BERT,
        `modeling_pruned.PrunedBertModel` for `AutoModel`.
    """
    known = {auto: names[model_type] for auto, names in _AUTO_CLASSES.items() if model_type in names}
    return {auto: f"modeling_pruned.Pruned{name}" for auto, name in known.items()}


def _kept(queries: int, keys: int, unwanted: set[int]) -> list[int]:
    """Return the query heads that stay: at least one, and equally many for each key head that keeps one."""
    size = queries // keys
    gone = unwanted - {0} if len(unwanted) == queries else unwanted
    groups = [range(first, first + size) for first in range(0, queries, size)]
    groups = [group for group in groups if not gone.issuperset(group)]
    going = min(len(gone.intersection(group)) for group in groups)
    leaving = {head for group in groups for head in sorted(gone.intersection(group))[:going]}
    return [head for group in groups for head in group if head not in leaving]


@dataclass(frozen=True)
class _Layer:
    """The attention of one layer."""

    layout: Layout
    layer: nn.Module

    @property
    def attention(self) -> nn.Module:
        """The attention module."""
        return self.layer.get_submodule(self.layout.attention)

    @property
    def output(self) -> nn.Module:
        """The output projection, whose input are the outputs of the heads."""
        return self.layer.get_submodule(self.layout.output)

    @property
    def head_size(self) -> int:
        """Size of the output of one head for a token."""
        return int(getattr(self.attention, self.layout.head_size))

    @property
    def heads(self) -> tuple[int, int]:
        """Number of query heads and number of key heads."""
        modules: list[Any] = [self.attention.get_submodule(name) for name in self.layout.projections]
        sizes = [int(module.weight.shape[_axis(module, outputs=True)]) for module in modules]
        if len(sizes) == 1:
            sizes = [sizes[0] // 3] * 3
        return sizes[0] // self.head_size, sizes[1] // self.head_size

    def numbers(self, heads: Sequence[int]) -> Tensor:
        """Return the rows of a projection that belong to some heads, int64 `[heads · head size]`."""
        device = next(self.layer.parameters()).device
        starts = torch.tensor(heads, dtype=torch.long, device=device)[:, None] * self.head_size
        return (starts + torch.arange(self.head_size, device=device)).flatten()

    def zero(self, heads: Sequence[int]) -> None:
        """Set the columns of the output projection that read some heads to zero."""
        weight: Any = self.output.weight
        with torch.no_grad():
            weight.index_fill_(_axis(self.output, outputs=False), self.numbers(heads), 0.0)

    def keep(self, heads: Sequence[int]) -> None:
        """Remove all other query heads; `heads` is ascending, with equally many of every key head that keeps one."""
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


def _layers(model: Any) -> list[_Layer]:  # noqa: ANN401 # a PreTrainedModel
    layout = LAYOUTS[model.config.model_type]
    return [_Layer(layout, layer) for layer in model.base_model.get_submodule(layout.layers)]


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
            for layer, heads in zip(_layers(self), config.kept_heads, strict=True):
                layer.keep(heads)

    Pruned.__name__ = Pruned.__qualname__ = f"Pruned{name}"
    return Pruned


def __getattr__(name: str) -> type[Any]:
    """Return a class by name: `PrunedBertModel` is transformers' `BertModel` with the heads in `config.kept_heads`."""
    if not name.startswith("Pruned"):
        raise AttributeError(name)
    return _pruned(name.removeprefix("Pruned"))
