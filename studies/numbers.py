"""Our numbers for the table of published findings: those of finished runs, and those that the page had before."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from attention_probing.commands.comparison import Side, estimate_sides, shared_items
from attention_probing.commands.seeds import over_seeds
from attention_probing.commands.sweep_jobs import results_of
from attention_probing.commands.sweep_rows import Row, Run
from attention_probing.metrics.differences import difference as paired_difference
from attention_probing.results import Estimate, Unit, UserError
from attention_probing.results.digests import digest
from attention_probing.results.errors import list_first, pluralize
from attention_probing.results.files import write_atomically
from attention_probing.results.record import Record, RecordError, read_record
from attention_probing.results.settings import read_yaml

ENCODER = "data.init_args.encoder.name"
_ENCODERS = (ENCODER, "data.init_args.tokenizer.name", "data.init_args.before.name")
"""Options of runs that name the encoder of a column."""
_MINUS = " − "


class Number(NamedTuple):
    """Number of the page, as docs/papers/index.json has it.

    Attributes:
        value: The number, a mean over the seeds.
        low: Low end of its 95 % interval; None or nan without an interval.
        high: High end.
        unit: Its unit.
        keys: Keys of the rows that it is computed from, separated by blanks; see `key_of_row`.
        version: Version of the program that made the results.
    """

    value: float
    low: float | None
    high: float | None
    unit: Unit
    keys: str
    version: str

    @property
    def estimate(self) -> Estimate:
        """The number with its interval."""
        if self.low is None or self.high is None or math.isnan(self.low):
            return Estimate(self.value, unit=self.unit)
        return Estimate(self.value, self.low, self.high, unit=self.unit)


Runs = Mapping[str, Sequence[Record]]  # runs with all seeds, by row of the plan
Keys = dict[str, str]  # key of each row of the plan
Kept = dict[str, Number]  # numbers by place


def row_of(place: str) -> str:
    """Return the row of the plan in the place of a number."""
    return place.partition("@")[0]


def rows_of(name: str) -> list[str]:
    """Return the rows of the plan that a number of the page comes from, by its name: two for most differences."""
    return list(dict.fromkeys(row_of(place) for place in name.split(_MINUS)))


def finished_runs(folder: Path, notes: list[str]) -> dict[str, Record]:
    """Return the results of all finished runs below a folder by the key of the run; of equal runs, those of the latest.

    Args:
        folder: Folder of one or several sweeps.
        notes: Receives messages about results that cannot be read, and about runs that are there twice.
    """
    done = []
    for file in folder.rglob("run.json"):
        path = results_of(file.parent)
        if path is not None:
            done.append(path)
    found: dict[str, Record] = {}
    for path in sorted(done, key=lambda path: path.stat().st_mtime):
        try:
            record = read_record(path)
        except RecordError as error:
            notes.append(str(error))
            continue
        key = path.parents[2].name
        if key in found:
            notes.append(f"{path} is used, it is later than {found[key].path}")
        found[key] = record
    return found


def encoders_of(runs: Iterable[Record]) -> set[str]:
    """Return the names of the encoders that runs of sweeps were given as an option."""
    found = set()
    for record in runs:
        file = record.path.parents[2] / "run.json"
        request = json.loads(file.read_text(encoding="utf-8"))
        for name, value in request["options"]:
            if name in _ENCODERS:
                found.add(value)
    return found


@cache
def _content_digest(config: Path, sha256: str) -> str:
    """Return the SHA-256 of what a config says; `sha256` is that of its bytes."""
    return digest(json.dumps(read_yaml(config), sort_keys=True, default=str).encode())


def _identity_of(run: Run) -> dict[str, object]:
    """Return the values that determine the scores of a run: `Run.identity` without the comments of its config."""
    identity = {**run.identity, "config_sha256": _content_digest(run.config, run.digest)}
    for need in run.needs:
        identity[need.name] = [_identity_of(needed) for needed in need.runs]
    return identity


def key_of_row(row: Row) -> str:
    """Return the hash of all that determines the scores of a row.

    Unlike the keys of runs it does not depend on comments of configs, so a number of the page outlives them.
    """
    identities = [_identity_of(run) for run in row.all_runs()]
    return digest(json.dumps(identities, sort_keys=True).encode())[:16]


@dataclass(frozen=True)
class Numbers:
    """Our numbers with one encoder: those of finished runs, and those that the page had before.

    Attributes:
        runs: Runs with all seeds, by row of the plan, for the rows whose runs are all finished.
        keys: Key of each row of the plan.
        before: Numbers of the former page.
        now: Receives the numbers of the page.
    """

    runs: Runs
    keys: Keys
    before: Kept = field(default_factory=dict)
    now: Kept = field(default_factory=dict)

    @classmethod
    def from_rows(cls, rows: Sequence[Row], runs: Mapping[str, Record], before: Kept, notes: list[str]) -> "Numbers":
        """Return the numbers of the rows of the plan.

        Args:
            rows: The rows, with one encoder.
            runs: Results of finished runs, by key.
            before: Numbers of the former page with this encoder.
            notes: Receives messages about rows of which only some runs are finished.
        """
        keys = {}
        whole = {}
        for row in rows:
            keys[row.name] = key_of_row(row)
            records = row.finished(runs)
            wanted = len(row.all_runs())
            if len(records) == wanted:
                whole[row.name] = records
            elif records:
                notes.append(f"row `{row.name}` is not used: {len(records)} of its {wanted} runs are finished")
        return cls(whole, keys, before)

    def at(self, *places: str) -> Estimate | None:
        """Return the number at a place, as a mean over the seeds, or the difference of the numbers at two places.

        If the runs are not all there, it is the number that the former page had from runs with the same
        keys; None if there is none.

        Raises:
            UserError: The results have no such number, or for a difference no counts for each item.
        """
        name = _MINUS.join(places)
        keys = " ".join(self.keys[row_of(place)] for place in places)
        kept = self.before.get(name)
        if all(row_of(place) in self.runs for place in places):
            if len(places) == 1:
                # What the results lack is kept, too: the page without the runs has the same dash.
                self.now[name] = Number(math.nan, None, None, "fraction", keys, self._versions(places))
            self.now[name] = self._compute(places, keys)
        elif kept is not None and kept.keys == keys:
            self.now[name] = kept
        else:
            return None
        return self.now[name].estimate

    def _compute(self, places: Sequence[str], keys: str) -> Number:
        """Return a number of finished runs, or a difference of two."""
        if len(places) > 1:
            estimate = difference(places, self.runs)
        else:
            row, _, score = places[0].partition("@")
            estimate = over_seeds(self.runs[row], score)
        return Number(estimate.value, estimate.low, estimate.high, estimate.unit, keys, version=self._versions(places))

    def _versions(self, places: Sequence[str]) -> str:
        """Return the versions of the program that made the results of places."""
        versions = set()
        for place in places:
            for record in self.runs[row_of(place)]:
                versions.add(str(record.versions.get("attention-probing", "unknown")))
        return ", ".join(sorted(versions))

    def paired(self, ours: str, other: str) -> Estimate | None:
        """Return the difference of two scores by a paired test; None unless both have counts for the same items."""
        is_kept = _MINUS.join((ours, other)) in self.before
        if not is_kept and not (self._has_counts(ours) and self._has_counts(other)):
            return None
        try:
            return self.at(ours, other)
        except UserError:  # other items
            return None

    def _has_counts(self, place: str) -> bool:
        row, _, score = place.partition("@")
        records = self.runs.get(row, ())
        return bool(records) and all(score in record.ratios for record in records)


def compare_with_former(
    models: Mapping[str, Numbers], before: Mapping[str, Kept], file: Path, folder: Path
) -> list[str]:
    """Return messages about numbers of the former page: those that are kept, and those that are lost.

    Args:
        models: Numbers of the page, by encoder.
        before: Numbers of the former page, by encoder.
        file: File of the numbers.
        folder: Folder of the runs.
    """
    lost = []
    kept = set()
    for encoder, former in before.items():
        numbers = models[encoder]
        lost += sorted(former.keys() - numbers.now.keys())
        for name in numbers.now:
            kept |= set(rows_of(name)) - numbers.runs.keys()
    messages = []
    if lost:
        messages.append(
            f"no longer in {file}: {pluralize(len(lost), 'number')} of rows whose runs the plan has changed, or "
            f"that no finding names: {list_first(lost)}"
        )
    if kept:
        messages.append(
            f"kept from {file}, because their runs are not below {folder}: the numbers of "
            f"{pluralize(len(kept), 'row')}: {list_first(sorted(kept))}"
        )
    return messages


def difference(places: Sequence[str], runs: Runs) -> Estimate:
    """Return the difference of two scores with counts for each item, means over seeds, with its interval.

    Raises:
        UserError: The scores have no counts, or are over different items.
    """
    sides = []
    for place in places:
        row, _, score = place.partition("@")
        sides.append(Side.from_records(score, runs[row]))
    items = shared_items(sides)
    for side in sides:
        if any(len(counts) != len(items) for counts in side.counts):
            raise UserError(
                f"{' and '.join(places)} are not over the same items, so their difference has no paired test"
            )
    estimates = estimate_sides([side.on(items) for side in sides])
    return paired_difference(*estimates)


def read_numbers(path: Path) -> dict[str, Kept]:
    """Return the numbers beside a page by encoder and place; empty if there is no file.

    Raises:
        UserError: The file is damaged.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["sha256"] != _seal(content["numbers"]):
            raise ValueError("its numbers do not have its checksum")
        numbers = {}
        for encoder, entries in content["numbers"].items():
            numbers[encoder] = {place: Number(*entry) for place, entry in entries.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({error}). Restore it; if you delete it, only numbers whose runs are there remain"
        ) from None
    return numbers


def write_numbers(path: Path, numbers: Mapping[str, Kept]) -> None:
    """Write the numbers of a page, by encoder and place, with their checksum."""
    sealed = {"sha256": _seal(numbers), "numbers": numbers}
    write_atomically(path, json.dumps(sealed, indent=1, ensure_ascii=False) + "\n")


def _seal(numbers: Mapping[str, Kept]) -> str:
    return digest(json.dumps(numbers, sort_keys=True).encode())
