"""BibTeX entries of what a run or a sweep has used, by the classes and corpora in its configs."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from results.settings import leaves, read_yaml

BIBLIOGRAPHY = "results.bib"
APPLICATION = "attention-probing"
REGISTRY = Path(__file__).resolve().parents[1] / "corpora" / "public.yaml"


def _read(path: Path) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C library may not be there
    found: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), loader)
    return found


@cache
def citations() -> dict[str, Any]:
    """Return the content of `citations.yaml`.

    It has four parts: `entries`, BibTeX entries by key; `classes`, the keys to cite for each class; `own`, classes
    without entries, because they only combine other classes or are new in this application; and `methods`, the papers
    of quantities and rankings in one line, as in the registry of corpora.
    """
    return _read(Path(__file__).with_name("citations.yaml"))


@cache
def registered() -> dict[str, Any]:
    """Return the registry of corpora as data, since the room of its classes lies above this one."""
    return _read(REGISTRY)


def cited(names: Iterable[str]) -> str:
    """Return the BibTeX entries to cite, each once; the last entry is this application.

    Args:
        names: Names of classes, also with their modules, of registered corpora, quantities and rankings; names
            without an entry are skipped.
    """
    known = citations()
    parts = dict.fromkeys(name.rpartition(".")[2] for name in names)
    keys = dict.fromkeys(key for name in parts for key in known["classes"].get(name, ()))
    entries = [known["entries"][key].strip() for key in keys]
    in_one_line = {**registered(), **known["methods"]}
    entries += [_entry(name, in_one_line[name]) for name in parts if name in in_one_line]
    return "\n\n".join([*dict.fromkeys(entries), known["entries"][APPLICATION].strip()]) + "\n"


def cited_in(folder: Path) -> str:
    """Return the BibTeX entries to cite for a run or a sweep, by the configs in its folder; see `cited`."""
    configs = [path for path in (folder / "config.yaml", *sorted(folder.glob("runs/**/config.yaml"))) if path.is_file()]
    return cited(str(value) for path in configs for _, value in leaves(read_yaml(path)))


def _entry(name: str, work: dict[str, str]) -> str:
    """Return the entry of a corpus or method, whose `citation` has authors, year, title and venue in one line."""
    paper, *more = " ".join(work["citation"].split()).replace("&", r"\&").split("; ")
    authors, year, title, venue = re.fullmatch(r"(.+?) (\d{4}), (.+), ([^,]+)", paper).groups()  # type: ignore[union-attr]
    author = authors.replace("et al.", "and others").replace(r"\&", "and")
    fields = {"author": author, "title": f"{{{title}}}", "year": year, "booktitle": venue, "url": work["homepage"]}
    if "key" not in work:
        fields["note"] = "; ".join(["Corpus " + name.replace("_", r"\_"), *more])
    lines = [f"  {field} = {{{value}}}" for field, value in fields.items()]
    return "\n".join([f"@inproceedings{{{work.get('key', name)},", ",\n".join(lines), "}"])
