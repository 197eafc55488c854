"""Reads the results of many runs: of a sweep, and of any folders of runs in one frame."""

import warnings
from collections.abc import Iterable
from glob import glob
from pathlib import Path

import pandas as pd

from attention_probing.results.digests import RECORD
from attention_probing.results.errors import near
from attention_probing.results.estimates import ENDS, score_rows
from attention_probing.results.files import path_below
from attention_probing.results.record import Record, RecordError, read_record
from attention_probing.results.settings import SettingsError, read_yaml, score_settings, with_new_names

COLUMNS = ("run", "experiment", "score", "value", *ENDS, "unit", "seed", "encoder", "weights", "epochs")
"""Columns that `load` returns before the options of the runs."""
OPTIONS = ("model", "data", "trainer")
TWINS = "twin"
"""Folder of the null twins of a run, in its folder."""


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
    name = f"{record.experiment}_runs"
    table = record.table(name, as_text=True).fillna("")
    rows: dict[str, dict[str, list[Path]]] = {}
    try:
        labels = table.columns[: table.columns.get_loc("seed")]
        for line in table.to_dict("records"):
            row = " × ".join(line[label] for label in labels)
            by_seed = rows.setdefault(row, {})
            by_seed.setdefault(line["seed"], []).append(path_below(folder, f"runs/{line['folder']}"))
    except (KeyError, ValueError) as error:
        fault = str(error)
        if isinstance(error, KeyError):
            fault = f"has no column {error}"
        raise RecordError(f"{path}: {record.tables[name]} {fault}. Run the sweep again") from None
    return rows


def load(runs: str | Path | Iterable[str | Path], table: str | None = None) -> pd.DataFrame:
    """Load the results of many runs into one frame: their scores, or the rows of one table.

    A run that cannot be read is left out with a warning.

    Args:
        runs: Folders of runs, folders above them, or patterns such as `runs/**`. For the folder of a sweep,
            its runs are read, not its table. Null twins of runs, in the folder `twin` of each, are read only if a
            path or pattern names them.
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
    rows: list[dict[str, object]] = []
    tables: set[str] = set()
    faults: list[str] = []
    for path in _find_records(patterns):
        try:
            record = read_record(path)
            if record.is_sweep:
                continue
            if table is None:
                rows.extend(_score_rows(record))
            else:
                rows.extend(_table_rows(record, table))
            tables |= set(record.tables)
        except (RecordError, SettingsError) as error:
            faults.append(str(error))
            warnings.warn(f"left out: {error}", stacklevel=2)
    if not rows:
        raise RecordError(f"{', '.join(map(str, patterns))}: {_describe_lack(table, tables, faults)}")
    frame = pd.DataFrame(rows)
    if table is not None:
        return frame
    options = sorted(set(map(str, frame)) - set(COLUMNS), key=_place_of_option)
    return frame.reindex(columns=[*COLUMNS, *options]).astype(dict.fromkeys(("value", *ENDS), float))


def _place_of_option(name: str) -> tuple[int, str]:
    """Return the key that sorts options of the model before those of the data and of the trainer."""
    return OPTIONS.index(name.split(".")[0]), name


def _describe_lack(table: str | None, tables: set[str], faults: list[str]) -> str:
    """Return the message that no run has scores, or a table.

    Args:
        table: Name of the table; None for scores.
        tables: Names of the tables that there are.
        faults: Messages for the runs that cannot be read.
    """
    if table in tables:
        return f"the table {table} has no rows in any run."
    reasons = faults[:1]
    if tables:
        reasons.append(f"there are the tables {', '.join(sorted(tables))}")
    reason = "; ".join(reasons) or "Give tested runs."
    if table is None:
        return f"no run has scores. {reason}"
    return f"no run has a table {table}{near(table, tables)}. {reason}"


def _find_records(patterns: Iterable[str | Path]) -> list[Path]:
    """Return the `results.json` that patterns match, or that lie below matching folders; each once, in order."""
    records: list[Path] = []
    for pattern in patterns:
        matched = [Path(pattern)]
        if not Path(pattern).exists():  # the name of a folder may contain brackets, special characters of a pattern
            matched = [Path(name) for name in sorted(glob(str(pattern), recursive=True))]
        twins_in_pattern = Path(pattern).parts.count(TWINS)
        for path in matched:
            candidates = []
            if path.is_dir():
                candidates = sorted(path.rglob(RECORD))
            elif path.name == RECORD:
                candidates = [path]
            for record in candidates:
                if record.parts.count(TWINS) == twins_in_pattern:
                    records.append(record)
    return list(dict.fromkeys(records))


def _describe_run(record: Record) -> dict[str, object]:
    """Return the columns that are the same for all rows of a run."""
    return {
        "run": str(record.path.parent),
        "seed": record.seed,
        "encoder": record.encoder.get("name"),
        "weights": record.encoder.get("weights"),
    }


def _table_rows(record: Record, table: str) -> list[dict[str, object]]:
    """Return the rows of a table of a run; none if the run has no such table."""
    if table not in record.tables:
        return []
    run = _describe_run(record)
    rows = []
    for row in record.table(table).to_dict("records"):
        cells = {str(column): value for column, value in row.items()}
        rows.append(run | cells)
    return rows


def read_config(record: Record) -> object:
    """Return the config of a run, with today's names of its options; None if it has no `config.yaml`.

    Its SHA-256 was compared with the one in `results.json` when the record was read. A warning says if there is no
    SHA-256 of it, or no file although the run has written one.

    Raises:
        SettingsError: The config cannot be read.
    """
    path = record.path.parent / "config.yaml"
    if not path.exists():
        if record.config is not None:
            warnings.warn(f"{path} is missing, so the options of the run are not known", stacklevel=2)
        return None
    if record.config not in record.checksums:
        warnings.warn(f"{path} is not verified: {RECORD} of an older version has no SHA-256 of it", stacklevel=2)
    return with_new_names(read_yaml(path), f"{path}: ")


def _score_rows(record: Record) -> list[dict[str, object]]:
    """Return a row for each score of a run, with the options of its config that change numbers."""
    run = _describe_run(record)
    run["experiment"] = record.experiment
    run["epochs"] = record.epochs
    for setting, value in score_settings(read_config(record) or {}).items():
        parts = setting.split(".")
        if parts[0] in OPTIONS:
            names = [part for part in parts if part not in ("init_args", "class_path")]
            run[".".join(names)] = value
    return [run | row for row in score_rows(record.scores)]
