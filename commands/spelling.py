"""Options of a command line that no class of it takes, told before anything is imported.

The names of arguments are read from the source of the classes. jsonargparse, which has the last word, must import
them: with PyTorch and Lightning that takes seconds.
"""

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from attention_probing.commands.command_line import CommandLine
from attention_probing.commands.shorthand import SHORT
from attention_probing.results.errors import command_line, near
from attention_probing.results.settings import PACKAGE, explain_new_name, exported_classes, own_class

LIGHTNING = "pytorch_lightning"
FOLDER = Path(__file__).resolve().parents[1]
"""Folder of the rooms."""
OF_ALL = ("config", "data", "help", "model", "print_config", "quiet", "seed_everything", "trust")
"""Options of all commands that make a run, apart from those of the classes below."""
OF_TRAINER = ("ckpt_path", "lr_scheduler", "optimizer", "resume", "return_predictions", "verbose", "weights_only")
"""Further options of the commands that use Lightning's Trainer."""
OF_CLASS = ("class_path", "dict_kwargs", "help", "init_args")
"""Names below an option that is a class, which are no arguments of the class."""


class ClassSource(NamedTuple):
    """A class, by the file in which it is defined or imported."""

    file: Path
    name: str


def wrong_option(line: CommandLine) -> str | None:
    """Return the message for an option that nothing takes, or for a model of another command; None without one."""
    fault = _wrong_command(line.command, line.classes.get("model", ""))
    if fault is not None:
        return fault
    groups = _groups(line.command)
    plain = [*OF_ALL, "dry"]
    if line.command == "measure":
        plain.append("twin")
    else:
        plain.extend(OF_TRAINER)
    for option, value in line.options:
        if not option.startswith("--"):  # -c, or a negative number
            continue
        group, _, rest = option[2:].removesuffix("+").partition(".")
        argument = rest.removeprefix("init_args.").partition(".")[0]
        if group in ("model", "data"):
            fault = _wrong_argument(group, line.classes, argument)
        elif group in groups:
            arguments = groups[group]
            if argument and arguments is not None and argument not in arguments:
                names = [f"{group}.{name}" for name in arguments]
                fault = _unrecognized(option, value, option[2:], names)
        elif group not in plain and f"--{group}" not in SHORT:
            short = [name[2:] for name in SHORT]
            fault = _unrecognized(option, value, group, [*plain, *groups, *short])
        if fault is not None:
            return fault
    return None


def _wrong_argument(option: str, classes: Mapping[str, str], argument: str) -> str | None:
    """Return the message for an argument that a class of this program does not have; None if there is no fault.

    Args:
        option: `model` or `data`.
        classes: Name or path of the class of each of the two, where one is named.
        argument: Name of the argument; empty for the option itself.
    """
    kind = _class_of_rooms(classes.get(option, ""))
    if kind is None or not argument:
        return None
    arguments = _arguments_of(kind)
    if arguments is None or argument in (*arguments, *OF_CLASS):
        return None
    with command_line():
        renamed = explain_new_name(kind, argument)
    if renamed is not None:
        return f"{option} ({kind}): {renamed}"
    fault = f"{option} ({kind}): Option '{argument}' is not accepted"
    other = "data" if option == "model" else "model"
    other_kind = _class_of_rooms(classes.get(other, ""))
    if other_kind is not None and argument in (_arguments_of(other_kind) or ()):
        return f"{fault} (did you mean `--{other}.{argument}`?)"
    return f"{fault}{near(argument, arguments)}"


def _unrecognized(option: str, value: str, name: str, names: Sequence[str]) -> str:
    """Return the message for an option that the command does not have.

    Args:
        option: The option, with its dashes.
        value: Its value; empty without one.
        name: Name that is compared with the names of options.
        names: Names of options, without dashes.
    """
    has_value = value and not value.startswith("-")
    words = f"{option} {value}" if has_value else option
    return f"unrecognized arguments: {words}{near(name, names, '--')}"


