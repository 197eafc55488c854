"""Reading of settings in YAML, as plain data: files of configs and plans."""

from collections.abc import Iterator, Mapping
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

import yaml

from results.errors import UserError

# Options that change no number: output folders, printing, permissions, time limits.
NEUTRAL = (
    "config",
    "resume",
    "quiet",
    "trust",
    "figures",
    *(f"data.init_args.{name}" for name in ("cache", "rank_timeout")),
    *(f"trainer.{name}" for name in ("default_root_dir", "logger", "profiler")),
    *(f"trainer.enable_{name}" for name in ("progress_bar", "model_summary")),
)


def leaves(node: object, at: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted name and the value of each setting in a nested config.

    Args:
        node: The config, or a part of it.
        at: Dotted name of this part.
    """
    if isinstance(node, Mapping | list):
        for key, inner in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from leaves(inner, f"{at}.{key}" if at else str(key))
    else:
        yield at, node


def score_settings(config: object) -> dict[str, object]:
    """Return the settings of a config that affect the scores of a run, by dotted name."""
    return {
        name: value
        for name, value in leaves(config)
        if not name.endswith(".dirpath") and not any(f"{name}.".startswith(f"{one}.") for one in NEUTRAL)
    }


class SettingsError(UserError):
    """Error for a settings file that cannot be read or used."""


MOST = 100_000
"""Largest number of values in a file of settings."""


def _values(node: yaml.Node | None, known: dict[yaml.Node, float]) -> float:
    """Return how many values a node of YAML stands for if aliases are written out; infinite for one in itself."""
    if node not in known:
        known[node] = inf  # until its parts are counted
        inside = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = chain(*inside) if isinstance(node, yaml.MappingNode) else inside
        known[node] = 1 + sum(_values(one, known) for one in parts)
    return known[node]


class Bounded:
    """Mixin of loaders of YAML that refuses text whose aliases stand for more than `MOST` values."""

    def get_single_node(self) -> yaml.Node | None:
        """Return the only document of the text, as a tree in which an alias is the node that it stands for."""
        node: yaml.Node | None = super().get_single_node()  # type: ignore[misc]
        if _values(node, {}) > MOST:
            fault = f"it has more than {MOST:,} values, counting each alias as all that it stands for: remove aliases"
            raise yaml.constructor.ConstructorError(problem=fault)
        return node


class BoundedLoader(Bounded, yaml.SafeLoader):  # type: ignore[misc]
    """Safe loader that is bounded."""


class _Loader(BoundedLoader):
    """Refuses mappings with duplicate names, or with names that are not text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[object]()
        for key, _ in node.value:
            fault = f"the key `{key.value}` occurs twice in one mapping: remove one"
            if not key.tag.endswith((":str", ":merge")):
                fault = f"the key `{key.value}` is not a string: write it in quotes"
            elif key.value not in seen:
                seen.add(key.value)
                continue
            raise yaml.constructor.ConstructorError(problem=fault, problem_mark=key.start_mark)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def read_yaml(path: Path) -> object:
    """Return the content of a YAML file.

    Raises:
        SettingsError: The file cannot be read or is not YAML in UTF-8, or a key occurs twice in a mapping or is not
            a string.
    """
    try:
        with path.open(encoding="utf-8") as file:
            return yaml.load(file, _Loader)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # bad UTF-8, a day that does not exist, deep brackets
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f", line {mark.line + 1}"
        fault = " ".join(str(getattr(error, "problem", None) or error).split())
        raise SettingsError(f"{path}{place} is not valid YAML in UTF-8: {fault}") from None
