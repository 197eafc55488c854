"""What a checkpoint of a classifier belongs to: its parts, the words and the labels."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from datamodules import ClassificationDataModule
from models.interface import ModelError

KEY = "classifier"

FOREIGN = "this is no checkpoint of a run. `fit` leaves them in checkpoints/ of its run."


def read_checkpoint(path: Path) -> Mapping[str, Any]:
    """The content of a checkpoint of any model, on the CPU; the tensors are mapped, not read.

    Raises:
        ModelError: the file is damaged, or no checkpoint of Lightning.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # PyTorch itself compares no checksum: a flipped weight would be loaded
        content = None if damaged else torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # zipfile and the unpickler raise almost anything on bytes that are not theirs
        damaged, content = type(error).__name__, None
    if damaged:
        raise ModelError(
            f"{path}: this is no checkpoint, or a damaged one ({damaged}). Give another of checkpoints/ of its run, or "
            f"train again."
        )
    if not isinstance(content, dict) or not {"state_dict", "epoch", "pytorch-lightning_version"} <= content.keys():
        raise ModelError(f"{path}: {FOREIGN}")
    return content


def configured_model(path: Path, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """`class_path` and `init_args` of the model of a checkpoint, as far as it says how it was made.

    Raises:
        ModelError: it says so in another form than a run does.
    """
    model = (config_of(content) if "config" in content else {}).get("model", {})
    if parameters := content.get("hyper_parameters"):
        named = parameters if isinstance(parameters, Mapping) else {"_class_path": None}
        arguments = {name: value for name, value in named.items() if not str(name).startswith("_")}
        model = {"class_path": named.get("_class_path", ""), "init_args": arguments}
    if not isinstance(model, Mapping) or not isinstance(model.get("class_path", ""), str):
        raise ModelError(f"{path}: {FOREIGN}")
    return model


def config_of(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the run of a checkpoint was made; `model` is None where the checkpoint says it in another form."""
    config = content.get("config")
    try:
        found = yaml.safe_load(config) if isinstance(config, str) else None
    except (yaml.YAMLError, ValueError):  # the latter from what looks like a date and is none
        found = None
    return found if isinstance(found, Mapping) else {"model": None}


def belongings(model: nn.Module, data: ClassificationDataModule) -> dict[str, object]:
    """What to keep beside the parameters, in plain types."""
    return {"data": dict(data.identity), "modules": _modules(model)}


def check(model: nn.Module, data: ClassificationDataModule, checkpoint: Mapping[str, Any]) -> None:
    """Refuse parameters that belong to something else, before any is loaded.

    Raises:
        ModelError: the checkpoint is of another class, or of other parts or sizes, or was trained on texts of another
            vocabulary, tokenizer or other labels.
    """
    if KEY not in checkpoint:
        file = getattr(getattr(model, "_trainer", None), "ckpt_path", None) or "The file"
        raise ModelError(
            f"{file} is not a checkpoint of {type(model).__name__}. Give --ckpt_path a file from checkpoints/ of a run "
            f"of {type(model).__name__}."
        )
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
