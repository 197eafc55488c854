"""BibTeX entries of what a run or a sweep has used, by the classes and corpora in its configs."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from attention_probing.results.settings import leaves, read_yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C library may not be there
BIBLIOGRAPHY = "results.bib"
APPLICATION = "attention-probing"
REGISTRY = Path(__file__).resolve().parents[1] / "corpora" / "public.yaml"


@cache
def read_citations() -> Any:  # noqa: ANN401 - YAML
    """Return the content of `citations.yaml`.

    It has three parts: `entries`, BibTeX entries by key; `names`, the keys to cite for each class, quantity and
    ranking; and `own`, classes without entries, because they only combine other classes or are new in this application.
    """
    return yaml.load(Path(__file__).with_name("citations.yaml").read_text(encoding="utf-8"), _LOADER)


@cache
def read_registry() -> Any:  # noqa: ANN401 - YAML
    """Return the registry of corpora as data, since the room of its classes lies above this one."""
    return yaml.load(REGISTRY.read_text(encoding="utf-8"), _LOADER)


def format_citations(names: Iterable[str]) -> str:
    """Return the BibTeX entries to cite, each once; the last entry is this application.

    Args:
        names: Names of classes, also with their modules, of registered corpora, quantities and rankings; names
            without an entry are skipped.
    """
    citations = read_citations()
    parts = dict.fromkeys(name.rpartition(".")[2] for name in names)
    keys: dict[str, None] = {}  # without repetitions
    for name in parts:
        keys |= dict.fromkeys(citations["names"].get(name, ()))
    entries = [citations["entries"][key].strip() for key in keys]
    for name in parts:
        if name in read_registry():
            entries.append(_entry(name))
    entries.append(citations["entries"][APPLICATION].strip())
    return "\n\n".join(entries) + "\n"


def cite_folder(folder: Path) -> str:
    """Return the BibTeX entries to cite for a run or a sweep, by the configs in its folder; see `format_citations`."""
    names: list[str] = []
    for path in (folder / "config.yaml", *sorted(folder.glob("runs/**/config.yaml"))):
        if path.is_file():
            names.extend(str(value) for _, value in leaves(read_yaml(path)))
    return format_citations(names)


def _entry(name: str) -> str:
    """Return the entry of a corpus, whose `citation` has authors, year, title and venue in one line."""
    corpus = read_registry()[name]
    citation = " ".join(corpus["citation"].split())
    paper, *more = citation.replace("&", r"\&").split("; ")
    authors, year, title, venue = re.fullmatch(r"(.+?) (\d{4}), (.+), ([^,]+)", paper).groups()  # type: ignore[union-attr]
    author = re.sub(r", (?:\\& )?| \\& | (?=et al)", " and ", authors).replace("et al.", "others")
    corpus_name = name.replace("_", r"\_")
    fields = {
        "author": author,
        "title": f"{{{title}}}",
        "year": year,
        "booktitle": venue,
        "url": corpus["homepage"],
        "note": "; ".join([f"Corpus {corpus_name}", *more]),
    }
    lines = [f"  {field} = {{{value}}}" for field, value in fields.items()]
    content = ",\n".join(lines)
    return f"@inproceedings{{{name},\n{content}\n}}"
