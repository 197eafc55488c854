"""What settings may name and permit: files, classes, and code in files."""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any

from jsonargparse import Namespace, _loaders_dumpers, _paths, _typehints, set_parsing_settings
from jsonargparse._common import parsing_settings
from jsonargparse._util import get_import_path, import_object

from attention_probing.results.files import check_regular
from attention_probing.results.settings import (
    LONGEST_TEXT,
    PACKAGE,
    PIPES,
    ROOMS,
    Bounded,
    exported_classes,
    leaves,
    own_class,
)


class _Loader(Bounded, _loaders_dumpers.get_yaml_default_loader()):  # type: ignore[misc]
    """Loader of jsonargparse, which also reads texts within settings as YAML."""


_loaders_dumpers.yaml_default_loader = _Loader  # type: ignore[assignment]

_named: ContextVar[frozenset[str] | None] = ContextVar("named", default=None)
"""Absolute paths that the command line names; None in parsers that are not of this program."""
IS_FILE = "is the path of a file, and only the command line may name a file of settings"


@contextmanager
def only_named_files(words: Iterable[object]) -> Iterator[None]:
    """Within the block, let parsers read the files of settings that the words of a command line name, and no others.

    jsonargparse takes any text in place of a class or a config for a path, also one inside a file that was received.
    The outermost block decides: one inside it, such as the parse of a command line from a plan, names no further files.

    Args:
        words: Words of the command line, and texts within them.
    """
    if _named.get() is not None:
        yield
        return
    named = {os.path.abspath(str(word)) for word in words if "\0" not in str(word)}
    token = _named.set(frozenset(named))
    try:
        yield
    finally:
        _named.reset(token)


def may_read(path: str) -> bool:
    """Return True if the command line names this file of settings; see `only_named_files`."""
    named = _named.get()
    return named is None or os.path.abspath(path) in named


def _read_text(path: _paths.Path) -> str:
    """Return the content of a file of settings, in place of the method of jsonargparse."""
    place = "-" if path.relative == "-" else path.absolute  # "-" is standard input
    if not may_read(place):
        raise TypeError(f"{path.relative} {IS_FILE}")
    if place != "-" and not place.startswith(PIPES):
        try:
            check_regular(Path(place), LONGEST_TEXT)
        except OSError as error:
            raise TypeError(f"{path.relative} cannot be read: {error.strerror}") from None
    return _of_library(path)


_of_library = _paths.Path.read_text
_paths.Path.read_text = _read_text  # type: ignore[method-assign, assignment]


_trusted: ContextVar[frozenset[str]] = ContextVar("trusted", default=frozenset())
"""Modules of the user that settings may name."""


def class_of(name: str) -> type | None:
    """Import a class that a room exports, and return it; None if there is no such class."""
    package = exported_classes().get(name)
    if package is None:
        return None
    kind: type = getattr(import_module(package), name)
    return kind


def _class_path(base: Any, name: str) -> str:  # noqa: ANN401
    """Return the path of a class in settings, in place of the function of jsonargparse, which knows imported classes.

    A class of this program may have its short name, or its path in settings of version 1; not if the command line
    trusts a package of the user with the name of a room.
    """
    short = own_class(name)
    if short is None or name.partition(".")[0] in _trusted.get():
        return _of_typehints(base, name)
    bases = base if isinstance(base, tuple) else _typehints.get_class_types(base)
    kind = class_of(short)
    if kind is not None and issubclass(kind, bases):
        return str(get_import_path(kind))
    return _of_typehints(base, short)


def settings_class(base: type, name: str) -> object:
    """Import the class that settings name in place of a class; return None if there is none, or it may not be imported.

    Args:
        base: The class.
        name: Name of a class of this program, or a dotted path.
    """
    try:
        return import_object(_class_path(base, name))
    except (ImportError, AttributeError, ValueError):
        return None


_of_typehints = _typehints.resolve_class_path_by_name
_typehints.resolve_class_path_by_name = _class_path  # type: ignore[assignment]


def with_short_classes(settings: str) -> str:
    """Return settings in YAML with the short names of the classes that rooms export."""

    def shorten_path(path: re.Match[str]) -> str:
        name = path[1]
        return name if name in exported_classes() else path[0]

    paths = re.compile(rf"(?<=class_path: ){PACKAGE}\.(?:\w+\.)*(\w+)$", re.MULTILINE)
    return paths.sub(shorten_path, settings)


def command_of(name: str) -> str:
    """Return the command that runs a model, `measure` or `fit`; `fit` for a class that is not of this program."""
    kind = class_of(name)
    if kind is None:
        return "fit"
    from pytorch_lightning import LightningModule

    return "fit" if issubclass(kind, LightningModule) else "measure"


_TOP = tuple(f"{PACKAGE}.{name}" for name in import_module(PACKAGE).__all__ if name[0].isupper())
OWN = (*(f"{PACKAGE}.{room}" for room in ROOMS), f"{PACKAGE}.commands.writer", *_TOP)
"""Packages of this program with classes that settings may name, by their full names, and classes of the package."""
LIBRARIES = ("pytorch_lightning", "torch.optim")
PERMISSIONS = frozenset({"allow_pickle", "trust_remote_code"})
"""Options that let a file run code. Only the command line or a caller in Python may set them."""


@contextmanager
def only_known_classes(trusted: Iterable[str] = ()) -> Iterator[None]:
    """Within the block, let parsers import only classes of known modules.

    These are the modules of this program, Lightning, `torch.optim`, and the `trusted` ones. Other classes are
    refused because importing a class runs the code of its module.

    Args:
        trusted: Names of modules.
    """
    before = dict(parsing_settings)
    names = frozenset(trusted)
    token = _trusted.set(names)
    try:
        set_parsing_settings(
            import_path_denylist=["*"],
            import_path_allowlist=[*OWN, *LIBRARIES, *names],
            instantiate_subclass_spec_in_any=False,
        )
        yield
    finally:
        _trusted.reset(token)
        parsing_settings.update(before)


def imported_classes(settings: object) -> set[str]:
    """Return the dotted paths of classes that settings name and that are already imported."""
    paths = set[str]()
    for _, value in leaves(settings):
        if not isinstance(value, str):
            continue
        module, _, name = value.rpartition(".")
        # getattr would also find __class__, and run the __getattr__ of a lazy module.
        content = vars(sys.modules[module]) if module in sys.modules else {}
        kind = content.get(name)
        if not isinstance(kind, type):
            continue
        for path in (value, f"{kind.__module__}.{kind.__qualname__}"):
            if all(part.isidentifier() for part in path.split(".")):
                paths.add(path)
    return paths


def without_permissions(settings: Namespace) -> Namespace:
    """Set all permissions in the settings of a file to False, in place, and return the settings.

    A permission is an option that lets a file run code, such as `allow_pickle`.
    """
    for name, held in permissions_in(settings):
        held[name.rpartition(".")[2]] = False
    return settings


def permissions_in(node: object, at: str = "") -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the dotted name of each granted permission in parsed settings, with the mapping that holds it."""
    if isinstance(node, Namespace):
        node = vars(node)
    if isinstance(node, dict):
        entries = list(node.items())
    elif isinstance(node, list):
        entries = list(enumerate(node))
    else:
        return
    for key, value in entries:
        name = f"{at}.{key}" if at else str(key)
        if isinstance(node, dict) and key in PERMISSIONS and value is True:
            yield name, node
        yield from permissions_in(value, name)
