"""Scores that a row of a sweep takes from its runs."""

from collections.abc import Mapping, Sequence
from itertools import chain

from attention_probing.commands.sweep_rows import Row
from attention_probing.results.errors import near
from attention_probing.results.record import Record, RecordError


def record_with(score: str, records: Sequence[Record]) -> Record | None:
    """Return the first of the runs of a row and seed that has a score; None if no run has it."""
    for record in records:
        if record.has(score):
            return record
    return None


def describe_missing(score: str, row: Row, seed: int, records: Sequence[Record]) -> str:
    """Return the message that no run of a row and seed has a score."""
    files = ", ".join(str(record.path) for record in records)
    have = "has" if len(records) == 1 else "have"
    names = list(chain.from_iterable(record.scores for record in records))
    return (
        f"row `{row.name}`, seed {seed}: {files} {have} no score `{score}`{near(score, names)}; the scores are "
        f"{', '.join(names)}. Name one of them under the row's `scores`, or null for an empty cell"
    )


def missing_scores(row: Row, records: Mapping[str, Record]) -> list[str]:
    """Return a message for each score that the finished runs of a row do not have.

    Args:
        row: The row.
        records: Results of all finished runs of the sweep, by key of the run.
    """
    messages = []
    for seed, records_of_seed in row.done(records).items():
        for score in row.scores.values():
            if not score:
                continue
            record = record_with(score, records_of_seed)
            if record is None:
                messages.append(describe_missing(score, row, seed, records_of_seed))
                continue
            try:
                record.number(score)
            except RecordError as error:
                messages.append(f"row `{row.name}` has no number: {error}")
    return messages
