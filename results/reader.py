"""Reads results back from `results.json`: scores with units, counts per item, and many runs at once."""

import json
import math
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attention_probing.results import Estimate, Unit
from attention_probing.results.digests import RECORD, find_alteration, has_config_checksum
from attention_probing.results.errors import UserError, misfit, near, pluralize
from attention_probing.results.estimates import ENDS, score_rows
from attention_probing.results.files import check_regular, path_below, read_csv
from attention_probing.results.settings import SettingsError, read_yaml, score_settings

NAN = float("nan")
KEYS = ("document", "sentence", "id")  # columns that identify an item
UNITS_OF_ITEMS = ("whole_document", "document")  # columns that say which items belong together, the first that is there
_LONGEST = 1 << 24  # bytes of a results.json
FIRST = 3  # names that a message lists
COLUMNS = ("run", "experiment", "score", "value", *ENDS, "unit", "seed", "encoder", "weights", "epochs")
"""Columns that `load` returns before the options of the runs."""
OPTIONS = ("model", "data", "trainer")


_FORMS: Mapping[str, Any] = {
    **dict.fromkeys(("audit", "encoder", "data", "versions"), dict[str, object]),
    **dict.fromkeys(("tables", "latex", "figures", "figure_data", "captions", "units", "checksums"), dict[str, str]),
    **dict.fromkeys(("items", "config"), str | None),
    **{"schema": int, "experiment": str, "seed": int | None, "scores": dict[str, float | None]},
    "columns": dict[str, dict[str, dict[str, str | list[str]] | list[str] | str | None]],
    "ratios": dict[str, list[str]],
}
"""Type of each entry of a record."""


class RecordError(UserError):
    """Error raised if results do not exist, cannot be read, or do not fit the request."""


