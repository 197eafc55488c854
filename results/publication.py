"""Publishes the result of a run: writes it into the run folder, and prints its main tables and scores."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.text import Text

from attention_probing.results import FEW, Estimate, Provenance, Result, Table
from attention_probing.results.captions import CaptionSources, add_sources
from attention_probing.results.digests import RECORD
from attention_probing.results.errors import list_first, pluralize
from attention_probing.results.figure_files import DEFAULT_FILES, FigureFiles
from attention_probing.results.tables import (
    LEGEND,
    NO_INTERVAL,
    WHY_NO_INTERVAL,
    audit_text,
    data_table,
    lacks_interval,
    list_few,
    main_scores,
    score_cell,
    scores_table,
)
from attention_probing.results.writer import TABLES_FOLDER, write_drawings, write_scores


def publish(
    folder: Path,
    result: Result,
    provenance: Provenance,
    *,
    limit: float | None = None,
    figures: FigureFiles = DEFAULT_FILES,
    quiet: bool = False,
    silent: bool = False,
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
        quiet: True to print only the headline scores, warnings and the folder.
        silent: True to print only warnings and the folder.
        console: Console that prints; None for the terminal.

    Raises:
        OSError: Scores or tables cannot be written.
    """
    console = console or Console()
    if limit is not None:
        result = replace(result, audit={**result.audit, "limit_test_batches": limit})
    sources = CaptionSources.from_provenance(provenance)
    result = add_sources(result, sources)
    record = write_scores(folder, result, provenance)
    if quiet and not silent:
        print_headline(result, console)
    elif not silent:
        if result.answer:
            console.print(Text(result.answer, "bold"), end="\n\n")
        print_result(result, record.audit, console)
    faults = write_drawings(folder, result, record, figures, sources)
    warnings = [f"{name} could not be written: {reason}" for name, reason in faults.items()]
    if limit is not None:
        warnings.append(f"the scores are of some test batches only: --trainer.limit_test_batches {limit}")
    warnings += cast("list[str]", result.audit.get("warnings", []))
    for warning in warnings:
        console.print(Text(f"Warning: {warning}", "yellow"))
    console.print(Text(f"Written to {folder}"), soft_wrap=True)


def print_headline(result: Result, console: Console) -> None:
    """Print the answer and the scores of the headline, each in a line."""
    if result.answer:
        console.print(Text(result.answer, "bold"), soft_wrap=True)
    for name in result.headline:
        console.print(Text(f"{name} {score_cell(result.scores[name])}"), soft_wrap=True)


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
    tables = []
    for name, table in main.items():
        tables.append(data_table(name, table, f"{name}.csv", console.width))
    scores, other_scores = main_scores(result.scores, result.headline, result.tables)
    if scores:
        tables.append(scores_table(f"{result.experiment}: scores", scores))
    for printed_table in tables:
        console.print(printed_table)
        console.print()
    if audit:
        console.print(Text(audit_text(audit)))
    few = list_few(result.scores, result.tables)
    if few:
        warning = (
            f"Warning: fewer than {FEW} items, marked * where printed: {list_first(few)}. Such intervals are wide."
        )
        console.print(Text(warning, "yellow"))
    console.print(Text(LEGEND))
    if _lacks_intervals(main, scores):
        console.print(Text(f"{NO_INTERVAL} {WHY_NO_INTERVAL}."))
    more = []
    if other_scores:
        more.append(f"{pluralize(other_scores, 'score')} in {RECORD}")
    other_tables = [f"{name}.csv" for name in result.tables if name not in main]
    if other_tables:
        more.append(f"{list_first(other_tables)} in {TABLES_FOLDER}/")
    if more:
        console.print(Text(f"More: {', '.join(more)}."))


def _lacks_intervals(tables: Mapping[str, Table], scores: Mapping[str, Estimate]) -> bool:
    """Return True if a number that is printed has no interval, so that the sign for it must be explained."""
    if any(map(lacks_interval, tables.values())):
        return True
    return any(NO_INTERVAL in score_cell(score) for score in scores.values())
