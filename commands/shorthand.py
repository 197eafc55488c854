"""Short names: configs by name, `--encoder`, `--corpus` and `--checkpoints`; PyTorch is not imported yet."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from attention_probing.commands import CONFIGS
from attention_probing.results.errors import UserError, near, pluralize
from attention_probing.results.settings import PIPES, read_yaml

_ENCODERS = {
    "TransformerClassifier": "data.tokenizer.name",
    "Fidelity": "data.tokenizer.name",
    "ErrorPrediction": "data.tokenizer.name",
    "": "data.encoder.name",
}
_CHECKPOINTS = {
    "fit": "ckpt_path",
    "validate": "ckpt_path",
    "test": "ckpt_path",
    "predict": "ckpt_path",
    "Fidelity": "model.checkpoints",
    "ErrorPrediction": "model.checkpoints",
    "": "model.checkpoint",
}
SHORT: Mapping[str, Mapping[str, str]] = {
    "--corpus": {"TextDataModule": "data.corpora", "": "data.corpus"},
    "--encoder": _ENCODERS,
    "--checkpoints": _CHECKPOINTS,
}
"""Option that a short name stands for, by the command or a class of the command line; under "" that of all others."""
CONFIG = ("--config", "-c")


def config_file(config: str) -> str:
    """Return the path of a config or plan, given by its path or its name below configs/; YAML text is returned as is.

    Raises:
        UserError: There is no such file, or it is not a regular file.
    """
    users = Path(config)
    if users.suffix == ".ckpt" and users.is_file():
        raise UserError(
            f"{config} is a checkpoint, not a config. Give it with --checkpoints, after the config.yaml of its run."
        )
    is_name = re.fullmatch(r"[\w./~+-]+", config)
    if users.is_file() or config.startswith(PIPES) or not is_name:
        return config
    if users.exists() and not users.is_dir():
        read_yaml(users)  # refuses a pipe and a device
    name = config.removeprefix("configs/").removesuffix(".yaml")
    path = CONFIGS / f"{name}.yaml"
    if not path.is_file():
        hint = near(config_name(path), map(config_name, CONFIGS.rglob("*.yaml")))
        raise UserError(f"{config}: there is no such file or config{hint}. `probing --help` lists the configs.")
    here = Path.cwd()
    if path.is_relative_to(here):
        path = path.relative_to(here)
    return str(path)


def config_name(path: Path | str) -> str:
    """Return the name of a config below configs/, such as `clark2019/heads`; the path itself of any other file."""
    place = Path(path).absolute()
    if not place.is_relative_to(CONFIGS):
        return str(path)
    return place.relative_to(CONFIGS).with_suffix("").as_posix()


def option_of(name: str, kinds: Collection[str]) -> str:
    """Return the option that a short name stands for, without dashes, such as `data.corpora` for `--corpus`.

    Args:
        name: Key of `SHORT`; any other option is returned as it is.
        kinds: The command and its classes, see `CommandLine.kinds`.

    Raises:
        UserError: The model reads no encoder.
    """
    if name == "--encoder" and "AttentionClassifier" in kinds:
        raise UserError("--encoder: AttentionClassifier has no pretrained encoder. Give --config devlin2019/finetune.")
    for kind, option in SHORT.get(name, {}).items():
        if kind == "" or kind in kinds:
            return option
    return name.removeprefix("--")


def write_out(name: str, values: Sequence[str], kinds: Collection[str]) -> str:
    """Return the word of a command line that a short name with its values stands for.

    Args:
        name: Key of `SHORT`.
        values: The values.
        kinds: The command and its classes.

    Raises:
        UserError: The model reads no encoder, or an option that takes one value has none or several.
    """
    option = option_of(name, kinds)
    if len(values) == 1:
        return f"--{option}={values[0]}"
    if option != "model.checkpoints":
        raise UserError(f"{name} has {pluralize(len(values), 'value')}, but --{option} takes one.")
    return f"--{option}={json.dumps(values)}"