@dataclass(frozen=True)
class Record:
    """Results of a run or a sweep, read from `results.json`.

    Attributes:
        path: Path of the `results.json`.
        content: The whole content of this file; entries that older versions did not write are empty.
        scores: Scores by name.
        items: Path of the file with one row per test item; None if there is none.
        source: SHA-256 of the source code of this application that wrote the results.
    """

    path: Path
    content: Mapping[str, Any]
    scores: Mapping[str, Estimate]
    items: Path | None
    source: str

    @property
    def experiment(self) -> str:
        """Name of the experiment that produced these results."""
        return str(self.content["experiment"])

    @property
    def epochs(self) -> float:
        """Epoch of the tested checkpoint, from 1; nan if nothing was trained, or the epoch is unknown."""
        epochs = self.content["audit"].get("epochs")
        return float(epochs) if isinstance(epochs, int | float) else NAN

    @property
    def is_sweep(self) -> bool:
        """True if these results belong to a sweep, a table of many runs, and not to a single run."""
        return f"{self.experiment}_runs" in self.content["tables"]

    @property
    def splits(self) -> list[tuple[str, Mapping[str, Any]]]:
        """(Name, description) of each file that the run has read: splits, corpora and word vectors.

        The description has the entry `file`, the name of the file, and if it is known `sha256`; other
        entries depend on the kind of the file. In results of the atlas, which reads several kinds of
        corpora, a name begins with the kind, as in `coreference.test`.
        """
        return list(_files(self.content["data"]))

    @property
    def shares(self) -> Collection[str]:
        """Names of scores with counts that are shares of items; none in results of a version before 1.1."""
        return tuple(self.content.get("shares", ()))

    def has(self, place: str) -> bool:
        """Return whether there is a score of this name, or the table of a cell; see `number`."""
        table, of_cell, _ = place.partition(":")
        return place in self.scores or (bool(of_cell) and table in self.content["tables"])

    def number(self, place: str) -> Estimate:
        """Return a score, or the number in a cell of a table, with its interval.

        Args:
            place: Name of the score, or `TABLE:COLUMN[KEY=VALUE;KEY=VALUE]` for the one row of a table with
                these values. As a VALUE, `last` is the largest number of a column, such as the last layer,
                `last-1` the one before, and `middle` the middle one; `[max]` is the row with the largest
                number in COLUMN.

        Raises:
            RecordError: There is no such score or cell.
        """
        name, of_cell, cell = place.partition(":")
        if not self.has(place):
            known = self.content["tables"] if of_cell else self.scores
            raise RecordError(f"{self.path} has no `{name}`{near(name, known)}")
        if place in self.scores:
            return self.scores[place]
        frame = read_table(self, name, str)
        column, _, where = cell.removesuffix("]").partition("[")
        try:
            about = self.content["columns"][name]
            rows = _rows_where(frame, column, where)
            if len(rows) != 1:
                raise ValueError(pluralize(len(rows), "row"))
            units = about["units"].get(column, "count")
            unit: Unit = units if isinstance(units, str) else units[rows.index[0]]  # type: ignore[assignment]
            ends = ("low", "high") if about["interval"] == column else (f"{column}.low", f"{column}.high")
            value = float(rows[column].iloc[0])
            if not {*ends} <= {*map(str, rows)}:
                return Estimate(value, unit=unit)
            return Estimate(value, *rows[list(ends)].astype(float).iloc[0].tolist(), unit=unit)
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            fault = f"table `{name}` has not one row with a number in `{column}` where {where}: {error}"
            raise RecordError(f"{self.path}: {fault}") from None

    def counts(self, score: str, *, by_id: bool = False) -> pd.DataFrame:
        """Return the numerator and the denominator of a score for each test item.

        Args:
            score: Name of the score.
            by_id: True to identify items by their `id` alone, if they have one. Use it to compare encoders:
                sentence numbers differ if one encoder leaves out a sentence.

        Returns:
            Frame with columns `numerator`, `denominator` and `unit`, the independent unit that the item belongs to:
            its document, or the item itself if no documents are marked. It is indexed by `id` or by the other columns
            that identify an item.

        Raises:
            RecordError: There are no such counts, or two items have the same index.
        """
        ratios: Mapping[str, Sequence[str]] = self.content["ratios"]
        if score not in ratios or score not in self.scores:
            known = (
                f"choose a score with counts per item: {', '.join(ratios)}" if ratios else "no score has such counts"
            )
            raise RecordError(f"{self.path}: {score} cannot be compared item by item{near(score, ratios)}; {known}")
        if self.items is None or not self.items.is_file():
            raise RecordError(
                f"{self.path}: {self.items or 'items.parquet'} with the counts per test item is missing, and runs are "
                f"compared item by item. Copy it back beside results.json, or test again"
            )
        try:
            frame = pd.read_parquet(self.items)
            counts = frame[list(ratios[score])].set_axis(["numerator", "denominator"], axis=1).astype(np.float64)
            if not np.isfinite(counts.to_numpy()).all():
                raise ValueError(f"a count of {score} is not a finite number")
        except (OSError, ValueError, TypeError, KeyError) as error:
            reason = " ".join(str(error).split())
            raise RecordError(f"{self.items} cannot be read ({reason}). Run the experiment again") from None
        unit = next((name for name in UNITS_OF_ITEMS if name in frame), None)
        counts["unit"] = np.arange(len(frame)) if unit is None else frame[unit]
        names = ["id"] if by_id and "id" in frame else [name for name in KEYS if name in frame]
        if not names:
            raise RecordError(
                f"{self.items} has no column id, sentence or document, so its items cannot be matched with those of "
                f"another run. Run the experiment again"
            )
        counts = counts.set_index([frame[name] for name in names])
        if twins := int(counts.index.duplicated().sum()):
            raise RecordError(
                f"{self.items}: {pluralize(twins, 'item')} {'has' if twins == 1 else 'have'} the same "
                f"{' and '.join(names)} as another item, so items of two runs cannot be matched. Give the items of the "
                "test split unique ones, and test again"
            )
        return counts


def compute_ratio(counts: pd.DataFrame) -> float:
    """Compute a score from its counts: the sum of the numerators divided by the sum of the denominators.

    It is nan if the denominators sum to 0.

    Args:
        counts: Columns with numerator and denominator, one row per item.
    """
    numerator, denominator = counts[["numerator", "denominator"]].sum()
    return float(numerator / denominator) if denominator else NAN


def _rows_where(frame: pd.DataFrame, column: str, where: str) -> pd.DataFrame:
    """Return the rows of a table that fulfil the condition of a place; see `Record.number`."""
    if where == "max":
        return frame.loc[[frame[column].astype(float).idxmax()]]
    for key, _, value in (pair.partition("=") for pair in where.split(";")):
        if re.fullmatch(r"middle|last(-\d+)?", value):
            last = frame[key].astype(int).max()
            value = str(math.ceil(last / 2) if value == "middle" else last - int(value.partition("-")[2] or 0))
        frame = frame[frame[key] == value]
    return frame


def find_record(run: Path) -> Record:
    """Read the results of a run or a sweep.

    Args:
        run: Its folder, or its `results.json`.

    Raises:
        RecordError: There are no results, or they cannot be read.
    """
    path = run / "results.json" if run.is_dir() else run
    if path.is_file():
        return read_record(path)
    if not run.is_dir():
        raise RecordError(f"{run}: there is no such file or folder")
    below = [str(path.parent) for kind in ("*", "*/*", "*/*/*") for path in sorted(run.glob(f"{kind}/results.json"))]
    hint = f"; runs below it: {list_first(below)}" if below else ": no test has ended in it"
    raise RecordError(f"{run}: the folder exists, but has no results.json{hint}")


