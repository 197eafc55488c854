"""Rows of a sweep and their runs: what is executed, and what a run needs of others."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attention_probing.results.digests import digest
from attention_probing.results.record import Record
from attention_probing.results.settings import score_settings


@dataclass(frozen=True)
class Need:
    """Runs whose results another run reads, and its option that gets them.

    Attributes:
        option: Option of the program: `checkpoints`, `encoder` or `model.ablation`.
        runs: The runs that are read.
        is_list: True if the option gets a list, with all runs of the rows that the plan names.
    """

    option: str
    runs: tuple["Run", ...]
    is_list: bool = False

    @property
    def name(self) -> str:
        """Name in the identity of the reading run; it is older than `needs`, and part of the keys of finished runs."""
        if self.option == "checkpoints" and not self.is_list:
            return "checkpoint"
        return self.option.removeprefix("model.")


@dataclass(frozen=True)
class Run:
    """Run of the program in a sweep.

    Attributes:
        command: `fit`, `test` or `measure`.
        config: The config file.
        digest: SHA-256 of the config file at the time when the sweep was read.
        options: Names and values of options of the program, sorted by name, so that a mapping (`data.vectors`)
            precedes its keys (`data.vectors.name`).
        seed: Seed of the run.
        needs: Options that get files of other runs, with these runs.
    """

    command: str
    config: Path
    digest: str
    options: tuple[tuple[str, str], ...]
    seed: int
    needs: tuple[Need, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """Arguments of the program for this run, without the output folder and the options of `needs`."""
        options = [f"--{name}={value}" for name, value in self.options]
        return [self.command, f"--config={self.config}", f"--seed_everything={self.seed}", *options]

    @property
    def needed(self) -> list["Run"]:
        """Runs that this run reads itself."""
        return [run for need in self.needs for run in need.runs]

    @property
    def identity(self) -> dict[str, object]:
        """Values that determine the scores of the run, by name.

        They are the command, the SHA-256 of the config file, the options that affect scores, the seed,
        and the keys of the runs that are read. The names of config file and row are not among them.
        """
        identity: dict[str, object] = {
            "command": self.command,
            "config_sha256": self.digest,
            "options": list(score_settings(dict(self.options)).items()),
            "seed": self.seed,
        }
        for need in self.needs:
            identity[need.name] = [run.key for run in need.runs]
        return identity

    @property
    def key(self) -> str:
        """Hash of `identity`. It names the run's folder, so runs with the same identity share one folder."""
        return digest(json.dumps(self.identity, sort_keys=True).encode())[:16]

    def with_needed(self) -> Iterator["Run"]:
        """Yield the runs that must finish before this run, then this run."""
        for run in self.needed:
            yield from run.with_needed()
        yield self


@dataclass(frozen=True)
class Row:
    """Row of the table of a sweep, with the runs that it is computed from.

    Attributes:
        labels: Values of the label columns.
        runs: Runs of the row by seed.
        scores: Name of the score in the results of the runs, by column of the table; empty for a column
            without a score.
    """

    labels: tuple[str, ...]
    runs: Mapping[int, Sequence[Run]]
    scores: Mapping[str, str]

    @property
    def name(self) -> str:
        """Name of the row in messages: its labels, joined by ` × `."""
        return " × ".join(self.labels)

    def all_runs(self) -> list[Run]:
        """Return the runs of the row, seed by seed."""
        return [run for runs in self.runs.values() for run in runs]

    def finished(self, records: Mapping[str, Record]) -> list[Record]:
        """Return the results of the runs of this row that are finished.

        Args:
            records: Results of all finished runs of the sweep, by key of the run.
        """
        return [records[run.key] for run in self.all_runs() if run.key in records]

    def done(self, records: Mapping[str, Record]) -> dict[int, list[Record]]:
        """Return the results of this row by seed, for the seeds whose runs are all finished.

        Args:
            records: Results of all finished runs of the sweep, by key of the run.
        """
        done = {}
        for seed, runs in self.runs.items():
            keys = [run.key for run in runs]
            if all(key in records for key in keys):
                done[seed] = [records[key] for key in keys]
        return done


@dataclass(frozen=True)
class Sweep:
    """Sweep that a plan describes: the runs to execute, and the table to make of their results.

    Attributes:
        name: Name of the sweep.
        labels: Names of the label columns.
        rows: Rows of the table.
        columns: Full name of each column, by the name that it has in the table: `low`, for instance, is
            short for `<first score>.low`.
        reference: Value of a label column, by name of the column: each row is compared with the row that
            has this value and otherwise the same labels. Empty for no comparisons.
        source: Language that is the source of a transfer, the first label of its rows; empty for a plan without
            languages.
    """

    name: str
    labels: tuple[str, ...]
    rows: tuple[Row, ...]
    columns: Mapping[str, str]
    reference: Mapping[str, str] = field(default_factory=dict)
    source: str = ""

    def compared(self) -> Iterator[tuple[Row, Row]]:
        """Yield each row with the row that it is compared with."""
        if not self.reference:
            return
        by_labels = {row.labels: row for row in self.rows}
        for row in self.rows:
            labels = dict(zip(self.labels, row.labels, strict=True))
            labels.update(self.reference)
            other = by_labels.get(tuple(labels.values()))
            if other is not None and other != row:
                yield row, other
