"""Checks of an encoder's files, which may come from anybody, before transformers builds a model or a tokenizer of them.

A short config.json can ask for more layers than fit into memory, and a short tokenizer.json can make a text of one
character a million characters long.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

_LAYERS = re.compile("layers?$|depths?$|block_sizes$")
"""Keys of config.json that count layers; each layer has weights of its own."""
_COUNTS = re.compile(f"{_LAYERS.pattern}|num_labels$|experts$")
_LEAST = 1000
"""Layers or classes that a model may have without weights."""
_SPARE = 10**8
"""Parameters that a model may have without weights, in a new head."""
_GROWTH = 100_000
"""Largest factor by which the replacements of a tokenizer may make a text longer."""


def read_named_values(path: Path) -> list[tuple[str, Any]]:
    """Return all keys and values of the objects in a JSON file; nothing if the file is not JSON."""
    named_values: list[tuple[str, Any]] = []

    def record(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        named_values.extend(pairs)
        return dict(pairs)

    with suppress(ValueError, OSError):  # which transformers explains
        json.loads(path.read_bytes(), object_pairs_hook=record)
    return named_values


def read_shapes(path: Path) -> list[Sequence[int]]:
    """Return the shape of each tensor in a file of weights, without reading the tensors."""
    if path.suffix == ".bin":
        state = torch.load(path, map_location="meta", weights_only=True)
        return [tensor.shape for tensor in state.values() if isinstance(tensor, Tensor)]
    with safe_open(path, "pt") as file:
        return [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 # no mapping


def check_sizes(folder: Path, weights: Iterable[Path]) -> None:
    """Raise ValueError if config.json has more layers or classes than the weights, or names weights elsewhere.

    Args:
        folder: Folder of the encoder.
        weights: Its files of weights.
    """
    shapes: list[Sequence[int]] = []
    for path in weights:
        with suppress(Exception):  # damage is reported when the weights are read
            shapes.extend(read_shapes(path))
    most_layers = max(_LEAST, len(shapes))
    most = most_layers
    for shape in shapes:
        most = max([most, *shape])
    for name, value in read_named_values(folder / "config.json"):
        if not _COUNTS.search(name):
            continue
        bound = most_layers if _LAYERS.search(name) else most
        numbers = value if isinstance(value, list) else [value]
        for number in numbers:
            if isinstance(number, int) and number > bound:
                raise ValueError(f"{name} is {number:,}, but the weights are of at most {bound:,}")
    for path in folder.glob("*.index.json"):
        _check_index(path)


def _check_index(path: Path) -> None:
    """Raise ValueError if an index of weights names a file in another folder."""
    for key, files_by_weight in read_named_values(path):
        if key != "weight_map":
            continue
        for name in files_by_weight.values():
            if Path(name).name != name:
                raise ValueError(f"{path.name} names weights in another folder ({name})")


def check_parameters(parameters: int, weights: Iterable[Path]) -> None:
    """Raise ValueError if a model of config.json has many more parameters than its files of weights.

    Args:
        parameters: Number of parameters of the model.
        weights: Its files of weights.
    """
    most = _SPARE + 4 * sum(path.stat().st_size for path in weights)
    if parameters > most:
        raise ValueError(f"config.json names {parameters:,} parameters, but the weight files have at most {most:,}")


def check_growth(tokenizer: Path) -> None:
    """Raise ValueError if the replacements in a tokenizer.json can make a text very much longer."""
    growth = 1
    for _, value in read_named_values(tokenizer):
        steps = value if isinstance(value, list) else [value]
        for step in steps:
            if isinstance(step, dict) and step.get("type") == "Replace":
                growth *= _growth_of(step)
    if growth > _GROWTH:
        raise ValueError(f"tokenizer.json replaces a character by up to {growth:,}, but at most {_GROWTH:,} are read")


def _growth_of(replacement: Mapping[str, Any]) -> int:
    """Return the factor by which one step of a tokenizer.json may make a text longer."""
    pattern = replacement["pattern"].get("String", "")
    length = len(replacement["content"])
    if not pattern:  # a regular expression, which may match nothing
        return 1 + length
    return max(1, ceil(length / len(pattern)))