def _wrong_command(command: str, model: str) -> str | None:
    """Return the message for a model of this program that another command runs; None if there is no fault."""
    kind = _class_of_rooms(model)
    if kind is None:
        return None
    room = exported_classes()[kind].rpartition(".")[2]
    if room in ("measures", "fidelity") and command != "measure":
        return f"model: {kind} is a measurement. Run it with `probing measure`"
    if room in ("probes", "models") and command == "measure":
        return f"model: {kind} is a model that is trained. Run it with `probing fit`"
    return None


def _class_of_rooms(path: str) -> str | None:
    """Return the short name of a class that is certainly of this program; None for any other.

    A path of version 1, `models.AttentionClassifier`, may also be one in a package of the user.
    """
    is_certain = "." not in path or path.startswith(f"{PACKAGE}.")
    if not is_certain:
        return None
    return own_class(path)


def _groups(command: str) -> dict[str, list[str] | None]:
    """Return the arguments of each class of a command whose options have a fixed name, such as `trainer`."""
    groups = {"figures": ClassSource(FOLDER / "results/figure_files.py", "FigureFiles")}
    if command == "measure":
        groups["trainer"] = ClassSource(FOLDER / "commands/measure.py", "Devices")
    else:
        groups["trainer"] = ClassSource(_lightning() / "trainer/trainer.py", "Trainer")
        groups["checkpoint"] = ClassSource(_lightning() / "callbacks/model_checkpoint.py", "ModelCheckpoint")
    return {name: _arguments(source) for name, source in groups.items()}


def _arguments_of(name: str) -> list[str] | None:
    """Return the arguments of a class that a room exports; None if they cannot be known without importing it."""
    room = exported_classes()[name].rpartition(".")[2]
    return _arguments(_imports(FOLDER / room / "__init__.pyi")[name])


@cache
def _arguments(source: ClassSource) -> list[str] | None:
    """Return the names of the arguments of a class, with those that it passes on to the class that it extends.

    None if the class is of another package, or its arguments cannot be known without importing it.
    """
    defined = _definition(source)
    if defined is None:
        return None
    file, definition = defined
    if _is_dataclass(definition):
        fields = [node for node in definition.body if isinstance(node, ast.AnnAssign)]
        return [ast.unparse(field.target) for field in fields]
    arguments = list[str]()
    signature = _signature(definition)
    if signature is not None:
        for argument in (*signature.args[1:], *signature.kwonlyargs):
            arguments.append(argument.arg)
        if signature.kwarg is None:
            return arguments
    for base in definition.bases:
        name = ast.unparse(base).partition("[")[0]
        if name in ("ABC", "Generic"):
            continue
        passed_on = _arguments(ClassSource(file, name))
        if passed_on is None:
            return None
        return [*arguments, *passed_on]
    return arguments


def _is_dataclass(definition: ast.ClassDef) -> bool:
    """Return True for a class with the decorator `dataclass`."""
    return any("dataclass" in ast.unparse(decorator) for decorator in definition.decorator_list)


def _signature(definition: ast.ClassDef) -> ast.arguments | None:
    """Return the signature of the constructor that a class defines; None if it defines none."""
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return node.args
    return None


def _definition(source: ClassSource) -> tuple[Path, ast.ClassDef] | None:
    """Return the definition of a class and its file; None if it is neither of this program nor of Lightning."""
    for node in _tree(source.file).body:
        if isinstance(node, ast.ClassDef) and node.name == source.name:
            return source.file, node
    imported = _imports(source.file).get(source.name)
    if imported is None:
        return None
    return _definition(imported)


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def _imports(file: Path) -> dict[str, ClassSource]:
    """Return the classes that a file imports from this program or from Lightning, by name."""
    classes = dict[str, ClassSource]()
    for node in _tree(file).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        module = _file_of(file, node)
        if module is None:
            continue
        for imported in node.names:
            name = imported.asname or imported.name
            classes[name] = ClassSource(module, imported.name)
    return classes


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
    for place in (path.with_suffix(".py"), path / "__init__.pyi", path / "__init__.py"):
        if place.is_file():
            return place
    return None


@cache
def _lightning() -> Path:
    """Return the folder of Lightning's source."""
    spec = find_spec(LIGHTNING)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
