"""Compiles the LaTeX of results, where there is a LaTeX."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attention_probing.results import Bars, Provenance, Result, Table, Unit
from attention_probing.results.citations import format_citations, read_citations, read_registry
from attention_probing.results.figure_files import FigureFiles
from attention_probing.results.writer import write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex (Debian: texlive-latex-recommended)"),
]

STRANGE = ("[CLS]", "*", "AT&T", "100 %", "$5 #1", "a_b", "{x}", "~^\\", '<b>|"', "a -- b", "naïve → ≥ 6", "two\nlines")
DOCUMENTS = {
    "one column": r"\documentclass{article}",
    "two columns": r"\documentclass[11pt,twocolumn]{article}\usepackage{times}\usepackage[margin=2.5cm]{geometry}",
}


def table(rows: int, columns: int) -> Table:
    """A table of shares with intervals, p-values and odd names of rows."""
    names = [f"rationale.measure_{place} ↑" for place in range(columns)]
    frame = pd.DataFrame({"relation": [STRANGE[row % len(STRANGE)] for row in range(rows)], "n": range(15, 15 + rows)})
    for name in names:
        frame = frame.assign(**{name: -0.5, f"{name}.low": -0.75, f"{name}.high": np.nan if columns == 1 else -0.25})
    units: dict[str, Unit] = dict.fromkeys(names, "fraction")
    return Table(
        frame.assign(p=0.0001, bits=[1e-7, *[12345.6] * (rows - 1)]),
        units | {"p": "least_p", "bits": "bits"},
        main=("relation", "n"),
    )


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_tables_figures_and_citations_make_a_paper(kind: str, tmp_path: Path) -> None:
    shapes = {"small": (12, 1), "inline": (40, 3), "wide": (22, 30), "long": (55, 2)}
    tables = {name: table(*shape) for name, shape in shapes.items()}
    figures = {"accuracy": Bars("A & B", ("det", "obj"), {"probe": [0.5, 0.6]}, "Accuracy", unit="fraction")}
    data = {"test": {"corpus": "en_ewt", "split": "test", "sentences": 1234}}
    result, pdf = Result("my_probe", {}, tables, figures), FigureFiles(formats=("pdf",))
    assert not write(tmp_path, result, Provenance({"name": "a_b"}, data, {}), figures=pdf)
    known = read_citations()
    (tmp_path / "results.bib").write_text(format_citations([*known["names"], *read_registry()]), encoding="utf-8")
    shown = "".join(rf"\input{{{name}.tex}}\ref{{tab:my_probe-{name}}}" for name in tables)
    (tmp_path / "paper.tex").write_text(
        rf"{DOCUMENTS[kind]}\usepackage[T1]{{fontenc}}\usepackage{{booktabs,graphicx,natbib,url}}\begin{{document}}"
        rf"{shown}\includegraphics{{figures/accuracy.pdf}}\nocite{{*}}\bibliographystyle{{plainnat}}\bibliography{{results}}"
        r"\end{document}",
        encoding="utf-8",
    )

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        said = done.stdout.decode(errors="replace")
        assert done.returncode == 0, said[-2000:]
        return said

    latex = ("pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper")
    run(*latex)
    assert "Warning" not in run("bibtex", "paper")
    run(*latex)
    log = run(*latex)
    # Whole tables on whole pages.
    assert not re.findall(r"Float too large.*|Overfull.*alignment|undefined|multiply", log)
