"""Options of a command line that its classes do not take, told before anything is imported.

The names of options are read from the source of the classes. jsonargparse, which has the last word, must import them:
with PyTorch and Lightning that takes seconds.
"""

import ast
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from attention_probing.commands.shorthand import SHORT, classes_of, options
from attention_probing.results.errors import near

PACKAGE = Path(__file__).resolve().parents[1]
NAME = "attention_probing"
LIGHTNING = "pytorch_lightning"
ROOMS = ("attention", "corpora", "datamodules", "fidelity", "measures", "models", "probes")
SHARED = {
    "config", "c", "data", "figures", "help", "h", "model", "print_config", "quiet", "seed_everything", "trainer", "trust",
}  # fmt: skip
"""Options of all runs that have no class of their own, and the names of those that have."""
OF_TRAINER = {"checkpoint", "ckpt_path", "lr_scheduler", "optimizer", "resume"}
"""The further ones of the commands that use Lightning's Trainer."""
IN_CLASS = {"class_path", "dict_kwargs", "help", "init_args"}
"""Names below an option that is a class, which are no arguments of it."""


class Place(NamedTuple):
    """Where a class is defined: a file, and its name there."""

    file: Path
    name: str


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def _imports(file: Path) -> dict[str, Place]:
    """Return where the classes are defined that a file imports from this program or from Lightning, by name."""
    found = {}
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            source = _source(file, node)
            for alias in node.names if source else ():
                found[alias.asname or alias.name] = Place(source, alias.name)
    return found


def _source(file: Path, node: ast.ImportFrom) -> Path | None:
    """Return the file of the module that an import names; None for a module of another package."""
    parts = str(node.module).split(".")
    if node.level == 1:
        start = file.parent
    elif parts[0] == NAME:
        start, parts = PACKAGE, parts[1:]
    elif parts[0] == LIGHTNING:
        start, parts = _folder_of_lightning(), parts[1:]
    else:
        return None
    path = start.joinpath(*parts)
    found = (path.with_suffix(".py"), path / "__init__.pyi", path / "__init__.py")
    return next((one for one in found if one.is_file()), None)


def _folder_of_lightning() -> Path:
    spec = find_spec(LIGHTNING)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _definition(place: Place) -> tuple[Path, ast.ClassDef] | None:
    """Return the definition of a class and its file; None if it is not of this program or of Lightning."""
    for node in _tree(place.file).body:
        if isinstance(node, ast.ClassDef) and node.name == place.name:
            return place.file, node
    imported = _imports(place.file).get(place.name)
    return None if imported is None or imported == place else _definition(imported)


def _exported(name: str) -> Place | None:
    """Return the place of a class of this program, by its short name or its path; None for any other class."""
    *_, room, short = f"..{name}".split(".") if name.count(".") == 1 else f"..{name}".rsplit(".", 1)
    rooms = [one for one in ROOMS if one == room] or ROOMS
    for one in rooms:
        stub = PACKAGE / one / "__init__.pyi"
        if stub.is_file() and short in _imports(stub):
            return _imports(stub)[short]
    return None
