"""Executes the notebooks of examples/: `python -m tests.notebooks` does so in place, and a test compares."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
INSTALL = '%pip install -q "attention-probing[demo] @ git+https://github.com/attention-probing/attention-probing"'
"""First cell of a notebook that runs on a fresh kernel of a hosted service; it is not executed here."""
SECONDS = 300
"""Most seconds of a cell."""
NUMBER = re.compile(r"(?<![\w.])-?\d*\.?\d+(?:e[-+]?\d+)?")


def read(path: Path) -> NotebookNode:
    """Read a notebook."""
    return cast(NotebookNode, nbformat.read(path, as_version=4))  # type: ignore[no-untyped-call]


def executed(path: Path, folder: Path) -> NotebookNode:
    """Execute a notebook in a folder, and return it with the results of its cells, without printed progress.

    The kernel runs in the folder, with the package that is installed. The cell that would install the published one
    is not executed.
    """
    notebook = read(path)
    first = notebook.cells[0]
    installs = first.source == INSTALL
    if installs:
        first.source = "# The package is installed."
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", record_timing=False, resources=place).execute()
    if installs:
        first.source = INSTALL
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        cell.outputs = [output for output in cell.outputs if output.output_type == "execute_result"]
        cell.metadata = {}
    return notebook


def results(notebook: NotebookNode) -> list[tuple[list[str], list[float]]]:
    """Return the results of the cells as plain text: their words, with # for each number, and their numbers."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    texts = [output["data"]["text/plain"] for output in outputs]
    return [(NUMBER.sub("#", text).split(), [float(number) for number in NUMBER.findall(text)]) for text in texts]


if __name__ == "__main__":
    for path in NOTEBOOKS:
        with TemporaryDirectory() as folder:
            nbformat.write(executed(path, Path(folder)), path)  # type: ignore[no-untyped-call]
