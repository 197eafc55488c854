"""Writes a result into its run folder: tables, scores, items, figures, and the page that shows them."""

import io
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pandas as pd

from attention_probing import __version__
from attention_probing.results import Provenance, Result
from attention_probing.results.captions import CaptionSources, add_sources
from attention_probing.results.citations import BIBLIOGRAPHY, cite_folder
from attention_probing.results.digests import RECORD, source_digest
from attention_probing.results.figure_files import DEFAULT_FILES, FigureFiles, write_figures
from attention_probing.results.files import csv_text, is_full, write_atomically
from attention_probing.results.latex import latex_table
from attention_probing.results.page import PAGE, write_page
from attention_probing.results.record import SCHEMA_VERSION, Record, TableColumns, to_json

TABLES_FOLDER = "tables"
"""Folder, in the folder of a run, of the tables that are not printed."""
PACKAGES = ("torch", "pytorch-lightning", "transformers", "torchmetrics", "numpy")
"""Packages whose versions a record has."""


def write(
    folder: Path, result: Result, provenance: Provenance, *, figures: FigureFiles = DEFAULT_FILES
) -> dict[str, str]:
    """Write all files of a result into a folder: tables, scores, items, figures, `results.bib` and `page.html`.

    Args:
        folder: The run folder.
        result: The result.
        provenance: Description of encoder and data.
        figures: Files of the figures.

    Returns:
        Error messages for what could not be created, by name of the figure, or by `page.html`.

    Raises:
        OSError: Scores or tables cannot be written, or the disk is full.
    """
    sources = CaptionSources.from_provenance(provenance)
    result = add_sources(result, sources)
    record = write_scores(folder, result, provenance)
    return write_drawings(folder, result, record, figures, sources)


def write_drawings(
    folder: Path, result: Result, record: Record, figures: FigureFiles, sources: CaptionSources
) -> dict[str, str]:
    """Write what a result is shown with: its figures, `results.bib` and `page.html`.

    Args:
        folder: The run folder, with the files of `write_scores`.
        result: The result, with sources in its captions.
        record: The record of the run; it takes the names of the files.
        figures: Files of the figures.
        sources: Encoder and corpora, for the title of the page.

    Returns:
        Error messages for what could not be created, by name of the figure, or by `page.html`.

    Raises:
        OSError: The disk is full.
    """
    faults = write_figures(folder, result.figures, record, figures)
    try:
        write_atomically(folder / BIBLIOGRAPHY, cite_folder(folder))
        write_page(folder, result, record, sources.caption(result.experiment))
    except Exception as error:  # all else is already written: an error of the page must not end the run
        if is_full(error):
            raise
        faults[PAGE] = f"{type(error).__name__}: {error}"
    return faults


def write_scores(folder: Path, result: Result, provenance: Provenance) -> Record:
    """Write tables, items and `results.json` into a run folder.

    Args:
        folder: The run folder.
        result: The result.
        provenance: Description of encoder and data.

    Returns:
        The record that is written, which does not name figures yet.

    Raises:
        OSError: Scores or tables cannot be written.
        TypeError: A value of the audit or the provenance cannot be written as JSON.
        ValueError: A number of the audit or the provenance is infinite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # An older record must not describe a mixture of old and new files.
    (folder / RECORD).unlink(missing_ok=True)
    (folder / PAGE).unlink(missing_ok=True)  # it shows the scores of an older record
    sources = CaptionSources.from_provenance(provenance)
    tables, latex = _write_tables(folder, result, sources)
    items_file = None
    if result.items is not None:
        items_file = "items.parquet"
        save_parquet(folder / items_file, result.items)
    config = "config.yaml" if (folder / "config.yaml").exists() else None
    seed = os.environ.get("PL_GLOBAL_SEED")  # set by seed_everything
    record = Record(
        schema_version=SCHEMA_VERSION,
        experiment=result.experiment,
        answer=result.answer,
        numbers=to_json(result.numbers, "result.scores"),
        units={name: score.unit for name, score in result.scores.items()},
        tables=tables,
        latex=latex,
        columns={name: TableColumns.from_table(table) for name, table in result.tables.items()},
        figures={},
        figure_data={},
        captions={name: figure.title for name, figure in result.figures.items()},
        items_file=items_file,
        ratios={name: list(columns) for name, columns in result.ratios.items()},
        shares=list(result.shares),
        audit=to_json(merge_audits(result, provenance), "result.audit"),
        seed=None if seed is None else int(seed),
        encoder=to_json(provenance.encoder, "result.encoder"),
        data=to_json(provenance.data, "result.data"),
        versions=_versions(),
        config=config,
        checksums={},
    )
    record.save(folder)
    return record


def _write_tables(folder: Path, result: Result, sources: CaptionSources) -> tuple[dict[str, str], dict[str, str]]:
    """Write the tables of a result; return the names of their CSV and of their LaTeX files, by name of the table."""
    tables: dict[str, str] = {}
    latex: dict[str, str] = {}
    for name, table in result.tables.items():
        stem = name if table.main else f"{TABLES_FOLDER}/{name}"
        tables[name] = f"{stem}.csv"
        (folder / tables[name]).parent.mkdir(exist_ok=True)
        write_atomically(folder / tables[name], csv_text(table.frame))
        (folder / f"{stem}.tex").unlink(missing_ok=True)  # of an older record; not every table has one
        text = latex_table(table, result.experiment, name, _caption_of_table(result, name, sources))
        if text is not None:
            latex[name] = f"{stem}.tex"
            write_atomically(folder / latex[name], text)
    return tables, latex


def _caption_of_table(result: Result, name: str, sources: CaptionSources) -> str:
    """Return the first sentence of a table's caption: that of the figure of the same name, or the names in words."""
    if name in result.figures:
        return result.figures[name].title
    words = ": ".join(dict.fromkeys((result.experiment, name)))
    return sources.caption(words.replace("_", " "))


def _versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that compute, and the SHA-256 of this application."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        versions[name] = _version(name)
    versions["attention-probing"] = __version__
    versions["source_sha256"] = source_digest()
    return versions


def save_parquet(path: Path, frame: pd.DataFrame) -> None:
    """Write a frame to a Parquet file atomically."""
    content = io.BytesIO()
    frame.to_parquet(content, index=False)
    write_atomically(path, content.getbuffer())


def merge_audits(result: Result, provenance: Provenance) -> dict[str, object]:
    """Return the audits of the data and of the experiment in one mapping.

    If both have an entry of the same name, the entry of the data becomes `data.<name>`.
    """
    merged = {}
    for name, value in provenance.audit.items():
        key = f"data.{name}" if name in result.audit else name
        merged[key] = value
    return {**merged, **result.audit}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
