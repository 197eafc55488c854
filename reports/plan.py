"""What a sweep is to run, and the table it is to make: `plan_file` reads them from YAML."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STATISTICS = ("low", "high", "sd")
COUNTS = ("seeds", "epochs")

_NEUTRAL = {"data.init_args.cache", "trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.logger"}
"""Options that decide where something lies or what is printed, but no number."""


class SweepError(ValueError):
    """A sweep that cannot be run as it is written, or whose runs do not make a table."""


@dataclass(frozen=True)
class Run:
    """One call of train.py.

    Attributes:
        command: `fit`, `test`, …
        config: Path of its config.
        digest: SHA-256 of the config's bytes when the sweep was read.
        options: Names and values of what is set on the command line, by name: parents come before what is in them.
        seed: Its seed.
    """

    command: str
    config: Path
    digest: str
    options: tuple[tuple[str, str], ...]
    seed: int

    @property
    def arguments(self) -> list[str]:
        """The arguments of train.py, but for the folder to write into."""
        options = [f"--{name}={value}" for name, value in self.options]
        return [self.command, f"--config={self.config}", f"--seed_everything={self.seed}", *options]

    @property
    def identity(self) -> dict[str, object]:
        """What decides the numbers of the run: neither the name of its config nor that of its row is in it."""
        options = [pair for pair in self.options if pair[0] not in _NEUTRAL]
        return {"command": self.command, "config_sha256": self.digest, "options": options, "seed": self.seed}

    @property
    def key(self) -> str:
        """Name of the run's folder: runs with the same numbers have the same key."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        labels: What stands in its first columns.
        runs: Per seed its runs.
        scores: Per score of the table its name in the results of the runs; None where the row has none.
    """

    labels: tuple[str, ...]
    runs: Mapping[int, tuple[Run, ...]]
    scores: Mapping[str, str | None]

    @property
    def name(self) -> str:
        """The row in a message."""
        return " × ".join(self.labels)


@dataclass(frozen=True)
class Sweep:
    """Rows of runs, and the table they make.

    Attributes:
        name: Of the sweep, and of its table.
        labels: Names of the first columns.
        scores: The scores, by their names in the table.
        rows: The rows, in order.
        columns: The columns of the table, in order.
    """

    name: str
    labels: tuple[str, ...]
    scores: tuple[str, ...]
    rows: tuple[Row, ...]
    columns: tuple[str, ...]

    def column(self, score: str, statistic: str) -> str:
        """Name of the column of a statistic: plain `low`, `high`, `sd` with one score, else `score.low`, …."""
        return statistic if len(self.scores) == 1 else f"{score}.{statistic}"

    def source(self, column: str) -> str:
        """The column that is meant by one of `columns`: plain statistics are those of the first score."""
        return self.column(self.scores[0], column) if column in STATISTICS else column
