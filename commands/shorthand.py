"""Short forms in command lines: configs by name, and `--encoder`, `--corpus` and `--checkpoints`.

Nothing here imports PyTorch, so that a wrong name is reported at once.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from commands import CONFIGS
from corpora import registry
from results.errors import UserError, counted, near
from results.settings import read_yaml

SHORT: Mapping[str, Mapping[str, str]] = {
    "--corpus": {"": "data.corpus", "TextDataModule": "data.corpora"},
    "--encoder": {"": "data.encoder.name", "TransformerClassifier": "data.tokenizer.name"}
    | dict.fromkeys(("AttentionClassifier", "HierarchicalClassifier"), ""),
    "--checkpoints": {"": "model.checkpoint", "Fidelity": "model.checkpoints"}
    | dict.fromkeys(("fit", "validate", "test", "predict"), "ckpt_path"),
}
"""Option of each short name, by the command or by the class of the model or the data; under "" that of all others."""
CONFIG = ("--config", "-c")
REGISTERED = {"ClassificationDataModule", "CoreferenceDataModule", "DependencyDataModule"}
"""Classes of data that read no corpus by name but those of the registry."""


def config_file(given: str, what: str = "--config") -> str:
    """Return the path of a config or a plan: the given path if it exists, else that of `configs/<given>.yaml`.

    Args:
        given: A path or the name of a file below configs/, without its ending. YAML text is returned unchanged.
        what: Option that names it, for the message.

    Raises:
        UserError: There is no such file.
    """
    if Path(given).is_file() or Path(given).is_fifo() or not re.fullmatch(r"[\w./~+-]+", given):
        return given
    name = given.removeprefix("configs/").removesuffix(".yaml")
    if not (path := CONFIGS / f"{name}.yaml").is_file():
        hint = near(name, map(config_name, CONFIGS.rglob("*.yaml")))
        raise UserError(
            f"{what} {given}: there is no such file or config{hint}. `python train.py --help` lists the configs."
        )
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def config_name(path: Path | str) -> str:
    """Return the shortest name of a config on a command line: `clark2019/heads` of `configs/clark2019/heads.yaml`."""
    inside = Path(path).absolute()
    return inside.relative_to(CONFIGS).with_suffix("").as_posix() if inside.is_relative_to(CONFIGS) else str(path)


def options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option of a command line, such as `--config`, with its first value; "" without one."""
    for word, following in zip(words, [*words, "--"][1:], strict=True):
        if word.startswith("-"):
            name, given, value = word.partition("=")
            yield name, value if given or following.startswith("--") else following


def expanded(words: Sequence[str]) -> list[str]:
    """Return a command line in its long form: paths of configs, and options of the classes that are run.

    The options stand at the end, so that they override the configs. A long form is returned unchanged.

    Args:
        words: Command, such as `measure`, and its options.

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
    kinds = {*words[:1], *_classes(kept).values()}
    for name, values in short.items():
        option = next((SHORT[name][kind] for kind in SHORT[name] if kind in kinds), SHORT[name][""])
        if not option:
            raise UserError(f"{name}: this classifier reads no pretrained encoder. Give --config devlin2019/finetune.")
        if len(values) != 1 and option != "model.checkpoints":
            raise UserError(f"{name} has {counted(len(values), 'value')}, but --{option} takes one.")
        kept.append(f"--{option}={values[0] if len(values) == 1 else json.dumps(values)}")
    for name, value in options(kept):
        if name == "--data.corpus" and kinds & REGISTERED and re.fullmatch(r"\w+", value) and value != "sample":
            registry.find(value)
    return kept


def _classes(words: Sequence[str]) -> dict[str, str]:
    """Return the classes of `model` and `data` in a command line and its configs, without their modules."""
    found, owner = dict[str, str](), ""
    for name, value in options(words):
        is_config = name in CONFIG and Path(value).is_file()
        content = read_yaml(Path(value)) if is_config else {name[2:]: value}
        for part in ("model", "data"):
            given = content.get(part) if isinstance(content, Mapping) else None
            kind = str((given.get("class_path") if isinstance(given, Mapping) else given) or "").rpartition(".")[2]
            if part == "model" and kind:
                if owner and is_config and kind != found[part]:
                    raise UserError(
                        f"--config {config_name(value)}: its model, {kind}, replaces {found[part]} of --config "
                        f"{config_name(owner)}. Give one of the two."
                    )
                owner = value if is_config else ""
            found |= {part: kind} if kind else {}
    return found
