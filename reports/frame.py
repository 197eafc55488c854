"""All scores, or one table, of many runs in one frame, for notebooks."""

import warnings
from collections.abc import Iterable
from glob import glob
from pathlib import Path

import pandas as pd

from reports.reader import Record, RecordError, read_record
from results.errors import near
from results.result import ENDS
from training.config import SettingsError, is_neutral, leaves, read_yaml

COLUMNS = ("run", "experiment", "score", "value", *ENDS, "unit", "seed", "encoder", "weights", "epochs")
OPTIONS = ("model", "data", "trainer")


def load(runs: str | Path | Iterable[str | Path], table: str | None = None) -> pd.DataFrame:
    """Load every score of the runs that one or several patterns match, one a row; or one of their tables.

    Args:
        runs: folders of runs, folders above them, or patterns such as `runs/**`. The table of a sweep is made of its
            runs, so that the runs are read and the table is not.
        table: name of a table, such as `best_heads`: its rows for every run that has it, after the columns `run`,
            `seed`, `encoder` and `weights`.

    Returns:
        Of scores, columns `run` (its folder), `experiment`, `score`, `value`; `low`, `high`, `sd` and `p`, nan where
        there are none; `unit` (fractions are not multiplied by 100), `seed`, `encoder`, `weights`, and `epochs` of the
        tested checkpoint. Then every option by its name: `model` and `data` are classes, `model.learning_rate` and
        `data.options.layers` their arguments; missing where a run does not have it. Options that change no number,
        such as where files lie, are left out. A run that cannot be read is left out with a warning.

    Raises:
        RecordError: there is no run, or none has the table.
    """
    patterns = [runs] if isinstance(runs, str | Path) else list(runs)
    rows: list[dict[str, object]] = []
    tables, read = set[str](), 0
    for path in _records(patterns):
        try:
            record = read_record(path)
            if not record.is_sweep:
                rows += _rows(record) if table is None else _rows_of(record, table, tables)
                read += 1
        except (RecordError, SettingsError) as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
    if table is not None and read and not rows:
        there = f"there are {', '.join(sorted(tables))}" if tables else "there is none"
        raise RecordError(f"no run has a table {table}{near(table, tables)}; {there}")
    if not rows:
        raise RecordError(f"{', '.join(map(str, patterns))}: there is no run with a results.json that can be read")
    frame = pd.DataFrame(rows)
    if table is not None:
        return frame
    options = sorted(set(frame) - set(COLUMNS), key=lambda name: (OPTIONS.index(str(name).split(".")[0]), str(name)))
    return frame.reindex(columns=[*COLUMNS, *options]).astype(dict.fromkeys(("value", *ENDS), float))


def _records(patterns: Iterable[str | Path]) -> list[Path]:
    """The `results.json` that patterns match, or that lie below folders which they match; each once, in order."""
    matched = [
        Path(name)
        for pattern in patterns
        # The name of a folder may have brackets.
        for name in ([pattern] if Path(pattern).exists() else sorted(glob(str(pattern), recursive=True)))
    ]
    below = (path.rglob("results.json") if path.is_dir() else [path] for path in matched)
    return list(dict.fromkeys(path for paths in below for path in sorted(paths) if path.name == "results.json"))


def _rows_of(record: Record, table: str, tables: set[str]) -> list[dict[str, object]]:
    """The rows of a table of a run; its tables are added to `tables`."""
    tables.update(record.tables)
    if table not in record.tables:
        return []
    path = record.path.with_name(Path(record.tables[table]).name)
    try:
        rows = pd.read_csv(path, keep_default_na=False, na_values=[""]).to_dict("records")
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    shared = {"run": str(record.path.parent), "seed": record.seed, **_encoder(record)}
    return [{**shared, **{str(name): value for name, value in row.items()}} for row in rows]


def _encoder(record: Record) -> dict[str, object]:
    return {"encoder": record.encoder.get("name"), "weights": record.encoder.get("weights")}


def _rows(record: Record) -> list[dict[str, object]]:
    folder = record.path.parent
    config = folder / "config.yaml"
    shared = {
        "run": str(folder),
        "experiment": record.experiment,
        "seed": record.seed,
        **_encoder(record),
        "epochs": record.epochs,
        **(_options(read_yaml(config)) if config.is_file() else {}),
    }
    return [
        {
            **shared,
            "score": name,
            "value": score.value,
            "unit": score.unit,
            **{end: getattr(score, end) for end in ENDS},
        }
        for name, score in record.scores.items()
    ]


def _options(config: object) -> dict[str, object]:
    """Options of model, data and trainer that change numbers, without the `init_args` and `class_path` of a config."""
    chosen = ((name.split("."), value) for name, value in leaves(config) if not is_neutral(name))
    return {
        ".".join(part for part in name if part not in ("init_args", "class_path")): value
        for name, value in chosen
        if name[0] in OPTIONS
    }
