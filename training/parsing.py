"""Parser of command lines and configs: one-line error messages, trusted modules, and permissions."""

import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import yaml
from jsonargparse import Namespace, _loaders_dumpers, set_parsing_settings
from jsonargparse._common import parsing_settings
from pytorch_lightning import LightningModule
from pytorch_lightning.cli import LightningArgumentParser

from results.errors import UserError, near
from results.settings import leaves, read_yaml
from training.config import Bounded, BoundedLoader, SettingsError, in_a_line
from training.faults import wait_for_the_first

# Unclear messages of jsonargparse. tests/training/test_parsing.py provokes each of them.
_REQUIRED = re.compile(r"the following arguments are required: ([\w, ]+);? Given value")
_LITERAL = re.compile(r"a typing\.Literal\[([^\]]*)\]")
_NO_MODEL = re.compile(r"the following arguments are required: (\w+\.)?model\b.*")
_UNKNOWN = re.compile(r"(?:Option|does not accept option) '([^']+)'|(?<=unrecognized arguments: )--([\w.-]+)")
_CLASS = re.compile(r"(?:Expected a dot import path string: |has no attribute ')(\w+)")
_DENIED = re.compile(r"Importing '([\w.]+)' is not allowed")
_KEY = re.compile(r'Parser key "([^"]+)":\s*')
_GONE = {
    "preflight": "; try the command on one batch of each split with --trainer.fast_dev_run true",
    "data.init_args.rank_timeout": "; leave it out: processes wait for each other as long as it takes",
}
"""Former options, with the remedy."""
_FORMER_ROOMS = ("analysis", "heads", "interventions")
_IN_CLASS = re.compile(r"Problem with given class_path '[\w.]*?(\w+)':")


class _Loader(Bounded, _loaders_dumpers.get_yaml_default_loader()):  # type: ignore[misc]
    """Loader of jsonargparse, which also reads texts within settings as YAML."""


_loaders_dumpers.yaml_default_loader = _Loader  # type: ignore[assignment]


