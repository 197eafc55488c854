"""Class paths and permissions in settings: a config or a checkpoint is text that anybody may have written."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import yaml
from jsonargparse import Namespace, set_parsing_settings
from jsonargparse._common import parsing_settings  # no public function reads them, to put them back

from training.config import SettingsError, leaves

ROOMS = (
    *("analysis", "attention", "corpora", "datamodules", "fidelity"),
    *("heads", "interventions", "models", "probes", "reports"),
)
"""Rooms with classes that settings name."""
LIBRARIES = ("pytorch_lightning", "torch.optim")
PERMISSIONS = frozenset({"allow_pickle"})
"""Names of options that let a file run a program. They are taken from the command line or the caller alone."""


_REMEDY = ContextVar("what a user does to trust a module", default="import {} first")


def remedy(module: str) -> str:
    """Return how a module is trusted: in Python by its import, by train.py with an option."""
    return _REMEDY.get().format(module)


@contextmanager
def only_known_classes(trusted: Iterable[str] = (), *, how: str | None = None) -> Iterator[None]:
    """Let parsers import nothing that a setting names but classes of this program and of some trusted modules.

    To import the class that a text names runs its module. `how` says what a user does to trust one, within this block.
    """
    before = dict(parsing_settings)
    said = _REMEDY.set(how or _REMEDY.get())
    try:
        set_parsing_settings(
            import_path_denylist=["*"],
            import_path_allowlist=[*ROOMS, *LIBRARIES, *trusted],
            instantiate_subclass_spec_in_any=False,
        )
        yield
    finally:
        parsing_settings.update(before)
        _REMEDY.reset(said)


def typed_options(words: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Yield the options of a command line by their dotted names, with the values as YAML reads them."""
    for word, following in zip(words, [*words, "--"][1:], strict=True):
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
            value = value if given or following.startswith("--") else following
            try:
                yield name.removesuffix("+"), yaml.safe_load(value)
            except (yaml.YAMLError, ValueError, RecursionError):  # of an impossible date; of brackets without end
                yield name.removesuffix("+"), value


def trusted_modules(words: Sequence[str]) -> set[str]:
    """Return the modules that a command line itself names: with `--trust`, and the packages of the classes in it.

    A class is the value of --model, --data or a `class_path`, or has a capital, unlike files: `my.corpus`. Classes that
    every file may name add nothing: `torch.optim.SGD` trusts no other module of torch.
    """
    found = set[str]()
    for option, value in typed_options(words):
        for name, leaf in leaves(value, option):
            # `Path.exists` raises for text that can be no path.
            if not isinstance(leaf, str) or os.path.exists(leaf) or _is_known(leaf):
                continue
            parts = leaf.split(".")
            if not all(map(str.isidentifier, parts)):
                continue
            of_class = name.rpartition(".")[2] in ("model", "data", "class_path") or parts[-1][0].isupper()
            if option == "trust":
                found.add(".".join(parts))
            elif len(parts) > 1 and of_class:
                found.add(parts[0])
    return found - {"jsonargparse"}  # which would let a setting change what settings may name


def _is_known(path: str) -> bool:
    return any(path.startswith(f"{module}.") for module in (*ROOMS, *LIBRARIES))


def imported_classes(settings: object) -> set[str]:
    """Return the paths in settings whose classes the running program has imported before."""
    found = set[str]()
    for value in (value for _, value in leaves(settings) if isinstance(value, str)):
        module, _, name = value.rpartition(".")
        held = sys.modules.get(module)
        # getattr would find what no module defines, such as __class__, and run the __getattr__ of a lazy module.
        if isinstance(kind := vars(held).get(name) if held else None, type):
            paths = (value, f"{kind.__module__}.{kind.__qualname__}")
            found.update(path for path in paths if all(map(str.isidentifier, path.split("."))))
    return found


def refuse_permissions(settings: Namespace, words: Sequence[str]) -> None:
    """Refuse permissions that a file of settings gives and the command line does not.

    Raises:
        SettingsError: see above.
    """
    given = {
        _plain(name) for option, value in typed_options(words) for name, leaf in leaves(value, option) if leaf is True
    }
    for name, _ in _permissions(settings):
        if _plain(name) not in given:
            raise SettingsError(
                f"{name} is true in a file of settings, and only the command line can permit that. If you trust the "
                f"file that it opens, add --{name} true."
            )


def without_permissions(settings: Namespace) -> Namespace:
    """Return the settings of a file with every permission taken back."""
    for name, held in _permissions(settings):
        held[name.rpartition(".")[2]] = False
    return settings


def _permissions(node: object, at: str = "") -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the dotted names of the permissions that parsed settings give, each with the mapping that holds it."""
    held = vars(node) if isinstance(node, Namespace) else node
    if isinstance(held, dict | list):
        for key, inner in held.items() if isinstance(held, dict) else enumerate(held):
            name = f"{at}.{key}" if at else str(key)
            if isinstance(held, dict) and key in PERMISSIONS and inner is True:
                yield name, held
            yield from _permissions(inner, name)


def _plain(name: str) -> str:
    return name.replace(".init_args", "")
