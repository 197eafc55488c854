"""Reading of settings in YAML, as plain data: files of configs and plans."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from math import inf
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import yaml

from attention_probing.results.errors import UserError, near, setting, shorten
from attention_probing.results.files import check_regular

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Options that change no number: output folders, printing, permissions, time limits.
NEUTRAL = (
    "config",
    "resume",
    "quiet",
    "trust",
    "figures",
    "data.init_args.cache",
    "trainer.default_root_dir",
    "trainer.logger",
    "trainer.profiler",
    "trainer.enable_progress_bar",
    "trainer.enable_model_summary",
)


def leaves(node: object, at: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted name and the value of each setting in a nested config.

    Args:
        node: The config, or a part of it.
        at: Dotted name of this part.
    """
    if isinstance(node, Mapping):
        parts = list(node.items())
    elif isinstance(node, list):
        parts = list(enumerate(node))
    else:
        yield at, node
        return
    for key, part in parts:
        yield from leaves(part, f"{at}.{key}" if at else str(key))


PACKAGE = "attention_probing"
ROOMS = ("attention", "corpora", "datamodules", "fidelity", "measures", "models", "probes")
"""Packages of this program with classes that settings may name."""
_FOLDER = Path(__file__).resolve().parents[1]


@cache
def exported_classes() -> Mapping[str, str]:
    """Return the package of each class that a room exports, such as `attention_probing.measures` of `SingleHeads`."""
    packages = dict[str, str]()
    for room in ROOMS:
        stub = _FOLDER / room / "__init__.pyi"
        if stub.is_file():
            names = re.findall(r"\b([A-Z]\w*) as \1\b", stub.read_text(encoding="utf-8"))
            packages.update(dict.fromkeys(names, f"{PACKAGE}.{room}"))
    return packages


def own_class(path: str) -> str | None:
    """Return the short name of a class that a room exports, by its name or path; None for any other class.

    Version 1 wrote paths without the package: `measures.SingleHeads`, `measures.single_heads.SingleHeads`.
    """
    *packages, name = path.split(".")
    if name not in exported_classes():
        return None
    if not packages or packages[0] == PACKAGE:
        return name
    room, *modules = packages
    is_of_version_1 = exported_classes()[name] == f"{PACKAGE}.{room}" and len(modules) <= 1
    if is_of_version_1 and all((_FOLDER / room / f"{module}.py").is_file() for module in modules):
        return name
    return None


def named_leaves(settings: object) -> Iterator[tuple[str, object]]:
    """Yield what `leaves` yields, but each class of this program by its short name, however it was written."""
    for name, value in leaves(settings):
        if name.endswith("class_path") and isinstance(value, str):
            yield name, own_class(value) or value
        else:
            yield name, value


WITHOUT_EFFECT: Mapping[str, object] = {"data.init_args.gold": "given", "twin": None}
"""Values of options that change no number: runs that were made before there were these options are equal."""


def score_settings(config: object) -> dict[str, object]:
    """Return the settings of a config that affect the scores of a run, by dotted name."""
    neutral = tuple(f"{name}." for name in NEUTRAL)
    scored = dict[str, object]()
    for name, value in named_leaves(config):
        has_effect = name not in WITHOUT_EFFECT or value != WITHOUT_EFFECT[name]
        if has_effect and not name.endswith(".dirpath") and not f"{name}.".startswith(neutral):
            scored[name] = value
    return scored


RENAMED: Mapping[str, Mapping[str, str]] = {"DependencyDataModule": {"max_sentences": "batch_size"}}
"""New names of options of data, by the class and the name until version 3.0."""


def explain_new_name(kind: str, option: str) -> str | None:
    """Return the message for an option under its old name; None if it is none.

    Args:
        kind: Name of the class.
        option: Name of the option, without that of the class.
    """
    new = RENAMED.get(kind, {}).get(option)
    if new is None:
        return None
    old_option = setting(f"data.{option}")
    new_option = setting(f"data.{new}")
    limit = setting("data.limit")
    return f"{old_option} is now {new_option}, the size of a training batch. To read fewer sentences, give {limit}."


def with_new_names(config: object, place: str = "") -> object:
    """Return the settings of a run with the new names of renamed options; the same object if there are none.

    Settings of a class that is not of this program stay as they are.

    Args:
        config: Content of a config, with the settings of the datamodule under `data`.
        place: Beginning of an error message, such as `my.yaml: `.

    Raises:
        SettingsError: An option is given under its old and its new name.
    """
    data = config.get("data") if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(data, Mapping):
        return config
    names = RENAMED.get(own_class(str(data.get("class_path"))) or "", {})
    arguments = _arguments_in(data)
    for old, new in names.items():
        if old in arguments and new in arguments:
            raise SettingsError(f"{place}data has both {old} and {new}, its new name. Remove {old}.")
    renamed = _rename(data, names)
    if renamed == data:
        return config
    return {**config, "data": renamed}


def _arguments_in(settings: Mapping[str, object]) -> set[str]:
    """Return the names of the arguments in the settings of a class, which may stand under `init_args`."""
    names = set[str]()
    for name, value in settings.items():
        if name == "init_args" and isinstance(value, Mapping):
            names |= _arguments_in(value)
        else:
            names.add(name.rpartition(".")[2])
    return names


