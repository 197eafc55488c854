"""The parser of a run's command line: it makes checked settings of the words, once."""

import re
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, Namespace

from attention_probing.commands.command_line import CommandLine, arguments_in
from attention_probing.commands.shorthand import SHORT, config_name
from attention_probing.commands.trust import refuse_permissions
from attention_probing.models.configs import IS_FILE, may_read, only_named_files
from attention_probing.models.parser_messages import explain_error
from attention_probing.results.errors import near
from attention_probing.results.progress import wait_for_the_first, warn
from attention_probing.results.settings import BoundedLoader, SettingsError, leaves, with_new_names

_NO_MODEL = re.compile(r"the following arguments are required: (\w+\.)?model\b.*")
_NO_OPTION_OF_CLASS = re.compile(r"(?:Option|does not accept option) '([^']+)'")
_NO_OPTION = re.compile(r"(?<=unrecognized arguments: )--([\w.-]+)")


class Parser(ArgumentParser):
    """Parser of the options of a run, also of those in configs, that reports an error in one line.

    Abbreviated options are refused, also inside a class: --trainer.max_ep does not set --trainer.max_epochs.
    """

    def __init__(self, *, allow_abbrev: bool = False, **options: Any) -> None:  # noqa: ANN401
        super().__init__(allow_abbrev=allow_abbrev, **options)
        self.epilog = (
            "Short names of the options of the classes: --corpus, --encoder, --checkpoints. With --dry, nothing runs: "
            "memory, disk and time are predicted."
        )
        self._file = ""  # being read

    def parse_line(self, line: CommandLine) -> Namespace:
        """Parse a command line, and return its settings.

        Only the words of the line may name files of settings, and permit files to run code.

        Raises:
            SettingsError: A config names a file of settings, or grants a permission.
        """
        texts: list[object] = list(line.words)
        for _, value in line.values:
            texts.extend(leaf for _, leaf in leaves(value))
        with only_named_files(texts):
            settings: Namespace = self.parse_args(list(line.words[1:]))
        refuse_permissions(settings, line.values)
        _warn_of_left_out(line, settings)
        return settings

    def parse_args(self, args: Any = None, *rest: Any, **options: Any) -> Any:  # noqa: ANN401
        """Parse options, and return the settings; jsonargparse also calls it for an option inside a class."""
        if args and len(args) == 1 and args[0].endswith("=None"):
            # An option of a dataclass inside a class: jsonargparse 4.53 has read `null`, and asks for Python's word.
            args = [f"{args[0].removesuffix('None')}null"]
        return super().parse_args(args, *rest, **options)

    def parse_path(self, path: str, *args: Any, **options: Any) -> Namespace:  # noqa: ANN401
        """Parse a config file and return its settings.

        Raises:
            SettingsError: A config names the file.
        """
        if not may_read(path):
            raise SettingsError(f"{self._file}config: {path} {IS_FILE}. Give it with --config, if you want it read.")
        self._file = f"{path}: "
        try:
            settings: Namespace = super().parse_path(path, *args, **options)
        finally:
            self._file = ""
        return settings

    def parse_string(self, content: str, *args: Any, **options: Any) -> Namespace:  # noqa: ANN401
        """Parse the text of a config, in which options may have the names of version 3.0, and return its settings.

        Raises:
            SettingsError: An option is given under its old and its new name.
        """
        try:
            config = yaml.load(content, BoundedLoader)
        except (yaml.YAMLError, ValueError, RecursionError):
            config = None  # the parser tells the fault
        renamed = with_new_names(config, self._file)
        if renamed is not config:
            content = yaml.safe_dump(renamed, sort_keys=False)
            for (old, _), (new, _) in zip(leaves(config), leaves(renamed), strict=True):
                if old != new:
                    warn(f"{self._file}{old} is now {new}. It is read all the same; write the new name there.")
        settings: Namespace = super().parse_string(content, *args, **options)
        return settings

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print an error message and exit with code 2; raise an error instead if `exit_on_error` is False."""
        message = _NO_MODEL.sub("no model is named: give --config one of `probing --help`, or --model", message)
        if "did you mean" not in message:
            message += self._suggestion(message)
        if not self.exit_on_error:
            super().error(message, ex)
        wait_for_the_first()
        sys.stderr.write(f"Error: {self._file}{explain_error(message)}\n")
        self.exit(2)

    def _suggestion(self, message: str) -> str:
        """Return the options that are similar to the unknown one of an error message; empty without one."""
        names = [action.dest for action in self._actions]
        of_class = _NO_OPTION_OF_CLASS.search(message)
        if of_class:
            return near(of_class[1], names)
        unknown = _NO_OPTION.search(message)
        if unknown:
            names.extend(short.removeprefix("--") for short in SHORT)
            return near(unknown[1], names, "--")
        return ""


def _warn_of_left_out(line: CommandLine, settings: Namespace) -> None:
    """Warn of the options of a config that the class which replaces the class of the config does not take.

    jsonargparse leaves them out in silence.

    Args:
        line: The command line.
        settings: Its settings.
    """
    for path, config in line.files.items():
        if not isinstance(config, Mapping):
            continue
        for part in ("model", "data"):
            chosen = settings.get(part)
            if chosen is None:
                continue
            taken = chosen.get("init_args") or {}
            left_out = [name for name in arguments_in(config.get(part)) if name not in taken]
            if left_out:
                kind = chosen.class_path.rpartition(".")[2]
                warn(
                    f"{kind} does not take these options of the config {config_name(path)}, which are left out: "
                    f"{', '.join(left_out)}."
                )
