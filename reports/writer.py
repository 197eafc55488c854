"""The one callback that writes: an experiment's result becomes files in the run folder and tables in the terminal."""

import dataclasses
import hashlib
import json
import math
import os
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd
import pytorch_lightning as pl
from matplotlib import rc_context
from rich.console import Console
from rich.text import Text

from reports.figures import draw, fonts_for
from reports.page import html_page
from reports.tables import audit_table, data_table, latex_table, scores_table
from results import ColouredTexts, Figure, Provenance, Result
from results.files import write_atomically

SCHEMA = 2
RECORD = "results.json"
ROOMS = (
    "attention",
    "corpora",
    "datamodules",
    "fidelity",
    "heads",
    "metrics",
    "models",
    "probes",
    "reports",
    "results",
    "sweeps",
    "training",
)
PACKAGES = ("torch", "pytorch-lightning", "transformers", "torchmetrics", "numpy", "attention-probing")


@runtime_checkable
class Experiment(Protocol):
    """A module that has a result by the end of `on_test_epoch_end`."""

    result: Result | None


@runtime_checkable
class Sourced(Protocol):
    """A datamodule that says where its batches come from."""

    @property
    def provenance(self) -> Provenance:
        """What encoder and data went in, and what was left out."""
        ...


class ResultWriter(pl.Callback):
    """Writes the module's result when a test ends, and its predictions, on the first process only.

    The run folder receives the tables as CSV and LaTeX, the figures as PNG and PDF or as a page of HTML, the items as
    Parquet. A folder with `results.json`, which names them, has all scores and tables. The tables are printed after it
    is written, so that a closed pipe loses nothing; then the figures are drawn, and it names those that could be.
    Predictions become `predictions.parquet`.

    Attributes:
        folder: The run folder; None takes the logger's, or the trainer's root folder without a logger.
        titles: Whether drawings bear their titles; `results.json` has them in any case, for captions.
    """

    def __init__(self, console: Console | None = None) -> None:
        """Print to `console`, or to the standard output."""
        # No console of our own is kept: it has locks, and spawned processes receive the callback pickled.
        self._console = console
        self.folder: Path | None = None
        self.titles = True

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the predictions, if the module kept any."""
        folder = self._folder(trainer)
        predictions = getattr(pl_module, "predictions", None)
        if trainer.is_global_zero and isinstance(predictions, pd.DataFrame):
            folder.mkdir(parents=True, exist_ok=True)
            predictions.to_parquet(folder / "predictions.parquet", index=False)
            (self._console or Console()).print(Text(f"Written to {folder / 'predictions.parquet'}"), soft_wrap=True)

    def _folder(self, trainer: pl.Trainer) -> Path:
        # Every process has to ask the trainer: Lightning broadcasts the answer.
        return self.folder or Path(trainer.log_dir or trainer.default_root_dir)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the result, print it, then draw its figures; a module without one is named and skipped."""
        folder = self._folder(trainer)
        if not trainer.is_global_zero:
            return
        console = self._console or Console()
        result = pl_module.result if isinstance(pl_module, Experiment) else None
        if result is None:
            console.print(
                Text(f"Warning: {type(pl_module).__name__} has no result after its test: nothing written", "yellow")
            )
            return
        datamodule = getattr(trainer, "datamodule", None)
        sourced = isinstance(datamodule, Sourced)
        provenance = datamodule.provenance if isinstance(datamodule, Sourced) else Provenance({}, {}, {})
        content = write_scores(folder, result, provenance)  # before anything is printed, which may fail
        if not sourced:
            console.print(
                Text(f"Warning: {type(datamodule).__name__} has no provenance: encoder and data unknown", "yellow")
            )
        audit = merged_audit(result, provenance)
        tables = [audit_table(audit)] if audit else []
        tables += [data_table(name, table, f"{name}.csv") for name, table in result.tables.items()]
        tables.append(scores_table(f"{result.experiment}: scores", result.scores))  # last, where the eye falls
        for table in tables:
            console.print(table)
            console.print()
        for name, reason in write_figures(folder, result.figures, content, self.titles).items():
            console.print(Text(f"Warning: figure {name} could not be drawn: {reason}", "yellow"), soft_wrap=True)
        console.print(Text(f"Written to {folder}"), soft_wrap=True)


def write(folder: Path, result: Result, provenance: Provenance, titles: bool = True) -> dict[str, str]:
    """Write all of a result's files: `write_scores`, then `write_figures`, whose faults it returns."""
    return write_figures(folder, result.figures, write_scores(folder, result, provenance), titles)


