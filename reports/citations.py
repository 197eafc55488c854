"""BibTeX of what a run is based on: the protocols of its classes, its corpora, and this application."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from corpora.registry import CORPORA

APPLICATION = "attention-probing"


@cache
def citations() -> dict[str, Any]:
    """Read `citations.yaml`: `entries` by key, the keys of `classes`, and classes that are our `own` work."""
    found: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("citations.yaml").read_text(encoding="utf-8"))
    return found


def cited(classes: Iterable[str], corpora: Iterable[str]) -> str:
    """Return the BibTeX entries of classes and of registered corpora, by their short names, each once.

    Other names have none. The last entry is that of this application.
    """
    known = citations()
    keys = dict.fromkeys(key for name in classes for key in known["classes"].get(name, ()))
    entries = [known["entries"][key].strip() for key in (*keys, APPLICATION)]
    entries[-1:-1] = [_corpus(name) for name in dict.fromkeys(corpora) if name in CORPORA]
    return "\n\n".join(entries) + "\n"


def _corpus(name: str) -> str:
    """Return the entry of a corpus, whose paper the registry names in one line."""
    corpus = CORPORA[name]
    title, note = name.replace("_", r"\_"), " ".join(corpus.citation.split()).replace("&", r"\&")
    lines = [f"  title = {{{title}}},", f"  note = {{{note}}},", f"  url = {{{corpus.homepage}}}"]
    return "\n".join([f"@misc{{{name},", *lines, "}"])
