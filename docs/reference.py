"""Hook of `mkdocs.yml` that writes the API reference: a page for each package of the project, and one for all configs.

The page of a package documents the names that its `__init__.pyi` exports, in their order, or its modules if it exports
none. The page of the configs has the comment at the head of each config.
"""

import ast
from itertools import takewhile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
NAME = "attention_probing"
ROOMS = (
    "attention",
    "datamodules",
    "probes",
    "models",
    "measures",
    "fidelity",
    "metrics",
    "results",
)
AFTER_OTHERS = "---\nsearch:\n  boost: 0.02\n---"
"""Front matter by which a search shows other pages first."""


def exported(room: str) -> list[str]:
    """Return the full names of the exports of a package, each by the module it is in, or of its modules."""
    stub = ROOT / room / "__init__.pyi"
    if not stub.is_file():
        return [f"{NAME}.{room}.{path.stem}" for path in sorted((ROOT / room).glob("[a-z]*.py"))]
    nodes = [node for node in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    return [f"{NAME}.{room}.{node.module}.{alias.name}" for node in nodes for alias in node.names]


def page(room: str) -> str:
    """Return the Markdown of a package's page: its docstring, and a line of mkdocstrings for each name."""
    told = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8")))
    return "\n\n".join([AFTER_OTHERS, f"# {room}", str(told), *(f"::: {name}" for name in exported(room))])


def described(config: Path) -> str:
    """Return the text of the comment at the head of a config, up to the command to run it."""
    lines = config.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("# ") and not line.startswith("#   "), lines)
    return " ".join(line.removeprefix("# ") for line in comment)


def configs_page() -> str:
    """Return the Markdown of the page of all configs, with one table per folder."""
    text = [AFTER_OTHERS, "# configs", "Every config that is shipped. `probing --help` lists the ones it runs."]
    for folder in sorted({path.parent for path in CONFIGS.rglob("*.yaml")}):
        rows = (
            f"| `{path.relative_to(CONFIGS).with_suffix('')}` | {described(path)} |"
            for path in sorted(folder.glob("*.yaml"))
        )
        text += [f"## {folder.relative_to(ROOT)}", "\n".join(["| config | content |", "|---|---|", *rows])]
    return "\n\n".join(text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to `files`, the pages under docs/, and return them."""
    files.append(File.generated(config, "reference/configs.md", content=configs_page()))
    for room in ROOMS:
        files.append(File.generated(config, f"reference/{room}.md", content=page(room)))
    return files
