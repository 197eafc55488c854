"""Writes the figures of a run into its folder."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from attention_probing.results.figures import ColouredTexts, Figure
from attention_probing.results.files import csv_text, is_full, write_atomically
from attention_probing.results.fonts import one_warning_for_letters
from attention_probing.results.record import Record, TableColumns
from attention_probing.results.texts import html_page

FIGURES_FOLDER = "figures"
"""Folder of the figures in the folder of a run."""
_ENDINGS = ("png", "pdf", "html", "data.csv")


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


DEFAULT_FILES = FigureFiles()


def write_figures(folder: Path, figures: Mapping[str, Figure], record: Record, options: FigureFiles) -> dict[str, str]:
    """Draw figures into the run folder, and add the names of their files to `results.json`.

    Args:
        folder: The run folder.
        figures: Figures by name.
        record: The record of the run; it takes the names of the files.
        options: Files of each figure.

    Returns:
        Error messages for figures that could not be drawn, by name of the figure.

    Raises:
        OSError: The disk is full, or `results.json` cannot be written.
    """
    faults: dict[str, str] = {}
    if options.formats:
        with one_warning_for_letters():
            faults = _write_each(folder, figures, record, options)
    record.save(folder)
    return faults


def _write_each(folder: Path, figures: Mapping[str, Figure], record: Record, options: FigureFiles) -> dict[str, str]:
    """Write the files of each figure; return error messages by name of the figure, as `write_figures` does."""
    faults: dict[str, str] = {}
    for name, figure in figures.items():
        try:
            _write_figure(folder, name, figure, record, options)
        except Exception as error:  # the scores are already written: an error in a drawing must not end the run
            faults[name] = f"{type(error).__name__}: {error}"
            for ending in _ENDINGS:  # remove incomplete files
                (folder / FIGURES_FOLDER / f"{name}.{ending}").unlink(missing_ok=True)
            if isinstance(error, OSError) and is_full(error):
                error.filename = error.filename or str(folder / name)
                raise
    return faults


def _write_figure(folder: Path, name: str, figure: Figure, record: Record, options: FigureFiles) -> None:
    """Write the files of one figure, and enter them into the record."""
    (folder / FIGURES_FOLDER).mkdir(exist_ok=True)
    table = figure.data()  # in any case: it refuses numbers that do not fit each other
    ending = _draw_figure(folder / FIGURES_FOLDER / name, figure, options)
    if table is not None and "csv" in options.formats:
        file = f"{FIGURES_FOLDER}/{name}.data.csv"
        write_atomically(folder / file, csv_text(table.frame))
        record.columns[f"{name}.data"] = TableColumns.from_table(table)
        record.figure_data[name] = file
    if ending is not None:
        record.figures[name] = f"{FIGURES_FOLDER}/{name}.{ending}"


def _draw_figure(stem: Path, figure: Figure, options: FigureFiles) -> str | None:
    """Write the picture of a figure, and return its ending; None if no format is a picture."""
    if isinstance(figure, ColouredTexts):
        write_atomically(stem.with_name(f"{stem.name}.html"), html_page(figure))
        return "html"
    from matplotlib import rc_context

    from attention_probing.results.drawing import DOTS, STYLE, draw, print_area

    untitled = replace(figure, title="")
    # Without dates and versions equal data give equal bytes.
    with rc_context(STYLE):
        if "png" in options.formats:
            canvas = draw(figure if options.titles else untitled)
            canvas.savefig(f"{stem}.png", dpi=DOTS, bbox_inches="tight", metadata={"Software": None})
        if "pdf" in options.formats:
            canvas = draw(untitled)  # for a paper, which has a caption
            undated = {"CreationDate": None, "Creator": None, "Producer": None}
            canvas.savefig(f"{stem}.pdf", bbox_inches=print_area(canvas), metadata=undated)
    if "png" in options.formats:
        return "png"
    return "pdf" if "pdf" in options.formats else None
