"""Options of the runs of a sweep: those that its plan sets, and those that the user gives for every run."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from attention_probing.commands.command_line import CommandLine, values_of
from attention_probing.commands.shorthand import SHORT, option_of
from attention_probing.commands.trust import trusted_modules
from attention_probing.models.configs import PERMISSIONS
from attention_probing.results.errors import UserError
from attention_probing.results.settings import leaves

SET_BY_SWEEP = ("config", "seed_everything", "trainer.default_root_dir", "ckpt_path")
"""Options that the sweep itself sets."""

Options = Mapping[str, object]
"""Values of options, by name without dashes."""


def options_of(words: Sequence[str]) -> dict[str, str]:
    """Parse options of a command line, written `--name=value` or `--name value`; return their values by name.

    Args:
        words: Words of the command line.

    Raises:
        UserError: An option has no value.
    """
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        has_value = bool(equals) or (bool(rest) and not rest[0].startswith("--"))
        if not name.startswith("--") or not has_value:
            raise UserError(f"options after `--` need their values: --name=value, not {name!r}")
        if not equals:
            value = rest.pop(0)
        options[name[2:]] = value
    return options


def options_of_run(
    command: str, config: Path, planned: Options, extra: Options, rename: Mapping[str, str | None], where: str
) -> tuple[tuple[str, str], ...]:
    """Return the long names and the texts of the options of a run, sorted by name.

    Args:
        command: Command of the run.
        config: Its config file.
        planned: Options that the plan sets.
        extra: Options that the user gives for every run.
        rename: Names that these have in this run; None if it does not have them.
        where: Location in the plan, for messages.

    Raises:
        UserError: The plan sets an option that it may not set, or one that the classes of the run do not have.
    """
    given = _rename(extra, rename)
    both = {**planned, **given}
    kinds = set[str]()
    if any(f"--{name}" in SHORT for name in both):  # only short names need the config to be read
        words = [f"--{name}={value}" for name, value in both.items()]
        kinds = CommandLine.from_long([command, f"--config={config}", *words]).kinds
    if "AttentionClassifier" in kinds and "encoder" in both:
        raise UserError(f"{where}: its classifier has no pretrained encoder. Give the row `rename: {{encoder: null}}`")
    options = {}
    for name, value in planned.items():
        option = long_name(name, kinds)
        options[option] = _format_value(option, value, where)
    _refuse_permissions(options, extra, where)
    for name, value in given.items():
        option = long_name(name, kinds)
        options[option] = _format_value(option, value, where)
    return tuple(sorted(options.items()))


def _rename(extra: Options, rename: Mapping[str, str | None]) -> dict[str, object]:
    """Return the options that the user gives for every run, under the names that they have in one."""
    in_run = {long_name(name): new for name, new in rename.items()}
    options = {}
    for name, value in extra.items():
        new = in_run.get(long_name(name), name)
        if new is not None:
            options[new] = value
    return options


def long_name(name: str, kinds: Collection[str] = ()) -> str:
    """Return the long form of an option's name, as `data.init_args.corpus` for `data.corpus` or `corpus`.

    Args:
        name: The name, without dashes.
        kinds: Command and classes of the run, which say what a short name stands for; see `CommandLine.kinds`.
    """
    option = option_of(f"--{name}", kinds)
    return re.sub(r"^(data|model)\.(?!(init_args|class_path|dict_kwargs)\b)", r"\1.init_args.", option)


def long_names(name: str) -> set[str]:
    """Return the long forms of an option's name in the runs of any class."""
    of_classes = SHORT.get(f"--{name}", {"": name})
    return {long_name(option) for option in of_classes.values()}


def _refuse_permissions(options: Mapping[str, str], extra: Options, where: str) -> None:
    """Raise UserError if a plan grants a permission or names a class of another program.

    Only the command line may do so, because somebody else may have written the plan.

    Args:
        options: Options of the plan.
        extra: Options that the user gives for every run.
        where: Location in the plan, for messages.
    """
    values = _parse_values(options)
    refused = []
    for option, value in values:
        for name, leaf in leaves(value, option):
            if leaf is True and name.rpartition(".")[2] in PERMISSIONS:
                refused.append(f"--{name} true")
    for module in sorted(trusted_modules(values) - trusted_modules(_parse_values(extra))):
        if find_spec(module.partition(".")[0]):
            refused.append(f"--trust {module}")
    if refused:
        raise UserError(
            f"{where}: only the command line may set {refused[0]}. If you trust the plan, add `-- {refused[0]}` to the "
            "command line"
        )


def _parse_values(options: Options) -> list[tuple[str, object]]:
    """Return the names of options with their values, parsed as on a command line."""
    return list(values_of([f"--{name}={value}" for name, value in options.items()]))


def _format_value(name: str, value: object, where: str) -> str:
    """Return the value of an option as text for the command line."""
    if name in SET_BY_SWEEP:
        short = " (checkpoints)" if name == "ckpt_path" else ""
        raise UserError(f"{where}: `{name}`{short} is set by the sweep itself. Leave it out")
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise UserError(
            f"{where}: `set` gives {name} the value {value}, which cannot be written on a command line. Write it as "
            "text, in quotes"
        ) from None
