"""Command line of a run: its words, and what they and its configs name.

It is read before PyTorch and jsonargparse are imported, which takes seconds. `Parser.parse` makes the settings of it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from attention_probing.commands.shorthand import CONFIG, SHORT, config_file, config_name, write_out
from attention_probing.corpora import registry
from attention_probing.results.errors import UserError
from attention_probing.results.settings import BoundedLoader, SettingsError, read_yaml, with_new_names

REGISTERED = {"ClassificationDataModule", "CoreferenceDataModule", "DependencyDataModule"}
"""Classes of data whose corpus by name is one of the registry."""


@dataclass(frozen=True)
class CommandLine:
    """Command line of fit, validate, test, predict or measure.

    Attributes:
        words: The command and its options, with options of classes in place of the short names.
        files: Content of each file of settings that the words name, by its path in them.
    """

    words: tuple[str, ...]
    files: Mapping[str, object]

    @classmethod
    def from_words(cls, words: Sequence[str]) -> "CommandLine":
        """Read a command line; write out its short names, and read each of its configs once.

        Words between the command and its first option are configs. Options of classes stand at the end, so that they
        override the configs. A long form is returned unchanged.

        Raises:
            UserError: There is no such config or corpus, a config replaces the model of another, the model reads no
                encoder, or an option that takes one value has none or several.
            SettingsError: A config cannot be read, or it is the plan of a sweep.
        """
        plain, short = _separate(with_configs(words))
        line = cls.from_long(plain)
        long = [write_out(name, values, line.kinds) for name, values in short.items()]
        line = replace(line, words=(*plain, *long))
        line._refuse_unknown_corpus()
        return line

    @classmethod
    def from_long(cls, words: Sequence[str]) -> "CommandLine":
        """Read the configs of a command line without short names.

        Raises:
            SettingsError: A config cannot be read, or it is the plan of a sweep.
        """
        files = dict[str, object]()
        for name, text in options_of(words):
            is_settings = name in (*CONFIG, "--model", "--data")
            if is_settings and text not in files and os.path.isfile(text):  # a pipe can be read only once
                files[text] = _read_settings(text)
        return cls(tuple(words), files)

    @property
    def command(self) -> str:
        """First word; empty without one."""
        return self.words[0] if self.words else ""

    @cached_property
    def options(self) -> list[tuple[str, str]]:
        """Each option, such as `--config`, with its first value."""
        return list(options_of(self.words))

    @cached_property
    def values(self) -> list[tuple[str, object]]:
        """Dotted name and value of each option."""
        return list(values_of(self.words))

    @cached_property
    def classes(self) -> Mapping[str, str]:
        """Name or path of the class of `model` and of `data`, where the words or the configs name one.

        Raises:
            UserError: A config replaces the model of another.
        """
        classes = dict[str, str]()
        owners = dict[str, str]()  # config by class of the model
        for name, text in self.options:
            content = self.files.get(text)
            if name in CONFIG:
                of_word = _classes_in(content)
                if "model" in of_word:
                    owners[_last_part(of_word["model"])] = config_name(text)
            else:
                option = name.removeprefix("--").removesuffix(".class_path")
                of_word = _classes_in({option: content or _value_of(text)})
            classes.update(of_word)
        if len(owners) > 1:
            (model, config), (other_model, other_config), *_ = owners.items()
            raise UserError(
                f"--config {other_config}: its model, {other_model}, replaces {model} of --config {config}. Give one "
                "of them."
            )
        return classes

    @property
    def kinds(self) -> set[str]:
        """The command, and the names of the classes of model and data."""
        return {self.command, *map(_last_part, self.classes.values())}

    def model_arguments(self) -> dict[str, object]:
        """Return the arguments of the model that configs and options give; their types are not checked."""
        arguments = dict[str, object]()
        for name, text in self.options:
            content = self.files.get(text)
            if name in CONFIG and isinstance(content, Mapping):
                arguments.update(arguments_in(content.get("model")))
            elif name == "--model":
                arguments.update(arguments_in(content or _value_of(text)))
            elif name.startswith("--model."):
                argument = name.removeprefix("--model.").removeprefix("init_args.")
                _set_argument(arguments, argument, _value_of(text))
        return arguments

    def _refuse_unknown_corpus(self) -> None:
        """Raise UserError for a name of a corpus that is not registered, before the imports that take seconds."""
        if not self.kinds & REGISTERED:
            return
        for name, text in self.options:
            is_name = text.isidentifier() and text != "sample"
            if name == "--data.corpus" and is_name and not Path(text).exists():
                registry.find(text)


def options_of(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option of a command line, such as `--config`, with its first value; "" without one."""
    for word, following in zip(words, [*words, "--"][1:], strict=True):
        if not word.startswith("-"):
            continue
        name, equals, value = word.partition("=")
        if not equals and not following.startswith("--"):
            value = following
        yield name, value


