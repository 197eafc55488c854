"""What the options of a command line allow: modules that settings may import, and files that may run code.

`values` in this file are the dotted names of options with their values, see `command_line.values_of`.
"""

import os
from collections.abc import Iterable
from importlib import import_module

from jsonargparse import Namespace

from attention_probing.models.configs import LIBRARIES, permissions_in
from attention_probing.results.errors import UserError
from attention_probing.results.settings import PACKAGE, SettingsError, leaves, own_class

_KNOWN = tuple(f"{module}." for module in (PACKAGE, *LIBRARIES))
"""Beginnings of the paths of classes that every config may name."""
Values = Iterable[tuple[str, object]]


def trusted_modules(values: Values) -> set[str]:
    """Return the names of the modules and packages whose classes the options allow to be imported.

    They are the values of `--trust`, and the top-level package of each class that an option names.

    A dotted value is taken for a class if it belongs to --model, --data or a `class_path`, or if its
    last part begins with a capital letter. Other values, such as `my.corpus`, and names of existing
    files are not. Classes that every config may name add nothing: `torch.optim.SGD` does not add torch.
    """
    modules = set[str]()
    for option, value in values:
        for name, leaf in leaves(value, option):
            if not isinstance(leaf, str) or leaf.startswith(_KNOWN):
                continue
            if option == "trust":  # the folder of the package may lie here
                if _is_path(leaf):
                    modules.add(leaf)
            elif not os.path.exists(leaf) and _is_class(name, leaf):
                modules.add(leaf.partition(".")[0])
    return modules - {"jsonargparse"}  # which would let a setting change what settings may name


def _is_path(text: str) -> bool:
    """Return True for the dotted path of a module or a class."""
    return all(part.isidentifier() for part in text.split("."))


def _is_class(option: str, text: str) -> bool:
    """Return True if the value of an option is the dotted path of a class that is not of this program."""
    if not _is_path(text) or "." not in text or own_class(text) is not None:
        return False
    takes_class = option.rpartition(".")[2] in ("model", "data", "class_path")
    return takes_class or text.rpartition(".")[2][0].isupper()


def import_trusted(values: Values) -> None:
    """Import the modules that the options name with --trust.

    Raises:
        UserError: A module cannot be imported.
    """
    for option, value in values:
        if option != "trust":
            continue
        for _, module in leaves(value):
            try:
                import_module(str(module))
            except ImportError as error:
                raise UserError(
                    f"--trust {module}: the module cannot be imported ({error}). Correct the name, install what is "
                    f"missing, or add its folder to PYTHONPATH."
                ) from error


def refuse_permissions(settings: Namespace, values: Values) -> None:
    """Raise SettingsError if a config file grants a permission that the command line does not grant.

    A permission is an option that lets a file run code, such as `allow_pickle`.

    Args:
        settings: Settings of the run.
        values: Options of the command line.
    """
    granted = set[str]()
    for option, value in values:
        for name, leaf in leaves(value, option):
            if leaf is True:
                granted.add(name.replace(".init_args", ""))
    for name, _ in permissions_in(settings):
        if name.replace(".init_args", "") not in granted:
            raise SettingsError(
                f"{name} is true in a config file, but only the command line may allow that. If you trust the "
                f"file that it opens, add --{name} true."
            )