class Parser(LightningArgumentParser):
    """Parser of command lines and configs that reports an error in one line.

    Abbreviated options are refused, also inside a class: --trainer.max_ep does not set --trainer.max_epochs.
    """

    silent: ClassVar[bool] = False
    """True during a parse whose errors are not shown; it then waits for no other process."""

    def __init__(self, *, allow_abbrev: bool = False, **options: Any) -> None:  # noqa: ANN401
        super().__init__(allow_abbrev=allow_abbrev, **options)
        self._file = ""  # being read

    def parse_args(self, args: Any = None, *rest: Any, **options: Any) -> Any:  # noqa: ANN401
        """Parse the words of a command line, and return its settings."""
        if args and len(args) == 1 and args[0].endswith("=None"):
            # An option of a dataclass inside a class: jsonargparse 4.53 has read `null`, and asks for Python's word.
            args = [f"{args[0].removesuffix('None')}null"]
        return super().parse_args(args, *rest, **options)

    def parse_path(self, path: str, *args: Any, **options: Any) -> Namespace:  # noqa: ANN401
        """Parse a config file and return its settings.

        Raises:
            SettingsError: The file cannot be read, or its content does not have the form of a config.
        """
        if Path(path).is_file():  # not a pipe, which can be read only once
            check_settings(path, read_yaml(Path(path)))
        self._file = f"{path}: "
        try:
            found: Namespace = super().parse_path(path, *args, **options)
        finally:
            self._file = ""
        return found

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print an error message and exit with code 2; raise an error instead if `exit_on_error` is False."""
        names = [action.dest for action in (getattr(ex, "subcommand_parser", None) or self)._actions]
        message = _NO_MODEL.sub("no model is named: give --config one of configs/, or --model", message)
        if "did you mean" not in message and (unknown := _UNKNOWN.search(message)):
            name = unknown[1] or unknown[2]
            message += _GONE.get(name) or near(name, names, "" if unknown[1] else "--")
        if not self.exit_on_error:
            super().error(message, ex)
        if not self.silent:
            wait_for_the_first()
            sys.stderr.write(f"error: {self._file}{explained(message)}\n")
        self.exit(2)


@contextmanager
def silent_parser() -> Iterator[None]:
    """Suppress all output in a `with` block; an error in a command line still ends its parsing."""
    Parser.silent = True
    try:
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            yield
    finally:
        Parser.silent = False


def explained(message: str) -> str:
    """Return an error message of jsonargparse rewritten in one line: option, class, error and remedy."""
    keys = ".".join(_KEY.findall(message))
    inside = f" ({classes[-1]})" if (classes := _IN_CLASS.findall(message)) else ""
    if denied := _DENIED.search(message):
        module, _, name = denied[1].rpartition(".")
        fault = f"{denied[1]} is in an external package, which only the command line may allow"
        fault = f"{fault}. If you trust it, {remedy(module)}"
        if module.partition(".")[0] in _FORMER_ROOMS:
            fault = f"{denied[1]} is now measures.{name}"
    elif found := _CLASS.search(message):
        rooms = [vars(sys.modules[room]) for room in ROOMS if room in sys.modules]
        known = {name: value for room in rooms for name, value in room.items() if isinstance(value, type)}
        fault = f"there is no class {found[1]}{near(found[1], known)}"
        if found[1] in known:
            verb = "fit" if issubclass(known[found[1]], LightningModule) else "measure"
            fault = f"{found[1]} cannot be used here: it is run with `python train.py {verb}`"
            fault = fault if keys == "model" else f"{found[1]} cannot be used here"
    elif missing := _REQUIRED.search(in_a_line(message)):
        fault = " and ".join(f"--{keys}.init_args.{name}" for name in missing[1].split(", ")) + " must be given"
    else:
        fault = _LITERAL.sub(r"one of \1", in_a_line(_IN_CLASS.sub("", _KEY.sub("", message))))
        if inside in (" (LightningModule)", " (LightningDataModule)"):
            inside, fault = "", f"{fault}, as no class is named before it: give --config or --{keys} first"
    return f"{keys}{inside}: {fault}" if keys or inside else fault


def check_settings(path: str, settings: object, at: str = "") -> None:
    """Check that a config is a mapping in which only `init_args` and `dict_kwargs` stand beside a `class_path`.

    Args:
        path: Path of the file, for error messages.
        settings: Content of the config, or a part of it.
        at: Dotted name of this part.

    Raises:
        SettingsError: The config has another form.
    """
    if not at and not isinstance(settings, Mapping):
        found = "empty" if settings is None else "a list" if isinstance(settings, list) else f"{str(settings)[:40]!r}"
        raise SettingsError(
            f"{path} is {found}, but must be a mapping, such as `model: …` and `data: …`. Give --config one of "
            "configs/."
        )
    if isinstance(settings, Mapping):
        strange = [name for name in settings if name not in ("class_path", "init_args", "dict_kwargs")]
        if "class_path" in settings and strange:
            of = f" of `{at}`" if at else ""
            raise SettingsError(
                f"{path}: `{strange[0]}` stands beside the class_path{of}{near(strange[0], ['init_args'])}: the "
                f"arguments of a class stand under `init_args`."
            )
    if isinstance(settings, Mapping | list):
        for key, inner in settings.items() if isinstance(settings, Mapping) else enumerate(settings):
            check_settings(path, inner, f"{at}.{key}" if at else str(key))


ROOMS = (
    *("attention", "corpora", "datamodules", "fidelity"),
    *("measures", "models", "probes", "commands.writer"),
)
"""Packages of this program with classes that settings may name."""
LIBRARIES = ("pytorch_lightning", "torch.optim", "training.stopping")
PERMISSIONS = frozenset({"allow_pickle"})
"""Options that let a file run code. Only the command line or a caller in Python may set them."""


_REMEDY = ContextVar("remedy for a module that is not trusted", default="import {} first")


def remedy(module: str) -> str:
    """Return advice, for an error message, on how to make a module trusted.

    Settings may name only classes of trusted modules. The advice is to import the module in Python,
    or within `only_known_classes` the argument `how`, for instance to use `--trust`.

    Args:
        module: Name of the module.
    """
    return _REMEDY.get().format(module)


@contextmanager
def only_known_classes(trusted: Iterable[str] = (), *, how: str | None = None) -> Iterator[None]:
    """Within the block, let parsers import only classes of known modules.

    These are the modules of this program, Lightning, `torch.optim`, and the `trusted` ones. Other classes are
    refused because importing a class runs the code of its module.

    Args:
        trusted: Names of modules.
        how: Advice for error messages on how to make a module trusted, with `{}` for its name.
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
    """Yield the dotted name of each option of a command line, and its value parsed as YAML."""
    for word, following in zip(words, [*words, "--"][1:], strict=True):
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
            value = value if given or following.startswith("--") else following
            try:
                yield name.removesuffix("+"), yaml.load(value, BoundedLoader)
            except (yaml.YAMLError, ValueError, RecursionError):  # of an impossible date; of brackets without end
                yield name.removesuffix("+"), value