def _rename(settings: Mapping[str, object], names: Mapping[str, str]) -> dict[str, object]:
    """Return the settings of a class with new names of its arguments, which may stand under `init_args`."""
    renamed: dict[str, object] = {}
    for name, value in settings.items():
        if name == "init_args" and isinstance(value, Mapping):
            renamed[name] = _rename(value, names)
            continue
        prefix, dot, last = name.rpartition(".")
        renamed[f"{prefix}{dot}{names.get(last, last)}"] = value
    return renamed


class SettingsError(UserError):
    """Error for a settings file that cannot be read or used."""


MOST_VALUES = 20_000
"""Largest number of values in a file of settings; jsonargparse takes seconds for so many."""
DEEPEST = 100
"""Largest number of lists and mappings of settings in each other."""
PIPES = ("/dev/fd/", "/proc/self/fd/")
"""Beginnings of the paths of `--config <(…)`: pipes that the user's bash or zsh has opened."""
LONGEST_TEXT = 1 << 22
"""Largest number of bytes of a file of settings, and of characters of a text that is read as settings."""
_DIGITS = 1000  # of a number
_NUMBER = re.compile(r"[-+]?[.\d][-+.:_x\da-fA-F]*")  # also in base 60, 1:59, and in base 16
_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C library may not be there


def _is_long_number(event: yaml.Event) -> bool:
    """Return True for a scalar without quotes that would be read as a number of too many digits."""
    if not isinstance(event, yaml.ScalarEvent) or not event.implicit[0]:
        return False
    return len(event.value) > _DIGITS and _NUMBER.fullmatch(event.value) is not None


def _refuse_excess(text: str) -> None:
    """Raise YAMLError for text of more values, deeper brackets or longer numbers than settings have.

    The text is read as a stream of events, and no further than its first excess: nothing is kept of it.
    """
    if len(text) > LONGEST_TEXT:
        raise yaml.constructor.ConstructorError(problem=f"it has more than {LONGEST_TEXT:,} characters")
    values = 0
    depth = 0
    for event in yaml.parse(text, _PARSER):
        fault = ""
        if isinstance(event, yaml.NodeEvent):
            values += 1
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif _is_long_number(event):
            fault = f"a number has more than {_DIGITS:,} digits: write text in quotes"
        if values > MOST_VALUES:
            fault = f"it has more than {MOST_VALUES:,} values"
        if depth > DEEPEST:
            fault = f"its lists and mappings are more than {DEEPEST} deep"
        if fault:
            raise yaml.constructor.ConstructorError(problem=fault, problem_mark=event.start_mark)


def _count_values(node: yaml.Node | None, counts: dict[yaml.Node, float]) -> float:
    """Return how many values a node of YAML stands for if aliases are written out; infinite for one in itself."""
    if node in counts:
        return counts[node]
    counts[node] = inf  # until its parts are counted
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            parts.extend((key, value))
    elif isinstance(node, yaml.SequenceNode):
        parts = node.value
    counts[node] = 1 + sum(_count_values(part, counts) for part in parts)
    return counts[node]


class Bounded:
    """Mixin of loaders of YAML that refuses text of more than `MOST_VALUES` values, each alias being all it stands for.

    It also refuses deeper brackets than `DEEPEST`, and numbers of too many digits. All but the aliases are counted
    before anything is composed.

    Args:
        stream: The text, or a file of text.
    """

    def __init__(self, stream: str | IO[str]) -> None:
        text = stream if isinstance(stream, str) else stream.read(LONGEST_TEXT + 1)
        _refuse_excess(text)
        super().__init__(text)  # type: ignore[call-arg]

    def get_single_node(self) -> yaml.Node | None:
        """Return the only document of the text, as a tree in which an alias is the node that it stands for."""
        node: yaml.Node | None = super().get_single_node()  # type: ignore[misc]
        if _count_values(node, {}) > MOST_VALUES:
            fault = (
                f"it has more than {MOST_VALUES:,} values, counting each alias as all that it stands for: remove "
                "aliases"
            )
            raise yaml.constructor.ConstructorError(problem=fault)
        return node


class BoundedLoader(Bounded, _PARSER):  # type: ignore[misc, valid-type]
    """Safe loader that is bounded."""


