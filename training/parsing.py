"""The command line's parser: a fault of a command line or a config is one line with the closest valid names."""

import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, ClassVar, NoReturn

from jsonargparse import Namespace
from pytorch_lightning.cli import LightningArgumentParser

from results.errors import near
from training.config import SettingsError, in_a_line, read_yaml
from training.faults import is_told_by_the_first
from training.trust import ROOMS, remedy

# Messages of jsonargparse that are not clear as they are. tests/training/test_parsing.py provokes each of them.
_NO_MODEL = re.compile(r"the following arguments are required: \w+\.model\b.*")
_UNKNOWN = re.compile(r"(?:Option|does not accept option) '([^']+)'|(?<=unrecognized arguments: )--([\w.-]+)")
_CLASS = re.compile(r"(?:Expected a dot import path string: |has no attribute ')(\w+)")
_DENIED = re.compile(r"Importing '([\w.]+)' is not allowed")
_KEY = re.compile(r'Parser key "([^"]+)":\s*')
_IN_CLASS = re.compile(r"Problem with given class_path '[\w.]*?(\w+)':")


class Parser(LightningArgumentParser):
    """Reports a fault of a command line or a config in one line.

    An option that is cut short is unknown, also inside a class: --trainer.max_ep is not taken for --trainer.max_epochs.
    """

    silent: ClassVar[bool] = False
    """Whether a fault ends the parsing without a word: the same line is parsed once more, and that tells it."""

    def __init__(self, *, allow_abbrev: bool = False, **options: Any) -> None:  # noqa: ANN401
        super().__init__(allow_abbrev=allow_abbrev, **options)
        self._file = ""  # that is being read

    def parse_path(self, path: str, *args: Any, **options: Any) -> Namespace:  # noqa: ANN401
        """Parse a config.

        Raises:
            SettingsError: it is no YAML of settings in UTF-8, or has other entries beside a `class_path`.
        """
        if Path(path).is_file():  # and no pipe, which can be read once
            check_settings(path, read_yaml(Path(path)))
        self._file = f"{path}: "
        try:
            found: Namespace = super().parse_path(path, *args, **options)
        finally:
            self._file = ""
        return found

    def format_help(self, *args: Any) -> str:  # noqa: ANN401 # those of argparse
        """Describe the commands and list the configs; below a command, its options."""
        with_commands = any(action.dest == "subcommand" for action in self._actions)
        return overview(get_terminal_size().columns) if with_commands else str(super().format_help(*args))

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the message and exit with code 2; the parser of a class raises instead."""
        names = [action.dest for action in (getattr(ex, "subcommand_parser", None) or self)._actions]
        message = _NO_MODEL.sub("no model is named: give --config one of configs/, or --model", message)
        if unknown := _UNKNOWN.search(message):
            message += near(unknown[1] or unknown[2], names, "" if unknown[1] else "--")
        if not self.exit_on_error:
            super().error(message, ex)
        if not self.silent and not is_told_by_the_first():
            sys.stderr.write(f"error: {self._file}{explained(message)}\n")
        self.exit(2)


def explained(message: str) -> str:
    """Return a message of jsonargparse in a line: option, class and fault, with what to do about a class path."""
    keys = ".".join(_KEY.findall(message))
    inside = f" ({classes[-1]})" if (classes := _IN_CLASS.findall(message)) else ""
    if denied := _DENIED.search(message):
        module = denied[1].rpartition(".")[0]
        fault = f"{denied[1]} is of another program, and no file may import it. If you trust it, {remedy(module)}"
    elif found := _CLASS.search(message):
        rooms = [vars(sys.modules[room]) for room in ROOMS if room in sys.modules]
        known = (name for room in rooms for name, value in room.items() if isinstance(value, type))
        fault = f"there is no class {found[1]}{near(found[1], known)}"
    else:
        fault = in_a_line(_IN_CLASS.sub("", _KEY.sub("", message)))
        if inside in (" (LightningModule)", " (LightningDataModule)"):
            inside, fault = "", f"{fault}, as no class is named before it: give --config or --{keys} first"
    return f"{keys}{inside}: {fault}" if keys or inside else fault


def check_settings(path: str, settings: object, at: str = "") -> None:
    """Check the form of a config, which names no option that no class has.

    Raises:
        SettingsError: it is no mapping, or has other entries beside a `class_path` than its arguments.
    """
    if not at and not isinstance(settings, Mapping):
        kind = "empty" if settings is None else "a list" if isinstance(settings, list) else "text"
        raise SettingsError(
            f"{path} is {kind}, and a config is a mapping: `model: …` and `data: …`, each on a line of its own. Give "
            f"--config one of configs/."
        )
    if isinstance(settings, Mapping):
        strange = [name for name in settings if name not in ("class_path", "init_args", "dict_kwargs")]
        if "class_path" in settings and strange:
            raise SettingsError(
                f"{path}: `{strange[0]}` stands beside the class_path of `{at}`{near(strange[0], ['init_args'])}: the "
                f"arguments of a class stand under `init_args`."
            )
    if isinstance(settings, Mapping | list):
        for key, inner in settings.items() if isinstance(settings, Mapping) else enumerate(settings):
            check_settings(path, inner, f"{at}.{key}" if at else str(key))


CONFIGS = Path(__file__).parents[1] / "configs"
HELP = """\
usage: python train.py {fit,validate,test,predict} --config CONFIG [options]

  fit       train a model, keep the best checkpoint, test it on the test split
  validate  score a checkpoint on the dev split
  test      score a checkpoint on the test split, or run what needs no training
  predict   write the predictions of a checkpoint for the test split

A config is a published experiment; options change parts of it:

  python train.py fit --config configs/demo.yaml
  python train.py test --config configs/clark2019/heads.yaml \\
      --data.init_args.corpus 'my-{split}.conllu' --preflight
  python train.py fit --help                 options of every run
  python train.py fit --data.help DependencyDataModule
                                             options of a class of --data

Configs, each configs/FOLDER/NAME.yaml:
"""


def overview(columns: int) -> str:
    """Return the help of train.py: its commands, and the configs that it runs by their folders."""
    names: dict[str, list[str]] = {}
    for path in sorted(CONFIGS.rglob("*.yaml")):
        if re.search("^model:", path.read_text(encoding="utf-8"), re.MULTILINE):
            names.setdefault(path.parent.relative_to(CONFIGS).as_posix(), []).append(path.stem)
    width = max(map(len, names), default=0)
    lines = [
        textwrap.fill(
            ", ".join(stems), columns, initial_indent=f"  {folder:{width}}  ", subsequent_indent=" " * (width + 4)
        )
        for folder, stems in names.items()
    ]
    return "\n".join([HELP, *lines, "", "Many runs: python -m sweeps.run --help. Documentation: docs/index.md.", ""])