def list_first(names: Sequence[str]) -> str:
    """Join the first three names, and append the number of the others: `a, b, c and 5 more`."""
    more = len(names) - FIRST
    return ", ".join(names[:FIRST]) + (f" and {more} more" if more > 0 else "")


def read_record(path: Path) -> Record:
    """Read a `results.json` file.

    Raises:
        RecordError: The file cannot be read, or was not written by a run of this application.
    """
    try:
        content = json.loads(check_regular(path, _LONGEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is damaged: it is not valid JSON ({error}). Run the experiment again") from None
    try:
        for name, value in {name: content[name] for name in _FORMS}.items():
            if fault := misfit(value, _FORMS[name]):
                raise TypeError(f"`{name}` must be {fault}")
        if fault := misfit(content.get("shares", []), list[str]):
            raise TypeError(f"`shares` must be {fault}")
        if any(len(columns) != 2 for columns in content["ratios"].values()):
            raise TypeError("`ratios` must name two columns for each score")
        if fault := find_alteration(path, content):
            raise RecordError(fault)
        items = None if content["items"] is None else path_below(path.parent, content["items"])
        scores = _estimates(content["scores"], content["units"])
        return Record(path, content, scores, items, content["versions"]["source_sha256"])
    except RecordError:
        raise
    except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        fault = f"has no entry {error}" if isinstance(error, KeyError) else str(error)
        raise RecordError(f"{path} is not the results.json of a run ({fault}). Run the experiment again") from None


def _files(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and the description of each file in the description of the data; parts of data are read too."""
    for name, said in data.items():
        if isinstance(said, Mapping):
            yield from [(prefix + name, said)] if "file" in said else _files(said, f"{prefix}{name}.")


def _estimates(numbers: Mapping[str, float | None], units: Mapping[str, Unit]) -> dict[str, Estimate]:
    """Join the numbers `x`, `x.low`, `x.high`, … to the score `x`."""
    known = {name: NAN if number is None else float(number) for name, number in numbers.items()}
    found = {}
    for name, unit in units.items():
        low, high, sd, p = (known.get(f"{name}.{end}") for end in ENDS)
        found[name] = Estimate(known[name], low, high, unit=unit, sd=sd, p=p)
    return found


def find_runs(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """Return the folders of the runs of a finished sweep, by row of the sweep's table and by seed.

    Args:
        folder: Folder of the sweep.

    Returns:
        For each row of the table, by its name, a mapping from each seed to the folders of its runs.

    Raises:
        RecordError: The table of the runs is missing or cannot be read.
    """
    path = folder / RECORD
    record = read_record(path) if path.is_file() else None
    if record is None or not record.is_sweep:
        raise RecordError(
            f"{folder} is not the folder of a finished sweep: it has no table of runs. Let the sweep finish; to name a "
            "single run, leave out `:ROW`"
        )
    name, rows = f"{record.experiment}_runs", dict[str, dict[str, list[Path]]]()
    table = read_table(record, name, str).fillna("")
    try:
        labels = table.columns[: table.columns.get_loc("seed")]
        for line in table.to_dict("records"):
            row = " × ".join(line[label] for label in labels)
            rows.setdefault(row, {}).setdefault(line["seed"], []).append(path_below(folder, f"runs/{line['folder']}"))
    except (KeyError, ValueError) as error:
        fault = f"has no column {error}" if isinstance(error, KeyError) else str(error)
        raise RecordError(f"{path}: {record.content['tables'][name]} {fault}. Run the sweep again") from None
    return rows


def load(runs: str | Path | Iterable[str | Path], table: str | None = None) -> pd.DataFrame:
    """Load the results of many runs into one frame: their scores, or the rows of one table.

    A run that cannot be read is left out with a warning.

    Args:
        runs: Folders of runs, folders above them, or patterns such as `runs/**`. For the folder of a sweep,
            its runs are read, not its table.
        table: Name of a table, such as `best_heads`; None for the scores.

    Returns:
        For a table, its rows in every run that has it, after the columns `run`, `seed`, `encoder` and
        `weights`. For scores, one row per run and score, with columns `run` (the folder), `experiment`,
        `score`, `value`; `low`, `high`, `sd` and `p`, nan if they were not computed; `unit` (fractions are
        not multiplied by 100), `seed`, `encoder`, `weights`, and `epochs` of the tested checkpoint. The
        columns after these are the options of the runs: `model` and `data` are classes,
        `model.learning_rate` and `data.options.layers` their arguments. An option that a run does not have
        is missing. Options that change no number, such as locations of files, are left out.

    Raises:
        RecordError: There is no run, or no run has the table, or rows in it.
    """
    patterns = [runs] if isinstance(runs, str | Path) else list(runs)
    rows, tables, faults = list[dict[str, object]](), set[str](), list[str]()
    for path in _paths(patterns):
        try:
            record = read_record(path)
            if not record.is_sweep:
                rows += _score_rows(record) if table is None else _table_rows(record, table)
                tables |= set(record.content["tables"])
        except (RecordError, SettingsError) as error:
            faults.append(str(error))
            warnings.warn(f"left out: {error}", stacklevel=2)
    if not rows:
        wanted = f"a table {table}{near(table, tables)}" if table else "scores"
        if table in tables:
            raise RecordError(f"{', '.join(map(str, patterns))}: the table {table} has no rows in any run.")
        why = "; ".join([*faults[:1], *([f"there are the tables {', '.join(sorted(tables))}"] if tables else [])])
        raise RecordError(f"{', '.join(map(str, patterns))}: no run has {wanted}. {why or 'Give tested runs.'}")
    frame = pd.DataFrame(rows)
    if table is not None:
        return frame
    options = sorted(set(frame) - set(COLUMNS), key=lambda name: (OPTIONS.index(str(name).split(".")[0]), str(name)))
    return frame.reindex(columns=[*COLUMNS, *options]).astype(dict.fromkeys(("value", *ENDS), float))


def _paths(patterns: Iterable[str | Path]) -> list[Path]:
    """Return the `results.json` that patterns match, or that lie below matching folders; each once, in order."""
    matched = [
        Path(name)
        for pattern in patterns
        # The name of a folder may contain brackets, which are special characters of a pattern.
        for name in ([pattern] if Path(pattern).exists() else sorted(glob(str(pattern), recursive=True)))
    ]
    below = (path.rglob("results.json") if path.is_dir() else [path] for path in matched)
    return list(dict.fromkeys(path for paths in below for path in sorted(paths) if path.name == "results.json"))


def _shared(record: Record) -> dict[str, object]:
    """Return the columns that are the same for all rows of a run."""
    encoder = {name: record.content["encoder"].get(key) for name, key in (("encoder", "name"), ("weights", "weights"))}
    return {"run": str(record.path.parent), "seed": record.content["seed"], **encoder}


def read_table(record: Record, table: str, dtype: type[str] | None = None) -> pd.DataFrame:
    """Return a table of a run, which must have it; an empty cell is nan.

    Args:
        record: Results of the run.
        table: Name of the table.
        dtype: Type of all columns; None takes numbers as numbers.

    Raises:
        RecordError: The file cannot be read.
    """
    path = path_below(record.path.parent, record.content["tables"][table])
    try:
        return read_csv(path, na_values=[""], dtype=dtype)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RecordError(f"{path} cannot be read ({reason}). Run the experiment again") from None


def _table_rows(record: Record, table: str) -> list[dict[str, object]]:
    """Return the rows of a table of a run."""
    if table not in record.content["tables"]:
        return []
    rows = read_table(record, table).to_dict("records")
    return [{**_shared(record), **{str(name): value for name, value in row.items()}} for row in rows]


def read_config(record: Record) -> object:
    """Return the config of a run; None if it has no `config.yaml`.

    Its SHA-256 was compared with the one in `results.json` when the record was read. A warning says if there is no
    SHA-256 of it, or no file although the run has written one.

    Raises:
        SettingsError: The config cannot be read.
    """
    path = record.path.parent / "config.yaml"
    if not path.exists():
        if record.content["config"] is not None:
            warnings.warn(f"{path} is missing, so the options of the run are not known", stacklevel=2)
        return None
    if not has_config_checksum(record.content):
        warnings.warn(f"{path} is not verified: {RECORD} of an older version has no SHA-256 of it", stacklevel=2)
    return read_yaml(path)


def _score_rows(record: Record) -> list[dict[str, object]]:
    """Return a row for each score of a run, with the options of its config that change numbers."""
    config = read_config(record) or {}
    chosen = ((name.split("."), value) for name, value in score_settings(config).items())
    options = {
        ".".join(part for part in name if part not in ("init_args", "class_path")): value
        for name, value in chosen
        if name[0] in OPTIONS
    }
    shared = {**_shared(record), "experiment": record.experiment, "epochs": record.epochs, **options}
    return [{**shared, **row} for row in score_rows(record.scores)]
