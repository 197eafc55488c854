"""Word lists of this package, and its data files: the grammar of the sample, the entries of the registry."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import yaml

_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # libyaml's is eight times as fast; not every build has it


def tables(name: str) -> Mapping[str, Any]:
    """Return the content of a YAML file of this package; every scalar stays text, so that "no" and "on" are words."""
    found: Mapping[str, Any] = yaml.load(files("corpora").joinpath(name).read_text("utf-8"), _LOADER)
    return found


def words(text: str, between: str | None = None) -> tuple[str, ...]:
    """Return the words of a text, or its parts between the signs `between`; empty ones are left out."""
    return tuple(filter(None, map(str.strip, text.split(between))))
