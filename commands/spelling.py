"""Options of a command line that no class of it takes, told before anything is imported.

The names of arguments are read from the source of the classes. jsonargparse, which has the last word, must import
them: with PyTorch and Lightning that takes seconds.
"""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from attention_probing.commands.command_line import CommandLine
from attention_probing.commands.shorthand import SHORT
from attention_probing.results.errors import near
from attention_probing.results.settings import PACKAGE, exported, own_class

LIGHTNING = "pytorch_lightning"
FOLDER = Path(__file__).resolve().parents[1]
"""Folder of the rooms."""
OF_ALL = ("config", "data", "help", "model", "print_config", "quiet", "seed_everything", "trust")
"""Options of all commands that make a run, apart from those of the classes below."""
OF_TRAINER = ("ckpt_path", "lr_scheduler", "optimizer", "resume", "return_predictions", "verbose", "weights_only")
"""Further options of the commands that use Lightning's Trainer."""
OF_CLASS = ("class_path", "dict_kwargs", "help", "init_args")
"""Names below an option that is a class, which are no arguments of the class."""


class Source(NamedTuple):
    """A class, by the file in which it is defined or imported."""

    file: Path
    name: str


def wrong_option(line: CommandLine) -> str | None:
    """Return the message for an option that nothing takes, or for a model of another command; None without one."""
    command = line.command
    classes = line.classes
    fault = _wrong_command(command, classes.get("model", ""))
    if fault is not None:
        return fault
    groups = _groups(command)
    plain = OF_ALL if command == "measure" else (*OF_ALL, *OF_TRAINER)
    for option, value in line.options:
        if not option.startswith("--"):  # -c, or a negative number
            continue
        group, _, rest = option[2:].removesuffix("+").partition(".")
        name = rest.removeprefix("init_args.").partition(".")[0]
        if group in ("model", "data"):
            kind = _own(classes.get(group, ""))
            known = None if kind is None else _arguments_of(kind)
            if name and known is not None and name not in (*known, *OF_CLASS):
                return f"{group} ({kind}): Option '{name}' is not accepted{near(name, known)}"
        elif group in groups:
            known = groups[group]
            if name and known is not None and name not in known:
                all_of_group = [f"{group}.{one}" for one in known]
                return f"unrecognized arguments: {_shown(option, value)}{near(option[2:], all_of_group, '--')}"
        elif group not in plain and f"--{group}" not in SHORT:
            names = [*plain, *groups, *(short[2:] for short in SHORT)]
            return f"unrecognized arguments: {_shown(option, value)}{near(group, names, '--')}"
    return None


def _wrong_command(command: str, model: str) -> str | None:
    """Return the message for a model of this program that another command runs; None if there is no fault."""
    kind = _own(model)
    room = "" if kind is None else exported()[kind].rpartition(".")[2]
    if room in ("measures", "fidelity") and command != "measure":
        return f"model: {kind} is a measurement. Run it with `probing measure`"
    if room in ("probes", "models") and command == "measure":
        return f"model: {kind} is a model that is trained. Run it with `probing fit`"
    return None


def _own(path: str) -> str | None:
    """Return the short name of a class that is certainly of this program; None for any other.

    A path of version 1, `models.AttentionClassifier`, may also be one in a package of the user.
    """
    is_certain = "." not in path or path.startswith(f"{PACKAGE}.")
    return own_class(path) if is_certain else None


def _shown(option: str, value: str) -> str:
    return f"{option} {value}" if value and not value.startswith("-") else option


def _groups(command: str) -> dict[str, list[str] | None]:
    """Return the arguments of each class of a command whose options have a fixed name, such as `trainer`."""
    figures = _arguments(Source(FOLDER / "results/writer.py", "FigureFiles"))
    if command == "measure":
        return {"figures": figures, "trainer": _arguments(Source(FOLDER / "commands/measure.py", "Devices"))}
    trainer = _arguments(Source(_lightning() / "trainer/trainer.py", "Trainer"))
    checkpoint = _arguments(Source(_lightning() / "callbacks/model_checkpoint.py", "ModelCheckpoint"))
    return {"figures": figures, "trainer": trainer, "checkpoint": checkpoint}


def _arguments_of(name: str) -> list[str] | None:
    """Return the arguments of a class that a room exports; None if they cannot be known without importing it."""
    room = exported()[name].rpartition(".")[2]
    return _arguments(_imports(FOLDER / room / "__init__.pyi")[name])


@cache
def _arguments(source: Source) -> list[str] | None:
    """Return the names of the arguments of a class, with those that it passes on to the class that it extends.

    None if the class is of another package, or its arguments cannot be known without importing it.
    """
    found = _definition(source)
    if found is None:
        return None
    file, definition = found
    if any("dataclass" in ast.unparse(decorator) for decorator in definition.decorator_list):
        fields = [node for node in definition.body if isinstance(node, ast.AnnAssign)]
        return [ast.unparse(node.target) for node in fields]
    functions = {node.name: node for node in definition.body if isinstance(node, ast.FunctionDef)}
    own = list[str]()
    if "__init__" in functions:
        signature = functions["__init__"].args
        own = [one.arg for one in (*signature.args[1:], *signature.kwonlyargs)]
        if signature.kwarg is None:
            return own
    for base in definition.bases:
        name = ast.unparse(base).partition("[")[0]
        if name in ("ABC", "Generic"):
            continue
        passed_on = _arguments(Source(file, name))
        return None if passed_on is None else [*own, *passed_on]
    return own


def _definition(source: Source) -> tuple[Path, ast.ClassDef] | None:
    """Return the definition of a class and its file; None if it is neither of this program nor of Lightning."""
    for node in _tree(source.file).body:
        if isinstance(node, ast.ClassDef) and node.name == source.name:
            return source.file, node
    imported = _imports(source.file).get(source.name)
    return None if imported is None else _definition(imported)


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def _imports(file: Path) -> dict[str, Source]:
    """Return the classes that a file imports from this program or from Lightning, by name."""
    found = dict[str, Source]()
    for node in _tree(file).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        module = _file_of(file, node)
        if module is not None:
            found.update({one.asname or one.name: Source(module, one.name) for one in node.names})
    return found


def _file_of(file: Path, node: ast.ImportFrom) -> Path | None:
    """Return the file of the module that an import in a file names; None for a module of another package."""
    parts = str(node.module).split(".")
    if node.level == 1:
        path = file.parent.joinpath(*parts)
    elif node.level == 0 and parts[0] == PACKAGE:
        path = FOLDER.joinpath(*parts[1:])
    elif node.level == 0 and parts[0] == LIGHTNING:
        path = _lightning().joinpath(*parts[1:])
    else:
        return None
    places = (path.with_suffix(".py"), path / "__init__.pyi", path / "__init__.py")
    return next((place for place in places if place.is_file()), None)


@cache
def _lightning() -> Path:
    """Return the folder of Lightning's source."""
    spec = find_spec(LIGHTNING)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