def values_of(words: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Yield the dotted name of each option of a command line, and its value parsed as YAML."""
    for name, text in options_of(words):
        if name.startswith("--"):
            yield name[2:].removesuffix("+"), _value_of(text)


def _value_of(text: str) -> object:
    """Return the value of a text in YAML; the text itself if it is no YAML."""
    try:
        return yaml.load(text, BoundedLoader)
    except (yaml.YAMLError, ValueError, RecursionError):  # of an impossible date; of brackets without end
        return text


def with_configs(words: Sequence[str]) -> list[str]:
    """Return a command line with `--config` before each config that follows the command."""
    written = list(words[:1])
    for place, word in enumerate(words[1:], start=1):
        if word.startswith("-"):
            written.extend(words[place:])
            break
        written += ["--config", word]
    return written


def _separate(words: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the words with the paths of their configs, and apart from them the values of each short name.

    Raises:
        UserError: There is no such config.
    """
    plain = list[str]()
    short = dict[str, list[str]]()
    values = plain  # list to which the values of the current option belong
    previous = ""
    for word in words:
        name, equals, value = word.partition("=")
        if name in SHORT:
            values = short[name] = []
            if equals:
                values.append(value)
        else:
            if word.startswith("-"):
                values = plain
            values.append(_with_path(word, previous))
        previous = word
    return plain, short


def _with_path(word: str, previous: str) -> str:
    """Return a word of a command line, with the path of the config that it names, if it names one.

    Args:
        word: The word.
        previous: The word before it.

    Raises:
        UserError: There is no such config.
    """
    name, equals, value = word.partition("=")
    if name in CONFIG and equals:
        return f"{name}={config_file(value)}"
    if previous in CONFIG:
        return config_file(word)
    return word


def _read_settings(path: str) -> object:
    """Return the content of a file of settings, with today's names of its options.

    Raises:
        SettingsError: It cannot be read, is the plan of a sweep, or has an option under its old and its new name.
    """
    content = read_yaml(Path(path))
    if isinstance(content, Mapping) and content.keys() & {"rows", "grid"}:
        raise SettingsError(f"{path} is the plan of a sweep. Run it with `probing sweep {config_name(path)}`.")
    return with_new_names(content, f"{path}: ")


def _classes_in(content: object) -> dict[str, str]:
    """Return the names or paths of the classes that the content of a config names, by `model` and `data`."""
    classes = dict[str, str]()
    if not isinstance(content, Mapping):
        return classes
    for part in ("model", "data"):
        kind = content.get(part)
        if isinstance(kind, Mapping):
            kind = kind.get("class_path")
        if kind:
            classes[part] = str(kind)
    return classes


def arguments_in(settings: object) -> dict[str, Any]:
    """Return the arguments in the settings of a class, which may stand under dotted names: `init_args.texts`."""
    arguments = dict[str, Any]()
    if not isinstance(settings, Mapping):
        return arguments
    for name, value in settings.items():
        if name == "init_args" and isinstance(value, Mapping):
            arguments.update(value)
        elif name.startswith("init_args."):
            arguments[name.removeprefix("init_args.")] = value
    return arguments


def _set_argument(arguments: dict[str, object], name: str, value: object) -> None:
    """Set an argument; append to it if its name ends with a plus, as in `--model.tests+=Permutation`."""
    if not name.endswith("+"):
        arguments[name] = value
        return
    name = name.removesuffix("+")
    earlier = arguments.get(name)
    values = earlier if isinstance(earlier, list) else []
    arguments[name] = [*values, value]


def _last_part(path: str) -> str:
    return path.rpartition(".")[2]
