"""What a checkpoint of a classifier belongs to: its parts, the words and the labels."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from datamodules import ClassificationDataModule
from models.interface import ModelError

KEY = "classifier"


def belongings(model: nn.Module, data: ClassificationDataModule) -> dict[str, object]:
    """What to keep beside the parameters, in plain types."""
    return {"data": dict(data.identity), "modules": _modules(model)}


def check(model: nn.Module, data: ClassificationDataModule, checkpoint: Mapping[str, Any]) -> None:
    """Refuse parameters that belong to something else, before any is loaded.

    Raises:
        ModelError: the checkpoint is none of a classifier, or of one with other parts or sizes, or was trained on texts
            of another vocabulary, tokenizer or other labels.
    """
    if KEY not in checkpoint:
        raise ModelError(f"The checkpoint is none of a {type(model).__name__}: name one that its `fit` has left.")
    trained, here = checkpoint[KEY]["data"], dict(data.identity)
    if other := [name for name in here if trained.get(name) != here[name]]:
        raise ModelError(
            f"The checkpoint was trained on other data ({' and '.join(other)} differ): give --data the corpus and the "
            f"options that it was trained with."
        )
    if misfit := _misfit(model, checkpoint):
        raise ModelError(
            f"The checkpoint is of another model, {misfit}: give --config and the options of --model that it was "
            f"trained with."
        )


def _modules(model: nn.Module) -> list[str]:
    # Some parts have no parameters, and would be missed by the names of parameters: a residual connection, an average.
    return [f"{name or 'model'} {type(module).__name__}" for name, module in model.named_modules()]


def _misfit(model: nn.Module, checkpoint: Mapping[str, Any]) -> str | None:
    """The first difference of parts or sizes, for people."""
    trained, here = checkpoint[KEY]["modules"], _modules(model)
    for ours, theirs in ((here, trained), (trained, here)):
        if strange := [part for part in ours if part not in theirs]:
            return f"which has {'no' if ours is here else 'a'} {strange[0]}"
    sizes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for name, value in checkpoint["state_dict"].items():
        if name in sizes and tuple(value.shape) != sizes[name]:
            return f"whose {name} is {list(value.shape)} and not {list(sizes[name])}"
    return None
