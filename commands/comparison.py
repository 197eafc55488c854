"""Comparison of runs on the same items, over items and seeds: of `compare`, of sweeps, and of the table of papers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import pandas as pd

from attention_probing.commands.seeds import estimate_from_counts, with_common_units
from attention_probing.metrics.draws import TEST_DRAWS
from attention_probing.results import Estimate, Unit
from attention_probing.results.errors import setting
from attention_probing.results.record import Record, RecordError


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a comparison: a score of runs that differ only in the seed.

    Attributes:
        score: Name of the score.
        records: Results of each run.
        counts: Numerator and denominator of the score for each item, in each run; see `Record.counts`.
    """

    score: str
    records: Sequence[Record]
    counts: Sequence[pd.DataFrame]

    @classmethod
    def from_records(cls, score: str, records: Sequence[Record]) -> "Side":
        """Read the counts of a score.

        Raises:
            RecordError: A run has no such counts, or they cannot be read.
        """
        return cls(score, records, [record.counts(score, by_id=True) for record in records])

    @property
    def unit(self) -> Unit:
        """Unit of the score."""
        return self.records[0].scores[self.score].unit

    @property
    def is_share(self) -> bool:
        """True if the score is a share of items in every run."""
        return all(self.score in record.shares for record in self.records)

    def on(self, items: pd.Index) -> "Side":
        """Return this side with the counts of some items, in their order."""
        return replace(self, counts=[counts.loc[items] for counts in self.counts])


def shared_items(sides: Sequence[Side]) -> pd.Index:
    """Return the items that all runs of all sides have, in the order of the first run.

    Raises:
        RecordError: The items of two runs cannot be matched.
    """
    first = sides[0]
    items = first.counts[0].index
    for side in sides:
        for record, counts in zip(side.records, side.counts, strict=True):
            check_matching(first.records[0], first.counts[0].index, record, counts.index)
            items = items[items.isin(counts.index)]
    return items


def estimate_sides(sides: Sequence[Side]) -> list[Estimate]:
    """Return the mean of the score of each side over its seeds, from draws of the same items, or of their documents.

    Args:
        sides: The sides; all their runs have the same items.
    """
    share = all(side.is_share for side in sides)
    counts_of_runs: list[pd.DataFrame] = []
    for side in sides:
        counts_of_runs += side.counts
    renumbered = iter(with_common_units(counts_of_runs))
    estimates = []
    for side in sides:
        seeds = list(islice(renumbered, len(side.counts)))
        estimates.append(estimate_from_counts(seeds, side.unit, share=share, draws=TEST_DRAWS))
    return estimates


def check_matching(first: Record, items: pd.Index, other: Record, items_of_other: pd.Index) -> None:
    """Check that equal names of items stand for equal items in two runs.

    Raises:
        RecordError: The runs name their items by other columns; or by numbers of lines, but of different files; or by
            numbers within what was read, but within different limits.
    """
    folders = f"{first.path.parent} and {other.path.parent}"
    if items.names != items_of_other.names:
        columns = " and ".join(map(str, items.names))
        columns_of_other = " and ".join(map(str, items_of_other.names))
        raise RecordError(
            f"{folders} cannot be compared: items of {first.path.parent} are identified by {columns}, those of "
            f"{other.path.parent} by {columns_of_other}. Compare runs of the same experiment"
        )
    if items.names != ["id"] and _limits(first) != _limits(other):
        raise RecordError(
            f"{folders} cannot be compared: their items are numbered within {setting('data.limit')}, which differs. "
            "Test both runs with the same limit"
        )
    hashes = _test_hashes(first)
    hashes_of_other = _test_hashes(other)
    have_other_files = bool(hashes) and bool(hashes_of_other) and not hashes & hashes_of_other
    if have_other_files and _are_numbers(items) and _are_numbers(items_of_other):
        raise RecordError(
            f"{folders} cannot be compared: they were scored on different files, and their items are identified by "
            "numbers of lines alone, which stand for other texts in another file. Test both runs on one file, or name "
            f"a column of ids with {setting('data.columns.id')}"
        )


def limit_of(description: Mapping[str, object]) -> tuple[object, ...]:
    """Return the limit of the items that were read of a file, and how they were chosen.

    Args:
        description: Description of the file in the results of a run.
    """
    return tuple(description.get(name) for name in ("limit", "limit_by", "limit_seed"))


def _limits(record: Record) -> set[tuple[object, ...]]:
    return {limit_of(description) for _, description in record.splits}


def files_of_test(record: Record) -> list[tuple[str, str | None]]:
    """Return the name and the SHA-256, if known, of each test file of a run; of all files without a test split."""
    files = []
    of_test = []
    for split, description in record.splits:
        file = str(description["file"]), description.get("sha256")
        files.append(file)
        if split.rpartition(".")[2] == "test":
            of_test.append(file)
    return of_test or files


def _test_hashes(record: Record) -> set[str]:
    return {sha256 for _, sha256 in files_of_test(record) if sha256 is not None}


def _are_numbers(items: pd.Index) -> bool:
    """Return True if items are named by numbers, such as those of lines or sentences."""
    if items.names == ["sentence"]:
        return True
    return items.names == ["id"] and all(str(name).isdecimal() for name in items)