def write_scores(folder: Path, result: Result, provenance: Provenance) -> dict[str, object]:
    """Write tables, items and `results.json` into `folder`, made if absent; files of the same names are replaced.

    Returns:
        What `results.json` holds; it names no figures yet.

    Raises:
        OSError: Scores or tables cannot be written.
        TypeError: An audit, or the description of encoder or data, holds something that JSON has no form for.
        ValueError: One holds an infinite number.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / RECORD
    # An older run's record must not vouch for a mixture of its files and these.
    record.unlink(missing_ok=True)
    latex = {name: latex_table(table, result.experiment, name) for name, table in result.tables.items()}
    for name, table in result.tables.items():
        table.frame.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n", encoding="utf-8")
        if text := latex[name]:
            (folder / f"{name}.tex").write_text(text, encoding="utf-8", newline="\n")
        else:
            (folder / f"{name}.tex").unlink(missing_ok=True)
    if result.items is not None:
        result.items.to_parquet(folder / "items.parquet", index=False)
    seed = os.environ.get("PL_GLOBAL_SEED")  # what seed_everything leaves behind
    content: dict[str, object] = {
        "schema": SCHEMA,
        "experiment": result.experiment,
        "scores": result.numbers,
        "units": {name: score.unit for name, score in result.scores.items()},
        "tables": {name: f"{name}.csv" for name in result.tables},
        "latex": {name: f"{name}.tex" for name, text in latex.items() if text},
        "figures": {},
        "captions": {name: figure.title for name, figure in result.figures.items()},
        "items": None if result.items is None else "items.parquet",
        "ratios": result.ratios,
        "audit": merged_audit(result, provenance),
        "seed": None if seed is None else int(seed),
        "encoder": provenance.encoder,
        "data": provenance.data,
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in PACKAGES}
        | {"source_sha256": source_digest()},
        "config": "config.yaml" if (folder / "config.yaml").exists() else None,
    }
    _write_record(record, content)
    return content


def write_figures(
    folder: Path, figures: Mapping[str, Figure], content: Mapping[str, object], titles: bool = True
) -> dict[str, str]:
    """Draw the figures into the folder of `write_scores`, and write `results.json` again, to name them.

    Args:
        folder: The run folder.
        figures: Those of the result.
        content: What `write_scores` returned.
        titles: Whether drawings bear their titles, which `results.json` has in any case, under `captions`.

    Returns:
        Why figures could not be drawn, by their names.
    """
    files, faults = _save_figures(folder, figures, titles)
    if files:
        try:
            _write_record(folder / RECORD, {**content, "figures": files})
        except OSError as error:  # the first record stays, with all scores
            faults |= dict.fromkeys(files, f"results.json cannot name it: {error}")
    return faults


def _write_record(record: Path, content: Mapping[str, object]) -> None:
    text = json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(record, text)


def merged_audit(result: Result, provenance: Provenance) -> dict[str, object]:
    """Join what the inputs and the experiment left out; under a name that both use, the inputs' becomes `data.name`."""
    shared = provenance.audit.keys() & result.audit.keys()
    inputs = {f"data.{name}" if name in shared else name: value for name, value in provenance.audit.items()}
    return {**inputs, **result.audit}


def plain(value: object, at: str = "result") -> object:
    """Turn numpy numbers, arrays, tuples and paths into what JSON knows; nan becomes None.

    Raises:
        TypeError: There is no form for a value; the message says where it stands.
        ValueError: A number is infinite.
    """
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist(), at)
    if isinstance(value, float):
        if math.isinf(value):
            raise ValueError(f"{at} is infinite, which strict JSON cannot say")
        return None if math.isnan(value) else value
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner, f"{at}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, f"{at}[{place}]") for place, inner in enumerate(value)]
    raise TypeError(f"{at} is a {type(value).__name__}, which JSON has no form for")


def _save_figures(folder: Path, figures: Mapping[str, Figure], titles: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Write what can be drawn: the files to look at, and why others are missing, both by the figures' names."""
    files, faults = {}, {}
    drawn = [figure for figure in figures.values() if not isinstance(figure, ColouredTexts)]
    with fonts_for(str(drawn)):
        for name, figure in figures.items():
            try:
                files[name] = _save_figure(folder / name, figure, titles)
            except Exception as error:  # the scores are written: no fault of a drawing may end the run
                faults[name] = f"{type(error).__name__}: {error}"
                for suffix in (".png", ".pdf", ".html"):  # half of a figure is none
                    (folder / f"{name}{suffix}").unlink(missing_ok=True)
    return files, faults


def _save_figure(stem: Path, figure: Figure, title: bool) -> str:
    """Write a figure and return the name of the file to look at."""
    if isinstance(figure, ColouredTexts):
        page = f"{stem.name}.html"
        (stem.parent / page).write_text(html_page(figure), encoding="utf-8", newline="\n")
        return page
    canvas = draw(figure if title else dataclasses.replace(figure, title=""))
    # Type 42 keeps the text of a PDF as text; publishers refuse the default. Without dates and versions the same data
    # gives the same bytes.
    with rc_context({"pdf.fonttype": 42}):
        canvas.savefig(f"{stem}.png", dpi=200, metadata={"Software": None})
        canvas.savefig(f"{stem}.pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return f"{stem.name}.png"


@cache
def source_digest() -> str:
    """SHA-256 of the program itself: results of two states of it are not to be mixed unnoticed."""
    root, digest = Path(__file__).parent.parent, hashlib.sha256()
    rooms = [
        folder.parent for folder in root.glob("*/__init__.py") if folder.parent.name not in ("benchmarks", "tests")
    ]
    for path in sorted(path for room in rooms for path in room.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
