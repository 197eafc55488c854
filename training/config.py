"""Comparison of the configs of runs, and typed mappings of settings."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

from jsonargparse import ArgumentError, ArgumentParser

from results.errors import near
from results.settings import Bounded as Bounded
from results.settings import BoundedLoader as BoundedLoader
from results.settings import SettingsError as SettingsError
from results.settings import leaves, score_settings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Names of options that are seeds, in any class.
SEEDS = frozenset({"seed", "seed_everything"})
DATA_ROOT = "data.init_args.root"


def settings(config: object) -> dict[str, object]:
    """Return the settings that must be equal in runs that differ only in their seeds, by dotted name.

    They are the `score_settings` with two changes. Every seed is None. The root folder of the data is
    left out, because the data files are compared by their SHA-256.
    """
    shared = {name: value for name, value in score_settings(config).items() if name != DATA_ROOT}
    return shared | dict.fromkeys(shared.keys() & seeds(config).keys())


def seeds(config: object) -> dict[str, object]:
    """Return the seeds in a config by dotted name."""
    return {name: value for name, value in leaves(config) if name.rpartition(".")[2] in SEEDS}


LONGEST = 500
"""Largest number of values in a list of a plan; jsonargparse takes seconds for so many."""


_FRAME = (
    *("Does not validate against", "Subtypes:", "Errors:", "Given value type:", "Given value: NestedArg"),
    *("Given value: {", "Expected a <class 'NoneType'>", "Expected a path but"),
)
"""Beginnings of lines in jsonargparse's messages that do not describe the fault."""


def in_a_line(message: str) -> str:
    """Return an error message of jsonargparse in one line, without the lines that do not describe the error."""
    lines = (line.strip(" -") for line in message.splitlines())
    told = dict.fromkeys(line for line in lines if line and not line.startswith(_FRAME))
    return re.sub(r"<class '([\w.]+)'>", r"\1", "; ".join(told))


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


def typed(kind: type[_Typed], content: object, where: str) -> _Typed:
    """Return an instance of a dataclass with the values of a mapping, after checking their types.

    Args:
        kind: The dataclass.
        content: The mapping.
        where: Beginning of each error message, such as the name of the file.

    Raises:
        SettingsError: `content` is not a mapping, or one of its entries is unknown, empty, of the wrong type, or
            a list with duplicates.
    """
    if not isinstance(content, Mapping):
        found = "empty" if content is None else "a list" if isinstance(content, list) else f"{str(content)[:40]!r}"
        raise SettingsError(f"{where} is {found}, but must be a mapping, such as `name: value`")
    names = [one.name for one in fields(kind)]
    for name, value in content.items():
        if name not in names:
            raise SettingsError(
                f"{where}: unknown key `{name}`{near(name, names)}; the possible keys are {', '.join(names)}"
            )
        if value in (None, "", []):
            raise SettingsError(f"{where}: `{name}` has no value. Give it one, or leave it out")
        times = Counter(map(repr, value)) if isinstance(value, list) else {}
        if len(times) > LONGEST:
            raise SettingsError(f"{where}: `{name}` lists more than {LONGEST} values. Divide the file into several")
        if twice := [one for one, number in times.items() if number > 1]:
            raise SettingsError(f"{where}: `{name}` lists {twice[0]} more than once: name it once")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind)
    try:
        return kind(**parser.parse_object(dict(content)).as_dict())
    except ArgumentError as error:
        fault = in_a_line(re.sub(r'Parser key "([^"]+)":\s*', r"`\1`: ", str(error)))
        for pattern, words in _PLAIN:
            fault = re.sub(pattern, words, fault)
        raise SettingsError(f"{where}: {fault}") from None
