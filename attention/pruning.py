"""Heads removed for good: smaller weights, and a folder that transformers loads."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils.logging import disable_progress_bar

from attention import modeling_pruned
from attention.capture import Heads
from attention.encoder import Source, save_model
from attention.modeling_pruned import LAYOUTS, layers_of
from results.errors import UserError

_CLASSES: Mapping[str, Mapping[str, Any]] = {
    "AutoModel": MODEL_MAPPING_NAMES,
    "AutoModelForSequenceClassification": MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "AutoModelForMaskedLM": MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "AutoModelForCausalLM": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
}
"""Names of classes by what loads them and `config.model_type`."""


@dataclass(frozen=True)
class RemovedHeads:
    """Counts of the heads removed from a model.

    Attributes:
        removed: query heads that are gone, with their rows of the projections.
        zeroed: query heads that stay, and give nothing: their columns of the output projection are zero.
        key_heads: key and value heads that are gone.
    """

    removed: int = 0
    zeroed: int = 0
    key_heads: int = 0


def is_prunable(model: PreTrainedModel) -> bool:
    """Return whether heads can be removed from a model of this architecture."""
    return model.config.model_type in LAYOUTS and not getattr(model.config, "add_cross_attention", False)


def check_prunable(model: PreTrainedModel) -> None:
    """Refuse, as a UserError, a model whose heads cannot be removed, or whose heads were removed before."""
    name = type(model).__name__
    if not is_prunable(model):
        raise UserError(
            f"{name}: heads can be removed from {', '.join(sorted(LAYOUTS))} without cross-attention, and this is "
            f"{model.config.model_type}. Choose one of these, or replace heads by zeros (HeadAblation)."
        )
    if getattr(model.config, "kept_heads", None) is not None:
        raise UserError(f"{name} was pruned before. Load the whole model, and remove all heads at once.")


def prune(model: PreTrainedModel, heads: Heads) -> RemovedHeads:
    """Remove heads from a model, in place: it then says what it says with these heads replaced by zeros.

    A head goes with its rows of the query projection and its columns of the output projection; a key and value head
    goes with the last of its query heads. Of grouped heads (several query heads to a key head) every key head that is
    left must have equally many: so many go from each as can go from all, and the others stay as zeroed columns of the
    output projection. So does one head of a layer that loses all.

    Raises:
        UserError: an architecture whose heads cannot be removed, a model that was pruned before, or no such head.
    """
    check_prunable(model)
    layers = layers_of(model)
    if strange := sorted((layer, head) for layer, head in heads if not _exists(layers, layer, head)):
        layer, head = strange[0]
        raise UserError(
            f"{type(model).__name__} has no head {layer + 1}-{head + 1}; there are {len(layers)} layers of "
            f"{layers[0].heads[0]} heads, counted from 1."
        )
    by_layer: defaultdict[int, set[int]] = defaultdict(set)
    for layer, head in heads:
        by_layer[layer].add(head)
    counts: Counter[str] = Counter()
    kept: list[list[int]] = []
    for place, own in enumerate(layers):
        queries, keys = own.heads
        left = _left(queries, keys, by_layer[place])
        zeroed = sorted(by_layer[place].intersection(left))
        _zero(own, zeroed)
        own.keep(left)
        kept.append(left)
        counts.update(removed=queries - len(left), zeroed=len(zeroed), key_heads=keys - own.heads[1])
    model.config.kept_heads = kept
    return RemovedHeads(**counts)


def _exists(layers: Sequence[modeling_pruned.Layer], layer: int, head: int) -> bool:
    return 0 <= layer < len(layers) and 0 <= head < layers[layer].heads[0]


def _left(queries: int, keys: int, unwanted: set[int]) -> list[int]:
    """Return the query heads that stay: one at least, and equally many for each key head that keeps one."""
    size = queries // keys
    gone = unwanted - {0} if len(unwanted) == queries else unwanted
    groups = [range(first, first + size) for first in range(0, queries, size)]
    groups = [group for group in groups if not gone.issuperset(group)]
    going = min(len(gone.intersection(group)) for group in groups)
    leaving = {head for group in groups for head in sorted(gone.intersection(group))[:going]}
    return [head for group in groups for head in group if head not in leaving]


def _zero(layer: modeling_pruned.Layer, heads: Sequence[int]) -> None:
    """Set the columns of the output projection that read some heads to zero."""
    weight = layer.output.weight
    assert isinstance(weight, torch.Tensor)
    axis = 0 if isinstance(layer.output, Conv1D) else 1
    with torch.no_grad():
        weight.index_fill_(axis, layer.numbers(heads), 0.0)


def save_pruned(model: PreTrainedModel, source: Source, folder: Path, labels: Sequence[str] = ()) -> None:
    """Write a pruned model to a new folder, for `from_pretrained(folder, trust_remote_code=True)`; see `save_model`.

    A config of transformers has one number of heads for all layers. So a file of Python stands beside the weights,
    which makes the layers smaller before the weights are read; it needs torch and transformers alone.
    """
    file = Path(modeling_pruned.__file__)
    model.config.auto_map = {
        auto: f"{file.stem}.Pruned{classes[model.config.model_type]}"
        for auto, classes in _CLASSES.items()
        if model.config.model_type in classes
    }
    disable_progress_bar()  # type: ignore[no-untyped-call]
    save_model(model, source, folder, labels, [file])
