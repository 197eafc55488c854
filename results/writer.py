"""Writes a result into its run folder, and prints its tables."""

import io
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, cast

import pandas as pd
from rich.console import Console
from rich.text import Text

from attention_probing import __version__
from attention_probing.results import FEW, ColouredTexts, Figure, Provenance, Result
from attention_probing.results.citations import BIBLIOGRAPHY, cite_folder
from attention_probing.results.digests import RECORD, source_digest
from attention_probing.results.errors import list_first, pluralize
from attention_probing.results.files import csv_text, is_full, write_atomically
from attention_probing.results.page import PAGE, write_page
from attention_probing.results.record import SCHEMA, Columns, Record, to_json
from attention_probing.results.tables import (
    LEGEND,
    NO_INTERVAL,
    WHY_NO_INTERVAL,
    audit_text,
    data_table,
    lacks_interval,
    latex_table,
    list_few,
    main_scores,
    score_cell,
    scores_table,
)
from attention_probing.results.texts import html_page

SPLITS = ("train", "dev", "test")
MOST_CORPORA = 3  # most corpora in a caption
TABLES, FIGURES = "tables", "figures"  # folders of a run: of the tables that are not printed, and of the figures
PACKAGES = ("torch", "pytorch-lightning", "transformers", "torchmetrics", "numpy")


@dataclass(frozen=True)
class FigureFiles:
    """Files of the figures of a run.

    Attributes:
        titles: True to draw titles on PNG figures; `results.json` has them as captions in any case.
        formats: Files of each figure: `png`, which the page shows, `pdf`, and `csv` with the numbers drawn; none if
            there are none. Coloured texts are a page of HTML in any format.
    """

    titles: bool = True
    formats: tuple[Literal["png", "pdf", "csv"], ...] = ("png",)


def publish(
    folder: Path,
    result: Result,
    provenance: Provenance,
    *,
    limit: float | None = None,
    figures: FigureFiles = FigureFiles(),
    quiet: bool = False,
    console: Console | None = None,
) -> None:
    """Write a result into a run folder, print it, then draw its figures and make `page.html`.

    `results.json` is written after the tables and before anything is printed, so that nothing is lost if printing
    fails. It is written again when the figures are drawn.

    Args:
        folder: The run folder.
        result: The result.
        provenance: Description of encoder and data.
        limit: Number or fraction of test batches that were read; None for all.
        figures: Files of the figures.
        quiet: True to print only the headline scores and the folder.
        console: Console that prints; None for the terminal.

    Raises:
        OSError: Scores or tables cannot be written.
    """
    console = console or Console()

    def show(result: Result, audit: Mapping[str, object]) -> None:
        if result.answer:
            console.print(Text(result.answer, "bold"), end="\n" if quiet else "\n\n", soft_wrap=quiet)
        if not quiet:
            return print_result(result, audit, console)
        for name in result.headline:
            console.print(Text(f"{name} {score_cell(result.scores[name])}"), soft_wrap=True)

    limits = {} if limit is None else {"limit_test_batches": limit}
    result = replace(result, audit={**result.audit, **limits})
    faults = write(folder, result, provenance, figures=figures, show=show)
    warnings = [f"{name} could not be written: {reason}" for name, reason in faults.items()]
    warnings += [f"the scores are of some test batches only: --trainer.{name} {most}" for name, most in limits.items()]
    for line in [*warnings, *cast("list[str]", result.audit.get("warnings", []))]:
        console.print(Text(f"Warning: {line}", "yellow"), soft_wrap=True)
    console.print(Text(f"Written to {folder}"), soft_wrap=True)


def print_result(result: Result, audit: Mapping[str, object], console: Console) -> None:
    """Print the main tables, the main scores and the audit of a result, and name what else was written.

    The main tables are those whose attribute `main` names columns; see `Table`. A score that a column `score` of
    such a table names is not printed again.

    Args:
        result: The result.
        audit: Entries of the audit by name.
        console: Console to print to.
    """
    main = {name: table for name, table in result.tables.items() if table.main}
    tables = [data_table(name, table, f"{name}.csv", console.width) for name, table in main.items()]
    scores, left = main_scores(result.scores, result.headline, result.tables)
    if scores:
        tables.append(scores_table(f"{result.experiment}: scores", scores))
    for table in tables:
        console.print(table)
        console.print()
    if audit:
        console.print(Text(audit_text(audit)))
    if few := list_few(result.scores, result.tables):
        said = f"Warning: fewer than {FEW} items, marked * where printed: {list_first(few)}. Such intervals are wide"
        console.print(Text(said, "yellow"), soft_wrap=True)
    console.print(Text(LEGEND))
    if any(map(lacks_interval, main.values())) or any(NO_INTERVAL in score_cell(one) for one in scores.values()):
        console.print(Text(f"{NO_INTERVAL} {WHY_NO_INTERVAL}."))
    more = {"score": (left, RECORD), "table": (len(result.tables) - len(main), f"{TABLES}/")}
    if others := ", ".join(f"{pluralize(number, kind)} in {place}" for kind, (number, place) in more.items() if number):
        console.print(Text(f"More: {others}."))


