"""The parser of command lines, and what their words allow settings to name and to run."""

import io
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import yaml
from jsonargparse import ArgumentParser, Namespace

from attention_probing.commands.shorthand import SHORT, config_name, options
from attention_probing.models.configs import IS_FILE, LIBRARIES, explained, may_read, only_named_files, permissions_in
from attention_probing.results.errors import UserError, near
from attention_probing.results.progress import wait_for_the_first
from attention_probing.results.settings import PACKAGE, BoundedLoader, SettingsError, leaves, own_class, read_yaml

_NO_MODEL = re.compile(r"the following arguments are required: (\w+\.)?model\b.*")
_UNKNOWN = re.compile(r"(?:Option|does not accept option) '([^']+)'|(?<=unrecognized arguments: )--([\w.-]+)")


class Parser(ArgumentParser):
    """Parser of command lines and configs that reports an error in one line.

    Abbreviated options are refused, also inside a class: --trainer.max_ep does not set --trainer.max_epochs.
    """

    silent: ClassVar[bool] = False
    """True during a parse whose errors are not shown; it then waits for no other process."""

    def __init__(self, *, allow_abbrev: bool = False, **options: Any) -> None:  # noqa: ANN401
        super().__init__(allow_abbrev=allow_abbrev, **options)
        self.epilog = "Short names of the options of the classes: --corpus, --encoder, --checkpoints."
        self._file = ""  # being read

    def parse_args(self, args: Any = None, *rest: Any, **options: Any) -> Any:  # noqa: ANN401
        """Parse the words of a command line, and return its settings."""
        if args and len(args) == 1 and args[0].endswith("=None"):
            # An option of a dataclass inside a class: jsonargparse 4.53 has read `null`, and asks for Python's word.
            args = [f"{args[0].removesuffix('None')}null"]
        words = [str(word) for word in (sys.argv[1:] if args is None else args)]
        texts = [leaf for _, value in typed_options(words) for _, leaf in leaves(value)]
        with only_named_files([*words, *texts]):
            return super().parse_args(args, *rest, **options)

    def parse_path(self, path: str, *args: Any, **options: Any) -> Namespace:  # noqa: ANN401
        """Parse a config file and return its settings.

        Raises:
            SettingsError: The file cannot be read, its content does not have the form of a config, or a config names
                it.
        """
        if not may_read(path):
            raise SettingsError(f"{self._file}config: {path} {IS_FILE}. Give it with --config, if you want it read.")
        if Path(path).is_file():  # not a pipe, which can be read only once
            content = read_yaml(Path(path))  # refuses what would take for ever
            if isinstance(content, Mapping) and content.keys() & {"rows", "grid"}:
                name = config_name(path)
                raise SettingsError(f"{path} is the plan of a sweep. Run it with `probing sweep {name}`.")
        self._file = f"{path}: "
        try:
            found: Namespace = super().parse_path(path, *args, **options)
        finally:
            self._file = ""
        return found

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print an error message and exit with code 2; raise an error instead if `exit_on_error` is False."""
        names = [action.dest for action in (getattr(ex, "subcommand_parser", None) or self)._actions]
        message = _NO_MODEL.sub("no model is named: give --config one of `probing --help`, or --model", message)
        if "did you mean" not in message and (unknown := _UNKNOWN.search(message)):
            names += [] if unknown[1] else [short[2:] for short in SHORT]
            message += near(unknown[1] or unknown[2], names, "" if unknown[1] else "--")
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


def typed_options(words: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Yield the dotted name of each option of a command line, and its value parsed as YAML."""
    for name, value in options(words):
        if name.startswith("--"):
            try:
                yield name[2:].removesuffix("+"), yaml.load(value, BoundedLoader)
            except (yaml.YAMLError, ValueError, RecursionError):  # of an impossible date; of brackets without end
                yield name[2:].removesuffix("+"), value


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
    found, known = set[str](), tuple(f"{module}." for module in (PACKAGE, *LIBRARIES))
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
            elif len(parts) > 1 and of_class and own_class(leaf) is None:
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


def refuse_permissions(settings: Namespace, words: Sequence[str]) -> None:
    """Raise SettingsError if a config file grants a permission that the command line does not grant.

    A permission is an option that lets a file run code, such as `allow_pickle`.

    Args:
        settings: Settings of the run.
        words: Words of the command line.
    """
    on = (name for option, value in typed_options(words) for name, leaf in leaves(value, option) if leaf is True)
    given = {name.replace(".init_args", "") for name in on}
    for name, _ in permissions_in(settings):
        if name.replace(".init_args", "") not in given:
            raise SettingsError(
                f"{name} is true in a config file, but only the command line may allow that. If you trust the "
                f"file that it opens, add --{name} true."
            )
