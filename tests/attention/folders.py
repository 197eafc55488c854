"""Folders of encoders, and changes to their files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from attention_probing.attention.inputs import TextTokenizer
from attention_probing.attention.loading import load_classifier
from attention_probing.attention.source import EncoderSource, EncoderSpec, resolve

WEIGHTS, QUERY = "model.safetensors", "encoder.layer.1.attention.self.query"
LAST = "encoder.layer.1.output.dense.weight"  # behind all attention


def source(folder: Path, **spec: object) -> EncoderSource:
    return resolve(EncoderSpec(str(folder), **spec))  # type: ignore[arg-type]


Change = Callable[[Path], object]


def write(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def remove(*names: str) -> Change:
    return lambda folder: [(folder / name).rename(folder / f"no {name}") for name in names]


def configure(name: str = "config.json", /, **values: Any) -> Change:  # noqa: ANN401
    return lambda folder: (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | values))


def reweigh(change: Callable[[dict[str, Tensor]], object]) -> Change:
    """Load the weights, change them, and write them back."""

    def alter(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        change(weights)
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})

    return alter


def without(part: str) -> Change:
    return reweigh(lambda weights: [weights.pop(name) for name in list(weights) if part in name])


def classifier(folder: Path) -> object:
    return load_classifier(source(folder), 2)


def halve(folder: Path) -> tuple[Path, Path]:
    """Write the weights to two files, every second one to the second."""
    weights, halves = load_file(folder / WEIGHTS), [f"model-0000{place}-of-00002.safetensors" for place in (1, 2)]
    for place, name in enumerate(halves):
        save_file(dict(list(weights.items())[place::2]), folder / name)
    index = {name: halves[place % 2] for place, name in enumerate(weights)}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / WEIGHTS).unlink()
    return folder / halves[0], folder / halves[1]


def tokenizer(folder: Path) -> object:
    return TextTokenizer(source(folder))