def trusted_modules(words: Sequence[str]) -> set[str]:
    """Return the names of the modules and packages whose classes a command line allows to be imported.

    They are the values of `--trust`, and the top-level package of each class that the command line
    names.

    A dotted value is taken for a class if it belongs to --model, --data or a `class_path`, or if its
    last part begins with a capital letter. Other values, such as `my.corpus`, and names of existing
    files are not. Classes that every config may name add nothing: `torch.optim.SGD` does not add torch.

    Args:
        words: Words of the command line.
    """
    found, known = set[str](), tuple(f"{module}." for module in (*ROOMS, *LIBRARIES))
    for option, value in typed_options(words):
        for name, leaf in leaves(value, option):
            # `Path.exists` raises for text that can be no path. The folder of a trusted package may lie here.
            if not isinstance(leaf, str) or (option != "trust" and os.path.exists(leaf)) or leaf.startswith(known):
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


def import_trusted(words: Sequence[str]) -> None:
    """Import the modules that a command line names with --trust.

    Raises:
        UserError: A module cannot be imported.
    """
    options = (value for name, value in typed_options(words) if name == "trust")
    for module in (str(leaf) for value in options for _, leaf in leaves(value)):
        try:
            import_module(module)
        except ImportError as error:
            raise UserError(
                f"--trust {module}: the module cannot be imported ({error}). Correct the name, install what is "
                f"missing, or add its folder to PYTHONPATH."
            ) from error


def imported_classes(settings: object) -> set[str]:
    """Return the dotted paths of classes that settings name and that are already imported."""
    found = set[str]()
    for value in (value for _, value in leaves(settings) if isinstance(value, str)):
        module, _, name = value.rpartition(".")
        held = sys.modules.get(module)
        # getattr would also find __class__, and run the __getattr__ of a lazy module.
        if isinstance(kind := vars(held).get(name) if held else None, type):
            paths = (value, f"{kind.__module__}.{kind.__qualname__}")
            found.update(path for path in paths if all(map(str.isidentifier, path.split("."))))
    return found


def refuse_permissions(settings: Namespace, words: Sequence[str]) -> None:
    """Raise SettingsError if a config file grants a permission that the command line does not grant.

    A permission is an option that lets a file run code, such as `allow_pickle`.

    Args:
        settings: Settings of the run.
        words: Words of the command line.
    """
    on = (name for option, value in typed_options(words) for name, leaf in leaves(value, option) if leaf is True)
    given = {name.replace(".init_args", "") for name in on}
    for name, _ in _permissions(settings):
        if name.replace(".init_args", "") not in given:
            raise SettingsError(
                f"{name} is true in a config file, but only the command line may allow that. If you trust the "
                f"file that it opens, add --{name} true."
            )


def without_permissions(settings: Namespace) -> Namespace:
    """Set all permissions in the settings of a file to False, in place, and return the settings.

    A permission is an option that lets a file run code, such as `allow_pickle`.
    """
    for name, held in _permissions(settings):
        held[name.rpartition(".")[2]] = False
    return settings


def _permissions(node: object, at: str = "") -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the dotted name of each granted permission in parsed settings, with the mapping that holds it."""
    held = vars(node) if isinstance(node, Namespace) else node
    if isinstance(held, dict | list):
        for key, inner in held.items() if isinstance(held, dict) else enumerate(held):
            name = f"{at}.{key}" if at else str(key)
            if isinstance(held, dict) and key in PERMISSIONS and inner is True:
                yield name, held
            yield from _permissions(inner, name)