class _Loader(BoundedLoader):
    """Refuses mappings with duplicate names, or with names that are not text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = set[object]()
        for key, _ in node.value:
            fault = None
            if not key.tag.endswith((":str", ":merge")):
                fault = f"the key `{key.value}` is not a string: write it in quotes"
            elif key.value in names:
                fault = f"the key `{key.value}` occurs twice in one mapping: remove one"
            if fault is not None:
                raise yaml.constructor.ConstructorError(problem=fault, problem_mark=key.start_mark)
            names.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_yaml(path: Path) -> object:
    """Return the content of a YAML file.

    Raises:
        SettingsError: The file cannot be read, is not a regular file or not YAML in UTF-8, has more values than
            settings have, or a key occurs twice in a mapping or is not a string.
    """
    try:
        with check_regular(path, LONGEST_TEXT).open(encoding="utf-8") as file:
            return yaml.load(file, _Loader)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # bad UTF-8, a day that does not exist, deep brackets
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f", line {mark.line + 1}"
        problem = getattr(error, "problem", None) or error
        fault = " ".join(str(problem).split())
        raise SettingsError(f"{path}{place} is not valid YAML in UTF-8: {fault}") from None


# Names of options that are seeds, in any class.
SEEDS = frozenset({"seed", "seed_everything"})
DATA_ROOT = "data.init_args.root"


def settings_without_seeds(config: object) -> dict[str, object]:
    """Return the settings that must be equal in runs that differ only in their seeds, by dotted name.

    They are the `score_settings` with two changes. Every seed is None. The root folder of the data is
    left out, because the data files are compared by their SHA-256.
    """
    shared = score_settings(config)
    shared.pop(DATA_ROOT, None)
    for name in seeds(config):
        if name in shared:
            shared[name] = None
    return shared


def seeds(config: object) -> dict[str, object]:
    """Return the seeds in a config by dotted name."""
    by_name = dict[str, object]()
    for name, value in leaves(config):
        if name.rpartition(".")[2] in SEEDS:
            by_name[name] = value
    return by_name


LONGEST_LIST = 500
"""Largest number of values in a list of a plan; jsonargparse takes seconds for so many."""


_FRAME = (
    "Does not validate against",
    "Subtypes:",
    "Errors:",
    "Given value type:",
    "Given value: NestedArg",
    "Given value: {",
    "Expected a <class 'NoneType'>",
    "Expected a path but",
)
"""Beginnings of lines in jsonargparse's messages that do not describe the fault."""


def in_a_line(message: str) -> str:
    """Return an error message of jsonargparse in one line, without the lines that do not describe the error."""
    lines = dict[str, None]()  # without repetitions
    for line in message.splitlines():
        text = line.strip(" -")
        if text and not text.startswith(_FRAME):
            lines[shorten(text)] = None
    return re.sub(r"<class '([\w.]+)'>", r"\1", "; ".join(lines))


_PLAIN = (
    ("Does not validate against any of the Union subtypes; ", ""),
    (r"\ba typing\.Literal\[([^\]]*)\]", r"one of \1"),
    (r"\ba dict\b", "a mapping, {name: …}"),
    (r"\ba str\b", "text"),
    (r"Not of type NonNegativeInt: (\S+) .*", r"Expected a whole number, 0 or more. Got value: \1"),
    (r"the following arguments are required: (\w+)", r"`\1` is missing"),
)
"""Patterns of Python's words in jsonargparse's messages, and plain words in their place."""

_Typed = TypeVar("_Typed", bound="DataclassInstance")


def parse_mapping(kind: type[_Typed], content: object, where: str) -> _Typed:
    """Return an instance of a dataclass with the values of a mapping, after checking their types.

    Args:
        kind: The dataclass.
        content: The mapping.
        where: Beginning of each error message, such as the name of the file.

    Raises:
        SettingsError: `content` is not a mapping, or one of its entries is unknown, empty, of the wrong type, or
            a list with duplicates.
    """
    from jsonargparse import ArgumentError  # takes long, and most readers of settings do not need it

    if not isinstance(content, Mapping):
        raise SettingsError(f"{where} is {_describe(content)}, but must be a mapping, such as `name: value`")
    names = [field.name for field in fields(kind)]
    for name, value in content.items():
        if name not in names:
            raise SettingsError(f"{where}: unknown key `{name}`{near(name, names)}. Keys are {', '.join(names)}")
        if value in (None, "", []):
            raise SettingsError(f"{where}: `{name}` has no value. Give it one, or leave it out")
        if isinstance(value, list):
            _check_list(value, f"{where}: `{name}`")
    try:
        values = _parser_of(kind).parse_object(dict(content), defaults=False)
        return kind(**values.as_dict())
    except ArgumentError as error:
        message = re.sub(r'Parser key "([^"]+)":\s*', r"`\1`: ", str(error))
        fault = in_a_line(message)
        for pattern, words in _PLAIN:
            fault = re.sub(pattern, words, fault)
        raise SettingsError(f"{where}: {fault}") from None


def _describe(content: object) -> str:
    """Return a description of content that is no mapping, for a message."""
    if content is None:
        return "empty"
    if isinstance(content, list):
        return "a list"
    return repr(str(content)[:40])


def _check_list(values: list[object], where: str) -> None:
    """Raise SettingsError if a list is too long, or has duplicates."""
    times = Counter(map(repr, values))
    if len(times) > LONGEST_LIST:
        raise SettingsError(f"{where} lists more than {LONGEST_LIST} values. Divide the file into several")
    for value, number in times.items():
        if number > 1:
            raise SettingsError(f"{where} lists {value} more than once: name it once")


@cache
def _parser_of(kind: type) -> Any:  # noqa: ANN401 # jsonargparse takes long to import
    """Return the parser of the fields of a dataclass, which takes far longer to make than a mapping to parse."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind)
    return parser
