"""Reads `results.json` again: scores with their units, and the counts of single items behind them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from results import Estimate, Unit
from results.errors import UserError, near
from results.result import ENDS

NAN = float("nan")
KEYS = ("document", "sentence", "id")  # columns that identify an item
FIRST = 3  # names that a message lists


class RecordError(UserError):
    """Results that cannot be read."""


@dataclass(frozen=True)
class Record:
    """The results of a run."""

    path: Path  # of its `results.json`
    scores: Mapping[str, Estimate]
    epochs: float
    """Epoch of the tested checkpoint, from 1; nan where nothing was trained, or it is unknown."""
    ratios: Mapping[str, Sequence[str]]
    """Numerator and denominator of scores that divide two columns of the items."""
    items: Path | None
    encoder: Mapping[str, object]
    data: Mapping[str, object]  # by split
    source: str | None = None  # digest of the program; None where it is unknown
    experiment: str = ""
    seed: int | None = None
    tables: Mapping[str, str] = field(default_factory=dict)  # files by name

    @property
    def is_sweep(self) -> bool:
        """Whether it is the table of other runs."""
        return f"{self.experiment}_runs" in self.tables

    @property
    def splits(self) -> list[tuple[str, Mapping[str, object]]]:
        """Names and descriptions of the splits of the data."""
        return [(name, said) for name, said in self.data.items() if isinstance(said, Mapping)]

    def counts(self, score: str, *, by_id: bool = False) -> pd.DataFrame:
        """Columns `numerator, denominator` of a score, one row per item, indexed by all columns that identify it.

        `by_id` takes `id` alone where the items have one: sentence numbers differ between encoders where one of them
        leaves out a sentence.

        Raises:
            RecordError: There are no such counts, or their items cannot be told apart.
        """
        if not self.ratios:
            raise RecordError(
                f"{self.path}: the experiment {self.experiment} keeps no counts per item, so its scores cannot be "
                f"compared item by item. Compare runs of probes or of classifiers; reports.load reads all scores"
            )
        if score not in self.ratios or score not in self.scores:
            why = (
                "cannot be compared item by item" if score in self.scores else f"is no score{near(score, self.scores)}"
            )
            known = ", ".join(self.ratios)
            raise RecordError(f"{self.path}: {score} {why}; there are counts per item of: {known}")
        if self.items is None or not self.items.is_file():
            raise RecordError(f"{self.path}: the items of its test, {self.items or 'items.parquet'}, are not there")
        try:
            frame = pd.read_parquet(self.items)
            counts = frame[list(self.ratios[score])].set_axis(["numerator", "denominator"], axis=1).astype(np.float64)
        except (OSError, ValueError, KeyError) as error:
            raise RecordError(f"{self.items} cannot be read: {' '.join(str(error).split())}") from None
        names = ["id"] if by_id and "id" in frame else [name for name in KEYS if name in frame]
        if not names:
            raise RecordError(f"{self.items} does not name its items: it has no column id, sentence or document")
        counts = counts.set_index([frame[name] for name in names])
        if twins := int(counts.index.duplicated().sum()):
            raise RecordError(f"{self.items}: {twins} items repeat the {' and '.join(names)} of others")
        if not np.isfinite(counts.to_numpy()).all():
            raise RecordError(f"{self.items}: a count of {score} is missing or infinite")
        return counts


def find_record(run: Path) -> Record:
    """Read the results of a run from its folder or its `results.json`; a RecordError if there are none."""
    path = run / "results.json" if run.is_dir() else run
    if path.is_file():
        return read_record(path)
    if not run.is_dir():
        raise RecordError(f"{run}: there is no such file or folder")
    below = [str(path.parent) for kind in ("*", "*/*", "*/*/*") for path in sorted(run.glob(f"{kind}/results.json"))]
    hint = f"; below it there are {first_of(below)}" if below else ": no test has ended in it"
    raise RecordError(f"{run}: the folder is there, but has no results.json{hint}")


def first_of(names: Sequence[str]) -> str:
    """List the first names and the number of the others."""
    more = len(names) - FIRST
    return ", ".join(names[:FIRST]) + (f" and {more} more" if more > 0 else "")


def read_record(path: Path) -> Record:
    """Read a `results.json`; a RecordError if it was not written by a run of this application."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        epochs = content["audit"].get("epochs")
        return Record(
            path,
            _estimates(content["scores"], content["units"]),
            float(epochs) if isinstance(epochs, int | float) else NAN,
            dict(content["ratios"]),
            None if content["items"] is None else path.parent / content["items"],
            dict(content["encoder"]),
            dict(content["data"]),
            content["versions"].get("source_sha256"),
            str(content["experiment"]),
            content["seed"],
            dict(content["tables"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        fault = f"{type(error).__name__}: {error}"
        raise RecordError(f"{path} is there, but is not what a run writes as its results.json ({fault})") from None


def _estimates(numbers: Mapping[str, float | None], units: Mapping[str, Unit]) -> dict[str, Estimate]:
    """Join the numbers `x`, `x.low`, `x.high`, … to the score `x`."""
    known = {name: NAN if number is None else float(number) for name, number in numbers.items()}
    owned = {f"{name}.{end}" for name in known for end in ENDS}
    return {
        name: Estimate(value, unit=units.get(name, "ratio"), **{end: known.get(f"{name}.{end}") for end in ENDS})
        for name, value in known.items()
        if name not in owned
    }
