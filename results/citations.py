"""BibTeX entries of what a run or a sweep has used, by the classes and corpora in its configs."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

APPLICATION = "attention-probing"
REGISTRY = Path(__file__).resolve().parents[1] / "corpora" / "public.yaml"


def _read(path: Path) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C library may not be there
    found: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), loader)
    return found


@cache
def citations() -> dict[str, Any]:
    """Return the content of `citations.yaml`.

    It has three parts: `entries`, BibTeX entries by key; `classes`, the keys to cite for each class; and
    `own`, classes without entries, because they only combine other classes or are new in this application.
    """
    return _read(Path(__file__).with_name("citations.yaml"))


@cache
def registered() -> dict[str, Any]:
    """Return the registry of corpora as data, since the room of its classes lies above this one."""
    return _read(REGISTRY)


def cited(names: Iterable[str]) -> str:
    """Return the BibTeX entries to cite, each once; the last entry is this application.

    Args:
        names: Names of classes, also with their modules, and of registered corpora; names without an entry are
            skipped.
    """
    known = citations()
    parts = dict.fromkeys(name.rpartition(".")[2] for name in names)
    keys = dict.fromkeys(key for name in parts for key in known["classes"].get(name, ()))
    entries = [known["entries"][key].strip() for key in keys]
    entries += [_corpus(name) for name in parts if name in registered()]
    return "\n\n".join([*entries, known["entries"][APPLICATION].strip()]) + "\n"


def _corpus(name: str) -> str:
    """Return the entry of a corpus, whose paper the registry names in one line."""
    corpus = registered()[name]
    title, note = name.replace("_", r"\_"), " ".join(corpus["citation"].split()).replace("&", r"\&")
    lines = [f"  title = {{{title}}},", f"  note = {{{note}}},", f"  url = {{{corpus['homepage']}}}"]
    return "\n".join([f"@misc{{{name},", *lines, "}"])