def write(
    folder: Path,
    result: Result,
    provenance: Provenance,
    *,
    figures: FigureFiles = FigureFiles(),
    show: Callable[[Result, Mapping[str, object]], None] | None = None,
) -> dict[str, str]:
    """Write all files of a result into a folder: tables, scores, items, figures, `results.bib` and `page.html`.

    Args:
        folder: The run folder.
        result: The result.
        provenance: Description of encoder and data.
        figures: Files of the figures.
        show: Function that prints the result and its audit, after the scores and before the figures are written.

    Returns:
        Error messages for what could not be created, by name of the figure, or by `page.html`.

    Raises:
        OSError: Scores or tables cannot be written, or the disk is full.
    """
    result = with_sources(result, provenance)
    record = write_scores(folder, result, provenance)
    if show is not None:
        show(result, record.audit)
    faults = write_figures(folder, result.figures, record, figures)
    try:
        write_atomically(folder / BIBLIOGRAPHY, cite_folder(folder))
        write_page(folder, result, record, caption(result.experiment, provenance))
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
    stems = {name: name if table.main else f"{TABLES}/{name}" for name, table in result.tables.items()}
    latex = dict[str, str]()
    for name, table in result.tables.items():
        tex = folder / f"{stems[name]}.tex"
        tex.parent.mkdir(exist_ok=True)
        tex.unlink(missing_ok=True)
        words = ": ".join(dict.fromkeys((result.experiment, name))).replace("_", " ")
        title = result.figures[name].title if name in result.figures else words
        if text := latex_table(table, result.experiment, name, caption(title, provenance)):
            latex[name] = write_atomically(tex, text).relative_to(folder).as_posix()
        write_atomically(tex.with_suffix(".csv"), csv_text(table.frame))
    if result.items is not None:
        save_parquet(folder / "items.parquet", result.items)
    seed = os.environ.get("PL_GLOBAL_SEED")  # set by seed_everything
    record = Record(
        schema_version=SCHEMA,
        experiment=result.experiment,
        answer=result.answer,
        numbers=to_json(result.numbers, "result.scores"),
        units={name: score.unit for name, score in result.scores.items()},
        tables={name: f"{stem}.csv" for name, stem in stems.items()},
        latex=latex,
        columns={name: Columns.from_table(table) for name, table in result.tables.items()},
        figures={},
        figure_data={},
        captions={name: figure.title for name, figure in result.figures.items()},
        items_file=None if result.items is None else "items.parquet",
        ratios={name: list(columns) for name, columns in result.ratios.items()},
        shares=list(result.shares),
        audit=to_json(merge_audits(result, provenance), "result.audit"),
        seed=None if seed is None else int(seed),
        encoder=to_json(provenance.encoder, "result.encoder"),
        data=to_json(provenance.data, "result.data"),
        versions=_versions(),
        config="config.yaml" if (folder / "config.yaml").exists() else None,
        checksums={},
    )
    record.save(folder)
    return record


