"""Warnings of a sweep: those of its runs, and about rows that cannot be compared fully (files, items, program)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations

from attention_probing.commands.comparison import files_of_test
from attention_probing.commands.sweep_rows import Row
from attention_probing.results.record import Record, RecordError

_EPOCH = re.compile(r"(?<=best epoch on dev) \(\d+\)")  # differs between seeds


def list_warnings(rows: Sequence[Row], records: Mapping[str, Record]) -> list[str]:
    """Return the warnings of the runs, and others about rows with other data, items, or version of the program.

    Args:
        rows: The rows.
        records: Results of the finished runs, by key of the run.
    """
    messages = _repeat_warnings(rows, records) + _compare_files(rows, records) + _compare_items(rows, records)
    if len({record.source for record in records.values()}) > 1:
        messages.append("the program was changed between these runs. To make all with one version, give another --out")
    return messages


def _repeat_warnings(rows: Sequence[Row], records: Mapping[str, Record]) -> list[str]:
    """Return the warnings in the audits of runs, each once, with the rows whose runs have it."""
    rows_of_messages: dict[str, list[str]] = {}
    for row in rows:
        finished = row.finished(records)
        counts: dict[str, int] = {}
        for record in finished:
            for warning in record.audit.get("warnings", []):
                message = _EPOCH.sub("", warning)
                counts[message] = counts.get(message, 0) + 1
        for message, count in counts.items():
            share = "" if count == len(finished) else f" ({count} of {len(finished)} runs)"
            rows_of_messages.setdefault(message, []).append(f"{row.name}{share}")
    return [f"{', '.join(names)}: {message}" for message, names in rows_of_messages.items()]


def _compare_files(rows: Sequence[Row], records: Mapping[str, Record]) -> list[str]:
    """Return warnings about corpus files that differ between rows."""
    rows_of_files: dict[str, dict[str, list[str]]] = {}  # names of rows, by name and by SHA-256 of the file
    for row in rows:
        for record in row.finished(records):
            for _, description in record.splits:
                by_hash = rows_of_files.setdefault(_file_of(description), {})
                names = by_hash.setdefault(str(description.get("sha256")), [])
                if row.name not in names:
                    names.append(row.name)
    messages = []
    for file, by_hash in rows_of_files.items():
        if len(by_hash) > 1:
            names_of_rows = " | ".join(", ".join(names) for names in by_hash.values())
            messages.append(f"{file} differs between rows: {names_of_rows}")
    return messages


def _file_of(description: Mapping[str, object]) -> str:
    """Return the name of a file, with the name of its corpus if that is a public one."""
    corpus = str(description.get("corpus", ""))
    file = str(description.get("file"))
    return f"{corpus} {file}" if corpus.isidentifier() else file


def _compare_items(rows: Sequence[Row], records: Mapping[str, Record]) -> list[str]:
    """Return warnings about scores with different items of the same files, as when encoders skip long sentences."""
    scores: dict[str, list[str]] = {}  # names of scores by how the items differ
    for score in rows[0].scores:
        corpora: dict[frozenset[str], dict[frozenset[object], list[str]]] = {}  # names of rows by files and items
        for row in rows:
            items, files = _find_items(row, score, records)
            if items:
                by_items = corpora.setdefault(files, {})
                by_items.setdefault(items, []).append(row.name)
        for by_items in corpora.values():
            if len(by_items) > 1:
                counts = [f"{len(items)} in {', '.join(names)}" for items, names in by_items.items()]
                shared = frozenset.intersection(*by_items)
                how = f"{' | '.join(counts)}; {len(shared)} are shared. {_advise(by_items)}"
                scores.setdefault(how, []).append(score)
    return [f"the rows have different items for {', '.join(names)}: {how}" for how, names in scores.items()]


def _advise(items: Iterable[frozenset[object]]) -> str:
    """Return how rows with these sets of items can be compared; no item may be in two of them."""
    if any(first & second for first, second in combinations(items, 2)):
        return "`probing compare DIR:ROW DIR:ROW --common` compares shared items"
    return "No two of them can be compared: test them on the same data"


def _find_items(row: Row, score: str, records: Mapping[str, Record]) -> tuple[frozenset[object], frozenset[str]]:
    """Return the items of a score of a row, and the hashes or else the names of the files that they are of.

    Both are empty if the items are unknown.
    """
    for record in row.finished(records):
        with suppress(RecordError):
            items = frozenset[object](record.counts(row.scores[score], by_id=True).index)
            return items, frozenset(sha256 or file for file, sha256 in files_of_test(record))
    return frozenset(), frozenset()
