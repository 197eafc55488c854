"""The pages of the reference, a page for each room: what `mkdocs.yml` calls while it builds the site.

A room's page has what the room exports, in the order of its `__init__.py`; a room that exports nothing has its modules.
"""

import ast
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ROOMS = (
    "attention",
    "datamodules",
    "heads",
    "probes",
    "models",
    "analysis",
    "interventions",
    "fidelity",
    "metrics",
    "results",
    "reports",
    "pages",
)
AFTER_OTHERS = "---\nsearch:\n  boost: 0.02\n---"
"""What says to the search that the pages about a word come before those of a class."""


def exported(room: str) -> list[str]:
    """The full names of what a room shows, `room.Name`, or of its modules."""
    tree = ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8"))
    names = [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    modules = sorted(path.stem for path in (ROOT / room).glob("[a-z]*.py"))
    return [f"{room}.{name}" for name in names or modules]


def page(room: str) -> str:
    """The Markdown of a room's page, with a line of mkdocstrings for each name."""
    told = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8")))
    return "\n\n".join([AFTER_OTHERS, f"# {room}", str(told), *(f"::: {name}" for name in exported(room))])


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to those under docs/."""
    for room in ROOMS:
        files.append(File.generated(config, f"reference/{room}.md", content=page(room)))
    return files