def _versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that compute, and the SHA-256 of this application."""
    versions = {"python": platform.python_version()}
    of_packages = {name: _version(name) for name in PACKAGES}
    return {**versions, **of_packages, "attention-probing": __version__, "source_sha256": source_digest()}


def with_sources(result: Result, provenance: Provenance) -> Result:
    """Return the result with sources in the title of each figure, see `caption`, and with transfer in its answer."""
    figures = {name: replace(one, title=caption(one.title, provenance)) for name, one in result.figures.items()}
    transfer = provenance.data.get("transfer")
    answer = f"{result.answer[:-1]}; {transfer}." if transfer and result.answer else result.answer
    return replace(result, figures=figures, answer=answer)


def caption(title: str, provenance: Provenance) -> str:
    """Return the title of a figure with encoder and corpora added, for instance `… (bert-base-cased; sst2, test)`.

    Names that the title already has are not added again. A corpus whose train and dev replace those of the tested one
    is added. If a corpus has splits, the tested split is added too, unless the title already names a split. If the
    title names one of several corpora, no corpora are added.
    """
    given, encoder = provenance.encoder, _encoder(provenance.encoder)
    if isinstance(before := given.get("before"), Mapping):
        encoder += f" from {_encoder(before)}"
    splits_named = re.search(r"\b(train|dev|test)\b", title) is not None
    tested = list(dict.fromkeys(_tested(provenance.data)))
    corpora = [name if splits_named or split is None else f"{name}, {split}" for name, split in tested]
    if len(corpora) > MOST_CORPORA:
        corpora = [*corpora[: MOST_CORPORA - 1], f"{len(corpora) - MOST_CORPORA + 1} other corpora"]
    parts = {name for name, inner in provenance.data.items() if isinstance(inner, Mapping) and "corpus" in inner}
    if any(_names(title, name) for name in (parts - {*SPLITS}) | {name for name, _ in tested}):
        corpora = []
    sources = dict.fromkeys((encoder, *corpora, str(provenance.data.get("transfer", ""))))
    if not (said := "; ".join(one for one in sources if one and not _names(title, one))):
        return title
    return f"{title[:-1]}; {said})" if title.endswith(")") else f"{title} ({said})".strip()


def _names(title: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", title) is not None


def _encoder(described: Mapping[str, object]) -> str:
    """Return the last part of the name of an encoder, with what is unusual: random weights, or another quantity."""
    name = str(described.get("name", "")).rpartition("/")[2]
    random = "random weights" if described.get("weights") == "random" else ""
    return ", ".join(filter(None, (name, random, str(described.get("quantity", ""))))) if name else ""


def _tested(data: Mapping[str, object], split: str | None = None) -> Iterator[tuple[str, str | None]]:
    """Yield name and split of every tested corpus; the split is None for a corpus without any."""
    if "corpus" in data:
        yield str(data["corpus"]), str(data["split"]) if "split" in data else split
        return
    tested = next((name for name in ("test", "dev", "train") if name in data), None)
    for name, inner in data.items():
        if isinstance(inner, Mapping) and tested in (None, name):
            yield from _tested(inner, tested)


def write_figures(folder: Path, figures: Mapping[str, Figure], record: Record, how: FigureFiles) -> dict[str, str]:
    """Draw figures into the run folder, and add the names of their files to `results.json`.

    Args:
        folder: The run folder.
        figures: Figures by name.
        record: The record, from `write_scores`; it takes the names of the files.
        how: Files of each figure.

    Returns:
        Error messages for figures that could not be drawn, by name of the figure.

    Raises:
        OSError: The disk is full, or `results.json` cannot be written.
    """
    faults = dict[str, str]()
    for name, figure in figures.items() if how.formats else ():
        try:
            (folder / FIGURES).mkdir(exist_ok=True)
            table = figure.data()  # in any case: it refuses numbers that do not fit each other
            suffix = _save_figure(folder / FIGURES / name, figure, how)
            if table is not None and "csv" in how.formats:
                write_atomically(folder / FIGURES / f"{name}.data.csv", csv_text(table.frame))
                record.columns[f"{name}.data"] = Columns.from_table(table)
                record.figure_data[name] = f"{FIGURES}/{name}.data.csv"
            if suffix:
                record.figures[name] = f"{FIGURES}/{name}.{suffix}"
        except Exception as error:  # the scores are already written: an error in a drawing must not end the run
            faults[name] = f"{type(error).__name__}: {error}"
            for suffix in ("png", "pdf", "html", "data.csv"):  # remove incomplete files
                (folder / FIGURES / f"{name}.{suffix}").unlink(missing_ok=True)
            if isinstance(error, OSError) and is_full(error):
                error.filename = error.filename or str(folder / name)
                raise
    record.save(folder)
    return faults


def save_parquet(path: Path, frame: pd.DataFrame) -> None:
    """Write a frame to a Parquet file atomically."""
    content = io.BytesIO()
    frame.to_parquet(content, index=False)
    write_atomically(path, content.getbuffer())


def merge_audits(result: Result, provenance: Provenance) -> dict[str, object]:
    """Return the entries of two audits, that of the data and that of the experiment, in one mapping.

    If both have an entry of the same name, the entry of the data becomes `data.<name>`.
    """
    shared = provenance.audit.keys() & result.audit.keys()
    inputs = {f"data.{name}" if name in shared else name: value for name, value in provenance.audit.items()}
    return {**inputs, **result.audit}


def _save_figure(stem: Path, figure: Figure, how: FigureFiles) -> str | None:
    """Write a figure, and return the suffix of its picture, if it has one."""
    if isinstance(figure, ColouredTexts):
        write_atomically(stem.with_name(f"{stem.name}.html"), html_page(figure))
        return "html"
    untitled = replace(figure, title="")
    # Without dates and versions equal data give equal bytes.
    from matplotlib import rc_context

    from attention_probing.results.drawing import DOTS, STYLE, draw, print_area

    with rc_context(STYLE):
        if "png" in how.formats:
            canvas = draw(figure if how.titles else untitled)
            canvas.savefig(f"{stem}.png", dpi=DOTS, bbox_inches="tight", metadata={"Software": None})
        if "pdf" in how.formats:
            canvas = draw(untitled)  # for a paper, which has a caption
            undated = {"CreationDate": None, "Creator": None, "Producer": None}
            canvas.savefig(f"{stem}.pdf", bbox_inches=print_area(canvas), metadata=undated)
    return next((one for one in ("png", "pdf") if one in how.formats), None)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
