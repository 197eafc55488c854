"""Short command lines: configs by name, `--encoder`, `--corpus` and `--checkpoints`; PyTorch is not imported yet."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from commands import CONFIGS
from corpora import registry
from results.errors import UserError, counted, near
from results.settings import read_yaml

SHORT: Mapping[str, Mapping[str, str]] = {
    "--corpus": {"": "data.corpus", "TextDataModule": "data.corpora"},
    "--encoder": {"": "data.encoder.name", "AttentionClassifier": ""}
    | dict.fromkeys(("TransformerClassifier", "Fidelity"), "data.tokenizer.name"),
    "--checkpoints": {"": "model.checkpoint", "Fidelity": "model.checkpoints"}
    | dict.fromkeys(("fit", "validate", "test", "predict"), "ckpt_path"),
}
"""Options by short name, and by command or class of the model or the data; under "" the option of all others."""
CONFIG = ("--config", "-c")
REGISTERED = {"ClassificationDataModule", "CoreferenceDataModule", "DependencyDataModule"}
"""Classes of data whose corpus by name is one of the registry."""


def config_file(given: str) -> str:
    """Return the path of a config or plan, given by its path or its name below configs/; YAML text is returned as is.

    Raises:
        UserError: There is no such file.
    """
    if Path(given).is_file() or Path(given).is_fifo() or not re.fullmatch(r"[\w./~+-]+", given):
        return given
    path = CONFIGS / f"{given.removeprefix('configs/').removesuffix('.yaml')}.yaml"
    if not path.is_file():
        hint = near(config_name(path), map(config_name, CONFIGS.rglob("*.yaml")))
        raise UserError(f"{given}: there is no such file or config{hint}. `python train.py --help` lists the configs.")
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

    They stand at the end, so that they override the configs. A long form is returned unchanged.

    Raises:
        UserError: There is no such config or corpus, a config replaces the model of another, or an option that takes
            one value has none or several.
        SettingsError: A config cannot be read.
    """
    kept, short = list[str](), dict[str, list[str]]()
    into, previous = kept, ""
    for word in words:
        name, given, value = word.partition("=")
        into = kept if word.startswith("-") else into
        if name in SHORT:
            into = short[name] = [value] if given else []
        elif name in CONFIG and given:
            kept.append(f"{name}={config_file(value)}")
        else:
            into.append(config_file(word) if previous in CONFIG else word)
        previous = word
    kinds = {*words[:1], *_classes(kept)} - {""}
    for name, values in short.items():
        option = next((option for kind, option in SHORT[name].items() if kind in kinds), SHORT[name][""])
        if not option:
            raise UserError(
                f"{name}: AttentionClassifier reads no pretrained encoder. Give --config devlin2019/finetune."
            )
        if len(values) != 1 and option != "model.checkpoints":
            raise UserError(f"{name} has {counted(len(values), 'value')}, but --{option} takes one.")
        kept.append(f"--{option}={values[0] if len(values) == 1 else json.dumps(values)}")
    for name, value in options(kept) if kinds & REGISTERED else ():
        if name == "--data.corpus" and value.isidentifier() and value != "sample" and not Path(value).exists():
            registry.find(value)
    return kept


def _classes(words: Sequence[str]) -> Iterator[str]:
    """Yield the names of the classes of the data and of the model of a command line with its configs."""
    found, owner = dict[str, str](), ""
    for name, value in options(words):
        is_config = name in CONFIG and Path(value).is_file()
        content: Any = read_yaml(Path(value)) if is_config else {name[2:]: value}
        for part in ("model", "data") if isinstance(content, Mapping) else ():
            given = content.get(part)
            kind = str((given.get("class_path") if isinstance(given, Mapping) else given) or "").rpartition(".")[2]
            if part == "model" and kind and is_config:
                if owner and kind != found[part]:
                    raise UserError(
                        f"--config {config_name(value)}: its model, {kind}, replaces {found[part]} of --config "
                        f"{config_name(owner)}. Give one of the two."
                    )
                owner = value
            found[part] = kind or found.get(part, "")
    yield from found.values()
