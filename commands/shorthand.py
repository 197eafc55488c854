"""Short command lines: configs by name, `--encoder`, `--corpus` and `--checkpoints`; PyTorch is not imported yet."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from attention_probing.commands import CONFIGS
from attention_probing.corpora import registry
from attention_probing.results.errors import UserError, near, pluralize
from attention_probing.results.settings import PIPES, read_yaml

SHORT: Mapping[str, Mapping[str, str]] = {
    "--corpus": {"TextDataModule": "data.corpora", "": "data.corpus"},
    "--encoder": dict.fromkeys(("TransformerClassifier", "Fidelity"), "data.tokenizer.name")
    | {"": "data.encoder.name"},
    "--checkpoints": dict.fromkeys(("fit", "validate", "test", "predict"), "ckpt_path")
    | {"Fidelity": "model.checkpoints", "": "model.checkpoint"},
}
"""Option that a short name stands for, by the command or a class of the command line; under "" that of all others."""
CONFIG = ("--config", "-c")
REGISTERED = {"ClassificationDataModule", "CoreferenceDataModule", "DependencyDataModule"}
"""Classes of data whose corpus by name is one of the registry."""


def config_file(given: str) -> str:
    """Return the path of a config or plan, given by its path or its name below configs/; YAML text is returned as is.

    Raises:
        UserError: There is no such file, or it is not a regular file.
    """
    own = Path(given)
    if own.is_file() or given.startswith(PIPES) or not re.fullmatch(r"[\w./~+-]+", given):
        return given
    if own.exists() and not own.is_dir():
        read_yaml(own)  # refuses a pipe and a device
    path = CONFIGS / f"{given.removeprefix('configs/').removesuffix('.yaml')}.yaml"
    if not path.is_file():
        hint = near(config_name(path), map(config_name, CONFIGS.rglob("*.yaml")))
        raise UserError(f"{given}: there is no such file or config{hint}. `probing --help` lists the configs.")
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def config_name(path: Path | str) -> str:
    """Return the name of a config below configs/, such as `clark2019/heads`; the path itself of any other file."""
    inside = Path(path).absolute()
    return inside.relative_to(CONFIGS).with_suffix("").as_posix() if inside.is_relative_to(CONFIGS) else str(path)


def options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option of a command line, such as `--config`, with its first value; "" without one."""
    for word, following in zip(words, [*words, "--"][1:], strict=True):
        if word.startswith("-"):
            name, given, value = word.partition("=")
            yield name, value if given or following.startswith("--") else following


def expanded(words: Sequence[str]) -> list[str]:
    """Return a command line with the paths of its configs, and with options of classes in place of the short ones.

    Words between the command and its first option are configs. Options of classes stand at the end, so that they
    override the configs. A long form is returned unchanged.

    Raises:
        UserError: There is no such config or corpus, a config replaces the model of another, the model reads no
            encoder, or an option that takes one value has none or several.
        SettingsError: A config cannot be read.
    """
    kept, short = list[str](), dict[str, list[str]]()
    into, previous = kept, ""
    for word in with_configs(words):
        name, given, value = word.partition("=")
        into = kept if word.startswith("-") else into
        if name in SHORT:
            into = short[name] = [value] if given else []
        elif name in CONFIG and given:
            kept.append(f"{name}={config_file(value)}")
        else:
            into.append(config_file(word) if previous in CONFIG else word)
        previous = word
    kinds = kinds_of(kept)
    for name, values in short.items():
        option = option_of(name, kinds)
        if len(values) != 1 and option != "model.checkpoints":
            raise UserError(f"{name} has {pluralize(len(values), 'value')}, but --{option} takes one.")
        kept.append(f"--{option}={values[0] if len(values) == 1 else json.dumps(values)}")
    for name, value in options(kept) if kinds & REGISTERED else ():
        if name == "--data.corpus" and value.isidentifier() and value != "sample" and not Path(value).exists():
            registry.find(value)  # here, since what follows takes seconds to import
    return kept


def with_configs(words: Sequence[str]) -> list[str]:
    """Return a command line with `--config` before each config that follows the command."""
    command, *rest = words
    configs = list(takewhile(lambda word: not word.startswith("-"), rest))
    found = [command]
    for config in configs:
        found += ["--config", config]
    return found + rest[len(configs) :]


def option_of(name: str, kinds: Collection[str]) -> str:
    """Return the option that a short name stands for, without dashes, such as `data.corpora` for `--corpus`.

    Args:
        name: Key of `SHORT`; any other option is returned as it is.
        kinds: The command and its classes, see `kinds_of`.

    Raises:
        UserError: The model reads no encoder.
    """
    if name == "--encoder" and "AttentionClassifier" in kinds:
        raise UserError("--encoder: AttentionClassifier has no pretrained encoder. Give --config devlin2019/finetune.")
    known = SHORT.get(name, {})
    return next((option for kind, option in known.items() if kind in (*kinds, "")), name[2:])


def kinds_of(words: Sequence[str]) -> set[str]:
    """Return the command of a command line, and the names of the classes of its model and its data.

    Raises:
        UserError: A config replaces the model of another.
        SettingsError: A config cannot be read.
    """
    return {*words[:1], *(path.rpartition(".")[2] for path in classes_of(words).values())}


def classes_of(words: Sequence[str]) -> dict[str, str]:
    """Return the names or paths of the classes of `model` and `data` of a command line, also of its configs.

    Raises:
        UserError: A config replaces the model of another.
        SettingsError: A config cannot be read.
    """
    found = dict[str, str]()
    owners = dict[str, str]()  # config by class of the model
    for name, value in options(words):
        is_config = name in CONFIG and Path(value).is_file()
        content: Any = {name[2:].removesuffix(".class_path"): value}
        if is_config:
            content = read_yaml(Path(value))
        if not isinstance(content, Mapping):
            continue
        for part in ("model", "data"):
            given = content.get(part)
            if isinstance(given, Mapping):
                given = given.get("class_path")
            path = str(given or "")
            if path:
                found[part] = path
            if path and is_config and part == "model":
                owners[path.rpartition(".")[2]] = config_name(value)
    if len(owners) > 1:
        (first, one), (second, other), *_ = owners.items()
        raise UserError(f"--config {other}: its model, {second}, replaces {first} of --config {one}. Give one of them.")
    return found
